/* file.c - files: mapping, reading, atomic writing, folders, and the clock.
 *
 * Writing is to a private temporary name in the same folder, then fsync, then
 * rename: a reader sees the old content or the new one, never a part. Messages
 * name the path and the system's reason.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"

static int system_error(struct error *error, const char *what, const char *path)
{
    return error_set(error, ERROR_USAGE, "cannot %s %s: %s", what, path, strerror(errno));
}

/* Opens a regular file for reading; *size is its length. -1 with the error set. */
static int open_regular(const char *path, size_t *size, struct error *error)
{
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return system_error(error, "open", path);
    if (fstat(file, &status) != 0) {
        system_error(error, "examine", path);
        close(file);
        return -1;
    }
    if (!S_ISREG(status.st_mode)) {
        close(file);
        return error_set(error, ERROR_USAGE, "cannot read %s: expected a regular file, found %s",
                         path, S_ISDIR(status.st_mode) ? "a folder" : "a special file");
    }
    *size = (size_t)status.st_size;
    return file;
}

int file_map_open(struct file_map *map, const char *path, struct error *error)
{
    size_t size;
    int file = open_regular(path, &size, error);
    if (file < 0)
        return -1;
    *map = (struct file_map){0};
    if (size > 0) {
        void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
        if (data == MAP_FAILED) {
            system_error(error, "map", path);
            close(file);
            return -1;
        }
        *map = (struct file_map){data, size};
    }
    close(file);
    return 0;
}

void file_map_close(struct file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (struct file_map){0};
}

/* Reads until the end: the size may have changed since it was looked up. */
static int read_all(struct buffer *content, int file, const char *path, size_t limit,
                    struct error *error)
{
    char piece[65536];
    for (;;) {
        ssize_t got = read(file, piece, sizeof piece);
        if (got == 0)
            return 0;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return system_error(error, "read", path);
        if ((size_t)got > limit - content->size)
            return error_set(error, ERROR_USAGE,
                             "cannot read %s: expected at most %zu bytes, found more", path, limit);
        buffer_add(content, piece, (size_t)got);
    }
}

int file_read(struct buffer *content, const char *path, size_t limit, struct error *error)
{
    size_t size;
    int file = open_regular(path, &size, error);
    if (file < 0)
        return -1;
    buffer_clear(content);
    buffer_add(content, "", 0);
    int status = 0;
    if (size > limit)
        status = error_set(error, ERROR_USAGE,
                           "cannot read %s: expected at most %zu bytes, found %zu", path, limit,
                           size);
    if (status == 0)
        status = read_all(content, file, path, limit, error);
    close(file);
    return status;
}

static int write_all(int file, const u8 *data, size_t size)
{
    while (size > 0) {
        ssize_t written = write(file, data, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -1;
        data += written;
        size -= (size_t)written;
    }
    return 0;
}

int file_write_atomic(const char *path, const void *data, size_t size, struct error *error)
{
    struct buffer name = {0};
    buffer_format(&name, "%s.XXXXXX", path);
    int file = mkostemp(name.data, O_CLOEXEC);
    if (file < 0) {
        system_error(error, "create a file beside", path);
        buffer_free(&name);
        return -1;
    }
    if (write_all(file, data, size) != 0 || fsync(file) != 0)
        goto fail;
    if (rename(name.data, path) != 0)
        goto fail;
    close(file);
    buffer_free(&name);
    return 0;
fail:
    system_error(error, "write", path);
    close(file);
    unlink(name.data);
    buffer_free(&name);
    return -1;
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool file_is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static int make_folder(const char *path, u32 mode, struct error *error)
{
    if (mkdir(path, mode) == 0 || file_is_folder(path))
        return 0;
    return system_error(error, "make the folder", path);
}

int file_make_folders(const char *path, u32 mode, struct error *error)
{
    char *copy = memory_copy_text(slice_of(path));
    int status = 0;
    for (char *at = copy + 1; *copy && *at && status == 0; at++) {
        if (*at != '/')
            continue;
        *at = 0;
        status = make_folder(copy, mode, error);
        *at = '/';
    }
    if (status == 0)
        status = make_folder(copy, mode, error);
    memory_free(copy);
    return status;
}

int file_make_scratch(char **path, struct error *error)
{
    const char *base = getenv("TMPDIR");
    struct buffer name = {0};
    buffer_format(&name, "%s/elpis-XXXXXX", base && *base ? base : "/tmp");
    *path = name.data;
    if (mkdtemp(name.data))
        return 0;
    error_set(error, ERROR_USAGE, "cannot make a folder for a while at %s: %s; set TMPDIR",
              name.data, strerror(errno));
    buffer_free(&name);
    *path = NULL;
    return -1;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status;
    (void)type;
    (void)place;
    remove(path);
    return 0;
}

void file_remove_tree(const char *path)
{
    enum { FOLDERS_OPEN = 16 };
    nftw(path, remove_entry, FOLDERS_OPEN, FTW_DEPTH | FTW_PHYS);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int file_list(struct arena *arena, const char *folder, char ***names, size_t *count,
              struct error *error)
{
    DIR *stream = opendir(folder);
    if (!stream)
        return system_error(error, "list", folder);
    struct buffer found = {0};
    struct dirent *entry;
    while ((entry = readdir(stream))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *name = arena_text(arena, slice_of(entry->d_name));
        buffer_add(&found, &name, sizeof name);
    }
    closedir(stream);
    *count = found.size / sizeof(char *);
    *names = arena_alloc(arena, found.size + sizeof(char *));
    if (found.size > 0)
        memcpy(*names, found.data, found.size);
    buffer_free(&found);
    qsort(*names, *count, sizeof(char *), compare_names);
    return 0;
}

/* ---- clock */

double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

i64 clock_unix(void)
{
    return (i64)time(NULL);
}
