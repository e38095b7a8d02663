//@ -- see schedules/linear_output.lua
//@ local part_text = "0"
//@ for part = 1, parts - 1 do
//@     part_text = part_text .. (" + (chunk >= %du)"):format(first[part])
//@ end
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 part = ${part_text};
        u32 width = ${p.n0}, begin = 0;
        //@ for part = 1, parts - 1 do
        if (part == ${part}) {
            width = ${p["n" .. part]};
            begin = ${first[part]};
        }
        //@ end
        // The row's largest exponent, and Q: exact in any order.
        const i32 *exponent = exponents + (part * ${row_limit} + row) * ${blocks};
        const i32 *digit = digits + (part * ${row_limit} + row) * ${blocks};
        i32 top = -1000;
        for (u32 block = lane; block < ${blocks}; block += 32)
            top = exponent[block] > top ? exponent[block] : top;
        top = warp_max_i32(top);
        u64 q = 0;
        for (u32 block = lane; block < ${blocks}; block += 32) {
            const i32 power = exponent[block] - top + ${shift};
            q += power < 0 ? 0 : (u64)((i64)digit[block] * ((i64)1 << power));
        }
        q = warp_sum_u64(q);
        const f32 scale = f_pow2(top - ${back});
        u64 *sum = sums + row * ${columns} + chunk * ${BLOCK} + lane * 4;
        f32 v[4];
        //@ for i = 0, 3 do
        //@ if codebook == "mul1" then
        v[${i}] = f_mul(f_fma(${f32(887 / 131072)}, f_from_i64((i64)(sum[${i}] - 510 * q)),
                              f_neg(f_mul(${f32(119 / 65536)}, f_from_i64((i64)q)))), scale);
        //@ else
        v[${i}] = f_mul(f_from_i64((i64)sum[${i}]), scale);
        //@ end
        sum[${i}] = 0;
        //@ end
        warp_hadamard128(v);
        const u32 column = (chunk - begin) * ${BLOCK} + lane * 4;
        const h16 *sign = svh[part] + column;
        f32 *to = y[part] + row * width + column;
        //@ if mode == "residual" then
        f32 square = ${f32(0)};
        //@ end
        u32 finite = 1;
        //@ for i = 0, 3 do
        {
            //@ if mode == "residual" then
            const f32 value = f_add(to[${i}], f_mul(v[${i}], f_from_h(sign[${i}])));
            square = f_fma(value, value, square);
            //@ else
            const f32 value = f_mul(v[${i}], f_from_h(sign[${i}]));
            //@ end
            finite &= f_is_finite(value);
            to[${i}] = value;
        }
        //@ end
        //@ if mode == "residual" then
        square = warp_sum_f32(square);
        if (lane == 0)
            squares[row * ${chunks} + chunk] = square;
        //@ end
        if (!finite)
            atomic_or_u32(bad + row, 1);
    ${jobs.close}
}
