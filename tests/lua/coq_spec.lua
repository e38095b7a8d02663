local support = dofile "tests/lua/support.lua"
local coq = require "coq"
local work = require "work"

local function map(partition)
    return work.map {space = {{"row", "rows", max = 8}, {"chunk", 40}}, over = "ctas", workers = 82,
        partition = partition, reduction = "none"}
end

-- Runs proofs/prove.sh on the fixture schedule with `edit` applied to its text; returns its lines.
local function prove(edit)
    local root = os.tmpname()
    os.remove(root)
    assert(os.execute("mkdir -p " .. root .. "/schedules"))
    local file = assert(io.open(root .. "/schedules/scale_rows.lua", "w"))
    file:write((edit(support.text("tests/lua/fixtures/schedules/scale_rows.lua"))))
    file:close()
    local pipe = assert(io.popen(("BUILD=%s/build sh proofs/prove.sh %s 2>&1"):format(root, root)))
    local text = pipe:read("a")
    local passed = pipe:close()
    os.execute("rm -r " .. root)
    return text, passed
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
        assert.is_truthy(text:find("ok 8 - scale_rows: jobs_weighted_4.exactly_once", 1, true),
            text)
        assert.is_truthy(text:find("ok 5 - scale_rows: jobs_contiguous_1.exactly_once", 1, true),
            text)
        text, passed = prove(function(schedule)
            return schedule:gsub("partition = p.map", [[partition = {name = "contiguous",
                count = function(s) return (s.total * (s.worker + 1)) // s.workers
                    - (s.total * s.worker) // s.workers end,
                item = function(s) return (s.total * s.worker) // s.workers + s.item + 1 end}]])
        end)
        assert.is_falsy(passed)
        assert.is_truthy(text:find("not ok 5 - scale_rows: jobs_contiguous_1.exactly_once", 1,
            true), text)
    end)
end)
