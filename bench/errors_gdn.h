/* errors_gdn.h - the Gated DeltaNet ops of errors.c.
 *
 *   conv         four taps and SiLU, on v channels; scale |u||w| over the taps
 *   SiLU, L2     on q and k channels, whose taps are (0, 0, 0, 1) and whose inputs bf16 numbers, so
 *                that nothing else rounds; scale 1, the length of the result
 *   a, b         W norm(x) in fp32; scale |norm(x)| |w|
 *   recurrence   the gated delta rule over many tokens, states kept by each scheme; scale |q| M, M
 *                the largest |state column|, |v| and |v - k^T S| so far
 *   gated norm   w * o * rsqrt(mean o^2) * silu(z); scale of an element: its size
 */

/* ---- conv, SiLU with L2 norm: gdn_conv; a and b: gdn_input */

struct conv {
    u32 k_heads, v_heads, channels, hidden;
    float *u, *weight, *x, *norm, *weight_ab; /* weight_ab: halves, a then b [2 v_heads, hidden] */
    float *q, *k, *v, *ab;                    /* of the kernel */
};

static void make_conv(struct bench *bench, struct conv *c)
{
    const u32 qk = 2 * c->k_heads * BLOCK;
    c->u = memory_alloc((size_t)ROWS * c->channels * 4);
    c->weight = memory_alloc((size_t)c->channels * 4 * 4);
    for (u32 i = 0; i < ROWS * c->channels; i++)
        c->u[i] = i % c->channels < qk ? to_bf16(normal(bench)) : (float)normal(bench);
    for (u32 i = 0; i < 4 * c->channels; i++)
        c->weight[i] = i / 4 < qk ? i % 4 == 3 : to_bf16(0.5 * uniform(bench));
    c->x = random_stream(bench, c->hidden);
    c->norm = random_weights(bench, c->hidden, 1, 0.1);
    c->weight_ab = memory_alloc((size_t)2 * c->v_heads * c->hidden * 4);
    for (u32 i = 0; i < 2 * c->v_heads * c->hidden; i++)
        c->weight_ab[i] = to_half(1.2 * uniform(bench) / sqrt(c->hidden));
}

static u16 *halves_of(const float *values, size_t count)
{
    u16 *halves = memory_alloc(count * 2);
    for (size_t i = 0; i < count; i++)
        halves[i] = half_bits(values[i]);
    return halves;
}

/* Sums of squares come from the kernel that writes the stream, as in the engine. */
static dptr stream_squares(struct bench *bench, u32 hidden, dptr x, dptr round)
{
    const dptr zero = array_new(bench, (size_t)ROWS * hidden * 4, NULL);
    const dptr squares = array_new(bench, (size_t)ROWS * (hidden / BLOCK) * 4, NULL);
    struct jit_kernel *residual = KERNEL_OF(bench, "residual", JIT_NUMBER("n", hidden),
                                            JIT_NUMBER("rows_max", ROWS));
    LAUNCH(bench, residual, zero, x, squares, array_new(bench, ROWS * 4, NULL), round);
    return squares;
}

static void launch_conv(struct bench *bench, struct conv *c)
{
    const size_t qk = (size_t)ROWS * c->k_heads * BLOCK * 4, v = (size_t)ROWS * c->v_heads * BLOCK;
    const size_t side = (size_t)c->v_heads * c->hidden;
    u16 *ab = halves_of(c->weight_ab, 2 * side);
    const dptr round = chain_of(bench, 0, ROWS);
    const dptr x = array_new(bench, (size_t)ROWS * c->hidden * 4, c->x);
    const dptr squares = stream_squares(bench, c->hidden, x, round);
    const dptr weight_a = array_new(bench, side * 2, ab);
    const dptr weight_b = array_new(bench, side * 2, ab + side);
    const dptr to_q = array_new(bench, qk, NULL), to_k = array_new(bench, qk, NULL);
    const dptr to_v = array_new(bench, v * 4, NULL);
    const dptr to_ab = array_new(bench, (size_t)ROWS * 2 * c->v_heads * 4, NULL);
    struct jit_kernel *conv = KERNEL_OF(bench, "gdn_conv", JIT_NUMBER("k_heads", c->k_heads),
                                        JIT_NUMBER("v_heads", c->v_heads),
                                        JIT_TEXT("codebook", "none"));
    struct jit_kernel *gates = KERNEL_OF(bench, "gdn_input", JIT_NUMBER("k", c->hidden),
                                         JIT_NUMBER("parts", 0), JIT_NUMBER("v_heads", c->v_heads),
                                         JIT_NUMBER("eps", EPS_BITS), JIT_TEXT("dtype", "F16"));
    LAUNCH(bench, conv, array_new(bench, (size_t)ROWS * c->channels * 4, c->u),
           array_new(bench, (size_t)c->channels * 16, c->weight),
           array_new(bench, (size_t)3 * c->channels * 4, NULL), to_q, to_k, to_v, round);
    LAUNCH(bench, gates, x, squares, array_new(bench, c->hidden * 4, c->norm), 0, 0, 0, 0, weight_a,
           weight_b, to_ab, 0, round);
    c->q = array_read(bench, to_q, qk);
    c->k = array_read(bench, to_k, qk);
    c->v = array_read(bench, to_v, v * 4);
    c->ab = array_read(bench, to_ab, (size_t)ROWS * 2 * c->v_heads * 4);
    memory_free(ab);
    arrays_clear(bench);
}

