/* trial.c - candidates timed side by side (trial.h).
 *
 *   trial_run     events and flushes around launches: where samples come from
 *   trial_rounds  shuffled rounds over samples, who is dropped, when it ends
 *
 * Quartiles are order statistics, without interpolation: the lower of n is the value at n / 4 of
 * the sorted ones, the upper the value at (3 n - 1) / 4, counted from 0.
 */
#include "tune/trial.h"

#include <stdlib.h>
#include <string.h>

/* ---- statistics */

static int compare_seconds(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Of one candidate; sorted with every summary. */
struct samples {
    double now; /* of this round; 0: none */
    double values[TRIAL_ROUNDS_MOST];
};

static void summarise(struct samples *samples, struct trial_result *result)
{
    const u32 n = result->samples;
    if (n == 0)
        return;
    qsort(samples->values, n, sizeof *samples->values, compare_seconds);
    result->low = samples->values[n / 4];
    result->high = samples->values[(3 * n - 1) / 4];
    result->median = (samples->values[n / 2] + samples->values[(n - 1) / 2]) / 2;
}

static bool is_in(const struct trial_result *result)
{
    return !result->dropped && !result->failed;
}

u32 trial_best(const struct trial_result *results, u32 count)
{
    u32 best = count;
    for (u32 i = 0; i < count; i++)
        if (is_in(&results[i]) && results[i].samples > 0 &&
            (best == count || results[i].median < results[best].median))
            best = i;
    return best;
}

bool trial_beats(const struct trial_result *a, const struct trial_result *b)
{
    return a->samples > 0 && b->samples > 0 && a->high < b->low;
}

bool trial_wins(const struct trial_result *a, const struct trial_result *b)
{
    const double more = 2.0 * a->faster - a->samples;
    return a->samples > 0 && b->samples > 0 && a->median < b->median && more > 0 &&
           more * more >= 4.0 * a->samples;
}

/* ---- rounds */

static void shuffle(u32 *order, u32 count, u64 *random)
{
    for (u32 i = count; i > 1; i--) {
        const u32 other = (u32)(random_next(random) % i), held = order[i - 1];
        order[i - 1] = order[other];
        order[other] = held;
    }
}

static int run_round(const struct trial_source *source, const u32 *order, u32 count,
                     struct samples *samples, struct trial_result *results, struct error *error)
{
    for (u32 i = 0; i < count; i++)
        samples[i].now = 0;
    for (u32 i = 0; i < count; i++) {
        struct trial_result *result = &results[order[i]];
        double seconds = 0;
        bool failed = false;
        if (!is_in(result))
            continue;
        if (source->sample(source->context, order[i], &seconds, &failed, error) != 0)
            return -1;
        if (failed)
            result->failed = true;
        else
            samples[order[i]].values[result->samples++] = samples[order[i]].now = seconds;
    }
    for (u32 i = 0; i < count; i++) {
        results[i].faster += samples[i].now > 0 && samples[i].now < samples[0].now;
        summarise(&samples[i], &results[i]);
    }
    return 0;
}

static void drop_slow(struct trial_result *results, u32 count, bool keep_first)
{
    const u32 best = trial_best(results, count);
    for (u32 i = keep_first ? 1 : 0; best < count && i < count; i++)
        if (is_in(&results[i]) && trial_beats(&results[best], &results[i]))
            results[i].dropped = true;
}

/* Whether the best beats whoever is left. */
static bool is_decided(const struct trial_result *results, u32 count)
{
    const u32 best = trial_best(results, count);
    for (u32 i = 0; best < count && i < count; i++)
        if (i != best && is_in(&results[i]) && !trial_beats(&results[best], &results[i]))
            return false;
    return true;
}

/* Rounds 5, 10, 20, ... */
static bool is_stage(u32 rounds)
{
    u32 stage = TRIAL_STAGE;
    while (stage < rounds)
        stage *= 2;
    return stage == rounds;
}

static bool wants_round(const struct trial_options *options, u32 done, double start)
{
    const u32 most = options->rounds ? options->rounds : TRIAL_ROUNDS;
    if (options->go_on && !options->go_on(options->user))
        return false;
    if (done >= most || done >= TRIAL_ROUNDS_MOST)
        return false;
    return done < TRIAL_STAGE || options->seconds == 0 ||
           clock_seconds() - start < options->seconds;
}

int trial_rounds(const struct trial_source *source, u32 count, const struct trial_options *options,
                 struct trial_result *results, struct error *error)
{
    struct samples *samples = memory_alloc((count + 1) * sizeof *samples);
    u32 *order = memory_alloc((count + 1) * sizeof *order);
    const double start = clock_seconds();
    u64 random = options->seed;
    int failed = 0;
    memset(results, 0, count * sizeof *results);
    for (u32 i = 0; i < count; i++)
        order[i] = i;
    for (u32 done = 0; !failed && wants_round(options, done, start);) {
        shuffle(order, count, &random);
        failed = run_round(source, order, count, samples, results, error);
        if (is_stage(++done) && !failed && !options->keep_all) {
            drop_slow(results, count, options->keep_first);
            if (is_decided(results, count))
                break;
        }
    }
    memory_free(order);
    memory_free(samples);
    return failed;
}

/* ---- launches */

struct trial {
    struct device *device;
    struct device_event *begin, *end;
    dptr flush;
    u64 flush_bytes;
    /* of the trial that runs */
    const struct trial_candidate *candidates;
    struct trial_result *results;
};

/* Where less memory is free, less of it, or none. */
static void alloc_flush(struct trial *trial)
{
    struct error ignored;
    if (device_info(trial->device)->kind != DEVICE_CUDA)
        return;
    for (u64 bytes = TRIAL_FLUSH_BYTES; bytes >= 1 << 20; bytes /= 2)
        if (device_alloc(trial->device, bytes, "cache flush", &trial->flush, &ignored) == 0) {
            trial->flush_bytes = bytes;
            return;
        }
}

int trial_open(struct trial **out, struct device *device, struct error *error)
{
    struct trial *trial = memory_alloc(sizeof *trial);
    trial->device = device;
    if (device_event_create(device, &trial->begin, error) != 0 ||
        device_event_create(device, &trial->end, error) != 0) {
        trial_close(trial);
        return -1;
    }
    alloc_flush(trial);
    *out = trial;
    return 0;
}

void trial_close(struct trial *trial)
{
    if (!trial)
        return;
    device_event_destroy(trial->device, trial->begin);
    device_event_destroy(trial->device, trial->end);
    device_free(trial->device, trial->flush);
    memory_free(trial);
}

u64 trial_flush_bytes(const struct trial *trial)
{
    return trial->flush_bytes;
}

/* One launch between two events. While the flush runs, all three are queued behind it, so the
 * device does not wait for the host in between. */
static int time_launch(struct trial *trial, u32 index, double *seconds, struct error *error)
{
    const struct trial_candidate *candidate = &trial->candidates[index];
    struct trial_result *result = &trial->results[index];
    if ((candidate->prepare && candidate->prepare(candidate->context, error) != 0) ||
        device_fill(trial->device, NULL, trial->flush, 0, trial->flush_bytes, error) != 0 ||
        device_event_record(trial->device, trial->begin, NULL, error) != 0)
        return -1;
    if (candidate->launch(candidate->context, &result->reason) != 0) {
        result->failed = true;
        return device_sync(trial->device, NULL, error);
    }
    if (device_event_record(trial->device, trial->end, NULL, error) != 0 ||
        device_event_sync(trial->device, trial->end, error) != 0)
        return -1;
    return device_event_elapsed(trial->device, trial->begin, trial->end, seconds, error);
}

/* The first sample of a candidate warms it up, and says how many launches a sample needs. */
static int prepare(struct trial *trial, u32 index, struct error *error)
{
    struct trial_result *result = &trial->results[index];
    double seconds = 0;
    if (time_launch(trial, index, &seconds, error) != 0)
        return -1;
    if (!result->failed && time_launch(trial, index, &seconds, error) != 0)
        return -1;
    const double wanted = seconds > 0 ? TRIAL_SAMPLE_SECONDS / seconds : TRIAL_LAUNCHES_MOST;
    result->launches = wanted >= TRIAL_LAUNCHES_MOST ? TRIAL_LAUNCHES_MOST : 1 + (u32)wanted;
    return 0;
}

static int sample(void *context, u32 index, double *seconds, bool *failed, struct error *error)
{
    struct trial *trial = context;
    struct trial_result *result = &trial->results[index];
    double sum = 0;
    if (result->launches == 0 && prepare(trial, index, error) != 0)
        return -1;
    for (u32 i = 0; i < result->launches && !result->failed; i++) {
        double one = 0;
        if (time_launch(trial, index, &one, error) != 0)
            return -1;
        sum += one;
    }
    *failed = result->failed;
    *seconds = sum / result->launches;
    return 0;
}

int trial_run(struct trial *trial, const struct trial_candidate *candidates, u32 count,
              const struct trial_options *options, struct trial_result *results,
              struct error *error)
{
    const struct trial_source source = {sample, trial};
    trial->candidates = candidates;
    trial->results = results;
    return trial_rounds(&source, count, options, results, error);
}
