/* test_calibrate.c - the fit of a calibration against samples whose temperature and recall are
 * known, and the samples themselves against what rounds accepted (core/engine/calibrate.c).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"

#define MODEL "tests/models/elpis-tiny"
#define DRAFT "tests/models/elpis-tiny-dflash2"

enum { CANDIDATES = 16, SAMPLES = 6000 };

static double uniform(void)
{
    static u64 state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

static const struct draft_calibration start = {.temperature = {1, 1, 1, 1, 1, 1, 1},
                                               .recall = {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9}};

/* Scores spread over some nats; the right one drawn from their softmax at the temperature. */
static struct calibration_sample draw_sample(u32 depth, u32 count, double temperature,
                                             double recall)
{
    struct calibration_sample sample = {.depth = depth, .count = count, .right = -1};
    double sum = 0;
    for (u32 i = 0; i < count; i++) {
        sample.scores[i] = (float)(6 * uniform() - 0.3 * i);
        sum += exp(sample.scores[i] / temperature);
    }
    if (uniform() >= recall)
        return sample;
    double left = uniform() * sum;
    for (u32 i = 0; i < count && left >= 0; i++) {
        left -= exp(sample.scores[i] / temperature);
        sample.right = (i32)i;
    }
    return sample;
}

/* Mean -ln of the right candidate's probability, from the definition. */
static double surprise(const struct calibration_sample *samples, size_t count, u32 depth,
                       double temperature)
{
    double total = 0;
    u32 hits = 0;
    for (size_t i = 0; i < count; i++) {
        const struct calibration_sample *s = &samples[i];
        double sum = 0;
        if (s->depth != depth || s->right < 0)
            continue;
        for (u32 j = 0; j < s->count; j++)
            sum += exp(s->scores[j] / temperature);
        total -= log(exp(s->scores[s->right] / temperature) / sum);
        hits++;
    }
    return total / hits;
}

static void a_fit_finds_what_samples_were_drawn_with(void **state)
{
    static const double temperatures[] = {0.25, 0.5, 0.8, 1, 1.6, 3, 8};
    static const double recalls[] = {0.99, 0.9, 0.5, 0.97, 0.8, 0.93, 1};
    const size_t count = (size_t)SAMPLES * DRAFT_DEPTHS;
    struct calibration_sample *samples = memory_alloc(count * sizeof *samples);
    struct calibration_depth depths[DRAFT_DEPTHS];
    (void)state;
    for (size_t i = 0; i < count; i++) {
        const u32 depth = i % DRAFT_DEPTHS;
        samples[i] = draw_sample(depth, CANDIDATES, temperatures[depth], recalls[depth]);
    }
    calibration_fit(samples, count, &start, depths);
    for (u32 d = 0; d < DRAFT_DEPTHS; d++) {
        assert_int_equal(depths[d].samples, SAMPLES);
        assert_true(depths[d].temperature_fitted && depths[d].recall_fitted);
        if (fabs(log(depths[d].temperature / temperatures[d])) > 0.1)
            fail_msg("depth %u: temperature %g, drawn with %g", d, depths[d].temperature,
                     temperatures[d]);
        assert_true(fabs(depths[d].recall - recalls[d]) <= 0.02);
        assert_true(fabs(depths[d].recall - (depths[d].hits + 1.0) / (SAMPLES + 2)) <= 5e-5);
        /* the minimum, and the two figures of the table */
        const double here = surprise(samples, count, d, depths[d].temperature);
        assert_true(here <= surprise(samples, count, d, depths[d].temperature * 1.01));
        assert_true(here <= surprise(samples, count, d, depths[d].temperature * 0.99));
        assert_true(fabs(here - depths[d].after) <= 1e-9);
        assert_true(fabs(surprise(samples, count, d, 1) - depths[d].before) <= 1e-9);
    }
    memory_free(samples);
}

static void few_samples_keep_what_was(void **state)
{
    struct calibration_sample samples[CALIBRATION_LEAST * 2];
    struct calibration_depth depths[DRAFT_DEPTHS];
    u32 count = 0;
    (void)state;
    for (u32 i = 0; i < CALIBRATION_LEAST - 1; i++) /* depth 0: too few of both */
        samples[count++] = draw_sample(0, CANDIDATES, 2, 1);
    for (u32 i = 0; i < CALIBRATION_LEAST; i++) { /* depth 1: hits too few */
        samples[count] = draw_sample(1, CANDIDATES, 2, 1);
        samples[count].right = i ? samples[count].right : -1;
        count++;
    }
    calibration_fit(samples, count, &start, depths);
    assert_false(depths[0].temperature_fitted || depths[0].recall_fitted);
    assert_true(depths[0].temperature == 1 && depths[0].recall == 0.9);
    assert_true(depths[1].recall_fitted && !depths[1].temperature_fitted);
    assert_true(depths[1].temperature == 1 && depths[1].recall == 0.9091); /* 20 / 22 */
    assert_int_equal(depths[2].samples, 0);
    assert_true(depths[2].temperature == 1 && depths[2].before == 0 && depths[2].after == 0);
}

static void a_draft_that_is_never_wrong_is_not_trusted_without_end(void **state)
{
    struct calibration_sample samples[40];
    struct calibration_depth depths[DRAFT_DEPTHS];
    (void)state;
    for (u32 i = 0; i < COUNT_OF(samples); i++) {
        samples[i] = draw_sample(3, 5, 1, 1); /* rows may be shorter */
        samples[i].right = 0;
        samples[i].scores[0] = 10;
    }
    calibration_fit(samples, COUNT_OF(samples), &start, depths);
    assert_true(fabs(depths[3].temperature - 0.05) <= 1e-4);
    assert_true(depths[3].recall == 0.9762); /* 41 / 42 */
}

