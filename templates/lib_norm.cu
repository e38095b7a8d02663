// The scale of an RMSNorm from partial sums of squares, one for each 128 elements: partials are
// added in ascending order from zero, so that no tuning and no producer shows in the bits.
static FN f32 norm_scale(const f32 *partial, u32 chunks, u32 width, f32 eps, u32 lane)
{
    f32 sum = f_from_bits(0);
    for (u32 base = 0; base < chunks; base += 32) {
        const f32 mine = base + lane < chunks ? partial[base + lane] : f_from_bits(0);
        const u32 count = chunks - base < 32 ? chunks - base : 32;
        for (u32 i = 0; i < count; i++)
            sum = f_add(sum, shuffle_f32(mine, i));
    }
    return f_rsqrt(f_add(f_div(sum, f_from_u32(width)), eps));
}
