/* routes.c - which path and method does what, and who may ask.
 *
 * Order of the checks, all from the header alone: Host and Origin (only without a
 * key), OPTIONS (asked by browsers without credentials), key, path, method, and
 * for generation the server's state. The first that fails is the answer.
 *
 * Without a key the server trusts every program on this machine, but not every
 * web page that is open on it: a page reaches loopback under a name of its own (DNS
 * rebinding; seen in Host) or from its own origin (seen in Origin).
 */
#include <stdio.h>
#include <string.h>

#include "serve/internal.h"

/* ---- handlers */

const char *server_status(const struct server *server)
{
    return server->state == SERVER_LOADING  ? "loading"
           : server->state == SERVER_FAILED ? "failed"
           : server->draining               ? "draining"
                                            : "ok";
}

static void answer_health(struct connection *connection)
{
    const struct server *server = connection->server;
    const char *status = server_status(server);
    json_t *body = json_pack("{s:s}", "status", status);
    if (server->state == SERVER_FAILED)
        json_object_set_new(body, "error", json_string(server->error.text));
    http_answer_json(connection, strcmp(status, "ok") == 0 ? 200 : 503, body);
}

static json_t *model_object(const struct server *server)
{
    json_t *model = json_pack("{s:s, s:s, s:I, s:s}", "id", server->model_name, "object", "model",
                              "created", (json_int_t)server->started, "owned_by", "local");
    if (server->state == SERVER_READY) {
        json_object_set_new(model, "max_model_len", json_integer(engine_context(server->engine)));
        json_object_set_new(model, "plan", json_string(engine_plan_hash(server->engine)));
    }
    if (server->draft_name[0])
        json_object_set_new(model, "draft_model", json_string(server->draft_name));
    return model;
}

