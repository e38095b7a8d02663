/* test_speculation.c - speculation changes no token (core/engine/generate.c, round.c, draft.c).
 *
 * The matrix: every prompt of data/prompts.json x {chain, tree} x what proposes x how tokens are
 * sampled. The ids of a cell are those of decoding without a draft, one token at a time. Half of
 * the cells end at the model's stop tokens; the others run on into text that repeats itself or
 * means nothing, where distributions are flat and the smallest difference shows.
 *
 *   trained   the draft model
 *   capped    the draft model, at most 2 drafted rows a round
 *   wrong     knows the truth: row 0 never finds a child, rows further down are often right
 *   random    random trees of random ids
 *   lucky     random trees in which one path is right down to a random depth
 *
 * Then the ways in which a round is cut: budgets, the caller, stop tokens, ends of pages and of the
 * context; penalties; records that fail the host's check; requests after one another.
 *
 * `make test` runs a fixed part of it. ELPIS_TEST_FULL runs every cell with 512 tokens on a GPU,
 * and without one a larger part. ELPIS_TEST_DEVICE and ELPIS_TEST_AS choose the device; without
 * them it is the host, with ELPIS_TEST_FULL a GPU where there is one. Lines that begin with # tell
 * what runs and how many tokens a mean round gave.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "whole.h"

#define MODEL "tests/models/elpis-tiny"
#define DRAFT "tests/models/elpis-tiny-dflash2"
#define PROMPTS "tests/data/prompts.json"

enum {
    VOCAB = 4096,
    CONTEXT = 4096,
    PAGE = 256,          /* tokens: a round ends where a page does */
    CAP = 2,             /* drafted rows of a capped draft */
    MOST_TOKENS = 512,   /* of a cell */
    PART_TOKENS = 12,    /* of a cell in the fixed part */
    PART_PROMPT = 2100,  /* its longest prompt: more than a piece; all of it has 3,000 tokens */
    NATURAL_TOKENS = 32, /* of a chat prompt in the fixed part: its mean round is asserted */
    HOST_TURNS = 2,      /* of the fixed part, in the full run without a GPU */
    PROMPT_COUNT = 15,
    NATURAL_COUNT = 10, /* come first; the others are random ids */
};

enum mode { CHAIN, TREE, MODES };
enum kind {
    TRAINED,
    CAPPED,
    WRONG,
    RANDOM,
    LUCKY,
    KINDS,
    RIGHT, /* all of the longest path is right: cuts lie inside rounds */
    NONE   /* no draft */
};
enum { SAMPLINGS = 4, GREEDY_PENALISED = SAMPLINGS };

static const char *const mode_names[] = {"chain", "tree"};
static const char *const kind_names[] = {"trained", "capped", "wrong", "random",
                                         "lucky",   "",       "right", "none"};
static const struct {
    const char *name;
    struct engine_sampling values;
} samplings[] = {
    {"greedy", {.top_p = 1, .repetition = 1}},
    {"temperature 0.8", {.temperature = 0.8, .top_p = 1, .repetition = 1}},
    {"temperature 5 with penalties",
     {.temperature = 5, .top_p = 1, .presence = 1.5, .frequency = 1, .repetition = 1.3}},
    {"top-p 0.9", {.temperature = 1, .top_p = 0.9, .repetition = 1}},
    /* not in the matrix: the count of a token decides */
    {"greedy with penalties", {.top_p = 1, .presence = 1, .frequency = 1, .repetition = 1.3}},
};
static const u32 model_stops[] = {4088, 4086}; /* generation_config.json */

struct prompt {
    const char *name, *kind;
    u32 *ids, count;
};

enum { WHY = 200 };

static json_t *data;
static struct prompt prompts[PROMPT_COUNT];

struct text {
    u32 ids[MOST_TOKENS], count;
};

