/* test_trial.c - core/tune/trial.c: rounds over made-up samples, and launches that are counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "tune/trial.h"

enum { CANDIDATES = 4, ROUNDS = 40 };

/* Candidate i takes base[i] microseconds, and up to `spread` more in turn. */
struct made_up {
    double base[CANDIDATES];
    double spread;
    u32 fails;                /* this candidate fails; CANDIDATES: none */
    u32 calls[CANDIDATES];    /* so far */
    u32 order[8][CANDIDATES]; /* of the first rounds */
    u32 in_order;
};

static int made_up_sample(void *context, u32 candidate, double *seconds, bool *failed,
                          struct error *error)
{
    struct made_up *m = context;
    (void)error;
    if (m->in_order < COUNT_OF(m->order) * CANDIDATES)
        m->order[m->in_order / CANDIDATES][m->in_order % CANDIDATES] = candidate;
    m->in_order++;
    *failed = candidate == m->fails;
    *seconds = m->base[candidate] + m->spread * (m->calls[candidate]++ % 5) / 4;
    return 0;
}

static void race(struct made_up *m, const struct trial_options *options,
                 struct trial_result results[CANDIDATES])
{
    const struct trial_source source = {made_up_sample, m};
    struct error error = {0};
    assert_int_equal(trial_rounds(&source, CANDIDATES, options, results, &error), 0);
}

static void the_fastest_wins_and_ends_the_trial(void **state)
{
    (void)state;
    struct made_up m = {.base = {30, 20, 10, 40}, .spread = 4, .fails = CANDIDATES};
    const struct trial_options options = {0};
    struct trial_result results[CANDIDATES];
    race(&m, &options, results);
    assert_int_equal(trial_best(results, CANDIDATES), 2);
    for (u32 i = 0; i < CANDIDATES; i++) {
        assert_int_equal(results[i].samples, TRIAL_STAGE);
        assert_int_equal(results[i].dropped, i != 2);
    }
    /* of 10, 11, 12, 13, 14 */
    assert_true(results[2].low == 11 && results[2].median == 12 && results[2].high == 13);
    assert_true(trial_beats(&results[2], &results[1]));
    assert_false(trial_beats(&results[1], &results[2]));
}

static void who_may_be_as_good_stays(void **state)
{
    (void)state;
    struct made_up m = {.base = {30, 11, 10, 40}, .spread = 4, .fails = CANDIDATES};
    const struct trial_options options = {.rounds = ROUNDS};
    struct trial_result results[CANDIDATES];
    race(&m, &options, results);
    assert_int_equal(trial_best(results, CANDIDATES), 2);
    assert_false(trial_beats(&results[2], &results[1]));
    assert_int_equal(results[1].samples, ROUNDS);
    assert_int_equal(results[2].samples, ROUNDS);
    assert_int_equal(results[0].samples, TRIAL_STAGE);
    assert_true(results[0].dropped && results[3].dropped && !results[1].dropped);
}

static void the_first_is_kept_on_request(void **state)
{
    (void)state;
    struct made_up m = {.base = {30, 11, 10, 40}, .spread = 4, .fails = CANDIDATES};
    const struct trial_options options = {.rounds = ROUNDS, .keep_first = true};
    struct trial_result results[CANDIDATES];
    race(&m, &options, results);
    assert_false(results[0].dropped);
    assert_int_equal(results[0].samples, ROUNDS);
    assert_int_equal(results[3].samples, TRIAL_STAGE);
}

/* Candidate 1 saves far less than the spread, in every round; 2 and 3 in as many rounds as not. */
static int drifting_sample(void *context, u32 candidate, double *seconds, bool *failed,
                           struct error *error)
{
    u32 *calls = context;
    const u32 round = calls[candidate]++;
    (void)error;
    *failed = false;
    *seconds = 100 + round % 10 - (candidate == 1 ? 0.1 : 0);
    if (candidate > 1)
        *seconds += (round % 2 ? 0.2 : -0.2) + (candidate == 3 ? -0.1 : 0.1);
    return 0;
}

static void little_that_shows_in_many_rounds_wins(void **state)
{
    (void)state;
    u32 calls[CANDIDATES] = {0};
    const struct trial_source source = {drifting_sample, calls};
    const struct trial_options options = {.rounds = ROUNDS, .keep_all = true};
    struct trial_result results[CANDIDATES];
    struct error error = {0};
    assert_int_equal(trial_rounds(&source, CANDIDATES, &options, results, &error), 0);
    const u32 faster[CANDIDATES] = {0, ROUNDS, ROUNDS / 2, ROUNDS / 2};
    for (u32 i = 0; i < CANDIDATES; i++)
        assert_int_equal(results[i].faster, faster[i]);
    assert_false(trial_beats(&results[1], &results[0]));
    assert_true(trial_wins(&results[1], &results[0]));
    assert_false(trial_wins(&results[2], &results[0]));
    assert_false(trial_wins(&results[3], &results[0]));
    assert_false(trial_wins(&results[0], &results[0]));
}

