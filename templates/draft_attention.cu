//@ -- see schedules/draft_attention.lua
//@ include("lib_vector")
//@ include("lib_ring")
//@ local half_dims, half_keys = DIM // 2, TILE // 2
//@ local per_lane = TILE // 32                -- keys of a lane
//@ local pieces = DIM // 8                   -- of 16 bytes, of a head's keys
//@ local keys_a_turn = 32 * warps // pieces   -- keys that all threads bring in at once
//@ local turns = TILE // keys_a_turn
//@ local table_rows_a_warp = table_rows // warps
// Where a table row of a kv head lies in [tiles, 8, q_heads].
static FN u32 place_of(u32 tile, u32 row, u32 head)
{
    return (tile * ${row_limit} + row / ${group}) * ${q_heads} + head * ${group} + row % ${group};
}

// Table rows of one kv head, a row a warp at a time. Past row `active` it is read again: what is
// made of it goes nowhere.
static FN void issue_queries(f32 *to, const f32 *q, u32 head, u32 active, u32 warp, u32 lane)
{
    #pragma unroll
    for (u32 i = 0; i < ${table_rows_a_warp}; i++) {
        const u32 row = warp + i * ${warps}, from = row < active ? row : active - 1;
        copy_async16(to + row * ${DIM} + lane * 4,
                     q + place_of(0, from, head) * ${DIM} + lane * 4);
    }
}

// Elements of a ring where the 16-byte pieces of a tile begin that a thread brings in: piece
// thread % ${pieces} of keys thread / ${pieces} + i * ${keys_a_turn}. Positions outside of the
// round are read as the nearest inside: their weight is 0.
static FN void find_pieces(u32 at[${turns}], u32 start, u32 head, const u32 *round)
{
    const u32 first = ring_first(round), base = round[1], last = base + round[0] - 1;
    #pragma unroll
    for (u32 i = 0; i < ${turns}; i++) {
        const u32 key = start + thread_id() / ${pieces} + i * ${keys_a_turn};
        const u32 above = key < first ? first : key, position = above < last ? above : last;
        const u32 slot = position < base ? position % ${capacity} : ${capacity} + position - base;
        at[i] = (slot * ${kv_heads} + head) * ${DIM} + thread_id() % ${pieces} * 8;
    }
}

static FN void issue_pieces(h16 *tile, u32 stride, const h16 *ring, const u32 at[${turns}])
{
    h16 *to = tile + thread_id() / ${pieces} * stride + thread_id() % ${pieces} * 8;
    #pragma unroll
    for (u32 i = 0; i < ${turns}; i++)
        copy_async16(to + i * ${keys_a_turn} * stride, ring + at[i]);
}

static FN void unpack_halves(const u32 *words, u32 count, f32 *v)
{
    #pragma unroll
    for (u32 i = 0; i < count; i++) {
        v[2 * i] = f_from_h(h_from_bits((u16)words[i]));
        v[2 * i + 1] = f_from_h(h_from_bits((u16)(words[i] >> 16)));
    }
}

