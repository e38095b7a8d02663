/* The prefill kernels on the host device, each against a reference in binary64 or against known
 * bits; and what the contract of prefill promises: a row's bits do not depend on how a prompt is
 * cut, on how many rows a launch has, or on tuning.
 */
#include "kernels.h"

#define EPS JIT_NUMBER("eps", 0x358637bd) /* 1e-6f */
#define PARTS(count) JIT_NUMBER("parts", count)
#define EPSILON 9.99999997475242707878e-07

enum { BAND = 64, BLOCK = 128 };

static u32 padded_rows(u32 rows)
{
    return (rows + BAND - 1) / BAND * BAND;
}

/* ---- the Hadamard linear */

static void hadamard(double *v, u32 n)
{
    for (u32 gap = 1; gap < n; gap *= 2)
        for (u32 i = 0; i < n; i++)
            if (!(i & gap)) {
                const double a = v[i], b = v[i + gap];
                v[i] = a + b;
                v[i + gap] = a - b;
            }
    for (u32 i = 0; i < n; i++)
        v[i] /= sqrt(n);
}

struct linear {
    u32 k, n, bits;
    const char *codebook;
    const struct tensor *trellis, *suh, *svh, *what, *x, *y64;
};

static struct linear linear_of(const struct tensor_file *file, const char *codebook, u32 bits)
{
    struct linear linear = {.bits = bits, .codebook = codebook};
    const struct {
        const char *name;
        const struct tensor **tensor;
    } parts[] = {{"trellis", &linear.trellis}, {"suh", &linear.suh}, {"svh", &linear.svh},
                 {"what", &linear.what},       {"x", &linear.x},     {"y64", &linear.y64}};
    for (u32 i = 0; i < COUNT_OF(parts); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.k%u.%s", codebook, bits, parts[i].name);
        *parts[i].tensor = tensor_file_find(file, name);
        assert_non_null(*parts[i].tensor);
    }
    linear.k = (u32)linear.what->shape[0];
    linear.n = (u32)linear.what->shape[1];
    return linear;
}

static dptr tensor_array(const struct tensor *tensor)
{
    return array_new(tensor->count * dtype_size(tensor->dtype), tensor->data);
}

static dptr decode_weights(const struct linear *linear)
{
    struct jit_kernel *kernel = KERNEL_OF(
        "prefill_weights", JIT_NUMBER("k", linear->k), JIT_NUMBER("n", linear->n),
        JIT_NUMBER("bits", linear->bits), JIT_TEXT("codebook", linear->codebook));
    const dptr trellis = tensor_array(linear->trellis);
    const dptr weights = array_new((size_t)linear->k * linear->n * 2, NULL);
    pack_trellis(trellis, linear->k, linear->n, linear->bits);
    LAUNCH(kernel, trellis, weights);
    return weights;
}

/* y = x W for `rows` rows, through all four kernels; caller frees. */
static float *run_linear(const struct linear *linear, dptr weights, const float *x, u32 rows,
                         u32 rows_max, u32 tile_m, u32 tile_n)
{
    const u32 padded = padded_rows(rows), k = linear->k, n = linear->n;
    const struct jit_parameter size = JIT_NUMBER("rows_max", rows_max);
    struct jit_kernel *transform = KERNEL_OF("prefill_transform", JIT_NUMBER("width", k),
                                             JIT_NUMBER("padded", k), size,
                                             JIT_TEXT("mode", "plain"), EPS, PARTS(1));
    struct jit_kernel *product = KERNEL_OF("prefill_gemm", JIT_NUMBER("k", k), JIT_NUMBER("n", n),
                                           size, JIT_NUMBER("tile_m", tile_m),
                                           JIT_NUMBER("tile_n", tile_n));
    struct jit_kernel *output = KERNEL_OF("prefill_output", JIT_NUMBER("width", n),
                                          JIT_NUMBER("padded", n), size, JIT_TEXT("mode", "plain"));
    const dptr input = array_new((size_t)rows * k * 4, x);
    const dptr operand = array_new((size_t)padded * k * 2, NULL);
    const dptr sums = array_new((size_t)padded * n * 4, NULL);
    const dptr y = array_new((size_t)padded * n * 4, NULL);
    LAUNCH(transform, input, 0, 0, tensor_array(linear->suh), 0, 0, operand, 0, rows);
    LAUNCH(product, operand, weights, sums, rows);
    LAUNCH(output, sums, tensor_array(linear->svh), y, rows);
    return array_read(y, (size_t)padded * n * 4);
}

/* Each count of bits and each codebook; in the full run every pair: bits tell how states are read,
 * the codebook what they mean. */
static void weights_are_exact(void **state)
{
    struct tensor_file *file = NULL;
    struct error error = {0};
    const char *codebooks[] = {"3inst", "mcg", "mul1"};
    (void)state;
    need(tensor_file_open(&file, "tests/data/exl3_vectors.safetensors", &error), &error);
    for (u32 c = 0; c < COUNT_OF(codebooks); c++)
        for (u32 bits = 1; bits <= 8; bits++) {
            if (!full_run() && bits % COUNT_OF(codebooks) != c)
                continue;
            const struct linear linear = linear_of(file, codebooks[c], bits);
            u16 *got = array_read(decode_weights(&linear), (size_t)linear.k * linear.n * 2);
            const u16 *wanted = linear.what->data;
            for (u64 i = 0; i < linear.what->count; i++)
                if (got[i] != wanted[i])
                    fail_msg("%s, %u bits, element %llu: %04x, expected %04x", codebooks[c], bits,
                             (unsigned long long)i, got[i], wanted[i]);
            free(got);
            kernels_clear(NULL);
        }
    tensor_file_close(file);
}

static void linear_is_close_and_rows_are_independent(void **state)
{
    struct tensor_file *file = NULL;
    struct error error = {0};
    (void)state;
    need(tensor_file_open(&file, "tests/data/exl3_vectors.safetensors", &error), &error);
    const struct linear linear = linear_of(file, "mul1", 4);
    const u32 count = (u32)linear.x->shape[0], many = 150, at = 97;
    float *x = malloc(sizeof *x * linear.x->count);
    float *wide = random_floats((size_t)many * linear.k, 1);
    for (u64 i = 0; i < linear.x->count; i++)
        x[i] = half_value(((const u16 *)linear.x->data)[i]);
    memcpy(wide + (size_t)at * linear.k, x, sizeof *x * linear.x->count);
    const dptr weights = decode_weights(&linear);
    float *few = run_linear(&linear, weights, x, count, 64, 64, 128);
    assert_close(few, linear.y64->data, linear.y64->count, 4e-4);
    assert_zeros(few + (size_t)count * linear.n, (size_t)(BAND - count) * linear.n);
    const u32 tiles[][2] = {{64, 128}, {128, 64}, {128, 128}};
    for (u32 i = 0; i < COUNT_OF(tiles); i++) {
        float *all = run_linear(&linear, weights, wide, many, 256, tiles[i][0], tiles[i][1]);
        assert_same_floats(all + (size_t)at * linear.n, few, (size_t)count * linear.n);
        free(all);
    }
    free(few);
    free(wide);
    free(x);
    tensor_file_close(file);
}

/* The product alone, with the tiles that are given. */
static float *run_product(const u16 *a, dptr b, u32 k, u32 n, u32 rows, u32 sum_bits, u32 tile_m,
                          u32 tile_k)
{
    const u32 padded = padded_rows(rows);
    struct jit_kernel *product = KERNEL_OF(
        "prefill_gemm", JIT_NUMBER("k", k), JIT_NUMBER("n", n), JIT_NUMBER("rows_max", 256),
        JIT_NUMBER("sum_bits", sum_bits), JIT_NUMBER("tile_m", tile_m),
        JIT_NUMBER("tile_k", tile_k));
    const dptr operand = array_new((size_t)padded * k * 2, NULL);
    const dptr sums = array_new((size_t)padded * n * 4, NULL);
    array_write(operand, a, (size_t)rows * k * 2);
    LAUNCH(product, operand, b, sums, rows);
    return array_read(sums, (size_t)padded * n * 4);
}

/* What an element's error cannot exceed, and the element. Two roundings of each slice of 32 k, of
 * at most 2^-10 each (a tensor core may cut off), and of fp32 a few a slice. */
