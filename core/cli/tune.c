/* tune.c - `elpis tune`: options, progress, and the order of things.
 *
 * The engine is opened with the default tuning of every kernel, whatever records say; the sweep
 * (core/tune) runs its passes. Records are written while it runs, all other files at the end.
 */
#include <ctype.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/program.h"
#include "cli/tune_report.h"
#include "engine/shape.h"
#include "jit/records.h"

enum { OWN_OPTIONS = 13, BAR_WIDTH = 24 };
/* At which passes are run: far enough out for attention to count, in seconds a pass. */
enum { CONTEXT_OF_GPU = 32768, CONTEXT_OF_HOST = 2048 };
#define BUDGET_DEFAULT "5m"

struct tune_command {
    struct engine_flags flags;
    struct engine_options options;
    const char *folder, *shape, *budget, *output, *json, *csv, *plot, *only;
    u32 candidates, at;
    u64 seed;
    bool again, dry_run;
    bool swept; /* some kernel, by this command */
    struct arena *arena;
    struct shape wanted; /* of --kernel and --shape */
    char *path;          /* of the records */
    struct tune_options tune;
};

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

/* A second one ends the program at once, where `again`: a record is whole or not there. */
static void catch_interrupt(bool again)
{
    const u32 flags = SA_RESTART | (again ? SA_RESETHAND : 0);
    struct sigaction action = {.sa_handler = stop, .sa_flags = (int)flags};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static bool go_on(void *user)
{
    (void)user;
    return !stopped;
}

/* ---- options */

/* "90", "90s", "5m", "1h" as seconds. */
static int parse_budget(const char *text, double *seconds, struct error *error)
{
    char *end = NULL;
    const double number = strtod(text, &end);
    if (isdigit((unsigned char)text[0]) && number > 0 && number < 1e6 &&
        (!*end || (strchr("smh", *end) && !end[1]))) {
        *seconds = number * (*end == 'm' ? 60 : *end == 'h' ? 3600 : 1);
        return 0;
    }
    return error_set(error, ERROR_USAGE,
                     "option --budget expects a time as 90s, 5m or 1h, got '%s'", text);
}

static int add_shape(struct tune_command *tune, const char *text, size_t size, size_t *count,
                     struct error *error)
{
    const char *equals = memchr(text, '=', size);
    char *end;
    if (!equals || equals == text || equals + 1 == text + size || *count == SHAPE_MOST)
        return error_set(error, ERROR_USAGE,
                         "option --shape expects name=value,name=value, at most %d, got '%.*s'",
                         SHAPE_MOST, (int)size, text);
    struct jit_parameter *shape = &tune->wanted.parameters[(*count)++];
    shape->name = arena_text(tune->arena, (struct slice){text, (size_t)(equals - text)});
    const char *value = arena_text(tune->arena,
                                   (struct slice){equals + 1, size - (size_t)(equals + 1 - text)});
    shape->number = strtoll(value, &end, 0);
    shape->text = *end ? value : NULL;
    return 0;
}

static int parse_shape(struct tune_command *tune, struct error *error)
{
    size_t count = 0;
    for (const char *at = tune->shape; at && *at;) {
        const size_t size = strcspn(at, ",");
        if (add_shape(tune, at, size, &count, error) != 0)
            return -1;
        at += size + (at[size] == ',');
    }
    return 0;
}

/* Whether `name` is in "bits, k, n". */
static bool is_listed(const char *names, const char *name)
{
    const size_t size = strlen(name);
    for (const char *at = names; (at = strstr(at, name)); at += size)
        if ((at == names || at[-1] == ' ') && (!at[size] || at[size] == ','))
            return true;
    return false;
}

static int check_shape(const struct tune_command *tune, const struct jit_listing *schedule,
                       struct error *error)
{
    for (const struct jit_parameter *given = tune->wanted.parameters; given->name; given++)
        if (!is_listed(schedule->parameters, given->name))
            return error_set(error, ERROR_USAGE, "option --shape: %s has no parameter %s, %s%s",
                             schedule->name, given->name,
                             schedule->parameters[0] ? "expected among " : "it has none",
                             schedule->parameters);
    return 0;
}

static int check_kernel(const struct tune_command *tune, struct error *error)
{
    struct jit_listing *listing = NULL;
    size_t count = 0, at = 0;
    if (!tune->wanted.schedule)
        return 0;
    if (jit_list(tune->flags.schedules, &listing, &count, error) != 0)
        return -1;
    while (at < count && strcmp(listing[at].name, tune->wanted.schedule) != 0)
        at++;
    const int status = at < count
                           ? check_shape(tune, &listing[at], error)
                           : error_set(error, ERROR_USAGE,
                                       "option --kernel: no schedule \"%s\"; `elpis kernels` lists "
                                       "them",
                                       tune->wanted.schedule);
    free(listing);
    return status;
}

/* Without MODEL one is made for the kernel. */
static int check_alone(const struct tune_command *tune, struct error *error)
{
    if (tune->folder)
        return 0;
    if (!tune->wanted.schedule)
        return error_set(error, ERROR_USAGE,
                         "expected a folder MODEL, or --kernel and --shape, for which one is made");
    if (tune->flags.draft || tune->only)
        return error_set(error, ERROR_USAGE,
                         "--%s belongs to a MODEL: without one the kernel decides it",
                         tune->flags.draft ? "draft" : "passes");
    return 0;
}

static int check_options(struct tune_command *tune, struct error *error)
{
    if (check_alone(tune, error) != 0)
        return -1;
    if (tune->flags.plan_seed)
        return error_set(error, ERROR_USAGE,
                         "--plan-seed draws tuning at random: a sweep needs the default");
    if (tune->flags.records && strcmp(tune->flags.records, "none") == 0 && !tune->output)
        return error_set(error, ERROR_USAGE,
                         "--records none leaves no folder to write to: give --output FILE");
    if (tune->only && strcmp(tune->only, "decode") != 0 && strcmp(tune->only, "all") != 0)
        return error_set(error, ERROR_USAGE, "option --passes expects decode or all, got '%s'",
                         tune->only);
    if (tune->candidates == 1)
        return error_set(error, ERROR_USAGE,
                         "option --candidates expects at least 2: the default is one");
    return parse_shape(tune, error) || check_kernel(tune, error) ||
                   parse_budget(tune->budget, &tune->tune.budget, error)
               ? -1
               : 0;
}

static size_t list_options(struct tune_command *tune, struct option_entry *entries)
{
    const struct option_entry list[OWN_OPTIONS] = {
        {0, "kernel", "NAME", "Only kernels of this schedule. Default: all that are launched.",
         OPTION_TEXT, &tune->wanted.schedule},
        {0, "shape", "NAME=VALUE,...",
         "Only kernels with these parameters, as k=5120,n0=17408; --dry-run shows them. Without\n"
         "MODEL: the shape that one is made for.",
         OPTION_TEXT, &tune->shape},
        {0, "passes", "WHICH",
         "decode: kernels of verify, commit and draft; all: those of prompts too. Default: all,\n"
         "on the CPU device decode.",
         OPTION_TEXT, &tune->only},
        {0, "budget", "TIME",
         "For the sweep: 90s, 5m, 1h. It ends earlier when nothing is left to try. What has won\n"
         "is timed in its pass afterwards, at most 4 seconds a kernel. Default: 5m.",
         OPTION_TEXT, &tune->budget},
        {0, "candidates", "COUNT",
         "Most candidates of a kernel in one generation, the default included. Default: 24,\n"
         "or 64 where a kernel takes 5 % of the time.",
         OPTION_U32, &tune->candidates},
        {0, "seed", "NUMBER", "Of samples and of the order of launches. Default: 0.", OPTION_U64,
         &tune->seed},
        {0, "at", "TOKENS",
         "Context at which passes are run, up to --context. Default: 32768, on the CPU device\n"
         "2048, or --context.",
         OPTION_U32, &tune->at},
        {0, "output", "FILE",
         "File of records, which is added to. Default: one of this machine in the folder of\n"
         "--records.",
         OPTION_TEXT, &tune->output},
        {0, "again", NULL, "Time again what the file has from this machine.", OPTION_FLAG,
         &tune->again},
        {0, "dry-run", NULL, "Print what would be swept, and end.", OPTION_FLAG, &tune->dry_run},
        {0, "json", "FILE", "All candidates as JSON lines.", OPTION_TEXT, &tune->json},
        {0, "csv", "FILE", "The same as comma separated columns.", OPTION_TEXT, &tune->csv},
        {0, "plot", "FILE", "A picture of all times, SVG.", OPTION_TEXT, &tune->plot},
    };
    memcpy(entries, list, sizeof list);
    return OWN_OPTIONS + engine_option_entries(&tune->flags, entries + OWN_OPTIONS);
}

/* ---- where records go */

/* "NVIDIA H200" -> "nvidia-h200" */
static void slug(const char *name, char *text, size_t room)
{
    size_t size = 0;
    for (; *name && size + 1 < room; name++)
        if (isalnum((unsigned char)*name))
            text[size++] = (char)tolower((unsigned char)*name);
        else if (size > 0 && text[size - 1] != '-')
            text[size++] = '-';
    while (size > 0 && text[size - 1] == '-')
        size--;
    text[size] = 0;
}

static int choose_output(struct tune_command *tune, const struct device_info *info,
                         struct error *error)
{
    struct buffer path = {0};
    char name[100];
    int lock;
    char *folder = tune->output ? NULL : records_folder(tune->flags.records);
    if (tune->output)
        buffer_add_text(&path, tune->output);
    else if (!folder || strcmp(folder, "none") == 0) {
        memory_free(folder);
        return error_set(error, ERROR_USAGE,
                         "there is no folder for records (no HOME, or ELPIS_RECORDS=none): give "
                         "--output FILE");
    } else {
        slug(info->name, name, sizeof name);
        buffer_format(&path, "%s/%s.jsonl", folder, name);
    }
    memory_free(folder);
    tune->path = path.data;
    if (tune->dry_run)
        return 0;
    /* to see before minutes of sweeping that it can be written */
    if (record_file_lock(tune->path, &lock, error) != 0)
        return -1;
    record_file_unlock(lock);
    return 0;
}

/* ---- progress */

static void print_progress(void *user, const struct tune_progress *p)
{
    char bar[BAR_WIDTH + 1];
    struct buffer text = {0};
    ((struct tune_command *)user)->swept |= p->finished;
    if (p->finished == (isatty(STDERR_FILENO) == 1))
        return; /* on a terminal where it is, elsewhere a line a kernel */
    const u32 done = p->kernel - !p->finished;
    for (u32 i = 0; i < BAR_WIDTH; i++)
        bar[i] = i * p->kernels < done * BAR_WIDTH ? '#' : '.';
    bar[BAR_WIDTH] = 0;
    tune_table_text(p->now->parameters, &text);
    const struct tune_candidate *best = &p->now->candidates[p->now->best];
    if (p->in_pass)
        log_progress(false, "in its pass, %" PRIu32 " of %" PRIu32 ": %s %.80s: %s%s", p->kernel,
                     p->kernels, p->now->name, text.size ? text.data : "",
                     measure_kind_name(p->now->pass),
                     !p->finished             ? ""
                     : tune_used(p->now) != 0 ? ", used"
                                              : ", not faster there: the default is used");
    else if (p->finished && best->samples)
        log_progress(false,
                     "generation %" PRIu32 ", %" PRIu32 " of %" PRIu32
                     ": %s %.80s: %.2f us, best %.2f us; %.0f s left",
                     p->generation, p->kernel, p->kernels, p->now->name, text.size ? text.data : "",
                     p->now->candidates[0].median * 1e6, best->median * 1e6,
                     p->left > 0 ? p->left : 0);
    else if (p->finished)
        log_progress(false, "generation %" PRIu32 ", %" PRIu32 " of %" PRIu32 ": %s %.80s: %s",
                     p->generation, p->kernel, p->kernels, p->now->name, text.size ? text.data : "",
                     p->now->skipped[0] ? p->now->skipped : "not timed");
    else
        log_progress(false,
                     "[%s] %" PRIu32 " of %" PRIu32 " (%" PRIu32
                     "), %d:%02d left: %s", /* 80 columns */
                     bar, p->kernel, p->kernels, p->generation, (int)p->left / 60,
                     (int)p->left % 60, p->now->name);
    buffer_free(&text);
}

/* ---- running */

static int write_files(const struct tune_command *command, const struct tune *tune,
                       struct error *error)
{
    const struct {
        const char *path;
        void (*fill)(const struct tune *tune, struct buffer *text);
    } files[] = {{command->json, tune_report_json},
                 {command->csv, tune_report_csv},
                 {command->plot, tune_report_svg}};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct buffer text = {0};
        if (!files[i].path)
            continue;
        if (tune)
            files[i].fill(tune, &text);
        const int status = file_write_atomic(files[i].path, text.data ? text.data : "", text.size,
                                             error);
        buffer_free(&text);
        if (status != 0)
            return -1;
    }
    return 0;
}

