//@ -- Spans of key positions (schedules/lib_spans.lua). In scope: NEAR, NEAR_SPAN, PER_OCTAVE.
//@ local near_spans = NEAR // NEAR_SPAN
//@ local function log2(n)
//@     local bits = 0
//@     while 1 << bits < n do bits = bits + 1 end
//@     return bits
//@ end
//@ local shift = log2(NEAR // PER_OCTAVE)      -- log2 of a span's size in the first octave
static FN u32 span_of(u32 position)
{
    if (position < ${NEAR})
        return position / ${NEAR_SPAN};
    const u32 octave = ${31 - log2(NEAR)} - leading_zeros(position);
    return ${near_spans} + octave * ${PER_OCTAVE} +
           ((position - (${NEAR}u << octave)) >> (${shift} + octave));
}

static FN u32 span_start(u32 span)
{
    if (span < ${near_spans})
        return span * ${NEAR_SPAN};
    const u32 octave = (span - ${near_spans}) / ${PER_OCTAVE};
    return (${NEAR}u << octave) + ((span - ${near_spans}) % ${PER_OCTAVE} << (${shift} + octave));
}

static FN u32 span_size(u32 span)
{
    return span < ${near_spans} ? ${NEAR_SPAN}
                                : ${1 << shift}u << (span - ${near_spans}) / ${PER_OCTAVE};
}

// The last position any active row looks at.
static FN u32 round_last(const u32 *round)
{
    u32 last = 0;
    for (u32 row = 0; row < round[0]; row++)
        last = round[16 + row] > last ? round[16 + row] : last;
    return last;
}
