--- prefill_transform: f32 activations -> the f16 operand of a prefill product.
--
-- out = RN16(H128(value * suh) * 1/sqrt(128)) (spec exl3.md 3.3 A, the transform of the f32
-- product; the element-wise f16 rounding of x * suh is left out, it only loses bits). A warp holds
-- four blocks of 128, sixteen elements a lane. Modes, the same arithmetic as the decode input:
--   plain  x
--   norm   RMSNorm: (x * rsqrt(mean x^2 + eps)) * weight, weight = 1 + w made by the caller; the
--          normalised row is also kept in `normed` for the plain linears that share it. A CTA has
--          a row in its registers and makes the operands of up to three linears, which differ in
--          suh only
--   gdn    ((o * rsqrt(mean o^2 + eps)) * weight) * silu(z) over the 128 of a head (x = o, y = z);
--          f_silu_short, since the exact one of decode would take longer than memory does
-- Sum of squares: chains of four by fma from zero, a xor butterfly joins those of a block (as
-- warp_sum_f32 does with four elements a lane), blocks add in ascending order. Rows past `rows`
-- and columns past `width` are zeros.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"
local jobs = require "lib_jobs"

local EPS = 0x358637bd -- 1e-6
local WARPS_MAX = 16

-- Warps of a norm's CTA: such that each holds 1 to 4 quads of the row.
local function norm_warps(p)
    local quads, list = rows.quads(p.padded // rows.BLOCK), {}
    for each = 1, 4 do
        local warps = (quads + each - 1) // each
        if warps <= WARPS_MAX and warps ~= list[#list] then list[#list + 1] = warps end
    end
    return list
end

return schedule.define {
    name = "prefill_transform",
    summary = "prefill operand: norm or gate, suh, Hadamard, to f16",
    mirrors = {},
    problem = {
        width = "u32", padded = "u32", rows_max = "u32", mode = { "plain", "norm", "gdn" },
        eps = "u32", parts = "u32",
    },
    numeric = {},
    tuning = {
        warps = function(p) return p.mode == "norm" and norm_warps(p) or { 4, 8, 2 } end,
        map = { "contiguous", "strided" },
    },
    examples = {
        { width = 256, padded = 256, rows_max = 2048, mode = "norm", eps = EPS, parts = 2 },
        { width = 768, padded = 768, rows_max = 2048, mode = "plain", eps = EPS, parts = 1 },
        { width = 768, padded = 768, rows_max = 2048, mode = "gdn", eps = EPS, parts = 1 },
        { width = 192, padded = 256, rows_max = 64, mode = "norm", eps = EPS, parts = 1 },
        { width = 5120, padded = 5120, rows_max = 4096, mode = "norm", eps = EPS, parts = 2 },
        { width = 5120, padded = 5120, rows_max = 4096, mode = "norm", eps = EPS, parts = 3 },
        { width = 6144, padded = 6144, rows_max = 2048, mode = "gdn", eps = EPS, parts = 1 },
        { width = 17408, padded = 17408, rows_max = 2048, mode = "plain", eps = EPS, parts = 1 },
    },
    valid = function(p)
        if p.padded % 128 ~= 0 then return "padded must be a multiple of 128, got " .. p.padded end
        if p.width % 4 ~= 0 then return "width must be a multiple of 4, got " .. p.width end
        if p.width > p.padded then return "width must be at most padded, got " .. p.width end
        if p.mode == "gdn" and p.width % 128 ~= 0 then
            return "width must be a multiple of 128 for gdn, got " .. p.width
        end
        if p.parts < 1 or p.parts > 3 or (p.parts > 1 and p.mode ~= "norm") then
            return "parts must be 1, of a norm up to 3, got " .. p.parts
        end
        return rows.check(p)
    end,
    derive = function(p, target)
        local blocks = p.padded // rows.BLOCK
        local quads = rows.quads(blocks)
        local norm = p.mode == "norm"
        return {
            blocks = blocks, quads = quads, BLOCK = rows.BLOCK, VALUES = rows.VALUES,
            each = (quads + p.warps - 1) // p.warps,
            ctas = norm and rows.ctas(p.rows_max, 1, target, math.max(1, 48 // p.warps))
                or rows.ctas(p.rows_max * quads, p.warps, target, 8),
        }
    end,
    args = {
        { "x", "const f32 *", "[rows, width]" },
        { "y", "const f32 *", "[rows, width] z of gdn; 0 otherwise" },
        { "weight", "const f32 *", "[width] of norm (1 + w ready), [128] of gdn; 0 for plain" },
        { "suh0", "const h16 *", "[padded] of the first part" },
        { "suh1", "const h16 *", "of the second, or 0" },
        { "suh2", "const h16 *", "of the third, or 0" },
        { "out", "h16 *", "[parts][rows_max, padded], rows in bands of 64" },
        { "normed", "f32 *", "[rows in bands of 64, width] of norm; 0 = not kept" },
        { "rows", "u32", "active rows" },
    },
    shared = function(p)
        return p.mode == "norm" and { { "squares", "f32", 2 * 4 * p.quads } } or {}
    end,
    maps = function(p)
        local space = { { "row", rows.padded(p.rows_max) } }
        if p.mode == "norm" then
            return {
                jobs = work.map {
                    space = space, over = "ctas", workers = p.ctas, partition = p.map,
                    reduction = "none", row = "row",
                },
            }
        end
        space[2] = { "quad", p.quads }
        return jobs.maps(p, space, "row")
    end,
    launch = jobs.launch,
    template = "prefill_transform",
}
