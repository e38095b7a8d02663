/* measure.c - times of passes, rounds and prompts (measure.h).
 *
 * Random data lies in four patterns on the device, one a format, which are copied over the state
 * piece by piece, each piece from another offset:
 *
 *   codes      u32, any bits
 *   scales     f16, positive, 2^-2 to 2^1
 *   halves     f16, both signs, below 1: the draft's rings, and a cache of 16 bits
 *   floats     f32, -1/16 to 1/16: recurrent states and windows
 *
 * A mark is an event behind the launches of a phase (engine_private.h). Without a struct measure in
 * the engine there are none, and launches are what they always are.
 */
#include "engine/measure.h"
#include "engine/engine_private.h"

#include <string.h>

enum {
    WARM_UPS = 3,
    SLOTS = 2, /* launches in flight */
    PATTERN_BYTES = 1 << 20,
    PATTERN_STEP = 4096 + 256, /* from one piece's offset to the next one's */
    PROMPTS_LEAST = 3,
    HOLD_BYTES = 256 << 20, /* of the copy that holds the device back */
};
#define WARM_UP_SECONDS 0.1 /* and for so long: clocks rise slowly */
#define PROMPT_LONG 10.0    /* seconds, from which one prompt is enough */
#define HOLD_MOST 0.05      /* seconds for which a prompt's piece is held back */

_Static_assert((int)MEASURE_PHASES == (int)PHASE_COUNT, "measure.h tells the number of phases");

enum pattern { PATTERN_CODES, PATTERN_SCALES, PATTERN_HALVES, PATTERN_FLOATS, PATTERNS };

struct mark {
    struct device_event *event;
    enum phase phase;
};

struct measure {
    struct engine *engine;
    struct measure_options options;
    double bandwidth;
    struct device_sensors *sensors;
    struct error no_sensors;
    u64 random;
    dptr patterns[PATTERNS];
    u64 offset;                                     /* in a pattern, of the next piece */
    struct device_event *begin[SLOTS], *end[SLOTS]; /* of a launch in flight */
    struct mark *marks;     /* in the order of the stream; their events are used again */
    u32 mark_count, events; /* set since the last reading; made so far */
    dptr hold_from, hold_to;
    u64 hold_bytes;
    struct pass_graphs other_graphs; /* of the kernels that are not in place */
    enum measure_kind begun;
    u32 *piece_ids, piece_end; /* of a prompt's piece */
    /* what is measured now */
    u32 rows; /* of a commit */
    u32 token;
    double start;
    u32 *ids; /* of a request's prompt */
    /* of a prompt's phases */
    struct phase_sums *sums;
    double first_mark, last_mark; /* of a piece: when the host set them */
    double launching;             /* between them */
    struct error piece_error;     /* what went wrong between two pieces */
};

struct phase_sums {
    double seconds[PHASE_COUNT], whole;
    bool there[PHASE_COUNT];
};

int measure_mark(struct engine *engine, enum phase phase, struct error *error)
{
    struct measure *m = engine->measure;
    if (m->mark_count == m->events) {
        m->marks = memory_resize(m->marks, (m->events + 1) * sizeof *m->marks);
        if (device_event_create(engine->device, &m->marks[m->events].event, error))
            return -1;
        m->events++;
    }
    struct mark *mark = &m->marks[m->mark_count++];
    mark->phase = phase;
    m->last_mark = clock_seconds();
    return device_event_record(engine->device, mark->event, NULL, error);
}

/* ---- random state */

static u16 random_half(u64 bits, bool sign, u32 exponent_low, u32 exponents)
{
    const u32 exponent = exponent_low + (u32)(bits >> 16) % exponents;
    return (u16)((sign ? bits & 0x8000 : 0) | exponent << 10 | (bits & 0x3ff));
}

static void fill_pattern(struct measure *m, enum pattern pattern, u64 *words)
{
    for (u32 i = 0; i < PATTERN_BYTES / sizeof *words; i++) {
        u16 halves[4];
        float floats[2];
        words[i] = random_next(&m->random);
        for (u32 j = 0; j < COUNT_OF(halves); j++)
            halves[j] = pattern == PATTERN_SCALES ? random_half(words[i] >> 8 * j, false, 13, 3)
                                                  : random_half(words[i] >> 8 * j, true, 8, 7);
        for (u32 j = 0; j < COUNT_OF(floats); j++)
            floats[j] = (float)((double)(i32)(words[i] >> 32 * j) * 0x1p-35);
        if (pattern == PATTERN_SCALES || pattern == PATTERN_HALVES)
            memcpy(&words[i], halves, sizeof halves);
        if (pattern == PATTERN_FLOATS)
            memcpy(&words[i], floats, sizeof floats);
    }
}

