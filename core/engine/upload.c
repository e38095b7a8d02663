/* upload.c - large data on its way to the device, copied by several threads.
 *
 * Weights lie in mapped files. One thread that copies from a mapping gets a few GB/s: the driver
 * stages what is not page-locked, and every page is found for the first time. Here the data is cut
 * into pieces, threads copy them into a ring of page-locked slots, and the device's own thread
 * sends the slots off in order:
 *
 *     mapped file --threads--> slot [turn mod SLOTS] --device_copy_in, event--> device memory
 *
 *     released <= issued <= taken by threads < released + SLOTS        (turns of staged pieces)
 *
 * A thread fills a slot once the copy that was in it has ended (released), the device's thread
 * sends it once it is filled (ready). Data for host memory, which is all there is on the host
 * device, needs no slot: threads copy it to its place.
 *
 * Threads touch memory only; every call of device.h is made by the thread that calls uploader_*.
 * Copies go to the NULL stream, so whatever is launched there afterwards sees them.
 */
#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/engine_private.h"

#define PIECE ((size_t)4 << 20)
enum { SLOTS = 32, THREADS_MOST = 16 };
#define PROGRESS_SECONDS 1.0
#define WORTH_A_LINE 1000000000u /* bytes from which the end is told even if it came at once */
#define GB 1e9

struct piece {
    const u8 *from;
    u8 *host; /* where to; NULL: through a slot to the device */
    dptr to;
    size_t bytes;
    u64 turn; /* of staged pieces: slot turn mod SLOTS */
};

struct slot {
    u8 *memory;
    struct device_event *event; /* behind the copy that reads it */
    struct piece piece;
    bool ready;
};

struct uploader {
    struct device *device;
    bool staged;
    void *ring; /* page-locked [SLOTS, PIECE]; NULL until it is needed */
    struct slot slots[SLOTS];
    pthread_t threads[THREADS_MOST];
    u32 thread_count;
    u64 issued, turns; /* of the device's thread */
    double start, shown, finished;
    pthread_mutex_t lock; /* guards all below, and `ready` and `piece` of slots */
    pthread_cond_t work, progress;
    struct piece *pieces;
    size_t count, next; /* pieces; the next to be taken */
    u64 released;
    size_t pending; /* pieces that threads have yet to copy */
    u64 bytes, copied;
    bool stop;
};

/* ---- the threads */

static bool can_take(const struct uploader *uploader)
{
    if (uploader->next == uploader->count)
        return false;
    const struct piece *piece = &uploader->pieces[uploader->next];
    return piece->host || piece->turn < uploader->released + SLOTS;
}

/* Has a file that is not in memory read in pieces, not page by page; of other memory it says
 * nothing. */
static void read_ahead(const struct piece *piece)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)piece->from / page * page;
    madvise((void *)begin, (uintptr_t)piece->from + piece->bytes - begin, MADV_WILLNEED);
}

static void *copy_pieces(void *argument)
{
    struct uploader *uploader = argument;
    pthread_mutex_lock(&uploader->lock);
    for (;;) {
        while (!uploader->stop && !can_take(uploader))
            pthread_cond_wait(&uploader->work, &uploader->lock);
        if (uploader->stop)
            break;
        const struct piece piece = uploader->pieces[uploader->next++];
        struct slot *slot = &uploader->slots[piece.turn % SLOTS];
        pthread_mutex_unlock(&uploader->lock);
        read_ahead(&piece);
        memcpy(piece.host ? piece.host : slot->memory, piece.from, piece.bytes);
        pthread_mutex_lock(&uploader->lock);
        if (!piece.host) {
            slot->piece = piece;
            slot->ready = true;
        }
        uploader->copied += piece.bytes;
        uploader->pending--;
        pthread_cond_signal(&uploader->progress);
    }
    pthread_mutex_unlock(&uploader->lock);
    return NULL;
}