/* ---- samples of real rounds */

struct rounds {
    u32 rounds, samples, agreed; /* agreed: drafted tokens of a chain that were right */
    bool agrees;                 /* so far in this round */
    u32 last_depth;
};

/* A chain takes a row's best candidate, so it goes on while that is the right one. */
static void take(void *user, const struct calibration_sample *sample)
{
    struct rounds *rounds = user;
    i32 best = 0;
    if (sample->depth == 0) {
        rounds->rounds++;
        rounds->agrees = true;
    } else {
        assert_int_equal(sample->depth, rounds->last_depth + 1);
    }
    assert_int_equal(sample->count, CANDIDATES);
    for (u32 i = 1; i < sample->count; i++)
        if (sample->scores[i] > sample->scores[best])
            best = (i32)i;
    rounds->agrees = rounds->agrees && best == sample->right;
    rounds->agreed += rounds->agrees;
    rounds->last_depth = sample->depth;
    rounds->samples++;
}

/* Budgets that end at each place of a round: where one token is left, nothing is drafted. */
static void samples_are_what_rounds_accepted(void **state)
{
    static const u32 prompt[] = {4087, 346,  198, 818,  260, 678,  659, 260, 1884, 1831,
                                 528,  1253, 13,  4088, 198, 4087, 348, 198, 4094, 198};
    const struct engine_options options = {
        .device = {.device = "host"}, .context = 512, .draft = DRAFT, .chain = true};
    struct engine *engine = NULL;
    struct error error = {0};
    u32 plain_ends = 0;
    (void)state;
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    for (u32 budget = 38; budget < 38 + ENGINE_ROWS; budget++) {
        struct rounds rounds = {0};
        const struct engine_request request = {.prompt = prompt,
                                               .prompt_count = COUNT_OF(prompt),
                                               .max_tokens = budget,
                                               .sampling = {.top_p = 1, .repetition = 1},
                                               .user = &rounds};
        struct engine_result result;
        if (engine_calibrate(engine, &request, take, &result, &error))
            fail_msg("%s", error.text);
        assert_int_equal(result.completion_tokens, budget);
        assert_in_range(rounds.rounds, result.rounds - 1, result.rounds);
        plain_ends += rounds.rounds < result.rounds;
        /* of the last round one more may be right than the budget let in */
        assert_in_range(rounds.agreed, result.accepted, result.accepted + 1);
        assert_true(rounds.samples >= rounds.agreed);
    }
    assert_in_range(plain_ends, 1, ENGINE_ROWS - 1);
    engine_close(engine);
}

static bool count_token(void *user, u32 token)
{
    (void)token;
    ++*(u32 *)user;
    return true;
}

static void ignore(void *user, const struct calibration_sample *sample)
{
    (void)user, (void)sample;
}

static void a_stop_token_is_a_token_to_predict(void **state)
{
    static const u32 prompt[] = {4087, 346, 198, 702,  292, 220,  18,  19,  1013, 220,
                                 20,   22,  30,  4088, 198, 4087, 348, 198, 4094, 198};
    const struct engine_options options = {
        .device = {.device = "host"}, .context = 512, .draft = DRAFT};
    u32 tokens = 0;
    const u32 stop = 4088;
    const struct engine_request request = {.prompt = prompt,
                                           .prompt_count = COUNT_OF(prompt),
                                           .max_tokens = 100,
                                           .sampling = {.top_p = 1, .repetition = 1},
                                           .stops = &stop,
                                           .stop_count = 1,
                                           .on_token = count_token,
                                           .user = &tokens};
    struct engine_result result;
    struct engine *engine = NULL;
    struct error error = {0};
    (void)state;
    if (engine_open(&engine, MODEL, &options, &error) ||
        engine_calibrate(engine, &request, ignore, &result, &error))
        fail_msg("%s", error.text);
    assert_int_equal(result.finish, FINISH_STOP);
    assert_int_equal(result.completion_tokens, tokens); /* of tiny_greedy.json: 28 with the stop */
    assert_int_equal(tokens, 28);
    engine_close(engine);
}

static void without_a_draft_there_is_nothing(void **state)
{
    const struct engine_options options = {.device = {.device = "host"}, .context = 512};
    const struct engine_request request = {.prompt = &(u32){1}, .prompt_count = 1, .max_tokens = 8};
    struct engine_result result;
    struct engine *engine = NULL;
    struct error error = {0};
    (void)state;
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    assert_null(engine_calibration(engine));
    assert_int_equal(engine_calibrate(engine, &request, ignore, &result, &error), -1);
    assert_int_equal(error.code, ERROR_USAGE);
    engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fit_finds_what_samples_were_drawn_with),
        cmocka_unit_test(few_samples_keep_what_was),
        cmocka_unit_test(a_draft_that_is_never_wrong_is_not_trusted_without_end),
        cmocka_unit_test(samples_are_what_rounds_accepted),
        cmocka_unit_test(a_stop_token_is_a_token_to_predict),
        cmocka_unit_test(without_a_draft_there_is_nothing),
    };
    return cmocka_run_group_tests_name("engine/calibrate", tests, NULL, NULL);
}
