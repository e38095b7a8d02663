/* device_private.h - what stands between the dispatcher and a backend.
 *
 * A backend is a table of functions with the signatures of device.h. It begins
 * its own device struct with a `struct device`, so that a pointer to one is a
 * pointer to the other:
 *
 *     struct host_device { struct device base; ... };
 *
 * open fills base.info; the dispatcher fills base.backend. The dispatcher never
 * passes NULL devices; it does pass NULL streams (the device's first stream),
 * zero addresses to free and zero bytes to copy or fill.
 *
 * Not in the table, because only NVIDIA's libraries can do it: cross compiling
 * (device_cross_compile, nvrtc.c) and the products of cublaslt.c
 * (device_gemm_close, _plan, _run), which those files define themselves.
 */
#ifndef ELPIS_DEVICE_PRIVATE_H
#define ELPIS_DEVICE_PRIVATE_H

#include "device/device.h"

struct device_backend {
    int (*open)(struct device **device, const struct device_options *options, struct error *error);
    void (*close)(struct device *device);
    int (*memory_free)(struct device *device, u64 *bytes, struct error *error);

    int (*alloc)(struct device *device, size_t bytes, const char *label, dptr *address,
                 struct error *error);
    void (*free)(struct device *device, dptr address);
    int (*alloc_pinned)(struct device *device, size_t bytes, void **host, dptr *address,
                        struct error *error);
    void (*free_pinned)(struct device *device, void *host);
    int (*copy_in)(struct device *device, struct device_stream *stream, dptr to, const void *from,
                   size_t bytes, struct error *error);
    int (*copy_out)(struct device *device, struct device_stream *stream, void *to, dptr from,
                    size_t bytes, struct error *error);
    int (*copy)(struct device *device, struct device_stream *stream, dptr to, dptr from,
                size_t bytes, struct error *error);
    int (*fill)(struct device *device, struct device_stream *stream, dptr to, u8 value,
                size_t bytes, struct error *error);

    int (*stream_create)(struct device *device, enum device_priority priority,
                         struct device_stream **stream, struct error *error);
    void (*stream_destroy)(struct device *device, struct device_stream *stream);
    int (*sync)(struct device *device, struct device_stream *stream, struct error *error);
    int (*event_create)(struct device *device, struct device_event **event, struct error *error);
    void (*event_destroy)(struct device *device, struct device_event *event);
    int (*event_record)(struct device *device, struct device_event *event,
                        struct device_stream *stream, struct error *error);
    int (*event_wait)(struct device *device, struct device_stream *stream,
                      struct device_event *event, struct error *error);
    int (*event_sync)(struct device *device, struct device_event *event, struct error *error);
    int (*event_elapsed)(struct device *device, struct device_event *from, struct device_event *to,
                         double *seconds, struct error *error);

    int (*compile)(struct device *device, struct slice source, const char *name,
                   struct buffer *image, struct error *error); /* any thread */
    int (*module_load)(struct device *device, const void *image, size_t size, const char *name,
                       struct device_module **module, struct error *error);
    void (*module_unload)(struct device *device, struct device_module *module);
    int (*function_get)(struct device *device, struct device_module *module, const char *name,
                        const struct device_geometry *geometry, struct device_function **function,
                        struct error *error);
    /* NULL: they are not known */
    int (*function_resources)(struct device *device, const struct device_function *function,
                              struct device_resources *resources, struct error *error);
    int (*launch)(struct device *device, struct device_stream *stream,
                  struct device_function *function, const u64 *arguments, u32 count,
                  struct error *error);

    int (*graph_begin)(struct device *device, struct device_stream *stream, struct error *error);
    int (*graph_end)(struct device *device, struct device_stream *stream,
                     struct device_graph **graph, struct error *error);
    int (*graph_launch)(struct device *device, struct device_stream *stream,
                        struct device_graph *graph, struct error *error);
    void (*graph_destroy)(struct device *device, struct device_graph *graph);
};

/* Of device_alloc. */
struct device_buffer {
    dptr address;
    u64 bytes;
};

struct device {
    const struct device_backend *backend;
    struct device_info info;
    struct device_buffer *buffers; /* of the dispatcher, in no order */
    size_t buffer_count;
};

extern const struct device_backend cuda_backend;  /* cuda.c */
extern const struct device_backend host_backend;  /* host.c */
extern const struct device_backend paper_backend; /* paper.c */

enum { DEVICE_OLDEST_ARCH = 80 }; /* cp.async, redux.sync, mma m16n8k32 */

/* fp16 tensor cores of consumer chips add into fp32 at half rate (NVIDIA Ampere, Ada and
 * Blackwell GPU architecture papers, table of peak rates). */
bool device_adds_f32_at_full_rate(u32 arch);

/* "sm_86:82:100K": architecture, SMs, shared memory per SM in KiB (K) or bytes. */
int device_parse_as(const char *text, u32 *arch, u32 *sms, u32 *shared, struct error *error);

/* One line a library: path and version, or why it was not found (cuda.c). */
void cuda_describe_libraries(struct buffer *text, const char *cuda_libraries);
/* device_gemm_open behind the dispatcher's check of the kind (cublaslt.c). */
int cuda_gemm_open(struct device *device, struct device_gemm **gemm, struct error *error);

/* host.c, for the dispatcher. */
void host_describe(struct buffer *text);
void host_faults(struct device *device, struct buffer *text);

#endif
