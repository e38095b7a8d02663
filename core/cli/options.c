/* options.c - option tables: parse, explain, refuse.
 *
 * A command describes its options as data (cli.h, struct option_entry). One walk over
 * argv fills the values; the same table prints the help. Forms:
 *
 *     --name VALUE   --name=VALUE   -x VALUE   -xVALUE   -abc (flags)   --  (ends options)
 *
 * A value may begin with '-' ("-p -"); the last of repeated options wins. Numbers are
 * decimal and checked against their width. Whatever is wrong ends the program with one
 * sentence on stderr and status 2: nobody continues after a command line that was not
 * understood.
 *
 * Not here: what options mean, except those every engine has (engine_options_finish).
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* One parse: the command for messages, its table, and where the next operand goes. */
struct parse {
    const struct command *command;
    const struct option_entry *entries;
    size_t count;
    int argc;
    char **argv;
    int at; /* the argument that is read now */
};

static void fail(const struct command *command, const char *format, ...) PRINTF_LIKE(2, 3);

static void fail(const struct command *command, const char *format, ...)
{
    char text[1000];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "elpis %s: %s; `elpis %s --help` describes the options\n", command->name, text,
            command->name);
    exit(ERROR_USAGE);
}

/* ---- help */

static void print_indented(const char *text, const char *indent)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        printf("%s%.*s\n", length ? indent : "", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

static void print_entry(const struct option_entry *entry)
{
    if (entry->letter)
        printf("    -%c, --%s", entry->letter, entry->name);
    else
        printf("    --%s", entry->name);
    printf("%s%s\n", entry->argument ? " " : "", entry->argument ? entry->argument : "");
    print_indented(entry->help, "        ");
}

/* Man-page order. The epilogue brings its own headings. */
static void print_help(const struct parse *parse)
{
    const struct command *command = parse->command;
    printf("NAME\n    elpis %s - %s\n\nSYNOPSIS\n", command->name, command->summary);
    print_indented(command->synopsis, "    ");
    printf("\nDESCRIPTION\n");
    print_indented(command->description, "    ");
    printf("\nOPTIONS\n");
    for (size_t i = 0; i < parse->count; i++)
        print_entry(&parse->entries[i]);
    printf("    --help\n        Print this text.\n");
    if (command->epilogue) {
        printf("\n");
        print_indented(command->epilogue, "");
    }
}

/* ---- values */

static bool parse_unsigned(const char *text, u64 largest, u64 *value)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno || *end || number > largest)
        return false;
    *value = number;
    return true;
}

static bool parse_signed(const char *text, i32 *value)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)text[text[0] == '-']))
        return false;
    long long number = strtoll(text, &end, 10);
    if (errno || *end || number < INT32_MIN || number > INT32_MAX)
        return false;
    *value = (i32)number;
    return true;
}

static bool parse_double(const char *text, double *value)
{
    if (!*text || isspace((unsigned char)*text))
        return false;
    char *end;
    double number = strtod(text, &end);
    if (*end || !isfinite(number))
        return false;
    *value = number;
    return true;
}

static void store(const struct parse *parse, const struct option_entry *entry, const char *text)
{
    const struct command *command = parse->command;
    u64 number = 0;
    if (entry->given)
        *entry->given = true;
    switch (entry->kind) {
    case OPTION_FLAG: *(bool *)entry->value = true; break;
    case OPTION_TEXT: *(const char **)entry->value = text; break;
    case OPTION_U32:
        if (!parse_unsigned(text, UINT32_MAX, &number))
            fail(command, "option --%s expects a whole number from 0 to %" PRIu32 ", got '%s'",
                 entry->name, UINT32_MAX, text);
        *(u32 *)entry->value = (u32)number;
        break;
    case OPTION_I32:
        if (!parse_signed(text, entry->value))
            fail(command,
                 "option --%s expects a whole number from %" PRId32 " to %" PRId32 ", got '%s'",
                 entry->name, INT32_MIN, INT32_MAX, text);
        break;
    case OPTION_U64:
        if (!parse_unsigned(text, UINT64_MAX, (u64 *)entry->value))
            fail(command, "option --%s expects a whole number from 0 to %" PRIu64 ", got '%s'",
                 entry->name, UINT64_MAX, text);
        break;
    case OPTION_DOUBLE:
        if (!parse_double(text, entry->value))
            fail(command, "option --%s expects a number, got '%s'", entry->name, text);
        break;
    }
}

