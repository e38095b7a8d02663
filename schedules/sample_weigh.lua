-- sample_weigh: weights of the rows that draw (sample.lua, step 3).
--
-- Rows with top-k or top-p: how many ids there are at each distance below the top, and their
-- weight. Other rows: the kept weight of each piece. One job is a slice of a row, by one CTA, whose
-- warps take pieces.
local schedule = require "schedule"
local sample, rounding = require "lib_sample", require "lib_rounding"

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
    -- Weights are at most 2^40, each rounded to an integer. Before: temperature, distance from the
    -- top, product with log2 e, which is rounded too, exp2. Stock's sampler is not specified.
    claims = function(p)
        return { sums = { { "weights", "u64", p.vocab, 1 << 40 } }, roundings = { {
            "weight of a token", over = "1 + |x| + |top|; the top weighs 1",
            ours = { r32 = 1 + 1 + 2 + rounding.EXP2, units = 1 }, stock = { units = 8 },
        } } }
    end,
    launch = sample.launch_slices,
    template = "sample_weigh",
}
