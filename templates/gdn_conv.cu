//@ -- see schedules/gdn_conv.lua
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 channel = head * ${BLOCK} + lane * 4;
        //@ for i = 0, 3 do
        f32 w${i}[${taps}];
        f32 past${i}[${history}];
        //@ for t = 0, taps - 1 do
        w${i}[${t}] = weight[(channel + ${i}) * ${taps} + ${t}];
        //@ end
        //@ for t = 0, history - 1 do
        past${i}[${t}] = window[${t} * ${channels} + channel + ${i}];
        //@ end
        //@ end
        for (u32 row = 0; row < rows; row++) {
            f32 c[4];
            //@ for i = 0, 3 do
            {
                const f32 input = u[row * ${channels} + channel + ${i}];
                f32 sum = ${f32(0)};
                //@ for t = 0, history - 1 do
                sum = f_fma(w${i}[${t}], past${i}[${t}], sum);
                //@ end
                sum = f_fma(w${i}[${history}], input, sum);
                //@ for t = 0, history - 2 do
                past${i}[${t}] = past${i}[${t + 1}];
                //@ end
                past${i}[${history - 1}] = input;
                c[${i}] = f_silu(sum);
            }
            //@ end
            f32 *to;
            if (head < ${2 * k_heads}) {
                f32 square = ${f32(0)};
                //@ for i = 0, 3 do
                square = f_fma(c[${i}], c[${i}], square);
                //@ end
                f32 scale = f_rsqrt(f_add(warp_sum_f32(square), ${f32(1e-6)}));
                //@ for i = 0, 3 do
                c[${i}] = f_mul(c[${i}], scale);
                //@ end
                if (head < ${k_heads}) {
                    //@ for i = 0, 3 do
                    c[${i}] = f_mul(c[${i}], ${f32(128 ^ -0.5)});
                    //@ end
                    to = q + row * ${q_width} + channel;
                } else {
                    to = k + row * ${q_width} + (channel - ${q_width});
                }
            } else {
                to = v + row * ${v_width} + (channel - ${2 * q_width});
            }
            //@ for i = 0, 3 do
            to[${i}] = c[${i}];
            //@ end
        }
        //@ for i = 0, 3 do
        //@ for t = 0, history - 1 do
        window[${t} * ${channels} + channel + ${i}] = past${i}[${t}];
        //@ end
        //@ end
    ${jobs.close}
}
