/* traffic.h - the bytes that a pass cannot do without, pure functions of shapes.
 *
 * What must cross the memory of the device at least, each byte once a use (elpis.md 11): weights,
 * the cached keys and values that the rows see, recurrent states, and what the rows of a round
 * leave for its commit. Activations between two kernels are taken for found in the L2. A
 * pass that took no longer than a copy of so many bytes would be at the limit of the memory.
 */
#ifndef ELPIS_TRAFFIC_H
#define ELPIS_TRAFFIC_H

#include "base/base.h"
#include "model/model.h"

struct traffic {
    u64 weights;    /* linears with the head, norms, convolutions */
    u64 cache;      /* keys and values */
    u64 state;      /* recurrent states and convolution windows */
    u64 rows;       /* logits; what the rows leave for the commit and the draft */
    u64 embeddings; /* in the host's memory: not in the sum */
};

/* A sequence of `position` tokens. draft: NULL = none. */
struct traffic_case {
    const struct model *model;
    const struct draft_model *draft;
    u32 kv_bits, position;
};

/* A pass over `rows` rows and the sampler. keep: it moves the state itself (plain decoding); else
 * it only reads it. */
struct traffic traffic_verify(const struct traffic_case *of, u32 rows, bool keep);
/* The draft's pass, from its embeddings to the tree. Only with a draft. */
struct traffic traffic_draft(const struct traffic_case *of);
/* The commit of `rows` rows; with a draft, their way into its context. */
struct traffic traffic_commit(const struct traffic_case *of, u32 rows);

struct traffic traffic_sum(struct traffic a, struct traffic b);
u64 traffic_bytes(struct traffic traffic); /* all but the embeddings */

#endif
