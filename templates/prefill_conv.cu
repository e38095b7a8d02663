//@ -- see schedules/prefill_conv.lua
//@ include("lib_vector")
// Four channels of one row: taps in ascending order, then SiLU. input: the oldest of the rows.
static FN void convolve(const f32 *input, const f32 w[4][${taps}], f32 c[4])
{
    f32 sum[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
    #pragma unroll
    for (u32 tap = 0; tap < ${taps}; tap++) {
        #pragma unroll
        for (u32 i = 0; i < 4; i++)
            sum[i] = f_fma(w[i][tap], input[tap * 4 + i], sum[i]);
    }
    #pragma unroll
    for (u32 i = 0; i < 4; i++)
        c[i] = f_silu_short(sum[i]);
}

KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 channel = head * ${BLOCK} + lane * 4, first = tile * ${height};
        f32 w[4][${taps}], input[${4 * (height + history)}];
        #pragma unroll
        for (u32 i = 0; i < ${height + history}; i++) {
            const u32 from = first + i; // counted from the oldest row of the window
            f32 *four = input + i * 4;
            if (from < ${history})
                load4_f32(window + from * ${channels} + channel, four);
            else if (from < rows + ${history})
                load4_f32(u + (u64)(from - ${history}) * ${channels} + channel, four);
            else
                four[0] = four[1] = four[2] = four[3] = ${f32(0)};
        }
        #pragma unroll
        for (u32 i = 0; i < 4; i++)
            load4_f32(weight + (channel + i) * ${taps}, w[i]);
        f32 *target = v + ((u64)first * ${v_heads} + (head - ${2 * k_heads})) * ${BLOCK};
        u32 stride = ${v_heads * BLOCK};
        if (head < ${2 * k_heads}) {
            f32 *to = head < ${k_heads} ? q : k;
            target = to + ((u64)first * ${k_heads} + head % ${k_heads}) * ${BLOCK};
            stride = ${k_heads * BLOCK};
        }
        #pragma unroll
        for (u32 i = 0; i < ${height}; i++) {
            f32 c[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
            if (first + i < rows) {
                convolve(input + i * 4, w, c);
                if (head < ${2 * k_heads}) {
                    f32 square = ${f32(0)};
                    #pragma unroll
                    for (u32 j = 0; j < 4; j++)
                        square = f_fma(c[j], c[j], square);
                    const f32 scale = f_rsqrt(f_add(warp_sum_f32(square), ${f32(1e-6)}));
                    #pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        c[j] = f_mul(c[j], scale);
                        if (head < ${k_heads})
                            c[j] = f_mul(c[j], ${f32(BLOCK ^ -0.5)});
                    }
                }
            }
            store4_f32(target + i * stride + lane * 4, c);
        }
    ${jobs.close}
}
