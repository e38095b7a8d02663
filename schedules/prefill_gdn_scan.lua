--- prefill_gdn_scan: the part of the chunked delta rule that carries the state over the chunks.
--
-- Per value head and slice of `columns` value columns, chunk after chunk (spec qwen3_5.md 3.3;
-- U, W, P and decays from prefill_gdn_chunk, G the chunk's cumulated log decay):
--   V' = U - W S                         over the 128 key elements ascending, fma from U
--   O  = exp(G_t) (Q S) + P V'           Q S by fma from 0; then one fma a row of V', ascending
--   S  = exp(G_63) S + K^T (exp(G_63 - G_t) V')    one fma a row, ascending
-- State: f32 [v_heads, 128 key, 128 value] (qwen3_5.md 4).
--
-- A CTA owns a slice for the whole piece: S in shared memory, threads (y, x) of 16 x columns/wide:
-- thread makes 4 rows x `wide` columns of V' and O, then 8 key rows x `wide` columns of S.
-- Rows past the piece: k = v = beta = 0, g = 0 keep the state as it is.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

local SIDE = 16

return schedule.define {
    name = "prefill_gdn_scan",
    summary = "prefill: chunked delta rule, state over the chunks",
    mirrors = {},
    problem = { k_heads = "u32", v_heads = "u32", rows_max = "u32" },
    numeric = {},
    tuning = {
        columns = function(p, target)
            return target.name == "host" and { 64, 32, 128 } or { 32, 16, 64 }
        end,
        wide = function(p, target) return target.name == "host" and { 16, 8, 4 } or { 4 } end,
        map = { "contiguous", "strided" },
    },
    examples = {
        { k_heads = 2, v_heads = 6, rows_max = 2048 },
        { k_heads = 16, v_heads = 48, rows_max = 2048 },
    },
    valid = function(p)
        if p.k_heads == 0 or p.v_heads % p.k_heads ~= 0 then
            return "v_heads must be a multiple of k_heads = " .. p.k_heads .. ", got " .. p.v_heads
        end
        if SIDE * p.columns // p.wide % 32 ~= 0 then return "threads must fill warps" end
        return rows.check(p)
    end,
    derive = function(p, target)
        local jobs = p.v_heads * (rows.BLOCK // p.columns)
        return {
            CHUNK = rows.BAND, DIM = rows.BLOCK, SIDE = SIDE, slices = rows.BLOCK // p.columns,
            threads = SIDE * p.columns // p.wide, group = p.v_heads // p.k_heads,
            tall = rows.BAND // SIDE,      -- rows of a thread's part of V' and O
            deep = rows.BLOCK // SIDE,     -- key rows of a thread's part of S
            ctas = rows.ctas(jobs, 1, target, 3),
        }
    end,
    args = {
        { "q", "const f32 *", "[rows in bands of 64, k_heads, 128]" },
        { "k", "const f32 *", "[rows in bands of 64, k_heads, 128]" },
        { "u", "const f32 *", "[bands, v_heads, 64, 128]" },
        { "w", "const f32 *", "[bands, v_heads, 64, 128]" },
        { "attention", "const f32 *", "[bands, v_heads, 64, 64]" },
        { "decay", "const f32 *", "[bands, v_heads, 2, 64]" },
        { "state", "f32 *", "[v_heads, 128 key, 128 value]; moved on" },
        { "o", "f32 *", "[rows in bands of 64, v_heads, 128]" },
        { "rows", "u32", "active rows" },
    },
    shared = function(p)
        return {
            { "held", "f32", p.DIM * p.columns },     -- S
            { "fresh", "f32", p.CHUNK * p.columns },  -- V'
            { "faded", "f32", p.CHUNK * p.columns },  -- exp(G_63 - G_t) V'
        }
    end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "head", p.v_heads }, { "part", p.slices } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p)
        return { grid = p.ctas, block = p.threads, min_ctas = p.threads <= 128 and 3 or 1 }
    end,
    template = "prefill_gdn_scan",
}
