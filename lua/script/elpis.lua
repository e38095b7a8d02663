--- elpis.lua - the module "elpis" of `elpis script`: the kernel workshop.
--
-- What a script calls; schedules/SCRIPT.md describes it. The files here are the only ones of lua/
-- that reach files and devices, through the program's functions in "elpis.core".
--
--     definition.lua   a schedule with the files it is made from
--     device.lua       devices, kernels, launches by argument name
--     case.lua         a kernel with inputs and a reference: check, time, sweep, install
--     install.lua      what install demands, writes and certifies
--     report.lua       times as a table, CSV and SVG
--     check.lua        arguments checked by name, and texts that several files need

return {
    schedule = require("elpis.definition").new,
    device = require("elpis.device").open,
    case = require("elpis.case").new,
    time = require("elpis.report").time,
}
