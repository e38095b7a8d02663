/* config.c - config.json and generation_config.json of a Qwen3.5-family model.
 *
 * Two forms of config.json (spec: qwen3_5.md 1): flat, and with the text model's keys
 * under text_config beside a vision_config. Read are the keys that shape the text
 * model; refused, with what is supported, is every value that would change its
 * answers in a way that the engine does not compute; all other keys (dropout,
 * initialisers, vision, library versions) cannot change them and are ignored.
 *
 * The limits of the kernels stand here as numbers with names, so that a model that
 * opens is one that runs.
 *
 * End tokens: generation_config.json's list decides. Where it has none, config.json's
 * ids are taken, and those of <|endoftext|> and <|im_end|> in the tokenizer's files:
 * config.json alone names only the first, and chat turns end with the second.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_private.h"

#define HEAD_DIM 256   /* attention kernels: one head of q, k, v */
#define ROTARY_DIMS 64 /* of HEAD_DIM: 32 frequencies */
#define GDN_DIM 128    /* keys and values of the recurrence */
#define CONV_TAPS 4
#define LAYERS_MOST 512
#define VOCAB_MOST (1u << 20) /* the sampler's fixed-point sums hold 2^24 */

static const char *const architectures[] = {"Qwen3_5ForConditionalGeneration",
                                            "Qwen3_5ForCausalLM"};

/* ---- values that must be as the engine computes them */

/* Texts with the values that are supported; absent is fine. */
static const struct {
    const char *key, *first, *second;
} fixed_texts[] = {
    {"hidden_act", "silu", "swish"},
    {"output_gate_type", "swish", "silu"},
    {"mamba_ssm_dtype", "float32", NULL},
};
static const struct {
    const char *key;
    bool value;
} fixed_flags[] = {
    {"attention_bias", false},
    {"attn_output_gate", true},
    {"mlp_bias", false},
    {"use_sliding_window", false},
};

static void check_fixed(struct json_reader *text)
{
    for (size_t i = 0; i < COUNT_OF(fixed_texts); i++) {
        const char *first = fixed_texts[i].first, *second = fixed_texts[i].second;
        const char *found = reader_text_or(text, fixed_texts[i].key, first);
        if (strcmp(found, first) != 0 && (!second || strcmp(found, second) != 0))
            reader_refuse(text, fixed_texts[i].key, "is \"%s\", supported: \"%s\"%s%s%s", found,
                          first, second ? ", \"" : "", second ? second : "", second ? "\"" : "");
    }
    for (size_t i = 0; i < COUNT_OF(fixed_flags); i++) {
        bool wanted = fixed_flags[i].value;
        if (reader_bool_or(text, fixed_flags[i].key, wanted) != wanted)
            reader_refuse(text, fixed_flags[i].key, "is %s, only %s is supported",
                          wanted ? "false" : "true", wanted ? "true" : "false");
    }
    if (reader_u32_or(text, "num_experts", 0, 0, UINT32_MAX) != 0)
        reader_refuse(text, "num_experts", "is not 0: only dense models are supported");
}

void config_architecture(struct json_reader *root, const char *const names[2], char text[64])
{
    const json_t *list = reader_get(root, "architectures");
    const char *found = json_string_value(json_array_get(list, 0));
    if (json_array_size(list) != 1 || !found)
        reader_refuse(root, "architectures", "must be a list of one string, found %s",
                      json_is_array(list) ? "another list" : reader_kind(list));
    else if (strcmp(found, names[0]) == 0 || strcmp(found, names[1]) == 0)
        snprintf(text, 64, "%s", found);
    else
        reader_refuse(root, "architectures", "is \"%s\", supported: \"%s\", \"%s\"", found,
                      names[0], names[1]);
}

void config_quantization(struct json_reader *root)
{
    const json_t *group = reader_get(root, "quantization_config");
    if (!group)
        return;
    struct json_reader reader = *root;
    reader.object = group;
    reader.group = "quantization_config.";
    if (!json_is_object(group)) {
        reader_refuse(root, "quantization_config", "is %s, expected an object", reader_kind(group));
        return;
    }
    const char *method = reader_text_or(&reader, "quant_method", "exl3");
    if (strcmp(method, "exl3") != 0)
        reader_refuse(&reader, "quant_method",
                      "is \"%s\", supported: \"exl3\", or none for unquantised weights", method);
    root->failed |= reader.failed;
}

