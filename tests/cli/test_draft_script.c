/* test_draft_script.c - forced proposals as text: what is read, and each refusal with its line.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/draft_script.h"

/* Reads text as a script from a file. */
static int read_text(const char *text, struct draft_script *script, struct error *error)
{
    char path[] = "/tmp/elpis-script-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    close(file);
    int status = draft_script_read(script, path, error);
    unlink(path);
    return status;
}

static void expect_round(const struct engine_proposal *round, u32 rows, const u8 *parents,
                         const u32 *tokens)
{
    assert_int_equal(round->rows, rows);
    for (u32 row = 1; row < rows; row++) {
        assert_int_equal(round->parent[row], parents[row - 1]);
        assert_int_equal(round->token[row], tokens[row - 1]);
    }
}

static void rounds_in_order(void **state)
{
    (void)state;
    struct draft_script script;
    struct error error;
    const char *text = "# three rounds\n"
                       "0 1 2 : 17 99 4\n"
                       "\n"
                       "  :   # nothing is proposed\n"
                       "\t \r\n"
                       "0,0, 1,1,2,4,5:1,2 3\t4 5 6 4294967294\r\n"
                       "0:0"; /* no line end */
    assert_int_equal(read_text(text, &script, &error), 0);
    assert_int_equal(script.count, 4);
    expect_round(&script.rounds[0], 4, (u8[]){0, 1, 2}, (u32[]){17, 99, 4});
    expect_round(&script.rounds[1], 1, NULL, NULL);
    expect_round(&script.rounds[2], 8, (u8[]){0, 0, 1, 1, 2, 4, 5},
                 (u32[]){1, 2, 3, 4, 5, 6, 4294967294});
    expect_round(&script.rounds[3], 2, (u8[]){0}, (u32[]){0});
    memory_free(script.rounds);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *needle;
    } cases[] = {
        {"", ": expected at least one line 'PARENTS : TOKENS', found none"},
        {"# a comment\n\n", "found none"},
        {"0 1\n", ": line 1: expected parents, ':' and tokens, found the end of the line"},
        {":\n#\n0 x : 1 2\n", ": line 3: expected parents, ':' and tokens, found 'x'"},
        {"0 : 1 : 2", "line 1: expected token ids after the ':', found ':'"},
        {"0 : 1a", "found 'a'"},
        {"0 : -1", "found '-1'"},
        {"0 1 : 5", "line 1: expected as many tokens as parents, 2, found 1"},
        {"0 1 : 5 6 7", "expected as many tokens as parents, 2, found 3"},
        {": 5", "expected as many tokens as parents, 0, found 1"},
        {"1 : 5", "line 1: the parent of row 1 must be a row before it, expected 0 to 0, found 1"},
        {"0 1 3 : 5 6 7", "the parent of row 3 must be a row before it, expected 0 to 2, found 3"},
        {"0 1 2 3 4 5 6 7 : 1", "expected at most 7 parents, found one more, 7"},
        {"0 : 4294967296", "expected token ids up to 4294967295, found 4294967296"},
        {"0 : 99999999999999999999999", "found 18446744073709551615"},
        {"0 0 1 : 5 5 5", "two children of one row have the same token"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct draft_script script;
        struct error error = {0};
        assert_int_equal(read_text(cases[i].text, &script, &error), -1);
        assert_int_equal(error.code, ERROR_USAGE);
        if (!strstr(error.text, cases[i].needle) ||
            strncmp(error.text, "/tmp/elpis-script-", 18) != 0)
            fail_msg("'%s': expected '%s' in: %s", cases[i].text, cases[i].needle, error.text);
        assert_null(script.rounds);
    }
    struct draft_script script;
    struct error error;
    assert_int_equal(draft_script_read(&script, "/nonexistent/script", &error), -1);
    assert_non_null(strstr(error.text, "/nonexistent/script"));
}

static void parents_alone(void **state)
{
    (void)state;
    struct engine_proposal tree;
    struct error error;
    assert_int_equal(draft_parents_parse(&tree, "0,0,1,1,2,4,5", &error), 0);
    assert_int_equal(tree.rows, 8);
    static const u8 parents[] = {0, 0, 1, 1, 2, 4, 5};
    assert_memory_equal(tree.parent + 1, parents, sizeof parents);
    assert_int_equal(draft_parents_parse(&tree, "0", &error), 0);
    assert_int_equal(tree.rows, 2);
    assert_int_equal(draft_parents_parse(&tree, "0,2", &error), -1);
    assert_string_equal(error.text, "option --tree: the parent of row 2 must be a row before it, "
                                    "expected 0 to 1, found 2");
    assert_int_equal(draft_parents_parse(&tree, "0,1,2,3,4,5,6,7", &error), -1);
    assert_int_equal(draft_parents_parse(&tree, "0,1on", &error), -1);
    assert_string_equal(error.text, "option --tree: expected row numbers, found 'on'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_in_order),
        cmocka_unit_test(refusals),
        cmocka_unit_test(parents_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
