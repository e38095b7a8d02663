//@ -- see schedules/prefill_attention_prepare.lua
//@ include("lib_vector")
//@ include("lib_kv")
//@ local halves = head_dim // 128
static FN void load_head(const f32 *from, f32 v[${4 * halves}], u32 lane)
{
    for (u32 half = 0; half < ${halves}; half++)
        load4_f32(from + half * ${HALF} + lane * 4, v + half * 4);
}

static FN void store_halves(h16 *to, const f32 v[${4 * halves}], u32 lane)
{
    for (u32 half = 0; half < ${halves}; half++)
        store4_h16(to + half * ${HALF} + lane * 4, v + half * 4);
}

// One head of keys or values into its slot of the cache.
static FN void store_cache(const f32 v[${4 * halves}], u32 *codes, h16 *scales, u64 slot, u32 head,
                           u32 lane)
{
    //@ if kv_bits == 16 then
    store_halves((h16 *)codes + (slot * ${kv_heads} + head) * ${head_dim}, v, lane);
    //@ else
    const u64 group = (slot * ${kv_heads} + head) * ${groups};
    quantise_head(v, codes + group * ${kv_bits}, scales + group, lane);
    //@ end
}

KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 position = first + row;
        f32 values[${4 * halves}];
        if (head < ${q_heads}) {
            for (u32 i = 0; i < ${4 * halves}; i++)
                values[i] = ${f32(0)};
            if (row < rows) {
                load_head(qg + ((u64)row * ${q_heads} + head) * ${2 * head_dim}, values, lane);
                norm_head(values, q_norm, lane);
                rope_head(values, position, frequencies, lane);
                //@ if kv_bits < 16 then
                rotate_head(values);
                //@ end
            }
            store_halves(q + ((u64)row * ${q_heads} + head) * ${head_dim}, values, lane);
        } else if (row < rows) {
            const u64 slot = (u64)pages[position / ${PAGE}] * ${PAGE} + position % ${PAGE};
            if (head < ${q_heads + kv_heads}) {
                const u32 key = head - ${q_heads};
                load_head(k + ((u64)row * ${kv_heads} + key) * ${head_dim}, values, lane);
                norm_head(values, k_norm, lane);
                rope_head(values, position, frequencies, lane);
                store_cache(values, k_codes, k_scales, slot, key, lane);
            } else {
                const u32 value = head - ${q_heads + kv_heads};
                load_head(v + ((u64)row * ${kv_heads} + value) * ${head_dim}, values, lane);
                store_cache(values, v_codes, v_scales, slot, value, lane);
            }
        }
    ${jobs.close}
}