/* The value that follows the current argument. */
static const char *next_value(struct parse *parse, const struct option_entry *entry)
{
    if (parse->at + 1 >= parse->argc)
        fail(parse->command, "option --%s expects a value (%s)", entry->name, entry->argument);
    return parse->argv[++parse->at];
}

/* ---- the walk */

static void parse_long(struct parse *parse, const char *text)
{
    size_t length = strcspn(text, "=");
    if (length == 4 && memcmp(text, "help", 4) == 0 && !text[length]) {
        print_help(parse);
        exit(fflush(stdout) == 0 ? 0 : ERROR_USAGE);
    }
    for (size_t i = 0; i < parse->count; i++) {
        const struct option_entry *entry = &parse->entries[i];
        if (strlen(entry->name) != length || memcmp(entry->name, text, length) != 0)
            continue;
        if (entry->kind == OPTION_FLAG && text[length])
            fail(parse->command, "option --%s takes no value, got '%s'", entry->name,
                 text + length + 1);
        if (entry->kind == OPTION_FLAG)
            store(parse, entry, NULL);
        else
            store(parse, entry, text[length] ? text + length + 1 : next_value(parse, entry));
        return;
    }
    fail(parse->command, "unknown option '--%.*s'", (int)length, text);
}

static const struct option_entry *find_letter(const struct parse *parse, char letter)
{
    for (size_t i = 0; i < parse->count; i++)
        if (parse->entries[i].letter == letter)
            return &parse->entries[i];
    fail(parse->command, "unknown option '-%c'", letter);
    return NULL;
}

static void parse_letters(struct parse *parse, const char *letters)
{
    for (; *letters; letters++) {
        const struct option_entry *entry = find_letter(parse, *letters);
        if (entry->kind == OPTION_FLAG) {
            store(parse, entry, NULL);
            continue;
        }
        store(parse, entry, letters[1] ? letters + 1 : next_value(parse, entry));
        return;
    }
}

void options_parse(const struct command *command, const struct option_entry *entries, size_t count,
                   int argc, char **argv, char **operands, size_t min, size_t max)
{
    struct parse parse = {command, entries, count, argc, argv, 1};
    size_t found = 0;
    bool ended = false;
    for (; parse.at < argc; parse.at++) {
        char *text = argv[parse.at];
        if (!ended && strcmp(text, "--") == 0) {
            ended = true;
        } else if (!ended && text[0] == '-' && text[1] == '-') {
            parse_long(&parse, text + 2);
        } else if (!ended && text[0] == '-' && text[1]) {
            parse_letters(&parse, text + 1);
        } else {
            if (found == max)
                fail(command, "one argument too many, '%s'", text);
            operands[found++] = text;
            ended = ended || command->ends_at_operand;
        }
    }
    if (found < min)
        fail(command, "an argument is missing, expected %s", command->synopsis);
    while (found < max)
        operands[found++] = NULL;
}

/* ---- what every command with an engine has */

