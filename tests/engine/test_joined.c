/* test_joined.c - kernels of a mixer that read integer sums and write activations (templates/
 * lib_linear.cu), against the launches they stand for: linear_output in front, linear_input behind.
 * gdn_input against linear_input, and against itself with gates alone.
 *
 * Every byte is equal, for each codebook and for random tunings; the sums of active rows are left
 * zero where the kernel reads them, and nothing else of the sums changes.
 */
#include "kernels.h"

enum {
    ROWS = 8,
    ACTIVE = 5,
    BLOCK = 128,
    K = 256, /* of the residual stream */
    EPS = 0x358637bd,
    K_HEADS = 1,
    V_HEADS = 3,
    V_WIDTH = V_HEADS * BLOCK,
    CHANNELS = (2 * K_HEADS + V_HEADS) * BLOCK,
    Q_HEADS = 2,
    KV_HEADS = 1,
    HEAD = 256,
    ROTARY = 64,
    KV_BITS = 3,
    Q_WIDTH = 2 * Q_HEADS * HEAD,
    KV_WIDTH = KV_HEADS * HEAD,
    CONTEXT = 4096,
    CODE_BYTES = ROWS * KV_HEADS * 8 * KV_BITS * 4,
    SCALE_BYTES = ROWS * KV_HEADS * 8 * 2,
};

static const char *const codebooks[] = {"mul1", "mcg", "3inst"};

static dptr floats(size_t count, float scale)
{
    float *values = random_floats(count, scale);
    const dptr array = array_new(count * sizeof *values, values);
    free(values);
    return array;
}

static dptr halves(size_t count)
{
    float *values = random_floats(count, 1);
    u16 *bits = halves_of(values, count);
    const dptr array = array_new(count * sizeof *bits, bits);
    free(values);
    free(bits);
    return array;
}

static dptr list_of(dptr a, dptr b, dptr c)
{
    const u64 list[4] = {a, b, c};
    return array_new(sizeof list, list);
}

static dptr chain(u32 rows)
{
    u32 words[64] = {rows};
    for (u32 row = 0; row < rows; row++) {
        words[16 + row] = 100 + row;
        words[48 + row] = 0xffffffff;
        for (u32 depth = 0; depth <= row; depth++)
            words[48 + row] = (words[48 + row] & ~(15u << 4 * depth)) | depth << 4 * depth;
    }
    return array_new(sizeof words, words);
}

/* A group's sums, scales and svh as linear_main and the file leave them, and its values as
 * linear_output makes them. Row 1 leaves the range of f32. */
struct group {
    u32 n[3], columns;
    u64 *host;
    dptr sums, scales, svh, values[3], bad, round;
};

static struct group group_new(const char *codebook, u32 n0, u32 n1, u32 n2)
{
    struct group g = {.n = {n0, n1, n2}, .columns = n0 + n1 + n2, .round = chain(ACTIVE)};
    const size_t count = (size_t)ROWS * g.columns;
    u64 scales[4 * ROWS * 2];
    g.host = malloc(count * sizeof *g.host);
    for (size_t i = 0; i < count; i++)
        g.host[i] = (u64)(i64)(i32)random_word() << 12;
    for (u32 i = 0; i < 4 * ROWS; i++) {
        scales[2 * i] = (u64)(i64)(i32)(i % ROWS == 1 ? 139 : random_word() % 4) - 12;
        scales[2 * i + 1] = (u64)(i64)(i32)random_word();
    }
    g.scales = array_new(sizeof scales, scales);
    g.svh = list_of(halves(n0), halves(n1), n2 ? halves(n2) : 0);
    for (u32 i = 0; i < 3 && g.n[i]; i++)
        g.values[i] = array_new((size_t)ROWS * g.n[i] * 4, NULL);
    g.bad = array_new(ROWS * 4, NULL);
    g.sums = array_new(count * 8, g.host);
    struct jit_kernel *output = KERNEL_OF(
        "linear_output", JIT_NUMBER("n0", n0), JIT_NUMBER("n1", n1), JIT_NUMBER("n2", n2),
        JIT_NUMBER("n3", 0), JIT_TEXT("codebook", codebook), JIT_TEXT("mode", "store"));
    LAUNCH(output, g.sums, g.scales, g.svh, list_of(g.values[0], g.values[1], g.values[2]), 0,
           g.bad, g.round);
    array_write(g.sums, g.host, count * 8);
    u32 *bad = array_read(g.bad, ROWS * 4);
    assert_int_equal(bad[0], 0);
    assert_int_equal(bad[1], 1);
    free(bad);
    return g;
}

static void assert_same(dptr a, dptr b, size_t bytes)
{
    void *first = array_read(a, bytes), *second = array_read(b, bytes);
    assert_memory_equal(first, second, bytes);
    free(first);
    free(second);
}