static int make_patterns(struct measure *m, struct error *error)
{
    u64 *words = memory_alloc(PATTERN_BYTES);
    int failed = 0;
    for (u32 i = 0; i < PATTERNS && !failed; i++) {
        fill_pattern(m, i, words);
        failed =
            device_alloc(m->engine->device, PATTERN_BYTES, "random data", &m->patterns[i], error) ||
            device_copy_in(m->engine->device, NULL, m->patterns[i], words, PATTERN_BYTES, error) ||
            device_sync(m->engine->device, NULL, error);
    }
    memory_free(words);
    return failed ? -1 : 0;
}

static int fill(struct measure *m, dptr to, u64 bytes, enum pattern pattern, struct error *error)
{
    for (u64 at = 0; at < bytes;) {
        const u64 left = bytes - at, room = PATTERN_BYTES - m->offset,
                  part = left < room ? left : room;
        if (device_copy(m->engine->device, NULL, to + at, m->patterns[pattern] + m->offset, part,
                        error))
            return -1;
        at += part;
        m->offset = (m->offset + PATTERN_STEP) % PATTERN_BYTES;
    }
    return 0;
}

static int fill_cache(struct measure *m, struct error *error)
{
    const struct engine *engine = m->engine;
    const struct state_sizes sizes = state_sizes(engine);
    const u64 codes = engine->context * sizes.codes, scales = engine->context * sizes.scales;
    const enum pattern pattern = engine->kv_bits == 16 ? PATTERN_HALVES : PATTERN_CODES;
    snapshots_forget(m->engine);
    for (u32 i = 0; i < engine->model->config.layers; i++) {
        const struct kv_store *cache = &engine->layers[i].cache;
        if (engine->layers[i].attention &&
            (fill(m, cache->k_codes, codes, pattern, error) ||
             fill(m, cache->v_codes, codes, pattern, error) ||
             fill(m, cache->k_scales, scales, PATTERN_SCALES, error) ||
             fill(m, cache->v_scales, scales, PATTERN_SCALES, error)))
            return -1;
    }
    return 0;
}

/* Declares the sequence to end where a pass of 8 rows reaches `context`; states fresh. */
static int go_to(struct measure *m, u32 context, struct error *error)
{
    struct engine *engine = m->engine;
    const struct state_sizes sizes = state_sizes(engine);
    dptr keys, values;
    u64 bytes;
    if (context < ROWS || context > engine->context)
        return error_set(error, ERROR_USAGE, "context %u: expected %d to %u", context, ROWS,
                         engine->context);
    snapshots_forget(engine);
    if (fill(m, engine->gdn.state, sizes.recurrent, PATTERN_FLOATS, error) ||
        fill(m, engine->gdn.window, sizes.windows, PATTERN_FLOATS, error))
        return -1;
    for (u32 i = 0; drafter_memory(engine, i, &keys, &values, &bytes); i++)
        if (fill(m, keys, bytes, PATTERN_HALVES, error) ||
            fill(m, values, bytes, PATTERN_HALVES, error))
            return -1;
    engine->position = context - ROWS;
    m->token = (u32)(random_next(&m->random) % engine->valid_vocab);
    return 0;
}

/* ---- opening and closing */

int measure_open(struct measure **out, struct engine *engine, const struct measure_options *options,
                 struct error *error)
{
    const struct engine_sampling greedy = {.top_p = 1, .repetition = 1};
    struct measure *m = memory_alloc(sizeof *m);
    *m = (struct measure){.engine = engine, .options = *options, .random = 1};
    int failed = device_copy_bandwidth(engine->device, &m->bandwidth, error) ||
                 make_patterns(m, error) || fill_cache(m, error) ||
                 sampler_begin(engine, &greedy, NULL, 0, error);
    for (u32 i = 0; i < SLOTS && !failed; i++)
        failed = device_event_create(engine->device, &m->begin[i], error) ||
                 device_event_create(engine->device, &m->end[i], error);
    if (failed) {
        measure_close(m);
        return -1;
    }
    device_sensors_open(engine->device, &m->sensors, &m->no_sensors);
    *out = m;
    return 0;
}

void measure_close(struct measure *m)
{
    if (!m)
        return;
    struct device *device = m->engine->device;
    device_sensors_close(m->sensors);
    for (u32 i = 0; i < SLOTS; i++) {
        device_event_destroy(device, m->begin[i]);
        device_event_destroy(device, m->end[i]);
    }
    for (u32 i = 0; i < m->events; i++)
        device_event_destroy(device, m->marks[i].event);
    for (u32 i = 0; i < PATTERNS; i++)
        device_free(device, m->patterns[i]);
    pass_graphs_destroy(m->engine, &m->other_graphs);
    device_free(device, m->hold_from);
    device_free(device, m->hold_to);
    memory_free(m->marks);
    memory_free(m->piece_ids);
    memory_free(m);
}

