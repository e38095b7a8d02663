/* errors_prefill.h - the EXL3 linears of errors.c as prompts run them: products of fp16.
 *
 * Schemes, all with weights rounded to fp16 as the codebook says, which are the truth here:
 *
 *   ours   the four kernels of prefill.c, fp32 sums in prefill_gemm
 *   f16    the same with fp16 sums over slices of 32 k and fp32 sums of slices, the order of the
 *          reference's product on SM86 (elpis.md 2.4.7), emulated: the two tensor steps of a slice
 *          are rounded once each, to nearest
 *   stock  ExLlamaV3's reconstruction (exl3.md 3.3 C): fp16(x suh), fp16(H), fp32 sums of steps in
 *          four turns (the order of cuBLAS is its own), rounded to fp16 before the output transform
 *
 * Scale: |x| |w| as in errors_linear.h.
 */

enum { SLICE = 32, STEP = 16, TURNS = 4 };

/* Sums of a row over k, before the output transform. */
struct prefill_sums {
    double truth[BLOCK];
    float slices[BLOCK], stock[BLOCK];
};

/* A step of 16 products, exact in float64. */
static void add_step(const struct linear *l, const float *a, u32 k, double sums[BLOCK])
{
    memset(sums, 0, BLOCK * sizeof *sums);
    for (u32 i = k; i < k + STEP; i++)
        for (u32 c = 0; c < BLOCK; c++)
            sums[c] += (double)a[i] * l->weights[(size_t)i * BLOCK + c];
}

static void sum_prefill_row(const struct linear *l, u32 row, struct prefill_sums *sums)
{
    const size_t at = (size_t)row * l->k;
    float turns[TURNS][BLOCK] = {{0}}, slice[BLOCK];
    double step[BLOCK];
    memset(sums, 0, sizeof *sums);
    for (u32 k = 0; k < l->k; k += STEP) {
        float *turn = turns[k / STEP % TURNS];
        for (u32 i = k; i < k + STEP; i++)
            for (u32 c = 0; c < BLOCK; c++)
                sums->truth[c] += l->truth[at + i] * l->weights[(size_t)i * BLOCK + c];
        add_step(l, l->stock + at, k, step);
        for (u32 c = 0; c < BLOCK; c++)
            turn[c] = (float)(turn[c] + step[c]);
        add_step(l, l->half + at, k, step);
        for (u32 c = 0; c < BLOCK; c++)
            slice[c] = to_half(k % SLICE == 0 ? step[c] : slice[c] + step[c]);
        for (u32 c = 0; c < BLOCK && (k + STEP) % SLICE == 0; c++)
            sums->slices[c] += slice[c];
    }
    for (u32 c = 0; c < BLOCK; c++)
        sums->stock[c] = to_half((turns[0][c] + turns[1][c]) + (turns[2][c] + turns[3][c]));
}

static void measure_prefill_row(const struct linear *l, u32 row, u32 block,
                                const double norms[BLOCK], struct op *op)
{
    struct prefill_sums sums;
    sum_prefill_row(l, row, &sums);
    hadamard(sums.truth, BLOCK);
    hadamard_f32(sums.slices, BLOCK);
    hadamard_f32(sums.stock, BLOCK);
    for (u32 c = 0; c < BLOCK; c++) {
        const float svh = l->svh[block * BLOCK + c];
        const double truth = sums.truth[c] / sqrt(BLOCK) * svh;
        const double scale = l->norms[row] * norms[c] * fabs(svh);
        const float stock = to_half(to_half(sums.stock[c] * r128) * (double)svh);
        meter_add(&op->meters[OURS], l->outputs[(size_t)row * l->n + block * BLOCK + c], truth,
                  scale);
        meter_add(&op->meters[F16], sums.slices[c] * r128 * svh, truth, scale);
        meter_add(&op->meters[STOCK], stock, truth, scale);
    }
}

/* As linear_bounds. A tensor core may cut off: a rounding there counts two units, once a step of 16
 * products; the host device rounds each product of a step.
 *
 * A slice s of 32 k has two fp16 roundings of partial sums that are at most |x_s||w_s|, and the sum
 * of these over all slices is at most |x||w| (Cauchy-Schwarz): 2 * 2 h in all, whatever k is. fp16
 * sums over all of k have k / 16 roundings of sums that are all at most |x||w|. */
