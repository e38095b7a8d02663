// The two ends of an exact decode linear (design.md 4.1), as linear_input, linear_output and
// linear_middle use them. In scope: codebook, back, row_limit of the linear whose sums are read;
// out_blocks, act_words of the linear whose activations are made.
//@ if back then
// Four columns of a row: integer sums -> values before svh. scales: what linear_main left of the
// row, its largest exponent and Q. Clears the sums.
static FN void take_sums(u64 *sum, const u64 *scales, f32 v[4])
{
    const u64 q = scales[1];
    const f32 scale = f_pow2((i32)scales[0] - ${back});
    for (u32 i = 0; i < 4; i++) {
        //@ if codebook == "mul1" then
        v[i] = f_mul(f_fma(${f32(887 / 131072)}, f_from_i64((i64)(sum[i] - 510 * q)),
                           f_neg(f_mul(${f32(119 / 65536)}, f_from_i64((i64)q)))), scale);
        //@ else
        v[i] = f_mul(f_from_i64((i64)sum[i]), scale);
        //@ end
        sum[i] = 0;
    }
    warp_hadamard128(v);
}
//@ end

//@ if out_blocks then
// A block of 128 values of a row, four a lane -> Hadamard, exponent, byte planes, sum.
static FN void make_block(f32 v[4], const h16 *suh, u32 part, u32 row, u32 chunk, u32 lane,
                          u32 *act, i32 *exponents, i32 *sums, u32 *bad)
{
    for (u32 i = 0; i < 4; i++)
        v[i] = f_mul(v[i], f_from_h(suh[i]));
    warp_hadamard128(v);
    u32 top = 0;
    for (u32 i = 0; i < 4; i++) {
        const u32 magnitude = f_bits(f_abs(v[i]));
        top = magnitude > top ? magnitude : top;
    }
    top = warp_max_u32(top);
    i32 exponent = -64;
    i32 digit[4] = {0, 0, 0, 0};
    if (top >= 0x7f800000u) {
        if (lane == 0)
            atomic_or_u32(bad + row, 1);
    } else {
        const i32 magnitude = (i32)(top >> 23) - 127 - 14;
        exponent = magnitude < -64 ? -64 : magnitude;
        if (f_to_i32_rn(f_mul(f_from_bits(top), f_pow2(-exponent))) > 32639)
            exponent++;
        const f32 scale = f_pow2(-exponent);
        for (u32 i = 0; i < 4; i++)
            digit[i] = f_to_i32_rn(f_mul(v[i], scale));
    }
    const i32 sum = warp_sum_i32(digit[0] + digit[1] + digit[2] + digit[3]);
    if (lane == 0) {
        exponents[(part * ${row_limit} + row) * ${out_blocks} + chunk] = exponent;
        sums[(part * ${row_limit} + row) * ${out_blocks} + chunk] = sum;
    }
    // Element 4*lane + j is k = 4*(lane%4) + j of k-tile lane/4; fragment lane row*4 + (k%8)/2,
    // bytes (k%2) + 2*(k/8): two neighbours are one half word.
    const u32 first = (lane % 4) * 4;
    const u32 word = part * ${act_words} +
                     ((chunk * 8 + lane / 4) * 32 + row * 4 + (first % 8) / 2) * 2;
    u16 *halves = (u16 *)(act + word) + first / 8;
    for (u32 pair = 0; pair < 2; pair++) {
        const i32 a = digit[2 * pair], b = digit[2 * pair + 1];
        const i32 al = (i32)(i8)a, bl = (i32)(i8)b;
        const u32 ah = (u32)((a - al) >> 8), bh = (u32)((b - bl) >> 8);
        halves[4 * pair] = (u16)((ah & 255) | (bh & 255) << 8);
        halves[4 * pair + 2] = (u16)(((u32)al & 255) | ((u32)bl & 255) << 8);
    }
}
//@ end