static double slices_bound(const u16 *a, const u16 *b, u32 k, u32 n, double *truth)
{
    double bound = 0, x = 0, w = 0;
    *truth = 0;
    for (u32 i = 0; i < k; i++) {
        const double p = half_value(a[i]), q = half_value(b[(size_t)i * n]);
        *truth += p * q, x += p * p, w += q * q;
        if (i % 32 == 31) {
            bound += (2 * 0x1p-10 + 0x1p-20) * sqrt(x * w);
            x = w = 0;
        }
    }
    return bound;
}

static void fp16_sums_of_slices(void **state)
{
    enum { K = 1024, N = 256, ROWS = 150, AT = 64 };
    static const u32 tiles[][2] = {{128, 32}, {64, 64}, {128, 64}};
    double error = 0, error_fine = 0, truth;
    (void)state;
    float *a = random_floats(ROWS * K, 1), *b = random_floats(K * N, 1);
    u16 *left = halves_of(a, ROWS * K), *right = halves_of(b, K * N);
    const dptr matrix = array_new(K * N * 2, right);
    float *got = run_product(left, matrix, K, N, ROWS, 16, 64, 32);
    float *fine = run_product(left, matrix, K, N, ROWS, 32, 64, 32);
    for (u32 at = 0; at < ROWS * N; at++) {
        const double bound = slices_bound(left + at / N * K, right + at % N, K, N, &truth);
        if (fabs(got[at] - truth) > bound)
            fail_msg("row %u, column %u: %g, expected %g, at most %g off", at / N, at % N, got[at],
                     truth, bound);
        error += (got[at] - truth) * (got[at] - truth);
        error_fine += (fine[at] - truth) * (fine[at] - truth);
    }
    assert_true(error > 100 * error_fine);
    for (u32 i = 0; i < (full_run() ? COUNT_OF(tiles) : 2); i++) {
        float *same = run_product(left, matrix, K, N, ROWS, 16, tiles[i][0], tiles[i][1]);
        float *cut = run_product(left + AT * K, matrix, K, N, ROWS - AT, 16, tiles[i][0],
                                 tiles[i][1]);
        assert_same_floats(same, got, (size_t)ROWS * N);
        assert_same_floats(cut, got + (size_t)AT * N, (size_t)(ROWS - AT) * N);
        free(same);
        free(cut);
    }
    free(a), free(b), free(left), free(right), free(got), free(fine);
}

static void norm_and_padding(void **state)
{
    enum { WIDTH = 960, PADDED = 1024, ROWS = 70, PARTS_COUNT = 3, ALL = 128 * PADDED };
    (void)state;
    float *x = random_floats(ROWS * WIDTH, 3), *weight = random_floats(WIDTH, 1);
    float *scale = random_floats(PARTS_COUNT * PADDED, 1);
    u16 *suh = halves_of(scale, PARTS_COUNT * PADDED);
    const dptr out = array_new(PARTS_COUNT * ALL * 2, NULL);
    const dptr normed = array_new(128 * WIDTH * 4, NULL), rows_in = array_new(ROWS * WIDTH * 4, x);
    const dptr weights = array_new(WIDTH * 4, weight);
    dptr signs[PARTS_COUNT];
    for (u32 part = 0; part < PARTS_COUNT; part++)
        signs[part] = array_new(PADDED * 2, suh + part * PADDED);
    double *wanted = calloc(ALL, sizeof *wanted), *rows = calloc(ROWS * WIDTH, sizeof *rows);
    float *got = malloc(sizeof *got * ALL);
    for (u32 row = 0; row < ROWS; row++) {
        double square = 0;
        for (u32 i = 0; i < WIDTH; i++)
            square += (double)x[row * WIDTH + i] * x[row * WIDTH + i];
        for (u32 i = 0; i < WIDTH; i++)
            rows[row * WIDTH + i] = x[row * WIDTH + i] / sqrt(square / WIDTH + EPSILON) * weight[i];
    }
    const u32 tunings[] = {2, 1}; /* warps: a quad of blocks each, or two */
    u16 *first = NULL;
    for (u32 t = 0; t < COUNT_OF(tunings); t++) {
        struct jit_kernel *kernel = KERNEL_OF(
            "prefill_transform", JIT_NUMBER("width", WIDTH), JIT_NUMBER("padded", PADDED),
            JIT_NUMBER("rows_max", 128), JIT_TEXT("mode", "norm"), EPS, PARTS(PARTS_COUNT),
            JIT_NUMBER("warps", tunings[t]));
        LAUNCH(kernel, rows_in, 0, weights, signs[0], signs[1], signs[2], out, normed, ROWS);
        u16 *halves = array_read(out, PARTS_COUNT * ALL * 2);
        if (t > 0) {
            assert_memory_equal(halves, first, PARTS_COUNT * ALL * 2);
            free(halves);
            break;
        }
        first = halves;
    }
    for (u32 part = 0; part < PARTS_COUNT; part++) {
        memset(wanted, 0, ALL * sizeof *wanted);
        for (u32 row = 0; row < ROWS; row++) {
            for (u32 i = 0; i < WIDTH; i++)
                wanted[row * PADDED + i] = rows[row * WIDTH + i] *
                                           half_value(suh[part * PADDED + i]);
            for (u32 block = 0; block < PADDED; block += BLOCK)
                hadamard(wanted + row * PADDED + block, BLOCK);
        }
        for (u32 i = 0; i < ALL; i++)
            got[i] = half_value(first[part * ALL + i]);
        assert_close(got, wanted, ROWS * PADDED, 4e-4);
        assert_zeros(got + ROWS * PADDED, (128 - ROWS) * PADDED);
    }
    float *kept = array_read(normed, 128 * WIDTH * 4);
    assert_close(kept, rows, ROWS * WIDTH, 1e-6);
    assert_zeros(kept + ROWS * WIDTH, (128 - ROWS) * WIDTH);
    free(x), free(weight), free(scale), free(suh), free(first), free(kept), free(wanted),
        free(rows), free(got);
}

static void gated_norm(void **state)
{
    enum { WIDTH = 256, ROWS = 5 };
    (void)state;
    struct jit_kernel *kernel = KERNEL_OF("prefill_transform", JIT_NUMBER("width", WIDTH),
                                          JIT_NUMBER("padded", WIDTH), JIT_NUMBER("rows_max", 64),
                                          JIT_TEXT("mode", "gdn"), EPS, PARTS(1));
    float *o = random_floats(ROWS * WIDTH, 0.1f), *z = random_floats(ROWS * WIDTH, 2);
    float *weight = random_floats(BLOCK, 1), *ones = malloc(WIDTH * sizeof *ones);
    for (u32 i = 0; i < WIDTH; i++)
        ones[i] = 1;
    u16 *suh = halves_of(ones, WIDTH);
    const dptr out = array_new(BAND * WIDTH * 2, NULL);
    LAUNCH(kernel, array_new(ROWS * WIDTH * 4, o), array_new(ROWS * WIDTH * 4, z),
           array_new(BLOCK * 4, weight), array_new(WIDTH * 2, suh), 0, 0, out, 0, ROWS);
    u16 *halves = array_read(out, BAND * WIDTH * 2);
    double wanted[ROWS * WIDTH];
    float got[ROWS * WIDTH];
    for (u32 at = 0; at < ROWS * WIDTH; at += BLOCK) {
        double square = 0;
        for (u32 i = 0; i < BLOCK; i++)
            square += (double)o[at + i] * o[at + i];
        for (u32 i = 0; i < BLOCK; i++)
            wanted[at + i] = o[at + i] / sqrt(square / BLOCK + EPSILON) * weight[i] *
                             silu_of(z[at + i]);
        hadamard(wanted + at, BLOCK);
    }
    for (u32 i = 0; i < ROWS * WIDTH; i++)
        got[i] = half_value(halves[i]);
    assert_close(got, wanted, ROWS * WIDTH, 4e-4);
    free(o), free(z), free(weight), free(ones), free(suh), free(halves);
}

