-- draft_conv: the draft's dynamic convolution over the rows of a block (dflash2.md 3.5), in place
-- of the attention's and the MLP's plain input and output.
--
-- Of row t, channel c, its group g = c / group and side s (0 before the sublayer, 1 after it):
--
--     y[t, c] = (base[s, 0, c] + d[t, s, 0, g]) * h[t, c]
--             + (base[s, 1, c] + d[t, s, 1, g]) * h[t - 1, c]
--
-- a product and an fma, in that order; row 0 has no second term. Coefficients d are those of row t,
-- both sides' made from the input of the sublayer: number (s * 2 + tap) * groups + g of its row.
-- One job is 128 columns of one row. mode "prepare" is side 0, out = y; mode "finish" is side 1, x
-- += y, with the sums of squares that the next RMSNorm reads and the flags that `residual` has.
local schedule, jobs = require "schedule", require "lib_jobs"

local BLOCK = 128

return schedule.define {
    name = "draft_conv",
    summary = "draft: dynamic convolution of two taps, before or after a sublayer",
    mirrors = {},
    problem = {
        hidden = "u32", stride = "u32", group = "u32", mode = { "prepare", "finish" },
    },
    numeric = { row_limit = { 8 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { hidden = 256, stride = 64, group = 16, mode = "prepare" },
        { hidden = 256, stride = 64, group = 16, mode = "finish" },
        { hidden = 5120, stride = 1280, group = 16, mode = "prepare" },
        { hidden = 5120, stride = 1280, group = 16, mode = "finish" },
    },
    valid = function(p)
        if p.hidden % BLOCK ~= 0 then
            return "hidden must be a multiple of 128, got " .. p.hidden
        end
        if p.group == 0 or p.hidden % p.group ~= 0 then
            return "hidden must be a multiple of group, got " .. p.hidden .. " and " .. p.group
        end
        if p.stride < 4 * (p.hidden // p.group) then
            return "stride must be at least 4 * hidden / group, got " .. p.stride
        end
    end,
    derive = function(p, target)
        local chunks = p.hidden // BLOCK
        return {
            BLOCK = BLOCK, chunks = chunks, groups = p.group > 0 and p.hidden // p.group or 0,
            side = p.mode == "finish" and 1 or 0, ctas = jobs.ctas(p, chunks * p.row_limit, target),
        }
    end,
    args = function(p)
        local finish = p.mode == "finish"
        return {
            { "h", "const f32 *", "[8, hidden]" },
            { "coefficients", "const f32 *", "[8, stride], [2 sides, 2 taps, groups] of it" },
            { "base", "const f32 *", "[2 sides, 2 taps, hidden]" },
            { finish and "x" or "out", "f32 *", "[8, hidden]" },
            { "squares", "f32 *", "[8, hidden/128]; of finish" },
            { "bad", "u32 *", "[8] sticky flags; of finish" },
            { "round", "const u32 *", "[0] = rows" },
        }
    end,
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.row_limit }, { "chunk", p.chunks } }, "row")
    end,
    launch = jobs.launch,
    template = "draft_conv",
}
