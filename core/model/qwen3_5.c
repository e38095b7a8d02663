/* qwen3_5.c - opens a model directory and finds the qwen3_5 text model in it.
 *
 * The tensors (spec: qwen3_5.md 2), under the prefix "model.language_model." or, in text-only
 * exports, "model.":
 *
 *     embed_tokens.weight, norm.weight
 *     layers.I.input_layernorm.weight, .post_attention_layernorm.weight
 *     layers.I.mlp.{gate,up,down}_proj
 *     layers.I.self_attn.{q,k,v,o}_proj, .{q,k}_norm.weight           attention layers
 *     layers.I.linear_attn.in_proj_{qkv,z,a,b}, .out_proj,            Gated DeltaNet layers
 *              .conv1d.weight, .A_log, .dt_bias, .norm.weight
 *     lm_head (no prefix; absent in tied models that keep no copy)
 *
 * Every one must be there in its shape. What else lies in the files must be vision
 * (model.visual.) or multi-token prediction (mtp.), which one line of information
 * names; anything else is an error. A model that opens is complete.
 *
 * Not here: what the tensors mean (the kernels), tokenizer and template (text/).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_private.h"

/* What the readers of one model share. */
struct opening {
    struct model *model;
    struct tensor_table table;
    const char *prefix;
    bool *attention; /* [layers], from the configuration */
    bool has_vision;
    struct error *error;
};

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

static int open_file(struct model *model, const char *name, struct error *error)
{
    const char *path = arena_format(model->arena, "%s/%s", model->folder, name);
    if (check_shards(model->folder, name, error) < 0 ||
        tensor_file_open(&model->files[model->file_count], path, error) < 0)
        return -1;
    model->file_count++;
    return 0;
}

static int open_files(struct model *model, struct error *error)
{
    char **names;
    size_t count;
    if (file_list(model->arena, model->folder, &names, &count, error) < 0 ||
        check_index(model->folder, model->arena, error) < 0) {
        error->code = ERROR_MODEL;
        return -1;
    }
    model->files = arena_alloc(model->arena, (count + 1) * sizeof(struct tensor_file *));
    for (size_t i = 0; i < count; i++) {
        if (slice_ends(slice_of(names[i]), SLICE(".safetensors")) &&
            open_file(model, names[i], error) < 0)
            return -1;
    }
    if (model->file_count == 0)
        return error_set(error, ERROR_MODEL,
                         "%s has no *.safetensors file: expected a model directory with the "
                         "weights in it",
                         model->folder);
    return 0;
}

/* ---- tensors; all names below the prefix */

static const char *full_name(struct opening *opening, const char *name)
{
    return arena_format(opening->model->arena, "%s%s", opening->prefix, name);
}

static const char *layer_name(struct opening *opening, u32 layer, const char *name)
{
    return arena_format(opening->model->arena, "%slayers.%u.%s", opening->prefix, layer, name);
}

static int read_vector(struct opening *opening, const char *name, u32 rank, const u64 *shape,
                       struct model_vector *vector)
{
    const struct tensor *tensor = NULL;
    if (tensor_table_require(&opening->table, name, DTYPES_FLOAT, rank, shape, &tensor,
                             opening->error) < 0)
        return -1;
    *vector = (struct model_vector){
        .dtype = tensor->dtype, .count = tensor->count, .data = tensor->data};
    return 0;
}

/* A row of a layer's table: a vector or a linear, where it goes, and its sizes. */
struct wanted {
    const char *name;
    struct model_vector *vector;
    struct model_linear *linear;
    u64 shape[3]; /* vector: up to three extents, 0 ends; linear: in, out */
    bool plain;
};

static int read_wanted(struct opening *opening, u32 layer, const struct wanted *wanted,
                       size_t count)
{
    for (size_t i = 0; i < count; i++, wanted++) {
        const char *name = layer_name(opening, layer, wanted->name);
        u32 rank = wanted->shape[1] == 0 ? 1 : wanted->shape[2] == 0 ? 2 : 3;
        u32 in = (u32)wanted->shape[0], out = (u32)wanted->shape[1];
        int failed = wanted->vector
                         ? read_vector(opening, name, rank, wanted->shape, wanted->vector)
                     : wanted->plain ? model_linear_read_plain(&opening->table, name, in, out,
                                                               wanted->linear, opening->error)
                                     : model_linear_read(&opening->table, name, in, out,
                                                         wanted->linear, opening->error);
        if (failed < 0)
            return -1;
    }
    return 0;
}

