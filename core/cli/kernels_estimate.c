/* kernels_estimate.c - what a verify pass, or a prompt, would take on a GPU that is not there.
 *
 * The counting and the model are engine/estimate.h's. The first context gets a table of all
 * kernels; of the others, whose kernels differ only where they read the cache, the attention and
 * the sums are shown. A prompt is its pieces; those that are full differ in their position alone,
 * and their time grows with it on a line, so the first and the last one stand for all.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/kernels_estimate.h"

enum {
    TILE_BYTES = 128,
    PARTITIONS = 4,
    PROMPT_MOST = 1 << 24,          /* tokens */
    STEP_PRODUCTS = 128 * 128 * 32, /* of a step of prefill_gemm; 2,048 an instruction */
    MMA_PRODUCTS = 16 * 8 * 16,
};

/* Of one context. */
struct sums {
    u32 launches;
    u64 bytes;
    double seconds[LIMIT_COUNT]; /* each limit alone */
    double floor, estimate;
};

struct report {
    const struct estimate_options *options;
    struct estimate_gpu gpu;
    const struct estimate_kernel *kernels;
    size_t count;
    u32 piece; /* rows of a prompt's pieces */
};

/* ---- the head */

static void print_head(const struct report *report, const struct engine *engine)
{
    const struct estimate_options *o = report->options;
    struct buffer text = {0};
    estimate_describe(&text);
    printf("ESTIMATE, not a measurement: ");
    if (o->prefill)
        printf("prompts, in pieces of %" PRIu32 " rows,", report->piece);
    else
        printf("a verify of %" PRIu32 " rows", o->rows);
    printf(" of %s%s on %s with %" PRIu32 " SMs of %" PRIu32
           " KiB,\n%g MHz, %g GB/s, cache of %" PRIu32 " bits.\n\n%s",
           engine_model(engine)->name, o->draft ? " with a draft" : "", o->arch, o->sms,
           o->shared_per_sm / 1024, o->megahertz, o->gigabytes_a_second, o->kv_bits, text.data);
    printf(
        "Instructions are those of the PTX for %s, followed with the launch's own arguments; the "
        "assembler\nfolds addresses, so alu and issue are upper bounds, tensor is exact. %s\n"
        "floor: the longest column, were nothing ever waited for.\n",
        o->arch,
        o->prefill ? "Operands, sums and rows\nthat kernels hand on go through the memory."
                   : "Activations between kernels\nare taken for found in the L2.");
    buffer_free(&text);
}

/* ---- the tables */

static void add_kernel(struct sums *sums, const struct estimate_kernel *kernel,
                       const struct estimate_time *time)
{
    sums->launches += kernel->launches;
    sums->bytes += kernel->launches * kernel->bytes;
    for (u32 i = 0; i < LIMIT_COUNT; i++)
        sums->seconds[i] += kernel->launches * time->seconds[i];
    sums->floor += kernel->launches * time->floor;
    sums->estimate += kernel->launches * time->estimate;
}

/* What belongs to no kernel. */
static void add_rest(struct sums *sums, u64 all, const struct estimate_gpu *gpu)
{
    const u64 rest = all > sums->bytes ? all - sums->bytes : 0;
    sums->bytes += rest;
    sums->seconds[LIMIT_DRAM] += (double)rest / gpu->bytes_a_second;
    sums->floor += (double)rest / gpu->bytes_a_second;
    sums->estimate += estimate_time_of_bytes(rest, gpu);
}

/* Of the names in the tables. */
static int name_width(const struct report *report)
{
    size_t width = 18;
    for (size_t i = 0; i < report->count; i++)
        if (strlen(report->kernels[i].name) > width)
            width = strlen(report->kernels[i].name);
    return (int)width;
}

static void print_columns(const struct report *report)
{
    printf("    %-*s %8s %9s", name_width(report), "kernel", "launches", "MB");
    for (u32 i = 0; i < LIMIT_COUNT; i++)
        printf(" %6s", estimate_limits[i]);
    printf(" %-6s %7s %7s\n", "limit", "us", "ms");
}

static void print_kernel(const struct report *report, size_t number,
                         const struct estimate_kernel *kernel, const struct estimate_time *time)
{
    printf("%3zu %-*s %8" PRIu32 " %9.2f", number, name_width(report), kernel->name,
           kernel->launches, (double)kernel->bytes / 1e6);
    for (u32 i = 0; i < LIMIT_COUNT; i++)
        printf(" %6.1f", time->seconds[i] * 1e6);
    printf(" %-6s %7.1f %7.3f\n", estimate_limits[time->limit], time->estimate * 1e6,
           time->estimate * kernel->launches * 1e3);
}

static void print_sums(const struct report *report, const struct sums *sums)
{
    printf("    %-*s %8" PRIu32 " %9.2f", name_width(report), "all, in ms", sums->launches,
           (double)sums->bytes / 1e6);
    for (u32 i = 0; i < LIMIT_COUNT; i++)
        printf(" %6.2f", sums->seconds[i] * 1e3);
    printf(" %-6s %7s %7.3f\n    estimate %.2f ms, floor %.2f ms\n", "", "", sums->estimate * 1e3,
           sums->estimate * 1e3, sums->floor * 1e3);
}

