/* connection.c - one TCP connection: reading, writing, deadlines, closing.
 *
 *     IDLE -> HEAD -> BODY -> ANSWER -> FLUSH -> IDLE ...      kept alive
 *                                           \-> LINGER -> CLOSED
 *
 * Back-pressure, both ways. While an answer is under way, bytes of later requests
 * are kept up to a limit, then reading stops. The next request begins only when
 * the last byte of the answer before it has left this process. A streamed answer
 * may leave a limited number of bytes waiting; a reader slower than that is
 * dropped, and so is one that takes no byte for a while.
 *
 * A client that ends its side while its answer is being computed has left: the
 * job is cancelled. (A client that only half-closes loses its answer; those that
 * wait for answers do not half-close.)
 *
 * After a last answer our side is shut down first and what the client still sends
 * is discarded for a moment: closing at once could reset the connection before
 * the client has read why.
 *
 * Not here: what the bytes mean (http.c).
 */
#include "serve/internal.h"

struct write {
    uv_write_t request;
    struct connection *connection;
    char *data;
};

void connection_phase(struct connection *connection, enum connection_phase phase, u32 time)
{
    connection->phase = phase;
    connection->deadline = time ? uv_now(&connection->server->loop) + time : 0;
}

static void on_closed(uv_handle_t *handle)
{
    struct connection *connection = handle->data;
    struct server *server = connection->server;
    if (connection->previous)
        connection->previous->next = connection->next;
    else
        server->connections = connection->next;
    if (connection->next)
        connection->next->previous = connection->previous;
    server->connection_count--;
    http_release(connection);
    buffer_free(&connection->input);
    buffer_free(&connection->output);
    memory_free(connection);
    server_settle(server);
}

void connection_drop(struct connection *connection)
{
    if (connection->phase == PHASE_CLOSED)
        return;
    connection_phase(connection, PHASE_CLOSED, 0);
    if (connection->job)
        jobs_abandon(connection->job);
    connection->job = NULL;
    uv_close((uv_handle_t *)&connection->tcp, on_closed);
}

/* ---- reading */

static void on_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    (void)suggested;
    struct server *server = ((struct connection *)handle->data)->server;
    *buffer = uv_buf_init(server->read_buffer, sizeof server->read_buffer);
}

static void reading_stop(struct connection *connection)
{
    uv_read_stop((uv_stream_t *)&connection->tcp);
    connection->reading = false;
}

static void keep_input(struct connection *connection, const char *data, size_t size)
{
    buffer_add(&connection->input, data, size);
    if (connection->input.size >= connection->server->limits.input_bytes)
        reading_stop(connection);
}

static void input_ended(struct connection *connection)
{
    connection->ended = true;
    if (connection->phase == PHASE_FLUSH)
        reading_stop(connection);
    else
        connection_drop(connection);
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buffer)
{
    struct connection *connection = stream->data;
    if (size == UV_EOF) {
        input_ended(connection);
        return;
    }
    if (size < 0) {
        connection_drop(connection);
        return;
    }
    if (size == 0 || connection->phase == PHASE_LINGER)
        return;
    if (connection->phase == PHASE_ANSWER || connection->phase == PHASE_FLUSH)
        keep_input(connection, buffer->base, (size_t)size);
    else
        http_feed(connection, buffer->base, (size_t)size);
}

static int reading_start(struct connection *connection)
{
    if (connection->reading)
        return 0;
    connection->reading = true;
    return uv_read_start((uv_stream_t *)&connection->tcp, on_allocate, on_read);
}

/* ---- writing */

static void on_shutdown(uv_shutdown_t *request, int status)
{
    struct connection *connection = request->data;
    if (status < 0)
        connection_drop(connection);
}

static void linger(struct connection *connection)
{
    connection_phase(connection, PHASE_LINGER, connection->server->limits.linger_time);
    buffer_clear(&connection->input);
    connection->shutdown.data = connection;
    uv_stream_t *stream = (uv_stream_t *)&connection->tcp;
    if (connection->ended || uv_shutdown(&connection->shutdown, stream, on_shutdown) < 0 ||
        reading_start(connection) < 0)
        connection_drop(connection);
}

