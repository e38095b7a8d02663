-- tuning_spec.lua - every tuning parameter of every schedule changes the text of its kernel.
--
-- Two tunings that differ in one parameter alone must differ in their text (comments do not count),
-- at some shape of the schedule's `examples` on some target; a parameter that never does is none.
-- What the texts compute is compared by tests/fuzz.

local support = dofile "tests/lua/support.lua"

local DRAWS = 60 -- of pairs, for a parameter
local engine = require("engine").new(support.reader {""}, support.list)
local targets = {support.targets.host, support.targets.sm_86, support.targets.sm_90}

local function render(entry, shape, target, seed, tuning)
    return engine:render {schedule = entry.name, parameters = entry.examples[shape],
        target = target, seed = seed, tuning = tuning, lines = false}
end

local function without_comments(source)
    return (source:gsub("/%*.-%*/", ""):gsub("//[^\n]*", ""))
end

-- The tuning with `name` as in `other`.
local function with_one_of(tuning, other, name)
    local copy = {}
    for each, value in pairs(tuning) do copy[each] = value end
    copy[name] = other[name]
    return copy
end

-- A pair of texts, or of the ways in which they are launched, that differ because of `name`: true,
-- or false when none was found.
local function changes_text(entry, name)
    for draw = 1, DRAWS do
        local shape, target = draw % #entry.examples + 1, targets[draw % #targets + 1]
        local one = render(entry, shape, target, 2 * draw)
        local other = render(entry, shape, target, 2 * draw + 1)
        if one.tuning[name] ~= other.tuning[name] then
            local changed = with_one_of(one.tuning, other.tuning, name)
            local legal, result = pcall(render, entry, shape, target, nil, changed)
            if legal and (without_comments(result.source) ~= without_comments(one.source) or
                result.overlaps ~= one.overlaps) then
                return true
            end
        end
    end
    return false
end

for _, entry in ipairs(engine:list()) do
    local names = require("schedule").sorted_names(engine:schedule(entry.name).tuning)
    if #names > 0 then
        describe("schedule " .. entry.name, function()
            for _, name in ipairs(names) do
                it("changes its text with " .. name, function()
                    assert.is_true(changes_text(entry, name))
                end)
            end
        end)
    end
end
