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

#include "engine/engine.h"

#define MODEL "tests/models/elpis-tiny"

enum { VOCAB = 4096, LAYERS = 8, HIDDEN = 256, MOST = 600, PROMPTS = 2 };

enum kind { FAST, EXACT, INT8, KINDS };

static struct engine *open_engine(enum kind kind, u32 kv_bits, u32 piece)
{
    const struct engine_options options = {.device = {.device = "host"},
                                           .context = 1024,
                                           .kv_bits = kv_bits,
                                           .piece = piece,
                                           .prefill_exact = kind == EXACT,
                                           .prefill_int8 = kind == INT8};
    struct engine *engine = NULL;
    struct error error = {0};
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    return engine;
}

/* Logits of the last of `count` tokens of prompt `prompt`, the residual stream of all. */
static struct engine_eval_result run(struct engine *engine, u32 prompt, u32 count)
{
    u32 ids[MOST];
    struct engine_eval_result result;
    struct error error = {0};
    for (u32 i = 0; i < count; i++)
        ids[i] = (i * 7919 + i / 5 * i + 13 + prompt * 331) % VOCAB;
    const struct engine_eval eval = {.ids = ids, .count = count, .rows = 8};
    if (engine_evaluate(engine, &eval, &result, &error))
        fail_msg("%s", error.text);
    return result;
}

static void release(struct engine_eval_result *result)
{
    memory_free(result->logits);
    memory_free(result->hidden);
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
static void check_distances(u32 kv_bits, double limit)
{
    struct distance logits[KINDS] = {{0}}, hidden[KINDS] = {{0}}, between = {0};
    struct engine *engines[KINDS];
    for (enum kind kind = FAST; kind < KINDS; kind++)
        engines[kind] = open_engine(kind, kv_bits, 0);
    for (u32 prompt = 0; prompt < PROMPTS; prompt++) {
        const u32 count = 70 + prompt * 90;
        struct engine_eval_result results[KINDS];
        for (enum kind kind = FAST; kind < KINDS; kind++)
            results[kind] = run(engines[kind], prompt, count);
        const float *exact = results[EXACT].logits + (size_t)(count - 1) * VOCAB;
        add_row(&between, results[INT8].logits, results[FAST].logits, VOCAB);
        for (enum kind kind = FAST; kind < KINDS; kind++) {
            const struct engine_eval_result *result = &results[kind];
            add_row(&logits[kind], result->logits + (size_t)(result->logit_rows - 1) * VOCAB, exact,
                    VOCAB);
            for (u32 row = 0; row < count; row++) {
                const size_t at = ((size_t)row * LAYERS + LAYERS - 1) * HIDDEN;
                add_row(&hidden[kind], result->hidden + at, results[EXACT].hidden + at, HIDDEN);
            }
        }
        for (enum kind kind = FAST; kind < KINDS; kind++)
            release(&results[kind]);
    }
    print_message("%u bits, relative RMS from exact: logits fast %.2e, int8-qk %.2e; last layer "
                  "fast %.2e, int8-qk %.2e; logits of int8-qk from those of fast %.2e\n",
                  kv_bits, relative(&logits[FAST]), relative(&logits[INT8]),
                  relative(&hidden[FAST]), relative(&hidden[INT8]), relative(&between));
    if (!(relative(&logits[INT8]) <= limit && relative(&hidden[INT8]) <= limit))
        fail_msg("int8-qk: relative RMS of logits %.2e, of the last layer %.2e, limit %.2e",
                 relative(&logits[INT8]), relative(&hidden[INT8]), limit);
    if (!(relative(&between) > 1e-5))
        fail_msg("int8-qk is fast: relative RMS between their logits %.2e", relative(&between));
    for (enum kind kind = FAST; kind < KINDS; kind++)
        engine_close(engines[kind]);
}

static void int8_is_near(void **state)
{
    (void)state;
    check_distances(3, 6e-3);
    check_distances(8, 6e-3);
}

/* Tunings: tests/engine/test_prefill_kernels.c. */
static void cuts_change_no_bit(void **state)
{
    struct engine *whole = open_engine(INT8, 3, 0), *cut = open_engine(INT8, 3, 256);
    struct engine_eval_result a = run(whole, 0, MOST), b = run(cut, 0, MOST);
    (void)state;
    assert_memory_equal(a.logits, b.logits, VOCAB * sizeof(float));
    assert_memory_equal(a.hidden, b.hidden, (size_t)MOST * LAYERS * HIDDEN * sizeof(float));
    release(&a);
    release(&b);
    engine_close(whole);
    engine_close(cut);
}

static void plans_name_the_kind(void **state)
{
    char hashes[KINDS][32];
    (void)state;
    for (enum kind kind = FAST; kind < KINDS; kind++) {
        struct engine *engine = open_engine(kind, 3, 256);
        snprintf(hashes[kind], sizeof hashes[kind], "%s", engine_plan_hash(engine));
        engine_close(engine);
    }
    assert_string_not_equal(hashes[FAST], hashes[INT8]);
    assert_string_not_equal(hashes[EXACT], hashes[INT8]);
}

static void halves_are_refused(void **state)
{
    struct engine_options options = {
        .device = {.device = "host"}, .context = 1024, .kv_bits = 16, .prefill_int8 = true};
    struct engine *engine = NULL;
    struct error error = {0};
    (void)state;
    assert_int_equal(engine_open(&engine, MODEL, &options, &error), -1);
    assert_int_equal(error.code, ERROR_USAGE);
    assert_non_null(strstr(error.text, "a cache of 2 to 8 bits, got kv-bits 16"));
    options.prefill_exact = true; /* then no prompt asks for it */
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_is_near),
        cmocka_unit_test(cuts_change_no_bit),
        cmocka_unit_test(plans_name_the_kind),
        cmocka_unit_test(halves_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
