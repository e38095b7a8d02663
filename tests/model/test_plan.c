/* test_plan.c - the memory plan: spans, the lines that have a closed form, the 27B's
 * numbers on files with its shapes, and the refusal.
 */
#include "model/make_draft.h"
#include "model/support.h"

static void test_spans(void **state)
{
    (void)state;
    static const u32 spans[][2] = {{1, 1},     {64, 1},    {65, 2},       {2048, 32},
                                   {2049, 33}, {2176, 33}, {2177, 34},    {4096, 48},
                                   {4097, 49}, {8192, 64}, {131072, 128}, {262144, 144}};
    for (size_t i = 0; i < COUNT_OF(spans); i++)
        assert_int_equal(memory_plan_spans(spans[i][0]), spans[i][1]);
}

/* The line whose text begins so. */
static u64 line_of(const struct memory_plan *plan, const char *start)
{
    for (u32 i = 0; i < plan->count; i++) {
        if (strncmp(plan->lines[i].what, start, strlen(start)) == 0)
            return plan->lines[i].bytes;
    }
    fail_msg("no line begins with %s", start);
    return 0;
}

static struct model *open_tiny(void)
{
    struct model *model = NULL;
    struct error error = {0};
    if (model_open(&model, TINY, &error) < 0)
        fail_msg("%s", error.text);
    return model;
}

static struct draft_model *open_draft(const char *path, const struct model *model)
{
    struct draft_model *draft = NULL;
    struct error error = {0};
    if (draft_open(&draft, path, model, 0, &error) < 0)
        fail_msg("%s", error.text);
    return draft;
}

static void test_tiny(void **state)
{
    (void)state;
    struct model *model = open_tiny();
    struct memory_plan plan;
    model_memory_plan(model, NULL, 1000, 3, 2048, &plan);
    assert_int_equal(line_of(&plan, "KV cache"), 1024 * 448);
    assert_int_equal(line_of(&plan, "recurrent state of 6 layers"),
                     6 * 4 * (6 * 128 * 128 + 3 * 1280));
    assert_int_equal(line_of(&plan, "staging of a snapshot"), line_of(&plan, "recurrent state"));
    assert_int_equal(line_of(&plan, "round statics of 6 layers"),
                     6 * 8 * 4 * (2 * 256 + 768 + 1280 + 12));
    assert_int_equal(line_of(&plan, "round stash"), 8 * 448);
    assert_int_equal(line_of(&plan, "attention partials of 16 spans"), 16 * 8 * 6 * 258 * 4);
    const u64 sampler = 8 * (2 * 5 + 4096) * 8 + 128; /* 4096 ids are 4 pieces; rounded up */
    assert_int_equal(line_of(&plan, "logits"), 2 * 8 * 4096 * 4 + sampler + 8 * 4096);
    assert_int_equal(line_of(&plan, "two linears expanded"), 2 * 2 * 256 * 3072);
    assert_int_equal(plan.host, 4096 * 256 * 2);
    assert_int_equal(plan.context, 1000);
    assert_int_equal(plan.kv_bits, 3);
    assert_int_equal(plan.available, 0);
    u64 total = 0;
    for (u32 i = 0; i < plan.count; i++)
        total += plan.lines[i].bytes;
    assert_int_equal(plan.total, total);
    model_memory_plan(model, NULL, 256, 16, 2048, &plan);
    assert_int_equal(line_of(&plan, "KV cache"), 256 * 2 * 256 * 2 * 2);
    model_close(model);
}

/* Buffers that live at one step lie apart, none is outside, none lies on what always lives. */
static void check_workspace(const struct model *model, u64 rows)
{
    struct prefill_workspace space;
    model_prefill_workspace(model, rows, &space);
    for (u32 i = 0; i < PREFILL_BUFFERS; i++) {
        const u64 start = space.offset[i], end = start + space.bytes[i];
        assert_true(start % 256 == 0 && end <= space.total);
        for (u32 j = 0; j < i; j++) {
            const bool apart = end <= space.offset[j] || space.offset[j] + space.bytes[j] <= start;
            if (!apart && prefill_buffers_share_step(i, j))
                fail_msg("buffers %u and %u lie over each other", i, j);
        }
    }
    assert_true(prefill_buffers_share_step(PREFILL_X, PREFILL_QUERY));
    assert_false(prefill_buffers_share_step(PREFILL_MIXED, PREFILL_O));
}

