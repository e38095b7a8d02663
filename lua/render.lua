--- render.lua - a resolved schedule -> source text, geometry and exports.
--
-- The source of a kernel is, in this order,
--
--     templates/prelude/host.h or cuda.h     the primitives, by target
--     templates/prelude/math.h               functions built from primitives
--     the schedule's template                device functions, KERNEL, body
--
-- with #line directives throughout. KERNEL becomes the signature for the target:
--
--     host    a static body function, and `void ENTRY(const u64 *slots)` that unpacks one 64-bit
--             slot an argument and calls it
--     cuda    extern "C" __global__ void __launch_bounds__(block[, min CTAs an SM]) ENTRY(...),
--             whose body begins with wait_previous(); unless the template calls it
--
-- A template sees: every parameter and derived number by name, `p`, `target`, the maps by name
-- (work.lua, emitter), `shared` (pointer expressions), `launch`, f32(x), `include`, and the
-- pure part of Lua's library, with `pairs` in sorted order so that text is stable. A global that a
-- template assigns (a function of an included file, say) is seen by the rest of this rendering and
-- by no other. Anything else is an error at the template line that names it.

local schedule = require "schedule"
local template = require "template"
local work = require "work"

local render = {}

--- Bumped when the same schedule may yield other text or other meaning of text.
render.GENERATOR_VERSION = "elpis-generator 1"

--- The binary32 constant nearest to x (ties to even), as the expression that makes it of its bits.
-- Infinities and NaN are written by bits in the template, not by this function.
function render.f32(x)
    if math.type(x) == nil then
        error("f32: expected a number, got " .. tostring(x), 2)
    end
    x = math.type(x) == "integer" and x + 0.0 or x -- -0.0 stays -0.0
    if x ~= x or x == math.huge or x == -math.huge then
        error("f32: expected a finite number, got " .. tostring(x), 2)
    end
    local bits = string.unpack("<I4", string.pack("<f", x))
    if (bits >> 23) & 0xff == 0xff then
        error("f32: " .. x .. " is beyond the largest binary32 number", 2)
    end
    return ("f_from_bits(0x%08xu)"):format(bits)
end

