/* paper.c - a device on which nothing runs: what a GPU that is not there would be asked to do.
 *
 * For estimates (engine/estimate.h). Memory is reserved address space: as large as the model, and
 * no larger in use than what is really written to it. Streams, events and graphs are nothing;
 * launches go into a list. Buffers are kept in an array sorted by address, to read them with care:
 * who follows a kernel without running it may ask for any address.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "device/device_private.h"

/* Fills and copies on the device of more than this are not done: they would only use memory. */
enum { WORTH_DOING = 1 << 20 };

struct span {
    u64 begin, bytes;
};

struct paper_device {
    struct device base;
    struct span *spans; /* sorted */
    size_t span_count;
    struct device_paper_launch *launches;
    size_t launch_count, launch_room;
};

/* Modules, functions, streams, events and graphs are only handles. */
struct device_module {
    struct device_function *functions; /* list */
};
struct device_function {
    struct device_function *next;
};
struct device_stream {
    u32 unused;
};
struct device_event {
    u32 unused;
};
struct device_graph {
    u32 unused;
};

static struct paper_device *paper_of(struct device *device)
{
    return (struct paper_device *)device;
}

static void *pointer(dptr address)
{
    return (void *)(uintptr_t)address;
}

/* ---- open and close */

static int open_paper_of(struct device **device, const struct device_info *info)
{
    struct paper_device *paper = memory_alloc(sizeof *paper);
    paper->base.info = *info;
    paper->base.info.kind = DEVICE_PAPER;
    paper->base.info.memory_free = paper->base.info.memory_total = UINT64_MAX / 2;
    *device = &paper->base;
    return 0;
}

static int paper_open(struct device **device, const struct device_options *options,
                      struct error *error)
{
    u32 arch, sms, shared;
    if (options->paper_of)
        return open_paper_of(device, options->paper_of);
    if (!options->as)
        return error_set(error, ERROR_USAGE,
                         "an estimate needs the GPU it is for, as "
                         "sm_86:82:100K");
    if (device_parse_as(options->as, &arch, &sms, &shared, error) != 0)
        return -1;
    if (shared <= DEVICE_RESERVED_SHARED)
        return error_set(error, ERROR_USAGE, "--as %s: expected more than %d bytes an SM",
                         options->as, DEVICE_RESERVED_SHARED);
    struct paper_device *paper = memory_alloc(sizeof *paper);
    struct device_info *info = &paper->base.info;
    *info = (struct device_info){
        .kind = DEVICE_PAPER,
        .arch = arch,
        .full_rate_f32_accumulate = device_adds_f32_at_full_rate(arch),
        .sms = sms,
        .shared_per_sm = shared,
        .shared_per_block = shared - DEVICE_RESERVED_SHARED,
        .registers_per_sm = DEVICE_REGISTERS,
        .memory_total = UINT64_MAX / 2,
        .memory_free = UINT64_MAX / 2,
    };
    snprintf(info->name, sizeof info->name, "paper: %s", options->as);
    snprintf(info->target, sizeof info->target, "sm_%u", arch);
    snprintf(info->compiler, sizeof info->compiler, "none");
    *device = &paper->base;
    return 0;
}

void device_paper_clear(struct device *device)
{
    struct paper_device *paper = paper_of(device);
    for (size_t i = 0; i < paper->launch_count; i++)
        memory_free(paper->launches[i].arguments);
    paper->launch_count = 0;
}

static void paper_close(struct device *device)
{
    struct paper_device *paper = paper_of(device);
    device_paper_clear(device);
    for (size_t i = 0; i < paper->span_count; i++)
        munmap(pointer(paper->spans[i].begin), paper->spans[i].bytes);
    memory_free(paper->spans);
    memory_free(paper->launches);
    memory_free(paper);
}

static int paper_memory_free(struct device *device, u64 *bytes, struct error *error)
{
    (void)error;
    *bytes = device->info.memory_free;
    return 0;
}

/* ---- memory */

