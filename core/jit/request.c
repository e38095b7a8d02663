/* request.c - requests: rendering, the key, shared kernels, the plan's hash.
 *
 * The cache key is a digest of, in this order and each ended by a zero byte: the version of this
 * code, the target, the compiler as the device names it (version, and for the host the CPU's
 * features), the entry, the key text of Lua (generator version, schedule's text, parameters) and
 * the source, which holds every included text. The options of the compiler are fixed in the
 * program and covered by the first.
 *
 * The plan's hash names what runs: it covers schedule, parameters and resolved tuning of every
 * distinct request, in no order (digests are added up).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/jit_private.h"
#include "jit/records.h"

static const char key_version[] = "elpis jit 2"; /* raise when compiler options change */

/* ---- targets */

void jit_target_of(const struct device_info *info, struct scripts_target *target)
{
    memset(target, 0, sizeof *target);
    snprintf(target->name, sizeof target->name, "%s", info->target);
    target->arch = info->arch;
    target->sms = info->sms;
    target->shared_per_sm = info->shared_per_sm;
    target->shared_per_block = info->shared_per_block;
    target->registers_per_sm = info->registers_per_sm;
    target->check = info->kind == DEVICE_HOST && strstr(info->compiler, "check") != NULL;
}

/* A100, RTX 3090, RTX 4090, H200, B200, RTX 5090; the host as it is. */
static const struct jit_gpu usual_gpus[] = {
    {"sm_80", 108, 164 << 10, 0, 0},  {"sm_86", 82, 100 << 10, 1510, 876},
    {"sm_89", 128, 100 << 10, 0, 0},  {"sm_90", 132, 228 << 10, 1980, 4181},
    {"sm_100", 148, 228 << 10, 0, 0}, {"sm_120", 170, 100 << 10, 0, 0},
    {"host", 4, 228 << 10, 0, 0},
};

const struct jit_gpu *jit_usual_gpu(const char *target)
{
    for (size_t i = 0; i < COUNT_OF(usual_gpus); i++)
        if (strcmp(usual_gpus[i].target, target) == 0)
            return &usual_gpus[i];
    return NULL;
}

int jit_target_named(const char *name, u32 sms, u32 shared_per_sm, struct scripts_target *target,
                     struct error *error)
{
    char *end = NULL;
    memset(target, 0, sizeof *target);
    snprintf(target->name, sizeof target->name, "%s", name);
    target->sms = sms;
    target->shared_per_sm = shared_per_sm;
    target->shared_per_block = shared_per_sm - DEVICE_RESERVED_SHARED;
    target->registers_per_sm = DEVICE_REGISTERS;
    if (strcmp(name, "host") == 0)
        return 0;
    if (strncmp(name, "sm_", 3) == 0)
        target->arch = (u32)strtoul(name + 3, &end, 10);
    if (!end || *end || target->arch < 80 || sms == 0 || shared_per_sm <= DEVICE_RESERVED_SHARED)
        return error_set(error, ERROR_USAGE,
                         "target \"%s\": expected host, or sm_80 or later as sm_86", name);
    return 0;
}

/* ---- open and close */

int jit_open(struct jit **jit, struct device *device, const struct jit_options *options,
             struct error *error)
{
    struct jit *opened = memory_alloc(sizeof *opened);
    opened->device = device;
    opened->plan_seed = options->plan_seed;
    opened->compile_threads = options->compile_threads;
    opened->last = &opened->kernels;
    snprintf(opened->plan_hash, sizeof opened->plan_hash, "%016x", 0);
    jit_target_of(device_info(device), &opened->target);
    if (records_check_folder(options->records, error) != 0 ||
        scripts_open(&opened->scripts, options->schedules, error) != 0) {
        memory_free(opened);
        return -1;
    }
    scripts_set_files(opened->scripts, options->files);
    if (options->schedules && !options->warned)
        foreign_warn(opened->scripts, options->schedules);
    opened->foreign_library = options->schedules && foreign_library(opened->scripts);
    opened->records = records_open(opened->scripts, options->records);
    opened->cache = cache_open(options->cache, options->memory_only);
    *jit = opened;
    return 0;
}