static int start_threads(struct uploader *uploader, struct error *error)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const u32 wanted = cores < 1 ? 1 : cores > THREADS_MOST ? THREADS_MOST : (u32)cores;
    uploader->start = uploader->shown = clock_seconds();
    while (uploader->thread_count < wanted &&
           pthread_create(&uploader->threads[uploader->thread_count], NULL, copy_pieces,
                          uploader) == 0)
        uploader->thread_count++;
    if (uploader->thread_count)
        return 0;
    return error_set(error, ERROR_MEMORY, "no thread could be started to load the weights with");
}

/* ---- the device's thread; these hold the lock but around calls of the device */

static struct slot *slot_of(struct uploader *uploader, u64 turn)
{
    return &uploader->slots[turn % SLOTS];
}

static bool next_is_ready(struct uploader *uploader)
{
    return slot_of(uploader, uploader->issued)->ready;
}

static int issue(struct uploader *uploader, struct error *error)
{
    struct slot *slot = slot_of(uploader, uploader->issued);
    const struct piece piece = slot->piece;
    slot->ready = false;
    pthread_mutex_unlock(&uploader->lock);
    int result = device_copy_in(uploader->device, NULL, piece.to, slot->memory, piece.bytes,
                                error) ||
                 device_event_record(uploader->device, slot->event, NULL, error);
    pthread_mutex_lock(&uploader->lock);
    uploader->issued++;
    return result ? -1 : 0;
}

/* Waits for the oldest copy and gives its slot back. */
static int release(struct uploader *uploader, struct error *error)
{
    struct slot *slot = slot_of(uploader, uploader->released);
    pthread_mutex_unlock(&uploader->lock);
    int result = device_event_sync(uploader->device, slot->event, error);
    pthread_mutex_lock(&uploader->lock);
    uploader->released++;
    pthread_cond_broadcast(&uploader->work);
    return result;
}

/* What can be done at once; keeps half of the slots with the threads. */
static int advance(struct uploader *uploader, struct error *error)
{
    for (;;) {
        if (uploader->issued - uploader->released > SLOTS / 2) {
            if (release(uploader, error) < 0)
                return -1;
        } else if (next_is_ready(uploader)) {
            if (issue(uploader, error) < 0)
                return -1;
        } else {
            return 0;
        }
    }
}

static void show_progress(struct uploader *uploader)
{
    const double now = clock_seconds();
    if (uploader->bytes <= WORTH_A_LINE || now - uploader->shown < PROGRESS_SECONDS)
        return;
    uploader->shown = now;
    log_progress(false, "loading %.1f of %.1f GB, %.1f GB/s", (double)uploader->copied / GB,
                 (double)uploader->bytes / GB,
                 (double)uploader->copied / GB / (now - uploader->start));
}

static void show_end(const struct uploader *uploader)
{
    if (uploader->finished > uploader->start && uploader->bytes > WORTH_A_LINE)
        log_progress(true, "loaded %.1f GB in %.1f s, %.1f GB/s", (double)uploader->bytes / GB,
                     uploader->finished - uploader->start,
                     (double)uploader->bytes / GB / (uploader->finished - uploader->start));
}

static int drain(struct uploader *uploader, struct error *error)
{
    while (uploader->pending || uploader->issued < uploader->turns) {
        if (advance(uploader, error) < 0)
            return -1;
        if (uploader->pending && uploader->released < uploader->issued) {
            if (release(uploader, error) < 0)
                return -1;
        } else if (uploader->pending && !next_is_ready(uploader)) {
            pthread_cond_wait(&uploader->progress, &uploader->lock);
        }
        show_progress(uploader);
    }
    while (uploader->released < uploader->issued)
        if (release(uploader, error) < 0)
            return -1;
    uploader->finished = clock_seconds();
    return 0;
}

/* ---- adding */

