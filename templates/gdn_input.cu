//@ -- see schedules/gdn_input.lua
//@ include("lib_norm")
//@ include("lib_vector")
//@ if parts > 0 then
//@ include("lib_linear")
//@ end
//@ include("lib_dot")
// Gates of row job / groups, one a warp: the row is normed once, in shared memory. The weights,
// which no launch writes, are on their way into registers before the launch waits for the one
// before it, `batch` chunks of them. Of all threads of a CTA.
static FN void make_gates(u32 job, const f32 *x, const f32 *squares, const f32 *norm,
                          const void *weight_a, const void *weight_b, f32 *ab, const u32 *round,
                          f32 *source, f32 *factor)
{
    const u32 thread = thread_id(), lane = lane_id();
    const u32 row = job / ${groups}, column = job % ${groups} * ${warps} + warp_id();
    //@ if columns % warps == 0 then
    const u32 from_column = column;
    //@ else
    const u32 from_column = column < ${columns} ? column : 0; // idle warps of the last group
    //@ end
    const ${ctype} *from = (const ${ctype} *)(from_column < ${v_heads} ? weight_a : weight_b) +
                           from_column % ${v_heads} * ${k} + lane * 4;
    u32 words[${batch * dot_words}];
    //@ local function load(first)
    //@ for c = first, math.min(first + batch, blocks) - 1 do
    dot_load(from + ${c * BLOCK}, words + ${(c - first) * dot_words});
    //@ end
    //@ end
    //@ load(0)
    for (u32 at = thread * 4; at < ${k}; at += ${128 * warps})
        copy_async16(factor + at, norm + at);
    wait_previous();
    for (u32 at = thread * 4; at < ${k}; at += ${128 * warps})
        copy_async16(source + at, x + row * ${k} + at);
    copy_async_commit();
    // Of rows that are not active too, or these loads would wait for the number of rows.
    const u32 rows = round[0];
    const f32 scale = norm_scale(squares + row * ${blocks}, ${blocks}, ${k}, f_from_bits(${eps}u));
    copy_async_wait(0);
    if (row >= rows)
        return;
    for (u32 at = thread * 4; at < ${k}; at += ${128 * warps}) { // what it copied itself
        f32 v[4], w[4];
        load4_f32(source + at, v);
        load4_f32(factor + at, w);
        norm_values(v, scale, w);
        store4_f32(source + at, v);
    }
    block_sync();
    f32 sum = ${f32(0)};
    //@ for first = 0, blocks - 1, batch do
    //@ if first > 0 then
    //@ load(first)
    //@ end
    //@ for c = first, math.min(first + batch, blocks) - 1 do
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
}
KERNEL
{
    ${jobs:at("0")} // a CTA has one job
    //@ if parts > 0 then
    if (job >= ${dots}) { // a warp has a 128-block of a row, for one part
        const u32 lane = lane_id(), input = (job - ${dots}) * ${warps} + warp_id();
        const u32 row = input / ${parts * blocks}, part = input / ${blocks} % ${parts};
        const u32 chunk = input % ${blocks}, at = chunk * ${BLOCK} + lane * 4;
        u32 signs[2];
        f32 factor[4], v[4];
        load_signs(suh[part] + at, signs);
        load4_f32(norm + at, factor);
        wait_previous();
        // Of rows that are not active too, or these loads would wait for the number of rows.
        const u32 rows = round[0];
        load4_f32(x + row * ${k} + at, v);
        const f32 scale = norm_scale(squares + row * ${blocks}, ${blocks}, ${k},
                                     f_from_bits(${eps}u));
        if (row >= rows)
            return;
        norm_values(v, scale, factor);
        make_block(v, signs, part, row, chunk, lane, act, exponents, sums, bad);
        return;
    }
    //@ end
    make_gates(job, x, squares, norm, weight_a, weight_b, ab, round, ${shared.source},
               ${shared.factor});
}
