/* jobs.c - the two queues between the loop thread and the engine thread.
 *
 *     loop                     waiting jobs (list, at most limits.queue)      engine
 *     jobs_submit   ---------> first -> ... -> last ----------------------->  run
 *     on_wake       <--------- ring of events {job, kind, token} <----------  push
 *
 * One lock guards both. The engine thread sleeps on `work`, and on `space` when the
 * ring is full; the loop is woken by uv_async and never sleeps here, so a full ring
 * always empties. A job's events end with EVENT_FINISHED; after it the engine thread
 * does not touch the job again.
 *
 * Rounds are counted where they can be told apart: tokens between two calls of
 * on_progress are those of one round. A stop token is not seen by on_token, so the last
 * round has what is missing to the result's number.
 *
 * Two flags stop a running job: `enough` after the present token (a stop string was
 * completed; the result is still filled), `cancelled` before the next round.
 */
#include "serve/internal.h"

enum event_kind { EVENT_OPENED, EVENT_OPEN_FAILED, EVENT_TOKEN, EVENT_FINISHED };

struct event {
    struct job *job;
    enum event_kind kind;
    u32 token;
};

enum { RING = 1024 };

struct engine_side {
    struct server *server;
    uv_mutex_t lock;
    uv_cond_t work, space;
    uv_async_t wake;
    uv_thread_t thread;
    struct job *first, *last, *running; /* running: until its last event is handled */
    u32 waiting;
    bool stop;
    bool dead; /* engine thread: the device failed */
    struct event ring[RING];
    u32 ring_first, ring_count;
    u32 active; /* loop thread: jobs submitted and not yet finished or freed */
    int (*open_engine)(void *user, struct engine **engine, struct error *error);
    void *open_user;
    struct error open_error; /* engine thread, until EVENT_OPEN_FAILED */
};

/* ---- engine thread */

static void push(struct engine_side *side, struct event event)
{
    uv_mutex_lock(&side->lock);
    while (side->ring_count == RING)
        uv_cond_wait(&side->space, &side->lock);
    side->ring[(side->ring_first + side->ring_count++) % RING] = event;
    uv_mutex_unlock(&side->lock);
    uv_async_send(&side->wake);
}

static void end_round(struct job *job, u32 tokens)
{
    if (tokens)
        job->rounds_of[tokens < ENGINE_ROWS ? tokens : ENGINE_ROWS]++;
    job->ended_tokens += tokens;
    job->round_tokens = 0;
}

static bool on_token(void *user, u32 token)
{
    struct job *job = user;
    job->round_tokens++;
    push(job->server->engine_side, (struct event){job, EVENT_TOKEN, token});
    return !atomic_load(&job->enough);
}

static bool on_progress(void *user, u32 prompt_done, u32 prompt_count)
{
    (void)prompt_count;
    struct job *job = user;
    atomic_store(&job->prompt_done, prompt_done);
    end_round(job, job->round_tokens);
    return !atomic_load(&job->cancelled);
}

static void run_job(struct engine_side *side, struct job *job)
{
    const struct model_config *config = &engine_model(side->server->engine)->config;
    struct engine_request request = {
        .prompt = job->prompt,
        .prompt_count = job->prompt_count,
        .max_tokens = job->max_tokens,
        .sampling = job->sampling,
        .stops = config->eos,
        .stop_count = side->server->options->endless ? 0 : config->eos_count,
        .on_token = on_token,
        .on_progress = on_progress,
        .user = job,
    };
    job->error.code = ERROR_NONE;
    if (engine_generate(side->server->engine, &request, &job->result, &job->error) == 0)
        job->error.code = ERROR_NONE;
    if (job->error.code == ERROR_NONE)
        job->round_tokens = job->result.completion_tokens - job->ended_tokens;
    end_round(job, job->round_tokens);
    if (job->error.code == ERROR_FATAL)
        side->dead = true;
    push(side, (struct event){job, EVENT_FINISHED, 0});
}

/* The next job, or NULL when the thread shall end. After a fatal error it only waits for that
 * end: the loop may still ask the engine what it is until then. */
