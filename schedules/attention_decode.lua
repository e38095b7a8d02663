-- attention_decode: up to 8 positions x all heads over the quantised cache, split by spans.
--
-- Iteration space: (span, kv head, block of row tiles), late spans first: they are long. There is a
-- CTA for every item, so that the GPU itself gives the next one to an SM that is done; those behind
-- the last span return at once. A span is a fixed function of absolute key position (design.md 4.2:
-- 64 keys below 2048, else 1/16 of the octave), its tiles of 64 keys ascend, and its result goes to
-- its own slot; attention_combine merges slots in ascending order. Which CTA ran which span cannot
-- show.
--
-- A CTA has all rows of a kv head if they fit, in tiles of 16, and unpacks a tile of keys once for
-- all of them: a warp has a quarter of the keys of one row tile in the scores, and a quarter of the
-- dims in P.V. The CTA meets twice a tile: scores of a tile follow P.V of the one before, without a
-- wait between, and beside its softmax its values and the keys of the next one are unpacked.
--
-- Rows are position-major: row = position * group + head, so idle positions drop whole row tiles.
-- Cached keys lie below the round's base; the round's own keys, already in cached form, are 8
-- further columns of the tiles their positions fall into, and a row sees those on its path in the
-- round's tree (core/engine/tree.h). A tile's result depends on its set of keys alone, so a row of
-- any tree has the bits of plain decoding at its prefix, in one pass and whatever leaves the tree
-- has. Per tile, for each row:
--   score   J_g = 256 * (qh . c) + (ql . c), exact in int32 per 32-dim group; sum over g ascending
--           of fma(f32(J_g), q_scale_g * k_scale_g, s), in log2 units (q_scale has scale * log2 e)
--   m       floor of the largest visible score: rescales are exact powers of two
--   p       exp2(s - m), 0 where the key is not visible (selected, never multiplied)
--   l       sum of RN(p * 2^24): an integer, so only the set of keys counts
--   P.V     unit_g = 2^(max(floor(log2 max_t p*s_v), -100) - 15); P' = min(RN(p*s_v / unit), 65535)
--           in two u8 planes against s8 codes, exact in int32 = J; sum of a span, scaled by 2^-bits
--           at once: fma(f32(J), unit_g * new, old * sum), old and new the exact rescales
-- The first tile's keys are on their way before the launch waits for those before it, if all of
-- them lie below base (templates/prelude/README.md): above it, committed rows of the very pass go.
-- Codes are the odd integers 2c - (2m-1), times 2^code_shift as lib_codes makes them; 8-bit codes
-- use c - 128 and a correction by sums.
local schedule, work = require "schedule", require "work"
local spans, linear = require "lib_spans", require "lib_linear"
local rounding = require "lib_rounding"

local TILE, ROW_TILE, GROUP_DIMS, GROUPS, HEAD = 64, 16, 32, 8, 256
local QUARTERS = 4 -- warps of a row tile