static void prefill_bounds(const struct linear *l, bool host, struct op *op)
{
    const double u = u32_unit, h = half_unit, k = l->k, block = sqrt(BLOCK);
    const double sums = host ? k : k / STEP * 2; /* units of an fp32 sum over k, ours or stock's */
    const double input = 8 * u, output = 8 * u * block;
    op->bounds[OURS] = input + output + h + /* H(x suh) in fp16 */
                       sums * u * block;
    op->bounds[F16] = input + output + h + 2 * 2 * h * block + /* in slices */
                      k / SLICE * u * block;                   /* of slices */
    op->bounds[STOCK] = input + u + 2 * h + output + 2 * h +   /* fp16(x suh), H; out, svh */
                        h * block +                            /* sums, before the transform */
                        sums * u * block;
}

static void launch_prefill(struct bench *bench, struct linear *l)
{
    enum { BAND = 64 };
    const u32 k = l->k, n = l->n, bits = l->shape->bits;
    const struct jit_parameter rows = JIT_NUMBER("rows_max", BAND);
    struct jit_kernel *pack = KERNEL_OF(bench, "trellis_pack", JIT_NUMBER("bits", bits));
    struct jit_kernel *transform = KERNEL_OF(
        bench, "prefill_transform", JIT_NUMBER("width", k), JIT_NUMBER("padded", k), rows,
        JIT_TEXT("mode", "plain"), JIT_NUMBER("eps", 0), JIT_NUMBER("parts", 1));
    struct jit_kernel *weights = KERNEL_OF(bench, "prefill_weights", JIT_NUMBER("k", k),
                                           JIT_NUMBER("n", n), JIT_NUMBER("bits", bits),
                                           JIT_TEXT("codebook", "mul1"));
    struct jit_kernel *product = KERNEL_OF(bench, "prefill_gemm", JIT_NUMBER("k", k),
                                           JIT_NUMBER("n", n), rows);
    struct jit_kernel *output = KERNEL_OF(bench, "prefill_output", JIT_NUMBER("width", n),
                                          JIT_NUMBER("padded", n), rows, JIT_TEXT("mode", "plain"));
    const dptr x = array_new(bench, (size_t)ROWS * k * 4, l->x), suh = halves_new(bench, l->suh, k);
    const dptr trellis = array_new(bench, (size_t)k / 16 * (n / 16) * 8 * bits * 4, l->trellis);
    const dptr operand = array_new(bench, (size_t)BAND * k * 2, NULL);
    const dptr matrix = array_new(bench, (size_t)k * n * 2, NULL);
    const dptr sums = array_new(bench, (size_t)BAND * n * 4, NULL);
    const dptr y = array_new(bench, (size_t)BAND * n * 4, NULL), svh = halves_new(bench, l->svh, n);
    LAUNCH(bench, pack, trellis, k / 16 * (n / 64));
    LAUNCH(bench, transform, x, 0, 0, suh, 0, 0, operand, 0, ROWS);
    LAUNCH(bench, weights, trellis, matrix);
    LAUNCH(bench, product, operand, matrix, sums, ROWS);
    LAUNCH(bench, output, sums, svh, y, ROWS);
    l->outputs = array_read(bench, y, (size_t)ROWS * n * 4);
    arrays_clear(bench);
}

static void run_prefill_linear(struct bench *bench, const struct linear_shape *shape)
{
    struct op op = {.over = "|x||w|"};
    snprintf(op.name, sizeof op.name, "prefill %s", shape->name);
    if (!is_wanted(bench, op.name))
        return;
    struct linear l = linear_of(bench, shape);
    snprintf(op.what, sizeof op.what, "k %u, %u of %u columns, %u bits; f16: slices of 32 k", l.k,
             l.n, shape->n, shape->bits);
    make_linear_inputs(bench, &l);
    transform_inputs(&l);
    launch_prefill(bench, &l);
    for (u32 block = 0; block < l.n / BLOCK; block++) {
        double norms[BLOCK];
        decode_block(&l, block);
        column_norms(&l, norms);
        for (u32 row = 0; row < ROWS; row++)
            measure_prefill_row(&l, row, block, norms, &op);
    }
    prefill_bounds(&l, device_info(bench->device)->kind == DEVICE_HOST, &op);
    report(bench, &op);
    free_linear(&l);
}

/* The head computes no prompt. */
static void run_prefill(struct bench *bench)
{
    for (u32 i = 0; i < bench->sizes->linear_count; i++)
        if (strcmp(bench->sizes->linears[i].name, "head") != 0)
            run_prefill_linear(bench, &bench->sizes->linears[i]);
}
