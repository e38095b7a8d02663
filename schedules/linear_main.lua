-- linear_main: the exact decode linear, 8 rows times an EXL3 matrix, in integers (design.md 4.1).
--
-- Iteration space: (column group, step), flat; a group is tiles*16 columns of one part, a step is
-- `unit` k-tiles of 16. A warp takes a set of steps, most often a range that begins and ends
-- anywhere in a column, so all warps have as much to do; which ones, in which order and how many
-- there are cannot show in the result: int32 sums inside a 128-block, int64 sums across blocks, u64
-- additions to memory.
--
--   weights --cp.async--> ring of `depth` runs a warp --> 8 windows a lane --> imma
--   act     --cp.async--> beside them: a warp shares nothing, so warps drift apart and one's run
--                         ends while another's goes on
--
-- A run is what a warp has of `run` k-tiles that begin at a multiple of `run`: all of them but at
-- its first and last. It begins by waiting for its own weights and asking for those of the run
-- depth - 1 ahead, so the ring stays full across groups; its steps then are a loop without a wait,
-- short enough for the first instruction cache. Weights lie in packs (schedules/lib_trellis.lua):
-- one 16-byte load gives a lane a word of four tiles.
--
-- At each block's end, and before leaving a group, the int32 sums are folded:
-- total += (256 h + l) * 2^(e_block - e_row + shift), 0 where that exponent is negative. At a
-- group's end the totals are added to sums[row][column], which linear_output reads and clears.
--
-- Emitters (mul1): a weight is affine in S, the sum of the four bytes of its product. `bytes` lets
-- the tensor unit add them up: 4 immas a tile. `pairs2` and `pairs4` make 2 or all of four tiles of
-- S = 256 sh + sl, two k-tiles at a time: 2 immas a tile, 16 more integer instructions. The same
-- integers: sums of sh*h, sl*h + sh*l and sl*l, the first times 256 added to the second in the
-- fold. For GPUs whose tensor pipe is the limit (bench/NOTES.md). `wgmma` (sm_90, up to 4 bits) is
-- `bytes` in products of four warps, which have 64 columns of weights and both planes of all rows:
-- 2 a tile. They read activations from shared memory, so the four share them; their step is a whole
-- block. Of up to `few_rows` rows, whatever the emitter, both planes are the eight rows of one
-- product: 2 immas a tile, no more.
--
-- Widths: |h|,|l| block sums <= 128*1020*128 < 2^24; |sum i*S| <= 32639*1020*k*2^22 < 2^63 for
-- k <= 37888 (mul1, shift 22); |v| < 2^15 of the 16-bit codebooks needs shift 17. Pairs: |sum sh*h|
-- <= 128*3*128, |sum sl*h + sh*l| <= 128*258*128 < 2^23, and what the fold makes of both < 2^25.
local schedule, work, trellis = require "schedule", require "work", require "lib_trellis"
local linear, rounding = require "lib_linear", require "lib_rounding"

local BLOCK_TILES = 8 -- k-tiles of 16 in a 128-block: the unit of exponents
local ACT_TILE = 64   -- u32 of a k-tile's activations: two planes a lane

-- Runs of 8 k-tiles for 16 warps fit an SM; else 12 warps with runs of 4 do.
local function roomy(target) return target.shared_per_sm >= 200 * 1024 end

local function parts_of(p)
    return p.n3 > 0 and 4 or p.n2 > 0 and 3 or p.n1 > 0 and 2 or 1
end

-- Tiles of a k-tile that are emitted as pairs: the first.
local function pair_tiles(p)
    return p.emitter == "pairs4" and p.tiles or p.emitter == "pairs2" and p.tiles // 2 or 0
end

-- Warps that share products and activations.
local function group_warps(p) return p.emitter == "wgmma" and 4 or 1 end

-- Why groups of warps do not take p, or nil.
local function groups_refuse(p)
    local width = p.tiles * 16 * group_warps(p)
    if p.run ~= BLOCK_TILES or p.unit ~= BLOCK_TILES then
        return "run and unit must be " .. BLOCK_TILES
    end
    if p.cta_warps % group_warps(p) ~= 0 then return "cta_warps must be a multiple of 4" end
    if p.map ~= "contiguous" then return "map must be contiguous" end
    for i = 0, 3 do
        local n = p["n" .. i]
        if n % width ~= 0 then
            return "n" .. i .. " must be a multiple of " .. width .. ", got " .. n
        end
    end
end

-- Words of a warp's ring, and of the activations that four warps share: a ring, and two runs four
-- times as wide (templates/lib_linear_group.cu).
local function ring_words(p)
    return p.depth * p.run * (p.tiles * 8 * p.bits + (group_warps(p) > 1 and 0 or ACT_TILE))
