--- prefill_gates: beta and the log decay g of a GDN layer, per row and value head.
--
-- beta = sigmoid(b), g = -exp(A_log) * softplus(a + dt_bias) (spec qwen3_5.md 3.3), as the decode
-- kernel makes them. Rows past `rows`: both zero.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

return schedule.define {
    name = "prefill_gates",
    summary = "prefill: GDN beta and log decay",
    mirrors = {},
    problem = { v_heads = "u32", rows_max = "u32" },
    numeric = {},
    tuning = { warps = { 4, 2, 8 }, map = { "contiguous", "strided" } },
    examples = { { v_heads = 6, rows_max = 2048 }, { v_heads = 48, rows_max = 2048 } },
    valid = function(p)
        if p.v_heads < 1 then return "v_heads must be at least 1, got " .. p.v_heads end
        return rows.check(p)
    end,
    derive = function(p, target)
        local threads = 32 * p.warps
        return { threads = threads, ctas = rows.ctas(p.rows_max * p.v_heads, threads, target, 8) }
    end,
    args = {
        { "ab", "const f32 *", "[rows, 2, v_heads] a, then b" },
        { "a_log", "const f32 *", "[v_heads]" },
        { "dt_bias", "const f32 *", "[v_heads]" },
        { "beta", "f32 *", "[rows in bands of 64, v_heads]" },
        { "g", "f32 *", "[rows in bands of 64, v_heads]" },
        { "rows", "u32", "active rows" },
    },
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "row", rows.padded(p.rows_max) }, { "head", p.v_heads } },
                over = "threads", workers = p.ctas * p.threads, threads = p.threads,
                partition = p.map, reduction = "none", row = "row",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = p.threads } end,
    template = "prefill_gates",
}
