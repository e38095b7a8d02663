//@ -- see schedules/activate.lua
// Sum of the squares of a lane's four values and of all lanes.
static FN f32 squares_of(const f32 *at)
{
    f32 square = ${f32(0)};
    for (u32 i = 0; i < 4; i++)
        square = f_fma(at[i], at[i], square);
    return warp_sum_f32(square);
}

KERNEL
{
    start_next();
    const u32 rows = round[0];
    wait_previous();
    const u32 lane = lane_id();
    ${jobs.open}
        const u64 at = (u64)row * ${k} + chunk * ${BLOCK} + lane * 4;
        //@ if mode == "norm" then
        f32 sum = ${f32(0)};
        for (u32 other = 0; other < ${chunks}; other++)
            sum = f_add(sum, squares_of(x + (u64)row * ${k} + other * ${BLOCK} + lane * 4));
        const f32 scale = f_rsqrt(f_add(f_div(sum, f_from_u32(${k})), f_from_bits(${eps}u)));
        //@ elseif mode == "gdn" then
        const f32 scale = f_rsqrt(f_add(f_mul(squares_of(x + at), ${f32(1 / 128)}),
                                        f_from_bits(${eps}u)));
        //@ end
        for (u32 i = 0; i < 4; i++) {
            //@ if mode == "norm" then
            out[at + i] = f_mul(f_mul(x[at + i], scale), weight[chunk * ${BLOCK} + lane * 4 + i]);
            //@ elseif mode == "gdn" then
            out[at + i] = f_mul(f_mul(f_mul(x[at + i], scale), weight[lane * 4 + i]),
                                f_silu(y[at + i]));
            //@ elseif mode == "glu" then
            out[at + i] = f_mul(f_silu(x[at + i]), y[at + i]);
            //@ else
            out[at + i] = x[at + i];
            //@ end
        }
    ${jobs.close}
}
