local support = dofile "tests/lua/support.lua"
local coq = require "coq"
local work = require "work"

local function map(partition)
    return work.map {space = {{"row", "rows", max = 8}, {"chunk", 40}}, over = "ctas", workers = 82,
        partition = partition, reduction = "none"}
end

-- A folder of its own, with the theories compiled in it once.
local root = os.tmpname()

-- Runs proofs/prove.sh on the fixture schedule with `edit` applied to its text; returns its lines.
local function prove(edit)
    os.remove(root)
    assert(os.execute("mkdir -p " .. root .. "/schedules"))
    local file = assert(io.open(root .. "/schedules/scale_rows.lua", "w"))
    file:write((edit(support.text("tests/lua/fixtures/schedules/scale_rows.lua"))))
    file:close()
    assert(os.execute(("mkdir -p %s/templates && cp tests/lua/fixtures/templates/* %s/templates")
        :format(root, root)))
    local pipe = assert(io.popen(("BUILD=%s/build sh proofs/prove.sh --schedules %s 2>&1"):format(
        root, root)))
    local text = pipe:read("a")
    return text, pipe:close()
end

local function has(text, line)
    assert.is_truthy(text:find(line, 1, true), "expected " .. line .. " in\n" .. text)
end

describe("coq", function()
    it("prints the formulas of the map and its theorem", function()
        local text = coq.map_module("jobs", map "strided")
        for _, line in ipairs {
            "Definition total (rows : Z) : Z := (rows * 40).",
            "Definition workers : Z := 82.",
            "Definition item (rows : Z) (worker item : Z) : Z := (worker + (item * 82)).",
            "forall rows : Z, 0 <= rows <= 8 -> Partition.exactly_once (total rows) workers",
        } do
            assert.is_truthy(text:find(line, 1, true), line .. "\nin\n" .. text)
        end
    end)

    it("renames a run-time extent whose name is taken", function()
        local text = coq.map_module("jobs", work.map {space = {{"row", "count", max = 8}},
            over = "ctas", workers = 4, partition = "strided", reduction = "none"})
        has(text, "Definition total (count_ : Z) : Z := count_.")
        has(text, "forall count_ : Z, 0 <= count_ <= 8 ->")
    end)

    it("has theorems for the partitions it proves, and says so for others", function()
        assert.is_true(coq.provable(map "contiguous"))
        local own = map {name = "own", count = function(s) return s.total end,
            item = function(s) return s.item end}
        assert.is_false(coq.provable(own))
        assert.matches("expected a partition with a theorem, got own",
            support.failure(coq.map_module, "jobs", own))
    end)

    it("proves the fixture's maps; a broken map does not prove", function()
        if not os.execute("command -v coqc > /dev/null") then
            pending("coqc is not installed")
            return
        end
        local text, passed = prove(function(schedule)
            schedule = schedule:gsub('"contiguous", "strided"',
                '"contiguous", "strided", "blocked_strided", "weighted"')
            return schedule:gsub("partition = p.map",
                "partition = p.map, block = 3, weights = {100, 91, 200}")
        end)
        assert.is_true(passed, text)
        has(text, "law exactly_once, schedule scale_rows: 8 instances")
        has(text, "law weighted_exactly_once, schedule scale_rows: 2 instances")
        has(text, "law no_overflow, schedule scale_rows: 8 instances")
        text, passed = prove(function(schedule)
            return schedule:gsub("partition = p.map", [[partition = {name = "contiguous",
                count = function(s) return (s.total * (s.worker + 1)) // s.workers
                    - (s.total * s.worker) // s.workers end,
                item = function(s) return (s.total * s.worker) // s.workers + s.item + 1 end}]])
        end)
        assert.is_falsy(passed)
        has(text, "not ok 1 - law exactly_once, schedule scale_rows, map jobs: does not prove")
    end)

    it("proves claims and waits of a schedule that came along; wrong ones do not prove", function()
        if not os.execute("command -v coqc > /dev/null") then
            pending("coqc is not installed")
            return
        end
        local function with(fields, cooperative)
            return prove(function(schedule)
                return schedule:gsub("launch = function%(p%)%s+return {", fields
                    .. "launch = function(p) return { cooperative = " .. cooperative .. ",")
            end)
        end
        local sums = 'claims = function() return {sums = {{"all", "i32", %d, 1 << 20}}} end,\n'
        local text, passed = with('waits = {{"jobs", "jobs"}},\n', "true")
        assert.is_falsy(passed)
        has(text, "law waits_stratified, schedule scale_rows, waits of the launch: does not prove")
        text, passed = with("waits = {}, " .. sums:format(2047), "true")
        assert.is_true(passed, text)
        has(text, "law sum_exact, schedule scale_rows: 1 instances")
        text, passed = with("waits = {}, " .. sums:format(2048), "false")
        assert.is_falsy(passed)
        has(text, "law sum_exact, schedule scale_rows, sum all in i32: does not prove")
    end)

    it("proves claims of roundings; a step more than stock has does not prove", function()
        if not os.execute("command -v coqc > /dev/null") then
            pending("coqc is not installed")
            return
        end
        local function with(steps)
            return prove(function(schedule)
                return schedule:gsub("launch = function%(p%)", ([[claims = function()
                    local digits = {size = 128, digit = 32639, k = 37888, drop = 21}
                    return {
                        digits = digits, weights = {keys = 72},
                        roundings = {
                            {"a product", over = "1", ours = {r32 = 22, digits = digits},
                                stock = {r16 = 1}},
                            {"a state", over = "1", repeated = true, ours = {r32 = 8, weights = 9},
                                stock = {r32 = %d}},
                        },
                    }
                end,
                launch = function(p)]]):format(steps))
            end)
        end
        local text, passed = with(13) -- the weights are a step of 5
        assert.is_true(passed, text)
        for _, law in ipairs {"digits_norm", "weights_near", "bound_compared", "bound_repeated"} do
            has(text, "law " .. law .. ", schedule scale_rows: 1 instances")
        end
        text, passed = with(12)
        assert.is_falsy(passed)
        has(text, "law bound_repeated, schedule scale_rows, roundings of a state: does not prove")
    end)

    it("says what a claim of roundings counts", function()
        local digits = {size = 128, digit = 32639, k = 0, drop = 0}
        local claims = {roundings = {{"a product", over = "|x||w|",
            ours = {r32 = 2, digits = digits}, stock = {r16 = 1, units = 8}}}}
        local said = coq.roundings(claims)[1]
        assert.equal("2 r32, digits of 5816", said.ours.words)
        assert.equal("1 r16, a step of 8", said.stock.words)
        assert.is_near((1 + 2 ^ -24) ^ 2 * (1 + 5816 * 2 ^ -24) - 1, said.ours.bound, 1e-12)
        assert.same({}, coq.roundings {})
        claims.roundings[1].ours = {r33 = 1}
        assert.matches("claims.roundings.a product.ours: expected r32, t32, r16, t16, b16, tb16, "
            .. "digits, weights or units, got r33", support.failure(coq.claims, claims))
    end)

    it("names the claim that it does not know", function()
        assert.matches("claims.sums.all: expected the accumulator u32, i32, u64 or i64, got i16",
            support.failure(coq.claims, {sums = {{"all", "i16", 1, 1}}}))
        assert.matches("claims.sizes: expected sums, groups, spans, program, digits, weights or "
            .. "roundings", support.failure(coq.claims, {sizes = {}}))
    end)

    teardown(function() os.execute("rm -r " .. root) end)
end)
