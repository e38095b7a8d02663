-- linear_middle: from the integer sums of gate and up to the activations of down, in one launch.
--
-- What linear_output stores and linear_input (mode glu) reads again stays in registers: 128 columns
-- of gate and of up are the block of 128 that down's Hadamard wants. The arithmetic is theirs
-- (templates/lib_linear.cu). One job is one block of one row.
local schedule, jobs, linear = require "schedule", require "lib_jobs", require "lib_linear"
local rounding = require "lib_rounding"

local BLOCK = linear.BLOCK

return schedule.define {
    name = "linear_middle",
    summary = "MLP: sums of gate and up -> silu(gate) * up as activations of down",
    mirrors = { "mlp_m16_sched" },
    problem = { n = "u32", codebook = { "mul1", "mcg", "3inst" } },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { n = 768, codebook = "mul1" }, { n = 17408, codebook = "mul1" },
        { n = 768, codebook = "3inst" },
    },
    valid = function(p)
        if p.n % BLOCK ~= 0 then return "n must be a multiple of 128, got " .. p.n end
    end,
    derive = function(p, target)
        local blocks = p.n // BLOCK
        return {
            BLOCK = BLOCK, out_blocks = blocks, columns = 2 * p.n,
            act_words = linear.act_words(p.n),
            back = linear.back(p.codebook),
            ctas = jobs.ctas(p, blocks * p.row_limit, target),
        }
    end,
    args = {
        { "gate_up", "u64 *", "[8, n of gate, n of up] sums, read and cleared" },
        { "scales", "const u64 *", "[2 parts, 8, 2] largest exponent, Q" },
        { "svh", "const h16 * const *", "[2] -> [n]" },
        { "suh", "const h16 * const *", "[1] -> [n] of down" },
        { "act", "u32 *", "[n/16, 32, 2]" },
        { "exponents", "i32 *", "[8, blocks]" },
        { "sums", "i32 *", "[8, blocks]" },
        { "bad", "u32 *", "[8] sticky flags" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    maps = function(p)
        return jobs.maps(p, {
            { "row", "rows", max = p.row_limit }, { "chunk", p.out_blocks },
        }, "row")
    end,
    claims = function()
        return { sums = { { "digits", "i32", BLOCK, linear.DIGIT } },
            roundings = { rounding.silu_up() } }
    end,
    launch = jobs.launch,
    template = "linear_middle",
}
