-- gdn_step: the gated delta rule, row after row, state in registers (spec qwen3_5.md 3.3).
--
-- One job is `columns` columns of one v head. A warp takes one k slice (32 of the 128 rows of the
-- state) of 32 columns, a lane one column: 32 state values a thread. Per row, in fp32:
--   p     = sum over the slice, k ascending, by fma from 0, of kn[k] * S[k]      (old state)
--   dot   = ((p0 + p1) + p2) + p3 over the slices
--   d     = beta * fma(-decay, dot, v)
--   S[k]  = fma(kn[k], d, S[k] * decay)
--   o     = the same two-level sum of q[k] * S[k]                                (new state)
-- with beta = sigmoid(b), decay = exp(-exp(A_log) * softplus(a + dt_bias)). The order is part of
-- the bits; how many columns a CTA takes is not.
local schedule, work = require "schedule", require "work"

local DIM, SLICE = 128, 32

return schedule.define {
    name = "gdn_step",
    summary = "gated delta rule over the rows of a round, state in registers",
    mirrors = { "gdn_fast", "gdn_rounds" },
    problem = { k_heads = "u32", v_heads = "u32" },
    numeric = { row_limit = { 8 } },
    tuning = { columns = { 32, 64, 128 }, map = { "strided", "contiguous" } },
    examples = { { k_heads = 2, v_heads = 6 }, { k_heads = 16, v_heads = 48 } },
    valid = function(p)
        if p.k_heads == 0 or p.v_heads % p.k_heads ~= 0 then
            return "v_heads must be a multiple of k_heads, got " ..
                p.v_heads .. " and " .. p.k_heads
        end
    end,
    derive = function(p, target)
        local jobs = p.v_heads * (DIM // p.columns)
        local most = target.sms * 8
        return {
            DIM = DIM, SLICE = SLICE, slices = DIM // SLICE, group = p.v_heads // p.k_heads,
            pieces = DIM // p.columns, ctas = jobs < most and jobs or most,
            warps = (DIM // SLICE) * (p.columns // 32),
        }
    end,
    args = {
        { "q", "const f32 *", "[rows, k_heads, 128], scaled" },
        { "k", "const f32 *", "[rows, k_heads, 128]" },
        { "v", "const f32 *", "[rows, v_heads, 128]" },
        { "ab", "const f32 *", "[rows, a of v_heads | b of v_heads]" },
        { "a_log", "const f32 *", "[v_heads]" },
        { "dt_bias", "const f32 *", "[v_heads]" },
        { "state", "f32 *", "[v_heads, 128 k, 128 v], moved on" },
        { "o", "f32 *", "[rows, v_heads, 128]" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    shared = function(p) return { { "partial", "f32", 2 * p.slices * p.columns } } end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "head", p.v_heads }, { "piece", p.pieces } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.warps } end,
    template = "gdn_step",
}
