-- jinja_spec: the Jinja subset by itself, in plain Lua: what the comparison with jinja2
-- (tests/text/test_jinja.c) cannot say because jinja2 is not asked here.

package.path = "lua/?.lua;" .. package.path

local jinja = require "jinja"
local json = require "jinja_json"
local value = require "jinja_value"

local function render(template, context)
  return jinja.compile(template):render_json(context or "{}")
end

--- The sentence of the fault that body raises.
local function fault_of(body)
  local done, raised = pcall(body)
  assert.is_false(done)
  return jinja.describe(raised), raised
end

describe("rendering", function()
  it("uses one compiled template many times", function()
    local template = jinja.compile("{% set x = n + 1 %}{{ x }}")
    assert.equal("3", template:render_json('{"n":2}'))
    assert.equal("8", template:render_json('{"n":7}'))
  end)

  it("passes generation blocks through", function()
    assert.equal("ab", render("{% generation %}a{% endgeneration %}b"))
  end)

  it("takes defaults where the context has nothing", function()
    local template = jinja.compile("{{ a }}{{ b }}", '{"a":1,"b":2}')
    assert.equal("13", template:render_json('{"b":3}'))
  end)

  it("keeps case beyond ASCII to the host", function()
    jinja.set_host({ upper = function(s) return "<" .. s .. ">" end })
    assert.equal("<é>", render("{{ 'é' | upper }}"))
    assert.equal("E", render("{{ 'e' | upper }}"))
    jinja.set_host({})
  end)

  it("gives strftime_now what the host says", function()
    jinja.set_host({ now = function(format) return "[" .. format .. "]" end })
    assert.equal("[%d]", render("{{ strftime_now('%d') }}"))
    jinja.set_host({})
    assert.matches("not available", fault_of(function() render("{{ strftime_now('%d') }}") end))
  end)
end)

describe("faults", function()
  it("name the line", function()
    assert.equal("template line 2: 'x' is undefined",
      fault_of(function() render("a\n{% set y = x.z %}") end))
    assert.matches("^template line 3: unknown or unsupported tag 'block'",
      fault_of(function() jinja.compile("\n\n{% block a %}") end))
  end)

  it("of raise_exception are its text alone", function()
    local text, raised = fault_of(function() render("{{ raise_exception('no') }}") end)
    assert.equal("no", text)
    assert.is_true(raised.raised)
  end)

  it("of limits say so", function()
    local _, raised = fault_of(function() render("{{ 'ab' * 99999999 }}") end)
    assert.is_true(raised.limit)
  end)
end)

describe("JSON", function()
  local function round(text)
    return json.dump(json.parse(text))
  end

  it("keeps order and kinds of numbers", function()
    assert.equal('{"b": 1, "a": 1.0, "c": [true, null]}', round('{"b":1,"a":1.0,"c":[true,null]}'))
    assert.equal("123456789012345678901234567890", round("123456789012345678901234567890"))
    assert.equal("-9223372036854775808", round("-9223372036854775808"))
    assert.equal("1e+16", round("1e16"))
    assert.equal("1e-05", round("0.00001"))
    assert.equal("Infinity", round("1e999"))
    assert.equal("0", round("-0"))
    assert.equal("-0.0", round("-0.0"))
  end)

  it("unescapes and escapes", function()
    assert.equal('"é😀\\n\\u0001/"', round('"\\u00e9\\ud83d\\ude00\\n\\u0001\\/"'))
    assert.equal('"\\u00e9\\ud83d\\ude00"', json.dump("é😀", { ascii = true }))
  end)

  it("refuses what is no JSON", function()
    for _, text in ipairs({
      "", "{", "[1,]", "{\"a\" 1}", "01", "1.", ".5", "+1", "tru", '"\\ud800"', '"\\x"', '"a\nb"',
      '{"a":1,"a":2}', "1 2", "'a'", "nan", ("["):rep(600),
    }) do
      assert.is_false(pcall(json.parse, text), text)
    end
  end)
end)

describe("numbers", function()
  it("print as Python prints them", function()
    for text, x in pairs({
      ["0.1"] = 0.1, ["1e+22"] = 1e22, ["1e-07"] = 1e-7, ["1.5"] = 1.5, ["100000.0"] = 1e5,
      ["1234567890123456.0"] = 1234567890123456.0, ["5e-324"] = 5e-324, ["0.0001"] = 1e-4,
      ["1.7976931348623157e+308"] = 1.7976931348623157e308, ["-2.5"] = -2.5,
    }) do
      assert.equal(text, value.float_text(x))
    end
  end)
end)