double measure_copy_bandwidth(const struct measure *m)
{
    return m->bandwidth;
}

const char *measure_no_sensors(const struct measure *m)
{
    return m->sensors ? NULL : m->no_sensors.text;
}

const struct draft_model *measure_draft_model(const struct measure *m)
{
    return m->engine->draft;
}

u32 measure_kv_bits(const struct measure *m)
{
    return m->engine->kv_bits;
}

static struct traffic_case case_of(const struct measure *m)
{
    const struct engine *engine = m->engine;
    return (struct traffic_case){engine->model, engine->drafter ? engine->draft : NULL,
                                 engine->kv_bits, engine->position};
}

/* ---- series */

static void add_value(struct series *series, double seconds)
{
    if (series->count < SERIES_MOST)
        series->values[series->count++] = seconds;
}

static void begin_series(struct measure *m)
{
    device_sensors_begin(m->sensors);
    m->start = clock_seconds();
}

/* Whether another repetition after `done` is wanted. */
static bool wants_more(const struct measure *m, u32 done)
{
    if (m->options.go_on && !m->options.go_on(m->options.user))
        return false;
    return done < SERIES_MOST &&
           (done < m->options.repeats || clock_seconds() - m->start < m->options.seconds);
}

static int elapsed(const struct measure *m, struct device_event *from, struct device_event *to,
                   double *seconds, struct error *error)
{
    return device_event_elapsed(m->engine->device, from, to, seconds, error);
}

/* ---- a pass by itself */

static int launch_slot(struct measure *m, int (*launch)(struct measure *m, struct error *error),
                       u32 slot, struct error *error)
{
    struct device *device = m->engine->device;
    return device_event_record(device, m->begin[slot], NULL, error) || launch(m, error) ||
                   device_event_record(device, m->end[slot], NULL, error)
               ? -1
               : 0;
}

static int collect_slot(struct measure *m, u32 slot, struct series *series, struct error *error)
{
    double seconds;
    if (device_event_sync(m->engine->device, m->end[slot], error) ||
        elapsed(m, m->begin[slot], m->end[slot], &seconds, error))
        return -1;
    add_value(series, seconds);
    return 0;
}

/* Two launches are in flight, so that the device never waits for the host. */
static int repeat_launch(struct measure *m, int (*launch)(struct measure *m, struct error *error),
                         struct series *series, struct error *error)
{
    u32 launched = 0;
    begin_series(m);
    do {
        if (launch_slot(m, launch, launched % SLOTS, error) ||
            (launched > 0 && collect_slot(m, (launched - 1) % SLOTS, series, error)))
            return -1;
    } while (wants_more(m, ++launched));
    return collect_slot(m, (launched - 1) % SLOTS, series, error);
}

static int time_launch(struct measure *m, int (*launch)(struct measure *m, struct error *error),
                       struct measured_pass *result, struct error *error)
{
    const double start = clock_seconds();
    int failed = 0;
    for (u32 i = 0; !failed && (i < WARM_UPS || clock_seconds() - start < WARM_UP_SECONDS); i++)
        failed = launch(m, error) || device_sync(m->engine->device, NULL, error);
    failed = failed || repeat_launch(m, launch, &result->seconds, error);
    device_sensors_end(m->sensors, &result->readings);
    return failed ? -1 : 0;
}

static int launch_verify(struct measure *m, struct error *error)
{
    return decode_pass(m->engine, error) || sampler_launch(m->engine, error) ? -1 : 0;
}

/* Tokens of a tree's rows, no two alike. */
static void choose_tokens(const struct measure *m, struct engine_proposal *tree)
{
    for (u32 row = 0; row < tree->rows; row++)
        tree->token[row] = (m->token + row) % m->engine->valid_vocab;
}

static int describe_tree(struct measure *m, const struct engine_proposal *shape,
                         struct error *error)
{
    struct engine *engine = m->engine;
    struct engine_proposal tree = *shape;
    choose_tokens(m, &tree);
    const char *refusal = tree_refusal(&tree, engine->model->config.vocab);
    if (refusal)
        return error_set(error, ERROR_USAGE, "tree: %s", refusal);
    tree_describe(&tree, engine->position, engine->round_host);
    return decode_describe(engine, engine->round_host, error);
}

static int describe_chain(struct measure *m, u32 rows, struct error *error)
{
    const struct engine_proposal chain = {.rows = rows, .parent = {0, 0, 1, 2, 3, 4, 5, 6}};
    return describe_tree(m, &chain, error);
}

static int read_finite(struct measure *m, u32 rows, bool *finite, struct error *error)
{
    u32 tokens[ROWS];
    if (sampler_read(m->engine, rows, tokens, error))
        return -1;
    *finite = true;
    for (u32 row = 0; row < rows; row++)
        *finite &= tokens[row] < m->engine->model->config.vocab;
    return 0;
}

