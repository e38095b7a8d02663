/* test_host.c - the host device: launches, barriers, orders, cooperative grids, graphs, faults. */
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

static const char sum_body[] = ENTRY
    "{\n"
    "    u32 *out = (u32 *)slots[0]; const u32 *in = (const u32 *)slots[1];\n"
    "    u32 at = cta_id() * 128 + thread_id();\n"
    "    u32 *part = shared_at(u32, 0);\n"
    "    u32 s = warp_sum_u32(in[at]);\n"
    "    if (lane_id() == 0) part[warp_id()] = s;\n"
    "    block_sync();\n"
    "    if (thread_id() == 0) out[cta_id()] = part[0] + part[1] + part[2] + part[3];\n"
    "}\n";

static void run_sums(u32 threads, u32 order, u32 grid)
{
    struct device *device = kernel_device(
        (struct device_options){.host_threads = threads, .host_order = order});
    struct kernel kernel = kernel_build(device, sum_body,
                                        (struct device_geometry){grid, 128, 64, false});
    u32 *out = kernel_memory(device, grid * 4, "out"),
        *in = kernel_memory(device, grid * 512, "in");
    for (u32 i = 0; i < grid * 128; i++)
        in[i] = i * i + 1;
    kernel_run(&kernel, (u64[]){SLOT(out), SLOT(in)}, 2);
    for (u32 cta = 0; cta < grid; cta++) {
        u32 want = 0;
        for (u32 i = 0; i < 128; i++)
            want += in[cta * 128 + i];
        assert_int_equal(out[cta], want);
    }
    kernel_free(&kernel);
    device_close(device);
}

static void test_sums(void **state)
{
    (void)state;
    run_sums(1, 0, 1);
    run_sums(2, 0, 37);
    run_sums(2, 1, 37);
    run_sums(3, 7, 37);
}

static const char grid_body[] = ENTRY
    "{\n"
    "    u32 *data = (u32 *)slots[0], *counter = (u32 *)slots[1];\n"
    "    u32 n = (u32)slots[2];\n"
    "    for (u32 step = 0; step < 20; step++) {\n"
    "        if (thread_id() == 0) data[(step + 1) * n + cta_id()] =\n"
    "            data[step * n + (cta_id() + 1) % n] + 1;\n"
    "        grid_sync(counter, n);\n"
    "    }\n"
    "}\n";

static void test_grid_sync(void **state)
{
    (void)state;
    enum { CTAS = 9 };
    struct device *device = kernel_device((struct device_options){.host_threads = 2});
    struct kernel kernel = kernel_build(device, grid_body,
                                        (struct device_geometry){CTAS, 64, 0, true});
    u32 *data = kernel_memory(device, 21 * CTAS * 4, "data");
    u32 *counter = kernel_memory(device, 4, "counter");
    for (u32 i = 0; i < CTAS; i++)
        data[i] = i * 100;
    kernel_run(&kernel, (u64[]){SLOT(data), SLOT(counter), CTAS}, 3);
    for (u32 i = 0; i < CTAS; i++)
        assert_int_equal(data[20 * CTAS + i], (i + 20) % CTAS * 100 + 20);
    kernel_free(&kernel);
    device_close(device);
}

/* CTA c waits for the word that CTA c - 1 releases. */
static const char chain_body[] = ENTRY
    "{\n"
    "    u32 *flags = (u32 *)slots[0];\n"
    "    u32 c = cta_id();\n"
    "    if (thread_id() == 0) {\n"
    "        while (c > 0 && load_acquire_u32(flags + c - 1) == 0) ;\n"
    "        store_release_u32(flags + c, c > 0 ? flags[c - 1] + 1 : 1);\n"
    "    }\n"
    "}\n";

static void test_buffer_of(void **state)
{
    (void)state;
    struct device *device = kernel_device((struct device_options){.host_threads = 1});
    struct error error = {0};
    dptr first, second, found;
    u64 bytes;
    assert_int_equal(device_alloc(device, 100, "first", &first, &error), 0);
    assert_int_equal(device_alloc(device, 300, "second", &second, &error), 0);
    assert_true(device_buffer_of(device, second + 299, &found, &bytes));
    assert_true(found == second && bytes == 300);
    assert_true(device_buffer_of(device, first, &found, &bytes));
    assert_true(found == first && bytes == 100);
    assert_false(device_buffer_of(device, first + 100, &found, &bytes));
    assert_false(device_buffer_of(device, 0, &found, &bytes));
    device_free(device, first);
    assert_false(device_buffer_of(device, first, &found, &bytes));
    assert_true(device_buffer_of(device, second, &found, &bytes));
    device_free(device, second);
    device_close(device);
}

