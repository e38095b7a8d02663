/* test_api.c - request objects and answers: what is accepted, what is refused with which
 * sentence, and the shape of what comes back. */
#include "serve/harness.h"

#define USER(text) "[{\"role\": \"user\", \"content\": \"" text "\"}]"
#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"

static void start(void)
{
    server_start((struct serve_options){0}, test_limits());
}

/* ---- small readers */

static const char *text_at(const json_t *value, const char *key)
{
    const char *text = json_string_value(json_object_get(value, key));
    return text ? text : "(none)";
}

static i64 integer_at(const json_t *value, const char *key)
{
    return json_is_integer(json_object_get(value, key))
               ? json_integer_value(json_object_get(value, key))
               : -1;
}

static json_t *choice_of(const json_t *answer)
{
    assert_int_equal(json_array_size(json_object_get(answer, "choices")), 1);
    return json_array_get(json_object_get(answer, "choices"), 0);
}

/* The answer's object; asserts status 200. */
static json_t *answer_to(const char *path, const char *body)
{
    struct reply reply = ask_post(path, body);
    if (reply.status != 200)
        fail_msg("%s: status %d: %s", body, reply.status, reply.body.data);
    json_t *value = reply_json(&reply);
    reply_free(&reply);
    return value;
}

/* All events of a stream as an array of objects; asserts that [DONE] ends it. */
static json_t *events_of(const char *path, const char *body)
{
    struct reply reply = ask_post(path, body);
    if (reply.status != 200 || !reply.whole)
        fail_msg("%s: status %d: %s", body, reply.status, reply.body.data);
    assert_non_null(strstr(reply.head.data, "Content-Type: text/event-stream"));
    assert_true(slice_ends(buffer_slice(&reply.body), SLICE("data: [DONE]\n\n")));
    json_t *events = json_array();
    char *rest = reply.body.data, *event;
    while ((event = strsep(&rest, "\n")) != NULL) {
        if (strncmp(event, "data: {", 7) != 0)
            continue;
        json_t *value = json_loads(event + 6, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(value);
        json_array_append_new(events, value);
    }
    reply_free(&reply);
    return events;
}

/* Joins delta[key] (chat) or text over all events. */
static void join_events(const json_t *events, const char *key, struct buffer *text)
{
    size_t index;
    json_t *event;
    json_array_foreach (events, index, event) {
        json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
        json_t *from = strcmp(key, "text") == 0 ? choice : json_object_get(choice, "delta");
        const char *piece = json_string_value(json_object_get(from, key));
        if (piece)
            buffer_add_text(text, piece);
    }
}

/* ---- completions */

static void test_completion(void **state)
{
    (void)state;
    start();
    json_t *answer = answer_to(TEXT, "{\"model\": \"elpis-tiny\", \"prompt\": \"hello world\"}");
    json_t *choice = choice_of(answer), *usage = json_object_get(answer, "usage");
    assert_string_equal(text_at(answer, "object"), "text_completion");
    assert_true(strncmp(text_at(answer, "id"), "cmpl-", 5) == 0);
    assert_string_equal(text_at(answer, "model"), "elpis-tiny");
    assert_string_equal(text_at(answer, "system_fingerprint"), "elpis-0123456789abcdef");
    assert_string_equal(text_at(choice, "text"), "hello world");
    assert_string_equal(text_at(choice, "finish_reason"), "stop");
    assert_true(json_is_null(json_object_get(choice, "logprobs")));
    i64 prompt = integer_at(usage, "prompt_tokens");
    assert_int_equal(prompt, fake->prompt_count);
    assert_int_equal(integer_at(usage, "completion_tokens"), prompt + 1);
    assert_int_equal(integer_at(usage, "total_tokens"), 2 * prompt + 1);
    assert_int_equal(integer_at(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"),
                     FAKE_CACHED);
    assert_int_equal(json_object_size(usage), 4); /* nothing of rounds without a draft */
    json_decref(answer);
}

static void test_length(void **state)
{
    (void)state;
    start();
    json_t *answer = answer_to(TEXT, "{\"prompt\": \"a b c d e f g\", \"max_tokens\": 2}");
    assert_string_equal(text_at(choice_of(answer), "finish_reason"), "length");
    assert_int_equal(integer_at(json_object_get(answer, "usage"), "completion_tokens"), 2);
    json_decref(answer);
    answer = answer_to(CHAT, "{\"messages\": " USER("hello") ", \"max_completion_tokens\": 3}");
    assert_int_equal(fake->max_tokens, 3);
    json_decref(answer);
    answer = answer_to(TEXT, "{\"prompt\": \"hello\"}");
    assert_int_equal(fake->max_tokens, 4096);
    json_decref(answer);
}

static void test_prompt_forms(void **state)
{
    (void)state;
    static const char *const prompts[] = {"\"AB\"", "[\"AB\"]", "[33, 34]", "[[33, 34]]"};
    char body[128];
    start();
    for (size_t i = 0; i < COUNT_OF(prompts); i++) {
        snprintf(body, sizeof body, "{\"prompt\": %s}", prompts[i]);
        json_t *answer = answer_to(TEXT, body);
        if (i >= 2)
            assert_int_equal(fake->prompt_count, 2);
        else
            assert_string_equal(text_at(choice_of(answer), "text"), "AB");
        json_decref(answer);
    }
    /* special tokens in a text are text */
    json_t *answer = answer_to(TEXT, "{\"prompt\": \"<|im_end|>\"}");
    assert_string_equal(text_at(choice_of(answer), "text"), "<|im_end|>");
    assert_true(fake->prompt_count > 1);
    json_decref(answer);
    answer = answer_to(TEXT, "{\"prompt\": [4087, 4094], \"skip_special_tokens\": false}");
    assert_string_equal(text_at(choice_of(answer), "text"), "<|im_start|><think>");
    json_decref(answer);
    answer = answer_to(TEXT, "{\"prompt\": [4087, 4094]}");
    assert_string_equal(text_at(choice_of(answer), "text"), "<think>");
    json_decref(answer);
    expect_error(ask_post(TEXT, "{\"prompt\": \"\"}"), 400, "invalid_value", "prompt");
    expect_error(ask_post(TEXT, "{\"prompt\": []}"), 400, "invalid_value", "prompt");
    expect_error(ask_post(TEXT, "{\"prompt\": [4096]}"), 400, "invalid_value", "4095");
    expect_error(ask_post(TEXT, "{\"prompt\": [-1]}"), 400, "invalid_value", "-1");
    expect_error(ask_post(TEXT, "{\"prompt\": [1, \"a\"]}"), 400, "invalid_type", "prompt[1]");
    expect_error(ask_post(TEXT, "{\"prompt\": [[1], [2]]}"), 400, "unsupported_parameter", "one");
    expect_error(ask_post(TEXT, "{\"prompt\": 5}"), 400, "invalid_type", "an integer");
    expect_error(ask_post(TEXT, "{}"), 400, "missing_parameter", "prompt");
}

static void test_completion_stream(void **state)
{
    (void)state;
    struct buffer text = {0};
    start();
    json_t *events = events_of(
        TEXT, "{\"prompt\": \"Zoë likes 日本語 and 🦊.\", \"stream\": true}");
    join_events(events, "text", &text);
    assert_string_equal(text.data, "Zoë likes 日本語 and 🦊.");
    json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(text_at(choice_of(last), "finish_reason"), "stop");
    assert_true(json_array_size(events) > 5); /* not one lump */
    json_decref(events);
    buffer_free(&text);
}

/* ---- chat */

static void test_chat(void **state)
{
    (void)state;
    start();
    json_t *answer = answer_to(CHAT, "{\"messages\": " USER("deep</think>shallow") "}");
    json_t *message = json_object_get(choice_of(answer), "message");
    assert_string_equal(text_at(answer, "object"), "chat.completion");
    assert_true(strncmp(text_at(answer, "id"), "chatcmpl-", 9) == 0);
    assert_string_equal(text_at(message, "role"), "assistant");
    assert_non_null(strstr(text_at(message, "reasoning_content"), "deep"));
    assert_non_null(strstr(text_at(message, "content"), "shallow"));
    assert_null(strstr(text_at(message, "content"), "deep"));
    json_decref(answer);
}

static void test_chat_thinking_off(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "\"enable_thinking\": false",
        "\"chat_template_kwargs\": {\"enable_thinking\": false}",
        "\"reasoning_effort\": \"none\"",
        "\"reasoning_effort\": \"none\", \"enable_thinking\": false",
    };
    char body[256];
    start();
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        snprintf(body, sizeof body, "{\"messages\": " USER("plain words") ", %s}", ways[i]);
        json_t *answer = answer_to(CHAT, body);
        json_t *message = json_object_get(choice_of(answer), "message");
        assert_non_null(strstr(text_at(message, "content"), "plain words"));
        json_decref(answer);
    }
    expect_error(ask_post(CHAT, "{\"messages\": " USER("x") ", \"enable_thinking\": true, "
                                                            "\"reasoning_effort\": \"none\"}"),
                 400, "invalid_value", "two different ways");
    expect_error(ask_post(CHAT, "{\"messages\": " USER("x") ", \"enable_thinking\": 1}"), 400,
                 "invalid_type", "enable_thinking");
    expect_error(ask_post(CHAT, "{\"messages\": " USER("x") ", \"reasoning_effort\": \"much\"}"),
                 400, "invalid_value", "reasoning_effort");
    expect_error(ask_post(CHAT, "{\"messages\": " USER("x") ", \"chat_template_kwargs\": "
                                                            "{\"messages\": []}}"),
                 400, "invalid_value", "messages");
}