/* One request; text and result are what came of it. */
struct job {
    const u32 *prompt;
    u32 prompt_count;
    u32 context; /* of the engine; 0 = CONTEXT */
    u32 tokens;
    u32 sampling; /* of samplings[] */
    u64 seed;
    const u32 *stops;
    u32 stop_count;
    enum mode mode;
    enum kind kind;
    const struct text *truth; /* what WRONG, LUCKY and RIGHT know */
    u32 enough;               /* the caller ends generation with this token; 0 = never */
    bool cancel;              /* instead, the caller cancels there */
    bool faults;              /* records are made wrong */
    u32 position;             /* of row 0 of the last proposal; 0 = none yet */
    bool crossed;             /* a round went on beyond a page's end */
    u64 random;
    struct text text;
    struct engine_result result;
};

/* ---- engines: one for each mode and cap, opened when it is first asked for */

static struct engine *engines[MODES][2];

static struct engine *open_engine(struct engine_options options)
{
    const char *device = getenv("ELPIS_TEST_DEVICE");
    struct engine *engine = NULL;
    struct error error = {0};
    options.device.device = device ? device : full_run() ? "auto" : "host";
    options.device.as = getenv("ELPIS_TEST_AS");
    options.context = options.context ? options.context : CONTEXT;
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    return engine;
}

static struct engine *engine_for(enum mode mode, enum kind kind)
{
    struct engine **engine = &engines[mode][kind == CAPPED];
    if (!*engine)
        *engine = open_engine((struct engine_options){
            .draft = DRAFT, .chain = mode == CHAIN, .speculate = kind == CAPPED ? CAP : 0});
    return *engine;
}

static bool on_gpu(void)
{
    return engine_device(engine_for(TREE, NONE))->kind != DEVICE_HOST;
}

/* All of it takes hours on the host. */
static bool whole_run(void)
{
    return full_run() && on_gpu();
}

static int read_prompts(void **state)
{
    (void)state;
    data = json_load_file(PROMPTS, 0, NULL);
    if (json_array_size(data) != PROMPT_COUNT)
        return -1;
    for (u32 i = 0; i < PROMPT_COUNT; i++) {
        const json_t *one = json_array_get(data, i), *ids = json_object_get(one, "ids");
        struct prompt *prompt = &prompts[i];
        prompt->name = json_string_value(json_object_get(one, "name"));
        prompt->kind = json_string_value(json_object_get(one, "kind"));
        prompt->count = (u32)json_array_size(ids);
        prompt->ids = memory_alloc(prompt->count * sizeof *prompt->ids);
        for (u32 j = 0; j < prompt->count; j++)
            prompt->ids[j] = (u32)json_integer_value(json_array_get(ids, j));
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (u32 mode = 0; mode < MODES; mode++)
        for (u32 capped = 0; capped < 2; capped++)
            engine_close(engines[mode][capped]);
    for (u32 i = 0; i < PROMPT_COUNT; i++)
        memory_free(prompts[i].ids);
    json_decref(data);
    return 0;
}

static const struct prompt *prompt_named(const char *name)
{
    for (u32 i = 0; i < PROMPT_COUNT; i++)
        if (strcmp(prompts[i].name, name) == 0)
            return &prompts[i];
    fail_msg("%s has no prompt %s", PROMPTS, name);
    return NULL;
}

/* ---- proposals that are not the draft's */

static u32 draw(u64 *random, u32 below)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (u32)((*random >> 33) % below);
}

/* What follows row 0 at `depth`, or any id where the truth ends. */
static u32 truth_at(struct job *job, u32 position, u32 depth)
{
    const u32 index = position + depth - job->prompt_count;
    return index < job->truth->count ? job->truth->ids[index] : draw(&job->random, VOCAB);
}

/* Parents of a proposal, none deeper than `room`. RIGHT has a long path in trees as well. */
static void grow(struct job *job, u32 room, struct engine_proposal *tree, u32 depth[ENGINE_ROWS])
{
    const bool all = job->kind == RIGHT || draw(&job->random, 2);
    const u32 spine = job->mode == CHAIN ? ENGINE_ROWS : job->kind == RIGHT ? 6 : 1;
    tree->rows = all ? ENGINE_ROWS : 1 + draw(&job->random, ENGINE_ROWS);
    depth[0] = 0;
    for (u32 row = 1; row < tree->rows; row++) {
        u32 parent = row < spine ? row - 1 : draw(&job->random, row);
        while (depth[parent] >= room && job->mode == TREE && room > 0)
            parent = draw(&job->random, row);
        if (depth[parent] >= room) {
            tree->rows = row;
            return;
        }
        tree->parent[row] = (u8)parent;
        depth[row] = depth[parent] + 1;
    }
}

