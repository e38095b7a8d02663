-- attention_decode: up to 8 positions x all heads over the quantised cache, split by spans.
--
-- Iteration space: (span, kv head, tile of 16 rows), late spans first: they are long, and dealt out
-- one by one they leave the short ones to fill up. A CTA has 16 rows alone, so that several fit an
-- SM and hide each other's waits; the row tiles of a round read the same keys at about the same
-- time, so that all but the first find them in L2. A span is a fixed function of absolute key
-- position (design.md 4.2: 64 keys below 2048, else 1/16 of the octave), its tiles of 64 keys
-- ascend, and its result goes to its own slot; attention_combine merges slots in ascending order.
-- Which CTA ran which span cannot show.
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
--           in two u8 planes against s8 codes, exact in int32
-- Codes are the odd integers 2c - (2m-1), times 2^code_shift as lib_codes makes them; 8-bit codes
-- use c - 128 and a correction by sums.
local schedule, work = require "schedule", require "work"
local spans = require "lib_spans"

local TILE, ROW_TILE, GROUP_DIMS, GROUPS, HEAD = 64, 16, 32, 8, 256

return schedule.define {
    name = "attention_decode",
    summary = "attention of 8 positions over the 2..8-bit cache, one result a span",
    mirrors = { "attn_stride", "attn_tree", "attn_fast" },
    problem = { q_heads = "u32", kv_heads = "u32", context = "u32" },
    numeric = { bits = { 3, 2, 4, 5, 6, 7, 8 }, row_limit = { 8 } },
    tuning = {
        warps = function(p, target) return target.name == "host" and { 4, 8, 2 } or { 8 } end,
        map = { "strided", "contiguous" },
        -- That an SM holds at once: more would spill.
        ctas_per_sm = function(p) return p.bits <= 4 and { 2, 1 } or { 1 } end,
        waves = { 2, 1, 3 },    -- CTAs for each of those places: more let an SM that is done go on
        stages = { 2, 3, 1 },   -- 1: no copy ahead
    },
    examples = {
        { q_heads = 6, kv_heads = 1, context = 4096 },
        { q_heads = 24, kv_heads = 4, context = 262144 },
        { q_heads = 24, kv_heads = 4, context = 4096, bits = 8 },
        { q_heads = 24, kv_heads = 4, context = 4096, bits = 5 },
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
        local row_tiles_max = (p.row_limit * group + ROW_TILE - 1) // ROW_TILE
        local words = GROUPS * p.bits -- u32 of codes of one key of one head
        local stage_words = 2 * TILE * (words + GROUPS // 2)
        return {
            TILE = TILE, ROW_TILE = ROW_TILE, PAGE = 256, GROUP_DIMS = GROUP_DIMS,
            GROUPS = GROUPS, HEAD = HEAD,
            group = group, row_tiles_max = row_tiles_max, words = words,
            code_shift = p.bits == 8 and 0 or 7 - p.bits,
            stage_words = stage_words, spans_max = spans.count(p.context),
            NEAR = spans.NEAR, NEAR_SPAN = spans.NEAR_SPAN, PER_OCTAVE = spans.PER_OCTAVE,
            q_stride = HEAD // 4 + 4,  -- u32; rows fall on different banks
            s_stride = TILE + 8 + 4,   -- f32; cached keys, the round's own, other banks
            groups_per_warp = GROUPS // p.warps, keys_per_warp = TILE // 8 // p.warps,
            ctas = math.min(target.sms * p.ctas_per_sm * p.waves,
                spans.count(p.context) * p.kv_heads * row_tiles_max),
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
            { "queries", "u32", 2 * ROW_TILE * p.q_stride },
            { "query_scale", "f32", ROW_TILE * GROUPS },
            { "score", "f32", ROW_TILE * p.s_stride },
            { "ring", "u32", p.stages * p.stage_words },
            { "row_max", "i32", ROW_TILE },
            { "row_sum", "f32", ROW_TILE },
            { "row_old", "f32", ROW_TILE },
            { "row_new", "f32", ROW_TILE },
            { "row_live", "u32", ROW_TILE },
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
                    { "row_tile", "row_tiles", max = p.row_tiles_max } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p)
        return { grid = p.ctas, block = 32 * p.warps, min_ctas = p.ctas_per_sm }
    end,
    exports = function(p) return { spans = p.spans_max } end,
    template = "attention_decode",
}