static void test_chat_stream(void **state)
{
    (void)state;
    struct buffer content = {0}, reasoning = {0};
    start();
    json_t *events = events_of(
        CHAT, "{\"messages\": " USER(
                  "deep</think>shallow") ", \"stream\": true, "
                                         "\"stream_options\": {\"include_usage\": true}}");
    size_t count = json_array_size(events);
    json_t *first = json_array_get(events, 0), *last = json_array_get(events, count - 1);
    assert_string_equal(text_at(first, "object"), "chat.completion.chunk");
    assert_string_equal(text_at(json_object_get(choice_of(first), "delta"), "role"), "assistant");
    assert_true(json_is_null(json_object_get(first, "usage")));
    assert_int_equal(json_array_size(json_object_get(last, "choices")), 0);
    assert_int_equal(integer_at(json_object_get(last, "usage"), "prompt_tokens"),
                     fake->prompt_count);
    assert_string_equal(text_at(choice_of(json_array_get(events, count - 2)), "finish_reason"),
                        "stop");
    join_events(events, "content", &content);
    join_events(events, "reasoning_content", &reasoning);
    assert_non_null(strstr(reasoning.data, "deep"));
    assert_non_null(strstr(content.data, "shallow"));
    buffer_free(&content);
    buffer_free(&reasoning);
    json_decref(events);
}

