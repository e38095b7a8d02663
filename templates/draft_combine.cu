//@ -- see schedules/draft_combine.lua
//@ include("lib_ring")
//@ local threads = 32 * warps
// A thread's dims of ${batch} tiles from `from` on; past the last tile it is read again.
static FN void load_tiles(const f32 *part, u32 from, u32 tiles, f32 v[${batch * dims}])
{
    #pragma unroll
    for (u32 i = 0; i < ${batch}; i++) {
        const u32 tile = from + i < tiles ? from + i : tiles - 1;
        #pragma unroll
        for (u32 e = 0; e < ${dims}; e++)
            v[i * ${dims} + e] = part[tile * ${stride * DIM} + e * ${threads}];
    }
}

KERNEL
{
    start_next();
    const u32 rows = round[0], tiles = ring_tiles(round);
    wait_previous();
    const u32 thread = thread_id();
    f32 *weight = ${shared.weight}, *seen = ${shared.seen};
    ${jobs.open}
        const u32 job = row * ${q_heads} + head;
        const f32 *mine = part + job * ${DIM} + thread;
        f32 more[${batch * dims}], v[${dims}], sum = ${f32(0)};
        load_tiles(mine, 0, tiles, more);
        i32 top = -(1 << 30);
        for (u32 tile = lane_id(); tile < tiles; tile += 32) {
            const i32 one = (i32)stat[(tile * ${stride} + job) * 2];
            top = one > top ? one : top;
        }
        top = warp_max_i32(top);
        block_sync();
        for (u32 tile = thread; tile < ${slots}; tile += ${threads}) {
            u32 pair[2] = {0, 0};
            if (tile < tiles)
                load2_u32(stat + (tile * ${stride} + job) * 2, pair);
            const f32 l = f_from_bits(pair[1]);
            seen[tile] = l;
            weight[tile] = f_select(f_gt(l, ${f32(0)}), f_pow2((i32)pair[0] - top), ${f32(0)});
        }
        block_sync();
        #pragma unroll
        for (u32 e = 0; e < ${dims}; e++)
            v[e] = ${f32(0)};
        for (u32 from = 0; from < tiles; from += ${batch}) {
            if (from > 0)
                load_tiles(mine, from, tiles, more);
            #pragma unroll
            for (u32 i = 0; i < ${batch}; i++) {
                sum = f_fma(seen[from + i], weight[from + i], sum);
                #pragma unroll
                for (u32 e = 0; e < ${dims}; e++)
                    v[e] = f_fma(more[i * ${dims} + e], weight[from + i], v[e]);
            }
        }
        #pragma unroll
        for (u32 e = 0; e < ${dims}; e++)
            out[job * ${DIM} + e * ${threads} + thread] = f_div(v[e], sum);
    ${jobs.close}
}
