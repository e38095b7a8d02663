//@ -- see schedules/linear_middle.lua
//@ include("lib_linear")
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 column = chunk * ${BLOCK} + lane * 4;
        u64 *sum = gate_up + row * ${columns} + column;
        const h16 *sign_gate = svh[0] + column, *sign_up = svh[1] + column;
        f32 gate[4], up[4];
        take_sums(sum, scales + row * 2, gate);
        take_sums(sum + ${p.n}, scales + (${row_limit} + row) * 2, up);
        u32 finite = 1;
        for (u32 i = 0; i < 4; i++) {
            const f32 g = f_mul(gate[i], f_from_h(sign_gate[i]));
            const f32 u = f_mul(up[i], f_from_h(sign_up[i]));
            finite &= f_is_finite(g) & f_is_finite(u);
            gate[i] = f_mul(f_silu(g), u);
        }
        if (!finite)
            atomic_or_u32(bad + row, 1);
        make_block(gate, suh[0] + column, 0, row, chunk, lane, act, exponents, sums, bad);
    ${jobs.close}
}