static void test_messages(void **state)
{
    (void)state;
    start();
    json_t *answer = answer_to(
        CHAT,
        "{\"messages\": [{\"role\": \"developer\", \"content\": \"Be brief.\"},"
        "{\"role\": \"user\", \"name\": \"Ada\", \"content\": [{\"type\": \"text\", \"text\": "
        "\"one\"}]},"
        "{\"role\": \"assistant\", \"content\": \"two\", \"refusal\": null, \"tool_calls\": [],"
        "\"reasoning_content\": \"hm\", \"audio\": null, \"annotations\": []},"
        "{\"role\": \"user\", \"content\": \"three\"}]}");
    json_decref(answer);
#define ONE(message) "{\"messages\": [" message "]}"
    expect_error(ask_post(CHAT, "{}"), 400, "missing_parameter", "messages");
    expect_error(ask_post(CHAT, ONE("")), 400, "invalid_value", "empty");
    expect_error(ask_post(CHAT, ONE("5")), 400, "invalid_type", "messages[0]");
    expect_error(ask_post(CHAT, ONE("{}")), 400, "invalid_value", "messages[0].role");
    expect_error(ask_post(CHAT, ONE("{\"role\": \"king\", \"content\": \"x\"}")), 400,
                 "invalid_value", "messages[0].role");
    expect_error(ask_post(CHAT, ONE("{\"role\": \"tool\", \"content\": \"x\"}")), 400,
                 "unsupported_parameter", "tools");
    expect_error(ask_post(CHAT, ONE("{\"role\": \"user\"}")), 400, "invalid_type",
                 "messages[0].content");
    expect_error(ask_post(CHAT, ONE("{\"role\": \"user\", \"content\": null}")), 400,
                 "invalid_type", "null");
    expect_error(ask_post(CHAT, ONE("{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
                                    "\"image_url\": {\"url\": \"x\"}}]}")),
                 400, "unsupported_content", "messages[0].content[0]");
    expect_error(ask_post(CHAT, ONE("{\"role\": \"user\", \"content\": \"x\", \"mood\": 1}")), 400,
                 "unknown_parameter", "mood");
    expect_error(ask_post(CHAT, ONE("{\"role\": \"assistant\", \"content\": \"x\", "
                                    "\"tool_calls\": [{}]}")),
                 400, "unsupported_parameter", "messages[0].tool_calls");
    /* the template's own word */
    expect_error(ask_post(CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"},"
                                "{\"role\": \"system\", \"content\": \"late\"}]}"),
                 400, "invalid_messages", "System message must be at the beginning.");
#undef ONE
}

