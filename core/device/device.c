/* device.c - the dispatcher: picks a backend and forwards to its table.
 *
 * "auto" takes the first CUDA device that opens and falls back to the host with
 * one line that says why. What is the same for every backend (null checks, the
 * names in options.device, what the host cannot do) is decided here; nothing
 * else is.
 */
#include <stdio.h>
#include <string.h>

#include "device/device_private.h"

bool device_adds_f32_at_full_rate(u32 arch)
{
    return arch == 80 || arch == 87 || arch == 90 || arch == 100 || arch == 101 || arch == 103;
}

int device_parse_as(const char *text, u32 *arch, u32 *sms, u32 *shared, struct error *error)
{
    char unit[2] = "";
    int used = 0;
    int fields = sscanf(text, "sm_%3u:%4u:%8u%n%1[K]%n", arch, sms, shared, &used, unit, &used);
    if (fields < 3 || text[used] != 0 || *sms == 0 || *arch < DEVICE_OLDEST_ARCH)
        return error_set(error, ERROR_USAGE,
                         "--as \"%s\": expected architecture:SMs:shared memory per SM, as "
                         "sm_86:82:100K, with sm_%d or later",
                         text, DEVICE_OLDEST_ARCH);
    if (unit[0] == 'K')
        *shared *= 1024;
    return 0;
}

static int open_with(const struct device_backend *backend, struct device **device,
                     const struct device_options *options, struct error *error)
{
    struct device *opened = NULL;
    if (backend->open(&opened, options, error) != 0)
        return -1;
    opened->backend = backend;
    *device = opened;
    return 0;
}

static int open_auto(struct device **device, const struct device_options *options,
                     struct error *error)
{
    struct error reason;
    if (open_with(&cuda_backend, device, options, &reason) == 0)
        return 0;
    if (options->as)
        return error_set(error, reason.code, "%s", reason.text);
    log_info("no CUDA device (%s); using the host device", reason.text);
    return open_with(&host_backend, device, options, error);
}

int device_open(struct device **device, const struct device_options *options, struct error *error)
{
    const char *name = options->device ? options->device : "auto";
    if (options->paper)
        return open_with(&paper_backend, device, options, error);
    if (strcmp(name, "auto") == 0)
        return open_auto(device, options, error);
    if (strcmp(name, "cuda") == 0 || strncmp(name, "cuda:", 5) == 0)
        return open_with(&cuda_backend, device, options, error);
    if (strcmp(name, "host") != 0)
        return error_set(error, ERROR_USAGE,
                         "unknown device \"%s\": expected auto, cuda, cuda:N or host", name);
    if (options->as)
        return error_set(error, ERROR_USAGE,
                         "the host device cannot run the plan of \"%s\": use a CUDA device",
                         options->as);
    return open_with(&host_backend, device, options, error);
}

void device_close(struct device *device)
{
    if (!device)
        return;
    memory_free(device->buffers);
    device->buffers = NULL;
    device->buffer_count = 0;
    device->backend->close(device);
}

const struct device_info *device_info(const struct device *device)
{
    return &device->info;
}

int device_memory_free(struct device *device, u64 *bytes, struct error *error)
{
    return device->backend->memory_free(device, bytes, error);
}

void device_describe_libraries(struct buffer *text, const char *cuda_libraries)
{
    cuda_describe_libraries(text, cuda_libraries);
    host_describe(text);
}

/* ---- memory */

int device_alloc(struct device *device, size_t bytes, const char *label, dptr *address,
                 struct error *error)
{
    if (device->backend->alloc(device, bytes, label, address, error) != 0)
        return -1;
    device->buffers = memory_resize(device->buffers,
                                    (device->buffer_count + 1) * sizeof *device->buffers);
    device->buffers[device->buffer_count++] = (struct device_buffer){*address, bytes};
    return 0;
}

static void forget_buffer(struct device *device, dptr address)
{
    for (size_t i = device->buffer_count; i-- > 0;)
        if (device->buffers[i].address == address) {
            device->buffers[i] = device->buffers[--device->buffer_count];
            return;
        }
}

void device_free(struct device *device, dptr address)
{
    if (!address)
        return;
    forget_buffer(device, address);
    device->backend->free(device, address);
}

bool device_buffer_of(const struct device *device, dptr inside, dptr *address, u64 *bytes)
{
    for (size_t i = 0; i < device->buffer_count; i++) {
        const struct device_buffer *buffer = &device->buffers[i];
        if (inside >= buffer->address && inside - buffer->address < buffer->bytes) {
            *address = buffer->address;
            *bytes = buffer->bytes;
            return true;
        }
    }
    return false;
}

int device_alloc_pinned(struct device *device, size_t bytes, void **host, dptr *address,
                        struct error *error)
{
    return device->backend->alloc_pinned(device, bytes, host, address, error);
}

void device_free_pinned(struct device *device, void *host)
{
    if (host)
        device->backend->free_pinned(device, host);
}

int device_copy_in(struct device *device, struct device_stream *stream, dptr to, const void *from,
                   size_t bytes, struct error *error)
{
    return bytes ? device->backend->copy_in(device, stream, to, from, bytes, error) : 0;
}

