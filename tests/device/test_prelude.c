/* test_prelude.c - every primitive of templates/prelude on the host device against its meaning,
 * written here a second time in the plainest way.
 *
 * Inputs come from a counter-based generator plus the values where rounding is hard: zeros,
 * denormals, limits, infinities, ties.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

static u64 random_state;
static u64 random_u64(void)
{
    u64 x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static u32 random_u32(void)
{
    return (u32)(random_u64() >> 32);
}
static float float_of(u32 bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static u32 bits_of(float value)
{
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static struct device *device;

static int open_device(void **state)
{
    (void)state;
    device = kernel_device((struct device_options){.host_threads = 1});
    return 0;
}
static int close_device(void **state)
{
    (void)state;
    device_close(device);
    return 0;
}

/* Runs a body once on one warp with up to four buffers of words. */
static void run_warp(const char *body, void *a, void *b, void *c, u32 n)
{
    struct kernel kernel = kernel_build(device, body, (struct device_geometry){1, 32, 4096, false});
    kernel_run(&kernel, (u64[]){SLOT(a), SLOT(b), SLOT(c), n}, 4);
    kernel_free(&kernel);
}

#define ARGS                                                                  \
    "u32 *a = (u32 *)slots[0], *b = (u32 *)slots[1], *c = (u32 *)slots[2];\n" \
    "const u32 n = (u32)slots[3], lane = lane_id(); (void)b; (void)c; (void)n;\n"
#define BODY(text) ENTRY "{" ARGS text "}\n"

/* ---- one value at a time */

static const u32 hard_floats[] = {0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000,
                                  0x3f800000, 0x3f800001, 0xbf7fffff, 0x7f7fffff, 0x7f800000,
                                  0xff800000, 0x7fc00000, 0x477fefff, 0x477ff000, 0x33000000,
                                  0x33000001, 0x38800000, 0x387fffff, 0x4b000001, 0xcb7fffff};

static u32 input_float(u32 i, u32 which)
{
    if (i < COUNT_OF(hard_floats) * COUNT_OF(hard_floats))
        return hard_floats[which == 0 ? i % COUNT_OF(hard_floats)
                                      : i / COUNT_OF(hard_floats) % COUNT_OF(hard_floats)];
    u32 bits = random_u32();
    return which == 2 && i % 3 == 0 ? (bits & 0x807fffffu) | (100 + bits / 65536 % 60) << 23 : bits;
}

/* NaN bits are not promised. */
static void same_float(u32 got, float want, const char *what, u32 a, u32 b)
{
    if (isnan(want) ? !isnan(float_of(got)) : got != bits_of(want))
        fail_msg("%s(%08x, %08x): expected %08x, found %08x", what, a, b, bits_of(want), got);
}

enum { VALUES = 4000, RESULTS = 16 };

static void test_float_arithmetic(void **state)
{
    (void)state;
    static u32 in[3 * VALUES], out[RESULTS * VALUES];
    for (u32 i = 0; i < 3 * VALUES; i++)
        in[i] = input_float(i % VALUES, i / VALUES);
    run_warp(
        BODY(
            "for (u32 i = lane; i < n; i += 32) {\n"
            " f32 x = f_from_bits(a[i]), y = f_from_bits(a[n + i]), z = f_from_bits(a[2*n + i]);\n"
            " f32 r[9] = {f_add(x, y), f_sub(x, y), f_mul(x, y), f_div(x, y), f_fma(x, y, z),\n"
            "   f_sqrt(x), f_min(x, y), f_max(x, y),\n"
            "   (f32){(float)elpis_add_to_odd((double)x.v * y.v, z.v)}};\n"
            " for (u32 j = 0; j < 9; j++) b[16*i + j] = f_bits(r[j]);\n"
            " b[16*i + 9] = f_lt(x, y) | f_le(x, y) << 1 | f_gt(x, y) << 2 | f_ge(x, y) << 3 |\n"
            "   f_eq(x, y) << 4 | f_is_finite(x) << 5;\n"
            " b[16*i + 10] = f_bits(f_neg(x)); b[16*i + 11] = f_bits(f_abs(x));\n"
            " b[16*i + 12] = f_bits(f_floor(x)); b[16*i + 13] = f_bits(f_select(a[i] & 1, x, y));\n"
            " b[16*i + 14] = f_bits(f_maximum(x, y));\n"
            "}"),
        in, out, NULL, VALUES);
    for (u32 i = 0; i < VALUES; i++) {
        u32 xb = in[i], yb = in[VALUES + i];
        float x = float_of(xb), y = float_of(yb), z = float_of(in[2 * VALUES + i]);
        const u32 *r = out + RESULTS * i;
        same_float(r[0], x + y, "add", xb, yb);
        same_float(r[1], x - y, "sub", xb, yb);
        same_float(r[2], x * y, "mul", xb, yb);
        same_float(r[3], x / y, "div", xb, yb);
        same_float(r[4], fmaf(x, y, z), "fma", xb, yb);
        same_float(r[5], sqrtf(x), "sqrt", xb, 0);
        same_float(r[6], x < y ? x : y, "min", xb, yb);
        same_float(r[7], x > y ? x : y, "max", xb, yb);
        same_float(r[8], fmaf(x, y, z), "fma by round to odd", xb, yb);
        u32 flags = (u32)(x < y) | (u32)(x <= y) << 1 | (u32)(x > y) << 2 | (u32)(x >= y) << 3 |
                    (u32)(x == y) << 4 | (u32) !!isfinite(x) << 5;
        assert_int_equal(r[9], flags);
        assert_int_equal(r[10], xb ^ 0x80000000u);
        assert_int_equal(r[11], xb & 0x7fffffffu);
        same_float(r[12], floorf(x), "floor", xb, 0);
        assert_int_equal(r[13], xb & 1 ? xb : yb);
        if (isnan(x) || isnan(y))
            assert_true(isnan(float_of(r[14])));
        else
            assert_int_equal(r[14], x == y ? xb & yb : x > y ? xb : yb);
    }
}

