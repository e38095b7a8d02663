/* measure.h - `elpis bench`: how long passes, rounds and prompts take.
 *
 * A context is measured without computing it: caches, recurrent states, windows and the draft's
 * rings are filled with seeded random data in their formats, and the sequence is declared to be so
 * long. Times do not depend on values. `context` counts the tokens that the last row of a pass of 8
 * would see, itself included: row 0 stands at context - 8.
 *
 * Times of launches are taken on the device, between events around them, while the next ones are
 * queued already. Every measurement warms up first, then repeats at least `repeats` times and for
 * at least `seconds`, until go_on says no.
 */
#ifndef ELPIS_MEASURE_H
#define ELPIS_MEASURE_H

#include "device/device.h"
#include "engine/engine.h"
#include "engine/traffic.h"

enum { SERIES_MOST = 1000 };
struct series {
    u32 count;
    double values[SERIES_MOST]; /* seconds, in the order they were taken */
};

struct measure_options {
    u32 repeats;    /* 1 .. SERIES_MOST */
    double seconds; /* 0 = as long as the repeats take */
    /* Asked between repetitions; false: what was measured until then is the result. NULL = go on */
    bool (*go_on)(void *user);
    void *user;
};

struct measure;
/* Fills the state with random data and measures the copy bandwidth. */
int measure_open(struct measure **measure, struct engine *engine,
                 const struct measure_options *options, struct error *error);
void measure_close(struct measure *measure); /* NULL is fine; before the engine */

double measure_copy_bandwidth(const struct measure *measure);  /* bytes a second, read + written */
const char *measure_no_sensors(const struct measure *measure); /* why; NULL: there are sensors */
const struct draft_model *measure_draft_model(const struct measure *measure); /* NULL = none */
u32 measure_kv_bits(const struct measure *measure);

/* ---- for the tuner: passes that it runs and times itself */

enum measure_kind {
    MEASURE_VERIFY, /* a chain of 8 rows and the whole sampler: tokens are drawn */
    MEASURE_COMMIT, /* of 4 rows, with the draft's context */
    MEASURE_DRAFT,
    MEASURE_PIECE, /* of a prompt, as long as the engine's are; it ends at the context, or where a
                      first piece does */
    MEASURE_KINDS
};
const char *measure_kind_name(enum measure_kind kind); /* "verify", "commit", "draft", "prompt" */
/* No draft without a draft model, no piece with prefill exact. */
bool measure_has(const struct measure *measure, enum measure_kind kind);
/* Makes the state that the pass finds. A verify and a draft change nothing of it; of the others the
 * time does not depend on what they change. */
int measure_begin(struct measure *measure, enum measure_kind kind, u32 context,
                  struct error *error);
/* The pass that was begun last: as a round does it, without waiting; or its launches one by one,
 * waited for, so that each is seen by who watches them. */
int measure_launch(struct measure *measure, struct error *error);
int measure_launch_singly(struct measure *measure, struct error *error);
/* Begins a verify whose tokens are the largest logits', as `elpis bench` does; *bytes: what it
 * moves at least (traffic.h). */
int measure_begin_greedy(struct measure *measure, u32 context, u64 *bytes, struct error *error);
/* The graphs of another set of kernels become current, and those of this one are kept; of the
 * second set there are none at first. To be called with every exchange of kernels. */
void measure_swap_graphs(struct measure *measure);
/* Of both sets: what is launched next is recorded anew. */
void measure_drop_graphs(struct measure *measure);
/* Of the last verify: f32 [8, columns]; NULL on failure; memory_free. */
float *measure_logits(struct measure *measure, u64 *bytes, struct error *error);
struct jit *measure_jit(struct measure *measure);
struct device *measure_device(struct measure *measure);

/* ---- a pass by itself: back to back, on the device */

struct measured_pass {
    struct series seconds;
    struct traffic traffic;
    struct device_readings readings;
    bool finite; /* the logits were numbers */
};
/* A verify of the tree (tokens are filled in) and the sampler. */
int measure_verify(struct measure *measure, u32 context, const struct engine_proposal *tree,
                   struct measured_pass *result, struct error *error);
/* The draft's pass, and the commit of the first `rows` rows, of which the draft takes note. */
int measure_draft(struct measure *measure, u32 context, struct measured_pass *result,
                  struct error *error);
int measure_commit(struct measure *measure, u32 context, u32 rows, struct measured_pass *result,
                   struct error *error);

/* ---- whole rounds as a request runs them: draft, verify, the host's verdict, commit */

struct measured_round {
    struct series wall;                  /* from one round's tokens to the next one's */
    struct series draft, verify, commit; /* on the device; draft 0 without one */
    struct series gap;                   /* wall - device: the device waited for the host */
    double rows;                         /* of a verify, mean */
    u32 recomputed;                      /* rounds whose record did not pass the host's check */
    struct traffic traffic;
    struct device_readings readings;
};
/* The verdict is made up: rows 0 .. accepted - 1, whatever was drafted (a commit's time depends on
 * their number alone). Without a draft a round is one row, which is its own commit. */
int measure_rounds(struct measure *measure, u32 context, u32 accepted,
                   struct measured_round *result, struct error *error);

/* ---- where a round goes: launches one by one, an event behind every phase */

enum { MEASURE_PHASES = 24 };
struct measured_phases {
    struct series phase[MEASURE_PHASES]; /* sum over the layers; count 0: not in this engine */
    struct series whole;
};
const char *measure_phase_name(u32 phase);
/* Draft (if there is one), a verify of a chain of `rows` rows, commit of `accepted` (with a draft).
 * Kernels of two phases do not overlap, as they do in a graph. */
int measure_phases(struct measure *measure, u32 context, u32 rows, u32 accepted,
                   struct measured_phases *result, struct error *error);

/* ---- prompts */

struct measured_prompt {
    struct series prefill; /* all tokens but the last, wall clock */
    struct series first;   /* until the first token of the answer is known, from the beginning */
    bool finite;           /* the logits of the last row were numbers */
    struct device_readings readings;
};
/* A prompt of random ids, at most as long as the context; at least one, and three if that takes
 * less than 10 seconds each. Overwrites the state: measure contexts afterwards as before. */
int measure_prompt(struct measure *measure, u32 tokens, struct measured_prompt *result,
                   struct error *error);
/* Where such a prompt goes: phases summed over its pieces, and the round that gives the first
 * token, as one phase. Weights are made in front of their products, not beside others as in
 * measure_prompt, so the sum may be more than that. */
int measure_prompt_phases(struct measure *measure, u32 tokens, struct measured_phases *result,
                          struct error *error);

/* ---- requests as a server runs them, without it */

struct measured_request {
    struct series prefill; /* all tokens of the prompt but the last, wall clock */
    struct series round;   /* mean of a reply's rounds, wall clock */
    u32 warm_up;           /* tokens of the warm-up's prompt */
};
/* Greedy replies of `reply` tokens to a prompt, repeated as prompts are. ids[0] becomes the next
 * id before each repetition and before the warm-up, so that no prompt begins like one before. */
int measure_request(struct measure *measure, u32 *ids, u32 count, u32 reply,
                    struct measured_request *result, struct error *error);
void measure_random_ids(struct measure *measure, u32 *ids, u32 count);
/* vocab: measure_vocab, ids that may be sampled. */
void measure_next_prompt(u32 *ids, u32 vocab);
u32 measure_vocab(const struct measure *measure);

#endif
