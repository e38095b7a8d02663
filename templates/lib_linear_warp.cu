//@ -- Of linear_main: every warp's ring is its own, asynchronous copies of 16 bytes a lane fill it.
//@ local acts_at = run * stage_bytes          -- of a slot
//@ local slot_bytes = acts_at + run * act_bytes
//@ function first_column(group) return ("%s * %d"):format(group, width) end -- of this warp
// Finds the run that begins with this warp's step `asked`: its group, its first step and how many.
//@ local function find_run(d)
    group_${d} = 0;
    step_${d} = 0;
    length_${d} = 0;
    if (asked < count) {
        ${items:at("asked", "next_")}
        const u32 room = ${run_steps} - next_step % ${run_steps};
        group_${d} = next_group;
        step_${d} = next_step;
        length_${d} = count - asked < room ? count - asked : room;
        asked += length_${d};
    }
//@ end
//@ -- How many k-tiles into its slot a run begins, and the k-tile that the slot begins with.
//@ local function of_run(d)
        const u32 skipped = step_${d} % ${run_steps};
        const u32 ktile = (step_${d} - skipped) * ${unit};
//@ end
// The copies of a run's weights to the slot at place `to`.
//@ local function issue_weights(d, to)
    {
        //@ of_run(d)
        const u32 stride = ${by_part("group_" .. d, row_words)};
        const u32 *from = ${by_part("group_" .. d, weight_of)} + ktile * stride +
                          group_${d} * ${stage_words} + lane * 4;
        u32 into = ${to} + lane * 16;
        if (length_${d} == ${run_steps}) {
            //@ copy_ktiles(run)
        } else {
            into += skipped * ${unit * stage_bytes};
            from += skipped * ${unit} * stride;
            for (u32 step = 0; step < length_${d}; step++) {
                //@ copy_ktiles(unit)
                into += ${unit * stage_bytes};
                //@ if stride_one then
                from += ${unit * stride_one};
                //@ end
            }
        }
    }
//@ end
// The copies of its activations, behind its weights.
//@ local function issue_acts(d, to)
    {
        //@ of_run(d)
        const u32 *from = act + ${part_index("group_" .. d)} * ${act_words} +
                          ktile * ${ACT_TILE} + lane * 4;
        const u32 into = ${to} + ${acts_at} + lane * 16;
        //@ local pieces = ACT_TILE // 4 -- of a k-tile
        const u32 first = skipped * ${unit * pieces}, many = length_${d} * ${unit * pieces};
        if (length_${d} == ${run_steps}) {
            //@ for piece = 0, run * pieces - 1, 32 do
            //@ if piece + 32 > run * pieces then
            if (${piece} + lane < ${run * pieces})
            //@ end
                copy_async16_at(into, ${piece * 16}, from, ${piece * 16});
            //@ end
        } else {
            for (u32 piece = lane; piece < ${run * pieces}; piece += 32)
                if (piece - first < many)
                    copy_async16_at(into + (piece - lane) * 16, 0, from + (piece - lane) * 4, 0);
        }
    }
//@ end
//@ -- What comes before the wait: the weights of the ring but one run.
//@ function open_ring()
    u32 asked = 0; // steps
    //@ for d = 0, ahead - 1 do
    u32 group_${d}, step_${d}, length_${d};
    //@ find_run(d)
    //@ issue_weights(d, "ring + " .. d * slot_bytes)
    //@ end
//@ end
//@ function open_acts()
    //@ for d = 0, ahead - 1 do
    //@ issue_acts(d, "ring + " .. d * slot_bytes)
    copy_async_commit();
    //@ end
//@ end
// This warp's runs, one behind the other.
//@ function take_runs(few)
    //@ local of_lane = few and "lane % 16 * 8 + lane / 16 * 4" or "lane * 8"
    const u32 planes_at = keep_u32(ring + ${acts_at} + ${of_lane});
    //@ declare_sums(few)
    u32 slot = 0; // bytes into the ring
    while (length_0) {
        copy_async_wait(${ahead - 1});
        warp_sync();
        u32 group_${ahead}, step_${ahead}, length_${ahead};
        //@ find_run(ahead)
        {
            const u32 fill = ring + (slot < ${slot_bytes} ? slot + ${ahead * slot_bytes}
                                                          : slot - ${slot_bytes});
            //@ issue_weights(ahead, "fill")
            //@ issue_acts(ahead, "fill")
        }
        copy_async_commit();
        const u32 begin = step_0 % ${run_steps};
        //@ for q = 0, trellis_words - 1 do
        u32 word_place${q} = word_at${q} + slot + begin * ${unit * stage_bytes};
        //@ end
        u32 planes_place = planes_at + slot + begin * ${unit * act_bytes};
        const u32 end = planes_place + length_0 * ${unit * act_bytes};
        //@ if peels then
        //@ do_step(true, few)
        //@ end
        while (planes_place != end) {
            //@ do_step(false, few)
        }
        slot = slot == ${ahead * slot_bytes} ? 0 : slot + ${slot_bytes};

        // Where the next run lies decides whether this block and this group end here.
        const u32 leaves = !length_1 || group_1 != group_0;
        const u32 block = step_0 * ${unit} / ${BLOCK_TILES};
        //@ if one_block then
        {
        //@ else
        if (leaves || step_1 * ${unit} / ${BLOCK_TILES} != block) {
        //@ end
            //@ fold(factor_place("group_0", "block"), few)
        }
        if (leaves) {
            //@ leave("group_0", few)
        }
        //@ for d = 0, ahead - 1 do
        group_${d} = group_${d + 1};
        step_${d} = step_${d + 1};
        length_${d} = length_${d + 1};
        //@ end
    }
//@ end
