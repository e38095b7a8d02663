--- jinja_parser: tokens -> syntax tree, by recursive descent with jinja2's precedence.
--
-- Loosest to tightest: inline if; or; and; not; comparisons and in; + -; ~; * / // %; **; unary
-- - +; then attribute, item and call, filters and `is` tests. Unary minus binds tighter than **,
-- and a filter after it sees the negated value.
--
-- Expression nodes {kind, line, ...}
--   const value | name name | list items | tuple items | dict keys, values | attribute of, name
--   item of, index | slice of, first, last, step | call of, arguments | filter of, name, arguments
--   test of, name, arguments | unary operator, of | binary operator, left, right
--   compare left, rest {operator, right} | concat items | either (inline if) test, yes, no
--   logic operator, left, right | not of
-- arguments: {positional..., named = {{name, node}...}, spread, spread_named}
--
-- Statement nodes
--   output items | set target, value | set_block target, filters, body | break | continue
--   if tests, bodies, else_body | for target, over, filter, recursive, body, else_body
--   macro name, parameters, defaults, body, uses | call_block call, and as macro without name
--   filter_block filters, body | with targets, values, body | scope body
-- A target is a name node, an attribute of a namespace, or a tuple of targets.
--
-- Not here: meaning (jinja), filters' names (looked up when they run).

local value = require "jinja_value"
local lexer = require "jinja_lexer"

local Parser = {}
Parser.__index = Parser

-- ---- tokens

function Parser:fault(format, ...)
  value.fault("template line %d: " .. format, self.token.line, ...)
end

local function describe(token)
  if token.kind == "block_end" then return "end of statement block" end
  if token.kind == "variable_end" then return "end of print statement" end
  return "'" .. tostring(token.text or token.kind) .. "'"
end

function Parser:next()
  local token = self.token
  self.at = self.at + 1
  self.token = self.tokens[self.at]
  return token
end

function Parser:peek()
  return self.tokens[self.at + 1] or self.token
end

function Parser:is(kind, content)
  return self.token.kind == kind and (content == nil or self.token.text == content)
end

function Parser:operator(content) return self:is("operator", content) end
function Parser:word(content) return self:is("name", content) end

--- Takes the token if it is this one.
function Parser:take(kind, content)
  if not self:is(kind, content) then return false end
  self:next()
  return true
end

function Parser:expect(kind, content)
  if not self:is(kind, content) then
    local wanted = content and "'" .. content .. "'" or kind
    self:fault("expected %s, got %s", wanted, describe(self.token))
  end
  return self:next()
end

function Parser:node(kind, fields)
  fields.kind = kind
  fields.line = self.token.line
  return fields
end

--- Guards recursion: every nested expression and block passes here.
function Parser:deeper()
  self.depth = self.depth + 1
  if self.depth > value.limits.depth then self:fault("the template is nested too deeply") end
end

function Parser:shallower()
  self.depth = self.depth - 1
end

-- ---- primary expressions

local constants = {
  ["true"] = true, ["True"] = true, ["false"] = false, ["False"] = false,
  none = value.none, None = value.none,
}

function Parser:name()
  local token = self:next()
  local constant = constants[token.text]
  if constant ~= nil then return self:node("const", { value = constant }) end
  for _, uses in ipairs(self.uses) do uses[token.text] = true end
  return self:node("name", { name = token.text })
end

