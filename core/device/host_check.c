/* host_check.c - sentinels and the race check of the host device.
 *
 * Sentinels. Every buffer has HOST_GUARD bytes of a pattern before and after it,
 * and so has the shared memory of a CTA; they are compared after every launch.
 * An instrumented access into them is reported as it happens.
 *
 * Race check. Kernels are compiled with the thread sanitizer's instrumentation;
 * the functions it calls are here. For each 4 bytes of every buffer and of
 * shared memory a cell remembers the last write and the last two reads by
 * different threads. An access conflicts with a remembered one of the same
 * launch when the bytes overlap, one of them writes, and nothing orders them:
 *
 *     same thread                                       ordered
 *     same CTA, another barrier interval                ordered
 *     same warpgroup, another barrier interval of it    ordered
 *     same warp, another rendezvous                     ordered
 *     another CTA, another grid_sync interval           ordered
 *     another CTA whose later release has been acquired ordered
 *     anything else                                     a race
 *
 * A release is an atomic operation or a release store; an acquire is an atomic
 * operation or an acquire load that finds the word after it. Both count for the
 * whole CTA. So the check errs to one side: what it reports is unordered, but it
 * forgets (three readers, a barrier missing before a release by another thread
 * of the CTA) and takes relaxed atomics for ordering.
 *
 * Asynchronous copies are held back until the wait that guarantees them. Their
 * targets hold a pattern until then, and reading them is reported.
 *
 * Launches of a pass may overlap on a GPU (device_launch). Here they do not, so
 * a cell also remembers the launch that last changed it: a thread that reads,
 * before wait_previous(), what the launch before in its pass changed is
 * reported, one that reads what earlier ones of the pass changed, unless past L1
 * (load_fresh_u32, copy_async16), and one that writes. A kernel that never calls
 * wait_previous() is rendered with the call at its beginning.
 *
 * Launches of two streams run at the same time on a GPU unless an event orders
 * them, or the host, which waited. Here they never do, so a thread that touches
 * what the last launch to write it, or to read it, wrote or read on another
 * stream, is reported if that launch is not known to be over (host_known). Of
 * what is copied and filled between launches nothing is remembered.
 *
 * CTAs run on one worker here, so nothing needs a lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/host.h"

enum {
    GUARD_BYTE = 0xa5,
    POISON_BYTE = 0xff, /* a NaN as a float, -1 as an integer */
    CELL_BYTES = 4,
    MANY = 0xffff,        /* in host_access.thread: several threads of the CTA read */
    SYNC_SLOTS = 1 << 12, /* words that were released, hashed */
    CTAS_MAX = 1024,      /* above, orders between CTAs are not followed */
    FAULTS_MAX = 64,
    COPIES_MAX = 256, /* asynchronous copies of a thread in flight */
};

struct host_access {
    u32 launch;  /* 0: never */
    u32 epoch;   /* barriers of the CTA */
    u32 release; /* releases the CTA had done */
    u16 cta, thread;
    u16 warp, warp_epoch;
    u16 group, group_epoch; /* of four warps */
    u16 grid_epoch;
    u8 mask;    /* which of the four bytes */
    u8 pending; /* a copy that has not landed */
};

struct host_cell {
    struct host_access write, reads[2];
    u32 changed; /* the last launch that wrote it, by whatever operation; 0: none */
};

struct host_copy {
    void *to;
    const void *from;
    u32 group;
};

struct sync_slot {
    uintptr_t address; /* 0: free */
    u32 launch;
    u32 *seen; /* [ctas]: releases of each CTA that are visible to who acquires here */
};

struct host_check {
    struct buffer faults;
    u32 fault_count;
    u8 *streams; /* [stream_room]: of each launch, by number */
    u32 stream_room;
    u32 ctas;                /* of the launch */
    u32 *seen;               /* [ctas][ctas]: what each CTA has acquired of each other */
    struct sync_slot *slots; /* [SYNC_SLOTS] */
};

