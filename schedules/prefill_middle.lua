--- prefill_middle: the products of gate and up -> the f16 operand of down, in one launch.
--
-- What prefill_output would write for both, silu(gate) * up (f_silu_short, as prefill_transform),
-- and what prefill_transform would make of it, without the trip through memory: the blocks of 128
-- are the same ones. n is the padded
-- width of all three; columns past the MLP's width are zeros, since svh and suh are zero there.
-- A warp holds four blocks of a row. Rows past `rows` become exact zeros.
local schedule, jobs = require "schedule", require "lib_jobs"
local rows = require "lib_rows"

return schedule.define {
    name = "prefill_middle",
    summary = "prefill: SiLU(gate) * up, suh, Hadamard, f16, from the sums of two products",
    mirrors = {},
    problem = { n = "u32", rows_max = "u32" },
    numeric = {},
    tuning = { warps = { 4, 8, 2 }, map = { "contiguous", "strided" } },
    examples = {
        { n = 768, rows_max = 2048 },
        { n = 256, rows_max = 64 },
        { n = 17408, rows_max = 4096 },
    },
    valid = function(p)
        if p.n % 128 ~= 0 then return "n must be a multiple of 128, got " .. p.n end
        return rows.check(p)
    end,
    derive = function(p, target)
        local blocks = p.n // rows.BLOCK
        local quads = rows.quads(blocks)
        return {
            blocks = blocks, quads = quads, BLOCK = rows.BLOCK, VALUES = rows.VALUES,
            ctas = rows.ctas(p.rows_max * quads, p.warps, target, 8),
        }
    end,
    args = {
        { "d", "const f32 *", "[rows in bands of 64, n] sums of gate's product" },
        { "d2", "const f32 *", "the same of up's" },
        { "svh", "const h16 *", "[n] of gate" },
        { "svh2", "const h16 *", "[n] of up" },
        { "suh", "const h16 *", "[n] of down" },
        { "out", "h16 *", "[rows in bands of 64, n]" },
        { "rows", "u32", "active rows" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", rows.padded(p.rows_max) }, { "quad", p.quads } }, "row")
    end,
    launch = jobs.launch,
    template = "prefill_middle",
}
