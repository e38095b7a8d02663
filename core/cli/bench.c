/* bench.c - `elpis bench`: how long passes, rounds, prompts and requests take on this device.
 *
 * The measuring is the engine's (engine/measure.h); here are the options, the order of what is
 * measured, and the files (bench_report.c, bench_plot.c). Ctrl-C ends after the repetition that
 * runs: the table and the files hold what was measured until then.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_http.h"
#include "cli/bench_report.h"
#include "cli/cli.h"
#include "cli/draft_script.h"
#include "cli/program.h"

enum { OWN_OPTIONS = 12, ACCEPT_DEFAULT = 4, REPEATS_DEFAULT = 20, OUT_DEFAULT = 1024 };
#define SECONDS_DEFAULT 1.0
#define SECONDS_MOST 600.0

/* Prompts of --http of one length, and what the engine alone takes for them. */
struct request_plan {
    u32 *ids; /* as they were before the warm-up */
    u32 repeats, warm_up;
    double prefill, round;
};

struct run {
    struct engine_flags flags;
    struct engine_options options;
    const char *folder, *rows_text, *contexts_text, *http_text;
    const char *json, *csv, *plot;
    u32 accept, repeats, out;
    double seconds;
    bool phases;
    struct option_numbers rows, contexts, prompts, http;
    struct engine_proposal tree; /* of --tree PARENTS; rows 0 = none */
    const char *tree_text;
    struct bench_report report;
    struct measure *measure;
    struct bench_point *point;    /* large: not on the stack */
    struct measured_pass *pass;   /* of the same size */
    struct measured_round *round; /* and larger */
    struct measured_phases *parts;
    struct measured_prompt *prompt;
    struct measured_request *request;
    struct request_plan plans[OPTION_NUMBERS_MOST];
    u32 vocab;
    struct bench_server *server; /* of --http */
    /* of the engine, which is closed before the report is printed */
    struct device_info device;
    char *model_name, *draft_name, *plan;
};

/* ---- options */

static size_t list_options(struct run *run, struct option_entry *entries)
{
    const struct option_entry own[OWN_OPTIONS] = {
        {0, "rows", "LIST", "Rows of the verify passes, each 1 to 8. Default: 1,8.", OPTION_TEXT,
         &run->rows_text},
        {0, "contexts", "LIST",
         "Tokens that the last row of a pass of 8 sees, from 8 on. Default: those of\n"
         "1024,8192,32768,131072,262144 that fit the context.",
         OPTION_TEXT, &run->contexts_text},
        {0, "accept", "ROWS",
         "Rows that a round commits, 1 to 8, whatever was drafted; 0 measures no rounds.\n"
         "Default: 4.",
         OPTION_U32, &run->accept},
        {0, "repeats", "COUNT", "Repetitions of each, at least; 1 to 1000. Default: 20.",
         OPTION_U32, &run->repeats},
        {0, "seconds", "SECONDS", "Repeat each for at least so long, up to 600. Default: 1.",
         OPTION_DOUBLE, &run->seconds},
        {0, "phases", NULL,
         "Also time the phases of a round, or of a prompt, its launches one by one.", OPTION_FLAG,
         &run->phases},
        {0, "json", "FILE", "Write a JSON object a line, with every repetition.", OPTION_TEXT,
         &run->json},
        {0, "csv", "FILE", "Write a table of comma-separated values.", OPTION_TEXT, &run->csv},
        {0, "plot", "FILE", "Write a plot, SVG: ms a verify over the context, and the floor.",
         OPTION_TEXT, &run->plot},
        {0, "prefill", "LENGTHS",
         "Measure prompts of so many tokens: seconds, tokens a second, time to the first token.\n"
         "exact:LENGTHS runs them through the decode kernels, int8-qk:LENGTHS makes their Q K^T\n"
         "of int8. Passes and rounds are then only measured where --rows or --contexts is given.",
         OPTION_TEXT, &run->flags.prefill},
        {0, "http", "LENGTHS",
         "Measure whole requests over HTTP, with prompts of so many tokens, beside the engine\n"
         "alone. Passes and rounds are then only measured as with --prefill.",
         OPTION_TEXT, &run->http_text},
        {0, "out", "TOKENS", "Tokens of the answers of --http. Default: 1024.", OPTION_U32,
         &run->out},
    };
    memcpy(entries, own, sizeof own);
    struct option_entry engine[ENGINE_OPTION_COUNT];
    const size_t all = engine_option_entries(&run->flags, engine);
    size_t count = OWN_OPTIONS;
    for (size_t i = 0; i < all; i++) {
        if (strcmp(engine[i].name, "prefill") == 0)
            continue;
        entries[count] = engine[i];
        if (strcmp(engine[i].name, "tree") == 0) {
            entries[count].argument = "PARENTS";
            entries[count].help = "Also measure a verify of one tree: parents of rows 1 and up, "
                                  "such as 0,0,1,1,2,4,5.\nWith --draft also on or off, as in "
                                  "`elpis run`.";
        }
        count++;
    }
    return count;
}