/* ---- faults */

void host_check_note(struct host_device *device, const char *text)
{
    struct host_check *check = device->checks;
    if (!check || check->fault_count++ >= FAULTS_MAX)
        return;
    buffer_format(&check->faults, "%s\n", text);
}

void host_faults(struct device *base, struct buffer *text)
{
    struct host_check *check = ((struct host_device *)base)->checks;
    if (check)
        buffer_add_slice(text, buffer_slice(&check->faults));
}

/* ---- life */

void host_check_create(struct host_device *device)
{
    struct host_check *check = memory_alloc(sizeof *check);
    check->slots = memory_alloc(SYNC_SLOTS * sizeof *check->slots);
    device->checks = check;
}

void host_check_destroy(struct host_device *device)
{
    struct host_check *check = device->checks;
    if (!check)
        return;
    for (size_t i = 0; i < device->buffer_count; i++)
        memory_free(device->buffers[i].shadow);
    for (size_t i = 0; i < SYNC_SLOTS; i++)
        memory_free(check->slots[i].seen);
    buffer_free(&check->faults);
    memory_free(check->streams);
    memory_free(check->seen);
    memory_free(check->slots);
    memory_free(check);
}

/* ---- sentinels */

void host_check_buffer_new(struct host_device *device, struct host_buffer *buffer)
{
    if (!device->checks)
        return;
    memset(buffer->data - HOST_GUARD, GUARD_BYTE, HOST_GUARD);
    memset(buffer->data + buffer->size, GUARD_BYTE, HOST_GUARD);
}

/* Distance of the first spoiled byte from the guard's start; HOST_GUARD: none. */
static u32 first_spoiled(const u8 *guard)
{
    u32 i = 0;
    while (i < HOST_GUARD && guard[i] == GUARD_BYTE)
        i++;
    return i;
}

static bool check_guards(struct host_device *device, u8 *data, size_t size, const char *label,
                         const char *kernel)
{
    u32 before = first_spoiled(data - HOST_GUARD), after = first_spoiled(data + size);
    char text[300];
    if (before == HOST_GUARD && after == HOST_GUARD)
        return true;
    if (after < HOST_GUARD)
        snprintf(text, sizeof text, "kernel %s wrote %u bytes past the end of %s (%zu bytes)",
                 kernel, after, label, size);
    else
        snprintf(text, sizeof text, "kernel %s wrote %u bytes before the start of %s (%zu bytes)",
                 kernel, HOST_GUARD - before, label, size);
    host_check_note(device, text);
    memset(data - HOST_GUARD, GUARD_BYTE, HOST_GUARD);
    memset(data + size, GUARD_BYTE, HOST_GUARD);
    return false;
}

void host_check_buffer_gone(struct host_device *device, struct host_buffer *buffer)
{
    if (!device->checks)
        return;
    check_guards(device, buffer->data, buffer->size, buffer->label, "(before a free)");
    memory_free(buffer->shadow);
}

static size_t shared_cells(const struct host_cta *cta)
{
    return (cta->launch->function->geometry.shared + CELL_BYTES - 1) / CELL_BYTES;
}

void host_check_cta_begin(struct host_cta *cta)
{
    struct host_check *check = cta->launch->device->checks;
    size_t size = cta->launch->function->geometry.shared;
    if (!check)
        return;
    memset(cta->shared - HOST_GUARD, GUARD_BYTE, HOST_GUARD);
    memset(cta->shared, POISON_BYTE, size);
    memset(cta->shared + size, GUARD_BYTE, HOST_GUARD);
    size_t cells = shared_cells(cta) * sizeof(struct host_cell);
    cta->shadow = memory_resize(cta->shadow, cells);
    memset(cta->shadow, 0, cells);
}

void host_check_cta_end(struct host_cta *cta)
{
    struct host_launch *launch = cta->launch;
    if (!launch->device->checks)
        return;
    if (!check_guards(launch->device, cta->shared, launch->function->geometry.shared,
                      "shared memory", launch->function->name))
        atomic_store(&launch->failed, 1);
}