void jit_kernel_destroy(struct jit *jit, struct jit_kernel *kernel)
{
    if (!kernel)
        return;
    if (kernel->module)
        device_module_unload(jit->device, kernel->module);
    scripts_rendering_free(&kernel->rendering);
    arena_destroy(kernel->arena);
    memory_free(kernel->name);
    memory_free(kernel);
}

void jit_close(struct jit *jit)
{
    if (!jit)
        return;
    while (jit->kernels) {
        struct jit_kernel *kernel = jit->kernels;
        jit->kernels = kernel->next;
        jit_kernel_destroy(jit, kernel);
    }
    if (!jit->check_is_requested)
        jit_kernel_destroy(jit, jit->check);
    cache_close(jit->cache);
    records_close(jit->records);
    scripts_close(jit->scripts);
    memory_free(jit->plan_lines);
    memory_free(jit);
}

/* ---- rendering */

static void add_text(struct digest_state *state, const char *text)
{
    digest_add(state, text, strlen(text) + 1);
}

static struct digest key_of(const struct jit *jit, const struct scripts_rendering *rendering)
{
    const struct device_info *info = device_info(jit->device);
    struct digest_state *state = digest_begin();
    add_text(state, key_version);
    add_text(state, info->target);
    add_text(state, info->compiler);
    add_text(state, rendering->entry);
    digest_add(state, rendering->key_text.data, rendering->key_text.size);
    digest_add(state, "", 1);
    digest_add(state, rendering->source.data, rendering->source.size);
    return digest_end(state);
}

/* The seed of one kernel's random tuning: a digest of the plan's seed and the request, so that
 * kernels draw independently; never 0. */
static i64 seed_of(u64 plan_seed, const char *schedule, const struct jit_parameter *parameters)
{
    struct digest_state *state = digest_begin();
    i64 seed;
    digest_add(state, &plan_seed, sizeof plan_seed);
    add_text(state, schedule);
    for (; parameters->name; parameters++) {
        add_text(state, parameters->name);
        add_text(state, parameters->text ? parameters->text : "");
        digest_add(state, &parameters->number, sizeof parameters->number);
    }
    struct digest digest = digest_end(state);
    memcpy(&seed, digest.bytes, sizeof seed);
    seed &= INT64_MAX;
    return seed ? seed : 1;
}

/* Renders with the record's tuning if there is one that fits; the request says what was taken. */
static int render(struct jit *jit, struct scripts_request *request,
                  struct scripts_rendering *rendering, struct error *error)
{
    if (jit->plan_seed) {
        request->seed = seed_of(jit->plan_seed, request->schedule, request->parameters);
        return scripts_render(jit->scripts, request, rendering, error);
    }
    struct error reason;
    request->tuning = records_find(jit->records, request->schedule, &jit->target,
                                   request->parameters);
    if (request->tuning) {
        if (scripts_render(jit->scripts, request, rendering, &reason) == 0)
            return 0;
        log_warn("tuning record refused: %s; the default is used", reason.text);
        request->tuning = NULL;
    } else if (jit->target.arch && !jit->record_warned) {
        jit->record_warned = true;
        log_info("no tuning record for %s on %s; kernels without one use the analytic default",
                 request->schedule, jit->target.name);
    }
    return scripts_render(jit->scripts, request, rendering, error);
}

static struct jit_parameter *copy_table(struct arena *arena, const struct jit_parameter *table)
{
    size_t count = 0;
    while (table[count].name)
        count++;
    struct jit_parameter *copy = arena_alloc(arena, (count + 1) * sizeof *copy);
    for (size_t i = 0; i < count; i++) {
        copy[i].name = arena_text(arena, slice_of(table[i].name));
        copy[i].number = table[i].number;
        copy[i].text = table[i].text ? arena_text(arena, slice_of(table[i].text)) : NULL;
    }
    return copy;
}

/* The laws of the program's own schedules are tested with the program. */
static int check_laws(struct jit *jit, const struct jit_kernel *kernel,
                      const struct scripts_request *request, struct error *error)
{
    if ((!jit->foreign_library && !foreign_schedule(jit->scripts, request->schedule)) ||
        jit_kernel_find(jit, &kernel->key))
        return 0;
    return scripts_laws(jit->scripts, request, error);
}

