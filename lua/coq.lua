--- coq.lua - what schedules export to proofs/.
--
-- For a work map the exported Coq text holds the map's own formulas, printed from the very
-- expression objects that the kernel's loops were printed from, twice: as terms of Coq's integers
-- (expr.coq) and as trees with the bounds by which their C types were chosen (proofs/Formula.v).
-- About them stand three theorems, for all values of the run-time extents within their bounds
-- (laws.lua samples the same laws):
--
--     exactly_once   every item is done by one worker, once: an instance of the theorem of
--                    proofs/Partition.v that belongs to the partition's name
--     in_bounds      coordinates are below their extents and encode their item number
--     no_overflow    the C text of every formula computes the number that the formula is
--
-- Besides maps a schedule exports numbers (its field `claims`, see lua/README.md), of which Coq
-- decides by computation that the theorems of proofs/Exact.v, Partition.v, Spans.v and Trees.v hold
-- for them. If a formula or a number is wrong, the instance does not prove.
--
-- The text of one schedule is one file of modules, one a map or fact (proofs/export.lua decides
-- which shapes).
-- Not here: running Coq (proofs/prove.sh).

local expr = require "expr"
local work = require "work"

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

local constructors = {
    add = "Add", sub = "Sub", mul = "Mul", div = "Div", mod = "Mod", min = "Min", max = "Max",
    monus = "Monus",
}

-- `e` as a tree of proofs/Formula.v; places: variable name -> place in the environment.
local function formula(e, places)
    if e.op == "constant" then
        return ("(Const %d)"):format(e.value)
    elseif e.op == "variable" then
        return ("(Name %d %d %d)"):format(places[e.name], e.low, e.high)
    elseif e.op == "claim" then
        return ("(Claim %s %d)"):format(formula(e.a, places), e.high)
    end
    return ("(%s %s %s %d)"):format(constructors[e.op], formula(e.a, places), formula(e.b, places),
        e.high)
end

-- Names that mean something in a module's text, and Coq's words: a run-time extent of such a name
-- gets another one.
local taken = {}
for name in ([[total workers count few i known last some below places digits fit range inside
    within most path code size start width index as at cofix else end exists fix for forall fun
    if in let match mod return then using where with by Prop Set Type]]):gmatch("%S+") do
    taken[name] = true
end

-- The map with its run-time extents renamed where their names are taken.
local function renamed(map)
    local values, some = {}, false
    for _, variable in ipairs(expr.variables(map.total)) do
        if taken[variable.name] then
            values[variable.name] = expr.variable(variable.name .. "_", variable.high, variable.low)
            some = true
        end
    end
    if not some then
        return map
    end
    local copy = setmetatable({axes = {}, coordinates = {}}, {__index = map})
    for _, field in ipairs {"total", "count", "item"} do
        copy[field] = expr.substitute(map[field], values)
    end
    for k, axis in ipairs(map.axes) do
        copy.axes[k] = {name = axis.name, extent = expr.substitute(axis.extent, values)}
        copy.coordinates[k] = {name = axis.name,
            value = expr.substitute(map.coordinates[k].value, values)}
    end
    return copy
end

-- `text` with every ${name} replaced by values[name].
local function fill(text, values)
    return (text:gsub("%${([%a_]+)}", function(name)
        return values[name] or error("coq: no value for $" .. name)
    end))
end

-- The places of variables in an environment: name -> place.
local function places_of(names, ...)
    local places, count = {}, 0
    for _, list in ipairs {names, {...}} do
        for _, name in ipairs(list) do
            places[name] = count
            count = count + 1
        end
    end
    return places
end

