//@ -- see schedules/prefill_attention.lua
//@ include("lib_vector")
//@ local per_block = fragments * key_fragments * 4      -- sums of a warp's lane in a block of O
//@ local scale = head_dim ^ -0.5 * 1.4426950408889634   -- scores in base 2
// Where 16-byte piece `piece` of a row of head_dim halves lies, swizzled for ldmatrix.
static FN u32 place(u32 row, u32 piece)
{
    return (row * ${pieces} + (piece ^ (row & 7))) * 8;
}

//@ if kv_bits < 16 then
// One group of 32 codes -> halves, 16 bytes at a time (spec exl3.md 5.3, 5.4).
static FN void unpack_group(const u32 *codes, f32 unit, h16 *tile, u32 key, u32 group)
{
    u32 words[${kv_bits}];
    #pragma unroll
    for (u32 i = 0; i < ${kv_bits}; i++)
        words[i] = codes[i];
    #pragma unroll
    for (u32 part = 0; part < 4; part++) {
        f32 values[8];
        #pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 at = part * 8 + i;
            u32 code = 0;
            //@ local word, rest = 0, kv_bits
            //@ for _, width in ipairs { 8, 4, 2, 1 } do
            //@ if kv_bits & width ~= 0 then
            //@ rest = rest - width
            const u32 plane${width} = words[${word} + at * ${width} / 32] >> at * ${width} % 32;
            code |= (plane${width} & ${(1 << width) - 1}) << ${rest};
            //@ word = word + width
            //@ end
            //@ end
            values[i] = f_mul(f_from_i32((i32)(2 * code) - ${(1 << kv_bits) - 1}), unit);
        }
        u32 packed[4];
        #pragma unroll
        for (u32 i = 0; i < 4; i++)
            packed[i] = pack_halves(values[2 * i], values[2 * i + 1]);
        store4_u32((u32 *)(tile + place(key, group * 4 + part)), packed);
    }
}
//@ end

// Keys or values of key tile `index` of one kv head into shared memory; zeros from position `end`.
static FN void load_tile(h16 *tile, const u32 *codes, const h16 *scales, const u32 *pages,
                         u32 index, u32 head, u32 end)
{
    const u32 start = index * ${KEYS};
    const u64 slots = (u64)pages[start / ${PAGE}] * ${PAGE} + start % ${PAGE};
    //@ if kv_bits < 16 then
    const u32 zeros[4] = {0, 0, 0, 0};
    for (u32 i = thread_id(); i < ${KEYS * groups}; i += ${threads}) {
        const u32 key = i / ${groups}, group = i % ${groups};
        const u64 at = ((slots + key) * ${kv_heads} + head) * ${groups} + group;
        if (start + key < end) {
            const f32 unit = f_mul(f_from_h(scales[at]), ${f32(2.0 ^ -kv_bits)});
            unpack_group(codes + at * ${kv_bits}, unit, tile, key, group);
        } else {
            for (u32 part = 0; part < 4; part++)
                store4_u32((u32 *)(tile + place(key, group * 4 + part)), zeros);
        }
    }
    //@ else
    for (u32 i = thread_id(); i < ${KEYS * pieces}; i += ${threads}) {
        const u32 key = i / ${pieces}, piece = i % ${pieces};
        u32 words[4] = {0, 0, 0, 0};
        const u64 at = ((slots + key) * ${kv_heads} + head) * ${pieces} + piece;
        if (start + key < end)
            load4_u32(codes + at * 4, words);
        store4_u32((u32 *)(tile + place(key, piece)), words);
    }
    //@ end
}