// One chain of the scores of ${rows_a_pass} rows and a lane's ${per_lane} keys. queries: f32 [rows,
// ${DIM}], keys: h16 [${TILE}, ${k_stride}], both from the chain's first dim.
static FN void score_rows(const f32 *queries, const h16 *keys, f32 *score, u32 lane)
{
    f32 sum[${rows_a_pass * per_lane}];
    #pragma unroll
    for (u32 i = 0; i < ${rows_a_pass * per_lane}; i++)
        sum[i] = ${f32(0)};
    #pragma unroll 2
    for (u32 dim = 0; dim < ${half_dims}; dim += 8) {
        f32 key[${per_lane * 8}];
        #pragma unroll
        for (u32 j = 0; j < ${per_lane}; j++) {
            u32 words[4];
            load4_u32((const u32 *)(keys + (lane + 32 * j) * ${k_stride} + dim), words);
            unpack_halves(words, 4, key + j * 8);
        }
        #pragma unroll
        for (u32 row = 0; row < ${rows_a_pass}; row++) {
            f32 query[8];
            load4_f32(queries + row * ${DIM} + dim, query);
            load4_f32(queries + row * ${DIM} + dim + 4, query + 4);
            #pragma unroll
            for (u32 i = 0; i < 8; i++) {
                #pragma unroll
                for (u32 j = 0; j < ${per_lane}; j++) {
                    f32 *s = sum + row * ${per_lane} + j;
                    *s = f_fma(query[i], key[j * 8 + i], *s);
                }
            }
        }
    }
    #pragma unroll
    for (u32 row = 0; row < ${rows_a_pass}; row++) {
        #pragma unroll
        for (u32 j = 0; j < ${per_lane}; j++)
            score[row * ${TILE} + lane + 32 * j] = sum[row * ${per_lane} + j];
    }
}

// f_exp2 where it is below 4.
static FN f32 small_exp2(f32 a)
{
    const f32 least = ${f32(-126)}, x = f_max(a, least);
    const i32 whole = f_to_i32_rn(x);
    const f32 result = f_exp2_parts(whole, f_sub(x, f_from_i32(whole)));
    return f_select(f_lt(a, least), ${f32(0)}, result);
}

// One row's softmax over the tile, by a warp: both chains' scores become weights in the first.
// Visible are positions low .. high. stat: this row's two words; m = -2^30 where nothing is
// visible.
static FN void weigh_row(f32 *score, u32 start, u32 low, u32 high, u32 lane, u32 *stat)
{
    f32 s[${per_lane}], best = f_from_bits(0xff800000u);
    u32 seen[${per_lane}], any = 0, units = 0;
    #pragma unroll
    for (u32 j = 0; j < ${per_lane}; j++) {
        const u32 key = lane + 32 * j;
        seen[j] = start + key >= low && start + key <= high;
        any |= seen[j];
        s[j] = f_add(score[key], score[${table_rows * TILE} + key]);
        best = f_max(best, f_select(seen[j], s[j], best));
    }
    const f32 inside = f_min(f_max(best, ${f32(-1e9)}), ${f32(1e9)});
    const i32 top = warp_max_i32(any ? f_to_i32_rn(f_floor(inside)) : -(1 << 30));
    const f32 edge = f_from_i32(top);
    #pragma unroll
    for (u32 j = 0; j < ${per_lane}; j++) {
        const f32 p = small_exp2(f_select(seen[j], f_sub(s[j], edge), ${f32(-1e9)}));
        score[lane + 32 * j] = p;
        units += (u32)f_to_i32_rn(f_mul(p, ${f32(2 ^ 24)}));
    }
    units = warp_sum_u32(units);
    if (lane == 0) {
        const u32 words[2] = {(u32)top, f_bits(f_mul(f_from_u32(units), ${f32(2 ^ -24)}))};
        store2_u32(stat, words);
    }
}

// One chain of P.V of ${rows_a_pass} rows and a lane's four dims. weights: f32 [rows, ${TILE}],
// values: h16 [keys, ${DIM}], both from the chain's first key.
static FN void weigh_values(const f32 *weights, const h16 *values, f32 sum[${rows_a_pass * 4}],
                            u32 lane)
{
    #pragma unroll
    for (u32 i = 0; i < ${rows_a_pass * 4}; i++)
        sum[i] = ${f32(0)};
    #pragma unroll 1
    for (u32 key = 0; key < ${half_keys}; key += 4) {
        f32 value[4 * 4];
        #pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 words[2];
            load2_u32((const u32 *)(values + (key + k) * ${DIM} + lane * 4), words);
            unpack_halves(words, 2, value + k * 4);
        }
        #pragma unroll
        for (u32 row = 0; row < ${rows_a_pass}; row++) {
            f32 p[4];
            load4_f32(weights + row * ${TILE} + key, p);
            #pragma unroll
            for (u32 k = 0; k < 4; k++) {
                #pragma unroll
                for (u32 i = 0; i < 4; i++)
                    sum[row * 4 + i] = f_fma(p[k], value[k * 4 + i], sum[row * 4 + i]);
            }
        }
    }
}