--- pairs() in sorted order of keys (numbers first, then strings).
function render.sorted_pairs(t)
    local keys = {}
    for key in next, t do
        keys[#keys + 1] = key
    end
    table.sort(keys, function(a, b)
        if type(a) == type(b) then
            return a < b
        end
        return type(a) == "number"
    end)
    local k = 0
    return function()
        k = k + 1
        return keys[k], t[keys[k]]
    end
end

--- The part of Lua's library that schedules and templates may use: no files, no clock, no chance.
function render.pure_library()
    local pure_math = {}
    for name, value in pairs(math) do
        if name ~= "random" and name ~= "randomseed" then
            pure_math[name] = value
        end
    end
    return {
        assert = assert, error = error, ipairs = ipairs, pairs = render.sorted_pairs, next = next,
        select = select, tonumber = tonumber, tostring = tostring, type = type, math = pure_math,
        string = string, table = table,
    }
end

local function is_host(target)
    return target.name == "host"
end

-- `const f32 *x, /* [rows, hidden] */` for every argument; the last one closes the list.
local function parameter_lines(args)
    local lines = {}
    for k, argument in ipairs(args) do
        local name, type_name, shape = argument[1], argument[2], argument[3]
        local space = type_name:sub(-1) == "*" and "" or " "
        local comma = k < #args and "," or ")"
        lines[k] = ("    %s%s%s%s /* %s */"):format(type_name, space, name, comma, shape)
    end
    if #args == 0 then
        lines[1] = "    void)"
    end
    return lines
end

-- The value of argument `index` out of its slot.
local function slot_cast(argument, index)
    local type_name = argument[2]:gsub("%s*__restrict__", "")
    if type_name:find("%*") then
        return ("(%s)(uintptr)slots[%d]"):format(type_name, index)
    elseif type_name == "f32" then
        return ("f_from_bits((u32)slots[%d])"):format(index)
    end
    return ("(%s)slots[%d]"):format(type_name, index)
end

local function host_signature(entry, args)
    local lines = {("static void %s_body("):format(entry)}
    local parameters = parameter_lines(args)
    for k, line in ipairs(parameters) do
        lines[#lines + 1] = k < #parameters and line or line:gsub("%)", ");", 1)
    end
    lines[#lines + 1] = ("void %s(const u64 *slots)"):format(entry)
    lines[#lines + 1] = "{"
    local casts = {}
    for k, argument in ipairs(args) do
        casts[k] = slot_cast(argument, k - 1)
    end
    lines[#lines + 1] = ("    %s_body(%s);"):format(entry, table.concat(casts, ",\n        "))
    lines[#lines + 1] = "}"
    lines[#lines + 1] = ("static void %s_body("):format(entry)
    table.move(parameters, 1, #parameters, #lines + 1, lines)
    return lines
end

local function cuda_signature(entry, args, launch)
    local bounds = launch.min_ctas and launch.block .. ", " .. launch.min_ctas or launch.block
    local lines = {('extern "C" __global__ void __launch_bounds__(%s) %s('):format(bounds, entry)}
    local parameters = parameter_lines(args)
    table.move(parameters, 1, #parameters, 2, lines)
    return lines
end

local function signature(entry, found, target)
    if is_host(target) then
        return host_signature(entry, found.args)
    end
    return cuda_signature(entry, found.args, found.launch)
end

-- The workers a launch starts must be the workers a map deals to.
local function check_workers(s, name, map, launch)
    local warps = launch.block // 32
    local started = {
        ctas = launch.grid, warps = launch.grid * warps, threads = launch.grid * launch.block,
        warpgroups = launch.grid * (warps // 4),
        cta_warps = warps, cta_threads = launch.block,
    }
    if map.over == "warpgroups" and warps % 4 ~= 0 then
        error(("schedule %s: map %s: expected a multiple of 4 warps a CTA, got %d"):format(s.name,
            name, warps), 0)
    end
    local unit = {warps = warps, warpgroups = warps // 4, threads = launch.block}
    if map.workers ~= started[map.over] then
        error(("schedule %s: map %s: expected the %d %s that the launch starts, got workers = %d")
            :format(s.name, name, started[map.over], map.over, map.workers), 0)
    end
    if unit[map.over] and map.unit ~= unit[map.over] then
        error(("schedule %s: map %s: expected %d %s a CTA as launched, got %d")
            :format(s.name, name, unit[map.over], map.over, map.unit), 0)
    end
end

local function maps_of(s, found, target)
    local maps = s.maps and s.maps(found.p, target) or {}
    for _, name in ipairs(schedule.sorted_names(maps)) do
        check_workers(s, name, maps[name], found.launch)
    end
    return maps
end

local function shared_expressions(s, layout)
    local expressions = {}
    for name, array in pairs(layout) do
        expressions[name] = ("shared_at(%s, %d)"):format(array.type, array.offset)
    end
    return setmetatable(expressions, {__index = function(_, name)
        error(("schedule %s: no shared array named %s"):format(s.name, tostring(name)), 2)
    end})
end

local function bind(environment, s, name, value)
    if rawget(environment, name) ~= nil then
        error(("schedule %s: %s: expected a name that templates do not have yet, got one in use")
            :format(s.name, name), 0)
    end
    environment[name] = value
end

-- The emitter of a map that notes in `used` that the template asked it for something.
local function watched(map, name, used)
    local emitter = work.emitter(map, name)
    return setmetatable({}, {__index = function(_, field)
        if emitter[field] == nil then
            error(("map %s has no %s"):format(name, tostring(field)), 2)
        end
        used[name] = true
        return emitter[field]
    end})
end

-- Names a template sees. Returns the table and the sealed scope around it; `used` collects the
-- names of the maps that the template reads.
local function scope_of(s, found, maps, target, used)
    local environment = render.pure_library()
    environment.f32, environment.p, environment.target = render.f32, found.p, target
    environment.shared = shared_expressions(s, found.shared)
    environment.launch = found.launch
    for _, name in ipairs(schedule.sorted_names(found.p)) do
        bind(environment, s, name, found.p[name])
    end
    for _, name in ipairs(schedule.sorted_names(maps)) do
        bind(environment, s, name, watched(maps[name], name, used))
    end
    local scope = setmetatable({}, {
        __index = function(_, name)
            local value = environment[name]
            if value == nil then
                error(("no name %s in schedule %s"):format(tostring(name), s.name), 2)
            end
            return value
        end,
        __newindex = function(_, name, value)
            if environment[name] ~= nil then
                error(("%s is assigned a second time"):format(tostring(name)), 2)
            end
            environment[name] = value
        end,
    })
    return environment, scope
end

local function read_prelude(read, path)
    local text = read(path)
    if not text then
        error(path .. ": not found among the embedded files", 0)
    end
    return ('#line 1 "%s"\n%s%s'):format(path, text, text:sub(-1) == "\n" and "" or "\n")
end

-- The maps must drive the text, and a barrier of the grid needs all CTAs resident.
local function check_use(s, maps, used, launch, text)
    for _, name in ipairs(schedule.sorted_names(maps)) do
        if not used[name] then
            error(("schedule %s: map %s: its template never uses it"):format(s.name, name), 0)
        end
    end
    if text:find("grid_sync(", 1, true) and not launch.cooperative then
        error(("schedule %s: launch: grid_sync needs cooperative = true"):format(s.name), 0)
    end
end

local function kernel_text(s, entry, found, maps, options)
    local target = options.target
    local path = "templates/" .. s.template .. ".cu"
    local used, kernels = {}, 0
    local environment, scope = scope_of(s, found, maps, target, used)
    local sink = template.run(path, {
        read = options.read, environment = environment, scope = scope,
        kernel = function(output, file, line)
            kernels = kernels + 1
            local lines = signature(entry, found, target)
            template.append(output, file, line, table.concat(lines, "\n"))
        end,
    })
    if kernels ~= 1 then
        error(("%s: expected one KERNEL line, got %d"):format(path, kernels), 0)
    end
    local text = template.print(sink, options.lines)
    check_use(s, maps, used, found.launch, text)
    -- A launch may begin while the one before it ends; a template that has something to do before
    -- it may look at that one's results says so itself.
    if not is_host(target) and not text:find("wait_previous();", 1, true) then
        text = text:gsub("(__global__.-\n{)\n", "%1 wait_previous();\n", 1)
    end
    return text
end

-- name = value lines, sorted.
local function pairs_text(title, values)
    local lines = {}
    for _, name in ipairs(schedule.sorted_names(values)) do
        lines[#lines + 1] = ("%s %s = %s"):format(title, name, tostring(values[name]))
    end
    return #lines > 0 and table.concat(lines, "\n") .. "\n" or ""
end

local function key_text(s, result, options, schedule_text)
    local problem = {}
    for name in pairs(s.problem) do
        problem[name] = options.parameters[name]
    end
    return table.concat {
        render.GENERATOR_VERSION, "\n",
        ("schedule %s\ntarget %s\nentry %s\n"):format(s.name, options.target.name, result.entry),
        ("grid %d block %d shared %d cooperative %s\n"):format(result.grid, result.block,
            result.shared, tostring(result.cooperative)),
        pairs_text("problem", problem), pairs_text("numeric", result.numeric),
        pairs_text("tuning", result.tuning), "--- schedule\n", schedule_text or "",
        "--- source\n", result.source,
    }
end

local function check_exports(s, exports)
    for name, value in pairs(exports) do
        if math.type(value) ~= "integer" then
            error(("schedule %s: exports.%s: expected an integer, got %s"):format(s.name,
                tostring(name), tostring(value)), 0)
        end
    end
    return exports
end

-- A letter an argument: `w` the kernel writes through it, `l` it is a list of addresses that the
-- kernel writes through, `-` neither.
local function writes_of(args)
    local letters = {}
    for k, argument in ipairs(args) do
        local type_name = argument[2]
        if type_name:match("^const ") or type_name:sub(-1) ~= "*" then
            letters[k] = "-"
        else
            letters[k] = type_name:match("%*%s*const%s*%*$") and "l" or "w"
        end
    end
    return table.concat(letters)
end

--- The maps of a request, by name, without rendering: for laws.lua and coq.lua.
function render.maps(s, options)
    local found = schedule.resolve(s, options)
    return maps_of(s, found, options.target), found
end

--- Renders a request. options: as schedule.resolve, plus read(path) -> text or nil, schedule_text
-- (the schedule's own file, for the key) and lines (false: the template's part without #line
-- directives, for people who read it).
-- Returns {source, name, entry, grid, block, shared, cooperative, overlaps, arguments, writes (see
-- writes_of), exports, shared_gaps, tuning, numeric, key_text}; sizes in bytes. Errors are
-- sentences.
function render.render(s, options)
    local found = schedule.resolve(s, options)
    local target = options.target
    local maps = maps_of(s, found, target)
    local entry = "elpis_" .. s.name
    local prelude = is_host(target) and "templates/prelude/host.h" or "templates/prelude/cuda.h"
    local result = {
        name = s.name, entry = entry, grid = found.launch.grid, block = found.launch.block,
        shared = found.shared_bytes, cooperative = found.launch.cooperative == true,
        overlaps = not is_host(target)
            and (not found.launch.cooperative or found.launch.overlaps == true),
        arguments = #found.args, tuning = found.tuning, numeric = found.numeric,
        shared_gaps = found.shared_gaps, writes = writes_of(found.args),
        exports = check_exports(s, s.exports and s.exports(found.p, target) or {}),
    }
    result.source = read_prelude(options.read, prelude)
        .. read_prelude(options.read, "templates/prelude/math.h")
        .. kernel_text(s, entry, found, maps, options)
    result.key_text = key_text(s, result, options, options.schedule_text)
    return result
end

return render
