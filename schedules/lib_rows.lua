--- lib_rows.lua - how the prefill kernels number the rows of a piece.
--
-- A piece is `rows` tokens at absolute positions first, first + 1, ...; first is a multiple of 64.
-- Buffers hold whole bands of 64 rows; the rows past `rows` in the last band are exact zeros.
-- A row's result depends on its band at most, never on how many bands a launch has.
--
-- Not here: maps and grids of one kernel only.
local expr = require "expr"

local rows = {}

rows.BAND = 64   -- rows of a band: tile of the attention grid, chunk of the GDN
rows.BLOCK = 128 -- elements of a Hadamard block
rows.VALUES = 16 -- of a lane, where a warp holds a quad: four blocks (templates/lib_quad.cu)
rows.SPLIT = 256 -- words of 16 x 16 factors as two halves: u32 [2 high, low][32 lanes][4]

--- The number of tiles of `tile` rows that cover the active rows, as an expression.
function rows.tiles(rows_max, tile)
    return expr.ceil_div(expr.variable("rows", rows_max), tile)
end

--- The number of rows of all bands, as an expression.
function rows.padded(rows_max)
    return expr.mul(rows.tiles(rows_max, rows.BAND), rows.BAND)
end

--- The number of quads of a row.
function rows.quads(blocks)
    return (blocks + 3) // 4
end

--- The number of tiles of `tile` rows, a divisor of 64, that cover all bands, as an expression.
function rows.padded_tiles(rows_max, tile)
    return expr.mul(rows.tiles(rows_max, rows.BAND), rows.BAND // tile)
end

--- CTAs for `jobs` jobs, jobs_per_cta at a time: enough for all, at most `per_sm` on each SM.
function rows.ctas(jobs, jobs_per_cta, target, per_sm)
    local wanted = (jobs + jobs_per_cta - 1) // jobs_per_cta
    return math.max(1, math.min(wanted, target.sms * per_sm))
end

--- Why rows_max cannot be used, or nil.
function rows.check(p)
    if p.rows_max < 1 or p.rows_max % rows.BAND ~= 0 then
        return "rows_max must be a multiple of " .. rows.BAND .. ", got " .. p.rows_max
    end
end

return rows