static struct job *take_job(struct engine_side *side)
{
    uv_mutex_lock(&side->lock);
    while ((!side->first || side->dead) && !side->stop)
        uv_cond_wait(&side->work, &side->lock);
    struct job *job = side->stop ? NULL : side->first;
    if (job) {
        side->first = job->next;
        side->last = side->first ? side->last : NULL;
        side->waiting--;
        job->queued = false;
        side->running = job;
    }
    uv_mutex_unlock(&side->lock);
    return job;
}

static int open_all(struct engine_side *side, struct error *error)
{
    struct server *server = side->server;
    if (tokenizer_open(&server->tokenizer, server->folder, error) < 0)
        return -1;
    if (chat_template_open(&server->chat, server->folder, &server->chat_error) < 0) {
        server->chat = NULL;
        log_warn("no chat, only completions: %s", server->chat_error.text);
    }
    return side->open_engine(side->open_user, &server->engine, error);
}

static void engine_thread(void *user)
{
    struct engine_side *side = user;
    struct job *job;
    if (open_all(side, &side->open_error) < 0) {
        push(side, (struct event){NULL, EVENT_OPEN_FAILED, 0});
    } else {
        push(side, (struct event){NULL, EVENT_OPENED, 0});
        while ((job = take_job(side)) != NULL)
            run_job(side, job);
        engine_close(side->server->engine);
    }
}

/* ---- loop thread: events */

static void engine_failed(struct server *server, const struct error *error)
{
    struct api_error refusal;
    server->state = SERVER_FAILED;
    server->error = *error;
    log_error("%s", error->text);
    api_fail(&refusal, 503, "generation_failed", NULL, "The device failed: %.900s", error->text);
    jobs_refuse_waiting(server, &refusal);
}

static void job_finished(struct server *server, struct job *job)
{
    struct engine_side *side = server->engine_side;
    uv_mutex_lock(&side->lock);
    if (side->running == job)
        side->running = NULL;
    uv_mutex_unlock(&side->lock);
    if (job->error.code == ERROR_FATAL)
        engine_failed(server, &job->error);
    side->active--;
    metrics_finished(server, job);
    answer_finished(job);
    server_settle(server);
}

static bool pop(struct engine_side *side, struct event *event)
{
    uv_mutex_lock(&side->lock);
    bool some = side->ring_count > 0;
    if (some) {
        *event = side->ring[side->ring_first];
        side->ring_first = (side->ring_first + 1) % RING;
        side->ring_count--;
        uv_cond_signal(&side->space);
    }
    uv_mutex_unlock(&side->lock);
    return some;
}

static void handle(struct server *server, const struct event *event)
{
    switch (event->kind) {
    case EVENT_OPENED:
        server->state = SERVER_READY;
        log_info("%s is ready on %s: context of %u tokens, plan %s", server->model_name,
                 engine_device(server->engine)->name, engine_context(server->engine),
                 engine_plan_hash(server->engine));
        break;
    case EVENT_OPEN_FAILED:
        server->state = SERVER_FAILED;
        server->error = server->engine_side->open_error;
        server_begin_drain(server);
        break;
    case EVENT_TOKEN: answer_token(event->job, event->token); break;
    case EVENT_FINISHED: job_finished(server, event->job); break;
    }
}

/* At most one ring's worth a turn, so that a fast engine does not starve the sockets. */
static void on_wake(uv_async_t *wake)
{
    struct server *server = wake->data;
    struct job *speaking = NULL; /* its chunks go out together */
    struct event event;
    u32 handled = 0;
    while (handled < RING && pop(server->engine_side, &event)) {
        handle(server, &event);
        speaking = event.kind == EVENT_TOKEN ? event.job : NULL;
        handled++;
    }
    if (speaking && speaking->connection)
        connection_send(speaking->connection);
    if (handled == RING)
        uv_async_send(wake);
}

/* ---- loop thread: the queue */

