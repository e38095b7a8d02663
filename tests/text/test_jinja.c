/* test_jinja.c - chat templates through the C interface: goldens of transformers, everything
 * jinja_cases.py makes compared with jinja2, limits, and the messages of faults.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/text.h"
#include "text_folder.h"

#define TINY "tests/models/elpis-tiny"

/* The tests are about one text in, one text out. */
static int render_text(const char *template, const char *context, struct buffer *text,
                       struct error *error)
{
    char folder[] = FOLDER_TEMPLATE;
    struct chat_template *chat = NULL;
    folder_make(folder);
    folder_write(folder, "chat_template.jinja", template);
    int result = chat_template_open(&chat, folder, error);
    folder_remove(folder);
    if (result == 0)
        result = chat_template_render(chat, slice_of(context), text, error);
    chat_template_close(chat);
    return result;
}

static void golden_conversations(void **state)
{
    (void)state;
    struct chat_template *chat = NULL;
    struct error error = {0};
    assert_int_equal(chat_template_open(&chat, TINY, &error), 0);
    json_t *cases = json_load_file("tests/data/chat_template.json", 0, NULL), *item;
    assert_true(json_array_size(cases) > 5);
    size_t i;
    json_array_foreach (cases, i, item) {
        json_t *context = json_copy(item);
        json_object_del(context, "rendered");
        json_object_del(context, "ids");
        if (!json_object_get(context, "add_generation_prompt"))
            json_object_set_new(context, "add_generation_prompt", json_true());
        char *text = json_dumps(context, 0);
        struct buffer rendered = {0};
        if (chat_template_render(chat, slice_of(text), &rendered, &error) < 0)
            fail_msg("case %zu: %s", i, error.text);
        assert_string_equal(rendered.data, json_string_value(json_object_get(item, "rendered")));
        buffer_free(&rendered);
        free(text);
        json_decref(context);
    }
    json_decref(cases);
    chat_template_close(chat);
}

/* ---- against jinja2 */

/* The text of one key's JSON value inside a line of the form that jinja_cases.py prints. Numbers
 * must reach the renderer as they stand there, so the context is cut out, not parsed. */
static char *context_text(const char *line)
{
    const char *at = strstr(line, ", \"context\": ");
    const char *expect = NULL;
    assert_non_null(at);
    at += strlen(", \"context\": ");
    for (const char *next = at; (next = strstr(next, "}, \"expect\": ")); next++)
        expect = next;
    for (const char *next = at; !expect && (next = strstr(next, "}, \"error\": ")); next++)
        expect = next;
    assert_non_null(expect);
    return memory_copy_text((struct slice){at, (size_t)(expect + 1 - at)});
}

static void compare_case(const char *line)
{
    json_error_t fault;
    json_t *item = json_loads(line, JSON_DECODE_INT_AS_REAL, &fault);
    if (!item)
        fail_msg("jinja_cases.py printed no JSON: %s", fault.text);
    const char *template = json_string_value(json_object_get(item, "template"));
    const char *expect = json_string_value(json_object_get(item, "expect"));
    char *context = context_text(line);
    struct buffer text = {0};
    struct error error = {0};
    int result = render_text(template, context, &text, &error);
    bool same = expect ? result == 0 && strcmp(text.data ? text.data : "", expect) == 0
                       : result < 0;
    bool own_fault = result < 0 && strstr(error.text, ".lua:");
    if (!same || own_fault) {
        fprintf(stderr, "---- template\n%s\n---- jinja2\n%s\n---- here\n%s\n----\n", template,
                expect ? expect : json_string_value(json_object_get(item, "error")),
                result < 0  ? error.text
                : text.data ? text.data
                            : "");
        fail_msg("rendered differently");
    }
    buffer_free(&text);
    memory_free(context);
    json_decref(item);
}

static void same_as_jinja2(void **state)
{
    (void)state;
    const char *seed = getenv("ELPIS_JINJA_SEED"), *count = getenv("ELPIS_JINJA_COUNT");
    const char *python = getenv("PYTHON");
    char command[1024];
    snprintf(command, sizeof command, "%s tests/text/jinja_cases.py %s %s",
             python ? python : "/usr/bin/python3", seed ? seed : "1",
             count                       ? count
             : getenv("ELPIS_TEST_FULL") ? "5000"
                                         : "400");
    FILE *cases = popen(command, "r");
    assert_non_null(cases);
    char *line = NULL;
    size_t capacity = 0, compared = 0;
    while (getline(&line, &capacity, cases) > 0) {
        compare_case(line);
        compared++;
    }
    free(line);
    if (pclose(cases) != 0)
        fail_msg("'%s' failed; it needs python3 with jinja2 (Debian: python3-jinja2)", command);
    assert_true(compared > 300);
}

/* ---- faults */

static void check_fault(const char *template, const char *context, int code, const char *needle)
{
    struct buffer text = {0};
    struct error error = {0};
    if (render_text(template, context, &text, &error) == 0)
        fail_msg("'%s' rendered: %.200s", template, text.data);
    if (!strstr(error.text, needle))
        fail_msg("'%s': expected '%s' in: %s", template, needle, error.text);
    assert_int_equal(error.code, code);
    buffer_free(&text);
}

