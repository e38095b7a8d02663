/* shape.h - an engine for one kernel of a given shape, without a model.
 *
 * What a kernel reads is made by the kernels before it: planes and exponents, spans, descriptors of
 * rounds, lists of addresses. So no arguments are made up. A model is synthesised whose passes
 * launch the kernel with the wanted parameters (model.h: model_synth), as small as that allows,
 * with its weights for a moment in a folder below TMPDIR; and the request is the one that a trained
 * model of that shape makes, by which records are looked up.
 */
#ifndef ELPIS_SHAPE_H
#define ELPIS_SHAPE_H

#include "engine/engine.h"
#include "jit/jit.h"

enum { SHAPE_MOST = 16 };

struct shape {
    const char *schedule;
    /* Ends with {0}. What is left out becomes that of the model `tiny` of `elpis synth`. */
    struct jit_parameter parameters[SHAPE_MOST + 1];
    bool prompt; /* result: prompts launch it, rounds do not */
};

/* Whether models are synthesised for this schedule's kernels; index: one after the other of those
 * that can be named, NULL past the last. */
bool shape_is_known(const char *schedule);
const char *shape_schedule(size_t index);

/* The models that launch it, as parameters of the kernel and what they are of a model, a line each,
 * added. */
void shape_describe(const char *schedule, struct buffer *text);

/* The model, and the draft, that launch the shape; completes its parameters. Options (context,
 * kv_bits, piece, valid_vocab) are those of the caller where he has set them, else the shape's. */
struct shape_model {
    struct synth_options model, draft;
    bool has_draft;
};
int shape_choose(struct shape *shape, struct engine_options *options, struct shape_model *model,
                 struct error *error);

/* shape_choose, the model made and the engine opened over it. */
int shape_open(struct engine **engine, struct shape *shape, const struct engine_options *options,
               struct error *error);

#endif
