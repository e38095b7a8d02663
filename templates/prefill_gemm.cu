//@ -- see schedules/prefill_gemm.lua
// Where 16-byte piece `piece` of a row lies: swizzled so that the eight rows of a matrix that
// ldmatrix reads at once fall on different banks.
static FN u32 a_place(u32 row, u32 piece)
{
    return (row * ${a_pieces} + (piece ^ (row / ${a_share} & ${a_mask}))) * 8;
}

static FN u32 b_place(u32 row, u32 piece)
{
    return (row * ${b_pieces} + (piece ^ (row & 7))) * 8;
}

// Starts the copies of k step `step`. a, b: first row and column of the tile; live: its rows.
static FN void fetch_step(h16 *stage, const h16 *a, const h16 *b, u32 step, u32 live)
{
    for (u32 i = thread_id(); i < ${tile_m * a_pieces}; i += ${threads}) {
        const u32 row = i / ${a_pieces}, piece = i % ${a_pieces};
        if (row < live)
            copy_async16(stage + a_place(row, piece),
                         a + (u64)row * ${k} + step * ${tile_k} + piece * 8);
    }
    for (u32 i = thread_id(); i < ${tile_k * b_pieces}; i += ${threads}) {
        const u32 row = i / ${b_pieces}, piece = i % ${b_pieces};
        copy_async16(stage + ${a_halves} + b_place(row, piece),
                     b + (u64)(step * ${tile_k} + row) * ${n} + piece * 8);
    }
}

KERNEL
{
    const u32 lane = lane_id();
    const u32 warp_row = warp_id() / ${warps_n} * ${16 * fragments_m};
    const u32 warp_column = warp_id() % ${warps_n} * ${8 * fragments_n};
    const u32 bands = (rows + ${BAND - 1}) / ${BAND};
    h16 *ring = ${shared.ring};
    ${tiles.open}
        const u32 rest = bands * ${BAND} - tile * ${tile_m};
        const u32 live = rest < ${tile_m} ? rest : ${tile_m};
        const h16 *a_tile = a + (u64)tile * ${tile_m * k};
        const h16 *b_tile = b + column * ${tile_n};
        f32 sums[${4 * fragments_m * fragments_n}];
        #pragma unroll
        for (u32 i = 0; i < ${4 * fragments_m * fragments_n}; i++)
            sums[i] = ${f32(0)};
        block_sync();
        for (u32 step = 0; step < ${stages - 1}; step++) {
            if (step < ${steps})
                fetch_step(ring + step * ${stage_halves}, a_tile, b_tile, step, live);
            copy_async_commit();
        }
        u32 slot = 0;
        for (u32 step = 0; step < ${steps}; step++) {
            copy_async_wait(${stages - 2});
            block_sync();
            const u32 ahead = step + ${stages - 1};
            if (ahead < ${steps})
                fetch_step(ring + ahead % ${stages} * ${stage_halves}, a_tile, b_tile, ahead, live);
            copy_async_commit();
            const h16 *stage = ring + slot * ${stage_halves};
            slot = slot + 1 == ${stages} ? 0 : slot + 1;
            //@ if sum_bits == 16 then
            #pragma unroll
            for (u32 slice = 0; slice < ${tile_k // 32}; slice++) {
                u32 right[${4 * fragments_n}]; // [step of 16][2 * fragments_n]
                #pragma unroll
                for (u32 part = 0; part < 2; part++) {
                    #pragma unroll
                    for (u32 j = 0; j < ${fragments_n // 2}; j++)
                        load_matrix_x4_trans(right + part * ${2 * fragments_n} + 4 * j,
                            stage + ${a_halves} + b_place(slice * 32 + part * 16 + lane % 16,
                                                          warp_column / 8 + j * 2 + lane / 16));
                }
                #pragma unroll
                for (u32 i = 0; i < ${fragments_m}; i++) {
                    u32 left[8];
                    #pragma unroll
                    for (u32 part = 0; part < 2; part++)
                        load_matrix_x4(left + 4 * part,
                            stage + a_place(warp_row + i * 16 + lane % 16,
                                            slice * 4 + part * 2 + lane / 16));
                    mma_f16_slice(${fragments_n}, sums + i * ${4 * fragments_n}, left, right);
                }
            }
            //@ else
            #pragma unroll
            for (u32 part = 0; part < ${tile_k // 16}; part++) {
                u32 left[${4 * fragments_m}], right[${2 * fragments_n}];
                #pragma unroll
                for (u32 i = 0; i < ${fragments_m}; i++)
                    load_matrix_x4(left + 4 * i, stage + a_place(warp_row + i * 16 + lane % 16,
                                                                 part * 2 + lane / 16));
                #pragma unroll
                for (u32 j = 0; j < ${fragments_n // 2}; j++)
                    load_matrix_x4_trans(right + 4 * j, stage + ${a_halves}
                        + b_place(part * 16 + lane % 16, warp_column / 8 + j * 2 + lane / 16));
                mma_f16_ab(${fragments_m}, ${fragments_n}, sums, left, right);
            }
            //@ end
        }
        copy_async_wait(0);
        if (warp_row < live) {
            #pragma unroll
            for (u32 i = 0; i < ${fragments_m}; i++) {
                #pragma unroll
                for (u32 j = 0; j < ${fragments_n}; j++) {
                    const f32 *four = sums + 4 * (i * ${fragments_n} + j);
                    const u32 low[2] = {f_bits(four[0]), f_bits(four[1])};
                    const u32 high[2] = {f_bits(four[2]), f_bits(four[3])};
                    const u32 row = warp_row + i * 16 + lane / 4;
                    const u32 at = column * ${tile_n} + warp_column + j * 8 + lane % 4 * 2;
                    if (row < live) {
                        f32 *target = d + (u64)(tile * ${tile_m} + row) * ${n} + at;
                        store2_u32((u32 *)target, low);
                        store2_u32((u32 *)(target + ${8 * n}), high);
                    }
                }
            }
        }
    ${tiles.close}
}
