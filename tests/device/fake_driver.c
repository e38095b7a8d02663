/* fake_driver.c - libcuda, libnvrtc and libnvidia-ml in one, for test_cuda.c: memory is host
 * memory.
 *
 * Compiled by the test into a folder that device_open searches first. It looks like one H200.
 * A "kernel" f(u64 *p, u64 value) stores value at p, plus 1000 when it was launched to overlap and
 * 2000 when cooperatively. Under capture, launches are kept and run
 * by cuGraphLaunch. FAKE_SYNC in the environment is what cuStreamSynchronize returns.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;

static const size_t total = 1 << 20; /* bytes of "GPU" memory */
static size_t used;

struct launch {
    u64 *to, value;
    struct launch *next;
};
static struct launch *captured;
static int capturing;
static int dynamic_shared, carveout;

int cuInit(unsigned flags)
{
    return 0;
}
int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}
int cuGetErrorName(int result, const char **text)
{
    *text = "FAKE_NAME";
    return 0;
}
int cuGetErrorString(int result, const char **text)
{
    *text = "a fake's text";
    return 0;
}
int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}
int cuDeviceGetName(char *name, int size, int device)
{
    strcpy(name, "Fake H200");
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    switch (attribute) {
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    case 16: *value = 132; break;
    case 81: *value = 233472; break;
    case 97: *value = 232448; break;
    case 82: *value = 65536; break;
    case 95: *value = 1; break;
    default: return 1;
    }
    return 0;
}

int cuDeviceGetPCIBusId(char *id, int length, int device)
{
    strcpy(id, "0000:19:00.0");
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &used;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
    return 0;
}
int cuCtxSetCurrent(void *context)
{
    return context ? 0 : 201;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *all)
{
    *free_bytes = total - used;
    *all = total;
    return 0;
}

int cuMemAlloc_v2(u64 *address, size_t bytes)
{
    if (bytes == 0)
        return 1;
    if (used + bytes > total)
        return 2;
    size_t *block = malloc(bytes + 256);
    memset(block, 0x5a, bytes + 256); /* not zero: the device layer must clear it */
    block[0] = bytes;
    used += bytes;
    *address = (u64)(uintptr_t)block + 256;
    return 0;
}

int cuMemFree_v2(u64 address)
{
    size_t *block = (size_t *)(uintptr_t)(address - 256);
    used -= block[0];
    free(block);
    return 0;
}

int cuMemHostAlloc(void **host, size_t bytes, unsigned flags)
{
    *host = malloc(bytes);
    return flags == 3 ? 0 : 1;
}
int cuMemFreeHost(void *host)
{
    free(host);
    return 0;
}
int cuMemHostGetDevicePointer_v2(u64 *address, void *host, unsigned flags)
{
    *address = (u64)(uintptr_t)host;
    return 0;
}
int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t n, void *s)
{
    memcpy((void *)to, from, n);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t n, void *s)
{
    memcpy(to, (void *)from, n);
    return 0;
}
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t n, void *s)
{
    memmove((void *)to, (void *)from, n);
    return 0;
}
int cuMemsetD8Async(u64 to, unsigned char value, size_t n, void *s)
{
    memset((void *)to, value, n);
    return 0;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return 0;
}
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    int *made = malloc(sizeof *made);
    *made = priority;
    *stream = made;
    return flags == 1 && (priority == 0 || priority == -5) ? 0 : 1;
}
int cuStreamDestroy_v2(void *stream)
{
    free(stream);
    return 0;
}
int cuStreamSynchronize(void *stream)
{
    const char *result = getenv("FAKE_SYNC");
    return result ? atoi(result) : 0;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    return 0;
}
int cuEventCreate(void **event, unsigned flags)
{
    *event = malloc(1);
    return 0;
}
int cuEventDestroy_v2(void *event)
{
    free(event);
    return 0;
}
int cuEventRecord(void *event, void *stream)
{
    return 0;
}
int cuEventSynchronize(void *event)
{
    return 0;
}
int cuEventElapsedTime(float *milliseconds, void *from, void *to)
{
    *milliseconds = 2;
    return 0;
}

int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options,
                       void **values)
{
    if (strstr(image, "for another GPU"))
        return 209;
    *module = malloc(1);
    return 0;
}
int cuModuleUnload(void *module)
{
    free(module);
    return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = module;
    return strcmp(name, "f") ? 500 : 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    *value = 32;
    return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value)
{
    if (attribute == 8)
        dynamic_shared = value;
    if (attribute == 9)
        carveout = value;
    return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int block,
                                                size_t shared)
{
    *blocks = 2;
    return 0;
}