static u32 wrong_token(struct job *job, u32 position, u32 depth)
{
    const u32 truth = truth_at(job, position, depth);
    if (depth > 1)
        return draw(&job->random, 2) ? truth : draw(&job->random, VOCAB);
    const u32 token = draw(&job->random, 2) ? truth_at(job, position, 2)
                                            : draw(&job->random, VOCAB);
    return token == truth ? (token + 1) % VOCAB : token;
}

static bool clashes(const struct engine_proposal *tree, u32 row)
{
    for (u32 other = 1; other < row; other++)
        if (tree->parent[other] == tree->parent[row] && tree->token[other] == tree->token[row])
            return true;
    return false;
}

/* Tokens of the truth down one path, `right` rows of it: RIGHT takes first children. Siblings of
 * the path give way. */
static void lay_path(struct job *job, u32 position, u32 right, struct engine_proposal *tree)
{
    for (u32 at = 0, depth = 1; depth <= right; depth++) {
        u32 children[ENGINE_ROWS], count = 0;
        for (u32 row = at + 1; row < tree->rows; row++)
            if (tree->parent[row] == at)
                children[count++] = row;
        if (count == 0)
            return;
        const u32 token = truth_at(job, position, depth);
        for (u32 i = 0; i < count; i++)
            while (tree->token[children[i]] == token || clashes(tree, children[i]))
                tree->token[children[i]] = draw(&job->random, VOCAB);
        at = children[job->kind == RIGHT ? 0 : draw(&job->random, count)];
        tree->token[at] = token;
    }
}

static void propose(void *user, u32 position, struct engine_proposal *tree)
{
    struct job *job = user;
    u32 depth[ENGINE_ROWS];
    if (job->position)
        job->crossed |= (position - 1) / PAGE != job->position / PAGE;
    job->position = position;
    grow(job, (job->context ? job->context : CONTEXT) - 1 - position, tree, depth);
    for (u32 row = 1; row < tree->rows; row++)
        do
            tree->token[row] = job->kind == WRONG ? wrong_token(job, position, depth[row])
                                                  : draw(&job->random, VOCAB);
        while (clashes(tree, row));
    if (job->kind == LUCKY || job->kind == RIGHT)
        lay_path(job, position, job->kind == RIGHT ? ENGINE_ROWS : draw(&job->random, ENGINE_ROWS),
                 tree);
}

/* ---- requests */

static bool take(void *user, u32 token)
{
    struct job *job = user;
    assert_true(job->text.count < MOST_TOKENS);
    job->text.ids[job->text.count++] = token;
    return job->cancel || job->text.count != job->enough;
}

static bool go_on(void *user, u32 done, u32 count)
{
    const struct job *job = user;
    return done < count || !job->cancel || job->text.count < job->enough;
}

static void run_on(struct engine *engine, struct job *job)
{
    const bool proposes = job->kind != TRAINED && job->kind != CAPPED && job->kind != NONE;
    struct engine_request request = {.prompt = job->prompt,
                                     .prompt_count = job->prompt_count,
                                     .max_tokens = job->tokens,
                                     .sampling = samplings[job->sampling].values,
                                     .stops = job->stops,
                                     .stop_count = job->stop_count,
                                     .on_token = take,
                                     .on_progress = go_on,
                                     .propose = proposes ? propose : NULL,
                                     .no_draft = job->kind == NONE,
                                     .user = job};
    struct error error = {0};
    request.sampling.seed = job->seed;
    job->text.count = job->position = 0;
    job->crossed = false;
    job->random = job->seed * 0x9e3779b97f4a7c15u + job->kind;
    const int failed = engine_generate(engine, &request, &job->result, &error);
    if (failed ? error.code != ERROR_CANCELLED || !job->cancel : job->cancel)
        fail_msg("%s", failed ? error.text : "the request was not cancelled");
}

