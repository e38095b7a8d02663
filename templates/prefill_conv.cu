//@ -- see schedules/prefill_conv.lua
//@ include("lib_vector")
// Four channels of one row: taps in ascending order, then SiLU.
static FN void convolve(const f32 *u, const f32 *weight, const f32 *window, u32 row, u32 channel,
                        f32 c[4])
{
    f32 sum[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}}, w[4][${taps}];
    for (u32 i = 0; i < 4; i++)
        load4_f32(weight + (channel + i) * ${taps}, w[i]);
    for (u32 tap = 0; tap < ${taps}; tap++) {
        const u32 from = row + tap; // counted from the oldest row of the window
        const f32 *source = from < ${history} ? window + from * ${channels}
                                              : u + (u64)(from - ${history}) * ${channels};
        f32 input[4];
        load4_f32(source + channel, input);
        for (u32 i = 0; i < 4; i++)
            sum[i] = f_fma(w[i][tap], input[i], sum[i]);
    }
    for (u32 i = 0; i < 4; i++)
        c[i] = f_silu(sum[i]);
}

KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        f32 c[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
        if (row < rows) {
            convolve(u, weight, window, row, head * ${BLOCK} + lane * 4, c);
            if (head < ${2 * k_heads}) {
                f32 square = ${f32(0)};
                for (u32 i = 0; i < 4; i++)
                    square = f_fma(c[i], c[i], square);
                const f32 scale = f_rsqrt(f_add(warp_sum_f32(square), ${f32(1e-6)}));
                for (u32 i = 0; i < 4; i++) {
                    c[i] = f_mul(c[i], scale);
                    if (head < ${k_heads})
                        c[i] = f_mul(c[i], ${f32(BLOCK ^ -0.5)});
                }
            }
        }
        f32 *target;
        if (head < ${k_heads})
            target = q + ((u64)row * ${k_heads} + head) * ${BLOCK};
        else if (head < ${2 * k_heads})
            target = k + ((u64)row * ${k_heads} + (head - ${k_heads})) * ${BLOCK};
        else
            target = v + ((u64)row * ${v_heads} + (head - ${2 * k_heads})) * ${BLOCK};
        store4_f32(target + lane * 4, c);
    ${jobs.close}
}