static void test_float_conversions(void **state)
{
    (void)state;
    static u32 in[VALUES], out[RESULTS * VALUES];
    for (u32 i = 0; i < VALUES; i++)
        in[i] = i < 64 ? (i % 2 ? -(i / 2) : i / 2) : random_u32() >> random_u32() % 32;
    run_warp(
        BODY("for (u32 i = lane; i < n; i += 32) {\n"
             " u64 wide = (u64)a[i] * a[i] * 3; f32 small = f_from_i32((i32)a[i] >> 8);\n"
             " b[16*i] = f_bits(f_from_i32((i32)a[i])); b[16*i+1] = f_bits(f_from_u32(a[i]));\n"
             " b[16*i+2] = f_bits(f_from_i64(-(i64)(wide >> 1))); b[16*i+3] = "
             "f_bits(f_from_u64(wide));\n"
             " b[16*i+4] = (u32)f_to_i32_rn(f_mul(small, f_pow2(-3)));\n"
             " b[16*i+5] = f_bits(f_pow2((i32)(a[i] % 300) - 150));\n"
             " b[16*i+6] = (u32)(f_trunc_u64(f_from_u64(wide >> 2)) >> 20);\n"
             " b[16*i+7] = f_bits(f_from_bf16((u16)a[i]));\n"
             " b[16*i+8] = f_to_u16_rn(f_mul(f_from_u32(a[i] >> 8), f_pow2(-5)));\n"
             "}"),
        in, out, NULL, VALUES);
    for (u32 i = 0; i < VALUES; i++) {
        const u32 *r = out + RESULTS * i;
        u64 wide = (u64)in[i] * in[i] * 3;
        i32 e = (i32)(in[i] % 300) - 150;
        same_float(r[0], (float)(i32)in[i], "from_i32", in[i], 0);
        same_float(r[1], (float)in[i], "from_u32", in[i], 0);
        same_float(r[2], (float)-(i64)(wide >> 1), "from_i64", in[i], 0);
        same_float(r[3], (float)wide, "from_u64", in[i], 0);
        assert_int_equal((i32)r[4], (i32)rint((double)(float)((i32)in[i] >> 8) / 8));
        same_float(r[5], e < -126 ? 0.0f : ldexpf(1, e > 127 ? 127 : e), "pow2", (u32)e, 0);
        assert_int_equal(r[6], (u32)((u64)(float)(wide >> 2) >> 20));
        assert_int_equal(r[7], in[i] << 16);
        const double clamped = rint((in[i] >> 8) / 32.0);
        assert_int_equal(r[8], (u32)(clamped > 65535 ? 65535 : clamped));
    }
}

/* binary16 of a value in units of 2^-48, to nearest even. */
static u32 half_of(__int128 value)
{
    u32 sign = value < 0 ? 0x8000 : 0;
    unsigned __int128 magnitude = value < 0 ? -(unsigned __int128)value : (unsigned __int128)value;
    int top = -1;
    while (magnitude >> (top + 1))
        top++;
    int exponent = top - 48, drop = (exponent < -14 ? -14 : exponent) - 10 + 48;
    unsigned __int128 kept = magnitude >> drop,
                      rest = magnitude & (((unsigned __int128)1 << drop) - 1);
    unsigned __int128 half = (unsigned __int128)1 << (drop - 1);
    if (rest > half || (rest == half && (kept & 1)))
        kept++;
    u32 bits = exponent < -14 ? (u32)kept : (u32)kept + ((u32)(exponent + 14) << 10);
    return sign | (bits > 0x7c00 ? 0x7c00 : bits);
}
static double half_value(u32 h)
{
    int exponent = h >> 10 & 31;
    double mantissa = exponent ? 1024 + (h & 1023) : (h & 1023);
    return (h & 0x8000 ? -1 : 1) * ldexp(mantissa, (exponent ? exponent : 1) - 25);
}

