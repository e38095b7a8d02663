--- check.lua - tables of named arguments, checked at the top of every function; texts of values.
--
-- Errors carry no position: the program puts the script's own line before them.

local check = {}

--- Raises a sentence.
function check.fail(...)
    error(string.format(...), 0)
end

--- The names of a table, sorted.
function check.names(t)
    local names = {}
    for name in pairs(t) do
        names[#names + 1] = tostring(name)
    end
    table.sort(names)
    return names
end

local function type_of(value)
    return math.type(value) == "integer" and "integer" or type(value)
end

-- kinds: "string|table", with "?" at its end for what may be nil.
local function fits(value, kinds)
    if value == nil then
        return kinds:sub(-1) == "?"
    end
    for kind in kinds:gsub("%?$", ""):gmatch("[^|]+") do
        if kind == type(value) or kind == type_of(value) then
            return true
        end
    end
    return false
end

--- Checks options against fields = {name = kinds}; `who` begins the sentence. Returns options.
function check.options(who, options, fields)
    if type(options) ~= "table" then
        check.fail("%s: expected a table, got %s", who, type(options))
    end
    for name in pairs(options) do
        if not fields[name] then
            check.fail("%s: unknown field %s; expected one of %s", who, tostring(name),
                table.concat(check.names(fields), ", "))
        end
    end
    for _, name in ipairs(check.names(fields)) do
        if not fits(options[name], fields[name]) then
            check.fail("%s: %s: expected %s, got %s", who, name,
                fields[name]:gsub("%?$", ""):gsub("|", " or "),
                options[name] == nil and "nothing" or type_of(options[name]))
        end
    end
    return options
end

--- "map=strided warps=4"; "-" for an empty table.
function check.text(values)
    local words = {}
    for k, name in ipairs(check.names(values)) do
        words[k] = name .. "=" .. tostring(values[name])
    end
    return #words > 0 and table.concat(words, " ") or "-"
end

--- "[2, 17]"
function check.place(place)
    return "[" .. table.concat(place, ", ") .. "]"
end

--- JSON of integers, texts and tables of these, names sorted.
function check.json(value)
    if type(value) == "table" then
        local parts = {}
        for k, name in ipairs(check.names(value)) do
            parts[k] = check.json(name) .. ": " .. check.json(value[name])
        end
        return "{" .. table.concat(parts, ", ") .. "}"
    elseif type(value) == "string" then
        return '"' .. value:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end)
            .. '"'
    end
    return tostring(value)
end

--- A copy of `a` with the fields of `b` over it.
function check.merged(a, b)
    local all = {}
    for name, value in pairs(a) do all[name] = value end
    for name, value in pairs(b or {}) do all[name] = value end
    return all
end

return check
