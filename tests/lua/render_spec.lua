local support = dofile "tests/lua/support.lua"
local render = require "render"

local function request(fields)
    local r = {schedule = "scale_rows", parameters = {hidden = 256, rows_max = 8},
        target = support.targets.sm_86}
    for name, value in pairs(fields or {}) do
        r[name] = value
    end
    return r
end

describe("render.f32", function()
    it("prints bits, ties to even", function()
        assert.equal("f_from_bits(0x3f800000u)", render.f32(1))
        assert.equal("f_from_bits(0x3dcccccdu)", render.f32(0.1))
        assert.equal("f_from_bits(0x80000000u)", render.f32(-0.0))
        assert.equal("f_from_bits(0x3f800000u)", render.f32(1 + 2.0 ^ -24))
        assert.equal("f_from_bits(0x3f800002u)", render.f32(1 + 3 * 2.0 ^ -24))
        assert.equal("f_from_bits(0x00000001u)", render.f32(2.0 ^ -149))
    end)

    it("refuses what is no finite binary32 number", function()
        assert.matches("expected a finite number", support.failure(render.f32, 1 / 0))
        assert.matches("expected a finite number", support.failure(render.f32, 0 / 0))
        assert.matches("beyond the largest", support.failure(render.f32, 1e39))
        assert.matches("expected a number, got 1", support.failure(render.f32, "1"))
    end)
end)

