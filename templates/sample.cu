//@ -- see schedules/sample.lua
//@ local none = "0xffffffffu"
// f32 -> u32 of the same order; -0 counts as 0.
static FN u32 key_of(f32 x)
{
    const u32 bits = f_bits(x);
    return bits == 0x80000000u ? bits : bits >> 31 ? ~bits : bits | 0x80000000u;
}

static FN f32 value_of(u32 key)
{
    return f_from_bits(key >> 31 ? key & 0x7fffffffu : ~key);
}

// RN(2^((x - top) * log2(e)) * 2^40), 0 far below the top.
static FN u64 weight_of(u32 key, f32 top)
{
    const f32 below = f_max(f_sub(value_of(key), top), ${f32(-1000)});
    const f32 scaled = f_mul(f_exp2(f_mul(below, ${f32(1.4426950408889634)})), ${f32(2.0 ^ 40)});
    return f_lt(scaled, ${f32(2.0 ^ 23)}) ? (u64)f_to_i32_rn(scaled) : f_trunc_u64(scaled);
}

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

static FN u64 word_pair(const u32 *words)
{
    return (u64)words[1] << 32 | words[0];
}

// Sum over the CTA; every thread gets it.
static FN u64 block_sum(u64 value, u64 *partial)
{
    value = warp_sum_u64(value);
    block_sync();
    if (lane_id() == 0)
        partial[warp_id()] = value;
    block_sync();
    u64 sum = 0;
    for (u32 i = 0; i < ${warps}; i++)
        sum += partial[i];
    return sum;
}

static FN u32 block_or(u32 value, u64 *partial)
{
    value = warp_or_u32(value);
    block_sync();
    if (lane_id() == 0)
        partial[warp_id()] = value;
    block_sync();
    u32 all = 0;
    for (u32 i = 0; i < ${warps}; i++)
        all |= (u32)partial[i];
    return all;
}

static FN u32 block_max(u32 value, u64 *partial)
{
    value = warp_max_u32(value);
    block_sync();
    if (lane_id() == 0)
        partial[warp_id()] = value;
    block_sync();
    u32 top = 0;
    for (u32 i = 0; i < ${warps}; i++)
        top = (u32)partial[i] > top ? (u32)partial[i] : top;
    return top;
}

// What of the row takes part: ids whose rank is at most `cut` and whose weight is at least `least`.
struct choice {
    const u32 *keys;
    u32 top_key;
    f32 top;
    u64 cut, least;
};

static FN u64 rank_of(const struct choice *c, u32 id)
{
    return (u64)(c->top_key - c->keys[id]) << ${ID_BITS} | id;
}

// The weight with which an id takes part; 0: not at all.
static FN u64 kept_weight(const struct choice *c, u32 id)
{
    if (rank_of(c, id) > c->cut)
        return 0;
    const u64 weight = weight_of(c->keys[id], c->top);
    return weight >= c->least ? weight : 0;
}

