/* answer.c - from tokens to what the client reads: one JSON object, or a stream.
 *
 * Token bytes go through text_stream, which cuts at stop strings, never splits UTF-8
 * and tells reasoning from content. A blocking answer gathers the two parts; a
 * streamed one (server-sent events) passes each on as a chunk:
 *
 *     data: {role}  data: {delta} ...  data: {finish_reason}  [data: {usage}]  data: [DONE]
 *
 * A stream that is silent for a while gets a comment: how far its prompt is, or "keep-alive".
 * A fault after the stream began is an event with an error object, and no [DONE].
 */
#include <stdio.h>
#include <string.h>

#include "serve/internal.h"

/* ---- objects */

static json_t *text_json(struct slice text)
{
    json_t *value = json_stringn(text.data, text.size);
    return value ? value : json_string("\xEF\xBF\xBD"); /* U+FFFD: no UTF-8 */
}

static json_t *buffer_json(const struct buffer *text)
{
    return text_json(buffer_slice(text));
}

static u32 completion_tokens(const struct job *job)
{
    return job->stopped ? job->tokens : job->result.completion_tokens;
}

/* What the draft was good for, where there is one. Proposed tokens cost no tokens of the answer:
 * rejected ones are not in completion_tokens. */
static void add_speculation(json_t *usage, const struct job *job)
{
    const struct engine_result *result = &job->result;
    const double rounds = result->rounds ? result->rounds : 1;
    json_object_set_new(usage, "completion_tokens_details",
                        json_pack("{s:I, s:I}", "accepted_prediction_tokens",
                                  (json_int_t)result->accepted, "rejected_prediction_tokens",
                                  (json_int_t)result->drafted - result->accepted));
    json_object_set_new(usage, "rounds", json_integer(result->rounds));
    json_object_set_new(usage, "tokens_per_round", json_real(completion_tokens(job) / rounds));
    json_object_set_new(usage, "ms_per_round", json_real(1000 * result->decode_seconds / rounds));
}

static json_t *usage_json(const struct job *job)
{
    json_int_t prompt = job->prompt_count, completion = completion_tokens(job);
    json_t *usage = json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt,
                              "completion_tokens", completion, "total_tokens", prompt + completion,
                              "prompt_tokens_details", "cached_tokens",
                              (json_int_t)job->result.cached_tokens);
    if (job->server->draft_name[0])
        add_speculation(usage, job);
    return usage;
}

static const char *finish_reason(const struct job *job)
{
    return job->stopped || job->result.finish == FINISH_STOP ? "stop" : "length";
}

static const char *object_name(const struct job *job)
{
    if (!job->chat)
        return "text_completion";
    return job->stream ? "chat.completion.chunk" : "chat.completion";
}

/* The object that all answers share, around one choice (taken over; NULL = none). */
static json_t *envelope(const struct job *job, json_t *choice)
{
    char fingerprint[32];
    snprintf(fingerprint, sizeof fingerprint, "elpis-%s", engine_plan_hash(job->server->engine));
    json_t *choices = json_array();
    if (choice)
        json_array_append_new(choices, choice);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", job->id, "object", object_name(job),
                     "created", (json_int_t)job->created, "model", job->server->model_name,
                     "system_fingerprint", fingerprint, "choices", choices);
}

/* name: "message", "delta" or "text", with its value (taken over). reason may be NULL. */
static json_t *choice_json(const char *name, json_t *value, const char *reason)
{
    return json_pack("{s:i, s:o, s:n, s:s?}", "index", 0, name, value, "logprobs", "finish_reason",
                     reason);
}

/* ---- streams */

static void send_event(struct job *job, json_t *object) /* takes object */
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(6));
    struct buffer event = {0};
    buffer_format(&event, "data: %s\n\n", text);
    if (job->connection)
        http_stream_add(job->connection, buffer_slice(&event));
    buffer_free(&event);
    free(text);
    json_decref(object);
}

