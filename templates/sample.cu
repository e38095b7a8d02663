//@ -- see schedules/sample.lua
//@ shared_rows, runs = true, true
//@ include("lib_sample")
//@ local none = "0xffffffffu"
// Philox4x32-10 (Salmon et al., 2011) of counter (position, 0, 0, 0): its first two words.
static FN u64 random_of(u32 position, u32 key0, u32 key1)
{
    u32 c0 = position, c1 = 0, c2 = 0, c3 = 0;
    for (u32 round = 0; round < ${ROUNDS}; round++) {
        const u32 high0 = u32_mul_hi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const u32 high1 = u32_mul_hi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return (u64)c1 << 32 | c0;
}

// What of the row takes part: ids begin..end - 1, or the `end` entries of a list of ranks, whose
// rank is at most `cut` and whose weight is at least `least`.
struct choice {
    const u32 *keys;
    const u64 *ranks; // 0: not a list
    u32 begin, end;
    u32 top_key;
    f32 top;
    u64 cut, least;
};

static FN u64 rank_at(const struct choice *c, u32 i)
{
    return c->ranks ? c->ranks[i] : (u64)(c->top_key - c->keys[i]) << ${ID_BITS} | i;
}

// The weight with which a rank takes part; 0: not at all.
static FN u64 kept_weight(const struct choice *c, u64 rank)
{
    if (rank > c->cut)
        return 0;
    const u64 weight = weight_of(c->top_key - (u32)(rank >> ${ID_BITS}), c->top);
    return weight >= c->least ? weight : 0;
}

static FN u64 kept_total(const struct choice *c, u64 *partial)
{
    u64 sum = 0;
    for (u32 i = c->begin + thread_id(); i < c->end; i += ${threads})
        sum += kept_weight(c, rank_at(c, i));
    return block_sum(sum, partial);
}

//@ TOP_K, TOP_P, DRAW = 0, 1, 2
// Places are ranks, and ids for the draw.
static FN u64 place_of(u32 step, u64 rank)
{
    return step == ${DRAW} ? rank & ${(1 << ID_BITS) - 1} : rank;
}

// By warp 0: the digit at which the running sum over the histogram reaches `target`. found: that
// digit, the sum before it, the digit's own sum. Clears the histogram.
static FN void find_digit(u64 *histogram, u64 target, u64 *found)
{
    const u32 lane = lane_id();
    u64 own[${per_lane}], sum = 0;
    for (u32 i = 0; i < ${per_lane}; i++) {
        own[i] = 0;
        for (u32 copy = 0; copy < ${copies}; copy++) {
            u64 *slot = histogram + copy * ${DIGITS} + lane * ${per_lane} + i;
            own[i] += *slot;
            *slot = 0;
        }
        sum += own[i];
    }
    u64 through = sum; // inclusive prefix sum over lanes
    for (u32 step = 1; step < ${WARP}; step *= 2) {
        const u64 other = shuffle_u64(through, lane >= step ? lane - step : lane);
        through += lane >= step ? other : 0;
    }
    u64 before = through - sum;
    if (before < target && target <= through) {
        for (u32 i = 0; i < ${per_lane}; i++) {
            if (before < target && target <= before + own[i]) {
                found[0] = lane * ${per_lane} + i;
                found[1] = before;
                found[2] = own[i];
            }
            before += own[i];
        }
    }
}

// find_place by digits.
static FN u64 find_by_digits(const struct choice *c, u64 target, u32 step, u64 *histogram,
                             u64 *found)
{
    u64 *mine = histogram + lane_id() % ${copies} * ${DIGITS};
    u64 prefix = 0;
    for (u32 shift = step == ${DRAW} ? ${ID_BITS - 8} : ${ID_BITS + 32 - 8};; shift -= 8) {
        for (u32 i = c->begin + thread_id(); i < c->end; i += ${threads}) {
            const u64 rank = rank_at(c, i), place = place_of(step, rank);
            if (place >> shift >> 8 != prefix)
                continue;
            const u64 weight = kept_weight(c, rank);
            if (weight > 0)
                atomic_add_u64_void(mine + (place >> shift & ${DIGITS - 1}),
                                    step == ${TOP_K} ? 1 : weight);
        }
        block_sync();
        if (warp_id() == 0)
            find_digit(histogram, target, found);
        block_sync();
        prefix = prefix << 8 | found[0];
        target -= found[1];
        if (shift == 0)
            return prefix;
        if (step != ${DRAW} && target == found[2]) // a cut behind all that begins with these digits
            return ((prefix + 1) << shift) - 1;
    }
}

// find_place of at most as many as the CTA has threads: each adds up what comes before its own.
static FN u64 find_at_once(const struct choice *c, u64 target, u32 step, u64 *places, u64 *weights,
                           u64 *found)
{
    const u32 count = c->end - c->begin, i = thread_id();
    u64 place = 0, weight = 0, before = 0;
    if (i < count) {
        const u64 rank = rank_at(c, c->begin + i);
        place = place_of(step, rank);
        weight = kept_weight(c, rank);
        weight = step == ${TOP_K} && weight > 0 ? 1 : weight;
    }
    places[i] = place;
    weights[i] = weight;
    block_sync();
    if (weight > 0) {
        for (u32 j = 0; j < count; j++)
            before += places[j] < place ? weights[j] : 0;
        if (before < target && target <= before + weight)
            found[0] = place;
    }
    block_sync();
    return found[0];
}

// The smallest place such that what takes part up to it adds up to at least `target` (1 .. total).
// For top-k an id counts as 1, else as its weight.
static FN u64 find_place(const struct choice *c, u64 target, u32 step)
{
    if (c->end - c->begin <= ${threads})
        return find_at_once(c, target, step, ${shared.places}, ${shared.weights}, ${shared.found});
    return find_by_digits(c, target, step, ${shared.histogram}, ${shared.found});
}

// Narrows what takes part by top-k, top-p and min-p, and draws. counts: the row's bins.
static FN u32 draw_narrowed(struct choice *c, const u32 *settings, u64 random, const u64 *counts)
{
    u64 *partial = ${shared.partial};
    const u64 part = word_pair(settings + 2);
    u64 total = sum_run(counts + ${BINS}, ${BINS}, partial);
    const u32 cuts_k = settings[1] > 0 && sum_run(counts, ${BINS}, partial) > settings[1];
    u32 step = cuts_k ? ${TOP_K} : part > 0 ? ${TOP_P} : ${DRAW};
    for (u32 first = 1;; first = 0) { // one text for all steps
        if (step == ${DRAW})
            c->least = word_pair(settings + 4);
        if (step == ${DRAW} || !first)
            total = kept_total(c, partial);
        const u64 share = step == ${TOP_P} ? part : random;
        const u64 target = step == ${TOP_K} ? settings[1] : u64_mul_hi(total, share) + 1;
        const u64 place = find_place(c, target, step);
        if (step == ${DRAW})
            return (u32)place;
        c->cut = place;
        step = step == ${TOP_K} && part > 0 ? ${TOP_P} : ${DRAW};
    }
}

// Draws of all ids, or of those with min-p: from the piece that the random number leads to.
static FN u32 draw_of_all(struct choice *c, const u32 *settings, u64 random, const u64 *sums)
{
    u64 *partial = ${shared.partial};
    const u64 low = word_pair(settings + 4);
    const u64 target = u64_mul_hi(random, sum_run(sums, ${pieces}, partial)) + 1;
    u64 before;
    const u32 piece = find_run(sums, ${pieces}, target, partial, ${shared.found}, &before);
    c->least = low > 0 ? low : 1;
    c->begin = piece * ${PIECE};
    c->end = c->end < c->begin + ${PIECE} ? c->end : c->begin + ${PIECE};
    return (u32)find_place(c, target - before, ${DRAW});
}

KERNEL
{
    start_next();
    const u32 rows = round[0];
    wait_previous();
    u64 *histogram = ${shared.histogram};
    ${jobs.open}
        const u32 *mine = settings + row * ${setting_words};
        const u32 sticky = bad[row], draw = draws(mine);
        const u64 leader = row_best(best + row * ${pieces}, ${shared.partial});
        u32 token = ~(u32)leader;
        if (leader == ~(u64)0 || sticky) {
            token = ${none};
        } else if (draw) {
            const u32 top_key = (u32)(leader >> 32);
            struct choice c = {keys + (u64)row * ${key_stride}, 0, 0, ${valid_vocab}, top_key,
                               value_of(top_key), ~(u64)0, 1};
            const u64 random = random_of(round[16 + row], mine[11], mine[12]);
            for (u32 i = thread_id(); i < ${DIGITS * copies}; i += ${threads})
                histogram[i] = 0;
            if (!narrows(mine)) {
                token = draw_of_all(&c, mine, random, sums + row * ${pieces});
            } else {
                if (listed[row] > 0) {
                    c.ranks = list + row * ${CANDIDATES};
                    c.end = listed[row];
                }
                token = draw_narrowed(&c, mine, random, bins + row * ${2 * BINS});
            }
        }
        if (thread_id() == 0)
            tokens[row] = token;
    ${jobs.close}
}