static void test_chain(void **state)
{
    (void)state;
    struct device *device = kernel_device((struct device_options){.host_threads = 2});
    for (u32 cooperative = 0; cooperative < 2; cooperative++) {
        struct kernel kernel = kernel_build(device, chain_body,
                                            (struct device_geometry){50, 32, 0, cooperative});
        u32 *flags = kernel_memory(device, 200, "flags");
        kernel_run(&kernel, (u64[]){SLOT(flags)}, 1);
        for (u32 i = 0; i < 50; i++)
            assert_int_equal(flags[i], i + 1);
        kernel_free(&kernel);
    }
    device_close(device);
}

static void expect_fault(const char *body, u32 block, const char *expected)
{
    struct device *device = kernel_device((struct device_options){.host_threads = 2});
    struct kernel kernel = kernel_build(device, body,
                                        (struct device_geometry){3, block, 64, false});
    struct error error = {0};
    u32 *memory = kernel_memory(device, 4096, "memory");
    int status = device_launch(device, NULL, kernel.function, (u64[]){SLOT(memory), 3}, 2, &error);
    assert_int_equal(status, -1);
    assert_int_equal(error.code, ERROR_FATAL);
    if (!strstr(error.text, expected))
        fail_msg("expected \"%s\" in: %s", expected, error.text);
    kernel_free(&kernel);
    device_close(device);
}

static void test_divergence(void **state)
{
    (void)state;
    expect_fault(ENTRY "{ if (lane_id() != 5) warp_sync(); }\n", 32, "wait in warp_sync");
    expect_fault(ENTRY "{ if (lane_id() == 5) return; warp_sync(); }\n", 32, "warp_sync");
    expect_fault(ENTRY "{ if (lane_id() < 9) warp_sync(); else block_sync(); }\n", 64,
                 "a collective needs all lanes");
    expect_fault(ENTRY "{ grid_sync((u32 *)slots[0], 3); }\n", 64, "plain launch of 3");
    expect_fault(ENTRY "{ warpgroup_sync(); }\n", 64, "a multiple of 4");
    expect_fault(ENTRY "{ if (warp_id() == 1) block_sync(); else warpgroup_sync(); }\n", 128,
                 "different barriers");
    expect_fault(ENTRY "{ if (warp_id() == 1) return; warpgroup_sync(); }\n", 128, "returned");
    expect_fault(ENTRY "{ if (warp_id() == 3) return; warpgroup_sync(); }\n", 128, "returned");
}

static void test_compile_error(void **state)
{
    (void)state;
    struct device *device = kernel_device((struct device_options){.host_threads = 1});
    struct buffer image = {0},
                  source = kernel_source("templates/prelude/host.h", ENTRY "{ x = 1; }\n");
    struct error error = {0};
    assert_int_equal(device_compile(device, buffer_slice(&source), "broken", &image, &error), -1);
    assert_int_equal(error.code, ERROR_DEVICE);
    assert_non_null(strstr(error.text, "body:2:"));
    assert_non_null(strstr(error.text, "broken"));
    buffer_free(&image);
    buffer_free(&source);
    device_close(device);
}

/* Neither a folder nor a compiler that is missing is taken for the other. */
static void test_nothing_to_compile_with(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *said;
    } missing[] = {{"TMPDIR", "/missing", "/missing"}, {"ELPIS_CC", "/missing", NULL}};
    const char *const path = getenv("PATH");
    char kept[4096];
    snprintf(kept, sizeof kept, "%s", path ? path : "");
    for (u32 i = 0; i < COUNT_OF(missing); i++) {
        struct buffer image = {0};
        struct error error = {0};
        setenv(missing[i].name, missing[i].value, 1);
        setenv("PATH", "/missing", 1);
        struct device *device = kernel_device((struct device_options){0});
        const int status = device_compile(device, slice_of(""), "any", &image, &error);
        unsetenv(missing[i].name);
        setenv("PATH", kept, 1);
        device_close(device);
        buffer_free(&image);
        assert_int_equal(status, -1);
        if (!strstr(error.text, missing[i].said ? missing[i].said : "no C compiler found"))
            fail_msg("%s: %s", missing[i].name, error.text);
    }
}

static void test_raw_float_operator_refused(void **state)
{
    (void)state;
    struct device *device = kernel_device((struct device_options){.host_threads = 1});
    struct buffer image = {0};
    struct buffer source = kernel_source("templates/prelude/host.h", ENTRY
                                         "{ f32 *x = (f32 *)slots[0]; x[0] = x[0] * x[1]; }\n");
    struct error error = {0};
    assert_int_equal(device_compile(device, buffer_slice(&source), "raw", &image, &error), -1);
    buffer_free(&image);
    buffer_free(&source);
    device_close(device);
}

