/* cache.c - compiled kernels in a folder.
 *
 * A file a kernel, named <64 hex digits of its key>.kernel (little-endian):
 *
 *     0    8   magic "ELPISKC1"
 *     8    4   version of this format, 1
 *     12   4   bytes of this header, 88
 *     16   8   bytes of the image
 *     24  32   the key, so that a renamed file does not count
 *     56  32   BLAKE2b-256 of the image
 *     88   -   the image: a cubin, or a shared object of the host device
 *
 * The key covers everything the image depends on (request.c). A file whose size, key or digest
 * does not fit is removed and is a miss: it heals itself, with one warning, however many they are.
 * Files are written under a private name (file_write_atomic adds six characters) and renamed, so a
 * reader sees all or nothing.
 *
 * <key>.lock is held (flock) while a kernel is compiled, so that several processes do the work
 * once; who waited looks again. The holder deletes the file before letting go; who then holds a
 * deleted file notices (the path no longer leads to it) and tries again.
 *
 * A process that is killed leaves its lock files, which nobody holds, and what it was writing. Who
 * opens the cache deletes those that are older than an hour.
 *
 * Where the folder cannot be written: one warning, and kernels live in memory only. Folder: the
 * one given, ELPIS_CACHE, XDG_CACHE_HOME/elpis, ~/.cache/elpis, /tmp/elpis-<uid>. Images are
 * code that will run, so the last one is used only if it is ours and nobody else may write there.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jit/jit_private.h"

enum { FORMAT_VERSION = 1, FOLDER_MODE = 0700, IMAGE_LIMIT = 256 << 20 };
enum { KEY_DIGITS = 64, PRIVATE_DIGITS = 6, LEFT_OVER_SECONDS = 3600 };

static const char magic[8] = {'E', 'L', 'P', 'I', 'S', 'K', 'C', '1'};

struct header {
    char magic[8];
    u32 version, header_size;
    u64 image_size;
    struct digest key, image;
};
_Static_assert(sizeof(struct header) == 88, "the header is written as it lies in memory");

struct cache {
    char *folder; /* NULL = memory only */
    pthread_mutex_t mutex;
    /* guarded by mutex */
    bool broken;         /* writing failed, warned once */
    bool damage_is_told; /* of damaged files, warned once */
};

/* ---- the folder */

static char *default_folder(void)
{
    struct buffer path = {0};
    const char *own = getenv("ELPIS_CACHE"), *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (own && *own)
        buffer_add_text(&path, own);
    else if (xdg && *xdg)
        buffer_format(&path, "%s/elpis", xdg);
    else if (home && *home)
        buffer_format(&path, "%s/.cache/elpis", home);
    else
        buffer_format(&path, "/tmp/elpis-%u", (unsigned)getuid());
    return path.data;
}