static void run(struct job *job)
{
    run_on(engine_for(job->mode, job->kind), job);
}

/* The same request without a draft and without an early end. */
static struct text truth_on(struct engine *engine, const struct job *job)
{
    struct job plain = *job;
    plain.kind = NONE;
    plain.stop_count = plain.enough = 0;
    plain.cancel = false;
    run_on(engine, &plain);
    assert_int_equal(plain.text.count, job->tokens);
    return plain.text;
}

static struct text truth_of(const struct job *job)
{
    return truth_on(engine_for(TREE, NONE), job);
}

/* How a job's text differs from the first `count` ids of the truth; false: it does not. */
static bool differs(const struct job *job, const struct text *truth, u32 count, char why[WHY])
{
    for (u32 i = 0; i < count && i < job->text.count; i++)
        if (job->text.ids[i] != truth->ids[i]) {
            snprintf(why, WHY, "token %u is %u, without a draft %u", i, job->text.ids[i],
                     truth->ids[i]);
            return true;
        }
    snprintf(why, WHY, "%u tokens, without a draft %u", job->text.count, count);
    return job->text.count != count;
}

/* What is wrong with the counts of a job whose text is right; NULL: nothing. */
static const char *bad_counts(const struct job *job, enum engine_finish finish)
{
    const struct engine_result *r = &job->result;
    if (r->finish != finish)
        return "the finish is another";
    if (r->completion_tokens != job->text.count + (finish == FINISH_STOP))
        return "completion_tokens is not what was generated";
    if (r->rounds + r->accepted != r->completion_tokens)
        return "a round does not give its accepted rows and one token";
    if (r->drafted < r->accepted || r->drafted > r->rounds * (job->kind == CAPPED ? CAP : 7))
        return "more rows accepted than drafted, or drafted than a round may have";
    if (job->kind == NONE && r->drafted)
        return "rows were drafted, though nothing proposes";
    if (job->kind == WRONG && r->accepted)
        return "a wrong row was accepted";
    if (job->crossed)
        return "a round went on beyond a page's end";
    if (!job->faults && r->recomputed)
        return "a record failed the host's check";
    return NULL;
}

/* The job gave the first `count` ids of the truth and ended as it should. */
static bool is_good(const struct job *job, const struct text *truth, u32 count,
                    enum engine_finish finish, char why[WHY])
{
    if (differs(job, truth, count, why))
        return false;
    const char *bad = bad_counts(job, finish);
    if (!bad)
        return true;
    snprintf(why, WHY, "%s: finish %d, %u tokens in %u rounds, %u drafted, %u accepted, %u again",
             bad, job->result.finish, job->result.completion_tokens, job->result.rounds,
             job->result.drafted, job->result.accepted, job->result.recomputed);
    return false;
}

static void check(const struct job *job, const struct text *truth, u32 count,
                  enum engine_finish finish)
{
    char why[WHY];
    if (!is_good(job, truth, count, finish, why))
        fail_msg("%s, %s, %s, seed %" PRIu64 ": %s", mode_names[job->mode], kind_names[job->kind],
                 samplings[job->sampling].name, job->seed, why);
}

static struct job job_of(const struct prompt *prompt, u32 tokens, u32 sampling, u64 seed)
{
    return (struct job){.prompt = prompt->ids,
                        .prompt_count = prompt->count,
                        .tokens = tokens,
                        .sampling = sampling,
                        .seed = seed};
}

/* ---- the matrix */

struct cell {
    u32 prompt;
    enum mode mode;
    enum kind kind;
    u32 sampling, tokens;
    bool stops; /* the model's */
};

struct tally {
    u64 tokens, rounds;
};

static struct {
    struct tally kinds[KINDS];
    struct tally natural[MODES]; /* cells of natural_cells */
    struct tally chat[MODES];    /* of them, prompts of kind chat */
    u64 tokens;
    u32 cells, different;
    double start;
} sums;

