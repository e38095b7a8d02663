/* test_metrics.c - /metrics and what usage says of speculation: the format, read strictly, and
 * numbers that must move with requests. */
#include <ctype.h>
#include <math.h>
#include <sys/stat.h>

#include "serve/harness.h"

#define TEXT "/v1/completions"
#define CHAT "/v1/chat/completions"
#define DRAFT_FOLDER "tests/models/elpis-tiny-dflash2"

/* ---- a reader of the text format 0.0.4 that takes nothing else */

enum { SAMPLES = 256, NAME = 256 };

struct sample {
    char name[NAME]; /* with its labels */
    double value;
};

struct samples {
    struct sample list[SAMPLES];
    u32 count;
};

static size_t name_length(const char *text)
{
    size_t size = 0;
    if (isdigit((unsigned char)text[0]))
        return 0;
    while (isalnum((unsigned char)text[size]) || text[size] == '_' || text[size] == ':')
        size++;
    return size;
}

/* The length of {name="value",...}. */
static size_t labels_length(const char *line)
{
    const char *at = line;
    do {
        size_t size = name_length(++at);
        if (!size || at[size] != '=' || at[size + 1] != '"')
            fail_msg("labels: %s", line);
        for (at += size + 2; *at != '"'; at++) {
            if (*at == '\\' && !strchr("\\\"n", *++at))
                fail_msg("escape: %s", line);
            if (!*at)
                fail_msg("open label: %s", line);
        }
        at++;
    } while (*at == ',');
    if (*at != '}')
        fail_msg("labels: %s", line);
    return (size_t)(at + 1 - line);
}

static void read_sample(struct samples *samples, const char *line, size_t name)
{
    struct sample *sample = &samples->list[samples->count];
    size_t size = name + (line[name] == '{' ? labels_length(line + name) : 0);
    char *end;
    assert_true(size < NAME && line[size] == ' ' && samples->count < SAMPLES);
    memcpy(sample->name, line, size);
    sample->name[size] = 0;
    for (u32 i = 0; i < samples->count; i++)
        assert_string_not_equal(samples->list[i].name, sample->name);
    sample->value = strtod(line + size + 1, &end);
    if (end == line + size + 1 || *end || !isfinite(sample->value) || sample->value < 0)
        fail_msg("value: %s", line);
    samples->count++;
}

/* Whether a sample's name belongs to a family of this type. */
static bool belongs(const char *line, size_t size, const char *family, const char *type)
{
    const char *endings[] = {"_bucket{le=\"", "_sum ", "_count "};
    size_t length = strlen(family);
    if (strcmp(type, "histogram") != 0)
        return size == length && memcmp(line, family, length) == 0;
    for (size_t i = 0; i < COUNT_OF(endings) && strncmp(line, family, length) == 0; i++)
        if (strncmp(line + length, endings[i], strlen(endings[i])) == 0)
            return true;
    return false;
}

static void read_type(const char *line, const char *family, char type[16])
{
    char name[NAME];
    int end = 0;
    if (sscanf(line, "# TYPE %255s %15s%n", name, type, &end) != 2 || line[end])
        fail_msg("expected a TYPE line: %s", line);
    assert_string_equal(name, family);
    const bool counts = slice_ends(slice_of(family), SLICE("_total"));
    if (strcmp(type, counts ? "counter" : "gauge") != 0 &&
        (counts || strcmp(type, "histogram") != 0))
        fail_msg("type: %s", line);
}

