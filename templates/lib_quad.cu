// Four Hadamard blocks of 128 in a warp: lanes 8j .. 8j+7 hold block j, and v[4i + e] of the lane
// whose place in these eight is `part` is element 32i + 4*part + e. The arithmetic and its order
// are those of a block in 32 lanes; but two of the five stages between lanes are inside one here,
// and four 16-byte loads of a lane are in flight at once. In scope: VALUES = 16, the
// values of a lane.
//
// Loads of a row that begins at `row`: elements from column `at` on, zeros from `end` on.
static FN void quad_load(const f32 *row, u32 at, u32 end, f32 v[${VALUES}])
{
    #pragma unroll
    for (u32 i = 0; i < 4; i++) {
        for (u32 e = 0; e < 4; e++)
            v[4 * i + e] = ${f32(0)};
        if (at + 32 * i < end)
            load4_f32(row + at + 32 * i, v + 4 * i);
    }
}

static FN void quad_hadamard(f32 v[${VALUES}])
{
    #pragma unroll
    for (u32 i = 0; i < 4; i++)
        warp_hadamard32(v + 4 * i);
    #pragma unroll
    for (u32 step = 4; step < ${VALUES}; step *= 2) {
        #pragma unroll
        for (u32 i = 0; i < ${VALUES}; i++) {
            if (!(i & step)) {
                const f32 lower = v[i], upper = v[i + step];
                v[i] = f_add(lower, upper);
                v[i + step] = f_sub(lower, upper);
            }
        }
    }
}

// The sum of squares of the lane's block: chains of four from zero, then a xor butterfly over the
// element's bits 6 .. 2, of which the first two lie inside the lane.
static FN f32 quad_squares(const f32 v[${VALUES}])
{
    f32 four[4];
    #pragma unroll
    for (u32 i = 0; i < 4; i++) {
        four[i] = ${f32(0)};
        for (u32 e = 0; e < 4; e++)
            four[i] = f_fma(v[4 * i + e], v[4 * i + e], four[i]);
    }
    f32 sum = f_add(f_add(four[0], four[2]), f_add(four[1], four[3]));
    #pragma unroll
    for (u32 mask = 4; mask > 0; mask /= 2)
        sum = f_add(sum, shuffle_xor_f32(sum, mask));
    return sum;
}

// v[i] *= the signs of the lane's elements, which begin at `signs`.
static FN void quad_signs(const h16 *signs, u32 inside, f32 v[${VALUES}])
{
    #pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 words[2] = {0, 0};
        if (inside)
            load2_u32((const u32 *)(signs + 32 * i), words);
        for (u32 e = 0; e < 4; e++) {
            const h16 sign = h_from_bits((u16)(words[e / 2] >> (e % 2) * 16));
            v[4 * i + e] = f_mul(v[4 * i + e], f_from_h(sign));
        }
    }
}

// 1 / sqrt(128) of a transform.
static FN void quad_scale(f32 v[${VALUES}])
{
    #pragma unroll
    for (u32 i = 0; i < ${VALUES}; i++)
        v[i] = f_mul(v[i], f_from_bits(0x3DB504F3u));
}

// Raw sums of a product -> the model's basis.
static FN void quad_restore(const h16 *svh, u32 inside, f32 v[${VALUES}])
{
    quad_hadamard(v);
    quad_scale(v);
    quad_signs(svh, inside, v);
}

// Values -> the f16 operand of a product.
static FN void quad_operand(f32 v[${VALUES}], const h16 *suh, u32 inside, h16 *out)
{
    quad_signs(suh, inside, v);
    quad_hadamard(v);
    quad_scale(v);
    #pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (inside)
            store4_h16(out + 32 * i, v + 4 * i);
}