static void test_halves(void **state)
{
    (void)state;
    enum { HALVES = 65536 };
    u32 *in = malloc(3 * HALVES * 4), *out = malloc(8 * HALVES * 4);
    for (u32 i = 0; i < HALVES; i++) {
        in[i] = i | (random_u32() % HALVES) << 16;
        in[HALVES + i] = random_u32() % HALVES;
        in[2 * HALVES + i] = (random_u32() & 0x807fffffu) | (100 + random_u32() % 45) << 23;
        if (i % 4 == 0) /* a tie or next to one */
            in[2 * HALVES + i] = (in[2 * HALVES + i] & ~0x1fffu) | (0xfff + random_u32() % 3);
    }
    run_warp(BODY("for (u32 i = lane; i < n; i += 32) {\n"
                  " h16 x = h_from_bits((u16)a[i]), y = h_from_bits((u16)(a[i] >> 16)), z = "
                  "h_from_bits((u16)a[n + i]);\n"
                  " b[8*i] = f_bits(f_from_h(x)); b[8*i+1] = h_bits(h_from_f(f_from_h(x)));\n"
                  " b[8*i+2] = h_bits(h_from_f(f_from_bits(a[2*n + i])));\n"
                  " b[8*i+3] = h_bits(h_add(x, y)); b[8*i+4] = h_bits(h_fma(x, y, z));\n"
                  " u32 two = h_bits(x) | (u32)h_bits(z) << 16, other = h_bits(y) * 0x10001u;\n"
                  " b[8*i+5] = h2_add(two, other); b[8*i+6] = h2_mul(two, other);\n"
                  " b[8*i+7] = h2_from_f(f_from_bits(a[2*n + i]), f_from_h(z));\n"
                  "}"),
             in, out, NULL, HALVES);
    for (u32 i = 0; i < HALVES; i++) {
        u32 x = in[i] & 0xffff, y = in[i] >> 16, z = in[HALVES + i];
        const u32 *r = out + 8 * i;
        bool nan = (x & 0x7fff) > 0x7c00, finite = (x & 0x7c00) != 0x7c00;
        if (finite) {
            same_float(r[0], (float)half_value(x), "from_h", x, 0);
            assert_int_equal(r[1], x);
        } else {
            assert_int_equal(r[0] & 0x7f800000, 0x7f800000);
            assert_int_equal(nan, (r[0] & 0x7fffff) != 0);
        }
        __int128 scaled = (__int128)rint(ldexp(float_of(in[2 * HALVES + i]), 48));
        assert_int_equal(r[2], half_of(scaled));
        if (!finite || (y & 0x7c00) == 0x7c00 || (z & 0x7c00) == 0x7c00)
            continue;
        assert_int_equal(r[7], r[2] | z << 16);
        __int128 xi = (__int128)ldexp(half_value(x), 24), yi = (__int128)ldexp(half_value(y), 24);
        __int128 zi = (__int128)ldexp(half_value(z), 24);
        __int128 sum = (xi + yi) << 24, fused = xi * yi + (zi << 24);
        if (sum)
            assert_int_equal(r[3], half_of(sum));
        if (fused)
            assert_int_equal(r[4], half_of(fused));
        const __int128 sums[] = {xi + yi, zi + yi}, products[] = {xi * yi, zi * yi};
        for (u32 part = 0; part < 2; part++) {
            if (sums[part])
                assert_int_equal(r[5] >> 16 * part & 0xffff, half_of(sums[part] << 24));
            if (products[part])
                assert_int_equal(r[6] >> 16 * part & 0xffff, half_of(products[part]));
        }
    }
    free(in);
    free(out);
}

/* A 3-bit code times a scale as prefill_attention makes it, for every code and scale but NaN:
 * RN16((2c - 7) * (scale / 8)), its subnormals too. */
static void test_scaled_codes(void **state)
{
    (void)state;
    enum { HALVES = 65536 };
    u32 *in = calloc(3 * HALVES, 4), *out = calloc(8 * HALVES, 4);
    for (u32 i = 0; i < HALVES; i++)
        in[i] = i;
    run_warp(BODY("for (u32 i = lane; i < n; i += 32) {\n"
                  " const f32 unit = f_mul(f_from_h(h_from_bits((u16)a[i])), f_pow2(-3));\n"
                  " for (u32 c = 0; c < 8; c++) {\n"
                  "  u32 both = h2_add((c << 1 | c << 17) | 0x58015801u, 0xd808d808u);\n"
                  "  u32 upper = h2_add((c << 5 | c << 21) | 0x48104810u, 0xc880c880u);\n"
                  "  u32 want = h_bits(h_from_f(f_mul(f_from_i32((i32)(2 * c) - 7), unit)));\n"
                  "  b[8*i + c] = (h2_mul(both, a[i] * 0x10001u) ^ want * 0x10001u) |\n"
                  "   (both ^ upper);\n"
                  " }\n"
                  "}"),
             in, out, NULL, HALVES);
    for (u32 i = 0; i < 8 * HALVES; i++)
        if ((i / 8 & 0x7fff) <= 0x7c00 && out[i])
            fail_msg("scale %04x, code %u: %08x is off", i / 8, i % 8, out[i]);
    free(in);
    free(out);
}

static u32 permute(u32 a, u32 b, u32 selector)
{
    u8 bytes[8], out[4];
    memcpy(bytes, &a, 4);
    memcpy(bytes + 4, &b, 4);
    for (u32 i = 0; i < 4; i++) {
        u32 s = selector >> 4 * i & 15;
        out[i] = s < 8 ? bytes[s] : (u8)((i8)bytes[s - 8] >> 7);
    }
    memcpy(&a, out, 4);
    return a;
}
static i32 dot(u32 a, u32 b, i32 c, bool is_signed)
{
    for (u32 i = 0; i < 4; i++)
        c += (is_signed ? (i8)(a >> 8 * i) : (u8)(a >> 8 * i)) * (i8)(b >> 8 * i);
    return c;
}

