/* cuda.c - the NVIDIA driver API as a device.
 *
 * One struct cuda_device holds the API's table, the primary context, a stream and the compiler.
 * Every entry makes the context current first (a thread-local store in the driver), because
 * calls may come from any thread, one at a time.
 *
 * Under options.as ("sm_86:82:100K") the plan is that GPU's: info says its architecture, SMs and
 * shared memory, kernels are compiled to compute_86 PTX, and the driver's linker turns that PTX
 * into a cubin for the GPU that is really there. So images are cubins here too, and the cache
 * never holds PTX.
 *
 * Errors: a result that leaves the context unusable (illegal address and its kin) has code
 * ERROR_FATAL; nothing on this device works after it. Asynchronous faults show up in the next
 * call that waits, so messages name the call, not always the cause.
 *
 * Not here: finding libraries (libraries.c), the compiler (nvrtc.c), matrix products (cublaslt.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/driver.h"
#include "device/nvrtc.h"

enum {
    OLDEST_DRIVER = 12000, /* CUDA 12.0, as cuDriverGetVersion counts */
    DRIVER_LOG_BYTES = 4096,
    ARGUMENTS_MAX = 64,
    WHOLE_CARVEOUT = 100,         /* percent */
    CUBLASLT_VERSION_STEP = 10000 /* cublasLtGetVersion: major * 10000 + minor * 100 + patch */
};

struct device_event {
    cu_event handle;
};

struct device_module {
    cu_module handle;
    char *name;
    struct device_function *functions; /* list; freed with the module */
};

struct device_function {
    cu_function handle;
    char *name;
    struct device_geometry geometry;
    struct device_function *next;
};

struct device_graph {
    cu_graph_run run;
};

/* ---- errors */

/* Results after which the context is lost (driver API reference, CUresult: "the process must be
 * terminated and relaunched"). */
static bool is_fatal(cu_result result)
{
    static const cu_result fatal[] = {214, 220, 226, 700, 702, 709, 710, 714,
                                      715, 716, 717, 718, 719, 721, 999};
    for (size_t i = 0; i < COUNT_OF(fatal); i++)
        if (result == fatal[i])
            return true;
    return false;
}

int cuda_fail(const struct cuda_device *cuda, struct error *error, cu_result result,
              const char *format, ...)
{
    char what[400];
    const char *name = NULL, *text = NULL;
    const char *gpu = cuda->base.info.name[0] ? cuda->base.info.name : "CUDA";
    int code = result == CU_OUT_OF_MEMORY ? ERROR_MEMORY : ERROR_DEVICE;
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    cuda->api.error_name(result, &name);
    cuda->api.error_text(result, &text);
    if (is_fatal(result))
        return error_set(error, ERROR_FATAL,
                         "%s: %s: %s (%s); the GPU context is lost, restart the program", gpu, what,
                         name ? name : "unknown", text ? text : "no text");
    return error_set(error, code, "%s: %s: %s (%s)", gpu, what, name ? name : "unknown",
                     text ? text : "no text");
}

int cuda_enter(struct device *device, struct cuda_device **cuda, struct error *error)
{
    *cuda = (struct cuda_device *)device;
    cu_result result = (*cuda)->api.context_set((*cuda)->context);
    return result == 0 ? 0 : cuda_fail(*cuda, error, result, "choosing the context");
}

cu_stream cuda_stream(struct cuda_device *cuda, const struct device_stream *stream)
{
    return stream ? stream->handle : cuda->first.handle;
}

/* The stream, for something that is no launch: the next launch begins a pass. */
static cu_stream end_pass(struct cuda_device *cuda, struct device_stream *stream)
{
    (stream ? stream : &cuda->first)->in_pass = false;
    return cuda_stream(cuda, stream);
}

/* Where nothing can be reported: closing and freeing. */
static struct cuda_device *enter_quietly(struct device *device)
{
    struct cuda_device *cuda = (struct cuda_device *)device;
    cuda->api.context_set(cuda->context);
    return cuda;
}

/* ---- opening */

