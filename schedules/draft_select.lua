-- draft_select: the groups' best columns -> the candidates of each drafted row (dflash2.md 3.6).
--
-- The 16 best of a row are merged from the groups' lists (draft_top), best first. Their columns
-- become token ids: the column itself, or id_map[column] where the head is a reduced one. Their
-- values become v * multiplier, then cap * tanh(v / cap) where the cap is not 0. -infinity stays.
--
-- A slot without a candidate has value -infinity and id 0xffffffff: slots from top_k on, NaN, fewer
-- columns than slots, rows that the pass does not have.
--
-- One CTA does a row: half warps merge lists of 16 sorted keys each, then each other's.
local schedule, work = require "schedule", require "work"

local DRAFTED = 7 -- rows that a pass drafts at most
local WARP = 32
local TOP = 16

return schedule.define {
    name = "draft_select",
    summary = "candidates of each drafted row from the groups' best columns",
    mirrors = {},
    problem = {
        groups = "u32", multiplier = "u32", softcap = "u32", top_k = "u32", vocab = "u32",
    },
    tuning = {
        warps = function(p, target)
            return target.name == "host" and { 1, 2, 4 } or { 16, 8, 32, 4 }
        end,
    },
    examples = {
        { groups = 4, multiplier = 0x3f800000, softcap = 0, top_k = 16, vocab = 4096 },
        { groups = 1, multiplier = 0x3e48d2ab, softcap = 0x41a00000, top_k = 4, vocab = 997 },
        { groups = 243, multiplier = 0x3f800000, softcap = 0, top_k = 16, vocab = 248320 },
    },
    valid = function(p)
        if p.groups < 1 then return "groups must be at least 1, got " .. p.groups end
        if p.top_k < 1 or p.top_k > TOP then return "top_k must be 1..16, got " .. p.top_k end
    end,
    derive = function(p)
        return { TOP_KEYS = TOP, HALVES = 2 * p.warps }
    end,
    args = {
        { "found", "const u64 *", "[7, groups, 16] keys of draft_top, best first" },
        { "id_map", "const u32 *", "[vocab] token id of each column; 0 = the column" },
        { "values", "f32 *", "[7, 16] best first" },
        { "ids", "u32 *", "[7, 16]" },
        { "round", "const u32 *", "[0] = rows of the pass, the anchor's included" },
    },
    shared = function(p) return { { "lists", "u64", p.warps * TOP } } end,
    maps = function()
        return {
            jobs = work.map {
                space = { { "row", DRAFTED } }, over = "ctas", workers = DRAFTED,
                partition = "strided", reduction = "none", row = "row",
            },
        }
    end,
    launch = function(p) return { grid = DRAFTED, block = WARP * p.warps } end,
    template = "draft_select",
}