static int read_common(struct opening *opening, u32 index)
{
    struct model_layer *layer = &opening->model->layers[index];
    const struct model_config *config = &opening->model->config;
    u64 hidden = config->hidden, wide = config->intermediate;
    const struct wanted wanted[] = {
        {"input_layernorm.weight", .vector = &layer->input_norm, .shape = {hidden}},
        {"post_attention_layernorm.weight", .vector = &layer->post_norm, .shape = {hidden}},
        {"mlp.gate_proj", .linear = &layer->gate, .shape = {hidden, wide}},
        {"mlp.up_proj", .linear = &layer->up, .shape = {hidden, wide}},
        {"mlp.down_proj", .linear = &layer->down, .shape = {wide, hidden}},
    };
    return read_wanted(opening, index, wanted, COUNT_OF(wanted));
}

static int read_attention(struct opening *opening, u32 index)
{
    struct model_layer *layer = &opening->model->layers[index];
    const struct model_config *config = &opening->model->config;
    u64 hidden = config->hidden, head = config->head_dim;
    u64 queries = config->q_heads * head, keys = config->kv_heads * head;
    const struct wanted wanted[] = {
        {"self_attn.q_proj", .linear = &layer->q, .shape = {hidden, 2 * queries}},
        {"self_attn.k_proj", .linear = &layer->k, .shape = {hidden, keys}},
        {"self_attn.v_proj", .linear = &layer->v, .shape = {hidden, keys}},
        {"self_attn.o_proj", .linear = &layer->o, .shape = {queries, hidden}},
        {"self_attn.q_norm.weight", .vector = &layer->q_norm, .shape = {head}},
        {"self_attn.k_norm.weight", .vector = &layer->k_norm, .shape = {head}},
    };
    return read_wanted(opening, index, wanted, COUNT_OF(wanted));
}

static int read_gdn(struct opening *opening, u32 index)
{
    struct model_layer *layer = &opening->model->layers[index];
    const struct model_config *config = &opening->model->config;
    u64 hidden = config->hidden, heads = config->gdn_v_heads, taps = config->conv_taps;
    u64 values = heads * config->gdn_v_dim;
    u64 channels = 2 * (u64)config->gdn_k_heads * config->gdn_k_dim + values;
    const struct wanted wanted[] = {
        {"linear_attn.in_proj_qkv", .linear = &layer->in_qkv, .shape = {hidden, channels}},
        {"linear_attn.in_proj_z", .linear = &layer->in_z, .shape = {hidden, values}},
        {"linear_attn.in_proj_a", .linear = &layer->in_a, .shape = {hidden, heads}, .plain = true},
        {"linear_attn.in_proj_b", .linear = &layer->in_b, .shape = {hidden, heads}, .plain = true},
        {"linear_attn.out_proj", .linear = &layer->out, .shape = {values, hidden}},
        {"linear_attn.conv1d.weight", .vector = &layer->conv, .shape = {channels, 1, taps}},
        {"linear_attn.A_log", .vector = &layer->a_log, .shape = {heads}},
        {"linear_attn.dt_bias", .vector = &layer->dt_bias, .shape = {heads}},
        {"linear_attn.norm.weight", .vector = &layer->gdn_norm, .shape = {config->gdn_v_dim}},
    };
    return read_wanted(opening, index, wanted, COUNT_OF(wanted));
}

static int read_layers(struct opening *opening)
{
    struct model *model = opening->model;
    u32 count = model->config.layers;
    model->layers = arena_alloc(model->arena, count * sizeof *model->layers);
    for (u32 i = 0; i < count; i++) {
        model->layers[i].attention = opening->attention[i];
        if (read_common(opening, i) < 0)
            return -1;
        if ((opening->attention[i] ? read_attention(opening, i) : read_gdn(opening, i)) < 0)
            return -1;
    }
    return 0;
}

/* The head of a tied model without a copy of its own is the embedding itself. */
static int read_head(struct opening *opening)
{
    struct model *model = opening->model;
    const struct model_config *config = &model->config;
    if (!config->tie_embeddings || model_linear_exists(&opening->table, "lm_head"))
        return model_linear_read(&opening->table, "lm_head", config->hidden, config->vocab,
                                 &model->head, opening->error);
    model->head = (struct model_linear){.kind = LINEAR_PLAIN,
                                        .name = "embed_tokens",
                                        .in = config->hidden,
                                        .out = config->vocab,
                                        .in_padded = config->hidden,
                                        .out_padded = config->vocab,
                                        .weight_dtype = model->embedding.dtype,
                                        .weight = model->embedding.data};
    return 0;
}

