//@ -- see schedules/attention_decode.lua
//@ include("lib_vector")
//@ include("lib_spans")
//@ include("lib_codes")
//@ include("lib_softmax")
//@ local threads = 32 * warps
//@ local DIM_TILES = GROUP_DIMS // 8        -- n8 tiles of a group
//@ local scales_at = TILE * words            -- of a tile's scales behind its codes, two a word
//@ local pieces = TILE * words // 4          -- 16-byte copies of codes
//@ local Q_PIECES = HEAD // 16               -- 16-byte copies of a query's plane
//@ local own_words = row_limit * words        -- codes of the round's own keys
//@ local steps = TILE // 32                   -- of 32 keys; the round's own are one step more
//@ local BLOCKS = TILE // 16                 -- of 16 keys
//@ local KEY_PARTS, VALUE_PARTS = TILE // 4, 2 * BLOCKS -- that a warp unpacks at once
//@ local OCTETS = TILE // 8 // QUARTERS      -- of 8 keys, a warp's share of the scores
//@ local OWN_GROUPS = GROUPS // QUARTERS     -- a warp's share of P.V
//@ local batches = {} -- of a warp's groups: all, or, where registers are short, one by one
//@ for own = 0, OWN_GROUPS - 1 do
//@     local batch = bits <= 4 and 1 or own + 1
//@     batches[batch] = batches[batch] or {}
//@     table.insert(batches[batch], own)
//@ end
//@ local ONES = "{0x01010101u, 0x01010101u}"
//@ local v_block = 16 * GROUP_DIMS // 4       -- u32 of half the dims of 32 values, a group
// Where a stage has the values of a key: of each 16 keys first every fourth. The four quads of a
// warp, which read keys four apart, then read rows that follow each other, on different banks.
static FN u32 value_row(u32 key)
{
    return key / 16 * 16 + key % 4 * 4 + key / 4 % 4;
}

static FN u32 slot_of(const u32 *pages, u32 key)
{
    return pages[key / ${PAGE}] * ${PAGE} + key % ${PAGE};
}

