-- Settings of luacheck for the whole tree: Lua 5.4, no globals of our own.
std = "lua54"
max_line_length = 100
codes = true
unused_args = false -- schedules take (p, target) whether they need both or not
files["tests/**/*_spec.lua"] = {std = "+busted"}
