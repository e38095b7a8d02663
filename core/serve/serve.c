/* serve.c - the server's life: address, start, signals, drain, end.
 *
 *     listen -> start the engine thread -> loop { accept, read, events, tick } -> end
 *
 * The socket listens before the model is loaded, so that a taken address is told at
 * once and /health can say "loading".
 *
 * The first SIGTERM or SIGINT drains: waiting requests are refused, new ones too (the
 * listener stays open to tell them 503), running ones are finished within
 * limits.drain_time, then cancelled. A second signal ends the process by that signal.
 * A signal while the model is still loading ends the process at once: nothing is
 * running yet, and loading cannot be interrupted.
 *
 * When the device has failed the server stays up to say so (503), until it is
 * ended; serve_run then returns that error.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "serve/internal.h"

void serve_limits_default(struct serve_limits *limits)
{
    *limits = (struct serve_limits){
        .header_bytes = 32 * 1024,
        .body_bytes = 32 * 1024 * 1024,
        .bodies_bytes = 256ull * 1024 * 1024,
        .input_bytes = 64 * 1024,
        .write_bytes = 1024 * 1024,
        .connections = 1024,
        .queue = 64,
        .tick = 500,
        .header_time = 60 * 1000,
        .body_time = 300 * 1000,
        .write_time = 60 * 1000,
        .flush_time = 300 * 1000,
        .linger_time = 2 * 1000,
        .comment_time = 10 * 1000,
        .drain_time = 40 * 1000,
    };
}

/* ---- the end */

static void drop_connections(struct server *server, bool answering)
{
    for (struct connection *connection = server->connections, *next; connection;
         connection = next) {
        next = connection->next;
        bool receiving = connection->phase == PHASE_IDLE || connection->phase == PHASE_HEAD ||
                         connection->phase == PHASE_BODY;
        if (receiving || answering)
            connection_drop(connection);
    }
}

void server_settle(struct server *server)
{
    if (!server->draining || !jobs_idle(server))
        return;
    if (!server->closing) {
        server->closing = true;
        uv_close((uv_handle_t *)&server->listener, NULL);
        drop_connections(server, false);
    }
    if (server->connections || uv_is_closing((uv_handle_t *)&server->tick))
        return;
    uv_close((uv_handle_t *)&server->tick, NULL);
    uv_close((uv_handle_t *)&server->terminate, NULL);
    uv_close((uv_handle_t *)&server->interrupt, NULL);
    jobs_close(server);
}

void server_begin_drain(struct server *server)
{
    struct api_error error;
    server->draining = true;
    server->drain_deadline = uv_now(&server->loop) + server->limits.drain_time;
    api_fail(&error, 503, "server_shutting_down", NULL, "The server is shutting down.");
    jobs_refuse_waiting(server, &error);
    server_settle(server);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct server *server = handle->data;
    if (server->draining) {
        uv_signal_stop(handle);
        signal(number, SIG_DFL);
        raise(number);
    }
    if (server->state == SERVER_LOADING) {
        log_info("ended while loading");
        _exit(0);
    }
    log_info("shutting down: finishing what runs, at most %u seconds",
             server->limits.drain_time / 1000);
    server_begin_drain(server);
}

/* ---- running */

static void on_tick(uv_timer_t *timer)
{
    struct server *server = timer->data;
    u64 now = uv_now(&server->loop);
    for (struct connection *connection = server->connections, *next; connection;
         connection = next) {
        next = connection->next;
        connection_tick(connection, now);
    }
    if (!server->draining || now < server->drain_deadline)
        return;
    jobs_cancel_running(server);
    drop_connections(server, now >= server->drain_deadline + server->limits.linger_time);
}

static void on_connection(uv_stream_t *listener, int status)
{
    if (status == 0)
        connection_accept(listener->data);
}

/* ---- the address */

struct address {
    char host[256];
    char port[6];
    struct sockaddr_storage socket;
};

/* "HOST:PORT" or "[V6]:PORT" into its parts. */
static int split_address(const char *text, struct address *address, struct error *error)
{
    const char *colon = strrchr(text, ':');
    const char *port = colon ? colon + 1 : "";
    size_t host = colon ? (size_t)(colon - text) : 0;
    bool digits = *port && strspn(port, "0123456789") == strlen(port) && strlen(port) <= 5;
    if (!digits || strtoul(port, NULL, 10) > 65535 || host == 0 || host >= sizeof address->host)
        return error_set(error, ERROR_USAGE,
                         "listen address \"%s\" is not HOST:PORT, such as 127.0.0.1:18020", text);
    bool brackets = text[0] == '[' && text[host - 1] == ']';
    if (brackets) {
        text++;
        host -= 2;
    }
    memcpy(address->host, text, host);
    address->host[host] = 0;
    if (!brackets && strchr(address->host, ':'))
        return error_set(error, ERROR_USAGE,
                         "listen address %s: write an IPv6 address as [ADDRESS]:PORT", text);
    snprintf(address->port, sizeof address->port, "%s", port);
    return 0;
}

