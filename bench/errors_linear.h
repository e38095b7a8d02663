/* errors_linear.h - the EXL3 linears of errors.c.
 *
 * Scale of an error in column n: |x| |w|, x the input after suh and w the column of the matrix
 * between the input transform and the output, both in float64. The input transform is orthonormal,
 * so |x| is also the norm of what is quantised.
 *
 * With --model the weights are a model's own and the inputs norms of a stream that it has computed.
 *
 * Columns of a linear do not see each other but in blocks of 128, so the first `columns` stand for
 * all; matrices that share an input differ in suh alone, one stands for them.
 */

struct linear {
    const struct linear_shape *shape;
    u32 k, n, slices;
    float *x;            /* [ROWS, k], halves */
    u32 *trellis;        /* [k/16, n/16, 8 bits], as in a file */
    float *suh, *svh;    /* halves */
    double *truth;       /* [ROWS, k] H(x suh), orthonormal */
    float *half, *stock; /* [ROWS, k] the same in fp16: rounded once; as stock rounds */
    i8 *digits;          /* [ROWS, k] stock's int8 */
    float *units;        /* [ROWS, slices] */
    double norms[ROWS];  /* |x suh| */
    u16 *codes;          /* [k, BLOCK] byte sums of a block of columns */
    float *weights;      /* [k, BLOCK] rounded to fp16 */
    float *outputs;      /* [ROWS, n] of the kernels */
};

static bool is_int8(const struct linear *l)
{
    return l->shape->bits <= 5; /* else stock's fp16 kernel, exl3.md 4 */
}

static void make_linear_inputs(struct bench *bench, struct linear *l)
{
    float *gains = outlier_channels(bench, l->k);
    for (u32 i = 0; i < ROWS * l->k; i++) {
        const double gain = gains[i % l->k], value = normal(bench);
        l->x[i] = to_half(l->shape->input == NORMED ? value * gain
                                                    : value * silu(normal(bench)) * gain);
    }
    for (u32 i = 0; i < l->k; i++)
        l->suh[i] = to_half((1 + 0.25 * uniform(bench)) / sqrt(l->k) *
                            (random_next(&bench->seed) & 1 ? 1 : -1));
    for (u32 i = 0; i < l->n; i++)
        l->svh[i] = to_half((1 + 0.25 * uniform(bench)) * (random_next(&bench->seed) & 1 ? 1 : -1));
    for (size_t i = 0; i < (size_t)l->k / 16 * (l->n / 16) * 8 * l->shape->bits; i++)
        l->trellis[i] = (u32)random_next(&bench->seed);
    memory_free(gains);
}

/* One block of a row in all schemes: transforms, fp16, int8. */
static void transform_block(struct linear *l, u32 row, u32 block)
{
    const size_t at = (size_t)row * l->k + block * BLOCK;
    float single[BLOCK], stock[BLOCK];
    for (u32 i = 0; i < BLOCK; i++) {
        const float suh = l->suh[block * BLOCK + i];
        l->truth[at + i] = (double)l->x[at + i] * suh;
        l->norms[row] += l->truth[at + i] * l->truth[at + i];
        single[i] = l->x[at + i] * suh;
        stock[i] = to_half((double)l->x[at + i] * suh);
    }
    hadamard(l->truth + at, BLOCK);
    hadamard_f32(single, BLOCK);
    hadamard_f32(stock, BLOCK);
    for (u32 i = 0; i < BLOCK; i++) {
        l->truth[at + i] /= sqrt(BLOCK);
        l->half[at + i] = to_half(single[i] * r128);
        l->stock[at + i] = to_half(stock[i] * r128);
    }
}