int jobs_start(struct server *server,
               int (*open_engine)(void *user, struct engine **engine, struct error *error),
               void *open_user, struct error *error)
{
    struct engine_side *side = memory_alloc(sizeof *side);
    side->server = server;
    side->open_engine = open_engine;
    side->open_user = open_user;
    server->engine_side = side;
    uv_mutex_init(&side->lock);
    uv_cond_init(&side->work);
    uv_cond_init(&side->space);
    uv_async_init(&server->loop, &side->wake, on_wake);
    side->wake.data = server;
    int status = uv_thread_create(&side->thread, engine_thread, side);
    if (status < 0)
        return error_set(error, ERROR_MEMORY, "the engine thread cannot be started: %s",
                         uv_strerror(status));
    return 0;
}

bool jobs_full(struct server *server)
{
    struct engine_side *side = server->engine_side;
    uv_mutex_lock(&side->lock);
    bool full = side->waiting >= server->limits.queue;
    uv_mutex_unlock(&side->lock);
    return full;
}

bool jobs_submit(struct server *server, struct job *job)
{
    struct engine_side *side = server->engine_side;
    uv_mutex_lock(&side->lock);
    bool room = side->waiting < server->limits.queue;
    if (room) {
        job->queued = true;
        if (side->last)
            side->last->next = job;
        else
            side->first = job;
        side->last = job;
        side->waiting++;
        side->active++;
        uv_cond_signal(&side->work);
    }
    uv_mutex_unlock(&side->lock);
    return room;
}

/* Under the lock: takes a waiting job out of the list. */
static void unlink_job(struct engine_side *side, struct job *job)
{
    struct job **link = &side->first, *before = NULL;
    while (*link != job) {
        before = *link;
        link = &before->next;
    }
    *link = job->next;
    if (side->last == job)
        side->last = before;
    side->waiting--;
}

void jobs_abandon(struct job *job)
{
    struct engine_side *side = job->server->engine_side;
    job->connection = NULL;
    atomic_store(&job->cancelled, true);
    uv_mutex_lock(&side->lock);
    bool waiting = job->queued;
    if (waiting)
        unlink_job(side, job);
    uv_mutex_unlock(&side->lock);
    if (!waiting)
        return;
    side->active--;
    job_free(job);
}

void jobs_refuse_waiting(struct server *server, const struct api_error *error)
{
    struct engine_side *side = server->engine_side;
    for (;;) {
        uv_mutex_lock(&side->lock);
        struct job *job = side->first;
        if (job) {
            unlink_job(side, job);
            job->queued = false;
        }
        uv_mutex_unlock(&side->lock);
        if (!job)
            return;
        side->active--;
        metrics_refused(server, error);
        answer_failed(job, error);
    }
}

bool jobs_idle(struct server *server)
{
    return server->engine_side->active == 0;
}

void jobs_count(struct server *server, u32 *running, u32 *waiting)
{
    struct engine_side *side = server->engine_side;
    uv_mutex_lock(&side->lock);
    *running = side->running != NULL;
    *waiting = side->waiting;
    uv_mutex_unlock(&side->lock);
}

void jobs_prompt(struct server *server, u32 *done, u32 *count)
{
    struct engine_side *side = server->engine_side;
    uv_mutex_lock(&side->lock);
    const struct job *job = side->running;
    *done = job ? atomic_load(&job->prompt_done) : 0;
    *count = job ? job->prompt_count : 0;
    uv_mutex_unlock(&side->lock);
    if (*done >= *count)
        *done = *count = 0;
}

void jobs_cancel_running(struct server *server)
{
    struct engine_side *side = server->engine_side;
    uv_mutex_lock(&side->lock);
    if (side->running)
        atomic_store(&side->running->cancelled, true);
    uv_mutex_unlock(&side->lock);
}

void jobs_close(struct server *server)
{
    uv_close((uv_handle_t *)&server->engine_side->wake, NULL);
}

void jobs_stop(struct server *server)
{
    struct engine_side *side = server->engine_side;
    uv_mutex_lock(&side->lock);
    side->stop = true;
    uv_cond_signal(&side->work);
    uv_mutex_unlock(&side->lock);
    uv_thread_join(&side->thread);
    uv_cond_destroy(&side->space);
    uv_cond_destroy(&side->work);
    uv_mutex_destroy(&side->lock);
    memory_free(side);
    server->engine_side = NULL;
}
