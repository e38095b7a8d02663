// One row's softmax over one tile of keys, by one warp: scores in log2 units are replaced by
// weights p = exp2(s - m), m the floor of the largest visible score, 0 for keys that are not
// visible. l is a sum of integers RN(p * 2^24): only the set of visible keys counts. The row's
// running (max, sum) move on; row_old and row_new say how to merge the accumulated and the tile's
// P.V, both exact powers of two.
//
// A tile is 64 positions: columns 0..63 are cached keys, visible below `base`; columns 64..71 the
// rows of the round, visible where the row's path has them and their position lies in the tile
// (path: bit r for row r). So a tile sees the same set of keys whatever the round's tree, and a set
// is all that its result depends on.
//@ local per_lane = TILE // 32
static FN void row_weights(f32 *score, u32 row, u32 first_key, const u32 *round, u32 path, u32 lane,
                           i32 *row_max, f32 *row_sum, f32 *row_old, f32 *row_new, u32 *row_live)
{
    const u32 base = round[1];
    //@ for i = 0, per_lane - 1 do
    const u32 seen${i} = first_key + lane + ${32 * i} < base;
    const f32 s${i} = f_select(seen${i}, score[lane + ${32 * i}], f_from_bits(0xff800000u));
    //@ end
    const u32 own = lane < ${row_limit} && (path >> lane & 1) &&
                    round[16 + lane] - first_key < ${TILE};
    const f32 s_own = own ? score[${TILE} + lane] : f_from_bits(0xff800000u);
    f32 top = s_own;
    u32 seen = own;
    //@ for i = 0, per_lane - 1 do
    top = f_max(top, s${i});
    seen |= seen${i};
    //@ end
    top = warp_max_f32(top);
    const u32 live = warp_ballot(seen) != 0;
    const f32 edge = f_floor(f_min(f_max(top, ${f32(-1e9)}), ${f32(1e9)}));
    u32 units = 0;
    //@ for i = 0, per_lane - 1 do
    {
        const f32 p = f_select(seen${i}, f_exp2(f_sub(s${i}, edge)), ${f32(0)});
        score[lane + ${32 * i}] = p;
        units += (u32)f_to_i32_rn(f_mul(p, ${f32(2 ^ 24)}));
    }
    //@ end
    if (lane < ${row_limit}) {
        const f32 p = own ? f_exp2(f_sub(s_own, edge)) : ${f32(0)};
        score[${TILE} + lane] = p;
        units += (u32)f_to_i32_rn(f_mul(p, ${f32(2 ^ 24)}));
    }
    units = warp_sum_u32(units);
    if (lane == 0) {
        row_live[row] = live;
        if (live) {
            const i32 tile_max = f_to_i32_rn(edge), old_max = row_max[row];
            const i32 new_max = tile_max > old_max ? tile_max : old_max;
            const f32 old_scale = f_pow2(old_max - new_max), new_scale = f_pow2(tile_max - new_max);
            row_max[row] = new_max;
            row_old[row] = old_scale;
            row_new[row] = new_scale;
            row_sum[row] = f_fma(f_mul(f_from_u32(units), ${f32(2 ^ -24)}), new_scale,
                                 f_mul(row_sum[row], old_scale));
        }
    }
}
