//@ -- see schedules/prefill_middle.lua
//@ include("lib_vector")
//@ include("lib_quad")
KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 block = quad * 4 + lane / 8;
        const u32 at = block * ${BLOCK} + lane % 8 * 4;
        const u32 inside = block < ${blocks}, end = row < rows ? ${n} : 0;
        f32 gate[${VALUES}], up[${VALUES}];
        quad_load(d + (u64)row * ${n}, at, end, gate);
        quad_load(d2 + (u64)row * ${n}, at, end, up);
        if (row < rows) {
            quad_restore(svh + at, inside, gate);
            quad_restore(svh2 + at, inside, up);
            #pragma unroll
            for (u32 i = 0; i < ${VALUES}; i++)
                gate[i] = f_mul(f_silu_short(gate[i]), up[i]);
        }
        quad_operand(gate, suh + at, inside, out + (u64)row * ${n} + at);
    ${jobs.close}
}
