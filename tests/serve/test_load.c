/* test_load.c - many clients, clients that leave, slow readers, a full queue, a device that
 * dies, and the end. No test asserts how long anything takes. */
#include "serve/harness.h"

#define TEXT "/v1/completions"

static int post(const char *body)
{
    int client = client_open();
    char *request = post_text(TEXT, body);
    client_text(client, request);
    memory_free(request);
    return client;
}

/* One request is answered well. 503 and a closed connection are asked again: the server may not
 * have seen yet that others left. */
static void ask_hello(void)
{
    double until = clock_seconds() + WAIT_SECONDS;
    struct reply reply = ask_post(TEXT, "{\"prompt\": \"hello\"}");
    while ((reply.status == 503 || reply.status == 0) && clock_seconds() < until) {
        reply_free(&reply);
        usleep(20000);
        reply = ask_post(TEXT, "{\"prompt\": \"hello\"}");
    }
    if (reply.status != 200 || !strstr(reply.body.data, "hello"))
        fail_msg("status %d: %s", reply.status, reply.body.data);
    reply_free(&reply);
}

/* Private memory of the server, in KiB. */
static long memory_of_server(void)
{
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", server_child);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "RssAnon:", 8) == 0)
            kib = strtol(line + 8, NULL, 10);
    fclose(file);
    return kib;
}

static int files_of_server(void)
{
    char path[64];
    struct arena *arena = arena_create();
    char **names;
    size_t count;
    struct error error;
    snprintf(path, sizeof path, "/proc/%d/fd", server_child);
    assert_int_equal(file_list(arena, path, &names, &count, &error), 0);
    arena_destroy(arena);
    return (int)count;
}

/* ---- clients that leave */

enum { LEAVERS = 16 };

/* Sixteen clients at a time, each gone at a random moment of its request. */
static void leave_at_random(u32 rounds, u32 *random)
{
    for (u32 round = 0; round < rounds; round++) {
        int clients[LEAVERS];
        for (int i = 0; i < LEAVERS; i++)
            clients[i] = post(i % 2
                                  ? "{\"prompt\": \"a b c d e f g h\", \"top_k\": 1, \"seed\": 300,"
                                    "\"stream\": true}"
                                  : "{\"prompt\": \"a b c d e f g h\", \"seed\": 1000}");
        for (int i = 0; i < LEAVERS; i++) {
            *random = *random * 1664525 + 1013904223; /* Numerical Recipes' generator */
            usleep(*random >> 20);
            if (*random & 0x10000) { /* half of them with a reset */
                struct linger now = {1, 0};
                setsockopt(clients[i], SOL_SOCKET, SO_LINGER, &now, sizeof now);
            }
            close(clients[i]);
        }
    }
}

static void wait_for_files(int count)
{
    double until = clock_seconds() + WAIT_SECONDS;
    while (files_of_server() > count) {
        if (clock_seconds() > until)
            fail_msg("%d files are open, expected %d", files_of_server(), count);
        usleep(5000);
    }
}

static void test_leaving_clients(void **state)
{
    (void)state;
    u32 random = 5;
    server_start((struct serve_options){0}, test_limits());
    leave_at_random(10, &random);
    ask_hello();
    usleep(400000); /* longer than linger_time */
    int files = files_of_server();
    long before = memory_of_server();
    leave_at_random(30, &random);
    ask_hello();
    wait_for_files(files);
    long after = memory_of_server();
    const long noise = 2048; /* KiB: the allocator's own; 480 leaked jobs would be more */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (after > before + noise)
        fail_msg("memory grew from %ld to %ld KiB", before, after);
#else
    (void)before;
    (void)after;
    (void)noise;
#endif
    assert_int_equal(server_stop(), 0);
}

/* A client that leaves while its request waits or runs stops the work for it. */
static void test_cancel(void **state)
{
    (void)state;
    server_start((struct serve_options){0}, test_limits());
    int running = post(
        "{\"prompt\": \"a b\", \"top_k\": 1, \"seed\": 1000, \"max_tokens\": 100000}");
    wait_for(&fake->tokens, 3);
    int waiting = post("{\"prompt\": \"a b\", \"top_k\": 1, \"max_tokens\": 100000}");
    usleep(50000);
    close(waiting);
    usleep(50000);
    close(running);
    wait_for(&fake->cancelled, 1);
    ask_hello();
    assert_int_equal(atomic_load(&fake->started), 2); /* the waiting one never began */
    assert_int_equal(server_stop(), 0);
}

