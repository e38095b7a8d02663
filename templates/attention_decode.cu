//@ -- see schedules/attention_decode.lua
//@ include("lib_vector")
//@ include("lib_spans")
//@ include("lib_codes")
//@ include("lib_softmax")
//@ local threads = 32 * warps
//@ local DIM_TILES = GROUP_DIMS // 8        -- n8 tiles of a group
//@ local k_words = TILE * words              -- codes of the keys of a stage
//@ local scale_words = TILE * GROUPS // 2    -- scales, two a word
//@ local v_at, ks_at, vs_at = k_words, 2 * k_words, 2 * k_words + scale_words
//@ local tile_pieces = k_words // 4          -- 16-byte copies
//@ local own_words = row_limit * words        -- codes of the round's own keys
//@ local steps = TILE // 32                   -- of 32 keys; the round's own are one step more
//@ local AT_ONCE = 2                          -- groups whose codes a lane holds in the scores
//@ local SIDE = 1                             -- n8 tiles whose sums a lane holds in P.V
//@ local ONES = "{0x01010101u, 0x01010101u}"
// Where a stage has the values of a key: of each 16 keys first every fourth. The four quads of a
// warp, which read keys four apart, then read rows that follow each other, on different banks.
static FN u32 value_row(u32 key)
{
    return key / 16 * 16 + key % 4 * 4 + key / 4 % 4;
}