static bool keeps_defaults(const struct tune *tune)
{
    size_t count;
    const struct tune_kernel *kernels = tune_kernels(tune, &count);
    for (size_t i = 0; i < count; i++)
        if (tune_used(&kernels[i]) != 0)
            return false;
    return true;
}

static int compare(struct tune *tune, u32 context, struct error *error)
{
    struct tune_comparison comparison;
    if (keeps_defaults(tune)) {
        printf("every kernel keeps its default\n");
        return 0;
    }
    if (tune_compare(tune, &comparison, error) != 0)
        return -1;
    tune_report_comparison(&comparison, context);
    return comparison.same_logits
               ? 0
               : error_set(error, ERROR_FATAL,
                           "the tuned kernels give other logits than the defaults, though each has "
                           "its default's bits alone: do not use these records");
}

static int sweep(struct tune_command *command, struct tune *tune, struct error *error)
{
    struct error file_error = {0};
    const int status = tune_run(tune, error);
    log_progress(true, "%s; records: %s",
                 status != 0 ? "the sweep failed"
                 : tune_ended_early(tune)
                     ? stopped ? "stopped by Ctrl-C, the same command goes on from here"
                               : "the budget is spent, the same command goes on from here"
                     : "nothing is left to try",
                 command->path);
    tune_report_table(tune);
    fflush(stdout);
    const int written = write_files(command, tune, &file_error);
    if (status != 0)
        return -1;
    if (written != 0)
        return error_set(error, file_error.code, "%s", file_error.text);
    return stopped || !command->swept ? 0 : compare(tune, command->tune.context, error);
}

