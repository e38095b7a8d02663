/* test_prefill_kinds.c - `--prefill fast`, `exact` and `int8-qk` on elpis-tiny, the whole model on
 * the host device: how far their logits are apart, that cuts change no bit, and that a plan
 * names them.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "whole.h"

#define MODEL "tests/models/elpis-tiny"

enum { VOCAB = 4096, LAYERS = 8, HIDDEN = 256, MOST = 600, PROMPTS = 2 };

/* Context and piece are those of other tests: most of the kernels are in their cache. */
enum { CONTEXT = 4096 };

/* Of a cache of 3 bits, for all tests. */
static struct engine *of_3_bits[ENGINE_PREFILL_KINDS];

static struct engine *open_engine(enum engine_prefill kind, u32 kv_bits)
{
    const struct engine_options options = {
        .device = {.device = "host"}, .context = CONTEXT, .kv_bits = kv_bits, .prefill = kind};
    struct engine *engine = NULL;
    struct error error = {0};
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    return engine;
}

static int open_group(void **state)
{
    (void)state;
    for (enum engine_prefill kind = 0; kind < ENGINE_PREFILL_KINDS; kind++)
        of_3_bits[kind] = open_engine(kind, 3);
    return 0;
}

static int close_group(void **state)
{
    (void)state;
    for (enum engine_prefill kind = 0; kind < ENGINE_PREFILL_KINDS; kind++)
        engine_close(of_3_bits[kind]);
    return 0;
}

/* Logits of the last of `count` tokens of prompt `prompt`, the residual stream of all. */
static struct engine_eval_result run(struct engine *engine, u32 prompt, u32 count, u32 piece)
{
    u32 ids[MOST];
    for (u32 i = 0; i < count; i++)
        ids[i] = (i * 7919 + i / 5 * i + 13 + prompt * 331) % VOCAB;
    const struct engine_eval eval = {.ids = ids, .count = count, .rows = 8, .piece = piece};
    return evaluate(engine, &eval);
}

/* Of pooled rows: squares of differences from those of exact, and of these. */
struct distance {
    double error, size;
};

static void add_row(struct distance *distance, const float *row, const float *exact, u32 count)
{
    for (u32 i = 0; i < count; i++) {
        distance->error += ((double)row[i] - exact[i]) * ((double)row[i] - exact[i]);
        distance->size += (double)exact[i] * exact[i];
    }
}

static double relative(const struct distance *distance)
{
    return sqrt(distance->error / distance->size);
}

/* int8-qk is told from fast by its distance from it: both are off exact by more than that. */
static void check_distances(struct engine *const engines[ENGINE_PREFILL_KINDS], u32 kv_bits,
                            double limit)
{
    struct distance logits[ENGINE_PREFILL_KINDS] = {{0}}, hidden[ENGINE_PREFILL_KINDS] = {{0}},
                    between = {0};
    for (u32 prompt = 0; prompt < PROMPTS; prompt++) {
        const u32 count = 70 + prompt * 90;
        struct engine_eval_result results[ENGINE_PREFILL_KINDS];
        for (enum engine_prefill kind = 0; kind < ENGINE_PREFILL_KINDS; kind++)
            results[kind] = run(engines[kind], prompt, count, 0);
        const float *exact = results[ENGINE_PREFILL_EXACT].logits + (size_t)(count - 1) * VOCAB;
        add_row(&between, results[ENGINE_PREFILL_INT8_QK].logits,
                results[ENGINE_PREFILL_FAST].logits, VOCAB);
        for (enum engine_prefill kind = 0; kind < ENGINE_PREFILL_KINDS; kind++) {
            const struct engine_eval_result *result = &results[kind];
            add_row(&logits[kind], result->logits + (size_t)(result->logit_rows - 1) * VOCAB, exact,
                    VOCAB);
            for (u32 row = 0; row < count; row++) {
                const size_t at = ((size_t)row * LAYERS + LAYERS - 1) * HIDDEN;
                add_row(&hidden[kind], result->hidden + at,
                        results[ENGINE_PREFILL_EXACT].hidden + at, HIDDEN);
            }
        }
        for (enum engine_prefill kind = 0; kind < ENGINE_PREFILL_KINDS; kind++)
            release(&results[kind]);
    }
    print_message("%u bits, relative RMS from exact: logits fast %.2e, int8-qk %.2e; last layer "
                  "fast %.2e, int8-qk %.2e; logits of int8-qk from those of fast %.2e\n",
                  kv_bits, relative(&logits[ENGINE_PREFILL_FAST]),
                  relative(&logits[ENGINE_PREFILL_INT8_QK]), relative(&hidden[ENGINE_PREFILL_FAST]),
                  relative(&hidden[ENGINE_PREFILL_INT8_QK]), relative(&between));
    if (!(relative(&logits[ENGINE_PREFILL_INT8_QK]) <= limit &&
          relative(&hidden[ENGINE_PREFILL_INT8_QK]) <= limit))
        fail_msg("int8-qk: relative RMS of logits %.2e, of the last layer %.2e, limit %.2e",
                 relative(&logits[ENGINE_PREFILL_INT8_QK]),
                 relative(&hidden[ENGINE_PREFILL_INT8_QK]), limit);
    if (!(relative(&between) > 1e-5))
        fail_msg("int8-qk is fast: relative RMS between their logits %.2e", relative(&between));
}

