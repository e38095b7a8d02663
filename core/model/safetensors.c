/* safetensors.c - reads one safetensors file.
 *
 *     u64 little endian   n, length of the header
 *     n bytes             JSON: {"name": {"dtype": "F16", "shape": [a, b],
 *                         "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
 *     data                begin and end count from here
 *
 * The file is mapped, never copied. A file that opens is sound: its size is exactly
 * 8 + n + the last end (checked before anything else, because a download that was cut
 * short is what happens most), every tensor's bytes are its shape times its dtype, and
 * the tensors tile the data without gap or overlap. Nothing is said here about what a
 * tensor means. Lengths need not be multiples of anything, so data is unaligned.
 *
 * Tensors are kept sorted by name. Not here: writing (tensor_writer.c).
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_private.h"

/* The limit of the format's own library. */
#define HEADER_LIMIT 100000000u

struct tensor_file {
    struct file_map map;
    struct arena *arena;
    struct tensor *tensors;
    size_t count;
};

static const struct {
    const char *name;
    u32 size;
} dtypes[] = {
    [DTYPE_F16] = {"F16", 2},   [DTYPE_BF16] = {"BF16", 2},       [DTYPE_F32] = {"F32", 4},
    [DTYPE_F64] = {"F64", 8},   [DTYPE_I8] = {"I8", 1},           [DTYPE_U8] = {"U8", 1},
    [DTYPE_I16] = {"I16", 2},   [DTYPE_I32] = {"I32", 4},         [DTYPE_I64] = {"I64", 8},
    [DTYPE_BOOL] = {"BOOL", 1}, [DTYPE_U16] = {"U16", 2},         [DTYPE_U32] = {"U32", 4},
    [DTYPE_U64] = {"U64", 8},   [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_F8_E5M2] = {"F8_E5M2", 1},
};

u32 dtype_size(enum dtype dtype)
{
    return dtypes[dtype].size;
}

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

static bool dtype_from_name(const char *name, enum dtype *dtype)
{
    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    }
    return false;
}

/* ---- the header */

static int refuse_pointer(const struct file_map *map, const char *path, struct error *error)
{
    char text[200] = "";
    size_t length = map->size < sizeof text ? map->size : sizeof text - 1;
    memcpy(text, map->data, length);
    const char *size = strstr(text, "\nsize ");
    u64 wanted = size ? strtoull(size + 6, NULL, 10) : 0;
    return error_set(error, ERROR_MODEL,
                     "%s is a Git LFS pointer of %zu bytes, not the file of %" PRIu64
                     " bytes it stands for: fetch it with `git lfs pull` or `hf download`",
                     path, map->size, wanted);
}

/* Finds the header: *length bytes from map->data + 8. */
static int header_find(const struct file_map *map, const char *path, u64 *length,
                       struct error *error)
{
    static const char pointer[] = "version https://git-lfs";
    if (map->size >= sizeof pointer - 1 && memcmp(map->data, pointer, sizeof pointer - 1) == 0)
        return refuse_pointer(map, path, error);
    if (map->size < 8)
        return error_set(error, ERROR_MODEL,
                         "%s is %zu bytes long, too short for a safetensors file: fetch it again",
                         path, map->size);
    u64 n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | map->data[i];
    if (n > HEADER_LIMIT)
        return error_set(error, ERROR_MODEL,
                         "%s: its first 8 bytes claim a header of %" PRIu64
                         " bytes, more than the %u allowed: this is not a safetensors file",
                         path, n, HEADER_LIMIT);
    if (n > map->size - 8)
        return error_set(error, ERROR_MODEL,
                         "%s is %zu bytes long, but its header alone needs 8 + %" PRIu64
                         ": the file was cut short, fetch it again",
                         path, map->size, n);
    *length = n;
    return 0;
}

static int header_parse(const struct file_map *map, const char *path, u64 length, json_t **header,
                        struct error *error)
{
    json_error_t fault;
    *header = json_loadb((const char *)map->data + 8, length, JSON_REJECT_DUPLICATES, &fault);
    if (!*header)
        return error_set(error, ERROR_MODEL,
                         "%s: the header is not valid JSON at byte %d: %s; fetch the file again",
                         path, fault.position, fault.text);
    if (!json_is_object(*header))
        return error_set(error, ERROR_MODEL, "%s: the header is %s, expected a JSON object", path,
                         reader_kind(*header));
    return 0;
}

