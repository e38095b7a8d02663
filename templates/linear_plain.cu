//@ -- see schedules/linear_plain.lua
//@ include("lib_vector")
//@ include("lib_norm")
//@ include("lib_dot")
KERNEL
{
    start_next();
    const u32 rows = round[0];
    wait_previous();
    const u32 lane = lane_id();
    ${jobs.open}
        const ${ctype} *from = column < ${n0}
                                   ? (const ${ctype} *)w0 + (u64)column * ${k}
                                   : (const ${ctype} *)w1 + (u64)(column - ${n0}) * ${k};
        //@ if mode == "norm" then
        const f32 scale = norm_scale(squares + row * ${chunks}, ${chunks}, ${k},
                                     f_from_bits(${eps}u));
        //@ end
        f32 sum = ${f32(0)};
        for (u32 at = lane * 4; at < ${k}; at += ${BLOCK}) {
            f32 v[4];
            u32 words[${dot_words}];
            load4_f32(x + row * ${k} + at, v);
            dot_load(from + at, words);
            //@ if mode == "norm" then
            f32 factor[4];
            load4_f32(weight + at, factor);
            //@ for i = 0, 3 do
            v[${i}] = f_mul(f_mul(v[${i}], scale), factor[${i}]);
            //@ end
            //@ end
            sum = dot_add(v, words, sum);
        }
        sum = warp_sum_f32(sum);
        if (lane == 0)
            y[row * ${outputs} + column] = sum;
    ${jobs.close}
}
