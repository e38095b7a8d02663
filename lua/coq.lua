--- coq.lua - what schedules export to proofs/.
--
-- For a work map the exported Coq text holds the map's own formulas, printed from the very
-- expression objects that the kernel's loops were printed from (expr.coq), and a theorem that
-- they do every item exactly once, proved by an instance of the theorem of proofs/Partition.v
-- that belongs to the partition's name. If a formula of the map is wrong, the instance does not
-- prove. Run-time extents are universally quantified within their bounds, so a theorem covers all
-- row counts at once, where laws.lua samples.
--
-- The text of one schedule is one file of modules, one a map (proofs/export.lua decides which
-- shapes).
-- Not here: running Coq (proofs/prove.sh).

local expr = require "expr"

local coq = {}

-- By partition: the constants that its formulas in Partition.v take before total and workers,
-- and the names that have to be unfolded. The theorem is PARTITION_exactly_once.
local instances = {
    contiguous = {constants = function() return {} end, unfold = "contiguous_start"},
    strided = {constants = function() return {} end, unfold = "strided_item"},
    blocked_strided = {constants = function(map) return {map.block} end,
        unfold = "blocked_strided_item"},
    weighted = {constants = function(map) return map.weights end,
        unfold = "weighted_start, weight"},
}

--- The partitions that have a theorem.
function coq.provable(map)
    return instances[map.partition] ~= nil
end

local function run_time_variables(map)
    local list = expr.variables(map.total)
    local names = {}
    for k, variable in ipairs(list) do
        names[k] = variable.name
    end
    return list, names
end

local function binder(names)
    return #names > 0 and " (" .. table.concat(names, " ") .. " : Z)" or ""
end

--- The Coq text of one map, a module called `name`: the definitions total, workers, count and
-- item, and the theorem exactly_once. Fails when the map's partition has no theorem.
function coq.map_module(name, map)
    local instance = instances[map.partition]
    if not instance then
        error(("coq: map %s: expected a partition with a theorem, got %s"):format(name,
            map.partition), 2)
    end
    local variables, names = run_time_variables(map)
    local bounds, arguments = {}, #names > 0 and " " .. table.concat(names, " ") or ""
    for k, variable in ipairs(variables) do
        bounds[k] = ("%d <= %s <= %d -> "):format(variable.low, variable.name, variable.high)
    end
    local function applied(what)
        return #names > 0 and "(" .. what .. arguments .. ")" or what
    end
    local constants = table.concat(instance.constants(map), " ")
    local shape = (" %s %s workers"):format(constants, applied("total")):gsub("  ", " ")
    local count, item = map.partition .. "_count", map.partition .. "_item"
    local formulas = count .. ", " .. item .. ", " .. instance.unfold
    return table.concat({
        ("Module %s."):format(name),
        ("Definition total%s : Z := %s."):format(binder(names), expr.coq(map.total)),
        ("Definition workers : Z := %d."):format(map.workers),
        ("Definition count%s (worker : Z) : Z := %s."):format(binder(names), expr.coq(map.count)),
        ("Definition item%s (worker item : Z) : Z := %s."):format(binder(names),
            expr.coq(map.item)),
        "Theorem exactly_once :",
        ("  %s%sPartition.exactly_once %s workers %s %s."):format(
            #names > 0 and "forall " .. table.concat(names, " ") .. " : Z, " or "",
            table.concat(bounds), applied("total"), applied("count"), applied("item")),
        "Proof.",
        "  intros.",
        ("  apply (exactly_once_same _ _ _ _ (%s%s) (%s%s));"):format(count, shape, item, shape),
        ("    [intros; unfold count, total, workers, %s; same_numbers"):format(formulas),
        ("    | intros; unfold item, total, workers, %s; same_numbers"):format(formulas),
        ("    | apply %s_exactly_once; unfold total, workers; lia]."):format(map.partition),
        "Qed.",
        ("End %s."):format(name),
    }, "\n") .. "\n"
end

--- The file of a schedule: the modules of `maps`, a list of {name, map}, and at its end the
-- question what axioms all its theorems rest on. `source` says what was exported.
function coq.file(source, maps)
    local parts = {
        ("(* Generated from %s; do not edit. *)"):format(source),
        "Require Import ZArith Lia.\nFrom Elpis Require Import Partition.\nOpen Scope Z_scope.\n",
    }
    local theorems = {}
    for k, entry in ipairs(maps) do
        parts[#parts + 1] = coq.map_module(entry[1], entry[2])
        theorems[k] = entry[1] .. ".exactly_once"
    end
    parts[#parts + 1] = "Definition theorems := (" .. table.concat(theorems, ",\n  ") .. ")."
    parts[#parts + 1] = "Print Assumptions theorems.\n"
    return table.concat(parts, "\n")
end

return coq
