/* test_gpu.c - what only a real GPU shows: known answers, grid barriers, graphs, matrix products.
 *
 * Skipped where no CUDA device opens. Every case runs natively and, where the GPU is large enough,
 * under the plan of an RTX 3090 (--as sm_86:82:100K).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"
#include "jit/jit.h"

static const char *const plans[] = {NULL, "sm_86:82:100K"};

static void must(int status, const struct error *error)
{
    if (status != 0)
        fail_msg("%s", error->text);
}

/* NULL where there is no GPU, or none that this plan fits. */
static struct device *open_gpu(const char *as)
{
    struct error error;
    struct device *device = NULL;
    const struct device_options options = {.device = "cuda", .as = as};
    if (device_open(&device, &options, &error) == 0)
        return device;
    printf("no GPU for this: %s\n", error.text);
    return NULL;
}

typedef void (*gpu_case)(struct device *device);

static void on_every_plan(gpu_case run)
{
    size_t ran = 0;
    for (size_t i = 0; i < COUNT_OF(plans); i++) {
        struct device *device = open_gpu(plans[i]);
        if (!device)
            continue;
        run(device);
        device_close(device);
        ran++;
    }
    if (ran == 0)
        skip();
}

static void prelude_of(struct buffer *source)
{
    struct error error;
    must(file_read(source, "templates/prelude/cuda.h", 1 << 20, &error), &error);
}

static struct device_function *build(struct device *device, const char *body,
                                     const struct device_geometry *geometry,
                                     struct device_module **module)
{
    struct error error;
    struct buffer source = {0}, image = {0};
    struct device_function *function = NULL;
    prelude_of(&source);
    buffer_add_text(&source, body);
    must(device_compile(device, buffer_slice(&source), "test", &image, &error), &error);
    must(device_module_load(device, image.data, image.size, "test", module, &error), &error);
    must(device_function_get(device, *module, "test", geometry, &function, &error), &error);
    buffer_free(&source);
    buffer_free(&image);
    return function;
}

static dptr memory(struct device *device, size_t bytes)
{
    struct error error;
    dptr address = 0;
    must(device_alloc(device, bytes, "test", &address, &error), &error);
    return address;
}

/* ---- known answers: the jit's own check of the prelude */

static void check_answers(struct device *device)
{
    static const struct jit_parameter none[] = {{0}};
    const struct jit_options options = {.memory_only = true};
    struct error error;
    struct jit *jit = NULL;
    struct jit_kernel *kernel = NULL;
    must(jit_open(&jit, device, &options, &error), &error);
    must(jit_request(jit, "prelude_check", none, &kernel, &error), &error);
    must(jit_build(jit, &error), &error);
    jit_close(jit);
}

static void known_answers_come_out(void **state)
{
    (void)state;
    on_every_plan(check_answers);
}

/* ---- grid barriers: in every step each CTA reads what its neighbour wrote in the step before */

static const char barrier_body[] =
    "extern \"C\" __global__ void __launch_bounds__(64) test(u32 *cells, u32 *counter, u32 ctas, "
    "u32 steps)\n"
    "{\n"
    "    wait_previous();\n"
    "    for (u32 step = 0; step < steps; step++) {\n"
    "        u32 *from = cells + step % 2 * ctas, *to = cells + (step + 1) % 2 * ctas;\n"
    "        if (thread_id() == 0)\n"
    "            to[cta_id()] = load_acquire_u32(from + (cta_id() + 1) % ctas) + 1;\n"
    "        grid_sync(counter, ctas);\n"
    "    }\n"
    "}\n";

