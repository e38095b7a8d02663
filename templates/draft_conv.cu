//@ -- see schedules/draft_conv.lua
//@ include("lib_vector")
// Four coefficients: base + d of columns column .. column + 3. base: f32 [hidden] of the side and
// tap, d: f32 [${groups}] of the row, side and tap.
static FN void coefficients_of(const f32 *base, const f32 *d, u32 column, f32 k[4])
{
    load4_f32(base + column, k);
    for (u32 i = 0; i < 4; i++)
        k[i] = f_add(k[i], d[(column + i) / ${group}]);
}

KERNEL
{
    start_next();
    const u32 rows = round[0];
    wait_previous();
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 column = chunk * ${BLOCK} + lane * 4;
        const u32 at = row * ${hidden} + column;
        const f32 *d = coefficients + row * ${stride} + ${2 * side * groups};
        f32 k[4], v[4], y[4];
        coefficients_of(base + ${2 * side * hidden}, d, column, k);
        load4_f32(h + at, v);
        for (u32 i = 0; i < 4; i++)
            y[i] = f_mul(k[i], v[i]);
        if (row > 0) {
            coefficients_of(base + ${(2 * side + 1) * hidden}, d + ${groups}, column, k);
            load4_f32(h + at - ${hidden}, v);
            for (u32 i = 0; i < 4; i++)
                y[i] = f_fma(k[i], v[i], y[i]);
        }
        //@ if mode == "prepare" then
        store4_f32(out + at, y);
        //@ else
        f32 square = ${f32(0)};
        u32 finite = 1;
        load4_f32(x + at, v);
        for (u32 i = 0; i < 4; i++) {
            y[i] = f_add(v[i], y[i]);
            square = f_fma(y[i], y[i], square);
            finite &= f_is_finite(y[i]);
        }
        store4_f32(x + at, y);
        square = warp_sum_f32(square);
        if (lane == 0)
            squares[row * ${chunks} + chunk] = square;
        if (!finite)
            atomic_or_u32(bad + row, 1);
        //@ end
    ${jobs.close}
}
