/* round.c - one round: a proposal, one verify pass over it, and the target's own tokens.
 *
 * A proposal is the draft's, the caller's (tests, scripts), or nothing: then the pass has one row
 * and, as that row is a committed token, moves the state itself. The draft's proposal is built on
 * the device, in the very descriptor that the verify reads, and the verify is launched before the
 * host has seen it. The host then derives the descriptor again from the parents and tokens that the
 * device read and compares all of it. A verify writes nothing that outlives the round, so a record
 * that does not pass is dropped by verifying again, from the host's own descriptor.
 */
#include "engine/engine_private.h"

#include <string.h>

/* Row 0 alone. */
static void propose_nothing(u32 token, struct engine_proposal *tree)
{
    *tree = (struct engine_proposal){.rows = 1, .token = {token}};
}

static int verify(struct engine *engine, struct error *error)
{
    return verify_mark(engine, error) || decode_pass(engine, error) ||
                   sampler_launch(engine, error) || verify_mark(engine, error)
               ? -1
               : 0;
}

/* Verifies what round_host describes. */
static int verify_described(struct engine *engine, struct error *error)
{
    return decode_describe(engine, engine->round_host, error) || verify(engine, error) ? -1 : 0;
}

static int verify_tree(struct engine *engine, const struct engine_proposal *tree,
                       struct error *error)
{
    tree_describe(tree, engine->position, engine->round_host);
    return verify_described(engine, error);
}

/* The proposal in a record of the device, if all of the record follows from it. */
static bool read_record(const struct engine *engine, u32 token, struct engine_proposal *tree)
{
    const u32 *record = engine->record_host;
    u32 derived[ROUND_WORDS];
    if (record[ROUND_ROWS] < 1 || record[ROUND_ROWS] > ROWS)
        return false;
    tree->rows = record[ROUND_ROWS];
    for (u32 row = 0; row < tree->rows; row++) {
        tree->token[row] = record[ROUND_TOKENS + row];
        tree->parent[row] = row ? (u8)record[ROUND_PARENTS + row] : 0;
    }
    if (tree->token[0] != token || tree_refusal(tree, engine->model->config.vocab))
        return false;
    tree_describe(tree, engine->position, derived);
    return memcmp(derived, record, sizeof derived) == 0;
}

/* Tests: makes the device's record wrong where the verify would read it. */
static int corrupt(struct engine *engine, struct error *error)
{
    const u32 wrong = engine->position + ROWS;
    return device_copy_in(engine->device, NULL, engine->buffers.round + ROUND_POSITIONS * 4, &wrong,
                          sizeof wrong, error);
}

static int verify_drafted(struct engine *engine, u32 token, u32 depth, struct engine_proposal *tree,
                          struct round_counts *counts, struct error *error)
{
    propose_nothing(token, tree); /* stays, where the record cannot even be read */
    if (drafter_propose(engine, token, depth, error))
        return -1;
    if (engine->fault_every && counts->rounds % engine->fault_every == 0 && corrupt(engine, error))
        return -1;
    if (device_copy_out(engine->device, NULL, engine->record_host, engine->buffers.round,
                        ROUND_WORDS * 4, error) ||
        device_event_record(engine->device, engine->record_there, NULL, error) ||
        verify(engine, error) || device_event_sync(engine->device, engine->record_there, error))
        return -1;
    if (read_record(engine, token, tree))
        return 0;
    counts->recomputed++;
    tree->token[0] = token;
    if (tree_refusal(tree, engine->model->config.vocab))
        propose_nothing(token, tree);
    return device_sync(engine->device, NULL, error) || verify_tree(engine, tree, error) ? -1 : 0;
}

static int verify_proposed(struct engine *engine, const struct engine_request *request, u32 token,
                           struct engine_proposal *tree, struct error *error)
{
    propose_nothing(token, tree);
    request->propose(request->user, engine->position, tree);
    tree->token[0] = token;
    const char *refusal = tree_refusal(tree, engine->model->config.vocab);
    if (refusal)
        return error_set(error, ERROR_USAGE, "proposal for position %u: %s", engine->position,
                         refusal);
    tree_describe(tree, engine->position, engine->round_host);
    for (u32 row = 0; row < tree->rows; row++)
        if (engine->round_host[ROUND_POSITIONS + row] >= engine->context)
            return error_set(error, ERROR_USAGE,
                             "proposal for position %u: row %u reaches beyond the context of %u",
                             engine->position, row, engine->context);
    return verify_described(engine, error);
}

bool round_is_plain(const struct engine *engine, const struct engine_request *request)
{
    return !request->propose && (!engine->drafter || request->no_draft);
}

static int verify_plain(struct engine *engine, u32 token, struct engine_proposal *tree,
                        struct error *error)
{
    propose_nothing(token, tree);
    tree_describe_chain(&token, 1, engine->position, engine->round_host);
    return verify_described(engine, error);
}

int round_verify(struct engine *engine, const struct engine_request *request, u32 token, u32 budget,
                 struct engine_proposal *tree, u32 sampled[ROWS], struct round_counts *counts,
                 struct error *error)
{
    const u32 room = engine->context - 1 - engine->position;
    const u32 depth = budget - 1 < room ? budget - 1 : room;
    int failed;
    if (round_is_plain(engine, request)) {
        failed = verify_plain(engine, token, tree, error);
    } else if (request->propose) {
        failed = verify_proposed(engine, request, token, tree, error);
    } else if (depth > 0) {
        failed = verify_drafted(engine, token, depth, tree, counts, error);
    } else {
        propose_nothing(token, tree);
        failed = verify_tree(engine, tree, error);
    }
    if (failed || sampler_read(engine, tree->rows, sampled, error))
        return -1;
    counts->rounds++;
    counts->drafted += tree->rows - 1;
    return 0;
}

int round_commit(struct engine *engine, const struct engine_request *request,
                 const struct tree_verdict *verdict, struct round_counts *counts,
                 struct error *error)
{
    counts->accepted += verdict->count - 1;
    if (!round_is_plain(engine, request))
        return decode_commit(engine, verdict, error);
    engine->position += verdict->count;
    return 0;
}
