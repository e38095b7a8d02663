/* The kernels of the draft's block pass on the host device, each against a reference in binary64,
 * and their contract: what a row may see, and that tuning does not show in the bits.
 */
#include "kernels.h"
#include "engine/tree.h"

#define EPS JIT_NUMBER("eps", 0x358637bd) /* 1e-6f */
#define EPSILON 9.99999997475242707878e-07

enum { ROWS = 8, DIM = 128 };

/* What tuning each kernel is run with; the first is the measure of the others. */
static const struct tuning {
    u32 warps;
    const char *map;
} tunings[] = {{4, "strided"}, {1, "contiguous"}, {8, "contiguous"}};

#define TUNED(i) JIT_NUMBER("warps", tunings[i].warps), JIT_TEXT("map", tunings[i].map)

static dptr round_array(u32 rows, u32 base)
{
    const u32 tokens[ROWS] = {0};
    u32 round[ROUND_WORDS];
    tree_describe_chain(tokens, rows, base, round);
    return array_new(sizeof round, round);
}

/* An array that shows what was not written. */
static dptr array_of(size_t count, float value)
{
    float *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = value;
    const dptr array = array_new(count * sizeof *data, data);
    free(data);
    return array;
}

/* ---- copies */

static void taps_lie_side_by_side(void **state)
{
    enum { WIDTH = 256, TAPS = 3, STRIDE = WIDTH * TAPS, FIRST = 2, COUNT = 5 };
    (void)state;
    float *x = random_floats((FIRST + COUNT) * WIDTH, 1);
    for (u32 t = 0; t < COUNT_OF(tunings); t++) {
        struct jit_kernel *kernel = KERNEL_OF("draft_tap", JIT_NUMBER("width", WIDTH),
                                              JIT_NUMBER("stride", STRIDE),
                                              JIT_NUMBER("rows_max", 64), TUNED(t));
        const dptr out = array_of(ROWS * STRIDE, 7);
        LAUNCH(kernel, array_new((FIRST + COUNT) * WIDTH * 4, x), out, FIRST, WIDTH, COUNT);
        float *got = array_read(out, ROWS * STRIDE * 4);
        for (u32 i = 0; i < ROWS * STRIDE; i++) {
            const u32 row = i / STRIDE, column = i % STRIDE;
            const bool copied = row < COUNT && column / WIDTH == 1;
            assert_float_equal(got[i], copied ? x[(FIRST + row) * WIDTH + column % WIDTH] : 7, 0);
        }
        free(got);
    }
    free(x);
}

static void rows_are_gathered(void **state)
{
    enum { WIDTH = 384, COUNT = 4 };
    const u32 sources[COUNT] = {0, 2, 5, 7};
    u32 round[ROUND_WORDS] = {COUNT};
    (void)state;
    memcpy(round + ROUND_SOURCES, sources, sizeof sources);
    float *in = random_floats(ROWS * WIDTH, 1);
    for (u32 t = 0; t < COUNT_OF(tunings); t++) {
        struct jit_kernel *kernel = KERNEL_OF("draft_gather", JIT_NUMBER("width", WIDTH), TUNED(t));
        const dptr out = array_of(ROWS * WIDTH, 7);
        LAUNCH(kernel, array_new(ROWS * WIDTH * 4, in), out, array_new(sizeof round, round));
        float *got = array_read(out, ROWS * WIDTH * 4);
        for (u32 i = 0; i < ROWS * WIDTH; i++) {
            const u32 row = i / WIDTH;
            const float wanted = row < COUNT ? in[sources[row] * WIDTH + i % WIDTH] : 7;
            assert_float_equal(got[i], wanted, 0);
        }
        free(got);
    }
    free(in);
}