int measure_verify(struct measure *m, u32 context, const struct engine_proposal *tree,
                   struct measured_pass *result, struct error *error)
{
    memset(result, 0, sizeof *result);
    if (go_to(m, context, error) || describe_tree(m, tree, error) ||
        time_launch(m, launch_verify, result, error))
        return -1;
    const struct traffic_case of = case_of(m);
    result->traffic = traffic_verify(&of, tree->rows, false);
    return read_finite(m, tree->rows, &result->finite, error);
}

static int launch_draft(struct measure *m, struct error *error)
{
    return drafter_propose(m->engine, m->token, ROWS - 1, error);
}

int measure_draft(struct measure *m, u32 context, struct measured_pass *result, struct error *error)
{
    memset(result, 0, sizeof *result);
    if (go_to(m, context, error) || time_launch(m, launch_draft, result, error))
        return -1;
    const struct traffic_case of = case_of(m);
    result->traffic = traffic_draft(&of);
    result->finite = true; /* a draft leaves candidates, whatever its scores */
    return 0;
}

/* ---- for the tuner */

struct jit *measure_jit(struct measure *m)
{
    return m->engine->jit;
}

struct device *measure_device(struct measure *m)
{
    return m->engine->device;
}

void measure_swap_graphs(struct measure *m)
{
    const struct pass_graphs held = m->engine->graphs;
    m->engine->graphs = m->other_graphs;
    m->other_graphs = held;
}

void measure_drop_graphs(struct measure *m)
{
    pass_graphs_destroy(m->engine, &m->engine->graphs);
    pass_graphs_destroy(m->engine, &m->other_graphs);
}

float *measure_logits(struct measure *m, u64 *bytes, struct error *error)
{
    *bytes = (u64)ROWS * m->engine->vocab_stride * 4;
    float *logits = memory_alloc(*bytes);
    if (device_copy_out(m->engine->device, NULL, logits, m->engine->buffers.logits, *bytes,
                        error) == 0 &&
        device_sync(m->engine->device, NULL, error) == 0)
        return logits;
    memory_free(logits);
    return NULL;
}

/* Rows 0 .. count - 1. */
static struct tree_verdict verdict_of(u32 count)
{
    return (struct tree_verdict){.count = count, .path = {0, 1, 2, 3, 4, 5, 6, 7}};
}

/* The sequence does not get longer by it. */
static int launch_commit(struct measure *m, struct error *error)
{
    const struct tree_verdict verdict = verdict_of(m->rows);
    const int failed = decode_commit(m->engine, &verdict, error);
    m->engine->position -= failed ? 0 : verdict.count;
    return failed;
}

int measure_commit(struct measure *m, u32 context, u32 rows, struct measured_pass *result,
                   struct error *error)
{
    memset(result, 0, sizeof *result);
    m->rows = rows;
    if (go_to(m, context, error) || describe_chain(m, ROWS, error) || launch_verify(m, error) ||
        time_launch(m, launch_commit, result, error))
        return -1;
    const struct traffic_case of = case_of(m);
    result->traffic = traffic_commit(&of, rows);
    result->finite = true;
    return 0;
}

/* ---- whole rounds
 *
 * Events of a round: begin[0], a mark, the verify, a mark, (the host) begin[1], the commit, end[1].
 * The commit is not waited for: its time is read when the next round has ended. */

struct round_state {
    struct engine_request request;
    struct round_counts counts;
    double before, tokens_at; /* when tokens were known: of the round before, of this one */
};

/* The last two marks stand around the verify that counts. */
static int read_round(struct measure *m, const struct round_state *state,
                      struct measured_round *result, struct error *error)
{
    const double wall = state->tokens_at - state->before;
    const struct mark *before = &m->marks[m->mark_count - 2], *behind = before + 1;
    double draft, verify, commit;
    if (elapsed(m, m->begin[0], before->event, &draft, error) ||
        elapsed(m, before->event, behind->event, &verify, error) ||
        elapsed(m, m->begin[1], m->end[1], &commit, error))
        return -1;
    add_value(&result->wall, wall);
    add_value(&result->draft, draft);
    add_value(&result->verify, verify);
    add_value(&result->commit, commit);
    add_value(&result->gap, wall - draft - verify - commit);
    return 0;
}

/* From begin[0] until the tokens are known. */
static int run_verify(struct measure *m, struct round_state *state, struct error *error)
{
    struct engine *engine = m->engine;
    struct engine_proposal tree;
    u32 sampled[ROWS];
    m->mark_count = 0;
    if (device_event_record(engine->device, m->begin[0], NULL, error) ||
        round_verify(engine, &state->request, m->token, ROWS, &tree, sampled, &state->counts,
                     error))
        return -1;
    state->before = state->tokens_at;
    state->tokens_at = clock_seconds();
    return 0;
}