static void a_win_needs_more_rounds_than_chance_gives(void **state)
{
    (void)state;
    const struct trial_result standard = {.median = 10, .samples = 100};
    struct trial_result tuned = {.median = 9, .samples = 100, .faster = 60};
    assert_true(trial_wins(&tuned, &standard));
    tuned.faster = 59;
    assert_false(trial_wins(&tuned, &standard));
    tuned.faster = 10; /* as far from a half, on the other side */
    assert_false(trial_wins(&tuned, &standard));
    tuned = (struct trial_result){.median = 10, .samples = 100, .faster = 90};
    assert_false(trial_wins(&tuned, &standard));
}

static void on_request_all_rounds_are_run(void **state)
{
    (void)state;
    struct made_up m = {.base = {30, 20, 10, 40}, .spread = 4, .fails = CANDIDATES};
    const struct trial_options options = {.rounds = ROUNDS, .keep_all = true};
    struct trial_result results[CANDIDATES];
    race(&m, &options, results);
    for (u32 i = 0; i < CANDIDATES; i++)
        assert_true(results[i].samples == ROUNDS && !results[i].dropped);
}

static void who_fails_is_out(void **state)
{
    (void)state;
    struct made_up m = {.base = {30, 11, 10, 40}, .spread = 4, .fails = 2};
    const struct trial_options options = {.rounds = ROUNDS};
    struct trial_result results[CANDIDATES];
    race(&m, &options, results);
    assert_true(results[2].failed);
    assert_int_equal(results[2].samples, 0);
    assert_int_equal(m.calls[2], 1);
    assert_int_equal(trial_best(results, CANDIDATES), 1);
}

static void rounds_are_shuffled_and_whole(void **state)
{
    (void)state;
    struct made_up m = {.base = {10, 10, 10, 10}, .spread = 4, .fails = CANDIDATES};
    const struct trial_options options = {.rounds = COUNT_OF(m.order), .seed = 7};
    struct trial_result results[CANDIDATES];
    bool differs = false;
    race(&m, &options, results);
    for (u32 round = 0; round < COUNT_OF(m.order); round++) {
        u32 seen = 0;
        for (u32 i = 0; i < CANDIDATES; i++)
            seen |= 1u << m.order[round][i];
        assert_int_equal(seen, (1u << CANDIDATES) - 1);
        differs |= memcmp(m.order[round], m.order[0], sizeof m.order[0]) != 0;
    }
    assert_true(differs);
}

static bool three_times(void *user)
{
    return ++*(u32 *)user <= 3;
}

static void the_caller_ends_it(void **state)
{
    (void)state;
    struct made_up m = {.base = {10, 10, 10, 10}, .spread = 4, .fails = CANDIDATES};
    u32 asked = 0;
    const struct trial_options options = {.go_on = three_times, .user = &asked};
    struct trial_result results[CANDIDATES];
    race(&m, &options, results);
    assert_int_equal(results[0].samples, 3);
}

/* ---- launches */

struct counted {
    u32 launches, refused;
    bool refuses;
};

static int count_launch(void *context, struct error *error)
{
    struct counted *counted = context;
    if (counted->refuses) {
        counted->refused++;
        return error_set(error, ERROR_DEVICE, "no room on this device");
    }
    counted->launches++;
    return 0;
}

static void launches_are_samples_and_a_warm_up(void **state)
{
    (void)state;
    struct counted counted[2] = {{.refuses = false}, {.refuses = true}};
    const struct trial_candidate candidates[] = {{count_launch, &counted[0]},
                                                 {count_launch, &counted[1]}};
    const struct device_options host = {.device = "host", .host_threads = 1};
    const struct trial_options options = {.rounds = 7};
    struct trial_result results[2];
    struct error error = {0};
    struct device *device;
    struct trial *trial;
    assert_int_equal(device_open(&device, &host, &error), 0);
    assert_int_equal(trial_open(&trial, device, &error), 0);
    assert_int_equal(trial_flush_bytes(trial), 0);
    assert_int_equal(trial_run(trial, candidates, 2, &options, results, &error), 0);
    assert_int_equal(counted[0].launches, 2 + results[0].samples * results[0].launches);
    assert_int_equal(results[0].samples, TRIAL_STAGE); /* it is alone: decided at the first stage */
    assert_true(results[1].failed);
    assert_string_equal(results[1].reason.text, "no room on this device");
    assert_int_equal(counted[1].refused, 1);
    trial_close(trial);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_wins_and_ends_the_trial),
        cmocka_unit_test(who_may_be_as_good_stays),
        cmocka_unit_test(the_first_is_kept_on_request),
        cmocka_unit_test(little_that_shows_in_many_rounds_wins),
        cmocka_unit_test(a_win_needs_more_rounds_than_chance_gives),
        cmocka_unit_test(on_request_all_rounds_are_run),
        cmocka_unit_test(who_fails_is_out),
        cmocka_unit_test(rounds_are_shuffled_and_whole),
        cmocka_unit_test(the_caller_ends_it),
        cmocka_unit_test(launches_are_samples_and_a_warm_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
