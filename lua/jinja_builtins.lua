--- jinja_builtins: attributes and methods of values, filters, tests and global functions.
--
-- A filter or test is a function (state, v, ...) with its parameters' names beside it; bind()
-- sorts positional and named arguments into them, nil where none is given. Functions that
-- templates call get (state, arguments, named): an array with n, and a dict or nil.
--
-- Output follows jinja2 3.1 without autoescape, with the changes transformers makes: tojson is
-- json.dumps without ASCII or HTML escapes; raise_exception and strftime_now exist. `safe` and
-- `escape` give plain strings.

local value = require "jinja_value"
local text = require "jinja_text"
local json = require "jinja_json"

local fault = value.fault
local builtins = { filters = {}, tests = {}, globals = {} }
local filters, tests, globals = builtins.filters, builtins.tests, builtins.globals

-- ---- attributes and items

local dict_methods = {
  items = function(dict) return value.view("dict_items", value.dict_pairs(dict), dict.n) end,
  keys = function(dict)
    return value.view("dict_keys", table.move(dict.keys, 1, dict.n, 1, {}), dict.n)
  end,
  values = function(dict)
    return value.view("dict_values", table.move(dict.values, 1, dict.n, 1, {}), dict.n)
  end,
  copy = function(dict) return dict end,
  get = function(dict, arguments)
    if arguments.n < 1 or arguments.n > 2 then fault("get expected 1 or 2 arguments") end
    local found = value.dict_get(dict, arguments[1])
    if found ~= nil then return found end
    return arguments[2] == nil and value.none or arguments[2]
  end,
}

local array_methods = {
  index = function(array, arguments)
    for i = 1, array.n do
      if value.equal(array[i], arguments[1]) then return i - 1 end
    end
    return fault("%s is not in list", value.repr(arguments[1]))
  end,
  count = function(array, arguments)
    local n = 0
    for i = 1, array.n do
      if value.equal(array[i], arguments[1]) then n = n + 1 end
    end
    return n
  end,
  copy = function(array) return array end,
}

--- What jinja2's immutable sandbox hides.
local mutators = {
  list = {
    append = true, clear = true, extend = true, insert = true, pop = true, remove = true,
    reverse = true, sort = true,
  },
  dict = { clear = true, pop = true, popitem = true, setdefault = true, update = true },
}

--- Filled by the interpreter: the fields of `loop`.
builtins.loop_fields = {}

local methods_of = {
  str = text.methods, dict = dict_methods, list = array_methods, tuple = array_methods,
  range = array_methods,
}

local type_names = { NoneType = "None", str = "str object", int = "int object" }

local function no_attribute(v, name)
  local kind = value.kind(v)
  local shown = type(name) == "string" and "attribute '" .. name .. "'"
    or "element " .. value.str(name)
  return value.undefined((type_names[kind] or "'" .. kind .. " object'") .. " has no " .. shown)
end

local function bound(v, name, method)
  return value.callable(name, function(state, arguments, named)
    return method(v, arguments, named, state)
  end)
end

--- The Python attribute, or nil.
local function attribute(v, name)
  local kind = value.kind(v)
  if kind == "Undefined" then fault("%s", v.text) end
  local method = methods_of[kind] and methods_of[kind][name]
  if method then return bound(v, name, method) end
  if mutators[kind] and mutators[kind][name] then
    return value.undefined(
      "access to attribute '" .. name .. "' of '" .. kind .. "' object is unsafe.")
  end
  if kind == "loop" then
    local field = builtins.loop_fields[name]
    return field and field(v)
  end
  if kind == "namespace" then return value.dict_get(v.dict, name) end
  if kind == "tuple" and v.names and v.names[name] then return v[v.names[name]] end
  if kind == "function" and name == "name" then return v.name end
  return nil
end

