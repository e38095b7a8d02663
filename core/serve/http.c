/* http.c - HTTP/1.1 messages: llhttp in, text out.
 *
 * llhttp calls back with pieces of the header and the body; the fields that the
 * server looks at are copied into slots, the others are only counted. The parser is
 * paused at the end of each message, so a request is handled outside of the
 * parser's callbacks and the bytes behind it wait in connection->input.
 *
 * What the header alone decides is decided before a body is read: a request that
 * is refused with its body still to come is answered and the connection closed.
 *
 * Sources: RFC 9110 (semantics), RFC 9112 (framing). llhttp refuses a message with
 * both Content-Length and Transfer-Encoding, and bare CR or LF in headers.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "serve/internal.h"

static const char *const header_names[HEADER_COUNT] = {
    [HEADER_HOST] = "host",
    [HEADER_AUTHORIZATION] = "authorization",
    [HEADER_ORIGIN] = "origin",
    [HEADER_EXPECT] = "expect",
    [HEADER_TRANSFER_ENCODING] = "transfer-encoding",
    [HEADER_CONTENT_ENCODING] = "content-encoding",
    [HEADER_REQUEST_HEADERS] = "access-control-request-headers",
};

#define HEADER_NAME_LONGEST 64 /* longer names are none of ours */

/* ---- the request's memory */

static void forget_body(struct connection *connection)
{
    connection->server->body_bytes -= connection->request.body.size;
    buffer_free(&connection->request.body);
}

void http_release(struct connection *connection)
{
    struct http_request *request = &connection->request;
    forget_body(connection);
    buffer_free(&request->target);
    buffer_free(&request->name);
    buffer_free(&request->value);
    for (size_t i = 0; i < HEADER_COUNT; i++)
        buffer_free(&request->headers[i]);
    *request = (struct http_request){0};
}

void http_begin(struct connection *connection)
{
    llhttp_init(&connection->parser, HTTP_REQUEST, &connection->server->parser_settings);
    connection->parser.data = connection;
}

void http_next(struct connection *connection)
{
    http_release(connection);
    llhttp_resume(&connection->parser);
}

/* ---- parsing */

static int refuse(struct connection *connection)
{
    connection->request.refused = true;
    return HPE_USER;
}

/* Keeps a piece of the header, within the limit on all of it. */
static int header_piece(llhttp_t *parser, struct buffer *to, const char *data, size_t size)
{
    struct connection *connection = parser->data;
    struct http_request *request = &connection->request;
    u32 limit = connection->server->limits.header_bytes;
    if (size > limit - request->header_bytes) {
        api_fail(&request->refusal, 431, "headers_too_large", NULL,
                 "The request header is over the limit of %u bytes; send a shorter one.", limit);
        return refuse(connection);
    }
    request->header_bytes += (u32)size;
    if (to)
        buffer_add(to, data, size);
    return 0;
}

static int on_message_begin(llhttp_t *parser)
{
    struct connection *connection = parser->data;
    connection_phase(connection, PHASE_HEAD, connection->server->limits.header_time);
    return 0;
}

static int on_url(llhttp_t *parser, const char *data, size_t size)
{
    struct connection *connection = parser->data;
    return header_piece(parser, &connection->request.target, data, size);
}

static int on_header_field(llhttp_t *parser, const char *data, size_t size)
{
    struct connection *connection = parser->data;
    struct buffer *name = &connection->request.name;
    return header_piece(parser, name->size > HEADER_NAME_LONGEST ? NULL : name, data, size);
}

static int on_header_value(llhttp_t *parser, const char *data, size_t size)
{
    struct connection *connection = parser->data;
    return header_piece(parser, &connection->request.value, data, size);
}

static int on_header_value_complete(llhttp_t *parser)
{
    struct connection *connection = parser->data;
    struct http_request *request = &connection->request;
    const char *name = request->name.data ? request->name.data : "";
    for (size_t i = 0; i < HEADER_COUNT && !request->headers_done; i++) {
        if (strcasecmp(name, header_names[i]) != 0)
            continue;
        request->seen[i]++;
        buffer_clear(&request->headers[i]);
        buffer_add_slice(&request->headers[i], buffer_slice(&request->value));
    }
    buffer_clear(&request->name);
    buffer_clear(&request->value);
    const u32 separators = 4; /* ": " and the line's end */
    return header_piece(parser, NULL, NULL, separators);
}

struct slice http_header(const struct http_request *request, enum header_slot slot)
{
    return buffer_slice(&request->headers[slot]);
}

bool http_header_is(const struct http_request *request, enum header_slot slot, const char *text)
{
    struct slice value = http_header(request, slot);
    return request->seen[slot] == 1 && value.size == strlen(text) &&
           strncasecmp(value.data, text, value.size) == 0;
}

