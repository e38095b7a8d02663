-- support.lua - what the specifications of lua/ and schedules/ share.
--
-- Specifications run in the root of the repository: local support = dofile "tests/lua/support.lua".

package.path = "lua/?.lua;" .. package.path

local support = {}

--- The text of a file, or nil.
function support.text(path)
    local file = io.open(path)
    if not file then
        return nil
    end
    local text = file:read("a")
    file:close()
    return text
end

--- A reader that looks into `folders` in turn; templates/prelude gives one line a file, so that
-- texts in tests stay short.
function support.reader(folders)
    return function(path)
        if path:match("^templates/prelude/") then
            return "/* " .. path .. " */\n"
        end
        for _, folder in ipairs(folders) do
            local text = support.text(folder .. path)
            if text then
                return text
            end
        end
        return nil
    end
end

--- The paths of folder/*.lua, sorted.
function support.list(folder)
    local paths = {}
    local pipe = assert(io.popen("ls " .. folder .. "/*.lua"))
    for path in pipe:lines() do
        paths[#paths + 1] = path
    end
    pipe:close()
    return paths
end

support.targets = {
    host = {name = "host", arch = 0, sms = 2, shared_per_sm = 1 << 20, shared_per_block = 1 << 18,
        registers_per_sm = 65536},
    sm_86 = {name = "sm_86", arch = 86, sms = 82, shared_per_sm = 102400, shared_per_block = 101376,
        registers_per_sm = 65536},
    sm_90 = {name = "sm_90", arch = 90, sms = 132, shared_per_sm = 233472,
        shared_per_block = 232448,
        registers_per_sm = 65536},
}

--- An engine over the small schedules of tests/lua/fixtures.
function support.fixture_engine()
    local read = support.reader {"tests/lua/fixtures/", ""}
    return require("engine").new(read, function() return {"schedules/scale_rows.lua"} end)
end

--- The sentence that f(...) raises; fails when it raises none.
function support.failure(f, ...)
    local ok, sentence = pcall(f, ...)
    if ok then
        error("expected an error, got none", 2)
    end
    return tostring(sentence)
end

--- Compiles and runs a C program: `before` at file level, `body` in main. The types of the
-- prelude are there. Returns the printed lines.
function support.run_c(before, body)
    local base = os.tmpname()
    local file = assert(io.open(base .. ".c", "w"))
    file:write("#include <stdio.h>\ntypedef unsigned u32;\ntypedef unsigned long long u64;\n",
        before,
        "int main(void)\n{\n", body, "\nreturn 0;\n}\n")
    file:close()
    assert(os.execute(("cc -w -o %s.out %s.c"):format(base, base)))
    local lines, pipe = {}, assert(io.popen(base .. ".out"))
    for line in pipe:lines() do
        lines[#lines + 1] = line
    end
    pipe:close()
    for _, ending in ipairs {"", ".c", ".out"} do
        os.remove(base .. ending)
    end
    return lines
end

return support
