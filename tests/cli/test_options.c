/* test_options.c - option tables: what is parsed into the values, and, in a child process, what
 * ends the program with which status and sentence.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"

struct values {
    bool flag, other, has_shift;
    const char *text;
    u32 count;
    i32 shift;
    u64 wide;
    double number;
    char *operands[2];
};

static const struct command command = {
    .name = "trial",
    .summary = "tries options",
    .synopsis = "elpis trial FILE [OPTION...]",
    .description = "First line.\nSecond line.",
    .epilogue = "EXAMPLES\n    elpis trial x",
};

static void parse(struct values *values, int argc, char **argv)
{
    const struct option_entry entries[] = {
        {'f', "flag", NULL, "A flag.", OPTION_FLAG, &values->flag},
        {'o', "other", NULL, "Another.", OPTION_FLAG, &values->other},
        {'t', "text", "TEXT", "A text.", OPTION_TEXT, &values->text},
        {'n', "count", "COUNT", "A count.", OPTION_U32, &values->count},
        {0, "shift", "NUMBER", "A signed number.", OPTION_I32, &values->shift, &values->has_shift},
        {0, "wide", "NUMBER", "A wide number.", OPTION_U64, &values->wide},
        {0, "number", "NUMBER", "A number.", OPTION_DOUBLE, &values->number},
    };
    options_parse(&command, entries, COUNT_OF(entries), argc, argv, values->operands, 1, 2);
}

#define PARSE(values, ...)                            \
    do {                                              \
        char *argv[] = {"trial", __VA_ARGS__, NULL};  \
        parse(values, (int)COUNT_OF(argv) - 1, argv); \
    } while (0)

static void values_in_every_form(void **state)
{
    (void)state;
    struct values values = {0};
    PARSE(&values, "--text", "a b", "in", "--count=7", "-f", "--wide", "18446744073709551615");
    assert_string_equal(values.text, "a b");
    assert_int_equal(values.count, 7);
    assert_true(values.flag);
    assert_false(values.other);
    assert_true(values.wide == UINT64_MAX);
    assert_string_equal(values.operands[0], "in");
    assert_null(values.operands[1]);
    values = (struct values){0};
    PARSE(&values, "-fot-", "-n12", "--number", "-1.5e2", "x", "-");
    assert_true(values.flag && values.other);
    assert_string_equal(values.text, "-");
    assert_int_equal(values.count, 12);
    assert_true(values.number == -150);
    assert_string_equal(values.operands[1], "-");
    assert_false(values.has_shift);
    values = (struct values){0};
    PARSE(&values, "--shift", "-2147483648", "x");
    assert_true(values.has_shift && values.shift == INT32_MIN);
    PARSE(&values, "--shift=2147483647", "x");
    assert_int_equal(values.shift, INT32_MAX);
    values = (struct values){0};
    PARSE(&values, "--shift", "0", "x");
    assert_true(values.has_shift && values.shift == 0);
    values = (struct values){0};
    PARSE(&values, "-t", "--flag", "--text=", "--", "-f");
    assert_string_equal(values.text, "");
    assert_false(values.flag);
    assert_string_equal(values.operands[0], "-f");
}

/* Runs body in a child; returns its exit status and what it printed to the given descriptor. */
static int in_child(void (*body)(void *), void *argument, int descriptor, char text[4096])
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], descriptor);
        body(argument);
        fflush(NULL);
        _exit(99);
    }
    close(ends[1]);
    size_t size = 0;
    for (ssize_t n; size < 4095 && (n = read(ends[0], text + size, 4095 - size)) > 0;)
        size += (size_t)n;
    text[size] = 0;
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

static void parse_line(void *argument)
{
    char **argv = argument;
    int argc = 0;
    struct values values = {0};
    while (argv[argc])
        argc++;
    parse(&values, argc, argv);
}

