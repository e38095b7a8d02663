/* model.h - model directories: what the files say, checked, ready to upload.
 *
 * model_open maps every *.safetensors of a directory, reads config.json (flat or
 * with text_config), generation_config.json and quantization tensors, finds every
 * tensor of the qwen3_5 text model under either prefix ("model." or
 * "model.language_model."), and refuses with one sentence whatever is missing,
 * unused, misshapen or unknown (design.md 10). Nothing is copied: data pointers lie
 * in the mapped files. Formats: spec exl3.md 1-3, qwen3_5.md 1-3.
 *
 * Not here: tokenizer and template (text/), device memory (engine/).
 */
#ifndef ELPIS_MODEL_H
#define ELPIS_MODEL_H

#include "base/base.h"

/* ---- safetensors: u64 header length, JSON header, data. */

enum dtype {
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_I8,
    DTYPE_U8,
    DTYPE_I16,
    DTYPE_I32,
    DTYPE_I64,
    /* only known by their sizes: tensors of these may lie in a file, nothing here reads them */
    DTYPE_BOOL,
    DTYPE_U16,
    DTYPE_U32,
    DTYPE_U64,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2
};
#define TENSOR_RANK_MAX 8
u32 dtype_size(enum dtype dtype);
const char *dtype_name(enum dtype dtype); /* "F16" as in the files */

struct tensor {
    const char *name;
    const char *file; /* path of the file it lies in */
    enum dtype dtype;
    u32 rank; /* 0..TENSOR_RANK_MAX */
    u64 shape[TENSOR_RANK_MAX];
    u64 count; /* elements */
    u64 bytes;
    const void *data; /* in the mapped file; aligned to nothing: copy it, do not dereference it */
};

/* One file. Checked first: size = 8 + header + last offset; then offsets without gap or
 * overlap, shape x dtype = bytes, no duplicate names. An LFS pointer is recognised and named. */
struct tensor_file;
int tensor_file_open(struct tensor_file **file, const char *path, struct error *error);
void tensor_file_close(struct tensor_file *file);
size_t tensor_file_count(const struct tensor_file *file);
const struct tensor *tensor_file_at(const struct tensor_file *file, size_t index); /* by name */
const struct tensor *tensor_file_find(const struct tensor_file *file, const char *name);

/* Writing, for dumps and states: add tensors (data must stay valid; NULL leaves zeros, as a hole
 * of the file), then write atomically. Equal content gives equal bytes in any order of adding. */
struct tensor_writer;
struct tensor_writer *tensor_writer_create(void);
void tensor_writer_add(struct tensor_writer *writer, const char *name, enum dtype dtype, u32 rank,
                       const u64 *shape, const void *data);
void tensor_writer_metadata(struct tensor_writer *writer, const char *key, const char *value);
int tensor_writer_write(struct tensor_writer *writer, const char *path, struct error *error);
void tensor_writer_destroy(struct tensor_writer *writer);

/* ---- configuration (qwen3_5.md 1) */

struct model_config {
    char architecture[64];
    u32 hidden, intermediate, layers, vocab;
    u32 q_heads, kv_heads, head_dim; /* full attention */
    u32 rotary_dims;                 /* head_dim * partial_rotary_factor */
    double rope_theta;
    u32 gdn_k_heads, gdn_v_heads, gdn_k_dim, gdn_v_dim, conv_taps;
    double norm_eps;
    u32 max_positions;
    bool tie_embeddings;
    u32 eos[8], eos_count; /* generation_config's list, else config's plus the ids of
                              <|endoftext|> and <|im_end|> in the tokenizer's files */
    /* generation_config.json; absent keys: greedy off, temperature 1, top_p 1, top_k 0 */
    bool do_sample;
    double temperature, top_p;
    u32 top_k;
};

/* ---- tensors of the text model */

enum linear_kind { LINEAR_NONE, LINEAR_EXL3, LINEAR_PLAIN };
enum codebook { CODEBOOK_3INST, CODEBOOK_MCG, CODEBOOK_MUL1 };