/* The kernel whose rendering is there; destroyed where its laws do not hold. */
static int finish_kernel(struct jit *jit, struct jit_kernel *kernel,
                         const struct scripts_request *request, struct error *error)
{
    kernel->name = memory_copy_text(slice_of(request->schedule));
    kernel->arena = arena_create();
    kernel->parameters = copy_table(kernel->arena, request->parameters);
    kernel->key = key_of(jit, &kernel->rendering);
    if (check_laws(jit, kernel, request, error) == 0)
        return 0;
    jit_kernel_destroy(jit, kernel);
    return -1;
}

int jit_kernel_create(struct jit *jit, const char *schedule, const struct jit_parameter *parameters,
                      struct jit_kernel **kernel, struct error *error)
{
    struct scripts_request request = {
        .schedule = schedule, .parameters = parameters, .target = &jit->target};
    struct jit_kernel *fresh = memory_alloc(sizeof *fresh);
    if (render(jit, &request, &fresh->rendering, error) != 0) {
        memory_free(fresh);
        return -1;
    }
    if (finish_kernel(jit, fresh, &request, error) != 0)
        return -1;
    *kernel = fresh;
    return 0;
}

int jit_kernel_render(struct jit *jit, const char *schedule, const struct jit_parameter *parameters,
                      const struct jit_parameter *tuning, struct jit_kernel **kernel,
                      struct error *error)
{
    const struct scripts_request request = {
        .schedule = schedule, .parameters = parameters, .tuning = tuning, .target = &jit->target};
    struct jit_kernel *fresh = memory_alloc(sizeof *fresh);
    if (scripts_render(jit->scripts, &request, &fresh->rendering, error) != 0) {
        memory_free(fresh);
        return -1;
    }
    if (finish_kernel(jit, fresh, &request, error) != 0)
        return -1;
    *kernel = fresh;
    return 0;
}

/* ---- requests */

struct jit_kernel *jit_kernel_find(struct jit *jit, const struct digest *key)
{
    struct jit_kernel *kernel = jit->kernels;
    while (kernel && memcmp(&kernel->key, key, sizeof *key) != 0)
        kernel = kernel->next;
    return kernel;
}

static void count_in_plan(struct jit *jit, const struct buffer *line)
{
    struct digest digest = digest_of(line->data, line->size);
    u64 word;
    memcpy(&word, digest.bytes, sizeof word);
    for (size_t i = 0; i < jit->plan_count; i++)
        if (jit->plan_lines[i] == word)
            return;
    jit->plan_lines = memory_resize(jit->plan_lines, (jit->plan_count + 1) * sizeof word);
    jit->plan_lines[jit->plan_count++] = word;
    jit->plan_sum += word;
    snprintf(jit->plan_hash, sizeof jit->plan_hash, "%016llx", (unsigned long long)jit->plan_sum);
}

/* What was asked for in the same words before: a model's layers ask alike, and to render takes
 * milliseconds. NULL: nothing. */
static struct jit_kernel *find_request(struct jit *jit, const char *schedule,
                                       const struct jit_parameter *parameters)
{
    struct jit_kernel *kernel = jit->kernels;
    while (kernel &&
           (strcmp(kernel->name, schedule) != 0 || !jit_same_table(kernel->parameters, parameters)))
        kernel = kernel->next;
    return kernel;
}

int jit_request(struct jit *jit, const char *schedule, const struct jit_parameter *parameters,
                struct jit_kernel **kernel, struct error *error)
{
    struct jit_kernel *fresh = NULL;
    *kernel = find_request(jit, schedule, parameters);
    if (*kernel)
        return 0;
    if (jit_kernel_create(jit, schedule, parameters, &fresh, error) != 0)
        return -1;
    count_in_plan(jit, &fresh->rendering.plan);
    log_debug("plan: %s", fresh->rendering.plan.data);
    *kernel = jit_kernel_find(jit, &fresh->key);
    if (*kernel) {
        jit_kernel_destroy(jit, fresh);
        return 0;
    }
    *jit->last = fresh;
    jit->last = &fresh->next;
    *kernel = fresh;
    return 0;
}

/* ---- what a kernel is */

