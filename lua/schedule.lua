--- schedule.lua - a schedule's table: what it must contain, and what its numbers resolve to.
--
-- A schedule describes a kernel family. Its parameters come in four kinds, resolved in this order:
--
--     problem   shape of the work; every key given by the caller; part of the kernel's identity
--     numeric   changes bits; the first value unless configuration names another one of the list
--               (of the type, when the list names one: {1, type = "u32"})
--     tuning    never changes bits; the first legal combination unless a record, a pin or a seed
--               picks another one
--     derived   numbers that `derive` computes of all the above; `valid` sees them too
--
-- Resolution walks the combinations of the tuning lists in order (last name, alphabetically,
-- fastest), keeps those that `valid` and the device's limits accept, and never looks at a clock.
-- Random draws use the integer generator of this file, so a seed means the same on all machines.
--
-- Resolved numbers are one table `p`; reading a name that is not there is an error.
-- Not here: text (render.lua), laws (laws.lua).

local schedule = {}

local definition = {}
definition.__index = definition

local required = {
    name = "string", summary = "string", problem = "table", launch = "function",
    template = "string",
}
local optional = {
    mirrors = "table", numeric = "table", tuning = "table", valid = "function", derive = "function",
    shared = "function", maps = "function", exports = "function", examples = "table",
    waits = "table", claims = "function",
}

local number_types = {
    u32 = {0, (1 << 32) - 1}, i32 = {-(1 << 31), (1 << 31) - 1},
    u64 = {0, math.maxinteger}, i64 = {math.mininteger, math.maxinteger},
}

--- Bytes of the C types that arguments and shared arrays may have.
schedule.type_bytes = {
    u8 = 1, i8 = 1, u16 = 2, i16 = 2, h16 = 2, u32 = 4, i32 = 4, f32 = 4, u64 = 8, i64 = 8,
}

-- Shared arrays start at multiples of this; a checked build leaves GAP bytes after each.
local SHARED_ALIGN = 16
local GAP = 64
local MAX_BLOCK = 1024
local MAX_COMBINATIONS = 65536
local DRAWS = 4096

local function fail(where, what, expected, got)
    error(("schedule %s: %s: expected %s, got %s"):format(where, what, expected, tostring(got)), 0)
end