-- What the texts of a map say of its run-time variables: how they are bound, handed on and listed.
local function values_of_variables(map)
    local variables = expr.variables(map.total)
    local names, bounds, hypotheses = {}, {}, {}
    for k, variable in ipairs(variables) do
        names[k] = variable.name
        bounds[k] = ("%d <= %s <= %d -> "):format(variable.low, variable.name, variable.high)
        hypotheses[k] = "bound_" .. k
    end
    local list, some = table.concat(names, " "), #names > 0
    local known = list .. " " .. table.concat(hypotheses, " ")
    return names, {
        binder = some and " (" .. list .. " : Z)" or "",
        given = some and "forall " .. list .. " : Z, " .. table.concat(bounds) or "",
        intros = some and "intros " .. known .. ". " or "",
        known = some and " " .. known or "",
        of = some and " " .. list or "",
        environment = table.concat(names, "; "),
        before = some and table.concat(names, "; ") .. "; " or "",
        total = some and "(total " .. list .. ")" or "total",
        all_counts = some and "(count " .. list .. ")" or "count",
        all_items = some and "(item " .. list .. ")" or "item",
    }
end

local MAP_MODULE = [[
Module ${name}.
Ltac Zify.zify_post_hook ::= Z.to_euclidean_division_equations.
Definition total${binder} : Z := ${total_term}.
Definition workers : Z := ${workers}.
Definition count${binder} (worker : Z) : Z := ${count_term}.
Definition item${binder} (worker item : Z) : Z := ${item_term}.
${digit_definitions}
Definition total_text := ${total_tree}.
Definition count_text := ${count_tree}.
Definition item_text := ${item_tree}.
${digit_trees}
(* law exactly_once, ${where} *)
Theorem exactly_once :
  ${given}Partition.exactly_once ${total} workers ${all_counts} ${all_items}.
Proof.
  intros.
  apply (exactly_once_same _ _ _ _ (${partition_count} ${constants} ${total} workers)
           (${partition_item} ${constants} ${total} workers));
    [intros; unfold count, total, workers, ${formulas}; same_numbers
    | intros; unfold item, total, workers, ${formulas}; same_numbers
    | apply ${partition_exactly_once}; unfold total, workers; lia].
Qed.
Lemma few : ${given}forall worker : Z, 0 <= worker < workers ->
  0 <= count${of} worker <= ${total} /\ count${of} worker <= ${count_most}.
Proof.
  intros. pose proof (${partition_few} ${constants} ${total} workers worker) as known.
  unfold total, workers, count, ${formulas} in *. few_items.
Qed.
(* law in_bounds, ${where} *)
Theorem in_bounds : ${given}forall x : Z, 0 <= x < ${total} ->
  ${digit_bounds} /\ ${digit_code} = x.
Proof. intros. unfold total, ${digit_names} in *. digits. Qed.
(* law no_overflow, ${where} *)
Ltac Zify.zify_post_hook ::= idtac. (* what there is of quotients is known: faster *)
Theorem no_overflow : ${given}
  exact [${environment}] total_text ${total} /\
  (forall worker : Z, 0 <= worker < workers ->
     exact [${before}worker] count_text (count${of} worker)) /\
  (forall worker i : Z, 0 <= worker < workers -> 0 <= i < count${of} worker ->
     exact [${before}worker; i] item_text (item${of} worker i)) /\
  (forall x : Z, 0 <= x < ${total} -> ${digit_exact}).
Proof.
  ${intros}assert (fit : exact [${environment}] total_text ${total}) by owe_all.
  pose proof (exact_range _ _ _ fit) as range. cbv [most total_text] in range.
  split; [exact fit |]. split; [| split].
  - intros worker inside. assert (last : worker <= ${last}) by (unfold workers in inside; lia).
    pose proof (few${known} worker inside) as some.
    unfold count, total, workers in *. owe_all.
  - intros worker i inside within.
    assert (last : worker <= ${last}) by (unfold workers in inside; lia).
    pose proof (few${known} worker inside) as some.
    pose proof (proj1 (exactly_once${known}) worker i inside within) as below.
    assert (places : 0 <= i <= ${count_last}) by lia. clear some within.
    unfold item, total, workers in *. owe_all.
  - intros x within. pose proof (in_bounds${known} x within) as digits.
    unfold total, ${digit_names} in *. owe_all.
Qed.
End ${name}.
]]

