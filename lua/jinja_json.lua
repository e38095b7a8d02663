--- jinja_json: JSON text <-> template values.
--
-- parse keeps what a template can see: the order of keys, the difference of 1 and 1.0, integers
-- of any size. dump prints what Python's json.dumps(ensure_ascii=False) prints, which is the
-- `tojson` that transformers gives to templates.
--
-- parse is strict (RFC 8259; duplicate keys are faults) but trusts its text to be UTF-8.

local value = require "jinja_value"
local fault = value.fault

local json = {}

-- ---- parse

local unescapes = {
  ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t",
}

local function broken(at, what)
  fault("JSON, byte %d: %s", at, what)
end

--- The character of the \uXXXX at `slash` (a surrogate pair takes two) and the place after it.
local function unescape_code(body, slash, at)
  local digits = body:match("^\\u(%x%x%x%x)", slash) or broken(at, "a wrong \\u escape")
  local code = tonumber(digits, 16)
  if code < 0xd800 or code > 0xdfff then return utf8.char(code), slash + 6 end
  local low = body:match("^\\u([dD][c-fC-F]%x%x)", slash + 6)
  if code >= 0xdc00 or not low then broken(at, "half of a surrogate pair") end
  code = 0x10000 + ((code - 0xd800) << 10) + (tonumber(low, 16) - 0xdc00)
  return utf8.char(code), slash + 12
end

