//@ -- see schedules/draft_gather.lua
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 column = chunk * ${BLOCK} + lane * 4;
        u32 words[4];
        load4_u32((const u32 *)in + round[64 + row] * ${width} + column, words);
        store4_u32((u32 *)out + row * ${width} + column, words);
    ${jobs.close}
}