/* Stock: bf16 inputs and results, fp32 between (spec qwen3_5.md 3.4). */
static void measure_conv(struct bench *bench, const struct conv *c)
{
    struct op op = {.name = "GDN conv", .over = "|u||w|"};
    const u32 width = c->v_heads * BLOCK, first = 2 * c->k_heads * BLOCK;
    snprintf(op.what, sizeof op.what, "4 taps, SiLU, %u channels", width);
    for (u32 row = 3; row < ROWS; row++)
        for (u32 i = 0; i < width; i++) {
            double sum = 0, inputs = 0, weights = 0;
            float stock = 0;
            for (u32 tap = 0; tap < 4; tap++) {
                const double u = c->u[(size_t)(row - 3 + tap) * c->channels + first + i];
                const double w = c->weight[(first + i) * 4 + tap];
                sum += u * w;
                inputs += u * u;
                weights += w * w;
                stock = (float)(stock + to_bf16(u) * w);
            }
            const double scale = sqrt(inputs * weights), truth = silu(sum);
            add_element(&op, c->v[(size_t)row * width + i], to_half(truth),
                        to_bf16((float)silu(stock)), truth, scale);
        }
    const double slope = 1.1;                       /* of SiLU, at most */
    op.bounds[OURS] = (slope * 4 + 4.8) * u32_unit; /* four fma; SiLU 2.4 ulp */
    op.bounds[F16] = half_unit;
    op.bounds[STOCK] = op.bounds[OURS] + (slope + 1) * bf16_unit;
    report(bench, &op);
}

static void measure_l2(struct bench *bench, const struct conv *c)
{
    struct op op = {.name = "GDN SiLU, L2 norm", .over = "1"};
    const u32 width = c->k_heads * BLOCK;
    snprintf(op.what, sizeof op.what, "q and k, %u heads each", c->k_heads);
    for (u32 row = 0; row < ROWS; row++)
        for (u32 head = 0; head < 2 * c->k_heads; head++) {
            const float *u = c->u + (size_t)row * c->channels + head * BLOCK;
            const bool is_key = head >= c->k_heads;
            const float *ours = (is_key ? c->k : c->q) + (size_t)row * width +
                                head % c->k_heads * BLOCK;
            const double factor = is_key ? 1 : 1 / sqrt(BLOCK);
            double square = 0, rough = 0;
            for (u32 i = 0; i < BLOCK; i++) {
                square += silu(u[i]) * silu(u[i]);
                rough += (double)to_bf16((float)silu(u[i])) * to_bf16((float)silu(u[i]));
            }
            for (u32 i = 0; i < BLOCK; i++) {
                const double truth = silu(u[i]) / sqrt(square + 1e-6);
                add_element(&op, ours[i] / factor, to_half(truth),
                            (float)(to_bf16((float)silu(u[i])) / sqrt((float)rough + 1e-6)), truth,
                            1);
            }
        }
    /* SiLU 2.4 ulp; sum of squares 10 additions, its root half of them and 2 operations; product,
     * and the factor of q. SiLU's error counts twice: in the element and in the norm. */
    op.bounds[OURS] = (2 * 4.8 + 5 + 2 + 1 + 2) * u32_unit;
    op.bounds[F16] = half_unit;
    op.bounds[STOCK] = op.bounds[OURS] + bf16_unit; /* SiLU's result; the rest is fp32 too */
    report(bench, &op);
}