end
local function acts_words(p)
    return group_warps(p) > 1 and (p.depth + 2 * 4) * p.run * ACT_TILE or 0
end

-- Bytes of shared memory of a CTA: the rings, the factors of the blocks.
local function shared_bytes(p)
    return (p.cta_warps * ring_words(p) + p.cta_warps // group_warps(p) * acts_words(p)) * 4
        + parts_of(p) * (p.k // 128) * 8 * 4
end

-- The sums of a warp (name, type, terms, largest term), from what bytes and digits can be: a
-- block's from planes of at most 128, the whole's from digits, for the largest k.
local PLANE, BYTE, DIGIT, K_MOST = 128, 255, linear.DIGIT, linear.K_MOST

-- Of the 16-bit codebooks: up to which k blocks that are dropped err less together than stock's
-- binary16 sums, which it folds every two k-tiles, or four where columns are few (exl3.md 4).
local VALUES = {
    { name = "", fold = 2, k = 15872 }, { name = ", few columns", fold = 4, k = 36352 },
}

local function affine_sums(p)
    local terms, most = BLOCK_TILES * 16, 4 * BYTE
    local sums = {
        { "high", p.block_sum, terms, PLANE * most }, { "low", p.block_sum, terms, PLANE * most },
        { "factor", "i32", 1, 1 << p.shift + 8 },
        { "total", p.total_sum, K_MOST, DIGIT * most << p.shift },
        { "corrected", p.total_sum, K_MOST, DIGIT * (most // 2) << p.shift }, -- Y - 510 Q, 510 Q
    }
    if p.pair_tiles > 0 then -- S = 256 sh + sl, sh <= 3
        table.move({
            { "pair_top", p.block_sum, terms, PLANE * 3 },
            { "pair_high", p.block_sum, terms, PLANE * (BYTE + 3) },
            { "pair_joined", p.block_sum, terms, PLANE * (BYTE + 3) + (PLANE * 3 << 8) },
        }, 1, 3, #sums + 1, sums)
    end
    return sums
end

local function value_sums(p)
    local terms = BLOCK_TILES * 16
    return {
        { "sum2", p.block_sum, terms, PLANE * PLANE },
        { "sum1", p.block_sum, terms, 2 * PLANE * PLANE },
        { "sum0", p.block_sum, terms, PLANE * PLANE },
        { "factor", "i32", 1, 1 << p.shift },
        { "total", p.total_sum, K_MOST, DIGIT * DIGIT << p.shift },
    }
end

-- The whole linear, from its f32 input: a product and H128, the digits, the conversions (mul1: two,
-- product and fma of the affine identity, which see at most twice the magnitudes), H128 and a
-- product. Stock (elpis.md 8.2, exl3.md 4): its two transforms, what it rounds to binary16 before
-- the product, and the product: int8 digits of slices of 256 and the affine identity (mul1 up to 5
-- bits; its slices are not counted), else binary16 sums, each counted as rounded to nearest, and
-- mul1's weights in binary16. W: the block of 128 columns that the second H128 joins.
local function roundings(p, digits)
    local ends = 2 * (rounding.hadamard(digits.size) + 1)
    local affine, stock = 2 * 3, 8 + 9
    if p.codebook == "mul1" then
        local is_int8 = p.bits <= 5
        local of_stock = { r32 = stock, r16 = 2 + 1 + 2 }
        if is_int8 then
            of_stock = { r32 = stock + affine, r16 = 2,
                digits = { size = 256, digit = 254, k = 0, drop = 0 } }
        end
        return { { "decode linear, mul1" .. (is_int8 and "" or ", 6 to 8 bits"), over = "|x||W|",
            ours = { r32 = ends + affine, digits = digits }, stock = of_stock } }
    end
    local list = {}
    for i, values in ipairs(VALUES) do
        local of_k = { size = digits.size, digit = digits.digit, k = values.k, drop = digits.drop }
        list[i] = { "decode linear, 3inst and mcg" .. values.name, over = "|x||W|",
            ours = { r32 = ends + 1, digits = of_k },
            stock = { r32 = stock, r16 = 2 + values.fold } }
    end
    return list
end

return schedule.define {
    name = "linear_main",
    summary = "exact decode linear: 8 rows x EXL3 matrix, integer sums",
    mirrors = { "gemm_m16_partition", "gemm_m16_group", "gemm_m16_wpart", "m16_diet", "m16_diet2" },
    -- n0..n3: columns of up to four parts that share k, bits and codebook (0 = no such part)
    problem = {
        k = "u32", n0 = "u32", n1 = "u32", n2 = "u32", n3 = "u32", bits = "u32",
        codebook = { "mul1", "mcg", "3inst" },
    },
    numeric = { row_limit = { 8 } },
    tuning = {
        tiles = { 4, 8 }, -- whole packs
        cta_warps = function(p, target) -- named to be tried last
            return target.name == "host" and { 2, 4, 8 } or roomy(target) and { 8, 16, 4, 2 }
                or { 4, 8, 2 }
        end,
        unit = { 4, 2, 1, 8 },
        run = { 8, 4, 2, 1 },
        depth = { 2, 3, 4 },
        ctas_per_sm = function(p, target)
            return target.name == "host" and { 1, 2 } or roomy(target) and { 2, 1, 3, 4 }
                or { 3, 2, 1, 4 }
        end,
        map = { "contiguous", "strided" },
        emitter = function(p, target)
            if p.codebook ~= "mul1" then return { "bytes" } end
            if target.arch == 90 and p.bits <= 4 then -- else no two CTAs of 8 warps fit
                return { "wgmma", "bytes", "pairs2", "pairs4" }
            end
            if target.name == "host" and p.bits <= 4 then
                return { "bytes", "pairs2", "pairs4", "wgmma" }
            end
            return target.name == "sm_86" and p.bits <= 4 and { "pairs2", "bytes", "pairs4" }
                or { "bytes", "pairs2", "pairs4" }
        end,
        few_rows = function(p, target) -- one on GPUs, since tuning looks at passes of 8 rows
            return p.codebook ~= "mul1" and { 0 } or target.name == "host" and { 0, 4 } or { 4 }
        end,
        extract = function(p) return p.bits == 4 and { "bytes", "funnel" } or { "funnel" } end,
    },
    examples = {
        { k = 256, n0 = 1280, n1 = 768, n2 = 0, n3 = 0, bits = 4, codebook = "mul1" },
        { k = 256, n0 = 4096, n1 = 0, n2 = 0, n3 = 0, bits = 6, codebook = "mul1" },
        { k = 5120, n0 = 17408, n1 = 17408, n2 = 0, n3 = 0, bits = 4, codebook = "mul1" },
        { k = 17408, n0 = 5120, n1 = 0, n2 = 0, n3 = 0, bits = 4, codebook = "mul1" },
        { k = 5120, n0 = 10240, n1 = 6144, n2 = 0, n3 = 0, bits = 4, codebook = "mul1" },
        { k = 6144, n0 = 5120, n1 = 0, n2 = 0, n3 = 0, bits = 4, codebook = "mul1" },
        { k = 5120, n0 = 12288, n1 = 1024, n2 = 1024, n3 = 0, bits = 4, codebook = "mul1" },
        { k = 5120, n0 = 248320, n1 = 0, n2 = 0, n3 = 0, bits = 6, codebook = "mul1" },
        { k = 5120, n0 = 17408, n1 = 17408, n2 = 0, n3 = 0, bits = 4, codebook = "mul1",
            emitter = "pairs2" },
        { k = 17408, n0 = 5120, n1 = 0, n2 = 0, n3 = 0, bits = 4, codebook = "mul1",
            emitter = "pairs4" },
        { k = 5120, n0 = 12288, n1 = 1024, n2 = 1024, n3 = 0, bits = 4, codebook = "mul1",
            emitter = "bytes" },
        { k = 5120, n0 = 17408, n1 = 17408, n2 = 0, n3 = 0, bits = 6, codebook = "mul1",
            emitter = "pairs2", tiles = 8 },
        { k = 256, n0 = 256, n1 = 0, n2 = 0, n3 = 0, bits = 3, codebook = "mcg" },
        { k = 256, n0 = 256, n1 = 0, n2 = 0, n3 = 0, bits = 5, codebook = "3inst" },
    },
    valid = function(p, target)
        if p.k % 128 ~= 0 then return "k must be a multiple of 128, got " .. p.k end
        if p.k > K_MOST then
            return "k must be at most " .. K_MOST .. " (int64 sums), got " .. p.k
        end
        if p.bits < 1 or p.bits > 8 then return "bits must be 1..8, got " .. p.bits end
        if p.n0 == 0 then return "n0 must not be 0" end
        if p.run % p.unit ~= 0 then return "run must be a multiple of unit" end
        if pair_tiles(p) > 0 and p.unit % 2 ~= 0 then return "pairs need an even unit" end
        for i = 0, 3 do
            local n = p["n" .. i]
            if n % 128 ~= 0 then return "n" .. i .. " must be a multiple of 128, got " .. n end
        end
        local refused = group_warps(p) > 1 and groups_refuse(p)
        if refused then return "emitter wgmma: " .. refused end
        local registers = p.tiles * (p.codebook == "mul1" and 16 or 28) + 56
        if pair_tiles(p) > 0 then -- sums; words of two k-tiles, three a lane but for 4 bits
            registers = registers + 4 * pair_tiles(p) + (p.bits == 4 and 0 or 16)
        end
        if target.name ~= "host" and registers * 32 * p.cta_warps * p.ctas_per_sm > 65536 then
            return "registers: " .. registers .. " a thread do not fit"
        end
        if (shared_bytes(p) + 1024) * p.ctas_per_sm > target.shared_per_sm then
            return "shared memory: " .. shared_bytes(p) .. " bytes a CTA do not fit"
        end
    end,
    derive = function(p, target)
        local width = p.tiles * 16 * group_warps(p)
        local groups, group_first, columns = 0, {}, 0
        for i = 0, 3 do
            group_first[i] = groups
            groups = groups + p["n" .. i] // width
            columns = columns + p["n" .. i]
        end
        local stage_words = p.tiles * 8 * p.bits
        return {
            width = width, groups = groups, parts = parts_of(p), group_first = group_first,
            columns = columns, steps = p.k // 16 // p.unit, run_steps = p.run // p.unit,
            blocks = p.k // 128, BLOCK_TILES = BLOCK_TILES, ACT_TILE = ACT_TILE,
            warps = p.cta_warps, shift = p.codebook == "mul1" and 22 or 17, PACK = trellis.PACK,
            trellis_words = trellis.words(p.bits), shift_one = trellis.common_shift(p.bits),
            stage_words = stage_words, ring_words = ring_words(p),
            acts_words = acts_words(p), group_warps = group_warps(p),
            act_words = p.k // 16 * ACT_TILE, pair_tiles = pair_tiles(p),
            ktiles = pair_tiles(p) > 0 and 2 or 1, -- decoded together
            sms = target.sms, ctas = target.sms * p.ctas_per_sm,
            block_sum = "i32", total_sum = "i64", -- types of the sums in registers
        }
    end,
    args = {
        { "weights", "const u32 * const *", "[parts] -> trellis [k/16, n/64, 8*bits, 4]: packs" },
        { "act", "const u32 *", "[parts, k/16, 32, 2]" },
        { "exponents", "const i32 *", "[parts, 8, blocks]" },
        { "digits", "const i32 *", "[parts, 8, blocks] sums of the activations' integers" },
        { "sums", "u64 *", "[8, columns of all parts], added to" },
        { "scales", "u64 *",
            "[parts, 8, 2] largest exponent and Q = sum of digits, for linear_output" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    shared = function(p)
        return {
            { "ring", "u32", p.warps * p.ring_words },
            { "factor", "u32", p.parts * p.blocks * p.row_limit },
            p.acts_words > 0 and { "acts", "u32", p.warps // 4 * p.acts_words } or nil,
        }
    end,
    maps = function(p)
        return {
            items = work.map {
                space = { { "group", p.groups }, { "step", p.steps } },
                over = p.group_warps > 1 and "warpgroups" or "warps",
                workers = p.ctas * p.warps // p.group_warps, warps = p.warps,
                warpgroups = p.warps // 4, sms = p.sms,
                order = p.group_warps > 1 and "sm" or "scheduler",
                partition = p.map == "strided" and "blocked_strided" or p.map,
                block = p.map == "strided" and p.run_steps or nil, -- so that runs stay whole
                reduction = "order_free", reduce = { "step" }, accumulator = "i64",
            },
        }
    end,
    -- Blocks are dropped whose digits would be shifted out: their largest is 2^(shift - 1) or more
    -- below the row's. The shift that the 16-bit codebooks' values leave room for keeps less, where
    -- such blocks are many.
    claims = function(p)
        local counts, firsts = {}, {}
        for part = 0, p.parts - 1 do
            counts[part + 1], firsts[part + 1] = p["n" .. part] // p.width, p.group_first[part]
        end
        local digits = { size = BLOCK_TILES * 16, digit = DIGIT, k = K_MOST, drop = p.shift - 1 }
        return {
            groups = { counts = counts, firsts = firsts, total = p.groups },
            digits = digits,
            roundings = roundings(p, digits),
            sums = p.codebook == "mul1" and affine_sums(p) or value_sums(p),
        }
    end,
    launch = function(p)
        return { grid = p.ctas, block = 32 * p.warps, min_ctas = p.ctas_per_sm }
    end,
    template = "linear_main",
}
