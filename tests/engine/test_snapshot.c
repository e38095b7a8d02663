/* test_snapshot.c - prompts that go on from a snapshot: where, and that logits and tokens are those
 * of a prompt computed from nothing, to the bit.
 *
 * Prompts are asked of two engines with the same options: `warm` keeps snapshots, `cold` none.
 * ELPIS_TEST_FULL asks longer ones. ELPIS_TEST_MODEL names another model for a last case.
 * ELPIS_TEST_DEVICE and ELPIS_TEST_AS run it elsewhere than on the host device; there a copy to the
 * host runs beside the next piece.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine_private.h"

#define MODEL "tests/models/elpis-tiny"
#define DRAFT "tests/models/elpis-tiny-dflash2"

enum { MOST = 2400, PLENTY = 64 << 20, VOCAB_MOST = 1 << 18 };

static u32 ids[MOST];
static const char *model = MODEL;

static struct engine *open_engine(struct engine_options options, u64 snapshots)
{
    const char *device = getenv("ELPIS_TEST_DEVICE");
    struct engine *engine = NULL;
    struct error error = {0};
    options.device = (struct device_options){.device = device ? device : "host",
                                             .as = getenv("ELPIS_TEST_AS")};
    options.context = 4096;
    options.snapshots = snapshots;
    if (engine_open(&engine, model, &options, &error))
        fail_msg("%s", error.text);
    return engine;
}

struct pair {
    struct engine *warm, *cold;
};

static struct pair open_pair(struct engine_options options, u64 snapshots)
{
    return (struct pair){open_engine(options, snapshots), open_engine(options, 0)};
}

static void close_pair(struct pair *pair)
{
    engine_close(pair->warm);
    engine_close(pair->cold);
}

/* What an engine says to a prompt, and the logits of the last round's row 0. */
struct answer {
    u32 tokens[64], count, cancel_at; /* cancel_at: as soon as so much of the prompt is done */
    float logits[VOCAB_MOST];
    struct engine_result result;
};

static bool on_token(void *user, u32 token)
{
    struct answer *answer = user;
    answer->tokens[answer->count++] = token;
    return true;
}

static bool on_progress(void *user, u32 done, u32 count)
{
    const struct answer *answer = user;
    (void)count;
    return !answer->cancel_at || done < answer->cancel_at;
}

static enum error_code ask(struct engine *engine, const u32 *prompt, u32 count, u32 tokens,
                           struct answer *answer)
{
    const struct engine_request request = {.prompt = prompt,
                                           .prompt_count = count,
                                           .max_tokens = tokens,
                                           .sampling = {.top_p = 1, .repetition = 1},
                                           .on_token = on_token,
                                           .on_progress = on_progress,
                                           .user = answer};
    struct error error = {0};
    answer->count = 0;
    if (engine_generate(engine, &request, &answer->result, &error))
        return error.code;
    const size_t bytes = engine_model(engine)->config.vocab * sizeof(float);
    assert_true(bytes <= sizeof answer->logits);
    if (device_copy_out(engine->device, NULL, answer->logits, engine->buffers.logits, bytes,
                        &error) ||
        device_sync(engine->device, NULL, &error))
        fail_msg("%s", error.text);
    return ERROR_NONE;
}

/* Both engines answer alike, and `cached` tokens of warm's prompt were there. */
static void same(struct pair *pair, const u32 *prompt, u32 count, u32 tokens, u32 cached)
{
    static struct answer warm, cold;
    warm.cancel_at = cold.cancel_at = 0;
    assert_int_equal(ask(pair->warm, prompt, count, tokens, &warm), ERROR_NONE);
    assert_int_equal(ask(pair->cold, prompt, count, tokens, &cold), ERROR_NONE);
    if (warm.result.cached_tokens != cached)
        fail_msg("prompt of %u: %u tokens were cached, expected %u", count,
                 warm.result.cached_tokens, cached);
    assert_int_equal(cold.result.cached_tokens, 0);
    assert_int_equal(warm.count, cold.count);
    assert_memory_equal(warm.tokens, cold.tokens, warm.count * sizeof *warm.tokens);
    if (memcmp(warm.logits, cold.logits, sizeof warm.logits) != 0)
        fail_msg("prompt of %u from %u: other logits than from nothing", count, cached);
    assert_int_equal(warm.result.rounds, cold.result.rounds);
    assert_int_equal(warm.result.accepted, cold.result.accepted);
}

