-- draft_gather: the committed rows of a round, in the order of their tokens: out[j] =
-- in[sources[j]], sources = words 64.. of the round descriptor (core/engine/tree.h).
--
-- One job is 128 columns of one row. `in` and `out` do not overlap.
local schedule, jobs = require "schedule", require "lib_jobs"

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
        return { BLOCK = BLOCK, chunks = chunks, ctas = jobs.ctas(p, chunks * p.row_limit, target) }
    end,
    args = {
        { "in", "const f32 *", "[8, width]" },
        { "out", "f32 *", "[8, width]" },
        { "round", "const u32 *", "[0] = rows, [64..71] = source of each" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.row_limit }, { "chunk", p.chunks } }, "row")
    end,
    launch = jobs.launch,
    template = "draft_gather",
}
