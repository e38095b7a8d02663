/* prelude_all.cu - the primitives of templates/prelude/README.md.
 *
 * Appended to the CUDA prelude by test_cross_compile.c: it must compile for every target
 * without a warning and without spills. What the primitives compute is test_prelude.c's matter.
 * words: u32 [64 + threads], longs: u64 [64 + threads], reals: f32 [64 + threads], all in and out.
 */
extern "C" __global__ void __launch_bounds__(32)
prelude_numbers(u32 *words, u64 *longs, f32 *reals)
{
    const u32 at = 64 + thread_id() + 32 * cta_id() + warp_id();
    f32 a = reals[at], b = reals[1], c = reals[2];
    f32 sum = f_add(f_sub(a, b), f_mul(b, c));
    sum = f_add(sum, f_div(f_fma(a, b, c), f_sqrt(c)));
    sum = f_add(sum, f_add(f_neg(a), f_abs(b)));
    sum = f_add(sum, f_add(f_min(a, b), f_max(a, c)));
    sum = f_add(sum, f_select(f_lt(a, b) + f_le(a, c) + f_gt(b, c) + f_ge(a, c) + f_eq(b, c), a, b));
    sum = f_add(sum, f_select(f_is_finite(a), f_from_bits(f_bits(b) + 1), c));
    sum = f_add(sum, f_add(f_from_i32((i32)words[0]), f_from_u32(words[1])));
    sum = f_add(sum, f_add(f_from_i64((i64)longs[0]), f_from_u64(longs[1])));
    sum = f_add(sum, f_add(f_floor(a), f_pow2(f_to_i32_rn(b))));
    sum = f_add(sum, f_exp2_approx(f_neg(f_abs(c))));
    h16 half = h_add(h_from_f(a), h_from_bits((u16)words[2]));
    half = h_fma(half, half, h_from_f(b));
    sum = f_add(sum, f_add(f_from_h(half), f_from_bf16(h_bits(half))));
    const u32 halves = h2_mul(h2_add(h2_from_f(a, b), words[5]), words[6]);
    sum = f_maximum(sum, f_from_h(h_from_bits((u16)halves)));
    reals[at] = sum;

    u32 w = words[at], x = words[3], y = words[4];
    w += u32_mul_hi(w, x) + funnel_left(w, x, y & 31) + funnel_right(w, x, y & 31);
    w += byte_permute(w, x, y) + count_bits(w) + leading_zeros(x);
    w += (u32)dot_u8s8(w, x, (i32)y) + (u32)dot_s8s8(w, y, (i32)x);
    words[at] = w;
    longs[at] = u64_mul_hi(longs[2], longs[3]) + (u64)i64_mul_add((i32)w, (i32)x, (i64)longs[4]) +
                f_trunc_u64(f_abs(a));
}

extern "C" __global__ void __launch_bounds__(32)
prelude_memory(u32 *words, u64 *longs, const u32 *stream, u32 *counter, u32 ctas)
{
    u32 *ring = shared_at(u32, 0);
    const u32 lane = lane_id();
    copy_async16(ring + 4 * lane, stream + 4 * lane);
    copy_async_commit();
    copy_async16(ring + 128 + 4 * lane, stream + 128 + 4 * lane);
    copy_async_commit();
    copy_async_wait(1);
    block_sync();
    u32 four[4], two[2], streamed[4];
    load4_u32(ring + 4 * (31 - lane), four);
    load2_u32(ring + 2 * lane, two);
    load_stream4_u32(stream + 4 * lane, streamed);
    copy_async_wait(0);
    warp_sync();
    for (u32 i = 0; i < 4; i++)
        four[i] += streamed[i];
    store4_u32(words + 4 * lane, four);
    store2_u32(words + 128 + 2 * lane, two);
    words[256] = atomic_add_u32(words + 257, lane) + (u32)atomic_max_i32((i32 *)words + 258, (i32)lane);
    words[259] = atomic_or_u32(ring, lane);
    longs[0] = atomic_add_u64(longs + 1, lane);
    atomic_add_u64_void(longs + 2, lane);
    atomic_add_u64_global(longs + 2, lane);
    fence_device();
    load4_fresh_u32(stream + 4 * (31 - lane), streamed);
    words[262] = streamed[0] + load_fresh_u32(stream + lane);
    store_release_u32(words + 260, load_acquire_u32(words + 261));
    grid_sync(counter, ctas);
    words[262] = ring[lane];
}