void host_check_launch_begin(struct host_launch *launch)
{
    struct host_check *check = launch->device->checks;
    if (!check)
        return;
    if (launch->number >= check->stream_room) {
        check->stream_room = 2 * launch->number + 1024;
        check->streams = memory_resize(check->streams, check->stream_room);
    }
    check->streams[launch->number] = (u8)launch->stream->index;
    u32 ctas = launch->function->geometry.grid;
    check->ctas = ctas <= CTAS_MAX ? ctas : 0;
    size_t bytes = (size_t)check->ctas * check->ctas * sizeof(u32);
    check->seen = memory_resize(check->seen, bytes);
    memset(check->seen, 0, bytes);
}

int host_check_launch_end(struct host_launch *launch, struct error *error)
{
    struct host_device *device = launch->device;
    if (!device->checks)
        return 0;
    bool clean = !atomic_load(&launch->failed);
    for (size_t i = 0; i < device->buffer_count; i++) {
        struct host_buffer *buffer = &device->buffers[i];
        if (!check_guards(device, buffer->data, buffer->size, buffer->label,
                          launch->function->name))
            clean = false;
    }
    if (clean)
        return 0;
    const char *text = device->checks->faults.data;
    return error_set(error, ERROR_FATAL, "the host device's checks found: %.*s",
                     (int)strcspn(text, "\n"), text);
}

/* ---- order between CTAs */

#if !defined(__SANITIZE_THREAD__)

static u32 *seen_by(struct host_check *check, u32 cta)
{
    return check->seen + (size_t)cta * check->ctas;
}

/* The slot of a word; made when `make`. NULL: none, or the table is full. */
static struct sync_slot *slot_of(struct host_check *check, u32 launch, uintptr_t address, bool make)
{
    size_t at = (size_t)((u64)address * 0x9e3779b97f4a7c15u >> 52);
    for (u32 i = 0; i < SYNC_SLOTS; i++, at = (at + 1) % SYNC_SLOTS) {
        struct sync_slot *slot = &check->slots[at];
        if (slot->address == address && slot->launch == launch)
            return slot;
        if (slot->launch == launch)
            continue;
        if (!make)
            return NULL;
        slot->address = address;
        slot->launch = launch;
        slot->seen = memory_resize(slot->seen, check->ctas * sizeof(u32));
        memset(slot->seen, 0, check->ctas * sizeof(u32));
        return slot;
    }
    return NULL;
}

static void join(u32 *into, const u32 *from, u32 count)
{
    for (u32 i = 0; i < count; i++)
        if (from[i] > into[i])
            into[i] = from[i];
}

static void note_acquire(const volatile void *address)
{
    struct host_fiber *me = host_self();
    struct host_check *check = me ? me->cta->launch->device->checks : NULL;
    if (!check || check->ctas < 2)
        return;
    struct sync_slot *slot = slot_of(check, me->cta->launch->number, (uintptr_t)address, false);
    if (slot)
        join(seen_by(check, me->self.cta), slot->seen, check->ctas);
}

static void note_release(const volatile void *address)
{
    struct host_fiber *me = host_self();
    struct host_check *check = me ? me->cta->launch->device->checks : NULL;
    if (!check || check->ctas < 2)
        return;
    u32 *mine = seen_by(check, me->self.cta);
    mine[me->self.cta] = ++me->cta->releases;
    struct sync_slot *slot = slot_of(check, me->cta->launch->number, (uintptr_t)address, true);
    if (slot)
        join(slot->seen, mine, check->ctas);
}
#endif

/* ---- accesses */

enum access_kind { ACCESS_READ, ACCESS_WRITE, ACCESS_COPY, ACCESS_ATOMIC };