static void count(struct tally *tally, const struct engine_result *result)
{
    tally->tokens += result->completion_tokens;
    tally->rounds += result->rounds;
}

static double mean(struct tally tally)
{
    return tally.rounds ? (double)tally.tokens / (double)tally.rounds : 0;
}

/* Cells of one prompt, sampling and seed follow each other: they share the truth. */
static const struct text *cell_truth(const struct job *job)
{
    static struct job last;
    static struct text truth;
    if (last.prompt != job->prompt || last.tokens != job->tokens || last.seed != job->seed ||
        last.sampling != job->sampling)
        truth = truth_of(job);
    last = *job;
    return &truth;
}

static u32 first_stop(const struct text *truth)
{
    for (u32 i = 0; i < truth->count; i++)
        for (u32 j = 0; j < COUNT_OF(model_stops); j++)
            if (truth->ids[i] == model_stops[j])
                return i;
    return truth->count;
}

/* `seed`: greedy cells do not depend on it, so that they share their truth. */
static struct engine_result check_cell(const struct cell *cell, u64 seed)
{
    const struct prompt *prompt = &prompts[cell->prompt];
    struct job job = job_of(prompt, cell->tokens, cell->sampling, cell->sampling ? seed : 0);
    char why[WHY];
    if (!full_run() && job.prompt_count > PART_PROMPT)
        job.prompt_count = PART_PROMPT;
    job.truth = cell_truth(&job);
    job.mode = cell->mode;
    job.kind = cell->kind;
    job.stops = model_stops;
    job.stop_count = cell->stops ? COUNT_OF(model_stops) : 0;
    const u32 end = cell->stops ? first_stop(job.truth) : cell->tokens;
    run(&job);
    sums.cells++;
    sums.tokens += job.result.completion_tokens;
    count(&sums.kinds[cell->kind], &job.result);
    if (is_good(&job, job.truth, end, end < cell->tokens ? FINISH_STOP : FINISH_LENGTH, why))
        return job.result;
    sums.different++;
    printf("# DIFFERS: prompt %s, %s, %s, %s, seed %" PRIu64 ", %s: %s\n", prompt->name,
           mode_names[cell->mode], kind_names[cell->kind], samplings[cell->sampling].name, job.seed,
           cell->stops ? "with stops" : "without stops", why);
    fflush(stdout);
    return job.result;
}

static void report(void)
{
    printf("# %u cells, %" PRIu64 " tokens in %.0f s; tokens in the mean round:", sums.cells,
           sums.tokens, clock_seconds() - sums.start);
    for (u32 kind = 0; kind < KINDS; kind++)
        printf(" %s %.2f", kind_names[kind], mean(sums.kinds[kind]));
    printf("\n# trained and greedy up to the stop, prompts of text: chain %.2f, tree %.2f; "
           "of them chat: chain %.2f, tree %.2f\n",
           mean(sums.natural[CHAIN]), mean(sums.natural[TREE]), mean(sums.chat[CHAIN]),
           mean(sums.chat[TREE]));
    fflush(stdout);
}

/* How well the draft proposes: trained, greedy, up to the model's stop. */
static void natural_cells(void)
{
    const bool all = whole_run();
    for (u32 i = 0; i < NATURAL_COUNT; i++) {
        const bool chat = strcmp(prompts[i].kind, "chat") == 0;
        for (u32 mode = 0; mode < MODES && (chat || all); mode++) {
            const struct cell cell = {i,   mode, TRAINED, 0, all ? MOST_TOKENS : NATURAL_TOKENS,
                                      true};
            const struct engine_result result = check_cell(&cell, 0);
            count(&sums.natural[mode], &result);
            if (chat)
                count(&sums.chat[mode], &result);
        }
    }
}

/* Two cells a prompt. Turn 0 is what `make test` runs: each pair of (mode, kind), (mode, sampling)
 * and (kind, sampling) occurs. Later turns move kinds and samplings on and leave out the one
 * prompt that takes long. */