/* Framing and content coding; what the routes say comes after it. */
static int check_framing(struct connection *connection, struct api_error *error)
{
    const struct http_request *request = &connection->request;
    u64 length = connection->parser.content_length;
    u32 limit = connection->server->limits.body_bytes;
    if (connection->parser.http_major != 1)
        return api_fail(error, 505, NULL, NULL, "Only HTTP/1.0 and HTTP/1.1 are spoken here.");
    if (request->seen[HEADER_TRANSFER_ENCODING] &&
        !http_header_is(request, HEADER_TRANSFER_ENCODING, "chunked"))
        return api_fail(error, 501, NULL, NULL, "Transfer-Encoding may only be \"chunked\".");
    if (request->seen[HEADER_CONTENT_ENCODING] &&
        !http_header_is(request, HEADER_CONTENT_ENCODING, "identity"))
        return api_fail(error, 415, NULL, NULL,
                        "Compressed request bodies are not supported; send plain JSON.");
    if (request->seen[HEADER_EXPECT] && !http_header_is(request, HEADER_EXPECT, "100-continue"))
        return api_fail(error, 417, NULL, NULL, "Expect may only be \"100-continue\".");
    if (request->has_body && !(connection->parser.flags & F_CHUNKED) && length > limit)
        return api_fail(error, 413, "body_too_large", NULL,
                        "The request body has %llu bytes, the limit is %u.",
                        (unsigned long long)length, limit);
    return 0;
}

static int on_headers_complete(llhttp_t *parser)
{
    struct connection *connection = parser->data;
    struct http_request *request = &connection->request;
    request->method = parser->method;
    request->http10 = parser->http_minor == 0;
    request->headers_done = true;
    request->has_body = (parser->flags & F_CHUNKED) || parser->content_length > 0;
    parser->upgrade = 0; /* no other protocol is offered: RFC 9110 7.8 lets us ignore the wish */
    if (check_framing(connection, &request->refusal) < 0 ||
        route_check(connection, &request->refusal) < 0) {
        request->refused = true;
        return request->has_body ? HPE_USER : 0;
    }
    if (!request->has_body)
        return 0;
    connection_phase(connection, PHASE_BODY, connection->server->limits.body_time);
    if (request->seen[HEADER_EXPECT] && !request->http10) {
        buffer_add_text(&connection->output, "HTTP/1.1 100 Continue\r\n\r\n");
        connection_send(connection);
    }
    return 0;
}

static int on_body(llhttp_t *parser, const char *data, size_t size)
{
    struct connection *connection = parser->data;
    struct server *server = connection->server;
    struct http_request *request = &connection->request;
    if (size > server->limits.body_bytes - request->body.size) {
        api_fail(&request->refusal, 413, "body_too_large", NULL,
                 "The request body is over the limit of %u bytes.", server->limits.body_bytes);
        return refuse(connection);
    }
    if (size > server->limits.bodies_bytes - server->body_bytes) {
        api_fail(&request->refusal, 503, "bodies_too_large", NULL,
                 "The bodies being received hold over %llu bytes together; try again.",
                 (unsigned long long)server->limits.bodies_bytes);
        return refuse(connection);
    }
    server->body_bytes += size;
    buffer_add(&request->body, data, size);
    return 0;
}

static int on_message_complete(llhttp_t *parser)
{
    struct connection *connection = parser->data;
    connection->request.keep_alive = llhttp_should_keep_alive(parser);
    return HPE_PAUSED;
}

void http_settings(llhttp_settings_t *settings)
{
    llhttp_settings_init(settings);
    settings->on_message_begin = on_message_begin;
    settings->on_url = on_url;
    settings->on_header_field = on_header_field;
    settings->on_header_value = on_header_value;
    settings->on_header_value_complete = on_header_value_complete;
    settings->on_headers_complete = on_headers_complete;
    settings->on_body = on_body;
    settings->on_message_complete = on_message_complete;
}

/* Answers what could not be parsed or may not be; nothing after it can be trusted. */
static void answer_refusal(struct connection *connection)
{
    connection->keep_alive = false;
    connection_phase(connection, PHASE_ANSWER, 0);
    http_answer_error(connection, &connection->request.refusal);
}

static void message_complete(struct connection *connection)
{
    connection_phase(connection, PHASE_ANSWER, 0);
    connection->keep_alive = connection->request.keep_alive;
    if (connection->request.refused)
        http_answer_error(connection, &connection->request.refusal);
    else
        route_dispatch(connection);
    forget_body(connection);
}