// scores = Q K^T of the warp's rows: f32 fragments [fragments][key_fragments][4].
static FN void multiply_keys(f32 scores[${per_block}], const h16 *queries, const h16 *tile,
                             u32 warp_row, u32 lane)
{
    #pragma unroll
    for (u32 i = 0; i < ${per_block}; i++)
        scores[i] = ${f32(0)};
    for (u32 step = 0; step < ${dims_steps}; step++) {
        u32 left[${4 * fragments}], right[${2 * key_fragments}];
        #pragma unroll
        for (u32 i = 0; i < ${fragments}; i++)
            load_matrix_x4(left + 4 * i, queries + place(warp_row + i * 16 + lane % 16,
                                                         step * 2 + lane / 16));
        #pragma unroll
        for (u32 j = 0; j < ${key_fragments // 2}; j++)
            load_matrix_x4(right + 4 * j, tile + place(j * 16 + lane % 8 + lane / 16 * 8,
                                                       step * 2 + lane / 8 % 2));
        mma_f16_ab(${fragments}, ${key_fragments}, scores, left, right);
    }
}

// Scores of one row of a fragment (half: 0 or 1) -> probabilities, in place; on the diagonal keys
// behind `query` (both counted in the tile) are selected away. Returns the factor of the old sums.
static FN f32 soften_row(f32 *scores, u32 half, u32 diagonal, u32 query, f32 *maximum, f32 *sum,
                         u32 lane)
{
    f32 top = *maximum;
    #pragma unroll
    for (u32 j = 0; j < ${key_fragments}; j++) {
        #pragma unroll
        for (u32 e = 0; e < 2; e++) {
            f32 *score = scores + j * 4 + half * 2 + e;
            const u32 key = j * 8 + lane % 4 * 2 + e;
            const u32 hidden = diagonal && key > query;
            *score = hidden ? f_from_bits(0xff800000u) : f_mul(*score, ${f32(scale)});
            top = f_max(top, *score);
        }
    }
    top = f_max(top, shuffle_xor_f32(top, 1));
    top = f_max(top, shuffle_xor_f32(top, 2));
    f32 added = ${f32(0)};
    #pragma unroll
    for (u32 j = 0; j < ${key_fragments}; j++) {
        #pragma unroll
        for (u32 e = 0; e < 2; e++) {
            f32 *score = scores + j * 4 + half * 2 + e;
            const u32 key = j * 8 + lane % 4 * 2 + e;
            const u32 hidden = diagonal && key > query;
            *score = hidden ? ${f32(0)} : f_exp2(f_sub(*score, top));
            added = f_add(added, *score);
        }
    }
    added = f_add(added, shuffle_xor_f32(added, 1));
    added = f_add(added, shuffle_xor_f32(added, 2));
    const f32 factor = f_exp2(f_sub(*maximum, top));
    *maximum = top;
    *sum = f_fma(*sum, factor, added);
    return factor;
}

// sums += P V; probabilities in the layout of scores, sums: f32 [blocks][fragments][8][4].
static FN void multiply_values(f32 *sums, const f32 *scores, const h16 *tile, u32 lane)
{
    #pragma unroll
    for (u32 step = 0; step < ${key_fragments // 2}; step++) {
        u32 left[${4 * fragments}];
        #pragma unroll
        for (u32 i = 0; i < ${fragments}; i++) {
            const f32 *near = scores + (i * ${key_fragments} + step * 2) * 4;
            left[4 * i] = pack_halves(near[0], near[1]);
            left[4 * i + 1] = pack_halves(near[2], near[3]);
            left[4 * i + 2] = pack_halves(near[4], near[5]);
            left[4 * i + 3] = pack_halves(near[6], near[7]);
        }
        #pragma unroll
        for (u32 block = 0; block < ${blocks}; block++) {
            u32 right[${2 * key_fragments}];
            #pragma unroll
            for (u32 j = 0; j < ${key_fragments // 2}; j++)
                load_matrix_x4_trans(right + 4 * j, tile + place(step * 16 + lane % 16,
                                                                 block * 8 + j * 2 + lane / 16));
            mma_f16_ab(${fragments}, ${key_fragments}, sums + block * ${per_block}, left, right);
        }
    }
}

// H32 over the 32 columns of four fragments of one row: column = 8 fragment + 2 (lane % 4) + e, so
// stages run over e, two lane bits, two bits of the fragment number. Then / sqrt(32).
static FN void rotate_columns(f32 v[8], u32 lane)
{
    #pragma unroll
    for (u32 i = 0; i < 8; i += 2) {
        const f32 a = v[i], b = v[i + 1];
        v[i] = f_add(a, b);
        v[i + 1] = f_sub(a, b);
    }
    #pragma unroll
    for (u32 mask = 1; mask < 4; mask *= 2) {
        #pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const f32 other = shuffle_xor_f32(v[i], mask);
            v[i] = lane & mask ? f_sub(other, v[i]) : f_add(v[i], other);
        }
    }
    #pragma unroll
    for (u32 gap = 2; gap < 8; gap *= 2) {
        #pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if ((i & gap) == 0) {
                const f32 a = v[i], b = v[i + gap];
                v[i] = f_add(a, b);
                v[i + gap] = f_sub(a, b);
            }
        }
    }
    #pragma unroll
    for (u32 i = 0; i < 8; i++)
        v[i] = f_mul(v[i], f_from_bits(0x3E3504F3u));
}

// One row's 32 columns: divided by the softmax's sum, back in the model's basis, gated, stored.
static FN void finish_columns(const f32 *sums, u32 half, f32 inverse, const f32 *gates, f32 *out,
                              u32 live, u32 lane)
{
    f32 v[8];
    #pragma unroll
    for (u32 i = 0; i < 8; i++)
        v[i] = f_mul(sums[i / 2 * 4 + half * 2 + i % 2], inverse);
    //@ if kv_bits < 16 then
    rotate_columns(v, lane);
    //@ end
    #pragma unroll
    for (u32 j = 0; j < 4; j++) {
        u32 words[2] = {0, 0};
        if (live) {
            load2_u32((const u32 *)(gates + j * 8 + lane % 4 * 2), words);
            words[0] = f_bits(f_mul(v[2 * j], f_sigmoid(f_from_bits(words[0]))));
            words[1] = f_bits(f_mul(v[2 * j + 1], f_sigmoid(f_from_bits(words[1]))));
        }
        store2_u32((u32 *)(out + j * 8 + lane % 4 * 2), words);
    }
}

KERNEL
{
    const u32 lane = lane_id();
    const u32 member = warp_id() / ${row_warps};
    const u32 warp_row = warp_id() % ${row_warps} * ${16 * fragments};
    const u32 bands = (rows + ${BAND - 1}) / ${BAND};
    h16 *queries = ${shared.queries};
    h16 *tile = ${shared.tile};
    ${jobs.open}
        const u32 query_band = bands - 1 - band; // the longest first
        const u32 query_tile = first / ${BAND} + query_band;
        const u32 head = head_group * ${heads} + member, kv_head = head_group * ${heads} / ${gqa};
        f32 sums[${blocks * per_block}], maximum[${2 * fragments}], sum[${2 * fragments}];
        block_sync();
        for (u32 i = thread_id(); i < ${heads * BAND * pieces}; i += ${threads}) {
            const u32 row = i / ${heads * pieces};
            const u32 which = i / ${pieces} % ${heads}, piece = i % ${pieces};
            const u64 line = (u64)(query_band * ${BAND} + row) * ${q_heads};
            const u64 at = line + head_group * ${heads} + which;
            u32 words[4];
            load4_u32((const u32 *)(q + at * ${head_dim} + piece * 8), words);
            store4_u32((u32 *)(queries + place(which * ${BAND} + row, piece)), words);
        }
        #pragma unroll
        for (u32 i = 0; i < ${blocks * per_block}; i++)
            sums[i] = ${f32(0)};
        #pragma unroll
        for (u32 i = 0; i < ${2 * fragments}; i++) {
            maximum[i] = ${f32(-1e30)};
            sum[i] = ${f32(0)};
        }
        for (u32 index = 0; index <= query_tile; index++) {
            f32 scores[${per_block}];
            block_sync();
            load_tile(tile, k_codes, k_scales, pages, index, kv_head, first + rows);
            block_sync();
            multiply_keys(scores, queries, tile, member * ${BAND} + warp_row, lane);
            block_sync();
            load_tile(tile, v_codes, v_scales, pages, index, kv_head, first + rows);
            #pragma unroll
            for (u32 i = 0; i < ${2 * fragments}; i++) {
                const u32 query = warp_row + i / 2 * 16 + i % 2 * 8 + lane / 4;
                const f32 factor = soften_row(scores + i / 2 * ${key_fragments * 4}, i % 2,
                                              index == query_tile, query, maximum + i, sum + i,
                                              lane);
                #pragma unroll
                for (u32 j = 0; j < ${blocks * 8}; j++) {
                    const u32 fragment = i / 2 * ${key_fragments} + j % 8;
                    f32 *pair = sums + j / 8 * ${per_block} + fragment * 4 + i % 2 * 2;
                    pair[0] = f_mul(pair[0], factor);
                    pair[1] = f_mul(pair[1], factor);
                }
            }
            block_sync();
            multiply_values(sums, scores, tile, lane);
        }
        #pragma unroll
        for (u32 i = 0; i < ${2 * fragments}; i++) {
            const u32 row = query_band * ${BAND} + warp_row + i / 2 * 16 + i % 2 * 8 + lane / 4;
            const f32 inverse = f_div(${f32(1)}, sum[i]);
            const f32 *gates = qg + ((u64)row * ${q_heads} + head) * ${2 * head_dim} + ${head_dim};
            f32 *target = out + ((u64)row * ${q_heads} + head) * ${head_dim};
            #pragma unroll
            for (u32 g = 0; g < ${groups}; g++) {
                const u32 fragment = i / 2 * ${key_fragments} + g % 2 * 4;
                finish_columns(sums + g / 2 * ${per_block} + fragment * 4, i % 2, inverse,
                               gates + g * 32, target + g * 32, row < rows, lane);
            }
        }
    ${jobs.close}
}
