/* test_tokenizer.c - ids and decoded text against the `tokenizers` library's (tests/data), long
 * words against a merge loop written the plain way, and files that must be refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/text.h"
#include "text_folder.h"

#define TINY "tests/models/elpis-tiny"

static struct tokenizer *open_tiny(void)
{
    struct tokenizer *tokenizer = NULL;
    struct error error = {0};
    if (tokenizer_open(&tokenizer, TINY, &error) < 0)
        fail_msg("%s", error.text);
    return tokenizer;
}

static void check_ids(const struct buffer *ids, json_t *wanted, const char *text)
{
    size_t count = ids->size / sizeof(u32);
    const u32 *found = (const u32 *)ids->data;
    for (size_t i = 0; i < count && i < json_array_size(wanted); i++)
        if (found[i] != json_integer_value(json_array_get(wanted, i)))
            fail_msg("'%s': id %zu is %u, expected %lld", text, i, found[i],
                     (long long)json_integer_value(json_array_get(wanted, i)));
    if (count != json_array_size(wanted))
        fail_msg("'%s': %zu ids, expected %zu", text, count, json_array_size(wanted));
}

static void golden_ids(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_tiny();
    json_t *cases = json_load_file("tests/data/tokenizer.json", JSON_ALLOW_NUL, NULL), *item;
    assert_non_null(cases);
    assert_true(json_array_size(cases) > 10);
    size_t i;
    json_array_foreach (cases, i, item) {
        json_t *text = json_object_get(item, "text");
        struct slice slice = {json_string_value(text), json_string_length(text)};
        struct buffer ids = {0}, decoded = {0};
        struct error error = {0};
        assert_int_equal(tokenizer_encode(tokenizer, slice, true, &ids, &error), 0);
        check_ids(&ids, json_object_get(item, "ids"), slice.data);
        tokenizer_decode(tokenizer, (u32 *)ids.data, ids.size / 4, false, &decoded);
        json_t *wanted = json_object_get(item, "decoded");
        assert_int_equal(decoded.size, json_string_length(wanted));
        if (decoded.size)
            assert_memory_equal(decoded.data, json_string_value(wanted), decoded.size);
        buffer_free(&ids);
        buffer_free(&decoded);
    }
    json_decref(cases);
    tokenizer_close(tokenizer);
}

static void golden_dialogues(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_tiny();
    json_t *cases = json_load_file("tests/data/chat_template.json", 0, NULL), *item;
    size_t i;
    json_array_foreach (cases, i, item) {
        json_t *text = json_object_get(item, "rendered");
        if (!json_object_get(item, "ids"))
            continue;
        struct slice slice = {json_string_value(text), json_string_length(text)};
        struct buffer ids = {0};
        struct error error = {0};
        assert_int_equal(tokenizer_encode(tokenizer, slice, true, &ids, &error), 0);
        check_ids(&ids, json_object_get(item, "ids"), slice.data);
        buffer_free(&ids);
    }
    json_decref(cases);
    tokenizer_close(tokenizer);
}

static void special_text_stays_text(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_tiny();
    struct buffer ids = {0}, decoded = {0};
    struct error error = {0};
    struct slice text = SLICE("a<|im_end|>b");
    assert_int_equal(tokenizer_encode(tokenizer, text, false, &ids, &error), 0);
    i32 end = tokenizer_special_id(tokenizer, "<|im_end|>");
    assert_int_equal(end, 4088);
    for (size_t i = 0; i < ids.size / 4; i++)
        assert_int_not_equal(((u32 *)ids.data)[i], end);
    tokenizer_decode(tokenizer, (u32 *)ids.data, ids.size / 4, true, &decoded);
    assert_string_equal(decoded.data, text.data);
    buffer_clear(&ids);
    buffer_clear(&decoded);
    assert_int_equal(tokenizer_encode(tokenizer, text, true, &ids, &error), 0);
    tokenizer_decode(tokenizer, (u32 *)ids.data, ids.size / 4, true, &decoded);
    assert_string_equal(decoded.data, "ab");
    assert_int_equal(tokenizer_special_id(tokenizer, "<|nobody|>"), -1);
    assert_int_equal(tokenizer_count(tokenizer), 4096);
    tokenizer_token_bytes(tokenizer, 1u << 30, false, &decoded);
    assert_string_equal(decoded.data, "ab");
    buffer_free(&ids);
    buffer_free(&decoded);
    tokenizer_close(tokenizer);
}

static void bad_utf8_is_named(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_tiny();
    struct buffer ids = {0}, text = {0};
    struct error error = {0};
    assert_int_equal(tokenizer_encode(tokenizer, SLICE("ab\xff"), true, &ids, &error), -1);
    assert_int_equal(error.code, ERROR_USAGE);
    assert_non_null(strstr(error.text, "byte 2"));
    assert_int_equal(tokenizer_encode(tokenizer, SLICE("\xe2\x82"), true, &ids, &error), -1);
    /* Half of a character decodes to U+FFFD. */
    buffer_clear(&ids);
    assert_int_equal(tokenizer_encode(tokenizer, SLICE("\xf0\x9f\x98\x80"), true, &ids, &error), 0);
    assert_true(ids.size / 4 > 1);
    tokenizer_decode(tokenizer, (u32 *)ids.data, ids.size / 4 - 1, true, &text);
    assert_string_equal(text.data, "\xef\xbf\xbd");
    buffer_free(&text);
    buffer_free(&ids);
    tokenizer_close(tokenizer);
}

