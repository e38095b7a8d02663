--- jinja: the Jinja subset of chat templates: compile once, render many times.
--
--   local template = jinja.compile(source)
--   local text = template:render(context)      -- context: a dict of jinja_value
--   local text = template:render_json(json)    -- or its JSON text
--
-- The subset is what transformers allows a chat template: jinja2 with trim_blocks, lstrip_blocks,
-- loop controls, the immutable sandbox; no loader, hence no include, import, extends, block.
-- jinja_lexer and jinja_parser make a tree; here every node becomes a Lua function once, and
-- rendering calls the functions.
--
--   expression function (state, scope) -> value
--   statement function  (state, scope) -> nil, "break" or "continue"
--
-- state   of one rendering: out (array of texts, n), size, steps, depth, line
-- scope   variable name with "$" before it -> value; missing names are looked up in the parent
--         scope by __index, down to the context and the global functions. for, with, macro,
--         set blocks, call and filter blocks open a scope; if does not.
--
-- Faults are raised as {text, limit = true for limits, raised = true for raise_exception, line}.
-- Limits (value.limits) bound depth, steps and text, so that every template ends.

local value = require "jinja_value"
local text = require "jinja_text"
local json = require "jinja_json"
local parser = require "jinja_parser"
local builtins = require "jinja_builtins"

local fault, truth, str = value.fault, value.truth, value.str
local get_attribute, get_item = builtins.get_attribute, builtins.get_item

local expressions, statements = {}, {}

--- Whether what is compiled now may never run: parts of `if` and of inline if. Only there are
-- unknown filters and tests left to be found at run time; as in jinja2, a scope within ends it.
local optional = false

--- Runs body with `optional` set; puts it back even when the template is wrong.
local function compile_as(is_optional, body, node)
  local before = optional
  optional = is_optional
  local done, result = pcall(body, node)
  optional = before
  if not done then error(result, 0) end
  return result
end

local function compile(node)
  return expressions[node.kind](node)
end

local function compile_all(nodes)
  local list = {}
  for i, node in ipairs(nodes) do list[i] = compile(node) end
  return list
end

local function open_scope(parent)
  local scope = { __index = parent }
  return setmetatable(scope, scope)
end

-- ---- leaves and containers

function expressions.const(node)
  local constant = node.value
  return function() return constant end
end

function expressions.name(node)
  local key, name = "$" .. node.name, node.name
  return function(_, scope)
    local v = scope[key]
    if v == nil then return value.undefined("'" .. name .. "' is undefined") end
    return v
  end
end

