-- gdn_conv: the causal depthwise convolution of a GDN layer, SiLU, and the L2 norms of q and k.
--
-- A CTA does `group` heads and has a warp a row of each: the head's 128 channels (of q, k or v)
-- over all rows of the round. What a row sees is its path in the round's tree (core/engine/tree.h):
-- its own and its ancestors' inputs by depth, before them the committed window. All inputs go into
-- shared memory at once, and the rows find theirs there. Where the round says that its rows are
-- committed, the window moves on in the same launch; after a verify gdn_window moves it. Lane l
-- holds channels 4l..4l+3.
--   c = silu(sum over tap 0..3, ascending, by fma from 0, of w[tap] * input[t - 3 + tap])
--   q, k: c * rsqrt(sum c^2 + 1e-6), the sum a lane chain of 4 and a xor butterfly; q also
--         * 128^-0.5
-- Where qkv and z are one group of exact linears (core/engine/linear.c), a head takes its
-- inputs from the integer sums itself, 128 columns of a row a warp (templates/lib_linear.cu); they
-- are left in `u` for gdn_window, and the sums are cleared.
-- The window keeps the f32 inputs themselves, so where a round ends cannot show (design.md 4.2).
local schedule, work, linear = require "schedule", require "work", require "lib_linear"
local rounding = require "lib_rounding"

local BLOCK = linear.BLOCK

return schedule.define {
    name = "gdn_conv",
    summary = "GDN convolution along a round's tree, SiLU, L2 norm of q and k",
    mirrors = { "gdn_fast", "gdn_rounds", "gdn_tree" },
    problem = {
        k_heads = "u32", v_heads = "u32",
        codebook = { "none", "mul1", "mcg", "3inst" }, -- of the sums; none: `u` has the values
    },
    numeric = { row_limit = { 8 }, taps = { 4 } },
    tuning = {
        group = { 1, 2, 4 },
        before_wait = { "window", "nothing" }, -- what is asked for then
        map = { "strided", "contiguous" },
    },
    examples = {
        { k_heads = 2, v_heads = 6, codebook = "mul1" },
        { k_heads = 16, v_heads = 48, codebook = "mul1" },
        { k_heads = 2, v_heads = 6, codebook = "3inst" },
        { k_heads = 2, v_heads = 6, codebook = "none" },
    },
    valid = function(p)
        if p.k_heads == 0 or p.v_heads % p.k_heads ~= 0 then
            return "v_heads must be a multiple of k_heads, got " ..
                p.v_heads .. " and " .. p.k_heads
        end
        if (2 * p.k_heads + p.v_heads) % p.group ~= 0 then
            return "group must divide the heads of q, k and v"
        end
    end,
    derive = function(p)
        local heads = 2 * p.k_heads + p.v_heads
        return {
            BLOCK = BLOCK, heads = heads, ctas = heads // p.group,
            channels = heads * BLOCK, q_width = p.k_heads * BLOCK,
            v_width = p.v_heads * BLOCK, history = p.taps - 1, paths = 48,
            sum_columns = (heads + p.v_heads) * BLOCK, back = linear.back(p.codebook),
            out_blocks = false,
        }
    end,
    args = function(p)
        local args = {
            { "u", p.back and "f32 *" or "const f32 *",
                "[8, channels] = q | k | v, of in_proj_qkv" },
            { "weight", "const f32 *", "[channels, 4]" },
            { "window", "f32 *",
                "[3, channels] the last inputs, oldest first; moved on where round[10] says" },
            { "q", "f32 *", "[rows, k_heads, 128]" },
            { "k", "f32 *", "[rows, k_heads, 128]" },
            { "v", "f32 *", "[rows, v_heads, 128]" },
            { "round", "const u32 *", "[0] = active rows, [10] = keep, [48..55] = paths" },
        }
        return p.back and linear.with_sums(args, "channels | v_width") or args
    end,
    shared = function(p)
        return { { "inputs", "f32", p.group * (p.history + p.row_limit) * BLOCK } }
    end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "heads", p.ctas } }, over = "ctas", workers = p.ctas,
                partition = p.map, reduction = "none",
            },
        }
    end,
    -- The convolution: a fma a tap, SiLU, whose slope is below 1.1. Stock has its input and what
    -- comes out in bfloat16 (qwen3_5.md 3.4): the one counted here, the other as the norms' input.
    -- q, k: eps, root, two products, the factor itself; stock's sum is a square, 5 steps over lanes
    -- and 2 over slices.
    claims = function(p)
        return { roundings = {
            { "GDN convolution", over = "1.1 |u||w|", ours = { r32 = p.taps + rounding.SILU },
                stock = { r32 = p.taps + 1, b16 = 1 } },
            { "GDN L2 norm of q, k", over = "its value",
                ours = { r32 = rounding.scale(rounding.BLOCK_SQUARES) + 3 },
                stock = { r32 = rounding.scale(1 + 5 + 2) + 3, b16 = 1 } },
        } }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.row_limit * p.group } end,
    template = "gdn_conv",
}
