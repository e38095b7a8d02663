//@ -- see schedules/prefill_window.lua
KERNEL
{
    ${jobs.open}
        f32 last[${history}];
        for (u32 i = 0; i < ${history}; i++) {
            const u32 from = rows + i; // counted from the oldest row of the old window
            last[i] = from < ${history} ? window[from * ${channels} + channel]
                                        : u[(u64)(from - ${history}) * ${channels} + channel];
        }
        for (u32 i = 0; i < ${history}; i++)
            window[i * ${channels} + channel] = last[i];
    ${jobs.close}
}