/* ---- the plain merge loop */

struct naive {
    json_t *vocab, *ranks; /* name -> id; "left right" -> rank */
};

static json_t *load_ranks(json_t *merges)
{
    json_t *ranks = json_object(), *pair;
    size_t rank;
    json_array_foreach (merges, rank, pair) {
        char key[512];
        snprintf(key, sizeof key, "%s %s", json_string_value(json_array_get(pair, 0)),
                 json_string_value(json_array_get(pair, 1)));
        json_object_set_new(ranks, key, json_integer((json_int_t)rank));
    }
    return ranks;
}

/* letters: lower case only, so that bytes spell themselves and the word is one word. */
static size_t naive_encode(const struct naive *naive, const char *letters, size_t size, u32 *ids)
{
    char(*parts)[64] = malloc(size * sizeof *parts);
    size_t count = size;
    for (size_t i = 0; i < size; i++)
        snprintf(parts[i], sizeof *parts, "%c", letters[i]);
    for (;;) {
        json_int_t lowest = INT64_MAX;
        size_t best = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            char key[160];
            snprintf(key, sizeof key, "%s %s", parts[i], parts[i + 1]);
            json_t *rank = json_object_get(naive->ranks, key);
            if (rank && json_integer_value(rank) < lowest) {
                lowest = json_integer_value(rank);
                best = i;
            }
        }
        if (lowest == INT64_MAX)
            break;
        memcpy(parts[best] + strlen(parts[best]), parts[best + 1], strlen(parts[best + 1]) + 1);
        memmove(parts[best + 1], parts[best + 2], (count - best - 2) * sizeof *parts);
        count--;
    }
    for (size_t i = 0; i < count; i++)
        ids[i] = (u32)json_integer_value(json_object_get(naive->vocab, parts[i]));
    free(parts);
    return count;
}

static void words_of_every_length(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_tiny();
    json_t *file = json_load_file(TINY "/tokenizer.json", 0, NULL);
    json_t *model = json_object_get(file, "model");
    struct naive naive = {json_object_get(model, "vocab"),
                          load_ranks(json_object_get(model, "merges"))};
    u32 random = 12345;
    for (size_t size = 1; size < 200; size++) {
        char word[200];
        u32 wanted[200];
        for (size_t i = 0; i < size; i++) {
            random = random * 1664525u + 1013904223u;
            word[i] = "etaoinshrdlu"[random >> 16 & 7];
        }
        size_t count = naive_encode(&naive, word, size, wanted);
        struct buffer ids = {0};
        struct error error = {0};
        assert_int_equal(
            tokenizer_encode(tokenizer, (struct slice){word, size}, true, &ids, &error), 0);
        assert_int_equal(ids.size / 4, count);
        assert_memory_equal(ids.data, wanted, ids.size);
        buffer_free(&ids);
    }
    json_decref(naive.ranks);
    json_decref(file);
    tokenizer_close(tokenizer);
}

/* A quadratic merge loop or a backtracking split would take minutes and run into the suite's
 * limit. */
static void megabyte_without_a_break(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_tiny();
    const char fillers[] = {'a', ' ', '\n', '<', '9'};
    size_t size = 1 << 20;
    for (size_t k = 0; k < sizeof fillers; k++) {
        struct buffer text = {0}, ids = {0}, decoded = {0};
        struct error error = {0};
        memset(buffer_extend(&text, size), fillers[k], size);
        assert_int_equal(tokenizer_encode(tokenizer, buffer_slice(&text), true, &ids, &error), 0);
        tokenizer_decode(tokenizer, (u32 *)ids.data, ids.size / 4, true, &decoded);
        assert_true(slice_equal(buffer_slice(&decoded), buffer_slice(&text)));
        buffer_free(&text);
        buffer_free(&ids);
        buffer_free(&decoded);
    }
    tokenizer_close(tokenizer);
}

