//@ local MINUS_INFINITY = "f_from_bits(0xff800000u)"
//@ local WHOLE = f32(1.5 * 2 ^ 23) -- numbers near it are whole: what is added rounds to an integer
// f_exp2(a) for a that is a number and at most 2, bit for bit: what guards larger ones is left out.
static FN f32 exp2_low(f32 a)
{
    const f32 near = f_add(a, ${WHOLE}); // below -126 nothing of this is used
    const f32 p = f_exp2_parts(0, f_sub(a, f_sub(near, ${WHOLE})));
    const f32 power = f_from_bits((f_bits(near) << 23) + 0x3f800000u);
    return f_select(f_lt(a, ${f32(-126)}), ${f32(0)}, f_mul(p, power));
}

// The softmax of four rows over one tile of keys, by one warp: eight lanes a row, eight keys a
// lane. Scores in log2 units are replaced by weights p = exp2(s - m), m the floor of the largest
// visible score, 0 for keys that are not visible. l is a sum of integers RN(p * 2^24): only the set
// of visible keys counts. The rows' running (max, sum) move on; row_old and row_new say how to
// merge the accumulated and the tile's P.V, both exact powers of two.
//
// A tile is 64 positions: columns 0..63 are cached keys, visible below `base`; columns 64..71 the
// rows of the round, visible where the row's path has them and their position lies in the tile. So
// a tile sees the same set of keys whatever the round's tree, and a set is all that its result
// depends on. Most tiles lie below base altogether: they have a text of their own. score: of row 0
// of the table, which is row first_row of the round; rows behind the active ones are row again and
// not stored.
//@ LANES, ROWS_AT_ONCE = 8, 4
//@ local LANE_KEYS = TILE // LANES
//@ for _, tail in ipairs {false, true} do
//@ local name = tail and "end_weights" or "full_weights"
static FN void ${name}(f32 *score, u32 first_row, u32 row, u32 active, u32 first_key,
                           const u32 *round, u32 lane, i32 *row_max, f32 *row_sum, f32 *row_old,
                           f32 *row_new, u32 *row_live)
{
    const u32 place = lane % ${LANES}, number = lane / ${LANES};
    const u32 is_there = row + number < active, at = is_there ? row + number : row;
    f32 *cached = score + at * ${s_stride} + place * 4; // 4 of each 32 keys
    f32 s[${LANE_KEYS}];
    //@ for i = 0, LANE_KEYS - 1, 4 do
    load4_f32(cached + ${i * LANES}, s + ${i});
    //@ end
    //@ if tail then
    const u32 base = round[1];
    f32 *of_round = score + at * ${s_stride} + ${TILE} + place;
    const u32 own = place < ${row_limit} &&
                    round[16 + place % ${row_limit}] - first_key < ${TILE} &&
                    (round[24 + (first_row + at) / ${group}] >> place & 1);
    f32 s_own = own ? *of_round : ${MINUS_INFINITY};
    const u32 live = first_key < base || (warp_ballot(own) >> ${LANES} * number & 0xff) != 0;
    f32 top = s_own;
    //@ for i = 0, LANE_KEYS - 1 do
    if (first_key + place * 4 + ${i // 4 * 4 * LANES + i % 4} >= base)
        s[${i}] = ${MINUS_INFINITY};
    //@ end
    //@ else
    f32 top = ${MINUS_INFINITY};
    //@ end
    //@ for i = 0, LANE_KEYS - 1 do
    top = f_max(top, s[${i}]);
    //@ end
    // The floor of the largest is the largest floor.
    i32 tile_max = f_to_i32_rn(f_floor(f_min(f_max(top, ${f32(-1e9)}), ${f32(1e9)})));
    //@ for _, mask in ipairs {1, 2, 4} do
    {
        const i32 other = (i32)shuffle_xor_u32((u32)tile_max, ${mask});
        tile_max = other > tile_max ? other : tile_max;
    }
    //@ end
    const f32 edge = f_from_i32(tile_max);
    // Not a number, or further above edge than its fraction: no score of a sane model.
    f32 all = s[0];
    //@ for i = 1, LANE_KEYS - 1 do
    all = f_add(all, s[${i}]);
    //@ end
    if (warp_ballot(f_ge(top, ${f32(1e9)}) || !f_eq(all, all))) {
        //@ for i = 0, LANE_KEYS - 1 do
        s[${i}] = f_exp2(f_sub(s[${i}], edge));
        //@ end
    } else {
        //@ for i = 0, LANE_KEYS - 1 do
        s[${i}] = exp2_low(f_sub(s[${i}], edge)); // 0 of minus infinity
        //@ end
    }
    u32 units = 0;
    //@ for i = 0, LANE_KEYS - 1 do
    units += (u32)f_to_i32_rn(f_mul(s[${i}], ${f32(2 ^ 24)}));
    //@ end
    //@ if tail then
    s_own = f_exp2(f_sub(s_own, edge));
    units += (u32)f_to_i32_rn(f_mul(s_own, ${f32(2 ^ 24)}));
    //@ end
    //@ for _, mask in ipairs {1, 2, 4} do
    units += shuffle_xor_u32(units, ${mask});
    //@ end
    if (is_there) {
        //@ for i = 0, LANE_KEYS - 1, 4 do
        store4_f32(cached + ${i * LANES}, s + ${i});
        //@ end
        //@ if tail then
        if (place < ${row_limit})
            *of_round = s_own;
        //@ end
    }
    if (is_there && place == 0) {
        //@ if tail then
        row_live[at] = live;
        if (!live)
            return;
        //@ else
        row_live[at] = 1;
        //@ end
        const i32 old_max = row_max[at], new_max = tile_max > old_max ? tile_max : old_max;
        const f32 old_scale = f_pow2(old_max - new_max), new_scale = f_pow2(tile_max - new_max);
        row_max[at] = new_max;
        row_old[at] = old_scale;
        row_new[at] = new_scale;
        row_sum[at] = f_fma(f_mul(f_from_u32(units), ${f32(2 ^ -24)}), new_scale,
                            f_mul(row_sum[at], old_scale));
    }
}

//@ end
static FN void row_weights(f32 *score, u32 first_row, u32 row, u32 active, u32 first_key,
                           const u32 *round, u32 lane, i32 *row_max, f32 *row_sum, f32 *row_old,
                           f32 *row_new, u32 *row_live)
{
    if (first_key + ${TILE} > round[1])
        end_weights(score, first_row, row, active, first_key, round, lane, row_max, row_sum,
                    row_old, row_new, row_live);
    else
        full_weights(score, first_row, row, active, first_key, round, lane, row_max, row_sum,
                     row_old, row_new, row_live);
}
