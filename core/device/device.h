/* device.h - the boundary between the engine and what runs its kernels.
 *
 * Two devices stand behind it. `cuda` is the NVIDIA driver API, opened at run
 * time. `host` runs the very same kernel source, compiled by the system's C
 * compiler: blocks on a thread pool, the threads of a block as fibers. A
 * kernel gives the same bits on both (design: exact integer sums, explicit
 * rounding), so the host is the reference, the test bed, and the fallback.
 *
 * Rules of the boundary
 *   - A device address is a dptr. On the host device it is the pointer itself.
 *   - Every kernel argument is one 64-bit slot: an address, or an integer in
 *     the low bytes. Kernels take no structs by value.
 *   - The grid is fixed when a kernel is planned (persistent CTAs; a work map
 *     deals out the items), so a launch is (function, arguments) and graphs
 *     replay unchanged. What varies from round to round is in device memory.
 *   - Calls on one device come from one thread at a time, except
 *     device_compile, which any thread may call at any time.
 *   - Streams keep order; the host device runs everything at once, in order. Checked, it reports
 *     launches of two streams that meet in memory and that no event or wait of the host orders.
 *   - Every function that can fail fills struct error with one sentence that
 *     names the device and what was tried.
 */
#ifndef ELPIS_DEVICE_H
#define ELPIS_DEVICE_H

#include "base/base.h"

typedef u64 dptr;

struct device;
struct device_stream;
struct device_event;
struct device_module;
struct device_function;
struct device_graph;

enum device_kind { DEVICE_HOST, DEVICE_CUDA, DEVICE_PAPER };

/* Of every GPU from sm_80 on. */
enum {
    DEVICE_RESERVED_SHARED = 1024, /* bytes of an SM's shared memory the system keeps per CTA */
    DEVICE_REGISTERS = 65536,      /* of an SM */
};

/* How to open. Zero-initialise: `auto` device number 0, no emulation. */
struct device_options {
    const char *device; /* "auto", "cuda", "cuda:N", "host"; NULL = auto */
    /* "sm_86:82:100K": run the plan of that GPU (arch, SMs, shared memory per SM) here, through
     * compute_86 PTX; NULL = native */
    const char *as;
    const char *cuda_libraries; /* folder searched first for libcuda, libnvrtc, libcublasLt */
    u32 host_threads;           /* worker threads of the host device; 0 = one a core */
    /* host device: sentinels around every buffer, checked after every launch; kernels compiled
     * with the race check */
    bool host_check;
    u32 host_order; /* fiber order: 0 forward, 1 reverse, N > 1 random with that seed */
    /* the device of that name is not opened: nothing runs, launches are remembered (below). `as`
     * is then needed, or paper_of */
    bool paper;
    const struct device_info *paper_of; /* paper: as if it were this device */
};

struct device_info {
    enum device_kind kind;
    char name[128];       /* "NVIDIA H200", "host: AMD EPYC" */
    char target[32];      /* kernels are compiled for: "sm_90", "sm_86" (also under as), "host" */
    char compiler[160];   /* in the cache key: "nvrtc 13.0", "cc 12.2.0 <digest of CPU flags>" */
    char driver[64];      /* "580.159.04 (CUDA 13.0)", "" on the host */
    u32 arch;             /* 86, 90; 0 on the host */
    u32 sms;              /* multiprocessors of the plan (as: its); host: worker threads */
    u32 shared_per_sm;    /* bytes; host: 100 KiB */
    u32 shared_per_block; /* bytes a block may opt in to */
    u32 registers_per_sm; /* 65536 on every GPU we know; 0 on the host */
    /* fp16 tensor cores add into fp32 at full rate (not sm_86, sm_89) */
    bool full_rate_f32_accumulate;
    u64 memory_total, memory_free; /* bytes, when opened */
};

int device_open(struct device **device, const struct device_options *options, struct error *error);
void device_close(struct device *device); /* NULL is fine */
const struct device_info *device_info(const struct device *device);
int device_memory_free(struct device *device, u64 *bytes, struct error *error);

/* One line for `elpis check` about each device that could be opened, without opening one:
 * found driver, NVRTC and cuBLASLt libraries with paths and versions, or why not. */
