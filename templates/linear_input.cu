//@ -- see schedules/linear_input.lua
//@ include("lib_norm")
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
        {
            const h16 *sign = suh[part] + at;
            //@ for i = 0, 3 do
            v[${i}] = f_mul(v[${i}], f_from_h(sign[${i}]));
            //@ end
        }
        warp_hadamard128(v);
        u32 top = 0;
        //@ for i = 0, 3 do
        {
            const u32 magnitude = f_bits(f_abs(v[${i}]));
            top = magnitude > top ? magnitude : top;
        }
        //@ end
        top = warp_max_u32(top);
        i32 exponent = -64;
        i32 digit[4] = {0, 0, 0, 0};
        if (top >= 0x7f800000u) {
            if (lane == 0)
                atomic_or_u32(bad + row, 1);
        } else {
            const i32 magnitude = (i32)(top >> 23) - 127 - 14;
            exponent = magnitude < -64 ? -64 : magnitude;
            if (f_to_i32_rn(f_mul(f_from_bits(top), f_pow2(-exponent))) > 32639)
                exponent++;
            const f32 scale = f_pow2(-exponent);
            //@ for i = 0, 3 do
            digit[${i}] = f_to_i32_rn(f_mul(v[${i}], scale));
            //@ end
        }
        const i32 sum = warp_sum_i32(digit[0] + digit[1] + digit[2] + digit[3]);
        if (lane == 0) {
            exponents[(part * ${row_limit} + row) * ${blocks} + chunk] = exponent;
            sums[(part * ${row_limit} + row) * ${blocks} + chunk] = sum;
        }
        // Element 4*lane + j is k = 4*(lane%4) + j of k-tile lane/4; fragment lane row*4 + (k%8)/2,
        // bytes (k%2) + 2*(k/8): two neighbours are one half word.
        const u32 first = (lane % 4) * 4;
        const u32 word = part * ${act_words} +
                         ((chunk * 8 + lane / 4) * 32 + row * 4 + (first % 8) / 2) * 2;
        u16 *halves = (u16 *)(act + word) + first / 8;
        //@ for pair = 0, 1 do
        {
            const i32 a = digit[${2 * pair}], b = digit[${2 * pair + 1}];
            const i32 al = (i32)(i8)a, bl = (i32)(i8)b;
            const u32 ah = (u32)((a - al) >> 8), bh = (u32)((b - bl) >> 8);
            halves[${4 * pair}] = (u16)((ah & 255) | (bh & 255) << 8);
            halves[${4 * pair + 2}] = (u16)(((u32)al & 255) | ((u32)bl & 255) << 8);
        }
        //@ end
    ${jobs.close}
}
