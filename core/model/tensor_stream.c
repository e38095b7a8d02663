/* tensor_stream.c - writes a safetensors file whose content is made while it is written.
 *
 * For files that are larger than memory and need no source: the layout and header are those of
 * tensor_writer.c, the data is cut into pieces of PIECE bytes of one tensor, and threads take the
 * next piece, have it made and write it to its place. What a piece holds depends on its tensor and
 * place alone, so the number of threads does not show.
 *
 * A tensor without data is left out: zeros that take no room on disk.
 *
 * The file appears whole or not at all, under the fixed name PATH.partial until then: what an
 * interrupted run left is overwritten by the next. It is not flushed to the disk: a file that can
 * be made again need not survive a crash of the machine.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "model/model_private.h"

#define PIECE ((u64)4 << 20)
#define PROGRESS_SECONDS 1
#define GB 1e9

/* One file being written. `lock` guards all below it. */
struct stream {
    int file;
    tensor_fill fill;
    void *user;
    const struct tensor *tensors;
    size_t count;
    u64 bytes; /* of the whole file */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a worker ended */
    size_t tensor;          /* the next piece: of this tensor, from `begin` */
    u64 begin, place;       /* place: in the file */
    u64 done;
    u32 running;
    int failure; /* errno of the first write that failed */
};

struct piece {
    const struct tensor *tensor;
    u64 begin, size, place;
};

static bool next_piece(struct stream *stream, struct piece *piece)
{
    while (stream->tensor < stream->count &&
           (stream->begin == stream->tensors[stream->tensor].bytes ||
            !stream->tensors[stream->tensor].data)) {
        stream->place += stream->tensors[stream->tensor].bytes - stream->begin;
        stream->tensor++;
        stream->begin = 0;
    }
    if (stream->tensor == stream->count || stream->failure)
        return false;
    const struct tensor *tensor = &stream->tensors[stream->tensor];
    const u64 left = tensor->bytes - stream->begin, size = left < PIECE ? left : PIECE;
    *piece = (struct piece){tensor, stream->begin, size, stream->place};
    stream->begin += size;
    stream->place += size;
    return true;
}

static int write_at(int file, const u8 *bytes, u64 size, u64 place)
{
    while (size > 0) {
        const ssize_t done = pwrite(file, bytes, size, (off_t)place);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : EIO;
        bytes += done;
        size -= (u64)done;
        place += (u64)done;
    }
    return 0;
}

static void *work(void *argument)
{
    struct stream *stream = argument;
    u8 *bytes = memory_alloc(PIECE);
    struct piece piece;
    pthread_mutex_lock(&stream->lock);
    while (next_piece(stream, &piece)) {
        pthread_mutex_unlock(&stream->lock);
        stream->fill(stream->user, piece.tensor, piece.begin, piece.size, bytes);
        const int failure = write_at(stream->file, bytes, piece.size, piece.place);
        pthread_mutex_lock(&stream->lock);
        stream->done += piece.size;
        if (failure && !stream->failure)
            stream->failure = failure;
    }
    stream->running--;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    memory_free(bytes);
    return NULL;
}

/* Waits for the workers with a line a second. Holds the lock but while it waits. */
static void watch(struct stream *stream)
{
    const double start = clock_seconds();
    bool shown = false;
    while (stream->running) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PROGRESS_SECONDS;
        if (pthread_cond_timedwait(&stream->changed, &stream->lock, &until) != ETIMEDOUT)
            continue;
        const double seconds = clock_seconds() - start, rate = (double)stream->done / seconds;
        log_progress(false, "writing %.1f of %.1f GB, %.2f GB/s, %.0f s left",
                     (double)stream->done / GB, (double)stream->bytes / GB, rate / GB,
                     (double)(stream->bytes - stream->done) / (rate > 1 ? rate : 1));
        shown = true;
    }
    if (shown)
        log_progress(true, "wrote %.1f of %.1f GB in %.1f s", (double)stream->done / GB,
                     (double)stream->bytes / GB, clock_seconds() - start);
}

/* All data; returns errno of what failed, or 0. */
static int run_workers(struct stream *stream, u32 threads)
{
    pthread_t *ids = memory_alloc(threads * sizeof *ids);
    u32 started = 0;
    pthread_mutex_lock(&stream->lock);
    while (started < threads && pthread_create(&ids[started], NULL, work, stream) == 0) {
        started++;
        stream->running++;
    }
    if (started)
        watch(stream);
    else
        stream->failure = EAGAIN;
    pthread_mutex_unlock(&stream->lock);
    for (u32 i = 0; i < started; i++)
        pthread_join(ids[i], NULL);
    memory_free(ids);
    return stream->failure;
}

static int check_room(int file, u64 bytes, const char *path, struct error *error)
{
    struct statvfs system;
    if (fstatvfs(file, &system) != 0) /* not known: a write will tell */
        return 0;
    const u64 room = (u64)system.f_bavail * system.f_frsize;
    if (room >= bytes)
        return 0;
    return error_set(error, ERROR_USAGE,
                     "cannot write %s: it takes %.2f GB and %.2f GB are free there; free some or "
                     "choose another folder",
                     path, (double)bytes / GB, (double)room / GB);
}

static u32 processors(void)
{
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (u32)count : 1;
}

static int write_stream(struct stream *stream, const struct buffer *header, u32 threads,
                        const char *path, struct error *error)
{
    u64 written = header->size;
    for (size_t i = 0; i < stream->count; i++)
        written += stream->tensors[i].data ? stream->tensors[i].bytes : 0;
    if (check_room(stream->file, written, path, error) < 0)
        return -1;
    int failure = ftruncate(stream->file, (off_t)stream->bytes) != 0 ? errno : 0;
    if (!failure)
        failure = write_at(stream->file, (const u8 *)header->data, header->size, 0);
    if (!failure)
        failure = run_workers(stream, threads ? threads : processors());
    if (failure)
        return error_set(error, ERROR_USAGE, "cannot write %s: %s", path, strerror(failure));
    return 0;
}

int tensor_writer_stream(struct tensor_writer *writer, const char *path, u32 threads,
                         tensor_fill fill, void *user, u64 *bytes, struct error *error)
{
    struct buffer header = {0}, partial = {0};
    struct stream stream = {.fill = fill, .user = user, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_cond_init(&stream.changed, NULL);
    int result = -1;
    buffer_format(&partial, "%s" TENSOR_PARTIAL, path);
    stream.file = -1;
    if (tensor_writer_layout(writer, &header, &stream.tensors, &stream.count) < 0) {
        error_set(error, ERROR_USAGE,
                  "cannot write %s: a tensor's name is used twice or is not UTF-8", path);
        goto done;
    }
    stream.bytes = stream.place = header.size;
    for (size_t i = 0; i < stream.count; i++)
        stream.bytes += stream.tensors[i].bytes;
    stream.file = open(partial.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (stream.file < 0) {
        error_set(error, ERROR_USAGE, "cannot write %s: %s", partial.data, strerror(errno));
        goto done;
    }
    result = write_stream(&stream, &header, threads, path, error);
    if (result == 0 && rename(partial.data, path) != 0)
        result = error_set(error, ERROR_USAGE, "cannot write %s: %s", path, strerror(errno));
    if (result < 0)
        unlink(partial.data);
    close(stream.file);
    *bytes = stream.bytes;
done:
    buffer_free(&header);
    buffer_free(&partial);
    pthread_cond_destroy(&stream.changed);
    return result;
}
