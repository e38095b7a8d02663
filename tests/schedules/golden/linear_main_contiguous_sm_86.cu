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
    const u32 u = funnel_right(w0, w1, 4), s = funnel_right(w0, w1, 20), t = funnel_right(w0, w1, 24);
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
// The copies of one stage: this warp's tiles of one k-tile, 16 bytes a lane a round.
static FN void issue_stage(u32 *slot, const u32 *from, u32 lane)
{
    if (0 + lane < 16)
        copy_async16(slot + (0 + lane) * 4, from + (0 + lane) * 4);
}

extern "C" __global__ void __launch_bounds__(64, 1) elpis_linear_main(
    const u32 * const *weights, /* [parts] -> trellis [k/16, n/16, 8*bits] */
    const u32 *act, /* [parts, k/16, 32, 2] */
    const i32 *exponents, /* [parts, 8, blocks] */
    u64 *sums, /* [8, columns of all parts], added to */
    const u32 *round) /* [0] = active rows */
{
    const u32 rows = round[0];
    const u32 thread = thread_id(), lane = lane_id(), warp = warp_id();
    const u32 count = (64 * (cta_id() + 1) / 82 - 64 * cta_id() / 82);
    if (count == 0)
        return;
    const u32 *weight_0 = weights[0];
    u32 *ring = shared_at(u32, 0) + warp * 192;
    u32 *acts = shared_at(u32, 1536);
    u32 *factor = shared_at(u32, 9728);
    const u32 first = trellis_first(lane);

    // Prologue: the ring but one stage, the first span of activations, the factors of the blocks.
    for (u32 piece = thread; piece < 256; piece += 64) {
        const u32 wanted = 0 + piece / 16;
        if (wanted < count) {
            const u32 act_items_x = 64 * cta_id() / 82 + wanted;
            const u32 act_group = act_items_x / 16;
            const u32 act_ktile = act_items_x % 16;
            copy_async16(acts + (0) * 1024 + piece * 4,
                         act + (0) * 1024 + act_ktile * 64 + piece % 16 * 4);
        }
    }
    if (0 < count) {
        const u32 next_items_x = 64 * cta_id() / 82 + 0;
        const u32 next_group = next_items_x / 16;
        const u32 next_ktile = next_items_x % 16;
        issue_stage(ring + 0, weight_0 + (next_ktile * 16u + (next_group - 0u) * 4u + warp * 2u) * 32u, lane);
    }
    copy_async_commit();
    if (1 < count) {
        const u32 next_items_x = 64 * cta_id() / 82 + 1;
        const u32 next_group = next_items_x / 16;
        const u32 next_ktile = next_items_x % 16;
        issue_stage(ring + 64, weight_0 + (next_ktile * 16u + (next_group - 0u) * 4u + warp * 2u) * 32u, lane);
    }
    copy_async_commit();
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

    i32 high[8];
    i32 low[8];
    i64 total[8];
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
    u32 slot = 0, fill = 2;
    u32 group, ktile;
    {
        const u32 next_items_x = 64 * cta_id() / 82 + 0;
        const u32 next_group = next_items_x / 16;
        const u32 next_ktile = next_items_x % 16;
        group = next_group;
        ktile = next_ktile;
    }
    for (u32 item = 0; item < count; item++) {
        if (item + 2 < count) {
            const u32 far_items_x = 64 * cta_id() / 82 + (item + 2);
            const u32 far_group = far_items_x / 16;
            const u32 far_ktile = far_items_x % 16;
            issue_stage(ring + fill * 64, weight_0 + (far_ktile * 16u + (far_group - 0u) * 4u + warp * 2u) * 32u, lane);
        }
        fill = fill == 2 ? 0 : fill + 1;
        copy_async_commit();
        copy_async_wait(2);
        if (item % 16 == 0) {
            block_sync();
            if (item + 16 < count) {
    for (u32 piece = thread; piece < 256; piece += 64) {
        const u32 wanted = item + 16 + piece / 16;
        if (wanted < count) {
            const u32 act_items_x = 64 * cta_id() / 82 + wanted;
            const u32 act_group = act_items_x / 16;
            const u32 act_ktile = act_items_x % 16;
            copy_async16(acts + ((item / 16 + 1) % 2) * 1024 + piece * 4,
                         act + (0) * 1024 + act_ktile * 64 + piece % 16 * 4);
        }
    }
            }
        } else {
            warp_sync();
        }
        const u32 *stage = ring + slot * 64;
        slot = slot == 2 ? 0 : slot + 1;
        u32 digits[2];
        load2_u32(acts + (item / 16 % 2 * 16 + item % 16) * 64 + lane * 2, digits);
        u32 product[16];
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
        mma_u8s8_mul1(2, high, low, product, digits, rows);

        // Where the next item lies decides whether this block and this group end here.
        u32 after_group = 4, after_ktile = 0;
        if (item + 1 < count) {
            const u32 next_items_x = 64 * cta_id() / 82 + (item + 1);
            const u32 next_group = next_items_x / 16;
            const u32 next_ktile = next_items_x % 16;
            after_group = next_group;
            after_ktile = next_ktile;
        }
        if (after_group != group || after_ktile / 8 != ktile / 8) {
            const u32 *mine = factor + (0) * 16 +
                              ktile / 8 * 8 + lane % 4 * 2;
            const u32 factor_0 = mine[0], factor_1 = mine[1];
            total[0] = i64_mul_add(high[0], factor_0 << 8, total[0]);
            total[0] = i64_mul_add(low[0], factor_0, total[0]);
            high[0] = 0;
            low[0] = 0;
            total[1] = i64_mul_add(high[1], factor_1 << 8, total[1]);
            total[1] = i64_mul_add(low[1], factor_1, total[1]);
            high[1] = 0;
            low[1] = 0;
            total[2] = i64_mul_add(high[2], factor_0 << 8, total[2]);
            total[2] = i64_mul_add(low[2], factor_0, total[2]);
            high[2] = 0;
            low[2] = 0;
            total[3] = i64_mul_add(high[3], factor_1 << 8, total[3]);
            total[3] = i64_mul_add(low[3], factor_1, total[3]);
            high[3] = 0;
            low[3] = 0;
            total[4] = i64_mul_add(high[4], factor_0 << 8, total[4]);
            total[4] = i64_mul_add(low[4], factor_0, total[4]);
            high[4] = 0;
            low[4] = 0;
            total[5] = i64_mul_add(high[5], factor_1 << 8, total[5]);
            total[5] = i64_mul_add(low[5], factor_1, total[5]);
            high[5] = 0;
            low[5] = 0;
            total[6] = i64_mul_add(high[6], factor_0 << 8, total[6]);
            total[6] = i64_mul_add(low[6], factor_0, total[6]);
            high[6] = 0;
            low[6] = 0;
            total[7] = i64_mul_add(high[7], factor_1 << 8, total[7]);
            total[7] = i64_mul_add(low[7], factor_1, total[7]);
            high[7] = 0;
            low[7] = 0;
        }
        if (after_group != group) {
            u64 *to = sums + group * 64 + warp * 32 + lane / 4;
            const u32 row = lane % 4 * 2;
            if (row + 0 < rows)
                atomic_add_u64_void(to + (row + 0) * 256 + 0, (u64)total[0]);
            total[0] = 0;
            if (row + 1 < rows)
                atomic_add_u64_void(to + (row + 1) * 256 + 0, (u64)total[1]);
            total[1] = 0;
            if (row + 0 < rows)
                atomic_add_u64_void(to + (row + 0) * 256 + 8, (u64)total[2]);
            total[2] = 0;
            if (row + 1 < rows)
                atomic_add_u64_void(to + (row + 1) * 256 + 8, (u64)total[3]);
            total[3] = 0;
            if (row + 0 < rows)
                atomic_add_u64_void(to + (row + 0) * 256 + 16, (u64)total[4]);
            total[4] = 0;
            if (row + 1 < rows)
                atomic_add_u64_void(to + (row + 1) * 256 + 16, (u64)total[5]);
            total[5] = 0;
            if (row + 0 < rows)
                atomic_add_u64_void(to + (row + 0) * 256 + 24, (u64)total[6]);
            total[6] = 0;
            if (row + 1 < rows)
                atomic_add_u64_void(to + (row + 1) * 256 + 24, (u64)total[7]);
            total[7] = 0;
        }
        group = after_group;
        ktile = after_ktile;
    }
}