static void part_of_cells(u32 turn)
{
    for (u32 i = 0; i < PROMPT_COUNT; i++) {
        struct cell cell = {.prompt = i,
                            .mode = i % 2 ? TREE : CHAIN,
                            .kind = (i + turn) % KINDS,
                            .sampling = (i + turn * 3) % SAMPLINGS,
                            .tokens = PART_TOKENS,
                            .stops = ((i + turn) / 2 + 1) % 2};
        if (turn > 0 && prompts[i].count > 1000)
            continue;
        check_cell(&cell, i);
        cell.mode = cell.mode == TREE ? CHAIN : TREE;
        cell.kind = (cell.kind + 2) % KINDS;
        check_cell(&cell, i);
    }
}

/* Every cell has a seed of its own. */
static void every_cell(void)
{
    for (u32 i = 0; i < PROMPT_COUNT * SAMPLINGS; i++) {
        struct cell cell = {
            .prompt = i / SAMPLINGS, .sampling = i % SAMPLINGS, .tokens = MOST_TOKENS};
        for (u32 j = 0; j < MODES * KINDS; j++) {
            cell.mode = j / KINDS;
            cell.kind = j % KINDS;
            cell.stops = (cell.prompt + cell.kind + cell.sampling) % 2;
            check_cell(&cell, 1 + i * MODES * KINDS + j);
        }
        printf("# %s, %s: %u cells so far, %u of them differ, %" PRIu64 " tokens, %.0f s\n",
               prompts[cell.prompt].name, samplings[cell.sampling].name, sums.cells, sums.different,
               sums.tokens, clock_seconds() - sums.start);
        fflush(stdout);
    }
}

static void drafts_change_no_token(void **state)
{
    (void)state;
    memset(&sums, 0, sizeof sums);
    sums.start = clock_seconds();
    natural_cells();
    if (whole_run())
        every_cell();
    else
        for (u32 turn = 0; turn < (full_run() ? HOST_TURNS : 1); turn++)
            part_of_cells(turn);
    report();
    if (sums.different)
        fail_msg("%u of %u cells differ from decoding without a draft", sums.different, sums.cells);
    assert_int_equal(sums.kinds[WRONG].tokens, sums.kinds[WRONG].rounds);
    assert_true(sums.kinds[WRONG].rounds > 0);
    for (u32 mode = 0; mode < MODES; mode++)
        if (mean(sums.chat[mode]) < 2)
            fail_msg("%s: %.2f tokens in the mean round of chat, expected at least 2",
                     mode_names[mode], mean(sums.chat[mode]));
}

/* What the matrix compares with is what an engine gives that has no draft. */
static void no_draft_is_an_engine_without_one(void **state)
{
    (void)state;
    struct engine *engine = open_engine((struct engine_options){0});
    for (u32 i = 0; i < (full_run() ? PROMPT_COUNT : SAMPLINGS); i++) {
        const struct prompt *prompt = full_run() ? &prompts[i] : prompt_named("random_7");
        struct job job = job_of(prompt, on_gpu() ? MOST_TOKENS : PART_TOKENS, i % SAMPLINGS, i);
        const struct text bare = truth_on(engine, &job);
        job.kind = NONE;
        run(&job);
        check(&job, &bare, bare.count, FINISH_LENGTH);
    }
    engine_close(engine);
}

/* ---- rounds that are cut: a prompt of one token, so that prompts cost nothing */

/* Calls cut for both modes, the draft and proposals that are right as far as they reach. */
static void each_proposer(void (*cut)(struct job *job, const struct text *truth))
{
    static const enum kind kinds[] = {TRAINED, RIGHT};
    for (u32 mode = 0; mode < MODES; mode++)
        for (u32 i = 0; i < COUNT_OF(kinds); i++) {
            struct job job = job_of(prompt_named("random_1"), 12, 1, 7);
            job.mode = mode;
            job.kind = kinds[i];
            const struct text truth = truth_of(&job);
            job.truth = &truth;
            cut(&job, &truth);
        }
}