/* ---- numbers */

u32 config_width(struct json_reader *reader, const char *key)
{
    u32 width = reader_u32(reader, key, 1, WIDTH_MOST);
    if (width % WIDTH_BLOCK != 0)
        reader_refuse(reader, key, "is %u, expected a multiple of %u", width, WIDTH_BLOCK);
    return width;
}

void config_heads(struct json_reader *reader, u32 head_dim, u32 *q_heads, u32 *kv_heads)
{
    *q_heads = reader_u32(reader, "num_attention_heads", 1, WIDTH_MOST / head_dim);
    *kv_heads = reader_u32(reader, "num_key_value_heads", 1, WIDTH_MOST / head_dim);
    if (*q_heads % *kv_heads != 0 || *q_heads / *kv_heads > GROUP_MOST)
        reader_refuse(reader, "num_attention_heads",
                      "is %u with num_key_value_heads %u, expected 1 to %u query heads for each "
                      "key head",
                      *q_heads, *kv_heads, GROUP_MOST);
}

double config_norm_eps(struct json_reader *reader)
{
    double eps = reader_number_or(reader, "rms_norm_eps", 0);
    if (!(eps > 0 && eps < 1))
        reader_refuse(reader, "rms_norm_eps", "must be a number between 0 and 1, found %g", eps);
    return eps;
}

static void read_sizes(struct json_reader *text, struct model_config *config)
{
    config->hidden = config_width(text, "hidden_size");
    config->intermediate = config_width(text, "intermediate_size");
    config->layers = reader_u32(text, "num_hidden_layers", 1, LAYERS_MOST);
    config->vocab = reader_u32(text, "vocab_size", 2, VOCAB_MOST);
    config_heads(text, HEAD_DIM, &config->q_heads, &config->kv_heads);
    config->head_dim = reader_u32_or(text, "head_dim", HEAD_DIM, HEAD_DIM, HEAD_DIM);
    config->gdn_k_heads = reader_u32(text, "linear_num_key_heads", 1, WIDTH_MOST / GDN_DIM);
    config->gdn_v_heads = reader_u32(text, "linear_num_value_heads", 1, WIDTH_MOST / GDN_DIM);
    config->gdn_k_dim = reader_u32(text, "linear_key_head_dim", GDN_DIM, GDN_DIM);
    config->gdn_v_dim = reader_u32(text, "linear_value_head_dim", GDN_DIM, GDN_DIM);
    config->conv_taps = reader_u32(text, "linear_conv_kernel_dim", CONV_TAPS, CONV_TAPS);
    config->max_positions = reader_u32(text, "max_position_embeddings", 1, POSITIONS_MOST);
    config->norm_eps = config_norm_eps(text);
    if (config->gdn_v_heads % config->gdn_k_heads != 0)
        reader_refuse(text, "linear_num_value_heads",
                      "is %u, expected a multiple of linear_num_key_heads, which is %u",
                      config->gdn_v_heads, config->gdn_k_heads);
}

