/* nvrtc.c - compiling kernels for GPUs, the one at hand or any other.
 *
 * A program is made, compiled and destroyed in one call, so calls from several threads share
 * nothing. NVRTC's log is where ptxas (-v) says what a kernel costs; device_cross_compile reads
 * registers, spills and static shared memory from it, so the numbers are the assembler's own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/libraries.h"
#include "device/nvrtc.h"

typedef void *nvrtc_program;
typedef int nvrtc_result; /* 0 = success */

enum { NVRTC_ERROR_COMPILATION = 6, OLDEST_MAJOR = 12, LOG_LIMIT = 700 };

struct nvrtc {
    struct library library;
    int major, minor;
    nvrtc_result (*version)(int *major, int *minor);
    const char *(*error_text)(nvrtc_result result);
    nvrtc_result (*arch_count)(int *count);
    nvrtc_result (*arch_list)(int *archs);
    nvrtc_result (*create)(nvrtc_program *program, const char *source, const char *name,
                           int header_count, const char *const *headers,
                           const char *const *header_names);
    nvrtc_result (*destroy)(nvrtc_program *program);
    nvrtc_result (*compile)(nvrtc_program program, int count, const char *const *options);
    nvrtc_result (*log_size)(nvrtc_program program, size_t *size);
    nvrtc_result (*log_text)(nvrtc_program program, char *log);
    nvrtc_result (*cubin_size)(nvrtc_program program, size_t *size);
    nvrtc_result (*cubin)(nvrtc_program program, char *cubin);
    nvrtc_result (*ptx_size)(nvrtc_program program, size_t *size);
    nvrtc_result (*ptx)(nvrtc_program program, char *ptx);
};

static int resolve(struct nvrtc *nvrtc, struct error *error)
{
    const struct library_symbol symbols[] = {
        {"nvrtcVersion", (void **)&nvrtc->version},
        {"nvrtcGetErrorString", (void **)&nvrtc->error_text},
        {"nvrtcGetNumSupportedArchs", (void **)&nvrtc->arch_count},
        {"nvrtcGetSupportedArchs", (void **)&nvrtc->arch_list},
        {"nvrtcCreateProgram", (void **)&nvrtc->create},
        {"nvrtcDestroyProgram", (void **)&nvrtc->destroy},
        {"nvrtcCompileProgram", (void **)&nvrtc->compile},
        {"nvrtcGetProgramLogSize", (void **)&nvrtc->log_size},
        {"nvrtcGetProgramLog", (void **)&nvrtc->log_text},
        {"nvrtcGetCUBINSize", (void **)&nvrtc->cubin_size},
        {"nvrtcGetCUBIN", (void **)&nvrtc->cubin},
        {"nvrtcGetPTXSize", (void **)&nvrtc->ptx_size},
        {"nvrtcGetPTX", (void **)&nvrtc->ptx},
    };
    return library_symbols(&nvrtc->library, symbols, COUNT_OF(symbols), error);
}

int nvrtc_open(struct nvrtc **nvrtc, const char *folder, u32 newest_major, struct error *error)
{
    struct nvrtc *opened = memory_alloc(sizeof *opened);
    if (library_open(&opened->library, LIBRARY_NVRTC, folder, newest_major, error) != 0)
        goto fail;
    if (resolve(opened, error) != 0)
        goto fail;
    if (opened->version(&opened->major, &opened->minor) != 0 || opened->major < OLDEST_MAJOR) {
        error_set(error, ERROR_DEVICE,
                  "%s is NVRTC %d.%d, too old: version %d.0 or later is needed",
                  opened->library.path, opened->major, opened->minor, OLDEST_MAJOR);
        goto fail;
    }
    *nvrtc = opened;
    return 0;
fail:
    memory_free(opened);
    return -1;
}

void nvrtc_close(struct nvrtc *nvrtc)
{
    memory_free(nvrtc);
}

const char *nvrtc_path(const struct nvrtc *nvrtc)
{
    return nvrtc->library.path;
}

void nvrtc_version(const struct nvrtc *nvrtc, u32 *major, u32 *minor)
{
    *major = (u32)nvrtc->major;
    *minor = (u32)nvrtc->minor;
}

int nvrtc_supports(const struct nvrtc *nvrtc, u32 arch, struct error *error)
{
    int archs[64] = {0}, count = 0;
    if (nvrtc->arch_count(&count) != 0 || count < 1 || count > (int)COUNT_OF(archs) ||
        nvrtc->arch_list(archs) != 0)
        return error_set(error, ERROR_DEVICE, "%s does not say what it compiles for; reinstall it",
                         nvrtc->library.path);
    for (int i = 0; i < count; i++)
        if (archs[i] == (int)arch)
            return 0;
    return error_set(
        error, ERROR_DEVICE,
        "NVRTC %d.%d (%s) does not compile for sm_%u: it knows sm_%d to sm_%d; install "
        "another version",
        nvrtc->major, nvrtc->minor, nvrtc->library.path, arch, archs[0], archs[count - 1]);
}

static int fail_with(const struct nvrtc *nvrtc, const char *name, const char *what,
                     nvrtc_result result, struct error *error)
{
    return error_set(error, ERROR_DEVICE, "kernel %s: NVRTC %d.%d, %s: %s", name, nvrtc->major,
                     nvrtc->minor, what, nvrtc->error_text(result));
}

