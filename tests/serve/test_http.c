/* test_http.c - framing, limits, timeouts, and who may ask, byte by byte. */
#include "serve/harness.h"

#include <sys/stat.h>

#define HELLO "{\"prompt\": \"hello\", \"max_tokens\": 3}"

static void start(void)
{
    server_start((struct serve_options){0}, test_limits());
}

/* ---- keep-alive, pipelining, bodies */

static void test_keep_alive(void **state)
{
    (void)state;
    start();
    int client = client_open();
    for (int i = 0; i < 3; i++) {
        client_text(client, "GET /health?probe=1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n");
        struct reply reply = client_reply(client, false);
        assert_int_equal(reply.status, 200);
        assert_string_equal(reply.body.data, "{\"status\":\"ok\"}");
        assert_non_null(strstr(reply.head.data, "Connection: keep-alive"));
        reply_free(&reply);
    }
    close(client);
    assert_int_equal(server_stop(), 0);
}

static void test_pipelining(void **state)
{
    (void)state;
    start();
    int client = client_open();
    struct buffer requests = {0};
    char *post = post_text("/v1/completions", HELLO);
    for (int i = 0; i < 20; i++) {
        buffer_add_text(&requests, post);
        buffer_add_text(&requests, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    client_send(client, requests.data, requests.size);
    for (int i = 0; i < 40; i++) {
        struct reply reply = client_reply(client, false);
        assert_int_equal(reply.status, 200);
        assert_non_null(strstr(reply.body.data, i % 2 ? "\"list\"" : "text_completion"));
        reply_free(&reply);
    }
    close(client);
    memory_free(post);
    buffer_free(&requests);
}

/* Every split of a request into two pieces is the same request. */
static void test_split_anywhere(void **state)
{
    (void)state;
    start();
    char *post = post_text("/v1/completions", HELLO);
    size_t size = strlen(post);
    int client = client_open();
    int on = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (size_t cut = 1; cut < size; cut += 7) {
        client_send(client, post, cut);
        usleep(300);
        client_send(client, post + cut, size - cut);
        struct reply reply = client_reply(client, false);
        assert_int_equal(reply.status, 200);
        reply_free(&reply);
    }
    close(client);
    memory_free(post);
}

static void test_chunked_request(void **state)
{
    (void)state;
    start();
    int client = client_open();
    client_text(client, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                        "Transfer-Encoding: chunked\r\n\r\n"
                        "8;note=x\r\n{\"prompt\r\n15\r\n\": \"hello\", \"stop\": [\r\n2\r\n]}\r\n"
                        "0\r\nTrailer: x\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct reply reply = client_reply(client, false);
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body.data, "hello"));
    reply_free(&reply);
    reply = client_reply(client, false);
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    close(client);
}

static void test_expect_continue(void **state)
{
    (void)state;
    start();
    int client = client_open();
    client_text(client, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                        "Expect: 100-continue\r\nContent-Length: 36\r\n\r\n");
    struct reply reply = client_reply(client, false);
    assert_int_equal(reply.status, 100);
    reply_free(&reply);
    assert_int_equal(strlen(HELLO), 36);
    client_text(client, HELLO);
    reply = client_reply(client, false);
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    close(client);
    expect_error(ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\n"
                     "Content-Length: 5\r\n\r\n"),
                 417, NULL, "Expect");
    /* refused before the body is asked for */
    expect_error(ask("POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                     "Content-Length: 5\r\n\r\n"),
                 404, "not_found", NULL);
}

static void test_http10(void **state)
{
    (void)state;
    start();
    struct reply reply = ask("GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.head.data, "Connection: close"));
    reply_free(&reply);
    int client = client_open();
    const char *body = "{\"prompt\": \"hello\", \"stream\": true}";
    char request[512];
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    client_text(client, request);
    reply = client_reply(client, false);
    assert_int_equal(reply.status, 200);
    assert_null(strstr(reply.head.data, "chunked"));
    char byte;
    while (client_read(client, &byte, 1)) /* the stream ends with the connection */
        buffer_add(&reply.body, &byte, 1);
    assert_true(slice_starts(buffer_slice(&reply.body), SLICE("data: {")));
    assert_true(slice_ends(buffer_slice(&reply.body), SLICE("data: [DONE]\n\n")));
    reply_free(&reply);
    close(client);
}

/* ---- methods and paths */

static void test_head(void **state)
{
    (void)state;
    start();
    int client = client_open();
    client_text(client, "HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
                        "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct reply reply = client_reply(client, true);
    assert_int_equal(reply.status, 200);
    assert_true(atoi(reply_field(&reply, "\nContent-Length: ")) > 50);
    reply_free(&reply);
    reply = client_reply(client, false); /* no body came between */
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply.body.data, "{\"status\":\"ok\"}");
    reply_free(&reply);
    close(client);
}

static void test_options(void **state)
{
    (void)state;
    start();
    struct reply reply = ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_int_equal(reply.status, 204);
    assert_non_null(strstr(reply.head.data, "Allow: POST, OPTIONS\n"));
    assert_null(strstr(reply.head.data, "Access-Control"));
    reply_free(&reply);
}

static void test_wrong_method(void **state)
{
    (void)state;
    start();
    struct reply reply = ask_get("/v1/chat/completions");
    assert_non_null(strstr(reply.head.data, "Allow: POST, OPTIONS\n"));
    expect_error(reply, 405, "method_not_allowed", "/v1/chat/completions");
    reply = ask("DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_non_null(strstr(reply.head.data, "Allow: GET, HEAD, OPTIONS\n"));
    expect_error(reply, 405, "method_not_allowed", NULL);
    expect_error(ask_get("/v1/nothing"), 404, "not_found", NULL);
    expect_error(ask("GET http://localhost/v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n"), 404,
                 "not_found", NULL);
    expect_error(ask("GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"), 400,
                 "unexpected_body", NULL);
}

static void test_models(void **state)
{
    (void)state;
    server_start((struct serve_options){.model_name = "org/tiny model"}, test_limits());
    struct reply reply = ask_get("/v1/models");
    json_t *list = reply_json(&reply);
    json_t *model = json_array_get(json_object_get(list, "data"), 0);
    assert_string_equal(json_string_value(json_object_get(model, "id")), "org/tiny model");
    assert_int_equal(json_integer_value(json_object_get(model, "max_model_len")), FAKE_CONTEXT);
    assert_string_equal(json_string_value(json_object_get(model, "plan")), "0123456789abcdef");
    json_decref(list);
    reply_free(&reply);
    reply = ask_get("/v1/models/org%2Ftiny%20model");
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    expect_error(ask_get("/v1/models/other"), 404, "model_not_found", "org/tiny model");
}

/* ---- what is no HTTP */

static void test_garbage(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "hello\r\n\r\n",
        "GET / HTTP/3.7\r\nHost: localhost\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost localhost\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: local\x01host\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
        "Content-Length: 4\r\n\r\nabcd",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        "zz\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    };
    start();
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct reply reply = ask(texts[i]);
        if (reply.status != 400)
            fail_msg("text %zu: status %d", i, reply.status);
        assert_non_null(strstr(reply.head.data, "Connection: close"));
        reply_free(&reply);
    }
    struct reply reply = ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                             "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n");
    assert_int_equal(reply.status, 501);
    reply_free(&reply);
    reply = ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc");
    assert_int_equal(reply.status, 415);
    reply_free(&reply);
    reply = ask_get("/health");
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    assert_int_equal(server_stop(), 0);
}

/* The wish for another protocol is ignored, the request is answered. */
static void test_upgrade_ignored(void **state)
{
    (void)state;
    start();
    char *hello = post_text("/v1/completions", HELLO);
    struct buffer text = {0};
    buffer_format(&text,
                  "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                  "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  strlen(HELLO), HELLO);
    struct reply reply = ask(text.data);
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    buffer_free(&text);
    memory_free(hello);
    reply = ask("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(reply.status == 404 || reply.status == 405);
    reply_free(&reply);
}

/* ---- limits */

static void test_large_headers(void **state)
{
    (void)state;
    start();
    struct buffer text = {0};
    buffer_add_text(&text, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 300; i++)
        buffer_format(&text, "X-Filler-%d: %0100d\r\n", i, i);
    buffer_add_text(&text, "\r\n");
    expect_error(ask(text.data), 431, "headers_too_large", "32768");
    buffer_clear(&text);
    buffer_format(&text, "GET /%040000d HTTP/1.1\r\nHost: localhost\r\n\r\n", 1);
    expect_error(ask(text.data), 431, "headers_too_large", NULL);
    buffer_clear(&text);
    buffer_format(&text, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: %030000d\r\n\r\n", 1);
    struct reply reply = ask(text.data);
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    buffer_free(&text);
}

static void test_large_bodies(void **state)
{
    (void)state;
    struct serve_limits limits = test_limits();
    limits.body_bytes = 1000;
    server_start((struct serve_options){0}, limits);
    /* told from the header, before any of the body is sent */
    expect_error(ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Length: 1001\r\n\r\n"),
                 413, "body_too_large", "1001");
    struct buffer text = {0};
    buffer_format(&text,
                  "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n3e8\r\n%01000d\r\n1\r\n ",
                  1);
    expect_error(ask(text.data), 413, "body_too_large", "1000");
    buffer_clear(&text);
    buffer_format(&text, "{\"prompt\": \"%0980d\"}", 1);
    struct reply reply = ask_post("/v1/completions", text.data);
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    buffer_free(&text);
}

static void test_bodies_together(void **state)
{
    (void)state;
    struct serve_limits limits = test_limits();
    limits.bodies_bytes = 1500;
    server_start((struct serve_options){0}, limits);
    struct buffer text = {0};
    buffer_format(&text,
                  "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Length: 2000\r\n\r\n%01000d",
                  1);
    int first = client_open();
    client_text(first, text.data);
    usleep(50000);
    struct reply reply = ask(text.data);
    assert_non_null(strstr(reply.head.data, "Retry-After: "));
    expect_error(reply, 503, "bodies_too_large", "1500");
    close(first);
    double until = clock_seconds() + WAIT_SECONDS;
    do { /* until the room is back */
        reply = ask_post("/v1/completions", HELLO);
        reply_free(&reply);
    } while (reply.status == 503 && clock_seconds() < until);
    assert_int_equal(reply.status, 200);
    buffer_free(&text);
}

/* A header that comes byte by byte, for ever. */
static void test_slow_header(void **state)
{
    (void)state;
    struct serve_limits limits = test_limits();
    limits.header_time = 300;
    server_start((struct serve_options){0}, limits);
    int client = client_open();
    client_text(client, "GET /health HTTP/1.1\r\nX: ");
    while (client_text(client, "a")) {
        struct pollfd answer = {.fd = client, .events = POLLIN};
        if (poll(&answer, 1, 20) > 0)
            break;
    }
    expect_error(client_reply(client, false), 408, "request_timeout", "header");
    close(client);
    client = client_open(); /* says nothing: closed without a word */
    char byte;
    assert_int_equal(client_read(client, &byte, 1), 0);
    close(client);
}

static void test_slow_body(void **state)
{
    (void)state;
    struct serve_limits limits = test_limits();
    limits.body_time = 300;
    server_start((struct serve_options){0}, limits);
    expect_error(ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Length: 10\r\n\r\n{"),
                 408, "request_timeout", "body");
}

/* ---- who may ask */

static void expect_host(const char *host, int status)
{
    char request[256];
    snprintf(request, sizeof request, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n", host);
    struct reply reply = ask(request);
    if (reply.status != status)
        fail_msg("Host %s: status %d, expected %d", host, reply.status, status);
    reply_free(&reply);
}

static void test_host(void **state)
{
    (void)state;
    start();
    expect_host("localhost", 200);
    expect_host("LOCALHOST:8080", 200);
    expect_host("127.0.0.1:18020", 200);
    expect_host("127.8.9.10", 200);
    expect_host("[::1]:80", 200);
    expect_host("evil.example", 403);
    expect_host("localhost.evil.example", 403);
    expect_host("127.0.0.1.evil.example", 403);
    expect_host("localhost:80@evil", 403);
    expect_host("128.0.0.1", 403);
    expect_host("[::2]", 403);
    expect_host("", 403);
    expect_error(ask("GET /health HTTP/1.1\r\n\r\n"), 400, "bad_host", NULL);
    expect_error(ask("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"), 400,
                 "bad_host", NULL);
}

static void test_origin(void **state)
{
    (void)state;
    start();
    expect_error(ask("GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
                     "\r\n"),
                 403, "wrong_origin", "--cors");
    struct reply reply = ask("GET /health HTTP/1.1\r\nHost: localhost:5\r\n"
                             "Origin: http://localhost:5\r\n\r\n");
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
}

static void test_cors(void **state)
{
    (void)state;
    server_start((struct serve_options){.cors_origin = "http://page.example"}, test_limits());
    struct reply reply = ask("OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n"
                             "Origin: http://page.example\r\n"
                             "Access-Control-Request-Method: GET\r\n"
                             "Access-Control-Request-Headers: authorization, x-a\r\n\r\n");
    assert_int_equal(reply.status, 204);
    assert_non_null(strstr(reply.head.data, "Access-Control-Allow-Origin: http://page.example\n"));
    assert_non_null(strstr(reply.head.data, "Access-Control-Allow-Headers: authorization, x-a\n"));
    reply_free(&reply);
    reply = ask("GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://page.example\r\n\r\n");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.head.data, "Access-Control-Allow-Origin: http://page.example\n"));
    assert_non_null(strstr(reply.head.data, "Vary: Origin\n"));
    reply_free(&reply);
    expect_error(ask("GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
                     "\r\n"),
                 403, "wrong_origin", NULL);
}

static void expect_key(const char *header, int status)
{
    char request[256];
    snprintf(request, sizeof request, "GET /v1/models HTTP/1.1\r\nHost: any.example\r\n%s\r\n",
             header);
    struct reply reply = ask(request);
    if (reply.status != status)
        fail_msg("%s: status %d, expected %d", header, reply.status, status);
    if (status == 401)
        assert_non_null(strstr(reply.head.data, "WWW-Authenticate: Bearer"));
    reply_free(&reply);
}

static void write_key(char *path, const char *text, mode_t mode)
{
    strcpy(path, "/tmp/elpis-key-XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    fchmod(file, mode);
    close(file);
}

static void test_key(void **state)
{
    (void)state;
    char path[64];
    write_key(path, "secret\n", 0600);
    server_start((struct serve_options){.key_file = path, .listen = "0.0.0.0:0"}, test_limits());
    expect_key("", 401);
    expect_key("Authorization: Bearer wrong!\r\n", 401);
    expect_key("Authorization: Bearer secre\r\n", 401);
    expect_key("Authorization: Bearer secrets\r\n", 401);
    expect_key("Authorization: Basic secret\r\n", 401);
    expect_key("Authorization: Bearer secret\r\nAuthorization: Bearer secret\r\n", 401);
    expect_key("Authorization: bearer secret\r\n", 200);
    /* refused before a large body is read */
    expect_error(ask("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n"
                     "\r\n"),
                 401, "invalid_api_key", NULL);
    unlink(path);
}

/* ---- what keeps a server from starting */

static int start_code(struct serve_options options)
{
    server_start_loading(options, test_limits());
    assert_int_equal(server_port, 0);
    return server_wait();
}

static void test_key_files(void **state)
{
    (void)state;
    char path[64], link[80];
    struct error error;
    char key[4097];
    assert_int_equal(start_code((struct serve_options){.key_file = "/nonexistent"}), ERROR_USAGE);
    write_key(path, "secret", 0644);
    assert_int_equal(key_read(key, path, &error), -1);
    assert_non_null(strstr(error.text, "0644"));
    chmod(path, 0400);
    assert_int_equal(key_read(key, path, &error), 0);
    assert_string_equal(key, "secret");
    snprintf(link, sizeof link, "%s.link", path);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(key_read(key, link, &error), -1);
    assert_non_null(strstr(error.text, "symbolic link"));
    unlink(link);
    unlink(path);
    write_key(path, "two words\n", 0600);
    assert_int_equal(key_read(key, path, &error), -1);
    unlink(path);
    write_key(path, "\n", 0600);
    assert_int_equal(key_read(key, path, &error), -1);
    unlink(path);
    assert_int_equal(key_read(key, "/dev/null", &error), -1);
    assert_non_null(strstr(error.text, "regular file"));
}

static void test_key_length(void **state)
{
    (void)state;
    char path[64], text[4200], key[4097];
    struct error error;
    memset(text, 'k', sizeof text);
    text[4096] = '\n';
    text[4097] = 0;
    write_key(path, text, 0600);
    assert_int_equal(key_read(key, path, &error), 0);
    assert_int_equal(strlen(key), 4096);
    unlink(path);
    text[4096] = 'k';
    write_key(path, text, 0600);
    assert_int_equal(key_read(key, path, &error), -1);
    unlink(path);
}

static void test_addresses(void **state)
{
    (void)state;
    assert_int_equal(start_code((struct serve_options){.listen = "0.0.0.0:0"}), ERROR_USAGE);
    assert_int_equal(start_code((struct serve_options){.listen = "[::]:0"}), ERROR_USAGE);
    assert_int_equal(start_code((struct serve_options){.listen = "127.0.0.1"}), ERROR_USAGE);
    assert_int_equal(start_code((struct serve_options){.listen = "127.0.0.1:70000"}), ERROR_USAGE);
    assert_int_equal(start_code((struct serve_options){.listen = "::1:80"}), ERROR_USAGE);
    assert_int_equal(start_code((struct serve_options){.listen = ":80"}), ERROR_USAGE);
    server_start((struct serve_options){.listen = "localhost:0"}, test_limits());
    assert_int_equal(server_stop(), 0);
}

static void test_port_in_use(void **state)
{
    (void)state;
    char listen_text[32];
    start();
    pid_t first = server_child;
    int port = server_port;
    snprintf(listen_text, sizeof listen_text, "127.0.0.1:%d", port);
    assert_int_equal(start_code((struct serve_options){.listen = listen_text}), ERROR_ADDRESS);
    server_child = first;
    server_port = port;
    assert_int_equal(server_stop(), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_keep_alive),
        TEST(test_pipelining),
        TEST(test_split_anywhere),
        TEST(test_chunked_request),
        TEST(test_expect_continue),
        TEST(test_http10),
        TEST(test_head),
        TEST(test_options),
        TEST(test_wrong_method),
        TEST(test_models),
        TEST(test_garbage),
        TEST(test_upgrade_ignored),
        TEST(test_large_headers),
        TEST(test_large_bodies),
        TEST(test_bodies_together),
        TEST(test_slow_header),
        TEST(test_slow_body),
        TEST(test_host),
        TEST(test_origin),
        TEST(test_cors),
        TEST(test_key),
        TEST(test_key_files),
        TEST(test_key_length),
        TEST(test_addresses),
        TEST(test_port_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
