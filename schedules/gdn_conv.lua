-- gdn_conv: the causal depthwise convolution of a GDN layer, SiLU, and the L2 norms of q and k.
--
-- One job is 128 channels (one head of q, k or v) over all rows of the round. What a row sees is
-- its path in the round's tree (core/engine/tree.h): its own and its ancestors' inputs by depth,
-- before them the committed window. Where the round says that its rows are committed, the window
-- moves on in the same launch (the job's warp owns it); after a verify gdn_window moves it. Lane l
-- holds channels 4l..4l+3.
--   c = silu(sum over tap 0..3, ascending, by fma from 0, of w[tap] * input[t - 3 + tap])
--   q, k: c * rsqrt(sum c^2 + 1e-6), the sum a lane chain of 4 and a xor butterfly; q also
--         * 128^-0.5
-- The same launch makes a and b of the gates, W norm(x) in fp32 (templates/lib_dot.cu): small dot
-- products that nothing but gdn_step waits for, one a job behind the heads' jobs.
-- The window keeps the f32 inputs themselves, so where a round ends cannot show (design.md 4.2).
local schedule, jobs = require "schedule", require "lib_jobs"

local BLOCK = 128

return schedule.define {
    name = "gdn_conv",
    summary = "GDN convolution along a round's tree, SiLU, L2 norm of q and k",
    mirrors = { "gdn_fast", "gdn_rounds", "gdn_tree" },
    problem = {
        k_heads = "u32", v_heads = "u32", k = "u32", eps = "u32", dtype = { "BF16", "F16", "F32" },
    },
    numeric = { row_limit = { 8 }, taps = { 4 } },
    tuning = { warps = { 1, 2, 4 }, map = { "strided", "contiguous" } },
    examples = {
        { k_heads = 2, v_heads = 6, k = 256, eps = 0x358637bd, dtype = "F16" },
        { k_heads = 16, v_heads = 48, k = 5120, eps = 0x358637bd, dtype = "F16" },
    },
    valid = function(p)
        if p.k_heads == 0 or p.v_heads % p.k_heads ~= 0 then
            return "v_heads must be a multiple of k_heads, got " ..
                p.v_heads .. " and " .. p.k_heads
        end
        if p.k % BLOCK ~= 0 then return "k must be a multiple of 128, got " .. p.k end
    end,
    derive = function(p, target)
        local heads = 2 * p.k_heads + p.v_heads
        local dots = p.row_limit * 2 * p.v_heads
        return {
            BLOCK = BLOCK, heads = heads, channels = heads * BLOCK, q_width = p.k_heads * BLOCK,
            dots = dots, chunks = p.k // BLOCK, dot_norm = true,
            ctype = p.dtype == "BF16" and "u16" or p.dtype == "F16" and "h16" or "f32",
            convert = p.dtype == "BF16" and "f_from_bf16" or p.dtype == "F16" and "f_from_h" or "",
            v_width = p.v_heads * BLOCK, history = p.taps - 1, paths = 48,
            ctas = jobs.ctas(p, heads + dots, target),
        }
    end,
    args = {
        { "u", "const f32 *", "[rows, channels] = q | k | v, from in_proj_qkv" },
        { "weight", "const f32 *", "[channels, 4]" },
        { "window", "f32 *",
            "[3, channels] the last inputs, oldest first; moved on where round[10] says" },
        { "q", "f32 *", "[rows, k_heads, 128]" },
        { "k", "f32 *", "[rows, k_heads, 128]" },
        { "v", "f32 *", "[rows, v_heads, 128]" },
        { "x", "const f32 *", "[rows, k] residual stream" },
        { "squares", "const f32 *", "[8, k/128] partial sums of x^2" },
        { "norm", "const f32 *", "[k], 1 + w" },
        { "weight_a", "const void *", "[v_heads, k] of dtype" },
        { "weight_b", "const void *", "[v_heads, k] of dtype" },
        { "ab", "f32 *", "[rows, a of v_heads | b of v_heads]" },
        { "round", "const u32 *", "[0] = active rows, [10] = keep, [48..55] = paths" },
    },
    maps = function(p) return jobs.maps(p, { { "job", p.heads + p.dots } }) end,
    launch = jobs.launch,
    template = "gdn_conv",
}
