/* internal.h - what the files of serve/ share. One section a file.
 *
 *     loop thread                                      engine thread
 *     connection -> http -> routes -> api -> job ----> queue ----> engine_generate
 *     socket <- http <- answer <- events (ring) <----------------- on_token, result
 *
 * Everything but the marked fields of struct job, struct engine_side and the engine
 * itself belongs to the loop thread. A connection works on one request at a time; a
 * request that needs the engine has one job. Job and connection point at each other
 * until one of them ends: a client that leaves clears job->connection, a finished
 * job clears connection->job.
 */
#ifndef ELPIS_SERVE_INTERNAL_H
#define ELPIS_SERVE_INTERNAL_H

#include <jansson.h>
#include <llhttp.h>
#include <stdatomic.h>
#include <uv.h>

#include "serve/serve.h"

struct server;
struct connection;
struct job;
struct api_error;

/* ---- serve.c: the server's life */

/* Every bound of the service. Milliseconds and bytes. */
struct serve_limits {
    u32 header_bytes; /* request line, header fields and trailers together */
    u32 body_bytes;   /* one request body */
    u64 bodies_bytes; /* all bodies being received at one time */
    u32 input_bytes;  /* pipelined requests kept while an answer is under way */
    u32 write_bytes;  /* streamed bytes that a slow reader may leave waiting */
    u32 connections;  /* open at one time; further ones are closed at once */
    u32 queue;        /* requests waiting for the engine */
    u32 tick;         /* how often deadlines are looked at */
    u32 header_time;  /* for a request's header, also between requests */
    u32 body_time;    /* for a request's body */
    u32 write_time;   /* without one byte taken by the reader */
    u32 flush_time;   /* from a complete answer until its last byte is taken */
    u32 linger_time;  /* for the client to close after our last byte */
    u32 comment_time; /* of silence, then a keep-alive comment goes into a stream */
    u32 drain_time;   /* for running requests after SIGTERM */
};
void serve_limits_default(struct serve_limits *limits);

/* serve_run with other limits; options' queue and max_body are not looked at. */
int serve_run_limits(const struct serve_options *options, const struct serve_limits *limits,
                     const char *model_folder,
                     int (*open_engine)(void *user, struct engine **engine, struct error *error),
                     void *open_user, struct error *error);

/* ---- metrics.c: numbers of the loop thread */

enum metrics_endpoint {
    ENDPOINT_CHAT,
    ENDPOINT_COMPLETIONS,
    ENDPOINT_MODELS,
    ENDPOINT_HEALTH,
    ENDPOINT_METRICS,
    ENDPOINT_OTHER, /* paths that are not there, requests that are none */
    ENDPOINT_COUNT
};
enum refusal { REFUSAL_LOADING, REFUSAL_QUEUE, REFUSAL_DRAIN, REFUSAL_FAILED, REFUSAL_COUNT };
enum outcome { OUTCOME_STOP, OUTCOME_LENGTH, OUTCOME_CANCELLED, OUTCOME_FAILED, OUTCOME_COUNT };
#define STATUS_CLASSES 6 /* 1xx to 5xx, by their first digit */

/* Since the start. All but the first two are sums over requests that ran. */
struct metrics {
    u64 answered[ENDPOINT_COUNT][STATUS_CLASSES];
    u64 refused[REFUSAL_COUNT];
    u64 outcomes[OUTCOME_COUNT];
    u64 prompt_tokens, cached_tokens, completion_tokens;
    double prefill_seconds, decode_seconds;
    u64 rounds, drafted, accepted, recomputed;
    u64 rounds_of[ENGINE_ROWS + 1]; /* that gave so many tokens */
};
void metrics_answered(struct connection *connection, int status); /* an answer begins */
/* A request for the engine that does not run; why: the error's code. */
void metrics_refused(struct server *server, const struct api_error *error);
void metrics_finished(struct server *server, const struct job *job); /* the job ran */
void metrics_answer(struct connection *connection);                  /* GET /metrics */

/* ---- the server */

enum server_state { SERVER_LOADING, SERVER_READY, SERVER_FAILED };

struct server {
    const struct serve_options *options;
    struct serve_limits limits;
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_signal_t terminate, interrupt;
    uv_timer_t tick;
    enum server_state state;
    bool draining, closing;
    u64 drain_deadline; /* loop milliseconds */
    struct error error; /* why it failed; also what serve_run returns */
    struct connection *connections;
    u32 connection_count;
    u64 body_bytes; /* of all bodies being received */
    llhttp_settings_t parser_settings;
    char read_buffer[65536];
    char key[4097]; /* "" = none */
    char model_name[256];
    char draft_name[256]; /* "" = no draft model */
    i64 started;          /* unix seconds */
    const char *folder;
    /* opened on the engine thread, used here once the state is SERVER_READY */
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct error chat_error; /* why chat is NULL */
    struct engine_side *engine_side;
    struct metrics metrics;
};

