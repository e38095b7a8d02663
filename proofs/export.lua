-- export.lua - writes the Coq files of all schedules.
--
-- Usage: lua5.4 proofs/export.lua FOLDER [ROOT]
--
-- For every schedule of ROOT/schedules (default: the repository this file is in), every example
-- of it and every map of it, under each of the map partitions that its tuning offers, on the
-- RTX 3090's shape (sm_86, 82 SMs): one Coq module with a theorem (lua/coq.lua). Equal modules
-- are written once. All.v loads all files, so that Coq starts once. Prints the name of each file
-- but All.v. A map whose partition has no theorem is listed
-- as such on standard error: it is covered by lua/laws.lua alone.

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local folder, root = arg[1], arg[2] or here .. "/.."
package.path = here .. "/../lua/?.lua;" .. package.path
local engine = require "engine"

local TARGET = {
    name = "sm_86", arch = 86, sms = 82, shared_per_sm = 102400, shared_per_block = 101376,
    registers_per_sm = 65536,
}

local function read(path)
    local file = io.open(root .. "/" .. path) or io.open(here .. "/../" .. path)
    if not file then
        return nil
    end
    local text = file:read("a")
    file:close()
    return text
end

local function list(name)
    local paths = {}
    local pipe = assert(io.popen("cd '" .. root .. "' && ls " .. name .. "/*.lua"))
    for path in pipe:lines() do
        paths[#paths + 1] = path
    end
    pipe:close()
    return paths
end

-- The tuning tables to export: one for each value of the tuning parameter `map`, if there is one.
local function variants(schedule, example)
    local map_values = schedule.tuning.map
    if type(map_values) ~= "table" then
        return {example}
    end
    local requests = {}
    for _, value in ipairs(map_values) do
        local request = {map = value}
        for name, each in pairs(example) do
            request[name] = each
        end
        requests[#requests + 1] = request
    end
    return requests
end

-- The different maps of a schedule as a list of {module name, map}.
local function modules_of(schedules, name)
    local schedule, modules, seen = schedules:schedule(name), {}, {}
    local coq, render = schedules.require("coq"), schedules.require("render")
    for _, example in ipairs(schedule.examples or {}) do
        for _, parameters in ipairs(variants(schedule, example)) do
            local maps = render.maps(schedule, {parameters = parameters, target = TARGET})
            for map_name, map in render.sorted_pairs(maps) do
                if coq.provable(map) then
                    local text = coq.map_module(map_name, map)
                    if not seen[text] then
                        seen[text] = true
                        local module = ("%s_%s_%d"):format(map_name, map.partition, #modules + 1)
                        modules[#modules + 1] = {module, map}
                    end
                else
                    io.stderr:write(("%s: map %s: no theorem for partition %s\n"):format(name,
                        map_name,
                        map.partition))
                end
            end
        end
    end
    return modules
end

local schedules = engine.new(read, list)
local all = {"From Elpis Require Import Partition."}
for _, entry in ipairs(schedules:list()) do
    local modules = modules_of(schedules, entry.name)
    if #modules > 0 then
        local path = folder .. "/" .. entry.name .. ".v"
        local file = assert(io.open(path, "w"))
        file:write(schedules.require("coq").file("schedules/" .. entry.name .. ".lua", modules))
        file:close()
        all[#all + 1] = ('Module %s. Load "%s". End %s.'):format(entry.name, entry.name, entry.name)
        print(path)
    end
end
local file = assert(io.open(folder .. "/All.v", "w"))
file:write(table.concat(all, "\n"), "\n")
file:close()
