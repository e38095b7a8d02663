/* test_measure.c - what `elpis bench` asks of the engine (core/engine/measure.c): counts, what is
 * committed, random state in its formats, and that nothing of it is left in later requests. No
 * time is asserted. elpis-tiny on the host device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_private.h"
#include "engine/measure.h"

#define MODEL "tests/models/elpis-tiny"
#define DRAFT "tests/models/elpis-tiny-dflash2"

enum { CONTEXT = 1024, PROMPT = 20, REPLY = 12 };

static struct engine *plain, *drafted;
static u32 repeats_left; /* until go_on says no; 0 = it never does */

static bool go_on(void *user)
{
    (void)user;
    return repeats_left == 0 || --repeats_left > 0;
}

static struct engine *open_engine(const char *draft)
{
    const struct engine_options options = {
        .device = {.device = "host"}, .context = CONTEXT, .draft = draft};
    struct engine *engine = NULL;
    struct error error = {0};
    if (engine_open(&engine, MODEL, &options, &error))
        print_error("%s\n", error.text);
    return engine;
}

static int open_engines(void **state)
{
    (void)state;
    plain = open_engine(NULL);
    drafted = open_engine(DRAFT);
    return plain && drafted ? 0 : -1;
}

static int close_engines(void **state)
{
    (void)state;
    engine_close(plain);
    engine_close(drafted);
    return 0;
}

static void must(int status, const struct error *error)
{
    if (status)
        fail_msg("%s", error->text);
}

static struct measure *start(struct engine *engine, u32 repeats)
{
    const struct measure_options options = {.repeats = repeats, .go_on = go_on};
    struct measure *measure = NULL;
    struct error error = {0};
    repeats_left = 0;
    must(measure_open(&measure, engine, &options, &error), &error);
    return measure;
}

/* ---- requests before and after */

static bool keep(void *user, u32 token)
{
    u32 **next = user;
    *(*next)++ = token;
    return true;
}

static void reply_of(struct engine *engine, u32 tokens[REPLY])
{
    u32 prompt[PROMPT], *next = tokens;
    for (u32 i = 0; i < PROMPT; i++)
        prompt[i] = 100 + 7 * i;
    const struct engine_request request = {.prompt = prompt,
                                           .prompt_count = PROMPT,
                                           .max_tokens = REPLY,
                                           .sampling = {.top_p = 1, .repetition = 1},
                                           .on_token = keep,
                                           .user = &next};
    struct engine_result result;
    struct error error = {0};
    must(engine_generate(engine, &request, &result, &error), &error);
    assert_int_equal(result.completion_tokens, REPLY);
}

/* Everything is measured between two equal requests. */
static void requests_are_what_they_were(void **state)
{
    (void)state;
    struct engine *engines[] = {plain, drafted};
    const struct engine_proposal chain = {.rows = 8, .parent = {0, 0, 1, 2, 3, 4, 5, 6}};
    struct measured_pass *pass = memory_alloc(sizeof *pass);
    struct measured_round *round = memory_alloc(sizeof *round);
    struct measured_phases *phases = memory_alloc(sizeof *phases);
    struct measured_prompt *prompt = memory_alloc(sizeof *prompt);
    for (u32 i = 0; i < COUNT_OF(engines); i++) {
        u32 before[REPLY], after[REPLY];
        struct error error = {0};
        reply_of(engines[i], before);
        struct measure *m = start(engines[i], 1);
        must(measure_phases(m, 512, 8, 4, phases, &error), &error);
        must(measure_verify(m, CONTEXT, &chain, pass, &error), &error);
        must(measure_rounds(m, 512, 4, round, &error), &error);
        must(measure_prompt(m, 300, prompt, &error), &error);
        reply_of(engines[i], after);
        measure_close(m);
        assert_memory_equal(before, after, sizeof before);
    }
    memory_free(pass);
    memory_free(round);
    memory_free(phases);
    memory_free(prompt);
}

/* ---- the state that is made up */

static void check_halves(dptr from, u64 count, float least, float most)
{
    const u16 *halves = (const u16 *)(uintptr_t)from; /* the host device's own memory */
    for (u64 i = 0; i < count; i++) {
        const u32 exponent = halves[i] >> 10 & 31, mantissa = halves[i] & 0x3ff;
        const double value = ldexp(1 + mantissa / 1024.0, (int)exponent - 15);
        if (!(value >= least && value < most))
            fail_msg("value %llu is %g", (unsigned long long)i, value);
    }
}

