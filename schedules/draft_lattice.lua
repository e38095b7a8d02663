-- draft_lattice: scores of every candidate after every predecessor (dflash2.md 3.7).
--
--   row 0                   candidates of drafted row 0 after the anchor
--   row 1 + 16 (d - 1) + i  candidates of drafted row d = 1..6 after candidate i of row d - 1
--   S = U + sum over r of (A[a, r] * g[r]) * B[b, r]
--
-- Lane l of a warp sums elements 8 c + {0..7} of the chunks c = l, l + 32, ascending, by fma from
-- 0; a xor butterfly adds the lanes, then U is added. Rank 0: a draft without a selector, S = U.
-- -infinity where the candidate's value is -infinity, the candidate or the predecessor is none
-- (0xffffffff), or the sum is NaN.
--
-- One job is `part` candidates of one row, by one warp.
local schedule, work = require "schedule", require "work"

local ROWS = 97 -- 1 + 6 * 16
local TOP = 16
local WARP = 32
local CHUNK = 8 -- elements that a lane reads at once

return schedule.define {
    name = "draft_lattice",
    summary = "scores of all candidates of a draft after all predecessors",
    mirrors = {},
    problem = { rank = "u32", gate_stride = "u32", dtype = { "BF16", "F16", "F32" } },
    tuning = {
        warps = { 4, 1, 2, 8 }, part = { 4, 8, 2, 16 }, map = { "strided", "contiguous" },
    },
    examples = {
        { rank = 32, gate_stride = 128, dtype = "BF16" },
        { rank = 256, gate_stride = 256, dtype = "BF16" },
        { rank = 0, gate_stride = 0, dtype = "BF16" },
        { rank = 512, gate_stride = 512, dtype = "F32" },
        { rank = 264, gate_stride = 264, dtype = "F16" },
    },
    valid = function(p)
        if p.rank % CHUNK ~= 0 or p.rank > 512 then
            return "rank must be a multiple of 8, at most 512, got " .. p.rank
        end
        if p.gate_stride < p.rank or p.gate_stride % 4 ~= 0 then
            return "gate_stride must be a multiple of 4, at least rank, got " .. p.gate_stride
        end
    end,
    derive = function(p)
        local parts = TOP // p.part
        return {
            TOP = TOP, WARP = WARP, CHUNK = CHUNK, parts = parts,
            chunks = p.rank // CHUNK, turns = (p.rank // CHUNK + WARP - 1) // WARP,
            ctas = (ROWS * parts + p.warps - 1) // p.warps,
            element_bytes = p.dtype == "F32" and 4 or 2,
        }
    end,
    args = {
        { "values", "const f32 *", "[7, 16]: U" },
        { "ids", "const u32 *", "[7, 16]" },
        { "gate", "const f32 *", "[8, gate_stride]: g, row 0 unused" },
        { "predecessors", "const void *", "[vocab, rank] of dtype: A" },
        { "successors", "const void *", "[vocab, rank] of dtype: B" },
        { "scores", "f32 *", "[97, 16]" },
        { "round", "const u32 *", "[2] = token of the anchor" },
    },
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "row", ROWS }, { "piece", p.parts } },
                over = "warps", workers = p.ctas * p.warps, warps = p.warps,
                partition = p.map, reduction = "none", row = "row",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = WARP * p.warps } end,
    template = "draft_lattice",
}
