/* run.c - `elpis run MODEL`: one prompt, or a chat at the terminal.
 *
 * Content goes to stdout, reasoning and the summary to stderr: a pipe gets the answer alone, a
 * terminal shows both (reasoning dimmed). Sampling starts from the model's generation_config.json;
 * options override single values.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/interactive.h"

#define PROMPT_MAX ((size_t)64 << 20)

/* Options as typed; NAN and UINT32_MAX mean "not given". */
struct run_flags {
    const char *prompt, *system;
    u32 max_tokens, top_k, snapshots;
    double temperature, top_p, min_p, presence, frequency, repetition;
    u64 seed;
    bool no_think, raw, ids;
    struct engine_flags engine;
};

/* Where text goes, and what the last piece was. */
struct screen {
    bool dim;   /* stderr is a terminal */
    bool ids;   /* ids are printed instead of text */
    bool draft; /* rounds are worth a word */
    bool open_reasoning;
    char last; /* last character of content */
};

/* ---- options */

#define RUN_OPTION_COUNT 15

static size_t list_options(struct run_flags *flags, struct option_entry *entries)
{
    const struct option_entry own[RUN_OPTION_COUNT] = {
        {'p', "prompt", "TEXT", "Answer this prompt and leave; - reads it from standard input.",
         OPTION_TEXT, &flags->prompt},
        {0, "system", "TEXT", "System message.", OPTION_TEXT, &flags->system},
        {'n', "max-tokens", "COUNT", "Longest reply. Default: what the context leaves.", OPTION_U32,
         &flags->max_tokens},
        {'t', "temperature", "NUMBER", "0 takes the likeliest token. Default: the model's.",
         OPTION_DOUBLE, &flags->temperature},
        {0, "top-k", "COUNT", "Sample from the COUNT likeliest tokens; 0 is off.", OPTION_U32,
         &flags->top_k},
        {0, "top-p", "NUMBER", "Sample from the likeliest tokens of this mass; 1 is off.",
         OPTION_DOUBLE, &flags->top_p},
        {0, "min-p", "NUMBER", "Drop tokens below this share of the likeliest; 0 is off.",
         OPTION_DOUBLE, &flags->min_p},
        {0, "presence-penalty", "NUMBER", "Subtracted once from tokens already generated.",
         OPTION_DOUBLE, &flags->presence},
        {0, "frequency-penalty", "NUMBER", "Subtracted for each time a token was generated.",
         OPTION_DOUBLE, &flags->frequency},
        {0, "repetition-penalty", "NUMBER", "Divides logits of tokens seen; 1 is off.",
         OPTION_DOUBLE, &flags->repetition},
        {0, "seed", "NUMBER", "Of the random numbers. Default: 0.", OPTION_U64, &flags->seed},
        {0, "no-think", NULL, "Ask for an answer without reasoning.", OPTION_FLAG,
         &flags->no_think},
        {0, "raw", NULL, "The prompt is text to continue: no chat template.", OPTION_FLAG,
         &flags->raw},
        {0, "ids", NULL, "Print the ids of the generated tokens instead of text.", OPTION_FLAG,
         &flags->ids},
        SNAPSHOTS_OPTION(&flags->snapshots),
    };
    memcpy(entries, own, sizeof own);
    return RUN_OPTION_COUNT + engine_option_entries(&flags->engine, entries + RUN_OPTION_COUNT);
}

static int check_range(const char *name, double number, double low, double high,
                       struct error *error)
{
    if (isnan(number) || (number >= low && number <= high))
        return 0;
    return error_set(error, ERROR_USAGE, "run: option --%s expects a number from %g to %g, got %g",
                     name, low, high, number);
}

static int check_flags(const struct run_flags *flags, struct error *error)
{
    if (check_range("temperature", flags->temperature, 0, 100, error) < 0 ||
        check_range("top-p", flags->top_p, 0, 1, error) < 0 ||
        check_range("min-p", flags->min_p, 0, 1, error) < 0 ||
        check_range("presence-penalty", flags->presence, -2, 2, error) < 0 ||
        check_range("frequency-penalty", flags->frequency, -2, 2, error) < 0 ||
        check_range("repetition-penalty", flags->repetition, 0.01, 100, error) < 0)
        return -1;
    if (flags->ids && !flags->prompt)
        return error_set(error, ERROR_USAGE, "run: option --ids needs --prompt");
    if (flags->raw && flags->system)
        return error_set(error, ERROR_USAGE, "run: option --system has no meaning with --raw");
    return 0;
}