size_t engine_option_entries(struct engine_flags *flags, struct option_entry *entries)
{
    const struct option_entry list[ENGINE_OPTION_COUNT] = {
        {0, "device", "NAME", "auto, cuda, cuda:N or host. Default: auto, a GPU if there is one.",
         OPTION_TEXT, &flags->device},
        {0, "as", "PLAN",
         "Run the plan of another GPU, given as architecture, multiprocessors and shared\n"
         "memory of each: sm_86:82:100K.",
         OPTION_TEXT, &flags->as},
        {0, "context", "TOKENS",
         "Longest sequence. Default: the model's maximum, or what fits into memory.", OPTION_U32,
         &flags->context},
        {0, "kv-bits", "BITS", "Bits of a cached key or value: 2 to 8, or 16. Default: 3.",
         OPTION_U32, &flags->kv_bits},
        {0, "prefill", "KIND",
         "fast, exact or int8-qk. exact runs prompts through the decode kernels. int8-qk is fast\n"
         "but for attention's Q K^T of prompts, which is made of int8: less exact, and faster.\n"
         "It takes --kv-bits 2 to 8. Default: fast.",
         OPTION_TEXT, &flags->prefill},
        {0, "piece", "TOKENS",
         "Longest piece of a prompt in one pass, a multiple of 256."
         " Default: 4096, or\nwhat the memory plan allows.",
         OPTION_U32, &flags->piece},
        {0, "cache", "FOLDER",
         "Where compiled kernels are kept. Default: $ELPIS_CACHE, $XDG_CACHE_HOME/elpis,\n"
         "~/.cache/elpis.",
         OPTION_TEXT, &flags->cache},
        {0, "schedules", "FOLDER", "Lua, schedules and templates that replace the built-in ones.",
         OPTION_TEXT, &flags->schedules},
        {0, "records", "FOLDER",
         "Tuning records that come before the built-in ones; none: no records at all. Default:\n"
         "$ELPIS_RECORDS, $XDG_DATA_HOME/elpis/records, ~/.local/share/elpis/records.",
         OPTION_TEXT, &flags->records},
        {0, "cuda-libraries", "FOLDER",
         "Where to look first for libcuda, libnvrtc and libcublasLt.", OPTION_TEXT,
         &flags->cuda_libraries},
        {0, "threads", "COUNT", "Threads of the host device. Default: one a core.", OPTION_U32,
         &flags->threads},
        {0, "plan-seed", "NUMBER",
         "Draw random legal tuning from this seed; results do not change. Default: 0, off.",
         OPTION_U64, &flags->plan_seed},
        {0, "draft", "FOLDER",
         "A draft model: each round it proposes tokens and one pass of the model checks them.\n"
         "Tokens stay what they are without it. Default: none.",
         OPTION_TEXT, &flags->draft},
        {0, "tree", "on|off", "Propose a tree of tokens, or, off, one path. Default: on.",
         OPTION_TEXT, &flags->tree},
        {0, "speculate", "COUNT", "Most tokens that are proposed a round, 1 to 7. Default: 7.",
         OPTION_U32, &flags->speculate, &flags->has_speculate},
        {0, "tap-shift", "LAYERS",
         "Added to the layer numbers in the draft's target_layer_ids. Default: 0.", OPTION_I32,
         &flags->tap_shift, &flags->has_tap_shift},
        {0, "fault-every", "ROUNDS",
         "A test switch: falsify the device's record of every such round, which must be noticed\n"
         "and computed again. Default: 0, never.",
         OPTION_U32, &flags->fault_every, &flags->has_fault_every},
        {0, "check", NULL, "Host device: guard every buffer and look for races. Slow.", OPTION_FLAG,
         &flags->check},
    };
    memcpy(entries, list, sizeof list);
    return ENGINE_OPTION_COUNT;
}

static void check_draft(const struct command *command, const struct engine_flags *flags)
{
    const struct {
        const char *name;
        bool given;
    } only_with_draft[] = {{"tree", flags->tree != NULL},
                           {"speculate", flags->has_speculate},
                           {"tap-shift", flags->has_tap_shift},
                           {"fault-every", flags->has_fault_every}};
    for (size_t i = 0; i < COUNT_OF(only_with_draft) && !flags->draft; i++)
        if (only_with_draft[i].given)
            fail(command, "option --%s has no meaning without a draft model; give one with --draft",
                 only_with_draft[i].name);
    if (flags->tree && strcmp(flags->tree, "on") != 0 && strcmp(flags->tree, "off") != 0)
        fail(command, "option --tree expects on or off, got '%s'", flags->tree);
    if (flags->has_speculate && (flags->speculate < 1 || flags->speculate > ENGINE_ROWS - 1))
        fail(command, "option --speculate expects 1 to %d, got %" PRIu32, ENGINE_ROWS - 1,
             flags->speculate);
}

