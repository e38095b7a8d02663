-- draft_combine: the tiles' results of draft_attention -> the input of o_proj.
--
-- A CTA does one head of one row at a time. With m the largest of the tiles that saw a key, a tile
-- counts 2^(m_tile - m), exactly, and others 0: numerator and l are chains of fma over the tiles
-- ascending, and the result their quotient. Every row sees itself, so l is not 0. A thread asks for
-- its dims of a batch of tiles before the weights are known: they wait for memory together.
local schedule, work = require "schedule", require "work"
local ring = require "lib_ring"

local DIM = 128
local LOADS_MOST = 40 -- of a thread's batch

return schedule.define {
    name = "draft_combine",
    summary = "draft: merge of the tiles of an attention",
    mirrors = {},
    problem = { q_heads = "u32", capacity = "u32", window = "u32" },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 4, 2, 1 }, map = { "strided", "contiguous" } },
    examples = {
        { q_heads = 4, capacity = 128, window = 128 },
        { q_heads = 32, capacity = 2048, window = 2048 },
        { q_heads = 32, capacity = 4096, window = 0 },
    },
    valid = function(p)
        if p.q_heads == 0 then return "q_heads must be at least 1" end
        return ring.refusal(p.window, p.capacity)
    end,
    derive = function(p, target)
        local wanted, most = p.q_heads * p.row_limit, target.sms * 8
        local reach = ring.reach(p.window, p.capacity)
        local tiles_max, dims = ring.tiles(reach), DIM // (32 * p.warps)
        local batches = (tiles_max * dims + LOADS_MOST - 1) // LOADS_MOST
        local batch = (tiles_max + batches - 1) // batches
        return {
            DIM = DIM, TILE = ring.TILE, reach = reach, stride = p.row_limit * p.q_heads,
            dims = dims, batch = batch, slots = batch * batches,
            ctas = math.max(1, wanted < most and wanted or most),
        }
    end,
    args = {
        { "part", "const f32 *", "[tiles, 8, q_heads, 128]" },
        { "stat", "const u32 *", "[tiles, 8, q_heads, 2] = m as i32, l as f32 bits" },
        { "out", "f32 *", "[8, q_heads * 128]" },
        { "round", "const u32 *", "[0] = rows, [1] = base" },
    },
    shared = function(p)
        return { { "weight", "f32", p.slots }, { "seen", "f32", p.slots } }
    end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "row", "rows", max = p.row_limit }, { "head", p.q_heads } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
                row = "row",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.warps } end,
    template = "draft_combine",
}
