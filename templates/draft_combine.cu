//@ -- see schedules/draft_combine.lua
//@ include("lib_vector")
//@ include("lib_ring")
//@ local stride = row_limit * q_heads     -- heads of a tile
KERNEL
{
    const u32 rows = round[0], tiles = ring_tiles(round);
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 job = row * ${q_heads} + head;
        i32 top = -(1 << 30);
        for (u32 tile = lane; tile < tiles; tile += 32) {
            const i32 mine = (i32)stat[(tile * ${stride} + job) * 2];
            top = mine > top ? mine : top;
        }
        top = warp_max_i32(top);
        f32 sum = ${f32(0)}, v[4] = {sum, sum, sum, sum};
        for (u32 from = 0; from < tiles; from += 32) {
            const u32 count = tiles - from < 32 ? tiles - from : 32;
            f32 weight = ${f32(0)}, seen = ${f32(0)};
            if (lane < count) {
                const u32 *pair = stat + ((from + lane) * ${stride} + job) * 2;
                seen = f_from_bits(pair[1]);
                weight = f_select(f_gt(seen, ${f32(0)}), f_pow2((i32)pair[0] - top), ${f32(0)});
            }
            #pragma unroll 4
            for (u32 i = 0; i < count; i++) {
                const f32 scale = shuffle_f32(weight, i);
                f32 more[4];
                load4_f32(part + ((from + i) * ${stride} + job) * ${DIM} + lane * 4, more);
                sum = f_fma(shuffle_f32(seen, i), scale, sum);
                for (u32 e = 0; e < 4; e++)
                    v[e] = f_fma(more[e], scale, v[e]);
            }
        }
        for (u32 e = 0; e < 4; e++)
            v[e] = f_div(v[e], sum);
        store4_f32(out + job * ${DIM} + lane * 4, v);
    ${jobs.close}
}
