--- lint.lua - the bit-equality rules of kernels, as far as their text shows them.
--
-- Templates are C text on the primitives of templates/prelude; bits are equal on all devices only
-- while nothing goes around those. check() reads a template with comments, strings and Lua taken
-- out (a hole becomes the word HOLE) and reports
--
--     float-type       float, double, __half: numbers live in f32 and h16
--     float-literal    1.5, 1e3, 2.f: constants come from f32() by their bits
--     float-member     .v reaches into an f32
--     float-operator   + - * / on a name that this file declares as f32 (a raw a*b+c)
--     libm             sqrtf, expf, ...: the prelude has its own
--     device-word      blockIdx and its like, asm, names with a double underscore
--     work-division    cta_id(): only text that a work map emits may use it
--     own-bits         f_exp2_approx(), whose bits are the device's own: templates of prompts only,
--                      prefill_*.cu
--     tile-size        a literal size: above 8 in the size of a declared array or in a for header
--                      (stride 32 and loops that shift are the warp's own), or a multiple of 64
--                      as factor or divisor. Write it as a hole: ${tile}
--
-- What text cannot show (an f32 reached through a macro or a cast) is left to the compiler: f32
-- is a struct without operators. The prelude itself is not linted by these rules.

local template = require "template"

local lint = {}

local words = {}
local function forbid(rule, list)
    for word in list:gmatch("%S+") do
        words[word] = rule
    end
end
forbid("float-type", "float double float2 float4 __half __half2 __nv_bfloat16")
forbid("device-word", "blockIdx gridDim threadIdx blockDim warpSize asm")
forbid("work-division", "cta_id")
forbid("own-bits", "f_exp2_approx")
forbid("libm", [[sqrt sqrtf rsqrt rsqrtf exp expf exp2 exp2f log logf log2 log2f sin sinf cos cosf
    sincosf tanh tanhf pow powf fma fmaf fabs fabsf floor floorf ceil ceilf round roundf rint rintf
    rintf fmin fminf fmax fmaxf erf erff ldexp ldexpf frexp frexpf cbrt fmod fmodf]])

local allowed_underscores = {__restrict__ = true, __launch_bounds__ = true}
local integer_types = {u8 = 1, i8 = 1, u16 = 1, i16 = 1, u32 = 1, i32 = 1, u64 = 1, i64 = 1}
local array_types = {f32 = 1, h16 = 1}
for name in pairs(integer_types) do
    array_types[name] = 1
end

local WARP = 32
local SMALL = 8
local TILE = 64

-- Blanks out comments, strings and `//@` lines; holes become HOLE. Line structure stays.
local function bare_lines(text)
    local lines, in_comment = {}, false
    for number, line in ipairs(template.lines(text)) do
        if line:match("^%s*//@") and not in_comment then
            lines[number] = ""
        else
            line = line:gsub("%$%b{}", " HOLE "):gsub('"[^"]*"', '""')
            local out = ""
            while line ~= "" do
                local mark = in_comment and "%*/" or "/[/%*]"
                local from, to = line:find(mark)
                if not from then
                    out = in_comment and out or out .. line
                    break
                end
                out = in_comment and out or out .. line:sub(1, from - 1) .. " "
                if not in_comment and line:sub(from, to) == "//" then
                    break
                end
                in_comment, line = not in_comment, line:sub(to + 1)
            end
            lines[number] = out
        end
    end
    return lines
end

-- Names declared as f32 values and f32 arrays or pointers; names that are also something else
-- (in another function) are left out.
local DECLARATION = "%f[%w_]([%w_]+)%s*([%s%*]%s*)([%a_][%w_]*)%s*(.?)"

local function f32_names(lines)
    local scalars, arrays, others = {}, {}, {}
    for _, line in ipairs(lines) do
        line = line:gsub("%f[%w_]const%f[^%w_]", "")
        for kind, stars, name, after in line:gmatch(DECLARATION) do
            if kind == "f32" and (stars:find("%*") or after == "[") then
                arrays[name] = true
            elseif kind == "f32" and after ~= "(" then
                scalars[name] = true
            elseif integer_types[kind] then
                others[name] = true
            end
        end
    end
    for name in pairs(others) do
        scalars[name], arrays[name] = nil, nil
    end
    for name in pairs(arrays) do
        scalars[name] = nil
    end
    return scalars, arrays
end

local function is_operator_after(rest)
    local two = rest:match("^%s*([%+%-%*/].?)")
    return two ~= nil and two ~= "->"
end

local function is_operator_before(text)
    local before, operator = text:match("([%w_%)%]])%s*([%+%-%*/])=?%s*$")
    if not before then
        return false
    end
    local word = text:match("([%a_][%w_]*)%s*[%*]%s*$")
    return not (operator == "*" and (array_types[word or ""] or word == "void"))
end

local function check_operators(line, scalars, arrays, report)
    for from, name, to in line:gmatch("()%f[%w_]([%a_][%w_]*)()") do
        local rest, before = line:sub(to), line:sub(1, from - 1)
        local index = rest:match("^%s*%b[]()")
        local value = scalars[name] or (arrays[name] and index)
        if value and not before:match("[%.>&]%s*$") then
            if arrays[name] then
                rest = rest:sub(index)
            end
            if is_operator_after(rest) or is_operator_before(before) then
                report("float-operator", name)
            end
        end
    end
end

local function check_words(line, of_prompts, report)
    for word, after in line:gmatch("%f[%w_]([%a_][%w_]*)%s*(.?)") do
        local rule = words[word]
        local may = rule == "libm" and after ~= "(" or rule == "own-bits" and of_prompts
        if rule and not may then
            report(rule, word)
        elseif not rule and word:match("^__") and not allowed_underscores[word] then
            report("device-word", word)
        end
    end
    if line:match("%.v%f[^%w_]") then
        report("float-member", ".v")
    end
    for literal in line:gmatch("%f[%w_%.](%d+%.%d*[fF]?)") do
        report("float-literal", literal)
    end
    for literal in line:gmatch("%f[%w_%.](%d+[eE][%+%-]?%d+)") do
        report("float-literal", literal)
    end
end

local function check_tile_sizes(line, report)
    for kind, sizes in line:gmatch("%f[%w_]([%w_]+)[%s%*]+[%a_][%w_]*%s*(%b[])") do
        for literal in sizes:gmatch("%f[%w_](%d+)%f[^%w_]") do
            if array_types[kind] and tonumber(literal) > SMALL then
                report("tile-size", "[" .. literal .. "]")
            end
        end
    end
    local header = line:match("%f[%w_]for%s*(%b())")
    if header and not header:find(">>=") and not header:find("<<=") then
        for before, literal in header:gmatch("([^%w_]*)%f[%w_](%d+)%f[^%w_]") do
            local stride = before:find("+=", 1, true) and tonumber(literal) == WARP
            if tonumber(literal) > SMALL and not stride then
                report("tile-size", literal .. " in a for header")
            end
        end
    end
    for operator, literal in line:gmatch("([%*/%%])=?%s*(%d+)%f[^%w_]") do
        if tonumber(literal) >= TILE and tonumber(literal) % TILE == 0 then
            report("tile-size", operator .. " " .. literal)
        end
    end
    for literal, operator in line:gmatch("%f[%w_](%d+)%s*([%*])") do
        if tonumber(literal) >= TILE and tonumber(literal) % TILE == 0 then
            report("tile-size", literal .. " " .. operator)
        end
    end
end

--- Checks the text of one template. Returns a list of {line, rule, text}, in order of lines.
function lint.check(path, text)
    if type(path) ~= "string" or type(text) ~= "string" then
        error("lint.check: expected a path and a text", 2)
    end
    local found = {}
    local of_prompts = path:match("prefill_[%w_]+%.cu$") ~= nil
    local lines = bare_lines(text)
    local scalars, arrays = f32_names(lines)
    for number, line in ipairs(lines) do
        local function report(rule, what)
            found[#found + 1] = {line = number, rule = rule, text = what}
        end
        check_words(line, of_prompts, report)
        check_operators(line, scalars, arrays, report)
        check_tile_sizes(line, report)
    end
    return found
end

return lint
