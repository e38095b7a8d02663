-- law_violation.lua - a partition that forgets items, and the checker that says so.
--
--     elpis script schedules/examples/law_violation.lua
--
-- Each warp gets total / workers rows, rounded down: right for 64 rows on 16 warps, wrong as soon
-- as the division leaves a rest. A test with 64 rows would pass. The laws are counted for every
-- kernel before it is built, at several numbers of rows, and name one that is wrong.
local elpis = require "elpis"

local template = [[
KERNEL
{
    ${jobs.open}
        for (u32 k = lane_id(); k < ${width}; k += 32)
            x[row * ${width} + k] = f_mul(x[row * ${width} + k], ${f32(2)});
    ${jobs.close}
}
]]

local schedule = [[
local schedule, work, expr = require "schedule", require "work", require "expr"
local halves = {
    name = "rounded_down",
    count = function(s) return expr.div(s.total, s.workers) end,
    item = function(s)
        return expr.add(expr.mul(s.worker, expr.div(s.total, s.workers)), s.item)
    end,
}
return schedule.define {
    name = "twice",
    summary = "x = 2 x, a row a warp",
    problem = { rows_max = "u32", width = "u32" },
    args = { {"x", "f32 *", "[rows, width]"}, {"rows", "u32", "active rows"} },
    maps = function(p)
        return { jobs = work.map {
            space = { {"row", "rows", max = p.rows_max} }, over = "warps", workers = 16, warps = 4,
            partition = PARTITION, reduction = "none", row = "row",
        } }
    end,
    launch = function() return { grid = 4, block = 128 } end,
    template = "twice",
}
]]

-- A case over the schedule with one or the other partition.
local function case_with(partition)
    return elpis.case {
        schedule = elpis.schedule {
            schedule = schedule:gsub("PARTITION", partition), template = template,
        },
        problems = { {rows_max = 64, width = 100} },
        inputs = function(p, dev)
            local x = dev:tensor("f32", {p.rows_max, p.width}, "x")
            return {x = x:fill("integers", {seed = 1}), rows = p.rows_max}
        end,
        reference = function(a)
            for _, row in ipairs(a.x) do
                for k, value in ipairs(row) do row[k] = 2 * value end
            end
            return {x = a.x}
        end,
        limit = 0,
    }
end

local ok, sentence = pcall(function() case_with("halves"):check() end)
assert(not ok)
print("refused: " .. sentence)
case_with('"contiguous"'):check():print()
