//@ -- see schedules/residual.lua
KERNEL
{
    start_next();
    const u32 rows = round[0];
    wait_previous();
    const u32 lane = lane_id();
    ${jobs.open}
        const u64 at = (u64)row * ${n} + chunk * ${BLOCK} + lane * 4;
        f32 square = ${f32(0)};
        u32 finite = 1;
        for (u32 i = 0; i < 4; i++) {
            const f32 value = f_add(x[at + i], y[at + i]);
            square = f_fma(value, value, square);
            finite &= f_is_finite(value);
            x[at + i] = value;
        }
        square = warp_sum_f32(square);
        if (lane == 0)
            squares[row * ${chunks} + chunk] = square;
        if (!finite)
            atomic_or_u32(bad + row % ${row_limit}, 1);
    ${jobs.close}
}