--- The text between quotes, escapes resolved.
local function unescape(body, at)
  if not body:find("\\", 1, true) then return body end
  local out, from = {}, 1
  while true do
    local slash = body:find("\\", from, true)
    if not slash then break end
    out[#out + 1] = body:sub(from, slash - 1)
    local letter = body:sub(slash + 1, slash + 1)
    if letter == "u" then
      out[#out + 1], from = unescape_code(body, slash, at)
    else
      out[#out + 1] = unescapes[letter] or broken(at, "a wrong escape")
      from = slash + 2
    end
  end
  out[#out + 1] = body:sub(from)
  return table.concat(out)
end

--- The string that starts at the quote at `at`; returns it and the place after it.
local function parse_string(text, at)
  local from = at + 1
  local place = from
  while true do
    local stop = text:find('["\\%c]', place)
    if not stop then broken(at, "a string without end") end
    local c = text:byte(stop)
    if c == 34 then return unescape(text:sub(from, stop - 1), at), stop + 1 end
    if c == 92 then
      place = stop + 2
    elseif c == 127 then
      place = stop + 1
    else
      broken(stop, "a control character in a string")
    end
  end
end

local function parse_number(text, at)
  local whole = text:match("^%-?%d+", at)
  if not whole or whole:match("^%-?0%d") then broken(at, "a wrong number") end
  local after = at + #whole
  local fraction = text:match("^%.%d+", after) or ""
  local exponent = text:match("^[eE][+-]?%d+", after + #fraction) or ""
  if fraction == "" and exponent == "" then return value.integer(whole), after end
  return tonumber(whole .. fraction .. exponent), after + #fraction + #exponent
end

local parse_value

local function skip(text, at)
  return text:find("[^ \t\r\n]", at) or #text + 1
end

local function parse_array(text, at, depth)
  local items, n = {}, 0
  at = skip(text, at + 1)
  if text:byte(at) == 93 then return value.list(items, 0), at + 1 end
  while true do
    n = n + 1
    items[n], at = parse_value(text, at, depth)
    local c = text:byte(at)
    if c == 93 then return value.list(items, n), at + 1 end
    if c ~= 44 then broken(at, "expected , or ]") end
    at = skip(text, at + 1)
  end
end

local function parse_object(text, at, depth)
  local dict = value.dict()
  at = skip(text, at + 1)
  if text:byte(at) == 125 then return dict, at + 1 end
  while true do
    if text:byte(at) ~= 34 then broken(at, "expected a key") end
    local key, item
    key, at = parse_string(text, at)
    if dict.slots[key] then broken(at, "the key '" .. key .. "' twice") end
    at = skip(text, at)
    if text:byte(at) ~= 58 then broken(at, "expected :") end
    item, at = parse_value(text, skip(text, at + 1), depth)
    value.dict_set(dict, key, item)
    local c = text:byte(at)
    if c == 125 then return dict, at + 1 end
    if c ~= 44 then broken(at, "expected , or }") end
    at = skip(text, at + 1)
  end
end

local words = { t = { "true", true }, f = { "false", false }, n = { "null", value.none } }

--- The value at `at`; returns it and the next place that is not blank.
function parse_value(text, at, depth)
  if depth > value.limits.depth then broken(at, "nested too deeply") end
  local c = text:sub(at, at)
  local item
  if c == '"' then
    item, at = parse_string(text, at)
  elseif c == "{" then
    item, at = parse_object(text, at, depth + 1)
  elseif c == "[" then
    item, at = parse_array(text, at, depth + 1)
  elseif words[c] and text:sub(at, at + #words[c][1] - 1) == words[c][1] then
    item, at = words[c][2], at + #words[c][1]
  else
    item, at = parse_number(text, at)
  end
  return item, skip(text, at)
end

--- JSON text -> value.
function json.parse(text)
  local item, at = parse_value(text, skip(text, 1), 0)
  if at <= #text then broken(at, "text after the value") end
  return item
end

-- ---- dump

local escapes = {
  ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
  ["\b"] = "\\b", ["\f"] = "\\f", ["\127"] = "\127",
}

local function quote(text)
  return '"' .. text:gsub('[%c"\\]', function(c)
    return escapes[c] or string.format("\\u%04x", c:byte())
  end) .. '"'
end

local function scalar(v)
  local lua = type(v)
  if lua == "string" then return quote(v) end
  if lua == "boolean" then return v and "true" or "false" end
  if v == value.none then return "null" end
  if math.type(v) == "float" then
    if v ~= v then return "NaN" end
    if math.abs(v) == math.huge then return v > 0 and "Infinity" or "-Infinity" end
  end
  if lua == "number" or value.is_big(v) then return value.repr(v) end
  return nil
end

local function key_text(key)
  if type(key) == "string" then return quote(key) end
  local text = scalar(key)
  if not text then
    fault("keys must be str, int, float, bool or None, not %s", value.kind(key))
  end
  return '"' .. text .. '"'
end

local dump_value

--- Adds to out and keeps count, so that a hostile value stops early.
local function put(out, text)
  out.n = out.n + 1
  out[out.n] = text
  out.size = out.size + #text
  value.check_size(out.size)
end

local function dump_items(out, open, close, n, depth, each)
  if n == 0 then return put(out, open .. close) end
  local line = out.indent and "\n" .. out.indent:rep(depth + 1) or ""
  put(out, open .. line)
  for i = 1, n do
    if i > 1 then put(out, out.comma .. line) end
    each(i)
  end
  put(out, (out.indent and "\n" .. out.indent:rep(depth) or "") .. close)
end

local function sorted_order(dict, sort)
  local order = {}
  for i = 1, dict.n do order[i] = i end
  if sort then
    table.sort(order, function(a, b) return value.less(dict.keys[a], dict.keys[b]) end)
  end
  return order
end

function dump_value(out, v, depth)
  local text = scalar(v)
  if text then return put(out, text) end
  if depth > value.limits.depth then fault("a value is nested too deeply for tojson") end
  local kind = value.kind(v)
  if kind == "dict" then
    local order = sorted_order(v, out.sort_keys)
    dump_items(out, "{", "}", v.n, depth, function(i)
      put(out, key_text(v.keys[order[i]]) .. out.colon)
      dump_value(out, v.values[order[i]], depth + 1)
    end)
  elseif kind == "list" or kind == "tuple" then
    dump_items(out, "[", "]", v.n, depth, function(i) dump_value(out, v[i], depth + 1) end)
  else
    fault("Object of type %s is not JSON serializable", kind)
  end
end

--- value -> JSON text. options: indent (text of one level, or nil), comma, colon (separators),
-- ascii (escape everything beyond ASCII), sort_keys.
function json.dump(v, options)
  options = options or {}
  local out = {
    n = 0, size = 0, indent = options.indent, sort_keys = options.sort_keys,
    comma = options.comma or (options.indent and "," or ", "), colon = options.colon or ": ",
  }
  dump_value(out, v, 0)
  local text = table.concat(out, "", 1, out.n)
  if not options.ascii then return text end
  return (text:gsub("[\194-\244][\128-\191]+", function(character)
    local code = utf8.codepoint(character)
    if code < 0x10000 then return string.format("\\u%04x", code) end
    code = code - 0x10000
    return string.format("\\u%04x\\u%04x", 0xd800 + (code >> 10), 0xdc00 + (code & 0x3ff))
  end))
end

return json
