//@ -- see schedules/prefill_attention.lua
//@ include("lib_vector")
//@ local per_block = fragments * key_fragments * 4      -- sums of a warp's lane in a block of O
//@ local scale = head_dim ^ -0.5 * 1.4426950408889634   -- scores in base 2
//@ local coded, double, skewed = kv_bits < 16, tiles > 1, tiles == 4
//@ local ring = 64 -- halves of the 8 pieces that the swizzle turns among themselves
//@ local value_steps = key_fragments // 2 * blocks     -- of P V
//@ local bytes = score_bits == 8                       -- Q K^T of signed bytes
//@ local key_row = key_pieces * 8                      -- a row of queries or keys, in halves
//@ local magic = 0x4b400000 -- 1.5 * 2^23: + n, |n| < 2^22, its word as an integer is magic + n
// Where 16-byte piece `piece` of a row of values lies, swizzled for ldmatrix.
static FN u32 place(u32 row, u32 piece)
{
    return (row * ${pieces} + (piece ^ (row & 7))) * 8;
}

//@ local place_key = "place"
//@ if bytes then
//@ place_key = "place_key"
// The same for a row of queries or keys, in halves too.
static FN u32 place_key(u32 row, u32 piece)
{
    return (row * ${key_pieces} + (piece ^ (row & 7))) * 8;
}

static FN u32 larger(u32 a, u32 b)
{
    return a > b ? a : b;
}

// The low bytes of four words.
static FN u32 pack_bytes(f32 a, f32 b, f32 c, f32 d)
{
    return byte_permute(byte_permute(f_bits(a), f_bits(b), 0x0040),
                        byte_permute(f_bits(c), f_bits(d), 0x0040), 0x5410);
}

// Of a row of a query head, held by ${pieces} lanes that follow each other, this one's eight
// halves -> bytes, those of even dims, then those of odd ones. Returns the row's unit: a score
// times it is in base 2.
static FN f32 quantise_query(const u32 words[4], u32 packed[2])
{
    f32 steps[8];
    u32 top = 0; // bits of a half's magnitude
    #pragma unroll
    for (u32 i = 0; i < 4; i++)
        top = larger(top, larger(words[i] & 0x7fff, words[i] >> 16 & 0x7fff));
    #pragma unroll
    for (u32 mask = 1; mask < ${pieces}; mask *= 2)
        top = larger(top, shuffle_xor_u32(top, mask));
    // A row of zeros has any unit. With an infinity or a NaN there are no bytes, and no score is a
    // number.
    const f32 most = f_from_h(h_from_bits((u16)(top ? top : 0x3c00)));
    const f32 inverse = f_div(${f32(127)}, most);
    #pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 half = words[i / 2] >> i % 2 * 16 & (top < 0x7c00 ? 0xffff : 0);
        steps[i] = f_fma(f_from_h(h_from_bits((u16)half)), inverse, f_from_bits(${magic}u));
    }
    packed[0] = pack_bytes(steps[0], steps[2], steps[4], steps[6]);
    packed[1] = pack_bytes(steps[1], steps[3], steps[5], steps[7]);
    return f_mul(most, ${f32(scale / (127 * KEY_STEPS * 2.0 ^ kv_bits))});
}
//@ end

// The first slot of a key tile.
static FN u64 slots_of(const u32 *pages, u32 index)
{
    const u32 start = index * ${KEYS};
    return (u64)pages[start / ${PAGE}] * ${PAGE} + start % ${PAGE};
}

// Keys of a tile that lie before position `end`.
static FN u32 keys_before(u32 end, u32 index)
{
    return end > index * ${KEYS} ? end - index * ${KEYS} : 0;
}