/* Every family: HELP, TYPE, at least one sample; none twice; a line feed after every line. */
static void read_text(const char *text, struct samples *samples)
{
    char *copy = memory_copy_text(slice_of(text)), *rest = copy, *line;
    char family[NAME] = "", type[16] = "", seen[8192] = " ";
    u32 in_family = 1;
    samples->count = 0;
    assert_true(slice_ends(slice_of(text), SLICE("\n")));
    while ((line = strsep(&rest, "\n")) != NULL && (rest || *line)) {
        if (line[0] != '#') {
            size_t size = name_length(line);
            if (!belongs(line, size, family, type))
                fail_msg("not of %s: '%s'", family, line);
            read_sample(samples, line, size);
            in_family++;
            continue;
        }
        assert_true(in_family > 0);
        in_family = 0;
        if (sscanf(line, "# HELP %255s", family) != 1 || strncmp(family, "elpis_", 6) != 0 ||
            strlen(line) < strlen(family) + 10)
            fail_msg("expected a HELP line: %s", line);
        char word[NAME + 2];
        snprintf(word, sizeof word, " %s ", family);
        assert_null(strstr(seen, word));
        strcat(seen, word);
        line = strsep(&rest, "\n");
        assert_non_null(line);
        read_type(line, family, type);
    }
    assert_true(in_family > 0);
    memory_free(copy);
}

static double value_in(const struct samples *samples, const char *name)
{
    for (u32 i = 0; i < samples->count; i++)
        if (strcmp(samples->list[i].name, name) == 0)
            return samples->list[i].value;
    fail_msg("there is no %s", name);
    return 0;
}

static void check_histogram(const struct samples *samples)
{
    char name[NAME];
    double before = 0;
    for (u32 i = 1; i <= ENGINE_ROWS + 1; i++) {
        snprintf(name, sizeof name, "elpis_tokens_per_round_bucket{le=\"%u\"}", i);
        if (i > ENGINE_ROWS)
            strcpy(name, "elpis_tokens_per_round_bucket{le=\"+Inf\"}");
        assert_true(value_in(samples, name) >= before);
        before = value_in(samples, name);
    }
    assert_true(before == value_in(samples, "elpis_tokens_per_round_count"));
}

/* Asks /metrics. */
static struct samples scrape(void)
{
    struct samples samples;
    struct reply reply = ask_get("/metrics");
    assert_int_equal(reply.status, 200);
    assert_non_null(
        strstr(reply.head.data, "\nContent-Type: text/plain; version=0.0.4; charset=utf-8\n"));
    read_text(reply.body.data, &samples);
    check_histogram(&samples);
    reply_free(&reply);
    return samples;
}

static void expect_number(const struct samples *samples, const char *name, double value)
{
    if (value_in(samples, name) != value)
        fail_msg("%s is %g, expected %g", name, value_in(samples, name), value);
}

/* Scrapes until a sample has a value. */
static void wait_value(const char *name, double value)
{
    double until = clock_seconds() + WAIT_SECONDS;
    for (;;) {
        struct samples samples = scrape();
        if (value_in(&samples, name) == value)
            return;
        if (clock_seconds() > until)
            fail_msg("%s stayed at %g, expected %g", name, value_in(&samples, name), value);
        usleep(2000);
    }
}

static void answered(const char *path, const char *body, int status)
{
    struct reply reply = ask_post(path, body);
    if (reply.status != status)
        fail_msg("%s: status %d, expected %d", body, reply.status, status);
    reply_free(&reply);
}

static int post(const char *body)
{
    int client = client_open();
    char *request = post_text(TEXT, body);
    client_text(client, request);
    memory_free(request);
    return client;
}

/* ---- the text */

