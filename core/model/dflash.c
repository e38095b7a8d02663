/* dflash.c - opens a draft model's directory and finds a DFlash or DFlash2 draft in it.
 *
 * The tensors (spec: dflash2.md 4), with or without "model." before their names:
 *
 *     fc, hidden_norm.weight                          or encoder.fc, encoder.output_norm_enc.weight
 *     norm.weight
 *     layers.I.input_layernorm.weight, .post_attention_layernorm.weight
 *     layers.I.self_attn.{q,k,v,o}_proj, .{q,k}_norm.weight
 *     layers.I.mlp.{gate,up,down}_proj
 *     layers.I.{attention,mlp}_conv.base_kernel, .kernel_projection             DFlash2
 *     candidate_selector.hidden_projection                                      DFlash2
 *     candidate_selector.{predecessor,successor}_codebook, or with .weight      DFlash2
 *
 * A draft has no embedding and no head: it uses the target's. Every tensor must be there in its
 * shape and none may be left over: a draft that a loader understood by half runs, and accepts a
 * quarter of what it should (dflash2.md 4.3). Linears are EXL3 or plain, each as its file has it.
 *
 * Not here: the configuration (dflash_config.c), calibration and reduced head (dflash_extras.c).
 */
#include <stdio.h>
#include <string.h>

#include "model/model_private.h"

/* What the readers of one draft share. */
struct opening {
    struct draft_model *draft;
    struct tensor_table table;
    struct error *error;
};

/* ---- names: the first variant that is in the files; the plain one for messages when none is */

/* A linear's name is that of its tensors without their suffix. */
enum named { VECTOR, LINEAR };

static const char *variant(const struct opening *opening, enum named named, const char *name,
                           const char *other)
{
    struct arena *arena = opening->draft->arena;
    const struct tensor_table *table = &opening->table;
    const char *const names[] = {name, arena_format(arena, "model.%s", name), other,
                                 arena_format(arena, "model.%s", other)};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (named == LINEAR ? model_linear_exists(table, names[i])
                            : tensor_table_find(table, names[i]) != NULL)
            return names[i];
    }
    return name;
}

static const char *layer_prefix(const struct opening *opening)
{
    static const char nested[] = "model.layers.";
    for (size_t i = 0; i < opening->table.count; i++) {
        if (strncmp(opening->table.tensors[i]->name, nested, strlen(nested)) == 0)
            return nested;
    }
    return nested + strlen("model.");
}

/* ---- tensors */

static int take(struct opening *opening, const char *prefix, const struct wanted_tensor *list,
                size_t count)
{
    return folder_take(&opening->table, prefix, list, count, opening->error);
}

static int read_layer(struct opening *opening, struct draft_layer *layer, const char *prefix)
{
    const struct draft_config *config = &opening->draft->config;
    u64 hidden = config->hidden, wide = config->intermediate, head = config->head_dim;
    u64 queries = config->q_heads * head, keys = config->kv_heads * head;
    const struct wanted_tensor wanted[] = {
        {"input_layernorm.weight", .vector = &layer->input_norm, .shape = {hidden}},
        {"post_attention_layernorm.weight", .vector = &layer->post_norm, .shape = {hidden}},
        {"self_attn.q_proj", .linear = &layer->q, .shape = {hidden, queries}},
        {"self_attn.k_proj", .linear = &layer->k, .shape = {hidden, keys}},
        {"self_attn.v_proj", .linear = &layer->v, .shape = {hidden, keys}},
        {"self_attn.o_proj", .linear = &layer->o, .shape = {queries, hidden}},
        {"self_attn.q_norm.weight", .vector = &layer->q_norm, .shape = {head}},
        {"self_attn.k_norm.weight", .vector = &layer->k_norm, .shape = {head}},
        {"mlp.gate_proj", .linear = &layer->gate, .shape = {hidden, wide}},
        {"mlp.up_proj", .linear = &layer->up, .shape = {hidden, wide}},
        {"mlp.down_proj", .linear = &layer->down, .shape = {wide, hidden}},
    };
    return take(opening, prefix, wanted, COUNT_OF(wanted));
}

static int read_convolutions(struct opening *opening, struct draft_layer *layer, const char *prefix)
{
    const struct draft_config *config = &opening->draft->config;
    if (config->conv_taps == 0)
        return 0;
    u64 hidden = config->hidden, taps = config->conv_taps;
    u64 coefficients = 2 * taps * (hidden / config->conv_group);
    const struct wanted_tensor wanted[] = {
        {"attention_conv.base_kernel", .vector = &layer->attention_conv,
         .shape = {2, taps, hidden}},
        {"attention_conv.kernel_projection", .linear = &layer->attention_projection,
         .shape = {hidden, coefficients}},
        {"mlp_conv.base_kernel", .vector = &layer->mlp_conv, .shape = {2, taps, hidden}},
        {"mlp_conv.kernel_projection", .linear = &layer->mlp_projection,
         .shape = {hidden, coefficients}},
    };
    return take(opening, prefix, wanted, COUNT_OF(wanted));
}

static int read_layers(struct opening *opening)
{
    struct draft_model *draft = opening->draft;
    const char *layers = layer_prefix(opening);
    draft->layers = arena_alloc(draft->arena, draft->config.layers * sizeof *draft->layers);
    for (u32 i = 0; i < draft->config.layers; i++) {
        const char *prefix = arena_format(draft->arena, "%s%u.", layers, i);
        if (read_layer(opening, &draft->layers[i], prefix) < 0 ||
            read_convolutions(opening, &draft->layers[i], prefix) < 0)
            return -1;
    }
    return 0;
}

