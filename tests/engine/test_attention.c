/* test_attention.c - decode attention over a coded cache as kernels, on the device that
 * ELPIS_TEST_DEVICE names (host by default).
 *
 * Random queries over a random cache: rounds of one row, of a chain and of a tree whose own keys
 * lie in two tiles, far enough out for spans of more than one tile and more spans than a warp has
 * lanes. The bits of every span and of the merged result are those recorded here: they were taken
 * when test_forward's digests were, and no way of working may change them. The merge alone is
 * compared with its definition at up to 144 spans, some of them without keys.
 */
#include "kernels.h"

enum { ROWS = 8, HEADS = 12, KV_HEADS = 2, HEAD_DIM = 256, CONTEXT = 4096, BASE = 2492 };

struct arrays {
    dptr q_planes, q_scale, k_codes, k_scales, v_codes, v_scales;
    dptr own_k_codes, own_k_scales, own_v_codes, own_v_scales, pages, qg;
};

/* Scales of the cache: 1/8 .. 1. */
static dptr random_scales(size_t count)
{
    u16 *halves = malloc(count * 2);
    for (size_t i = 0; i < count; i++)
        halves[i] = (u16)(0x3000 + random_word() % 0x0c00);
    const dptr address = array_new(count * 2, halves);
    free(halves);
    return address;
}

/* Two planes of digits within +-32639. */
static dptr random_queries(void)
{
    enum { BYTES = ROWS * HEADS * HEAD_DIM };
    i8 *planes = malloc(2 * BYTES);
    for (size_t i = 0; i < BYTES; i++) {
        planes[i] = (i8)((i32)(random_word() % 255) - 127);
        planes[BYTES + i] = (i8)(random_word() % 256);
    }
    const dptr address = array_new(2 * BYTES, planes);
    free(planes);
    return address;
}

static struct arrays random_arrays(u32 bits)
{
    const size_t groups = (size_t)CONTEXT * KV_HEADS * 8, own = (size_t)ROWS * KV_HEADS * 8;
    u32 page_list[CONTEXT / 256];
    for (u32 i = 0; i < COUNT_OF(page_list); i++)
        page_list[i] = (i * 5 + 3) % COUNT_OF(page_list);
    test_seed = 7 + bits;
    /* Rows differ in how far their scores are spread: from a few to hundreds of powers of two. */
    float *scale = random_floats((size_t)ROWS * HEADS * 8, 1), *gate;
    for (size_t i = 0; i < (size_t)ROWS * HEADS * 8; i++)
        scale[i] = fabsf(scale[i]) * 1e-4F / (float)(1 << bits) / (float)(1 << (i / 8 % 8));
    gate = random_floats((size_t)ROWS * HEADS * 2 * HEAD_DIM, 3);
    const struct arrays arrays = {
        .q_planes = random_queries(),
        .q_scale = array_new((size_t)ROWS * HEADS * 8 * 4, scale),
        .k_codes = random_words(groups * bits),
        .k_scales = random_scales(groups),
        .v_codes = random_words(groups * bits),
        .v_scales = random_scales(groups),
        .own_k_codes = random_words(own * bits),
        .own_k_scales = random_scales(own),
        .own_v_codes = random_words(own * bits),
        .own_v_scales = random_scales(own),
        .pages = array_new(sizeof page_list, page_list),
        .qg = array_new((size_t)ROWS * HEADS * 2 * HEAD_DIM * 4, gate),
    };
    free(scale);
    free(gate);
    return arrays;
}