static void test_integers(void **state)
{
    (void)state;
    static u32 in[2 * VALUES], out[RESULTS * VALUES];
    for (u32 i = 0; i < 2 * VALUES; i++)
        in[i] = i % 7 == 0 ? 0 : random_u32() >> random_u32() % 32;
    run_warp(BODY("for (u32 i = lane; i < n; i += 32) {\n"
                  " u32 x = a[i], y = a[n + i], s = i % 32; u64 w = (u64)x << 32 | y, v = (u64)y * "
                  "0x123456789abcdefULL;\n"
                  " u64 m = u64_mul_hi(w, v); i64 k = i64_mul_add((i32)x, (i32)y, -(i64)v);\n"
                  " u32 r[12] = {u32_mul_hi(x, y), (u32)m, (u32)(m >> 32), funnel_left(x, y, s), "
                  "funnel_right(x, y, s),\n"
                  "  byte_permute(x, y, y ^ i), (u32)dot_u8s8(x, y, (i32)i), (u32)dot_s8s8(x, y, "
                  "(i32)i), count_bits(x),\n"
                  "  leading_zeros(x), (u32)k, (u32)((u64)k >> 32)};\n"
                  " for (u32 j = 0; j < 12; j++) b[16*i + j] = r[j];\n"
                  "}"),
             in, out, NULL, VALUES);
    for (u32 i = 0; i < VALUES; i++) {
        u32 x = in[i], y = in[VALUES + i], s = i % 32;
        const u32 *r = out + RESULTS * i;
        u64 w = (u64)x << 32 | y, v = y * 0x123456789abcdefull;
        u64 m = (u64)((unsigned __int128)w * v >> 64), k = (u64)((i64)(i32)x * (i32)y) - v;
        assert_int_equal(r[0], (u32)((u64)x * y >> 32));
        assert_int_equal(r[1], (u32)m);
        assert_int_equal(r[2], (u32)(m >> 32));
        assert_int_equal(r[3], s ? x << s | y >> (32 - s) : x);
        assert_int_equal(r[4], s ? y >> s | x << (32 - s) : y);
        assert_int_equal(r[5], permute(x, y, y ^ i));
        assert_int_equal((i32)r[6], dot(x, y, (i32)i, false));
        assert_int_equal((i32)r[7], dot(x, y, (i32)i, true));
        assert_int_equal(r[8], __builtin_popcount(x));
        assert_int_equal(r[9], x ? __builtin_clz(x) : 32);
        assert_int_equal(r[10], (u32)k);
        assert_int_equal(r[11], (u32)(k >> 32));
    }
}

/* Constant selectors take another way through byte_permute. */
static void test_constant_selectors(void **state)
{
    (void)state;
    static u32 in[32], out[32 * 6];
    for (u32 i = 0; i < 32; i++)
        in[i] = random_u32();
    run_warp(BODY("u32 x = a[lane];\n"
                  "u32 r[6] = {byte_permute(x, 0, 0x4410), byte_permute(x, 0, 0x4421), "
                  "byte_permute(x, 0, 0x4432),\n"
                  "  byte_permute(x, 0, 0x0123), byte_permute(x, 1, 0x4421), byte_permute(x, 0, "
                  "0x4443)};\n"
                  "for (u32 j = 0; j < 6; j++) b[6*lane + j] = r[j];"),
             in, out, NULL, 0);
    static const u32 selectors[6] = {0x4410, 0x4421, 0x4432, 0x0123, 0x4421, 0x4443};
    for (u32 i = 0; i < 32 * 6; i++)
        assert_int_equal(out[i], permute(in[i / 6], i % 6 == 4, selectors[i % 6]));
}

static void test_memory(void **state)
{
    (void)state;
    static u32 in[1024] __attribute__((aligned(64))), out[1024] __attribute__((aligned(64)));
    for (u32 i = 0; i < 1024; i++)
        in[i] = random_u32();
    memset(out, 0, sizeof out);
    run_warp(
        BODY("u32 *s = shared_at(u32, 0), t[4];\n"
             "copy_async16(s + 4*lane, a + 4*lane); copy_async_commit(); copy_async_wait(0); "
             "warp_sync();\n"
             "load4_u32(s + 4*(31 - lane), t); store4_u32(b + 4*lane, t);\n"
             "load2_u32(a + 2*lane, t); store2_u32(b + 128 + 2*lane, t);\n"
             "load_stream4_u32(a + 4*lane, t); store4_u32(b + 256 + 4*lane, t);\n"
             "load4_fresh_u32(a + 4*lane, t); b[512 + lane] = t[3] ^ load_fresh_u32(a + lane);\n"
             "b[400 + atomic_add_u32(b + 384, 1)] = 7;\n"
             "atomic_add_u64_void((u64 *)(b + 386), (u64)lane << 30);\n"
             "atomic_max_i32((i32 *)b + 388, (i32)lane - 40); atomic_max_i32((i32 *)b + 389, "
             "(i32)(lane * 7 % 32));\n"
             "atomic_or_u32(b + 390, 1u << lane); atomic_add_u64((u64 *)(b + 392), lane);\n"
             "fence_device(); store_release_u32(b + 394, 5); b[395] = load_acquire_u32(b + 394);"),
        in, out, NULL, 0);
    for (u32 i = 0; i < 128; i++) {
        assert_int_equal(out[i], in[4 * (31 - i / 4) + i % 4]);
        assert_int_equal(out[256 + i], in[i]);
    }
    for (u32 i = 0; i < 64; i++)
        assert_int_equal(out[128 + i], in[i]);
    u64 wide;
    memcpy(&wide, out + 386, 8);
    assert_int_equal(out[384], 32);
    assert_int_equal(out[431], 7);
    assert_true(wide == (u64)496 << 30);
    assert_int_equal((i32)out[388], 0);
    assert_int_equal(out[389], 31);
    assert_int_equal(out[390], 0xffffffffu);
    assert_int_equal(out[392], 496);
    assert_int_equal(out[395], 5);
}

/* ---- collectives */

