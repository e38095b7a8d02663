/* eval.c - `elpis eval`: logits and hidden states for given tokens, so that two runs can be
 * compared byte for byte.
 *
 * Ids come as numbers in a text file (any separators), or as tensor `ids` of a safetensors file.
 * The dump has logits F32 [rows, vocab], hidden F32 [ids, layers, hidden], ids I32; and the printed
 * digest is BLAKE2b-256 of the logits' bytes.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

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

static int write_dump(const struct engine *engine, const struct engine_eval *eval,
                      const struct engine_eval_result *result, const char *path,
                      struct error *error)
{
    const struct model_config *c = &engine_model(engine)->config;
    struct tensor_writer *writer = tensor_writer_create();
    const u64 logits[] = {result->logit_rows, c->vocab},
              hidden[] = {eval->count, c->layers, c->hidden};
    const u64 count = eval->count;
    tensor_writer_add(writer, "ids", DTYPE_I32, 1, &count, eval->ids);
    tensor_writer_add(writer, "logits", DTYPE_F32, 2, logits, result->logits);
    tensor_writer_add(writer, "hidden", DTYPE_F32, 3, hidden, result->hidden);
    int failed = tensor_writer_write(writer, path, error);
    tensor_writer_destroy(writer);
    return failed;
}

static void print_summary(const struct engine *engine, const struct engine_eval *eval,
                          const struct engine_eval_result *result, double seconds)
{
    const struct device_info *info = engine_device(engine);
    const u64 logits = (u64)result->logit_rows * engine_model(engine)->config.vocab * sizeof(float);
    const u64 hidden = (u64)eval->count * engine_model(engine)->config.layers *
                       engine_model(engine)->config.hidden * sizeof(float);
    char text[65];
    printf("device %s as %s, plan %s\n", info->name, info->target, engine_plan_hash(engine));
    printf("ids %u, logit rows %u, %.3f s\n", eval->count, result->logit_rows, seconds);
    digest_text(digest_of(result->logits, logits), text);
    printf("logits %s\n", text);
    digest_text(digest_of(result->hidden, hidden), text);
    printf("hidden %s\n", text);
}

static int run_eval(const struct command *command, int argc, char **argv)
{
    struct engine_flags flags = {0};
    struct engine_options options;
    struct engine_eval eval = {.rows = 8};
    const char *ids_path = NULL, *dump = NULL;
    char *folder = NULL;
    struct option_entry entries[ENGINE_OPTION_COUNT + 7] = {
        {0, "ids", "FILE",
         "Token ids: numbers in a text file, or tensor ids of a safetensors file.", OPTION_TEXT,
         &ids_path},
        {0, "rows", "R", "Rows of a decode pass, 1 to 8. Default: 8.", OPTION_U32, &eval.rows},
        {0, "lead", "R",
         "Rows of the first decode pass, at most those of --rows: moves every token to\nanother "
         "row. Default: as --rows.",
         OPTION_U32, &eval.lead},
        {0, "teacher", NULL, "All ids through the decode kernels; logits of every one.",
         OPTION_FLAG, &eval.teacher},
        {0, "state-in", "FILE", "Start from a saved sequence state.", OPTION_TEXT, &eval.state_in},
        {0, "state-out", "FILE", "Save the sequence state at the end.", OPTION_TEXT,
         &eval.state_out},
        {0, "dump", "FILE", "Write ids, logits and hidden states as safetensors.", OPTION_TEXT,
         &dump},
    };
    const size_t count = 7 + engine_option_entries(&flags, entries + 7);
    options_parse(command, entries, count, argc, argv, &folder, 1, 1);
    engine_options_finish(command, &flags, &options);
    struct error error = {0};
    if (!ids_path) {
        error_set(&error, ERROR_USAGE, "option --ids is missing: give a file with token ids");
        return command_fail(&error);
    }
    eval.piece = flags.piece;
    if (options.piece && options.piece < 2048)
        options.piece = 0; /* kernels for the default piece take smaller ones */

    struct id_list list = {0};
    struct engine *engine = NULL;
    struct engine_eval_result result = {0};
    const size_t length = strlen(ids_path);
    const bool tensors = length > 12 && strcmp(ids_path + length - 12, ".safetensors") == 0;
    int failed = (tensors ? ids_from_tensors : ids_from_text)(&list, ids_path, &error) ||
                 engine_open(&engine, folder, &options, &error);
    eval.ids = list.ids;
    eval.count = list.count;
    const double start = clock_seconds();
    failed = failed || engine_evaluate(engine, &eval, &result, &error);
    if (!failed)
        print_summary(engine, &eval, &result, clock_seconds() - start);
    failed = failed || (dump && write_dump(engine, &eval, &result, dump, &error));
    memory_free(result.logits);
    memory_free(result.hidden);
    memory_free(list.ids);
    engine_close(engine);
    return failed ? command_fail(&error) : 0;
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
        "--lead, --plan-seed and device; those of a prompt are the same for every --piece.",
    .epilogue =
        "Examples:\n"
        "  elpis eval tests/models/elpis-tiny --ids ids.txt --teacher --dump a.safetensors\n"
        "  elpis eval tests/models/elpis-tiny --ids ids.txt --teacher --rows 3 --plan-seed 7\n",
    .run = run_eval,
};
