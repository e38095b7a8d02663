/* calibrate.c - how far a draft's scores can be trusted: samples from real rounds, and the fit.
 *
 * The tree takes a lattice row's scores S of depth d for ln P = ln q_d + ln softmax(S / T_d)
 * (dflash2.md 6.1): q_d is the chance that the right token is among the candidates at all, T_d
 * corrects how sure the scores are. Both are read off rounds whose continuation is known: at depth
 * d the row after the token that really came before, and the token that really came.
 *
 *     nll(T) = sum over hits of  ln sum_i exp(S_i / T) - S_right / T
 *
 * is convex in 1 / T, so it has one minimum in ln T, which a golden-section search finds.
 */
#include "engine/engine_private.h"

#include <math.h>
#include <string.h>

#define TEMPERATURE_LEAST 0.05
#define TEMPERATURE_MOST 20.0

enum { CANDIDATES = 16, NOTHING = 0xffffffff, SEARCH_STEPS = 60, DECIMALS = 10000 };

/* ---- samples */

/* A round: what it was drafted from. */
struct drafted {
    u32 emitted; /* tokens of the reply before it */
    struct drafter_view view;
};

/* A reply in the making. */
struct collecting {
    struct engine *engine;
    const struct engine_request *request;
    struct buffer rounds, tokens; /* struct drafted, u32 */
    bool open;                    /* a round has begun whose lattice is not read yet */
    bool stopped;                 /* by a stop token */
    struct error error;           /* a lattice could not be read */
    struct drafted next;
};

static u32 emitted(const struct collecting *c)
{
    return (u32)(c->tokens.size / sizeof(u32));
}

/* The lattice of the round that has just ended: it stays on the device until the next pass. */
static void end_round(struct collecting *c)
{
    if (!c->open)
        return;
    c->open = false;
    if (drafter_read(c->engine, &c->next.view, &c->error) == 0)
        buffer_add(&c->rounds, &c->next, sizeof c->next);
}

static bool begin_round(void *user, u32 done, u32 count)
{
    struct collecting *c = user;
    end_round(c);
    if (c->request->on_progress && !c->request->on_progress(c->request->user, done, count))
        return false;
    c->next.emitted = emitted(c);
    /* the last token of a budget is not drafted for */
    c->open = done == count && c->request->max_tokens - emitted(c) > 1;
    return c->error.code == ERROR_NONE;
}

static bool take_token(void *user, u32 token)
{
    struct collecting *c = user;
    const struct engine_request *request = c->request;
    buffer_add(&c->tokens, &token, sizeof token);
    for (u32 i = 0; i < request->stop_count; i++)
        c->stopped |= request->stops[i] == token;
    const bool more = !request->on_token || request->on_token(request->user, token);
    return more && !c->stopped;
}

/* The samples of a round, given the tokens that came. */
static void hand_out(const struct collecting *c, const struct drafted *drafted,
                     void (*take)(void *user, const struct calibration_sample *sample))
{
    const u32 *came = (const u32 *)c->tokens.data;
    u32 row = 0;
    for (u32 depth = 0; depth < DRAFT_DEPTHS && drafted->emitted + depth < emitted(c); depth++) {
        const u32 *ids = drafted->view.ids[depth], token = came[drafted->emitted + depth];
        struct calibration_sample sample = {.depth = depth, .right = -1};
        for (; sample.count < CANDIDATES && ids[sample.count] != NOTHING; sample.count++)
            if (ids[sample.count] == token)
                sample.right = (i32)sample.count;
        if (sample.count == 0) /* the block has no such row */
            return;
        memcpy(sample.scores, drafted->view.scores[row], sizeof sample.scores);
        take(c->request->user, &sample);
        if (sample.right < 0)
            return;
        row = 1 + depth * CANDIDATES + (u32)sample.right;
    }
}

