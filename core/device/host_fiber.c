/* host_fiber.c - CTAs on one worker: fibers, the warp rendezvous, barriers.
 *
 * The lanes of a warp form a ring (host_fiber.next). A lane that arrives at a
 * collective and is not the last switches to its successor; the last one
 * computes and runs on to the next collective, where the ring goes round again.
 * So all lanes meet at the same collective or the kernel is wrong, and that is
 * found at once: another name, or a lane that returned.
 *
 * A warp that has to wait as a whole (warpgroup_sync, block_sync, grid_sync, a spin on an
 * acquire load) switches to the scheduler, which runs the next warp that is
 * ready, of any CTA this worker holds. Cooperative launches deal all CTAs out
 * at the start; the others are taken one by one, lowest first, so a CTA may
 * wait for a lower one.
 *
 * A fault notes one sentence in the launch and abandons the CTA: fibers own
 * nothing but their stacks, so there is nothing to unwind.
 *
 * The thread sanitizer does not see these functions (a stack that changes under
 * it would need a context of several hundred kilobytes a fiber); the address
 * sanitizer is told of every switch.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/host.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef WITH_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

#define UNSEEN __attribute__((no_sanitize("thread")))

static const u64 stack_mark = 0x7374616b656e6421;
enum { SPIN_SECONDS = 120, SPIN_CHECK = 4096 };

__thread struct elpis_thread *elpis_self __attribute__((tls_model("initial-exec")));

/* Called by kernels; declared in prelude/host.h. */
u32 elpis_meet(void *operands, const char *name);
void elpis_block_sync(void);
void elpis_warpgroup_sync(void);
void elpis_grid_sync(u32 *counter, u32 ctas);
void elpis_acquired(const void *p);
void elpis_released(const void *p);

UNSEEN struct host_fiber *host_self(void)
{
    return (struct host_fiber *)elpis_self;
}

UNSEEN static struct host_warp *warp_of(const struct host_fiber *fiber)
{
    return (struct host_warp *)fiber->self.warp;
}

/* ---- switching */

#ifdef WITH_ADDRESS_SANITIZER
static __thread void *fake_stack; /* of the context that is being left */
static void before_switch(const void *bottom, size_t size)
{
    __sanitizer_start_switch_fiber(&fake_stack, bottom, size);
}
static void after_switch(void *saved)
{
    __sanitizer_finish_switch_fiber(saved, NULL, NULL);
}
#endif

UNSEEN static void switch_to_fiber(void **from, struct host_fiber *to)
{
    elpis_self = &to->self;
#ifdef WITH_ADDRESS_SANITIZER
    before_switch(to->stack, HOST_STACK);
    void *saved = fake_stack;
    host_switch(from, to->stack_pointer);
    after_switch(saved);
#else
    host_switch(from, to->stack_pointer);
#endif
}

UNSEEN static void switch_to_scheduler(struct host_fiber *from)
{
    struct host_worker *worker = from->cta->worker;
    elpis_self = NULL;
#ifdef WITH_ADDRESS_SANITIZER
    before_switch(worker->sanitizer_bottom, worker->sanitizer_size);
    void *saved = fake_stack;
    host_switch(&from->stack_pointer, worker->stack_pointer);
    after_switch(saved);
#else
    host_switch(&from->stack_pointer, worker->stack_pointer);
#endif
}

/* ---- faults */

UNSEEN _Noreturn void host_fault(const char *format, ...)
{
    struct host_fiber *me = host_self();
    struct host_launch *launch = me->cta->launch;
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&launch->lock);
    if (!launch->fault[0])
        snprintf(launch->fault, sizeof launch->fault, "kernel %s, CTA %u, thread %u: %s",
                 launch->function->name, me->self.cta, me->self.thread, what);
    pthread_mutex_unlock(&launch->lock);
    atomic_store(&launch->failed, 1);
    for (;;)
        switch_to_scheduler(me);
}

/* ---- the warp rendezvous */