/* exl3.md 4, path 1 */
static void quantise_slice(struct linear *l, u32 row, u32 slice)
{
    const size_t at = (size_t)row * l->k + slice * STOCK_SLICE;
    float top = 1e-8f;
    for (u32 i = 0; i < STOCK_SLICE; i++)
        top = fabsf(l->stock[at + i]) > top ? fabsf(l->stock[at + i]) : top;
    const float unit = top / 127, inverse = 1 / unit;
    l->units[row * l->slices + slice] = unit;
    for (u32 i = 0; i < STOCK_SLICE; i++) {
        const float digit = rintf(l->stock[at + i] * inverse);
        l->digits[at + i] = (i8)(digit > 127 ? 127 : digit < -127 ? -127 : digit);
    }
}

static void transform_inputs(struct linear *l)
{
    for (u32 row = 0; row < ROWS; row++) {
        for (u32 block = 0; block < l->k / BLOCK; block++)
            transform_block(l, row, block);
        l->norms[row] = sqrt(l->norms[row]);
        for (u32 slice = 0; slice < l->slices; slice++)
            quantise_slice(l, row, slice);
    }
}

/* Byte sum of the state of position t of a tile (exl3.md 2.3, 2.5). */
static u32 tile_code(const u32 *tile, u32 bits, u32 t)
{
    const u32 ring = 256 * bits, end = (t + 1) * bits;
    const u32 last = (end - 1) % ring, first = (end + ring - 16) % ring;
    const u64 both = (u64)tile[first / 32] << 32 | tile[last / 32];
    const u32 state = (u32)(both >> (31 - last % 32)) & 0xffff, x = state * 0x83DCD12Du;
    return (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24);
}

/* A block of columns -> codes and fp16 weights (exl3.md 2.4). */
static void decode_block(struct linear *l, u32 block)
{
    float value[1021];
    for (u32 code = 0; code < COUNT_OF(value); code++)
        value[code] = to_half((887.0 * code - 452608) * 0x1p-17);
    for (u32 kt = 0; kt < l->k / 16; kt++)
        for (u32 nt = 0; nt < BLOCK / 16; nt++) {
            const u32 *tile = l->trellis + ((size_t)kt * (l->n / 16) + block * (BLOCK / 16) + nt) *
                                               8 * l->shape->bits;
            for (u32 t = 0; t < 256; t++) {
                const u32 lane = t / 8, row = 2 * (lane % 4) + t % 2 + 8 * (t / 2 % 2);
                const size_t at = (size_t)(kt * 16 + row) * BLOCK + nt * 16 + lane / 4 +
                                  8 * (t / 4 % 2);
                l->codes[at] = (u16)tile_code(tile, l->shape->bits, t);
                l->weights[at] = value[l->codes[at]];
            }
        }
}

/* Norms of the columns after the output transform, before svh. */
static void column_norms(const struct linear *l, double norms[BLOCK])
{
    double line[BLOCK];
    memset(norms, 0, BLOCK * sizeof *norms);
    for (u32 k = 0; k < l->k; k++) {
        for (u32 c = 0; c < BLOCK; c++)
            line[c] = (887.0 * l->codes[k * BLOCK + c] - 452608) * 0x1p-17;
        hadamard(line, BLOCK);
        for (u32 c = 0; c < BLOCK; c++)
            norms[c] += line[c] * line[c] / BLOCK;
    }
    for (u32 c = 0; c < BLOCK; c++)
        norms[c] = sqrt(norms[c]);
}

/* Sums of a row over k: affine and rounded weights in float64; fp16 activations in fp32, 16
 * products a step; the same in fp16 (stock's kernel of wide codes on SM86). */
struct row_sums {
    double affine[BLOCK], rounded[BLOCK];
    float single[BLOCK], half[BLOCK];
};

