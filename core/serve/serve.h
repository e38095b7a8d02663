/* serve.h - the OpenAI-compatible HTTP service on libuv and llhttp.
 *
 * Two threads: the loop thread owns sockets, HTTP, JSON, templates and tokens; the
 * engine thread owns the device and runs one request at a time. Between them two
 * bounded queues (requests in, events out, uv_async to wake the loop). Cancellation
 * is a flag on the job, read between rounds (design.md 8).
 */
#ifndef ELPIS_SERVE_H
#define ELPIS_SERVE_H

#include "base/base.h"
#include "engine/engine.h"
#include "text/text.h"

struct serve_options {
    const char *listen;      /* "HOST:PORT", "[::1]:PORT"; port 0 picks one */
    const char *model_name;  /* id in /v1/models; NULL = the folder's name */
    const char *draft;       /* folder of the draft that open_engine loads; NULL = none */
    const char *version;     /* of the program, for /metrics; may be NULL */
    const char *key_file;    /* bearer key; NULL = none, loopback only */
    const char *cors_origin; /* NULL = no CORS */
    u32 queue;               /* waiting requests; 0 = 64; one more is answered 503 */
    u32 max_body;            /* bytes; 0 = 32 MiB */
    u32 default_max_tokens;  /* 0 = 4096, cut to what the context leaves */
    bool endless;            /* `elpis bench`: the model's stop tokens do not end answers */
    void (*on_ready)(void *user, const char *url); /* listening; may be NULL */
    void *user;
};

/* Serves until SIGTERM or SIGINT: then no new requests, running ones are finished (at most
 * 40 s), return 0. ERROR_ADDRESS when the address is taken. The engine may be handed over
 * not yet opened: open_engine is called on the engine thread after the socket listens, and
 * /health answers 503 "loading" until it returns. */
int serve_run(const struct serve_options *options, const char *model_folder,
              int (*open_engine)(void *user, struct engine **engine, struct error *error),
              void *open_user, struct error *error);

#endif
