/* math.h - functions built from the primitives alone, so that every device gives
 * the same bits.
 *
 * Errors below are measured against binary64 over dense samples by
 * tests/device/test_math.c, in units in the last place of the exact result.
 * Constants are bit patterns of binary32 (generated once, then fixed: another
 * last bit would change answers).
 *
 *     f_inv        1 / a                          correctly rounded
 *     f_rsqrt      1 / sqrt(a)                    two roundings
 *     f_exp2       2^a                            below 1 ulp
 *     f_exp        e^a                            below 1.2 ulp
 *     f_log2       log2(a), a > 0                 below 0.8 ulp (0 gives -inf, negative or NaN NaN)
 *     f_sigmoid, f_silu                           below 2.4 ulp
 *     f_silu_short (of |a| <= 80; of prefill)     below 4 ulp
 *     f_softplus                                  below 3.4 ulp
 *     f_sincos_turn(u64 part of a turn)           error below 1.1e-7 absolute
 *
 * exp2 and exp: results below 2^-126 are 0 (no denormals), arguments from 128 up
 * give infinity, NaN stays NaN.
 */

#define F_CONSTANT(bits) f_from_bits(bits##u)

static FN f32 f_inv(f32 a)
{
    return f_div(F_CONSTANT(0x3f800000), a);
}
static FN f32 f_rsqrt(f32 a)
{
    return f_inv(f_sqrt(a));
}

/* 2^f for |f| <= 1/2: (2^f - 1) / f as a polynomial of degree 5, minimax, error 2^-29. */
static FN f32 f_exp2_fraction(f32 f)
{
    f32 p = F_CONSTANT(0x392247e1);
    p = f_fma(p, f, F_CONSTANT(0x3aafa3d8));
    p = f_fma(p, f, F_CONSTANT(0x3c1d94d5));
    p = f_fma(p, f, F_CONSTANT(0x3d635768));
    p = f_fma(p, f, F_CONSTANT(0x3e75fdf0));
    p = f_fma(p, f, F_CONSTANT(0x3f317218));
    return f_fma(p, f, F_CONSTANT(0x3f800000));
}

/* 2^(n + f) for an integer n in [-126, 128] and |f| <= 1/2. n = 128 is reached in two exact
 * steps. */
static FN f32 f_exp2_parts(i32 n, f32 f)
{
    f32 p = f_exp2_fraction(f);
    f32 doubled = f_select(n > 127, f_add(p, p), p);
    return f_mul(doubled, f_pow2(n > 127 ? 127 : n));
}

/* Range of f_exp2 and f_exp: `whole` is the argument in units of powers of two. */
static FN f32 f_exp2_limits(f32 whole, f32 result)
{
    result = f_select(f_lt(whole, F_CONSTANT(0xc2fc0000)), F_CONSTANT(0x00000000), result);
    result = f_select(f_ge(whole, F_CONSTANT(0x43000000)), F_CONSTANT(0x7f800000), result);
    return f_select(f_eq(whole, whole), result, whole);
}
static FN f32 f_exp2_clamp(f32 whole)
{
    return f_max(f_min(whole, F_CONSTANT(0x43000000)), F_CONSTANT(0xc2fc0000));
}

static FN f32 f_exp2(f32 a)
{
    f32 clamped = f_exp2_clamp(a);
    i32 n = f_to_i32_rn(clamped);
    return f_exp2_limits(a, f_exp2_parts(n, f_sub(clamped, f_from_i32(n))));
}

/* log2(e) = 0x3fb8aa3b + 0x32a57060 (sum of two binary32): the fraction of a * log2(e) is
 * formed by fma, so that no bit of the product is lost before the integer part is gone. */
static FN f32 f_exp(f32 a)
{
    f32 whole = f_mul(a, F_CONSTANT(0x3fb8aa3b));
    f32 bounded = f_max(f_min(a, F_CONSTANT(0x42b17218)), F_CONSTANT(0xc2aeac50));
    i32 n = f_to_i32_rn(f_exp2_clamp(f_mul(bounded, F_CONSTANT(0x3fb8aa3b))));
    f32 f = f_fma(bounded, F_CONSTANT(0x3fb8aa3b), f_neg(f_from_i32(n)));
    f = f_fma(bounded, F_CONSTANT(0x32a57060), f);
    return f_exp2_limits(whole, f_exp2_parts(n, f));
}

/* a = 2^e * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); with s = f / (2 + f),
 * ln(1 + f) = f - (f^2/2 - s * (f^2/2 + R)), R = s^2 * P(s^2), as the series of 2 atanh(s) gives.
 * high + low carry it to about 32 bits; log2(e) is taken in two parts and e is added last. */
