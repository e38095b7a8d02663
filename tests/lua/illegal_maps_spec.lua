-- illegal_maps_spec.lua - random work maps that are wrong, and laws.lua, which has to say so.
--
-- A legal map is drawn (space, workers, one of the four partitions, reduction) and its formulas are
-- changed: by a named mistake (a count short by one, a wrong stride, a missing last item, ...) or
-- anywhere in their trees (another operation, constant or variable). Whether the result is wrong,
-- and which laws it breaks, is decided here by doing every item at every run-time value, with an
-- evaluator and a numbering of the space of this file's own. The laws must say the same: each
-- broken law is reported, no other is, and what a report claims ("item 4 is hit twice: by worker 0
-- and by worker 4") is true. Changes that happen to leave a legal map must pass all laws.
--
-- Where a formula has no value (a negative difference, a division by zero, a number that its C type
-- was not chosen for) the kernel's text means nothing, and no_overflow is the only law asked for.
--
-- Run-time extents are small, so that laws.lua, which samples them, looks at all of their values.

dofile "tests/lua/support.lua"
local expr = require "expr"
local laws = require "laws"
local schedule = require "schedule"
local work = require "work"

local WANTED = os.getenv "ELPIS_TEST_FULL" and 5000 or 200 -- illegal maps
local ROWS_MOST = 5 -- laws.lua samples 0, 1, 2, 3 and the last two of a run-time extent

local random = schedule.generator(20261129)

local function pick(list)
    return list[random.below(#list) + 1]
end

local function between(low, high)
    return low + random.below(high - low + 1)
end

-- ---- legal maps

local PARTITIONS = {"contiguous", "strided", "blocked_strided", "weighted"}

local function draw_options()
    local workers = between(1, 12)
    local at_run_time = random.below(2) == 0
    local rows = between(1, ROWS_MOST)
    local options = {
        space = {{"row", at_run_time and "rows" or rows, max = rows}, {"chunk", between(1, 6)}},
        over = "ctas", workers = workers, partition = pick(PARTITIONS), reduction = "none",
        block = between(1, 4), weights = {between(1, 3), between(1, 3), between(1, workers)},
        row = random.below(2) == 0 and "row" or nil,
    }
    if random.below(4) == 0 then
        options.reduction, options.reduce = "fixed", {"chunk"}
    end
    return options
end

-- The options with formulas of one's own.
local function with_formulas(options, count, item)
    local copy = {}
    for name, value in pairs(options) do copy[name] = value end
    copy.partition = {name = "changed", count = count, item = item}
    return copy
end

-- ---- changes

local BINARY = {"add", "sub", "mul", "div", "mod", "min", "max", "monus"}

local function nodes_of(e)
    local list = {}
    expr.walk(e, function(n) list[#list + 1] = n end)
    return list
end

local function other_than(list, value)
    local found
    repeat found = pick(list) until found ~= value
    return found
end

local function changed_node(n, variables)
    if n.op == "constant" then
        return expr.constant(math.max(0, n.value + pick {-1, 1, 1, 2}))
    elseif n.op == "variable" then
        return pick {n + 1, expr.monus(n, 1), expr.of(pick(variables))}
    elseif n.op == "claim" then
        return n.a
    end
    local choice = random.below(3)
    if choice == 0 then return n.a end
    if choice == 1 then return expr[n.op](n.b, n.a) end
    return expr[other_than(BINARY, n.op)](n.a, n.b)
end

-- The tree with `target` replaced; claims of the map are made anew by work.map.
local function replaced(e, target, by)
    if e == target then return by end
    if e.op == "claim" then return replaced(e.a, target, by) end
    if e.op == "constant" or e.op == "variable" then return e end
    return expr[e.op](replaced(e.a, target, by), replaced(e.b, target, by))
end

local function change_anywhere(e, s)
    local target = pick(nodes_of(e))
    return replaced(e, target, changed_node(target, {s.worker, s.item, s.total, s.workers}))
end

-- 1 for the worker `which`, else 0.
local function is_worker(s, which)
    return expr.monus(1, expr.add(expr.monus(s.worker, which), expr.monus(which, s.worker)))
end

-- Each takes the scope and the right formula, and gives a wrong one (nearly always).
local COUNT_MISTAKES = {
    short = function(s, count)
        return expr.monus(count, is_worker(s, random.below(s.workers.value)))
    end,
    long = function(s, count) return count + is_worker(s, random.below(s.workers.value)) end,
    without_the_last = function(s, count)
        return expr.monus(count, is_worker(s, s.workers.value - 1))
    end,
    rounded_up = function(s) return expr.ceil_div(s.total, s.workers) end,
    rounded_down = function(s) return expr.div(s.total, s.workers) end,
    of_the_next = function(s, count) return expr.substitute(count, {worker = s.worker + 1}) end,
    anywhere = function(s, count) return change_anywhere(count, s) end,
}
local ITEM_MISTAKES = {
    shifted = function(_, item) return item + 1 end,
    overlapping = function(s, item) return expr.monus(item, expr.min(s.worker, 1)) end,
    wrong_stride = function(s)
        return s.worker + s.item * (s.workers + pick {1, 2})
    end,
    of_one_worker = function(_, item) return expr.substitute(item, {worker = 0}) end,
    backwards = function(s, item) return expr.sub(expr.sub(s.total, 1), item) end,
    repeated = function(s, item) return expr.substitute(item, {item = expr.div(s.item, 2)}) end,
    by_the_rows = function(s, item) return expr.min(item, expr.max(s.total, 2) - 2) end,
    -- a product that C would compute in 32 bits and that does not fit them
    too_narrow = function(s, item)
        local wide = expr.mul(expr.mul(item, s.workers), 1 << between(24, 40))
        return expr.div(expr.claim(wide, (1 << 32) - 1), expr.mul(s.workers, 1))
    end,
    anywhere = function(s, item) return change_anywhere(item, s) end,
}

local function draw_change()
    local kind = pick {"count", "item"}
    local mistakes = kind == "count" and COUNT_MISTAKES or ITEM_MISTAKES
    local name = random.below(2) == 0 and "anywhere" or pick(schedule.sorted_names(mistakes))
    return kind, name, mistakes[name]
end

-- A changed map, or nil when work.map refuses it; what was changed; its options.
local function draw_map()
    local options = draw_options()
    local legal = work.map(options)
    local kind, name, mistake = draw_change()
    -- Partition functions run inside work.map: errors of expr.lua come out of it.
    local function changed(right, which)
        if which ~= kind then return function() return right end end
        local state
        return function(s)
            state = state or mistake(s, right)
            return state
        end
    end
    local ok, map = pcall(work.map, with_formulas(options, changed(legal.count, "count"),
        changed(legal.item, "item")))
    return ok and map or nil, ("%s of %s: %s"):format(kind, options.partition, name), options
end

-- ---- the truth, by doing every item

-- The value of a formula; nil where it has none that C would compute.
local function value_of(e, names)
    if e.op == "constant" then return e.value end
    local value
    if e.op == "variable" then
        value = names[e.name]
    elseif e.op == "claim" then
        value = value_of(e.a, names)
    else
        local a, b = value_of(e.a, names), value_of(e.b, names)
        if not a or not b then return nil end
        if e.op == "add" then value = a + b
        elseif e.op == "sub" then value = a - b
        elseif e.op == "monus" then value = math.max(a - b, 0)
        elseif e.op == "mul" then value = a * b
        elseif e.op == "min" then value = math.min(a, b)
        elseif e.op == "max" then value = math.max(a, b)
        elseif b == 0 then return nil
        elseif e.op == "div" then value = a // b
        else value = a % b end
    end
    -- The type of a node is chosen by its upper bound.
    if not value or value < 0 or value > e.high then return nil end
    return value
end

-- Everything that the workers do with `rows` rows: {worker, i, x} in order, and counts; or nil when
-- a formula has no value somewhere.
local function run(map, rows)
    local done, counts = {}, {}
    for worker = 0, map.workers - 1 do
        local count = value_of(map.count, {worker = worker, rows = rows})
        if not count then return nil end
        counts[worker] = count
        for i = 0, count - 1 do
            local x = value_of(map.item, {worker = worker, item = i, rows = rows})
            if not x then return nil end
            done[#done + 1] = {worker = worker, i = i, x = x}
        end
    end
    return done, counts
end

local function extents(options, rows)
    local fixed = options.space[1][2]
    return math.type(fixed) == "integer" and fixed or rows, options.space[2][2]
end

local function break_rows(done, rows, chunks, broken)
    local hits = {}
    for _, each in ipairs(done) do
        hits[each.x] = (hits[each.x] or 0) + 1
        if each.x >= rows * chunks then broken.in_bounds = true end
    end
    for x = 0, rows * chunks - 1 do
        if hits[x] ~= 1 then
            broken.exactly_once = true
            broken.row_independent = true
        end
    end
end

local function break_order(done, chunks, broken)
    local owner, last = {}, {}
    for _, each in ipairs(done) do
        local row = each.x // chunks
        if owner[row] and (owner[row] ~= each.worker or last[row] >= each.x) then
            broken.fixed_order = true
        end
        owner[row], last[row] = each.worker, each.x
    end
end

-- law -> true of the laws that the map breaks, and whether some worker has more items than there
-- are, which every law that goes through the items reports as its own.
local function truth(map, options)
    local broken, too_many = {}, false
    local at_run_time = type(options.space[1][2]) == "string"
    for rows = at_run_time and 0 or 1, at_run_time and options.space[1].max or 1 do
        local row_count, chunks = extents(options, rows)
        local done, counts = run(map, rows)
        if not done then return {no_overflow = true}, false end
        for _, count in pairs(counts) do too_many = too_many or count > row_count * chunks end
        local outside = false
        for _, each in ipairs(done) do outside = outside or each.x >= row_count * chunks end
        if #done ~= row_count * chunks or outside then broken.exactly_once = true end
        break_rows(done, row_count, chunks, broken)
        break_order(done, chunks, broken)
    end
    if options.reduction ~= "fixed" then broken.fixed_order = nil end
    if not options.row then broken.row_independent = nil end
    return broken, too_many
end

-- ---- what a report claims

local CLAIMS = {
    {"item (%d+) is hit twice: by worker (%d+) and by worker (%d+) %(its item (%d+)%)",
        function(at, x, first, second, i)
            local by_first, by_second = false, false
            for _, each in ipairs(at.done) do
                if each.x == x and each.worker == second and each.i == i then
                    by_second = true
                elseif each.x == x and each.worker == first then
                    by_first = true
                end
            end
            return by_first and by_second
        end},
    {"item (%d+) is never hit", function(at, x)
        for _, each in ipairs(at.done) do
            if each.x == x then return false end
        end
        return x < at.total
    end},
    {"the workers have (%d+) items together, the space has (%d+)", function(at, sum, total)
        return #at.done == sum and at.total == total and sum ~= total
    end},
    {"worker (%d+) has (%d+) items of (%d+)", function(at, worker, count, total)
        return at.counts[worker] == count and at.total == total and count > total
    end},
    {"worker (%d+), item (%d+): number (%d+) is not below (%d+)", function(at, worker, i, x, total)
        for _, each in ipairs(at.done) do
            if each.worker == worker and each.i == i then return each.x == x and x >= total end
        end
        return false
    end},
    {"output (%d+) is summed by workers (%d+) and (%d+) %(item (%d+)%)",
        function(at, output, first, second, x)
            local owners = {}
            for _, each in ipairs(at.done) do
                if each.x // at.chunks == output then owners[each.worker] = true end
            end
            return owners[first] and owners[second] and first ~= second and x // at.chunks == output
        end},
    {"output (%d+) meets item (%d+) after item (%d+)", function(at, output, second, first)
        return second <= first and second // at.chunks == output and first // at.chunks == output
    end},
    {"row (%d+) of (%d+) has (%d+) items that are not all (%d+) of its own",
        function(at, row, _, count, chunks)
            local found = 0
            for _, each in ipairs(at.done) do
                if each.x // at.chunks == row then found = found + 1 end
            end
            return found == count and chunks == at.chunks
        end},
}

local function numbers(...)
    local list = {}
    for k, text in ipairs {...} do list[k] = math.tointeger(tonumber(text)) end
    return table.unpack(list)
end

-- Whether what the sentence says is so.
local function is_true(sentence, map, options)
    local rows = tonumber(sentence:match "rows = (%d+)") or 1
    local row_count, chunks = extents(options, rows)
    local done, counts = run(map, rows)
    local at = {done = done, counts = counts, total = row_count * chunks, chunks = chunks}
    for _, claim in ipairs(CLAIMS) do
        if sentence:match(claim[1]) then
            return done and claim[2](at, numbers(sentence:match(claim[1])))
        end
    end
    error("a report of a kind that this test does not know: " .. sentence)
end

-- ---- the comparison

local function reports(map)
    local list = {}
    for _, result in ipairs(laws.check_map("drawn", "jobs", map)) do
        if not result.ok then list[result.law] = result.detail end
    end
    return list
end

local function describe_map(what, map, options)
    return ("%s; %d x %d items, %d workers, count %s, item %s"):format(what,
        options.space[1].max, options.space[2][2], map.workers, tostring(map.count),
        tostring(map.item))
end

local function compare(what, map, options)
    local broken, too_many = truth(map, options)
    local found = reports(map)
    local where = describe_map(what, map, options)
    for law in pairs(broken) do
        assert(found[law], ("%s is broken and not reported: %s"):format(law, where))
    end
    if broken.no_overflow then
        return true
    end
    for law, sentence in pairs(found) do
        assert(broken[law] or too_many, ("%s is reported wrongly (%s): %s"):format(law, sentence,
            where))
        assert(is_true(sentence, map, options), ("%s: %s: %s"):format(law, sentence, where))
    end
    return next(broken) ~= nil
end

describe("laws of random maps", function()
    it("hold for what work.lua makes", function()
        for _ = 1, 300 do
            local options = draw_options()
            local map = work.map(options)
            local broken = truth(map, options)
            local found = reports(map)
            assert.same(broken.fixed_order, found.fixed_order and true)
            broken.fixed_order, found.fixed_order = nil, nil
            assert.same({}, broken)
            assert.same({}, found)
        end
    end)

    it("find every wrong one of " .. WANTED .. ", and only those", function()
        local illegal, legal, refused, kinds, by_law = 0, 0, 0, {}, {}
        while illegal < WANTED do
            local map, what, options = draw_map()
            if not map then
                refused = refused + 1
            elseif compare(what, map, options) then
                illegal = illegal + 1
                kinds[what:match "%S+$"] = true
                for law in pairs(truth(map, options)) do by_law[law] = (by_law[law] or 0) + 1 end
            else
                legal = legal + 1
            end
        end
        local parts = {}
        for _, law in ipairs(schedule.sorted_names(by_law)) do
            parts[#parts + 1] = law .. " " .. by_law[law]
        end
        print(("# %d illegal maps caught (%s); %d changes left a legal map, %d were refused")
            :format(illegal, table.concat(parts, ", "), legal, refused))
        for _, law in ipairs {"exactly_once", "in_bounds", "no_overflow", "fixed_order",
            "row_independent"} do
            assert.is_truthy(by_law[law], law .. " was never broken")
        end
        for _, list in ipairs {COUNT_MISTAKES, ITEM_MISTAKES} do
            for name in pairs(list) do assert.is_true(kinds[name], name .. " was never drawn") end
        end
    end)

    it("find sums that do not fit their accumulator", function()
        local bits = {u32 = 32, i32 = 31, u64 = 64, i64 = 63}
        for _ = 1, 50 do
            local name, terms = pick {"u32", "i32", "i64", "u64"}, between(2, 1 << 20)
            local most = bits[name] >= 63 and math.maxinteger or (1 << bits[name]) - 1
            local function verdict(term)
                return reports(work.map {space = {{"row", 2}, {"chunk", terms}}, over = "ctas",
                    workers = 3, partition = "strided", reduction = "order_free",
                    reduce = {"chunk"}, accumulator = name, term_max = term}).order_free
            end
            assert.is_nil(verdict(most // terms))
            assert.is_truthy(verdict(most // terms + 1))
        end
    end)

    it("find waits in a circle", function()
        local maps = {}
        for k = 1, 6 do
            maps["s" .. k] = work.map {space = {{"row", 2}}, over = "ctas", workers = 2,
                partition = "strided", reduction = "none"}
        end
        for _ = 1, 60 do
            local waits, after = {}, {}
            for _ = 1, between(1, 8) do
                local a, b = between(1, 6), between(1, 6)
                waits[#waits + 1] = {"s" .. a, "s" .. b}
                after[a] = after[a] or {}
                after[a][b] = true
            end
            for _ = 1, 6 do -- closes `after` over steps
                for a = 1, 6 do
                    for b in pairs(after[a] or {}) do
                        for c in pairs(after[b] or {}) do after[a][c] = true end
                    end
                end
            end
            local circle = false
            for a = 1, 6 do circle = circle or (after[a] or {})[a] or false end
            local results = laws.check({name = "s", waits = waits}, maps,
                {launch = {cooperative = true}})
            assert.equal(not circle, results[#results].ok)
        end
    end)
end)