struct model_linear {
    enum linear_kind kind;
    const char *name; /* without suffix, as in the files */
    u32 in, out;      /* of the model */
    /* EXL3; sizes padded to multiples of 128 */
    u32 in_padded, out_padded;
    u32 bits; /* K, 1..8 */
    enum codebook codebook;
    const u32 *trellis;   /* [in_padded/16, out_padded/16, 8*bits] u32 */
    const u16 *suh, *svh; /* F16 [in_padded], [out_padded]; old su/sv bit fields arrive expanded */
    /* plain: weight [out, in] */
    enum dtype weight_dtype; /* F16, BF16 or F32 */
    const void *weight;
};

struct model_vector {
    enum dtype dtype; /* F16, BF16 or F32 */
    u64 count;
    const void *data;
};

struct model_layer {
    bool attention;                            /* else Gated DeltaNet */
    struct model_vector input_norm, post_norm; /* [hidden], used as 1 + w */
    struct model_linear gate, up, down;        /* MLP */
    struct model_linear q, k, v, o;     /* attention; q gives [heads][query 256 | gate 256] */
    struct model_vector q_norm, k_norm; /* [head_dim], 1 + w */
    struct model_linear in_qkv, in_z, in_a, in_b, out; /* GDN; a, b plain */
    struct model_vector conv;                          /* [channels, 1, taps] */
    struct model_vector a_log, dt_bias;                /* [v heads] */
    struct model_vector gdn_norm;                      /* [v dim], plain w */
};

struct model {
    struct model_config config;
    char *folder;
    char *name;                    /* last part of the folder's path; the default API model id */
    struct model_vector embedding; /* [vocab, hidden] */
    struct model_layer *layers;
    struct model_vector final_norm;
    struct model_linear head;        /* tied models: plain, the embedding */
    u64 tensor_bytes;                /* of the text model */
    u32 tensor_count;                /* of the text model */
    u32 ignored_visual, ignored_mtp; /* tensors named in one info line */
    struct arena *arena;
    struct tensor_file **files;
    u32 file_count;
};

int model_open(struct model **model, const char *folder, struct error *error);
void model_close(struct model *model);

/* ---- draft models (spec dflash2.md): DFlash2 and DFlash */

#define DRAFT_TAPS_MAX 16
#define DRAFT_DEPTHS 7 /* drafted rows of a round */
#define DRAFT_LAYERS_MAX 32

struct draft_config {
    char architecture[64]; /* DFlash2DraftModel or DFlashDraftModel */
    u32 hidden, intermediate, layers, vocab;
    u32 q_heads, kv_heads, head_dim; /* head_dim 128, all of it rotary */
    double norm_eps, rope_theta;
    bool causal;                   /* inside the block */
    u32 windows[DRAFT_LAYERS_MAX]; /* of each layer, in tokens; 0 = the whole context */
    u32 block;                     /* rows of a pass, anchor included: 2..8 */
    u32 mask_token;                /* id of rows 1.. */
    u32 taps[DRAFT_TAPS_MAX];      /* target layers, 0-based, in the order of fc's columns */
    u32 tap_count;                 /* the stream AFTER each of them, shift applied */
    u32 conv_taps, conv_group;     /* 0: no convolutions (DFlash v1) */
    u32 selector_rank, top_k;      /* rank 0: no selector (DFlash v1); top_k 16 */
    double embedding_scale;        /* 1 when absent */
    double output_multiplier;      /* 1 when absent */
    double softcap;                /* 0 = off */
};

struct draft_layer {
    struct model_vector input_norm, post_norm; /* [hidden], plain w */
    struct model_vector q_norm, k_norm;        /* [head_dim], plain w */
    struct model_linear q, k, v, o, gate, up, down;
    /* convolutions; count 0 and kind LINEAR_NONE without */
    struct model_vector attention_conv, mlp_conv;             /* [2 sides, taps, hidden] */
    struct model_linear attention_projection, mlp_projection; /* out: side, tap, group */
};

/* Calibration of a lattice row (dflash2.md 6.1): x = score / temperature; the right token is among
 * the candidates with probability recall. */
struct draft_calibration {
    double temperature[DRAFT_DEPTHS], recall[DRAFT_DEPTHS];
};

