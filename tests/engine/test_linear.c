/* test_linear.c - the exact decode linear and decode attention as kernels, on the device that
 * ELPIS_TEST_DEVICE names (host by default).
 *
 * Linears: every codebook and K of tests/data/exl3_vectors.safetensors against float64 (limit 4e-4
 * relative RMS: the affine form of mul1 is 2.1e-4 of it). Emitters: equal bits at every K and at
 * several shapes. Parts that share a launch: the integers of each alone. Maps: the contiguous and
 * the strided map have different text and equal bits, for linear_main and for attention_decode.
 */
#include "kernels.h"

enum { ROWS = 8, VECTOR_ROWS = 5, BLOCK = 128 };

struct linear {
    u32 k, n, bits;
    const char *codebook, *map, *emitter;
    u32 tiles, unit, depth, few_rows;
    dptr trellis, suh, svh, x, y;
};

static dptr pointer_list(dptr address)
{
    const u64 list[4] = {address};
    return array_new(sizeof list, list);
}

/* y = x W by the three launches; x: f32 [rows, k], y: f32 [rows, n] on the device. */
static void run_linear(const struct linear *l, u32 rows)
{
    const u32 blocks = l->k / BLOCK;
    const u32 round_words[64] = {rows};
    const dptr act = array_new((size_t)l->k / 16 * 256, NULL);
    const dptr exponents = array_new((size_t)ROWS * blocks * 4, NULL);
    const dptr digits = array_new((size_t)ROWS * blocks * 4, NULL);
    const dptr sums = array_new((size_t)ROWS * l->n * 8, NULL);
    const dptr bad = array_new(ROWS * 4, NULL), round = array_new(sizeof round_words, round_words);
    struct jit_kernel *input = KERNEL_OF("linear_input", JIT_NUMBER("k", l->k),
                                         JIT_NUMBER("k_valid", l->k), JIT_NUMBER("parts", 1),
                                         JIT_TEXT("mode", "plain"), JIT_NUMBER("eps", 0));
    struct jit_kernel *product = KERNEL_OF(
        "linear_main", JIT_NUMBER("k", l->k), JIT_NUMBER("n0", l->n), JIT_NUMBER("n1", 0),
        JIT_NUMBER("n2", 0), JIT_NUMBER("n3", 0), JIT_NUMBER("bits", l->bits),
        JIT_TEXT("codebook", l->codebook), JIT_TEXT("map", l->map), JIT_TEXT("emitter", l->emitter),
        JIT_NUMBER("tiles", l->tiles),
        JIT_NUMBER("unit", strcmp(l->emitter, "wgmma") == 0 ? 8 : l->unit),
        JIT_NUMBER("depth", l->depth),
        JIT_NUMBER("few_rows", on_gpu() && strcmp(l->codebook, "mul1") == 0 ? 4 : l->few_rows));
    struct jit_kernel *output = KERNEL_OF(
        "linear_output", JIT_NUMBER("n0", l->n), JIT_NUMBER("n1", 0), JIT_NUMBER("n2", 0),
        JIT_NUMBER("n3", 0), JIT_TEXT("codebook", l->codebook), JIT_TEXT("mode", "store"));
    LAUNCH(input, l->x, 0, 0, 0, pointer_list(l->suh), act, exponents, digits, bad, round);
    const dptr scales = array_new(4 * ROWS * 16, NULL);
    LAUNCH(product, pointer_list(l->trellis), act, exponents, digits, sums, scales, round);
    LAUNCH(output, sums, scales, pointer_list(l->svh), pointer_list(l->y), 0, bad, round);
}

/* Element of an f16 tensor, which may lie at any address. */
static float half_at(const void *data, size_t index)
{
    u16 bits;
    memcpy(&bits, (const char *)data + index * 2, sizeof bits);
    return (float)half_value(bits);
}

static const struct tensor *vector_of(const struct tensor_file *file, const char *codebook,
                                      u32 bits, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "%s.k%u.%s", codebook, bits, name);
    const struct tensor *tensor = tensor_file_find(file, key);
    if (!tensor)
        fail_msg("exl3_vectors: no tensor %s", key);
    return tensor;
}