-- The parts of a map's module that speak of its coordinates.
local function values_of_coordinates(map, names, values)
    local places = places_of(names, "x")
    local list = {definitions = {}, trees = {}, bounds = {}, names = {}, exact = {}}
    local code
    for k, coordinate in ipairs(map.coordinates) do
        local digit, extent = ("digit_%d%s x"):format(k, values.of), expr.coq(map.axes[k].extent)
        list.names[k] = "digit_" .. k
        list.definitions[k] = ("Definition digit_%d%s (x : Z) : Z := %s. (* %s *)"):format(k,
            values.binder, expr.coq(coordinate.value), coordinate.name)
        list.trees[k] = ("Definition digit_%d_text := %s."):format(k,
            formula(coordinate.value, places))
        list.bounds[k] = ("0 <= %s < %s"):format(digit, extent)
        list.exact[k] = ("exact [%sx] digit_%d_text (%s)"):format(values.before, k, digit)
        code = code and ("(%s) * %s + %s"):format(code, extent, digit) or digit
    end
    values.digit_definitions = table.concat(list.definitions, "\n")
    values.digit_trees = table.concat(list.trees, "\n")
    values.digit_bounds = table.concat(list.bounds, " /\\ ")
    values.digit_exact = table.concat(list.exact, " /\\ ")
    values.digit_names = table.concat(list.names, ", ")
    values.digit_code = code
end

--- The Coq text of one map, a module called `name`: the definitions total, workers, count and
-- item, and the theorems exactly_once, in_bounds and no_overflow. `where` says whose map it is, in
-- messages. Fails when the map's partition has no theorem.
function coq.map_module(name, map, where)
    local instance = instances[map.partition]
    if not instance then
        error(("coq: map %s: expected a partition with a theorem, got %s"):format(name,
            map.partition), 2)
    end
    map = renamed(map)
    local names, values = values_of_variables(map)
    local places = places_of(names, "worker", "item")
    values_of_coordinates(map, names, values)
    values.name, values.where = name, where or "map " .. name
    values.workers, values.last, values.count_most = map.workers, map.workers - 1, map.count.high
    values.count_last = map.count.high - 1
    values.total_term, values.total_tree = expr.coq(map.total), formula(map.total, places)
    values.count_term, values.count_tree = expr.coq(map.count), formula(map.count, places)
    values.item_term, values.item_tree = expr.coq(map.item), formula(map.item, places)
    values.constants = table.concat(instance.constants(map), " ")
    for _, what in ipairs {"count", "item", "exactly_once", "few"} do
        values["partition_" .. what] = map.partition .. "_" .. what
    end
    values.formulas = ("%s_count, %s_item, %s"):format(map.partition, map.partition,
        instance.unfold)
    return fill(MAP_MODULE, values)
end

--- The theorems of a map's module.
coq.map_laws = {"exactly_once", "in_bounds", "no_overflow"}

-- ---- claims: numbers of a schedule that a theorem speaks of (lua/README.md)

local function list_text(list, suffix)
    local texts = {}
    for k, value in ipairs(list) do
        texts[k] = ("%d%s"):format(value, suffix or "")
    end
    return "[" .. table.concat(texts, "; ") .. "]"
end

local claim_kinds = {}

-- {name, accumulator, terms, most}: a sum of at most `terms` numbers of magnitude up to `most`.
function claim_kinds.sums(sum)
    local bits = work.accumulator_bits(sum[2])
    if not bits then
        error(("claims.sums.%s: expected the accumulator u32, i32, u64 or i64, got %s"):format(
            tostring(sum[1]), tostring(sum[2])), 0)
    end
    local kind = sum[2]:sub(1, 1) == "u" and "Unsigned" or "Signed"
    local type_text = ("(%s %d)"):format(kind, bits)
    return "sum_exact", ("sum %s in %s"):format(sum[1], sum[2]), fill([[
Theorem ${law} : forall list, Z.of_nat (length list) <= ${terms} ->
  Forall (term_of ${type} ${most}) list ->
  fold_left (fun sum term => wrap ${type} (sum + term)) list 0 = Exact.total list /\
  wrap ${type} (Exact.total list) = Exact.total list.
Proof. apply (Exact.sum_exact ${type} ${terms} ${most}). vm_compute. reflexivity. Qed.
]], {law = "sum_exact", terms = sum[3], most = sum[4], type = type_text})
end