static void test_from_the_start(void **state)
{
    (void)state;
    server_start((struct serve_options){.model_name = "a\"b\\c\nd", .version = "1.2.3"},
                 test_limits());
    struct samples samples = scrape();
    expect_number(&samples,
                  "elpis_build_info{version=\"1.2.3\",model=\"a\\\"b\\\\c\\nd\",draft=\"\","
                  "plan=\"0123456789abcdef\"}",
                  1);
    expect_number(&samples, "elpis_engine_state{state=\"ok\"}", 1);
    expect_number(&samples, "elpis_engine_state{state=\"loading\"}", 0);
    static const char *const zeros[] = {
        "elpis_http_requests_total{endpoint=\"/v1/chat/completions\",status=\"2xx\"}",
        "elpis_http_requests_total{endpoint=\"/metrics\",status=\"2xx\"}",
        "elpis_http_requests_total{endpoint=\"other\",status=\"4xx\"}",
        "elpis_requests_running",
        "elpis_requests_waiting",
        "elpis_requests_refused_total{reason=\"queue_full\"}",
        "elpis_requests_finished_total{result=\"stop\"}",
        "elpis_prompt_running_tokens",
        "elpis_prompt_running_tokens_done",
        "elpis_prompt_tokens_total",
        "elpis_prompt_tokens_cached_total",
        "elpis_completion_tokens_total",
        "elpis_prefill_seconds_total",
        "elpis_decode_seconds_total",
        "elpis_rounds_total",
        "elpis_rounds_recomputed_total",
        "elpis_drafted_tokens_total",
        "elpis_accepted_tokens_total",
        "elpis_tokens_per_round_sum",
        "elpis_tokens_per_round_count",
    };
    for (size_t i = 0; i < COUNT_OF(zeros); i++)
        expect_number(&samples, zeros[i], 0);
    expect_number(&samples, "elpis_requests_waiting_limit", test_limits().queue);
    samples = scrape();
    expect_number(&samples, "elpis_http_requests_total{endpoint=\"/metrics\",status=\"2xx\"}", 1);
}

static void test_who_may_ask(void **state)
{
    (void)state;
    char path[] = "/tmp/elpis-key-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, "secret\n", 7), 7);
    fchmod(file, 0600);
    close(file);
    server_start((struct serve_options){.key_file = path}, test_limits());
    expect_error(ask_get("/metrics"), 401, "invalid_api_key", NULL);
    struct reply reply = ask("GET /metrics HTTP/1.1\r\nHost: any.example\r\n"
                             "Authorization: Bearer secret\r\n\r\n");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(
        reply.body.data, "\nelpis_http_requests_total{endpoint=\"/metrics\",status=\"4xx\"} 1\n"));
    reply_free(&reply);
    unlink(path);
}