static void output_modes(void **state)
{
    enum { WIDTH = 600, PADDED = 640, ROWS = 3 };
    (void)state;
    float *d = random_floats(BAND * PADDED, 1), *x = random_floats(BAND * WIDTH, 1);
    float *scale = random_floats(PADDED, 1);
    u16 *svh = halves_of(scale, PADDED);
    double wanted[ROWS * WIDTH], sum[ROWS * WIDTH], line[PADDED];
    for (u32 row = 0; row < ROWS; row++) {
        for (u32 i = 0; i < PADDED; i++)
            line[i] = d[row * PADDED + i];
        for (u32 block = 0; block < PADDED; block += BLOCK)
            hadamard(line + block, BLOCK);
        for (u32 i = 0; i < WIDTH; i++) {
            wanted[row * WIDTH + i] = line[i] * half_value(svh[i]);
            sum[row * WIDTH + i] = x[row * WIDTH + i] + wanted[row * WIDTH + i];
        }
    }
    const struct {
        const char *mode;
        const double *wanted;
    } cases[] = {{"plain", wanted}, {"add", sum}};
    for (u32 i = 0; i < COUNT_OF(cases); i++) {
        const bool adds = strcmp(cases[i].mode, "add") == 0;
        struct jit_kernel *kernel = KERNEL_OF(
            "prefill_output", JIT_NUMBER("width", WIDTH), JIT_NUMBER("padded", PADDED),
            JIT_NUMBER("rows_max", 64), JIT_TEXT("mode", cases[i].mode));
        const dptr y = array_new(BAND * WIDTH * 4, x);
        LAUNCH(kernel, array_new(BAND * PADDED * 4, d), array_new(PADDED * 2, svh), y, ROWS);
        float *got = array_read(y, BAND * WIDTH * 4);
        assert_close(got, cases[i].wanted, ROWS * WIDTH, 1e-6);
        if (adds)
            assert_same_floats(got + ROWS * WIDTH, x + ROWS * WIDTH, (BAND - ROWS) * WIDTH);
        else
            assert_zeros(got + ROWS * WIDTH, (BAND - ROWS) * WIDTH);
        free(got);
    }
    free(d), free(x), free(scale), free(svh);
}

static void middle_of_the_mlp(void **state)
{
    enum { N = 640, ROWS = 3 };
    (void)state;
    float *d[2], *signs[3], got[BAND * N];
    u16 *halves[3];
    double wanted[ROWS * N], line[2][N];
    for (u32 i = 0; i < 2; i++)
        d[i] = random_floats(BAND * N, 1);
    for (u32 i = 0; i < 3; i++) {
        signs[i] = random_floats(N, 1);
        halves[i] = halves_of(signs[i], N);
    }
    for (u32 row = 0; row < ROWS; row++) {
        for (u32 part = 0; part < 2; part++) {
            for (u32 i = 0; i < N; i++)
                line[part][i] = d[part][row * N + i];
            for (u32 block = 0; block < N; block += BLOCK)
                hadamard(line[part] + block, BLOCK);
            for (u32 i = 0; i < N; i++)
                line[part][i] *= half_value(halves[part][i]);
        }
        for (u32 i = 0; i < N; i++)
            wanted[row * N + i] = silu_of(line[0][i]) * line[1][i] * half_value(halves[2][i]);
        for (u32 block = 0; block < N; block += BLOCK)
            hadamard(wanted + row * N + block, BLOCK);
    }
    struct jit_kernel *kernel = KERNEL_OF("prefill_middle", JIT_NUMBER("n", N),
                                          JIT_NUMBER("rows_max", 64));
    const dptr out = array_new(BAND * N * 2, NULL);
    LAUNCH(kernel, array_new(BAND * N * 4, d[0]), array_new(BAND * N * 4, d[1]),
           array_new(N * 2, halves[0]), array_new(N * 2, halves[1]), array_new(N * 2, halves[2]),
           out, ROWS);
    u16 *values = array_read(out, BAND * N * 2);
    for (u32 i = 0; i < BAND * N; i++)
        got[i] = half_value(values[i]);
    assert_close(got, wanted, ROWS * N, 4e-4);
    assert_zeros(got + ROWS * N, (BAND - ROWS) * N);
    for (u32 i = 0; i < 3; i++)
        free(signs[i]), free(halves[i]);
    free(d[0]), free(d[1]), free(values);
}

/* ---- unquantised linear: the stated order, bit for bit */

static float plain_dot(const float *x, const float *w, u32 k)
{
    float lanes[32] = {0};
    for (u32 chunk = 0; chunk < k; chunk += BLOCK)
        for (u32 lane = 0; lane < 32; lane++)
            for (u32 at = chunk + lane * 4; at < chunk + lane * 4 + 4 && at < k; at++)
                lanes[lane] = fmaf(x[at], w[at], lanes[lane]);
    for (u32 mask = 16; mask > 0; mask /= 2) {
        float next[32];
        for (u32 lane = 0; lane < 32; lane++)
            next[lane] = lanes[lane] + lanes[lane ^ mask];
        memcpy(lanes, next, sizeof lanes);
    }
    return lanes[0];
}

/* K not of whole chunks, nor of whole 16-byte pieces of halves; and one of both. */
static void check_plain(u32 type, u32 k, u32 parts)
{
    enum { N = 18, STRIDE = 39, ROWS = 67, K_MAX = 384 };
    const char *types[] = {"F16", "BF16", "F32"};
    const u32 count = 2 * N * k;
    float *x = random_floats(ROWS * k, 1), *w = random_floats(count, 1);
    static u16 narrow[2 * N * K_MAX];
    static float value[2 * N * K_MAX];
    dptr weights[2];
    for (u32 i = 0; i < count; i++) {
        u32 bits;
        memcpy(&bits, w + i, 4);
        narrow[i] = type == 0 ? half_bits(w[i]) : (u16)(bits >> 16);
        bits &= 0xffff0000u;
        memcpy(value + i, &bits, 4);
        value[i] = type == 0 ? half_value(narrow[i]) : type == 1 ? value[i] : w[i];
    }
    for (u32 part = 0; part < 2; part++)
        weights[part] = type == 2 ? array_new(N * k * 4, w + part * N * k)
                                  : array_new(N * k * 2, narrow + part * N * k);
    const u32 tunings[][5] = {{8, 8, 2, 3, 2}, {4, 4, 1, 2, 3}}; /* outputs, rows, warps, stages */
    for (u32 t = 0; t < COUNT_OF(tunings); t++) {
        if (!full_run() && parts == 2 && t == type % 2)
            continue;
        struct jit_kernel *kernel = KERNEL_OF(
            "prefill_plain", JIT_NUMBER("k", k), JIT_NUMBER("n", N), PARTS(parts),
            JIT_NUMBER("stride", STRIDE), JIT_NUMBER("rows_max", 128),
            JIT_TEXT("dtype", types[type]), JIT_NUMBER("outputs", tunings[t][0]),
            JIT_NUMBER("rows_each", tunings[t][1]), JIT_NUMBER("row_warps", tunings[t][2]),
            JIT_NUMBER("output_warps", tunings[t][3]), JIT_NUMBER("stages", tunings[t][4]));
        const dptr y = array_new(128 * STRIDE * 4, NULL);
        LAUNCH(kernel, array_new(ROWS * k * 4, x), weights[0], parts == 2 ? weights[1] : 0, y,
               ROWS);
        float *got = array_read(y, 128 * STRIDE * 4);
        for (u32 row = 0; row < 128; row++)
            for (u32 n = 0; n < STRIDE; n++) {
                const bool live = row < ROWS && n < parts * N;
                const float wanted = live ? plain_dot(x + row * k, value + n * k, k) : 0;
                if (got[row * STRIDE + n] != wanted)
                    fail_msg("%s, row %u, output %u: %.9g, expected %.9g", types[type], row, n,
                             got[row * STRIDE + n], wanted);
            }
        free(got);
    }
    free(x), free(w);
}

static void plain_is_exact(void **state)
{
    (void)state;
    for (u32 type = 0; type < 3; type++) {
        check_plain(type, 260, 1);
        check_plain(type, 384, 2);
        kernels_clear(NULL);
    }
}

/* ---- attention */

enum { Q = 4, KV = 2, PIECE_MOST = 512 }; /* heads; rows of a launch at most */

struct attention {
    u32 bits, slots;
    dptr q_norm, k_norm, frequencies, pages, k_codes, k_scales, v_codes, v_scales;
    struct jit_kernel *prepare, *attend;
};

enum { HEAD = 256, ROTARY = 64, PAGE = 256, PAGES = 3 };

/* Of the attention tests. */
static u32 head_dim = HEAD, score_bits = 16, attend_rows = PIECE_MOST;
static const char *attention_map = "strided";

/* What a slot that no token has written yet may hold. */
static dptr array_of_nan(size_t bytes)
{
    u8 *data = malloc(bytes);
    memset(data, 0xff, bytes);
    const dptr array = array_new(bytes, data);
    free(data);
    return array;
}