static int run_commit(struct measure *m, struct round_state *state, struct error *error)
{
    struct engine *engine = m->engine;
    const struct tree_verdict verdict = verdict_of(m->rows);
    const u32 position = engine->position;
    const int failed = device_event_record(engine->device, m->begin[1], NULL, error) ||
                       round_commit(engine, &state->request, &verdict, &state->counts, error) ||
                       device_event_record(engine->device, m->end[1], NULL, error);
    engine->position = position;
    return failed ? -1 : 0;
}

static int run_rounds(struct measure *m, struct round_state *state, struct measured_round *result,
                      struct error *error)
{
    begin_series(m);
    for (u32 i = 0; i < WARM_UPS; i++)
        if (run_verify(m, state, error) || run_commit(m, state, error))
            return -1;
    state->counts = (struct round_counts){0};
    do {
        if (run_verify(m, state, error) || read_round(m, state, result, error) ||
            run_commit(m, state, error))
            return -1;
    } while (wants_more(m, result->wall.count));
    return device_sync(m->engine->device, NULL, error);
}

int measure_rounds(struct measure *m, u32 context, u32 accepted, struct measured_round *result,
                   struct error *error)
{
    struct engine *engine = m->engine;
    struct round_state state = {.request = {.sampling = {.top_p = 1, .repetition = 1}}};
    memset(result, 0, sizeof *result);
    m->rows = engine->drafter ? accepted : 1;
    if (go_to(m, context, error))
        return -1;
    engine->measure = m;
    const int failed = run_rounds(m, &state, result, error);
    engine->measure = NULL;
    device_sensors_end(m->sensors, &result->readings);
    if (failed)
        return -1;
    const struct traffic_case of = case_of(m);
    result->recomputed = state.counts.recomputed;
    result->rows = 1 + (double)state.counts.drafted / state.counts.rounds;
    if (!engine->drafter) {
        result->traffic = traffic_verify(&of, 1, true);
        return 0;
    }
    result->traffic = traffic_sum(traffic_draft(&of), traffic_verify(&of, ROWS, false));
    result->traffic = traffic_sum(result->traffic, traffic_commit(&of, m->rows));
    return 0;
}

/* ---- phases
 *
 * Single launches may come slower than the device runs them. So that it finds all of them queued,
 * it is first given copies that take longer than launching does. */

static const char *const phase_names[PHASE_COUNT] = {
    [PHASE_EMBED] = "embedding",
    [PHASE_INPUT] = "mixer input linears",
    [PHASE_GDN] = "GDN conv and step",
    [PHASE_TRANSFORM] = "transforms",
    [PHASE_WEIGHTS] = "weights",
    [PHASE_PRODUCT] = "products",
    [PHASE_RESULT] = "outputs",
    [PHASE_GDN_INPUT] = "GDN conv and gates",
    [PHASE_GDN_CHUNK] = "GDN chunks",
    [PHASE_GDN_SCAN] = "GDN scan",
    [PHASE_PREPARE] = "attention prepare",
    [PHASE_ATTENTION] = "attention",
    [PHASE_OUTPUT] = "mixer output linears",
    [PHASE_MLP] = "MLP",
    [PHASE_TAP] = "taps",
    [PHASE_HEAD] = "head",
    [PHASE_SAMPLER] = "sampler",
    [PHASE_COMMIT] = "commit",
    [PHASE_FOLLOW] = "draft context",
    [PHASE_DRAFT_LAYERS] = "draft layers",
    [PHASE_DRAFT_ATTENTION] = "draft attention",
    [PHASE_DRAFT_HEAD] = "draft head",
    [PHASE_DRAFT_TREE] = "draft tree",
    [PHASE_FIRST] = "first round",
};

const char *measure_phase_name(u32 phase)
{
    return phase < PHASE_COUNT ? phase_names[phase] : NULL;
}

/* Memory that is not free: less of it, or then none and no holding back. */
static void alloc_hold(struct measure *m)
{
    struct device *device = m->engine->device;
    if (device_info(device)->kind == DEVICE_HOST)
        return; /* a launch there is the work itself */
    for (u64 bytes = HOLD_BYTES; bytes >= PATTERN_BYTES && !m->hold_bytes; bytes /= 2) {
        struct error ignored;
        if (device_alloc(device, bytes, "hold from", &m->hold_from, &ignored) == 0 &&
            device_alloc(device, bytes, "hold to", &m->hold_to, &ignored) == 0) {
            m->hold_bytes = bytes;
            return;
        }
        device_free(device, m->hold_from);
        m->hold_from = 0;
    }
}

