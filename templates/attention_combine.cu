//@ -- see schedules/attention_combine.lua
//@ include("lib_vector")
//@ include("lib_spans")
//@ if back then
//@ include("lib_linear")
//@ end
//@ local NOTHING = "-(1 << 30)" -- below the maximum of any span
//@ local ALL = (1 << BATCH) - 1
//@ local span_stride = row_limit * q_heads * HEAD -- of part
// Starts the copy of this lane's dims of a batch of spans. to: a place in shared memory; from: of
// span 0.
static FN void copy_batch(u32 to, const f32 *from, u32 batch, u32 spans)
{
    const u32 first = batch * ${BATCH}, left = spans > first ? spans - first : 0;
    from += batch * ${BATCH * span_stride};
    if (left >= ${BATCH}) {
        //@ for i = 0, BATCH - 1 do
        copy_async16_at(to, ${i * DIMS * 4}, from, ${i * span_stride * 4});
        //@ end
    } else {
        //@ for i = 0, BATCH - 2 do
        if (left > ${i})
            copy_async16_at(to, ${i * DIMS * 4}, from, ${i * span_stride * 4});
        //@ end
    }
    copy_async_commit();
}

static FN i32 larger(i32 a, i32 b)
{
    return a > b ? a : b;
}

// The scales of all spans: [span] = to what was merged before, to the span, the span's sum, and
// which spans of its batch the row sees keys in. stat: of span 0.
static FN void make_merges(u32 *merges, const u32 *stat, u32 spans, u32 lane)
{
    //@ for g = 0, groups - 1 do
    u32 own_${g}[2] = {0, 0};
    if (${g * LANES} + lane < spans)
        load2_u32(stat + (${g * LANES} + lane) * ${row_limit * q_heads * 2}, own_${g});
    //@ end
    // Of each group alone, so that no scan waits for another.
    //@ for g = 0, groups - 1 do
    const u32 is_live_${g} = f_gt(f_from_bits(own_${g}[1]), ${f32(0)});
    const i32 top_${g} = is_live_${g} ? (i32)own_${g}[0] : ${NOTHING};
    i32 scan_${g} = top_${g};
    //@ end
    for (u32 step = 1; step < ${LANES}; step *= 2) {
        const u32 source = lane < step ? lane : lane - step;
        //@ for g = 0, groups - 1 do
        scan_${g} = larger(scan_${g}, (i32)shuffle_u32((u32)scan_${g}, source));
        //@ end
    }
    i32 carry = ${NOTHING}; // of the groups before
    //@ for g = 0, groups - 1 do
    {
        const i32 left = (i32)shuffle_u32((u32)scan_${g}, lane == 0 ? 0 : lane - 1);
        const i32 before = lane == 0 ? carry : larger(left, carry);
        const i32 now = larger(scan_${g}, carry);
        const u32 live = warp_ballot(is_live_${g}) >> lane / ${BATCH} * ${BATCH} & ${ALL};
        const u32 merge[4] = {f_bits(f_pow2(before - now)), f_bits(f_pow2(top_${g} - now)),
                              own_${g}[1], live};
        store4_u32(merges + (${g * LANES} + lane) * 4, merge);
        carry = larger(carry, (i32)shuffle_u32((u32)scan_${g}, ${LANES - 1}));
    }
    //@ end
}

static FN void merge_span(const u32 merge[4], const u32 part[4], f32 v[4], f32 *sum)
{
    const f32 old_scale = f_from_bits(merge[0]), new_scale = f_from_bits(merge[1]);
    *sum = f_fma(f_from_bits(merge[2]), new_scale, f_mul(*sum, old_scale));
    for (u32 e = 0; e < 4; e++)
        v[e] = f_fma(f_from_bits(part[e]), new_scale, f_mul(v[e], old_scale));
}