static struct jit_kernel *prepare_kernel(u32 bits)
{
    return KERNEL_OF("prefill_attention_prepare", JIT_NUMBER("q_heads", Q),
                     JIT_NUMBER("kv_heads", KV), JIT_NUMBER("head_dim", head_dim),
                     JIT_NUMBER("rotary_dims", ROTARY), JIT_NUMBER("kv_bits", bits),
                     JIT_NUMBER("rows_max", PIECE_MOST), EPS);
}

static void attention_open(struct attention *a, u32 bits, u32 heads, u32 row_warps, u32 tiles)
{
    u64 frequencies[ROTARY / 2];
    float ones[HEAD];
    const u32 pages[PAGES] = {2, 0, 1};
    *a = (struct attention){.bits = bits, .slots = PAGES * PAGE};
    const size_t groups = (size_t)a->slots * KV * (head_dim / 32);
    for (u32 i = 0; i < ROTARY / 2; i++)
        frequencies[i] = rope_frequency(1e7, i, ROTARY);
    for (u32 i = 0; i < head_dim; i++)
        ones[i] = 1 + 0.001f * (float)i;
    a->q_norm = array_new(sizeof ones, ones);
    a->k_norm = array_new(sizeof ones, ones);
    a->frequencies = array_new(sizeof frequencies, frequencies);
    a->pages = array_new(sizeof pages, pages);
    a->k_codes = array_of_nan(groups * bits * 4);
    a->v_codes = array_of_nan(groups * bits * 4);
    a->k_scales = array_of_nan(groups * 2);
    a->v_scales = array_of_nan(groups * 2);
    a->prepare = prepare_kernel(bits);
    a->attend = KERNEL_OF("prefill_attention", JIT_NUMBER("q_heads", Q), JIT_NUMBER("kv_heads", KV),
                          JIT_NUMBER("head_dim", head_dim), JIT_NUMBER("kv_bits", bits),
                          JIT_NUMBER("rows_max", attend_rows), JIT_NUMBER("heads", heads),
                          JIT_NUMBER("row_warps", row_warps), JIT_NUMBER("tiles", tiles),
                          JIT_NUMBER("score_bits", score_bits), JIT_TEXT("map", attention_map));
}

/* Rows of a piece through both kernels; out: [rows, q_heads * head_dim]; q: f16 queries or NULL. */
static void attention_piece(const struct attention *a, const float *qg, const float *k,
                            const float *v, u32 rows, u32 first, float *out, u16 **q)
{
    const u32 padded = padded_rows(rows), width = Q * head_dim;
    const dptr gates = array_new((size_t)rows * width * 2 * 4, qg);
    const dptr queries = array_new((size_t)padded * width * 2, NULL);
    const dptr result = array_new((size_t)padded * width * 4, NULL);
    const size_t kv = (size_t)rows * KV * head_dim * 4;
    LAUNCH(a->prepare, gates, array_new(kv, k), array_new(kv, v), a->q_norm, a->k_norm,
           a->frequencies, a->pages, queries, a->k_codes, a->k_scales, a->v_codes, a->v_scales,
           rows, first);
    LAUNCH(a->attend, queries, gates, a->k_codes, a->k_scales, a->v_codes, a->v_scales, a->pages,
           result, rows, first);
    float *got = array_read(result, (size_t)padded * width * 4);
    memcpy(out, got, (size_t)rows * width * 4);
    assert_zeros(got + (size_t)rows * width, (size_t)(padded - rows) * width);
    free(got);
    if (q)
        *q = array_read(queries, (size_t)padded * width * 2);
}

/* Norm (weights as attention_open's) and RoPE in binary64. */
static void head_reference(const float *from, u32 position, double to[HEAD])
{
    double square = 0;
    for (u32 i = 0; i < head_dim; i++)
        square += (double)from[i] * from[i];
    for (u32 i = 0; i < head_dim; i++)
        to[i] = from[i] / sqrt(square / head_dim + EPSILON) * (1 + 0.001 * i);
    for (u32 t = 0; t < ROTARY / 2; t++) {
        const double angle = position * pow(1e7, -2.0 * t / ROTARY), a = to[t],
                     b = to[t + ROTARY / 2];
        to[t] = a * cos(angle) - b * sin(angle);
        to[t + ROTARY / 2] = b * cos(angle) + a * sin(angle);
    }
}

/* keys, values: [rows, kv_heads * head_dim]; query: one head. */
static void attend_reference(const double *query, const double *keys, const double *values,
                             u32 stride, u32 count, double out[HEAD])
{
    double scores[1024], top = -1e300, sum = 0;
    for (u32 t = 0; t < count; t++) {
        scores[t] = 0;
        for (u32 i = 0; i < head_dim; i++)
            scores[t] += query[i] * keys[(size_t)t * stride + i] / sqrt(head_dim);
        top = fmax(top, scores[t]);
    }
    memset(out, 0, head_dim * sizeof *out);
    for (u32 t = 0; t < count; t++) {
        const double p = exp(scores[t] - top);
        sum += p;
        for (u32 i = 0; i < head_dim; i++)
            out[i] += p * values[(size_t)t * stride + i];
    }
    for (u32 i = 0; i < head_dim; i++)
        out[i] /= sum;
}

/* A code of a group, out of its bit planes (spec exl3.md 5.3). */
static u32 code_of(const u32 *words, u32 bits, u32 j)
{
    u32 code = 0, word = 0, rest = bits;
    for (u32 width = 8; width > 0; width /= 2)
        if (bits & width) {
            rest -= width;
            code |= ((words[word + j * width / 32] >> j * width % 32) & ((1u << width) - 1))
                    << rest;
            word += width;
        }
    return code;
}

/* The cached rows in the model's basis, in order of position. */
static void read_cache(const struct attention *a, dptr codes, dptr scales, u32 rows, double *to)
{
    const u32 pages[PAGES] = {2, 0, 1}, groups = KV * (head_dim / 32), width = KV * head_dim;
    const size_t total = (size_t)a->slots * groups;
    u32 *words = array_read(codes, total * a->bits * 4);
    u16 *units = array_read(scales, total * 2);
    for (u32 row = 0; row < rows; row++) {
        const u32 slot = pages[row / PAGE] * PAGE + row % PAGE;
        double *line = to + (size_t)row * width;
        for (u32 i = 0; i < width; i++) {
            const size_t group = (size_t)slot * groups + i / 32;
            const double steps = (double)(1 << a->bits);
            line[i] = a->bits == 16 ? half_value(((u16 *)words)[(size_t)slot * width + i])
                                    : (2.0 * code_of(words + group * a->bits, a->bits, i % 32) -
                                       (steps - 1)) *
                                          half_value(units[group]) / steps;
        }
        for (u32 at = 0; a->bits < 16 && at < width; at += 32)
            hadamard(line + at, 32);
    }
    free(words), free(units);
}

static void attention_is_close(u32 bits, u32 heads, u32 tiles, double cache_limit)
{
    enum { ROWS = 330 };
    struct attention a;
    u16 *q;
    attention_open(&a, bits, heads, on_gpu() ? 4 : 1, tiles);
    float *qg = random_floats((size_t)ROWS * Q * head_dim * 2, 1),
          *k = random_floats((size_t)ROWS * KV * head_dim, 1);
    float *v = random_floats((size_t)ROWS * KV * head_dim, 1),
          *got = malloc(sizeof(float) * ROWS * Q * head_dim);
    attention_piece(&a, qg, k, v, ROWS, 0, got, &q);
    const size_t cache = (size_t)ROWS * KV * head_dim;
    double *keys = malloc(sizeof(double) * cache), *values = malloc(sizeof(double) * cache);
    double *wanted = malloc(sizeof(double) * ROWS * Q * head_dim),
           *exact = malloc(sizeof(double) * cache);
    float *seen = malloc(sizeof(float) * cache);
    read_cache(&a, a.k_codes, a.k_scales, ROWS, keys);
    read_cache(&a, a.v_codes, a.v_scales, ROWS, values);
    for (u32 row = 0; row < ROWS; row++)
        for (u32 head = 0; head < KV; head++)
            head_reference(k + (row * KV + head) * head_dim, row,
                           exact + (row * KV + head) * head_dim);
    for (size_t i = 0; i < cache; i++)
        seen[i] = (float)keys[i];
    assert_close(seen, exact, cache, cache_limit);
    for (u32 row = 0; row < ROWS; row++)
        for (u32 head = 0; head < Q; head++) {
            double query[HEAD], *out = wanted + (row * Q + head) * head_dim;
            const float *source = qg + (size_t)(row * Q + head) * head_dim * 2;
            head_reference(source, row, query);
            attend_reference(query, keys + head / 2 * head_dim, values + head / 2 * head_dim,
                             KV * head_dim, row + 1, out);
            for (u32 i = 0; i < head_dim; i++)
                out[i] /= 1 + exp(-source[head_dim + i]);
        }
    assert_close(got, wanted, (size_t)ROWS * Q * head_dim, 1e-3);
    free(qg), free(k), free(v), free(got), free(q), free(keys), free(values), free(wanted),
        free(exact), free(seen);
}