static void send_chunk(struct job *job, const char *name, json_t *value, const char *reason)
{
    json_t *chunk = envelope(job, choice_json(name, value, reason));
    if (job->include_usage)
        json_object_set_new(chunk, "usage", json_null());
    send_event(job, chunk);
}

static void send_usage(struct job *job)
{
    json_t *chunk = envelope(job, NULL);
    json_object_set_new(chunk, "usage", usage_json(job));
    send_event(job, chunk);
}

static void begin_stream(struct job *job)
{
    http_stream_begin(job->connection, "text/event-stream; charset=utf-8");
    if (job->chat)
        send_chunk(job, "delta", json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL);
    if (job->connection)
        connection_send(job->connection);
}

static void end_stream(struct job *job)
{
    if (job->chat)
        send_chunk(job, "delta", json_object(), finish_reason(job));
    else
        send_chunk(job, "text", json_string(""), finish_reason(job));
    if (job->include_usage)
        send_usage(job);
    if (!job->connection)
        return;
    http_stream_add(job->connection, SLICE("data: [DONE]\n\n"));
    if (job->connection)
        http_stream_end(job->connection);
}

void answer_keep_alive(struct job *job)
{
    struct connection *connection = job->connection;
    const u32 done = atomic_load(&job->prompt_done);
    struct buffer comment = {0};
    if (done && done < job->prompt_count)
        buffer_format(&comment, ": prompt %u/%u\n\n", done, job->prompt_count);
    else
        buffer_add_text(&comment, ": keep-alive\n\n");
    http_stream_add(connection, buffer_slice(&comment));
    connection_send(connection);
    buffer_free(&comment);
}

/* ---- whole answers */

static void answer_whole(struct job *job)
{
    json_t *choice;
    if (job->chat) {
        json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                                    buffer_json(&job->content), "refusal");
        if (job->reasoning.size)
            json_object_set_new(message, "reasoning_content", buffer_json(&job->reasoning));
        choice = choice_json("message", message, finish_reason(job));
    } else {
        choice = choice_json("text", buffer_json(&job->content), finish_reason(job));
    }
    json_t *answer = envelope(job, choice);
    json_object_set_new(answer, "usage", usage_json(job));
    http_answer_json(job->connection, 200, answer);
}

/* ---- tokens */

static void on_text(void *user, enum stream_part part, struct slice text)
{
    struct job *job = user;
    bool reasoning = part == STREAM_REASONING;
    if (text.size == 0)
        return;
    if (!job->stream) {
        buffer_add_slice(reasoning ? &job->reasoning : &job->content, text);
        return;
    }
    if (!job->chat) {
        send_chunk(job, "text", text_json(text), NULL);
        return;
    }
    json_t *delta = json_object();
    json_object_set_new(delta, reasoning ? "reasoning_content" : "content", text_json(text));
    send_chunk(job, "delta", delta, NULL);
}

void answer_token(struct job *job, u32 token)
{
    if (job->stopped || !job->connection)
        return;
    job->tokens++;
    buffer_clear(&job->scratch);
    tokenizer_token_bytes(job->server->tokenizer, token, job->skip_special, &job->scratch);
    if (!text_stream_feed(job->text, buffer_slice(&job->scratch)))
        return;
    job->stopped = true;
    atomic_store(&job->enough, true);
}

/* ---- ends */

void job_free(struct job *job)
{
    text_stream_destroy(job->text);
    for (size_t i = 0; i < job->stop_count; i++)
        memory_free(job->stops[i]);
    buffer_free(&job->content);
    buffer_free(&job->reasoning);
    buffer_free(&job->scratch);
    memory_free(job->prompt);
    memory_free(job);
}

/* Frees the job once its connection has been answered. */
static void job_end(struct job *job)
{
    if (job->connection)
        job->connection->job = NULL;
    job_free(job);
}

void answer_failed(struct job *job, const struct api_error *error)
{
    struct connection *connection = job->connection;
    if (connection && job->stream) {
        send_event(job, api_error_json(error));
        connection->keep_alive = false;
        http_stream_end(connection);
    } else if (connection) {
        http_answer_error(connection, error);
    }
    job_end(job);
}

