/* errors_plain.h - what errors.c measures element by element: norms, SiLU * up, the residual.
 *
 * The kernel `activate` has the arithmetic that linear_input, linear_middle and prefill have before
 * their Hadamard transform, and leaves the result in fp32. Scales: the element's size for norms,
 * |g u| for SiLU(g) * u, |x| + |y| for the residual.
 */

/* Runs activate over rows of width k. y and weight may be NULL. */
static float *activate(struct bench *bench, const char *mode, u32 k, const float *x, const float *y,
                       const float *weight, u32 weights)
{
    struct jit_kernel *kernel = KERNEL_OF(bench, "activate", JIT_NUMBER("k", k),
                                          JIT_NUMBER("rows_max", ROWS), JIT_TEXT("mode", mode),
                                          JIT_NUMBER("eps", EPS_BITS));
    const size_t bytes = (size_t)ROWS * k * 4;
    const dptr out = array_new(bench, bytes, NULL);
    LAUNCH(bench, kernel, array_new(bench, bytes, x), y ? array_new(bench, bytes, y) : 0,
           weight ? array_new(bench, weights * 4, weight) : 0, out, chain_of(bench, 0, ROWS));
    float *result = array_read(bench, out, bytes);
    arrays_clear(bench);
    return result;
}

static void run_norm(struct bench *bench)
{
    const u32 k = bench->sizes->hidden;
    struct op op = {.name = "RMSNorm", .over = "|y|"};
    if (!is_wanted(bench, op.name))
        return;
    snprintf(op.what, sizeof op.what, "width %u", k);
    float *x = random_stream(bench, k), *w = random_weights(bench, k, 1, 0.1);
    float *ours = activate(bench, "norm", k, x, NULL, w, k);
    for (u32 row = 0; row < ROWS; row++) {
        const float *from = x + (size_t)row * k;
        double square = 0;
        for (u32 i = 0; i < k; i++)
            square += (double)from[i] * from[i];
        for (u32 i = 0; i < k; i++) {
            const double truth = from[i] / sqrt(square / k + 1e-6) * w[i];
            add_element(&op, ours[(size_t)row * k + i], to_half(truth), to_half((float)truth),
                        truth, fabs(truth));
        }
    }
    op.bounds[OURS] = norm_bound(k);
    op.bounds[F16] = half_unit;
    op.bounds[STOCK] = stock_norm_bound();
    report(bench, &op);
    memory_free(x);
    memory_free(w);
    memory_free(ours);
}

static void run_gated_norm(struct bench *bench)
{
    const u32 k = bench->sizes->gdn_v_heads * BLOCK;
    struct op op = {.name = "GDN gated norm", .over = "|y|"};
    if (!is_wanted(bench, op.name))
        return;
    snprintf(op.what, sizeof op.what, "%u heads of 128", k / BLOCK);
    float *o = memory_alloc((size_t)ROWS * k * 4), *z = random_stream(bench, k);
    float *w = random_weights(bench, BLOCK, 0.9, 0.1);
    for (u32 i = 0; i < ROWS * k; i++)
        o[i] = to_bf16(0.3 * normal(bench));
    float *ours = activate(bench, "gdn", k, o, z, w, BLOCK);
    for (u32 at = 0; at < ROWS * k; at += BLOCK) {
        double square = 0;
        for (u32 i = 0; i < BLOCK; i++)
            square += (double)o[at + i] * o[at + i];
        for (u32 i = 0; i < BLOCK; i++) {
            const double truth = o[at + i] / sqrt(square / BLOCK + 1e-6) * w[i] * silu(z[at + i]);
            add_element(&op, ours[at + i], to_half(truth), to_half((float)truth), truth,
                        fabs(truth));
        }
    }
    /* sum of squares 9, eps and the root's half of them, root, 1/, two products; SiLU 2.4 ulp and
     * its product */
    op.bounds[OURS] = (5 + 2 + 2 + 4.8 + 1) * u32_unit;
    op.bounds[F16] = half_unit;
    op.bounds[STOCK] = half_unit + op.bounds[OURS]; /* fp32 inside too, fp16 out */
    report(bench, &op);
    memory_free(o);
    memory_free(z);
    memory_free(w);
    memory_free(ours);
}

static void run_glu(struct bench *bench)
{
    const u32 k = bench->sizes->intermediate;
    struct op op = {.name = "SiLU * up", .over = "|g u|"};
    if (!is_wanted(bench, op.name))
        return;
    snprintf(op.what, sizeof op.what, "width %u", k);
    float *g = random_stream(bench, k), *u = random_stream(bench, k);
    for (u32 i = 0; i < ROWS * k; i++) {
        g[i] = to_half(g[i]);
        u[i] = to_half(u[i]);
    }
    float *ours = activate(bench, "glu", k, g, u, NULL, 0);
    for (u32 i = 0; i < ROWS * k; i++) {
        const double truth = silu(g[i]) * u[i], scale = fabs((double)g[i] * u[i]);
        add_element(&op, ours[i], to_half(truth), to_half((double)silu_half(g[i]) * u[i]), truth,
                    scale);
    }
    op.bounds[OURS] = (4.8 + 1) * u32_unit; /* SiLU 2.4 ulp, the product */
    op.bounds[F16] = half_unit;
    op.bounds[STOCK] = 5 * half_unit; /* exp, 1 + e, 1/, two products, each rounded */
    report(bench, &op);
    memory_free(g);
    memory_free(u);
    memory_free(ours);
}

static void run_residual(struct bench *bench)
{
    const u32 k = bench->sizes->hidden;
    const size_t bytes = (size_t)ROWS * k * 4;
    struct op op = {.name = "residual", .over = "|x|+|y|"};
    if (!is_wanted(bench, op.name))
        return;
    snprintf(op.what, sizeof op.what, "width %u", k);
    float *x = random_stream(bench, k), *y = random_stream(bench, k);
    const dptr to = array_new(bench, bytes, x);
    struct jit_kernel *residual = KERNEL_OF(bench, "residual", JIT_NUMBER("n", k),
                                            JIT_NUMBER("rows_max", ROWS));
    LAUNCH(bench, residual, array_new(bench, bytes, y), to,
           array_new(bench, (size_t)ROWS * (k / BLOCK) * 4, NULL), array_new(bench, ROWS * 4, NULL),
           chain_of(bench, 0, ROWS));
    float *ours = array_read(bench, to, bytes);
    for (u32 i = 0; i < ROWS * k; i++) {
        const double truth = (double)x[i] + y[i], scale = fabs((double)x[i]) + fabs((double)y[i]);
        add_element(&op, ours[i], to_half(truth), x[i] + y[i], truth, scale);
    }
    op.bounds[OURS] = op.bounds[STOCK] = u32_unit; /* the same addition */
    op.bounds[F16] = half_unit;
    report(bench, &op);
    memory_free(x);
    memory_free(y);
    memory_free(ours);
    arrays_clear(bench);
}

static void run_plain(struct bench *bench)
{
    run_gated_norm(bench);
    run_norm(bench);
    run_glu(bench);
    run_residual(bench);
}
