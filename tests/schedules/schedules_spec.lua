-- schedules_spec.lua - every schedule of schedules/, at every shape of its `examples`.
--
-- On the host, sm_86 and sm_90: it renders; its maps hold all laws; 20 random tunings render and
-- hold them too (at the first shape); the text compiles for the host; swapping the map changes
-- the text; its template passes the lint. A schedule that is added to the folder is covered
-- without a change here.

local support = dofile "tests/lua/support.lua"
local lint = require "lint"

local TUNINGS = 20
local engine = require("engine").new(support.text, support.list)
local targets = {support.targets.host, support.targets.sm_86, support.targets.sm_90}

local function assert_laws(request)
    for _, result in ipairs(engine:laws(request)) do
        assert.is_true(result.ok, result.detail)
    end
end

-- True when the C compiler accepts the source.
local function compiles(source)
    local path = os.tmpname()
    local file = assert(io.open(path .. ".c", "w"))
    file:write(source)
    file:close()
    local command = "cc -std=gnu11 -march=native -DELPIS_HOST -fsyntax-only -Wall -Wno-unused "
        .. "%s.c 2>&1"
    local pipe = assert(io.popen(command:format(path)))
    local messages = pipe:read("a")
    local ok = pipe:close()
    os.remove(path)
    os.remove(path .. ".c")
    return ok, messages
end

local function each_request(entry, visit)
    for _, target in ipairs(targets) do
        for _, parameters in ipairs(entry.examples) do
            visit {schedule = entry.name, parameters = parameters, target = target}
        end
    end
end

-- The parameters with the map pinned.
local function with_map(parameters, map)
    local copy = {map = map}
    for name, value in pairs(parameters) do
        copy[name] = value
    end
    return copy
end

for _, entry in ipairs(engine:list()) do
    describe("schedule " .. entry.name, function()
        it("has examples", function()
            assert.is_true(#entry.examples > 0)
        end)

        it("renders and holds the laws at every shape", function()
            each_request(entry, function(request)
                local result = engine:render(request)
                assert.is_true(#result.source > 0)
                assert_laws(request)
            end)
        end)

        it("renders and holds the laws under random tunings", function()
            for _, target in ipairs(targets) do
                for seed = 1, TUNINGS do
                    local request = {schedule = entry.name, parameters = entry.examples[1],
                        target = target, seed = seed}
                    engine:render(request)
                    assert_laws(request)
                end
            end
        end)

        it("compiles for the host", function()
            local ok, messages = compiles(engine:render {schedule = entry.name,
                parameters = entry.examples[1], target = support.targets.host}.source)
            assert.is_true(ok, messages)
        end)

        if engine:schedule(entry.name).tuning.map then
            it("changes its text when the map is swapped", function()
                local request = {schedule = entry.name, target = support.targets.sm_86}
                request.parameters = with_map(entry.examples[1], "contiguous")
                local contiguous = engine:render(request).source
                request.parameters = with_map(entry.examples[1], "strided")
                assert.are_not.equal(contiguous, engine:render(request).source)
            end)
        end
    end)
end

describe("templates", function()
    local pipe = assert(io.popen "ls templates/*.cu")
    for path in pipe:lines() do
        it("pass the lint: " .. path, function()
            local findings = {}
            for _, found in ipairs(lint.check(path, support.text(path))) do
                findings[#findings + 1] = ("%s:%d: %s: %s"):format(path, found.line, found.rule,
                    found.text)
            end
            assert.equal("", table.concat(findings, "\n"))
        end)
    end
    pipe:close()
end)
