/* bench_http.c - whole requests to a server of its own, for `elpis bench --http` (bench_http.h).
 *
 *     fork -> (wait for the go) -> serve_run -> port -> GET /health until 200
 *          -> POST /v1/completions, one connection a request -> SIGTERM
 *
 * Rounds and the engine's seconds are differences of counters of /metrics: the stream's usage tells
 * rounds only where there is a draft. They move before the stream ends.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <llhttp.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/bench_http.h"
#include "cli/cli.h"
#include "cli/program.h"
#include "serve/serve.h"

enum { PIECE = 64 * 1024, HEALTH_WAIT = 20 * 1000 /* us */ };

struct bench_server {
    pid_t child;
    int go, port_from; /* ends of pipes; -1 = closed */
    u16 port;
};

/* ---- the child */

static void tell_port(void *user, const char *url)
{
    const u16 port = (u16)atoi(strrchr(url, ':') + 1);
    if (write(*(int *)user, &port, sizeof port) != sizeof port)
        _exit(ERROR_FATAL);
}

/* In a process group of its own: Ctrl-C is this side's, which lets the running request end. */
_Noreturn static void run_child(const char *folder, const struct engine_options *engine, int go,
                                int port, pid_t parent)
{
    struct serve_opening opening = {.folder = folder, .options = *engine};
    const struct serve_options options = {.listen = "127.0.0.1:0",
                                          .draft = engine->draft,
                                          .version = PROGRAM_VERSION,
                                          .endless = true,
                                          .on_ready = tell_port,
                                          .user = &port};
    struct error error = {0};
    char word;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || read(go, &word, 1) != 1)
        _exit(0);
    log_set_level(LOG_WARN);
    if (serve_run(&options, folder, serve_open_engine, &opening, &error) < 0)
        _exit(command_fail(&error));
    _exit(0);
}

int bench_server_fork(struct bench_server **out, const char *folder,
                      const struct engine_options *options, struct error *error)
{
    int go[2], port[2];
    const pid_t parent = getpid();
    if (pipe(go) < 0 || pipe(port) < 0)
        return error_set(error, ERROR_FATAL, "no pipe to a server: %s", strerror(errno));
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0)
        return error_set(error, ERROR_FATAL, "no process for a server: %s", strerror(errno));
    if (child == 0) {
        close(go[1]);
        close(port[0]);
        run_child(folder, options, go[0], port[1], parent);
    }
    close(go[0]);
    close(port[1]);
    *out = memory_alloc(sizeof **out);
    **out = (struct bench_server){.child = child, .go = go[1], .port_from = port[0]};
    return 0;
}

void bench_server_close(struct bench_server *server)
{
    if (!server)
        return;
    close(server->go);
    kill(server->child, SIGTERM); /* it waits, loads or serves */
    waitpid(server->child, NULL, 0);
    close(server->port_from);
    memory_free(server);
}

/* ---- one exchange */

struct exchange {
    double start, first; /* first: when a body began to have an event */
    u32 status;
    bool whole;
    struct buffer body;
};

static int on_body(llhttp_t *parser, const char *data, size_t size)
{
    struct exchange *exchange = parser->data;
    buffer_add(&exchange->body, data, size);
    /* comments keep a stream alive before that */
    if (!exchange->first && strstr(exchange->body.data, "data: "))
        exchange->first = clock_seconds() - exchange->start;
    return 0;
}

static int on_message_complete(llhttp_t *parser)
{
    struct exchange *exchange = parser->data;
    exchange->whole = true;
    exchange->status = parser->status_code;
    return 0;
}

static int no_answer(struct error *error, const char *what)
{
    return error_set(error, ERROR_FATAL, "the server did not answer: %s", what);
}

static int send_all(int client, const struct buffer *request, struct error *error)
{
    for (size_t at = 0; at < request->size;) {
        const ssize_t sent = send(client, request->data + at, request->size - at, MSG_NOSIGNAL);
        if (sent < 0)
            return no_answer(error, strerror(errno));
        at += (size_t)sent;
    }
    return 0;
}

static int receive(int client, struct exchange *exchange, struct error *error)
{
    llhttp_settings_t settings;
    llhttp_t parser;
    char *piece = memory_alloc(PIECE);
    ssize_t size = 0;
    llhttp_settings_init(&settings);
    settings.on_body = on_body;
    settings.on_message_complete = on_message_complete;
    llhttp_init(&parser, HTTP_RESPONSE, &settings);
    parser.data = exchange;
    while (!exchange->whole && (size = recv(client, piece, PIECE, 0)) > 0)
        if (llhttp_execute(&parser, piece, (size_t)size) != HPE_OK)
            break;
    memory_free(piece);
    if (!exchange->whole)
        return no_answer(error, size < 0 ? strerror(errno) : "it ended in the middle");
    return 0;
}

/* exchange->body: buffer_free. */
static int exchange_over(const struct bench_server *server, const struct buffer *request,
                         struct exchange *exchange, struct error *error)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons(server->port),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int yes = 1;
    *exchange = (struct exchange){.start = clock_seconds()};
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client < 0)
        return no_answer(error, strerror(errno));
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    int failed = 0;
    if (connect(client, (const struct sockaddr *)&address, sizeof address) < 0)
        failed = no_answer(error, strerror(errno));
    if (!failed)
        failed = send_all(client, request, error) || receive(client, exchange, error) ? -1 : 0;
    close(client);
    return failed;
}