/* Sums of active rows in the blocks that were read are zero, all others are as they were. */
static void assert_cleared(const struct group *g, const bool *read)
{
    u64 *now = array_read(g->sums, (size_t)ROWS * g->columns * 8);
    for (u32 row = 0; row < ROWS; row++)
        for (u32 i = 0; i < g->columns; i++) {
            const size_t at = (size_t)row * g->columns + i;
            assert_int_equal(now[at], row < ACTIVE && read[i / BLOCK] ? 0 : g->host[at]);
        }
    free(now);
}

/* What linear_input or its stand-in writes. */
struct activations {
    dptr act, exponents, sums;
};

static struct activations activations_new(u32 k)
{
    return (struct activations){array_new((size_t)k / 16 * 256, NULL),
                                array_new((size_t)ROWS * (k / BLOCK) * 4, NULL),
                                array_new((size_t)ROWS * (k / BLOCK) * 4, NULL)};
}

static void assert_same_activations(struct activations a, struct activations b, u32 k)
{
    assert_same(a.act, b.act, (size_t)k / 16 * 256);
    assert_same(a.exponents, b.exponents, (size_t)ROWS * (k / BLOCK) * 4);
    assert_same(a.sums, b.sums, (size_t)ROWS * (k / BLOCK) * 4);
}

static void make_activations(struct activations to, const char *mode, u32 k, dptr x, dptr y,
                             dptr weight, dptr suh, dptr bad, dptr round)
{
    struct jit_kernel *input = KERNEL_OF("linear_input", JIT_NUMBER("k", k),
                                         JIT_NUMBER("k_valid", k), JIT_NUMBER("parts", 1),
                                         JIT_TEXT("mode", mode), JIT_NUMBER("eps", EPS));
    LAUNCH(input, x, y, 0, weight, suh, to.act, to.exponents, to.sums, bad, round);
}

/* ---- a GDN layer */

struct conv {
    dptr u, window, q, k, v, bad;
};

static struct conv conv_new(dptr u, const float *window)
{
    return (struct conv){u,
                         array_new((size_t)3 * CHANNELS * 4, window),
                         array_new((size_t)ROWS * K_HEADS * BLOCK * 4, NULL),
                         array_new((size_t)ROWS * K_HEADS * BLOCK * 4, NULL),
                         array_new((size_t)ROWS * V_WIDTH * 4, NULL),
                         array_new(ROWS * 4, NULL)};
}

static void check_gdn(const char *codebook, const char *map, u32 warps)
{
    struct group g = group_new(codebook, CHANNELS, V_WIDTH, 0);
    float *old = random_floats((size_t)3 * CHANNELS, 1);
    const struct conv wanted = conv_new(g.values[0], old);
    const struct conv got = conv_new(array_new((size_t)ROWS * CHANNELS * 4, NULL), old);
    const dptr weight = floats((size_t)CHANNELS * 4, 1);
    struct jit_kernel *plain = KERNEL_OF("gdn_conv", JIT_NUMBER("k_heads", K_HEADS),
                                         JIT_NUMBER("v_heads", V_HEADS),
                                         JIT_TEXT("codebook", "none"));
    struct jit_kernel *joined = KERNEL_OF("gdn_conv", JIT_NUMBER("k_heads", K_HEADS),
                                          JIT_NUMBER("v_heads", V_HEADS),
                                          JIT_TEXT("codebook", codebook), JIT_TEXT("map", map));
    LAUNCH(plain, wanted.u, weight, wanted.window, wanted.q, wanted.k, wanted.v, g.round);
    LAUNCH(joined, got.u, weight, got.window, got.q, got.k, got.v, g.round, g.sums, g.scales, g.svh,
           got.bad);
    bool read[CHANNELS / BLOCK + V_HEADS] = {false};
    memset(read, true, CHANNELS / BLOCK);
    assert_cleared(&g, read);
    assert_same(got.u, wanted.u, (size_t)ROWS * CHANNELS * 4);
    assert_same(got.window, wanted.window, (size_t)3 * CHANNELS * 4);
    assert_same(got.q, wanted.q, (size_t)ROWS * K_HEADS * BLOCK * 4);
    assert_same(got.k, wanted.k, (size_t)ROWS * K_HEADS * BLOCK * 4);
    assert_same(got.v, wanted.v, (size_t)ROWS * V_WIDTH * 4);

    const dptr o = floats((size_t)ROWS * V_WIDTH, 1), factor = floats(BLOCK, 1);
    const dptr suh = list_of(halves(V_WIDTH), 0, 0);
    const struct activations one = activations_new(V_WIDTH), two = activations_new(V_WIDTH);
    make_activations(one, "gdn", V_WIDTH, o, g.values[1], factor, suh, g.bad, g.round);
    struct jit_kernel *output = KERNEL_OF("gdn_output", JIT_NUMBER("k_heads", K_HEADS),
                                          JIT_NUMBER("v_heads", V_HEADS), JIT_NUMBER("eps", EPS),
                                          JIT_TEXT("codebook", codebook), JIT_TEXT("map", map),
                                          JIT_NUMBER("warps", warps));
    LAUNCH(output, o, factor, g.sums, g.scales, g.svh, suh, two.act, two.exponents, two.sums,
           got.bad, g.round);
    memset(read, true, sizeof read);
    assert_cleared(&g, read);
    assert_same_activations(one, two, V_WIDTH);
    assert_same(got.bad, g.bad, ROWS * 4);
    free(old);
    free(g.host);
}

