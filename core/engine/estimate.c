/* estimate.c - counts a verify pass (estimate.h).
 *
 * Launches that share kernel and buffers do the same, so each kernel is followed once a context,
 * with the arguments of its first launch. CTAs go to SMs in turn; an SM is followed with all its
 * CTAs. The one with most cycles is the busiest. Where a launch is long only a few SMs, spread over
 * the GPU, are followed: their mean stands for the rest.
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
    SMS_LEAST = 4,                 /* followed, or all there are */
    INSTRUCTIONS_ENOUGH = 4000000, /* of a launch: from here on no more are */
};

/* A kernel as it was compiled for the GPU meant. */
struct compiled {
    const struct jit_kernel *kernel;
    struct trace *trace;
    struct device_resources resources;
};

struct estimate {
    struct engine *engine;
    char *cuda_libraries;
    struct compiled *compiled;
    size_t compiled_count;
    struct estimate_kernel *kernels;
    size_t count;
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
    engine_close(estimate->engine);
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
        if (kernel == engine->layers[i].convolve)
            return gate_bytes(engine);
    return weight_bytes(engine, kernel);
}

/* ---- following */

static bool read_memory(void *user, u64 from, void *to, size_t bytes)
{
    return device_paper_read(user, from, to, bytes);
}

/* The CTAs that SM `sm` gets. */
static int follow_sm(const struct compiled *compiled, const struct trace_launch *launch, u32 sm,
                     u32 sms, struct trace_counts *counts, struct error *error)
{
    for (u32 cta = sm; cta < launch->grid; cta += sms)
        if (trace_cta(compiled->trace, launch, cta, counts, error) < 0)
            return -1;
    return 0;
}

static void add_sm(struct estimate_kernel *kernel, const struct trace_counts *counts)
{
    kernel->instructions += counts->instructions;
    kernel->tensor_instructions += counts->tensor_instructions;
    for (u32 pipe = 0; pipe < PIPE_COUNT; pipe++) {
        const double cycles = (double)counts->cycles[pipe];
        kernel->cycles[pipe] += cycles;
        if (cycles / 4 > kernel->busiest[pipe])
            kernel->busiest[pipe] = cycles / 4;
    }
    kernel->warps += counts->warps;
    if (counts->longest > kernel->longest)
        kernel->longest = counts->longest;
}

/* From those followed to the whole grid. */
static void scale(struct estimate_kernel *kernel, u64 warps)
{
    const double by = kernel->warps ? (double)warps / (double)kernel->warps : 0;
    kernel->instructions = (u64)((double)kernel->instructions * by);
    kernel->tensor_instructions = (u64)((double)kernel->tensor_instructions * by);
    for (u32 pipe = 0; pipe < PIPE_COUNT; pipe++)
        kernel->cycles[pipe] *= by;
    kernel->warps = warps;
}