static struct host_access access_of(const struct host_fiber *me, u8 mask)
{
    const struct host_warp *warp = (const struct host_warp *)me->self.warp;
    return (struct host_access){
        .launch = me->cta->launch->number,
        .epoch = me->cta->epoch,
        .release = me->cta->releases,
        .cta = (u16)me->self.cta,
        .thread = (u16)me->self.thread,
        .warp = (u16)me->self.warp_index,
        .warp_epoch = (u16)warp->epoch,
        .group = (u16)(me->self.warp_index / WARPS_OF_GROUP),
        .group_epoch = (u16)warp->group_epoch,
        .grid_epoch = (u16)atomic_load(&me->cta->launch->grid_epoch),
        .mask = mask,
    };
}

static bool ordered(const struct host_check *check, const struct host_access *old,
                    const struct host_access *now)
{
    if (old->launch != now->launch || old->grid_epoch != now->grid_epoch)
        return true;
    if (old->cta != now->cta)
        return check->ctas == 0 ||
               check->seen[(size_t)now->cta * check->ctas + old->cta] > old->release;
    if (old->epoch != now->epoch || old->thread == now->thread)
        return true;
    if (old->group == now->group && old->group_epoch != now->group_epoch)
        return true;
    return old->warp == now->warp && old->warp_epoch != now->warp_epoch;
}

static bool conflict(const struct host_check *check, const struct host_access *old,
                     const struct host_access *now)
{
    return (old->mask & now->mask) && !ordered(check, old, now);
}

static const char *thread_text(const struct host_access *access, char text[48])
{
    if (access->thread == MANY)
        snprintf(text, 48, "several threads of CTA %u", access->cta);
    else
        snprintf(text, 48, "thread %u of CTA %u", access->thread, access->cta);
    return text;
}

static void remember_read(const struct host_check *check, struct host_cell *cell,
                          const struct host_access *now)
{
    struct host_access *last = &cell->reads[0];
    if (last->mask && !ordered(check, last, now)) {
        if (last->cta != now->cta) {
            cell->reads[1] = *last;
        } else {
            u8 mask = last->mask | now->mask;
            bool same_warp = last->warp == now->warp, same_group = last->group == now->group;
            *last = *now;
            last->thread = MANY;
            last->mask = mask;
            last->warp = same_warp ? now->warp : MANY;
            last->group = same_group ? now->group : MANY;
            return;
        }
    }
    *last = *now;
}

static void check_cell(struct host_check *check, struct host_cell *cell,
                       const struct host_access *now, enum access_kind kind, const char *where,
                       size_t offset)
{
    char who[48];
    bool writes = kind != ACCESS_READ;
    if (cell->write.pending && cell->write.launch == now->launch && !writes &&
        (cell->write.mask & now->mask))
        host_fault("reads byte %zu of %s, which a copy_async16 of %s has not delivered yet", offset,
                   where, thread_text(&cell->write, who));
    if (conflict(check, &cell->write, now))
        host_fault("race: it %s byte %zu of %s, which %s wrote with nothing in between to order "
                   "the two",
                   writes ? "writes" : "reads", offset, where, thread_text(&cell->write, who));
    for (u32 i = 0; writes && i < 2; i++)
        if (conflict(check, &cell->reads[i], now))
            host_fault("race: it writes byte %zu of %s, which %s read with nothing in between to "
                       "order the two",
                       offset, where, thread_text(&cell->reads[i], who));
    if (!writes) {
        remember_read(check, cell, now);
        return;
    }
    cell->write = *now;
    cell->write.pending = kind == ACCESS_COPY;
}

/* Whether an earlier launch, 0 if there is none, ran on another stream. */
static bool of_another_stream(const struct host_launch *launch, u32 earlier)
{
    return earlier && launch->device->checks->streams[earlier] != launch->stream->index;
}

/* Whether it may run at the same time on a GPU. */
static bool may_run(const struct host_launch *launch, u32 earlier)
{
    return of_another_stream(launch, earlier) &&
           earlier > launch->stream->known.over[launch->device->checks->streams[earlier]];
}

