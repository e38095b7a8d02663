/* cublaslt.c - matrix products for prefill by NVIDIA's library, with one pinned algorithm.
 *
 *     d[m][n] f32  =  a[m][k] f16  x  b[k][n] f16        row-major, fp32 accumulation
 *
 * cuBLASLt is column-major, where a row-major matrix is its own transpose, so the product is
 * asked for as  d' (n x m) = b' (n x k) x a' (k x m)  with the same memory and no copies.
 *
 * A prompt's result must not depend on how it is cut into pieces (design: the contract, 4), so a
 * row's bits must not depend on m. The library promises no such thing; therefore
 *   - for each (k, n) one algorithm is picked from the heuristics for the largest m and then used
 *     for every m; split-K and every cross-CTA reduction are excluded;
 *   - device_gemm_plan tries the candidates in order and keeps the first that gives equal bits
 *     for the same 64 rows alone and inside larger products, at several places.
 * m is a multiple of 64; callers pad with zero rows.
 *
 * The check fills its operands by repeating one random block whose length (odd) shares no factor
 * with a row, so that all rows differ, and values vary in exponent so that another order of
 * summation would show.
 */
#include <stdlib.h>
#include <string.h>

#include "device/driver.h"

typedef void *lt_handle, *lt_description, *lt_layout, *lt_preference;
typedef int lt_status; /* 0 = success */

/* Values from cublasLt.h and library_types.h, version 12 and 13. */
enum {
    LT_COMPUTE_32F = 68,
    LT_REAL_16F = 2,
    LT_REAL_32F = 0,
    LT_LAYOUT_COLUMNS = 3,
    LT_PREFERENCE_WORKSPACE = 1,
    LT_PREFERENCE_REDUCTIONS = 3,
    LT_PREFERENCE_ALIGNMENT_A = 5, /* then B, C, D */
    LT_ALGORITHM_SPLIT_K = 2,
    LT_ALGORITHM_REDUCTION = 3,
};

enum {
    ROWS = 64, /* the unit of m */
    CANDIDATES = 24,
    PLACES = 5, /* windows compared inside a larger product */
    ALIGNMENT = 256,
    WORKSPACE_BYTES = 32 << 20,
    PATTERN_HALVES = (1 << 20) - 3, /* odd, prime to every row length we meet */
    CHECK_BYTES = 256 << 20,        /* the check's d may be this large; larger m_max are cut */
};

struct lt_algorithm {
    u64 data[8];
};

struct lt_heuristic {
    struct lt_algorithm algorithm;
    size_t workspace;
    lt_status state;
    float waves;
    int reserved[4];
};