void device_describe_libraries(struct buffer *text, const char *cuda_libraries);

/* ---- memory. label names the buffer in error messages and sentinels reports. */
int device_alloc(struct device *device, size_t bytes, const char *label, dptr *address,
                 struct error *error);                 /* 256-byte aligned, zeroed */
void device_free(struct device *device, dptr address); /* 0 is fine */
/* The buffer of device_alloc that an address lies in; false: none. */
bool device_buffer_of(const struct device *device, dptr inside, dptr *address, u64 *bytes);
/* Page-locked host memory that kernels can read at *address. */
int device_alloc_pinned(struct device *device, size_t bytes, void **host, dptr *address,
                        struct error *error);
void device_free_pinned(struct device *device, void *host);
/* Asynchronous when the host side is pinned; else complete on return. */
int device_copy_in(struct device *device, struct device_stream *stream, dptr to, const void *from,
                   size_t bytes, struct error *error);
int device_copy_out(struct device *device, struct device_stream *stream, void *to, dptr from,
                    size_t bytes, struct error *error);
int device_copy(struct device *device, struct device_stream *stream, dptr to, dptr from,
                size_t bytes, struct error *error);
int device_fill(struct device *device, struct device_stream *stream, dptr to, u8 value,
                size_t bytes, struct error *error);

/* ---- streams and events. The NULL stream is the device's own first stream. */

/* Whose CTAs come in where those of several streams could. One that runs is never stopped. */
enum device_priority {
    DEVICE_FIRST, /* the NULL stream has it */
    DEVICE_LAST,
};
int device_stream_create(struct device *device, enum device_priority priority,
                         struct device_stream **stream, struct error *error);
void device_stream_destroy(struct device *device, struct device_stream *stream);
int device_sync(struct device *device, struct device_stream *stream, struct error *error);
int device_event_create(struct device *device, struct device_event **event, struct error *error);
void device_event_destroy(struct device *device, struct device_event *event);
int device_event_record(struct device *device, struct device_event *event,
                        struct device_stream *stream, struct error *error);
int device_event_wait(struct device *device, struct device_stream *stream,
                      struct device_event *event, struct error *error); /* stream waits for event */
int device_event_sync(struct device *device, struct device_event *event, struct error *error);
int device_event_elapsed(struct device *device, struct device_event *from, struct device_event *to,
                         double *seconds, struct error *error);

/* ---- code */

/* Compiles kernel source to an image for device_module_load. Thread-safe.
 * name: for messages. On a compiler error the text holds the compiler's own lines
 * (already mapped to template files by #line) and code is ERROR_DEVICE.
 * *image is a buffer the caller frees. */
int device_compile(struct device *device, struct slice source, const char *name,
                   struct buffer *image, struct error *error);
/* The same for any target without a GPU ("sm_86", "sm_90"); needs only NVRTC.
 * resources: filled from the cubin when not NULL. */
struct device_resources {
    u32 registers, shared_static, spill_stores, spill_loads, local_bytes;
};
int device_cross_compile(const char *cuda_libraries, struct slice source, const char *name,
                         const char *target, struct buffer *image,
                         struct device_resources *resources, struct error *error);

int device_module_load(struct device *device, const void *image, size_t size, const char *name,
                       struct device_module **module, struct error *error);
void device_module_unload(struct device *device, struct device_module *module);

/* How a kernel is launched; fixed with its plan. */
struct device_geometry {
    u32 grid;         /* CTAs, one-dimensional */
    u32 block;        /* threads a CTA, a multiple of 32 */
    u32 shared;       /* bytes of dynamic shared memory */
    bool cooperative; /* all CTAs resident at once; grid barriers allowed */
    /* Calls wait_previous(): may begin while the launches before it in its pass end. With
     * cooperative: its CTAs come in one by one, and no later launch's before all of them have
     * (wait_previous() is called before any barrier); launches before it need none of it and
     * end. */
    bool overlaps;
};
int device_function_get(struct device *device, struct device_module *module, const char *name,
                        const struct device_geometry *geometry, struct device_function **function,
                        struct error *error); /* lives as long as the module */
