-- golden_spec.lua - the generated text of a few kernels at small shapes, kept in golden/.
--
-- The files hold the template's part of the source, after the preludes, without #line directives
-- but for scale_rows. They change with the
-- schedule, the template or the language: look at the difference, then write them anew with
--
--     ELPIS_GOLDEN=write busted --lua=/usr/bin/lua5.4 tests/schedules/golden_spec.lua

local support = dofile "tests/lua/support.lua"

local fixtures = support.fixture_engine()
local engine = require("engine").new(support.reader {""}, support.list)

local scale = {hidden = 256, rows_max = 8}
local linear = {k = 256, n0 = 256, n1 = 0, n2 = 0, n3 = 0, bits = 4, codebook = "mul1",
    cta_warps = 2, run = 2, unit = 2}
local embed = {hidden = 256, rows_max = 8, dtype = "BF16", warps = 2}

local function with(parameters, map)
    local copy = {map = map}
    for name, value in pairs(parameters) do
        copy[name] = value
    end
    return copy
end

local cases = {
    {fixtures, "scale_rows", scale, "contiguous", "host"},
    {fixtures, "scale_rows", scale, "strided", "sm_86"},
    {engine, "embed", embed, "strided", "host"},
    {engine, "embed", embed, "contiguous", "sm_86"},
    {engine, "linear_main", linear, "contiguous", "sm_86"},
    {engine, "linear_main", linear, "strided", "sm_86"},
}

describe("golden text", function()
    for _, case in ipairs(cases) do
        local schedules, name, parameters, map, target = table.unpack(case)
        it(("%s, %s, %s"):format(name, map, target), function()
            local source = schedules:render {schedule = name, parameters = with(parameters, map),
                target = support.targets[target], lines = name == "scale_rows"}.source
            source = source:gsub("^.-templates/prelude/math.h %*/\n", "")
            local path = ("tests/schedules/golden/%s_%s_%s.cu"):format(name, map, target)
            if os.getenv("ELPIS_GOLDEN") == "write" then
                local file = assert(io.open(path, "w"))
                file:write(source)
                file:close()
            end
            assert.equal(support.text(path), source)
        end)
    end
end)