static void attention_over_halves(void **state)
{
    (void)state;
    attention_is_close(16, 2, 1, 4e-4);
    kernels_clear(NULL);
    attention_is_close(16, 1, 2, 4e-4);
    kernels_clear(NULL);
    attention_is_close(16, 2, 4, 4e-4);
}

static void attention_over_codes(void **state)
{
    (void)state;
    attention_is_close(3, 2, 1, 0.2);
    kernels_clear(NULL);
    attention_is_close(3, 2, 4, 0.2);
    kernels_clear(NULL);
    attention_is_close(8, 2, 2, 6e-3);
}

static void attention_over_short_heads(void **state)
{
    (void)state;
    head_dim = HEAD / 2;
    for (u32 tiles = 1; tiles <= 2; tiles++) {
        if (full_run() || tiles == 1)
            attention_is_close(3, 2, tiles, 0.2);
        kernels_clear(NULL);
        if (full_run() || tiles == 2)
            attention_is_close(5, on_gpu() ? 2 : 1, tiles, 0.1); /* 1, 1 spill there */
        kernels_clear(NULL);
    }
    head_dim = HEAD;
}

/* The whole of a prompt with the first tuning, against two pieces with every one: heads, row_warps,
 * tiles. Kernels of the others are made for fewer rows. */
static void attention_cuts(u32 bits, u32 count, const u32 (*tunings)[3])
{
    enum { ROWS = 330, CUT = 256 };
    const u32 width = Q * head_dim;
    float *qg = random_floats((size_t)ROWS * width * 2, 1),
          *k = random_floats((size_t)ROWS * KV * head_dim, 1);
    float *v = random_floats((size_t)ROWS * KV * head_dim, 1),
          *whole = malloc(sizeof(float) * ROWS * width);
    float *cut = malloc(sizeof(float) * ROWS * width);
    for (u32 i = 0; i < count; i++) {
        struct attention a;
        attention_map = i % 2 ? "contiguous" : "strided";
        attend_rows = i ? CUT : PIECE_MOST;
        attention_open(&a, bits, tunings[i][0], on_gpu() ? 4 : tunings[i][1], tunings[i][2]);
        if (i == 0)
            attention_piece(&a, qg, k, v, ROWS, 0, whole, NULL);
        kernels_clear(NULL);
        attention_open(&a, bits, tunings[i][0], on_gpu() ? 4 : tunings[i][1], tunings[i][2]);
        attention_piece(&a, qg, k, v, CUT, 0, cut, NULL);
        attention_piece(&a, qg + CUT * width * 2, k + CUT * KV * head_dim, v + CUT * KV * head_dim,
                        ROWS - CUT, CUT, cut + CUT * width, NULL);
        assert_same_floats(cut, whole, (size_t)ROWS * width);
        kernels_clear(NULL);
    }
    attention_map = "strided";
    attend_rows = PIECE_MOST;
    free(qg), free(k), free(v), free(whole), free(cut);
}

static void attention_cuts_do_not_show(void **state)
{
    const u32 tunings[][3] = {{2, 1, 4}, {1, 4, 2}, {2, 2, 1}, {2, 2, 4}};
    const u32 short_tunings[][3] = {{2, 1, 1}, {1, 4, 2}, {2, 2, 4}};
    (void)state;
    attention_cuts(3, full_run() ? COUNT_OF(tunings) : 3, tunings);
    head_dim = HEAD / 2;
    attention_cuts(3, COUNT_OF(short_tunings), short_tunings);
    head_dim = HEAD;
}

/* ---- Q K^T of int8: schedules/prefill_attention.lua says which bytes they are */

enum { INT8_ROWS = 330 };

/* One query or key in the basis of the cache; what its bytes are; half a step of them. */
struct int8_row {
    double value[HEAD], sum;             /* sum: of magnitudes */
    float half[HEAD], bytes[HEAD], unit; /* value is about half, and about bytes * unit */
    double half_step;
};

/* The nearest integer to a * b, as the kernel has it: of the low bits of 1.5 * 2^23 + a b. */
static float nearest(float a, float b)
{
    return fmaf(a, b, 0x1.8p23f) - 0x1.8p23f;
}

/* n / a by the kernel's own steps: where a b lies between two integers, its last bit decides. */
static float inverse_of(float a, float n)
{
    u32 bits;
    float inverse;
    memcpy(&bits, &a, sizeof bits);
    bits = 0x7ef311c3u - bits;
    memcpy(&inverse, &bits, sizeof bits);
    for (u32 i = 0; i < 3; i++)
        inverse = fmaf(inverse, fmaf(-a, inverse, 1), inverse);
    return inverse * n;
}

static void finish_row(struct int8_row *row)
{
    row->sum = 0;
    row->half_step = row->unit * (0.5 + 0x1p-14); /* 127 times 2^-21: what is rounded is rounded */
    for (u32 i = 0; i < head_dim; i++) {
        row->sum += fabs(row->value[i]);
        row->half[i] = half_value(half_bits((float)row->value[i]));
        assert_true(fabsf(row->bytes[i]) <= 127);
        assert_true(fabs((double)row->bytes[i] * row->unit - row->value[i]) <= row->half_step);
    }
}

static struct int8_row int8_query(const u16 *halves)
{
    struct int8_row row;
    float most = 0;
    for (u32 i = 0; i < head_dim; i++)
        most = fmaxf(most, fabsf(half_value(halves[i])));
    most = most > 0 ? most : 1; /* zeros have any unit */
    row.unit = most / 127;
    for (u32 i = 0; i < head_dim; i++) {
        row.value[i] = half_value(halves[i]);
        row.bytes[i] = nearest((float)row.value[i], 127 / most);
    }
    finish_row(&row);
    return row;
}

static struct int8_row int8_key(const u32 *codes, const u16 *scales, u32 bits)
{
    struct int8_row row;
    const double odd_most = (1 << bits) - 1, steps = bits < 8 ? floor(127 / odd_most) : 127 / 255.0;
    float most = 0;
    for (u32 g = 0; g < head_dim / 32; g++)
        most = fmaxf(most, half_value(scales[g]));
    row.unit = (float)(most / (steps * (1 << bits)));
    for (u32 i = 0; i < head_dim; i++) {
        const double scale = half_value(scales[i / 32]);
        const double odd = 2.0 * code_of(codes + i / 32 * bits, bits, i % 32) - odd_most;
        row.value[i] = odd * scale / (1 << bits);
        row.bytes[i] = nearest((float)odd, (float)scale * inverse_of(most, (float)steps));
    }
    finish_row(&row);
    return row;
}

/* Squares of errors and of what is right. */
struct error_sum {
    double error, size;
};

static void add_error(struct error_sum *sum, double got, double right)
{
    sum->error += (got - right) * (got - right);
    sum->size += right * right;
}

/* What a row of a head makes of the scores of `count` keys, before the gate; scores become
 * weights, of sum 1. */
static void weigh_values(double *scores, const double *values, u32 stride, u32 count,
                         double out[HEAD])
{
    double top = -1e300, sum = 0;
    for (u32 t = 0; t < count; t++)
        top = fmax(top, scores[t]);
    for (u32 t = 0; t < count; t++)
        sum += scores[t] = exp(scores[t] - top);
    memset(out, 0, head_dim * sizeof *out);
    for (u32 t = 0; t < count; t++) {
        scores[t] /= sum;
        for (u32 i = 0; i < head_dim; i++)
            out[i] += scores[t] * values[(size_t)t * stride + i];
    }
}

/* Of a row and a head: the kernel's output against the bytes' scores and against those of the
 * query and the keys themselves.
 *
 * A product q k of numbers of which q has an error of e at most and k one of f is off by e |k| + f
 * |q| + e f, so a score by (e sum|k| + f sum|q| + dims e f) / sqrt(dims), and 2^-20 of |q||k| for
 * what is done in fp32. Where d is the largest of these, weights are within a factor of e^2d, and
 * an output within (e^2d - 1) sum p |v - o|. What is left is 2^-11 of each p and v, as fp16, and
 * of the fp32 sums: 2^-9 sum p |v| of the group, whose values are rotated together, holds it. */
