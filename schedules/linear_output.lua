-- linear_output: the integer sums of linear_main -> f32 columns; clears the sums.
--
-- One job is 128 columns of one row of one part. With Y the sum, Q the same sum of activations
-- alone:
--   mul1   U = Y - 510 Q;  z = fma(887*2^-17, f32(U), -((119*2^-16) * f32(Q))) * 2^(e_row - 22 - 7)
--   other  z = f32(Y) * 2^(e_row - 17 - 7 - 13)
--   y = H128(z) * svh           (both 1/sqrt(128) are the 2^-7 above)
-- Modes: store (y = ...), residual (x += y, and the block's sum of squares of the new x for the
-- RMSNorm that reads it), both exact in the order that design.md 4.2 fixes.
local schedule, jobs, linear = require "schedule", require "lib_jobs", require "lib_linear"
local rounding = require "lib_rounding"

local BLOCK = linear.BLOCK
local WARPS_OF_SM = 32 -- about as many run at once

return schedule.define {
    name = "linear_output",
    summary = "integer sums of a decode linear to f32: scale, Hadamard, residual, sum of squares",
    mirrors = { "gemm_m16_partition", "norm_fuse", "m16_discard" },
    problem = {
        n0 = "u32", n1 = "u32", n2 = "u32", n3 = "u32",
        codebook = { "mul1", "mcg", "3inst" }, mode = { "store", "residual" },
    },
    numeric = { row_limit = { 8 } },
    tuning = {
        warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" },
        batch = function(p, target) -- jobs of a warp whose loads are in flight together
            local jobs_of_sm = (p.n0 + p.n1 + p.n2 + p.n3) // BLOCK * p.row_limit // target.sms
            return jobs_of_sm > WARPS_OF_SM and { 2, 4, 1 } or { 1, 2, 4 }
        end,
    },
    examples = {
        { n0 = 1280, n1 = 768, n2 = 0, n3 = 0, codebook = "mul1", mode = "store" },
        { n0 = 256, n1 = 0, n2 = 0, n3 = 0, codebook = "mul1", mode = "residual" },
        { n0 = 5120, n1 = 0, n2 = 0, n3 = 0, codebook = "mul1", mode = "residual" },
        { n0 = 248320, n1 = 0, n2 = 0, n3 = 0, codebook = "mul1", mode = "store" },
        { n0 = 256, n1 = 0, n2 = 0, n3 = 0, codebook = "3inst", mode = "store" },
    },
    valid = function(p)
        for i = 0, 3 do
            local n = p["n" .. i]
            if n % BLOCK ~= 0 then return "n" .. i .. " must be a multiple of 128, got " .. n end
        end
        if p.n0 == 0 then return "n0 must not be 0" end
        if p.mode == "residual" and p.n1 ~= 0 then return "residual has one part" end
    end,
    derive = function(p, target)
        local first, chunks, parts = {}, 0, 0
        for i = 0, 3 do
            first[i] = chunks
            chunks = chunks + p["n" .. i] // BLOCK
            if p["n" .. i] > 0 then parts = i + 1 end
        end
        return {
            BLOCK = BLOCK, first = first, chunks = chunks, parts = parts,
            columns = chunks * BLOCK, ctas = jobs.ctas(p, chunks * p.row_limit, target),
            back = linear.back(p.codebook), out_blocks = false,
        }
    end,
    args = {
        { "sums", "u64 *", "[8, columns of all parts], read and cleared" },
        { "scales", "const u64 *", "[parts, 8, 2] largest exponent, Q" },
        { "svh", "const h16 * const *", "[parts] -> [n]" },
        { "y", "f32 * const *", "[parts] -> [rows, n]; residual: the stream x" },
        { "squares", "f32 *", "[8, n/128] of residual" },
        { "bad", "u32 *",
            "[8] sticky flags: a sum that is not finite after scaling sets its row's" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.row_limit }, { "chunk", p.chunks } }, "row")
    end,
    claims = function(p) -- the linear itself: linear_main
        return { roundings = p.mode == "residual" and { rounding.residual() } or {} }
    end,
    launch = jobs.launch,
    template = "linear_output",
}
