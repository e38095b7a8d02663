--- prefill_gdn_chunk: the part of the chunked delta rule that needs no state, all chunks at once.
--
-- Per value head and chunk of 64 rows (spec qwen3_5.md 3.3, chunked form; row t inside the chunk):
--   G_t = g_0 + .. + g_t                        added in that order
--   A_ij = beta_i (k_i . k_j) exp(G_i - G_j)    j < i
--   P_ij = (q_i . k_j) exp(G_i - G_j)           j <= i, 0 behind (q holds 128^-0.5 already)
--   (I + A) [U | W] = [diag(beta) V | diag(beta exp(G)) K]    forward substitution, rows ascending
-- Dots run over the 128 elements ascending by fma; the substitution subtracts rows ascending, too.
--
-- A CTA of 256 threads does one chunk of one head: first thread (y, x) of 16 x 16 makes A and P at
-- rows y + 16 a, columns x + 16 b from slices of k and q in shared memory; then thread c solves
-- column c of [U | W], `block` rows at a time in registers, reading back its own solved column.
-- Rows past the piece have k = v = beta = 0 and g = 0, and leave zeros.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

local SIDE = 16

return schedule.define {
    name = "prefill_gdn_chunk",
    summary = "prefill: chunked delta rule, state-free part",
    mirrors = {},
    problem = { k_heads = "u32", v_heads = "u32", rows_max = "u32" },
    numeric = {},
    tuning = { slice = { 32, 64, 16 }, block = { 16, 8 }, map = { "contiguous", "strided" } },
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
        return {
            CHUNK = rows.BAND, DIM = rows.BLOCK, SIDE = SIDE, threads = SIDE * SIDE,
            span = rows.BAND // SIDE,           -- outputs of a thread along each side
            slice_stride = p.slice + 1,         -- words between staged rows: 1 spreads the banks
            column_stride = rows.BAND + 4,      -- words between columns of A, stored by columns
            group = p.v_heads // p.k_heads,
            ctas = rows.ctas(p.rows_max // rows.BAND * p.v_heads, 1, target, 2),
        }
    end,
    args = {
        { "q", "const f32 *", "[rows in bands of 64, k_heads, 128]" },
        { "k", "const f32 *", "[rows in bands of 64, k_heads, 128]" },
        { "v", "const f32 *", "[rows in bands of 64, v_heads, 128]" },
        { "beta", "const f32 *", "[rows in bands of 64, v_heads]" },
        { "g", "const f32 *", "[rows in bands of 64, v_heads]" },
        { "u", "f32 *", "[bands, v_heads, 64, 128]" },
        { "w", "f32 *", "[bands, v_heads, 64, 128]" },
        { "attention", "f32 *", "[bands, v_heads, 64, 64]: P" },
        { "decay", "f32 *", "[bands, v_heads, 2, 64]: exp(G_t), exp(G_63 - G_t)" },
        { "rows", "u32", "active rows" },
    },
    shared = function(p)
        return {
            { "keys", "f32", p.CHUNK * p.slice_stride },
            { "queries", "f32", p.CHUNK * p.slice_stride },
            { "coupling", "f32", p.CHUNK * p.column_stride }, -- A by columns
            { "log_decay", "f32", p.CHUNK },                  -- G
            { "strength", "f32", p.CHUNK },                   -- beta
        }
    end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "band", rows.tiles(p.rows_max, p.CHUNK) }, { "head", p.v_heads } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = p.threads, min_ctas = 2 } end,
    template = "prefill_gdn_chunk",
}
