/* test_math.c - the functions of prelude/math.h: measured errors stay below what their head says,
 * and the same kernel gives the same bits whatever the order of the fibers.
 *
 * Truth is the C library in binary64, whose own error (below 1 ulp of binary64) does not count.
 */
#include <math.h>

#include "kernel.h"

enum { SAMPLES = 1 << 18, WIDTH = 11 };

static const char body[] = ENTRY
    "{\n"
    "    u32 *out = (u32 *)slots[0]; const u32 n = (u32)slots[1];\n"
    "    for (u32 i = thread_id(); i < n; i += 64) {\n"
    "        f32 x = f_from_bits(i * 16381u), s, c;\n"
    "        f_sincos_turn(rope_turn(i, 0x9e3779b97f4a7c15ULL), &s, &c);\n"
    "        f32 r[11] = {f_exp2(x), f_exp(x), f_log2(x), f_sigmoid(x), f_silu(x), f_softplus(x), "
    "s, c, f_rsqrt(x), f_silu_short(x), f_exp2_approx(x)};\n"
    "        for (u32 j = 0; j < 11; j++) out[i * 11 + j] = f_bits(r[j]);\n"
    "    }\n"
    "}\n";

static float float_of(u32 bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* |got - want| in units in the last place of want as a binary32. */
static double ulps(float got, double want)
{
    int exponent = ilogb(want);
    return fabs(got - want) / ldexp(1, (exponent < -126 ? -126 : exponent) - 23);
}

static void below(double limit, float got, double want, const char *what, double x)
{
    double error = ulps(got, want);
    if (!(error < limit))
        fail_msg("%s(%a): expected %a, found %a, %.2f ulp", what, x, want, got, error);
}

static void check_sample(u32 i, const u32 *bits)
{
    float x = float_of(i * 16381u), r[WIDTH];
    for (u32 j = 0; j < WIDTH; j++)
        r[j] = float_of(bits[j]);
    if (x >= -126 && x < 128)
        below(1.0, r[0], exp2(x), "f_exp2", x);
    if (x >= -126 && x <= 0)
        below(4, r[10], exp2(x), "f_exp2_approx", x);
    if (x > -87.3f && x < 88.7f)
        below(1.2, r[1], exp(x), "f_exp", x);
    if (x > 0 && x != 1 && isfinite(x)) {
        below(0.8, r[2], log2(x), "f_log2", x);
        below(1.6, r[8], 1 / sqrt((double)x), "f_rsqrt", x);
    }
    if (fabsf(x) < 80 && fabsf(x) > 1e-30f) {
        double e = exp(-(double)x);
        below(2.4, r[3], 1 / (1 + e), "f_sigmoid", x);
        below(2.4, r[4], x / (1 + e), "f_silu", x);
        below(4, r[9], x / (1 + e), "f_silu_short", x);
        below(3.4, r[5], x > 20 ? x : log1p(exp((double)x)), "f_softplus", x);
    }
    u64 turn = (u64)i * 0x9e3779b97f4a7c15u;
    double angle = ldexp((double)turn, -64) * 6.283185307179586;
    if (fabs(r[6] - sin(angle)) > 1.1e-7 || fabs(r[7] - cos(angle)) > 1.1e-7)
        fail_msg("f_sincos_turn(%llx): expected %a %a, found %a %a", (unsigned long long)turn,
                 sin(angle), cos(angle), r[6], r[7]);
}

static u32 *sampled(u32 order, struct device **device)
{
    *device = kernel_device((struct device_options){.host_threads = 1, .host_order = order});
    struct kernel kernel = kernel_build(*device, body, (struct device_geometry){1, 64, 0, false});
    u32 *out = kernel_memory(*device, (size_t)SAMPLES * WIDTH * 4, "out");
    kernel_run(&kernel, (u64[]){SLOT(out), SAMPLES}, 2);
    kernel_free(&kernel);
    return out;
}

static void test_errors(void **state)
{
    (void)state;
    struct device *device;
    u32 *out = sampled(0, &device);
    for (u32 i = 0; i < SAMPLES; i++)
        check_sample(i, out + i * WIDTH);
    device_close(device);
}

static const char limits_body[] = ENTRY
    "{\n"
    "    if (thread_id() != 0) return;\n"
    "    u32 *out = (u32 *)slots[0];\n"
    "    f32 in[8] = {f_from_bits(0xff800000), f_from_bits(0x7f800000), f_from_bits(0x7fc00000), "
    "f_from_bits(0),\n"
    "        f_from_bits(0xc2fc0001), f_from_bits(0xc2fc0000), f_from_bits(0x43000000), "
    "f_from_bits(0x3f800000)};\n"
    "    for (u32 i = 0; i < 8; i++) {\n"
    "        out[i] = f_bits(f_exp2(in[i])); out[8 + i] = f_bits(f_exp(in[i]));\n"
    "        out[16 + i] = f_bits(f_log2(in[i]));\n"
    "    }\n"
    "}\n";

static void test_limits(void **state)
{
    (void)state;
    static const u32 want[24] = {0,          0x7f800000, 0x7fc00000, 0x3f800000, 0,
                                 0x00800000, 0x7f800000, 0x40000000, 0,          0x7f800000,
                                 0x7fc00000, 0x3f800000, 0,          0,          0x7f800000,
                                 0x402df854, 0x7fc00000, 0x7f800000, 0x7fc00000, 0xff800000,
                                 0x7fc00000, 0x7fc00000, 0x40e00000, 0};
    struct device *device = kernel_device((struct device_options){.host_threads = 1});
    struct kernel kernel = kernel_build(device, limits_body,
                                        (struct device_geometry){1, 32, 0, false});
    u32 *out = kernel_memory(device, sizeof want, "out");
    kernel_run(&kernel, (u64[]){SLOT(out)}, 1);
    for (u32 i = 0; i < COUNT_OF(want); i++)
        if (out[i] != want[i])
            fail_msg("limit %u: expected %08x, found %08x", i, want[i], out[i]);
    kernel_free(&kernel);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
