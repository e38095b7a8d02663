--- sample: the token of a row: argmax, or the sampler of design.md 4.4. Exact integers throughout.
--
-- A token is a function of the row's logits, its settings, and one 64-bit random number made of
-- (seed, position); no block size, order or device shows in the result. Up to four launches:
--
--   sample_keys     penalties, keys, the best id of each piece of a row; all that greedy rows need
--   sample_weigh    weights by distance from the top, or by piece     if a row draws
--   sample_gather   the ids that top-k or top-p may keep, as a list   if a row has one of them
--   sample          the token: one CTA a row
--
--   1. penalties, for each entry (token, count) of the row's list:
--        repetition  l > 0 ? l / r : l * r              every entry (prompt and generated)
--        l -= count * frequency + presence              entries with count > 0; fma, then sub
--      drafted tokens on the row's path in the round's tree count as generated
--   2. temperature: x = l / T clamped to +-3e38; T = 0: greedy, x = l, the rest does not happen
--      key: x as an order-preserving u32 (-0 counts as 0); rank: key descending, id ascending
--   3. weight w = RN(2^((x - max) * log2(e)) * 2^40), a u64; ids with w = 0 cannot be chosen
--      top-k: the first k ids in rank order
--      top-p: of those, the shortest run in rank order whose weight exceeds
--             floor(P * total / 2^64); P is top_p as a fraction of 2^64
--      min-p: of those, ids with w >= M, M = RN(min_p * 2^40)
--   4. random u: words 0 (low) and 1 of Philox4x32-10, counter (position, 0, 0, 0), key seed
--   5. token: first id, ascending, whose cumulated kept weight exceeds floor(u * total / 2^64)
--
-- A draw looks at the list; without top-k and top-p at the piece where the cumulated weight reaches
-- its target; where the list would not hold all, at the whole row. Cuts by rank or by id are found
-- at once where a CTA has a thread an id, else digit by digit, eight bits a pass: a histogram of
-- weights by digit (`copies` of it spread the atomics), the digit where the sum reaches the target,
-- and on.
-- A rank is (largest key - key) << 24 | id. NaN or +infinity among the logits, or the row's sticky
-- flag, give the token 0xffffffff; -infinity is never chosen unless all are.
--
-- Settings of a row, 16 words: 0 temperature f32, 1 top_k (0 off), 2-3 P (low, high; 0 off),
-- 4-5 M (0 off), 6 repetition f32 (1 off), 7 presence f32, 8 frequency f32, 9 first penalty entry,
-- 10 penalty entries, 11-12 seed (low, high), 13-15 zero. A penalty entry is two words: token,
-- generated count (0: in the prompt only); a token occurs once.
local schedule, work = require "schedule", require "work"
local sample = require "lib_sample"

local DIGITS = 256 -- of a pass: eight bits
local ROUNDS = 10  -- of Philox4x32-10

return schedule.define {
    name = "sample",
    summary = "token of each row: argmax or exact sampler",
    mirrors = {},
    problem = sample.problem,
    tuning = {
        warps = function(p, target)
            return target.name == "host" and { 2, 1, 4, 8 } or { 16, 8, 4, 2, 1 }
        end,
        copies = function(p, target)
            return target.name == "host" and { 1, 2 } or { 4, 1, 2, 8 }
        end,
    },
    examples = sample.examples,
    valid = sample.valid,
    derive = function(p)
        return sample.numbers(p, {
            DIGITS = DIGITS, per_lane = DIGITS // sample.WARP, ROUNDS = ROUNDS,
        })
    end,
    args = {
        sample.args.settings, sample.args.best, sample.args.keys, sample.args.sums,
        sample.args.bins, sample.args.list, sample.args.listed,
        { "bad", "const u32 *", "[rows] sticky flags" },
        { "tokens", "u32 *", "[rows]" },
        sample.args.round,
    },
    shared = function(p)
        return {
            { "histogram", "u64", p.DIGITS * p.copies },
            { "partial", "u64", p.warps }, -- one of each warp
            { "found", "u64", 4 },
            { "places", "u64", p.threads },
            { "weights", "u64", p.threads },
        }
    end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "row", "rows", max = p.rows_max } }, over = "ctas",
                workers = p.rows_max, partition = "strided", reduction = "none", row = "row",
            },
        }
    end,
    launch = function(p)
        return { grid = p.rows_max, block = p.threads, min_ctas = 1 } -- all registers it may have
    end,
    template = "sample",
}
