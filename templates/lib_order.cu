// f32 -> u32 of the same order, and back: -0 counts as 0, NaN is 0 and comes below -infinity.
//@ LOWEST_ORDER = "0x00800000u" -- of -infinity
//@ MINUS_INFINITY = "f_from_bits(0xff800000u)"
static FN u32 order_of(f32 x)
{
    const u32 bits = f_bits(x), size = bits & 0x7fffffffu;
    const u32 order = bits >> 31 ? 0x80000000u - size : 0x80000000u + size;
    return size > 0x7f800000u ? 0 : order;
}

// order: not 0.
static FN f32 value_of(u32 order)
{
    return f_from_bits(order > 0x7fffffffu ? order - 0x80000000u : 0x00000000u - order);
}
