--- prefill_conv: the causal convolution of a GDN layer over a piece, SiLU, L2 norm of q and k.
--
-- A warp does 128 channels (a head of q, k or v) of `height` rows, lane l channels 4l .. 4l+3: all
-- inputs are asked for at once and read once, but for the 3 rows before. Arithmetic as in the
-- decode kernel gdn_conv, but for a quicker SiLU:
--   c = silu(sum over taps 0..3, ascending, by fma from 0, of w[tap] * u[t - 3 + tap])
--   q, k: c * rsqrt(sum c^2 + 1e-6), the sum a lane chain and warp_sum_f32; q also * 128^-0.5
-- Inputs before row 0 come from the window. Rows past `rows` are zeros (spec qwen3_5.md 3.3,
-- padding tokens). The window moves on in prefill_window, after every row was read.
local schedule, jobs = require "schedule", require "lib_jobs"
local rows, expr = require "lib_rows", require "expr"

return schedule.define {
    name = "prefill_conv",
    summary = "prefill: GDN convolution, SiLU, L2 norm of q and k",
    mirrors = {},
    problem = { k_heads = "u32", v_heads = "u32", rows_max = "u32" },
    numeric = { taps = { 4 } },
    tuning = { warps = { 4, 8, 2 }, height = { 8, 4, 16 }, map = { "contiguous", "strided" } },
    examples = {
        { k_heads = 2, v_heads = 6, rows_max = 2048 },
        { k_heads = 16, v_heads = 48, rows_max = 2048 },
    },
    valid = function(p)
        if p.k_heads == 0 or p.v_heads % p.k_heads ~= 0 then
            return "v_heads must be a multiple of k_heads = " .. p.k_heads .. ", got " .. p.v_heads
        end
        return rows.check(p)
    end,
    derive = function(p, target)
        local heads = 2 * p.k_heads + p.v_heads
        return {
            BLOCK = rows.BLOCK, heads = heads, channels = heads * rows.BLOCK, history = p.taps - 1,
            ctas = rows.ctas(p.rows_max // p.height * heads, p.warps, target,
                             target.name == "host" and 8 or 64),
        }
    end,
    args = {
        { "u", "const f32 *", "[rows, channels] = q | k | v, from in_proj_qkv" },
        { "weight", "const f32 *", "[channels, 4]" },
        { "window", "const f32 *", "[3, channels] the inputs before row 0, oldest first" },
        { "q", "f32 *", "[rows in bands of 64, k_heads, 128]" },
        { "k", "f32 *", "[rows in bands of 64, k_heads, 128]" },
        { "v", "f32 *", "[rows in bands of 64, v_heads, 128]" },
        { "rows", "u32", "active rows" },
    },
    maps = function(p)
        local tiles = expr.mul(rows.tiles(p.rows_max, rows.BAND), rows.BAND // p.height)
        return jobs.maps(p, { { "tile", tiles }, { "head", p.heads } })
    end,
    launch = jobs.launch,
    template = "prefill_conv",
}