static void test_without_a_key(void **state)
{
    (void)state;
    server_start((struct serve_options){0}, test_limits());
    expect_error(ask("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403, "wrong_host",
                 NULL);
    expect_error(ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
                     "\r\n"),
                 403, "wrong_origin", NULL);
    expect_error(ask_post("/metrics", "{}"), 405, "method_not_allowed", "/metrics");
    int client = client_open();
    client_text(client, "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct reply reply = client_reply(client, true);
    assert_int_equal(reply.status, 200);
    assert_true(atoi(reply_field(&reply, "\nContent-Length: ")) > 1000);
    reply_free(&reply);
    close(client);
}

/* ---- counters */

static void test_counters(void **state)
{
    (void)state;
    server_start((struct serve_options){0}, test_limits());
    answered(TEXT, "{\"prompt\": [5, 6, 7, 8]}", 200); /* 4 tokens and the end */
    answered(TEXT, "{\"prompt\": [5, 6, 7, 8], \"max_tokens\": 3, \"stream\": true}", 200);
    answered(TEXT, "{\"prompt\": []}", 400);
    answered(TEXT, "{\"prompt\": \"x\", \"top_k\": 667}", 500);
    answered(CHAT, "{\"messages\": []}", 400);
    answered("/v1/nothing", "{}", 404);
    struct reply reply = ask("nonsense\r\n\r\n");
    reply_free(&reply);
    reply = ask_get("/v1/models/elpis-tiny");
    reply_free(&reply);
    reply = ask_get("/health");
    reply_free(&reply);
    struct samples samples = scrape();
    static const struct {
        const char *name;
        double value;
    } wanted[] = {
        {"elpis_http_requests_total{endpoint=\"/v1/completions\",status=\"2xx\"}", 2},
        {"elpis_http_requests_total{endpoint=\"/v1/completions\",status=\"4xx\"}", 1},
        {"elpis_http_requests_total{endpoint=\"/v1/completions\",status=\"5xx\"}", 1},
        {"elpis_http_requests_total{endpoint=\"/v1/chat/completions\",status=\"4xx\"}", 1},
        {"elpis_http_requests_total{endpoint=\"/v1/models\",status=\"2xx\"}", 1},
        {"elpis_http_requests_total{endpoint=\"other\",status=\"4xx\"}", 2},
        {"elpis_requests_finished_total{result=\"stop\"}", 1},
        {"elpis_requests_finished_total{result=\"length\"}", 1},
        {"elpis_requests_finished_total{result=\"failed\"}", 1},
        {"elpis_prompt_tokens_cached_total", 2 * FAKE_CACHED},
        {"elpis_completion_tokens_total", 5 + 3},
        {"elpis_prefill_seconds_total", 2 * FAKE_PREFILL_SECONDS},
        {"elpis_decode_seconds_total", 8 * FAKE_ROUND_SECONDS},
        {"elpis_rounds_total", 8},
        {"elpis_rounds_recomputed_total", 0},
        {"elpis_tokens_per_round_bucket{le=\"1\"}", 8},
        {"elpis_tokens_per_round_sum", 8},
    };
    for (size_t i = 0; i < COUNT_OF(wanted); i++)
        expect_number(&samples, wanted[i].name, wanted[i].value);
    assert_true(value_in(&samples, "elpis_http_requests_total{endpoint=\"/health\","
                                   "status=\"2xx\"}") >= 1);
    assert_true(value_in(&samples, "elpis_prompt_tokens_total") > 8); /* the failed one's too */
}

static void test_rounds(void **state)
{
    (void)state;
    fake->round_tokens = 3;
    fake->recomputed = true;
    server_start((struct serve_options){.draft = DRAFT_FOLDER}, test_limits());
    /* 7 tokens and the end: 3 + 3 + 2, the last round's second token being the end */
    answered(TEXT, "{\"prompt\": [5, 6, 7, 8, 9, 10, 11]}", 200);
    struct samples samples = scrape();
    expect_number(&samples, "elpis_rounds_total", 3);
    expect_number(&samples, "elpis_rounds_recomputed_total", 3);
    expect_number(&samples, "elpis_drafted_tokens_total", 3 * FAKE_DRAFTED);
    expect_number(&samples, "elpis_accepted_tokens_total", 5);
    expect_number(&samples, "elpis_tokens_per_round_bucket{le=\"1\"}", 0);
    expect_number(&samples, "elpis_tokens_per_round_bucket{le=\"2\"}", 1);
    expect_number(&samples, "elpis_tokens_per_round_bucket{le=\"3\"}", 3);
    expect_number(&samples, "elpis_tokens_per_round_sum", 8);
    /* the end alone in a round, a length that cuts one, a stop string that does */
    answered(TEXT, "{\"prompt\": [5, 6, 7]}", 200);
    answered(TEXT, "{\"prompt\": [5, 6, 7], \"top_k\": 1, \"max_tokens\": 7}", 200);
    samples = scrape();
    expect_number(&samples, "elpis_tokens_per_round_bucket{le=\"1\"}", 2);
    expect_number(&samples, "elpis_tokens_per_round_bucket{le=\"2\"}", 3);
    expect_number(&samples, "elpis_tokens_per_round_bucket{le=\"3\"}", 8);
    expect_number(&samples, "elpis_tokens_per_round_sum", 8 + 4 + 7);
    answered(TEXT, "{\"prompt\": \"one two three four five\", \"stop\": \"two\"}", 200);
    samples = scrape();
    expect_number(&samples, "elpis_requests_finished_total{result=\"stop\"}", 3);
    expect_number(&samples, "elpis_tokens_per_round_sum",
                  value_in(&samples, "elpis_completion_tokens_total"));
    expect_number(&samples, "elpis_tokens_per_round_count",
                  value_in(&samples, "elpis_rounds_total"));
}

/* ---- gauges */

static void test_queue(void **state)
{
    (void)state;
    struct serve_limits limits = test_limits();
    limits.queue = 1;
    server_start((struct serve_options){0}, limits);
    int running = post(
        "{\"prompt\": \"a b\", \"top_k\": 1, \"seed\": 1000, \"max_tokens\": 200000}");
    wait_for(&fake->tokens, 1);
    int waiting = post("{\"prompt\": \"hello\"}");
    wait_value("elpis_requests_waiting", 1);
    expect_error(ask_post(TEXT, "{\"prompt\": \"hello\"}"), 503, "queue_full", NULL);
    struct samples samples = scrape();
    expect_number(&samples, "elpis_requests_running", 1);
    expect_number(&samples, "elpis_requests_refused_total{reason=\"queue_full\"}", 1);
    expect_number(&samples, "elpis_completion_tokens_total", 0); /* of requests that ended */
    close(running);
    struct reply reply = client_reply(waiting, false);
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    close(waiting);
    wait_value("elpis_requests_running", 0);
    samples = scrape();
    expect_number(&samples, "elpis_requests_waiting", 0);
    expect_number(&samples, "elpis_requests_finished_total{result=\"cancelled\"}", 1);
    expect_number(&samples, "elpis_requests_finished_total{result=\"stop\"}", 1);
}

static void test_loading_and_failed(void **state)
{
    (void)state;
    atomic_store(&fake->open_waits, true);
    server_start_loading((struct serve_options){.model_name = "m"}, test_limits());
    struct samples samples = scrape();
    expect_number(&samples, "elpis_engine_state{state=\"loading\"}", 1);
    expect_number(&samples, "elpis_build_info{version=\"\",model=\"m\",draft=\"\",plan=\"\"}", 1);
    expect_error(ask_post(TEXT, "{\"prompt\": \"x\"}"), 503, "loading", NULL);
    atomic_store(&fake->open_waits, false);
    wait_value("elpis_engine_state{state=\"ok\"}", 1);
    answered(TEXT, "{\"prompt\": \"x\", \"top_k\": 666}", 503);
    answered(TEXT, "{\"prompt\": \"x\"}", 503);
    samples = scrape();
    expect_number(&samples, "elpis_engine_state{state=\"failed\"}", 1);
    expect_number(&samples, "elpis_engine_state{state=\"ok\"}", 0);
    expect_number(&samples, "elpis_requests_refused_total{reason=\"loading\"}", 1);
    expect_number(&samples, "elpis_requests_refused_total{reason=\"generation_failed\"}", 1);
    expect_number(&samples, "elpis_requests_finished_total{result=\"failed\"}", 1);
}

static void test_draining(void **state)
{
    (void)state;
    server_start((struct serve_options){0}, test_limits());
    int running = post(
        "{\"prompt\": \"a b\", \"top_k\": 1, \"seed\": 1000, \"max_tokens\": 200000}");
    wait_for(&fake->tokens, 1);
    int waiting = post("{\"prompt\": \"hello\"}");
    wait_value("elpis_requests_waiting", 1);
    kill(server_child, SIGTERM);
    wait_value("elpis_engine_state{state=\"draining\"}", 1);
    struct samples samples = scrape();
    expect_number(&samples, "elpis_requests_refused_total{reason=\"server_shutting_down\"}", 1);
    expect_error(client_reply(waiting, false), 503, "server_shutting_down", NULL);
    close(waiting);
    close(running); /* the last one: the server ends */
    assert_int_equal(server_wait(), 0);
}

/* ---- usage */

/* The last usage of a stream. */
static json_t *stream_usage(const char *path, const char *body)
{
    struct reply reply = ask_post(path, body);
    assert_int_equal(reply.status, 200);
    char *event = NULL, *next = reply.body.data;
    while ((next = strstr(next, "\"usage\":{")) != NULL)
        event = next++;
    assert_non_null(event);
    json_t *usage = json_loads(event + strlen("\"usage\":"), JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(usage);
    reply_free(&reply);
    return usage;
}

static json_t *whole_usage(const char *path, const char *body)
{
    struct reply reply = ask_post(path, body);
    assert_int_equal(reply.status, 200);
    json_t *answer = reply_json(&reply), *usage = json_object_get(answer, "usage");
    json_incref(usage);
    json_decref(answer);
    reply_free(&reply);
    return usage;
}

static double number_at(const json_t *usage, const char *key)
{
    if (!json_is_number(json_object_get(usage, key)))
        fail_msg("%s is no number", key);
    return json_number_value(json_object_get(usage, key));
}

static void expect_speculation(json_t *usage, u32 tokens, u32 rounds)
{
    const json_t *details = json_object_get(usage, "completion_tokens_details");
    assert_true(number_at(usage, "completion_tokens") == tokens);
    assert_true(number_at(usage, "rounds") == rounds);
    assert_true(fabs(number_at(usage, "tokens_per_round") - (double)tokens / rounds) < 1e-5);
    assert_true(number_at(usage, "ms_per_round") == 1000 * FAKE_ROUND_SECONDS);
    assert_true(number_at(details, "accepted_prediction_tokens") == tokens - rounds);
    assert_true(number_at(details, "rejected_prediction_tokens") ==
                FAKE_DRAFTED * rounds - (tokens - rounds));
    json_decref(usage);
}

static void test_usage(void **state)
{
    (void)state;
    fake->round_tokens = 3;
    server_start((struct serve_options){.draft = DRAFT_FOLDER "/"}, test_limits());
    expect_speculation(whole_usage(TEXT, "{\"prompt\": [5, 6, 7, 8, 9, 10, 11]}"), 8, 3);
    expect_speculation(stream_usage(TEXT, "{\"prompt\": [5, 6, 7, 8, 9, 10, 11], \"stream\": true,"
                                          "\"stream_options\": {\"include_usage\": true}}"),
                       8, 3);
#define CHAT_BODY "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 6"
    expect_speculation(whole_usage(CHAT, CHAT_BODY "}"), 6, 2);
    expect_speculation(stream_usage(CHAT,
                                    CHAT_BODY ", \"stream\": true,"
                                              "\"stream_options\": {\"include_usage\": true}}"),
                       6, 2);
    struct reply reply = ask_get("/v1/models");
    assert_non_null(strstr(reply.body.data, "\"draft_model\":\"elpis-tiny-dflash2\""));
    reply_free(&reply);
    reply = ask_get("/metrics");
    assert_non_null(strstr(reply.body.data, ",draft=\"elpis-tiny-dflash2\","));
    reply_free(&reply);
}

/* Of a prompt that is computed, not of the answer that follows. */
static void test_prompt_that_runs(void **state)
{
    (void)state;
    fake->prefill_us = 60000000;
    server_start((struct serve_options){0}, test_limits());
    int client = post("{\"prompt\": [5, 6, 7, 8, 9], \"top_k\": 2}");
    wait_value("elpis_prompt_running_tokens_done", 2);
    wait_value("elpis_prompt_running_tokens", 5);
    close(client);
    wait_value("elpis_prompt_running_tokens", 0);
    client = post("{\"prompt\": [5, 6], \"seed\": 1000000, \"stream\": true}");
    wait_for(&fake->tokens, 1);
    wait_value("elpis_prompt_running_tokens", 0);
    close(client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_from_the_start),     TEST(test_who_may_ask), TEST(test_without_a_key),
        TEST(test_counters),           TEST(test_rounds),      TEST(test_queue),
        TEST(test_loading_and_failed), TEST(test_draining),    TEST(test_usage),
        TEST(test_prompt_that_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
