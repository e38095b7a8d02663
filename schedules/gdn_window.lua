-- gdn_window: the convolution windows of all GDN layers after a commit.
--
-- A verify leaves the windows alone; the commit's descriptor (core/engine/tree.h) names the rows
-- whose inputs follow. The new window is the last three of: old window, inputs of these rows. One
-- job is 128 channels of one layer.
local schedule, jobs = require "schedule", require "lib_jobs"

local BLOCK = 128

return schedule.define {
    name = "gdn_window",
    summary = "GDN convolution windows moved over the committed rows, all layers",
    mirrors = { "gdn_rounds", "gdn_tree" },
    problem = { channels = "u32", layers = "u32" },
    numeric = { row_limit = { 8 }, history = { 3 } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = { { channels = 1280, layers = 6 }, { channels = 10240, layers = 48 } },
    valid = function(p)
        if p.channels == 0 or p.channels % BLOCK ~= 0 then
            return "channels must be a multiple of 128, got " .. p.channels
        end
        if p.layers < 1 then return "layers must be at least 1, got " .. p.layers end
    end,
    derive = function(p, target)
        local chunks = p.channels // BLOCK
        return { BLOCK = BLOCK, chunks = chunks, sources = 64,
            ctas = jobs.ctas(p, p.layers * chunks, target) }
    end,
    args = {
        { "u", "const f32 *", "[layers, 8, channels] inputs of the round's rows" },
        { "window", "f32 *", "[layers, 3, channels] the last inputs, oldest first; moved on" },
        { "round", "const u32 *", "[0] = committed rows, [64..71] = their rows in the round" },
    },
    maps = function(p) return jobs.maps(p, { { "layer", p.layers }, { "chunk", p.chunks } }) end,
    launch = jobs.launch,
    template = "gdn_window",
}
