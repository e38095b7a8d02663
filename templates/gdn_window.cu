//@ -- see schedules/gdn_window.lua
//@ include("lib_vector")
KERNEL
{
    start_next();
    const i32 rows = (i32)round[0];
    const u32 lane = lane_id();
    const u32 count = ${jobs.count};
    for (u32 i = 0; i < count; i++) {
        ${jobs:at("i")}
        const u32 channel = chunk * ${BLOCK} + lane * 4;
        const f32 *inputs = u + (u64)layer * ${row_limit * channels} + channel;
        f32 *mine = window + (u64)layer * ${history * channels} + channel;
        f32 moved[${4 * history}];
        //@ for t = 0, history - 1 do
        {
            const i32 place = rows - ${history - t};
            const f32 *from = place < 0 ? mine + (place + ${history}) * ${channels}
                                        : inputs + round[${sources} + place] * ${channels};
            load4_f32(from, moved + ${4 * t});
        }
        //@ end
        if (i == 0)
            wait_previous();
        //@ for t = 0, history - 1 do
        store4_f32(mine + ${t} * ${channels}, moved + ${4 * t});
        //@ end
    }
}
