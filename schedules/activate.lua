-- activate: what a linear reads, in f32: the source as it is, its RMSNorm, SiLU(gate) * up, or the
-- gated norm of a GDN head. For unquantised matrices; EXL3 ones have the same arithmetic inside
-- linear_input and prefill_transform.
--
-- One job is 128 elements of one row; the norm's sum of squares is made here, in the order every
-- producer of partial sums uses (a lane adds its four by fma from zero, a xor butterfly, chunks
-- ascending).
local schedule, jobs = require "schedule", require "lib_jobs"

local BLOCK = 128

return schedule.define {
    name = "activate",
    summary = "input of an unquantised linear: norm, gate or copy, in f32",
    mirrors = { "norm_fuse" },
    problem = {
        k = "u32", rows_max = "u32", mode = { "plain", "norm", "glu", "gdn" }, eps = "u32",
    },
    numeric = {},
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { k = 256, rows_max = 8, mode = "norm", eps = 0x358637bd },
        { k = 5120, rows_max = 2048, mode = "norm", eps = 0x358637bd },
        { k = 17408, rows_max = 8, mode = "glu", eps = 0x358637bd },
        { k = 6144, rows_max = 2048, mode = "gdn", eps = 0x358637bd },
        { k = 6144, rows_max = 8, mode = "plain", eps = 0x358637bd },
    },
    valid = function(p)
        if p.k % BLOCK ~= 0 then return "k must be a multiple of 128, got " .. p.k end
    end,
    derive = function(p, target)
        local chunks = p.k // BLOCK
        return { BLOCK = BLOCK, chunks = chunks, ctas = jobs.ctas(p, chunks * p.rows_max, target) }
    end,
    args = {
        { "x", "const f32 *", "[rows, k]" },
        { "y", "const f32 *", "[rows, k], second source of glu and gdn" },
        { "weight", "const f32 *", "[k] of norm (1 + w ready), [128] of gdn" },
        { "out", "f32 *", "[rows, k]" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.rows_max }, { "chunk", p.chunks } }, "row")
    end,
    launch = jobs.launch,
    template = "activate",
}