static int run_on(struct tune_command *command, struct measure *measure, struct error *error)
{
    struct tune *tune = NULL;
    if (tune_open(&tune, measure, &command->tune, error) != 0)
        return -1;
    int status = 0;
    if (command->dry_run)
        tune_report_plan(tune);
    else
        status = sweep(command, tune, error);
    tune_close(tune);
    return status;
}

/* What passes are run, and at which context. */
static int choose_passes(struct tune_command *command, const struct engine *engine,
                         struct error *error)
{
    const u32 context = engine_context(engine);
    const bool on_host = engine_device(engine)->kind == DEVICE_HOST;
    if (command->at > context)
        return error_set(error, ERROR_USAGE,
                         "--at %" PRIu32 " is more than the context of %" PRIu32 " tokens",
                         command->at, context);
    command->tune.context = command->at ? command->at : on_host ? CONTEXT_OF_HOST : CONTEXT_OF_GPU;
    if (command->tune.context > context)
        command->tune.context = context;
    command->tune.prompts = !command->folder ? command->wanted.prompt
                            : command->only  ? strcmp(command->only, "all") == 0
                                             : !on_host;
    return 0;
}

/* As the server opens it, so that records fit: the tokenizer has its say in the plan. Nothing
 * ends the program while a model lies in a folder that has to be removed. */
