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

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jit/occupancy.h"
#include "jit/records.h"

enum {
    CANDIDATES_FEW = 24,      /* of a kernel and generation */
    CANDIDATES_MANY = 64,     /* of one that takes a large share of the time */
    RESTORE_BYTES = 64 << 20, /* written: up to here, put back before every timed launch */
    DEFAULT_LAUNCHES = 4,     /* that must have equal bits before anything is compared */
    ROUNDS_FEW = 20,          /* of a trial of one that does not */
    OCCUPANCY_SHARE = 4,      /* of the default's warps on an SM: with fewer, not timed */
    ENTRANTS_SPARE = 2,       /* of a trial: the default and the best so far */
};
#define SHARE_LARGE 0.05
#define TRIAL_SECONDS 3.0
/* For the estimate alone: a candidate's compilation, and its part of a trial. */
#define COMPILE_SECONDS 1.0
#define TIMING_SECONDS 0.1

struct entry {
    struct choice choice;
    char digest[17];
    struct jit_kernel **variants; /* of each candidate; NULL: none, or the default's */
    struct compile_job **jobs;
    size_t room; /* of both */
    bool swept;  /* in this generation */
};

struct tune {
    struct measure *measure;
    struct jit *jit;
    struct device *device;
    struct tune_options options;
    struct arena *arena;
    struct trial *trial;
    struct compile_pool *pool;
    struct jit_kernel *compare;
    struct tune_kernel *kernels;
    struct entry *entries; /* beside them */
    size_t count;
    u32 generation;
    double start;
    bool ended_early;
    /* of discovery: the launch before */
    struct tune_kernel *last;
    double since;
    size_t passed;       /* kernels of passes that have ended */
    struct buffer other; /* shapes of the wanted kernel that are not wanted, a line each */
    /* of a comparison */
    bool tuned_in_place;
};

/* ---- time */

static double deadline(const struct tune *tune)
{
    return tune->options.budget > 0 ? tune->start + tune->options.budget : 0;
}

static double time_left(const struct tune *tune)
{
    return deadline(tune) > 0 ? deadline(tune) - clock_seconds() : 1e9;
}

static bool goes_on(void *user)
{
    struct tune *tune = user;
    if (time_left(tune) > 0 && (!tune->options.go_on || tune->options.go_on(tune->options.user)))
        return true;
    tune->ended_early = true;
    return false;
}

bool tune_ended_early(const struct tune *tune)
{
    return tune->ended_early;
}

/* ---- what is launched */

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

static struct tune_kernel *find_kernel(const struct tune *tune, const struct jit_kernel *kernel)
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
    };
    return &tune->kernels[tune->count++];
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
        struct tune_kernel *seen = find_kernel(tune, kernel);
        tune->last = seen ? seen : add_kernel(tune, kernel);
        tune->last->launches++;
    } else {
        note_other(tune, kernel);
    }
    tune->since = clock_seconds();
    return 0;
}

/* A pass is waited for: the time of its last launch. Kernels seen since are its own. */
static void end_pass(struct tune *tune, bool prompt)
{
    double all = 0;
    if (tune->last)
        tune->last->seconds += clock_seconds() - tune->since;
    tune->last = NULL;
    for (size_t i = tune->passed; i < tune->count; i++)
        all += tune->kernels[i].seconds;
    for (size_t i = tune->passed; i < tune->count; i++) {
        tune->kernels[i].prompt = prompt;
        tune->kernels[i].share = tune->kernels[i].seconds / all;
    }
    tune->passed = tune->count;
}

static int run_passes(struct tune *tune, jit_watcher *watcher, struct error *error)
{
    jit_watch(tune->jit, watcher, tune);
    int status = measure_every_kernel(tune->measure, tune->options.context, error);
    end_pass(tune, false);
    if (status == 0 && tune->options.prompts)
        status = measure_every_prompt_kernel(tune->measure, tune->options.context, error);
    end_pass(tune, true);
    jit_watch(tune->jit, NULL, NULL);
    return status;
}