/* ---- one tensor of the header */

/* data_offsets of an entry: two integers, begin <= end. */
static int entry_offsets(const char *path, const char *name, const json_t *entry, u64 *begin,
                         u64 *end, struct error *error)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
        return error_set(error, ERROR_MODEL,
                         "%s: tensor %s: data_offsets must be two integers [begin, end] with "
                         "0 <= begin <= end",
                         path, name);
    *begin = (u64)json_integer_value(first);
    *end = (u64)json_integer_value(last);
    return 0;
}

static int entry_dtype(const char *path, const char *name, const json_t *entry, enum dtype *dtype,
                       struct error *error)
{
    const json_t *text = json_object_get(entry, "dtype");
    if (!json_is_string(text))
        return error_set(error, ERROR_MODEL, "%s: tensor %s: dtype is %s, expected a string", path,
                         name, reader_kind(text));
    if (!dtype_from_name(json_string_value(text), dtype))
        return error_set(error, ERROR_MODEL,
                         "%s: tensor %s has dtype \"%s\", which is not known here (known: F64 F32 "
                         "F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 U64 U32 U16 U8 BOOL)",
                         path, name, json_string_value(text));
    return 0;
}

/* Fills rank, shape and count. */
static int entry_shape(const char *path, const json_t *entry, struct tensor *tensor,
                       struct error *error)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return error_set(error, ERROR_MODEL, "%s: tensor %s: shape is %s, expected a list", path,
                         tensor->name, reader_kind(shape));
    if (json_array_size(shape) > TENSOR_RANK_MAX)
        return error_set(error, ERROR_MODEL, "%s: tensor %s has %zu dimensions, at most %d allowed",
                         path, tensor->name, json_array_size(shape), TENSOR_RANK_MAX);
    tensor->rank = (u32)json_array_size(shape);
    tensor->count = 1;
    for (u32 i = 0; i < tensor->rank; i++) {
        const json_t *extent = json_array_get(shape, i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return error_set(error, ERROR_MODEL,
                             "%s: tensor %s: shape[%u] must be an integer of at least 0", path,
                             tensor->name, i);
        tensor->shape[i] = (u64)json_integer_value(extent);
        if (__builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count))
            return error_set(error, ERROR_MODEL,
                             "%s: tensor %s: its shape overflows 64 bits at dimension %u", path,
                             tensor->name, i);
    }
    return 0;
}

static int entry_read(const struct file_map *map, const char *path, u64 data_start,
                      const json_t *entry, struct tensor *tensor, struct error *error)
{
    u64 begin = 0, end = 0;
    if (entry_dtype(path, tensor->name, entry, &tensor->dtype, error) < 0 ||
        entry_shape(path, entry, tensor, error) < 0 ||
        entry_offsets(path, tensor->name, entry, &begin, &end, error) < 0)
        return -1;
    char shape[160];
    tensor_shape_text(shape, tensor->rank, tensor->shape);
    if (__builtin_mul_overflow(tensor->count, (u64)dtype_size(tensor->dtype), &tensor->bytes) ||
        tensor->bytes != end - begin)
        return error_set(error, ERROR_MODEL,
                         "%s: tensor %s: shape %s of %s needs %" PRIu64
                         " bytes, but its data_offsets span %" PRIu64,
                         path, tensor->name, shape, dtype_name(tensor->dtype), tensor->bytes,
                         end - begin);
    tensor->data = map->data + data_start + begin;
    return 0;
}

/* ---- the whole file */

/* Number of tensors and the last end; every entry must be an object with offsets. */
static int header_measure(const char *path, json_t *header, size_t *count, u64 *last,
                          struct error *error)
{
    const char *name;
    json_t *entry;
    *count = 0;
    *last = 0;
    json_object_foreach (header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (!json_is_object(entry))
            return error_set(error, ERROR_MODEL,
                             "%s: tensor %s: its header entry is %s, expected an object", path,
                             name, reader_kind(entry));
        u64 begin, end;
        if (entry_offsets(path, name, entry, &begin, &end, error) < 0)
            return -1;
        *last = end > *last ? end : *last;
        (*count)++;
    }
    return 0;
}