static double norm_bound(u32 width)
{
    /* sum of squares: 4 in a lane, 5 steps over lanes, then blocks in order; half of it in the
     * root; mean, eps, root, 1/; two products */
    return ((9 + width / BLOCK) / 2.0 + 5) * u32_unit;
}

/* Stock's norm adds in a tree: 21 steps and two approximations (spec elpis.md 8.2); fp16 out. */
static double stock_norm_bound(void)
{
    return half_unit + 23 * u32_unit;
}

static void measure_ab(struct bench *bench, const struct conv *c)
{
    struct op op = {.name = "GDN a, b", .over = "|norm x||w|"};
    snprintf(op.what, sizeof op.what, "norm, %u x %u fp16 weights", 2 * c->v_heads, c->hidden);
    double *exact = memory_alloc(c->hidden * sizeof *exact);
    for (u32 row = 0; row < ROWS; row++) {
        const float *x = c->x + (size_t)row * c->hidden;
        double square = 0, size = 0;
        for (u32 i = 0; i < c->hidden; i++)
            square += (double)x[i] * x[i];
        for (u32 i = 0; i < c->hidden; i++) {
            exact[i] = x[i] / sqrt(square / c->hidden + 1e-6) * c->norm[i];
            size += exact[i] * exact[i];
        }
        for (u32 column = 0; column < 2 * c->v_heads; column++) {
            const float *w = c->weight_ab + (size_t)column * c->hidden;
            double truth = 0, length = 0, half = 0;
            float stock[32] = {0}, sum = 0; /* 32 lanes, then in a tree: here in order */
            for (u32 i = 0; i < c->hidden; i++) {
                truth += exact[i] * w[i];
                length += (double)w[i] * w[i];
                half += (double)to_half(exact[i]) * w[i];
                stock[i / 2 % 32] = (float)(stock[i / 2 % 32] + (double)to_half(exact[i]) * w[i]);
            }
            for (u32 lane = 0; lane < 32; lane++)
                sum += stock[lane];
            const double scale = sqrt(size * length);
            meter_add(&op.meters[OURS], c->ab[(size_t)row * 2 * c->v_heads + column], truth, scale);
            meter_add(&op.meters[F16], (float)half, truth, scale);
            meter_add(&op.meters[STOCK], sum, truth, scale);
        }
    }
    const double products = c->hidden / 32.0 + 5; /* a lane's chain, then 5 steps over lanes */
    op.bounds[OURS] = norm_bound(c->hidden) + products * u32_unit;
    op.bounds[F16] = half_unit + u32_unit;
    op.bounds[STOCK] = stock_norm_bound() + (products + 32) * u32_unit;
    report(bench, &op);
    memory_free(exact);
}

static void run_conv(struct bench *bench)
{
    const struct sizes *sizes = bench->sizes;
    struct conv c = {.k_heads = sizes->gdn_k_heads,
                     .v_heads = sizes->gdn_v_heads,
                     .channels = (2 * sizes->gdn_k_heads + sizes->gdn_v_heads) * BLOCK,
                     .hidden = sizes->hidden};
    if (!is_wanted(bench, "GDN conv") && !is_wanted(bench, "GDN SiLU, L2 norm") &&
        !is_wanted(bench, "GDN a, b"))
        return;
    make_conv(bench, &c);
    launch_conv(bench, &c);
    measure_conv(bench, &c);
    measure_l2(bench, &c);
    measure_ab(bench, &c);
    void *const all[] = {c.u, c.weight, c.x, c.norm, c.weight_ab, c.q, c.k, c.v, c.ab};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        memory_free(all[i]);
}

/* ---- recurrence */

/* Of one head: float64 state, stock's fp32 state, the f16 scheme's. [k, v column] */
struct states {
    double truth[BLOCK][BLOCK];
    float f16[BLOCK][BLOCK], stock[BLOCK][BLOCK];
    double most[BLOCK]; /* M of a column */
};

