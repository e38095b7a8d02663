-- sample_keys: logits -> the best id of each piece; for rows that draw or have penalties also keys.
--
-- The first launch of the sampler (sample.lua, steps 1 and 2). One job is a piece of a row, by one
-- warp. It clears what the launches after it count in.
local schedule, jobs = require "schedule", require "lib_jobs"
local sample = require "lib_sample"

return schedule.define {
    name = "sample_keys",
    summary = "sampler: penalties, temperature, the best id of each piece",
    mirrors = {},
    problem = sample.problem,
    tuning = { warps = { 8, 4, 2, 1 }, map = { "strided", "contiguous" } },
    examples = sample.examples,
    valid = sample.valid,
    derive = function(p, target)
        local numbers = sample.numbers(p)
        numbers.ctas = jobs.ctas(p, p.rows_max * numbers.pieces, target, 4)
        return numbers
    end,
    args = {
        sample.args.logits, sample.args.settings,
        { "penalties", "const u32 *", "[entries of all rows, 2]" },
        sample.written "best", sample.written "keys", sample.written "bins",
        sample.written "listed", sample.args.round,
    },
    maps = function(p)
        return jobs.maps(p, {
            { "row", "rows", max = p.rows_max }, { "piece", p.pieces },
        }, "row")
    end,
    launch = jobs.launch,
    exports = function(p)
        return {
            pieces = p.pieces, key_stride = p.key_stride, bins = 2 * p.BINS,
            candidates = p.CANDIDATES,
        }
    end,
    template = "sample_keys",
}