static void test_shuffles_and_sums(void **state)
{
    (void)state;
    static u32 in[64], out[32 * 16];
    for (u32 i = 0; i < 64; i++)
        in[i] = random_u32() & 0xc1ffffffu;
    run_warp(
        BODY("u32 w = a[lane]; f32 f = f_from_bits(w); u64 l = (u64)w << 32 | a[32 + lane];\n"
             "u64 s = warp_sum_u64(l), t = shuffle_u64(l, lane * 5), x = shuffle_xor_u64(l, 9);\n"
             "u32 r[16] = {shuffle_u32(w, lane * 7), shuffle_xor_u32(w, 11), f_bits(shuffle_f32(f, "
             "31 - lane)),\n"
             " f_bits(shuffle_xor_f32(f, 16)), (u32)t, (u32)(x >> 32), f_bits(warp_sum_f32(f)), "
             "f_bits(warp_max_f32(f)),\n"
             " (u32)warp_max_i32((i32)w), warp_max_u32(w), warp_sum_u32(w), "
             "(u32)warp_sum_i32((i32)w), (u32)s,\n"
             " (u32)(s >> 32), warp_or_u32(w & 0xf0f0u), warp_ballot(w & 4)};\n"
             "for (u32 j = 0; j < 16; j++) b[16*lane + j] = r[j];"),
        in, out, NULL, 0);
    float sums[32], top = -INFINITY;
    u32 any = 0, ballot = 0, sum = 0, most = 0;
    i32 most_signed = INT32_MIN;
    u64 sum64 = 0;
    for (u32 i = 0; i < 32; i++) {
        sums[i] = float_of(in[i]);
        top = sums[i] > top ? sums[i] : top;
        any |= in[i] & 0xf0f0u;
        ballot |= (u32)((in[i] & 4) != 0) << i;
        sum += in[i];
        most = in[i] > most ? in[i] : most;
        most_signed = (i32)in[i] > most_signed ? (i32)in[i] : most_signed;
        sum64 += (u64)in[i] << 32 | in[32 + i];
    }
    for (u32 mask = 16; mask; mask /= 2) {
        float next[32];
        for (u32 i = 0; i < 32; i++)
            next[i] = sums[i] + sums[i ^ mask];
        memcpy(sums, next, sizeof sums);
    }
    for (u32 i = 0; i < 32; i++) {
        const u32 *r = out + 16 * i;
        u32 want[16] = {in[i * 7 % 32],
                        in[i ^ 11],
                        in[31 - i],
                        in[i ^ 16],
                        in[32 + i * 5 % 32],
                        in[i ^ 9],
                        bits_of(sums[i]),
                        bits_of(top),
                        (u32)most_signed,
                        most,
                        sum,
                        sum,
                        (u32)sum64,
                        (u32)(sum64 >> 32),
                        any,
                        ballot};
        for (u32 j = 0; j < 16; j++)
            if (r[j] != want[j])
                fail_msg("lane %u, result %u: expected %08x, found %08x", i, j, want[j], r[j]);
    }
}

static void test_hadamard(void **state)
{
    (void)state;
    static float in[128], out[256];
    for (u32 i = 0; i < 128; i++)
        in[i] = (float)(i32)random_u32() * 0x1p-20f;
    run_warp(BODY("f32 v[4], w[4];\n"
                  "for (u32 i = 0; i < 4; i++) v[i] = w[i] = f_from_bits(a[4*lane + i]);\n"
                  "warp_hadamard128(v); warp_hadamard32(w);\n"
                  "for (u32 i = 0; i < 4; i++) { b[4*lane + i] = f_bits(v[i]); b[128 + 4*lane + i] "
                  "= f_bits(w[i]); }"),
             in, out, NULL, 0);
    for (u32 stages = 5; stages <= 7; stages += 2) {
        float x[128], y[128];
        memcpy(x, in, sizeof x);
        for (u32 bit = 0; bit < stages; bit++, memcpy(x, y, sizeof x))
            for (u32 i = 0; i < 128; i++) {
                float other = x[i ^ 1u << bit];
                y[i] = i >> bit & 1 ? other - x[i] : x[i] + other;
            }
        assert_memory_equal(x, out + (stages == 5 ? 128 : 0), sizeof x);
    }
}

static void test_load_matrix(void **state)
{
    (void)state;
    static u16 in[64 * 64];
    static u32 out[32 * 10];
    for (u32 i = 0; i < 32 * 8; i++)
        in[i] = (u16)i;
    run_warp(BODY("u16 *s = shared_at(u16, 0); const u16 *h = (const u16 *)a; u32 r[10];\n"
                  "for (u32 i = lane; i < 256; i += 32) s[i] = h[i];\n"
                  "warp_sync();\n"
                  "const u16 *row = s + 8 * (31 - lane);\n"
                  "load_matrix_x4(r, row); load_matrix_x4_trans(r + 4, row); load_matrix_x2(r + 8, "
                  "row);\n"
                  "for (u32 i = 0; i < 10; i++) b[10*lane + i] = r[i];"),
             in, out, NULL, 0);
    for (u32 lane = 0; lane < 32; lane++)
        for (u32 i = 0; i < 4; i++) {
            u32 row = lane / 4, column = lane % 4 * 2;
#define AT(r, c) ((31 - (8 * i + (r))) * 8 + (c))
            u32 plain = AT(row, column) | AT(row, column + 1) << 16;
            u32 transposed = AT(column, row) | AT(column + 1, row) << 16;
#undef AT
            assert_int_equal(out[10 * lane + i], plain);
            assert_int_equal(out[10 * lane + 4 + i], transposed);
            if (i < 2)
                assert_int_equal(out[10 * lane + 8 + i], plain);
        }
}

/* Fragments of m16n8 products, from PTX ISA 8.5, section 9.7.14.5 (f16) and 9.7.14.5.10 (8 bits).
 * words: [32][per]; element (row, k) of fragment i of A. */
