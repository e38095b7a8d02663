//@ -- see schedules/sample_keys.lua
//@ shared_rows, runs = false, false
//@ include("lib_sample")
// A penalised logit (schedules/sample.lua, step 1).
static FN f32 penalise(f32 value, const u32 *settings, u32 count)
{
    const f32 repetition = f_from_bits(settings[6]);
    const f32 flat = f_from_bits(settings[7]), each = f_from_bits(settings[8]);
    value = f_gt(value, ${f32(0)}) ? f_div(value, repetition) : f_mul(value, repetition);
    return count == 0 ? value : f_sub(value, f_fma(f_from_u32(count), each, flat));
}

static FN u32 clamped_key(f32 value)
{
    return key_of(f_min(f_max(value, ${f32(-3e38)}), ${f32(3e38)}));
}

static FN u32 heated_key(f32 value, f32 temperature)
{
    return clamped_key(f_gt(temperature, ${f32(0)}) ? f_div(value, temperature) : value);
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

// Penalties of tokens on the path that the list lacks (bit of their depth not in `listed`), as far
// as they lie in the piece.
static FN void penalise_path(const f32 *logits, u32 *keys, const u32 *settings, const u32 *round,
                             u32 path, u32 listed, u32 begin)
{
    const u32 depth = 1 + lane_id();
    if (depth > 7)
        return;
    for (u32 d = 1; d <= depth; d++) {
        const u32 row = path >> (4 * d) & 15;
        if (row == 0 || row == 15)
            return; // the path ends above
    }
    const u32 token = round[2 + (path >> (4 * depth) & 15)];
    if (token - begin >= ${PIECE} || token >= ${valid_vocab})
        return;
    u32 seen = 0;
    const u32 count = path_count(round, path, token, &seen);
    const u32 first = seen & ((1u << depth) - 1) ? 0 : 1;
    if (first && !(listed >> depth & 1))
        keys[token] = heated_key(penalise(logits[token], settings, count),
                                 f_from_bits(settings[0]));
}

// Puts the penalties of a piece's ids, from `begin`, into their keys.
static FN void penalise_piece(const f32 *logits, u32 *keys, const u32 *settings,
                              const u32 *penalties, const u32 *round, u32 path, u32 begin)
{
    const u32 entries = settings[10];
    const u32 *list = penalties + 2 * (u64)settings[9];
    u32 listed = 0;
    for (u32 i = lane_id(); i < entries; i += ${WARP}) {
        const u32 token = list[2 * i];
        if (token - begin < ${PIECE} && token < ${valid_vocab}) {
            const u32 count = list[2 * i + 1] + path_count(round, path, token, &listed);
            keys[token] = heated_key(penalise(logits[token], settings, count),
                                     f_from_bits(settings[0]));
        }
    }
    penalise_path(logits, keys, settings, round, path, warp_or_u32(listed), begin);
}

// Repetition 1 and no other penalty: all of them would leave every logit as it is.
static FN u32 has_penalties(const u32 *settings)
{
    return !(f_eq(f_from_bits(settings[6]), ${f32(1)}) & f_eq(f_from_bits(settings[7]), ${f32(0)}) &
             f_eq(f_from_bits(settings[8]), ${f32(0)}));
}

//@ -- `other` from valid_vocab on
//@ local function end_row(other)
    if (first / ${PIECE} == ${pieces - 1}) {
        //@ for q = 0, QUADS - 1 do
        //@ for i = 0, 3 do
        //@ local word, id = "words[" .. 4 * q + i .. "]", "first + " .. q * 4 * WARP + i
        ${word} = ${id} < ${valid_vocab} ? ${word} : ${other};
        //@ end
        //@ end
    }
//@ end
// Logits of the quads of a piece from id `first`, as bits; -infinity from valid_vocab on.
static FN void load_logits(const f32 *logits, u32 first, u32 words[${4 * QUADS}])
{
    //@ for q = 0, QUADS - 1 do
    //@ if vocab % 4 == 0 then
    load4_u32((const u32 *)logits + ${quad_at(q)}, words + ${4 * q});
    //@ else
    //@ for i = 0, 3 do
    {
        const u32 id = first + ${q * 4 * WARP + i};
        words[${4 * q + i}] = f_bits(logits[id < ${valid_vocab} ? id : 0]);
    }
    //@ end
    //@ end
    //@ end
}

//@ local early = map == "strided" -- where the first job lies does not depend on rows
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    const u32 count = ${jobs.count};
    for (u32 i = 0;; i++) {
        ${jobs:at("i", "next_")}
        const u32 row = next_row, piece = next_piece;
        const u32 begin = piece * ${PIECE}, first = begin + lane * 4;
        const u32 *mine = settings + row * ${setting_words};
        const f32 *values = logits + (u64)row * ${vocab};
        u32 *row_keys = keys + (u64)row * ${key_stride};
        u32 words[${4 * QUADS}];
        f32 temperature = ${f32(0)};
        u32 penalised = 0;
        // Loads that do not wait for rows; of a job that is none nothing is used.
        if (${early and "row < " .. rows_max .. "u" or "i < count"}) {
            load_logits(values, first, words);
            temperature = f_from_bits(mine[0]);
            penalised = has_penalties(mine);
        }
        if (i >= count)
            break;
        const u32 draw = f_gt(temperature, ${f32(0)});
        //@ end_row("0xff800000u")
        u32 broken = 0;
        //@ for i = 0, 4 * QUADS - 1 do
        broken |= f_is_finite(f_from_bits(words[${i}])) || words[${i}] == 0xff800000u ? 0 : 1;
        //@ end
        if (draw) {
            //@ for i = 0, 4 * QUADS - 1 do
            words[${i}] = f_bits(f_div(f_from_bits(words[${i}]), temperature));
            //@ end
        }
        //@ for i = 0, 4 * QUADS - 1 do
        words[${i}] = clamped_key(f_from_bits(words[${i}]));
        //@ end
        //@ end_row("0")
        if (draw || penalised) {
            //@ for q = 0, QUADS - 1 do
            if (first + ${q * 4 * WARP} < ${valid_vocab})
                store4_u32(row_keys + first + ${q * 4 * WARP}, words + ${4 * q});
            //@ end
        }
        if (penalised) {
            warp_sync();
            penalise_piece(values, row_keys, mine, penalties, round, round[48 + row], begin);
            warp_sync();
            load_keys(row_keys, first, words);
        }
        if (draw) {
            for (u32 bin = piece * ${WARP} + lane; bin < ${2 * BINS}; bin += ${pieces * WARP})
                bins[row * ${2 * BINS} + bin] = 0;
            if (piece == 0 && lane == 0)
                listed[row] = 0;
        }
        u32 top = words[0], at = first;
        //@ for q = 0, QUADS - 1 do
        //@ for i = 0, 3 do
        if (words[${4 * q + i}] > top) {
            top = words[${4 * q + i}];
            at = first + ${q * 4 * WARP + i};
        }
        //@ end
        //@ end
        const u32 largest = warp_max_u32(top);
        const u32 lowest = warp_max_u32(top == largest ? ~at : 0); // the smallest id's complement
        broken = warp_or_u32(broken);
        if (lane == 0)
            best[row * ${pieces} + piece] = broken ? ~(u64)0 : (u64)largest << 32 | lowest;
    }
}
