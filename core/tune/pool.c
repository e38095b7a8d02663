/* pool.c - threads that compile candidates while others are timed.
 *
 * Jobs form a list in the order of pool_add; `queue` is the first that nobody began. The caller's
 * thread adds and waits, the workers take. A job is written by its worker until it is done and by
 * nobody else.
 */
#include "tune/tune_private.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

enum { THREADS_MOST = 64, POLL_NANOSECONDS = 50000000 };

struct compile_pool {
    struct jit *jit;
    pthread_t threads[THREADS_MOST];
    u32 thread_count;
    pthread_mutex_t mutex;
    pthread_cond_t work, finished;
    /* under the mutex */
    struct compile_job *first, **last, *queue;
    bool closing;
};

static void *work(void *argument)
{
    struct compile_pool *pool = argument;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!pool->queue && !pool->closing)
            pthread_cond_wait(&pool->work, &pool->mutex);
        if (pool->closing)
            break;
        struct compile_job *job = pool->queue;
        pool->queue = job->next;
        job->state = JOB_RUNNING;
        pthread_mutex_unlock(&pool->mutex);
        job->status = jit_variant_compile(pool->jit, job->variant, &job->image, &job->error);
        pthread_mutex_lock(&pool->mutex);
        job->state = JOB_DONE;
        pthread_cond_broadcast(&pool->finished);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

int pool_open(struct compile_pool **out, struct jit *jit, u32 threads, struct error *error)
{
    struct compile_pool *pool = memory_alloc(sizeof *pool);
    pool->jit = jit;
    pool->last = &pool->first;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);
    if (threads > THREADS_MOST)
        threads = THREADS_MOST;
    while (pool->thread_count < threads &&
           pthread_create(&pool->threads[pool->thread_count], NULL, work, pool) == 0)
        pool->thread_count++;
    if (pool->thread_count == 0) {
        pool_close(pool);
        return error_set(error, ERROR_MEMORY, "no thread could be started to compile");
    }
    *out = pool;
    return 0;
}

void pool_close(struct compile_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->closing = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (u32 i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    while (pool->first) {
        struct compile_job *job = pool->first;
        pool->first = job->next;
        buffer_free(&job->image);
        memory_free(job);
    }
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->finished);
    pthread_mutex_destroy(&pool->mutex);
    memory_free(pool);
}

struct compile_job *pool_add(struct compile_pool *pool, struct jit_kernel *variant)
{
    struct compile_job *job = memory_alloc(sizeof *job);
    job->variant = variant;
    pthread_mutex_lock(&pool->mutex);
    *pool->last = job;
    pool->last = &job->next;
    if (!pool->queue)
        pool->queue = job;
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    return job;
}

static bool is_over(const struct compile_job *job)
{
    return job->state == JOB_DONE || job->state == JOB_CANCELLED;
}

bool pool_wait(struct compile_pool *pool, struct compile_job *job, double deadline)
{
    pthread_mutex_lock(&pool->mutex);
    while (!is_over(job) && (deadline == 0 || clock_seconds() < deadline)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += POLL_NANOSECONDS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&pool->finished, &pool->mutex, &until);
    }
    const bool done = job->state == JOB_DONE;
    pthread_mutex_unlock(&pool->mutex);
    return done;
}

void pool_cancel(struct compile_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    for (struct compile_job *job = pool->queue; job; job = job->next)
        job->state = JOB_CANCELLED;
    pool->queue = NULL;
    pthread_cond_broadcast(&pool->finished);
    pthread_mutex_unlock(&pool->mutex);
}