static int open_engine(struct tune_command *command, struct engine **engine, struct error *error)
{
    struct serve_opening opening = {.folder = command->folder, .options = command->options};
    struct buffer text = {0};
    if (command->folder)
        return serve_open_engine(&opening, engine, error);
    catch_interrupt(false);
    const int status = shape_open(engine, &command->wanted, &command->options, error);
    catch_interrupt(true);
    if (status != 0)
        return -1;
    tune_table_text(command->wanted.parameters, &text);
    log_info("made a model for %s with %s", command->wanted.schedule,
             text.size ? text.data : "no parameters");
    buffer_free(&text);
    return 0;
}

static int open_and_run(struct tune_command *command, struct error *error)
{
    const struct measure_options options = {.repeats = 1};
    struct engine *engine = NULL;
    struct measure *measure = NULL;
    if (write_files(command, NULL, error) != 0 || open_engine(command, &engine, error) != 0)
        return -1;
    int status = choose_passes(command, engine, error);
    if (status == 0)
        status = choose_output(command, engine_device(engine), error);
    command->tune.output = command->path;
    if (status == 0)
        status = measure_open(&measure, engine, &options, error);
    if (status == 0)
        status = run_on(command, measure, error);
    measure_close(measure);
    engine_close(engine);
    return status;
}

static int run_tune(const struct command *command, int argc, char **argv)
{
    struct tune_command tune = {.budget = BUDGET_DEFAULT, .arena = arena_create()};
    struct option_entry entries[OWN_OPTIONS + ENGINE_OPTION_COUNT];
    struct error error = {0};
    const size_t count = list_options(&tune, entries);
    options_parse(command, entries, count, argc, argv, (char **)&tune.folder, 0, 1);
    engine_options_finish(command, &tune.flags, &tune.options);
    int status = check_options(&tune, &error);
    tune.options.records = "none";
    tune.tune.candidates = tune.candidates;
    tune.tune.seed = tune.seed;
    tune.tune.kernel = tune.wanted.schedule;
    tune.tune.shape = tune.wanted.parameters;
    tune.tune.again = tune.again;
    tune.tune.go_on = go_on;
    tune.tune.progress = print_progress;
    tune.tune.user = &tune;
    catch_interrupt(true);
    if (status == 0)
        status = open_and_run(&tune, &error);
    memory_free(tune.path);
    arena_destroy(tune.arena);
    if (status < 0 && error.code == ERROR_CANCELLED) {
        log_warn("%s", error.text);
        return 0;
    }
    return status < 0 ? command_fail(&error) : 0;
}