KERNEL
{
    start_next();
    const u32 rows = round[0], base = round[1];
    const u32 lane = lane_id(), warp = warp_id();
    const u32 chain = warp / ${warps // 2}, warp_row = warp % ${warps // 2} * ${warp_rows};
    f32 *queries = ${shared.queries}, *score = ${shared.score};
    h16 *keys = ${shared.keys}, *values = ${shared.values};
    const u32 active = rows * ${group}, tiles = ring_tiles(round);
    const u32 first_tile = ring_first(round) / ${TILE};
    ${items.open}
        const u32 start = (first_tile + tile) * ${TILE};
        u32 at[${turns}];
        find_pieces(at, start, head, round);
        block_sync();
        // Keys below base are of earlier passes, the others this one has made.
        const u32 committed = start + ${TILE} <= base;
        if (committed)
            issue_pieces(keys, ${k_stride}, ring_k, at);
        wait_previous();
        if (!committed)
            issue_pieces(keys, ${k_stride}, ring_k, at);
        issue_queries(queries, q, head, active, warp, lane);
        copy_async_commit();
        issue_pieces(values, ${DIM}, ring_v, at);
        copy_async_commit();
        copy_async_wait(1);
        block_sync();
        for (u32 pass = 0; pass < ${warp_rows}; pass += ${rows_a_pass}) {
            const u32 row = warp_row + pass;
            if (row < active)
                score_rows(queries + row * ${DIM} + chain * ${half_dims},
                           keys + chain * ${half_dims},
                           score + (chain * ${table_rows} + row) * ${TILE}, lane);
        }
        block_sync();
        for (u32 row = warp; row < active; row += ${warps}) {
            const u32 position = base + row / ${group};
            //@ if window > 0 then
            const u32 low = position < ${window} ? 0 : position - ${window - 1};
            //@ else
            const u32 low = ring_first(round);
            //@ end
            //@ if causal == 1 then
            const u32 high = position;
            //@ elseif window > 0 then
            const u32 end = position + ${window};
            const u32 high = (end < base + rows ? end : base + rows) - 1;
            //@ else
            const u32 high = base + rows - 1;
            //@ end
            weigh_row(score + row * ${TILE}, start, low, high, lane,
                      stat + place_of(tile, row, head) * 2);
        }
        copy_async_wait(0);
        block_sync();
        // Each chain's warps finish half of their rows: the other half goes to those of the other
        // chain through the queries' place.
        for (u32 pass = 0; pass < ${warp_rows}; pass += ${rows_a_pass}) {
            const u32 row = warp_row + pass;
            f32 sum[${rows_a_pass * 4}];
            weigh_values(score + row * ${TILE} + chain * ${half_keys},
                         values + chain * ${half_keys * DIM}, sum, lane);
            #pragma unroll
            for (u32 i = 0; i < ${rows_a_pass}; i++)
                if (chain != (i < ${rows_a_pass // 2}))
                    store4_f32(queries + (row + i) * ${DIM} + lane * 4, sum + i * 4);
            block_sync();
            #pragma unroll
            for (u32 i = 0; i < ${rows_a_pass}; i++)
                if (chain == (i < ${rows_a_pass // 2}) && row + i < active) {
                    f32 other[4];
                    load4_f32(queries + (row + i) * ${DIM} + lane * 4, other);
                    for (u32 e = 0; e < 4; e++)
                        other[e] = f_add(sum[i * 4 + e], other[e]);
                    store4_f32(part + place_of(tile, row + i, head) * ${DIM} + lane * 4, other);
                }
        }
    ${items.close}
}