/* The gates with and without the activations beside them; these against linear_input's. */
static void check_gdn_input(u32 parts, const char *dtype, const char *map)
{
    const bool wide = strcmp(dtype, "F32") == 0;
    const size_t weights = (size_t)V_HEADS * K, gates = (size_t)ROWS * 2 * V_HEADS * 4;
    const dptr x = floats((size_t)ROWS * K, 1), norm = floats(K, 1), round = chain(ACTIVE);
    const dptr squares = array_new((size_t)ROWS * (K / BLOCK) * 4, NULL);
    const dptr a = wide ? floats(weights, 1) : halves(weights);
    const dptr b = wide ? floats(weights, 1) : halves(weights);
    const dptr suh = list_of(halves(K), halves(K), halves(K)), bad = array_new(ROWS * 4, NULL);
    const dptr alone = array_new(gates, NULL), beside = array_new(gates, NULL);
    const struct activations wanted = activations_new(parts * K), got = activations_new(parts * K);
    struct jit_kernel *input = KERNEL_OF("linear_input", JIT_NUMBER("k", K),
                                         JIT_NUMBER("k_valid", K), JIT_NUMBER("parts", parts),
                                         JIT_TEXT("mode", "norm"), JIT_NUMBER("eps", EPS));
    struct jit_kernel *of_gates = KERNEL_OF("gdn_input", JIT_NUMBER("k", K), JIT_NUMBER("parts", 0),
                                            JIT_NUMBER("v_heads", V_HEADS), JIT_NUMBER("eps", EPS),
                                            JIT_TEXT("dtype", dtype));
    struct jit_kernel *joined = KERNEL_OF(
        "gdn_input", JIT_NUMBER("k", K), JIT_NUMBER("parts", parts), JIT_NUMBER("v_heads", V_HEADS),
        JIT_NUMBER("eps", EPS), JIT_TEXT("dtype", dtype), JIT_TEXT("map", map));
    LAUNCH(input, x, 0, squares, norm, suh, wanted.act, wanted.exponents, wanted.sums, bad, round);
    LAUNCH(of_gates, x, squares, norm, 0, 0, 0, 0, a, b, alone, bad, round);
    LAUNCH(joined, x, squares, norm, suh, got.act, got.exponents, got.sums, a, b, beside, bad,
           round);
    assert_same_activations(got, wanted, parts * K);
    assert_same(beside, alone, gates);
    u32 *made = array_read(beside, gates);
    for (u32 i = 0; i < ROWS * 2 * V_HEADS; i++)
        assert_int_equal(made[i] != 0, i < ACTIVE * 2 * V_HEADS);
    free(made);
}

static void test_gdn_input(void **state)
{
    (void)state;
    check_gdn_input(2, "F16", "strided");
    check_gdn_input(1, "BF16", "contiguous");
    check_gdn_input(3, "F32", "strided");
}

/* ---- an attention layer */

struct prepared {
    dptr planes, scale, own[4], bad;
};

static struct prepared prepared_new(void)
{
    struct prepared p = {.planes = array_new((size_t)2 * ROWS * Q_HEADS * HEAD, NULL),
                         .scale = array_new((size_t)ROWS * Q_HEADS * 8 * 4, NULL),
                         .bad = array_new(ROWS * 4, NULL)};
    for (u32 i = 0; i < 4; i++)
        p.own[i] = array_new(i % 2 ? SCALE_BYTES : CODE_BYTES, NULL);
    return p;
}

static void prepare(const struct prepared *p, const char *codebook, const char *map, dptr q, dptr k,
                    dptr v, dptr norm, dptr frequencies, dptr round)
{
    struct jit_kernel *kernel = KERNEL_OF(
        "attention_prepare", JIT_NUMBER("q_heads", Q_HEADS), JIT_NUMBER("kv_heads", KV_HEADS),
        JIT_NUMBER("rotary_dims", ROTARY), JIT_NUMBER("eps", EPS), JIT_TEXT("codebook", codebook),
        JIT_NUMBER("kv_bits", KV_BITS), JIT_TEXT("map", map));
    LAUNCH(kernel, q, k, v, norm, norm, frequencies, 0, p->planes, p->scale, 0, 0, 0, 0, p->own[0],
           p->own[1], p->own[2], p->own[3], p->bad, round);
}

