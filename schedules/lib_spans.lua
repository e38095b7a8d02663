-- lib_spans: the split of key positions into spans, a fixed function of absolute position
-- (design.md 4.2). Below 2048 a span is 64 keys; above, each octave [2^j, 2^(j+1)) is cut into 16.
-- The C text in templates/lib_spans.cu computes the same; tests compare both.
local M = { NEAR = 2048, NEAR_SPAN = 64, PER_OCTAVE = 16 }

--- Span of a key position.
function M.index(position)
    if position < M.NEAR then return position // M.NEAR_SPAN end
    local octave = 0
    while position >= M.NEAR << (octave + 1) do octave = octave + 1 end
    local size = (M.NEAR << octave) // M.PER_OCTAVE
    return M.NEAR // M.NEAR_SPAN + octave * M.PER_OCTAVE + (position - (M.NEAR << octave)) // size
end

--- First position and size of a span.
function M.range(span)
    local near = M.NEAR // M.NEAR_SPAN
    if span < near then return span * M.NEAR_SPAN, M.NEAR_SPAN end
    local octave, part = (span - near) // M.PER_OCTAVE, (span - near) % M.PER_OCTAVE
    local size = (M.NEAR << octave) // M.PER_OCTAVE
    return (M.NEAR << octave) + part * size, size
end

--- How many spans a context of that many positions can touch.
function M.count(context)
    return M.index(context - 1) + 1
end

--- What the proofs speak of: these numbers, a tile that no span's end cuts, and how many spans a
--- context has.
function M.claims(context, tile, count)
    return { near = M.NEAR, near_span = M.NEAR_SPAN, per_octave = M.PER_OCTAVE, tile = tile,
        context = context, count = count }
end

return M
