//@ -- see schedules/linear_plain.lua
//@ include("lib_norm")
//@ include("lib_dot")
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const ${ctype} *from = column < ${n0}
                                   ? (const ${ctype} *)w0 + (u64)column * ${k}
                                   : (const ${ctype} *)w1 + (u64)(column - ${n0}) * ${k};
        //@ if dot_norm then
        const f32 scale = norm_scale(squares + row * ${chunks}, ${chunks}, ${k},
                                     f_from_bits(${eps}u), lane);
        //@ else
        const f32 scale = ${f32(1)};
        //@ end
        const f32 sum = dot_row(x + row * ${k}, scale, weight, from, lane);
        if (lane == 0)
            y[row * ${outputs} + column] = sum;
    ${jobs.close}
}