/* What does not depend on the context. */
static void print_resources(const struct report *report)
{
    printf("\nRegisters of a thread, spilled bytes, bytes of shared memory of a CTA, CTAs that fit "
           "an SM; grid\n    %-*s %9s %6s %6s %4s %14s\n",
           name_width(report), "kernel", "registers", "spills", "shared", "CTAs", "CTAs x warps");
    for (size_t i = 0; i < report->count; i++) {
        const struct estimate_kernel *k = &report->kernels[i];
        char grid[32];
        snprintf(grid, sizeof grid, "%" PRIu32 " x %" PRIu32, k->geometry.grid,
                 k->geometry.block / 32);
        printf("%3zu %-*s %9" PRIu32 " %6" PRIu32 " %6" PRIu32 " %4" PRIu32 " %14s\n", i + 1,
               name_width(report), k->name, k->resources.registers,
               k->resources.spill_stores + k->resources.spill_loads,
               k->geometry.shared + k->resources.shared_static, k->ctas_per_sm, grid);
    }
}

static void print_plans(const struct report *report)
{
    printf("\nParameters; numeric ones; tuning\n");
    for (size_t i = 0; i < report->count; i++)
        printf("%3zu %s\n", i + 1, report->kernels[i].plan);
}

/* Cycles of one partition for each 128 bytes of weights; dram: those in which its share of the
 * bandwidth brings them. */
static void print_tiles(const struct report *report)
{
    const double bytes_a_cycle = report->gpu.bytes_a_second / report->gpu.hertz /
                                 report->options->sms / PARTITIONS;
    printf("\nCycles of an SM's partition for 128 bytes of weights\n    %-*s", name_width(report),
           "kernel");
    for (u32 i = 0; i < PIPE_COUNT; i++)
        printf(" %6s", estimate_limits[i]);
    printf(" %6s\n", estimate_limits[LIMIT_DRAM]);
    for (size_t i = 0; i < report->count; i++) {
        const struct estimate_kernel *kernel = &report->kernels[i];
        if (strcmp(kernel->name, "linear_main") != 0)
            continue;
        printf("%3zu %-*s", i + 1, name_width(report), kernel->name);
        for (u32 pipe = 0; pipe < PIPE_COUNT; pipe++)
            printf(" %6.1f", kernel->cycles[pipe] / ((double)kernel->bytes / TILE_BYTES));
        printf(" %6.1f\n", TILE_BYTES / bytes_a_cycle);
    }
}

/* Cycles of one partition for a step of the prompt's products; share: of the tensor pipe. */
static void print_steps(const struct report *report)
{
    printf("\nCycles of an SM's partition for a step of 128 rows x 128 columns x 32 k\n    %-*s",
           name_width(report), "kernel");
    for (u32 i = 0; i < PIPE_COUNT; i++)
        printf(" %6s", estimate_limits[i]);
    printf(" %10s\n", "pipe share");
    for (size_t i = 0; i < report->count; i++) {
        const struct estimate_kernel *kernel = &report->kernels[i];
        if (strcmp(kernel->name, "prefill_gemm") != 0)
            continue;
        const double steps = (double)kernel->tensor_instructions * MMA_PRODUCTS / STEP_PRODUCTS;
        const double alone = kernel->cycles[PIPE_TENSOR] / PARTITIONS / report->options->sms /
                             report->gpu.hertz;
        printf("%3zu %-*s", i + 1, name_width(report), kernel->name);
        for (u32 pipe = 0; pipe < PIPE_COUNT; pipe++)
            printf(" %6.0f", kernel->cycles[pipe] / PARTITIONS / steps);
        printf(" %9.0f%%\n", 100 * alone / estimate_time(kernel, &report->gpu).estimate);
    }
}

static bool reads_cache(const struct estimate_kernel *kernel)
{
    return strncmp(kernel->name, "attention_", 10) == 0 ||
           strncmp(kernel->name, "prefill_attention", 17) == 0;
}

/* The table of the kernels there are, all or those that read the cache; returns the sums. */
static struct sums print_table(const struct report *report, u64 bytes, bool all)
{
    struct sums sums = {0};
    print_columns(report);
    for (size_t i = 0; i < report->count; i++) {
        const struct estimate_time time = estimate_time(&report->kernels[i], &report->gpu);
        add_kernel(&sums, &report->kernels[i], &time);
        if (all || reads_cache(&report->kernels[i]))
            print_kernel(report, i + 1, &report->kernels[i], &time);
    }
    add_rest(&sums, bytes, &report->gpu);
    print_sums(report, &sums);
    return sums;
}

static int print_context(struct report *report, struct estimate *estimate, u32 context, bool all,
                         struct error *error)
{
    if (estimate_verify(estimate, context, report->options->rows, &report->kernels, &report->count,
                        error) < 0)
        return -1;
    printf("\ncontext %" PRIu32 ": MB and us of one launch, then ms of all\n", context);
    print_table(report, traffic_bytes(estimate_traffic(estimate)), all);
    if (all) {
        print_resources(report);
        print_tiles(report);
        print_plans(report);
    }
    fflush(stdout);
    return 0;
}

