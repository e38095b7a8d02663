--- prefill_attention_prepare: norm, RoPE and cache of a piece's queries, keys and values.
--
-- A warp does one head of one row (templates/lib_kv.cu, shared with the decode kernel):
--   query  norm (1 + w), RoPE, rotation H32/sqrt(32) where the cache is coded, f16 to `q`
--   key    norm (1 + w), RoPE, f16, coded into the cache
--   value  f16, coded into the cache
-- The cache has pages of 256 slots; slot of position p = pages[p / 256] * 256 + p % 256
-- (spec exl3.md 5.1). kv_bits = 16 keeps halves [slots, kv_heads * head_dim] and no scales.
-- q_proj interleaves per head: query, then gate (spec qwen3_5.md 3.2). Rows past `rows`: zero
-- queries, no cache.
local schedule, jobs = require "schedule", require "lib_jobs"
local rows = require "lib_rows"

local function example(q_heads, kv_heads, kv_bits)
    return {
        q_heads = q_heads, kv_heads = kv_heads, head_dim = 256, rotary_dims = 64,
        kv_bits = kv_bits, rows_max = 2048, eps = 0x358637bd,
    }
end

return schedule.define {
    name = "prefill_attention_prepare",
    summary = "prefill: q/k norm, RoPE, KV cache codes",
    mirrors = {},
    problem = {
        q_heads = "u32", kv_heads = "u32", head_dim = "u32", rotary_dims = "u32", kv_bits = "u32",
        rows_max = "u32", eps = "u32",
    },
    numeric = {},
    tuning = { warps = { 4, 8, 2 }, map = { "contiguous", "strided" } },
    examples = {
        example(6, 1, 3), example(6, 1, 16), example(24, 4, 3), example(24, 4, 8),
    },
    valid = function(p)
        if p.head_dim ~= 256 and p.head_dim ~= 128 then
            return "head_dim must be 128 or 256, got " .. p.head_dim
        end
        if p.rotary_dims ~= 32 and p.rotary_dims ~= 64 and p.rotary_dims ~= 128 then
            return "rotary_dims must be 32, 64 or 128, got " .. p.rotary_dims
        end
        if p.kv_bits ~= 16 and (p.kv_bits < 2 or p.kv_bits > 8) then
            return "kv_bits must be 2..8 or 16, got " .. p.kv_bits
        end
        if p.q_heads % p.kv_heads ~= 0 then
            return "q_heads must be a multiple of kv_heads, got " .. p.q_heads
        end
        return rows.check(p)
    end,
    derive = function(p, target)
        local heads = p.q_heads + 2 * p.kv_heads
        return {
            heads = heads, PAGE = 256, groups = p.head_dim // 32, HALF = rows.BLOCK,
            ctas = rows.ctas(p.rows_max * heads, p.warps, target, 8),
        }
    end,
    args = {
        { "qg", "const f32 *", "[rows, q_heads, 2 * head_dim] query and gate" },
        { "k", "const f32 *", "[rows, kv_heads, head_dim]" },
        { "v", "const f32 *", "[rows, kv_heads, head_dim]" },
        { "q_norm", "const f32 *", "[head_dim], 1 + w" },
        { "k_norm", "const f32 *", "[head_dim], 1 + w" },
        { "frequencies", "const u64 *", "[rotary_dims / 2] fractions of a turn" },
        { "pages", "const u32 *", "[positions / 256] page of each 256 positions" },
        { "q", "h16 *", "[rows in bands of 64, q_heads, head_dim]" },
        { "k_codes", "u32 *", "[slots, kv_heads * head_dim / 32, kv_bits]; kv_bits = 16: halves" },
        { "k_scales", "h16 *", "[slots, kv_heads * head_dim / 32]; kv_bits = 16: 0" },
        { "v_codes", "u32 *", "as k_codes" },
        { "v_scales", "h16 *", "as k_scales" },
        { "rows", "u32", "active rows" },
        { "first", "u32", "absolute position of row 0" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", rows.padded(p.rows_max) }, { "head", p.heads } }, "row")
    end,
    launch = jobs.launch,
    template = "prefill_attention_prepare",
}