static void check_budgets(struct job *job, const struct text *truth)
{
    static const u32 budgets[] = {1, 2, 3, 9};
    for (u32 i = 0; i < COUNT_OF(budgets); i++) {
        job->tokens = budgets[i];
        run(job);
        check(job, truth, budgets[i], FINISH_LENGTH);
    }
}

static void budgets_cut_rounds(void **state)
{
    (void)state;
    each_proposer(check_budgets);
}

static void check_caller(struct job *job, const struct text *truth)
{
    const u32 step = job->kind == RIGHT || full_run() ? 1 : 4;
    for (job->enough = 1; job->enough <= 9; job->enough += step) {
        run(job);
        check(job, truth, job->enough, FINISH_CALLER);
    }
}

static void callers_cut_rounds(void **state)
{
    (void)state;
    each_proposer(check_caller);
}

static void check_stops(struct job *job, const struct text *truth)
{
    const u32 step = job->kind == RIGHT || full_run() ? 1 : 4;
    u32 stops[2] = {VOCAB, 0}, checked = 0;
    job->stops = stops;
    job->stop_count = 2;
    for (u32 at = 0; at < 9; at += step) {
        u32 first = 0;
        while (truth->ids[first] != truth->ids[at])
            first++;
        stops[1] = truth->ids[at];
        if (first < at)
            continue;
        run(job);
        check(job, truth, at, FINISH_STOP);
        checked++;
    }
    assert_in_range(checked, 1 + 4 / step, 9);
}

static void stop_tokens_cut_rounds(void **state)
{
    (void)state;
    each_proposer(check_stops);
}

static void pages_cut_rounds(void **state)
{
    struct job job = job_of(prompt_named("random_300"), 14, 1, 5);
    (void)state;
    job.prompt_count = PAGE - 5;
    const struct text truth = truth_of(&job);
    job.truth = &truth;
    job.kind = RIGHT;
    for (u32 mode = 0; mode < MODES; mode++) {
        job.mode = mode;
        run(&job);
        check(&job, &truth, job.tokens, FINISH_LENGTH);
        assert_true(job.result.rounds < job.tokens / 2); /* there was an end to go beyond */
    }
}

/* ---- penalties: tokens of a round are counted before the next round, each once */

static void check_penalties(const char *prompt, u32 sampling)
{
    static const enum kind kinds[] = {RIGHT, LUCKY, TRAINED, WRONG};
    struct job job = job_of(prompt_named(prompt), whole_run() ? 256 : 32, sampling, 3);
    const struct text truth = truth_of(&job);
    job.truth = &truth;
    for (u32 i = 0; i < (full_run() ? MODES * COUNT_OF(kinds) : 2); i++) {
        job.mode = (i + i / COUNT_OF(kinds)) % MODES;
        job.kind = kinds[i % COUNT_OF(kinds)];
        run(&job);
        check(&job, &truth, job.tokens, FINISH_LENGTH);
    }
}

static void penalties_count_accepted_tokens_once(void **state)
{
    (void)state;
    check_penalties("count", GREEDY_PENALISED);
    check_penalties("random_1", 2);
}

/* ---- the end of the context */

static void check_to_the_end(struct engine *engine, enum mode mode, u32 left, u32 sampling)
{
    static const enum kind kinds[] = {TRAINED, RIGHT, LUCKY, WRONG};
    const u32 count = engine_context(engine) - left;
    struct job job = {.prompt = prompt_named("long")->ids,
                      .prompt_count = count,
                      .context = engine_context(engine),
                      .tokens = left,
                      .sampling = sampling,
                      .seed = count,
                      .mode = mode};
    const struct text truth = truth_of(&job);
    job.truth = &truth;
    for (u32 i = 0; i < (whole_run() ? COUNT_OF(kinds) : 2); i++) {
        job.kind = kinds[i];
        run_on(engine, &job);
        check(&job, &truth, left, FINISH_LENGTH);
    }
}

