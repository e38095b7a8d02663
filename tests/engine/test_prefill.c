/* test_prefill.c - weights that are made ahead of their product, on a stream of their own
 * (core/engine/prefill.c). elpis-tiny on the host device, through the calls of core/device that
 * this program stands in front of (rules.mk).
 *
 * The host device runs what it is given at once, in order, whatever the stream, so a missing wait
 * gives no wrong number there. Checked, it reports launches of two streams that meet in memory with
 * nothing to order them: a piece must run clean, and each kind of wait that is dropped must be
 * reported, with the matrices' name. That checks the order the launches were given, not what a GPU
 * makes of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "engine/engine_private.h"
#include "engine/measure.h"
#include "whole.h"

#define MODEL "tests/models/elpis-tiny"

enum { VOCAB = 4096, LAYERS = 8, HIDDEN = 256, LINEARS = 8 * 3 + 6 * 3 + 2 * 4, MOST = 300 };

/* ---- between engine and device */

static struct {
    bool drop_first, drop_own; /* waits of the first stream, of any other */
    u32 fail_launch;           /* that one fails, counted from here on; 0: none */
    u32 launches, own;         /* of them on another stream than the first */
    u32 since_own, pending;    /* launches since the last such one; such since their last wait */
    bool waited_first;         /* for the first stream, since the last launch */
    bool left_pending;         /* a stream went while it had launches that nobody waited for */
} calls;

static void watch(void)
{
    memset(&calls, 0, sizeof calls);
}

int __real_device_launch(struct device *device, struct device_stream *stream,
                         struct device_function *function, const u64 *arguments, u32 count,
                         struct error *error);
int __wrap_device_launch(struct device *device, struct device_stream *stream,
                         struct device_function *function, const u64 *arguments, u32 count,
                         struct error *error);
int __wrap_device_launch(struct device *device, struct device_stream *stream,
                         struct device_function *function, const u64 *arguments, u32 count,
                         struct error *error)
{
    if (calls.fail_launch && --calls.fail_launch == 0)
        return error_set(error, ERROR_DEVICE, "planted");
    calls.launches++;
    calls.own += stream != NULL;
    calls.since_own = stream ? 0 : calls.since_own + 1;
    calls.pending += stream != NULL;
    calls.waited_first = false;
    return __real_device_launch(device, stream, function, arguments, count, error);
}

int __real_device_event_wait(struct device *device, struct device_stream *stream,
                             struct device_event *event, struct error *error);
int __wrap_device_event_wait(struct device *device, struct device_stream *stream,
                             struct device_event *event, struct error *error);
int __wrap_device_event_wait(struct device *device, struct device_stream *stream,
                             struct device_event *event, struct error *error)
{
    if (stream ? calls.drop_own : calls.drop_first)
        return 0;
    return __real_device_event_wait(device, stream, event, error);
}

int __real_device_sync(struct device *device, struct device_stream *stream, struct error *error);
int __wrap_device_sync(struct device *device, struct device_stream *stream, struct error *error);
int __wrap_device_sync(struct device *device, struct device_stream *stream, struct error *error)
{
    if (stream)
        calls.pending = 0;
    else
        calls.waited_first = true;
    return __real_device_sync(device, stream, error);
}

void __real_device_stream_destroy(struct device *device, struct device_stream *stream);
void __wrap_device_stream_destroy(struct device *device, struct device_stream *stream);
void __wrap_device_stream_destroy(struct device *device, struct device_stream *stream)
{
    calls.left_pending |= calls.pending != 0 || !calls.waited_first;
    __real_device_stream_destroy(device, stream);
}

/* ---- pieces */

static struct engine *open_engine(bool check)
{
    const struct engine_options options = {
        .device = {.device = "host", .host_check = check}, .context = 1024, .piece = 256};
    struct engine *engine = NULL;
    struct error error = {0};
    watch();
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    watch();
    return engine;
}

static int run(struct engine *engine, u32 count, struct engine_eval_result *result,
               struct error *error)
{
    u32 ids[MOST];
    for (u32 i = 0; i < count; i++)
        ids[i] = (i * 7919 + 13) % VOCAB;
    const struct engine_eval eval = {.ids = ids, .count = count, .rows = 8};
    return engine_evaluate(engine, &eval, result, error);
}

static struct engine_eval_result bits_of(struct engine *engine, u32 count)
{
    struct engine_eval_result result;
    struct error error = {0};
    if (run(engine, count, &result, &error))
        fail_msg("%s", error.text);
    return result;
}

static void assert_same(const struct engine_eval_result *a, const struct engine_eval_result *b,
                        u32 count)
{
    assert_memory_equal(a->logits, b->logits, VOCAB * sizeof(float));
    assert_memory_equal(a->hidden, b->hidden, (size_t)count * LAYERS * HIDDEN * sizeof(float));
}

