/* sweep.c - a generation of a kernel, inside its launch: right bits, a trial, the record. */
#include "tune/tune_private.h"

#include <stdio.h>
#include <string.h>

#include "jit/records.h"

enum {
    RESTORE_BYTES = 64 << 20, /* written: up to here, put back before every timed launch */
    DEFAULT_LAUNCHES = 4,     /* that must have equal bits before anything is compared */
    ROUNDS_FEW = 20,          /* of a trial of a kernel that takes no large share of the time */
    ENTRANTS_SPARE = 2,       /* of a trial: the default and the best so far */
};

struct sweep {
    struct tune *tune;
    struct tune_kernel *kernel;
    struct entry *entry;
    const u64 *arguments;
    u32 argument_count;
    struct bits *bits;
};

struct entrant {
    struct sweep *sweep;
    const struct jit_kernel *kernel;
    size_t which; /* candidate */
};

static int launch(const struct sweep *sweep, const struct jit_kernel *kernel, struct error *error)
{
    return jit_launch(sweep->tune->jit, NULL, kernel, sweep->arguments, sweep->argument_count,
                      error);
}

static int launch_entrant(void *context, struct error *error)
{
    const struct entrant *entrant = context;
    return launch(entrant->sweep, entrant->kernel, error);
}

static int restore_entrant(void *context, struct error *error)
{
    const struct entrant *entrant = context;
    return bits_restore(entrant->sweep->bits, error);
}

/* The default's result, and whether it is the same each time: an order that is left to chance does
 * not show in every launch. */
static int find_right(struct sweep *sweep, struct error *error)
{
    const struct jit_kernel *standard = sweep->kernel->kernel;
    bool same = true;
    if (launch(sweep, standard, error) != 0 || bits_keep(sweep->bits, error) != 0)
        return -1;
    for (u32 i = 1; i < DEFAULT_LAUNCHES && same; i++)
        if (bits_restore(sweep->bits, error) != 0 || launch(sweep, standard, error) != 0 ||
            bits_compare(sweep->bits, &same, error) != 0)
            return -1;
    if (!same)
        snprintf(sweep->kernel->skipped, sizeof sweep->kernel->skipped,
                 "its result has no fixed order, so nothing can be compared");
    return 0;
}

/* Whether the candidate leaves the right bits. -1: the device failed. */
static int has_right_bits(struct sweep *sweep, size_t which, bool *right, struct error *error)
{
    struct tune_candidate *candidate = &sweep->kernel->candidates[which];
    struct error reason;
    *right = false;
    if (bits_restore(sweep->bits, error) != 0)
        return -1;
    if (launch(sweep, sweep->entry->variants[which], &reason) != 0) {
        candidate_refuse(candidate, "%.230s", reason.text);
        return 0;
    }
    if (bits_compare(sweep->bits, right, error) != 0) {
        struct buffer text = {0};
        tune_table_text(candidate->tuning, &text);
        error_prefix(error, "%s with %s", sweep->kernel->name, text.data);
        buffer_free(&text);
        return -1;
    }
    if (*right)
        return 0;
    struct buffer text = {0};
    tune_table_text(candidate->tuning, &text);
    log_warn("%s with %s leaves other bits than the default: a fault of the schedule, or a result "
             "without a fixed order; it is not used",
             sweep->kernel->name, text.data);
    buffer_free(&text);
    candidate_refuse(candidate, "leaves other bits than the default");
    return 0;
}

static int enter_candidates(struct sweep *sweep, struct entrant *entrants, u32 *count,
                            struct error *error)
{
    struct tune *tune = sweep->tune;
    struct tune_kernel *kernel = sweep->kernel;
    const size_t index = (size_t)(kernel - tune->kernels);
    entrants[(*count)++] = (struct entrant){sweep, kernel->kernel, 0};
    for (size_t i = 1; i < kernel->count; i++) {
        bool right;
        if ((kernel->candidates[i].state != TUNE_WAITING && i != kernel->best) ||
            !candidate_load(tune, index, i))
            continue;
        if (has_right_bits(sweep, i, &right, error) != 0)
            return -1;
        if (right)
            entrants[(*count)++] = (struct entrant){sweep, sweep->entry->variants[i], i};
    }
    return 0;
}

static void take_results(struct sweep *sweep, const struct entrant *entrants,
                         const struct trial_result *results, u32 count)
{
    for (u32 i = 0; i < count; i++) {
        struct tune_candidate *candidate = &sweep->kernel->candidates[entrants[i].which];
        if (results[i].failed) {
            candidate_refuse(candidate, "%.230s", results[i].reason.text);
            continue;
        }
        if (results[i].samples == 0)
            continue;
        candidate->state = results[i].dropped ? TUNE_SLOWER : TUNE_TIMED;
        candidate->median = results[i].median;
        candidate->low = results[i].low;
        candidate->high = results[i].high;
        candidate->samples = results[i].samples;
    }
}

