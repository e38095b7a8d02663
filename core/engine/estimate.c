/* estimate.c - counts a verify pass, or a piece of a prompt (estimate.h).
 *
 * Launches that share kernel and buffers do the same, so each kernel is followed once a context,
 * with the arguments of its first launch. Where a launch is long not all of its CTAs are followed:
 * between two that are alike the others are taken to be, on a line from one to the other. So a grid
 * whose CTAs get shorter and shorter is counted well, and one that goes up and down only as far as
 * the knots that are always followed see it.
 *
 * CTAs are then dealt out as the hardware does it: in order, each to the place on an SM that is
 * free first. So a launch of CTAs of very different length takes as long as what came together in
 * one place, not as many times its longest CTA as there are waves.
 *
 * Launches are summed, also those that run beside each other: weights of prompts (prefill.c).
 *
 * Bytes of kernels are those of traffic.h where a kernel is known to move them: weights of a
 * linear, a layer's cache, a layer's state. What is left (logits, norms, what rows leave for the
 * commit) belongs to no kernel here.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_private.h"
#include "engine/estimate.h"
#include "jit/occupancy.h"
#include "jit/trace.h"

enum {
    KNOTS = 16,                    /* CTAs of a grid that are followed in any case, and one more */
    KNOTS_OF_LONG = 4,             /* where one alone has as much as is enough for a sixteenth */
    INSTRUCTIONS_ENOUGH = 4000000, /* of a launch: from here on alike CTAs are not */
    ALIKE = 32,                    /* differ by one in so many instructions */
    PARTITIONS = 4,                /* of an SM */
};

/* The model: a launch takes the longest of
 *
 *     its busiest pipe, on the SM with most to do / PIPE_SHARE
 *     its bytes at the speed of a copy / DRAM_SHARE
 *     the chain: CTAs in turn in a place, each CTA_CYCLES before its first work (dealt out, its
 *     first loads), then its longest warp, an instruction in CHAIN_CYCLES: it waits for its own
 *     results
 *
 * and LAUNCH_SECONDS more, in which a launch begins and ends. DRAM_SHARE is assumed, the others
 * were fitted to an H200 with the 27B (bench/NOTES.md); none to a GPU of sm_86. */
#define PIPE_SHARE 0.62
#define DRAM_SHARE 0.9
#define CHAIN_CYCLES 5.2
#define CTA_CYCLES 6000.0
#define LAUNCH_SECONDS 2e-6

/* A kernel as it was compiled for the GPU meant. */
struct compiled {
    const struct jit_kernel *kernel;
    struct trace *trace;
    struct device_resources resources;
};

/* What the CTAs of a launch do. */
struct grid {
    struct trace_counts *counts; /* [CTAs] */
    u64 followed;                /* instructions */
};

/* A launch of a piece that was followed. Those of the next pieces with the same arguments do the
 * same: what the memory behind them says of positions moves addresses alone. */
struct known {
    u32 rows; /* of the piece */
    u64 *arguments;
    u32 argument_count;
    struct estimate_kernel kernel;
};

struct estimate {
    struct engine *engine;
    char *cuda_libraries;
    struct compiled *compiled;
    size_t compiled_count;
    struct estimate_kernel *kernels;
    size_t count;
    struct known *known;
    size_t known_count;
    struct traffic traffic;
};

int estimate_open(struct estimate **out, const char *model_folder, const char *as,
                  const struct engine_options *options, struct error *error)
{
    struct engine_options paper = *options;
    struct estimate *estimate = memory_alloc(sizeof *estimate);
    paper.device.paper = true;
    paper.device.as = as;
    if (options->device.cuda_libraries)
        estimate->cuda_libraries = memory_copy_text(slice_of(options->device.cuda_libraries));
    if (engine_open(&estimate->engine, model_folder, &paper, error) < 0) {
        estimate_close(estimate);
        return -1;
    }
    *out = estimate;
    return 0;
}

