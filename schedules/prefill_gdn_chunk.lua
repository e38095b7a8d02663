--- prefill_gdn_chunk: the part of the chunked delta rule that needs no state, all chunks at once.
--
-- Per value head and chunk of 64 rows (spec qwen3_5.md 3.3, chunked form; row t inside the chunk):
--   G_t = g_0 + .. + g_t                        added in that order
--   A_ij = beta_i (k_i . k_j) exp(G_i - G_j)    j < i
--   P_ij = (q_i . k_j) exp(G_i - G_j)           j <= i, 0 behind (q holds 128^-0.5 already)
--   T = (I + A)^-1                              in f32: blocks of 16 rows on the diagonal by
--                                               forward substitution, then joined in pairs
--   U = (T diag(beta)) V,  W = (T diag(beta exp(G))) K
-- Dots, U and W are sums on tensor cores over 16 elements a step, of factors that are split into
-- two halves (lib_split.cu). |T|, |W| <= 1, because a step of the delta rule never makes a state
-- longer; a column of V is brought near 2^14 by a power of two of its own.
--
-- A CTA of 8 warps does one chunk of one key head: k and q, split, in shared memory; warps 0..3
-- make the dots of k, 4..7 those of q, 16 rows a warp. Then, `together` value heads at a time: A
-- into shared memory, T beside it in the half that A leaves, and head after head T's blocks as
-- factors and 16 columns of U and W a warp. q and k are given back in place as prefill_gdn_scan
-- wants them: split, times 2^14, in fragment order, as are P and W.
-- Rows past the piece have k = v = beta = 0 and g = 0, and leave zeros.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

local WARPS = 8            -- one for each 16 of the 128 columns of U and W
local BLOCKS = 10          -- of 16 x 16, on and below the diagonal of 64 x 64

return schedule.define {
    name = "prefill_gdn_chunk",
    summary = "prefill: chunked delta rule, state-free part",
    mirrors = {},
    problem = { k_heads = "u32", v_heads = "u32", rows_max = "u32" },
    numeric = {},
    tuning = {
        together = function(p, target)
            local group = p.v_heads // math.max(p.k_heads, 1)
            if group > 2 and target.shared_per_block >= 120000 then
                return { math.min(group, 4), 2, 1 }
            end
            return group > 1 and { 2, 1 } or { 1 }
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
        return {
            CHUNK = rows.BAND, DIM = rows.BLOCK, threads = 32 * WARPS,
            stride = rows.BAND + 4, -- words between columns of A
            group = p.v_heads // p.k_heads, blocks = BLOCKS, words = rows.SPLIT,
            attention_words = BLOCKS * rows.SPLIT, TILE = 16,
            sums = 32, -- a lane's part of 16 x 64 sums
            fades_count = rows.BAND + 16 + 32 + 48,
            ctas = rows.ctas(p.rows_max // rows.BAND * p.k_heads, 1, target, 2),
        }
    end,
    args = {
        { "q", "f32 *", "[rows in bands of 64, k_heads, 128]; split in place" },
        { "k", "f32 *", "[rows in bands of 64, k_heads, 128]; split in place" },
        { "v", "const f32 *", "[rows in bands of 64, v_heads, 128]" },
        { "beta", "const f32 *", "[rows in bands of 64, v_heads]" },
        { "g", "const f32 *", "[rows in bands of 64, v_heads]" },
        { "u", "f32 *", "[bands, v_heads, 8 of 16 columns, 8 of 8 rows, 32 lanes, 4]" },
        { "w", "u32 *", "[bands, v_heads, 8 key x 4 row x 2, 128]" },
        { "attention", "u32 *", "[bands, v_heads, 10 blocks, 256]: P" },
        { "decay", "f32 *", "[bands, v_heads, 2, 64]: exp(G_t), exp(G_63 - G_t)" },
        { "rows", "u32", "active rows" },
    },
    shared = function(p)
        local scratch = math.max(p.CHUNK * p.DIM, p.together * p.CHUNK * p.stride)
        return {
            { "keys", "u32", p.CHUNK * p.DIM },
            { "scratch", "u32", scratch }, -- q; then A and T of the heads solved together
            { "factors", "u32", 2 * BLOCKS * rows.SPLIT }, -- T diag(beta), T diag(beta exp(G))
            { "log_decay", "f32", p.group * p.CHUNK }, -- G
            { "strength", "f32", p.group * p.CHUNK },  -- beta
            { "entry", "f32", p.group * p.CHUNK },     -- beta exp(G)
            { "fades", "f32", p.group * p.fades_count }, -- g; then decays between rows
        }
    end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "band", rows.tiles(p.rows_max, p.CHUNK) }, { "key_head", p.k_heads } },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p, target)
        -- dots that outlive a turn need more than the half of the registers
        local two = target.shared_per_block >= 120000 and p.together >= p.group and p.group < 4
        return { grid = p.ctas, block = p.threads, min_ctas = two and 2 or 1 }
    end,
    template = "prefill_gdn_chunk",
}
