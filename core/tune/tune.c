/* tune.c - the sweep (tune.h).
 *
 * What kernels share, and what follows from it (engine/linear.c, plan.c, draft.c, sample.c):
 *
 *   - Scratch between kernels (activation planes, sums, spans, tiles) is laid out by problem and
 *     numeric parameters alone, so a kernel is exchanged without its neighbours noticing. That is
 *     not taken on trust: a candidate's whole output must have the default's bits.
 *   - What a schedule tells its caller it exports (spans, tiles, groups, pieces). Where exports
 *     depend on tuning, as draft_top's groups do, other kernels and buffers are planned by them: a
 *     candidate with other exports than the default is refused.
 *   - kv_commit writes through addresses that lie in device memory and are const to it; where it
 *     writes cannot be seen in its arguments. It is not tuned.
 *   - A kernel whose result has no fixed order (lists filled by atomics, as the sampler's
 *     candidates) does not equal itself from launch to launch. It is not tuned.
 *   - trellis_pack runs while a model is loaded and in no pass. It is not tuned.
 *
 * A sweep happens inside the launch of the kernel (jit_watch), where its inputs are there. On a GPU
 * all candidates of a generation are compiled by other threads from its beginning, in the order in
 * which kernels are launched. On the host device, where compiling and timing would disturb each
 * other, a kernel's candidates are compiled first.
 */
#include "tune/tune_private.h"

#include <stdlib.h>
#include <unistd.h>

/* For the estimate alone: a candidate's compilation, and its part of a trial. */
#define COMPILE_SECONDS 1.0
#define TIMING_SECONDS 0.1

/* ---- time */

double tune_deadline(const struct tune *tune)
{
    return tune->options.budget > 0 ? tune->start + tune->options.budget : 0;
}

double tune_time_left(const struct tune *tune)
{
    return tune_deadline(tune) > 0 ? tune_deadline(tune) - clock_seconds() : 1e9;
}

bool tune_wished(void *user)
{
    struct tune *tune = user;
    if (!tune->options.go_on || tune->options.go_on(tune->options.user))
        return true;
    tune->ended_early = true;
    return false;
}

bool tune_goes_on(void *user)
{
    struct tune *tune = user;
    if (tune_time_left(tune) > 0)
        return tune_wished(tune);
    tune->ended_early = true;
    return false;
}

bool tune_ended_early(const struct tune *tune)
{
    return tune->ended_early;
}

/* ---- opening and closing */

bool tune_on_host(const struct tune *tune)
{
    return device_info(tune->device)->kind == DEVICE_HOST;
}

u32 tune_threads(const struct tune *tune)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (tune->options.threads)
        return tune->options.threads;
    if (cores <= 1)
        return 1;
    return (u32)cores - !tune_on_host(tune); /* one launches */
}

static int open_parts(struct tune *tune, struct error *error)
{
    static const struct jit_parameter none[] = {{0}};
    return jit_request(tune->jit, "compare", none, &tune->compare, error) ||
                   jit_build(tune->jit, error) || trial_open(&tune->trial, tune->device, error) ||
                   pool_open(&tune->pool, tune->jit, tune_threads(tune), error) ||
                   launches_discover(tune, error) || prepare_kernels(tune, error)
               ? -1
               : 0;
}

int tune_open(struct tune **out, struct measure *measure, const struct tune_options *options,
              struct error *error)
{
    struct tune *tune = memory_alloc(sizeof *tune);
    *tune = (struct tune){.measure = measure,
                          .jit = measure_jit(measure),
                          .device = measure_device(measure),
                          .options = *options,
                          .arena = arena_create()};
    if (open_parts(tune, error) != 0) {
        tune_close(tune);
        return -1;
    }
    *out = tune;
    return 0;
}

void tune_close(struct tune *tune)
{
    if (!tune)
        return;
    pool_close(tune->pool);
    trial_close(tune->trial);
    for (size_t i = 0; i < tune->count; i++) {
        struct entry *entry = &tune->entries[i];
        for (size_t j = 0; j < entry->room; j++)
            jit_variant_destroy(tune->jit, entry->variants[j]);
        memory_free(entry->variants);
        memory_free(entry->jobs);
        memory_free(tune->kernels[i].candidates);
    }
    memory_free(tune->kernels);
    memory_free(tune->entries);
    arena_destroy(tune->arena);
    buffer_free(&tune->other);
    memory_free(tune);
}

