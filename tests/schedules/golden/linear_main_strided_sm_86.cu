// Index of the lane's first word in its tile.
static FN u32 trellis_first(u32 lane)
{
    return (32 * lane + 1012) % 1024 / 32;
}

// tile: the words of one tile; window[j]: the 16-bit state of position 8*lane + j.
static FN void trellis_windows(const u32 *tile, u32 first, u32 lane, u32 window[8])
{
    const u32 w0 = tile[first];
    const u32 w1 = tile[(first + 1) % 32];
    // bits = 4: w0:w1 hold the windows from bit 20 on; byte permutes do most of the extraction.
    const u32 u = funnel_right(w0, w1, 4), s = funnel_right(w0, w1, 20);
    const u32 t = funnel_right(w0, w1, 24);
    window[0] = byte_permute(s, 0, 0x4421);
    window[1] = byte_permute(t, 0, 0x4410);
    window[2] = byte_permute(u, 0, 0x4432);
    window[3] = byte_permute(w1, 0, 0x4432);
    window[4] = byte_permute(u, 0, 0x4421);
    window[5] = byte_permute(w1, 0, 0x4421);
    window[6] = byte_permute(u, 0, 0x4410);
    window[7] = byte_permute(w1, 0, 0x4410);
}

// The mul1 product; the weight is affine in the sum of its bytes.
static FN u32 trellis_product(u32 state)
{
    return state * 0x83DCD12Du;
}
// Declarations: name_source, this warp's tiles at the item's first k-tile; name_stride, the words
// of a k-tile.
// The copies of one stage: this warp's tiles of one k-tile, 16 bytes a lane a round.
static FN void issue_stage(u32 *slot, const u32 *from, u32 lane)
{
    copy_async16(slot + (0 + lane) * 4, from + (0 + lane) * 4);
}