function Parser:string()
  local parts = {}
  while self:is("string") do parts[#parts + 1] = self:next().text end
  return self:node("const", { value = table.concat(parts) })
end

function Parser:list()
  local items = {}
  self:expect("operator", "[")
  while not self:operator("]") do
    if #items > 0 then
      self:expect("operator", ",")
      if self:operator("]") then break end
    end
    items[#items + 1] = self:expression()
  end
  self:expect("operator", "]")
  return self:node("list", { items = items })
end

function Parser:dict()
  local keys, values = {}, {}
  self:expect("operator", "{")
  while not self:operator("}") do
    if #keys > 0 then
      self:expect("operator", ",")
      if self:operator("}") then break end
    end
    keys[#keys + 1] = self:expression()
    self:expect("operator", ":")
    values[#values + 1] = self:expression()
  end
  self:expect("operator", "}")
  return self:node("dict", { keys = keys, values = values })
end

function Parser:primary()
  if self:is("name") then return self:name() end
  if self:is("string") then return self:string() end
  if self:is("integer") or self:is("float") then
    return self:node("const", { value = self:next().text })
  end
  if self:operator("[") then return self:list() end
  if self:operator("{") then return self:dict() end
  if self:take("operator", "(") then
    local node = self:tuple(true, true)
    self:expect("operator", ")")
    return node
  end
  return self:fault("unexpected %s", describe(self.token))
end

--- A single expression or, with commas, a tuple. conditional: inline if is allowed; ending: a
-- word that ends a tuple.
function Parser:tuple(conditional, parentheses, ending)
  local items, is_tuple = {}, false
  while true do
    if self:is("variable_end") or self:is("block_end") or self:operator(")")
      or ending and self:word(ending) then
      break
    end
    items[#items + 1] = self:expression(conditional)
    if not self:take("operator", ",") then break end
    is_tuple = true
  end
  if is_tuple then return self:node("tuple", { items = items }) end
  if items[1] then return items[1] end
  if not parentheses then self:fault("expected an expression, got %s", describe(self.token)) end
  return self:node("tuple", { items = items })
end

-- ---- what follows a primary

--- The parts of [first:last:step]; a plain index gives only `first`, not slicing.
function Parser:subscript(of)
  local first, last, step
  if not self:operator(":") then first = self:expression() end
  if not self:operator(":") then
    if not self:operator(",") then return self:node("item", { of = of, index = first }) end
    local items = { first }
    while self:take("operator", ",") do items[#items + 1] = self:expression() end
    return self:node("item", { of = of, index = self:node("tuple", { items = items }) })
  end
  self:next()
  if not self:operator(":") and not self:operator("]") then last = self:expression() end
  if self:take("operator", ":") and not self:operator("]") then step = self:expression() end
  return self:node("slice", { of = of, first = first, last = last, step = step })
end

function Parser:attribute(of)
  if self:is("integer") then
    local index = self:node("const", { value = self:next().text })
    return self:node("item", { of = of, index = index })
  end
  return self:node("attribute", { of = of, name = self:expect("name").text })
end

function Parser:argument(arguments)
  if self:take("operator", "*") then
    arguments.spread = self:expression()
  elseif self:take("operator", "**") then
    arguments.spread_named = self:expression()
  elseif self:is("name") and self:peek().kind == "operator" and self:peek().text == "=" then
    local name = self:next().text
    self:next()
    arguments.named[#arguments.named + 1] = { name, self:expression() }
  else
    if #arguments.named > 0 or arguments.spread or arguments.spread_named then
      self:fault("a positional argument after named ones")
    end
    arguments[#arguments + 1] = self:expression()
  end
end

function Parser:arguments()
  local arguments, first = { named = {} }, true
  self:expect("operator", "(")
  while not self:operator(")") do
    if not first then
      self:expect("operator", ",")
      if self:operator(")") then break end
    end
    first = false
    self:argument(arguments)
  end
  self:expect("operator", ")")
  return arguments
end

function Parser:postfix(node)
  while true do
    if self:take("operator", ".") then
      node = self:attribute(node)
    elseif self:take("operator", "[") then
      node = self:subscript(node)
      self:expect("operator", "]")
    elseif self:operator("(") then
      node = self:node("call", { of = node, arguments = self:arguments() })
    else
      return node
    end
  end
end

function Parser:dotted_name()
  local name = self:expect("name").text
  while self:take("operator", ".") do name = name .. "." .. self:expect("name").text end
  return name
end

--- A filter after its bar; of is nil in blocks.
function Parser:filter(of)
  local name = self:dotted_name()
  local arguments = self:operator("(") and self:arguments() or { named = {} }
  return self:node("filter", { of = of, name = name, arguments = arguments })
end

--- Whether the token begins the single argument of a test without parentheses.
function Parser:begins_test_argument()
  if self:is("string") or self:is("integer") or self:is("float") then return true end
  if self:operator("[") or self:operator("{") then return true end
  return self:is("name") and not (self:word("else") or self:word("or") or self:word("and"))
end

function Parser:test(of)
  local negated = self:take("name", "not")
  local name, arguments = self:dotted_name(), { named = {} }
  if self:operator("(") then
    arguments = self:arguments()
  elseif self:begins_test_argument() then
    if self:word("is") then self:fault("tests cannot be chained with is") end
    arguments[1] = self:postfix(self:primary())
  end
  local node = self:node("test", { of = of, name = name, arguments = arguments })
  return negated and self:node("not", { of = node }) or node
end

function Parser:filters_and_tests(node)
  while true do
    if self:take("operator", "|") then
      node = self:filter(node)
    elseif self:take("name", "is") then
      node = self:test(node)
    elseif self:operator("(") then
      node = self:node("call", { of = node, arguments = self:arguments() })
    else
      return node
    end
  end
end

-- ---- operators

function Parser:unary(bare)
  self:deeper()
  local node
  if self:take("operator", "-") then
    node = self:node("unary", { operator = "-", of = self:unary(true) })
  elseif self:take("operator", "+") then
    node = self:node("unary", { operator = "+", of = self:unary(true) })
  else
    node = self:primary()
  end
  node = self:postfix(node)
  if not bare then node = self:filters_and_tests(node) end
  self:shallower()
  return node
end

--- Left-associative operators of one level.
local function binary_level(operators, tighter)
  return function(self)
    local left = self[tighter](self)
    while self.token.kind == "operator" and operators[self.token.text] do
      local operator = self:next().text
      left = self:node("binary", { operator = operator, left = left, right = self[tighter](self) })
    end
    return left
  end
end

Parser.power = binary_level({ ["**"] = true }, "unary")
Parser.product = binary_level({ ["*"] = true, ["/"] = true, ["//"] = true, ["%"] = true }, "power")

function Parser:concatenation()
  local items = { self:product() }
  while self:take("operator", "~") do items[#items + 1] = self:product() end
  if #items == 1 then return items[1] end
  return self:node("concat", { items = items })
end

Parser.sum = binary_level({ ["+"] = true, ["-"] = true }, "concatenation")

local comparisons = {
  ["=="] = true, ["!="] = true, ["<"] = true, ["<="] = true, [">"] = true, [">="] = true,
}

function Parser:comparison_operator()
  if self.token.kind == "operator" and comparisons[self.token.text] then return self:next().text end
  if self:take("name", "in") then return "in" end
  local peek = self:peek()
  if self:word("not") and peek.kind == "name" and peek.text == "in" then
    self:next()
    self:next()
    return "not in"
  end
  return nil
end

function Parser:comparison()
  local left, rest = self:sum(), {}
  local operator = self:comparison_operator()
  while operator do
    rest[#rest + 1] = { operator, self:sum() }
    operator = self:comparison_operator()
  end
  if #rest == 0 then return left end
  return self:node("compare", { left = left, rest = rest })
end

function Parser:negation()
  if not self:take("name", "not") then return self:comparison() end
  self:deeper()
  local node = self:node("not", { of = self:negation() })
  self:shallower()
  return node
end

local function logic_level(word, tighter)
  return function(self)
    local left = self[tighter](self)
    while self:take("name", word) do
      left = self:node("logic", { operator = word, left = left, right = self[tighter](self) })
    end
    return left
  end
end

Parser.conjunction = logic_level("and", "negation")
Parser.disjunction = logic_level("or", "conjunction")

--- conditional == false: without inline if.
function Parser:expression(conditional)
  self:deeper()
  local node = self:disjunction()
  while conditional ~= false and self:take("name", "if") do
    local test, no = self:disjunction(), nil
    if self:take("name", "else") then no = self:expression() end
    node = self:node("either", { test = test, yes = node, no = no })
  end
  self:shallower()
  return node
end

-- ---- targets of set, for, with

function Parser:single_target()
  if self:take("operator", "(") then
    local target = self:target()
    self:expect("operator", ")")
    return target
  end
  local name = self:expect("name").text
  if constants[name] ~= nil then self:fault("cannot assign to '%s'", name) end
  if self:operator(".") then
    self:next()
    local of = self:node("name", { name = name })
    return self:node("attribute", { of = of, name = self:expect("name").text })
  end
  return self:node("name", { name = name })
end

function Parser:target()
  local items, is_tuple = { self:single_target() }, false
  while self:take("operator", ",") do
    is_tuple = true
    if self:word("in") or self:operator("=") or self:operator(")") then break end
    items[#items + 1] = self:single_target()
  end
  if not is_tuple then return items[1] end
  return self:node("tuple", { items = items })
end

-- ---- statements

--- Statements up to one of the words, which is left as the current token.
function Parser:body(...)
  self:deeper()
  local words, statements = {}, {}
  for _, word in ipairs({ ... }) do words[word] = true end
  while not self:is("eof") do
    if self:is("block_begin") and words[self:peek().text] then
      self:next()
      self:shallower()
      return statements
    end
    self:statement(statements)
  end
  if next(words) then
    self:fault("the template ends where {%% %s %%} was expected", (...))
  end
  self:shallower()
  return statements
end

--- The body of a block whose opening tag ends here, through its closing tag's word.
function Parser:closed_body(word)
  self:expect("block_end")
  local body = self:body(word)
  self:expect("name", word)
  return body
end

function Parser:if_statement()
  local node = self:node("if", { tests = {}, bodies = {} })
  repeat
    node.tests[#node.tests + 1] = self:tuple(false)
    self:expect("block_end")
    node.bodies[#node.bodies + 1] = self:body("elif", "else", "endif")
  until not self:take("name", "elif")
  if self:take("name", "else") then
    self:expect("block_end")
    node.else_body = self:body("endif")
  end
  self:expect("name", "endif")
  return node
end

function Parser:for_statement()
  local node = self:node("for", { target = self:target() })
  self:expect("name", "in")
  node.over = self:tuple(false, false, "recursive")
  if self:take("name", "if") then node.filter = self:expression() end
  node.recursive = self:take("name", "recursive")
  self:expect("block_end")
  self.loops = self.loops + 1
  node.body = self:body("endfor", "else")
  self.loops = self.loops - 1
  if self:take("name", "else") then
    self:expect("block_end")
    node.else_body = self:body("endfor")
  end
  self:expect("name", "endfor")
  return node
end

function Parser:filter_chain()
  local filters = {}
  repeat
    filters[#filters + 1] = self:filter()
  until not self:take("operator", "|")
  return filters
end

function Parser:set_statement()
  local node = self:node("set", { target = self:target() })
  if self:take("operator", "=") then
    node.value = self:tuple(true)
    return node
  end
  node.kind = "set_block"
  node.filters = self:take("operator", "|") and self:filter_chain() or {}
  node.body = self:closed_body("endset")
  return node
end

--- (a, b=1): names, and defaults by position.
function Parser:signature(node)
  node.parameters, node.defaults = {}, {}
  self:expect("operator", "(")
  while not self:operator(")") do
    if #node.parameters > 0 then self:expect("operator", ",") end
    local n = #node.parameters + 1
    node.parameters[n] = self:expect("name").text
    if self:take("operator", "=") then
      node.defaults[n] = self:expression()
    elseif next(node.defaults) then
      self:fault("a parameter without default after one with a default")
    end
  end
  self:expect("operator", ")")
end

--- The body of a macro; node.uses tells which names it mentions.
function Parser:macro_body(node, word)
  local loops = self.loops
  self.loops = 0
  node.uses = {}
  self.uses[#self.uses + 1] = node.uses
  node.body = self:closed_body(word)
  self.uses[#self.uses] = nil
  self.loops = loops
  return node
end

function Parser:macro_statement()
  local node = self:node("macro", { name = self:expect("name").text })
  self:signature(node)
  return self:macro_body(node, "endmacro")
end

function Parser:call_statement()
  local node = self:node("call_block", { parameters = {}, defaults = {} })
  if self:operator("(") then self:signature(node) end
  node.call = self:expression()
  if node.call.kind ~= "call" then self:fault("expected a call in {%% call %%}") end
  return self:macro_body(node, "endcall")
end

function Parser:with_statement()
  local node = self:node("with", { targets = {}, values = {} })
  while not self:is("block_end") do
    if #node.targets > 0 then self:expect("operator", ",") end
    node.targets[#node.targets + 1] = self:single_target()
    self:expect("operator", "=")
    node.values[#node.values + 1] = self:expression()
  end
  node.body = self:closed_body("endwith")
  return node
end

function Parser:filter_statement()
  local node = self:node("filter_block", { filters = self:filter_chain() })
  node.body = self:closed_body("endfilter")
  return node
end

--- transformers' {% generation %}: marks text, changes nothing.
function Parser:generation_statement()
  local node = self:node("scope", {})
  node.body = self:closed_body("endgeneration")
  return node
end

function Parser:print_statement()
  local items = {}
  repeat
    items[#items + 1] = self:expression()
  until not self:take("operator", ",")
  return self:node("output", { items = items })
end

local function loop_control(kind)
  return function(self)
    if self.loops == 0 then self:fault("%s outside of a loop", kind) end
    return self:node(kind, {})
  end
end

local statements = {
  ["if"] = Parser.if_statement, ["for"] = Parser.for_statement, set = Parser.set_statement,
  macro = Parser.macro_statement, call = Parser.call_statement, with = Parser.with_statement,
  filter = Parser.filter_statement, generation = Parser.generation_statement,
  print = Parser.print_statement, ["break"] = loop_control("break"),
  continue = loop_control("continue"),
}

--- Appends the next statement; neighbouring output is joined into one node.
function Parser:statement(list)
  if self:is("data") or self:is("variable_begin") then
    local node = self:node("output", { items = {} })
    while self:is("data") or self:is("variable_begin") do
      node.items[#node.items + 1] = self:output_item()
    end
    list[#list + 1] = node
    return
  end
  self:expect("block_begin")
  local word = self:expect("name").text
  local parse = statements[word]
  if not parse then self:fault("unknown or unsupported tag '%s'", word) end
  list[#list + 1] = parse(self)
  self:expect("block_end")
end

function Parser:output_item()
  if self:is("data") then return self:node("const", { value = self:next().text }) end
  self:next()
  local node = self:tuple(true)
  self:expect("variable_end")
  return node
end

local parser = {}

--- Template source -> array of statements.
function parser.parse(source)
  local tokens = lexer.tokens(source)
  local self = setmetatable({
    tokens = tokens, at = 1, token = tokens[1], depth = 0, loops = 0, uses = {},
  }, Parser)
  return self:body()
end

return parser