void estimate_close(struct estimate *estimate)
{
    if (!estimate)
        return;
    for (size_t i = 0; i < estimate->compiled_count; i++)
        trace_close(estimate->compiled[i].trace);
    for (size_t i = 0; i < estimate->known_count; i++)
        memory_free(estimate->known[i].arguments);
    engine_close(estimate->engine);
    memory_free(estimate->known);
    memory_free(estimate->cuda_libraries);
    memory_free(estimate->compiled);
    memory_free(estimate->kernels);
    memory_free(estimate);
}

const struct engine *estimate_engine(const struct estimate *estimate)
{
    return estimate->engine;
}

struct traffic estimate_traffic(const struct estimate *estimate)
{
    return estimate->traffic;
}

/* ---- compiling */

static int compile(struct estimate *estimate, const struct jit_kernel *kernel,
                   struct compiled **result, struct error *error)
{
    const struct device_info *info = device_info(estimate->engine->device);
    const struct slice source = jit_kernel_source(kernel);
    struct buffer image = {0};
    char virtual_arch[32];
    for (size_t i = 0; i < estimate->compiled_count; i++)
        if (estimate->compiled[i].kernel == kernel) {
            *result = &estimate->compiled[i];
            return 0;
        }
    snprintf(virtual_arch, sizeof virtual_arch, "compute_%u", info->arch);
    estimate->compiled = memory_resize(estimate->compiled,
                                       (estimate->compiled_count + 1) * sizeof **result);
    struct compiled *compiled = &estimate->compiled[estimate->compiled_count];
    memset(compiled, 0, sizeof *compiled);
    compiled->kernel = kernel;
    int failed = device_cross_compile(estimate->cuda_libraries, source, jit_kernel_name(kernel),
                                      info->target, &image, &compiled->resources, error) ||
                 device_cross_compile(estimate->cuda_libraries, source, jit_kernel_name(kernel),
                                      virtual_arch, &image, NULL, error) ||
                 trace_open(&compiled->trace, buffer_slice(&image), info->arch, error);
    buffer_free(&image);
    if (failed)
        return -1;
    estimate->compiled_count++;
    *result = compiled;
    return 0;
}

/* ---- bytes */

static u64 group_bytes(const struct linear_set *set, const struct jit_kernel *kernel)
{
    for (u32 i = 0; i < set->count; i++) {
        const struct linear_group *group = &set->groups[i];
        u64 bytes = 0;
        for (u32 part = 0; group->main == kernel && part < group->count; part++)
            bytes += model_linear_bytes(group->sources[part], 1);
        if (bytes)
            return bytes;
    }
    for (u32 i = 0; i < set->plain_count; i++)
        if (set->plains[i].product == kernel)
            return model_linear_bytes(set->plains[i].source, 1);
    return 0;
}

/* Weights of the first linear that runs the kernel: all that do have the same shape. */
static u64 weight_bytes(const struct engine *engine, const struct jit_kernel *kernel)
{
    u64 bytes = group_bytes(&engine->head, kernel);
    for (u32 i = 0; !bytes && i < engine->model->config.layers; i++) {
        const struct device_layer *layer = &engine->layers[i];
        const struct linear_set *sets[] = {&layer->mixer_in, &layer->mixer_out, &layer->mlp.gate_up,
                                           &layer->mlp.down};
        for (size_t j = 0; !bytes && j < COUNT_OF(sets); j++)
            bytes = group_bytes(sets[j], kernel);
    }
    return bytes;
}

static u64 gate_bytes(const struct engine *engine)
{
    for (u32 i = 0; i < engine->model->config.layers; i++) {
        const struct model_layer *layer = &engine->model->layers[i];
        if (!layer->attention)
            return model_linear_bytes(&layer->in_a, 1) + model_linear_bytes(&layer->in_b, 1);
    }
    return 0;
}

