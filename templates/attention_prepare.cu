//@ -- see schedules/attention_prepare.lua
//@ include("lib_vector")
//@ include("lib_kv")
//@ local plane_bytes = row_limit * q_heads * head_dim
//@ if back then
//@ include("lib_linear")
// A head of 256 from its two blocks of sums. from: of the head's first column; signs: [half].
static FN void load_head(u64 *from, const u64 *scales, const u32 signs[4], f32 x[8], u32 lane,
                         u32 *bad)
{
    u32 words[2][8], scale_words[4];
    for (u32 half = 0; half < 2; half++)
        load_sums(from + half * ${head_dim // 2} + lane * 4, scales, words[half], scale_words);
    u32 finite = 1;
    for (u32 half = 0; half < 2; half++) {
        clear_sums(from + half * ${head_dim // 2} + lane * 4);
        finite &= take_values(words[half], scale_words, signs + 2 * half, x + 4 * half);
    }
    if (!finite)
        atomic_or_u32(bad, 1);
}
//@ else
static FN void load_head(const f32 *from, f32 x[8], u32 lane)
{
    load4_f32(from + lane * 4, x);
    load4_f32(from + ${head_dim // 2} + lane * 4, x + 4);
}
//@ end

//@ if kv_bits < 16 then
// Four values of a group -> 16-bit integers in two byte planes. to: i8, this group's 32 slots of
// the high plane. Returns the group's scale; sets *bad when a value is not finite.
static FN f32 query_planes(const f32 x[4], i8 *to, u32 lane, u32 *bad)
{
    u32 top = 0;
    for (u32 i = 0; i < 4; i++) {
        const u32 size = f_bits(f_abs(x[i]));
        top = size > top ? size : top;
    }
    for (u32 mask = 1; mask < 8; mask *= 2) {
        const u32 other = shuffle_xor_u32(top, mask);
        top = other > top ? other : top;
    }
    i32 exponent = -64;
    u32 finite = 1;
    if (top >= 0x7f800000u) {
        finite = 0;
        if (lane % 8 == 0)
            atomic_or_u32(bad, 1);
    } else {
        const i32 size = (i32)(top >> 23) - 127 - 14;
        exponent = size < -64 ? -64 : size;
        if (f_to_i32_rn(f_mul(f_from_bits(top), f_pow2(-exponent))) > 32639)
            exponent++;
    }
    const f32 back = f_pow2(-exponent);
    i8 *slot = to + lane % 8 / 4 * 16 + lane % 4;
    for (u32 i = 0; i < 4; i++) {
        const i32 digit = finite ? f_to_i32_rn(f_mul(x[i], back)) : 0;
        const i32 low = (i32)(i8)digit;
        slot[i * 4] = (i8)((digit - low) >> 8);
        slot[i * 4 + ${plane_bytes}] = (i8)low;
    }
    return f_mul(f_pow2(exponent), ${f32(query_scale)});
}
//@ end

// One head of keys or values into a slot.
static FN void store_cache(const f32 x[8], u32 *codes, h16 *scales, u64 slot, u32 head, u32 lane)
{
    //@ if kv_bits == 16 then
    h16 *to = (h16 *)codes + (slot * ${kv_heads} + head) * ${head_dim} + lane * 4;
    for (u32 i = 0; i < 4; i++) {
        to[i] = h_from_f(x[i]);
        to[${head_dim // 2} + i] = h_from_f(x[4 + i]);
    }
    //@ else
    const u64 group = (slot * ${kv_heads} + head) * ${groups};
    quantise_head(x, codes + group * ${kv_bits}, scales + group, lane);
    //@ end
}

static FN u64 slot_of(const u32 *pages, u32 position)
{
    return (u64)pages[position / ${PAGE}] * ${PAGE} + position % ${PAGE};
}

KERNEL
{
    start_next();
    const u32 rows = round[0], keep = round[10];
    const u32 lane = lane_id();
    //@ if back then
    const h16 *svh_q = svh[0], *svh_k = svh[1], *svh_v = svh[2];
    //@ end
    const u32 count = ${jobs.count};
    for (u32 i = 0; i < count; i++) {
        ${jobs:at("i")}
        const u32 position = round[16 + row];
        f32 x[8];
        //@ if back then
        const u32 part = head < ${q_heads} ? 0 : head < ${q_heads + kv_heads} ? 1 : 2;
        const u32 first = part == 0 ? 0 : part == 1 ? ${q_width} : ${q_width + kv_width};
        const u32 column = head < ${q_heads} ? head * ${2 * head_dim}
                                             : ${q_width} + (head - ${q_heads}) * ${head_dim};
        const h16 *svh_part = part == 0 ? svh_q : part == 1 ? svh_k : svh_v;
        u32 signs[4];
        for (u32 half = 0; half < 2; half++)
            load_signs(svh_part + (column - first) + half * ${head_dim // 2} + lane * 4,
                       signs + 2 * half);
        //@ end
        if (i == 0)
            wait_previous();
        //@ if back then
        load_head(sums + row * ${q_width + 2 * kv_width} + column,
                  scales + (part * ${row_limit} + row) * 2, signs, x, lane, bad + row);
        //@ end
        if (head < ${q_heads}) {
            //@ if not back then
            load_head(qg + (row * ${q_heads} + head) * ${2 * head_dim}, x, lane);
            //@ end
            norm_head(x, q_norm, lane);
            rope_head(x, position, frequencies, lane);
            //@ if kv_bits == 16 then
            f32 *to = (f32 *)q_planes + (row * ${q_heads} + head) * ${head_dim} + lane * 4;
            for (u32 i = 0; i < 4; i++) {
                to[i] = f_mul(x[i], ${f32(query_scale)});
                to[${head_dim // 2} + i] = f_mul(x[4 + i], ${f32(query_scale)});
            }
            //@ else
            warp_hadamard32(x);
            warp_hadamard32(x + 4);
            for (u32 half = 0; half < 2; half++) {
                const u32 group = half * 4 + lane / 8;
                i8 *to = q_planes + (row * ${q_heads} + head) * ${head_dim} + group * ${group_dims};
                const f32 scale = query_planes(x + 4 * half, to, lane, bad + row);
                if (lane % 8 == 0)
                    q_scale[(row * ${q_heads} + head) * ${groups} + group] = scale;
            }
            //@ end
        } else if (head < ${q_heads + kv_heads}) {
            const u32 key = head - ${q_heads};
            //@ if not back then
            load_head(k + (row * ${kv_heads} + key) * ${head_dim}, x, lane);
            //@ end
            norm_head(x, k_norm, lane);
            rope_head(x, position, frequencies, lane);
            store_cache(x, own_k_codes, own_k_scales, row, key, lane);
            if (keep)
                store_cache(x, k_codes, k_scales, slot_of(pages, position), key, lane);
        } else {
            const u32 value = head - ${q_heads + kv_heads};
            //@ if not back then
            load_head(v + (row * ${kv_heads} + value) * ${head_dim}, x, lane);
            //@ end
            store_cache(x, own_v_codes, own_v_scales, row, value, lane);
            if (keep)
                store_cache(x, v_codes, v_scales, slot_of(pages, position), value, lane);
        }
    }
}
