-- gdn_conv: the causal depthwise convolution of a GDN layer, SiLU, and the L2 norms of q and k.
--
-- A CTA has a warp a row and does one job. A job of a head is its 128 channels (of q, k or v) over
-- all rows of the round. What a row sees is its path in the round's tree (core/engine/tree.h): its
-- own and its ancestors' inputs by depth, before them the committed window. All inputs go into
-- shared memory at once, and the rows find theirs there. Where the round says that its rows are
-- committed, the window moves on in the same launch; after a verify gdn_window moves it. Lane l
-- holds channels 4l..4l+3.
--   c = silu(sum over tap 0..3, ascending, by fma from 0, of w[tap] * input[t - 3 + tap])
--   q, k: c * rsqrt(sum c^2 + 1e-6), the sum a lane chain of 4 and a xor butterfly; q also
--         * 128^-0.5
-- The same launch makes a and b of the gates, W norm(x) in fp32 (templates/lib_dot.cu), which
-- nothing but gdn_step waits for. A job of these is one row and 8 columns, a warp each; the row is
-- normed once, in shared memory. The weights, which no launch writes, are on their way into
-- registers before the launch waits for the one before it, `batch` chunks of them.
-- Where qkv and z are one group of exact linears (core/engine/linear.c), a job of a head takes its
-- inputs from the integer sums itself, 128 columns of a row a warp (templates/lib_linear.cu); they
-- are left in `u` for gdn_window, and the sums are cleared.
-- The window keeps the f32 inputs themselves, so where a round ends cannot show (design.md 4.2).
local schedule, work, linear = require "schedule", require "work", require "lib_linear"
local rounding = require "lib_rounding"

local BLOCK = linear.BLOCK
local HELD_WORDS = 80 -- registers for weights: two CTAs of 8 warps fit an SM

-- The most chunks whose weights are held, and fewer.
local function batches(p)
    local most = math.min(p.k // BLOCK, HELD_WORDS // (p.dtype == "F32" and 4 or 2))
    local list, seen = {}, {}
    for _, part in ipairs { 1, 2, 4 } do
        local batch = math.max(1, most // part)
        if not seen[batch] then list[#list + 1] = batch end
        seen[batch] = true
    end
    return list
end

return schedule.define {
    name = "gdn_conv",
    summary = "GDN convolution along a round's tree, SiLU, L2 norm of q and k",
    mirrors = { "gdn_fast", "gdn_rounds", "gdn_tree" },
    problem = {
        k_heads = "u32", v_heads = "u32", k = "u32", eps = "u32", dtype = { "BF16", "F16", "F32" },
        codebook = { "none", "mul1", "mcg", "3inst" }, -- of the sums; none: `u` has the values
    },
    numeric = { row_limit = { 8 }, taps = { 4 } },
    tuning = { batch = batches, map = { "strided", "contiguous" } },
    examples = {
        { k_heads = 2, v_heads = 6, k = 256, eps = 0x358637bd, dtype = "F16", codebook = "mul1" },
        {
            k_heads = 16, v_heads = 48, k = 5120, eps = 0x358637bd, dtype = "F16",
            codebook = "mul1",
        },
        { k_heads = 2, v_heads = 6, k = 256, eps = 0x358637bd, dtype = "F16", codebook = "3inst" },
        { k_heads = 2, v_heads = 6, k = 256, eps = 0x358637bd, dtype = "F16", codebook = "none" },
    },
    valid = function(p)
        if p.k_heads == 0 or p.v_heads % p.k_heads ~= 0 then
            return "v_heads must be a multiple of k_heads, got " ..
                p.v_heads .. " and " .. p.k_heads
        end
        if p.k == 0 or p.k % BLOCK ~= 0 then
            return "k must be a multiple of 128, got " .. p.k
        end
    end,
    derive = function(p)
        local heads, columns, warps = 2 * p.k_heads + p.v_heads, 2 * p.v_heads, p.row_limit
        local groups = (columns + warps - 1) // warps
        return {
            BLOCK = BLOCK, heads = heads, channels = heads * BLOCK, q_width = p.k_heads * BLOCK,
            columns = columns, groups = groups, dots = p.row_limit * groups,
            chunks = p.k // BLOCK, warps = warps, threads = 32 * warps,
            ctype = p.dtype == "BF16" and "u16" or p.dtype == "F16" and "h16" or "f32",
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
            { "x", "const f32 *", "[8, k] residual stream" },
            { "squares", "const f32 *", "[8, k/128] partial sums of x^2" },
            { "norm", "const f32 *", "[k], 1 + w" },
            { "weight_a", "const void *", "[v_heads, k] of dtype" },
            { "weight_b", "const void *", "[v_heads, k] of dtype" },
            { "ab", "f32 *", "[rows, a of v_heads | b of v_heads]" },
            { "round", "const u32 *", "[0] = active rows, [10] = keep, [48..55] = paths" },
        }
        return p.back and linear.with_sums(args, "channels | v_width") or args
    end,
    -- A CTA uses the arrays of its own kind of job.
    shared = function(p)
        return {
            { "inputs", "f32", (p.history + p.row_limit) * BLOCK },
            { "source", "f32", p.k }, { "factor", "f32", p.k },
        }
    end,
    -- Dots first: theirs are the longer jobs.
    maps = function(p)
        local ctas = p.dots + p.heads
        return {
            jobs = work.map {
                space = { { "job", ctas } }, over = "ctas", workers = ctas, partition = p.map,
                reduction = "none",
            },
        }
    end,
    -- A gate: a lane's chain of fma, the lanes. Stock: elpis.md 8.2. The convolution: a fma a tap,
    -- SiLU, whose slope is below 1.1. Stock has its input and what comes out in bfloat16
    -- (qwen3_5.md 3.4): the one counted here, the other as the norms' input. q, k: eps, root, two
    -- products, the factor itself; stock's sum is a square, 5 steps over lanes and 2 over slices.
    claims = function(p)
        return { roundings = {
            { "GDN gates a, b", over = "sum of abs(x w)",
                ours = { r32 = 4 * p.chunks + rounding.LANES },
                stock = { r32 = p.k // 32 - 1 + 5 + 1 } },
            { "GDN convolution", over = "1.1 |u||w|", ours = { r32 = p.taps + rounding.SILU },
                stock = { r32 = p.taps + 1, b16 = 1 } },
            { "GDN L2 norm of q, k", over = "its value",
                ours = { r32 = rounding.scale(rounding.BLOCK_SQUARES) + 3 },
                stock = { r32 = rounding.scale(1 + 5 + 2) + 3, b16 = 1 } },
        } }
    end,
    launch = function(p) return { grid = p.dots + p.heads, block = p.threads } end,
    template = "gdn_conv",
}
