-- linear_plain: an unquantised linear, y = W norm(x), fp32 in one fixed order (design.md 4.1).
--
-- One job is one output of one row: lane l of a warp adds the products of elements 128c + 4l +
-- {0..3}, c ascending, by fma into one accumulator; a xor butterfly adds the lanes. in_proj_a and
-- in_proj_b of a GDN layer are one launch (their outputs follow each other); a 16-bit head is one
-- part.
local schedule, jobs = require "schedule", require "lib_jobs"
local rounding = require "lib_rounding"

local BLOCK = 128

return schedule.define {
    name = "linear_plain",
    summary = "unquantised linear in fp32, fixed order, with or without RMSNorm of the input",
    mirrors = { "gdn_ba_ksplit", "lmhead" },
    problem = {
        k = "u32", n0 = "u32", n1 = "u32", eps = "u32",
        dtype = { "BF16", "F16", "F32" }, mode = { "plain", "norm" },
    },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { k = 256, n0 = 6, n1 = 6, dtype = "F16", mode = "norm", eps = 0x358637bd },
        { k = 5120, n0 = 48, n1 = 48, dtype = "F16", mode = "norm", eps = 0x358637bd },
        { k = 256, n0 = 4096, n1 = 0, dtype = "BF16", mode = "plain", eps = 0x358637bd },
    },
    valid = function(p)
        if p.k % 4 ~= 0 then return "k must be a multiple of 4, got " .. p.k end
        if p.mode == "norm" and p.k % BLOCK ~= 0 then
            return "k must be a multiple of 128 for norm, got " .. p.k
        end
    end,
    derive = function(p, target)
        local outputs = p.n0 + p.n1
        return {
            BLOCK = BLOCK, outputs = outputs, chunks = (p.k + BLOCK - 1) // BLOCK,
            ctas = jobs.ctas(p, outputs * p.row_limit, target),
            ctype = p.dtype == "BF16" and "u16" or p.dtype == "F16" and "h16" or "f32",
        }
    end,
    args = {
        { "x", "const f32 *", "[rows, k]" },
        { "squares", "const f32 *", "[8, k/128] partial sums of x^2, of norm" },
        { "weight", "const f32 *", "[k] of norm (1 + w ready)" },
        { "w0", "const void *", "[n0, k] of dtype" },
        { "w1", "const void *", "[n1, k] of dtype" },
        { "y", "f32 *", "[rows, n0 + n1]" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    maps = function(p)
        return jobs.maps(p, {
            { "row", "rows", max = p.row_limit }, { "column", p.outputs },
        }, "row")
    end,
    -- A lane's chain, the lanes. Stock has its input in binary16, and sums of an order that is
    -- cuBLAS's: not counted.
    claims = function(p)
        local norm = rounding.rms_norm(p.chunks).ours.r32
        return { roundings = { { "unquantised linear" .. (p.mode == "norm" and ", norm" or ""),
            over = "|x||w|",
            ours = { r32 = 4 * p.chunks + rounding.LANES + (p.mode == "norm" and norm or 0) },
            stock = { r16 = 1 },
        } } }
    end,
    launch = jobs.launch,
    template = "linear_plain",
}
