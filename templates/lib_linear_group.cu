//@ -- Of linear_main, for products of four warps (wgmma, sm_90): the four share a ring that one lane
//@ -- fills by bulk copies, whole blocks, one an item:
//@ --
//@ --     weights      [depth][8 k-tiles][4 warps][stage_words]
//@ --     activations  [depth][8][ACT_TILE], as they come
//@ --                  [2][8][4 * ACT_TILE], each byte four times over, as the unit reads them
//@ --     barriers     [depth] u64: the copies of a slot are there
//@ row_bytes = group_warps * stage_bytes      -- of a k-tile in a slot
//@ local weights_bytes, acts_bytes = run * row_bytes, run * act_bytes -- of a slot
//@ local acts_at = depth * weights_bytes
//@ local wide_at = acts_at + depth * acts_bytes
//@ local barriers_at = wide_at + 2 * 4 * acts_bytes
//@ function first_column(group) -- of this warp
//@     return ("%s * %d + warp %% %d * %d"):format(group, width, group_warps, 16 * tiles)
//@ end
// 16 bytes of activations (a lane's and its neighbour's of a k-tile), each byte four times over:
// [half of k][plane][parity][lane] of a k-tile.
static FN void widen_acts(u32 from, u32 to, u32 piece)
{
    u32 packed[4];
    load4_at(from + piece * 16, 0, packed);
    to += piece / 16 * ${4 * act_bytes} + piece % 16 * 8;
    //@ for plane = 0, 1 do
    //@ for byte = 0, 3 do
    {
        //@ local selector = ("0x%04x"):format(0x1111 * byte)
        const u32 pair[2] = {byte_permute(packed[${plane}], 0, ${selector}),
                             byte_permute(packed[${plane + 2}], 0, ${selector})};
        store2_at(to, ${((byte // 2 * 2 + plane) * 2 + byte % 2) * 128}, pair);
    }
    //@ end
    //@ end
    warpgroup_stored();
}
//@ -- The copies of the item at (group, step) into slot `slot`; the barrier waits for both.
//@ local function ask_weights(group, step, slot)
        {
            const u32 barrier = ring + ${barriers_at} + ${slot} * 8;
            const u32 stride = ${by_part(group, row_words)};
            const u32 *from = ${by_part(group, weight_of)} + ${step} * ${run} * stride +
                              ${group} * ${group_warps * stage_words};
            bulk_expect(barrier, ${weights_bytes + acts_bytes});
            //@ for u = 0, run - 1 do
            bulk_copy(ring + ${slot} * ${weights_bytes} + ${u * row_bytes}, from + ${u} * stride,
                      ${row_bytes}, barrier);
            //@ end
        }
//@ end
//@ local function ask_acts(group, step, slot)
            bulk_copy(ring + ${acts_at} + ${slot} * ${acts_bytes},
                      act + ${part_index(group)} * ${act_words} + ${step} * ${run * ACT_TILE},
                      ${acts_bytes}, ring + ${barriers_at} + ${slot} * 8);
//@ end
//@ -- What comes before the wait: the weights of the ring but one slot.
//@ function open_ring()
    const u32 ring = shared_place(${shared.ring} + warp / ${group_warps} * ${ring_words});
    //@ for q = 0, trellis_words - 1 do
    const u32 word_at${q} = keep_u32(ring + warp % ${group_warps} * ${stage_bytes} +
                                     trellis_word(lane, ${q}) * ${PACK * 4});
    //@ end
    // The lane that asks: another scheduler's in each group of an SM.
    const u32 turn = warp / ${group_warps} + cta_id() / ${ctas // p.ctas_per_sm} * ${warps // group_warps};
    const u32 asks = lane == 0 && warp % ${group_warps} == turn % ${group_warps};
    u32 asked = 0, ask_group = 0, ask_step = 0;
    if (asks) {
        ${items:at("0", "first_")}
        ask_group = first_group;
        ask_step = first_step;
        bulk_open(ring + ${barriers_at}, ${depth});
        for (; asked < ${ahead} && asked < count; asked++) {
            //@ ask_weights("ask_group", "ask_step", "asked")
            ${items:next("ask_")}
        }
    }
//@ end
//@ function open_acts()
    if (asks) {
        ${items:at("0", "acts_of_")}
        u32 act_group = acts_of_group, act_step = acts_of_step;
        for (u32 slot = 0; slot < asked; slot++) {
            //@ ask_acts("act_group", "act_step", "slot")
            ${items:next("act_")}
        }
    }
//@ end
// The items of these four warps, one behind the other.
//@ function take_runs(few)
    //@ -- A lane's sums are of rows `row` and row + 1; few: of one of their planes.
    //@ if few then
    const u32 row = lane % 2 * 2, plane_shift = lane % 4 < 2 ? 8 : 0;
    const u32 planes_at = ring + ${acts_at} + lane % 16 * 8 + lane / 16 * 4;
    //@ else
    const u32 row = lane % 4 * 2;
    u32 wide = ring + ${wide_at}; // the half that is in use
    const u32 both = 2 * wide + ${4 * acts_bytes};
    //@ end
    const u32 factor_at = keep_u32(shared_place(factor) + row * 4);
    //@ declare_sums(few)
    u32 slot = 0, phase = 0;
    ${items:at("0", "first_")}
    u32 group = first_group, step = first_step;
    for (u32 left = count; left > 0; left--) {
        bulk_wait(ring + ${barriers_at} + slot * 8, phase);
        //@ if not few then
        widen_acts(ring + ${acts_at} + slot * ${acts_bytes}, wide, warp % ${group_warps} * 32 + lane);
        //@ end
        warpgroup_sync(); // all four warps are done with the slot before
        if (asks && asked < count) {
            const u32 before = slot == 0 ? ${ahead} : slot - 1;
            //@ ask_weights("ask_group", "ask_step", "before")
            //@ ask_acts("ask_group", "ask_step", "before")
            ${items:next("ask_")}
            asked++;
        }
        //@ for q = 0, trellis_words - 1 do
        u32 word_place${q} = word_at${q} + slot * ${weights_bytes};
        //@ end
        //@ if few then
        u32 planes_place = planes_at + slot * ${acts_bytes};
        //@ else
        u32 planes_place = 0;
        const u64 matrix = warpgroup_matrix(wide);
        //@ end
        //@ do_step(true, few)
        //@ if not few then
        warpgroup_mma_wait();
        //@ end
        const u32 of_group = group;
        //@ fold("of_group", "step", few)
        ${items:next("")}
        if (left == 1 || group != of_group) {
            //@ leave("of_group", few)
        }
        slot = slot == ${ahead} ? 0 : slot + 1;
        phase ^= slot == 0;
        //@ if not few then
        wide = both - wide;
        //@ end
    }
//@ end