static void sum_row(const struct linear *l, u32 row, struct row_sums *sums)
{
    double total = 0;
    memset(sums, 0, sizeof *sums);
    for (u32 kt = 0; kt < l->k / 16; kt++) {
        double single[BLOCK] = {0}, half[BLOCK] = {0};
        for (u32 k = kt * 16; k < kt * 16 + 16; k++) {
            const size_t at = (size_t)row * l->k + k;
            const double a = l->truth[at], h = l->half[at], s = l->stock[at];
            const u16 *codes = l->codes + (size_t)k * BLOCK;
            const float *weights = l->weights + (size_t)k * BLOCK;
            total += a;
            for (u32 c = 0; c < BLOCK; c++) {
                sums->affine[c] += a * codes[c];
                sums->rounded[c] += a * weights[c];
                single[c] += h * weights[c];
                half[c] += s * weights[c];
            }
        }
        for (u32 c = 0; c < BLOCK; c++)
            sums->single[c] = (float)(sums->single[c] + single[c]);
        for (u32 c = 0; c < BLOCK && !is_int8(l); c++)
            sums->half[c] = to_half(sums->half[c] + half[c]);
    }
    for (u32 c = 0; c < BLOCK; c++)
        sums->affine[c] = (887 * sums->affine[c] - 452608 * total) * 0x1p-17;
}

static void sum_row_int8(const struct linear *l, u32 row, float z[BLOCK])
{
    float products[BLOCK] = {0}, activations = 0;
    for (u32 slice = 0; slice < l->slices; slice++) {
        i32 sum[BLOCK] = {0}, digits = 0;
        const float unit = l->units[row * l->slices + slice];
        for (u32 k = slice * STOCK_SLICE; k < (slice + 1) * STOCK_SLICE; k++) {
            const i32 digit = l->digits[(size_t)row * l->k + k];
            digits += digit;
            for (u32 c = 0; c < BLOCK; c++)
                sum[c] += digit * l->codes[(size_t)k * BLOCK + c];
        }
        activations += unit * (float)digits;
        for (u32 c = 0; c < BLOCK; c++)
            products[c] += unit * (float)sum[c];
    }
    for (u32 c = 0; c < BLOCK; c++)
        z[c] = 0.00676727294921875f * products[c] + -3.453125f * activations;
}

static void measure_row(const struct linear *l, u32 row, u32 block, const double norms[BLOCK],
                        struct op *op)
{
    struct row_sums sums;
    float stock[BLOCK];
    sum_row(l, row, &sums);
    if (is_int8(l))
        sum_row_int8(l, row, stock);
    else
        memcpy(stock, sums.half, sizeof stock);
    hadamard(sums.affine, BLOCK);
    hadamard(sums.rounded, BLOCK);
    hadamard_f32(sums.single, BLOCK);
    hadamard_f32(stock, BLOCK);
    for (u32 c = 0; c < BLOCK; c++) {
        const float svh = l->svh[block * BLOCK + c];
        const double scale = l->norms[row] * norms[c] * fabs(svh);
        const float plain = stock[c] * r128;
        const double got[SCHEMES] = {
            l->outputs[(size_t)row * l->n + block * BLOCK + c], sums.single[c] * r128 * svh,
            l->shape->half_out ? to_half((double)to_half(plain) * svh) : plain * svh};
        for (enum scheme scheme = 0; scheme < SCHEMES; scheme++) {
            meter_add(&op->meters[scheme], got[scheme], sums.affine[c] / sqrt(BLOCK) * svh, scale);
            meter_add(&op->rounded[scheme], got[scheme], sums.rounded[c] / sqrt(BLOCK) * svh,
                      scale);
        }
    }
}

