/* test_models.c - small random models of other makes than elpis-tiny, through the whole engine:
 * unquantised linears, a tied head, mixed bits and codebooks.
 *
 * Decode and prefill are two implementations of one model: their hidden states agree within the f16
 * rounding of prefill, and decode has the same bits for every number of rows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "../model/make_model.h"
#include "whole.h"

enum { TOKENS = 70 };

static struct engine_eval_result evaluate_rows(struct engine *engine, u32 rows, bool teacher)
{
    u32 ids[TOKENS];
    for (u32 i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + 11) % 200;
    const struct engine_eval eval = {.ids = ids, .count = TOKENS, .rows = rows, .teacher = teacher};
    return evaluate(engine, &eval);
}

static double relative_rms(const float *value, const float *truth, size_t count)
{
    double error = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        error += (value[i] - truth[i]) * (value[i] - truth[i]);
        size += truth[i] * truth[i];
    }
    return sqrt(error / size);
}

static void check_model(const struct make_options *make, double limit)
{
    struct error error = {0};
    struct engine *engine = NULL;
    const struct engine_options options = {
        .device = {.device = "host"}, .context = 512, .piece = 256, .kv_bits = 8};
    if (make_model(make, &error) || engine_open(&engine, make->folder, &options, &error))
        fail_msg("%s", error.text);
    const struct model_config *config = &engine_model(engine)->config;
    struct engine_eval_result eight = evaluate_rows(engine, 8, true),
                              three = evaluate_rows(engine, 3, true);
    struct engine_eval_result prompt = evaluate_rows(engine, 1, false);
    assert_memory_equal(eight.logits, three.logits, (size_t)TOKENS * config->vocab * sizeof(float));
    const double found = relative_rms(prompt.hidden, eight.hidden,
                                      (size_t)TOKENS * config->layers * config->hidden);
    if (!(found <= limit))
        fail_msg("%s: prefill against decode: relative RMS %.2e, limit %.2e", make->folder, found,
                 limit);
    engine_close(engine);
    release(&eight);
    release(&three);
    release(&prompt);
}

static void test_plain(void **state)
{
    (void)state;
    struct make_options make;
    make_defaults(&make, "build/models/plain");
    make.plain = true;
    make.plain_dtype = DTYPE_BF16;
    make.tied = true;
    check_model(&make, 1e-3);
}

static void test_mixed(void **state)
{
    (void)state;
    struct make_options make;
    make_defaults(&make, "build/models/mixed");
    const u32 bits[] = {3, 4, 6, 2, 5};
    memcpy(make.bits, bits, sizeof bits);
    make.bit_count = COUNT_OF(bits);
    make.codebooks[0] = CODEBOOK_MUL1;
    make.codebooks[1] = CODEBOOK_MCG;
    make.codebooks[2] = CODEBOOK_3INST;
    make.codebook_count = 3;
    make.head_bits = 16;
    check_model(&make, 5e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_mixed)};
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