static u64 kernel_bytes(const struct estimate *estimate, const struct jit_kernel *kernel)
{
    const struct engine *engine = estimate->engine;
    if (kernel == engine->kernels.attend)
        return estimate->traffic.cache / engine->attention.count;
    if (kernel == engine->kernels.step)
        return estimate->traffic.state / engine->gdn.count;
    for (u32 i = 0; i < engine->model->config.layers; i++)
        if (kernel == engine->layers[i].input)
            return gate_bytes(engine);
    return weight_bytes(engine, kernel);
}

/* ---- following */

static bool read_memory(void *user, u64 from, void *to, size_t bytes)
{
    return device_paper_read(user, from, to, bytes);
}

static int follow_cta(const struct compiled *compiled, const struct trace_launch *launch,
                      struct grid *grid, u32 cta, struct error *error)
{
    struct trace_counts *counts = &grid->counts[cta];
    memset(counts, 0, sizeof *counts);
    if (trace_cta(compiled->trace, launch, cta, counts, error) < 0)
        return -1;
    grid->followed += counts->instructions;
    return 0;
}

static bool alike(const struct trace_counts *a, const struct trace_counts *b)
{
    const u64 more = a->instructions > b->instructions ? a->instructions : b->instructions;
    const u64 less = a->instructions > b->instructions ? b->instructions : a->instructions;
    return (more - less) * ALIKE <= more;
}

static u64 between(u64 from, u64 to, double part)
{
    return (u64)((double)from + ((double)to - (double)from) * part + 0.5);
}

/* The CTAs between two that were followed, on a line between both. */
static void fill_between(struct trace_counts *counts, u32 first, u32 last)
{
    const struct trace_counts *from = &counts[first], *to = &counts[last];
    for (u32 cta = first + 1; cta < last; cta++) {
        const double part = (double)(cta - first) / (double)(last - first);
        struct trace_counts *count = &counts[cta];
        count->warps = from->warps;
        count->instructions = between(from->instructions, to->instructions, part);
        count->tensor_instructions = between(from->tensor_instructions, to->tensor_instructions,
                                             part);
        count->longest = between(from->longest, to->longest, part);
        for (u32 pipe = 0; pipe < PIPE_COUNT; pipe++)
            count->cycles[pipe] = between(from->cycles[pipe], to->cycles[pipe], part);
    }
}

/* Counts the CTAs between two that are known: follows the middle one and goes on in both halves,
 * until neighbours are alike and enough was followed, or none is left. */
static int follow_between(const struct compiled *compiled, const struct trace_launch *launch,
                          struct grid *grid, u32 first, u32 last, struct error *error)
{
    const u32 middle = first + (last - first) / 2;
    if (last - first < 2)
        return 0;
    if (grid->followed >= INSTRUCTIONS_ENOUGH && alike(&grid->counts[first], &grid->counts[last])) {
        fill_between(grid->counts, first, last);
        return 0;
    }
    return follow_cta(compiled, launch, grid, middle, error) ||
                   follow_between(compiled, launch, grid, first, middle, error) ||
                   follow_between(compiled, launch, grid, middle, last, error)
               ? -1
               : 0;
}

/* Knots first, spread over the grid, then what lies between them. */
static int follow_grid(const struct compiled *compiled, const struct trace_launch *launch,
                       struct grid *grid, struct error *error)
{
    const u32 last = launch->grid - 1;
    if (follow_cta(compiled, launch, grid, 0, error) < 0)
        return -1;
    const u32 wanted = grid->followed < INSTRUCTIONS_ENOUGH / KNOTS ? KNOTS : KNOTS_OF_LONG;
    const u32 knots = last < wanted ? last : wanted;
    for (u32 i = 1; i <= knots; i++)
        if (follow_cta(compiled, launch, grid, (u32)((u64)last * i / knots), error))
            return -1;
    for (u32 i = 0; i < knots; i++)
        if (follow_between(compiled, launch, grid, (u32)((u64)last * i / knots),
                           (u32)((u64)last * (i + 1) / knots), error))
            return -1;
    return 0;
}

/* ---- dealing out CTAs to SMs */

