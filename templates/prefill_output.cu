//@ -- see schedules/prefill_output.lua
//@ include("lib_vector")
//@ include("lib_quad")
KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 block = quad * 4 + lane / 8;
        const u32 at = block * ${BLOCK} + lane % 8 * 4;
        const u32 inside = block < ${blocks};
        f32 *target = y + (u64)row * ${width} + at;
        f32 v[${VALUES}];
        //@ if mode == "add" then
        if (row < rows) {
            f32 old[${VALUES}];
            quad_load(d + (u64)row * ${padded}, at, ${blocks * BLOCK}, v);
            quad_load(y + (u64)row * ${width}, at, ${width}, old);
            quad_restore(svh + at, inside, v);
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (at + 32 * i < ${width}) {
                    for (u32 e = 0; e < 4; e++)
                        v[4 * i + e] = f_add(old[4 * i + e], v[4 * i + e]);
                    store4_f32(target + 32 * i, v + 4 * i);
                }
            }
        }
        //@ else
        quad_load(d + (u64)row * ${padded}, at, row < rows ? ${blocks * BLOCK} : 0, v);
        if (row < rows)
            quad_restore(svh + at, inside, v);
        #pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (at + 32 * i < ${width})
                store4_f32(target + 32 * i, v + 4 * i);
        //@ end
    ${jobs.close}
}