struct draft_model {
    struct draft_config config;
    char *folder, *name;
    struct draft_layer *layers;
    struct model_linear fc;                       /* [taps * hidden] -> hidden */
    struct model_vector hidden_norm, final_norm;  /* [hidden], plain w */
    struct model_linear selector;                 /* hidden -> rank */
    struct model_vector predecessors, successors; /* [vocab, rank] */
    struct draft_calibration calibration; /* calibration.json of the folder, else built in */
    bool calibrated;                      /* it came from the folder */
    u32 *head_blocks;     /* ascending: blocks of 128 ids of the reduced head; NULL = all */
    u32 head_block_count; /* (draft_head.json of the folder) */
    u64 tensor_bytes;
    u32 tensor_count;
    struct arena *arena;
    struct tensor_file **files;
    u32 file_count;
};

/* Opens the draft in a folder for a target; tap_shift is added to every target_layer_ids entry.
 * Refuses, naming key and both values, what dflash2.md 2.2 lists. */
int draft_open(struct draft_model **draft, const char *folder, const struct model *target,
               i32 tap_shift, struct error *error);
void draft_close(struct draft_model *draft); /* NULL is fine */
/* A calibration as text of calibration.json. */
int draft_calibration_write(const struct draft_calibration *calibration, const char *path,
                            struct error *error);

/* ---- synthesised models (`elpis synth`): a real geometry, random weights in valid EXL3 */

struct synth_options {
    const char *geometry; /* one of model_synth_geometry */
    u64 seed;             /* equal seeds give equal bytes on every machine */
    /* 0 = the geometry's, 4 bits, 6 bits */
    u32 layers, vocab, bits, head_bits;
    u32 hidden, intermediate, q_heads, kv_heads; /* 0 = the geometry's */
    u32 k_heads, v_heads;                        /* targets: of Gated DeltaNet; 0 = as well */
    u32 window, rank;                            /* drafts: 0 = as well */
    u32 target_layers; /* drafts: layers of the target; 0 = the geometry's */
    u32 head_blocks;   /* drafts: blocks of 128 ids in draft_head.json; 0 = no such file */
    u32 threads;       /* 0 = one a core */
    bool hollow;       /* no weights: zeros that take no room on disk */
    bool force;        /* replace the model that is in the folder */
};
/* Name of geometry `index` and a line about it; NULL past the last. */
const char *model_synth_geometry(u32 index, const char **what);
/* Makes the folder where it is missing and everything in it: weights, configuration, and, but for
 * drafts, a tokenizer of exactly `vocab` ids and a chat template. *bytes: of the weights' file. */
int model_synth(const struct synth_options *options, const char *folder, u64 *bytes,
                struct error *error);
/* Whether the options are understood: what model_synth says before it writes. */
int model_synth_check(const struct synth_options *options, struct error *error);

/* ---- sizes.c: bytes of weights on the device, every piece rounded up to alignment; of state */

u64 model_linear_bytes(const struct model_linear *linear, u64 alignment);
u64 model_vector_bytes(const struct model_vector *vector, u64 alignment);
u64 model_layer_bytes(const struct model_layer *layer, u64 alignment);
u64 draft_layer_bytes(const struct draft_layer *layer, u64 alignment);
u32 model_attention_layers(const struct model *model);
u64 model_conv_channels(const struct model_config *config);
/* Keys and values of a token in all attention layers. kv_bits: 16, or of a quantised element. */
u64 model_token_bytes(const struct model *model, u32 kv_bits);
/* Recurrent states and convolution windows of all recurrent layers, f32. */
u64 model_state_bytes(const struct model *model);

/* ---- buffers of a prefill piece, laid over each other in one allocation (workspace.c) */

