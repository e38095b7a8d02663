/* cycles.c - counting PTX by pipe.
 *
 * An SM has four partitions; a partition issues one warp instruction a cycle, and each pipe
 * takes an instruction every few cycles. The table below says how many. A loop's body cannot run
 * faster than its busiest pipe, so the largest column is the loop's limit as far as arithmetic
 * goes (memory latency and DRAM are not in it).
 *
 * A loop is what lies between a label and the last branch back to it. Every instruction counts for
 * the innermost loop around it alone, so an outer loop's line is what one pass adds to its inner
 * loops. How often each runs is not known here.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/cycles.h"

const char *const pipe_names[PIPE_COUNT] = {"tensor", "alu", "fma", "xu", "memory", "issue"};

/* Kinds of instruction; several may share a pipe at different rates. */
enum kind {
    KIND_NOTHING, /* removed by the assembler */
    KIND_CONTROL, /* issue only */
    KIND_IMMA,    /* m16n8k32, 8-bit */
    KIND_WGMMA,   /* m64n16k32, 8-bit, A in registers: a warp's 16 rows of it */
    KIND_HMMA,    /* m16n8k16, f16 with f32 sums */
    KIND_HMMA16,  /* the same with f16 sums */
    KIND_F32,
    KIND_IMAD,
    KIND_ALU,
    KIND_XU,
    KIND_SHUFFLE,
    KIND_WORDS, /* memory: weight = 32-bit words a lane */
    KIND_COUNT
};

/* Cycles of a pipe for one warp instruction, per partition. Sources: CUDA C++ Programming Guide,
 * "Throughput of native arithmetic instructions" (results a cycle and SM: 128 -> 1 cycle,
 * 64 -> 2, 32 -> 4, 16 -> 8); tensor rates from the peak TOPS and TFLOPS of the architecture
 * papers (GA102: 256 int8, 128 fp16 multiply-adds with fp16 and 64 with fp32 sums a cycle and
 * partition; AD102 the same; GA100: 512 and, with either sums, 256); Hopper's mma.sync runs at
 * about half of its peak. Shared memory and L1 move 128 bytes a cycle and SM: a 32-bit access of a
 * warp takes 1, counted as 4 for the four partitions together. */
struct rates {
    u32 arch;
    u8 cycles[KIND_COUNT];
};
static const struct rates rate_table[] = {
    {80,
     {[KIND_IMMA] = 8,
      [KIND_HMMA] = 8,
      [KIND_HMMA16] = 8,
      [KIND_F32] = 2,
      [KIND_IMAD] = 2,
      [KIND_ALU] = 2,
      [KIND_XU] = 8,
      [KIND_SHUFFLE] = 4,
      [KIND_WORDS] = 4}},
    {86,
     {[KIND_IMMA] = 16,
      [KIND_HMMA] = 32,
      [KIND_HMMA16] = 16,
      [KIND_F32] = 1,
      [KIND_IMAD] = 2,
      [KIND_ALU] = 2,
      [KIND_XU] = 8,
      [KIND_SHUFFLE] = 4,
      [KIND_WORDS] = 4}},
    {89,
     {[KIND_IMMA] = 16,
      [KIND_HMMA] = 32,
      [KIND_HMMA16] = 16,
      [KIND_F32] = 1,
      [KIND_IMAD] = 2,
      [KIND_ALU] = 2,
      [KIND_XU] = 8,
      [KIND_SHUFFLE] = 4,
      [KIND_WORDS] = 4}},
    {90,
     {[KIND_IMMA] = 8,
      [KIND_WGMMA] = 13, /* measured, for any n up to 16 */
      [KIND_HMMA] = 8,
      [KIND_HMMA16] = 8,
      [KIND_F32] = 1,
      [KIND_IMAD] = 2,
      [KIND_ALU] = 2,
      [KIND_XU] = 8,
      [KIND_SHUFFLE] = 4,
      [KIND_WORDS] = 4}},
};

static const enum pipe pipe_of[KIND_COUNT] = {
    [KIND_NOTHING] = PIPE_ISSUE, [KIND_CONTROL] = PIPE_ISSUE,  [KIND_IMMA] = PIPE_TENSOR,
    [KIND_WGMMA] = PIPE_TENSOR,  [KIND_HMMA] = PIPE_TENSOR,    [KIND_HMMA16] = PIPE_TENSOR,
    [KIND_F32] = PIPE_FMA,       [KIND_IMAD] = PIPE_FMA,       [KIND_ALU] = PIPE_ALU,
    [KIND_XU] = PIPE_XU,         [KIND_SHUFFLE] = PIPE_MEMORY, [KIND_WORDS] = PIPE_MEMORY,
};

/* First match counts. instructions: what the assembler makes of one (division and square root
 * are short programs around one XU operation). */