struct device_function *jit_kernel_function(const struct jit_kernel *kernel)
{
    return kernel->function;
}

const struct device_geometry *jit_kernel_geometry(const struct jit_kernel *kernel)
{
    return &kernel->rendering.geometry;
}

const char *jit_kernel_name(const struct jit_kernel *kernel)
{
    return kernel->name;
}

struct slice jit_kernel_source(const struct jit_kernel *kernel)
{
    return buffer_slice(&kernel->rendering.source);
}

const char *jit_kernel_plan(const struct jit_kernel *kernel)
{
    return kernel->rendering.plan.data;
}

const struct jit_kernel *jit_kernel_of(const struct jit *jit,
                                       const struct device_function *function)
{
    const struct jit_kernel *kernel = jit->kernels;
    while (kernel && kernel->function != function)
        kernel = kernel->next;
    return kernel;
}

i64 jit_kernel_export(const struct jit_kernel *kernel, const char *name)
{
    for (size_t i = 0; i < kernel->rendering.export_count; i++)
        if (strcmp(kernel->rendering.exports[i].name, name) == 0)
            return kernel->rendering.exports[i].value;
    return -1;
}

const char *jit_plan_hash(const struct jit *jit)
{
    return jit->plan_hash;
}

/* The watcher's own launches are not watched. */
static int watch_launch(struct jit *jit, const struct jit_kernel *kernel, const u64 *arguments,
                        u32 count, struct error *error)
{
    jit_watcher *watcher = jit->watcher;
    jit->watcher = NULL;
    const int status = watcher(jit->watcher_user, kernel, arguments, count, error);
    jit->watcher = watcher;
    return status;
}

int jit_launch(struct jit *jit, struct device_stream *stream, const struct jit_kernel *kernel,
               const u64 *arguments, u32 count, struct error *error)
{
    if (!kernel->function)
        return error_set(error, ERROR_DEVICE, "kernel %s was launched before it was built",
                         kernel->name);
    if (count != kernel->rendering.arguments)
        return error_set(error, ERROR_DEVICE, "kernel %s: expected %u arguments, found %u",
                         kernel->name, kernel->rendering.arguments, count);
    if (jit->watcher && watch_launch(jit, kernel, arguments, count, error) != 0)
        return -1;
    return device_launch(jit->device, stream, kernel->function, arguments, count, error);
}

/* ---- without a device */

int jit_render(const char *schedules, const char *schedule, const struct jit_parameter *parameters,
               const char *target, u32 sms, u32 shared_per_sm, struct buffer *source,
               struct device_geometry *geometry, struct error *error)
{
    struct scripts *scripts = NULL;
    struct scripts_target found;
    struct scripts_rendering rendering;
    struct scripts_request request = {
        .schedule = schedule, .parameters = parameters, .target = &found};
    if (jit_target_named(target, sms, shared_per_sm, &found, error) != 0 ||
        scripts_open(&scripts, schedules, error) != 0)
        return -1;
    int status = scripts_render(scripts, &request, &rendering, error);
    if (status == 0) {
        buffer_clear(source);
        buffer_add_slice(source, buffer_slice(&rendering.source));
        if (geometry)
            *geometry = rendering.geometry;
        scripts_rendering_free(&rendering);
    }
    scripts_close(scripts);
    return status;
}

int jit_list(const char *schedules, struct jit_listing **listing, size_t *count,
             struct error *error)
{
    struct scripts *scripts = NULL;
    struct scripts_listing *found = NULL;
    struct arena *arena = arena_create();
    int status = scripts_open(&scripts, schedules, error);
    if (status == 0)
        status = scripts_schedules(scripts, arena, &found, count, error);
    if (status == 0) {
        *listing = memory_alloc((*count + 1) * sizeof **listing);
        for (size_t i = 0; i < *count; i++) {
            snprintf((*listing)[i].name, sizeof(*listing)[i].name, "%s", found[i].name);
            snprintf((*listing)[i].summary, sizeof(*listing)[i].summary, "%s", found[i].summary);
            snprintf((*listing)[i].parameters, sizeof(*listing)[i].parameters, "%s",
                     found[i].parameters);
        }
    }
    scripts_close(scripts);
    arena_destroy(arena);
    return status;
}