/* rope_parameters, or the older rope_scaling; keys missing there may stand beside it. */
double config_rope(struct json_reader *text, u32 rotary, u32 head_dim)
{
    const char *name = reader_get(text, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const json_t *group = reader_get(text, name);
    char prefix[80];
    snprintf(prefix, sizeof prefix, "%s%s.", text->group, name);
    struct json_reader rope = *text;
    rope.object = group;
    rope.group = prefix;
    if (group && !json_is_object(group)) {
        reader_refuse(text, name, "is %s, expected an object", reader_kind(group));
        return 0;
    }
    const char *type = reader_text_or(&rope, "rope_type", reader_text_or(&rope, "type", "default"));
    if (strcmp(type, "default") != 0 && strcmp(type, "mrope") != 0)
        reader_refuse(&rope, "rope_type", "is \"%s\", supported: \"default\"", type);
    double theta = reader_number_or(&rope, "rope_theta", reader_number_or(text, "rope_theta", 0));
    double whole = (double)rotary / head_dim;
    double factor = reader_number_or(&rope, "partial_rotary_factor",
                                     reader_number_or(text, "partial_rotary_factor", whole));
    if (!(theta > 1 && theta < 1e12))
        reader_refuse(&rope, "rope_theta", "must be a number between 1 and 1e12, found %g", theta);
    if (factor != whole)
        reader_refuse(&rope, "partial_rotary_factor", "is %g, only %g is supported", factor, whole);
    text->failed |= rope.failed;
    return theta;
}

static bool layer_attention(struct json_reader *text, const json_t *types, u32 index, u32 interval)
{
    if (!types)
        return (index + 1) % interval == 0;
    const char *type = json_string_value(json_array_get(types, index));
    if (type && strcmp(type, "full_attention") == 0)
        return true;
    if (!type || strcmp(type, "linear_attention") != 0)
        reader_refuse(
            text, "layer_types",
            "has \"%s\" for layer %u, supported: \"linear_attention\", \"full_attention\"",
            type ? type : reader_kind(json_array_get(types, index)), index);
    return false;
}

static void read_layers(struct json_reader *text, const struct model_config *config,
                        bool *attention)
{
    const json_t *types = reader_get(text, "layer_types");
    u32 interval = reader_u32_or(text, "full_attention_interval", 4, 1, LAYERS_MOST);
    if (types && json_array_size(types) != config->layers) {
        reader_refuse_list(text, "layer_types", "num_hidden_layers = %u", config->layers);
        return;
    }
    for (u32 i = 0; i < config->layers; i++)
        attention[i] = layer_attention(text, types, i, interval);
}

/* ---- end tokens and sampling defaults */

/* The id of an added token in tokenizer_config.json's added_tokens_decoder, or -1. */
static i64 id_in_decoder(const json_t *root, const char *wanted)
{
    const char *id;
    json_t *entry;
    json_object_foreach (json_object_get(root, "added_tokens_decoder"), id, entry) {
        const char *content = json_string_value(json_object_get(entry, "content"));
        char *end;
        unsigned long number = strtoul(id, &end, 10);
        if (content && strcmp(content, wanted) == 0 && *id && !*end)
            return (i64)number;
    }
    return -1;
}

/* The same in tokenizer.json's added_tokens. */
static i64 id_in_added(const json_t *root, const char *wanted)
{
    size_t i;
    json_t *entry;
    json_array_foreach (json_object_get(root, "added_tokens"), i, entry) {
        const char *content = json_string_value(json_object_get(entry, "content"));
        const json_t *id = json_object_get(entry, "id");
        if (content && strcmp(content, wanted) == 0 && json_is_integer(id))
            return json_integer_value(id);
    }
    return -1;
}

static void add_end(struct model_config *config, i64 id)
{
    if (id < 0 || config->eos_count == COUNT_OF(config->eos))
        return;
    for (u32 i = 0; i < config->eos_count; i++) {
        if (config->eos[i] == id)
            return;
    }
    config->eos[config->eos_count++] = (u32)id;
}

/* Files that are missing or broken are the tokenizer's to report; here they name no ids. */
static void add_tokenizer_ends(struct model_config *config, const char *folder, struct arena *arena)
{
    static const char *const ends[] = {"<|endoftext|>", "<|im_end|>"};
    static const struct {
        const char *file;
        i64 (*find)(const json_t *root, const char *wanted);
    } sources[] = {{"tokenizer_config.json", id_in_decoder}, {"tokenizer.json", id_in_added}};
    struct error ignored;
    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        json_t *root = NULL;
        if (model_json_read(&root, arena_format(arena, "%s/%s", folder, sources[i].file),
                            &ignored) < 0)
            continue;
        for (size_t end = 0; end < COUNT_OF(ends); end++)
            add_end(config, sources[i].find(root, ends[end]));
        json_decref(root);
    }
}

