/* build.c - compiling what was requested: cache first, then a pool of threads.
 *
 * jit_build goes through three steps
 *   1. every kernel that is in the cache is loaded;
 *   2. what is missing becomes a job; workers take jobs in order: lock the key, look into the
 *      cache again (another process may have been faster), compile;
 *   3. the calling thread takes finished jobs, loads each module and finds its function, stores
 *      the image, and lets go of the lock.
 * Loading stays in the calling thread because the device belongs to it. A worker that waits for
 * another process's lock holds up nobody: what it has finished itself is stored by the caller.
 *
 * No image is stored before the known answers of check.c came out right with this compiler: its
 * kernel is the first job, and stores wait for it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "jit/jit_private.h"

enum { THREADS_MAX = 64, PROGRESS_NANOSECONDS = 200000000 };

/* Seconds between progress lines where they do not replace each other. */
static const double quiet_interval = 5;

struct job {
    struct jit_kernel *kernel;
    struct buffer image;
    int lock;      /* of the cache; -1 = none */
    bool compiled; /* else it came from the cache after all */
    bool taken;    /* by the calling thread, when finished */
    int status;
    struct error error;
    struct job *next_finished;
};

struct pool {
    struct jit *jit;
    struct job *jobs;
    size_t count;
    pthread_mutex_t mutex;
    pthread_cond_t finished_one;
    /* under the mutex */
    size_t next, running;
    bool stop;
    struct job *finished;
};

/* ---- loading */

int jit_kernel_load(struct jit *jit, struct jit_kernel *kernel, const struct buffer *image,
                    struct error *error)
{
    const char *entry = kernel->rendering.entry;
    if (device_module_load(jit->device, image->data, image->size, kernel->name, &kernel->module,
                           error) != 0)
        return -1;
    if (device_function_get(jit->device, kernel->module, entry, &kernel->rendering.geometry,
                            &kernel->function, error) == 0)
        return 0;
    device_module_unload(jit->device, kernel->module);
    kernel->module = NULL;
    return -1;
}

/* An image that is sound but does not load (made by hand, or for a device that changed) goes. */
static bool load_cached(struct jit *jit, struct jit_kernel *kernel)
{
    struct error error;
    struct buffer image = {0};
    bool loaded = false;
    if (cache_load(jit->cache, &kernel->key, &image)) {
        loaded = jit_kernel_load(jit, kernel, &image, &error) == 0;
        if (!loaded) {
            log_debug("cached kernel %s does not load: %s", kernel->name, error.text);
            cache_remove(jit->cache, &kernel->key);
        }
    }
    buffer_free(&image);
    return loaded;
}

/* ---- workers */

static int compile(struct jit *jit, struct job *job, struct error *error)
{
    struct jit_kernel *kernel = job->kernel;
    const double started = clock_seconds();
    job->compiled = true;
    if (device_compile(jit->device, buffer_slice(&kernel->rendering.source), kernel->name,
                       &job->image, error) != 0)
        return -1;
    log_debug("compiled kernel %s: %.3f s", kernel->name, clock_seconds() - started);
    return 0;
}

static void do_job(struct pool *pool, struct job *job)
{
    struct jit *jit = pool->jit;
    struct jit_kernel *kernel = job->kernel;
    job->lock = cache_lock(jit->cache, &kernel->key);
    if (job->lock >= 0 && cache_load(jit->cache, &kernel->key, &job->image))
        return;
    job->status = compile(jit, job, &job->error);
}