//@ local source_types = double and "const u32 *staged" or
//@     "const u32 *codes, const h16 *scales, u64 slots"
//@ local source = double and "staged" or "codes, scales, slots"
//@ if coded then
//@ local row_words = groups * kv_bits + 4 -- a key's codes, then 16 bytes that hold its scales
//@ if double then
//@ local row_pieces, team = row_words // 4, math.max(threads // KEYS, 1)
// Starts the copy of a tile's codes and scales into shared memory, as they are: ${team} threads a
// key, a piece of 16 bytes each.
static FN void fetch_codes(u32 *staged, const u32 *codes, const h16 *scales, u64 slots, u32 head)
{
    #pragma unroll
    for (u32 key = thread_id() / ${team}; key < ${KEYS}; key += ${threads // team}) {
        const u64 at = ((slots + key) * ${kv_heads} + head) * ${groups};
        const u32 *row = codes + at * ${kv_bits};
        u32 *to = staged + key * ${row_words};
        #pragma unroll
        for (u32 i = 0; i < ${row_pieces}; i += ${team}) {
            const u32 piece = i + thread_id() % ${team};
            if (piece < ${row_pieces - 1})
                copy_async16(to + piece * 4, row + piece * 4);
            else if (piece == ${row_pieces - 1})
                copy_async16(to + piece * 4, scales + at / 8 * 8);
        }
    }
}
//@ end

//@ if kv_bits ~= 3 then
// A code of a group, out of its bit planes (spec exl3.md 5.3).
static FN u32 code_at(const u32 *words, u32 at)
{
    u32 code = 0;
    //@ local word, rest = 0, kv_bits
    //@ for _, width in ipairs { 8, 4, 2, 1 } do
    //@ if kv_bits & width ~= 0 then
    //@ rest = rest - width
    const u32 plane${width} = words[${word} + at * ${width} / 32] >> at * ${width} % 32;
    code |= (plane${width} & ${(1 << width) - 1}) << ${rest};
    //@ word = word + width
    //@ end
    //@ end
    return code;
}
//@ else
// Of 16 bits, one of each code: nibble i has those of codes 2i, 2i + 1.
static FN u32 spread_bits(u32 word, u32 half)
{
    u32 low = byte_permute(word >> 16 * half, 0, 0x4140);
    low = (low | low << 4) & 0x0f0f0f0fu;
    return (low | low << 2) & 0x33333333u;
}
//@ end

// 16 codes of a group (half: 0 or 1) -> halves (spec exl3.md 5.3, 5.4).
static FN void unpack_codes(const u32 *words, h16 scale, u32 half, u32 packed[8])
{
    //@ if kv_bits == 3 then
    // With a code c in bits 1..3 of 128 = 0x5800, or 5..7 of 8 = 0x4800, and a one below it, a half
    // is 128 (8) + (2c + 1) / 8; without 129 (9) it is (2c - 7) / 8. All of it is exact, and the
    // product rounds as RN16((2c - 7) * (scale / 8)) does.
    const u32 unit = (u32)h_bits(scale) * 0x10001u, high = words[half];
    const u32 low = spread_bits(words[2], half);
    const u32 even = (high << 2 & 0xccccccccu) | (low << 1 & 0x33333333u);
    const u32 odd = (high & 0xccccccccu) | (low & 0x33333333u);
    #pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 four = byte_permute(even, odd, 0x4400 + 0x1111 * i);
        const u32 first = h2_add((four & 0x000e000eu) | 0x58015801u, 0xd808d808u);
        const u32 second = h2_add((four & 0x00e000e0u) | 0x48104810u, 0xc880c880u);
        packed[2 * i] = h2_mul(first, unit);
        packed[2 * i + 1] = h2_mul(second, unit);
    }
    //@ else
    const f32 unit = f_mul(f_from_h(scale), ${f32(2.0 ^ -kv_bits)});
    #pragma unroll
    for (u32 pair = 0; pair < 8; pair++) {
        f32 values[2];
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 code = code_at(words, half * 16 + pair * 2 + i);
            values[i] = f_mul(f_from_i32((i32)(2 * code) - ${(1 << kv_bits) - 1}), unit);
        }
        packed[pair] = h2_from_f(values[0], values[1]);
    }
    //@ end
}

//@ -- Where the codes and the scales of `key` lie: words, row.
//@ local function find_row()
    //@ if double then
    const u32 *words = staged + key * ${row_words};
    const h16 *row = (const h16 *)(words + ${groups * kv_bits}) +
                     (key * ${kv_heads} + head) * ${groups} % 8;
    //@ else
    const u64 at = ((slots + key) * ${kv_heads} + head) * ${groups};
    const u32 *words = codes + at * ${kv_bits};
    const h16 *row = scales + at;
    //@ end
