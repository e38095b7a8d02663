--- schedules.lua - what test_kernels.c asks of the schedules, beside their texts.
--
-- The files are those of the source tree: the program is started in its root.

package.path = "lua/?.lua;" .. package.path

local function read(path)
    local file = io.open(path)
    if not file then return nil end
    local text = file:read "a"
    file:close()
    return text
end

local engine = require("engine").new(read, function() return {} end)
local resolve = engine.require("schedule").resolve
local sorted_names = engine.require("schedule").sorted_names
local schedules = {}

-- Numbers of a shape that lists of values are asked with: 1 to SHAPES, and as often WIDTH.
local SHAPES, WIDTH = 64, 128

--- What is wrong with the maps of a request {schedule, parameters, target, seed}; nil = nothing.
function schedules.broken_law(request)
    for _, result in ipairs(engine:laws(request)) do
        if not result.ok then return result.detail end
    end
end

-- Values of one of a shape's parameters, described as in a schedule, that lists are asked with: all
-- there are, or small numbers, as of heads and bits, and widths.
local function values_of(kind)
    if type(kind) == "table" and not kind.type then return kind end
    local list = {}
    for i = 1, (kind == "text" or type(kind) == "function") and 0 or SHAPES do
        list[#list + 1] = i
        list[#list + 1] = i * WIDTH
    end
    return list
end

-- Calls visit(p) with the numbers of each example that is legal on the target, and with these but
-- for one. Such a shape may be one for which lists of values fail.
local function each_shape(s, target, visit)
    for _, example in ipairs(s.examples or {}) do
        local ok, found = pcall(resolve, s, {parameters = example, target = target})
        for _, parameters in ipairs(ok and {s.problem, s.numeric} or {}) do
            for name, kind in pairs(parameters) do
                for _, value in ipairs(values_of(kind)) do
                    pcall(visit, setmetatable({[name] = value}, {__index = found.p}))
                end
            end
        end
        if ok then visit(found.p) end
    end
end

-- Adds the values that the tuning parameter of a schedule may have.
local function add_values(values, s, name, target)
    local list = s.tuning[name]
    local function add(each)
        for _, value in ipairs(each) do values[value] = true end
    end
    if type(list) == "table" then return add(list) end
    each_shape(s, target, function(p) add(list(p, target)) end)
end

-- Numbers before names, each in order.
local function sorted_texts(values)
    local list, texts = {}, {}
    for value in pairs(values) do list[#list + 1] = value end
    table.sort(list, function(a, b)
        if type(a) ~= type(b) then return type(a) == "number" end
        return a < b
    end)
    for i, value in ipairs(list) do texts[i] = tostring(value) end
    return table.concat(texts, ", ")
end

--- Whether a schedule of the list has the tuning name = value on the target, at some shape. nil =
-- yes; else what can be given instead.
function schedules.refused_pin(names, target, name, value)
    local known, values, is_known = {}, {}, false
    for _, each in ipairs(names) do
        local s = engine:schedule(each)
        for tuning in pairs(s.tuning) do known[tuning] = true end
        if s.tuning[name] then
            is_known = true
            add_values(values, s, name, target)
        end
    end
    if not is_known then
        return "a tuning parameter of the kernels of this run, one of "
            .. table.concat(sorted_names(known), ", ")
    end
    if not values[value] then
        return ("%s to be one of %s on %s"):format(name, sorted_texts(values), target.name)
    end
end

return schedules
