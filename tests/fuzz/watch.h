/* watch.h - stands between the engine and its device: knows all memory, sees every launch.
 *
 * The linker leads the program's calls of a few functions here (rules.mk, --wrap): __wrap_NAME is
 * called instead of NAME, __real_NAME is NAME itself. So the engine runs unchanged and
 *
 *   - every allocation is a region: all that a kernel can read or write is in them;
 *   - graphs are lists of launches, fills and copies, and launching one does them one by one;
 *   - watch.on_launch, when set, is called instead of a launch;
 *   - watch.on_request hears which parameters a kernel was requested with.
 */
#ifndef ELPIS_TESTS_FUZZ_WATCH_H
#define ELPIS_TESTS_FUZZ_WATCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "jit/jit.h"

enum { WATCH_ARGUMENTS = 32 };

struct region {
    dptr address;
    size_t bytes;
    u8 *host; /* page-locked memory; NULL: the device's own */
    char label[48];
};

struct watch {
    struct region *regions;
    size_t region_count;
    struct watched_graph *recording;
    /* Instead of the launch; NULL = just launch. */
    int (*on_launch)(struct device *device, struct device_stream *stream,
                     struct device_function *function, const u64 *arguments, u32 count,
                     struct error *error);
    void (*on_request)(const char *schedule, const struct jit_parameter *parameters,
                       const struct jit_kernel *kernel);
};
static struct watch watch;

/* ---- memory */

int __real_device_alloc(struct device *device, size_t bytes, const char *label, dptr *address,
                        struct error *error);
int __wrap_device_alloc(struct device *device, size_t bytes, const char *label, dptr *address,
                        struct error *error);
void __real_device_free(struct device *device, dptr address);
void __wrap_device_free(struct device *device, dptr address);
int __real_device_alloc_pinned(struct device *device, size_t bytes, void **host, dptr *address,
                               struct error *error);
int __wrap_device_alloc_pinned(struct device *device, size_t bytes, void **host, dptr *address,
                               struct error *error);
void __real_device_free_pinned(struct device *device, void *host);
void __wrap_device_free_pinned(struct device *device, void *host);

static void add_region(dptr address, size_t bytes, void *host, const char *label)
{
    watch.regions = memory_resize(watch.regions, (watch.region_count + 1) * sizeof *watch.regions);
    struct region *region = &watch.regions[watch.region_count++];
    *region = (struct region){.address = address, .bytes = bytes, .host = host};
    snprintf(region->label, sizeof region->label, "%s", label);
}

static void remove_region(dptr address, const void *host)
{
    for (size_t i = 0; i < watch.region_count; i++)
        if (host ? watch.regions[i].host == host : watch.regions[i].address == address) {
            watch.regions[i] = watch.regions[--watch.region_count];
            return;
        }
}

int __wrap_device_alloc(struct device *device, size_t bytes, const char *label, dptr *address,
                        struct error *error)
{
    if (__real_device_alloc(device, bytes, label, address, error))
        return -1;
    add_region(*address, bytes, NULL, label);
    return 0;
}

void __wrap_device_free(struct device *device, dptr address)
{
    if (address)
        remove_region(address, NULL);
    __real_device_free(device, address);
}

int __wrap_device_alloc_pinned(struct device *device, size_t bytes, void **host, dptr *address,
                               struct error *error)
{
    if (__real_device_alloc_pinned(device, bytes, host, address, error))
        return -1;
    add_region(*address, bytes, *host, "page-locked");
    return 0;
}

void __wrap_device_free_pinned(struct device *device, void *host)
{
    if (host)
        remove_region(0, host);
    __real_device_free_pinned(device, host);
}

/* The last region of that label; NULL = none. */
static const struct region *region_of(const char *label)
{
    const struct region *found = NULL;
    for (size_t i = 0; i < watch.region_count; i++)
        if (strcmp(watch.regions[i].label, label) == 0)
            found = &watch.regions[i];
    return found;
}

/* The region with this address in it. */
static const struct region *region_at(dptr address)
{
    for (size_t i = 0; i < watch.region_count; i++)
        if (address >= watch.regions[i].address &&
            address - watch.regions[i].address < watch.regions[i].bytes)
            return &watch.regions[i];
    return NULL;
}

static size_t regions_size(void)
{
    size_t bytes = 0;
    for (size_t i = 0; i < watch.region_count; i++)
        bytes += watch.regions[i].bytes;
    return bytes;
}

static int region_read(struct device *device, const struct region *region, u8 *to,
                       struct error *error)
{
    if (!region->host)
        return device_copy_out(device, NULL, to, region->address, region->bytes, error);
    memcpy(to, region->host, region->bytes);
    return 0;
}

static int region_write(struct device *device, const struct region *region, const u8 *from,
                        struct error *error)
{
    if (!region->host)
        return device_copy_in(device, NULL, region->address, from, region->bytes, error);
    memcpy(region->host, from, region->bytes);
    return 0;
}

/* All regions, one behind the other, into `to`. */
static int memory_read(struct device *device, u8 *to, struct error *error)
{
    if (device_sync(device, NULL, error))
        return -1;
    for (size_t i = 0; i < watch.region_count; to += watch.regions[i++].bytes)
        if (region_read(device, &watch.regions[i], to, error))
            return -1;
    return device_sync(device, NULL, error);
}

/* The other way, of regions that differ from `now`, which is what is there. */
static int memory_restore(struct device *device, const u8 *from, const u8 *now, struct error *error)
{
    for (size_t i = 0; i < watch.region_count; i++) {
        const struct region *region = &watch.regions[i];
        if (memcmp(from, now, region->bytes) != 0 && region_write(device, region, from, error))
            return -1;
        from += region->bytes;
        now += region->bytes;
    }
    return device_sync(device, NULL, error);
}