//@ end
// A warp's unit of a tile: 8 keys by 4 halves of groups, 16 codes a lane. Keys from `live` on
// become zeros. Eight lanes that store together have eight keys: no two use the same banks.
static FN void unpack_unit(h16 *tile, ${source_types}, u32 head,
                           u32 live, u32 unit, u32 lane)
{
    const u32 key = unit % ${KEYS // 8} * 8 + lane % 8, half = lane / 8 % 2;
    const u32 quad = unit / ${KEYS // 8}, group = quad * 2 + lane / 16;
    //@ find_row()
    const h16 scale = key < live ? row[group] : h_from_bits(0);
    u32 packed[8];
    unpack_codes(words + group * ${kv_bits}, scale, half, packed);
    const u32 to = place(key, lane / 8 * 2), on = quad * ${ring}; // the next piece lies at to ^ 8
    store4_u32((u32 *)(tile + to + on), packed);
    store4_u32((u32 *)(tile + (to ^ 8) + on), packed + 4);
}

//@ if bytes then
// The codes of a group -> bytes, [2 halves][even codes, then odd ones]; unit: KEY_STEPS times the
// group's scale over the key's largest. A byte is the integer nearest to (2c - (2^bits - 1)) unit.
static FN void unpack_bytes(const u32 *words, f32 unit, u32 packed[8])
{
    //@ if kv_bits == 3 then
    // The bytes of all codes: 4 to 7, then 0 to 3, which are those of 7 to 4 with the other sign.
    // As they are at most 127, 128 - byte borrows nothing.
    f32 step[4];
    #pragma unroll
    for (u32 i = 0; i < 4; i++)
        step[i] = f_fma(unit, f_from_i32((i32)(2 * i + 1)), f_from_bits(${magic}u));
    const u32 upper = pack_bytes(step[0], step[1], step[2], step[3]);
    const u32 lower = (0x80808080u - byte_permute(upper, 0, 0x0123)) ^ 0x80808080u;
    #pragma unroll
    for (u32 half = 0; half < 2; half++) {
        // Nibbles are codes 2i, 2i + 1: what a permute of these bytes takes.
        const u32 high = words[half], low = spread_bits(words[2], half);
        const u32 even = (high << 1 & 0x66666666u) | (low & 0x11111111u);
        const u32 odd = (high >> 1 & 0x66666666u) | (low >> 1 & 0x11111111u);
        packed[4 * half] = byte_permute(lower, upper, even & 0xffff);
        packed[4 * half + 1] = byte_permute(lower, upper, even >> 16);
        packed[4 * half + 2] = byte_permute(lower, upper, odd & 0xffff);
        packed[4 * half + 3] = byte_permute(lower, upper, odd >> 16);
    }
    //@ else
    #pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 at = i / 4 * 16 + i % 2 * 8 + i / 2 % 2; // the first of four, two apart
        f32 step[4];
        #pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const i32 odd = (i32)(2 * code_at(words, at + 2 * j)) - ${(1 << kv_bits) - 1};
            step[j] = f_fma(unit, f_from_i32(odd), f_from_bits(${magic}u));
        }
        packed[i] = pack_bytes(step[0], step[1], step[2], step[3]);
    }
    //@ end
}

