--- prefill_output: the raw sums of a prefill product -> its output.
--
-- y = H128(d) * 1/sqrt(128) * svh, all f32 (spec exl3.md 3.3 B, fp32 out). A warp holds a block of
-- 128 columns of a row, four a lane. Modes:
--   plain     y
--   add       x += y                     (the residual stream)
--   silu_mul  silu(y of d) * (y of d2)   (gate and up)
-- Rows past `rows` become exact zeros; add leaves them as they are.
local schedule, jobs = require "schedule", require "lib_jobs"
local rows = require "lib_rows"

return schedule.define {
    name = "prefill_output",
    summary = "prefill output: Hadamard, svh; store, add to the residual, or gate",
    mirrors = {},
    problem = {
        width = "u32", padded = "u32", rows_max = "u32", mode = { "plain", "add", "silu_mul" },
    },
    numeric = {},
    tuning = { warps = { 4, 8, 2 }, map = { "contiguous", "strided" } },
    examples = {
        { width = 256, padded = 256, rows_max = 2048, mode = "add" },
        { width = 768, padded = 768, rows_max = 2048, mode = "silu_mul" },
        { width = 1280, padded = 1280, rows_max = 2048, mode = "plain" },
        { width = 200, padded = 256, rows_max = 64, mode = "plain" },
        { width = 5120, padded = 5120, rows_max = 2048, mode = "add" },
        { width = 17408, padded = 17408, rows_max = 2048, mode = "silu_mul" },
        { width = 12288, padded = 12288, rows_max = 2048, mode = "plain" },
    },
    valid = function(p)
        if p.padded % 128 ~= 0 then return "padded must be a multiple of 128, got " .. p.padded end
        if p.width % 4 ~= 0 then return "width must be a multiple of 4, got " .. p.width end
        if p.width > p.padded then return "width must be at most padded, got " .. p.width end
        return rows.check(p)
    end,
    derive = function(p, target)
        local blocks = (p.width + rows.BLOCK - 1) // rows.BLOCK
        return {
            blocks = blocks, BLOCK = rows.BLOCK,
            ctas = rows.ctas(p.rows_max * blocks, p.warps, target, 8),
        }
    end,
    args = {
        { "d", "const f32 *", "[rows in bands of 64, padded] sums of the product" },
        { "d2", "const f32 *", "the same of the second product of silu_mul; 0 otherwise" },
        { "svh", "const h16 *", "[padded]" },
        { "svh2", "const h16 *", "[padded] of silu_mul; 0 otherwise" },
        { "y", "f32 *", "[rows in bands of 64, width]" },
        { "rows", "u32", "active rows" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", rows.padded(p.rows_max) }, { "chunk", p.blocks } }, "row")
    end,
    launch = jobs.launch,
    template = "prefill_output",
}