static int open_ring(struct uploader *uploader, struct error *error)
{
    dptr address;
    if (device_alloc_pinned(uploader->device, SLOTS * PIECE, &uploader->ring, &address, error))
        return -1;
    for (u32 i = 0; i < SLOTS; i++) {
        uploader->slots[i].memory = (u8 *)uploader->ring + i * PIECE;
        if (device_event_create(uploader->device, &uploader->slots[i].event, error))
            return -1;
    }
    return 0;
}

static void add_pieces(struct uploader *uploader, u8 *host, dptr to, const u8 *from, size_t bytes)
{
    const size_t count = (bytes + PIECE - 1) / PIECE;
    uploader->pieces = memory_resize(uploader->pieces,
                                     (uploader->count + count) * sizeof *uploader->pieces);
    for (size_t at = 0; at < bytes; at += PIECE) {
        uploader->pieces[uploader->count++] = (struct piece){
            .from = from + at,
            .host = host ? host + at : NULL,
            .to = to + at,
            .bytes = bytes - at < PIECE ? bytes - at : PIECE,
            .turn = host ? 0 : uploader->turns++,
        };
    }
    uploader->pending += count;
    uploader->bytes += bytes;
    pthread_cond_broadcast(&uploader->work);
}

static int add(struct uploader *uploader, u8 *host, dptr to, const void *from, size_t bytes,
               struct error *error)
{
    assert(!uploader->stop);
    if (device_info(uploader->device)->kind == DEVICE_PAPER)
        return 0; /* nothing would read it */
    if ((!uploader->thread_count && start_threads(uploader, error) < 0) ||
        (!host && !uploader->ring && open_ring(uploader, error) < 0))
        return -1;
    pthread_mutex_lock(&uploader->lock);
    add_pieces(uploader, host, to, from, bytes);
    int result = advance(uploader, error);
    pthread_mutex_unlock(&uploader->lock);
    return result;
}

int uploader_add(struct uploader *uploader, dptr to, const void *from, size_t bytes,
                 struct error *error)
{
    return add(uploader, uploader->staged ? NULL : (u8 *)(uintptr_t)to, to, from, bytes, error);
}

int uploader_add_host(struct uploader *uploader, void *to, const void *from, size_t bytes,
                      struct error *error)
{
    return add(uploader, to, 0, from, bytes, error);
}

/* ---- the whole */

struct uploader *uploader_create(struct device *device, bool staged)
{
    struct uploader *uploader = memory_alloc(sizeof *uploader);
    uploader->device = device;
    uploader->staged = staged;
    pthread_mutex_init(&uploader->lock, NULL);
    pthread_cond_init(&uploader->work, NULL);
    pthread_cond_init(&uploader->progress, NULL);
    return uploader;
}

static void stop_threads(struct uploader *uploader)
{
    pthread_mutex_lock(&uploader->lock);
    uploader->stop = true;
    pthread_cond_broadcast(&uploader->work);
    pthread_mutex_unlock(&uploader->lock);
    while (uploader->thread_count)
        pthread_join(uploader->threads[--uploader->thread_count], NULL);
}

int uploader_finish(struct uploader *uploader, struct error *error)
{
    pthread_mutex_lock(&uploader->lock);
    int result = drain(uploader, error);
    pthread_mutex_unlock(&uploader->lock);
    if (result < 0)
        stop_threads(uploader);
    return result;
}

void uploader_destroy(struct uploader *uploader)
{
    if (!uploader)
        return;
    stop_threads(uploader);
    show_end(uploader);
    struct error ignored;
    if (uploader->released < uploader->issued) /* after a failure: copies may still read slots */
        device_sync(uploader->device, NULL, &ignored);
    for (u32 i = 0; i < SLOTS; i++)
        if (uploader->slots[i].event)
            device_event_destroy(uploader->device, uploader->slots[i].event);
    if (uploader->ring)
        device_free_pinned(uploader->device, uploader->ring);
    pthread_cond_destroy(&uploader->progress);
    pthread_cond_destroy(&uploader->work);
    pthread_mutex_destroy(&uploader->lock);
    memory_free(uploader->pieces);
    memory_free(uploader);
}