static int load_driver(struct library *library, struct cu_api *api, const char *folder,
                       struct error *error)
{
#define CU_SYMBOL(member, symbol, arguments) {symbol, (void **)&api->member},
    const struct library_symbol symbols[] = {CU_FUNCTIONS(CU_SYMBOL)};
#undef CU_SYMBOL
    if (library_open(library, LIBRARY_DRIVER, folder, 0, error) != 0)
        return -1;
    return library_symbols(library, symbols, COUNT_OF(symbols), error);
}

/* The kernel module's version, "580.95.05"; empty where the system does not tell. The first file
 * holds it alone, the second as the first word with digits and dots of its first line. */
static void kernel_module_version(char *text, size_t size)
{
    static const char *const paths[] = {"/sys/module/nvidia/version",
                                        "/proc/driver/nvidia/version"};
    char line[300];
    text[0] = 0;
    for (size_t i = 0; i < COUNT_OF(paths) && !text[0]; i++) {
        FILE *file = fopen(paths[i], "r");
        if (!file)
            continue;
        char *rest = fgets(line, sizeof line, file) ? line : NULL, *word;
        while (rest && !text[0] && (word = strsep(&rest, " \t\r\n")) != NULL)
            if (strchr(word, '.') && strspn(word, "0123456789.") == strlen(word))
                snprintf(text, size, "%s", word);
        fclose(file);
    }
}

static int start_driver(struct cuda_device *cuda, struct error *error)
{
    int version = 0;
    char module[32];
    cuda->api.version(&version);
    if (version < OLDEST_DRIVER)
        return error_set(error, ERROR_DEVICE,
                         "the NVIDIA driver (%s) is too old: it runs CUDA %d.%d, %d.%d or later is "
                         "needed; update the driver",
                         cuda->library.path, version / 1000, version % 1000 / 10,
                         OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
    kernel_module_version(module, sizeof module);
    snprintf(cuda->base.info.driver, sizeof cuda->base.info.driver, "%s%s(CUDA %d.%d)", module,
             module[0] ? " " : "", version / 1000, version % 1000 / 10);
    cu_result result = cuda->api.init(0);
    if (result == CU_NO_DEVICE)
        return error_set(error, ERROR_DEVICE, "no NVIDIA GPU was found; use --device host");
    if (result == CU_DRIVER_MISMATCH)
        return error_set(error, ERROR_DEVICE,
                         "the NVIDIA driver library (%s) and kernel module do not match; reboot or "
                         "reinstall the driver",
                         cuda->library.path);
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "starting the driver");
}

/* "cuda" and "auto" mean GPU 0, "cuda:N" GPU N. */
static int choose_gpu(struct cuda_device *cuda, const char *name, struct error *error)
{
    int count = 0, ordinal = 0;
    const char *colon = name ? strchr(name, ':') : NULL;
    if (colon) {
        char *end;
        ordinal = (int)strtol(colon + 1, &end, 10);
        if (*end || end == colon + 1 || ordinal < 0)
            return error_set(error, ERROR_USAGE,
                             "device \"%s\": expected cuda:N with N the GPU's number", name);
    }
    cu_result result = cuda->api.device_count(&count);
    if (result != 0)
        return cuda_fail(cuda, error, result, "counting GPUs");
    if (ordinal >= count)
        return error_set(error, ERROR_DEVICE, "device cuda:%d: there are %d GPUs, numbered from 0",
                         ordinal, count);
    result = cuda->api.device_get(&cuda->number, ordinal);
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "opening GPU %d", ordinal);
}

