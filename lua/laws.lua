--- laws.lua - what must hold of a work map, checked by counting.
--
-- The formulas of a map (work.lua) are evaluated for every worker and every item, at several
-- values of each run-time extent, and compared with what the laws demand:
--
--     numbered_once     (workers of several CTAs) the C text of a worker's number gives each CTA,
--                       warp, group of warps or thread a number below that of workers, each once
--     exactly_once      every item number below total is done by one worker, once
--     in_bounds         item numbers are below total; coordinates are below their extents and
--                       encode their item number
--     no_overflow       no node of a formula leaves the bounds its C type was chosen by, no
--                       difference is negative
--     fixed_order       ("fixed") one worker meets all items of an output, in ascending order:
--                       so the order does not depend on the number of workers
--     order_free        ("order_free") the accumulator is an integer type, and with `term_max`
--                       the largest sum fits it
--     row_independent   (maps that name their `row`) the items of a row are all those that the
--                       other extents span, whatever the number of rows
--     waits_stratified  (schedules with `waits`) the waits between stages have no cycle and the
--                       launch is cooperative, so that all CTAs are resident
--
-- A failure names law, schedule, map and the index. Totals up to FULL are counted item by item;
-- beyond it exactly_once and in_bounds look at every worker's count and its first and last item,
-- and the result says "ends only". Run-time extents are sampled (1, 2, 3, the middle, the last
-- two values, and 0); a formula that is right at all samples and wrong between is not caught
-- here: that is what proofs/ is for.

local expr = require "expr"
local schedule = require "schedule"
local work = require "work"

local laws = {}

local FULL = 200000

