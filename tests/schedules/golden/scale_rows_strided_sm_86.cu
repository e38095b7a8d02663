#line 2 "templates/scale_rows.cu"
static FN f32 scaled(f32 a, f32 b)
{
    return f_mul(f_mul(a, b), f_from_bits(0x3dcccccdu));
}

extern "C" __global__ void __launch_bounds__(128, 2) elpis_scale_rows(
    const f32 *x, /* [rows, hidden] */
    const f32 *w, /* [hidden] */
    f32 *y, /* [rows, hidden] */
    u32 rows) /* active rows */
#line 8 "templates/scale_rows.cu"
{ wait_previous();
    const u32 lane = lane_id();
    f32 *part = shared_at(f32, 0);
    // jobs: [row rows, chunk 2] over 328 warps, strided
    {
        const u32 jobs_worker = cta_id() * 4 + warp_id();
        const u32 jobs_count = (rows * 2 + 328 - 1 - jobs_worker) / 328;
        for (u32 jobs_i = 0; jobs_i < jobs_count; jobs_i++) {
            const u32 jobs_x = jobs_worker + jobs_i * 328;
            const u32 row = jobs_x / 2;
            const u32 chunk = jobs_x % 2;
#line 12 "templates/scale_rows.cu"
        u32 at = row * 256 + chunk * 128 + lane * 4;
#line 14 "templates/scale_rows.cu"
        y[at + 0] = scaled(x[at + 0], w[chunk * 128 + lane * 4 + 0]);
#line 14 "templates/scale_rows.cu"
        y[at + 1] = scaled(x[at + 1], w[chunk * 128 + lane * 4 + 1]);
#line 14 "templates/scale_rows.cu"
        y[at + 2] = scaled(x[at + 2], w[chunk * 128 + lane * 4 + 2]);
#line 14 "templates/scale_rows.cu"
        y[at + 3] = scaled(x[at + 3], w[chunk * 128 + lane * 4 + 3]);
#line 16 "templates/scale_rows.cu"
        }
    }
#line 17 "templates/scale_rows.cu"
    part[warp_id()] = f_from_u32(((rows * 2 + 328 - 1 - (cta_id() * 4 + warp_id())) / 328));
}