static void *work(void *argument)
{
    struct pool *pool = argument;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stop && pool->next < pool->count) {
        struct job *job = &pool->jobs[pool->next++];
        pthread_mutex_unlock(&pool->mutex);
        do_job(pool, job);
        pthread_mutex_lock(&pool->mutex);
        job->next_finished = pool->finished;
        pool->finished = job;
        pthread_cond_signal(&pool->finished_one);
    }
    pool->running--;
    pthread_cond_signal(&pool->finished_one);
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* Finished jobs as a list; waits a moment for one. *over: no worker is left. */
static struct job *take_finished(struct pool *pool, bool *over)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PROGRESS_NANOSECONDS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&pool->mutex);
    int result = 0;
    while (!pool->finished && pool->running > 0 && result != ETIMEDOUT)
        result = pthread_cond_timedwait(&pool->finished_one, &pool->mutex, &until);
    struct job *list = pool->finished;
    pool->finished = NULL;
    *over = pool->running == 0;
    pthread_mutex_unlock(&pool->mutex);
    return list;
}

static void stop_workers(struct pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_mutex_unlock(&pool->mutex);
}

/* ---- the calling thread's part */

static void release(struct jit *jit, struct job *job)
{
    cache_unlock(jit->cache, &job->kernel->key, job->lock);
    job->lock = -1;
    buffer_free(&job->image);
}

/* Stores what waits, once the check has passed. */
static void store_finished(struct pool *pool)
{
    struct jit *jit = pool->jit;
    for (size_t i = 0; jit->checked && i < pool->count; i++) {
        struct job *job = &pool->jobs[i];
        if (!job->kernel->function || !job->image.data)
            continue;
        if (job->compiled)
            cache_store(jit->cache, &job->kernel->key, buffer_slice(&job->image));
        release(jit, job);
    }
}

/* After a failure nothing more is stored; a lock kept now could hold up a worker forever. */
static void release_taken(struct pool *pool)
{
    for (size_t i = 0; i < pool->count; i++)
        if (pool->jobs[i].taken)
            release(pool->jit, &pool->jobs[i]);
}

static int finish_job(struct pool *pool, struct job *job, struct error *error)
{
    struct jit *jit = pool->jit;
    struct jit_kernel *kernel = job->kernel;
    if (job->status != 0)
        return error_set(error, job->error.code, "%s", job->error.text);
    if (jit_kernel_load(jit, kernel, &job->image, error) != 0) {
        if (job->compiled)
            return -1;
        cache_remove(jit->cache, &kernel->key);
        if (compile(jit, job, error) != 0 || jit_kernel_load(jit, kernel, &job->image, error) != 0)
            return -1;
    }
    if (kernel == jit->check) {
        if (jit_check_run(jit, error) != 0)
            return -1;
        jit->checked = true;
    }
    store_finished(pool);
    return 0;
}

/* On a terminal the line is renewed with every call, in a log now and then. */
static void show_progress(const struct pool *pool, size_t finished, double started, double *shown)
{
    const double now = clock_seconds();
    if (finished >= pool->count || (!isatty(STDERR_FILENO) && now - *shown < quiet_interval))
        return;
    *shown = now;
    log_progress(false, "compiling kernel %zu of %zu, %.1f s", finished + 1, pool->count,
                 now - started);
}

static int collect(struct pool *pool, double started, struct error *error)
{
    size_t finished = 0;
    double shown = started;
    bool over = false;
    int status = 0;
    while (!over) {
        struct job *job = take_finished(pool, &over);
        for (; job; job = job->next_finished) {
            finished++;
            job->taken = true;
            if (status == 0 && finish_job(pool, job, error) != 0) {
                status = -1;
                stop_workers(pool);
            }
        }
        if (status != 0)
            release_taken(pool);
        if (status == 0)
            show_progress(pool, finished, started, &shown);
    }
    return status;
}

static u32 thread_count(const struct jit *jit, size_t jobs)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    u32 count = jit->compile_threads ? jit->compile_threads : (cores > 0 ? (u32)cores : 1);
    if (count > THREADS_MAX)
        count = THREADS_MAX;
    return count > jobs ? (u32)jobs : count;
}

