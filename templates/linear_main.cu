//@ -- see schedules/linear_main.lua
//@ include("lib_trellis")
//@ local mul1 = codebook == "mul1"
//@ local sums_of = mul1 and {"high", "low"} or {"sum2", "sum1", "sum0"}
//@ local threads = 32 * warps
//@ local elements = 4 * tiles
//@ local ahead = depth - 1               -- items between asking and using
//@ local act_words_item = unit * 64         -- activations of an item of a warp
//@ local item_words = unit * stage_words + act_words_item
//@ local one_block = unit == BLOCK_TILES and mul1 -- an item is one block of one warp
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
//@ -- u32 of one k-tile, and the matrix, of a part
//@ local function row_words(part) return p["n" .. part] // 16 * 8 * bits .. "u" end
//@ local function weight_of(part) return "weight_" .. part end
// Declarations: name_source, this warp's tiles at the item's first k-tile; name_stride, the words
// of a k-tile; name_acts, the activations of its k-tiles.
//@ local function source(name)
    const u32 ${name}_stride = ${by_part(name .. "_group", row_words)};
    const u32 *${name}_source = ${by_part(name .. "_group", weight_of)} +
        ((${name}_piece * ${k_warps} + k_warp) * ${unit} * ${name}_stride +
         (${name}_group * ${width // 16} + n_warp * ${tiles}) * ${8 * bits});
//@ end
//@ local function acts_of(name)
    const u32 *${name}_acts = act + (${part_index(name .. "_group")} * ${act_words} +
                                     (${name}_piece * ${k_warps} + k_warp) * ${act_words_item});
//@ end
//@ -- The copies of an item's activations, behind its weights.
//@ local function issue_acts(name, to)
    //@ acts_of(name)
    //@ for piece = 0, unit * 16 - 1, 32 do
    //@ if piece + 32 > unit * 16 then
    if (${piece} + lane < ${unit * 16})
    //@ end
        copy_async16_at(${to} + ${unit * stage_words} + lane * 4, ${piece * 16},
                        ${name}_acts + lane * 4, ${piece * 16});
    //@ end
//@ end
//@ -- The copies of an item's `unit` stages, 16 bytes a lane a round, from name_source to `to`.
//@ local function issue_item(name, to)
    {
        const u32 *from = ${name}_source + lane * 4;
        u32 *into = ${to} + lane * 4;
        //@ local pieces = tiles * 2 * bits
        //@ for u = 0, unit - 1 do
        //@ for piece = 0, pieces - 1, 32 do
        //@ local row = stride_one and u * stride_one or 0
        //@ if piece + 32 > pieces then
        if (${piece} + lane < ${pieces})
        //@ end
            copy_async16_at(into, ${(u * stage_words + piece * 4) * 4}, from,
                            ${(row + piece * 4) * 4});
        //@ end
        //@ if not stride_one then
        from += ${name}_stride;
        //@ end
        //@ end
    }
//@ end
KERNEL
{
    start_next();
    const u32 thread = thread_id(), lane = lane_id(), warp = warp_id();
    const u32 n_warp = warp % ${n_warps}, k_warp = warp / ${n_warps};
    const u32 count = ${items.count};
    //@ for part = 0, parts - 1 do
    // from where the tiles of group 0 of all parts would lie
    const u32 *weight_${part} = weights[${part}] - ${group_first[part] * (width // 16) * 8 * bits};
    //@ end
    const u32 mine = warp * ${ring_words}; // this warp's ring in the CTA's
    u32 *ring = ${shared.ring};
    u32 *factor = ${shared.factor};
    //@ for q = 0, trellis_words - 1 do
    const u32 word_at${q} = keep_u32(mine + trellis_word(lane, ${q}) * ${PACK});
    //@ end

    // Prologue: the ring but one item, weights first: no earlier launch has a hand in them. Then
    // activations and the factors of the blocks.
    //@ for d = 0, depth - 2 do
    if (${d} < count) {
        ${items:at(tostring(d), "next_")}
        //@ source("next")
        //@ issue_item("next", "(ring + mine + " .. d * item_words .. ")")
    }
    //@ end
    wait_previous();
    const u32 rows = round[0];
    const u32 first = ${items.worker} == 0; // says what all have found out
    if (count == 0 && !first)
        return;
    //@ for d = 0, depth - 2 do
    if (${d} < count) {
        ${items:at(tostring(d), "next_")}
        //@ issue_acts("next", "(ring + mine + " .. d * item_words .. ")")
    }
    copy_async_commit();
    //@ end
    for (u32 job = warp; job < ${parts * row_limit}; job += ${warps}) {
        const i32 *mine = exponents + job * ${blocks};
        i32 top = -1000;
        for (u32 block = lane; block < ${blocks}; block += 32)
            top = mine[block] > top ? mine[block] : top;
        top = warp_max_i32(top);
        if (first) {
            u64 q = 0;
            for (u32 block = lane; block < ${blocks}; block += 32) {
                const i32 power = mine[block] - top + ${shift};
                const i32 digit = digits[job * ${blocks} + block];
                q += power < 0 ? 0 : (u64)((i64)digit * ((i64)1 << power));
            }
            q = warp_sum_u64(q);
            if (lane == 0) {
                scales[job * 2] = (u64)(i64)top;
                scales[job * 2 + 1] = q;
            }
        }
        for (u32 block = lane; block < ${blocks}; block += 32) {
            const i32 power = mine[block] - top + ${shift};
            factor[(job / ${row_limit} * ${blocks} + block) * ${row_limit} + job % ${row_limit}] =
                power < 0 ? 0 : 1u << power;
        }
    }
    block_sync();
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
    const u32 planes_at = keep_u32(mine + ${unit * stage_words} + lane * 2);
    u32 slot = 0; // words into the ring
    // Where this item and those that were asked for lie.
    //@ for d = 0, ahead - 1 do
    u32 group_${d}, piece_${d};
    {
        ${items:at(tostring(d), "next_")}
        group_${d} = next_group;
        piece_${d} = next_piece;
    }
    //@ end
    for (u32 item = 0; item < count; item++) {
        copy_async_wait(${ahead - 1});
        warp_sync();
        ${items:at("item + " .. ahead, "far_")}
        if (item + ${ahead} < count) {
            //@ source("far")
            const u32 fill = slot < ${item_words} ? slot + ${ahead * item_words}
                                                  : slot - ${item_words};
            //@ issue_item("far", "(ring + mine + fill)")
            //@ issue_acts("far", "(ring + mine + fill)")
        }
        copy_async_commit();
        const u32 *stage = ring + slot;
        slot = slot == ${ahead * item_words} ? 0 : slot + ${item_words};
        //@ for u = 0, unit - 1 do
        {
            u32 planes[2];
            load2_u32(stage + ${u * 64} + planes_at, planes);
            u32 product[${8 * tiles}];
            //@ for pack = 0, tiles // PACK - 1 do
            {
                //@ for q = 0, trellis_words - 1 do
                u32 word${q}[${PACK}];
                load4_u32(stage + ${u * stage_words + pack * PACK * 8 * bits} + word_at${q},
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
                    product[${8 * (pack * PACK + t) + j}] = trellis_product(window[${j}]);
                    //@ end
                }
                //@ end
            }
            //@ end
            //@ if mul1 then
            mma_u8s8_mul1${one_block and u == 0 and "_first" or ""}(${tiles}, high, low, product,
                                                                   planes, rows);
            //@ else
            mma_s8_pairs(${tiles}, sum2, sum1, sum0, product, planes, rows);
            //@ end
        }
        //@ end

        // Where the next item lies decides whether this block and this group end here.
        //@ local following = ahead > 1 and {group = "group_1", piece = "piece_1"}
        //@     or {group = "far_group", piece = "far_piece"}
        const u32 group = group_0, piece = piece_0;
        const u32 goes_on = item + 1 < count && ${following.group} == group;
        const u32 block = (piece * ${k_warps} + k_warp) * ${unit} / ${BLOCK_TILES};
        //@ if one_block then
        {
        //@ else
        if (!goes_on ||
            (${following.piece} * ${k_warps} + k_warp) * ${unit} / ${BLOCK_TILES} != block) {
        //@ end
            const u32 *factors = factor + ${part_index("group")} * ${blocks * row_limit} +
                              block * ${row_limit} + lane % 4 * 2;
            const u32 factor_0 = factors[0], factor_1 = factors[1];
            //@ for e = 0, elements - 1 do
            //@ if mul1 then
            total[${e}] = i64_mul_add(high[${e}], (i32)(factor_${e % 2} << 8), total[${e}]);
            total[${e}] = i64_mul_add(low[${e}], (i32)factor_${e % 2}, total[${e}]);
            //@ else
            total[${e}] += (((i64)sum2[${e}] << 16) + ((i64)sum1[${e}] << 8) + sum0[${e}]) *
                           (i64)factor_${e % 2};
            //@ end
            //@ if not one_block then
            //@ for _, name in ipairs(sums_of) do
            ${name}[${e}] = 0;
            //@ end
            //@ end
            //@ end
        }
        if (!goes_on) {
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
        //@ for d = 0, ahead - 2 do
        group_${d} = group_${d + 1};
        piece_${d} = piece_${d + 1};
        //@ end
        group_${ahead - 1} = far_group;
        piece_${ahead - 1} = far_piece;
    }
}