static enum engine_prefill prefill_kind(const struct command *command,
                                        const struct engine_flags *flags)
{
    enum engine_prefill kind = ENGINE_PREFILL_FAST;
    if (flags->prefill && !engine_prefill_named(slice_of(flags->prefill), &kind))
        fail(command, "option --prefill expects %s, %s or %s, got '%s'",
             engine_prefill_name(ENGINE_PREFILL_FAST), engine_prefill_name(ENGINE_PREFILL_EXACT),
             engine_prefill_name(ENGINE_PREFILL_INT8_QK), flags->prefill);
    if (kind == ENGINE_PREFILL_INT8_QK && flags->kv_bits == 16)
        fail(command,
             "option --prefill %s takes keys from a cache of 2 to 8 bits, got --kv-bits 16",
             engine_prefill_name(kind));
    return kind;
}

void engine_options_finish(const struct command *command, const struct engine_flags *flags,
                           struct engine_options *options)
{
    bool kv_known = flags->kv_bits == 0 || flags->kv_bits == 16 ||
                    (flags->kv_bits >= 2 && flags->kv_bits <= 8);
    if (!kv_known)
        fail(command, "option --kv-bits expects 2 to 8 or 16, got %" PRIu32, flags->kv_bits);
    if (flags->piece % 256 != 0)
        fail(command, "option --piece expects a multiple of 256, got %" PRIu32, flags->piece);
    const enum engine_prefill prefill = prefill_kind(command, flags);
    check_draft(command, flags);
    *options = (struct engine_options){
        .device = {.device = flags->device,
                   .as = flags->as,
                   .cuda_libraries = flags->cuda_libraries,
                   .host_threads = flags->threads,
                   .host_check = flags->check},
        .context = flags->context,
        .kv_bits = flags->kv_bits,
        .piece = flags->piece,
        .prefill = prefill,
        .plan_seed = flags->plan_seed,
        .cache = flags->cache,
        .schedules = flags->schedules,
        .records = flags->records,
        .draft = flags->draft,
        .chain = flags->tree && strcmp(flags->tree, "off") == 0,
        .speculate = flags->speculate,
        .tap_shift = flags->tap_shift,
        .fault_every = flags->fault_every,
    };
}

int command_fail(const struct error *error)
{
    fprintf(stderr, "elpis: %s\n", error->text);
    return error->code;
}

/* ---- lists of numbers */

static int compare_numbers(const void *left, const void *right)
{
    const u32 a = *(const u32 *)left, b = *(const u32 *)right;
    return (a > b) - (a < b);
}

int options_numbers(struct option_numbers *numbers, const char *option, const char *text, u32 least,
                    u32 most, struct error *error)
{
    const char *at = text;
    for (;;) {
        char *end;
        errno = 0;
        const unsigned long long number = strtoull(at, &end, 10);
        if (!isdigit((unsigned char)*at) || errno || number < least || number > most ||
            (*end && *end != ','))
            return error_set(error, ERROR_USAGE,
                             "option --%s expects numbers from %" PRIu32 " to %" PRIu32
                             " with commas between, got '%s'",
                             option, least, most, text);
        if (numbers->count == OPTION_NUMBERS_MOST)
            return error_set(error, ERROR_USAGE, "option --%s expects at most %d numbers, got '%s'",
                             option, OPTION_NUMBERS_MOST, text);
        numbers->list[numbers->count++] = (u32)number;
        if (!*end)
            break;
        at = end + 1;
    }
    qsort(numbers->list, numbers->count, sizeof *numbers->list, compare_numbers);
    u32 kept = 0;
    for (u32 i = 0; i < numbers->count; i++)
        if (i == 0 || numbers->list[i] != numbers->list[kept - 1])
            numbers->list[kept++] = numbers->list[i];
    numbers->count = kept;
    return 0;
}
