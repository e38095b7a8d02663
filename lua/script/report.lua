--- report.lua - candidates timed side by side, as a table, CSV and a plot.
--
--     elpis.time {launches = {{name =, kernel =, args =}, ...}, bytes =, operations =} -> report
--     report:print():csv(path):plot(path)
--
-- A row is {name, problem, median, low, high, samples, floor, dropped, failed}; seconds. The floor
-- is the time in which a copy moves `bytes`, or independent fused multiply-adds make `operations`,
-- whichever is longer (both measured on the device); nil where neither is declared. low and high
-- are quartiles: a candidate is faster than another one where its upper quartile lies below the
-- other's lower one, else nothing is claimed.

local check = require "elpis.check"
local core = require "elpis.core"
local peak = require "elpis.peak"

local report = {}

local methods = {}
methods.__index = methods

--- An empty report; its rows come from add().
function report.new(title, device)
    return setmetatable({title = title, device = device, rows = {}}, methods)
end

local function peak_of(device)
    device.operations_a_second = device.operations_a_second or peak.measure(device)
    return device.operations_a_second
end

local function floor_of(device, bytes, operations)
    local by_bytes = bytes and bytes / device:bandwidth()
    local by_operations = operations and operations / peak_of(device)
    if by_bytes and by_operations then
        return math.max(by_bytes, by_operations)
    end
    return by_bytes or by_operations
end

