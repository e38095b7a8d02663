//@ -- see schedules/linear_main.lua
//@ include("lib_trellis")
//@ mul1 = codebook == "mul1"
//@ elements = 4 * tiles
//@ local paired = 4 * pair_tiles       -- elements whose high bytes have a sum of their own
//@ -- name and elements of each int32 sum; few: of the path for few rows
//@ function sums_of(few)
//@     if few then return {{"both", elements}} end
//@     return mul1 and {{"top", paired}, {"high", elements}, {"low", elements}}
//@         or {{"sum2", elements}, {"sum1", elements}, {"sum0", elements}}
//@ end
//@ ahead = depth - 1                  -- runs between asking and using
//@ stage_bytes, act_bytes = 4 * stage_words, 4 * ACT_TILE
//@ one_block = run == BLOCK_TILES -- a run is one block's, so it ends with a fold
//@ peels = one_block and mul1    -- a run's first step begins its sums
//@ local jobs = parts * row_limit     -- rows of activations, each with exponents of its own
//@ local in_regs = (blocks + 31) // 32 -- exponents of a row a lane
//@ -- rows of a warp whose exponents come at once, as registers allow
//@ local at_once = math.max(1, math.min((jobs + warps - 1) // warps, 16 // in_regs))
//@ -- words of a k-tile when all parts have as many, else false
//@ local stride = p.n0 // 16 * 8 * bits
//@ for part = 1, parts - 1 do
//@     if p["n" .. part] ~= p.n0 then stride = false end
//@ end
//@ stride_one = stride
//@ -- an expression that depends on the part a group lies in; groups of the parts follow each other
//@ function by_part(group, value)
//@     local text = value(0)
//@     for part = 1, parts - 1 do
//@         local first = group_first[part]
//@         text = ("(%s >= %du ? %s : %s)"):format(group, first, value(part), text)
//@     end
//@     return text
//@ end
//@ function part_index(group)
//@     return by_part(group, function(part) return part .. "u" end)
//@ end
//@ function row_words(part) return p["n" .. part] // 16 * 8 * bits .. "u" end
//@ function weight_of(part) return "weight_" .. part end
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
//@ -- The eight products of a lane's words of one tile (word: their name, %d for the number), to
//@ -- product[first] on.
//@ function decode_tile(word, product, first)
                    {
                        u32 word[${trellis_words}], window[8];
                        //@ for q = 0, trellis_words - 1 do
                        word[${q}] = ${word:format(q)};
                        //@ end
                        trellis_windows(word, lane, window);
                        //@ for j = 0, 7 do
                        ${product}[${first + j}] = trellis_product(window[${j}]);
                        //@ end
                    }
//@ end
//@ -- A step: its products are added to the sums, or (`begins`) are their beginning.
//@ function do_step(begins, few)
            //@ local ktiles = few and 1 or ktiles
            //@ for u = 0, unit - 1, ktiles do
            {
                //@ for i = 0, ktiles - 1 do
                u32 planes${i}[2], product${i}[${8 * tiles}];
                load${few and 1 or 2}_at(planes_place, ${(u + i) * act_bytes}, planes${i});
                //@ for pack = 0, tiles // PACK - 1 do
                {
                    //@ for q = 0, trellis_words - 1 do
                    u32 word${q}[${PACK}];
                    load4_at(word_place${q}, ${(u + i) * stage_bytes + pack * PACK * 32 * bits},
                             word${q});
                    //@ end
                    //@ for t = 0, PACK - 1 do
                    //@ decode_tile("word%d[" .. t .. "]", "product" .. i, 8 * (pack * PACK + t))
                    //@ end
                }
                //@ end
                //@ emit(i, begins and u == 0, few)
                //@ end
            }
            //@ end
            //@ for q = 0, trellis_words - 1 do
            word_place${q} += ${unit * stage_bytes};
            //@ end
            planes_place += ${unit * act_bytes};
//@ end
//@ -- Element e of the sums anew, where no first step begins them.
//@ function clear_sums(e, few)
    //@ for _, sum in ipairs(peels and {} or sums_of(few)) do
    //@ if e < sum[2] then
    ${sum[1]}[${e}] = 0;
    //@ end
    //@ end
