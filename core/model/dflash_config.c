/* dflash_config.c - config.json of a DFlash or DFlash2 draft (spec: dflash2.md 2).
 *
 * The root holds the numbers of a small Qwen3 transformer, dflash_config those of the
 * draft. What must agree with the target is compared here, with both values in the
 * sentence: a draft for another model loads well and is never right.
 *
 * DFlash (version 1) has neither convolutions nor a selector; its keys for them are not
 * looked at, its rows take the best 16 candidates as they are.
 *
 * Never guessed: target_layer_ids. A formula gives as many layers as the checkpoint has,
 * so that the weights fit and only the acceptance is gone (dflash2.md 3.1).
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "model/model_private.h"

#define HEAD_DIM 128
#define ROWS 8          /* of a decode pass: longer blocks are cut */
#define CONV_TAPS 2     /* of the convolution kernel */
#define CANDIDATES 16   /* of a lattice row */
#define RANK_MOST 512   /* of the selector */
#define RANK_STEP 8     /* its rows are read in pieces of so many */
#define BLOCK_MOST 4096 /* beyond it a file is not what it says */

static const char *const architectures[] = {"DFlash2DraftModel", "DFlashDraftModel"};

/* What the readers of one file share. */
struct reading {
    struct json_reader *root, *nested; /* nested: dflash_config */
    struct draft_config *config;
    const struct model_config *target;
    u32 block; /* as the file has it */
};

static void check_fixed(struct json_reader *root)
{
    const char *activation = reader_text_or(root, "hidden_act", "silu");
    if (strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0)
        reader_refuse(root, "hidden_act", "is \"%s\", supported: \"silu\", \"swish\"", activation);
    static const char *const biases[] = {"attention_bias", "mlp_bias"};
    for (size_t i = 0; i < COUNT_OF(biases); i++) {
        if (reader_bool_or(root, biases[i], false))
            reader_refuse(root, biases[i], "is true, only false is supported");
    }
}

/* A size that draft and target share. */
static void check_same(struct json_reader *root, const char *key, u32 found, u32 target)
{
    if (found != target)
        reader_refuse(root, key,
                      "is %u, but the target's is %u: the draft belongs to another model", found,
                      target);
}

static void read_sizes(struct reading *reading)
{
    struct json_reader *root = reading->root;
    struct draft_config *config = reading->config;
    const struct model_config *target = reading->target;
    config->hidden = reader_u32(root, "hidden_size", 1, UINT32_MAX);
    check_same(root, "hidden_size", config->hidden, target->hidden); /* so it is a whole width */
    config->vocab = reader_u32(root, "vocab_size", 1, UINT32_MAX);
    check_same(root, "vocab_size", config->vocab, target->vocab);
    u32 layers = reader_u32_or(root, "num_target_layers", target->layers, 0, UINT32_MAX);
    if (layers != target->layers)
        reader_refuse(root, "num_target_layers",
                      "is %u, but the target has %u layers: the draft belongs to another model",
                      layers, target->layers);
    config->intermediate = config_width(root, "intermediate_size");
    config->layers = reader_u32(root, "num_hidden_layers", 1, DRAFT_LAYERS_MAX);
    config->head_dim = reader_u32_or(root, "head_dim", HEAD_DIM, HEAD_DIM, HEAD_DIM);
    config_heads(root, HEAD_DIM, &config->q_heads, &config->kv_heads);
    config->norm_eps = config_norm_eps(root);
    config->rope_theta = config_rope(root, HEAD_DIM, HEAD_DIM);
}

/* ---- attention: windows and causality */

/* Whether a layer slides; without layer_types use_sliding_window says it for all. */
static bool layer_slides(struct json_reader *root, const json_t *types, u32 index)
{
    if (!types)
        return reader_bool_or(root, "use_sliding_window", false);
    const json_t *entry = json_array_get(types, index);
    const char *type = json_string_value(entry);
    if (type && strcmp(type, "sliding_attention") == 0)
        return true;
    if (!type || strcmp(type, "full_attention") != 0)
        reader_refuse(root, "layer_types",
                      "has \"%s\" for layer %u, supported: \"sliding_attention\", "
                      "\"full_attention\"",
                      type ? type : reader_kind(entry), index);
    return false;
}

/* Fills the windows; returns how many layers slide. */
static u32 read_windows(struct reading *reading)
{
    struct json_reader *root = reading->root;
    struct draft_config *config = reading->config;
    const json_t *types = reader_get(root, "layer_types");
    u32 sliding = 0;
    if (types && json_array_size(types) != config->layers) {
        reader_refuse_list(root, "layer_types", "num_hidden_layers = %u", config->layers);
        return 0;
    }
    for (u32 i = 0; i < config->layers; i++) {
        if (!layer_slides(root, types, i))
            continue;
        config->windows[i] = reader_u32(root, "sliding_window", 1, POSITIONS_MOST);
        sliding++;
    }
    return sliding;
}