local function container(make)
  return function(node)
    local items = compile_all(node.items)
    return function(state, scope)
      local values = {}
      for i = 1, #items do values[i] = items[i](state, scope) end
      return make(values, #items)
    end
  end
end
expressions.list = container(value.list)
expressions.tuple = container(value.tuple)

function expressions.dict(node)
  local keys, values = compile_all(node.keys), compile_all(node.values)
  return function(state, scope)
    local dict = value.dict()
    for i = 1, #keys do value.dict_set(dict, keys[i](state, scope), values[i](state, scope)) end
    return dict
  end
end

function expressions.attribute(node)
  local of, name = compile(node.of), node.name
  return function(state, scope) return get_attribute(of(state, scope), name) end
end

function expressions.item(node)
  local of, index = compile(node.of), compile(node.index)
  return function(state, scope) return get_item(of(state, scope), index(state, scope)) end
end

function expressions.slice(node)
  local of = compile(node.of)
  local first, last = node.first and compile(node.first), node.last and compile(node.last)
  local step = node.step and compile(node.step)
  return function(state, scope)
    local v = of(state, scope)
    return value.slice(v, first and first(state, scope), last and last(state, scope),
      step and step(state, scope))
  end
end

-- ---- operators

local operators = {
  ["+"] = value.add, ["-"] = value.subtract, ["*"] = value.multiply, ["/"] = value.divide,
  ["//"] = value.floor_divide, ["**"] = value.power,
  ["%"] = function(a, b)
    if type(a) == "string" then return text.percent(a, b) end
    return value.modulo(a, b)
  end,
}

function expressions.binary(node)
  local operate = operators[node.operator]
  local left, right = compile(node.left), compile(node.right)
  return function(state, scope) return operate(left(state, scope), right(state, scope)) end
end

function expressions.unary(node)
  local operate, of = node.operator == "-" and value.negate or value.positive, compile(node.of)
  return function(state, scope) return operate(of(state, scope)) end
end

expressions["not"] = function(node)
  local of = compile(node.of)
  return function(state, scope) return not truth(of(state, scope)) end
end

function expressions.logic(node)
  local left, right, stop = compile(node.left), compile(node.right), node.operator == "or"
  return function(state, scope)
    local v = left(state, scope)
    if truth(v) == stop then return v end
    return right(state, scope)
  end
end

local comparisons = {
  ["=="] = value.equal,
  ["!="] = function(a, b) return not value.equal(a, b) end,
  ["<"] = function(a, b) return value.less(a, b, false, "<") end,
  ["<="] = function(a, b) return value.less(a, b, true, "<=") end,
  [">"] = function(a, b) return value.less(b, a, false, ">") end,
  [">="] = function(a, b) return value.less(b, a, true, ">=") end,
  ["in"] = function(a, b) return value.contains(b, a) end,
  ["not in"] = function(a, b) return not value.contains(b, a) end,
}

--- a < b < c: every neighbour pair, each operand evaluated once.
function expressions.compare(node)
  local left, tests, operands = compile(node.left), {}, {}
  for i, pair in ipairs(node.rest) do
    tests[i], operands[i] = comparisons[pair[1]], compile(pair[2])
  end
  return function(state, scope)
    local a = left(state, scope)
    for i = 1, #tests do
      local b = operands[i](state, scope)
      if not tests[i](a, b) then return false end
      a = b
    end
    return true
  end
end

function expressions.concat(node)
  local items = compile_all(node.items)
  return function(state, scope)
    local parts, size = {}, 0
    for i = 1, #items do
      parts[i] = str(items[i](state, scope))
      size = size + #parts[i]
    end
    value.check_size(size)
    return table.concat(parts)
  end
end

local function compile_either(node)
  local test, yes, no = compile(node.test), compile(node.yes), node.no and compile(node.no)
  return function(state, scope)
    if truth(test(state, scope)) then return yes(state, scope) end
    if no then return no(state, scope) end
    return value.undefined("an inline if without else was false")
  end
end

function expressions.either(node)
  return compile_as(true, compile_either, node)
end

-- ---- calls

local function spread_items(state, scope, spread, positional)
  local items, n = value.iterate(spread(state, scope))
  table.move(items, 1, n, positional.n + 1, positional)
  positional.n = positional.n + n
end

local function spread_pairs(state, scope, spread, named)
  local dict = spread(state, scope)
  if value.kind(dict) ~= "dict" then fault("argument after ** must be a mapping") end
  for i = 1, dict.n do value.dict_set(named, dict.keys[i], dict.values[i]) end
end

--- Argument nodes -> function (state, scope) -> positional array with n, named dict or nil.
local function compile_arguments(arguments)
  local positional, names, values = compile_all(arguments), {}, {}
  for i, pair in ipairs(arguments.named) do names[i], values[i] = pair[1], compile(pair[2]) end
  local spread = arguments.spread and compile(arguments.spread)
  local spread_named = arguments.spread_named and compile(arguments.spread_named)
  return function(state, scope)
    local given, named = { n = #positional }, nil
    for i = 1, #positional do given[i] = positional[i](state, scope) end
    if spread then spread_items(state, scope, spread, given) end
    if names[1] or spread_named then named = value.dict() end
    for i = 1, #names do value.dict_set(named, names[i], values[i](state, scope)) end
    if spread_named then spread_pairs(state, scope, spread_named, named) end
    return given, named
  end
end

local function call(state, callee, given, named)
  local kind = value.kind(callee)
  if kind == "Undefined" then fault("%s", callee.text) end
  local body = (kind == "function" or kind == "loop") and callee.call
  if not body then fault("'%s' object is not callable", kind) end
  builtins.count_steps(state, 1)
  state.depth = state.depth + 1
  if state.depth > value.limits.depth then fault("calls are nested too deeply") end
  local result = body(state, given, named)
  state.depth = state.depth - 1
  return result
end

function expressions.call(node)
  local of, arguments = compile(node.of), compile_arguments(node.arguments)
  return function(state, scope)
    local callee = of(state, scope)
    return call(state, callee, arguments(state, scope))
  end
end

--- A filter; nodes of blocks have no operand and get the value as `v`.
local function compile_filter(node)
  local name, arguments = node.name, compile_arguments(node.arguments)
  if not (optional or builtins.filters[name]) then
    fault("template line %d: No filter named '%s'.", node.line, name)
  end
  return function(state, scope, v)
    builtins.count_steps(state, 1)
    return builtins.call_filter(state, name, v, arguments(state, scope))
  end
end

function expressions.filter(node)
  local of, apply = compile(node.of), compile_filter(node)
  return function(state, scope) return apply(state, scope, of(state, scope)) end
end

function expressions.test(node)
  local of, name, arguments = compile(node.of), node.name, compile_arguments(node.arguments)
  if not (optional or builtins.tests[name]) then
    fault("template line %d: No test named '%s'.", node.line, name)
  end
  return function(state, scope)
    local v = of(state, scope)
    return builtins.call_test(state, name, v, arguments(state, scope))
  end
end

-- ---- output

local function emit(state, part)
  local out, n = state.out, state.out.n + 1
  out.n, out[n] = n, part
  state.size = state.size + #part
  if state.size > value.limits.text then value.check_size(state.size) end
end

--- Runs a body with output of its own; returns that output.
local function capture(state, scope, body)
  local out, size = state.out, state.size
  state.out = { n = 0 }
  body(state, scope)
  local captured = table.concat(state.out, "", 1, state.out.n)
  state.out, state.size = out, size
  return captured
end

--- The statements of an `if` part; bodies that open a scope go through compile_body.
local function compile_statements(nodes)
  local list, lines = {}, {}
  for i, node in ipairs(nodes) do
    list[i], lines[i] = statements[node.kind](node), node.line
  end
  return function(state, scope)
    for i = 1, #list do
      state.line = lines[i]
      builtins.count_steps(state, 1)
      local signal = list[i](state, scope)
      if signal then return signal end
    end
    return nil
  end
end

local function compile_body(nodes)
  return compile_as(false, compile_statements, nodes)
end

function statements.output(node)
  local items = compile_all(node.items)
  return function(state, scope)
    for i = 1, #items do emit(state, str(items[i](state, scope))) end
  end
end

-- ---- assignment

local assign

local assigners = {
  name = function(target, scope, v) scope["$" .. target.name] = v end,
  attribute = function(target, scope, v)
    local namespace = scope["$" .. target.of.name]
    if namespace == nil or value.kind(namespace) ~= "namespace" then
      fault("cannot assign attribute on non-namespace object")
    end
    value.dict_set(namespace.dict, target.name, v)
  end,
  tuple = function(target, scope, v)
    if value.is_undefined(v) then fault("%s", v.text) end
    local items, n = value.iterate(v)
    if n < #target.items then
      fault("not enough values to unpack (expected %d, got %d)", #target.items, n)
    elseif n > #target.items then
      fault("too many values to unpack (expected %d)", #target.items)
    end
    for i, part in ipairs(target.items) do assign(part, scope, items[i]) end
  end,
}

function assign(target, scope, v)
  assigners[target.kind](target, scope, v)
end

function statements.set(node)
  local target, source = node.target, compile(node.value)
  return function(state, scope) assign(target, scope, source(state, scope)) end
end

local function compile_filters(nodes)
  local list = {}
  for i, node in ipairs(nodes) do list[i] = compile_filter(node) end
  return function(state, scope, v)
    for i = 1, #list do v = list[i](state, scope, v) end
    return v
  end
end

function statements.set_block(node)
  local target, body, apply = node.target, compile_body(node.body), compile_filters(node.filters)
  return function(state, scope)
    local captured = capture(state, open_scope(scope), body)
    assign(target, scope, apply(state, scope, captured))
  end
end

function statements.filter_block(node)
  local body, apply = compile_body(node.body), compile_filters(node.filters)
  return function(state, scope)
    local inner = open_scope(scope)
    emit(state, str(apply(state, inner, capture(state, inner, body))))
  end
end

function statements.with(node)
  local values, targets, body = compile_all(node.values), node.targets, compile_body(node.body)
  return function(state, scope)
    local inner = open_scope(scope)
    for i = 1, #values do assign(targets[i], inner, values[i](state, scope)) end
    return body(state, inner)
  end
end

function statements.scope(node)
  local body = compile_body(node.body)
  return function(state, scope) return body(state, open_scope(scope)) end
end

-- ---- if and for

local function compile_if(node)
  local tests, bodies = compile_all(node.tests), {}
  for i, body in ipairs(node.bodies) do bodies[i] = compile_statements(body) end
  local otherwise = node.else_body and compile_statements(node.else_body)
  return function(state, scope)
    for i = 1, #tests do
      if truth(tests[i](state, scope)) then return bodies[i](state, scope) end
    end
    if otherwise then return otherwise(state, scope) end
    return nil
  end
end

statements["if"] = function(node)
  return compile_as(true, compile_if, node)
end

statements["break"] = function() return function() return "break" end end
statements.continue = function() return function() return "continue" end end

local loop_fields = builtins.loop_fields
function loop_fields.index(loop) return loop.index end
function loop_fields.index0(loop) return loop.index - 1 end
function loop_fields.revindex(loop) return loop.length - loop.index + 1 end
function loop_fields.revindex0(loop) return loop.length - loop.index end
function loop_fields.first(loop) return loop.index == 1 end
function loop_fields.last(loop) return loop.index == loop.length end
function loop_fields.length(loop) return loop.length end
function loop_fields.depth(loop) return loop.depth end
function loop_fields.depth0(loop) return loop.depth - 1 end
function loop_fields.previtem(loop)
  if loop.index == 1 then return value.undefined("there is no previous item") end
  return loop.items[loop.index - 1]
end
function loop_fields.nextitem(loop)
  if loop.index == loop.length then return value.undefined("there is no next item") end
  return loop.items[loop.index + 1]
end
function loop_fields.cycle(loop)
  return value.callable("cycle", function(_, given)
    if given.n == 0 then fault("no items for cycling given") end
    return given[(loop.index - 1) % given.n + 1]
  end)
end
function loop_fields.changed(loop)
  return value.callable("changed", function(_, given)
    local seen = value.list(given, given.n)
    local same = loop.seen and value.equal(loop.seen, seen)
    loop.seen = seen
    return not same
  end)
end

--- The items a loop walks over, after its `if`.
local function loop_items(state, scope, node, over, accept)
  local items, n = value.iterate(over)
  builtins.count_steps(state, n)
  if not accept then return items, n end
  local kept, count = {}, 0
  for i = 1, n do
    local inner = open_scope(scope)
    assign(node.target, inner, items[i])
    if truth(accept(state, inner)) then
      count = count + 1
      kept[count] = items[i]
    end
  end
  return kept, count
end

--- One walk. Returns whether any turn ran to its end: as in jinja2, turns left by break or
-- continue do not keep `else` away.
local function walk(state, scope, node, loop, items, n, body)
  local completed = false
  loop.items, loop.length = items, n
  for i = 1, n do
    loop.index = i
    builtins.count_steps(state, 1)
    local inner = open_scope(scope)
    inner["$loop"] = loop
    assign(node.target, inner, items[i])
    local signal = body(state, inner)
    if signal == "break" then break end
    completed = completed or not signal
  end
  return completed
end

statements["for"] = function(node)
  local source, body = compile(node.over), compile_body(node.body)
  local accept = node.filter and compile(node.filter)
  local otherwise = node.else_body and compile_body(node.else_body)
  local function run(state, scope, over, depth)
    local loop = value.loop({ depth = depth, index = 0 })
    if node.recursive then
      loop.call = function(_, given)
        return capture(state, scope, function() return run(state, scope, given[1], depth + 1) end)
      end
    end
    local items, n = loop_items(state, scope, node, over, accept)
    if not walk(state, scope, node, loop, items, n, body) and otherwise then
      return otherwise(state, open_scope(scope))
    end
    return nil
  end
  return function(state, scope) return run(state, scope, source(state, scope), 1) end
end

-- ---- macros

--- Puts what is left of positional and named arguments into varargs and kwargs, or faults.
local function take_rest(node, inner, given, named, used)
  local extra = value.tuple({}, 0)
  for i = #node.parameters + 1, given.n do
    extra.n = extra.n + 1
    extra[extra.n] = given[i]
  end
  if node.uses.varargs then
    inner["$varargs"] = extra
  elseif extra.n > 0 then
    fault("macro '%s' takes not more than %d argument(s)", node.name, #node.parameters)
  end
  local others = value.dict()
  for i = 1, named and named.n or 0 do
    if not used[named.keys[i]] then value.dict_set(others, named.keys[i], named.values[i]) end
  end
  if node.uses.kwargs then
    inner["$kwargs"] = others
  elseif others.n > 0 then
    fault("macro '%s' takes no keyword argument '%s'", node.name, others.keys[1])
  end
end

local function take_caller(node, inner, named, used)
  if not node.uses.caller then return end
  used.caller = true
  inner["$caller"] = named and value.dict_get(named, "caller")
    or value.undefined("No caller defined")
end

local function bind_parameters(state, inner, node, defaults, given, named)
  local used = {}
  for i, name in ipairs(node.parameters) do
    local v = given[i]
    local by_name = named and value.dict_get(named, name)
    if by_name ~= nil and v ~= nil then
      fault("macro '%s' got multiple values for argument '%s'", node.name, name)
    end
    if v == nil then v = by_name end
    if v == nil and defaults[i] then v = defaults[i](state, inner) end
    if v == nil then v = value.undefined("parameter '" .. name .. "' was not provided") end
    inner["$" .. name], used[name] = v, true
  end
  take_caller(node, inner, named, used)
  take_rest(node, inner, given, named, used)
end

--- A macro node -> function (scope of definition) -> callable.
local function compile_macro(node)
  local defaults, body = {}, compile_body(node.body)
  for i, default in pairs(node.defaults) do defaults[i] = compile(default) end
  return function(scope)
    return value.callable(node.name, function(state, given, named)
      local inner, line = open_scope(scope), state.line
      bind_parameters(state, inner, node, defaults, given, named)
      local captured = capture(state, inner, body)
      state.line = line
      return captured
    end)
  end
end

function statements.macro(node)
  local make, key = compile_macro(node), "$" .. node.name
  return function(_, scope) scope[key] = make(scope) end
end

function statements.call_block(node)
  node.name = "caller"
  local make = compile_macro(node)
  local of, arguments = compile(node.call.of), compile_arguments(node.call.arguments)
  return function(state, scope)
    local callee = of(state, scope)
    local given, named = arguments(state, scope)
    named = named or value.dict()
    value.dict_set(named, "caller", make(scope))
    emit(state, str(call(state, callee, given, named)))
  end
end

-- ---- the template

local globals = {}
for name, callable in pairs(builtins.globals) do globals["$" .. name] = callable end
globals.__index = globals

local Template = {}
Template.__index = Template

--- Raised faults get the line that ran; anything else is an error of this module.
local function with_line(state, raised)
  if type(raised) ~= "table" then error(raised, 0) end
  raised.line = raised.line or state.line
  error(raised, 0)
end

--- context: dict value. Returns the text.
function Template:render(context)
  local root = setmetatable({}, globals)
  for i = 1, self.defaults.n do root["$" .. self.defaults.keys[i]] = self.defaults.values[i] end
  for i = 1, context.n do root["$" .. context.keys[i]] = context.values[i] end
  local state = { out = { n = 0 }, size = 0, steps = 0, depth = 0, line = 0 }
  local done, raised = pcall(self.body, state, open_scope(root))
  if not done then with_line(state, raised) end
  return table.concat(state.out, "", 1, state.out.n)
end

--- context: JSON text of an object.
function Template:render_json(context)
  local dict = json.parse(context)
  if value.kind(dict) ~= "dict" then fault("the context must be a JSON object") end
  return self:render(dict)
end

local jinja = {}

--- The program's functions for what Lua lacks: see jinja_text.host.
function jinja.set_host(host)
  text.host = host
end

--- Template source -> template with render(context) and render_json(text). defaults: JSON text of
-- an object with variables that every rendering has unless its context says otherwise.
function jinja.compile(source, defaults)
  local body = compile_body(parser.parse(source))
  return setmetatable({ body = body, defaults = json.parse(defaults or "{}") }, Template)
end

--- One sentence for a raised fault.
function jinja.describe(raised)
  if type(raised) ~= "table" then return tostring(raised) end
  if raised.raised or not raised.line then return raised.text end
  return string.format("template line %d: %s", raised.line, raised.text)
end

return jinja
