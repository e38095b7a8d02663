local support = dofile "tests/lua/support.lua"
local expr = require "expr"
local laws = require "laws"
local work = require "work"

local function make(fields)
    local options = {space = {{"row", 3}, {"chunk", 5}}, over = "ctas", workers = 4,
        partition = "contiguous", reduction = "none"}
    for name, value in pairs(fields or {}) do
        options[name] = value
    end
    return work.map(options)
end

-- The item numbers of each worker, as text.
local function dealt(map)
    local list = {}
    for worker = 0, map.workers - 1 do
        local items = {}
        for i = 0, expr.evaluate(map.count, {worker = worker}) - 1 do
            items[#items + 1] = expr.evaluate(map.item, {worker = worker, item = i})
        end
        list[#list + 1] = table.concat(items, " ")
    end
    return table.concat(list, " | ")
end

-- Declarations that a worker's number needs in a C program.
local PLACE = "static u32 cta, warp;\n"
    .. "static u32 cta_id(void) { return cta; }\n"
    .. "static u32 warp_id(void) { return warp; }\n"

-- The numbers of the workers of `ctas` CTAs (2) of eight warps, warp by warp, as text.
local function numbers_of(map, ctas)
    return table.concat(support.run_c(PLACE,
        "for (cta = 0; cta < " .. (ctas or 2) .. "; cta++) for (warp = 0; warp < 8; warp++)\n"
        .. 'printf("%u\\n", ' .. work.emitter(map, "jobs").worker .. ");"), " ")
end

describe("work.map", function()
    it("deals contiguous, strided, blocked and weighted items", function()
        assert.equal("0 1 2 | 3 4 5 6 | 7 8 9 10 | 11 12 13 14", dealt(make()))
        assert.equal("0 4 8 12 | 1 5 9 13 | 2 6 10 14 | 3 7 11",
            dealt(make {partition = "strided"}))
        assert.equal("0 1 8 9 | 2 3 10 11 | 4 5 12 13 | 6 7 14",
            dealt(make {partition = "blocked_strided", block = 2}))
        assert.equal("0 1 2 3 4 | 5 6 7 8 9 | 10 11 | 12 13 14",
            dealt(make {partition = "weighted", weights = {2, 1, 2}}))
    end)

    it("gives workers beyond the total nothing", function()
        local map = make {space = {{"row", 2}}, workers = 5}
        assert.equal(" |  | 0 |  | 1", dealt(map))
        assert.equal("0 | 1 |  |  | ", dealt(make {space = {{"row", 2}}, workers = 5,
            partition = "strided"}))
    end)

    it("holds its laws for many totals and workers", function()
        for _, partition in ipairs {"contiguous", "strided", "blocked_strided", "weighted"} do
            for total = 1, 40, 3 do
                for workers = 1, 13, 2 do
                    local map = make {space = {{"x", "n", max = total}, {"y", 2}},
                        workers = workers,
                        partition = partition, block = 3, weights = {100, 91, 5}, row = "x"}
                    for _, result in ipairs(laws.check_map("test", "jobs", map)) do
                        assert.is_true(result.ok, result.detail)
                    end
                end
            end
        end
    end)

    it("emits loops that C runs over the items that Lua counts", function()
        local blocks, wanted = {}, {}
        for _, partition in ipairs {"contiguous", "strided", "blocked_strided", "weighted"} do
            local map = make {over = "warps", warps = 2, workers = 6, partition = partition,
                block = 2,
                weights = {3, 1, 2}, space = {{"row", "rows", max = 9}, {"chunk", 5}}}
            local m = work.emitter(map, "jobs")
            blocks[#blocks + 1] = m.open .. 'printf("%u %u\\n", row, chunk);' .. m.close
            for worker = 0, 5 do
                for i = 0, expr.evaluate(map.count, {worker = worker, rows = 7}) - 1 do
                    local x = expr.evaluate(map.item, {worker = worker, item = i, rows = 7})
                    wanted[#wanted + 1] = x // 5 .. " " .. x % 5
                end
            end
        end
        for k, text in ipairs(blocks) do
            blocks[k] = "for (cta = 0; cta < 3; cta++) for (warp = 0; warp < 2; warp++) {\n" .. text
                .. "\n}"
        end
        local output = support.run_c(PLACE .. "static u32 rows = 7;\n",
            table.concat(blocks, "\n"))
        assert.same(wanted, output)
    end)

    it("computes in 64 bits where item numbers leave 32", function()
        local map = make {space = {{"row", "rows", max = 70000}, {"chunk", 100000}}, workers = 3}
        local text = work.emitter(map, "jobs").open
        assert.is_truthy(text:find("const u64 jobs_x = ", 1, true))
        assert.is_truthy(text:find("const u32 row = (u32)(jobs_x / 100000);", 1, true))
        local output = support.run_c("static u32 rows = 70000;\n"
            .. "static u32 cta_id(void) { return 2; }\n",
            text .. "if (jobs_i + 1 == jobs_count) printf(\"%u %u\\n\", row, chunk); "
            .. "else jobs_i = jobs_count - 2; }}")
        assert.same({"69999 99999"}, output)
    end)

    it("emits single items under a prefix", function()
        local m = work.emitter(make {over = "warps", workers = 8, warps = 4, partition = "strided"},
            "jobs")
        assert.equal([[const u32 next_jobs_x = (cta_id() * 4 + warp_id()) + (i + 1) * 8;
const u32 next_row = next_jobs_x / 5;
const u32 next_chunk = next_jobs_x % 5;]], m:at("i + 1", "next_"))
        assert.equal("((22 - (cta_id() * 4 + warp_id())) / 8)", m.count)
        assert.equal("15", m.total)
        assert.equal(2, m.items_max)
    end)

    it("numbers the warps that share a scheduler one behind the other, each once", function()
        local map = make {over = "warps", warps = 8, workers = 16, order = "scheduler"}
        assert.equal("0 2 4 6 1 3 5 7 8 10 12 14 9 11 13 15", numbers_of(map))
        local odd = make {over = "warps", warps = 2, workers = 4, order = "scheduler"}
        assert.equal("(cta_id() * 2 + warp_id())", work.emitter(odd, "jobs").worker)
    end)

    it("moves the coordinates of an item to those of the next", function()
        local map = make {over = "warpgroups", warpgroups = 2, workers = 4,
            space = {{"part", 2}, {"row", "rows", max = 9}, {"chunk", 3}}}
        local m = work.emitter(map, "jobs")
        local wanted = {}
        for worker = 0, 3 do
            for i = 0, expr.evaluate(map.count, {worker = worker, rows = 7}) - 1 do
                local x = expr.evaluate(map.item, {worker = worker, item = i, rows = 7})
                wanted[#wanted + 1] = x // 21 .. " " .. x // 3 % 7 .. " " .. x % 3
            end
        end
        local output = support.run_c(PLACE .. "static u32 rows = 7;\n",
            "for (cta = 0; cta < 2; cta++) for (warp = 1; warp < 8; warp += 4) {\n"
            .. m:at("0", "first_") .. "\n"
            .. "u32 at_part = first_part, at_row = first_row, at_chunk = first_chunk;\n"
            .. "for (u32 left = " .. m.count .. "; left > 0; left--) {\n"
            .. 'printf("%u %u %u\\n", at_part, at_row, at_chunk);\n'
            .. m:next("at_") .. "\n}}")
        assert.same(wanted, output)
        local strided = work.emitter(make {partition = "strided"}, "jobs")
        local sentence = support.failure(strided.next, strided, "at_")
        assert.is_truthy(sentence:find("next: expected a contiguous map, got strided", 1, true),
            sentence)
    end)

    it("numbers groups of four warps", function()
        local map = make {over = "warpgroups", warpgroups = 2, workers = 4}
        assert.equal("0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3", numbers_of(map))
    end)

    it("numbers the groups of an SM one behind the other, each once", function()
        local map = make {over = "warpgroups", warpgroups = 2, workers = 8, order = "sm", sms = 2}
        assert.equal("0 0 0 0 1 1 1 1 4 4 4 4 5 5 5 5 2 2 2 2 3 3 3 3 6 6 6 6 7 7 7 7",
            numbers_of(map, 4))
        map = make {over = "warpgroups", warpgroups = 2, workers = 4, order = "sm", sms = 2}
        assert.equal("0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3", numbers_of(map))
    end)

    it("numbers each group once, however many CTAs an SM has", function()
        local blocks, wanted = {}, {}
        for ctas = 1, 4 do
            for groups = 1, 4 do
                local map = make {over = "warpgroups", warpgroups = groups,
                    workers = 3 * ctas * groups, order = "sm", sms = 3}
                blocks[#blocks + 1] = ("{ u32 seen[256] = {0}, once = 0;\n"
                    .. "for (cta = 0; cta < %d; cta++) for (warp = 0; warp < %d; warp += 4)\n"
                    .. "once += ++seen[%s] == 1;\n"
                    .. 'for (u32 i = %d; i < 256; i++) once -= seen[i]; printf("%%u\\n", once); }')
                    :format(3 * ctas, 4 * groups, work.emitter(map, "jobs").worker, map.workers)
                wanted[#wanted + 1] = map.workers
            end
        end
        assert.equal(table.concat(wanted, " "),
            table.concat(support.run_c(PLACE, table.concat(blocks, "\n")), " "))
    end)

    it("refuses bad options by name", function()
        local cases = {
            {{over = "sms"}, "work.map: over: expected ctas"},
            {{workers = 0}, "work.map: workers: expected an integer of at least 1, got 0"},
            {{partition = "random"}, "work.map: partition: expected contiguous"},
            {{space = {{"row", "rows"}}}, "space.row.max: expected the largest value of rows"},
            {{space = {{"row", 2}, {"row", 3}}}, "row twice"},
            {{reduction = "sum"}, "work.map: reduction: expected none, fixed or order_free"},
            {{reduction = "fixed"}, "work.map: reduce: expected the list of coordinates"},
            {{reduction = "order_free", accumulator = "f32"},
                "work.map: accumulator: expected u32, i32, u64 or i64"},
            {{row = "line"}, "work.map: row: expected a coordinate"},
            {{order = "scheduler"}, "work.map: order: expected scheduler, of warps"},
            {{over = "warps", warps = 4, workers = 8, order = "sm"},
                "work.map: order: expected scheduler, of warps, or sm, of warpgroups, got sm"},
            {{over = "warpgroups", workers = 8, warpgroups = 2, order = "sm", sms = 3},
                "work.map: sms: expected a number of SMs that divides the 4 CTAs, got 3"},
            {{over = "warpgroups", workers = 8, warpgroups = 2, order = "sm"}, "got nil"},
            {{colour = 1}, "work.map: options: expected known fields, got colour"},
            {{over = "warps", workers = 8}, "work.map: warps: expected the number of warps"},
            {{over = "warps", workers = 7, warps = 4},
                "work.map: workers: expected a multiple of warps = 4, got 7"},
            {{over = "warpgroups", workers = 8}, "work.map: warpgroups: expected the number of"},
            {{over = "warpgroups", workers = 7, warpgroups = 2},
                "work.map: workers: expected a multiple of warpgroups = 2, got 7"},
        }
        for _, case in ipairs(cases) do
            local sentence = support.failure(make, case[1])
            assert.is_truthy(sentence:find(case[2], 1, true), sentence)
        end
    end)
end)
