--- prefill_output: the raw sums of a prefill product -> its output.
--
-- y = H128(d) * 1/sqrt(128) * svh, all f32 (spec exl3.md 3.3 B, fp32 out). A warp holds four
-- blocks of 128 columns of a row, sixteen values a lane. Modes:
--   plain     y
--   add       x += y                     (the residual stream)
-- Rows past `rows` become exact zeros; add leaves them as they are. Gate and up have a kernel of
-- their own, prefill_middle.
local schedule, jobs = require "schedule", require "lib_jobs"
local rows = require "lib_rows"

return schedule.define {
    name = "prefill_output",
    summary = "prefill output: Hadamard, svh; store or add to the residual",
    mirrors = {},
    problem = { width = "u32", padded = "u32", rows_max = "u32", mode = { "plain", "add" } },
    numeric = {},
    tuning = { warps = { 4, 8, 2 }, map = { "contiguous", "strided" } },
    examples = {
        { width = 256, padded = 256, rows_max = 2048, mode = "add" },
        { width = 1280, padded = 1280, rows_max = 2048, mode = "plain" },
        { width = 200, padded = 256, rows_max = 64, mode = "plain" },
        { width = 5120, padded = 5120, rows_max = 4096, mode = "add" },
        { width = 12288, padded = 12288, rows_max = 4096, mode = "plain" },
    },
    valid = function(p)
        if p.padded % 128 ~= 0 then return "padded must be a multiple of 128, got " .. p.padded end
        if p.width % 4 ~= 0 then return "width must be a multiple of 4, got " .. p.width end
        if p.width > p.padded then return "width must be at most padded, got " .. p.width end
        return rows.check(p)
    end,
    derive = function(p, target)
        local blocks = (p.width + rows.BLOCK - 1) // rows.BLOCK
        local quads = rows.quads(blocks)
        return {
            blocks = blocks, quads = quads, BLOCK = rows.BLOCK, VALUES = rows.VALUES,
            ctas = rows.ctas(p.rows_max * quads, p.warps, target, 8),
        }
    end,
    args = {
        { "d", "const f32 *", "[rows in bands of 64, padded] sums of the product" },
        { "svh", "const h16 *", "[padded]" },
        { "y", "f32 *", "[rows in bands of 64, width]" },
        { "rows", "u32", "active rows" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", rows.padded(p.rows_max) }, { "quad", p.quads } }, "row")
    end,
    launch = jobs.launch,
    template = "prefill_output",
}