/* Constants of the schemes. Errors of activations reach a column at most by their norm: |d||w|. */
static void linear_bounds(const struct linear *l, struct op *op)
{
    const double u = u32_unit, h = half_unit, k = l->k;
    /* suh, 7 stages; the transform is orthonormal, so every stage adds u of the norm */
    const double input = 8 * u;
    /* the output's 7 stages and svh: a column collects the errors of the 128 of its block */
    const double output = 8 * u * sqrt(BLOCK);
    op->bounds[OURS] =
        input + output +
        sqrt(BLOCK) / 32639.5 + /* half a unit in 128 digits, the largest is 16,319.75 or more */
        sqrt(k - BLOCK) *
            0x1p-22 +          /* dropped: blocks whose exponent is 23 or more below the row's */
        2.1 * u * sqrt(BLOCK); /* f32(U), f32(Q), the fma: U w's size, Q 0.0018 of it */
    /* Errors before the output transform: its block adds up those of 128 columns. */
    const double block = sqrt(BLOCK);
    op->bounds[F16] = input + output + h +        /* H(x suh) */
                      h * block +                 /* the weight against the affine one */
                      k / 16 * u * block;         /* a rounding a step of 16 products */
    const double stock_input = input + u + 2 * h; /* fp16(x suh), fp16(H), 1/sqrt(128) */
    const double stock_output = output + (l->shape->half_out ? 2 * h : 0);
    if (is_int8(l))
        op->bounds[STOCK] =
            stock_input + stock_output +
            sqrt(STOCK_SLICE) / 254 + /* half a unit in 256 digits, the largest is 127 */
            (2 + k / STOCK_SLICE) * u * 2 * 3.453125 * block; /* sums of slices, which cancel */
    else
        op->bounds[STOCK] = stock_input + stock_output + h * block + /* the weight */
                            k / 16 * h * block; /* fp16 sums over the whole k */
}

/* A device array of numbers that are halves. */
static dptr halves_new(struct bench *bench, const float *values, u32 count)
{
    u16 *halves = memory_alloc(count * sizeof *halves);
    for (u32 i = 0; i < count; i++)
        halves[i] = half_bits(values[i]);
    const dptr array = array_new(bench, count * sizeof *halves, halves);
    memory_free(halves);
    return array;
}

static void launch_linear(struct bench *bench, struct linear *l)
{
    const u32 k = l->k, n = l->n, blocks = k / BLOCK, bits = l->shape->bits;
    const size_t words = (size_t)k / 16 * (n / 16) * 8 * bits;
    const dptr x = array_new(bench, (size_t)ROWS * k * 4, l->x);
    const dptr trellis = array_new(bench, words * 4, l->trellis);
    const dptr act = array_new(bench, (size_t)k / 16 * 256, NULL);
    const dptr exponents = array_new(bench, (size_t)ROWS * blocks * 4, NULL);
    const dptr digits = array_new(bench, (size_t)ROWS * blocks * 4, NULL);
    const dptr sums = array_new(bench, (size_t)ROWS * n * 8, NULL);
    const dptr scales = array_new(bench, 4 * ROWS * 16, NULL);
    const dptr bad = array_new(bench, ROWS * 4, NULL), round = chain_of(bench, 0, ROWS);
    const dptr y = array_new(bench, (size_t)ROWS * n * 4, NULL);
    struct jit_kernel *pack = KERNEL_OF(bench, "trellis_pack", JIT_NUMBER("bits", bits));
    struct jit_kernel *input = KERNEL_OF(bench, "linear_input", JIT_NUMBER("k", k),
                                         JIT_NUMBER("k_valid", k), JIT_NUMBER("parts", 1),
                                         JIT_TEXT("mode", "plain"), JIT_NUMBER("eps", EPS_BITS));
    struct jit_kernel *product = KERNEL_OF(bench, "linear_main", JIT_NUMBER("k", k),
                                           JIT_NUMBER("n0", n), JIT_NUMBER("n1", 0),
                                           JIT_NUMBER("n2", 0), JIT_NUMBER("n3", 0),
                                           JIT_NUMBER("bits", bits), JIT_TEXT("codebook", "mul1"));
    struct jit_kernel *output = KERNEL_OF(
        bench, "linear_output", JIT_NUMBER("n0", n), JIT_NUMBER("n1", 0), JIT_NUMBER("n2", 0),
        JIT_NUMBER("n3", 0), JIT_TEXT("codebook", "mul1"), JIT_TEXT("mode", "store"));
    LAUNCH(bench, pack, trellis, k / 16 * (n / 64));
    LAUNCH(bench, input, x, 0, 0, 0, pointer_list(bench, halves_new(bench, l->suh, k)), act,
           exponents, digits, bad, round);
    LAUNCH(bench, product, pointer_list(bench, trellis), act, exponents, digits, sums, scales,
           round);
    LAUNCH(bench, output, sums, scales, pointer_list(bench, halves_new(bench, l->svh, n)),
           pointer_list(bench, y), 0, bad, round);
    l->outputs = array_read(bench, y, (size_t)ROWS * n * 4);
    arrays_clear(bench);
}

