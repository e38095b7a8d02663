-- prelude_check: a few primitives on given numbers, one warp.
--
-- Run before the first kernel that a compiler made is cached: core/jit/check.c knows the answers.
-- It catches what a wrong option or a broken compiler changes: contraction of a*b+c, flushed
-- denormals, approximate division, tensor-core fragments in another order.
local schedule = require "schedule"

local INPUTS, ANSWERS = 8, 16 -- words a lane; check.c uses the same numbers

return schedule.define {
    name = "prelude_check",
    summary = "known answers of the primitives, asked before a compiled kernel is cached",
    mirrors = {},
    problem = {},
    examples = { {} },
    derive = function() return { INPUTS = INPUTS, ANSWERS = ANSWERS } end,
    args = {
        { "words", "const u32 *", "[32 lanes, 8]" },
        { "answers", "u32 *", "[32 lanes, 16]" },
    },
    launch = function() return { grid = 1, block = 32 } end,
    exports = function() return { inputs = INPUTS, answers = ANSWERS } end,
    template = "prelude_check",
}
