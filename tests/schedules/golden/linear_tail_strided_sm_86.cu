// The scale of an RMSNorm from partial sums of squares, one for each 128 elements: partials are
// added in ascending order from zero, so that no tuning and no producer shows in the bits. Every
// lane adds them all, from loads that do not wait for each other.
static FN f32 norm_scale(const f32 *partial, u32 chunks, u32 width, f32 eps)
{
    f32 sum = f_from_bits(0);
    if (chunks % 4 == 0) {
        for (u32 base = 0; base < chunks; base += 4) {
            u32 words[4];
            load4_u32((const u32 *)partial + base, words);
            for (u32 i = 0; i < 4; i++)
                sum = f_add(sum, f_from_bits(words[i]));
        }
    } else {
        for (u32 i = 0; i < chunks; i++)
            sum = f_add(sum, partial[i]);
    }
    return f_rsqrt(f_add(f_div(sum, f_from_u32(width)), eps));
}

// Four values of a row times its scale and the norm's weight.
static FN void norm_values(f32 v[4], f32 scale, const f32 weight[4])
{
    for (u32 i = 0; i < 4; i++)
        v[i] = f_mul(f_mul(v[i], scale), weight[i]);
}

// GDN outputs of one head of 128, four a lane: w * (o * rsqrt(mean o^2 + eps)) * silu(z).
static FN void norm_gate(f32 o[4], const f32 w[4], const f32 z[4], f32 eps)
{
    f32 square = f_from_bits(0);
    for (u32 i = 0; i < 4; i++)
        square = f_fma(o[i], o[i], square);
    square = warp_sum_f32(square);
    const f32 scale = f_rsqrt(f_add(f_mul(square, f_from_bits(0x3c000000)), eps)); // 1/128
    for (u32 i = 0; i < 4; i++)
        o[i] = f_mul(f_mul(f_mul(o[i], scale), w[i]), f_silu(z[i]));
}
// The two ends of an exact decode linear (design.md 4.1), as linear_input, linear_output and the
// kernels that stand for these use them. In scope: codebook, back, row_limit of the linear whose
// sums are read; out_blocks, act_words of the linear whose activations are made.
//
// Their jobs are loaded before it is known how many rows there are: where strided jobs lie does not
// depend on that, the buffers have all rows, and idle rows have no writer. Of a job that turns out
// not to be one nothing is used. Contiguous jobs wait.
// Four neighbours of suh or svh.
static FN void load_signs(const h16 *from, u32 signs[2])
{
    load2_u32((const u32 *)from, signs);
}

static FN f32 sign_of(const u32 signs[2], u32 i)
{
    return f_from_h(h_from_bits((u16)(signs[i / 2] >> 16 * (i % 2))));
}

