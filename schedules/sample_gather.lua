-- sample_gather: the ranks of all ids that top-k or top-p may keep, as a list.
--
-- sample_weigh's bins tell how far from the top the last of them lies at most: with top-k the bin
-- where the count reaches k, else with top-p the bin where the weight reaches its target. If more
-- than the list holds are that near, the list stays empty, and `sample` looks at the whole row.
-- One job is a slice of a row, by one CTA, whose warps take pieces.
local schedule = require "schedule"
local sample = require "lib_sample"

return schedule.define {
    name = "sample_gather",
    summary = "sampler: the ids that top-k or top-p may keep",
    mirrors = {},
    problem = sample.problem,
    tuning = sample.sliced,
    examples = sample.examples,
    valid = sample.valid,
    derive = sample.numbers,
    args = {
        sample.args.settings, sample.args.best, sample.args.keys, sample.args.bins,
        sample.written "list", sample.written "listed", sample.args.round,
    },
    shared = function(p) return { { "partial", "u64", p.warps }, { "found", "u64", 4 } } end,
    maps = sample.slices,
    launch = sample.launch_slices,
    template = "sample_gather",
}
