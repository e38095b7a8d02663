/* engine.h - a model on a device, and the sequence it is working on.
 *
 * engine_open loads a model, plans and compiles its kernels and uploads the
 * weights. engine_generate runs one request: prompt pieces through the prefill
 * kernels, then rounds through the decode kernels. One thread uses an engine at a
 * time. The contract (design.md 4.3): a token depends only on its prefix and the
 * request's sampling settings, not on how the prompt was cut, how many rows a pass
 * had, the tuning or the device; nor on whether its beginning was there from a prompt before.
 */
#ifndef ELPIS_ENGINE_H
#define ELPIS_ENGINE_H

#include "base/base.h"
#include "device/device.h"
#include "model/model.h"

/* How prompts are computed; a plan names it. */
enum engine_prefill {
    ENGINE_PREFILL_FAST,    /* the default: by kernels of their own */
    ENGINE_PREFILL_EXACT,   /* by the decode kernels */
    ENGINE_PREFILL_INT8_QK, /* as fast, but Q K^T of int8: takes a cache of 2..8 bits */
    ENGINE_PREFILL_KINDS,
};
/* As --prefill has it: "fast", "exact", "int8-qk". */
const char *engine_prefill_name(enum engine_prefill kind);
/* The kind of that name; false: there is none, *kind is as it was. */
bool engine_prefill_named(struct slice name, enum engine_prefill *kind);

struct engine_options {
    struct device_options device;
    u32 context; /* tokens a sequence may have; 0 = the model's maximum, or what fits */
    u32 kv_bits; /* 2..8, 16 = fp16; 0 = 3 */
    u32 piece;   /* prefill piece in tokens, a multiple of 256; 0 = memory_plan_piece */
    enum engine_prefill prefill;
    u32 valid_vocab;   /* ids from here on are never sampled (tokenizer_count); 0 = model's vocab */
    u64 plan_seed;     /* 0 = default tuning; else random legal tuning parameters */
    const char *cache; /* kernel cache folder; NULL = default search (design.md 6) */
    const char *schedules; /* folder that overrides the embedded schedules; NULL = embedded */
    const char *records;   /* folder of tuning records; NULL = default search (jit/records.h) */
    const char *draft;     /* folder of a draft model; NULL = no speculation */
    bool chain;            /* propose one path instead of a tree */
    u32 speculate;         /* drafted rows a round, 1..7; 0 = 7 */
    i32 tap_shift;         /* added to the draft's target_layer_ids (dflash2.md 3.1) */
    u64 snapshots;         /* bytes of host memory for states of prompts; 0 = none are kept */
    u32 fault_every;       /* tests: corrupts the device's record of every such round; 0 = never */
};

struct engine;
int engine_open(struct engine **engine, const char *model_folder,
                const struct engine_options *options, struct error *error);
void engine_close(struct engine *engine);
const struct model *engine_model(const struct engine *engine);
const struct device_info *engine_device(const struct engine *engine);
u32 engine_context(const struct engine *engine);
const char *engine_plan_hash(const struct engine *engine); /* 16 hexadecimal digits */

/* Sampling (design.md 4.4): a pure function of the logits and of (seed, position).
 * Order: penalties, temperature, top-k, top-p, min-p. */
struct engine_sampling {
    double temperature;         /* 0 = greedy */
    u32 top_k;                  /* 0 = off */
    double top_p;               /* 1 = off */
    double min_p;               /* 0 = off */
    double presence, frequency; /* 0 = off; over generated tokens */
    double repetition;          /* 1 = off; over prompt and generated tokens */
    u64 seed;
};

/* What one round verifies: row 0 is the last token, rows 1.. are drafted tokens below it. */
enum { ENGINE_ROWS = 8 };
struct engine_proposal {
    u32 rows;               /* 1..8 */
    u8 parent[ENGINE_ROWS]; /* parent[r] < r; parent[0] is not looked at */
    u32 token[ENGINE_ROWS]; /* token[0] is filled in by the engine */
};

struct engine_request {
    const u32 *prompt; /* token ids, all below vocab; at least one */
    u32 prompt_count;
    u32 max_tokens; /* prompt_count + max_tokens <= engine_context */
    struct engine_sampling sampling;
    const u32 *stops; /* token ids that end generation; not reported to on_token */
    u32 stop_count;
    /* Called for each token in order; false: stop after this one (a stop string, say). */
    bool (*on_token)(void *user, u32 token);
    /* Called between prompt pieces and rounds; false: cancel (ERROR_CANCELLED). May be NULL. */
    bool (*on_progress)(void *user, u32 prompt_done, u32 prompt_count);
    /* Proposes instead of the draft (tests, `elpis eval --draft-script`): fills *proposal for the
     * round whose row 0 is the token at `position`; rows = 1 proposes nothing. May be NULL. */
    void (*propose)(void *user, u32 position, struct engine_proposal *proposal);
    bool no_draft; /* decode this request one token at a time */
    void *user;
};