struct opcode {
    const char *prefix, *contains; /* contains: NULL = anything */
    enum kind kind;
    u32 instructions;
};
static const struct opcode opcodes[] = {
    {"mma.sync", "m16n8k32", KIND_IMMA, 1},
    {"mma.sync", "f16.f16.f16.f16", KIND_HMMA16, 1},
    {"mma.sync", NULL, KIND_HMMA, 1},
    {"wgmma.mma_async", "m64n16k32", KIND_WGMMA, 1},
    {"wgmma", NULL, KIND_CONTROL, 1},
    {"ld.param", NULL, KIND_NOTHING, 0},
    {"mov", NULL, KIND_NOTHING, 0},
    {"cvta", NULL, KIND_NOTHING, 0},
    {"cvt.u64.u32", NULL, KIND_NOTHING, 0},
    {"cvt.u32.u64", NULL, KIND_NOTHING, 0},
    {"ldmatrix", ".x4", KIND_WORDS, 4},
    {"ldmatrix", ".x2", KIND_WORDS, 2},
    {"cp.async.cg", NULL, KIND_WORDS, 4},
    {"cp.async", NULL, KIND_CONTROL, 1},
    {"ld.", ".v4", KIND_WORDS, 4},
    {"st.", ".v4", KIND_WORDS, 4},
    {"ld.", ".v2", KIND_WORDS, 2},
    {"st.", ".v2", KIND_WORDS, 2},
    {"ld.", "64", KIND_WORDS, 2},
    {"st.", "64", KIND_WORDS, 2},
    {"ld.", NULL, KIND_WORDS, 1},
    {"st.", NULL, KIND_WORDS, 1},
    {"atom", "64", KIND_WORDS, 2},
    {"red.", "64", KIND_WORDS, 2},
    {"atom", NULL, KIND_WORDS, 1},
    {"red.", NULL, KIND_WORDS, 1},
    {"redux", NULL, KIND_XU, 1},
    {"shfl", NULL, KIND_SHUFFLE, 1},
    {"bra", NULL, KIND_CONTROL, 1},
    {"bar", NULL, KIND_CONTROL, 1},
    {"fence", NULL, KIND_CONTROL, 1},
    {"membar", NULL, KIND_CONTROL, 1},
    {"ret", NULL, KIND_CONTROL, 1},
    {"div.rn.f32", NULL, KIND_F32, 8},
    {"sqrt.rn.f32", NULL, KIND_F32, 8},
    {"add", ".f32", KIND_F32, 1},
    {"sub", ".f32", KIND_F32, 1},
    {"mul", ".f32", KIND_F32, 1},
    {"fma", NULL, KIND_F32, 1},
    {"add", ".f16", KIND_F32, 1},
    {"mul.hi", "64", KIND_IMAD, 4},
    {"mul.wide", NULL, KIND_IMAD, 1},
    {"mad.wide", NULL, KIND_IMAD, 1},
    {"mul", "64", KIND_IMAD, 3},
    {"mad", "64", KIND_IMAD, 3},
    {"mul", NULL, KIND_IMAD, 1},
    {"mad", NULL, KIND_IMAD, 1},
    {"dp4a", NULL, KIND_IMAD, 1},
    {"div", NULL, KIND_ALU, 20},
    {"rem", NULL, KIND_ALU, 20},
    {"cvt.f32.f16", NULL, KIND_IMAD, 1}, /* becomes HADD2.F32, of that pipe and rate */
    {"cvt", ".f", KIND_XU, 1},
    {"popc", NULL, KIND_XU, 1},
    {"clz", NULL, KIND_XU, 1},
    {"brev", NULL, KIND_XU, 1},
    {"bfind", NULL, KIND_XU, 1},
    {"", "64", KIND_ALU, 2},
    {"", NULL, KIND_ALU, 1},
};

struct line {
    struct slice opcode; /* empty: no instruction */
    struct slice label;  /* defined here; empty = none */
    struct slice target; /* of a branch; empty = none */
};

/* ---- reading */

static struct slice word_at(const char *text, const char *end)
{
    const char *stop = text;
    while (stop < end && !strchr(" \t;:,()", *stop))
        stop++;
    return (struct slice){text, (size_t)(stop - text)};
}

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    return at;
}

static struct line read_line(const char *at, const char *end)
{
    struct line line = {{0}, {0}, {0}};
    at = skip_blanks(at, end);
    if (at < end && *at == '$') {
        struct slice word = word_at(at, end);
        if (word.data + word.size < end && word.data[word.size] == ':')
            line.label = word;
        return line;
    }
    if (at < end && *at == '@') { /* a predicate */
        while (at < end && *at != ' ' && *at != '\t')
            at++;
        at = skip_blanks(at, end);
    }
    if (at >= end || *at < 'a' || *at > 'z' || end[-1] != ';')
        return line;
    line.opcode = word_at(at, end);
    if (slice_starts(line.opcode, SLICE("bra"))) {
        at = skip_blanks(line.opcode.data + line.opcode.size, end);
        line.target = word_at(at, end);
    }
    return line;
}

