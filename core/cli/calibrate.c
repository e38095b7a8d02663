/* calibrate.c - `elpis calibrate`: how far a draft's scores can be trusted, measured on replies to
 * prompts and written where the draft is opened from.
 *
 * The engine gives samples of its rounds and fits them (engine/calibrate.c); here are the prompts,
 * the table that is printed, and the file.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/prompt_list.h"
#include "text/text.h"

enum { OWN_OPTIONS = 3, REPLY_TOKENS = 512 };

struct run {
    struct engine_flags flags;
    struct engine_options options;
    const char *folder, *prompts_path, *output;
    u32 max_tokens;
    struct prompt_list prompts;
    struct buffer samples; /* struct calibration_sample */
    u32 rounds, tokens;
    double shown; /* when the progress line was */
};

static size_t list_options(struct run *run, struct option_entry *entries)
{
    const struct option_entry own[OWN_OPTIONS] = {
        {0, "prompts", "FILE",
         "Prompts: JSON, a list of {\"name\", \"ids\"}, or text, a prompt a line for the chat\n"
         "template. Default: a built-in list.",
         OPTION_TEXT, &run->prompts_path},
        {'n', "max-tokens", "COUNT", "Longest reply. Default: 512.", OPTION_U32, &run->max_tokens},
        {0, "output", "FILE", "What to write. Default: calibration.json in the draft's folder.",
         OPTION_TEXT, &run->output},
    };
    memcpy(entries, own, sizeof own);
    const size_t count = OWN_OPTIONS + engine_option_entries(&run->flags, entries + OWN_OPTIONS);
    for (size_t i = OWN_OPTIONS; i < count; i++)
        if (strcmp(entries[i].name, "tree") == 0)
            entries[i].help = "Rounds of trees of tokens, or, off, of one path. Default: off.";
    return count;
}

/* ---- rounds */

static void take_sample(void *user, const struct calibration_sample *sample)
{
    struct run *run = user;
    buffer_add(&run->samples, sample, sizeof *sample);
}

static void show_progress(struct run *run, u32 prompt, bool done)
{
    run->shown = clock_seconds();
    log_progress(done, "prompt %" PRIu32 " of %" PRIu32 ", %zu samples, %.2f tokens a round",
                 prompt, run->prompts.count, run->samples.size / sizeof(struct calibration_sample),
                 run->rounds ? (double)run->tokens / run->rounds : 0.0);
}

static int run_prompt(struct run *run, struct engine *engine, const struct prompt *prompt,
                      struct error *error)
{
    const struct model_config *config = &engine_model(engine)->config;
    const u32 context = engine_context(engine);
    if (prompt->count >= context)
        return error_set(error, ERROR_USAGE,
                         "%s has %" PRIu32 " tokens, the context is %" PRIu32
                         ": give a larger --context or leave it out",
                         prompt->name, prompt->count, context);
    const u32 room = context - prompt->count;
    const struct engine_request request = {.prompt = prompt->ids,
                                           .prompt_count = prompt->count,
                                           .max_tokens = run->max_tokens < room ? run->max_tokens
                                                                                : room,
                                           .sampling = {.top_p = 1, .repetition = 1},
                                           .stops = config->eos,
                                           .stop_count = config->eos_count,
                                           .user = run};
    struct engine_result result;
    if (engine_calibrate(engine, &request, take_sample, &result, error) < 0)
        return error_prefix(error, "%s", prompt->name);
    run->rounds += result.rounds;
    run->tokens += result.completion_tokens;
    return 0;
}

static int run_prompts(struct run *run, struct engine *engine, struct error *error)
{
    for (u32 i = 0; i < run->prompts.count; i++) {
        if (i == 0 || clock_seconds() - run->shown >= 1)
            show_progress(run, i + 1, false);
        if (run_prompt(run, engine, &run->prompts.prompts[i], error) < 0)
            return -1;
    }
    show_progress(run, run->prompts.count, true);
    return 0;
}

/* ---- the result */

static void print_number(double number, bool fitted)
{
    printf(" %11.4f%s", number, fitted ? " " : "*");
}

static void print_table(const struct calibration_depth depths[DRAFT_DEPTHS])
{
    bool all_fitted = true;
    printf("depth  samples     hits       recall  temperature   nats before  after\n");
    for (u32 d = 0; d < DRAFT_DEPTHS; d++) {
        const struct calibration_depth *depth = &depths[d];
        printf("%5" PRIu32 " %8" PRIu32 " %8" PRIu32, d, depth->samples, depth->hits);
        print_number(depth->recall, depth->recall_fitted);
        print_number(depth->temperature, depth->temperature_fitted);
        printf(" %12.4f %6.4f\n", depth->before, depth->after);
        all_fitted = all_fitted && depth->recall_fitted && depth->temperature_fitted;
    }
    if (!all_fitted)
        printf("* kept as it was: fewer than %d samples (recall) or hits (temperature)\n",
               CALIBRATION_LEAST);
}