static int hold_back(struct measure *m, double seconds, struct error *error)
{
    for (double left = seconds; left > 0 && m->hold_bytes;) {
        if (device_copy(m->engine->device, NULL, m->hold_to, m->hold_from, m->hold_bytes, error))
            return -1;
        left -= 2 * (double)m->hold_bytes / m->bandwidth;
    }
    return 0;
}

/* A round's launches behind a first mark. */
static int launch_phases(struct measure *m, u32 rows, struct error *error)
{
    struct engine *engine = m->engine;
    const bool drafted = engine->drafter != NULL;
    m->mark_count = 0;
    return measure_mark(engine, PHASE_EMBED, error) || (drafted && launch_draft(m, error)) ||
                   describe_chain(m, rows, error) || launch_verify(m, error) ||
                   measure_mark(engine, PHASE_SAMPLER, error) ||
                   (drafted && launch_commit(m, error))
               ? -1
               : 0;
}

/* The marks since the last reading. */
static int add_marks(struct measure *m, struct phase_sums *sums, struct error *error)
{
    for (u32 i = 1; i < m->mark_count; i++) {
        const enum phase phase = m->marks[i].phase;
        double seconds;
        if (elapsed(m, m->marks[i - 1].event, m->marks[i].event, &seconds, error))
            return -1;
        sums->seconds[phase] += seconds;
        sums->there[phase] = true;
        sums->whole += seconds;
    }
    m->mark_count = 0;
    return 0;
}

static void add_phases(const struct phase_sums *sums, struct measured_phases *result)
{
    for (u32 i = 0; i < PHASE_COUNT; i++)
        if (sums->there[i])
            add_value(&result->phase[i], sums->seconds[i]);
    add_value(&result->whole, sums->whole);
}

static int read_phases(struct measure *m, struct measured_phases *result, struct error *error)
{
    struct phase_sums sums = {0};
    if (add_marks(m, &sums, error))
        return -1;
    add_phases(&sums, result);
    return 0;
}

static int repeat_phases(struct measure *m, u32 rows, struct measured_phases *result,
                         struct error *error)
{
    double launching = 0;
    for (u32 i = 0; i < WARM_UPS; i++) {
        const double start = clock_seconds();
        if (launch_phases(m, rows, error))
            return -1;
        launching = clock_seconds() - start;
        if (device_sync(m->engine->device, NULL, error))
            return -1;
    }
    m->start = clock_seconds();
    do {
        if (hold_back(m, 1.5 * launching, error) || launch_phases(m, rows, error) ||
            device_sync(m->engine->device, NULL, error) || read_phases(m, result, error))
            return -1;
    } while (wants_more(m, result->whole.count));
    return 0;
}

int measure_phases(struct measure *m, u32 context, u32 rows, u32 accepted,
                   struct measured_phases *result, struct error *error)
{
    struct engine *engine = m->engine;
    memset(result, 0, sizeof *result);
    m->rows = accepted;
    if (!m->hold_bytes)
        alloc_hold(m);
    if (go_to(m, context, error))
        return -1;
    engine->measure = m;
    engine->phases = true;
    const int failed = repeat_phases(m, rows, result, error);
    engine->phases = false;
    engine->measure = NULL;
    return failed;
}

/* ---- passes, for the tuner */

const char *measure_kind_name(enum measure_kind kind)
{
    static const char *const names[MEASURE_KINDS] = {"verify", "commit", "draft", "prompt"};
    return names[kind];
}

bool measure_has(const struct measure *m, enum measure_kind kind)
{
    return kind == MEASURE_DRAFT   ? m->engine->drafter != NULL
           : kind == MEASURE_PIECE ? m->engine->prefill_kind != ENGINE_PREFILL_EXACT
                                   : true;
}

static int begin_verify(struct measure *m, u32 context, const struct engine_sampling *sampling,
                        struct error *error)
{
    m->begun = MEASURE_VERIFY;
    return sampler_begin(m->engine, sampling, NULL, 0, error) || go_to(m, context, error) ||
                   describe_chain(m, ROWS, error)
               ? -1
               : 0;
}

int measure_begin_greedy(struct measure *m, u32 context, u64 *bytes, struct error *error)
{
    const struct engine_sampling greedy = {.top_p = 1, .repetition = 1};
    if (begin_verify(m, context, &greedy, error))
        return -1;
    const struct traffic_case of = case_of(m);
    *bytes = traffic_bytes(traffic_verify(&of, ROWS, false));
    return 0;
}

static int begin_prompt(struct measure *m, u32 context, struct error *error)
{
    const u32 piece = m->engine->piece, end = context > piece ? context / PAGE * PAGE : piece;
    if (!m->piece_ids)
        m->piece_ids = memory_alloc(piece * sizeof *m->piece_ids);
    measure_random_ids(m, m->piece_ids, piece);
    m->piece_end = end;
    return go_to(m, end > m->engine->context ? m->engine->context : end, error);
}

