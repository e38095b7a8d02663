--- prefill_gdn_scan: the part of the chunked delta rule that carries the state over the chunks.
--
-- Per value head and slice of value columns, chunk after chunk (spec qwen3_5.md 3.3; U, W, P and
-- decays from prefill_gdn_chunk, G the chunk's cumulated log decay):
--   V' = U - W S
--   O  = exp(G_t) (Q S) + P V'
--   S  = exp(G_63) S + K^T (exp(G_63 - G_t) V')
-- State: f32 [v_heads, 128 key, 128 value] (qwen3_5.md 4).
--
-- All on tensor cores, every factor split into two halves (lib_split.cu); sums over 16 elements a
-- step, steps ascending, from 0, and one f32 fma brings them to U, O and S. S and V' are split
-- after a power of two a column has brought their largest element near 2^14; the others have
-- bounds (all <= 1 by what they are) and come as 2^14 times their value.
--
-- A warp owns 16 value columns for the whole piece and works on transposed matrices: S^T as 16
-- fragments of 16 columns x 8 keys in registers. What a product leaves in registers is then what
-- the next one takes as its left side, S^T -> V'^T -> S^T: nothing of it passes through shared
-- memory, and warps wait for each other only where operands are fetched. The right sides W, Q, P,
-- K are the same for all columns of a head; they lie in fragment order, block after block
--   [16 x 16 elements] -> u32 [2 high, low][32 lanes][4 words], two fragments of 8 columns
-- and pass through a ring of `slots` operands in shared memory, in the order W, Q, K.
-- Rows past the piece: k = v = beta = 0, g = 0 keep the state as it is.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

local ATTENTION = 10 * rows.SPLIT -- words of P: its blocks on and below the diagonal

return schedule.define {
    name = "prefill_gdn_scan",
    summary = "prefill: chunked delta rule, state over the chunks",
    mirrors = {},
    problem = { k_heads = "u32", v_heads = "u32", rows_max = "u32" },
    numeric = {},
    tuning = {
        warps = { 4, 8, 2 },
        slots = function(p, target)
            return target.shared_per_block < 150000 and { 2, 3 } or { 4, 3, 5, 2 }
        end,
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
        return rows.check(p)
    end,
    derive = function(p, target)
        local columns = 16 * p.warps
        local jobs = p.v_heads * (rows.BLOCK // columns)
        return {
            CHUNK = rows.BAND, DIM = rows.BLOCK, columns = columns, threads = 32 * p.warps,
            slices = rows.BLOCK // columns, group = p.v_heads // p.k_heads,
            attention_words = ATTENTION,
            words = rows.SPLIT, sums = 32, held = 64, -- a lane's part of V' or O, and of S
            beside = ATTENTION + 2 * rows.BAND,
            ctas = rows.ctas(jobs, 1, target, 2),
        }
    end,
    args = {
        { "q", "const u32 *", "[bands, 64 blocks: 8 key x 4 row x 2, k_heads, 128]" },
        { "k", "const u32 *", "[bands, 64 blocks: 4 row x 8 key x 2, k_heads, 128]" },
        { "u", "const f32 *", "[bands, v_heads, 8 of 16 columns, 8 of 8 rows, 32 lanes, 4]" },
        { "w", "const u32 *", "[bands, v_heads, 8 key x 4 row x 2, 128]" },
        { "attention", "const u32 *", "[bands, v_heads, 10 blocks up to the diagonal, 256]" },
        { "decay", "const f32 *", "[bands, v_heads, 2, 64]" },
        { "state", "f32 *", "[v_heads, 128 key, 128 value]; moved on" },
        { "o", "f32 *", "[rows in bands of 64, v_heads, 128]" },
        { "rows", "u32", "active rows" },
    },
    shared = function(p)
        return {
            { "ring", "u32", p.slots * p.CHUNK * p.DIM },
            { "beside", "u32", 2 * p.beside }, -- P and decays of this chunk and of the next
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
    launch = function(p) return { grid = p.ctas, block = p.threads } end,
    template = "prefill_gdn_scan",
}
