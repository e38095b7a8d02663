//@ -- see schedules/draft_select.lua
//@ include("lib_top")
//@ if softcap ~= 0 then
// tanh(x). Near 0, where 1 - e^-2|x| would lose its digits, the series of tanh to x^7.
static FN f32 tanh_of(f32 x)
{
    const f32 size = f_abs(x), square = f_mul(x, x);
    f32 p = ${f32(-17 / 315)};
    p = f_fma(p, square, ${f32(2 / 15)});
    p = f_fma(p, square, ${f32(-1 / 3)});
    const f32 near = f_fma(f_mul(p, square), size, size);
    const f32 e = f_exp(f_mul(size, ${f32(-2)}));
    const f32 far = f_div(f_sub(${f32(1)}, e), f_add(${f32(1)}, e));
    const f32 result = f_select(f_lt(size, ${f32(0.125)}), near, far);
    return f_select(f_lt(x, ${f32(0)}), f_neg(result), result);
}

//@ end
// The score of a candidate from its logit; -infinity and NaN give -infinity.
static FN f32 score_of(f32 logit)
{
    f32 value = f_mul(logit, f_from_bits(${multiplier}u));
    //@ if softcap ~= 0 then
    value = f_mul(f_from_bits(${softcap}u), tanh_of(f_div(value, f_from_bits(${softcap}u))));
    //@ end
    const u32 counts = f_gt(logit, ${MINUS_INFINITY}) & f_gt(value, ${MINUS_INFINITY});
    return f_select(counts, value, ${MINUS_INFINITY});
}

KERNEL
{
    start_next();
    const u32 rows = round[0];
    const u32 lane = lane_id(), warp = warp_id(), slot = lane % ${TOP_KEYS};
    u64 *lists = ${shared.lists};
    wait_previous();
    ${jobs.open}
        const u64 *mine = found + (u64)row * ${groups * TOP_KEYS};
        const u32 count = row + 1 < rows ? ${groups} : 0;
        u64 kept = 0;
        for (u32 first = 0; first < count; first += ${HALVES}) {
            const u32 list = first + warp * 2 + lane / ${TOP_KEYS};
            kept = merge_keys(kept, list < count ? mine[list * ${TOP_KEYS} + slot] : 0);
        }
        kept = merge_keys(kept, shuffle_xor_u64(kept, ${TOP_KEYS}));
        //@ local step = warps // 2
        //@ while step > 0 do
        if (lane < ${TOP_KEYS})
            lists[warp * ${TOP_KEYS} + slot] = kept;
        block_sync();
        kept = merge_keys(kept, lists[(warp + ${step}) % ${warps} * ${TOP_KEYS} + slot]);
        block_sync();
        //@ step = step // 2
        //@ end
        if (warp == 0 && lane < ${TOP_KEYS}) {
            const u32 order = (u32)(kept >> 32), column = 0xffffffffu - (u32)kept;
            const u32 is_one = order != 0 && slot < ${top_k} && column < ${vocab};
            const u32 at = row * ${TOP_KEYS} + slot;
            f32 value = ${MINUS_INFINITY};
            u32 id = 0xffffffffu;
            if (is_one) {
                value = score_of(value_of(order));
                id = id_map ? id_map[column] : column;
            }
            values[at] = value;
            ids[at] = id;
        }
    ${jobs.close}
}