/* fc's width comes from target_layer_ids, so its refusals name that key. */
static int read_fc(struct opening *opening)
{
    struct draft_model *draft = opening->draft;
    const struct draft_config *config = &draft->config;
    const struct wanted_tensor wanted = {
        variant(opening, LINEAR, "fc", "encoder.fc"), .linear = &draft->fc,
        .shape = {(u64)config->tap_count * config->hidden, config->hidden}};
    if (take(opening, "", &wanted, 1) < 0)
        return error_prefix(opening->error,
                            "target_layer_ids has %u layers of hidden_size %u, so fc reads %u: ",
                            config->tap_count, config->hidden, config->tap_count * config->hidden);
    return 0;
}

static int read_ends(struct opening *opening)
{
    struct draft_model *draft = opening->draft;
    u64 hidden = draft->config.hidden;
    const struct wanted_tensor wanted[] = {
        {variant(opening, VECTOR, "hidden_norm.weight", "encoder.output_norm_enc.weight"),
         .vector = &draft->hidden_norm, .shape = {hidden}},
        {variant(opening, VECTOR, "norm.weight", "norm.weight"), .vector = &draft->final_norm,
         .shape = {hidden}},
    };
    if (read_fc(opening) < 0)
        return -1;
    return take(opening, "", wanted, COUNT_OF(wanted));
}

static const char *codebook(const struct opening *opening, const char *which)
{
    struct arena *arena = opening->draft->arena;
    const char *name = arena_format(arena, "candidate_selector.%s_codebook", which);
    return variant(opening, VECTOR, name, arena_format(arena, "%s.weight", name));
}

static int refuse_quantised(const struct opening *opening, const char *codebook_name)
{
    struct arena *arena = opening->draft->arena;
    const char *codes = arena_format(arena, "%s.q", codebook_name);
    codes = variant(opening, VECTOR, codes, codes);
    if (!tensor_table_find(&opening->table, codes))
        return 0;
    return error_set(opening->error, ERROR_MODEL,
                     "%s: tensor %s: a quantised codebook (.q, .scales, .mins) is not supported: "
                     "convert the draft with its codebooks as they are",
                     opening->draft->folder, codes);
}

static int read_selector(struct opening *opening)
{
    struct draft_model *draft = opening->draft;
    const struct draft_config *config = &draft->config;
    u64 rank = config->selector_rank;
    if (rank == 0)
        return 0;
    static const char projection[] = "candidate_selector.hidden_projection";
    const struct wanted_tensor wanted[] = {
        {variant(opening, LINEAR, projection, projection), .linear = &draft->selector,
         .shape = {config->hidden, rank}},
        {codebook(opening, "predecessor"), .vector = &draft->predecessors,
         .shape = {config->vocab, rank}},
        {codebook(opening, "successor"), .vector = &draft->successors,
         .shape = {config->vocab, rank}},
    };
    if (refuse_quantised(opening, wanted[1].name) < 0 ||
        refuse_quantised(opening, wanted[2].name) < 0)
        return -1;
    return take(opening, "", wanted, COUNT_OF(wanted));
}

/* ---- opening and closing */

static int open_tensors(struct opening *opening)
{
    struct draft_model *draft = opening->draft;
    struct error *error = opening->error;
    if (folder_open_files(draft->folder, draft->arena, &draft->files, &draft->file_count, error) <
            0 ||
        tensor_table_build(&opening->table, draft->files, draft->file_count, draft->folder,
                           draft->arena, error) < 0 ||
        read_ends(opening) < 0 || read_layers(opening) < 0 || read_selector(opening) < 0)
        return -1;
    tensor_table_count_taken(&opening->table, &draft->tensor_count, &draft->tensor_bytes);
    return tensor_table_check_taken(&opening->table, draft->config.architecture,
                                    draft->config.layers, error);
}

static int open_draft(struct opening *opening, const struct model *target, i32 tap_shift)
{
    struct draft_model *draft = opening->draft;
    struct error *error = opening->error;
    if (!file_is_folder(draft->folder))
        return error_set(error, ERROR_MODEL,
                         "%s is not a folder: expected a draft model's directory with config.json "
                         "and *.safetensors",
                         draft->folder);
    if (draft_config_read(&draft->config, draft->folder, target, tap_shift, draft->arena, error) <
        0)
        return -1;
    if (open_tensors(opening) < 0)
        return -1;
    return draft_extras_read(draft, target, error);
}

int draft_open(struct draft_model **result, const char *folder, const struct model *target,
               i32 tap_shift, struct error *error)
{
    struct draft_model *draft = memory_alloc(sizeof *draft);
    draft->arena = arena_create();
    draft->folder = arena_text(draft->arena, slice_of(folder));
    draft->name = folder_name(draft->arena, folder);
    struct opening opening = {.draft = draft, .error = error};
    if (open_draft(&opening, target, tap_shift) < 0) {
        draft_close(draft);
        return model_error_printable(error);
    }
    *result = draft;
    return 0;
}

void draft_close(struct draft_model *draft)
{
    if (!draft)
        return;
    folder_close_files(draft->files, draft->file_count);
    arena_destroy(draft->arena);
    memory_free(draft);
}
