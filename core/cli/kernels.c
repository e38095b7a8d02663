/* kernels.c - `elpis kernels`: what kernels there are, their text, what they cost on a GPU.
 *
 *   elpis kernels                                    the schedules
 *   elpis kernels --emit NAME k=5120 ...             the generated source of one kernel
 *   elpis kernels --resources --arch sm_86 [NAME..]  registers, spills, shared memory, occupancy,
 *                                                    cycles a pipe; needs NVRTC, no GPU
 *   elpis kernels --estimate MODEL --arch sm_86      a verify pass there, or with --prefill prompts
 *                                                    (kernels_estimate.c)
 *
 * Costs are shown for the shapes a schedule lists as examples, with its default tuning or the
 * tuning that --set pins. Kernels are compiled by several threads and printed in order.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/kernels_estimate.h"
#include "jit/cycles.h"
#include "jit/jit_private.h"
#include "jit/occupancy.h"

enum { OPERANDS_MAX = 64, SETTINGS_MAX = 64, THREADS_MAX = 32 };

struct kernels_options {
    const char *emit, *set, *arch, *schedules, *cuda_libraries;
    const char *estimate, *draft, *contexts, *prefill;
    u32 sms, shared_per_sm, rows, kv_bits;
    double megahertz, gigabytes_a_second;
    bool resources;
    char *operands[OPERANDS_MAX];
    struct jit_parameter settings[SETTINGS_MAX + 1]; /* ends with {0} */
    size_t setting_count;
};

/* One kernel to measure. */
struct measured {
    const struct scripts_listing *schedule;
    const struct jit_parameter *parameters;
    struct scripts_rendering rendering;
    struct device_resources resources;
    struct loop_cycles *loops;
    size_t loop_count;
    int status;
    struct error error;
};

struct measuring {
    const struct kernels_options *options;
    struct measured *items;
    size_t count, next;
    pthread_mutex_t mutex;
};

/* ---- settings: name=value */

static int add_setting(struct kernels_options *options, struct arena *arena, const char *text,
                       size_t size, struct error *error)
{
    const char *equals = memchr(text, '=', size);
    if (!equals || equals == text || equals + 1 == text + size)
        return error_set(error, ERROR_USAGE, "setting \"%.*s\": expected name=value", (int)size,
                         text);
    if (options->setting_count == SETTINGS_MAX)
        return error_set(error, ERROR_USAGE, "too many settings: at most %d", SETTINGS_MAX);
    struct jit_parameter *setting = &options->settings[options->setting_count++];
    char *end;
    setting->name = arena_text(arena, (struct slice){text, (size_t)(equals - text)});
    const char *value = arena_text(arena,
                                   (struct slice){equals + 1, size - (size_t)(equals + 1 - text)});
    setting->number = strtoll(value, &end, 0);
    setting->text = *end ? value : NULL;
    return 0;
}

static int add_list(struct kernels_options *options, struct arena *arena, const char *list,
                    struct error *error)
{
    while (*list) {
        size_t size = strcspn(list, ",");
        if (add_setting(options, arena, list, size, error) != 0)
            return -1;
        list += size + (list[size] == ',');
    }
    return 0;
}

/* Every --set a=1,b=2 (the option table keeps only the last) and every operand with a '='. */
static int read_settings(struct kernels_options *options, struct arena *arena, int argc,
                         char **argv, struct error *error)
{
    for (int i = 1; i < argc; i++) {
        const char *list = NULL;
        if (strncmp(argv[i], "--set=", 6) == 0)
            list = argv[i] + 6;
        else if (strcmp(argv[i], "--set") == 0 && i + 1 < argc)
            list = argv[++i];
        if (list && add_list(options, arena, list, error) != 0)
            return -1;
    }
    for (size_t i = 0; options->operands[i]; i++)
        if (strchr(options->operands[i], '=') &&
            add_setting(options, arena, options->operands[i], strlen(options->operands[i]),
                        error) != 0)
            return -1;
    return 0;
}

static bool is_set(const struct kernels_options *options, const char *name)
{
    for (size_t i = 0; i < options->setting_count; i++)
        if (strcmp(options->settings[i].name, name) == 0)
            return true;
    return false;
}

/* The parameters of an example with the settings in place of its own. */
static const struct jit_parameter *with_settings(const struct kernels_options *options,
                                                 struct arena *arena,
                                                 const struct jit_parameter *example)
{
    size_t count = 0, at = 0;
    while (example && example[count].name)
        count++;
    struct jit_parameter *all = arena_alloc(arena,
                                            (count + options->setting_count + 1) * sizeof *all);
    for (size_t i = 0; i < count; i++)
        if (!is_set(options, example[i].name))
            all[at++] = example[i];
    memcpy(all + at, options->settings, options->setting_count * sizeof *all);
    return all;
}

