/* test_trace.c - core/jit/trace.c: PTX is followed as a GPU would run it, as far as ways go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "jit/trace.h"

#define HEAD                     \
    ".visible .entry f(\n"       \
    "\t.param .u64 f_param_0,\n" \
    "\t.param .u64 f_param_1\n"  \
    ")\n"                        \
    ".maxntid 64, 1, 1\n"        \
    "{\n"                        \
    "\t.reg .pred \t%p<9>;\n"    \
    "\t.shared .align 16 .b8 box[64];\n"

/* From %ctaid to the count in memory in steps of %nctaid; a warp but the first does nothing. */
static const char strided[] = HEAD
    "\tld.param.u64 \t%rd1, [f_param_0];\n"
    "\tcvta.to.global.u64 \t%rd2, %rd1;\n"
    "\tmov.u32 \t%r1, %tid.x;\n"
    "\tsetp.ne.s32 \t%p1, %r1, 0;\n"
    "\t@%p1 bra \t$L__BB0_3;\n"
    "\tld.global.u32 \t%r2, [%rd2+4];\n"
    "\tmov.u32 \t%r3, %ctaid.x;\n"
    "\tmov.u32 \t%r4, %nctaid.x;\n"
    "$L__BB0_1:\n"
    "\tsetp.ge.u32 \t%p2, %r3, %r2;\n"
    "\t@%p2 bra \t$L__BB0_3;\n"
    "\t// begin inline asm\n"
    "\tmma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%r7, %r8, %r9, %r10}, {%r11, %r12, %r13, "
    "%r14}, {%r15, %r16}, {%r7, %r8, %r9, %r10};\n"
    "\t// end inline asm\n"
    "\tadd.s32 \t%r3, %r3, %r4;\n"
    "\tbra.uni \t$L__BB0_1;\n"
    "$L__BB0_3:\n"
    "\tret;\n"
    "}\n";

static bool read_array(void *user, u64 from, void *to, size_t bytes)
{
    const u64 base = (u64)(uintptr_t)user;
    if (from < base || from + bytes > base + 2 * sizeof(u32))
        return false;
    memcpy(to, (const char *)user + (from - base), bytes);
    return true;
}

static struct trace *open_text(const char *text)
{
    struct trace *trace = NULL;
    struct error error;
    if (trace_open(&trace, slice_of(text), 86, &error) != 0)
        fail_msg("%s", error.text);
    return trace;
}

static struct trace_counts counts_of(const char *text, const u64 *arguments, u32 grid, u32 cta,
                                     void *memory)
{
    struct trace *trace = open_text(text);
    struct trace_counts counts = {0};
    struct error error;
    const struct trace_launch launch = {.grid = grid,
                                        .block = 64,
                                        .arguments = arguments,
                                        .argument_count = 2,
                                        .read = read_array,
                                        .user = memory};
    if (trace_cta(trace, &launch, cta, &counts, &error) != 0)
        fail_msg("%s", error.text);
    trace_close(trace);
    return counts;
}

static void loops_turn_as_often_as_the_launch_has_them(void **state)
{
    (void)state;
    u32 memory[2] = {0, 10};
    const u64 arguments[2] = {(u64)(uintptr_t)memory};
    /* CTA 1 of 4 gets 1, 5, 9; CTA 3 gets 3, 7 */
    struct trace_counts counts = counts_of(strided, arguments, 4, 1, memory);
    assert_int_equal(counts.warps, 2);
    assert_int_equal(counts.tensor_instructions, 3);
    assert_int_equal(counts.cycles[PIPE_TENSOR], 3 * 16);
    counts = counts_of(strided, arguments, 4, 3, memory);
    assert_int_equal(counts.tensor_instructions, 2);
    /* one warp: setp, bra, ld, then setp, bra, mma, add, bra twice, setp, bra, ret */
    assert_int_equal(counts.longest, 3 + 2 * 5 + 3);
    /* the other: setp, bra, ret */
    assert_int_equal(counts.instructions, counts.longest + 3);
}