const struct command command_tune = {
    .name = "tune",
    .summary = "find the fastest tuning of every kernel on this device",
    .synopsis = "elpis tune MODEL [OPTION...]\n"
                "elpis tune --kernel NAME --shape NAME=VALUE,... [OPTION...]",
    .description =
        "Runs the passes of the model on random states and, where a kernel is launched for the\n"
        "first time, times other tunings of it beside the default: with the arguments and the\n"
        "memory that it really has. A candidate is timed only when everything that the kernel\n"
        "can write to has the default's bits, so results do not change. Candidates that spill\n"
        "registers, or leave less than a quarter of the default's warps on an SM, are not timed.\n"
        "\n"
        "Samples are taken in shuffled rounds over all candidates of a kernel, the cache emptied\n"
        "before each launch (not on the CPU device); who is slower beyond the spread is dropped\n"
        "after 5, 10 and 20 rounds. Kernels with few tunings try all of them; others the default,\n"
        "what differs from it in one value, and a sample. Each further generation tries what\n"
        "differs from the best so far in one value, until that brings nothing or the budget is\n"
        "spent. Another tuning than the default wins alone where its upper quartile lies below\n"
        "the default's lower.\n"
        "\n"
        "In a pass launches overlap, which a launch alone does not show. So each that has won is\n"
        "then put in its place, and the pass that launches it most often (verify, commit, draft,\n"
        "or a prompt's piece) is timed with it and with the default, up to 100 rounds or 4\n"
        "seconds, the other kernels being the defaults or those that won before. It is used only\n"
        "if the pass's median is lower, and the pass was faster in at least n/2 + sqrt(n) of n\n"
        "rounds: chance reaches that in 1 of 40 cases. Else, and until then, the default is\n"
        "recorded, and --again is needed to try anew. This comes on top of --budget.\n"
        "\n"
        "Records are written after every kernel. Whatever ends the sweep, the same command goes\n"
        "on from there: what was timed on this GPU, driver and compiler, with the schedule as it\n"
        "is now, is not timed again. run, serve, bench and the other commands use records by "
        "themselves,\n"
        "where the kernel's parameters are equal. Among them are --context, --piece and\n"
        "--kv-bits: sweep with those that you serve with.\n"
        "\n"
        "At the end a whole verify pass is timed with default and with tuned kernels, side by\n"
        "side, and the logits of both are compared bit for bit. The GB/s are the bytes that a "
        "verify\n"
        "cannot do without over its time, beside those of a copy on the device.\n"
        "\n"
        "Without MODEL one is made, for as long as the sweep takes, whose passes launch the "
        "kernel\n"
        "with the shape: random weights, as small as the shape allows, below TMPDIR while they\n"
        "are loaded. The record is that of a trained model's kernel of this shape. Parameters\n"
        "that --shape leaves out are those of `elpis synth tiny` and of the options; the first\n"
        "line says which they are. Codebooks are mul1. No model can be made for compare,\n"
        "prelude_check, trellis_pack, residual and kv_commit, nor for schedules of your own:\n"
        "those that no pass launches are timed with `elpis script`.\n"
        "\n"
        "Not tuned: products of prompts by cuBLASLt and numeric parameters, which change bits;\n"
        "kernels whose result has no fixed order, or whose arguments do not say where they\n"
        "write. They are named.",
    .epilogue =
        "EXAMPLES\n"
        "    elpis tune qwen3.8-27b --draft qwen3.8-27b-draft --dry-run\n"
        "    elpis tune qwen3.8-27b --draft qwen3.8-27b-draft --context 262144\n"
        "    elpis tune qwen3.8-27b --passes decode --budget 4m --csv all.csv --plot all.svg\n"
        "    elpis tune qwen3.8-27b --kernel linear_main --shape k=5120 --budget 1m\n"
        "    elpis tune --kernel linear_main --shape k=5120,n0=17408,n1=17408 --budget 1m\n"
        "    elpis tune tests/models/elpis-tiny --device host --budget 30s --piece 256\n"
        "    elpis records list\n",
    .run = run_tune,
};
