// Spans of key positions (schedules/lib_spans.lua): 64 keys below 2048, else 16 an octave.
static FN u32 span_of(u32 position)
{
    if (position < 2048)
        return position / 64;
    const u32 octave = 20 - leading_zeros(position);
    return 32 + octave * 16 + ((position - (2048u << octave)) >> (7 + octave));
}

static FN u32 span_start(u32 span)
{
    if (span < 32)
        return span * 64;
    const u32 octave = (span - 32) / 16;
    return (2048u << octave) + ((span - 32) % 16 << (7 + octave));
}

static FN u32 span_size(u32 span)
{
    return span < 32 ? 64 : 128u << (span - 32) / 16;
}

// The last position any active row looks at.
static FN u32 round_last(const u32 *round)
{
    u32 last = 0;
    for (u32 row = 0; row < round[0]; row++)
        last = round[16 + row] > last ? round[16 + row] : last;
    return last;
}