static int discover(struct tune *tune, struct error *error)
{
    if (run_passes(tune, see_launch, error) != 0)
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

/* ---- what will be tried */

static size_t most_candidates(const struct tune *tune, const struct tune_kernel *kernel)
{
    if (tune->options.candidates)
        return tune->options.candidates;
    return kernel->share >= SHARE_LARGE ? CANDIDATES_MANY : CANDIDATES_FEW;
}

static u64 seed_of(const struct tune *tune, const struct tune_kernel *kernel)
{
    struct buffer text = {0};
    u64 seed;
    buffer_format(&text, "%s ", kernel->name);
    tune_table_text(kernel->parameters, &text);
    const struct digest digest = digest_of(text.data, text.size);
    buffer_free(&text);
    memcpy(&seed, digest.bytes, sizeof seed);
    return seed ^ tune->options.seed;
}

static bool same_text(const json_t *a, const json_t *b, const char *field)
{
    const char *mine = json_string_value(json_object_get(a, field));
    const char *other = json_string_value(json_object_get(b, field));
    return mine && other && strcmp(mine, other) == 0;
}

/* The record of this machine for the kernel, if schedule and compiler are still what they were:
 * else its times are those of other code. */
static const json_t *find_record(const struct tune *tune, const struct tune_kernel *kernel,
                                 const char *digest, const struct record_file *file)
{
    json_t *wanted = tune_record(kernel, device_info(tune->device), digest);
    const json_t *found = NULL;
    for (size_t i = 0; i < file->count && !found; i++) {
        const json_t *object = file->lines[i].object;
        if (object && record_same_key(object, wanted) && same_text(object, wanted, "digest") &&
            same_text(object, wanted, "compiler"))
            found = object;
    }
    json_decref(wanted);
    return found;
}

static int prepare_kernel(struct tune *tune, size_t index, const struct record_file *known,
                          struct error *error)
{
    struct tune_kernel *kernel = &tune->kernels[index];
    struct entry *entry = &tune->entries[index];
    if (jit_tunings(tune->jit, kernel->kernel, tune->arena, &entry->choice.legal,
                    &entry->choice.count, error) != 0)
        return -1;
    entry->choice.random = seed_of(tune, kernel);
    kernel->legal = entry->choice.count;
    if (!jit_kernel_digest(tune->jit, kernel->kernel, entry->digest) || kernel->legal == 0 ||
        !jit_same_table(entry->choice.legal[0], jit_kernel_tuning(kernel->kernel)))
        return error_set(error, ERROR_USAGE,
                         "kernel %s does not run with its default tuning: records and plan seeds "
                         "must be off",
                         kernel->name);
    choose_add(kernel, entry->choice.legal[0]);
    if (kernel->legal == 1)
        snprintf(kernel->skipped, sizeof kernel->skipped, "there is one legal tuning");
    else if (!strpbrk(jit_kernel_writes(kernel->kernel), "wl"))
        snprintf(kernel->skipped, sizeof kernel->skipped,
                 "its arguments do not say where it writes, so nothing can be compared");
    if (kernel->skipped[0])
        return 0;
    const json_t *record = tune->options.again ? NULL
                                               : find_record(tune, kernel, entry->digest, known);
    if (record)
        tune_take_record(kernel, record, &entry->choice);
    if (!kernel->settled)
        choose_first(kernel, &entry->choice, most_candidates(tune, kernel));
    return 0;
}

static int prepare_kernels(struct tune *tune, struct error *error)
{
    struct record_file known = {0};
    int status = 0;
    if (record_file_read(&known, tune->options.output, error) != 0)
        return -1;
    for (size_t i = 0; i < tune->count && status == 0; i++)
        status = prepare_kernel(tune, i, &known, error);
    record_file_free(&known);
    return status;
}

/* ---- opening and closing */

static bool on_host(const struct tune *tune)
{
    return device_info(tune->device)->kind == DEVICE_HOST;
}

static u32 thread_count(const struct tune *tune)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (tune->options.threads)
        return tune->options.threads;
    if (cores <= 1)
        return 1;
    return (u32)cores - !on_host(tune); /* one launches */
}

