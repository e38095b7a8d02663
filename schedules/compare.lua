-- compare: how many words of two buffers differ. For the tuner, which compares what a kernel of
-- another tuning left with what the default leaves. One job is a chunk of 1024 words.
local schedule, jobs = require "schedule", require "lib_jobs"

local CHUNK = 1024
local MOST = 1 << 24 -- chunks: 64 GiB

return schedule.define {
    name = "compare",
    summary = "words of two buffers that differ",
    mirrors = {},
    problem = {},
    tuning = { warps = { 8, 4, 2, 1 }, map = { "strided", "contiguous" } },
    examples = { {} },
    derive = function(_, target) return { CHUNK = CHUNK, WARP = 32, ctas = target.sms * 8 } end,
    args = {
        { "a", "const u32 *", "[words]" },
        { "b", "const u32 *", "[words]" },
        { "words", "u64", "of each" },
        { "chunks", "u32", "words / 1024, rounded up" },
        { "different", "u32 *", "[1] their number, added to" },
    },
    maps = function(p) return jobs.maps(p, { { "chunk", "chunks", max = MOST } }) end,
    launch = jobs.launch,
    exports = function() return { chunk = CHUNK } end,
    template = "compare",
}
