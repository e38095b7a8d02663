-- gdn_input: what the linears in front of a GDN layer read, and its gates.
--
-- The residual stream is normed; of it linear_input (mode norm) makes the activations of qkv and
-- z, by its text, and each gate (a, b) is the dot product of a row with a weight in fp32
-- (templates/lib_dot.cu). A CTA does one of two kinds of jobs: a gate of a row a warp, or a
-- 128-block a warp. Gates come first, for theirs are the longer jobs; their weights, of which
-- `batch` chunks are held in registers, are on the way before the launch waits for the one before
-- it. Nothing but gdn_step reads them. parts = 0: where qkv and z are not one group of exact
-- linears, gates alone.
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
    name = "gdn_input",
    summary = "norm of a GDN layer, as activations of its linears and as its gates",
    mirrors = { "gdn_fast", "norm_fuse" },
    problem = {
        k = "u32", parts = "u32", v_heads = "u32", eps = "u32",
        dtype = { "BF16", "F16", "F32" }, -- of the gates' weights
    },
    numeric = { row_limit = { 8 } },
    tuning = { batch = batches, map = { "strided", "contiguous" } },
    examples = {
        { k = 256, parts = 2, v_heads = 6, eps = 0x358637bd, dtype = "F16" },
        { k = 5120, parts = 2, v_heads = 48, eps = 0x358637bd, dtype = "F16" },
        { k = 5120, parts = 0, v_heads = 48, eps = 0x358637bd, dtype = "F32" },
    },
    valid = function(p)
        if p.k == 0 or p.k % BLOCK ~= 0 then
            return "k must be a multiple of 128, got " .. p.k
        end
        if p.k > linear.K_MOST then
            return "k must be at most " .. linear.K_MOST .. " (int64 sums), got " .. p.k
        end
        if p.parts > 4 then return "parts must be at most 4, got " .. p.parts end
        if p.v_heads == 0 then return "v_heads must not be 0" end
    end,
    derive = function(p)
        local blocks, columns, warps = p.k // BLOCK, 2 * p.v_heads, p.row_limit
        local groups = (columns + warps - 1) // warps
        local dots = p.row_limit * groups
        return {
            BLOCK = BLOCK, blocks = blocks, columns = columns, groups = groups, dots = dots,
            warps = warps, ctas = dots + p.parts * blocks, -- a row a warp
            ctype = p.dtype == "BF16" and "u16" or p.dtype == "F16" and "h16" or "f32",
            out_blocks = blocks, back = false, act_words = linear.act_words(p.k),
        }
    end,
    args = {
        { "x", "const f32 *", "[8, k] residual stream" },
        { "squares", "const f32 *", "[8, k/128] partial sums of x^2" },
        { "norm", "const f32 *", "[k], 1 + w" },
        { "suh", "const h16 * const *", "[parts] -> [k]" },
        { "act", "u32 *", "[parts, k/16, 32, 2]" },
        { "exponents", "i32 *", "[parts, 8, blocks]" },
        { "sums", "i32 *", "[parts, 8, blocks]" },
        { "weight_a", "const void *", "[v_heads, k] of dtype" },
        { "weight_b", "const void *", "[v_heads, k] of dtype" },
        { "ab", "f32 *", "[rows, a of v_heads | b of v_heads]" },
        { "bad", "u32 *", "[8] sticky flags" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    shared = function(p) return { { "source", "f32", p.k }, { "factor", "f32", p.k } } end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "job", p.ctas } }, over = "ctas", workers = p.ctas, partition = p.map,
                reduction = "none",
            },
        }
    end,
    -- A gate: a lane's chain of fma, the lanes. Stock: elpis.md 8.2.
    claims = function(p)
        local list = { {
            "GDN gates a, b", over = "sum of abs(x w)",
            ours = { r32 = 4 * p.blocks + rounding.LANES },
            stock = { r32 = p.k // 32 - 1 + 5 + 1 },
        } }
        if p.parts > 0 then list[2] = rounding.rms_norm(linear.K_MOST // BLOCK) end
        return { roundings = list }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.warps } end,
    template = "gdn_input",
}