static bool all_zero(dptr from, u64 bytes)
{
    const char *data = (const char *)(uintptr_t)from;
    return data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

static void the_state_is_random_in_its_formats(void **state)
{
    (void)state;
    struct measured_pass *pass = memory_alloc(sizeof *pass);
    struct measure *m = start(drafted, 1);
    struct error error = {0};
    const struct engine_proposal one = {.rows = 1};
    dptr keys, values;
    u64 bytes;
    u32 layers = 0;
    must(measure_verify(m, CONTEXT, &one, pass, &error), &error);
    assert_int_equal(drafted->position, CONTEXT - 8);
    for (u32 i = 0; i < drafted->model->config.layers; i++) {
        const struct kv_store *cache = &drafted->layers[i].cache;
        if (!drafted->layers[i].attention)
            continue;
        check_halves(cache->k_scales, CONTEXT * 8, 0.25f, 2);
        check_halves(cache->v_scales, CONTEXT * 8, 0.25f, 2);
        for (u32 slot = 0; slot < CONTEXT; slot += 64) { /* a token: 8 groups of 3 words */
            assert_false(all_zero(cache->k_codes + slot * 96, 96));
            assert_false(all_zero(cache->v_codes + slot * 96, 96));
        }
    }
    for (; drafter_memory(drafted, layers, &keys, &values, &bytes); layers++) {
        check_halves(keys, bytes / 2, 1.0f / 128, 1);
        check_halves(values, bytes / 2, 1.0f / 128, 1);
    }
    assert_int_equal(layers, 2);
    const float *floats = (const float *)(uintptr_t)drafted->gdn.state;
    double squares = 0;
    for (u32 i = 0; i < 6 * 6 * 128 * 128; i++) {
        assert_true(floats[i] >= -0.0625f && floats[i] <= 0.0625f);
        squares += (double)floats[i] * floats[i];
    }
    assert_true(squares > 100); /* 589,824 values of variance 1/768 give 768 */
    assert_true(pass->finite);
    measure_close(m);
    memory_free(pass);
}

/* ---- what is counted */

static void passes(void **state)
{
    (void)state;
    struct measured_pass *pass = memory_alloc(sizeof *pass);
    struct measure *m = start(drafted, 3);
    struct error error = {0};
    const struct engine_proposal tree = {.rows = 8, .parent = {0, 0, 0, 1, 1, 2, 4, 5}};
    const struct traffic_case of = {drafted->model, drafted->draft, 3, 504};
    assert_true(measure_copy_bandwidth(m) > 1e6);
    assert_non_null(strstr(measure_no_sensors(m), "host device"));
    assert_int_equal(measure_kv_bits(m), 3);
    must(measure_verify(m, 512, &tree, pass, &error), &error);
    assert_int_equal(pass->seconds.count, 3);
    assert_true(pass->finite);
    assert_int_equal(pass->readings.count, 0);
    assert_int_equal(traffic_bytes(pass->traffic), traffic_bytes(traffic_verify(&of, 8, false)));
    assert_int_equal(drafted->round_host[ROUND_ROWS], 8);
    assert_int_equal(drafted->round_host[ROUND_BASE], 504);
    assert_int_equal(drafted->round_host[ROUND_PARENTS + 4], 1);
    must(measure_draft(m, 512, pass, &error), &error);
    assert_int_equal(pass->seconds.count, 3);
    assert_int_equal(traffic_bytes(pass->traffic), traffic_bytes(traffic_draft(&of)));
    must(measure_commit(m, 512, 5, pass, &error), &error);
    assert_int_equal(pass->seconds.count, 3);
    assert_int_equal(traffic_bytes(pass->traffic), traffic_bytes(traffic_commit(&of, 5)));
    assert_int_equal(drafted->commit_host[ROUND_ROWS], 5);
    assert_int_equal(drafted->commit_host[ROUND_BASE], 504);
    assert_int_equal(drafted->position, 504);
    measure_close(m);
    memory_free(pass);
}

static void rounds(void **state)
{
    (void)state;
    struct measured_round *round = memory_alloc(sizeof *round);
    struct error error = {0};
    struct measure *m = start(drafted, 4);
    must(measure_rounds(m, 512, 6, round, &error), &error);
    assert_int_equal(round->wall.count, 4);
    assert_int_equal(round->gap.count, 4);
    for (u32 i = 0; i < 4; i++) {
        const double device = round->draft.values[i] + round->verify.values[i] +
                              round->commit.values[i];
        assert_true(round->draft.values[i] > 0 && round->verify.values[i] > 0 &&
                    round->commit.values[i] > 0);
        assert_true(fabs(round->wall.values[i] - device - round->gap.values[i]) < 1e-9);
        assert_true(round->gap.values[i] >= 0); /* nothing overlaps on the host device */
    }
    assert_true(round->rows > 1 && round->rows <= 8);
    assert_int_equal(round->recomputed, 0);
    assert_int_equal(drafted->commit_host[ROUND_ROWS], 6);
    assert_int_equal(drafted->position, 504);
    measure_close(m);
    m = start(plain, 2);
    must(measure_rounds(m, 512, 6, round, &error), &error);
    const struct traffic_case of = {plain->model, NULL, 3, 504};
    assert_int_equal(round->wall.count, 2);
    assert_true(round->rows == 1);
    assert_int_equal(plain->round_host[ROUND_KEEP], 1); /* the pass is its own commit */
    assert_int_equal(traffic_bytes(round->traffic), traffic_bytes(traffic_verify(&of, 1, true)));
    measure_close(m);
    memory_free(round);
}

static void phases(void **state)
{
    (void)state;
    struct measured_phases *parts = memory_alloc(sizeof *parts);
    struct engine *engines[] = {plain, drafted};
    for (u32 i = 0; i < COUNT_OF(engines); i++) {
        struct error error = {0};
        struct measure *m = start(engines[i], 2);
        double sum = 0;
        must(measure_phases(m, 512, 8, 4, parts, &error), &error);
        for (u32 phase = 0; phase < MEASURE_PHASES; phase++) {
            const bool of_prompt = (phase >= PHASE_TRANSFORM && phase <= PHASE_PREPARE) ||
                                   phase == PHASE_FIRST;
            const bool of_target = phase <= PHASE_SAMPLER && phase != PHASE_TAP;
            assert_non_null(measure_phase_name(phase));
            if (parts->phase[phase].count != (!of_prompt && (of_target || i == 1) ? 2u : 0u))
                fail_msg("%s: %u times", measure_phase_name(phase), parts->phase[phase].count);
            sum += parts->phase[phase].values[0];
        }
        assert_true(fabs(sum - parts->whole.values[0]) < 1e-9);
        assert_false(engines[i]->phases);
        assert_null(engines[i]->measure);
        measure_close(m);
    }
    assert_null(measure_phase_name(MEASURE_PHASES));
    memory_free(parts);
}

static void prompts(void **state)
{
    (void)state;
    struct measured_prompt *prompt = memory_alloc(sizeof *prompt);
    struct error error = {0};
    struct measure *m = start(drafted, 2);
    must(measure_prompt(m, CONTEXT, prompt, &error), &error); /* fills the context to the end */
    assert_in_range(prompt->prefill.count, 1, 2);             /* 1 on a slow machine */
    assert_int_equal(prompt->first.count, prompt->prefill.count);
    assert_true(prompt->first.values[0] > prompt->prefill.values[0]);
    assert_true(prompt->finite);
    assert_int_equal(drafted->position, CONTEXT - 1);
    must(measure_prompt(m, 1, prompt, &error), &error);
    assert_int_equal(prompt->first.count, 2);
    measure_close(m);
    memory_free(prompt);
}

/* Sums over the pieces of a prompt that fills the context, and nothing of it is left. */
static void prompt_phases(void **state)
{
    static const bool of_prompt[PHASE_COUNT] = {
        [PHASE_EMBED] = true,     [PHASE_TRANSFORM] = true, [PHASE_WEIGHTS] = true,
        [PHASE_PRODUCT] = true,   [PHASE_RESULT] = true,    [PHASE_GDN_INPUT] = true,
        [PHASE_GDN_CHUNK] = true, [PHASE_GDN_SCAN] = true,  [PHASE_PREPARE] = true,
        [PHASE_ATTENTION] = true, [PHASE_FIRST] = true};
    (void)state;
    struct measured_phases *parts = memory_alloc(sizeof *parts);
    struct engine *engines[] = {plain, drafted};
    for (u32 i = 0; i < COUNT_OF(engines); i++) {
        struct error error = {0};
        struct measure *m = start(engines[i], 2);
        const u32 tokens = i == 1 ? CONTEXT : 300;
        double sum = 0;
        must(measure_prompt_phases(m, tokens, parts, &error), &error);
        for (u32 phase = 0; phase < MEASURE_PHASES; phase++) {
            const bool of_draft = i == 1 && (phase == PHASE_TAP || phase == PHASE_FOLLOW);
            const u32 times = of_prompt[phase] || of_draft ? parts->whole.count : 0;
            if (parts->phase[phase].count != times)
                fail_msg("%s: %u times", measure_phase_name(phase), parts->phase[phase].count);
            sum += parts->phase[phase].values[0];
        }
        assert_in_range(parts->whole.count, 1, 2);
        assert_true(fabs(sum - parts->whole.values[0]) < 1e-9);
        assert_int_equal(engines[i]->position, tokens - 1);
        assert_false(engines[i]->phases);
        assert_null(engines[i]->measure);
        repeats_left = 1;
        must(measure_prompt_phases(m, 300, parts, &error), &error);
        assert_int_equal(parts->whole.count, 0);
        repeats_left = 0;
        measure_close(m);
    }
    memory_free(parts);
}

/* Replies to the context's end, each to another prompt. */
static void whole_requests(void **state)
{
    (void)state;
    struct measured_request *request = memory_alloc(sizeof *request);
    struct error error = {0};
    struct measure *m = start(drafted, 2);
    u32 ids[CONTEXT - REPLY];
    measure_random_ids(m, ids, COUNT_OF(ids));
    const u32 first = ids[0], second = ids[1];
    must(measure_request(m, ids, COUNT_OF(ids), REPLY, request, &error), &error);
    assert_in_range(request->prefill.count, 1, 2);
    assert_int_equal(request->round.count, request->prefill.count);
    assert_true(request->prefill.values[0] > 0 && request->round.values[0] > 0);
    assert_int_equal(ids[0], (first + 1 + request->round.count) % drafted->valid_vocab);
    assert_int_equal(ids[1], second);
    assert_int_equal(measure_request(m, ids, COUNT_OF(ids), REPLY + 1, request, &error), -1);
    assert_non_null(strstr(error.text, "exceeds the context"));
    assert_int_equal(measure_request(m, ids, 4, 0, request, &error), -1);
    measure_close(m);
    memory_free(request);
}

static void stopping(void **state)
{
    (void)state;
    struct measured_pass *pass = memory_alloc(sizeof *pass);
    struct measured_prompt *prompt = memory_alloc(sizeof *prompt);
    const struct engine_proposal one = {.rows = 1};
    struct error error = {0};
    struct measure *m = start(plain, 100);
    repeats_left = 3;
    must(measure_verify(m, 64, &one, pass, &error), &error);
    assert_int_equal(pass->seconds.count, 3);
    repeats_left = 1;
    must(measure_prompt(m, 300, prompt, &error), &error);
    assert_int_equal(prompt->prefill.count, 0);
    assert_int_equal(prompt->first.count, 0);
    measure_close(m);
    memory_free(pass);
    memory_free(prompt);
}

static void refusals(void **state)
{
    (void)state;
    struct measured_pass *pass = memory_alloc(sizeof *pass);
    struct measured_prompt *prompt = memory_alloc(sizeof *prompt);
    const struct engine_proposal one = {.rows = 1}, wrong = {.rows = 3, .parent = {0, 0, 2}};
    struct error error = {0};
    struct measure *m = start(plain, 1);
    assert_int_equal(measure_verify(m, 7, &one, pass, &error), -1);
    assert_string_equal(error.text, "context 7: expected 8 to 1024");
    assert_int_equal(error.code, ERROR_USAGE);
    assert_int_equal(measure_verify(m, CONTEXT + 1, &one, pass, &error), -1);
    assert_int_equal(measure_verify(m, 64, &wrong, pass, &error), -1);
    assert_string_equal(error.text, "tree: a parent is not an earlier row");
    assert_int_equal(measure_prompt(m, CONTEXT + 1, prompt, &error), -1);
    assert_string_equal(error.text, "prompt of 1025 tokens: expected 1 to 1024");
    measure_close(m);
    memory_free(pass);
    memory_free(prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_what_they_were),
        cmocka_unit_test(the_state_is_random_in_its_formats),
        cmocka_unit_test(passes),
        cmocka_unit_test(rounds),
        cmocka_unit_test(phases),
        cmocka_unit_test(prompts),
        cmocka_unit_test(prompt_phases),
        cmocka_unit_test(whole_requests),
        cmocka_unit_test(stopping),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_engines, close_engines);
}
