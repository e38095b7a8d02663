--- jinja_value: the values of a template, with Python's meaning.
--
--   Python              here
--   str, bool, float    Lua string (UTF-8), boolean, float
--   int                 Lua integer, or {digits} when it does not fit into 64 bits
--   None                value.none
--   list, tuple, range  {n, [1..n]} with the metatable List, Tuple or Range
--   dict                {n, keys[i], values[i], slots[hash key] = i}, metatable Dict, ordered
--   dict.keys() ...     the metatable View around an array
--   generators          {items, at}, metatable Iterator: can be walked once
--   undefined           {text}, metatable Undefined
--   functions, macros   {name, call(state, args, named)}, metatable Function
--
-- Values are immutable, as in the sandbox that transformers renders in; only namespaces change.
-- A fault is a Lua error whose value is a table {text = sentence}.
-- Invariant: nil is never a value; it means "not given".
--
-- Not here: what strings can do (jinja_text), filters (jinja_builtins).

local value = {}

local List, Tuple, Range, Dict, View = {}, {}, {}, {}, {}
local Iterator, Undefined, Function, Namespace, Big, Loop = {}, {}, {}, {}, {}, {}
List.kind, Tuple.kind, Range.kind, Dict.kind, View.kind = "list", "tuple", "range", "dict", "view"
Iterator.kind, Undefined.kind, Function.kind = "generator", "Undefined", "function"
Namespace.kind, Big.kind, Loop.kind = "namespace", "int", "loop"
local None = { kind = "NoneType" }

value.none = setmetatable({}, None)

--- Limits that keep a hostile template from taking the machine.
value.limits = {
  text = 64 * 1024 * 1024, -- bytes of one string or of the whole output
  depth = 500,             -- nesting of values, of expressions, of macro calls
  steps = 5 * 1000 * 1000, -- loop turns, calls, statements
  range = 100000,          -- as jinja2's sandbox
}

--- Raises a fault.
function value.fault(format, ...)
  error({ text = select("#", ...) > 0 and string.format(format, ...) or format }, 0)
end
local fault = value.fault

--- Raises a fault that says which limit was hit; callers may treat it as lack of memory.
function value.over_limit(text)
  error({ text = text, limit = true }, 0)
end

--- Raises when a text of `size` bytes would be too long.
function value.check_size(size)
  if size > value.limits.text then
    value.over_limit("the template builds a text of over 64 MiB")
  end
end

-- ---- kinds

--- Python's type name: str, int, float, bool, NoneType, list, tuple, dict, range, generator,
-- Undefined, function, namespace, loop, view.
function value.kind(v)
  local lua = type(v)
  if lua == "string" then return "str" end
  if lua == "number" then return math.type(v) == "integer" and "int" or "float" end
  if lua == "boolean" then return "bool" end
  return getmetatable(v).kind
end
local kind = value.kind

function value.is_undefined(v)
  return getmetatable(v) == Undefined
end

function value.is_big(v)
  return getmetatable(v) == Big
end

--- A number for arithmetic: booleans count as 1 and 0; nil for everything else.
function value.number(v)
  if type(v) == "number" then return v end
  if v == true then return 1 end
  if v == false then return 0 end
  return nil
end
local number = value.number

-- ---- constructors

local function array(meta, items, n)
  items.n = n or #items
  return setmetatable(items, meta)
end

function value.list(items, n) return array(List, items, n) end
function value.tuple(items, n) return array(Tuple, items, n) end
function value.view(name, items, n)
  local view = array(View, items, n)
  view.name = name
  return view
end

function value.iterator(items, n)
  items.n = n or #items
  return setmetatable({ items = items, at = 1 }, Iterator)
end

--- text: what to say when the undefined value is used.
function value.undefined(text)
  return setmetatable({ text = text }, Undefined)
end

function value.callable(name, call)
  return setmetatable({ name = name, call = call }, Function)
end

function value.loop(fields)
  return setmetatable(fields, Loop)
end

--- An integer from its decimal text.
function value.integer(text)
  local small = math.tointeger(tonumber(text))
  local plain = text:gsub("^%+", "")
  if small and string.format("%d", small) == plain then return small end
  if #text < 19 then return small end
  plain = plain:gsub("^(%-?)0+(%d)", "%1%2")
  small = math.tointeger(tonumber(plain))
  if small and string.format("%d", small) == plain then return small end
  return setmetatable({ digits = plain }, Big)