static void check_streams(const struct host_launch *launch, const struct host_cell *cell,
                          bool writes, const char *where, size_t offset)
{
    const char *verb = writes ? "writes" : "reads";
    if (may_run(launch, cell->changed))
        host_fault("%s byte %zu of %s, which a launch of another stream wrote with no event in "
                   "between to order the two",
                   verb, offset, where);
    for (u32 i = 0; writes && i < 2; i++)
        if (may_run(launch, cell->reads[i].launch))
            host_fault("%s byte %zu of %s, which a launch of another stream read with no event in "
                       "between to order the two",
                       verb, offset, where);
}

/* Notes the first access to a buffer that belongs behind wait_previous(), and who changed it. */
static void check_early(struct host_fiber *me, struct host_buffer *buffer, size_t offset,
                        size_t size, enum access_kind kind)
{
    const struct host_launch *now = me->cta->launch;
    const u32 launch = now->number, pass = now->stream->pass;
    const bool writes = kind != ACCESS_READ;
    const char *why = NULL;
    for (size_t at = offset / CELL_BYTES; at <= (offset + size - 1) / CELL_BYTES; at++) {
        u32 *changed = &buffer->shadow[at].changed;
        const bool of_pass = *changed > pass && !of_another_stream(now, *changed);
        check_streams(now, &buffer->shadow[at], writes, buffer->label, at * CELL_BYTES);
        if (writes)
            why = ", which all writes have to be behind";
        else if (of_pass && *changed == now->stream->last)
            why = "; the launch before it wrote that";
        else if (of_pass && *changed != launch && !me->past_l1)
            why = "; a launch of its pass wrote that, which only load_fresh_u32 may read there";
        if (!me->waited && !me->early && why) {
            me->early = writes ? "writes" : "reads";
            me->early_of = buffer->label;
            me->early_at = at * CELL_BYTES;
            me->early_why = why;
        }
        if (writes)
            *changed = launch;
    }
}

static void check_cells(struct host_check *check, struct host_cell *cells, size_t offset,
                        size_t size, enum access_kind kind, const char *where)
{
    struct host_fiber *me = host_self();
    for (size_t at = offset; at < offset + size;) {
        size_t cell = at / CELL_BYTES, end = (cell + 1) * CELL_BYTES;
        if (end > offset + size)
            end = offset + size;
        u8 mask = 0;
        for (size_t byte = at; byte < end; byte++)
            mask |= (u8)(1 << byte % CELL_BYTES);
        struct host_access now = access_of(me, mask);
        check_cell(check, &cells[cell], &now, kind, where, at);
        at = end;
    }
}

/* Whether [address, size) lies in [data, bytes); faults when it reaches into the sentinels;
 * false: somewhere else. */
static bool inside(uintptr_t address, size_t size, const u8 *data, size_t bytes, const char *label,
                   enum access_kind kind)
{
    uintptr_t start = (uintptr_t)data, end = start + bytes;
    const char *verb = kind == ACCESS_READ ? "reads" : "writes";
    if (address + size <= start - HOST_GUARD || address >= end + HOST_GUARD)
        return false;
    if (address < start)
        host_fault("%s %zu bytes %zu before the start of %s (%zu bytes)", verb, size,
                   (size_t)(start - address), label, bytes);
    if (address + size > end)
        host_fault("%s %zu bytes at offset %zu of %s, which has %zu bytes", verb, size,
                   (size_t)(address - start), label, bytes);
    return true;
}

