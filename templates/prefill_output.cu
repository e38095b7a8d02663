//@ -- see schedules/prefill_output.lua
//@ include("lib_vector")
// Four sums back in the model's basis.
static FN void restore_block(const f32 *sums, const h16 *svh, f32 v[4])
{
    u32 signs[2];
    load4_f32(sums, v);
    load2_u32((const u32 *)svh, signs);
    warp_hadamard128(v);
    for (u32 i = 0; i < 4; i++) {
        const h16 sign = h_from_bits((u16)(signs[i / 2] >> (i % 2) * 16));
        v[i] = f_mul(f_mul(v[i], f_from_bits(0x3DB504F3u)), f_from_h(sign));
    }
}

KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 at = chunk * ${BLOCK} + lane * 4;
        f32 *target = y + (u64)row * ${width} + at;
        f32 v[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
        if (row < rows) {
            restore_block(d + (u64)row * ${padded} + at, svh + at, v);
            //@ if mode == "silu_mul" then
            f32 up[4];
            restore_block(d2 + (u64)row * ${padded} + at, svh2 + at, up);
            for (u32 i = 0; i < 4; i++)
                v[i] = f_mul(f_silu(v[i]), up[i]);
            //@ end
        }
        //@ if mode == "add" then
        if (row < rows && at < ${width}) {
            f32 old[4];
            load4_f32(target, old);
            for (u32 i = 0; i < 4; i++)
                v[i] = f_add(old[i], v[i]);
            store4_f32(target, v);
        }
        //@ else
        if (at < ${width})
            store4_f32(target, v);
        //@ end
    ${jobs.close}
}