static int read_attributes(struct cuda_device *cuda, struct error *error)
{
    struct device_info *info = &cuda->base.info;
    int major = 0, minor = 0, sms = 0, shared = 0, block = 0, registers = 0, cooperative = 0;
    const struct {
        int attribute, *value;
    } wanted[] = {
        {CU_ATTRIBUTE_CAPABILITY_MAJOR, &major},
        {CU_ATTRIBUTE_CAPABILITY_MINOR, &minor},
        {CU_ATTRIBUTE_MULTIPROCESSORS, &sms},
        {CU_ATTRIBUTE_SHARED_PER_MULTIPROCESSOR, &shared},
        {CU_ATTRIBUTE_SHARED_PER_BLOCK_OPTIN, &block},
        {CU_ATTRIBUTE_REGISTERS_PER_MULTIPROCESSOR, &registers},
        {CU_ATTRIBUTE_COOPERATIVE_LAUNCH, &cooperative},
    };
    cu_result result = cuda->api.device_name(info->name, (int)sizeof info->name, cuda->number);
    for (size_t i = 0; result == 0 && i < COUNT_OF(wanted); i++)
        result = cuda->api.device_attribute(wanted[i].value, wanted[i].attribute, cuda->number);
    if (result != 0)
        return cuda_fail(cuda, error, result, "reading the GPU's attributes");
    info->kind = DEVICE_CUDA;
    info->arch = (u32)(10 * major + minor);
    info->sms = cuda->real_sms = (u32)sms;
    info->shared_per_sm = (u32)shared;
    info->shared_per_block = (u32)block;
    info->registers_per_sm = (u32)registers;
    if (info->arch < DEVICE_OLDEST_ARCH || !cooperative)
        return error_set(error, ERROR_DEVICE,
                         "%s is sm_%u, too old: sm_%d or later is needed; use --device host",
                         info->name, info->arch, DEVICE_OLDEST_ARCH);
    return 0;
}

static int take_plan_of(struct cuda_device *cuda, const char *as, struct error *error)
{
    struct device_info *info = &cuda->base.info;
    u32 arch = 0, sms = 0, shared = 0;
    if (device_parse_as(as, &arch, &sms, &shared, error) != 0)
        return -1;
    if (arch > info->arch || sms > info->sms || shared > info->shared_per_sm ||
        shared <= DEVICE_RESERVED_SHARED)
        return error_set(
            error, ERROR_USAGE,
            "--as %s: %s has sm_%u, %u SMs and %u bytes of shared memory per SM, it can "
            "only run the plan of a smaller GPU",
            as, info->name, info->arch, info->sms, info->shared_per_sm);
    if (arch == 90 && info->arch != 90) /* wgmma */
        return error_set(error, ERROR_USAGE,
                         "--as %s: plans of sm_90 have instructions that no other GPU knows, and "
                         "%s has sm_%u; give another architecture",
                         as, info->name, info->arch);
    info->arch = arch;
    info->sms = sms;
    info->shared_per_sm = shared;
    if (shared - DEVICE_RESERVED_SHARED < info->shared_per_block)
        info->shared_per_block = shared - DEVICE_RESERVED_SHARED;
    return 0;
}

/* What kernels are compiled for and by; both are part of the cache key. */
static int open_compiler(struct cuda_device *cuda, const struct device_options *options,
                         u32 real_arch, struct error *error)
{
    struct device_info *info = &cuda->base.info;
    u32 major, minor;
    int version = 0;
    cuda->api.version(&version);
    if (nvrtc_open(&cuda->nvrtc, options->cuda_libraries, (u32)version / 1000, error) != 0)
        return -1;
    if (nvrtc_supports(cuda->nvrtc, info->arch, error) != 0)
        return -1;
    nvrtc_version(cuda->nvrtc, &major, &minor);
    snprintf(info->target, sizeof info->target, "sm_%u", info->arch);
    snprintf(cuda->architecture, sizeof cuda->architecture, "%s_%u", options->as ? "compute" : "sm",
             info->arch);
    if (options->as)
        snprintf(info->compiler, sizeof info->compiler,
                 "nvrtc %u.%u, linked for sm_%u by driver %s", major, minor, real_arch,
                 info->driver);
    else
        snprintf(info->compiler, sizeof info->compiler, "nvrtc %u.%u", major, minor);
    info->full_rate_f32_accumulate = device_adds_f32_at_full_rate(info->arch);
    cuda->overlaps = info->arch >= 90;
    return 0;
}

static cu_result create_stream(struct cuda_device *cuda, enum device_priority priority,
                               cu_stream *stream)
{
    return cuda->api.stream_create(stream, CU_STREAM_IS_NON_BLOCKING, cuda->priorities[priority]);
}