static void note_access(const volatile void *pointer, size_t size, enum access_kind kind)
{
    struct host_fiber *me = host_self();
    if (!me || !me->cta->launch->device->checks)
        return;
    struct host_device *device = me->cta->launch->device;
    struct host_check *check = device->checks;
    uintptr_t address = (uintptr_t)pointer;
    size_t shared = me->cta->launch->function->geometry.shared;
    if (inside(address, size, me->cta->shared, shared, "shared memory", kind)) {
        if (kind == ACCESS_ATOMIC)
            return;
        check_cells(check, me->cta->shadow, address - (uintptr_t)me->cta->shared, size, kind,
                    "shared memory");
        return;
    }
    struct host_buffer *buffer = host_buffer_at(device, address);
    if (!buffer || !inside(address, size, buffer->data, buffer->size, buffer->label, kind))
        return;
    if (!buffer->shadow)
        buffer->shadow = memory_alloc((buffer->size / CELL_BYTES + 1) * sizeof *buffer->shadow);
    check_early(me, buffer, address - (uintptr_t)buffer->data, size, kind);
    if (kind == ACCESS_ATOMIC)
        return;
    check_cells(check, buffer->shadow, address - (uintptr_t)buffer->data, size, kind,
                buffer->label);
}

/* ---- wait_previous() in a checked kernel */

void elpis_wait_previous(void);

void elpis_wait_previous(void)
{
    struct host_fiber *me = host_self();
    if (me->early)
        host_fault("%s byte %zu of %s before wait_previous()%s", me->early, me->early_at,
                   me->early_of, me->early_why);
    me->waited = true;
}

/* What is read between the two calls is read past L1. */
void elpis_past_l1(u32 begins);

void elpis_past_l1(u32 begins)
{
    host_self()->past_l1 = begins;
}

/* ---- asynchronous copies, as prelude/host.h calls them in a checked kernel */

void elpis_copy_async(void *shared, const void *global);
void elpis_copy_commit(void);
void elpis_copy_wait(u32 pending);
void elpis_note_read(const void *address, u32 size);

void elpis_note_read(const void *address, u32 size)
{
    note_access(address, size, ACCESS_READ);
}

void elpis_copy_async(void *shared, const void *global)
{
    struct host_fiber *me = host_self();
    if (((uintptr_t)shared | (uintptr_t)global) % 16)
        host_fault("copy_async16 between addresses that are not multiples of 16");
    if (!me->copies)
        me->copies = memory_alloc(COPIES_MAX * sizeof *me->copies);
    if (me->copy_count == COPIES_MAX)
        host_fault("more than %u copy_async16 in flight in one thread", (u32)COPIES_MAX);
    elpis_past_l1(1);
    note_access(global, 16, ACCESS_READ);
    elpis_past_l1(0);
    note_access(shared, 16, ACCESS_COPY);
    memset(shared, POISON_BYTE, 16);
    me->copies[me->copy_count++] = (struct host_copy){shared, global, me->copy_group};
}

void elpis_copy_commit(void)
{
    host_self()->copy_group++;
}

/* All groups but the last `pending` land; a copy after the last commit belongs to no group yet. */
void elpis_copy_wait(u32 pending)
{
    struct host_fiber *me = host_self();
    u32 kept = 0;
    for (u32 i = 0; i < me->copy_count; i++) {
        struct host_copy copy = me->copies[i];
        if (copy.group + pending >= me->copy_group) {
            me->copies[kept++] = copy;
            continue;
        }
        note_access(copy.to, 16, ACCESS_WRITE);
        memcpy(copy.to, copy.from, 16);
    }
    me->copy_count = kept;
}

/* ---- the calls of the instrumentation (the ABI of gcc's and clang's -fsanitize=thread).
 * A program that is itself built with the thread sanitizer has them from its runtime, and the
 * race check is off. */
#if !defined(__SANITIZE_THREAD__)

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

