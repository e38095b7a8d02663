--- template.lua - text with Lua in it -> lines that know where they came from.
--
-- A template is C text in which
--
--     //@ for i = 0, 3 do          a line that starts with //@ is Lua
--     y[${i}] = x[at + ${i}];      ${...} is a Lua expression, closed on its own line
--     KERNEL                       a line of that one word is handed to the renderer
--
-- compile() turns every template line into exactly one line of a Lua chunk named after the
-- template, so that an error of the Lua inside, at load or at run time, already names file and
-- line. Running the chunk appends {text, file, line, more} records to a sink (more: a further
-- line of what one template line gave); print() writes them with #line directives only where the
-- C compiler's own counting would be wrong.
--
-- A hole gives a string or an integer. Floats are refused: f32(x) prints a constant by its bits.
-- Negative integers come in parentheses. A hole of several lines keeps the indentation of its
-- line; a line that consists of one hole whose text is empty disappears.

local template = {}

local function quoted(text)
    return (string.format("%q", text):gsub("\\\n", "\\n"):gsub("\r", "\\r"))
end

-- Position of the brace that closes the hole whose content starts at `from`, or nil.
local function closing_brace(line, from)
    local depth, quote = 1, nil
    local at = from
    while at <= #line do
        local c = line:sub(at, at)
        if quote then
            if c == "\\" then
                at = at + 1
            elseif c == quote then
                quote = nil
            end
        elseif c == '"' or c == "'" then
            quote = c
        elseif c == "{" then
            depth = depth + 1
        elseif c == "}" then
            depth = depth - 1
            if depth == 0 then
                return at
            end
        end
        at = at + 1
    end
    return nil
end

-- One text line -> the Lua call that emits it.
local function compile_text(line, number, path)
    local parts, from = {}, 1
    while true do
        local open = line:find("${", from, true)
        if not open then
            break
        end
        local close = closing_brace(line, open + 2)
        if not close then
            error(("%s:%d: a ${ is not closed on its line"):format(path, number), 0)
        end
        local code = line:sub(open + 2, close - 1)
        if not code:find("%S") then
            error(("%s:%d: an empty ${}"):format(path, number), 0)
        end
        parts[#parts + 1] = quoted(line:sub(from, open - 1))
        parts[#parts + 1] = "(" .. code .. ")"
        from = close + 1
    end
    parts[#parts + 1] = quoted(line:sub(from))
    return ("_line(%d, %s) "):format(number, table.concat(parts, ", "))
end

--- Splits text into lines without their ends; a last line without an end counts.
function template.lines(text)
    local list = {}
    for line in (text:sub(-1) == "\n" and text or text .. "\n"):gmatch("([^\n]*)\n") do
        list[#list + 1] = line:gsub("\r$", "")
    end
    return list
end

--- Lua source of the template `text`; `path` is used in messages.
function template.compile(text, path)
    local code = {}
    for number, line in ipairs(template.lines(text)) do
        if line:match("^%s*//@") then
            code[number] = line:match("^%s*//@(.*)$")
        elseif line:match("^KERNEL%s*$") then
            code[number] = ("_kernel(%d) "):format(number)
        else
            code[number] = compile_text(line, number, path)
        end
    end
    return "local _line, _kernel = ...; " .. table.concat(code, "\n")
end

-- Text of a hole's value, or an error that names the place.
local function hole_text(value, place)
    if type(value) == "string" then
        return value
    elseif math.type(value) == "integer" then
        return value < 0 and "(" .. value .. ")" or tostring(value)
    elseif math.type(value) == "float" then
        error(("%s: a hole gives the float %s; use f32() for constants and // for integer division")
            :format(place, value), 0)
    end
    error(("%s: a hole gives a %s, expected a string or an integer"):format(place, type(value)), 0)
end

--- Adds `text`, of one or more lines, to a sink on behalf of template line `line` of `file`.
function template.append(sink, file, line, text)
    for k, each in ipairs(template.lines(text)) do
        sink[#sink + 1] = {text = (each:gsub("%s+$", "")), file = file, line = line, more = k > 1}
    end
end

-- Appends one template line, split where holes brought several lines.
local function emit_line(sink, file, number, ...)
    local count = select("#", ...)
    local first = (select(1, ...))
    local indent = first:match("^%s*")
    local parts, empty = {first}, true
    for k = 2, count do
        local piece = (select(k, ...))
        if k % 2 == 0 then
            piece = hole_text(piece, file .. ":" .. number)
            empty = empty and piece == ""
            piece = piece:gsub("\n", "\n" .. indent)
        elseif piece:find("%S") then
            empty = false
        end
        parts[k] = piece
    end
    if count > 1 and empty and not first:find("%S") then
        return
    end
    template.append(sink, file, number, table.concat(parts))
end

--- Runs a template. `options`: read(path) -> text or nil; environment (a table that gets the
-- function `include`); scope (the names the Lua inside sees); kernel(sink, path, line), called for
-- a KERNEL line. `include "name"` in the template runs templates/name.cu in place and returns
-- what its Lua returns. Result: the sink, a list of {text, file, line, more}.
function template.run(path, options)
    local sink, active = {}, {}
    local function run(file)
        local text = options.read(file)
        if not text then
            error(("%s: no such template"):format(file), 0)
        end
        if active[file] then
            error(("%s: the template includes itself"):format(file), 0)
        end
        active[file] = true
        local chunk, reason = load(template.compile(text, file), "@" .. file, "t", options.scope)
        if not chunk then
            error(reason, 0)
        end
        local result = chunk(function(number, ...) emit_line(sink, file, number, ...) end,
            function(number) options.kernel(sink, file, number) end)
        active[file] = nil
        return result
    end
    options.environment.include = function(name) return run("templates/" .. name .. ".cu") end
    run(path)
    return sink
end

--- The records of a sink as text; with `directives` (the default) #line stands where it must.
function template.print(sink, directives)
    local out, file, line = {}, nil, 0
    for _, record in ipairs(sink) do
        local counted = record.more or (record.file == file and record.line == line)
        if directives ~= false and not counted then
            out[#out + 1] = ('#line %d "%s"'):format(record.line, record.file)
            file, line = record.file, record.line
        end
        out[#out + 1] = record.text
        line = line + 1
    end
    return table.concat(out, "\n") .. "\n"
end

return template