/* bf16 rows of a table, times the draft's scale; one product, so the bits are known. */
static void embeddings_are_scaled(void **state)
{
    enum { WIDTH = 256, COUNT = 3, VOCAB = 5 };
    const u32 tokens[COUNT] = {4, 0, 4};
    const float scales[] = {1, 2.5f, 0.19611613513818404f};
    u16 table[VOCAB * WIDTH];
    u32 round[ROUND_WORDS] = {COUNT};
    (void)state;
    for (u32 i = 0; i < VOCAB * WIDTH; i++)
        table[i] = (u16)(0x3f00 + random_word() % 0x200);
    for (u32 s = 0; s < COUNT_OF(scales); s++) {
        u32 bits;
        memcpy(&bits, scales + s, 4);
        struct jit_kernel *kernel = KERNEL_OF("embed", JIT_NUMBER("hidden", WIDTH),
                                              JIT_NUMBER("rows_max", ROWS),
                                              JIT_TEXT("dtype", "BF16"), JIT_NUMBER("scale", bits));
        const dptr x = array_new(ROWS * WIDTH * 4, NULL), squares = array_new(ROWS * 2 * 4, NULL);
        LAUNCH(kernel, array_new(sizeof table, table), array_new(sizeof tokens, tokens), x, squares,
               array_new(sizeof round, round));
        float *got = array_read(x, ROWS * WIDTH * 4), *sums = array_read(squares, ROWS * 2 * 4);
        for (u32 row = 0; row < COUNT; row++) {
            double square[2] = {0, 0};
            for (u32 i = 0; i < WIDTH; i++) {
                const u32 wide = (u32)table[tokens[row] * WIDTH + i] << 16;
                float value;
                memcpy(&value, &wide, 4);
                assert_float_equal(got[row * WIDTH + i], value * scales[s], 0);
                square[i / DIM] += (double)value * value * scales[s] * scales[s];
            }
            assert_close(sums + row * 2, square, 2, 1e-6);
        }
        free(got), free(sums);
    }
}

/* ---- queries, keys and values */

enum { Q_HEADS = 4, KV_HEADS = 2, CAPACITY = 128, SLOTS = CAPACITY + ROWS };
enum { KV = KV_HEADS * DIM, QUERIES = Q_HEADS * DIM };

/* Norm and RoPE over all dims (pairs t, t + 64), in binary64. */
static void head_reference(const float *from, const float *weight, u32 position, double to[DIM])
{
    double square = 0;
    for (u32 i = 0; i < DIM; i++)
        square += (double)from[i] * from[i];
    for (u32 i = 0; i < DIM; i++)
        to[i] = from[i] / sqrt(square / DIM + EPSILON) * weight[i];
    for (u32 t = 0; t < DIM / 2; t++) {
        const double angle = position * pow(1e7, -2.0 * t / DIM), a = to[t], b = to[t + DIM / 2];
        to[t] = a * cos(angle) - b * sin(angle);
        to[t + DIM / 2] = b * cos(angle) + a * sin(angle);
    }
}

struct prepared {
    float *q;   /* [8, Q_HEADS, DIM] */
    u16 *k, *v; /* rings: [SLOTS, KV_HEADS, DIM] */
};

/* Rows through the kernel into rings that were full of `filler`. */
static struct prepared prepare(const char *mode, u32 tuning, u32 rows, u32 base, const float *q,
                               const float *k, const float *v, const float *q_norm,
                               const float *k_norm, u16 filler)
{
    u64 frequencies[DIM / 2];
    u16 *full = malloc(SLOTS * KV * 2);
    struct jit_kernel *kernel = KERNEL_OF(
        "draft_prepare", JIT_NUMBER("q_heads", Q_HEADS), JIT_NUMBER("kv_heads", KV_HEADS),
        JIT_NUMBER("capacity", CAPACITY), JIT_TEXT("mode", mode), EPS, TUNED(tuning));
    for (u32 i = 0; i < DIM / 2; i++)
        frequencies[i] = rope_frequency(1e7, i, DIM);
    for (u32 i = 0; i < SLOTS * KV; i++)
        full[i] = filler;
    const dptr q_out = array_of(ROWS * QUERIES, 7), ring_k = array_new(SLOTS * KV * 2, full),
               ring_v = array_new(SLOTS * KV * 2, full);
    LAUNCH(kernel, q ? array_new(ROWS * QUERIES * 4, q) : 0, array_new(ROWS * KV * 4, k),
           array_new(ROWS * KV * 4, v), q ? array_new(DIM * 4, q_norm) : 0,
           array_new(DIM * 4, k_norm), array_new(sizeof frequencies, frequencies), q ? q_out : 0,
           ring_k, ring_v, round_array(rows, base));
    free(full);
    return (struct prepared){array_read(q_out, ROWS * QUERIES * 4),
                             array_read(ring_k, SLOTS * KV * 2),
                             array_read(ring_v, SLOTS * KV * 2)};
}