static int write_result(const struct run *run, const struct calibration_depth depths[DRAFT_DEPTHS],
                        struct error *error)
{
    struct draft_calibration calibration;
    struct buffer path = {0};
    for (u32 d = 0; d < DRAFT_DEPTHS; d++) {
        calibration.temperature[d] = depths[d].temperature;
        calibration.recall[d] = depths[d].recall;
    }
    if (run->output)
        buffer_add_text(&path, run->output);
    else
        buffer_format(&path, "%s/calibration.json", run->options.draft);
    const int status = draft_calibration_write(&calibration, path.data, error);
    if (status == 0)
        printf("wrote %s\n", path.data);
    buffer_free(&path);
    return status;
}

/* ---- the command */

/* The engine samples no id that the tokenizer lacks. */
static int count_tokens(struct run *run, struct error *error)
{
    struct tokenizer *tokenizer;
    if (tokenizer_open(&tokenizer, run->folder, error) < 0)
        return -1;
    run->options.valid_vocab = tokenizer_count(tokenizer);
    tokenizer_close(tokenizer);
    return 0;
}

static int calibrate(struct run *run, struct error *error)
{
    struct engine *engine = NULL;
    struct calibration_depth depths[DRAFT_DEPTHS];
    int status = -1;
    if (prompt_list_read(&run->prompts, run->prompts_path, run->folder, error) < 0 ||
        count_tokens(run, error) < 0 ||
        engine_open(&engine, run->folder, &run->options, error) < 0 ||
        run_prompts(run, engine, error) < 0)
        goto done;
    calibration_fit((const struct calibration_sample *)(const void *)run->samples.data,
                    run->samples.size / sizeof(struct calibration_sample),
                    engine_calibration(engine), depths);
    print_table(depths);
    status = write_result(run, depths, error);
done:
    prompt_list_free(&run->prompts);
    buffer_free(&run->samples);
    engine_close(engine);
    return status;
}

static int check_options(const struct run *run, struct error *error)
{
    if (!run->options.draft)
        return error_set(error, ERROR_USAGE,
                         "option --draft is missing: give the folder of the draft to calibrate");
    if (run->max_tokens < 2)
        return error_set(error, ERROR_USAGE,
                         "option --max-tokens expects at least 2, got %" PRIu32
                         ": a single token is not drafted",
                         run->max_tokens);
    return 0;
}

static int run_calibrate(const struct command *command, int argc, char **argv)
{
    struct run run = {.max_tokens = REPLY_TOKENS};
    struct option_entry entries[OWN_OPTIONS + ENGINE_OPTION_COUNT];
    struct error error = {0};
    char *folder;
    const size_t count = list_options(&run, entries);
    options_parse(command, entries, count, argc, argv, &folder, 1, 1);
    engine_options_finish(command, &run.flags, &run.options);
    run.folder = folder;
    run.options.chain |= !run.flags.tree;
    if (check_options(&run, &error) < 0 || calibrate(&run, &error) < 0)
        return command_fail(&error);
    return fflush(stdout) == 0 ? 0 : ERROR_USAGE;
}

const struct command command_calibrate = {
    .name = "calibrate",
    .summary = "measure how far a draft's scores can be trusted",
    .synopsis = "elpis calibrate MODEL --draft FOLDER [OPTION...]",
    .description =
        "Answers prompts, greedy, in rounds of the draft, and compares what was proposed with the\n"
        "tokens that came. For each of the 7 depths of a round it fits\n"
        "\n"
        "    recall       the chance that the right token is among the 16 candidates\n"
        "    temperature  by which scores are divided to make probabilities of them: the value\n"
        "                 under which what came was likeliest\n"
        "\n"
        "prints them, and writes them as calibration.json, which the draft's folder is searched\n"
        "for when it is opened. They decide where a tree of tokens grows: how many tokens a round\n"
        "gives, never which. A depth with fewer than 20 samples keeps the value it had. Prompts\n"
        "should be like those the model is used for.\n"
        "\n"
        "The table has, for each depth, how often the tokens before were among the candidates\n"
        "(samples), of these how often the next one was (hits), the two values, and how "
        "surprising\n"
        "the right candidate was before and after, in nats a hit.",
    .epilogue =
        "EXAMPLES\n"
        "    elpis calibrate tests/models/elpis-tiny --draft tests/models/elpis-tiny-dflash2 \\\n"
        "        --output /tmp/calibration.json\n"
        "    elpis calibrate MODEL --draft FOLDER --prompts questions.txt\n"
        "\n"
        "FILES\n"
        "    calibration.json  {\"temperature\": [7 numbers], \"recall\": [7 numbers]}\n"
        "\n"
        "EXIT STATUS\n"
        "    0 success, 2 command line, 3 model files, 4 device, 5 memory, 7 device failed",
    .run = run_calibrate,
};