static void read_sampling(struct json_reader *reader, struct model_config *config)
{
    config->do_sample = reader_bool_or(reader, "do_sample", true);
    config->temperature = reader_number_or(reader, "temperature", 1);
    config->top_p = reader_number_or(reader, "top_p", 1);
    config->top_k = reader_u32_or(reader, "top_k", 0, 0, VOCAB_MOST);
    if (!(config->temperature >= 0 && config->temperature <= 100))
        reader_refuse(reader, "temperature", "is %g, supported are 0 to 100", config->temperature);
    if (!(config->top_p > 0 && config->top_p <= 1))
        reader_refuse(reader, "top_p", "is %g, expected above 0 and at most 1", config->top_p);
    double repetition = reader_number_or(reader, "repetition_penalty", 1);
    if (repetition != 1)
        log_warn("%s: repetition_penalty %g is no default here: ask for it in the request",
                 reader->path, repetition);
}

static int read_generation(struct model_config *config, const char *folder, struct arena *arena,
                           struct error *error)
{
    const char *path = arena_format(arena, "%s/generation_config.json", folder);
    json_t *root = NULL;
    if (file_exists(path) && model_json_read(&root, path, error) < 0)
        return -1;
    struct json_reader reader = {.object = root, .path = path, .group = "", .error = error};
    u32 ids[COUNT_OF(config->eos)], count = 0;
    read_sampling(&reader, config);
    reader_ids(&reader, "eos_token_id", ids, &count, COUNT_OF(ids));
    json_decref(root);
    if (reader.failed)
        return -1;
    if (count == 0) {
        add_tokenizer_ends(config, folder, arena);
        return 0;
    }
    memcpy(config->eos, ids, sizeof ids);
    config->eos_count = count;
    return 0;
}

static int check_ends(const struct model_config *config, const char *folder, struct error *error)
{
    if (config->eos_count == 0)
        return error_set(error, ERROR_MODEL,
                         "%s names no end token: eos_token_id is neither in generation_config.json "
                         "nor in config.json, and the tokenizer has no <|im_end|>",
                         folder);
    for (u32 i = 0; i < config->eos_count; i++) {
        if (config->eos[i] >= config->vocab)
            return error_set(error, ERROR_MODEL,
                             "%s: eos_token_id %u is not below vocab_size, which is %u", folder,
                             config->eos[i], config->vocab);
    }
    return 0;
}

/* ---- the whole */

static void read_text_model(struct json_reader *root, struct json_reader *text,
                            struct model_config *config, struct arena *arena, bool **attention)
{
    config_architecture(root, architectures, config->architecture);
    config_quantization(root);
    text->failed |= root->failed;
    check_fixed(text);
    read_sizes(text, config);
    config->rope_theta = config_rope(text, ROTARY_DIMS, HEAD_DIM);
    config->rotary_dims = ROTARY_DIMS;
    config->tie_embeddings = reader_bool_or(text, "tie_word_embeddings", false);
    config->tie_embeddings = reader_bool_or(root, "tie_word_embeddings", config->tie_embeddings);
    const struct json_reader *ends = reader_get(text, "eos_token_id") ? text : root;
    struct json_reader reader = *ends;
    reader_ids(&reader, "eos_token_id", config->eos, &config->eos_count, COUNT_OF(config->eos));
    text->failed |= reader.failed || root->failed;
    if (text->failed)
        return;
    *attention = arena_alloc(arena, config->layers * sizeof **attention);
    read_layers(text, config, *attention);
}

int model_config_read(struct model_config *config, bool **attention, bool *has_vision,
                      const char *folder, struct arena *arena, struct error *error)
{
    const char *path = arena_format(arena, "%s/config.json", folder);
    json_t *json = NULL;
    if (!file_exists(path))
        return error_set(error, ERROR_MODEL,
                         "%s has no config.json: expected a model directory with config.json, "
                         "*.safetensors and tokenizer.json",
                         folder);
    if (model_json_read(&json, path, error) < 0)
        return -1;
    struct json_reader root = {.object = json, .path = path, .group = "", .error = error};
    struct json_reader text = root;
    const json_t *nested = reader_get(&root, "text_config");
    if (nested && !json_is_object(nested))
        reader_refuse(&root, "text_config", "is %s, expected an object", reader_kind(nested));
    if (nested) {
        text.object = nested;
        text.group = "text_config.";
    }
    *has_vision = reader_get(&root, "vision_config") != NULL;
    read_text_model(&root, &text, config, arena, attention);
    json_decref(json);
    if (text.failed || root.failed || read_generation(config, folder, arena, error) < 0)
        return -1;
    return check_ends(config, folder, error);
}
