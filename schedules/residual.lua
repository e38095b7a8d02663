-- residual: x += y after an unquantised linear, with the partial sums of squares that the next
-- RMSNorm reads. One job is 128 columns of one row; the arithmetic is that of linear_output's
-- residual mode. A value that is not finite sets its row's sticky flag.
local schedule, jobs = require "schedule", require "lib_jobs"
local rounding = require "lib_rounding"

local BLOCK = 128

return schedule.define {
    name = "residual",
    summary = "residual stream plus the output of an unquantised linear, sums of squares",
    mirrors = { "norm_fuse" },
    problem = { n = "u32", rows_max = "u32" },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = { { n = 256, rows_max = 8 }, { n = 5120, rows_max = 2048 } },
    valid = function(p)
        if p.n % BLOCK ~= 0 then return "n must be a multiple of 128, got " .. p.n end
    end,
    derive = function(p, target)
        local chunks = p.n // BLOCK
        return { BLOCK = BLOCK, chunks = chunks, ctas = jobs.ctas(p, chunks * p.rows_max, target) }
    end,
    args = {
        { "y", "const f32 *", "[rows, n]" },
        { "x", "f32 *", "[rows, n]" },
        { "squares", "f32 *", "[rows, n/128]" },
        { "bad", "u32 *", "[8] sticky flags, of row mod 8" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.rows_max }, { "chunk", p.chunks } }, "row")
    end,
    claims = function() return { roundings = { rounding.residual() } } end,
    launch = jobs.launch,
    template = "residual",
}
