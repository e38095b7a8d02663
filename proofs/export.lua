-- export.lua - writes the Coq files of all schedules.
--
-- Usage: lua5.4 proofs/export.lua FOLDER [ROOT]
--
-- For every schedule of ROOT/schedules (default: the repository this file is in), every example of
-- it and every map of it, under each of the map partitions that its tuning offers, on the RTX
-- 3090's shape (sm_86, 82 SMs): one Coq module with the theorems of the map. For its claims, at
-- each value of its numeric parameters: one module a fact (lua/coq.lua). Equal modules are written
-- once.
--
-- Writes NAME.v for each schedule, All.v, which loads all of them so that Coq starts once and asks
-- once on which axioms they rest, `instances`, a line a schedule and law: "schedule law count", and
-- `roundings`, a line a schedule and claim of roundings: operation, schedule, scale, then of ours
-- and of stock the steps and the bound, with tabs between. Prints the schedules' names. A map
-- whose partition has no theorem is listed as such on standard error: it is covered by lua/laws.lua
-- alone.

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

local function write(name, text)
    local file = assert(io.open(folder .. "/" .. name, "w"))
    file:write(text)
    file:close()
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

local schedules = engine.new(read, list)
local coq, render = schedules.require("coq"), schedules.require("render")

-- The example with `name` pinned to each of `values`; as it is when it pins the name itself.
local function variants(example, name, values)
    if type(values) ~= "table" or example[name] ~= nil then
        return {example}
    end
    local requests = {}
    for _, value in ipairs(values) do
        local request = {[name] = value}
        for other, each in pairs(example) do
            request[other] = each
        end
        requests[#requests + 1] = request
    end
    return requests
end

-- The different modules of a schedule, each with its laws, and how many theorems a law has.
local function collector(schedule_name)
    local self = {modules = {}, seen = {}, laws = {}, order = {}}
    function self.count(law)
        if not self.laws[law] then
            self.order[#self.order + 1] = law
        end
        self.laws[law] = (self.laws[law] or 0) + 1
    end
    function self.add(text_of, module_name, laws)
        local text = text_of("M", "")
        if self.seen[text] then
            return false
        end
        self.seen[text] = true
        local name = ("%s_%d"):format(module_name, #self.modules + 1)
        local theorems = {}
        for k, law in ipairs(laws) do
            theorems[k] = name .. "." .. law
            self.count(law)
        end
        self.modules[#self.modules + 1] = {
            text = text_of(name, "schedule " .. schedule_name .. ", "), theorems = theorems,
        }
        return true
    end
    return self
end

local function add_maps(collected, schedule, name)
    for _, example in ipairs(schedule.examples or {}) do
        for _, parameters in ipairs(variants(example, "map", schedule.tuning.map)) do
            local maps = render.maps(schedule, {parameters = parameters, target = TARGET})
            for map_name, map in render.sorted_pairs(maps) do
                if coq.provable(map) then
                    local is_new = collected.add(function(module, where)
                        return coq.map_module(module, map, where .. "map " .. map_name)
                    end, map_name .. "_" .. map.partition, coq.map_laws)
                    if is_new then
                        collected.count(map.partition .. "_exactly_once")
                    end
                else
                    io.stderr:write(("%s: map %s: no theorem for partition %s\n"):format(name,
                        map_name, map.partition))
                end
            end
        end
    end
end

-- Lines of `roundings`, each once.
local roundings = {lines = {}, seen = {}}

local function add_roundings(schedule, claims)
    for _, each in ipairs(coq.roundings(claims)) do
        local line = ("%s\t%s\t%s\t%s\t%.3g\t%s\t%.3g"):format(each.op, schedule.name,
            each.over, each.ours.words, each.ours.bound, each.stock.words, each.stock.bound)
        if not roundings.seen[line] then
            roundings.seen[line] = true
            roundings.lines[#roundings.lines + 1] = line
        end
    end
end

local function add_claims(collected, schedule)
    if not schedule.claims then
        return
    end
    for _, example in ipairs(schedule.examples or {}) do
        local requests = {example}
        for numeric, values in render.sorted_pairs(schedule.numeric) do
            local longer = {}
            for _, request in ipairs(requests) do
                table.move(variants(request, numeric, values), 1, #values, #longer + 1, longer)
            end
            requests = longer
        end
        for _, parameters in ipairs(requests) do
            local _, found = render.maps(schedule, {parameters = parameters, target = TARGET})
            local claims = schedule.claims(found.p, TARGET)
            add_roundings(schedule, claims)
            for _, fact in ipairs(coq.claims(claims)) do
                collected.add(function(module, where)
                    return coq.claim_module(module, fact, where .. fact.what)
                end, "claim", {fact.law})
            end
        end
    end
end

-- A text that waits for other CTAs must say for which: its waits are then proved not to deadlock.
-- The kernel's own text begins behind the prelude.
local function add_waits(collected, schedule)
    for _, example in ipairs(schedule.examples or {}) do
        local request = {parameters = example, target = TARGET}
        if schedule.waits then
            local maps, found = render.maps(schedule, request)
            local stages = {}
            for stage in render.sorted_pairs(maps) do
                stages[#stages + 1] = stage
            end
            local fact = coq.waits(schedule.waits, stages, found.launch.cooperative)
            collected.add(function(module, where)
                return coq.claim_module(module, fact, where .. fact.what)
            end, "waits", {fact.law})
        else
            request.read, request.lines = read, true
            local text = render.render(schedule, request).source
            local own = text:match('#line %d+ "templates/[%w_]+%.cu".*') or ""
            local word = own:match("grid_sync%(") or own:match("load_acquire_u32%(")
            if word then
                error(("law waits_stratified, schedule %s: its text has %s: expected `waits`, the "
                    .. "stages that wait and for which"):format(schedule.name, word .. ")"), 0)
            end
        end
    end
end

local all, instances = {}, {}
for _, entry in ipairs(schedules:list()) do
    local schedule = schedules:schedule(entry.name)
    local collected = collector(entry.name)
    add_maps(collected, schedule, entry.name)
    add_claims(collected, schedule)
    add_waits(collected, schedule)
    if #collected.modules > 0 then
        write(entry.name .. ".v", coq.file("schedules/" .. entry.name .. ".lua", collected.modules))
        all[#all + 1] = ('Module %s. Load "%s". End %s.'):format(entry.name, entry.name, entry.name)
        for _, law in ipairs(collected.order) do
            instances[#instances + 1] = ("%s %s %d"):format(entry.name, law, collected.laws[law])
        end
        print(entry.name)
    end
end
local tuples = {}
for k, line in ipairs(all) do
    tuples[k] = line:match("^Module ([%w_]+)") .. ".theorems"
end
all[#all + 1] = "Definition all := (" .. table.concat(tuples, ", ") .. ")."
all[#all + 1] = "Print Assumptions all."
write("All.v", coq.imports .. "\n" .. table.concat(all, "\n") .. "\n")
write("instances", table.concat(instances, "\n") .. "\n")
write("roundings", table.concat(roundings.lines, "\n") .. "\n")