/* overlaps: the CTAs of a launch come in while those of the one before are still there. */
static void check_barriers_of(struct device *device, bool overlaps)
{
    enum { STEPS = 1000, ROUNDS = 3 };
    struct error error;
    struct device_module *module = NULL;
    const u32 ctas = device_info(device)->sms * 2;
    const struct device_geometry geometry = {
        .grid = ctas, .block = 64, .cooperative = true, .overlaps = overlaps};
    struct device_function *function = build(device, barrier_body, &geometry, &module);
    const dptr cells = memory(device, 2 * ctas * sizeof(u32)),
               counter = memory(device, sizeof(u32));
    u32 *values = memory_alloc(2 * ctas * sizeof(u32));
    const u64 arguments[] = {cells, counter, ctas, STEPS};
    for (u32 round = 0; round < ROUNDS; round++)
        must(device_launch(device, NULL, function, arguments, 4, &error), &error);
    must(device_copy_out(device, NULL, values, cells, ctas * sizeof(u32), &error), &error);
    must(device_sync(device, NULL, &error), &error);
    for (u32 i = 0; i < ctas; i++)
        assert_int_equal(values[i], STEPS * ROUNDS);
    memory_free(values);
    device_free(device, cells);
    device_free(device, counter);
    device_module_unload(device, module);
}

static void check_barriers(struct device *device)
{
    check_barriers_of(device, false);
    check_barriers_of(device, true);
}

static void grid_barriers_hold(void **state)
{
    (void)state;
    on_every_plan(check_barriers);
}

/* ---- graphs with copies, fills, launches; large dynamic shared memory */

static const char count_body[] = "extern \"C\" __global__ void test(u32 *out, const u32 *in)\n"
                                 "{\n"
                                 "    u32 *part = shared_at(u32, 0);\n"
                                 "    part[thread_id() + 20000] = in[thread_id()];\n"
                                 "    block_sync();\n"
                                 "    atomic_add_u32(out, part[20000 + (thread_id() ^ 1)]);\n"
                                 "}\n";

static void check_graphs(struct device *device)
{
    enum { REPLAYS = 5, THREADS = 64 };
    struct error error;
    struct device_module *module = NULL;
    struct device_graph *graph = NULL;
    struct device_stream *stream = NULL;
    const struct device_geometry geometry = {.grid = 2, .block = THREADS, .shared = 90000};
    struct device_function *function = build(device, count_body, &geometry, &module);
    const dptr out = memory(device, 8), in = memory(device, THREADS * sizeof(u32));
    void *pinned;
    dptr mapped;
    u32 result[2] = {0};
    must(device_alloc_pinned(device, THREADS * sizeof(u32), &pinned, &mapped, &error), &error);
    must(device_stream_create(device, DEVICE_FIRST, &stream, &error), &error);
    must(device_graph_begin(device, stream, &error), &error);
    must(device_copy_in(device, stream, in, pinned, THREADS * sizeof(u32), &error), &error);
    must(device_launch(device, stream, function, (u64[]){out, in}, 2, &error), &error);
    must(device_launch(device, stream, function, (u64[]){out + 4, mapped}, 2, &error), &error);
    must(device_graph_end(device, stream, &graph, &error), &error);
    for (u32 replay = 1; replay <= REPLAYS; replay++) {
        for (u32 i = 0; i < THREADS; i++)
            ((u32 *)pinned)[i] = replay;
        must(device_graph_launch(device, stream, graph, &error), &error);
        must(device_sync(device, stream, &error), &error);
    }
    must(device_copy_out(device, stream, result, out, sizeof result, &error), &error);
    must(device_sync(device, stream, &error), &error);
    assert_int_equal(result[0], 2 * THREADS * REPLAYS * (REPLAYS + 1) / 2);
    assert_int_equal(result[1], result[0]);
    device_graph_destroy(device, graph);
    device_stream_destroy(device, stream);
    device_free_pinned(device, pinned);
    device_free(device, out);
    device_free(device, in);
    device_module_unload(device, module);
}

static void graphs_replay(void **state)
{
    (void)state;
    on_every_plan(check_graphs);
}

/* ---- matrix products */

/* Halves that are small integers, so that every order of summation gives the same exact sums. */
static u16 half_of(i32 value)
{
    static const u16 bits[] = {0x0000, 0x3c00, 0x4000, 0x4200, 0x4400}; /* 0 1 2 3 4 */
    return value < 0 ? (u16)(0x8000 | bits[-value]) : bits[value];
}

