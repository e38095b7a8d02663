//@ -- see schedules/linear_output.lua
//@ include("lib_linear")
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
        f32 v[4];
        take_sums(sums + row * ${columns} + chunk * ${BLOCK} + lane * 4,
                  scales + (part * ${row_limit} + row) * 2, v);
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