static i32 a_byte(const u32 *words, u32 per, u32 i, u32 row, u32 k, bool is_signed)
{
    u32 lane = row % 8 * 4 + k % 16 / 4, word = 4 * i + row / 8 + k / 16 * 2;
    u8 byte = (u8)(words[lane * per + word] >> k % 4 * 8);
    return is_signed ? (i8)byte : byte;
}
static i32 b_byte(const u32 *words, u32 per, u32 j, u32 k, u32 column)
{
    u32 lane = column * 4 + k % 16 / 4, word = 2 * j + k / 16;
    return (i8)(words[lane * per + word] >> k % 4 * 8);
}
static float a_half(const u32 *words, u32 per, u32 i, u32 row, u32 k)
{
    u32 lane = row % 8 * 4 + k % 8 / 2, word = 4 * i + row / 8 + k / 8 * 2;
    return (float)half_value(words[lane * per + word] >> k % 2 * 16 & 0xffff);
}
static float b_half(const u32 *words, u32 per, u32 j, u32 k, u32 column)
{
    u32 lane = column * 4 + k % 8 / 2, word = 2 * j + k / 8;
    return (float)half_value(words[lane * per + word] >> k % 2 * 16 & 0xffff);
}

enum { MA = 5, NB = 7, SIDE_A = 4 * MA, SIDE_B = 2 * NB, SIDE_C = 4 * MA * NB };

static void check_product(const char *name, const char *call, u32 ma, u32 nb, bool pairs)
{
    static u32 a[32 * SIDE_A], b[32 * SIDE_B], c[32 * SIDE_C], was[32 * SIDE_C];
    struct buffer body = {0};
    bool halves = strstr(name, "f16"), is_signed = !strstr(name, "u8s8");
    u32 limit = halves ? 0xbfffbfffu : 0xffffffffu; /* finite halves */
    for (u32 i = 0; i < COUNT_OF(a); i++)
        a[i] = random_u32() & limit;
    for (u32 i = 0; i < COUNT_OF(b); i++)
        b[i] = random_u32() & limit;
    for (u32 i = 0; i < COUNT_OF(c); i++)
        was[i] = c[i] = halves ? bits_of((float)(i32)random_u32() * 0x1p-30f) : random_u32() >> 8;
    buffer_format(&body,
                  BODY("u32 x[%u], y[%u]; %s z[%u]; u32 t;\n"
                       "for (u32 i = 0; i < %u; i++) x[i] = a[%u * lane + i];\n"
                       "for (u32 i = 0; i < %u; i++) y[i] = b[%u * lane + i];\n"
                       "for (u32 i = 0; i < %u; i++) { t = c[%u * lane + i]; __builtin_memcpy(z + "
                       "i, &t, 4); }\n"
                       "%s;\n"
                       "for (u32 i = 0; i < %u; i++) { __builtin_memcpy(&t, z + i, 4); c[%u * lane "
                       "+ i] = t; }"),
                  SIDE_A, SIDE_B, halves ? "f32" : "i32", SIDE_C, SIDE_A, SIDE_A, SIDE_B, SIDE_B,
                  SIDE_C, SIDE_C, call, SIDE_C, SIDE_C);
    run_warp(body.data, a, b, c, 0);
    buffer_free(&body);
    for (u32 at = 0; at < 32 * SIDE_C; at++) {
        u32 lane = at / SIDE_C, fragment = at % SIDE_C / 4, e = at % 4;
        u32 i = pairs ? fragment / nb : fragment, j = pairs ? fragment % nb : fragment;
        u32 row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2, want = was[at];
        if (i < ma && j < nb && halves) {
            float sum = float_of(want);
            for (u32 k = 0; k < 16; k++)
                sum = fmaf(a_half(a, SIDE_A, i, row, k), b_half(b, SIDE_B, j, k, column), sum);
            want = bits_of(sum);
        } else if (i < ma && j < nb) {
            for (u32 k = 0; k < 32; k++)
                want += (u32)(a_byte(a, SIDE_A, i, row, k, is_signed) *
                              b_byte(b, SIDE_B, j, k, column));
        }
        if (c[at] != want)
            fail_msg("%s: lane %u, fragment (%u, %u), element %u: expected %08x, found %08x", call,
                     lane, i, j, e, want, c[at]);
    }
}

static void test_products(void **state)
{
    (void)state;
    static const char *const names[] = {"mma_s8s8", "mma_u8s8", "mma_f16"};
    static const u32 shapes[][2] = {{1, 1}, {5, 7}, {4, 4}, {2, 1}, {1, 6}};
    for (u32 n = 0; n < COUNT_OF(names); n++) {
        char call[96];
        snprintf(call, sizeof call, "%s(z, x, y)", names[n]);
        check_product(names[n], call, 1, 1, true);
        snprintf(call, sizeof call, "%s_n(3, z, x, y)", names[n]);
        check_product(names[n], call, 3, 3, false);
        for (u32 s = 0; s < COUNT_OF(shapes); s++) {
            snprintf(call, sizeof call, "%s_ab(%u, %u, z, x, y)", names[n], shapes[s][0],
                     shapes[s][1]);
            check_product(names[n], call, shapes[s][0], shapes[s][1], true);
        }
    }
}