static void translate(const struct error *fault, struct api_error *error)
{
    switch (fault->code) {
    case ERROR_USAGE: api_fail(error, 400, "invalid_request", NULL, "%s", fault->text); break;
    case ERROR_CANCELLED:
        api_fail(error, 503, "server_shutting_down", NULL,
                 "The server is shutting down and did not finish this answer.");
        break;
    case ERROR_FATAL:
        api_fail(error, 503, "generation_failed", NULL, "The device failed: %.900s", fault->text);
        break;
    default: api_fail(error, 500, "internal_error", NULL, "%s", fault->text);
    }
}

/* One line a request: numbers, never text. */
static void log_result(const struct job *job)
{
    const struct engine_result *result = &job->result;
    u32 tokens = completion_tokens(job);
    double seconds = result->decode_seconds;
    log_info("%s: %u prompt tokens (%u cached) in %.2f s, %u tokens in %.2f s (%.1f a second), "
             "%u rounds, %s",
             job->id, job->prompt_count, result->cached_tokens, result->prefill_seconds, tokens,
             seconds, seconds > 0 ? tokens / seconds : 0, result->rounds, finish_reason(job));
}

void answer_finished(struct job *job)
{
    struct api_error error;
    if (job->error.code && !job->stopped) {
        translate(&job->error, &error);
        answer_failed(job, &error);
        return;
    }
    log_result(job);
    if (job->connection && !job->stopped)
        text_stream_end(job->text);
    if (job->connection && job->stream)
        end_stream(job);
    else if (job->connection)
        answer_whole(job);
    job_end(job);
}

/* ---- beginnings */

static void name_job(struct job *job)
{
    u8 random[12];
    char digits[2 * sizeof random + 1];
    uv_random(NULL, NULL, random, sizeof random, 0, NULL);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(digits + 2 * i, 3, "%02x", random[i]);
    snprintf(job->id, sizeof job->id, "%s-%s", job->chat ? "chatcmpl" : "cmpl", digits);
    job->created = clock_unix();
}

static int fill_job(struct job *job, const struct api_request *request, struct api_error *error)
{
    struct server *server = job->server;
    struct buffer ids = {0};
    bool inside = false;
    int status = request->chat ? chat_prompt(server, request, &ids, &inside, error)
                               : completions_prompt(server, request, &ids, error);
    job->prompt = (u32 *)ids.data;
    job->prompt_count = (u32)(ids.size / sizeof(u32));
    if (status < 0 ||
        api_length(server, request, ids.size / sizeof(u32), &job->max_tokens, error) < 0 ||
        api_stops(request, job->stops, &job->stop_count, error) < 0)
        return -1;
    api_sampling(request, &job->sampling);
    struct slice stops[API_STOPS];
    for (size_t i = 0; i < job->stop_count; i++)
        stops[i] = slice_of(job->stops[i]);
    struct text_stream_options options = {
        .stops = stops,
        .stop_count = job->stop_count,
        .thinking = job->chat,
        .starts_inside = inside,
    };
    job->text = text_stream_create(&options, on_text, job);
    return 0;
}

void answer_begin(struct connection *connection, bool chat)
{
    struct server *server = connection->server;
    struct api_request request;
    struct api_error error;
    struct job *job = memory_alloc(sizeof *job);
    job->server = server;
    job->chat = chat;
    int status = api_parse(server, buffer_slice(&connection->request.body), chat, &request, &error);
    job->stream = request.stream;
    job->include_usage = request.include_usage;
    job->skip_special = request.skip_special;
    name_job(job);
    if (status == 0)
        status = fill_job(job, &request, &error);
    api_release(&request);
    if (status == 0 && !jobs_submit(server, job)) {
        status = api_fail(&error, 503, "queue_full", NULL,
                          "%u requests are waiting already; try again later.",
                          server->limits.queue);
        metrics_refused(server, &error);
    }
    if (status < 0) {
        job_free(job);
        http_answer_error(connection, &error);
        return;
    }
    job->connection = connection;
    connection->job = job;
    if (job->stream)
        begin_stream(job);
}