/* The last byte of an answer has left. */
static void flushed(struct connection *connection)
{
    if (!connection->keep_alive || connection->ended || connection->server->draining) {
        linger(connection);
        return;
    }
    connection_phase(connection, PHASE_IDLE, connection->server->limits.header_time);
    http_next(connection);
    if (connection->input.size) {
        struct buffer input = connection->input;
        connection->input = (struct buffer){0};
        http_feed(connection, input.data, input.size);
        buffer_free(&input);
    }
    bool busy = connection->phase == PHASE_CLOSED || connection->phase == PHASE_LINGER;
    if (!busy && connection->input.size < connection->server->limits.input_bytes &&
        reading_start(connection) < 0)
        connection_drop(connection);
}

static void on_written(uv_write_t *request, int status)
{
    struct write *write = request->data;
    struct connection *connection = write->connection;
    memory_free(write->data);
    memory_free(write);
    connection->writes--;
    if (connection->phase == PHASE_CLOSED)
        return;
    if (status < 0)
        connection_drop(connection);
    else if (connection->writes == 0 && connection->phase == PHASE_FLUSH)
        flushed(connection);
}

void connection_send(struct connection *connection)
{
    if (connection->output.size == 0 || connection->phase == PHASE_CLOSED)
        return;
    struct write *write = memory_alloc(sizeof *write);
    write->connection = connection;
    write->data = connection->output.data;
    write->request.data = write;
    uv_buf_t bytes = uv_buf_init(write->data, (unsigned)connection->output.size);
    connection->output = (struct buffer){0};
    connection->written_at = uv_now(&connection->server->loop);
    connection->writes++;
    uv_stream_t *stream = (uv_stream_t *)&connection->tcp;
    if (uv_write(&write->request, stream, &bytes, 1, on_written) < 0) {
        connection->writes--;
        memory_free(write->data);
        memory_free(write);
        connection_drop(connection);
    }
}

void connection_answered(struct connection *connection)
{
    if (connection->phase == PHASE_CLOSED)
        return;
    connection_phase(connection, PHASE_FLUSH, connection->server->limits.flush_time);
    connection_send(connection);
    if (connection->writes == 0 && connection->phase == PHASE_FLUSH)
        flushed(connection); /* the last piece was sent before it was known to be the last */
}

/* ---- time */

/* Whether the reader took nothing for too long. */
static bool stuck(struct connection *connection, u64 now)
{
    size_t waiting = uv_stream_get_write_queue_size((uv_stream_t *)&connection->tcp);
    if (waiting == 0 || waiting < connection->waiting)
        connection->moved_at = now;
    connection->waiting = waiting;
    return waiting && now - connection->moved_at > connection->server->limits.write_time;
}

void connection_tick(struct connection *connection, u64 now)
{
    if (connection->phase == PHASE_CLOSED)
        return;
    if (stuck(connection, now)) {
        connection_drop(connection);
        return;
    }
    if (connection->deadline && now >= connection->deadline) {
        if (connection->phase == PHASE_HEAD || connection->phase == PHASE_BODY)
            http_timeout(connection);
        else
            connection_drop(connection);
        return;
    }
    bool silent = now - connection->written_at >= connection->server->limits.comment_time;
    if (connection->job && connection->job->stream && silent)
        answer_keep_alive(connection->job);
}

/* ---- accepting */

int connection_accept(struct server *server)
{
    struct connection *connection = memory_alloc(sizeof *connection);
    connection->server = server;
    connection->next = server->connections;
    if (connection->next)
        connection->next->previous = connection;
    server->connections = connection;
    server->connection_count++;
    uv_tcp_init(&server->loop, &connection->tcp);
    connection->tcp.data = connection;
    connection->moved_at = connection->written_at = uv_now(&server->loop);
    http_begin(connection);
    connection_phase(connection, PHASE_IDLE, server->limits.header_time);
    uv_stream_t *stream = (uv_stream_t *)&connection->tcp;
    int status = uv_accept((uv_stream_t *)&server->listener, stream);
    bool refused = server->connection_count > server->limits.connections || server->closing;
    if (status < 0 || refused) {
        connection_drop(connection);
        return -1;
    }
    uv_tcp_nodelay(&connection->tcp, 1);
    uv_tcp_keepalive(&connection->tcp, 1, 60);
    if (reading_start(connection) < 0)
        connection_drop(connection);
    return 0;
}