/* Adds the bits of one round to the digest. parents: of each row, itself for a root. */
static void add_round(struct digest_state *digest, const struct arrays *a, u32 bits, u32 rows,
                      u32 base, const u32 parents[ROWS])
{
    u32 round_words[64] = {rows, base};
    for (u32 row = 0; row < rows; row++) {
        const bool root = parents[row] == row;
        round_words[16 + row] = root ? base : round_words[16 + parents[row]] + 1;
        round_words[24 + row] = (root ? 0 : round_words[24 + parents[row]]) | 1u << row;
    }
    struct jit_kernel *attend = KERNEL_OF("attention_decode", JIT_NUMBER("q_heads", HEADS),
                                          JIT_NUMBER("kv_heads", KV_HEADS),
                                          JIT_NUMBER("context", CONTEXT), JIT_NUMBER("bits", bits));
    struct jit_kernel *combine = KERNEL_OF(
        "attention_combine", JIT_NUMBER("q_heads", HEADS), JIT_NUMBER("kv_heads", KV_HEADS),
        JIT_NUMBER("context", CONTEXT), JIT_TEXT("codebook", "none"), JIT_NUMBER("bits", bits));
    const size_t spans = (size_t)jit_kernel_export(attend, "spans");
    const size_t sizes[] = {spans * ROWS * HEADS * HEAD_DIM * 4, spans * ROWS * HEADS * 8,
                            (size_t)ROWS * HEADS * HEAD_DIM * 4};
    const dptr round = array_new(sizeof round_words, round_words);
    dptr out[3];
    for (u32 i = 0; i < COUNT_OF(out); i++)
        out[i] = array_new(sizes[i], NULL);
    LAUNCH(attend, a->q_planes, a->q_scale, a->k_codes, a->k_scales, a->v_codes, a->v_scales,
           a->own_k_codes, a->own_k_scales, a->own_v_codes, a->own_v_scales, a->pages, out[0],
           out[1], round);
    LAUNCH(combine, out[0], out[1], a->qg, out[2], round);
    for (u32 i = 0; i < COUNT_OF(out); i++) {
        void *bytes = array_read(out[i], sizes[i]);
        digest_add(digest, bytes, sizes[i]);
        free(bytes);
    }
}

static void check_bits(u32 bits, const char *want)
{
    static const u32 chain[ROWS] = {0, 0, 1, 2, 3, 4, 5, 6}, tree[ROWS] = {0, 0, 0, 1, 1, 3, 5, 6};
    const struct arrays arrays = random_arrays(bits);
    struct digest_state *digest = digest_begin();
    add_round(digest, &arrays, bits, ROWS, BASE, chain);
    add_round(digest, &arrays, bits, ROWS, BASE, tree);
    add_round(digest, &arrays, bits, 3, 64, tree);
    add_round(digest, &arrays, bits, 1, 0, tree);
    char found[65];
    digest_text(digest_end(digest), found);
    if (strncmp(found, want, 16) != 0)
        fail_msg("%u bits: digest %.16s, recorded %s", bits, found, want);
}

static void test_bits_3(void **state)
{
    (void)state;
    check_bits(3, "e5b138ddb36ce9c8");
}

static void test_other_bits(void **state)
{
    static const char *const want[] = {
        [2] = "9c31321ab85a58e0", [4] = "1a05c7a0a72b9667", [5] = "8a557a9caa6169b0",
        [6] = "6d4bfa98d0855977", [7] = "bf11f5afeec3599c", [8] = "60b59bb1b06cc546"};
    (void)state;
    for (u32 bits = 2; bits < COUNT_OF(want); bits++)
        if (want[bits]) {
            check_bits(bits, want[bits]);
            kernels_clear(NULL);
        }
}

/* ---- the merge alone, against its definition */

enum { LONG_CONTEXT = 262144, SPANS = 144, SLOTS = ROWS * HEADS, SLOT_VALUES = SLOTS * HEAD_DIM };

/* Random results of spans: rows see no keys in a fifth of them, where `part` is not a number. */
static void make_spans(float *part, u32 *stat)
{
    for (u32 slot = 0; slot < SPANS * SLOTS; slot++) {
        const bool live = slot < SLOTS || random_word() % 5 > 0; /* a row sees its first span */
        const float sum = live ? 1 + (float)(random_word() % 1000) / 64 : 0;
        stat[2 * slot] = random_word() % 60 - 30; /* merged so far is kept, scaled or forgotten */
        memcpy(&stat[2 * slot + 1], &sum, sizeof sum);
        for (u32 i = 0; i < HEAD_DIM && !live; i++)
            part[(size_t)slot * HEAD_DIM + i] = NAN;
    }
}