/* One token of one head in float64; o: outputs. */
static void step_truth(struct states *s, const float *q, const float *k, const float *v,
                       double decay, double beta, double o[BLOCK])
{
    double dot[BLOCK] = {0}, size[BLOCK] = {0};
    for (u32 j = 0; j < BLOCK; j++)
        for (u32 c = 0; c < BLOCK; c++)
            dot[c] += k[j] * s->truth[j][c];
    memset(o, 0, BLOCK * sizeof *o);
    for (u32 j = 0; j < BLOCK; j++)
        for (u32 c = 0; c < BLOCK; c++) {
            const double delta = beta * (v[c] - decay * dot[c]);
            s->truth[j][c] = decay * s->truth[j][c] + k[j] * delta;
            size[c] += s->truth[j][c] * s->truth[j][c];
            o[c] += q[j] * s->truth[j][c];
        }
    for (u32 c = 0; c < BLOCK; c++) {
        s->most[c] = fmax(s->most[c], sqrt(size[c]));
        s->most[c] = fmax(s->most[c], fmax(fabs(v[c]), fabs(v[c] - decay * dot[c])));
    }
}

/* The same in fp32, slices of 32 k as stock has them (spec elpis.md 5.5); ours is alike. */
static void step_single(float state[BLOCK][BLOCK], const float *q, const float *k, const float *v,
                        float decay, float beta, float o[BLOCK])
{
    float dot[BLOCK] = {0};
    for (u32 slice = 0; slice < BLOCK; slice += 32) {
        float part[BLOCK] = {0};
        for (u32 j = slice; j < slice + 32; j++)
            for (u32 c = 0; c < BLOCK; c++)
                part[c] += k[j] * state[j][c];
        for (u32 c = 0; c < BLOCK; c++)
            dot[c] += part[c];
    }
    for (u32 c = 0; c < BLOCK; c++)
        dot[c] = v[c] - dot[c] * decay;
    memset(o, 0, BLOCK * sizeof *o);
    for (u32 slice = 0; slice < BLOCK; slice += 32) {
        float part[BLOCK] = {0};
        for (u32 j = slice; j < slice + 32; j++)
            for (u32 c = 0; c < BLOCK; c++) {
                state[j][c] = state[j][c] * decay + k[j] * dot[c] * beta;
                part[c] += q[j] * state[j][c];
            }
        for (u32 c = 0; c < BLOCK; c++)
            o[c] += part[c];
    }
}

struct recurrence {
    u32 k_heads, v_heads;
    float *a_log, *dt_bias;
    float *q, *k, *v, *ab; /* of eight tokens */
    float *o;              /* of the kernel */
    struct states *states; /* [v_heads] */
};

static void random_vectors(struct bench *bench, float *to, u32 heads, double length)
{
    for (u32 head = 0; head < ROWS * heads; head++, to += BLOCK) {
        double square = 0;
        for (u32 i = 0; i < BLOCK; i++) {
            to[i] = (float)silu(normal(bench));
            square += (double)to[i] * to[i];
        }
        for (u32 i = 0; length > 0 && i < BLOCK; i++)
            to[i] = (float)(to[i] * length / sqrt(square));
    }
}

static void measure_tokens(const struct recurrence *r, struct op *op)
{
    for (u32 row = 0; row < ROWS; row++)
        for (u32 head = 0; head < r->v_heads; head++) {
            struct states *s = &r->states[head];
            const size_t at = ((size_t)row * r->v_heads + head) * BLOCK;
            const size_t key = ((size_t)row * r->k_heads + head / (r->v_heads / r->k_heads)) *
                               BLOCK;
            const float *ab = r->ab + (size_t)row * 2 * r->v_heads + head;
            const double drift = log1p(exp((double)ab[0] + r->dt_bias[head]));
            const double decay = exp(-exp((double)r->a_log[head]) * drift);
            const double beta = 1 / (1 + exp(-(double)ab[r->v_heads]));
            double o[BLOCK], length = 0;
            float f16[BLOCK], stock[BLOCK];
            step_truth(s, r->q + key, r->k + key, r->v + at, decay, beta, o);
            step_single(s->f16, r->q + key, r->k + key, r->v + at, (float)decay, (float)beta, f16);
            step_single(s->stock, r->q + key, r->k + key, r->v + at, (float)decay, to_bf16(beta),
                        stock);
            for (u32 i = 0; i < BLOCK; i++)
                length += (double)r->q[key + i] * r->q[key + i];
            for (u32 c = 0; c < BLOCK; c++) {
                const double scale = sqrt(length) * s->most[c];
                add_element(op, r->o[at + c], to_half(f16[c]), to_bf16_toward_zero(stock[c]), o[c],
                            scale);
            }
        }
}

