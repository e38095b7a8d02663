/* table.c - the tensors of all files of a model as one table, sorted by name.
 *
 * A name may stand in one file only: which of two would count is nobody's to guess.
 * Each tensor that the model takes is marked, so that afterwards the unmarked ones can
 * be named. The table's memory is the model's arena; the tensors stay in their files.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_private.h"

static int compare_names(const void *left, const void *right)
{
    const struct tensor *a = *(const struct tensor *const *)left;
    const struct tensor *b = *(const struct tensor *const *)right;
    return strcmp(a->name, b->name);
}

int tensor_table_build(struct tensor_table *table, struct tensor_file **files, u32 file_count,
                       const char *folder, struct arena *arena, struct error *error)
{
    size_t count = 0, next = 0;
    for (u32 i = 0; i < file_count; i++)
        count += tensor_file_count(files[i]);
    *table = (struct tensor_table){.count = count, .folder = folder, .arena = arena};
    table->tensors = arena_alloc(arena, (count + 1) * sizeof(struct tensor *));
    table->taken = arena_alloc(arena, count + 1);
    for (u32 i = 0; i < file_count; i++) {
        for (size_t j = 0; j < tensor_file_count(files[i]); j++)
            table->tensors[next++] = tensor_file_at(files[i], j);
    }
    qsort(table->tensors, count, sizeof(struct tensor *), compare_names);
    for (size_t i = 1; i < count; i++) {
        const struct tensor *a = table->tensors[i - 1], *b = table->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return error_set(error, ERROR_MODEL,
                             "tensor %s is both in %s and in %s: remove the file that does not "
                             "belong to this model",
                             a->name, a->file, b->file);
    }
    return 0;
}

static i64 tensor_table_index(const struct tensor_table *table, const char *name)
{
    struct tensor key = {.name = name};
    const struct tensor *pointer = &key;
    const struct tensor **found = bsearch(&pointer, table->tensors, table->count,
                                          sizeof(struct tensor *), compare_names);
    return found ? found - table->tensors : -1;
}

const struct tensor *tensor_table_find(const struct tensor_table *table, const char *name)
{
    i64 index = tensor_table_index(table, name);
    return index < 0 ? NULL : table->tensors[index];
}

const struct tensor *tensor_table_take(struct tensor_table *table, const char *name)
{
    i64 index = tensor_table_index(table, name);
    if (index < 0)
        return NULL;
    table->taken[index] = true;
    return table->tensors[index];
}

void tensor_shape_text(char text[160], u32 rank, const u64 *shape)
{
    size_t used = (size_t)snprintf(text, 160, "[");
    for (u32 i = 0; i < rank && used < 150; i++)
        used += (size_t)snprintf(text + used, 160 - used, "%s%" PRIu64, i ? ", " : "", shape[i]);
    snprintf(text + (used < 158 ? used : 158), 2, "]");
}

static int refuse_dtype(const struct tensor *tensor, u32 allowed, struct error *error)
{
    char names[120] = "";
    for (u32 i = 0; i < 32; i++) {
        if (allowed >> i & 1) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                     dtype_name((enum dtype)i));
        }
    }
    return error_set(error, ERROR_MODEL, "%s: tensor %s has dtype %s, expected %s", tensor->file,
                     tensor->name, dtype_name(tensor->dtype), names);
}

int tensor_table_require(struct tensor_table *table, const char *name, u32 allowed, u32 rank,
                         const u64 *shape, const struct tensor **result, struct error *error)
{
    const struct tensor *tensor = tensor_table_take(table, name);
    if (!tensor)
        return error_set(error, ERROR_MODEL,
                         "%s: tensor %s is missing from the %zu tensors of its *.safetensors files",
                         table->folder, name, table->count);
    if (!(allowed >> tensor->dtype & 1))
        return refuse_dtype(tensor, allowed, error);
    if (tensor->rank != rank || memcmp(tensor->shape, shape, rank * sizeof *shape) != 0) {
        char expected[160], found[160];
        tensor_shape_text(expected, rank, shape);
        tensor_shape_text(found, tensor->rank, tensor->shape);
        return error_set(error, ERROR_MODEL, "%s: tensor %s has shape %s, expected %s",
                         tensor->file, name, found, expected);
    }
    *result = tensor;
    return 0;
}

void tensor_table_count_taken(const struct tensor_table *table, u32 *count, u64 *bytes)
{
    for (size_t i = 0; i < table->count; i++) {
        *count += table->taken[i];
        *bytes += table->taken[i] ? table->tensors[i]->bytes : 0;
    }
}

int tensor_table_check_taken(const struct tensor_table *table, const char *what, u32 layers,
                             struct error *error)
{
    const struct tensor *unknown = NULL;
    u32 count = 0;
    for (size_t i = 0; i < table->count; i++) {
        unknown = unknown || table->taken[i] ? unknown : table->tensors[i];
        count += !table->taken[i];
    }
    if (!unknown)
        return 0;
    char more[48] = "";
    if (count > 1)
        snprintf(more, sizeof more, " and %u more tensors", count - 1);
    return error_set(error, ERROR_MODEL,
                     "%s: tensor %s%s would not be used: the %s of %u layers in config.json has no "
                     "place for it",
                     unknown->file, unknown->name, more, what, layers);
}
