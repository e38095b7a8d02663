-- gdn_step: the gated delta rule over the rows of a round, state in registers (spec qwen3_5.md
-- 3.3).
--
-- One job is `columns` columns of one v head of one layer. It runs the round's program
-- (core/engine/tree.h): ADVANCE moves the state over a row and emits the row's output, PEEK emits
-- without moving (a leaf of the tree), RELOAD takes the state before the round again, REPLAY moves
-- without emitting. The state goes back to memory only where the round says that its rows are
-- committed; a verify leaves it alone, and the commit is the same kernel over all layers at once
-- with a program of REPLAYs: no state a row is kept, and the bits are those of plain decoding.
--
-- A warp takes one k slice (32 of the 128 rows of the state) of 32 columns, a lane one column: 32
-- state values a thread. Per row, in fp32:
--   p     = sum over the slice, k ascending, by fma from 0, of kn[k] * S[k]      (old state)
--   dot   = ((p0 + p1) + p2) + p3 over the slices
--   d     = beta * fma(-decay, dot, v)
--   S[k]  = fma(kn[k], d, S[k] * decay)
--   o     = the same two-level sum of q[k] * S[k]                                (new state)
-- with beta = sigmoid(b), decay = exp(-exp(A_log) * softplus(a + dt_bias)). The order is part of
-- the bits; how many columns a CTA takes is not.
--
-- State and program are of earlier passes, a and b of a launch before gdn_conv, so they are loaded
-- before the launch waits (templates/prelude/README.md); the commit's launch is the first of its
-- pass.
--
-- All that the steps need is in shared memory before the first: the rows' kn, q, v, decay, beta.
-- A step meets the other slices once. The sum of a row's o is due with the next step's p, as both
-- run over the same state; the slices' parts of both are exchanged at that step's barrier.
local schedule, work = require "schedule", require "work"
local rounding = require "lib_rounding"

local DIM, SLICE = 128, 32

return schedule.define {
    name = "gdn_step",
    summary = "gated delta rule along a round's tree, or its replay in all layers",
    mirrors = { "gdn_fast", "gdn_rounds", "gdn_tree", "gdn_replay" },
    problem = { k_heads = "u32", v_heads = "u32", layers = "u32" },
    numeric = { row_limit = { 8 } },
    tuning = {
        columns = { 32, 64, 128 }, map = { "strided", "contiguous" },
        -- From where RELOAD takes the state. Programs over all layers have no RELOAD to speak of.
        reload = function(p)
            return p.layers == 1 and { "shared", "global" } or { "global" }
        end,
    },
    examples = {
        { k_heads = 2, v_heads = 6, layers = 1 }, { k_heads = 16, v_heads = 48, layers = 1 },
        { k_heads = 16, v_heads = 48, layers = 48 },
    },
    valid = function(p)
        if p.k_heads == 0 or p.v_heads % p.k_heads ~= 0 then
            return "v_heads must be a multiple of k_heads, got " ..
                p.v_heads .. " and " .. p.k_heads
        end
        if p.layers < 1 then return "layers must be at least 1, got " .. p.layers end
    end,
    derive = function(p, target)
        local jobs = p.layers * p.v_heads * (DIM // p.columns)
        local most = target.sms * 8
        return {
            DIM = DIM, SLICE = SLICE, slices = DIM // SLICE, group = p.v_heads // p.k_heads,
            pieces = DIM // p.columns, program = 32, program_most = 16,
            ADVANCE = 0, PEEK = 1, RELOAD = 2, REPLAY = 3,
            k_rows = p.row_limit * p.k_heads * DIM, v_rows = p.row_limit * p.v_heads * DIM,
            ctas = jobs < most and jobs or most,
            warps = (DIM // SLICE) * (p.columns // 32),
        }
    end,
    args = {
        { "q", "const f32 *", "[layers, 8, k_heads, 128], scaled" },
        { "k", "const f32 *", "[layers, 8, k_heads, 128]" },
        { "v", "const f32 *", "[layers, 8, v_heads, 128]" },
        { "ab", "const f32 *", "[layers, 8, a of v_heads | b of v_heads]" },
        { "a_log", "const f32 *", "[layers, v_heads]" },
        { "dt_bias", "const f32 *", "[layers, v_heads]" },
        { "state", "f32 *", "[layers, v_heads, 128 k, 128 v], moved on where round[10] says so" },
        { "o", "f32 *", "[8, v_heads, 128] of the rows that are emitted" },
        { "round", "const u32 *", "[10] = keep, [11] = steps, [32..47] = program" },
    },
    shared = function(p)
        local list = {
            { "keys", "f32", p.row_limit * DIM }, { "queries", "f32", p.row_limit * DIM },
            { "values", "f32", p.row_limit * p.columns },
            { "decays", "f32", p.row_limit }, { "betas", "f32", p.row_limit },
            -- [side, p | o, slice, column]: the sides take turns
            { "partial", "f32", 2 * 2 * p.slices * p.columns },
        }
        if p.reload == "shared" then list[#list + 1] = { "before", "f32", DIM * p.columns } end
        return list
    end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "layer", p.layers }, { "head", p.v_heads }, { "piece", p.pieces } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    -- A step, on the path through the sum k^T S: the slice's chain, the slices, v - decay dot, beta
    -- and its product, the new state; the decay, whose error is a part of 1: its exponent (exp,
    -- sum, softplus, product) and exp. Stock (elpis.md 5.5) does the same sums; it rounds beta to
    -- bfloat16, and the output, toward zero; of its decay nothing is counted.
    claims = function(p)
        local sum = p.SLICE + p.slices - 1
        local decay = rounding.EXP + 1 + rounding.SOFTPLUS + 1 + rounding.EXP
        return { roundings = {
            { "GDN step", over = "a step's terms", repeated = true,
                ours = { r32 = sum + 1 + rounding.SIGMOID + 1 + 1 + decay },
                stock = { r32 = sum + 1 + 1 + 1, b16 = 1 } },
            { "GDN output", over = "sum of abs(q S)", ours = { r32 = sum },
                stock = { r32 = sum + 1, tb16 = 1 } },
        }, program = {
            codes = { p.ADVANCE, p.PEEK, p.RELOAD, p.REPLAY }, words = p.program_most,
        } }
    end,
    launch = function(p) return { grid = p.ctas, block = 32 * p.warps } end,
    template = "gdn_step",
}
