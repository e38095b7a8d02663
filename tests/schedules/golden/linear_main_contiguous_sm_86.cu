// Index of the lane's word q in its tile.
static FN u32 trellis_word(u32 lane, u32 q)
{
    const u32 first = (32 * lane + 1012) % 1024 / 32;
    return (first + q) % 32;
}

// w: the lane's words; window[j]: the 16-bit state of position 8*lane + j.
static FN void trellis_windows(const u32 w[2], u32 lane, u32 window[8])
{
    const u32 w0 = w[0];
    const u32 w1 = w[1];
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
// Finds the run that begins with this warp's step `asked`: its group, its first step and how many.
// The copies of a run's weights to the slot at place `to`.
// The copies of its activations, behind its weights.
// This warp's runs, one behind the other.
extern "C" __global__ void __launch_bounds__(64, 3) elpis_linear_main(
    const u32 * const *weights, /* [parts] -> trellis [k/16, n/64, 8*bits, 4]: packs */
    const u32 *act, /* [parts, k/16, 32, 2] */
    const i32 *exponents, /* [parts, 8, blocks] */
    const i32 *digits, /* [parts, 8, blocks] sums of the activations' integers */
    u64 *sums, /* [8, columns of all parts], added to */
    u64 *scales, /* [parts, 8, 2] largest exponent and Q = sum of digits, for linear_output */
    const u32 *round) /* [0] = active rows */
{
    const u32 lane = lane_id(), warp = warp_id();
    const u32 count = (32 * ((cta_id() * 2 + warp_id()) + 1) / 492 - 32 * (cta_id() * 2 + warp_id()) / 492);
    // from where the tiles of group 0 of all parts would lie
    const u32 *weight_0 = weights[0] - 0;
    u32 *factor = shared_at(u32, 6144);
    const u32 ring = shared_place(shared_at(u32, 0) + warp * 768); // this warp's
    const u32 word_at0 = keep_u32(ring + trellis_word(lane, 0) * 16);
    const u32 word_at1 = keep_u32(ring + trellis_word(lane, 1) * 16);

    // Prologue: the ring but one run, weights first: no earlier launch has a hand in them. Then
    // activations and the factors of the blocks.
    u32 asked = 0; // steps
    u32 group_0, step_0, length_0;
    group_0 = 0;
    step_0 = 0;
    length_0 = 0;
    if (asked < count) {
        const u32 next_items_x = 32 * (cta_id() * 2 + warp_id()) / 492 + asked;
        const u32 next_group = next_items_x / 8;
        const u32 next_step = next_items_x % 8;
        const u32 room = 1 - next_step % 1;
        group_0 = next_group;
        step_0 = next_step;
        length_0 = count - asked < room ? count - asked : room;
        asked += length_0;
    }
    {
        const u32 skipped = step_0 % 1;
        const u32 ktile = (step_0 - skipped) * 2;
        const u32 stride = 512u;
        const u32 *from = weight_0 + ktile * stride +
                          group_0 * 128 + lane * 4;
        u32 into = ring + 0 + lane * 16;
        if (length_0 == 1) {
        copy_async16_at(into, 0, from, 0);
        copy_async16_at(into, 512, from, 2048);
        } else {
            into += skipped * 1024;
            from += skipped * 2 * stride;
            for (u32 step = 0; step < length_0; step++) {
        copy_async16_at(into, 0, from, 0);
        copy_async16_at(into, 512, from, 2048);
                into += 1024;
                from += 1024;
            }
        }
    }
    wait_previous();
    const u32 rows = round[0];
    // the CTA that says what all have found out
    const u32 first = (cta_id() * 2 + warp_id()) < 2;
    {
        const u32 skipped = step_0 % 1;
        const u32 ktile = (step_0 - skipped) * 2;
        const u32 *from = act + 0u * 1024 +
                          ktile * 64 + lane * 4;
        const u32 into = ring + 0 + 1024 + lane * 16;
        const u32 first = skipped * 32, many = length_0 * 32;
        if (length_0 == 1) {
                copy_async16_at(into, 0, from, 0);
        } else {
            for (u32 piece = lane; piece < 32; piece += 32)
                if (piece - first < many)
                    copy_async16_at(into + (piece - lane) * 16, 0, from + (piece - lane) * 4, 0);
        }
    }
    copy_async_commit();
    u32 turn = warp;
    i32 exponent[4][1];
    exponent[0][0] = turn < 8 && 0 + lane < 2
                               ? exponents[(turn + 0) * 2 + 0 + lane]
                               : -1000;
    exponent[1][0] = turn < 6 && 0 + lane < 2
                               ? exponents[(turn + 2) * 2 + 0 + lane]
                               : -1000;
    exponent[2][0] = turn < 4 && 0 + lane < 2
                               ? exponents[(turn + 4) * 2 + 0 + lane]
                               : -1000;
    exponent[3][0] = turn < 2 && 0 + lane < 2
                               ? exponents[(turn + 6) * 2 + 0 + lane]
                               : -1000;
    for (;;) {
        if (turn < 8) {
            const u32 job = turn + 0, row = job % 8;
            u32 *of_job = factor + job / 8 * 16 + row;
            i32 top = -1000;
            top = exponent[0][0] > top ? exponent[0][0] : top;
            top = warp_max_i32(top);
            if (0 + lane < 2) {
                const i32 power = exponent[0][0] - top + 22;
                of_job[(0 + lane) * 8] =
                    power < 0 || row >= rows ? 0 : 1u << power;
            }
            if (first && lane == 0)
                scales[job * 2] = (u64)(i64)top;
        }
        if (turn < 6) {
            const u32 job = turn + 2, row = job % 8;
            u32 *of_job = factor + job / 8 * 16 + row;
            i32 top = -1000;
            top = exponent[1][0] > top ? exponent[1][0] : top;
            top = warp_max_i32(top);
            if (0 + lane < 2) {
                const i32 power = exponent[1][0] - top + 22;
                of_job[(0 + lane) * 8] =
                    power < 0 || row >= rows ? 0 : 1u << power;
            }
            if (first && lane == 0)
                scales[job * 2] = (u64)(i64)top;
        }
        if (turn < 4) {
            const u32 job = turn + 4, row = job % 8;
            u32 *of_job = factor + job / 8 * 16 + row;
            i32 top = -1000;
            top = exponent[2][0] > top ? exponent[2][0] : top;
            top = warp_max_i32(top);
            if (0 + lane < 2) {
                const i32 power = exponent[2][0] - top + 22;
                of_job[(0 + lane) * 8] =
                    power < 0 || row >= rows ? 0 : 1u << power;
            }
            if (first && lane == 0)
                scales[job * 2] = (u64)(i64)top;
        }
        if (turn < 2) {
            const u32 job = turn + 6, row = job % 8;
            u32 *of_job = factor + job / 8 * 16 + row;
            i32 top = -1000;
            top = exponent[3][0] > top ? exponent[3][0] : top;
            top = warp_max_i32(top);
            if (0 + lane < 2) {
                const i32 power = exponent[3][0] - top + 22;
                of_job[(0 + lane) * 8] =
                    power < 0 || row >= rows ? 0 : 1u << power;
            }
            if (first && lane == 0)
                scales[job * 2] = (u64)(i64)top;
        }
        turn += 8;
        if (turn >= 8)
            break;
    exponent[0][0] = turn < 8 && 0 + lane < 2
                               ? exponents[(turn + 0) * 2 + 0 + lane]
                               : -1000;
    exponent[1][0] = turn < 6 && 0 + lane < 2
                               ? exponents[(turn + 2) * 2 + 0 + lane]
                               : -1000;
    exponent[2][0] = turn < 4 && 0 + lane < 2
                               ? exponents[(turn + 4) * 2 + 0 + lane]
                               : -1000;
    exponent[3][0] = turn < 2 && 0 + lane < 2
                               ? exponents[(turn + 6) * 2 + 0 + lane]
                               : -1000;
    }
    block_sync();
    if (first) { // nobody waits for Q here
        for (u32 job = warp; job < 8; job += 2) {
            const u32 *of_job = factor + job / 8 * 16 +
                                job % 8;
            u64 q = 0;
            for (u32 block = lane; block < 2; block += 32)
                q += (u64)((i64)digits[job * 2 + block] *
                           (i64)of_job[block * 8]);
            q = warp_sum_u64(q);
            if (lane == 0)
                scales[job * 2 + 1] = q;
        }
    }
    if (rows > 4) {
    const u32 planes_at = keep_u32(ring + 1024 + lane * 8);
    const u32 row = lane % 4 * 2;
    const u32 factor_at = keep_u32(shared_place(factor) + row * 4);
    i32 top[8];
    i32 high[16];
    i32 low[16];
    i64 total[16];
    top[0] = 0;
    high[0] = 0;
    low[0] = 0;
    total[0] = 0;
    top[1] = 0;
    high[1] = 0;
    low[1] = 0;
    total[1] = 0;
    top[2] = 0;
    high[2] = 0;
    low[2] = 0;
    total[2] = 0;
    top[3] = 0;
    high[3] = 0;
    low[3] = 0;
    total[3] = 0;
    top[4] = 0;
    high[4] = 0;
    low[4] = 0;
    total[4] = 0;
    top[5] = 0;
    high[5] = 0;
    low[5] = 0;
    total[5] = 0;
    top[6] = 0;
    high[6] = 0;
    low[6] = 0;
    total[6] = 0;
    top[7] = 0;
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
    u32 slot = 0; // bytes into the ring
    while (length_0) {
        copy_async_wait(0);
        warp_sync();
        u32 group_1, step_1, length_1;
    group_1 = 0;
    step_1 = 0;
    length_1 = 0;
    if (asked < count) {
        const u32 next_items_x = 32 * (cta_id() * 2 + warp_id()) / 492 + asked;
        const u32 next_group = next_items_x / 8;
        const u32 next_step = next_items_x % 8;
        const u32 room = 1 - next_step % 1;
        group_1 = next_group;
        step_1 = next_step;
        length_1 = count - asked < room ? count - asked : room;
        asked += length_1;
    }
        {
            const u32 fill = ring + (slot < 1536 ? slot + 1536
                                                          : slot - 1536);
    {
        const u32 skipped = step_1 % 1;
        const u32 ktile = (step_1 - skipped) * 2;
        const u32 stride = 512u;
        const u32 *from = weight_0 + ktile * stride +
                          group_1 * 128 + lane * 4;
        u32 into = fill + lane * 16;
        if (length_1 == 1) {
        copy_async16_at(into, 0, from, 0);
        copy_async16_at(into, 512, from, 2048);
        } else {
            into += skipped * 1024;
            from += skipped * 2 * stride;
            for (u32 step = 0; step < length_1; step++) {
        copy_async16_at(into, 0, from, 0);
        copy_async16_at(into, 512, from, 2048);
                into += 1024;
                from += 1024;
            }
        }
    }
    {
        const u32 skipped = step_1 % 1;
        const u32 ktile = (step_1 - skipped) * 2;
        const u32 *from = act + 0u * 1024 +
                          ktile * 64 + lane * 4;
        const u32 into = fill + 1024 + lane * 16;
        const u32 first = skipped * 32, many = length_1 * 32;
        if (length_1 == 1) {
                copy_async16_at(into, 0, from, 0);
        } else {
            for (u32 piece = lane; piece < 32; piece += 32)
                if (piece - first < many)
                    copy_async16_at(into + (piece - lane) * 16, 0, from + (piece - lane) * 4, 0);
        }
    }
        }
        copy_async_commit();
        const u32 begin = step_0 % 1;
        u32 word_place0 = word_at0 + slot + begin * 1024;
        u32 word_place1 = word_at1 + slot + begin * 1024;
        u32 planes_place = planes_at + slot + begin * 512;
        const u32 end = planes_place + length_0 * 512;
        while (planes_place != end) {
            {
                u32 planes0[2], product0[32];
                load2_at(planes_place, 0, planes0);
                {
                    u32 word0[4];
                    load4_at(word_place0, 0,
                             word0);
                    u32 word1[4];
                    load4_at(word_place1, 0,
                             word1);
                    {
                        u32 word[2], window[8];
                        word[0] = word0[0];
                        word[1] = word1[0];
                        trellis_windows(word, lane, window);
                        product0[0] = trellis_product(window[0]);
                        product0[1] = trellis_product(window[1]);
                        product0[2] = trellis_product(window[2]);
                        product0[3] = trellis_product(window[3]);
                        product0[4] = trellis_product(window[4]);
                        product0[5] = trellis_product(window[5]);
                        product0[6] = trellis_product(window[6]);
                        product0[7] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[1];
                        word[1] = word1[1];
                        trellis_windows(word, lane, window);
                        product0[8] = trellis_product(window[0]);
                        product0[9] = trellis_product(window[1]);
                        product0[10] = trellis_product(window[2]);
                        product0[11] = trellis_product(window[3]);
                        product0[12] = trellis_product(window[4]);
                        product0[13] = trellis_product(window[5]);
                        product0[14] = trellis_product(window[6]);
                        product0[15] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[2];
                        word[1] = word1[2];
                        trellis_windows(word, lane, window);
                        product0[16] = trellis_product(window[0]);
                        product0[17] = trellis_product(window[1]);
                        product0[18] = trellis_product(window[2]);
                        product0[19] = trellis_product(window[3]);
                        product0[20] = trellis_product(window[4]);
                        product0[21] = trellis_product(window[5]);
                        product0[22] = trellis_product(window[6]);
                        product0[23] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[3];
                        word[1] = word1[3];
                        trellis_windows(word, lane, window);
                        product0[24] = trellis_product(window[0]);
                        product0[25] = trellis_product(window[1]);
                        product0[26] = trellis_product(window[2]);
                        product0[27] = trellis_product(window[3]);
                        product0[28] = trellis_product(window[4]);
                        product0[29] = trellis_product(window[5]);
                        product0[30] = trellis_product(window[6]);
                        product0[31] = trellis_product(window[7]);
                    }
                }
                mma_u8s8_mul1(2, high + 8,
                    low + 8, product0 + 16, planes0, rows);
                u32 planes1[2], product1[32];
                load2_at(planes_place, 256, planes1);
                {
                    u32 word0[4];
                    load4_at(word_place0, 512,
                             word0);
                    u32 word1[4];
                    load4_at(word_place1, 512,
                             word1);
                    {
                        u32 word[2], window[8];
                        word[0] = word0[0];
                        word[1] = word1[0];
                        trellis_windows(word, lane, window);
                        product1[0] = trellis_product(window[0]);
                        product1[1] = trellis_product(window[1]);
                        product1[2] = trellis_product(window[2]);
                        product1[3] = trellis_product(window[3]);
                        product1[4] = trellis_product(window[4]);
                        product1[5] = trellis_product(window[5]);
                        product1[6] = trellis_product(window[6]);
                        product1[7] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[1];
                        word[1] = word1[1];
                        trellis_windows(word, lane, window);
                        product1[8] = trellis_product(window[0]);
                        product1[9] = trellis_product(window[1]);
                        product1[10] = trellis_product(window[2]);
                        product1[11] = trellis_product(window[3]);
                        product1[12] = trellis_product(window[4]);
                        product1[13] = trellis_product(window[5]);
                        product1[14] = trellis_product(window[6]);
                        product1[15] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[2];
                        word[1] = word1[2];
                        trellis_windows(word, lane, window);
                        product1[16] = trellis_product(window[0]);
                        product1[17] = trellis_product(window[1]);
                        product1[18] = trellis_product(window[2]);
                        product1[19] = trellis_product(window[3]);
                        product1[20] = trellis_product(window[4]);
                        product1[21] = trellis_product(window[5]);
                        product1[22] = trellis_product(window[6]);
                        product1[23] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[3];
                        word[1] = word1[3];
                        trellis_windows(word, lane, window);
                        product1[24] = trellis_product(window[0]);
                        product1[25] = trellis_product(window[1]);
                        product1[26] = trellis_product(window[2]);
                        product1[27] = trellis_product(window[3]);
                        product1[28] = trellis_product(window[4]);
                        product1[29] = trellis_product(window[5]);
                        product1[30] = trellis_product(window[6]);
                        product1[31] = trellis_product(window[7]);
                    }
                }
                mma_u8s8_mul1(2, high + 8,
                    low + 8, product1 + 16, planes1, rows);
                mma_u8s8_mul1_pairs(2, top, high, low, product0, planes0,
                                            product1, planes1, rows);
            }
            word_place0 += 1024;
            word_place1 += 1024;
            planes_place += 512;
        }
        slot = slot == 1536 ? 0 : slot + 1536;

        // Where the next run lies decides whether this block and this group end here.
        const u32 leaves = !length_1 || group_1 != group_0;
        const u32 block = step_0 * 2 / 8;
        if (leaves || step_1 * 2 / 8 != block) {
            u32 of_rows[2];
            load2_at(factor_at + (0u * 2 + block) * 32, 0, of_rows);
            const u32 factor_0 = of_rows[0], factor_1 = of_rows[1];
            total[0] = i64_mul_add(high[0] + top[0] * 256, (i32)(factor_0 << 8), total[0]);
            total[0] = i64_mul_add(low[0], (i32)factor_0, total[0]);
    top[0] = 0;
    high[0] = 0;
    low[0] = 0;
            total[1] = i64_mul_add(high[1] + top[1] * 256, (i32)(factor_1 << 8), total[1]);
            total[1] = i64_mul_add(low[1], (i32)factor_1, total[1]);
    top[1] = 0;
    high[1] = 0;
    low[1] = 0;
            total[2] = i64_mul_add(high[2] + top[2] * 256, (i32)(factor_0 << 8), total[2]);
            total[2] = i64_mul_add(low[2], (i32)factor_0, total[2]);
    top[2] = 0;
    high[2] = 0;
    low[2] = 0;
            total[3] = i64_mul_add(high[3] + top[3] * 256, (i32)(factor_1 << 8), total[3]);
            total[3] = i64_mul_add(low[3], (i32)factor_1, total[3]);
    top[3] = 0;
    high[3] = 0;
    low[3] = 0;
            total[4] = i64_mul_add(high[4] + top[4] * 256, (i32)(factor_0 << 8), total[4]);
            total[4] = i64_mul_add(low[4], (i32)factor_0, total[4]);
    top[4] = 0;
    high[4] = 0;
    low[4] = 0;
            total[5] = i64_mul_add(high[5] + top[5] * 256, (i32)(factor_1 << 8), total[5]);
            total[5] = i64_mul_add(low[5], (i32)factor_1, total[5]);
    top[5] = 0;
    high[5] = 0;
    low[5] = 0;
            total[6] = i64_mul_add(high[6] + top[6] * 256, (i32)(factor_0 << 8), total[6]);
            total[6] = i64_mul_add(low[6], (i32)factor_0, total[6]);
    top[6] = 0;
    high[6] = 0;
    low[6] = 0;
            total[7] = i64_mul_add(high[7] + top[7] * 256, (i32)(factor_1 << 8), total[7]);
            total[7] = i64_mul_add(low[7], (i32)factor_1, total[7]);
    top[7] = 0;
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
        if (leaves) {
            // the totals of idle rows are 0, since their factors are
            u64 *to = sums + group_0 * 64 + lane / 4;
            if (row + 0 < rows) {
                atomic_add_u64_global(to + (row + 0) * 256 + 0,
                                      (u64)total[0]);
                total[0] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 8,
                                      (u64)total[2]);
                total[2] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 16,
                                      (u64)total[4]);
                total[4] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 24,
                                      (u64)total[6]);
                total[6] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 32,
                                      (u64)total[8]);
                total[8] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 40,
                                      (u64)total[10]);
                total[10] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 48,
                                      (u64)total[12]);
                total[12] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 56,
                                      (u64)total[14]);
                total[14] = 0;
            }
            if (row + 1 < rows) {
                atomic_add_u64_global(to + (row + 1) * 256 + 0,
                                      (u64)total[1]);
                total[1] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 8,
                                      (u64)total[3]);
                total[3] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 16,
                                      (u64)total[5]);
                total[5] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 24,
                                      (u64)total[7]);
                total[7] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 32,
                                      (u64)total[9]);
                total[9] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 40,
                                      (u64)total[11]);
                total[11] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 48,
                                      (u64)total[13]);
                total[13] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 56,
                                      (u64)total[15]);
                total[15] = 0;
            }
        }
        group_0 = group_1;
        step_0 = step_1;
        length_0 = length_1;
    }
        return;
    }
    const u32 planes_at = keep_u32(ring + 1024 + lane % 16 * 8 + lane / 16 * 4);
    const u32 row = lane % 2 * 2, plane_shift = lane % 4 < 2 ? 8 : 0;
    const u32 factor_at = keep_u32(shared_place(factor) + row * 4);
    i32 both[16];
    i64 total[16];
    both[0] = 0;
    total[0] = 0;
    both[1] = 0;
    total[1] = 0;
    both[2] = 0;
    total[2] = 0;
    both[3] = 0;
    total[3] = 0;
    both[4] = 0;
    total[4] = 0;
    both[5] = 0;
    total[5] = 0;
    both[6] = 0;
    total[6] = 0;
    both[7] = 0;
    total[7] = 0;
    both[8] = 0;
    total[8] = 0;
    both[9] = 0;
    total[9] = 0;
    both[10] = 0;
    total[10] = 0;
    both[11] = 0;
    total[11] = 0;
    both[12] = 0;
    total[12] = 0;
    both[13] = 0;
    total[13] = 0;
    both[14] = 0;
    total[14] = 0;
    both[15] = 0;
    total[15] = 0;
    u32 slot = 0; // bytes into the ring
    while (length_0) {
        copy_async_wait(0);
        warp_sync();
        u32 group_1, step_1, length_1;
    group_1 = 0;
    step_1 = 0;
    length_1 = 0;
    if (asked < count) {
        const u32 next_items_x = 32 * (cta_id() * 2 + warp_id()) / 492 + asked;
        const u32 next_group = next_items_x / 8;
        const u32 next_step = next_items_x % 8;
        const u32 room = 1 - next_step % 1;
        group_1 = next_group;
        step_1 = next_step;
        length_1 = count - asked < room ? count - asked : room;
        asked += length_1;
    }
        {
            const u32 fill = ring + (slot < 1536 ? slot + 1536
                                                          : slot - 1536);
    {
        const u32 skipped = step_1 % 1;
        const u32 ktile = (step_1 - skipped) * 2;
        const u32 stride = 512u;
        const u32 *from = weight_0 + ktile * stride +
                          group_1 * 128 + lane * 4;
        u32 into = fill + lane * 16;
        if (length_1 == 1) {
        copy_async16_at(into, 0, from, 0);
        copy_async16_at(into, 512, from, 2048);
        } else {
            into += skipped * 1024;
            from += skipped * 2 * stride;
            for (u32 step = 0; step < length_1; step++) {
        copy_async16_at(into, 0, from, 0);
        copy_async16_at(into, 512, from, 2048);
                into += 1024;
                from += 1024;
            }
        }
    }
    {
        const u32 skipped = step_1 % 1;
        const u32 ktile = (step_1 - skipped) * 2;
        const u32 *from = act + 0u * 1024 +
                          ktile * 64 + lane * 4;
        const u32 into = fill + 1024 + lane * 16;
        const u32 first = skipped * 32, many = length_1 * 32;
        if (length_1 == 1) {
                copy_async16_at(into, 0, from, 0);
        } else {
            for (u32 piece = lane; piece < 32; piece += 32)
                if (piece - first < many)
                    copy_async16_at(into + (piece - lane) * 16, 0, from + (piece - lane) * 4, 0);
        }
    }
        }
        copy_async_commit();
        const u32 begin = step_0 % 1;
        u32 word_place0 = word_at0 + slot + begin * 1024;
        u32 word_place1 = word_at1 + slot + begin * 1024;
        u32 planes_place = planes_at + slot + begin * 512;
        const u32 end = planes_place + length_0 * 512;
        while (planes_place != end) {
            {
                u32 planes0[2], product0[32];
                load1_at(planes_place, 0, planes0);
                {
                    u32 word0[4];
                    load4_at(word_place0, 0,
                             word0);
                    u32 word1[4];
                    load4_at(word_place1, 0,
                             word1);
                    {
                        u32 word[2], window[8];
                        word[0] = word0[0];
                        word[1] = word1[0];
                        trellis_windows(word, lane, window);
                        product0[0] = trellis_product(window[0]);
                        product0[1] = trellis_product(window[1]);
                        product0[2] = trellis_product(window[2]);
                        product0[3] = trellis_product(window[3]);
                        product0[4] = trellis_product(window[4]);
                        product0[5] = trellis_product(window[5]);
                        product0[6] = trellis_product(window[6]);
                        product0[7] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[1];
                        word[1] = word1[1];
                        trellis_windows(word, lane, window);
                        product0[8] = trellis_product(window[0]);
                        product0[9] = trellis_product(window[1]);
                        product0[10] = trellis_product(window[2]);
                        product0[11] = trellis_product(window[3]);
                        product0[12] = trellis_product(window[4]);
                        product0[13] = trellis_product(window[5]);
                        product0[14] = trellis_product(window[6]);
                        product0[15] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[2];
                        word[1] = word1[2];
                        trellis_windows(word, lane, window);
                        product0[16] = trellis_product(window[0]);
                        product0[17] = trellis_product(window[1]);
                        product0[18] = trellis_product(window[2]);
                        product0[19] = trellis_product(window[3]);
                        product0[20] = trellis_product(window[4]);
                        product0[21] = trellis_product(window[5]);
                        product0[22] = trellis_product(window[6]);
                        product0[23] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[3];
                        word[1] = word1[3];
                        trellis_windows(word, lane, window);
                        product0[24] = trellis_product(window[0]);
                        product0[25] = trellis_product(window[1]);
                        product0[26] = trellis_product(window[2]);
                        product0[27] = trellis_product(window[3]);
                        product0[28] = trellis_product(window[4]);
                        product0[29] = trellis_product(window[5]);
                        product0[30] = trellis_product(window[6]);
                        product0[31] = trellis_product(window[7]);
                    }
                }
                mma_u8s8_mul1_plane(4, both, product0, planes0[0]);
            }
            {
                u32 planes0[2], product0[32];
                load1_at(planes_place, 256, planes0);
                {
                    u32 word0[4];
                    load4_at(word_place0, 512,
                             word0);
                    u32 word1[4];
                    load4_at(word_place1, 512,
                             word1);
                    {
                        u32 word[2], window[8];
                        word[0] = word0[0];
                        word[1] = word1[0];
                        trellis_windows(word, lane, window);
                        product0[0] = trellis_product(window[0]);
                        product0[1] = trellis_product(window[1]);
                        product0[2] = trellis_product(window[2]);
                        product0[3] = trellis_product(window[3]);
                        product0[4] = trellis_product(window[4]);
                        product0[5] = trellis_product(window[5]);
                        product0[6] = trellis_product(window[6]);
                        product0[7] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[1];
                        word[1] = word1[1];
                        trellis_windows(word, lane, window);
                        product0[8] = trellis_product(window[0]);
                        product0[9] = trellis_product(window[1]);
                        product0[10] = trellis_product(window[2]);
                        product0[11] = trellis_product(window[3]);
                        product0[12] = trellis_product(window[4]);
                        product0[13] = trellis_product(window[5]);
                        product0[14] = trellis_product(window[6]);
                        product0[15] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[2];
                        word[1] = word1[2];
                        trellis_windows(word, lane, window);
                        product0[16] = trellis_product(window[0]);
                        product0[17] = trellis_product(window[1]);
                        product0[18] = trellis_product(window[2]);
                        product0[19] = trellis_product(window[3]);
                        product0[20] = trellis_product(window[4]);
                        product0[21] = trellis_product(window[5]);
                        product0[22] = trellis_product(window[6]);
                        product0[23] = trellis_product(window[7]);
                    }
                    {
                        u32 word[2], window[8];
                        word[0] = word0[3];
                        word[1] = word1[3];
                        trellis_windows(word, lane, window);
                        product0[24] = trellis_product(window[0]);
                        product0[25] = trellis_product(window[1]);
                        product0[26] = trellis_product(window[2]);
                        product0[27] = trellis_product(window[3]);
                        product0[28] = trellis_product(window[4]);
                        product0[29] = trellis_product(window[5]);
                        product0[30] = trellis_product(window[6]);
                        product0[31] = trellis_product(window[7]);
                    }
                }
                mma_u8s8_mul1_plane(4, both, product0, planes0[0]);
            }
            word_place0 += 1024;
            word_place1 += 1024;
            planes_place += 512;
        }
        slot = slot == 1536 ? 0 : slot + 1536;

        // Where the next run lies decides whether this block and this group end here.
        const u32 leaves = !length_1 || group_1 != group_0;
        const u32 block = step_0 * 2 / 8;
        if (leaves || step_1 * 2 / 8 != block) {
            u32 of_rows[2];
            load2_at(factor_at + (0u * 2 + block) * 32, 0, of_rows);
            const u32 factor_0 = of_rows[0] << plane_shift, factor_1 = of_rows[1] << plane_shift;
            total[0] = i64_mul_add(both[0], (i32)factor_0, total[0]);
    both[0] = 0;
            total[1] = i64_mul_add(both[1], (i32)factor_1, total[1]);
    both[1] = 0;
            total[2] = i64_mul_add(both[2], (i32)factor_0, total[2]);
    both[2] = 0;
            total[3] = i64_mul_add(both[3], (i32)factor_1, total[3]);
    both[3] = 0;
            total[4] = i64_mul_add(both[4], (i32)factor_0, total[4]);
    both[4] = 0;
            total[5] = i64_mul_add(both[5], (i32)factor_1, total[5]);
    both[5] = 0;
            total[6] = i64_mul_add(both[6], (i32)factor_0, total[6]);
    both[6] = 0;
            total[7] = i64_mul_add(both[7], (i32)factor_1, total[7]);
    both[7] = 0;
            total[8] = i64_mul_add(both[8], (i32)factor_0, total[8]);
    both[8] = 0;
            total[9] = i64_mul_add(both[9], (i32)factor_1, total[9]);
    both[9] = 0;
            total[10] = i64_mul_add(both[10], (i32)factor_0, total[10]);
    both[10] = 0;
            total[11] = i64_mul_add(both[11], (i32)factor_1, total[11]);
    both[11] = 0;
            total[12] = i64_mul_add(both[12], (i32)factor_0, total[12]);
    both[12] = 0;
            total[13] = i64_mul_add(both[13], (i32)factor_1, total[13]);
    both[13] = 0;
            total[14] = i64_mul_add(both[14], (i32)factor_0, total[14]);
    both[14] = 0;
            total[15] = i64_mul_add(both[15], (i32)factor_1, total[15]);
    both[15] = 0;
        }
        if (leaves) {
            // the totals of idle rows are 0, since their factors are
            u64 *to = sums + group_0 * 64 + lane / 4;
            if (row + 0 < rows) {
                atomic_add_u64_global(to + (row + 0) * 256 + 0,
                                      (u64)total[0]);
                total[0] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 8,
                                      (u64)total[2]);
                total[2] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 16,
                                      (u64)total[4]);
                total[4] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 24,
                                      (u64)total[6]);
                total[6] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 32,
                                      (u64)total[8]);
                total[8] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 40,
                                      (u64)total[10]);
                total[10] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 48,
                                      (u64)total[12]);
                total[12] = 0;
                atomic_add_u64_global(to + (row + 0) * 256 + 56,
                                      (u64)total[14]);
                total[14] = 0;
            }
            if (row + 1 < rows) {
                atomic_add_u64_global(to + (row + 1) * 256 + 0,
                                      (u64)total[1]);
                total[1] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 8,
                                      (u64)total[3]);
                total[3] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 16,
                                      (u64)total[5]);
                total[5] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 24,
                                      (u64)total[7]);
                total[7] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 32,
                                      (u64)total[9]);
                total[9] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 40,
                                      (u64)total[11]);
                total[11] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 48,
                                      (u64)total[13]);
                total[13] = 0;
                atomic_add_u64_global(to + (row + 1) * 256 + 56,
                                      (u64)total[15]);
                total[15] = 0;
            }
        }
        group_0 = group_1;
        step_0 = step_1;
        length_0 = length_1;
    }
}