enum engine_finish { FINISH_STOP, FINISH_LENGTH, FINISH_CALLER };

struct engine_result {
    enum engine_finish finish;
    u32 prompt_tokens, completion_tokens; /* completion counts the stop token too */
    u32 cached_tokens; /* of the prompt, not computed again: a multiple of 256 (snapshot.c) */
    double prefill_seconds, decode_seconds;
    u32 rounds;     /* verify passes */
    u32 drafted;    /* rows that were proposed */
    u32 accepted;   /* of them */
    u32 recomputed; /* rounds whose device record did not pass the host's check */
};

/* Returns -1 with ERROR_CANCELLED, ERROR_USAGE (bad request) or ERROR_FATAL (the device is
 * gone: the engine answers nothing any more). */
int engine_generate(struct engine *engine, const struct engine_request *request,
                    struct engine_result *result, struct error *error);

/* ---- evaluation (`elpis eval`): every intermediate a comparison needs */

struct engine_eval {
    const u32 *ids;
    u32 count;
    u32 rows;     /* decode rows a pass, 1..8 */
    u32 piece;    /* prefill piece; 0 = the engine's */
    bool teacher; /* all ids through the decode kernels, logits of each */
    /* rows of the first decode pass, 1..rows; 0 = rows (moves a token through the row positions) */
    u32 lead;
    const char *state_in, *state_out; /* safetensors; NULL = none */
    /* The last tree_rows ids are the rows of one verify pass of this tree (parents as in
     * engine_proposal), after which nothing is committed; 0 = none. With teacher only. */
    u32 tree_rows;
    const u8 *tree_parents;
    /* After the ids, of which the last is the first round's row 0, one greedy round for each
     * proposal; result: committed tokens and the logits that chose them. NULL = none. */
    const struct engine_proposal *script;
    u32 script_count;
};
/* To be freed after a failure too. */
struct engine_eval_result {
    u32 logit_rows; /* teacher: count; else 1 (the last) */
    float *logits;  /* [logit_rows, vocab]; memory_free */
    float *hidden;  /* [count, layers, hidden] residual after each layer; memory_free */
    /* script: what the rounds committed, and the logits that chose each; memory_free */
    u32 committed_count;
    u32 *committed;
    float *committed_logits; /* [committed_count, vocab] */
};
int engine_evaluate(struct engine *engine, const struct engine_eval *eval,
                    struct engine_eval_result *result, struct error *error);

/* ---- calibration (`elpis calibrate`): how far a draft's scores can be trusted (dflash2.md 6.1) */

/* One drafted row as a round had it: the scores of its candidates after the token that really came
 * before, and which of them came next. */
struct calibration_sample {
    u32 depth; /* 0 .. DRAFT_DEPTHS - 1 */
    u32 count; /* candidates, 1..16 */
    i32 right; /* the one that came next; -1: none of them */
    float scores[16];
};

/* engine_generate with a draft, handing the samples of all its rounds to `take` (with
 * request->user) when the reply is known. A row is a sample while all tokens before it in its round
 * were among the candidates. A stop token is handed to on_token too, being a token to predict. */
int engine_calibrate(struct engine *engine, const struct engine_request *request,
                     void (*take)(void *user, const struct calibration_sample *sample),
                     struct engine_result *result, struct error *error);

/* What is fitted to the samples of one depth. */
struct calibration_depth {
    u32 samples, hits;          /* hits: the right token was a candidate */
    double temperature, recall; /* fitted, to 4 decimals; what they were where samples are few */
    double before, after;       /* nats a hit: mean -ln of the right candidate's probability */
    bool temperature_fitted, recall_fitted;
};
enum { CALIBRATION_LEAST = 20 }; /* samples for a recall, hits for a temperature */

/* temperature: the most likely one within 0.05 to 20; recall: (hits + 1) / (samples + 2). */
void calibration_fit(const struct calibration_sample *samples, size_t count,
                     const struct draft_calibration *before,
                     struct calibration_depth depths[DRAFT_DEPTHS]);
/* What the engine's draft uses now; NULL without a draft. */
const struct draft_calibration *engine_calibration(const struct engine *engine);

#endif
