-- embed: token ids -> rows of the residual stream, with the partial sums of squares that the first
-- RMSNorm reads. The table lies in page-locked host memory; one job is 128 columns of one row.
-- scale, the bits of an f32, multiplies every value: a draft's input_embedding_scale.
local schedule, jobs = require "schedule", require "lib_jobs"

local BLOCK = 128
local ONE = 0x3f800000

return schedule.define {
    name = "embed",
    summary = "embedding rows of the active tokens into the residual stream",
    mirrors = {},
    problem = { hidden = "u32", rows_max = "u32", dtype = { "BF16", "F16", "F32" } },
    numeric = { scale = { ONE, type = "u32" } },
    tuning = { warps = { 4, 1, 2, 8 }, map = { "strided", "contiguous" } },
    examples = {
        { hidden = 256, rows_max = 8, dtype = "BF16" },
        { hidden = 5120, rows_max = 4096, dtype = "F16" },
        { hidden = 256, rows_max = 8, dtype = "F32" },
        { hidden = 256, rows_max = 8, dtype = "BF16", scale = 0x40000000 },
    },
    valid = function(p)
        if p.hidden % BLOCK ~= 0 then
            return "hidden must be a multiple of 128, got " .. p.hidden
        end
    end,
    derive = function(p, target)
        local chunks = p.hidden // BLOCK
        return {
            BLOCK = BLOCK, ONE = ONE, chunks = chunks,
            ctas = jobs.ctas(p, chunks * p.rows_max, target),
            ctype = p.dtype == "BF16" and "u16" or p.dtype == "F16" and "h16" or "f32",
            convert = p.dtype == "BF16" and "f_from_bf16" or p.dtype == "F16" and "f_from_h" or "",
        }
    end,
    args = {
        { "table", "const void *", "[vocab, hidden] of dtype" },
        { "tokens", "const u32 *", "[rows]" },
        { "x", "f32 *", "[rows, hidden]" },
        { "squares", "f32 *", "[rows, hidden/128]" },
        { "round", "const u32 *", "[0] = active rows" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.rows_max }, { "chunk", p.chunks } }, "row")
    end,
    launch = jobs.launch,
    template = "embed",
}