static dptr upload_tensor(const struct tensor *tensor)
{
    return array_new(tensor->count * dtype_size(tensor->dtype), tensor->data);
}

static void check_vector(const struct tensor_file *file, const char *codebook, u32 bits)
{
    const struct tensor *x = vector_of(file, codebook, bits, "x");
    const struct tensor *truth = vector_of(file, codebook, bits, "y64");
    struct linear l = {.k = (u32)x->shape[1],
                       .n = (u32)truth->shape[1],
                       .bits = bits,
                       .codebook = codebook,
                       .map = "contiguous",
                       .emitter = "bytes",
                       .tiles = 4,
                       .unit = 4,
                       .depth = 2};
    float *values = memory_alloc((size_t)ROWS * l.k * sizeof *values);
    for (size_t i = 0; i < x->count; i++)
        values[i] = half_at(x->data, i);
    l.x = array_new((size_t)ROWS * l.k * 4, values);
    l.y = array_new((size_t)ROWS * l.n * 4, NULL);
    l.trellis = upload_tensor(vector_of(file, codebook, bits, "trellis"));
    pack_trellis(l.trellis, l.k, l.n, bits);
    l.suh = upload_tensor(vector_of(file, codebook, bits, "suh"));
    l.svh = upload_tensor(vector_of(file, codebook, bits, "svh"));
    run_linear(&l, VECTOR_ROWS);
    float *y = array_read(l.y, (size_t)VECTOR_ROWS * l.n * 4);
    double error = 0, size = 0;
    for (size_t i = 0; i < truth->count; i++) {
        double want;
        memcpy(&want, (const char *)truth->data + i * 8, 8);
        error += (y[i] - want) * (y[i] - want);
        size += want * want;
    }
    if (!(sqrt(error / size) <= 4e-4))
        fail_msg("%s K %u: relative RMS %.2e, limit 4e-4", codebook, bits, sqrt(error / size));
    free(y);
    memory_free(values);
    kernels_clear(NULL);
}

/* K from `first`, each `step`th one; in the full run every one. */
static void check_codebook(const char *codebook, u32 first, u32 step)
{
    struct tensor_file *file;
    struct error error = {0};
    need(tensor_file_open(&file, "tests/data/exl3_vectors.safetensors", &error), &error);
    for (u32 bits = full_run() ? 1 : first; bits <= 8; bits += full_run() ? 1 : step)
        check_vector(file, codebook, bits);
    tensor_file_close(file);
}

static void test_mul1(void **state)
{
    (void)state;
    check_codebook("mul1", 1, 1);
}

/* These two differ in the constants of one line: each K of one of them. */
static void test_mcg(void **state)
{
    (void)state;
    check_codebook("mcg", 1, 2);
}

static void test_3inst(void **state)
{
    (void)state;
    check_codebook("3inst", 2, 2);
}

/* ---- maps and emitters */

/* All rows of y, those beyond `rows` zero. */
static void *result_of(struct linear *l, u32 rows)
{
    l->y = array_new((size_t)ROWS * l->n * 4, NULL);
    run_linear(l, rows);
    return array_read(l->y, (size_t)ROWS * l->n * 4);
}

static void *linear_with_map(struct linear *l, const char *map)
{
    l->map = map;
    return result_of(l, ROWS);
}

static dptr random_halves(size_t count)
{
    u16 *halves = malloc(count * 2);
    for (size_t i = 0; i < count; i++) /* +-0.5 .. 1 */
        halves[i] = (u16)(0x3800 | (random_word() & 0x83ff));
    const dptr address = array_new(count * 2, halves);
    free(halves);
    return address;
}

/* x, trellis and signs at random, of a mul1 linear as it is by default on the host. */
static struct linear random_linear(u32 k, u32 n, u32 bits)
{
    struct linear l = {.k = k,
                       .n = n,
                       .bits = bits,
                       .codebook = "mul1",
                       .map = "contiguous",
                       .emitter = "bytes",
                       .tiles = 4,
                       .unit = 4,
                       .depth = 2};
    float *x = random_floats((size_t)ROWS * k, 1);
    l.x = array_new((size_t)ROWS * k * 4, x);
    l.trellis = random_words((size_t)k / 16 * (n / 16) * 8 * bits);
    l.suh = random_halves(k);
    l.svh = random_halves(n);
    free(x);
    return l;
}

