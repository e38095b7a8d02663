/* test_passes.c - what the launches of a pass read before wait_previous() (core/device/device.h).
 *
 * Whole passes of elpis-tiny and its draft on the host device with its checks: a read of what an
 * earlier launch of the pass wrote, or any write, ends the run with a sentence, as races do. Passes
 * are graphs here as they are when tokens are served: committed rows, trees, commits, the draft's
 * context and proposals, the sampler's launches with penalties and top-k. With the hidden states
 * read, launches come one by one; then the cache has 256 positions from a file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/engine.h"

#define MODEL "tests/models/elpis-tiny"
#define DRAFT "tests/models/elpis-tiny-dflash2"
#define STATE "tests/data/state_256.safetensors"

static struct engine *open_engine(u32 kv_bits)
{
    const struct engine_options options = {.device = {.device = "host", .host_check = true},
                                           .context = 512,
                                           .kv_bits = kv_bits,
                                           .prefill = ENGINE_PREFILL_EXACT,
                                           .speculate = 3,
                                           .draft = DRAFT};
    struct engine *engine = NULL;
    struct error error = {0};
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    return engine;
}

static bool take_token(void *user, u32 token)
{
    (void)token;
    ++*(u32 *)user;
    return true;
}

/* A prompt in one pass, then rounds. */
static void generate(struct engine *engine)
{
    enum { PROMPT = 4, TOKENS = 3 };
    u32 prompt[PROMPT], count = 0;
    struct engine_result result;
    struct error error = {0};
    for (u32 i = 0; i < PROMPT; i++)
        prompt[i] = 40 + 7 * i;
    const struct engine_request request = {.prompt = prompt,
                                           .prompt_count = PROMPT,
                                           .max_tokens = TOKENS,
                                           .sampling = {.temperature = 0.7,
                                                        .top_k = 20,
                                                        .top_p = 0.9,
                                                        .presence = 0.5,
                                                        .repetition = 1.1,
                                                        .seed = 3},
                                           .on_token = take_token,
                                           .user = &count};
    if (engine_generate(engine, &request, &result, &error))
        fail_msg("%s", error.text);
    assert_int_equal(count, TOKENS);
    assert_true(result.drafted > 0);
}

/* Rows behind a cache of four tiles: one committed, then a round of a tree, and its commit. */
static void decode_far_out(struct engine *engine)
{
    const u32 ids[] = {17, 300};
    const struct engine_proposal tree = {.rows = 3, .parent = {0, 0, 0}, .token = {0, 11, 12}};
    const struct engine_eval eval = {.ids = ids,
                                     .count = 2,
                                     .rows = 8,
                                     .teacher = true,
                                     .state_in = STATE,
                                     .script = &tree,
                                     .script_count = 1};
    struct engine_eval_result result;
    struct error error = {0};
    if (engine_evaluate(engine, &eval, &result, &error))
        fail_msg("%s", error.text);
    assert_true(result.committed_count > 0);
    memory_free(result.logits);
    memory_free(result.hidden);
    memory_free(result.committed);
    memory_free(result.committed_logits);
}

static void test_nothing_is_read_too_early(void **state)
{
    (void)state;
    struct engine *engine = open_engine(3);
    generate(engine);
    decode_far_out(engine);
    engine_close(engine);
}

static void test_nothing_is_read_too_early_of_halves(void **state)
{
    (void)state;
    if (!getenv("ELPIS_TEST_FULL"))
        skip();
    struct engine *engine = open_engine(16);
    generate(engine);
    engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_read_too_early),
        cmocka_unit_test(test_nothing_is_read_too_early_of_halves),
    };
    return cmocka_run_group_tests_name("engine/passes", tests, NULL, NULL);
}