static void prepared_free(struct prepared *p)
{
    free(p->q), free(p->k), free(p->v);
}

/* Slot of each row, and that no other slot changed; keys and values against the reference. */
static void check_rings(const struct prepared *p, const float *k, const float *v,
                        const float *k_norm, u32 rows, u32 base, bool block, u16 filler)
{
    bool written[SLOTS] = {false};
    float got[2][ROWS * KV];
    double wanted[2][ROWS * KV];
    for (u32 row = 0; row < rows; row++) {
        const u32 slot = block ? CAPACITY + row : (base + row) % CAPACITY;
        written[slot] = true;
        for (u32 head = 0; head < KV_HEADS; head++)
            head_reference(k + row * KV + head * DIM, k_norm, base + row,
                           wanted[0] + row * KV + head * DIM);
        for (u32 i = 0; i < KV; i++) {
            got[0][row * KV + i] = half_value(p->k[slot * KV + i]);
            got[1][row * KV + i] = half_value(p->v[slot * KV + i]);
            wanted[1][row * KV + i] = v[row * KV + i];
        }
    }
    assert_close(got[0], wanted[0], rows * KV, 4e-4);
    assert_close(got[1], wanted[1], rows * KV, 4e-4);
    for (u32 i = 0; i < SLOTS * KV; i++)
        if (!written[i / KV]) {
            assert_int_equal(p->k[i], filler);
            assert_int_equal(p->v[i], filler);
        }
}

static void queries_and_block_rows(void **state)
{
    enum { COUNT = 7, BASE = 5 * CAPACITY - 3, FILLER = 0x7e01 };
    (void)state;
    float *q = random_floats(ROWS * QUERIES, 3), *k = random_floats(ROWS * KV, 0.2f),
          *v = random_floats(ROWS * KV, 1);
    float *q_norm = random_floats(DIM, 1), *k_norm = random_floats(DIM, 1);
    double *wanted = malloc(sizeof(double) * COUNT * QUERIES);
    for (u32 i = 0; i < COUNT * Q_HEADS; i++) {
        head_reference(q + i * DIM, q_norm, BASE + i / Q_HEADS, wanted + i * DIM);
        for (u32 d = 0; d < DIM; d++)
            wanted[i * DIM + d] *= 1.4426950408889634 / sqrt(DIM);
    }
    struct prepared first = {0};
    for (u32 t = 0; t < COUNT_OF(tunings); t++) {
        struct prepared got = prepare("block", t, COUNT, BASE, q, k, v, q_norm, k_norm, FILLER);
        assert_close(got.q, wanted, COUNT * QUERIES, 1e-6);
        for (u32 i = COUNT * QUERIES; i < ROWS * QUERIES; i++)
            assert_float_equal(got.q[i], 7, 0);
        check_rings(&got, k, v, k_norm, COUNT, BASE, true, FILLER);
        if (t > 0) {
            assert_same_floats(got.q, first.q, ROWS * QUERIES);
            assert_memory_equal(got.k, first.k, SLOTS * KV * 2);
            assert_memory_equal(got.v, first.v, SLOTS * KV * 2);
            prepared_free(&got);
        } else {
            first = got;
        }
    }
    prepared_free(&first);
    free(q), free(k), free(v), free(q_norm), free(k_norm), free(wanted);
}

