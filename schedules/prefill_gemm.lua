--- prefill_gemm: d[m, n] f32 = a[m, k] f16 x b[k, n] f16, row-major, on tensor cores.
--
-- A CTA makes tiles of tile_m x tile_n; k goes by in steps of tile_k through a ring of `stages`
-- buffers filled by cp.async:
--
--     shared: stages x [ a tile_m x tile_k | b tile_k x tile_n ]   f16, 16-byte pieces swizzled
--     warps:  warps_m x warps_n, each (tile_m / warps_m) x (tile_n / warps_n) in m16n8 fragments
--
-- An element's sum runs over k ascending, 16 at a time, in one accumulator: no split-K, so a row's
-- bits depend on its own operands alone, not on m, its place, or the tile sizes. (What the unit
-- does inside one m16n8k16 is its own; prefill is not promised equal across GPU generations.)
-- With sum_bits = 16, for GPUs whose tensor cores add into fp32 at half rate (sm_86), a slice of
-- 32 k is two such steps from +0 in fp16, and slices are added in fp32, k ascending: the order of
-- elpis.md 2.4.7. The slice is a number of the sum, not of the tiles.
-- Bands of the last tile that lie past the active rows are neither read nor written.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

return schedule.define {
    name = "prefill_gemm",
    summary = "prefill product f16 x f16 -> f32 on tensor cores, fixed k order",
    mirrors = { "hgemm_wide" },
    problem = { k = "u32", n = "u32", rows_max = "u32" },
    numeric = { sum_bits = { 32, 16 } },
    tuning = {
        tile_m = function(p, target)
            return target.name == "host" and { 64, 128 } or { 128, 64 }
        end,
        tile_n = { 128, 64 },
        tile_k = { 32, 64, 16 },
        warps_m = function(p, target) return target.name == "host" and { 1, 2 } or { 2, 1, 4 } end,
        warps_n = function(p, target) return target.name == "host" and { 1, 2 } or { 4, 2, 1 } end,
        stages = function(p, target) return target.name == "host" and { 2, 3 } or { 3, 4, 2 } end,
        map = { "strided", "contiguous" },
    },
    examples = {
        { k = 256, n = 1280, rows_max = 2048 },
        { k = 768, n = 256, rows_max = 2048 },
        { k = 256, n = 768, rows_max = 64 },
        { k = 5120, n = 17408, rows_max = 2048 },
        { k = 17408, n = 5120, rows_max = 2048 },
        { k = 6144, n = 5120, rows_max = 2048 },
        { k = 5120, n = 1024, rows_max = 2048 },
        { k = 5120, n = 17408, rows_max = 2048, sum_bits = 16 },
    },
    valid = function(p, target)
        if p.k % 128 ~= 0 then return "k must be a multiple of 128, got " .. p.k end
        if p.n % 128 ~= 0 then return "n must be a multiple of 128, got " .. p.n end
        if p.tile_m % (16 * p.warps_m) ~= 0 then return "tile_m must split into m16 fragments" end
        if p.tile_n % (16 * p.warps_n) ~= 0 then
            return "tile_n must split into pairs of n8 fragments"
        end
        local sums = p.tile_m * p.tile_n // (32 * p.warps_m * p.warps_n)
        if target.name ~= "host" and sums > 128 then return sums .. " sums a thread do not fit" end
        local block = 32 * p.warps_m * p.warps_n
        if block > 512 then return "at most 16 warps, got " .. block // 32 end
        if p.sum_bits == 16 and p.tile_k % 32 ~= 0 then
            return "tile_k must hold slices of 32, got " .. p.tile_k
        end
        return rows.check(p)
    end,
    derive = function(p, target)
        local a_pieces, b_pieces = p.tile_k // 8, p.tile_n // 8 -- 16-byte pieces of a row
        local stage = p.tile_m * p.tile_k + p.tile_k * p.tile_n
        local tiles = (p.rows_max + p.tile_m - 1) // p.tile_m * (p.n // p.tile_n)
        return {
            BAND = rows.BAND, a_pieces = a_pieces, b_pieces = b_pieces,
            -- rows of a that share the 128 bytes of all banks, and the pieces of such a line
            a_share = math.max(1, 8 // a_pieces), a_mask = math.min(a_pieces, 8) - 1,
            stage_halves = stage, a_halves = p.tile_m * p.tile_k,
            steps = p.k // p.tile_k,
            threads = 32 * p.warps_m * p.warps_n, fragments_m = p.tile_m // p.warps_m // 16,
            fragments_n = p.tile_n // p.warps_n // 8,
            ctas = rows.ctas(tiles, 1, target, target.name == "host" and 1 or 2),
        }
    end,
    args = {
        { "a", "const h16 *", "[rows in bands of 64, k]" },
        { "b", "const h16 *", "[k, n]" },
        { "d", "f32 *", "[rows in bands of 64, n]" },
        { "rows", "u32", "active rows" },
    },
    shared = function(p) return { { "ring", "h16", p.stages * p.stage_halves } } end,
    maps = function(p)
        return {
            tiles = work.map {
                space = {
                    { "column", p.n // p.tile_n }, { "tile", rows.tiles(p.rows_max, p.tile_m) },
                },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = p.threads } end,
    template = "prefill_gemm",
}
