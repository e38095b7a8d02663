//@ -- see schedules/gdn_step.lua
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id(), warp = warp_id();
    const u32 slice = warp % ${slices}, local = warp / ${slices} * 32 + lane;
    f32 *partial = ${shared.partial};
    ${jobs.open}
        const u32 column = piece * ${columns} + local;
        f32 *mine = state + head * ${DIM * DIM} + slice * ${SLICE * DIM} + column;
        f32 s[${SLICE}];
        //@ for j = 0, SLICE - 1 do
        s[${j}] = mine[${j * DIM}];
        //@ end
        const f32 rate = f_neg(f_exp(a_log[head]));
        for (u32 row = 0; row < rows; row++) {
            const f32 *ab_row = ab + row * ${2 * v_heads};
            const f32 decay = f_exp(f_mul(rate, f_softplus(f_add(ab_row[head], dt_bias[head]))));
            const f32 beta = f_sigmoid(ab_row[${v_heads} + head]);
            const u32 at = (row * ${k_heads} + head / ${group}) * ${DIM} + slice * ${SLICE};
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
            const f32 value = v[(row * ${v_heads} + head) * ${DIM} + column];
            const f32 delta = f_mul(beta, f_fma(f_neg(decay), dot, value));
            sum = ${f32(0)};
            //@ for j = 0, SLICE - 1, 4 do
            {
                u32 query[4];
                load4_u32(qn + ${j}, query);
                //@ for i = 0, 3 do
                s[${j + i}] = f_fma(f_from_bits(key[${j + i}]), delta, f_mul(s[${j + i}], decay));
                sum = f_fma(f_from_bits(query[${i}]), s[${j + i}], sum);
                //@ end
            }
            //@ end
            partial[${slices * columns} + slice * ${columns} + local] = sum;
            block_sync();
            if (slice == 0) {
                f32 out = partial[${slices * columns} + local];
                //@ for i = 1, slices - 1 do
                out = f_add(out, partial[${slices * columns} + ${i} * ${columns} + local]);
                //@ end
                o[(row * ${v_heads} + head) * ${DIM} + column] = out;
            }
        }
        //@ for j = 0, SLICE - 1 do
        mine[${j * DIM}] = s[${j}];
        //@ end
    ${jobs.close}
}
