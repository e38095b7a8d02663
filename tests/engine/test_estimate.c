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
#define GPU "sm_86:82:100K"

/* One for all tests of GPU: its kernels are compiled once. */
static struct estimate *tiny;

static struct estimate *open_for(const char *gpu)
{
    const struct engine_options options = {.context = 4096};
    struct estimate *estimate = NULL;
    struct error error;
    if (estimate_open(&estimate, MODEL, gpu, &options, &error) != 0)
        fail_msg("%s", error.text);
    return estimate;
}

static int open_tiny(void **state)
{
    (void)state;
    tiny = open_for(GPU);
    return 0;
}

static int close_tiny(void **state)
{
    (void)state;
    estimate_close(tiny);
    return 0;
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
    size_t count = 0;
    const struct estimate_kernel *kernels = verify(tiny, 4096, 8, &count);
    if (kernels) {
        /* 6 GDN and 2 attention layers, four linears each but the MLP's middle, and the head */
        assert_int_equal(launches_of(kernels, count, "linear_main"), 8 * 4 + 1);
        assert_int_equal(launches_of(kernels, count, "linear_middle"), 8);
        assert_int_equal(launches_of(kernels, count, "gdn_output"), 6);
        assert_int_equal(launches_of(kernels, count, "gdn_input"), 6);
        assert_int_equal(launches_of(kernels, count, "linear_input"), 8 + 2 + 1);
        assert_int_equal(launches_of(kernels, count, "linear_output"), 8 * 2 + 1);
        assert_int_equal(launches_of(kernels, count, "gdn_step"), 6);
        assert_int_equal(launches_of(kernels, count, "attention_decode"), 2);
        assert_int_equal(launches_of(kernels, count, "sample"), 1);
    }
    if (!kernels)
        skip();
}

/* Three products a tile of 16 x 16, half of them two and half four (pairs2, the emitter for 4 bits
 * there): a linear's tiles follow from its bytes. */
static void products_are_three_a_tile(void **state)
{
    (void)state;
    size_t count = 0;
    const struct estimate_kernel *kernels = verify(tiny, 512, 8, &count);
    const struct model *model = engine_model(estimate_engine(tiny));
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
    size_t count = 0;
    u64 attention[2] = {0}, step[2] = {0}, bytes[2] = {0};
    static const u32 contexts[2] = {512, 4096};
    for (u32 i = 0; i < 2; i++) {
        const struct estimate_kernel *kernels = verify(tiny, contexts[i], 8, &count);
        if (!kernels) {
            skip();
            return;
        }
        attention[i] = find(kernels, count, "attention_decode")->instructions;
        step[i] = find(kernels, count, "gdn_step")->instructions;
        u64 of_kernels = 0;
        for (size_t j = 0; j < count; j++)
            of_kernels += kernels[j].launches * kernels[j].bytes;
        bytes[i] = traffic_bytes(estimate_traffic(tiny));
        assert_true(of_kernels < bytes[i]);
        assert_true(of_kernels > bytes[i] / 10 * 9);
    }
    assert_true(attention[1] > 4 * attention[0]);
    assert_int_equal(step[0], step[1]);
    assert_true(bytes[1] > bytes[0]);
}

static void wrong_passes_are_refused(void **state)
{
    (void)state;
    const struct estimate_kernel *kernels;
    struct error error;
    size_t count;
    assert_int_equal(estimate_verify(tiny, 4097, 8, &kernels, &count, &error), -1);
    assert_int_equal(estimate_verify(tiny, 512, 9, &kernels, &count, &error), -1);
    assert_int_equal(estimate_verify(tiny, 4, 8, &kernels, &count, &error), -1);
}

/* Of the products of a piece: rows padded to 128, 16 x 8 x 16 an instruction. */
static u64 products_of(const struct model *model, u32 rows)
{
    u64 weights = 0;
    for (u32 i = 0; i < model->config.layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct model_linear *all[] = {&layer->in_qkv, &layer->in_z, &layer->out, &layer->q,
                                            &layer->k,      &layer->v,    &layer->o,   &layer->gate,
                                            &layer->up,     &layer->down};
        for (size_t j = 0; j < COUNT_OF(all); j++)
            if (all[j]->kind == LINEAR_EXL3)
                weights += (u64)all[j]->in_padded * all[j]->out_padded;
    }
    return weights * rows / (16 * 8 * 16);
}

static u64 tensor_instructions_of(const struct estimate_kernel *kernels, size_t count,
                                  const char *name)
{
    u64 sum = 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0)
            sum += kernels[i].launches * kernels[i].tensor_instructions;
    return sum;
}

/* A piece's products follow from shapes; its attention grows with its position, a tile of keys
 * after the other, and nothing else does. */
