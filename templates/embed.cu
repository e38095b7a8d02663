//@ -- see schedules/embed.lua
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 column = chunk * ${BLOCK} + lane * 4;
        const ${ctype} *from = (const ${ctype} *)table + (u64)tokens[row] * ${hidden} + column;
        f32 square = ${f32(0)};
        //@ for i = 0, 3 do
        {
            //@ if scale == ONE then
            const f32 value = ${convert}(from[${i}]);
            //@ else
            const f32 value = f_mul(${convert}(from[${i}]), f_from_bits(${scale}u));
            //@ end
            square = f_fma(value, value, square);
            x[row * ${hidden} + column + ${i}] = value;
        }
        //@ end
        square = warp_sum_f32(square);
        if (lane == 0)
            squares[row * ${chunks} + chunk] = square;
    ${jobs.close}
}
