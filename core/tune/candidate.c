/* candidate.c - a candidate before it runs: rendered, compiled, judged by what the assembler says,
 * loaded. Wherever that ends, the candidate is refused with a reason.
 */
#include "tune/tune_private.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jit/occupancy.h"

enum { OCCUPANCY_SHARE = 4 }; /* of the default's warps on an SM: with fewer, not timed */

void candidate_refuse(struct tune_candidate *candidate, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(candidate->reason, sizeof candidate->reason, format, list);
    va_end(list);
    candidate->state = TUNE_REFUSED;
}

void candidate_make_room(struct entry *entry, size_t count)
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
        candidate_refuse(candidate, "%.200s", error.text);
    else if (!jit_same_exports(kernel->kernel, entry->variants[which])) {
        candidate_refuse(candidate, "other kernels would have to know of it: its exports differ");
        jit_variant_destroy(tune->jit, entry->variants[which]);
        entry->variants[which] = NULL;
    } else {
        entry->jobs[which] = pool_add(tune->pool, entry->variants[which]);
    }
}

void candidate_queue(struct tune *tune, size_t index)
{
    struct tune_kernel *kernel = &tune->kernels[index];
    if (!tune_waiting(kernel))
        return;
    candidate_make_room(&tune->entries[index], kernel->count);
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
    if (tune_on_host(tune))
        return true;
    const u32 warps = resident_warps(tune, variant, &mine, &error);
    const u32 usual = resident_warps(tune, standard, &its, &error);
    if (error.code)
        candidate_refuse(candidate, "%.200s", error.text);
    else if (warps == 0)
        candidate_refuse(candidate, "does not fit an SM");
    else if (mine.local_bytes > its.local_bytes)
        candidate_refuse(candidate,
                         "spills: %" PRIu32 " bytes of local memory a thread, the default %" PRIu32,
                         mine.local_bytes, its.local_bytes);
    else if (warps * OCCUPANCY_SHARE < usual)
        candidate_refuse(candidate, "%" PRIu32 " warps on an SM, the default has %" PRIu32, warps,
                         usual);
    return candidate->state != TUNE_REFUSED;
}

int candidate_fetch(struct tune *tune, size_t index, size_t which, struct error *error)
{
    const struct tune_kernel *kernel = &tune->kernels[index];
    struct entry *entry = &tune->entries[index];
    struct buffer image = {0};
    candidate_make_room(entry, kernel->count);
    struct jit_kernel **variant = &entry->variants[which];
    if (*variant && jit_kernel_function(*variant))
        return 0;
    jit_variant_destroy(tune->jit, *variant);
    *variant = NULL;
    const int failed = jit_variant_create(tune->jit, kernel->kernel,
                                          kernel->candidates[which].tuning, variant, error) ||
                       jit_variant_compile(tune->jit, *variant, &image, error) ||
                       jit_variant_load(tune->jit, *variant, &image, error);
    buffer_free(&image);
    return failed ? -1 : 0;
}

/* Whether the compiled candidate is loaded and may be launched. */
bool candidate_load(struct tune *tune, size_t index, size_t which)
{
    struct entry *entry = &tune->entries[index];
    struct tune_candidate *candidate = &tune->kernels[index].candidates[which];
    struct compile_job *job = entry->jobs[which];
    struct error error;
    if (!entry->variants[which])
        return false;
    if (jit_kernel_function(entry->variants[which]))
        return true;
    if (!job || !pool_wait(tune->pool, job, tune_deadline(tune)))
        return false; /* it waits for the next sweep */
    if (job->status != 0)
        candidate_refuse(candidate, "%.230s", job->error.text);
    else if (jit_variant_load(tune->jit, entry->variants[which], &job->image, &error) != 0)
        candidate_refuse(candidate, "%.230s", error.text);
    buffer_free(&job->image);
    return candidate->state != TUNE_REFUSED &&
           judge_resources(tune, tune->kernels[index].kernel, entry->variants[which], candidate);
}