static int launch_piece(struct measure *m, struct error *error)
{
    struct engine *engine = m->engine;
    engine->position = m->piece_end - engine->piece;
    if (engine->drafter)
        drafter_begin(engine, m->piece_end);
    return prefill_piece(engine, m->piece_ids, engine->piece, NULL, error);
}

int measure_begin(struct measure *m, enum measure_kind kind, u32 context, struct error *error)
{
    const struct engine_sampling drawing = {
        .temperature = 1, .top_p = 0.9, .repetition = 1, .seed = 1};
    int failed = 0;
    if (kind == MEASURE_PIECE)
        failed = begin_prompt(m, context, error);
    else if (kind == MEASURE_DRAFT)
        failed = go_to(m, context, error);
    else
        failed = begin_verify(m, context, &drawing, error);
    if (kind == MEASURE_COMMIT) /* of what a verify has left */
        failed = failed || launch_verify(m, error);
    m->rows = ROWS / 2;
    m->begun = kind;
    return failed ? -1 : 0;
}

int measure_launch(struct measure *m, struct error *error)
{
    static int (*const launches[MEASURE_KINDS])(struct measure * m, struct error * error) = {
        launch_verify, launch_commit, launch_draft, launch_piece};
    return launches[m->begun](m, error);
}

int measure_launch_singly(struct measure *m, struct error *error)
{
    struct engine *engine = m->engine;
    m->mark_count = 0;
    engine->measure = m;
    engine->phases = true;
    const int failed = measure_launch(m, error) || device_sync(engine->device, NULL, error);
    engine->phases = false;
    engine->measure = NULL;
    m->mark_count = 0;
    return failed ? -1 : 0;
}

/* ---- prompts */

static bool goes_on(void *user, u32 done, u32 count)
{
    const struct measure *m = user;
    (void)done;
    (void)count;
    return !m->options.go_on || m->options.go_on(m->options.user);
}

static int first_round(struct measure *m, const struct engine_request *request, bool *finite,
                       struct error *error)
{
    struct round_counts counts = {0};
    struct engine_proposal tree;
    u32 sampled[ROWS];
    if (round_verify(m->engine, request, request->prompt[request->prompt_count - 1], 1, &tree,
                     sampled, &counts, error))
        return -1;
    *finite = sampled[0] < m->engine->model->config.vocab;
    return 0;
}

static int run_prompt(struct measure *m, const struct engine_request *request, void *result,
                      struct error *error)
{
    struct engine *engine = m->engine;
    struct measured_prompt *prompt = result;
    const double start = clock_seconds();
    if (generate_prompt(engine, request, error) || device_sync(engine->device, NULL, error))
        return -1;
    const double filled = clock_seconds();
    if (first_round(m, request, &prompt->finite, error))
        return -1;
    add_value(&prompt->prefill, filled - start);
    add_value(&prompt->first, clock_seconds() - start);
    return 0;
}

/* `once` adds to the series of *result, of `size` bytes; so does a first time that does not count.
 * One if it takes long; else three, and more while time is left. */
static int repeat_prompt(struct measure *m, const struct engine_request *request,
                         int (*once)(struct measure *m, const struct engine_request *request,
                                     void *result, struct error *error),
                         void *result, size_t size, struct error *error)
{
    struct engine_request warm_up = *request;
    u32 done = 0;
    if (warm_up.prompt_count > m->engine->piece)
        warm_up.prompt_count = m->engine->piece;
    if (warm_up.max_tokens > ROWS)
        warm_up.max_tokens = ROWS;
    memset(result, 0, size);
    int failed = once(m, &warm_up, result, error);
    memset(result, 0, size);
    begin_series(m);
    while (!failed && done < SERIES_MOST) {
        failed = once(m, request, result, error);
        done++;
        const double spent = clock_seconds() - m->start;
        if ((done >= PROMPTS_LEAST && spent >= m->options.seconds) || spent / done >= PROMPT_LONG ||
            done >= m->options.repeats)
            break;
    }
    return failed && error->code == ERROR_CANCELLED ? 0 : failed;
}

static int check_prompt(const struct measure *m, u32 tokens, struct error *error)
{
    if (tokens < 1 || tokens > m->engine->context)
        return error_set(error, ERROR_USAGE, "prompt of %u tokens: expected 1 to %u", tokens,
                         m->engine->context);
    return 0;
}

static struct engine_request greedy(struct measure *m, const u32 *ids, u32 count)
{
    return (struct engine_request){.prompt = ids,
                                   .prompt_count = count,
                                   .sampling = {.top_p = 1, .repetition = 1},
                                   .on_progress = goes_on,
                                   .user = m};
}

