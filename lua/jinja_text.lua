--- jinja_text: what Python strings can do: methods, `%` and format().
--
-- Texts are UTF-8; positions and lengths count characters. Case and character classes beyond
-- ASCII come from `text.host`, a table of functions that the program sets (utf8proc):
-- lower(text), upper(text), class(code) -> "L" letter, "N" decimal digit, "O" other number, "-";
-- without it only ASCII letters have case and every other character counts as a letter.

local value = require "jinja_value"
local fault = value.fault

local text = { host = {} }

-- ---- blanks

local wide_blanks = {
  ["\u{85}"] = true, ["\u{a0}"] = true, ["\u{1680}"] = true, ["\u{2028}"] = true,
  ["\u{2029}"] = true, ["\u{202f}"] = true, ["\u{205f}"] = true, ["\u{3000}"] = true,
}
for code = 0x2000, 0x200a do wide_blanks[utf8.char(code)] = true end

--- str.isspace() of one character.
local function is_blank(character)
  return character:find("^[\9-\13\28-\32]$") ~= nil or wide_blanks[character] == true
end
text.is_blank = is_blank

local function blank_set(characters)
  if characters == nil or characters == value.none then return is_blank end
  if type(characters) ~= "string" then
    fault("strip arg must be None or str, not %s", value.kind(characters))
  end
  local set = {}
  for _, character in ipairs((value.characters(characters))) do set[character] = true end
  return function(character) return set[character] end
end

--- The place after the characters that `inside` accepts.
local function skip_left(s, inside)
  local at = 1
  while at <= #s do
    local character = s:match("^[%z\1-\127\194-\244][\128-\191]*", at)
    if not inside(character) then break end
    at = at + #character
  end
  return at
end

local function skip_right(s, inside, from)
  local at = #s
  while at >= from do
    local start = utf8.offset(s, 0, at)
    if not inside(s:sub(start, at)) then break end
    at = start - 1
  end
  return at
end

--- strip(characters); None or nil: blanks.
function text.strip(s, characters)
  local inside = blank_set(characters)
  local from = skip_left(s, inside)
  return s:sub(from, skip_right(s, inside, from))
end

function text.lstrip(s, characters)
  return s:sub(skip_left(s, blank_set(characters)))
end

function text.rstrip(s, characters)
  return s:sub(1, skip_right(s, blank_set(characters), 1))
end

-- ---- case

function text.lower(s)
  if s:find("[\128-\255]") and text.host.lower then return text.host.lower(s) end
  return s:lower()
end

function text.upper(s)
  if s:find("[\128-\255]") and text.host.upper then return text.host.upper(s) end
  return s:upper()
end

local function class_of(character)
  if #character == 1 then
    if character:find("%a") then return "L" end
    return character:find("%d") and "N" or "-"
  end
  return text.host.class and text.host.class(utf8.codepoint(character)) or "L"
end

--- \w: letter, number, underscore.
function text.is_word(character)
  return character == "_" or class_of(character) ~= "-"
end

