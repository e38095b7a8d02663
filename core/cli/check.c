/* check.c - `elpis check [MODEL]`: what this machine has, whether a model's files are
 * sound, and whether it will fit. Nothing is computed and nothing is loaded.
 *
 * Every part is looked at even when an earlier one failed, so that one run names all
 * that is wrong; the exit status is that of the first failure. The report goes to
 * standard output, failures go to standard error as those of every command.
 *
 * Where no GPU was asked for and none is there, the plan is printed all the same: it is
 * a plan for the GPU that will be. Then this machine's memory is no reason to fail.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "jit/jit_private.h"
#include "jit/records.h"
#include "model/model.h"
#include "text/text.h"

#define CONTEXT_DEFAULT 0 /* the model's maximum, or what fits */
#define BITS_DEFAULT 3
#define GIB (1024.0 * 1024.0 * 1024.0)

enum { OWN_OPTIONS = 2 };

/* One run of the command. */
struct check {
    struct engine_options options;
    bool plan;               /* tell the plan hash */
    double memory;           /* --memory in GiB; 0 = the device's */
    const char *folder;      /* NULL = only the machine */
    char device[160];        /* name for messages; "" when none could be opened */
    struct device_info info; /* of it; target "" when none could be opened */
    u64 available;           /* bytes the plan may take; 0 = not known */
    bool binding;            /* exceeding them is a failure */
    int status;              /* of the first failure */
};

static void fail_check(struct check *check, const struct error *error)
{
    fflush(stdout);
    int status = command_fail(error);
    if (check->status == 0)
        check->status = status;
}

static void row(const char *what, const char *format, ...) PRINTF_LIKE(2, 3);

static void row(const char *what, const char *format, ...)
{
    va_list list;
    printf("  %-10s ", what);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
}

/* ---- the machine */