static void contexts_end_inside_rounds(void **state)
{
    static const u32 contexts[] = {256, 512}, left[] = {19, 2, 1, 3, 5, 8, 11, 250};
    const u32 lefts = whole_run() ? COUNT_OF(left) : full_run() ? 3 : 1;
    (void)state;
    for (u32 i = 0; i < (full_run() ? COUNT_OF(contexts) * MODES : MODES); i++) {
        const enum mode mode = i % MODES;
        struct engine *engine = open_engine((struct engine_options){
            .draft = DRAFT, .chain = mode == CHAIN, .context = contexts[i / MODES]});
        assert_int_equal(engine_context(engine), contexts[i / MODES]);
        for (u32 j = 0; j < lefts; j++)
            check_to_the_end(engine, mode, left[j], (i + j) % SAMPLINGS);
        engine_close(engine);
    }
}

/* ---- records that do not pass */

static void check_faults(enum mode mode, u32 every)
{
    static const char *const names[] = {"story", "random_64"};
    struct engine *engine = open_engine(
        (struct engine_options){.draft = DRAFT, .chain = mode == CHAIN, .fault_every = every});
    for (u32 i = 0; i < COUNT_OF(names); i++) {
        struct job job = job_of(prompt_named(names[i]), on_gpu() ? 256 : PART_TOKENS, 2 * i, 40);
        job.faults = true;
        const struct text truth = truth_of(&job);
        job.mode = mode;
        run_on(engine, &job);
        check(&job, &truth, job.tokens, FINISH_LENGTH);
        /* round 0, `every`, ..., unless it is a last one that drafts nothing */
        const u32 faults = (job.result.rounds + every - 1) / every;
        assert_in_range(job.result.recomputed, faults > 1 ? faults - 1 : 1, faults);
    }
    engine_close(engine);
}

static void faulty_records_are_recomputed(void **state)
{
    (void)state;
    check_faults(TREE, 1);
    check_faults(CHAIN, 3);
    if (full_run()) {
        check_faults(TREE, 3);
        check_faults(CHAIN, 1);
    }
}

/* ---- requests after one another on one engine */

/* Between requests of `first`: others, of which some end early or are cancelled in a round. */
static void requests_leave_nothing_behind(void **state)
{
    static const struct {
        enum kind first, second;
        u32 enough;
        bool cancel;
    } turns[] = {{TRAINED, TRAINED, 1, true},
                 {LUCKY, NONE, 5, false},
                 {TRAINED, TRAINED, 0, false},
                 {TRAINED, RIGHT, 5, false}};
    struct job first = job_of(prompt_named("random_7"), 10, 2, 11);
    struct job second = job_of(prompt_named("sum"), 10, 0, 0);
    const struct text one = truth_of(&first), two = truth_of(&second);
    (void)state;
    first.truth = &one;
    second.truth = &two;
    for (u32 i = 0; i < COUNT_OF(turns) * (full_run() ? MODES : 1); i++) {
        first.mode = second.mode = (i + i / COUNT_OF(turns)) % MODES;
        first.kind = turns[i % COUNT_OF(turns)].first;
        run(&first);
        check(&first, &one, first.tokens, FINISH_LENGTH);
        second.kind = turns[i % COUNT_OF(turns)].second;
        second.enough = turns[i % COUNT_OF(turns)].enough;
        second.cancel = turns[i % COUNT_OF(turns)].cancel;
        run(&second);
        if (!second.cancel)
            check(&second, &two, second.enough ? second.enough : second.tokens,
                  second.enough ? FINISH_CALLER : FINISH_LENGTH);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_draft_is_an_engine_without_one),
        cmocka_unit_test(budgets_cut_rounds),
        cmocka_unit_test(callers_cut_rounds),
        cmocka_unit_test(stop_tokens_cut_rounds),
        cmocka_unit_test(pages_cut_rounds),
        cmocka_unit_test(penalties_count_accepted_tokens_once),
        cmocka_unit_test(contexts_end_inside_rounds),
        cmocka_unit_test(faulty_records_are_recomputed),
        cmocka_unit_test(requests_leave_nothing_behind),
        cmocka_unit_test(drafts_change_no_token),
    };
    return cmocka_run_group_tests_name("engine/speculation", tests, read_prompts, close_all);
}
