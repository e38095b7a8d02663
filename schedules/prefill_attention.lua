--- prefill_attention: causal attention of a piece over the cache, tile by tile.
--
-- Tiles of 64 queries and 64 keys lie on the absolute grid: query tile t holds positions 64 t ..
-- 64 t + 63, and meets key tiles 0, 1, .. t in that order. A CTA does one query tile of `heads`
-- query heads of one kv head, so the keys and values it takes out of the cache serve all of them:
--
--     shared: queries f16 [heads * 64, head_dim], tiles of keys and values f16 [64, head_dim]
--             (swizzled), codes and scales of the tiles that come next as they are in the cache
--     warps:  row_warps a head, each 64 / row_warps query rows in m16 fragments
--
-- `tiles` says what runs beside what; every form has the same bits.
--
--     1  one tile, for keys and values in turn; codes come straight from memory. For 100 KB.
--     2  a tile of keys and one of values: each is unpacked, a few codes between two steps of a
--        product, while the other is multiplied. Codes arrive by asynchronous copies a phase ahead.
--     4  two of each: the second head runs one phase behind the first, so that one's softmax runs
--        beside the other's products:
--
--            phase          2t                       2t + 1                   2t + 2
--            head 0         S(t), softmax            O += P(t) V(t)           S(t + 1), softmax
--            head 1         O += P(t - 1) V(t - 1)   S(t), softmax            O += P(t) V(t)
--            all unpack     V(t)                     K(t + 1)                 V(t + 1)
--            codes arrive   K(t + 1)                 V(t + 1)                 K(t + 2)
--
-- Per key tile: codes -> f16 in the rotated basis, RN16((2c - (2m - 1)) * (scale / 2m)) with
-- m = 2^(bits-1) (spec exl3.md 5.4); S = Q K^T; online softmax in base 2, c = head_dim^-0.5 *
-- log2(e): new maximum of S, p = 2^fma(S, c, -maximum c), l and O times 2^((old - new) c),
-- l += sum p; P as f16; O += P V. At the end O / l, rotation H32/sqrt(32), times sigmoid(gate).
--
-- With score_bits = 8 (`--prefill int8-qk`) S is made of signed bytes instead, n8k32 products with
-- i32 sums; all else is as above. The idea is elpis.md 4.3's:
--
--     query row   qb = rint(q * RN(127 / A)), A the row's largest |q|; its unit is A / 127
--     key         kb = rint((2c - (2m - 1)) * RN(s * i)), s the group's scale, s' the largest of
--                 the key's groups, i about K / s', K = floor(127 / (2m - 1)), with 8 bits
--                 127 / 255; its unit is s' / (2m K). In a group with the largest scale kb is K
--                 times the code's odd number, exactly (up to 7 bits).
--     score       S = RN(n s'), n = sum qb kb; a row's factor for the softmax, in place of c, is
--                 RN(A * (c / (127 K 2m)))
--
-- |qb| <= 127, and |kb| <= 126, 126, 120, 124, 126, 127, 127 for 2 .. 8 bits, so |n| <= 256 * 127 *
-- 127 < 2^22: sums are exact in i32, and, begun at the word of 1.5 * 2^23, they are the bits of
-- the f32 1.5 * 2^23 + n, without a conversion. Bytes are the low bits of an fma with 1.5 * 2^23,
-- one rounding, to nearest even. i is made by fixed fma steps, so all of it has the same bits on
-- every device. Half a unit of each is the error: S in units of both is off q.k by at most e sum|k|
-- + f sum|q| + dims e f, e = (1/2 + 2^-14) A / 127, f = (1/2 + 2^-14) s' / (2m K), and 2^-20 |q||k|
-- of fp32's own. Q and K take half the shared memory: tiles = 2 fits 100 KB with 2 heads.
--
-- A row's result depends on its own query, its place in its tile, and the cache. Keys behind the
-- query are selected away; slots behind the piece are read as zeros. Rows past `rows` are zeros.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

local KEYS = 64 -- keys of a tile

local function example(q_heads, kv_heads, kv_bits, score_bits)
    return {
        q_heads = q_heads, kv_heads = kv_heads, head_dim = 256, kv_bits = kv_bits,
        rows_max = 2048, score_bits = score_bits,
    }
end

return schedule.define {
    name = "prefill_attention",
    summary = "prefill: causal attention over the coded cache, gate",
    mirrors = {},
    problem = {
        q_heads = "u32", kv_heads = "u32", head_dim = "u32", kv_bits = "u32", rows_max = "u32",
    },
    numeric = { score_bits = { 16, 8 } },
    tuning = {
        heads = { 2, 1 },
        tiles = { 4, 2, 1 },
        ctas_per_sm = { 1, 2 },
        row_warps = function(p, target) return target.name == "host" and { 1, 2, 4 } or { 4 } end,
        map = { "strided", "contiguous" },
    },
    examples = {
        example(6, 1, 3, 16), example(6, 1, 16, 16), example(24, 4, 3, 16), example(24, 4, 8, 16),
        example(6, 1, 3, 8), example(24, 4, 3, 8), example(24, 4, 8, 8),
    },
    valid = function(p, target)
        if p.head_dim % 128 ~= 0 or p.head_dim > 256 then
            return "head_dim must be 128 or 256, got " .. p.head_dim
        end
        if p.kv_bits ~= 16 and (p.kv_bits < 2 or p.kv_bits > 8) then
            return "kv_bits must be 2..8 or 16, got " .. p.kv_bits
        end
        if p.score_bits == 8 and p.kv_bits == 16 then
            return "scores of int8 take the keys of a cache of 2..8 bits, got kv_bits = 16"
        end
        if p.q_heads % p.kv_heads ~= 0 then
            return "q_heads must be a multiple of kv_heads, got " .. p.q_heads
        end
        if p.q_heads // p.kv_heads % p.heads ~= 0 then
            return "heads must divide the heads of a kv head"
        end
        if p.tiles == 4 and p.heads ~= 2 then
            return "tiles = 4 has two heads take turns"
        end
        if p.tiles == 1 and p.heads == 1 and target.name ~= "host" then
            return "one tile and one head spill registers"
        end
        local pairs_of_heads = p.q_heads // p.kv_heads % 2 == 0
        if p.score_bits == 8 and p.kv_bits <= 4 and target.name ~= "host" and
            (p.tiles == 1 or p.heads == 1 and pairs_of_heads) then
            return "scores of int8, up to 4 bits: two tiles, two heads fit, less spills registers"
        end
        if 32 * p.heads * p.row_warps * p.ctas_per_sm > 256 then
            return "more than 256 threads on an SM leave too few registers"
        end
        return rows.check(p)
    end,
    derive = function(p, target)
        local jobs = p.rows_max // rows.BAND * (p.q_heads // p.heads)
        return {
            BAND = rows.BAND, KEYS = KEYS, PAGE = 256, groups = p.head_dim // 32,
            pieces = p.head_dim // 8,                 -- 16-byte pieces of a row of halves
            key_pieces = p.head_dim * p.score_bits // 128, -- of a row of queries or keys
            key_steps = p.head_dim * p.score_bits // 256,  -- k steps of Q K^T
            KEY_STEPS = p.kv_bits < 8 and 127 // ((1 << p.kv_bits) - 1) or 127 / 255,
            fragments = rows.BAND // p.row_warps // 16, -- m16 fragments of a warp
            key_fragments = KEYS // 8,                -- n8 fragments of S
            blocks = p.head_dim // 64,                -- blocks of 8 n8 fragments of O
            gqa = p.q_heads // p.kv_heads, head_groups = p.q_heads // p.heads,
            warps = p.heads * p.row_warps, threads = 32 * p.heads * p.row_warps,
            units = KEYS // 8 * (p.head_dim // 64) // (p.heads * p.row_warps), -- of a warp
            key_units = KEYS // 8 * (p.head_dim // 128) // (p.heads * p.row_warps), -- of bytes
            ctas = rows.ctas(jobs, 1, target, p.ctas_per_sm),
        }
    end,
    args = {
        { "q", "const h16 *", "[rows in bands of 64, q_heads, head_dim]" },
        { "qg", "const f32 *", "[rows, q_heads, 2 * head_dim]: the gates" },
        { "k_codes", "const u32 *", "[slots, kv_heads * head_dim / 32, kv_bits]; 16: halves" },
        { "k_scales", "const h16 *", "[slots, kv_heads * head_dim / 32]; kv_bits = 16: 0" },
        { "v_codes", "const u32 *", "as k_codes" },
        { "v_scales", "const h16 *", "as k_scales" },
        { "pages", "const u32 *", "[positions / 256] page of each 256 positions" },
        { "out", "f32 *", "[rows in bands of 64, q_heads * head_dim]" },
        { "rows", "u32", "active rows" },
        { "first", "u32", "absolute position of row 0, a multiple of 64" },
    },
    shared = function(p)
        local copies, row = math.max(p.tiles // 2, 1), p.key_pieces * 8 -- of keys, in halves
        local keys = p.tiles == 1 and p.head_dim or row
        local list = {
            { "queries", "h16", p.heads * p.BAND * row },
            { "key_tile", "h16", copies * p.KEYS * keys },
        }
        if p.score_bits == 8 then
            list[#list + 1] = { "query_units", "f32", p.heads * p.BAND }
            list[#list + 1] = { "key_scales", "f32", copies * p.KEYS * 2 }
        end
        if p.tiles > 1 then
            list[#list + 1] = { "value_tile", "h16", copies * p.KEYS * p.head_dim }
            if p.kv_bits < 16 then
                local words = KEYS * (p.groups * p.kv_bits + 4)
                list[#list + 1] = { "key_codes", "u32", words }
                list[#list + 1] = { "value_codes", "u32", words }
            end
        end
        return list
    end,
    maps = function(p)
        return {
            jobs = work.map {
                space = {
                    { "band", rows.tiles(p.rows_max, rows.BAND) }, { "head_group", p.head_groups },
                },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = p.threads } end,
    claims = function(p)
        if p.score_bits == 16 then return {} end
        local product = 127 * 127
        return {
            sums = {
                { "score", "i32", p.head_dim, product },
                -- |sum| * 2^9 < 2^31: below 2^22, where 1.5 * 2^23 + sum has a bit for each 1
                { "score in f32", "i32", p.head_dim, product << 9 },
            },
        }
    end,
    template = "prefill_attention",
}
