/* evaluate.c - `elpis eval`: logits and hidden states of given tokens, for comparisons to the bit.
 *
 * Any tree can be verified, and any proposals be played through rounds of a script.
 *
 * Without teacher the ids take the route of a prompt: all but the last through prefill pieces, the
 * last through a decode pass. With teacher all go through decode passes of `rows` rows, the first
 * of `lead` rows, so that a token can be put on every row position.
 */
#include "engine/engine_private.h"

#include <string.h>

static int read_logits(struct engine *engine, u32 rows, float *to, struct error *error)
{
    const u32 vocab = engine->model->config.vocab;
    for (u32 row = 0; row < rows; row++)
        if (device_copy_out(engine->device, NULL, to + (u64)row * vocab,
                            engine->buffers.logits + (u64)row * engine->vocab_stride * 4,
                            (u64)vocab * 4, error))
            return -1;
    return device_sync(engine->device, NULL, error);
}

/* hidden_rows [layers, 8, hidden] -> hidden [count, layers, hidden] from row `at` on. */
static int read_hidden(struct engine *engine, u32 rows, u32 at, float *hidden, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    const u64 bytes = (u64)c->layers * ROWS * c->hidden * 4;
    float *all = memory_alloc(bytes);
    int result = device_copy_out(engine->device, NULL, all, engine->buffers.hidden_rows, bytes,
                                 error);
    if (!result)
        result = device_sync(engine->device, NULL, error);
    for (u32 row = 0; row < rows && !result; row++)
        for (u32 layer = 0; layer < c->layers; layer++)
            memcpy(hidden + ((u64)(at + row) * c->layers + layer) * c->hidden,
                   all + ((u64)layer * ROWS + row) * c->hidden, (u64)c->hidden * 4);
    memory_free(all);
    return result;
}

/* The sticky flags as the contract shows them: rows whose input was not finite have NaN logits. */
static int mark_bad(struct engine *engine, u32 rows, float *logits, struct error *error)
{
    u32 bad[ROWS];
    const u32 vocab = engine->model->config.vocab;
    if (device_copy_out(engine->device, NULL, bad, engine->buffers.bad, sizeof bad, error) ||
        device_sync(engine->device, NULL, error))
        return -1;
    for (u32 row = 0; row < rows; row++)
        if (bad[row])
            memset(logits + (u64)row * vocab, 0xff, (u64)vocab * 4);
    return 0;
}

/* What the pass that just ran left of its rows. */
static int read_rows(struct engine *engine, u32 rows, u32 at, float *logits, float *hidden,
                     struct error *error)
{
    return read_logits(engine, rows, logits, error) ||
                   read_hidden(engine, rows, at, hidden, error) ||
                   mark_bad(engine, rows, logits, error)
               ? -1
               : 0;
}

static int decode_rows(struct engine *engine, const u32 *ids, u32 rows, u32 at, float *logits,
                       float *hidden, struct error *error)
{
    return decode_feed(engine, ids, rows, error) ||
                   read_rows(engine, rows, at, logits, hidden, error)
               ? -1
               : 0;
}

static int run_teacher(struct engine *engine, const struct engine_eval *eval,
                       struct engine_eval_result *result, struct error *error)
{
    const u32 vocab = engine->model->config.vocab;
    const u32 count = eval->count - eval->tree_rows - (eval->script_count > 0);
    u32 rows = eval->lead ? eval->lead : eval->rows;
    for (u32 at = 0; at < count; at += rows, rows = eval->rows) {
        if (rows > count - at)
            rows = count - at;
        if (decode_rows(engine, eval->ids + at, rows, at, result->logits + (u64)at * vocab,
                        result->hidden, error))
            return -1;
    }
    return 0;
}

/* The last ids as the rows of one verify. */
static int run_tree(struct engine *engine, const struct engine_eval *eval,
                    struct engine_eval_result *result, struct error *error)
{
    const u32 at = eval->count - eval->tree_rows;
    struct engine_proposal tree = {.rows = eval->tree_rows};
    memcpy(tree.parent, eval->tree_parents, eval->tree_rows);
    memcpy(tree.token, eval->ids + at, eval->tree_rows * sizeof *tree.token);
    const char *refusal = tree_refusal(&tree, engine->model->config.vocab);
    if (refusal)
        return error_set(error, ERROR_USAGE, "tree: %s", refusal);
    tree_describe(&tree, engine->position, engine->round_host);
    if (decode_describe(engine, engine->round_host, error) || decode_pass(engine, error))
        return -1;
    return read_rows(engine, tree.rows, at, result->logits + (u64)at * engine->model->config.vocab,
                     result->hidden, error);
}

/* ---- scripted rounds */

struct script {
    const struct engine_proposal *next;
};

static void propose_next(void *user, u32 position, struct engine_proposal *proposal)
{
    struct script *script = user;
    (void)position;
    *proposal = *script->next++;
}