static int open_context(struct cuda_device *cuda, struct error *error)
{
    struct device_info *info = &cuda->base.info;
    size_t free_bytes = 0, total = 0;
    cu_result result = cuda->api.context_retain(&cuda->context, cuda->number);
    if (result != 0)
        return cuda_fail(cuda, error, result, "creating a context");
    cuda->retained = true;
    result = cuda->api.context_set(cuda->context);
    if (result == 0)
        result = cuda->api.memory_info(&free_bytes, &total);
    if (result == 0)
        result = cuda->api.priorities(&cuda->priorities[DEVICE_LAST],
                                      &cuda->priorities[DEVICE_FIRST]);
    if (result == 0)
        result = create_stream(cuda, DEVICE_FIRST, &cuda->first.handle);
    if (result == 0)
        result = create_stream(cuda, DEVICE_FIRST, &cuda->housekeeping);
    info->memory_total = total;
    info->memory_free = free_bytes;
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "setting up the context");
}

static void cuda_close(struct device *device)
{
    struct cuda_device *cuda = (struct cuda_device *)device;
    if (cuda->retained) {
        cuda->api.context_set(cuda->context);
        if (cuda->first.handle)
            cuda->api.stream_destroy(cuda->first.handle);
        if (cuda->housekeeping)
            cuda->api.stream_destroy(cuda->housekeeping);
        cuda->api.context_release(cuda->number);
    }
    nvrtc_close(cuda->nvrtc);
    memory_free(cuda->cuda_libraries);
    memory_free(cuda);
}

static int cuda_open(struct device **device, const struct device_options *options,
                     struct error *error)
{
    struct cuda_device *cuda = memory_alloc(sizeof *cuda);
    if (options->cuda_libraries)
        cuda->cuda_libraries = memory_copy_text(slice_of(options->cuda_libraries));
    if (load_driver(&cuda->library, &cuda->api, options->cuda_libraries, error) != 0)
        goto fail;
    if (start_driver(cuda, error) != 0 || choose_gpu(cuda, options->device, error) != 0 ||
        read_attributes(cuda, error) != 0)
        goto fail;
    const u32 real_arch = cuda->base.info.arch;
    if (options->as && take_plan_of(cuda, options->as, error) != 0)
        goto fail;
    if (open_compiler(cuda, options, real_arch, error) != 0 || open_context(cuda, error) != 0)
        goto fail;
    *device = &cuda->base;
    return 0;
fail:
    cuda_close(&cuda->base);
    return -1;
}

/* ---- memory */

static int cuda_memory_free(struct device *device, u64 *bytes, struct error *error)
{
    struct cuda_device *cuda;
    size_t free_bytes = 0, total = 0;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.memory_info(&free_bytes, &total);
    *bytes = free_bytes;
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "asking for free memory");
}

static int alloc_failed(struct cuda_device *cuda, size_t bytes, const char *label, cu_result result,
                        struct error *error)
{
    const double mebibyte = 1 << 20;
    size_t free_bytes = 0, total = 0;
    if (result != CU_OUT_OF_MEMORY)
        return cuda_fail(cuda, error, result, "allocating %zu bytes for %s", bytes, label);
    cuda->api.memory_info(&free_bytes, &total);
    return error_set(error, ERROR_MEMORY,
                     "%s: %s needs %.1f MiB, %.1f of %.1f MiB are free; free memory on the GPU or "
                     "choose a smaller context",
                     cuda->base.info.name, label, (double)bytes / mebibyte,
                     (double)free_bytes / mebibyte, (double)total / mebibyte);
}

static int cuda_alloc(struct device *device, size_t bytes, const char *label, dptr *address,
                      struct error *error)
{
    struct cuda_device *cuda;
    dptr fresh = 0;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    const size_t rounded = bytes ? bytes : 1; /* the driver refuses 0 */
    cu_result result = cuda->api.alloc(&fresh, rounded);
    if (result != 0)
        return alloc_failed(cuda, bytes, label, result, error);
    result = cuda->api.fill(fresh, 0, rounded, cuda->housekeeping);
    if (result == 0)
        result = cuda->api.stream_sync(cuda->housekeeping);
    if (result != 0) {
        cuda->api.free(fresh);
        return cuda_fail(cuda, error, result, "zeroing %zu bytes of %s", bytes, label);
    }
    *address = fresh;
    return 0;
}

static void cuda_free(struct device *device, dptr address)
{
    struct cuda_device *cuda = enter_quietly(device);
    cuda->api.free(address);
}