static void memory_that_is_not_there_is_zero(void **state)
{
    (void)state;
    u32 memory[2] = {0, 10};
    const u64 arguments[2] = {64};
    assert_int_equal(counts_of(strided, arguments, 4, 1, memory).tensor_instructions, 0);
}

/* Each result decides one branch; a wrong one jumps over its popc. */
#define RIGHT(compute, expected)                         \
    compute "\tsetp.ne.b64 \t%p3, %rd9, " expected ";\n" \
            "\t@%p3 bra \t$L__BB0_9;\n"                  \
            "\tpopc.b32 \t%r20, %r21;\n"

static const char arithmetic[] = HEAD RIGHT("\tmov.u32 %r1, -7;\n\tmul.wide.s32 %rd9, %r1, 3;\n",
                                            "-21") RIGHT("\tmul.wide.u32 %rd9, %r1, 2;\n",
                                                         "8589934578")
    RIGHT("\tshr.s32 %r2, %r1, 1;\n\tcvt.s64.s32 %rd9, %r2;\n",
          "-4") RIGHT("\tshr.u32 %r2, %r1, 28;\n\tcvt.u64.u32 %rd9, %r2;\n", "15")
        RIGHT("\tmov.u32 %r3, 287454020;\n\tprmt.b32 %r2, %r3, %r1, 1;\n\tcvt.u64.u32 %rd9, %r2;\n",
              "1145324595") /* bytes 1, 0, 0, 0 of 0x11223344 */
    RIGHT("\tshf.l.wrap.b32 %r2, %r3, %r1, 8;\n\tcvt.u64.u32 %rd9, %r2;\n", "4294965521") RIGHT(
        "\tshf.r.wrap.b32 %r2, %r3, %r1, 8;\n\tcvt.u64.u32 %rd9, %r2;\n",
        "4178649651") RIGHT("\tbfi.b32 %r2, %r3, 0, 4, 8;\n\tcvt.u64.u32 %rd9, %r2;\n", "1088")
        RIGHT("\tlop3.b32 %r2, %r3, 255, 15, 106;\n\tcvt.u64.u32 %rd9, %r2;\n", "75") RIGHT(
            "\tdiv.u32 %r2, %r3, 1000;\n\tcvt.u64.u32 %rd9, %r2;\n",
            "287454") RIGHT("\trem.s32 %r2, %r1, 4;\n\tcvt.s64.s32 %rd9, %r2;\n",
                            "-3") RIGHT("\tmin.s32 %r2, %r1, 5;\n\tcvt.s64.s32 %rd9, %r2;\n", "-7")
            RIGHT("\tmin.u32 %r2, %r1, 5;\n\tcvt.u64.u32 %rd9, %r2;\n", "5") RIGHT(
                "\tclz.b32 %r2, %r3;\n\tcvt.u64.u32 %rd9, %r2;\n",
                "3") RIGHT("\tcvt.rn.f32.s32 %f1, %r1;\n\tmul.rn.f32 %f2, %f1, 0fBF000000;\n"
                           "\tcvt.rzi.s32.f32 %r2, %f2;\n\tcvt.s64.s32 %rd9, %r2;\n",
                           "3")
                RIGHT(
                    "\tmov.b64 {%r4, %r5}, 4294967298;\n\tadd.s32 %r2, %r4, %r5;\n"
                    "\tcvt.u64.u32 %rd9, %r2;\n",
                    "3") RIGHT("\tsetp.lt.and.s32 %p4, %r1, 0, %p3;\n\tselp.u64 %rd9, 8, 9, %p4;\n",
                               "9")
                    RIGHT(
                        "\tshfl.sync.bfly.b32 %r2|%p5, %r3, 1, 31, -1;\n\tcvt.u64.u32 %rd9, %r2;\n",
                        "287454020")
    /* shared memory by its own address and by a generic one */
    RIGHT("\tmov.u32 %r6, box;\n\tst.shared.v2.u32 [%r6+8], {%r3, %r1};\n"
          "\tld.shared.u64 %rd9, [box+8];\n",
          "-29777317052")
        RIGHT(
            "\tmov.u64 %rd1, box;\n\tcvta.shared.u64 %rd2, %rd1;\n\tld.s16 %r2, [%rd2+12];\n"
            "\tcvt.s64.s32 %rd9, %r2;\n",
            "-7") "\tbra.uni \t$L__BB0_10;\n"
                  "$L__BB0_9:\n"
                  "\tmma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%r7}, {%r8}, {%r9}, {%r7};\n"
                  "$L__BB0_10:\n"
                  "\tret;\n"
                  "}\n";