/* Index of the first span that begins behind the address. */
static size_t span_after(const struct paper_device *paper, u64 address)
{
    size_t low = 0, high = paper->span_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (paper->spans[middle].begin > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void add_span(struct paper_device *paper, struct span span)
{
    const size_t at = span_after(paper, span.begin);
    paper->spans = memory_resize(paper->spans, (paper->span_count + 1) * sizeof *paper->spans);
    memmove(paper->spans + at + 1, paper->spans + at,
            (paper->span_count - at) * sizeof *paper->spans);
    paper->spans[at] = span;
    paper->span_count++;
}

static int paper_alloc(struct device *device, size_t bytes, const char *label, dptr *address,
                       struct error *error)
{
    const size_t rounded = bytes ? bytes : 1; /* the system refuses 0 */
    void *memory = mmap(NULL, rounded, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(error, ERROR_MEMORY, "%s: no address space for %s (%zu bytes)",
                         device->info.name, label, bytes);
    *address = (dptr)(uintptr_t)memory;
    add_span(paper_of(device), (struct span){*address, rounded});
    return 0;
}

static void paper_free(struct device *device, dptr address)
{
    struct paper_device *paper = paper_of(device);
    const size_t after = span_after(paper, address);
    if (after == 0 || paper->spans[after - 1].begin != address)
        return;
    munmap(pointer(address), paper->spans[after - 1].bytes);
    memmove(paper->spans + after - 1, paper->spans + after,
            (paper->span_count - after) * sizeof *paper->spans);
    paper->span_count--;
}

static int paper_alloc_pinned(struct device *device, size_t bytes, void **host, dptr *address,
                              struct error *error)
{
    if (paper_alloc(device, bytes, "page-locked memory", address, error) != 0)
        return -1;
    *host = pointer(*address);
    return 0;
}

static void paper_free_pinned(struct device *device, void *host)
{
    paper_free(device, (dptr)(uintptr_t)host);
}

static int paper_copy_in(struct device *device, struct device_stream *stream, dptr to,
                         const void *from, size_t bytes, struct error *error)
{
    (void)device, (void)stream, (void)error;
    memcpy(pointer(to), from, bytes);
    return 0;
}

static int paper_copy_out(struct device *device, struct device_stream *stream, void *to, dptr from,
                          size_t bytes, struct error *error)
{
    (void)device, (void)stream, (void)error;
    memcpy(to, pointer(from), bytes);
    return 0;
}

static int paper_copy(struct device *device, struct device_stream *stream, dptr to, dptr from,
                      size_t bytes, struct error *error)
{
    (void)device, (void)stream, (void)error;
    if (bytes <= WORTH_DOING)
        memmove(pointer(to), pointer(from), bytes);
    return 0;
}

static int paper_fill(struct device *device, struct device_stream *stream, dptr to, u8 value,
                      size_t bytes, struct error *error)
{
    (void)device, (void)stream, (void)error;
    if (bytes <= WORTH_DOING)
        memset(pointer(to), value, bytes);
    return 0;
}

bool device_paper_read(const struct device *device, dptr from, void *to, size_t bytes)
{
    const struct paper_device *paper = (const struct paper_device *)device;
    const size_t after = span_after(paper, from);
    if (after == 0)
        return false;
    const struct span *span = &paper->spans[after - 1];
    if (from - span->begin > span->bytes || span->bytes - (from - span->begin) < bytes)
        return false;
    memcpy(to, pointer(from), bytes);
    return true;
}

/* ---- streams, events, graphs */

static int paper_stream_create(struct device *device, enum device_priority priority,
                               struct device_stream **stream, struct error *error)
{
    (void)device, (void)priority, (void)error;
    *stream = memory_alloc(sizeof **stream);
    return 0;
}

static void paper_stream_destroy(struct device *device, struct device_stream *stream)
{
    (void)device;
    memory_free(stream);
}

static int paper_sync(struct device *device, struct device_stream *stream, struct error *error)
{
    (void)device, (void)stream, (void)error;
    return 0;
}

static int paper_event_create(struct device *device, struct device_event **event,
                              struct error *error)
{
    (void)device, (void)error;
    *event = memory_alloc(sizeof **event);
    return 0;
}

static void paper_event_destroy(struct device *device, struct device_event *event)
{
    (void)device;
    memory_free(event);
}

static int paper_event_record(struct device *device, struct device_event *event,
                              struct device_stream *stream, struct error *error)
{
    (void)device, (void)event, (void)stream, (void)error;
    return 0;
}

static int paper_event_wait(struct device *device, struct device_stream *stream,
                            struct device_event *event, struct error *error)
{
    (void)device, (void)stream, (void)event, (void)error;
    return 0;
}

static int paper_event_sync(struct device *device, struct device_event *event, struct error *error)
{
    (void)device, (void)event, (void)error;
    return 0;
}

static int paper_event_elapsed(struct device *device, struct device_event *from,
                               struct device_event *to, double *seconds, struct error *error)
{
    (void)device, (void)from, (void)to, (void)error;
    *seconds = 0;
    return 0;
}

static int paper_graph_begin(struct device *device, struct device_stream *stream,
                             struct error *error)
{
    (void)device, (void)stream, (void)error;
    return 0;
}

static int paper_graph_end(struct device *device, struct device_stream *stream,
                           struct device_graph **graph, struct error *error)
{
    (void)device, (void)stream, (void)error;
    *graph = memory_alloc(sizeof **graph);
    return 0;
}

static int paper_graph_launch(struct device *device, struct device_stream *stream,
                              struct device_graph *graph, struct error *error)
{
    (void)device, (void)stream, (void)graph, (void)error;
    return 0;
}

static void paper_graph_destroy(struct device *device, struct device_graph *graph)
{
    (void)device;
    memory_free(graph);
}

/* ---- code */

static int paper_compile(struct device *device, struct slice source, const char *name,
                         struct buffer *image, struct error *error)
{
    (void)device, (void)name, (void)error;
    buffer_clear(image);
    buffer_add_slice(image, source);
    return 0;
}

static int paper_module_load(struct device *device, const void *image, size_t size,
                             const char *name, struct device_module **module, struct error *error)
{
    (void)device, (void)image, (void)size, (void)name, (void)error;
    *module = memory_alloc(sizeof **module);
    return 0;
}

static void paper_module_unload(struct device *device, struct device_module *module)
{
    (void)device;
    while (module->functions) {
        struct device_function *function = module->functions;
        module->functions = function->next;
        memory_free(function);
    }
    memory_free(module);
}

static int paper_function_get(struct device *device, struct device_module *module, const char *name,
                              const struct device_geometry *geometry,
                              struct device_function **function, struct error *error)
{
    (void)device, (void)name, (void)geometry, (void)error;
    *function = memory_alloc(sizeof **function);
    (*function)->next = module->functions;
    module->functions = *function;
    return 0;
}

static int paper_launch(struct device *device, struct device_stream *stream,
                        struct device_function *function, const u64 *arguments, u32 count,
                        struct error *error)
{
    struct paper_device *paper = paper_of(device);
    (void)stream, (void)error;
    if (paper->launch_count == paper->launch_room) {
        paper->launch_room = paper->launch_room ? 2 * paper->launch_room : 1024;
        paper->launches = memory_resize(paper->launches,
                                        paper->launch_room * sizeof *paper->launches);
    }
    struct device_paper_launch *launch = &paper->launches[paper->launch_count++];
    *launch = (struct device_paper_launch){function, memory_alloc(count * sizeof *arguments),
                                           count};
    memcpy(launch->arguments, arguments, count * sizeof *arguments);
    return 0;
}

const struct device_paper_launch *device_paper_launches(const struct device *device, size_t *count)
{
    const struct paper_device *paper = (const struct paper_device *)device;
    *count = paper->launch_count;
    return paper->launches;
}

const struct device_backend paper_backend = {
    .open = paper_open,
    .close = paper_close,
    .memory_free = paper_memory_free,
    .alloc = paper_alloc,
    .free = paper_free,
    .alloc_pinned = paper_alloc_pinned,
    .free_pinned = paper_free_pinned,
    .copy_in = paper_copy_in,
    .copy_out = paper_copy_out,
    .copy = paper_copy,
    .fill = paper_fill,
    .stream_create = paper_stream_create,
    .stream_destroy = paper_stream_destroy,
    .sync = paper_sync,
    .event_create = paper_event_create,
    .event_destroy = paper_event_destroy,
    .event_record = paper_event_record,
    .event_wait = paper_event_wait,
    .event_sync = paper_event_sync,
    .event_elapsed = paper_event_elapsed,
    .compile = paper_compile,
    .module_load = paper_module_load,
    .module_unload = paper_module_unload,
    .function_get = paper_function_get,
    .launch = paper_launch,
    .graph_begin = paper_graph_begin,
    .graph_end = paper_graph_end,
    .graph_launch = paper_graph_launch,
    .graph_destroy = paper_graph_destroy,
};