--- Names of a table, sorted.
function schedule.sorted_names(t)
    local names = {}
    for name in pairs(t) do
        names[#names + 1] = name
    end
    table.sort(names)
    return names
end

local sorted_names = schedule.sorted_names

local function is_identifier(text)
    return type(text) == "string" and text:match("^[%a_][%w_]*$") ~= nil
end

local function check_argument(name, index, argument)
    if type(argument) ~= "table" or not is_identifier(argument[1]) then
        fail(name, "args[" .. index .. "]", "{name, C type, shape comment}", argument)
    end
    local base = tostring(argument[2]):gsub("__restrict__", ""):gsub("const", ""):gsub("%*", "")
    base = base:gsub("%s", "")
    if not schedule.type_bytes[base] and base ~= "void" then
        fail(name, "args." .. argument[1], "a type of the prelude", argument[2])
    end
    if type(argument[3]) ~= "string" then
        fail(name, "args." .. argument[1], "a shape comment", argument[3])
    end
end

local function check_arguments(name, args)
    if type(args) ~= "table" then
        fail(name, "args", "a list", args)
    end
    for index, argument in ipairs(args) do
        check_argument(name, index, argument)
    end
    return args
end

local function check_names_apart(s)
    local owner = {}
    local function claim(name, kind)
        if not is_identifier(name) then
            fail(s.name, kind, "identifiers", name)
        end
        if owner[name] then
            fail(s.name, name, "one meaning", owner[name] .. " and " .. kind)
        end
        owner[name] = kind
    end
    for _, kind in ipairs {"problem", "numeric", "tuning"} do
        for _, name in ipairs(sorted_names(s[kind])) do
            claim(name, kind)
        end
    end
end

local function check_types(s)
    for name, kind in pairs(s.problem) do
        if type(kind) ~= "table" and kind ~= "text" and not number_types[kind] then
            fail(s.name, "problem." .. name, "u32, i32, u64, i64, text or a list of values", kind)
        end
    end
    for name, list in pairs(s.numeric) do
        if type(list) == "table" and list.type and not number_types[list.type] then
            fail(s.name, "numeric." .. name .. ".type", "u32, i32, u64 or i64", list.type)
        end
    end
end

--- Checks a schedule's table and returns the schedule. See lua/README.md for the fields.
function schedule.define(t)
    local name = type(t) == "table" and t.name or "?"
    if not is_identifier(name) then
        fail(tostring(name), "name", "an identifier", name)
    end
    for field, kind in pairs(required) do
        if type(t[field]) ~= kind then
            fail(name, field, "a " .. kind, t[field])
        end
    end
    if type(t.args) ~= "table" and type(t.args) ~= "function" then
        fail(name, "args", "a list or a function that gives one", t.args)
    end
    for field, value in pairs(t) do
        local kind = required[field] or optional[field] or (field == "args" and type(value))
        if not kind then
            fail(name, "field " .. tostring(field), "a known field", "this one")
        elseif type(value) ~= kind then
            fail(name, field, "a " .. kind, value)
        end
    end
    t.numeric, t.tuning, t.mirrors = t.numeric or {}, t.tuning or {}, t.mirrors or {}
    if type(t.args) == "table" then
        check_arguments(name, t.args)
    end
    check_names_apart(t)
    check_types(t)
    return setmetatable(t, definition)
end

--- True for what define() returned.
function schedule.is(value)
    return getmetatable(value) == definition
end

-- A table whose missing names are errors.
local function sealed(values, who)
    return setmetatable(values, {__index = function(_, name)
        error(("schedule %s: no parameter or derived number named %s"):format(who, tostring(name)),
            2)
    end})
end

--- A generator of pseudo-random integers: xorshift64*, the same everywhere.
-- below(n) gives 0 .. n-1.
function schedule.generator(seed)
    local state = seed * 2685821657736338717 + 1442695040888963407
    if state == 0 then
        state = 88172645463325252
    end
    local self = {}
    function self.below(n)
        state = state ~ (state >> 12)
        state = state ~ (state << 25)
        state = state ~ (state >> 27)
        return ((state * 2685821657736338717) >> 33) % n
    end
    for _ = 1, 8 do
        self.below(2)
    end
    return self
end

local function list_text(list)
    local texts = {}
    for k, value in ipairs(list) do
        texts[k] = tostring(value)
    end
    return table.concat(texts, ", ")
end

local function contains(list, value)
    for _, each in ipairs(list) do
        if each == value then
            return true
        end
    end
    return false
end

local function is_number_of(kind, value)
    local range = number_types[kind]
    return math.type(value) == "integer" and value >= range[1] and value <= range[2]
end

local function resolve_problem(s, parameters, p)
    for _, name in ipairs(sorted_names(s.problem)) do
        local kind, value = s.problem[name], parameters[name]
        if value == nil then
            fail(s.name, "parameter " .. name, type(kind) == "table" and list_text(kind) or kind,
                "nothing")
        end
        if type(kind) == "table" then
            if not contains(kind, value) then
                fail(s.name, "parameter " .. name, "one of " .. list_text(kind), value)
            end
        elseif kind == "text" then
            if type(value) ~= "string" then
                fail(s.name, "parameter " .. name, "text", value)
            end
        elseif not is_number_of(kind, value) then
            fail(s.name, "parameter " .. name, kind, value)
        end
        p[name] = value
    end
end

local function value_list(s, kind, name, p, target)
    local list = s[kind][name]
    if type(list) == "function" then
        list = list(p, target)
    end
    if type(list) ~= "table" or #list == 0 then
        fail(s.name, kind .. "." .. name, "a list of values", list)
    end
    return list
end

local function resolve_numeric(s, parameters, p, target)
    local numeric = {}
    for _, name in ipairs(sorted_names(s.numeric)) do
        local list = value_list(s, "numeric", name, p, target)
        local value = parameters[name]
        if value == nil then
            value = list[1]
        elseif list.type and not is_number_of(list.type, value) then
            fail(s.name, "numeric parameter " .. name, list.type, value)
        elseif not list.type and not contains(list, value) then
            fail(s.name, "numeric parameter " .. name, "one of " .. list_text(list), value)
        end
        numeric[name] = value
    end
    for name, value in pairs(numeric) do
        p[name] = value
    end
    return numeric
end

local function check_known(s, parameters, tuning)
    for _, name in ipairs(sorted_names(parameters)) do
        if not (s.problem[name] or s.numeric[name] or s.tuning[name]) then
            local known = {}
            for _, kind in ipairs {"problem", "numeric", "tuning"} do
                for _, each in ipairs(sorted_names(s[kind])) do
                    known[#known + 1] = each
                end
            end
            fail(s.name, "parameter " .. name, "one of " .. list_text(known), "an unknown name")
        end
    end
    for _, name in ipairs(sorted_names(tuning)) do
        if not s.tuning[name] then
            fail(s.name, "tuning parameter " .. name,
                "one of " .. list_text(sorted_names(s.tuning)), "an unknown name")
        end
    end
end

-- The lists that tuning is drawn from; pinned names have lists of one value.
local function tuning_lists(s, pinned, p, target)
    local names, lists, product = sorted_names(s.tuning), {}, 1
    for k, name in ipairs(names) do
        local list = value_list(s, "tuning", name, p, target)
        if pinned[name] ~= nil then
            if not contains(list, pinned[name]) then
                fail(s.name, "tuning parameter " .. name, "one of " .. list_text(list),
                    pinned[name])
            end
            list = {pinned[name]}
        end
        lists[k] = list
        product = product * #list
    end
    return names, lists, product
end

-- The combination number `index` (0-based), the last name fastest.
local function combination(names, lists, index)
    local values = {}
    for k = #names, 1, -1 do
        values[names[k]] = lists[k][index % #lists[k] + 1]
        index = index // #lists[k]
    end
    return values
end

--- Offsets of shared arrays: returns {name = {type, offset, count}}, total bytes, gaps.
-- Arrays are {name, C type, count}; each starts at a multiple of 16 bytes. With `checked`
-- 64 bytes stay free after each: gaps is the list of {offset, bytes}.
function schedule.shared_layout(where, arrays, checked)
    local layout, gaps, at = {}, {}, 0
    for index, array in ipairs(arrays) do
        local name, type_name, count = array[1], array[2], array[3]
        local bytes = schedule.type_bytes[type_name]
        if not is_identifier(name) or not bytes or math.type(count) ~= "integer" or count < 0 then
            fail(where, "shared[" .. index .. "]", "{name, C type, count}",
                ("{%s, %s, %s}"):format(tostring(name), tostring(type_name), tostring(count)))
        end
        if layout[name] then
            fail(where, "shared." .. name, "one array of that name", "two")
        end
        layout[name] = {type = type_name, offset = at, count = count}
        local finish = at + bytes * count
        at = (finish + SHARED_ALIGN - 1) // SHARED_ALIGN * SHARED_ALIGN
        if checked then
            at = (finish + GAP + SHARED_ALIGN - 1) // SHARED_ALIGN * SHARED_ALIGN
            gaps[#gaps + 1] = {offset = finish, bytes = at - finish}
        end
    end
    return layout, at, gaps
end

local launch_fields = {
    grid = true, block = true, cooperative = true, overlaps = true, min_ctas = true,
}

local function check_launch(s, launch)
    if type(launch) ~= "table" then
        fail(s.name, "launch", "a table with grid and block", launch)
    end
    for field in pairs(launch) do
        if not launch_fields[field] then
            fail(s.name, "launch", "grid, block, cooperative, overlaps or min_ctas", field)
        end
    end
    for _, field in ipairs {"grid", "block"} do
        if math.type(launch[field]) ~= "integer" or launch[field] < 1 then
            fail(s.name, "launch." .. field, "an integer of at least 1", launch[field])
        end
    end
    if launch.min_ctas and (math.type(launch.min_ctas) ~= "integer" or launch.min_ctas < 1) then
        fail(s.name, "launch.min_ctas", "an integer of at least 1", launch.min_ctas)
    end
end

-- The derived numbers. Values that `valid` refuses may make `derive` fail first (a division by
-- zero, say): then the sentence of `valid` counts.
local function derive(s, p, target)
    if not s.derive then
        return {}
    end
    local ok, derived = pcall(s.derive, p, target)
    if ok then
        return derived
    end
    local judged, reason = pcall(s.valid or function() end, p, target)
    if judged and reason then
        return nil, reason
    end
    error(derived, 0)
end

-- Completes a combination: p with derived numbers, geometry, shared layout. Returns nil and a
-- sentence when the combination is not legal.
local function complete(s, base, tuning, target)
    local p = {}
    for name, value in pairs(base) do p[name] = value end
    for name, value in pairs(tuning) do p[name] = value end
    sealed(p, s.name)
    local derived, failure = derive(s, p, target)
    if not derived then
        return nil, failure
    end
    for name, value in pairs(derived) do
        if rawget(p, name) ~= nil then
            fail(s.name, "derive." .. tostring(name), "a new name", "one that is a parameter")
        end
        p[name] = value
    end
    local reason = s.valid and s.valid(p, target)
    if reason then
        return nil, reason
    end
    local launch = s.launch(p, target)
    check_launch(s, launch)
    if launch.block > MAX_BLOCK then
        return nil, ("a block of %d threads; the limit is %d"):format(launch.block, MAX_BLOCK)
    end
    local arrays = s.shared and s.shared(p, target) or {}
    local layout, bytes, gaps = schedule.shared_layout(s.name, arrays, target.check)
    if bytes > target.shared_per_block then
        return nil, ("%d bytes of shared memory a block; %s has %d"):format(bytes, target.name,
            target.shared_per_block)
    end
    local args = s.args
    if type(args) == "function" then
        args = check_arguments(s.name, args(p, target))
    end
    return {p = p, args = args, launch = launch, tuning = tuning, shared = layout,
        shared_bytes = bytes, shared_gaps = gaps}
end

local function first_legal(s, base, names, lists, product, target)
    local first_reason
    for index = 0, math.min(product, MAX_COMBINATIONS) - 1 do
        local found, reason = complete(s, base, combination(names, lists, index), target)
        if found then
            return found
        end
        first_reason = first_reason or reason
    end
    error(("schedule %s: %s"):format(s.name, first_reason), 0)
end

-- Uniform over the legal combinations: rejection from the whole product.
local function random_legal(s, base, names, lists, product, target, seed)
    local generator = schedule.generator(seed)
    for _ = 1, DRAWS do
        local found = complete(s, base, combination(names, lists, generator.below(product)), target)
        if found then
            return found
        end
    end
    return first_legal(s, base, names, lists, product, target)
end

local target_fields = {"sms", "shared_per_sm", "shared_per_block", "registers_per_sm", "arch"}

local function check_target(s, target)
    if type(target) ~= "table" or type(target.name) ~= "string" then
        fail(s.name, "target", "a table with a name", target)
    end
    for _, field in ipairs(target_fields) do
        if math.type(target[field]) ~= "integer" then
            fail(s.name, "target." .. field, "an integer", target[field])
        end
    end
end

--- Resolves all numbers of a request.
-- options: parameters {name = number|string}, target, tuning {name = value} or nil, seed or nil.
-- A name of `tuning`, or a tuning name among `parameters`, pins that value (parameters win).
-- Returns {p, args, numeric, tuning, launch, shared, shared_bytes, shared_gaps}; errors are
-- sentences.
function schedule.resolve(s, options)
    local parameters, target = options.parameters or {}, options.target
    check_target(s, target)
    check_known(s, parameters, options.tuning or {})
    local p = {}
    resolve_problem(s, parameters, p)
    local numeric = resolve_numeric(s, parameters, sealed(p, s.name), target)
    local pinned = {}
    for name in pairs(s.tuning) do
        pinned[name] = parameters[name]
        if pinned[name] == nil and options.tuning then
            pinned[name] = options.tuning[name]
        end
    end
    local names, lists, product = tuning_lists(s, pinned, p, target)
    local found
    if options.seed then
        found = random_legal(s, p, names, lists, product, target, options.seed)
    else
        found = first_legal(s, p, names, lists, product, target)
    end
    found.numeric = numeric
    return found
end

--- All legal tuning combinations of a request (at most `limit`), in resolution order: a list of
-- {name = value}.
function schedule.combinations(s, options, limit)
    local p = {}
    check_target(s, options.target)
    check_known(s, options.parameters, {})
    resolve_problem(s, options.parameters, p)
    resolve_numeric(s, options.parameters, sealed(p, s.name), options.target)
    local names, lists, product = tuning_lists(s, options.parameters, p, options.target)
    local list = {}
    for index = 0, math.min(product, MAX_COMBINATIONS) - 1 do
        if #list == limit then
            break
        end
        local values = combination(names, lists, index)
        if complete(s, p, values, options.target) then
            list[#list + 1] = values
        end
    end
    return list
end

return schedule