static void check_int8_row(const struct int8_row *query, const struct int8_row *keys, u32 key_step,
                           const double *values, u32 stride, u32 count, const float *gate,
                           const float *got, struct error_sum sums[2], struct error_sum scores[2])
{
    double bytes[INT8_ROWS], exact[INT8_ROWS], out[2][HEAD], worst = 0;
    for (u32 t = 0; t < count; t++) {
        const struct int8_row *key = keys + (size_t)t * key_step;
        double products = 0, integers = 0, halves = 0, norms[2] = {0};
        for (u32 i = 0; i < head_dim; i++) {
            products += query->value[i] * key->value[i];
            integers += (double)query->bytes[i] * key->bytes[i];
            halves += (double)query->half[i] * key->half[i];
            norms[0] += query->value[i] * query->value[i];
            norms[1] += key->value[i] * key->value[i];
        }
        const double e = query->half_step, f = key->half_step, size = sqrt(norms[0] * norms[1]);
        const double bound = e * key->sum + f * query->sum + head_dim * e * f + 0x1p-20 * size;
        bytes[t] = integers * query->unit * key->unit / sqrt(head_dim);
        exact[t] = products / sqrt(head_dim);
        if (fabs(bytes[t] - exact[t]) > bound / sqrt(head_dim))
            fail_msg("key %u: score %g, of bytes %g, at most %g off", t, exact[t], bytes[t],
                     bound / sqrt(head_dim));
        if (size > 0) { /* as parts of |q||k|, about 1 */
            add_error(scores, 1 + (bytes[t] * sqrt(head_dim) - products) / size, 1);
            add_error(scores + 1, 1 + (halves - products) / size, 1);
        }
        worst = fmax(worst, bound / sqrt(head_dim));
    }
    weigh_values(bytes, values, stride, count, out[0]);
    weigh_values(exact, values, stride, count, out[1]);
    for (u32 i = 0; i < head_dim; i++) {
        const double open = 1 / (1 + exp(-gate[i]));
        double spread = 0, group = 0;
        for (u32 t = 0; t < count; t++) {
            const double *line = values + (size_t)t * stride;
            double square = 0;
            for (u32 j = i / 32 * 32; j < i / 32 * 32 + 32; j++)
                square += line[j] * line[j];
            spread += exact[t] * fabs(line[i] - out[1][i]);
            group += exact[t] * sqrt(square);
        }
        const double bound = open * ((exp(2 * worst) - 1) * spread + 0x1p-9 * group);
        if (!(fabs(got[i] - out[1][i] * open) <= bound))
            fail_msg("dim %u of %u keys: %g, expected %g, at most %g off", i, count, got[i],
                     out[1][i] * open, bound);
        for (u32 which = 0; which < 2; which++)
            add_error(sums + which, got[i], out[which][i] * open);
    }
}

static void int8_is_close(u32 bits, u32 heads, u32 tiles)
{
    const u32 groups = head_dim / 32, pages[PAGES] = {2, 0, 1};
    const size_t cache = (size_t)INT8_ROWS * KV * head_dim, total = cache / KV * Q;
    struct attention a;
    u16 *q;
    score_bits = 8;
    attention_open(&a, bits, heads, on_gpu() ? 4 : 1, tiles);
    score_bits = 16;
    float *qg = random_floats(2 * total, 1), *k = random_floats(cache, 1);
    float *v = random_floats(cache, 1), *got = malloc(sizeof(float) * total);
    for (u32 i = 0; i < INT8_ROWS * KV * groups; i++) /* groups of a key differ */
        for (u32 j = 0; j < 32; j++)
            k[i * 32 + j] *= 0.25f + 0.3f * (float)(i * 7 % 5);
    memset(qg + 4 * 2 * head_dim * Q, 0, sizeof(float) * head_dim); /* a query of zeros */
    attention_piece(&a, qg, k, v, INT8_ROWS, 0, got, &q);
    double *values = malloc(sizeof(double) * cache);
    struct int8_row *keys = malloc(sizeof *keys * INT8_ROWS * KV);
    u32 *codes = array_read(a.k_codes, (size_t)a.slots * KV * groups * bits * 4);
    u16 *scales = array_read(a.k_scales, (size_t)a.slots * KV * groups * 2);
    read_cache(&a, a.v_codes, a.v_scales, INT8_ROWS, values);
    for (u32 i = 0; i < INT8_ROWS * KV; i++) {
        const u32 row = i / KV, slot = pages[row / PAGE] * PAGE + row % PAGE;
        const size_t group = ((size_t)slot * KV + i % KV) * groups;
        keys[i] = int8_key(codes + group * bits, scales + group, bits);
    }
    struct error_sum sums[2] = {{0}}, scores[2] = {{0}};
    for (u32 row = 0; row < INT8_ROWS; row += row < 70 ? 3 : 13)
        for (u32 head = 0; head < Q; head++) {
            const size_t at = (size_t)(row * Q + head) * head_dim;
            const struct int8_row query = int8_query(q + at);
            const u32 kv = head / (Q / KV);
            check_int8_row(&query, keys + kv, KV, values + kv * head_dim, KV * head_dim, row + 1,
                           qg + 2 * at + head_dim, got + at, sums, scores);
        }
    const double own = sqrt(sums[0].error / sums[0].size);
    print_message("Q K^T of int8, %u bits, %u dims: output from float64 of the bytes %.2e, of the "
                  "inputs %.2e; scores of bytes %.2e, of halves %.2e of |q||k|\n",
                  bits, head_dim, own, sqrt(sums[1].error / sums[1].size),
                  sqrt(scores[0].error / scores[0].size), sqrt(scores[1].error / scores[1].size));
    if (own > 4e-4)
        fail_msg("relative error %.3g against the scores of the bytes, limit 4e-4", own);
    free(qg), free(k), free(v), free(got), free(q), free(values), free(keys), free(codes),
        free(scales);
    kernels_clear(NULL);
}

static void attention_of_int8(void **state)
{
    (void)state;
    int8_is_close(3, 2, on_gpu() ? 2 : 1); /* one tile spills there */
    int8_is_close(3, 2, 4);
    for (u32 bits = 2; bits <= 8; bits++)
        if (bits != 3)
            int8_is_close(bits, on_gpu() && bits > 4 ? 1 : 2, 2);
    head_dim = HEAD / 2;
    int8_is_close(3, 2, 2);
    int8_is_close(6, 2, 4);
    head_dim = HEAD;
}

static void int8_cuts_do_not_show(void **state)
{
    static const u32 tunings[][3] = {{2, 1, 4}, {2, 4, 2}, {1, 2, 1},
                                     {1, 4, 2}, {2, 2, 1}, {1, 1, 1}};
    static const u32 even[][3] = {{2, 1, 2}, {2, 4, 4}, {2, 2, 2}};
    const u32 few = on_gpu() ? 2 : 3; /* the others spill there */
    (void)state;
    score_bits = 8;
    attention_cuts(3, full_run() && !on_gpu() ? COUNT_OF(tunings) : few, tunings);
    attention_cuts(8, full_run() ? 3 : 2, even);
    head_dim = HEAD / 2;
    attention_cuts(6, full_run() ? few : 2, tunings);
    head_dim = HEAD;
    score_bits = 16;
}

/* Values go into the cache unchanged but for their code: the recorded codes and scales. A row of
 * the vectors is a head here. */
