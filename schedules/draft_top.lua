-- draft_top: the 16 best columns of each group of columns of the draft's logits (dflash2.md 3.6).
--
-- Best is larger value, then smaller column; -0 counts as 0, NaN comes last (templates/lib_top.cu).
-- One job is one group of one drafted row, by one warp, its values in registers:
--
--   1. bar = the 16th largest of the lanes' largest values; so 16 values at least reach it
--   2. values that reach the bar, some 22 of random ones, become keys in the warp's queue
--   3. each 32 keys are sorted and merged with the best 16 so far
--
-- Where the bar is -infinity (NaN, masked columns, a short group) all columns go through the queue.
-- Lists are sorted; their ends are 0 where a group has fewer than 16 columns. draft_select merges
-- them: how many groups there are is a tuning choice, and does not show in the end.
local schedule, work = require "schedule", require "work"

local DRAFTED = 7 -- rows that a pass drafts at most
local WARP = 32
local TOP = 16

return schedule.define {
    name = "draft_top",
    summary = "16 best columns of each group of the draft's logits",
    mirrors = {},
    problem = { vocab = "u32", stride = "u32" },
    tuning = {
        warps = { 4, 2, 8, 1 }, columns = { 1024, 512, 256 }, map = { "strided", "contiguous" },
    },
    examples = {
        { vocab = 4096, stride = 4096 }, { vocab = 997, stride = 1024 },
        { vocab = 248320, stride = 248320 },
    },
    valid = function(p)
        if p.vocab < 1 or p.vocab > p.stride then
            return "vocab must be 1..stride, got " .. p.vocab
        end
    end,
    derive = function(p, target)
        local groups = (p.vocab + p.columns - 1) // p.columns
        local wanted = (DRAFTED * groups + p.warps - 1) // p.warps
        local most = target.sms * 16
        return {
            WARP = WARP, TOP_KEYS = TOP, groups = groups, per_lane = p.columns // WARP,
            ctas = wanted < most and wanted or most,
        }
    end,
    args = {
        { "logits", "const f32 *", "[8, stride]; row 0 is not looked at" },
        { "found", "u64 *", "[7, groups, 16] keys, best first" },
        { "round", "const u32 *", "[0] = rows of the pass, the anchor's included" },
    },
    shared = function(p) return { { "queue", "u64", p.warps * 2 * WARP } } end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "row", "drafted", max = DRAFTED }, { "group", p.groups } },
                over = "warps", workers = p.ctas * p.warps, warps = p.warps,
                partition = p.map, reduction = "none", row = "row",
            },
        }
    end,
    launch = function(p)
        -- 16 warps on an SM leave the registers that a lane's values need
        return { grid = p.ctas, block = WARP * p.warps, min_ctas = 16 // p.warps }
    end,
    exports = function(p) return { groups = p.groups } end,
    template = "draft_top",
}