end

function value.range(first, last, step)
  local count = 0
  if step > 0 and last > first then count = (last - first - 1) // step + 1 end
  if step < 0 and first > last then count = (first - last - 1) // -step + 1 end
  if count > value.limits.range then
    fault("Range too big. The sandbox blocks ranges larger than %d.", value.limits.range)
  end
  local items = {}
  for i = 1, count do items[i] = first + (i - 1) * step end
  local range = array(Range, items, count)
  range.first, range.last, range.step = first, last, step
  return range
end

-- ---- dictionaries

--- The Lua key under which Python's equal keys meet (1, 1.0 and True are one key). Lists and
-- dictionaries have none.
local hash_key

--- Equal tuples have equal items, so the key is made of the items' keys.
local function tuple_key(tuple)
  local parts = { "\0tuple" }
  for i = 1, tuple.n do
    local key = hash_key(tuple[i])
    local shown = tostring(key)
    parts[i + 1] = type(key) .. #shown .. ":" .. shown
  end
  return table.concat(parts, " ")
end

function hash_key(key)
  local lua = type(key)
  if lua == "string" then return key end
  if lua == "boolean" then return key and 1 or 0 end
  if lua == "number" then
    return math.tointeger(key) or (key == key and key or "\0nan")
  end
  local name = kind(key)
  if name == "tuple" then return tuple_key(key) end
  if name == "int" then return "\0int " .. key.digits end
  if name == "list" or name == "dict" then fault("unhashable type: '%s'", name) end
  return key
end

function value.dict()
  return setmetatable({ n = 0, keys = {}, values = {}, slots = {} }, Dict)
end

--- Only for dictionaries that are still being built, and namespaces.
function value.dict_set(dict, key, v)
  local slot = hash_key(key)
  local at = dict.slots[slot]
  if at then
    dict.values[at] = v
    return
  end
  at = dict.n + 1
  dict.n, dict.slots[slot] = at, at
  dict.keys[at], dict.values[at] = key, v
end

--- The value under key; nil when there is none.
function value.dict_get(dict, key)
  local at = dict.slots[hash_key(key)]
  return at and dict.values[at]
end

function value.namespace(dict)
  return setmetatable({ dict = dict }, Namespace)
end

--- A copy of the dictionary's pairs as tuples.
function value.dict_pairs(dict)
  local items = {}
  for i = 1, dict.n do items[i] = value.tuple({ dict.keys[i], dict.values[i] }, 2) end
  return items
end

-- ---- truth and walking

function value.truth(v)
  local lua = type(v)
  if lua == "boolean" then return v end
  if lua == "string" then return v ~= "" end
  if lua == "number" then return v ~= 0 end
  local meta = getmetatable(v)
  if meta == None or meta == Undefined then return false end
  if meta == List or meta == Tuple or meta == Range or meta == Dict or meta == View then
    return v.n > 0
  end
  return true
end

--- UTF-8 text -> array of its characters, and their number.
function value.characters(text)
  local items, n = {}, 0
  for character in text:gmatch("[%z\1-\127\194-\244][\128-\191]*") do
    n = n + 1
    items[n] = character
  end
  return items, n
end

--- What a `for` walks over: an array and its length. Faults on what Python cannot iterate.
function value.iterate(v)
  if type(v) == "string" then return value.characters(v) end
  local meta = type(v) == "table" and getmetatable(v)
  if meta == List or meta == Tuple or meta == Range or meta == View then return v, v.n end
  if meta == Dict then return v.keys, v.n end
  if meta == Undefined then return {}, 0 end
  if meta == Iterator then
    local items, n = {}, 0
    for i = v.at, v.items.n do
      n = n + 1
      items[n] = v.items[i]
    end
    v.at = v.items.n + 1
    return items, n
  end
  return fault("'%s' object is not iterable", kind(v))
end

function value.is_iterable(v)
  local name = kind(v)
  return name == "str" or name == "list" or name == "tuple" or name == "range" or name == "dict"
    or name == "view" or name == "generator" or name == "Undefined"
end

