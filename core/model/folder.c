/* folder.c - what opening any directory of weights has in common, target or draft: its tensor
 * files mapped, and its tensors taken by list.
 *
 * Every *.safetensors of the directory is opened. A set of shards must be complete, and whatever
 * an index names must be there: a broken download is told as one, not as a missing tensor.
 *
 * A list (struct wanted_tensor) says of each tensor where it goes and what shape it must have, so
 * that a model's layer reads as a table.
 *
 * Not here: which tensors a model has (qwen3_5.c, dflash.c), the merged table (table.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_private.h"

/* ---- files */

/* model-00002-of-00005.safetensors: every shard of such a set must be in the folder. */
static int check_shards(const char *folder, const char *name, struct error *error)
{
    unsigned index, total;
    int end = 0;
    if (sscanf(name, "model-%5u-of-%5u.safetensors%n", &index, &total, &end) != 2 || end == 0 ||
        name[end] != '\0')
        return 0;
    for (unsigned i = 1; i <= total; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/model-%05u-of-%05u.safetensors", folder, i, total);
        if (!file_exists(path))
            return error_set(error, ERROR_MODEL,
                             "%s is missing, but %s is there: the download is not complete", path,
                             name);
    }
    return 0;
}

/* Files that model.safetensors.index.json names must be there. */
static int check_index(const char *folder, struct arena *arena, struct error *error)
{
    const char *path = arena_format(arena, "%s/model.safetensors.index.json", folder);
    json_t *root = NULL, *file;
    const char *tensor, *last = "";
    int result = 0;
    if (!file_exists(path))
        return 0;
    if (model_json_read(&root, path, error) < 0)
        return -1;
    json_object_foreach (json_object_get(root, "weight_map"), tensor, file) {
        const char *name = json_string_value(file);
        char shard[4200];
        snprintf(shard, sizeof shard, "%s/%s", folder, name ? name : "");
        if (name && (strcmp(name, last) == 0 || file_exists(shard))) {
            last = name;
            continue;
        }
        result = error_set(error, ERROR_MODEL,
                           "%s: tensor %s lies in \"%s\", which is not there: the download is not "
                           "complete, or the index belongs to other files",
                           path, tensor, name ? name : reader_kind(file));
        break;
    }
    json_decref(root);
    return result;
}

int folder_open_files(const char *folder, struct arena *arena, struct tensor_file ***files,
                      u32 *file_count, struct error *error)
{
    char **names;
    size_t count;
    if (file_list(arena, folder, &names, &count, error) < 0 ||
        check_index(folder, arena, error) < 0) {
        error->code = ERROR_MODEL;
        return -1;
    }
    *files = arena_alloc(arena, (count + 1) * sizeof **files);
    for (size_t i = 0; i < count; i++) {
        if (!slice_ends(slice_of(names[i]), SLICE(".safetensors")))
            continue;
        if (check_shards(folder, names[i], error) < 0 ||
            tensor_file_open(&(*files)[*file_count], arena_format(arena, "%s/%s", folder, names[i]),
                             error) < 0)
            return -1;
        ++*file_count;
    }
    if (*file_count == 0)
        return error_set(error, ERROR_MODEL,
                         "%s has no *.safetensors file: expected a model directory with the "
                         "weights in it",
                         folder);
    return 0;
}

void folder_close_files(struct tensor_file **files, u32 count)
{
    for (u32 i = 0; i < count; i++)
        tensor_file_close(files[i]);
}

char *folder_name(struct arena *arena, const char *folder)
{
    char *real = realpath(folder, NULL);
    char *path = arena_text(arena, slice_of(real ? real : folder));
    free(real);
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = '\0';
    char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* ---- tensors by list */

static int take_vector(struct tensor_table *table, const char *name,
                       const struct wanted_tensor *wanted, struct error *error)
{
    u32 rank = wanted->shape[1] == 0 ? 1 : wanted->shape[2] == 0 ? 2 : 3;
    const struct tensor *tensor = NULL;
    if (tensor_table_require(table, name, DTYPES_FLOAT, rank, wanted->shape, &tensor, error) < 0)
        return -1;
    *wanted->vector = (struct model_vector){
        .dtype = tensor->dtype, .count = tensor->count, .data = tensor->data};
    return 0;
}

int folder_take(struct tensor_table *table, const char *prefix, const struct wanted_tensor *list,
                size_t count, struct error *error)
{
    for (const struct wanted_tensor *wanted = list; wanted < list + count; wanted++) {
        const char *name = arena_format(table->arena, "%s%s", prefix, wanted->name);
        u32 in = (u32)wanted->shape[0], out = (u32)wanted->shape[1];
        int failed = wanted->vector ? take_vector(table, name, wanted, error)
                     : wanted->plain
                         ? model_linear_read_plain(table, name, in, out, wanted->linear, error)
                         : model_linear_read(table, name, in, out, wanted->linear, error);
        if (failed < 0)
            return -1;
    }
    return 0;
}