local function run_time_names(map)
    local seen, list = {}, {}
    for _, axis in ipairs(map.axes) do
        for _, variable in ipairs(expr.variables(axis.extent)) do
            if not seen[variable.name] then
                seen[variable.name] = true
                list[#list + 1] = variable
            end
        end
    end
    table.sort(list, function(a, b) return a.name < b.name end)
    return list
end

local function samples(variable)
    local seen, list = {}, {}
    local high = variable.high
    for _, value in ipairs {high, high - 1, high // 2, 1, 2, 3, 0} do
        if value >= variable.low and value <= high and not seen[value] then
            seen[value] = true
            list[#list + 1] = value
        end
    end
    return list
end

-- All combinations of sampled run-time values, as a list of {name = value}; largest first.
local function assignments(variables)
    local list = {{}}
    for _, variable in ipairs(variables) do
        local longer = {}
        for _, partial in ipairs(list) do
            for _, value in ipairs(samples(variable)) do
                local whole = {}
                for name, each in pairs(partial) do whole[name] = each end
                whole[variable.name] = value
                longer[#longer + 1] = whole
            end
        end
        list = longer
    end
    return list
end

-- The map's formulas as fast functions at these run-time values. Those are not substituted in the
-- expressions: folding constants would look at parts that no item ever comes to, and refuse them.
local function formulas(map, values)
    local total = expr.evaluate(map.total, values)
    local extents, coordinates = {}, {}
    for k, axis in ipairs(map.axes) do
        extents[k] = expr.evaluate(axis.extent, values)
        if total > 0 then -- an empty space has no coordinates to compute
            coordinates[k] = expr.compile(map.coordinates[k].value, {"x"}, values)
        end
    end
    return {
        total = total, extents = extents, coordinates = coordinates,
        count = expr.compile(map.count, {"worker"}, values),
        item = expr.compile(map.item, {"worker", "item"}, values),
    }
end

local function at_values(values)
    local texts = {}
    for _, name in ipairs(schedule.sorted_names(values)) do
        texts[#texts + 1] = name .. " = " .. values[name]
    end
    return #texts > 0 and " (" .. table.concat(texts, ", ") .. ")" or ""
end

-- Calls visit(worker, i, x) for every item, or only for the first and last item of each worker.
-- Stops at the first sentence that visit returns.
local function each_item(map, f, visit)
    local full = f.total <= FULL
    for worker = 0, map.workers - 1 do
        local count = f.count(worker)
        local step = (full or count < 2) and 1 or count - 1
        if count > f.total then
            return ("worker %d has %d items of %d"):format(worker, count, f.total)
        end
        for i = 0, count - 1, step do
            local failure = visit(worker, i, f.item(worker, i))
            if failure then
                return failure
            end
        end
    end
    return nil
end

local function exactly_once(map, f)
    local owner, sum = {}, 0
    local failure = each_item(map, f, function(worker, i, x)
        if owner[x] then
            return ("item %d is hit twice: by worker %d and by worker %d (its item %d)"):format(x,
                owner[x], worker, i)
        end
        owner[x] = worker
    end)
    if failure then
        return failure
    end
    if f.total <= FULL then
        for x = 0, f.total - 1 do
            if not owner[x] then
                return ("item %d is never hit"):format(x)
            end
        end
    end
    for worker = 0, map.workers - 1 do
        sum = sum + f.count(worker)
    end
    if sum ~= f.total then
        return ("the workers have %d items together, the space has %d"):format(sum, f.total)
    end
    return nil
end

local function in_bounds(map, f)
    return each_item(map, f, function(worker, i, x)
        if x < 0 or x >= f.total then
            return ("worker %d, item %d: number %d is not below %d"):format(worker, i, x, f.total)
        end
        local code = 0
        for k, coordinate in ipairs(f.coordinates) do
            local value = coordinate(x)
            if value >= f.extents[k] then
                return ("item %d: %s = %d is not below %d"):format(x, map.axes[k].name, value,
                    f.extents[k])
            end
            code = code * f.extents[k] + value
        end
        if code ~= x then
            return ("item %d: its coordinates encode %d"):format(x, code)
        end
    end)
end

-- Workers and items at which no_overflow looks: all of a few, else the ends.
local function probes(count, limit)
    if count <= limit then
        local all = {}
        for k = 0, count - 1 do all[#all + 1] = k end
        return all
    end
    return {0, 1, count // 2, count - 2, count - 1}
end

local function no_overflow(map, _, values)
    local where
    local function observe(node, value)
        if value < 0 or value > node.high then
            error(("%s: %s gives %d, above the bound %d its type was chosen by"):format(where,
                tostring(node), value, node.high), 0)
        end
    end
    local function check(e, names)
        for name, value in pairs(values) do names[name] = value end
        return expr.evaluate(e, names, observe)
    end
    local ok, failure = pcall(function()
        where = "total"
        check(map.total, {})
        for _, worker in ipairs(probes(map.workers, 64)) do
            where = ("worker %d"):format(worker)
            local count = check(map.count, {worker = worker})
            for _, i in ipairs(probes(count, 16)) do
                where = ("worker %d, item %d"):format(worker, i)
                local x = check(map.item, {worker = worker, item = i})
                for _, coordinate in ipairs(map.coordinates) do
                    check(coordinate.value, {x = x})
                end
            end
        end
    end)
    return not ok and tostring(failure) or nil
end

-- Number of the output that item x belongs to: its coordinates without the reduced ones.
local function output_of(map, f, reduced, x)
    local code = 0
    for k, axis in ipairs(map.axes) do
        if not reduced[axis.name] then
            code = code * f.extents[k] + f.coordinates[k](x)
        end
    end
    return code
end

local function fixed_order(map, f)
    local reduced, owner, last = {}, {}, {}
    for _, name in ipairs(map.reduce) do
        reduced[name] = true
    end
    return each_item(map, f, function(worker, _, x)
        local output = output_of(map, f, reduced, x)
        if owner[output] and owner[output] ~= worker then
            return ("output %d is summed by workers %d and %d (item %d)"):format(output,
                owner[output], worker, x)
        end
        if last[output] and last[output] >= x then
            return ("output %d meets item %d after item %d"):format(output, x, last[output])
        end
        owner[output], last[output] = worker, x
    end)
end

local function order_free(map)
    if not map.accumulator then
        return "the map declares no accumulator (u32, i32, u64 or i64)"
    end
    local bits = work.accumulator_bits(map.accumulator)
    if map.term_max then
        local terms = 1
        for _, axis in ipairs(map.axes) do
            for _, name in ipairs(map.reduce) do
                terms = name == axis.name and terms * axis.extent.high or terms
            end
        end
        local limit = bits >= 63 and math.maxinteger or (1 << bits) - 1
        if map.term_max > limit // terms then
            return ("%d terms of up to %d do not fit %s"):format(terms, map.term_max,
                map.accumulator)
        end
    end
    return nil
end

local function row_independent(map, f)
    local rest_extent, row_axis = 1, nil
    for k, axis in ipairs(map.axes) do
        if axis.name == map.row then
            row_axis = k
        else
            rest_extent = rest_extent * f.extents[k]
        end
    end
    if f.total > FULL then
        return nil
    end
    local counts, sums = {}, {}
    local reduced = {[map.row] = true}
    local failure = each_item(map, f, function(_, _, x)
        local row = f.coordinates[row_axis](x)
        counts[row] = (counts[row] or 0) + 1
        sums[row] = (sums[row] or 0) + output_of(map, f, reduced, x)
    end)
    if failure then
        return failure
    end
    for row = 0, f.extents[row_axis] - 1 do
        local count = counts[row] or 0
        if count ~= rest_extent or (sums[row] or 0) ~= rest_extent * (rest_extent - 1) // 2 then
            return ("row %d of %d has %d items that are not all %d of its own"):format(row,
                f.extents[row_axis], count, rest_extent)
        end
    end
    return nil
end

-- A cycle of the wait graph as "a waits for b waits for a", or nil.
local function find_cycle(edges)
    local state = {}
    local function visit(stage, path)
        if state[stage] == "done" then
            return nil
        end
        path = path and path .. " waits for " .. stage or stage
        if state[stage] == "open" then
            return path
        end
        state[stage] = "open"
        for _, edge in ipairs(edges) do
            local cycle = edge[1] == stage and visit(edge[2], path)
            if cycle then
                return cycle
            end
        end
        state[stage] = "done"
        return nil
    end
    for _, edge in ipairs(edges) do
        local cycle = visit(edge[1], nil)
        if cycle then
            return cycle
        end
    end
    return nil
end

-- The number that CTA `cta` gives its warp or thread `id`: C over these two with + * / %, all of
-- them at least 0, which but for the division is Lua as well.
local function worker_number(map)
    local text = map.worker_text:gsub("cta_id%(%)", "cta"):gsub("%a+_id%(%)", "id")
    return load("local cta, id = ... return " .. text:gsub("/", "//"))
end

local function numbered_once(map)
    local number, seen = worker_number(map), {}
    local askers = map.over == "warpgroups" and 4 or 1 -- warps that are one worker
    local ids = (map.unit or 1) * askers
    for cta = 0, map.workers * askers // ids - 1 do
        for id = 0, ids - 1 do
            local worker = number(cta, id)
            if worker >= map.workers then
                return ("number %d of CTA %d is worker %d of %d"):format(id, cta, worker,
                    map.workers)
            end
            local group = cta * ids + id // askers
            if (seen[worker] or group) ~= group then
                return ("worker %d is there twice: the second is number %d of CTA %d"):format(
                    worker, id, cta)
            end
            seen[worker] = group
        end
    end
    return nil
end

local function waits_stratified(s, maps, launch)
    for _, edge in ipairs(s.waits) do
        for _, stage in ipairs(edge) do
            if not maps[stage] then
                return ("stage %s is not a map of the schedule"):format(tostring(stage))
            end
        end
    end
    local cycle = find_cycle(s.waits)
    if cycle then
        return cycle
    end
    if not launch.cooperative then
        return "CTAs wait for each other but the launch is not cooperative"
    end
    return nil
end

local function map_laws(map)
    local list = {{"exactly_once", exactly_once}, {"in_bounds", in_bounds},
        {"no_overflow", no_overflow}}
    if map.reduction == "fixed" then
        list[#list + 1] = {"fixed_order", fixed_order}
    elseif map.reduction == "order_free" then
        list[#list + 1] = {"order_free", order_free}
    end
    if map.row then
        list[#list + 1] = {"row_independent", row_independent}
    end
    return list
end

-- What the law says. A division by zero, which no_overflow reports in its own words, ends any law.
local function judge(law, map, f, values)
    local ok, sentence = pcall(law, map, f, values)
    return ok and sentence or not ok and "a formula has no value: " .. tostring(sentence) or nil
end

-- What is reported of a law that `sentence` says is broken, nil = that holds; detail: if it does.
local function verdict(law, where, name, sentence, detail)
    return {law = law, map = name, ok = sentence == nil, detail = sentence
        and ("%s: schedule %s, map %s: %s"):format(law, where, name, sentence) or detail}
end

--- Checks one map. Returns a list of {law, map, ok, detail}; `where` names the schedule.
function laws.check_map(where, name, map)
    local results = {}
    local points = assignments(run_time_names(map))
    for _, law in ipairs(map_laws(map)) do
        local sentence, extent
        for _, values in ipairs(points) do
            local f = formulas(map, values)
            extent = extent or (f.total > FULL and "ends only" or "every item")
            sentence = judge(law[2], map, f, values)
            if sentence then
                sentence = sentence .. at_values(values)
                break
            end
        end
        results[#results + 1] = verdict(law[1], where, name, sentence, extent)
    end
    if not work.is_inside_cta(map) then -- there the number is the warp's or thread's own
        results[#results + 1] = verdict("numbered_once", where, name, numbered_once(map),
            "every worker")
    end
    return results
end

--- Checks all maps of a resolved schedule: a list of {law, map, ok, detail}, sorted by map.
-- `found` is what schedule.resolve returned.
function laws.check(s, maps, found)
    local results = {}
    for _, name in ipairs(schedule.sorted_names(maps)) do
        for _, result in ipairs(laws.check_map(s.name, name, maps[name])) do
            results[#results + 1] = result
        end
    end
    if s.waits then
        local failure = waits_stratified(s, maps, found.launch)
        results[#results + 1] = {law = "waits_stratified", map = "*", ok = failure == nil,
            detail = failure and ("waits_stratified: schedule %s: %s"):format(s.name, failure)
                or ""}
    end
    return results
end

return laws
