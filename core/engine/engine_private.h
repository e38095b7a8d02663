/* engine_private.h - what the files of engine/ share.
 *
 *   engine.c    opening and closing
 *   weights.c   model files -> device tensors
 *   upload.c    large ones of them, by several threads
 *   plan.c      which kernels, which scratch memory
 *   linear.c    groups of decode linears: two or three launches each
 *   tree.c      a round's token tree: descriptor, acceptance (pure functions)
 *   decode.c    one pass of up to 8 rows, and the commit of what it verified
 *   draft.c     the draft model: its context and its pass
 *   round.c     draft, verify, sample: one round
 *   prefill.c   one piece of a prompt
 *   state.c     the sequence: cache pages, GDN states, save and restore
 *   snapshot.c  states of prompts, for those that begin alike
 *   sample.c    logits -> token
 *   generate.c  requests
 *   evaluate.c  `elpis eval`
 *   calibrate.c `elpis calibrate`: samples of rounds, and what is fitted to them
 *   measure.c   `elpis bench`: times of passes, rounds and prompts (measure.h)
 *   traffic.c   the bytes that these cannot do without (traffic.h)
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
    SPLITS = 4,      /* a list of linears with one input splits into at most so many groups */
};

/* An uploaded matrix whose tiles lie as in the file: packed once the kernels are there. */
struct trellis_pack {
    struct jit_kernel *kernel;
    dptr trellis;
    u32 count; /* of four tiles */
};