/* One tokenizer, several threads: what make tsan looks at. */
static void *encode_often(void *argument)
{
    const struct tokenizer *tokenizer = argument;
    struct slice text = SLICE("<|im_start|>user\n  two  e\xcc\x81 \xe5\xb8\x8c 123<|im_end|>");
    size_t wrong = 0;
    for (int i = 0; i < 50; i++) {
        struct buffer ids = {0}, decoded = {0};
        struct error error = {0};
        wrong += tokenizer_encode(tokenizer, text, true, &ids, &error) < 0;
        tokenizer_decode(tokenizer, (u32 *)ids.data, ids.size / 4, true, &decoded);
        wrong += strcmp(decoded.data, "user\n  two  \xc3\xa9 \xe5\xb8\x8c 123") != 0;
        buffer_free(&ids);
        buffer_free(&decoded);
    }
    return (void *)wrong;
}

static void several_threads(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_tiny();
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, tokenizer), 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        void *wrong = NULL;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    tokenizer_close(tokenizer);
}

/* ---- added tokens and refusals, on small files made here */

static struct buffer small_file(const char *added, const char *replace, const char *by)
{
    json_t *vocab = json_object();
    struct tokenizer *tiny = open_tiny();
    json_t *file = json_load_file(TINY "/tokenizer.json", 0, NULL), *id;
    const char *name;
    json_object_foreach (json_object_get(json_object_get(file, "model"), "vocab"), name, id) {
        if (json_integer_value(id) < 256)
            json_object_set(vocab, name, id);
    }
    char *vocab_text = json_dumps(vocab, 0);
    struct buffer text = {0};
    buffer_format(&text,
                  "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[%s],"
                  "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                  "\"add_prefix_space\":false,\"use_regex\":true},\"post_processor\":null,"
                  "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
                  "\"vocab\":%s,\"merges\":[]}}",
                  added, vocab_text);
    if (replace) {
        char *at = strstr(text.data, replace);
        assert_non_null(at);
        struct buffer changed = {0};
        buffer_add(&changed, text.data, (size_t)(at - text.data));
        buffer_add_text(&changed, by);
        buffer_add_text(&changed, at + strlen(replace));
        buffer_free(&text);
        text = changed;
    }
    free(vocab_text);
    json_decref(vocab);
    json_decref(file);
    tokenizer_close(tiny);
    return text;
}

static struct tokenizer *open_small(const char *added, const char *config)
{
    struct buffer text = small_file(added, NULL, NULL);
    char folder[] = FOLDER_TEMPLATE;
    folder_make(folder);
    folder_write(folder, "tokenizer.json", text.data);
    if (config)
        folder_write(folder, "tokenizer_config.json", config);
    struct tokenizer *tokenizer = NULL;
    struct error error = {0};
    int result = tokenizer_open(&tokenizer, folder, &error);
    folder_remove(folder);
    buffer_free(&text);
    if (result < 0)
        fail_msg("%s", error.text);
    return tokenizer;
}

/* Ids of 256 and more as letters A.., bytes as they are. */
static void check_layout(struct tokenizer *tokenizer, const char *text, const char *wanted)
{
    struct buffer ids = {0}, shown = {0};
    struct error error = {0};
    assert_int_equal(tokenizer_encode(tokenizer, slice_of(text), true, &ids, &error), 0);
    for (size_t i = 0; i < ids.size / 4; i++) {
        u32 id = ((u32 *)ids.data)[i];
        if (id >= 256)
            buffer_format(&shown, "[%c]", 'A' + (int)(id - 256));
        else
            tokenizer_token_bytes(tokenizer, id, false, &shown);
    }
    assert_string_equal(shown.data ? shown.data : "", wanted);
    buffer_free(&ids);
    buffer_free(&shown);
}

static void added_token_flags(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = open_small(
        "{\"id\":256,\"content\":\"<a>\",\"special\":true,\"lstrip\":true,"
        "\"rstrip\":false,\"single_word\":false,\"normalized\":false},"
        "{\"id\":257,\"content\":\"<ab\",\"special\":false,\"lstrip\":false,"
        "\"rstrip\":true,\"single_word\":false,\"normalized\":false},"
        "{\"id\":258,\"content\":\"cat\",\"special\":false,\"lstrip\":false,"
        "\"rstrip\":false,\"single_word\":true,\"normalized\":false},"
        "{\"id\":259,\"content\":\"e\\u0301\",\"special\":false,\"lstrip\":false,"
        "\"rstrip\":false,\"single_word\":false,\"normalized\":true}",
        "{\"added_tokens_decoder\":{\"260\":{\"content\":\"<abc>\",\"special\":true}}}");
    check_layout(tokenizer, "x \t<a> y", "x[A] y");
    check_layout(tokenizer, "x <ab \n y", "x [B]y");
    check_layout(tokenizer, "<ab <a>", "[B][A]");
    check_layout(tokenizer, "x<abc>y<ab>", "x[E]y[B]>");
    check_layout(tokenizer, "cat cats a_cat cat.", "[C] cats a_cat [C].");
    check_layout(tokenizer, "caf\xc3\xa9 cafe\xcc\x81", "caf[D] caf[D]");
    assert_int_equal(tokenizer_special_id(tokenizer, "<abc>"), 260);
    assert_int_equal(tokenizer_count(tokenizer), 261);
    tokenizer_close(tokenizer);
}