/* Element (k, column) of tile t of the decode linear: which lane and window hold it. */
static u32 weight_at(const u32 *words, u32 per, u32 t, u32 k, u32 column)
{
    u32 lane = column % 8 * 4 + k % 8 / 2, window = column / 8 * 4 + k / 8 * 2 + k % 2;
    return words[lane * per + 8 * t + window];
}
static i32 plane_at(const u32 *act, u32 plane, u32 row, u32 k)
{
    u32 lane = row * 4 + k % 8 / 2, byte = k / 8 * 2 + k % 2;
    return (i8)(act[lane * 4 + plane] >> 8 * byte);
}

enum linear_kind {
    MUL1,
    MUL1_FIRST,
    MUL1_PLANE,
    MUL1_PLANE_FIRST,
    MUL1_PAIRS,
    MUL1_PAIRS_FIRST,
    S8_PAIRS,
    LINEAR_KINDS
};
static const struct {
    const char *name, *call;
} linear_kinds[LINEAR_KINDS] = {
    [MUL1] = {"mul1", "mma_u8s8_mul1(sizeof w / 64, s[1], s[2], w, d, n)"},
    [MUL1_FIRST] = {"mul1_first", "mma_u8s8_mul1_first(sizeof w / 64, s[1], s[2], w, d, n)"},
    [MUL1_PLANE] = {"mul1_plane", "mma_u8s8_mul1_plane(sizeof w / 64, s[1], w, d[0])"},
    [MUL1_PLANE_FIRST] = {"mul1_plane_first",
                          "mma_u8s8_mul1_plane_first(sizeof w / 64, s[1], w, d[0])"},
    [MUL1_PAIRS] = {"mul1_pairs", "mma_u8s8_mul1_pairs(sizeof w / 64, s[0], s[1], s[2], w, d, "
                                  "w + sizeof w / 8, d + 2, n)"},
    [MUL1_PAIRS_FIRST] = {"mul1_pairs_first",
                          "mma_u8s8_mul1_pairs_first(sizeof w / 64, s[0], s[1], s[2], w, d, "
                          "w + sizeof w / 8, d + 2, n)"},
    [S8_PAIRS] = {"s8_pairs", "mma_s8_pairs(sizeof w / 64, s[0], s[1], s[2], w, d, n)"},
};

/* What an element (word, h, l) adds to the sums. */
static void add_product(enum linear_kind kind, u32 word, i32 h, i32 l, u32 want[3])
{
    const u32 s = (word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24);
    if (kind < MUL1_PAIRS) {
        want[1] += s * (u32)h;
        if (kind == MUL1 || kind == MUL1_FIRST)
            want[2] += s * (u32)l;
        return;
    }
    const i32 low = kind == S8_PAIRS ? (i8)word : (i32)(s & 255);
    const i32 high = kind == S8_PAIRS ? (i8)(word >> 8) : (i32)(s >> 8);
    want[0] += (u32)(high * h);
    want[1] += (u32)(high * l + low * h);
    want[2] += (u32)(low * l);
}

/* Two k-tiles are there for those that take them: words 8 * tiles on, act[2..3] of a lane. */
static void check_linear(u32 tiles, u32 rows, enum linear_kind kind)
{
    enum { TILES_MAX = 6, WORDS = 16 * TILES_MAX, SUMS = 4 * TILES_MAX };
    static u32 w[32 * WORDS], act[128], sums[3 * 32 * SUMS], was[3 * 32 * SUMS];
    const bool pairs = kind == MUL1_PAIRS || kind == MUL1_PAIRS_FIRST;
    const u32 begun[LINEAR_KINDS] = {
        [MUL1_FIRST] = 6, [MUL1_PLANE_FIRST] = 2, [MUL1_PAIRS_FIRST] = 7}; /* bits of sums */
    struct buffer body = {0};
    for (u32 i = 0; i < COUNT_OF(w); i++) {
        i32 v = (i32)(random_u32() % 65279) - 32639, low = (i8)v, high = (v - low) / 256;
        w[i] = kind != S8_PAIRS ? random_u32() : (u32)((u8)low | (u32)(u8)high << 8);
        if (i % 7 == 0 && kind != S8_PAIRS) /* the largest and the least byte sum */
            w[i] = i % 2 ? 0xffffffffu : 0;
    }
    for (u32 i = 0; i < COUNT_OF(act); i++)
        act[i] = i % 5 ? random_u32() : 0x80808080u;
    for (u32 i = 0; i < COUNT_OF(sums); i++)
        was[i] = sums[i] = random_u32() >> 12;
    buffer_format(&body,
                  BODY("u32 w[16 * %u], d[4]; i32 s[3][4 * %u];\n"
                       "for (u32 i = 0; i < 4; i++) d[i] = b[4 * lane + i];\n"
                       "for (u32 i = 0; i < 16 * %u; i++) w[i] = a[%u * lane + i];\n"
                       "for (u32 p = 0; p < 3; p++) for (u32 i = 0; i < 4 * %u; i++) s[p][i] = "
                       "(i32)c[(p * 32 + lane) * %u + i];\n"
                       "%s;\n"
                       "for (u32 p = 0; p < 3; p++) for (u32 i = 0; i < 4 * %u; i++) c[(p * 32 + "
                       "lane) * %u + i] = (u32)s[p][i];"),
                  tiles, tiles, tiles, WORDS, tiles, SUMS, linear_kinds[kind].call, tiles, SUMS);
    run_warp(body.data, w, act, sums, rows);
    buffer_free(&body);
    for (u32 lane = 0; lane < 32; lane++)
        for (u32 at = 0; at < 4 * tiles; at++) {
            u32 t = at / 4, i = at % 4, column = lane / 4 + 8 * (i / 2),
                row = 2 * (lane % 4) + i % 2;
            if (row >= rows)
                continue;
            u32 want[3];
            for (u32 p = 0; p < 3; p++)
                want[p] = begun[kind] >> p & 1 ? 0 : was[(p * 32 + lane) * SUMS + at];
            for (u32 ktile = 0; ktile < (pairs ? 2 : 1); ktile++)
                for (u32 k = 0; k < 16; k++)
                    add_product(kind, weight_at(w, WORDS, t + ktile * tiles, k, column),
                                plane_at(act, 2 * ktile, row, k),
                                plane_at(act, 2 * ktile + 1, row, k), want);
            for (u32 p = 0; p < 3; p++)
                if (sums[(p * 32 + lane) * SUMS + at] != want[p])
                    fail_msg("%s, tiles %u, rows %u, lane %u, sum %u of %u: expected %d, found %d",
                             linear_kinds[kind].name, tiles, rows, lane, p, at, (i32)want[p],
                             (i32)sums[(p * 32 + lane) * SUMS + at]);
        }
}

