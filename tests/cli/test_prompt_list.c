/* test_prompt_list.c - prompts of a file, as ids or as text, and each refusal with its place.
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

#include "cli/prompt_list.h"

#define TINY "tests/models/elpis-tiny"

/* The prompts of a file with this text. */
static int read_text(const char *text, const char *model, struct prompt_list *list,
                     struct error *error)
{
    char path[] = "/tmp/elpis-prompts-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    close(file);
    int status = prompt_list_read(list, path, model, error);
    unlink(path);
    return status;
}

static void ids_are_taken_as_they_are(void **state)
{
    (void)state;
    struct prompt_list list;
    struct error error = {0};
    const char *text = "\n [{\"name\": \"sum\", \"kind\": \"chat\", \"ids\": [4087, 346, 0]},\n"
                       "  {\"ids\": [4294967295]}]\n";
    assert_int_equal(read_text(text, "/nowhere", &list, &error), 0); /* no tokenizer is needed */
    assert_int_equal(list.count, 2);
    assert_string_equal(list.prompts[0].name, "sum");
    assert_int_equal(list.prompts[0].count, 3);
    assert_memory_equal(list.prompts[0].ids, ((u32[]){4087, 346, 0}), 3 * sizeof(u32));
    assert_string_equal(list.prompts[1].name, "prompt 2");
    assert_int_equal(list.prompts[1].count, 1);
    assert_int_equal(list.prompts[1].ids[0], UINT32_MAX);
    prompt_list_free(&list);
    assert_int_equal(list.count, 0);
}

/* Ids of tests/data/tiny_greedy.json. */
static void lines_go_through_the_template(void **state)
{
    static const u32 sum[] = {4087, 346, 198, 702,  292, 220,  18,  19,  1013, 220,
                              20,   22,  30,  4088, 198, 4087, 348, 198, 4094, 198};
    (void)state;
    struct prompt_list list;
    struct error error = {0};
    assert_int_equal(read_text("\n  \nWhat is 34 + 57? \r\n\nWho are you?", TINY, &list, &error),
                     0);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.prompts[0].name, "line 3");
    assert_int_equal(list.prompts[0].count, COUNT_OF(sum));
    assert_memory_equal(list.prompts[0].ids, sum, sizeof sum);
    assert_string_equal(list.prompts[1].name, "line 5");
    prompt_list_free(&list);
}

static void built_in_prompts_are_there(void **state)
{
    (void)state;
    struct prompt_list list;
    struct error error = {0};
    assert_int_equal(prompt_list_read(&list, NULL, TINY, &error), 0);
    assert_in_range(list.count, 20, 100);
    assert_string_equal(list.prompts[0].name, "built-in prompt 1");
    for (u32 i = 0; i < list.count; i++)
        assert_true(list.prompts[i].count > 10);
    prompt_list_free(&list);
}

static void what_is_no_prompt_is_refused(void **state)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", ": expected at least one prompt, found none"},
        {"\n\n", ": expected at least one prompt, found none"},
        {"[]", ": expected at least one prompt, found none"},
        {"\n[{\"ids\": [1]}", ": line 2: not JSON: "},
        {"[7]", ": prompt 1: \"ids\": expected a list of token ids"},
        {"[{\"ids\": [1]}, {\"name\": \"x\", \"ids\": []}]",
         ": x: \"ids\": expected a list of token ids"},
        {"[{\"ids\": [1, -1]}]", ": prompt 1: \"ids\": expected token ids, found something else at "
                                 "place 1"},
        {"[{\"ids\": [4294967296]}]", "found something else at place 0"},
        {"[{\"ids\": [\"a\"]}]", "found something else at place 0"},
        {"fine\nb\xff", ": line 2: the text is not valid UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct prompt_list list;
        struct error error = {0};
        assert_int_equal(read_text(cases[i].text, TINY, &list, &error), -1);
        assert_int_equal(error.code, ERROR_USAGE);
        if (!strstr(error.text, cases[i].words))
            fail_msg("expected \"%s\" in: %s", cases[i].words, error.text);
        assert_int_equal(list.count, 0);
    }
    struct prompt_list list;
    struct error error = {0};
    assert_int_equal(read_text("text", "/nowhere", &list, &error), -1);
    assert_int_equal(error.code, ERROR_MODEL);
    assert_true(strncmp(error.text, "/nowhere", 8) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_taken_as_they_are),
        cmocka_unit_test(lines_go_through_the_template),
        cmocka_unit_test(built_in_prompts_are_there),
        cmocka_unit_test(what_is_no_prompt_is_refused),
    };
    return cmocka_run_group_tests_name("cli/prompt_list", tests, NULL, NULL);
}
