//@ -- Keys of a round (schedules/lib_ring.lua). In scope: TILE, reach.
// The first position that a row of the round sees; round: [0] = rows, [1] = base.
static FN u32 ring_first(const u32 *round)
{
    return round[1] > ${reach} ? round[1] - ${reach} : 0;
}

// Tiles from the one that holds the first position to the one that holds the last row.
static FN u32 ring_tiles(const u32 *round)
{
    return (round[1] + round[0] - 1) / ${TILE} - ring_first(round) / ${TILE} + 1;
}
