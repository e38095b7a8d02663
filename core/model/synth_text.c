/* synth_text.c - what lies beside the weights of a synthesised model: configuration, tokenizer,
 * chat template.
 *
 * The tokenizer is a byte-level BPE without merges: every byte is a token, and ids up to the
 * vocabulary's size are placeholders, so that every column of the head is an id that can be
 * sampled and shown. No text becomes a placeholder.
 *
 *     0 .. 255             bytes
 *     256 .. vocab - 11    <|extra_256|> ...
 *     vocab - 10 ..        the special tokens, in elpis-tiny's order
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "model/synth.h"

#define BYTES 256

/* The last ids of the vocabulary. */
enum special { ENDOFTEXT, IM_START, IM_END, MASK, TOOL_CALL, SPECIALS = 10 };
static const char *const specials[SPECIALS] = {
    "<|endoftext|>", "<|im_start|>",    "<|im_end|>",       "<|mask|>", "<tool_call>",
    "</tool_call>",  "<tool_response>", "</tool_response>", "<think>",  "</think>"};

static u32 special_id(const struct synth *synth, enum special which)
{
    return synth->geometry.vocab - SPECIALS + which;
}

/* ---- config.json, generation_config.json */

static void add_layer_types(struct buffer *text, u32 layers, const char *name, const char *full)
{
    buffer_add_text(text, "\"layer_types\": [");
    for (u32 i = 0; i < layers; i++)
        buffer_format(text, "%s\"%s\"", i ? ", " : "", (i + 1) % SYNTH_INTERVAL ? name : full);
    buffer_add_text(text, "],\n");
}

static void add_quantization(struct buffer *text, const struct synth *synth)
{
    buffer_format(text, " \"quantization_config\": {\"quant_method\": \"exl3\", \"bits\": %" PRIu32,
                  synth->bits);
    if (!synth->geometry.rank)
        buffer_format(text, ", \"head_bits\": %" PRIu32, synth->head_bits);
    buffer_add_text(text, ", \"codebook\": \"mul1\"}\n}\n");
}

static void add_sizes(struct buffer *text, const struct synth_geometry *geometry)
{
    buffer_format(text,
                  " \"hidden_size\": %" PRIu32 ",\n \"intermediate_size\": %" PRIu32
                  ",\n \"vocab_size\": %" PRIu32 ",\n \"num_hidden_layers\": %" PRIu32
                  ",\n \"num_attention_heads\": %" PRIu32 ",\n \"num_key_value_heads\": %" PRIu32
                  ",\n ",
                  geometry->hidden, geometry->intermediate, geometry->vocab, geometry->layers,
                  geometry->q_heads, geometry->kv_heads);
}

static void target_config(struct buffer *text, const struct synth *synth)
{
    const struct synth_geometry *geometry = &synth->geometry;
    buffer_add_text(text, "{\n \"architectures\": [\"Qwen3_5ForCausalLM\"],\n"
                          " \"model_type\": \"qwen3_5_text\",\n");
    add_sizes(text, geometry);
    buffer_add_text(text, "\"head_dim\": 256,\n ");
    add_layer_types(text, geometry->layers, "linear_attention", "full_attention");
    buffer_format(text,
                  " \"linear_conv_kernel_dim\": 4,\n \"linear_num_key_heads\": %" PRIu32
                  ",\n \"linear_num_value_heads\": %" PRIu32
                  ",\n \"linear_key_head_dim\": 128,\n \"linear_value_head_dim\": 128,\n",
                  geometry->k_heads, geometry->v_heads);
    buffer_format(text,
                  " \"hidden_act\": \"silu\",\n \"rms_norm_eps\": 1e-06,\n"
                  " \"tie_word_embeddings\": false,\n \"max_position_embeddings\": 262144,\n"
                  " \"attention_bias\": false,\n \"attn_output_gate\": true,\n"
                  " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000, "
                  "\"partial_rotary_factor\": 0.25},\n \"dtype\": \"bfloat16\",\n"
                  " \"eos_token_id\": %" PRIu32 ",\n",
                  special_id(synth, IM_END));
    add_quantization(text, synth);
}

static void draft_config(struct buffer *text, const struct synth *synth)
{
    const struct synth_geometry *geometry = &synth->geometry;
    buffer_add_text(text, "{\n \"architectures\": [\"DFlash2DraftModel\"],\n"
                          " \"model_type\": \"qwen3\",\n");
    add_sizes(text, geometry);
    buffer_add_text(text, "\"head_dim\": 128,\n ");
    add_layer_types(text, geometry->layers, "sliding_attention", "sliding_attention");
    buffer_format(text,
                  " \"is_causal\": false,\n \"use_sliding_window\": true,\n"
                  " \"sliding_window\": %" PRIu32 ",\n \"max_window_layers\": %" PRIu32
                  ",\n \"hidden_act\": \"silu\",\n \"rms_norm_eps\": 1e-06,\n"
                  " \"attention_bias\": false,\n \"rope_parameters\": {\"rope_type\": \"default\", "
                  "\"rope_theta\": 10000000},\n \"max_position_embeddings\": 262144,\n"
                  " \"num_target_layers\": %" PRIu32 ",\n \"tie_word_embeddings\": false,\n"
                  " \"dtype\": \"bfloat16\",\n",
                  geometry->window, geometry->layers, geometry->target_layers);
    buffer_format(text,
                  " \"dflash_config\": {\"block_size\": 8, \"mask_token_id\": %" PRIu32
                  ", \"conv_kernel_size\": 2, \"conv_group_size\": 16, \"selector_rank\": %" PRIu32
                  ", \"selector_top_k\": 16, \"target_layer_ids\": [",
                  special_id(synth, MASK), geometry->rank);
    for (u32 i = 0; i < geometry->tap_count; i++)
        buffer_format(text, "%s%" PRIu32, i ? ", " : "", geometry->taps[i]);
    buffer_add_text(text, "]},\n");
    add_quantization(text, synth);
}

