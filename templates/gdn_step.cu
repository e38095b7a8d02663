//@ -- see schedules/gdn_step.lua
//@ include("lib_vector")
// A lane's part of a sum over the slice: row[j] * s[j], j ascending.
static FN f32 slice_sum(const f32 *row, const f32 s[${SLICE}])
{
    f32 sum = ${f32(0)};
    //@ for j = 0, SLICE - 1, 4 do
    {
        f32 part[4];
        load4_f32(row + ${j}, part);
        //@ for i = 0, 3 do
        sum = f_fma(part[${i}], s[${j + i}], sum);
        //@ end
    }
    //@ end
    return sum;
}

// The slices' parts of one column, added.
static FN f32 total(const f32 *parts)
{
    f32 sum = parts[0];
    //@ for i = 1, slices - 1 do
    sum = f_add(sum, parts[${i * columns}]);
    //@ end
    return sum;
}

//@ local DUE, READY = 1, 2 -- what a row's output still needs: its sum over the slice, its total
KERNEL
{
    const u32 lane = lane_id(), warp = warp_id();
    const u32 slice = warp % ${slices}, local = warp / ${slices} * 32 + lane;
    f32 *keys = ${shared.keys}, *queries = ${shared.queries}, *values = ${shared.values};
    f32 *decays = ${shared.decays}, *betas = ${shared.betas}, *partial = ${shared.partial};
    //@ local side_words = 2 * slices * columns
    const u32 steps = round[11], keep = round[10];
    const u32 word = lane < ${program_most} ? round[${program} + lane] : 0;
    const u32 count = ${jobs.count}; // at least one
    for (u32 i = 0; i < count; i++) {
        ${jobs:at("i")}
        const u32 place = layer * ${v_heads} + head, column = piece * ${columns} + local;
        f32 *mine = state + (u64)place * ${DIM * DIM} + slice * ${SLICE * DIM} + column;
        // Written by earlier passes, and in this one by none but this job.
        f32 s[${SLICE}];
        //@ for j = 0, SLICE - 1 do
        s[${j}] = mine[${j * DIM}];
        //@ end
        const f32 log_rate = a_log[place], bias = dt_bias[place];
        const u32 op = lane < steps ? word >> 4 : ${RELOAD};
        const u32 bit = 1u << (word & 15);
        const u32 read = warp_or_u32(op != ${RELOAD} ? bit : 0);
        const u32 emitted = warp_or_u32(op == ${ADVANCE} || op == ${PEEK} ? bit : 0);
        // Lane r of warp 0 makes row r's decay, of warp 1 its beta; gdn_conv came in between.
        if (lane < ${row_limit} && warp < 2) {
            const f32 gate = f_from_bits(load_fresh_u32(
                (const u32 *)ab + ((layer * ${row_limit} + lane) * 2 + warp) * ${v_heads} + head));
            if (warp == 0)
                decays[lane] = f_exp(f_mul(f_neg(f_exp(log_rate)), f_softplus(f_add(gate, bias))));
            else
                betas[lane] = f_sigmoid(gate);
        }
        if (i == 0)
            wait_previous();
        for (u32 row = warp; row < ${row_limit}; row += ${warps}) {
            const u32 at = layer * ${k_rows} + (row * ${k_heads} + head / ${group}) * ${DIM};
            const f32 *v_row = v + layer * ${v_rows} + (row * ${v_heads} + head) * ${DIM} +
                               piece * ${columns};
            if (read >> row & 1) {
                copy_async16(keys + row * ${DIM} + lane * 4, k + at + lane * 4);
                if (lane < ${columns // 4})
                    copy_async16(values + row * ${columns} + lane * 4, v_row + lane * 4);
            }
            if (emitted >> row & 1)
                copy_async16(queries + row * ${DIM} + lane * 4, q + at + lane * 4);
        }
        copy_async_commit();
        //@ if reload == "shared" then
        f32 *before = ${shared.before} + slice * ${SLICE * columns} + local;
        if (warp_ballot(lane < steps && op == ${RELOAD})) {
            //@ for j = 0, SLICE - 1 do
            before[${j * columns}] = s[${j}];
            //@ end
        }
        //@ end
        copy_async_wait(0);
        block_sync();

        const f32 *slice_keys = keys + slice * ${SLICE};
        const f32 *slice_queries = queries + slice * ${SLICE};
        u32 side = local;         // this step's part of `partial`
        u32 output = 0, last = 0; // of row `last`: nothing, DUE or READY
        f32 out = ${f32(0)};
        for (u32 step = 0; step < steps; step++) {
            const u32 code = shuffle_u32(word, step), row = code & 15;
            if (code >> 4 == ${RELOAD}) {
                if (output == ${DUE}) {
                    out = slice_sum(slice_queries + last * ${DIM}, s);
                    output = ${READY};
                }
                //@ local from = reload == "shared" and "before[%d]" or "mine[%d]"
                //@ for j = 0, SLICE - 1 do
                s[${j}] = ${from:format(j * (reload == "shared" and columns or DIM))};
                //@ end
                continue;
            }
            f32 key[${SLICE}];
            //@ for j = 0, SLICE - 1, 4 do
            load4_f32(slice_keys + row * ${DIM} + ${j}, key + ${j});
            //@ end
            f32 sum = ${f32(0)};
            if (output == ${DUE}) {
                out = ${f32(0)};
                const f32 *query = slice_queries + last * ${DIM};
                //@ for j = 0, SLICE - 1, 4 do
                {
                    f32 part[4];
                    load4_f32(query + ${j}, part);
                    //@ for i = 0, 3 do
                    sum = f_fma(key[${j + i}], s[${j + i}], sum);
                    out = f_fma(part[${i}], s[${j + i}], out);
                    //@ end
                }
                //@ end
            } else {
                //@ for j = 0, SLICE - 1 do
                sum = f_fma(key[${j}], s[${j}], sum);
                //@ end
            }
            f32 *parts = partial + side;
            parts[slice * ${columns}] = sum;
            if (output)
                parts[(${slices} + slice) * ${columns}] = out;
            const f32 decay = decays[row], beta = betas[row];
            const f32 value = values[row * ${columns} + local];
            block_sync();
            const f32 delta = f_mul(beta, f_fma(f_neg(decay), total(parts), value));
            if (output && slice == 0)
                o[(last * ${v_heads} + head) * ${DIM} + column] =
                    total(parts + ${slices * columns});
            f32 decayed[${SLICE}];
            //@ for j = 0, SLICE - 1 do
            decayed[${j}] = f_mul(s[${j}], decay);
            //@ end
            if (code >> 4 == ${PEEK}) {
                out = ${f32(0)};
                //@ for j = 0, SLICE - 1, 4 do
                {
                    f32 part[4];
                    load4_f32(slice_queries + row * ${DIM} + ${j}, part);
                    //@ for i = 0, 3 do
                    out = f_fma(part[${i}], f_fma(key[${j + i}], delta, decayed[${j + i}]), out);
                    //@ end
                }
                //@ end
                output = ${READY};
            } else {
                //@ for j = 0, SLICE - 1 do
                s[${j}] = f_fma(key[${j}], delta, decayed[${j}]);
                //@ end
                output = code >> 4 == ${ADVANCE} ? ${DUE} : 0;
            }
            last = row;
            side = side < ${side_words} ? side + ${side_words} : side - ${side_words};
        }
        f32 *parts = partial + side;
        if (output == ${DUE})
            out = slice_sum(slice_queries + last * ${DIM}, s);
        if (output)
            parts[(${slices} + slice) * ${columns}] = out;
        if (keep) {
            //@ for j = 0, SLICE - 1 do
            mine[${j * DIM}] = s[${j}];
            //@ end
        }
        block_sync(); // and the rows in shared memory are free for the next job
        if (output && slice == 0)
            o[(last * ${v_heads} + head) * ${DIM} + column] = total(parts + ${slices * columns});
    }
}
