/* make_draft.h - writes small random DFlash and DFlash2 drafts, and the 27B's without data.
 *
 * make_draft(&options, &error) fills a folder with config.json and model.safetensors: the tensors
 * of dflash2.md 4.1, linears in EXL3 or plain as base.plain says, what a conversion leaves
 * unquantised in BF16. Values come from a seed, as make_model's.
 */
#ifndef ELPIS_TESTS_MAKE_DRAFT_H
#define ELPIS_TESTS_MAKE_DRAFT_H

#include "model/make_model.h"

struct draft_options {
    struct make_options base; /* folder, prefix, sizes, heads of 128, bits, plain, sparse, seed */
    u32 window, block, mask, target_layers;
    u32 taps[DRAFT_TAPS_MAX], tap_count;
    u32 group, rank, top_k; /* of DFlash2 */
    bool version_1;
};

/* A draft for make_defaults' model. */
static inline void make_draft_defaults(struct draft_options *options, const char *folder)
{
    *options = (struct draft_options){.window = 32,
                                      .block = 4,
                                      .mask = 511,
                                      .target_layers = 4,
                                      .taps = {0, 2},
                                      .tap_count = 2,
                                      .group = 16,
                                      .rank = 32,
                                      .top_k = 8};
    make_defaults(&options->base, folder);
    options->base.prefix = "";
    options->base.layers = 2;
}

/* Qwen3.8-27B-DFlash2 as converted at 4.00 bits a weight, no data. */
static inline void make_27b_draft(struct draft_options *options, const char *folder)
{
    *options = (struct draft_options){.window = 2048,
                                      .block = 8,
                                      .mask = 248070,
                                      .target_layers = 64,
                                      .taps = {5, 19, 33, 47, 61},
                                      .tap_count = 5,
                                      .group = 16,
                                      .rank = 256,
                                      .top_k = 16};
    make_27b(&options->base, folder);
    options->base.prefix = "";
    options->base.layers = 5;
    options->base.q_heads = 32;
    options->base.kv_heads = 8;
}

static void make_draft_norm(struct maker *maker, const char *name, u64 size)
{
    make_vector(maker, arena_format(maker->arena, "%s%s.weight", maker->options->prefix, name),
                DTYPE_BF16, size, 1, 0.1);
}

static void make_draft_linear(struct maker *maker, const char *name, u64 in, u64 out)
{
    make_linear(maker, arena_format(maker->arena, "%s%s", maker->options->prefix, name), in, out);
}

static void make_draft_plain(struct maker *maker, const char *name, u64 in, u64 out)
{
    make_plain(maker, arena_format(maker->arena, "%s%s", maker->options->prefix, name), DTYPE_BF16,
               in, out);
}

static void make_draft_conv(struct maker *maker, const struct draft_options *options,
                            const char *name)
{
    u64 hidden = maker->options->hidden;
    make_floats(maker, arena_format(maker->arena, "%s%s.base_kernel", maker->options->prefix, name),
                DTYPE_BF16, 3, (u64[]){2, 2, hidden}, 0.5, 0.1);
    make_draft_plain(maker, arena_format(maker->arena, "%s.kernel_projection", name), hidden,
                     4 * hidden / options->group);
}

static void make_draft_layer(struct maker *maker, const struct draft_options *options, u32 index)
{
    const struct make_options *base = maker->options;
    const char *layer = arena_format(maker->arena, "layers.%" PRIu32, index);
    u64 queries = 128ull * base->q_heads, keys = 128ull * base->kv_heads, hidden = base->hidden;
    const struct {
        const char *name;
        u64 in, out;
    } linears[] = {{"self_attn.q_proj", hidden, queries},
                   {"self_attn.k_proj", hidden, keys},
                   {"self_attn.v_proj", hidden, keys},
                   {"self_attn.o_proj", queries, hidden},
                   {"mlp.gate_proj", hidden, base->intermediate},
                   {"mlp.up_proj", hidden, base->intermediate},
                   {"mlp.down_proj", base->intermediate, hidden}};
    for (size_t i = 0; i < COUNT_OF(linears); i++)
        make_draft_linear(maker, arena_format(maker->arena, "%s.%s", layer, linears[i].name),
                          linears[i].in, linears[i].out);
    make_draft_norm(maker, arena_format(maker->arena, "%s.input_layernorm", layer), hidden);
    make_draft_norm(maker, arena_format(maker->arena, "%s.post_attention_layernorm", layer),
                    hidden);
    make_draft_norm(maker, arena_format(maker->arena, "%s.self_attn.q_norm", layer), 128);
    make_draft_norm(maker, arena_format(maker->arena, "%s.self_attn.k_norm", layer), 128);
    if (options->version_1)
        return;
    make_draft_conv(maker, options, arena_format(maker->arena, "%s.attention_conv", layer));
    make_draft_conv(maker, options, arena_format(maker->arena, "%s.mlp_conv", layer));
}

