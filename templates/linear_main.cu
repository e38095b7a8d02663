//@ -- see schedules/linear_main.lua
//@ include("lib_trellis")
//@ local mul1 = codebook == "mul1"
//@ local sums_of = mul1 and {"high", "low"} or {"sum2", "sum1", "sum0"}
//@ local threads = 32 * warps
//@ local elements = 4 * tiles
//@ -- address of the tiles of this warp for (group, ktile): groups of the parts follow each other
//@ local function source(group, ktile)
//@     local text = ""
//@     for part = parts - 1, 0, -1 do
//@         local n = p["n" .. part]
//@         local at = ("weight_%d + (%s * %du + (%s - %du) * %du + warp * %du) * %du"):format(part, ktile,
//@             n // 16, group, group_first[part], width // 16, tiles, 8 * bits)
//@         if part > 0 then text = text .. ("%s >= %du ? %s : "):format(group, group_first[part], at)
//@         else text = text .. at end
//@     end
//@     return text
//@ end
//@ local function part_index(group)
//@     local text = "0"
//@     for part = 1, parts - 1 do text = text .. (" + (%s >= %du)"):format(group, group_first[part]) end
//@     return text
//@ end
// The copies of one stage: this warp's tiles of one k-tile, 16 bytes a lane a round.
static FN void issue_stage(u32 *slot, const u32 *from, u32 lane)
{
    //@ local pieces = tiles * 2 * bits
    //@ for piece = 0, pieces - 1, 32 do
    //@ if piece + 32 <= pieces then
    copy_async16(slot + (${piece} + lane) * 4, from + (${piece} + lane) * 4);
    //@ else
    if (${piece} + lane < ${pieces})
        copy_async16(slot + (${piece} + lane) * 4, from + (${piece} + lane) * 4);
    //@ end
    //@ end
}

KERNEL
{
    const u32 rows = round[0];
    const u32 thread = thread_id(), lane = lane_id(), warp = warp_id();
    const u32 count = ${items.count};
    if (count == 0)
        return;
    //@ for part = 0, parts - 1 do
    const u32 *weight_${part} = weights[${part}];
    //@ end
    u32 *ring = ${shared.ring} + warp * ${stages * stage_words};
    u32 *acts = ${shared.acts};
    u32 *factor = ${shared.factor};
    const u32 first = trellis_first(lane);

    // Prologue: the ring but one stage, the first span of activations, the factors of the blocks.
    //@ -- activations of items base .. base+span-1 into buffer `half`
    //@ local function issue_acts(base, half)
    for (u32 piece = thread; piece < ${span * 16}; piece += ${threads}) {
        const u32 wanted = ${base} + piece / 16;
        if (wanted < count) {
            ${items:at("wanted", "act_")}
            copy_async16(acts + (${half}) * ${span * 64} + piece * 4,
                         act + (${part_index("act_group")}) * ${act_words} + act_ktile * 64 + piece % 16 * 4);
        }
    }
    //@ end
    //@ issue_acts("0", "0")
    //@ for s = 0, stages - 2 do
    if (${s} < count) {
        ${items:at(tostring(s), "next_")}
        issue_stage(ring + ${s * stage_words}, ${source("next_group", "next_ktile")}, lane);
    }
    copy_async_commit();
    //@ end
    for (u32 job = warp; job < ${parts * row_limit}; job += ${warps}) {
        const i32 *mine = exponents + job * ${blocks};
        i32 top = -1000;
        for (u32 block = lane; block < ${blocks}; block += 32)
            top = mine[block] > top ? mine[block] : top;
        top = warp_max_i32(top);
        for (u32 block = lane; block < ${blocks}; block += 32) {
            const i32 power = mine[block] - top + ${shift};
            factor[(job / ${row_limit} * ${blocks} + block) * ${row_limit} + job % ${row_limit}] =
                power < 0 ? 0 : 1u << power;
        }
    }

    //@ for _, name in ipairs(sums_of) do
    i32 ${name}[${elements}];
    //@ end
    i64 total[${elements}];
    //@ for e = 0, elements - 1 do
    //@ for _, name in ipairs(sums_of) do
    ${name}[${e}] = 0;
    //@ end
    total[${e}] = 0;
    //@ end
    u32 slot = 0, fill = ${stages - 1};
    u32 group, ktile;
    {
        ${items:at("0", "next_")}
        group = next_group;
        ktile = next_ktile;
    }
    for (u32 item = 0; item < count; item++) {
        if (item + ${stages - 1} < count) {
            ${items:at("item + " .. (stages - 1), "far_")}
            issue_stage(ring + fill * ${stage_words}, ${source("far_group", "far_ktile")}, lane);
        }
        fill = fill == ${stages - 1} ? 0 : fill + 1;
        copy_async_commit();
        copy_async_wait(${stages - 1});
        if (item % ${span} == 0) {
            block_sync();
            if (item + ${span} < count) {
                //@ issue_acts("item + " .. span, "(item / " .. span .. " + 1) % 2")
            }
        } else {
            warp_sync();
        }
        const u32 *stage = ring + slot * ${stage_words};
        slot = slot == ${stages - 1} ? 0 : slot + 1;
        u32 digits[2];
        load2_u32(acts + (item / ${span} % 2 * ${span} + item % ${span}) * 64 + lane * 2, digits);
        u32 product[${8 * tiles}];
        //@ for t = 0, tiles - 1 do
        {
            u32 window[8];
            trellis_windows(stage + ${t * 8 * bits}, first, lane, window);
            //@ for j = 0, 7 do
            product[${8 * t + j}] = trellis_product(window[${j}]);
            //@ end
        }
        //@ end
        //@ if mul1 then
        mma_u8s8_mul1(${tiles}, high, low, product, digits, rows);
        //@ else
        mma_s8_pairs(${tiles}, sum2, sum1, sum0, product, digits, rows);
        //@ end

        // Where the next item lies decides whether this block and this group end here.
        u32 after_group = ${groups}, after_ktile = 0;
        if (item + 1 < count) {
            ${items:at("item + 1", "next_")}
            after_group = next_group;
            after_ktile = next_ktile;
        }
        if (after_group != group || after_ktile / ${BLOCK_TILES} != ktile / ${BLOCK_TILES}) {
            const u32 *mine = factor + (${part_index("group")}) * ${blocks * row_limit} +
                              ktile / ${BLOCK_TILES} * ${row_limit} + lane % 4 * 2;
            const u32 factor_0 = mine[0], factor_1 = mine[1];
            //@ for e = 0, elements - 1 do
            //@ if mul1 then
            total[${e}] = i64_mul_add(high[${e}], factor_${e % 2} << 8, total[${e}]);
            total[${e}] = i64_mul_add(low[${e}], factor_${e % 2}, total[${e}]);
            //@ else
            total[${e}] += (((i64)sum2[${e}] << 16) + ((i64)sum1[${e}] << 8) + sum0[${e}]) * (i64)factor_${e % 2};
            //@ end
            //@ for _, name in ipairs(sums_of) do
            ${name}[${e}] = 0;
            //@ end
            //@ end
        }
        if (after_group != group) {
            u64 *to = sums + group * ${width} + warp * ${tiles * 16} + lane / 4;
            const u32 row = lane % 4 * 2;
            //@ for e = 0, elements - 1 do
            if (row + ${e % 2} < rows)
                atomic_add_u64_void(to + (row + ${e % 2}) * ${columns} + ${e // 4 * 16 + e % 4 // 2 * 8}, (u64)total[${e}]);
            total[${e}] = 0;
            //@ end
        }
        group = after_group;
        ktile = after_ktile;
    }
}
