//@ -- see schedules/kv_commit.lua
KERNEL
{
    start_next();
    const u32 rows = round[0], base = round[1];
    const u32 lane = lane_id();
    const u32 count = ${jobs.count};
    for (u32 i = 0; i < count; i++) {
        ${jobs:at("i")}
        const u32 position = base + row;
        const u64 slot = (u64)pages[position / ${PAGE}] * ${PAGE} + position % ${PAGE};
        const u64 to = slot * ${kv_heads} + head;
        const u64 from = round[${sources} + row] * ${kv_heads} + head;
        if (i == 0)
            wait_previous();
        for (u32 side = 0; side < 4; side += 2) {
            const u32 *codes = (const u32 *)own[layer * 4 + side] + from * ${words};
            u32 *cached = (u32 *)caches[layer * 4 + side] + to * ${words};
            for (u32 word = lane; word < ${words}; word += 32)
                cached[word] = codes[word];
            //@ if scales > 0 then
            if (lane < ${scales})
                ((h16 *)caches[layer * 4 + side + 1])[to * ${scales} + lane] =
                    ((const h16 *)own[layer * 4 + side + 1])[from * ${scales} + lane];
            //@ end
        }
    }
}