static double or_default(double number, double fallback)
{
    return isnan(number) ? fallback : number;
}

static struct engine_sampling choose_sampling(const struct run_flags *flags,
                                              const struct model_config *config)
{
    bool sample = config->do_sample;
    return (struct engine_sampling){
        .temperature = or_default(flags->temperature, sample ? config->temperature : 0),
        .top_k = flags->top_k != UINT32_MAX ? flags->top_k : config->top_k,
        .top_p = or_default(flags->top_p, config->top_p),
        .min_p = or_default(flags->min_p, 0),
        .presence = or_default(flags->presence, 0),
        .frequency = or_default(flags->frequency, 0),
        .repetition = or_default(flags->repetition, 1),
        .seed = flags->seed,
    };
}

/* ---- output */

static void show(void *user, enum stream_part part, struct slice text)
{
    struct screen *screen = user;
    if (screen->ids)
        return;
    bool reasoning = part == STREAM_REASONING;
    if (reasoning != screen->open_reasoning) {
        const char *mark = reasoning ? "\033[2m" : "\033[0m";
        fprintf(stderr, "%s%s", screen->dim ? mark : "", reasoning ? "" : "\n\n");
        screen->open_reasoning = reasoning;
    }
    FILE *file = reasoning ? stderr : stdout;
    fwrite(text.data, 1, text.size, file);
    fflush(file);
    if (!reasoning)
        screen->last = text.data[text.size - 1];
}

static double per_second(u32 tokens, double seconds)
{
    return seconds > 0 ? tokens / seconds : 0;
}

/* What speculation did: tokens and time of the mean round. */
static void print_rounds(const struct engine_result *result)
{
    const double rounds = result->rounds ? result->rounds : 1;
    fprintf(stderr, "; rounds: %u, %.2f tokens and %.2f ms each", result->rounds,
            result->completion_tokens / rounds, 1000 * result->decode_seconds / rounds);
    if (result->recomputed)
        fprintf(stderr, ", %u recomputed", result->recomputed);
}

static void finished(void *user, const struct engine_result *result)
{
    struct screen *screen = user;
    if (screen->open_reasoning)
        fprintf(stderr, "%s\n", screen->dim ? "\033[0m" : "");
    if (!screen->ids && screen->last != '\n')
        printf("\n");
    fflush(stdout);
    screen->open_reasoning = false;
    screen->last = 0;
    u32 computed = result->prompt_tokens - result->cached_tokens;
    fprintf(stderr, "prompt: %u tokens, %.1f/s; reply: %u tokens, %.1f/s", result->prompt_tokens,
            per_second(computed, result->prefill_seconds), result->completion_tokens,
            per_second(result->completion_tokens, result->decode_seconds));
    if (screen->draft)
        print_rounds(result);
    fprintf(stderr, "%s\n", result->finish == FINISH_LENGTH ? "; cut at the limit" : "");
}

static void print_ids(const struct buffer *ids)
{
    for (size_t i = 0; i < ids->size / sizeof(u32); i++)
        printf("%s%u", i ? " " : "", ((const u32 *)ids->data)[i]);
    printf("\n");
}

/* ---- running */

static int read_prompt(const char *given, struct buffer *prompt, struct error *error)
{
    if (strcmp(given, "-") != 0) {
        buffer_add_text(prompt, given);
        return 0;
    }
    char piece[65536];
    for (size_t size; (size = fread(piece, 1, sizeof piece, stdin)) > 0;) {
        buffer_add(prompt, piece, size);
        if (prompt->size > PROMPT_MAX)
            return error_set(error, ERROR_USAGE, "the prompt on standard input exceeds 64 MiB");
    }
    return 0;
}