static void a_piece_is_its_products_and_its_keys(void **state)
{
    enum { ROWS_OF_PIECE = 128 };
    const struct model *model = engine_model(estimate_engine(tiny));
    const struct estimate_kernel *kernels;
    struct error error;
    size_t count;
    u64 attention[3] = {0}, transforms = 0;
    (void)state;
    for (u32 i = 0; i < 3; i++) {
        if (estimate_piece(tiny, 1024 * i, ROWS_OF_PIECE, &kernels, &count, &error) < 0) {
            if (!strstr(error.text, "NVRTC"))
                fail_msg("%s", error.text);
            skip();
            return;
        }
        const struct estimate_kernel *transform = find(kernels, count, "prefill_transform");
        attention[i] = tensor_instructions_of(kernels, count, "prefill_attention");
        assert_int_equal(launches_of(kernels, count, "prefill_gemm"), 6 * 3 + 2 * 4 + 8 * 3);
        assert_int_equal(tensor_instructions_of(kernels, count, "prefill_gemm"),
                         products_of(model, ROWS_OF_PIECE));
        assert_int_equal(transform->bytes, ROWS_OF_PIECE * (4 + 2 * 2) * model->config.hidden);
        if (i > 0)
            assert_int_equal(transform->instructions, transforms);
        transforms = transform->instructions;
    }
    assert_int_equal(attention[2] - attention[1], attention[1] - attention[0]);
    /* 1 and 2 tiles of 64 keys for two bands of rows; 16 more each with 1,024 more keys */
    assert_int_equal(3 * (attention[1] - attention[0]), 2 * 16 * attention[0]);
    assert_int_equal(estimate_piece(tiny, 100, 64, &kernels, &count, &error), -1);
    assert_int_equal(estimate_piece(tiny, 0, 0, &kernels, &count, &error), -1);
    assert_int_equal(
        estimate_piece(tiny, 0, estimate_piece_rows(tiny) + 1, &kernels, &count, &error), -1);
    assert_int_equal(estimate_piece(tiny, 4096, 1, &kernels, &count, &error), -1);
}

static void the_longest_column_decides(void **state)
{
    (void)state;
    const struct estimate_gpu gpu = {1e9, 1e11};
    struct estimate_kernel kernel = {.bytes = 1000000, .chain = 550};
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

/* Two places: the long CTA has one, all short ones follow each other on the other. Waves of two
 * would take 8 + 1 + 1 + 1 + 1, the longest one in each wave 5 * 8. */
static void a_place_that_is_free_gets_the_next_cta(void **state)
{
    static const double cycles[] = {8, 1, 1, 1, 1, 1, 1, 1, 2, 3};
    static const u32 places[] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 0};
    u32 place[COUNT_OF(cycles)];
    (void)state;
    assert_float_equal(estimate_deal(cycles, COUNT_OF(cycles), 2, place), 11, 1e-9);
    assert_memory_equal(place, places, sizeof place);
    assert_float_equal(estimate_deal(cycles, COUNT_OF(cycles), 1, place), 20, 1e-9);
    assert_float_equal(estimate_deal(cycles, COUNT_OF(cycles), 10, place), 8, 1e-9);
}

/* On few SMs, where every place gets many CTAs: no chain ends before the mean one, nor, with the
 * long CTAs first, much after it; and the busiest SM has at least the mean of each pipe. */
static void places_and_pipes_are_shared_evenly(void **state)
{
    enum { SMS = 2, PARTITIONS = 4 };
    struct estimate *estimate = open_for("sm_86:2:100K");
    size_t count = 0;
    const struct estimate_kernel *kernels = verify(estimate, 4096, 8, &count);
    (void)state;
    if (kernels) {
        const struct estimate_kernel *attend = find(kernels, count, "attention_decode");
        const u32 places = SMS * attend->ctas_per_sm;
        const double warps = attend->geometry.block / 32.0;
        const double of_place = (double)attend->instructions / warps / places;
        const double of_sm = attend->cycles[PIPE_ALU] / PARTITIONS / SMS;
        assert_true(attend->geometry.grid > 8 * places);
        assert_true(attend->chain > 4 * of_place);
        assert_true(attend->chain < 20 * of_place);
        assert_true(attend->busiest[PIPE_ALU] >= of_sm);
        assert_true(attend->busiest[PIPE_ALU] < 1.5 * of_sm);
    }
    estimate_close(estimate);
    if (!kernels)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_are_those_of_the_pass),
        cmocka_unit_test(products_are_three_a_tile),
        cmocka_unit_test(a_longer_context_is_more_work_for_attention_alone),
        cmocka_unit_test(wrong_passes_are_refused),
        cmocka_unit_test(a_piece_is_its_products_and_its_keys),
        cmocka_unit_test(the_longest_column_decides),
        cmocka_unit_test(a_place_that_is_free_gets_the_next_cta),
        cmocka_unit_test(places_and_pipes_are_shared_evenly),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
