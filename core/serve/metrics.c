/* metrics.c - GET /metrics: what the server did since its start, as Prometheus text.
 *
 *     answers begin (http.c)  -> requests by endpoint and status class
 *     refusals (routes, jobs) -> by reason
 *     jobs end (jobs.c)       -> tokens, seconds, rounds
 *
 * The loop thread owns every number here. What the engine thread knows of a job arrives with the
 * job's last event, so counters move when a request ends, not while it runs; only running and
 * waiting requests and the running prompt are looked up when they are asked for. A round's tokens
 * are those between two calls of on_progress (jobs.c).
 *
 * Format: Prometheus text exposition 0.0.4: a HELP and a TYPE line, then every sample of the
 * family; in the value of a label \ " and line feed are escaped. Samples of a family stand in one
 * order, and all of them from the start, so that a rate has a first value.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "serve/internal.h"

static const char *const endpoint_names[ENDPOINT_COUNT] = {
    [ENDPOINT_CHAT] = "/v1/chat/completions", [ENDPOINT_COMPLETIONS] = "/v1/completions",
    [ENDPOINT_MODELS] = "/v1/models",         [ENDPOINT_HEALTH] = "/health",
    [ENDPOINT_METRICS] = "/metrics",          [ENDPOINT_OTHER] = "other",
};

/* Codes of errors that say why a request never ran. */
static const char *const refusal_codes[REFUSAL_COUNT] = {
    [REFUSAL_LOADING] = "loading",
    [REFUSAL_QUEUE] = "queue_full",
    [REFUSAL_DRAIN] = "server_shutting_down",
    [REFUSAL_FAILED] = "generation_failed",
};

static const char *const outcome_names[OUTCOME_COUNT] = {
    [OUTCOME_STOP] = "stop",
    [OUTCOME_LENGTH] = "length",
    [OUTCOME_CANCELLED] = "cancelled",
    [OUTCOME_FAILED] = "failed",
};

/* ---- counting */

void metrics_answered(struct connection *connection, int status)
{
    u32 class = (u32)status / 100;
    if (class < STATUS_CLASSES)
        connection->server->metrics.answered[route_endpoint(connection)][class]++;
}

void metrics_refused(struct server *server, const struct api_error *error)
{
    for (size_t i = 0; i < REFUSAL_COUNT; i++)
        if (error->code && strcmp(error->code, refusal_codes[i]) == 0)
            server->metrics.refused[i]++;
}

static enum outcome outcome_of(const struct job *job)
{
    if (job->error.code == ERROR_CANCELLED && !job->stopped)
        return OUTCOME_CANCELLED;
    if (job->error.code && !job->stopped)
        return OUTCOME_FAILED;
    return job->stopped || job->result.finish == FINISH_STOP ? OUTCOME_STOP : OUTCOME_LENGTH;
}

void metrics_finished(struct server *server, const struct job *job)
{
    struct metrics *metrics = &server->metrics;
    const struct engine_result *result = &job->result;
    metrics->outcomes[outcome_of(job)]++;
    metrics->prompt_tokens += result->prompt_tokens;
    metrics->cached_tokens += result->cached_tokens;
    metrics->completion_tokens += result->completion_tokens;
    metrics->prefill_seconds += result->prefill_seconds;
    metrics->decode_seconds += result->decode_seconds;
    metrics->rounds += result->rounds;
    metrics->drafted += result->drafted;
    metrics->accepted += result->accepted;
    metrics->recomputed += result->recomputed;
    for (size_t i = 0; i < COUNT_OF(metrics->rounds_of); i++)
        metrics->rounds_of[i] += job->rounds_of[i];
}

/* ---- text */

static void family(struct buffer *text, const char *name, const char *type, const char *help)
{
    buffer_format(text, "# HELP elpis_%s %s\n# TYPE elpis_%s %s\n", name, help, name, type);
}

static void add_label_value(struct buffer *text, const char *value)
{
    buffer_add_text(text, "\"");
    for (; *value; value++) {
        if (*value == '\n')
            buffer_add_text(text, "\\n");
        else
            buffer_format(text, "%s%c", *value == '\\' || *value == '"' ? "\\" : "", *value);
    }
    buffer_add_text(text, "\"");
}

static void counter(struct buffer *text, const char *name, u64 value, const char *help)
{
    family(text, name, "counter", help);
    buffer_format(text, "elpis_%s %" PRIu64 "\n", name, value);
}

static void seconds(struct buffer *text, const char *name, double value, const char *help)
{
    family(text, name, "counter", help);
    buffer_format(text, "elpis_%s %.6f\n", name, value);
}

static void gauge(struct buffer *text, const char *name, u64 value, const char *help)
{
    family(text, name, "gauge", help);
    buffer_format(text, "elpis_%s %" PRIu64 "\n", name, value);
}

/* A counter with one label. */
static void counters(struct buffer *text, const char *name, const char *label,
                     const char *const *values, const u64 *numbers, size_t count, const char *help)
{
    family(text, name, "counter", help);
    for (size_t i = 0; i < count; i++)
        buffer_format(text, "elpis_%s{%s=\"%s\"} %" PRIu64 "\n", name, label, values[i],
                      numbers[i]);
}