/* ---- stop strings */

static void test_stops(void **state)
{
    (void)state;
    start();
    json_t *answer = answer_to(TEXT, "{\"prompt\": \"one two three four five\", "
                                     "\"stop\": \"ree fo\", \"seed\": 3000}");
    json_t *choice = choice_of(answer), *usage = json_object_get(answer, "usage");
    assert_string_equal(text_at(choice, "text"), "one two th");
    assert_string_equal(text_at(choice, "finish_reason"), "stop");
    assert_true(integer_at(usage, "completion_tokens") < fake->prompt_count);
    assert_true(integer_at(usage, "completion_tokens") > 0);
    json_decref(answer);
    answer = answer_to(TEXT,
                       "{\"prompt\": \"one two three\", \"stop\": [\"x\", \"y\", \"z\", \"two\"]}");
    assert_string_equal(text_at(choice_of(answer), "text"), "one ");
    json_decref(answer);
    /* a beginning that is none in the end comes out */
    answer = answer_to(TEXT, "{\"prompt\": \"one two\", \"stop\": [\"two!\"]}");
    assert_string_equal(text_at(choice_of(answer), "text"), "one two");
    json_decref(answer);
    json_t *events = events_of(TEXT, "{\"prompt\": \"one two three four\", \"stop\": [\"o three\"],"
                                     "\"stream\": true}");
    struct buffer text = {0};
    join_events(events, "text", &text);
    assert_string_equal(text.data, "one tw");
    buffer_free(&text);
    json_decref(events);
    expect_error(ask_post(TEXT, "{\"prompt\": \"x\", \"stop\": \"\"}"), 400, "invalid_value",
                 "stop");
    expect_error(ask_post(TEXT, "{\"prompt\": \"x\", \"stop\": [1]}"), 400, "invalid_type", "stop");
    expect_error(ask_post(TEXT, "{\"prompt\": \"x\", \"stop\": 1}"), 400, "invalid_type", "stop");
    expect_error(ask_post(TEXT, "{\"prompt\": \"x\", \"stop\": [\"1\",\"2\",\"3\",\"4\",\"5\"]}"),
                 400, "invalid_value", "at most 4");
}

/* ---- fields */

static void test_sampling(void **state)
{
    (void)state;
    start();
    json_t *answer = answer_to(
        TEXT,
        "{\"prompt\": \"x\", \"temperature\": 0.75, \"top_p\": 0.5, \"top_k\": 40, \"min_p\": 0.05,"
        "\"presence_penalty\": -1, \"frequency_penalty\": 0.25, \"repetition_penalty\": 1.5,"
        "\"seed\": -2}");
    const struct engine_sampling *sampling = &fake->sampling;
    assert_true(sampling->temperature == 0.75 && sampling->top_p == 0.5 && sampling->top_k == 40);
    assert_true(sampling->min_p == 0.05 && sampling->presence == -1 && sampling->frequency == 0.25);
    assert_true(sampling->repetition == 1.5 && sampling->seed == (u64)-2);
    json_decref(answer);
    answer = answer_to(TEXT, "{\"prompt\": \"x\", \"temperature\": null, \"top_k\": -1}");
    assert_true(sampling->temperature == 0 && sampling->top_p == 1 && sampling->top_k == 0);
    assert_true(sampling->min_p == 0 && sampling->presence == 0 && sampling->repetition == 1);
    json_decref(answer);
}

