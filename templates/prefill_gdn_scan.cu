//@ -- see schedules/prefill_gdn_scan.lua
//@ include("lib_vector")
static FN void load_wide(const f32 *from, f32 v[${wide}])
{
    #pragma unroll
    for (u32 i = 0; i < ${wide}; i += 4)
        load4_f32(from + i, v + i);
}

static FN void store_wide(f32 *to, const f32 v[${wide}])
{
    #pragma unroll
    for (u32 i = 0; i < ${wide}; i += 4)
        store4_f32(to + i, v + i);
}

// sums += factor * v
static FN void add_scaled(f32 sums[${wide}], f32 factor, const f32 v[${wide}])
{
    #pragma unroll
    for (u32 i = 0; i < ${wide}; i++)
        sums[i] = f_fma(factor, v[i], sums[i]);
}

// fresh -= W S and seen += Q S for the thread's rows; w, q: the first of them.
static FN void apply_state(const f32 *held, const f32 *w, const f32 *q, f32 *fresh, f32 *seen)
{
    #pragma unroll 2
    for (u32 e = 0; e < ${DIM}; e += 4) {
        f32 left[${4 * tall}], query[${4 * tall}];
        #pragma unroll
        for (u32 r = 0; r < ${tall}; r++) {
            load4_f32(w + r * ${DIM} + e, left + 4 * r);
            load4_f32(q + r * ${k_heads * DIM} + e, query + 4 * r);
        }
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            f32 s[${wide}];
            load_wide(held + (e + i) * ${columns}, s);
            #pragma unroll
            for (u32 r = 0; r < ${tall}; r++) {
                add_scaled(fresh + r * ${wide}, f_neg(left[4 * r + i]), s);
                add_scaled(seen + r * ${wide}, query[4 * r + i], s);
            }
        }
    }
}

// seen += P V' for the thread's rows; P is zero behind the diagonal: `count` rows of V' do.
static FN void apply_chunk(const f32 *fresh, const f32 *attention, u32 count, f32 *seen)
{
    for (u32 t = 0; t < count; t += 4) {
        f32 p[${4 * tall}];
        #pragma unroll
        for (u32 r = 0; r < ${tall}; r++)
            load4_f32(attention + r * ${CHUNK} + t, p + 4 * r);
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            f32 v[${wide}];
            load_wide(fresh + (t + i) * ${columns}, v);
            #pragma unroll
            for (u32 r = 0; r < ${tall}; r++)
                add_scaled(seen + r * ${wide}, p[4 * r + i], v);
        }
    }
}

// The thread's part of S: decayed, then one fma a row of the chunk. k: its first key row.
static FN void move_state(f32 *held, const f32 *faded, const f32 *k, f32 fade)
{
    f32 s[${deep * wide}];
    #pragma unroll
    for (u32 d = 0; d < ${deep}; d++) {
        load_wide(held + d * ${columns}, s + d * ${wide});
        #pragma unroll
        for (u32 i = 0; i < ${wide}; i++)
            s[d * ${wide} + i] = f_mul(s[d * ${wide} + i], fade);
    }
    #pragma unroll 4
    for (u32 t = 0; t < ${CHUNK}; t++) {
        f32 key[${deep}], v[${wide}];
        #pragma unroll
        for (u32 d = 0; d < ${deep}; d += 4)
            load4_f32(k + t * ${k_heads * DIM} + d, key + d);
        load_wide(faded + t * ${columns}, v);
        #pragma unroll
        for (u32 d = 0; d < ${deep}; d++)
            add_scaled(s + d * ${wide}, key[d], v);
    }
    #pragma unroll
    for (u32 d = 0; d < ${deep}; d++)
        store_wide(held + d * ${columns}, s + d * ${wide});
}

KERNEL
{
    const u32 y = thread_id() / ${columns // wide}, x = thread_id() % ${columns // wide} * ${wide};
    const u32 bands = (rows + ${CHUNK - 1}) / ${CHUNK};
    const u32 row = y * ${tall};
    f32 *held = ${shared.held}, *fresh = ${shared.fresh}, *faded = ${shared.faded};
    ${jobs.open}
        f32 *home = state + head * ${DIM * DIM} + part * ${columns} + x;
        f32 *mine = held + y * ${deep * columns} + x;
        #pragma unroll
        for (u32 d = 0; d < ${deep}; d++) {
            f32 s[${wide}];
            load_wide(home + (y * ${deep} + d) * ${DIM}, s);
            store_wide(mine + d * ${columns}, s);
        }
        block_sync();
        for (u32 band = 0; band < bands; band++) {
            const u64 chunk = (u64)band * ${v_heads} + head;
            const u64 keys = ((u64)band * ${CHUNK * k_heads} + head / ${group}) * ${DIM};
            const f32 *rates = decay + chunk * ${2 * CHUNK};
            const f32 *source = u + (chunk * ${CHUNK} + row) * ${DIM} + part * ${columns} + x;
            const u64 place = (u64)(band * ${CHUNK} + row) * ${v_heads} + head;
            f32 *out = o + place * ${DIM} + part * ${columns} + x;
            f32 value[${tall * wide}], seen[${tall * wide}];
            #pragma unroll
            for (u32 r = 0; r < ${tall}; r++) {
                load_wide(source + r * ${DIM}, value + r * ${wide});
                #pragma unroll
                for (u32 i = 0; i < ${wide}; i++)
                    seen[r * ${wide} + i] = ${f32(0)};
            }
            apply_state(held + x, w + (chunk * ${CHUNK} + row) * ${DIM},
                        q + keys + row * ${k_heads * DIM}, value, seen);
            #pragma unroll
            for (u32 r = 0; r < ${tall}; r++) {
                const f32 now = rates[row + r], later = rates[${CHUNK} + row + r];
                store_wide(fresh + (row + r) * ${columns} + x, value + r * ${wide});
                #pragma unroll
                for (u32 i = 0; i < ${wide}; i++) {
                    value[r * ${wide} + i] = f_mul(value[r * ${wide} + i], later);
                    seen[r * ${wide} + i] = f_mul(seen[r * ${wide} + i], now);
                }
                store_wide(faded + (row + r) * ${columns} + x, value + r * ${wide});
            }
            block_sync();
            apply_chunk(fresh + x, attention + (chunk * ${CHUNK} + row) * ${CHUNK}, row + ${tall},
                        seen);
            #pragma unroll
            for (u32 r = 0; r < ${tall}; r++)
                store_wide(out + r * ${v_heads * DIM}, seen + r * ${wide});
            move_state(mine, faded + x, k + keys + y * ${deep}, rates[${CHUNK - 1}]);
            block_sync();
        }
        #pragma unroll
        for (u32 d = 0; d < ${deep}; d++) {
            f32 s[${wide}];
            load_wide(mine + d * ${columns}, s);
            store_wide(home + (y * ${deep} + d) * ${DIM}, s);
        }
        block_sync();
    ${jobs.close}
}