static void recurrence_bounds(u32 steps, struct op *op)
{
    /* A step never lengthens an error of the state: decay <= 1, |k| = 1, beta <= 1. New in a step,
     * as a part of M: the sum k^T S 35 (32 fma, 3 slices), v - decay dot and beta 4, decay 14
     * (softplus 3.4 ulp, exp 1.2; |g| e^-|g| < 0.37), sigmoid 5, the new state 3. */
    const double step = 61 * u32_unit, output = 35 * u32_unit;
    op->bounds[OURS] = steps * step + output;
    op->bounds[F16] = steps * (step + u32_unit) + output + half_unit;
    op->bounds[STOCK] = steps * (step + u32_unit + bf16_unit) + output + /* beta in bf16 */
                        2 * bf16_unit;                                   /* o toward zero */
}

static void run_recurrence(struct bench *bench)
{
    const struct sizes *sizes = bench->sizes;
    struct recurrence r = {.k_heads = sizes->gdn_k_heads, .v_heads = sizes->gdn_v_heads};
    struct op op = {.over = "|q| max |S|"};
    snprintf(op.name, sizeof op.name, "GDN recurrence, %u", bench->steps);
    snprintf(op.what, sizeof op.what, "%u tokens, %u heads of 128 x 128", bench->steps, r.v_heads);
    if (!is_wanted(bench, op.name))
        return;
    const u32 keys = ROWS * r.k_heads * BLOCK, values = ROWS * r.v_heads * BLOCK;
    r.a_log = random_weights(bench, r.v_heads, 0.9, 1.1);
    r.dt_bias = random_weights(bench, r.v_heads, -4.5, 2.2);
    r.q = memory_alloc(keys * 4);
    r.k = memory_alloc(keys * 4);
    r.v = memory_alloc(values * 4);
    r.ab = memory_alloc(ROWS * 2 * r.v_heads * 4);
    r.states = memory_alloc(r.v_heads * sizeof *r.states);
    struct jit_kernel *step = KERNEL_OF(bench, "gdn_step", JIT_NUMBER("k_heads", r.k_heads),
                                        JIT_NUMBER("v_heads", r.v_heads), JIT_NUMBER("layers", 1));
    const dptr q = array_new(bench, keys * 4, NULL), k = array_new(bench, keys * 4, NULL);
    const dptr v = array_new(bench, values * 4, NULL), o = array_new(bench, values * 4, NULL);
    const dptr ab = array_new(bench, ROWS * 2 * r.v_heads * 4, NULL);
    const dptr a_log = array_new(bench, r.v_heads * 4, r.a_log);
    const dptr dt_bias = array_new(bench, r.v_heads * 4, r.dt_bias);
    const dptr state = array_new(bench, (size_t)r.v_heads * BLOCK * BLOCK * 4, NULL);
    const dptr round = chain_of(bench, 0, ROWS);
    for (u32 token = 0; token < bench->steps; token += ROWS) {
        random_vectors(bench, r.q, r.k_heads, 1 / sqrt(BLOCK));
        random_vectors(bench, r.k, r.k_heads, 1);
        random_vectors(bench, r.v, r.v_heads, 0);
        for (u32 i = 0; i < ROWS * 2 * r.v_heads; i++)
            r.ab[i] = (float)(0.7 * normal(bench));
        array_write(bench, q, r.q, keys * 4);
        array_write(bench, k, r.k, keys * 4);
        array_write(bench, v, r.v, values * 4);
        array_write(bench, ab, r.ab, ROWS * 2 * r.v_heads * 4);
        LAUNCH(bench, step, q, k, v, ab, a_log, dt_bias, state, o, round);
        r.o = array_read(bench, o, values * 4);
        measure_tokens(&r, &op);
        memory_free(r.o);
    }
    recurrence_bounds(bench->steps, &op);
    report(bench, &op);
    void *const all[] = {r.a_log, r.dt_bias, r.q, r.k, r.v, r.ab, r.states};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        memory_free(all[i]);
    arrays_clear(bench);
}

static void run_gdn(struct bench *bench)
{
    run_conv(bench);
    run_recurrence(bench);
}
