dofile "tests/lua/support.lua"
local lint = require "lint"

-- The findings of a text as "line rule text".
local function findings(text)
    local list = {}
    for _, found in ipairs(lint.check("t.cu", text)) do
        list[#list + 1] = ("%d %s %s"):format(found.line, found.rule, found.text)
    end
    return list
end

local clean = [[
// a comment may say blockIdx.x * 128 + 1.5f, and "so" may a string
/* float a = b * c;
   asm("x") */
static FN f32 helper(f32 a, const f32 *from, u32 rows)
{
    u32 mask = 0xffffu, at = rows * 32 + (rows >> 16) % 16;
    f32 sum[4];
    u32 word[${tile}];
    for (u32 i = lane_id(); i < rows; i += 32)
        sum[i % 4] = f_fma(a, from[at + i], sum[i % 4]);
    for (u32 step = 16; step > 0; step >>= 1)
        at += step;
    from += rows; at = at * ${tile} / 8;
    u64 big = (u64)at << 32 | mask & 65535;
    return f_mul(a, *from);
}
]]

describe("lint", function()
    it("finds nothing in clean text", function()
        assert.same({}, findings(clean))
    end)

    it("finds a raw a*b+c on f32 names", function()
        assert.same({"3 float-operator a", "3 float-operator b", "3 float-operator c"},
            findings "f32 a; f32 b;\nf32 c;\nresult = a*b+c;\n")
        assert.same({"2 float-operator sum"}, findings "f32 sum = zero;\nsum += term;\n")
    end)

    it("finds operators on elements of f32 arrays, not on the pointers", function()
        assert.same({"2 float-operator x"},
            findings "void f(const f32 *x)\ny = x[i + 1] * k;\nx = x + 4;\n")
        assert.same({"2 float-operator x"}, findings "f32 x[4];\ny = k - x[1];\nz = f_neg(x[0]);\n")
    end)

    it("finds reaching into an f32", function()
        assert.same({"1 float-member .v"}, findings "y = x.v;\n")
    end)

    it("finds C's own number types and literals", function()
        assert.same({"1 float-type float"}, findings "float x;\n")
        assert.same({"1 float-literal 1.5"}, findings "x = 1.5;\n")
        assert.same({"1 float-literal 2.f"}, findings "x = 2.f;\n")
        assert.same({"1 float-literal 1e3"}, findings "x = 1e3;\n")
    end)

    it("finds device words and the division of work", function()
        assert.same({"1 device-word blockIdx"}, findings "u32 b = blockIdx.x;\n")
        assert.same({"1 device-word __syncthreads"}, findings "__syncthreads();\n")
        assert.same({"1 device-word asm"}, findings "asm(\"x\");\n")
        assert.same({"1 work-division cta_id"}, findings "u32 b = cta_id();\n")
    end)

    it("finds bits of the device's own, but not in the kernels of prompts", function()
        local text = "p = f_exp2_approx(x);\n"
        assert.same({"1 own-bits f_exp2_approx"}, findings(text))
        assert.same({}, lint.check("templates/prefill_attention.cu", text))
    end)

    it("finds libm, but not variables of such names", function()
        assert.same({"1 libm sqrtf"}, findings "y = sqrtf(x);\n")
        assert.same({}, findings "u32 round = 1; next(round);\n")
    end)

    it("finds literal tile sizes", function()
        assert.same({"1 tile-size [64]"}, findings "u32 tile[64];\n")
        assert.same({"1 tile-size 128 in a for header"}, findings "for (u32 k = 0; k < 128; k++)\n")
        assert.same({"1 tile-size 16 in a for header"},
            findings "for (u32 k = 0; k < n; k += 16)\n")
        assert.same({"1 tile-size * 128"}, findings "at = chunk * 128 + lane;\n")
        assert.same({"1 tile-size / 256"}, findings "page = at / 256;\n")
    end)
end)