static int run_once(struct conversation *conversation, const struct run_flags *flags,
                    struct screen *screen, struct error *error)
{
    struct buffer prompt = {0}, ids = {0};
    struct engine_result result;
    int status = read_prompt(flags->prompt, &prompt, error);
    if (status == 0)
        status = conversation_turn(conversation, buffer_slice(&prompt), show, screen, &ids, &result,
                                   error);
    if (status == 0) {
        if (flags->ids)
            print_ids(&ids);
        finished(screen, &result);
    }
    buffer_free(&prompt);
    buffer_free(&ids);
    return status;
}

static int run_model(const char *folder, const struct run_flags *flags,
                     const struct engine_options *options, struct error *error)
{
    struct engine *engine = NULL;
    struct conversation *conversation = NULL;
    struct screen screen = {
        .dim = isatty(STDERR_FILENO), .ids = flags->ids, .draft = options->draft != NULL};
    int status = -1;
    const struct conversation_options talk = {
        .system = flags->system,
        .max_tokens = flags->max_tokens,
        .no_think = flags->no_think,
        .raw = flags->raw,
    };
    if (conversation_open(&conversation, folder, &talk, error) < 0)
        return -1;
    struct engine_options complete = *options;
    complete.valid_vocab = conversation_token_count(conversation);
    complete.snapshots = flags->prompt ? 0 : (u64)flags->snapshots << 20; /* one has no next */
    if (engine_open(&engine, folder, &complete, error) < 0)
        goto done;
    const struct engine_sampling sampling = choose_sampling(flags, &engine_model(engine)->config);
    conversation_attach(conversation, engine, &sampling);
    if (flags->prompt) {
        status = run_once(conversation, flags, &screen, error);
    } else {
        const struct interactive_output output = {show, finished, &screen};
        status = interactive_run(conversation, &output);
    }
done:
    conversation_close(conversation);
    engine_close(engine);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct run_flags flags = {.temperature = NAN,
                              .top_p = NAN,
                              .min_p = NAN,
                              .presence = NAN,
                              .frequency = NAN,
                              .repetition = NAN,
                              .top_k = UINT32_MAX,
                              .snapshots = SNAPSHOT_MB};
    struct option_entry entries[RUN_OPTION_COUNT + ENGINE_OPTION_COUNT];
    struct engine_options options;
    struct error error = {0};
    char *folder;
    size_t count = list_options(&flags, entries);
    options_parse(command, entries, count, argc, argv, &folder, 1, 1);
    engine_options_finish(command, &flags.engine, &options);
    if (check_flags(&flags, &error) < 0)
        return command_fail(&error);
    int status = run_model(folder, &flags, &options, &error);
    return status < 0 ? command_fail(&error) : status;
}

const struct command command_run = {
    .name = "run",
    .summary = "answer one prompt, or chat at the terminal",
    .synopsis = "elpis run MODEL [OPTION...]",
    .description =
        "Loads the model in the folder MODEL and answers the prompt of --prompt, or, without one,\n"
        "opens a chat with line editing; /help there lists its commands. The answer is written to\n"
        "standard output as it is generated, reasoning and a summary to standard error.\n"
        "\n"
        "Sampling follows the model's generation_config.json where no option says otherwise.\n"
        "\n"
        "With --draft a small model proposes tokens and one pass of the model checks up to eight\n"
        "of them. The answer is the same, token by token, greedy and sampled; the summary adds\n"
        "rounds, and tokens and milliseconds of the mean round.",
    .epilogue = "EXAMPLES\n"
                "    elpis run tests/models/elpis-tiny -p \"Count from 3 to 14.\"\n"
                "    elpis run MODEL --no-think -t 0 -p - < question.txt\n"
                "    elpis run tests/models/elpis-tiny --draft tests/models/elpis-tiny-dflash2\n"
                "\n"
                "FILES\n"
                "    $XDG_STATE_HOME/elpis/history  lines of the chat "
                "(default ~/.local/state/elpis/history)\n"
                "\n"
                "EXIT STATUS\n"
                "    0 success, 2 command line, 3 model files, 4 device, 5 memory, 7 device failed",
    .run = run,
};