static int cuda_alloc_pinned(struct device *device, size_t bytes, void **host, dptr *address,
                             struct error *error)
{
    struct cuda_device *cuda;
    void *fresh = NULL;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    const size_t rounded = bytes ? bytes : 1;
    cu_result result = cuda->api.host_alloc(&fresh, rounded,
                                            CU_PINNED_PORTABLE | CU_PINNED_DEVICE_MAPPED);
    if (result != 0)
        return cuda_fail(cuda, error, result, "allocating %zu bytes of page-locked host memory",
                         bytes);
    result = cuda->api.host_address(address, fresh, 0);
    if (result != 0) {
        cuda->api.host_free(fresh);
        return cuda_fail(cuda, error, result, "mapping %zu bytes of page-locked host memory",
                         bytes);
    }
    memset(fresh, 0, rounded);
    *host = fresh;
    return 0;
}

static void cuda_free_pinned(struct device *device, void *host)
{
    struct cuda_device *cuda = enter_quietly(device);
    cuda->api.host_free(host);
}

static int cuda_copy_in(struct device *device, struct device_stream *stream, dptr to,
                        const void *from, size_t bytes, struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.copy_in(to, from, bytes, end_pass(cuda, stream));
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "copying %zu bytes to the GPU", bytes);
}

static int cuda_copy_out(struct device *device, struct device_stream *stream, void *to, dptr from,
                         size_t bytes, struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.copy_out(to, from, bytes, end_pass(cuda, stream));
    return result == 0 ? 0
                       : cuda_fail(cuda, error, result, "copying %zu bytes from the GPU", bytes);
}

static int cuda_copy(struct device *device, struct device_stream *stream, dptr to, dptr from,
                     size_t bytes, struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.copy(to, from, bytes, end_pass(cuda, stream));
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "copying %zu bytes on the GPU", bytes);
}

static int cuda_fill(struct device *device, struct device_stream *stream, dptr to, u8 value,
                     size_t bytes, struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.fill(to, value, bytes, end_pass(cuda, stream));
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "filling %zu bytes", bytes);
}

/* ---- streams and events */

static int cuda_stream_create(struct device *device, enum device_priority priority,
                              struct device_stream **stream, struct error *error)
{
    struct cuda_device *cuda;
    cu_stream handle = NULL;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = create_stream(cuda, priority, &handle);
    if (result != 0)
        return cuda_fail(cuda, error, result, "creating a stream");
    *stream = memory_alloc(sizeof **stream);
    (*stream)->handle = handle;
    return 0;
}

static void cuda_stream_destroy(struct device *device, struct device_stream *stream)
{
    struct cuda_device *cuda = enter_quietly(device);
    cuda->api.stream_destroy(stream->handle);
    memory_free(stream);
}

static int cuda_sync(struct device *device, struct device_stream *stream, struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.stream_sync(end_pass(cuda, stream));
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "waiting for the GPU");
}

static int cuda_event_create(struct device *device, struct device_event **event,
                             struct error *error)
{
    struct cuda_device *cuda;
    cu_event handle = NULL;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.event_create(&handle, CU_EVENT_WITH_TIMING);
    if (result != 0)
        return cuda_fail(cuda, error, result, "creating an event");
    *event = memory_alloc(sizeof **event);
    (*event)->handle = handle;
    return 0;
}

static void cuda_event_destroy(struct device *device, struct device_event *event)
{
    struct cuda_device *cuda = enter_quietly(device);
    cuda->api.event_destroy(event->handle);
    memory_free(event);
}

static int cuda_event_record(struct device *device, struct device_event *event,
                             struct device_stream *stream, struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.event_record(event->handle, cuda_stream(cuda, stream));
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "recording an event");
}

static int cuda_event_wait(struct device *device, struct device_stream *stream,
                           struct device_event *event, struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.stream_wait(end_pass(cuda, stream), event->handle, 0);
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "making a stream wait for an event");
}

static int cuda_event_sync(struct device *device, struct device_event *event, struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.event_sync(event->handle);
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "waiting for an event");
}

static int cuda_event_elapsed(struct device *device, struct device_event *from,
                              struct device_event *to, double *seconds, struct error *error)
{
    struct cuda_device *cuda;
    float milliseconds = 0;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.event_elapsed(&milliseconds, from->handle, to->handle);
    *seconds = (double)milliseconds * 1e-3;
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "timing between two events");
}