/* --prefill is here a list of lengths, perhaps behind the kind that it names elsewhere. */
static int take_prefill(struct run *run, struct error *error)
{
    const char *text = run->flags.prefill;
    if (!text)
        return 0;
    run->flags.prefill = NULL;
    enum engine_prefill kind;
    const char *colon = strchr(text, ':');
    if (colon && engine_prefill_named((struct slice){text, (size_t)(colon - text)}, &kind)) {
        run->flags.prefill = engine_prefill_name(kind);
        text = colon + 1;
    }
    if (!isdigit((unsigned char)*text))
        return error_set(error, ERROR_USAGE,
                         "option --prefill expects lengths of prompts, such as 8192,32768 or "
                         "exact:512, got '%s'",
                         text);
    return options_numbers(&run->prompts, "prefill", text, 1, UINT32_MAX, error);
}

/* A list of parents begins with a digit, on and off do not. */
static int take_tree(struct run *run, struct error *error)
{
    const char *text = run->flags.tree;
    if (!text || !isdigit((unsigned char)*text))
        return 0;
    run->flags.tree = NULL;
    run->tree_text = text;
    return draft_parents_parse(&run->tree, text, error);
}

static int check_numbers(const struct run *run, struct error *error)
{
    if (run->accept > ENGINE_ROWS)
        return error_set(error, ERROR_USAGE, "option --accept expects 0 to %d, got %" PRIu32,
                         ENGINE_ROWS, run->accept);
    if (run->repeats < 1 || run->repeats > SERIES_MOST)
        return error_set(error, ERROR_USAGE, "option --repeats expects 1 to %d, got %" PRIu32,
                         SERIES_MOST, run->repeats);
    if (!(run->seconds >= 0 && run->seconds <= SECONDS_MOST))
        return error_set(error, ERROR_USAGE, "option --seconds expects 0 to %g, got %g",
                         SECONDS_MOST, run->seconds);
    if (run->out < 1)
        return error_set(error, ERROR_USAGE, "option --out expects 1 or more, got 0");
    return 0;
}

/* Passes and rounds are measured too. */
static bool wants_contexts(const struct run *run)
{
    const bool others = run->prompts.count || run->http.count;
    return !others || run->rows_text || run->contexts_text;
}

