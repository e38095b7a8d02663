--- device.lua - devices, kernels, and launches whose arguments go by name.
--
--     local dev = elpis.device()           as the command line says; or {device=, as=, check=}
--     local dev = elpis.device {arch = "sm_86:82:100K"}     kernels are compiled, nothing runs
--     local x = dev:tensor("f32", {rows, width}, "x"):fill("normal", {seed = 1})
--     local k = dev:kernel {schedule = s, problem = {...}, tuning = {...}}
--     k:launch {x = x, y = y, rows = 8}
--
-- A kernel's tuning is what the call pins and the schedule's default for the rest. Tuning records
-- are for the engine; a script says what it means.

local check = require "elpis.check"
local core = require "elpis.core"
local definition = require "elpis.definition"

local device = {}

local methods = {}
methods.__index = methods

local kernel_methods = {}
kernel_methods.__index = kernel_methods

local owners = setmetatable({}, {__mode = "k"}) -- tensor -> device

local int_ranges = {
    u8 = {0, 255}, i8 = {-128, 127}, u16 = {0, 65535}, i16 = {-32768, 32767},
    u32 = {0, (1 << 32) - 1}, i32 = {-(1 << 31), (1 << 31) - 1},
    u64 = {0, math.maxinteger}, i64 = {math.mininteger, math.maxinteger},
}

--- Opens a device.
function device.open(options)
    options = check.options("elpis.device", options or {}, {device = "string?", as = "string?",
        check = "boolean?", arch = "string?"})
    local handle = core.open {device = options.device, as = options.arch or options.as,
        check = options.check, paper = options.arch ~= nil}
    local info = handle:info()
    local target = {
        name = info.target, arch = info.arch, sms = info.sms, shared_per_sm = info.shared_per_sm,
        shared_per_block = info.shared_per_block, registers_per_sm = info.registers_per_sm,
        check = info.check,
    }
    return setmetatable({handle = handle, info = info, target = target,
        jits = setmetatable({}, {__mode = "k"})}, methods)
end

--- True for what open() returned.
function device.is(value)
    return getmetatable(value) == methods
end

--- A tensor of zeros. name: for messages.
function methods:tensor(type_name, shape, name)
    local tensor = self.handle:tensor(type_name, shape, name)
    owners[tensor] = self
    return tensor
end

--- Bytes a second that a copy moves, its reads and writes counted; measured once.
function methods:bandwidth()
    self.bytes_a_second = self.bytes_a_second or self.handle:bandwidth()
    return self.bytes_a_second
end

--- Waits until all is done.
function methods:sync()
    self.handle:sync()
end

-- The jit over a definition's files.
local function jit_of(self, s)
    if not self.jits[s] then
        local texts = {}
        for path, file in pairs(s.files) do
            texts[path] = file.text
        end
        self.jits[s] = self.handle:jit(texts, s.folder == nil)
    end
    return self.jits[s]
end

-- A kernel that is not compiled yet.
local function request(self, s, problem, tuning)
    local found = s:resolve(self.target, problem, tuning)
    local kernel = setmetatable({device = self, schedule = s, name = s.name, problem = problem,
        tuning = found.tuning, args = found.args, p = found.p,
        limits = s:limits(self.target, problem, found.tuning)}, kernel_methods)
    if self.info.kind == "paper" then
        s:laws(self.target, problem, found.tuning) -- else the jit checks them
        local rendered = s:render(self.target, problem, found.tuning)
        kernel.source, kernel.grid = rendered.source, rendered.grid
        kernel.block, kernel.shared = rendered.block, rendered.shared
        return kernel
    end
    local jit = jit_of(self, s)
    kernel.handle = s:guard(jit.request, jit, s.name, check.merged(problem, found.tuning))
    for name, value in pairs(kernel.handle:info()) do
        kernel[name] = value
    end
    return kernel
end

local function compile_on_paper(self, kernel)
    kernel.resources = kernel.schedule:guard(core.compile, {source = kernel.source,
        name = kernel.name, target = self.target.name, arch = self.target.arch,
        shared_per_sm = self.target.shared_per_sm, block = kernel.block, shared = kernel.shared})
end