/* The word of /health: "loading", "ok", "draining" or "failed". */
const char *server_status(const struct server *server);
void server_begin_drain(struct server *server);
/* Called whenever a connection or a job ends: closes the server once it may. */
void server_settle(struct server *server);

/* ---- errors of the API */

struct api_error {
    int status;
    const char *code;  /* literal; NULL prints null */
    const char *allow; /* for 405: the value of Allow */
    char param[128];   /* "" prints null */
    char text[1000];
};
/* Fills *error, returns -1. param may be NULL. */
int api_fail(struct api_error *error, int status, const char *code, const char *param,
             const char *format, ...) PRINTF_LIKE(5, 6);
/* {"error": {...}}; a new reference. */
json_t *api_error_json(const struct api_error *error);

/* ---- http.c: messages */

enum header_slot { /* the fields that are looked at; the others are counted and dropped */
                   HEADER_HOST,
                   HEADER_AUTHORIZATION,
                   HEADER_ORIGIN,
                   HEADER_EXPECT,
                   HEADER_TRANSFER_ENCODING,
                   HEADER_CONTENT_ENCODING,
                   HEADER_REQUEST_HEADERS, /* Access-Control-Request-Headers */
                   HEADER_COUNT
};

struct http_request {
    u8 method; /* enum llhttp_method */
    bool http10, keep_alive, headers_done, has_body, refused;
    u32 header_bytes;
    struct buffer target, name, value, body;
    struct buffer headers[HEADER_COUNT];
    u32 seen[HEADER_COUNT]; /* how often each came */
    struct api_error refusal;
};

void http_settings(llhttp_settings_t *settings);
void http_begin(struct connection *connection); /* the first request of a connection */
void http_next(struct connection *connection);  /* after an answer: the next request */
void http_release(struct connection *connection);
void http_feed(struct connection *connection, const char *data, size_t size);
/* Value of a header that came; whether it came once and is text, letter case aside. */
struct slice http_header(const struct http_request *request, enum header_slot slot);
bool http_header_is(const struct http_request *request, enum header_slot slot, const char *text);
void http_timeout(struct connection *connection);
/* A whole answer. type NULL: no body and no Content-Type. extra: further header lines. */
void http_answer(struct connection *connection, int status, const char *type, struct slice body,
                 const char *extra);
void http_answer_json(struct connection *connection, int status, json_t *body); /* takes body */
void http_answer_error(struct connection *connection, const struct api_error *error);
/* A streamed answer: begin, any number of adds, end. */
void http_stream_begin(struct connection *connection, const char *type);
void http_stream_add(struct connection *connection, struct slice bytes);
void http_stream_end(struct connection *connection);

/* ---- connection.c: sockets */

enum connection_phase {
    PHASE_IDLE,   /* no byte of a request yet */
    PHASE_HEAD,   /* receiving a header */
    PHASE_BODY,   /* receiving a body */
    PHASE_ANSWER, /* a complete request is being worked on */
    PHASE_FLUSH,  /* the answer is complete, bytes still wait */
    PHASE_LINGER, /* our side is shut down, waiting for the client's */
    PHASE_CLOSED
};

struct connection {
    uv_tcp_t tcp;
    uv_shutdown_t shutdown;
    struct server *server;
    struct connection *previous, *next;
    enum connection_phase phase;
    bool reading, ended; /* ended: the client sent its last byte */
    bool keep_alive;     /* after the present answer */
    bool chunked;        /* how the present stream is framed */
    u64 deadline;        /* of the phase, loop milliseconds; 0 = none */
    llhttp_t parser;
    struct http_request request;
    struct buffer input;  /* bytes of later requests */
    struct buffer output; /* not yet handed to libuv */
    u32 writes;           /* under way in libuv */
    size_t waiting;       /* bytes that waited at the last tick */
    u64 moved_at;         /* when that number last shrank, or nothing waited */
    u64 written_at;
    struct job *job;
};

int connection_accept(struct server *server);
void connection_send(struct connection *connection); /* hands the output to libuv */
void connection_answered(struct connection *connection);
void connection_drop(struct connection *connection); /* at once; cancels its job */
void connection_tick(struct connection *connection, u64 now);
void connection_phase(struct connection *connection, enum connection_phase phase, u32 time);

/* ---- routes.c */

/* What can be judged from the header alone; -1 with *error. */
int route_check(struct connection *connection, struct api_error *error);
void route_dispatch(struct connection *connection);
enum metrics_endpoint route_endpoint(const struct connection *connection);
/* Lines of Access-Control-*, or nothing. */
void route_cors(struct connection *connection, struct buffer *head);