/* Greedy rounds, one for each proposal, from the token `last` at engine->position. */
static int run_script(struct engine *engine, const struct engine_eval *eval, u32 last,
                      struct engine_eval_result *result, struct error *error)
{
    const u32 vocab = engine->model->config.vocab;
    const u64 row = (u64)vocab * sizeof(float), most = (u64)eval->script_count * ROWS;
    struct script script = {eval->script};
    struct round_counts counts = {0};
    const struct engine_request request = {
        .sampling = {.top_p = 1, .repetition = 1}, .propose = propose_next, .user = &script};
    float *logits = memory_alloc(ROWS * row);
    int failed = sampler_begin(engine, &request.sampling, NULL, 0, error);
    result->committed = memory_alloc(most * sizeof(u32));
    result->committed_logits = memory_alloc(most * row);
    for (u32 i = 0; i < eval->script_count && !failed; i++) {
        struct engine_proposal tree;
        struct tree_verdict verdict;
        u32 sampled[ROWS];
        const struct tree_limits limits = {engine->context - engine->position,
                                           PAGE - engine->position % PAGE, NULL, 0};
        failed = round_verify(engine, &request, last, limits.budget, &tree, sampled, &counts,
                              error) ||
                 read_logits(engine, tree.rows, logits, error);
        if (failed)
            break;
        tree_accept(&tree, sampled, &limits, &verdict);
        for (u32 j = 0; j < verdict.count; j++, result->committed_count++) {
            result->committed[result->committed_count] = sampled[verdict.path[j]];
            memcpy(result->committed_logits + (u64)result->committed_count * vocab,
                   logits + (u64)verdict.path[j] * vocab, row);
        }
        last = sampled[verdict.path[verdict.count - 1]];
        failed = round_commit(engine, &request, &verdict, &counts, error);
    }
    memory_free(logits);
    return failed ? -1 : 0;
}

static int run_prompt(struct engine *engine, const struct engine_eval *eval,
                      struct engine_eval_result *result, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    const u32 piece = eval->piece ? eval->piece : engine->piece;
    if (engine->drafter)
        drafter_begin(engine, engine->position + eval->count - 1);
    for (u32 at = 0; at + 1 < eval->count;) {
        const u32 left = eval->count - 1 - at, rows = left < piece ? left : piece;
        if (prefill_piece(engine, eval->ids + at, rows,
                          result->hidden + (u64)at * c->layers * c->hidden, error))
            return -1;
        at += rows;
    }
    if (eval->script_count)
        return 0;
    return decode_rows(engine, eval->ids + eval->count - 1, 1, eval->count - 1, result->logits,
                       result->hidden, error);
}

static int check_eval(const struct engine *engine, const struct engine_eval *eval,
                      struct error *error)
{
    if (eval->count == 0)
        return error_set(error, ERROR_USAGE, "no token ids: expected at least one");
    if (eval->rows < 1 || eval->rows > ROWS || eval->lead > eval->rows)
        return error_set(error, ERROR_USAGE,
                         "rows %u, first pass %u: expected 1 to %d, and lead at most rows",
                         eval->rows, eval->lead, ROWS);
    if (eval->piece % PAGE || eval->piece > engine->piece)
        return error_set(error, ERROR_USAGE, "piece %u: expected a multiple of %d, at most %u",
                         eval->piece, PAGE, engine->piece);
    if (eval->tree_rows > ROWS || eval->tree_rows > eval->count ||
        (eval->tree_rows && (!eval->teacher || eval->script_count)))
        return error_set(error, ERROR_USAGE,
                         "a tree of %u rows over %u ids: expected at most %d rows and ids, with "
                         "teacher and without a script",
                         eval->tree_rows, eval->count, ROWS);
    for (u32 i = 0; i < eval->count; i++)
        if (eval->ids[i] >= engine->model->config.vocab)
            return error_set(error, ERROR_USAGE, "token %u is %u: expected below %u", i,
                             eval->ids[i], engine->model->config.vocab);
    return 0;
}

int engine_evaluate(struct engine *engine, const struct engine_eval *eval,
                    struct engine_eval_result *result, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    *result = (struct engine_eval_result){0};
    if (check_eval(engine, eval, error))
        return -1;
    if (!engine->buffers.hidden_rows &&
        engine_alloc(engine, (u64)c->layers * ROWS * c->hidden * 4, "hidden states",
                     &engine->buffers.hidden_rows, error))
        return -1;
    if (eval->state_in ? state_load(engine, eval->state_in, error) : state_reset(engine, error))
        return -1;
    if (engine->position + (u64)eval->count > engine->context)
        return error_set(error, ERROR_USAGE, "%u tokens after %u exceed the context of %u",
                         eval->count, engine->position, engine->context);
    if (!eval->teacher && engine->position % PAGE)
        return error_set(
            error, ERROR_USAGE,
            "the state ends at %u: prefill continues at multiples of %d; use --teacher",
            engine->position, PAGE);
    const bool decode_all = eval->teacher || engine->prefill_kind == ENGINE_PREFILL_EXACT;
    const u32 last = eval->script_count > 0; /* is the script's, not fed */
    result->logit_rows = (decode_all ? eval->count : 1) - last;
    result->logits = memory_alloc(((u64)result->logit_rows * c->vocab + 1) * 4);
    result->hidden = memory_alloc((u64)eval->count * c->layers * c->hidden * 4);
    if ((decode_all ? run_teacher : run_prompt)(engine, eval, result, error) ||
        (eval->tree_rows && run_tree(engine, eval, result, error)) ||
        (last && run_script(engine, eval, eval->ids[eval->count - 1], result, error)))
        return -1;
    return eval->state_out ? state_save(engine, eval->state_out, error) : 0;
}
