local support = dofile "tests/lua/support.lua"
local schedule = require "schedule"

local target = support.targets.sm_86

-- A schedule with the fields of `changes`; `nil` fields are removed with the value `false`.
local function define(changes)
    local t = {
        name = "s", summary = "a test", problem = {n = "u32"}, numeric = {bits = {3, 2, 8}},
        tuning = {warps = {4, 8, 2}, map = {"contiguous", "strided"}},
            args = {{"x", "f32 *", "[n]"}},
        launch = function(p) return {grid = 1, block = 32 * p.warps} end, template = "s",
    }
    for field, value in pairs(changes or {}) do
        t[field] = value or nil
    end
    return schedule.define(t)
end

local function resolve(s, parameters, more)
    local options = {parameters = parameters, target = target}
    for field, value in pairs(more or {}) do
        options[field] = value
    end
    return schedule.resolve(s, options)
end

local function assert_sentence(wanted, f, ...)
    local sentence = support.failure(f, ...)
    assert.is_truthy(sentence:find(wanted, 1, true), sentence)
end

describe("schedule.define", function()
    it("names the schedule and the field of a mistake", function()
        assert_sentence("schedule s: launch: expected a function, got nil", define,
            {launch = false})
        assert_sentence("schedule s: field colour: expected a known field", define, {colour = 1})
        assert_sentence("schedule s: problem.n: expected u32", define, {problem = {n = "f64"}})
        assert_sentence("schedule s: args.x: expected a type of the prelude, got double *", define,
            {args = {{"x", "double *", "[n]"}}})
        assert_sentence("schedule s: args.x: expected a shape comment", define,
            {args = {{"x", "f32 *"}}})
        assert_sentence("schedule s: numeric.scale.type: expected u32, i32, u64 or i64, got f64",
            define, {numeric = {scale = {1, type = "f64"}}})
        assert_sentence("schedule s: warps: expected one meaning, got numeric and tuning", define,
            {numeric = {warps = {1}}})
        assert_sentence("schedule no name: name: expected an identifier", define,
            {name = "no name"})
    end)
end)

