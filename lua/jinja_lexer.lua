--- jinja_lexer: template source -> tokens, with the white space rules that transformers sets.
--
-- Outside of tags everything is data. What a tag does to the data around it:
--   {%- and {{- {#-   blanks before are removed
--   -%} -}} -#}       blanks after are removed
--   %} and #}         one line break after is removed (trim_blocks)
--   {% and {#         blanks between the line's start and the tag are removed (lstrip_blocks)
--   {%+ and +%}       switch the two off
-- The last line break of the source is dropped, \r\n and \r count as \n.
--
-- Tokens: {kind, text, line}; kinds: data, variable_begin, variable_end, block_begin, block_end,
-- name, string, integer, float, operator, eof. string tokens hold the unescaped text, numbers
-- the value.

local value = require "jinja_value"
local text = require "jinja_text"

local lexer = {}

local function fault_at(line, format, ...)
  value.fault("template line %d: " .. format, line, ...)
end

-- ---- literals

local escapes = {
  a = "\a", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", v = "\v",
  ["\\"] = "\\", ["'"] = "'", ['"'] = '"', ["\n"] = "",
}
local hex_lengths = { x = 2, u = 4, U = 8 }

--- Python's escapes; unknown ones stay as they are.
local function unescape(body, line)
  if not body:find("\\", 1, true) then return body end
  local out, from = {}, 1
  while true do
    local at = body:find("\\", from, true)
    out[#out + 1] = body:sub(from, (at or 0) - 1)
    if not at then break end
    local letter = body:sub(at + 1, at + 1)
    local octal = body:match("^[0-7][0-7]?[0-7]?", at + 1)
    local length = hex_lengths[letter]
    if length then
      local digits = body:sub(at + 2, at + 1 + length)
      if #digits ~= length or digits:find("%X") or tonumber(digits, 16) > 0x10ffff then
        fault_at(line, "a wrong \\%s escape", letter)
      end
      out[#out + 1], from = utf8.char(tonumber(digits, 16)), at + 2 + length
    elseif octal then
      out[#out + 1], from = utf8.char(tonumber(octal, 8)), at + 1 + #octal
    else
      out[#out + 1], from = escapes[letter] or "\\" .. letter, at + 2
    end
  end
  return table.concat(out)
end

--- A number at `at`: kind, value, length; nil when there is none.
local function read_number(source, at)
  local digits = source:match("^%d[%d_]*", at)
  if not digits then return nil end
  local after = at + #digits
  local fraction = source:match("^%.%d[%d_]*", after) or ""
  local exponent = source:match("^[eE][+-]?%d[%d_]*", after + #fraction) or ""
  if (fraction ~= "" or exponent ~= "") and source:sub(at - 1, at - 1) ~= "." then
    local all = digits .. fraction .. exponent
    return "float", tonumber((all:gsub("_", ""))), #all
  end
  local prefix, rest = source:match("^0([xXoObB])([%x_]+)", at)
  if prefix then
    local base = ({ x = 16, o = 8, b = 2 })[prefix:lower()]
    local number = tonumber((rest:gsub("_", "")), base)
    if number then return "integer", number, #rest + 2 end
  end
  return "integer", value.integer((digits:gsub("_", ""))), #digits
end

--- The end of the string literal that starts at `at`, or nil.
local function string_end(source, at)
  local quote = source:sub(at, at)
  local place = at + 1
  while true do
    local stop = source:find("[\\" .. quote .. "]", place)
    if not stop then return nil end
    if source:sub(stop, stop) == quote then return stop end
    place = stop + 2
  end
end

-- ---- tags

local closers = { ["("] = ")", ["["] = "]", ["{"] = "}" }
local double_operators = {
  ["//"] = true, ["**"] = true, ["=="] = true, ["!="] = true, [">="] = true, ["<="] = true,
}

--- One lexing run: source, position, line, tokens, whether data begins a line.
local Run = {}
Run.__index = Run

function Run:add(kind, content)
  self.tokens[#self.tokens + 1] = { kind = kind, text = content, line = self.line }
end

--- Moves on to `to`, counting lines.
function Run:advance(to)
  local _, lines = self.source:sub(self.at, to - 1):gsub("\n", "")
  self.line = self.line + lines
  self.line_starting = self.source:sub(to - 1, to - 1) == "\n"
  self.at = to
end

--- The place after blanks.
local function skip_blanks(source, at)
  while at <= #source do
    local character = source:match("^[%z\1-\127\194-\244][\128-\191]*", at)
    if not (character and text.is_blank(character)) then break end
    at = at + #character
  end
  return at
end

--- Where a tag that closes with `mark` ("}}", "%}") ends if it does at self.at.
function Run:closing(mark)
  local source, at = self.source, self.at
  local sign = source:sub(at, at)
  if sign == "-" and source:sub(at + 1, at + 2) == mark then return skip_blanks(source, at + 3) end
  if mark == "%}" and sign == "+" and source:sub(at + 1, at + 2) == mark then return at + 3 end
  if source:sub(at, at + 1) ~= mark then return nil end
  if mark == "%}" and source:sub(at + 2, at + 2) == "\n" then return at + 3 end
  return at + 2
end

function Run:operator(stack)
  local pair = self.source:sub(self.at, self.at + 1)
  local operator = double_operators[pair] and pair or pair:sub(1, 1)
  if not operator:find("^[%+%-/%*%%~%[%]%(%){}=<>%.:|,;!]") or operator == "!" then
    fault_at(self.line, "unexpected character '%s'", operator)
  end
  if closers[operator] then
    stack[#stack + 1] = closers[operator]
  elseif operator == ")" or operator == "]" or operator == "}" then
    if table.remove(stack) ~= operator then fault_at(self.line, "unexpected '%s'", operator) end
  end
  self:add("operator", operator)
  self:advance(self.at + #operator)
end

--- One token inside of a tag.
function Run:token(stack)
  local source, at = self.source, self.at
  local name = source:match("^[%a_\128-\255][%w_\128-\255]*", at)
  if name then
    self:add("name", name)
    return self:advance(at + #name)
  end
  local kind, number, length = read_number(source, at)
  if kind then
    self:add(kind, number)
    return self:advance(at + length)
  end
  if source:find("^['\"]", at) then
    local stop = string_end(source, at)
    if not stop then fault_at(self.line, "a string without end") end
    self:add("string", unescape(source:sub(at + 1, stop - 1), self.line))
    return self:advance(stop + 1)
  end
  return self:operator(stack)
end

--- The inside of a tag up to its closing mark.
function Run:tag(kind, mark)
  local stack, opened = {}, self.line
  self:add(kind .. "_begin")
  while true do
    self:advance(skip_blanks(self.source, self.at))
    if self.at > #self.source then fault_at(opened, "a tag without end, expected %s", mark) end
    local stop = #stack == 0 and self:closing(mark)
    if stop then
      self:add(kind .. "_end")
      return self:advance(stop)
    end
    self:token(stack)
  end
end

--- Data up to a tag; sign is the character after the tag's opening mark.
function Run:data(stop, sign, is_variable)
  local content = self.source:sub(self.at, stop - 1)
  if sign == "-" then
    content = text.rstrip(content)
  elseif sign ~= "+" and not is_variable then
    local line_start = content:match(".*\n()") or (self.line_starting and 1)
    if line_start and text.strip(content:sub(line_start)) == "" then
      content = content:sub(1, line_start - 1)
    end
  end
  if content ~= "" then self:add("data", content) end
  self:advance(stop)
end

function Run:comment()
  local inside = self.at + (self.source:find("^[-+]", self.at + 2) and 3 or 2)
  local stop = self.source:find("#}", inside, true)
  if not stop then fault_at(self.line, "a comment without end, expected #}") end
  local sign = stop > inside and self.source:sub(stop - 1, stop - 1) or ""
  local after = stop + 2
  if sign == "-" then
    after = skip_blanks(self.source, after)
  elseif sign ~= "+" and self.source:sub(after, after) == "\n" then
    after = after + 1
  end
  self:advance(after)
end

--- {% raw %}: everything up to {% endraw %} is data. Returns false when the tag is another one.
function Run:raw()
  local inside = self.source:match("^{%%[-+]?%s*raw%s*()", self.at)
  if not inside then return false end
  local minus = self.source:match("^%-%%}()", inside)
  local plain = self.source:match("^%%}()", inside)
  if not (minus or plain) then return false end
  self:advance(minus and skip_blanks(self.source, minus) or plain)
  local stop, sign, after = self.source:match("(){%%([-+]?)%s*endraw%s*()", self.at)
  if not stop then fault_at(self.line, "raw without {%% endraw %%}") end
  self:data(stop, sign, false)
  self:advance(after)
  local closed = self:closing("%}")
  if not closed then fault_at(self.line, "expected %%} after endraw") end
  self:advance(closed)
  return true
end

function Run:next_tag()
  local stop = self.source:find("{[{%%#]", self.at)
  if not stop then
    if self.at <= #self.source then self:add("data", self.source:sub(self.at)) end
    self.at = #self.source + 1
    return
  end
  local letter, sign = self.source:sub(stop + 1, stop + 1), self.source:sub(stop + 2, stop + 2)
  self:data(stop, sign, letter == "{")
  if letter == "#" then return self:comment() end
  if letter == "%" and self:raw() then return end
  self:advance(stop + ((sign == "-" or sign == "+") and 3 or 2))
  if letter == "{" then return self:tag("variable", "}}") end
  return self:tag("block", "%}")
end

--- Template source -> array of tokens, the last of kind eof.
function lexer.tokens(source)
  source = source:gsub("\r\n?", "\n"):gsub("\n$", "")
  local fields = { source = source, at = 1, line = 1, tokens = {}, line_starting = true }
  local run = setmetatable(fields, Run)
  while run.at <= #source do run:next_tag() end
  run:add("eof", "end of the template")
  return run.tokens
end

return lexer
