/* eval.c - `elpis eval`: logits and hidden states for given tokens, so that two runs can be
 * compared byte for byte.
 *
 * Ids come as numbers in a text file (any separators), or as tensor `ids` of a safetensors file.
 * The dump has logits F32 [rows, vocab], hidden F32 [ids, layers, hidden], ids I32, and with
 * --draft-script committed I32 [tokens] and committed_logits F32 [tokens, vocab]. The printed
 * digests are BLAKE2b-256 of the tensors' bytes.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/draft_script.h"

enum { IDS_LIMIT = 64 << 20 };

struct id_list {
    u32 *ids;
    u32 count;
};

static int ids_from_text(struct id_list *list, const char *path, struct error *error)
{
    struct buffer text = {0}, ids = {0};
    if (file_read(&text, path, IDS_LIMIT, error))
        return -1;
    for (const char *at = text.data; at && *at;) {
        if (isdigit((unsigned char)*at)) {
            char *end;
            const unsigned long long value = strtoull(at, &end, 10);
            const u32 id = value > UINT32_MAX ? UINT32_MAX : (u32)value;
            buffer_add(&ids, &id, sizeof id);
            at = end;
        } else if (isspace((unsigned char)*at) || strchr(",[]", *at)) {
            at++;
        } else {
            const char found = *at;
            const size_t offset = (size_t)(at - text.data);
            buffer_free(&text);
            buffer_free(&ids);
            return error_set(error, ERROR_USAGE, "%s: byte %zu: expected token ids, found '%c'",
                             path, offset, found);
        }
    }
    buffer_free(&text);
    list->count = (u32)(ids.size / sizeof(u32));
    list->ids = (u32 *)ids.data;
    return 0;
}

static int ids_from_tensors(struct id_list *list, const char *path, struct error *error)
{
    struct tensor_file *file;
    if (tensor_file_open(&file, path, error))
        return -1;
    const struct tensor *tensor = tensor_file_find(file, "ids");
    int result = 0;
    if (!tensor || (tensor->dtype != DTYPE_I32 && tensor->dtype != DTYPE_I64)) {
        result = error_set(error, ERROR_USAGE, "%s: expected a tensor ids of I32 or I64", path);
    } else {
        list->count = (u32)tensor->count;
        list->ids = memory_alloc(tensor->count * sizeof(u32) + 4);
        for (u32 i = 0; i < list->count; i++)
            list->ids[i] = tensor->dtype == DTYPE_I32 ? (u32)((const i32 *)tensor->data)[i]
                                                      : (u32)((const i64 *)tensor->data)[i];
    }
    tensor_file_close(file);
    return result;
}

/* ---- results */

static int write_dump(const struct engine *engine, const struct engine_eval *eval,
                      const struct engine_eval_result *result, const char *path,
                      struct error *error)
{
    const struct model_config *c = &engine_model(engine)->config;
    struct tensor_writer *writer = tensor_writer_create();
    const u64 logits[] = {result->logit_rows, c->vocab},
              hidden[] = {eval->count, c->layers, c->hidden},
              committed[] = {result->committed_count, c->vocab};
    const u64 count = eval->count;
    tensor_writer_add(writer, "ids", DTYPE_I32, 1, &count, eval->ids);
    tensor_writer_add(writer, "logits", DTYPE_F32, 2, logits, result->logits);
    tensor_writer_add(writer, "hidden", DTYPE_F32, 3, hidden, result->hidden);
    if (eval->script) {
        tensor_writer_add(writer, "committed", DTYPE_I32, 1, committed, result->committed);
        tensor_writer_add(writer, "committed_logits", DTYPE_F32, 2, committed,
                          result->committed_logits);
    }
    int failed = tensor_writer_write(writer, path, error);
    tensor_writer_destroy(writer);
    return failed;
}

static void print_digest(const char *name, const void *data, u64 bytes)
{
    char text[65];
    digest_text(digest_of(data, bytes), text);
    printf("%s %s\n", name, text);
}

static void print_summary(const struct engine *engine, const struct engine_eval *eval,
                          const struct engine_eval_result *result, double seconds)
{
    const struct device_info *info = engine_device(engine);
    const struct model_config *c = &engine_model(engine)->config;
    const u64 row = (u64)c->vocab * sizeof(float);
    printf("device %s as %s, plan %s\n", info->name, info->target, engine_plan_hash(engine));
    printf("ids %u, logit rows %u, %.3f s\n", eval->count, result->logit_rows, seconds);
    print_digest("logits", result->logits, result->logit_rows * row);
    print_digest("hidden", result->hidden,
                 (u64)eval->count * c->layers * c->hidden * sizeof(float));
    if (!eval->script)
        return;
    printf("rounds %u, committed tokens %u\n", eval->script_count, result->committed_count);
    print_digest("committed", result->committed, result->committed_count * sizeof(u32));
    print_digest("committed_logits", result->committed_logits, result->committed_count * row);
}

