--- definition.lua - a schedule with the files it is made from.
--
--     elpis.schedule "residual"                        the program's, or that of --schedules
--     elpis.schedule "softmax_rows.lua"                a file; its template lies beside it, or in
--                                                      ../templates
--     elpis.schedule {schedule = ..., template = ...}  texts or files; `files` for further ones,
--                                                      {["templates/lib_x.cu"] = text or file}
--
-- Its files are texts by the paths they have in a source tree; they come before those of
-- --schedules, which come before the program's. A definition has an engine (lua/engine.lua) of its
-- own over them, in this Lua state, for what needs no device: arguments, tuning, laws.
--
-- Errors name the file and line where the text stands in the script: a text that was written in
-- the script is looked for there. `files` of a definition are {text, origin, line}; line is the
-- number of lines before the text in origin, which is nil for a text that was not found.

local check = require "elpis.check"
local core = require "elpis.core"

local definition = {}

local methods = {}
methods.__index = methods

local function read_file(path)
    local file = io.open(path, "rb")
    if not file then
        return nil
    end
    local text = file:read("a")
    file:close()
    return text
end

-- The scripts on the call stack, innermost first.
local function callers()
    local list, level = {}, 2
    while true do
        local info = debug.getinfo(level, "S")
        if not info then
            return list
        end
        local path = info.source:match("^@(.*)")
        if path and not core.read(path) then
            list[#list + 1] = path
        end
        level = level + 1
    end
end

-- Where a text stands in a script that led here: path and number of lines before it.
local function place_of(text)
    for _, path in ipairs(callers()) do
        local script = read_file(path)
        local at = script and script:find(text, 1, true)
        if at then
            return path, select(2, script:sub(1, at - 1):gsub("\n", ""))
        end
    end
    return nil
end

-- A text, or the name of a file: what has no line break is a name.
local function file_of(what, value)
    if type(value) ~= "string" then
        check.fail("elpis.schedule: %s: expected a text or a file, got %s", what, type(value))
    end
    if value:find("\n") then
        local origin, line = place_of(value)
        return {text = value, origin = origin, line = line}
    end
    local text = read_file(value)
    if not text then
        check.fail("elpis.schedule: %s: there is no file %s", what, value)
    end
    return {text = text, origin = value, line = 0}
end

local function template_beside(path, template)
    local folder = path:match("^(.*)/[^/]*$") or "."
    for _, candidate in ipairs {folder .. "/" .. template .. ".cu",
        folder .. "/../templates/" .. template .. ".cu"} do
        if read_file(candidate) then
            return candidate
        end
    end
    return nil
end

-- read(path) of the engine; self.seen collects what was read.
local function reader(self)
    return function(path)
        local text = self.files[path] and self.files[path].text
        if not text and self.folder and not path:find("..", 1, true) then
            text = read_file(self.folder .. "/" .. path)
        end
        text = text or core.read(path)
        if text then
            self.seen[path] = text
        end
        return text
    end
end

local function open(files, folder)
    local self = setmetatable({files = files, folder = folder, seen = {}}, methods)
    local engine = load(core.read("lua/engine.lua"), "@lua/engine.lua", "t")()
    self.engine = engine.new(reader(self), function() return {} end)
    return self
end

local function make(files, name, folder)
    local self = open(files, folder)
    self.name = name
    self:guard(self.engine.schedule, self.engine, name)
    return self
end

-- The table that a schedule's text returns: its name is the name of its file, so it is read under
-- another one first.
local function define(schedule, files)
    local path = "schedules/unnamed.lua"
    local self = open(check.merged(files, {[path] = schedule}), core.schedules)
    local s = self:guard(self.engine.require, "unnamed")
    if not self.engine.require("schedule").is(s) then
        check.fail("elpis.schedule: %s: expected a text that returns schedule.define {...}",
            schedule.origin or "schedule")
    end
    return s
end

local fields = {schedule = "string", template = "string?", files = "table?"}

-- The files of a table {schedule, template, files}; name of the schedule.
local function files_of(source)
    check.options("elpis.schedule", source, fields)
    local files = {}
    for path, value in pairs(source.files or {}) do
        files[path] = file_of("files[" .. tostring(path) .. "]", value)
    end
    local schedule = file_of("schedule", source.schedule)
    local s = define(schedule, files)
    local given = source.template
    if not given and schedule.line == 0 and schedule.origin then
        given = template_beside(schedule.origin, s.template)
    end
    if given then
        files["templates/" .. s.template .. ".cu"] = file_of("template", given)
    end
    files["schedules/" .. s.name .. ".lua"] = schedule
    return files, s.name
end

--- A definition; see the head of this file.
function definition.new(source)
    if getmetatable(source) == methods then
        return source
    end
    if type(source) == "string" and source:match("^[%w_]+$") then
        return make({}, source, core.schedules)
    end
    if type(source) == "string" then
        source = {schedule = source}
    end
    local files, name = files_of(source)
    return make(files, name, core.schedules)
end

--- How messages call it.
function methods:title()
    local path = "schedules/" .. self.name .. ".lua"
    if self.files[path] then
        return self.name
    elseif self.seen[path] ~= core.read(path) then
        return self.name .. " of " .. self.folder
    end
    return "the built-in " .. self.name
end

--- The program's own schedule of that name, whatever --schedules says; nil where there is none.
function definition.builtin(name)
    return core.read("schedules/" .. name .. ".lua") and make({}, name, nil) or nil
end

--- True for a definition.
function definition.is(value)
    return getmetatable(value) == methods
end

--- `text` with places in the definition's files told as places in the script.
function methods:locate(text)
    for path, file in pairs(self.files) do
        if file.origin then
            local pattern = path:gsub("%p", "%%%0")
            local function place(number)
                return ("%s:%d"):format(file.origin, file.line + tonumber(number))
            end
            text = text:gsub(pattern .. ":(%d+)", place):gsub(pattern .. "%((%d+)%)", place)
        end
    end
    return text
end

--- f(...), its errors told with the script's places.
function methods:guard(f, ...)
    local results = table.pack(pcall(f, ...))
    if results[1] then
        return table.unpack(results, 2, results.n)
    end
    local text = tostring(results[2])
    local located = self:locate(text)
    core.restate(text, located)
    error(located, 0)
end

--- What a request resolves to on a target: {p, args, tuning, launch, ...} of lua/schedule.lua.
function methods:resolve(target, problem, tuning)
    return self:guard(function()
        return self.engine.require("schedule").resolve(self.engine:schedule(self.name),
            {parameters = problem, tuning = tuning, target = target})
    end)
end

--- The largest value of each run-time name that a map counts with: name -> integer.
function methods:limits(target, problem, tuning)
    return self:guard(function()
        local maps = self.engine.require("render").maps(self.engine:schedule(self.name),
            {parameters = problem, tuning = tuning, target = target})
        local expr, limits = self.engine.require("expr"), {}
        for _, map in pairs(maps) do
            for _, axis in ipairs(map.axes) do
                for _, variable in ipairs(expr.variables(axis.extent)) do
                    limits[variable.name] = math.min(limits[variable.name] or variable.high,
                        variable.high)
                end
            end
        end
        return limits
    end)
end

--- Legal tuning tables, at most `limit`.
function methods:combinations(target, problem, limit)
    return self:guard(self.engine.combinations, self.engine,
        {schedule = self.name, parameters = problem, target = target}, limit)
end

--- The rendered request, for reading: {source, grid, exports, ...} of lua/render.lua.
function methods:render(target, problem, tuning)
    return self:guard(self.engine.render, self.engine,
        {schedule = self.name, parameters = problem, tuning = tuning, target = target})
end

--- Checks the laws of the request's maps; the first that does not hold is an error.
function methods:laws(target, problem, tuning)
    local results = self:guard(self.engine.laws, self.engine,
        {schedule = self.name, parameters = problem, tuning = tuning, target = target})
    for _, result in ipairs(results) do
        if not result.ok then
            check.fail("law %s; %s", result.detail, check.text(check.merged(problem, tuning)))
        end
    end
    return results
end

--- The examples of the schedule.
function methods:examples()
    return self.engine:schedule(self.name).examples or {}
end

--- Files that are not the program's own: path -> text; own ones, and those read from --schedules.
function methods:foreign()
    local texts = {}
    for path, file in pairs(self.files) do
        texts[path] = file.text
    end
    for path, text in pairs(self.seen) do
        if text ~= core.read(path) then
            texts[path] = text
        end
    end
    return texts
end

return definition
