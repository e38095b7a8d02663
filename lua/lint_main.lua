-- lint_main.lua - runs lint.lua over the templates named on the command line.
--
-- Usage: lua5.4 lua/lint_main.lua templates/*.cu
-- Prints `path:line: rule: text` for every finding; exit status 1 when there is one, 2 when a
-- file cannot be read. The only file of this folder that reads files: it is a tool of `make lint`
-- and no part of the program.

package.path = (arg[0]:match("^(.*)/") or ".") .. "/?.lua;" .. package.path
local lint = require "lint"

local findings = 0
for _, path in ipairs(arg) do
    local file, reason = io.open(path)
    if not file then
        io.stderr:write(reason, "\n")
        os.exit(2)
    end
    for _, found in ipairs(lint.check(path, file:read("a"))) do
        print(("%s:%d: %s: %s"):format(path, found.line, found.rule, found.text))
        findings = findings + 1
    end
    file:close()
end
os.exit(findings == 0 and 0 or 1)
