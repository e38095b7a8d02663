-- trellis_pack: an EXL3 matrix as in the file -> packs of four tiles (schedules/lib_trellis.lua),
-- in place, once when the weights are loaded. One job is one pack.
local schedule, jobs = require "schedule", require "lib_jobs"
local trellis = require "lib_trellis"

local MOST = 1 << 24 -- packs of a matrix

return schedule.define {
    name = "trellis_pack",
    summary = "EXL3 tiles into packs of four, in place",
    mirrors = {},
    problem = { bits = "u32" },
    numeric = {},
    tuning = { warps = { 8, 1, 2, 4 }, map = { "strided", "contiguous" } },
    examples = { { bits = 4 }, { bits = 6 }, { bits = 3 } },
    valid = function(p)
        if p.bits < 1 or p.bits > 8 then return "bits must be 1..8, got " .. p.bits end
    end,
    derive = function(p, target)
        return { PACK = trellis.PACK, tile_words = 8 * p.bits, ctas = target.sms * 8 }
    end,
    args = {
        { "trellis", "u32 *", "[packs, 4, 8*bits] -> [packs, 8*bits, 4]" },
        { "packs", "u32", "k/16 * n/64" },
    },
    maps = function(p) return jobs.maps(p, { { "pack", "packs", max = MOST } }) end,
    launch = jobs.launch,
    template = "trellis_pack",
}