/* Over the end of the ring, with values beyond a half's range. */
static void context_rows_go_round(void **state)
{
    enum { COUNT = 6, BASE = 5 * CAPACITY - 3, FILLER = 0x7e01 };
    (void)state;
    float *k = random_floats(ROWS * KV, 40), *v = random_floats(ROWS * KV, 1);
    float *k_norm = random_floats(DIM, 1);
    struct prepared first = {0};
    for (u32 t = 0; t < COUNT_OF(tunings); t++) {
        struct prepared got = prepare("context", t, COUNT, BASE, NULL, k, v, NULL, k_norm, FILLER);
        check_rings(&got, k, v, k_norm, COUNT, BASE, false, FILLER);
        if (t > 0) {
            assert_memory_equal(got.k, first.k, SLOTS * KV * 2);
            assert_memory_equal(got.v, first.v, SLOTS * KV * 2);
            prepared_free(&got);
        } else {
            first = got;
        }
    }
    prepared_free(&first);
    v[3] = 1e6f, v[4] = -1e6f;
    struct prepared clamped = prepare("context", 0, 1, 0, NULL, k, v, NULL, k_norm, FILLER);
    assert_int_equal(clamped.v[3], 0x7bff);
    assert_int_equal(clamped.v[4], 0xfbff);
    prepared_free(&clamped);
    free(k), free(v), free(k_norm);
}

/* ---- convolution */

enum { HIDDEN = 256, GROUP = 16, GROUPS = HIDDEN / GROUP, STRIDE = 4 * GROUPS + 8 };

/* Both modes: out is what prepare gives, or x after finish. Caller frees. */
static float *convolve(const char *mode, u32 tuning, u32 rows, const float *h,
                       const float *coefficients, const float *base, const float *x, float *squares,
                       u32 bad[ROWS])
{
    struct jit_kernel *kernel = KERNEL_OF("draft_conv", JIT_NUMBER("hidden", HIDDEN),
                                          JIT_NUMBER("stride", STRIDE), JIT_NUMBER("group", GROUP),
                                          JIT_TEXT("mode", mode), TUNED(tuning));
    const dptr out = array_new(ROWS * HIDDEN * 4, x), sums = array_of(ROWS * 2, 7),
               flags = array_new(ROWS * 4, NULL);
    LAUNCH(kernel, array_new(ROWS * HIDDEN * 4, h), array_new(ROWS * STRIDE * 4, coefficients),
           array_new(4 * HIDDEN * 4, base), out, squares ? sums : 0, bad ? flags : 0,
           round_array(rows, 0));
    if (squares) {
        float *copy = array_read(sums, ROWS * 2 * 4);
        memcpy(squares, copy, ROWS * 2 * 4);
        free(copy);
    }
    if (bad) {
        u32 *copy = array_read(flags, ROWS * 4);
        memcpy(bad, copy, ROWS * 4);
        free(copy);
    }
    return array_read(out, ROWS * HIDDEN * 4);
}

static double convolved(const float *h, const float *coefficients, const float *base, u32 side,
                        u32 row, u32 c)
{
    double sum = 0;
    for (u32 tap = 0; tap < 2 && tap <= row; tap++) {
        const double k = (double)base[(side * 2 + tap) * HIDDEN + c] +
                         coefficients[row * STRIDE + (side * 2 + tap) * GROUPS + c / GROUP];
        sum += k * h[(row - tap) * HIDDEN + c];
    }
    return sum;
}