static int find_target(const struct kernels_options *options, struct scripts_target *target,
                       struct error *error)
{
    u32 sms = options->sms, shared = options->shared_per_sm;
    const struct jit_gpu *usual = jit_usual_gpu(options->arch);
    if (usual) {
        sms = sms ? sms : usual->sms;
        shared = shared ? shared : usual->shared_per_sm;
    }
    if (!sms || !shared)
        return error_set(error, ERROR_USAGE,
                         "--arch %s: no GPU of that architecture is known here; give --sms and "
                         "--shared too",
                         options->arch);
    return jit_target_named(options->arch, sms, shared, target, error);
}

/* ---- emit */

static const struct scripts_listing *find_schedule(const struct scripts_listing *listing,
                                                   size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(listing[i].name, name) == 0)
            return &listing[i];
    return NULL;
}

/* Without settings the first example is shown, so that --emit NAME alone prints something. */
static int emit_kernel(struct scripts *scripts, const struct kernels_options *options,
                       const struct scripts_listing *listing, size_t count, struct error *error)
{
    struct scripts_target target;
    struct scripts_rendering rendering;
    const struct scripts_listing *schedule = find_schedule(listing, count, options->emit);
    struct scripts_request request = {
        .schedule = options->emit, .parameters = options->settings, .target = &target};
    if (schedule && schedule->example_count > 0 && options->setting_count == 0)
        request.parameters = schedule->examples[0];
    if (find_target(options, &target, error) != 0 ||
        scripts_render(scripts, &request, &rendering, error) != 0)
        return -1;
    fwrite(rendering.source.data, 1, rendering.source.size, stdout);
    scripts_rendering_free(&rendering);
    return 0;
}

/* ---- resources */

static void measure(const struct kernels_options *options, struct measured *item)
{
    struct buffer image = {0};
    char virtual_arch[32];
    const struct slice source = buffer_slice(&item->rendering.source);
    const char *number = options->arch + 3; /* past "sm_" */
    snprintf(virtual_arch, sizeof virtual_arch, "compute_%s", number);
    item->status = device_cross_compile(options->cuda_libraries, source, item->schedule->name,
                                        options->arch, &image, &item->resources, &item->error);
    if (item->status == 0)
        item->status = device_cross_compile(options->cuda_libraries, source, item->schedule->name,
                                            virtual_arch, &image, NULL, &item->error);
    if (item->status == 0)
        item->loops = cycles_count(buffer_slice(&image), (u32)strtoul(number, NULL, 10),
                                   &item->loop_count);
    buffer_free(&image);
}

static void *measure_thread(void *argument)
{
    struct measuring *measuring = argument;
    for (;;) {
        pthread_mutex_lock(&measuring->mutex);
        size_t at = measuring->next++;
        pthread_mutex_unlock(&measuring->mutex);
        if (at >= measuring->count)
            return NULL;
        measure(measuring->options, &measuring->items[at]);
    }
}

static void measure_all(struct measuring *measuring)
{
    pthread_t threads[THREADS_MAX];
    size_t count = 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_mutex_init(&measuring->mutex, NULL);
    while (count < THREADS_MAX && (long)count + 1 < cores &&
           pthread_create(&threads[count], NULL, measure_thread, measuring) == 0)
        count++;
    measure_thread(measuring);
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&measuring->mutex);
}

static void print_parameters(const struct jit_parameter *parameters)
{
    for (; parameters->name; parameters++)
        if (parameters->text)
            printf(" %s=%s", parameters->name, parameters->text);
        else
            printf(" %s=%" PRId64, parameters->name, parameters->number);
}

static void print_loop(const struct loop_cycles *loop)
{
    enum pipe busiest = PIPE_TENSOR;
    printf("    %*s%-*s %6u", 2 * (int)loop->depth, "", 20 - 2 * (int)loop->depth, loop->label,
           loop->instructions);
    for (enum pipe pipe = 0; pipe < PIPE_COUNT; pipe++) {
        printf(" %7u", loop->cycles[pipe]);
        if (loop->cycles[pipe] > loop->cycles[busiest])
            busiest = pipe;
    }
    printf("  %s\n", pipe_names[busiest]);
}