static FN u64 kept_total(const struct choice *c, u64 *partial)
{
    u64 sum = 0;
    for (u32 id = thread_id(); id < ${valid_vocab}; id += ${threads})
        sum += kept_weight(c, id);
    return block_sum(sum, partial);
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

// The smallest place such that what takes part up to it adds up to at least `target` (1 .. total).
// Places: ranks (by_rank) or ids; an id counts as 1 (unit) or as its weight. `bits`: of a place.
static FN u64 find_place(const struct choice *c, u64 target, u32 bits, u32 by_rank, u32 unit,
                         u64 *histogram, u64 *found)
{
    u64 *mine = histogram + lane_id() % ${copies} * ${DIGITS};
    u64 prefix = 0;
    for (u32 shift = bits - 8;; shift -= 8) {
        for (u32 id = thread_id(); id < ${valid_vocab}; id += ${threads}) {
            const u64 place = by_rank ? rank_of(c, id) : id;
            if (place >> shift >> 8 != prefix)
                continue;
            const u64 weight = kept_weight(c, id);
            if (weight > 0)
                atomic_add_u64_void(mine + (place >> shift & ${DIGITS - 1}), unit ? 1 : weight);
        }
        block_sync();
        if (warp_id() == 0)
            find_digit(histogram, target, found);
        block_sync();
        prefix = prefix << 8 | found[0];
        target -= found[1];
        if (shift == 0)
            return prefix;
        if (target == found[2]) // all that begins with these digits
            return ((prefix + 1) << shift) - 1;
    }
}

// A penalised logit (schedules/sample.lua, step 1).
static FN f32 penalise(f32 value, const u32 *settings, u32 count)
{
    const f32 repetition = f_from_bits(settings[6]);
    const f32 flat = f_from_bits(settings[7]), each = f_from_bits(settings[8]);
    value = f_gt(value, ${f32(0)}) ? f_div(value, repetition) : f_mul(value, repetition);
    return count == 0 ? value : f_sub(value, f_fma(f_from_u32(count), each, flat));
}

static FN u32 heated_key(f32 value, f32 temperature)
{
    if (f_gt(temperature, ${f32(0)}))
        value = f_div(value, temperature);
    return key_of(f_min(f_max(value, ${f32(-3e38)}), ${f32(3e38)}));
}

// How often a token stands on the row's path in the round, after its first row. Sets the bits of
// those depths in *seen.
static FN u32 path_count(const u32 *round, u32 path, u32 token, u32 *seen)
{
    u32 count = 0;
    for (u32 depth = 1; depth < 8; depth++) {
        const u32 row = path >> (4 * depth) & 15;
        if (row == 0 || row == 15)
            break;
        if (round[2 + row] == token) {
            *seen |= 1u << depth;
            count++;
        }
    }
    return count;
}

// Penalties of tokens on the path that the list lacks (bit of their depth not in `listed`).
static FN void penalise_path(const f32 *logits, u32 *keys, const u32 *settings, const u32 *round,
                             u32 path, u32 listed)
{
    const u32 depth = 1 + thread_id();
    if (depth > 7)
        return;
    for (u32 d = 1; d <= depth; d++) {
        const u32 row = path >> (4 * d) & 15;
        if (row == 0 || row == 15)
            return; // the path ends above
    }
    const u32 token = round[2 + (path >> (4 * depth) & 15)];
    u32 seen = 0;
    const u32 count = path_count(round, path, token, &seen);
    const u32 first = seen & ((1u << depth) - 1) ? 0 : 1;
    if (first && !(listed >> depth & 1) && token < ${valid_vocab})
        keys[token] = heated_key(penalise(logits[token], settings, count),
                                 f_from_bits(settings[0]));
}

// Fills the row's keys; returns nonzero (in every thread) where a logit is NaN or +infinity.
static FN u32 prepare_keys(const f32 *logits, u32 *keys, const u32 *settings, const u32 *penalties,
                           const u32 *round, u32 path, u64 *partial)
{
    const f32 temperature = f_from_bits(settings[0]);
    u32 broken = 0;
    for (u32 id = thread_id(); id < ${valid_vocab}; id += ${threads}) {
        const f32 value = logits[id];
        broken |= f_is_finite(value) || f_bits(value) == 0xff800000u ? 0 : 1;
        keys[id] = heated_key(value, temperature);
    }
    broken = block_max(broken, partial);
    const u32 entries = settings[10];
    u32 listed = 0;
    for (u32 i = thread_id(); i < entries; i += ${threads}) {
        const u32 *entry = penalties + 2 * (u64)(settings[9] + i);
        if (entry[0] < ${valid_vocab}) {
            const u32 count = entry[1] + path_count(round, path, entry[0], &listed);
            keys[entry[0]] = heated_key(penalise(logits[entry[0]], settings, count), temperature);
        }
    }
    listed = block_or(listed, partial);
    penalise_path(logits, keys, settings, round, path, listed);
    block_sync();
    return broken;
}

// Narrows what takes part by top-k, top-p and min-p, and draws.
static FN u32 draw(struct choice *c, const u32 *settings, u32 position, u64 *histogram, u64 *found,
                   u64 *partial)
{
    for (u32 i = thread_id(); i < ${DIGITS * copies}; i += ${threads})
        histogram[i] = 0;
    if (settings[1] > 0) {
        u64 live = 0;
        for (u32 id = thread_id(); id < ${valid_vocab}; id += ${threads})
            live += kept_weight(c, id) > 0;
        if (block_sum(live, partial) > settings[1])
            c->cut = find_place(c, settings[1], ${ID_BITS + 32}, 1, 1, histogram, found);
    }
    u64 total = kept_total(c, partial);
    const u64 part = word_pair(settings + 2);
    if (part > 0) {
        const u64 target = u64_mul_hi(total, part) + 1;
        c->cut = find_place(c, target, ${ID_BITS + 32}, 1, 0, histogram, found);
    }
    c->least = word_pair(settings + 4);
    total = kept_total(c, partial);
    const u64 random = random_of(position, settings[11], settings[12]);
    return (u32)find_place(c, u64_mul_hi(random, total) + 1, ${ID_BITS}, 0, 0, histogram, found);
}

KERNEL
{
    const u32 rows = round[0];
    u64 *histogram = ${shared.histogram}, *partial = ${shared.partial}, *found = ${shared.found};
    ${jobs.open}
        const u32 *mine = settings + row * ${setting_words};
        u32 *row_keys = keys + (u64)row * ${vocab};
        const f32 *values = logits + (u64)row * ${vocab};
        const u32 broken = prepare_keys(values, row_keys, mine, penalties, round,
                                        round[48 + row], partial);
        u32 top_key = 0, token = ${none};
        for (u32 id = thread_id(); id < ${valid_vocab}; id += ${threads})
            top_key = row_keys[id] > top_key ? row_keys[id] : top_key;
        top_key = block_max(top_key, partial);
        if (broken || bad[row]) {
            token = ${none};
        } else if (f_gt(f_from_bits(mine[0]), ${f32(0)})) {
            struct choice c = {row_keys, top_key, value_of(top_key), ~(u64)0, 1};
            token = draw(&c, mine, round[16 + row], histogram, found, partial);
        } else {
            u32 lowest = 0; // the smallest id, as the largest complement
            for (u32 id = thread_id(); id < ${valid_vocab}; id += ${threads})
                if (row_keys[id] == top_key)
                    lowest = ~id > lowest ? ~id : lowest;
            token = ~block_max(lowest, partial);
        }
        if (thread_id() == 0)
            tokens[row] = token;
    ${jobs.close}
}
