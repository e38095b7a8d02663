--- engine.lua - the functions the program calls.
--
-- The program gives two functions: read(path) -> text or nil (embedded files, or those of the
-- override folder) and list(folder) -> sorted list of paths. An engine keeps its own table of
-- loaded modules, so two engines with different readers do not see each other's, and nothing is
-- left in Lua's globals. Modules are looked up as lua/NAME.lua, then schedules/NAME.lua.
--
-- Schedules run with the pure part of Lua's library only: no files, no clock, no random numbers;
-- `pairs` is sorted. Assigning a global is an error. Files named schedules/lib_*.lua are helpers,
-- not schedules.
--
-- Every error is a string: one sentence, what failed, on what, expected and got.

local engine = {}

local methods = {}
methods.__index = methods

local function load_chunk(text, path, environment)
    local chunk, reason = load(text, "@" .. path, "t", environment)
    if not chunk then
        error(reason, 0)
    end
    return chunk
end

-- The require of one engine: library modules get Lua's whole library, schedules the pure part.
local function make_require(read)
    local loaded, loading = {}, {}
    local library, pure = setmetatable({}, {__index = _G}), nil
    local function private_require(name)
        if loaded[name] ~= nil then
            return loaded[name]
        end
        if loading[name] then
            error(("module %s: requires itself"):format(name), 0)
        end
        local path, environment = "lua/" .. name .. ".lua", library
        local text = read(path)
        if not text then
            path, environment = "schedules/" .. name .. ".lua", pure
            text = read(path)
        end
        if not text then
            error(("module %s: neither lua/%s.lua nor schedules/%s.lua is there"):format(name, name,
                name), 0)
        end
        loading[name] = true
        local ok, value = pcall(load_chunk(text, path, environment), name)
        loading[name] = nil
        if not ok then
            error(value, 0)
        end
        loaded[name] = value
        return value
    end
    library.require = private_require
    local names = private_require("render").pure_library()
    names.require = private_require
    pure = setmetatable({}, {
        __index = function(_, name)
            if names[name] == nil then
                error(("no global %s for schedules"):format(tostring(name)), 2)
            end
            return names[name]
        end,
        __newindex = function(_, name)
            error(("the global %s is assigned; use local"):format(tostring(name)), 2)
        end,
    })
    return private_require
end

--- An engine over read(path) -> text or nil and list(folder) -> list of paths.
function engine.new(read, list)
    if type(read) ~= "function" then
        error("engine.new: read: expected a function, got " .. type(read), 2)
    end
    local self = setmetatable({read = read, list_files = list}, methods)
    self.require = make_require(read)
    return self
end

--- The schedule `name`, defined by schedules/NAME.lua.
function methods:schedule(name)
    if type(name) ~= "string" or not name:match("^[%w_]+$") then
        error(("schedule %s: expected a name of letters, digits and _"):format(tostring(name)), 0)
    end
    if not self.read("schedules/" .. name .. ".lua") then
        error(("schedule %s: no such schedule; `elpis kernels` lists them"):format(name), 0)
    end
    local s = self.require(name)
    if not self.require("schedule").is(s) or s.name ~= name then
        error(("schedule %s: its file must return schedule.define{name = \"%s\", ...}"):format(name,
            name), 0)
    end
    return s
end

--- Renders a request {schedule, parameters, target, tuning, seed, lines}; see render.render.
function methods:render(request)
    local s = self:schedule(request.schedule)
    return self.require("render").render(s, {
        parameters = request.parameters or {}, target = request.target, tuning = request.tuning,
        seed = request.seed, lines = request.lines, read = self.read,
        schedule_text = self.read("schedules/" .. s.name .. ".lua"),
    })
end

-- What a request may set, but for tuning: "bits, k, n".
local function parameter_names(s)
    local names = {}
    for _, kind in ipairs {"problem", "numeric"} do
        for name in pairs(s[kind] or {}) do names[#names + 1] = name end
    end
    table.sort(names)
    return table.concat(names, ", ")
end

--- All schedules as {name, summary, parameters, examples}, sorted by name.
function methods:list()
    local result = {}
    for _, path in ipairs(self.list_files("schedules")) do
        local name = path:match("^schedules/([%w_]+)%.lua$")
        if name and not name:match("^lib_") then
            local s = self:schedule(name)
            result[#result + 1] = {name = name, summary = s.summary,
                parameters = parameter_names(s), examples = s.examples or {}}
        end
    end
    table.sort(result, function(a, b) return a.name < b.name end)
    return result
end

--- The texts that say what the tuning values of a schedule mean: its own and its template's.
function methods:texts(name)
    local s = self:schedule(name)
    return self.read("schedules/" .. name .. ".lua") ..
        (self.read("templates/" .. s.template .. ".cu") or "")
end

--- All legal tuning tables of a request, at most `limit`: what a sweep walks.
function methods:combinations(request, limit)
    return self.require("schedule").combinations(self:schedule(request.schedule),
        {parameters = request.parameters or {}, target = request.target}, limit)
end

--- Runs the laws on a request's maps: a list of {law, map, ok, detail}; see laws.check.
function methods:laws(request)
    local s = self:schedule(request.schedule)
    local maps, found = self.require("render").maps(s, {parameters = request.parameters or {},
        target = request.target, tuning = request.tuning, seed = request.seed})
    return self.require("laws").check(s, maps, found, request.target)
end

return engine
