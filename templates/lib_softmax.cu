// The softmax of two rows over one tile of keys, by one warp (two, so that one's reductions run
// beside the other's): scores in log2 units are replaced by weights p = exp2(s - m), m the floor of
// the largest visible score, 0 for keys that are not visible. l is a sum of integers RN(p * 2^24):
// only the set of visible keys counts. The rows' running (max, sum) move on; row_old and row_new
// say how to merge the accumulated and the tile's P.V, both exact powers of two.
//
// A tile is 64 positions: columns 0..63 are cached keys, visible below `base`; columns 64..71 the
// rows of the round, visible where the row's path has them and their position lies in the tile. So
// a tile sees the same set of keys whatever the round's tree, and a set is all that its result
// depends on. score: of row 0 of the table; row + 1 may lie behind the active rows, then it is row
// again and not stored.
//@ local per_lane = TILE // 32
static FN void row_weights(f32 *score, u32 row, u32 active, u32 first_key, const u32 *round,
                           u32 lane, i32 *row_max, f32 *row_sum, f32 *row_old, f32 *row_new,
                           u32 *row_live)
{
    const u32 base = round[1];
    const u32 both = row + 1 < active;
    //@ for i = 0, per_lane - 1 do
    const u32 seen${i} = first_key + lane + ${32 * i} < base;
    //@ end
    const u32 near = lane < ${row_limit} && round[16 + lane % ${row_limit}] - first_key < ${TILE};
    //@ for r = 0, 1 do
    const u32 row${r} = ${r == 0 and "row" or "row + both"};
    f32 *mine${r} = score + row${r} * ${s_stride} + lane;
    const u32 own${r} = near && (round[24 + row${r} / ${group}] >> lane % 32 & 1);
    //@ for i = 0, per_lane - 1 do
    const f32 s${r}_${i} = f_select(seen${i}, mine${r}[${32 * i}], f_from_bits(0xff800000u));
    //@ end
    const f32 s${r}_own = own${r} ? mine${r}[${TILE}] : f_from_bits(0xff800000u);
    f32 top${r} = s${r}_own;
    //@ for i = 0, per_lane - 1 do
    top${r} = f_max(top${r}, s${r}_${i});
    //@ end
    //@ end
    //@ for r = 0, 1 do
    top${r} = warp_max_f32(top${r});
    const u32 live${r} = warp_ballot(${per_lane > 1 and "seen0 | seen1" or "seen0"} | own${r}) != 0;
    //@ end
    //@ for r = 0, 1 do
    const f32 edge${r} = f_floor(f_min(f_max(top${r}, ${f32(-1e9)}), ${f32(1e9)}));
    u32 units${r} = 0;
    //@ for i = 0, per_lane - 1 do
    const f32 p${r}_${i} = f_select(seen${i}, f_exp2(f_sub(s${r}_${i}, edge${r})), ${f32(0)});
    units${r} += (u32)f_to_i32_rn(f_mul(p${r}_${i}, ${f32(2 ^ 24)}));
    //@ end
    //@ end
    //@ for r = 0, 1 do
    if (lane < ${row_limit}) {
        const f32 p = own${r} ? f_exp2(f_sub(s${r}_own, edge${r})) : ${f32(0)};
        if (${r == 0 and "1" or "both"})
            mine${r}[${TILE}] = p;
        units${r} += (u32)f_to_i32_rn(f_mul(p, ${f32(2 ^ 24)}));
    }
    if (${r == 0 and "1" or "both"}) {
        //@ for i = 0, per_lane - 1 do
        mine${r}[${32 * i}] = p${r}_${i};
        //@ end
    }
    units${r} = warp_sum_u32(units${r});
    //@ end
    // Lane 0 moves the first row on, lane 1 the second.
    const u32 live = lane == 0 ? live0 : live1;
    if (lane == 0 || (lane == 1 && both)) {
        const u32 at = lane == 0 ? row0 : row1;
        row_live[at] = live;
        if (live) {
            const i32 tile_max = f_to_i32_rn(lane == 0 ? edge0 : edge1), old_max = row_max[at];
            const i32 new_max = tile_max > old_max ? tile_max : old_max;
            const f32 old_scale = f_pow2(old_max - new_max), new_scale = f_pow2(tile_max - new_max);
            const f32 sum = f_mul(f_from_u32(lane == 0 ? units0 : units1), ${f32(2 ^ -24)});
            row_max[at] = new_max;
            row_old[at] = old_scale;
            row_new[at] = new_scale;
            row_sum[at] = f_fma(sum, new_scale, f_mul(row_sum[at], old_scale));
        }
    }
}