extern "C" __global__ void __launch_bounds__(64, 2) elpis_linear_main(
    const u32 * const *weights, /* [parts] -> trellis [k/16, n/16, 8*bits] */
    const u32 *act, /* [parts, k/16, 32, 2] */
    const i32 *exponents, /* [parts, 8, blocks] */
    u64 *sums, /* [8, columns of all parts], added to */
    const u32 *round) /* [0] = active rows */
{
    const u32 rows = round[0];
    const u32 thread = thread_id(), lane = lane_id(), warp = warp_id();
    const u32 n_warp = warp % 2, k_warp = warp / 2;
    const u32 count = ((167 - cta_id()) / 164);
    if (count == 0)
        return;
    // from where the tiles of group 0 of all parts would lie
    const u32 *weight_0 = weights[0] - 0;
    u32 *ring = shared_at(u32, 0) + warp * 2048;
    u32 *acts = shared_at(u32, 16384);
    u32 *factor = shared_at(u32, 24576);
    const u32 first = trellis_first(lane);

    // Prologue: the ring but one item, the first span of activations, the factors of the blocks.
    for (u32 copy = thread; copy < 256; copy += 64) {
        const u32 wanted = 0 + copy / 128;
        if (wanted < count) {
            const u32 act_items_x = cta_id() + wanted * 164;
            const u32 act_group = act_items_x / 2;
            const u32 act_piece = act_items_x % 2;
            copy_async16(acts + (0) * 1024 + copy * 4,
                         act + 0u * 1024 +
                             act_piece * 512 +
                             copy % 128 * 4);
        }
    }
    if (0 < count) {
        const u32 next_items_x = cta_id() + 0 * 164;
        const u32 next_group = next_items_x / 2;
        const u32 next_piece = next_items_x % 2;
    const u32 next_stride = 512u;
    const u32 *next_source = weight_0 +
        ((next_piece * 1 + k_warp) * 8 * next_stride +
         (next_group * 8 + n_warp * 4) * 32);
        issue_stage(ring + 0, next_source + 0 * next_stride, lane);
        copy_async_commit();
        issue_stage(ring + 128, next_source + 1 * next_stride, lane);
        copy_async_commit();
        issue_stage(ring + 256, next_source + 2 * next_stride, lane);
        copy_async_commit();
        issue_stage(ring + 384, next_source + 3 * next_stride, lane);
        copy_async_commit();
        issue_stage(ring + 512, next_source + 4 * next_stride, lane);
        copy_async_commit();
        issue_stage(ring + 640, next_source + 5 * next_stride, lane);
        copy_async_commit();
        issue_stage(ring + 768, next_source + 6 * next_stride, lane);
        copy_async_commit();
        issue_stage(ring + 896, next_source + 7 * next_stride, lane);
        copy_async_commit();
    } else {
        copy_async_commit();
        copy_async_commit();
        copy_async_commit();
        copy_async_commit();
        copy_async_commit();
        copy_async_commit();
        copy_async_commit();
        copy_async_commit();
    }
    for (u32 job = warp; job < 8; job += 2) {
        const i32 *mine = exponents + job * 2;
        i32 top = -1000;
        for (u32 block = lane; block < 2; block += 32)
            top = mine[block] > top ? mine[block] : top;
        top = warp_max_i32(top);
        for (u32 block = lane; block < 2; block += 32) {
            const i32 power = mine[block] - top + 22;
            factor[(job / 8 * 2 + block) * 8 + job % 8] =
                power < 0 ? 0 : 1u << power;
        }
    }
    copy_async_wait(7);

    i32 high[16];
    i32 low[16];
    i64 total[16];
    high[0] = 0;
    low[0] = 0;
    total[0] = 0;
    high[1] = 0;
    low[1] = 0;
    total[1] = 0;
    high[2] = 0;
    low[2] = 0;
    total[2] = 0;
    high[3] = 0;
    low[3] = 0;
    total[3] = 0;
    high[4] = 0;
    low[4] = 0;
    total[4] = 0;
    high[5] = 0;
    low[5] = 0;
    total[5] = 0;
    high[6] = 0;
    low[6] = 0;
    total[6] = 0;
    high[7] = 0;
    low[7] = 0;
    total[7] = 0;
    high[8] = 0;
    low[8] = 0;
    total[8] = 0;
    high[9] = 0;
    low[9] = 0;
    total[9] = 0;
    high[10] = 0;
    low[10] = 0;
    total[10] = 0;
    high[11] = 0;
    low[11] = 0;
    total[11] = 0;
    high[12] = 0;
    low[12] = 0;
    total[12] = 0;
    high[13] = 0;
    low[13] = 0;
    total[13] = 0;
    high[14] = 0;
    low[14] = 0;
    total[14] = 0;
    high[15] = 0;
    low[15] = 0;
    total[15] = 0;
    u32 slot = 0, fill = 1024; // words into the ring
    u32 group, piece;
    {
        const u32 next_items_x = cta_id() + 0 * 164;
        const u32 next_group = next_items_x / 2;
        const u32 next_piece = next_items_x % 2;
        group = next_group;
        piece = next_piece;
    }
    for (u32 item = 0; item < count; item++) {
        if (item % 2 == 0) {
            block_sync();
            if (item + 2 < count) {
    for (u32 copy = thread; copy < 256; copy += 64) {
        const u32 wanted = item + 2 + copy / 128;
        if (wanted < count) {
            const u32 act_items_x = cta_id() + wanted * 164;
            const u32 act_group = act_items_x / 2;
            const u32 act_piece = act_items_x % 2;
            copy_async16(acts + ((item / 2 + 1) % 2) * 1024 + copy * 4,
                         act + 0u * 1024 +
                             act_piece * 512 +
                             copy % 128 * 4);
        }
    }
            }
        }
        const u32 more = item + 1 < count;
        const u32 far_items_x = cta_id() + (item + 1) * 164;
        const u32 far_group = far_items_x / 2;
        const u32 far_piece = far_items_x % 2;
    const u32 far_stride = 512u;
    const u32 *far_source = weight_0 +
        ((far_piece * 1 + k_warp) * 8 * far_stride +
         (far_group * 8 + n_warp * 4) * 32);
        const u32 *stage = ring + slot;
        u32 *filling = ring + fill;
        const u32 *digits_at =
            acts +
            ((item / 2 % 2 * 2 + item % 2) * 1 + k_warp) * 512 +
            lane * 2;
        slot = slot == 1024 ? 0 : slot + 1024;
        fill = fill == 1024 ? 0 : fill + 1024;
        {
            if (more)
                issue_stage(filling + 0, far_source + 0 * far_stride, lane);
            copy_async_commit();
            copy_async_wait(8);
            warp_sync();
            u32 digits[2];
            load2_u32(digits_at + 0, digits);
            u32 product[32];
            {
                u32 window[8];
                trellis_windows(stage + 0, first, lane, window);
                product[0] = trellis_product(window[0]);
                product[1] = trellis_product(window[1]);
                product[2] = trellis_product(window[2]);
                product[3] = trellis_product(window[3]);
                product[4] = trellis_product(window[4]);
                product[5] = trellis_product(window[5]);
                product[6] = trellis_product(window[6]);
                product[7] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 32, first, lane, window);
                product[8] = trellis_product(window[0]);
                product[9] = trellis_product(window[1]);
                product[10] = trellis_product(window[2]);
                product[11] = trellis_product(window[3]);
                product[12] = trellis_product(window[4]);
                product[13] = trellis_product(window[5]);
                product[14] = trellis_product(window[6]);
                product[15] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 64, first, lane, window);
                product[16] = trellis_product(window[0]);
                product[17] = trellis_product(window[1]);
                product[18] = trellis_product(window[2]);
                product[19] = trellis_product(window[3]);
                product[20] = trellis_product(window[4]);
                product[21] = trellis_product(window[5]);
                product[22] = trellis_product(window[6]);
                product[23] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 96, first, lane, window);
                product[24] = trellis_product(window[0]);
                product[25] = trellis_product(window[1]);
                product[26] = trellis_product(window[2]);
                product[27] = trellis_product(window[3]);
                product[28] = trellis_product(window[4]);
                product[29] = trellis_product(window[5]);
                product[30] = trellis_product(window[6]);
                product[31] = trellis_product(window[7]);
            }
            mma_u8s8_mul1(4, high, low, product, digits, rows);
        }
        {
            if (more)
                issue_stage(filling + 128, far_source + 1 * far_stride, lane);
            copy_async_commit();
            copy_async_wait(8);
            warp_sync();
            u32 digits[2];
            load2_u32(digits_at + 64, digits);
            u32 product[32];
            {
                u32 window[8];
                trellis_windows(stage + 128, first, lane, window);
                product[0] = trellis_product(window[0]);
                product[1] = trellis_product(window[1]);
                product[2] = trellis_product(window[2]);
                product[3] = trellis_product(window[3]);
                product[4] = trellis_product(window[4]);
                product[5] = trellis_product(window[5]);
                product[6] = trellis_product(window[6]);
                product[7] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 160, first, lane, window);
                product[8] = trellis_product(window[0]);
                product[9] = trellis_product(window[1]);
                product[10] = trellis_product(window[2]);
                product[11] = trellis_product(window[3]);
                product[12] = trellis_product(window[4]);
                product[13] = trellis_product(window[5]);
                product[14] = trellis_product(window[6]);
                product[15] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 192, first, lane, window);
                product[16] = trellis_product(window[0]);
                product[17] = trellis_product(window[1]);
                product[18] = trellis_product(window[2]);
                product[19] = trellis_product(window[3]);
                product[20] = trellis_product(window[4]);
                product[21] = trellis_product(window[5]);
                product[22] = trellis_product(window[6]);
                product[23] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 224, first, lane, window);
                product[24] = trellis_product(window[0]);
                product[25] = trellis_product(window[1]);
                product[26] = trellis_product(window[2]);
                product[27] = trellis_product(window[3]);
                product[28] = trellis_product(window[4]);
                product[29] = trellis_product(window[5]);
                product[30] = trellis_product(window[6]);
                product[31] = trellis_product(window[7]);
            }
            mma_u8s8_mul1(4, high, low, product, digits, rows);
        }
        {
            if (more)
                issue_stage(filling + 256, far_source + 2 * far_stride, lane);
            copy_async_commit();
            copy_async_wait(8);
            warp_sync();
            u32 digits[2];
            load2_u32(digits_at + 128, digits);
            u32 product[32];
            {
                u32 window[8];
                trellis_windows(stage + 256, first, lane, window);
                product[0] = trellis_product(window[0]);
                product[1] = trellis_product(window[1]);
                product[2] = trellis_product(window[2]);
                product[3] = trellis_product(window[3]);
                product[4] = trellis_product(window[4]);
                product[5] = trellis_product(window[5]);
                product[6] = trellis_product(window[6]);
                product[7] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 288, first, lane, window);
                product[8] = trellis_product(window[0]);
                product[9] = trellis_product(window[1]);
                product[10] = trellis_product(window[2]);
                product[11] = trellis_product(window[3]);
                product[12] = trellis_product(window[4]);
                product[13] = trellis_product(window[5]);
                product[14] = trellis_product(window[6]);
                product[15] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 320, first, lane, window);
                product[16] = trellis_product(window[0]);
                product[17] = trellis_product(window[1]);
                product[18] = trellis_product(window[2]);
                product[19] = trellis_product(window[3]);
                product[20] = trellis_product(window[4]);
                product[21] = trellis_product(window[5]);
                product[22] = trellis_product(window[6]);
                product[23] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 352, first, lane, window);
                product[24] = trellis_product(window[0]);
                product[25] = trellis_product(window[1]);
                product[26] = trellis_product(window[2]);
                product[27] = trellis_product(window[3]);
                product[28] = trellis_product(window[4]);
                product[29] = trellis_product(window[5]);
                product[30] = trellis_product(window[6]);
                product[31] = trellis_product(window[7]);
            }
            mma_u8s8_mul1(4, high, low, product, digits, rows);
        }
        {
            if (more)
                issue_stage(filling + 384, far_source + 3 * far_stride, lane);
            copy_async_commit();
            copy_async_wait(8);
            warp_sync();
            u32 digits[2];
            load2_u32(digits_at + 192, digits);
            u32 product[32];
            {
                u32 window[8];
                trellis_windows(stage + 384, first, lane, window);
                product[0] = trellis_product(window[0]);
                product[1] = trellis_product(window[1]);
                product[2] = trellis_product(window[2]);
                product[3] = trellis_product(window[3]);
                product[4] = trellis_product(window[4]);
                product[5] = trellis_product(window[5]);
                product[6] = trellis_product(window[6]);
                product[7] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 416, first, lane, window);
                product[8] = trellis_product(window[0]);
                product[9] = trellis_product(window[1]);
                product[10] = trellis_product(window[2]);
                product[11] = trellis_product(window[3]);
                product[12] = trellis_product(window[4]);
                product[13] = trellis_product(window[5]);
                product[14] = trellis_product(window[6]);
                product[15] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 448, first, lane, window);
                product[16] = trellis_product(window[0]);
                product[17] = trellis_product(window[1]);
                product[18] = trellis_product(window[2]);
                product[19] = trellis_product(window[3]);
                product[20] = trellis_product(window[4]);
                product[21] = trellis_product(window[5]);
                product[22] = trellis_product(window[6]);
                product[23] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 480, first, lane, window);
                product[24] = trellis_product(window[0]);
                product[25] = trellis_product(window[1]);
                product[26] = trellis_product(window[2]);
                product[27] = trellis_product(window[3]);
                product[28] = trellis_product(window[4]);
                product[29] = trellis_product(window[5]);
                product[30] = trellis_product(window[6]);
                product[31] = trellis_product(window[7]);
            }
            mma_u8s8_mul1(4, high, low, product, digits, rows);
        }
        {
            if (more)
                issue_stage(filling + 512, far_source + 4 * far_stride, lane);
            copy_async_commit();
            copy_async_wait(8);
            warp_sync();
            u32 digits[2];
            load2_u32(digits_at + 256, digits);
            u32 product[32];
            {
                u32 window[8];
                trellis_windows(stage + 512, first, lane, window);
                product[0] = trellis_product(window[0]);
                product[1] = trellis_product(window[1]);
                product[2] = trellis_product(window[2]);
                product[3] = trellis_product(window[3]);
                product[4] = trellis_product(window[4]);
                product[5] = trellis_product(window[5]);
                product[6] = trellis_product(window[6]);
                product[7] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 544, first, lane, window);
                product[8] = trellis_product(window[0]);
                product[9] = trellis_product(window[1]);
                product[10] = trellis_product(window[2]);
                product[11] = trellis_product(window[3]);
                product[12] = trellis_product(window[4]);
                product[13] = trellis_product(window[5]);
                product[14] = trellis_product(window[6]);
                product[15] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 576, first, lane, window);
                product[16] = trellis_product(window[0]);
                product[17] = trellis_product(window[1]);
                product[18] = trellis_product(window[2]);
                product[19] = trellis_product(window[3]);
                product[20] = trellis_product(window[4]);
                product[21] = trellis_product(window[5]);
                product[22] = trellis_product(window[6]);
                product[23] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 608, first, lane, window);
                product[24] = trellis_product(window[0]);
                product[25] = trellis_product(window[1]);
                product[26] = trellis_product(window[2]);
                product[27] = trellis_product(window[3]);
                product[28] = trellis_product(window[4]);
                product[29] = trellis_product(window[5]);
                product[30] = trellis_product(window[6]);
                product[31] = trellis_product(window[7]);
            }
            mma_u8s8_mul1(4, high, low, product, digits, rows);
        }
        {
            if (more)
                issue_stage(filling + 640, far_source + 5 * far_stride, lane);
            copy_async_commit();
            copy_async_wait(8);
            warp_sync();
            u32 digits[2];
            load2_u32(digits_at + 320, digits);
            u32 product[32];
            {
                u32 window[8];
                trellis_windows(stage + 640, first, lane, window);
                product[0] = trellis_product(window[0]);
                product[1] = trellis_product(window[1]);
                product[2] = trellis_product(window[2]);
                product[3] = trellis_product(window[3]);
                product[4] = trellis_product(window[4]);
                product[5] = trellis_product(window[5]);
                product[6] = trellis_product(window[6]);
                product[7] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 672, first, lane, window);
                product[8] = trellis_product(window[0]);
                product[9] = trellis_product(window[1]);
                product[10] = trellis_product(window[2]);
                product[11] = trellis_product(window[3]);
                product[12] = trellis_product(window[4]);
                product[13] = trellis_product(window[5]);
                product[14] = trellis_product(window[6]);
                product[15] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 704, first, lane, window);
                product[16] = trellis_product(window[0]);
                product[17] = trellis_product(window[1]);
                product[18] = trellis_product(window[2]);
                product[19] = trellis_product(window[3]);
                product[20] = trellis_product(window[4]);
                product[21] = trellis_product(window[5]);
                product[22] = trellis_product(window[6]);
                product[23] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 736, first, lane, window);
                product[24] = trellis_product(window[0]);
                product[25] = trellis_product(window[1]);
                product[26] = trellis_product(window[2]);
                product[27] = trellis_product(window[3]);
                product[28] = trellis_product(window[4]);
                product[29] = trellis_product(window[5]);
                product[30] = trellis_product(window[6]);
                product[31] = trellis_product(window[7]);
            }
            mma_u8s8_mul1(4, high, low, product, digits, rows);
        }
        {
            if (more)
                issue_stage(filling + 768, far_source + 6 * far_stride, lane);
            copy_async_commit();
            copy_async_wait(8);
            warp_sync();
            u32 digits[2];
            load2_u32(digits_at + 384, digits);
            u32 product[32];
            {
                u32 window[8];
                trellis_windows(stage + 768, first, lane, window);
                product[0] = trellis_product(window[0]);
                product[1] = trellis_product(window[1]);
                product[2] = trellis_product(window[2]);
                product[3] = trellis_product(window[3]);
                product[4] = trellis_product(window[4]);
                product[5] = trellis_product(window[5]);
                product[6] = trellis_product(window[6]);
                product[7] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 800, first, lane, window);
                product[8] = trellis_product(window[0]);
                product[9] = trellis_product(window[1]);
                product[10] = trellis_product(window[2]);
                product[11] = trellis_product(window[3]);
                product[12] = trellis_product(window[4]);
                product[13] = trellis_product(window[5]);
                product[14] = trellis_product(window[6]);
                product[15] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 832, first, lane, window);
                product[16] = trellis_product(window[0]);
                product[17] = trellis_product(window[1]);
                product[18] = trellis_product(window[2]);
                product[19] = trellis_product(window[3]);
                product[20] = trellis_product(window[4]);
                product[21] = trellis_product(window[5]);
                product[22] = trellis_product(window[6]);
                product[23] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 864, first, lane, window);
                product[24] = trellis_product(window[0]);
                product[25] = trellis_product(window[1]);
                product[26] = trellis_product(window[2]);
                product[27] = trellis_product(window[3]);
                product[28] = trellis_product(window[4]);
                product[29] = trellis_product(window[5]);
                product[30] = trellis_product(window[6]);
                product[31] = trellis_product(window[7]);
            }
            mma_u8s8_mul1(4, high, low, product, digits, rows);
        }
        {
            if (more)
                issue_stage(filling + 896, far_source + 7 * far_stride, lane);
            copy_async_commit();
            copy_async_wait(8);
            warp_sync();
            u32 digits[2];
            load2_u32(digits_at + 448, digits);
            u32 product[32];
            {
                u32 window[8];
                trellis_windows(stage + 896, first, lane, window);
                product[0] = trellis_product(window[0]);
                product[1] = trellis_product(window[1]);
                product[2] = trellis_product(window[2]);
                product[3] = trellis_product(window[3]);
                product[4] = trellis_product(window[4]);
                product[5] = trellis_product(window[5]);
                product[6] = trellis_product(window[6]);
                product[7] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 928, first, lane, window);
                product[8] = trellis_product(window[0]);
                product[9] = trellis_product(window[1]);
                product[10] = trellis_product(window[2]);
                product[11] = trellis_product(window[3]);
                product[12] = trellis_product(window[4]);
                product[13] = trellis_product(window[5]);
                product[14] = trellis_product(window[6]);
                product[15] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 960, first, lane, window);
                product[16] = trellis_product(window[0]);
                product[17] = trellis_product(window[1]);
                product[18] = trellis_product(window[2]);
                product[19] = trellis_product(window[3]);
                product[20] = trellis_product(window[4]);
                product[21] = trellis_product(window[5]);
                product[22] = trellis_product(window[6]);
                product[23] = trellis_product(window[7]);
            }
            {
                u32 window[8];
                trellis_windows(stage + 992, first, lane, window);
                product[24] = trellis_product(window[0]);
                product[25] = trellis_product(window[1]);
                product[26] = trellis_product(window[2]);
                product[27] = trellis_product(window[3]);
                product[28] = trellis_product(window[4]);
                product[29] = trellis_product(window[5]);
                product[30] = trellis_product(window[6]);
                product[31] = trellis_product(window[7]);
            }
            mma_u8s8_mul1(4, high, low, product, digits, rows);
        }

        // Where the next item lies decides whether this block and this group end here.
        u32 after_group = 2, after_piece = 0;
        if (item + 1 < count) {
            const u32 next_items_x = cta_id() + (item + 1) * 164;
            const u32 next_group = next_items_x / 2;
            const u32 next_piece = next_items_x % 2;
            after_group = next_group;
            after_piece = next_piece;
        }
        const u32 block = (piece * 1 + k_warp) * 8 / 8;
        if (after_group != group ||
            (after_piece * 1 + k_warp) * 8 / 8 != block) {
            const u32 *mine = factor + 0u * 16 +
                              block * 8 + lane % 4 * 2;
            const u32 factor_0 = mine[0], factor_1 = mine[1];
            total[0] = i64_mul_add(high[0], (i32)(factor_0 << 8), total[0]);
            total[0] = i64_mul_add(low[0], (i32)factor_0, total[0]);
            high[0] = 0;
            low[0] = 0;
            total[1] = i64_mul_add(high[1], (i32)(factor_1 << 8), total[1]);
            total[1] = i64_mul_add(low[1], (i32)factor_1, total[1]);
            high[1] = 0;
            low[1] = 0;
            total[2] = i64_mul_add(high[2], (i32)(factor_0 << 8), total[2]);
            total[2] = i64_mul_add(low[2], (i32)factor_0, total[2]);
            high[2] = 0;
            low[2] = 0;
            total[3] = i64_mul_add(high[3], (i32)(factor_1 << 8), total[3]);
            total[3] = i64_mul_add(low[3], (i32)factor_1, total[3]);
            high[3] = 0;
            low[3] = 0;
            total[4] = i64_mul_add(high[4], (i32)(factor_0 << 8), total[4]);
            total[4] = i64_mul_add(low[4], (i32)factor_0, total[4]);
            high[4] = 0;
            low[4] = 0;
            total[5] = i64_mul_add(high[5], (i32)(factor_1 << 8), total[5]);
            total[5] = i64_mul_add(low[5], (i32)factor_1, total[5]);
            high[5] = 0;
            low[5] = 0;
            total[6] = i64_mul_add(high[6], (i32)(factor_0 << 8), total[6]);
            total[6] = i64_mul_add(low[6], (i32)factor_0, total[6]);
            high[6] = 0;
            low[6] = 0;
            total[7] = i64_mul_add(high[7], (i32)(factor_1 << 8), total[7]);
            total[7] = i64_mul_add(low[7], (i32)factor_1, total[7]);
            high[7] = 0;
            low[7] = 0;
            total[8] = i64_mul_add(high[8], (i32)(factor_0 << 8), total[8]);
            total[8] = i64_mul_add(low[8], (i32)factor_0, total[8]);
            high[8] = 0;
            low[8] = 0;
            total[9] = i64_mul_add(high[9], (i32)(factor_1 << 8), total[9]);
            total[9] = i64_mul_add(low[9], (i32)factor_1, total[9]);
            high[9] = 0;
            low[9] = 0;
            total[10] = i64_mul_add(high[10], (i32)(factor_0 << 8), total[10]);
            total[10] = i64_mul_add(low[10], (i32)factor_0, total[10]);
            high[10] = 0;
            low[10] = 0;
            total[11] = i64_mul_add(high[11], (i32)(factor_1 << 8), total[11]);
            total[11] = i64_mul_add(low[11], (i32)factor_1, total[11]);
            high[11] = 0;
            low[11] = 0;
            total[12] = i64_mul_add(high[12], (i32)(factor_0 << 8), total[12]);
            total[12] = i64_mul_add(low[12], (i32)factor_0, total[12]);
            high[12] = 0;
            low[12] = 0;
            total[13] = i64_mul_add(high[13], (i32)(factor_1 << 8), total[13]);
            total[13] = i64_mul_add(low[13], (i32)factor_1, total[13]);
            high[13] = 0;
            low[13] = 0;
            total[14] = i64_mul_add(high[14], (i32)(factor_0 << 8), total[14]);
            total[14] = i64_mul_add(low[14], (i32)factor_0, total[14]);
            high[14] = 0;
            low[14] = 0;
            total[15] = i64_mul_add(high[15], (i32)(factor_1 << 8), total[15]);
            total[15] = i64_mul_add(low[15], (i32)factor_1, total[15]);
            high[15] = 0;
            low[15] = 0;
        }
        if (after_group != group) {
            if (k_warp == 0) {
                u64 *to = sums + group * 128 + n_warp * 64 + lane / 4;
                const u32 row = lane % 4 * 2;
                if (row + 0 < rows) {
                    atomic_add_u64_global(to + (row + 0) * 256 + 0,
                                          (u64)total[0]);
                    atomic_add_u64_global(to + (row + 0) * 256 + 8,
                                          (u64)total[2]);
                    atomic_add_u64_global(to + (row + 0) * 256 + 16,
                                          (u64)total[4]);
                    atomic_add_u64_global(to + (row + 0) * 256 + 24,
                                          (u64)total[6]);
                    atomic_add_u64_global(to + (row + 0) * 256 + 32,
                                          (u64)total[8]);
                    atomic_add_u64_global(to + (row + 0) * 256 + 40,
                                          (u64)total[10]);
                    atomic_add_u64_global(to + (row + 0) * 256 + 48,
                                          (u64)total[12]);
                    atomic_add_u64_global(to + (row + 0) * 256 + 56,
                                          (u64)total[14]);
                }
                if (row + 1 < rows) {
                    atomic_add_u64_global(to + (row + 1) * 256 + 0,
                                          (u64)total[1]);
                    atomic_add_u64_global(to + (row + 1) * 256 + 8,
                                          (u64)total[3]);
                    atomic_add_u64_global(to + (row + 1) * 256 + 16,
                                          (u64)total[5]);
                    atomic_add_u64_global(to + (row + 1) * 256 + 24,
                                          (u64)total[7]);
                    atomic_add_u64_global(to + (row + 1) * 256 + 32,
                                          (u64)total[9]);
                    atomic_add_u64_global(to + (row + 1) * 256 + 40,
                                          (u64)total[11]);
                    atomic_add_u64_global(to + (row + 1) * 256 + 48,
                                          (u64)total[13]);
                    atomic_add_u64_global(to + (row + 1) * 256 + 56,
                                          (u64)total[15]);
                }
            }
            total[0] = 0;
            total[1] = 0;
            total[2] = 0;
            total[3] = 0;
            total[4] = 0;
            total[5] = 0;
            total[6] = 0;
            total[7] = 0;
            total[8] = 0;
            total[9] = 0;
            total[10] = 0;
            total[11] = 0;
            total[12] = 0;
            total[13] = 0;
            total[14] = 0;
            total[15] = 0;
        }
        group = after_group;
        piece = after_piece;
    }
}