--- Times launches of one problem and adds their rows. options: see report.time.
function methods:add(problem, options)
    local bound = {}
    for k, launch in ipairs(options.launches) do
        bound[k] = launch.kernel:bind(launch.args)
    end
    local results, flushed = self.device.handle:trial(bound, {rounds = options.rounds,
        seconds = options.seconds, keep_first = true})
    local floor = floor_of(self.device, options.bytes, options.operations)
    self.flushed = flushed
    for k, result in ipairs(results) do
        result.name, result.problem, result.floor = options.launches[k].name, problem, floor
        result.tuning, result.bytes = options.launches[k].kernel.tuning, options.bytes
        self.rows[#self.rows + 1] = result
    end
    return self
end

-- What ended the trial comes first, then what was dropped: the medians of both are of other rounds.
local function rank(row)
    if row.samples == 0 then
        return 3
    end
    return row.dropped and 2 or 1
end

--- Sorts the rows by their medians; those that dropped out come later, those without a time last.
function methods:sort()
    table.sort(self.rows, function(a, b)
        if rank(a) ~= rank(b) then
            return rank(a) < rank(b)
        end
        return a.median < b.median
    end)
    return self
end

--- Times launches side by side.
function report.time(options)
    check.options("elpis.time", options, {launches = "table", bytes = "number?",
        operations = "number?", rounds = "integer?", seconds = "number?", title = "string?"})
    for k, launch in ipairs(options.launches) do
        local who = ("elpis.time: launches[%d]"):format(k)
        check.options(who, launch, {name = "string", kernel = "table", args = "table"})
        if launch.kernel.device ~= options.launches[1].kernel.device then
            check.fail("%s: expected a kernel of the same device as the first", who)
        end
    end
    if #options.launches == 0 then
        check.fail("elpis.time: launches: expected at least one")
    end
    local device = options.launches[1].kernel.device
    return report.new(options.title or options.launches[1].kernel.name, device):add("", options)
end

-- ---- what the times say

--- The fastest row of a problem: the least median among those that ended the trial; nil: none.
function methods:best(problem)
    local best
    for _, row in ipairs(self.rows) do
        local counts = not row.dropped and not row.failed and row.samples > 0
        if row.problem == (problem or self.rows[1].problem) and counts and
            (not best or row.median < best.median) then
            best = row
        end
    end
    return best
end

local function remark(row, best)
    if row.failed then
        return "failed: " .. row.failed
    elseif row == best then
        return "best"
    elseif best and best.high < row.low then
        return ("%.2f x the best"):format(row.median / best.median)
    elseif row.dropped then -- the device became slower afterwards
        return ("slower in the first %d rounds"):format(row.samples)
    end
    return "as fast as the best"
end

-- ---- the table

local function microseconds(seconds)
    return ("%.2f"):format(seconds * 1e6)
end

local function cells(row, best)
    return {
        row.name, microseconds(row.median), microseconds(row.high - row.low),
        tostring(row.samples), row.floor and microseconds(row.floor) or "",
        row.floor and row.samples > 0 and ("%.1f %%"):format(100 * row.floor / row.median) or "",
        row.bytes and row.samples > 0 and ("%.1f"):format(row.bytes / row.median * 1e-9) or "",
        remark(row, best),
    }
end

local columns = {"", "us median", "spread", "n", "floor us", "of floor", "GB/s", ""}

local function print_aligned(lines)
    local widths = {}
    for _, line in ipairs(lines) do
        for k, cell in ipairs(line) do
            widths[k] = math.max(widths[k] or 0, #cell)
        end
    end
    for _, line in ipairs(lines) do
        local padded = {}
        for k, cell in ipairs(line) do
            local space = (" "):rep(widths[k] - #cell)
            padded[k] = (k == 1 or k == #line) and cell .. space or space .. cell
        end
        print((table.concat(padded, "  "):gsub("%s+$", "")))
    end
end

--- Prints the table; returns the report.
function methods:print()
    local info = self.device.info
    print(("%s on %s (%s%s)"):format(self.title, info.name, info.target,
        self.flushed > 0 and (", cache flushed by %d MiB"):format(self.flushed >> 20) or ""))
    local seen = {}
    for _, first in ipairs(self.rows) do
        if not seen[first.problem] then
            seen[first.problem] = true
            local best, lines = self:best(first.problem), {columns}
            for _, row in ipairs(self.rows) do
                if row.problem == first.problem then
                    lines[#lines + 1] = cells(row, best)
                end
            end
            if first.problem ~= "" then
                print(first.problem)
            end
            print_aligned(lines)
        end
    end
    return self
end

-- ---- files

local function csv_word(word)
    return '"' .. word:gsub('"', '""') .. '"'
end

--- Writes the rows as CSV; returns the report.
function methods:csv(path)
    local info = self.device.info
    local lines = {"kernel,device,target,problem,candidate,median_us,low_quartile_us,"
        .. "high_quartile_us,samples,floor_us,bytes,dropped,failed"}
    for _, row in ipairs(self.rows) do
        lines[#lines + 1] = table.concat({csv_word(self.title), csv_word(info.name), info.target,
            csv_word(row.problem), csv_word(row.name), ("%.4f"):format(row.median * 1e6),
            ("%.4f"):format(row.low * 1e6), ("%.4f"):format(row.high * 1e6), tostring(row.samples),
            row.floor and ("%.4f"):format(row.floor * 1e6) or "",
            row.bytes and ("%d"):format(row.bytes // 1) or "", tostring(row.dropped),
            csv_word(row.failed or "")}, ",")
    end
    core.write(path, table.concat(lines, "\n") .. "\n")
    return self
end

local WIDTH, LEFT, RIGHT, ROW, TOP = 760, 260, 90, 22, 56

local function escaped(text)
    return (text:gsub("[&<>]", {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;"}))
end

-- One bar, its quartiles as a line over it, its floor as a dashed one.
local function bar(out, row, y, scale, colour)
    local middle = y + ROW / 2
    out[#out + 1] = ('<text x="%d" y="%.1f" text-anchor="end">%s</text>'):format(LEFT - 8,
        middle + 4, escaped(row.name))
    if row.samples == 0 then
        return
    end
    out[#out + 1] = ('<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>'):format(LEFT,
        y + 3, row.median * scale, ROW - 6, colour)
    out[#out + 1] = ('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="black"/>'):format(
        LEFT + row.low * scale, middle, LEFT + row.high * scale, middle)
    if row.floor then
        local x = LEFT + row.floor * scale
        out[#out + 1] = ('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="black" '
            .. 'stroke-dasharray="3 2"/>'):format(x, y, x, y + ROW)
    end
    out[#out + 1] = ('<text x="%.1f" y="%.1f">%s us</text>'):format(
        LEFT + math.max(row.high, row.floor or 0) * scale + 6, middle + 4,
        microseconds(row.median))
end

-- Pixels a second: the longest bar of a problem takes the width.
local function scale_of(rows, problem)
    local longest = 1e-12
    for _, row in ipairs(rows) do
        if row.problem == problem then
            longest = math.max(longest, row.high, row.floor or 0)
        end
    end
    return (WIDTH - LEFT - RIGHT) / longest
end

--- Writes a plot: a bar a candidate, its quartiles, dashed the floor; each problem has a scale of
-- its own. Returns the report.
function methods:plot(path)
    local bars, y, problem = {}, TOP, nil
    for _, row in ipairs(self.rows) do
        if row.problem ~= problem and row.problem ~= "" then
            bars[#bars + 1] = ('<text x="12" y="%d" font-weight="bold">%s</text>'):format(y + 15,
                escaped(row.problem))
            y = y + ROW
        end
        problem = row.problem
        bar(bars, row, y, scale_of(self.rows, problem),
            row == self:best(problem) and "#3a7d44" or "#9db8cc")
        y = y + ROW
    end
    local head = ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" '
        .. 'font-family="sans-serif" font-size="12">\n'
        .. '<rect width="100%%" height="100%%" fill="white"/>\n'
        .. '<text x="12" y="24" font-size="14">%s, %s, %s</text>\n'
        .. '<text x="12" y="42">median of a launch; line: quartiles; dashed: floor</text>\n')
        :format(WIDTH, y + 20, escaped(self.title), escaped(self.device.info.name),
            self.device.info.target)
    core.write(path, head .. table.concat(bars, "\n") .. "\n</svg>\n")
    return self
end

return report
