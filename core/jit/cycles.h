/* cycles.h - what a kernel's loops ask of each pipe of an SM, by counting its PTX.
 *
 * Counts are of PTX, before the assembler: address arithmetic that it folds away is still in
 * them, so the integer column is an upper bound; tensor, fp32 and memory columns are exact.
 */
#ifndef ELPIS_CYCLES_H
#define ELPIS_CYCLES_H

#include "base/base.h"

enum pipe { PIPE_TENSOR, PIPE_ALU, PIPE_FMA, PIPE_XU, PIPE_MEMORY, PIPE_ISSUE, PIPE_COUNT };
extern const char *const pipe_names[PIPE_COUNT];

struct loop_cycles {
    char label[32]; /* "$L__BB0_12"; "outside" (all loops) for the last entry */
    u32 depth;      /* loops around it */
    u32 instructions;
    u32 tensor_instructions;
    u32 cycles[PIPE_COUNT]; /* of each pipe, for one warp on each of the SM's four partitions */
};

/* The loops of the PTX in textual order, each without the loops inside it, then what is outside.
 * arch: 80, 86, 89, 90 or later (later ones are counted as 90). Result from memory_alloc. */
struct loop_cycles *cycles_count(struct slice ptx, u32 arch, size_t *count);
/* Adds what one instruction of that opcode, with its suffixes, costs. */
void cycles_of_instruction(struct loop_cycles *sum, struct slice opcode, u32 arch);

#endif