static void print_measured(const struct scripts_target *target, const struct measured *item)
{
    const struct device_geometry *g = &item->rendering.geometry;
    printf("%s", item->schedule->name);
    print_parameters(item->parameters);
    printf(
        "\n    grid %u x %u threads, %u registers, spills %u + %u bytes, shared %u + %u bytes, %u "
        "CTAs an SM\n",
        g->grid, g->block, item->resources.registers, item->resources.spill_stores,
        item->resources.spill_loads, g->shared, item->resources.shared_static,
        occupancy_ctas(target->arch, target->shared_per_sm, g, &item->resources));
    printf("    %-20s %6s", "loop", "instr.");
    for (enum pipe pipe = 0; pipe < PIPE_COUNT; pipe++)
        printf(" %7s", pipe_names[pipe]);
    printf("  limit\n");
    for (size_t i = 0; i < item->loop_count; i++)
        print_loop(&item->loops[i]);
}

/* Names among the operands choose schedules; none = all. */
static bool is_chosen(const struct kernels_options *options, const char *name)
{
    bool any = false;
    for (size_t i = 0; options->operands[i]; i++) {
        if (strchr(options->operands[i], '='))
            continue;
        if (strcmp(options->operands[i], name) == 0)
            return true;
        any = true;
    }
    return !any;
}

static int check_names(const struct kernels_options *options, const struct scripts_listing *listing,
                       size_t count, struct error *error)
{
    for (size_t i = 0; options->operands[i]; i++)
        if (!strchr(options->operands[i], '=') &&
            !find_schedule(listing, count, options->operands[i]))
            return error_set(error, ERROR_USAGE, "\"%s\" is no kernel; `elpis kernels` lists them",
                             options->operands[i]);
    return 0;
}

static void list_kernels(const struct kernels_options *options,
                         const struct scripts_listing *listing, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_chosen(options, listing[i].name))
            printf("%-26s %s\n", listing[i].name, listing[i].summary);
}

static int add_schedule(struct scripts *scripts, struct measuring *measuring, struct arena *arena,
                        const struct scripts_target *target, const struct scripts_listing *schedule,
                        struct error *error)
{
    for (size_t i = 0; i < schedule->example_count; i++) {
        measuring->items = memory_resize(measuring->items,
                                         (measuring->count + 1) * sizeof *measuring->items);
        struct measured *item = &measuring->items[measuring->count];
        memset(item, 0, sizeof *item);
        item->schedule = schedule;
        item->parameters = with_settings(measuring->options, arena, schedule->examples[i]);
        struct scripts_request request = {
            .schedule = schedule->name, .parameters = item->parameters, .target = target};
        if (scripts_render(scripts, &request, &item->rendering, error) != 0)
            return -1;
        measuring->count++;
    }
    return 0;
}

static int print_all(const struct measuring *measuring, const struct scripts_target *target,
                     struct error *error)
{
    size_t spilling = 0;
    printf("Cycles of each pipe for one pass through a loop, without the loops inside it, by one\n"
           "warp on each of the SM's four partitions, counted in PTX for %s (alu is an upper\n"
           "bound: the assembler folds addresses). The largest is the loop's limit.\n\n",
           target->name);
    for (size_t i = 0; i < measuring->count; i++) {
        const struct measured *item = &measuring->items[i];
        if (item->status != 0)
            return error_set(error, item->error.code, "%s", item->error.text);
        print_measured(target, item);
        spilling += item->resources.spill_stores + item->resources.spill_loads > 0;
    }
    printf("\n%zu kernels, %zu with spills\n", measuring->count, spilling);
    return 0;
}

static int show_resources(struct scripts *scripts, const struct kernels_options *options,
                          struct arena *arena, const struct scripts_listing *listing, size_t count,
                          struct error *error)
{
    struct scripts_target target;
    struct measuring measuring = {.options = options};
    int status = find_target(options, &target, error);
    if (status == 0 && strcmp(options->arch, "host") == 0)
        status = error_set(error, ERROR_USAGE, "--resources needs the --arch of a GPU, as sm_86");
    for (size_t i = 0; status == 0 && i < count; i++)
        if (is_chosen(options, listing[i].name))
            status = add_schedule(scripts, &measuring, arena, &target, &listing[i], error);
    if (status == 0) {
        measure_all(&measuring);
        status = print_all(&measuring, &target, error);
    }
    for (size_t i = 0; i < measuring.count; i++) {
        scripts_rendering_free(&measuring.items[i].rendering);
        memory_free(measuring.items[i].loops);
    }
    memory_free(measuring.items);
    return status;
}

/* ---- estimate */

