-- draft_attention: the rows of a block over the context in a draft layer's ring and over
-- themselves (dflash2.md 3.4).
--
-- Row t of the block stands at position base + t. Keys are the context's positions [first, base),
-- first = max(0, base - reach), in slots position mod capacity, and the block's rows j at positions
-- base + j in slots capacity + j. Key n is visible to row t iff |n - (base + t)| < window (0:
-- always) and, when causal, n <= base + t.
--
-- Iteration space: (kv head, tile of 64 keys); tiles lie on the grid of absolute positions, number
-- 0 holds the first key, and each writes a slot of its own, which draft_combine merges. Rows are
-- position-major: table row = t * group + head of the group. Of a row and a tile:
--
--   score   two chains over dims 0..63 and 64..127, s = fma(q, k, s) from zero; their sum, in log2
--           units (q has the scale)
--   m       floor of the largest visible score
--   p       exp2(s - m), 0 where the key is not visible (selected, never multiplied)
--   l       sum of RN(p * 2^24): an integer, so only the set of keys counts
--   P.V     two chains over keys 0..31 and 32..63, o = fma(p, v, o) from zero; their sum
--
-- Half of the warps take one chain each of the two. A lane has two keys of all rows of its warp for
-- scores and four dims for P.V, so every read of shared memory is a broadcast or free of bank
-- conflicts; the rows of a pass share what was read and converted of keys and values. Values are on
-- their way while scores are made.
local schedule, work = require "schedule", require "work"
local ring = require "lib_ring"

local DIM, TILE = 128, ring.TILE
local RESERVED = 1024 -- bytes of shared memory a CTA costs besides its own

-- The largest number of rows up to `most` that divides `rows`.
local function pass_rows(rows, most)
    local pass = most < rows and most or rows
    while rows % pass ~= 0 do pass = pass - 1 end
    return pass
end

return schedule.define {
    name = "draft_attention",
    summary = "draft: attention of a block over its ring and itself, one result a tile",
    mirrors = {},
    problem = {
        q_heads = "u32", kv_heads = "u32", capacity = "u32", window = "u32", causal = { 0, 1 },
    },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 8, 4, 2 }, pass = { 16, 8, 4 }, map = { "strided", "contiguous" } },
    examples = {
        { q_heads = 4, kv_heads = 1, capacity = 128, window = 128, causal = 0 },
        { q_heads = 32, kv_heads = 8, capacity = 2048, window = 2048, causal = 0 },
        { q_heads = 32, kv_heads = 8, capacity = 4096, window = 0, causal = 1 },
        { q_heads = 32, kv_heads = 4, capacity = 2048, window = 2048, causal = 0 },
    },
    valid = function(p)
        if p.kv_heads == 0 or p.q_heads == 0 or p.q_heads % p.kv_heads ~= 0 then
            return "q_heads must be a multiple of kv_heads, got " ..
                p.q_heads .. " and " .. p.kv_heads
        end
        if p.q_heads // p.kv_heads > 8 then
            return "at most 8 query heads a kv head, got " .. p.q_heads // p.kv_heads
        end
        return ring.refusal(p.window, p.capacity)
    end,
    derive = function(p, target)
        local group = p.q_heads // p.kv_heads
        local table_rows = p.row_limit * group
        local warp_rows = table_rows // (p.warps // 2)
        local reach = ring.reach(p.window, p.capacity)
        local tiles_max = ring.tiles(reach)
        local k_stride = DIM + 8 -- halves; lanes' keys fall on different banks
        local bytes = 4 * table_rows * (DIM + 2 * TILE) + 2 * TILE * (k_stride + DIM)
        local resident = math.max(1, target.shared_per_sm // (bytes + RESERVED))
        local wanted, most = p.kv_heads * tiles_max, resident * target.sms
        return {
            DIM = DIM, TILE = TILE, group = group, table_rows = table_rows,
            warp_rows = warp_rows,
            rows_a_pass = pass_rows(warp_rows, p.pass),
            k_stride = k_stride,
            reach = reach, tiles_max = tiles_max, ctas = wanted < most and wanted or most,
        }
    end,
    args = {
        { "q", "const f32 *", "[8, q_heads, 128] normed, rotated, * scale * log2 e" },
        { "ring_k", "const h16 *", "[capacity + 8, kv_heads, 128]" },
        { "ring_v", "const h16 *", "[capacity + 8, kv_heads, 128]" },
        { "part", "f32 *", "[tiles, 8, q_heads, 128] unnormalised" },
        { "stat", "u32 *", "[tiles, 8, q_heads, 2] = m as i32, l as f32 bits" },
        { "round", "const u32 *", "[0] = rows, 1..8, [1] = base" },
    },
    shared = function(p)
        return {
            { "queries", "f32", p.table_rows * DIM }, -- later the second chain of P.V
            { "keys", "h16", TILE * p.k_stride },
            { "values", "h16", TILE * DIM },
            { "score", "f32", 2 * p.table_rows * TILE }, -- [chain]; weights in the first
        }
    end,
    maps = function(p)
        return {
            items = work.map {
                space = { { "head", p.kv_heads }, { "tile", "tiles", max = p.tiles_max } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.warps } end,
    exports = function(p) return { tiles = p.tiles_max } end,
    template = "draft_attention",
}