extern "C" __global__ void __launch_bounds__(32) prelude_warp(u32 *words, u64 *longs, f32 *reals)
{
    const u32 lane = lane_id();
    u32 w = words[lane];
    u64 l = longs[lane];
    f32 v[4] = {reals[4 * lane], reals[4 * lane + 1], reals[4 * lane + 2], reals[4 * lane + 3]};
    w += shuffle_u32(w, lane ^ 3) + shuffle_xor_u32(w, 5) + warp_ballot(w & 1);
    w += (u32)warp_max_i32((i32)w) + warp_max_u32(w) + warp_sum_u32(w) + (u32)warp_sum_i32((i32)w);
    w += warp_or_u32(w);
    l += shuffle_u64(l, 0) + shuffle_xor_u64(l, 1) + warp_sum_u64(l);
    warp_hadamard128(v);
    v[0] = f_add(shuffle_f32(v[1], 3), shuffle_xor_f32(v[2], 4));
    v[1] = f_add(warp_sum_f32(v[1]), warp_max_f32(v[0]));
    warp_hadamard32(v);
    for (u32 i = 0; i < 4; i++)
        reals[4 * lane + i] = v[i];
    words[lane] = w;
    longs[lane] = l;
}

extern "C" __global__ void __launch_bounds__(32)
prelude_tensor(const u32 *weights, const u32 *activations, i32 *sums, f32 *reals)
{
    const u32 lane = lane_id();
    u32 *rows = shared_at(u32, 0);
    rows[lane] = weights[lane];
    warp_sync();
    i32 high[8] = {0}, low[8] = {0}, middle[8] = {0};
    u32 w[16], act[2] = {activations[lane], activations[32 + lane]};
    for (u32 i = 0; i < 16; i++)
        w[i] = weights[32 * i + lane];
    mma_u8s8_mul1(2, high, low, w, act, 8);
    mma_u8s8_mul1_plane(2, high, w, act[0]);
    mma_u8s8_mul1_pairs(1, middle, high, low, w, act, w + 8, act, 8);
    mma_s8_pairs(2, high, middle, low, w, act, 8);
    mma_s8s8(high, w, act);
    mma_u8s8(low, w, act);
    mma_s8s8_n(2, high, w, w + 8);
    mma_u8s8_n(2, low, w, w + 8);
    mma_s8s8_ab(2, 1, high, w, act);
    mma_u8s8_ab(1, 2, middle, w, w + 8);
    f32 c[16];
    for (u32 i = 0; i < 16; i++)
        c[i] = reals[32 * i + lane];
    u32 a[8], b[4];
    load_matrix_x4(a, rows + 4 * (lane & 7));
    load_matrix_x4_trans(a + 4, rows + 4 * (lane & 7));
    load_matrix_x2(b, rows + 4 * (lane & 7));
    load_matrix_x2(b + 2, rows + 4 * (lane & 7));
    mma_f16(c, a, b);
    mma_f16_n(2, c, a, b);
    mma_f16_ab(2, 2, c, a, b);
    mma_f16_slice(1, c, a, b);
    for (u32 i = 0; i < 8; i++)
        sums[32 * i + lane] = high[i] + low[i] + middle[i];
    for (u32 i = 0; i < 16; i++)
        reals[32 * i + lane] = c[i];
}

#if __CUDA_ARCH__ == 900
extern "C" __global__ void __launch_bounds__(128) prelude_warpgroup(const u32 *words, i32 *sums)
{
    const u32 at = thread_id(), place = shared_place(shared_at(u32, 0));
    i32 high[4] = {0}, low[4] = {0};
    u32 w[8];
    for (u32 i = 0; i < 8; i++)
        w[i] = words[8 * at + i];
    store2_at(place + 16 * at, 0, w);
    store2_at(place + 16 * at, 8, w + 2);
    warpgroup_stored();
    warpgroup_sync();
    const u64 matrix = warpgroup_matrix(place);
    warpgroup_mma_mul1(high, low, w, matrix, 0, 0);
    warpgroup_mma_mul1(high, low, w, matrix, 1, 1);
    warpgroup_mma_wait(4, high, low);
    for (u32 i = 0; i < 4; i++)
        sums[4 * at + i] = high[i] + low[i];
}
#endif
