//@ -- see schedules/draft_tap.lua
KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 column = chunk * ${BLOCK} + lane * 4;
        u32 words[4];
        load4_u32((const u32 *)x + (u64)(first + row) * ${width} + column, words);
        store4_u32((u32 *)out + (u64)row * ${stride} + offset + column, words);
    ${jobs.close}
}
