/* prepare.c - what will be tried: a kernel's legal tunings, what a record knows of them, and the
 * first generation.
 */
#include "tune/tune_private.h"

#include <stdio.h>
#include <string.h>

#include "jit/records.h"

enum {
    CANDIDATES_FEW = 24,  /* of a kernel and generation */
    CANDIDATES_MANY = 64, /* of one that takes a large share of the time */
};

size_t prepare_most(const struct tune *tune, const struct tune_kernel *kernel)
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
        choose_first(kernel, &entry->choice, prepare_most(tune, kernel));
    return 0;
}

int prepare_kernels(struct tune *tune, struct error *error)
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