#define LT_FUNCTIONS(F)                                                                        \
    F(create, "cublasLtCreate", (lt_handle * handle))                                          \
    F(destroy, "cublasLtDestroy", (lt_handle handle))                                          \
    F(description_create, "cublasLtMatmulDescCreate",                                          \
      (lt_description * description, int compute, int scale))                                  \
    F(description_destroy, "cublasLtMatmulDescDestroy", (lt_description description))          \
    F(layout_create, "cublasLtMatrixLayoutCreate",                                             \
      (lt_layout * layout, int type, u64 rows, u64 columns, i64 leading))                      \
    F(layout_destroy, "cublasLtMatrixLayoutDestroy", (lt_layout layout))                       \
    F(layout_set, "cublasLtMatrixLayoutSetAttribute",                                          \
      (lt_layout layout, int attribute, const void *value, size_t size))                       \
    F(preference_create, "cublasLtMatmulPreferenceCreate", (lt_preference * preference))       \
    F(preference_destroy, "cublasLtMatmulPreferenceDestroy", (lt_preference preference))       \
    F(preference_set, "cublasLtMatmulPreferenceSetAttribute",                                  \
      (lt_preference preference, int attribute, const void *value, size_t size))               \
    F(heuristic, "cublasLtMatmulAlgoGetHeuristic",                                             \
      (lt_handle handle, lt_description description, lt_layout a, lt_layout b, lt_layout c,    \
       lt_layout d, lt_preference preference, int wanted, struct lt_heuristic *results,        \
       int *count))                                                                            \
    F(algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute",                                   \
      (const struct lt_algorithm *algorithm, int attribute, void *value, size_t size,          \
       size_t *written))                                                                       \
    F(algorithm_check, "cublasLtMatmulAlgoCheck",                                              \
      (lt_handle handle, lt_description description, lt_layout a, lt_layout b, lt_layout c,    \
       lt_layout d, const struct lt_algorithm *algorithm, struct lt_heuristic *result))        \
    F(matmul, "cublasLtMatmul",                                                                \
      (lt_handle handle, lt_description description, const void *alpha, const void *a,         \
       lt_layout layout_a, const void *b, lt_layout layout_b, const void *beta, const void *c, \
       lt_layout layout_c, void *d, lt_layout layout_d, const struct lt_algorithm *algorithm,  \
       void *workspace, size_t workspace_bytes, cu_stream stream))

#define LT_MEMBER(member, symbol, arguments) lt_status(*member) arguments;
struct lt_api {
    LT_FUNCTIONS(LT_MEMBER)
};
#undef LT_MEMBER

struct lt_plan {
    u32 k, n, m_max;
    struct lt_algorithm algorithm;
    lt_layout weights;         /* b' (n x k) */
    lt_layout inputs, results; /* a' (k x m), d' (n x m): their column count is set for each run */
    struct lt_plan *next;
};

struct device_gemm {
    struct device *device;
    struct cuda_device *cuda;
    struct library library;
    struct lt_api api;
    const char *(*status_name)(lt_status status);
    lt_handle handle;
    lt_description description;
    lt_preference preference;
    dptr workspace; /* u8 [WORKSPACE_BYTES] */
    struct lt_plan *plans;
};

static int lt_fail(const struct device_gemm *gemm, struct error *error, lt_status status,
                   const char *what)
{
    return error_set(error, ERROR_DEVICE, "%s: cuBLASLt (%s): %s: %s", gemm->cuda->base.info.name,
                     gemm->library.path, what, gemm->status_name(status));
}

/* ---- opening */

static int load(struct device_gemm *gemm, struct error *error)
{
#define LT_SYMBOL(member, symbol, arguments) {symbol, (void **)&gemm->api.member},
    const struct library_symbol symbols[] = {
        LT_FUNCTIONS(LT_SYMBOL){"cublasLtGetStatusName", (void **)&gemm->status_name}};
#undef LT_SYMBOL
    int driver = 0;
    gemm->cuda->api.version(&driver);
    if (library_open(&gemm->library, LIBRARY_CUBLASLT, gemm->cuda->cuda_libraries,
                     (u32)driver / 1000, error) != 0)
        return -1;
    return library_symbols(&gemm->library, symbols, COUNT_OF(symbols), error);
}

static lt_status set_preferences(struct device_gemm *gemm)
{
    const u64 workspace = WORKSPACE_BYTES;
    const u32 reductions = 0, alignment = ALIGNMENT;
    lt_status status = gemm->api.preference_create(&gemm->preference);
    if (status == 0)
        status = gemm->api.preference_set(gemm->preference, LT_PREFERENCE_WORKSPACE, &workspace,
                                          sizeof workspace);
    if (status == 0)
        status = gemm->api.preference_set(gemm->preference, LT_PREFERENCE_REDUCTIONS, &reductions,
                                          sizeof reductions);
    for (int operand = 0; status == 0 && operand < 4; operand++)
        status = gemm->api.preference_set(gemm->preference, LT_PREFERENCE_ALIGNMENT_A + operand,
                                          &alignment, sizeof alignment);
    return status;
}

int cuda_gemm_open(struct device *device, struct device_gemm **gemm, struct error *error)
{
    struct device_gemm *opened = memory_alloc(sizeof *opened);
    opened->device = device;
    if (cuda_enter(device, &opened->cuda, error) != 0 || load(opened, error) != 0)
        goto fail;
    lt_status status = opened->api.create(&opened->handle);
    if (status == 0)
        status = opened->api.description_create(&opened->description, LT_COMPUTE_32F, LT_REAL_32F);
    if (status == 0)
        status = set_preferences(opened);
    if (status != 0) {
        lt_fail(opened, error, status, "opening");
        goto fail;
    }
    if (device_alloc(device, WORKSPACE_BYTES, "cuBLASLt workspace", &opened->workspace, error) != 0)
        goto fail;
    *gemm = opened;
    return 0;
fail:
    device_gemm_close(opened);
    return -1;
}

static void plan_destroy(struct device_gemm *gemm, struct lt_plan *plan)
{
    if (plan->weights)
        gemm->api.layout_destroy(plan->weights);
    if (plan->inputs)
        gemm->api.layout_destroy(plan->inputs);
    if (plan->results)
        gemm->api.layout_destroy(plan->results);
    memory_free(plan);
}

void device_gemm_close(struct device_gemm *gemm)
{
    struct cuda_device *cuda;
    struct error ignored;
    if (!gemm)
        return;
    cuda_enter(gemm->device, &cuda, &ignored);
    while (gemm->plans) {
        struct lt_plan *plan = gemm->plans;
        gemm->plans = plan->next;
        plan_destroy(gemm, plan);
    }
    if (gemm->preference)
        gemm->api.preference_destroy(gemm->preference);
    if (gemm->description)
        gemm->api.description_destroy(gemm->description);
    if (gemm->handle)
        gemm->api.destroy(gemm->handle);
    device_free(gemm->device, gemm->workspace);
    memory_free(gemm);
}

/* ---- running */

static lt_status set_rows(struct device_gemm *gemm, struct lt_plan *plan, u32 m)
{
    const u64 columns = m;
    lt_status status = gemm->api.layout_set(plan->inputs, LT_LAYOUT_COLUMNS, &columns,
                                            sizeof columns);
    if (status != 0)
        return status;
    return gemm->api.layout_set(plan->results, LT_LAYOUT_COLUMNS, &columns, sizeof columns);
}

static lt_status multiply(struct device_gemm *gemm, struct lt_plan *plan, u32 m, dptr a, dptr b,
                          dptr d, cu_stream stream)
{
    const float one = 1, zero = 0;
    lt_status status = set_rows(gemm, plan, m);
    if (status != 0)
        return status;
    return gemm->api.matmul(gemm->handle, gemm->description, &one, (void *)b, plan->weights,
                            (void *)a, plan->inputs, &zero, (void *)d, plan->results, (void *)d,
                            plan->results, &plan->algorithm, (void *)gemm->workspace,
                            WORKSPACE_BYTES, stream);
}

static struct lt_plan *find_plan(struct device_gemm *gemm, u32 k, u32 n)
{
    struct lt_plan *plan = gemm->plans;
    while (plan && (plan->k != k || plan->n != n))
        plan = plan->next;
    return plan;
}

int device_gemm_run(struct device_gemm *gemm, struct device_stream *stream, u32 m, u32 n, u32 k,
                    dptr a, dptr b, dptr d, struct error *error)
{
    struct cuda_device *cuda;
    struct lt_plan *plan = find_plan(gemm, k, n);
    if (!plan || m == 0 || m % ROWS != 0 || m > plan->m_max)
        return error_set(
            error, ERROR_DEVICE,
            "matrix product of %u x %u by %u x %u: expected a planned shape and rows in "
            "multiples of %d up to %u",
            m, k, k, n, ROWS, plan ? plan->m_max : 0);
    if (cuda_enter(gemm->device, &cuda, error) != 0)
        return -1;
    lt_status status = multiply(gemm, plan, m, a, b, d, cuda_stream(cuda, stream));
    return status == 0 ? 0 : lt_fail(gemm, error, status, "multiplying");
}

/* ---- the start-up check */

struct check {
    dptr a, b;         /* f16 [m][k], f16 [k][n] */
    dptr large, alone; /* f32 [m][n], f32 [m][n] */
    u32 m;
    u8 *expected, *found; /* f32 [ROWS][n] on the host */
};

/* Halves of either sign with exponents 2^-8 .. 2^3. */
static int fill_operand(struct device_gemm *gemm, dptr operand, u64 halves, u64 seed,
                        struct error *error)
{
    const u64 pattern = halves < PATTERN_HALVES ? halves : PATTERN_HALVES;
    u16 *values = memory_alloc(pattern * sizeof *values);
    for (u64 i = 0; i < pattern; i++) {
        u32 r = (u32)random_next(&seed);
        u32 exponent = 7 + (r >> 20) % 12;
        values[i] = (u16)((r & 0x8000u) | exponent << 10 | (r & 0x3ffu));
    }
    int status = device_copy_in(gemm->device, NULL, operand, values, pattern * 2, error);
    for (u64 at = pattern; status == 0 && at < halves; at += pattern) {
        u64 count = halves - at < pattern ? halves - at : pattern;
        status = device_copy(gemm->device, NULL, operand + at * 2, operand, count * 2, error);
    }
    if (status == 0)
        status = device_sync(gemm->device, NULL, error);
    memory_free(values);
    return status;
}

static void check_close(struct device_gemm *gemm, struct check *check)
{
    device_free(gemm->device, check->a);
    device_free(gemm->device, check->b);
    device_free(gemm->device, check->large);
    device_free(gemm->device, check->alone);
    memory_free(check->expected);
    memory_free(check->found);
}

static int check_open(struct device_gemm *gemm, struct check *check, u32 k, u32 n, u32 m_max,
                      struct error *error)
{
    const u64 row_bytes = (u64)n * sizeof(float);
    const u64 rows = CHECK_BYTES / row_bytes / ROWS * ROWS;
    memset(check, 0, sizeof *check);
    check->m = rows >= 2 * ROWS && rows < m_max ? (u32)rows : m_max;
    check->expected = memory_alloc(ROWS * row_bytes);
    check->found = memory_alloc(ROWS * row_bytes);
    if (device_alloc(gemm->device, (u64)check->m * k * 2, "check of products: a", &check->a,
                     error) != 0 ||
        device_alloc(gemm->device, (u64)k * n * 2, "check of products: b", &check->b, error) != 0 ||
        device_alloc(gemm->device, check->m * row_bytes, "check of products: d", &check->large,
                     error) != 0 ||
        device_alloc(gemm->device, check->m * row_bytes, "check of products: d again",
                     &check->alone, error) != 0)
        return -1;
    if (fill_operand(gemm, check->a, (u64)check->m * k, 1, error) != 0)
        return -1;
    return fill_operand(gemm, check->b, (u64)k * n, 2, error);
}

/* Rows [row, row + 64) of both results: equal bits? 1, 0, or -1 with an error. */
static int same_rows(struct device_gemm *gemm, struct check *check, u32 n, u32 row, u32 row_alone,
                     struct error *error)
{
    const u64 row_bytes = (u64)n * sizeof(float), bytes = ROWS * row_bytes;
    if (device_copy_out(gemm->device, NULL, check->expected, check->large + row * row_bytes, bytes,
                        error) != 0 ||
        device_copy_out(gemm->device, NULL, check->found, check->alone + row_alone * row_bytes,
                        bytes, error) != 0 ||
        device_sync(gemm->device, NULL, error) != 0)
        return -1;
    return memcmp(check->expected, check->found, bytes) == 0;
}

/* The window number `place` of PLACES in m rows, first to last. */
static u32 window_row(u32 m, u32 place)
{
    return (m - ROWS) / ROWS * place / (PLACES - 1) * ROWS;
}

/* 1 if this plan's algorithm gives each window the same bits alone, in part and in whole;
 * 0 if not; -1 with an error. */
static int rows_are_independent(struct device_gemm *gemm, struct lt_plan *plan, struct check *check,
                                struct error *error)
{
    const u64 row_bytes = (u64)plan->n * sizeof(float);
    const cu_stream stream = gemm->cuda->first.handle;
    const u32 parts[] = {2 * ROWS, check->m / 2 / ROWS * ROWS, check->m - ROWS};
    if (multiply(gemm, plan, check->m, check->a, check->b, check->large, stream) != 0)
        return 0;
    for (u32 place = 0; place < PLACES; place++) {
        const u32 row = window_row(check->m, place);
        if (multiply(gemm, plan, ROWS, check->a + (u64)row * plan->k * 2, check->b,
                     check->alone + row * row_bytes, stream) != 0)
            return 0;
        int same = same_rows(gemm, check, plan->n, row, row, error);
        if (same != 1)
            return same;
    }
    for (size_t part = 0; part < COUNT_OF(parts); part++) {
        const u32 first = check->m - parts[part]; /* the last rows, so their place changes too */
        if (parts[part] == 0 || parts[part] > check->m)
            continue;
        if (multiply(gemm, plan, parts[part], check->a + (u64)first * plan->k * 2, check->b,
                     check->alone, stream) != 0)
            return 0;
        for (u32 place = 0; place < PLACES; place++) {
            const u32 row = window_row(parts[part], place);
            int same = same_rows(gemm, check, plan->n, first + row, row, error);
            if (same != 1)
                return same;
        }
    }
    return 1;
}

/* ---- planning */

/* No split of K, no reduction between CTAs, and fit for every number of rows. */
static bool algorithm_qualifies(struct device_gemm *gemm, struct lt_plan *plan,
                                const struct lt_heuristic *candidate)
{
    i32 split = 0;
    u32 reduction = 0;
    size_t written;
    if (candidate->state != 0 || candidate->workspace > WORKSPACE_BYTES)
        return false;
    if (gemm->api.algorithm_get(&candidate->algorithm, LT_ALGORITHM_SPLIT_K, &split, sizeof split,
                                &written) != 0 ||
        gemm->api.algorithm_get(&candidate->algorithm, LT_ALGORITHM_REDUCTION, &reduction,
                                sizeof reduction, &written) != 0)
        return false;
    if (split > 1 || reduction != 0)
        return false;
    for (u32 m = ROWS; m <= plan->m_max; m += ROWS) {
        struct lt_heuristic result = {0};
        if (set_rows(gemm, plan, m) != 0 ||
            gemm->api.algorithm_check(gemm->handle, gemm->description, plan->weights, plan->inputs,
                                      plan->results, plan->results, &candidate->algorithm,
                                      &result) != 0 ||
            result.state != 0 || result.workspace > WORKSPACE_BYTES)
            return false;
    }
    return true;
}

static int create_layouts(struct device_gemm *gemm, struct lt_plan *plan, struct error *error)
{
    const u32 k = plan->k, n = plan->n, m = plan->m_max;
    lt_status status = gemm->api.layout_create(&plan->weights, LT_REAL_16F, n, k, n);
    if (status == 0)
        status = gemm->api.layout_create(&plan->inputs, LT_REAL_16F, k, m, k);
    if (status == 0)
        status = gemm->api.layout_create(&plan->results, LT_REAL_32F, n, m, n);
    return status == 0 ? 0 : lt_fail(gemm, error, status, "describing the matrices");
}

static int pick_algorithm(struct device_gemm *gemm, struct lt_plan *plan, struct check *check,
                          struct error *error)
{
    struct lt_heuristic candidates[CANDIDATES];
    int count = 0, qualified = 0;
    memset(candidates, 0, sizeof candidates);
    lt_status status = gemm->api.heuristic(gemm->handle, gemm->description, plan->weights,
                                           plan->inputs, plan->results, plan->results,
                                           gemm->preference, CANDIDATES, candidates, &count);
    if (status != 0)
        return lt_fail(gemm, error, status, "asking for algorithms");
    for (int i = 0; i < count; i++) {
        if (!algorithm_qualifies(gemm, plan, &candidates[i]))
            continue;
        qualified++;
        plan->algorithm = candidates[i].algorithm;
        int same = rows_are_independent(gemm, plan, check, error);
        if (same < 0)
            return -1;
        if (same)
            return 0;
    }
    return error_set(
        error, ERROR_DEVICE,
        "%s: no cuBLASLt algorithm for k = %u, n = %u gives a row the same bits at every "
        "number of rows (%d offered, %d without split-K); use the generated kernel",
        gemm->cuda->base.info.name, plan->k, plan->n, count, qualified);
}

int device_gemm_plan(struct device_gemm *gemm, u32 k, u32 n, u32 m_max, struct error *error)
{
    struct cuda_device *cuda;
    struct check check = {0};
    struct lt_plan *plan = find_plan(gemm, k, n);
    if (k == 0 || n == 0 || m_max == 0 || m_max % ROWS != 0)
        return error_set(
            error, ERROR_DEVICE,
            "plan of a matrix product: expected k, n and rows in multiples of %d, found "
            "k = %u, n = %u, rows = %u",
            ROWS, k, n, m_max);
    if (plan && m_max <= plan->m_max)
        return 0;
    if (plan)
        return error_set(error, ERROR_DEVICE,
                         "plan of a matrix product k = %u, n = %u: it was planned for %u rows, %u "
                         "would need another algorithm; plan the largest first",
                         k, n, plan->m_max, m_max);
    if (cuda_enter(gemm->device, &cuda, error) != 0)
        return -1;
    plan = memory_alloc(sizeof *plan);
    plan->k = k, plan->n = n, plan->m_max = m_max;
    int status = create_layouts(gemm, plan, error);
    if (status == 0)
        status = check_open(gemm, &check, k, n, m_max, error);
    if (status == 0)
        status = pick_algorithm(gemm, plan, &check, error);
    check_close(gemm, &check);
    if (status != 0) {
        plan_destroy(gemm, plan);
        return -1;
    }
    plan->next = gemm->plans;
    gemm->plans = plan;
    return 0;
}
