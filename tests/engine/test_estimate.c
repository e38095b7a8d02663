/* test_estimate.c - core/engine/estimate.c: elpis-tiny's verify pass on a GPU that is not there.
 *
 * Launches, tensor instructions and bytes are known from shapes. Needs NVRTC; skipped without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/estimate.h"

#define MODEL "tests/models/elpis-tiny"

static struct estimate *open_tiny(void)
{
    const struct engine_options options = {.context = 4096};
    struct estimate *estimate = NULL;
    struct error error;
    if (estimate_open(&estimate, MODEL, "sm_86:82:100K", &options, &error) != 0)
        fail_msg("%s", error.text);
    return estimate;
}

/* NULL: no NVRTC. */
static const struct estimate_kernel *verify(struct estimate *estimate, u32 context, u32 rows,
                                            size_t *count)
{
    const struct estimate_kernel *kernels = NULL;
    struct error error;
    if (estimate_verify(estimate, context, rows, &kernels, count, &error) == 0)
        return kernels;
    if (!strstr(error.text, "NVRTC"))
        fail_msg("%s", error.text);
    return NULL;
}

static u32 launches_of(const struct estimate_kernel *kernels, size_t count, const char *name)
{
    u32 launches = 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0)
            launches += kernels[i].launches;
    return launches;
}

static void launches_are_those_of_the_pass(void **state)
{
    (void)state;
    struct estimate *estimate = open_tiny();
    size_t count = 0;
    const struct estimate_kernel *kernels = verify(estimate, 4096, 8, &count);
    if (kernels) {
        /* 6 GDN and 2 attention layers, four linears each but the MLP's middle, and the head */
        assert_int_equal(launches_of(kernels, count, "linear_main"), 8 * 4 + 1);
        assert_int_equal(launches_of(kernels, count, "linear_middle"), 8);
        assert_int_equal(launches_of(kernels, count, "gdn_output"), 6);
        assert_int_equal(launches_of(kernels, count, "linear_tail"), 8 * 2);
        assert_int_equal(launches_of(kernels, count, "linear_input"), 1);  /* the first layer's */
        assert_int_equal(launches_of(kernels, count, "linear_output"), 1); /* the head's */
        assert_int_equal(launches_of(kernels, count, "gdn_step"), 6);
        assert_int_equal(launches_of(kernels, count, "attention_decode"), 2);
        assert_int_equal(launches_of(kernels, count, "sample"), 1);
    }
    estimate_close(estimate);
    if (!kernels)
        skip();
}

/* Three products a tile of 16 x 16, half of them two and half four (pairs2, the emitter for 4 bits
 * there): a linear's tiles follow from its bytes. */
static void products_are_three_a_tile(void **state)
{
    (void)state;
    struct estimate *estimate = open_tiny();
    size_t count = 0;
    const struct estimate_kernel *kernels = verify(estimate, 512, 8, &count);
    const struct model *model = engine_model(estimate_engine(estimate));
    const struct model_linear *down = &model->layers[0].down;
    bool found = false;
    for (size_t i = 0; kernels && i < count; i++) {
        const struct estimate_kernel *kernel = &kernels[i];
        assert_int_equal(kernel->resources.spill_loads, 0);
        assert_true(kernel->ctas_per_sm > 0);
        if (strcmp(kernel->name, "linear_main") != 0 ||
            kernel->bytes != model_linear_bytes(down, 1))
            continue;
        const u64 tiles = (u64)down->in_padded / 16 * (down->out_padded / 16);
        found = true;
        assert_int_equal(kernel->tensor_instructions, 3 * tiles);
        assert_float_equal(kernel->cycles[PIPE_TENSOR], 3.0 * 16 * (double)tiles, 0.5);
    }
    estimate_close(estimate);
    if (!kernels)
        skip();
    assert_true(found);
}

static const struct estimate_kernel *find(const struct estimate_kernel *kernels, size_t count,
                                          const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    return NULL;
}

static void a_longer_context_is_more_work_for_attention_alone(void **state)
{
    (void)state;
    struct estimate *estimate = open_tiny();
    size_t count = 0;
    u64 attention[2] = {0}, step[2] = {0}, bytes[2] = {0};
    static const u32 contexts[2] = {512, 4096};
    for (u32 i = 0; i < 2; i++) {
        const struct estimate_kernel *kernels = verify(estimate, contexts[i], 8, &count);
        if (!kernels) {
            estimate_close(estimate);
            skip();
            return;
        }
        attention[i] = find(kernels, count, "attention_decode")->instructions;
        step[i] = find(kernels, count, "gdn_step")->instructions;
        u64 of_kernels = 0;
        for (size_t j = 0; j < count; j++)
            of_kernels += kernels[j].launches * kernels[j].bytes;
        bytes[i] = traffic_bytes(estimate_traffic(estimate));
        assert_true(of_kernels < bytes[i]);
        assert_true(of_kernels > bytes[i] / 10 * 9);
    }
    assert_true(attention[1] > 4 * attention[0]);
    assert_int_equal(step[0], step[1]);
    assert_true(bytes[1] > bytes[0]);
    estimate_close(estimate);
}

static void wrong_passes_are_refused(void **state)
{
    (void)state;
    struct estimate *estimate = open_tiny();
    const struct estimate_kernel *kernels;
    struct error error;
    size_t count;
    assert_int_equal(estimate_verify(estimate, 4097, 8, &kernels, &count, &error), -1);
    assert_int_equal(estimate_verify(estimate, 512, 9, &kernels, &count, &error), -1);
    assert_int_equal(estimate_verify(estimate, 4, 8, &kernels, &count, &error), -1);
    estimate_close(estimate);
}

static void the_longest_column_decides(void **state)
{
    (void)state;
    const struct estimate_gpu gpu = {1e9, 1e11};
    struct estimate_kernel kernel = {.bytes = 1000000, .longest = 100};
    kernel.busiest[PIPE_TENSOR] = 5000; /* 5 us; dram: 10 us; chain: 0.55 us */
    struct estimate_time time = estimate_time(&kernel, &gpu);
    assert_int_equal(time.limit, LIMIT_DRAM);
    assert_float_equal(time.floor, 10e-6, 1e-9);
    assert_true(time.estimate > time.floor);
    kernel.busiest[PIPE_ALU] = 20000;
    time = estimate_time(&kernel, &gpu);
    assert_int_equal(time.limit, PIPE_ALU);
    assert_float_equal(time.floor, 20e-6, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_are_those_of_the_pass),
        cmocka_unit_test(products_are_three_a_tile),
        cmocka_unit_test(a_longer_context_is_more_work_for_attention_alone),
        cmocka_unit_test(wrong_passes_are_refused),
        cmocka_unit_test(the_longest_column_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
