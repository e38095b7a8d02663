--- lib_sample: what the kernels of the sampler share (sample.lua says what they do together).
--
-- A row's ids are cut into pieces of 1,024, each read by one warp at once. What a piece leaves (its
-- best id, a sum of weights) is a maximum or an integer sum, so neither pieces nor the warps and
-- CTAs that do them show in a token.
local work = require "work"

local sample = {}

sample.WARP = 32
sample.PIECE = 1024      -- ids of a piece: eight quads a lane
sample.BINS = 1024       -- of a histogram of weights by distance from the top
sample.BINS_OF_ONE = 32  -- a distance of 1; no id that can be chosen is further than 29 away
sample.CANDIDATES = 2048 -- ids that a row's list holds
sample.SETTING_WORDS = 16

sample.problem = { vocab = "u32", valid_vocab = "u32", rows_max = "u32" }

sample.examples = {
    { vocab = 4096, valid_vocab = 4096, rows_max = 8 },
    { vocab = 1001, valid_vocab = 997, rows_max = 1 },
    { vocab = 248320, valid_vocab = 248077, rows_max = 8 },
}

function sample.valid(p)
    if p.valid_vocab < 1 or p.valid_vocab > p.vocab then
        return "valid_vocab must be 1..vocab, got " .. p.valid_vocab
    end
    if p.vocab >= 1 << 22 then
        return "vocab must be below 4194304 (sums of weights), got " .. p.vocab
    end
    if p.rows_max < 1 then return "rows_max must be at least 1, got " .. p.rows_max end
end

--- Numbers that every kernel of the sampler has, `more` added.
function sample.numbers(p, more)
    local numbers = {
        threads = sample.WARP * p.warps, WARP = sample.WARP, PIECE = sample.PIECE,
        QUADS = sample.PIECE // (4 * sample.WARP), BINS = sample.BINS,
        BINS_OF_ONE = sample.BINS_OF_ONE, CANDIDATES = sample.CANDIDATES, ID_BITS = 24,
        setting_words = sample.SETTING_WORDS, key_stride = (p.vocab + 3) // 4 * 4,
        pieces = (p.valid_vocab + sample.PIECE - 1) // sample.PIECE,
    }
    for name, value in pairs(more or {}) do numbers[name] = value end
    return numbers
end

--- Tuning and launch of a kernel whose CTAs take a slice of a row's pieces each, and its map.
sample.sliced = {
    warps = function(p, target)
        return target.name == "host" and { 2, 1, 4 } or { 8, 4, 16 }
    end,
    slices = function(p, target)
        return target.name == "host" and { 2, 1, 3 } or { 32, 16, 8, 64 }
    end,
}

function sample.launch_slices(p)
    return { grid = p.rows_max * p.slices, block = p.threads, min_ctas = 1 }
end

function sample.slices(p)
    return {
        jobs = work.map {
            space = { { "row", "rows", max = p.rows_max }, { "slice", p.slices } }, over = "ctas",
            workers = p.rows_max * p.slices, partition = "strided", reduction = "none",
            row = "row",
        },
    }
end

-- Arguments, by name.
sample.args = {
    logits = { "logits", "const f32 *", "[rows, vocab]" },
    settings = { "settings", "const u32 *", "[rows, 16], see sample.lua" },
    best = { "best", "const u64 *", "[rows_max, pieces] key << 32 | ~id; ~0: not a number" },
    keys = { "keys", "const u32 *", "[rows_max, vocab to a multiple of 4]" },
    sums = { "sums", "const u64 *", "[rows_max, pieces] kept weight" },
    bins = { "bins", "const u64 *", "[rows_max, 2, bins] ids and their weight, by distance" },
    list = { "list", "const u64 *", "[rows_max, candidates] ranks, in any order" },
    listed = { "listed", "const u32 *", "[rows_max] entries of list" },
    round = { "round", "const u32 *",
        "[0] = rows, [2..9] = tokens, [16..23] = positions, [48..55] = paths" },
}

--- An argument that this kernel writes.
function sample.written(name)
    local argument = sample.args[name]
    return { argument[1], (argument[2]:gsub("const ", "")), argument[3] }
end

return sample