static int resolve(struct server *server, struct address *address, struct error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    uv_getaddrinfo_t request;
    int status = uv_getaddrinfo(&server->loop, &request, NULL, address->host, address->port,
                                &hints);
    if (status < 0)
        return error_set(error, ERROR_USAGE, "listen address %s cannot be resolved: %s",
                         address->host, uv_strerror(status));
    memcpy(&address->socket, request.addrinfo->ai_addr, request.addrinfo->ai_addrlen);
    uv_freeaddrinfo(request.addrinfo);
    return 0;
}

static bool is_loopback(const struct address *address)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&address->socket;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&address->socket;
    if (address->socket.ss_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static int listen_on(struct server *server, struct error *error)
{
    struct address address;
    if (split_address(server->options->listen, &address, error) < 0 ||
        resolve(server, &address, error) < 0)
        return -1;
    if (!server->key[0] && !is_loopback(&address))
        return error_set(error, ERROR_USAGE,
                         "listening on %s needs a key: without --key-file only 127.0.0.1, [::1] "
                         "and localhost are served",
                         server->options->listen);
    int status = uv_tcp_bind(&server->listener, (struct sockaddr *)&address.socket, 0);
    if (status == 0)
        status = uv_listen((uv_stream_t *)&server->listener, SOMAXCONN, on_connection);
    if (status == UV_EADDRINUSE)
        return error_set(error, ERROR_ADDRESS,
                         "%s is in use by another program; choose another port with --listen",
                         server->options->listen);
    if (status < 0)
        return error_set(error, ERROR_ADDRESS, "cannot listen on %s: %s", server->options->listen,
                         uv_strerror(status));
    return 0;
}

static void tell_ready(struct server *server)
{
    struct sockaddr_storage bound;
    int size = sizeof bound;
    char host[64], url[96];
    uv_tcp_getsockname(&server->listener, (struct sockaddr *)&bound, &size);
    uv_ip_name((struct sockaddr *)&bound, host, sizeof host);
    u16 port = ntohs(((struct sockaddr_in *)&bound)->sin_port); /* same place in both families */
    const char *format = bound.ss_family == AF_INET6 ? "http://[%s]:%u" : "http://%s:%u";
    snprintf(url, sizeof url, format, host, port);
    if (server->options->on_ready)
        server->options->on_ready(server->options->user, url);
}

/* ---- the start */

static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* The last part of a folder's path. */
static void name_folder(char *name, size_t size, const char *folder)
{
    char *whole = realpath(folder, NULL);
    const char *path = whole ? whole : folder;
    const char *slash = strrchr(path, '/');
    snprintf(name, size, "%s", slash && slash[1] ? slash + 1 : path);
    free(whole);
}

static void name_models(struct server *server, const char *folder)
{
    const struct serve_options *options = server->options;
    name_folder(server->model_name, sizeof server->model_name, folder);
    if (options->model_name)
        snprintf(server->model_name, sizeof server->model_name, "%s", options->model_name);
    if (options->draft)
        name_folder(server->draft_name, sizeof server->draft_name, options->draft);
}

static void init_handles(struct server *server)
{
    uv_loop_init(&server->loop);
    uv_tcp_init(&server->loop, &server->listener);
    uv_signal_init(&server->loop, &server->terminate);
    uv_signal_init(&server->loop, &server->interrupt);
    uv_timer_init(&server->loop, &server->tick);
    server->listener.data = server->terminate.data = server->interrupt.data = server;
    server->tick.data = server;
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static int start(struct server *server,
                 int (*open_engine)(void *user, struct engine **engine, struct error *error),
                 void *open_user, struct error *error)
{
    if (server->options->key_file && key_read(server->key, server->options->key_file, error) < 0)
        return -1;
    if (listen_on(server, error) < 0 || jobs_start(server, open_engine, open_user, error) < 0)
        return -1;
    uv_signal_start(&server->terminate, on_signal, SIGTERM);
    uv_signal_start(&server->interrupt, on_signal, SIGINT);
    uv_timer_start(&server->tick, on_tick, server->limits.tick, server->limits.tick);
    tell_ready(server);
    return 0;
}

int serve_run_limits(const struct serve_options *options, const struct serve_limits *limits,
                     const char *model_folder,
                     int (*open_engine)(void *user, struct engine **engine, struct error *error),
                     void *open_user, struct error *error)
{
    struct server *server = memory_alloc(sizeof *server);
    server->options = options;
    server->limits = *limits;
    server->folder = model_folder;
    server->started = clock_unix();
    signal(SIGPIPE, SIG_IGN);
    raise_file_limit();
    name_models(server, model_folder);
    http_settings(&server->parser_settings);
    init_handles(server);
    int status = start(server, open_engine, open_user, error);
    if (status < 0)
        uv_walk(&server->loop, close_handle, NULL);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    if (status == 0)
        jobs_stop(server);
    uv_loop_close(&server->loop);
    if (status == 0 && server->error.code) {
        *error = server->error;
        status = -1;
    }
    chat_template_close(server->chat);
    tokenizer_close(server->tokenizer);
    memory_free(server);
    return status;
}

int serve_run(const struct serve_options *options, const char *model_folder,
              int (*open_engine)(void *user, struct engine **engine, struct error *error),
              void *open_user, struct error *error)
{
    struct serve_limits limits;
    serve_limits_default(&limits);
    if (options->queue)
        limits.queue = options->queue;
    if (options->max_body)
        limits.body_bytes = options->max_body;
    return serve_run_limits(options, &limits, model_folder, open_engine, open_user, error);
}
