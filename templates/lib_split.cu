// An f32 as the sum of two halves, high and low, for products on tensor cores: x y is taken as
// high high + high low + low high, and what is left out is 2^-22 of it. The factors are brought
// near 2^14 by a power of two first, so that the low halves of all that counts are normal numbers.
static FN void split2(f32 a, f32 b, u32 *high, u32 *low)
{
    const h16 first = h_from_f(a), second = h_from_f(b);
    *high = (u32)h_bits(first) | (u32)h_bits(second) << 16;
    *low = pack_halves(f_sub(a, f_from_h(first)), f_sub(b, f_from_h(second)));
}

// The bits of |x|, ordered as the numbers are.
static FN u32 size_of(f32 x) { return f_bits(x) & 0x7fffffffu; }

static FN u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// The largest of the four lanes that share a row of a fragment.
static FN u32 top_of_row(u32 top)
{
    top = larger(top, shuffle_xor_u32(top, 1));
    return larger(top, shuffle_xor_u32(top, 2));
}

// up: the power of two that brings `top` to 2^14 .. 2^15; down: what takes up * 2^14 off again.
static FN void lift(u32 top, f32 *up, f32 *down)
{
    const i32 exponent = (i32)(top >> 23);
    const i32 shift = exponent < 41 ? 100 : 141 - exponent;
    *up = f_pow2(shift);
    *down = f_pow2(-14 - shift);
}

// The three products of one fragment of rows with `count` fragments of columns, the large one and
// the two small ones apart: tensor cores cut off what they add, and so each cuts its own size only.
static FN void multiply_split(u32 count, f32 *sums, f32 *rest, const u32 *high, const u32 *low,
                              const u32 *right, const u32 *faint)
{
    mma_f16_ab(1, count, sums, high, right);
    mma_f16_ab(1, count, rest, low, right);
    mma_f16_ab(1, count, rest, high, faint);
}
