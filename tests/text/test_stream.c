/* test_stream.c - the output stream: every text is fed whole and cut at every place, and must come
 * out the same; nothing is shown that later turns out to be a stop string or a marker.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "text/text.h"

struct shown {
    struct buffer reasoning, content;
};

static void collect(void *user, enum stream_part part, struct slice text)
{
    struct shown *shown = user;
    assert_true(text.size > 0);
    buffer_add_slice(part == STREAM_REASONING ? &shown->reasoning : &shown->content, text);
    /* What is shown is whole characters. */
    u8 last = (u8)text.data[text.size - 1];
    assert_true(last < 0xc0);
    assert_true(((u8)text.data[0] & 0xc0) != 0x80);
}

static const char *text_of(const struct buffer *buffer)
{
    return buffer->data ? buffer->data : "";
}

/* Feeds in pieces of `step` bytes after a first piece of `first`. */
static void check_cut(const struct text_stream_options *options, struct slice text, size_t first,
                      size_t step, const char *reasoning, const char *content, bool stopped)
{
    struct shown shown = {{0}, {0}};
    struct text_stream *stream = text_stream_create(options, collect, &shown);
    bool found = false;
    for (size_t at = 0; at < text.size;) {
        size_t size = at == 0 && first ? first : step;
        if (size > text.size - at)
            size = text.size - at;
        found = text_stream_feed(stream, (struct slice){text.data + at, size});
        at += size;
    }
    text_stream_end(stream);
    text_stream_destroy(stream);
    assert_string_equal(text_of(&shown.reasoning), reasoning);
    assert_string_equal(text_of(&shown.content), content);
    assert_int_equal(found, stopped);
    buffer_free(&shown.reasoning);
    buffer_free(&shown.content);
}

static void check(const struct text_stream_options *options, const char *text,
                  const char *reasoning, const char *content, bool stopped)
{
    struct slice slice = slice_of(text);
    check_cut(options, slice, 0, slice.size ? slice.size : 1, reasoning, content, stopped);
    for (size_t step = 1; step < 8; step++)
        check_cut(options, slice, 0, step, reasoning, content, stopped);
    for (size_t first = 1; first < slice.size; first++)
        check_cut(options, slice, first, slice.size, reasoning, content, stopped);
}

static void plain_text(void **state)
{
    (void)state;
    const struct text_stream_options options = {0};
    check(&options, "", "", "", false);
    check(&options, "hello \n\n world\n", "", "hello \n\n world\n", false);
    check(&options, "<think>no</think>", "", "<think>no</think>", false);
}

static void utf8_is_whole(void **state)
{
    (void)state;
    const struct text_stream_options options = {0};
    check(&options, "\xce\xb5\xe5\xb8\x8c\xf0\x9f\x98\x80.", "",
          "\xce\xb5\xe5\xb8\x8c\xf0\x9f\x98\x80.", false);
    check(&options,
          "a\xff"
          "b",
          "",
          "a\xef\xbf\xbd"
          "b",
          false);
    check(&options, "a\xf0\x9f\x98", "", "a\xef\xbf\xbd", false);
    check(&options, "\xe5\xb8z\x80\xed\xa0\x80", "",
          "\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", false);
}

static void stop_strings(void **state)
{
    (void)state;
    const struct slice stops[] = {SLICE("END"), SLICE(""), SLICE("\n\n")};
    const struct text_stream_options options = {.stops = stops, .stop_count = 3};
    check(&options, "one EN two END three", "", "one EN two ", true);
    check(&options, "line\nline\n\nmore END", "", "line\nline", true);
    check(&options, "nearly EN", "", "nearly EN", false);
    check(&options, "END", "", "", true);
    check(&options, "EENDx", "", "E", true);
}

static void overlapping_stops(void **state)
{
    (void)state;
    const struct slice stops[] = {SLICE("abcd"), SLICE("bc"), SLICE("xbc"), SLICE("aab")};
    const struct text_stream_options options = {.stops = stops, .stop_count = 4};
    check(&options, "1abcd", "", "1a", true); /* bc is complete before abcd */
    check(&options, "1xbcd", "", "1", true);  /* together: the longest */
    check(&options, "aaab", "", "a", true);
    check(&options, "aaac", "", "aaac", false);
    const struct slice emoji[] = {SLICE("\xf0\x9f\x98\x80")};
    const struct text_stream_options whole = {.stops = emoji, .stop_count = 1};
    check(&whole, "x\xf0\x9f\x98\x81\xf0\x9f\x98\x80y", "", "x\xf0\x9f\x98\x81", true);
}

static void thinking_starts_inside(void **state)
{
    (void)state;
    const struct slice stops[] = {SLICE("STOP")};
    const struct text_stream_options options = {
        .stops = stops, .stop_count = 1, .thinking = true, .starts_inside = true};
    check(&options, "I see.\n</think>\n\nYes.", "I see.", "Yes.", false);
    check(&options, "\nSTOP a\n\nb </think>c</think>STOP", "STOP a\n\nb ", "c</think>", true);
    check(&options, "cut off </thin\n", "cut off </thin", "", false);
    check(&options, "</think>", "", "", false);
    check(&options, "a<think>b</think><think>c", "a<think>b", "<think>c", false);
}

static void thinking_starts_outside(void **state)
{
    (void)state;
    const struct text_stream_options options = {.thinking = true};
    check(&options, "<think>\nwhy\n</think>\n\nso", "why", "so", false);
    check(&options, " \n<think>why</think>so", "why", "so", false);
    check(&options, "so <think>x</think>", "", "so <think>x</think>", false);
    check(&options, "<thin", "", "<thin", false);
    check(&options, " \n<thing>", "", " \n<thing>", false);
    check(&options, "<think></think>so", "", "so", false);
}

static void nothing_after_a_stop(void **state)
{
    (void)state;
    struct shown shown = {{0}, {0}};
    const struct slice stops[] = {SLICE("!")};
    const struct text_stream_options options = {.stops = stops, .stop_count = 1};
    struct text_stream *stream = text_stream_create(&options, collect, &shown);
    assert_false(text_stream_feed(stream, SLICE("a")));
    assert_true(text_stream_feed(stream, SLICE("b!c")));
    assert_true(text_stream_feed(stream, SLICE("d")));
    text_stream_end(stream);
    text_stream_destroy(stream);
    assert_string_equal(shown.content.data, "ab");
    buffer_free(&shown.content);
}

static void prompt_tail(void **state)
{
    (void)state;
    assert_true(text_prompt_starts_inside(SLICE("<|im_start|>assistant\n<think>\n")));
    assert_true(text_prompt_starts_inside(SLICE("<think>a</think><think>b")));
    assert_false(text_prompt_starts_inside(SLICE("<think>\n\n</think>\n\n")));
    assert_false(text_prompt_starts_inside(SLICE("what is <think>?<|im_end|>\nassistant\n")));
    assert_false(text_prompt_starts_inside(SLICE("")));
    assert_false(text_prompt_starts_inside(SLICE("think")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text),
        cmocka_unit_test(utf8_is_whole),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(overlapping_stops),
        cmocka_unit_test(thinking_starts_inside),
        cmocka_unit_test(thinking_starts_outside),
        cmocka_unit_test(nothing_after_a_stop),
        cmocka_unit_test(prompt_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