static void answer_models(struct connection *connection)
{
    json_t *list = json_pack("[o]", model_object(connection->server));
    http_answer_json(connection, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

#define MODEL_PATH "/v1/models/"

static int hex_value(char digit)
{
    const char *digits = "0123456789abcdef";
    const char *place = digit ? strchr(digits, digit | 0x20) : NULL;
    return place ? (int)(place - digits) : -1;
}

/* The path with %XX resolved. */
static void decode_path(struct slice path, struct buffer *text)
{
    for (size_t i = 0; i < path.size; i++) {
        char byte = path.data[i];
        int high = byte == '%' && i + 2 < path.size ? hex_value(path.data[i + 1]) : -1;
        int low = high >= 0 ? hex_value(path.data[i + 2]) : -1;
        if (low >= 0) {
            byte = (char)(high * 16 + low);
            i += 2;
        }
        buffer_add(text, &byte, 1);
    }
}

static struct slice request_path(const struct connection *connection);

static void answer_model(struct connection *connection)
{
    struct slice path = request_path(connection);
    struct buffer name = {0};
    const size_t prefix = sizeof MODEL_PATH - 1;
    decode_path((struct slice){path.data + prefix, path.size - prefix}, &name);
    struct api_error error;
    if (slice_equal(buffer_slice(&name), slice_of(connection->server->model_name))) {
        http_answer_json(connection, 200, model_object(connection->server));
    } else {
        api_fail(&error, 404, "model_not_found", "model",
                 "There is no such model; this server "
                 "has \"%s\".",
                 connection->server->model_name);
        http_answer_error(connection, &error);
    }
    buffer_free(&name);
}

static void answer_chat(struct connection *connection)
{
    answer_begin(connection, true);
}

static void answer_completions(struct connection *connection)
{
    answer_begin(connection, false);
}

/* ---- the table */

struct route {
    const char *path;
    bool prefix;    /* the path only begins so */
    bool generates; /* POST, and needs the engine; else GET */
    enum metrics_endpoint endpoint;
    void (*answer)(struct connection *connection);
};

static const struct route routes[] = {
    {"/health", false, false, ENDPOINT_HEALTH, answer_health},
    {"/v1/health", false, false, ENDPOINT_HEALTH, answer_health},
    {"/metrics", false, false, ENDPOINT_METRICS, metrics_answer},
    {"/v1/models", false, false, ENDPOINT_MODELS, answer_models},
    {MODEL_PATH, true, false, ENDPOINT_MODELS, answer_model},
    {"/v1/chat/completions", false, true, ENDPOINT_CHAT, answer_chat},
    {"/v1/completions", false, true, ENDPOINT_COMPLETIONS, answer_completions},
};

/* The target without scheme, authority and query. */
static struct slice request_path(const struct connection *connection)
{
    struct slice target = buffer_slice(&connection->request.target);
    const struct slice scheme = SLICE("http://");
    if (slice_starts(target, scheme)) {
        const char *slash = memchr(target.data + scheme.size, '/', target.size - scheme.size);
        size_t skip = slash ? (size_t)(slash - target.data) : target.size;
        target = (struct slice){target.data + skip, target.size - skip};
    }
    const char *query = target.size ? memchr(target.data, '?', target.size) : NULL;
    if (query)
        target.size = (size_t)(query - target.data);
    return target;
}

static const struct route *find_route(struct slice path)
{
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        struct slice pattern = slice_of(routes[i].path);
        bool longer = routes[i].prefix && slice_starts(path, pattern) && path.size > pattern.size;
        if (longer || slice_equal(path, pattern))
            return &routes[i];
    }
    return NULL;
}

enum metrics_endpoint route_endpoint(const struct connection *connection)
{
    const struct route *route = connection->request.headers_done
                                    ? find_route(request_path(connection))
                                    : NULL;
    return route ? route->endpoint : ENDPOINT_OTHER;
}

static const char *allowed_methods(const struct route *route)
{
    return route->generates ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

/* ---- checks */

/* A request from a page of another origin than this server and the one of --cors. */
static bool origin_is_foreign(const struct connection *connection)
{
    const struct http_request *request = &connection->request;
    const char *allowed = connection->server->options->cors_origin;
    if (!request->seen[HEADER_ORIGIN])
        return false;
    struct slice origin = http_header(request, HEADER_ORIGIN);
    if (allowed && (strcmp(allowed, "*") == 0 || slice_equal(origin, slice_of(allowed))))
        return false;
    struct slice host = http_header(request, HEADER_HOST);
    const struct slice scheme = SLICE("http://");
    return !slice_starts(origin, scheme) ||
           !slice_equal((struct slice){origin.data + scheme.size, origin.size - scheme.size}, host);
}

static int check_caller(const struct connection *connection, struct api_error *error)
{
    const struct http_request *request = &connection->request;
    if (request->seen[HEADER_HOST] > 1 || (!request->seen[HEADER_HOST] && !request->http10))
        return api_fail(error, 400, "bad_host", NULL, "A request needs exactly one Host header.");
    if (connection->server->key[0])
        return 0;
    if (!host_is_loopback(http_header(request, HEADER_HOST)))
        return api_fail(error, 403, "wrong_host", NULL,
                        "Without a key only requests to localhost, 127.0.0.1 or [::1] are "
                        "answered; the Host header names another.");
    if (origin_is_foreign(connection))
        return api_fail(error, 403, "wrong_origin", NULL,
                        "Without a key pages of other origins are refused; allow one with "
                        "--cors ORIGIN.");
    return 0;
}

static int check_key(const struct connection *connection, struct api_error *error)
{
    const struct http_request *request = &connection->request;
    const char *key = connection->server->key;
    if (!key[0])
        return 0;
    if (request->seen[HEADER_AUTHORIZATION] == 1 &&
        key_matches(key, http_header(request, HEADER_AUTHORIZATION)))
        return 0;
    return api_fail(error, 401, "invalid_api_key", NULL,
                    "The API key is missing or wrong; send \"Authorization: Bearer KEY\" once.");
}

static int check_method(const struct connection *connection, const struct route *route,
                        struct api_error *error)
{
    u8 method = connection->request.method;
    bool allowed = route->generates ? method == HTTP_POST
                                    : method == HTTP_GET || method == HTTP_HEAD;
    if (!allowed) {
        error->allow = allowed_methods(route);
        return api_fail(error, 405, "method_not_allowed", NULL, "%s answers only %s.", route->path,
                        allowed_methods(route));
    }
    if (!route->generates && connection->request.has_body)
        return api_fail(error, 400, "unexpected_body", NULL, "%s takes no request body.",
                        route->path);
    return 0;
}

static int check_state(struct server *server, struct api_error *error)
{
    if (server->state == SERVER_LOADING)
        return api_fail(error, 503, "loading", NULL, "The model is still being loaded.");
    if (server->state == SERVER_FAILED)
        return api_fail(error, 503, "generation_failed", NULL,
                        "The device failed and the server must be restarted: %s.",
                        server->error.text);
    if (server->draining)
        return api_fail(error, 503, "server_shutting_down", NULL, "The server is shutting down.");
    if (jobs_full(server))
        return api_fail(error, 503, "queue_full", NULL,
                        "%u requests are waiting already; try again later.", server->limits.queue);
    return 0;
}

int route_check(struct connection *connection, struct api_error *error)
{
    if (check_caller(connection, error) < 0)
        return -1;
    if (connection->request.method == HTTP_OPTIONS)
        return 0;
    if (check_key(connection, error) < 0)
        return -1;
    const struct route *route = find_route(request_path(connection));
    if (!route)
        return api_fail(error, 404, "not_found", NULL, "There is nothing at this path.");
    if (check_method(connection, route, error) < 0)
        return -1;
    if (!route->generates || check_state(connection->server, error) == 0)
        return 0;
    metrics_refused(connection->server, error);
    return -1;
}

/* ---- answers */

void route_cors(struct connection *connection, struct buffer *head)
{
    const char *allowed = connection->server->options->cors_origin;
    struct slice origin = http_header(&connection->request, HEADER_ORIGIN);
    if (!allowed)
        return;
    bool any = strcmp(allowed, "*") == 0;
    if (any || slice_equal(origin, slice_of(allowed)))
        buffer_format(head, "Access-Control-Allow-Origin: %s\r\n", allowed);
    if (!any)
        buffer_add_text(head, "Vary: Origin\r\n");
}

static void answer_options(struct connection *connection)
{
    const struct route *route = find_route(request_path(connection));
    const char *methods = route ? allowed_methods(route) : "GET, HEAD, POST, OPTIONS";
    struct buffer extra = {0};
    buffer_format(&extra, "Allow: %s\r\n", methods);
    if (connection->server->options->cors_origin) {
        struct slice wanted = http_header(&connection->request, HEADER_REQUEST_HEADERS);
        buffer_format(&extra, "Access-Control-Allow-Methods: %s\r\n", methods);
        if (wanted.size)
            buffer_format(&extra, "Access-Control-Allow-Headers: %.*s\r\n", (int)wanted.size,
                          wanted.data);
        buffer_add_text(&extra, "Access-Control-Max-Age: 600\r\n");
    }
    http_answer(connection, 204, NULL, SLICE(""), extra.data);
    buffer_free(&extra);
}

void route_dispatch(struct connection *connection)
{
    if (connection->request.method == HTTP_OPTIONS)
        answer_options(connection);
    else
        find_route(request_path(connection))->answer(connection);
}
