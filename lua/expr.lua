--- expr.lua - integer expressions on non-negative numbers.
--
-- One expression object has four readings that must agree: a Lua number (evaluate, compile),
-- C text (emit), a Coq term on Z (coq) and an interval [low, high] (fields of every node).
-- Work maps build their bounds, strides and index formulas out of these objects, so the loops
-- of a kernel, the numbers of the law checker and the definitions of the proofs have one source.
--
-- A node is an immutable table:
--
--     {op = "constant", value = 7}
--     {op = "variable", name = "worker"}          a free name; C text is given when emitting
--     {op = "add" | "sub" | "mul" | "div" | "mod" | "min" | "max" | "monus", a = node, b = node}
--     {op = "claim", a = node}                    same value, a tighter high that laws.lua checks
--
-- and each has low and high. Invariants: every value is at least 0 (sub requires b <= a, monus
-- is max(0, a - b)); div and mod are floor division on non-negatives, divisor at least 1, the
-- same in C, Lua and Coq; no bound exceeds 2^63 - 1, so 64 unsigned bits are always enough.
--
-- Intervals err outwards: high may be larger than what is reached, never smaller. A node whose
-- high is below 2^32 is u32 in C; a larger one is computed in u64 and narrowed as soon as a
-- result fits again. `claim` is the only way to narrow by assertion.
--
-- Not here: negative numbers, floats, conditions.

local expr = {}

local LIMIT_U32 = 1 << 32
local LIMIT_I32 = 1 << 31
local LARGEST = math.maxinteger

local node = {}
node.__index = node

local function make(fields)
    return setmetatable(fields, node)
end

--- True for an expression object.
function expr.is(value)
    return getmetatable(value) == node
end

--- The constant `value`, an integer of at least 0.
function expr.constant(value)
    if math.type(value) ~= "integer" or value < 0 then
        error("expr.constant: value: expected an integer of at least 0, got " .. tostring(value), 2)
    end
    return make {op = "constant", value = value, low = value, high = value}
end

--- The free name `name` with values low..high (low defaults to 0).
function expr.variable(name, high, low)
    if type(name) ~= "string" or not name:match("^[%a_][%w_]*$") then
        error("expr.variable: name: expected an identifier, got " .. tostring(name), 2)
    end
    if math.type(high) ~= "integer" or high < 0 then
        error("expr.variable: high of " .. name .. ": expected an integer, got " .. tostring(high),
            2)
    end
    return make {op = "variable", name = name, low = low or 0, high = high}
end

--- Numbers become constants, expressions stay.
function expr.of(value)
    if expr.is(value) then
        return value
    end
    if math.type(value) == "integer" then
        return expr.constant(value)
    end
    error("expr: expected an integer or an expression, got " .. tostring(value), 2)
end

local function sum_bound(a, b)
    if a > LARGEST - b then
        error("expr: a sum may exceed 2^63 - 1 (" .. a .. " + " .. b .. ")", 4)
    end
    return a + b
end

local function product_bound(a, b)
    if b ~= 0 and a > LARGEST // b then
        error("expr: a product may exceed 2^63 - 1 (" .. a .. " * " .. b .. ")", 4)
    end
    return a * b
end

-- The value of an operation on two numbers, or nil and the reason it has none.
local operations = {
    add = function(a, b) return a + b end,
    sub = function(a, b)
        if b > a then
            return nil, "difference " .. a .. " - " .. b .. " is negative"
        end
        return a - b
    end,
    monus = function(a, b) return a > b and a - b or 0 end,
    mul = function(a, b) return a * b end,
    div = function(a, b)
        if b == 0 then
            return nil, "division of " .. a .. " by zero"
        end
        return a // b
    end,
    mod = function(a, b)
        if b == 0 then
            return nil, "remainder of " .. a .. " by zero"
        end
        return a % b
    end,
    min = math.min,
    max = math.max,
}

-- Interval of each operation, outwards.
local intervals = {
    add = function(a, b) return sum_bound(a.low, b.low), sum_bound(a.high, b.high) end,
    sub = function(a, b) return math.max(0, a.low - b.high), math.max(0, a.high - b.low) end,
    monus = function(a, b) return math.max(0, a.low - b.high), math.max(0, a.high - b.low) end,
    mul = function(a, b) return product_bound(a.low, b.low), product_bound(a.high, b.high) end,
    div = function(a, b) return a.low // math.max(1, b.high), a.high // math.max(1, b.low) end,
    mod = function(a, b)
        if a.high < b.low then
            return a.low, a.high
        end
        return 0, math.min(a.high, math.max(b.high, 1) - 1)
    end,
    min = function(a, b) return math.min(a.low, b.low), math.min(a.high, b.high) end,
    max = function(a, b) return math.max(a.low, b.low), math.max(a.high, b.high) end,
}

local function is_constant(e, value)
    return e.op == "constant" and (value == nil or e.value == value)
end

