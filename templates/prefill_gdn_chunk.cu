//@ -- see schedules/prefill_gdn_chunk.lua
//@ include("lib_vector")
//@ local tile = span * span
// dots of rows y + 16 a with rows x + 16 b over one staged slice, added to what is there.
static FN void add_dots(const f32 *keys, const f32 *queries, u32 y, u32 x, f32 kk[${tile}],
                        f32 qk[${tile}])
{
    for (u32 e = 0; e < ${slice}; e++) {
        f32 left[${span}], query[${span}], right[${span}];
        #pragma unroll
        for (u32 i = 0; i < ${span}; i++) {
            left[i] = keys[(y + i * ${SIDE}) * ${slice_stride} + e];
            query[i] = queries[(y + i * ${SIDE}) * ${slice_stride} + e];
            right[i] = keys[(x + i * ${SIDE}) * ${slice_stride} + e];
        }
        #pragma unroll
        for (u32 i = 0; i < ${span}; i++) {
            #pragma unroll
            for (u32 j = 0; j < ${span}; j++) {
                kk[i * ${span} + j] = f_fma(left[i], right[j], kk[i * ${span} + j]);
                qk[i * ${span} + j] = f_fma(query[i], right[j], qk[i * ${span} + j]);
            }
        }
    }
}

// Solves one column: right-hand side row t is factor(t) * source[t]; the result goes to solved[t].
// Both have `stride` and ${DIM} words between rows.
static FN void solve_column(const f32 *coupling, const f32 *strength, const f32 *log_decay,
                            u32 scaled, const f32 *source, u32 stride, f32 *solved)
{
    for (u32 start = 0; start < ${CHUNK}; start += ${block}) {
        f32 row[${block}];
        #pragma unroll
        for (u32 r = 0; r < ${block}; r++) {
            f32 factor = strength[start + r];
            if (scaled)
                factor = f_mul(factor, f_exp(log_decay[start + r]));
            row[r] = f_mul(factor, source[(start + r) * stride]);
        }
        for (u32 j = 0; j < start; j++) {
            const f32 known = f_neg(solved[j * ${DIM}]);
            #pragma unroll
            for (u32 r = 0; r < ${block}; r += 4) {
                f32 a[4];
                load4_f32(coupling + j * ${column_stride} + start + r, a);
                for (u32 i = 0; i < 4; i++)
                    row[r + i] = f_fma(a[i], known, row[r + i]);
            }
        }
        #pragma unroll
        for (u32 j = 0; j < ${block}; j++) {
            const f32 known = f_neg(row[j]);
            #pragma unroll
            for (u32 r = j + 1; r < ${block}; r++)
                row[r] = f_fma(coupling[(start + j) * ${column_stride} + start + r], known, row[r]);
        }
        #pragma unroll
        for (u32 r = 0; r < ${block}; r++)
            solved[(start + r) * ${DIM}] = row[r];
    }
}

KERNEL
{
    const u32 thread = thread_id();
    const u32 y = thread / ${SIDE}, x = thread % ${SIDE};
    f32 *keys = ${shared.keys}, *queries = ${shared.queries}, *coupling = ${shared.coupling};
    f32 *log_decay = ${shared.log_decay}, *strength = ${shared.strength};
    ${jobs.open}
        const u32 first = band * ${CHUNK};
        const u64 part = (u64)band * ${v_heads} + head;
        const u32 key_head = head / ${group};
        f32 kk[${tile}], qk[${tile}];
        #pragma unroll
        for (u32 i = 0; i < ${tile}; i++) {
            kk[i] = ${f32(0)};
            qk[i] = ${f32(0)};
        }
        block_sync();
        if (thread < ${CHUNK}) {
            keys[thread] = g[(first + thread) * ${v_heads} + head];
            strength[thread] = beta[(first + thread) * ${v_heads} + head];
        }
        block_sync();
        if (thread < ${CHUNK}) {
            f32 sum = ${f32(0)};
            for (u32 t = 0; t <= thread; t++)
                sum = f_add(sum, keys[t]);
            log_decay[thread] = sum;
        }
        for (u32 from = 0; from < ${DIM}; from += ${slice}) {
            block_sync();
            for (u32 i = thread; i < ${CHUNK * slice}; i += ${threads}) {
                const u32 row = i / ${slice}, e = i % ${slice};
                const u64 at = ((u64)(first + row) * ${k_heads} + key_head) * ${DIM} + from + e;
                keys[row * ${slice_stride} + e] = k[at];
                queries[row * ${slice_stride} + e] = q[at];
            }
            block_sync();
            add_dots(keys, queries, y, x, kk, qk);
        }
        if (thread < ${CHUNK}) {
            const f32 here = log_decay[thread], end = log_decay[${CHUNK - 1}];
            decay[part * ${2 * CHUNK} + thread] = f_exp(here);
            decay[part * ${2 * CHUNK} + ${CHUNK} + thread] = f_exp(f_sub(end, here));
        }
        #pragma unroll
        for (u32 i = 0; i < ${span}; i++) {
            #pragma unroll
            for (u32 j = 0; j < ${span}; j++) {
                const u32 row = y + i * ${SIDE}, column = x + j * ${SIDE};
                f32 a = ${f32(0)}, p = ${f32(0)};
                if (column <= row) {
                    const f32 fade = f_exp(f_sub(log_decay[row], log_decay[column]));
                    a = f_mul(f_mul(strength[row], kk[i * ${span} + j]), fade);
                    p = f_mul(qk[i * ${span} + j], fade);
                }
                coupling[column * ${column_stride} + row] = a;
                attention[part * ${CHUNK * CHUNK} + row * ${CHUNK} + column] = p;
            }
        }
        block_sync();
        const u32 element = thread % ${DIM};
        const u64 solved = part * ${CHUNK * DIM} + element;
        const f32 *values = v + ((u64)first * ${v_heads} + head) * ${DIM} + element;
        const f32 *lines = k + ((u64)first * ${k_heads} + key_head) * ${DIM} + element;
        if (thread < ${DIM})
            solve_column(coupling, strength, log_decay, 0, values, ${v_heads * DIM}, u + solved);
        else
            solve_column(coupling, strength, log_decay, 1, lines, ${k_heads * DIM}, w + solved);
    ${jobs.close}
}