static void test_linear_map(void **state)
{
    (void)state;
    struct linear l = random_linear(1024, 512, 4);
    void *a = linear_with_map(&l, "contiguous"), *b = linear_with_map(&l, "strided");
    assert_memory_equal(a, b, (size_t)ROWS * l.n * 4);
    free(a);
    free(b);
}

/* wgmma takes columns in multiples of what four warps have, up to 4 bits and whole blocks. */
static bool has_warpgroups(const struct linear *l)
{
    return l->n % (l->tiles * 64) == 0 && l->bits <= 4;
}

static void check_emitters(struct linear l, u32 rows)
{
    static const char *const emitters[] = {"bytes", "pairs2", "pairs4", "wgmma"};
    const u32 count = COUNT_OF(emitters) - !has_warpgroups(&l);
    void *results[COUNT_OF(emitters)];
    for (u32 i = 0; i < count; i++) {
        l.emitter = emitters[i];
        results[i] = result_of(&l, rows);
        if (memcmp(results[i], results[0], (size_t)ROWS * l.n * 4) != 0)
            fail_msg("K %u, %u x %u, %u tiles, unit %u, %u rows: %s differs from bytes", l.bits,
                     l.k, l.n, l.tiles, l.unit, rows, emitters[i]);
    }
    for (u32 i = 0; i < count; i++)
        free(results[i]);
}

/* The shapes of the vectors, whose kernels are there. */
static void test_emitters_of_every_k(void **state)
{
    (void)state;
    for (u32 bits = 1; bits <= 8; bits++) {
        check_emitters(bits == 4 ? random_linear(512, 384, 4) : random_linear(256, 128, bits),
                       ROWS);
        kernels_clear(NULL);
    }
}

/* Groups of one and two packs, units of two to eight k-tiles, every number of rows. */
static void test_emitters_of_shapes(void **state)
{
    (void)state;
    static const struct {
        u32 k, n, bits, tiles, unit, rows;
    } cases[] = {{128, 1280, 4, 8, 8, 2},
                 {384, 640, 3, 8, 2, 3},
                 {640, 384, 6, 4, 8, 4},
                 {1152, 256, 4, 8, 4, 5},
                 {2048, 256, 2, 4, 2, 1},
                 {1664, 768, 4, 4, 2, 8},
                 /* long runs: */
                 {2176, 128, 5, 4, 4, 6},
                 {128, 128, 4, 4, 2, 7},
                 {5120, 128, 4, 4, 4, 8},
                 {256, 512, 1, 8, 4, 5}};
    for (u32 i = 0; i < (full_run() ? COUNT_OF(cases) : 6); i++) {
        struct linear l = random_linear(cases[i].k, cases[i].n, cases[i].bits);
        l.tiles = cases[i].tiles;
        l.unit = cases[i].unit;
        check_emitters(l, cases[i].rows);
        check_emitters(l, ROWS + 1 - cases[i].rows);
        kernels_clear(NULL);
    }
}

/* Up to four rows, whose planes share a product, beside the same among eight, where they do not. */
static void test_few_rows(void **state)
{
    (void)state;
    static const struct {
        u32 k, n, bits, unit;
        const char *emitter;
    } cases[] = {{640, 256, 4, 4, "bytes"}, {640, 256, 4, 4, "wgmma"}, {384, 128, 6, 2, "bytes"}};
    for (u32 i = 0; i < COUNT_OF(cases); i++) {
        struct linear l = random_linear(cases[i].k, cases[i].n, cases[i].bits);
        l.unit = cases[i].unit;
        l.few_rows = 4;
        l.emitter = cases[i].emitter;
        void *wanted = result_of(&l, ROWS);
        for (u32 rows = 1; rows <= 5; rows++) {
            void *found = result_of(&l, rows);
            if (memcmp(found, wanted, (size_t)rows * l.n * 4) != 0)
                fail_msg("K %u, %u x %u, %s: %u rows differ from the first of %u", l.bits, l.k, l.n,
                         l.emitter, rows, ROWS);
            free(found);
        }
        free(wanted);
        kernels_clear(NULL);
    }
}

