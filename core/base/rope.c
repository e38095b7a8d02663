/* rope.c - rotary frequencies in 128-bit fixed point.
 *
 * theta^(-2t/dims) / (2 pi) = 2^-(log2(theta) * 2t/dims) / (2 pi). A double's
 * logarithm would be off by more than a unit of the 64-bit result, and libm's
 * bits differ from machine to machine, so both functions are done here:
 *
 *   log2   one bit a step: square the mantissa, a result of 2 or more is a 1
 *   2^-f   the exponential series of -f ln 2 for 0 <= f < 1
 *
 * Fractions are u128 in units of 2^-128 ("of 1"); the mantissa of log2 is in
 * units of 2^-127 (so that [1, 2) fits).
 */
#include <assert.h>
#include <string.h>

#include "base/base.h"

typedef unsigned __int128 u128;

#define WIDE(high, low) ((u128)(high) << 64 | (low))
static const u128 ln_2 = WIDE(0xB17217F7D1CF79ABu, 0xC9E3B39803F2F6AFu);
static const u128 one_over_2_pi = WIDE(0x28BE60DB9391054Au, 0x7F09D5F47D4D3770u);
enum { LOG_BITS = 112, SERIES_TERMS = 40 };

/* High 128 bits of a product of two 128-bit numbers. */
static u128 multiply_high(u128 a, u128 b)
{
    u128 a0 = (u64)a, a1 = a >> 64, b0 = (u64)b, b1 = b >> 64;
    u128 middle = (a0 * b0 >> 64) + (u64)(a0 * b1) + (u64)(a1 * b0);
    return a1 * b1 + (a0 * b1 >> 64) + (a1 * b0 >> 64) + (middle >> 64);
}

/* log2 of a double >= 1 in units of 2^-112. */
static u128 log2_fixed(double value)
{
    u64 bits;
    memcpy(&bits, &value, sizeof bits);
    u128 result = (bits >> 52) - 1023;
    u128 mantissa = (u128)(bits << 11 | (u64)1 << 63) << 64;
    for (int i = 0; i < LOG_BITS; i++) {
        u128 square = multiply_high(mantissa, mantissa); /* units of 2^-126 */
        u32 digit = (u32)(square >> 127);
        mantissa = digit ? square : square << 1;
        result = result << 1 | digit;
    }
    return result;
}

/* 2^-f for a fraction f of 1 in (0, 1), as a fraction of 1. */
static u128 exp2_minus(u128 f)
{
    u128 x = multiply_high(f, ln_2), term = x, sum = ~(u128)0 - x;
    for (u32 n = 2; n < SERIES_TERMS; n++) {
        term = multiply_high(term, x) / n;
        sum = n % 2 ? sum - term : sum + term;
    }
    return sum;
}

u64 rope_frequency(double theta, u32 t, u32 dims)
{
    assert(theta >= 1 && 2 * t < dims);
    /* log2(theta) < 1024, so that 16 bits are left above 2^-112 units times 2t. */
    u128 exponent = log2_fixed(theta);
    u128 whole = (exponent >> LOG_BITS) * 2 * t, part = exponent << (128 - LOG_BITS);
    /* exponent * 2t / dims, the integer and the fraction of log2 apart. */
    u128 shift = whole / dims, rest = whole % dims;
    u128 low = part >> 32; /* units of 2^-96: times 2t does not overflow */
    u128 scaled = (rest << 96) + low * 2 * t;
    shift += scaled / dims >> 96;
    u128 fraction = scaled / dims << 32;
    u128 power = fraction ? exp2_minus(fraction) : ~(u128)0;
    u128 turns = multiply_high(power, one_over_2_pi);
    if (shift >= 64)
        return 0;
    turns >>= shift;
    return (u64)(turns >> 64) + (u64)((u64)turns >> 63);
}
