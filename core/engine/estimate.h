/* estimate.h - what a verify pass, or a piece of a prompt, would ask of a GPU that is not there.
 *
 * The engine is opened on paper (device.h): it plans, renders and launches as always, and nothing
 * runs. Every kernel of the pass is then compiled for the GPU meant and followed through its PTX
 * (jit/trace.h), so launches, trip counts and the share of each CTA are those of the pass itself.
 * What comes out is counted: cycles of every pipe of the busiest SM, bytes, registers.
 *
 * estimate_time makes times of them, by a model with five constants, four of them fitted to
 * measurements on another GPU than the one usually meant (estimate.c). It is an estimate.
 */
#ifndef ELPIS_ESTIMATE_H
#define ELPIS_ESTIMATE_H

#include "engine/engine.h"
#include "engine/traffic.h"
#include "jit/cycles.h"

struct estimate;

/* One kernel of a pass, of all launches that are alike. */
struct estimate_kernel {
    const char *name, *plan; /* plan: parameters and tuning */
    u32 launches;
    struct device_geometry geometry;
    struct device_resources resources;
    u32 ctas_per_sm;
    u64 bytes; /* that one launch cannot do without, of those counted to kernels */
    /* One launch, the whole grid: */
    u64 instructions, tensor_instructions, warps;
    double cycles[PIPE_COUNT]; /* of all warps, of one partition's pipes */
    /* and of the SM that has most to do, for which its four partitions share the work: */
    double busiest[PIPE_COUNT];
    /* Cycles until the last CTA is done, were only a warp's own results waited for. */
    double chain;
};

/* options.device.paper and .as are set here: as "sm_86:82:100K". */
int estimate_open(struct estimate **estimate, const char *model_folder, const char *as,
                  const struct engine_options *options, struct error *error);
void estimate_close(struct estimate *estimate); /* NULL is fine */

/* A verify of a chain of `rows` rows whose last one sees `context` tokens, and the sampler. The
 * kernels are in the order of their first launches; valid until the next call. */
int estimate_verify(struct estimate *estimate, u32 context, u32 rows,
                    const struct estimate_kernel **kernels, size_t *count, struct error *error);
/* A piece of a prompt: `rows` tokens, at most estimate_piece_rows, behind `position` others, a
 * multiple of 256; results as of estimate_verify. GPUs that add f16 products into f32 at full rate
 * would leave the products to cuBLASLt: here all are our own kernel's. */
int estimate_piece(struct estimate *estimate, u32 position, u32 rows,
                   const struct estimate_kernel **kernels, size_t *count, struct error *error);
u32 estimate_piece_rows(const struct estimate *estimate);
const struct engine *estimate_engine(const struct estimate *estimate);
/* All bytes that the pass last estimated cannot do without; those of its kernels are among them. */
struct traffic estimate_traffic(const struct estimate *estimate);

/* CTAs of so many cycles each [ctas], dealt out in order, each to that of `places` that is free
 * first: place [ctas] says to which; the result is when the last one is done. */
double estimate_deal(const double *cycles, u32 ctas, u32 places, u32 *place);

/* ---- times */

struct estimate_gpu {
    double hertz, bytes_a_second; /* SM clock; what a copy moves, reads and writes */
};
/* What a kernel waits for: a pipe, or one of these. */
enum { LIMIT_DRAM = PIPE_COUNT, LIMIT_CHAIN, LIMIT_COUNT };
extern const char *const estimate_limits[LIMIT_COUNT];

struct estimate_time {
    double seconds[LIMIT_COUNT]; /* of one launch, were each used without a gap */
    u32 limit;                   /* the one that the model takes longest for */
    double floor;                /* the largest of them */
    double estimate;             /* of one launch, by the model */
};
struct estimate_time estimate_time(const struct estimate_kernel *kernel,
                                   const struct estimate_gpu *gpu);
/* Bytes that belong to no kernel. */
double estimate_time_of_bytes(u64 bytes, const struct estimate_gpu *gpu);
/* The model in words. */
void estimate_describe(struct buffer *text);

#endif