/* ---- code */

/* PTX to a cubin for the GPU that is there, by the driver's own assembler. */
static int link_ptx(struct cuda_device *cuda, struct buffer *ptx, const char *name,
                    struct buffer *image, struct error *error)
{
    char log[DRIVER_LOG_BYTES] = "";
    int options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_SIZE};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    cu_link link = NULL;
    void *linked = NULL;
    size_t size = 0;
    cu_result result = cuda->api.link_create(COUNT_OF(options), options, values, &link);
    if (result == 0)
        result = cuda->api.link_add(link, CU_JIT_INPUT_IS_PTX, ptx->data, ptx->size, name, 0, NULL,
                                    NULL);
    if (result == 0)
        result = cuda->api.link_complete(link, &linked, &size);
    if (result == 0) {
        buffer_clear(image);
        buffer_add(image, linked, size);
    }
    if (link)
        cuda->api.link_destroy(link);
    if (result == 0)
        return 0;
    return cuda_fail(cuda, error, result, "kernel %s: assembling %s PTX: %.250s", name,
                     cuda->architecture, log);
}

static int cuda_compile(struct device *device, struct slice source, const char *name,
                        struct buffer *image, struct error *error)
{
    struct cuda_device *cuda = (struct cuda_device *)device;
    struct buffer ptx = {0};
    if (strncmp(cuda->architecture, "sm_", 3) == 0)
        return nvrtc_compile(cuda->nvrtc, source, name, cuda->architecture, image, NULL, error);
    int status = nvrtc_compile(cuda->nvrtc, source, name, cuda->architecture, &ptx, NULL, error);
    if (status == 0)
        status = cuda_enter(device, &cuda, error);
    if (status == 0)
        status = link_ptx(cuda, &ptx, name, image, error);
    buffer_free(&ptx);
    return status;
}

static int cuda_module_load(struct device *device, const void *image, size_t size, const char *name,
                            struct device_module **module, struct error *error)
{
    struct cuda_device *cuda;
    cu_module handle = NULL;
    char log[DRIVER_LOG_BYTES] = "";
    int options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_SIZE};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    if (size < 4 || memcmp(image, "\177ELF", 4) != 0)
        return error_set(error, ERROR_DEVICE,
                         "kernel %s: the image is no cubin; clear the kernel cache", name);
    cu_result result = cuda->api.module_load(&handle, image, COUNT_OF(options), options, values);
    if (result == CU_NO_BINARY_FOR_GPU)
        return cuda_fail(cuda, error, result, "kernel %s was compiled for another GPU", name);
    if (result != 0)
        return cuda_fail(cuda, error, result, "loading kernel %s: %.250s", name, log);
    *module = memory_alloc(sizeof **module);
    (*module)->handle = handle;
    (*module)->name = memory_copy_text(slice_of(name));
    return 0;
}

static void cuda_module_unload(struct device *device, struct device_module *module)
{
    struct cuda_device *cuda = enter_quietly(device);
    while (module->functions) {
        struct device_function *function = module->functions;
        module->functions = function->next;
        memory_free(function->name);
        memory_free(function);
    }
    cuda->api.module_unload(module->handle);
    memory_free(module->name);
    memory_free(module);
}

/* A cooperative kernel must fit whole: CTAs that fit an SM, times the SMs the plan may use. */
static int check_resident(struct cuda_device *cuda, cu_function handle, const char *name,
                          const struct device_geometry *geometry, struct error *error)
{
    int blocks = 0;
    cu_result result = cuda->api.occupancy(&blocks, handle, (int)geometry->block, geometry->shared);
    if (result != 0)
        return cuda_fail(cuda, error, result, "kernel %s: computing its occupancy", name);
    const u64 fits = (u64)blocks * cuda->real_sms;
    if (geometry->grid > fits || blocks == 0)
        return error_set(
            error, ERROR_DEVICE,
            "kernel %s: its %u CTAs must all be resident, %llu fit (%d on each of %u SMs)", name,
            geometry->grid, (unsigned long long)fits, blocks, cuda->real_sms);
    return 0;
}

/* Shared memory above 48 KiB is opted into; a kernel that uses any asks for the largest carve-out
 * so that as many CTAs fit as the plan computed. Reading an attribute also loads lazily loaded
 * code now rather than at the first launch (which may be inside a capture). */