static void test_ignored(void **state)
{
    (void)state;
    start();
    json_decref(answer_to(
        CHAT, "{\"messages\": " USER(
                  "x") ", \"user\": \"me\", \"metadata\": {\"a\": \"b\"}, \"store\": true,"
                       "\"service_tier\": \"auto\", \"n\": 1, \"logprobs\": false, "
                       "\"top_logprobs\": null,"
                       "\"parallel_tool_calls\": true, \"tools\": [], \"tool_choice\": \"auto\","
                       "\"response_format\": {\"type\": \"text\"}, \"logit_bias\": {}, "
                       "\"modalities\": [\"text\"],"
                       "\"prompt_cache_key\": \"k\", \"audio\": null}"));
    json_decref(answer_to(TEXT, "{\"prompt\": \"x\", \"n\": 1, \"best_of\": 1, \"echo\": false,"
                                "\"logprobs\": null, \"suffix\": null}"));
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *field, *name, *code;
        int status;
    } cases[] = {
        {"\"tools\": [{\"type\": \"function\"}]", "tools", "unsupported_parameter", 400},
        {"\"tool_choice\": \"required\"", "tool_choice", "unsupported_parameter", 400},
        {"\"n\": 2", "n", "unsupported_parameter", 400},
        {"\"logprobs\": true", "logprobs", "unsupported_parameter", 400},
        {"\"response_format\": {\"type\": \"json_object\"}", "response_format",
         "unsupported_parameter", 400},
        {"\"logit_bias\": {\"5\": 1}", "logit_bias", "unsupported_parameter", 400},
        {"\"audio\": {}", "audio", "unsupported_parameter", 400},
        {"\"temprature\": 1", "temprature", "unknown_parameter", 400},
        {"\"prompt\": \"x\"", "prompt", "unknown_parameter", 400},
        {"\"model\": \"gpt-4o\"", "model", "model_not_found", 404},
        {"\"model\": 4", "model", "invalid_type", 400},
        {"\"stream\": 1", "stream", "invalid_type", 400},
        {"\"stream_options\": {}", "stream_options", "invalid_value", 400},
        {"\"stream\": true, \"stream_options\": {\"all\": true}", "stream_options",
         "unknown_parameter", 400},
        {"\"stream\": true, \"stream_options\": {\"include_usage\": 1}",
         "stream_options.include_usage", "invalid_type", 400},
        {"\"max_tokens\": 0", "max_tokens", "invalid_value", 400},
        {"\"max_tokens\": 1.5", "max_tokens", "invalid_type", 400},
        {"\"max_tokens\": \"5\"", "max_tokens", "invalid_type", 400},
        {"\"max_tokens\": 5, \"max_completion_tokens\": 5", "max_completion_tokens",
         "invalid_value", 400},
        {"\"temperature\": 2.1", "temperature", "invalid_value", 400},
        {"\"temperature\": -0.1", "temperature", "invalid_value", 400},
        {"\"temperature\": \"hot\"", "temperature", "invalid_type", 400},
        {"\"top_p\": 0", "top_p", "invalid_value", 400},
        {"\"top_k\": -2", "top_k", "invalid_value", 400},
        {"\"min_p\": 1.01", "min_p", "invalid_value", 400},
        {"\"presence_penalty\": 3", "presence_penalty", "invalid_value", 400},
        {"\"repetition_penalty\": 0", "repetition_penalty", "invalid_value", 400},
        {"\"seed\": 1.5", "seed", "invalid_type", 400},
        {"\"user\": 5", "user", "invalid_type", 400},
        {"\"chat_template_kwargs\": []", "chat_template_kwargs", "invalid_type", 400},
    };
    char body[512];
    start();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        snprintf(body, sizeof body, "{\"messages\": " USER("x") ", %s}", cases[i].field);
        struct reply reply = ask_post(CHAT, body);
        json_t *value = reply_json(&reply);
        assert_string_equal(text_at(json_object_get(value, "error"), "param"), cases[i].name);
        assert_string_equal(text_at(json_object_get(value, "error"), "type"),
                            "invalid_request_error");
        json_decref(value);
        expect_error(reply, cases[i].status, cases[i].code, cases[i].name);
    }
    assert_int_equal(atomic_load(&fake->started), 0);
}

static void test_context(void **state)
{
    (void)state;
    start();
    expect_error(ask_post(TEXT, "{\"prompt\": [1, 2, 3], \"max_tokens\": 299998}"), 400,
                 "context_length_exceeded",
                 "The prompt has 3 tokens and max_tokens is 299998: together over the context of "
                 "300000 tokens.");
    json_decref(answer_to(TEXT, "{\"prompt\": [1, 2, 3], \"max_tokens\": 299997}"));
    struct buffer body = {0};
    buffer_add_text(&body, "{\"prompt\": [1");
    for (int i = 1; i < FAKE_CONTEXT - 10; i++)
        buffer_add_text(&body, ",1");
    size_t shorter = body.size;
    buffer_add_text(&body, "], \"top_k\": 667}");
    expect_error(ask_post(TEXT, body.data), 500, "internal_error", NULL);
    assert_int_equal(fake->max_tokens, 10); /* what the context leaves */
    body.size = shorter;
    for (int i = 0; i < 10; i++)
        buffer_add_text(&body, ",1");
    buffer_add_text(&body, "]}");
    expect_error(ask_post(TEXT, body.data), 400, "context_length_exceeded", "300000");
    buffer_free(&body);
}