-- Identities that hold for all values; nil when none applies.
local function simpler(op, a, b)
    if op == "add" and is_constant(a, 0) then return b end
    if op == "mul" and is_constant(a, 1) then return b end
    if op == "mul" and (is_constant(a, 0) or is_constant(b, 0)) then return expr.constant(0) end
    if is_constant(b, 0) and (op == "add" or op == "sub" or op == "monus") then return a end
    if is_constant(b, 1) and (op == "mul" or op == "div") then return a end
    if is_constant(b, 1) and op == "mod" then return expr.constant(0) end
    if op == "div" and a.op == "mul" and is_constant(b) and b.value > 0 then
        if is_constant(a.a) and a.a.value % b.value == 0 then -- c*x / d = (c/d)*x when d divides c
            return expr.mul(a.a.value // b.value, a.b)
        end
        if is_constant(a.b) and a.b.value % b.value == 0 then
            return expr.mul(a.a, a.b.value // b.value)
        end
    end
    return nil
end

local function binary(op, a, b)
    a, b = expr.of(a), expr.of(b)
    if (op == "div" or op == "mod") and is_constant(b, 0) then
        error("expr: " .. op .. " by zero", 3)
    end
    if is_constant(a) and is_constant(b) then
        local low = intervals[op](a, b) -- refuses what leaves 63 bits
        local value, reason = operations[op](a.value, b.value)
        if not value then
            error("expr: " .. reason, 3)
        end
        return expr.constant(value), low
    end
    local same = simpler(op, a, b)
    if same then
        return same
    end
    local low, high = intervals[op](a, b)
    return make {op = op, a = a, b = b, low = low, high = high}
end

--- a + b.
function expr.add(a, b) return (binary("add", a, b)) end
--- a - b where b <= a always holds (checked by laws.lua at every point it visits).
function expr.sub(a, b) return (binary("sub", a, b)) end
--- max(0, a - b).
function expr.monus(a, b) return (binary("monus", a, b)) end
--- a * b.
function expr.mul(a, b) return (binary("mul", a, b)) end
--- floor(a / b), b >= 1.
function expr.div(a, b) return (binary("div", a, b)) end
--- a - b * floor(a / b), b >= 1.
function expr.mod(a, b) return (binary("mod", a, b)) end
--- The smaller one.
function expr.min(a, b) return (binary("min", a, b)) end
--- The larger one.
function expr.max(a, b) return (binary("max", a, b)) end
--- ceil(a / b), b >= 1.
function expr.ceil_div(a, b)
    return expr.div(expr.sub(expr.add(a, b), 1), b)
end

--- The same value with the asserted upper bound `high`; laws.lua reports a point above it.
function expr.claim(e, high)
    e = expr.of(e)
    if high >= e.high then
        return e
    end
    return make {op = "claim", a = e, low = math.min(e.low, high), high = high}
end

node.__add = expr.add
node.__sub = expr.sub
node.__mul = expr.mul
node.__idiv = expr.div
node.__mod = expr.mod

--- Calls visit(node) for every node, operands first.
function expr.walk(e, visit)
    if e.a then expr.walk(e.a, visit) end
    if e.b then expr.walk(e.b, visit) end
    visit(e)
end

--- The free variables as a list of nodes, sorted by name.
function expr.variables(e)
    local seen, list = {}, {}
    expr.walk(e, function(n)
        if n.op == "variable" and not seen[n.name] then
            seen[n.name] = true
            list[#list + 1] = n
        end
    end)
    table.sort(list, function(x, y) return x.name < y.name end)
    return list
end

--- Replaces variables by the expressions of `values` (name -> expression or integer).
function expr.substitute(e, values)
    if e.op == "variable" then
        return values[e.name] and expr.of(values[e.name]) or e
    elseif e.op == "constant" then
        return e
    elseif e.op == "claim" then
        return expr.claim(expr.substitute(e.a, values), e.high)
    end
    return (binary(e.op, expr.substitute(e.a, values), expr.substitute(e.b, values)))
end

--- The number of `e` with the variables of `values` (name -> integer).
-- `observe(node, value)`, when given, sees every node's value. A negative difference, a zero
-- divisor or a missing variable is an error.
function expr.evaluate(e, values, observe)
    local value
    if e.op == "constant" then
        value = e.value
    elseif e.op == "variable" then
        value = values[e.name]
        if not value then
            error("expr.evaluate: no value for " .. e.name, 2)
        end
    elseif e.op == "claim" then
        value = expr.evaluate(e.a, values, observe)
    else
        local a, b = expr.evaluate(e.a, values, observe), expr.evaluate(e.b, values, observe)
        local reason
        value, reason = operations[e.op](a, b)
        if not value then
            error("expr.evaluate: " .. reason, 0)
        end
    end
    if observe then
        observe(e, value)
    end
    return value
end

local lua_forms = {
    add = "(%s + %s)", sub = "(%s - %s)", mul = "(%s * %s)", div = "(%s // %s)", mod = "(%s %% %s)",
    min = "min(%s, %s)", max = "max(%s, %s)", monus = "max(0, %s - %s)",
}

local function lua_text(e, values)
    if e.op == "constant" then
        return string.format("%d", e.value)
    elseif e.op == "variable" then
        local value = values and values[e.name]
        return value and string.format("%d", value) or e.name
    elseif e.op == "claim" then
        return lua_text(e.a, values)
    end
    return lua_forms[e.op]:format(lua_text(e.a, values), lua_text(e.b, values))
end

--- A Lua function of the variables named in the list `names`, in that order; the others are given
-- by `values` (name -> integer, may be left out). Unchecked and fast.
function expr.compile(e, names, values)
    local text = "local min, max = math.min, math.max; return function("
        .. table.concat(names, ", ")
        .. ") return " .. lua_text(e, values) .. " end"
    return assert(load(text, "=expr", "t", {math = math}))()
end

local c_symbols = {add = "+", sub = "-", mul = "*", div = "/", mod = "%"}
local PRECEDENCE = {add = 1, sub = 1, mul = 2, div = 2, mod = 2}
local ATOM, CAST = 4, 3

--- 32 or 64: the width of the C type that holds every value of `e`.
function expr.width(e)
    return e.high < LIMIT_U32 and 32 or 64
end

--- The C type of `e`: "u32" or "u64".
function expr.type(e)
    return "u" .. expr.width(e)
end

local function constant_text(value)
    if value < LIMIT_I32 then return string.format("%d", value) end
    if value < LIMIT_U32 then return string.format("%du", value) end
    return string.format("%dull", value)
end

local function variable_text(e, names)
    local text = names and names[e.name] or e.name
    local call = text:match("^[%a_][%w_]*%(%)$")
    return text, (call or text:match("^[%w_]+$")) and ATOM or 0
end

-- Text of an operand inside an operator of precedence `outer`; `right` operands of equal
-- precedence keep their parentheses because - / % do not associate.
local function operand(text, precedence, outer, right)
    if precedence < outer or (right and precedence == outer) then
        return "(" .. text .. ")"
    end
    return text
end

local emit_node

-- Returns text and precedence of a two-operand node before any narrowing.
local function emit_operation(e, a, b, a_precedence, b_precedence, widen)
    if widen then
        a, a_precedence = "(u64)" .. operand(a, a_precedence, CAST), CAST
    end
    local symbol = c_symbols[e.op]
    if symbol then
        local outer = PRECEDENCE[e.op]
        local flat = e.op == e.b.op and (e.op == "add" or e.op == "mul") and not widen
        return operand(a, a_precedence, outer) .. " " .. symbol .. " "
            .. operand(b, b_precedence, outer, not flat), outer
    end
    a, b = operand(a, a_precedence, 1), operand(b, b_precedence, 1)
    if e.op == "monus" then
        return ("(%s > %s ? %s - %s : 0)"):format(a, b, a, operand(b, b_precedence, 1, true)), ATOM
    end
    local compare = e.op == "min" and "<" or ">"
    return ("(%s %s %s ? %s : %s)"):format(a, compare, b, a, b), ATOM
end

emit_node = function(e, names)
    if e.op == "constant" then
        return constant_text(e.value), ATOM, e.value < LIMIT_U32 and 32 or 64
    elseif e.op == "variable" then
        local text, precedence = variable_text(e, names)
        return text, precedence, expr.width(e)
    elseif e.op == "claim" then
        local text, precedence, width = emit_node(e.a, names)
        if width == 64 and expr.width(e) == 32 then
            return "(u32)" .. operand(text, precedence, CAST), CAST, 32
        end
        return text, precedence, width
    end
    local a, a_precedence, a_width = emit_node(e.a, names)
    local b, b_precedence, b_width = emit_node(e.b, names)
    local wide = expr.width(e) == 64 or a_width == 64 or b_width == 64
    local widen = wide and a_width == 32 and b_width == 32
    local text, precedence = emit_operation(e, a, b, a_precedence, b_precedence, widen)
    if wide and expr.width(e) == 32 then
        return "(u32)" .. operand(text, precedence, CAST), CAST, 32
    end
    return text, precedence, wide and 64 or 32
end

--- C text of `e`; `names` gives the C text of variables (default: their names).
-- The text is an unsigned expression of type expr.type(e), or a plain literal.
function expr.emit(e, names)
    return (emit_node(e, names))
end

--- C text of `e` that may stand as an operand of any C operator.
function expr.emit_operand(e, names)
    local text, precedence = emit_node(e, names)
    return operand(text, precedence, CAST)
end

local coq_forms = {
    add = "(%s + %s)", sub = "(%s - %s)", mul = "(%s * %s)", div = "(%s / %s)",
    mod = "(%s mod %s)", min = "(Z.min %s %s)", max = "(Z.max %s %s)",
    monus = "(Z.max 0 (%s - %s))",
}

--- Coq text of `e` in Z_scope.
function expr.coq(e)
    if e.op == "constant" then
        return string.format("%d", e.value)
    elseif e.op == "variable" then
        return e.name
    elseif e.op == "claim" then
        return expr.coq(e.a)
    end
    return coq_forms[e.op]:format(expr.coq(e.a), expr.coq(e.b))
end

node.__tostring = function(e)
    return lua_text(e)
end

return expr
