-- attention_decode_f16: the same attention over an fp16 cache, for tests and comparisons.
--
-- Spans, rows, weights p and their integer sum, and merging are those of attention_decode; scores
-- and P.V are fp32 chains: s = sum over dims ascending of fma(q, k), o = sum over keys ascending of
-- fma(p, v) over the keys visible to the row, by position. Not tuned for speed.
local schedule, work = require "schedule", require "work"
local spans, rounding = require "lib_spans", require "lib_rounding"

local TILE, HEAD = 64, 256

return schedule.define {
    name = "attention_decode_f16",
    summary = "attention of 8 positions over an fp16 cache (tests)",
    mirrors = { "attn_stride" },
    problem = { q_heads = "u32", kv_heads = "u32", context = "u32" },
    numeric = { row_limit = { 8 } },
    tuning = { map = { "contiguous", "strided" } },
    examples = {
        { q_heads = 6, kv_heads = 1, context = 4096 },
        { q_heads = 24, kv_heads = 4, context = 4096 },
    },
    valid = function(p)
        if p.kv_heads == 0 or p.q_heads % p.kv_heads ~= 0 then
            return "q_heads must be a multiple of kv_heads, got " ..
                p.q_heads .. " and " .. p.kv_heads
        end
        if p.q_heads // p.kv_heads > 8 then return "at most 8 query heads a kv head" end
        if p.context % 256 ~= 0 then
            return "context must be a multiple of 256, got " .. p.context
        end
    end,
    derive = function(p, target)
        local group = p.q_heads // p.kv_heads
        return {
            TILE = TILE, PAGE = 256, HEAD = HEAD, group = group, table_rows = p.row_limit * group,
            warps = 8,
            s_stride = TILE + 8 + 4, spans_max = spans.count(p.context),
            NEAR = spans.NEAR, NEAR_SPAN = spans.NEAR_SPAN, PER_OCTAVE = spans.PER_OCTAVE,
            ctas = target.sms,
        }
    end,
    args = {
        { "q", "const f32 *", "[rows, q_heads, 256] normed, rotated, * scale * log2 e" },
        { "k", "const h16 *", "[slots, kv_heads, 256]" },
        { "v", "const h16 *", "[slots, kv_heads, 256]" },
        { "own_k", "const h16 *", "[8, kv_heads, 256] of the round's own rows" },
        { "own_v", "const h16 *", "[8, kv_heads, 256]" },
        { "pages", "const u32 *", "[context/256]" },
        { "out", "f32 *", "[spans, 8, q_heads, 256]" },
        { "out_stat", "u32 *", "[spans, 8, q_heads, 2]" },
        { "round", "const u32 *",
            "[0] = active rows, [1] = base, [16..23] = positions, [24..31] = ancestors" },
    },
    shared = function(p)
        return {
            { "score", "f32", p.table_rows * p.s_stride },
            { "row_max", "i32", p.table_rows },
            { "row_sum", "f32", p.table_rows },
            { "row_old", "f32", p.table_rows },
            { "row_new", "f32", p.table_rows },
            { "row_live", "u32", p.table_rows },
        }
    end,
    maps = function(p)
        return {
            items = work.map {
                space = { { "head", p.kv_heads }, { "span", "spans", max = p.spans_max } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.warps, min_ctas = 4 } end,
    -- Chains over the dims, and over the keys of a tile; not compared with stock's tensor sums.
    claims = function(p)
        local keys = TILE + p.row_limit
        local _, size = spans.range(p.spans_max - 1)
        local tiles = math.max(1, size // TILE)
        return { weights = { keys = keys }, roundings = {
            { "attention scores, fp16 cache", over = "sum of abs(q k)", ours = { r32 = HEAD + 2 },
                stock = { units = 512 } },
            { "P.V of a span, fp16 cache", over = "sum of abs(p v) / l",
                ours = { r32 = 1 + rounding.EXP2 + keys + tiles + 1 + tiles, weights = keys },
                stock = { r16 = 1 } },
        } }
    end,
    exports = function(p) return { spans = p.spans_max } end,
    template = "attention_decode_f16",
}
