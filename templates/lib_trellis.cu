//@ -- Windows of an EXL3 tile and the values of their codebook (spec exl3.md 2.2-2.5). In scope:
//@ -- bits, codebook, extract, trellis_words, shift_one (schedules/lib_trellis.lua). A lane needs
//@ -- the 16 + 7*bits stream bits that end at bit 8*bits*(lane+1): they lie in `trellis_words`
//@ -- consecutive words (a ring of 8*bits), big-endian inside each, from bit `shift` on.
//@ local needed = (16 + 7 * bits + 31) // 32
// Index of the lane's word q in its tile.
static FN u32 trellis_word(u32 lane, u32 q)
{
    const u32 first = (${8 * bits} * lane + ${256 * bits + bits - 16}) % ${256 * bits} / 32;
    return (first + q) % ${8 * bits};
}

// w: the lane's words; window[j]: the 16-bit state of position 8*lane + j.
static FN void trellis_windows(const u32 w[${trellis_words}], u32 lane, u32 window[8])
{
    //@ for q = 0, trellis_words - 1 do
    const u32 w${q} = w[${q}];
    //@ end
    //@ if extract == "bytes" then
    // bits = 4: w0:w1 hold the windows from bit 20 on; byte permutes do most of the extraction.
    const u32 u = funnel_right(w0, w1, 4), s = funnel_right(w0, w1, 20);
    const u32 t = funnel_right(w0, w1, 24);
    window[0] = byte_permute(s, 0, 0x4421);
    window[1] = byte_permute(t, 0, 0x4410);
    window[2] = byte_permute(u, 0, 0x4432);
    window[3] = byte_permute(w1, 0, 0x4432);
    window[4] = byte_permute(u, 0, 0x4421);
    window[5] = byte_permute(w1, 0, 0x4421);
    window[6] = byte_permute(u, 0, 0x4410);
    window[7] = byte_permute(w1, 0, 0x4410);
    //@ else
    //@ if shift_one then
    const u32 shift = ${shift_one};
    //@ else
    const u32 shift = (${8 * bits} * lane + ${256 * bits + bits - 16}) % ${256 * bits} % 32;
    //@ end
    //@ for q = 0, needed - 1 do
    //@ if q + 1 < trellis_words then
    const u32 v${q} = funnel_left(w${q}, w${q + 1}, shift);
    //@ else
    const u32 v${q} = w${q} << shift;
    //@ end
    //@ end
    //@ for j = 0, 7 do
    //@ local at, offset = j * bits // 32, j * bits % 32
    //@ if offset + 16 <= 32 then
    window[${j}] = (v${at} >> ${16 - offset}) & 0xffff;
    //@ else
    window[${j}] = funnel_left(v${at}, v${at + 1}, ${offset}) >> 16;
    //@ end
    //@ end
    //@ end
}

//@ if codebook == "mul1" then
// The mul1 product; the weight is affine in the sum of its bytes.
static FN u32 trellis_product(u32 state)
{
    return state * 0x83DCD12Du;
}
//@ else
// The codebook's value, an fp16 sum, times 2^13: an integer v below 2^15 in magnitude, as the bytes
// (vl, vh) of v = 256 vh + vl, both signed.
static FN u32 trellis_product(u32 state)
{
    //@ if codebook == "3inst" then
    u32 x = state * 89226354u + 64248484u;
    //@ else
    u32 x = state * 0xCBAC1FEDu;
    //@ end
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    const h16 value = h_add(h_from_bits((u16)(x & 0xffff)), h_from_bits((u16)(x >> 16)));
    const u32 v = (u32)f_to_i32_rn(f_mul(f_from_h(value), f_from_bits(0x46000000u)));
    return ((v + 128) & 0xff00u) | (v & 255);
}
//@ end