void http_feed(struct connection *connection, const char *data, size_t size)
{
    struct http_request *request = &connection->request;
    llhttp_errno_t status = llhttp_execute(&connection->parser, data, size);
    if (status == HPE_OK || connection->phase == PHASE_CLOSED)
        return;
    if (status == HPE_PAUSED) {
        const char *rest = llhttp_get_error_pos(&connection->parser);
        buffer_add(&connection->input, rest, (size_t)(data + size - rest));
        message_complete(connection);
        return;
    }
    if (!request->refused)
        api_fail(&request->refusal, 400, "bad_http", NULL, "This is no HTTP/1.1 request: %s.",
                 llhttp_get_error_reason(&connection->parser));
    answer_refusal(connection);
}

void http_timeout(struct connection *connection)
{
    const struct serve_limits *limits = &connection->server->limits;
    bool head = connection->phase == PHASE_HEAD;
    api_fail(&connection->request.refusal, 408, "request_timeout", NULL,
             "The request's %s was not complete after %u seconds.", head ? "header" : "body",
             (head ? limits->header_time : limits->body_time) / 1000);
    answer_refusal(connection);
}

/* ---- answering */

/* Reason phrases of the statuses that this server answers. */
static const char *status_name(int status)
{
    static const struct {
        int status;
        const char *name;
    } names[] = {
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (names[i].status == status)
            return names[i].name;
    return "Unknown";
}

static void add_date(struct buffer *head)
{
    char date[64];
    time_t now = time(NULL);
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &parts);
    buffer_format(head, "Date: %s\r\n", date);
}

static void add_head(struct connection *connection, int status, const char *type)
{
    struct buffer *head = &connection->output;
    metrics_answered(connection, status);
    if (connection->server->draining)
        connection->keep_alive = false;
    buffer_format(head, "HTTP/1.1 %d %s\r\n", status, status_name(status));
    add_date(head);
    if (type)
        buffer_format(head, "Content-Type: %s\r\n", type);
    buffer_format(head, "Connection: %s\r\n", connection->keep_alive ? "keep-alive" : "close");
    route_cors(connection, head);
}

void http_answer(struct connection *connection, int status, const char *type, struct slice body,
                 const char *extra)
{
    add_head(connection, status, type);
    struct buffer *output = &connection->output;
    if (extra)
        buffer_add_text(output, extra);
    if (status != 204)
        buffer_format(output, "Content-Length: %zu\r\n", body.size);
    buffer_add_text(output, "\r\n");
    if (connection->request.method != HTTP_HEAD || !connection->request.headers_done)
        buffer_add_slice(output, body);
    connection_answered(connection);
}

static void answer_json(struct connection *connection, int status, json_t *body, const char *extra)
{
    char *text = json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    http_answer(connection, status, "application/json", slice_of(text), extra);
    free(text);
    json_decref(body);
}

void http_answer_json(struct connection *connection, int status, json_t *body)
{
    answer_json(connection, status, body, NULL);
}

void http_answer_error(struct connection *connection, const struct api_error *error)
{
    char extra[128] = "";
    if (error->status == 401)
        snprintf(extra, sizeof extra, "WWW-Authenticate: Bearer realm=\"elpis\"\r\n");
    else if (error->status == 405)
        snprintf(extra, sizeof extra, "Allow: %s\r\n", error->allow);
    else if (error->status == 503)
        snprintf(extra, sizeof extra, "Retry-After: 2\r\n");
    answer_json(connection, error->status, api_error_json(error), extra);
}

/* HTTP/1.0 has no chunks: its stream ends with the connection. */
void http_stream_begin(struct connection *connection, const char *type)
{
    connection->chunked = !connection->request.http10;
    connection->keep_alive = connection->keep_alive && connection->chunked;
    add_head(connection, 200, type);
    buffer_add_text(&connection->output, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (connection->chunked)
        buffer_add_text(&connection->output, "Transfer-Encoding: chunked\r\n");
    buffer_add_text(&connection->output, "\r\n");
}

void http_stream_add(struct connection *connection, struct slice bytes)
{
    struct buffer *output = &connection->output;
    if (connection->phase == PHASE_CLOSED)
        return;
    if (connection->chunked)
        buffer_format(output, "%zx\r\n", bytes.size);
    buffer_add_slice(output, bytes);
    if (connection->chunked)
        buffer_add_text(output, "\r\n");
    size_t waiting = uv_stream_get_write_queue_size((uv_stream_t *)&connection->tcp);
    if (waiting + output->size > connection->server->limits.write_bytes)
        connection_drop(connection);
}

void http_stream_end(struct connection *connection)
{
    if (connection->phase == PHASE_CLOSED)
        return;
    if (connection->chunked)
        buffer_add_text(&connection->output, "0\r\n\r\n");
    connection_answered(connection);
}
