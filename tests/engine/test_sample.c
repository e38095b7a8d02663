/* The sampler kernel against a plain reference: sort by rank, cut, walk. The reference weighs in
 * binary64, the kernel in 2^-40ths; the fixed seeds used here draw no number that falls between.
 */
#include "kernels.h"

enum { ROWS = 8, WORDS = 16, ENTRIES = 24, NONE = 0xffffffff };

struct settings {
    float temperature;
    u32 top_k;
    double top_p, min_p;
    float repetition, presence, frequency;
    u32 penalties[ENTRIES][2], penalty_count;
    u64 seed;
};

static const struct settings plain = {.temperature = 1, .top_p = 1, .repetition = 1};

/* ---- reference */

static void philox(const u32 counter[4], const u32 key[2], u32 out[4])
{
    u32 c[4], k[2] = {key[0], key[1]};
    memcpy(c, counter, sizeof c);
    for (u32 round = 0; round < 10; round++) {
        const u64 a = (u64)0xD2511F53u * c[0], b = (u64)0xCD9E8D57u * c[2];
        const u32 next[4] = {(u32)(b >> 32) ^ c[1] ^ k[0], (u32)b, (u32)(a >> 32) ^ c[3] ^ k[1],
                             (u32)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

static const float *sorted_values;

static int by_rank(const void *a, const void *b)
{
    const u32 i = *(const u32 *)a, j = *(const u32 *)b;
    const float x = sorted_values[i], y = sorted_values[j];
    return x > y ? -1 : x < y ? 1 : i < j ? -1 : i > j;
}

static u32 reference(const float *logits, u32 vocab, const struct settings *s, u32 position)
{
    float *x = malloc(vocab * sizeof *x);
    u32 *order = malloc(vocab * sizeof *order), kept, token = NONE, random[4];
    double *weight = calloc(vocab, sizeof *weight), total = 0, sum = 0;
    memcpy(x, logits, vocab * sizeof *x);
    for (u32 i = 0; i < s->penalty_count; i++) {
        float *value = x + s->penalties[i][0];
        *value = *value > 0 ? *value / s->repetition : *value * s->repetition;
        if (s->penalties[i][1] > 0)
            *value -= fmaf((float)s->penalties[i][1], s->frequency, s->presence);
    }
    for (u32 i = 0; i < vocab; i++) {
        order[i] = i;
        x[i] = s->temperature > 0 ? x[i] / s->temperature : x[i];
    }
    sorted_values = x;
    qsort(order, vocab, sizeof *order, by_rank);
    kept = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    for (u32 i = 0; i < kept; i++)
        total += exp((double)x[order[i]] - x[order[0]]);
    for (u32 i = 0; i < kept && sum <= s->top_p * total; i++) {
        const double w = exp((double)x[order[i]] - x[order[0]]);
        sum += w;
        weight[order[i]] = w >= s->min_p ? w : 0;
    }
    total = 0;
    for (u32 i = 0; i < vocab; i++)
        total += weight[i];
    philox((const u32[4]){position}, (const u32[2]){(u32)s->seed, (u32)(s->seed >> 32)}, random);
    const double target = (double)((u64)random[1] << 32 | random[0]) * 0x1p-64 * total;
    sum = 0;
    for (u32 i = 0; i < vocab && token == NONE; i++)
        if ((sum += weight[i]) > target)
            token = i;
    if (s->temperature == 0)
        token = order[0];
    free(x), free(order), free(weight);
    return token;
}

/* ---- the kernel */

static u32 float_bits(float value)
{
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void pack(const struct settings *s, u32 row, u32 words[WORDS], u32 *entries)
{
    const u64 top_p = s->top_p >= 1 ? 0 : (u64)(s->top_p * 0x1p64),
              min_p = (u64)llrint(s->min_p * 0x1p40);
    const u32 packed[WORDS] = {
        float_bits(s->temperature),
        s->top_k,
        (u32)top_p,
        (u32)(top_p >> 32),
        (u32)min_p,
        (u32)(min_p >> 32),
        float_bits(s->repetition),
        float_bits(s->presence),
        float_bits(s->frequency),
        row * ENTRIES,
        s->penalty_count,
        (u32)s->seed,
        (u32)(s->seed >> 32),
    };
    memcpy(words, packed, sizeof packed);
    memcpy(entries + row * ENTRIES * 2, s->penalties, sizeof s->penalties);
}

#define KERNEL(name, ...)                                                         \
    KERNEL_OF(name, JIT_NUMBER("vocab", vocab), JIT_NUMBER("valid_vocab", valid), \
              JIT_NUMBER("rows_max", ROWS), JIT_NUMBER("warps", warps), __VA_ARGS__)

/* copies is tuning of the last kernel, slices of those in the middle. */
static void sample(u32 vocab, u32 valid, u32 warps, u32 copies, u32 slices, const float *logits,
                   const struct settings *settings, const u32 *positions, const u32 *bad, u32 rows,
                   u32 *tokens)
{
    struct jit_kernel *prepare = KERNEL("sample_keys", JIT_TEXT("map", "strided")),
                      *weigh = KERNEL("sample_weigh", JIT_NUMBER("slices", slices)),
                      *gather = KERNEL("sample_gather", JIT_NUMBER("slices", slices)),
                      *finish = KERNEL("sample", JIT_NUMBER("copies", copies));
    const size_t pieces = (size_t)jit_kernel_export(prepare, "pieces"),
                 stride = (size_t)jit_kernel_export(prepare, "key_stride"),
                 bins = (size_t)jit_kernel_export(prepare, "bins"),
                 candidates = (size_t)jit_kernel_export(prepare, "candidates");
    u32 words[ROWS][WORDS], entries[ROWS * ENTRIES * 2] = {0};
    u32 round[80] = {rows};
    for (u32 row = 0; row < rows; row++) {
        pack(settings + row, row, words[row], entries);
        round[16 + row] = positions[row];
    }
    const dptr out = array_new(ROWS * 4, NULL), keys = array_new(ROWS * stride * 4, NULL),
               best = array_new(ROWS * pieces * 8, NULL), sums = array_new(ROWS * pieces * 8, NULL),
               counts = array_new(ROWS * bins * 8, NULL),
               list = array_new(ROWS * candidates * 8, NULL), listed = array_new(ROWS * 4, NULL),
               set = array_new((size_t)rows * WORDS * 4, words),
               described = array_new(sizeof round, round);
    LAUNCH(prepare, array_new((size_t)rows * vocab * 4, logits), set,
           array_new(sizeof entries, entries), best, keys, counts, listed, described);
    LAUNCH(weigh, set, best, keys, sums, counts, described);
    LAUNCH(gather, set, best, keys, counts, list, listed, described);
    LAUNCH(finish, set, best, keys, sums, counts, list, listed, array_new(rows * 4, bad), out,
           described);
    u32 *got = array_read(out, ROWS * 4);
    memcpy(tokens, got, rows * 4);
    free(got);
}

static const u32 good[ROWS];

/* ---- tests */

static void random_numbers_are_philox(void **state)
{
    const u32 zero[4] = {0}, ones[4] = {NONE, NONE, NONE, NONE};
    const u32 of_zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const u32 of_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    u32 out[4];
    (void)state;
    philox(zero, zero, out);
    assert_memory_equal(out, of_zero, sizeof out);
    philox(ones, ones, out);
    assert_memory_equal(out, of_ones, sizeof out);
}

static void greedy_takes_the_first_of_the_largest(void **state)
{
    enum { VOCAB = 300 };
    struct settings settings[ROWS];
    float *logits = random_floats(ROWS * VOCAB, 1);
    u32 tokens[ROWS];
    (void)state;
    for (u32 row = 0; row < ROWS; row++) {
        settings[row] = plain;
        settings[row].temperature = 0;
    }
    logits[0 * VOCAB + 17] = logits[0 * VOCAB + 290] = 9;
    for (u32 i = 0; i < VOCAB; i++) {
        logits[1 * VOCAB + i] = i == 5 ? -0.0f : i == 250 ? 0.0f : -1;
        logits[2 * VOCAB + i] = i == 99 ? -3 : -INFINITY;
    }
    logits[3 * VOCAB + 299] = 50; /* past valid_vocab */
    logits[3 * VOCAB + 44] = 40;
    logits[4 * VOCAB + 7] = NAN;
    logits[5 * VOCAB + 7] = INFINITY;
    logits[7 * VOCAB + 3] = 30;
    logits[7 * VOCAB + 4] = 20;
    settings[7].penalty_count = 1;
    settings[7].penalties[0][0] = 3;
    settings[7].repetition = 2;
    const u32 bad[ROWS] = {[6] = 1};
    sample(VOCAB, 299, 2, 1, 2, logits, settings, good, bad, ROWS, tokens);
    const u32 wanted[ROWS] = {17, 5, 99, 44, NONE, NONE, NONE, 4};
    for (u32 row = 0; row < ROWS; row++)
        if (tokens[row] != wanted[row])
            fail_msg("row %u: %u, expected %u", row, tokens[row], wanted[row]);
    free(logits);
}

static struct settings random_settings(void)
{
    struct settings s = plain;
    const u32 kind = random_word();
    s.seed = (u64)random_word() << 32 | random_word();
    s.temperature = kind % 5 == 0 ? 0 : 0.25f * (float)(1 + random_word() % 8);
    s.top_k = kind / 5 % 2 ? 1 + random_word() % 40 : 0;
    s.top_p = kind / 10 % 2 ? (random_word() % 1000 + 1) / 1001.0 : 1;
    s.min_p = kind / 20 % 2 ? random_word() % 100 / 400.0 : 0;
    if (kind / 40 % 2) {
        s.repetition = 1 + random_word() % 8 / 8.0f;
        s.presence = random_word() % 4 / 4.0f;
        s.frequency = random_word() % 4 / 8.0f;
        s.penalty_count = ENTRIES;
        for (u32 i = 0; i < ENTRIES; i++) {
            s.penalties[i][0] = i * 4 + random_word() % 4;
            s.penalties[i][1] = random_word() % 3;
        }
    }
    return s;
}

/* Rows of random settings; logits of deviation `spread`, rounded to halves where `ties`. */
static u32 compare_draws(u32 vocab, u32 valid, float spread, bool ties, const u32 tuning[3])
{
    struct settings settings[ROWS];
    u32 positions[ROWS], tokens[ROWS], different = 0;
    float *logits = random_floats(ROWS * vocab, spread);
    for (u32 i = 0; ties && i < ROWS * vocab; i++)
        logits[i] = floorf(logits[i] * 2) / 2;
    for (u32 row = 0; row < ROWS; row++) {
        settings[row] = random_settings();
        positions[row] = random_word() % 262144;
    }
    sample(vocab, valid, tuning[0], tuning[1], tuning[2], logits, settings, positions, good, ROWS,
           tokens);
    for (u32 row = 0; row < ROWS; row++) {
        const u32 wanted = reference(logits + row * vocab, valid, settings + row, positions[row]);
        const struct settings *s = settings + row;
        if (tokens[row] != wanted)
            fail_msg("%u ids, row %u: %u, expected %u (T %g, k %u, p %g, min %g, penalties %u)",
                     vocab, row, tokens[row], wanted, s->temperature, s->top_k, s->top_p, s->min_p,
                     s->penalty_count);
        different += tokens[row] != tokens[0];
    }
    free(logits);
    kernels_clear(NULL);
    return different;
}

static const u32 tunings[][3] = {{1, 1, 3}, {2, 2, 1}, {4, 1, 2}};

static void draws_match_the_reference(void **state)
{
    enum { VOCAB = 1000, ROUNDS = 60 };
    u32 different = 0;
    (void)state;
    for (u32 round = 0; round < ROUNDS; round++) {
        const u32 vocab = round % 2 ? VOCAB : VOCAB / 10;
        different += compare_draws(vocab, vocab - 3, 1 + (float)(round % 4), round % 3 == 0,
                                   tunings[round % COUNT_OF(tunings)]);
    }
    assert_true(different > ROUNDS);
}

/* Several pieces a row; where logits differ little, more candidates than the list holds. */
static void long_rows_match_the_reference(void **state)
{
    enum { VOCAB = 5001, ROUNDS = 12 };
    (void)state;
    for (u32 round = 0; round < ROUNDS; round++)
        compare_draws(VOCAB, VOCAB - round % 4, round % 2 ? 0.01f : 2, false,
                      tunings[round % COUNT_OF(tunings)]);
}

/* Eight equal ids, top-k of three: the three lowest, each about as often. */
static void ties_go_by_id(void **state)
{
    enum { VOCAB = 64, DRAWS = 100 };
    float logits[ROWS * VOCAB];
    u32 seen[VOCAB] = {0}, tokens[ROWS], positions[ROWS];
    struct settings settings[ROWS];
    (void)state;
    for (u32 i = 0; i < ROWS * VOCAB; i++)
        logits[i] = i % VOCAB % 8 == 5 ? 2 : -30;
    for (u32 draw = 0; draw < DRAWS; draw++) {
        for (u32 row = 0; row < ROWS; row++) {
            settings[row] = plain;
            settings[row].top_k = 3;
            positions[row] = draw * ROWS + row;
        }
        sample(VOCAB, VOCAB, 1, 1, 1, logits, settings, positions, good, ROWS, tokens);
        for (u32 row = 0; row < ROWS; row++)
            seen[tokens[row]]++;
        kernels_clear(NULL);
    }
    const u32 ids[] = {5, 13, 21};
    for (u32 i = 0; i < COUNT_OF(ids); i++)
        assert_in_range(seen[ids[i]], DRAWS * ROWS / 4, DRAWS * ROWS / 2);
    assert_int_equal(seen[5] + seen[13] + seen[21], DRAWS * ROWS);
}

/* Frequencies over many positions follow the distribution. */
static void draws_follow_the_weights(void **state)
{
    enum { VOCAB = 40, DRAWS = 500 };
    float *logits = random_floats(VOCAB, 1), *rows = malloc(ROWS * VOCAB * sizeof *rows);
    double total = 0, distance = 0;
    u32 seen[VOCAB] = {0}, tokens[ROWS], positions[ROWS];
    struct settings settings[ROWS];
    (void)state;
    for (u32 row = 0; row < ROWS; row++) {
        settings[row] = plain;
        settings[row].seed = 77;
        memcpy(rows + row * VOCAB, logits, VOCAB * sizeof *rows);
    }
    for (u32 draw = 0; draw < DRAWS; draw++) {
        for (u32 row = 0; row < ROWS; row++)
            positions[row] = draw * ROWS + row;
        sample(VOCAB, VOCAB, 1, 1, 1, rows, settings, positions, good, ROWS, tokens);
        for (u32 row = 0; row < ROWS; row++)
            seen[tokens[row]]++;
        kernels_clear(NULL);
    }
    for (u32 i = 0; i < VOCAB; i++)
        total += exp(logits[i]);
    for (u32 i = 0; i < VOCAB; i++)
        distance += fabs(seen[i] / (double)(DRAWS * ROWS) - exp(logits[i]) / total);
    if (distance > 0.12) /* its mean over 4,000 fair draws is about 0.08 */
        fail_msg("total distance %.3f", distance);
    free(logits), free(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_numbers_are_philox),
        cmocka_unit_test_teardown(greedy_takes_the_first_of_the_largest, kernels_clear),
        cmocka_unit_test_teardown(draws_match_the_reference, kernels_clear),
        cmocka_unit_test_teardown(long_rows_match_the_reference, kernels_clear),
        cmocka_unit_test_teardown(ties_go_by_id, kernels_clear),
        cmocka_unit_test_teardown(draws_follow_the_weights, kernels_clear),
    };
    return cmocka_run_group_tests(tests, kernels_open, kernels_close);
}
