/* engine_private.h - what the files of engine/ share.
 *
 *   engine.c    opening and closing
 *   weights.c   model files -> device tensors
 *   plan.c      which kernels, which scratch memory
 *   linear.c    groups of decode linears: three launches each
 *   tree.c      a round's token tree: descriptor, acceptance (pure functions)
 *   decode.c    one pass of up to 8 rows
 *   prefill.c   one piece of a prompt
 *   state.c     the sequence: cache pages, GDN states, save and restore
 *   sample.c    logits -> token
 *   generate.c  requests
 *   evaluate.c  `elpis eval`
 *
 * The round descriptor (tree.h), u32 words in device memory, is all that changes from one decode
 * pass to the next, so that a pass is one graph.
 */
#ifndef ELPIS_ENGINE_PRIVATE_H
#define ELPIS_ENGINE_PRIVATE_H

#include "device/device.h"
#include "engine/engine.h"
#include "engine/tree.h"
#include "jit/jit.h"
#include "model/model.h"

enum {
    ROWS = 8,        /* rows of a decode pass */
    PAGE = 256,      /* positions of a cache page */
    HEAD_DIM = 256,  /* of full attention */
    GROUP_DIMS = 32, /* dims that share a cache scale */
    BLOCK = 128,     /* Hadamard block, exponent block, partial sum of squares */
    PARTS = 4,       /* matrices of a linear group */
    SPLITS = 4, /* a list of linears with one input splits into at most so many groups */
};

/* Up to four EXL3 matrices with one input, equal bits and equal codebook. */
struct linear_group {
    u32 count, k, n[PARTS];
    const struct model_linear *sources[PARTS];
    dptr trellis[PARTS]; /* u32 [k/16, n/16, 8*bits] */
    dptr suh[PARTS];     /* f16 [k] */
    dptr svh[PARTS];     /* f16 [n] */
    dptr output[PARTS];  /* f32 [8, n] */
    dptr lists;          /* u64 [4 lists][PARTS]: trellis, suh, svh, output */
    struct jit_kernel *input, *main, *finish;
    bool residual; /* output is the residual stream */
};

/* An unquantised matrix of a set: [out, in] as in the file. */
struct plain_linear {
    const struct model_linear *source;
    dptr weight;
    dptr output; /* f32 [8, out] */
    struct jit_kernel *product;
};

/* All linears that read one input: EXL3 groups and unquantised matrices. */
struct linear_set {
    struct linear_group groups[SPLITS];
    u32 count;
    struct plain_linear plains[PARTS];
    u32 plain_count;
    struct jit_kernel *activate, *residual; /* of the unquantised */
};

struct device_layer {
    bool attention;
    dptr input_norm, post_norm; /* f32 [hidden], 1 + w */
    struct linear_set mixer_in, mixer_out, gate_up, down;
    /* Gated DeltaNet */
    dptr weight_a, weight_b; /* [v heads, hidden] as in the file */
    enum dtype ab_dtype;
    dptr conv, a_log, dt_bias, gdn_norm; /* f32 */
    dptr state, window;                  /* f32 [v heads, 128, 128], [3, channels] */
    /* attention */
    dptr q_norm, k_norm; /* f32 [256], 1 + w */
    dptr k_codes, k_scales, v_codes, v_scales;
};

/* Scratch of a decode pass; rows are 8. */
struct decode_buffers {
    dptr x, squares;                   /* f32 [8, hidden], [8, hidden/128] */
    dptr act, exponents, digits, sums; /* of the linear group that runs */
    dptr activated, plain;     /* f32 [8, widest input], [8, hidden]: of unquantised linears */
    dptr u, z, ab, q, k, v, o; /* GDN */
    dptr qg, key, value, q_planes, q_scale, part, stat, mixed; /* attention */
    dptr gate, up;                                             /* MLP */
    dptr logits;                                               /* f32 [8, vocab padded] */
    dptr bad;                                                  /* u32 [8] */
    dptr round;                                                /* u32 [ROUND_WORDS] */
    dptr hidden_rows; /* f32 [layers, 8, hidden]; 0 unless evaluating */
};

struct prefill;
struct sampler;