UNSEEN static u64 next_random(struct host_worker *worker)
{
    u64 x = worker->random += 0x9e3779b97f4a7c15u; /* splitmix64 (Steele et al., 2014) */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A new ring: ascending, descending, or drawn (order: device_options.host_order). */
UNSEEN static void link_ring(struct host_warp *warp, struct host_worker *worker, u32 order)
{
    u32 lane[WARP];
    for (u32 i = 0; i < WARP; i++)
        lane[i] = order == 1 ? WARP - 1 - i : i;
    for (u32 i = WARP - 1; order > 1 && i > 0; i--) {
        u32 other = (u32)(next_random(worker) % (i + 1)), held = lane[i];
        lane[i] = lane[other];
        lane[other] = held;
    }
    for (u32 i = 0; i < WARP; i++)
        warp->lanes[lane[i]].next = &warp->lanes[lane[(i + 1) % WARP]];
}

UNSEEN __attribute__((noinline, cold)) static void diverged(struct host_warp *warp,
                                                            const char *name)
{
    if (warp->finished)
        host_fault("waits in %s, which other lanes of its warp never reach: they returned", name);
    host_fault("is at %s while other lanes of its warp wait in %s; a collective needs all lanes",
               name, warp->operation);
}

UNSEEN u32 elpis_meet(void *operands, const char *name)
{
    struct host_fiber *me = host_self();
    struct host_warp *warp = warp_of(me);
    warp->slots.slot[me->self.lane] = operands;
    if (warp->arrived == 0)
        warp->operation = name;
    if (warp->finished || (warp->operation != name && strcmp(warp->operation, name) != 0))
        diverged(warp, name);
    if (++warp->arrived < WARP) {
        switch_to_fiber(&me->stack_pointer, me->next);
        return 0;
    }
    warp->arrived = 0;
    warp->epoch++;
    if (me->cta->launch->device->order > 1)
        link_ring(warp, me->cta->worker, 2);
    return 1;
}

/* ---- barriers */

UNSEEN static void release_warps(struct host_cta *cta)
{
    cta->waiting = 0;
    cta->epoch++;
    for (u32 i = 0; i < cta->warps; i++)
        if (cta->warp[i].state == WARP_AT_BLOCK)
            cta->warp[i].state = WARP_READY;
}

UNSEEN static void wait_as(struct host_fiber *me, enum host_warp_state state)
{
    struct host_warp *warp = warp_of(me);
    warp->state = state;
    warp->resume = me;
    switch_to_scheduler(me);
}

UNSEEN void elpis_block_sync(void)
{
    if (!elpis_meet(NULL, "block_sync"))
        return;
    struct host_fiber *me = host_self();
    struct host_cta *cta = me->cta;
    if (++cta->waiting == cta->live)
        release_warps(cta);
    else
        wait_as(me, WARP_AT_BLOCK);
}

/* The four warps of this one's group. */
UNSEEN static struct host_warp *group_of(const struct host_fiber *me)
{
    return &me->cta->warp[me->self.warp_index / WARPS_OF_GROUP * WARPS_OF_GROUP];
}

UNSEEN static u32 count_group(const struct host_fiber *me, enum host_warp_state state)
{
    const struct host_warp *group = group_of(me);
    u32 count = 0;
    for (u32 i = 0; i < WARPS_OF_GROUP; i++)
        count += group[i].state == state;
    return count;
}

UNSEEN void elpis_warpgroup_sync(void)
{
    if (!elpis_meet(NULL, "warpgroup_sync"))
        return;
    struct host_fiber *me = host_self();
    struct host_cta *cta = me->cta;
    struct host_warp *group = group_of(me);
    if (cta->warps % WARPS_OF_GROUP)
        host_fault("warpgroup_sync in a CTA of %u warps; it takes a multiple of %u", cta->warps,
                   (u32)WARPS_OF_GROUP);
    if (count_group(me, WARP_DONE))
        host_fault("waits in warpgroup_sync, which another warp of its group never reaches: it "
                   "returned");
    warp_of(me)->group_epoch++;
    if (count_group(me, WARP_AT_GROUP) + 1 < WARPS_OF_GROUP) {
        wait_as(me, WARP_AT_GROUP);
        return;
    }
    for (u32 i = 0; i < WARPS_OF_GROUP; i++)
        if (group[i].state == WARP_AT_GROUP)
            group[i].state = WARP_READY;
}

/* The counter in device memory stays as it is (zero): the launch itself counts. */
UNSEEN void elpis_grid_sync(u32 *counter, u32 ctas)
{
    (void)counter;
    struct host_fiber *me = host_self();
    struct host_cta *cta = me->cta;
    struct host_launch *launch = cta->launch;
    const struct device_geometry *geometry = &launch->function->geometry;
    if (ctas != geometry->grid || !geometry->cooperative)
        host_fault("grid_sync over %u CTAs in a %s launch of %u", ctas,
                   geometry->cooperative ? "cooperative" : "plain", geometry->grid);
    if (!elpis_meet(NULL, "grid_sync"))
        return;
    if (++cta->waiting < cta->live) {
        wait_as(me, WARP_AT_BLOCK);
        return;
    }
    u32 epoch = atomic_load(&launch->grid_epoch);
    if (atomic_fetch_add(&launch->grid_arrived, 1) + 1 == geometry->grid) {
        atomic_store(&launch->grid_arrived, 0);
        atomic_store(&launch->grid_epoch, epoch + 1);
    } else {
        cta->grid_awaited = epoch + 1;
        wait_as(me, WARP_AT_GRID);
    }
    release_warps(cta);
}

/* The answer may come from another warp or CTA of this worker: let them run. */
UNSEEN void elpis_acquired(const void *p)
{
    (void)p;
    wait_as(host_self(), WARP_READY);
}

UNSEEN void elpis_released(const void *p)
{
    (void)p;
}

/* ---- a fiber's life */

UNSEEN static void lane_returned(struct host_fiber *me)
{
    struct host_warp *warp = warp_of(me);
    struct host_cta *cta = me->cta;
    if (*(u64 *)me->stack != stack_mark)
        host_fault("overran its stack of %u bytes", (u32)HOST_STACK);
    if (warp->arrived)
        host_fault("returned while other lanes of its warp wait in %s", warp->operation);
    if (++warp->finished < WARP)
        switch_to_fiber(&me->stack_pointer, me->next);
    if (cta->warps % WARPS_OF_GROUP == 0 && count_group(me, WARP_AT_GROUP))
        host_fault("returned while other warps of its group wait in warpgroup_sync");
    warp->state = WARP_DONE;
    cta->live--;
    if (cta->live > 0 && cta->waiting == cta->live)
        release_warps(cta);
    switch_to_scheduler(me);
}

UNSEEN static void fiber_start(void)
{
#ifdef WITH_ADDRESS_SANITIZER
    after_switch(NULL);
#endif
    struct host_fiber *me = host_self();
    struct host_launch *launch = me->cta->launch;
    launch->function->entry(launch->slots);
    lane_returned(me);
    abort(); /* a fiber that returned is never switched to */
}

/* ---- CTAs */

static size_t stack_distance(void)
{
    return HOST_STACK + HOST_STACK_COLOUR;
}

static void map_stacks(struct host_worker *worker, u32 fibers)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = ((size_t)fibers * stack_distance() + page) / page * page;
    if (worker->stacks)
        munmap(worker->stacks, worker->stacks_size);
    worker->stacks_size = inner + 2 * page;
    worker->stacks = mmap(NULL, worker->stacks_size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (worker->stacks == MAP_FAILED) {
        log_error("out of memory on the host: %zu bytes of kernel stacks were refused",
                  worker->stacks_size);
        exit(ERROR_MEMORY);
    }
    mprotect(worker->stacks, page, PROT_NONE);
    mprotect(worker->stacks + page + inner, page, PROT_NONE);
}

static void reserve_fibers(struct host_worker *worker, u32 warps)
{
    u32 fibers = warps * WARP;
    if (warps <= worker->warp_capacity)
        return;
    for (u32 i = 0; i < worker->warp_capacity * WARP; i++)
        memory_free(worker->fibers[i].copies);
    worker->warp_capacity = warps;
    worker->warps = memory_resize(worker->warps, warps * sizeof *worker->warps);
    worker->fibers = memory_resize(worker->fibers, fibers * sizeof *worker->fibers);
    map_stacks(worker, fibers);
    u8 *stack = worker->stacks + sysconf(_SC_PAGESIZE);
    for (u32 i = 0; i < fibers; i++) {
        worker->fibers[i] = (struct host_fiber){.stack = stack + i * stack_distance()};
        *(u64 *)worker->fibers[i].stack = stack_mark;
    }
}

static void reserve_shared(struct host_cta *cta, u32 shared)
{
    size_t wanted = shared + 2 * HOST_GUARD;
    if (wanted <= cta->shared_capacity)
        return;
    free(cta->shared_memory);
    cta->shared_capacity = (wanted + 255) / 256 * 256;
    cta->shared_memory = aligned_alloc(256, cta->shared_capacity);
    if (!cta->shared_memory) {
        log_error("out of memory on the host: %zu bytes of shared memory were refused", wanted);
        exit(ERROR_MEMORY);
    }
    memset(cta->shared_memory, 0, cta->shared_capacity);
    cta->shared = cta->shared_memory + HOST_GUARD;
}

void host_worker_reserve(struct host_worker *worker, u32 ctas, u32 block, u32 shared)
{
    if (!worker->scratch)
        worker->scratch = aligned_alloc(4096, HOST_SCRATCH);
    if (ctas > worker->cta_capacity) {
        worker->ctas = memory_resize(worker->ctas, ctas * sizeof *worker->ctas);
        memset(worker->ctas + worker->cta_capacity, 0,
               (ctas - worker->cta_capacity) * sizeof *worker->ctas);
        worker->cta_capacity = ctas;
    }
    reserve_fibers(worker, ctas * (block / WARP));
    for (u32 i = 0; i < ctas; i++)
        reserve_shared(&worker->ctas[i], shared);
}

void host_worker_release(struct host_worker *worker)
{
    for (u32 i = 0; i < worker->cta_capacity; i++) {
        free(worker->ctas[i].shared_memory);
        memory_free(worker->ctas[i].shadow);
    }
    if (worker->stacks)
        munmap(worker->stacks, worker->stacks_size);
    for (u32 i = 0; i < worker->warp_capacity * WARP; i++)
        memory_free(worker->fibers[i].copies);
    memory_free(worker->ctas);
    memory_free(worker->warps);
    memory_free(worker->fibers);
    free(worker->scratch);
}

UNSEEN static void fiber_begin(struct host_fiber *fiber, struct host_cta *cta, u32 thread)
{
    struct host_warp *warp = &cta->warp[thread / WARP];
    fiber->self = (struct elpis_thread){thread,      thread % WARP, thread / WARP,       cta->index,
                                        cta->shared, &warp->slots,  cta->worker->scratch};
    fiber->cta = cta;
    fiber->copy_count = 0;
    fiber->copy_group = 0;
    fiber->waited = false;
    fiber->past_l1 = false;
    fiber->early = NULL;
    fiber->stack_pointer = host_stack_prepare(fiber->stack + HOST_STACK, fiber_start);
}

/* slot: which of the worker's resident CTAs. */
UNSEEN static void cta_begin(struct host_worker *worker, struct host_launch *launch, u32 slot,
                             u32 index)
{
    struct host_cta *cta = &worker->ctas[slot];
    u32 block = launch->function->geometry.block;
    cta->launch = launch;
    cta->worker = worker;
    cta->index = index;
    cta->warps = cta->live = block / WARP;
    cta->waiting = cta->epoch = cta->releases = 0;
    cta->warp = worker->warps + slot * cta->warps;
    cta->fiber = worker->fibers + slot * block;
    host_check_cta_begin(cta);
    for (u32 thread = 0; thread < block; thread++)
        fiber_begin(&cta->fiber[thread], cta, thread);
    for (u32 i = 0; i < cta->warps; i++) {
        struct host_warp *warp = &cta->warp[i];
        u32 order = launch->device->order;
        warp->arrived = warp->finished = warp->epoch = warp->group_epoch = 0;
        warp->state = WARP_READY;
        warp->lanes = &cta->fiber[i * WARP];
        link_ring(warp, worker, order);
        warp->resume = &warp->lanes[order == 1 ? WARP - 1 : 0];
    }
}

UNSEEN static bool warp_is_ready(struct host_cta *cta, struct host_warp *warp)
{
    if (warp->state == WARP_AT_GRID)
        return atomic_load(&cta->launch->grid_epoch) == cta->grid_awaited;
    return warp->state == WARP_READY;
}

/* One round over the warps of a CTA. Returns how many ran. */
UNSEEN static u32 run_round(struct host_worker *worker, struct host_cta *cta)
{
    u32 ran = 0, order = cta->launch->device->order;
    u32 first = order > 1 ? (u32)(next_random(worker) % cta->warps) : 0;
    for (u32 i = 0; i < cta->warps; i++) {
        u32 at = order == 1 ? cta->warps - 1 - i : (first + i) % cta->warps;
        struct host_warp *warp = &cta->warp[at];
        if (!warp_is_ready(cta, warp))
            continue;
        warp->state = WARP_READY;
        switch_to_fiber(&worker->stack_pointer, warp->resume);
        ran++;
        if (atomic_load_explicit(&cta->launch->failed, memory_order_relaxed))
            break;
    }
    return ran;
}

UNSEEN static void note_stuck(struct host_launch *launch, const char *why)
{
    pthread_mutex_lock(&launch->lock);
    if (!launch->fault[0])
        snprintf(launch->fault, sizeof launch->fault, "kernel %s: %s", launch->function->name, why);
    pthread_mutex_unlock(&launch->lock);
    atomic_store(&launch->failed, 1);
}

UNSEEN static bool any_ready(struct host_worker *worker, u32 count)
{
    for (u32 i = 0; i < count; i++)
        for (u32 w = 0; w < worker->ctas[i].warps; w++)
            if (warp_is_ready(&worker->ctas[i], &worker->ctas[i].warp[w]))
                return true;
    return false;
}

/* Runs resident CTAs 0..count-1 until all returned. */
UNSEEN static void run_resident(struct host_worker *worker, struct host_launch *launch, u32 count)
{
    u32 done = 0, idle = 0, rounds = 0;
    double started = 0;
    while (done < count && !atomic_load_explicit(&launch->failed, memory_order_relaxed)) {
        u32 ran = 0;
        for (u32 i = 0; i < count; i++) {
            struct host_cta *cta = &worker->ctas[i];
            if (cta->live == 0)
                continue;
            ran += run_round(worker, cta);
            if (cta->live == 0) {
                host_check_cta_end(cta);
                atomic_fetch_add(&launch->ctas_done, 1);
                done++;
                started = 0;
            }
        }
        idle = ran ? 0 : idle + 1;
        /* Looked at in this order: a CTA returns only after it let the others go on. */
        if (idle && atomic_load(&launch->ctas_done) && !any_ready(worker, count))
            note_stuck(launch, "some CTAs returned while others wait in grid_sync");
        else if (idle && !launch->function->geometry.cooperative && !any_ready(worker, count))
            note_stuck(launch, "its warps wait at different barriers, of groups and of the CTA");
        if (++rounds % SPIN_CHECK && !idle)
            continue;
        sched_yield();
        started = started == 0 ? clock_seconds() : started;
        if (clock_seconds() - started > SPIN_SECONDS)
            note_stuck(launch,
                       "no CTA returned for two minutes: a wait is never answered, or there is "
                       "more work than this CPU does in that time");
    }
}

UNSEEN void host_run_ctas(struct host_worker *worker, struct host_launch *launch, u32 worker_index)
{
    const struct device_geometry *geometry = &launch->function->geometry;
    u32 resident = 1;
    if (geometry->cooperative)
        resident = (geometry->grid - worker_index + launch->workers - 1) / launch->workers;
    host_worker_reserve(worker, resident, geometry->block, geometry->shared);
    if (geometry->cooperative) {
        for (u32 i = 0; i < resident; i++)
            cta_begin(worker, launch, i, worker_index + i * launch->workers);
        run_resident(worker, launch, resident);
        return;
    }
    for (;;) {
        u32 index = atomic_fetch_add(&launch->next_cta, 1);
        if (index >= geometry->grid || atomic_load(&launch->failed))
            return;
        cta_begin(worker, launch, 0, index);
        run_resident(worker, launch, 1);
    }
}
