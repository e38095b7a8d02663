/* host.c - the host device: this machine's processors behind device.h.
 *
 * A device address is a pointer. Streams run at once and in order, so an event
 * is the time of its recording and waiting for one is nothing. But both note
 * which launches they order, for the checks: a wait that is missing would show
 * on a GPU only. A graph is the list of what was asked for while it was
 * recorded; replay walks the list.
 *
 * Buffers are kept in an array sorted by address: faults name the buffer they
 * hit, and a free of something else is noticed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/host.h"

enum { ALIGNMENT = 256 };

struct device_event {
    double seconds;
    struct host_known known; /* to who waits for it */
};

enum node_kind { NODE_LAUNCH, NODE_COPY, NODE_FILL };

struct graph_node {
    enum node_kind kind;
    struct device_function *function;
    u64 *arguments; /* [count] */
    u32 count;
    u8 value;
    void *to;
    const void *from;
    size_t bytes;
};

struct device_graph {
    struct graph_node *nodes;
    size_t count, capacity;
};

static struct host_device *host_of(struct device *device)
{
    return (struct host_device *)device;
}

static void *pointer(dptr address)
{
    return (void *)(uintptr_t)address;
}

/* ---- open and close */

static void processor_name(char *name, size_t size)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, size, "host: unknown processor");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(name, size, "host: %s", colon + 2);
        break;
    }
    if (file)
        fclose(file);
}

static u64 memory_of(int what)
{
    long pages = sysconf(what), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (u64)pages * (u64)page : 0;
}

static void fill_info(struct host_device *device, const char *compiler)
{
    struct device_info *info = &device->base.info;
    char cpu[17];
    host_cpu_digest(cpu);
    info->kind = DEVICE_HOST;
    processor_name(info->name, sizeof info->name);
    snprintf(info->target, sizeof info->target, "host");
    snprintf(info->compiler, sizeof info->compiler, "%.96s %s%s", compiler, cpu,
             device->check ? " check" : "");
    info->sms = device->threads;
    info->shared_per_sm = HOST_SHARED + 1024;
    info->shared_per_block = HOST_SHARED;
    info->memory_total = memory_of(_SC_PHYS_PAGES);
    info->memory_free = memory_of(_SC_AVPHYS_PAGES);
}

/* ELPIS_HOST_CHECK=1 and ELPIS_HOST_ORDER=N turn the checks on in a program that does not ask
 * for them, so that every test can be run under them. */
static void read_environment(struct host_device *device)
{
    const char *check = getenv("ELPIS_HOST_CHECK"), *order = getenv("ELPIS_HOST_ORDER");
    if (check && strcmp(check, "1") == 0)
        device->check = true;
    if (order && device->order == 0)
        device->order = (u32)strtoul(order, NULL, 10);
}

static u32 processors(void)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (u32)count : 1;
}

static int host_open(struct device **opened, const struct device_options *options,
                     struct error *error)
{
    char compiler[96] = "no compiler";
    struct host_device *device = memory_alloc(sizeof *device);
    device->threads = options->host_threads ? options->host_threads : processors();
    device->order = options->host_order;
    device->check = options->host_check;
    read_environment(device);
    device->compiler_path = host_compiler_find(compiler);
    fill_info(device, compiler);
    /* The race check keeps one history; it runs the CTAs one after the other. */
    u32 workers = device->check ? 1 : device->threads;
    if (host_pool_create(&device->pool, workers, device->order, error) != 0) {
        memory_free(device->compiler_path);
        memory_free(device);
        return -1;
    }
    if (device->check)
        host_check_create(device);
    *opened = &device->base;
    return 0;
}

static void host_close(struct device *base)
{
    struct host_device *device = host_of(base);
    host_pool_destroy(device->pool);
    host_check_destroy(device);
    for (size_t i = 0; i < device->buffer_count; i++)
        free(device->buffers[i].memory);
    memory_free(device->buffers);
    memory_free(device->compiler_path);
    memory_free(device);
}

static int host_memory_free(struct device *device, u64 *bytes, struct error *error)
{
    (void)device;
    (void)error;
    *bytes = memory_of(_SC_AVPHYS_PAGES);
    return 0;
}

