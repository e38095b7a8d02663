-- sample_weigh: weights of the rows that draw (sample.lua, step 3).
--
-- Rows with top-k or top-p: how many ids there are at each distance below the top, and their
-- weight. Other rows: the kept weight of each piece. One job is a slice of a row, by one CTA, whose
-- warps take pieces.
local schedule = require "schedule"
local sample = require "lib_sample"

return schedule.define {
    name = "sample_weigh",
    summary = "sampler: weights by distance from the top, or by piece",
    mirrors = {},
    problem = sample.problem,
    tuning = sample.sliced,
    examples = sample.examples,
    valid = sample.valid,
    derive = sample.numbers,
    args = {
        sample.args.settings, sample.args.best, sample.args.keys, sample.written "sums",
        sample.written "bins", sample.args.round,
    },
    shared = function(p)
        return { { "partial", "u64", p.warps }, { "histogram", "u64", 2 * p.BINS } }
    end,
    maps = sample.slices,
    claims = function(p) -- weights are at most 2^40
        return { sums = { { "weights", "u64", p.vocab, 1 << 40 } } }
    end,
    launch = sample.launch_slices,
    template = "sample_weigh",
}
