/* test_rope.c - rotary frequencies against the C library in 64-bit-mantissa long double, and
 * against values computed with 60 decimal digits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "base/base.h"

static void test_near_long_double(void **state)
{
    (void)state;
    static const double thetas[] = {1, 10000, 500000, 1e7, 1.5, 1e18};
    for (u32 i = 0; i < COUNT_OF(thetas); i++)
        for (u32 t = 0; t < 32; t++) {
            long double power = -2.0L * t / 64 * log2l((long double)thetas[i]);
            long double want = ldexpl(exp2l(power) / (2 * acosl(-1.0L)), 64);
            long double found = (long double)rope_frequency(thetas[i], t, 64);
            /* long double itself is good to 2^-60 here, 8 units of the largest value */
            if (fabsl(found - want) > 0.51L + want * 0x1p-59L)
                fail_msg("theta %g, t %u: expected %.3Lf, found %.0Lf", thetas[i], t, want, found);
        }
}

static void test_exact_values(void **state)
{
    (void)state;
    /* round(2^64 * theta^(-2t/64) / (2 pi)) by decimal arithmetic with 60 digits */
    assert_true(rope_frequency(10000000.0, 0, 64) == 2935890503282001226u);
    assert_true(rope_frequency(10000000.0, 1, 64) == 1774148033267728375u);
    assert_true(rope_frequency(10000000.0, 17, 64) == 561034869143420u);
    assert_true(rope_frequency(10000000.0, 31, 64) == 485836180839u);
    assert_true(rope_frequency(10000.0, 63, 128) == 339031346221092u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_near_long_double),
        cmocka_unit_test(test_exact_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