/* The place that is free first; of several the first. */
static u32 first_free(const double *places, u32 count)
{
    u32 best = 0;
    for (u32 i = 1; i < count; i++)
        if (places[i] < places[best])
            best = i;
    return best;
}

double estimate_deal(const double *cycles, u32 ctas, u32 places, u32 *place)
{
    double *busy = memory_alloc(places * sizeof *busy), last = 0; /* until free */
    for (u32 cta = 0; cta < ctas; cta++) {
        place[cta] = first_free(busy, places);
        busy[place[cta]] += cycles[cta];
        if (busy[place[cta]] > last)
            last = busy[place[cta]];
    }
    memory_free(busy);
    return last;
}

/* The chain of the grid and the busiest SM of each pipe. Places go round the SMs: one on each, then
 * a second one. */
static void deal(struct estimate_kernel *kernel, const struct grid *grid, u32 sms)
{
    const u32 ctas = kernel->geometry.grid;
    double *cycles = memory_alloc(ctas * sizeof *cycles);
    u32 *place = memory_alloc(ctas * sizeof *place);
    double(*of_sm)[PIPE_COUNT] = memory_alloc(sms * sizeof *of_sm);
    for (u32 cta = 0; cta < ctas; cta++)
        cycles[cta] = CTA_CYCLES + CHAIN_CYCLES * (double)grid->counts[cta].longest;
    kernel->chain = estimate_deal(cycles, ctas,
                                  sms * (kernel->ctas_per_sm ? kernel->ctas_per_sm : 1), place);
    for (u32 cta = 0; cta < ctas; cta++)
        for (u32 pipe = 0; pipe < PIPE_COUNT; pipe++) {
            double *sum = &of_sm[place[cta] % sms][pipe];
            *sum += (double)grid->counts[cta].cycles[pipe] / PARTITIONS;
            if (*sum > kernel->busiest[pipe])
                kernel->busiest[pipe] = *sum;
        }
    memory_free(of_sm);
    memory_free(place);
    memory_free(cycles);
}

static void add_cta(struct estimate_kernel *kernel, const struct trace_counts *counts)
{
    kernel->warps += counts->warps;
    kernel->instructions += counts->instructions;
    kernel->tensor_instructions += counts->tensor_instructions;
    for (u32 pipe = 0; pipe < PIPE_COUNT; pipe++)
        kernel->cycles[pipe] += (double)counts->cycles[pipe];
}

static int follow(struct estimate *estimate, const struct device_paper_launch *from,
                  const struct compiled *compiled, struct estimate_kernel *kernel,
                  struct error *error)
{
    struct device *device = estimate->engine->device;
    const struct trace_launch launch = {.grid = kernel->geometry.grid,
                                        .block = kernel->geometry.block,
                                        .arguments = from->arguments,
                                        .argument_count = from->count,
                                        .read = read_memory,
                                        .user = device};
    struct grid grid = {.counts = memory_alloc(launch.grid * sizeof *grid.counts)};
    const int status = follow_grid(compiled, &launch, &grid, error);
    for (u32 cta = 0; status == 0 && cta < launch.grid; cta++)
        add_cta(kernel, &grid.counts[cta]);
    if (status == 0)
        deal(kernel, &grid, device_info(device)->sms);
    memory_free(grid.counts);
    return status;
}

/* ---- a pass */

static struct estimate_kernel *find_kernel(struct estimate *estimate, const char *plan)
{
    for (size_t i = 0; i < estimate->count; i++)
        if (estimate->kernels[i].plan == plan)
            return &estimate->kernels[i];
    return NULL;
}

static const struct estimate_kernel *find_known(const struct estimate *estimate,
                                                const struct device_paper_launch *launch, u32 rows,
                                                const char *plan)
{
    for (size_t i = 0; i < estimate->known_count; i++) {
        const struct known *known = &estimate->known[i];
        if (known->kernel.plan == plan && known->rows == rows &&
            known->argument_count == launch->count &&
            memcmp(known->arguments, launch->arguments, launch->count * sizeof(u64)) == 0)
            return &known->kernel;
    }
    return NULL;
}

