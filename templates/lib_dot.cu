// One output of an unquantised linear, by a warp, fp32 in one fixed order: lane l adds the products
// of elements 128 c + 4 l + {0..3}, c ascending, by fma into one accumulator; a xor butterfly adds
// the lanes. In scope: k, chunks, BLOCK, ctype, convert, mode (norm: of the source times scale
// times weight), dot_norm.
static FN f32 dot_row(const f32 *source, f32 scale, const f32 *weight, const ${ctype} *from,
                      u32 lane)
{
    f32 sum = ${f32(0)};
    for (u32 chunk = 0; chunk < ${chunks}; chunk++) {
        const u32 at = chunk * ${BLOCK} + lane * 4;
        if (at < ${k}) {
            //@ for i = 0, 3 do
            //@ if dot_norm then
            sum = f_fma(f_mul(f_mul(source[at + ${i}], scale), weight[at + ${i}]),
                        ${convert}(from[at + ${i}]), sum);
            //@ else
            sum = f_fma(source[at + ${i}], ${convert}(from[at + ${i}]), sum);
            //@ end
            //@ end
        }
    }
    return warp_sum_f32(sum);
}