static int check_size(const struct file_map *map, const char *path, u64 length, u64 last,
                      struct error *error)
{
    u64 expected;
    if (!__builtin_add_overflow(8 + length, last, &expected) && expected == map->size)
        return 0;
    bool shorter = last > map->size - 8 - length;
    return error_set(error, ERROR_MODEL,
                     "%s is %zu bytes long, but its header promises 8 + %" PRIu64 " + %" PRIu64
                     ": %s, fetch it again",
                     path, map->size, length, last,
                     shorter ? "the file was cut short" : "bytes follow the last tensor");
}

static int compare_place(const void *left, const void *right)
{
    const struct tensor *a = left, *b = right;
    const char *a_data = a->data, *b_data = b->data;
    if (a_data != b_data)
        return a_data < b_data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int compare_name(const void *left, const void *right)
{
    return strcmp(((const struct tensor *)left)->name, ((const struct tensor *)right)->name);
}

/* The tensors, sorted by place, must follow each other exactly. */
static int check_places(const struct tensor_file *file, const char *path, u64 data_start,
                        struct error *error)
{
    const u8 *expected = file->map.data + data_start;
    for (size_t i = 0; i < file->count; i++) {
        const struct tensor *tensor = &file->tensors[i];
        const u8 *found = tensor->data;
        if (found != expected)
            return error_set(error, ERROR_MODEL,
                             "%s: tensor %s begins at offset %td, expected %td: %s %s, so the "
                             "header is not sound; fetch the file again",
                             path, tensor->name, found - file->map.data - (ptrdiff_t)data_start,
                             expected - file->map.data - (ptrdiff_t)data_start,
                             found > expected ? "a gap follows" : "it overlaps",
                             i ? file->tensors[i - 1].name : "the start of the data");
        expected = found + tensor->bytes;
    }
    return 0;
}

static int read_tensors(struct tensor_file *file, const char *path, json_t *header, u64 data_start,
                        struct error *error)
{
    const char *name;
    json_t *entry;
    const char *kept_path = arena_text(file->arena, slice_of(path));
    size_t i = 0;
    json_object_foreach (header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct tensor *tensor = &file->tensors[i++];
        tensor->name = arena_text(file->arena, slice_of(name));
        tensor->file = kept_path;
        if (entry_read(&file->map, path, data_start, entry, tensor, error) < 0)
            return -1;
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_place);
    if (check_places(file, path, data_start, error) < 0)
        return -1;
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_name);
    return 0;
}

int tensor_file_open(struct tensor_file **result, const char *path, struct error *error)
{
    struct tensor_file *file = memory_alloc(sizeof *file);
    json_t *header = NULL;
    u64 length = 0, last = 0;
    file->arena = arena_create();
    if (file_map_open(&file->map, path, error) < 0) {
        error->code = ERROR_MODEL;
        goto fail;
    }
    if (header_find(&file->map, path, &length, error) < 0 ||
        header_parse(&file->map, path, length, &header, error) < 0 ||
        header_measure(path, header, &file->count, &last, error) < 0 ||
        check_size(&file->map, path, length, last, error) < 0)
        goto fail;
    file->tensors = arena_alloc(file->arena, (file->count + 1) * sizeof *file->tensors);
    if (read_tensors(file, path, header, 8 + length, error) < 0)
        goto fail;
    json_decref(header);
    *result = file;
    return 0;
fail:
    json_decref(header);
    tensor_file_close(file);
    return model_error_printable(error);
}

void tensor_file_close(struct tensor_file *file)
{
    if (!file)
        return;
    if (file->map.data)
        file_map_close(&file->map);
    arena_destroy(file->arena);
    memory_free(file);
}

size_t tensor_file_count(const struct tensor_file *file)
{
    return file->count;
}

const struct tensor *tensor_file_at(const struct tensor_file *file, size_t index)
{
    return index < file->count ? &file->tensors[index] : NULL;
}

const struct tensor *tensor_file_find(const struct tensor_file *file, const char *name)
{
    struct tensor key = {.name = name};
    return bsearch(&key, file->tensors, file->count, sizeof key, compare_name);
}