/* Kernels that another process compiled while this one waited for them are not of its work. */
static void tell_compiled(const struct pool *pool, double seconds)
{
    char others[64] = "";
    size_t compiled = 0;
    for (size_t i = 0; i < pool->count; i++)
        compiled += pool->jobs[i].compiled;
    if (compiled < pool->count)
        snprintf(others, sizeof others, "; %zu came from other processes", pool->count - compiled);
    log_progress(true, "compiled %zu kernels in %.1f s%s", compiled, seconds, others);
}

/* Of what is only planned nothing is compiled, nor told. */
static bool tells(const struct pool *pool)
{
    return device_info(pool->jit->device)->kind != DEVICE_PAPER;
}

static int run_pool(struct pool *pool, struct error *error)
{
    pthread_t threads[THREADS_MAX];
    const double started = clock_seconds();
    const u32 wanted = thread_count(pool->jit, pool->count);
    u32 count = 0;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->finished_one, NULL);
    pool->running = wanted;
    while (count < wanted && pthread_create(&threads[count], NULL, work, pool) == 0)
        count++;
    pthread_mutex_lock(&pool->mutex);
    pool->running -= wanted - count;
    pthread_mutex_unlock(&pool->mutex);
    int status = count ? collect(pool, started, error)
                       : error_set(error, ERROR_MEMORY, "no thread could be started to compile");
    for (u32 i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    if (status == 0 && tells(pool))
        tell_compiled(pool, clock_seconds() - started);
    else if (status != 0)
        log_progress(true, "compiling failed after %.1f s", clock_seconds() - started);
    for (size_t i = 0; i < pool->count; i++)
        release(pool->jit, &pool->jobs[i]);
    pthread_cond_destroy(&pool->finished_one);
    pthread_mutex_destroy(&pool->mutex);
    return status;
}

/* ---- building */

static struct job *add_job(struct pool *pool, struct jit_kernel *kernel)
{
    pool->jobs = memory_resize(pool->jobs, (pool->count + 1) * sizeof *pool->jobs);
    struct job *job = &pool->jobs[pool->count++];
    memset(job, 0, sizeof *job);
    job->kernel = kernel;
    job->lock = -1;
    return job;
}

/* The check's kernel may itself have been requested: then that one is it, for two jobs of one key
 * would wait for each other's lock. */
static int create_check(struct jit *jit, struct error *error)
{
    static const struct jit_parameter none[] = {{0}};
    if (jit->check)
        return 0;
    if (jit_kernel_create(jit, "prelude_check", none, &jit->check, error) != 0)
        return -1;
    struct jit_kernel *requested = jit_kernel_find(jit, &jit->check->key);
    if (requested) {
        jit_kernel_destroy(jit, jit->check);
        jit->check = requested;
        jit->check_is_requested = true;
    }
    return 0;
}

/* The check's kernel, from the cache or as the first job. */
static int prepare_check(struct jit *jit, struct pool *pool, struct error *error)
{
    if (jit->checked || device_info(jit->device)->kind == DEVICE_PAPER)
        return 0;
    if (create_check(jit, error) != 0)
        return -1;
    if (!jit->check->function && !load_cached(jit, jit->check)) {
        add_job(pool, jit->check);
        return 0;
    }
    if (jit_check_run(jit, error) != 0)
        return -1;
    jit->checked = true;
    return 0;
}

static bool anything_missing(struct jit *jit)
{
    bool missing = false;
    for (struct jit_kernel *kernel = jit->kernels; kernel; kernel = kernel->next)
        if (!kernel->function && !load_cached(jit, kernel))
            missing = true;
    return missing;
}

int jit_build(struct jit *jit, struct error *error)
{
    struct pool pool = {.jit = jit};
    if (!anything_missing(jit))
        return 0;
    int status = prepare_check(jit, &pool, error);
    for (struct jit_kernel *kernel = jit->kernels; status == 0 && kernel; kernel = kernel->next)
        if (!kernel->function && (pool.count == 0 || kernel != pool.jobs[0].kernel))
            add_job(&pool, kernel);
    if (status == 0 && pool.count > 0)
        status = run_pool(&pool, error);
    memory_free(pool.jobs);
    return status;
}