/* Registers of a thread and its bytes of local memory; zeros on the host and on paper. */
int device_function_resources(struct device *device, const struct device_function *function,
                              struct device_resources *resources, struct error *error);
/* Launches that follow each other on a stream are a pass. Whatever else is asked of the stream ends
 * it: a copy, a fill, a wait, the beginning or the start of a graph; to record an event does not.
 * A pass's first launch begins when all before it is complete, the others may overlap. So what was
 * written before the pass is there for every launch of it from its first instruction on; so is, in
 * L2, what launches of the pass wrote before the one before it, as a launch comes in when that one
 * waits no longer. What that one wrote is there after wait_previous(). Checked hosts report who
 * reads it earlier. */
int device_launch(struct device *device, struct device_stream *stream,
                  struct device_function *function, const u64 *arguments, u32 count,
                  struct error *error);

/* ---- graphs: what is launched between begin and end is recorded, not run. */
int device_graph_begin(struct device *device, struct device_stream *stream, struct error *error);
int device_graph_end(struct device *device, struct device_stream *stream,
                     struct device_graph **graph, struct error *error);
int device_graph_launch(struct device *device, struct device_stream *stream,
                        struct device_graph *graph, struct error *error);
void device_graph_destroy(struct device *device, struct device_graph *graph);

/* ---- matrix product by the vendor's library (cuBLASLt), for prefill.
 * d[m][n] f32 = a[m][k] f16 x b[k][n] f16, row-major, fp32 accumulation, one pinned
 * algorithm a shape class (k, n), no split-K. device_gemm_open fails on the host device
 * and where the library is missing; device_gemm_plan runs the start-up check: the same
 * 64 rows alone, and inside larger m at several places, must give equal bits. */
struct device_gemm;
int device_gemm_open(struct device *device, struct device_gemm **gemm, struct error *error);
void device_gemm_close(struct device_gemm *gemm);
int device_gemm_plan(struct device_gemm *gemm, u32 k, u32 n, u32 m_max, struct error *error);
int device_gemm_run(struct device_gemm *gemm, struct device_stream *stream, u32 m, u32 n, u32 k,
                    dptr a, dptr b, dptr d, struct error *error);

/* ---- measuring */

/* Bytes a second that a copy on the device moves, its reads and its writes counted: the yardstick
 * of what a kernel that is bound by memory can reach. Median of several copies of 1 GiB (of less
 * where that is not free, on the host 64 MiB). */
int device_copy_bandwidth(struct device *device, double *bytes_a_second, struct error *error);

/* Clocks, power and temperature of a GPU, by NVIDIA's management library, read by a thread of its
 * own between begin and end. open fails on the host device and where the library is missing. */
struct device_sensors;
struct device_readings {
    u32 count; /* readings; 0: none were made */
    /* their means; negative: the GPU does not tell */
    double sm_mhz, memory_mhz, watts, celsius;
};
int device_sensors_open(struct device *device, struct device_sensors **sensors,
                        struct error *error);
void device_sensors_close(struct device_sensors *sensors); /* NULL is fine */
void device_sensors_begin(struct device_sensors *sensors); /* NULL is fine */
/* sensors NULL: no readings. */
void device_sensors_end(struct device_sensors *sensors, struct device_readings *readings);

/* ---- checks of the host device (options.host_check) */

/* Faults found so far: overwritten sentinels and races, each one line. Empty when clean.
 * device_launch also fails on the launch that shows one. */
void device_host_faults(struct device *device, struct buffer *text);

/* ---- the paper device: what would be launched on a GPU that is not there
 *
 * Its memory is address space of this process, zero until something is copied in; pages that
 * nobody writes take no room. Kernels are not compiled, their source is kept. A graph is recorded
 * once and its launches are then remembered once. */

struct device_paper_launch {
    const struct device_function *function;
    u64 *arguments; /* [count] */
    u32 count;
};
/* Forgets the launches made so far. */
void device_paper_clear(struct device *device);
/* In order; valid until the next launch. */
const struct device_paper_launch *device_paper_launches(const struct device *device, size_t *count);
/* Reads memory of the device; false where there is none. */
bool device_paper_read(const struct device *device, dptr from, void *to, size_t bytes);

#endif