static void read_log(const struct nvrtc *nvrtc, nvrtc_program program, struct buffer *log)
{
    size_t size = 0;
    buffer_clear(log);
    if (nvrtc->log_size(program, &size) != 0 || size <= 1)
        return;
    nvrtc->log_text(program, buffer_extend(log, size));
    log->size = strlen(log->data);
}

static int compile_failed(const struct nvrtc *nvrtc, const char *name, nvrtc_result result,
                          const struct buffer *log, struct error *error)
{
    if (result != NVRTC_ERROR_COMPILATION)
        return fail_with(nvrtc, name, "compiling", result, error);
    log_debug("kernel %s, compiler log:\n%s", name, log->data ? log->data : "");
    return error_set(error, ERROR_DEVICE, "kernel %s does not compile with NVRTC %d.%d: %.*s", name,
                     nvrtc->major, nvrtc->minor, LOG_LIMIT, log->data ? log->data : "");
}

static int read_image(const struct nvrtc *nvrtc, nvrtc_program program, bool text,
                      struct buffer *image, const char *name, struct error *error)
{
    size_t size = 0;
    nvrtc_result result = text ? nvrtc->ptx_size(program, &size)
                               : nvrtc->cubin_size(program, &size);
    if (result == 0 && size == 0)
        return error_set(error, ERROR_DEVICE, "kernel %s: NVRTC %d.%d returned an empty image",
                         name, nvrtc->major, nvrtc->minor);
    buffer_clear(image);
    if (result == 0) {
        char *room = buffer_extend(image, size);
        result = text ? nvrtc->ptx(program, room) : nvrtc->cubin(program, room);
    }
    return result == 0 ? 0 : fail_with(nvrtc, name, "reading the image", result, error);
}

int nvrtc_compile(struct nvrtc *nvrtc, struct slice source, const char *name,
                  const char *architecture, struct buffer *image, struct buffer *log,
                  struct error *error)
{
    char target[64];
    const char *options[] = {
        target,        "--fmad=false",      "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
        "--std=c++17", "--ptxas-options=-v"};
    const bool text = strncmp(architecture, "compute_", 8) == 0;
    struct buffer own_log = {0};
    struct buffer *lines = log ? log : &own_log;
    nvrtc_program program = NULL;
    int status = -1;

    /* What sm_90 alone has, wgmma, NVRTC knows under another name. */
    const char *features = strstr(architecture, "_90") ? "a" : "";
    snprintf(target, sizeof target, "--gpu-architecture=%s%s", architecture, features);
    char *terminated = memory_copy_text(source);
    nvrtc_result result = nvrtc->create(&program, terminated, name, 0, NULL, NULL);
    if (result != 0) {
        fail_with(nvrtc, name, "starting", result, error);
        goto done;
    }
    result = nvrtc->compile(program, (int)(COUNT_OF(options) - (text ? 1 : 0)), options);
    read_log(nvrtc, program, lines);
    if (result != 0)
        compile_failed(nvrtc, name, result, lines, error);
    else
        status = read_image(nvrtc, program, text, image, name, error);
done:
    if (program)
        nvrtc->destroy(&program);
    memory_free(terminated);
    buffer_free(&own_log);
    return status;
}

/* ---- cross compiling */

/* The largest number that stands before `unit` in ptxas' log (a source may hold several kernels).
 * Lines read: "Used 79 registers, used 1 barriers, 128 bytes smem" and
 * "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads". */
static u32 largest_before(const char *log, const char *unit)
{
    u32 largest = 0;
    for (const char *at = log; (at = strstr(at, unit)) != NULL; at += strlen(unit)) {
        const char *digit = at;
        while (digit > log && digit[-1] >= '0' && digit[-1] <= '9')
            digit--;
        u32 value = digit < at ? (u32)strtoul(digit, NULL, 10) : 0;
        largest = value > largest ? value : largest;
    }
    return largest;
}

static void read_resources(const struct buffer *log, struct device_resources *resources)
{
    const char *text = log->data ? log->data : "";
    resources->registers = largest_before(text, " registers");
    resources->shared_static = largest_before(text, " bytes smem");
    resources->spill_stores = largest_before(text, " bytes spill stores");
    resources->spill_loads = largest_before(text, " bytes spill loads");
    resources->local_bytes = largest_before(text, " bytes stack frame");
}

int device_cross_compile(const char *cuda_libraries, struct slice source, const char *name,
                         const char *target, struct buffer *image,
                         struct device_resources *resources, struct error *error)
{
    struct nvrtc *nvrtc = NULL;
    struct buffer log = {0};
    const char *number = strchr(target, '_');
    int status = -1;
    if (!number || (strncmp(target, "sm_", 3) != 0 && strncmp(target, "compute_", 8) != 0))
        return error_set(error, ERROR_USAGE,
                         "unknown target \"%s\": expected sm_NN or compute_NN, as sm_86", target);
    if (nvrtc_open(&nvrtc, cuda_libraries, 0, error) != 0)
        return -1;
    if (nvrtc_supports(nvrtc, (u32)strtoul(number + 1, NULL, 10), error) == 0)
        status = nvrtc_compile(nvrtc, source, name, target, image, &log, error);
    if (status == 0 && resources)
        read_resources(&log, resources);
    buffer_free(&log);
    nvrtc_close(nvrtc);
    return status;
}