static void configuration_flags_win(void **state)
{
    (void)state;
    const char *added = "{\"id\":256,\"content\":\"<a>\",\"special\":false,\"lstrip\":false,"
                        "\"rstrip\":false,\"single_word\":false,\"normalized\":false}";
    struct tokenizer *tokenizer = open_small(
        added, "{\"added_tokens_decoder\":{\"256\":{\"content\":\"<a>\",\"special\":true}}}");
    struct buffer bytes = {0};
    tokenizer_token_bytes(tokenizer, 256, true, &bytes);
    assert_int_equal(bytes.size, 0);
    buffer_free(&bytes);
    tokenizer_close(tokenizer);
}

static void check_refused(const char *replace, const char *by, const char *needle)
{
    struct buffer text = small_file("", replace, by);
    char folder[] = FOLDER_TEMPLATE;
    folder_make(folder);
    folder_write(folder, "tokenizer.json", text.data);
    struct tokenizer *tokenizer = NULL;
    struct error error = {0};
    int result = tokenizer_open(&tokenizer, folder, &error);
    folder_remove(folder);
    buffer_free(&text);
    if (result == 0)
        fail_msg("%s was accepted", by);
    assert_int_equal(error.code, ERROR_MODEL);
    if (!strstr(error.text, needle))
        fail_msg("expected '%s' in: %s", needle, error.text);
}

static void refusals(void **state)
{
    (void)state;
    check_refused("\"type\":\"NFC\"", "\"type\":\"NFKC\"", "normalizer");
    check_refused("\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type");
    check_refused("\"add_prefix_space\":false", "\"add_prefix_space\":true", "add_prefix_space");
    check_refused("\"post_processor\":null", "\"post_processor\":{\"type\":\"TemplateProcessing\"}",
                  "post_processor");
    check_refused("\"truncation\":null", "\"truncation\":{\"max_length\":8}", "truncation");
    check_refused("\"merges\":[]", "\"merges\":[\"a zz\"]", "merges[0]");
    check_refused("\"merges\":[]", "\"merges\":[7]", "merges[0]");
    check_refused("\"merges\":[]", "\"merges\":[],\"dropout\":0.1", "dropout");
    check_refused("\"merges\":[]", "\"merges\":[],\"end_of_word_suffix\":\"_\"",
                  "end_of_word_suffix");
    check_refused("\"merges\":[]", "\"merges\":[],\"novelty\":1", "novelty");
    check_refused("\"type\":\"ByteLevel\",\"add", "\"type\":\"Digits\",\"add", "Digits");
    check_refused("\"version\"", "\"version\":\"1.0\",\"version\"", "line 1");
    check_refused("\"vocab\":{", "\"vocab\":{\"zz\":-1,", "'zz'");
    check_refused("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
                  "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"}",
                  "(a");
    check_refused("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
                  "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\"}",
                  "behavior");
    check_refused(
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"},\"behavior\":\"Isolated\"}", "\\h");
    check_refused("\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null", "decoder");
}

static void missing_file(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = NULL;
    struct error error = {0};
    assert_int_equal(tokenizer_open(&tokenizer, "tests/data/nowhere", &error), -1);
    assert_int_equal(error.code, ERROR_MODEL);
    assert_non_null(strstr(error.text, "tests/data/nowhere is not a folder"));
    assert_int_equal(tokenizer_open(&tokenizer, "tests/models", &error), -1);
    assert_int_equal(error.code, ERROR_MODEL);
    assert_non_null(strstr(error.text, "tests/models/tokenizer.json is missing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_ids),
        cmocka_unit_test(golden_dialogues),
        cmocka_unit_test(special_text_stays_text),
        cmocka_unit_test(bad_utf8_is_named),
        cmocka_unit_test(words_of_every_length),
        cmocka_unit_test(megabyte_without_a_break),
        cmocka_unit_test(several_threads),
        cmocka_unit_test(added_token_flags),
        cmocka_unit_test(configuration_flags_win),
        cmocka_unit_test(refusals),
        cmocka_unit_test(missing_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
