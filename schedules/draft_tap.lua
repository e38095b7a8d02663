-- draft_tap: rows of the residual stream into their place in the draft's input: fc reads the taps
-- of a token side by side (dflash2.md 3.1, 3.2).
--
--     out [rows, stride]:   row i  | tap 0 | tap 1 | ... |      offset = tap * width
--
-- One job is 128 columns of one row. Decode rounds copy up to 8 rows, prefill up to a piece's.
local schedule, jobs = require "schedule", require "lib_jobs"

local BLOCK = 128

return schedule.define {
    name = "draft_tap",
    summary = "rows of the residual stream into a wider row of taps",
    mirrors = {},
    problem = { width = "u32", stride = "u32", rows_max = "u32" },
    numeric = {},
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { width = 256, stride = 768, rows_max = 8 },
        { width = 5120, stride = 25600, rows_max = 8 },
        { width = 5120, stride = 25600, rows_max = 4096 },
    },
    valid = function(p)
        if p.width % BLOCK ~= 0 then
            return "width must be a multiple of 128, got " .. p.width
        end
        if p.stride % 4 ~= 0 or p.stride < p.width then
            return "stride must be a multiple of 4 and at least width, got " .. p.stride
        end
    end,
    derive = function(p, target)
        local chunks = p.width // BLOCK
        return { BLOCK = BLOCK, chunks = chunks, ctas = jobs.ctas(p, chunks * p.rows_max, target) }
    end,
    args = {
        { "x", "const f32 *", "[first + rows, width]" },
        { "out", "f32 *", "[rows, stride]" },
        { "first", "u32", "row of x that becomes row 0 of out" },
        { "offset", "u32", "column of out where x begins, a multiple of 4" },
        { "rows", "u32", "0 .. rows_max" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.rows_max }, { "chunk", p.chunks } }, "row")
    end,
    launch = jobs.launch,
    template = "draft_tap",
}