/* ---- the command */

/* One run: what the command line asks for, and what was read for it. */
struct run {
    struct engine_flags flags;
    struct engine_options options;
    struct engine_eval eval;
    const char *folder, *ids_path, *script_path, *dump;
    struct engine_proposal tree; /* of --tree PARENTS: rows and parents */
    struct id_list list;
    struct draft_script script;
};

enum { OWN_OPTIONS = 8 };

static size_t list_options(struct run *run, struct option_entry *entries)
{
    const struct option_entry own[OWN_OPTIONS] = {
        {0, "ids", "FILE",
         "Token ids: numbers in a text file, or tensor ids of a safetensors file.", OPTION_TEXT,
         &run->ids_path},
        {0, "rows", "R", "Rows of a decode pass, 1 to 8. Default: 8.", OPTION_U32, &run->eval.rows},
        {0, "lead", "R",
         "Rows of the first decode pass, at most those of --rows: moves every token to\nanother "
         "row. Default: as --rows.",
         OPTION_U32, &run->eval.lead},
        {0, "teacher", NULL, "All ids through the decode kernels; logits of every one.",
         OPTION_FLAG, &run->eval.teacher},
        {0, "draft-script", "FILE",
         "After the ids, a greedy round for each line of FILE, which says what is proposed in\n"
         "it: PARENTS : TOKENS, of rows 1 and up; see below. Needs no draft.",
         OPTION_TEXT, &run->script_path},
        {0, "state-in", "FILE", "Start from a saved sequence state.", OPTION_TEXT,
         &run->eval.state_in},
        {0, "state-out", "FILE", "Save the sequence state at the end.", OPTION_TEXT,
         &run->eval.state_out},
        {0, "dump", "FILE", "Write ids, logits and hidden states as safetensors.", OPTION_TEXT,
         &run->dump},
    };
    memcpy(entries, own, sizeof own);
    const size_t count = OWN_OPTIONS + engine_option_entries(&run->flags, entries + OWN_OPTIONS);
    for (size_t i = OWN_OPTIONS; i < count; i++) {
        if (strcmp(entries[i].name, "tree") != 0)
            continue;
        entries[i].argument = "PARENTS";
        entries[i].help = "The last ids are the rows of one tree, verified in one pass: parents of "
                          "rows 1 and\nup, such as 0,0,1,1,2,4,5. Needs --teacher. With --draft "
                          "also on or off, as in\n`elpis run`.";
    }
    return count;
}

/* --tree has two meanings here; a list of parents begins with a digit. */
static int take_tree(struct run *run, struct error *error)
{
    const char *text = run->flags.tree;
    if (!text || !isdigit((unsigned char)text[0]))
        return 0;
    run->flags.tree = NULL;
    if (draft_parents_parse(&run->tree, text, error) < 0)
        return -1;
    if (!run->eval.teacher)
        return error_set(error, ERROR_USAGE,
                         "option --tree %s needs --teacher: the rows of a tree are decoded", text);
    if (run->script_path)
        return error_set(error, ERROR_USAGE,
                         "options --tree %s and --draft-script exclude each other: one pass that "
                         "commits nothing, or rounds",
                         text);
    run->eval.tree_rows = run->tree.rows;
    run->eval.tree_parents = run->tree.parent;
    return 0;
}

static int check_options(struct run *run, struct error *error)
{
    if (!run->ids_path)
        return error_set(error, ERROR_USAGE, "option --ids is missing: give a file with token ids");
    return take_tree(run, error);
}

static int read_inputs(struct run *run, struct error *error)
{
    const bool tensors = slice_ends(slice_of(run->ids_path), SLICE(".safetensors"));
    if ((tensors ? ids_from_tensors : ids_from_text)(&run->list, run->ids_path, error) < 0)
        return -1;
    if (run->list.count < run->eval.tree_rows)
        return error_set(error, ERROR_USAGE,
                         "%s: expected the ids of the %u rows of --tree at the end, found %u ids",
                         run->ids_path, run->eval.tree_rows, run->list.count);
    if (run->script_path && draft_script_read(&run->script, run->script_path, error) < 0)
        return -1;
    run->eval.ids = run->list.ids;
    run->eval.count = run->list.count;
    run->eval.script = run->script.rounds;
    run->eval.script_count = run->script.count;
    return 0;
}