static u32 common_divisor(u32 a, u32 b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* A step that goes through all of `count` and soon has been everywhere. */
static u32 step_over(u32 count)
{
    u32 step = (u32)((u64)count * 618 / 1000); /* golden ratio */
    while (step > 1 && common_divisor(count, step) != 1)
        step--;
    return step ? step : 1;
}

static int follow(struct estimate *estimate, const struct device_paper_launch *from,
                  const struct compiled *compiled, struct estimate_kernel *kernel,
                  struct error *error)
{
    struct device *device = estimate->engine->device;
    const u32 sms = device_info(device)->sms;
    const u32 grid = kernel->geometry.grid, used = grid < sms ? grid : sms;
    const struct trace_launch launch = {.grid = grid,
                                        .block = kernel->geometry.block,
                                        .arguments = from->arguments,
                                        .argument_count = from->count,
                                        .read = read_memory,
                                        .user = device};
    u64 instructions = 0;
    for (u32 i = 0; i < used && (i < SMS_LEAST || instructions < INSTRUCTIONS_ENOUGH); i++) {
        struct trace_counts counts = {0};
        const u32 sm = (u32)((u64)i * step_over(used) % used);
        if (follow_sm(compiled, &launch, sm, sms, &counts, error) < 0)
            return -1;
        add_sm(kernel, &counts);
        instructions += counts.instructions;
    }
    scale(kernel, (u64)grid * (launch.block / 32));
    const u32 resident = sms * (kernel->ctas_per_sm ? kernel->ctas_per_sm : 1);
    assert(resident > 0);
    kernel->longest *= (grid + resident - 1) / resident;
    return 0;
}

/* ---- a pass */

static struct estimate_kernel *find_kernel(struct estimate *estimate, const char *plan)
{
    for (size_t i = 0; i < estimate->count; i++)
        if (estimate->kernels[i].plan == plan)
            return &estimate->kernels[i];
    return NULL;
}

static int count_launch(struct estimate *estimate, const struct device_paper_launch *launch,
                        struct error *error)
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
    estimate->kernels = memory_resize(estimate->kernels, (estimate->count + 1) * sizeof *kernel);
    kernel = &estimate->kernels[estimate->count++];
    *kernel = (struct estimate_kernel){
        .name = jit_kernel_name(from),
        .plan = jit_kernel_plan(from),
        .launches = 1,
        .geometry = *jit_kernel_geometry(from),
        .resources = compiled->resources,
        .ctas_per_sm = occupancy_ctas(info->arch, info->shared_per_sm, jit_kernel_geometry(from),
                                      &compiled->resources),
        .bytes = kernel_bytes(estimate, from)};
    return follow(estimate, launch, compiled, kernel, error);
}

static int launch_verify(struct engine *engine, u32 context, u32 rows, struct error *error)
{
    struct engine_proposal chain = {.rows = rows, .parent = {0, 0, 1, 2, 3, 4, 5, 6}};
    for (u32 row = 0; row < rows; row++)
        chain.token[row] = row;
    engine->position = context - rows;
    tree_describe(&chain, engine->position, engine->round_host);
    if (engine->decode_graph)
        device_graph_destroy(engine->device, engine->decode_graph);
    engine->decode_graph = NULL; /* so that it is recorded, that is launched, again */
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
    estimate->count = 0;
    size_t launch_count = 0;
    const struct device_paper_launch *launches = device_paper_launches(engine->device,
                                                                       &launch_count);
    for (size_t i = 0; i < launch_count; i++)
        if (count_launch(estimate, &launches[i], error) < 0)
            return -1;
    *kernels = estimate->kernels;
    *count = estimate->count;
    return 0;
}

/* ---- times
 *
 * A launch takes the longest of
 *
 *     the busiest pipe of the busiest SM / PIPE_SHARE
 *     its bytes at the speed of a copy / DRAM_SHARE
 *     the instructions of the longest warp, one in CHAIN_CYCLES: it waits for its own results
 *
 * and LAUNCH_SECONDS more, in which a launch begins and ends. DRAM_SHARE is assumed, the others
 * were fitted to an H200 with the 27B (bench/NOTES.md); none to a GPU of sm_86. */

#define PIPE_SHARE 0.65
#define DRAM_SHARE 0.9
#define CHAIN_CYCLES 5.5
#define LAUNCH_SECONDS 4e-6

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
    time.seconds[LIMIT_CHAIN] = (double)kernel->longest * CHAIN_CYCLES / gpu->hertz;
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
        "A launch takes the longest of: its busiest pipe / %g, on the SM with most to "
        "do; its bytes at\nthe speed of a copy / %g; the instructions of its longest "
        "warp, one in %g cycles (chain). And %g us\nmore to begin and end. The share of a "
        "copy's speed is assumed, the other constants were fitted\nto an H200; none to "
        "a GPU of sm_86.\n",
        PIPE_SHARE, DRAM_SHARE, CHAIN_CYCLES, LAUNCH_SECONDS * 1e6);
}
