//@ -- prelude_check: see schedules/prelude_check.lua; the answers are in core/jit/check.c.
KERNEL
{
    const u32 *in = words + lane_id() * ${INPUTS};
    u32 *out = answers + lane_id() * ${ANSWERS};
    const f32 a = f_from_bits(in[0]), b = f_from_bits(in[1]), c = f_from_bits(in[2]);
    out[0] = f_bits(f_add(f_mul(a, b), c));
    out[1] = f_bits(f_fma(a, b, c));
    out[2] = f_bits(f_div(a, b));
    out[3] = f_bits(f_sqrt(f_abs(c)));

    const i64 wide = i64_mul_add((i32)in[3], in[4], (i64)((u64)in[5] << 32 | in[6]));
    out[4] = (u32)wide;
    out[5] = (u32)((u64)wide >> 32);
    out[6] = f_bits(f_from_i64(wide));
    out[7] = (u32)dot_u8s8(in[5], in[6], (i32)in[7]);

    i32 sums[4] = {1, 2, 3, 4};
    mma_u8s8(sums, in + 3, in + 6);
    f32 v[4];
    for (u32 i = 0; i < 4; i++) {
        out[8 + i] = (u32)sums[i];
        v[i] = f_from_i32((i32)in[3 + i]);
    }
    warp_hadamard128(v);
    for (u32 i = 0; i < 4; i++)
        out[12 + i] = f_bits(v[i]);
}