--- v[key] as Python's subscription; nil when that would raise.
local function subscript(v, key)
  local kind = value.kind(v)
  if kind == "dict" then
    local key_kind = value.kind(key)
    if key_kind == "list" or key_kind == "dict" then return nil end
    return value.dict_get(v, key)
  end
  if kind == "str" or value.is_array(v) then
    local index = value.number(key)
    if math.type(index) == "integer" then return value.index(v, index) end
  end
  return nil
end

--- v.name: attribute first, then item.
function builtins.get_attribute(v, name)
  local found = attribute(v, name)
  if found == nil then found = subscript(v, name) end
  if found == nil then return no_attribute(v, name) end
  return found
end

--- v[key]: item first, then attribute.
function builtins.get_item(v, key)
  if value.is_undefined(v) then fault("%s", v.text) end
  local found = subscript(v, key)
  if found == nil and type(key) == "string" then found = attribute(v, key) end
  if found == nil then return no_attribute(v, key) end
  return found
end

text.methods.format = function(s, arguments, named)
  return text.format(s, arguments, named, function(v, name, is_item)
    if is_item then return builtins.get_item(v, name) end
    return builtins.get_attribute(v, name)
  end)
end

-- ---- arguments

--- Sorts arguments into parameters; returns an array with nil where none is given.
local function bind(name, parameters, arguments, named)
  if arguments.n > #parameters then
    fault("%s() takes at most %d arguments, got %d", name, #parameters, arguments.n)
  end
  local bound_values = table.move(arguments, 1, arguments.n, 1, {})
  for i = 1, named and named.n or 0 do
    local at
    for p, parameter in ipairs(parameters) do
      if parameter == named.keys[i] then at = p end
    end
    if not at then fault("%s() got an unexpected keyword argument '%s'", name, named.keys[i]) end
    if bound_values[at] ~= nil then
      fault("%s() got multiple values for argument '%s'", name, named.keys[i])
    end
    bound_values[at] = named.values[i]
  end
  return bound_values
end

local function define(registry, names, parameters, required, body)
  for name in names:gmatch("%S+") do
    registry[name] = function(state, v, arguments, named)
      local given = bind(name, parameters, arguments, named)
      for i = 1, required do
        if given[i] == nil then
          fault("%s() missing the required argument '%s'", name, parameters[i])
        end
      end
      return body(state, v, table.unpack(given, 1, #parameters))
    end
  end
end

local function filter(names, parameters, body, required)
  define(filters, names, parameters, required or 0, body)
end

local function test(names, parameters, body)
  define(tests, names, parameters, #parameters, body)
end

local function flag(v, default)
  if v == nil then return default end
  return value.truth(v)
end

--- None and "not given" are the same for most optional parameters.
local function optional(v)
  if v == value.none then return nil end
  return v
end

function builtins.call_filter(state, name, v, arguments, named)
  local body = filters[name]
  if not body then fault("No filter named '%s'.", name) end
  return body(state, v, arguments, named)
end

function builtins.call_test(state, name, v, arguments, named)
  local body = tests[name]
  if not body then fault("No test named '%s'.", name) end
  return value.truth(body(state, v, arguments, named))
end

local function count_steps(state, n)
  state.steps = state.steps + n
  if state.steps > value.limits.steps then
    value.over_limit("the template takes too many steps")
  end
end
builtins.count_steps = count_steps

--- The items of v, counted against the limit of steps.
local function items_of(state, v)
  local items, n = value.iterate(v)
  count_steps(state, n)
  return items, n
end

-- ---- keys for sort, map, groupby ...

--- "a.b.0" -> a function that walks the path. default replaces undefined results.
local function getter(path, default)
  local parts = {}
  if type(path) == "string" then
    for part in (path .. "."):gmatch("(.-)%.") do
      parts[#parts + 1] = part:find("^%d+$") and math.tointeger(tonumber(part)) or part
    end
  else
    parts[1] = path
  end
  return function(v)
    for _, part in ipairs(parts) do
      v = builtins.get_item(v, part)
      if default ~= nil and value.is_undefined(v) then v = default end
    end
    return v
  end
end

local function fold_case(v)
  return type(v) == "string" and text.lower(v) or v
end

--- Key function of sort, min, max, unique, groupby.
local function key_of(path, case_sensitive, default)
  local get = path ~= nil and getter(path, default) or function(v) return v end
  if case_sensitive then return get end
  return function(v) return fold_case(get(v)) end
end

--- Keys by several comma-separated paths become lists, which compare item by item.
local function sort_key(path, case_sensitive)
  if type(path) ~= "string" or not path:find(",", 1, true) then
    return key_of(path, case_sensitive)
  end
  local parts = {}
  for part in path:gmatch("[^,]+") do parts[#parts + 1] = key_of(part, case_sensitive) end
  return function(v)
    local keys = {}
    for i, part in ipairs(parts) do keys[i] = part(v) end
    return value.list(keys, #parts)
  end
end

--- Stable merge sort of items by keys. before(a, b): a must come before b.
local function merge_sort(items, keys, n, before)
  local from, from_keys, to, to_keys = items, keys, {}, {}
  local width = 1
  while width < n do
    for start = 1, n, 2 * width do
      local left, right = start, math.min(start + width, n + 1)
      local middle, stop = right, math.min(start + 2 * width, n + 1)
      for at = start, stop - 1 do
        local take_right = left >= middle
          or right < stop and before(from_keys[right], from_keys[left])
        local source = take_right and right or left
        to[at], to_keys[at] = from[source], from_keys[source]
        if take_right then right = right + 1 else left = left + 1 end
      end
    end
    from, from_keys, to, to_keys = to, to_keys, from, from_keys
    width = 2 * width
  end
  return from, from_keys
end

--- A sorted copy of v's items and their keys. Undefined values may stand beside each other, as
-- in jinja2, but not beside others.
local function sorted(state, v, key, reverse)
  local items, n = items_of(state, v)
  local copy, keys = table.move(items, 1, n, 1, {}), {}
  for i = 1, n do keys[i] = key(copy[i]) end
  count_steps(state, n)
  local function before(a, b)
    if value.is_undefined(a) and value.is_undefined(b) then return false end
    if reverse then a, b = b, a end
    return value.less(a, b)
  end
  local result, result_keys = merge_sort(copy, keys, n, before)
  return result, n, result_keys
end

-- ---- filters on text

filter("lower", {}, function(_, v) return text.lower(value.str(v)) end)
filter("upper", {}, function(_, v) return text.upper(value.str(v)) end)
filter("capitalize", {}, function(_, v) return text.capitalize(value.str(v)) end)
filter("string", {}, function(_, v) return value.str(v) end)
filter("safe", {}, function(_, v) return value.str(v) end)

filter("title", {}, function(_, v)
  local out, first = {}, true
  for i, character in ipairs((value.characters(value.str(v)))) do
    out[i] = first and text.upper(character) or text.lower(character)
    first = text.is_blank(character) or character:find("^[-({%[<]$") ~= nil
  end
  return table.concat(out)
end)

filter("trim", { "chars" }, function(_, v, chars) return text.strip(value.str(v), chars) end)

local entities = {
  ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&#34;", ["'"] = "&#39;",
}
filter("e escape forceescape", {}, function(_, v)
  local escaped = value.str(v):gsub("[&<>\"']", entities)
  value.check_size(#escaped)
  return escaped
end)

filter("replace", { "old", "new", "count" }, function(_, v, old, new, count)
  return text.replace(value.str(v), value.str(old), value.str(new), optional(count))
end, 2)

filter("center", { "width" }, function(_, v, width)
  return text.center(value.str(v), width or 80)
end)

filter("indent", { "width", "first", "blank" }, function(_, v, width, first, blank)
  local margin = type(width) == "string" and width
    or (" "):rep(math.max(0, text.need_integer(width, 4)))
  local lines, out, size = text.splitlines(text.need(v, "the value of indent") .. "\n"), {}, 0
  for i = 1, lines.n do
    local line = lines[i]
    if i > 1 and (line ~= "" or flag(blank, false)) then line = margin .. line end
    size = size + #line + 1
    value.check_size(size)
    out[i] = line
  end
  return (flag(first, false) and margin or "") .. table.concat(out, "\n")
end)

filter("truncate", { "length", "killwords", "end", "leeway" },
  function(_, v, length, killwords, ending, leeway)
    local size = value.length(v) or fault("object of type '%s' has no len()", value.kind(v))
    length, leeway = text.need_integer(length, 255), text.need_integer(optional(leeway), 5)
    ending = ending or "..."
    if size <= length + leeway then return v end
    local s = text.need(v, "the value of truncate")
    local cut = value.slice(s, 0, math.max(0, length - utf8.len(ending)))
    if not flag(killwords, false) then cut = text.rsplit(cut, " ", 1)[1] end
    return cut .. ending
  end)

filter("wordcount", {}, function(_, v)
  local count, inside = 0, false
  for _, character in ipairs((value.characters(value.str(v)))) do
    local word = text.is_word(character)
    if word and not inside then count = count + 1 end
    inside = word
  end
  return count
end)

filters.format = function(_, v, arguments, named)
  if named and named.n > 0 then
    if arguments.n > 0 then fault("format takes positional or named arguments, not both") end
    return text.percent(value.str(v), named)
  end
  return text.percent(value.str(v), value.tuple(arguments, arguments.n))
end

filter("tojson", { "ensure_ascii", "indent", "separators", "sort_keys" },
  function(_, v, ascii, indent, separators, sort_keys)
    local options = { ascii = flag(ascii, false), sort_keys = flag(sort_keys, false) }
    if type(indent) == "string" then
      options.indent = indent
    elseif optional(indent) ~= nil then
      options.indent = (" "):rep(math.min(math.max(0, text.need_integer(indent)), 1000))
    end
    if optional(separators) ~= nil then
      options.comma, options.colon = separators[1], separators[2]
    end
    return json.dump(v, options)
  end)

-- ---- filters on numbers

filter("abs", {}, function(_, v)
  local n = value.number(v)
  if not n then fault("bad operand type for abs(): '%s'", value.kind(v)) end
  return n < 0 and value.negate(n) or n
end)

--- int(text) of Python, or nil.
local function integer_of_text(s, base)
  s = text.strip(s)
  local sign, digits = s:match("^([+-]?)([%w_]+)$")
  if not digits or digits:find("__", 1, true) or digits:find("_$") then return nil end
  local prefixes = { ["0x"] = 16, ["0o"] = 8, ["0b"] = 2 }
  if prefixes[digits:sub(1, 2):lower()] == base then digits = digits:sub(3) end
  if digits:find("^_") and base == 10 then return nil end
  digits = digits:gsub("_", "")
  if base == 10 then
    return digits:find("^%d+$") and value.integer(sign:gsub("%+", "") .. digits) or nil
  end
  local n = tonumber(digits, base)
  return n and (sign == "-" and -n or n)
end

--- float(text) of Python, or nil.
local function float_of_text(s)
  s = text.strip(s):lower()
  local sign, name = s:match("^([+-]?)(%a+)$")
  if name == "inf" or name == "infinity" then return sign == "-" and -math.huge or math.huge end
  if name == "nan" then return 0 / 0 end
  if s:find("__", 1, true) or s:find("_$") or s:find("^[+-]?_") then return nil end
  s = s:gsub("(%d)_(%d)", "%1%2"):gsub("(%d)_(%d)", "%1%2")
  if not s:find("^[+-]?%d*%.?%d*e?[+-]?%d*$") or not s:find("%d") then return nil end
  s = s:gsub("^%+", "")
  return tonumber(s:find("[.e]") and s or s .. ".0")
end

local function truncate_float(x)
  if x ~= x or math.abs(x) == math.huge then return nil end
  local whole = x < 0 and math.ceil(x) or math.floor(x)
  return math.tointeger(whole) or value.integer(string.format("%.0f", whole))
end

filter("int", { "default", "base" }, function(_, v, default, base)
  if value.is_undefined(v) then fault("%s", v.text) end
  base = text.need_integer(base, 10)
  if default == nil then default = 0 end
  if type(v) == "string" then
    local found = integer_of_text(v, base)
    if found ~= nil then return found end
    local float = float_of_text(v)
    return float and truncate_float(float) or default
  end
  local n = value.number(v)
  if value.is_big(v) then return v end
  if math.type(n) == "float" then return truncate_float(n) or default end
  return n or default
end)

filter("float", { "default" }, function(_, v, default)
  if value.is_undefined(v) then fault("%s", v.text) end
  local n = value.number(v)
  if type(v) == "string" then n = float_of_text(v) end
  if value.is_big(v) then n = tonumber(v.digits) end
  if math.type(n) == "integer" then return n + 0.0 end
  if n then return n end
  return default == nil and 0.0 or default
end)

local function round_common(n, precision)
  if math.type(n) == "integer" and precision >= 0 then return n end
  if precision >= 0 then
    local digits = string.format("%." .. math.min(precision, 99) .. "f", n)
    return tonumber(digits .. (precision == 0 and ".0" or ""))
  end
  local unit = 10 ^ -precision
  local scaled = n / unit
  local whole = math.floor(scaled)
  local rest = scaled - whole
  if rest > 0.5 or rest == 0.5 and whole % 2 == 1 then whole = whole + 1 end
  local rounded = whole * unit
  return math.type(n) == "integer" and math.tointeger(rounded) or rounded + 0.0
end

filter("round", { "precision", "method" }, function(_, v, precision, method)
  local n = value.number(v)
  if not n then
    if value.is_undefined(v) then fault("%s", v.text) end
    fault("type %s doesn't define __round__ method", value.kind(v))
  end
  precision, method = text.need_integer(precision, 0), method or "common"
  if method == "common" then return round_common(n, precision) end
  if method ~= "ceil" and method ~= "floor" then
    fault("method must be common, ceil or floor")
  end
  local scaled = n * 10 ^ precision
  return math[method](scaled) / 10 ^ precision
end)

-- ---- filters on sequences

filter("default d", { "default_value", "boolean" }, function(_, v, default_value, boolean)
  if value.is_undefined(v) or flag(boolean, false) and not value.truth(v) then
    return default_value == nil and "" or default_value
  end
  return v
end)

filter("length count", {}, function(_, v)
  return value.length(v) or fault("object of type '%s' has no len()", value.kind(v))
end)

filter("list", {}, function(state, v)
  local items, n = items_of(state, v)
  return value.list(table.move(items, 1, n, 1, {}), n)
end)

filter("first", {}, function(state, v)
  local items, n = items_of(state, v)
  if n == 0 then return value.undefined("No first item, sequence was empty.") end
  return items[1]
end)

filter("last", {}, function(state, v)
  if value.kind(v) == "generator" then fault("'generator' object is not reversible") end
  local items, n = items_of(state, v)
  if n == 0 then return value.undefined("No last item, sequence was empty.") end
  return items[n]
end)

filter("join", { "d", "attribute" }, function(state, v, separator, path)
  local items, n = items_of(state, v)
  local get = optional(path) ~= nil and getter(path)
  local parts = {}
  for i = 1, n do parts[i] = value.str(get and get(items[i]) or items[i]) end
  return text.join(value.str(separator == nil and "" or separator), value.list(parts, n))
end)

filter("reverse", {}, function(state, v)
  if type(v) == "string" then return text.reverse(v) end
  local items, n = items_of(state, v)
  local reversed = {}
  for i = 1, n do reversed[i] = items[n + 1 - i] end
  return value.iterator(reversed, n)
end)

filter("sort", { "reverse", "case_sensitive", "attribute" },
  function(state, v, reverse, case_sensitive, path)
    local key = sort_key(optional(path), flag(case_sensitive, false))
    local items, n = sorted(state, v, key, flag(reverse, false))
    return value.list(items, n)
  end)

filter("unique", { "case_sensitive", "attribute" }, function(state, v, case_sensitive, path)
  local items, n = items_of(state, v)
  local key, seen, out = key_of(optional(path), flag(case_sensitive, false)), value.dict(), {}
  for i = 1, n do
    local own = key(items[i])
    if value.dict_get(seen, own) == nil then
      value.dict_set(seen, own, true)
      out[#out + 1] = items[i]
    end
  end
  return value.iterator(out, #out)
end)

local function extreme(prefer)
  return function(state, v, case_sensitive, path)
    local items, n = items_of(state, v)
    if n == 0 then return value.undefined("No aggregated item, sequence was empty.") end
    local key, best = key_of(optional(path), flag(case_sensitive, false)), 1
    for i = 2, n do
      if prefer(key(items[i]), key(items[best])) then best = i end
    end
    return items[best]
  end
end
local extreme_parameters = { "case_sensitive", "attribute" }
filter("min", extreme_parameters, extreme(function(a, b) return value.less(a, b) end))
filter("max", extreme_parameters, extreme(function(a, b) return value.less(b, a) end))

filter("sum", { "attribute", "start" }, function(state, v, path, start)
  local items, n = items_of(state, v)
  local get, total = optional(path) ~= nil and getter(path), start == nil and 0 or start
  for i = 1, n do total = value.add(total, get and get(items[i]) or items[i]) end
  return total
end)

filter("items", {}, function(_, v)
  if value.is_undefined(v) then return value.iterator({}, 0) end
  if value.kind(v) ~= "dict" then fault("Can only get item pairs from a mapping.") end
  return value.iterator(value.dict_pairs(v), v.n)
end)

filter("dictsort", { "case_sensitive", "by", "reverse" },
  function(state, v, case_sensitive, by, reverse)
    if value.kind(v) ~= "dict" then fault("'%s' object has no attribute 'items'", value.kind(v)) end
    local at = ({ key = 1, value = 2 })[by or "key"]
    if not at then fault("You can only sort by either \"key\" or \"value\"") end
    local case = flag(case_sensitive, false)
    local function key(pair) return case and pair[at] or fold_case(pair[at]) end
    local list = value.list(value.dict_pairs(v), v.n)
    local items, n = sorted(state, list, key, flag(reverse, false))
    return value.list(items, n)
  end)

filter("groupby", { "attribute", "default", "case_sensitive" },
  function(state, v, path, default, case_sensitive)
    local case = flag(case_sensitive, false)
    local items, n, keys = sorted(state, v, key_of(path, case, default), false)
    local get, groups = getter(path, default), {}
    for i = 1, n do
      if i == 1 or not value.equal(keys[i], keys[i - 1]) then
        local shown = case and keys[i] or get(items[i])
        groups[#groups + 1] = value.tuple({ shown, value.list({}, 0) }, 2)
        groups[#groups].names = { grouper = 1, list = 2 }
      end
      local members = groups[#groups][2]
      members.n = members.n + 1
      members[members.n] = items[i]
    end
    return value.list(groups, #groups)
  end, 1)

filter("batch", { "linecount", "fill_with" }, function(state, v, size, fill)
  local items, n = items_of(state, v)
  size = text.need_integer(size)
  if size < 1 then fault("batch expects a size of 1 or more") end
  local rows = {}
  for start = 1, n, size do
    local row = table.move(items, start, math.min(n, start + size - 1), 1, {})
    local count = #row
    while optional(fill) ~= nil and count < size do
      count = count + 1
      row[count] = fill
    end
    rows[#rows + 1] = value.list(row, count)
  end
  return value.iterator(rows, #rows)
end, 1)

filter("slice", { "slices", "fill_with" }, function(state, v, slices, fill)
  local items, n = items_of(state, v)
  slices = text.need_integer(slices)
  if slices < 1 then fault("integer division or modulo by zero") end
  count_steps(state, slices)
  local rows, at, long = {}, 1, n % slices
  for i = 1, slices do
    local size = n // slices + (i <= long and 1 or 0)
    local row = table.move(items, at, at + size - 1, 1, {})
    at = at + size
    if optional(fill) ~= nil and i > long then
      size = size + 1
      row[size] = fill
    end
    rows[i] = value.list(row, size)
  end
  return value.iterator(rows, slices)
end, 1)

filter("attr", { "name" }, function(_, v, name)
  local found = attribute(v, value.str(name))
  return found == nil and no_attribute(v, value.str(name)) or found
end, 1)

--- The arguments after the first `skip`.
local function rest(arguments, skip)
  local n = math.max(0, arguments.n - skip)
  local items = table.move(arguments, skip + 1, arguments.n, 1, {})
  items.n = n
  return items
end

--- As items_of, but what is false has no items, even a number.
local function items_if_true(state, v)
  if not value.truth(v) then return {}, 0 end
  return items_of(state, v)
end

filters.map = function(state, v, arguments, named)
  local items, n = items_if_true(state, v)
  local each
  if arguments.n == 0 and named and value.dict_get(named, "attribute") ~= nil then
    local given = bind("map", { "attribute", "default" }, arguments, named)
    each = getter(given[1], given[2])
  else
    if arguments.n == 0 then fault("map requires a filter argument") end
    local name, others = text.need(arguments[1], "a filter's name"), rest(arguments, 1)
    each = function(item) return builtins.call_filter(state, name, item, others, named) end
  end
  local out = {}
  for i = 1, n do out[i] = each(items[i]) end
  return value.iterator(out, n)
end

--- select, reject, selectattr, rejectattr.
local function selection(wanted, by_attribute)
  return function(state, v, arguments, named)
    local items, n = items_if_true(state, v)
    local skip = by_attribute and 1 or 0
    if arguments.n < skip then fault("Missing parameter for attribute name") end
    local get = by_attribute and getter(arguments[1])
    local name, others = arguments[skip + 1], rest(arguments, skip + 1)
    local out = {}
    for i = 1, n do
      local item = items[i]
      if get then item = get(item) end
      local accepted = value.truth(item)
      if name ~= nil then
        accepted = builtins.call_test(state, text.need(name, "a test's name"), item, others, named)
      end
      if accepted == wanted then out[#out + 1] = items[i] end
    end
    return value.iterator(out, #out)
  end
end
filters.select = selection(true, false)
filters.reject = selection(false, false)
filters.selectattr = selection(true, true)
filters.rejectattr = selection(false, true)

-- ---- tests

test("defined", {}, function(_, v) return not value.is_undefined(v) end)
test("undefined", {}, function(_, v) return value.is_undefined(v) end)
test("none", {}, function(_, v) return v == value.none end)
test("true", {}, function(_, v) return v == true end)
test("false", {}, function(_, v) return v == false end)
test("boolean", {}, function(_, v) return type(v) == "boolean" end)
test("integer", {}, function(_, v) return math.type(v) == "integer" or value.is_big(v) end)
test("float", {}, function(_, v) return math.type(v) == "float" end)
test("number", {}, function(_, v) return value.number(v) ~= nil or value.is_big(v) end)
test("string", {}, function(_, v) return type(v) == "string" end)
test("mapping", {}, function(_, v) return value.kind(v) == "dict" end)
test("iterable", {}, function(_, v) return value.is_iterable(v) end)
test("sequence", {}, function(_, v)
  local kind = value.kind(v)
  return kind ~= "view" and kind ~= "generator" and value.is_iterable(v)
end)
test("callable", {}, function(_, v)
  return value.kind(v) == "function" or value.is_undefined(v)
end)
test("escaped", {}, function() return false end)
test("lower", {}, function(_, v) return text.methods.islower(value.str(v), { n = 0 }) end)
test("upper", {}, function(_, v) return text.methods.isupper(value.str(v), { n = 0 }) end)
test("odd", {}, function(_, v) return value.modulo(v, 2) == 1 end)
test("even", {}, function(_, v) return value.modulo(v, 2) == 0 end)
test("divisibleby", { "num" }, function(_, v, number) return value.modulo(v, number) == 0 end)
test("in", { "seq" }, function(_, v, sequence) return value.contains(sequence, v) end)
test("sameas", { "other" }, function(_, v, other)
  return rawequal(v, other) and math.type(v) == math.type(other)
end)
test("filter", {}, function(_, v) return filters[v] ~= nil end)
test("test", {}, function(_, v) return tests[v] ~= nil end)
test("eq equalto ==", { "other" }, function(_, v, other) return value.equal(v, other) end)
test("ne !=", { "other" }, function(_, v, other) return not value.equal(v, other) end)
test("lt lessthan <", { "other" }, function(_, v, other)
  return value.less(v, other, false, "<")
end)
test("le <=", { "other" }, function(_, v, other) return value.less(v, other, true, "<=") end)
test("gt greaterthan >", { "other" }, function(_, v, other)
  return value.less(other, v, false, ">")
end)
test("ge >=", { "other" }, function(_, v, other) return value.less(other, v, true, ">=") end)

-- ---- global functions

local function global(name, call)
  globals[name] = value.callable(name, call)
end

global("range", function(_, arguments)
  if arguments.n < 1 or arguments.n > 3 then fault("range expected 1 to 3 arguments") end
  local first, last, step = 0, text.need_integer(arguments[1]), text.need_integer(arguments[3], 1)
  if arguments.n > 1 then first, last = last, text.need_integer(arguments[2]) end
  if step == 0 then fault("range() arg 3 must not be zero") end
  return value.range(first, last, step)
end)

--- A new dictionary from a mapping or from pairs, then named arguments.
local function build_dict(state, arguments, named)
  local dict = value.dict()
  local source = arguments[1]
  if value.is_undefined(source) then fault("%s", source.text) end
  if source ~= nil and value.kind(source) == "dict" then
    for i = 1, source.n do value.dict_set(dict, source.keys[i], source.values[i]) end
  elseif source ~= nil then
    local items, n = items_of(state, source)
    for i = 1, n do
      local pair, size = value.iterate(items[i])
      if size ~= 2 then fault("dictionary update sequence needs pairs") end
      value.dict_set(dict, pair[1], pair[2])
    end
  end
  for i = 1, named and named.n or 0 do value.dict_set(dict, named.keys[i], named.values[i]) end
  return dict
end

global("dict", build_dict)
global("namespace", function(state, arguments, named)
  return value.namespace(build_dict(state, arguments, named))
end)

global("joiner", function(_, arguments)
  local used, separator = false, arguments[1] or ", "
  return value.callable("joiner", function()
    if used then return separator end
    used = true
    return ""
  end)
end)

global("cycler", function(_, arguments)
  if arguments.n == 0 then fault("at least one item has to be provided") end
  local object, at = value.namespace(value.dict()), 1
  local function step(to)
    at = to
    value.dict_set(object.dict, "current", arguments[at])
  end
  step(1)
  value.dict_set(object.dict, "next", value.callable("next", function()
    local current = arguments[at]
    step(at % arguments.n + 1)
    return current
  end))
  value.dict_set(object.dict, "reset", value.callable("reset", function()
    step(1)
    return value.none
  end))
  return object
end)

global("raise_exception", function(_, arguments)
  error({ text = value.str(arguments[1] == nil and "" or arguments[1]), raised = true }, 0)
end)

global("strftime_now", function(_, arguments)
  local format = text.need(arguments[1], "strftime_now() argument")
  if not text.host.now then fault("strftime_now() is not available here") end
  return text.host.now(format)
end)

return builtins