static int show_estimate(const struct kernels_options *options, struct error *error)
{
    struct scripts_target target;
    double megahertz = options->megahertz, speed = options->gigabytes_a_second;
    if (options->operands[0] || options->set)
        return error_set(error, ERROR_USAGE,
                         "--estimate takes the kernels and parameters of the model, not \"%s\"",
                         options->operands[0] ? options->operands[0] : options->set);
    if (find_target(options, &target, error) != 0)
        return -1;
    const struct jit_gpu *usual = jit_usual_gpu(options->arch);
    if (usual) {
        megahertz = megahertz != 0 ? megahertz : usual->megahertz;
        speed = speed != 0 ? speed : usual->gigabytes_a_second;
    }
    if (!target.arch || !(megahertz > 0) || !(speed > 0))
        return error_set(error, ERROR_USAGE,
                         "--estimate for --arch %s: give the --clock and the --bandwidth of a GPU",
                         options->arch);
    const struct estimate_options estimate = {
        .model = options->estimate,
        .draft = options->draft,
        .contexts = options->contexts,
        .prefill = options->prefill,
        .schedules = options->schedules,
        .cuda_libraries = options->cuda_libraries,
        .arch = options->arch,
        .sms = target.sms,
        .shared_per_sm = target.shared_per_sm,
        .rows = options->rows,
        .kv_bits = options->kv_bits,
        .megahertz = megahertz,
        .gigabytes_a_second = speed,
    };
    return kernels_estimate(&estimate, error);
}

/* ---- the command */

/* Of the table: those of --estimate lie together. */
enum { OPTIONS = 16, ESTIMATE_FIRST = 4, ESTIMATE_LAST = 10 };

static void list_options(struct kernels_options *options, struct option_entry entries[OPTIONS],
                         bool given[OPTIONS])
{
    const struct option_entry list[OPTIONS] = {
        {0, "emit", "NAME",
         "Print the source generated for kernel NAME. Parameters come from --set or\n"
         "arguments name=value; without any, the schedule's first example is taken.",
         OPTION_TEXT, &options->emit},
        {0, "set", "NAME=VALUE,...",
         "Parameters, tuning ones included; may be repeated. With --resources they replace\n"
         "the examples'.",
         OPTION_TEXT, &options->set},
        {0, "resources", NULL,
         "Compile kernels for --arch and print registers, spills, shared memory, CTAs that\n"
         "fit an SM, and cycles of each pipe by loop.",
         OPTION_FLAG, &options->resources},
        {0, "estimate", "MODEL",
         "Estimate a verify pass of a model on --arch: its launches, what each asks of every\n"
         "pipe, and milliseconds.",
         OPTION_TEXT, &options->estimate},
        {0, "draft", "FOLDER", "With --estimate: the draft, for which a pass keeps some layers.",
         OPTION_TEXT, &options->draft},
        {0, "rows", "COUNT", "With --estimate: rows of the pass, 1 to 8. Default: 8.", OPTION_U32,
         &options->rows},
        {0, "contexts", "LIST",
         "With --estimate: tokens that the last row sees. Default: 1024,8192,32768.", OPTION_TEXT,
         &options->contexts},
        {0, "prefill", "LENGTHS",
         "With --estimate: prompts of so many tokens in place of a verify pass, as\n"
         "8192,32768,131072.",
         OPTION_TEXT, &options->prefill},
        {0, "kv-bits", "BITS", "With --estimate: of a cached number, 2 to 8 or 16. Default: 3.",
         OPTION_U32, &options->kv_bits},
        {0, "clock", "MHZ",
         "With --estimate: of the SMs. Default: 1510 for sm_86 (RTX 3090), 1980 for sm_90.",
         OPTION_DOUBLE, &options->megahertz},
        {0, "bandwidth", "GB/S",
         "With --estimate: of a copy, reads and writes together. Default: 876 for sm_86, 4181\n"
         "for sm_90.",
         OPTION_DOUBLE, &options->gigabytes_a_second},
        {0, "arch", "ARCH", "sm_80, sm_86, sm_89, sm_90, ... or host. Default: sm_86.", OPTION_TEXT,
         &options->arch},
        {0, "sms", "COUNT", "Multiprocessors of the GPU meant. Default: a usual one's.", OPTION_U32,
         &options->sms},
        {0, "shared", "BYTES", "Shared memory of one multiprocessor. Default: a usual one's.",
         OPTION_U32, &options->shared_per_sm},
        {0, "schedules", "FOLDER", "Lua, schedules and templates that replace the built-in ones.",
         OPTION_TEXT, &options->schedules},
        {0, "cuda-libraries", "FOLDER", "Where to look first for libnvrtc.", OPTION_TEXT,
         &options->cuda_libraries},
    };
    memcpy(entries, list, sizeof list);
    for (size_t i = 0; i < OPTIONS; i++)
        entries[i].given = &given[i];
}