/* The first `count` tokens of ids, then others, seed apart. */
static const u32 *fork_at(u32 count, u32 seed)
{
    static u32 prompt[MOST];
    memcpy(prompt, ids, sizeof prompt);
    for (u32 i = count; i < MOST; i++)
        prompt[i] = (ids[i] + 1 + seed) % 4000;
    return prompt;
}

/* Of warm alone: how many tokens of a prompt were there. */
static void reuses(struct engine *warm, const u32 *prompt, u32 count, u32 cached)
{
    static struct answer answer;
    assert_int_equal(ask(warm, prompt, count, 1, &answer), ERROR_NONE);
    if (answer.result.cached_tokens != cached)
        fail_msg("prompt of %u: %u tokens were cached, expected %u", count,
                 answer.result.cached_tokens, cached);
}

/* ---- where prompts go on */

static void check_multiples(struct engine_options options, u32 longest, u64 snapshots)
{
    options.piece = 256;
    struct pair pair = open_pair(options, snapshots);
    reuses(pair.warm, ids, longest, 0);
    same(&pair, ids, longest, 1, (longest - 1) / 256 * 256);
    for (u32 at = (longest - 1) / 256 * 256; at; at -= 256)
        same(&pair, fork_at(at + 40, 0), at + 77, 1, at);
    same(&pair, ids, 257, 1, 256); /* all but its last token */
    same(&pair, ids, 256, 1, 0);
    close_pair(&pair);
}

/* In long runs `most` tokens, else what has one multiple. */
static u32 up_to(u32 most)
{
    return getenv("ELPIS_TEST_FULL") ? most : 300;
}

static void test_multiples(void **state)
{
    (void)state;
    check_multiples((struct engine_options){0}, getenv("ELPIS_TEST_FULL") ? 1100 : 600, PLENTY);
}

/* Long runs alone: what the other cases have with another cache, or another kind of prompt. */
static void in_long_runs(void)
{
    if (!getenv("ELPIS_TEST_FULL"))
        skip();
}

static void test_multiples_kv16(void **state)
{
    (void)state;
    in_long_runs();
    check_multiples((struct engine_options){.kv_bits = 16}, 600, PLENTY);
}

static void test_multiples_exact(void **state)
{
    (void)state;
    in_long_runs();
    check_multiples((struct engine_options){.prefill = ENGINE_PREFILL_EXACT}, 600, PLENTY);
}

static void test_multiples_draft(void **state)
{
    (void)state;
    check_multiples((struct engine_options){.draft = DRAFT}, up_to(600), PLENTY);
}

/* Every multiple of 256 below 2,320 tokens of a model that is too large for other runs. */
static void test_multiples_of_another_model(void **state)
{
    (void)state;
    const char *folder = getenv("ELPIS_TEST_MODEL");
    if (!folder)
        skip();
    model = folder;
    check_multiples((struct engine_options){0}, 2320, 8ull << 30);
    model = MODEL;
}

/* One piece holds these prompts: it is cut at its last multiple, and where prompts part. */
static void test_long_pieces(void **state)
{
    (void)state;
    struct pair pair = open_pair((struct engine_options){0}, PLENTY);
    reuses(pair.warm, ids, 600, 0);
    same(&pair, ids, 700, 1, 512);
    same(&pair, fork_at(300, 0), 600, 1, 0); /* shares 300, of which no snapshot is there yet */
    same(&pair, fork_at(300, 9), 400, 1, 256);
    reuses(pair.warm, fork_at(10, 3), 300, 0);
    reuses(pair.warm, ids, 300, 0);
    close_pair(&pair);
}

/* ---- what happens between */

