--- install.lua - from a case to a folder that --schedules takes.
--
-- A schedule of a new name has to pass its case's check. One that stands in for a built-in schedule
-- has to be it in everything the engine sees: the same problem, numeric parameters and arguments,
-- the same exports, and the same bits in every output, at the case's problems, in all its runs and
-- tunings. Then the files are written,
--
--     FOLDER/schedules/NAME.lua   FOLDER/templates/NAME.cu   ...
--     FOLDER/checks/NAME.json     what was compared, and the digest of every file that went in
--
-- and the program takes them without a warning as long as the digests hold (core/jit/foreign.c).

local check = require "elpis.check"
local core = require "elpis.core"
local definition = require "elpis.definition"

local install = {}

local TUNINGS = 64 -- that are compared at each problem: nearly always all

-- Names, types and values of what callers give, as one text.
local function interface(s, field)
    local words = {}
    local kinds = s.engine:schedule(s.name)[field] or {}
    for k, name in ipairs(check.names(kinds)) do
        local kind = kinds[name]
        local values = type(kind) == "table" and table.concat(kind, "|") or tostring(kind)
        words[k] = name .. "=" .. (type(kind) == "function" and "..." or values)
    end
    return table.concat(words, " ")
end

local function arguments_text(args)
    local words = {}
    for k, argument in ipairs(args) do
        words[k] = argument[2] .. (argument[2]:sub(-1) == "*" and "" or " ") .. argument[1]
    end
    return table.concat(words, ", ")
end

local function demand_same(name, what, expected, got)
    if expected ~= got then
        check.fail("install of %s: %s: expected those of the built-in schedule, %s; got %s", name,
            what, expected, got)
    end
end

-- The engine launches by place, so arguments are the same in order and type, names too.
local function demand_interface(case, builtin)
    local s, target = case.schedule, case.device.target
    for _, field in ipairs {"problem", "numeric"} do
        demand_same(s.name, field .. " parameters", interface(builtin, field), interface(s, field))
    end
    for _, problem in ipairs(case.problems) do
        demand_same(s.name, "arguments", arguments_text(builtin:resolve(target, problem).args),
            arguments_text(s:resolve(target, problem).args))
        demand_same(s.name, "exports", check.text(builtin:render(target, problem).exports),
            check.text(s:render(target, problem).exports))
    end
end

local json = check.json

local function certificate(case, against, tunings)
    local files, problems = {}, {}
    for k, path in ipairs(check.names(case.schedule.seen)) do
        files[k] = ("    %s: %s"):format(json(path),
            json(core.digest(case.schedule.seen[path])))
    end
    for k, problem in ipairs(case.problems) do
        problems[k] = "    " .. json(check.text(problem))
    end
    return ('{\n  "schedule": %s,\n  "against": %s,\n  "device": %s,\n  "runs": %d,\n'
        .. '  "tunings": %d,\n  "problems": [\n%s\n  ],\n  "files": {\n%s\n  }\n}\n'):format(
            json(case.schedule.name), json(against), json(case.device.info.name),
            case.runs, tunings, table.concat(problems, ",\n"), table.concat(files, ",\n"))
end

-- The check, against the built-in schedule if there is one of that name.
local function run_check(case, builtin, options)
    if not builtin then
        if case.reference == nil then
            check.fail("install of %s: it has no built-in counterpart; give the case a reference",
                case.schedule.name)
        end
        return case:check(options)
    end
    demand_interface(case, builtin)
    local against = setmetatable(check.merged(case, {reference = builtin}),
        getmetatable(case))
    return against:check(options)
end

--- Installs the case's schedule; options.tunings: how many are compared at each problem.
function install.run(case, folder, options)
    options = check.options("case:install", options or {}, {tunings = "integer?"})
    options = {tunings = options.tunings or TUNINGS}
    if type(folder) ~= "string" or folder == "" then
        check.fail("case:install: expected a folder, got %s", tostring(folder))
    end
    local s = case.schedule
    s:render(case.device.target, case.problems[1]) -- reads the template: perhaps it alone differs
    if not next(s:foreign()) then
        check.fail("install of %s: it is the built-in schedule", s.name)
    end
    local builtin = definition.builtin(s.name)
    local result = run_check(case, builtin, options)
    local against = builtin and "built-in schedule" or "reference of its case"
    for path, text in pairs(s:foreign()) do -- the check has read all
        core.write(folder .. "/" .. path, text)
    end
    core.write(("%s/checks/%s.json"):format(folder, s.name),
        certificate(case, against, result.tunings))
    print(("installed %s in %s: checked against the %s at %d problem%s in %d tunings; use it with "
        .. "--schedules %s"):format(s.name, folder, against, #case.problems,
            #case.problems == 1 and "" or "s", result.tunings, folder))
    return result
end

return install