/* One dim of one row and head after its first `spans` spans. */
static float merged(const float *part, const u32 *stat, u32 spans, u32 slot, u32 dim)
{
    float value = 0, sum = 0;
    i32 top = -(1 << 30);
    for (u32 span = 0; span < spans; span++) {
        const u32 at = span * SLOTS + slot;
        float own;
        memcpy(&own, &stat[2 * at + 1], sizeof own);
        if (!(own > 0))
            continue;
        const i32 own_top = (i32)stat[2 * at], new_top = own_top > top ? own_top : top;
        const float old_scale = ldexpf(1, top - new_top), scale = ldexpf(1, own_top - new_top);
        sum = fmaf(own, scale, sum * old_scale);
        value = fmaf(part[(size_t)at * HEAD_DIM + dim], scale, value * old_scale);
        top = new_top;
    }
    return value / sum;
}

static void check_merge(u32 warps, u32 ahead, const u32 positions[ROWS])
{
    const size_t values = (size_t)SPANS * SLOT_VALUES;
    float *part = random_floats(values, 1), *gate = random_floats((size_t)2 * SLOT_VALUES, 1);
    u32 *stat = malloc((size_t)SPANS * SLOTS * 8), round_words[64] = {ROWS};
    make_spans(part, stat);
    memcpy(round_words + 16, positions, ROWS * 4);
    for (u32 i = 0; i < 2 * SLOT_VALUES; i++)
        gate[i] = 1000; /* its sigmoid is 1 */
    struct jit_kernel *combine = KERNEL_OF(
        "attention_combine", JIT_NUMBER("q_heads", HEADS), JIT_NUMBER("kv_heads", KV_HEADS),
        JIT_NUMBER("context", LONG_CONTEXT), JIT_TEXT("codebook", "none"), JIT_NUMBER("bits", 16),
        JIT_NUMBER("warps", warps), JIT_NUMBER("ahead", ahead));
    const dptr out = array_new((size_t)SLOT_VALUES * 4, NULL);
    LAUNCH(combine, array_new(values * 4, part), array_new((size_t)SPANS * SLOTS * 8, stat),
           array_new((size_t)2 * SLOT_VALUES * 4, gate), out,
           array_new(sizeof round_words, round_words));
    float *found = array_read(out, (size_t)SLOT_VALUES * 4);
    for (u32 i = 0; i < SLOT_VALUES; i++) {
        const u32 slot = i / HEAD_DIM, position = positions[slot / HEADS];
        u32 spans = position / 64 + 1, octave = 0;
        if (position >= 2048) {
            while (position >= 4096u << octave)
                octave++;
            spans = 32 + 16 * octave + (position - (2048u << octave)) / (128u << octave) + 1;
        }
        const float want = merged(part, stat, spans, slot, i % HEAD_DIM);
        if (memcmp(&found[i], &want, sizeof want) != 0)
            fail_msg("%u warps, %u batches, slot %u, dim %u, %u spans: %.9g, expected %.9g", warps,
                     ahead, slot, i % HEAD_DIM, spans, found[i], want);
    }
    free(part);
    free(gate);
    free(stat);
    free(found);
}

static void test_merge(void **state)
{
    static const u32 far[ROWS] = {0, 64 * 7, 64 * 8, 2047, 2048, 32767, 262143, 200000};
    static const u32 mixed[ROWS] = {63, 1, 130, 5000, 1000, 64 * 31, 70000, 262143};
    (void)state;
    test_seed = 11;
    check_merge(1, 4, far);
    kernels_clear(NULL);
    check_merge(2, 2, mixed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_bits_3, kernels_clear),
        cmocka_unit_test_teardown(test_other_bits, kernels_clear),
        cmocka_unit_test_teardown(test_merge, kernels_clear),
    };
    return cmocka_run_group_tests_name("attention", tests, kernels_open, kernels_close);
}