static int open_parts(struct tune *tune, struct error *error)
{
    static const struct jit_parameter none[] = {{0}};
    return jit_request(tune->jit, "compare", none, &tune->compare, error) ||
                   jit_build(tune->jit, error) || trial_open(&tune->trial, tune->device, error) ||
                   pool_open(&tune->pool, tune->jit, thread_count(tune), error) ||
                   discover(tune, error) || prepare_kernels(tune, error)
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

static size_t count_waiting(const struct tune_kernel *kernel)
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
        waiting += count_waiting(&tune->kernels[i]);
    return (double)waiting * (COMPILE_SECONDS / thread_count(tune) + TIMING_SECONDS);
}

/* ---- candidates before they run */

static void refuse(struct tune_candidate *candidate, const char *format, ...) PRINTF_LIKE(2, 3);

static void refuse(struct tune_candidate *candidate, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(candidate->reason, sizeof candidate->reason, format, list);
    va_end(list);
    candidate->state = TUNE_REFUSED;
}

static void make_room(struct entry *entry, size_t count)
{
    if (entry->room >= count)
        return;
    entry->variants = memory_resize(entry->variants, count * sizeof(void *));
    entry->jobs = memory_resize(entry->jobs, count * sizeof(void *));
    memset(entry->variants + entry->room, 0, (count - entry->room) * sizeof(void *));
    memset(entry->jobs + entry->room, 0, (count - entry->room) * sizeof(void *));
    entry->room = count;
}

/* Renders a candidate and gives it to the compilers, unless it is there or on its way. */
static void queue_candidate(struct tune *tune, size_t index, size_t which)
{
    struct tune_kernel *kernel = &tune->kernels[index];
    struct entry *entry = &tune->entries[index];
    struct tune_candidate *candidate = &kernel->candidates[which];
    struct error error;
    if (which == 0 || entry->variants[which])
        return;
    if (jit_variant_create(tune->jit, kernel->kernel, candidate->tuning, &entry->variants[which],
                           &error) != 0)
        refuse(candidate, "%.200s", error.text);
    else if (!jit_same_exports(kernel->kernel, entry->variants[which])) {
        refuse(candidate, "other kernels would have to know of it: its exports differ");
        jit_variant_destroy(tune->jit, entry->variants[which]);
        entry->variants[which] = NULL;
    } else {
        entry->jobs[which] = pool_add(tune->pool, entry->variants[which]);
    }
}

static void queue_kernel(struct tune *tune, size_t index)
{
    struct tune_kernel *kernel = &tune->kernels[index];
    if (!count_waiting(kernel))
        return;
    make_room(&tune->entries[index], kernel->count);
    for (size_t i = 0; i < kernel->count; i++)
        if (kernel->candidates[i].state == TUNE_WAITING || i == kernel->best)
            queue_candidate(tune, index, i);
}

static u32 resident_warps(const struct tune *tune, const struct jit_kernel *kernel,
                          struct device_resources *resources, struct error *error)
{
    const struct device_info *info = device_info(tune->device);
    const struct device_geometry *geometry = jit_kernel_geometry(kernel);
    if (device_function_resources(tune->device, jit_kernel_function(kernel), resources, error) != 0)
        return 0;
    const u32 fit = occupancy_ctas(info->arch, info->shared_per_sm, geometry, resources);
    const u32 there = (geometry->grid + info->sms - 1) / info->sms;
    return (fit < there ? fit : there) * (geometry->block / 32);
}

