/* test_cycles.c - core/jit/cycles.c: loops of a PTX text and what they cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "jit/cycles.h"

static const char ptx[] =
    ".visible .entry f(\n"
    "\t.param .u64 p\n"
    ")\n"
    "{\n"
    "\t.reg .b32 %r<9>;\n"
    "\tld.param.u64 \t%rd1, [p];\n"
    "\tmov.u32 \t%r1, %tid.x;\n"
    "$L__BB0_1:\n"
    "\tld.global.v4.u32 \t{%r1, %r2, %r3, %r4}, [%rd1];\n"
    "\tadd.s64 \t%rd1, %rd1, 16;\n"
    "$L__BB0_2:\n"
    "\t// begin inline asm\n"
    "\tmma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4};\n"
    "\t// end inline asm\n"
    "\tfma.rn.f32 \t%f1, %f2, %f3, %f4;\n"
    "\tprmt.b32 \t%r1, %r2, %r3, 21504;\n"
    "\t@%p1 bra \t$L__BB0_2;\n"
    "\tmul.lo.s32 \t%r1, %r2, %r3;\n"
    "\tcvt.rn.f32.s32 \t%f1, %r1;\n"
    "\t@%p2 bra \t$L__BB0_1;\n"
    "\tbra.uni \t$L__BB0_3;\n"
    "$L__BB0_3:\n"
    "\tret;\n"
    "}\n";

static void loops_count_without_their_inner_loops(void **state)
{
    (void)state;
    size_t count = 0;
    struct loop_cycles *loops = cycles_count(slice_of(ptx), 86, &count);
    assert_int_equal(count, 3);
    assert_string_equal(loops[0].label, "$L__BB0_1");
    assert_int_equal(loops[0].depth, 0);
    assert_int_equal(loops[0].cycles[PIPE_MEMORY], 16); /* 4 words a lane */
    assert_int_equal(loops[0].cycles[PIPE_ALU], 4);     /* 64 bits: two instructions */
    assert_int_equal(loops[0].cycles[PIPE_FMA], 2);
    assert_int_equal(loops[0].cycles[PIPE_XU], 8);
    assert_int_equal(loops[0].cycles[PIPE_TENSOR], 0);
    assert_int_equal(loops[0].instructions, 6);
    assert_string_equal(loops[1].label, "$L__BB0_2");
    assert_int_equal(loops[1].depth, 1);
    assert_int_equal(loops[1].tensor_instructions, 1);
    assert_int_equal(loops[1].cycles[PIPE_TENSOR], 16);
    assert_int_equal(loops[1].cycles[PIPE_FMA], 1);
    assert_int_equal(loops[1].cycles[PIPE_ALU], 2);
    assert_int_equal(loops[1].cycles[PIPE_ISSUE], 4);
    assert_string_equal(loops[2].label, "outside");
    assert_int_equal(loops[2].instructions, 2); /* bra, ret: ld.param and mov cost nothing */
    memory_free(loops);
}

static void rates_are_the_architectures(void **state)
{
    (void)state;
    const struct {
        u32 arch, tensor, fma;
    } expected[] = {{80, 8, 2}, {86, 16, 1}, {89, 16, 1}, {90, 8, 1}, {120, 8, 1}};
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        size_t count = 0;
        struct loop_cycles *loops = cycles_count(slice_of(ptx), expected[i].arch, &count);
        assert_int_equal(loops[1].cycles[PIPE_TENSOR], expected[i].tensor);
        assert_int_equal(loops[1].cycles[PIPE_FMA], expected[i].fma);
        memory_free(loops);
    }
}

/* wgmma: its products take the tensor pipe, what orders them an instruction each. */
static void products_of_four_warps_take_the_tensor_pipe(void **state)
{
    (void)state;
    static const char text[] =
        "$L__BB0_1:\n"
        "\twgmma.fence.sync.aligned;\n"
        "\twgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {%r1}, {%r2}, %rd1, p;\n"
        "\twgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {%r1}, {%r2}, %rd1, p;\n"
        "\twgmma.commit_group.sync.aligned;\n"
        "\twgmma.wait_group.sync.aligned 1;\n"
        "\t@%p1 bra \t$L__BB0_1;\n";
    size_t count = 0;
    struct loop_cycles *loops = cycles_count(slice_of(text), 90, &count);
    assert_true(count >= 1);
    assert_int_equal(loops[0].cycles[PIPE_TENSOR], 26);
    assert_int_equal(loops[0].tensor_instructions, 2);
    assert_int_equal(loops[0].instructions, 6);
    memory_free(loops);
}

/* m16n8k16: consumer chips add into f32 at half the rate of f16. */
static void f16_sums_are_twice_as_fast_on_some(void **state)
{
    static const char *const sums[] = {
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
    };
    const struct {
        u32 arch, cycles[COUNT_OF(sums)];
    } expected[] = {{80, {8, 8}}, {86, {32, 16}}, {89, {32, 16}}, {90, {8, 8}}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(expected); i++)
        for (size_t j = 0; j < COUNT_OF(sums); j++) {
            struct loop_cycles cost = {.depth = 0};
            cycles_of_instruction(&cost, slice_of(sums[j]), expected[i].arch);
            assert_int_equal(cost.cycles[PIPE_TENSOR], expected[i].cycles[j]);
            assert_int_equal(cost.tensor_instructions, 1);
        }
}

/* A half becomes a float by an addition; an integer by a conversion. */
static void halves_are_no_conversions(void **state)
{
    struct loop_cycles half = {.depth = 0}, integer = {.depth = 0};
    (void)state;
    cycles_of_instruction(&half, SLICE("cvt.f32.f16"), 86);
    cycles_of_instruction(&integer, SLICE("cvt.rn.f32.s32"), 86);
    assert_int_equal(half.cycles[PIPE_XU], 0);
    assert_int_equal(half.cycles[PIPE_FMA], 2);
    assert_int_equal(integer.cycles[PIPE_XU], 8);
    assert_int_equal(integer.cycles[PIPE_FMA], 0);
}

static void texts_without_loops_are_fine(void **state)
{
    (void)state;
    size_t count = 0;
    struct loop_cycles *loops = cycles_count(SLICE("\tret;"), 86, &count);
    assert_int_equal(count, 1);
    assert_int_equal(loops[0].instructions, 1);
    memory_free(loops);
    loops = cycles_count((struct slice){0}, 86, &count);
    assert_int_equal(count, 1);
    assert_int_equal(loops[0].instructions, 0);
    memory_free(loops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_count_without_their_inner_loops),
        cmocka_unit_test(rates_are_the_architectures),
        cmocka_unit_test(products_of_four_warps_take_the_tensor_pipe),
        cmocka_unit_test(f16_sums_are_twice_as_fast_on_some),
        cmocka_unit_test(halves_are_no_conversions),
        cmocka_unit_test(texts_without_loops_are_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
