/* driver.h - the part of the CUDA driver API that the engine uses, as a table of addresses.
 *
 * Declared here rather than included, since the toolkit is not there when the program is built.
 * Names and signatures: CUDA Driver API reference, version 12.0; the _v2 suffixes are the
 * 64-bit entry points that cuda.h maps the plain names to. A new function is one line below.
 */
#ifndef ELPIS_DRIVER_H
#define ELPIS_DRIVER_H

#include "device/device_private.h"
#include "device/libraries.h"

typedef int cu_result; /* 0 = success */
typedef int cu_device;
typedef struct cu_context_handle *cu_context;
typedef struct cu_stream_handle *cu_stream;
typedef struct cu_event_handle *cu_event;
typedef struct cu_module_handle *cu_module;
typedef struct cu_function_handle *cu_function;
typedef struct cu_graph_handle *cu_graph;
typedef struct cu_graph_run_handle *cu_graph_run;
typedef struct cu_link_handle *cu_link;

/* cu_result */
enum {
    CU_OUT_OF_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_NO_BINARY_FOR_GPU = 209,
    CU_DRIVER_MISMATCH = 803,
};
/* CUdevice_attribute */
enum {
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_CAPABILITY_MAJOR = 75,
    CU_ATTRIBUTE_CAPABILITY_MINOR = 76,
    CU_ATTRIBUTE_SHARED_PER_MULTIPROCESSOR = 81,
    CU_ATTRIBUTE_REGISTERS_PER_MULTIPROCESSOR = 82,
    CU_ATTRIBUTE_COOPERATIVE_LAUNCH = 95,
    CU_ATTRIBUTE_SHARED_PER_BLOCK_OPTIN = 97,
};
/* CUfunction_attribute */
enum {
    CU_FUNCTION_LOCAL_BYTES = 3,
    CU_FUNCTION_REGISTERS = 4,
    CU_FUNCTION_MAX_DYNAMIC_SHARED = 8,
    CU_FUNCTION_SHARED_CARVEOUT = 9, /* percent of the SM's unified memory */
};
/* CUjit_option, CUjitInputType */
enum {
    CU_JIT_ERROR_LOG = 5,
    CU_JIT_ERROR_LOG_SIZE = 6,
    CU_JIT_INPUT_IS_PTX = 1,
};
enum {
    CU_STREAM_IS_NON_BLOCKING = 1,
    CU_EVENT_WITH_TIMING = 0,
    CU_PINNED_PORTABLE = 1,
    CU_PINNED_DEVICE_MAPPED = 2,
    CU_CAPTURE_RELAXED = 2,
};

/* What cuLaunchKernelEx takes (cuda.h: CUlaunchConfig, CUlaunchAttribute). */
struct cu_launch_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int flag;
    } value;
};
struct cu_launch {
    unsigned grid[3], block[3], shared;
    cu_stream stream;
    struct cu_launch_attribute *attributes;
    unsigned attribute_count;
};
enum { CU_LAUNCH_OVERLAPS = 6 }; /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */

/* member, symbol, arguments */
#define CU_FUNCTIONS(F)                                                                           \
    F(init, "cuInit", (unsigned flags))                                                           \
    F(version, "cuDriverGetVersion", (int *version))                                              \
    F(error_name, "cuGetErrorName", (cu_result result, const char **text))                        \
    F(error_text, "cuGetErrorString", (cu_result result, const char **text))                      \
    F(device_count, "cuDeviceGetCount", (int *count))                                             \
    F(device_get, "cuDeviceGet", (cu_device * device, int ordinal))                               \
    F(device_name, "cuDeviceGetName", (char *name, int length, cu_device device))                 \
    F(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, cu_device device))    \
    F(device_bus, "cuDeviceGetPCIBusId", (char *id, int length, cu_device device))                \
    F(context_retain, "cuDevicePrimaryCtxRetain", (cu_context * context, cu_device device))       \
    F(context_release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                        \
    F(context_set, "cuCtxSetCurrent", (cu_context context))                                       \
    F(memory_info, "cuMemGetInfo_v2", (size_t * free, size_t * total))                            \
    F(alloc, "cuMemAlloc_v2", (dptr * address, size_t bytes))                                     \
    F(free, "cuMemFree_v2", (dptr address))                                                       \
    F(host_alloc, "cuMemHostAlloc", (void **host, size_t bytes, unsigned flags))                  \
    F(host_free, "cuMemFreeHost", (void *host))                                                   \
    F(host_address, "cuMemHostGetDevicePointer_v2", (dptr * address, void *host, unsigned flags)) \
    F(copy_in, "cuMemcpyHtoDAsync_v2", (dptr to, const void *from, size_t bytes, cu_stream s))    \
    F(copy_out, "cuMemcpyDtoHAsync_v2", (void *to, dptr from, size_t bytes, cu_stream s))         \
    F(copy, "cuMemcpyDtoDAsync_v2", (dptr to, dptr from, size_t bytes, cu_stream s))              \
    F(fill, "cuMemsetD8Async", (dptr to, unsigned char value, size_t bytes, cu_stream s))         \
    F(priorities, "cuCtxGetStreamPriorityRange", (int *last, int *first))                         \
    F(stream_create, "cuStreamCreateWithPriority",                                                \
      (cu_stream * stream, unsigned flags, int priority))                                         \
    F(stream_destroy, "cuStreamDestroy_v2", (cu_stream stream))                                   \
    F(stream_sync, "cuStreamSynchronize", (cu_stream stream))                                     \
    F(stream_wait, "cuStreamWaitEvent", (cu_stream stream, cu_event event, unsigned flags))       \
    F(event_create, "cuEventCreate", (cu_event * event, unsigned flags))                          \
    F(event_destroy, "cuEventDestroy_v2", (cu_event event))                                       \
    F(event_record, "cuEventRecord", (cu_event event, cu_stream stream))                          \
    F(event_sync, "cuEventSynchronize", (cu_event event))                                         \
    F(event_elapsed, "cuEventElapsedTime", (float *milliseconds, cu_event from, cu_event to))     \
    F(module_load, "cuModuleLoadDataEx",                                                          \
      (cu_module * module, const void *image, unsigned count, int *options, void **values))       \
    F(module_unload, "cuModuleUnload", (cu_module module))                                        \
    F(module_function, "cuModuleGetFunction",                                                     \
      (cu_function * function, cu_module module, const char *name))                               \
    F(function_get, "cuFuncGetAttribute", (int *value, int attribute, cu_function function))      \
    F(function_set, "cuFuncSetAttribute", (cu_function function, int attribute, int value))       \
    F(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                                   \
      (int *blocks, cu_function function, int block, size_t shared))                              \
    F(launch, "cuLaunchKernel",                                                                   \
      (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
       unsigned block_y, unsigned block_z, unsigned shared, cu_stream stream, void **arguments,   \
       void **extra))                                                                             \
    F(launch_with, "cuLaunchKernelEx",                                                            \
      (const struct cu_launch *launch, cu_function function, void **arguments, void **extra))     \
    F(launch_cooperative, "cuLaunchCooperativeKernel",                                            \
      (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
       unsigned block_y, unsigned block_z, unsigned shared, cu_stream stream, void **arguments))  \
    F(capture_begin, "cuStreamBeginCapture_v2", (cu_stream stream, int mode))                     \
    F(capture_end, "cuStreamEndCapture", (cu_stream stream, cu_graph * graph))                    \
    F(graph_instantiate, "cuGraphInstantiateWithFlags",                                           \
      (cu_graph_run * run, cu_graph graph, unsigned long long flags))                             \
    F(graph_launch, "cuGraphLaunch", (cu_graph_run run, cu_stream stream))                        \
    F(graph_destroy, "cuGraphDestroy", (cu_graph graph))                                          \
    F(graph_run_destroy, "cuGraphExecDestroy", (cu_graph_run run))                                \
    F(link_create, "cuLinkCreate_v2",                                                             \
      (unsigned count, int *options, void **values, cu_link *link))                               \
    F(link_add, "cuLinkAddData_v2",                                                               \
      (cu_link link, int type, void *data, size_t size, const char *name, unsigned count,         \
       int *options, void **values))                                                              \
    F(link_complete, "cuLinkComplete", (cu_link link, void **image, size_t *size))                \
    F(link_destroy, "cuLinkDestroy", (cu_link link))

#define CU_MEMBER(member, symbol, arguments) cu_result(*member) arguments;
struct cu_api {
    CU_FUNCTIONS(CU_MEMBER)
};
#undef CU_MEMBER

struct device_stream {
    cu_stream handle;
    bool in_pass; /* what was asked of it last is a launch (device_launch) */
};

struct cuda_device {
    struct device base;
    struct library library;
    struct cu_api api;
    cu_device number;
    cu_context context;
    bool retained;
    int priorities[2];          /* [enum device_priority]: as the driver counts; may be equal */
    struct device_stream first; /* what a NULL stream means */
    cu_stream housekeeping;     /* zeroing of new memory, never captured */
    struct nvrtc *nvrtc;
    bool overlaps;         /* its kernels know wait_previous() */
    u32 real_sms;          /* of the GPU itself; base.info.sms is the plan's */
    char architecture[32]; /* what NVRTC is asked for: "sm_90", or "compute_86" under `as` */
    char *cuda_libraries;  /* options.cuda_libraries, for cuBLASLt; NULL = none */
};

/* Makes the device's context this thread's and gives the device its real type; result in *error. */
int cuda_enter(struct device *device, struct cuda_device **cuda, struct error *error);
cu_stream cuda_stream(struct cuda_device *cuda, const struct device_stream *stream);
/* "GPU name: what: CUDA_ERROR_X (text)"; the code tells memory, a dead context and the rest apart.
 * Returns -1. */
int cuda_fail(const struct cuda_device *cuda, struct error *error, cu_result result,
              const char *format, ...) PRINTF_LIKE(4, 5);

#endif