/* What the assembler says of a candidate: whether it is worth a launch. */
static bool judge_resources(const struct tune *tune, const struct jit_kernel *standard,
                            const struct jit_kernel *variant, struct tune_candidate *candidate)
{
    struct device_resources mine, its;
    struct error error = {0};
    if (on_host(tune))
        return true;
    const u32 warps = resident_warps(tune, variant, &mine, &error);
    const u32 usual = resident_warps(tune, standard, &its, &error);
    if (error.code)
        refuse(candidate, "%.200s", error.text);
    else if (warps == 0)
        refuse(candidate, "does not fit an SM");
    else if (mine.local_bytes > its.local_bytes)
        refuse(candidate,
               "spills: %" PRIu32 " bytes of local memory a thread, the default %" PRIu32,
               mine.local_bytes, its.local_bytes);
    else if (warps * OCCUPANCY_SHARE < usual)
        refuse(candidate, "%" PRIu32 " warps on an SM, the default has %" PRIu32, warps, usual);
    return candidate->state != TUNE_REFUSED;
}

/* Whether the compiled candidate is loaded and may be launched. */
static bool load_candidate(struct tune *tune, size_t index, size_t which)
{
    struct entry *entry = &tune->entries[index];
    struct tune_candidate *candidate = &tune->kernels[index].candidates[which];
    struct compile_job *job = entry->jobs[which];
    struct error error;
    if (!entry->variants[which])
        return false;
    if (jit_kernel_function(entry->variants[which]))
        return true;
    if (!job || !pool_wait(tune->pool, job, deadline(tune)))
        return false; /* it waits for the next sweep */
    if (job->status != 0)
        refuse(candidate, "%.230s", job->error.text);
    else if (jit_variant_load(tune->jit, entry->variants[which], &job->image, &error) != 0)
        refuse(candidate, "%.230s", error.text);
    buffer_free(&job->image);
    return candidate->state != TUNE_REFUSED &&
           judge_resources(tune, tune->kernels[index].kernel, entry->variants[which], candidate);
}

/* ---- a kernel's sweep */

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
        refuse(candidate, "%.230s", reason.text);
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
    refuse(candidate, "leaves other bits than the default");
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
            !load_candidate(tune, index, i))
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
            refuse(candidate, "%.230s", results[i].reason.text);
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
    const double left = time_left(tune);
    const struct trial_options options = {
        .rounds = sweep->kernel->share >= SHARE_LARGE ? TRIAL_ROUNDS : ROUNDS_FEW,
        .seconds = left < TRIAL_SECONDS ? left : TRIAL_SECONDS,
        .seed = tune->options.seed + tune->generation,
        .keep_first = true,
        .go_on = goes_on,
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

static int write_record(struct tune *tune, size_t index, struct error *error)
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
static int sweep_kernel(struct tune *tune, size_t index, const u64 *arguments, u32 count,
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
    kernel->settled = kernel->count == kernel->legal && !count_waiting(kernel);
    drop_variants(tune, index);
    return write_record(tune, index, error);
}

/* ---- generations */

static u32 count_pending(const struct tune *tune, bool swept_too)
{
    u32 count = 0;
    for (size_t i = 0; i < tune->count; i++)
        count += swept_too ? tune->entries[i].swept || count_waiting(&tune->kernels[i]) > 0
                           : !tune->entries[i].swept && count_waiting(&tune->kernels[i]) > 0;
    return count;
}

static void tell(const struct tune *tune, const struct tune_kernel *kernel, bool finished)
{
    struct tune_progress progress = {.generation = tune->generation,
                                     .now = kernel,
                                     .finished = finished,
                                     .spent = clock_seconds() - tune->start,
                                     .left = time_left(tune)};
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
    struct tune_kernel *known = find_kernel(tune, kernel);
    if (!known || !count_waiting(known) || !goes_on(tune))
        return 0;
    const size_t index = (size_t)(known - tune->kernels);
    if (tune->entries[index].swept)
        return 0;
    tune->entries[index].swept = true;
    tell(tune, known, false);
    if (on_host(tune))
        queue_kernel(tune, index);
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
        if (!kernel->skipped[0] && !kernel->settled && !count_waiting(kernel) &&
            !choose_next(kernel, &entry->choice, most_candidates(tune, kernel)))
            kernel->settled = true;
    }
}