/* Two pieces, the second one short; then the same with each matrix made in front of its product. */
static void weights_ahead_change_no_bit(void **state)
{
    (void)state;
    struct engine *engine = open_engine(false);
    struct measure *measure = NULL;
    struct error error = {0};
    struct engine_eval_result ahead = bits_of(engine, MOST);
    assert_int_equal(calls.own, 2 * LINEARS);
    if (measure_open(&measure, engine, &(struct measure_options){.repeats = 1}, &error))
        fail_msg("%s", error.text);
    watch();
    engine->measure = measure;
    engine->phases = true;
    struct engine_eval_result serial = bits_of(engine, MOST);
    engine->measure = NULL;
    engine->phases = false;
    assert_int_equal(calls.own, 0);
    assert_same(&ahead, &serial, MOST);
    measure_close(measure);
    release(&ahead);
    release(&serial);
    engine_close(engine);
}

/* Behind the weights of a piece's last linear: its product and its output, at least. */
static void nothing_is_made_behind_a_piece(void **state)
{
    (void)state;
    struct engine *engine = open_engine(false);
    struct error error = {0};
    const u32 ids[] = {5, 6, 7};
    if (state_reset(engine, &error) || prefill_piece(engine, ids, 3, NULL, &error))
        fail_msg("%s", error.text);
    assert_int_equal(calls.own, LINEARS);
    assert_in_range(calls.since_own, 2, 8);
    engine_close(engine);
    assert_false(calls.left_pending);
}

/* At every launch of a piece: the weights on their way are waited for, and the next run has the
 * bits of one that nothing came before. */
static void a_piece_may_fail(void **state)
{
    (void)state;
    enum { COUNT = 20 };
    struct engine *engine = open_engine(false);
    struct engine_eval_result whole = bits_of(engine, COUNT);
    for (u32 at = 1; at < 40; at += 7) {
        struct engine_eval_result result;
        struct error error = {0};
        watch();
        calls.fail_launch = at;
        assert_int_not_equal(run(engine, COUNT, &result, &error), 0);
        assert_string_equal(error.text, "planted");
        assert_int_equal(calls.pending, 0);
        release(&result);
    }
    watch();
    struct engine_eval_result again = bits_of(engine, COUNT);
    assert_same(&whole, &again, COUNT);
    release(&whole);
    release(&again);
    engine_close(engine);
    assert_false(calls.left_pending);
}

/* ---- order */

static int run_piece(struct engine *engine, struct error *error)
{
    u32 ids[20];
    for (u32 i = 0; i < COUNT_OF(ids); i++)
        ids[i] = 100 + 7 * i;
    return state_reset(engine, error) || prefill_piece(engine, ids, COUNT_OF(ids), NULL, error) ? -1
                                                                                                : 0;
}

static void expect_clean(struct engine *engine)
{
    struct error error = {0};
    if (run_piece(engine, &error))
        fail_msg("%s", error.text);
}

/* The beginning of a piece: nothing is reported before the launch that fails. */
static void expect_clean_beginning(struct engine *engine, u32 launches)
{
    struct error error = {0};
    calls.fail_launch = launches;
    assert_int_equal(run_piece(engine, &error), -1);
    assert_string_equal(error.text, "planted");
}

/* All on the first stream after a piece that failed with weights on their way; ahead after that,
 * and once more after a whole piece. */
static void all_is_ordered(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    skip(); /* the device's check is off */
#endif
    struct engine *engine = open_engine(true);
    struct measure *measure = NULL;
    struct error error = {0};
    if (measure_open(&measure, engine, &(struct measure_options){.repeats = 1}, &error))
        fail_msg("%s", error.text);
    expect_clean_beginning(engine, 6); /* the first output; second weights are on their way */
    engine->measure = measure;
    engine->phases = true;
    expect_clean(engine);
    engine->measure = NULL;
    engine->phases = false;
    expect_clean(engine);
    expect_clean_beginning(engine, 12);
    measure_close(measure);
    engine_close(engine);
}

static void check_missing(bool first, const char *what)
{
    struct engine *engine = open_engine(true);
    struct error error = {0};
    calls.drop_first = first;
    calls.drop_own = !first;
    if (run_piece(engine, &error) == 0)
        fail_msg("a missing wait was not reported");
    if (!strstr(error.text, what))
        fail_msg("expected \"%s\" in: %s", what, error.text);
    engine_close(engine);
}

static void a_missing_wait_is_reported(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    skip();
#endif
    check_missing(true, "of prefill weights, which a launch of another stream wrote");
    check_missing(false, "of prefill weights, which a launch of another stream read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_ahead_change_no_bit),
        cmocka_unit_test(nothing_is_made_behind_a_piece),
        cmocka_unit_test(a_piece_may_fail),
        cmocka_unit_test(all_is_ordered),
        cmocka_unit_test(a_missing_wait_is_reported),
    };
    return cmocka_run_group_tests_name("engine/prefill", tests, NULL, NULL);
}