static void test_workspace(void **state)
{
    (void)state;
    struct model *model = open_tiny();
    struct prefill_workspace space;
    check_workspace(model, 64);
    check_workspace(model, 2048);
    model_prefill_workspace(model, 64, &space);
    assert_int_equal(space.bytes[PREFILL_X], 64 * 256 * 4);
    assert_int_equal(space.bytes[PREFILL_OPERAND], 64 * 1536 * 2); /* of o */
    assert_int_equal(space.bytes[PREFILL_MLP_OPERAND], 64 * 768 * 2);
    assert_int_equal(space.bytes[PREFILL_SUMS], 64 * 3072 * 4);
    assert_int_equal(space.bytes[PREFILL_HIDDEN], 0); /* all of it is quantised */
    model_close(model);
}

/* The weights are what the files hold, less the embedding, plus vectors widened to fp32 and
 * alignment. */
static void test_weights(void **state)
{
    (void)state;
    struct model *model = open_tiny();
    struct memory_plan plan;
    model_memory_plan(model, NULL, 1000, 3, 2048, &plan);
    u64 files = model->tensor_bytes - 4096 * 256 * 2;
    u64 weights = line_of(&plan, "weights");
    assert_true(weights > files);
    assert_true(weights < files + files / 10);
    model_close(model);
}

static void test_27b(void **state)
{
    (void)state;
    struct make_options options;
    struct memory_plan plan;
    make_27b(&options, folder);
    make_good(&options);
    struct model *model = open_good();
    assert_int_equal(model->config.layers, 64);
    assert_int_equal(model->file_count, 2);
    assert_int_equal(model->ignored_visual, 333);
    assert_int_equal(model->ignored_mtp, 39);
    assert_int_equal(model->layers[0].in_qkv.out, 10240);
    assert_int_equal(model->layers[63].q.out, 12288);
    assert_int_equal(model->layers[63].o.in, 6144);
    assert_int_equal(model->head.out, 248320);
    model_memory_plan(model, NULL, 262144, 3, 2048, &plan);
    assert_int_equal(line_of(&plan, "KV cache, 14336 B a token"), 262144ull * 14336);
    assert_int_equal(line_of(&plan, "recurrent state of 48 layers"),
                     48ull * ((3u << 20) + 3 * 10240 * 4));
    assert_int_equal(line_of(&plan, "attention partials of 144 spans"), 144 * 8 * 24 * 258 * 4);
    assert_int_equal(line_of(&plan, "two linears expanded"), 2 * 2 * 5120ull * 17408);
    assert_int_equal(plan.host, 248320ull * 5120 * 2);
    /* a row: the residual stream, its sums of squares and id, and the MLP's three buffers, over
     * which all others lie */
    check_workspace(model, 4096);
    model_memory_plan(model, NULL, 262144, 3, 4096, &plan);
    assert_int_equal(line_of(&plan, "prefill workspace of 4096 rows"),
                     4096ull * (20480 + 160 + 4 + 2 * 69632 + 34816) + 256);
    assert_int_equal(memory_plan_piece(model, NULL, 0, 3), 4096);
    assert_int_equal(memory_plan_piece(model, NULL, 0, 16), 2048); /* too much in any case */
    model_close(model);
}

/* 23.0 GiB hold target and draft at the longest context. The draft's lines: weights near the
 * 1.25 GB of its files, the ring of 42 MB, taps of what the window sees. */
static void test_27b_draft(void **state)
{
    (void)state;
    struct make_options options;
    struct draft_options draft_options;
    struct error error = {0};
    struct memory_plan plan, alone;
    make_27b(&options, folder);
    make_good(&options);
    make_27b_draft(&draft_options, in_folder("draft"));
    if (make_draft(&draft_options, &error) < 0)
        fail_msg("%s", error.text);
    struct model *model = open_good();
    struct draft_model *draft = open_draft(in_folder("draft"), model);
    model_memory_plan(model, NULL, 262144, 3, 2048, &alone);
    model_memory_plan(model, draft, 262144, 3, 2048, &plan);
    u64 weights = line_of(&plan, "draft weights");
    assert_true(weights > draft->tensor_bytes && weights < draft->tensor_bytes + (2u << 20));
    assert_true(draft->tensor_bytes > 1240000000 && draft->tensor_bytes < 1260000000);
    assert_int_equal(line_of(&plan, "draft keys and values"), 5 * (2048 + 8) * 2 * 8 * 128 * 2);
    assert_int_equal(line_of(&plan, "draft taps of 5 layers"), 2048ull * 5 * 5120 * 4);
    u64 work = line_of(&plan, "draft workspace");
    assert_true(work > 33 * 8 * 32 * 130 * 4 && work < 32u << 20);
    assert_int_equal(plan.total,
                     alone.total + weights + 2 * 5 * 2056 * 4096 + 2048ull * 102400 + work);
    if (plan.total >= 23ull << 30)
        fail_msg("the plan of %" PRIu64 " bytes does not fit in 23.0 GiB", plan.total);
    draft_close(draft);
    model_close(model);
}

