//@ -- Of linear_main: products of four warps (wgmma). An item is a block of 8 k-tiles. Weights come
//@ -- into a ring of each warp, by asynchronous copies of 16 bytes a lane, activations into one of
//@ -- the four, a piece of 16 bytes a thread, which lays out its piece as the unit reads it while
//@ -- products of the block before still run:
//@ --
//@ --     acts of four warps    [depth][8 k-tiles][ACT_TILE], as they come
//@ --                           [2][8][half of k][plane][parity][32], each byte four times over
//@ --
//@ -- One barrier of the four a block: what it needs is there, and what it overwrites is used up.
//@ local slot_bytes, acts_bytes = run * stage_bytes, run * act_bytes
//@ local wide_at, wide_bytes = depth * acts_bytes, 4 * acts_bytes
//@ function first_column(group) -- of this warp
//@     return ("%s * %d + warp %% %d * %d"):format(group, width, group_warps, 16 * tiles)
//@ end
// 16 bytes of a block's activations, a lane's and its neighbour's of a k-tile, widened.
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
//@ -- This thread's piece of the activations of an item.
//@ local function acts_from(group, step)
//@     return ("act + %s * %d + %s * %d + piece * 4"):format(part_index(group), act_words, step,
//@         run * ACT_TILE)
//@ end
//@ -- Where the next item to ask for is copied from: the lane's piece of its first k-tile, words to
//@ -- the next k-tile's, the thread's piece of the activations.
//@ local function aim(group, step)
            ask_stride = ${by_part(group, row_words)};
            ask_from = ${by_part(group, weight_of)} + ${step} * ${run} * ask_stride +
                       (${group} * ${group_warps} + warp % ${group_warps}) * ${stage_words} +
                       lane * 4;
            ask_act = ${acts_from(group, step)};
//@ end
//@ -- Its weights to slot `slot`.
//@ local function copy_weights(slot)
            {
                const u32 *from = ask_from;
                const u32 stride = ask_stride;
                const u32 into = ring + ${slot} * ${slot_bytes} + lane * 16;
                //@ copy_ktiles(run)
            }
//@ end
//@ local function copy_acts(slot, from)
            copy_async16_at(acts + ${slot} * ${acts_bytes} + piece * 16, 0, ${from}, 0);
//@ end
//@ -- Aims at the next item to ask for: by additions, anew where a group begins.
//@ local function ask_next()
            ${items:next("ask_")}
            ask_from += ${run} * ask_stride;
            ask_act += ${run * ACT_TILE};
            if (ask_step == 0) {
                //@ aim("ask_group", 0)
            }
//@ end
//@ -- What comes before the wait: the weights of the ring but one slot.
//@ function open_ring()
    const u32 acts = shared_place(${shared.acts} + warp / ${group_warps} * ${acts_words});
    const u32 piece = warp % ${group_warps} * 32 + lane;
    ${items:at("0", "first_")}
    u32 group = first_group, step = first_step; // of the item at work
    u32 ask_group = group, ask_step = step, asked = 0; // of the next to ask for
    const u32 *ask_from, *ask_act;
    u32 ask_stride;
    //@ aim("ask_group", "ask_step")
    for (; asked < ${ahead} && asked < count; asked++) {
        //@ copy_weights("asked")
        //@ ask_next()
    }
//@ end
//@ function open_acts()
    {
        u32 act_group = group, act_step = step;
        for (u32 slot = 0; slot < ${ahead}; slot++) {
            if (slot < asked) {
                //@ copy_acts("slot", acts_from("act_group", "act_step"))
                ${items:next("act_")}
            }
            copy_async_commit();
        }
    }
//@ end
//@ -- Words of k-tile u. Those of the first are declared outside: they are loaded an item ahead.
//@ local function load_words(u)
            //@ for pack = 0, tiles // PACK - 1 do
            //@ for q = 0, trellis_words - 1 do
            //@ if u > 0 then
            u32 word${q}_${u}_${pack}[${PACK}];
            //@ end
            load4_at(word_place${q}, ${u * stage_bytes + pack * PACK * 32 * bits},
                     word${q}_${u}_${pack});
            //@ end
            //@ end
//@ end
//@ -- What products of the item in `slot` need beside a barrier: its activations in `wide`, where
//@ -- `widens` (else nobody uses the words), and its first words, which its warp has copied itself.
//@ local function prepare_products(slot, widens)
            copy_async_wait(${ahead - 1});
            if (${widens})
                widen_acts(acts + ${slot} * ${acts_bytes}, wide, piece);
            warp_sync();
            //@ for q = 0, trellis_words - 1 do
            word_place${q} = word_at${q} + ${slot} * ${slot_bytes};
            //@ end
            //@ load_words(0)
            matrix = warpgroup_matrix(wide);
//@ end
//@ -- The same for the first item, while the exponents are on their way.
//@ function begin_products()
    u32 wide = acts + ${wide_at}; // of the two halves the one in use
    const u32 halves = 2 * wide + ${wide_bytes};
    u64 matrix;
    //@ for q = 0, trellis_words - 1 do
    u32 word_place${q};
    //@ for pack = 0, tiles // PACK - 1 do
    u32 word${q}_0_${pack}[${PACK}];
    //@ end
    //@ end
    //@ prepare_products(0, "count > 0 && rows > " .. few_rows)
//@ end
//@ -- Products of a block. A k-tile's last go behind the loads of the next k-tile.
//@ local function do_products()
            //@ for u = 0, run - 1 do
            //@ for tile = 0, tiles - 1 do
            u32 product_${u}_${tile}[8];
            //@ local word = ("word%%d_%d_%d[%d]"):format(u, tile // PACK, tile % PACK)
            //@ decode_tile(word, ("product_%d_%d"):format(u, tile), 0)
            //@ if tile == tiles - 1 and u + 1 < run then
            //@ load_words(u + 1)
            //@ end
            warpgroup_mma_mul1(high + ${4 * tile}, low + ${4 * tile}, product_${u}_${tile}, matrix,
                               ${u}, ${u == 0 and 0 or 1});
            //@ end
            //@ end
//@ end
// The items of these four warps, one behind the other.
//@ function take_runs(few)
    //@ declare_sums(few)
    u32 slot = 0, factors = ${factor_place("group", "step")}; // of the item at work
    //@ if few then
    const u32 planes_at = keep_u32(acts + lane % 16 * 8 + lane / 16 * 4);
    //@ end
    for (u32 left = count; left > 0; left--) {
        //@ if few then
        copy_async_wait(${ahead - 1});
        //@ end
        warpgroup_sync();
        if (left > ${ahead}) {
            const u32 used = slot == 0 ? ${ahead} : slot - 1;
            //@ copy_weights("used")
            //@ copy_acts("used", "ask_act")
            //@ ask_next()
        }
        copy_async_commit();
        //@ if few then
        //@ for q = 0, trellis_words - 1 do
        word_place${q} = word_at${q} + slot * ${slot_bytes};
        //@ end
        u32 planes_place = planes_at + slot * ${acts_bytes};
        //@ do_step(true, few)
        //@ else
        //@ do_products()
        //@ end
        slot = slot == ${ahead} ? 0 : slot + 1;
        //@ if not few then
        wide = halves - wide;
        //@ prepare_products("slot", "left > 1")
        warpgroup_mma_wait(${elements}, high, low);
        //@ end
        //@ fold("factors", few)
        factors += ${row_limit * 4};
        const u32 at_group = group;
        ${items:next("")}
        if (left == 1 || step == 0) {
            //@ leave("at_group", few)
            factors = ${factor_place("group", 0)};
        }
    }
//@ end
