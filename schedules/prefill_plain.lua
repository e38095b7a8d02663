--- prefill_plain: y = W x for unquantised matrices that read the same rows, in f32.
--
-- `parts` (1 or 2) matrices [n, k] of f16, bf16 or f32. Per (row, output) in the fixed order of
-- the decode kernel: lane l of a warp adds elements k = 128 c + 4 l + {0..3}, c ascending, by fma
-- into one accumulator, then warp_sum_f32 joins the lanes. Rows of y are `stride` apart, the
-- parts' outputs side by side: in_proj_a and in_proj_b, as the decode kernel leaves them. Rows
-- past `rows` become zeros.
--
-- A CTA makes tiles of rows x outputs; chunks of 128 k go by through a ring in shared memory:
--
--     shared: stages x [ x tile_rows x 128 f32 | w tile_outputs x 128 of dtype ]
--     warps:  row_warps x output_warps, each `rows_each` rows x `outputs` outputs, a sum a lane
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

local BYTES = { F16 = 2, BF16 = 2, F32 = 4 }

return schedule.define {
    name = "prefill_plain",
    summary = "prefill of unquantised linears: f32 fma in a fixed order",
    mirrors = {},
    problem = {
        k = "u32", n = "u32", parts = "u32", stride = "u32", rows_max = "u32",
        dtype = { "F16", "BF16", "F32" },
    },
    numeric = {},
    tuning = {
        stages = function(p) return p.dtype == "F32" and { 3, 2 } or { 4, 3, 2 } end,
        outputs = { 8, 4 }, rows_each = { 8, 4 },
        row_warps = { 2, 1 },
        output_warps = function(p)
            local most = math.min(6, (p.n + 7) // 8)
            return most > 1 and { most, (most + 1) // 2 } or { 1 }
        end,
        map = { "strided", "contiguous" },
    },
    examples = {
        { k = 256, n = 6, parts = 2, stride = 12, rows_max = 2048, dtype = "F16" },
        { k = 256, n = 100, parts = 1, stride = 100, rows_max = 64, dtype = "F32" },
        { k = 5120, n = 48, parts = 2, stride = 96, rows_max = 4096, dtype = "F16" },
        { k = 5120, n = 5120, parts = 1, stride = 5120, rows_max = 2048, dtype = "BF16" },
        { k = 260, n = 6, parts = 1, stride = 9, rows_max = 64, dtype = "F16" },
    },
    valid = function(p, target)
        if target.name ~= "host" and p.outputs * p.rows_each < 64
            and p.row_warps * p.output_warps > 8 then
            return "many warps with few sums spill: two CTAs of them share an SM's registers"
        end
        if p.k % 4 ~= 0 then return "k must be a multiple of 4, got " .. p.k end
        if p.n < 1 then return "n must be at least 1, got " .. p.n end
        if p.parts < 1 or p.parts > 2 then return "parts must be 1 or 2, got " .. p.parts end
        if p.stride < p.parts * p.n then
            return "stride must be at least parts * n, got " .. p.stride
        end
        return rows.check(p)
    end,
    derive = function(p, target)
        local bytes = BYTES[p.dtype]
        local tile_rows, tile_outputs = p.rows_each * p.row_warps, p.outputs * p.output_warps
        local tiles = (p.rows_max + tile_rows - 1) // tile_rows
        local columns = p.parts * ((p.n + tile_outputs - 1) // tile_outputs)
        local warps = p.row_warps * p.output_warps
        return {
            columns = columns, BLOCK = rows.BLOCK, bytes = bytes,
            chunks = (p.k + rows.BLOCK - 1) // rows.BLOCK,
            tile_rows = tile_rows, tile_outputs = tile_outputs,
            -- elements of a weight that are copied at once: 16 bytes, or 8 where rows allow no more
            piece = p.k * bytes % 16 == 0 and 16 // bytes or 8 // bytes,
            stage_bytes = rows.BLOCK * (tile_rows * 4 + tile_outputs * bytes),
            sums = p.rows_each * p.outputs, threads = 32 * warps,
            ctas = rows.ctas(tiles * columns, 1, target, math.max(1, 12 // warps)),
        }
    end,
    args = {
        { "x", "const f32 *", "[rows, k]" },
        { "weight", "const void *", "[n, k] of dtype" },
        { "weight2", "const void *", "the same of the second part, or 0" },
        { "y", "f32 *", "[rows in bands of 64, stride], first parts * n of each" },
        { "rows", "u32", "active rows" },
    },
    shared = function(p) return { { "ring", "u8", p.stages * p.stage_bytes } } end,
    maps = function(p)
        return {
            tiles = work.map {
                space = {
                    { "tile", rows.padded_tiles(p.rows_max, p.tile_rows) },
                    { "column", p.columns },
                },
                over = "ctas", workers = p.ctas, partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = p.threads } end,
    template = "prefill_plain",
}
