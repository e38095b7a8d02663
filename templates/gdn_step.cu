//@ -- see schedules/gdn_step.lua
KERNEL
{
    const u32 steps = round[11], keep = round[10];
    const u32 lane = lane_id(), warp = warp_id();
    const u32 slice = warp % ${slices}, local = warp / ${slices} * 32 + lane;
    f32 *partial = ${shared.partial};
    ${jobs.open}
        const u32 column = piece * ${columns} + local;
        const u32 place = layer * ${v_heads} + head;
        f32 *mine = state + (u64)place * ${DIM * DIM} + slice * ${SLICE * DIM} + column;
        f32 s[${SLICE}];
        //@ for j = 0, SLICE - 1 do
        s[${j}] = mine[${j * DIM}];
        //@ end
        const f32 rate = f_neg(f_exp(a_log[place]));
        for (u32 step = 0; step < steps; step++) {
            const u32 code = round[${program} + step];
            const u32 row = code & 15;
            if (code >> 4 == ${RELOAD}) {
                //@ for j = 0, SLICE - 1 do
                s[${j}] = mine[${j * DIM}];
                //@ end
                continue;
            }
            const u32 moves = code >> 4 != ${PEEK}, emits = code >> 4 != ${REPLAY};
            const f32 *ab_row = ab + (layer * ${row_limit} + row) * ${2 * v_heads};
            const f32 decay = f_exp(f_mul(rate, f_softplus(f_add(ab_row[head], dt_bias[place]))));
            const f32 beta = f_sigmoid(ab_row[${v_heads} + head]);
            const u32 at = layer * ${k_rows} + (row * ${k_heads} + head / ${group}) * ${DIM} +
                           slice * ${SLICE};
            const u32 *kn = (const u32 *)(k + at), *qn = (const u32 *)(q + at);
            u32 key[${SLICE}];
            //@ for j = 0, SLICE - 1, 4 do
            load4_u32(kn + ${j}, key + ${j});
            //@ end
            f32 sum = ${f32(0)};
            //@ for j = 0, SLICE - 1 do
            sum = f_fma(f_from_bits(key[${j}]), s[${j}], sum);
            //@ end
            partial[slice * ${columns} + local] = sum;
            block_sync();
            f32 dot = partial[local];
            //@ for i = 1, slices - 1 do
            dot = f_add(dot, partial[${i} * ${columns} + local]);
            //@ end
            const f32 value = v[layer * ${v_rows} + (row * ${v_heads} + head) * ${DIM} + column];
            const f32 delta = f_mul(beta, f_fma(f_neg(decay), dot, value));
            sum = ${f32(0)};
            //@ for j = 0, SLICE - 1, 4 do
            {
                u32 query[4];
                load4_u32(qn + ${j}, query);
                //@ for i = 0, 3 do
                const f32 moved${i} = f_fma(f_from_bits(key[${j + i}]), delta,
                                            f_mul(s[${j + i}], decay));
                sum = f_fma(f_from_bits(query[${i}]), moved${i}, sum);
                s[${j + i}] = f_select(moves, moved${i}, s[${j + i}]);
                //@ end
            }
            //@ end
            partial[${slices * columns} + slice * ${columns} + local] = sum;
            block_sync();
            if (slice == 0 && emits) {
                f32 out = partial[${slices * columns} + local];
                //@ for i = 1, slices - 1 do
                out = f_add(out, partial[${slices * columns} + ${i} * ${columns} + local]);
                //@ end
                o[(row * ${v_heads} + head) * ${DIM} + column] = out;
            }
        }
        if (keep) {
            //@ for j = 0, SLICE - 1 do
            mine[${j * DIM}] = s[${j}];
            //@ end
        }
    ${jobs.close}
}
