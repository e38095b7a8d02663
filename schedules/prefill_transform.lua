--- prefill_transform: f32 activations -> the f16 operand of a prefill product.
--
-- out = RN16(H128(value * suh) * 1/sqrt(128)) (spec exl3.md 3.3 A, the transform of the f32
-- product; the element-wise f16 rounding of x * suh is left out, it only loses bits). A warp holds
-- a block of 128, four elements a lane. Modes, the same arithmetic as the decode input:
--   plain  x
--   norm   RMSNorm: (x * rsqrt(mean x^2 + eps)) * weight, weight = 1 + w made by the caller; the
--          normalised row is also kept in `normed` for the plain linears that share it
--   gdn    ((o * rsqrt(mean o^2 + eps)) * weight) * silu(z) over the 128 of a head (x = o, y = z)
-- Sum of squares: a lane adds its four by fma from zero, warp_sum_f32 joins the lanes of a block,
-- blocks add in ascending order. Rows past `rows` and columns past `width` are zeros.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

return schedule.define {
    name = "prefill_transform",
    summary = "prefill operand: norm or gate, suh, Hadamard, to f16",
    mirrors = {},
    problem = {
        width = "u32", padded = "u32", rows_max = "u32", mode = { "plain", "norm", "gdn" },
        eps = "u32",
    },
    numeric = {},
    tuning = { warps = { 4, 8, 2 }, map = { "contiguous", "strided" } },
    examples = {
        { width = 256, padded = 256, rows_max = 2048, mode = "norm", eps = 0x358637bd },
        { width = 768, padded = 768, rows_max = 2048, mode = "plain", eps = 0x358637bd },
        { width = 768, padded = 768, rows_max = 2048, mode = "gdn", eps = 0x358637bd },
        { width = 192, padded = 256, rows_max = 64, mode = "norm", eps = 0x358637bd },
        { width = 5120, padded = 5120, rows_max = 2048, mode = "norm", eps = 0x358637bd },
        { width = 6144, padded = 6144, rows_max = 2048, mode = "gdn", eps = 0x358637bd },
        { width = 17408, padded = 17408, rows_max = 2048, mode = "plain", eps = 0x358637bd },
    },
    valid = function(p)
        if p.padded % 128 ~= 0 then return "padded must be a multiple of 128, got " .. p.padded end
        if p.width % 4 ~= 0 then return "width must be a multiple of 4, got " .. p.width end
        if p.width > p.padded then return "width must be at most padded, got " .. p.width end
        if p.mode == "gdn" and p.width % 128 ~= 0 then
            return "width must be a multiple of 128 for gdn, got " .. p.width
        end
        return rows.check(p)
    end,
    derive = function(p, target)
        local blocks = p.padded // rows.BLOCK
        local jobs = p.rows_max * (p.mode == "norm" and 1 or blocks)
        return { blocks = blocks, BLOCK = rows.BLOCK, ctas = rows.ctas(jobs, p.warps, target, 8) }
    end,
    args = {
        { "x", "const f32 *", "[rows, width]" },
        { "y", "const f32 *", "[rows, width] z of gdn; 0 otherwise" },
        { "weight", "const f32 *", "[width] of norm (1 + w ready), [128] of gdn; 0 for plain" },
        { "suh", "const h16 *", "[padded]" },
        { "out", "h16 *", "[rows in bands of 64, padded]" },
        { "normed", "f32 *", "[rows in bands of 64, width] of norm; 0 = not kept" },
        { "rows", "u32", "active rows" },
    },
    maps = function(p)
        local space = { { "row", rows.padded(p.rows_max) } }
        if p.mode ~= "norm" then space[2] = { "chunk", p.blocks } end
        return {
            jobs = work.map {
                space = space, over = "warps", workers = p.ctas * p.warps, warps = p.warps,
                partition = p.map, reduction = "none", row = "row",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.warps } end,
    template = "prefill_transform",
}
