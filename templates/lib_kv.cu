// One head of one row, held by a warp: lane l has elements 4l .. 4l+3 of each half of 128 in
// v[4 * half ..]. In scope: head_dim, rotary_dims, kv_bits (2..8, or 16: halves, not coded), eps.
//@ local HALF = 128
//@ local halves = head_dim // HALF
//@ local turned = rotary_dims // 8      -- lanes that hold one side of the rotary pairs
// v = (v * rsqrt(mean v^2 + eps)) * weight; weight: f32 [head_dim], 1 + w made by the caller. The
// sum: a lane adds its four by fma from zero, warp_sum_f32 joins a half, halves add in order.
static FN void norm_head(f32 v[${4 * halves}], const f32 *weight, u32 lane)
{
    f32 sum = ${f32(0)};
    for (u32 half = 0; half < ${halves}; half++) {
        f32 part = ${f32(0)};
        for (u32 i = 0; i < 4; i++)
            part = f_fma(v[half * 4 + i], v[half * 4 + i], part);
        sum = f_add(sum, warp_sum_f32(part));
    }
    const f32 scale = f_rsqrt(f_add(f_div(sum, ${f32(head_dim)}), f_from_bits(${eps}u)));
    for (u32 half = 0; half < ${halves}; half++)
        for (u32 i = 0; i < 4; i++) {
            const f32 w = weight[half * ${HALF} + lane * 4 + i];
            v[half * 4 + i] = f_mul(f_mul(v[half * 4 + i], scale), w);
        }
}

// Turns the pairs (t, t + rotary_dims/2) of the first rotary_dims elements by position *
// frequencies[t] (spec qwen3_5.md 3.2); frequencies: u64 [rotary_dims/2], fractions of a turn.
// a cos - b sin = fma(a, cos, -(b sin)), b cos + a sin = fma(b, cos, a sin).
static FN void rope_head(f32 v[${4 * halves}], u32 position, const u64 *frequencies, u32 lane)
{
    f32 other[4];
    for (u32 i = 0; i < 4; i++)
        other[i] = shuffle_xor_f32(v[i], ${turned});
    if (lane < ${2 * turned}) {
        for (u32 i = 0; i < 4; i++) {
            f32 sine, cosine;
            const u64 turn = rope_turn(position, frequencies[lane % ${turned} * 4 + i]);
            f_sincos_turn(turn, &sine, &cosine);
            const f32 cross = f_mul(other[i], sine);
            v[i] = f_fma(v[i], cosine, lane < ${turned} ? f_neg(cross) : cross);
        }
    }
}

// H32 / sqrt(32) on every group of 32: the basis of the coded cache.
static FN void rotate_head(f32 v[${4 * halves}])
{
    for (u32 half = 0; half < ${halves}; half++) {
        warp_hadamard32(v + half * 4);
        for (u32 i = 0; i < 4; i++)
            v[half * 4 + i] = f_mul(v[half * 4 + i], f_from_bits(0x3E3504F3u));
    }
}

//@ if kv_bits < 16 then
// Codes of a lane's four values of a group -> their bit planes (spec exl3.md 5.3): lanes that share
// a word join their bits, the first of them stores it. words: the group's ${kv_bits} words.
static FN void store_planes(const u32 code[4], u32 *words, u32 lane)
{
    const u32 place = lane % 8;
    //@ local word, rest = 0, kv_bits
    //@ for _, width in ipairs { 8, 4, 2, 1 } do
    //@ if kv_bits & width ~= 0 then
    //@ rest = rest - width
    {
        u32 plane = 0;
        for (u32 i = 0; i < 4; i++)
            plane |= ((code[i] >> ${rest}) & ${(1 << width) - 1}) << i * ${width};
        //@ if width < 8 then
        plane <<= place % ${8 // width} * ${4 * width};
        //@ end
        //@ local mask = 1
        //@ while mask < 8 // width do
        plane |= shuffle_xor_u32(plane, ${mask});
        //@ mask = mask * 2
        //@ end
        if (place % ${8 // width} == 0)
            words[${word} + place / ${8 // width}] = plane;
    }
    //@ word = word + width
    //@ end
    //@ end
}

// Codes one head (spec exl3.md 5.2). The values are rounded to f16, rotated, and coded on a
// midpoint grid of 2^bits steps over each group's largest magnitude. codes: u32 [head_dim/32, bits]
// and scales: h16 [head_dim/32] of this slot and head. A scale that is not finite becomes infinity.
static FN void quantise_head(const f32 v[${4 * halves}], u32 *codes, h16 *scales, u32 lane)
{
    f32 turned[${4 * halves}];
    for (u32 i = 0; i < ${4 * halves}; i++)
        turned[i] = f_from_h(h_from_f(v[i]));
    rotate_head(turned);
    for (u32 half = 0; half < ${halves}; half++) {
        const f32 *t = turned + half * 4;
        f32 top = ${f32(0)};
        for (u32 i = 0; i < 4; i++)
            top = f_max(top, f_add(f_abs(t[i]), ${f32(1e-10)}));
        for (u32 mask = 1; mask < 8; mask *= 2)
            top = f_max(top, shuffle_xor_f32(top, mask));
        top = f_select(f_is_finite(top), top, f_from_bits(0x7f800000u));
        const f32 inverse = f_div(${f32(1)}, top);
        u32 code[4];
        for (u32 i = 0; i < 4; i++) {
            const f32 share = f_mul(t[i], inverse), middle = ${f32(1 << (kv_bits - 1))};
            const f32 level = f_floor(f_fma(share, middle, middle));
            const f32 inside = f_min(f_max(level, ${f32(0)}), ${f32((1 << kv_bits) - 1)});
            code[i] = (u32)f_to_i32_rn(inside);
        }
        const u32 group = half * 4 + lane / 8;
        store_planes(code, codes + group * ${kv_bits}, lane);
        if (lane % 8 == 0)
            scales[group] = h_from_f(top);
    }
}
//@ end
