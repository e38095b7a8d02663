--- work.lua - work maps: which worker does which items, in which order.
--
-- A map is the only place where a kernel's work is divided. It names an iteration space (extents,
-- outermost first), who the workers are, how items are dealt to them and what kind of reduction
-- joins the items of one output:
--
--     space     {"row", rows} x {"chunk", 6}       item number x = row * 6 + chunk, 0 <= x < total
--     workers   0 .. W-1                           CTAs, warps, threads, or those inside one CTA
--     partition count(b), item(b, i)               item numbers of worker b, i = 0 .. count(b)-1
--
-- Partitions (T = total):
--
--     contiguous        start(b) = floor(T*b / W); items start(b) .. start(b+1)-1
--     strided           items b, b+W, b+2W, ...
--     blocked_strided   blocks of `block` items, dealt as strided deals single items
--     weighted          weights = {w0, w1, half}: workers below `half` weigh w0, the others w1;
--                       start(b) = floor(T*w(b) / w(W)),
--                       w(b) = w0*min(b, half) + w1*max(0, b-half)
--
-- A table {name =, count = function(s) end, item = function(s) end} is a partition of one's own;
-- s has the expressions worker, item, total and workers. Whether it is right is laws.lua's
-- question, not this file's.
--
-- All formulas are expr.lua objects over the variables `worker` and `item` and the extents that
-- are known only at run time. The C text, the law checker and the proofs all read those objects.
-- Items of a worker run in ascending i. Workers that find count = 0 do nothing.
--
-- Reductions: "none" (an output has one item), "fixed" (`reduce` lists the coordinates summed
-- over; one worker meets all items of an output in ascending order) and "order_free" (any workers,
-- any order: `accumulator` is the integer type of the sum, since only those do not see the order).

local expr = require "expr"

local work = {}

local partitions = {}

partitions.contiguous = {
    start = function(s, worker)
        return expr.div(expr.mul(s.total, worker), s.workers)
    end,
    count = function(s)
        local start = partitions.contiguous.start
        return expr.sub(start(s, expr.add(s.worker, 1)), start(s, s.worker))
    end,
    item = function(s)
        return expr.add(partitions.contiguous.start(s, s.worker), s.item)
    end,
    count_max = function(s) return (s.total.high + s.workers.value - 1) // s.workers.value end,
}

partitions.strided = {
    count = function(s)
        local last = expr.sub(expr.add(s.total, s.workers), 1)
        return expr.div(expr.sub(last, s.worker), s.workers)
    end,
    item = function(s)
        return expr.add(s.worker, expr.mul(s.item, s.workers))
    end,
}

partitions.blocked_strided = {
    count = function(s)
        local cycle = expr.mul(s.block, s.workers)
        local rest = expr.monus(expr.mod(s.total, cycle), expr.mul(s.worker, s.block))
        return expr.add(expr.mul(expr.div(s.total, cycle), s.block), expr.min(rest, s.block))
    end,
    item = function(s)
        local block = expr.add(expr.mul(expr.div(s.item, s.block), s.workers), s.worker)
        return expr.add(expr.mul(block, s.block), expr.mod(s.item, s.block))
    end,
}

partitions.weighted = {
    weight = function(s, worker)
        local w0, w1, half = s.weights[1], s.weights[2], s.weights[3]
        return expr.add(expr.mul(expr.min(worker, half), w0),
            expr.mul(expr.monus(worker, half), w1))
    end,
    start = function(s, worker)
        local weight = partitions.weighted.weight
        return expr.div(expr.mul(s.total, weight(s, worker)), weight(s, s.workers))
    end,
    count = function(s)
        local start = partitions.weighted.start
        return expr.sub(start(s, expr.add(s.worker, 1)), start(s, s.worker))
    end,
    item = function(s)
        return expr.add(partitions.weighted.start(s, s.worker), s.item)
    end,
}

for name, partition in pairs(partitions) do
    partition.name = name
end

