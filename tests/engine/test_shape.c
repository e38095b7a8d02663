/* test_shape.c - the model that is made for a kernel of a given shape. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/shape.h"

static struct shape_model chosen;
static struct engine_options options;
static struct error error;

static int choose(struct shape *shape)
{
    options = (struct engine_options){0};
    error = (struct error){0};
    return shape_choose(shape, &options, &chosen, &error);
}

static void must_choose(struct shape *shape)
{
    if (choose(shape) != 0)
        fail_msg("%s: %s", shape->schedule, error.text);
}

static const struct jit_parameter *parameter(const struct shape *shape, const char *name)
{
    for (const struct jit_parameter *p = shape->parameters; p->name; p++)
        if (strcmp(p->name, name) == 0)
            return p;
    fail_msg("%s: no parameter %s", shape->schedule, name);
    return NULL;
}

/* What a choice completes, asked for, is the same choice. */
static void test_complete_shapes_choose_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; shape_schedule(i); i++) {
        struct shape shape = {.schedule = shape_schedule(i)};
        must_choose(&shape);
        const struct shape_model first = chosen;
        const struct shape complete = shape;
        must_choose(&shape);
        assert_memory_equal(&shape, &complete, sizeof shape);
        assert_int_equal(chosen.has_draft, first.has_draft);
        assert_int_equal(chosen.model.hidden, first.model.hidden);
        assert_int_equal(chosen.model.intermediate, first.model.intermediate);
        assert_int_equal(chosen.model.layers, first.model.layers);
        assert_int_equal(chosen.draft.q_heads, first.draft.q_heads);
        assert_int_equal(shape.prompt, strncmp(shape.schedule, "prefill_", 8) == 0);
    }
}

/* Schedules that the help of `elpis tune` excepts. */
static void test_every_schedule_is_known_or_excepted(void **state)
{
    (void)state;
    static const char *const excepted[] = {"compare", "kv_commit", "prelude_check", "residual",
                                           "trellis_pack"};
    struct jit_listing *listing;
    size_t count, unknown = 0;
    assert_int_equal(jit_list(NULL, &listing, &count, &error), 0);
    for (size_t i = 0; i < count; i++) {
        if (shape_is_known(listing[i].name))
            continue;
        assert_true(unknown < COUNT_OF(excepted));
        assert_string_equal(listing[i].name, excepted[unknown++]);
    }
    assert_int_equal(unknown, COUNT_OF(excepted));
    free(listing);
}

static void test_linears_of_a_27b(void **state)
{
    (void)state;
    struct shape gate_up = {
        "linear_main", {JIT_NUMBER("k", 5120), JIT_NUMBER("n0", 17408), JIT_NUMBER("n1", 17408)}};
    must_choose(&gate_up);
    assert_int_equal(chosen.model.hidden, 5120);
    assert_int_equal(chosen.model.intermediate, 17408);
    assert_int_equal(chosen.model.layers, 1);
    assert_int_equal(parameter(&gate_up, "bits")->number, 4);
    assert_string_equal(parameter(&gate_up, "codebook")->text, "mul1");

    struct shape recurrent = {"linear_main",
                              {JIT_NUMBER("k", 5120), JIT_NUMBER("n0", 10240),
                               JIT_NUMBER("n1", 6144), JIT_NUMBER("bits", 5)}};
    must_choose(&recurrent);
    assert_int_equal(chosen.model.k_heads, 16);
    assert_int_equal(chosen.model.v_heads, 48);
    assert_int_equal(chosen.model.bits, 5);
    assert_int_equal(parameter(&recurrent, "n2")->number, 0);

    struct shape attention = {
        "linear_main", {JIT_NUMBER("k", 5120), JIT_NUMBER("n0", 12288), JIT_NUMBER("n1", 1024)}};
    must_choose(&attention); /* 8 value heads are no multiple of 44 key heads */
    assert_int_equal(chosen.model.q_heads, 24);
    assert_int_equal(chosen.model.kv_heads, 4);
    assert_int_equal(chosen.model.layers, 4);
    assert_int_equal(parameter(&attention, "n2")->number, 1024);

    struct shape head = {"linear_main", {JIT_NUMBER("k", 5120), JIT_NUMBER("n0", 248320)}};
    must_choose(&head); /* wider than a hidden size can be */
    assert_int_equal(chosen.model.vocab, 248320);
    assert_int_equal(parameter(&head, "bits")->number, 6);
}

static void test_options_of_the_shape(void **state)
{
    (void)state;
    struct shape shape = {"attention_decode", {JIT_NUMBER("context", 512), JIT_NUMBER("bits", 5)}};
    must_choose(&shape);
    assert_int_equal(options.context, 512);
    assert_int_equal(options.kv_bits, 5);
    assert_int_equal(options.prefill, ENGINE_PREFILL_EXACT);
    options = (struct engine_options){.context = 1024};
    assert_int_equal(shape_choose(&shape, &options, &chosen, &error), -1); /* it says otherwise */

    struct shape window = {"gdn_step", {JIT_NUMBER("layers", 48)}};
    must_choose(&window);
    assert_int_equal(chosen.model.layers, 63); /* of which every fourth is attention */
    struct shape ids = {"sample", {JIT_NUMBER("vocab", 1024), JIT_NUMBER("valid_vocab", 1000)}};
    must_choose(&ids);
    assert_int_equal(options.valid_vocab, 1000);
    struct shape halves = {"attention_decode_f16"};
    must_choose(&halves);
    assert_int_equal(options.kv_bits, 16);
    struct shape piece = {"embed", {JIT_NUMBER("rows_max", 512)}};
    must_choose(&piece);
    assert_true(piece.prompt);
    assert_int_equal(options.piece, 512);
    assert_int_equal(options.prefill, ENGINE_PREFILL_FAST);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        struct shape shape;
        const char *words;
    } cases[] = {
        {{"compare"}, "no model is made for compare"},
        {{"linear_main", {JIT_NUMBER("k", 300)}}, "intermediate 300: expected a multiple of 128"},
        {{"linear_main", {JIT_NUMBER("k", -128)}}, "k = hidden, n0 = 512 * q-heads, n1 = 256 * "},
        {{"linear_main", {JIT_NUMBER("k", 1ll << 40)}}, "no model can be made"},
        {{"linear_main", {JIT_TEXT("codebook", "mcg")}}, "codebook = mul1"},
        {{"linear_main", {JIT_NUMBER("n3", 128)}}, "n3 = 0"},
        {{"gdn_output", {JIT_NUMBER("k_heads", 4)}}, "v-heads 6: expected a multiple of k-heads"},
        {{"gdn_step", {JIT_NUMBER("layers", 3221225473)}}, "layers 4294967295: expected"},
        {{"embed", {JIT_TEXT("hidden", "wide")}}, "hidden = hidden"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct shape shape = cases[i].shape;
        assert_int_equal(choose(&shape), -1);
        assert_int_equal(error.code, ERROR_USAGE);
        if (!strstr(error.text, cases[i].words))
            fail_msg("expected '%s' in '%s'", cases[i].words, error.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete_shapes_choose_the_same),
        cmocka_unit_test(test_every_schedule_is_known_or_excepted),
        cmocka_unit_test(test_linears_of_a_27b),
        cmocka_unit_test(test_options_of_the_shape),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