static void values_are_those_of_ptx(void **state)
{
    (void)state;
    enum { CASES = 20 };
    const u64 arguments[2] = {0};
    const struct trace_counts counts = counts_of(arithmetic, arguments, 1, 0, NULL);
    /* a popc a case and warp; two conversions and clz are of the same pipe */
    assert_int_equal(counts.cycles[PIPE_XU], 2 * 8 * (CASES + 3));
    assert_int_equal(counts.tensor_instructions, 0);
}

static void what_does_not_end_is_refused(void **state)
{
    (void)state;
    struct trace *trace = open_text(HEAD "$L__BB0_1:\n\tbra.uni \t$L__BB0_1;\n}\n");
    const struct trace_launch launch = {.grid = 1, .block = 32};
    struct trace_counts counts = {0};
    struct error error;
    assert_int_equal(trace_cta(trace, &launch, 0, &counts, &error), -1);
    assert_non_null(strstr(error.text, "no end"));
    trace_close(trace);
}

/* A CTA that waits for others sees the flag it waits for. */
static void waits_end(void **state)
{
    (void)state;
    static const char text[] = HEAD "\tatom.acq_rel.gpu.add.u32 \t%r1, [%rd1], 1;\n"
                                    "$L__BB0_1:\n"
                                    "\tld.acquire.gpu.u32 \t%r2, [%rd1];\n"
                                    "\txor.b32 \t%r3, %r2, %r1;\n"
                                    "\tsetp.gt.s32 \t%p1, %r3, -1;\n"
                                    "\t@%p1 bra \t$L__BB0_1;\n"
                                    "\tret;\n"
                                    "}\n";
    const u64 arguments[2] = {0};
    assert_int_equal(counts_of(text, arguments, 2, 0, NULL).longest, 6);
}

/* Static arrays and dynamic memory do not lie in one place. */
static void shared_arrays_lie_apart(void **state)
{
    (void)state;
    static const char text[] = ".extern .shared .align 128 .b8 rest[];\n" HEAD
                               "\t.shared .align 4 .b8 other[8];\n"
                               "\tst.shared.u32 \t[box], 1;\n"
                               "\tst.shared.u32 \t[other], 2;\n"
                               "\tst.shared.u32 \t[rest], 4;\n"
                               "\tld.shared.u32 \t%r1, [box];\n"
                               "\tld.shared.u32 \t%r2, [other];\n"
                               "\tadd.s32 \t%r1, %r1, %r2;\n"
                               "\tsetp.ne.s32 \t%p1, %r1, 3;\n"
                               "\t@%p1 bra \t$L__BB0_1;\n"
                               "\tpopc.b32 \t%r3, %r1;\n"
                               "$L__BB0_1:\n"
                               "\tret;\n"
                               "}\n";
    const u64 arguments[2] = {0};
    assert_int_equal(counts_of(text, arguments, 1, 0, NULL).cycles[PIPE_XU], 2 * 8);
}

static void a_branch_to_nowhere_is_refused(void **state)
{
    (void)state;
    struct trace *trace = NULL;
    struct error error;
    assert_int_equal(trace_open(&trace, SLICE("\tbra \t$nowhere;\n"), 86, &error), -1);
    assert_non_null(strstr(error.text, "$nowhere"));
    trace_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_turn_as_often_as_the_launch_has_them),
        cmocka_unit_test(memory_that_is_not_there_is_zero),
        cmocka_unit_test(values_are_those_of_ptx),
        cmocka_unit_test(what_does_not_end_is_refused),
        cmocka_unit_test(waits_end),
        cmocka_unit_test(shared_arrays_lie_apart),
        cmocka_unit_test(a_branch_to_nowhere_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