/* The next turn of a chat: the prompt, its answer, more. Decoded tokens are computed again. */
static void check_chat(struct engine_options options)
{
    static struct answer first;
    static u32 next[MOST];
    struct pair pair = open_pair(options, PLENTY);
    memcpy(next, ids, sizeof next);
    assert_int_equal(ask(pair.warm, ids, 500, 60, &first), ERROR_NONE);
    memcpy(next + 500, first.tokens, first.count * sizeof *next);
    reuses(pair.warm, next, 520, 256);
    same(&pair, next, 560, 8, 512);
    same(&pair, fork_at(300, 5), 320, 1, 256);
    same(&pair, next, 400, 1, 256);
    close_pair(&pair);
}

static void test_chat(void **state)
{
    (void)state;
    in_long_runs();
    check_chat((struct engine_options){0});
}

static void test_chat_draft(void **state)
{
    (void)state;
    check_chat((struct engine_options){.draft = DRAFT});
    if (getenv("ELPIS_TEST_FULL"))
        check_chat((struct engine_options){
            .draft = DRAFT, .prefill = ENGINE_PREFILL_EXACT, .kv_bits = 16});
}

static void test_cancelled(void **state)
{
    (void)state;
    static struct answer answer = {.cancel_at = 512};
    struct pair pair = open_pair((struct engine_options){.piece = 256}, PLENTY);
    assert_int_equal(ask(pair.warm, ids, 1000, 1, &answer), ERROR_CANCELLED);
    same(&pair, ids, 600, 1, 512);
    answer.cancel_at = 1; /* at its beginning: another prompt took nothing but dropped the rest */
    assert_int_equal(ask(pair.warm, fork_at(300, 0), 1000, 1, &answer), ERROR_CANCELLED);
    assert_int_equal(answer.result.cached_tokens, 256);
    same(&pair, ids, 400, 1, 256);
    close_pair(&pair);
}

/* An evaluation writes the same cache. */
static void test_evaluation_between(void **state)
{
    (void)state;
    struct engine *warm = open_engine((struct engine_options){0}, PLENTY);
    const struct engine_eval eval = {.ids = fork_at(0, 1), .count = 20, .rows = 1};
    struct engine_eval_result result;
    struct error error = {0};
    reuses(warm, ids, 300, 0);
    if (engine_evaluate(warm, &eval, &result, &error))
        fail_msg("%s", error.text);
    memory_free(result.logits);
    memory_free(result.hidden);
    reuses(warm, ids, 300, 0);
    reuses(warm, ids, 300, 256);
    engine_close(warm);
}

/* ---- slots */

static u64 snapshot_bytes(void)
{
    struct engine *engine = open_engine((struct engine_options){0}, 0);
    const struct state_sizes sizes = state_sizes(engine);
    engine_close(engine);
    return sizes.recurrent + sizes.windows;
}

static void test_few_slots(void **state)
{
    (void)state;
    const u64 bytes = snapshot_bytes();
    const struct engine_options options = {.piece = 256};
    struct engine *warm = open_engine(options, 2 * bytes + 1);
    reuses(warm, ids, 1100, 0); /* 256 512 -> 512 768 -> 512 1024: the nearest above another goes */
    reuses(warm, ids, 1030, 1024);
    reuses(warm, fork_at(800, 0), 810, 512);
    engine_close(warm);
    warm = open_engine(options, bytes);
    reuses(warm, ids, 520, 0);
    reuses(warm, ids, 520, 512);
    engine_close(warm);
    warm = open_engine(options, bytes - 1); /* none */
    reuses(warm, ids, 260, 0);
    reuses(warm, ids, 260, 0);
    engine_close(warm);
}

static void read_ids(void)
{
    struct buffer text = {0};
    struct error error = {0};
    if (file_read(&text, "tests/data/long_ids.txt", 1 << 20, &error))
        exit(1);
    char *at = text.data;
    for (u32 i = 0; i < MOST; i++)
        ids[i] = (u32)strtoul(at, &at, 10);
    buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_slots),
        cmocka_unit_test(test_evaluation_between),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_multiples),
        cmocka_unit_test(test_multiples_kv16),
        cmocka_unit_test(test_multiples_exact),
        cmocka_unit_test(test_multiples_draft),
        cmocka_unit_test(test_multiples_of_another_model),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_chat_draft),
    };
    read_ids();
    return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