/* A launch of linear_main for parts of n columns; act, exponents and digits as it takes them.
 * Sums: u64 [8, columns], scales: u64 [parts, 8, 2]. */
struct parts {
    u32 k, n[4], bits, cta_warps, ctas_per_sm, depth, rows;
};

static void run_main(const struct parts *p, const char *emitter, const dptr weights[4],
                     const dptr inputs[3], dptr sums, dptr scales)
{
    const u32 round_words[64] = {p->rows};
    const u64 list[4] = {weights[0], weights[1], weights[2], weights[3]};
    struct jit_kernel *product = KERNEL_OF(
        "linear_main", JIT_NUMBER("k", p->k), JIT_NUMBER("n0", p->n[0]), JIT_NUMBER("n1", p->n[1]),
        JIT_NUMBER("n2", p->n[2]), JIT_NUMBER("n3", p->n[3]), JIT_NUMBER("bits", p->bits),
        JIT_TEXT("codebook", "mul1"), JIT_TEXT("emitter", emitter), JIT_NUMBER("tiles", 4),
        JIT_NUMBER("unit", 8), JIT_NUMBER("run", 8), JIT_NUMBER("cta_warps", p->cta_warps),
        JIT_NUMBER("ctas_per_sm", p->ctas_per_sm), JIT_NUMBER("depth", p->depth),
        JIT_NUMBER("few_rows", 4));
    LAUNCH(product, array_new(sizeof list, list), inputs[0], inputs[1], inputs[2], sums, scales,
           array_new(sizeof round_words, round_words));
}

/* Sums and scales of `part`, which begins at column `first` of all, as they are of it alone. */
static void check_part(const struct parts *p, u32 part, u32 first, const u64 *sums,
                       const u64 *scales, const dptr weights[4], const dptr inputs[3])
{
    const u32 columns = p->n[0] + p->n[1] + p->n[2] + p->n[3], n = p->n[part];
    const u32 blocks = p->k / BLOCK;
    struct parts one = *p;
    memset(one.n, 0, sizeof one.n);
    one.n[0] = n;
    const dptr weight[4] = {weights[part]};
    const dptr input[3] = {inputs[0] + (u64)part * p->k / 16 * 256,
                           inputs[1] + (u64)part * ROWS * blocks * 4,
                           inputs[2] + (u64)part * ROWS * blocks * 4};
    const dptr alone_at = array_new((size_t)ROWS * n * 8, NULL);
    const dptr scales_at = array_new(ROWS * 16, NULL);
    run_main(&one, "bytes", weight, input, alone_at, scales_at);
    u64 *alone = array_read(alone_at, (size_t)ROWS * n * 8);
    u64 *scales_alone = array_read(scales_at, ROWS * 16);
    for (u32 row = 0; row < ROWS; row++)
        if (memcmp(sums + (size_t)row * columns + first, alone + (size_t)row * n, n * 8) != 0)
            fail_msg("k %u, depth %u, part %u, row %u: sums differ from those of the part alone",
                     p->k, p->depth, part, row);
    if (memcmp(scales + part * ROWS * 2, scales_alone, ROWS * 16) != 0)
        fail_msg("k %u, part %u: scales differ from those of the part alone", p->k, part);
    free(alone);
    free(scales_alone);
}

