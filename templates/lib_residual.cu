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
    f32 sum = ${f32(0)};
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