static void test_graph(void **state)
{
    (void)state;
    struct device *device = kernel_device((struct device_options){.host_threads = 2});
    struct kernel kernel = kernel_build(
        device, ENTRY "{ u32 *x = (u32 *)slots[0]; if (thread_id() == 0) x[cta_id()] += 3; }\n",
        (struct device_geometry){4, 32, 0, false});
    u32 *x = kernel_memory(device, 16, "x"), *y = kernel_memory(device, 16, "y");
    struct device_graph *graph;
    struct error error;
    assert_int_equal(device_graph_begin(device, NULL, &error), 0);
    assert_int_equal(device_fill(device, NULL, SLOT(x), 1, 8, &error), 0);
    kernel_run(&kernel, (u64[]){SLOT(x)}, 1);
    assert_int_equal(device_copy(device, NULL, SLOT(y), SLOT(x), 16, &error), 0);
    assert_int_equal(device_graph_end(device, NULL, &graph, &error), 0);
    assert_int_equal(x[0], 0);
    for (u32 i = 1; i <= 2; i++) {
        assert_int_equal(device_graph_launch(device, NULL, graph, &error), 0);
        assert_int_equal(y[0], 0x01010104);
        assert_int_equal(y[3], 3 * i);
    }
    device_graph_destroy(device, graph);
    kernel_free(&kernel);
    device_close(device);
}

/* Products that feed sums and differences in turn: the compiler must not fuse them. */
static void test_no_contraction(void **state)
{
    (void)state;
    enum { COUNT = 128 };
    struct device *device = kernel_device((struct device_options){.host_threads = 1});
    struct kernel kernel = kernel_build(
        device,
        ENTRY "{ const f32 *x = (const f32 *)slots[0] + 4 * lane_id();\n"
              "f32 *y = (f32 *)slots[1] + 4 * lane_id(), factor = *(const f32 *)slots[2];\n"
              "f32 a = f_mul(x[0], factor), b = f_mul(x[1], factor);\n"
              "f32 c = f_mul(x[2], factor), d = f_mul(x[3], factor);\n"
              "y[0] = f_add(a, b); y[1] = f_sub(a, b); y[2] = f_add(c, d); y[3] = f_sub(c, d); }\n",
        (struct device_geometry){1, 32, 0, false});
    float *x = kernel_memory(device, COUNT * 4, "x"), *y = kernel_memory(device, COUNT * 4, "y");
    float *factor = kernel_memory(device, 4, "factor");
    *factor = 1.7f;
    for (u32 i = 0; i < COUNT; i++)
        x[i] = 1.0f + (float)i * 0x1.234p-7f;
    kernel_run(&kernel, (u64[]){SLOT(x), SLOT(y), SLOT(factor)}, 3);
    for (u32 i = 0; i < COUNT; i += 2) {
        volatile float a = x[i] * *factor, b = x[i + 1] * *factor;
        if (y[i] != a + b || y[i + 1] != a - b)
            fail_msg("elements %u: expected %a %a, found %a %a", i, a + b, a - b, y[i], y[i + 1]);
    }
    kernel_free(&kernel);
    device_close(device);
}

static void test_no_gemm(void **state)
{
    (void)state;
    struct device *device = kernel_device((struct device_options){.host_threads = 1});
    struct device_gemm *gemm;
    struct error error = {0};
    assert_int_equal(device_gemm_open(device, &gemm, &error), -1);
    assert_int_equal(error.code, ERROR_DEVICE);
    device_close(device);
}

/* 63 beside the first one, and a place that was left is taken again. */
static void test_many_streams(void **state)
{
    (void)state;
    struct device *device = kernel_device((struct device_options){.host_threads = 1});
    struct device_stream *streams[63], *more;
    struct error error = {0};
    for (u32 i = 0; i < COUNT_OF(streams); i++)
        if (device_stream_create(device, DEVICE_FIRST, &streams[i], &error) != 0)
            fail_msg("stream %u: %s", i, error.text);
    assert_int_equal(device_stream_create(device, DEVICE_FIRST, &more, &error), -1);
    assert_non_null(strstr(error.text, "expected at most 64 at a time"));
    device_stream_destroy(device, streams[40]);
    assert_int_equal(device_stream_create(device, DEVICE_LAST, &streams[40], &error), 0);
    for (u32 i = 0; i < COUNT_OF(streams); i++)
        device_stream_destroy(device, streams[i]);
    device_close(device);
}

static void test_bad_options(void **state)
{
    (void)state;
    struct device *device;
    struct error error = {0};
    struct device_options options = {.device = "gpu"};
    assert_int_equal(device_open(&device, &options, &error), -1);
    assert_int_equal(error.code, ERROR_USAGE);
    assert_non_null(strstr(error.text, "\"gpu\""));
    options = (struct device_options){.device = "host", .as = "sm_86:82:100K"};
    assert_int_equal(device_open(&device, &options, &error), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_grid_sync),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_buffer_of),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_compile_error),
        cmocka_unit_test(test_nothing_to_compile_with),
        cmocka_unit_test(test_raw_float_operator_refused),
        cmocka_unit_test(test_no_contraction),
        cmocka_unit_test(test_graph),
        cmocka_unit_test(test_no_gemm),
        cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_bad_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