static void remember(struct estimate *estimate, const struct device_paper_launch *launch, u32 rows,
                     const struct estimate_kernel *kernel)
{
    estimate->known = memory_resize(estimate->known,
                                    (estimate->known_count + 1) * sizeof *estimate->known);
    struct known *known = &estimate->known[estimate->known_count++];
    *known = (struct known){.rows = rows,
                            .arguments = memory_alloc((launch->count + 1) * sizeof(u64)),
                            .argument_count = launch->count,
                            .kernel = *kernel};
    memcpy(known->arguments, launch->arguments, launch->count * sizeof(u64));
}

/* piece: its rows; 0: a verify pass. */
static int count_launch(struct estimate *estimate, const struct device_paper_launch *launch,
                        u32 piece, struct error *error)
{
    const struct device_info *info = device_info(estimate->engine->device);
    const struct jit_kernel *from = jit_kernel_of(estimate->engine->jit, launch->function);
    struct compiled *compiled;
    struct estimate_kernel *kernel = from ? find_kernel(estimate, jit_kernel_plan(from)) : NULL;
    if (kernel) {
        kernel->launches++;
        return 0;
    }
    if (!from)
        return error_set(error, ERROR_DEVICE, "a launch of a kernel that nobody requested");
    if (compile(estimate, from, &compiled, error) < 0)
        return -1;
    const struct estimate_kernel *known =
        piece ? find_known(estimate, launch, piece, jit_kernel_plan(from)) : NULL;
    estimate->kernels = memory_resize(estimate->kernels, (estimate->count + 1) * sizeof *kernel);
    kernel = &estimate->kernels[estimate->count++];
    if (known) {
        *kernel = *known;
        return 0;
    }
    *kernel = (struct estimate_kernel){
        .name = jit_kernel_name(from),
        .plan = jit_kernel_plan(from),
        .launches = 1,
        .geometry = *jit_kernel_geometry(from),
        .resources = compiled->resources,
        .ctas_per_sm = occupancy_ctas(info->arch, info->shared_per_sm, jit_kernel_geometry(from),
                                      &compiled->resources),
        .bytes = piece ? prefill_kernel_bytes(estimate->engine, from, piece)
                       : kernel_bytes(estimate, from)};
    if (follow(estimate, launch, compiled, kernel, error) < 0)
        return -1;
    if (piece)
        remember(estimate, launch, piece, kernel);
    return 0;
}

/* All launches since the list was cleared. */
static int count_launches(struct estimate *estimate, u32 piece,
                          const struct estimate_kernel **kernels, size_t *count,
                          struct error *error)
{
    size_t launch_count = 0;
    const struct device_paper_launch *launches = device_paper_launches(estimate->engine->device,
                                                                       &launch_count);
    estimate->count = 0;
    for (size_t i = 0; i < launch_count; i++)
        if (count_launch(estimate, &launches[i], piece, error) < 0)
            return -1;
    *kernels = estimate->kernels;
    *count = estimate->count;
    return 0;
}

static int launch_verify(struct engine *engine, u32 context, u32 rows, struct error *error)
{
    struct engine_proposal chain = {.rows = rows, .parent = {0, 0, 1, 2, 3, 4, 5, 6}};
    for (u32 row = 0; row < rows; row++)
        chain.token[row] = row;
    engine->position = context - rows;
    tree_describe(&chain, engine->position, engine->round_host);
    if (engine->graphs.decode)
        device_graph_destroy(engine->device, engine->graphs.decode);
    engine->graphs.decode = NULL; /* so that it is recorded, that is launched, again */
    device_paper_clear(engine->device);
    return decode_describe(engine, engine->round_host, error) || decode_pass(engine, error) ||
                   sampler_launch(engine, error)
               ? -1
               : 0;
}

