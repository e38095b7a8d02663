/* cli.h - the command line: one file a subcommand, one option table each.
 *
 * An option table is data: it parses, it prints --help, it refuses what it does not
 * know. GNU style: --name VALUE, --name=VALUE, short letters where given, `--` ends
 * options. Exit codes: base.h, enum error_code.
 */
#ifndef ELPIS_CLI_H
#define ELPIS_CLI_H

#include "base/base.h"
#include "engine/engine.h"

enum option_kind { OPTION_FLAG, OPTION_TEXT, OPTION_U32, OPTION_I32, OPTION_U64, OPTION_DOUBLE };

struct option_entry {
    char letter;          /* 0 = none */
    const char *name;     /* without -- */
    const char *argument; /* "FILE" in help; NULL for flags */
    const char *help;     /* may hold \n */
    enum option_kind kind;
    void *value; /* bool *, const char **, u32 *, i32 *, u64 *, double * */
    bool *given; /* becomes true where the option is on the command line; may be NULL */
};

struct command {
    const char *name;
    const char *summary;     /* one line for `elpis --help` */
    const char *synopsis;    /* "elpis run MODEL [OPTION...]" */
    const char *description; /* paragraphs of the help, between synopsis and options */
    const char *epilogue;    /* examples, exit status, files; may be NULL */
    int (*run)(const struct command *command, int argc, char **argv);
    /* What follows the first operand is an operand, whatever it looks like: it is for somebody
     * else. */
    bool ends_at_operand;
};

/* Parses argv[1..]; operands are moved to the front of *operands. Handles --help (prints, exits
 * 0). Errors: prints one sentence and a hint, exits 2. min..max operands are allowed. */
void options_parse(const struct command *command, const struct option_entry *entries, size_t count,
                   int argc, char **argv, char **operands, size_t min, size_t max);

/* A list of numbers, "1,8": ascending, each once. */
enum { OPTION_NUMBERS_MOST = 16 };
struct option_numbers {
    u32 list[OPTION_NUMBERS_MOST], count;
};
/* option: its name, for the message. */
int options_numbers(struct option_numbers *numbers, const char *option, const char *text, u32 least,
                    u32 most, struct error *error);

/* The options every command with an engine has (--device, --as, --context, --kv-bits, --cache,
 * --schedules, --prefill, --piece, --plan-seed, --draft, ...). Fill entries[] with them; returns
 * how many. After parsing, engine_options_finish validates and fills *options. */
#define ENGINE_OPTION_COUNT 18
struct engine_flags {
    const char *device, *as, *cache, *schedules, *records, *cuda_libraries, *prefill, *draft, *tree;
    u32 context, kv_bits, piece, threads, speculate, fault_every;
    i32 tap_shift;
    u64 plan_seed;
    bool check;
    bool has_speculate, has_tap_shift, has_fault_every; /* they are on the command line */
};
/* Of commands that answer one prompt after another. Off by default: a prompt ends one piece
 * earlier for it, which costs a prompt that nothing follows as much as another piece. */
enum { SNAPSHOT_MB = 0 };
#define SNAPSHOTS_OPTION(value)                                                                    \
    {                                                                                              \
        0, "snapshots", "MB",                                                                      \
            "Host memory for states of prompts: one that begins like an earlier one is computed\n" \
            "from there on, with the same result. 1024 holds 7 of a 27B. Default: 0, off.",        \
            OPTION_U32, value                                                                      \
    }
size_t engine_option_entries(struct engine_flags *flags, struct option_entry *entries);
void engine_options_finish(const struct command *command, const struct engine_flags *flags,
                           struct engine_options *options);

int command_fail(const struct error *error); /* prints "elpis: text", returns error->code */

extern const struct command command_run, command_serve, command_check, command_kernels,
    command_eval, command_calibrate, command_synth, command_bench, command_tune, command_records,
    command_script;

#endif