/* is_causal, else dflash_config.causal. Where neither is there: DFlash2 looks both ways; of DFlash
 * the sliding layers are causal and full ones are not (dflash2.md 3.4), and one block cannot be
 * both. */
static void read_causality(struct reading *reading, u32 sliding)
{
    struct json_reader *root = reading->root;
    struct draft_config *config = reading->config;
    bool version_2 = strcmp(config->architecture, architectures[0]) == 0;
    bool is_said = reader_get(root, "is_causal") || reader_get(reading->nested, "causal");
    if (!is_said && !version_2 && sliding != 0 && sliding != config->layers)
        reader_refuse(root, "is_causal",
                      "is missing, and layer_types has %u sliding and %u full layers, which would "
                      "differ: expected true or false",
                      sliding, config->layers - sliding);
    bool absent = !version_2 && sliding != 0;
    config->causal = reader_bool_or(root, "is_causal",
                                    reader_bool_or(reading->nested, "causal", absent));
}

/* ---- the block and its taps */

/* block_size stands in dflash_config or, in version 1, in the root. */
static void read_block(struct reading *reading)
{
    struct json_reader *root = reading->root, *nested = reading->nested;
    bool in_root = reader_get(root, "block_size"), in_nested = reader_get(nested, "block_size");
    struct json_reader *reader = in_root && !in_nested ? root : nested;
    u32 block = reader_u32(reader, "block_size", 2, BLOCK_MOST);
    if (in_root && in_nested && reader_u32(root, "block_size", 2, BLOCK_MOST) != block)
        reader_refuse(nested, "block_size", "is %u, but block_size of the root is %u", block,
                      reader_u32(root, "block_size", 2, BLOCK_MOST));
    reading->block = block;
    reading->config->block = block < ROWS ? block : ROWS;
    reading->config->mask_token = reader_u32(nested, "mask_token_id", 0, UINT32_MAX);
    if (reading->config->mask_token >= reading->config->vocab)
        reader_refuse(nested, "mask_token_id", "is %u, which is not below vocab_size, %u",
                      reading->config->mask_token, reading->config->vocab);
    if (reader_bool_or(nested, "sample_from_anchor",
                       reader_bool_or(root, "sample_from_anchor", false)))
        reader_refuse(nested, "sample_from_anchor",
                      "is true, only false is supported: the anchor's row predicts nothing");
}

static u32 read_tap(struct reading *reading, const json_t *value, u32 index, i32 shift)
{
    static const char key[] = "target_layer_ids";
    struct json_reader *nested = reading->nested;
    u32 layers = reading->target->layers;
    if (!json_is_integer(value)) {
        reader_refuse(nested, key, "has %s at place %u, expected an integer", reader_kind(value),
                      index);
        return 0;
    }
    json_int_t id = json_integer_value(value), least = -(json_int_t)shift;
    if (id < least || id >= least + layers) {
        reader_refuse(nested, key,
                      "has %" JSON_INTEGER_FORMAT " at place %u, but the target's layers are 0 to "
                      "%u and the tap shift is %d",
                      id, index, layers - 1, shift);
        return 0;
    }
    return (u32)(id - least);
}

static void read_taps(struct reading *reading, i32 shift)
{
    static const char key[] = "target_layer_ids";
    struct draft_config *config = reading->config;
    const json_t *list = reader_get(reading->nested, key);
    size_t count = json_array_size(list);
    if (!list)
        reader_refuse(reading->nested, key,
                      "is missing: expected the target layers that the draft was trained on, which "
                      "no formula gives");
    else if (count == 0 || count > DRAFT_TAPS_MAX)
        reader_refuse_list(reading->nested, key, "1 to %d target layers", DRAFT_TAPS_MAX);
    if (reading->nested->failed)
        return;
    for (u32 i = 0; i < count; i++) {
        u32 tap = read_tap(reading, json_array_get(list, i), i, shift);
        for (u32 j = 0; j < i; j++) {
            if (config->taps[j] == tap)
                reader_refuse(reading->nested, key, "has layer %u at places %u and %u", tap, j, i);
        }
        config->taps[config->tap_count++] = tap;
    }
    if ((u64)config->tap_count * config->hidden > WIDTH_MOST)
        reader_refuse(reading->nested, key,
                      "has %u layers of hidden_size %u, together more than the %d that a linear "
                      "may read",
                      config->tap_count, config->hidden, WIDTH_MOST);
}

