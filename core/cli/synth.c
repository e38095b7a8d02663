/* synth.c - `elpis synth`: writes a model of a real geometry with random weights. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/cli.h"
#include "model/model.h"

/* The description with the table of geometries, which model/ knows. */
static void describe(struct command *command, struct buffer *text)
{
    const char *name, *what;
    buffer_add_text(text, command->description);
    for (u32 i = 0; (name = model_synth_geometry(i, &what)) != NULL; i++)
        buffer_format(text, "\n    %-12s %s", name, what);
    command->description = text->data;
}

enum { OPTIONS = 18 };

/* 0 is what an absent option leaves: given, it would be ignored in silence. */
static int refuse_zeros(const struct option_entry *entries, struct error *error)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (entries[i].kind == OPTION_U32 && *entries[i].given && *(u32 *)entries[i].value == 0)
            return error_set(error, ERROR_USAGE, "option --%s expects at least 1", entries[i].name);
    return 0;
}

static void print_result(const char *folder, u64 bytes, double seconds)
{
    printf("%s: %.2f GB in %.1f s, %.2f GB/s\n", folder, (double)bytes / 1e9, seconds,
           (double)bytes / 1e9 / seconds);
}

static int run_synth(const struct command *command, int argc, char **argv)
{
    struct synth_options options = {0};
    struct error error = {0};
    struct command described = *command;
    struct buffer description = {0};
    char *operands[2];
    bool given[OPTIONS] = {false};
    const struct option_entry entries[OPTIONS] = {
        {0, "seed", "NUMBER", "Of the random weights. Default: 0.", OPTION_U64, &options.seed,
         &given[0]},
        {0, "layers", "COUNT", "Layers. Default: the geometry's.", OPTION_U32, &options.layers,
         &given[1]},
        {0, "vocab", "COUNT",
         "Size of the vocabulary, 512 to 1048576. Model and draft must agree. Default: the\n"
         "geometry's.",
         OPTION_U32, &options.vocab, &given[2]},
        {0, "bits", "BITS", "Bits of a weight, 1 to 8. Default: 4.", OPTION_U32, &options.bits,
         &given[3]},
        {0, "head-bits", "BITS", "Bits of a weight of the head, 1 to 8. Default: 6.", OPTION_U32,
         &options.head_bits, &given[4]},
        {0, "hidden", "WIDTH",
         "Of the residual stream, a multiple of 128. Model and draft must agree. Default of\n"
         "this and the other widths and heads: the geometry's.",
         OPTION_U32, &options.hidden, &given[5]},
        {0, "intermediate", "WIDTH", "Of the MLP, a multiple of 128.", OPTION_U32,
         &options.intermediate, &given[6]},
        {0, "q-heads", "COUNT", "Query heads, a multiple of the key heads.", OPTION_U32,
         &options.q_heads, &given[7]},
        {0, "kv-heads", "COUNT", "Key and value heads.", OPTION_U32, &options.kv_heads, &given[8]},
        {0, "k-heads", "COUNT", "Key heads of Gated DeltaNet layers.", OPTION_U32, &options.k_heads,
         &given[9]},
        {0, "v-heads", "COUNT",
         "Value heads of Gated DeltaNet layers, a multiple of the key heads.", OPTION_U32,
         &options.v_heads, &given[10]},
        {0, "window", "TOKENS", "Of a draft: its attention's.", OPTION_U32, &options.window,
         &given[11]},
        {0, "rank", "WIDTH", "Of a draft: its selector's, a multiple of 8.", OPTION_U32,
         &options.rank, &given[12]},
        {0, "target-layers", "COUNT",
         "Of a draft: layers of the model it is for; its taps are spread over them. Default:\n"
         "the geometry's.",
         OPTION_U32, &options.target_layers, &given[13]},
        {0, "head-blocks", "COUNT",
         "Of a draft: it proposes tokens of so many blocks of 128 ids only (draft_head.json).\n"
         "Default: all ids.",
         OPTION_U32, &options.head_blocks, &given[14]},
        {0, "threads", "COUNT", "Threads that write. Default: one a core.", OPTION_U32,
         &options.threads, &given[15]},
        {0, "hollow", NULL,
         "Leave the weights out: zeros that take no room on disk. For `elpis check` and\n"
         "`elpis kernels --estimate`, which look at shapes alone.",
         OPTION_FLAG, &options.hollow, &given[16]},
        {0, "force", NULL, "Replace the model that is in FOLDER.", OPTION_FLAG, &options.force,
         &given[17]},
    };
    describe(&described, &description);
    options_parse(&described, entries, OPTIONS, argc, argv, operands, 2, 2);
    buffer_free(&description);
    options.geometry = operands[0];
    u64 bytes = 0;
    const double start = clock_seconds();
    if (refuse_zeros(entries, &error) < 0 || model_synth(&options, operands[1], &bytes, &error) < 0)
        return command_fail(&error);
    print_result(operands[1], bytes, clock_seconds() - start);
    return 0;
}

const struct command command_synth = {
    .name = "synth",
    .summary = "write a model of a real geometry with random weights, to measure with",
    .synopsis = "elpis synth GEOMETRY FOLDER [OPTION...]",
    .description =
        "Writes a model directory that every other command opens: weights in EXL3 (codebook\n"
        "mul1), configuration, tokenizer, chat template. The weights are random, scaled so that\n"
        "activations stay in the range of a trained model, and so is what it says; time, memory\n"
        "and bits are those of a trained model of the same geometry. The same seed gives the\n"
        "same files on every machine, and a model with fewer --layers the same first layers, but\n"
        "for the scale of what they add to the residual stream.\n"
        "\n"
        "FOLDER is made, or must be empty. Until it is whole the weights' file ends in .partial;\n"
        "an interrupted run leaves it for the next to overwrite.\n"
        "\n"
        "Geometries:",
    .epilogue = "EXAMPLES\n"
                "    elpis synth 27b /data/synth-27b\n"
                "    elpis synth 27b-dflash2 /data/synth-27b-dflash2 --head-blocks 512\n"
                "    elpis check /data/synth-27b --draft /data/synth-27b-dflash2\n"
                "    elpis synth 27b /tmp/shapes --hollow\n"
                "    elpis synth 27b /tmp/two --layers 2 --vocab 8192\n"
                "    elpis synth tiny /tmp/wide --layers 4 --hidden 4096 --intermediate 12288\n",
    .run = run_synth,
};
