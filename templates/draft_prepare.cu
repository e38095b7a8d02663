//@ -- see schedules/draft_prepare.lua
//@ include("lib_vector")
//@ include("lib_kv")
// One head of keys or values into its slot of a ring.
static FN void store_ring(f32 x[4], h16 *ring, u32 slot, u32 head, u32 lane)
{
    for (u32 i = 0; i < 4; i++)
        x[i] = f_min(f_max(x[i], ${f32(-65504)}), ${f32(65504)});
    store4_h16(ring + ((u64)slot * ${kv_heads} + head) * ${head_dim} + lane * 4, x);
}

KERNEL
{
    start_next();
    const u32 rows = round[0];
    const u32 lane = lane_id();
    const u32 count = ${jobs.count};
    for (u32 i = 0; i < count; i++) {
        ${jobs:at("i")}
        const u32 position = round[16 + row];
        if (i == 0)
            wait_previous();
        //@ if mode == "block" then
        const u32 slot = ${capacity} + row;
        //@ else
        const u32 slot = position % ${capacity};
        //@ end
        f32 x[4];
        //@ if mode == "block" then
        if (head < ${queries}) {
            const u32 at = (row * ${q_heads} + head) * ${head_dim} + lane * 4;
            load4_f32(q + at, x);
            norm_head(x, q_norm, lane);
            rope_head(x, position, frequencies, lane);
            for (u32 i = 0; i < 4; i++)
                x[i] = f_mul(x[i], ${f32(query_scale)});
            store4_f32(q_out + at, x);
        } else
        //@ end
        if (head < ${queries + kv_heads}) {
            const u32 key = head - ${queries};
            load4_f32(k + (row * ${kv_heads} + key) * ${head_dim} + lane * 4, x);
            norm_head(x, k_norm, lane);
            rope_head(x, position, frequencies, lane);
            store_ring(x, ring_k, slot, key, lane);
        } else {
            const u32 value = head - ${queries + kv_heads};
            load4_f32(v + (row * ${kv_heads} + value) * ${head_dim} + lane * 4, x);
            store_ring(x, ring_v, slot, value, lane);
        }
    }
}
