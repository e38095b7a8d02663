//@ -- see schedules/linear_plain.lua
//@ include("lib_norm")
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const ${ctype} *from = column < ${n0}
                                   ? (const ${ctype} *)w0 + (u64)column * ${k}
                                   : (const ${ctype} *)w1 + (u64)(column - ${n0}) * ${k};
        const f32 *source = x + row * ${k};
        //@ if mode == "norm" then
        const f32 scale = norm_scale(squares + row * ${chunks}, ${chunks}, ${k},
                                     f_from_bits(${eps}u), lane);
        //@ end
        f32 sum = ${f32(0)};
        for (u32 chunk = 0; chunk < ${chunks}; chunk++) {
            const u32 at = chunk * ${BLOCK} + lane * 4;
            if (at < ${k}) {
                //@ for i = 0, 3 do
                //@ if mode == "norm" then
                sum = f_fma(f_mul(f_mul(source[at + ${i}], scale), weight[at + ${i}]),
                            ${convert}(from[at + ${i}]), sum);
                //@ else
                sum = f_fma(source[at + ${i}], ${convert}(from[at + ${i}]), sum);
                //@ end
                //@ end
            }
        }
        sum = warp_sum_f32(sum);
        if (lane == 0)
            y[row * ${outputs} + column] = sum;
    ${jobs.close}
}