static void int8_is_near(void **state)
{
    struct engine *of_8_bits[ENGINE_PREFILL_KINDS];
    (void)state;
    check_distances(of_3_bits, 3, 6e-3);
    for (enum engine_prefill kind = 0; kind < ENGINE_PREFILL_KINDS; kind++)
        of_8_bits[kind] = open_engine(kind, 8);
    check_distances(of_8_bits, 8, 6e-3);
    for (enum engine_prefill kind = 0; kind < ENGINE_PREFILL_KINDS; kind++)
        engine_close(of_8_bits[kind]);
}

/* Tunings, and the rows that a kernel is made for: tests/engine/test_prefill_kernels.c. */
static void cuts_change_no_bit(void **state)
{
    struct engine_eval_result a = run(of_3_bits[ENGINE_PREFILL_INT8_QK], 0, MOST, 0);
    struct engine_eval_result b = run(of_3_bits[ENGINE_PREFILL_INT8_QK], 0, MOST, 256);
    (void)state;
    assert_memory_equal(a.logits, b.logits, VOCAB * sizeof(float));
    assert_memory_equal(a.hidden, b.hidden, (size_t)MOST * LAYERS * HIDDEN * sizeof(float));
    release(&a);
    release(&b);
}

static void plans_name_the_kind(void **state)
{
    (void)state;
    const char *hash = engine_plan_hash(of_3_bits[ENGINE_PREFILL_INT8_QK]);
    assert_string_not_equal(hash, engine_plan_hash(of_3_bits[ENGINE_PREFILL_FAST]));
    assert_string_not_equal(hash, engine_plan_hash(of_3_bits[ENGINE_PREFILL_EXACT]));
}

/* Zero is fast: what engines do whose options say nothing. */
static void kinds_have_names(void **state)
{
    static const char *const names[] = {"fast", "exact", "int8-qk"};
    static const char *const others[] = {"", "slow", "fas", "faster", "int8", "Exact", "exact:"};
    (void)state;
    assert_int_equal(ENGINE_PREFILL_FAST, 0);
    assert_int_equal(ENGINE_PREFILL_KINDS, COUNT_OF(names));
    for (enum engine_prefill kind = 0; kind < ENGINE_PREFILL_KINDS; kind++) {
        enum engine_prefill found = ENGINE_PREFILL_KINDS;
        assert_string_equal(engine_prefill_name(kind), names[kind]);
        assert_true(engine_prefill_named(slice_of(names[kind]), &found));
        assert_int_equal(found, kind);
    }
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        enum engine_prefill found = ENGINE_PREFILL_KINDS;
        assert_false(engine_prefill_named(slice_of(others[i]), &found));
        assert_int_equal(found, ENGINE_PREFILL_KINDS);
    }
}

static void halves_are_refused(void **state)
{
    struct engine_options options = {.device = {.device = "host"},
                                     .context = CONTEXT,
                                     .kv_bits = 16,
                                     .prefill = ENGINE_PREFILL_INT8_QK};
    struct engine *engine = NULL;
    struct error error = {0};
    (void)state;
    assert_int_equal(engine_open(&engine, MODEL, &options, &error), -1);
    assert_int_equal(error.code, ERROR_USAGE);
    assert_non_null(strstr(error.text, "a cache of 2 to 8 bits, got kv-bits 16"));
    options.prefill = ENGINE_PREFILL_EXACT; /* then no prompt asks for it */
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_is_near),        cmocka_unit_test(cuts_change_no_bit),
        cmocka_unit_test(plans_name_the_kind), cmocka_unit_test(kinds_have_names),
        cmocka_unit_test(halves_are_refused),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
