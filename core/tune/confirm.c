/* confirm.c - who has won alone, in the pass that launches it.
 *
 * Alone a launch starts on an idle device with an empty cache. In a pass it starts while the launch
 * before it ends, and takes room and bandwidth that the next one would have: a tuning that wins
 * alone may make the pass slower. So behind the generations each best is put in its place, and the
 * pass that launches it most often is timed with it and with the default, side by side, all other
 * kernels being the defaults or those that were confirmed before. What it saves may be a thousandth
 * of the pass: less than its quartiles are apart, but not less than many rounds show (trial_wins).
 */
#include "tune/tune_private.h"

#define CONFIRM_SECONDS 4.0 /* most, of one: long passes are timed in fewer rounds */
enum { CONFIRM_ROUNDS = 100 };

struct place {
    struct tune *tune;
    size_t index;
};

bool tune_was_in_pass(const struct tune_kernel *kernel)
{
    return kernel->best != 0 && kernel->in_pass.samples > 0 &&
           kernel->in_pass.candidate == kernel->best;
}

size_t tune_used(const struct tune_kernel *kernel)
{
    return tune_was_in_pass(kernel) && kernel->in_pass.confirmed ? kernel->best : 0;
}

bool confirm_is_pending(const struct tune_kernel *kernel)
{
    return !kernel->skipped[0] && kernel->best != 0 && !tune_was_in_pass(kernel);
}

void confirm_take(struct tune_kernel *kernel, const struct trial_result *standard,
                  const struct trial_result *tuned)
{
    kernel->in_pass = (struct tune_in_pass){
        .candidate = kernel->best,
        .seconds = {{standard->low, standard->median, standard->high},
                    {tuned->low, tuned->median, tuned->high}},
        .samples = tuned->samples,
        .faster = tuned->faster,
        .confirmed = trial_wins(tuned, standard),
    };
    kernel->settled |= !kernel->in_pass.confirmed;
}

/* The best, or the default. */
static void put_in_place(struct tune *tune, size_t index, bool best)
{
    const struct tune_kernel *kernel = &tune->kernels[index];
    struct entry *entry = &tune->entries[index];
    if (entry->best_in_place == best)
        return;
    jit_swap(tune->jit, kernel->kernel, entry->variants[kernel->best]);
    measure_swap_graphs(tune->measure);
    entry->best_in_place = best;
}

static int launch_default(void *context, struct error *error)
{
    const struct place *place = context;
    put_in_place(place->tune, place->index, false);
    return measure_launch(place->tune->measure, error);
}

static int launch_best(void *context, struct error *error)
{
    const struct place *place = context;
    put_in_place(place->tune, place->index, true);
    return measure_launch(place->tune->measure, error);
}

/* Afterwards the winner is in place. */
static int time_kernel(struct tune *tune, size_t index, struct error *error)
{
    struct place place = {.tune = tune, .index = index};
    struct tune_kernel *kernel = &tune->kernels[index];
    const struct trial_candidate candidates[] = {{launch_default, &place, NULL},
                                                 {launch_best, &place, NULL}};
    const struct trial_options options = {.rounds = CONFIRM_ROUNDS,
                                          .seconds = CONFIRM_SECONDS,
                                          .seed = tune->options.seed,
                                          .keep_all = true,
                                          .go_on = tune_wished,
                                          .user = tune};
    struct trial_result results[COUNT_OF(candidates)];
    int status = trial_run(tune->trial, candidates, COUNT_OF(candidates), &options, results, error);
    for (u32 i = 0; i < COUNT_OF(candidates) && status == 0; i++)
        if (results[i].failed)
            status = error_set(error, results[i].reason.code, "%s in its pass: %s", kernel->name,
                               results[i].reason.text);
    if (status == 0 && tune_wished(tune))
        confirm_take(kernel, &results[0], &results[1]);
    put_in_place(tune, index, status == 0 && tune_used(kernel) != 0);
    measure_drop_graphs(tune->measure);
    return status;
}

static void tell(const struct tune *tune, const struct tune_kernel *kernel, u32 number,
                 bool finished)
{
    struct tune_progress progress = {.kernel = number,
                                     .now = kernel,
                                     .finished = finished,
                                     .in_pass = true,
                                     .spent = clock_seconds() - tune->start};
    for (size_t i = 0; i < tune->count; i++)
        progress.kernels += confirm_is_pending(&tune->kernels[i]);
    progress.kernels += number - !finished;
    progress.left = CONFIRM_SECONDS * (progress.kernels - number + !finished);
    if (tune->options.progress)
        tune->options.progress(tune->options.user, &progress);
}

/* Every kernel of a pass that is pending; *number counts them over the passes. */
static int confirm_pass(struct tune *tune, enum measure_kind pass, u32 *number, struct error *error)
{
    bool begun = false;
    for (size_t i = 0; i < tune->count; i++) {
        const struct tune_kernel *kernel = &tune->kernels[i];
        if (kernel->pass != pass || !confirm_is_pending(kernel) || !tune_wished(tune))
            continue;
        tell(tune, kernel, ++*number, false);
        if ((!begun && measure_begin(tune->measure, pass, tune->options.context, error) != 0) ||
            candidate_fetch(tune, i, kernel->best, error) != 0 || time_kernel(tune, i, error) != 0)
            return -1;
        begun = true;
        if (!tune_was_in_pass(kernel))
            continue; /* stopped */
        tell(tune, kernel, *number, true);
        if (sweep_write_record(tune, i, error) != 0)
            return -1;
    }
    return 0;
}

static int place_confirmed(struct tune *tune, struct error *error)
{
    for (size_t i = 0; i < tune->count; i++)
        if (tune_used(&tune->kernels[i]) != 0) {
            if (candidate_fetch(tune, i, tune->kernels[i].best, error) != 0)
                return -1;
            put_in_place(tune, i, true);
        }
    measure_drop_graphs(tune->measure);
    return 0;
}

int confirm_kernels(struct tune *tune, struct error *error)
{
    u32 number = 0;
    int status = place_confirmed(tune, error);
    for (u32 pass = 0; pass < MEASURE_KINDS && status == 0; pass++)
        status = confirm_pass(tune, pass, &number, error);
    for (size_t i = 0; i < tune->count; i++)
        put_in_place(tune, i, false);
    measure_drop_graphs(tune->measure);
    return status;
}
