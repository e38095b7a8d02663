local support = dofile "tests/lua/support.lua"
local expr = require "expr"
local laws = require "laws"
local work = require "work"

local function make(fields)
    local options = {space = {{"row", 4}, {"chunk", 6}}, over = "ctas", workers = 5,
        partition = "contiguous", reduction = "none"}
    for name, value in pairs(fields) do
        options[name] = value
    end
    return work.map(options)
end

-- law -> detail of the laws that fail.
local function failures(map)
    local failed = {}
    for _, result in ipairs(laws.check_map("broken", "jobs", map)) do
        if not result.ok then
            failed[result.law] = result.detail
        end
    end
    return failed
end

local function start(s, worker)
    return (s.total * worker) // s.workers
end

describe("laws", function()
    it("finds the item that an overlapping start hits twice", function()
        local map = make {partition = {name = "overlapping",
            count = function(s) return start(s, s.worker + 1) - start(s, s.worker) + 1 end,
            item = function(s) return expr.min(start(s, s.worker) + s.item, s.total - 1) end}}
        assert.equal("exactly_once: schedule broken, map jobs: "
            .. "item 4 is hit twice: by worker 0 and by worker 1 (its item 0)",
                failures(map).exactly_once)
    end)

    it("finds workers whose numbers are not each there once", function()
        local function of_text(text)
            local map = make {over = "warpgroups", warpgroups = 2, workers = 12,
                order = "sm", sms = 2}
            map.worker_text = text
            return failures(map).numbered_once
        end
        local place = "numbered_once: schedule broken, map jobs: "
        assert.is_nil(of_text("cta_id() % 2 * 6 + cta_id() / 2 * 2 + warp_id() / 4"))
        assert.equal(place .. "worker 0 is there twice: the second is number 0 of CTA 4",
            of_text("cta_id() % 2 * 6 + cta_id() / 2 % 2 * 2 + warp_id() / 4"))
        assert.equal(place .. "worker 1 is there twice: the second is number 4 of CTA 0",
            of_text("cta_id() * 2 + (warp_id() + 2) / 4"))
        assert.equal(place .. "number 0 of CTA 3 is worker 12 of 12",
            of_text("cta_id() * 4 + warp_id() / 4"))
    end)

    it("finds the item that a wrong stride hits twice", function()
        local map = make {partition = {name = "wrong stride",
            count = function(s) return (s.total + s.workers - 1 - s.worker) // s.workers end,
            item = function(s) return s.worker + s.item * (s.workers - 1) end}}
        assert.equal("exactly_once: schedule broken, map jobs: "
            .. "item 4 is hit twice: by worker 0 and by worker 4 (its item 0)",
                failures(map).exactly_once)
    end)

    it("finds the item that a short count never hits", function()
        local map = make {partition = {name = "short",
            count = function(s) return (s.total - s.worker) // s.workers end,
            item = function(s) return s.worker + s.item * s.workers end}}
        assert.equal("exactly_once: schedule broken, map jobs: item 20 is never hit",
            failures(map).exactly_once)
    end)

    it("names the run-time value at which a map breaks", function()
        local map = make {space = {{"row", "rows", max = 7}}, workers = 2,
            partition = {name = "half",
            count = function(s) return s.total // 2 end,
            item = function(s) return s.worker * (s.total // 2) + s.item end}}
        assert.equal("exactly_once: schedule broken, map jobs: item 6 is never hit (rows = 7)",
            failures(map).exactly_once)
    end)

    it("finds an item out of bounds", function()
        local map = make {partition = {name = "shifted",
            count = function(s) return start(s, s.worker + 1) - start(s, s.worker) end,
            item = function(s) return start(s, s.worker) + s.item + 1 end}}
        local failed = failures(map)
        assert.matches("number 24 is not below 24", failed.in_bounds)
        assert.matches("gives 24, above the bound 23", failed.no_overflow)
        assert.matches("item 0 is never hit", failed.exactly_once)
    end)

    it("finds a negative difference", function()
        local map = make {partition = {name = "negative",
            count = function(s) return expr.constant(3) - s.worker end,
            item = function(s) return s.worker + s.item end}}
        assert.matches("3 %- 4 is negative", failures(map).no_overflow)
    end)

    it("finds differences and divisions that only one run-time value breaks", function()
        local map = make {space = {{"row", "rows", max = 5}}, workers = 1,
            partition = {name = "less four",
            count = function(s) return expr.sub(s.total, 4) + 4 end,
            item = function(s) return s.worker + s.item end}}
        assert.matches("2 %- 4 is negative %(rows = 2%)", failures(map).no_overflow)
        map = make {space = {{"row", "rows", max = 5}}, workers = 1,
            partition = {name = "divided",
            count = function(s) return s.total + expr.div(s.worker, expr.monus(s.total, 3)) end,
            item = function(s) return s.worker + s.item end}}
        assert.matches("division of 0 by zero %(rows = %d%)", failures(map).no_overflow)
        assert.matches("a formula has no value", failures(map).exactly_once)
    end)

    it("does not look at the item of a worker that has none", function()
        local map = make {space = {{"row", "rows", max = 5}}, workers = 1,
            partition = {name = "backwards",
            count = function(s) return s.total end,
            item = function(s) return expr.sub(expr.sub(s.total, 1), s.item) end}}
        assert.same({}, failures(map)) -- with no rows, total - 1 would be negative
    end)

    it("finds an output that two workers sum in a fixed reduction", function()
        local map = make {reduction = "fixed", reduce = {"chunk"}}
        assert.equal("fixed_order: schedule broken, map jobs: "
            .. "output 0 is summed by workers 0 and 1 (item 4)", failures(map).fixed_order)
        assert.same({}, failures(make {reduction = "fixed", reduce = {"chunk"}, workers = 4}))
        assert.same({}, failures(make {reduction = "fixed", reduce = {"chunk"}, workers = 2}))
    end)

    it("finds an order-free sum without an integer type, or too narrow", function()
        assert.matches("declares no accumulator",
            failures(make {reduction = "order_free"}).order_free)
        local fields = {reduction = "order_free", reduce = {"chunk"}, accumulator = "i32"}
        fields.term_max = (1 << 31) // 6
        assert.same({}, failures(make(fields)))
        fields.term_max = (1 << 31) // 6 + 1
        assert.matches("6 terms of up to 357913942 do not fit i32",
            failures(make(fields)).order_free)
    end)

    it("finds a row whose items depend on the number of rows", function()
        local map = make {space = {{"row", "rows", max = 4}, {"chunk", 2}}, workers = 1,
            row = "row",
            partition = {name = "last row twice",
                count = function(s) return s.total end,
                item = function(s) return expr.min(s.item, expr.max(s.total, 2) - 2) end}}
        assert.matches("row 3 of 4 has 2 items that are not all 2 of its own",
            failures(map).row_independent)
    end)

    it("looks at the ends only of large spaces, and still finds a wrong sum", function()
        local big = make {space = {{"row", 1000}, {"chunk", 1000}}, workers = 7}
        local results = laws.check_map("big", "jobs", big)
        assert.equal("ends only", results[1].detail)
        local short = make {space = {{"row", 1000}, {"chunk", 1000}}, workers = 7,
            partition = {name = "short",
            count = function(s) return (s.total - s.worker) // s.workers end,
            item = function(s) return s.worker + s.item * s.workers end}}
        assert.matches("the workers have 999994 items together, the space has 1000000",
            failures(short).exactly_once)
    end)

    it("finds waits in a circle and waits without residency", function()
        local maps = {a = make {}, b = make {}}
        local function verdict(waits, cooperative)
            local results = laws.check({name = "s", waits = waits}, maps,
                {launch = {cooperative = cooperative}})
            return results[#results]
        end
        assert.is_true(verdict({{"b", "a"}}, true).ok)
        assert.matches("launch is not cooperative", verdict({{"b", "a"}}, false).detail)
        assert.matches("a waits for b waits for a", verdict({{"a", "b"}, {"b", "a"}}, true).detail)
        assert.matches("stage c is not a map", verdict({{"a", "c"}}, true).detail)
    end)

    it("passes the fixture schedule", function()
        local results = support.fixture_engine():laws {schedule = "scale_rows",
            parameters = {hidden = 5120, rows_max = 8}, target = support.targets.sm_86}
        assert.equal(5, #results)
        for _, result in ipairs(results) do
            assert.is_true(result.ok, result.detail)
        end
    end)
end)
