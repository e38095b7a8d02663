-- draft_gather: the committed rows of a round, in the order of their tokens: out[j] =
-- in[sources[j]], sources = words 64.. of the round descriptor (core/engine/tree.h).
--
-- One job is 128 columns of one row. `in` and `out` do not overlap.
local schedule, work = require "schedule", require "work"

local BLOCK = 128

return schedule.define {
    name = "draft_gather",
    summary = "rows of a round that were committed, gathered in order",
    mirrors = {},
    problem = { width = "u32" },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = { { width = 256 }, { width = 25600 } },
    valid = function(p)
        if p.width % BLOCK ~= 0 then
            return "width must be a multiple of 128, got " .. p.width
        end
    end,
    derive = function(p, target)
        local chunks = p.width // BLOCK
        local wanted = (chunks * p.row_limit + p.warps - 1) // p.warps
        local most = target.sms * 8
        return { BLOCK = BLOCK, chunks = chunks, ctas = wanted < most and wanted or most }
    end,
    args = {
        { "in", "const f32 *", "[8, width]" },
        { "out", "f32 *", "[8, width]" },
        { "round", "const u32 *", "[0] = rows, [64..71] = source of each" },
    },
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "row", "rows", max = p.row_limit }, { "chunk", p.chunks } },
                over = "warps", workers = p.ctas * p.warps, warps = p.warps,
                partition = p.map, reduction = "none", row = "row",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.warps } end,
    template = "draft_gather",
}