static void convolution_is_close(void **state)
{
    enum { COUNT = 7 };
    float *h = random_floats(ROWS * HIDDEN, 1), *d = random_floats(ROWS * STRIDE, 1),
          *base = random_floats(4 * HIDDEN, 1), *x = random_floats(ROWS * HIDDEN, 10);
    double before[COUNT * HIDDEN], after[COUNT * HIDDEN];
    float squares[2][ROWS * 2], *first[2] = {NULL, NULL};
    u32 bad[ROWS];
    (void)state;
    for (u32 i = 0; i < COUNT * HIDDEN; i++) {
        before[i] = convolved(h, d, base, 0, i / HIDDEN, i % HIDDEN);
        after[i] = x[i] + convolved(h, d, base, 1, i / HIDDEN, i % HIDDEN);
    }
    for (u32 t = 0; t < COUNT_OF(tunings); t++) {
        float *got[2] = {
            convolve("prepare", t, COUNT, h, d, base, x, NULL, NULL),
            convolve("finish", t, COUNT, h, d, base, x, squares[t > 0], bad),
        };
        assert_close(got[0], before, COUNT * HIDDEN, 1e-6);
        assert_close(got[1], after, COUNT * HIDDEN, 1e-6);
        for (u32 row = 0; row < COUNT; row++) {
            double square[2] = {0, 0};
            for (u32 i = 0; i < HIDDEN; i++)
                square[i / DIM] += (double)got[1][row * HIDDEN + i] * got[1][row * HIDDEN + i];
            assert_close(squares[t > 0] + row * 2, square, 2, 1e-6);
            assert_int_equal(bad[row], 0);
        }
        for (u32 side = 0; side < 2; side++) {
            assert_same_floats(got[side] + COUNT * HIDDEN, x + COUNT * HIDDEN, HIDDEN);
            if (t > 0)
                assert_same_floats(got[side], first[side], ROWS * HIDDEN);
            if (t > 0)
                free(got[side]);
            else
                first[side] = got[side];
        }
        assert_float_equal(squares[t > 0][COUNT * 2], 7, 0);
        assert_same_floats(squares[t > 0], squares[0], ROWS * 2);
    }
    free(h), free(d), free(base), free(x), free(first[0]), free(first[1]);
}

/* A base of 1 at tap 0 and nothing else: what a new draft starts with. */
static void identity_changes_nothing(void **state)
{
    float *h = random_floats(ROWS * HIDDEN, 1), *d = calloc(ROWS * STRIDE, 4),
          *base = calloc(4 * HIDDEN, 4), *zeros = calloc(ROWS * HIDDEN, 4);
    float squares[ROWS * 2];
    u32 bad[ROWS];
    (void)state;
    for (u32 c = 0; c < HIDDEN; c++)
        base[c] = base[2 * HIDDEN + c] = 1;
    float *before = convolve("prepare", 0, ROWS, h, d, base, zeros, NULL, NULL);
    float *after = convolve("finish", 0, ROWS, h, d, base, zeros, squares, bad);
    assert_same_floats(before, h, ROWS * HIDDEN);
    assert_same_floats(after, h, ROWS * HIDDEN);
    free(h), free(d), free(base), free(zeros), free(before), free(after);
}

/* Row t is made of the coefficients of row t, h of rows t and t - 1, and nothing else. */
static void rows_see_themselves_and_one_before(void **state)
{
    float *h = random_floats(ROWS * HIDDEN, 1), *d = random_floats(ROWS * STRIDE, 1),
          *base = random_floats(4 * HIDDEN, 1), *x = random_floats(ROWS * HIDDEN, 1);
    float squares[ROWS * 2];
    u32 bad[ROWS];
    (void)state;
    for (u32 side = 0; side < 2; side++) {
        const char *mode = side ? "finish" : "prepare";
        float *plain = convolve(mode, 0, ROWS, h, d, base, x, squares, bad);
        for (u32 what = 0; what < 2; what++)
            for (u32 row = 0; row < ROWS; row++) {
                float *from = what ? h + row * HIDDEN : d + row * STRIDE;
                const u32 width = what ? HIDDEN : STRIDE;
                float kept[HIDDEN];
                memcpy(kept, from, width * 4);
                for (u32 i = 0; i < width; i++)
                    from[i] += 1;
                float *got = convolve(mode, 0, ROWS, h, d, base, x, squares, bad);
                memcpy(from, kept, width * 4);
                for (u32 other = 0; other < ROWS; other++) {
                    const bool seen = other == row || (what == 1 && other == row + 1);
                    const bool same = memcmp(got + other * HIDDEN, plain + other * HIDDEN,
                                             HIDDEN * 4) == 0;
                    if (same == seen)
                        fail_msg("%s: row %u %s of row %u's %s", mode, other,
                                 same ? "is not made" : "is made", row,
                                 what ? "input" : "coefficients");
                }
                free(got);
                kernels_clear(NULL);
            }
        free(plain);
    }
    free(h), free(d), free(base), free(x);
}