#define REFUSED(needle, ...)                                                            \
    do {                                                                                \
        char *argv[] = {"trial", __VA_ARGS__, NULL}, text[4096];                        \
        assert_int_equal(in_child(parse_line, argv, STDERR_FILENO, text), ERROR_USAGE); \
        if (!strstr(text, needle) || !strstr(text, "elpis trial"))                      \
            fail_msg("expected '%s' in: %s", needle, text);                             \
        assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);                  \
    } while (0)

static void refusals(void **state)
{
    (void)state;
    REFUSED("unknown option '--frob'", "x", "--frob=1");
    REFUSED("unknown option '-z'", "x", "-fz");
    REFUSED("unknown option '--tex'", "x", "--tex", "a");
    REFUSED("takes no value", "x", "--flag=yes");
    REFUSED("expects a value (TEXT)", "x", "--text");
    REFUSED("expects a whole number from 0 to 4294967295, got '4294967296'", "x", "-n",
            "4294967296");
    REFUSED("got '-1'", "x", "--count", "-1");
    REFUSED("got '1k'", "x", "--count", "1k");
    REFUSED("got ''", "x", "--count=");
    REFUSED("expects a whole number from -2147483648 to 2147483647, got '2147483648'", "x",
            "--shift", "2147483648");
    REFUSED("got '-2147483649'", "x", "--shift=-2147483649");
    REFUSED("got '--1'", "x", "--shift", "--1");
    REFUSED("got '-'", "x", "--shift", "-");
    REFUSED("got '1.0'", "x", "--shift", "1.0");
    REFUSED("18446744073709551616", "x", "--wide", "18446744073709551616");
    REFUSED("expects a number, got 'nan'", "x", "--number", "nan");
    REFUSED("got '1.5x'", "x", "--number", "1.5x");
    REFUSED("an argument is missing", "-f");
    REFUSED("one argument too many, 'c'", "a", "b", "c");
}

static void help_in_order(void **state)
{
    (void)state;
    char *argv[] = {"trial", "--help", NULL}, text[4096];
    assert_int_equal(in_child(parse_line, argv, STDOUT_FILENO, text), 0);
    static const char *const order[] = {"NAME\n    elpis trial - tries options\n",
                                        "SYNOPSIS\n    elpis trial FILE [OPTION...]\n",
                                        "DESCRIPTION\n    First line.\n    Second line.\n",
                                        "OPTIONS\n    -f, --flag\n        A flag.\n",
                                        "    -t, --text TEXT\n",
                                        "    --wide NUMBER\n",
                                        "EXAMPLES\n    elpis trial x\n"};
    const char *at = text;
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        const char *found = strstr(at, order[i]);
        if (!found)
            fail_msg("'%s' is missing after: %s", order[i], at);
        at = found;
    }
}

/* ---- options of commands with an engine */

static void finish(void *argument)
{
    struct engine_options options;
    engine_options_finish(&command, argument, &options);
    _exit(0);
}

static void engine_options(void **state)
{
    (void)state;
    struct engine_flags flags = {0};
    struct option_entry entries[ENGINE_OPTION_COUNT];
    assert_int_equal(engine_option_entries(&flags, entries), ENGINE_OPTION_COUNT);
    for (size_t i = 0; i < ENGINE_OPTION_COUNT; i++) {
        assert_non_null(entries[i].value);
        assert_true((entries[i].kind == OPTION_FLAG) == (entries[i].argument == NULL));
    }
    flags = (struct engine_flags){.device = "host",
                                  .kv_bits = 16,
                                  .piece = 512,
                                  .threads = 2,
                                  .prefill = "exact",
                                  .context = 1024,
                                  .plan_seed = 9,
                                  .check = true};
    struct engine_options options;
    engine_options_finish(&command, &flags, &options);
    assert_string_equal(options.device.device, "host");
    assert_int_equal(options.device.host_threads, 2);
    assert_true(options.device.host_check);
    assert_int_equal(options.prefill, ENGINE_PREFILL_EXACT);
    assert_int_equal(options.kv_bits, 16);
    assert_int_equal(options.piece, 512);
    assert_int_equal(options.context, 1024);
    assert_int_equal(options.plan_seed, 9);
    assert_null(options.draft);
}