static void cache_codes_match_vectors(void **state)
{
    struct tensor_file *file = NULL;
    struct error error = {0};
    const char *kinds[] = {"gauss", "spiky", "tiny"};
    u32 codes = 0, wrong = 0;
    (void)state;
    need(tensor_file_open(&file, "tests/data/kv_vectors.safetensors", &error), &error);
    for (u32 bits = 2; bits <= 8; bits++)
        for (u32 kind = 0; kind < COUNT_OF(kinds); kind++) {
            char name[3][32];
            const char *parts[] = {"x", "q", "s"};
            const struct tensor *t[3];
            for (u32 i = 0; i < 3; i++) {
                snprintf(name[i], sizeof name[i], "b%u.%s.%s", bits, kinds[kind], parts[i]);
                t[i] = tensor_file_find(file, name[i]);
                assert_non_null(t[i]);
            }
            const u32 heads = (u32)t[0]->shape[0], rows = heads / KV, groups = heads * HEAD / 32;
            assert_int_equal(heads % KV, 0);
            float *v = malloc(sizeof *v * heads * HEAD);
            for (u32 i = 0; i < heads * HEAD; i++)
                v[i] = half_value(((const u16 *)t[0]->data)[i]);
            const size_t bytes = (size_t)PAGE * KV * HEAD / 32 * bits * 4;
            const dptr word = array_new(bytes, NULL),
                       scale = array_new((size_t)PAGE * KV * HEAD / 32 * 2, NULL);
            const dptr other = array_new(bytes, NULL),
                       zeros = array_new((size_t)rows * Q * HEAD * 8, NULL);
            LAUNCH(prepare_kernel(bits), zeros, zeros, array_new((size_t)heads * HEAD * 4, v),
                   zeros, zeros, zeros, zeros,
                   array_new((size_t)padded_rows(rows) * Q * HEAD * 2, NULL), other,
                   array_new(bytes, NULL), word, scale, rows, 0);
            u32 *got = array_read(word, bytes);
            u16 *got_scale = array_read(scale, (size_t)groups * 2);
            assert_memory_equal(got_scale, t[2]->data, (size_t)groups * 2);
            for (u32 group = 0; group < groups; group++)
                for (u32 j = 0; j < 32; j++) {
                    const u32 mine = code_of(got + group * bits, bits, j);
                    const u32 theirs = code_of((const u32 *)t[1]->data + group * bits, bits, j);
                    codes++;
                    wrong += mine != theirs;
                    assert_true(mine - theirs + 1 <= 2);
                }
            free(v), free(got), free(got_scale);
            kernels_clear(NULL);
        }
    if (wrong > codes / 10000)
        fail_msg("%u of %u codes differ, at most 1 in 10,000 may", wrong, codes);
    tensor_file_close(file);
}

/* ---- Gated DeltaNet */

enum { GK = 2, GV = 4, GROUP = GV / GK, DIM = 128, CHANNELS = (2 * GK + GV) * DIM, GDN_ROWS = 150 };

static void convolution(void **state)
{
    enum { PIECE = 64 };
    (void)state;
    float *u = random_floats(GDN_ROWS * CHANNELS, 1), *weight = random_floats(CHANNELS * 4, 1);
    float *start = random_floats(3 * CHANNELS, 1);
    const struct jit_parameter size = JIT_NUMBER("rows_max", 192);
    struct jit_kernel *conv = KERNEL_OF("prefill_conv", JIT_NUMBER("k_heads", GK),
                                        JIT_NUMBER("v_heads", GV), size);
    struct jit_kernel *move = KERNEL_OF("prefill_window", JIT_NUMBER("channels", CHANNELS), size);
    const dptr taps = array_new(CHANNELS * 4 * 4, weight);
    float *q[2], *k[2], *v[2], *last[2];
    for (u32 cut = 0; cut < 2; cut++) {
        const dptr window = array_new(3 * CHANNELS * 4, start);
        q[cut] = malloc(sizeof(float) * 192 * GK * DIM);
        k[cut] = malloc(sizeof(float) * 192 * GK * DIM);
        v[cut] = malloc(sizeof(float) * 192 * GV * DIM);
        for (u32 at = 0, rows; at < GDN_ROWS; at += rows) {
            rows = cut && at == 0 ? PIECE : GDN_ROWS - at;
            const u32 padded = padded_rows(rows);
            const dptr input = array_new((size_t)rows * CHANNELS * 4, u + (size_t)at * CHANNELS);
            const dptr dq = array_new((size_t)padded * GK * DIM * 4, NULL);
            const dptr dk = array_new((size_t)padded * GK * DIM * 4, NULL);
            const dptr dv = array_new((size_t)padded * GV * DIM * 4, NULL);
            LAUNCH(conv, input, taps, window, dq, dk, dv, rows);
            LAUNCH(move, input, window, rows);
            float *a = array_read(dq, (size_t)padded * GK * DIM * 4),
                  *b = array_read(dk, (size_t)padded * GK * DIM * 4);
            float *c = array_read(dv, (size_t)padded * GV * DIM * 4);
            memcpy(q[cut] + at * GK * DIM, a, (size_t)padded * GK * DIM * 4);
            memcpy(k[cut] + at * GK * DIM, b, (size_t)padded * GK * DIM * 4);
            memcpy(v[cut] + at * GV * DIM, c, (size_t)padded * GV * DIM * 4);
            free(a), free(b), free(c);
        }
        last[cut] = array_read(window, 3 * CHANNELS * 4);
    }
    double *wanted = malloc(sizeof(double) * GDN_ROWS * CHANNELS);
    float *got = malloc(sizeof(float) * GDN_ROWS * CHANNELS);
    for (u32 row = 0; row < GDN_ROWS; row++)
        for (u32 head = 0; head < CHANNELS / DIM; head++) {
            double *line = wanted + row * CHANNELS + head * DIM, square = 0;
            for (u32 i = 0; i < DIM; i++) {
                const u32 c = head * DIM + i;
                double sum = 0;
                for (u32 tap = 0; tap < 4; tap++)
                    sum += (double)weight[c * 4 + tap] * (row + tap < 3
                                                              ? start[(row + tap) * CHANNELS + c]
                                                              : u[(row + tap - 3) * CHANNELS + c]);
                line[i] = silu_of(sum);
                square += line[i] * line[i];
            }
            for (u32 i = 0; i < DIM && head < 2 * GK; i++)
                line[i] /= sqrt(square + 1e-6) * (head < GK ? sqrt(DIM) : 1);
            const float *from = head < GK       ? q[0] + (row * GK + head) * DIM
                                : head < 2 * GK ? k[0] + (row * GK + head - GK) * DIM
                                                : v[0] + (row * GV + head - 2 * GK) * DIM;
            memcpy(got + row * CHANNELS + head * DIM, from, DIM * 4);
        }
    assert_close(got, wanted, GDN_ROWS * CHANNELS, 1e-6);
    assert_zeros(q[0] + GDN_ROWS * GK * DIM, (192 - GDN_ROWS) * GK * DIM);
    assert_zeros(v[0] + GDN_ROWS * GV * DIM, (192 - GDN_ROWS) * GV * DIM);
    assert_same_floats(last[0], u + (GDN_ROWS - 3) * CHANNELS, 3 * CHANNELS);
    assert_same_floats(q[1], q[0], 192 * GK * DIM);
    assert_same_floats(k[1], k[0], 192 * GK * DIM);
    assert_same_floats(v[1], v[0], 192 * GV * DIM);
    assert_same_floats(last[1], last[0], 3 * CHANNELS);
    /* a piece of two rows keeps one row of the old window */
    const dptr window = array_new(3 * CHANNELS * 4, start);
    LAUNCH(move, array_new(2 * CHANNELS * 4, u), window, 2);
    float *moved = array_read(window, 3 * CHANNELS * 4);
    assert_same_floats(moved, start + 2 * CHANNELS, CHANNELS);
    assert_same_floats(moved + CHANNELS, u, 2 * CHANNELS);
    for (u32 cut = 0; cut < 2; cut++)
        free(q[cut]), free(k[cut]), free(v[cut]), free(last[cut]);
    free(u), free(weight), free(start), free(wanted), free(got), free(moved);
}

static void gates(void **state)
{
    enum { ROWS = 70, HEADS = 6 };
    (void)state;
    float *ab = random_floats(ROWS * 2 * HEADS, 5), *a_log = random_floats(HEADS, 1),
          *bias = random_floats(HEADS, 1);
    ab[0] = 30; /* softplus is linear there */
    struct jit_kernel *kernel = KERNEL_OF("prefill_gates", JIT_NUMBER("v_heads", HEADS),
                                          JIT_NUMBER("rows_max", 128));
    const dptr beta = array_new(128 * HEADS * 4, NULL), g = array_new(128 * HEADS * 4, NULL);
    LAUNCH(kernel, array_new(ROWS * 2 * HEADS * 4, ab), array_new(HEADS * 4, a_log),
           array_new(HEADS * 4, bias), beta, g, ROWS);
    float *got = array_read(beta, 128 * HEADS * 4), *decay = array_read(g, 128 * HEADS * 4);
    double wanted[ROWS * HEADS], wanted_decay[ROWS * HEADS];
    for (u32 i = 0; i < ROWS * HEADS; i++) {
        const float *pair = ab + i / HEADS * 2 * HEADS + i % HEADS;
        wanted[i] = 1 / (1 + exp(-pair[HEADS]));
        wanted_decay[i] = -exp(a_log[i % HEADS]) * log1p(exp(pair[0] + bias[i % HEADS]));
    }
    assert_close(got, wanted, ROWS * HEADS, 1e-6);
    assert_close(decay, wanted_decay, ROWS * HEADS, 1e-6);
    assert_zeros(got + ROWS * HEADS, (128 - ROWS) * HEADS);
    assert_zeros(decay + ROWS * HEADS, (128 - ROWS) * HEADS);
    free(ab), free(a_log), free(bias), free(got), free(decay);
}