/* Windows, pieces and contexts that bound the draft's memory, on elpis-tiny. */
static void test_draft(void **state)
{
    (void)state;
    struct model *model = open_tiny();
    struct draft_model *draft = open_draft(TINY "-dflash2", model);
    struct memory_plan plan;
    const u64 row = 2 * 128 * 2, tap = 3 * 256 * 4;
    model_memory_plan(model, draft, 4096, 3, 2048, &plan);
    assert_int_equal(line_of(&plan, "draft keys and values"), 2 * 136 * row);
    assert_int_equal(line_of(&plan, "draft taps of 3 layers"), 128 * tap);
    u64 weights = line_of(&plan, "draft weights"), work = line_of(&plan, "draft workspace");
    draft->config.windows[1] = 0;
    model_memory_plan(model, draft, 4096, 3, 2048, &plan);
    assert_int_equal(line_of(&plan, "draft keys and values"), (136 + 4104) * row);
    assert_int_equal(line_of(&plan, "draft taps of 3 layers"), 2048 * tap);
    assert_int_equal(line_of(&plan, "draft workspace") - work, (65 - 3) * 8 * 4 * 130 * 4);
    draft->head_blocks = (u32[]){30, 31};
    draft->head_block_count = 2;
    model_memory_plan(model, draft, 4096, 3, 2048, &plan);
    const u64 codes = 256 * 256 * 6 / 8, scales = 2 * 256 * 2, ids = 256 * 4;
    assert_int_equal(line_of(&plan, "draft weights and reduced head") - weights,
                     codes + scales + ids);
    assert_true(memory_plan_longest(model, draft, 3, 2048, plan.total) == 4096);
    draft_close(draft);
    model_close(model);
}

static void test_refused(void **state)
{
    (void)state;
    struct model *model = open_tiny();
    struct memory_plan plan;
    struct error error = {0};
    model_memory_plan(model, NULL, 262144, 3, 2048, &plan);
    assert_int_equal(memory_plan_check(&plan, "GPU", &error), 0);
    plan.available = plan.total;
    assert_int_equal(memory_plan_check(&plan, "GPU", &error), 0);
    plan.available = 256u << 20;
    assert_int_equal(memory_plan_check(&plan, "GPU", &error), -1);
    expect_error(&error, ERROR_MEMORY,
                 "GPU has 0.25 GiB free, but a context of 262144 tokens "
                 "with a 3-bit cache needs 0.49 GiB (0.01 GiB of it weights)");
    model_close(model);
}

static void test_longest(void **state)
{
    (void)state;
    struct model *model = open_tiny();
    struct memory_plan plan;
    model_memory_plan(model, NULL, 262144, 3, 2048, &plan);
    assert_int_equal(memory_plan_longest(model, NULL, 3, 2048, plan.total), 262144);
    assert_int_equal(memory_plan_longest(model, NULL, 3, 2048, plan.total - 1), 262144 - 256);
    model_memory_plan(model, NULL, 256, 3, 2048, &plan);
    assert_int_equal(memory_plan_longest(model, NULL, 3, 2048, plan.total), 256);
    assert_int_equal(memory_plan_longest(model, NULL, 3, 2048, plan.total - 1), 0);
    model_close(model);
}

static void test_printed(void **state)
{
    (void)state;
    struct model *model = open_tiny();
    struct memory_plan plan;
    struct buffer text = {0};
    model_memory_plan(model, NULL, 4096, 4, 2048, &plan);
    memory_plan_print(&plan, &text);
    assert_non_null(strstr(text.data, "memory plan for a context of 4096 tokens, 4-bit cache\n"));
    assert_non_null(strstr(text.data, "KV cache, 576 B a token "));
    assert_non_null(strstr(text.data, "total on the device"));
    assert_null(strstr(text.data, "free there"));
    plan.available = 24ull << 30;
    memory_plan_print(&plan, &text);
    assert_non_null(strstr(text.data, "free there                              24.000 GiB\n"));
    buffer_free(&text);
    model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans),     cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_workspace), cmocka_unit_test(test_weights),
        TEST_IN_FOLDER(test_27b),         TEST_IN_FOLDER(test_27b_draft),
        cmocka_unit_test(test_draft),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_printed),   cmocka_unit_test(test_longest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
