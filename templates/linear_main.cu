//@ -- see schedules/linear_main.lua
//@ include("lib_trellis")
//@ local mul1 = codebook == "mul1"
//@ local elements = 4 * tiles
//@ local paired = 4 * pair_tiles       -- elements whose high bytes have a sum of their own
//@ -- name and elements of each int32 sum; few: of the path for few rows
//@ local function sums_of(few)
//@     if few then return {{"both", elements}} end
//@     return mul1 and {{"top", paired}, {"high", elements}, {"low", elements}}
//@         or {{"sum2", elements}, {"sum1", elements}, {"sum0", elements}}
//@ end
//@ local ahead = depth - 1             -- runs between asking and using
//@ local stage_bytes, act_bytes = 4 * stage_words, 4 * ACT_TILE
//@ -- Products of four warps (wgmma): they share activations, which have a ring of their own, and lie
//@ -- twice more, each byte four times over, as the unit reads them.
//@ local shared_acts = group_warps > 1
//@ local wide_bytes = 4 * run * act_bytes
//@ local acts_at = run * stage_bytes          -- of a slot
//@ local slot_bytes = acts_at + (shared_acts and 0 or run * act_bytes)
//@ local one_block = run == BLOCK_TILES -- a run is one block's, so it ends with a fold
//@ local peels = one_block and mul1    -- a run's first step begins its sums
//@ local in_regs = (blocks + 31) // 32 -- exponents of a row a lane
//@ -- words of a k-tile when all parts have as many, else nil
//@ local stride_one = p.n0 // 16 * 8 * bits
//@ for part = 1, parts - 1 do
//@     if p["n" .. part] ~= p.n0 then stride_one = nil end
//@ end
//@ -- an expression that depends on the part a group lies in; groups of the parts follow each other
//@ local function by_part(group, value)
//@     local text = value(0)
//@     for part = 1, parts - 1 do
//@         local first = group_first[part]
//@         text = ("(%s >= %du ? %s : %s)"):format(group, first, value(part), text)
//@     end
//@     return text
//@ end
//@ local function part_index(group)
//@     return by_part(group, function(part) return part .. "u" end)
//@ end
//@ local function row_words(part) return p["n" .. part] // 16 * 8 * bits .. "u" end
//@ local function weight_of(part) return "weight_" .. part end
//@ if shared_acts then
// 16 bytes of activations (a lane's and its neighbour's of a k-tile), each byte four times over:
// [half of k][plane][parity][lane] of a k-tile.
static FN void widen_acts(u32 from, u32 to, u32 piece)
{
    u32 packed[4];
    load4_at(from, 0, packed);
    to += piece / 16 * 1024 + piece % 16 * 8;
    //@ for plane = 0, 1 do
    //@ for byte = 0, 3 do
    {
        const u32 pair[2] = {byte_permute(packed[${plane}], 0, ${("0x%04x"):format(0x1111 * byte)}),
                             byte_permute(packed[${plane + 2}], 0, ${("0x%04x"):format(0x1111 * byte)})};
        store2_at(to, ${((byte // 2 * 2 + plane) * 2 + byte % 2) * 128}, pair);
    }
    //@ end
    //@ end
    warpgroup_stored();
}
//@ end
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
//@ -- Copies of `count` k-tiles, 16 bytes a lane a round.
//@ local function copy_ktiles(count)
    //@ local pieces = tiles * 2 * bits
    //@ for u = 0, count - 1 do
    //@ for piece = 0, pieces - 1, 32 do
    //@ local row = stride_one and u * stride_one or 0
    //@ if piece + 32 > pieces then
    if (${piece} + lane < ${pieces})
    //@ end
        copy_async16_at(into, ${u * stage_bytes + piece * 16}, from, ${(row + piece * 4) * 4});
    //@ end
    //@ if not stride_one then
    from += stride;
    //@ end
    //@ end
//@ end
// The copies of a run's weights to the slot at place `to`.
//@ local function issue_weights(d, to)
    {
        //@ of_run(d)
        const u32 stride = ${by_part("group_" .. d, row_words)};
        const u32 *from = ${by_part("group_" .. d, weight_of)} + ktile * stride +
                          group_${d} * ${group_warps * stage_words} + lane * 4;
        u32 into = ${to} + lane * 16;
        //@ if run_steps == 1 then
        //@ copy_ktiles(run)
        //@ else
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
        //@ end
    }
//@ end
// The copies of its activations, behind its weights.
//@ local function issue_acts(d, to, acts_to)
    {
        //@ of_run(d)
        //@ local pieces = ACT_TILE // 4 -- of a k-tile
        const u32 first = skipped * ${unit * pieces}, many = length_${d} * ${unit * pieces};
        //@ if shared_acts then
        if (mine - first < many)
            copy_async16_at(${acts_to} + mine * 16, 0,
                            act + ${part_index("group_" .. d)} * ${act_words} +
                                ktile * ${ACT_TILE} + mine * 4, 0);
        //@ else
        const u32 *from = act + ${part_index("group_" .. d)} * ${act_words} +
                          ktile * ${ACT_TILE} + lane * 4;
        const u32 into = ${to} + ${acts_at} + lane * 16;
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
        //@ end
    }
//@ end
//@ -- Adds the products of k-tile i of `ktiles` to the sums, or (`begins`) begins the sums with
//@ -- them. Which emitter makes what of them is said here: the first tiles wait for the last k-tile
//@ -- and are pairs, the others are bytes. `few`: both planes of up to four rows are the eight rows
//@ -- of one product.
//@ local function emit(i, begins, few)
                //@ local first = begins and "_first" or ""
                //@ if few then
                mma_u8s8_mul1_plane${first}(${tiles}, both, product${i}, planes${i}[0]);
                //@ elseif not mul1 then
                mma_s8_pairs(${tiles}, sum2, sum1, sum0, product${i}, planes${i}, rows);
                //@ elseif pair_tiles < tiles then
                mma_u8s8_mul1${i == 0 and first or ""}(${tiles - pair_tiles}, high + ${paired},
                    low + ${paired}, product${i} + ${8 * pair_tiles}, planes${i}, rows);
                //@ end
                //@ if pair_tiles > 0 and i == 1 then
                mma_u8s8_mul1_pairs${first}(${pair_tiles}, top, high, low, product0, planes0,
                                            product1, planes1, rows);
                //@ end
//@ end
//@ -- A step: its products are added to the sums, or (`begins`) are their beginning.
//@ local function do_step(begins, few)
            //@ local grouped = shared_acts and not few
            //@ local step_planes = unit * (grouped and 4 or 1) * act_bytes
            //@ local ktiles = few and 1 or ktiles
            //@ if grouped then
            const u64 matrix = warpgroup_matrix(planes_place);
            //@ end
            //@ for u = 0, unit - 1, ktiles do
            {
                //@ for i = 0, ktiles - 1 do
                u32 product${i}[${8 * tiles}];
                //@ if not grouped then
                u32 planes${i}[2];
                load${few and 1 or 2}_at(planes_place, ${(u + i) * act_bytes}, planes${i});
                //@ end
                //@ for pack = 0, tiles // PACK - 1 do
                {
                    //@ for q = 0, trellis_words - 1 do
                    u32 word${q}[${PACK}];
                    load4_at(word_place${q}, ${(u + i) * stage_bytes + pack * PACK * 32 * bits},
                             word${q});
                    //@ end
                    //@ for t = 0, PACK - 1 do
                    {
                        u32 word[${trellis_words}], window[8];
                        //@ for q = 0, trellis_words - 1 do
                        word[${q}] = word${q}[${t}];
                        //@ end
                        trellis_windows(word, lane, window);
                        //@ for j = 0, 7 do
                        product${i}[${8 * (pack * PACK + t) + j}] = trellis_product(window[${j}]);
                        //@ end
                        //@ if grouped then
                        //@ local tile = pack * PACK + t
                        warpgroup_mma_mul1${begins and u == 0 and "_first" or ""}(high + ${4 * tile},
                            low + ${4 * tile}, product${i} + ${8 * tile}, matrix, ${u});
                        //@ end
                    }
                    //@ end
                }
                //@ end
                //@ if not grouped then
                //@ emit(i, begins and u == 0, few)
                //@ end
                //@ end
            }
            //@ end
            //@ for q = 0, trellis_words - 1 do
            word_place${q} += ${unit * stage_bytes};
            //@ end
            planes_place += ${step_planes};
//@ end
//@ -- Element e of the sums anew, where no first step begins them.
//@ local function clear_sums(e, few)
    //@ for _, sum in ipairs(peels and {} or sums_of(few)) do
    //@ if e < sum[2] then
    ${sum[1]}[${e}] = 0;
    //@ end
    //@ end
//@ end
// This warp's runs, one behind the other.
//@ local function take_runs(few)
    //@ -- A lane's sums are of rows `row` and row + 1; few: of one of their planes.
    //@ local grouped = shared_acts and not few
    //@ local planes_base = shared_acts and "acts" or "ring + " .. acts_at
    //@ if few then
    const u32 row = lane % 2 * 2, plane_shift = lane % 4 < 2 ? 8 : 0;
    const u32 planes_at = keep_u32(${planes_base} + lane % 16 * 8 + lane / 16 * 4);
    //@ else
    const u32 row = lane % 4 * 2;
    //@ if not grouped then
    const u32 planes_at = keep_u32(${planes_base} + lane * 8);
    //@ end
    //@ end
    const u32 factor_at = keep_u32(shared_place(factor) + row * 4);
    //@ for _, sum in ipairs(sums_of(few)) do
    //@ if sum[2] > 0 then
    ${block_sum} ${sum[1]}[${sum[2]}];
    //@ end
    //@ end
    ${total_sum} total[${elements}];
    //@ for e = 0, elements - 1 do
    //@ clear_sums(e, few)
    total[${e}] = 0;
    //@ end
    u32 slot = 0; // bytes into the ring
    //@ if shared_acts then
    u32 act_slot = 0, wide = 0; // bytes into the activations and what is made of them
    const u32 wide_at = acts + ${depth * run * act_bytes};
    //@ end
    //@ if grouped then
    copy_async_wait(${ahead - 1});
    widen_acts(acts + mine * 16, wide_at, mine);
    //@ end
    while (length_0) {
        //@ if not grouped then
        copy_async_wait(${ahead - 1});
        //@ end
        ${shared_acts and "warpgroup_sync();" or "warp_sync();"}
        u32 group_${ahead}, step_${ahead}, length_${ahead};
        //@ find_run(ahead)
        {
            const u32 fill = ring + (slot < ${slot_bytes} ? slot + ${ahead * slot_bytes}
                                                          : slot - ${slot_bytes});
            //@ issue_weights(ahead, "fill")
            //@ if shared_acts then
            const u32 act_fill = acts + (act_slot < ${run * act_bytes}
                                             ? act_slot + ${ahead * run * act_bytes}
                                             : act_slot - ${run * act_bytes});
            //@ end
            //@ issue_acts(ahead, "fill", "act_fill")
        }
        copy_async_commit();
        const u32 begin = step_0 % ${run_steps};
        //@ for q = 0, trellis_words - 1 do
        u32 word_place${q} = word_at${q} + slot + begin * ${unit * stage_bytes};
        //@ end
        //@ local step_planes = unit * (grouped and 4 or 1) * act_bytes
        //@ if grouped then
        u32 planes_place = wide_at + wide + begin * ${step_planes};
        //@ elseif shared_acts then
        u32 planes_place = planes_at + act_slot + begin * ${step_planes};
        //@ else
        u32 planes_place = planes_at + slot + begin * ${step_planes};
        //@ end
        const u32 end = planes_place + length_0 * ${step_planes};
        //@ if peels then
        //@ do_step(true, few)
        //@ end
        //@ if run_steps > 1 or not peels then
        while (planes_place != end) {
            //@ do_step(false, few)
        }
        //@ end
        slot = slot == ${ahead * slot_bytes} ? 0 : slot + ${slot_bytes};
        //@ if shared_acts then
        act_slot = act_slot == ${ahead * run * act_bytes} ? 0 : act_slot + ${run * act_bytes};
        wide = ${wide_bytes} - wide;
        //@ end
        //@ if grouped then
        copy_async_wait(${ahead - 1});
        widen_acts(acts + act_slot + mine * 16, wide_at + wide, mine);
        warpgroup_mma_wait();
        //@ end

        // Where the next run lies decides whether this block and this group end here.
        const u32 leaves = !length_1 || group_1 != group_0;
        const u32 block = step_0 * ${unit} / ${BLOCK_TILES};
        //@ if one_block then
        {
        //@ else
        if (leaves || step_1 * ${unit} / ${BLOCK_TILES} != block) {
        //@ end
            u32 of_rows[2];
            load2_at(factor_at + (${part_index("group_0")} * ${blocks} + block) * ${row_limit * 4},
                     0, of_rows);
            //@ local shift = few and " << plane_shift" or ""
            const u32 factor_0 = of_rows[0]${shift}, factor_1 = of_rows[1]${shift};
            //@ for e = 0, elements - 1 do
            //@ if few then
            total[${e}] = i64_mul_add(both[${e}], (i32)factor_${e % 2}, total[${e}]);
            //@ elseif mul1 then
            //@ local high = e < paired and ("high[%d] + top[%d] * 256"):format(e, e)
            //@     or ("high[%d]"):format(e)
            total[${e}] = i64_mul_add(${high}, (i32)(factor_${e % 2} << 8), total[${e}]);
            total[${e}] = i64_mul_add(low[${e}], (i32)factor_${e % 2}, total[${e}]);
            //@ else
            total[${e}] += (((i64)sum2[${e}] << 16) + ((i64)sum1[${e}] << 8) + sum0[${e}]) *
                           (i64)factor_${e % 2};
            //@ end
            //@ clear_sums(e, few)
            //@ end
        }
        if (leaves) { // the totals of idle rows are 0, since their factors are
            u64 *to = sums + group_0 * ${width} +${group_warps > 1 and " warp % 4 * " .. 16 * tiles .. " +" or ""} lane / 4;
            //@ for odd = 0, 1 do
            if (row + ${odd} < rows) {
                //@ for e = odd, elements - 1, 2 do
                //@ local column = e // 4 * 16 + e % 4 // 2 * 8
                atomic_add_u64_global(to + (row + ${odd}) * ${columns} + ${column},
                                      (u64)total[${e}]);
                total[${e}] = 0;
                //@ end
            }
            //@ end
        }
        //@ for d = 0, ahead - 1 do
        group_${d} = group_${d + 1};
        step_${d} = step_${d + 1};
        length_${d} = length_${d + 1};
        //@ end
    }
//@ end
KERNEL
{
    const u32 lane = lane_id(), warp = warp_id();
    const u32 count = ${items.count};
    //@ for part = 0, parts - 1 do
    // from where the tiles of group 0 of all parts would lie
    //@ local of_warp = group_warps > 1 and (" + warp %% %d * %d"):format(group_warps, stage_words) or ""
    const u32 *weight_${part} = weights[${part}] - ${group_first[part] * group_warps * stage_words}${of_warp};
    //@ end
    u32 *factor = ${shared.factor};
    const u32 ring = shared_place(${shared.ring} + warp * ${ring_words}); // this warp's
    //@ if shared_acts then
    const u32 acts = shared_place(${shared.acts} + warp / 4 * ${acts_words}); // of these four warps
    const u32 mine = warp % 4 * 32 + lane; // of a run's pieces of 16 bytes
    //@ end
    //@ for q = 0, trellis_words - 1 do
    const u32 word_at${q} = keep_u32(ring + trellis_word(lane, ${q}) * ${PACK * 4});
    //@ end

    // Prologue: the ring but one run, weights first: no earlier launch has a hand in them. Then
    // activations and the factors of the blocks.
    u32 asked = 0; // steps
    //@ for d = 0, ahead - 1 do
    u32 group_${d}, step_${d}, length_${d};
    //@ find_run(d)
    //@ issue_weights(d, "ring + " .. d * slot_bytes)
    //@ end
    wait_previous();
    const u32 rows = round[0];
    const u32 first = ${items.worker} < ${warps}; // the CTA that says what all have found out
    //@ for d = 0, ahead - 1 do
    //@ issue_acts(d, "ring + " .. d * slot_bytes, "acts + " .. d * run * act_bytes)
    copy_async_commit();
    //@ end
    for (u32 job = warp; job < ${parts * row_limit}; job += ${warps}) {
        const i32 *of_row = exponents + job * ${blocks};
        i32 exponent[${in_regs}];
        i32 top = -1000;
        //@ for i = 0, in_regs - 1 do
        exponent[${i}] = ${32 * i} + lane < ${blocks} ? of_row[${32 * i} + lane] : -1000;
        //@ end
        //@ for i = 0, in_regs - 1 do
        top = exponent[${i}] > top ? exponent[${i}] : top;
        //@ end
        top = warp_max_i32(top);
        const u32 row = job % ${row_limit};
        u32 *of_job = factor + job / ${row_limit} * ${blocks * row_limit} + row;
        //@ for i = 0, in_regs - 1 do
        if (${32 * i} + lane < ${blocks}) {
            const i32 power = exponent[${i}] - top + ${shift};
            of_job[(${32 * i} + lane) * ${row_limit}] = power < 0 || row >= rows ? 0 : 1u << power;
        }
        //@ end
        if (first && lane == 0)
            scales[job * 2] = (u64)(i64)top;
    }
    block_sync();
    if (first) { // nobody waits for Q here
        for (u32 job = warp; job < ${parts * row_limit}; job += ${warps}) {
            const u32 *of_job = factor + job / ${row_limit} * ${blocks * row_limit} +
                                job % ${row_limit};
            u64 q = 0;
            for (u32 block = lane; block < ${blocks}; block += 32)
                q += (u64)((i64)digits[job * ${blocks} + block] *
                           (i64)of_job[block * ${row_limit}]);
            q = warp_sum_u64(q);
            if (lane == 0)
                scales[job * 2 + 1] = q;
        }
    }
    //@ if few_rows > 0 then
    if (rows > ${few_rows}) {
        //@ take_runs(false)
        return;
    }
    //@ take_runs(true)
    //@ else
    //@ take_runs(false)
    //@ end
}