void host_describe(struct buffer *text)
{
    char version[96], name[128];
    char *path = host_compiler_find(version);
    processor_name(name, sizeof name);
    if (path)
        buffer_format(text, "host compiler: %s (%s), %s\n", path, version, name);
    else
        buffer_format(text, "host compiler: none found (tried cc, gcc, clang), %s\n", name);
    memory_free(path);
}

/* ---- memory */

/* Index of the first buffer whose data lies above the address. */
static size_t buffer_after(const struct host_device *device, uintptr_t address)
{
    size_t low = 0, high = device->buffer_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)device->buffers[middle].data > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The buffer whose bytes or sentinels hold the address; NULL: none. */
struct host_buffer *host_buffer_at(struct host_device *device, uintptr_t address)
{
    size_t at = buffer_after(device, address + HOST_GUARD);
    if (at == 0)
        return NULL;
    struct host_buffer *buffer = &device->buffers[at - 1];
    uintptr_t end = (uintptr_t)buffer->data + buffer->size + HOST_GUARD;
    return address < end ? buffer : NULL;
}

static struct host_buffer *insert_buffer(struct host_device *device, u8 *data)
{
    if (device->buffer_count == device->buffer_capacity) {
        device->buffer_capacity = 2 * device->buffer_capacity + 64;
        device->buffers = memory_resize(device->buffers,
                                        device->buffer_capacity * sizeof *device->buffers);
    }
    size_t at = buffer_after(device, (uintptr_t)data);
    struct host_buffer *buffer = &device->buffers[at];
    memmove(buffer + 1, buffer, (device->buffer_count - at) * sizeof *buffer);
    device->buffer_count++;
    *buffer = (struct host_buffer){.data = data};
    return buffer;
}