int device_copy_out(struct device *device, struct device_stream *stream, void *to, dptr from,
                    size_t bytes, struct error *error)
{
    return bytes ? device->backend->copy_out(device, stream, to, from, bytes, error) : 0;
}

int device_copy(struct device *device, struct device_stream *stream, dptr to, dptr from,
                size_t bytes, struct error *error)
{
    return bytes ? device->backend->copy(device, stream, to, from, bytes, error) : 0;
}

int device_fill(struct device *device, struct device_stream *stream, dptr to, u8 value,
                size_t bytes, struct error *error)
{
    return bytes ? device->backend->fill(device, stream, to, value, bytes, error) : 0;
}

/* ---- streams and events */

int device_stream_create(struct device *device, enum device_priority priority,
                         struct device_stream **stream, struct error *error)
{
    return device->backend->stream_create(device, priority, stream, error);
}

void device_stream_destroy(struct device *device, struct device_stream *stream)
{
    if (stream)
        device->backend->stream_destroy(device, stream);
}

int device_sync(struct device *device, struct device_stream *stream, struct error *error)
{
    return device->backend->sync(device, stream, error);
}

int device_event_create(struct device *device, struct device_event **event, struct error *error)
{
    return device->backend->event_create(device, event, error);
}

void device_event_destroy(struct device *device, struct device_event *event)
{
    if (event)
        device->backend->event_destroy(device, event);
}

int device_event_record(struct device *device, struct device_event *event,
                        struct device_stream *stream, struct error *error)
{
    return device->backend->event_record(device, event, stream, error);
}

int device_event_wait(struct device *device, struct device_stream *stream,
                      struct device_event *event, struct error *error)
{
    return device->backend->event_wait(device, stream, event, error);
}

int device_event_sync(struct device *device, struct device_event *event, struct error *error)
{
    return device->backend->event_sync(device, event, error);
}

int device_event_elapsed(struct device *device, struct device_event *from, struct device_event *to,
                         double *seconds, struct error *error)
{
    return device->backend->event_elapsed(device, from, to, seconds, error);
}

/* ---- code */

int device_compile(struct device *device, struct slice source, const char *name,
                   struct buffer *image, struct error *error)
{
    return device->backend->compile(device, source, name, image, error);
}

int device_module_load(struct device *device, const void *image, size_t size, const char *name,
                       struct device_module **module, struct error *error)
{
    return device->backend->module_load(device, image, size, name, module, error);
}

void device_module_unload(struct device *device, struct device_module *module)
{
    if (module)
        device->backend->module_unload(device, module);
}

int device_function_get(struct device *device, struct device_module *module, const char *name,
                        const struct device_geometry *geometry, struct device_function **function,
                        struct error *error)
{
    if (geometry->grid == 0 || geometry->block == 0 || geometry->block > 1024 ||
        geometry->block % 32 != 0)
        return error_set(error, ERROR_DEVICE,
                         "kernel %s: expected a grid of at least 1 and a block of 32 to 1024 "
                         "threads in whole warps, found grid %u and block %u",
                         name, geometry->grid, geometry->block);
    if (geometry->shared > device->info.shared_per_block)
        return error_set(error, ERROR_DEVICE,
                         "kernel %s: needs %u bytes of shared memory, the device has %u a block",
                         name, geometry->shared, device->info.shared_per_block);
    return device->backend->function_get(device, module, name, geometry, function, error);
}

int device_function_resources(struct device *device, const struct device_function *function,
                              struct device_resources *resources, struct error *error)
{
    *resources = (struct device_resources){0};
    return device->backend->function_resources
               ? device->backend->function_resources(device, function, resources, error)
               : 0;
}

int device_launch(struct device *device, struct device_stream *stream,
                  struct device_function *function, const u64 *arguments, u32 count,
                  struct error *error)
{
    return device->backend->launch(device, stream, function, arguments, count, error);
}

/* ---- graphs */

int device_graph_begin(struct device *device, struct device_stream *stream, struct error *error)
{
    return device->backend->graph_begin(device, stream, error);
}

int device_graph_end(struct device *device, struct device_stream *stream,
                     struct device_graph **graph, struct error *error)
{
    return device->backend->graph_end(device, stream, graph, error);
}

int device_graph_launch(struct device *device, struct device_stream *stream,
                        struct device_graph *graph, struct error *error)
{
    return device->backend->graph_launch(device, stream, graph, error);
}

void device_graph_destroy(struct device *device, struct device_graph *graph)
{
    if (graph)
        device->backend->graph_destroy(device, graph);
}

/* ---- matrix products and checks: one backend each */

int device_gemm_open(struct device *device, struct device_gemm **gemm, struct error *error)
{
    if (device->info.kind != DEVICE_CUDA)
        return error_set(error, ERROR_DEVICE,
                         "the host device has no vendor matrix library: use the generated kernel");
    return cuda_gemm_open(device, gemm, error);
}

void device_host_faults(struct device *device, struct buffer *text)
{
    if (device->info.kind == DEVICE_HOST)
        host_faults(device, text);
}
