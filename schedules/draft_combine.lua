-- draft_combine: the tiles' results of draft_attention -> the input of o_proj.
--
-- One job is one head of one row; lane l of its warp holds dims 4l..4l+3. With m the largest of the
-- tiles that saw a key, a tile counts 2^(m_tile - m), exactly, and others 0: numerator and l are
-- chains of fma over the tiles ascending, and the result their quotient. Every row sees itself, so
-- l is not 0.
local schedule, work = require "schedule", require "work"
local ring = require "lib_ring"

local DIM = 128

return schedule.define {
    name = "draft_combine",
    summary = "draft: merge of the tiles of an attention",
    mirrors = {},
    problem = { q_heads = "u32", capacity = "u32", window = "u32" },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 2, 1, 4 }, map = { "strided", "contiguous" } },
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
        local wanted = (p.q_heads * p.row_limit + p.warps - 1) // p.warps
        local most = target.sms * 8
        return {
            DIM = DIM, TILE = ring.TILE, reach = ring.reach(p.window, p.capacity),
            ctas = math.max(1, wanted < most and wanted or most),
        }
    end,
    args = {
        { "part", "const f32 *", "[tiles, 8, q_heads, 128]" },
        { "stat", "const u32 *", "[tiles, 8, q_heads, 2] = m as i32, l as f32 bits" },
        { "out", "f32 *", "[8, q_heads * 128]" },
        { "round", "const u32 *", "[0] = rows, [1] = base" },
    },
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "row", "rows", max = p.row_limit }, { "head", p.q_heads } },
                over = "warps", workers = p.ctas * p.warps, warps = p.warps,
                partition = p.map, reduction = "none", row = "row",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.warps } end,
    template = "draft_combine",
}