/* ---- slow readers */

/* Takes a byte and then none: what waits for it is bounded, then it is dropped. */
static void test_slow_reader(void **state)
{
    (void)state;
    server_start((struct serve_options){0}, test_limits());
    int client = socket(AF_INET, SOCK_STREAM, 0);
    int small = 4096;
    setsockopt(client, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((u16)server_port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(client, (struct sockaddr *)&address, sizeof address), 0);
    char *request = post_text(TEXT, "{\"prompt\": \"a b c d\", \"top_k\": 1, \"stream\": true, "
                                    "\"max_tokens\": 290000}");
    client_text(client, request);
    memory_free(request);
    wait_for(&fake->tokens, 1);
    double until = clock_seconds() + WAIT_SECONDS;
    char byte;
    while (atomic_load(&fake->cancelled) == 0 && clock_seconds() < until) {
        client_read(client, &byte, 1);
        usleep(1000000 / 50); /* fifty times faster than a byte a second, to be done sooner */
    }
    assert_int_equal(atomic_load(&fake->cancelled), 1);
    assert_true(memory_of_server() < 200 * 1024);
    close(client);
    ask_hello();
    assert_int_equal(server_stop(), 0);
}

/* A reader that takes nothing of a finished answer is dropped after write_time. */
static void test_stuck_reader(void **state)
{
    (void)state;
    struct serve_limits limits = test_limits();
    limits.write_time = 200;
    limits.write_bytes = 64 * 1024 * 1024;
    server_start((struct serve_options){0}, limits);
    int files = files_of_server();
    int client = post("{\"prompt\": \"a b c d\", \"top_k\": 1, \"stream\": true, "
                      "\"max_tokens\": 60000}");
    wait_for(&fake->started, 1);
    wait_for_files(files);
    close(client);
    ask_hello();
}

/* ---- the queue */

enum { QUEUERS = 500 };

/* Reads answers from clients[] (closed ones are -1) until `wanted` have come; counts statuses. */
static void take_answers(int *clients, int wanted, int *answered, int *refused)
{
    struct pollfd waits[QUEUERS];
    while (wanted > 0) {
        for (int i = 0; i < QUEUERS; i++)
            waits[i] = (struct pollfd){.fd = clients[i], .events = POLLIN};
        if (poll(waits, QUEUERS, (int)(WAIT_SECONDS * 1000)) <= 0)
            fail_msg("%d answers did not come", wanted);
        for (int i = 0; i < QUEUERS && wanted > 0; i++) {
            if (clients[i] < 0 || !waits[i].revents)
                continue;
            struct reply reply = client_reply(clients[i], false);
            *answered += reply.status == 200;
            *refused += reply.status == 503 && reply_field(&reply, "\nRetry-After: ");
            reply_free(&reply);
            close(clients[i]);
            clients[i] = -1;
            wanted--;
        }
    }
}

static void test_full_queue(void **state)
{
    (void)state;
    int clients[QUEUERS], answered = 0, refused = 0;
    struct serve_limits limits = test_limits();
    int queue = (int)limits.queue;
    server_start((struct serve_options){0}, limits);
    int running = post(
        "{\"prompt\": \"a b\", \"top_k\": 1, \"seed\": 1000, \"max_tokens\": 200000}");
    wait_for(&fake->tokens, 1);
    for (int i = 0; i < QUEUERS; i++)
        clients[i] = post("{\"prompt\": \"hello\"}");
    take_answers(clients, QUEUERS - queue, &answered, &refused);
    assert_int_equal(answered, 0);
    assert_int_equal(refused, QUEUERS - queue);
    close(running);
    take_answers(clients, queue, &answered, &refused);
    assert_int_equal(answered, queue);
    ask_hello();
    assert_int_equal(server_stop(), 0);
}

static void test_in_order(void **state)
{
    (void)state;
    int clients[20];
    char body[64], expected[16];
    server_start((struct serve_options){0}, test_limits());
    for (int i = 0; i < 20; i++) {
        snprintf(body, sizeof body, "{\"prompt\": \"number %d.\", \"seed\": 200}", i);
        clients[i] = post(body);
    }
    for (int i = 0; i < 20; i++) {
        struct reply reply = client_reply(clients[i], false);
        snprintf(expected, sizeof expected, "number %d.", i);
        assert_non_null(strstr(reply.body.data, expected));
        reply_free(&reply);
        close(clients[i]);
    }
    assert_int_equal(server_stop(), 0);
}

/* More connections than allowed: the others still work. */
static void test_connections(void **state)
{
    (void)state;
    int clients[8];
    char byte;
    struct serve_limits limits = test_limits();
    limits.connections = 4;
    server_start((struct serve_options){0}, limits);
    usleep(400000);
    for (int i = 0; i < 8; i++) {
        clients[i] = client_open();
        usleep(20000);
    }
    for (int i = 4; i < 8; i++)
        assert_int_equal(client_read(clients[i], &byte, 1), 0);
    for (int i = 0; i < 8; i++)
        close(clients[i]);
    usleep(100000);
    ask_hello();
}

/* ---- streams that wait */

static void test_keep_alive_comments(void **state)
{
    (void)state;
    struct serve_limits limits = test_limits();
    limits.comment_time = 50;
    fake->prefill_us = 500000;
    server_start((struct serve_options){0}, limits);
    int first = post("{\"prompt\": [5, 6, 7, 8, 9], \"top_k\": 2, \"stream\": true}");
    int second = post("{\"prompt\": \"b\", \"stream\": true}"); /* waits in the queue */
    struct reply one = client_reply(first, false), two = client_reply(second, false);
    assert_non_null(strstr(one.body.data, ": prompt 2/5\n\n"));
    assert_non_null(strstr(two.body.data, ": keep-alive\n\n"));
    assert_true(one.whole && two.whole);
    assert_non_null(strstr(two.body.data, "data: [DONE]"));
    reply_free(&one);
    reply_free(&two);
    close(first);
    close(second);
}

/* ---- faults */

static void test_fault(void **state)
{
    (void)state;
    server_start((struct serve_options){0}, test_limits());
    expect_error(ask_post(TEXT, "{\"prompt\": \"x\", \"top_k\": 667}"), 500, "internal_error",
                 "as told");
    struct reply reply = ask_post(TEXT, "{\"prompt\": \"x\", \"top_k\": 667, \"stream\": true}");
    assert_int_equal(reply.status, 200);
    assert_true(slice_starts(buffer_slice(&reply.body), SLICE("data: {\"error\":")));
    assert_null(strstr(reply.body.data, "[DONE]"));
    reply_free(&reply);
    ask_hello(); /* an ordinary fault is over with its request */
}

static void test_fatal(void **state)
{
    (void)state;
    server_start((struct serve_options){0}, test_limits());
    fake->prefill_us = 300000;
    int first = post("{\"prompt\": \"x\", \"top_k\": 2}");
    wait_for(&fake->started, 1);
    int second = post("{\"prompt\": \"x\", \"top_k\": 666}");
    usleep(30000);
    int third = post("{\"prompt\": \"x\"}");
    struct reply reply = client_reply(first, false);
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    expect_error(client_reply(second, false), 503, "generation_failed", "as told");
    expect_error(client_reply(third, false), 503, "generation_failed", "as told");
    expect_error(ask_post(TEXT, "{\"prompt\": \"x\"}"), 503, "generation_failed", "restarted");
    reply = ask_get("/health");
    assert_int_equal(reply.status, 503);
    assert_non_null(strstr(reply.body.data, "\"failed\""));
    reply_free(&reply);
    close(first);
    close(second);
    close(third);
    assert_int_equal(server_stop(), ERROR_FATAL);
}

/* ---- the beginning and the end */

static void test_loading(void **state)
{
    (void)state;
    fake->open_us = 300000;
    server_start_loading((struct serve_options){0}, test_limits());
    struct reply reply = ask_get("/health");
    assert_int_equal(reply.status, 503);
    assert_string_equal(reply.body.data, "{\"status\":\"loading\"}");
    reply_free(&reply);
    expect_error(ask_post(TEXT, "{\"prompt\": \"x\"}"), 503, "loading", NULL);
    reply = ask_get("/v1/models");
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    int status = 503;
    while (status == 503) {
        reply = ask_get("/health");
        status = reply.status;
        reply_free(&reply);
        usleep(10000);
    }
    assert_int_equal(status, 200);
    ask_hello();
    assert_int_equal(server_stop(), 0);
    fake->open_us = 5000000;
    server_start_loading((struct serve_options){0}, test_limits());
    assert_int_equal(server_stop(), 0); /* ended while loading */
}

static void test_loading_fails(void **state)
{
    (void)state;
    fake->open_fails = true;
    server_start_loading((struct serve_options){0}, test_limits());
    assert_int_equal(server_wait(), ERROR_MODEL);
}

static void test_drain(void **state)
{
    (void)state;
    server_start((struct serve_options){0}, test_limits());
    int idle = client_open();
    int running = post("{\"prompt\": \"a b c d\", \"seed\": 200000, \"stream\": true}");
    wait_for(&fake->started, 1);
    int waiting = post("{\"prompt\": \"x\"}");
    int streamed = post("{\"prompt\": \"x\", \"stream\": true}");
    usleep(50000);
    kill(server_child, SIGTERM);
    expect_error(client_reply(waiting, false), 503, "server_shutting_down", NULL);
    struct reply reply = client_reply(streamed, false);
    assert_non_null(strstr(reply.body.data, "server_shutting_down"));
    reply_free(&reply);
    expect_error(ask_post(TEXT, "{\"prompt\": \"x\"}"), 503, "server_shutting_down", NULL);
    reply = ask_get("/health");
    assert_int_equal(reply.status, 503);
    assert_non_null(strstr(reply.body.data, "draining"));
    reply_free(&reply);
    reply = client_reply(running, false);
    assert_true(reply.whole);
    assert_non_null(strstr(reply.body.data, "data: [DONE]"));
    reply_free(&reply);
    close(running);
    close(waiting);
    close(streamed);
    assert_int_equal(server_wait(), 0);
    close(idle);
}

static void test_drain_deadline(void **state)
{
    (void)state;
    struct serve_limits limits = test_limits();
    limits.drain_time = 200;
    server_start((struct serve_options){0}, limits);
    int client = post(
        "{\"prompt\": \"a b\", \"top_k\": 1, \"seed\": 1000, \"max_tokens\": 200000}");
    wait_for(&fake->tokens, 1);
    kill(server_child, SIGINT);
    expect_error(client_reply(client, false), 503, "server_shutting_down", NULL);
    close(client);
    assert_int_equal(server_wait(), 0);
    assert_int_equal(atomic_load(&fake->cancelled), 1);
}

static void test_second_signal(void **state)
{
    (void)state;
    server_start((struct serve_options){0}, test_limits());
    int client = post(
        "{\"prompt\": \"a b\", \"top_k\": 1, \"seed\": 1000, \"max_tokens\": 200000}");
    wait_for(&fake->tokens, 1);
    kill(server_child, SIGTERM);
    struct reply reply;
    do { /* until the first signal is seen */
        reply = ask_get("/health");
        reply_free(&reply);
    } while (reply.status == 200);
    kill(server_child, SIGTERM);
    assert_int_equal(server_wait(), 128 + SIGTERM);
    close(client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_leaving_clients), TEST(test_cancel),
        TEST(test_slow_reader),     TEST(test_stuck_reader),
        TEST(test_full_queue),      TEST(test_in_order),
        TEST(test_connections),     TEST(test_keep_alive_comments),
        TEST(test_fault),           TEST(test_fatal),
        TEST(test_loading),         TEST(test_loading_fails),
        TEST(test_drain),           TEST(test_drain_deadline),
        TEST(test_second_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
