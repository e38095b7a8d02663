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