static void values_that_are_not_finite_are_flagged(void **state)
{
    float *h = random_floats(ROWS * HIDDEN, 1), *d = calloc(ROWS * STRIDE, 4),
          *base = calloc(4 * HIDDEN, 4), *x = random_floats(ROWS * HIDDEN, 1);
    float squares[ROWS * 2];
    u32 bad[ROWS];
    (void)state;
    for (u32 c = 0; c < HIDDEN; c++)
        base[2 * HIDDEN + c] = 1;
    x[3 * HIDDEN + 200] = INFINITY;
    free(convolve("finish", 0, ROWS, h, d, base, x, squares, bad));
    for (u32 row = 0; row < ROWS; row++)
        assert_int_equal(bad[row], row == 3);
    free(h), free(d), free(base), free(x);
}

/* ---- attention */

struct attention {
    u32 q_heads, kv_heads, capacity, window, causal;
    u32 rows, base;
    float *q;   /* [8, q_heads, DIM] in log2 units */
    u16 *k, *v; /* [capacity + 8, kv_heads, DIM] */
};

static const struct {
    u32 warps, pass, combine;
    const char *map;
} attention_tunings[] = {
    {8, 16, 2, "strided"}, {4, 16, 1, "contiguous"}, {2, 4, 4, "contiguous"}, {4, 8, 4, "strided"}};

enum { NOTHING = 0x7e00 }; /* NaN: what no row may read */

/* Random keys and values in the slots the round sees, NaN in the others. */
static void attention_fill(struct attention *a)
{
    const u32 width = a->kv_heads * DIM;
    const u32 reach = a->window ? a->window - 1 : a->capacity;
    const size_t count = (size_t)(a->capacity + ROWS) * width;
    const size_t queries = (size_t)a->q_heads * DIM * ROWS;
    a->q = random_floats(queries, 0.3f);
    a->k = malloc(count * 2);
    a->v = malloc(count * 2);
    for (size_t i = 0; i < count; i++)
        a->k[i] = a->v[i] = NOTHING;
    for (u32 i = 0; i < reach + a->rows; i++) {
        const u32 position = a->base + a->rows - 1 - i;
        if (i >= a->rows + a->base)
            break;
        const u32 slot = position >= a->base ? a->capacity + position - a->base
                                             : position % a->capacity;
        for (u32 c = 0; c < width; c++) {
            a->k[(size_t)slot * width + c] = half_bits(random_float());
            a->v[(size_t)slot * width + c] = half_bits(random_float());
        }
    }
}

static void attention_free(struct attention *a)
{
    free(a->q), free(a->k), free(a->v);
}

/* Both kernels; returns [8, q_heads * DIM], 7 where no row is. Caller frees. */
static float *attend(const struct attention *a, u32 tuning)
{
    const struct jit_parameter shape[] = {
        JIT_NUMBER("q_heads", a->q_heads), JIT_NUMBER("capacity", a->capacity),
        JIT_NUMBER("window", a->window), JIT_TEXT("map", attention_tunings[tuning].map)};
    struct jit_kernel *tiles = KERNEL_OF("draft_attention", shape[0], shape[1], shape[2], shape[3],
                                         JIT_NUMBER("kv_heads", a->kv_heads),
                                         JIT_NUMBER("causal", a->causal),
                                         JIT_NUMBER("warps", attention_tunings[tuning].warps),
                                         JIT_NUMBER("pass", attention_tunings[tuning].pass));
    struct jit_kernel *combine = KERNEL_OF("draft_combine", shape[0], shape[1], shape[2], shape[3],
                                           JIT_NUMBER("warps", attention_tunings[tuning].combine));
    const size_t heads = (size_t)jit_kernel_export(tiles, "tiles") * ROWS * a->q_heads;
    const size_t ring = (size_t)(a->capacity + ROWS) * a->kv_heads * DIM * 2;
    const size_t width = (size_t)a->q_heads * DIM;
    const dptr part = array_of(heads * DIM, NAN), stat = array_of(heads * 2, NAN),
               out = array_of(ROWS * width, 7), round = round_array(a->rows, a->base);
    LAUNCH(tiles, array_new(ROWS * width * 4, a->q), array_new(ring, a->k), array_new(ring, a->v),
           part, stat, round);
    LAUNCH(combine, part, stat, out, round);
    float *got = array_read(out, ROWS * width * 4);
    kernels_clear(NULL);
    return got;
}