static void allocate_linear(struct linear *l)
{
    const size_t rows = (size_t)ROWS * l->k, block = (size_t)l->k * BLOCK;
    l->x = memory_alloc(rows * sizeof *l->x);
    l->trellis = memory_alloc((size_t)l->k / 16 * (l->n / 16) * 8 * l->shape->bits * 4);
    l->suh = memory_alloc(l->k * sizeof *l->suh);
    l->svh = memory_alloc(l->n * sizeof *l->svh);
    l->truth = memory_alloc(rows * sizeof *l->truth);
    l->half = memory_alloc(rows * sizeof *l->half);
    l->stock = memory_alloc(rows * sizeof *l->stock);
    l->digits = memory_alloc(rows);
    l->units = memory_alloc((size_t)ROWS * l->slices * sizeof *l->units);
    l->codes = memory_alloc(block * sizeof *l->codes);
    l->weights = memory_alloc(block * sizeof *l->weights);
}

static void free_linear(struct linear *l)
{
    void *const all[] = {l->x,     l->trellis, l->suh,   l->svh,   l->truth,   l->half,
                         l->stock, l->digits,  l->units, l->codes, l->weights, l->outputs};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        memory_free(all[i]);
}

/* Adds a linear whose x, trellis, suh and svh are there. */
static void measure_linear(struct bench *bench, struct linear *l, struct op *op)
{
    transform_inputs(l);
    launch_linear(bench, l);
    for (u32 block = 0; block < l->n / BLOCK; block++) {
        double norms[BLOCK];
        decode_block(l, block);
        column_norms(l, norms);
        for (u32 row = 0; row < ROWS; row++)
            measure_row(l, row, block, norms, op);
    }
    linear_bounds(l, op);
}

static struct linear linear_of(const struct bench *bench, const struct linear_shape *shape)
{
    struct linear l = {
        .shape = shape, .k = shape->k, .n = shape->n, .slices = shape->k / STOCK_SLICE};
    if (bench->columns && bench->columns < l.n)
        l.n = bench->columns;
    allocate_linear(&l);
    return l;
}

static void run_linear(struct bench *bench, const struct linear_shape *shape)
{
    struct op op = {.over = "|x||w|"};
    snprintf(op.name, sizeof op.name, "linear %s", shape->name);
    if (!is_wanted(bench, op.name))
        return;
    struct linear l = linear_of(bench, shape);
    snprintf(op.what, sizeof op.what, "k %u, %u of %u columns, %u bits", l.k, l.n, shape->n,
             shape->bits);
    make_linear_inputs(bench, &l);
    measure_linear(bench, &l, &op);
    report(bench, &op);
    free_linear(&l);
}

/* ---- a model's own weights, on what it has computed: inputs of mixers and of the head */

/* Tensors of a file may lie at any address. */
static u32 word_at(const void *data, size_t i, size_t bytes)
{
    u32 word = 0;
    memcpy(&word, (const char *)data + i * bytes, bytes); /* little-endian, as the files */
    return word;
}

static double half_at(const void *data, size_t i)
{
    return half_value((u16)word_at(data, i, 2));
}

