--- case.lua - a kernel with inputs, a reference and its cost: check, time, sweep, install.
--
--     local case = elpis.case {
--         schedule = ..., device = dev,
--         problems = {{rows_max = 8, width = 100}},     default: the schedule's examples
--         inputs = function(p, dev, run) return {x = dev:tensor(...), ..., rows = 8} end,
--         reference = function(a, p) return {y = ...} end,       or another schedule
--         limit = 1e-6, bytes = function(p) ... end, operations = function(p) ... end,
--     }
--
-- `inputs` makes all arguments of a launch by name; p is the problem, run counts from 1 to `runs`
-- for who wants several. It must give the same values whenever it is called with the same p and
-- run. Outputs are the arguments whose pointers are not const.
--
-- A reference in Lua gets the arguments as they were before the launch, tensors as lists nested by
-- their shape, and returns the outputs as lists; an output that it gives as false is not compared.
-- The error of an output is the root mean square of its difference, divided by that of the
-- reference (by nothing where that is zero). A reference that is a schedule is launched with the
-- same arguments, and outputs must have equal bits.
--
-- Whatever the reference, tuning must not change a bit: check() compares several tunings with the
-- default, sweep() all that it times.

local check = require "elpis.check"
local definition = require "elpis.definition"
local device = require "elpis.device"
local install = require "elpis.install"
local report = require "elpis.report"
local core = require "elpis.core"

local case = {}

local methods = {}
methods.__index = methods

local COMBINATIONS_MOST = 4096
local TUNINGS = 8 -- that check() compares
local DEFAULT_LIMITS = {f32 = 1e-6, h16 = 1e-3} -- integers: 0

local fields = {
    schedule = "string|table", device = "table?", problems = "table?", inputs = "function",
    reference = "function|string|table?", limit = "number|table?", runs = "integer?",
    bytes = "function?", operations = "function?", name = "string?",
}

--- A case; see the head of this file.
function case.new(options)
    check.options("elpis.case", options, fields)
    local self = setmetatable(check.merged(options), methods)
    self.schedule = definition.new(options.schedule)
    self.device = options.device or device.open()
    if not device.is(self.device) then
        check.fail("elpis.case: device: expected what elpis.device gives")
    end
    self.name = options.name or self.schedule.name
    self.problems = options.problems or self.schedule:examples()
    self.runs = options.runs or 1
    if options.reference and type(options.reference) ~= "function" then
        self.reference = definition.new(options.reference)
    end
    if #self.problems == 0 then
        check.fail("elpis.case: problems: expected at least one; the schedule has no examples")
    end
    return self
end

-- ---- arguments and outputs

local function is_tensor(value)
    return type(value) == "userdata"
end