/* ---- prompts */

static int print_piece(struct report *report, struct estimate *estimate, u32 position, u32 rows,
                       bool all, struct sums *sums, struct error *error)
{
    if (estimate_piece(estimate, position, rows, &report->kernels, &report->count, error) < 0)
        return -1;
    printf("\npiece of %" PRIu32 " rows at %" PRIu32 ": MB and us of one launch, then ms of all\n",
           rows, position);
    *sums = print_table(report, 0, all);
    return 0;
}

/* Of the products alone, were the tensor pipe used without a gap; tokens a second. */
static double products_ceiling(const struct report *report, u32 rows)
{
    double cycles = 0;
    for (size_t i = 0; i < report->count; i++)
        if (strcmp(report->kernels[i].name, "prefill_gemm") == 0)
            cycles += report->kernels[i].launches * report->kernels[i].cycles[PIPE_TENSOR];
    return cycles > 0 ? rows / (cycles / PARTITIONS / report->options->sms / report->gpu.hertz) : 0;
}

/* All but the last token of a prompt go through pieces. first: sums of a full piece at 0. */
static int print_prompt(struct report *report, struct estimate *estimate, u32 length,
                        const struct sums *first, double ceiling, struct error *error)
{
    const u32 full = (length - 1) / report->piece, rest = (length - 1) % report->piece;
    struct sums last = *first, end = {0};
    if (full > 1 && print_piece(report, estimate, (full - 1) * report->piece, report->piece, false,
                                &last, error) < 0)
        return -1;
    if (rest && print_piece(report, estimate, full * report->piece, rest, false, &end, error) < 0)
        return -1;
    const double floor = full * (first->floor + last.floor) / 2 + end.floor;
    const double seconds = full * (first->estimate + last.estimate) / 2 + end.estimate;
    printf("\nprompt of %" PRIu32
           " tokens: estimate %.2f s, %.0f tokens/s (%.0f %% of what the products "
           "alone allow), floor %.2f s\n",
           length, seconds, (length - 1) / seconds,
           ceiling > 0 ? 100 * (length - 1) / seconds / ceiling : 0, floor);
    fflush(stdout);
    return 0;
}

static int print_prompts(struct report *report, struct estimate *estimate,
                         const struct option_numbers *lengths, struct error *error)
{
    struct sums first;
    if (print_piece(report, estimate, 0, report->piece, true, &first, error) < 0)
        return -1;
    const double ceiling = products_ceiling(report, report->piece);
    print_resources(report);
    print_steps(report);
    printf("The products alone, the tensor pipe without a gap: %.0f tokens/s\n", ceiling);
    print_plans(report);
    for (u32 i = 0; i < lengths->count; i++)
        if (print_prompt(report, estimate, lengths->list[i], &first, ceiling, error) < 0)
            return -1;
    return 0;
}

/* ---- the command */

/* The contexts of a verify, or the lengths of prompts. */
static int choose_contexts(const struct estimate_options *options, struct option_numbers *contexts,
                           struct error *error)
{
    const char *text = options->contexts ? options->contexts : "1024,8192,32768";
    if (options->prefill && options->contexts)
        return error_set(error, ERROR_USAGE,
                         "--prefill has the lengths of prompts, --contexts those of a verify pass: "
                         "give one of them");
    if (options->prefill)
        return options_numbers(contexts, "prefill", options->prefill, 2, PROMPT_MOST, error);
    if (options->rows < 1 || options->rows > ENGINE_ROWS)
        return error_set(error, ERROR_USAGE, "option --rows expects 1 to %d, got %" PRIu32,
                         ENGINE_ROWS, options->rows);
    return options_numbers(contexts, "contexts", text, ENGINE_ROWS, UINT32_MAX, error);
}

int kernels_estimate(const struct estimate_options *options, struct error *error)
{
    struct report report = {.options = options,
                            .gpu = {options->megahertz * 1e6, options->gigabytes_a_second * 1e9}};
    struct option_numbers contexts = {0};
    struct estimate *estimate = NULL;
    char as[64];
    if (choose_contexts(options, &contexts, error) < 0)
        return -1;
    snprintf(as, sizeof as, "%s:%" PRIu32 ":%" PRIu32, options->arch, options->sms,
             options->shared_per_sm);
    const struct engine_options engine = {
        .device = {.cuda_libraries = options->cuda_libraries},
        .context = contexts.list[contexts.count - 1],
        .kv_bits = options->kv_bits,
        .schedules = options->schedules,
        .draft = options->draft,
    };
    int status = estimate_open(&estimate, options->model, as, &engine, error);
    if (status == 0) {
        report.piece = estimate_piece_rows(estimate);
        print_head(&report, estimate_engine(estimate));
    }
    if (status == 0 && options->prefill)
        status = print_prompts(&report, estimate, &contexts, error);
    for (u32 i = 0; status == 0 && !options->prefill && i < contexts.count; i++)
        status = print_context(&report, estimate, contexts.list[i], i == 0, error);
    estimate_close(estimate);
    return status;
}