-- {counts, firsts, total}: the column groups of each part, the first group of each, all.
function claim_kinds.groups(groups)
    return "grouped", "parts of the launch", fill([[
Theorem ${law} : forall x, 0 <= x < ${total} ->
  exists part local, place ${counts} x = (part, local) /\ (part < length ${counts})%nat /\
    0 <= local < nth part ${counts} 0 /\ x = nth part ${firsts} 0 + local.
Proof. apply (grouping_grouped ${counts} ${firsts} ${total}). vm_compute. reflexivity. Qed.
]], {law = "grouped", total = groups.total, counts = list_text(groups.counts),
        firsts = list_text(groups.firsts)})
end

-- {near, near_span, per_octave, tile, context, count}
function claim_kinds.spans(spans)
    local numbers = ("%d %d %d"):format(spans.near, spans.near_span, spans.per_octave)
    return "spans", ("spans of a context of %d"):format(spans.context), fill([[
Theorem ${law} : forall position, 0 <= position < ${context} ->
  exists span, 0 <= span < ${count} /\
    start ${numbers} span <= position < start ${numbers} (span + 1) /\
    (start ${numbers} span) mod ${tile} = 0 /\
    (forall other, 0 <= other ->
       start ${numbers} other <= position < start ${numbers} (other + 1) -> other = span).
Proof. apply (spans_instance ${numbers} ${tile} ${context} ${count}). vm_compute. reflexivity. Qed.
]], {law = "spans", numbers = numbers, tile = spans.tile, context = spans.context,
        count = spans.count})
end

-- {codes of advance, peek, reload, replay; words}
function claim_kinds.program(program)
    return "program_sound", "operations of the GDN program", fill([[
Theorem ${law} : program_codes ${codes} ${words} = true.
Proof. vm_compute. reflexivity. Qed.
]], {law = "program_sound", codes = list_text(program.codes, "%nat"), words = program.words})
end

-- {size, digit, k, drop} -> the least unit, in 2^-24, for which Errors.digits_fine holds.
local function unit_of_digits(digits)
    local square = digits.size / digits.digit ^ 2 + digits.k / 4.0 ^ digits.drop
    return math.ceil(2.0 ^ 24 * math.sqrt(square))
end

-- {size, digit, k, drop}: digits up to `digit` in blocks of `size`, up to k activations dropped
-- that are 2^drop below the row's largest: how near they are to the row.
function claim_kinds.digits(digits)
    return "digits_norm", ("digits of blocks of %d"):format(digits.size), fill([[
Theorem ${law} : forall row dropped top, Forall (rounded_block ${size} ${digit}) row ->
  Z.of_nat (length dropped) <= ${k} ->
  (exists x, In x (concat (map activations row)) /\ Z.abs x = top) ->
  Forall (fun x => 2 ^ ${drop} * Z.abs x <= top) dropped ->
  2 ^ 48 * squares (concat (map errors row) ++ dropped) <=
  ${unit} * ${unit} * squares (concat (map activations row) ++ dropped).
Proof.
  apply (Digits.digits_norm ${size} ${digit} ${k} ${drop} ${unit}). vm_compute. reflexivity.
Qed.
]], {law = "digits_norm", size = digits.size, digit = digits.digit, k = digits.k,
        drop = digits.drop, unit = unit_of_digits(digits)})
end

-- Classes of rounding steps, coarse last, and their units in 2^-24 (Errors.v, unit_of). Beside
-- them a list of steps may have `digits`, as claims have them, `weights`, the keys of a tile whose
-- weights are added up as integers, and `units`, a step of that size.
local STEP_CLASSES = {
    {"r32", 1}, {"t32", 2}, {"r16", 1 << 13}, {"t16", 1 << 14}, {"b16", 1 << 16},
    {"tb16", 1 << 17},
}
local UNITS_OF = {
    digits = unit_of_digits,
    weights = function(keys) return (keys + 1) // 2 end,
    units = function(units) return units end,
}

