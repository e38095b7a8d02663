// What the kernels of the sampler share: keys, weights, the top of a row, sums over the CTA.
// f32 -> u32 of the same order; -0 counts as 0.
static FN u32 key_of(f32 x)
{
    const u32 bits = f_bits(x);
    return bits == 0x80000000u ? bits : bits >> 31 ? ~bits : bits | 0x80000000u;
}

static FN f32 value_of(u32 key)
{
    return f_from_bits(key >> 31 ? key & 0x7fffffffu : ~key);
}

// RN(2^((x - top) * log2(e)) * 2^40), 0 far below the top.
static FN u64 weight_of(u32 key, f32 top)
{
    const f32 below = f_max(f_sub(value_of(key), top), ${f32(-1000)});
    const f32 scaled = f_mul(f_exp2(f_mul(below, ${f32(1.4426950408889634)})), ${f32(2.0 ^ 40)});
    return f_lt(scaled, ${f32(2.0 ^ 23)}) ? (u64)f_to_i32_rn(scaled) : f_trunc_u64(scaled);
}

static FN u64 word_pair(const u32 *words)
{
    return (u64)words[1] << 32 | words[0];
}

// A row draws with temperature above 0; then top-k and top-p narrow what it draws from.
static FN u32 draws(const u32 *settings)
{
    return f_gt(f_from_bits(settings[0]), ${f32(0)});
}

static FN u32 narrows(const u32 *settings)
{
    return (settings[1] | settings[2] | settings[3]) != 0;
}

//@ -- where a lane's quad q of a piece lies; past the end where the piece begins
//@ function quad_at(q)
//@     local at = "first + " .. q * 4 * WARP
//@     return ("(%s < %d ? %s : first / %d * %d)"):format(at, valid_vocab, at, PIECE, PIECE)
//@ end
// Keys of the quads of a piece from id `first`, 0 from valid_vocab on.
static FN void load_keys(const u32 *keys, u32 first, u32 words[${4 * QUADS}])
{
    //@ for q = 0, QUADS - 1 do
    load4_u32(keys + ${quad_at(q)}, words + ${4 * q});
    //@ end
    if (first / ${PIECE} == ${pieces - 1}) {
        //@ for q = 0, QUADS - 1 do
        //@ for i = 0, 3 do
        //@ local word, id = "words[" .. 4 * q + i .. "]", "first + " .. q * 4 * WARP + i
        ${word} = ${id} < ${valid_vocab} ? ${word} : 0;
        //@ end
        //@ end
    }
}

//@ if shared_rows then
// Sum over the CTA; every thread gets it.
static FN u64 block_sum(u64 value, u64 *partial)
{
    value = warp_sum_u64(value);
    block_sync();
    if (lane_id() == 0)
        partial[warp_id()] = value;
    block_sync();
    u64 sum = 0;
    for (u32 i = 0; i < ${warps}; i++)
        sum += partial[i];
    return sum;
}

// The best of a row: key << 32 | ~id, ~0 where a logit is not a number. Every thread gets it.
static FN u64 row_best(const u64 *best, u64 *partial)
{
    u64 top = 0;
    for (u32 piece = thread_id(); piece < ${pieces}; piece += ${threads})
        top = best[piece] > top ? best[piece] : top;
    for (u32 mask = ${WARP // 2}; mask > 0; mask /= 2) {
        const u64 other = shuffle_xor_u64(top, mask);
        top = other > top ? other : top;
    }
    block_sync();
    if (lane_id() == 0)
        partial[warp_id()] = top;
    block_sync();
    for (u32 i = 0; i < ${warps}; i++)
        top = partial[i] > top ? partial[i] : top;
    return top;
}

// The bin of a key by its distance from the top. Monotone in rank.
static FN u32 bin_of(u32 key, f32 top)
{
    const f32 below = f_min(f_sub(top, value_of(key)), ${f32(1000)});
    const u32 bin = (u32)f_to_i32_rn(f_mul(below, ${f32(BINS_OF_ONE)}));
    return bin < ${BINS - 1} ? bin : ${BINS - 1};
}
//@ end

//@ if runs then
// Where the running sum over values[count] reaches `target`: *before is the sum up to there.
// count - 1 where it never does. Every thread gets it.
static FN u32 find_run(const u64 *values, u32 count, u64 target, u64 *partial, u64 *found,
                       u64 *before)
{
    const u32 lane = lane_id(), each = (count + ${threads - 1}) / ${threads};
    const u32 first = thread_id() * each;
    const u32 last = first + each < count ? first + each : count;
    u64 sum = 0;
    for (u32 i = first; i < last; i++)
        sum += values[i];
    u64 through = sum; // inclusive prefix sum over lanes
    for (u32 step = 1; step < ${WARP}; step *= 2) {
        const u64 other = shuffle_u64(through, lane >= step ? lane - step : lane);
        through += lane >= step ? other : 0;
    }
    block_sync();
    if (lane == ${WARP - 1})
        partial[warp_id()] = through;
    if (thread_id() == 0)
        found[0] = count - 1;
    block_sync();
    for (u32 i = 0; i < warp_id(); i++)
        through += partial[i];
    u64 sum_before = through - sum;
    if (sum_before < target && target <= through) {
        u32 i = first;
        while (sum_before + values[i] < target)
            sum_before += values[i++];
        found[0] = i;
        found[1] = sum_before;
    }
    block_sync();
    *before = found[1];
    return (u32)found[0];
}

// The sum of values[0..count - 1]. Every thread gets it.
static FN u64 sum_run(const u64 *values, u32 count, u64 *partial)
{
    u64 sum = 0;
    for (u32 i = thread_id(); i < count; i += ${threads})
        sum += values[i];
    return block_sum(sum, partial);
}
//@ end
