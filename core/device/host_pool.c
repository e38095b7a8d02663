/* host_pool.c - the worker threads of the host device.
 *
 * The calling thread is worker 0, so a launch of one CTA wakes nobody. The
 * others wait for the next job number: first spinning for some microseconds
 * (launches follow each other closely in a round), then asleep on a condition.
 *
 *     caller   publishes launch, job++ ........ works ........ waits for busy == 0
 *     worker   sees job, works, busy--
 *
 * Every worker sets the floating-point control register to the one state in
 * which kernels are defined (round to nearest even, denormals kept, exceptions
 * masked) and puts back what it found.
 */
#include <sched.h>
#include <string.h>

#include "device/host.h"

enum { SPINS = 2000, YIELD_AFTER = 200 };

struct host_pool_thread {
    struct host_pool *pool;
    pthread_t thread;
    u32 index;
};

struct host_pool {
    u32 threads;
    struct host_worker *workers;      /* [threads] */
    struct host_pool_thread *helpers; /* [threads], the first unused */
    u32 started;                      /* helpers that run */
    struct host_launch *launch;
    _Atomic u32 job, busy, stopping;
    _Atomic u32 sleepers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

/* ---- floating-point control */

#if defined(__x86_64__)
static u64 float_control_set(u64 value)
{
    u32 old, new = (u32)value;
    __asm__ volatile("stmxcsr %0" : "=m"(old));
    __asm__ volatile("ldmxcsr %0" : : "m"(new));
    return old;
}
static const u64 float_control_of_kernels = 0x1f80;
#elif defined(__aarch64__)
static u64 float_control_set(u64 value)
{
    u64 old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"(value));
    return old;
}
static const u64 float_control_of_kernels = 0;
#else
static u64 float_control_set(u64 value)
{
    return value;
}
static const u64 float_control_of_kernels = 0;
#endif

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- workers */

/* Bounds of the scheduler's stack, which only the address sanitizer wants to know. */
static void note_own_stack(struct host_worker *worker)
{
#if defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attributes;
    void *bottom;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return;
    pthread_attr_getstack(&attributes, &bottom, &worker->sanitizer_size);
    worker->sanitizer_bottom = bottom;
    pthread_attr_destroy(&attributes);
#else
    (void)worker;
#endif
}

static void work(struct host_worker *worker, struct host_launch *launch, u32 index)
{
    u64 before = float_control_set(float_control_of_kernels);
    host_run_ctas(worker, launch, index);
    float_control_set(before);
}

/* Returns the job number that differs from `seen`. */
static u32 wait_for_job(struct host_pool *pool, u32 seen)
{
    for (u32 i = 0; i < SPINS; i++) {
        if (atomic_load(&pool->job) != seen)
            return atomic_load(&pool->job);
        pause_cpu();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->job) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return atomic_load(&pool->job);
}

static void *helper_main(void *argument)
{
    struct host_pool_thread *self = argument;
    struct host_pool *pool = self->pool;
    struct host_worker *worker = &pool->workers[self->index];
    u32 seen = 0;
    note_own_stack(worker);
    for (;;) {
        seen = wait_for_job(pool, seen);
        if (atomic_load(&pool->stopping))
            return NULL;
        if (self->index < pool->launch->workers)
            work(worker, pool->launch, self->index);
        atomic_fetch_sub(&pool->busy, 1);
    }
}

static void announce(struct host_pool *pool)
{
    atomic_store(&pool->busy, pool->started);
    atomic_fetch_add(&pool->job, 1);
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

void host_pool_run(struct host_pool *pool, struct host_launch *launch)
{
    u32 grid = launch->function->geometry.grid;
    launch->workers = grid < pool->threads ? grid : pool->threads;
    note_own_stack(&pool->workers[0]); /* the caller may be another thread this time */
    if (launch->workers == 1) {
        work(&pool->workers[0], launch, 0);
        return;
    }
    pool->launch = launch;
    announce(pool);
    work(&pool->workers[0], launch, 0);
    for (u32 i = 0; atomic_load(&pool->busy) != 0; i++) {
        pause_cpu();
        if (i > YIELD_AFTER)
            sched_yield();
    }
}

/* ---- life */

int host_pool_create(struct host_pool **created, u32 threads, u64 seed, struct error *error)
{
    struct host_pool *pool = memory_alloc(sizeof *pool);
    pool->threads = threads;
    pool->workers = memory_alloc(threads * sizeof *pool->workers);
    pool->helpers = memory_alloc(threads * sizeof *pool->helpers);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (u32 i = 0; i < threads; i++)
        pool->workers[i].random = seed + i;
    for (u32 i = 1; i < threads; i++) {
        struct host_pool_thread *helper = &pool->helpers[i];
        *helper = (struct host_pool_thread){.pool = pool, .index = i};
        int status = pthread_create(&helper->thread, NULL, helper_main, helper);
        if (status != 0) {
            host_pool_destroy(pool);
            return error_set(error, ERROR_DEVICE,
                             "the host device cannot start worker thread %u of %u: %s", i + 1,
                             threads, strerror(status));
        }
        pool->started++;
    }
    *created = pool;
    return 0;
}

void host_pool_destroy(struct host_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stopping, 1);
    announce(pool);
    for (u32 i = 1; i <= pool->started; i++)
        pthread_join(pool->helpers[i].thread, NULL);
    for (u32 i = 0; i < pool->threads; i++)
        host_worker_release(&pool->workers[i]);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->wake);
    memory_free(pool->workers);
    memory_free(pool->helpers);
    memory_free(pool);
}