// The largest scale of a key, as the bits of a half: scales are magnitudes.
static FN u32 largest_scale(const h16 *row)
{
    u32 words[${groups // 2}], high = 0, low = 0;
    load${groups // 2}_u32((const u32 *)row, words);
    #pragma unroll
    for (u32 i = 0; i < ${groups // 2}; i++) {
        high = larger(high, words[i]);
        low = larger(low, words[i] << 16);
    }
    return larger(high, low) >> 16;
}

// KEY_STEPS / a, for the bits of a half above 0: Newton from a guess made of the bits, whose error
// of 12 % becomes 1.5 %, 2^-12, 2^-23.
static FN f32 steps_over(u32 scale)
{
    const f32 a = f_neg(f_from_h(h_from_bits((u16)scale)));
    f32 inverse = f_from_bits(0x7ef311c3u - (f_bits(a) & 0x7fffffffu));
    #pragma unroll
    for (u32 i = 0; i < 3; i++)
        inverse = f_fma(inverse, f_fma(a, inverse, ${f32(1)}), inverse);
    return f_mul(inverse, ${f32(KEY_STEPS)});
}

// A warp's unit of a tile of bytes: 8 keys by 4 groups, a group a lane. Beside its bytes a key has
// a pair: its largest scale, and minus 1.5 * 2^23 of it, which is exact. Keys from `live` on become
// zeros, and so do their scales.
static FN void unpack_keys(h16 *tile, f32 *scales_to, ${source_types}, u32 head,
                           u32 live, u32 unit, u32 lane)
{
    const u32 key = unit % ${KEYS // 8} * 8 + lane % 8;
    const u32 group = unit / ${KEYS // 8} * 4 + lane / 8;
    //@ find_row()
    const u32 most = key < live ? largest_scale(row) : 0;
    // Behind an infinity or a NaN no score is a number, whatever the bytes.
    const f32 product = f_mul(f_from_h(row[group]), steps_over(most));
    const f32 unit_of_group = f_select(most - 1 < 0x7bff, product, ${f32(0)});
    u32 packed[8];
    unpack_bytes(words + group * ${kv_bits}, unit_of_group, packed);
    store4_u32((u32 *)(tile + place_key(key, 2 * group)), packed);
    store4_u32((u32 *)(tile + place_key(key, 2 * group + 1)), packed + 4);
    if (group == 0) {
        const f32 scale = f_from_h(h_from_bits((u16)most));
        const u32 pair[2] = {f_bits(scale), f_bits(f_mul(scale, f_from_bits(${magic | 1 << 31}u)))};
        store2_u32((u32 *)scales_to + 2 * key, pair);
    }
}
//@ end

// Units of this warp that belong to step `step` of `steps` (all of them: 0 of 1).
//@ if bytes then
// keys: 1, or 0 for values, which stay halves.
//@ end
//@ local side_types = bytes and "f32 *scales_to, u32 keys, " or ""
static FN void unpack_step(h16 *tile, ${side_types}${source_types}, u32 head,
                           u32 live, u32 step, u32 steps, u32 lane)
{
    //@ if bytes then
    if (keys) {
        #pragma unroll
        for (u32 i = step * ${key_units} / steps; i < (step + 1) * ${key_units} / steps; i++)
            unpack_keys(tile, scales_to, ${source}, head, live, i * ${warps} + warp_id(), lane);
        return;
    }
    //@ end
    #pragma unroll
    for (u32 i = step * ${units} / steps; i < (step + 1) * ${units} / steps; i++)
        unpack_unit(tile, ${source}, head, live, i * ${warps} + warp_id(), lane);
}
//@ else
// Starts the copy of a tile of halves; keys from `live` on are zeros.
static FN void fetch_halves(h16 *tile, const u32 *halves, u64 slots, u32 head, u32 live)
{
    const u32 zeros[4] = {0, 0, 0, 0};
    for (u32 i = thread_id(); i < ${KEYS * pieces}; i += ${threads}) {
        const u32 key = i / ${pieces}, piece = i % ${pieces};
        const u64 at = ((slots + key) * ${kv_heads} + head) * ${pieces} + piece;
        h16 *to = tile + place(key, piece);
        if (key < live)
            copy_async16(to, halves + at * 4);
        else
            store4_u32((u32 *)to, zeros);
    }
}
//@ end

// Fragments of step `step` of Q K^T. `left`, `right`: places of this lane's rows at step 0. Pieces
// 2 step lie at an xor of the place within 8 pieces, and on.
static FN void load_keys(u32 *a, u32 *b, const h16 *queries, const h16 *tile, u32 left, u32 right,
                         u32 step)
{
    const u32 turn = step % 4 * 16, on = step / 4 * ${ring};
    #pragma unroll
    for (u32 i = 0; i < ${fragments}; i++)
        load_matrix_x4(a + 4 * i, queries + (left ^ turn) + (on + i * ${16 * key_row}));
    #pragma unroll
    for (u32 j = 0; j < ${key_fragments // 2}; j++)
        load_matrix_x4(b + 4 * j, tile + (right ^ turn) + (on + j * ${16 * key_row}));
}

//@ -- What the two products do between their steps: unpack the tile that comes next.
//@ local beside = coded and double
//@ local to_types = bytes and ", f32 *next_scales, u32 next_keys" or ""
//@ local next_types = beside and ", h16 *next" .. to_types ..
//@     ", const u32 *staged, u32 head, u32 live" or ""
//@ local live = ", kv_head, keys_before(end, index%s)"
//@ local to_keys = bytes and ", key_scales, 1" or ""
//@ local to_values = bytes and ", key_scales, 0" or ""
//@ local to_either = bytes and ", next_scales, odd" or ""
//@ local next_either = coded and ", next" .. to_either ..
//@     ", codes, kv_head, keys_before(end, coming)" or ""
//@ local own_scales = bytes and ", key_scales + own / 2 % 2 * " .. 2 * KEYS or ""
//@ local key_scales, row_units = bytes and ", key_scales" or "", bytes and ", units" or ""
//@ local next_values = beside and ", value_tile" .. to_values .. ", value_codes" ..
//@     live:format("") or ""
//@ local next_keys = beside and ", key_tile" .. to_keys .. ", key_codes" ..
//@     live:format(" + 1") or ""
//@ local to = bytes and ", next_scales, next_keys" or ""
//@ local next_step = "unpack_step(next" .. to .. ", staged, head, live, step, %d, lane);"
//@ if bytes then
// Exact sums -> scores. Sums begin with the word of 1.5 * 2^23: then the word of a sum n is that
// of 1.5 * 2^23 + n, and one fma rounds n * scale once.
static FN void scale_scores(f32 scores[${per_block}], const u32 *sums, const f32 *scales, u32 lane)
{
    #pragma unroll
    for (u32 j = 0; j < ${key_fragments}; j++) {
        u32 pairs[4]; // of the lane's two keys
        load4_u32((const u32 *)scales + (j * 8 + lane % 4 * 2) * 2, pairs);
        #pragma unroll
        for (u32 i = 0; i < ${4 * fragments}; i++) {
            const u32 at = (i / 4 * ${key_fragments} + j) * 4 + i % 4, key = i % 2 * 2;
            scores[at] = f_fma(f_from_bits(sums[at]), f_from_bits(pairs[key]),
                               f_from_bits(pairs[key + 1]));
        }
    }
}

//@ end
//@ local product = bytes and "mma_s8s8_ab" or "mma_f16_ab"
//@ local sums, scales_type = "scores", ""
//@ if bytes then
//@     sums, scales_type = "sums", "const f32 *scales, "
//@ end
// scores = Q K^T of the warp's rows: f32 fragments [fragments][key_fragments][4]. The fragments of
// a step are loaded before the products of the step before it.
//@ if bytes then
// Of bytes: sums of products, times the key's largest scale; the row's unit is left to the softmax.
//@ end
static FN void multiply_keys(f32 scores[${per_block}], const h16 *queries, const h16 *tile,
                             ${scales_type}u32 warp_row, u32 lane${next_types})
{
    const u32 left = ${place_key}(warp_row + lane % 16, lane / 16);
    const u32 right = ${place_key}(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    u32 a[2][${4 * fragments}], b[2][${2 * key_fragments}];
    //@ if bytes then
    i32 sums[${per_block}];
    //@ end
    #pragma unroll
    for (u32 i = 0; i < ${per_block}; i++)
        ${sums}[i] = ${bytes and magic or f32(0)};
    load_keys(a[0], b[0], queries, tile, left, right, 0);
    #pragma unroll
    for (u32 step = 0; step < ${key_steps}; step++) {
        if (step + 1 < ${key_steps})
            load_keys(a[(step + 1) % 2], b[(step + 1) % 2], queries, tile, left, right, step + 1);
        ${product}(${fragments}, ${key_fragments}, ${sums}, a[step % 2], b[step % 2]);
        //@ if beside then
        ${next_step:format(key_steps)}
        //@ end
    }
    //@ if bytes then
    scale_scores(scores, (const u32 *)sums, scales, lane);
    //@ end
}

// On the diagonal: keys behind `query` (both counted in the tile) get no weight.
static FN void hide_keys(f32 *scores, u32 half, u32 query, u32 lane)
{
    #pragma unroll
    for (u32 j = 0; j < ${key_fragments}; j++) {
        #pragma unroll
        for (u32 e = 0; e < 2; e++) {
            const u32 key = j * 8 + lane % 4 * 2 + e;
            f32 *score = scores + j * 4 + half * 2 + e;
            *score = key > query ? f_from_bits(0xff800000u) : *score;
        }
    }
}

// Scores of one row of a fragment (half: 0 or 1) -> probabilities, in place. Returns the factor of
// the old sums, exactly 1 where the maximum stays.
//@ local factor_type = bytes and ", f32 unit" or ""
//@ local unit = bytes and "unit" or f32(scale)
static FN f32 soften_row(f32 *scores, u32 half, f32 *maximum, f32 *sum${factor_type})
{
    f32 top = *maximum;
    #pragma unroll
    for (u32 j = 0; j < ${key_fragments}; j++) {
        #pragma unroll
        for (u32 e = 0; e < 2; e++)
            top = f_maximum(top, scores[j * 4 + half * 2 + e]);
    }
    top = f_maximum(top, shuffle_xor_f32(top, 1));
    top = f_maximum(top, shuffle_xor_f32(top, 2));
    const f32 low = f_neg(f_mul(top, ${unit}));
    f32 added = ${f32(0)};
    #pragma unroll
    for (u32 j = 0; j < ${key_fragments}; j++) {
        #pragma unroll
        for (u32 e = 0; e < 2; e++) {
            f32 *score = scores + j * 4 + half * 2 + e;
            *score = f_exp2_approx(f_fma(*score, ${unit}, low));
            added = f_add(added, *score);
        }
    }
    added = f_add(added, shuffle_xor_f32(added, 1));
    added = f_add(added, shuffle_xor_f32(added, 2));
    const f32 factor = f_exp2_approx(f_mul(f_sub(*maximum, top), ${unit}));
    *maximum = top;
    *sum = f_fma(*sum, factor, added);
    return factor;
}

// A tile's softmax: scores -> probabilities; the old sums follow where a maximum has moved.
//@ local units_type = bytes and ", const f32 *units" or ""
static FN void soften(f32 *scores, f32 *sums, f32 *maximum, f32 *sum, u32 diagonal, u32 warp_row,
                      u32 lane${units_type})
{
    f32 factor[${2 * fragments}];
    u32 moved = 0;
    if (diagonal) {
        #pragma unroll
        for (u32 i = 0; i < ${2 * fragments}; i++)
            hide_keys(scores + i / 2 * ${key_fragments * 4}, i % 2,
                      warp_row + i / 2 * 16 + i % 2 * 8 + lane / 4, lane);
    }
    #pragma unroll
    for (u32 i = 0; i < ${2 * fragments}; i++) {
        //@ local row_unit = bytes and ", units[i / 2 * 16 + i % 2 * 8]" or ""
        factor[i] = soften_row(scores + i / 2 * ${key_fragments * 4}, i % 2, maximum + i,
                               sum + i${row_unit});
        moved |= f_eq(factor[i], ${f32(1)}) ^ 1;
    }
    if (warp_ballot(moved)) {
        #pragma unroll
        for (u32 i = 0; i < ${2 * fragments}; i++) {
            #pragma unroll
            for (u32 j = 0; j < ${blocks * 8}; j++) {
                const u32 fragment = i / 2 * ${key_fragments} + j % 8;
                f32 *pair = sums + j / 8 * ${per_block} + fragment * 4 + i % 2 * 2;
                pair[0] = f_mul(pair[0], factor[i]);
                pair[1] = f_mul(pair[1], factor[i]);
            }
        }
    }
}

// Fragments of 16 values by 64 columns; `right`: the place of this lane's row at step 0.
static FN void load_values(u32 *b, const h16 *tile, u32 right, u32 step)
{
    const u32 on = step / ${blocks} * ${16 * head_dim} + step % ${blocks} * ${ring};
    #pragma unroll
    for (u32 j = 0; j < ${key_fragments // 2}; j++)
        load_matrix_x4_trans(b + 4 * j, tile + (right ^ j * 16) + on);
}

// Probabilities in the layout of scores -> halves, A fragments [key_fragments / 2][fragments][4].
static FN void pack_scores(u32 *packed, const f32 *scores)
{
    #pragma unroll
    for (u32 i = 0; i < ${per_block // 2}; i++) {
        const u32 k = i / ${4 * fragments}, fragment = i / 4 % ${fragments};
        const f32 *pair = scores + (fragment * ${key_fragments} + k * 2) * 4 + i % 4 * 2;
        packed[i] = h2_from_f(pair[0], pair[1]);
    }
}

// sums += P V; sums: f32 [blocks][fragments][8][4].
static FN void multiply_values(f32 *sums, const u32 *packed, const h16 *tile,
                               u32 lane${next_types})
{
    const u32 right = place(lane % 16, lane / 16);
    u32 b[2][${2 * key_fragments}];
    load_values(b[0], tile, right, 0);
    #pragma unroll
    for (u32 step = 0; step < ${value_steps}; step++) {
        if (step + 1 < ${value_steps})
            load_values(b[(step + 1) % 2], tile, right, step + 1);
        mma_f16_ab(${fragments}, ${key_fragments}, sums + step % ${blocks} * ${per_block},
                   packed + step / ${blocks} * ${4 * fragments}, b[step % 2]);
        //@ if beside then
        ${next_step:format(value_steps)}
        //@ end
    }
}

// H32 over the 32 columns of four fragments of one row: column = 8 fragment + 2 (lane % 4) + e, so
// stages run over e, two lane bits, two bits of the fragment number. Then / sqrt(32).
static FN void rotate_columns(f32 v[8], u32 lane)
{
    #pragma unroll
    for (u32 i = 0; i < 8; i += 2) {
        const f32 a = v[i], b = v[i + 1];
        v[i] = f_add(a, b);
        v[i + 1] = f_sub(a, b);
    }
    #pragma unroll
    for (u32 mask = 1; mask < 4; mask *= 2) {
        #pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const f32 other = shuffle_xor_f32(v[i], mask);
            v[i] = lane & mask ? f_sub(other, v[i]) : f_add(v[i], other);
        }
    }
    #pragma unroll
    for (u32 gap = 2; gap < 8; gap *= 2) {
        #pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if ((i & gap) == 0) {
                const f32 a = v[i], b = v[i + gap];
                v[i] = f_add(a, b);
                v[i + gap] = f_sub(a, b);
            }
        }
    }
    #pragma unroll
    for (u32 i = 0; i < 8; i++)
        v[i] = f_mul(v[i], f_from_bits(0x3E3504F3u));
}

// One row's 32 columns: divided by the softmax's sum, back in the model's basis, gated, stored.
static FN void finish_columns(const f32 *sums, u32 half, f32 inverse, const f32 *gates, f32 *out,
                              u32 live, u32 lane)
{
    f32 v[8];
    #pragma unroll
    for (u32 i = 0; i < 8; i++)
        v[i] = f_mul(sums[i / 2 * 4 + half * 2 + i % 2], inverse);
    //@ if kv_bits < 16 then
    rotate_columns(v, lane);
    //@ end
    #pragma unroll
    for (u32 j = 0; j < 4; j++) {
        u32 words[2] = {0, 0};
        if (live) {
            load2_u32((const u32 *)(gates + j * 8 + lane % 4 * 2), words);
            words[0] = f_bits(f_mul(v[2 * j], f_sigmoid(f_from_bits(words[0]))));
            words[1] = f_bits(f_mul(v[2 * j + 1], f_sigmoid(f_from_bits(words[1]))));
        }
        store2_u32((u32 *)(out + j * 8 + lane % 4 * 2), words);
    }
}

KERNEL
{
    const u32 lane = lane_id();
    const u32 member = warp_id() / ${row_warps};
    const u32 warp_row = warp_id() % ${row_warps} * ${16 * fragments};
    const u32 bands = (rows + ${BAND - 1}) / ${BAND}, end = first + rows;
    h16 *queries = ${shared.queries};
    h16 *key_tile = ${shared.key_tile};
    h16 *value_tile = ${double and shared.value_tile or "key_tile"};
    //@ if coded and double then
    u32 *key_codes = ${shared.key_codes};
    u32 *value_codes = ${shared.value_codes};
    //@ end
    //@ if bytes then
    f32 *query_units = ${shared.query_units}, *key_scales = ${shared.key_scales};
    const f32 *units = query_units + member * ${BAND} + warp_row + lane / 4; // of the lane's rows
    //@ end
    ${jobs.open}
        const u32 query_band = bands - 1 - band; // the longest first
        const u32 query_tile = first / ${BAND} + query_band;
        const u32 head = head_group * ${heads} + member, kv_head = head_group * ${heads} / ${gqa};
        f32 sums[${blocks * per_block}], maximum[${2 * fragments}], sum[${2 * fragments}];
        u64 here = slots_of(pages, 0);
        block_sync();
        //@ if double and coded then
        fetch_codes(key_codes, k_codes, k_scales, here, kv_head);
        fetch_codes(value_codes, v_codes, v_scales, here, kv_head);
        //@ elseif double then
        fetch_halves(key_tile, k_codes, here, kv_head, keys_before(end, 0));
        //@ end
        copy_async_commit();
        u64 ahead = slots_of(pages, query_tile ? 1 : 0);
        for (u32 i = thread_id(); i < ${heads * BAND * pieces}; i += ${threads}) {
            const u32 row = i / ${heads * pieces};
            const u32 which = i / ${pieces} % ${heads}, piece = i % ${pieces};
            const u64 line = (u64)(query_band * ${BAND} + row) * ${q_heads};
            const u64 at = line + head_group * ${heads} + which;
            u32 words[4];
            load4_u32((const u32 *)(q + at * ${head_dim} + piece * 8), words);
            //@ if bytes then
            u32 packed[2];
            const f32 unit = quantise_query(words, packed);
            u32 *to = (u32 *)(queries + place_key(which * ${BAND} + row, piece / 2)) + piece % 2;
            to[0] = packed[0];
            to[2] = packed[1];
            if (piece == 0)
                query_units[which * ${BAND} + row] = unit;
            //@ else
            store4_u32((u32 *)(queries + place(which * ${BAND} + row, piece)), words);
            //@ end
        }
        #pragma unroll
        for (u32 i = 0; i < ${blocks * per_block}; i++)
            sums[i] = ${f32(0)};
        #pragma unroll
        for (u32 i = 0; i < ${2 * fragments}; i++) {
            maximum[i] = ${f32(-1e30)};
            sum[i] = ${f32(0)};
        }
        copy_async_wait(0);
        block_sync();
        //@ if double and coded then
        unpack_step(key_tile${to_keys}, key_codes, kv_head, keys_before(end, 0), 0, 1,
                    lane);
        block_sync();
        //@ end
        //@ if skewed then
        // In phases, the second head one behind the first: one has its products with the keys and
        // its softmax while the other has its products with the values. Both prepare the values of
        // tile t in phase 2t and the keys of tile t + 1 in phase 2t + 1, and fetch the codes that
        // the next phase takes; a tile stays for two phases, so there are two of each.
        u32 packed[${per_block // 2}];
        for (u32 phase = 0; phase <= 2 * query_tile + 2; phase++) {
            const u32 own = phase - member, odd = phase % 2;
            const u32 coming = phase / 2 + odd, more = phase / 2 < query_tile;
            //@ if bytes then
            h16 *next = odd ? key_tile + coming % 2 * ${KEYS * key_row}
                            : value_tile + coming % 2 * ${KEYS * head_dim};
            f32 *next_scales = key_scales + coming % 2 * ${2 * KEYS};
            //@ else
            h16 *next = (odd ? key_tile : value_tile) + coming % 2 * ${KEYS * head_dim};
            //@ end
            //@ if coded then
            const u32 *codes = odd ? key_codes : value_codes;
            if (more && odd)
                fetch_codes(value_codes, v_codes, v_scales, ahead, kv_head);
            else if (more)
                fetch_codes(key_codes, k_codes, k_scales, ahead, kv_head);
            //@ else
            if (odd ? more : coming <= query_tile)
                fetch_halves(next, odd ? k_codes : v_codes, odd ? ahead : here, kv_head,
                             keys_before(end, coming));
            //@ end
            copy_async_commit();
            if (odd) {
                here = ahead;
                ahead = slots_of(pages, coming + 1 < query_tile ? coming + 1 : query_tile);
            }
            if (own >= 2 * query_tile + 2) {
                // the second head before its first tile, the first behind its last
                //@ if coded then
                unpack_step(next${to_either}, codes, kv_head,
                            keys_before(end, coming), 0, 1, lane);
                //@ end
            } else if (own % 2 == 0) {
                f32 scores[${per_block}];
                const h16 *keys = key_tile + own / 2 % 2 * ${KEYS * key_row};
                multiply_keys(scores, queries, keys${own_scales}, member * ${BAND} + warp_row,
                              lane${next_either});
                soften(scores, sums, maximum, sum, own == 2 * query_tile, warp_row,
                       lane${row_units});
                pack_scores(packed, scores);
            } else {
                multiply_values(sums, packed, value_tile + own / 2 % 2 * ${KEYS * head_dim},
                                lane${next_either});
            }
            copy_async_wait(0);
            block_sync();
        }
        //@ else
        for (u32 index = 0; index <= query_tile; index++) {
            f32 scores[${per_block}];
            u32 packed[${per_block // 2}];
            const u32 more = index < query_tile;
            //@ if double then
            // Here stand the keys, and the codes of the values (halves: neither). Beside Q K^T come
            // the values and the next keys' codes, beside P V the next keys and values' codes.
            //@ if coded then
            if (more)
                fetch_codes(key_codes, k_codes, k_scales, ahead, kv_head);
            //@ else
            fetch_halves(value_tile, v_codes, here, kv_head, keys_before(end, index));
            //@ end
            copy_async_commit();
            multiply_keys(scores, queries, key_tile${key_scales}, member * ${BAND} + warp_row,
                          lane${next_values});
            soften(scores, sums, maximum, sum, !more, warp_row, lane${row_units});
            pack_scores(packed, scores);
            copy_async_wait(0);
            block_sync();
            if (more) {
                //@ if coded then
                fetch_codes(value_codes, v_codes, v_scales, ahead, kv_head);
                //@ else
                fetch_halves(key_tile, k_codes, ahead, kv_head, keys_before(end, index + 1));
                //@ end
            }
            copy_async_commit();
            here = ahead;
            ahead = slots_of(pages, index + 2 < query_tile ? index + 2 : query_tile);
            // Behind the last tile its keys are unpacked again: nobody reads them.
            multiply_values(sums, packed, value_tile, lane${next_keys});
            copy_async_wait(0);
            block_sync();
            //@ else
            //@ for _, side in ipairs {"k", "v"} do
            //@ if coded then
            //@ local to = side == "k" and to_keys or to_values
            unpack_step(key_tile${to}, ${side}_codes, ${side}_scales, here, kv_head,
                        keys_before(end, index), 0, 1, lane);
            //@ else
            fetch_halves(key_tile, ${side}_codes, here, kv_head, keys_before(end, index));
            copy_async_commit();
            //@ end
            //@ if side == "v" then
            soften(scores, sums, maximum, sum, !more, warp_row, lane${row_units});
            pack_scores(packed, scores);
            //@ end
            copy_async_wait(0);
            block_sync();
            //@ if side == "k" then
            multiply_keys(scores, queries, key_tile${key_scales}, member * ${BAND} + warp_row,
                          lane);
            block_sync();
            //@ end
            //@ end
            here = ahead;
            ahead = slots_of(pages, index + 2 < query_tile ? index + 2 : query_tile);
            multiply_values(sums, packed, value_tile, lane);
            block_sync();
            //@ end
        }
        //@ end
        #pragma unroll
        for (u32 i = 0; i < ${2 * fragments}; i++) {
            const u32 row = query_band * ${BAND} + warp_row + i / 2 * 16 + i % 2 * 8 + lane / 4;
            const f32 inverse = f_div(${f32(1)}, sum[i]);
            const f32 *gates = qg + ((u64)row * ${q_heads} + head) * ${2 * head_dim} + ${head_dim};
            f32 *target = out + ((u64)row * ${q_heads} + head) * ${head_dim};
            #pragma unroll
            for (u32 g = 0; g < ${groups}; g++) {
                const u32 fragment = i / 2 * ${key_fragments} + g % 2 * 4;
                finish_columns(sums + g / 2 * ${per_block} + fragment * 4, i % 2, inverse,
                               gates + g * 32, target + g * 32, row < rows, lane);
            }
        }
    ${jobs.close}
}
