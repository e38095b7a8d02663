-- attention_prepare: norm, RoPE, cache and query planes of up to 8 rows of a round.
--
-- A warp does one head of one row with the functions prefill uses (templates/lib_kv.cu), so a key
-- or a value is cached in the same bits whichever phase wrote it. Queries become 16-bit integers:
--   r = H32(q) unnormalised, per group of 32: e the smallest exponent >= -64 with
--       |RN(r * 2^-e)| <= 32639
--   i = RN(r * 2^-e) = 256 h + l, two signed byte planes, slots in the order of lib_codes
--   q_scale = 2^e * f32(32^-0.5 * head_dim^-0.5 * log2(e) * 2^-bits)
-- Keys and values go to the round's own 8 rows, in cached form, where attention_decode reads them;
-- to the cache only where the round says that its rows are committed. After a verify kv_commit
-- moves the accepted rows there: the cache holds committed tokens alone.
-- Where q, k and v are one group of exact linears, the values are taken from its integer sums, two
-- blocks of 128 a head (templates/lib_linear.cu), which are cleared; those of the gates are
-- attention_combine's.
-- With an fp16 cache: q * f32(head_dim^-0.5 * log2(e)) in fp32, not rotated.
local schedule, jobs, linear = require "schedule", require "lib_jobs", require "lib_linear"
local rounding = require "lib_rounding"

local HEAD = 256

return schedule.define {
    name = "attention_prepare",
    summary = "decode: q/k norm, RoPE, KV cache codes, query planes",
    mirrors = { "attn_pre" },
    problem = {
        q_heads = "u32", kv_heads = "u32", rotary_dims = "u32", eps = "u32",
        codebook = { "none", "mul1", "mcg", "3inst" }, -- of the sums; none: values are read
    },
    numeric = { kv_bits = { 3, 2, 4, 5, 6, 7, 8, 16 }, row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { q_heads = 6, kv_heads = 1, rotary_dims = 64, eps = 0x358637bd, codebook = "mul1" },
        { q_heads = 24, kv_heads = 4, rotary_dims = 64, eps = 0x358637bd, codebook = "mul1" },
        {
            q_heads = 6, kv_heads = 1, rotary_dims = 64, eps = 0x358637bd, codebook = "3inst",
            kv_bits = 8,
        },
        {
            q_heads = 6, kv_heads = 1, rotary_dims = 64, eps = 0x358637bd, codebook = "none",
            kv_bits = 16,
        },
    },
    valid = function(p)
        if p.kv_heads == 0 or p.q_heads % p.kv_heads ~= 0 then
            return "q_heads must be a multiple of kv_heads, got " ..
                p.q_heads .. " and " .. p.kv_heads
        end
        if p.rotary_dims ~= 32 and p.rotary_dims ~= 64 and p.rotary_dims ~= 128 then
            return "rotary_dims must be 32, 64 or 128, got " .. p.rotary_dims
        end
    end,
    derive = function(p, target)
        local heads = p.q_heads + 2 * p.kv_heads
        local log2e = 1.4426950408889634
        return {
            head_dim = HEAD, heads = heads, PAGE = 256, groups = HEAD // 32, group_dims = 32,
            ctas = jobs.ctas(p, heads * p.row_limit, target),
            query_scale = p.kv_bits == 16 and HEAD ^ -0.5 * log2e
                or 32 ^ -0.5 * HEAD ^ -0.5 * log2e * 2.0 ^ -p.kv_bits,
            back = linear.back(p.codebook), out_blocks = false,
            q_width = 2 * p.q_heads * HEAD, kv_width = p.kv_heads * HEAD,
        }
    end,
    args = function(p)
        local args = p.back and {
            { "sums", "u64 *",
                "[8, qg | k | v], as their arrays are without sums; cleared but for the gates" },
            { "scales", "const u64 *", "[3 parts, 8, 2] largest exponent, Q" },
            { "svh", "const h16 * const *", "[3] -> [columns of the part]" },
        } or {
            { "qg", "const f32 *", "[rows, q_heads, query 256 | gate 256]" },
            { "k", "const f32 *", "[rows, kv_heads, 256]" },
            { "v", "const f32 *", "[rows, kv_heads, 256]" },
        }
        for _, argument in ipairs {
            { "q_norm", "const f32 *", "[256], 1 + w" },
            { "k_norm", "const f32 *", "[256], 1 + w" },
            { "frequencies", "const u64 *", "[rotary_dims / 2] fractions of a turn" },
            { "pages", "const u32 *", "[positions / 256]" },
            { "q_planes", "i8 *",
                "[2 planes, 8, q_heads, 256]; kv_bits = 16: f32 [8, q_heads, 256]" },
            { "q_scale", "f32 *", "[8, q_heads, 8]" },
            { "k_codes", "u32 *",
                "[slots, kv_heads * 8, kv_bits]; kv_bits = 16: halves [slots, kv_heads, 256]" },
            { "k_scales", "h16 *", "[slots, kv_heads * 8]" },
            { "v_codes", "u32 *", "as k_codes" },
            { "v_scales", "h16 *", "as k_scales" },
            { "own_k_codes", "u32 *", "the same of this round: slots = rows" },
            { "own_k_scales", "h16 *", "" },
            { "own_v_codes", "u32 *", "" },
            { "own_v_scales", "h16 *", "" },
            { "bad", "u32 *", "[8] sticky flags" },
            { "round", "const u32 *", "[0] = active rows, [10] = keep, [16..23] = positions" },
        } do
            args[#args + 1] = argument
        end
        return args
    end,
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.row_limit }, { "head", p.heads } }, "row")
    end,
    -- The digits of a query's group are nearer to it than binary16; none is dropped.
    -- Norm: squares, halves of a head, mean, eps, root, two products. RoPE: sine, product, fma.
    -- Stock stores both in binary16 (elpis.md 5.5); its angle, a product in fp32 whose error grows
    -- with the position, is not counted. A code's place on its grid: H32 and its factor, which the
    -- scale has too; the scale's least, its inverse, product, fma. Stock does the same (exl3.md
    -- 5.2): the code itself is what the cache is.
    claims = function(p)
        local norm = rounding.scale(rounding.BLOCK_SQUARES + 2 + 1) + 2
        local rotated = rounding.hadamard(p.group_dims) + 2
        local place = { r32 = 2 * rotated + 4 }
        return {
            digits = p.kv_bits < 16 and { size = p.group_dims, digit = linear.DIGIT, k = 0,
                drop = 0 } or nil,
            roundings = {
                { "q, k norm, RoPE", over = "abs(a) + abs(b) of a pair",
                    ours = { r32 = norm + rounding.SINE + 2 }, stock = { r32 = 2 + 2, r16 = 2 } },
                p.kv_bits < 16 and { "place of a cache code", over = "its terms", ours = place,
                    stock = place } or nil,
            },
        }
    end,
    launch = jobs.launch,
    template = "attention_prepare",
}
