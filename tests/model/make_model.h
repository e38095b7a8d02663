/* make_model.h - writes small random qwen3_5 models, and the 27B's shapes without data.
 *
 * make_model(&options, &error) fills a folder with config.json, generation_config.json,
 * one or more safetensors files and, when asked, an index and a tokenizer's files. The
 * tensors, their names and dtypes are those of an EXL3 conversion (exl3.md 1, qwen3_5.md
 * 2); their values come from a seed, scaled so that activations stay near 1: the model
 * says nothing sensible, but runs. `sparse` leaves out the data of everything larger
 * than a word: 16 GB of file that take no room and hold zeros.
 *
 * Everything is static: a test includes this file; make_model.c is the same as a
 * program for other languages' tests.
 */
#ifndef ELPIS_TESTS_MAKE_MODEL_H
#define ELPIS_TESTS_MAKE_MODEL_H

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"

#define MAKE_LIST_MOST 8

/* Zero-initialise, then make_defaults or make_27b, then change what a test needs. */
struct make_options {
    const char *folder;    /* made when it is not there */
    const char *prefix;    /* "model.language_model." or "model." */
    const char *tokenizer; /* folder whose tokenizer and template are copied; NULL = none */
    u32 hidden, intermediate, layers, vocab, interval;
    u32 q_heads, kv_heads, k_heads, v_heads;
    u32 bits[MAKE_LIST_MOST], bit_count;     /* K of the linears, in turn */
    enum codebook codebooks[MAKE_LIST_MOST]; /* in turn */
    u32 codebook_count, head_bits;           /* head_bits 16 = plain F16 */
    bool plain;                              /* no EXL3 at all: weights of dtype plain_dtype */
    enum dtype plain_dtype;
    enum dtype a_log_dtype; /* BF16 or F32 */
    bool tied;              /* tie_word_embeddings, no lm_head */
    bool old_signs;         /* su, sv bit fields instead of suh, svh */
    bool nested;            /* text_config beside a vision_config */
    bool extras;            /* model.visual.* and mtp.* */
    bool sparse;
    u32 shards; /* more than one: with an index */
    u64 seed;
};

static void make_defaults(struct make_options *options, const char *folder)
{
    *options = (struct make_options){.folder = folder,
                                     .prefix = "model.language_model.",
                                     .hidden = 256,
                                     .intermediate = 384,
                                     .layers = 4,
                                     .vocab = 512,
                                     .interval = 4,
                                     .q_heads = 2,
                                     .kv_heads = 1,
                                     .k_heads = 1,
                                     .v_heads = 2,
                                     .bits = {4},
                                     .bit_count = 1,
                                     .codebooks = {CODEBOOK_MUL1},
                                     .codebook_count = 1,
                                     .head_bits = 6,
                                     .plain_dtype = DTYPE_BF16,
                                     .a_log_dtype = DTYPE_BF16,
                                     .shards = 1,
                                     .seed = 1};
}

/* Qwen3.8-27B as converted at 4.00 bits a weight: two shards, all its extras, no data. */
static inline void make_27b(struct make_options *options, const char *folder)
{
    make_defaults(options, folder);
    options->hidden = 5120;
    options->intermediate = 17408;
    options->layers = 64;
    options->vocab = 248320;
    options->q_heads = 24;
    options->kv_heads = 4;
    options->k_heads = 16;
    options->v_heads = 48;
    options->nested = options->extras = options->sparse = true;
    options->shards = 2;
}

/* ---- random values */

struct maker {
    const struct make_options *options;
    struct arena *arena;
    struct buffer tensors; /* struct tensor [] */
    u32 linears;           /* made so far: picks K and codebook */
    u64 random;            /* splitmix64 state */
};

