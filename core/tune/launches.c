/* launches.c - which kernels the passes launch, and how long each takes.
 *
 * Discovery runs the passes once and waits for every launch, so that what lies between two watched
 * launches is the time of the first. Shares are of those sums: they decide how many candidates a
 * kernel gets, nothing else.
 */
#include "tune/tune_private.h"

#include <string.h>

static bool has_shape(const struct jit_parameter *parameters, const struct jit_parameter *shape)
{
    for (; shape && shape->name; shape++) {
        const struct jit_parameter *mine = parameters;
        while (mine->name && strcmp(mine->name, shape->name) != 0)
            mine++;
        if (!mine->name || (mine->text ? !shape->text || strcmp(mine->text, shape->text) != 0
                                       : shape->text || mine->number != shape->number))
            return false;
    }
    return true;
}

static bool is_wanted(const struct tune *tune, const struct jit_kernel *kernel)
{
    return (!tune->options.kernel || strcmp(tune->options.kernel, jit_kernel_name(kernel)) == 0) &&
           has_shape(jit_kernel_parameters(kernel), tune->options.shape);
}

struct tune_kernel *launches_find(const struct tune *tune, const struct jit_kernel *kernel)
{
    for (size_t i = 0; i < tune->count; i++)
        if (tune->kernels[i].kernel == kernel)
            return &tune->kernels[i];
    return NULL;
}

static struct tune_kernel *add_kernel(struct tune *tune, const struct jit_kernel *kernel)
{
    tune->kernels = memory_resize(tune->kernels, (tune->count + 1) * sizeof *tune->kernels);
    tune->entries = memory_resize(tune->entries, (tune->count + 1) * sizeof *tune->entries);
    tune->entries[tune->count] = (struct entry){0};
    tune->kernels[tune->count] = (struct tune_kernel){
        .kernel = kernel,
        .name = jit_kernel_name(kernel),
        .parameters = jit_kernel_parameters(kernel),
        .pass = tune->pass,
    };
    return &tune->kernels[tune->count++];
}

static void count_launch(struct tune *tune, struct tune_kernel *kernel)
{
    u32 *launches = tune->entries[kernel - tune->kernels].launches;
    kernel->launches++;
    if (++launches[tune->pass] > launches[kernel->pass])
        kernel->pass = tune->pass;
}

/* For whoever asked for a shape that is not launched. */
static void note_other(struct tune *tune, const struct jit_kernel *kernel)
{
    struct buffer line = {0};
    if (!tune->options.kernel || strcmp(tune->options.kernel, jit_kernel_name(kernel)) != 0)
        return;
    buffer_add_text(&line, "\n    ");
    tune_table_text(jit_kernel_parameters(kernel), &line);
    if (!tune->other.data || !strstr(tune->other.data, line.data))
        buffer_add_slice(&tune->other, buffer_slice(&line));
    buffer_free(&line);
}

static int see_launch(void *user, const struct jit_kernel *kernel, const u64 *arguments, u32 count,
                      struct error *error)
{
    struct tune *tune = user;
    (void)arguments;
    (void)count;
    if (tune->options.go_on && !tune->options.go_on(tune->options.user))
        return error_set(error, ERROR_CANCELLED, "stopped; nothing was tried");
    if (device_sync(tune->device, NULL, error) != 0)
        return -1;
    if (tune->last)
        tune->last->seconds += clock_seconds() - tune->since;
    tune->last = NULL;
    if (is_wanted(tune, kernel)) {
        struct tune_kernel *seen = launches_find(tune, kernel);
        tune->last = seen ? seen : add_kernel(tune, kernel);
        count_launch(tune, tune->last);
    } else {
        note_other(tune, kernel);
    }
    tune->since = clock_seconds();
    return 0;
}

/* Kernels seen since the last time are launched by the passes that have ended now. */
static void share_out(struct tune *tune, bool prompt)
{
    double all = 0;
    for (size_t i = tune->passed; i < tune->count; i++)
        all += tune->kernels[i].seconds;
    for (size_t i = tune->passed; i < tune->count; i++) {
        tune->kernels[i].prompt = prompt;
        tune->kernels[i].share = tune->kernels[i].seconds / all;
    }
    tune->passed = tune->count;
}

static int run_pass(struct tune *tune, enum measure_kind pass, jit_watcher *watcher,
                    struct error *error)
{
    if (!measure_has(tune->measure, pass))
        return 0;
    if (measure_begin(tune->measure, pass, tune->options.context, error) != 0)
        return -1;
    tune->pass = pass;
    jit_watch(tune->jit, watcher, tune);
    const int status = measure_launch_singly(tune->measure, error);
    jit_watch(tune->jit, NULL, NULL);
    if (tune->last) /* the pass was waited for */
        tune->last->seconds += clock_seconds() - tune->since;
    tune->last = NULL;
    return status;
}

int launches_pass(struct tune *tune, jit_watcher *watcher, struct error *error)
{
    static const enum measure_kind round[] = {MEASURE_VERIFY, MEASURE_COMMIT, MEASURE_DRAFT};
    int status = 0;
    for (size_t i = 0; i < COUNT_OF(round) && status == 0; i++)
        status = run_pass(tune, round[i], watcher, error);
    share_out(tune, false);
    if (status == 0 && tune->options.prompts)
        status = run_pass(tune, MEASURE_PIECE, watcher, error);
    share_out(tune, true);
    return status;
}

int launches_discover(struct tune *tune, struct error *error)
{
    if (launches_pass(tune, see_launch, error) != 0)
        return -1;
    if (tune->count > 0)
        return 0;
    if (tune->other.size)
        return error_set(error, ERROR_USAGE,
                         "%s is not launched with that shape, or not in these passes; it is with%s",
                         tune->options.kernel, tune->other.data);
    return error_set(error, ERROR_USAGE,
                     "no kernel that this model launches has that name and shape; --dry-run "
                     "without --kernel and --shape lists them");
}