static int check_options(struct run *run, struct error *error)
{
    const char *rows = run->rows_text ? run->rows_text : "1,8";
    if (check_numbers(run, error) ||
        options_numbers(&run->rows, "rows", rows, 1, ENGINE_ROWS, error) ||
        (run->contexts_text && options_numbers(&run->contexts, "contexts", run->contexts_text,
                                               ENGINE_ROWS, UINT32_MAX, error)) ||
        (run->http_text &&
         options_numbers(&run->http, "http", run->http_text, 1, UINT32_MAX, error)) ||
        take_prefill(run, error) || take_tree(run, error))
        return -1;
    const struct {
        const char *name;
        bool given;
    } of_contexts[] = {{"plot", run->plot != NULL}, {"tree", run->tree.rows > 0}};
    for (size_t i = 0; i < COUNT_OF(of_contexts); i++)
        if (of_contexts[i].given && !wants_contexts(run))
            return error_set(error, ERROR_USAGE,
                             "option --%s has no meaning with --%s alone; give --contexts too",
                             of_contexts[i].name, run->prompts.count ? "prefill" : "http");
    if (run->phases && !run->prompts.count && !wants_contexts(run))
        return error_set(error, ERROR_USAGE,
                         "option --phases has no meaning with --http alone; give --prefill too");
    return 0;
}

/* What was asked for must fit the context; what was not is left out. */
static int choose_contexts(struct run *run, u32 context, struct error *error)
{
    static const u32 usual[] = {1024, 8192, 32768, 131072, 262144};
    const struct {
        const char *option;
        const struct option_numbers *numbers;
    } given[] = {{"contexts", &run->contexts}, {"prefill", &run->prompts}};
    for (size_t i = 0; i < COUNT_OF(given); i++) {
        const struct option_numbers *numbers = given[i].numbers;
        const u32 most = numbers->count ? numbers->list[numbers->count - 1] : 0;
        if (most > context)
            return error_set(error, ERROR_USAGE,
                             "option --%s: %" PRIu32 " is more than the context of %" PRIu32
                             " tokens; give a larger --context if the model and the memory allow",
                             given[i].option, most, context);
    }
    const u32 longest = run->http.count ? run->http.list[run->http.count - 1] : 0;
    if (longest && (u64)longest + run->out > context)
        return error_set(error, ERROR_USAGE,
                         "option --http: a prompt of %" PRIu32 " and --out %" PRIu32
                         " are more than the context of %" PRIu32
                         " tokens; give a larger --context if the model and the memory allow",
                         longest, run->out, context);
    if (!wants_contexts(run) || run->contexts.count)
        return 0;
    for (size_t i = 0; i < COUNT_OF(usual); i++)
        if (usual[i] <= context)
            run->contexts.list[run->contexts.count++] = usual[i];
    if (!run->contexts.count)
        run->contexts.list[run->contexts.count++] = context;
    return 0;
}

/* ---- Ctrl-C */

static volatile sig_atomic_t stopped;

