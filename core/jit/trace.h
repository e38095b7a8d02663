/* trace.h - how often each instruction of a kernel runs: its PTX followed warp by warp.
 *
 * cycles.h says what one pass through a loop costs; here the kernel is walked through with its
 * arguments, so that loops turn as often as the work map and the launch have them turn. A warp is
 * followed as its lane 0: nearly all branches are the same for a warp, and where they are not
 * lane 0 is the one that leads. Values are computed only to find the way: stores to memory are
 * not done, products of tensor cores and what other lanes hold are zero. So this counts kernels
 * whose way depends on their arguments and on what was in memory before, as ours do, not on their
 * own results.
 */
#ifndef ELPIS_TRACE_H
#define ELPIS_TRACE_H

#include "base/base.h"
#include "jit/cycles.h"

struct trace;

/* The program's only kernel. arch: as for cycles_count. */
int trace_open(struct trace **trace, struct slice ptx, u32 arch, struct error *error);
void trace_close(struct trace *trace); /* NULL is fine */

struct trace_launch {
    u32 grid, block;
    const u64 *arguments;
    u32 argument_count;
    /* Reads global memory; false: not there, the kernel then sees zeros. */
    bool (*read)(void *user, u64 from, void *to, size_t bytes);
    void *user;
};

/* Sums over warps: instructions, and cycles of one partition's pipes. */
struct trace_counts {
    u64 warps, instructions, tensor_instructions, cycles[PIPE_COUNT];
    u64 longest; /* instructions of the warp that has most */
};
/* Adds what the warps of one CTA do. Fails where a warp does not come to an end. */
int trace_cta(struct trace *trace, const struct trace_launch *launch, u32 cta,
              struct trace_counts *counts, struct error *error);

#endif
