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