static double float_at(const void *data, size_t i)
{
    const u32 bits = word_at(data, i, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double vector_at(const struct model_vector *vector, u32 i)
{
    if (vector->dtype == DTYPE_F16)
        return half_at(vector->data, i);
    if (vector->dtype == DTYPE_F32)
        return float_at(vector->data, i);
    const u32 bits = word_at(vector->data, i, 2) << 16;
    return float_at(&bits, 0);
}

/* What the stream after `layer` becomes under a norm, of eight rows spread over the file. */
static void read_activations(const struct tensor *hidden, u32 layer,
                             const struct model_vector *norm, struct linear *l)
{
    const u32 width = (u32)hidden->shape[2], step = (u32)hidden->shape[0] / ROWS;
    for (u32 row = 0; row < ROWS; row++) {
        const size_t at = ((size_t)row * step * hidden->shape[1] + layer) * width;
        double square = 0;
        for (u32 i = 0; i < width; i++)
            square += float_at(hidden->data, at + i) * float_at(hidden->data, at + i);
        for (u32 i = 0; i < width; i++)
            l->x[row * l->k + i] = to_half(float_at(hidden->data, at + i) /
                                           sqrt(square / width + 1e-6) * (1 + vector_at(norm, i)));
    }
}

static void add_model_linear(struct bench *bench, const struct tensor *hidden, u32 layer,
                             const struct model_vector *norm, const struct model_linear *from,
                             bool half_out, struct op *op)
{
    const struct linear_shape shape = {
        .k = from->in_padded, .n = from->out_padded, .bits = from->bits, .half_out = half_out};
    if (from->kind != LINEAR_EXL3 || from->codebook != CODEBOOK_MUL1)
        return;
    struct linear l = linear_of(bench, &shape);
    const size_t tile = 8 * from->bits;
    for (u32 kt = 0; kt < l.k / 16; kt++)
        memcpy(l.trellis + kt * (l.n / 16) * tile,
               (const char *)from->trellis + kt * (shape.n / 16) * tile * sizeof *l.trellis,
               l.n / 16 * tile * sizeof *l.trellis);
    for (u32 i = 0; i < l.k; i++)
        l.suh[i] = (float)half_at(from->suh, i);
    for (u32 i = 0; i < l.n; i++)
        l.svh[i] = (float)half_at(from->svh, i);
    read_activations(hidden, layer, norm, &l);
    measure_linear(bench, &l, op);
    free_linear(&l);
}

static void run_model(struct bench *bench)
{
    struct model *model;
    struct tensor_file *file;
    must(bench, model_open(&model, bench->model, &bench->error));
    must(bench, tensor_file_open(&file, bench->hidden, &bench->error));
    const struct tensor *hidden = tensor_file_find(file, "hidden");
    if (!hidden || hidden->rank != 3 || hidden->dtype != DTYPE_F32 || hidden->shape[0] < ROWS ||
        hidden->shape[1] != model->config.layers || hidden->shape[2] != model->config.hidden) {
        fprintf(stderr, "errors: %s: expected a tensor hidden, F32 [%d or more, %u, %u]\n",
                bench->hidden, ROWS, model->config.layers, model->config.hidden);
        exit(ERROR_USAGE);
    }
    const u32 layers = model->config.layers;
    struct op ops[] = {{.over = "|x||w|", .what = "GDN in_proj, all layers but the first"},
                       {.over = "|x||w|", .what = "attention q, k, v, all layers"},
                       {.over = "|x||w|", .what = "head"}};
    static const char *const names[] = {"qkv z", "q k v", "head"};
    for (u32 i = 0; i < COUNT_OF(ops); i++)
        snprintf(ops[i].name, sizeof ops[i].name, "%.20s %s", model->name, names[i]);
    for (u32 i = 1; i < layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct model_linear *in[] = {&layer->in_qkv, &layer->in_z, &layer->q, &layer->k,
                                           &layer->v};
        for (u32 j = layer->attention ? 2 : 0; j < (layer->attention ? 5 : 2); j++)
            add_model_linear(bench, hidden, i - 1, &layer->input_norm, in[j], layer->attention,
                             &ops[layer->attention]);
    }
    add_model_linear(bench, hidden, layers - 1, &model->final_norm, &model->head, true, &ops[2]);
    for (u32 i = 0; i < COUNT_OF(ops); i++)
        if (ops[i].meters[OURS].count)
            report(bench, &ops[i]);
    tensor_file_close(file);
    model_close(model);
}

static void run_linears(struct bench *bench)
{
    for (u32 i = 0; i < bench->sizes->linear_count; i++)
        run_linear(bench, &bench->sizes->linears[i]);
    if (bench->model)
        run_model(bench);
}
