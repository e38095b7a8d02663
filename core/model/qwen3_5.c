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

/* ---- tensors; all names of lists below the prefix */

static int read_list(struct opening *opening, u32 layer, const struct wanted_tensor *list,
                     size_t count)
{
    const char *prefix = arena_format(opening->model->arena, "%slayers.%u.", opening->prefix,
                                      layer);
    return folder_take(&opening->table, prefix, list, count, opening->error);
}

static int read_common(struct opening *opening, u32 index)
{
    struct model_layer *layer = &opening->model->layers[index];
    const struct model_config *config = &opening->model->config;
    u64 hidden = config->hidden, wide = config->intermediate;
    const struct wanted_tensor wanted[] = {
        {"input_layernorm.weight", .vector = &layer->input_norm, .shape = {hidden}},
        {"post_attention_layernorm.weight", .vector = &layer->post_norm, .shape = {hidden}},
        {"mlp.gate_proj", .linear = &layer->gate, .shape = {hidden, wide}},
        {"mlp.up_proj", .linear = &layer->up, .shape = {hidden, wide}},
        {"mlp.down_proj", .linear = &layer->down, .shape = {wide, hidden}},
    };
    return read_list(opening, index, wanted, COUNT_OF(wanted));
}

static int read_attention(struct opening *opening, u32 index)
{
    struct model_layer *layer = &opening->model->layers[index];
    const struct model_config *config = &opening->model->config;
    u64 hidden = config->hidden, head = config->head_dim;
    u64 queries = config->q_heads * head, keys = config->kv_heads * head;
    const struct wanted_tensor wanted[] = {
        {"self_attn.q_proj", .linear = &layer->q, .shape = {hidden, 2 * queries}},
        {"self_attn.k_proj", .linear = &layer->k, .shape = {hidden, keys}},
        {"self_attn.v_proj", .linear = &layer->v, .shape = {hidden, keys}},
        {"self_attn.o_proj", .linear = &layer->o, .shape = {queries, hidden}},
        {"self_attn.q_norm.weight", .vector = &layer->q_norm, .shape = {head}},
        {"self_attn.k_norm.weight", .vector = &layer->k_norm, .shape = {head}},
    };
    return read_list(opening, index, wanted, COUNT_OF(wanted));
}

static int read_gdn(struct opening *opening, u32 index)
{
    struct model_layer *layer = &opening->model->layers[index];
    const struct model_config *config = &opening->model->config;
    u64 hidden = config->hidden, heads = config->gdn_v_heads, taps = config->conv_taps;
    u64 values = heads * config->gdn_v_dim;
    u64 channels = 2 * (u64)config->gdn_k_heads * config->gdn_k_dim + values;
    const struct wanted_tensor wanted[] = {
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
    return read_list(opening, index, wanted, COUNT_OF(wanted));
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
    u64 hidden = model->config.hidden;
    const struct wanted_tensor wanted[] = {
        {"embed_tokens.weight", .vector = &model->embedding,
         .shape = {model->config.vocab, hidden}},
        {"norm.weight", .vector = &model->final_norm, .shape = {hidden}},
    };
    if (folder_take(&opening->table, opening->prefix, wanted, COUNT_OF(wanted), opening->error) < 0)
        return -1;
    return read_head(opening);
}

/* ---- what is left over */

static bool starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Marks what is not the text model's but may lie beside it, and counts it. */
static void ignore_parts(struct opening *opening)
{
    struct model *model = opening->model;
    struct tensor_table *table = &opening->table;
    for (size_t i = 0; i < table->count; i++) {
        const char *name = table->tensors[i]->name;
        bool visual = starts(name, "model.visual.") || starts(name, "visual.");
        bool mtp = starts(name, "mtp.");
        if (table->taken[i] || (!visual && !mtp))
            continue;
        table->taken[i] = true;
        model->ignored_visual += visual;
        model->ignored_mtp += mtp;
    }
}

static int check_unused(struct opening *opening)
{
    struct model *model = opening->model;
    tensor_table_count_taken(&opening->table, &model->tensor_count, &model->tensor_bytes);
    ignore_parts(opening);
    return tensor_table_check_taken(&opening->table, "text model", model->config.layers,
                                    opening->error);
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
        folder_open_files(model->folder, model->arena, &model->files, &model->file_count, error) <
            0 ||
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
    folder_close_files(model->files, model->file_count);
    arena_destroy(model->arena);
    memory_free(model);
}