-- Compiles what was requested. Of several kernels one that fails is looked for by itself, so that
-- its tuning can be told.
local function build(self, s, problem, tunings)
    local jit = jit_of(self, s)
    self.jits[s] = nil -- a jit with a kernel that does not compile is of no more use
    local ok, reason = pcall(s.guard, s, jit.build, jit)
    if ok then
        self.jits[s] = jit
        return
    end
    for _, tuning in ipairs(#tunings > 1 and tunings or {}) do
        local alone, why = pcall(self.kernels, self, s, problem, {tuning})
        if not alone then
            check.fail("tuned %s: %s", check.text(tuning), why)
        end
    end
    error(reason, 0)
end

--- Kernels of one schedule, compiled side by side: a list for the list of tuning tables.
function methods:kernels(s, problem, tunings)
    local list = {}
    for k, tuning in ipairs(tunings) do
        list[k] = request(self, s, problem, tuning)
    end
    if self.info.kind ~= "paper" then
        build(self, s, problem, tunings)
        return list
    end
    for _, kernel in ipairs(list) do
        compile_on_paper(self, kernel)
    end
    return list
end

--- A compiled kernel with its fields: name, args, problem, tuning, p (all numbers), grid, block,
-- shared, source; resources where the device is only an arch.
function methods:kernel(options)
    check.options("device:kernel", options,
        {schedule = "string|table", problem = "table?", tuning = "table?"})
    local s = definition.new(options.schedule)
    return self:kernels(s, options.problem or {}, {options.tuning or {}})[1]
end

-- ---- arguments

local function fail(kernel, argument, got)
    check.fail("kernel %s: argument %s: expected %s (%s), got %s", kernel.name, argument[1],
        argument[2], argument[3], got)
end

-- Element type of a C type: "f32" of "const f32 *"; a pointer to pointers wants addresses.
local function base_of(type_name)
    if select(2, type_name:gsub("%*", "")) > 1 then
        return "u64"
    end
    return (type_name:gsub("__restrict__", ""):gsub("const", ""):gsub("[%s*]", ""))
end

local function is_tensor(value)
    return type(value) == "userdata" and (getmetatable(value) or {}).__name == "elpis tensor"
end

local function tensor_slot(kernel, argument, value)
    if not is_tensor(value) then
        fail(kernel, argument, value == nil and "nothing" or type(value))
    end
    local base = base_of(argument[2])
    if base ~= "void" and value:type() ~= base then
        fail(kernel, argument, tostring(value))
    end
    if owners[value] ~= kernel.device then
        fail(kernel, argument, tostring(value) .. " of another device")
    end
    return value:address()
end

local function number_slot(kernel, argument, value)
    if argument[2] == "f32" then
        if type(value) ~= "number" then
            fail(kernel, argument, value == nil and "nothing" or tostring(value))
        end
        return (string.unpack("<I4", string.pack("<f", value)))
    end
    local range = int_ranges[argument[2]]
    if not range then
        fail(kernel, argument, "a type that a launch cannot pass")
    end
    if math.type(value) ~= "integer" or value < range[1] or value > range[2] then
        fail(kernel, argument, value == nil and "nothing" or tostring(value))
    end
    local limit = kernel.limits[argument[1]]
    if limit and value > limit then
        fail(kernel, argument, ("%d, above the %d that its maps are made for"):format(value, limit))
    end
    return value
end

--- True for arguments that a kernel writes: pointers to what is not const.
function device.is_output(argument)
    return argument[2]:find("%*") ~= nil and not argument[2]:find("const")
end

--- Checks arguments {name = tensor or number} and binds them: an object with run().
function kernel_methods:bind(arguments)
    if not self.handle then
        check.fail("kernel %s: %s runs nothing; open a device without arch", self.name,
            self.device.info.name)
    end
    if type(arguments) ~= "table" then
        check.fail("kernel %s: expected a table of arguments, got %s", self.name, type(arguments))
    end
    local slots, known = {}, {}
    for k, argument in ipairs(self.args) do
        local value = arguments[argument[1]]
        known[argument[1]] = true
        slots[k] = (argument[2]:find("%*") and tensor_slot or number_slot)(self, argument, value)
    end
    for _, name in ipairs(check.names(arguments)) do
        if not known[name] then
            check.fail("kernel %s: unknown argument %s; expected %s", self.name, name,
                table.concat(check.names(known), ", "))
        end
    end
    return self.handle:bind(slots, check.merged(arguments))
end

--- Launches once and waits.
function kernel_methods:launch(arguments)
    self:bind(arguments):run()
    self.device:sync()
    return self
end

return device
