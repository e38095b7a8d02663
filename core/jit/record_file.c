/* record_file.c - files of tuning records, line by line (records.h). */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "jit/records.h"

enum { FILE_LIMIT = 256 << 20 };

/* ---- what is a record */

static bool is_table(const json_t *object)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return false;
    json_object_foreach ((json_t *)object, key, value)
        if (!json_is_integer(value) && !json_is_string(value))
            return false;
    return true;
}

const char *record_refusal(const json_t *object)
{
    const json_t *sms = json_object_get(object, "sms");
    if (!json_is_object(object))
        return "expected an object";
    if (!json_is_string(json_object_get(object, "schedule")))
        return "expected a text \"schedule\"";
    if (!json_is_string(json_object_get(object, "target")))
        return "expected a text \"target\"";
    if (sms && (!json_is_integer(sms) || json_integer_value(sms) < 1 ||
                json_integer_value(sms) > UINT32_MAX))
        return "expected \"sms\" to be a number of multiprocessors";
    if (!is_table(json_object_get(object, "parameters")))
        return "expected \"parameters\" to be an object of integers and texts";
    if (!is_table(json_object_get(object, "tuning")))
        return "expected \"tuning\" to be an object of integers and texts";
    return NULL;
}

static bool same_field(const json_t *a, const json_t *b, const char *name)
{
    const json_t *mine = json_object_get(a, name), *other = json_object_get(b, name);
    return mine && other ? json_equal(mine, other) : mine == other;
}

bool record_same_request(const json_t *a, const json_t *b)
{
    return same_field(a, b, "schedule") && same_field(a, b, "target") && same_field(a, b, "sms") &&
           same_field(a, b, "parameters");
}

bool record_same_key(const json_t *a, const json_t *b)
{
    return record_same_request(a, b) && same_field(a, b, "gpu") && same_field(a, b, "driver");
}

/* ---- lines */

static struct record_line *add_line(struct record_file *file)
{
    file->lines = memory_resize(file->lines, (file->count + 1) * sizeof *file->lines);
    struct record_line *line = &file->lines[file->count++];
    *line = (struct record_line){.number = (u32)file->count};
    return line;
}

static void read_line(struct record_file *file, struct slice text)
{
    struct record_line *line = add_line(file);
    json_error_t failure;
    line->text = memory_copy_text(text);
    line->size = text.size;
    if (strspn(line->text, " \t\r") == text.size)
        return;
    line->object = json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES, &failure);
    const char *refusal = line->object ? record_refusal(line->object) : failure.text;
    if (!refusal)
        return;
    line->reason = memory_copy_text(slice_of(refusal));
    json_decref(line->object);
    line->object = NULL;
}

void record_file_parse(struct record_file *file, const char *path, struct slice text)
{
    *file = (struct record_file){.path = memory_copy_text(slice_of(path))};
    for (size_t at = 0; at < text.size;) {
        const char *end = memchr(text.data + at, '\n', text.size - at);
        const size_t size = end ? (size_t)(end - text.data) - at : text.size - at;
        read_line(file, (struct slice){text.data + at, size});
        at += size + 1;
    }
}

int record_file_read(struct record_file *file, const char *path, struct error *error)
{
    struct buffer text = {0};
    *file = (struct record_file){0};
    if (file_exists(path) && file_read(&text, path, FILE_LIMIT, error) != 0)
        return -1;
    record_file_parse(file, path, buffer_slice(&text));
    buffer_free(&text);
    return 0;
}

void record_file_free(struct record_file *file)
{
    for (size_t i = 0; i < file->count; i++) {
        memory_free(file->lines[i].text);
        memory_free(file->lines[i].reason);
        json_decref(file->lines[i].object);
    }
    memory_free(file->lines);
    memory_free(file->path);
    *file = (struct record_file){0};
}

struct record_line *record_file_find(const struct record_file *file, const json_t *object)
{
    for (size_t i = 0; i < file->count; i++)
        if (file->lines[i].object && record_same_key(file->lines[i].object, object))
            return &file->lines[i];
    return NULL;
}

void record_file_put(struct record_file *file, json_t *object)
{
    struct record_line *line = record_file_find(file, object);
    if (!line)
        line = add_line(file);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(6));
    memory_free(line->text);
    json_decref(line->object);
    line->size = strlen(text);
    line->text = memory_copy_text(slice_of(text));
    line->object = json_incref(object);
    free(text);
}

int record_file_write(const struct record_file *file, struct error *error)
{
    struct buffer text = {0};
    for (size_t i = 0; i < file->count; i++) {
        buffer_add_slice(&text, (struct slice){file->lines[i].text, file->lines[i].size});
        buffer_add_text(&text, "\n");
    }
    const int status = file_write_atomic(file->path, text.data ? text.data : "", text.size, error);
    buffer_free(&text);
    return status;
}

/* ---- locks */

static int make_folder_of(const char *path, struct error *error)
{
    char *copy = memory_copy_text(slice_of(path));
    const int status = file_make_folders(dirname(copy), 0700, error);
    memory_free(copy);
    return status;
}

int record_file_lock(const char *path, int *lock, struct error *error)
{
    struct buffer name = {0};
    int result;
    if (make_folder_of(path, error) != 0)
        return -1;
    buffer_format(&name, "%s.lock", path);
    *lock = open(name.data, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*lock < 0)
        error_set(error, ERROR_USAGE, "%s cannot be opened: %s", name.data, strerror(errno));
    buffer_free(&name);
    if (*lock < 0)
        return -1;
    do
        result = flock(*lock, LOCK_EX);
    while (result != 0 && errno == EINTR);
    return 0; /* a file system without locks: as good as it gets */
}

void record_file_unlock(int lock)
{
    close(lock);
}

int record_file_update(const char *path, json_t *object, struct error *error)
{
    struct record_file file = {0};
    int lock;
    if (record_file_lock(path, &lock, error) != 0)
        return -1;
    int status = record_file_read(&file, path, error);
    if (status == 0) {
        record_file_put(&file, object);
        status = record_file_write(&file, error);
    }
    record_file_free(&file);
    record_file_unlock(lock);
    return status;
}