describe("engine.render", function()
    local engine = support.fixture_engine()

    it("gives geometry, exports and resolved numbers", function()
        local r = engine:render(request())
        assert.same({"elpis_scale_rows", 82, 128, 128, false, 4},
            {r.entry, r.grid, r.block, r.shared, r.cooperative, r.arguments})
        assert.same({chunks = 2}, r.exports)
        assert.same({warps = 4, map = "contiguous"}, r.tuning)
        assert.same({scale = 1}, r.numeric)
    end)

    it("says which arguments are written through", function()
        assert.equal("--w-", engine:render(request()).writes)
        local whole = require("engine").new(support.text, support.list)
        local writes = whole:render({schedule = "linear_output", target = support.targets.sm_86,
            parameters = whole:schedule("linear_output").examples[1]}).writes
        assert.matches("l", writes)
    end)

    it("knows the texts of a schedule", function()
        local text = engine:texts("scale_rows")
        assert.matches("schedule.define", text)
        assert.matches("KERNEL", text)
    end)

    it("gives the same text each time, and another key when anything differs", function()
        local first = engine:render(request())
        assert.equal(first.key_text, support.fixture_engine():render(request()).key_text)
        local others = {
            request {parameters = {hidden = 256, rows_max = 9}},
            request {parameters = {hidden = 256, rows_max = 8, scale = 2}},
            request {tuning = {warps = 8}},
            request {target = support.targets.sm_90},
            request {target = support.targets.host},
        }
        local seen = {[first.key_text] = true}
        for _, other in ipairs(others) do
            local key = engine:render(other).key_text
            assert.is_nil(seen[key])
            seen[key] = true
        end
    end)

    it("changes the text when the map is swapped", function()
        local contiguous = engine:render(request {tuning = {map = "contiguous"}}).source
        local strided = engine:render(request {tuning = {map = "strided"}}).source
        assert.is_truthy(contiguous:find("rows * 2 * jobs_worker / 328 + jobs_i", 1, true))
        assert.is_truthy(strided:find("jobs_worker + jobs_i * 328", 1, true))
    end)

    it("refuses a map over workers that the launch does not start", function()
        local read = support.reader {"tests/lua/fixtures/", ""}
        local broken = require("engine").new(function(path)
            local text = read(path)
            return text and path == "schedules/scale_rows.lua"
                and text:gsub("workers = p.ctas %* p.warps", "workers = p.ctas * p.warps // 2")
                    or text
        end)
        assert.matches("map jobs: expected the 328 warps that the launch starts, got workers = 164",
            support.failure(broken.render, broken, request()))
    end)

    it("lists schedules", function()
        local list = engine:list()
        assert.equal(1, #list)
        assert.equal("scale_rows", list[1].name)
        assert.equal("y = x * w, a row at a time", list[1].summary)
        assert.equal("hidden, rows_max, scale", list[1].parameters)
        assert.equal(2, #list[1].examples)
    end)

    it("refuses unknown schedules and bad names", function()
        assert.matches("schedule nothing: no such schedule",
            support.failure(engine.render, engine, request {schedule = "nothing"}))
        assert.matches("schedule %.%./x: expected a name of letters",
            support.failure(engine.render, engine, request {schedule = "../x"}))
    end)
end)

describe("engine", function()
    -- An engine over the fixtures with some files replaced.
    local function with(files)
        local read = support.reader {"tests/lua/fixtures/", ""}
        return require("engine").new(function(path) return files[path] or read(path) end)
    end

    it("runs schedules without files, clocks, chance or new globals", function()
        for _, body in ipairs {"io.open('x')", "os.time()", "math.random()", "leak = 1"} do
            local engine = with {["schedules/scale_rows.lua"] = body}
            local sentence = support.failure(engine.render, engine, request())
            assert.matches("^schedules/scale_rows.lua:1:", sentence)
        end
        assert.is_nil(rawget(_G, "leak"))
    end)

    it("says so again when a broken schedule is asked for again", function()
        local engine = with {["schedules/scale_rows.lua"] = "error 'broken'"}
        local first = support.failure(engine.render, engine, request())
        assert.equal(first, support.failure(engine.render, engine, request()))
    end)

    it("keeps engines with other files apart", function()
        local other = with {["templates/scale_rows.cu"] = "KERNEL\n${jobs.count}\n"}
        assert.are_not.equal(support.fixture_engine():render(request()).source,
            other:render(request()).source)
    end)

    it("wants one KERNEL line", function()
        local engine = with {["templates/scale_rows.cu"] = "nothing\n"}
        assert.matches("templates/scale_rows.cu: expected one KERNEL line, got 0",
            support.failure(engine.render, engine, request()))
    end)

    it("lets launches overlap on a GPU; cooperative ones where they say so", function()
        local function overlaps(launch, target)
            local text = support.text("tests/lua/fixtures/schedules/scale_rows.lua")
                :gsub("block = 32 %* p.warps", "%0" .. launch)
            local engine = with {["schedules/scale_rows.lua"] = text}
            return engine:render(request {target = support.targets[target]}).overlaps
        end
        assert.is_true(overlaps("", "sm_90"))
        assert.is_false(overlaps("", "host"))
        assert.is_false(overlaps(", cooperative = true", "sm_90"))
        assert.is_true(overlaps(", cooperative = true, overlaps = true", "sm_90"))
        assert.is_false(overlaps(", cooperative = true, overlaps = true", "host"))
    end)

    it("wants the template to use the maps, and a cooperative launch for grid_sync", function()
        local engine = with {["templates/scale_rows.cu"] = "KERNEL\n{\n}\n"}
        assert.matches("schedule scale_rows: map jobs: its template never uses it",
            support.failure(engine.render, engine, request()))
        engine = with {["templates/scale_rows.cu"] = "KERNEL\n${jobs.count}\ngrid_sync(a, b);\n"}
        assert.matches("schedule scale_rows: launch: grid_sync needs cooperative = true",
            support.failure(engine.render, engine, request()))
        engine = with {["templates/scale_rows.cu"] = "KERNEL\n${jobs.size}\n"}
        assert.matches("templates/scale_rows.cu:2: map jobs has no size",
            support.failure(engine.render, engine, request()))
    end)

    it("names the template line of an unknown name", function()
        local engine = with {["templates/scale_rows.cu"] = "KERNEL\n${colour}\n"}
        assert.matches("templates/scale_rows.cu:2: no name colour in schedule scale_rows",
            support.failure(engine.render, engine, request()))
    end)
end)
