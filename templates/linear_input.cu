//@ -- see schedules/linear_input.lua
//@ include("lib_norm")
//@ include("lib_linear")
//@ local lanes_of_tile = 4   -- a lane holds 4 of the 16 k of a tile
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 at = chunk * ${BLOCK} + lane * 4;
        f32 v[4];
        //@ for i = 0, 3 do
        v[${i}] = ${f32(0)};
        //@ end
        if (at < ${k_valid}) {
            const f32 *source = x + row * ${k_valid} + at;
            //@ for i = 0, 3 do
            v[${i}] = source[${i}];
            //@ end
        }
        //@ if mode == "norm" then
        const f32 scale = norm_scale(squares + row * ${blocks}, ${blocks}, ${k_valid},
                                     f_from_bits(${eps}u), lane);
        //@ for i = 0, 3 do
        v[${i}] = at < ${k_valid} ? f_mul(f_mul(v[${i}], scale), weight[at + ${i}]) : ${f32(0)};
        //@ end
        //@ elseif mode == "glu" then
        if (at < ${k_valid}) {
            const f32 *other = y + row * ${k_valid} + at;
            //@ for i = 0, 3 do
            v[${i}] = f_mul(f_silu(v[${i}]), other[${i}]);
            //@ end
        }
        //@ elseif mode == "gdn" then
        {
            const f32 *gate = y + row * ${k_valid} + at;
            f32 square = ${f32(0)};
            //@ for i = 0, 3 do
            square = f_fma(v[${i}], v[${i}], square);
            //@ end
            square = warp_sum_f32(square);
            const f32 scale = f_rsqrt(f_add(f_mul(square, ${f32(1 / 128)}), f_from_bits(${eps}u)));
            //@ for i = 0, 3 do
            v[${i}] = f_mul(f_mul(f_mul(v[${i}], scale), weight[lane * 4 + ${i}]),
                            f_silu(gate[${i}]));
            //@ end
        }
        //@ end
        make_block(v, suh[part] + at, part, row, chunk, lane, act, exponents, sums, bad);
    ${jobs.close}
}