void __tsan_init(void)
{
}
void __tsan_func_entry(void *caller)
{
    (void)caller;
}
void __tsan_func_exit(void *unused)
{
    (void)unused;
}
void __tsan_atomic_thread_fence(int order)
{
    (void)order;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_read_range(void *p, long size)
{
    note_access(p, (size_t)size, ACCESS_READ);
}
void __tsan_write_range(void *p, long size)
{
    note_access(p, (size_t)size, ACCESS_WRITE);
}

#define ACCESSES(size)                              \
    void __tsan_read##size(void *p)                 \
    {                                               \
        note_access(p, size, ACCESS_READ);          \
    }                                               \
    void __tsan_write##size(void *p)                \
    {                                               \
        note_access(p, size, ACCESS_WRITE);         \
    }                                               \
    void __tsan_unaligned_read##size(void *p)       \
    {                                               \
        note_access(p, size, ACCESS_READ);          \
    }                                               \
    void __tsan_unaligned_write##size(void *p)      \
    {                                               \
        note_access(p, size, ACCESS_WRITE);         \
    }                                               \
    void __tsan_read##size##_pc(void *p, void *pc)  \
    {                                               \
        (void)pc;                                   \
        note_access(p, size, ACCESS_READ);          \
    }                                               \
    void __tsan_write##size##_pc(void *p, void *pc) \
    {                                               \
        (void)pc;                                   \
        note_access(p, size, ACCESS_WRITE);         \
    }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void *__tsan_memcpy(void *to, const void *from, unsigned long size)
{
    note_access(from, size, ACCESS_READ);
    note_access(to, size, ACCESS_WRITE);
    return memcpy(to, from, size);
}
void *__tsan_memmove(void *to, const void *from, unsigned long size)
{
    note_access(from, size, ACCESS_READ);
    note_access(to, size, ACCESS_WRITE);
    return memmove(to, from, size);
}
void *__tsan_memset(void *to, int value, unsigned long size)
{
    note_access(to, size, ACCESS_WRITE);
    return memset(to, value, size);
}

#define ATOMIC_CHANGE(bits, type, operation)                                        \
    type __tsan_atomic##bits##_##operation(volatile void *p, type value, int order) \
    {                                                                               \
        (void)order;                                                                \
        note_access(p, sizeof(type), ACCESS_ATOMIC);                                \
        note_acquire(p);                                                            \
        note_release(p);                                                            \
        return __atomic_##operation((volatile type *)p, value, __ATOMIC_SEQ_CST);   \
    }
#define ATOMIC_SWAP(bits, type, strength)                                                     \
    bool __tsan_atomic##bits##_compare_exchange_##strength(volatile void *p, void *expected,  \
                                                           type value, int order, int failed) \
    {                                                                                         \
        (void)order;                                                                          \
        (void)failed;                                                                         \
        note_access(p, sizeof(type), ACCESS_ATOMIC);                                          \
        note_acquire(p);                                                                      \
        note_release(p);                                                                      \
        return __atomic_compare_exchange_n((volatile type *)p, (type *)expected, value, 0,    \
                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
    }
#define ATOMICS(bits, type)                                                   \
    ATOMIC_CHANGE(bits, type, fetch_add)                                      \
    ATOMIC_CHANGE(bits, type, fetch_sub)                                      \
    ATOMIC_CHANGE(bits, type, fetch_and)                                      \
    ATOMIC_CHANGE(bits, type, fetch_or)                                       \
    ATOMIC_CHANGE(bits, type, fetch_xor)                                      \
    ATOMIC_SWAP(bits, type, strong)                                           \
    ATOMIC_SWAP(bits, type, weak)                                             \
    type __tsan_atomic##bits##_load(const volatile void *p, int order)        \
    {                                                                         \
        if (order != __ATOMIC_RELAXED)                                        \
            note_acquire(p);                                                  \
        return __atomic_load_n((const volatile type *)p, __ATOMIC_SEQ_CST);   \
    }                                                                         \
    void __tsan_atomic##bits##_store(volatile void *p, type value, int order) \
    {                                                                         \
        if (order != __ATOMIC_RELAXED)                                        \
            note_release(p);                                                  \
        __atomic_store_n((volatile type *)p, value, __ATOMIC_SEQ_CST);        \
    }
ATOMICS(32, unsigned int)
ATOMICS(64, unsigned long)

#endif
