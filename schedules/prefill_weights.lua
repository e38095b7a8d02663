--- prefill_weights: an EXL3 matrix as f16, row-major [k, n], in the code's own basis.
--
-- The values are the codebook's, bit for bit (spec exl3.md 2.5). A warp decodes a row of tiles:
-- 16 k times `tiles` * 16 columns, through shared memory, so that rows are written as whole
-- 16-byte pieces. In a tile lane l holds positions 8l .. 8l+7 (exl3.md 2.4).
local schedule, jobs = require "schedule", require "lib_jobs"
local rows = require "lib_rows"
local trellis = require "lib_trellis"

local TILE = 16

return schedule.define {
    name = "prefill_weights",
    summary = "EXL3 matrix -> f16 [k, n] for the prefill product",
    mirrors = {},
    problem = { k = "u32", n = "u32", bits = "u32", codebook = { "mul1", "mcg", "3inst" } },
    numeric = {},
    tuning = { tiles = { 8, 4 }, warps = { 4, 8, 2 }, map = { "contiguous", "strided" } },
    examples = {
        { k = 256, n = 1280, bits = 4, codebook = "mul1" },
        { k = 256, n = 128, bits = 1, codebook = "mul1" },
        { k = 128, n = 256, bits = 3, codebook = "3inst" },
        { k = 128, n = 256, bits = 5, codebook = "mcg" },
        { k = 5120, n = 34816, bits = 4, codebook = "mul1" },
        { k = 17408, n = 5120, bits = 6, codebook = "mul1" },
    },
    valid = function(p)
        if p.k % 128 ~= 0 then return "k must be a multiple of 128, got " .. p.k end
        if p.n % 128 ~= 0 then return "n must be a multiple of 128, got " .. p.n end
        if p.bits < 1 or p.bits > 8 then return "bits must be 1..8, got " .. p.bits end
    end,
    derive = function(p, target)
        local groups = p.n // (TILE * p.tiles)
        return {
            TILE = TILE, ktiles = p.k // TILE, ntiles = p.n // TILE, groups = groups,
            tile_words = 8 * p.bits, extract = "funnel", PACK = trellis.PACK,
            trellis_words = trellis.words(p.bits), shift_one = trellis.common_shift(p.bits),
            stride = TILE * p.tiles + 8, -- halves of a staged row; the 8 spread rows over banks
            ctas = rows.ctas(p.k // TILE * groups, p.warps, target, 8),
        }
    end,
    args = {
        { "trellis", "const u32 *", "[k/16, n/64, 8*bits, 4]: packs" },
        { "out", "h16 *", "[k, n]" },
    },
    shared = function(p) return { { "stage", "h16", p.warps * TILE * p.stride } } end,
    maps = function(p) return jobs.maps(p, { { "ktile", p.ktiles }, { "group", p.groups } }) end,
    launch = jobs.launch,
    template = "prefill_weights",
}
