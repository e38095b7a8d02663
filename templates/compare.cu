//@ -- see schedules/compare.lua
KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        const u64 begin = (u64)chunk * ${CHUNK};
        u32 found = 0;
        for (u32 i = 0; i < ${CHUNK // WARP}; i++) {
            const u64 at = begin + i * ${WARP} + lane;
            found += at < words && a[at] != b[at];
        }
        if (found)
            atomic_add_u32(different, found);
    ${jobs.close}
}
