local support = dofile "tests/lua/support.lua"
local template = require "template"

-- Runs templates given as {path = text}; returns the printed text.
local function run(texts, names)
    local environment = setmetatable(names or {}, {__index = _G})
    return template.print(template.run("templates/t.cu", {
        read = function(path) return texts[path] end,
        environment = environment, scope = environment,
        kernel = function(sink, file, line) template.append(sink, file, line,
            "void entry(\n    u32 a)") end,
    }))
end

local function text(body, names)
    return run({["templates/t.cu"] = body}, names)
end

describe("template", function()
    it("fills holes and runs Lua lines", function()
        assert.equal([[
#line 2 "templates/t.cu"
a[0] = 7;
#line 2 "templates/t.cu"
a[1] = 7;
#line 4 "templates/t.cu"
done
]], text("//@ for i = 0, 1 do\na[${i}] = ${n};\n//@ end\ndone\n", {n = 7}))
    end)

    it("takes braces and quotes inside holes", function()
        assert.equal('#line 1 "templates/t.cu"\nx } 3 y\n', text 'x ${"}"} ${#{1, 2, 3}} y')
    end)

    it("indents a hole of several lines and drops empty lines", function()
        assert.equal('#line 1 "templates/t.cu"\n    a\n    b;\nend\n',
            text('    ${"a\\nb"};\n  ${""}\nend'))
    end)

    it("hands KERNEL lines over and counts lines after them", function()
        assert.equal('#line 1 "templates/t.cu"\nvoid entry(\n    u32 a)\n'
            .. '#line 2 "templates/t.cu"\n{\n}\n', text "KERNEL\n{\n}\n")
    end)

    it("includes other templates with their own lines, and functions of theirs", function()
        assert.equal([[
#line 1 "templates/lib.cu"
first
#line 3 "templates/t.cu"
x
#line 3 "templates/lib.cu"
emitted 5
#line 5 "templates/t.cu"
y
]], run {
            ["templates/t.cu"] = '//@ local lib = include "lib"\n//@ -- nothing\nx\n'
                .. "//@ lib.emit(5)\ny\n",
            ["templates/lib.cu"] = "first\n//@ local function emit(n)\nemitted ${n}\n//@ end\n"
                .. "//@ return {emit = emit}\n",
        })
    end)

    it("names file and line of mistakes", function()
        local cases = {
            {"a\n${1 +}", "templates/t.cu:2:"},
            {"a\nb ${", "templates/t.cu:2: a ${ is not closed on its line"},
            {"${}", "templates/t.cu:1: an empty ${}"},
            {"a\n${1.5}", "templates/t.cu:2: a hole gives the float 1.5"},
            {"${nil}", "templates/t.cu:1: a hole gives a nil"},
            {"${true}", "templates/t.cu:1: a hole gives a boolean"},
            {"a\n\n//@ error 'mine'", "templates/t.cu:3: mine"},
            {"//@ for i = 1, 2 do\nx", "templates/t.cu:2:"},
            {"//@ include 'u'", "templates/u.cu: no such template"},
            {"//@ include 't'", "templates/t.cu: the template includes itself"},
        }
        for _, case in ipairs(cases) do
            local sentence = support.failure(text, case[1])
            assert.is_truthy(sentence:find(case[2], 1, true), sentence)
        end
    end)

    it("puts negative numbers in parentheses", function()
        assert.equal('#line 1 "templates/t.cu"\na - (-3)\n', text "a - ${-3}")
    end)
end)
