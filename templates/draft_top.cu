//@ -- see schedules/draft_top.lua
//@ include("lib_top")
static FN f32 exchange_values(f32 x, u32 stride, u32 first)
{
    const f32 other = shuffle_xor_f32(x, stride);
    return first ? f_max(x, other) : f_min(x, other);
}

// The 16th largest of the lanes' values, none NaN.
static FN f32 bar_of(f32 value)
{
    const u32 lane = lane_id();
    ${sorting_lines("exchange_values", "value")}
    return shuffle_f32(value, ${TOP - 1});
}

// The best 16 of the columns that `mask` names: bit i of a lane is column first + 32 i + lane. Each
// turn moves one column of each lane to the queue.
static FN u64 best_of(const f32 *values, u32 first, u32 mask, u64 *queue)
{
    const u32 lane = lane_id();
    u64 kept = 0;
    u32 queued = 0;
    for (u32 some = warp_ballot(mask != 0); some != 0; some = warp_ballot(mask != 0)) {
        if (mask != 0) {
            const u32 i = ${WARP - 1} - leading_zeros(mask);
            const u32 column = first + i * ${WARP} + lane;
            queue[queued + count_bits(some & ((1u << lane) - 1))] = key_of(values[column], column);
            mask ^= 1u << i;
        }
        queued += count_bits(some);
        if (queued >= ${WARP}) {
            warp_sync();
            const u64 next = queue[lane];
            queued -= ${WARP};
            const u64 rest = lane < queued ? queue[${WARP} + lane] : 0;
            warp_sync();
            queue[lane] = rest;
            kept = merge_keys(kept, sort_keys(next));
        }
    }
    warp_sync();
    const u64 last = lane < queued ? queue[lane] : 0;
    warp_sync();
    return merge_keys(kept, sort_keys(last));
}

KERNEL
{
    start_next();
    const u32 drafted = round[0] - 1;
    wait_previous();
    const u32 lane = lane_id();
    u64 *queue = ${shared.queue} + warp_id() * ${2 * WARP};
    ${jobs.open}
        const f32 *values = logits + (u64)(row + 1) * ${stride};
        const u32 first = group * ${columns};
        const f32 *mine = values + first + lane;
        const u32 left = first + lane < ${vocab} ? ${vocab} - first - lane : 0;
        f32 v[${per_lane}];
        f32 top = ${MINUS_INFINITY};
        if (first + ${columns} <= ${vocab}) {
            //@ for i = 0, per_lane - 1 do
            v[${i}] = mine[${i * WARP}];
            //@ end
        } else { // the last group
            //@ for i = 0, per_lane - 1 do
            v[${i}] = ${MINUS_INFINITY};
            if (${i * WARP} < left)
                v[${i}] = mine[${i * WARP}];
            //@ end
        }
        //@ for i = 0, per_lane - 1 do
        top = f_max(v[${i}], top);
        //@ end
        const f32 bar = bar_of(top);
        u32 mask = 0;
        if (f_gt(bar, ${MINUS_INFINITY})) {
            //@ for i = 0, per_lane - 1 do
            mask |= f_ge(v[${i}], bar) << ${i};
            //@ end
        } else {
            //@ for i = 0, per_lane - 1 do
            mask |= (u32)(${i * WARP} < left) << ${i};
            //@ end
        }
        const u64 best = best_of(values, first, mask, queue);
        if (lane < ${TOP_KEYS})
            found[((u64)row * ${groups} + group) * ${TOP_KEYS} + lane] = best;
    ${jobs.close}
}
