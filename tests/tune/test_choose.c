/* test_choose.c - core/tune/choose.c and report.c: which tunings are tried, and what of them comes
 * back from a record. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "jit/records.h"
#include "tune/tune_private.h"

enum { WARPS = 4, UNITS = 5, MAPS = 2, LEGAL = WARPS * UNITS * MAPS };

/* All of 4 x 5 x 2 values; the default is the first. */
struct space {
    struct jit_parameter tables[LEGAL][4], *list[LEGAL];
    struct choice choice;
    struct tune_kernel kernel;
};

static void make_space(struct space *space)
{
    static const char *const maps[MAPS] = {"strided", "contiguous"};
    memset(space, 0, sizeof *space);
    for (u32 i = 0; i < LEGAL; i++) {
        const struct jit_parameter table[] = {JIT_TEXT("map", maps[i / (UNITS * WARPS)]),
                                              JIT_NUMBER("unit", i / WARPS % UNITS),
                                              JIT_NUMBER("warps", i % WARPS),
                                              {0}};
        memcpy(space->tables[i], table, sizeof table);
        space->list[i] = space->tables[i];
    }
    space->choice = (struct choice){.legal = space->list, .count = LEGAL, .random = 1};
    space->kernel = (struct tune_kernel){
        .name = "scale", .parameters = space->tables[7], .legal = LEGAL};
}

static u32 distance(const struct tune_kernel *kernel, size_t a, size_t b)
{
    u32 count = 0;
    for (u32 i = 0; i < 3; i++) {
        const struct jit_parameter *x = &kernel->candidates[a].tuning[i],
                                   *y = &kernel->candidates[b].tuning[i];
        count += x->text ? strcmp(x->text, y->text) != 0 : x->number != y->number;
    }
    return count;
}

static void assert_distinct(const struct tune_kernel *kernel)
{
    for (size_t i = 0; i < kernel->count; i++)
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(distance(kernel, i, j), 0);
}

static void few_are_tried_all(void **state)
{
    (void)state;
    struct space space;
    make_space(&space);
    choose_first(&space.kernel, &space.choice, LEGAL + 5);
    assert_int_equal(space.kernel.count, LEGAL);
    assert_distinct(&space.kernel);
    assert_false(choose_next(&space.kernel, &space.choice, LEGAL));
    memory_free(space.kernel.candidates);
}

static void of_many_the_neighbours_come_first(void **state)
{
    (void)state;
    struct space space;
    u32 near = 0;
    make_space(&space);
    choose_first(&space.kernel, &space.choice, 12);
    assert_int_equal(space.kernel.count, 12);
    assert_ptr_equal(space.kernel.candidates[0].tuning, space.list[0]);
    assert_distinct(&space.kernel);
    for (size_t i = 1; i < space.kernel.count; i++)
        near += distance(&space.kernel, 0, i) == 1;
    assert_int_equal(near, WARPS - 1 + UNITS - 1 + MAPS - 1); /* of 11 others 8 */
    memory_free(space.kernel.candidates);
}

static void the_next_are_neighbours_of_the_best(void **state)
{
    (void)state;
    struct space space;
    make_space(&space);
    choose_first(&space.kernel, &space.choice, 12);
    space.kernel.best = 11;
    assert_true(choose_next(&space.kernel, &space.choice, 100));
    assert_distinct(&space.kernel);
    for (size_t i = 12; i < space.kernel.count; i++)
        assert_int_equal(distance(&space.kernel, 11, i), 1);
    assert_false(choose_next(&space.kernel, &space.choice, 100));
    memory_free(space.kernel.candidates);
}

static void a_record_gives_back_what_was_known(void **state)
{
    (void)state;
    struct space space, other;
    const struct device_info device = {.target = "sm_86", .sms = 82, .name = "G"};
    make_space(&space);
    make_space(&other);
    choose_first(&space.kernel, &space.choice, 12);
    struct tune_candidate *candidates = space.kernel.candidates;
    candidates[0] = (struct tune_candidate){
        candidates[0].tuning, TUNE_TIMED, 4e-6, 3e-6, 5e-6, 40, ""};
    candidates[3] = (struct tune_candidate){
        candidates[3].tuning, TUNE_TIMED, 2e-6, 1e-6, 3e-6, 40, ""};
    candidates[4] = (struct tune_candidate){
        candidates[4].tuning, TUNE_SLOWER, 9e-6, 8e-6, 1e-5, 5, ""};
    candidates[5].state = TUNE_REFUSED;
    strcpy(candidates[5].reason, "spills");
    space.kernel.best = 3;
    json_t *record = tune_record(&space.kernel, &device, "0123456789abcdef");
    assert_null(record_refusal(record));
    tune_take_record(&other.kernel, record, &other.choice);
    json_decref(record);
    assert_int_equal(other.kernel.count, 4); /* what waits is not in a record */
    const enum tune_state states[] = {TUNE_TIMED, TUNE_TIMED, TUNE_SLOWER, TUNE_REFUSED};
    for (size_t i = 0; i < COUNT_OF(states); i++)
        assert_int_equal(other.kernel.candidates[i].state, states[i]);
    assert_int_equal(other.kernel.best, 1);
    assert_float_equal(other.kernel.candidates[1].median, 2e-6, 1e-12);
    assert_int_equal(other.kernel.candidates[2].samples, 5);
    assert_string_equal(other.kernel.candidates[3].reason, "spills");
    assert_false(other.kernel.settled);
    memory_free(space.kernel.candidates);
    memory_free(other.kernel.candidates);
}

