-- attention_combine: span results -> the input of o_proj.
--
-- One job is one half of a head of one row: lane l holds its dims 4l..4l+3. Spans are merged in
-- ascending order with exact powers of two, the sum is divided by l once, rotated back (H32 / sqrt
-- 32, when the cache is quantised) and multiplied by sigmoid(gate).
--
-- Where q, k and v are one group of exact linears and o_proj is one, a job takes its gates from the
-- sums and makes its block of o_proj's activations (templates/lib_linear.cu).
--
-- The maxima and sums of all spans are read at once, a span a lane; scans over the lanes give each
-- span its two scales. The dims come through shared memory, each lane copying those that it merges:
-- `ahead` batches of 8 spans are on their way while one is merged.
local schedule, jobs, linear = require "schedule", require "lib_jobs", require "lib_linear"
local spans, rounding = require "lib_spans", require "lib_rounding"

local HEAD, DIMS = 256, 128 -- of a head, of a job
local LANES, BATCH = 32, 8  -- of a warp; spans that are copied and merged together

return schedule.define {
    name = "attention_combine",
    summary = "merge of attention spans, back-rotation and output gate",
    mirrors = { "attn_stride", "attn_split" },
    problem = {
        q_heads = "u32", kv_heads = "u32", context = "u32",
        codebook = { "none", "mul1", "mcg", "3inst" }, -- of the sums; none: f32 in and out
    },
    numeric = { bits = { 3, 2, 4, 5, 6, 7, 8, 16 }, row_limit = { 8 } },
    tuning = { warps = { 1, 2, 4 }, ahead = { 4, 8, 2 }, map = { "strided", "contiguous" } },
    examples = {
        { q_heads = 6, kv_heads = 1, context = 4096, codebook = "mul1" },
        { q_heads = 24, kv_heads = 4, context = 262144, codebook = "mul1" },
        { q_heads = 6, kv_heads = 1, context = 4096, codebook = "3inst", bits = 16 },
        { q_heads = 6, kv_heads = 1, context = 4096, codebook = "none" },
    },
    valid = function(p)
        if p.context % 256 ~= 0 then
            return "context must be a multiple of 256, got " .. p.context
        end
    end,
    derive = function(p, target)
        return { HEAD = HEAD, DIMS = DIMS, LANES = LANES, BATCH = BATCH,
            NEAR = spans.NEAR, NEAR_SPAN = spans.NEAR_SPAN, PER_OCTAVE = spans.PER_OCTAVE,
            groups = (spans.count(p.context) + LANES - 1) // LANES, -- of spans, one a lane
            columns = 2 * HEAD * (p.q_heads + p.kv_heads), back = linear.back(p.codebook),
            out_blocks = p.codebook ~= "none" and p.q_heads * HEAD // DIMS,
            act_words = linear.act_words(p.q_heads * HEAD),
            ctas = jobs.ctas(p, p.q_heads * p.row_limit * (HEAD // DIMS), target) }
    end,
    args = function(p)
        local part = { "part", "const f32 *", "[spans, 8, q_heads, 256]" }
        local stat = { "stat", "const u32 *", "[spans, 8, q_heads, 2] = m as i32, l as f32 bits" }
        local round = { "round", "const u32 *", "[0] = active rows, [16..23] = positions" }
        if not p.back then
            return {
                part, stat, { "qg", "const f32 *", "[rows, q_heads, query 256 | gate 256]" },
                { "y", "f32 *", "[rows, q_heads, 256]" }, round,
            }
        end
        return {
            part, stat,
            { "qg_sums", "u64 *", "[8, q_heads of query 256 | gate 256 | k | v], gates cleared" },
            { "scales", "const u64 *", "[3 parts, 8, 2] largest exponent, Q" },
            { "svh", "const h16 * const *", "[3] -> [columns of the part]" },
            { "suh", "const h16 * const *", "[1] -> [q_heads * 256] of o_proj" },
            { "act", "u32 *", "[q_heads * 16, 32, 2]" },
            { "exponents", "i32 *", "[8, q_heads * 2]" },
            { "sums", "i32 *", "[8, q_heads * 2]" },
            { "bad", "u32 *", "[8] sticky flags" },
            round,
        }
    end,
    shared = function(p)
        return {
            { "parts", "f32", p.warps * p.ahead * BATCH * DIMS },
            { "merges", "u32", p.warps * p.groups * LANES * 4 },
        }
    end,
    maps = function(p)
        return jobs.maps(p, { { "row", "rows", max = p.row_limit }, { "head", p.q_heads },
            { "half", HEAD // DIMS } }, "row")
    end,
    -- Merging: a fma a span, of the output and of l, the quotient, the rotation back and its
    -- factor. Stock: its output in binary16, which it rotates; its splits, at most 41, are not
    -- counted. The gate: sigmoid and product, in stock each in binary16 (qwen3_5.md 3.4).
    claims = function(p)
        local count = spans.count(p.context)
        local back = p.bits < 16 and rounding.hadamard(32) + 2 or 0
        return {
            spans = spans.claims(p.context, spans.NEAR_SPAN, count),
            roundings = {
                { "merge of spans", over = "sum of abs(p v) / l of a group",
                    ours = { r32 = 2 * count + 1 + back }, stock = { r16 = 1 } },
                { "output gate", over = "its value", ours = { r32 = rounding.SIGMOID + 1 },
                    stock = { r16 = 2 } },
            },
        }
    end,
    launch = jobs.launch,
    template = "attention_combine",
}
