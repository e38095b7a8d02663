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
// Copies one tile of keys and values of one head; a tile lies in one page.
static FN void issue_tile(u32 *stage, const u32 *k_codes, const h16 *k_scales, const u32 *v_codes,
                          const h16 *v_scales, const u32 *pages, u32 first_key, u32 head,
                          u32 thread)
{
    const u32 slot = pages[first_key / ${PAGE}] * ${PAGE} + first_key % ${PAGE};
    for (u32 piece = thread; piece < ${tile_pieces}; piece += ${threads}) {
        const u32 key = piece / ${words // 4}, part = piece % ${words // 4} * 4;
        const u64 at = ((u64)(slot + key) * ${kv_heads} + head) * ${words} + part;
        copy_async16(stage + key * ${words} + part, k_codes + at);
        copy_async16(stage + ${v_at} + key * ${words} + part, v_codes + at);
    }
    for (u32 key = thread; key < ${TILE}; key += ${threads}) {
        const u64 at = ((u64)(slot + key) * ${kv_heads} + head) * ${GROUPS};
        copy_async16(stage + ${ks_at} + key * ${GROUPS // 2}, k_scales + at);
        copy_async16(stage + ${vs_at} + key * ${GROUPS // 2}, v_scales + at);
    }
}

// Values of four keys, one group: bytes of the four keys of one dim into one register, for dims
// line + 8i, to b[2i].
static FN void value_fragment(const u32 *codes, u32 line, u32 *b)
{
    //@ for i = 0, 3 do
    const u32 x${i} = value_bytes(codes + ${i * words}, line);
    //@ end
    const u32 t0 = byte_permute(x0, x1, 0x5140), t1 = byte_permute(x2, x3, 0x5140);
    const u32 t2 = byte_permute(x0, x1, 0x7362), t3 = byte_permute(x2, x3, 0x7362);
    b[0] = byte_permute(t0, t1, 0x5410);
    b[2] = byte_permute(t0, t1, 0x7632);
    b[4] = byte_permute(t2, t3, 0x5410);
    b[6] = byte_permute(t2, t3, 0x7632);
}

// Four weights as integers in two byte planes.
static FN void weight_planes(const f32 weight[4], f32 back, u32 *high, u32 *low)
{
    u32 digit[4];
    for (u32 i = 0; i < 4; i++)
        digit[i] = f_to_u16_rn(f_mul(weight[i], back));
    const u32 first = byte_permute(digit[0], digit[1], 0x5410);
    const u32 second = byte_permute(digit[2], digit[3], 0x5410);
    *high = byte_permute(first, second, 0x7531);
    *low = byte_permute(first, second, 0x6420);
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
    const u32 base = round[1];
    const u32 last = round_last(round);
    const u32 spans = span_of(last) + 1;
    const u32 active = rows * ${group};
    u32 loaded = ${kv_heads};
    ${items.open}
        const u32 span = spans - 1 - order;
        block_sync();
        if (head != loaded) {
            loaded = head;
            for (u32 i = thread; i < ${2 * table_rows * HEAD // 4}; i += ${threads}) {
                const u32 plane = i / ${table_rows * HEAD // 4};
                const u32 row = i / ${HEAD // 4} % ${table_rows};
                const u32 word = i % ${HEAD // 4};
                u32 value = 0;
                if (row < active)
                    value = q_planes[((plane * ${row_limit} + row / ${group}) * ${q_heads} +
                                      head * ${group} + row % ${group}) * ${HEAD // 4} + word];
                queries[(plane * ${table_rows} + row) * ${q_stride} + word] = value;
            }
            for (u32 i = thread; i < ${table_rows * GROUPS}; i += ${threads}) {
                const u32 row = i / ${GROUPS};
                query_scale[i] = ${f32(0)};
                if (row < active)
                    query_scale[i] = q_scale[((row / ${group}) * ${q_heads} + head * ${group} +
                                              row % ${group}) * ${GROUPS} + i % ${GROUPS}];
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
        }
        for (u32 row = thread; row < ${table_rows}; row += ${threads}) {
            row_max[row] = -(1 << 30);
            row_sum[row] = ${f32(0)};
            row_live[row] = 0;
        }
        //@ for g = 0, groups_per_warp - 1 do
        //@ for mt = 0, row_tiles - 1 do
        f32 sum_${g}_${mt}[${DIM_TILES * 4}];
        for (u32 i = 0; i < ${DIM_TILES * 4}; i++)
            sum_${g}_${mt}[i] = ${f32(0)};
        //@ end
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
            const u32 *stage = ring + tile % ${stages} * ${stage_words};
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

            // Scores: a warp takes 8 keys at a time, all rows; the first one also the round's own
            // keys, in columns of their own, where they can lie in the tile.
            const u32 tail = first_key + ${TILE} > base;
            const u32 parts = ${keys_per_warp} + (tail && warp == 0);
            for (u32 part = 0; part < parts; part++) {
                const u32 cached = part < ${keys_per_warp};
                const u32 key = cached ? (warp * ${keys_per_warp} + part) * 8 : ${TILE};
                const u32 *codes = cached ? stage + (key + line) * ${words}
                                          : own_k + line * ${words};
                const h16 *scale_0 = cached ? (const h16 *)(stage + ${ks_at}) +
                                                  (key + quad * 2) * ${GROUPS}
                                            : own_k_scale + quad * ${2 * GROUPS};
                const h16 *scale_1 = scale_0 + ${GROUPS};
                //@ for mt = 0, row_tiles - 1 do
                f32 s_${mt}[4];
                //@ for e = 0, 3 do
                s_${mt}[${e}] = ${f32(0)};
                //@ end
                //@ end
                for (u32 g = 0; g < ${GROUPS}; g++) {
                    const f32 k0 = f_from_h(scale_0[g]), k1 = f_from_h(scale_1[g]);
                    u32 b[2];
                    b[0] = key_bytes(codes + g * ${bits}, 0, quad);
                    b[1] = key_bytes(codes + g * ${bits}, 1, quad);
                    //@ for mt = 0, row_tiles - 1 do
                    if (${16 * mt} < active) {
                        const u32 *high = queries + (${16 * mt} + line) * ${q_stride} +
                                          g * 8 + quad;
                        const u32 *low = high + ${table_rows * q_stride};
                        u32 a[8];
                        i32 c[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                        a[0] = high[0];
                        a[1] = high[${8 * q_stride}];
                        a[2] = high[4];
                        a[3] = high[${8 * q_stride + 4}];
                        a[4] = low[0];
                        a[5] = low[${8 * q_stride}];
                        a[6] = low[4];
                        a[7] = low[${8 * q_stride + 4}];
                        mma_s8s8_ab(2, 1, c, a, b);
                        //@ if bits == 8 then
                        for (u32 e = 0; e < 8; e++)
                            c[e] *= 2;
                        u32 ones[2] = {0x01010101u, 0x01010101u};
                        mma_s8s8_ab(2, 1, c, a, ones);
                        //@ end
                        const f32 q0 = query_scale[(${16 * mt} + line) * ${GROUPS} + g];
                        const f32 q1 = query_scale[(${16 * mt + 8} + line) * ${GROUPS} + g];
                        //@ for e = 0, 3 do
                        s_${mt}[${e}] = f_fma(f_from_i32(c[${e}] * ${1 << 8} + c[${4 + e}]),
                                              f_mul(q${e // 2}, k${e % 2}), s_${mt}[${e}]);
                        //@ end
                    }
                    //@ end
                }
                //@ for mt = 0, row_tiles - 1 do
                //@ for e = 0, 3 do
                score[(${16 * mt + e // 2 * 8} + line) * ${s_stride} + key + quad * 2 + ${e % 2}] =
                    s_${mt}[${e}];
                //@ end
                //@ end
            }
            block_sync();

            // Weights: a warp takes two rows at a time.
            for (u32 row = 2 * warp; row < active; row += ${2 * warps})
                row_weights(score, row, active, first_key, round, lane, row_max, row_sum, row_old,
                            row_new, row_live);
            block_sync();

            // P.V: a warp owns whole 32-dim groups; a lane makes its own fragments.
            //@ for own = 0, groups_per_warp - 1 do
            {
                const u32 g = warp * ${groups_per_warp} + ${own};
                u32 b[${steps * 4 * 2}]; // [k step][dims n + 8i][2]
                f32 scale[${TILE // 4}]; // of the keys of this lane's fragments
                //@ for step = 0, steps - 1 do
                //@ for half = 0, 1 do
                {
                    const u32 key = ${32 * step + 16 * half} + quad * 4;
                    const u32 *codes = stage + ${v_at} + key * ${words} + g * ${bits};
                    const h16 *scales = (const h16 *)(stage + ${vs_at}) + key * ${GROUPS} + g;
                    value_fragment(codes, line, b + ${step * 8 + half});
                    //@ for i = 0, 3 do
                    scale[${(step * 2 + half) * 4 + i}] = f_from_h(scales[${i * GROUPS}]);
                    if (tail && first_key + key + ${i} >= base) // what lies there may be anything
                        scale[${(step * 2 + half) * 4 + i}] = ${f32(0)};
                    //@ end
                }
                //@ end
                //@ end
                //@ for mt = 0, row_tiles - 1 do
                if (${16 * mt} < active) {
                    i32 c[${2 * DIM_TILES * 4}]; // [plane][dims n + 8i][4]
                    for (u32 i = 0; i < ${2 * DIM_TILES * 4}; i++)
                        c[i] = 0;
                    //@ if bits == 8 then
                    i32 c_all[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                    //@ end
                    f32 unit[2];
                    u32 a[${(steps + 1) * 8}]; // [k step][plane][4]
                    //@ for upper = 0, 1 do
                    {
                        const u32 row = ${16 * mt + 8 * upper} + line;
                        const f32 *p = score + row * ${s_stride} + quad * 4;
                        f32 weight[${TILE // 4 + 4}];
                        u32 top = 0;
                        //@ for at = 0, TILE // 4 - 4, 4 do
                        load4_f32(p + ${at * 4}, weight + ${at});
                        //@ end
                        //@ for at = 0, TILE // 4 - 1 do
                        weight[${at}] = f_mul(weight[${at}], scale[${at}]);
                        top = f_bits(weight[${at}]) > top ? f_bits(weight[${at}]) : top;
                        //@ end
                        if (tail) {
                            //@ for i = 0, 3 do
                            //@ local at = TILE // 4 + i
                            weight[${at}] = ${f32(0)};
                            if (quad < 2)
                                weight[${at}] = f_mul(
                                    p[${TILE + i}],
                                    f_from_h(own_v_scale[(quad * 4 + ${i}) * ${GROUPS} + g]));
                            top = f_bits(weight[${at}]) > top ? f_bits(weight[${at}]) : top;
                            //@ end
                        }
                        const u32 near = shuffle_xor_u32(top, 1);
                        top = near > top ? near : top;
                        const u32 far = shuffle_xor_u32(top, 2);
                        top = far > top ? far : top;
                        i32 power = (i32)(top >> 23) - 127;
                        power = (power < -100 ? -100 : power) - 15;
                        unit[${upper}] = f_pow2(power);
                        const f32 back = f_pow2(-power);
                        //@ for step = 0, steps - 1 do
                        //@ for half = 0, 1 do
                        weight_planes(weight + ${(step * 2 + half) * 4}, back,
                                      a + ${step * 8 + half * 2 + upper},
                                      a + ${step * 8 + 4 + half * 2 + upper});
                        //@ end
                        //@ end
                        if (tail) {
                            weight_planes(weight + ${TILE // 4}, back, a + ${steps * 8 + upper},
                                          a + ${steps * 8 + 4 + upper});
                            a[${steps * 8 + 2 + upper}] = 0;
                            a[${steps * 8 + 6 + upper}] = 0;
                        }
                    }
                    //@ end
                    //@ for step = 0, steps - 1 do
                    mma_u8s8_ab(2, 4, c, a + ${step * 8}, b + ${step * 8});
                    //@ end
                    if (tail) { // 8 keys: two quads of the first half have them
                        u32 own[8];
                        value_fragment(own_v + quad % 2 * ${4 * words} + g * ${bits}, line, own);
                        //@ for i = 0, 3 do
                        own[${2 * i}] = quad < 2 ? own[${2 * i}] : 0;
                        own[${2 * i + 1}] = 0;
                        //@ end
                        mma_u8s8_ab(2, 4, c, a + ${steps * 8}, own);
                    }
                    //@ if bits == 8 then
                    {
                        u32 ones[2] = {0x01010101u, 0x01010101u};
                        //@ for step = 0, steps - 1 do
                        mma_u8s8_ab(2, 1, c_all, a + ${step * 8}, ones);
                        //@ end
                        if (tail)
                            mma_u8s8_ab(2, 1, c_all, a + ${steps * 8}, ones);
                    }
                    //@ end
                    //@ for upper = 0, 1 do
                    {
                        const u32 row = ${16 * mt + 8 * upper} + line;
                        if (row < active && row_live[row]) {
                            const f32 old_scale = row_old[row], new_scale = row_new[row];
                            //@ for nt = 0, 3 do
                            //@ for e = 2 * upper, 2 * upper + 1 do
                            //@ local at = nt * 4 + e
                            {
                                //@ if bits == 8 then
                                const i32 high = 2 * c[${at}] + c_all[${e}];
                                const i32 low = 2 * c[${16 + at}] + c_all[${4 + e}];
                                //@ else
                                const i32 high = c[${at}], low = c[${16 + at}];
                                //@ end
                                const f32 tile_sum = f_mul(f_from_i32(high * ${1 << 8} + low),
                                                           unit[${upper}]);
                                sum_${own}_${mt}[${at}] =
                                    f_fma(tile_sum, new_scale,
                                          f_mul(sum_${own}_${mt}[${at}], old_scale));
                            }
                            //@ end
                            //@ end
                        }
                    }
                    //@ end
                }
                //@ end
            }
            //@ end
        }
        // The span's slot. Codes are in units of scale / 2^bits.
        //@ for own = 0, groups_per_warp - 1 do
        //@ for mt = 0, row_tiles - 1 do
        //@ for upper = 0, 1 do
        {
            const u32 row = ${16 * mt + 8 * upper} + line;
            if (row < active) {
                f32 *to = out + ((span * ${row_limit} + row / ${group}) * ${q_heads} +
                                 head * ${group} + row % ${group}) * ${HEAD} +
                          (warp * ${groups_per_warp} + ${own}) * ${GROUP_DIMS} + quad * 2;
                //@ for nt = 0, 3 do
                //@ for e = 0, 1 do
                to[${8 * nt + e}] = f_mul(sum_${own}_${mt}[${nt * 4 + 2 * upper + e}],
                                          ${f32(2 ^ -bits)});
                //@ end
                //@ end
            }
        }
        //@ end
        //@ end
        //@ end
        for (u32 row = thread; row < active; row += ${threads}) {
            u32 *to = out_stat + ((span * ${row_limit} + row / ${group}) * ${q_heads} +
                                  head * ${group} + row % ${group}) * 2;
            to[0] = (u32)row_max[row];
            to[1] = f_bits(row_sum[row]);
        }
    ${items.close}
}
