/* tensor_writer.c - writes a safetensors file: dumps, states, models for tests.
 *
 * Equal content gives equal bytes: tensors are laid out by element size, largest
 * first, then by name, so that each is aligned to its elements; the header is padded
 * with spaces to a multiple of HEADER_ALIGNMENT. The file appears whole or not at
 * all: private temporary name in the same folder, fsync, rename. A tensor without
 * data is zeros that take no room on disk.
 *
 * Not here: reading and the description of the format (safetensors.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/model_private.h"

#define HEADER_ALIGNMENT 64

struct tensor_writer {
    struct arena *arena;
    struct buffer tensors; /* struct tensor [] */
    json_t *metadata;      /* NULL = none */
};

struct tensor_writer *tensor_writer_create(void)
{
    struct tensor_writer *writer = memory_alloc(sizeof *writer);
    writer->arena = arena_create();
    return writer;
}

void tensor_writer_destroy(struct tensor_writer *writer)
{
    if (!writer)
        return;
    json_decref(writer->metadata);
    buffer_free(&writer->tensors);
    arena_destroy(writer->arena);
    memory_free(writer);
}

void tensor_writer_add(struct tensor_writer *writer, const char *name, enum dtype dtype, u32 rank,
                       const u64 *shape, const void *data)
{
    struct tensor tensor = {.name = arena_text(writer->arena, slice_of(name)),
                            .dtype = dtype,
                            .rank = rank,
                            .count = 1,
                            .data = data};
    for (u32 i = 0; i < rank; i++) {
        tensor.shape[i] = shape[i];
        tensor.count *= shape[i];
    }
    tensor.bytes = tensor.count * dtype_size(dtype);
    buffer_add(&writer->tensors, &tensor, sizeof tensor);
}

void tensor_writer_metadata(struct tensor_writer *writer, const char *key, const char *value)
{
    if (!writer->metadata)
        writer->metadata = json_object();
    json_object_set_new(writer->metadata, key, json_string(value));
}

static int compare_layout(const void *left, const void *right)
{
    const struct tensor *a = left, *b = right;
    if (dtype_size(a->dtype) != dtype_size(b->dtype))
        return dtype_size(a->dtype) > dtype_size(b->dtype) ? -1 : 1;
    return strcmp(a->name, b->name);
}

static json_t *entry_json(const struct tensor *tensor, u64 begin)
{
    json_t *shape = json_array();
    u64 end = begin + tensor->bytes;
    for (u32 i = 0; i < tensor->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* The first 8 bytes and the padded header; -1 when a name or a value is no UTF-8. */
static int write_header(const struct tensor_writer *writer, const struct tensor *tensors,
                        size_t count, struct buffer *bytes)
{
    json_t *header = json_object();
    if (writer->metadata)
        json_object_set(header, "__metadata__", writer->metadata);
    u64 begin = 0;
    for (size_t i = 0; i < count; i++) {
        json_object_set_new(header, tensors[i].name, entry_json(&tensors[i], begin));
        begin += tensors[i].bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT | JSON_SORT_KEYS);
    bool whole = text && json_object_size(header) == count + (writer->metadata ? 1 : 0);
    json_decref(header);
    if (whole) {
        u64 length = strlen(text);
        u64 padding = (HEADER_ALIGNMENT - (8 + length) % HEADER_ALIGNMENT) % HEADER_ALIGNMENT;
        u64 total = length + padding;
        buffer_add(bytes, &total, sizeof total);
        buffer_add(bytes, text, length);
        memset(buffer_extend(bytes, padding), ' ', padding);
    }
    free(text);
    return whole ? 0 : -1;
}

static int write_all(int file, const void *data, u64 size)
{
    const char *next = data;
    while (size > 0) {
        ssize_t done = write(file, next, size > (1u << 30) ? (1u << 30) : size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        next += done;
        size -= (u64)done;
    }
    return 0;
}

/* Header and data into an open file; -1 with errno set. */
static int write_content(int file, const struct buffer *header, const struct tensor *tensors,
                         size_t count)
{
    if (write_all(file, header->data, header->size) < 0)
        return -1;
    off_t end = (off_t)header->size;
    for (size_t i = 0; i < count; i++) {
        end += (off_t)tensors[i].bytes;
        if (tensors[i].data ? write_all(file, tensors[i].data, tensors[i].bytes) < 0
                            : lseek(file, end, SEEK_SET) < 0)
            return -1;
    }
    return ftruncate(file, end) < 0 || fsync(file) < 0 ? -1 : 0;
}

int tensor_writer_layout(struct tensor_writer *writer, struct buffer *header,
                         const struct tensor **tensors, size_t *count)
{
    struct tensor *list = (struct tensor *)writer->tensors.data;
    *tensors = list;
    *count = writer->tensors.size / sizeof *list;
    if (*count)
        qsort(list, *count, sizeof *list, compare_layout);
    return write_header(writer, list, *count, header);
}

int tensor_writer_write(struct tensor_writer *writer, const char *path, struct error *error)
{
    const struct tensor *tensors;
    size_t count;
    struct buffer header = {0};
    char *temporary = arena_format(writer->arena, "%s.XXXXXX", path);
    if (tensor_writer_layout(writer, &header, &tensors, &count) < 0) {
        buffer_free(&header);
        return error_set(error, ERROR_USAGE,
                         "cannot write %s: a tensor's name is used twice or is not UTF-8", path);
    }
    int file = mkstemp(temporary);
    bool failed = file < 0 || write_content(file, &header, tensors, count) < 0;
    int reason = errno;
    buffer_free(&header);
    if (file >= 0) {
        fchmod(file, 0644);
        close(file);
    }
    if (!failed && rename(temporary, path) == 0)
        return 0;
    reason = failed ? reason : errno;
    if (file >= 0)
        unlink(temporary);
    return error_set(error, ERROR_USAGE, "cannot write %s: %s", path, strerror(reason));
}
