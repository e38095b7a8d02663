-- kv_commit: keys and values of the accepted rows into the cache, all attention layers.
--
-- A verify leaves its keys and values, in cached form, in 8 rows of its own. The commit's
-- descriptor (core/engine/tree.h) names the rows that follow; row [64 + j] becomes position base +
-- j. One job is one head of one committed row of one layer: u32 words of codes, halves of scales,
-- copied.
local schedule, jobs = require "schedule", require "lib_jobs"

local PAGE, HEAD, GROUP = 256, 256, 32

return schedule.define {
    name = "kv_commit",
    summary = "keys and values of the accepted rows into the cache, all layers",
    mirrors = { "kv_compact" },
    problem = { kv_heads = "u32", layers = "u32" },
    numeric = { kv_bits = { 3, 2, 4, 5, 6, 7, 8, 16 }, row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { kv_heads = 1, layers = 2 }, { kv_heads = 4, layers = 16 },
        { kv_heads = 4, layers = 16, kv_bits = 16 },
    },
    valid = function(p)
        if p.kv_heads < 1 or p.layers < 1 then
            return "kv_heads and layers must be at least 1, got " ..
                p.kv_heads .. " and " .. p.layers
        end
    end,
    derive = function(p, target)
        return {
            PAGE = PAGE, sources = 64, scales = p.kv_bits == 16 and 0 or HEAD // GROUP,
            words = p.kv_bits == 16 and HEAD // 2 or HEAD // GROUP * p.kv_bits,
            ctas = jobs.ctas(p, p.layers * p.row_limit * p.kv_heads, target),
        }
    end,
    args = {
        { "caches", "const u64 *",
            "[layers, 4]: addresses of k_codes, k_scales, v_codes, v_scales" },
        { "own", "const u64 *", "[layers, 4]: the same of the round's own rows" },
        { "pages", "const u32 *", "[context/256]" },
        { "round", "const u32 *", "[0] = committed rows, [1] = base, [64..71] = their rows" },
    },
    maps = function(p)
        return jobs.maps(p, {
            { "layer", p.layers }, { "row", "rows", max = p.row_limit },
            { "head", p.kv_heads },
        }, "row")
    end,
    launch = jobs.launch,
    template = "kv_commit",
}
