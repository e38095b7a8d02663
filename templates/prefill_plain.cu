//@ -- see schedules/prefill_plain.lua
//@ include("lib_vector")
//@ local element = ({ F16 = "h16", BF16 = "u16", F32 = "f32" })[dtype]
static FN void load4_weight(const ${element} *from, f32 v[4])
{
    //@ if dtype == "F32" then
    load4_f32(from, v);
    //@ else
    u32 words[2];
    load2_u32((const u32 *)from, words);
    for (u32 i = 0; i < 4; i++) {
        const u16 bits = (u16)(words[i / 2] >> (i % 2) * 16);
        //@ if dtype == "F16" then
        v[i] = f_from_h(h_from_bits(bits));
        //@ else
        v[i] = f_from_bf16(bits);
        //@ end
    }
    //@ end
}

// Starts the copies of a chunk: x_from, from: what this thread copies first of chunk 0; live_rows,
// live_outputs: those of the tile from this thread's first on. What lies past them or past k is
// not copied, and what is made of it is not stored.
//@ local lines = threads * piece // BLOCK -- of weights at once; of x it is one a warp
//@ local warps = threads // 32
static FN void fetch_chunk(u8 *stage, const f32 *x_from, const ${element} *from, u32 chunk,
                           u32 live_rows, u32 live_outputs)
{
    f32 *to = (f32 *)stage + thread_id() * 4;
    ${element} *to_weight = (${element} *)(stage + ${tile_rows * BLOCK * 4}) +
                            thread_id() * ${piece};
    //@ if k % BLOCK ~= 0 then
    if (chunk * ${BLOCK} + lane_id() * 4 >= ${k})
        live_rows = 0;
    if (chunk * ${BLOCK} + thread_id() % ${BLOCK // piece} * ${piece} >= ${k})
        live_outputs = 0;
    //@ end
    #pragma unroll
    for (u32 i = 0; i < ${tile_rows}; i += ${warps})
        if (i < live_rows)
            copy_async16(to + i * ${BLOCK}, x_from + (u64)chunk * ${BLOCK} + (u64)i * ${k});
    #pragma unroll
    for (u32 i = 0; i < ${tile_outputs}; i += ${lines}) {
        if (i < live_outputs) {
            //@ if piece * bytes == 16 then
            copy_async16(to_weight + i * ${BLOCK},
                         from + (u64)chunk * ${BLOCK} + (u64)i * ${k});
            //@ else
            u32 words[2];
            load2_u32((const u32 *)(from + (u64)chunk * ${BLOCK} + (u64)i * ${k}), words);
            store2_u32((u32 *)(to_weight + i * ${BLOCK}), words);
            //@ end
        }
    }
}

static FN u32 rest_of(u32 all, u32 from)
{
    return from < all ? all - from : 0;
}

KERNEL
{
    const u32 lane = lane_id();
    const u32 warp_row = warp_id() / ${output_warps} * ${rows_each};
    const u32 warp_output = warp_id() % ${output_warps} * ${outputs};
    u8 *ring = ${shared.ring};
    const u32 x_line = warp_id(), line = thread_id() / ${BLOCK // piece};
    ${tiles.open}
        const u32 row = tile * ${tile_rows}, part = column / ${columns // parts};
        const u32 output = column % ${columns // parts} * ${tile_outputs}; // in its part
        const u32 live_rows = rest_of(rows < row + ${tile_rows} ? rows : row + ${tile_rows},
                                      row + x_line);
        const u32 live_outputs = rest_of(${p.n} < output + ${tile_outputs} ? ${p.n}
                                                                      : output + ${tile_outputs},
                                         output + line);
        const f32 *x_from = x + (u64)(row + x_line) * ${k} + lane * 4;
        const ${element} *from = (const ${element} *)(part ? weight2 : weight) +
                                 (u64)(output + line) * ${k} +
                                 thread_id() % ${BLOCK // piece} * ${piece};
        f32 sums[${sums}];
        #pragma unroll
        for (u32 i = 0; i < ${sums}; i++)
            sums[i] = ${f32(0)};
        block_sync();
        for (u32 chunk = 0; chunk < ${stages - 1}; chunk++) {
            if (chunk < ${chunks})
                fetch_chunk(ring + chunk * ${stage_bytes}, x_from, from, chunk, live_rows,
                            live_outputs);
            copy_async_commit();
        }
        u32 slot = 0, filled = ${stages - 1};
        for (u32 chunk = 0; chunk < ${chunks}; chunk++) {
            copy_async_wait(${stages - 2});
            block_sync();
            if (chunk + ${stages - 1} < ${chunks})
                fetch_chunk(ring + filled * ${stage_bytes}, x_from, from,
                            chunk + ${stages - 1}, live_rows, live_outputs);
            copy_async_commit();
            const f32 *left = (const f32 *)(ring + slot * ${stage_bytes}) + warp_row * ${BLOCK} +
                              lane * 4;
            const ${element} *right = (const ${element} *)(ring + slot * ${stage_bytes} +
                                                           ${tile_rows * BLOCK * 4}) +
                                      warp_output * ${BLOCK} + lane * 4;
            slot = slot + 1 == ${stages} ? 0 : slot + 1;
            filled = filled + 1 == ${stages} ? 0 : filled + 1;
            //@ if k % BLOCK ~= 0 then
            if (chunk * ${BLOCK} + lane * 4 < ${k})
            //@ end
            {
                f32 v[${rows_each}][4];
                #pragma unroll
                for (u32 r = 0; r < ${rows_each}; r++)
                    load4_f32(left + r * ${BLOCK}, v[r]);
                #pragma unroll
                for (u32 o = 0; o < ${outputs}; o++) {
                    f32 w[4];
                    load4_weight(right + o * ${BLOCK}, w);
                    for (u32 i = 0; i < 4; i++) {
                        #pragma unroll
                        for (u32 r = 0; r < ${rows_each}; r++) {
                            f32 *sum = sums + r * ${outputs} + o;
                            *sum = f_fma(v[r][i], w[i], *sum);
                        }
                    }
                }
            }
        }
        copy_async_wait(0);
        #pragma unroll
        for (u32 r = 0; r < ${rows_each}; r++) {
            #pragma unroll
            for (u32 o = 0; o < ${outputs}; o++) {
                const u32 y_row = row + warp_row + r, y_output = output + warp_output + o;
                if (y_output < ${p.n}) {
                    f32 sum = ${f32(0)};
                    if (y_row < rows)
                        sum = warp_sum_f32(sums[r * ${outputs} + o]);
                    if (lane == 0)
                        y[(u64)y_row * ${stride} + part * ${p.n} + y_output] = sum;
                }
            }
        }
    ${tiles.close}
}
