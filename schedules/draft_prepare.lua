-- draft_prepare: norm, RoPE and the ring of keys and values of the draft (dflash2.md 3.3, 3.4).
--
-- A warp does one head of one row with the functions of templates/lib_kv.cu: weights as stored, all
-- 128 dims turned in pairs (t, t + 64) by the row's position. Keys and values are kept as halves,
-- clamped to +-65504. A layer's ring:
--
--     slot   0 .. capacity - 1          position mod capacity: tokens whose taps are known
--     slot   capacity .. capacity + 7   the block's rows, for their own round only
--
-- mode "context" writes the former, mode "block" the latter and makes the block's queries, times
-- f32(128^-0.5 * log2(e)).
local schedule, jobs = require "schedule", require "lib_jobs"

local HEAD = 128

return schedule.define {
    name = "draft_prepare",
    summary = "draft: q/k norm, RoPE, keys and values into the ring",
    mirrors = {},
    problem = {
        q_heads = "u32", kv_heads = "u32", capacity = "u32", eps = "u32",
        mode = { "block", "context" },
    },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { q_heads = 4, kv_heads = 1, capacity = 128, eps = 0x358637bd, mode = "block" },
        { q_heads = 32, kv_heads = 8, capacity = 2048, eps = 0x358637bd, mode = "block" },
        { q_heads = 32, kv_heads = 8, capacity = 2048, eps = 0x358637bd, mode = "context" },
    },
    valid = function(p)
        if p.kv_heads == 0 or p.q_heads == 0 or p.q_heads % p.kv_heads ~= 0 then
            return "q_heads must be a multiple of kv_heads, got " ..
                p.q_heads .. " and " .. p.kv_heads
        end
        if p.capacity == 0 then return "capacity must be at least 1" end
    end,
    derive = function(p, target)
        local queries = p.mode == "block" and p.q_heads or 0
        local heads = queries + 2 * p.kv_heads
        return {
            head_dim = HEAD, rotary_dims = HEAD, kv_bits = 16, -- of lib_kv
            queries = queries, heads = heads, ctas = jobs.ctas(p, heads * p.row_limit, target),
            query_scale = HEAD ^ -0.5 * 1.4426950408889634,
        }
    end,
    args = {
        { "q", "const f32 *", "[8, q_heads, 128]; of block" },
        { "k", "const f32 *", "[8, kv_heads, 128]" },
        { "v", "const f32 *", "[8, kv_heads, 128]" },
        { "q_norm", "const f32 *", "[128]; of block" },
        { "k_norm", "const f32 *", "[128]" },
        { "frequencies", "const u64 *", "[64] fractions of a turn" },
        { "q_out", "f32 *", "[8, q_heads, 128]; of block" },
        { "ring_k", "h16 *", "[capacity + 8, kv_heads, 128]" },
        { "ring_v", "h16 *", "[capacity + 8, kv_heads, 128]" },
        { "round", "const u32 *", "[0] = rows, [16..23] = positions" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.row_limit }, { "head", p.heads } }, "row")
    end,
    launch = jobs.launch,
    template = "draft_prepare",
}