static void prefill_kinds(void **state)
{
    (void)state;
    struct engine_options options;
    struct engine_flags flags = {0};
    engine_options_finish(&command, &flags, &options);
    assert_int_equal(options.prefill, ENGINE_PREFILL_FAST);
    for (enum engine_prefill kind = 0; kind < ENGINE_PREFILL_KINDS; kind++) {
        flags.prefill = engine_prefill_name(kind);
        engine_options_finish(&command, &flags, &options);
        assert_int_equal(options.prefill, kind);
    }
}

static void draft_options(void **state)
{
    (void)state;
    struct engine_options options;
    struct engine_flags flags = {.draft = "folder"};
    engine_options_finish(&command, &flags, &options);
    assert_string_equal(options.draft, "folder");
    assert_false(options.chain);
    assert_int_equal(options.speculate, 0); /* the engine's default */
    assert_int_equal(options.tap_shift, 0);
    assert_int_equal(options.fault_every, 0);
    flags = (struct engine_flags){.draft = "folder",
                                  .tree = "off",
                                  .speculate = 3,
                                  .has_speculate = true,
                                  .tap_shift = -1,
                                  .has_tap_shift = true,
                                  .fault_every = 5,
                                  .has_fault_every = true};
    engine_options_finish(&command, &flags, &options);
    assert_true(options.chain);
    assert_int_equal(options.speculate, 3);
    assert_int_equal(options.tap_shift, -1);
    assert_int_equal(options.fault_every, 5);
    flags.tree = "on";
    engine_options_finish(&command, &flags, &options);
    assert_false(options.chain);
}

/* An option that was not given and one that was given its default are told apart. */
static void draft_options_given(void **state)
{
    (void)state;
    struct engine_flags flags = {0};
    struct option_entry entries[ENGINE_OPTION_COUNT];
    char *argv[] = {"trial", "x", "--tap-shift", "0", "--fault-every", "0", NULL}, *operand;
    engine_option_entries(&flags, entries);
    options_parse(&command, entries, ENGINE_OPTION_COUNT, 6, argv, &operand, 1, 1);
    assert_true(flags.has_tap_shift && flags.has_fault_every && !flags.has_speculate);
}

static void engine_refusals(void **state)
{
    (void)state;
    const struct {
        struct engine_flags flags;
        const char *needle;
    } cases[] = {
        {{.kv_bits = 1}, "--kv-bits expects 2 to 8 or 16, got 1"},
        {{.kv_bits = 9}, "got 9"},
        {{.piece = 100}, "--piece expects a multiple of 256, got 100"},
        {{.prefill = ""}, "--prefill expects fast, exact or int8-qk, got ''"},
        {{.prefill = "slow"}, "--prefill expects fast, exact or int8-qk, got 'slow'"},
        {{.prefill = "int8-qk", .kv_bits = 16}, "a cache of 2 to 8 bits, got --kv-bits 16"},
        {{.tree = "on"}, "--tree has no meaning without a draft model; give one with --draft"},
        {{.has_speculate = true, .speculate = 7}, "--speculate has no meaning without"},
        {{.has_tap_shift = true}, "--tap-shift has no meaning without"},
        {{.has_fault_every = true}, "--fault-every has no meaning without"},
        {{.draft = "d", .tree = "maybe"}, "--tree expects on or off, got 'maybe'"},
        {{.draft = "d", .has_speculate = true}, "--speculate expects 1 to 7, got 0"},
        {{.draft = "d", .has_speculate = true, .speculate = 8}, "got 8"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[4096];
        struct engine_flags flags = cases[i].flags;
        assert_int_equal(in_child(finish, &flags, STDERR_FILENO, text), ERROR_USAGE);
        assert_non_null(strstr(text, cases[i].needle));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_in_every_form), cmocka_unit_test(refusals),
        cmocka_unit_test(help_in_order),        cmocka_unit_test(engine_options),
        cmocka_unit_test(prefill_kinds),        cmocka_unit_test(draft_options),
        cmocka_unit_test(draft_options_given),  cmocka_unit_test(engine_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
