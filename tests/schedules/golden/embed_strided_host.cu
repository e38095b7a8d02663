static void elpis_embed_body(
    const void *table, /* [vocab, hidden] of dtype */
    const u32 *tokens, /* [rows] */
    f32 *x, /* [rows, hidden] */
    f32 *squares, /* [rows, hidden/128] */
    const u32 *round); /* [0] = active rows */
void elpis_embed(const u64 *slots)
{
    elpis_embed_body((const void *)(uintptr)slots[0],
        (const u32 *)(uintptr)slots[1],
        (f32 *)(uintptr)slots[2],
        (f32 *)(uintptr)slots[3],
        (const u32 *)(uintptr)slots[4]);
}
static void elpis_embed_body(
    const void *table, /* [vocab, hidden] of dtype */
    const u32 *tokens, /* [rows] */
    f32 *x, /* [rows, hidden] */
    f32 *squares, /* [rows, hidden/128] */
    const u32 *round) /* [0] = active rows */
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    // jobs: [row rows, chunk 2] over 16 warps, strided
    {
        const u32 jobs_worker = cta_id() * 2 + warp_id();
        const u32 jobs_count = (rows * 2 + 16 - 1 - jobs_worker) / 16;
        for (u32 jobs_i = 0; jobs_i < jobs_count; jobs_i++) {
            const u32 jobs_x = jobs_worker + jobs_i * 16;
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