static void attend_reference(const struct attention *a, u32 row, u32 head, double out[DIM])
{
    const u32 width = a->kv_heads * DIM, kv_head = head / (a->q_heads / a->kv_heads);
    const i64 position = (i64)a->base + row, reach = a->window ? a->window - 1 : a->capacity;
    const float *q = a->q + ((size_t)row * a->q_heads + head) * DIM;
    double total = 0;
    memset(out, 0, DIM * sizeof *out);
    for (i64 n = (i64)a->base > reach ? a->base - reach : 0; n < a->base + a->rows; n++) {
        const i64 slot = n < a->base ? n % a->capacity : a->capacity + n - a->base;
        const u16 *k = a->k + slot * width + kv_head * DIM,
                  *v = a->v + slot * width + kv_head * DIM;
        double score = 0;
        if ((a->window && llabs(n - position) >= a->window) || (a->causal && n > position))
            continue;
        for (u32 i = 0; i < DIM; i++)
            score += (double)q[i] * half_value(k[i]);
        score = exp2(score);
        total += score;
        for (u32 i = 0; i < DIM; i++)
            out[i] += score * half_value(v[i]);
    }
    for (u32 i = 0; i < DIM; i++)
        out[i] /= total;
}

/* All rows close to the reference, the same bits with every tuning. */
static void check_attention(struct attention *a, u32 tuning_count)
{
    const size_t width = (size_t)a->q_heads * DIM;
    double *wanted = malloc(a->rows * width * sizeof *wanted);
    attention_fill(a);
    float *first = attend(a, 0);
    for (u32 i = 0; i < a->rows * a->q_heads; i++)
        attend_reference(a, i / a->q_heads, i % a->q_heads, wanted + (size_t)i * DIM);
    assert_close(first, wanted, a->rows * width, 1e-6);
    for (size_t i = a->rows * width; i < ROWS * width; i++)
        assert_float_equal(first[i], 7, 0);
    for (u32 t = 1; t < tuning_count; t++) {
        float *got = attend(a, t);
        assert_same_floats(got, first, ROWS * width);
        free(got);
    }
    free(first), free(wanted);
    attention_free(a);
}

static void attention_is_close(void **state)
{
    struct attention cases[] = {
        /* heads, kv, capacity, window, causal, rows, base */
        {4, 1, 128, 128, 0, 8, 300}, {4, 1, 128, 128, 1, 8, 300}, {4, 1, 128, 128, 0, 7, 0},
        {4, 1, 128, 128, 0, 1, 5},   {8, 2, 128, 40, 0, 8, 1000}, {2, 2, 128, 0, 0, 8, 130},
        {16, 2, 192, 0, 1, 8, 100},  {6, 2, 150, 5, 0, 8, 131},   {3, 1, 100, 1, 0, 8, 64},
        {4, 1, 128, 128, 0, 8, 57},
    };
    (void)state;
    for (u32 i = 0; i < COUNT_OF(cases); i++)
        check_attention(&cases[i], i < 2 ? COUNT_OF(attention_tunings) : 2);
}

/* The published draft: 32 heads over 8, a window of 2048. */
static void attention_of_the_27b(void **state)
{
    struct attention a = {32, 8, 2048, 2048, 0, 8, 5000};
    (void)state;
    check_attention(&a, 2);
}

/* Which rows change when keys and values of a slot do: a bit a row. */
static u32 rows_that_see(struct attention *a, u32 slot)
{
    const size_t width = (size_t)a->q_heads * DIM, ring = (size_t)a->kv_heads * DIM;
    float *before = attend(a, 0);
    u32 changed = 0;
    for (u32 what = 0; what < 2; what++) {
        u16 *from = (what ? a->k : a->v) + slot * ring, kept[4 * DIM];
        memcpy(kept, from, ring * 2);
        for (u32 i = 0; i < ring; i++)
            from[i] = half_bits(random_float());
        float *after = attend(a, 0);
        memcpy(from, kept, ring * 2);
        u32 seen = 0;
        for (u32 row = 0; row < ROWS; row++)
            if (memcmp(before + row * width, after + row * width, width * 4) != 0)
                seen |= 1u << row;
        if (what > 0)
            assert_int_equal(seen, changed);
        changed = seen;
        free(after);
    }
    free(before);
    return changed;
}