static void test_linear(void **state)
{
    (void)state;
    static const u32 cases[][2] = {{1, 8}, {4, 1}, {5, 3}, {2, 8}, {6, 5}};
    for (u32 i = 0; i < COUNT_OF(cases); i++)
        for (u32 kind = 0; kind < LINEAR_KINDS; kind++)
            check_linear(cases[i][0], cases[i][1], kind);
}

/* Two k-tiles of a tile a warp; activations are words of a byte four times over. add = 0: what the
 * sums were is forgotten. */
static void check_warpgroup(u32 add)
{
    enum { THREADS = 128, KTILES = 2, SUMS = 8 };
    static u32 w[THREADS * 8 * KTILES], act[KTILES * 256], sums[THREADS * SUMS],
        was[COUNT_OF(sums)];
    for (u32 i = 0; i < COUNT_OF(w); i++)
        w[i] = i % 7 ? random_u32() : i % 2 ? 0xffffffffu : 0;
    for (u32 i = 0; i < COUNT_OF(act); i++)
        act[i] = 0x01010101u * (i % 5 ? random_u32() & 255 : 0x80);
    for (u32 i = 0; i < COUNT_OF(sums); i++)
        was[i] = sums[i] = random_u32() >> 12;
    struct kernel kernel = kernel_build(
        device,
        BODY("const u32 t = thread_id(), place = shared_place(shared_at(u32, 64)) + 16 * t;\n"
             "i32 high[4], low[4];\n"
             "for (u32 i = 0; i < 4; i++) { high[i] = (i32)c[8 * t + i];"
             " low[i] = (i32)c[8 * t + 4 + i]; }\n"
             "store2_at(place, 0, b + 4 * t); store2_at(place, 8, b + 4 * t + 2);\n"
             "warpgroup_stored(); warpgroup_sync();\n"
             "const u64 matrix = warpgroup_matrix(shared_place(shared_at(u32, 64)));\n"
             "warpgroup_mma_mul1(high, low, a + 16 * t, matrix, 0, n);\n"
             "warpgroup_mma_mul1(high, low, a + 16 * t + 8, matrix, 1, 1);\n"
             "warpgroup_mma_mul1(high, low, a + 16 * t, matrix, 1, 1);\n"
             "warpgroup_mma_wait(4, high, low); (void)lane;\n"
             "for (u32 i = 0; i < 4; i++) { c[8 * t + i] = (u32)high[i];"
             " c[8 * t + 4 + i] = (u32)low[i]; }\n"),
        (struct device_geometry){1, THREADS, 4096, false});
    kernel_run(&kernel, (u64[]){SLOT(w), SLOT(act), SLOT(sums), add}, 4);
    kernel_free(&kernel);
    static const u32 calls[][2] = {{0, 0}, {1, 1}, {0, 1}}; /* words, k-tile of the activations */
    for (u32 thread = 0; thread < THREADS; thread++)
        for (u32 at = 0; at < SUMS; at++) {
            const u32 lane = thread % 32, plane = at / 4, column = lane / 4 + at % 4 / 2 * 8,
                      row = lane % 4 * 2 + at % 2;
            u32 want = add ? was[thread * SUMS + at] : 0;
            for (u32 call = 0; call < COUNT_OF(calls); call++)
                for (u32 k = 0; k < 16; k++) {
                    const u32 word = weight_at(w + thread / 32 * 32 * 16, 16, calls[call][0], k,
                                               column);
                    const u32 from = calls[call][1] * 256 + k / 8 * 128 + plane * 64 + k % 2 * 32;
                    want += ((word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24)) *
                            (u32)(i8)act[from + row * 4 + k % 8 / 2];
                }
            if (sums[thread * SUMS + at] != want)
                fail_msg("warpgroup, add %u, thread %u, sum %u: expected %d, found %d", add, thread,
                         at, (i32)want, (i32)sums[thread * SUMS + at]);
        }
}

static void test_warpgroup(void **state)
{
    (void)state;
    check_warpgroup(0);
    check_warpgroup(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float_arithmetic), cmocka_unit_test(test_float_conversions),
        cmocka_unit_test(test_halves),           cmocka_unit_test(test_scaled_codes),
        cmocka_unit_test(test_integers),         cmocka_unit_test(test_constant_selectors),
        cmocka_unit_test(test_memory),           cmocka_unit_test(test_shuffles_and_sums),
        cmocka_unit_test(test_hadamard),         cmocka_unit_test(test_load_matrix),
        cmocka_unit_test(test_products),         cmocka_unit_test(test_linear),
        cmocka_unit_test(test_warpgroup),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