enum prefill_buffer {
    PREFILL_X,           /* f32 [rows, hidden] residual stream */
    PREFILL_SQUARES,     /* f32 [rows, hidden / 128] */
    PREFILL_TOKENS,      /* u32 [rows] */
    PREFILL_ROUND,       /* u32 [ROUND_WORDS] */
    PREFILL_MLP_SUMS,    /* f32 [rows, widest] products of gate and down, */
    PREFILL_MLP_SECOND,  /* of up */
    PREFILL_MLP_OPERAND, /* f16 [linears of a norm][rows, k] */
    PREFILL_Z,           /* f32 [rows, v heads * 128] */
    PREFILL_OPERAND,     /* f16 [linears of a norm][rows, k] of the mixers */
    PREFILL_SUMS,        /* f32 [rows, widest] products of the mixers */
    PREFILL_U,           /* f32 [rows, channels of the convolution] */
    PREFILL_NORMED,      /* f32 [rows, hidden] */
    PREFILL_AB,          /* f32 [rows, a | b of v heads] */
    PREFILL_Q,           /* f32 [rows, k heads * 128], */
    PREFILL_K,           /* the same */
    PREFILL_V,           /* f32 [rows, v heads * 128] */
    PREFILL_BETA,        /* f32 [rows, v heads], */
    PREFILL_G,           /* the same */
    PREFILL_CHUNK_U,     /* f32 [chunks, v heads, 64, 128], */
    PREFILL_CHUNK_W,     /* the same */
    PREFILL_CHUNK_P,     /* f32 [chunks, v heads, 64, 64] */
    PREFILL_DECAY,       /* f32 [chunks, v heads, 2, 64] */
    PREFILL_O,           /* f32 [rows, v heads * 128] */
    PREFILL_QG,          /* f32 [rows, q heads, q | gate] */
    PREFILL_MIXED,       /* f32 [rows, q heads * head dim] */
    PREFILL_KEY,         /* f32 [rows, kv heads * head dim], */
    PREFILL_VALUE,       /* the same */
    PREFILL_QUERY,       /* f16 [rows, q heads * head dim] */
    PREFILL_ACTIVATED,   /* f32 [rows, widest input] of unquantised linears */
    PREFILL_HIDDEN,      /* f32 [rows, intermediate] of an MLP that is not all quantised, */
    PREFILL_UP,          /* the same */
    PREFILL_BUFFERS
};
struct prefill_workspace {
    u64 offset[PREFILL_BUFFERS], bytes[PREFILL_BUFFERS];
    u64 total; /* bytes of the allocation */
};
/* rows: a multiple of 64. */
void model_prefill_workspace(const struct model *model, u64 rows, struct prefill_workspace *space);
/* True when both hold something at one step of a layer. */
bool prefill_buffers_share_step(enum prefill_buffer a, enum prefill_buffer b);

/* ---- memory plan (design.md 9): computed, never profiled */

struct memory_plan_line {
    char what[64];
    u64 bytes;
};
struct memory_plan {
    struct memory_plan_line lines[16];
    u32 count;
    u64 total;     /* sum of the lines, on the device */
    u64 available; /* the caller's to fill, before check and print; 0 = not known */
    u64 host;      /* page-locked host memory beside it: the embedding */
    u32 context, kv_bits;
};
/* Fills the plan for a context length (tokens), kv_bits 2..8 or 16, prefill piece rows; draft may
 * be NULL. */
void model_memory_plan(const struct model *model, const struct draft_model *draft, u32 context,
                       u32 kv_bits, u32 piece_rows, struct memory_plan *plan);
/* Attention spans (design: 64 tokens below 2,048, then 16 an octave) that a context touches. */
u32 memory_plan_spans(u32 context);
/* ERROR_MEMORY with the numbers when total is more than available; device names it. */
int memory_plan_check(const struct memory_plan *plan, const char *device, struct error *error);
/* The longest context, a multiple of 256 up to the model's maximum, whose plan fits into so many
 * bytes; 0 when none does. */
u32 memory_plan_longest(const struct model *model, const struct draft_model *draft, u32 kv_bits,
                        u32 piece_rows, u64 available);
/* The prefill piece where none is asked for, by the plan's numbers alone: the longest multiple of
 * 256 in 2,048 .. 4,096 rows with which the plan of `context` tokens (0: the model's maximum) stays
 * within 23.0 GiB, of a card of 24; 2,048 where none does. */
u32 memory_plan_piece(const struct model *model, const struct draft_model *draft, u32 context,
                      u32 kv_bits);
void memory_plan_print(const struct memory_plan *plan, struct buffer *text);

#endif