int estimate_verify(struct estimate *estimate, u32 context, u32 rows,
                    const struct estimate_kernel **kernels, size_t *count, struct error *error)
{
    struct engine *engine = estimate->engine;
    const struct engine_sampling greedy = {.top_p = 1, .repetition = 1};
    if (rows < 1 || rows > ROWS || context < rows || context > engine->context)
        return error_set(error, ERROR_USAGE,
                         "a pass of %u rows at %u tokens: expected 1 to %d rows"
                         " and at most %u tokens",
                         rows, context, ROWS, engine->context);
    if (sampler_begin(engine, &greedy, NULL, 0, error) < 0 ||
        launch_verify(engine, context, rows, error) < 0)
        return -1;
    const struct traffic_case of = {engine->model, engine->drafter ? engine->draft : NULL,
                                    engine->kv_bits, engine->position};
    estimate->traffic = traffic_verify(&of, rows, false);
    return count_launches(estimate, 0, kernels, count, error);
}

int estimate_piece(struct estimate *estimate, u32 position, u32 rows,
                   const struct estimate_kernel **kernels, size_t *count, struct error *error)
{
    struct engine *engine = estimate->engine;
    if (rows < 1 || rows > engine->piece || position % PAGE || position > engine->context - rows)
        return error_set(error, ERROR_USAGE,
                         "a piece of %u rows at position %u: expected 1 to %u rows, a multiple of "
                         "%d, and at most %u tokens in all",
                         rows, position, engine->piece, PAGE, engine->context);
    u32 *tokens = memory_alloc(rows * sizeof *tokens);
    engine->position = position;
    device_paper_clear(engine->device);
    int status = prefill_piece(engine, tokens, rows, NULL, error);
    memory_free(tokens);
    engine->position = position; /* bytes are counted as the launches were made */
    return status < 0 ? -1 : count_launches(estimate, rows, kernels, count, error);
}

u32 estimate_piece_rows(const struct estimate *estimate)
{
    return estimate->engine->piece;
}

/* ---- times */

const char *const estimate_limits[LIMIT_COUNT] = {"tensor", "alu",   "fma",  "xu",
                                                  "memory", "issue", "dram", "chain"};

double estimate_time_of_bytes(u64 bytes, const struct estimate_gpu *gpu)
{
    return (double)bytes / gpu->bytes_a_second / DRAM_SHARE;
}

struct estimate_time estimate_time(const struct estimate_kernel *kernel,
                                   const struct estimate_gpu *gpu)
{
    struct estimate_time time = {0};
    double most = 0;
    for (u32 pipe = 0; pipe < PIPE_COUNT; pipe++)
        time.seconds[pipe] = kernel->busiest[pipe] / gpu->hertz;
    time.seconds[LIMIT_DRAM] = (double)kernel->bytes / gpu->bytes_a_second;
    time.seconds[LIMIT_CHAIN] = kernel->chain / gpu->hertz;
    for (u32 i = 0; i < LIMIT_COUNT; i++) {
        const double share = i == LIMIT_DRAM ? DRAM_SHARE : i == LIMIT_CHAIN ? 1 : PIPE_SHARE;
        if (time.seconds[i] > time.floor)
            time.floor = time.seconds[i];
        if (time.seconds[i] / share > most) {
            most = time.seconds[i] / share;
            time.limit = i;
        }
    }
    time.estimate = most + LAUNCH_SECONDS;
    return time;
}

void estimate_describe(struct buffer *text)
{
    buffer_format(
        text,
        "A launch takes the longest of: its busiest pipe / %g, on the SM with most to do; its "
        "bytes at\n"
        "the speed of a copy / %g; its chain: the CTAs that one place on an SM gets in turn, each "
        "%g\n"
        "cycles before it works and its longest warp an instruction in %g cycles. And %g us more "
        "to\n"
        "begin and end. CTAs go in order to the place that is free first. The share of a copy's "
        "speed\n"
        "is assumed, the other constants were fitted to an H200; none to a GPU of sm_86.\n",
        PIPE_SHARE, DRAM_SHARE, CTA_CYCLES, CHAIN_CYCLES, LAUNCH_SECONDS * 1e6);
}
