//@ -- see schedules/prefill_gdn_scan.lua
//@ include("lib_vector")
//@ include("lib_split")
// Starts the copies of operand `item` of the sequence W, Q, K of the first chunk, of the second, ..
// P and the decays of a chunk travel with its Q.
static FN void fetch(u32 *ring, u32 *beside, u32 item, u32 bands, u32 head, const u32 *q,
                     const u32 *k, const u32 *w, const u32 *attention, const f32 *decay)
{
    const u32 band = item / 3, kind = item % 3;
    if (band >= bands)
        return;
    const u64 chunk = (u64)band * ${v_heads} + head;
    const u64 shared_head = (u64)band * ${CHUNK * k_heads} + head / ${group};
    const u32 *from = kind == 0 ? w + chunk * ${CHUNK * DIM}
                                : (kind == 1 ? q : k) + shared_head * ${DIM};
    const u32 stride = kind == 0 ? ${DIM} : ${k_heads * DIM};
    u32 *to = ring + item % ${slots} * ${CHUNK * DIM} + thread_id() * 4;
    from += warp_id() * stride + lane_id() * 4;
    #pragma unroll 4
    for (u32 i = 0; i < ${CHUNK // warps}; i++)
        copy_async16(to + i * ${threads * 4}, from + i * ${warps} * stride);
    if (kind == 1) {
        to = beside + band % 2 * ${beside};
        for (u32 i = thread_id(); i < ${attention_words // 4}; i += ${threads})
            copy_async16(to + i * 4, attention + chunk * ${attention_words} + i * 4);
        if (thread_id() < ${2 * CHUNK // 4})
            copy_async16(to + ${attention_words} + thread_id() * 4,
                         decay + chunk * ${2 * CHUNK} + thread_id() * 4);
    }
}

// A pair of fragments of 16 x 8 sums as one of 16 x 16 factors, times `up` of their rows.
static FN void split_rows(const f32 *pair, const f32 up[2], u32 high[4], u32 low[4])
{
    #pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const f32 *two = pair + i / 2 * 4 + i % 2 * 2;
        split2(f_mul(two[0], up[i % 2]), f_mul(two[1], up[i % 2]), high + i, low + i);
    }
}

// The powers of two for the rows lane/4 and lane/4 + 8 of fragments.
static FN void lift_rows(u32 count, const f32 *fragments, f32 up[2], f32 down[2])
{
    #pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 top = 0;
        #pragma unroll
        for (u32 i = 0; i < count; i++) {
            const f32 *two = fragments + i * 4 + half * 2;
            top = larger(top, larger(size_of(two[0]), size_of(two[1])));
        }
        lift(top_of_row(top), up + half, down + half);
    }
}

static FN void clear(u32 count, f32 *sums)
{
    #pragma unroll
    for (u32 i = 0; i < count; i++)
        sums[i] = ${f32(0)};
}

// Columns of fragments: both halves of each, `count` pairs from block `first` on, `step` apart.
static FN void load_columns(u32 count, const u32 *item, u32 first, u32 step, u32 *right, u32 *faint)
{
    #pragma unroll
    for (u32 i = 0; i < count; i++) {
        load4_u32(item + (first + i * step) * ${words}, right + 4 * i);
        load4_u32(item + (first + i * step) * ${words} + 128, faint + 4 * i);
    }
}

// sums = S^T X^T for the rows of W or Q, still times the powers of two. item: at the lane's words.
static FN void apply_state(const f32 s[${held}], const f32 up[2], const u32 *item,
                           f32 sums[${sums}])
{
    f32 rest[${sums}];
    clear(32, sums);
    clear(32, rest);
    #pragma unroll
    for (u32 step = 0; step < 8; step++) {
        u32 high[4], low[4], right[${sums // 2}], faint[${sums // 2}];
        load_columns(4, item, step * 4, 1, right, faint);
        split_rows(s + step * 8, up, high, low);
        multiply_split(8, sums, rest, high, low, right, faint);
    }
    #pragma unroll
    for (u32 i = 0; i < ${sums}; i++)
        sums[i] = f_add(sums[i], rest[i]);
}

// seen += V'^T P^T, half of the rows at a time; P is zero behind the diagonal: a step has rows from
// its own on.
static FN void apply_chunk(const f32 value[${sums}], const u32 *attention, f32 seen[${sums}])
{
    f32 up[2], down[2];
    lift_rows(8, value, up, down);
    //@ for part = 0, 1 do
    f32 sums${part}[${sums // 2}], rest${part}[${sums // 2}];
    clear(16, sums${part});
    clear(16, rest${part});
    //@ for step = 0, 2 * part + 1 do
    //@ local first = math.max(2 * part, step)
    //@ local count = 2 * part + 2 - first
    {
        u32 high[4], low[4], right[${4 * count}], faint[${4 * count}];
        //@ for pair = first, 2 * part + 1 do
        load_columns(1, attention, ${pair * (pair + 1) // 2 + step}, 0,
                     right + ${4 * (pair - first)}, faint + ${4 * (pair - first)});
        //@ end
        split_rows(value + ${8 * step}, up, high, low);
        multiply_split(${2 * count}, sums${part} + ${8 * (first - 2 * part)},
                       rest${part} + ${8 * (first - 2 * part)}, high, low, right, faint);
    }
    //@ end
    #pragma unroll
    for (u32 i = 0; i < ${sums // 2}; i++) {
        const f32 sum = f_add(sums${part}[i], rest${part}[i]);
        seen[${16 * part} + i] = f_fma(sum, down[i % 4 / 2], seen[${16 * part} + i]);
    }
    //@ end
}

// S^T = fade S^T + (rows' factors V')^T K.
static FN void move_state(f32 s[${held}], const f32 faded[${sums}], const u32 *item, f32 fade)
{
    f32 up[2], down[2];
    u32 high[${sums // 2}], low[${sums // 2}];
    lift_rows(8, faded, up, down);
    #pragma unroll
    for (u32 step = 0; step < 4; step++)
        split_rows(faded + step * 8, up, high + step * 4, low + step * 4);
    #pragma unroll
    for (u32 part = 0; part < 2; part++) {
        f32 sums[${sums}], rest[${sums}];
        clear(32, sums);
        clear(32, rest);
        #pragma unroll
        for (u32 step = 0; step < 4; step++) {
            u32 right[${sums // 2}], faint[${sums // 2}];
            load_columns(4, item, step * 8 + part * 4, 1, right, faint);
            multiply_split(8, sums, rest, high + step * 4, low + step * 4, right, faint);
        }
        #pragma unroll
        for (u32 i = 0; i < ${sums}; i++) {
            const f32 added = f_mul(f_add(sums[i], rest[i]), down[i % 4 / 2]);
            s[part * 32 + i] = f_fma(s[part * 32 + i], fade, added);
        }
    }
}

KERNEL
{
    const u32 lane = lane_id();
    const u32 bands = (rows + ${CHUNK - 1}) / ${CHUNK};
    u32 *ring = ${shared.ring}, *beside = ${shared.beside};
    ${jobs.open}
        const u32 column = part * ${columns} + warp_id() * 16 + lane / 4;
        f32 *home = state + head * ${DIM * DIM} + lane % 4 * ${2 * DIM} + column;
        f32 s[${held}];
        #pragma unroll
        for (u32 i = 0; i < ${held}; i++)
            s[i] = home[(i / 4 * 8 + i % 2) * ${DIM} + i % 4 / 2 * 8];
        block_sync();
        for (u32 item = 0; item < ${slots - 1}; item++) {
            fetch(ring, beside, item, bands, head, q, k, w, attention, decay);
            copy_async_commit();
        }
        for (u32 band = 0; band < bands; band++) {
            const u64 chunk = (u64)band * ${v_heads} + head;
            const f32 *source = u + chunk * ${CHUNK * DIM} + column / 16 * ${16 * CHUNK} + lane * 4;
            const u32 *extra = beside + band % 2 * ${beside};
            const f32 *rates = (const f32 *)(extra + ${attention_words}) + lane % 4 * 2;
            f32 up[2], down[2], value[${sums}], seen[${sums}];
            //@ local function turn(number)
            copy_async_wait(${slots - 2});
            block_sync();
            fetch(ring, beside, band * 3 + ${number + slots - 1}, bands, head, q, k, w, attention,
                  decay);
            copy_async_commit();
            const u32 *item${number} =
                ring + (band * 3 + ${number}) % ${slots} * ${CHUNK * DIM} + lane * 4;
            //@ end
            //@ turn(0)
            lift_rows(16, s, up, down);
            apply_state(s, up, item0, value);
            #pragma unroll
            for (u32 i = 0; i < 8; i++) {
                f32 own[4];
                load4_f32(source + i * ${words // 2}, own);
                #pragma unroll
                for (u32 e = 0; e < 4; e++)
                    value[i * 4 + e] = f_fma(f_neg(down[e / 2]), value[i * 4 + e], own[e]);
            }
            //@ turn(1)
            #pragma unroll
            for (u32 i = 0; i < 2; i++) // S is split anew: its halves do not fit beside V'
                up[i] = f_from_bits(keep_u32(f_bits(up[i])));
            apply_state(s, up, item1, seen);
            #pragma unroll
            for (u32 i = 0; i < ${sums}; i++)
                seen[i] = f_mul(seen[i], f_mul(rates[i / 4 * 8 + i % 2], down[i % 4 / 2]));
            apply_chunk(value, extra + lane * 4, seen);
            const u64 line = (u64)(band * ${CHUNK} + lane % 4 * 2) * ${v_heads} + head;
            f32 *out = o + line * ${DIM} + column;
            #pragma unroll
            for (u32 i = 0; i < ${sums}; i++)
                out[(i / 4 * 8 + i % 2) * ${v_heads * DIM} + i % 4 / 2 * 8] = seen[i];
            //@ turn(2)
            #pragma unroll
            for (u32 i = 0; i < ${sums}; i++)
                value[i] = f_mul(value[i], rates[${CHUNK} + i / 4 * 8 + i % 2]);
            move_state(s, value, item2, rates[${CHUNK - 1} - lane % 4 * 2]);
        }
        copy_async_wait(0);
        #pragma unroll
        for (u32 i = 0; i < ${held}; i++)
            home[(i / 4 * 8 + i % 2) * ${DIM} + i % 4 / 2 * 8] = s[i];
    ${jobs.close}
}