/* ---- auth.c */

/* key[4097]. Regular file, mode 0400 or 0600, 1..4096 printable characters. */
int key_read(char *key, const char *path, struct error *error);
bool key_matches(const char *key, struct slice authorization);
bool host_is_loopback(struct slice host); /* value of a Host header */

/* ---- api.c: request objects */

struct api_request {
    bool chat; /* else completions */
    bool stream, include_usage, skip_special;
    const char *model;
    double temperature, top_p, min_p, presence, frequency, repetition;
    i64 top_k, max_tokens, max_completion_tokens; /* limits: 0 = not given */
    json_t *seed, *stop, *messages, *prompt, *stream_options;
    json_t *template_arguments, *enable_thinking;
    const char *reasoning_effort;
    json_t *root; /* owns all of the above */
};
/* body: JSON text. Release with api_release, also after an error. */
int api_parse(const struct server *server, struct slice body, bool chat,
              struct api_request *request, struct api_error *error);
void api_release(struct api_request *request);
void api_sampling(const struct api_request *request, struct engine_sampling *sampling);
/* max_tokens that holds for a prompt of this many tokens. */
int api_length(const struct server *server, const struct api_request *request, size_t prompt,
               u32 *max_tokens, struct api_error *error);
/* At most four stop strings, copied into stops[]; count in *count. */
#define API_STOPS 4
int api_stops(const struct api_request *request, char **stops, size_t *count,
              struct api_error *error);
/* The JSON type's name, for sentences. */
const char *api_type_name(const json_t *value);

/* ---- chat.c, completions.c: from request to tokens, u32 appended to *ids */

int chat_prompt(struct server *server, const struct api_request *request, struct buffer *ids,
                bool *starts_inside, struct api_error *error);
int completions_prompt(struct server *server, const struct api_request *request, struct buffer *ids,
                       struct api_error *error);

/* ---- jobs.c: the queue and the engine thread */

struct job {
    /* written before the job is queued, then only read */
    struct server *server;
    u32 *prompt;
    u32 prompt_count, max_tokens;
    struct engine_sampling sampling;
    /* both threads */
    atomic_bool cancelled;   /* stop before the next round */
    atomic_bool enough;      /* stop after the next token */
    atomic_uint prompt_done; /* tokens of the prompt that the engine has */
    /* engine thread, until the finished event */
    struct engine_result result;
    struct error error;             /* code 0 = none */
    u32 round_tokens;               /* of the round that runs */
    u32 ended_tokens;               /* of rounds before it */
    u32 rounds_of[ENGINE_ROWS + 1]; /* rounds that gave so many tokens */
    /* under the queue's lock */
    struct job *next;
    bool queued;
    /* loop thread: the answer that grows from it (answer.c) */
    struct connection *connection; /* NULL once the client left */
    bool chat, stream, include_usage, skip_special, stopped;
    u32 tokens; /* seen, without the stop token */
    char id[48];
    i64 created;
    struct text_stream *text;
    char *stops[API_STOPS];
    size_t stop_count;
    struct buffer content, reasoning, scratch;
};

int jobs_start(struct server *server,
               int (*open_engine)(void *user, struct engine **engine, struct error *error),
               void *open_user, struct error *error);
bool jobs_full(struct server *server);
/* false: the queue is full, the job is still the caller's. */
bool jobs_submit(struct server *server, struct job *job);
/* The client left: a waiting job is freed now, a running one when the engine is done with it. */
void jobs_abandon(struct job *job);
/* Takes every waiting job out and answers it with error. */
void jobs_refuse_waiting(struct server *server, const struct api_error *error);
bool jobs_idle(struct server *server);
void jobs_count(struct server *server, u32 *running, u32 *waiting);
/* The running prompt: tokens that are done, and all; 0 and 0 while none is computed. */
void jobs_prompt(struct server *server, u32 *done, u32 *count);
void jobs_cancel_running(struct server *server);
/* Once idle: jobs_close gives the loop's handle up; after uv_run, jobs_stop ends the thread and
 * closes the engine. */
void jobs_close(struct server *server);
void jobs_stop(struct server *server);

/* ---- answer.c: from tokens to the client */

/* Parses, queues and begins to answer the connection's request. */
void answer_begin(struct connection *connection, bool chat);
void answer_token(struct job *job, u32 token);
void answer_finished(struct job *job); /* by its result or its error; frees the job */
void answer_failed(struct job *job, const struct api_error *error); /* frees the job */
void answer_keep_alive(struct job *job);
void job_free(struct job *job);

#endif