--- First character in title case, the rest in lower case.
function text.capitalize(s)
  local first = s:match("^[%z\1-\127\194-\244][\128-\191]*") or ""
  return text.upper(first) .. text.lower(s:sub(#first + 1))
end

--- str.title(): every run of letters that have case begins with a capital.
function text.title(s)
  local out, inside = {}, false
  for i, character in ipairs((value.characters(s))) do
    local lower, upper = text.lower(character), text.upper(character)
    out[i] = inside and lower or upper
    inside = lower ~= upper
  end
  return table.concat(out)
end

local function swapcase(s)
  local out = {}
  for i, character in ipairs((value.characters(s))) do
    local upper = text.upper(character)
    out[i] = upper == character and text.lower(character) or upper
  end
  return table.concat(out)
end

-- ---- splitting and joining

local function need_text(v, what)
  if type(v) ~= "string" then
    if value.is_undefined(v) then fault("%s", v.text) end
    fault("%s must be str, not %s", what, value.kind(v))
  end
  return v
end
text.need = need_text

local function need_integer(v, default)
  if v == nil then return default end
  local n = value.number(v)
  if math.type(n) ~= "integer" then
    fault("'%s' object cannot be interpreted as an integer", value.kind(v))
  end
  return n
end
text.need_integer = need_integer

local function split_blanks(s, limit)
  local items, n = {}, 0
  s = text.lstrip(s)
  while s ~= "" do
    if limit >= 0 and n >= limit then
      items[n + 1] = s
      return value.list(items, n + 1)
    end
    local at = 1
    while at <= #s do
      local character = s:match("^[%z\1-\127\194-\244][\128-\191]*", at)
      if is_blank(character) then break end
      at = at + #character
    end
    n = n + 1
    items[n] = s:sub(1, at - 1)
    s = text.lstrip(s:sub(at))
  end
  return value.list(items, n)
end

local function split_at(s, separator, limit)
  local items, n, from = {}, 0, 1
  while limit < 0 or n < limit do
    local first, last = s:find(separator, from, true)
    if not first then break end
    n = n + 1
    items[n] = s:sub(from, first - 1)
    from = last + 1
  end
  items[n + 1] = s:sub(from)
  return value.list(items, n + 1)
end

local function separator_of(v)
  if v == nil or v == value.none then return nil end
  if need_text(v, "separator") == "" then fault("empty separator") end
  return v
end

function text.split(s, separator, limit)
  separator, limit = separator_of(separator), need_integer(limit, -1)
  if separator then return split_at(s, separator, limit) end
  return split_blanks(s, limit)
end

local function reverse_text(s)
  local items, n = value.characters(s)
  for i = 1, n // 2 do items[i], items[n + 1 - i] = items[n + 1 - i], items[i] end
  return table.concat(items)
end
text.reverse = reverse_text

--- Splitting from the right is splitting the mirrored text.
function text.rsplit(s, separator, limit)
  separator, limit = separator_of(separator), need_integer(limit, -1)
  if limit < 0 then return text.split(s, separator) end
  local mirrored = text.split(reverse_text(s), separator and reverse_text(separator), limit)
  local items = {}
  for i = 1, mirrored.n do items[i] = reverse_text(mirrored[mirrored.n + 1 - i]) end
  return value.list(items, mirrored.n)
end

local line_breaks = {
  ["\n"] = true, ["\r"] = true, ["\v"] = true, ["\f"] = true, ["\28"] = true, ["\29"] = true,
  ["\30"] = true, ["\u{85}"] = true, ["\u{2028}"] = true, ["\u{2029}"] = true,
}

function text.splitlines(s, keep)
  local items, n, from, at = {}, 0, 1, 1
  while at <= #s do
    local character = s:match("^[%z\1-\127\194-\244][\128-\191]*", at)
    local after = at + #character
    if line_breaks[character] then
      if character == "\r" and s:sub(after, after) == "\n" then after = after + 1 end
      n = n + 1
      items[n] = s:sub(from, (keep and after or at) - 1)
      from = after
    end
    at = after
  end
  if from <= #s then
    n = n + 1
    items[n] = s:sub(from)
  end
  return value.list(items, n)
end

function text.join(separator, items)
  local list, n = value.iterate(items)
  local size, parts = 0, {}
  for i = 1, n do
    if type(list[i]) ~= "string" then
      fault("sequence item %d: expected str instance, %s found", i - 1, value.kind(list[i]))
    end
    parts[i] = list[i]
    size = size + #list[i] + #separator
  end
  value.check_size(size)
  return table.concat(parts, separator, 1, n)
end

function text.replace(s, old, new, limit)
  need_text(old, "replace() argument 1")
  need_text(new, "replace() argument 2")
  limit = need_integer(limit, -1)
  local parts, n, size, from = {}, 0, 0, 1
  local function put(part)
    n = n + 1
    parts[n] = part
    size = size + #part
    value.check_size(size)
  end
  if old == "" then
    local items, count = value.characters(s)
    for i = 1, count + 1 do
      if limit < 0 or i <= limit then put(new) end
      if items[i] then put(items[i]) end
    end
    return table.concat(parts)
  end
  local done = 0
  while limit < 0 or done < limit do
    local first, last = s:find(old, from, true)
    if not first then break end
    put(s:sub(from, first - 1))
    put(new)
    from, done = last + 1, done + 1
  end
  put(s:sub(from))
  return table.concat(parts)
end

-- ---- searching

--- The part s[first:last] in characters, as bytes, and the characters before it.
local function window(s, first, last)
  local from, count = value.slice_bounds(utf8.len(s), first, last, 1)
  return value.slice(s, from - 1, from - 1 + count), from - 1
end

local function given(v)
  if v == nil or v == value.none then return nil end
  return need_integer(v)
end

--- Searching from the right is searching the mirrored bytes.
local function last_find(s, needle)
  local at = s:reverse():find(needle:reverse(), 1, true)
  return at and #s - #needle - at + 2
end

local function find(s, needle, first, last, backwards)
  need_text(needle, "argument")
  first, last = given(first), given(last)
  local length = utf8.len(s)
  if first and first > length then return -1 end
  local part, before = window(s, first, last)
  local at
  if backwards then at = last_find(part, needle) else at = part:find(needle, 1, true) end
  if not at then return -1 end
  return before + utf8.len(part, 1, at - 1)
end

local function count(s, needle, first, last)
  need_text(needle, "argument")
  local part = window(s, given(first), given(last))
  if needle == "" then return utf8.len(part) + 1 end
  return split_at(part, needle, -1).n - 1
end

local function has_affix(s, affix, first, last, name, test)
  local part = window(s, given(first), given(last))
  if type(affix) == "string" then return test(part, affix) end
  if value.kind(affix) ~= "tuple" then
    if value.is_undefined(affix) then fault("%s", affix.text) end
    fault("%s first arg must be str or a tuple of str, not %s", name, value.kind(affix))
  end
  for i = 1, affix.n do
    if test(part, need_text(affix[i], "an item of the tuple")) then return true end
  end
  return false
end

local function starts(s, affix) return s:sub(1, #affix) == affix end
local function ends(s, affix) return affix == "" or s:sub(-#affix) == affix end

local function partition(s, separator, at)
  if not at then return nil end
  return value.tuple({ s:sub(1, at - 1), separator, s:sub(at + #separator) }, 3)
end

-- ---- classes

local function every(s, accept)
  if s == "" then return false end
  for _, character in ipairs((value.characters(s))) do
    if not accept(character) then return false end
  end
  return true
end

local function is_case(s, own, other)
  return own(s) == s and other(s) ~= s
end

-- ---- padding

local function pad(s, width, fill, left, right)
  local missing = need_integer(width) - utf8.len(s)
  if missing <= 0 then return s end
  fill = fill == nil and " " or need_text(fill, "the fill character")
  if utf8.len(fill) ~= 1 then fault("The fill character must be exactly one character long") end
  value.check_size(missing * #fill)
  local before, after = left(missing, width), right(missing, width)
  return fill:rep(before) .. s .. fill:rep(after)
end

local function none_of() return 0 end
local function all_of(missing) return missing end
--- CPython puts the odd blank left when the width is odd too.
local function half_before(missing, width) return missing // 2 + (missing & width & 1) end
local function half_after(missing, width) return missing - half_before(missing, width) end

local function zfill(s, width)
  local missing = need_integer(width) - utf8.len(s)
  if missing <= 0 then return s end
  value.check_size(missing)
  local sign = s:match("^[+-]") or ""
  return sign .. ("0"):rep(missing) .. s:sub(#sign + 1)
end

--- center(width, fill)
function text.center(s, width, fill)
  return pad(s, width, fill, half_before, half_after)
end

-- ---- number formats

local function group_thousands(digits)
  local whole, rest = digits:match("^(%d+)(.*)$")
  if not whole then return digits end
  whole = whole:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
  return whole .. rest
end

local function to_integer(v, letter)
  local n = value.number(v)
  if value.is_big(v) then return v end
  if not n then fault("%%%s format: a real number is required, not %s", letter, value.kind(v)) end
  if math.type(n) == "integer" then return n end
  return math.tointeger(n < 0 and math.ceil(n) or math.floor(n))
    or fault("an integer result does not fit into 64 bits")
end

local function binary(n)
  local digits = {}
  repeat
    table.insert(digits, 1, tostring(n & 1))
    n = n >> 1
  until n == 0
  return table.concat(digits)
end

--- Digits without sign of an integer in one of Python's integer formats; sign apart.
local function integer_digits(v, letter, alternate)
  if value.is_big(v) then return (v.digits:gsub("^%-", "")), v.digits:sub(1, 1) == "-" end
  local n = v < 0 and -v or v
  if letter == "x" then return (alternate and "0x" or "") .. string.format("%x", n), v < 0 end
  if letter == "X" then return (alternate and "0X" or "") .. string.format("%X", n), v < 0 end
  if letter == "o" then return (alternate and "0o" or "") .. string.format("%o", n), v < 0 end
  if letter == "b" then return (alternate and "0b" or "") .. binary(n), v < 0 end
  return string.format("%d", n), v < 0
end

local function float_digits(v, letter, precision)
  local x = value.number(v)
  if value.is_big(v) then x = tonumber(v.digits) end
  if not x then fault("must be real number, not %s", value.kind(v)) end
  if precision > 99 then fault("a precision of over 99 digits is not supported") end
  local digits = string.format("%." .. precision .. letter, x)
  if x ~= x or x == math.huge or x == -math.huge then digits = digits:gsub("^%-?nan", "nan") end
  local bare = digits:gsub("^%-", "")
  return bare, bare ~= digits
end

--- sign, fill and width around digits. flags: sign ("+", " " or nil), align, fill, width.
local function place(digits, negative, flags)
  local sign = negative and "-" or flags.sign or ""
  local missing = flags.width - utf8.len(digits) - #sign
  if missing <= 0 then return sign .. digits end
  value.check_size(missing * #flags.fill)
  if flags.align == "<" then return sign .. digits .. flags.fill:rep(missing) end
  if flags.align == "=" then return sign .. flags.fill:rep(missing) .. digits end
  if flags.align == "^" then
    local before = missing // 2
    return flags.fill:rep(before) .. sign .. digits .. flags.fill:rep(missing - before)
  end
  return flags.fill:rep(missing) .. sign .. digits
end

-- ---- the % operator

local function percent_text(letter, flags, precision, v)
  local s = letter == "s" and value.str(v) or value.repr(v)
  if precision then s = value.slice(s, 0, precision) end
  local align = flags.align == "=" and ">" or flags.align
  return place(s, false, { fill = " ", align = align, width = flags.width })
end

local function percent_number(letter, flags, precision, v)
  if letter:find("[diuxXo]") then
    local kind = letter:find("[iu]") and "d" or letter
    if kind ~= "d" and math.type(value.number(v)) ~= "integer" then
      fault("%%%s format: an integer is required, not %s", letter, value.kind(v))
    end
    local digits, negative = integer_digits(to_integer(v, kind), kind, flags.alternate)
    if precision and #digits < precision then digits = ("0"):rep(precision - #digits) .. digits end
    return place(digits, negative, flags)
  end
  local digits, negative = float_digits(v, letter, precision or 6)
  return place(digits, negative, flags)
end

local function percent_flags(letters)
  local flags = { fill = " ", align = ">", width = 0 }
  if letters:find("0", 1, true) then flags.fill, flags.align = "0", "=" end
  if letters:find("-", 1, true) then flags.fill, flags.align = " ", "<" end
  if letters:find(" ", 1, true) then flags.sign = " " end
  if letters:find("+", 1, true) then flags.sign = "+" end
  flags.alternate = letters:find("#", 1, true) ~= nil
  return flags
end

--- Hands out the arguments of one % expression.
local function argument_source(arguments)
  local kind, next_at = value.kind(arguments), 1
  local source = {}
  function source.by_name(name)
    if kind ~= "dict" then fault("format requires a mapping") end
    local found = value.dict_get(arguments, name)
    if found == nil then fault("KeyError: %s", value.repr(name)) end
    return found
  end
  function source.next()
    if kind ~= "tuple" and next_at == 1 then
      next_at = 2
      return arguments
    end
    if kind ~= "tuple" or next_at > arguments.n then
      fault("not enough arguments for format string")
    end
    next_at = next_at + 1
    return arguments[next_at - 1]
  end
  function source.finish()
    local unused = kind == "tuple" and next_at <= arguments.n or kind ~= "tuple" and next_at == 1
    if unused and kind ~= "dict" and not (kind == "list" or kind == "range") then
      fault("not all arguments converted during string formatting")
    end
  end
  return source
end

--- The parts of the format that begins with the % at `at`: name, letters, width, precision (nil
-- without a dot), conversion letter, place after it.
local function percent_parts(format, at)
  local name = format:match("^%((.-)%)", at + 1)
  local after = at + 1 + (name and #name + 2 or 0)
  local letters, width, dot, precision, letter, stop =
    format:match("^([-+ 0#]*)(%d*)(%.?)(%d*)([%a%%])()", after)
  if not letter or not letter:find("[sradiuxXoeEfFgGc%%]") then
    fault("incomplete or unsupported format in '%%'")
  end
  precision = dot ~= "" and (tonumber(precision) or 0) or nil
  return name, letters, tonumber(width) or 0, precision, letter, stop
end

local function percent_value(letter, flags, precision, v)
  if letter:find("[sra]") then return percent_text(letter, flags, precision, v) end
  if letter ~= "c" then return percent_number(letter, flags, precision, v) end
  if type(v) == "string" and utf8.len(v) == 1 then return place(v, false, flags) end
  local code = need_integer(v)
  if code < 0 or code > 0x10ffff then fault("%%c arg not in range(0x110000)") end
  return place(utf8.char(code), false, flags)
end

--- format % arguments
function text.percent(format, arguments)
  local out, from, source, named = {}, 1, argument_source(arguments), false
  while true do
    local at = format:find("%", from, true)
    out[#out + 1] = format:sub(from, (at or 0) - 1)
    if not at then break end
    local name, letters, width, precision, letter, stop = percent_parts(format, at)
    if letter == "%" then
      out[#out + 1] = "%"
    else
      local flags = percent_flags(letters)
      flags.width = math.min(width, 2 * value.limits.text)
      named = named or name ~= nil
      local v
      if name then v = source.by_name(name) else v = source.next() end
      out[#out + 1] = percent_value(letter, flags, precision, v)
    end
    from = stop
  end
  if not named then source.finish() end
  return table.concat(out)
end

-- ---- format()

--- The parts of Python's format mini-language: placement flags, and alternate, comma, precision
-- and letter.
local function specification_parts(specification, is_number)
  local fill, align, rest = specification:match("^([%z\1-\127\194-\244][\128-\191]*)([<>=^])(.*)$")
  if not fill then align, rest = specification:match("^([<>=^]?)(.*)$") end
  local sign, alternate, zero, width, comma, dot, precision, letter =
    rest:match("^([-+ ]?)(#?)(0?)(%d*)(,?)(%.?)(%d*)(%a?%%?)$")
  if not sign then fault("Invalid format specifier '%s'", specification) end
  local zeros = zero ~= ""
  local flags = {
    width = math.min(tonumber(width) or 0, 2 * value.limits.text),
    sign = sign ~= "" and sign ~= "-" and sign or nil,
    fill = fill or (zeros and "0") or " ",
    align = align ~= "" and align or (zeros and "=") or (is_number and ">" or "<"),
  }
  return flags, {
    alternate = alternate ~= "", comma = comma ~= "", letter = letter,
    precision = dot ~= "" and tonumber(precision) or nil,
  }
end

local function format_text(s, flags, parts)
  if parts.letter ~= "" and parts.letter ~= "s" then
    fault("Unknown format code '%s' for object of type 'str'", parts.letter)
  end
  if flags.align == "=" then fault("'=' alignment not allowed in string format specifier") end
  return place(parts.precision and value.slice(s, 0, parts.precision) or s, false, flags)
end

--- Digits of a number in one of the formats, and whether it is negative.
local function format_digits(n, parts)
  local letter, precision = parts.letter, parts.precision
  if letter == "%" then
    local digits, negative = float_digits(n * 100.0, "f", precision or 6)
    return digits .. "%", negative
  elseif letter:find("^[eEfFgG]$") then
    return float_digits(n, letter, precision or 6)
  elseif math.type(n) == "float" and letter == "" then
    local plain = precision and string.format("%." .. precision .. "g", n) or value.float_text(n)
    return (plain:gsub("^%-", "")), plain:sub(1, 1) == "-"
  elseif letter:find("^[dxXob]?$") and math.type(n) ~= "float" then
    return integer_digits(n, letter, parts.alternate)
  end
  return fault("Unknown format code '%s' for object of type '%s'", letter, value.kind(n))
end

--- format(v, specification)
local function format_value(v, specification)
  if specification == "" then return value.str(v) end
  local is_number = value.number(v) ~= nil or value.is_big(v)
  local flags, parts = specification_parts(specification, is_number)
  if type(v) == "string" then return format_text(v, flags, parts) end
  if not is_number then fault("format() of %s takes no specification", value.kind(v)) end
  local digits, negative = format_digits(value.number(v) or v, parts)
  if parts.comma then digits = group_thousands(digits) end
  return place(digits, negative, flags)
end

--- "...".format(...): lookup(object, name, is_item) reads attributes and items.
function text.format(s, arguments, named, lookup)
  local out, from, automatic, numbered = {}, 1, 1, false
  local function field(expression)
    local head, path = expression:match("^([%w_]*)(.*)$")
    local v
    numbered = numbered or head:find("^%d+$") ~= nil
    if numbered and (head == "" or automatic > 1) then
      fault("cannot mix {} and {0} in one format")
    end
    if head == "" then
      v, automatic = arguments[automatic], automatic + 1
    elseif head:find("^%d+$") then
      v = arguments[tonumber(head) + 1]
    else
      v = named and value.dict_get(named, head)
    end
    if v == nil then fault("a replacement field '{%s}' has no argument", expression) end
    for mark, name in path:gmatch("([.%[])([^.%[%]]+)%]?") do
      v = lookup(v, math.tointeger(tonumber(name)) or name, mark == "[")
    end
    return v
  end
  while true do
    local at = s:find("[{}]", from)
    out[#out + 1] = s:sub(from, (at or 0) - 1)
    if not at then break end
    local mark = s:sub(at, at)
    if s:sub(at + 1, at + 1) == mark then
      out[#out + 1], from = mark, at + 2
    else
      local expression, conversion, specification, after =
        s:match("^{([^{}!:]*)(!?[rsa]?):?([^{}]*)}()", at)
      if mark == "}" or not expression then fault("Single '%s' in format string", mark) end
      local v = field(expression)
      if conversion == "!r" then v = value.repr(v) elseif conversion ~= "" then v = value.str(v) end
      out[#out + 1], from = format_value(v, specification), after
    end
  end
  return table.concat(out)
end

-- ---- methods: name -> function(s, arguments array, named dict or nil, state)

local methods = {}

--- A method without keyword arguments that takes at least `least` and at most `most`.
local function method(name, least, most, body)
  methods[name] = function(s, arguments, named)
    if named and named.n > 0 then fault("str.%s() takes no keyword arguments", name) end
    if arguments.n < least or arguments.n > most then
      fault("str.%s() takes %d to %d arguments (%d given)", name, least, most, arguments.n)
    end
    return body(s, arguments[1], arguments[2], arguments[3])
  end
end

for _, name in ipairs({ "lower", "upper", "capitalize", "title" }) do
  method(name, 0, 0, function(s) return text[name](s) end)
end
method("casefold", 0, 0, function(s) return text.lower(s) end)
method("swapcase", 0, 0, swapcase)
method("strip", 0, 1, text.strip)
method("lstrip", 0, 1, text.lstrip)
method("rstrip", 0, 1, text.rstrip)
method("join", 1, 1, text.join)
method("replace", 2, 3, text.replace)
method("count", 1, 3, count)
method("find", 1, 3, function(s, needle, first, last)
  return find(s, needle, first, last, false)
end)
method("rfind", 1, 3, function(s, needle, first, last)
  return find(s, needle, first, last, true)
end)
method("index", 1, 3, function(s, needle, first, last)
  local at = find(s, needle, first, last, false)
  return at >= 0 and at or fault("substring not found")
end)
method("rindex", 1, 3, function(s, needle, first, last)
  local at = find(s, needle, first, last, true)
  return at >= 0 and at or fault("substring not found")
end)
method("startswith", 1, 3, function(s, affix, first, last)
  return has_affix(s, affix, first, last, "startswith", starts)
end)
method("endswith", 1, 3, function(s, affix, first, last)
  return has_affix(s, affix, first, last, "endswith", ends)
end)
method("removeprefix", 1, 1, function(s, affix)
  return starts(s, need_text(affix, "argument")) and s:sub(#affix + 1) or s
end)
method("removesuffix", 1, 1, function(s, affix)
  need_text(affix, "argument")
  return affix ~= "" and ends(s, affix) and s:sub(1, -#affix - 1) or s
end)
method("partition", 1, 1, function(s, separator)
  local at = s:find(separator_of(separator), 1, true)
  return partition(s, separator, at) or value.tuple({ s, "", "" }, 3)
end)
method("rpartition", 1, 1, function(s, separator)
  local at = last_find(s, separator_of(separator))
  return partition(s, separator, at) or value.tuple({ "", "", s }, 3)
end)
method("center", 1, 2, text.center)
method("ljust", 1, 2, function(s, width, fill) return pad(s, width, fill, none_of, all_of) end)
method("rjust", 1, 2, function(s, width, fill) return pad(s, width, fill, all_of, none_of) end)
method("zfill", 1, 1, zfill)
method("isspace", 0, 0, function(s) return every(s, is_blank) end)
for _, name in ipairs({ "isdigit", "isdecimal" }) do
  method(name, 0, 0, function(s) return every(s, function(c) return class_of(c) == "N" end) end)
end
method("isnumeric", 0, 0, function(s)
  return every(s, function(c) return class_of(c) == "N" or class_of(c) == "O" end)
end)
method("isalpha", 0, 0, function(s) return every(s, function(c) return class_of(c) == "L" end) end)
method("isalnum", 0, 0, function(s)
  return every(s, function(c) return class_of(c) ~= "-" end)
end)
method("islower", 0, 0, function(s) return is_case(s, text.lower, text.upper) end)
method("isupper", 0, 0, function(s) return is_case(s, text.upper, text.lower) end)

--- Methods with keyword arguments in Python.
local function with_names(name, names, body)
  methods[name] = function(s, arguments, named)
    local given_values = {}
    for i, key in ipairs(names) do
      given_values[i] = arguments[i]
      local by_name = named and value.dict_get(named, key)
      if by_name ~= nil then given_values[i] = by_name end
    end
    if arguments.n > #names then fault("str.%s() takes at most %d arguments", name, #names) end
    return body(s, given_values[1], given_values[2])
  end
end
with_names("split", { "sep", "maxsplit" }, text.split)
with_names("rsplit", { "sep", "maxsplit" }, text.rsplit)
with_names("splitlines", { "keepends" }, function(s, keep)
  return text.splitlines(s, keep ~= nil and value.truth(keep))
end)

text.methods = methods

return text
