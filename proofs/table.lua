-- table.lua - the laws of this folder: what they are called, what they say, whether they say it.
--
-- Usage: lua5.4 proofs/table.lua theories        prints the theories in their order
--        lua5.4 proofs/table.lua check FOLDER    writes FOLDER/Laws.v
--        lua5.4 proofs/table.lua readme FOLDER   prints proofs/README.md with its tables made anew
--
-- A law is a Theorem with a comment before it,
--
--     (* Law NAME: what it says, in plain words.
--        Mirrors: modules of the reference. [No hypotheses.] *)
--     Theorem NAME : ...
--
-- and no Theorem is without one. That its hypotheses can hold is shown by use: by an instance that
-- a schedule exports (FOLDER/instances, export.lua), or by an `Example NAME_used` that applies it;
-- a law that has hypotheses and neither is refused. So is one whose hypotheses were made false: the
-- example then does not prove. Laws.v asks Coq on which axioms each law rests.
--
-- The README's tables are what stands between their marks: the laws, and the steps that schedules
-- count (FOLDER/roundings), of each operation those that come nearest to stock's.

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local command, folder = arg[1], arg[2]

local THEORIES = {"Formula", "Partition", "Spans", "Exact", "Trees", "Speculation", "Waits",
    "Errors", "Digits"}
local LAWS = {"<!-- laws: made by make laws -->", "<!-- end of laws -->"}
local STEPS = {"<!-- steps: made by make laws -->", "<!-- end of steps -->"}

-- Laws that generated text proves of each map (lua/coq.lua), by theorems that are laws themselves.
local OF_MAPS = {
    {name = "exactly_once", theory = "lua/coq.lua",
        mirrors = "gemm_m16_partition, draft_head_partition",
        words = "every item of every map of a schedule is done by one worker, once, for all values "
            .. "of the run-time extents: the map's own formulas are those of its partition's law."},
    {name = "in_bounds", theory = "lua/coq.lua", mirrors = "attn_stride, attn_pre",
        words = "the coordinates that a map computes of an item number are below their extents, "
            .. "and are the number's digits."},
    {name = "no_overflow", theory = "lua/coq.lua", mirrors = "gemm_m16_wpart",
        words = "the C text of every formula of a map, in the types that were chosen for it, "
            .. "computes the number that the formula is: nothing wraps."},
}

local function read(path)
    local file = assert(io.open(path))
    local text = file:read("a")
    file:close()
    return text
end

local function fail(text, ...)
    io.stderr:write("proofs: ", text:format(...), "\n")
    os.exit(1)
end

local function words_of(text)
    return (text:gsub("%s+", " "):gsub("^ ", ""):gsub(" $", ""))
end

