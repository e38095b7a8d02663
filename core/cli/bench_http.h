/* bench_http.h - private to cli/: whole requests to a server of its own, for `elpis bench --http`.
 *
 * The server is that of `elpis serve`, in a child process on a free port of 127.0.0.1. The child is
 * forked before a device is opened, as a GPU's driver asks, and waits: it opens the model only when
 * this process has closed its own, so that one model at a time is in the device's memory.
 */
#ifndef ELPIS_CLI_BENCH_HTTP_H
#define ELPIS_CLI_BENCH_HTTP_H

#include "base/base.h"
#include "engine/engine.h"

struct bench_server;

/* Forks; before anything that has threads or a device. folder and options stay the caller's. */
int bench_server_fork(struct bench_server **server, const char *folder,
                      const struct engine_options *options, struct error *error);
/* Returns when the model is loaded. */
int bench_server_start(struct bench_server *server, struct error *error);
void bench_server_close(struct bench_server *server); /* drains; NULL is fine */

/* A streamed, greedy completion of max_tokens: stop tokens do not end it. Seconds are this side's,
 * from before the connection is made. */
struct bench_reply {
    double whole;  /* until the answer's end */
    double first;  /* until the first text */
    double engine; /* what the server's engine counts for it: prompt and rounds */
    u32 cached;    /* tokens of the prompt that were not computed */
    u32 tokens, rounds;
};
int bench_server_ask(struct bench_server *server, const u32 *ids, u32 count, u32 max_tokens,
                     struct bench_reply *reply, struct error *error);

#endif
