//@ -- see schedules/sample_gather.lua
//@ shared_rows, runs = true, true
//@ include("lib_sample")
// The last bin that top-k or top-p may keep something of.
static FN u32 last_bin(const u64 *counts, const u32 *settings, u64 *partial, u64 *found)
{
    u64 before;
    if (settings[1] > 0 && sum_run(counts, ${BINS}, partial) > settings[1])
        return find_run(counts, ${BINS}, settings[1], partial, found, &before);
    const u64 part = word_pair(settings + 2);
    if (part == 0)
        return ${BINS - 1};
    const u64 target = u64_mul_hi(sum_run(counts + ${BINS}, ${BINS}, partial), part) + 1;
    return find_run(counts + ${BINS}, ${BINS}, target, partial, found, &before);
}

KERNEL
{
    start_next();
    const u32 rows = round[0];
    wait_previous();
    const u32 lane = lane_id();
    u64 *partial = ${shared.partial}, *found = ${shared.found};
    ${jobs.open}
        const u32 *mine = settings + row * ${setting_words};
        const u64 leader = row_best(best + row * ${pieces}, partial);
        if (!draws(mine) || !narrows(mine) || leader == ~(u64)0)
            continue;
        const u64 *counts = bins + row * ${2 * BINS};
        const u32 last = last_bin(counts, mine, partial, found);
        if (sum_run(counts, last + 1, partial) > ${CANDIDATES})
            continue;
        const u32 top_key = (u32)(leader >> 32);
        const f32 top = value_of(top_key);
        const u32 end = ${pieces} * (slice + 1) / ${slices};
        for (u32 piece = ${pieces} * slice / ${slices} + warp_id(); piece < end;
             piece += ${warps}) {
            const u32 first = piece * ${PIECE} + lane * 4;
            u32 words[${4 * QUADS}];
            load_keys(keys + (u64)row * ${key_stride}, first, words);
            //@ for q = 0, QUADS - 1 do
            //@ for i = 0, 3 do
            //@ local word = "words[" .. 4 * q + i .. "]"
            if (${word} > 0 && bin_of(${word}, top) <= last && weight_of(${word}, top) > 0)
                list[row * ${CANDIDATES} + atomic_add_u32(listed + row, 1)] =
                    (u64)(top_key - ${word}) << ${ID_BITS} | (first + ${q * 4 * WARP + i});
            //@ end
            //@ end
        }
    ${jobs.close}
}