/* A number that is given has a meaning: 0 is what an absent option leaves. */
static bool is_zero(const struct option_entry *entry)
{
    return *entry->given &&
           ((entry->kind == OPTION_U32 && *(const u32 *)entry->value == 0) ||
            (entry->kind == OPTION_DOUBLE && !(*(const double *)entry->value > 0)));
}

static int check_options(const struct kernels_options *options,
                         const struct option_entry entries[OPTIONS], struct error *error)
{
    if ((options->emit != NULL) + options->resources + (options->estimate != NULL) > 1)
        return error_set(error, ERROR_USAGE,
                         "expected one of --emit, --resources and --estimate, got several");
    for (size_t i = 0; i < OPTIONS; i++) {
        if (*entries[i].given && i >= ESTIMATE_FIRST && i <= ESTIMATE_LAST && !options->estimate)
            return error_set(error, ERROR_USAGE, "option --%s has a meaning with --estimate MODEL",
                             entries[i].name);
        if (is_zero(&entries[i]))
            return error_set(error, ERROR_USAGE, "option --%s expects a number above 0",
                             entries[i].name);
    }
    if (options->kv_bits != 16 && (options->kv_bits < 2 || options->kv_bits > 8))
        return error_set(error, ERROR_USAGE, "option --kv-bits expects 2 to 8 or 16, got %" PRIu32,
                         options->kv_bits);
    return 0;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct kernels_options options = {.arch = "sm_86", .rows = ENGINE_ROWS, .kv_bits = 3};
    struct option_entry entries[OPTIONS];
    bool given[OPTIONS] = {false};
    struct error error;
    struct scripts *scripts = NULL;
    struct scripts_listing *listing = NULL;
    size_t count = 0;
    list_options(&options, entries, given);
    options_parse(command, entries, OPTIONS, argc, argv, options.operands, 0, OPERANDS_MAX - 1);
    struct arena *arena = arena_create();
    int status = check_options(&options, entries, &error);
    if (status == 0)
        status = read_settings(&options, arena, argc, argv, &error);
    if (status == 0)
        status = scripts_open(&scripts, options.schedules, &error);
    if (status == 0)
        status = scripts_schedules(scripts, arena, &listing, &count, &error);
    if (status == 0)
        status = check_names(&options, listing, count, &error);
    if (status == 0 && options.emit)
        status = emit_kernel(scripts, &options, listing, count, &error);
    else if (status == 0 && options.estimate)
        status = show_estimate(&options, &error);
    else if (status == 0 && options.resources)
        status = show_resources(scripts, &options, arena, listing, count, &error);
    else if (status == 0)
        list_kernels(&options, listing, count);
    scripts_close(scripts);
    arena_destroy(arena);
    return status == 0 ? 0 : command_fail(&error);
}

const struct command command_kernels = {
    .name = "kernels",
    .summary = "list the kernels, print their source, or what they would cost on a GPU",
    .synopsis = "elpis kernels\n"
                "elpis kernels --emit NAME [NAME=VALUE...] [--arch ARCH]\n"
                "elpis kernels --resources [--arch ARCH] [KERNEL...] [NAME=VALUE...]\n"
                "elpis kernels --estimate MODEL [--arch ARCH] [OPTION...]",
    .description =
        "Kernels are generated from Lua schedules. Without options their names are listed. No\n"
        "GPU is needed; --resources and --estimate need NVRTC.\n"
        "\n"
        "--estimate says what a verify pass would take on a GPU that is not at hand. The pass is\n"
        "planned and launched as always, on paper; every kernel is compiled for --arch and its\n"
        "PTX followed with the arguments of the launch, so that loops turn as often as there.\n"
        "Printed are, for each kernel, registers, spills, shared memory, CTAs an SM, and the time\n"
        "that each pipe of the busiest SM, the memory (dram) and the longest warp's chain of\n"
        "instructions would take alone; then what the model makes of them, which is printed too.\n"
        "It is an estimate. With --prefill it is made of the pieces of prompts. Of a model only\n"
        "the shapes are looked at: one without weights will do (`elpis synth 27b FOLDER\n"
        "--hollow`).",
    .epilogue = "EXAMPLES\n"
                "    elpis kernels --emit linear_main --arch sm_86\n"
                "    elpis kernels --resources --arch sm_86 linear_main cta_warps=4\n"
                "    elpis kernels --estimate /tmp/shapes --arch sm_86 --clock 1695",
    .run = run,
};
