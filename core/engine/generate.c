/* generate.c - one request: the prompt but its last token through prefill, then round after round.
 *
 * A round (round.c) yields the target's own tokens; tree_accept says which of them follow from each
 * other, and they are handed out and committed in order, so that a stop token, the budget, a page's
 * end and the caller's wish end generation where they would without speculation.
 *
 * Routing is by phase, never by row count (design.md 4.3.4): the last prompt token is row 0 of the
 * first decode pass. With ENGINE_PREFILL_EXACT the prompt goes through decode passes of 8 rows
 * instead. Either way it begins behind the longest snapshot that holds its first tokens
 * (snapshot.c).
 */
#include "engine/engine_private.h"

static int check_request(const struct engine *engine, const struct engine_request *request,
                         struct error *error)
{
    const struct engine_sampling *s = &request->sampling;
    if (engine->failed)
        return error_set(error, ERROR_FATAL, "the device failed earlier; start the program again");
    if (request->prompt_count == 0)
        return error_set(error, ERROR_USAGE, "the prompt is empty: expected at least one token");
    if ((u64)request->prompt_count + request->max_tokens > engine->context)
        return error_set(error, ERROR_USAGE,
                         "prompt of %u tokens plus max_tokens %u exceeds the context of %u tokens",
                         request->prompt_count, request->max_tokens, engine->context);
    for (u32 i = 0; i < request->prompt_count; i++)
        if (request->prompt[i] >= engine->model->config.vocab)
            return error_set(error, ERROR_USAGE, "token %u of the prompt is %u: expected below %u",
                             i, request->prompt[i], engine->model->config.vocab);
    if (!(s->temperature >= 0 && s->temperature <= 100))
        return error_set(error, ERROR_USAGE, "temperature %g: expected 0 to 100", s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return error_set(error, ERROR_USAGE, "top_p %g: expected above 0, at most 1", s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return error_set(error, ERROR_USAGE, "min_p %g: expected 0 to 1", s->min_p);
    if (!(s->repetition > 0 && s->repetition <= 100))
        return error_set(error, ERROR_USAGE, "repetition penalty %g: expected above 0, at most 100",
                         s->repetition);
    if (!(s->presence >= -100 && s->presence <= 100) ||
        !(s->frequency >= -100 && s->frequency <= 100))
        return error_set(error, ERROR_USAGE,
                         "presence and frequency penalties: expected -100 to 100");
    return 0;
}

static int ask_progress(const struct engine_request *request, u32 done, struct error *error)
{
    if (request->on_progress && !request->on_progress(request->user, done, request->prompt_count))
        return error_set(error, ERROR_CANCELLED, "cancelled");
    return 0;
}

/* The tokens up to `end` by decode passes. */
static int feed_exact(struct engine *engine, const struct engine_request *request, u32 end,
                      struct error *error)
{
    while (engine->position < end) {
        const u32 left = end - engine->position, rows = left < ROWS ? left : ROWS;
        if (ask_progress(request, engine->position, error) ||
            decode_feed(engine, request->prompt + engine->position, rows, error) ||
            device_sync(engine->device, NULL, error))
            return -1;
    }
    return 0;
}

static int feed_piece(struct engine *engine, const struct engine_request *request, u32 end,
                      struct error *error)
{
    const u32 *tokens = request->prompt + engine->position;
    return ask_progress(request, engine->position, error) ||
                   prefill_piece(engine, tokens, end - engine->position, NULL, error)
               ? -1
               : 0;
}

static int feed_prompt(struct engine *engine, const struct engine_request *request,
                       struct error *error)
{
    const u32 count = request->prompt_count - 1;
    const bool exact = engine->prefill_kind == ENGINE_PREFILL_EXACT;
    while (engine->position < count) {
        const u32 end = snapshots_stop(engine, count);
        if ((exact ? feed_exact : feed_piece)(engine, request, end, error) ||
            snapshots_take(engine, request->prompt, error) ||
            device_sync(engine->device, NULL, error))
            return -1;
    }
    return 0;
}

/* Hands out the tokens of a verdict until the caller has enough; then the verdict ends there. */
static int emit(struct engine *engine, const struct engine_request *request, const u32 *sampled,
                struct tree_verdict *verdict, struct engine_result *result, struct error *error)
{
    for (u32 i = 0; i < verdict->count; i++) {
        const u32 token = sampled[verdict->path[i]];
        if (token >= engine->model->config.vocab)
            return error_set(error, ERROR_FATAL,
                             "position %u: the logits are not finite numbers; no token was chosen",
                             engine->position + i);
        if (sampler_note(engine, token, error))
            return -1;
        result->completion_tokens++;
        if (verdict->end == TREE_STOP && i + 1 == verdict->count)
            return 0; /* the stop token is not reported */
        if (request->on_token && !request->on_token(request->user, token)) {
            result->finish = FINISH_CALLER;
            verdict->count = i + 1;
        }
    }
    return 0;
}

static int decode_tokens(struct engine *engine, const struct engine_request *request,
                         struct engine_result *result, struct error *error)
{
    u32 token = request->prompt[request->prompt_count - 1], sampled[ROWS];
    struct round_counts counts = {0};
    struct engine_proposal tree;
    struct tree_verdict verdict = {.end = TREE_MORE};
    int failed = 0;
    result->finish = FINISH_LENGTH;
    while (!failed && result->finish != FINISH_CALLER && verdict.end == TREE_MORE &&
           result->completion_tokens < request->max_tokens) {
        const struct tree_limits limits = {request->max_tokens - result->completion_tokens,
                                           PAGE - engine->position % PAGE, request->stops,
                                           request->stop_count};
        failed = ask_progress(request, request->prompt_count, error) ||
                 round_verify(engine, request, token, limits.budget, &tree, sampled, &counts,
                              error);
        if (failed)
            break;
        tree_accept(&tree, sampled, &limits, &verdict);
        failed = emit(engine, request, sampled, &verdict, result, error) ||
                 round_commit(engine, request, &verdict, &counts, error);
        token = sampled[verdict.path[verdict.count - 1]];
    }
    if (verdict.end == TREE_STOP && result->finish != FINISH_CALLER)
        result->finish = FINISH_STOP;
    result->rounds = counts.rounds;
    result->drafted = counts.drafted;
    result->accepted = counts.accepted;
    result->recomputed = counts.recomputed;
    return failed ? -1 : 0;
}

int generate_prompt(struct engine *engine, const struct engine_request *request,
                    struct error *error)
{
    if (engine->drafter)
        drafter_begin(engine, request->prompt_count - 1);
    return snapshots_resume(engine, request->prompt, request->prompt_count - 1, error) ||
                   sampler_begin(engine, &request->sampling, request->prompt, request->prompt_count,
                                 error) ||
                   feed_prompt(engine, request, error)
               ? -1
               : 0;
}

int engine_generate(struct engine *engine, const struct engine_request *request,
                    struct engine_result *result, struct error *error)
{
    *result = (struct engine_result){.prompt_tokens = request->prompt_count};
    if (check_request(engine, request, error))
        return -1;
    const double start = clock_seconds();
    engine->resumed = 0;
    int failed = generate_prompt(engine, request, error);
    result->cached_tokens = engine->resumed;
    const double middle = clock_seconds();
    result->prefill_seconds = middle - start;
    if (!failed)
        failed = decode_tokens(engine, request, result, error);
    result->decode_seconds = clock_seconds() - middle;
    if (failed && error->code == ERROR_FATAL)
        engine->failed = true;
    return failed ? -1 : 0;
}
