//@ -- see schedules/linear_main.lua
//@ include("lib_trellis")
//@ local mul1 = codebook == "mul1"
//@ local sums_of = mul1 and {"high", "low"} or {"sum2", "sum1", "sum0"}
//@ local threads = 32 * warps
//@ local elements = 4 * tiles
//@ local span_words = span * unit * k_warps * 64
//@ local ahead = (depth - 1) * unit      -- k-tiles between asking and using
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
//@ -- u32 of one k-tile, and the matrix, of a part
//@ local function row_words(part) return p["n" .. part] // 16 * 8 * bits .. "u" end
//@ local function weight_of(part) return "weight_" .. part end
// Declarations: name_source, this warp's tiles at the item's first k-tile; name_stride, the words
// of a k-tile.
//@ local function source(name)
    const u32 ${name}_stride = ${by_part(name .. "_group", row_words)};
    const u32 *${name}_source = ${by_part(name .. "_group", weight_of)} +
        ((${name}_piece * ${k_warps} + k_warp) * ${unit} * ${name}_stride +
         (${name}_group * ${width // 16} + n_warp * ${tiles}) * ${8 * bits});
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
    const u32 n_warp = warp % ${n_warps}, k_warp = warp / ${n_warps};
    const u32 count = ${items.count};
    if (count == 0)
        return;
    //@ for part = 0, parts - 1 do
    // from where the tiles of group 0 of all parts would lie
    const u32 *weight_${part} = weights[${part}] - ${group_first[part] * (width // 16) * 8 * bits};
    //@ end
    u32 *ring = ${shared.ring} + warp * ${ring_words};
    u32 *acts = ${shared.acts};
    u32 *factor = ${shared.factor};
    const u32 first = trellis_first(lane);

    // Prologue: the ring but one item, the first span of activations, the factors of the blocks.
    //@ -- activations of items base .. base+span-1 into buffer `half`
    //@ local function issue_acts(base, half)
    for (u32 copy = thread; copy < ${span_words // 4}; copy += ${threads}) {
        const u32 wanted = ${base} + copy / ${unit * k_warps * 16};
        if (wanted < count) {
            ${items:at("wanted", "act_")}
            copy_async16(acts + (${half}) * ${span_words} + copy * 4,
                         act + ${part_index("act_group")} * ${act_words} +
                             act_piece * ${unit * k_warps * 64} +
                             copy % ${unit * k_warps * 16} * 4);
        }
    }
    //@ end
    //@ issue_acts("0", "0")
    //@ for d = 0, depth - 2 do
    if (${d} < count) {
        ${items:at(tostring(d), "next_")}
        //@ source("next")
        //@ for u = 0, unit - 1 do
        issue_stage(ring + ${(d * unit + u) * stage_words}, next_source + ${u} * next_stride, lane);
        copy_async_commit();
        //@ end
    } else {
        //@ for u = 0, unit - 1 do
        copy_async_commit();
        //@ end
    }
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
    copy_async_wait(${ahead - 1});

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
    u32 slot = 0, fill = ${(depth - 1) * unit * stage_words}; // words into the ring
    u32 group, piece;
    {
        ${items:at("0", "next_")}
        group = next_group;
        piece = next_piece;
    }
    for (u32 item = 0; item < count; item++) {
        if (item % ${span} == 0) {
            block_sync();
            if (item + ${span} < count) {
                //@ issue_acts("item + " .. span, "(item / " .. span .. " + 1) % 2")
            }
        }
        const u32 more = item + ${depth - 1} < count;
        ${items:at("item + " .. (depth - 1), "far_")}
        //@ source("far")
        const u32 *stage = ring + slot;
        u32 *filling = ring + fill;
        const u32 *digits_at =
            acts +
            ((item / ${span} % 2 * ${span} + item % ${span}) * ${k_warps} + k_warp) * ${unit * 64} +
            lane * 2;
        slot = slot == ${(depth - 1) * unit * stage_words} ? 0 : slot + ${unit * stage_words};
        fill = fill == ${(depth - 1) * unit * stage_words} ? 0 : fill + ${unit * stage_words};
        //@ for u = 0, unit - 1 do
        {
            if (more)
                issue_stage(filling + ${u * stage_words}, far_source + ${u} * far_stride, lane);
            copy_async_commit();
            copy_async_wait(${ahead});
            warp_sync();
            u32 digits[2];
            load2_u32(digits_at + ${u * 64}, digits);
            u32 product[${8 * tiles}];
            //@ for t = 0, tiles - 1 do
            {
                u32 window[8];
                trellis_windows(stage + ${u * stage_words + t * 8 * bits}, first, lane, window);
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
        }
        //@ end

        // Where the next item lies decides whether this block and this group end here.
        u32 after_group = ${groups}, after_piece = 0;
        if (item + 1 < count) {
            ${items:at("item + 1", "next_")}
            after_group = next_group;
            after_piece = next_piece;
        }
        const u32 block = (piece * ${k_warps} + k_warp) * ${unit} / ${BLOCK_TILES};
        if (after_group != group ||
            (after_piece * ${k_warps} + k_warp) * ${unit} / ${BLOCK_TILES} != block) {
            const u32 *mine = factor + ${part_index("group")} * ${blocks * row_limit} +
                              block * ${row_limit} + lane % 4 * 2;
            const u32 factor_0 = mine[0], factor_1 = mine[1];
            //@ for e = 0, elements - 1 do
            //@ if mul1 then
            total[${e}] = i64_mul_add(high[${e}], (i32)(factor_${e % 2} << 8), total[${e}]);
            total[${e}] = i64_mul_add(low[${e}], (i32)factor_${e % 2}, total[${e}]);
            //@ else
            total[${e}] += (((i64)sum2[${e}] << 16) + ((i64)sum1[${e}] << 8) + sum0[${e}]) *
                           (i64)factor_${e % 2};
            //@ end
            //@ for _, name in ipairs(sums_of) do
            ${name}[${e}] = 0;
            //@ end
            //@ end
        }
        if (after_group != group) {
            //@ local half = k_warps // 2
            //@ while half >= 1 do
            // The upper half of the k_warps hands its totals to the lower half.
            block_sync();
            if (k_warp >= ${half} && k_warp < ${2 * half}) {
                u64 *mine = ${shared.join} +
                            ((k_warp - ${half}) * ${n_warps} + n_warp) * ${elements * 32} + lane;
                //@ for e = 0, elements - 1 do
                mine[${e * 32}] = (u64)total[${e}];
                //@ end
            }
            block_sync();
            if (k_warp < ${half}) {
                const u64 *other = ${shared.join} +
                                   (k_warp * ${n_warps} + n_warp) * ${elements * 32} + lane;
                //@ for e = 0, elements - 1 do
                total[${e}] += (i64)other[${e * 32}];
                //@ end
            }
            //@ half = half // 2
            //@ end
            if (k_warp == 0) {
                u64 *to = sums + group * ${width} + n_warp * ${tiles * 16} + lane / 4;
                const u32 row = lane % 4 * 2;
                //@ for odd = 0, 1 do
                if (row + ${odd} < rows) {
                    //@ for e = odd, elements - 1, 2 do
                    //@ local column = e // 4 * 16 + e % 4 // 2 * 8
                    atomic_add_u64_global(to + (row + ${odd}) * ${columns} + ${column},
                                          (u64)total[${e}]);
                    //@ end
                }
                //@ end
            }
            //@ for e = 0, elements - 1 do
            total[${e}] = 0;
            //@ end
        }
        group = after_group;
        piece = after_piece;
    }
}