static cu_result prepare_function(struct cuda_device *cuda, cu_function handle,
                                  const struct device_geometry *geometry)
{
    int registers = 0;
    cu_result result = cuda->api.function_get(&registers, CU_FUNCTION_REGISTERS, handle);
    if (result == 0 && geometry->shared > 0)
        result = cuda->api.function_set(handle, CU_FUNCTION_MAX_DYNAMIC_SHARED,
                                        (int)geometry->shared);
    if (result == 0 && geometry->shared > 0)
        result = cuda->api.function_set(handle, CU_FUNCTION_SHARED_CARVEOUT, WHOLE_CARVEOUT);
    return result;
}

static int cuda_function_get(struct device *device, struct device_module *module, const char *name,
                             const struct device_geometry *geometry,
                             struct device_function **function, struct error *error)
{
    struct cuda_device *cuda;
    cu_function handle = NULL;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.module_function(&handle, module->handle, name);
    if (result != 0)
        return cuda_fail(cuda, error, result, "module %s has no function %s", module->name, name);
    result = prepare_function(cuda, handle, geometry);
    if (result != 0)
        return cuda_fail(cuda, error, result, "kernel %s: asking for %u bytes of shared memory",
                         name, geometry->shared);
    if (geometry->cooperative && check_resident(cuda, handle, name, geometry, error) != 0)
        return -1;
    struct device_function *fresh = memory_alloc(sizeof *fresh);
    fresh->handle = handle;
    fresh->name = memory_copy_text(slice_of(name));
    fresh->geometry = *geometry;
    fresh->next = module->functions;
    module->functions = fresh;
    *function = fresh;
    return 0;
}

static int cuda_function_resources(struct device *device, const struct device_function *function,
                                   struct device_resources *resources, struct error *error)
{
    struct cuda_device *cuda;
    int registers = 0, local = 0;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.function_get(&registers, CU_FUNCTION_REGISTERS, function->handle);
    if (result == 0)
        result = cuda->api.function_get(&local, CU_FUNCTION_LOCAL_BYTES, function->handle);
    if (result != 0)
        return cuda_fail(cuda, error, result, "kernel %s: reading its resources", function->name);
    resources->registers = (u32)registers;
    resources->local_bytes = (u32)local;
    return 0;
}

/* A launch that overlaps has the programmatic attribute alone, though it be cooperative: together
 * with the cooperative one drivers need not take it. That it fits whole was checked when the
 * function was made, and device.h says why then all of it comes in. A pass's first launch goes
 * without: it is the one that all of the pass rely on to come behind everything before.
 *
 * Every parameter is one 64-bit slot; the driver reads as many low bytes as the kernel declares
 * (the hosts we run on are little-endian). */
static int cuda_launch(struct device *device, struct device_stream *stream,
                       struct device_function *function, const u64 *arguments, u32 count,
                       struct error *error)
{
    struct cuda_device *cuda;
    const struct device_geometry *g = &function->geometry;
    void *slots[ARGUMENTS_MAX];
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    if (count > ARGUMENTS_MAX)
        return error_set(error, ERROR_DEVICE, "kernel %s: %u arguments, at most %d are supported",
                         function->name, count, ARGUMENTS_MAX);
    for (u32 i = 0; i < count; i++)
        slots[i] = (void *)&arguments[i];
    struct device_stream *on = stream ? stream : &cuda->first;
    struct cu_launch_attribute overlaps = {.id = CU_LAUNCH_OVERLAPS, .value.flag = 1};
    const struct cu_launch launch = {{g->grid, 1, 1}, {g->block, 1, 1}, g->shared,
                                     on->handle,      &overlaps,        1};
    cu_result result;
    if (g->overlaps && cuda->overlaps && on->in_pass)
        result = cuda->api.launch_with(&launch, function->handle, slots, NULL);
    else if (g->cooperative)
        result = cuda->api.launch_cooperative(function->handle, g->grid, 1, 1, g->block, 1, 1,
                                              g->shared, on->handle, slots);
    else
        result = cuda->api.launch(function->handle, g->grid, 1, 1, g->block, 1, 1, g->shared,
                                  on->handle, slots, NULL);
    on->in_pass = true;
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "launching kernel %s", function->name);
}