/* A folder in /tmp may be a trap that someone else laid. */
static bool is_trustworthy(const char *folder)
{
    struct stat status;
    if (strncmp(folder, "/tmp/elpis-", 11) != 0)
        return true;
    return lstat(folder, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == getuid() &&
           (status.st_mode & 022) == 0;
}

static void warn_once(struct cache *cache, const char *reason)
{
    pthread_mutex_lock(&cache->mutex);
    bool first = !cache->broken;
    cache->broken = true;
    pthread_mutex_unlock(&cache->mutex);
    if (first)
        log_warn("kernel cache: %s; compiled kernels are kept in memory only", reason);
}

static bool is_broken(struct cache *cache)
{
    pthread_mutex_lock(&cache->mutex);
    bool broken = cache->broken;
    pthread_mutex_unlock(&cache->mutex);
    return broken;
}

/* ---- what killed processes left */

/* A lock file, or a kernel's under its private name. */
static bool is_temporary(const char *name)
{
    const size_t size = strlen(name), digits = strspn(name, "0123456789abcdef");
    const char *rest = name + digits;
    if (digits != KEY_DIGITS)
        return false;
    return strcmp(rest, ".lock") == 0 ||
           (strncmp(rest, ".kernel.", 8) == 0 && size == KEY_DIGITS + 8 + PRIVATE_DIGITS);
}

static bool is_old(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 && S_ISREG(status.st_mode) &&
           clock_unix() - (i64)status.st_mtime > LEFT_OVER_SECONDS;
}

/* Not while someone holds it as a lock: then two would hold the same key. */
static void remove_left_over(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    if (flock(file, LOCK_EX | LOCK_NB) == 0)
        unlink(path);
    close(file);
}

/* What cannot be deleted stays; that hurts nobody. */
static void sweep(const char *folder)
{
    DIR *stream = opendir(folder);
    struct dirent *entry;
    while (stream && (entry = readdir(stream))) {
        struct buffer path = {0};
        if (!is_temporary(entry->d_name))
            continue;
        buffer_format(&path, "%s/%s", folder, entry->d_name);
        if (is_old(path.data))
            remove_left_over(path.data);
        buffer_free(&path);
    }
    if (stream)
        closedir(stream);
}

/* ---- open and close */

struct cache *cache_open(const char *folder, bool memory_only)
{
    struct error error;
    struct cache *cache = memory_alloc(sizeof *cache);
    pthread_mutex_init(&cache->mutex, NULL);
    if (memory_only)
        return cache;
    char *path = folder && *folder ? memory_copy_text(slice_of(folder)) : default_folder();
    if (file_make_folders(path, FOLDER_MODE, &error) != 0) {
        warn_once(cache, error.text);
        memory_free(path);
    } else if (!is_trustworthy(path)) {
        warn_once(cache, "the folder in /tmp belongs to or can be written by another user");
        memory_free(path);
    } else {
        cache->folder = path;
        sweep(path);
    }
    return cache;
}

void cache_close(struct cache *cache)
{
    if (!cache)
        return;
    pthread_mutex_destroy(&cache->mutex);
    memory_free(cache->folder);
    memory_free(cache);
}

const char *cache_folder(const struct cache *cache)
{
    return cache->folder;
}

static char *path_of(const struct cache *cache, const struct digest *key, const char *suffix)
{
    struct buffer path = {0};
    char name[65];
    digest_text(*key, name);
    buffer_format(&path, "%s/%s%s", cache->folder, name, suffix);
    return path.data;
}

/* ---- files */

static bool is_sound(const struct buffer *file, const struct digest *key)
{
    struct header header;
    if (file->size < sizeof header)
        return false;
    memcpy(&header, file->data, sizeof header);
    if (memcmp(header.magic, magic, sizeof magic) != 0 || header.version != FORMAT_VERSION ||
        header.header_size != sizeof header || header.image_size != file->size - sizeof header ||
        memcmp(&header.key, key, sizeof *key) != 0)
        return false;
    struct digest found = digest_of(file->data + sizeof header, header.image_size);
    return memcmp(&found, &header.image, sizeof found) == 0;
}

static void tell_damage(struct cache *cache, const char *path)
{
    pthread_mutex_lock(&cache->mutex);
    const bool first = !cache->damage_is_told;
    cache->damage_is_told = true;
    pthread_mutex_unlock(&cache->mutex);
    if (first)
        log_warn("kernel cache: %s is damaged; such files are removed and their kernels compiled "
                 "again",
                 path);
    else
        log_debug("kernel cache: %s is damaged too", path);
}

/* Unless another process has put a new file there meanwhile. */
static void remove_damaged(const char *path, const struct stat *as_read)
{
    struct stat now;
    if (stat(path, &now) == 0 && now.st_ino == as_read->st_ino && now.st_dev == as_read->st_dev)
        unlink(path);
}

bool cache_load(struct cache *cache, const struct digest *key, struct buffer *image)
{
    struct error ignored;
    struct stat status;
    struct buffer file = {0};
    bool hit = false;
    if (!cache->folder)
        return false;
    char *path = path_of(cache, key, ".kernel");
    if (stat(path, &status) == 0 && file_read(&file, path, IMAGE_LIMIT, &ignored) == 0) {
        hit = is_sound(&file, key);
        if (!hit) {
            tell_damage(cache, path);
            remove_damaged(path, &status);
        }
    }
    if (hit) {
        buffer_clear(image);
        buffer_add(image, file.data + sizeof(struct header), file.size - sizeof(struct header));
    }
    buffer_free(&file);
    memory_free(path);
    return hit;
}

void cache_store(struct cache *cache, const struct digest *key, struct slice image)
{
    struct error error;
    struct buffer file = {0};
    struct header header = {.version = FORMAT_VERSION,
                            .header_size = sizeof header,
                            .image_size = image.size,
                            .key = *key,
                            .image = digest_of(image.data, image.size)};
    if (!cache->folder || is_broken(cache))
        return;
    memcpy(header.magic, magic, sizeof magic);
    buffer_add(&file, &header, sizeof header);
    buffer_add(&file, image.data, image.size);
    char *path = path_of(cache, key, ".kernel");
    if (file_write_atomic(path, file.data, file.size, &error) != 0)
        warn_once(cache, error.text);
    memory_free(path);
    buffer_free(&file);
}

void cache_remove(struct cache *cache, const struct digest *key)
{
    if (!cache->folder)
        return;
    char *path = path_of(cache, key, ".kernel");
    unlink(path);
    memory_free(path);
}

/* ---- locks */

/* Does the path still lead to the file that is open? */
static bool still_there(int file, const char *path)
{
    struct stat opened, named;
    return fstat(file, &opened) == 0 && stat(path, &named) == 0 && opened.st_ino == named.st_ino &&
           opened.st_dev == named.st_dev;
}

static int wait_for(int file)
{
    int result;
    do
        result = flock(file, LOCK_EX);
    while (result != 0 && errno == EINTR);
    return result;
}

int cache_lock(struct cache *cache, const struct digest *key)
{
    int file = -1;
    if (!cache->folder || is_broken(cache))
        return -1;
    char *path = path_of(cache, key, ".lock");
    for (;;) {
        file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0) {
            char reason[1200];
            snprintf(reason, sizeof reason, "%s cannot be written (%s)", cache->folder,
                     strerror(errno));
            warn_once(cache, reason);
            break;
        }
        if (wait_for(file) != 0 || still_there(file, path))
            break; /* a file system without locks only costs double work */
        close(file);
    }
    memory_free(path);
    return file;
}

void cache_unlock(struct cache *cache, const struct digest *key, int lock)
{
    if (lock < 0)
        return;
    char *path = path_of(cache, key, ".lock");
    unlink(path);
    close(lock);
    memory_free(path);
}