struct delta_input {
    float *q, *k, *v, *beta, *g, *state; /* rows padded with zeros to 192 */
};

static struct delta_input delta_input_new(void)
{
    struct delta_input in = {
        random_floats(192 * GK * DIM, 1), random_floats(192 * GK * DIM, 1),
        random_floats(192 * GV * DIM, 1), random_floats(192 * GV, 1),
        random_floats(192 * GV, 1),       random_floats(GV * DIM * DIM, 0.1f),
    };
    for (u32 i = 0; i < 192 * GK; i++) {
        double q = 0, k = 0;
        for (u32 j = 0; j < DIM; j++) {
            q += in.q[i * DIM + j] * in.q[i * DIM + j];
            k += in.k[i * DIM + j] * in.k[i * DIM + j];
        }
        for (u32 j = 0; j < DIM; j++) {
            in.q[i * DIM + j] *= i < GDN_ROWS * GK ? (float)(1 / sqrt(q * DIM)) : 0;
            in.k[i * DIM + j] *= i < GDN_ROWS * GK ? (float)(1 / sqrt(k)) : 0;
        }
    }
    for (u32 i = 0; i < 192 * GV; i++) {
        in.beta[i] = i < GDN_ROWS * GV ? 1 / (1 + expf(-in.beta[i])) : 0;
        in.g[i] = i < GDN_ROWS * GV ? -0.2f * in.g[i] * in.g[i] : 0;
        if (i >= GDN_ROWS * GV)
            memset(in.v + i * DIM, 0, DIM * 4);
    }
    return in;
}

/* Both kernels over rows at..at+rows of the input; moves state on; o: [rows, GV * DIM]. */
static void delta_piece(const struct delta_input *in, u32 at, u32 rows, dptr state, float *o,
                        u32 together, u32 warps, u32 slots)
{
    const u32 padded = padded_rows(rows), bands = padded / BAND;
    const struct jit_parameter k_heads = JIT_NUMBER("k_heads", GK),
                               v_heads = JIT_NUMBER("v_heads", GV);
    const struct jit_parameter size = JIT_NUMBER("rows_max", 192);
    struct jit_kernel *chunk = KERNEL_OF("prefill_gdn_chunk", k_heads, v_heads, size,
                                         JIT_NUMBER("together", together));
    struct jit_kernel *scan = KERNEL_OF("prefill_gdn_scan", k_heads, v_heads, size,
                                        JIT_NUMBER("warps", warps), JIT_NUMBER("slots", slots));
    const dptr q = array_new(padded * GK * DIM * 4, in->q + at * GK * DIM);
    const dptr k = array_new(padded * GK * DIM * 4, in->k + at * GK * DIM);
    const dptr v = array_new(padded * GV * DIM * 4, in->v + at * GV * DIM);
    const dptr u = array_new(padded * GV * DIM * 4, NULL),
               w = array_new(padded * GV * DIM * 4, NULL);
    const dptr p = array_new(padded * GV * BAND * 4, NULL),
               decay = array_new(bands * GV * 2 * BAND * 4, NULL);
    const dptr out = array_new(padded * GV * DIM * 4, NULL);
    LAUNCH(chunk, q, k, v, array_new(padded * GV * 4, in->beta + at * GV),
           array_new(padded * GV * 4, in->g + at * GV), u, w, p, decay, rows);
    LAUNCH(scan, q, k, u, w, p, decay, state, out, rows);
    float *got = array_read(out, padded * GV * DIM * 4);
    memcpy(o, got, rows * GV * DIM * 4);
    assert_zeros(got + rows * GV * DIM, (padded - rows) * GV * DIM);
    free(got);
}

static void delta_reference(const struct delta_input *in, double *state, double *o)
{
    for (u32 i = 0; i < GV * DIM * DIM; i++)
        state[i] = in->state[i];
    for (u32 row = 0; row < GDN_ROWS; row++)
        for (u32 head = 0; head < GV; head++) {
            double *s = state + head * DIM * DIM;
            const float *q = in->q + (row * GK + head / GROUP) * DIM,
                        *k = in->k + (row * GK + head / GROUP) * DIM;
            const double fade = exp(in->g[row * GV + head]), beta = in->beta[row * GV + head];
            for (u32 c = 0; c < DIM; c++) {
                double seen = 0, sum = 0;
                for (u32 i = 0; i < DIM; i++)
                    seen += k[i] * (s[i * DIM + c] *= fade);
                const double delta = beta * (in->v[(row * GV + head) * DIM + c] - seen);
                for (u32 i = 0; i < DIM; i++)
                    sum += q[i] * (s[i * DIM + c] += k[i] * delta);
                o[(row * GV + head) * DIM + c] = sum;
            }
        }
}

static void delta_rule(void **state_)
{
    enum { SIZE = GDN_ROWS * GV * DIM, STATE = GV * DIM * DIM };
    const u32 tunings[][3] = {{2, 4, 2}, {1, 8, 2}, {2, 2, 2}}; /* together, warps, slots */
    const struct delta_input in = delta_input_new();
    float *o = malloc(SIZE * 4), *cut = malloc(SIZE * 4), *end = NULL;
    double *wanted = malloc(SIZE * 8), *wanted_state = malloc(STATE * 8);
    (void)state_;
    delta_reference(&in, wanted_state, wanted);
    for (u32 i = 0; i < COUNT_OF(tunings); i++) {
        const dptr state = array_new(STATE * 4, in.state), other = array_new(STATE * 4, in.state);
        const u32 *t = tunings[i];
        if (i == 0) {
            delta_piece(&in, 0, GDN_ROWS, state, o, t[0], t[1], t[2]);
            end = array_read(state, STATE * 4);
        }
        delta_piece(&in, 0, BAND, other, cut, t[0], t[1], t[2]);
        delta_piece(&in, BAND, GDN_ROWS - BAND, other, cut + BAND * GV * DIM, t[0], t[1], t[2]);
        float *end_cut = array_read(other, STATE * 4);
        assert_same_floats(cut, o, SIZE);
        assert_same_floats(end_cut, end, STATE);
        free(end_cut);
    }
    assert_close(o, wanted, SIZE, 5e-6);
    assert_close(end, wanted_state, STATE, 5e-6);
    free(in.q), free(in.k), free(in.v), free(in.beta), free(in.g), free(in.state);
    free(o), free(cut), free(end), free(wanted), free(wanted_state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(weights_are_exact, kernels_clear),
        cmocka_unit_test_teardown(linear_is_close_and_rows_are_independent, kernels_clear),
        cmocka_unit_test_teardown(fp16_sums_of_slices, kernels_clear),
        cmocka_unit_test_teardown(norm_and_padding, kernels_clear),
        cmocka_unit_test_teardown(gated_norm, kernels_clear),
        cmocka_unit_test_teardown(output_modes, kernels_clear),
        cmocka_unit_test_teardown(middle_of_the_mlp, kernels_clear),
        cmocka_unit_test_teardown(plain_is_exact, kernels_clear),
        cmocka_unit_test_teardown(cache_codes_match_vectors, kernels_clear),
        cmocka_unit_test_teardown(attention_over_halves, kernels_clear),
        cmocka_unit_test_teardown(attention_over_codes, kernels_clear),
        cmocka_unit_test_teardown(attention_over_short_heads, kernels_clear),
        cmocka_unit_test_teardown(attention_cuts_do_not_show, kernels_clear),
        cmocka_unit_test_teardown(attention_of_int8, kernels_clear),
        cmocka_unit_test_teardown(int8_cuts_do_not_show, kernels_clear),
        cmocka_unit_test_teardown(convolution, kernels_clear),
        cmocka_unit_test_teardown(gates, kernels_clear),
        cmocka_unit_test_teardown(delta_rule, kernels_clear),
    };
    return cmocka_run_group_tests(tests, kernels_open, kernels_close);
}