static void block_rows_see_each_other(void **state)
{
    (void)state;
    for (u32 causal = 0; causal < 2; causal++) {
        struct attention a = {4, 1, 128, 128, causal, 8, 200};
        attention_fill(&a);
        for (u32 row = 0; row < ROWS; row++)
            assert_int_equal(rows_that_see(&a, a.capacity + row),
                             causal ? 0xffu << row & 0xff : 0xff);
        attention_free(&a);
    }
}

/* Row k sees the context from base - window + 1 + k on. */
static void windows_end_where_they_should(void **state)
{
    enum { WINDOW = 70 };
    struct attention a = {4, 1, 128, WINDOW, 0, 8, 300};
    (void)state;
    attention_fill(&a);
    for (u32 k = 1; k < ROWS; k++) {
        assert_int_equal(rows_that_see(&a, (a.base - WINDOW + k) % a.capacity), (1u << k) - 1);
        assert_int_equal(rows_that_see(&a, (a.base - WINDOW + 1 + k) % a.capacity),
                         (1u << (k + 1)) - 1);
    }
    assert_int_equal(rows_that_see(&a, (a.base - 1) % a.capacity), 0xff);
    assert_int_equal(rows_that_see(&a, (a.base - WINDOW) % a.capacity), 0);
    attention_free(&a);
}

/* The same tokens in rings of different size; rows of an earlier block left behind. */
static void rings_go_round(void **state)
{
    struct attention small = {4, 1, 128, 128, 0, 5, 300}, large = {4, 1, 160, 128, 0, 5, 300};
    (void)state;
    attention_fill(&small);
    large.q = small.q;
    large.k = calloc((large.capacity + ROWS) * DIM, 2);
    large.v = calloc((large.capacity + ROWS) * DIM, 2);
    for (u32 n = small.base - 127; n < small.base + ROWS; n++) {
        const u32 from = n < 300 ? n % 128 : 128 + n - 300, to = n < 300 ? n % 160 : 160 + n - 300;
        memcpy(large.k + to * DIM, small.k + from * DIM, DIM * 2);
        memcpy(large.v + to * DIM, small.v + from * DIM, DIM * 2);
    }
    float *fresh = attend(&small, 0), *wide = attend(&large, 0);
    assert_same_floats(wide, fresh, 5 * 4 * DIM);
    for (u32 i = 133 * DIM; i < 136 * DIM; i++)
        small.k[i] = small.v[i] = half_bits(random_float());
    float *stale = attend(&small, 0);
    assert_same_floats(stale, fresh, 5 * 4 * DIM);
    free(fresh), free(wide), free(stale), free(large.k), free(large.v);
    attention_free(&small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(taps_lie_side_by_side, kernels_clear),
        cmocka_unit_test_teardown(rows_are_gathered, kernels_clear),
        cmocka_unit_test_teardown(embeddings_are_scaled, kernels_clear),
        cmocka_unit_test_teardown(queries_and_block_rows, kernels_clear),
        cmocka_unit_test_teardown(context_rows_go_round, kernels_clear),
        cmocka_unit_test_teardown(convolution_is_close, kernels_clear),
        cmocka_unit_test_teardown(identity_changes_nothing, kernels_clear),
        cmocka_unit_test_teardown(rows_see_themselves_and_one_before, kernels_clear),
        cmocka_unit_test_teardown(values_that_are_not_finite_are_flagged, kernels_clear),
        cmocka_unit_test_teardown(attention_is_close, kernels_clear),
        cmocka_unit_test_teardown(attention_of_the_27b, kernels_clear),
        cmocka_unit_test_teardown(block_rows_see_each_other, kernels_clear),
        cmocka_unit_test_teardown(windows_end_where_they_should, kernels_clear),
        cmocka_unit_test_teardown(rings_go_round, kernels_clear),
    };
    return cmocka_run_group_tests(tests, kernels_open, kernels_close);
}
