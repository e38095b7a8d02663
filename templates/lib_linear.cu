// The two ends of an exact decode linear (design.md 4.1), as linear_input, linear_output and the
// kernels that stand for these use them. In scope: codebook, back, row_limit of the linear whose
// sums are read; out_blocks, act_words of the linear whose activations are made.
//
// Their jobs are loaded before it is known how many rows there are: where strided jobs lie does not
// depend on that, the buffers have all rows, and idle rows have no writer. Of a job that turns out
// not to be one nothing is used. Contiguous jobs wait.
//@ early = map == "strided"
//@ function exists(item, row) -- whether a job may be loaded
//@     return early and row .. " < " .. row_limit .. "u" or item .. " < count"
//@ end
// Four neighbours of suh or svh.
static FN void load_signs(const h16 *from, u32 signs[2])
{
    load2_u32((const u32 *)from, signs);
}

static FN f32 sign_of(const u32 signs[2], u32 i)
{
    return f_from_h(h_from_bits((u16)(signs[i / 2] >> 16 * (i % 2))));
}

//@ if back then
// Four columns of a row as linear_main left them, and the row's largest exponent and Q, as words.
// Before wait_previous() too, where the launch before is not that linear_main.
static FN void load_sums(const u64 *sum, const u64 *scales, u32 words[8], u32 scale_words[4])
{
    load4_fresh_u32((const u32 *)sum, words);
    load4_fresh_u32((const u32 *)sum + 4, words + 4);
    load4_fresh_u32((const u32 *)scales, scale_words);
}

static FN void clear_sums(u64 *sum)
{
    const u32 zeros[4] = {0, 0, 0, 0};
    store4_u32((u32 *)sum, zeros);
    store4_u32((u32 *)sum + 4, zeros);
}

// Integer sums -> values before svh.
static FN void take_sums(const u32 words[8], const u32 scale_words[4], f32 v[4])
{
    const f32 scale = f_pow2((i32)scale_words[0] - ${back});
    //@ if codebook == "mul1" then
    const u64 q = (u64)scale_words[3] << 32 | scale_words[2];
    const f32 offset = f_neg(f_mul(${f32(119 / 65536)}, f_from_i64((i64)q)));
    //@ end
    for (u32 i = 0; i < 4; i++) {
        const u64 sum = (u64)words[2 * i + 1] << 32 | words[2 * i];
        //@ if codebook == "mul1" then
        v[i] = f_mul(f_fma(${f32(887 / 131072)}, f_from_i64((i64)(sum - 510 * q)), offset), scale);
        //@ else
        v[i] = f_mul(f_from_i64((i64)sum), scale);
        //@ end
    }
    warp_hadamard128(v);
}

// Integer sums -> values. Returns whether all four are finite.
static FN u32 take_values(const u32 words[8], const u32 scale_words[4], const u32 svh[2], f32 v[4])
{
    take_sums(words, scale_words, v);
    u32 finite = 1;
    for (u32 i = 0; i < 4; i++) {
        v[i] = f_mul(v[i], sign_of(svh, i));
        finite &= f_is_finite(v[i]);
    }
    return finite;
}
//@ end

//@ if out_blocks then
// A block of 128 values of a row, four a lane -> Hadamard, exponent, byte planes, sum.
static FN void make_block(f32 v[4], const u32 suh[2], u32 part, u32 row, u32 chunk, u32 lane,
                          u32 *act, i32 *exponents, i32 *sums, u32 *bad)
{
    for (u32 i = 0; i < 4; i++)
        v[i] = f_mul(v[i], sign_of(suh, i));
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
    // bytes (k%2) + 2*(k/8): two neighbours are a half of a word of h and of one of l. The other
    // halves are those of the lane with k of the other eight, so the two lanes swap a pair.
    u32 pairs[2]; // h of two neighbours, l of them
    for (u32 pair = 0; pair < 2; pair++) {
        const u32 a = (u32)digit[2 * pair], b = (u32)digit[2 * pair + 1];
        const u32 low = byte_permute(a, b, 0x0040);
        const u32 high = byte_permute(a + 128, b + 128, 0x0051); // (i - l) / 256
        pairs[pair] = byte_permute(high, low, 0x5410);
    }
    const u32 upper = lane / 2 % 2; // k%16 of 8 or more
    const u32 other = shuffle_xor_u32(upper ? pairs[0] : pairs[1], 2);
    const u32 first = upper ? other : pairs[0], second = upper ? pairs[1] : other;
    const u32 planes[2] = {byte_permute(first, second, 0x5410),
                           byte_permute(first, second, 0x7632)};
    const u32 fragment = row * 4 + lane % 2 * 2 + upper;
    store2_u32(act + part * ${act_words} + ((chunk * 8 + lane / 4) * 32 + fragment) * 2, planes);
}
//@ end