-- The arguments of a launch, with the first contents of its outputs.
local function make_arguments(self, kernel, run)
    local arguments = self.inputs(kernel.problem, self.device, run)
    if type(arguments) ~= "table" then
        check.fail("case %s: inputs: expected a table of arguments, got %s", self.name,
            type(arguments))
    end
    kernel:bind(arguments) -- for its checks
    local outputs, pristine = {}, {}
    for _, argument in ipairs(kernel.args) do
        local name = argument[1]
        if device.is_output(argument) then
            local value = arguments[name]
            outputs[#outputs + 1] = name
            pristine[name] = self.device:tensor(value:type(), value:shape(), name):copy(value)
        end
    end
    return {arguments = arguments, outputs = outputs, pristine = pristine}
end

-- Launches with the outputs as they were first; copies of what they became.
local function results_of(self, kernel, set)
    local results, own = {}, {}
    for _, name in ipairs(set.outputs) do
        set.arguments[name]:copy(set.pristine[name])
    end
    for _, argument in ipairs(kernel.args) do
        own[argument[1]] = set.arguments[argument[1]]
    end
    kernel:launch(own)
    for _, name in ipairs(set.outputs) do
        local value = set.arguments[name]
        results[name] = self.device:tensor(value:type(), value:shape(), name):copy(value)
    end
    return results
end

local function free_all(tensors)
    for _, tensor in pairs(tensors) do
        if is_tensor(tensor) then
            tensor:free()
        end
    end
end

local function free_set(set)
    free_all(set.pristine)
    free_all(set.arguments)
end

-- ---- equal bits

local function demand_equal(self, what, other, found, expected)
    for _, name in ipairs(check.names(found)) do
        local difference = found[name]:differs(expected[name])
        if difference then
            check.fail("%s: output %s, element %s: %s gives %s, %s gives %s (%d elements differ)",
                what, name, check.place(difference.place), self.name, difference.a, other,
                difference.b, difference.count)
        end
    end
end

-- `count` of the list, spread evenly, the first among them.
local function spread(list, count)
    if #list <= count then
        return list
    end
    local chosen = {}
    for k = 0, count - 1 do
        chosen[k + 1] = list[1 + k * (#list - 1) // math.max(count - 1, 1)]
    end
    return chosen
end

-- ---- errors against a reference in Lua

-- A flat list as lists nested by shape.
local function nested(list, shape, depth, at)
    if #shape == 0 or depth > #shape then
        return list[at], at + 1
    end
    local result = {}
    for k = 1, shape[depth] do
        result[k], at = nested(list, shape, depth + 1, at)
    end
    return result, at
end

local function flat(value, into)
    for _, each in ipairs(value) do
        if type(each) == "table" then
            flat(each, into)
        else
            into[#into + 1] = each
        end
    end
    return into
end

-- Arguments for a reference: numbers as they are, tensors as nested lists.
local function readable(set)
    local all = {}
    for name, value in pairs(set.arguments) do
        local tensor = set.pristine[name] or value
        all[name] = is_tensor(value) and nested(tensor:list(), tensor:shape(), 1, 1) or value
    end
    return all
end

-- Place of element number `at` (from 0) in a shape.
local function place_of(shape, at)
    local place = {}
    for k = #shape, 1, -1 do
        place[k] = at % shape[k]
        at = at // shape[k]
    end
    return place
end

-- Infinite where one of both is no finite number and the other not the same.
local function difference_of(value, wanted)
    if value == wanted or (value ~= value and wanted ~= wanted) then
        return 0.0
    end
    local difference = math.abs(value - wanted)
    return difference == difference and difference or math.huge
end

-- {rms, max, place, found, expected}: rms relative to the reference's (its finite values), max of
-- the differences.
local function error_of(tensor, expected)
    local list, sum, scale, worst, at = tensor:list(), 0.0, 0.0, -1.0, 1
    for k, value in ipairs(list) do
        local wanted = expected[k]
        local difference = difference_of(value, wanted)
        sum = sum + difference * difference
        scale = scale + (math.abs(wanted) < math.huge and wanted * wanted or 0)
        if difference > worst then
            worst, at = difference, k
        end
    end
    local rms = math.sqrt(sum / #list)
    return {rms = scale > 0 and rms / math.sqrt(scale / #list) or rms, max = worst,
        place = place_of(tensor:shape(), at - 1), found = list[at], expected = expected[at]}
end

local function limit_of(self, name, tensor)
    local limit = self.limit
    if type(limit) == "table" then
        limit = limit[name]
    end
    return limit or DEFAULT_LIMITS[tensor:type()] or 0
end

local function reference_output(self, name, tensor, answer)
    local expected = answer[name]
    if type(expected) ~= "table" then
        check.fail("case %s: reference: output %s: expected a list, or false, got %s", self.name,
            name, type(expected))
    end
    expected = flat(expected, {})
    local count = #tensor:list()
    if #expected ~= count then
        check.fail("case %s: reference: output %s: expected %d values, got %d", self.name, name,
            count, #expected)
    end
    return expected
end

-- Compares with the function; adds a line an output to `lines`.
local function compare_values(self, what, problem, set, results, lines)
    local answer = self.reference(readable(set), problem)
    if type(answer) ~= "table" then
        check.fail("case %s: reference: expected a table of outputs, got %s", self.name,
            type(answer))
    end
    for _, name in ipairs(set.outputs) do
        if answer[name] ~= false then
            local tensor = results[name]
            local e = error_of(tensor, reference_output(self, name, tensor, answer))
            local limit = limit_of(self, name, tensor)
            lines[#lines + 1] = {what, name, ("error %.3g, at most %.3g"):format(e.rms, limit),
                ("largest difference %.3g at %s"):format(e.max, check.place(e.place))}
            if e.rms > limit then
                check.fail("%s: output %s: error %.3g above the limit %.3g; largest difference at "
                    .. "%s: found %s, expected %s", what, name, e.rms, limit, check.place(e.place),
                    e.found, e.expected)
            end
        end
    end
end

-- ---- check

local function label(self, problem, run)
    local what = ("%s, %s"):format(self.name, check.text(problem))
    return run and self.runs > 1 and what .. (", run %d"):format(run) or what
end

-- All legal tunings of a problem; one at least.
local function legal_tunings(self, problem)
    local all = self.schedule:combinations(self.device.target, problem, COMBINATIONS_MOST)
    if #all == 0 then
        self.schedule:resolve(self.device.target, problem) -- says why, where it can
        check.fail("%s: no tuning is legal on %s", label(self, problem), self.device.info.name)
    end
    return all
end

-- One run of one problem: the reference, then the other tunings.
local function check_run(self, kernels, run, reference, lines)
    local set = make_arguments(self, kernels[1], run)
    local what = label(self, kernels[1].problem, run)
    local found = results_of(self, kernels[1], set)
    if reference then
        local expected = results_of(self, reference, set)
        demand_equal(self, what, self.reference:title(), found, expected)
        free_all(expected)
        lines[#lines + 1] = {what, table.concat(set.outputs, ", "),
            "bits equal to " .. self.reference:title(), ""}
    elseif self.reference then
        compare_values(self, what, kernels[1].problem, set, found, lines)
    end
    for k = 2, #kernels do
        local other = results_of(self, kernels[k], set)
        demand_equal(self, what .. " tuned " .. check.text(kernels[k].tuning), "the default tuning",
            other, found)
        free_all(other)
    end
    free_all(found)
    free_set(set)
end

local function check_problem(self, problem, options, lines)
    local target = self.device.target
    local all = legal_tunings(self, problem)
    local tunings = spread(all, options.tunings or TUNINGS)
    for _, tuning in ipairs(tunings) do
        self.schedule:laws(target, problem, tuning)
        self.schedule:render(target, problem, tuning) -- install() asks which files were read
    end
    local kernels = self.device:kernels(self.schedule, problem, tunings)
    local reference
    if definition.is(self.reference) then
        reference = self.device:kernel {schedule = self.reference, problem = problem}
    end
    for run = 1, self.runs do
        check_run(self, kernels, run, reference, lines)
    end
    lines[#lines + 1] = {label(self, problem), "",
        ("laws hold, bits equal in %d of %d tunings"):format(#kernels, #all), ""}
    return #kernels
end

local function print_lines(self)
    for _, line in ipairs(self.lines) do
        print((("%s: %s%s%s%s"):format(line[1], line[2], line[2] ~= "" and ": " or "", line[3],
            line[4] ~= "" and "; " .. line[4] or "")))
    end
    return self
end

--- Checks laws, the reference, and that tuning changes no bit; what fails is an error. Returns
-- {lines, tunings, print()}.
function methods:check(options)
    options = check.options("case:check", options or {}, {tunings = "integer?"})
    local result = {lines = {}, tunings = 0, print = print_lines}
    for _, problem in ipairs(self.problems) do
        result.tunings = result.tunings + check_problem(self, problem, options, result.lines)
    end
    return result
end

-- ---- times

-- bytes or operations of a problem.
local function declared(self, field, problem)
    local value = self[field] and self[field](problem, self.device)
    if self[field] and type(value) ~= "number" then
        check.fail("case %s: %s: expected a number, got %s", self.name, field, type(value))
    end
    return value
end

local function candidates_of(self, options)
    local list = {}
    for k, candidate in ipairs(options.candidates or {}) do
        check.options(("case:time: candidates[%d]"):format(k), candidate,
            {name = "string", schedule = "string|table?", tuning = "table?"})
        list[k] = {name = candidate.name, tuning = candidate.tuning or {},
            schedule = candidate.schedule and definition.new(candidate.schedule) or self.schedule}
    end
    if #list > 0 then
        return list
    end
    if definition.is(self.reference) then
        list[1] = {name = self.reference:title(), tuning = {}, schedule = self.reference}
    end
    list[#list + 1] = {name = self.name, tuning = {}, schedule = self.schedule}
    return list
end

local function time_options(self, problem, launches, options)
    return {launches = launches, rounds = options.rounds, seconds = options.seconds,
        bytes = declared(self, "bytes", problem),
        operations = declared(self, "operations", problem)}
end

--- Times candidates, by default the reference schedule and this one, side by side at every problem
-- (or those of options.problems). Returns a report.
function methods:time(options)
    options = check.options("case:time", options or {}, {candidates = "table?", problems = "table?",
        rounds = "integer?", seconds = "number?"})
    local result = report.new(self.name, self.device)
    for _, problem in ipairs(options.problems or self.problems) do
        local launches, set = {}, nil
        for k, candidate in ipairs(candidates_of(self, options)) do
            local kernel = self.device:kernel {schedule = candidate.schedule, problem = problem,
                tuning = candidate.tuning}
            set = set or make_arguments(self, kernel, 1)
            launches[k] = {name = candidate.name, kernel = kernel, args = set.arguments}
        end
        result:add(check.text(problem), time_options(self, problem, launches, options))
        free_set(set)
    end
    return result
end

-- ---- sweep

local sweep_methods = {}
sweep_methods.__index = sweep_methods

--- Tries every legal tuning at one problem (the case's first): bits first, then times side by
-- side. Returns the sweep, a report with record().
function methods:sweep(options)
    options = check.options("case:sweep", options or {}, {problem = "table?", most = "integer?",
        rounds = "integer?", seconds = "number?"})
    local problem = options.problem or self.problems[1]
    local tunings = legal_tunings(self, problem)
    local legal = #tunings
    tunings = spread(tunings, options.most or COMBINATIONS_MOST)
    local kernels = self.device:kernels(self.schedule, problem, tunings)
    local set, launches = make_arguments(self, kernels[1], 1), {}
    local found = results_of(self, kernels[1], set)
    for k, kernel in ipairs(kernels) do
        local other = results_of(self, kernel, set)
        demand_equal(self, ("sweep of %s tuned %s"):format(self.name, check.text(kernel.tuning)),
            "the default tuning", other, found)
        free_all(other)
        launches[k] = {name = check.text(kernel.tuning) .. (k == 1 and " (default)" or ""),
            kernel = kernel, args = set.arguments}
    end
    free_all(found)
    local result = report.new(self.name, self.device)
    result:add(check.text(problem), time_options(self, problem, launches, options))
    result.sweep = {kernel = kernels[1], problem = problem, default = result.rows[1],
        legal = legal}
    result:sort()
    free_set(set)
    return setmetatable(result, sweep_methods)
end

local json = check.json

-- Every combination that was timed.
local function json_candidates(rows)
    local list = {}
    for k, row in ipairs(rows) do
        list[k] = ('{"tuning": %s, "us": %.4f, "low_us": %.4f, "high_us": %.4f, "samples": %d%s}')
            :format(json(row.tuning), row.median * 1e6, row.low * 1e6, row.high * 1e6,
                row.samples, row.dropped and ', "dropped": true' or "")
    end
    return "[" .. table.concat(list, ", ") .. "]"
end

--- Puts the best tuning into a file of records (schedules/records/README.md), in place of one of
-- the same kernel and machine. Returns the sweep.
function sweep_methods:record(path)
    local best, info, sweep = self:best(), self.device.info, self.sweep
    if not best then
        check.fail("record of %s: no tuning could be timed", self.title)
    end
    if best.high >= sweep.default.low then
        best = sweep.default -- no gain beyond the spread, as `elpis tune` sees it
    end
    core.record(path, ('{"schedule": %s, "target": %s, "sms": %d, "parameters": %s, "tuning": %s, '
        .. '"us": %.4f, "default_us": %.4f, "digest": %s, "gpu": %s, "driver": %s, '
        .. '"compiler": %s, "date": "%s", "legal": %d, "candidates": %s}')
            :format(json(sweep.kernel.name), json(info.target), info.sms, json(sweep.problem),
            json(best.tuning), best.median * 1e6,
            sweep.default.median * 1e6, json(sweep.kernel.digest), json(info.name),
            json(info.driver), json(info.compiler), os.date("!%Y-%m-%d"), sweep.legal,
            json_candidates(self.rows)))
    return self
end

for name, method in pairs(getmetatable(report.new("", nil)).__index) do
    sweep_methods[name] = sweep_methods[name] or method
end

--- Writes the schedule into `folder` for --schedules, once everything it must pass has passed; see
-- install.lua.
function methods:install(folder, options)
    return install.run(self, folder, options)
end

return case