const struct tune_kernel *tune_kernels(const struct tune *tune, size_t *count)
{
    *count = tune->count;
    return tune->kernels;
}

void tune_record_text(const struct tune *tune, size_t index, struct buffer *text)
{
    json_t *record = tune_record(&tune->kernels[index], device_info(tune->device),
                                 tune->entries[index].digest);
    char *line = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(6));
    buffer_format(text, "%s\n", line);
    free(line);
    json_decref(record);
}

size_t tune_waiting(const struct tune_kernel *kernel)
{
    size_t count = 0;
    for (size_t i = 0; i < kernel->count && !kernel->skipped[0] && !kernel->settled; i++)
        count += kernel->candidates[i].state == TUNE_WAITING;
    return count;
}

double tune_estimate(const struct tune *tune)
{
    size_t waiting = 0;
    for (size_t i = 0; i < tune->count; i++)
        waiting += tune_waiting(&tune->kernels[i]);
    return (double)waiting * (COMPILE_SECONDS / tune_threads(tune) + TIMING_SECONDS);
}

/* ---- generations */

static u32 count_pending(const struct tune *tune, bool swept_too)
{
    u32 count = 0;
    for (size_t i = 0; i < tune->count; i++)
        count += swept_too ? tune->entries[i].swept || tune_waiting(&tune->kernels[i]) > 0
                           : !tune->entries[i].swept && tune_waiting(&tune->kernels[i]) > 0;
    return count;
}

static void tell(const struct tune *tune, const struct tune_kernel *kernel, bool finished)
{
    struct tune_progress progress = {.generation = tune->generation,
                                     .now = kernel,
                                     .finished = finished,
                                     .spent = clock_seconds() - tune->start,
                                     .left = tune_time_left(tune)};
    if (!tune->options.progress)
        return;
    for (size_t i = 0; i < tune->count; i++)
        progress.kernel += tune->entries[i].swept;
    progress.kernels = count_pending(tune, true);
    const u32 done = progress.kernel - !finished;
    const double guess = done ? progress.spent / done * (progress.kernels - done)
                              : tune_estimate(tune);
    if (tune->generation == 1 && guess < progress.left)
        progress.left = guess;
    tune->options.progress(tune->options.user, &progress);
}

static int sweep_launch(void *user, const struct jit_kernel *kernel, const u64 *arguments,
                        u32 count, struct error *error)
{
    struct tune *tune = user;
    struct tune_kernel *known = launches_find(tune, kernel);
    if (!known || !tune_waiting(known) || !tune_goes_on(tune))
        return 0;
    const size_t index = (size_t)(known - tune->kernels);
    if (tune->entries[index].swept)
        return 0;
    tune->entries[index].swept = true;
    tell(tune, known, false);
    if (tune_on_host(tune))
        candidate_queue(tune, index);
    if (sweep_kernel(tune, index, arguments, count, error) != 0)
        return -1;
    tell(tune, known, true);
    return 0;
}

/* What the next generation tries. */
static void choose_generation(struct tune *tune)
{
    for (size_t i = 0; i < tune->count; i++) {
        struct tune_kernel *kernel = &tune->kernels[i];
        struct entry *entry = &tune->entries[i];
        entry->swept = false;
        if (!kernel->skipped[0] && !kernel->settled && !tune_waiting(kernel) &&
            !choose_next(kernel, &entry->choice, prepare_most(tune, kernel)))
            kernel->settled = true;
    }
}

static int run_generation(struct tune *tune, struct error *error)
{
    for (size_t i = 0; i < tune->count && !tune_on_host(tune); i++)
        candidate_queue(tune, i);
    const int status = launches_pass(tune, sweep_launch, error);
    pool_cancel(tune->pool);
    return status;
}

/* A kernel can be settled without a trial; its record then says so. */
static int write_settled(struct tune *tune, struct error *error)
{
    for (size_t i = 0; i < tune->count; i++)
        if (tune->kernels[i].settled && sweep_write_record(tune, i, error) != 0)
            return -1;
    return 0;
}

int tune_run(struct tune *tune, struct error *error)
{
    tune->start = clock_seconds();
    for (;;) {
        tune->generation++;
        choose_generation(tune);
        if (!count_pending(tune, false) || !tune_goes_on(tune))
            break;
        if (run_generation(tune, error) != 0)
            return -1;
    }
    return write_settled(tune, error) || confirm_kernels(tune, error) ? -1 : 0;
}