static u64 make_random(struct maker *maker)
{
    u64 z = maker->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double make_uniform(struct maker *maker)
{
    return (double)(make_random(maker) >> 11) * 0x1p-53;
}

/* Mean 0, deviation 1: twelve uniform numbers, less 6. */
static double make_normal(struct maker *maker)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += make_uniform(maker);
    return sum;
}

/* Round to nearest even; what is smaller than the smallest normal becomes zero. */
static u32 make_half(u32 single)
{
    u32 sign = single >> 16 & 0x8000, magnitude = single & 0x7fffffff;
    if (magnitude < 0x38800000)
        return sign;
    return sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

static u32 make_bfloat(u32 single)
{
    return (single + 0x7fff + (single >> 16 & 1)) >> 16;
}

static void make_store(void *data, enum dtype dtype, u64 index, double value)
{
    float single = (float)value;
    u32 word;
    memcpy(&word, &single, sizeof word);
    if (dtype == DTYPE_F16)
        word = make_half(word);
    if (dtype == DTYPE_BF16)
        word = make_bfloat(word);
    u32 size = dtype_size(dtype);
    memcpy((char *)data + size * index, &word, size); /* little endian */
}

/* ---- tensors */

static void *make_tensor(struct maker *maker, const char *name, enum dtype dtype, u32 rank,
                         const u64 *shape)
{
    struct tensor tensor = {
        .name = arena_text(maker->arena, slice_of(name)), .dtype = dtype, .rank = rank, .count = 1};
    for (u32 i = 0; i < rank; i++)
        tensor.count *= tensor.shape[i] = shape[i];
    tensor.bytes = tensor.count * dtype_size(dtype);
    void *data = maker->options->sparse && tensor.bytes > 4
                     ? NULL
                     : arena_alloc(maker->arena, tensor.bytes);
    tensor.data = data;
    buffer_add(&maker->tensors, &tensor, sizeof tensor);
    return data;
}

/* mean + deviation * normal in every element. */
static void make_floats(struct maker *maker, const char *name, enum dtype dtype, u32 rank,
                        const u64 *shape, double mean, double deviation)
{
    void *data = make_tensor(maker, name, dtype, rank, shape);
    u64 count = 1;
    for (u32 i = 0; i < rank; i++)
        count *= shape[i];
    for (u64 i = 0; data && i < count; i++)
        make_store(data, dtype, i, mean + deviation * make_normal(maker));
}

static void make_vector(struct maker *maker, const char *name, enum dtype dtype, u64 size,
                        double mean, double deviation)
{
    make_floats(maker, name, dtype, 1, &size, mean, deviation);
}

static void make_bits(struct maker *maker, const char *name, enum dtype dtype, u32 rank,
                      const u64 *shape)
{
    u64 count = dtype_size(dtype);
    for (u32 i = 0; i < rank; i++)
        count *= shape[i];
    u8 *data = make_tensor(maker, name, dtype, rank, shape);
    for (u64 i = 0; data && i < count; i++)
        data[i] = (u8)(make_random(maker) >> 24);
}

/* suh or svh: a scale with random signs; or the old bit field. */
static void make_signs(struct maker *maker, const char *name, u64 size, double scale)
{
    if (maker->options->old_signs) {
        u64 words = size / 16;
        name = arena_text(maker->arena, (struct slice){name, strlen(name) - 1});
        make_bits(maker, name, DTYPE_I16, 1, &words);
        return;
    }
    u8 *data = make_tensor(maker, name, DTYPE_F16, 1, &size);
    for (u64 i = 0; data && i < size; i++)
        make_store(data, DTYPE_F16, i, make_random(maker) >> 63 ? scale : -scale);
}

static void make_marker(struct maker *maker, const char *name, u32 value)
{
    memcpy(make_tensor(maker, name, DTYPE_I32, 0, NULL), &value, sizeof value);
}

static u64 make_padded(u64 size)
{
    return (size + 127) / 128 * 128;
}

static void make_exl3(struct maker *maker, const char *name, u64 in, u64 out, u32 bits)
{
    const struct make_options *options = maker->options;
    u64 k = make_padded(in), n = make_padded(out);
    enum codebook codebook = options->codebooks[maker->linears % options->codebook_count];
    make_bits(maker, arena_format(maker->arena, "%s.trellis", name), DTYPE_I16, 3,
              (u64[]){k / 16, n / 16, 16 * bits});
    make_signs(maker, arena_format(maker->arena, "%s.suh", name), k, 1 / sqrt((double)in));
    make_signs(maker, arena_format(maker->arena, "%s.svh", name), n, 1);
    if (codebook == CODEBOOK_MUL1)
        make_marker(maker, arena_format(maker->arena, "%s.mul1", name), 0x83dcd12d);
    if (codebook == CODEBOOK_MCG)
        make_marker(maker, arena_format(maker->arena, "%s.mcg", name), 0xcbac1fed);
}

static void make_plain(struct maker *maker, const char *name, enum dtype dtype, u64 in, u64 out)
{
    make_floats(maker, arena_format(maker->arena, "%s.weight", name), dtype, 2, (u64[]){out, in}, 0,
                1 / sqrt((double)in));
}

static void make_linear(struct maker *maker, const char *name, u64 in, u64 out)
{
    const struct make_options *options = maker->options;
    if (options->plain)
        make_plain(maker, name, options->plain_dtype, in, out);
    else
        make_exl3(maker, name, in, out, options->bits[maker->linears % options->bit_count]);
    maker->linears++;
}

/* ---- the text model */

static const char *make_name(struct maker *maker, u32 layer, const char *name)
{
    return arena_format(maker->arena, "%slayers.%" PRIu32 ".%s", maker->options->prefix, layer,
                        name);
}

static void make_mlp(struct maker *maker, const char *prefix)
{
    u64 hidden = maker->options->hidden, wide = maker->options->intermediate;
    make_linear(maker, arena_format(maker->arena, "%smlp.gate_proj", prefix), hidden, wide);
    make_linear(maker, arena_format(maker->arena, "%smlp.up_proj", prefix), hidden, wide);
    make_linear(maker, arena_format(maker->arena, "%smlp.down_proj", prefix), wide, hidden);
}

static void make_attention(struct maker *maker, const char *prefix)
{
    const struct make_options *options = maker->options;
    u64 queries = 256ull * options->q_heads, keys = 256ull * options->kv_heads;
    const struct {
        const char *name;
        u64 in, out;
    } linears[] = {{"q_proj", options->hidden, 2 * queries},
                   {"k_proj", options->hidden, keys},
                   {"v_proj", options->hidden, keys},
                   {"o_proj", queries, options->hidden}};
    for (size_t i = 0; i < COUNT_OF(linears); i++)
        make_linear(maker, arena_format(maker->arena, "%sself_attn.%s", prefix, linears[i].name),
                    linears[i].in, linears[i].out);
    make_vector(maker, arena_format(maker->arena, "%sself_attn.q_norm.weight", prefix), DTYPE_BF16,
                256, 0, 0.1);
    make_vector(maker, arena_format(maker->arena, "%sself_attn.k_norm.weight", prefix), DTYPE_BF16,
                256, 0, 0.1);
}

static void make_gdn(struct maker *maker, u32 layer)
{
    const struct make_options *options = maker->options;
    u64 hidden = options->hidden, heads = options->v_heads, values = 128 * heads;
    u64 channels = 2 * 128ull * options->k_heads + values;
    make_linear(maker, make_name(maker, layer, "linear_attn.in_proj_qkv"), hidden, channels);
    make_linear(maker, make_name(maker, layer, "linear_attn.in_proj_z"), hidden, values);
    make_plain(maker, make_name(maker, layer, "linear_attn.in_proj_a"), DTYPE_F16, hidden, heads);
    make_plain(maker, make_name(maker, layer, "linear_attn.in_proj_b"), DTYPE_F16, hidden, heads);
    make_linear(maker, make_name(maker, layer, "linear_attn.out_proj"), values, hidden);
    make_floats(maker, make_name(maker, layer, "linear_attn.conv1d.weight"), DTYPE_BF16, 3,
                (u64[]){channels, 1, 4}, 0, 0.5);
    make_vector(maker, make_name(maker, layer, "linear_attn.A_log"), options->a_log_dtype, heads, 1,
                0.5);
    make_vector(maker, make_name(maker, layer, "linear_attn.dt_bias"), DTYPE_BF16, heads, -2, 0.5);
    make_vector(maker, make_name(maker, layer, "linear_attn.norm.weight"), DTYPE_BF16, 128, 1, 0.1);
}

static void make_layers(struct maker *maker)
{
    const struct make_options *options = maker->options;
    for (u32 i = 0; i < options->layers; i++) {
        make_vector(maker, make_name(maker, i, "input_layernorm.weight"), DTYPE_BF16,
                    options->hidden, 0, 0.1);
        make_vector(maker, make_name(maker, i, "post_attention_layernorm.weight"), DTYPE_BF16,
                    options->hidden, 0, 0.1);
        if ((i + 1) % options->interval == 0)
            make_attention(maker, make_name(maker, i, ""));
        else
            make_gdn(maker, i);
        make_mlp(maker, make_name(maker, i, ""));
    }
}

static void make_head(struct maker *maker)
{
    const struct make_options *options = maker->options;
    if (options->tied)
        return;
    if (options->plain || options->head_bits == 16)
        make_plain(maker, "lm_head", DTYPE_F16, options->hidden, options->vocab);
    else
        make_exl3(maker, "lm_head", options->hidden, options->vocab, options->head_bits);
}

/* ---- what real checkpoints hold beside it */

static void make_visual(struct maker *maker, const char *name, u32 rank, const u64 *shape)
{
    make_floats(maker, arena_format(maker->arena, "model.visual.%s", name), DTYPE_BF16, rank, shape,
                0, 0.02);
}

/* weight [out, in] and bias [out]. */
static void make_visual_linear(struct maker *maker, const char *name, u64 in, u64 out)
{
    make_visual(maker, arena_format(maker->arena, "%s.weight", name), in ? 2 : 1, (u64[]){out, in});
    make_visual(maker, arena_format(maker->arena, "%s.bias", name), 1, (u64[]){out});
}

static void make_vision(struct maker *maker)
{
    const u64 wide = 1152, inner = 4304, merged = 4 * wide;
    make_visual(maker, "patch_embed.proj.weight", 5, (u64[]){wide, 3, 2, 16, 16});
    make_visual(maker, "patch_embed.proj.bias", 1, (u64[]){wide});
    make_visual(maker, "pos_embed.weight", 2, (u64[]){2304, wide});
    for (u32 i = 0; i < 27; i++) {
        const char *block = arena_format(maker->arena, "blocks.%" PRIu32, i);
        make_visual_linear(maker, arena_format(maker->arena, "%s.norm1", block), 0, wide);
        make_visual_linear(maker, arena_format(maker->arena, "%s.norm2", block), 0, wide);
        make_visual_linear(maker, arena_format(maker->arena, "%s.attn.qkv", block), wide, 3 * wide);
        make_visual_linear(maker, arena_format(maker->arena, "%s.attn.proj", block), wide, wide);
        make_visual_linear(maker, arena_format(maker->arena, "%s.mlp.linear_fc1", block), wide,
                           inner);
        make_visual_linear(maker, arena_format(maker->arena, "%s.mlp.linear_fc2", block), inner,
                           wide);
    }
    make_visual_linear(maker, "merger.norm", 0, wide);
    make_visual_linear(maker, "merger.linear_fc1", merged, merged);
    make_visual_linear(maker, "merger.linear_fc2", merged, maker->options->hidden);
}

static void make_mtp(struct maker *maker)
{
    u64 hidden = maker->options->hidden;
    static const char *const norms[] = {
        "mtp.pre_fc_norm_hidden.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.norm.weight",
        "mtp.layers.0.input_layernorm.weight", "mtp.layers.0.post_attention_layernorm.weight"};
    for (size_t i = 0; i < COUNT_OF(norms); i++)
        make_vector(maker, norms[i], DTYPE_BF16, hidden, 0, 0.1);
    make_linear(maker, "mtp.fc", 2 * hidden, hidden);
    make_attention(maker, "mtp.layers.0.");
    make_mlp(maker, "mtp.layers.0.");
}

/* ---- files */

static int make_text_file(const struct make_options *options, const char *name,
                          const struct buffer *text, struct error *error)
{
    char path[1000];
    snprintf(path, sizeof path, "%s/%s", options->folder, name);
    return file_write_atomic(path, text->data, text->size, error);
}

/* Tensors [first, last) of the maker into one file. */
static int make_shard(struct maker *maker, const char *name, size_t first, size_t last,
                      struct error *error)
{
    const struct tensor *tensors = (const struct tensor *)maker->tensors.data;
    struct tensor_writer *writer = tensor_writer_create();
    for (size_t i = first; i < last; i++)
        tensor_writer_add(writer, tensors[i].name, tensors[i].dtype, tensors[i].rank,
                          tensors[i].shape, tensors[i].data);
    tensor_writer_metadata(writer, "format", "pt");
    int result = tensor_writer_write(
        writer, arena_format(maker->arena, "%s/%s", maker->options->folder, name), error);
    tensor_writer_destroy(writer);
    return result;
}

static int make_shards(struct maker *maker, struct error *error)
{
    const struct make_options *options = maker->options;
    const struct tensor *tensors = (const struct tensor *)maker->tensors.data;
    size_t count = maker->tensors.size / sizeof *tensors;
    struct buffer index = {0};
    int result = 0;
    if (options->shards == 1)
        return make_shard(maker, "model.safetensors", 0, count, error);
    buffer_add_text(&index, "{\"metadata\": {}, \"weight_map\": {");
    for (u32 i = 0; i < options->shards && result == 0; i++) {
        size_t first = count * i / options->shards, last = count * (i + 1) / options->shards;
        const char *name = arena_format(maker->arena,
                                        "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", i + 1,
                                        options->shards);
        result = make_shard(maker, name, first, last, error);
        for (size_t j = first; j < last; j++)
            buffer_format(&index, "%s\n\"%s\": \"%s\"", j ? "," : "", tensors[j].name, name);
    }
    buffer_add_text(&index, "}}\n");
    if (result == 0)
        result = make_text_file(options, "model.safetensors.index.json", &index, error);
    buffer_free(&index);
    return result;
}

static void make_text_config(const struct make_options *options, struct buffer *text)
{
    const struct {
        const char *key;
        u32 value;
    } numbers[] = {{"hidden_size", options->hidden},
                   {"intermediate_size", options->intermediate},
                   {"num_hidden_layers", options->layers},
                   {"vocab_size", options->vocab},
                   {"num_attention_heads", options->q_heads},
                   {"num_key_value_heads", options->kv_heads},
                   {"linear_num_key_heads", options->k_heads},
                   {"linear_num_value_heads", options->v_heads},
                   {"full_attention_interval", options->interval}};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        buffer_format(text, "\"%s\": %" PRIu32 ",\n", numbers[i].key, numbers[i].value);
    buffer_add_text(text,
                    "\"head_dim\": 256,\n\"linear_key_head_dim\": 128,\n"
                    "\"linear_value_head_dim\": 128,\n\"linear_conv_kernel_dim\": 4,\n"
                    "\"hidden_act\": \"silu\",\n\"rms_norm_eps\": 1e-06,\n"
                    "\"attention_bias\": false,\n\"attn_output_gate\": true,\n"
                    "\"output_gate_type\": \"swish\",\n\"mamba_ssm_dtype\": \"float32\",\n"
                    "\"max_position_embeddings\": 262144,\n\"mtp_num_hidden_layers\": 1,\n"
                    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000,"
                    " \"partial_rotary_factor\": 0.25, \"mrope_interleaved\": true,"
                    " \"mrope_section\": [11, 11, 10]}");
    buffer_add_text(text, ",\n\"layer_types\": [");
    for (u32 i = 0; i < options->layers; i++)
        buffer_format(text, "%s\"%s\"", i ? ", " : "",
                      (i + 1) % options->interval == 0 ? "full_attention" : "linear_attention");
    buffer_add_text(text, "]");
}

static int make_config(const struct make_options *options, struct error *error)
{
    struct buffer text = {0};
    buffer_format(&text, "{\n\"architectures\": [\"%s\"],\n\"model_type\": \"qwen3_5\",\n",
                  options->nested ? "Qwen3_5ForConditionalGeneration" : "Qwen3_5ForCausalLM");
    buffer_format(&text, "\"tie_word_embeddings\": %s,\n", options->tied ? "true" : "false");
    if (!options->plain)
        buffer_add_text(&text, "\"quantization_config\": {\"quant_method\": \"exl3\", "
                               "\"bits\": 4.0, \"head_bits\": 6, \"codebook\": \"mul1\"},\n");
    if (options->nested)
        buffer_add_text(&text, "\"image_token_id\": 248056,\n\"vision_config\": {\"depth\": 27, "
                               "\"hidden_size\": 1152},\n\"text_config\": {\n");
    make_text_config(options, &text);
    buffer_add_text(&text, options->nested ? "\n}\n}\n" : "\n}\n");
    int result = make_text_file(options, "config.json", &text, error);
    buffer_clear(&text);
    buffer_format(&text,
                  "{\"eos_token_id\": [%" PRIu32 ", %" PRIu32
                  "], \"do_sample\": true, \"temperature\": 0.7, \"top_p\": 0.8, \"top_k\": 20}\n",
                  options->vocab - 2, options->vocab - 3);
    if (result == 0)
        result = make_text_file(options, "generation_config.json", &text, error);
    buffer_free(&text);
    return result;
}

static int make_copies(const struct make_options *options, struct error *error)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    struct buffer content = {0};
    int result = 0;
    for (size_t i = 0; options->tokenizer && i < COUNT_OF(names) && result == 0; i++) {
        char path[1000];
        snprintf(path, sizeof path, "%s/%s", options->tokenizer, names[i]);
        result = file_read(&content, path, 64u << 20, error);
        if (result == 0)
            result = make_text_file(options, names[i], &content, error);
    }
    buffer_free(&content);
    return result;
}

static int make_model(const struct make_options *options, struct error *error)
{
    struct maker maker = {.options = options, .arena = arena_create(), .random = options->seed};
    const char *embedding = arena_format(maker.arena, "%sembed_tokens.weight", options->prefix);
    make_floats(&maker, embedding, DTYPE_BF16, 2, (u64[]){options->vocab, options->hidden}, 0, 1);
    make_layers(&maker);
    make_vector(&maker, arena_format(maker.arena, "%snorm.weight", options->prefix), DTYPE_BF16,
                options->hidden, 0, 0.1);
    make_head(&maker);
    if (options->extras) {
        make_vision(&maker);
        make_mtp(&maker);
    }
    int result = file_make_folders(options->folder, 0755, error) < 0 ||
                         make_shards(&maker, error) < 0 || make_config(options, error) < 0 ||
                         make_copies(options, error) < 0
                     ? -1
                     : 0;
    buffer_free(&maker.tensors);
    arena_destroy(maker.arena);
    return result;
}

#endif
