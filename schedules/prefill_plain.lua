--- prefill_plain: y = W x for an unquantised matrix, in f32.
--
-- Weights [n, k] are f16, bf16 or f32. Per (row, output) in the fixed order of the decode kernel:
-- lane l of a warp adds elements k = 128 c + 4 l + {0..3}, c ascending, by fma into one
-- accumulator, then warp_sum_f32 joins the lanes. A warp does `outputs` outputs of a row at a time,
-- so the row is read once for them. Rows of y are `stride` apart: in_proj_a and in_proj_b write
-- side by side, as the decode kernel does. Rows past `rows` become zeros.
local schedule, jobs = require "schedule", require "lib_jobs"
local rows = require "lib_rows"

return schedule.define {
    name = "prefill_plain",
    summary = "prefill of an unquantised linear: f32 fma in a fixed order",
    mirrors = {},
    problem = {
        k = "u32", n = "u32", stride = "u32", rows_max = "u32", dtype = { "F16", "BF16", "F32" },
    },
    numeric = {},
    tuning = { outputs = { 4, 2, 1, 8 }, warps = { 4, 8, 2 }, map = { "contiguous", "strided" } },
    examples = {
        { k = 256, n = 6, stride = 12, rows_max = 2048, dtype = "F16" },
        { k = 256, n = 100, stride = 100, rows_max = 64, dtype = "F32" },
        { k = 5120, n = 48, stride = 96, rows_max = 2048, dtype = "F16" },
        { k = 5120, n = 248320, stride = 248320, rows_max = 64, dtype = "BF16" },
    },
    valid = function(p)
        if p.k % 4 ~= 0 then return "k must be a multiple of 4, got " .. p.k end
        if p.n < 1 then return "n must be at least 1, got " .. p.n end
        if p.stride < p.n then return "stride must be at least n, got " .. p.stride end
        return rows.check(p)
    end,
    derive = function(p, target)
        local groups = (p.n + p.outputs - 1) // p.outputs
        return {
            groups = groups, chunks = (p.k + rows.BLOCK - 1) // rows.BLOCK, BLOCK = rows.BLOCK,
            ctas = rows.ctas(p.rows_max * groups, p.warps, target, 8),
        }
    end,
    args = {
        { "x", "const f32 *", "[rows, k]" },
        { "weight", "const void *", "[n, k] of dtype" },
        { "y", "f32 *", "[rows in bands of 64, stride], first n of each" },
        { "rows", "u32", "active rows" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", rows.padded(p.rows_max) }, { "group", p.groups } }, "row")
    end,
    launch = jobs.launch,
    template = "prefill_plain",
}
