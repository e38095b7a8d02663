local support = dofile "tests/lua/support.lua"
local expr = require "expr"

local function random_below(state, n)
    state[1] = (state[1] * 1103515245 + 12345) % (1 << 31)
    return (state[1] >> 8) % n
end

-- A random expression over a and b that is never negative and never divides by zero.
local function random_expression(state, depth)
    local choice = depth == 0 and random_below(state, 3) or random_below(state, 9)
    if choice == 0 then return expr.variable("a", 1000) end
    if choice == 1 then return expr.variable("b", 70000) end
    if choice == 2 then return expr.constant(random_below(state, 300)) end
    local x, y = random_expression(state, depth - 1), random_expression(state, depth - 1)
    if choice == 3 then return expr.add(x, y) end
    if choice == 4 then return x.high * (y.high + 1) < 1 << 50 and x.high < 1 << 40
        and expr.mul(x, y) or x end
    if choice == 5 then return expr.div(x, expr.add(y, 1)) end
    if choice == 6 then return expr.mod(x, expr.add(y, 1)) end
    if choice == 7 then return expr.monus(x, y) end
    return random_below(state, 2) == 0 and expr.min(x, y) or expr.max(x, y)
end

describe("expr", function()
    local n = expr.variable("n", 100)

    it("folds constants and identities", function()
        assert.equal(20, expr.mul(4, 5).value)
        assert.equal(n, expr.mul(n, 1))
        assert.equal(n, expr.add(0, n))
        assert.equal(0, expr.mod(n, 1).value)
        assert.equal("(3 * n)", tostring(expr.div(expr.mul(12, n), 4)))
        assert.equal("((12 * n) // 5)", tostring(expr.div(expr.mul(12, n), 5)))
    end)

    it("keeps what is evaluated inside the bounds", function()
        local state = {42}
        for _ = 1, 300 do
            local e = random_expression(state, 4)
            for _ = 1, 5 do
                local values = {a = random_below(state, 1001), b = random_below(state, 70001)}
                local value = expr.evaluate(e, values)
                assert.is_true(e.low <= value and value <= e.high, tostring(e))
                assert.equal(value, expr.compile(e, {"a", "b"})(values.a, values.b))
            end
        end
    end)

    it("gives the same numbers in C as in Lua", function()
        local state, lines, wanted = {7}, {}, {}
        for k = 1, 200 do
            local e = random_expression(state, 4)
            local values = {a = random_below(state, 1001), b = random_below(state, 70001)}
            lines[k] = ("{ u32 a = %d, b = %d; %s r = %s; printf(\"%%llu\\n\", (u64)r); }")
                :format(values.a, values.b, expr.type(e), expr.emit(e))
            wanted[k] = tostring(expr.evaluate(e, values))
        end
        assert.same(wanted, support.run_c("", table.concat(lines, "\n")))
    end)

    it("computes in 64 bits exactly where 32 do not suffice", function()
        local total, worker = expr.variable("total", 100000), expr.variable("worker", 99999)
        assert.equal("total * worker / 3",
            expr.emit(expr.div(expr.mul(expr.variable("total", 10), worker), 3)))
        assert.equal("(u32)((u64)total * worker / 100000)",
            expr.emit(expr.div(expr.mul(total, worker), 100000)))
        assert.equal("u64", expr.type(expr.mul(total, worker)))
    end)

    it("keeps the parentheses that C needs", function()
        local a, b, c = expr.variable("a", 9), expr.variable("b", 9, 1), expr.variable("c", 9, 1)
        assert.equal("a / (b * c)", expr.emit(expr.div(a, expr.mul(b, c))))
        assert.equal("a / b * c", expr.emit(expr.mul(expr.div(a, b), c)))
        assert.equal("a - (b - c)", expr.emit(expr.sub(a, expr.sub(b, c))))
        assert.equal("(a + b) * c", expr.emit(expr.mul(expr.add(a, b), c)))
        assert.equal("(i + 1) * c", expr.emit(expr.mul(a, c), {a = "i + 1"}))
    end)

    it("reports a negative difference and a missing value", function()
        assert.matches("2 %- 5 is negative",
            support.failure(expr.evaluate, expr.sub(n, 5), {n = 2}))
        assert.matches("no value for n", support.failure(expr.evaluate, n, {}))
        assert.matches("by zero", support.failure(expr.div, n, 0))
    end)

    it("refuses what may leave 63 bits", function()
        local big = expr.variable("big", math.maxinteger)
        assert.matches("may exceed 2%^63", support.failure(expr.mul, big, 2))
        assert.matches("may exceed 2%^63", support.failure(expr.add, big, 1))
    end)

    it("prints Coq terms", function()
        assert.equal("((n * 3) / 7)", expr.coq(expr.div(expr.mul(n, 3), 7)))
        assert.equal("(Z.max 0 (n - 3))", expr.coq(expr.monus(n, 3)))
    end)
end)