static void check_parts(const struct parts *p, const char *emitter)
{
    const u32 blocks = p->k / BLOCK;
    u32 parts = 0, columns = 0, first = 0;
    dptr weights[4] = {0};
    for (; parts < 4 && p->n[parts] > 0; parts++) {
        weights[parts] = random_words((size_t)p->k / 16 * (p->n[parts] / 16) * 8 * p->bits);
        columns += p->n[parts];
    }
    i32 *exponents = malloc((size_t)parts * ROWS * blocks * 4);
    for (u32 i = 0; i < parts * ROWS * blocks; i++)
        exponents[i] = (i32)(random_word() % 50) - 25; /* of some blocks nothing is left */
    const dptr inputs[3] = {random_words((size_t)parts * p->k / 16 * 64),
                            array_new((size_t)parts * ROWS * blocks * 4, exponents),
                            random_words((size_t)parts * ROWS * blocks)};
    const dptr sums_at = array_new((size_t)ROWS * columns * 8, NULL);
    const dptr scales_at = array_new((size_t)parts * ROWS * 16, NULL);
    run_main(p, emitter, weights, inputs, sums_at, scales_at);
    u64 *sums = array_read(sums_at, (size_t)ROWS * columns * 8);
    u64 *scales = array_read(scales_at, (size_t)parts * ROWS * 16);
    for (u32 part = 0; part < parts; first += p->n[part++])
        check_part(p, part, first, sums, scales, weights, inputs);
    free(exponents);
    free(sums);
    free(scales);
    kernels_clear(NULL);
}

/* Parts that share a launch: a worker's items go on from one to the next, whose rows of weights may
 * be longer; a warp may have the exponents of more rows than its registers hold at once. */
static void test_parts(void **state)
{
    (void)state;
    static const struct parts cases[] = {{256, {1280, 768, 256, 512}, 4, 4, 1, 3, 8},
                                         {384, {256, 512, 256}, 3, 8, 2, 2, 3},
                                         {128, {512, 256, 512}, 1, 4, 2, 4, 5},
                                         {8320, {256, 256, 256, 256}, 2, 4, 1, 2, 8}};
    for (u32 i = 0; i < COUNT_OF(cases); i++) {
        check_parts(&cases[i], "wgmma");
        if (i % 2 == 0)
            check_parts(&cases[i], "bytes");
    }
}

/* The four warps of a group share memory: the race check follows them, with few items and many. */
static void test_groups_are_checked(void **state)
{
    static const struct {
        u32 k, n, bits, tiles, depth, rows;
    } cases[] = {{128, 256, 4, 4, 2, 8}, {1152, 512, 3, 8, 3, 8}, {640, 256, 1, 4, 4, 3}};
    if (on_gpu())
        skip();
    kernels_close(NULL);
    setenv("ELPIS_TEST_CHECK", "1", 1);
    assert_int_equal(kernels_open(state), 0);
    for (u32 i = 0; i < COUNT_OF(cases); i++) {
        struct linear l = random_linear(cases[i].k, cases[i].n, cases[i].bits);
        l.tiles = cases[i].tiles;
        l.depth = cases[i].depth;
        l.few_rows = 4;
        void *wanted = result_of(&l, cases[i].rows);
        l.emitter = "wgmma";
        void *found = result_of(&l, cases[i].rows);
        if (memcmp(found, wanted, (size_t)ROWS * l.n * 4) != 0)
            fail_msg("K %u, %u x %u, depth %u: wgmma differs", l.bits, l.k, l.n, l.depth);
        free(found);
        free(wanted);
        kernels_clear(NULL);
    }
    kernels_close(NULL);
    unsetenv("ELPIS_TEST_CHECK");
    assert_int_equal(kernels_open(state), 0);
}

/* Blocks whose activations are all the largest integer there is, 32639 = 256 * 127 + 127, of one
 * sign. */
static void test_emitters_of_extremes(void **state)
{
    (void)state;
    enum { K = 1024, ONE = 0x3c00 };
    struct linear l = random_linear(K, 256, 8);
    static float x[ROWS * K];
    static u16 suh[K];
    for (u32 i = 0; i < COUNT_OF(x); i++) /* the transform of one element is flat */
        x[i] = i % BLOCK != 0 ? 0 : i / BLOCK % 3 ? 32639 : -32639;
    for (u32 i = 0; i < K; i++)
        suh[i] = ONE;
    l.x = array_new(sizeof x, x);
    l.suh = array_new(sizeof suh, suh);
    check_emitters(l, ROWS);
}