//@ for _, side in ipairs {"key", "value"} do
//@ local row = side == "key" and "key" or "value_row(key)"
// Copies the ${side}s of one tile of one head, still packed; a tile lies in one page. slot: of its
// first key.
static FN void issue_${side}s(u32 *packed, const u32 *codes, const h16 *scales, u32 slot, u32 head,
                       u32 thread)
{
    const u64 group = ((u64)slot * ${kv_heads} + head) * ${GROUPS};
    const u32 *codes_from = codes + group * ${bits};
    const h16 *scales_from = scales + group;
    //@ for first = 0, pieces - 1, threads do
    ${first + threads > pieces and ("if (thread < %d) "):format(pieces - first) or ""}{
        const u32 piece = thread + ${first};
        const u32 key = piece / ${words // 4}, part = piece % ${words // 4} * 4;
        copy_async16(packed + ${row} * ${words} + part,
                     codes_from + key * ${kv_heads * words} + part);
    }
    //@ end
    //@ -- each side by warps of its own
    const u32 key = thread${side == "value" and " - " .. TILE or ""};
    if (key < ${TILE})
        copy_async16(packed + ${scales_at} + ${row} * ${GROUPS // 2},
                     scales_from + key * ${kv_heads * GROUPS});
}

//@ end
// The words of a group's codes.
static FN void load_codes(const u32 *from, u32 code[${bits}])
{
    //@ local width = bits % 4 == 0 and 4 or bits % 2 == 0 and 2 or 1
    //@ for i = 0, bits - 1, width do
    //@ if width == 1 then
    code[${i}] = from[${i}];
    //@ else
    load${width}_u32(from + ${i}, code + ${i});
    //@ end
    //@ end
}

// Four keys of a tile as bytes, one (key, group) a lane: [key][group][lane % 4][half], the words
// that a lane needs of a group next to each other. The halves of 16 bytes are exchanged in groups
// 4..7, so that eight lanes, the groups of a key, write different banks; keys are ${k_stride} words
// apart, so that the four keys that half a warp reads lie on different banks.
static FN void unpack_keys(u32 *unpacked, f32 *k_scale, const u32 *packed, u32 part, u32 lane)
{
    const u32 key = part * 4 + lane / 8, g = lane % 8;
    u32 code[${bits}];
    load_codes(packed + key * ${words} + g * ${bits}, code);
    u32 *to = unpacked + key * ${k_stride} + g * 8;
    //@ for pair = 0, 1 do
    {
        const u32 bytes[4] = {
            //@ for a = 2 * pair, 2 * pair + 1 do
            key_bytes(code, 0, ${a}), key_bytes(code, 1, ${a}),
            //@ end
        };
        store4_u32(to + (${4 * pair} ^ g / 4 * 4), bytes);
    }
    //@ end
    k_scale[key * ${ks_stride} + g] =
        f_from_h(((const h16 *)(packed + ${scales_at}))[key * ${GROUPS} + g]);
}

// A quarter of the dims of 32 values as bytes, a quad of keys of each 16 and a group a lane:
// [group][32 keys][pair of n8 tiles][line][quad][tile][16 keys], the order in which lane
// line * 4 + quad reads its words of a group: those of a product side by side. In odd groups lines
// are exchanged in pairs, so that eight lanes, the quads of two groups, write different banks.
// Scales are those of the keys below base: what lies behind may be anything.
static FN void unpack_values(u32 *unpacked, f32 *v_scale, const u32 *packed, u32 part, u32 lane,
                             u32 first_key, u32 base)
{
    const u32 block = part / 2, half = part % 2, quad = lane % 4, g = lane / 4;
    const u32 step = part / 4, first_line = part % 4 * 2;
    const u32 *codes = packed + (step * 32 + quad) * ${words} + g * ${bits};
    u32 *to = unpacked + (g * ${steps} + step) * ${2 * v_block} + quad * 4;
    //@ for l = 0, 1 do
    {
        const u32 line = first_line + ${l};
        u32 first[${PACKED}], second[${PACKED}];
        value_words(codes, ${4 * words}, line, first);
        value_words(codes + ${16 * words}, ${4 * words}, line, second);
        //@ for pair = 0, 1 do
        {
            const u32 bytes[4] = {
                //@ for i = 2 * pair, 2 * pair + 1 do
                value_bytes_${i}(first), value_bytes_${i}(second),
                //@ end
            };
            store4_u32(to + ${pair * v_block} + (line ^ g % 2) * 16, bytes);
        }
        //@ end
    }
    //@ end
    const h16 *scales = (const h16 *)(packed + ${scales_at}) +
                        (block * 16 + quad + half * 8) * ${GROUPS} + g;
    const u32 key = block * 16 + quad * 4 + half * 2;
    u32 pair[2] = {f_bits(f_from_h(scales[0])), f_bits(f_from_h(scales[${4 * GROUPS}]))};
    //@ for i = 0, 1 do
    if (first_key + key + ${i} >= base)
        pair[${i}] = 0;
    //@ end
    store2_u32((u32 *)v_scale + g * ${vs_stride} + key, pair);
}

static FN u32 larger(u32 a, u32 b)
{
    return a > b ? a : b;
}

// Low halves of four words -> two byte planes.
static FN void split_planes(const u32 digit[4], u32 *high, u32 *low)
{
    const u32 first = byte_permute(digit[0], digit[1], 0x5410);
    const u32 second = byte_permute(digit[2], digit[3], 0x5410);
    *high = byte_permute(first, second, 0x7531);
    *low = byte_permute(first, second, 0x6420);
}

// The digits of a tile's cached keys in the way that holds for all weights: of one row and group,
// into the A fragments. p, scales: of this quad's first key.
static FN void limited_digits(const f32 *p, const f32 *scales, f32 back, u32 a[${steps * 8 - 1}])
{
    //@ for block = 0, BLOCKS - 1 do
    {
        f32 weight[4], scale[4];
        u32 digit[4];
        load4_f32(p + ${16 * block}, weight);
        load4_f32(scales + ${16 * block}, scale);
        for (u32 i = 0; i < 4; i++)
            digit[i] = f_to_u16_rn(f_mul(f_mul(weight[i], scale[i]), back));
        //@ local at = block // 2 * 8 + block % 2 * 2
        split_planes(digit, a + ${at}, a + ${at + 4});
    }
    //@ end
}

// Weights of this quad's keys of the round's own, one group: 0 for the quads that have none.
static FN void own_weights(const f32 *p, const h16 *own_v_scale, u32 quad, f32 weight[4])
{
    //@ for i = 0, 3 do
    weight[${i}] = ${f32(0)};
    if (quad < 2)
        weight[${i}] = f_mul(p[quad * 4 + ${TILE + i}],
                             f_from_h(own_v_scale[(quad * 4 + ${i}) * ${GROUPS}]));
    //@ end
}

// The A fragments of the round's own keys: two planes.
static FN void own_digits(const f32 *score, const h16 *own_v_scale, const f32 unit[2], u32 line,
                          u32 quad, u32 a[8])
{
    //@ for upper = 0, 1 do
    {
        // unit is 2^(power - ${code_shift + bits}); this is 2^-power.
        const f32 back = f_from_bits(${254 - code_shift - bits << 23}u - f_bits(unit[${upper}]));
        f32 weight[4];
        u32 digit[4];
        own_weights(score + (${8 * upper} + line) * ${s_stride}, own_v_scale, quad, weight);
        for (u32 i = 0; i < 4; i++)
            digit[i] = f_to_u16_rn(f_mul(weight[i], back));
        split_planes(digit, a + ${upper}, a + ${4 + upper});
        a[${2 + upper}] = 0;
        a[${6 + upper}] = 0;
    }
    //@ end
}

// The products of one group of queries with keys, into the lane's scores [8 keys][4]; q, k: scales
// of the lane's two rows, and two keys of each eight.
//@ for _, count in ipairs {OCTETS, 1} do
static FN void add_scores_${count}(const u32 a[8], const u32 b[${2 * count}], const f32 q[2],
                         const f32 k[${2 * count}], f32 s[${4 * count}])
{
    i32 c[${8 * count}];
    for (u32 e = 0; e < ${8 * count}; e++)
        c[e] = 0;
    mma_s8s8_ab(2, ${count}, c, a, b);
    //@ if bits == 8 then
    for (u32 e = 0; e < ${8 * count}; e++)
        c[e] *= 2;
    u32 ones[${2 * count}];
    for (u32 e = 0; e < ${2 * count}; e++)
        ones[e] = 0x01010101u;
    mma_s8s8_ab(2, ${count}, c, a, ones);
    //@ end
    //@ for at = 0, 4 * count - 1 do
    s[${at}] = f_fma(f_from_i32(c[${at}] * ${1 << 8} + c[${4 * count + at}]),
                 f_mul(q[${at % 4 // 2}], k[${at // 4 * 2 + at % 2}]), s[${at}]);
    //@ end
}

//@ end
// A lane's scores of 8 keys. to: of its first row and key.
static FN void store_scores(f32 *to, const f32 s[4])
{
    //@ for upper = 0, 1 do
    {
        const u32 pair[2] = {f_bits(s[${2 * upper}]), f_bits(s[${2 * upper + 1}])};
        store2_u32((u32 *)to + ${8 * upper * s_stride}, pair);
    }
    //@ end
}

KERNEL
{
    const u32 rows = round[0];
    const u32 thread = thread_id(), lane = lane_id(), warp = warp_id();
    const u32 quad = lane % 4, line = lane / 4;
    const u32 row_tile = warp % ${row_tiles}, quarter = warp / ${row_tiles};
    u32 *queries = ${shared.queries};
    f32 *query_scale = ${shared.query_scale}, *score = ${shared.score};
    u32 *k_packed = ${shared.k_packed}, *v_packed = ${shared.v_packed};
    u32 *unpacked = ${shared.unpacked};
    f32 *k_scale = ${shared.k_scale}, *v_scale = ${shared.v_scale};
    i32 *row_max = ${shared.row_max};
    f32 *row_sum = ${shared.row_sum}, *row_old = ${shared.row_old}, *row_new = ${shared.row_new};
    u32 *row_live = ${shared.row_live};
    u32 *own_k = ${shared.own_k}, *own_v = ${shared.own_v};
    h16 *own_k_scale = ${shared.own_k_scale}, *own_v_scale = ${shared.own_v_scale};
    const u32 last = round_last(round), base = round[1];
    const u32 spans = span_of(last) + 1;
    const u32 zeros[4] = {0, 0, 0, 0};
    const u32 row_blocks = (rows * ${group} + ${table_rows - 1}) / ${table_rows};
    ${items.open} // a CTA has one, or none
        //@ -- where there is one block only, a register less
        const u32 span = spans - 1 - order;
        const u32 first_row = ${row_blocks_max == 1 and "0" or "row_block * " .. table_rows};
        const u32 left = rows * ${group} - first_row;
        const u32 active = left < ${table_rows} ? left : ${table_rows};
        const u32 begin = span_start(span);
        const u32 most = span_size(span), there = last + 1 - begin;
        const u32 tiles = ((there < most ? there : most) + ${TILE - 1}) / ${TILE};
        block_sync();
        // Keys below base are of earlier passes; from base on this one may be writing.
        const u32 committed = begin + ${TILE} <= base;
        u32 slot = slot_of(pages, begin);
        if (committed)
            issue_keys(k_packed, k_codes, k_scales, slot, head, thread);
        wait_previous();
        if (!committed)
            issue_keys(k_packed, k_codes, k_scales, slot, head, thread);
        for (u32 i = thread; i < ${2 * table_rows * Q_PIECES}; i += ${threads}) {
            const u32 of_table = i / ${2 * Q_PIECES}, plane = i / ${Q_PIECES} % 2;
            const u32 word = i % ${Q_PIECES} * 4, row = first_row + of_table;
            const u32 query = row / ${group} * ${q_heads} + head * ${group} + row % ${group};
            u32 *to = queries + (plane * ${table_rows} + of_table) * ${q_stride} + word;
            if (of_table < active)
                copy_async16(to, q_planes + word +
                                     (plane * ${row_limit * q_heads} + query) * ${HEAD // 4});
            else
                store4_u32(to, zeros);
        }
        for (u32 i = thread; i < ${table_rows * GROUPS // 4}; i += ${threads}) {
            const u32 of_table = i / ${GROUPS // 4}, row = first_row + of_table;
            const u32 query = row / ${group} * ${q_heads} + head * ${group} + row % ${group};
            if (of_table < active)
                copy_async16(query_scale + 4 * i,
                             q_scale + query * ${GROUPS} + i % ${GROUPS // 4} * 4);
            else
                store4_u32((u32 *)query_scale + 4 * i, zeros);
        }
        if (begin + most > base) {
            for (u32 i = thread; i < ${own_words // 4}; i += ${threads}) {
                const u32 from = (i / ${words // 4} * ${kv_heads} + head) * ${words} +
                                 i % ${words // 4} * 4;
                copy_async16(own_k + 4 * i, own_k_codes + from);
                copy_async16(own_v + 4 * i, own_v_codes + from);
            }
            for (u32 i = thread; i < ${row_limit}; i += ${threads}) {
                const u32 from = (i * ${kv_heads} + head) * ${GROUPS};
                copy_async16(own_k_scale + ${GROUPS} * i, own_k_scales + from);
                copy_async16(own_v_scale + ${GROUPS} * i, own_v_scales + from);
            }
        }
        copy_async_commit();
        for (u32 row = thread; row < ${table_rows}; row += ${threads}) {
            row_max[row] = -(1 << 30);
            row_sum[row] = ${f32(0)};
            row_old[row] = ${f32(1)};
            row_new[row] = ${f32(0)};
            row_live[row] = 0;
        }
        //@ for own = 0, OWN_GROUPS - 1 do
        f32 sum_${own}[${DIM_TILES * 4}];
        for (u32 i = 0; i < ${DIM_TILES * 4}; i++)
            sum_${own}[i] = ${f32(0)};
        //@ end
        copy_async_wait(0);
        block_sync();
        for (u32 i = thread; i < ${table_rows * GROUPS}; i += ${threads})
            query_scale[i] = f_mul(query_scale[i], ${f32(2 ^ -code_shift)});
        for (u32 part = warp; part < ${KEY_PARTS}; part += ${warps})
            unpack_keys(unpacked, k_scale, k_packed, part, lane);
        block_sync();
        // A step: P.V of the tile before and the scores of its own, then the softmax of its own,
        // beside which its values and the keys of the next are unpacked.
        for (u32 tile = 0;; tile++) {
            const u32 first_key = begin + tile * ${TILE};
            // Made again for every tile: what follows from them is not worth registers.
            const u32 thread = keep_u32(thread_id()), lane = thread % 32, warp = thread / 32;
            const u32 quad = lane % 4, line = lane / 4;
            const u32 row_tile = warp % ${row_tiles}, quarter = warp / ${row_tiles};
            const u32 works = row_tile * ${ROW_TILE} < active; // this warp has rows
            const u32 tail = first_key + ${TILE} > base, more = tile + 1 < tiles;
            f32 *of_tile = score + tile % ${score_sides} * ${table_rows * s_stride};
            const u32 next_slot = more ? slot_of(pages, first_key + ${TILE}) : 0;

            // P.V: a warp has every fourth group of 32 dims. A lane's column n of tile i is dim
            // 4n + i.
            //@ for _, tail in ipairs {false, true} do
            if (works && tile > 0 && (first_key > base) == ${tail and 1 or 0}) {
                const f32 *before = score + ((tile - 1) % ${score_sides} * ${table_rows} +
                                             row_tile * ${ROW_TILE}) * ${s_stride};
                //@ for _, batch in ipairs(batches) do
                {
                //@ for _, own in ipairs(batch) do
                u32 a_${own}[${steps * 8}]; // [k step][plane][4]
                f32 unit_${own}[2];
                //@ end
                // Digits of a batch's groups side by side: one's waits are the other's turns.
                //@ for upper = 0, 1 do
                {
                    const u32 line = keep_u32(lane / 4), quad = keep_u32(lane % 4);
                    const f32 *p = before + (line + ${8 * upper}) * ${s_stride};
                    const f32 *scales = v_scale + quarter * ${vs_stride} + quad * 4;
                    f32 weight[${TILE // 4}];
                    //@ for block = 0, BLOCKS - 1 do
                    load4_f32(p + quad * 4 + ${16 * block}, weight + ${4 * block});
                    //@ end
                    //@ for _, own in ipairs(batch) do
                    f32 scaled_${own}[${TILE // 4}];
                    u32 most_${own} = 0;
                    //@ for block = 0, BLOCKS - 1 do
                    {
                        f32 scale[4];
                        load4_f32(scales + ${own * QUARTERS * vs_stride + 16 * block}, scale);
                        //@ for i = 0, 3 do
                        //@ local at = 4 * block + i
                        scaled_${own}[${at}] = f_mul(weight[${at}], scale[${i}]);
                        most_${own} = larger(f_bits(scaled_${own}[${at}]), most_${own});
                        //@ end
                    }
                    //@ end
                    //@ end
                    //@ if tail then
                        //@ for _, own in ipairs(batch) do
                        {
                            f32 of_round[4];
                            own_weights(p, own_v_scale + quarter + ${own * QUARTERS},
                                        keep_u32(quad), of_round);
                            for (u32 i = 0; i < 4; i++)
                                most_${own} = larger(f_bits(of_round[i]), most_${own});
                        }
                        //@ end
                    //@ end
                    //@ for mask = 1, 2 do
                    //@ for _, own in ipairs(batch) do
                    most_${own} = larger(shuffle_xor_u32(most_${own}, ${mask}), most_${own});
                    //@ end
                    //@ end
                    u32 rare = 0;
                    //@ for _, own in ipairs(batch) do
                    const i32 size_${own} = (i32)(most_${own} >> 23) - 127;
                    const i32 power_${own} = (size_${own} < -100 ? -100 : size_${own}) - 15;
                    unit_${own}[${upper}] = f_pow2(power_${own} - ${code_shift + bits});
                    const f32 back_${own} = f_pow2(-power_${own});
                    const u32 rare_${own} = (most_${own} & 0x7fffff) >= 0x7fff80 ||
                                            most_${own} >= 0x7f800000u;
                    rare |= rare_${own};
                    //@ end
                    // Digits are the low halves of fma(w, back, 2^23): w * back <= 2^16, and there
                    // a unit in the last place is 1, so it rounds as to an integer. 2^16 is reached
                    // where the largest weight is just below a power of two or not finite, and only
                    // there.
                    //@ for block = 0, BLOCKS - 1 do
                    //@ for _, own in ipairs(batch) do
                    {
                        u32 digit[4];
                        //@ for i = 0, 3 do
                        digit[${i}] = f_bits(f_fma(scaled_${own}[${4 * block + i}], back_${own},
                                                   ${f32(2 ^ 23)}));
                        //@ end
                        //@ local at = block // 2 * 8 + block % 2 * 2 + upper
                        split_planes(digit, a_${own} + ${at}, a_${own} + ${at + 4});
                    }
                    //@ end
                    //@ end
                    if (rare) {
                        //@ for _, own in ipairs(batch) do
                        if (rare_${own})
                            limited_digits(p + quad * 4, scales + ${own * QUARTERS * vs_stride},
                                           back_${own}, a_${own} + ${upper});
                        //@ end
                    }
                }
                //@ end
                //@ for upper = 0, 1 do
                const u32 row_${upper} = row_tile * ${ROW_TILE} + line + ${8 * upper};
                const f32 old_${upper} = row_old[row_${upper}];
                const f32 new_${upper} = row_new[row_${upper}];
                //@ if tail then
                const u32 live_${upper} = row_live[row_${upper}];
                //@ end
                //@ end
                //@ if not tail then
                // Most tiles leave the largest score where it was.
                if (warp_ballot(!f_eq(old_0, ${f32(1)}) || !f_eq(old_1, ${f32(1)}))) {
                    //@ for _, own in ipairs(batch) do
                    //@ for e = 0, DIM_TILES * 4 - 1 do
                    sum_${own}[${e}] = f_mul(sum_${own}[${e}], old_${e % 4 // 2});
                    //@ end
                    //@ end
                }
                //@ end
                //@ for _, own in ipairs(batch) do
                {
                    const u32 g = quarter + ${own * QUARTERS};
                    const u32 line = keep_u32(lane / 4), quad = keep_u32(lane % 4);
                    const u32 *a = a_${own};
                    const f32 *unit = unit_${own};
                    const f32 unit_new[2] = {f_mul(unit[0], new_0), f_mul(unit[1], new_1)};
                    u32 bytes[${4 * BLOCKS}]; // [32 keys][n8 tile][16 keys]
                    //@ for at = 0, BLOCKS - 1 do
                    load4_u32(unpacked + ${TILE * k_stride + at * v_block} +
                                  g * ${BLOCKS * v_block} + (lane ^ quarter % 2 * 4) * 4,
                              bytes + ${4 * at});
                    //@ end
                    //@ if bits == 8 then
                    i32 c_all[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                    {
                        u32 ones[2] = ${ONES};
                        //@ for step = 0, steps - 1 do
                        mma_u8s8_ab(2, 1, c_all, a + ${step * 8}, ones);
                        //@ end
                        //@ if tail then
                        u32 own_a[8];
                        own_digits(before, own_v_scale + g, unit, line, quad, own_a);
                        mma_u8s8_ab(2, 1, c_all, own_a, ones);
                        //@ end
                    }
                    //@ end
                    //@ for i = 0, DIM_TILES - 1 do
                    {
                        i32 c[8] = {0, 0, 0, 0, 0, 0, 0, 0}; // [plane][4]
                        //@ for step = 0, steps - 1 do
                        mma_u8s8_ab(2, 1, c, a + ${step * 8}, bytes + ${8 * step + 2 * i});
                        //@ end
                        //@ if tail then
                        { // 8 keys: two quads of the first half have them
                            u32 own_a[8], own_packed[${PACKED}];
                            const u32 own_line = keep_u32(line), own_quad = keep_u32(quad);
                            own_digits(before, own_v_scale + g, unit, own_line, own_quad, own_a);
                            value_words(own_v + own_quad % 2 * ${4 * words} + g * ${bits}, ${words},
                                        own_line, own_packed);
                            const u32 b[2] = {
                                own_quad < 2 ? value_bytes_${i}(own_packed) : 0, 0};
                            mma_u8s8_ab(2, 1, c, own_a, b);
                        }
                        //@ end
                        //@ for e = 0, 3 do
                        //@ local to, upper = i * 4 + e, e // 2
                        {
                            //@ if bits == 8 then
                            const i32 high = 2 * c[${e}] + c_all[${e}];
                            const i32 low = 2 * c[${4 + e}] + c_all[${4 + e}];
                            //@ else
                            const i32 high = c[${e}], low = c[${4 + e}];
                            //@ end
                            const f32 tile_sum = f_from_i32(high * ${1 << 8} + low);
                            f32 *sum = &sum_${own}[${to}];
                            //@ if tail then
                            if (live_${upper})
                                *sum = f_fma(tile_sum, unit_new[${upper}],
                                             f_mul(*sum, old_${upper}));
                            //@ else
                            *sum = f_fma(tile_sum, unit_new[${upper}], *sum);
                            //@ end
                        }
                        //@ end
                    }
                    //@ end
                }
                //@ end
                }
                //@ end
            }
            //@ end

            if (tile == tiles)
                break;
            issue_values(v_packed, v_codes, v_scales, slot, head, thread);
            if (more)
                issue_keys(k_packed, k_codes, k_scales, next_slot, head, thread);
            copy_async_commit();
            slot = next_slot;

            // Scores: a warp takes every fourth 8 keys; the first of a row tile also the round's
            // own, in columns of their own, where they can lie in the tile.
            //@ if score_sides == 1 then
            block_sync(); // P.V has read the scores of the tile before
            //@ end
            if (works) {
                // This lane's row of the matrices that load_matrix_x4 reads: rows 0..7 and 8..15 of
                // a group's first half, then of its second.
                const u32 *fragment = queries + (row_tile * ${ROW_TILE} + lane % 16) * ${q_stride} +
                                      lane / 16 * 4;
                const u32 *bytes = unpacked + (quarter * 8 + line) * ${k_stride};
                const f32 *scales = k_scale + (quarter * 8 + quad * 2) * ${ks_stride};
                const f32 *of_rows = query_scale + (row_tile * ${ROW_TILE} + line) * ${GROUPS};
                f32 *to = of_tile + (row_tile * ${ROW_TILE} + line) * ${s_stride} + quad * 2;
                {
                    f32 s[${4 * OCTETS}];
                    for (u32 i = 0; i < ${4 * OCTETS}; i++)
                        s[i] = ${f32(0)};
                    //@ for first = 0, GROUPS - 1, 4 do
                    {
                        f32 k[${8 * OCTETS}], q[8]; // [key][group], [row][group]
                        load4_f32(of_rows + ${first}, q);
                        load4_f32(of_rows + ${8 * GROUPS + first}, q + 4);
                        //@ for i = 0, 2 * OCTETS - 1 do
                        load4_f32(scales +
                                      ${(i // 2 * 8 * QUARTERS + i % 2) * ks_stride + first},
                                  k + ${4 * i});
                        //@ end
                        //@ for g = first, first + 3 do
                        {
                            u32 a[8], b[${2 * OCTETS}];
                            load_matrix_x4(a, fragment + ${8 * g});
                            load_matrix_x4(a + 4, fragment + ${table_rows * q_stride + 8 * g});
                            //@ for i = 0, OCTETS - 1 do
                            load2_u32(bytes + ${i * 8 * QUARTERS * k_stride + 8 * g} +
                                          (quad * 2 ^ ${g // 4 * 4}),
                                      b + ${2 * i});
                            //@ end
                            const f32 of_pair[2] = {q[${g - first}], q[${4 + g - first}]};
                            const f32 of_keys[${2 * OCTETS}] = {
                                //@ for i = 0, 2 * OCTETS - 1 do
                                k[${4 * i + g - first}],
                                //@ end
                            };
                            add_scores_${OCTETS}(a, b, of_pair, of_keys, s);
                        }
                        //@ end
                    }
                    //@ end
                    //@ for i = 0, OCTETS - 1 do
                    store_scores(to + (quarter + ${i * QUARTERS}) * 8, s + ${4 * i});
                    //@ end
                }
                if (tail && quarter == 0) {
                    const u32 *codes = own_k + line * ${words};
                    const h16 *of_own = own_k_scale + quad * ${2 * GROUPS};
                    f32 s[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
                    //@ for g = 0, GROUPS - 1 do
                    {
                        u32 a[8], code[${bits}];
                        load_codes(codes + ${g * bits}, code);
                        const u32 b[2] = {key_bytes(code, 0, quad), key_bytes(code, 1, quad)};
                        const f32 q[2] = {of_rows[${g}], of_rows[${8 * GROUPS + g}]};
                        const f32 k[2] = {f_from_h(of_own[${g}]), f_from_h(of_own[${GROUPS + g}])};
                        load_matrix_x4(a, fragment + ${8 * g});
                        load_matrix_x4(a + 4, fragment + ${table_rows * q_stride + 8 * g});
                        add_scores_1(a, b, q, k, s);
                    }
                    //@ end
                    store_scores(to + ${TILE}, s);
                }
            }
            copy_async_wait(0);
            block_sync();

            // Weights: a warp takes ${ROWS_AT_ONCE} rows at a time.
            for (u32 row = ${ROWS_AT_ONCE} * warp; row < active; row += ${ROWS_AT_ONCE * warps})
                row_weights(of_tile, first_row, row, active, first_key, round, lane, row_max,
                            row_sum, row_old, row_new, row_live);
            for (u32 part = warp; part < ${KEY_PARTS + VALUE_PARTS}; part += ${warps}) {
                if (part >= ${KEY_PARTS})
                    unpack_values(unpacked + ${TILE * k_stride}, v_scale, v_packed,
                                  part - ${KEY_PARTS}, lane, first_key, base);
                else if (more)
                    unpack_keys(unpacked, k_scale, k_packed, part, lane);
            }
            block_sync();
        }
        // The span's slot.
        //@ for own = 0, OWN_GROUPS - 1 do
        //@ for upper = 0, 1 do
        {
            const u32 row = first_row + row_tile * ${ROW_TILE} + line + ${8 * upper};
            f32 *to = out + ((span * ${row_limit} + row / ${group}) * ${q_heads} +
                             head * ${group} + row % ${group}) * ${HEAD} +
                      (quarter + ${own * QUARTERS}) * ${GROUP_DIMS} + quad / 2 * 16 +
                      quad % 2 * 4;
            // A lane has 8 dims. Two lanes exchange halves, so that stores fill whole sectors.
            f32 v[8];
            //@ for i = 0, 3 do
            {
                const f32 first = sum_${own}[${i * 4 + 2 * upper}];
                const f32 second = sum_${own}[${i * 4 + 2 * upper + 1}];
                const f32 other = shuffle_xor_f32(quad % 2 ? first : second, 1);
                v[${i}] = quad % 2 ? other : first;
                v[${i + 4}] = quad % 2 ? second : other;
            }
            //@ end
            if (row_tile * ${ROW_TILE} + line + ${8 * upper} < active) {
                store4_f32(to, v);
                store4_f32(to + 8, v + 4);
            }
        }
        //@ end
        //@ end
        for (u32 at = thread; at < active; at += ${threads}) {
            const u32 row = first_row + at;
            u32 *to = out_stat + ((span * ${row_limit} + row / ${group}) * ${q_heads} +
                                  head * ${group} + row % ${group}) * 2;
            to[0] = (u32)row_max[at];
            to[1] = f_bits(row_sum[at]);
        }
    ${items.close}
}