/* Of a kernel whose candidate 3 won alone; `faster`: what its pass said, of 100 rounds. */
static json_t *record_of_winner(struct space *space, bool asked, u32 faster)
{
    const struct device_info device = {.target = "sm_86", .sms = 82, .name = "G"};
    const struct trial_result
        standard = {.low = 9e-3, .median = 10e-3, .high = 11e-3, .samples = 100},
        tuned = {.low = 8e-3, .median = 9.9e-3, .high = 12e-3, .samples = 100, .faster = faster};
    make_space(space);
    choose_first(&space->kernel, &space->choice, 12);
    for (size_t i = 0; i < space->kernel.count; i++)
        space->kernel.candidates[i] = (struct tune_candidate){
            space->kernel.candidates[i].tuning, TUNE_TIMED, 4e-6, 3e-6, 5e-6, 40, ""};
    space->kernel.candidates[3].median = 2e-6;
    space->kernel.best = 3;
    if (asked)
        confirm_take(&space->kernel, &standard, &tuned);
    return tune_record(&space->kernel, &device, "0123456789abcdef");
}

/* The same from its record. */
static void read_back(struct space *space, json_t *record)
{
    make_space(space);
    assert_null(record_refusal(record));
    tune_take_record(&space->kernel, record, &space->choice);
    json_decref(record);
    assert_int_equal(space->kernel.best, 3);
    memory_free(space->kernel.candidates);
}

static i64 recorded_warps(const json_t *record, const char *field)
{
    return json_integer_value(json_object_get(json_object_get(record, field), "warps"));
}

static void who_won_alone_is_not_used_until_its_pass_is_asked(void **state)
{
    (void)state;
    struct space space, other;
    json_t *record = record_of_winner(&space, false, 0);
    assert_true(confirm_is_pending(&space.kernel));
    assert_true(json_equal(
        json_object_get(record, "alone"),
        json_object_get(json_array_get(json_object_get(record, "candidates"), 3), "tuning")));
    assert_true(json_equal(
        json_object_get(record, "tuning"),
        json_object_get(json_array_get(json_object_get(record, "candidates"), 0), "tuning")));
    assert_null(json_object_get(record, "confirmed"));
    memory_free(space.kernel.candidates);
    read_back(&other, record);
    assert_true(confirm_is_pending(&other.kernel));
    assert_false(other.kernel.settled);
}

static void who_loses_in_its_pass_is_not_used_and_settled(void **state)
{
    (void)state;
    struct space space, other;
    json_t *record = record_of_winner(&space, true, 50);
    assert_true(json_is_false(json_object_get(record, "confirmed")));
    assert_non_null(json_object_get(record, "alone"));
    assert_int_equal(recorded_warps(record, "tuning"), space.list[0][2].number);
    assert_float_equal(json_number_value(json_object_get(record, "us")), 4, 1e-9);
    memory_free(space.kernel.candidates);
    read_back(&other, record);
    assert_true(other.kernel.settled);
    assert_false(confirm_is_pending(&other.kernel));
    assert_int_equal(tune_used(&other.kernel), 0);
    assert_int_equal(other.kernel.in_pass.faster, 50);
    assert_float_equal(other.kernel.in_pass.seconds[0][1], 10e-3, 1e-9);
    assert_float_equal(other.kernel.in_pass.seconds[1][2], 12e-3, 1e-9);
}

static void who_wins_in_its_pass_is_used(void **state)
{
    (void)state;
    struct space space, other;
    json_t *record = record_of_winner(&space, true, 80);
    assert_true(json_is_true(json_object_get(record, "confirmed")));
    assert_null(json_object_get(record, "alone"));
    assert_float_equal(json_number_value(json_object_get(record, "us")), 2, 1e-9);
    memory_free(space.kernel.candidates);
    read_back(&other, record);
    assert_false(other.kernel.settled); /* more may be tried */
    assert_false(confirm_is_pending(&other.kernel));
    assert_int_equal(tune_used(&other.kernel), 3);
    other.kernel.best = 2; /* found later: its pass is to be asked */
    assert_true(confirm_is_pending(&other.kernel));
    assert_int_equal(tune_used(&other.kernel), 0);
}

static void a_record_without_a_pass_is_asked(void **state)
{
    (void)state;
    struct space space, other;
    json_t *record = record_of_winner(&space, true, 80);
    json_object_del(record, "confirmed");
    json_object_del(record, "pass");
    memory_free(space.kernel.candidates);
    read_back(&other, record);
    assert_true(confirm_is_pending(&other.kernel));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_are_tried_all),
        cmocka_unit_test(of_many_the_neighbours_come_first),
        cmocka_unit_test(the_next_are_neighbours_of_the_best),
        cmocka_unit_test(a_record_gives_back_what_was_known),
        cmocka_unit_test(who_won_alone_is_not_used_until_its_pass_is_asked),
        cmocka_unit_test(who_loses_in_its_pass_is_not_used_and_settled),
        cmocka_unit_test(who_wins_in_its_pass_is_used),
        cmocka_unit_test(a_record_without_a_pass_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