static u64 extra_value; /* of the way in which the next launch comes */

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra)
{
    struct launch *launch = malloc(sizeof *launch);
    launch->to = *(u64 **)arguments[0];
    launch->value = *(u64 *)arguments[1] + extra_value + (*(int *)stream == 0 ? 50 : 0);
    extra_value = 0;
    launch->next = captured;
    if (shared > 0 && (dynamic_shared < (int)shared || carveout != 100))
        return 1;
    if (capturing) {
        captured = launch;
        return 0;
    }
    *launch->to = launch->value;
    free(launch);
    return 0;
}

struct attribute {
    unsigned id, pad, value[16];
};
struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct attribute *attributes;
    unsigned attribute_count;
};
int cuLaunchKernelEx(const struct launch_config *launch, void *function, void **arguments,
                     void **extra)
{
    const unsigned *grid = launch->grid, *block = launch->block;
    if (launch->attribute_count != 1 || launch->attributes[0].id != 6)
        return 1;
    extra_value = 1000 * launch->attributes[0].value[0];
    return cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                          launch->shared, launch->stream, arguments, extra);
}
int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, void *stream,
                              void **arguments)
{
    extra_value = 2000;
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, 0);
}

int cuStreamBeginCapture_v2(void *stream, int mode)
{
    capturing = 1;
    captured = 0;
    return 0;
}
int cuStreamEndCapture(void *stream, void **graph)
{
    capturing = 0;
    *graph = captured;
    return 0;
}
int cuGraphInstantiateWithFlags(void **run, void *graph, unsigned long long flags)
{
    *run = graph;
    return 0;
}
int cuGraphLaunch(void *run, void *stream)
{
    for (struct launch *launch = run; launch; launch = launch->next)
        *launch->to = launch->value;
    return 0;
}
int cuGraphDestroy(void *graph)
{
    return 0;
}
int cuGraphExecDestroy(void *run)
{
    for (struct launch *launch = run, *next; launch; launch = next) {
        next = launch->next;
        free(launch);
    }
    return 0;
}

static char linked[64];
int cuLinkCreate_v2(unsigned count, int *options, void **values, void **link)
{
    *link = linked;
    return 0;
}
int cuLinkAddData_v2(void *link, int type, void *data, size_t size, const char *name,
                     unsigned count, int *options, void **values)
{
    if (strstr(data, "bad PTX"))
        return 218;
    strcpy(linked, "\177ELF linked");
    return 0;
}
int cuLinkComplete(void *link, void **image, size_t *size)
{
    *image = linked;
    *size = 12;
    return 0;
}
int cuLinkDestroy(void *link)
{
    memset(linked, 0, sizeof linked);
    return 0;
}

/* ---- NVML: FAKE_NVML in the environment is what nvmlInit returns; power is not told */

int nvmlInit_v2(void)
{
    const char *result = getenv("FAKE_NVML");
    return result ? atoi(result) : 0;
}
int nvmlShutdown(void)
{
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device)
{
    *device = &used;
    return strcmp(bus, "0000:19:00.0") ? 6 : 0;
}
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *megahertz)
{
    *megahertz = type == 1 ? 1980 : type == 2 ? 3201 : 0;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    *milliwatts = 1;
    return 3;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    static unsigned warmer = 40;
    *celsius = sensor == 0 ? warmer++ : 0;
    return 0;
}
const char *nvmlErrorString(int result)
{
    return "a fake's NVML error";
}

/* ---- NVRTC: the image says what it was asked for */

static __thread char image[256];
int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}
const char *nvrtcGetErrorString(int result)
{
    return "a fake's error";
}
int nvrtcGetNumSupportedArchs(int *count)
{
    *count = 2;
    return 0;
}
int nvrtcGetSupportedArchs(int *archs)
{
    archs[0] = 86;
    archs[1] = 90;
    return 0;
}
int nvrtcCreateProgram(void **program, const char *source, const char *name, int n, void *h,
                       void *i)
{
    *program = image;
    strcpy(image, strstr(source, "bad PTX") ? "bad PTX " : "\177ELF ");
    return strstr(source, "broken") ? 6 : 0;
}
int nvrtcDestroyProgram(void **program)
{
    return 0;
}
int nvrtcCompileProgram(void *program, int count, const char *const *options)
{
    strcat(image, options[0]);
    return 0;
}
int nvrtcGetProgramLogSize(void *program, size_t *size)
{
    *size = 1;
    return 0;
}
int nvrtcGetProgramLog(void *program, char *log)
{
    log[0] = 0;
    return 0;
}
int nvrtcGetCUBINSize(void *program, size_t *size)
{
    *size = strlen(image) + 1;
    return 0;
}
int nvrtcGetCUBIN(void *program, char *to)
{
    strcpy(to, image);
    return 0;
}
int nvrtcGetPTXSize(void *program, size_t *size)
{
    *size = strlen(image) + 1;
    return 0;
}
int nvrtcGetPTX(void *program, char *to)
{
    strcpy(to, image);
    return 0;
}