-- The laws of one theory, in order; every Theorem must be one.
local function laws_of(theory)
    local text, laws = read(here .. "/" .. theory .. ".v"), {}
    for name, comment, theorem in text:gmatch("%(%* Law ([%w_]+): (.-)%*%)%s*Theorem ([%w_]+)") do
        if name ~= theorem then
            fail("%s.v: expected the law %s before Theorem %s", theory, theorem, name)
        end
        local words, mirrors = comment:match("^(.-)%s*Mirrors: (.-)%.")
        if not words then
            fail("%s.v: law %s: expected a sentence and \"Mirrors: modules.\"", theory, name)
        end
        laws[#laws + 1] = {
            name = name, theory = theory, words = words_of(words), mirrors = words_of(mirrors),
            used = text:find("Example " .. name .. "_used[%s:]") ~= nil,
            free = comment:find("No hypotheses.", 1, true) ~= nil,
        }
    end
    local _, count = text:gsub("\n%s*Theorem ", "")
    if count ~= #laws then
        fail("%s.v: expected a law's comment before each of %d theorems, got %d", theory, count,
            #laws)
    end
    return laws
end

-- law -> list of schedules
local function read_instances()
    local schedules = {}
    for line in io.lines(folder .. "/instances") do
        local schedule, law = line:match("^(%S+) (%S+)")
        schedules[law] = schedules[law] or {}
        table.insert(schedules[law], schedule)
    end
    return schedules
end

local function all_laws()
    local list = {}
    for _, theory in ipairs(THEORIES) do
        table.move(laws_of(theory), 1, 100, #list + 1, list)
    end
    return list
end

local function check()
    local instances, lines = read_instances(), {}
    lines[1] = "From Elpis Require " .. table.concat(THEORIES, " ") .. "."
    for _, law in ipairs(all_laws()) do
        if not (law.free or law.used or instances[law.name]) then
            fail("law %s of %s.v: expected an instance, an Example %s_used, or \"No hypotheses.\"",
                law.name, law.theory, law.name)
        end
        lines[#lines + 1] = ('Goal True. idtac "law %s %s". Abort.'):format(law.theory, law.name)
        lines[#lines + 1] = ("Print Assumptions %s.%s."):format(law.theory, law.name)
    end
    local file = assert(io.open(folder .. "/Laws.v", "w"))
    file:write(table.concat(lines, "\n"), "\n")
    file:close()
end

-- At most a few names in a cell; the others are counted.
local function some(list)
    if not list then
        return "none: shown by use"
    end
    local shown = table.concat(list, ", ", 1, math.min(#list, 4))
    return #list > 4 and ("%s and %d more"):format(shown, #list - 4) or shown
end

local function laws_table()
    local instances = read_instances()
    local lines = {"| law | in plain words | schedules | reference law |", "|---|---|---|---|"}
    for _, list in ipairs {OF_MAPS, all_laws()} do
        for _, law in ipairs(list) do
            local where = law.free and not instances[law.name] and "no hypotheses"
                or some(instances[law.name])
            lines[#lines + 1] = ("| `%s` (%s) | %s | %s | %s |"):format(law.name, law.theory,
                law.words:gsub("|", "\\|"), where, law.mirrors)
        end
    end
    return lines
end

-- Of each operation the line of FOLDER/roundings where ours is the largest part of stock's, with
-- the schedules that count it, in the order in which they come.
local function read_roundings()
    local list, of_name = {}, {}
    for line in io.lines(folder .. "/roundings") do
        local fields = {}
        for field in line:gmatch("[^\t]+") do
            fields[#fields + 1] = field
        end
        local op, schedule, ratio = fields[1], fields[2], fields[5] / fields[7]
        local known = of_name[op]
        if not known then
            known = {ratio = 0, schedules = {}}
            of_name[op], list[#list + 1] = known, known
        end
        if known.schedules[#known.schedules] ~= schedule then
            table.insert(known.schedules, schedule)
        end
        if ratio > known.ratio then
            known.ratio, known.fields = ratio, fields
        end
    end
    return list
end

local function steps_table()
    local lines = {"| operation | scale | ours | bound | stock | bound | schedules |",
        "|---|---|---|---|---|---|---|"}
    for _, each in ipairs(read_roundings()) do
        local f = each.fields
        lines[#lines + 1] = ("| %s | %s | %s | %s | %s | %s | %s |"):format(f[1],
            (f[3]:gsub("|", "\\|")), f[4], f[5], f[6], f[7], table.concat(each.schedules, ", "))
    end
    return lines
end

local function between(text, marks, lines)
    local from, past = text:find(marks[1], 1, true), select(2, text:find(marks[2], 1, true))
    if not from or not past then
        fail("README.md: expected the marks %s and %s", marks[1], marks[2])
    end
    return ("%s%s\n\n%s\n\n%s%s"):format(text:sub(1, from - 1), marks[1],
        table.concat(lines, "\n"), marks[2], text:sub(past + 1))
end

local function readme()
    local text = between(read(here .. "/README.md"), STEPS, steps_table())
    io.write((between(text, LAWS, laws_table())))
end

if command == "theories" then
    print(table.concat(THEORIES, " "))
elseif command == "check" then
    check()
elseif command == "readme" then
    readme()
else
    fail("usage: table.lua theories, or check|readme FOLDER")
end