-- Four schedulers share an SM's warps, a warp's number % 4 says which. Neighbouring workers' shares
-- are rounded up and down in turn, so a scheduler's warps are neighbours: its sum then is even.
local SCHEDULERS = 4
local function warps_text(n, options)
    if options.order == "scheduler" and n % SCHEDULERS == 0 then
        return ("cta_id() * %d + warp_id() %% %d * %d + warp_id() / %d"):format(n, SCHEDULERS,
            n // SCHEDULERS, SCHEDULERS)
    end
    return "cta_id() * " .. n .. " + warp_id()"
end

-- CTAs i and i + sms have neighbouring workers: they share an SM where CTAs are dealt in order. In
-- a chain of launches they hardly ever do, and it still was faster (bench/NOTES.md).
local function warpgroups_text(n, options)
    if options.order ~= "sm" then
        return "cta_id() * " .. n .. " + warp_id() / 4"
    end
    return ("cta_id() %% %d * %d + cta_id() / %d * %d + warp_id() / 4"):format(options.sms,
        options.workers // options.sms, options.sms, n)
end

-- Who the workers are. `of_cta` workers are numbered inside one CTA, which then does all items.
local worker_kinds = {
    ctas = {of_cta = false, text = function() return "cta_id()" end},
    warps = {of_cta = false, unit = "warps", text = warps_text},
    warpgroups = {of_cta = false, unit = "warpgroups", text = warpgroups_text},
    threads = {of_cta = false, unit = "threads",
        text = function(n) return "cta_id() * " .. n .. " + thread_id()" end},
    cta_warps = {of_cta = true, text = function() return "warp_id()" end},
    cta_threads = {of_cta = true, text = function() return "thread_id()" end},
}

local INTEGER_ACCUMULATORS = {u32 = 32, i32 = 31, u64 = 64, i64 = 63}

local known_fields = {
    space = true, over = true, workers = true, warps = true, warpgroups = true, threads = true,
    partition = true, reduction = true, reduce = true, accumulator = true, term_max = true,
    row = true, block = true, weights = true, order = true, sms = true,
}

local function fail(field, expected, got)
    error(("work.map: %s: expected %s, got %s"):format(field, expected, tostring(got)), 3)
end

local function positive_integer(value)
    return math.type(value) == "integer" and value >= 1
end

-- One {name, extent, max=} of a space -> {name, extent expression}.
local function extent_of(entry, index)
    local name, size = entry[1], entry[2]
    if type(name) ~= "string" or not name:match("^[%a_][%w_]*$") then
        fail("space[" .. index .. "][1]", "a coordinate name", name)
    end
    if positive_integer(size) then
        return {name = name, extent = expr.constant(size)}
    elseif type(size) == "string" then
        if not positive_integer(entry.max) then
            fail("space." .. name .. ".max", "the largest value of " .. size, entry.max)
        end
        return {name = name, extent = expr.variable(size, entry.max), runtime = true}
    elseif expr.is(size) then
        return {name = name, extent = size, runtime = size.op ~= "constant"}
    end
    return fail("space." .. name, "a number of at least 1, a run-time name or an expression", size)
end

local function check_space(space)
    if type(space) ~= "table" or #space == 0 then
        fail("space", "a list of {name, extent}", space)
    end
    local seen, axes = {}, {}
    for index, entry in ipairs(space) do
        axes[index] = extent_of(entry, index)
        if seen[axes[index].name] then
            fail("space", "different coordinate names", axes[index].name .. " twice")
        end
        seen[axes[index].name] = index
    end
    return axes, seen
end

local function check_workers(options)
    local kind = worker_kinds[options.over]
    if not kind then
        fail("over", "ctas, warps, warpgroups, threads, cta_warps or cta_threads", options.over)
    end
    if not positive_integer(options.workers) then
        fail("workers", "an integer of at least 1", options.workers)
    end
    local unit = kind.unit and options[kind.unit]
    if kind.unit and not positive_integer(unit) then
        fail(kind.unit, "the number of " .. kind.unit .. " in a CTA", unit)
    end
    if unit and options.workers % unit ~= 0 then
        fail("workers", "a multiple of " .. kind.unit .. " = " .. unit, options.workers)
    end
    return kind, unit
end

local function check_partition(options)
    local partition = options.partition
    if type(partition) == "string" then
        partition = partitions[partition]
    end
    if type(partition) ~= "table" or not partition.count or not partition.item then
        fail("partition", "contiguous, strided, blocked_strided, weighted or a table of one's own",
            options.partition)
    end
    if partition == partitions.blocked_strided and not positive_integer(options.block) then
        fail("block", "the items of a block", options.block)
    end
    if partition == partitions.weighted then
        local w = options.weights
        if type(w) ~= "table" or not (positive_integer(w[1]) and positive_integer(w[2])
            and positive_integer(w[3])) then
            fail("weights", "{w0, w1, half}, each at least 1", w)
        end
    end
    return partition
end

local orders = {scheduler = "warps", sm = "warpgroups"}

local function check_order(options, unit)
    if options.order and orders[options.order] ~= options.over then
        fail("order", "scheduler, of warps, or sm, of warpgroups", options.order)
    end
    local ctas = options.order == "sm" and options.workers // unit
    if ctas and not (positive_integer(options.sms) and ctas % options.sms == 0) then
        fail("sms", "a number of SMs that divides the " .. ctas .. " CTAs", options.sms)
    end
end

local function check_reduction(options, axis_index)
    local kind = options.reduction
    if kind ~= "none" and kind ~= "fixed" and kind ~= "order_free" then
        fail("reduction", "none, fixed or order_free", kind)
    end
    if kind == "none" then
        return
    end
    if kind == "fixed" and (type(options.reduce) ~= "table" or #options.reduce == 0) then
        fail("reduce", "the list of coordinates that a fixed reduction sums over", options.reduce)
    end
    for _, name in ipairs(options.reduce or {}) do
        if not axis_index[name] then
            fail("reduce", "coordinates of the space", name)
        end
    end
    local accumulator = options.accumulator
    if kind == "order_free" and accumulator and not INTEGER_ACCUMULATORS[accumulator] then
        fail("accumulator", "u32, i32, u64 or i64, since sums of floats see their order",
            accumulator)
    end
end

-- Coordinates of item number x: the innermost varies fastest.
local function coordinates_of(axes, x)
    local list = {}
    local inner = expr.constant(1)
    for k = #axes, 1, -1 do
        local value = expr.div(x, inner)
        if k > 1 then
            value = expr.mod(value, axes[k].extent)
        end
        if axes[k].extent.high == 1 then
            value = expr.constant(0)
        end
        list[k] = {name = axes[k].name,
            value = expr.claim(value, math.max(axes[k].extent.high - 1, 0))}
        inner = expr.mul(axes[k].extent, inner)
    end
    return list, inner
end

--- Makes a work map of a table of options; see lua/README.md for the fields.
-- Returns a table with the expressions total, count (items of `worker`), item (number of the
-- `item`-th item of `worker`) and coordinates ({name, value} in terms of the variable `x`).
function work.map(options)
    if type(options) ~= "table" then
        fail("options", "a table", options)
    end
    for field in pairs(options) do
        if not known_fields[field] then
            fail("options", "known fields", field)
        end
    end
    local axes, axis_index = check_space(options.space)
    local kind, unit = check_workers(options)
    local partition = check_partition(options)
    check_order(options, unit)
    check_reduction(options, axis_index)
    if options.row and not axis_index[options.row] then
        fail("row", "a coordinate of the space", options.row)
    end
    local _, total = coordinates_of(axes, expr.constant(0))
    local most = total.high
    local s = {
        total = total, workers = expr.constant(options.workers), block = options.block,
        weights = options.weights, worker = expr.variable("worker", options.workers - 1),
        item = expr.variable("item", math.max(most - 1, 0)),
    }
    local count_max = partition.count_max and partition.count_max(s) or most
    local count = expr.claim(partition.count(s), count_max)
    s.item = expr.variable("item", math.max(count.high - 1, 0))
    local map = {
        axes = axes, over = options.over, kind = kind, unit = unit, workers = options.workers,
        partition = partition.name or "own", total = total, count = count,
        item = expr.claim(partition.item(s), math.max(most - 1, 0)),
        coordinates = coordinates_of(axes, expr.variable("x", math.max(most - 1, 0))),
        reduction = options.reduction, reduce = options.reduce or {}, row = options.row,
        accumulator = options.accumulator, term_max = options.term_max,
        block = options.block, weights = options.weights,
    }
    map.worker_text = kind.text(unit, options)
    return map
end

--- Bits that an accumulator type leaves for the magnitude of a sum.
function work.accumulator_bits(name)
    return INTEGER_ACCUMULATORS[name]
end

--- True when the workers of the map are numbered inside one CTA.
function work.is_inside_cta(map)
    return map.kind.of_cta
end

local function declare(type_name, name, text)
    return ("const %s %s = %s;"):format(type_name, name, text)
end

local function coordinate_lines(map, item_name, prefix, lines)
    for _, c in ipairs(map.coordinates) do
        lines[#lines + 1] = declare(expr.type(c.value), prefix .. c.name,
            expr.emit(c.value, {x = item_name}))
    end
    return lines
end

local function describe(map, name)
    local extents = {}
    for _, axis in ipairs(map.axes) do
        extents[#extents + 1] = axis.name .. " " .. tostring(axis.extent)
    end
    return ("// %s: [%s] over %d %s, %s"):format(name, table.concat(extents, ", "), map.workers,
        map.over, map.partition)
end

local function open_text(map, name)
    local worker, count, i, x = name .. "_worker", name .. "_count", name .. "_i", name .. "_x"
    local lines = {
        describe(map, name),
        "{",
        "    " .. declare("u32", worker, map.worker_text),
        "    " .. declare(expr.type(map.count), count, expr.emit(map.count, {worker = worker})),
        ("    for (%s %s = 0; %s < %s; %s++) {"):format(expr.type(map.count), i, i, count, i),
        "        " .. declare(expr.type(map.item), x,
            expr.emit(map.item, {worker = worker, item = i})),
    }
    for _, line in ipairs(coordinate_lines(map, x, "", {})) do
        lines[#lines + 1] = "        " .. line
    end
    return table.concat(lines, "\n")
end

local function at_text(map, name, item_text, prefix)
    prefix = prefix or ""
    if type(item_text) ~= "string" or item_text == "" then
        error(name .. ":at: item: expected the text of a C expression, got " .. tostring(item_text),
            3)
    end
    local x = prefix .. name .. "_x"
    local names = {worker = map.worker_text, item = item_text}
    local lines = {declare(expr.type(map.item), x, expr.emit(map.item, names))}
    return table.concat(coordinate_lines(map, x, prefix, lines), "\n")
end

-- Statements that move the coordinates in the variables prefix .. name to the worker's next item.
local function next_text(map, name, prefix)
    if map.partition ~= "contiguous" then
        error(name .. ":next: expected a contiguous map, got " .. map.partition, 3)
    end
    local lines, indent = {}, ""
    for k = #map.axes, 1, -1 do
        local axis = map.axes[k]
        lines[#lines + 1] = indent .. prefix .. axis.name .. "++;"
        if k > 1 then
            lines[#lines + 1] = ("%sif (%s == %s) {"):format(indent, prefix .. axis.name,
                expr.emit(axis.extent))
            indent = indent .. "    "
            lines[#lines + 1] = ("%s%s = 0;"):format(indent, prefix .. axis.name)
        end
    end
    for k = 2, #map.axes do
        lines[#lines + 1] = ("    "):rep(#map.axes - k) .. "}"
    end
    return table.concat(lines, "\n")
end

--- What a template sees of `map` under its name: texts open, close, count, total, worker,
-- the numbers workers and items_max, and the method at(item_text, prefix).
function work.emitter(map, name)
    local names = {worker = map.worker_text}
    return {
        open = open_text(map, name),
        close = "    }\n}",
        count = expr.emit_operand(map.count, names),
        total = expr.emit_operand(map.total),
        worker = "(" .. map.worker_text .. ")",
        workers = map.workers,
        items_max = map.count.high,
        next = function(_, prefix) return next_text(map, name, prefix) end,
        at = function(_, item_text, prefix) return at_text(map, name, item_text, prefix) end,
    }
end

return work