// Copies one tile of keys and values of one head; a tile lies in one page.
static FN void issue_tile(u32 *stage, const u32 *k_codes, const h16 *k_scales, const u32 *v_codes,
                          const h16 *v_scales, const u32 *pages, u32 first_key, u32 head,
                          u32 thread)
{
    const u32 slot = pages[first_key / ${PAGE}] * ${PAGE} + first_key % ${PAGE};
    const u64 group = ((u64)slot * ${kv_heads} + head) * ${GROUPS};
    const u32 *k_from = k_codes + group * ${bits}, *v_from = v_codes + group * ${bits};
    const h16 *ks_from = k_scales + group, *vs_from = v_scales + group;
    const u32 first = keep_u32(thread); // not to keep places of pieces from tile to tile
    for (u32 piece = first; piece < ${tile_pieces}; piece += ${threads}) {
        const u32 key = piece / ${words // 4}, part = piece % ${words // 4} * 4;
        const u32 at = key * ${kv_heads * words} + part;
        copy_async16(stage + key * ${words} + part, k_from + at);
        copy_async16(stage + ${v_at} + value_row(key) * ${words} + part, v_from + at);
    }
    for (u32 key = first; key < ${TILE}; key += ${threads}) {
        const u32 at = key * ${kv_heads * GROUPS};
        copy_async16(stage + ${ks_at} + key * ${GROUPS // 2}, ks_from + at);
        copy_async16(stage + ${vs_at} + value_row(key) * ${GROUPS // 2}, vs_from + at);
    }
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

// Two of them, aligned together.
static FN void load2_f32(const f32 *from, f32 v[2])
{
    u32 words[2];
    load2_u32((const u32 *)from, words);
    v[0] = f_from_bits(words[0]);
    v[1] = f_from_bits(words[1]);
}

static FN void load2_h16(const h16 *from, f32 v[2])
{
    const u32 pair = *(const u32 *)from;
    v[0] = f_from_h(h_from_bits((u16)pair));
    v[1] = f_from_h(h_from_bits((u16)(pair >> 16)));
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
        // unit is 2^(power - ${code_shift}); this is 2^-power.
        const f32 back = f_from_bits(${254 - code_shift << 23}u - f_bits(unit[${upper}]));
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

KERNEL
{
    const u32 rows = round[0];
    const u32 thread = thread_id(), lane = lane_id(), warp = warp_id();
    const u32 quad = lane % 4, line = lane / 4;
    u32 *queries = ${shared.queries};
    f32 *query_scale = ${shared.query_scale};
    f32 *score = ${shared.score};
    u32 *ring = ${shared.ring};
    i32 *row_max = ${shared.row_max};
    f32 *row_sum = ${shared.row_sum}, *row_old = ${shared.row_old}, *row_new = ${shared.row_new};
    u32 *row_live = ${shared.row_live};
    u32 *own_k = ${shared.own_k}, *own_v = ${shared.own_v};
    h16 *own_k_scale = ${shared.own_k_scale}, *own_v_scale = ${shared.own_v_scale};
    const u32 last = round_last(round);
    const u32 spans = span_of(last) + 1;
    const u32 row_tiles = (rows * ${group} + ${ROW_TILE - 1}) / ${ROW_TILE};
    ${items.open}
        const u32 span = spans - 1 - order, first_row = row_tile * ${ROW_TILE};
        const u32 left = rows * ${group} - first_row;
        const u32 active = left < ${ROW_TILE} ? left : ${ROW_TILE};
        block_sync();
        for (u32 i = thread; i < ${2 * ROW_TILE * HEAD // 16}; i += ${threads}) {
            const u32 plane = i / ${ROW_TILE * HEAD // 16};
            const u32 row = i / ${HEAD // 16} % ${ROW_TILE}, word = i % ${HEAD // 16} * 4;
            const u32 position = (first_row + row) / ${group};
            const u32 query = head * ${group} + (first_row + row) % ${group};
            u32 value[4] = {0, 0, 0, 0};
            if (row < active)
                load4_u32(q_planes + ((plane * ${row_limit} + position) * ${q_heads} + query) *
                                         ${HEAD // 4} + word, value);
            store4_u32(queries + (plane * ${ROW_TILE} + row) * ${q_stride} + word, value);
        }
        for (u32 i = thread; i < ${ROW_TILE * GROUPS}; i += ${threads}) {
            const u32 row = first_row + i / ${GROUPS};
            query_scale[i] = ${f32(0)};
            if (i / ${GROUPS} < active)
                query_scale[i] = f_mul(q_scale[((row / ${group}) * ${q_heads} +
                                                head * ${group} + row % ${group}) * ${GROUPS} +
                                               i % ${GROUPS}], ${f32(2 ^ -code_shift)});
        }
        for (u32 i = thread; i < ${own_words}; i += ${threads}) {
            const u32 at = (i / ${words} * ${kv_heads} + head) * ${words} + i % ${words};
            own_k[i] = own_k_codes[at];
            own_v[i] = own_v_codes[at];
        }
        for (u32 i = thread; i < ${row_limit * GROUPS}; i += ${threads}) {
            const u32 at = (i / ${GROUPS} * ${kv_heads} + head) * ${GROUPS} + i % ${GROUPS};
            own_k_scale[i] = own_k_scales[at];
            own_v_scale[i] = own_v_scales[at];
        }
        for (u32 row = thread; row < ${ROW_TILE}; row += ${threads}) {
            row_max[row] = -(1 << 30);
            row_sum[row] = ${f32(0)};
            row_old[row] = ${f32(0)};
            row_new[row] = ${f32(0)};
            row_live[row] = 0;
        }
        //@ for own = 0, groups_per_warp - 1 do
        f32 sum_${own}[${DIM_TILES * 4}];
        for (u32 i = 0; i < ${DIM_TILES * 4}; i++)
            sum_${own}[i] = ${f32(0)};
        //@ end
        const u32 begin = span_start(span);
        const u32 most = span_size(span), there = last + 1 - begin;
        const u32 tiles = ((there < most ? there : most) + ${TILE - 1}) / ${TILE};
        //@ for s = 0, stages - 2 do
        if (${s} < tiles)
            issue_tile(ring + ${s * stage_words}, k_codes, k_scales, v_codes, v_scales, pages,
                       begin + ${s * TILE}, head, thread);
        copy_async_commit();
        //@ end
        for (u32 tile = 0; tile < tiles; tile++) {
            const u32 first_key = begin + tile * ${TILE};
            const u32 base = round[1];
            // Made again for every tile: what follows from them is not worth registers.
            const u32 thread = keep_u32(thread_id()), lane = thread % 32, warp = thread / 32;
            const u32 quad = lane % 4, line = lane / 4;
            u32 *stage = ring + tile % ${stages} * ${stage_words};
            //@ if stages == 1 then
            block_sync();
            issue_tile(ring, k_codes, k_scales, v_codes, v_scales, pages, first_key, head, thread);
            copy_async_commit();
            copy_async_wait(0);
            block_sync();
            //@ else
            copy_async_wait(${stages - 2});
            block_sync();
            if (tile + ${stages - 1} < tiles)
                issue_tile(ring + (tile + ${stages - 1}) % ${stages} * ${stage_words}, k_codes,
                           k_scales, v_codes, v_scales, pages,
                           first_key + ${(stages - 1) * TILE}, head, thread);
            copy_async_commit();
            //@ end

            // Scores: a warp takes 8 keys at a time; the first one also the round's own keys, in
            // columns of their own, where they can lie in the tile.
            const u32 tail = first_key + ${TILE} > base;
            const u32 parts = ${keys_per_warp} + (tail && warp == 0);
            for (u32 part = keep_u32(0); part < parts; part++) {
                // This lane's row of the matrices that load_matrix_x4 reads: rows 0..7 and 8..15 of
                // a group's first half, then of its second.
                const u32 *fragment = queries + (lane / 8 % 2 * 8 + lane % 8) * ${q_stride} +
                                      lane / 16 * 4;
                const u32 cached = part < ${keys_per_warp};
                const u32 key = cached ? (warp * ${keys_per_warp} + part) * 8 : ${TILE};
                const u32 *codes = cached ? stage + (key + line) * ${words}
                                          : own_k + line * ${words};
                const h16 *scales = cached ? (const h16 *)(stage + ${ks_at}) +
                                                 (key + quad * 2) * ${GROUPS}
                                           : own_k_scale + quad * ${2 * GROUPS};
                f32 s[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
                for (u32 first = keep_u32(0); first < ${GROUPS}; first += ${AT_ONCE}) {
                    u32 code[${AT_ONCE * bits}];
                    f32 q0[2], q1[2], k0[2], k1[2]; // scales of the lane's two rows, two keys
                    //@ for i = 0, AT_ONCE * bits - 2, 2 do
                    load2_u32(codes + first * ${bits} + ${i}, code + ${i});
                    //@ end
                    load2_f32(query_scale + line * ${GROUPS} + first, q0);
                    load2_f32(query_scale + (line + 8) * ${GROUPS} + first, q1);
                    load2_h16(scales + first, k0);
                    load2_h16(scales + ${GROUPS} + first, k1);
                    //@ for g = 0, AT_ONCE - 1 do
                    {
                        u32 a[8], b[2];
                        i32 c[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                        b[0] = key_bytes(code + ${g * bits}, 0, quad);
                        b[1] = key_bytes(code + ${g * bits}, 1, quad);
                        load_matrix_x4(a, fragment + (first + ${g}) * 8);
                        load_matrix_x4(a + 4,
                                       fragment + ${ROW_TILE * q_stride} + (first + ${g}) * 8);
                        mma_s8s8_ab(2, 1, c, a, b);
                        //@ if bits == 8 then
                        for (u32 e = 0; e < 8; e++)
                            c[e] *= 2;
                        u32 ones[2] = ${ONES};
                        mma_s8s8_ab(2, 1, c, a, ones);
                        //@ end
                        //@ for e = 0, 3 do
                        s[${e}] = f_fma(f_from_i32(c[${e}] * ${1 << 8} + c[${4 + e}]),
                                        f_mul(q${e // 2}[${g}], k${e % 2}[${g}]), s[${e}]);
                        //@ end
                    }
                    //@ end
                }
                //@ for upper = 0, 1 do
                {
                    const u32 pair[2] = {f_bits(s[${2 * upper}]), f_bits(s[${2 * upper + 1}])};
                    store2_u32((u32 *)score + (line + ${8 * upper}) * ${s_stride} + key + quad * 2,
                               pair);
                }
                //@ end
            }
            block_sync();

            // Weights: a warp takes two rows at a time.
            for (u32 row = 2 * warp; row < active; row += ${2 * warps})
                row_weights(score, first_row, row, active, first_key, round, lane, row_max, row_sum,
                            row_old, row_new, row_live);
            if (tail) // what lies behind the cached keys may be anything
                for (u32 i = thread; i < ${scale_words}; i += ${threads})
                    if (first_key + i / ${GROUPS // 2} >= base)
                        stage[${vs_at} + value_row(i / ${GROUPS // 2}) * ${GROUPS // 2} +
                              i % ${GROUPS // 2}] = 0;
            block_sync();

            // P.V: a warp owns whole 32-dim groups; a lane makes its own fragments. A lane's column
            // n of tile i is dim 4n + i: its four dims lie in the same bytes of the planes.
            //@ for own = 0, groups_per_warp - 1 do
            {
                const u32 line = keep_u32(lane / 4), quad = keep_u32(lane % 4);
                const u32 g = warp * ${groups_per_warp} + ${own};
                u32 packed[${2 * steps * PACKED}]; // [16 keys][...]
                u32 a[${steps * 8}];               // [k step][plane][4]
                f32 unit[2];
                {
                    f32 weight[${2 * TILE // 4}]; // [row][16 keys][4]: of this lane's fragments
                    u32 top[2] = {0, 0};
                    const f32 *p = score + line * ${s_stride} + quad * 4;
                    //@ for block = 0, 2 * steps - 1 do
                    {
                        const h16 *scales = (const h16 *)(stage + ${vs_at}) +
                                            (${16 * block} + quad) * ${GROUPS} + g;
                        f32 scale[4];
                        //@ for i = 0, 3 do
                        scale[${i}] = f_from_h(scales[${4 * i * GROUPS}]);
                        //@ end
                        //@ for upper = 0, 1 do
                        load4_f32(p + ${8 * upper * s_stride + 16 * block},
                                  weight + ${upper * TILE // 4 + 4 * block});
                        //@ for i = 0, 3 do
                        //@ local at = upper * TILE // 4 + 4 * block + i
                        weight[${at}] = f_mul(weight[${at}], scale[${i}]);
                        top[${upper}] = larger(f_bits(weight[${at}]), top[${upper}]);
                        //@ end
                        //@ end
                    }
                    //@ end
                    //@ for upper = 0, 1 do
                    {
                        if (tail) {
                            f32 of_round[4];
                            own_weights(p + ${8 * upper * s_stride} - quad * 4, own_v_scale + g,
                                        keep_u32(quad), of_round);
                            for (u32 i = 0; i < 4; i++)
                                top[${upper}] = larger(f_bits(of_round[i]), top[${upper}]);
                        }
                        u32 most = larger(shuffle_xor_u32(top[${upper}], 1), top[${upper}]);
                        most = larger(shuffle_xor_u32(most, 2), most);
                        i32 power = (i32)(most >> 23) - 127;
                        power = (power < -100 ? -100 : power) - 15;
                        unit[${upper}] = f_pow2(power - ${code_shift});
                        f32 back = f_pow2(-power);
                        // Digits are the low halves of fma(w, back, 2^23): w * back <= 2^16, and
                        // there a unit in the last place is 1, so it rounds as to an integer. 2^16
                        // is reached where the largest weight is just below a power of two or
                        // not finite, and only there.
                        if ((most & 0x7fffff) >= 0x7fff80 || most >= 0x7f800000u) {
                            //@ for at = upper * TILE // 4, (upper + 1) * TILE // 4 - 1 do
                            weight[${at}] = f_from_u32(f_to_u16_rn(f_mul(weight[${at}], back)));
                            //@ end
                            back = ${f32(1)};
                        }
                        //@ for block = 0, 2 * steps - 1 do
                        {
                            u32 digit[4];
                            //@ for i = 0, 3 do
                            //@ local at = upper * TILE // 4 + 4 * block + i
                            digit[${i}] = f_bits(f_fma(weight[${at}], back, ${f32(2 ^ 23)}));
                            //@ end
                            //@ local at = block // 2 * 8 + block % 2 * 2 + upper
                            split_planes(digit, a + ${at}, a + ${at + 4});
                        }
                        //@ end
                    }
                    //@ end
                }
                //@ for block = 0, 2 * steps - 1 do
                value_words(stage + ${v_at + 16 * block * words} + quad * ${words} + g * ${bits},
                            ${4 * words}, line, packed + ${block * PACKED});
                //@ end
                //@ if bits == 8 then
                i32 c_all[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                {
                    u32 ones[2] = ${ONES};
                    //@ for step = 0, steps - 1 do
                    mma_u8s8_ab(2, 1, c_all, a + ${step * 8}, ones);
                    //@ end
                    if (tail) {
                        u32 own_a[8];
                        own_digits(score, own_v_scale + g, unit, line, quad, own_a);
                        mma_u8s8_ab(2, 1, c_all, own_a, ones);
                    }
                }
                //@ end
                //@ for upper = 0, 1 do
                const f32 old_${upper} = row_old[${8 * upper} + line];
                const f32 new_${upper} = row_new[${8 * upper} + line];
                const u32 live_${upper} = tail ? row_live[${8 * upper} + line] : 1;
                //@ end
                //@ for first = 0, DIM_TILES - 1, SIDE do
                {
                    i32 c[${2 * SIDE * 4}]; // [plane][dims 4n + first + i][4]
                    for (u32 i = 0; i < ${2 * SIDE * 4}; i++)
                        c[i] = 0;
                    //@ for step = 0, steps - 1 do
                    {
                        u32 b[${2 * SIDE}];
                        //@ for i = 0, SIDE - 1 do
                        //@ for half = 0, 1 do
                        b[${2 * i + half}] = value_bytes_${first + i}(packed +
                                                             ${(2 * step + half) * PACKED});
                        //@ end
                        //@ end
                        mma_u8s8_ab(2, ${SIDE}, c, a + ${step * 8}, b);
                    }
                    //@ end
                    if (tail) { // 8 keys: two quads of the first half have them
                        u32 own_a[8], own_packed[${PACKED}], b[${2 * SIDE}];
                        const u32 own_line = keep_u32(line), own_quad = keep_u32(quad);
                        own_digits(score, own_v_scale + g, unit, own_line, own_quad, own_a);
                        value_words(own_v + own_quad % 2 * ${4 * words} + g * ${bits}, ${words},
                                    own_line, own_packed);
                        //@ for i = 0, SIDE - 1 do
                        b[${2 * i}] = own_quad < 2 ? value_bytes_${first + i}(own_packed) : 0;
                        b[${2 * i + 1}] = 0;
                        //@ end
                        mma_u8s8_ab(2, ${SIDE}, c, own_a, b);
                    }
                    //@ for upper = 0, 1 do
                    if (live_${upper}) {
                        //@ for i = 0, SIDE - 1 do
                        //@ for e = 2 * upper, 2 * upper + 1 do
                        //@ local at, to = i * 4 + e, (first + i) * 4 + e
                        {
                            //@ if bits == 8 then
                            const i32 high = 2 * c[${at}] + c_all[${e}];
                            const i32 low = 2 * c[${SIDE * 4 + at}] + c_all[${4 + e}];
                            //@ else
                            const i32 high = c[${at}], low = c[${SIDE * 4 + at}];
                            //@ end
                            const f32 tile_sum = f_mul(f_from_i32(high * ${1 << 8} + low),
                                                       unit[${upper}]);
                            sum_${own}[${to}] = f_fma(tile_sum, new_${upper},
                                                      f_mul(sum_${own}[${to}], old_${upper}));
                        }
                        //@ end
                        //@ end
                    }
                    //@ end
                }
                //@ end
            }
            //@ end
        }
        // The span's slot. Codes are in units of scale / 2^bits.
        //@ for own = 0, groups_per_warp - 1 do
        //@ for upper = 0, 1 do
        if (line + ${8 * upper} < active) {
            const u32 row = first_row + ${8 * upper} + line;
            f32 *to = out + ((span * ${row_limit} + row / ${group}) * ${q_heads} +
                             head * ${group} + row % ${group}) * ${HEAD} +
                      (warp * ${groups_per_warp} + ${own}) * ${GROUP_DIMS} + quad * 8;
            f32 v[4];
            //@ for e = 0, 1 do
            //@ for i = 0, 3 do
            v[${i}] = f_mul(sum_${own}[${i * 4 + 2 * upper + e}], ${f32(2 ^ -bits)});
            //@ end
            store4_f32(to + ${4 * e}, v);
            //@ end
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