// A batch that is there, in ascending order. A span in which the row sees no key is passed over:
// its part may be anything.
static FN void merge_batch(const u32 *merges, u32 place, f32 v[4], f32 *sum)
{
    u32 merge[${BATCH}][4], part[${BATCH}][4];
    //@ for i = 0, BATCH - 1 do
    load4_u32(merges + ${4 * i}, merge[${i}]);
    load4_at(place, ${i * DIMS * 4}, part[${i}]);
    //@ end
    const u32 live = merge[0][3];
    if (live == ${ALL}) {
        //@ for i = 0, BATCH - 1 do
        merge_span(merge[${i}], part[${i}], v, sum);
        //@ end
    } else {
        //@ for i = 0, BATCH - 1 do
        if (live >> ${i} & 1)
            merge_span(merge[${i}], part[${i}], v, sum);
        //@ end
    }
}

KERNEL
{
    start_next();
    const u32 rows = round[0];
    const u32 lane = lane_id();
    const u32 place_of_parts =
        shared_place(${shared.parts} + warp_id() * ${ahead * BATCH * DIMS} + lane * 4);
    u32 *merges = ${shared.merges} + warp_id() * ${groups * LANES * 4};
    //@ if back then
    const h16 *sign_gate = svh[0], *sign_out = suh[0];
    //@ end
    const u32 count = ${jobs.count};
    for (u32 i = 0; i < count; i++) {
        ${jobs:at("i")}
        const u32 spans = span_of(round[16 + row]) + 1;
        const u32 batches = (spans + ${BATCH - 1}) / ${BATCH};
        const u32 place = row * ${q_heads} + head, dim = half * ${DIMS} + lane * 4;
        //@ if back then
        const u32 column = head * ${2 * HEAD} + ${HEAD} + dim;
        u32 signs[2], out_signs[2];
        load_signs(sign_gate + column, signs);
        load_signs(sign_out + head * ${HEAD} + dim, out_signs);
        //@ end
        if (i == 0)
            wait_previous();
        const f32 *from = part + place * ${HEAD} + dim;
        //@ for batch = 0, ahead - 1 do
        copy_batch(place_of_parts + ${batch * BATCH * DIMS * 4}, from, ${batch}, spans);
        //@ end
        f32 gate[4];
        //@ if back then
        u64 *gate_sum = qg_sums + row * ${columns} + column;
        u32 words[8], scale_words[4];
        load_sums(gate_sum, scales + row * 2, words, scale_words);
        //@ else
        load4_f32(qg + place * ${2 * HEAD} + ${HEAD} + dim, gate);
        //@ end
        warp_sync(); // before merges of another job are overwritten
        make_merges(merges, stat + place * 2, spans, lane);
        warp_sync();
        //@ if back then
        clear_sums(gate_sum);
        if (!take_values(words, scale_words, signs, gate))
            atomic_or_u32(bad + row, 1);
        //@ end
        //@ for e = 0, 3 do
        gate[${e}] = f_sigmoid(gate[${e}]);
        //@ end
        f32 v[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
        f32 sum = ${f32(0)};
        for (u32 batch = 0; batch < batches; batch++) {
            const u32 slot = batch % ${ahead} * ${BATCH * DIMS * 4};
            copy_async_wait(${ahead - 1});
            merge_batch(merges + batch * ${4 * BATCH}, place_of_parts + slot, v, &sum);
            copy_batch(place_of_parts + slot, from, batch + ${ahead}, spans);
        }
        //@ for e = 0, 3 do
        v[${e}] = f_div(v[${e}], sum);
        //@ end
        //@ if bits ~= 16 then
        warp_hadamard32(v);
        //@ for e = 0, 3 do
        v[${e}] = f_mul(v[${e}], f_from_bits(0x3e3504f3u));
        //@ end
        //@ end
        //@ for e = 0, 3 do
        v[${e}] = f_mul(v[${e}], gate[${e}]);
        //@ end
        //@ if back then
        make_block(v, out_signs, 0, row, head * ${HEAD // DIMS} + half, lane, act, exponents, sums,
                   bad);
        //@ else
        store4_f32(y + place * ${HEAD} + dim, v);
        //@ end
    }
}