static void generation_config(struct buffer *text, const struct synth *synth)
{
    buffer_format(text, "{\"eos_token_id\": [%" PRIu32 ", %" PRIu32 "], \"do_sample\": false}\n",
                  special_id(synth, IM_END), special_id(synth, ENDOFTEXT));
}

/* The first blocks of 128 ids, and the two in which the special tokens lie. */
static void draft_head(struct buffer *text, const struct synth *synth)
{
    const u32 all = (synth->geometry.vocab + 127) / 128;
    buffer_add_text(text, "{\"blocks\": [");
    for (u32 i = 0; i + 2 < synth->head_blocks; i++)
        buffer_format(text, "%" PRIu32 ", ", i);
    buffer_format(text, "%" PRIu32 ", %" PRIu32 "]}\n", all - 2, all - 1);
}

/* ---- tokenizer.json */

/* Bytes spelt as printable characters, GPT-2's bytes_to_unicode: printable ones of Latin-1 stand
 * for themselves, the others for U+0100 and up, in order. */
static void add_bytes(struct buffer *text)
{
    u32 other = BYTES;
    for (u32 byte = 0; byte < BYTES; byte++) {
        const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
        buffer_format(text, "%s\"\\u%04" PRIx32 "\": %" PRIu32, byte ? ", " : "",
                      printable ? byte : other, byte);
        other += !printable;
    }
}

static void add_specials(struct buffer *text, const struct synth *synth)
{
    for (u32 i = 0; i < SPECIALS; i++)
        buffer_format(text,
                      "%s\n  {\"id\": %" PRIu32 ", \"content\": \"%s\", \"single_word\": false, "
                      "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                      "\"special\": %s}",
                      i ? "," : "", special_id(synth, i), specials[i],
                      i < TOOL_CALL ? "true" : "false");
}

static void tokenizer(struct buffer *text, const struct synth *synth)
{
    buffer_add_text(text, "{\n \"version\": \"1.0\",\n \"truncation\": null,\n \"padding\": null,\n"
                          " \"added_tokens\": [");
    add_specials(text, synth);
    buffer_add_text(
        text,
        "],\n \"normalizer\": {\"type\": \"NFC\"},\n"
        " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n"
        "  {\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}|"
        " ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s+\"}, "
        "\"behavior\": \"Isolated\", \"invert\": false},\n"
        "  {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
        "\"use_regex\": false}]},\n \"post_processor\": null,\n"
        " \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": "
        "true, \"use_regex\": true},\n"
        " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
        "\"byte_fallback\": false, \"ignore_merges\": false, \"merges\": [],\n \"vocab\": {");
    add_bytes(text);
    for (u32 id = BYTES; id < special_id(synth, ENDOFTEXT); id++)
        buffer_format(text, ",\n \"<|extra_%" PRIu32 "|>\": %" PRIu32, id, id);
    buffer_add_text(text, "}}\n}\n");
}

static void tokenizer_config(struct buffer *text, const struct synth *synth)
{
    (void)synth;
    buffer_format(text,
                  "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"eos_token\": \"%s\", "
                  "\"pad_token\": \"%s\", \"model_max_length\": 262144, "
                  "\"clean_up_tokenization_spaces\": false}\n",
                  specials[IM_END], specials[ENDOFTEXT]);
}

static void chat_template(struct buffer *text, const struct synth *synth)
{
    (void)synth;
    buffer_add_text(
        text, "{%- for message in messages %}\n"
              "{{- '<|im_start|>' + message.role + '\\n' }}\n"
              "{%- if message.content is string %}{{- message.content | trim }}\n"
              "{%- elif message.content %}{%- for part in message.content %}"
              "{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}\n"
              "{{- '<|im_end|>\\n' }}\n"
              "{%- endfor %}\n"
              "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n");
}

/* ---- all of them */

struct text_file {
    const char *name;
    void (*make)(struct buffer *text, const struct synth *synth);
};

static int write_text(const struct text_file *file, const struct synth *synth, const char *folder,
                      struct error *error)
{
    struct buffer text = {0}, path = {0};
    buffer_format(&path, "%s/%s", folder, file->name);
    file->make(&text, synth);
    int result = file_write_atomic(path.data, text.data, text.size, error);
    buffer_free(&text);
    buffer_free(&path);
    return result;
}

/* A reduced head is written when it was asked for; what another model left would apply too. */
static int write_draft_head(const struct synth *synth, const char *folder, struct error *error)
{
    const struct text_file file = {"draft_head.json", draft_head};
    struct buffer path = {0};
    if (synth->head_blocks)
        return write_text(&file, synth, folder, error);
    buffer_format(&path, "%s/%s", folder, file.name);
    unlink(path.data);
    buffer_free(&path);
    return 0;
}

int synth_write_texts(const struct synth *synth, const char *folder, struct error *error)
{
    static const struct text_file target[] = {{"config.json", target_config},
                                              {"generation_config.json", generation_config},
                                              {"tokenizer.json", tokenizer},
                                              {"tokenizer_config.json", tokenizer_config},
                                              {"chat_template.jinja", chat_template}};
    static const struct text_file draft = {"config.json", draft_config};
    if (synth->geometry.rank)
        return write_text(&draft, synth, folder, error) || write_draft_head(synth, folder, error)
                   ? -1
                   : 0;
    for (size_t i = 0; i < COUNT_OF(target); i++)
        if (write_text(&target[i], synth, folder, error) < 0)
            return -1;
    return 0;
}