-- A list of steps: its Coq text, its words, the bound it makes.
local function read_steps(steps, where)
    local list, texts, words, known = {}, {}, {}, {}
    for _, class in ipairs(STEP_CLASSES) do
        local name, count = class[1], steps[class[1]]
        known[name] = true
        if count then
            list[#list + 1] = {class[2], count}
            texts[#texts + 1] = ("(%s, %d%%nat)"):format(name:upper(), count)
            words[#words + 1] = ("%d %s"):format(count, name)
        end
    end
    for _, name in ipairs {"digits", "weights", "units"} do
        known[name] = true
        if steps[name] then
            local unit = UNITS_OF[name](steps[name])
            list[#list + 1] = {unit, 1}
            texts[#texts + 1] = ("(Units %d, 1%%nat)"):format(unit)
            words[#words + 1] = name == "units" and ("a step of %d"):format(unit)
                or ("%s of %d"):format(name, unit)
        end
    end
    for name in pairs(steps) do
        if not known[name] then
            error(("%s: expected r32, t32, r16, t16, b16, tb16, digits, weights or units, got %s")
                :format(where, tostring(name)), 0)
        end
    end
    local growth = 0
    for _, each in ipairs(list) do
        growth = growth + each[2] * math.log(1 + each[1] * 2.0 ^ -24)
    end
    return {text = "[" .. table.concat(texts, "; ") .. "]", words = table.concat(words, ", "),
        bound = math.exp(growth) - 1}
end

-- {op, over =, ours =, stock =, repeated =}: roundings on the worst path of an operation; over:
-- the scale of the bounds; repeated: of one step of a recurrence.
function claim_kinds.roundings(rounding)
    local where = ("claims.roundings.%s"):format(tostring(rounding[1]))
    local ours = read_steps(rounding.ours, where .. ".ours").text
    local stock = read_steps(rounding.stock, where .. ".stock").text
    local law = rounding.repeated and "bound_repeated" or "bound_compared"
    local path = rounding.repeated and "concat (repeat (flat %s) n)" or "flat %s"
    return law, "roundings of " .. rounding[1], fill([[
Theorem ${law} : forall x${count},
  (growth (path_of x (${path_ours})) - 1 <= growth (path_of x (${path_stock})) - 1)%Q.
Proof. apply (Errors.${law} ${ours} ${stock}). vm_compute. reflexivity. Qed.
]], {law = law, ours = ours, stock = stock, count = rounding.repeated and " n" or "",
        path_ours = path:format(ours), path_stock = path:format(stock)})
end

--- What a table of claims says of roundings, for people: a list of {op, over, ours, stock}, ours
-- and stock as {words, bound}.
function coq.roundings(claims)
    local list = {}
    for k, rounding in ipairs(claims.roundings or {}) do
        list[k] = {op = rounding[1], over = rounding.over,
            ours = read_steps(rounding.ours, rounding[1]),
            stock = read_steps(rounding.stock, rounding[1])}
    end
    return list
end

-- {keys}: a tile's weights, summed as integers of 2^-24.
function claim_kinds.weights(weights)
    return "weights_near", ("weights of %d keys"):format(weights.keys), fill([[
Theorem ${law} : forall list, Forall rounded_weight list ->
  Z.of_nat (length list) <= ${keys} -> Exists (fun w => 1 <= fst w)%Q list ->
  let exact := weight_sum list in
  let computed := (inject_Z (whole_sum list) * (1 # 2 ^ 24))%Q in
  (0 < computed /\ Qabs (computed - exact) <= (${keys} # 2 ^ 25) * exact /\
   Qabs (computed - exact) <= (${keys} # 2 ^ 25) * computed)%Q.
Proof. exact (Digits.weights_near ${keys}). Qed.
]], {law = "weights_near", keys = weights.keys})
end

-- Claims that are lists of facts; the others are one.
local many = {sums = true, roundings = true}

--- The facts that a table of claims holds: a list of {law, what it is about, text of the theorem,
-- which is named after the law}.
function coq.claims(claims)
    local facts = {}
    for _, kind in ipairs {"sums", "groups", "spans", "program", "digits", "weights",
        "roundings"} do
        local list = many[kind] and claims[kind] or {claims[kind]}
        for _, each in ipairs(list) do
            local law, what, text = claim_kinds[kind](each)
            facts[#facts + 1] = {law = law, what = what, text = text}
        end
    end
    for kind in pairs(claims) do
        if not claim_kinds[kind] then
            error(("claims.%s: expected sums, groups, spans, program, digits, "
                .. "weights or roundings"):format(tostring(kind)), 0)
        end
    end
    return facts
end

-- Ranks of the stages of a list of {stage, stage that it waits for}: one more than the largest of
-- those that a stage waits for. Stages of a cycle get some rank, and no proof.
local function ranks_of(stages, edges)
    local ranks = {}
    for _, stage in ipairs(stages) do
        ranks[stage] = 0
    end
    for _ = 1, #stages do
        for _, edge in ipairs(edges) do
            ranks[edge[1]] = math.max(ranks[edge[1]], ranks[edge[2]] + 1)
        end
    end
    return ranks
end

--- The fact that the waits of a schedule cannot deadlock; stages: the sorted names of its maps.
function coq.waits(edges, stages, cooperative)
    local places, ranks, pairs_text = {}, {}, {}
    for k, stage in ipairs(stages) do
        places[stage] = k - 1
    end
    for _, edge in ipairs(edges) do
        for _, stage in ipairs(edge) do
            if not places[stage] then
                error(("waits: stage %s is not a map of the schedule"):format(tostring(stage)), 0)
            end
        end
    end
    local of_stage = ranks_of(stages, edges)
    for k, stage in ipairs(stages) do
        ranks[k] = of_stage[stage]
    end
    for k, edge in ipairs(edges) do
        pairs_text[k] = ("(%d, %d)%%nat"):format(places[edge[1]], places[edge[2]])
    end
    local given = ("%s [%s] %s"):format(list_text(ranks, "%nat"), table.concat(pairs_text, "; "),
        cooperative and "true" or "false")
    return {law = "waits_stratified", what = "waits of the launch", text = fill([[
Theorem ${law} : ${resident} = true /\
  forall s, (forall steps, In steps s -> ascends steps) -> ~ finished s ->
  exists s', does (waits_of ${ranks} [${edges}]) (fun _ _ => True) s s' /\
    left_over s = S (left_over s').
Proof. apply (waits_instance ${given}). vm_compute. reflexivity. Qed.
]], {law = "waits_stratified", resident = cooperative and "true" or "false", given = given,
        ranks = list_text(ranks, "%nat"), edges = table.concat(pairs_text, "; ")})}
end

--- A module `name` of one fact.
function coq.claim_module(name, fact, where)
    return ("Module %s.\n(* law %s, %s *)\n%sEnd %s.\n"):format(name, fact.law, where, fact.text,
        name)
end

--- The theories that exported files speak of.
coq.imports = "From Elpis Require Import Formula Partition Spans Exact Trees Waits Errors Digits."

--- The file of a schedule: `modules`, a list of {text, theorems}, and at its end a tuple of all its
-- theorems, of which can be asked what axioms they rest on. `source` says what was exported.
function coq.file(source, modules)
    local parts = {
        ("(* Generated from %s; do not edit. *)"):format(source),
        "Require Import ZArith QArith Qabs List Lia.",
        coq.imports,
        "Import ListNotations.\nOpen Scope Z_scope.\n",
    }
    local theorems = {}
    for _, module in ipairs(modules) do
        parts[#parts + 1] = module.text
        table.move(module.theorems, 1, #module.theorems, #theorems + 1, theorems)
    end
    parts[#parts + 1] = "Definition theorems := (" .. table.concat(theorems, ",\n  ") .. ").\n"
    return table.concat(parts, "\n")
end

return coq
