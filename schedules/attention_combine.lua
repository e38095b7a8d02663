-- attention_combine: span results -> the input of o_proj.
--
-- One job is one half of a head of one row: lane l holds its dims 4l..4l+3. Spans are merged in
-- ascending order with exact powers of two, the sum is divided by l once, rotated back (H32 / sqrt
-- 32, when the cache is quantised) and multiplied by sigmoid(gate).
--
-- Maxima and sums are read for 32 spans at once, one a lane; a scan over the lanes gives each span
-- its two scales. A span's dims are on their way while `ahead` spans before it are merged.
local schedule, jobs = require "schedule", require "lib_jobs"
local spans = require "lib_spans"

local HEAD, DIMS = 256, 128 -- of a head, of a job

return schedule.define {
    name = "attention_combine",
    summary = "merge of attention spans, back-rotation and output gate",
    mirrors = { "attn_stride", "attn_split" },
    problem = { q_heads = "u32", context = "u32" },
    numeric = { bits = { 3, 2, 4, 5, 6, 7, 8, 16 }, row_limit = { 8 } },
    tuning = { warps = { 2, 1, 4 }, ahead = { 8, 16, 4 }, map = { "strided", "contiguous" } },
    examples = {
        { q_heads = 6, context = 4096 }, { q_heads = 24, context = 262144 },
        { q_heads = 6, context = 4096, bits = 16 },
    },
    valid = function(p)
        if p.context % 256 ~= 0 then
            return "context must be a multiple of 256, got " .. p.context
        end
    end,
    derive = function(p, target)
        return { HEAD = HEAD, DIMS = DIMS, NEAR = spans.NEAR, NEAR_SPAN = spans.NEAR_SPAN,
            PER_OCTAVE = spans.PER_OCTAVE,
            spans_max = spans.count(p.context),
            ctas = jobs.ctas(p, p.q_heads * p.row_limit * (HEAD // DIMS), target) }
    end,
    args = {
        { "part", "const f32 *", "[spans, 8, q_heads, 256]" },
        { "stat", "const u32 *", "[spans, 8, q_heads, 2] = m as i32, l as f32 bits" },
        { "qg", "const f32 *", "[rows, q_heads, query 256 | gate 256]" },
        { "y", "f32 *", "[rows, q_heads, 256]" },
        { "round", "const u32 *", "[0] = active rows, [16..23] = positions" },
    },
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.row_limit }, { "head", p.q_heads },
            { "half", HEAD // DIMS } }, "row")
    end,
    launch = jobs.launch,
    template = "attention_combine",
}