--- len(); nil where Python has none.
function value.length(v)
  if type(v) == "string" then return utf8.len(v) or #v end
  local meta = type(v) == "table" and getmetatable(v)
  if meta == Undefined then return 0 end
  if meta == List or meta == Tuple or meta == Range or meta == Dict or meta == View then
    return v.n
  end
  return nil
end

--- list, tuple or range: has numbered items.
function value.is_array(v)
  local meta = type(v) == "table" and getmetatable(v)
  return meta == List or meta == Tuple or meta == Range
end

-- ---- numbers as text

--- repr(float): the shortest digits that read back as the same number.
function value.float_text(x)
  if x ~= x then return "nan" end
  if x == math.huge then return "inf" end
  if x == -math.huge then return "-inf" end
  local digits
  for precision = 0, 16 do
    digits = string.format("%." .. precision .. "e", x)
    if tonumber(digits) == x then break end
  end
  local sign, lead, rest, exponent = digits:match("^(%-?)(%d)%.?(%d*)e([+-]%d+)$")
  local all, power = lead .. rest, tonumber(exponent)
  if power < -4 or power >= 16 then
    local mark = power < 0 and "-" or "+"
    local fraction = #rest > 0 and "." .. rest or ""
    return string.format("%s%s%se%s%02d", sign, lead, fraction, mark, math.abs(power))
  end
  if power < 0 then return sign .. "0." .. ("0"):rep(-power - 1) .. all end
  if #all <= power + 1 then return sign .. all .. ("0"):rep(power + 1 - #all) .. ".0" end
  return sign .. all:sub(1, power + 1) .. "." .. all:sub(power + 2)
end

-- ---- str and repr