/* ---- launches and graphs */

enum watched_kind { WATCHED_LAUNCH, WATCHED_FILL, WATCHED_COPY };

struct watched {
    enum watched_kind kind;
    struct device_function *function;
    u64 arguments[WATCH_ARGUMENTS];
    u32 count;
    dptr to, from;
    u8 value;
    size_t bytes;
};

struct watched_graph {
    struct watched *list;
    size_t count;
};

int __real_device_launch(struct device *device, struct device_stream *stream,
                         struct device_function *function, const u64 *arguments, u32 count,
                         struct error *error);
int __wrap_device_launch(struct device *device, struct device_stream *stream,
                         struct device_function *function, const u64 *arguments, u32 count,
                         struct error *error);
int __real_device_fill(struct device *device, struct device_stream *stream, dptr to, u8 value,
                       size_t bytes, struct error *error);
int __wrap_device_fill(struct device *device, struct device_stream *stream, dptr to, u8 value,
                       size_t bytes, struct error *error);
int __real_device_copy(struct device *device, struct device_stream *stream, dptr to, dptr from,
                       size_t bytes, struct error *error);
int __wrap_device_copy(struct device *device, struct device_stream *stream, dptr to, dptr from,
                       size_t bytes, struct error *error);
int __wrap_device_graph_begin(struct device *device, struct device_stream *stream,
                              struct error *error);
int __wrap_device_graph_end(struct device *device, struct device_stream *stream,
                            struct device_graph **graph, struct error *error);
int __wrap_device_graph_launch(struct device *device, struct device_stream *stream,
                               struct device_graph *graph, struct error *error);
void __wrap_device_graph_destroy(struct device *device, struct device_graph *graph);
int __real_jit_request(struct jit *jit, const char *schedule,
                       const struct jit_parameter *parameters, struct jit_kernel **kernel,
                       struct error *error);
int __wrap_jit_request(struct jit *jit, const char *schedule,
                       const struct jit_parameter *parameters, struct jit_kernel **kernel,
                       struct error *error);

static struct watched *record(enum watched_kind kind)
{
    struct watched_graph *graph = watch.recording;
    graph->list = memory_resize(graph->list, (graph->count + 1) * sizeof *graph->list);
    struct watched *watched = &graph->list[graph->count++];
    *watched = (struct watched){.kind = kind};
    return watched;
}

int __wrap_device_launch(struct device *device, struct device_stream *stream,
                         struct device_function *function, const u64 *arguments, u32 count,
                         struct error *error)
{
    if (watch.recording) {
        struct watched *watched = record(WATCHED_LAUNCH);
        watched->function = function;
        watched->count = count;
        if (count > WATCH_ARGUMENTS)
            return error_set(error, ERROR_DEVICE, "a kernel of %u arguments", count);
        memcpy(watched->arguments, arguments, count * sizeof *arguments);
        return 0;
    }
    return (watch.on_launch ? watch.on_launch : __real_device_launch)(device, stream, function,
                                                                      arguments, count, error);
}

int __wrap_device_fill(struct device *device, struct device_stream *stream, dptr to, u8 value,
                       size_t bytes, struct error *error)
{
    if (!watch.recording)
        return __real_device_fill(device, stream, to, value, bytes, error);
    struct watched *watched = record(WATCHED_FILL);
    watched->to = to;
    watched->value = value;
    watched->bytes = bytes;
    return 0;
}

int __wrap_device_copy(struct device *device, struct device_stream *stream, dptr to, dptr from,
                       size_t bytes, struct error *error)
{
    if (!watch.recording)
        return __real_device_copy(device, stream, to, from, bytes, error);
    struct watched *watched = record(WATCHED_COPY);
    watched->to = to;
    watched->from = from;
    watched->bytes = bytes;
    return 0;
}

int __wrap_device_graph_begin(struct device *device, struct device_stream *stream,
                              struct error *error)
{
    (void)device, (void)stream, (void)error;
    watch.recording = memory_alloc(sizeof *watch.recording);
    return 0;
}

int __wrap_device_graph_end(struct device *device, struct device_stream *stream,
                            struct device_graph **graph, struct error *error)
{
    (void)device, (void)stream, (void)error;
    *graph = (struct device_graph *)watch.recording;
    watch.recording = NULL;
    return 0;
}

static int do_watched(struct device *device, struct device_stream *stream, const struct watched *w,
                      struct error *error)
{
    switch (w->kind) {
    case WATCHED_FILL: return device_fill(device, stream, w->to, w->value, w->bytes, error);
    case WATCHED_COPY: return device_copy(device, stream, w->to, w->from, w->bytes, error);
    default: return device_launch(device, stream, w->function, w->arguments, w->count, error);
    }
}

int __wrap_device_graph_launch(struct device *device, struct device_stream *stream,
                               struct device_graph *graph, struct error *error)
{
    const struct watched_graph *watched = (const struct watched_graph *)graph;
    for (size_t i = 0; i < watched->count; i++)
        if (do_watched(device, stream, &watched->list[i], error))
            return -1;
    return 0;
}

void __wrap_device_graph_destroy(struct device *device, struct device_graph *graph)
{
    struct watched_graph *watched = (struct watched_graph *)graph;
    (void)device;
    if (watched)
        memory_free(watched->list);
    memory_free(watched);
}

int __wrap_jit_request(struct jit *jit, const char *schedule,
                       const struct jit_parameter *parameters, struct jit_kernel **kernel,
                       struct error *error)
{
    if (__real_jit_request(jit, schedule, parameters, kernel, error))
        return -1;
    if (watch.on_request)
        watch.on_request(schedule, parameters, *kernel);
    return 0;
}

#endif