describe("schedule.resolve", function()
    it("takes the first values as defaults", function()
        local found = resolve(define(), {n = 5})
        assert.same({warps = 4, map = "contiguous"}, found.tuning)
        assert.same({bits = 3}, found.numeric)
        assert.equal(128, found.launch.block)
        assert.equal(5, found.p.n)
    end)

    it("takes numeric values from configuration and tuning from records or pins", function()
        local found = resolve(define(), {n = 5, bits = 8, warps = 2},
            {tuning = {map = "strided", warps = 8}})
        assert.same({bits = 8}, found.numeric)
        assert.same({warps = 2, map = "strided"}, found.tuning)
    end)

    it("takes every value of the type that a numeric list names", function()
        local s = define {numeric = {scale = {1, type = "u32"}}}
        assert.same({scale = 1}, resolve(s, {n = 5}).numeric)
        assert.same({scale = 77}, resolve(s, {n = 5, scale = 77}).numeric)
        assert_sentence("schedule s: numeric parameter scale: expected u32, got -1", resolve, s,
            {n = 5, scale = -1})
    end)

    it("refuses unknown names and values with the choices", function()
        local s = define()
        assert_sentence("schedule s: parameter n: expected u32, got nothing", resolve, s, {})
        assert_sentence("schedule s: parameter n: expected u32, got -1", resolve, s, {n = -1})
        assert_sentence("schedule s: parameter n: expected u32, got five", resolve, s, {n = "five"})
        assert_sentence("schedule s: parameter m: expected one of n, bits, map, warps, got an unk",
            resolve, s, {n = 1, m = 2})
        assert_sentence("schedule s: numeric parameter bits: expected one of 3, 2, 8, got 4",
            resolve, s, {n = 1, bits = 4})
        assert_sentence("schedule s: tuning parameter warps: expected one of 4, 8, 2, got 3",
            resolve, s, {n = 1}, {tuning = {warps = 3}})
        assert_sentence("schedule s: tuning parameter colour: expected one of map, warps, got",
            resolve, s, {n = 1}, {tuning = {colour = 3}})
        assert_sentence("schedule s: target.sms: expected an integer, got nil", resolve, s, {n = 1},
            {target = {name = "sm_86"}})
    end)

    it("passes over combinations that valid or the device refuses", function()
        local s = define {valid = function(p)
            return p.warps == 4 and "warps must not be 4" or nil
        end}
        assert.equal(8, resolve(s, {n = 1}).tuning.warps)
        assert_sentence("schedule s: warps must not be 4", resolve, s, {n = 1, warps = 4})
        local large = define {shared = function(p) return {{"a", "u8", p.warps * 20000}} end}
        assert.equal(4, resolve(large, {n = 1}).tuning.warps)
        assert_sentence("160000 bytes of shared memory a block; sm_86 has 101376", resolve, large,
            {n = 1, warps = 8})
    end)

    it("lets valid see derived numbers and answers for a derive that fails", function()
        local s = define {
            derive = function(p) return {parts = 12 // p.n} end,
            valid = function(p)
                if p.n == 0 then return "n must not be 0" end
                if p.parts < 2 then return "n must be at most 6, got " .. p.n end
            end,
        }
        assert.equal(4, resolve(s, {n = 3}).p.parts)
        assert_sentence("schedule s: n must not be 0", resolve, s, {n = 0})
        assert_sentence("schedule s: n must be at most 6, got 7", resolve, s, {n = 7})
    end)

    it("refuses to read a number that is not there", function()
        local s = define {derive = function(p) return {twice = 2 * p.m} end}
        assert_sentence("schedule s: no parameter or derived number named m", resolve, s, {n = 1})
    end)

    it("draws tuning by seed: the same for a seed, all legal ones over seeds", function()
        local s = define {valid = function(p)
            if p.warps == 2 and p.map == "strided" then return "not both" end
        end}
        local seen, kinds = {}, 0
        for seed = 1, 60 do
            local first, second = resolve(s, {n = 1}, {seed = seed}),
                resolve(s, {n = 1}, {seed = seed})
            assert.same(first.tuning, second.tuning)
            local name = first.tuning.warps .. first.tuning.map
            kinds = seen[name] and kinds or kinds + 1
            seen[name] = true
        end
        assert.equal(5, kinds)
        assert.is_nil(seen["2strided"])
    end)

    it("draws the same numbers on every machine", function()
        local generator, drawn = schedule.generator(1), {}
        for k = 1, 5 do
            drawn[k] = generator.below(1000)
        end
        assert.same({351, 773, 208, 344, 421}, drawn)
    end)

    it("lists legal combinations in order", function()
        local s = define()
        local list = schedule.combinations(s,
            {parameters = {n = 1, map = "strided"}, target = target}, 100)
        assert.same({{warps = 4, map = "strided"}, {warps = 8, map = "strided"},
            {warps = 2, map = "strided"}},
            list)
        assert.equal(2, #schedule.combinations(s, {parameters = {n = 1}, target = target}, 2))
    end)
end)

describe("schedule.shared_layout", function()
    local arrays = {{"a", "u8", 5}, {"b", "f32", 8}, {"c", "u64", 1}}

    it("aligns arrays to 16 bytes", function()
        local layout, bytes, gaps = schedule.shared_layout("s", arrays, false)
        assert.same({0, 16, 48}, {layout.a.offset, layout.b.offset, layout.c.offset})
        assert.equal(64, bytes)
        assert.same({}, gaps)
    end)

    it("leaves gaps of at least 64 bytes when checked", function()
        local layout, bytes, gaps = schedule.shared_layout("s", arrays, true)
        assert.same({0, 80, 176}, {layout.a.offset, layout.b.offset, layout.c.offset})
        assert.equal(256, bytes)
        assert.same({{offset = 5, bytes = 75}, {offset = 112, bytes = 64},
            {offset = 184, bytes = 72}}, gaps)
    end)

    it("refuses other types", function()
        assert_sentence("schedule s: shared[1]: expected {name, C type, count}",
            schedule.shared_layout, "s",
            {{"a", "double", 1}}, false)
    end)
end)
