extern "C" __global__ void __launch_bounds__(64) elpis_embed(
    const void *table, /* [vocab, hidden] of dtype */
    const u32 *tokens, /* [rows] */
    f32 *x, /* [rows, hidden] */
    f32 *squares, /* [rows, hidden/128] */
    const u32 *round) /* [0] = active rows */
{ wait_previous();
    const u32 rows = round[0];
    const u32 lane = lane_id();
    // jobs: [row rows, chunk 2] over 16 warps, contiguous
    {
        const u32 jobs_worker = cta_id() * 2 + warp_id();
        const u32 jobs_count = rows * 2 * (jobs_worker + 1) / 16 - rows * 2 * jobs_worker / 16;
        for (u32 jobs_i = 0; jobs_i < jobs_count; jobs_i++) {
            const u32 jobs_x = rows * 2 * jobs_worker / 16 + jobs_i;
            const u32 row = jobs_x / 2;
            const u32 chunk = jobs_x % 2;
        const u32 column = chunk * 128 + lane * 4;
        const u16 *from = (const u16 *)table + (u64)tokens[row] * 256 + column;
        f32 square = f_from_bits(0x00000000u);
        {
            const f32 value = f_from_bf16(from[0]);
            square = f_fma(value, value, square);
            x[row * 256 + column + 0] = value;
        }
        {
            const f32 value = f_from_bf16(from[1]);
            square = f_fma(value, value, square);
            x[row * 256 + column + 1] = value;
        }
        {
            const f32 value = f_from_bf16(from[2]);
            square = f_fma(value, value, square);
            x[row * 256 + column + 2] = value;
        }
        {
            const f32 value = f_from_bf16(from[3]);
            square = f_fma(value, value, square);
            x[row * 256 + column + 3] = value;
        }
        square = warp_sum_f32(square);
        if (lane == 0)
            squares[row * 2 + chunk] = square;
        }
    }
}