/* Up to four EXL3 matrices with one input, equal bits and equal codebook. */
struct linear_group {
    u32 count, k, n[PARTS];
    const struct model_linear *sources[PARTS];
    dptr trellis[PARTS]; /* u32 [k/16, n/64, 8*bits, 4] */
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

/* Keys and values in their cached form: codes and scales (state.c). */
struct kv_store {
    dptr k_codes, k_scales, v_codes, v_scales;
};

/* gate, up and down; middle: both halves' own kernel, where they are one EXL3 group each. */
struct linear_mlp {
    struct linear_set gate_up, down;
    struct jit_kernel *middle;
};

struct device_layer {
    bool attention;
    dptr input_norm, post_norm; /* f32 [hidden], 1 + w */
    struct linear_set mixer_in, mixer_out;
    bool joined; /* what lies between both reads sums and writes activations (linear.c) */
    struct linear_mlp mlp;
    /* Gated DeltaNet */
    dptr weight_a, weight_b; /* [v heads, hidden] as in the file */
    enum dtype ab_dtype;
    struct jit_kernel *input, *convolve, *output; /* output: of joined layers */
    dptr conv, a_log, dt_bias, gdn_norm;          /* f32 */
    dptr state, window;                           /* f32 [v heads, 128, 128], [3, channels] */
    dptr u, q, k, v, ab;                          /* of the round's rows: what a commit replays */
    /* attention */
    struct jit_kernel *prepare, *combine;
    dptr q_norm, k_norm;        /* f32 [256], 1 + w */
    struct kv_store cache, own; /* all positions; the round's 8 rows */
};

/* What a commit moves in all layers at once; the layers' own addresses point into it. */
struct gdn_layers {
    u32 count;
    dptr a_log, dt_bias; /* f32 [count, v heads] */
    dptr state, window;  /* f32 [count, v heads, 128, 128], [count, 3, channels] */
    dptr u, q, k, v, ab; /* f32 [count, 8, width] */
};
struct attention_layers {
    u32 count;
    dptr caches, owns; /* u64 [count, 4]: addresses of a struct kv_store */
};

/* Scratch of a decode pass; rows are 8. */
struct decode_buffers {
    dptr x, squares;                   /* f32 [8, hidden], [8, hidden/128] */
    dptr act, exponents, digits, sums; /* of the linear group that runs */
    dptr scales;                       /* u64 [PARTS, 8, 2] */
    dptr activated, plain; /* f32 [8, widest input], [8, hidden]: of unquantised linears */
    dptr z, o;             /* GDN */
    dptr qg, key, value, q_planes, q_scale, part, stat, mixed; /* attention */
    dptr gate, up;                                             /* MLP */
    dptr logits;                                               /* f32 [8, vocab padded] */
    dptr bad;                                                  /* u32 [8] */
    dptr round;       /* u32 [ROUND_WORDS], of the pass that runs */
    dptr hidden_rows; /* f32 [layers, 8, hidden]; 0 unless evaluating */
};

struct prefill;
struct sampler;
struct drafter;
struct uploader;
struct measure;
struct snapshots;

/* What is launched a round, recorded the first time; NULL: not yet. */
struct pass_graphs {
    struct device_graph *decode, *commit, *draft, *follow;
};

struct engine {
    struct model *model;
    struct draft_model *draft; /* NULL: no speculation */
    struct device *device;
    struct jit *jit;
    u32 context, kv_bits, piece;
    enum engine_prefill prefill_kind;
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
    u32 *round_host, *commit_host; /* page-locked descriptors on their way to buffers.round */
    u32 *record_host;              /* the draft's, on its way here */
    struct device_event *record_there;
    u32 fault_every; /* tests: every such round's record is made wrong */
    struct {
        struct jit_kernel *embed, *step, *attend;
        struct jit_kernel *replay, *window, *store; /* of a commit */
    } kernels;
    struct gdn_layers gdn;
    struct attention_layers attention;
    struct pass_graphs graphs;
    struct prefill *prefill;
    struct sampler *sampler;
    struct drafter *drafter;     /* NULL: no speculation */
    dptr prefill_stream;         /* residual stream of a prefill piece */
    u32 position;                /* tokens the sequence state holds */
    struct snapshots *snapshots; /* NULL: none are kept */
    u32 resumed;                 /* position from which the last prompt was computed */
    struct measure *measure;     /* hears the marks between launches; NULL but in `elpis bench` */
    bool phases;                 /* it times phases: launches one by one instead of graphs */
    struct trellis_pack *packs;  /* until linear_pack */
    u32 pack_count;
    struct uploader *uploader; /* while opening */
    dptr *allocations;         /* of engine_alloc, freed at closing */
    u32 allocation_count;
};

/* Launches in a function that has `engine` and `error`; returns -1 from it on failure. */
#define LAUNCH(kernel, ...)                                                                   \
    do {                                                                                      \
        const u64 arguments_[] = {__VA_ARGS__};                                               \
        if (jit_launch(engine->jit, NULL, (kernel), arguments_, COUNT_OF(arguments_), error)) \
            return -1;                                                                        \
    } while (0)

/* ---- measure.c: marks between launches, for `elpis bench` */

/* What the launches since the mark before belong to. */
enum phase {
    PHASE_EMBED,
    PHASE_INPUT, /* norms and linears in front of a mixer */
    PHASE_GDN,   /* convolution and recurrence */
    /* of a prompt's pieces; EMBED, ATTENTION, TAP and FOLLOW are theirs too */
    PHASE_TRANSFORM, /* norms and Hadamards in front of linears */
    PHASE_WEIGHTS,   /* matrices from trellises */
    PHASE_PRODUCT,
    PHASE_RESULT,    /* Hadamards and residuals behind linears; between gate, up and down */
    PHASE_GDN_INPUT, /* a and b, convolution, window, gates */
    PHASE_GDN_CHUNK,
    PHASE_GDN_SCAN,
    PHASE_PREPARE, /* queries; keys and values into the cache */
    PHASE_ATTENTION,
    PHASE_OUTPUT, /* linears behind a mixer */
    PHASE_MLP,
    PHASE_TAP, /* what the draft keeps of a layer */
    PHASE_HEAD,
    PHASE_SAMPLER,
    PHASE_COMMIT,
    PHASE_FOLLOW, /* the draft's context of committed rows */
    PHASE_DRAFT_LAYERS,
    PHASE_DRAFT_ATTENTION,
    PHASE_DRAFT_HEAD,
    PHASE_DRAFT_TREE,
    PHASE_FIRST, /* of a prompt: the round that gives the first token */
    PHASE_COUNT,
    PHASE_VERIFY = PHASE_COUNT /* both ends of a round's verify pass */
};
int measure_mark(struct engine *engine, enum phase phase, struct error *error);

/* In a prompt's pieces, and inside what decode_graph records, which is launched anew while phases
 * are timed. */
static inline int phase_ends(struct engine *engine, enum phase phase, struct error *error)
{
    return engine->phases ? measure_mark(engine, phase, error) : 0;
}

/* Before and behind a round's verify pass. */
static inline int verify_mark(struct engine *engine, struct error *error)
{
    return engine->measure ? measure_mark(engine, PHASE_VERIFY, error) : 0;
}

/* ---- memory that lives as long as the engine */
int engine_alloc(struct engine *engine, size_t bytes, const char *label, dptr *address,
                 struct error *error);
int engine_upload(struct engine *engine, const void *data, size_t bytes, const char *label,
                  dptr *address, struct error *error);
/* The same by upload.c: for large data that stays where it is until uploader_finish. */
int engine_upload_later(struct engine *engine, const void *data, size_t bytes, const char *label,
                        dptr *address, struct error *error);

/* ---- upload.c */

/* staged: through page-locked slots; else device memory is host memory. */
struct uploader *uploader_create(struct device *device, bool staged);
void uploader_destroy(struct uploader *uploader); /* NULL is fine; what is not done is dropped */
/* Copies to the device or to host memory, some time before uploader_finish returns. */
int uploader_add(struct uploader *uploader, dptr to, const void *from, size_t bytes,
                 struct error *error);
int uploader_add_host(struct uploader *uploader, void *to, const void *from, size_t bytes,
                      struct error *error);
/* Returns when all is there; more may be added afterwards. After a failure nothing is copied any
 * more and nothing may be added. Either way no source is read after it. */
int uploader_finish(struct uploader *uploader, struct error *error);

/* ---- weights.c */
int weights_upload(struct engine *engine, struct error *error);
/* Vector + add as f32 in device memory. */
int weights_upload_f32(struct engine *engine, const struct model_vector *vector, float add,
                       const char *label, dptr *address, struct error *error);
/* f32 copy of a vector, plus `add`; freed with memory_free. */
float *weights_to_f32(const struct model_vector *vector, float add);

/* ---- linear.c */
int linear_set_build(struct engine *engine, struct linear_set *set,
                     const struct model_linear *const *sources, const dptr *outputs, u32 count,
                     const char *mode, bool residual, struct error *error);
/* After jit_build: brings the uploaded trellises into the kernels' order. */
int linear_pack(struct engine *engine, struct error *error);
int linear_set_alias(struct engine *engine, const struct linear_set *from, const char *mode,
                     struct linear_set *to, struct error *error);
/* x: f32 [rows, k]; y: second source; squares, weight: of the norm. */
int linear_set_launch(struct engine *engine, const struct linear_set *set, dptr x, dptr y,
                      dptr weight, struct error *error);
/* When both sets are built; and down(silu(gate x) * up x). gate, up: where the halves go when they
 * take the long way. */
int linear_mlp_build(struct engine *engine, struct linear_mlp *mlp, struct error *error);
int linear_mlp_launch(struct engine *engine, const struct linear_mlp *mlp, dptr x, dptr weight,
                      dptr gate, dptr up, struct error *error);
/* Whether both are one EXL3 group, the first of `parts` matrices: then kernels between them may
 * read the sums of the first and write the activations of the second (templates/lib_linear.cu). */
bool linear_can_join(const struct linear_set *first, u32 parts, const struct linear_set *second);
/* The first from its activations, or what they are made of, up to its sums; and the second from its
 * activations on. */
int linear_join_main(struct engine *engine, const struct linear_set *first, struct error *error);
int linear_join_begin(struct engine *engine, const struct linear_set *first, dptr x, dptr weight,
                      struct error *error);
int linear_join_end(struct engine *engine, const struct linear_set *second, struct error *error);
/* Address lists of an only group, [PARTS]. */
dptr linear_suh(const struct linear_set *set);
dptr linear_svh(const struct linear_set *set);
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
int plan_scratch(struct engine *engine, struct error *error); /* when all kernels are requested */

/* ---- decode.c */

/* Sends words of round_host or commit_host to the device, for the pass that follows. */
int decode_describe(struct engine *engine, const u32 *words, struct error *error);
/* Runs the rows that buffers.round describes. */
int decode_pass(struct engine *engine, struct error *error);
/* Records what `launch` launches, the first time; then replays it. */
int decode_graph(struct engine *engine, struct device_graph **graph,
                 int (*launch)(struct engine *engine, struct error *error), struct error *error);
void pass_graphs_destroy(struct engine *engine, struct pass_graphs *graphs); /* all NULL then */
/* Committed tokens at engine->position .. + rows: describes, runs, moves the whole state. */
int decode_feed(struct engine *engine, const u32 *tokens, u32 rows, struct error *error);
/* After a verify pass: makes the verdict's rows part of the state and moves engine->position. */
int decode_commit(struct engine *engine, const struct tree_verdict *verdict, struct error *error);

/* ---- round.c */

/* What rounds of a request did. */
struct round_counts {
    u32 rounds, drafted, accepted, recomputed;
};
/* One round from row 0 = token at engine->position: proposes, verifies, samples. Afterwards
 * sampled[r] is the token after row r of *tree. */
int round_verify(struct engine *engine, const struct engine_request *request, u32 token, u32 budget,
                 struct engine_proposal *tree, u32 sampled[ROWS], struct round_counts *counts,
                 struct error *error);
/* Makes the verdict's rows part of the state; a plain round's pass has done so itself. */
int round_commit(struct engine *engine, const struct engine_request *request,
                 const struct tree_verdict *verdict, struct round_counts *counts,
                 struct error *error);
/* One row a pass, no proposals. */
bool round_is_plain(const struct engine *engine, const struct engine_request *request);

/* ---- generate.c */

/* Starts a request: all of its prompt but the last token, from the longest snapshot on. */
int generate_prompt(struct engine *engine, const struct engine_request *request,
                    struct error *error);

/* ---- prefill.c */
int prefill_open(struct engine *engine, struct error *error);
void prefill_close(struct engine *engine);
/* Tokens at engine->position .. + count; count <= engine->piece; position a multiple of 256.
 * hidden: f32 host [count, layers, hidden] or NULL. Moves engine->position. */
int prefill_piece(struct engine *engine, const u32 *tokens, u32 count, float *hidden,
                  struct error *error);
/* What one launch of a prefill kernel over `rows` rows at the engine's position must move through
 * the memory, each byte once: weights, operands, sums and rows, which the L2 does not hold. 0 where
 * it is little: gates, windows, the draft's context. */
u64 prefill_kernel_bytes(const struct engine *engine, const struct jit_kernel *kernel, u32 rows);

/* ---- draft.c: what follows the tokens of a sequence, and proposes */
int drafter_open(struct engine *engine, const struct engine_options *options, struct error *error);
void drafter_close(struct engine *engine);
/* After a layer of a pass, of a prefill piece's `rows` rows: keeps the stream if it is tapped. */
int drafter_tap(struct engine *engine, u32 layer, struct error *error);
int drafter_tap_piece(struct engine *engine, u32 layer, u32 rows, struct error *error);
/* Context of the rows that the commit's descriptor in buffers.round names. */
int drafter_follow(struct engine *engine, struct error *error);
/* Prefill: the prompt ends at position `end`, only what is then in the window matters; context of
 * the piece of `rows` tokens that ends at engine->position. */
void drafter_begin(struct engine *engine, u32 end);
int drafter_follow_piece(struct engine *engine, u32 rows, struct error *error);
/* Leaves the verify's descriptor in buffers.round: row 0 is `token` at engine->position, at most
 * `depth` drafted tokens on a path. */
int drafter_propose(struct engine *engine, u32 token, u32 depth, struct error *error);
/* What the last pass was built from: for calibration and tests. */
struct drafter_view {
    u32 ids[DRAFT_DEPTHS][16]; /* candidates of each drafted row, best first */
    float scores[97][16];      /* lattice: row 0, then 16 a drafted row */
    float *state;              /* [8, hidden]: the block after the last norm; NULL = not wanted */
};
int drafter_read(struct engine *engine, struct drafter_view *view, struct error *error);
/* Largest scratch of linears it needs; NULL drafter: none. */
void drafter_scratch(const struct engine *engine, struct linear_scratch *most);
/* What it remembers of the sequence, layer by layer; false: no such layer. */
bool drafter_memory(const struct engine *engine, u32 layer, dptr *keys, dptr *values, u64 *bytes);

/* ---- state.c */
/* Bytes: of the keys, as of the values, of one slot in one layer; of gdn.state and gdn.window. */
struct state_sizes {
    u64 codes, scales, recurrent, windows;
};
struct state_sizes state_sizes(const struct engine *engine);
int state_alloc(struct engine *engine, struct error *error);
int state_reset(struct engine *engine, struct error *error);
int state_save(struct engine *engine, const char *path, struct error *error);
int state_load(struct engine *engine, const char *path, struct error *error);

/* ---- snapshot.c */
/* Keeps as many snapshots as `bytes` of host memory hold; 0: none. */
int snapshots_open(struct engine *engine, u64 bytes, struct error *error);
void snapshots_close(struct engine *engine);
/* The cache is about to hold something else than the last prompts. */
void snapshots_forget(struct engine *engine);
/* The state in front of a prompt of which `count` tokens will be computed: that of the longest
 * snapshot of its beginning, or none. Sets engine->position and engine->resumed. */
int snapshots_resume(struct engine *engine, const u32 *prompt, u32 count, struct error *error);
/* Where the piece of these `count` tokens that begins at engine->position ends. */
u32 snapshots_stop(const struct engine *engine, u32 count);
/* After a piece: takes a snapshot if the position allows. */
int snapshots_take(struct engine *engine, const u32 *prompt, struct error *error);

/* ---- sample.c */
int sampler_open(struct engine *engine, struct error *error);
void sampler_close(struct engine *engine);
/* Starts a request: settings and the tokens that penalties count. */
int sampler_begin(struct engine *engine, const struct engine_sampling *sampling, const u32 *prompt,
                  u32 count, struct error *error);
/* Tokens after every row of the pass that just ran: launched, and then waited for. A row whose
 * logits were not finite has a token of 0xffffffff. */
int sampler_launch(struct engine *engine, struct error *error);
int sampler_read(struct engine *engine, u32 rows, u32 *tokens, struct error *error);
/* Tells the sampler of a token that was emitted. */
int sampler_note(struct engine *engine, u32 token, struct error *error);

#endif