static int run_generation(struct tune *tune, struct error *error)
{
    for (size_t i = 0; i < tune->count && !on_host(tune); i++)
        queue_kernel(tune, i);
    const int status = run_passes(tune, sweep_launch, error);
    pool_cancel(tune->pool);
    return status;
}

/* A kernel can be settled without a trial; its record then says so. */
static int write_settled(struct tune *tune, struct error *error)
{
    for (size_t i = 0; i < tune->count; i++)
        if (tune->kernels[i].settled && write_record(tune, i, error) != 0)
            return -1;
    return 0;
}

int tune_run(struct tune *tune, struct error *error)
{
    tune->start = clock_seconds();
    for (;;) {
        tune->generation++;
        choose_generation(tune);
        if (!count_pending(tune, false) || !goes_on(tune))
            break;
        if (run_generation(tune, error) != 0)
            return -1;
    }
    return write_settled(tune, error);
}

/* ---- default and tuned side by side */

/* Loads what takes the place of the defaults. */
static int load_best(struct tune *tune, u32 *kernels, struct error *error)
{
    for (size_t i = 0; i < tune->count; i++) {
        struct tune_kernel *kernel = &tune->kernels[i];
        struct entry *entry = &tune->entries[i];
        struct buffer image = {0};
        if (kernel->best == 0)
            continue;
        (*kernels)++;
        make_room(entry, kernel->count);
        struct jit_kernel **variant = &entry->variants[kernel->best];
        if (*variant && jit_kernel_function(*variant))
            continue;
        jit_variant_destroy(tune->jit, *variant);
        *variant = NULL;
        const int failed = jit_variant_create(tune->jit, kernel->kernel,
                                              kernel->candidates[kernel->best].tuning, variant,
                                              error) ||
                           jit_variant_compile(tune->jit, *variant, &image, error) ||
                           jit_variant_load(tune->jit, *variant, &image, error);
        buffer_free(&image);
        if (failed)
            return -1;
    }
    return 0;
}

static void put_in_place(struct tune *tune, bool tuned)
{
    if (tune->tuned_in_place == tuned)
        return;
    for (size_t i = 0; i < tune->count; i++)
        if (tune->kernels[i].best != 0)
            jit_swap(tune->jit, tune->kernels[i].kernel,
                     tune->entries[i].variants[tune->kernels[i].best]);
    measure_swap_graphs(tune->measure);
    tune->tuned_in_place = tuned;
}

static int launch_default(void *context, struct error *error)
{
    struct tune *tune = context;
    put_in_place(tune, false);
    return measure_launch_verify(tune->measure, error);
}

static int launch_tuned(void *context, struct error *error)
{
    struct tune *tune = context;
    put_in_place(tune, true);
    return measure_launch_verify(tune->measure, error);
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
    int status = load_best(tune, &comparison->kernels, error) ||
                         measure_begin_verify(tune->measure, tune->options.context, error) ||
                         compare_logits(tune, &comparison->same_logits, error) ||
                         trial_run(tune->trial, candidates, COUNT_OF(candidates), &options, results,
                                   error)
                     ? -1
                     : 0;
    put_in_place(tune, false);
    if (status != 0)
        return -1;
    for (u32 i = 0; i < COUNT_OF(candidates); i++) {
        comparison->seconds[i][0] = results[i].low;
        comparison->seconds[i][1] = results[i].median;
        comparison->seconds[i][2] = results[i].high;
    }
    comparison->samples = results[0].samples;
    comparison->beats = trial_beats(&results[1], &results[0]);
    return 0;
}