static FN f32 f_log2(f32 a)
{
    u32 is_small = f_lt(a, F_CONSTANT(0x00800000));
    u32 bits = f_bits(f_select(is_small, f_mul(a, F_CONSTANT(0x4c000000)), a));
    u32 shifted = bits - 0x3f3504f3u;
    i32 e = ((i32)shifted >> 23) - (is_small ? 25 : 0);
    f32 f = f_sub(f_from_bits((shifted & 0x007fffffu) + 0x3f3504f3u), F_CONSTANT(0x3f800000));
    f32 s = f_div(f, f_add(f, F_CONSTANT(0x40000000)));
    f32 z = f_mul(s, s);
    f32 r = F_CONSTANT(0x3e717ccf);
    r = f_fma(r, z, F_CONSTANT(0x3e921c62));
    r = f_fma(r, z, F_CONSTANT(0x3ecccd3d));
    r = f_mul(z, f_fma(r, z, F_CONSTANT(0x3f2aaaaa)));
    f32 half_square = f_mul(f_mul(F_CONSTANT(0x3f000000), f), f);
    f32 correction = f_mul(s, f_add(half_square, r));
    f32 high = f_sub(f, half_square);
    f32 low = f_add(f_sub(f_sub(f, high), half_square), correction);
    f32 product = f_mul(high, F_CONSTANT(0x3fb8aa3b));
    f32 rest = f_fma(high, F_CONSTANT(0x3fb8aa3b), f_neg(product));
    rest = f_fma(high, F_CONSTANT(0x32a57060), f_fma(low, F_CONSTANT(0x3fb8aa3b), rest));
    f32 exponent = f_from_i32(e), sum = f_add(exponent, product);
    rest = f_add(rest, f_add(f_sub(exponent, sum), product));
    f32 result = f_add(sum, rest);
    result = f_select(f_eq(a, F_CONSTANT(0x7f800000)), a, result);
    result = f_select(f_eq(a, F_CONSTANT(0x00000000)), F_CONSTANT(0xff800000), result);
    return f_select(f_ge(a, F_CONSTANT(0x00000000)), result, F_CONSTANT(0x7fc00000));
}

static FN f32 f_sigmoid(f32 a)
{
    return f_inv(f_add(F_CONSTANT(0x3f800000), f_exp(f_neg(a))));
}

/* a * sigmoid(a). */
static FN f32 f_silu(f32 a)
{
    return f_div(a, f_add(F_CONSTANT(0x3f800000), f_exp(f_neg(a))));
}

/* The same in fewer instructions, for the many of prefill: the integer part of the exponent by a
 * sum that rounds it into the low bits, and 1 / (1 + e^-a) by Newton from a guess made of the bits,
 * whose error of 12 % becomes 1.5 %, 2^-12, 2^-24. Beyond |a| = 80 the sigmoid stays what it is
 * there. */
static FN f32 f_silu_short(f32 a)
{
    f32 one = F_CONSTANT(0x3f800000), magic = F_CONSTANT(0x4b400000);
    f32 bounded = f_max(f_min(a, F_CONSTANT(0x42a00000)), F_CONSTANT(0xc2a00000));
    f32 shifted = f_fma(bounded, F_CONSTANT(0xbfb8aa3b), magic);
    f32 f = f_fma(bounded, F_CONSTANT(0xbfb8aa3b), f_sub(magic, shifted));
    f = f_fma(bounded, F_CONSTANT(0xb2a57060), f);
    f32 e = f_from_bits(f_bits(f_exp2_fraction(f)) + (f_bits(shifted) << 23));
    f32 x = f_neg(f_add(one, e)), r = f_from_bits(0xfef311c7u - f_bits(x));
    for (u32 i = 0; i < 3; i++)
        r = f_fma(r, f_fma(x, r, one), r);
    return f_mul(a, r);
}

/* ln(1 + e^a); above 20 it is a (the difference is below half a unit). With u = e^a,
 * w = RN(1 + u): ln(1 + u) = ln(w) * u / (w - 1), and u itself where w is 1. */
static FN f32 f_softplus(f32 a)
{
    f32 one = F_CONSTANT(0x3f800000), u = f_exp(f_min(a, F_CONSTANT(0x41a00000)));
    f32 w = f_add(one, u), over = f_sub(w, one);
    u32 is_tiny = f_eq(over, F_CONSTANT(0x00000000));
    f32 log = f_mul(f_log2(w), F_CONSTANT(0x3f317218));
    f32 result = f_mul(log, f_div(u, f_select(is_tiny, one, over)));
    result = f_select(is_tiny, u, result);
    return f_select(f_le(a, F_CONSTANT(0x41a00000)), result, a);
}

/* The rotary angle of a position as a part of a turn, in units of 2^-64: exact, because whole
 * turns fall out of the 64-bit product. frequency: base/rope.c. */
static FN u64 rope_turn(u32 position, u64 frequency)
{
    return (u64)position * frequency;
}

/* sin and cos of turn * 2^-64 turns. The nearest quarter turn comes off exactly; what is left is
 * y eighths of a turn, |y| <= 1, and sin and cos of y * pi/4 are polynomials in y^2 (minimax,
 * error 2^-38 and 2^-43). */
static FN void f_sincos_turn(u64 turn, f32 *sine, f32 *cosine)
{
    u64 quarter = (turn + ((u64)1 << 61)) >> 62;
    f32 y = f_mul(f_from_i64((i64)(turn - (quarter << 62))), F_CONSTANT(0x21000000));
    f32 z = f_mul(y, y);
    f32 s = F_CONSTANT(0x34a5e44c);
    s = f_fma(s, z, F_CONSTANT(0xb819654f));
    s = f_fma(s, z, F_CONSTANT(0x3b2335dd));
    s = f_fma(s, z, F_CONSTANT(0xbda55de7));
    s = f_mul(y, f_fma(s, z, F_CONSTANT(0x3f490fdb)));
    f32 c = F_CONSTANT(0xb2d08409);
    c = f_fma(c, z, F_CONSTANT(0x3670f42d));
    c = f_fma(c, z, F_CONSTANT(0xb9aae9de));
    c = f_fma(c, z, F_CONSTANT(0x3c81e0f8));
    c = f_fma(c, z, F_CONSTANT(0xbe9de9e6));
    c = f_fma(c, z, F_CONSTANT(0x3f800000));
    u32 swap = (u32)quarter & 1, negative_sine = (u32)quarter & 2;
    u32 negative_cosine = (u32)(quarter + 1) & 2;
    f32 first = f_select(swap, c, s), second = f_select(swap, s, c);
    *sine = f_select(negative_sine, f_neg(first), first);
    *cosine = f_select(negative_cosine, f_neg(second), second);
}
