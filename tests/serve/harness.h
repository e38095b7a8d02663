/* harness.h - a server in a child process, and a small HTTP client to ask it.
 *
 * server_start forks; the child runs serve_run_limits on the fake engine and exits with
 * its code. The client reads with a deadline, so a server that hangs fails a test
 * instead of stopping it. Each test program includes this file once.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "serve/fake_engine.c"
#include "serve/internal.h"

#define UNUSED __attribute__((unused))
#define MODEL_FOLDER "tests/models/elpis-tiny"
#ifndef WAIT_SECONDS
#define WAIT_SECONDS 60.0 /* after which a test gives up: sanitizers are slow */
#endif

static pid_t server_child;
static int server_port;

/* ---- the server */

static void tell_port(void *user, const char *url)
{
    int port = atoi(strrchr(url, ':') + 1);
    if (write(*(int *)user, &port, sizeof port) != sizeof port)
        _exit(99);
}

static struct serve_limits test_limits(void)
{
    struct serve_limits limits;
    serve_limits_default(&limits);
    limits.tick = 20;
    limits.linger_time = 300;
    return limits;
}

static int run_server(const struct serve_options *options, const struct serve_limits *limits)
{
    struct error error;
    if (serve_run_limits(options, limits, MODEL_FOLDER, fake_open, NULL, &error) == 0)
        return 0;
    log_info("%s", error.text);
    return error.code;
}

/* Starts a server with options (listen and on_ready are filled in) and remembers its port; 0 when
 * it ended instead. */
UNUSED static void server_start_loading(struct serve_options options, struct serve_limits limits)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    server_child = fork();
    assert_true(server_child >= 0);
    if (server_child == 0) {
        close(pipes[0]);
        log_set_level(LOG_ERROR);
        if (!options.listen)
            options.listen = "127.0.0.1:0";
        options.on_ready = tell_port;
        options.user = &pipes[1];
        exit(run_server(&options, &limits));
    }
    close(pipes[1]);
    server_port = 0;
    if (read(pipes[0], &server_port, sizeof server_port) != sizeof server_port)
        server_port = 0;
    close(pipes[0]);
}

