//@ -- see schedules/gdn_conv.lua
//@ include("lib_vector")
//@ include("lib_norm")
//@ include("lib_dot")
//@ if back then
//@ include("lib_linear")
//@ end
// Depth of the row that ends a path.
static FN i32 depth_of(u32 path)
{
    return (i32)(7 - leading_zeros(~path) / 4);
}

KERNEL
{
    start_next();
    const u32 thread = thread_id(), lane = lane_id(), warp = warp_id();
    ${jobs:at("0")} // a CTA has one job
    if (job < ${dots}) {
        const u32 row = job / ${groups}, column = job % ${groups} * ${warps} + warp;
        //@ if columns % warps == 0 then
        const u32 from_column = column;
        //@ else
        const u32 from_column = column < ${columns} ? column : 0; // idle warps of the last group
        //@ end
        const ${ctype} *from = (const ${ctype} *)(from_column < ${v_heads} ? weight_a : weight_b) +
                               from_column % ${v_heads} * ${k} + lane * 4;
        f32 *source = ${shared.source}, *factor = ${shared.factor};
        u32 words[${batch * dot_words}];
        //@ local function load(first)
        //@ for c = first, math.min(first + batch, chunks) - 1 do
        dot_load(from + ${c * BLOCK}, words + ${(c - first) * dot_words});
        //@ end
        //@ end
        //@ load(0)
        for (u32 at = thread * 4; at < ${k}; at += ${4 * threads})
            copy_async16(factor + at, norm + at);
        const u32 rows = round[0];
        wait_previous();
        for (u32 at = thread * 4; at < ${k}; at += ${4 * threads})
            copy_async16(source + at, x + row * ${k} + at);
        copy_async_commit();
        // Of rows that are not active too, or these loads would wait for the number of rows.
        const f32 scale = norm_scale(squares + row * ${chunks}, ${chunks}, ${k},
                                     f_from_bits(${eps}u));
        copy_async_wait(0);
        if (row >= rows)
            return;
        for (u32 at = thread * 4; at < ${k}; at += ${4 * threads}) { // what it copied itself
            f32 v[4], w[4];
            load4_f32(source + at, v);
            load4_f32(factor + at, w);
            //@ for i = 0, 3 do
            v[${i}] = f_mul(f_mul(v[${i}], scale), w[${i}]);
            //@ end
            store4_f32(source + at, v);
        }
        block_sync();
        f32 sum = ${f32(0)};
        //@ for first = 0, chunks - 1, batch do
        //@ if first > 0 then
        //@ load(first)
        //@ end
        //@ for c = first, math.min(first + batch, chunks) - 1 do
        {
            f32 v[4];
            load4_f32(source + ${c * BLOCK} + lane * 4, v);
            sum = dot_add(v, words + ${(c - first) * dot_words}, sum);
        }
        //@ end
        //@ end
        sum = warp_sum_f32(sum);
        if (lane == 0 && column < ${columns})
            ab[row * ${columns} + column] = sum;
        return;
    }
    const u32 head = job - ${dots}, channel = head * ${BLOCK} + lane * 4;
    const u32 row = warp;
    f32 w[${4 * taps}]; // [channel of the lane, tap]
    //@ for i = 0, 3 do
    load4_f32(weight + (channel + ${i}) * ${taps}, w + ${i * taps});
    //@ end
    //@ if back then
    u32 signs[2];
    load_signs(svh[0] + channel, signs);
    //@ end
    // The window is of earlier passes; in this one only this CTA moves it, further down.
    const u32 rows = round[0], path = round[${paths} + row], keep = round[10];
    f32 *inputs = ${shared.inputs};
    f32 old[4], own[4];
    if (row < ${history})
        load4_f32(window + row * ${channels} + channel, old);
    wait_previous();
    // The window, then the rows' inputs; of rows that are not active too: nobody looks at those.
    //@ if back then
    u64 *sum = sums + row * ${sum_columns} + channel;
    u32 sum_words[8], scale_words[4];
    load_sums(sum, scales + row * 2, sum_words, scale_words);
    //@ else
    load4_f32(u + row * ${channels} + channel, own);
    //@ end
    if (row < ${history})
        store4_f32(inputs + row * ${BLOCK} + lane * 4, old);
    //@ if back then
    const u32 finite = take_values(sum_words, scale_words, signs, own);
    if (row < rows) {
        clear_sums(sum);
        store4_f32(u + row * ${channels} + channel, own);
        if (!finite)
            atomic_or_u32(bad + row, 1);
    }
    //@ end
    store4_f32(inputs + (${history} + row) * ${BLOCK} + lane * 4, own);
    block_sync();
    if (row >= rows)
        return;
    const i32 depth = depth_of(path);
    f32 c[4];
    f32 moved[${4 * history}]; // the window after this row
    //@ for i = 0, 3 do
    c[${i}] = ${f32(0)};
    //@ end
    //@ for t = 0, taps - 1 do
    {
        // Counted from the round's first row; nibble j of the path is the ancestor at depth j.
        const i32 place = depth - ${history - t};
        const u32 at = place < 0 ? (u32)(place + ${history})
                                 : ${history} + (path >> (4 * place) & 15);
        f32 input[4];
        load4_f32(inputs + at * ${BLOCK} + lane * 4, input);
        //@ for i = 0, 3 do
        c[${i}] = f_fma(w[${i * taps + t}], input[${i}], c[${i}]);
        //@ if t > 0 then
        moved[${4 * (t - 1) + i}] = input[${i}];
        //@ end
        //@ end
    }
    //@ end
    if (keep && row == rows - 1) {
        //@ for t = 0, history - 1 do
        store4_f32(window + ${t} * ${channels} + channel, moved + ${4 * t});
        //@ end
    }
    //@ for i = 0, 3 do
    c[${i}] = f_silu(c[${i}]);
    //@ end
    f32 *to = v + row * ${v_width} + (channel - ${2 * q_width});
    if (head < ${2 * k_heads}) {
        f32 square = ${f32(0)};
        //@ for i = 0, 3 do
        square = f_fma(c[${i}], c[${i}], square);
        //@ end
        const f32 scale = f_rsqrt(f_add(warp_sum_f32(square), ${f32(1e-6)}));
        const f32 last = head < ${k_heads} ? ${f32(128 ^ -0.5)} : ${f32(1)};
        //@ for i = 0, 3 do
        c[${i}] = f_mul(f_mul(c[${i}], scale), last);
        //@ end
        to = head < ${k_heads} ? q + row * ${q_width} + channel
                               : k + row * ${q_width} + (channel - ${q_width});
    }
    store4_f32(to, c);
}
