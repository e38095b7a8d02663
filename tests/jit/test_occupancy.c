/* test_occupancy.c - core/jit/occupancy.c: CTAs an SM, each limit in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "jit/occupancy.h"

static u32 fit(u32 arch, u32 block, u32 registers, u32 shared)
{
    const struct device_geometry geometry = {.grid = 1, .block = block, .shared = shared};
    const struct device_resources resources = {.registers = registers};
    return occupancy_ctas(arch, 100 << 10, &geometry, &resources);
}

static void each_limit_holds(void **state)
{
    (void)state;
    assert_int_equal(fit(86, 256, 128, 0), 2);       /* 65536 registers */
    assert_int_equal(fit(86, 256, 129, 0), 1);       /* a warp takes 17 times 256 of them */
    assert_int_equal(fit(86, 256, 16, 49 << 10), 2); /* 1 KiB a CTA is the system's */
    assert_int_equal(fit(86, 256, 16, 50 << 10), 1);
    assert_int_equal(fit(86, 256, 16, 0), 6); /* 1536 threads */
    assert_int_equal(fit(80, 256, 16, 0), 8); /* 2048 */
    assert_int_equal(fit(86, 32, 16, 0), 16); /* slots */
    assert_int_equal(fit(89, 32, 16, 0), 24);
    assert_int_equal(fit(86, 512, 255, 0), 0); /* a launch would fail */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_limit_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