static int host_alloc(struct device *base, size_t bytes, const char *label, dptr *address,
                      struct error *error)
{
    struct host_device *device = host_of(base);
    size_t extra = ALIGNMENT + 2 * HOST_GUARD;
    void *memory = bytes < SIZE_MAX - extra ? calloc(1, bytes + extra) : NULL;
    if (!memory)
        return error_set(error, ERROR_MEMORY,
                         "the host device cannot allocate %zu bytes for %s: out of memory", bytes,
                         label);
    uintptr_t data = ((uintptr_t)memory + HOST_GUARD + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct host_buffer *buffer = insert_buffer(device, (u8 *)data);
    buffer->size = bytes;
    buffer->memory = memory;
    snprintf(buffer->label, sizeof buffer->label, "%s", label);
    host_check_buffer_new(device, buffer);
    *address = data;
    return 0;
}

static void host_free(struct device *base, dptr address)
{
    struct host_device *device = host_of(base);
    size_t at = buffer_after(device, (uintptr_t)address);
    if (at == 0 || (uintptr_t)device->buffers[at - 1].data != address) {
        log_error("the host device was asked to free an address it did not allocate");
        abort();
    }
    struct host_buffer *buffer = &device->buffers[at - 1];
    host_check_buffer_gone(device, buffer);
    free(buffer->memory);
    memmove(buffer, buffer + 1, (device->buffer_count - at) * sizeof *buffer);
    device->buffer_count--;
}

static int host_alloc_pinned(struct device *device, size_t bytes, void **host, dptr *address,
                             struct error *error)
{
    if (host_alloc(device, bytes, "pinned memory", address, error) != 0)
        return -1;
    *host = pointer(*address);
    return 0;
}

static void host_free_pinned(struct device *device, void *host)
{
    host_free(device, (uintptr_t)host);
}

/* ---- what is known to be over */

static struct device_stream *stream_of(struct host_device *device, struct device_stream *stream)
{
    return stream ? stream : &device->first;
}

static void learn(struct host_known *to, const struct host_known *from)
{
    for (u32 i = 0; i < HOST_STREAMS; i++)
        if (from->over[i] > to->over[i])
            to->over[i] = from->over[i];
}

/* All that was asked of the stream is over, and what it waited for. */
static void learn_all(struct host_known *to, const struct device_stream *stream)
{
    learn(to, &stream->known);
    to->over[stream->index] = stream->last;
}

/* ---- graphs */

/* Something is done that is no launch (device_launch). */
static void end_pass(struct host_device *device, struct device_stream *stream)
{
    stream_of(device, stream)->pass = device->launches;
}

static struct graph_node *add_node(struct device_graph *graph, enum node_kind kind)
{
    if (graph->count == graph->capacity) {
        graph->capacity = 2 * graph->capacity + 16;
        graph->nodes = memory_resize(graph->nodes, graph->capacity * sizeof *graph->nodes);
    }
    struct graph_node *node = &graph->nodes[graph->count++];
    *node = (struct graph_node){.kind = kind};
    return node;
}

static int copy_or_record(struct device *base, struct device_stream *stream, void *to,
                          const void *from, size_t bytes)
{
    struct host_device *device = host_of(base);
    if (!device->recording) {
        end_pass(device, stream);
        memmove(to, from, bytes);
        return 0;
    }
    struct graph_node *node = add_node(device->recording, NODE_COPY);
    node->to = to;
    node->from = from;
    node->bytes = bytes;
    return 0;
}

static int host_copy_in(struct device *device, struct device_stream *stream, dptr to,
                        const void *from, size_t bytes, struct error *error)
{
    (void)error;
    return copy_or_record(device, stream, pointer(to), from, bytes);
}

static int host_copy_out(struct device *device, struct device_stream *stream, void *to, dptr from,
                         size_t bytes, struct error *error)
{
    (void)error;
    struct host_device *host = host_of(device);
    if (!host->recording && !host_buffer_at(host, (uintptr_t)to)) /* not pinned: it waits */
        learn_all(&host->known, stream_of(host, stream));
    return copy_or_record(device, stream, to, pointer(from), bytes);
}

static int host_copy(struct device *device, struct device_stream *stream, dptr to, dptr from,
                     size_t bytes, struct error *error)
{
    (void)error;
    return copy_or_record(device, stream, pointer(to), pointer(from), bytes);
}

static int host_fill(struct device *base, struct device_stream *stream, dptr to, u8 value,
                     size_t bytes, struct error *error)
{
    (void)error;
    struct host_device *device = host_of(base);
    if (!device->recording) {
        end_pass(device, stream);
        memset(pointer(to), value, bytes);
        return 0;
    }
    struct graph_node *node = add_node(device->recording, NODE_FILL);
    node->to = pointer(to);
    node->value = value;
    node->bytes = bytes;
    return 0;
}

/* ---- launches */

static int launch_now(struct host_device *device, struct device_stream *stream,
                      struct device_function *function, const u64 *arguments, struct error *error)
{
    struct host_launch launch = {
        .device = device, .stream = stream, .function = function, .slots = arguments};
    launch.number = ++device->launches;
    learn(&stream->known, &device->known);
    pthread_mutex_init(&launch.lock, NULL);
    host_check_launch_begin(&launch);
    host_pool_run(device->pool, &launch);
    stream->last = launch.number;
    pthread_mutex_destroy(&launch.lock);
    if (launch.fault[0])
        host_check_note(device, launch.fault);
    if (host_check_launch_end(&launch, error) != 0)
        return -1;
    if (launch.fault[0])
        return error_set(error, ERROR_FATAL, "the host device stopped %s", launch.fault);
    return 0;
}

static int host_launch_function(struct device *base, struct device_stream *stream,
                                struct device_function *function, const u64 *arguments, u32 count,
                                struct error *error)
{
    struct host_device *device = host_of(base);
    if (!device->recording)
        return launch_now(device, stream_of(device, stream), function, arguments, error);
    struct graph_node *node = add_node(device->recording, NODE_LAUNCH);
    node->function = function;
    node->count = count;
    node->arguments = memory_alloc(count * sizeof(u64));
    if (count > 0)
        memcpy(node->arguments, arguments, count * sizeof(u64));
    return 0;
}

static int host_graph_begin(struct device *base, struct device_stream *stream, struct error *error)
{
    (void)stream;
    struct host_device *device = host_of(base);
    if (device->recording)
        return error_set(error, ERROR_DEVICE, "the host device already records a graph");
    device->recording = memory_alloc(sizeof *device->recording);
    return 0;
}

static int host_graph_end(struct device *base, struct device_stream *stream,
                          struct device_graph **graph, struct error *error)
{
    (void)stream;
    struct host_device *device = host_of(base);
    if (!device->recording)
        return error_set(error, ERROR_DEVICE, "the host device records no graph");
    *graph = device->recording;
    device->recording = NULL;
    return 0;
}

static int run_node(struct host_device *device, struct device_stream *stream,
                    const struct graph_node *node, struct error *error)
{
    if (node->kind == NODE_LAUNCH)
        return launch_now(device, stream, node->function, node->arguments, error);
    end_pass(device, stream);
    if (node->kind == NODE_COPY)
        memmove(node->to, node->from, node->bytes);
    else
        memset(node->to, node->value, node->bytes);
    return 0;
}

static int host_graph_launch(struct device *base, struct device_stream *stream,
                             struct device_graph *graph, struct error *error)
{
    struct host_device *device = host_of(base);
    int result = 0;
    end_pass(device, stream);
    for (size_t i = 0; i < graph->count && result == 0; i++)
        result = run_node(device, stream_of(device, stream), &graph->nodes[i], error);
    end_pass(device, stream);
    return result;
}

static void host_graph_destroy(struct device *device, struct device_graph *graph)
{
    (void)device;
    for (size_t i = 0; i < graph->count; i++)
        memory_free(graph->nodes[i].arguments);
    memory_free(graph->nodes);
    memory_free(graph);
}

/* ---- streams and events */

static int host_stream_create(struct device *base, enum device_priority priority,
                              struct device_stream **stream, struct error *error)
{
    (void)priority; /* nothing waits for its turn */
    struct host_device *device = host_of(base);
    u32 index = 1; /* 0: the first stream's */
    while (index < HOST_STREAMS && device->streams >> index & 1)
        index++;
    if (index == HOST_STREAMS)
        return error_set(error, ERROR_DEVICE,
                         "creating a stream on the host device: expected at most %d at a time",
                         HOST_STREAMS);
    device->streams |= 1ull << index;
    *stream = memory_alloc(sizeof **stream);
    (*stream)->index = index;
    (*stream)->pass = device->launches;
    return 0;
}

static void host_stream_destroy(struct device *base, struct device_stream *stream)
{
    host_of(base)->streams &= ~(1ull << stream->index);
    memory_free(stream);
}

static int host_sync(struct device *base, struct device_stream *stream, struct error *error)
{
    (void)error;
    struct host_device *device = host_of(base);
    end_pass(device, stream);
    learn_all(&device->known, stream_of(device, stream));
    return 0;
}

static int host_event_create(struct device *device, struct device_event **event,
                             struct error *error)
{
    (void)device;
    (void)error;
    *event = memory_alloc(sizeof **event);
    return 0;
}

static void host_event_destroy(struct device *device, struct device_event *event)
{
    (void)device;
    memory_free(event);
}

static int host_event_record(struct device *device, struct device_event *event,
                             struct device_stream *stream, struct error *error)
{
    (void)error;
    event->seconds = clock_seconds();
    learn_all(&event->known, stream_of(host_of(device), stream));
    return 0;
}

static int host_event_wait(struct device *device, struct device_stream *stream,
                           struct device_event *event, struct error *error)
{
    (void)error;
    end_pass(host_of(device), stream);
    learn(&stream_of(host_of(device), stream)->known, &event->known);
    return 0;
}

static int host_event_sync(struct device *device, struct device_event *event, struct error *error)
{
    (void)error;
    learn(&host_of(device)->known, &event->known);
    return 0;
}

static int host_event_elapsed(struct device *device, struct device_event *from,
                              struct device_event *to, double *seconds, struct error *error)
{
    (void)device;
    (void)error;
    *seconds = to->seconds - from->seconds;
    return 0;
}

const struct device_backend host_backend = {
    .open = host_open,
    .close = host_close,
    .memory_free = host_memory_free,
    .alloc = host_alloc,
    .free = host_free,
    .alloc_pinned = host_alloc_pinned,
    .free_pinned = host_free_pinned,
    .copy_in = host_copy_in,
    .copy_out = host_copy_out,
    .copy = host_copy,
    .fill = host_fill,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .sync = host_sync,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_wait = host_event_wait,
    .event_sync = host_event_sync,
    .event_elapsed = host_event_elapsed,
    .compile = host_compile,
    .module_load = host_module_load,
    .module_unload = host_module_unload,
    .function_get = host_function_get,
    .launch = host_launch_function,
    .graph_begin = host_graph_begin,
    .graph_end = host_graph_end,
    .graph_launch = host_graph_launch,
    .graph_destroy = host_graph_destroy,
};