static int read_ends(struct opening *opening)
{
    struct model *model = opening->model;
    u64 embedding[2] = {model->config.vocab, model->config.hidden};
    u64 norm[1] = {model->config.hidden};
    if (read_vector(opening, full_name(opening, "embed_tokens.weight"), 2, embedding,
                    &model->embedding) < 0 ||
        read_vector(opening, full_name(opening, "norm.weight"), 1, norm, &model->final_norm) < 0)
        return -1;
    return read_head(opening);
}

/* ---- what is left over */

static bool starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Counts the ignored parts and the text model; names the first tensor that nobody took. */
static int check_unused(struct opening *opening)
{
    struct model *model = opening->model;
    const struct tensor_table *table = &opening->table;
    const struct tensor *unknown = NULL;
    u32 unknown_count = 0;
    for (size_t i = 0; i < table->count; i++) {
        const struct tensor *tensor = table->tensors[i];
        if (table->taken[i]) {
            model->tensor_bytes += tensor->bytes;
            model->tensor_count++;
        } else if (starts(tensor->name, "model.visual.") || starts(tensor->name, "visual.")) {
            model->ignored_visual++;
        } else if (starts(tensor->name, "mtp.")) {
            model->ignored_mtp++;
        } else {
            unknown = unknown ? unknown : tensor;
            unknown_count++;
        }
    }
    if (!unknown)
        return 0;
    char more[48] = "";
    if (unknown_count > 1)
        snprintf(more, sizeof more, " and %u more tensors", unknown_count - 1);
    return error_set(opening->error, ERROR_MODEL,
                     "%s: tensor %s%s would not be used: the text model of %u layers in "
                     "config.json has no place for it",
                     unknown->file, unknown->name, more, model->config.layers);
}

static void tell_ignored(const struct opening *opening)
{
    const struct model *model = opening->model;
    if (model->ignored_visual == 0 && model->ignored_mtp == 0 && !opening->has_vision)
        return;
    log_info("%s: only the text model is used; %u vision tensors, %u mtp tensors%s are ignored",
             model->name, model->ignored_visual, model->ignored_mtp,
             opening->has_vision ? " and vision_config" : "");
}

/* ---- opening and closing */

/* The last part of a path, whatever slashes end it; of "." the folder's real name. */
static char *folder_name(struct arena *arena, const char *folder)
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

static const char *find_prefix(const struct tensor_table *table)
{
    static const char nested[] = "model.language_model.";
    for (size_t i = 0; i < table->count; i++) {
        if (starts(table->tensors[i]->name, nested))
            return nested;
    }
    return "model.";
}

static int open_model(struct opening *opening, struct error *error)
{
    struct model *model = opening->model;
    if (!file_is_folder(model->folder))
        return error_set(error, ERROR_MODEL,
                         "%s is not a folder: expected a model directory with config.json, "
                         "*.safetensors and tokenizer.json",
                         model->folder);
    if (model_config_read(&model->config, &opening->attention, &opening->has_vision, model->folder,
                          model->arena, error) < 0 ||
        open_files(model, error) < 0 ||
        tensor_table_build(&opening->table, model->files, model->file_count, model->folder,
                           model->arena, error) < 0)
        return -1;
    opening->prefix = find_prefix(&opening->table);
    if (read_ends(opening) < 0 || read_layers(opening) < 0 || check_unused(opening) < 0)
        return -1;
    tell_ignored(opening);
    return 0;
}

int model_open(struct model **result, const char *folder, struct error *error)
{
    struct model *model = memory_alloc(sizeof *model);
    model->arena = arena_create();
    model->folder = arena_text(model->arena, slice_of(folder));
    model->name = folder_name(model->arena, folder);
    struct opening opening = {.model = model, .error = error};
    if (open_model(&opening, error) < 0) {
        model_close(model);
        return model_error_printable(error);
    }
    *result = model;
    return 0;
}

void model_close(struct model *model)
{
    if (!model)
        return;
    for (u32 i = 0; i < model->file_count; i++)
        tensor_file_close(model->files[i]);
    arena_destroy(model->arena);
    memory_free(model);
}