// Four columns of a row as linear_main left them, and the row's largest exponent and Q, as words.
static FN void load_sums(const u64 *sum, const u64 *scales, u32 words[8], u32 scale_words[4])
{
    load4_u32((const u32 *)sum, words);
    load4_u32((const u32 *)sum + 4, words + 4);
    load4_u32((const u32 *)scales, scale_words);
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
    const f32 scale = f_pow2((i32)scale_words[0] - 29);
    const u64 q = (u64)scale_words[3] << 32 | scale_words[2];
    const f32 offset = f_neg(f_mul(f_from_bits(0x3aee0000u), f_from_i64((i64)q)));
    for (u32 i = 0; i < 4; i++) {
        const u64 sum = (u64)words[2 * i + 1] << 32 | words[2 * i];
        v[i] = f_mul(f_fma(f_from_bits(0x3bddc000u), f_from_i64((i64)(sum - 510 * q)), offset), scale);
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
        exponents[(part * 8 + row) * 2 + chunk] = exponent;
        sums[(part * 8 + row) * 2 + chunk] = sum;
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
    store2_u32(act + part * 1024 + ((chunk * 8 + lane / 4) * 32 + fragment) * 2, planes);
}
// Four f32 as one 16-byte access, and two halves in a word. Pointers are aligned to what is moved.
static FN void load4_f32(const f32 *from, f32 v[4])
{
    u32 words[4];
    load4_u32((const u32 *)from, words);
    for (u32 i = 0; i < 4; i++)
        v[i] = f_from_bits(words[i]);
}

static FN void store4_f32(f32 *to, const f32 v[4])
{
    const u32 words[4] = {f_bits(v[0]), f_bits(v[1]), f_bits(v[2]), f_bits(v[3])};
    store4_u32((u32 *)to, words);
}

static FN u32 pack_halves(f32 low, f32 high)
{
    return (u32)h_bits(h_from_f(low)) | (u32)h_bits(h_from_f(high)) << 16;
}

static FN void store4_h16(h16 *to, const f32 v[4])
{
    const u32 words[2] = {pack_halves(v[0], v[1]), pack_halves(v[2], v[3])};
    store2_u32((u32 *)to, words);
}
// What an exact linear adds to the residual stream, as linear_output and linear_tail do it. Behind
// lib_linear (with sums) and lib_vector.

// Adds a block of 128 columns of a row to the stream, four a lane. before, v: the stream's values
// without and with it; x: where they lie; square: where the block's sum of squares goes, for the
// norm that reads the stream (design.md 4.2); bad: the row's flag.
static FN void add_block(const u32 words[8], const u32 scale_words[4], const u32 svh[2],
                         const f32 before[4], u32 lane, f32 *x, f32 *square, u32 *bad, f32 v[4])
{
    take_sums(words, scale_words, v);
    u32 finite = 1;
    f32 sum = f_from_bits(0x00000000u);
    for (u32 k = 0; k < 4; k++) {
        v[k] = f_add(before[k], f_mul(v[k], sign_of(svh, k)));
        sum = f_fma(v[k], v[k], sum);
        finite &= f_is_finite(v[k]);
    }
    store4_f32(x, v);
    sum = warp_sum_f32(sum);
    if (lane == 0)
        *square = sum;
    if (!finite)
        atomic_or_u32(bad, 1);
}
extern "C" __global__ void __launch_bounds__(128, 2) elpis_linear_tail(
    u64 *sums, /* [8, k] of the linear, read and cleared */
    const u64 *scales, /* [8, 2] largest exponent, Q */
    const h16 * const *svh, /* [1] -> [k] */
    f32 *x, /* [rows, k] the residual stream */
    f32 *squares, /* [8, blocks] partial sums of x^2 */
    const f32 *weight, /* [k] of the norm (1 + w ready) */
    const h16 * const *suh, /* [parts] -> [k] of the next linears */
    u32 *act, /* [parts, k/16, 32, 2] */
    i32 *exponents, /* [parts, 8, blocks] */
    i32 *digits, /* [parts, 8, blocks] */
    u32 *bad, /* [8] sticky flags */
    const u32 *round, /* [0] = active rows */
    u32 *barrier) /* [1] zero before the first launch */
{
    start_next();
    const u32 lane = lane_id();
    const h16 *sign_out = svh[0] + lane * 4;
    u32 signs[2];
    f32 factor[4];
    const h16 *sign_in_0 = suh[0] + lane * 4;
    u32 signs_0[2];
    const h16 *sign_in_1 = suh[1] + lane * 4;
    u32 signs_1[2];
    {
        const u32 next_outputs_x = (cta_id() * 4 + warp_id()) + 0 * 16;
        const u32 next_row = next_outputs_x / 2;
        const u32 next_chunk = next_outputs_x % 2;
        load_signs(sign_out + next_chunk * 128, signs);
        load4_f32(weight + next_chunk * 128 + lane * 4, factor);
        load_signs(sign_in_0 + next_chunk * 128, signs_0);
        load_signs(sign_in_1 + next_chunk * 128, signs_1);
    }
    wait_previous();
    const u32 rows = round[0];
    f32 v[4];
    const u32 count = ((rows * 2 + 16 - 1 - (cta_id() * 4 + warp_id())) / 16);
    for (u32 i = 0;; i++) {
        const u32 next_outputs_x = (cta_id() * 4 + warp_id()) + i * 16;
        const u32 next_row = next_outputs_x / 2;
        const u32 next_chunk = next_outputs_x % 2;
        const u32 row = next_row, chunk = next_chunk;
        const u32 at = row * 256 + chunk * 128 + lane * 4;
        u32 words[8], scale_words[4];
        f32 before[4];
        if (row < 8u) {
            load_sums(sums + at, scales + row * 2, words, scale_words);
            load4_f32(x + at, before);
            if (i > 0) {
        load_signs(sign_out + next_chunk * 128, signs);
        load4_f32(weight + next_chunk * 128 + lane * 4, factor);
        load_signs(sign_in_0 + next_chunk * 128, signs_0);
        load_signs(sign_in_1 + next_chunk * 128, signs_1);
            }
        }
        if (i >= count)
            break;
        clear_sums(sums + at);
        add_block(words, scale_words, signs, before, lane, x + at,
                  squares + row * 2 + chunk, bad + row, v);
    }
    grid_sync(barrier, 4);
    const u32 input_count = ((rows * 2 + 16 - 1 - (cta_id() * 4 + warp_id())) / 16);
    for (u32 i = 0; i < input_count; i++) {
        const u32 inputs_x = (cta_id() * 4 + warp_id()) + i * 16;
        const u32 row = inputs_x / 2;
        const u32 chunk = inputs_x % 2;
        norm_values(v, norm_scale(squares + row * 2, 2, 256,
                                  f_from_bits(897988541u)), factor);
        {
            f32 own[4] = {v[0], v[1], v[2], v[3]};
            make_block(own, signs_0, 0, row, chunk, lane, act, exponents, digits, bad);
        }
        {
            f32 own[4] = {v[0], v[1], v[2], v[3]};
            make_block(own, signs_1, 1, row, chunk, lane, act, exponents, digits, bad);
        }
    }
}
