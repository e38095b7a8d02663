//@ -- see schedules/prefill_gdn_chunk.lua
//@ include("lib_vector")
//@ include("lib_split")
//@ local UNIT = 2 ^ 14
// Where 16-byte piece `piece` of a row lies, in words: 16 pieces of high halves, 16 of low ones,
// swizzled for ldmatrix.
static FN u32 place(u32 row, u32 piece) { return row * ${DIM} + (piece ^ (row & 7)) * 4; }

// The chunk's rows of one head of q or k, split, into shared memory.
static FN void stage(u32 *tile, const f32 *from)
{
    #pragma unroll 4
    for (u32 i = thread_id(); i < ${CHUNK * DIM // 4}; i += ${threads}) {
        const u32 row = i / ${DIM // 4}, at = i % ${DIM // 4};
        f32 v[4];
        u32 high[2], low[2];
        load4_f32(from + row * ${k_heads * DIM} + at * 4, v);
        #pragma unroll
        for (u32 e = 0; e < 4; e++)
            v[e] = f_mul(v[e], ${f32(UNIT)});
        split2(v[0], v[1], high, low);
        split2(v[2], v[3], high + 1, low + 1);
        store2_u32(tile + place(row, at / 2) + at % 2 * 2, high);
        store2_u32(tile + place(row, at / 2 + 16) + at % 2 * 2, low);
    }
}

// A fragment of 16 x 16 factors of a left side as the right side's two fragments of 8 columns, and
// the other way round: the two words in the middle change places.
static FN void store_turned(u32 *to, const u32 four[4])
{
    const u32 words[4] = {four[0], four[2], four[1], four[3]};
    store4_u32(to, words);
}

static FN void load_turned(const u32 *from, u32 four[4])
{
    u32 words[4];
    load4_u32(from, words);
    four[0] = words[0];
    four[1] = words[2];
    four[2] = words[1];
    four[3] = words[3];
}

// 16 rows of dots with the keys up to them, times UNIT^2. blocks: where the left side goes in
// fragment order, or 0. The small products first: a sum is cut to its own size then.
static FN void make_dots(const u32 *left, const u32 *keys, u32 band, u32 *blocks, f32 dots[${sums}])
{
    const u32 lane = lane_id();
    #pragma unroll
    for (u32 i = 0; i < ${sums}; i++)
        dots[i] = ${f32(0)};
    #pragma unroll 1
    for (u32 step = 0; step < 8; step++) {
        u32 high[4], low[4];
        load_matrix_x4(high, left + place(band * 16 + lane % 16, step * 2 + lane / 16));
        load_matrix_x4(low, left + place(band * 16 + lane % 16, step * 2 + lane / 16 + 16));
        if (blocks) {
            u32 *to = blocks + (step * 4 + band) * ${2 * k_heads * DIM} + lane * 4;
            store_turned(to, high);
            store_turned(to + ${k_heads * DIM}, low);
        }
        #pragma unroll
        for (u32 pair = 0; pair < 4; pair++) {
            if (pair <= band) {
                const u32 row = pair * 16 + lane % 8 + lane / 16 * 8;
                u32 right[4], faint[4];
                load_matrix_x4(right, keys + place(row, step * 2 + lane / 8 % 2));
                load_matrix_x4(faint, keys + place(row, step * 2 + lane / 8 % 2 + 16));
                mma_f16_ab(1, 2, dots + pair * 8, low, right);
                mma_f16_ab(1, 2, dots + pair * 8, high, faint);
            }
        }
    }
    #pragma unroll 2
    for (u32 step = 0; step < 8; step++) {
        u32 high[4];
        load_matrix_x4(high, left + place(band * 16 + lane % 16, step * 2 + lane / 16));
        #pragma unroll
        for (u32 pair = 0; pair < 4; pair++) {
            if (pair <= band) {
                const u32 row = pair * 16 + lane % 8 + lane / 16 * 8;
                u32 right[4];
                load_matrix_x4(right, keys + place(row, step * 2 + lane / 8 % 2));
                mma_f16_ab(1, 2, dots + pair * 8, high, right);
            }
        }
    }
}

// How far the decays of one head reach, made once: exp(G_t - G_b) at t, where b is the first row of
// t's 16, and exp(G_b - G_j) at 64 + 8 m (m - 1) + j for the rows j before b = 16 m, m = 1 .. 3.
static FN f32 make_fade(const f32 *log_decay, u32 i)
{
    const u32 m = i < ${CHUNK + 16} ? 1 : i < ${CHUNK + 48} ? 2 : 3;
    const u32 late = i < ${CHUNK} ? i : m * 16;
    const u32 early = i < ${CHUNK} ? i / 16 * 16 : i - ${CHUNK} - 8 * m * (m - 1);
    return f_exp(f_sub(log_decay[late], log_decay[early]));
}

// A block of 16 x 16 of A, below the diagonal: row i, column j at solve[j * stride + i].
static FN void store_coupling(f32 *solve, u32 band, u32 step, const f32 a[8])
{
    #pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 row = band * 16 + i % 4 / 2 * 8 + lane_id() / 4;
        const u32 column = step * 16 + i / 4 * 8 + lane_id() % 4 * 2 + i % 2;
        if (column < row)
            solve[column * ${stride} + row] = a[i];
    }
}

// Two fragments of 8 columns, split, as a block in fragment order.
static FN void store_block(u32 *to, const f32 v[8])
{
    u32 high[4], low[4];
    split2(v[0], v[1], high, low);
    split2(v[4], v[5], high + 1, low + 1);
    split2(v[2], v[3], high + 2, low + 2);
    split2(v[6], v[7], high + 3, low + 3);
    store4_u32(to + lane_id() * 4, high);
    store4_u32(to + 128 + lane_id() * 4, low);
}

// A (where `solve`) or P, times UNIT, of one head, its rows `band`, from their dots. scale: of the
// two rows of a lane. Blocks below the diagonal take a product of two decays, the diagonal's one.
static FN void fade_dots(const f32 dots[${sums}], u32 band, const f32 scale[2],
                         const f32 *log_decay, const f32 *fades, f32 *solve, u32 *attention)
{
    const u32 lane = lane_id(), corner = band * (band + 1) / 2;
    f32 rate[2], v[8];
    #pragma unroll
    for (u32 i = 0; i < 2; i++)
        rate[i] = f_mul(scale[i], fades[band * 16 + i * 8 + lane / 4]);
    #pragma unroll
    for (u32 step = 0; step < 3; step++) {
        if (step < band) {
            const f32 *far = fades + ${CHUNK} + 8 * band * (band - 1) + step * 16 + lane % 4 * 2;
            #pragma unroll
            for (u32 i = 0; i < 8; i++)
                v[i] = f_mul(f_mul(dots[step * 8 + i], rate[i % 4 / 2]), far[i / 4 * 8 + i % 2]);
            if (solve)
                store_coupling(solve, band, step, v);
            else
                store_block(attention + (corner + step) * ${words}, v);
        }
    }
    #pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 row = band * 16 + i % 4 / 2 * 8 + lane / 4;
        const u32 column = band * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        const f32 dot = band < 2 ? band == 0 ? dots[i] : dots[8 + i]
                                 : band == 2 ? dots[16 + i] : dots[24 + i];
        v[i] = ${f32(0)};
        if (column <= row)
            v[i] = f_mul(f_mul(dot, scale[i % 4 / 2]),
                         f_exp(f_sub(log_decay[row], log_decay[column])));
    }
    if (solve)
        store_coupling(solve, band, band, v);
    else
        store_block(attention + (corner + band) * ${words}, v);
}

