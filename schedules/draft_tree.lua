-- draft_tree: lattice -> token tree -> the descriptor of the verify pass (dflash2.md 6.1, 6.3).
--
-- A node of the lattice is a path: the candidate that was taken at each depth 1..7, 4 bits a depth,
-- the first highest in 28. Its place, path << 3 | depth, orders nodes of equal score. The children
-- of a node at depth d whose candidate is c are lattice row 1 + 16 (d - 1) + c; those of the anchor
-- are row 0.
--
--   chances  lp = ((x - top) - ln(sum of e^(x - top))) + ln q, x = S * (1 / T), top the largest x
--            of the row, the sum a xor butterfly over 8, 4, 2, 1; NaN becomes -infinity. (Where
--            zeros of both signs are the largest the sum is 2 or more: no matter which is top.)
--   chain    from the anchor to the best child by S, the first of equals, and so on
--   tree     best first: the frontier starts with row 0; the node with the largest sum of lp, then
--            the smallest place, is taken, and its 4 best children (lp, then index) come to it
--   rows     the taken nodes by depth, those of one depth in the order in which they were taken
--   steps    of the GDN program: ADVANCE 0, then visit(0). visit(v): leaves below v PEEK (the last
--            one ADVANCEs where no inner row is below v); for each inner row c below v ADVANCE c,
--            visit(c), and unless it is the last RELOAD, REPLAY the path of v
--
-- -infinity is never taken. The tree ends at `most rows` rows and at `most depth`. All of it is one
-- CTA: lattice rows are spread over groups of `lanes` lanes, what follows is one warp's. A step of
-- the butterfly is between lanes, or between candidates of a lane: its sums are the same.
local schedule, work = require "schedule", require "work"

local ROWS = 97  -- of the lattice: 1 + 6 * 16
local TOP = 16
local WARP = 32
local DEPTHS = 7 -- drafted rows of a chain
local NODES = 8  -- rows of a round
local CHILDREN = 4 -- that a taken node brings to the frontier
local HELD_MOST = 32 -- scores, in registers: a CTA of 32 warps has 64 a lane

return schedule.define {
    name = "draft_tree",
    summary = "token tree of a draft's scores, descriptor of the round that verifies it",
    mirrors = {},
    problem = {},
    tuning = {
        warps = function(_, target)
            return target.name == "host" and { 1, 2, 4 } or { 16, 32, 8, 4, 25, 13 }
        end,
        map = { "strided", "contiguous" },
        lanes = { 16, 8, 4, 2, 1 },      -- that share a lattice row
        order = { "apart", "together" }, -- candidates of a lane: every `lanes`th, or neighbours
        batch = { 1, 2, 4 },             -- rows of a lane whose scores are on their way at a time
        ranks = { "late", "early" },     -- of children: when a node is taken, or of all rows before
    },
    examples = { {} },
    valid = function(p)
        if p.lanes == TOP and p.order ~= "apart" or p.lanes == 1 and p.order ~= "together" then
            return ("with %d lanes a row there is one order, not %s"):format(p.lanes, p.order)
        end
        if p.values * p.batch > HELD_MOST then
            return ("a lane holds at most %d scores, not %d"):format(HELD_MOST, p.values * p.batch)
        end
    end,
    derive = function(p)
        local values, rows = TOP // p.lanes, WARP // p.lanes
        return {
            values = values, rows_abreast = rows,
            -- from a lane's candidate to its next, and to the next lane's
            value_step = p.order == "apart" and p.lanes or 1,
            lane_step = p.order == "apart" and 1 or values,
            groups = (ROWS + rows * p.batch - 1) // (rows * p.batch),
            ROWS = ROWS, TOP = TOP, WARP = WARP, DEPTHS = DEPTHS, NODES = NODES,
            CHILDREN = CHILDREN, SLOTS = 2 * WARP,
            -- words of a round, as in core/engine/tree.h
            TOKENS = 2, STEPS = 11, POSITIONS = 16, ANCESTORS = 24, PROGRAM = 32, PATHS = 48,
            PARENTS = 56, DRAFT = 72, WORDS = 80,
            -- operations of the GDN program, likewise
            ADVANCE = 0, PEEK = 1, RELOAD = 2, REPLAY = 3,
        }
    end,
    args = {
        { "scores", "const f32 *", "[97, 16] of draft_lattice" },
        { "ids", "const u32 *", "[7, 16] tokens of the candidates" },
        { "calibration", "const f32 *", "[7, 2] = 1 / T, ln q of each drafted row" },
        { "chances", "f32 *", "[97, 16] log-probabilities" },
        { "round", "u32 *", "[80] in: [1] base, [2] anchor's token, [72] 1 tree 0 chain, "
            .. "[73] most rows, [74] most depth; out: descriptor of the verify pass" },
    },
    shared = function(p)
        local list = {
            { "weight", "f32", p.ROWS * p.TOP },  -- what the search goes by: lp, or S of a chain
            { "token", "u32", p.DEPTHS * p.TOP },
            { "frontier", "u64", p.SLOTS },       -- see enter(); 16 of row 0, 4 of each taken node
            { "taken", "u32", p.NODES },          -- places, in the order of taking
            { "node", "u32", p.NODES },           -- places, by row
            { "out", "u32", p.WORDS },
        }
        if p.ranks == "early" then list[#list + 1] = { "rank", "u8", p.ROWS * p.TOP } end
        return list
    end,
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "group", p.groups } }, over = "cta_warps", workers = p.warps,
                partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p) return { grid = 1, block = WARP * p.warps } end,
    template = "draft_tree",
}