/* ---- what DFlash2 adds */

static void read_convolution(struct reading *reading)
{
    struct json_reader *nested = reading->nested;
    struct draft_config *config = reading->config;
    config->conv_taps = reader_u32(nested, "conv_kernel_size", 0, UINT32_MAX);
    if (config->conv_taps < 1 || config->conv_taps > reading->block)
        reader_refuse(nested, "conv_kernel_size", "is %u, expected 1 to block_size, which is %u",
                      config->conv_taps, reading->block);
    if (config->conv_taps != CONV_TAPS)
        reader_refuse(nested, "conv_kernel_size", "is %u, only %u is supported", config->conv_taps,
                      CONV_TAPS);
    config->conv_group = reader_u32(nested, "conv_group_size", 1, UINT32_MAX);
    if (config->hidden % config->conv_group != 0)
        reader_refuse(nested, "conv_group_size", "is %u, which does not divide hidden_size, %u",
                      config->conv_group, config->hidden);
}

static void read_selector(struct reading *reading)
{
    struct json_reader *nested = reading->nested;
    struct draft_config *config = reading->config;
    u32 most = config->vocab < CANDIDATES ? config->vocab : CANDIDATES;
    config->top_k = reader_u32(nested, "selector_top_k", 1, most);
    config->selector_rank = reader_u32(nested, "selector_rank", RANK_STEP, RANK_MOST);
    if (config->selector_rank % RANK_STEP != 0)
        reader_refuse(nested, "selector_rank", "is %u, expected a multiple of %u",
                      config->selector_rank, RANK_STEP);
}

static double read_scale(struct json_reader *nested, const char *key)
{
    double scale = reader_number_or(nested, key, 1);
    if (!(scale > 0 && isfinite(scale)))
        reader_refuse(nested, key, "is %g, expected a number above 0", scale);
    return scale;
}

static void read_scales(struct reading *reading)
{
    struct json_reader *nested = reading->nested;
    struct draft_config *config = reading->config;
    config->embedding_scale = read_scale(nested, "input_embedding_scale");
    config->output_multiplier = read_scale(nested, "output_multiplier");
    config->softcap = reader_number_or(nested, "final_logit_softcapping", 0);
    if (!(config->softcap >= 0 && isfinite(config->softcap)))
        reader_refuse(nested, "final_logit_softcapping", "is %g, expected 0 (off) or more",
                      config->softcap);
}

/* ---- the whole */

static void read_root(struct reading *reading)
{
    struct json_reader *root = reading->root;
    config_architecture(root, architectures, reading->config->architecture);
    config_quantization(root);
    check_fixed(root);
    read_sizes(reading);
}

/* The first refusal stands, whichever of the two objects it is about. */
static void share_failure(struct reading *reading)
{
    reading->root->failed |= reading->nested->failed;
    reading->nested->failed = reading->root->failed;
}

static void read_draft(struct reading *reading, i32 tap_shift)
{
    struct draft_config *config = reading->config;
    u32 sliding = read_windows(reading);
    share_failure(reading);
    read_causality(reading, sliding);
    share_failure(reading);
    read_block(reading);
    share_failure(reading);
    read_taps(reading, tap_shift);
    read_scales(reading);
    config->top_k = CANDIDATES;
    if (strcmp(config->architecture, architectures[0]) != 0)
        return;
    read_convolution(reading);
    read_selector(reading);
}

int draft_config_read(struct draft_config *config, const char *folder, const struct model *target,
                      i32 tap_shift, struct arena *arena, struct error *error)
{
    const char *path = arena_format(arena, "%s/config.json", folder);
    json_t *json = NULL;
    if (!file_exists(path))
        return error_set(error, ERROR_MODEL,
                         "%s has no config.json: expected a draft model's directory with "
                         "config.json and *.safetensors",
                         folder);
    if (model_json_read(&json, path, error) < 0)
        return -1;
    struct json_reader root = {.object = json, .path = path, .group = "", .error = error};
    struct json_reader nested = root;
    nested.object = reader_get(&root, "dflash_config");
    nested.group = "dflash_config.";
    struct reading reading = {
        .root = &root, .nested = &nested, .config = config, .target = &target->config};
    read_root(&reading);
    if (!root.failed && !json_is_object(nested.object))
        reader_refuse(&root, "dflash_config", "is %s, expected an object",
                      reader_kind(nested.object));
    if (!root.failed)
        read_draft(&reading, tap_shift);
    if (!root.failed && !nested.failed && reading.block > ROWS)
        log_info("%s: block_size %u is cut to the %d rows of a pass", path, reading.block, ROWS);
    json_decref(json);
    return root.failed || nested.failed ? -1 : 0;
}