struct engine {
    struct model *model;
    struct device *device;
    struct jit *jit;
    u32 context, kv_bits, piece;
    bool prefill_exact;
    bool failed;    /* a fatal device error: nothing is answered any more */
    dptr embedding; /* device address of the page-locked table */
    void *embedding_host;
    struct device_layer *layers;
    dptr final_norm;
    struct linear_set head;
    u32 vocab_stride, valid_vocab; /* columns of logits; ids that may be sampled */
    dptr frequencies;              /* u64 [rotary/2] */
    dptr pages;                    /* u32 [context/256] */
    struct decode_buffers buffers;
    u32 *round_host; /* page-locked */
    dptr round_address;
    struct {
        struct jit_kernel *embed, *ab, *conv, *step, *prepare, *attend, *combine;
    } kernels;
    struct device_graph *decode_graph;
    struct prefill *prefill;
    struct sampler *sampler;
    u32 position;      /* tokens the sequence state holds */
    dptr *allocations; /* of engine_alloc, freed at closing */
    u32 allocation_count;
};

/* Launches in a function that has `engine` and `error`; returns -1 from it on failure. */
#define LAUNCH(kernel, ...)                                                                   \
    do {                                                                                      \
        const u64 arguments_[] = {__VA_ARGS__};                                               \
        if (jit_launch(engine->jit, NULL, (kernel), arguments_, COUNT_OF(arguments_), error)) \
            return -1;                                                                        \
    } while (0)

/* ---- memory that lives as long as the engine */
int engine_alloc(struct engine *engine, size_t bytes, const char *label, dptr *address,
                 struct error *error);
int engine_upload(struct engine *engine, const void *data, size_t bytes, const char *label,
                  dptr *address, struct error *error);

/* ---- weights.c */
int weights_upload(struct engine *engine, struct error *error);
/* f32 copy of a vector, plus `add`; freed with memory_free. */
float *weights_to_f32(const struct model_vector *vector, float add);

/* ---- linear.c */
int linear_set_build(struct engine *engine, struct linear_set *set,
                     const struct model_linear *const *sources, const dptr *outputs, u32 count,
                     const char *mode, bool residual, struct error *error);
/* x: f32 [rows, k]; y: second source; squares, weight: of the norm. */
int linear_set_launch(struct engine *engine, const struct linear_set *set, dptr x, dptr y,
                      dptr weight, struct error *error);
/* Name of a plain dtype and of a codebook as the schedules know them; bits of an f32 parameter. */
const char *codebook_name(enum codebook codebook);
u32 float_bits(double value);
/* Largest scratch a set needs. */
struct linear_scratch {
    u64 act, exponents, sums, activated; /* bytes */
};
void linear_set_scratch(const struct linear_set *set, struct linear_scratch *most);

/* ---- plan.c */
int plan_buffers(struct engine *engine, struct error *error);
int plan_kernels(struct engine *engine, struct error *error);

/* ---- decode.c: runs the rows that round_host describes */
void decode_set_round(struct engine *engine, const u32 *tokens, u32 rows, u32 position);
int decode_pass(struct engine *engine, struct error *error);

/* ---- prefill.c */
int prefill_open(struct engine *engine, struct error *error);
void prefill_close(struct engine *engine);
/* Tokens at engine->position .. + count; count <= engine->piece; position a multiple of 256.
 * hidden: f32 host [count, layers, hidden] or NULL. Moves engine->position. */
int prefill_piece(struct engine *engine, const u32 *tokens, u32 count, float *hidden,
                  struct error *error);

/* ---- state.c */
int state_alloc(struct engine *engine, struct error *error);
int state_reset(struct engine *engine, struct error *error);
int state_save(struct engine *engine, const char *path, struct error *error);
int state_load(struct engine *engine, const char *path, struct error *error);

/* ---- sample.c */
int sampler_open(struct engine *engine, struct error *error);
void sampler_close(struct engine *engine);
/* Starts a request: settings and the tokens that penalties count. */
int sampler_begin(struct engine *engine, const struct engine_sampling *sampling, const u32 *prompt,
                  u32 count, struct error *error);
/* Token of row `row` of the pass that just ran, to follow position `position`. */
int sampler_next(struct engine *engine, u32 row, u32 position, u32 *token, struct error *error);

#endif