local escapes = { ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

--- Characters that repr() escapes, as ranges of code points. Unassigned ones are not listed.
local unprintable = {
  { 0x80, 0xa0 }, { 0xad, 0xad }, { 0x600, 0x605 }, { 0x61c, 0x61c }, { 0x6dd, 0x6dd },
  { 0x70f, 0x70f }, { 0x1680, 0x1680 }, { 0x180e, 0x180e }, { 0x2000, 0x200f },
  { 0x2028, 0x202f }, { 0x205f, 0x206f }, { 0x3000, 0x3000 }, { 0xd800, 0xf8ff },
  { 0xfeff, 0xfeff }, { 0xfff9, 0xfffb }, { 0xe0001, 0xe007f }, { 0xf0000, 0x10ffff },
}

local function escape_wide(character)
  local code = utf8.codepoint(character)
  for _, range in ipairs(unprintable) do
    if code >= range[1] and code <= range[2] then
      if code < 0x100 then return string.format("\\x%02x", code) end
      return string.format(code < 0x10000 and "\\u%04x" or "\\U%08x", code)
    end
  end
  return character
end

local function text_repr(text)
  local quote = (text:find("'", 1, true) and not text:find('"', 1, true)) and '"' or "'"
  text = text:gsub("[%c\\" .. quote .. "]", function(c)
    if c == quote then return "\\" .. c end
    return escapes[c] or string.format("\\x%02x", c:byte())
  end)
  if text:find("[\194-\244]") then
    text = text:gsub("[\194-\244][\128-\191]+", escape_wide)
  end
  return quote .. text .. quote
end

local repr_at

local function join_reprs(items, n, depth)
  local parts = {}
  for i = 1, n do parts[i] = repr_at(items[i], depth + 1) end
  return table.concat(parts, ", ")
end

local function dict_repr(dict, depth)
  local parts = {}
  for i = 1, dict.n do
    parts[i] = repr_at(dict.keys[i], depth + 1) .. ": " .. repr_at(dict.values[i], depth + 1)
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local reprs = {
  NoneType = function() return "None" end,
  int = function(v) return v.digits end,
  list = function(v, depth) return "[" .. join_reprs(v, v.n, depth) .. "]" end,
  tuple = function(v, depth)
    return "(" .. join_reprs(v, v.n, depth) .. (v.n == 1 and ",)" or ")")
  end,
  range = function(v)
    local step = v.step ~= 1 and ", " .. v.step or ""
    return "range(" .. v.first .. ", " .. v.last .. step .. ")"
  end,
  view = function(v, depth) return v.name .. "([" .. join_reprs(v, v.n, depth) .. "])" end,
  dict = dict_repr,
  Undefined = function() return "Undefined" end,
  namespace = function(v, depth) return "<Namespace " .. dict_repr(v.dict, depth) .. ">" end,
  loop = function(v) return "<LoopContext " .. v.index .. "/" .. v.length .. ">" end,
  generator = function() return "<generator object>" end,
  ["function"] = function(v) return "<function " .. v.name .. ">" end,
}

function repr_at(v, depth)
  local lua = type(v)
  if lua == "string" then return text_repr(v) end
  if lua == "boolean" then return v and "True" or "False" end
  if lua == "number" then
    return math.type(v) == "integer" and string.format("%d", v) or value.float_text(v)
  end
  if depth > value.limits.depth then fault("a value is nested too deeply to print") end
  return reprs[kind(v)](v, depth)
end

--- repr(v)
function value.repr(v)
  local text = repr_at(v, 0)
  value.check_size(#text)
  return text
end

--- str(v), which is also what {{ v }} prints.
function value.str(v)
  if type(v) == "string" then return v end
  if getmetatable(v) == Undefined then return "" end
  return value.repr(v)
end

-- ---- comparison

local equal_at

local function equal_arrays(a, b, depth)
  if a.n ~= b.n then return false end
  for i = 1, a.n do
    if not equal_at(a[i], b[i], depth + 1) then return false end
  end
  return true
end

local function equal_dicts(a, b, depth)
  if a.n ~= b.n then return false end
  for i = 1, a.n do
    local other = value.dict_get(b, a.keys[i])
    if other == nil or not equal_at(a.values[i], other, depth + 1) then return false end
  end
  return true
end

function equal_at(a, b, depth)
  local x, y = number(a), number(b)
  if x and y then return x == y end
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  if depth > value.limits.depth then fault("values are nested too deeply to compare") end
  local meta = getmetatable(a)
  if meta ~= getmetatable(b) then return false end
  if meta == Undefined then return true end
  if meta == List or meta == Tuple or meta == Range then return equal_arrays(a, b, depth) end
  if meta == Dict then return equal_dicts(a, b, depth) end
  if meta == Big then return a.digits == b.digits end
  return a == b
end

--- a == b
function value.equal(a, b)
  return equal_at(a, b, 0)
end

local function fault_undefined(v)
  if getmetatable(v) == Undefined then fault("%s", v.text) end
end

local function ordering_number(v)
  if getmetatable(v) == Big then return tonumber(v.digits .. ".0") end
  return number(v)
end

--- a < b, or a <= b with or_equal; sign is for messages.
function value.less(a, b, or_equal, sign)
  local x, y = ordering_number(a), ordering_number(b)
  if x and y then
    if or_equal then return x <= y end
    return x < y
  end
  if type(a) == "string" and type(b) == "string" then
    if or_equal then return a <= b end
    return a < b
  end
  fault_undefined(a)
  fault_undefined(b)
  local name = kind(a)
  if name ~= kind(b) or (name ~= "list" and name ~= "tuple") then
    fault("'%s' not supported between instances of '%s' and '%s'", sign or "<", name, kind(b))
  end
  for i = 1, math.min(a.n, b.n) do
    if not value.equal(a[i], b[i]) then return value.less(a[i], b[i], or_equal, sign) end
  end
  if or_equal then return a.n <= b.n end
  return a.n < b.n
end

--- needle in container
function value.contains(container, needle)
  if type(container) == "string" then
    if type(needle) ~= "string" then
      fault_undefined(needle)
      fault("'in <string>' requires string as left operand, not %s", kind(needle))
    end
    return container:find(needle, 1, true) ~= nil
  end
  if getmetatable(container) == Dict then return value.dict_get(container, needle) ~= nil end
  local items, n = value.iterate(container)
  for i = 1, n do
    if value.equal(items[i], needle) then return true end
  end
  return false
end

-- ---- arithmetic

local function operands_fault(sign, a, b)
  fault_undefined(a)
  fault_undefined(b)
  if getmetatable(a) == Big or getmetatable(b) == Big then
    fault("integers beyond 64 bits can be printed, not computed with")
  end
  fault("unsupported operand type(s) for %s: '%s' and '%s'", sign, kind(a), kind(b))
end

local function overflow()
  fault("an integer result does not fit into 64 bits")
end

local function concatenate(a, b)
  local items, n = {}, a.n
  table.move(a, 1, n, 1, items)
  table.move(b, 1, b.n, n + 1, items)
  return setmetatable(items, getmetatable(a)), n + b.n
end

function value.add(a, b)
  local x, y = number(a), number(b)
  if x and y then
    local sum = x + y
    if math.type(sum) == "integer" and (x ~ sum) & (y ~ sum) < 0 then overflow() end
    return sum
  end
  if type(a) == "string" and type(b) == "string" then
    value.check_size(#a + #b)
    return a .. b
  end
  local name = kind(a)
  if (name == "list" or name == "tuple") and name == kind(b) then
    local items, n = concatenate(a, b)
    value.check_size(8 * n)
    items.n = n
    return items
  end
  return operands_fault("+", a, b)
end

function value.subtract(a, b)
  local x, y = number(a), number(b)
  if not (x and y) then return operands_fault("-", a, b) end
  local difference = x - y
  if math.type(difference) == "integer" and (x ~ y) & (x ~ difference) < 0 then overflow() end
  return difference
end

local function multiply_integers(x, y)
  local estimate = (x + 0.0) * y
  if estimate >= 0x1p63 or estimate < -0x1p63 then overflow() end
  return x * y
end

local function repeat_value(v, count)
  if type(v) == "string" then
    value.check_size(#v * math.max(count, 0))
    return v:rep(count)
  end
  local items, n = {}, 0
  value.check_size(8 * v.n * math.max(count, 0))
  for _ = 1, count do
    table.move(v, 1, v.n, n + 1, items)
    n = n + v.n
  end
  items.n = n
  return setmetatable(items, getmetatable(v))
end

local function is_repeatable(v)
  local name = kind(v)
  return name == "str" or name == "list" or name == "tuple"
end

function value.multiply(a, b)
  local x, y = number(a), number(b)
  if x and y then
    if math.type(x) == "integer" and math.type(y) == "integer" then
      return multiply_integers(x, y)
    end
    return x * y
  end
  if math.type(y) == "integer" and is_repeatable(a) then return repeat_value(a, y) end
  if math.type(x) == "integer" and is_repeatable(b) then return repeat_value(b, x) end
  return operands_fault("*", a, b)
end

function value.divide(a, b)
  local x, y = number(a), number(b)
  if not (x and y) then return operands_fault("/", a, b) end
  if y == 0 then fault("division by zero") end
  return x / y
end

--- Quotient and remainder as CPython computes them when one of x and y is a float.
local function float_divmod(x, y)
  local remainder = math.fmod(x, y)
  local quotient = (x - remainder) / y
  if remainder ~= 0 and (y < 0) ~= (remainder < 0) then
    remainder, quotient = remainder + y, quotient - 1.0
  elseif remainder == 0 then
    remainder = y < 0 and -0.0 or 0.0
  end
  if quotient == 0 then
    local exact = x / y
    return (exact < 0 or 1 / exact < 0) and -0.0 or 0.0, remainder
  end
  local whole = math.floor(quotient) + 0.0
  if quotient - whole > 0.5 then whole = whole + 1.0 end
  return whole, remainder
end

function value.floor_divide(a, b)
  local x, y = number(a), number(b)
  if not (x and y) then return operands_fault("//", a, b) end
  if y == 0 then fault("integer division or modulo by zero") end
  if math.type(x) == "integer" and math.type(y) == "integer" then return x // y end
  if x ~= x or y ~= y or math.abs(x) == math.huge then return 0 / 0 end
  return (float_divmod(x, y))
end

function value.modulo(a, b)
  local x, y = number(a), number(b)
  if not (x and y) then return operands_fault("%", a, b) end
  if y == 0 then fault("integer division or modulo by zero") end
  if math.type(x) == "integer" and math.type(y) == "integer" then return x % y end
  return select(2, float_divmod(x, y))
end

local function integer_power(base, exponent)
  local result = 1
  while exponent > 0 do
    if exponent & 1 == 1 then result = multiply_integers(result, base) end
    exponent = exponent >> 1
    if exponent > 0 then base = multiply_integers(base, base) end
  end
  return result
end

function value.power(a, b)
  local x, y = number(a), number(b)
  if not (x and y) then return operands_fault("** or pow()", a, b) end
  if x == 0 and y < 0 then fault("0.0 cannot be raised to a negative power") end
  if math.type(x) == "integer" and math.type(y) == "integer" and y >= 0 then
    if x == 1 or y == 0 then return 1 end
    if x == 0 then return 0 end
    if x == -1 then return y % 2 == 0 and 1 or -1 end
    return integer_power(x, y)
  end
  local result = (x + 0.0) ^ y
  if result ~= result and x == x and y == y then fault("a power has no real result") end
  if math.abs(result) == math.huge and math.abs(x) ~= math.huge and math.abs(y) ~= math.huge then
    fault("a power is too large for a float")
  end
  return result
end

function value.negate(a)
  local x = number(a)
  if getmetatable(a) == Big then
    return value.integer(a.digits:sub(1, 1) == "-" and a.digits:sub(2) or "-" .. a.digits)
  end
  if not x then
    fault_undefined(a)
    fault("bad operand type for unary -: '%s'", kind(a))
  end
  if x == math.mininteger and math.type(x) == "integer" then overflow() end
  return -x
end

function value.positive(a)
  local x = number(a)
  if getmetatable(a) == Big then return a end
  if not x then
    fault_undefined(a)
    fault("bad operand type for unary +: '%s'", kind(a))
  end
  return x
end

-- ---- slices

--- Python's slice.indices(n) as 1-based first, count, step, and the end counted from 0.
function value.slice_bounds(n, first, last, step)
  step = step or 1
  if step == 0 then fault("slice step cannot be zero") end
  local low, high = step > 0 and 0 or -1, step > 0 and n or n - 1
  local function clamp(index, missing)
    if index == nil then return missing end
    if index < 0 then index = index + n end
    return math.max(low, math.min(high, index))
  end
  local from = clamp(first, step > 0 and low or high)
  local to = clamp(last, step > 0 and high or low)
  local count = 0
  if step > 0 and to > from then count = (to - from - 1) // step + 1 end
  if step < 0 and from > to then count = (from - to - 1) // -step + 1 end
  return from + 1, count, step, to
end

local function slice_text(text, first, last, step)
  local ascii = not text:find("[\128-\255]")
  local n = ascii and #text or utf8.len(text)
  local from, count, stride = value.slice_bounds(n, first, last, step)
  if count == 0 then return "" end
  if stride == 1 then
    if ascii then return text:sub(from, from + count - 1) end
    return text:sub(utf8.offset(text, from), utf8.offset(text, from + count) - 1)
  end
  local items, parts = value.characters(text), {}
  for i = 1, count do parts[i] = items[from + (i - 1) * stride] end
  return table.concat(parts)
end

local function slice_index(v)
  if v == nil or v == value.none then return nil end
  local index = number(v)
  if math.type(index) ~= "integer" then
    fault_undefined(v)
    fault("slice indices must be integers or None or have an __index__ method")
  end
  return index
end

--- v[first:last:step]; nil or None where not given.
function value.slice(v, first, last, step)
  first, last, step = slice_index(first), slice_index(last), slice_index(step)
  if type(v) == "string" then return slice_text(v, first, last, step) end
  fault_undefined(v)
  if not value.is_array(v) then fault("'%s' object is not subscriptable", kind(v)) end
  local from, count, stride, to = value.slice_bounds(v.n, first, last, step)
  if getmetatable(v) == Range then
    return value.range(v.first + (from - 1) * v.step, v.first + to * v.step, v.step * stride)
  end
  local items = {}
  for i = 1, count do items[i] = v[from + (i - 1) * stride] end
  if getmetatable(v) == Tuple then return value.tuple(items, count) end
  return value.list(items, count)
end

--- v[index] for an integer index on text or arrays; nil when out of range.
function value.index(v, index)
  if type(v) == "string" then
    local n = utf8.len(v) or 0
    if index < 0 then index = index + n end
    if index < 0 or index >= n then return nil end
    return slice_text(v, index, index + 1, 1)
  end
  if index < 0 then index = index + v.n end
  if index < 0 or index >= v.n then return nil end
  return v[index + 1]
end

return value