/* ---- JSON */

static void test_bad_json(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "",
        "{",
        "nonsense",
        "{\"prompt\": \"x\"",
        "{\"prompt\": \"x\"} trailing",
        "{\"prompt\": \"x\", \"prompt\": \"y\"}",
        "{\"prompt\": \"\xff\xfe\"}",
        "{\"prompt\": \"\xc0\x80\"}",
        "{\"prompt\": \"\xed\xa0\x80\"}",
        "{\"prompt\": \"\\ud800\"}",
        "{\"prompt\": NaN}",
        "{\"max_tokens\": 1e999}",
        "{\"max_tokens\": 99999999999999999999}",
        "{'prompt': 1}",
        "{\"prompt\": \"a\nb\"}",
        "\xef\xbb\xbf{}",
    };
    start();
    for (size_t i = 0; i < COUNT_OF(bodies); i++)
        expect_error(ask_post(TEXT, bodies[i]), 400, "invalid_json", "not valid JSON");
    expect_error(ask_post(TEXT, "[]"), 400, "invalid_type", "object");
    expect_error(ask_post(TEXT, "null"), 400, "invalid_json", NULL);
    /* JSON, but no text that is taken */
    expect_error(ask_post(TEXT, "{\"prompt\": \"a\\u0000b\"}"), 400, "invalid_value",
                 "has the character \\u0000, which is not supported (line 1, column 21)");
    expect_error(ask_post(TEXT, "{\"prompt\\u0000\": 1}"), 400, "invalid_value", "\\u0000");
    assert_int_equal(server_stop(), 0);
}

static void test_deep_json(void **state)
{
    (void)state;
    struct buffer body = {0};
    start();
    for (int kind = 0; kind < 2; kind++) {
        buffer_clear(&body);
        buffer_add_text(&body, "{\"prompt\": ");
        for (int i = 0; i < 10000; i++)
            buffer_add_text(&body, kind ? "[" : "{\"a\":");
        expect_error(ask_post(TEXT, body.data), 400, "invalid_json", "depth");
    }
    /* as deep as JSON may be, handed to the template */
    buffer_clear(&body);
    buffer_add_text(&body, "{\"messages\": " USER("x") ", \"chat_template_kwargs\": {\"a\": ");
    for (int i = 0; i < 2040; i++)
        buffer_add_text(&body, "[");
    for (int i = 0; i < 2040; i++)
        buffer_add_text(&body, "]");
    buffer_add_text(&body, "}}");
    struct reply reply = ask_post(CHAT, body.data);
    assert_true(reply.status == 200 || reply.status == 400);
    reply_free(&reply);
    buffer_free(&body);
    assert_int_equal(server_stop(), 0);
}

static void test_many_values(void **state)
{
    (void)state;
    struct buffer body = {0};
    start();
    buffer_add_text(&body, "{\"prompt\": [{}");
    for (int i = 0; i < 600000; i++)
        buffer_add_text(&body, ",{}");
    buffer_add_text(&body, "]}");
    expect_error(ask_post(TEXT, body.data), 400, "invalid_json", "JSON values");
    buffer_clear(&body);
    buffer_add_text(&body, "{\"prompt\": \"\\\"");
    for (int i = 0; i < 600000; i++)
        buffer_add_text(&body, ","); /* in a string they separate nothing */
    buffer_add_text(&body, "\", \"top_k\": 667}");
    struct reply reply = ask_post(TEXT, body.data);
    assert_true(reply.status == 500 || strstr(reply.body.data, "context_length_exceeded"));
    reply_free(&reply);
    buffer_free(&body);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_completion),        TEST(test_length),   TEST(test_prompt_forms),
        TEST(test_completion_stream), TEST(test_chat),     TEST(test_chat_thinking_off),
        TEST(test_chat_stream),       TEST(test_messages), TEST(test_stops),
        TEST(test_sampling),          TEST(test_ignored),  TEST(test_refused),
        TEST(test_context),           TEST(test_bad_json), TEST(test_deep_json),
        TEST(test_many_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