static void product_case(struct device_gemm *gemm, struct device *device, u32 k, u32 n, u32 m_max,
                         u32 m)
{
    struct error error;
    const dptr a = memory(device, (size_t)m * k * 2), b = memory(device, (size_t)k * n * 2);
    const dptr d = memory(device, (size_t)m * n * 4);
    u16 *halves_a = memory_alloc((size_t)m * k * 2), *halves_b = memory_alloc((size_t)k * n * 2);
    float *found = memory_alloc((size_t)m * n * 4);
    for (u32 i = 0; i < m * k; i++)
        halves_a[i] = half_of((i32)(i * 2654435761u >> 20) % 9 - 4);
    for (u32 i = 0; i < k * n; i++)
        halves_b[i] = half_of((i32)(i * 2246822519u >> 20) % 9 - 4);
    must(device_copy_in(device, NULL, a, halves_a, (size_t)m * k * 2, &error), &error);
    must(device_copy_in(device, NULL, b, halves_b, (size_t)k * n * 2, &error), &error);
    must(device_gemm_plan(gemm, k, n, m_max, &error), &error);
    must(device_gemm_run(gemm, NULL, m, n, k, a, b, d, &error), &error);
    must(device_copy_out(device, NULL, found, d, (size_t)m * n * 4, &error), &error);
    must(device_sync(device, NULL, &error), &error);
    for (u32 row = 0; row < m; row += 7)
        for (u32 column = 0; column < n; column += 13) {
            i32 sum = 0;
            for (u32 i = 0; i < k; i++)
                sum += ((i32)((row * k + i) * 2654435761u >> 20) % 9 - 4) *
                       ((i32)((i * n + column) * 2246822519u >> 20) % 9 - 4);
            assert_true(found[row * n + column] == (float)sum);
        }
    memory_free(halves_a);
    memory_free(halves_b);
    memory_free(found);
    device_free(device, a);
    device_free(device, b);
    device_free(device, d);
}

static void check_products(struct device *device)
{
    struct error error;
    struct device_gemm *gemm = NULL;
    must(device_gemm_open(device, &gemm, &error), &error);
    product_case(gemm, device, 256, 384, 512, 64);
    product_case(gemm, device, 256, 384, 512, 512);
    product_case(gemm, device, 1024, 640, 256, 192);
    assert_int_equal(device_gemm_run(gemm, NULL, 65, 384, 256, 0, 0, 0, &error), -1);
    assert_int_equal(device_gemm_run(gemm, NULL, 64, 128, 128, 0, 0, 0, &error), -1);
    const double started = clock_seconds();
    must(device_gemm_plan(gemm, 5120, 17408, 2048, &error), &error); /* a shape of the 27B */
    printf("planned 5120 x 17408 in %.2f s\n", clock_seconds() - started);
    device_gemm_close(gemm);
}

static void products_are_right_and_rows_independent(void **state)
{
    (void)state;
    struct device *device = open_gpu(NULL);
    if (!device)
        skip();
    check_products(device);
    device_close(device);
}

static void the_host_has_no_vendor_products(void **state)
{
    (void)state;
    struct error error;
    struct device *device = NULL;
    struct device_gemm *gemm = NULL;
    const struct device_options options = {.device = "host", .host_threads = 1};
    must(device_open(&device, &options, &error), &error);
    assert_int_equal(device_gemm_open(device, &gemm, &error), -1);
    assert_int_equal(error.code, ERROR_DEVICE);
    device_close(device);
}

/* ---- a kernel that breaks the context: last, for nothing works in this process after it */

static const char broken_body[] =
    "extern \"C\" __global__ void test(u32 *out) { out[thread_id()] = 1; }\n";

static void a_fault_is_fatal(void **state)
{
    (void)state;
    struct error error = {0};
    struct device_module *module = NULL;
    const struct device_geometry geometry = {.grid = 1, .block = 32};
    struct device *device = open_gpu(NULL);
    if (!device)
        skip();
    struct device_function *function = build(device, broken_body, &geometry, &module);
    must(device_launch(device, NULL, function, (u64[]){64}, 1, &error), &error);
    assert_int_equal(device_sync(device, NULL, &error), -1);
    assert_int_equal(error.code, ERROR_FATAL);
    device_module_unload(device, module);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers_come_out),
        cmocka_unit_test(grid_barriers_hold),
        cmocka_unit_test(graphs_replay),
        cmocka_unit_test(products_are_right_and_rows_independent),
        cmocka_unit_test(the_host_has_no_vendor_products),
        cmocka_unit_test(a_fault_is_fatal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
