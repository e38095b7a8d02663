/* compare.c - a whole verify with all defaults and with all that is used, side by side. */
#include "tune/tune_private.h"

#include <string.h>

/* Loads what takes the place of the defaults. */
static int load_used(struct tune *tune, u32 *kernels, struct error *error)
{
    for (size_t i = 0; i < tune->count; i++) {
        const size_t used = tune_used(&tune->kernels[i]);
        if (used == 0)
            continue;
        (*kernels)++;
        if (candidate_fetch(tune, i, used, error) != 0)
            return -1;
    }
    return 0;
}

static void put_in_place(struct tune *tune, bool tuned)
{
    if (tune->tuned_in_place == tuned)
        return;
    for (size_t i = 0; i < tune->count; i++)
        if (tune_used(&tune->kernels[i]) != 0)
            jit_swap(tune->jit, tune->kernels[i].kernel,
                     tune->entries[i].variants[tune_used(&tune->kernels[i])]);
    measure_swap_graphs(tune->measure);
    tune->tuned_in_place = tuned;
}

static int launch_default(void *context, struct error *error)
{
    struct tune *tune = context;
    put_in_place(tune, false);
    return measure_launch(tune->measure, error);
}

static int launch_tuned(void *context, struct error *error)
{
    struct tune *tune = context;
    put_in_place(tune, true);
    return measure_launch(tune->measure, error);
}

static int compare_logits(struct tune *tune, bool *same, struct error *error)
{
    u64 bytes = 0;
    float *before = NULL, *after = NULL;
    if (launch_default(tune, error) == 0 &&
        (before = measure_logits(tune->measure, &bytes, error)) != NULL &&
        launch_tuned(tune, error) == 0)
        after = measure_logits(tune->measure, &bytes, error);
    *same = after && memcmp(before, after, bytes) == 0;
    const int status = after ? 0 : -1;
    memory_free(before);
    memory_free(after);
    return status;
}

int tune_compare(struct tune *tune, struct tune_comparison *comparison, struct error *error)
{
    const struct trial_candidate candidates[] = {{launch_default, tune, NULL},
                                                 {launch_tuned, tune, NULL}};
    const struct trial_options options = {.seconds = TRIAL_SECONDS, .keep_first = true};
    struct trial_result results[COUNT_OF(candidates)];
    *comparison = (struct tune_comparison){0};
    int status = load_used(tune, &comparison->kernels, error) ||
                         measure_begin_greedy(tune->measure, tune->options.context,
                                              &comparison->bytes, error) ||
                         compare_logits(tune, &comparison->same_logits, error) ||
                         trial_run(tune->trial, candidates, COUNT_OF(candidates), &options, results,
                                   error)
                     ? -1
                     : 0;
    put_in_place(tune, false);
    measure_drop_graphs(tune->measure);
    if (status != 0)
        return -1;
    for (u32 i = 0; i < COUNT_OF(candidates); i++) {
        comparison->seconds[i][0] = results[i].low;
        comparison->seconds[i][1] = results[i].median;
        comparison->seconds[i][2] = results[i].high;
    }
    comparison->bandwidth = measure_copy_bandwidth(tune->measure);
    comparison->samples = results[0].samples;
    comparison->beats = trial_beats(&results[1], &results[0]);
    return 0;
}