void measure_random_ids(struct measure *m, u32 *ids, u32 count)
{
    for (u32 i = 0; i < count; i++)
        ids[i] = (u32)(random_next(&m->random) % m->engine->valid_vocab);
}

int measure_prompt(struct measure *m, u32 tokens, struct measured_prompt *result,
                   struct error *error)
{
    memset(result, 0, sizeof *result);
    if (check_prompt(m, tokens, error))
        return -1;
    u32 *ids = memory_alloc(tokens * sizeof *ids);
    measure_random_ids(m, ids, tokens);
    const struct engine_request request = greedy(m, ids, tokens);
    const int failed = repeat_prompt(m, &request, run_prompt, result, sizeof *result, error);
    device_sensors_end(m->sensors, &result->readings);
    memory_free(ids);
    return failed;
}

/* ---- phases of prompts
 *
 * The marks of a piece are read before the next one, when the device is idle: their events are used
 * again. The first round is launched as ever, between two events. */

static int begin_piece(struct measure *m, struct error *error)
{
    m->launching = m->mark_count ? m->last_mark - m->first_mark : m->launching;
    const double held = 1.5 * m->launching < HOLD_MOST ? 1.5 * m->launching : HOLD_MOST;
    if (add_marks(m, m->sums, error) || hold_back(m, held, error))
        return -1;
    m->first_mark = clock_seconds();
    return measure_mark(m->engine, PHASE_EMBED, error);
}

static bool next_piece(void *user, u32 done, u32 count)
{
    struct measure *m = user;
    return goes_on(user, done, count) && begin_piece(m, &m->piece_error) == 0;
}

static int run_pieces(struct measure *m, const struct engine_request *request, struct error *error)
{
    struct engine *engine = m->engine;
    m->piece_error = (struct error){0};
    m->mark_count = 0;
    engine->measure = m;
    engine->phases = true;
    const int failed = generate_prompt(engine, request, error);
    engine->phases = false;
    engine->measure = NULL;
    if (m->piece_error.code)
        *error = m->piece_error;
    return failed || device_sync(engine->device, NULL, error) || add_marks(m, m->sums, error) ? -1
                                                                                              : 0;
}

static int run_prompt_phases(struct measure *m, const struct engine_request *request, void *result,
                             struct error *error)
{
    struct device *device = m->engine->device;
    struct phase_sums sums = {0};
    bool finite;
    double first;
    m->sums = &sums;
    if (run_pieces(m, request, error) || device_event_record(device, m->begin[0], NULL, error) ||
        first_round(m, request, &finite, error) ||
        device_event_record(device, m->end[0], NULL, error) ||
        device_event_sync(device, m->end[0], error) ||
        elapsed(m, m->begin[0], m->end[0], &first, error))
        return -1;
    sums.seconds[PHASE_FIRST] = first;
    sums.there[PHASE_FIRST] = true;
    sums.whole += first;
    add_phases(&sums, result);
    return 0;
}

int measure_prompt_phases(struct measure *m, u32 tokens, struct measured_phases *result,
                          struct error *error)
{
    memset(result, 0, sizeof *result);
    if (check_prompt(m, tokens, error))
        return -1;
    if (!m->hold_bytes)
        alloc_hold(m);
    u32 *ids = memory_alloc(tokens * sizeof *ids);
    measure_random_ids(m, ids, tokens);
    struct engine_request request = greedy(m, ids, tokens);
    request.on_progress = next_piece;
    const int failed = repeat_prompt(m, &request, run_prompt_phases, result, sizeof *result, error);
    memory_free(ids);
    return failed;
}

/* ---- requests */

void measure_next_prompt(u32 *ids, u32 vocab)
{
    ids[0] = (ids[0] + 1) % vocab;
}

u32 measure_vocab(const struct measure *m)
{
    return m->engine->valid_vocab;
}

static int run_request(struct measure *m, const struct engine_request *request, void *result,
                       struct error *error)
{
    struct measured_request *to = result;
    struct engine_result reply;
    measure_next_prompt(m->ids, m->engine->valid_vocab);
    if (engine_generate(m->engine, request, &reply, error))
        return -1;
    add_value(&to->prefill, reply.prefill_seconds);
    add_value(&to->round, reply.decode_seconds / reply.rounds);
    return 0;
}

int measure_request(struct measure *m, u32 *ids, u32 count, u32 reply,
                    struct measured_request *result, struct error *error)
{
    memset(result, 0, sizeof *result);
    if (reply < 1)
        return error_set(error, ERROR_USAGE, "a reply of 0 tokens: expected at least 1");
    struct engine_request request = greedy(m, ids, count);
    request.max_tokens = reply;
    m->ids = ids;
    const int failed = repeat_prompt(m, &request, run_request, result, sizeof *result, error);
    result->warm_up = count < m->engine->piece ? count : m->engine->piece;
    return failed;
}