// Column c of T inside its block of the diagonal, by forward substitution. A stands at
// [column * stride + row]; elements of T on and below the diagonal go to [row * stride + column],
// which A does not use.
static FN void solve_column(f32 *solve, u32 c)
{
    f32 row[${TILE}];
    f32 *corner = solve + c / ${TILE} * ${TILE * (stride + 1)};
    const u32 column = c % ${TILE};
    #pragma unroll
    for (u32 r = 0; r < ${TILE}; r++)
        row[r] = r == column ? ${f32(1)} : ${f32(0)};
    #pragma unroll
    for (u32 j = 0; j < ${TILE}; j++) {
        const f32 known = f_neg(row[j]);
        #pragma unroll
        for (u32 r = j + 1; r < ${TILE}; r++)
            row[r] = f_fma(corner[j * ${stride} + r], known, row[r]);
    }
    #pragma unroll
    for (u32 r = 0; r < ${TILE}; r++) {
        if (r >= column)
            corner[r * ${stride} + column] = row[r];
    }
}

//@ for _, n in ipairs { 16, 32 } do
//@ local quads = n * n // 4
// Blocks of T of ${n} rows on the diagonal, two and two, become one: T21 = -T22 (A21 T11), a thread
// four elements of A21 T11, then of T21, sums over ${n} elements ascending. middle: for A21 T11.
static FN void join_${n}(f32 *solve, f32 *middle, u32 count)
{
    for (u32 i = thread_id(); i < count * ${CHUNK * n // 8}; i += ${threads}) {
        const u32 base = i / ${quads} % ${CHUNK // (2 * n)} * ${2 * n * (stride + 1)};
        const f32 *corner = solve + i / ${CHUNK * n // 8} * ${CHUNK * stride} + base;
        const u32 row = i / ${n} % ${n // 4} * 4, column = i % ${n};
        f32 sum[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
        #pragma unroll 8
        for (u32 j = 0; j < ${n}; j++) {
            f32 a[4];
            const f32 below = j < column ? ${f32(0)} : corner[j * ${stride} + column];
            load4_f32(corner + j * ${stride} + ${n} + row, a);
            for (u32 e = 0; e < 4; e++)
                sum[e] = f_fma(a[e], below, sum[e]);
        }
        for (u32 e = 0; e < 4; e++)
            middle[i / ${quads} * ${n * n} + (row + e) * ${n} + column] = sum[e];
    }
    block_sync();
    for (u32 i = thread_id(); i < count * ${CHUNK * n // 8}; i += ${threads}) {
        const u32 base = i / ${quads} % ${CHUNK // (2 * n)} * ${2 * n * (stride + 1)};
        f32 *corner = solve + i / ${CHUNK * n // 8} * ${CHUNK * stride} + base;
        const u32 row = i / ${n // 4} % ${n}, column = i % ${n // 4} * 4;
        f32 *line = corner + (${n} + row) * ${stride};
        f32 sum[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
        #pragma unroll 8
        for (u32 j = 0; j < ${n}; j++) {
            f32 m[4];
            const f32 left = j > row ? ${f32(0)} : f_neg(line[${n} + j]);
            load4_f32(middle + i / ${quads} * ${n * n} + j * ${n} + column, m);
            for (u32 e = 0; e < 4; e++)
                sum[e] = f_fma(left, m[e], sum[e]);
        }
        store4_f32(line + column, sum);
    }
    block_sync();
}

//@ end
// Block `index` of (I + A)^-1, its columns times factor and UNIT, as right-side fragments.
static FN void store_factor(u32 *to, const f32 *solve, u32 index, const f32 *factor)
{
    const u32 lane = lane_id();
    const u32 band = index < 1 ? 0 : index < 3 ? 1 : index < 6 ? 2 : 3;
    const u32 step = index - band * (band + 1) / 2;
    u32 high[4], low[4];
    #pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 row = band * 16 + i / 2 * 8 + lane / 4;
        const u32 column = step * 16 + i % 2 * 8 + lane % 4 * 2;
        f32 v[2];
        #pragma unroll
        for (u32 e = 0; e < 2; e++) {
            const f32 x = solve[row * ${stride} + column + e];
            const f32 scale = f_mul(factor[column + e], ${f32(UNIT)});
            v[e] = column + e > row ? ${f32(0)} : f_mul(x, scale);
        }
        split2(v[0], v[1], high + i, low + i);
    }
    store4_u32(to + index * ${words} + lane * 4, high);
    store4_u32(to + index * ${words} + 128 + lane * 4, low);
}

// The warp's 16 columns of U, transposed. values: the chunk's first row at the lane's place.
static FN void make_u(const u32 *factors, const f32 *values, f32 *to)
{
    const u32 lane = lane_id();
    f32 v[${sums}], up[2], down[2], sums[${sums}];
    u32 high[${sums // 2}], low[${sums // 2}], top[2] = {0, 0};
    #pragma unroll
    for (u32 i = 0; i < ${sums}; i++)
        v[i] = values[(i / 8 * 16 + i / 4 % 2 * 8 + i % 2) * ${v_heads * DIM} + i / 2 % 2 * 8];
    #pragma unroll
    for (u32 i = 0; i < ${sums}; i++) {
        top[i / 2 % 2] = larger(top[i / 2 % 2], size_of(v[i]));
    }
    #pragma unroll
    for (u32 i = 0; i < 2; i++)
        lift(top_of_row(top[i]), up + i, down + i);
    #pragma unroll
    for (u32 i = 0; i < ${sums // 2}; i++)
        split2(f_mul(v[2 * i], up[i % 2]), f_mul(v[2 * i + 1], up[i % 2]), high + i, low + i);
    #pragma unroll
    for (u32 i = 0; i < ${sums}; i++)
        sums[i] = ${f32(0)};
    //@ for band = 0, 3 do
    //@ for step = 0, band do
    {
        const u32 *block = factors + ${(band * (band + 1) // 2 + step) * words} + lane * 4;
        u32 right[4], faint[4];
        load4_u32(block, right);
        load4_u32(block + 128, faint);
        mma_f16_ab(1, 2, sums + ${band * 8}, low + ${step * 4}, right);
        mma_f16_ab(1, 2, sums + ${band * 8}, high + ${step * 4}, faint);
    }
    //@ end
    //@ end
    //@ for band = 0, 3 do
    //@ for step = 0, band do
    {
        u32 right[4];
        load4_u32(factors + ${(band * (band + 1) // 2 + step) * words} + lane * 4, right);
        mma_f16_ab(1, 2, sums + ${band * 8}, high + ${step * 4}, right);
    }
    //@ end
    //@ end
    #pragma unroll
    for (u32 i = 0; i < 8; i++) {
        f32 four[4];
        #pragma unroll
        for (u32 e = 0; e < 4; e++)
            four[e] = f_mul(sums[i * 4 + e], down[e / 2]);
        store4_f32(to + i * ${words // 2} + lane * 4, four);
    }
}

// The warp's 16 columns of W, times UNIT. blocks: where the warp's keys go in fragment order, or 0.
static FN void make_w(const u32 *factors, const u32 *keys, u32 *blocks, u32 *to)
{
    const u32 lane = lane_id();
    u32 right[${sums // 2}], faint[${sums // 2}];
    f32 sums[${sums}];
    #pragma unroll
    for (u32 step = 0; step < 4; step++) {
        const u32 piece = warp_id() * 2 + lane / 16;
        load_matrix_x4_trans(right + step * 4, keys + place(step * 16 + lane % 16, piece));
        load_matrix_x4_trans(faint + step * 4, keys + place(step * 16 + lane % 16, piece + 16));
        if (blocks) {
            u32 *block = blocks + (step * 8 + warp_id()) * ${2 * k_heads * DIM} + lane * 4;
            store4_u32(block, right + step * 4);
            store4_u32(block + ${k_heads * DIM}, faint + step * 4);
        }
    }
    #pragma unroll
    for (u32 i = 0; i < ${sums}; i++)
        sums[i] = ${f32(0)};
    //@ for band = 0, 3 do
    //@ for step = 0, band do
    {
        const u32 *block = factors + ${(band * (band + 1) // 2 + step) * words} + lane * 4;
        u32 high[4], low[4];
        load_turned(block, high);
        load_turned(block + 128, low);
        mma_f16_ab(1, 2, sums + ${band * 8}, low, right + ${step * 4});
        mma_f16_ab(1, 2, sums + ${band * 8}, high, faint + ${step * 4});
    }
    //@ end
    //@ end
    //@ for band = 0, 3 do
    //@ for step = 0, band do
    {
        u32 high[4];
        load_turned(factors + ${(band * (band + 1) // 2 + step) * words} + lane * 4, high);
        mma_f16_ab(1, 2, sums + ${band * 8}, high, right + ${step * 4});
    }
    //@ end
    //@ end
    #pragma unroll
    for (u32 band = 0; band < 4; band++) {
        f32 *eight = sums + band * 8;
        #pragma unroll
        for (u32 i = 0; i < 8; i++)
            eight[i] = f_mul(eight[i], ${f32(1 / UNIT)});
        store_block(to + (warp_id() * 4 + band) * ${words}, eight);
    }
}

KERNEL
{
    const u32 thread = thread_id(), lane = lane_id(), warp = warp_id();
    u32 *keys = ${shared.keys}, *scratch = ${shared.scratch}, *factors = ${shared.factors};
    f32 *log_decay = ${shared.log_decay}, *strength = ${shared.strength}, *fades = ${shared.fades};
    f32 *entry = ${shared.entry};
    ${jobs.open}
        const u64 first = (u64)band * ${CHUNK};
        const u64 origin = (first * ${k_heads} + key_head) * ${DIM};
        const u64 part = (u64)band * ${v_heads} + key_head * ${group};
        f32 dots[${sums}];
        block_sync();
        stage(keys, k + origin);
        stage(scratch, q + origin);
        for (u32 i = thread; i < ${group * CHUNK}; i += ${threads}) {
            const u64 at = (first + i % ${CHUNK}) * ${v_heads} + key_head * ${group} + i / ${CHUNK};
            fades[i] = g[at];
            strength[i] = beta[at];
        }
        block_sync();
        for (u32 i = thread; i < ${group * CHUNK}; i += ${threads}) {
            f32 sum = ${f32(0)};
            for (u32 t = i / ${CHUNK} * ${CHUNK}; t <= i; t++)
                sum = f_add(sum, fades[t]);
            log_decay[i] = sum;
            entry[i] = f_mul(strength[i], f_exp(sum));
        }
        make_dots(warp < 4 ? keys : scratch, keys, warp % 4, warp < 4 ? 0 : (u32 *)q + origin,
                  dots);
        block_sync();
        for (u32 i = thread; i < ${group * CHUNK}; i += ${threads}) {
            const f32 here = log_decay[i], end = log_decay[i / ${CHUNK} * ${CHUNK} + ${CHUNK - 1}];
            f32 *rates = decay + (part + i / ${CHUNK}) * ${2 * CHUNK} + i % ${CHUNK};
            rates[0] = f_exp(here);
            rates[${CHUNK}] = f_exp(f_sub(end, here));
        }
        for (u32 i = thread; i < ${group * fades_count}; i += ${threads})
            fades[i] = make_fade(log_decay + i / ${fades_count} * ${CHUNK}, i % ${fades_count});
        block_sync();
        for (u32 member = 0; member < ${group}; member += ${together}) {
            const u32 rest = ${group} - member, count = rest < ${together} ? rest : ${together};
            f32 *solve = (f32 *)scratch;
            #pragma unroll 1
            for (u32 i = 0; i < count; i++) {
                const u32 own = (member + i) * ${CHUNK};
                f32 scale[2] = {${f32(1 / UNIT)}, ${f32(1 / UNIT)}};
                if (warp < 4) {
                    const f32 *two = strength + own + warp * 16 + lane / 4;
                    scale[0] = f_mul(two[0], ${f32(UNIT ^ -2)});
                    scale[1] = f_mul(two[8], ${f32(UNIT ^ -2)});
                }
                fade_dots(dots, warp % 4, scale, log_decay + own,
                          fades + (member + i) * ${fades_count},
                          warp < 4 ? solve + i * ${CHUNK * stride} : 0,
                          attention + (part + member + i) * ${attention_words});
            }
            block_sync();
            for (u32 i = thread; i < count * ${CHUNK}; i += ${threads})
                solve_column(solve + i / ${CHUNK} * ${CHUNK * stride}, i % ${CHUNK});
            block_sync();
            join_16(solve, (f32 *)factors, count);
            join_32(solve, (f32 *)factors, count);
            #pragma unroll 1
            for (u32 i = 0; i < count; i++) {
                const u32 own = (member + i) * ${CHUNK};
                const f32 *solved = solve + i * ${CHUNK * stride};
                for (u32 block = warp; block < ${2 * blocks}; block += ${threads // 32})
                    store_factor(factors + block / ${blocks} * ${blocks * words}, solved,
                                 block % ${blocks}, (block < ${blocks} ? strength : entry) + own);
                block_sync();
                const u64 row = first + lane % 4 * 2, head = key_head * ${group} + member + i;
                const u64 chunk = (part + member + i) * ${CHUNK * DIM};
                make_w(factors + ${blocks * words}, keys,
                       member + i == 0 ? (u32 *)k + origin : 0, w + chunk);
                make_u(factors, v + (row * ${v_heads} + head) * ${DIM} + warp * 16 + lane / 4,
                       u + chunk + warp * ${16 * CHUNK});
                block_sync();
            }
        }
    ${jobs.close}
}
