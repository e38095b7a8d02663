-- linear_tail: from the integer sums of a linear that adds to the residual stream to the
-- activations of the linears that read its norm, in one launch.
--
-- What linear_output (mode residual) and linear_input (mode norm) do, by their texts. One job is a
-- block of 128 columns of one row: a warp adds the linear's values to x, leaves the block's sum of
-- squares, waits until all CTAs have done so, and makes the block's activations, one set a part,
-- of x times the row's scale. A warp that has one block keeps it in registers meanwhile.
--
-- All CTAs must be resident: `launch` starts no more than fit. start says how they come in, where
-- the GPU lets a launch begin while the one before it ends:
--   early   so; they fit beside what is left of earlier launches, which wait for none of them, and
--           no later launch begins before all of them have (start_next)
--   whole   by the driver's cooperative launch, which begins when the one before it is complete
local schedule, work = require "schedule", require "work"
local jobs, linear = require "lib_jobs", require "lib_linear"
local rounding = require "lib_rounding"

local BLOCK = linear.BLOCK
local CTAS_OF_SM = 2

return schedule.define {
    name = "linear_tail",
    summary = "sums of a linear into the residual stream, and its norm as activations of the next",
    mirrors = { "gemm_m16_partition", "norm_fuse", "m16_discard" },
    problem = { k = "u32", parts = "u32", eps = "u32", codebook = { "mul1", "mcg", "3inst" } },
    numeric = { row_limit = { 8 } },
    tuning = {
        warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" }, start = { "early", "whole" },
    },
    examples = {
        { k = 256, parts = 2, codebook = "mul1", eps = 0x358637bd },
        { k = 5120, parts = 3, codebook = "mul1", eps = 0x358637bd },
        { k = 5120, parts = 1, codebook = "3inst", eps = 0x358637bd },
        { k = 32768, parts = 2, codebook = "mul1", eps = 0x358637bd }, -- several blocks a warp
    },
    valid = function(p)
        if p.k == 0 or p.k % BLOCK ~= 0 then
            return "k must be a multiple of 128, got " .. p.k
        end
        if p.k > linear.K_MOST then
            return "k must be at most " .. linear.K_MOST .. " (int64 sums), got " .. p.k
        end
        if p.parts < 1 or p.parts > 4 then return "parts must be 1..4, got " .. p.parts end
    end,
    derive = function(p, target)
        local blocks = p.k // BLOCK
        return {
            BLOCK = BLOCK, blocks = blocks, out_blocks = blocks, act_words = linear.act_words(p.k),
            back = linear.back(p.codebook),
            ctas = jobs.ctas(p, blocks * p.row_limit, target, CTAS_OF_SM),
        }
    end,
    args = {
        { "sums", "u64 *", "[8, k] of the linear, read and cleared" },
        { "scales", "const u64 *", "[8, 2] largest exponent, Q" },
        { "svh", "const h16 * const *", "[1] -> [k]" },
        { "x", "f32 *", "[rows, k] the residual stream" },
        { "squares", "f32 *", "[8, blocks] partial sums of x^2" },
        { "weight", "const f32 *", "[k] of the norm (1 + w ready)" },
        { "suh", "const h16 * const *", "[parts] -> [k] of the next linears" },
        { "act", "u32 *", "[parts, k/16, 32, 2]" },
        { "exponents", "i32 *", "[parts, 8, blocks]" },
        { "digits", "i32 *", "[parts, 8, blocks]" },
        { "bad", "u32 *", "[8] sticky flags" },
        { "round", "const u32 *", "[0] = active rows" },
        { "barrier", "u32 *", "[1] zero before the first launch" },
    },
    maps = function(p)
        local function of_blocks()
            return work.map {
                space = { { "row", "rows", max = p.row_limit }, { "chunk", p.blocks } },
                over = "warps", workers = p.ctas * p.warps, warps = p.warps, partition = p.map,
                reduction = "none", row = "row",
            }
        end
        return { outputs = of_blocks(), inputs = of_blocks() }
    end,
    waits = { { "inputs", "outputs" } },
    claims = function(p)
        return { sums = { { "digits", "i32", BLOCK, linear.DIGIT } },
            roundings = { rounding.residual(), rounding.rms_norm(p.blocks) } }
    end,
    launch = function(p)
        return { grid = p.ctas, block = 32 * p.warps, min_ctas = CTAS_OF_SM, cooperative = true,
            overlaps = p.start == "early" }
    end,
    template = "linear_tail",
}
