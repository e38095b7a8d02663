-- gdn_output: outputs of a GDN layer and the integer sums of z -> the activations of out_proj.
--
-- What linear_output stores of z and linear_input (mode gdn) reads again stays in registers, as in
-- linear_middle: a head is the block of 128 that out_proj's Hadamard wants. z is the last part of
-- the group that gdn_conv took the other columns of. One job is one head of one row.
local schedule, jobs, linear = require "schedule", require "lib_jobs", require "lib_linear"
local rounding = require "lib_rounding"

local BLOCK = linear.BLOCK

return schedule.define {
    name = "gdn_output",
    summary = "GDN: outputs and sums of z -> norm(o) * silu(z) as activations of out_proj",
    mirrors = { "gemm_m16_partition", "norm_fuse" },
    problem = {
        k_heads = "u32", v_heads = "u32", eps = "u32", codebook = { "mul1", "mcg", "3inst" },
    },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { k_heads = 2, v_heads = 6, eps = 0x358637bd, codebook = "mul1" },
        { k_heads = 16, v_heads = 48, eps = 0x358637bd, codebook = "mul1" },
        { k_heads = 2, v_heads = 6, eps = 0x358637bd, codebook = "3inst" },
    },
    valid = function(p)
        if p.v_heads == 0 then return "v_heads must not be 0" end
        if p.v_heads * BLOCK > linear.K_MOST then
            return "v_heads must be at most " .. linear.K_MOST // BLOCK .. " (int64 sums)"
        end
    end,
    derive = function(p, target)
        local first = (2 * p.k_heads + p.v_heads) * BLOCK
        return {
            BLOCK = BLOCK, out_blocks = p.v_heads, first = first,
            columns = first + p.v_heads * BLOCK, k = p.v_heads * BLOCK,
            act_words = linear.act_words(p.v_heads * BLOCK), back = linear.back(p.codebook),
            ctas = jobs.ctas(p, p.v_heads * p.row_limit, target),
        }
    end,
    args = {
        { "o", "const f32 *", "[rows, v_heads, 128]" },
        { "weight", "const f32 *", "[128]" },
        { "z_sums", "u64 *", "[8, columns of qkv | z], z read and cleared" },
        { "scales", "const u64 *", "[2 parts, 8, 2] largest exponent, Q" },
        { "svh", "const h16 * const *", "[2] -> [columns of the part]" },
        { "suh", "const h16 * const *", "[1] -> [k] of out_proj" },
        { "act", "u32 *", "[k/16, 32, 2]" },
        { "exponents", "i32 *", "[8, v_heads]" },
        { "sums", "i32 *", "[8, v_heads]" },
        { "bad", "u32 *", "[8] sticky flags" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    maps = function(p)
        return jobs.maps(p, {
            { "row", "rows", max = p.row_limit }, { "head", p.v_heads },
        }, "row")
    end,
    claims = function()
        return { sums = { { "digits", "i32", BLOCK, linear.DIGIT } },
            roundings = { rounding.gated_norm() } }
    end,
    launch = jobs.launch,
    template = "gdn_output",
}
