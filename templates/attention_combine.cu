//@ -- see schedules/attention_combine.lua
//@ include("lib_vector")
//@ include("lib_spans")
//@ if back then
//@ include("lib_linear")
//@ end
//@ local LANES = 32
//@ local NOTHING = "-(1 << 30)" -- below the maximum of any span
// This lane's dims of the spans from `first` on. from: of span 0.
static FN void load_spans(const f32 *from, u32 first, u32 spans, f32 v[${4 * ahead}])
{
    //@ for i = 0, ahead - 1 do
    if (first + ${i} < spans)
        load4_f32(from + (first + ${i}) * ${row_limit * q_heads * HEAD}, v + ${4 * i});
    //@ end
}

KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    //@ if back then
    const h16 *sign_gate = svh[0], *sign_out = suh[0];
    //@ end
    ${jobs.open}
        const u32 spans = span_of(round[16 + row]) + 1;
        const u32 place = row * ${q_heads} + head, dim = half * ${DIMS} + lane * 4;
        const f32 *from = part + place * ${HEAD} + dim;
        f32 gate[4];
        //@ if back then
        const u32 column = head * ${2 * HEAD} + ${HEAD} + dim;
        u64 *gate_sum = qg_sums + row * ${columns} + column;
        u32 words[8], scale_words[4], signs[2], out_signs[2];
        load_sums(gate_sum, scales + row * 2, words, scale_words);
        load_signs(sign_gate + column, signs);
        load_signs(sign_out + head * ${HEAD} + dim, out_signs);
        //@ else
        load4_f32(qg + place * ${2 * HEAD} + ${HEAD} + dim, gate);
        //@ end
        f32 v[4] = {${f32(0)}, ${f32(0)}, ${f32(0)}, ${f32(0)}};
        i32 top = ${NOTHING};
        f32 sum = ${f32(0)};
        f32 part_0[${4 * ahead}], part_1[${4 * ahead}];
        load_spans(from, 0, spans, part_0);
        //@ if back then
        clear_sums(gate_sum);
        if (!take_values(words, scale_words, signs, gate))
            atomic_or_u32(bad + row, 1);
        //@ end
        //@ for e = 0, 3 do
        gate[${e}] = f_sigmoid(gate[${e}]);
        //@ end
        for (u32 first = 0; first < spans; first += ${LANES}) {
            // Of span first + lane; a span in which the row sees no key is passed over.
            u32 own[2] = {0, 0};
            if (first + lane < spans)
                load2_u32(stat + ((first + lane) * ${row_limit * q_heads} + place) * 2, own);
            const f32 own_sum = f_from_bits(own[1]);
            const u32 is_live = f_gt(own_sum, ${f32(0)});
            const u32 live = warp_ballot(is_live);
            const i32 own_top = is_live ? (i32)own[0] : ${NOTHING};
            i32 new_top = own_top > top ? own_top : top;
            for (u32 step = 1; step < ${LANES}; step *= 2) {
                const i32 other = (i32)shuffle_u32((u32)new_top, lane < step ? lane : lane - step);
                new_top = other > new_top ? other : new_top;
            }
            const i32 before = (i32)shuffle_u32((u32)new_top, lane == 0 ? 0 : lane - 1);
            const f32 own_old = f_pow2((lane == 0 ? top : before) - new_top);
            const f32 own_new = f_pow2(own_top - new_top);
            top = (i32)shuffle_u32((u32)new_top, ${LANES - 1});
            //@ for batch = 0, LANES // ahead - 1 do
            if (first + ${batch * ahead} < spans) {
                load_spans(from, first + ${(batch + 1) * ahead}, spans, part_${(batch + 1) % 2});
                //@ for i = 0, ahead - 1 do
                //@ local at = batch * ahead + i
                {
                    const f32 old_scale = shuffle_f32(own_old, ${at});
                    const f32 new_scale = shuffle_f32(own_new, ${at});
                    const f32 span_sum = shuffle_f32(own_sum, ${at});
                    if (live >> ${at} & 1) {
                        sum = f_fma(span_sum, new_scale, f_mul(sum, old_scale));
                        //@ for e = 0, 3 do
                        v[${e}] = f_fma(part_${batch % 2}[${4 * i + e}], new_scale,
                                        f_mul(v[${e}], old_scale));
                        //@ end
                    }
                }
                //@ end
            }
            //@ end
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
    ${jobs.close}
}
