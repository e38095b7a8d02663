--- lib_jobs: what the many kernels share whose jobs are done by single warps, each on its own.
--
-- Such a kernel says how many jobs it has and over which space; how they are dealt out is tuning
-- (`warps` of a CTA, `map`), of which no job sees anything.
local work = require "work"

local jobs = {}

--- CTAs for `count` jobs: enough for all, at most `per_sm` (8) on each SM.
function jobs.ctas(p, count, target, per_sm)
    local wanted = (count + p.warps - 1) // p.warps
    return math.max(1, math.min(wanted, target.sms * (per_sm or 8)))
end

--- The maps of such a kernel: one, named jobs. row: the coordinate that is a row, if any.
function jobs.maps(p, space, row)
    return {
        jobs = work.map {
            space = space, over = "warps", workers = p.ctas * p.warps, warps = p.warps,
            partition = p.map, reduction = "none", row = row,
        },
    }
end

--- Its launch.
function jobs.launch(p)
    return { grid = p.ctas, block = 32 * p.warps }
end

return jobs