/* The exit code, or 128 + signal. */
UNUSED static int server_wait(void)
{
    int status;
    double until = clock_seconds() + WAIT_SECONDS;
    while (waitpid(server_child, &status, WNOHANG) == 0) {
        if (clock_seconds() > until) {
            kill(server_child, SIGKILL);
            fail_msg("the server did not end");
        }
        usleep(2000);
    }
    server_child = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

UNUSED static int server_stop(void)
{
    kill(server_child, SIGTERM);
    return server_wait();
}

/* ---- the client */

struct reply {
    int status; /* 0: the connection ended before a whole head */
    struct buffer head, body;
    bool whole; /* the framing's end was seen */
};

UNUSED static int client_open(void)
{
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((u16)server_port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(client >= 0);
    if (connect(client, (struct sockaddr *)&address, sizeof address) < 0)
        fail_msg("connect: %s", strerror(errno));
    return client;
}

/* false when the server closed its side. */
UNUSED static bool client_send(int client, const char *data, size_t size)
{
    while (size) {
        ssize_t sent = send(client, data, size, MSG_NOSIGNAL);
        if (sent < 0)
            return false;
        data += sent;
        size -= (size_t)sent;
    }
    return true;
}

UNUSED static bool client_text(int client, const char *text)
{
    return client_send(client, text, strlen(text));
}

/* Up to size bytes; 0 at the end or after a reset. Fails the test when nothing comes. */
static size_t client_read(int client, char *data, size_t size)
{
    struct pollfd poll_for = {.fd = client, .events = POLLIN};
    if (poll(&poll_for, 1, (int)(WAIT_SECONDS * 1000)) <= 0)
        fail_msg("the server sent nothing for %.0f seconds", WAIT_SECONDS);
    ssize_t got = recv(client, data, size, 0);
    return got > 0 ? (size_t)got : 0;
}

/* One line without its end; false when the connection ended. */
static bool client_line(int client, struct buffer *line)
{
    char byte;
    buffer_clear(line);
    while (client_read(client, &byte, 1)) {
        if (byte == '\n')
            return true;
        if (byte != '\r')
            buffer_add(line, &byte, 1);
    }
    return false;
}

static bool client_exactly(int client, struct buffer *to, size_t size)
{
    char data[4096];
    while (size) {
        size_t got = client_read(client, data, size < sizeof data ? size : sizeof data);
        if (!got)
            return false;
        buffer_add(to, data, got);
        size -= got;
    }
    return true;
}

/* Value of a field in the head, NULL when it is not there. name: "\nname: ". */
UNUSED static const char *reply_field(const struct reply *reply, const char *name)
{
    const char *place = reply->head.data ? strcasestr(reply->head.data, name) : NULL;
    return place ? place + strlen(name) : NULL;
}

static bool read_chunks(int client, struct reply *reply)
{
    struct buffer line = {0};
    bool whole = false;
    while (client_line(client, &line)) {
        size_t size = strtoul(line.data ? line.data : "", NULL, 16);
        if (!client_exactly(client, &reply->body, size) || !client_line(client, &line))
            break;
        whole = size == 0;
        if (whole)
            break;
    }
    buffer_free(&line);
    return whole;
}

/* Reads one answer; head only when that is all there is to it. */
UNUSED static struct reply client_reply(int client, bool head_only)
{
    struct reply reply = {0};
    struct buffer line = {0};
    bool open;
    while ((open = client_line(client, &line)) && line.size)
        buffer_format(&reply.head, "%s\n", line.data);
    buffer_free(&line);
    if (!open)
        return reply;
    sscanf(reply.head.data, "HTTP/1.1 %d", &reply.status);
    const char *length = reply_field(&reply, "\nContent-Length: ");
    if (reply.status == 204 || reply.status == 100 || head_only)
        reply.whole = true;
    else if (reply_field(&reply, "\nTransfer-Encoding: chunked"))
        reply.whole = read_chunks(client, &reply);
    else if (length)
        reply.whole = client_exactly(client, &reply.body, strtoul(length, NULL, 10));
    return reply;
}

UNUSED static void reply_free(struct reply *reply)
{
    buffer_free(&reply->head);
    buffer_free(&reply->body);
}

/* Text of a POST request with a JSON body. */
UNUSED static char *post_text(const char *path, const char *body)
{
    struct buffer text = {0};
    buffer_format(&text,
                  "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  path, strlen(body), body);
    return text.data;
}

/* One request on a connection of its own. */
UNUSED static struct reply ask(const char *request)
{
    int client = client_open();
    client_text(client, request);
    struct reply reply = client_reply(client, false);
    close(client);
    return reply;
}

UNUSED static struct reply ask_get(const char *path)
{
    char request[512];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    return ask(request);
}

UNUSED static struct reply ask_post(const char *path, const char *body)
{
    char *request = post_text(path, body);
    struct reply reply = ask(request);
    memory_free(request);
    return reply;
}

UNUSED static json_t *reply_json(const struct reply *reply)
{
    json_error_t fault;
    json_t *value = json_loadb(reply->body.data ? reply->body.data : "", reply->body.size,
                               JSON_REJECT_DUPLICATES, &fault);
    if (!value)
        fail_msg("no JSON (%s): %s", fault.text, reply->body.data ? reply->body.data : "");
    return value;
}

/* Asserts status and the error's code (NULL: null); sentence: must be in the message. */
UNUSED static void expect_error(struct reply reply, int status, const char *code,
                                const char *sentence)
{
    if (reply.status != status)
        fail_msg("status %d, expected %d: %s%s", reply.status, status,
                 reply.head.data ? reply.head.data : "", reply.body.data ? reply.body.data : "");
    json_t *value = reply_json(&reply);
    json_t *error = json_object_get(value, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    const char *got = json_string_value(json_object_get(error, "code"));
    assert_non_null(message);
    if ((code == NULL) != (got == NULL) || (code && strcmp(code, got) != 0))
        fail_msg("code %s, expected %s: %s", got ? got : "null", code ? code : "null", message);
    if (sentence && !strstr(message, sentence))
        fail_msg("\"%s\" is not in \"%s\"", sentence, message);
    json_decref(value);
    reply_free(&reply);
}

/* Starts a server and waits until its engine is open. A key, where one is asked, is "secret". */
UNUSED static void server_start(struct serve_options options, struct serve_limits limits)
{
    double until = clock_seconds() + WAIT_SECONDS;
    server_start_loading(options, limits);
    assert_int_not_equal(server_port, 0);
    for (;;) {
        struct reply reply = ask("GET /health HTTP/1.1\r\nHost: localhost\r\n"
                                 "Authorization: Bearer secret\r\n\r\n");
        int status = reply.status;
        reply_free(&reply);
        if (status == 200)
            return;
        if (clock_seconds() > until)
            fail_msg("the server is not ready: /health says %d", status);
        usleep(2000);
    }
}

/* Waits until the counter has reached a value. */
UNUSED static void wait_for(atomic_uint *counter, u32 value)
{
    double until = clock_seconds() + WAIT_SECONDS;
    while (atomic_load(counter) < value) {
        if (clock_seconds() > until)
            fail_msg("a counter stayed at %u, expected %u", atomic_load(counter), value);
        usleep(1000);
    }
}

/* ---- set-up: a fresh fake before each test, no server left after it */

UNUSED static int set_up(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    fake_create();
    return 0;
}

UNUSED static int tear_down(void **state)
{
    (void)state;
    if (server_child > 0) {
        kill(server_child, SIGKILL);
        waitpid(server_child, NULL, 0);
        server_child = 0;
    }
    munmap(fake, sizeof *fake);
    return 0;
}