static struct line *read_lines(struct slice ptx, size_t *count)
{
    struct line *lines = NULL;
    size_t capacity = 0;
    *count = 0;
    const char *end = ptx.data + ptx.size;
    for (const char *at = ptx.data; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            stop = end;
        if (*count == capacity) {
            capacity = capacity ? capacity * 2 : 1024;
            lines = memory_resize(lines, capacity * sizeof *lines);
        }
        lines[(*count)++] = read_line(at, stop);
        at = stop + 1;
    }
    return lines;
}

/* ---- counting */

static bool slice_contains(struct slice text, const char *part)
{
    return memmem(text.data, text.size, part, strlen(part)) != NULL;
}

static const struct opcode *find_opcode(struct slice text)
{
    const struct opcode *opcode = opcodes;
    while (!slice_starts(text, slice_of(opcode->prefix)) ||
           (opcode->contains && !slice_contains(text, opcode->contains)))
        opcode++; /* the last entry matches everything */
    return opcode;
}

static const struct rates *find_rates(u32 arch)
{
    size_t at = COUNT_OF(rate_table) - 1;
    while (at > 0 && rate_table[at].arch > arch)
        at--;
    return &rate_table[at];
}

static void count_line(struct loop_cycles *loop, const struct rates *rates, struct slice text)
{
    const struct opcode *opcode = find_opcode(text);
    const u32 issued = opcode->kind == KIND_WORDS ? 1 : opcode->instructions;
    loop->instructions += issued;
    loop->tensor_instructions += pipe_of[opcode->kind] == PIPE_TENSOR;
    loop->cycles[PIPE_ISSUE] += issued;
    if (pipe_of[opcode->kind] != PIPE_ISSUE)
        loop->cycles[pipe_of[opcode->kind]] += rates->cycles[opcode->kind] * opcode->instructions;
}

void cycles_of_instruction(struct loop_cycles *sum, struct slice opcode, u32 arch)
{
    count_line(sum, find_rates(arch), opcode);
}

/* ---- loops */

struct range {
    size_t first, last; /* lines */
};

/* The last line that branches back to the label on line `at`; 0 = none. */
static size_t loop_end(const struct line *lines, size_t count, size_t at)
{
    size_t end = 0;
    for (size_t i = at + 1; i < count; i++)
        if (lines[i].target.size && slice_equal(lines[i].target, lines[at].label))
            end = i;
    return end;
}

/* All loops, in the order of their heads. */
static struct range *find_loops(const struct line *lines, size_t line_count, size_t *count)
{
    struct range *ranges = NULL;
    *count = 0;
    for (size_t i = 0; i < line_count; i++) {
        size_t end = lines[i].label.size ? loop_end(lines, line_count, i) : 0;
        if (!end)
            continue;
        ranges = memory_resize(ranges, (*count + 1) * sizeof *ranges);
        ranges[(*count)++] = (struct range){i, end};
    }
    return ranges;
}

/* The innermost loop around a line: of those that contain it the one that starts last; `none`
 * if there is none. */
static size_t innermost(const struct range *ranges, size_t count, size_t line, size_t none)
{
    for (size_t i = count; i-- > 0;)
        if (ranges[i].first <= line && line <= ranges[i].last)
            return i;
    return none;
}

static u32 depth_of(const struct range *ranges, size_t at)
{
    u32 depth = 0;
    for (size_t i = 0; i < at; i++)
        depth += ranges[i].last >= ranges[at].first;
    return depth;
}

static void name_loop(struct loop_cycles *loop, struct slice label, u32 depth)
{
    size_t size = label.size < sizeof loop->label ? label.size : sizeof loop->label - 1;
    memcpy(loop->label, label.data, size);
    loop->depth = depth;
}

struct loop_cycles *cycles_count(struct slice ptx, u32 arch, size_t *count)
{
    const struct rates *rates = find_rates(arch);
    size_t line_count, loop_count;
    struct line *lines = read_lines(ptx, &line_count);
    struct range *ranges = find_loops(lines, line_count, &loop_count);
    struct loop_cycles *loops = memory_alloc((loop_count + 1) * sizeof *loops);
    for (size_t i = 0; i < loop_count; i++)
        name_loop(&loops[i], lines[ranges[i].first].label, depth_of(ranges, i));
    name_loop(&loops[loop_count], SLICE("outside"), 0);
    for (size_t i = 0; i < line_count; i++)
        if (lines[i].opcode.size)
            count_line(&loops[innermost(ranges, loop_count, i, loop_count)], rates,
                       lines[i].opcode);
    memory_free(ranges);
    memory_free(lines);
    *count = loop_count + 1;
    return loops;
}
