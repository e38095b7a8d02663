//@ -- see schedules/trellis_pack.lua
//@ local words = PACK * tile_words
KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        u32 *mine = trellis + (u64)pack * ${words};
        u32 own[${words // 32}];
        for (u32 i = 0; i < ${words // 32}; i++)
            own[i] = mine[i * 32 + lane];
        warp_sync();
        for (u32 i = 0; i < ${words // 32}; i++) {
            const u32 at = i * 32 + lane;
            mine[at % ${tile_words} * ${PACK} + at / ${tile_words}] = own[i];
        }
        warp_sync();
    ${jobs.close}
}