static int get(const struct bench_server *server, const char *path, struct exchange *exchange,
               struct error *error)
{
    struct buffer request = {0};
    buffer_format(&request, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nConnection: close\r\n\r\n",
                  path, server->port);
    const int failed = exchange_over(server, &request, exchange, error);
    buffer_free(&request);
    return failed;
}

int bench_server_start(struct bench_server *server, struct error *error)
{
    struct exchange exchange;
    u32 status = 0;
    if (write(server->go, "g", 1) != 1 ||
        read(server->port_from, &server->port, sizeof server->port) != sizeof server->port)
        return error_set(error, ERROR_FATAL, "the server did not start");
    while (status != 200) {
        if (get(server, "/health", &exchange, error) < 0)
            return -1;
        status = exchange.status;
        const bool loading = strstr(exchange.body.data ? exchange.body.data : "", "loading");
        buffer_free(&exchange.body);
        if (status != 200 && !loading)
            return error_set(error, ERROR_FATAL, "the server's /health answers %u", status);
        if (status != 200)
            usleep(HEALTH_WAIT);
    }
    return 0;
}

/* ---- a request */

struct counters {
    double seconds, rounds;
};

static double counter_of(const char *text, const char *name)
{
    char start[64];
    snprintf(start, sizeof start, "\nelpis_%s ", name);
    const char *at = strstr(text, start);
    return at ? strtod(at + strlen(start), NULL) : 0;
}

static int read_counters(const struct bench_server *server, struct counters *counters,
                         struct error *error)
{
    struct exchange exchange;
    const int failed = get(server, "/metrics", &exchange, error);
    if (!failed) {
        const char *text = exchange.body.data ? exchange.body.data : "";
        counters->seconds = counter_of(text, "prefill_seconds_total") +
                            counter_of(text, "decode_seconds_total");
        counters->rounds = counter_of(text, "rounds_total");
    }
    buffer_free(&exchange.body);
    return failed;
}

static void write_request(const struct bench_server *server, const u32 *ids, u32 count,
                          u32 max_tokens, struct buffer *request)
{
    struct buffer body = {0};
    buffer_format(&body,
                  "{\"max_tokens\":%u,\"temperature\":0,\"top_p\":1,\"top_k\":0,\"stream\":true,"
                  "\"stream_options\":{\"include_usage\":true},\"prompt\":[",
                  max_tokens);
    for (u32 i = 0; i < count; i++)
        buffer_format(&body, i ? ",%u" : "%u", ids[i]);
    buffer_add_text(&body, "]}");
    buffer_format(request,
                  "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nConnection: close\r\n"
                  "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                  server->port, body.size);
    buffer_add_slice(request, buffer_slice(&body));
    buffer_free(&body);
}

static int refused(struct error *error, const struct exchange *exchange, const json_t *object)
{
    const char *text = json_string_value(
        json_object_get(json_object_get(object, "error"), "message"));
    return error_set(error, ERROR_FATAL, "the server answers %u: %s", exchange->status,
                     text ? text : "no completion");
}

/* The numbers of an event that has them; others are the answer's text. */
static void take_usage(const json_t *event, u32 *prompt, struct bench_reply *reply)
{
    const json_t *usage = json_object_get(event, "usage");
    if (!json_is_object(usage))
        return;
    *prompt = (u32)json_integer_value(json_object_get(usage, "prompt_tokens"));
    reply->tokens = (u32)json_integer_value(json_object_get(usage, "completion_tokens"));
    reply->cached = (u32)json_integer_value(
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

static int read_events(const struct exchange *exchange, u32 count, struct bench_reply *reply,
                       struct error *error)
{
    const char *at = exchange->body.data ? exchange->body.data : "";
    u32 prompt = 0;
    int failed = 0;
    if (exchange->status != 200) {
        json_t *object = json_loads(at, 0, NULL);
        failed = refused(error, exchange, object);
        json_decref(object);
    }
    while (!failed && (at = strstr(at, "data: {")) != NULL) {
        at += strlen("data: ");
        json_t *event = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
        if (!event || json_object_get(event, "error"))
            failed = refused(error, exchange, event);
        else
            take_usage(event, &prompt, reply);
        json_decref(event);
        at = strchr(at, '\n') ? strchr(at, '\n') : "";
    }
    if (!failed && (prompt != count || reply->tokens == 0))
        failed = error_set(error, ERROR_FATAL,
                           "the server counts %u tokens of a prompt of %u, and %u of its answer",
                           prompt, count, reply->tokens);
    return failed;
}

int bench_server_ask(struct bench_server *server, const u32 *ids, u32 count, u32 max_tokens,
                     struct bench_reply *reply, struct error *error)
{
    struct buffer request = {0};
    struct counters before, after;
    struct exchange exchange = {0};
    *reply = (struct bench_reply){0};
    write_request(server, ids, count, max_tokens, &request);
    int failed = read_counters(server, &before, error) ||
                 exchange_over(server, &request, &exchange, error);
    reply->whole = clock_seconds() - exchange.start;
    reply->first = exchange.first;
    failed = failed || read_events(&exchange, count, reply, error) ||
             read_counters(server, &after, error);
    buffer_free(&request);
    buffer_free(&exchange.body);
    if (failed)
        return -1;
    reply->engine = after.seconds - before.seconds;
    reply->rounds = (u32)(after.rounds - before.rounds + 0.5);
    return 0;
}