static void stop(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

static bool go_on(void *user)
{
    (void)user;
    return !stopped;
}

/* A second one ends the program at once. */
static void catch_interrupt(void)
{
    struct sigaction action = {.sa_handler = stop, .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
    sigaction(SIGINT, &action, NULL);
}

/* ---- measuring */

static struct bench_point *new_point(struct run *run, const char *kind, u32 context)
{
    memset(run->point, 0, sizeof *run->point);
    run->point->kind = kind;
    run->point->context = context;
    return run->point;
}

static void add_pass(struct run *run, const char *kind, const char *detail, u32 context,
                     double rows)
{
    struct bench_point *point = new_point(run, kind, context);
    point->detail = detail;
    point->rows = rows;
    point->seconds = run->pass->seconds;
    point->traffic = run->pass->traffic;
    point->has_traffic = true;
    point->readings = run->pass->readings;
    bench_report_add(&run->report, point);
    if (!run->pass->finite)
        log_warn("context %" PRIu32
                 ": the logits are not finite numbers; times do not depend on it",
                 context);
}

static int run_verify(struct run *run, u32 context, const struct engine_proposal *tree,
                      const char *detail, struct error *error)
{
    if (stopped)
        return 0;
    if (measure_verify(run->measure, context, tree, run->pass, error) < 0)
        return -1;
    add_pass(run, BENCH_VERIFY, detail, context, tree->rows);
    return 0;
}

static int run_parts(struct run *run, u32 context, struct error *error)
{
    if (stopped || !run->report.draft)
        return 0;
    if (measure_draft(run->measure, context, run->pass, error) < 0)
        return -1;
    add_pass(run, "draft", NULL, context, measure_draft_model(run->measure)->config.block);
    if (stopped)
        return 0;
    if (measure_commit(run->measure, context, run->accept, run->pass, error) < 0)
        return -1;
    add_pass(run, "commit", NULL, context, run->accept);
    return 0;
}

static int run_rounds(struct run *run, u32 context, struct error *error)
{
    struct measured_round *round = run->round;
    if (stopped)
        return 0;
    if (measure_rounds(run->measure, context, run->accept, round, error) < 0)
        return -1;
    const struct {
        const char *kind;
        const struct series *seconds;
        bool quiet;
    } list[] = {{BENCH_ROUND, &round->wall, false},
                {"host gap", &round->gap, false},
                {"draft in a round", &round->draft, true},
                {"verify in a round", &round->verify, true},
                {"commit in a round", &round->commit, true}};
    for (size_t i = 0; i < COUNT_OF(list); i++) {
        struct bench_point *point = new_point(run, list[i].kind, context);
        point->rows = round->rows;
        point->seconds = *list[i].seconds;
        point->quiet = list[i].quiet;
        point->has_traffic = i == 0;
        point->traffic = round->traffic;
        if (i == 0)
            point->readings = round->readings;
        bench_report_add(&run->report, point);
    }
    if (round->recomputed)
        log_warn("context %" PRIu32 ": %" PRIu32 " rounds were computed again: the device's record "
                 "did not pass the host's check",
                 context, round->recomputed);
    return 0;
}

static int run_context(struct run *run, u32 context, struct error *error)
{
    for (u32 i = 0; i < run->rows.count; i++) {
        const struct engine_proposal chain = {.rows = run->rows.list[i],
                                              .parent = {0, 0, 1, 2, 3, 4, 5, 6}};
        if (run_verify(run, context, &chain, NULL, error) < 0)
            return -1;
    }
    if (run->tree.rows && run_verify(run, context, &run->tree, run->tree_text, error) < 0)
        return -1;
    if (!run->accept)
        return 0;
    return run_parts(run, context, error) < 0 || run_rounds(run, context, error) < 0 ? -1 : 0;
}

static void add_phases(struct run *run, const char *one, const char *all, u32 context, double rows)
{
    for (u32 i = 0; i <= MEASURE_PHASES; i++) {
        const bool last = i == MEASURE_PHASES;
        const struct series *seconds = last ? &run->parts->whole : &run->parts->phase[i];
        if (!seconds->count)
            continue;
        struct bench_point *point = new_point(run, last ? all : one, context);
        point->detail = measure_phase_name(i);
        point->rows = rows;
        point->seconds = *seconds;
        point->quiet = true;
        bench_report_add(&run->report, point);
    }
}

static int run_phases(struct run *run, u32 context, struct error *error)
{
    const u32 rows = run->rows.list[run->rows.count - 1];
    if (stopped)
        return 0;
    if (measure_phases(run->measure, context, rows, run->accept ? run->accept : 1, run->parts,
                       error) < 0)
        return -1;
    add_phases(run, BENCH_PHASE, BENCH_PHASES, context, rows);
    return 0;
}

static int run_prompt_phases(struct run *run, u32 tokens, struct error *error)
{
    if (stopped)
        return 0;
    if (measure_prompt_phases(run->measure, tokens, run->parts, error) < 0)
        return -1;
    add_phases(run, BENCH_PROMPT_PHASE, BENCH_PROMPT_PHASES, tokens, 0);
    return 0;
}

static int run_prompt(struct run *run, u32 tokens, struct error *error)
{
    struct measured_prompt *prompt = run->prompt;
    if (stopped)
        return 0;
    if (measure_prompt(run->measure, tokens, prompt, error) < 0)
        return -1;
    if (!prompt->first.count) /* stopped in the first one */
        return 0;
    struct bench_point *point = new_point(run, "prefill", tokens);
    point->seconds = prompt->prefill;
    point->readings = prompt->readings;
    point->tokens_a_second = (tokens - 1) / quartiles_of(&prompt->prefill).median;
    bench_report_add(&run->report, point);
    point = new_point(run, "first token", tokens);
    point->seconds = prompt->first;
    bench_report_add(&run->report, point);
    if (!prompt->finite)
        log_warn("prompt of %" PRIu32 " tokens: the logits are not finite numbers", tokens);
    return 0;
}

/* The engine's part of --http. */
static int run_request(struct run *run, u32 index, struct error *error)
{
    struct request_plan *plan = &run->plans[index];
    const u32 count = run->http.list[index];
    if (stopped)
        return 0;
    u32 *ids = memory_alloc(count * sizeof *ids);
    plan->ids = memory_alloc(count * sizeof *ids);
    measure_random_ids(run->measure, ids, count);
    memcpy(plan->ids, ids, count * sizeof *ids);
    const int status = measure_request(run->measure, ids, count, run->out, run->request, error);
    memory_free(ids);
    if (status < 0 || !run->request->prefill.count)
        return status;
    const struct {
        const char *kind;
        const struct series *seconds;
        double *median;
    } list[] = {{"engine prefill", &run->request->prefill, &plan->prefill},
                {"engine round", &run->request->round, &plan->round}};
    for (size_t i = 0; i < COUNT_OF(list); i++) {
        struct bench_point *point = new_point(run, list[i].kind, count);
        point->seconds = *list[i].seconds;
        *list[i].median = quartiles_of(list[i].seconds).median;
        bench_report_add(&run->report, point);
    }
    plan->repeats = run->request->prefill.count;
    plan->warm_up = run->request->warm_up;
    return 0;
}

static int run_all(struct run *run, struct error *error)
{
    bench_report_head(&run->report, measure_no_sensors(run->measure));
    bench_report_columns();
    for (u32 i = 0; i < run->contexts.count; i++)
        if (run_context(run, run->contexts.list[i], error) < 0)
            return -1;
    for (u32 i = 0; run->phases && i < run->contexts.count; i++)
        if (run_phases(run, run->contexts.list[i], error) < 0)
            return -1;
    for (u32 i = 0; i < run->prompts.count; i++)
        if (run_prompt(run, run->prompts.list[i], error) < 0)
            return -1;
    for (u32 i = 0; run->phases && i < run->prompts.count; i++)
        if (run_prompt_phases(run, run->prompts.list[i], error) < 0)
            return -1;
    for (u32 i = 0; i < run->http.count; i++)
        if (run_request(run, i, error) < 0)
            return -1;
    return 0;
}

/* ---- over HTTP */

static void add_reply(struct bench_point *point, const struct request_plan *plan,
                      const struct bench_reply *reply, struct series *ratios, struct series *first,
                      struct series *inside)
{
    struct bench_request *r = &point->request;
    const double expected = plan->prefill + reply->rounds * plan->round;
    const u32 i = point->seconds.count++;
    ratios->count = first->count = inside->count = point->seconds.count;
    point->seconds.values[i] = reply->whole;
    first->values[i] = reply->first;
    inside->values[i] = reply->engine;
    ratios->values[i] = reply->whole / expected;
    r->tokens += (reply->tokens - r->tokens) / (i + 1);
    r->rounds += (reply->rounds - r->rounds) / (i + 1);
    r->first += (reply->first - r->first) / (i + 1);
    r->engine += (reply->engine - r->engine) / (i + 1);
    r->expected += (expected - r->expected) / (i + 1);
    r->prefill = plan->prefill;
    r->round = plan->round;
    r->of_expected = quartiles_of(ratios).median;
}

/* The same prompts as the engine had alone, in the same order. */
static int ask_server(struct run *run, u32 index, struct error *error)
{
    struct request_plan *plan = &run->plans[index];
    struct bench_reply reply;
    struct series *ratios = &run->pass->seconds, *first = &run->round->wall,
                  *inside = &run->round->gap;
    const u32 count = run->http.list[index], warm = run->out < ENGINE_ROWS ? run->out : ENGINE_ROWS;
    struct bench_point *point = new_point(run, BENCH_REQUEST, count);
    measure_next_prompt(plan->ids, run->vocab);
    if (bench_server_ask(run->server, plan->ids, plan->warm_up, warm, &reply, error) < 0)
        return -1;
    for (u32 i = 0; i < plan->repeats && !stopped; i++) {
        measure_next_prompt(plan->ids, run->vocab);
        if (bench_server_ask(run->server, plan->ids, count, run->out, &reply, error) < 0)
            return -1;
        if (reply.cached)
            log_warn("prompt of %" PRIu32 " tokens: %" PRIu32 " were not computed", count,
                     reply.cached);
        add_reply(point, plan, &reply, ratios, first, inside);
    }
    if (!point->seconds.count)
        return 0;
    bench_report_add(&run->report, point);
    const struct {
        const char *kind;
        const struct series *seconds;
    } list[] = {{"first text", first}, {"in the engine", inside}};
    for (size_t i = 0; i < COUNT_OF(list); i++) {
        point = new_point(run, list[i].kind, count);
        point->seconds = *list[i].seconds;
        bench_report_add(&run->report, point);
    }
    return 0;
}

static int run_http(struct run *run, struct error *error)
{
    if (stopped)
        return 0;
    if (bench_server_start(run->server, error) < 0)
        return -1;
    for (u32 i = 0; i < run->http.count && !stopped; i++)
        if (run->plans[i].repeats && ask_server(run, i, error) < 0)
            return -1;
    return 0;
}

/* ---- files */

/* Empty, to see before minutes of measuring that they can be written. */
static int write_files(const struct run *run, bool empty, struct error *error)
{
    const struct {
        const char *path;
        void (*fill)(const struct bench_report *report, struct buffer *text);
    } files[] = {{run->json, bench_report_json},
                 {run->csv, bench_report_csv},
                 {run->plot, bench_report_svg}};
    int status = 0;
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct buffer text = {0};
        if (!files[i].path)
            continue;
        if (!empty)
            files[i].fill(&run->report, &text);
        if (file_write_atomic(files[i].path, text.data ? text.data : "", text.size, error) < 0)
            status = -1;
        buffer_free(&text);
    }
    return status;
}

static void describe_run(struct run *run, const struct engine *engine)
{
    const struct draft_model *draft = measure_draft_model(run->measure);
    run->device = *engine_device(engine);
    run->model_name = memory_copy_text(slice_of(engine_model(engine)->name));
    run->draft_name = draft ? memory_copy_text(slice_of(draft->name)) : NULL;
    run->plan = memory_copy_text(slice_of(engine_plan_hash(engine)));
    run->vocab = measure_vocab(run->measure);
    run->report.model = run->model_name;
    run->report.draft = run->draft_name;
    run->report.device = &run->device;
    run->report.plan = run->plan;
    run->report.context = engine_context(engine);
    run->report.kv_bits = measure_kv_bits(run->measure);
    run->report.bandwidth = measure_copy_bandwidth(run->measure);
}

/* Closes the engine. */
static int measure(struct run *run, struct engine *engine, struct error *error)
{
    const struct measure_options options = {
        .repeats = run->repeats, .seconds = run->seconds, .go_on = go_on};
    if (choose_contexts(run, engine_context(engine), error) < 0 ||
        write_files(run, true, error) < 0 ||
        measure_open(&run->measure, engine, &options, error) < 0) {
        engine_close(engine);
        return -1;
    }
    describe_run(run, engine);
    catch_interrupt();
    int status = run_all(run, error);
    measure_close(run->measure);
    engine_close(engine);
    if (status == 0 && run->http.count)
        status = run_http(run, error);
    struct error file_error = {0};
    bench_report_phases(&run->report);
    bench_report_traffic(&run->report);
    bench_report_requests(&run->report);
    fflush(stdout);
    if (stopped)
        log_warn("stopped by Ctrl-C: what was measured until then is shown and written");
    const int written = write_files(run, false, &file_error);
    if (status == 0 && written < 0)
        return error_set(error, file_error.code, "%s", file_error.text);
    return status;
}

static char *join_command(int argc, char **argv)
{
    struct buffer text = {0};
    buffer_add_text(&text, "elpis");
    for (int i = 0; i < argc; i++)
        buffer_format(&text, " %s", argv[i]);
    return text.data;
}

/* As the server opens it, so that its plan is measured: ids without a text are not sampled. */
static int open_engine(struct run *run, struct engine **engine, struct error *error)
{
    struct serve_opening opening = {.folder = run->folder, .options = run->options};
    return serve_open_engine(&opening, engine, error);
}

static int run_bench(const struct command *command, int argc, char **argv)
{
    struct run run = {.accept = ACCEPT_DEFAULT,
                      .repeats = REPEATS_DEFAULT,
                      .seconds = SECONDS_DEFAULT,
                      .out = OUT_DEFAULT};
    struct option_entry entries[OWN_OPTIONS + ENGINE_OPTION_COUNT];
    struct error error = {0};
    struct engine *engine = NULL;
    const size_t count = list_options(&run, entries);
    char *words = join_command(argc, argv);
    run.report.command = words;
    options_parse(command, entries, count, argc, argv, (char **)&run.folder, 1, 1);
    int status = check_options(&run, &error);
    if (status == 0) {
        engine_options_finish(command, &run.flags, &run.options);
        if (run.options.context)
            status = choose_contexts(&run, run.options.context, &error);
    }
    if (status == 0 && run.http.count)
        status = bench_server_fork(&run.server, run.folder, &run.options, &error);
    if (status == 0)
        status = open_engine(&run, &engine, &error);
    run.point = memory_alloc(sizeof *run.point);
    run.pass = memory_alloc(sizeof *run.pass);
    run.round = memory_alloc(sizeof *run.round);
    run.parts = memory_alloc(sizeof *run.parts);
    run.prompt = memory_alloc(sizeof *run.prompt);
    run.request = memory_alloc(sizeof *run.request);
    if (status == 0)
        status = measure(&run, engine, &error);
    bench_server_close(run.server);
    memory_free(run.point);
    memory_free(run.pass);
    memory_free(run.round);
    memory_free(run.parts);
    memory_free(run.prompt);
    memory_free(run.request);
    for (size_t i = 0; i < COUNT_OF(run.plans); i++)
        memory_free(run.plans[i].ids);
    memory_free(run.model_name);
    memory_free(run.draft_name);
    memory_free(run.plan);
    memory_free(run.report.points);
    memory_free(words);
    return status < 0 ? command_fail(&error) : 0;
}

const struct command command_bench = {
    .name = "bench",
    .summary = "how long passes, rounds, prompts and requests take on this device",
    .synopsis = "elpis bench MODEL [--draft FOLDER] [OPTION...]",
    .description =
        "Loads the model and times, at each context: a verify pass of every row count (the\n"
        "decode kernels and the sampler); with a draft model its pass, the commit of --accept\n"
        "rows, and whole rounds. A context is not computed: caches and states are filled with\n"
        "random data of their formats, on which no time depends.\n"
        "\n"
        "verify, draft and commit are timed on the device, while the next one is queued already.\n"
        "A round is timed as a request runs it: draft, verify, the host's look at the tokens,\n"
        "commit; its time is that from one round's tokens to the next one's. The draft's tokens\n"
        "are verified as they are, but the verdict is made up: --accept rows are committed, on\n"
        "whose number alone the time of a commit depends. Without a draft a round is one row,\n"
        "plain decoding. host gap is the part of a round in which the device waited for the\n"
        "host.\n"
        "\n"
        "Shown are median, spread (the distance of the quartiles) and number n of repetitions.\n"
        "MB moved is what cannot be avoided: every weight once, the cached keys and values that\n"
        "the rows see, states, and what rows leave for a commit. floor is the time in which a\n"
        "copy on the device moves as many bytes (its reads and writes counted, as measured at\n"
        "the start); of copy is floor / median. Clocks, power and temperature are means over the\n"
        "repetitions, from NVML, where it is there.\n"
        "\n"
        "--phases adds where a round goes: input linears of a mixer, GDN, attention, output\n"
        "linears, MLP, head, sampler, commit, and the parts of the draft, of a verify of a chain\n"
        "with the largest number of --rows. For it kernels are launched one by one instead of as\n"
        "a graph, with an event behind every phase, so phases do not overlap.\n"
        "\n"
        "With --prefill it adds where a prompt goes, summed over layers and pieces: embedding,\n"
        "transforms (norm and Hadamard in front of linears), weights (matrices from trellises),\n"
        "products, outputs (behind linears, and between gate, up and down), GDN, attention, taps\n"
        "and context of the draft, and the round that gives the first token, as a whole.\n"
        "There weights are made in front of their product; without --phases they are made beside\n"
        "the product before it, so phases may add up to more than the prompt takes.\n"
        "A prompt may be as long as the context: its last token is row 0 of that round.\n"
        "\n"
        "--http first runs the requests in the engine alone: greedy answers of --out tokens,\n"
        "which nothing ends earlier. Then it closes the engine, starts the server of `elpis\n"
        "serve` with the same options on a free port of 127.0.0.1, and sends it the same\n"
        "prompts as token ids, one streamed completion a connection. Shown are the request from\n"
        "connecting to the answer's end, the time to the first text, what the server's engine\n"
        "counts for it, and the engine alone: prefill + rounds of the request x a round. \"of\n"
        "sum\" is the request as a share of that; every prompt has another first token, so none\n"
        "is found in a cache.\n"
        "\n"
        "Ctrl-C ends it: what was measured until then is shown and written.",
    .epilogue =
        "FILES\n"
        "    --json: date, benchmark, machine, variant, command, unit (ms), values, median as in\n"
        "    bench/results; low_quartile, high_quartile, n, rows, context, bytes, floor_ms,\n"
        "    of_copy, sm_mhz, memory_mhz, watts, celsius, tokens_per_second, model, draft, "
        "target,\n"
        "    plan, max_context, kv_bits, copy_bandwidth (bytes a second). Beside the lines of the\n"
        "    table it has the parts of a round as they were inside it, and the phases. A line of "
        "a\n"
        "    request has tokens, rounds, first_text_ms, engine_ms, prefill_ms, ms_per_round,\n"
        "    expected_ms (the sum) and of_expected. --csv has the same in columns, without the\n"
        "    values.\n"
        "\n"
        "EXAMPLES\n"
        "    elpis bench model --draft model-dflash2 --json round.jsonl --plot round.svg\n"
        "    elpis bench model --rows 8 --contexts 1024,32768 --accept 0 --phases\n"
        "    elpis bench model --prefill 8192,32768,131072 --phases\n"
        "    elpis bench model --prefill 262144 --context 262144\n"
        "    elpis bench model --draft model-dflash2 --http 1024,8192,32768 --out 1024\n"
        "    elpis bench tests/models/elpis-tiny --device host --contexts 1024 --repeats 5\n",
    .run = run_bench,
};
