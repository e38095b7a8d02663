//@ -- see schedules/linear_middle.lua
//@ include("lib_linear")
//@ local function load_constants(name)
        load_signs(svh_gate + ${name}chunk * ${BLOCK} + lane * 4, sign_gate);
        load_signs(svh_up + ${name}chunk * ${BLOCK} + lane * 4, sign_up);
        load_signs(suh_down + ${name}chunk * ${BLOCK} + lane * 4, sign_down);
//@ end
KERNEL
{
    start_next();
    const u32 lane = lane_id();
    const h16 *svh_gate = svh[0], *svh_up = svh[1], *suh_down = suh[0];
    u32 sign_gate[2], sign_up[2], sign_down[2];
    //@ if early then
    {
        ${jobs:at("0", "next_")}
        //@ load_constants("next_")
    }
    //@ end
    const u32 rows = round[0];
    const u32 count = ${jobs.count};
    wait_previous();
    for (u32 i = 0;; i++) {
        ${jobs:at("i", "next_")}
        const u32 chunk = next_chunk, row = next_row;
        u64 *sum = gate_up + row * ${columns} + chunk * ${BLOCK} + lane * 4;
        u32 words_gate[8], words_up[8], scale_gate[4], scale_up[4];
        if (${exists("i", "row")}) {
            load_sums(sum, scales + row * 2, words_gate, scale_gate);
            load_sums(sum + ${p.n}, scales + (${row_limit} + row) * 2, words_up, scale_up);
            //@ if early then
            if (i > 0) {
            //@ else
            {
            //@ end
                //@ load_constants("next_")
            }
        }
        if (i >= count)
            break;
        clear_sums(sum);
        clear_sums(sum + ${p.n});
        f32 gate[4], up[4];
        const u32 finite = take_values(words_gate, scale_gate, sign_gate, gate) &
                           take_values(words_up, scale_up, sign_up, up);
        for (u32 k = 0; k < 4; k++)
            gate[k] = f_mul(f_silu(gate[k]), up[k]);
        if (!finite)
            atomic_or_u32(bad + row, 1);
        make_block(gate, sign_down, 0, row, chunk, lane, act, exponents, sums, bad);
    }
}
