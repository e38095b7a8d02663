//@ local MINUS_INFINITY = "f_from_bits(0xff800000u)"
//@ local WHOLE = f32(1.5 * 2 ^ 23) -- numbers near it are whole: what is added rounds to an integer
// f_exp2(a) for a that is a number and at most 2, bit for bit: what guards larger ones is left out.
static FN f32 exp2_low(f32 a)
{
    const f32 inside = f_max(a, ${f32(-126)}), near = f_add(inside, ${WHOLE});
    const f32 p = f_exp2_parts(0, f_sub(inside, f_sub(near, ${WHOLE})));
    const f32 power = f_from_bits((f_bits(near) << 23) + 0x3f800000u);
    return f_select(f_lt(a, ${f32(-126)}), ${f32(0)}, f_mul(p, power));
}

// The softmax of two rows over one tile of keys, by one warp: half a warp a row, four keys a lane.
// Scores in log2 units are replaced by weights p = exp2(s - m), m the floor of the largest visible
// score, 0 for keys that are not visible. l is a sum of integers RN(p * 2^24): only the set of
// visible keys counts. The rows' running (max, sum) move on; row_old and row_new say how to merge
// the accumulated and the tile's P.V, both exact powers of two.
//
// A tile is 64 positions: columns 0..63 are cached keys, visible below `base`; columns 64..71 the
// rows of the round, visible where the row's path has them and their position lies in the tile. So
// a tile sees the same set of keys whatever the round's tree, and a set is all that its result
// depends on. score: of row 0 of the table, which is row first_row of the round; row + 1 may lie
// behind the active rows, then it is row again and not stored.
//@ local LANES = 16      -- of a row
static FN void row_weights(f32 *score, u32 first_row, u32 row, u32 active, u32 first_key,
                           const u32 *round, u32 lane, i32 *row_max, f32 *row_sum, f32 *row_old,
                           f32 *row_new, u32 *row_live)
{
    const u32 base = round[1], place = lane % ${LANES}, upper = lane / ${LANES};
    const u32 is_there = row + upper < active, at = is_there ? row + upper : row;
    const u32 tail = first_key + ${TILE} > base;
    f32 *cached = score + at * ${s_stride} + place * ${TILE // LANES};
    f32 *of_round = score + at * ${s_stride} + ${TILE} + place;
    f32 s[${TILE // LANES}], s_own = ${MINUS_INFINITY};
    u32 live = 1;
    load4_f32(cached, s);
    if (tail) {
        const u32 own = place < ${row_limit} &&
                        round[16 + place % ${row_limit}] - first_key < ${TILE} &&
                        (round[24 + (first_row + at) / ${group}] >> place & 1);
        s_own = own ? *of_round : ${MINUS_INFINITY};
        live = first_key < base || (warp_ballot(own) >> ${LANES} * upper & 0xffff) != 0;
        //@ for i = 0, TILE // LANES - 1 do
        if (first_key + place * ${TILE // LANES} + ${i} >= base)
            s[${i}] = ${MINUS_INFINITY};
        //@ end
    }
    f32 top = s_own;
    //@ for i = 0, TILE // LANES - 1 do
    top = f_max(top, s[${i}]);
    //@ end
    // The floor of the largest is the largest floor.
    const i32 floor = f_to_i32_rn(f_floor(f_min(f_max(top, ${f32(-1e9)}), ${f32(1e9)})));
    const i32 max_0 = warp_max_i32(upper ? -2000000000 : floor);
    const i32 max_1 = warp_max_i32(upper ? floor : -2000000000);
    const i32 tile_max = upper ? max_1 : max_0;
    const f32 edge = f_from_i32(tile_max);
    u32 units = 0;
    // Not a number, or further above edge than its fraction: no score of a sane model.
    const f32 all = f_add(f_add(s[0], s[1]), f_add(s[2], s[3]));
    if (warp_ballot(f_ge(top, ${f32(1e9)}) || !f_eq(all, all))) {
        //@ for i = 0, TILE // LANES - 1 do
        s[${i}] = f_exp2(f_sub(s[${i}], edge));
        //@ end
    } else {
        //@ for i = 0, TILE // LANES - 1 do
        s[${i}] = exp2_low(f_sub(s[${i}], edge)); // 0 of minus infinity
        //@ end
    }
    //@ for i = 0, TILE // LANES - 1 do
    units += (u32)f_to_i32_rn(f_mul(s[${i}], ${f32(2 ^ 24)}));
    //@ end
    if (tail) {
        s_own = f_exp2(f_sub(s_own, edge));
        units += (u32)f_to_i32_rn(f_mul(s_own, ${f32(2 ^ 24)}));
    }
    const u32 sum_0 = warp_sum_u32(upper ? 0 : units), sum_1 = warp_sum_u32(upper ? units : 0);
    if (is_there) {
        store4_f32(cached, s);
        if (tail && place < ${row_limit})
            *of_round = s_own;
    }
    if (is_there && place == 0) {
        row_live[at] = live;
        if (live) {
            const i32 old_max = row_max[at], new_max = tile_max > old_max ? tile_max : old_max;
            const f32 old_scale = f_pow2(old_max - new_max), new_scale = f_pow2(tile_max - new_max);
            const f32 sum = f_mul(f_from_u32(upper ? sum_1 : sum_0), ${f32(2 ^ -24)});
            row_max[at] = new_max;
            row_old[at] = old_scale;
            row_new[at] = new_scale;
            row_sum[at] = f_fma(sum, new_scale, f_mul(row_sum[at], old_scale));
        }
    }
}