static void faults_are_sentences(void **state)
{
    (void)state;
    check_fault("a\n{{ raise_exception('not like this') }}", "{}", ERROR_USAGE,
                "chat template: not like this");
    check_fault("a\nb {{ who.name }}", "{}", ERROR_USAGE, "line 1: 'who' is undefined");
    check_fault("\n\n{% if %}", "{}", ERROR_MODEL, "line 3");
    check_fault("{% include 'x' %}", "{}", ERROR_MODEL, "'include'");
    check_fault("{{ 'abc", "{}", ERROR_MODEL, "without end");
    check_fault("{{ x | nothing }}", "{}", ERROR_MODEL, "No filter named 'nothing'");
    check_fault("{{ x is nothing }}", "{}", ERROR_MODEL, "No test named 'nothing'");
    check_fault("{{ 1 if x | nothing }}", "{}", ERROR_USAGE, "No filter named 'nothing'");
    check_fault("x", "[]", ERROR_USAGE, "JSON object");
    check_fault("x", "{\"a\":1,\"a\":2}", ERROR_USAGE, "twice");
    check_fault("x", "{\"a\":\"\xff\"}", ERROR_USAGE, "UTF-8");
    check_fault("x", "{\"a\":01}", ERROR_USAGE, "wrong number");
    check_fault("{{ strftime_now(1) }}", "{}", ERROR_USAGE, "must be str");
    check_fault("{{ ''.__class__.x }}", "{}", ERROR_USAGE, "has no attribute");
}

/* A template must not take the machine: each of these ends quickly with a sentence. */
static void hostile_templates_end(void **state)
{
    (void)state;
    check_fault("{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(99) %}"
                "{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
                "{}", ERROR_MEMORY, "64 MiB");
    check_fault("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                "{}", ERROR_MEMORY, "steps");
    check_fault("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{}", ERROR_USAGE, "deeply");
    check_fault("{{ 'x' * 999999999999 }}", "{}", ERROR_MEMORY, "64 MiB");
    check_fault("{{ [0] * 999999999999 }}", "{}", ERROR_MEMORY, "64 MiB");
    check_fault("{{ 'x'.center(999999999) }}", "{}", ERROR_MEMORY, "64 MiB");
    check_fault("{{ '%999999999d' % 1 }}", "{}", ERROR_MEMORY, "64 MiB");
    check_fault("{% for a in range(9999) %}{% for b in range(9999) %}{{ 'xxxxxxxxxxxxxxxx' }}"
                "{% endfor %}{% endfor %}",
                "{}", ERROR_MEMORY, "");
    check_fault("{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}"
                "{% endfor %}{{ ns.l }}",
                "{}", ERROR_USAGE, "deeply");
    check_fault("{{ 9223372036854775807 + 1 }}", "{}", ERROR_USAGE, "64 bits");
    struct buffer deep = {0};
    buffer_add_text(&deep, "{{ ");
    for (int i = 0; i < 100000; i++)
        buffer_add_text(&deep, "(");
    for (int i = 0; i < 100000; i++)
        buffer_add_text(&deep, ")");
    buffer_add_text(&deep, " }}");
    check_fault(deep.data, "{}", ERROR_MODEL, "deeply");
    buffer_clear(&deep);
    buffer_add_text(&deep, "{\"a\":");
    for (int i = 0; i < 10000; i++)
        buffer_add_text(&deep, "[");
    check_fault("x", deep.data, ERROR_USAGE, "deeply");
    buffer_free(&deep);
}

/* A template that failed once still renders. */
static void rendering_again(void **state)
{
    (void)state;
    char folder[] = FOLDER_TEMPLATE;
    struct chat_template *chat = NULL;
    struct error error = {0};
    folder_make(folder);
    folder_write(folder, "tokenizer_config.json",
                 "{\"chat_template\":[{\"name\":\"tool\",\"template\":\"no\"},"
                 "{\"name\":\"default\",\"template\":\"{{ 6 // d }}{% set d = 9 %}{{ d }}\"}]}");
    assert_int_equal(chat_template_open(&chat, folder, &error), 0);
    folder_remove(folder);
    for (int i = 0; i < 3; i++) {
        struct buffer text = {0};
        assert_int_equal(chat_template_render(chat, SLICE("{\"d\":0}"), &text, &error), -1);
        assert_int_equal(chat_template_render(chat, SLICE("{\"d\":2}"), &text, &error), 0);
        assert_string_equal(text.data, "39");
        buffer_free(&text);
    }
    chat_template_close(chat);
}

static void special_tokens_are_there(void **state)
{
    (void)state;
    char folder[] = FOLDER_TEMPLATE;
    struct chat_template *chat = NULL;
    struct error error = {0};
    struct buffer text = {0};
    folder_make(folder);
    folder_write(
        folder, "tokenizer_config.json",
        "{\"eos_token\":\"<end>\",\"bos_token\":{\"content\":\"<start>\"},\"pad_token\":null}");
    folder_write(folder, "chat_template.jinja", "{{ bos_token }}{{ eos_token }}{{ pad_token }}");
    assert_int_equal(chat_template_open(&chat, folder, &error), 0);
    folder_remove(folder);
    assert_int_equal(chat_template_render(chat, SLICE("{}"), &text, &error), 0);
    assert_string_equal(text.data, "<start><end>");
    buffer_free(&text);
    chat_template_close(chat);
}

static void missing_template(void **state)
{
    (void)state;
    struct chat_template *chat = NULL;
    struct error error = {0};
    assert_int_equal(chat_template_open(&chat, "tests/data", &error), -1);
    assert_int_equal(error.code, ERROR_MODEL);
    assert_non_null(strstr(error.text, "has no chat template"));
}

static void the_clock(void **state)
{
    (void)state;
    struct buffer text = {0};
    struct error error = {0};
    assert_int_equal(render_text("{{ strftime_now('%Y') | int > 2000 }}", "{}", &text, &error), 0);
    assert_string_equal(text.data, "True");
    buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_conversations), cmocka_unit_test(same_as_jinja2),
        cmocka_unit_test(faults_are_sentences), cmocka_unit_test(hostile_templates_end),
        cmocka_unit_test(rendering_again),      cmocka_unit_test(special_tokens_are_there),
        cmocka_unit_test(missing_template),     cmocka_unit_test(the_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
