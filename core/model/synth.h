/* synth.h - what the files of a synthesised model share: synth.c lists its tensors, synth_values.c
 * makes their numbers, synth_text.c its other files. model.h is the boundary. */
#ifndef ELPIS_MODEL_SYNTH_H
#define ELPIS_MODEL_SYNTH_H

#include "model/model_private.h"

#define SYNTH_INTERVAL 4 /* every fourth layer is attention (qwen3_5.md 1) */

/* A target (rank 0) or a DFlash2 draft. */
struct synth_geometry {
    const char *name, *what;
    u32 hidden, intermediate, layers, vocab;
    u32 q_heads, kv_heads; /* of 256 dims; a draft's of 128 */
    u32 k_heads, v_heads;  /* of Gated DeltaNet; 0 in a draft */
    /* a draft's */
    u32 target_layers, window, rank, tap_count, taps[DRAFT_TAPS_MAX];
};

/* One model to be made: the geometry as the options changed it. */
struct synth {
    struct synth_geometry geometry;
    u64 seed;
    u32 bits, head_bits, head_blocks;
    bool hollow;
};

/* ---- synth_values.c */

enum synth_kind { SYNTH_BITS, SYNTH_FLOATS, SYNTH_SCALES, SYNTH_MUL1 };
struct synth_recipe {
    enum synth_kind kind;
    u64 key;
    float centre, spread;
};
u64 synth_key(u64 seed, const char *name);
/* Bytes [begin, begin + size) of a tensor whose `data` is its recipe; begin is a multiple of 8. */
void synth_fill(const struct tensor *tensor, u64 begin, u64 size, u8 *bytes);

/* ---- synth_text.c: everything but the weights; files appear whole */
int synth_write_texts(const struct synth *synth, const char *folder, struct error *error);

#endif