//@ end
//@ -- Where this lane's factors of a block lie.
//@ function factor_place(group, block)
//@     return ("factor_at + (%s * %d + %s) * %d"):format(part_index(group), blocks, block,
//@         row_limit * 4)
//@ end
//@ -- The int32 sums of a block, times the rows' factors at `place`, onto the totals.
//@ function fold(place, few)
            u32 of_rows[2];
            load2_at(${place}, 0, of_rows);
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
//@ end
//@ -- The totals go to memory.
//@ function leave(group, few)
            // the totals of idle rows are 0, since their factors are
            u64 *to = sums + ${first_column(group)} + lane / 4;
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
//@ end
//@ -- A lane's sums and totals, which are of rows `row` and row + 1; few: of one of their planes.
//@ function declare_sums(few)
    //@ if few then
    const u32 row = lane % 2 * 2, plane_shift = lane % 4 < 2 ? 8 : 0;
    //@ else
    const u32 row = lane % 4 * 2;
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
//@ end
//@ -- Copies of `count` k-tiles, 16 bytes a lane a round.
//@ function copy_ktiles(count)
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
//@ -- The exponents of a warp's next `at_once` rows, `turn` and every `warps`-th behind it.
//@ local function load_exponents()
    //@ for t = 0, at_once - 1 do
    //@ for i = 0, in_regs - 1 do
    exponent[${t}][${i}] = turn < ${jobs - t * warps} && ${32 * i} + lane < ${blocks}
                               ? exponents[(turn + ${t * warps}) * ${blocks} + ${32 * i} + lane]
                               : -1000;
    //@ end
    //@ end
//@ end
//@ include(group_warps > 1 and "lib_linear_group" or "lib_linear_warp")
KERNEL
{
    const u32 lane = lane_id(), warp = warp_id();
    const u32 count = ${items.count};
    //@ for part = 0, parts - 1 do
    // from where the tiles of group 0 of all parts would lie
    const u32 *weight_${part} = weights[${part}] - ${group_first[part] * group_warps * stage_words};
    //@ end
    u32 *factor = ${shared.factor};
    const u32 ring = shared_place(${shared.ring} + warp * ${ring_words}); // this warp's
    //@ for q = 0, trellis_words - 1 do
    const u32 word_at${q} = keep_u32(ring + trellis_word(lane, ${q}) * ${PACK * 4});
    //@ end

    // Prologue: the ring but one run, weights first: no earlier launch has a hand in them. Then
    // activations and the factors of the blocks.
    //@ open_ring()
    wait_previous();
    const u32 rows = round[0];
    // the CTA that says what all have found out
    const u32 first = ${items.worker} < ${warps // group_warps};
    //@ open_acts()
    u32 turn = warp;
    i32 exponent[${at_once}][${in_regs}];
    //@ load_exponents()
    //@ if group_warps > 1 then
    //@ begin_products()
    //@ end
    for (;;) {
        //@ for t = 0, at_once - 1 do
        if (turn < ${jobs - t * warps}) {
            const u32 job = turn + ${t * warps}, row = job % ${row_limit};
            u32 *of_job = factor + job / ${row_limit} * ${blocks * row_limit} + row;
            i32 top = -1000;
            //@ for i = 0, in_regs - 1 do
            top = exponent[${t}][${i}] > top ? exponent[${t}][${i}] : top;
            //@ end
            top = warp_max_i32(top);
            //@ for i = 0, in_regs - 1 do
            if (${32 * i} + lane < ${blocks}) {
                const i32 power = exponent[${t}][${i}] - top + ${shift};
                of_job[(${32 * i} + lane) * ${row_limit}] =
                    power < 0 || row >= rows ? 0 : 1u << power;
            }
            //@ end
            if (first && lane == 0)
                scales[job * 2] = (u64)(i64)top;
        }
        //@ end
        turn += ${warps * at_once};
        if (turn >= ${jobs})
            break;
        //@ load_exponents()
    }
    block_sync();
    if (first) { // nobody waits for Q here
        for (u32 job = warp; job < ${jobs}; job += ${warps}) {
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