/* Results of the first spans, as attention_decode leaves them: (part, stat). */
static void make_spans(dptr spans[2])
{
    enum { SPANS = 2 };
    const size_t slots = (size_t)SPANS * ROWS * Q_HEADS;
    u32 *stat = malloc(slots * 8);
    for (size_t i = 0; i < slots; i++) {
        const float sum = 1 + (float)(random_word() % 8);
        stat[2 * i] = random_word() % 5 - 2;
        memcpy(&stat[2 * i + 1], &sum, sizeof sum);
    }
    spans[0] = floats(slots * HEAD, 1);
    spans[1] = array_new(slots * 8, stat);
    free(stat);
}

static void check_attention(const char *codebook, const char *map, u32 warps)
{
    struct group g = group_new(codebook, Q_WIDTH, KV_WIDTH, KV_WIDTH);
    const struct prepared wanted = prepared_new(), got = prepared_new();
    u64 turns[ROTARY / 2];
    for (u32 i = 0; i < ROTARY / 2; i++)
        turns[i] = (u64)random_word() << 24;
    const dptr norm = floats(HEAD, 1), frequencies = array_new(sizeof turns, turns);
    prepare(&wanted, "none", map, g.values[0], g.values[1], g.values[2], norm, frequencies,
            g.round);
    prepare(&got, codebook, map, g.sums, g.scales, g.svh, norm, frequencies, g.round);
    bool read[(Q_WIDTH + 2 * KV_WIDTH) / BLOCK];
    for (u32 i = 0; i < COUNT_OF(read); i++)
        read[i] = i >= Q_WIDTH / BLOCK || i % 4 < 2; /* not the gates */
    assert_cleared(&g, read);
    assert_same(got.planes, wanted.planes, (size_t)2 * ROWS * Q_HEADS * HEAD);
    assert_same(got.scale, wanted.scale, (size_t)ROWS * Q_HEADS * 8 * 4);
    for (u32 i = 0; i < 4; i++)
        assert_same(got.own[i], wanted.own[i], i % 2 ? SCALE_BYTES : CODE_BYTES);

    dptr spans[2];
    make_spans(spans);
    const u32 k = Q_HEADS * HEAD;
    const dptr mixed = array_new((size_t)ROWS * k * 4, NULL), suh = list_of(halves(k), 0, 0);
    const struct activations one = activations_new(k), two = activations_new(k);
    struct jit_kernel *plain = KERNEL_OF(
        "attention_combine", JIT_NUMBER("q_heads", Q_HEADS), JIT_NUMBER("kv_heads", KV_HEADS),
        JIT_NUMBER("context", CONTEXT), JIT_TEXT("codebook", "none"), JIT_NUMBER("bits", KV_BITS));
    struct jit_kernel *joined = KERNEL_OF(
        "attention_combine", JIT_NUMBER("q_heads", Q_HEADS), JIT_NUMBER("kv_heads", KV_HEADS),
        JIT_NUMBER("context", CONTEXT), JIT_TEXT("codebook", codebook), JIT_NUMBER("bits", KV_BITS),
        JIT_TEXT("map", map), JIT_NUMBER("warps", warps));
    LAUNCH(plain, spans[0], spans[1], g.values[0], mixed, g.round);
    make_activations(one, "plain", k, mixed, 0, 0, suh, g.bad, g.round);
    LAUNCH(joined, spans[0], spans[1], g.sums, g.scales, g.svh, suh, two.act, two.exponents,
           two.sums, got.bad, g.round);
    memset(read, true, sizeof read);
    assert_cleared(&g, read);
    assert_same_activations(one, two, k);
    assert_same(got.bad, g.bad, ROWS * 4);
    free(g.host);
}

static void test_gdn(void **state)
{
    (void)state;
    for (u32 i = 0; i < COUNT_OF(codebooks); i++)
        check_gdn(codebooks[i], i % 2 ? "contiguous" : "strided", 1u << i);
}

static void test_attention(void **state)
{
    (void)state;
    for (u32 i = 0; i < COUNT_OF(codebooks); i++)
        check_attention(codebooks[i], i % 2 ? "contiguous" : "strided", 1u << i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_gdn, kernels_clear),
        cmocka_unit_test_teardown(test_gdn_input, kernels_clear),
        cmocka_unit_test_teardown(test_attention, kernels_clear),
    };
    return cmocka_run_group_tests_name("joined", tests, kernels_open, kernels_close);
}
