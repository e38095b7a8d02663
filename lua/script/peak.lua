--- peak.lua - operations a second that independent fused multiply-adds reach on a device.
--
-- The floor of a kernel that declares its operations: nothing that computes in f32 is faster.
-- Measured with a kernel of the workshop's own, once a device. An fma counts as two operations.

local definition = require "elpis.definition"

local peak = {}

local CHAINS = 8 -- fmas that do not wait for each other
-- Steps of each: enough that a launch takes far longer than it takes to begin.
local STEPS = {host = 512, cuda = 8192}

local schedule = [[
local schedule, work = require "schedule", require "work"
return schedule.define {
    name = "peak_f32",
    summary = "chains of fused multiply-adds: the rate that f32 reaches",
    problem = { chains = "u32", steps = "u32" },
    derive = function(p, target) return { ctas = target.sms * 4 } end,
    args = { { "y", "f32 *", "[threads]" } },
    maps = function(p)
        return { jobs = work.map {
            space = { { "thread", p.ctas * 256 } }, over = "threads", workers = p.ctas * 256,
            threads = 256, partition = "contiguous", reduction = "none",
        } }
    end,
    launch = function(p) return { grid = p.ctas, block = 256 } end,
    exports = function(p) return { threads = p.ctas * 256 } end,
    template = "peak_f32",
}
]]

local template = [[
KERNEL
{
    ${jobs.open}
        f32 v[${chains}];
        const f32 seed = f_from_u32(thread + 1);
        for (u32 k = 0; k < ${chains}; k++)
            v[k] = f_add(seed, f_from_u32(k));
        for (u32 step = 0; step < ${steps}; step++) {
            //@ for k = 0, chains - 1 do
            v[${k}] = f_fma(v[${k}], ${f32(0.5)}, seed);
            //@ end
        }
        for (u32 k = 1; k < ${chains}; k++)
            v[0] = f_add(v[0], v[k]);
        y[thread] = v[0];
    ${jobs.close}
}
]]

--- Operations a second.
function peak.measure(device)
    local s = definition.new {schedule = schedule, template = template}
    local problem = {chains = CHAINS, steps = STEPS[device.info.kind]}
    local kernel = device:kernel {schedule = s, problem = problem}
    local threads = s:render(device.target, problem, {}).exports.threads
    local y = device:tensor("f32", {threads}, "y")
    local results = device.handle:trial({kernel:bind {y = y}}, {rounds = 10})
    y:free()
    return 2.0 * CHAINS * problem.steps * threads / results[1].low
end

return peak
