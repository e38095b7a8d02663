-- linear_input: f32 activations -> two s8 planes per 128-block, for the exact decode linear.
--
-- One job is one 128-block of one row for one part (a matrix of a group that shares its input,
-- each with its own suh). A warp holds the block, lane l elements 4l..4l+3:
--   value  = what the mode makes of the source (below)
--   a      = H128(value * suh), unnormalised, stages on index bits 0..6 ascending
--   e      = smallest exponent >= -64 with |RN(a * 2^-e)| <= 32639 (all-zero block: -64)
--   i      = RN(a * 2^-e) = 256 h + l, both signed bytes
-- and writes h, l in the fragment order of mma_u8s8_mul1, e, and the block's sum of i.
-- A non-finite a sets the row's sticky flag and writes zeros (integers would swallow it).
--
-- Modes (the arithmetic of each is fixed; design.md 4.1, 4.2):
--   plain  x
--   norm   RMSNorm with 1 + w, sum of squares from the partials the producer of x left
--   glu    silu(x) * y                     (x = gate, y = up)
--   gdn    w * (x * rsqrt(mean x^2 + eps)) * silu(y) over the 128 of a head (x = o, y = z)
local schedule, jobs, linear = require "schedule", require "lib_jobs", require "lib_linear"
local rounding = require "lib_rounding"

local BLOCK, K_MOST = linear.BLOCK, linear.K_MOST

return schedule.define {
    name = "linear_input",
    summary = "activations of a decode linear: norm, Hadamard, two byte planes a block",
    mirrors = { "gemm_m16_partition", "norm_fuse" },
    problem = {
        k = "u32", k_valid = "u32", parts = "u32", eps = "u32",
        mode = { "plain", "norm", "glu", "gdn" },
    },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { k = 256, k_valid = 256, parts = 2, mode = "norm", eps = 0x358637bd },
        { k = 768, k_valid = 768, parts = 1, mode = "glu", eps = 0x358637bd },
        { k = 17408, k_valid = 17408, parts = 1, mode = "glu", eps = 0x358637bd },
        { k = 6144, k_valid = 6144, parts = 1, mode = "gdn", eps = 0x358637bd },
        { k = 6144, k_valid = 6144, parts = 1, mode = "plain", eps = 0x358637bd },
    },
    valid = function(p)
        if p.k % 128 ~= 0 then return "k must be a multiple of 128, got " .. p.k end
        if p.k > K_MOST then
            return "k must be at most " .. K_MOST .. " (int64 sums), got " .. p.k
        end
        if p.k_valid > p.k then return "k_valid must be at most k, got " .. p.k_valid end
        if p.parts < 1 or p.parts > 4 then return "parts must be 1..4, got " .. p.parts end
    end,
    derive = function(p, target)
        local blocks = p.k // 128
        return {
            blocks = blocks, BLOCK = BLOCK,
            ctas = jobs.ctas(p, p.parts * p.row_limit * blocks, target, 4),
            out_blocks = blocks, back = false,
            act_words = linear.act_words(p.k),
        }
    end,
    args = {
        { "x", "const f32 *", "[rows, k_valid]" },
        { "y", "const f32 *", "[rows, k_valid], second source of glu and gdn" },
        { "squares", "const f32 *", "[8, blocks] partial sums of x^2, of norm" },
        { "weight", "const f32 *", "[k_valid] of norm (1 + w ready), [128] of gdn" },
        { "suh", "const h16 * const *", "[parts] -> [k]" },
        { "act", "u32 *", "[parts, k/16, 32, 2]" },
        { "exponents", "i32 *", "[parts, 8, blocks]" },
        { "sums", "i32 *", "[parts, 8, blocks]" },
        { "bad", "u32 *", "[8] sticky flags" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    claims = function(p)
        local of_mode = { norm = rounding.rms_norm(K_MOST // BLOCK), glu = rounding.silu_up(),
            gdn = rounding.gated_norm() }
        return { sums = { { "digits", "i32", BLOCK, linear.DIGIT } },
            roundings = { of_mode[p.mode] } }
    end,
    maps = function(p)
        return jobs.maps(p, {
            { "row", "rows", max = p.row_limit }, { "part", p.parts }, { "chunk", p.blocks },
        }, "row")
    end,
    launch = jobs.launch,
    template = "linear_input",
}