static void print_libraries(const char *cuda_libraries)
{
    struct buffer text = {0};
    device_describe_libraries(&text, cuda_libraries);
    for (char *line = text.data; line && *line;) {
        size_t length = strcspn(line, "\n");
        if (length)
            printf("  %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    buffer_free(&text);
}

static void print_device(const struct device_info *info)
{
    row("device", "%s", info->name);
    row("plan", "%s, %" PRIu32 " %s, %" PRIu32 " KiB shared memory each", info->target, info->sms,
        info->kind == DEVICE_CUDA ? "multiprocessors" : "threads", info->shared_per_sm / 1024);
    row("memory", "%.1f GiB, %.1f GiB free", (double)info->memory_total / GIB,
        (double)info->memory_free / GIB);
    if (info->driver[0])
        row("version", "%s", info->driver);
    row("compiler", "%s", info->compiler);
}

static size_t count_kernels(const char *folder)
{
    struct arena *arena = arena_create();
    struct error error;
    char **names = NULL;
    size_t count = 0, kernels = 0;
    if (file_list(arena, folder, &names, &count, &error) == 0) {
        for (size_t i = 0; i < count; i++)
            kernels += slice_ends(slice_of(names[i]), SLICE(".kernel"));
    }
    arena_destroy(arena);
    return kernels;
}

/* A folder that cannot be used is no failure: kernels are then compiled at every start. */
static void print_cache(const char *wanted)
{
    struct cache *cache = cache_open(wanted, false);
    const char *folder = cache_folder(cache);
    if (!folder)
        row("cache", "none: kernels are compiled at every start");
    else
        row("cache", "%s, %s, %zu kernels", folder,
            access(folder, W_OK | X_OK) == 0 ? "writable" : "NOT writable", count_kernels(folder));
    cache_close(cache);
}

/* How many tuning records there are; which of them a model uses, its kernels decide. */
static void print_records(const struct engine_options *options)
{
    struct record_file *files = NULL;
    struct record_texts *texts = NULL;
    struct error error;
    size_t count = 0, records = 0, stale = 0, refused = 0, bad = 0;
    if (records_files(options->schedules, options->records, &files, &count, &error) != 0 ||
        record_texts_open(&texts, options->schedules, &error) != 0) {
        row("records", "none: %s", error.text);
    } else {
        for (size_t i = 0; i < count; i++)
            for (size_t j = 0; j < files[i].count; j++) {
                const struct record_line *line = &files[i].lines[j];
                records += line->object != NULL;
                bad += line->reason != NULL;
                if (line->object && record_is_stale(texts, line->object))
                    stale++;
                else if (line->object)
                    refused += record_is_refused(texts, line->object, &error);
            }
        char *folder = records_folder(options->records);
        row("records", "%zu in %zu files, %zu stale, %zu refused, %zu bad lines; folder: %s",
            records, count, stale, refused, bad, folder ? folder : "none");
        memory_free(folder);
    }
    record_texts_close(texts);
    records_files_free(files, count);
}

static void check_machine(struct check *check)
{
    const char *wanted = check->options.device.device;
    struct device *device = NULL;
    struct error error = {0};
    printf("machine\n");
    print_libraries(check->options.device.cuda_libraries);
    print_cache(check->options.cache);
    print_records(&check->options);
    if (device_open(&device, &check->options.device, &error) < 0) {
        fail_check(check, &error);
        return;
    }
    const struct device_info *info = device_info(device);
    print_device(info);
    check->info = *info;
    if (check->plan &&
        info->full_rate_f32_accumulate) { /* else prompts have the engine's own products anyway */
        struct device_gemm *library = NULL;
        check->info.full_rate_f32_accumulate = device_gemm_open(device, &library, &error) == 0;
        if (library)
            device_gemm_close(library);
    }
    snprintf(check->device, sizeof check->device, "%s", info->name);
    check->available = info->memory_free;
    check->binding = info->kind == DEVICE_CUDA || (wanted && strcmp(wanted, "auto") != 0);
    device_close(device);
}

/* ---- the model */

static const char *linear_text(const struct model_linear *linear, char text[40])
{
    static const char *const codebooks[] = {
        [CODEBOOK_3INST] = "3inst", [CODEBOOK_MCG] = "mcg", [CODEBOOK_MUL1] = "mul1"};
    if (linear->kind == LINEAR_EXL3)
        snprintf(text, 40, "EXL3 %s, %" PRIu32 " bits", codebooks[linear->codebook], linear->bits);
    else
        snprintf(text, 40, "%s", dtype_name(linear->weight_dtype));
    return text;
}

static void print_model(const struct model *model)
{
    const struct model_config *config = &model->config;
    u32 attention = 0;
    char first[40], head[40];
    for (u32 i = 0; i < config->layers; i++)
        attention += model->layers[i].attention;
    row("family", "%s", config->architecture);
    row("layers", "%" PRIu32 ": %" PRIu32 " attention, %" PRIu32 " Gated DeltaNet", config->layers,
        attention, config->layers - attention);
    row("sizes", "hidden %" PRIu32 ", MLP %" PRIu32 ", vocabulary %" PRIu32, config->hidden,
        config->intermediate, config->vocab);
    row("heads", "%" PRIu32 " query, %" PRIu32 " key, %" PRIu32 " and %" PRIu32 " DeltaNet",
        config->q_heads, config->kv_heads, config->gdn_k_heads, config->gdn_v_heads);
    row("weights", "%s in layer 0; head %s", linear_text(&model->layers[0].gate, first),
        linear_text(&model->head, head));
    row("files", "%" PRIu32 " with %" PRIu32 " tensors of the text model, %.2f GiB",
        model->file_count, model->tensor_count, (double)model->tensor_bytes / GIB);
    row("context", "%" PRIu32 " tokens at most", config->max_positions);
}

static void check_text(struct check *check, const struct model *model)
{
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat = NULL;
    struct error error = {0};
    if (tokenizer_open(&tokenizer, check->folder, &error) < 0) {
        fail_check(check, &error);
    } else {
        u32 count = tokenizer_count(tokenizer);
        row("tokenizer", "%" PRIu32 " ids", count);
        if (count > model->config.vocab) {
            error_set(&error, ERROR_MODEL,
                      "%s: the tokenizer has %" PRIu32
                      " ids, but vocab_size in config.json is %" PRIu32
                      ": the files belong to different models",
                      check->folder, count, model->config.vocab);
            fail_check(check, &error);
        }
    }
    if (chat_template_open(&chat, check->folder, &error) < 0)
        fail_check(check, &error);
    else
        row("template", "found");
    tokenizer_close(tokenizer);
    chat_template_close(chat);
}

/* ---- the draft model */

/* ", window 2048", with the number of layers that have it where not all do. */
static void add_windows(struct buffer *text, const struct draft_config *config)
{
    u32 sliding = 0, widest = 0;
    for (u32 i = 0; i < config->layers; i++) {
        sliding += config->windows[i] != 0;
        widest = config->windows[i] > widest ? config->windows[i] : widest;
    }
    if (sliding == 0)
        buffer_add_text(text, ", no window");
    else
        buffer_format(text, ", window %" PRIu32, widest);
    if (sliding != 0 && sliding != config->layers)
        buffer_format(text, " in %" PRIu32 " of them", sliding);
}

static void print_draft(const struct draft_model *draft)
{
    const struct draft_config *config = &draft->config;
    struct buffer text = {0};
    buffer_format(&text, "%s, %" PRIu32 " layers, taps after", config->architecture,
                  config->layers);
    for (u32 i = 0; i < config->tap_count; i++)
        buffer_format(&text, " %" PRIu32, config->taps[i]);
    buffer_format(&text, ", block %" PRIu32, config->block);
    add_windows(&text, config);
    if (config->selector_rank)
        buffer_format(&text, ", selector of rank %" PRIu32 " over %" PRIu32, config->selector_rank,
                      config->top_k);
    else
        buffer_add_text(&text, ", no selector");
    buffer_format(&text, ", %s calibration", draft->calibrated ? "its own" : "built-in");
    if (draft->head_blocks)
        buffer_format(&text, ", head of %" PRIu32 " blocks", draft->head_block_count);
    else
        buffer_add_text(&text, ", whole head");
    row("draft", "%s", text.data);
    buffer_free(&text);
}

/* NULL when none was asked for, and when it cannot be used. */
static struct draft_model *check_draft(struct check *check, const struct model *model)
{
    const struct engine_options *options = &check->options;
    struct draft_model *draft = NULL;
    struct error error = {0};
    if (!options->draft)
        return NULL;
    if (draft_open(&draft, options->draft, model, options->tap_shift, &error) < 0)
        fail_check(check, &error);
    else
        print_draft(draft);
    return draft;
}

/* ---- the plan */

/* The context to plan for: the one asked for, else the model's maximum or what fits. */
static u32 choose_context(const struct check *check, const struct model *model,
                          const struct draft_model *draft, u32 bits, u32 piece)
{
    if (check->options.context != CONTEXT_DEFAULT)
        return check->options.context;
    u32 longest = check->available && check->binding
                      ? memory_plan_longest(model, draft, bits, piece, check->available)
                      : 0;
    return longest ? longest : model->config.max_positions;
}

/* Of run and serve, on this device: the same plan is made on paper. */
static void print_plan_hash(const struct check *check, u32 context, u32 bits, u32 piece)
{
    struct engine_options options = check->options;
    struct tokenizer *tokenizer = NULL;
    struct engine *engine = NULL;
    struct error error = {0};
    if (!check->info.target[0] || tokenizer_open(&tokenizer, check->folder, &error) < 0)
        return; /* told already */
    options.valid_vocab = tokenizer_count(tokenizer);
    tokenizer_close(tokenizer);
    options.device = (struct device_options){.paper = true, .paper_of = &check->info};
    options.context = context;
    options.kv_bits = bits;
    options.piece = piece;
    if (engine_open(&engine, check->folder, &options, &error) < 0)
        row("plan hash", "none: %s", error.text);
    else
        row("plan hash", "%s, at a context of %" PRIu32 " tokens", engine_plan_hash(engine),
            engine_context(engine));
    engine_close(engine);
}

static void check_plan(struct check *check, const struct model *model,
                       const struct draft_model *draft)
{
    u32 bits = check->options.kv_bits ? check->options.kv_bits : BITS_DEFAULT;
    u32 piece = check->options.piece
                    ? check->options.piece
                    : memory_plan_piece(model, draft, check->options.context, bits);
    struct memory_plan plan;
    struct buffer text = {0};
    struct error error = {0};
    if (check->options.context > model->config.max_positions) {
        error_set(&error, ERROR_USAGE,
                  "--context %" PRIu32 " is more than the %" PRIu32 " tokens of %s",
                  check->options.context, model->config.max_positions, model->name);
        fail_check(check, &error);
        return;
    }
    u32 context = choose_context(check, model, draft, bits, piece);
    model_memory_plan(model, draft, context, bits, piece, &plan);
    plan.available = check->available;
    memory_plan_print(&plan, &text);
    fwrite(text.data, 1, text.size, stdout);
    buffer_free(&text);
    if (check->plan)
        print_plan_hash(check, context, bits, piece);
    if (memory_plan_check(&plan, check->device, &error) == 0)
        return;
    if (check->binding)
        fail_check(check, &error);
    else
        log_warn("%s", error.text);
}

static void check_model(struct check *check)
{
    struct model *model = NULL;
    struct error error = {0};
    printf("model %s\n", check->folder);
    fflush(stdout);
    if (model_open(&model, check->folder, &error) < 0) {
        fail_check(check, &error);
        return;
    }
    print_model(model);
    check_text(check, model);
    struct draft_model *draft = check_draft(check, model);
    check_plan(check, model, draft);
    draft_close(draft);
    model_close(model);
}

static int run_check(const struct command *command, int argc, char **argv)
{
    struct engine_flags flags = {0};
    struct check check = {0};
    struct option_entry entries[ENGINE_OPTION_COUNT + OWN_OPTIONS] = {
        {0, "memory", "GIB",
         "Plan for a GPU with so many GiB free instead of this machine's memory.", OPTION_DOUBLE,
         &check.memory},
        {0, "plan", NULL,
         "Print the plan hash too: which kernels run and serve would use, with which tuning.\n"
         "Takes some seconds.",
         OPTION_FLAG, &check.plan},
    };
    size_t count = OWN_OPTIONS + engine_option_entries(&flags, entries + OWN_OPTIONS);
    options_parse(command, entries, count, argc, argv, (char **)&check.folder, 0, 1);
    engine_options_finish(command, &flags, &check.options);
    if (check.options.draft && !check.folder) {
        struct error error = {0};
        error_set(&error, ERROR_USAGE,
                  "--draft %s is checked against its target: give the folder MODEL too",
                  check.options.draft);
        return command_fail(&error);
    }
    if (check.memory < 0 || check.memory > 1e6) {
        struct error error = {0};
        error_set(&error, ERROR_USAGE, "--memory %g: expected GiB from 0 to 1000000", check.memory);
        return command_fail(&error);
    }
    check_machine(&check);
    if (check.memory > 0) {
        check.available = (u64)(check.memory * GIB);
        check.binding = true;
        snprintf(check.device, sizeof check.device, "a GPU of --memory %g", check.memory);
    }
    if (check.folder)
        check_model(&check);
    printf("%s\n", check.status ? "not ready" : "ready");
    return fflush(stdout) != 0 && check.status == 0 ? ERROR_USAGE : check.status;
}

const struct command command_check = {
    .name = "check",
    .summary = "look at this machine and a model's files, and plan its memory",
    .synopsis = "elpis check [MODEL] [OPTION...]",
    .description =
        "Reports the GPU, its driver and the libraries that were found, the compiler of the\n"
        "kernels and the folder where compiled kernels are kept. With the folder MODEL it also\n"
        "checks every file of the model as loading would, and of its draft model with --draft,\n"
        "and prints the memory that they will take, line by line, for --context and --kv-bits.\n"
        "With --plan it tells the plan hash that `elpis serve` logs and /v1/models has.\n"
        "\n"
        "Nothing is loaded: a model of any size is checked in a moment, also on a machine\n"
        "without a GPU.",
    .epilogue = "EXIT STATUS\n"
                "    0  all is well\n"
                "    2  the command line\n"
                "    3  a file of the model is missing, broken or not supported\n"
                "    4  the GPU, its driver, NVRTC or the host compiler\n"
                "    5  the model does not fit into memory\n"
                "    The first failure decides; each is one line on standard error.\n"
                "\n"
                "EXAMPLES\n"
                "    elpis check\n"
                "    elpis check Qwen3.8-27B-EXL3-4.00bpw --context 262144\n"
                "    elpis check Qwen3.8-27B-EXL3-4.00bpw --memory 23 --kv-bits 4\n"
                "    elpis check Qwen3.8-27B-EXL3-4.00bpw --draft Qwen3.8-27B-DFlash2 --memory 23",
    .run = run_check,
};