static int evaluate(struct run *run, struct error *error)
{
    struct engine *engine = NULL;
    struct engine_eval_result result = {0};
    if (engine_open(&engine, run->folder, &run->options, error) < 0)
        return -1;
    const double start = clock_seconds();
    int status = engine_evaluate(engine, &run->eval, &result, error);
    if (status == 0)
        print_summary(engine, &run->eval, &result, clock_seconds() - start);
    if (status == 0 && run->dump)
        status = write_dump(engine, &run->eval, &result, run->dump, error);
    memory_free(result.logits);
    memory_free(result.hidden);
    memory_free(result.committed);
    memory_free(result.committed_logits);
    engine_close(engine);
    return status;
}

static int run_eval(const struct command *command, int argc, char **argv)
{
    struct run run = {.eval = {.rows = 8}};
    struct option_entry entries[OWN_OPTIONS + ENGINE_OPTION_COUNT];
    struct error error = {0};
    size_t count = list_options(&run, entries);
    options_parse(command, entries, count, argc, argv, (char **)&run.folder, 1, 1);
    if (check_options(&run, &error) < 0)
        return command_fail(&error);
    engine_options_finish(command, &run.flags, &run.options);
    run.eval.piece = run.flags.piece;
    if (run.options.piece && run.options.piece < 2048)
        run.options.piece = 0; /* kernels for the default piece take smaller ones */
    int status = read_inputs(&run, &error);
    if (status == 0)
        status = evaluate(&run, &error);
    memory_free(run.list.ids);
    memory_free(run.script.rounds);
    return status < 0 ? command_fail(&error) : 0;
}

const struct command command_eval = {
    .name = "eval",
    .summary = "logits and hidden states of given tokens, for comparisons to the bit",
    .synopsis = "elpis eval MODEL --ids FILE [OPTION...]",
    .description =
        "Runs the tokens in FILE through the model in the folder MODEL and prints digests of\n"
        "the logits and of the residual stream after every layer; --dump writes them.\n"
        "\n"
        "Without --teacher the tokens take the route of a prompt: all but the last through\n"
        "prefill in pieces of --piece tokens, the last through a decode pass; the logits are\n"
        "those of the last. With --teacher every token goes through the decode kernels, --rows\n"
        "at a time, and has logits. The digests of --teacher are the same for every --rows,\n"
        "--lead, --plan-seed and device; those of a prompt are the same for every --piece.\n"
        "\n"
        "A verify pass of a tree has up to 8 rows. Row 0 is the last token, every other row\n"
        "follows its parent, a row before it, and sees the tokens on its own path alone. With\n"
        "--teacher and --tree PARENTS the last ids, one more than there are parents, are the\n"
        "rows of one such pass; nothing of it is kept. A row's logits are those that plain\n"
        "decoding gives for its path.\n"
        "\n"
        "With --draft-script the last id is row 0 of a first round. Each round verifies the tree\n"
        "that its line proposes, takes the longest path of tokens that the model would have\n"
        "chosen itself (greedily), one more token that follows it, and commits them; that token\n"
        "is row 0 of the next. The committed tokens and the logits that chose them are those of\n"
        "plain decoding, whatever is proposed: only the number of tokens a round differs.",
    .epilogue =
        "DRAFT SCRIPT\n"
        "    A round a line, the parents of rows 1 and up, then their tokens, at most 7 of each:\n"
        "\n"
        "    # text from # on is a comment\n"
        "    0 1 2 : 17 99 4    a path of three tokens\n"
        "    0 0 1 : 17 18 99   two that may follow the last token, and one after the first\n"
        "    :                  nothing is proposed\n"
        "\n"
        "DUMP\n"
        "    ids               I32 [ids]\n"
        "    logits            F32 [logit rows, vocabulary]\n"
        "    hidden            F32 [ids, layers, hidden]\n"
        "    committed         I32 [tokens], with --draft-script\n"
        "    committed_logits  F32 [tokens, vocabulary], with --draft-script\n"
        "\n"
        "EXAMPLES\n"
        "    elpis eval tests/models/elpis-tiny --ids ids.txt --teacher --dump a.safetensors\n"
        "    elpis eval tests/models/elpis-tiny --ids ids.txt --teacher --rows 3 --plan-seed 7\n"
        "    elpis eval tests/models/elpis-tiny --ids ids.txt --teacher --tree 0,0,1,1,2,4,5\n"
        "    elpis eval tests/models/elpis-tiny --ids ids.txt --draft-script rounds.txt\n",
    .run = run_eval,
};