static const struct trial_result *result_of(const struct entrant *entrants,
                                            const struct trial_result *results, u32 count,
                                            size_t which)
{
    for (u32 i = 0; i < count; i++)
        if (entrants[i].which == which)
            return &results[i];
    return NULL;
}

/* Another best only where it wins beyond the spread: over the default, and over the one so far. A
 * best that could not enter this trial stays, unless it was refused. */
static void choose_best(struct sweep *sweep, const struct entrant *entrants,
                        const struct trial_result *results, u32 count)
{
    struct tune_kernel *kernel = sweep->kernel;
    if (kernel->candidates[kernel->best].state == TUNE_REFUSED)
        kernel->best = 0;
    const u32 fastest = trial_best(results, count);
    const struct trial_result *before = result_of(entrants, results, count, kernel->best);
    if (!before || fastest == count || results[fastest].samples < TRIAL_STAGE)
        return;
    if (kernel->best != 0 && !trial_beats(before, &results[0])) {
        kernel->best = 0;
        before = &results[0];
    }
    if (trial_beats(&results[fastest], before) && trial_beats(&results[fastest], &results[0]))
        kernel->best = entrants[fastest].which;
}

static int race(struct sweep *sweep, struct entrant *entrants, u32 count, struct error *error)
{
    struct tune *tune = sweep->tune;
    const double left = tune_time_left(tune);
    const struct trial_options options = {
        .rounds = sweep->kernel->share >= SHARE_LARGE ? TRIAL_ROUNDS : ROUNDS_FEW,
        .seconds = left < TRIAL_SECONDS ? left : TRIAL_SECONDS,
        .seed = tune->options.seed + tune->generation,
        .keep_first = true,
        .go_on = tune_goes_on,
        .user = tune};
    const bool restores = bits_bytes(sweep->bits) <= RESTORE_BYTES;
    struct trial_candidate *candidates = memory_alloc(count * sizeof *candidates);
    struct trial_result *results = memory_alloc(count * sizeof *results);
    for (u32 i = 0; i < count; i++)
        candidates[i] = (struct trial_candidate){launch_entrant, &entrants[i],
                                                 restores ? restore_entrant : NULL};
    const int status = count > 1
                           ? trial_run(tune->trial, candidates, count, &options, results, error)
                           : 0;
    if (status == 0 && count > 1) {
        take_results(sweep, entrants, results, count);
        choose_best(sweep, entrants, results, count);
    }
    memory_free(candidates);
    memory_free(results);
    return status;
}

static int run_trial(struct sweep *sweep, struct error *error)
{
    struct entrant *entrants = memory_alloc((sweep->kernel->count + ENTRANTS_SPARE) *
                                            sizeof *entrants);
    u32 count = 0;
    int status = find_right(sweep, error);
    if (status == 0 && !sweep->kernel->skipped[0])
        status = enter_candidates(sweep, entrants, &count, error) ||
                         race(sweep, entrants, count, error)
                     ? -1
                     : 0;
    memory_free(entrants);
    return status;
}

/* All but the best's are not needed any more. */
static void drop_variants(struct tune *tune, size_t index)
{
    const struct tune_kernel *kernel = &tune->kernels[index];
    struct entry *entry = &tune->entries[index];
    for (size_t i = 0; i < entry->room; i++) {
        if (i == kernel->best || kernel->candidates[i].state == TUNE_WAITING)
            continue;
        jit_variant_destroy(tune->jit, entry->variants[i]);
        entry->variants[i] = NULL;
        entry->jobs[i] = NULL;
    }
}

int sweep_write_record(struct tune *tune, size_t index, struct error *error)
{
    const struct tune_kernel *kernel = &tune->kernels[index];
    if (kernel->skipped[0] || kernel->candidates[0].samples == 0)
        return 0;
    json_t *record = tune_record(kernel, device_info(tune->device), tune->entries[index].digest);
    const int status = record_file_update(tune->options.output, record, error);
    json_decref(record);
    return status;
}

/* One generation of a kernel, with the arguments of its launch. Memory is afterwards as before. */
int sweep_kernel(struct tune *tune, size_t index, const u64 *arguments, u32 count,
                 struct error *error)
{
    struct tune_kernel *kernel = &tune->kernels[index];
    struct sweep sweep = {.tune = tune,
                          .kernel = kernel,
                          .entry = &tune->entries[index],
                          .arguments = arguments,
                          .argument_count = count};
    sweep.bits = bits_open(tune->jit, tune->device, tune->compare, kernel->kernel, arguments, count,
                           kernel->skipped);
    if (!sweep.bits)
        return 0;
    int status = run_trial(&sweep, error);
    if (status == 0)
        status = bits_restore(sweep.bits, error) || device_sync(tune->device, NULL, error) ? -1 : 0;
    bits_close(sweep.bits);
    if (status != 0)
        return -1;
    kernel->settled = kernel->count == kernel->legal && !tune_waiting(kernel);
    drop_variants(tune, index);
    return sweep_write_record(tune, index, error);
}