int engine_calibrate(struct engine *engine, const struct engine_request *request,
                     void (*take)(void *user, const struct calibration_sample *sample),
                     struct engine_result *result, struct error *error)
{
    if (!engine->drafter)
        return error_set(error, ERROR_USAGE, "no draft is loaded: there is nothing to calibrate");
    struct collecting c = {.engine = engine, .request = request};
    struct engine_request own = *request;
    own.stops = NULL;
    own.stop_count = 0;
    own.on_token = take_token;
    own.on_progress = begin_round;
    own.propose = NULL;
    own.no_draft = false;
    own.user = &c;
    int failed = engine_generate(engine, &own, result, error);
    if (!failed)
        end_round(&c);
    if (c.error.code) /* the request ended as cancelled */
        failed = error_set(error, c.error.code, "%s", c.error.text);
    if (!failed && c.stopped)
        result->finish = FINISH_STOP;
    for (size_t at = 0; !failed && at < c.rounds.size; at += sizeof(struct drafted))
        hand_out(&c, (const struct drafted *)(const void *)(c.rounds.data + at), take);
    buffer_free(&c.rounds);
    buffer_free(&c.tokens);
    return failed ? -1 : 0;
}

const struct draft_calibration *engine_calibration(const struct engine *engine)
{
    return engine->draft ? &engine->draft->calibration : NULL;
}

/* ---- the fit */

/* -ln of the right candidate's probability at a temperature. */
static double surprise(const struct calibration_sample *sample, double temperature)
{
    double top = sample->scores[0], sum = 0;
    for (u32 i = 1; i < sample->count; i++)
        top = sample->scores[i] > top ? sample->scores[i] : top;
    for (u32 i = 0; i < sample->count; i++)
        sum += exp((sample->scores[i] - top) / temperature);
    return log(sum) - (sample->scores[sample->right] - top) / temperature;
}

struct hits {
    const struct calibration_sample *samples;
    size_t count;
    u32 depth, hits;
};

/* Mean over the hits of one depth. */
static double mean_surprise(const struct hits *hits, double temperature)
{
    double sum = 0;
    for (size_t i = 0; i < hits->count; i++)
        if (hits->samples[i].depth == hits->depth && hits->samples[i].right >= 0)
            sum += surprise(&hits->samples[i], temperature);
    return hits->hits ? sum / hits->hits : 0;
}

static double to_decimals(double number)
{
    return round(number * DECIMALS) / DECIMALS;
}

/* Golden section in ln T: of the two inner points the better one's side stays. */
static double most_likely(const struct hits *hits)
{
    const double ratio = (sqrt(5) - 1) / 2;
    double low = log(TEMPERATURE_LEAST), high = log(TEMPERATURE_MOST);
    double left = high - ratio * (high - low), right = low + ratio * (high - low);
    double at_left = mean_surprise(hits, exp(left)), at_right = mean_surprise(hits, exp(right));
    for (u32 i = 0; i < SEARCH_STEPS; i++) {
        if (at_left <= at_right) {
            high = right, right = left, at_right = at_left;
            left = high - ratio * (high - low);
            at_left = mean_surprise(hits, exp(left));
        } else {
            low = left, left = right, at_left = at_right;
            right = low + ratio * (high - low);
            at_right = mean_surprise(hits, exp(right));
        }
    }
    return exp((low + high) / 2);
}

static void fit_depth(const struct hits *hits, double temperature, struct calibration_depth *depth)
{
    depth->recall_fitted = depth->samples >= CALIBRATION_LEAST;
    depth->temperature_fitted = depth->hits >= CALIBRATION_LEAST;
    if (depth->recall_fitted)
        depth->recall = to_decimals((depth->hits + 1.0) / (depth->samples + 2.0));
    if (depth->temperature_fitted)
        depth->temperature = to_decimals(most_likely(hits));
    depth->before = mean_surprise(hits, temperature);
    depth->after = mean_surprise(hits, depth->temperature);
}

void calibration_fit(const struct calibration_sample *samples, size_t count,
                     const struct draft_calibration *before,
                     struct calibration_depth depths[DRAFT_DEPTHS])
{
    for (u32 d = 0; d < DRAFT_DEPTHS; d++)
        depths[d] = (struct calibration_depth){.temperature = before->temperature[d],
                                               .recall = before->recall[d]};
    for (size_t i = 0; i < count; i++) {
        depths[samples[i].depth].samples++;
        depths[samples[i].depth].hits += samples[i].right >= 0;
    }
    for (u32 d = 0; d < DRAFT_DEPTHS; d++) {
        const struct hits hits = {samples, count, d, depths[d].hits};
        fit_depth(&hits, before->temperature[d], &depths[d]);
    }
}