static void make_draft_selector(struct maker *maker, const struct draft_options *options)
{
    const struct make_options *base = maker->options;
    static const char *const codebooks[] = {"predecessor", "successor"};
    make_draft_plain(maker, "candidate_selector.hidden_projection", base->hidden, options->rank);
    for (size_t i = 0; i < COUNT_OF(codebooks); i++)
        make_floats(maker,
                    arena_format(maker->arena, "%scandidate_selector.%s_codebook", base->prefix,
                                 codebooks[i]),
                    DTYPE_BF16, 2, (u64[]){base->vocab, options->rank}, 0, 0.02);
}

/* Version 1 has block_size in the root. */
static void make_draft_config(const struct draft_options *options, struct buffer *text)
{
    const struct make_options *base = &options->base;
    buffer_format(text, "{\n\"architectures\": [\"%s\"],\n\"model_type\": \"qwen3\",\n",
                  options->version_1 ? "DFlashDraftModel" : "DFlash2DraftModel");
    buffer_format(text,
                  "\"hidden_size\": %" PRIu32 ",\n\"intermediate_size\": %" PRIu32
                  ",\n\"num_hidden_layers\": %" PRIu32 ",\n\"num_attention_heads\": %" PRIu32
                  ",\n\"num_key_value_heads\": %" PRIu32 ",\n\"head_dim\": 128,\n",
                  base->hidden, base->intermediate, base->layers, base->q_heads, base->kv_heads);
    buffer_format(text,
                  "\"hidden_act\": \"silu\",\n\"rms_norm_eps\": 1e-06,\n\"is_causal\": false,\n"
                  "\"use_sliding_window\": true,\n\"sliding_window\": %" PRIu32
                  ",\n\"rope_theta\": 10000000,\n\"vocab_size\": %" PRIu32
                  ",\n\"num_target_layers\": %" PRIu32 ",\n",
                  options->window, base->vocab, options->target_layers);
    if (options->version_1)
        buffer_format(text, "\"block_size\": %" PRIu32 ",\n\"dflash_config\": {\n", options->block);
    else
        buffer_format(text,
                      "\"dflash_config\": {\n\"block_size\": %" PRIu32
                      ",\n\"conv_kernel_size\": 2,\n\"conv_group_size\": %" PRIu32
                      ",\n\"selector_rank\": %" PRIu32 ",\n\"selector_top_k\": %" PRIu32 ",\n",
                      options->block, options->group, options->rank, options->top_k);
    buffer_format(text, "\"mask_token_id\": %" PRIu32 ",\n\"target_layer_ids\": [", options->mask);
    for (u32 i = 0; i < options->tap_count; i++)
        buffer_format(text, "%s%" PRIu32, i ? ", " : "", options->taps[i]);
    buffer_add_text(text, "]\n}\n}\n");
}

static inline int make_draft(const struct draft_options *options, struct error *error)
{
    const struct make_options *base = &options->base;
    struct maker maker = {.options = base, .arena = arena_create(), .random = base->seed};
    struct buffer text = {0};
    make_draft_linear(&maker, "fc", (u64)options->tap_count * base->hidden, base->hidden);
    make_draft_norm(&maker, "hidden_norm", base->hidden);
    make_draft_norm(&maker, "norm", base->hidden);
    for (u32 i = 0; i < base->layers; i++)
        make_draft_layer(&maker, options, i);
    if (!options->version_1)
        make_draft_selector(&maker, options);
    make_draft_config(options, &text);
    size_t count = maker.tensors.size / sizeof(struct tensor);
    int result = file_make_folders(base->folder, 0755, error) < 0 ||
                         make_shard(&maker, "model.safetensors", 0, count, error) < 0 ||
                         make_text_file(base, "config.json", &text, error) < 0
                     ? -1
                     : 0;
    buffer_free(&text);
    buffer_free(&maker.tensors);
    arena_destroy(maker.arena);
    return result;
}

#endif