static void print_build(const struct server *server, struct buffer *text)
{
    /* the engine thread sets server->engine while the state is still SERVER_LOADING */
    const struct engine *engine = server->state == SERVER_LOADING ? NULL : server->engine;
    const struct {
        const char *label, *value;
    } labels[] = {{"version", server->options->version},
                  {"model", server->model_name},
                  {"draft", server->draft_name},
                  {"plan", engine ? engine_plan_hash(engine) : ""}};
    family(text, "build_info", "gauge",
           "Version of the program, model, draft model, hash of the kernel plan.");
    buffer_add_text(text, "elpis_build_info{");
    for (size_t i = 0; i < COUNT_OF(labels); i++) {
        buffer_format(text, "%s%s=", i ? "," : "", labels[i].label);
        add_label_value(text, labels[i].value ? labels[i].value : "");
    }
    buffer_add_text(text, "} 1\n");
}

static void print_state(const struct server *server, struct buffer *text)
{
    static const char *const states[] = {"loading", "ok", "draining", "failed"};
    family(text, "engine_state", "gauge", "1 for the state that /health tells, 0 for the others.");
    for (size_t i = 0; i < COUNT_OF(states); i++)
        buffer_format(text, "elpis_engine_state{state=\"%s\"} %d\n", states[i],
                      strcmp(states[i], server_status(server)) == 0);
}

static void print_requests(struct server *server, struct buffer *text)
{
    const struct metrics *metrics = &server->metrics;
    static const u32 classes[] = {2, 4, 5}; /* all that this server answers with */
    u32 running, waiting;
    jobs_count(server, &running, &waiting);
    family(text, "http_requests_total", "counter",
           "HTTP requests by endpoint and class of the status; a stream counts as it begins.");
    for (size_t i = 0; i < ENDPOINT_COUNT; i++)
        for (size_t k = 0; k < COUNT_OF(classes); k++)
            buffer_format(
                text, "elpis_http_requests_total{endpoint=\"%s\",status=\"%uxx\"} %" PRIu64 "\n",
                endpoint_names[i], classes[k], metrics->answered[i][classes[k]]);
    gauge(text, "requests_running", running, "Requests that the engine works on.");
    gauge(text, "requests_waiting", waiting, "Requests in the queue for the engine.");
    gauge(text, "requests_waiting_limit", server->limits.queue, "Most requests in the queue.");
    counters(text, "requests_refused_total", "reason", refusal_codes, metrics->refused,
             REFUSAL_COUNT, "Requests answered 503 without running, by reason.");
    counters(text, "requests_finished_total", "result", outcome_names, metrics->outcomes,
             OUTCOME_COUNT, "Requests that ran, by how they ended.");
}

/* Of the prompt that runs. */
static void print_prompt(struct server *server, struct buffer *text)
{
    u32 done, count;
    jobs_prompt(server, &done, &count);
    gauge(text, "prompt_running_tokens", count, "Tokens of the prompt that is computed; 0: none.");
    gauge(text, "prompt_running_tokens_done", done, "Those of them that are there.");
}

static void print_tokens(const struct metrics *metrics, struct buffer *text)
{
    counter(text, "prompt_tokens_total", metrics->prompt_tokens,
            "Prompt tokens, computed or cached.");
    counter(text, "prompt_tokens_cached_total", metrics->cached_tokens,
            "Prompt tokens that were not computed again.");
    counter(text, "completion_tokens_total", metrics->completion_tokens,
            "Generated tokens, end of text included.");
    seconds(text, "prefill_seconds_total", metrics->prefill_seconds, "Seconds spent on prompts.");
    seconds(text, "decode_seconds_total", metrics->decode_seconds,
            "Seconds spent on generated tokens.");
}

/* Buckets of a histogram are cumulative; every round gives 1 to ENGINE_ROWS tokens. */
static void print_histogram(const struct metrics *metrics, struct buffer *text)
{
    u64 rounds = 0, tokens = 0;
    family(text, "tokens_per_round", "histogram", "Tokens that a round of decoding gave.");
    for (u32 i = 1; i <= ENGINE_ROWS; i++) {
        rounds += metrics->rounds_of[i];
        tokens += i * metrics->rounds_of[i];
        buffer_format(text, "elpis_tokens_per_round_bucket{le=\"%u\"} %" PRIu64 "\n", i, rounds);
    }
    buffer_format(text,
                  "elpis_tokens_per_round_bucket{le=\"+Inf\"} %" PRIu64
                  "\nelpis_tokens_per_round_sum %" PRIu64 "\nelpis_tokens_per_round_count %" PRIu64
                  "\n",
                  rounds, tokens, rounds);
}

static void print_rounds(const struct metrics *metrics, struct buffer *text)
{
    counter(text, "rounds_total", metrics->rounds, "Rounds of decoding: passes of the model.");
    counter(text, "rounds_recomputed_total", metrics->recomputed,
            "Rounds whose record on the device did not pass the check and were computed again.");
    counter(text, "drafted_tokens_total", metrics->drafted, "Tokens that the draft proposed.");
    counter(text, "accepted_tokens_total", metrics->accepted,
            "Tokens that the draft proposed and the model chose too.");
    print_histogram(metrics, text);
}

void metrics_answer(struct connection *connection)
{
    struct server *server = connection->server;
    struct buffer text = {0};
    print_build(server, &text);
    print_state(server, &text);
    print_requests(server, &text);
    print_prompt(server, &text);
    print_tokens(&server->metrics, &text);
    print_rounds(&server->metrics, &text);
    http_answer(connection, 200, "text/plain; version=0.0.4; charset=utf-8", buffer_slice(&text),
                NULL);
    buffer_free(&text);
}
