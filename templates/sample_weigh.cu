//@ -- see schedules/sample_weigh.lua
//@ shared_rows, runs = true, false
//@ include("lib_sample")
KERNEL
{
    start_next();
    const u32 rows = round[0];
    wait_previous();
    const u32 lane = lane_id();
    u64 *partial = ${shared.partial}, *histogram = ${shared.histogram};
    ${jobs.open}
        const u32 *mine = settings + row * ${setting_words};
        const u64 leader = row_best(best + row * ${pieces}, partial);
        if (!draws(mine) || leader == ~(u64)0)
            continue;
        const u32 narrow = narrows(mine);
        const u64 low = word_pair(mine + 4), least = low > 0 ? low : 1;
        const f32 top = value_of((u32)(leader >> 32));
        for (u32 i = thread_id(); i < ${2 * BINS}; i += ${threads})
            histogram[i] = 0;
        block_sync();
        const u32 end = ${pieces} * (slice + 1) / ${slices};
        for (u32 piece = ${pieces} * slice / ${slices} + warp_id(); piece < end;
             piece += ${warps}) {
            const u32 first = piece * ${PIECE} + lane * 4;
            u32 words[${4 * QUADS}];
            load_keys(keys + (u64)row * ${key_stride}, first, words);
            u64 sum = 0;
            //@ for i = 0, 4 * QUADS - 1 do
            if (words[${i}] > 0) {
                const u64 weight = weight_of(words[${i}], top);
                if (!narrow) {
                    sum += weight >= least ? weight : 0;
                } else if (weight > 0) {
                    u64 *bin = histogram + bin_of(words[${i}], top);
                    atomic_add_u64_void(bin, 1);
                    atomic_add_u64_void(bin + ${BINS}, weight);
                }
            }
            //@ end
            sum = warp_sum_u64(sum);
            if (lane == 0)
                sums[row * ${pieces} + piece] = sum;
        }
        block_sync();
        if (narrow)
            for (u32 i = thread_id(); i < ${2 * BINS}; i += ${threads})
                if (histogram[i] > 0)
                    atomic_add_u64_global(bins + row * ${2 * BINS} + i, histogram[i]);
    ${jobs.close}
}
