//@ -- see schedules/prefill_transform.lua
//@ include("lib_vector")
// The value of four elements from column `at` on: zeros outside of the matrix.
static FN void load_inside(const f32 *row_start, u32 at, u32 inside, f32 v[4])
{
    for (u32 i = 0; i < 4; i++)
        v[i] = ${f32(0)};
    if (inside && at < ${width})
        load4_f32(row_start + at, v);
}

static FN f32 sum_squares(const f32 v[4])
{
    f32 sum = ${f32(0)};
    for (u32 i = 0; i < 4; i++)
        sum = f_fma(v[i], v[i], sum);
    return warp_sum_f32(sum);
}

// value * suh, transform, to f16.
static FN void transform_block(f32 v[4], const h16 *suh, h16 *out)
{
    u32 signs[2];
    load2_u32((const u32 *)suh, signs);
    for (u32 i = 0; i < 4; i++) {
        const h16 sign = h_from_bits((u16)(signs[i / 2] >> (i % 2) * 16));
        v[i] = f_mul(v[i], f_from_h(sign));
    }
    warp_hadamard128(v);
    for (u32 i = 0; i < 4; i++)
        v[i] = f_mul(v[i], f_from_bits(0x3DB504F3u));
    store4_h16(out, v);
}

KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 inside = row < rows;
        const f32 *source = x + (u64)row * ${width};
        h16 *target = out + (u64)row * ${padded};
        //@ if mode == "norm" then
        f32 scale = ${f32(0)};
        if (inside) {
            f32 sum = ${f32(0)};
            for (u32 chunk = 0; chunk < ${blocks}; chunk++) {
                f32 v[4];
                load_inside(source, chunk * ${BLOCK} + lane * 4, inside, v);
                sum = f_add(sum, sum_squares(v));
            }
            scale = f_rsqrt(f_add(f_div(sum, ${f32(width)}), f_from_bits(${eps}u)));
        }
        for (u32 chunk = 0; chunk < ${blocks}; chunk++) {
            const u32 at = chunk * ${BLOCK} + lane * 4;
            f32 v[4];
            load_inside(source, at, inside, v);
            if (at < ${width}) {
                f32 w[4];
                load4_f32(weight + at, w);
                for (u32 i = 0; i < 4; i++)
                    v[i] = f_mul(f_mul(v[i], scale), w[i]);
                if (normed)
                    store4_f32(normed + (u64)row * ${width} + at, v);
            }
            transform_block(v, suh + at, target + at);
        }
        //@ else
        const u32 at = chunk * ${BLOCK} + lane * 4;
        f32 v[4];
        load_inside(source, at, inside, v);
        //@ if mode == "gdn" then
        const f32 mean = f_mul(sum_squares(v), ${f32(1 / BLOCK)});
        const f32 scale = f_rsqrt(f_add(mean, f_from_bits(${eps}u)));
        f32 gate[4], w[4];
        load_inside(y + (u64)row * ${width}, at, inside, gate);
        load4_f32(weight + lane * 4, w);
        for (u32 i = 0; i < 4; i++)
            v[i] = f_mul(f_mul(f_mul(v[i], scale), w[i]), f_silu(gate[i]));
        //@ end
        transform_block(v, suh + at, target + at);
        //@ end
    ${jobs.close}
}