-- Of a kv head; at least one, for shapes that `valid` refuses.
local function row_tiles_max(p)
    local rows = p.kv_heads > 0 and p.row_limit * (p.q_heads // p.kv_heads) or 0
    return math.max(1, math.min(4, (rows + ROW_TILE - 1) // ROW_TILE))
end

return schedule.define {
    name = "attention_decode",
    summary = "attention of 8 positions over the 2..8-bit cache, one result a span",
    mirrors = { "attn_stride", "attn_tree", "attn_fast" },
    problem = { q_heads = "u32", kv_heads = "u32", context = "u32" },
    numeric = { bits = { 3, 2, 4, 5, 6, 7, 8 }, row_limit = { 8 } },
    tuning = {
        map = { "strided", "contiguous" },
        -- Of 16 rows, in one CTA: all, or fewer where shared memory is short. Four would spill.
        row_tiles = function(p)
            local most, list = row_tiles_max(p), {}
            if most == 4 or p.bits > 4 then most = math.min(most, 2) end -- registers
            for tiles = most, 1, -1 do list[#list + 1] = tiles end
            return list
        end,
        ctas_per_sm = { 1, 2 },
        -- Places for scores: with two those of a tile need not wait for P.V of the one before.
        score_sides = { 2, 1 },
    },
    examples = {
        { q_heads = 6, kv_heads = 1, context = 4096 },
        { q_heads = 24, kv_heads = 4, context = 262144 },
        { q_heads = 24, kv_heads = 4, context = 4096, bits = 8 },
        { q_heads = 24, kv_heads = 4, context = 4096, bits = 5 },
        { q_heads = 32, kv_heads = 4, context = 4096, bits = 4 },
    },
    valid = function(p, target)
        if p.kv_heads == 0 or p.q_heads % p.kv_heads ~= 0 then
            return "q_heads must be a multiple of kv_heads, got " ..
                p.q_heads .. " and " .. p.kv_heads
        end
        if p.q_heads // p.kv_heads > 8 then
            return "at most 8 query heads a kv head, got " .. p.q_heads // p.kv_heads
        end
        if p.context % 256 ~= 0 then
            return "context must be a multiple of 256, got " .. p.context
        end
    end,
    derive = function(p, target)
        local group = p.q_heads // p.kv_heads
        local words = GROUPS * p.bits -- u32 of codes of one key of one head
        local row_blocks = (row_tiles_max(p) + p.row_tiles - 1) // p.row_tiles
        local k_stride = HEAD // 4 + 8 -- u32; four keys fall on different banks
        return {
            TILE = TILE, ROW_TILE = ROW_TILE, PAGE = 256, GROUP_DIMS = GROUP_DIMS,
            GROUPS = GROUPS, HEAD = HEAD, QUARTERS = QUARTERS,
            group = group, words = words, warps = QUARTERS * p.row_tiles,
            table_rows = ROW_TILE * p.row_tiles, row_blocks_max = row_blocks,
            code_shift = p.bits == 8 and 0 or 7 - p.bits,
            code_words = TILE * (words + GROUPS // 2), -- of a tile's keys, or values
            spans_max = spans.count(p.context),
            NEAR = spans.NEAR, NEAR_SPAN = spans.NEAR_SPAN, PER_OCTAVE = spans.PER_OCTAVE,
            q_stride = HEAD // 4 + 4,  -- u32; rows fall on different banks
            s_stride = TILE + 8 + 8,   -- f32; cached keys, the round's own, other banks
            k_stride = k_stride, ks_stride = GROUPS + 4, vs_stride = TILE + 16,
            unpacked_words = TILE * (k_stride + HEAD // 4),
            ctas = spans.count(p.context) * p.kv_heads * row_blocks,
        }
    end,
    args = {
        { "q_planes", "const u32 *",
            "[2 planes, 8, q_heads, 64] s8, slots permuted as lib_codes says" },
        { "q_scale", "const f32 *", "[8, q_heads, 8]" },
        { "k_codes", "const u32 *", "[slots, kv_heads*8, bits]" },
        { "k_scales", "const h16 *", "[slots, kv_heads*8]" },
        { "v_codes", "const u32 *", "[slots, kv_heads*8, bits]" },
        { "v_scales", "const h16 *", "[slots, kv_heads*8]" },
        { "own_k_codes", "const u32 *", "[8, kv_heads*8, bits] of the round's own rows" },
        { "own_k_scales", "const h16 *", "[8, kv_heads*8]" },
        { "own_v_codes", "const u32 *", "[8, kv_heads*8, bits]" },
        { "own_v_scales", "const h16 *", "[8, kv_heads*8]" },
        { "pages", "const u32 *", "[context/256] page of each 256 positions" },
        { "out", "f32 *", "[spans, 8, q_heads, 256] unnormalised" },
        { "out_stat", "u32 *", "[spans, 8, q_heads, 2] = m as i32, l as f32 bits" },
        { "round", "const u32 *",
            "[0] = active rows, [1] = base, [16..23] = positions, [24..31] = ancestors" },
    },
    shared = function(p)
        return {
            { "queries", "u32", 2 * p.table_rows * p.q_stride },
            { "query_scale", "f32", p.table_rows * GROUPS },
            { "score", "f32", p.score_sides * p.table_rows * p.s_stride },
            { "k_packed", "u32", p.code_words },
            { "v_packed", "u32", p.code_words },
            { "unpacked", "u32", p.unpacked_words },
            { "k_scale", "f32", TILE * p.ks_stride },
            { "v_scale", "f32", GROUPS * p.vs_stride },
            { "row_max", "i32", p.table_rows },
            { "row_sum", "f32", p.table_rows },
            { "row_old", "f32", p.table_rows },
            { "row_new", "f32", p.table_rows },
            { "row_live", "u32", p.table_rows },
            { "own_k", "u32", p.row_limit * p.words },
            { "own_v", "u32", p.row_limit * p.words },
            { "own_k_scale", "h16", p.row_limit * GROUPS },
            { "own_v_scale", "h16", p.row_limit * GROUPS },
        }
    end,
    maps = function(p)
        return {
            items = work.map {
                space = { { "order", "spans", max = p.spans_max }, { "head", p.kv_heads },
                    { "row_block", "row_blocks", max = p.row_blocks_max } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p)
        return { grid = p.ctas, block = 32 * p.warps, min_ctas = p.ctas_per_sm }
    end,
    -- Scores: digits 256 h + l against codes; weights of a tile; P' against codes. A tile sees up
    -- to 64 cached keys and the round's own. Codes of 8 bits count twice and one (lib_codes).
    --
    -- Roundings of a score: H32 and the query's factor, its digits, per group the conversion and
    -- the scales' product, a chain over the groups. Stock (exl3.md 5.4, 5.6): the rotated query and
    -- the key in binary16, 32 terms of a rotation, 16 steps of tensor sums, the factor. A weight:
    -- s - m, exp2; stock: the same, and a product with log2 e. P.V of a span: p times the scale,
    -- digits, the conversion, a chain over the tiles; beside it the weights' sum, its conversion
    -- and its chain. Stock: weight and value in binary16; of its tensor sums one tile's two.
    claims = function(p)
        local code = p.bits == 8 and 255 or (1 << p.bits) - 1 << p.code_shift
        local keys = TILE + p.row_limit
        local _, size = spans.range(p.spans_max - 1)
        local tiles = math.max(1, size // TILE)
        local of_query = { size = GROUP_DIMS, digit = linear.DIGIT, k = 0, drop = 0 }
        -- P': 16 bits of the largest, and 2^16 cut to 2^16 - 1 errs as a half does below it
        local of_weights = { size = keys, digit = 1 << 16, k = 0, drop = 0 }
        return {
            digits = of_weights, weights = { keys = keys },
            roundings = {
                { "attention scores", over = "|q||k|",
                    ours = { r32 = rounding.hadamard(GROUP_DIMS) + 1 + 1 + 1 + GROUPS,
                        digits = of_query },
                    stock = { r32 = GROUP_DIMS - 1 + 1, t32 = HEAD // 16, r16 = 2 } },
                { "weights of keys", over = "p max(1, abs(s - m))",
                    ours = { r32 = 1 + rounding.EXP2 }, stock = { r32 = 1 + 1 + 1 } },
                { "P.V of a span", over = "sqrt(sum (p s)^2) |c| / l",
                    ours = { r32 = 1 + 1 + tiles + 1 + tiles, digits = of_weights,
                        weights = keys },
                    stock = { t32 = 2, r16 = 2 } },
            },
            spans = spans.claims(p.context, TILE, p.spans_max),
            sums = {
                { "score", "i32", GROUP_DIMS, (128 << 8 | 128) * code },
                { "weights", "u32", keys, 2 << 24 }, -- p < 2, in units of 2^-24
                { "values", "i32", keys, 65535 * code },
            },
        }
    end,
    exports = function(p) return { spans = p.spans_max } end,
    template = "attention_decode",
}