/* ---- graphs */

static int cuda_graph_begin(struct device *device, struct device_stream *stream,
                            struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.capture_begin(end_pass(cuda, stream), CU_CAPTURE_RELAXED);
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "beginning a graph");
}

static int cuda_graph_end(struct device *device, struct device_stream *stream,
                          struct device_graph **graph, struct error *error)
{
    struct cuda_device *cuda;
    cu_graph recorded = NULL;
    cu_graph_run run = NULL;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.capture_end(end_pass(cuda, stream), &recorded);
    if (result != 0)
        return cuda_fail(cuda, error, result, "ending a graph");
    result = cuda->api.graph_instantiate(&run, recorded, 0);
    cuda->api.graph_destroy(recorded);
    if (result != 0)
        return cuda_fail(cuda, error, result, "instantiating a graph");
    *graph = memory_alloc(sizeof **graph);
    (*graph)->run = run;
    return 0;
}

static int cuda_graph_launch(struct device *device, struct device_stream *stream,
                             struct device_graph *graph, struct error *error)
{
    struct cuda_device *cuda;
    if (cuda_enter(device, &cuda, error) != 0)
        return -1;
    cu_result result = cuda->api.graph_launch(graph->run, end_pass(cuda, stream));
    return result == 0 ? 0 : cuda_fail(cuda, error, result, "launching a graph");
}

static void cuda_graph_destroy(struct device *device, struct device_graph *graph)
{
    struct cuda_device *cuda = enter_quietly(device);
    cuda->api.graph_run_destroy(graph->run);
    memory_free(graph);
}

/* ---- describing what is installed */

static void describe_driver(struct buffer *text, const char *folder)
{
    struct error error;
    struct cuda_device *cuda = memory_alloc(sizeof *cuda);
    if (load_driver(&cuda->library, &cuda->api, folder, &error) == 0 &&
        start_driver(cuda, &error) == 0)
        buffer_format(text, "driver     %s, %s\n", cuda->base.info.driver, cuda->library.path);
    else
        buffer_format(text, "driver     %s\n", error.text);
    memory_free(cuda);
}

static void describe_nvrtc(struct buffer *text, const char *folder)
{
    struct error error;
    struct nvrtc *nvrtc = NULL;
    u32 major, minor;
    if (nvrtc_open(&nvrtc, folder, 0, &error) != 0) {
        buffer_format(text, "NVRTC      %s\n", error.text);
        return;
    }
    nvrtc_version(nvrtc, &major, &minor);
    buffer_format(text, "NVRTC      %u.%u, %s\n", major, minor, nvrtc_path(nvrtc));
    nvrtc_close(nvrtc);
}

static void describe_cublaslt(struct buffer *text, const char *folder)
{
    struct error error;
    struct library library;
    size_t (*version)(void) = NULL;
    const struct library_symbol symbols[] = {{"cublasLtGetVersion", (void **)&version}};
    if (library_open(&library, LIBRARY_CUBLASLT, folder, 0, &error) != 0 ||
        library_symbols(&library, symbols, COUNT_OF(symbols), &error) != 0) {
        buffer_format(text, "cuBLASLt   %s\n", error.text);
        return;
    }
    buffer_format(text, "cuBLASLt   %zu.%zu, %s\n", version() / CUBLASLT_VERSION_STEP,
                  version() % CUBLASLT_VERSION_STEP / 100, library.path);
}

void cuda_describe_libraries(struct buffer *text, const char *cuda_libraries)
{
    describe_driver(text, cuda_libraries);
    describe_nvrtc(text, cuda_libraries);
    describe_cublaslt(text, cuda_libraries);
}

const struct device_backend cuda_backend = {
    .open = cuda_open,
    .close = cuda_close,
    .memory_free = cuda_memory_free,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_pinned = cuda_alloc_pinned,
    .free_pinned = cuda_free_pinned,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .sync = cuda_sync,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .event_elapsed = cuda_event_elapsed,
    .compile = cuda_compile,
    .module_load = cuda_module_load,
    .module_unload = cuda_module_unload,
    .function_get = cuda_function_get,
    .function_resources = cuda_function_resources,
    .launch = cuda_launch,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
};