static void test_linear_map_changes_the_text(void **state)
{
    (void)state;
    struct jit_kernel *kernels[2];
    static const char *maps[] = {"contiguous", "strided"};
    for (u32 i = 0; i < 2; i++)
        kernels[i] = KERNEL_OF("linear_main", JIT_NUMBER("k", 1024), JIT_NUMBER("n0", 512),
                               JIT_NUMBER("n1", 0), JIT_NUMBER("n2", 0), JIT_NUMBER("n3", 0),
                               JIT_NUMBER("bits", 4), JIT_TEXT("codebook", "mul1"),
                               JIT_TEXT("map", maps[i]));
    assert_false(slice_equal(jit_kernel_source(kernels[0]), jit_kernel_source(kernels[1])));
}

enum { HEADS = 6, CONTEXT = 512, POSITION = 400, HEAD_DIM = 256 };

/* The spans of random queries over a random cache, after one map. */
static void *attention_with_map(const char *map, const dptr arrays[10], dptr pages, dptr round,
                                size_t *bytes)
{
    struct jit_kernel *kernel = KERNEL_OF("attention_decode", JIT_NUMBER("q_heads", HEADS),
                                          JIT_NUMBER("kv_heads", 1), JIT_NUMBER("context", CONTEXT),
                                          JIT_TEXT("map", map));
    const size_t spans = (size_t)jit_kernel_export(kernel, "spans");
    *bytes = spans * ROWS * HEADS * HEAD_DIM * 4;
    const dptr out = array_new(*bytes, NULL), stat = array_new(spans * ROWS * HEADS * 8, NULL);
    LAUNCH(kernel, arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5], arrays[6],
           arrays[7], arrays[8], arrays[9], pages, out, stat, round);
    return array_read(out, *bytes);
}

static void test_attention_map(void **state)
{
    (void)state;
    u32 round_words[64] = {ROWS, POSITION};
    for (u32 row = 0; row < ROWS; row++) {
        round_words[16 + row] = POSITION + row;
        round_words[24 + row] = (2u << row) - 1;
    }
    const u32 page_list[] = {0, 1};
    float *scales = random_floats(ROWS * HEADS * 8, 1e-6f);
    const dptr arrays[] = {
        random_words(2 * ROWS * HEADS * 64), array_new(ROWS * HEADS * 8 * 4, scales),
        random_words(CONTEXT * 8 * 3),       random_halves(CONTEXT * 8),
        random_words(CONTEXT * 8 * 3),       random_halves(CONTEXT * 8),
        random_words(ROWS * 8 * 3),          random_halves(ROWS * 8),
        random_words(ROWS * 8 * 3),          random_halves(ROWS * 8)};
    const dptr pages = array_new(sizeof page_list, page_list);
    const dptr round = array_new(sizeof round_words, round_words);
    size_t bytes;
    void *a = attention_with_map("contiguous", arrays, pages, round, &bytes);
    void *b = attention_with_map("strided", arrays, pages, round, &bytes);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
    free(scales);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_mul1, kernels_clear),
        cmocka_unit_test_teardown(test_mcg, kernels_clear),
        cmocka_unit_test_teardown(test_3inst, kernels_clear),
        cmocka_unit_test_teardown(test_linear_map, kernels_clear),
        cmocka_unit_test_teardown(test_emitters_of_every_k, kernels_clear),
        cmocka_unit_test_teardown(test_emitters_of_shapes, kernels_clear),
        cmocka_unit_test_teardown(test_few_rows, kernels_clear),
        cmocka_unit_test_teardown(test_parts, kernels_clear),
        cmocka_unit_test_teardown(test_groups_are_checked, kernels_clear),
        cmocka_unit_test_teardown(test_emitters_of_extremes, kernels_clear),
        cmocka_unit_test_teardown(test_linear_map_changes_the_text, kernels_clear),
        cmocka_unit_test_teardown(test_attention_map, kernels_clear),
    };
    return cmocka_run_group_tests_name("linear", tests, kernels_open, kernels_close);
}
