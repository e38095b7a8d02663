/* errors_attention.h - the attention ops of errors.c over the 3-bit cache.
 *
 *   RoPE         norm and rotation of queries; scale: the rotated pair's length
 *   scores       q.k from q after RoPE and a coded key; scale: |q||k|. A key's score does not
 *                depend on other keys, so no context is named. The kernel gives spans, not scores:
 *                with eight rows of a round 64 positions apart every span holds one key, and the
 *                span's maximum m and sum l are 2^(s - m)
 *   P.V          softmax and values from the kernel's own query planes; scale of a dim:
 *                sqrt(sum (p*s)^2) * |c| / l, s the V scale, c the codes. Measured in the rotated
 *                basis: what comes out is rotated back in float64
 *   output gate  o * sigmoid(gate); scale |o|
 */

/* Device arrays of a round's rows, as attention_prepare takes and leaves them. */
struct rows {
    u32 q_heads, kv_heads;
    float *qg, *k, *v, *q_norm, *k_norm;
    dptr d_qg, d_k, d_v, d_q_norm, d_k_norm, frequencies, q_planes, q_scale, own[4], bad;
};

static const double query_gain = 2.5; /* scores of rms 2.5 nats over keys of rms 1 */

static void make_rows(struct bench *bench, struct rows *r)
{
    const u32 queries = ROWS * r->q_heads * 2 * HEAD, keys = ROWS * r->kv_heads * HEAD;
    r->qg = memory_alloc(queries * sizeof *r->qg);
    r->k = memory_alloc(keys * sizeof *r->k);
    r->v = memory_alloc(keys * sizeof *r->v);
    for (u32 i = 0; i < queries; i++) /* the gates are wide open */
        r->qg[i] = i / HEAD % 2 ? 100 : (float)normal(bench);
    for (u32 i = 0; i < keys; i++) {
        r->k[i] = (float)normal(bench);
        r->v[i] = to_half(normal(bench));
    }
    r->q_norm = random_weights(bench, HEAD, query_gain, 0.25);
    r->k_norm = random_weights(bench, HEAD, 1, 0.25);
    u64 frequencies[ROTARY / 2];
    for (u32 t = 0; t < ROTARY / 2; t++)
        frequencies[t] = rope_frequency(theta, t, ROTARY);
    r->d_qg = array_new(bench, queries * 4, r->qg);
    r->d_k = array_new(bench, keys * 4, r->k);
    r->d_v = array_new(bench, keys * 4, r->v);
    r->d_q_norm = array_new(bench, HEAD * 4, r->q_norm);
    r->d_k_norm = array_new(bench, HEAD * 4, r->k_norm);
    r->frequencies = array_new(bench, sizeof frequencies, frequencies);
    r->q_planes = array_new(bench, ROWS * r->q_heads * HEAD * 4, NULL);
    r->q_scale = array_new(bench, ROWS * r->q_heads * (HEAD / GROUP) * 4, NULL);
    for (u32 i = 0; i < 4; i++)
        r->own[i] = array_new(bench, keys * 2, NULL); /* halves at most */
    r->bad = array_new(bench, ROWS * 4, NULL);
}

static void free_rows(struct bench *bench, struct rows *r)
{
    memory_free(r->qg);
    memory_free(r->k);
    memory_free(r->v);
    memory_free(r->q_norm);
    memory_free(r->k_norm);
    arrays_clear(bench);
}

/* Nothing goes to the cache: the rounds here do not keep. */
static void prepare_rows(struct bench *bench, const struct rows *r, u32 kv_bits, dptr round)
{
    struct jit_kernel *prepare = KERNEL_OF(
        bench, "attention_prepare", JIT_NUMBER("q_heads", r->q_heads),
        JIT_NUMBER("kv_heads", r->kv_heads), JIT_NUMBER("rotary_dims", ROTARY),
        JIT_NUMBER("eps", EPS_BITS), JIT_TEXT("codebook", "none"), JIT_NUMBER("kv_bits", kv_bits));
    LAUNCH(bench, prepare, r->d_qg, r->d_k, r->d_v, r->d_q_norm, r->d_k_norm, r->frequencies, 0,
           r->q_planes, r->q_scale, 0, 0, 0, 0, r->own[0], r->own[1], r->own[2], r->own[3], r->bad,
           round);
}

/* Queries after norm and RoPE as the kernel has them in fp32, [ROWS, q_heads, HEAD]. The kernel's
 * factor is taken away again in float64: within u of the fp32 value. */
static double *read_queries(struct bench *bench, const struct rows *r, dptr round)
{
    const u32 count = ROWS * r->q_heads * HEAD;
    prepare_rows(bench, r, 16, round);
    float *scaled = array_read(bench, r->q_planes, count * 4);
    double *q = memory_alloc(count * sizeof *q);
    for (u32 i = 0; i < count; i++)
        q[i] = scaled[i] / (double)(float)(log2e / 16);
    memory_free(scaled);
    return q;
}

/* A rotation by H32 / sqrt(32) of every group: its own inverse. */
static void rotate_groups(double *v)
{
    for (u32 group = 0; group < HEAD; group += GROUP) {
        hadamard(v + group, GROUP);
        for (u32 i = 0; i < GROUP; i++)
            v[group + i] /= sqrt(GROUP);
    }
}

/* The same as stock's attention does it: fp16 in, constants and out, fp32 sums (exl3.md 5.4). */
static void rotate_groups_stock(const float *from, float *to)
{
    for (u32 i = 0; i < HEAD; i++) {
        float sum = 0;
        for (u32 j = 0; j < GROUP; j++) {
            const float value = from[i / GROUP * GROUP + j] * 0.1767578125f;
            sum += __builtin_parity(i % GROUP & j) ? -value : value;
        }
        to[i] = to_half(sum);
    }
}

/* ---- codes */

/* A group's 3-bit codes: two words of pairs, one of single bits (exl3.md 5.3). */
static void unpack_codes(const u32 words[KV_BITS], i8 codes[GROUP])
{
    for (u32 i = 0; i < GROUP; i++) {
        const u32 high = words[i / 16] >> (i % 16 * 2) & 3, low = words[2] >> i & 1;
        codes[i] = (i8)(2 * (2 * high + low) - 7);
    }
}

/* Random cached vectors: rotated values, normal, of group sizes that differ. */
static void make_cache(struct bench *bench, u32 groups, double spread, u32 *words, u16 *scales)
{
    for (u32 group = 0; group < groups; group++) {
        double v[GROUP], top = 0;
        const double size = exp(spread * uniform(bench));
        for (u32 i = 0; i < GROUP; i++) {
            v[i] = normal(bench) * size;
            top = fabs(v[i]) > top ? fabs(v[i]) : top;
        }
        u32 *to = words + (size_t)group * KV_BITS;
        memset(to, 0, KV_BITS * sizeof *to);
        for (u32 i = 0; i < GROUP; i++) {
            const int level = (int)floor(v[i] / top * 4 + 4);
            const u32 code = level > 7 ? 7 : (u32)level;
            to[i / 16] |= (code >> 1) << (i % 16 * 2);
            to[2] |= (code & 1) << i;
        }
        scales[group] = half_bits(to_half(top));
    }
}

/* Keys or values of one head, unpacked: codes [keys, HEAD], scales / 8 [keys, HEAD / GROUP]. */
struct side {
    i8 *codes;
    double *scales;
    float *halves; /* [keys, HEAD] as stock's fp16 tiles hold them */
};

static void unpack_side(struct side *side, u32 first, u32 keys, u32 heads, u32 head,
                        const u32 *words, const u16 *scales)
{
    for (u32 key = 0; key < keys; key++)
        for (u32 g = 0; g < HEAD / GROUP; g++) {
            const size_t from = ((size_t)key * heads + head) * (HEAD / GROUP) + g;
            const size_t to = (size_t)(first + key) * (HEAD / GROUP) + g;
            unpack_codes(words + from * KV_BITS, side->codes + to * GROUP);
            side->scales[to] = half_value(scales[from]) / 8;
            for (u32 i = 0; i < GROUP; i++)
                side->halves[to * GROUP + i] = to_half(side->codes[to * GROUP + i] *
                                                       side->scales[to]);
        }
}

static struct side side_new(u32 keys)
{
    const size_t count = (size_t)keys * HEAD;
    return (struct side){memory_alloc(count), memory_alloc(count / GROUP * sizeof(double)),
                         memory_alloc(count * sizeof(float))};
}

static void side_free(struct side *side)
{
    memory_free(side->codes);
    memory_free(side->scales);
    memory_free(side->halves);
}

/* ---- norm and RoPE */

/* Truth of dims t and t + 32 of a head; stock: norm and rotation each rounded to fp16, the angle a
 * product in fp32. */
static void rope_pair(const float *x, const float *weight, double scale, u32 position, u32 t,
                      double truth[2], float f16[2], float stock[2])
{
    const double a = x[t] * scale * weight[t];
    const double b = x[t + ROTARY / 2] * scale * weight[t + ROTARY / 2];
    const long double angle = position * powl((long double)theta, -2.0L * t / ROTARY);
    const double c = (double)cosl(angle), s = (double)sinl(angle);
    truth[0] = a * c - b * s;
    truth[1] = b * c + a * s;
    const float rough = (float)position * (float)pow(theta, -2.0 * t / ROTARY);
    const float cs = (float)cos(rough), ss = (float)sin(rough), ah = to_half(a), bh = to_half(b);
    stock[0] = to_half(ah * cs - bh * ss);
    stock[1] = to_half(bh * cs + ah * ss);
    for (u32 i = 0; i < 2; i++)
        f16[i] = to_half(truth[i]);
}

static void run_rope(struct bench *bench, u32 last)
{
    const struct sizes *sizes = bench->sizes;
    struct rows r = {.q_heads = sizes->q_heads, .kv_heads = sizes->kv_heads};
    struct op op = {.over = "|pair|"};
    snprintf(op.name, sizeof op.name, "q norm, RoPE at %u", last);
    snprintf(op.what, sizeof op.what, "%u heads, 64 of 256 dims rotated, base 1e7", r.q_heads);
    if (!is_wanted(bench, op.name))
        return;
    make_rows(bench, &r);
    u32 words[ROUND_WORDS];
    describe(words, last + 1 - ROWS, ROWS);
    words[ROUND_KEEP] = 0;
    double *q = read_queries(bench, &r, array_new(bench, sizeof words, words));
    for (u32 i = 0; i < ROWS * r.q_heads; i++) {
        const float *x = r.qg + (size_t)i * 2 * HEAD;
        double square = 0;
        for (u32 d = 0; d < HEAD; d++)
            square += (double)x[d] * x[d];
        for (u32 t = 0; t < ROTARY / 2; t++) {
            double truth[2];
            float f16[2], stock[2];
            rope_pair(x, r.q_norm, 1 / sqrt(square / HEAD + 1e-6),
                      words[ROUND_POSITIONS + i / r.q_heads], t, truth, f16, stock);
            const double size = hypot(truth[0], truth[1]);
            for (u32 side = 0; side < 2; side++) {
                meter_add(&op.meters[OURS], q[i * HEAD + t + side * ROTARY / 2], truth[side], size);
                meter_add(&op.meters[F16], f16[side], truth[side], size);
                meter_add(&op.meters[STOCK], stock[side], truth[side], size);
            }
        }
    }
    /* sum of squares 15 additions, its root half of them and 4 operations, 2 products */
    const double norm = 14 * u32_unit;
    op.bounds[OURS] = norm + 1.6e-7 +   /* sine and cosine, 1.1e-7 each (prelude/math.h) */
                      5 * u32_unit;     /* product and fma, the factor and its removal */
    op.bounds[F16] = half_unit + 1e-12; /* the result */
    op.bounds[STOCK] = 2 * half_unit + norm +
                       last * 2.0 * u32_unit + /* angle: frequency and product in fp32 */
                       4 * u32_unit;
    report(bench, &op);
    memory_free(q);
    free_rows(bench, &r);
}

/* ---- scores */

static dptr zeros(struct bench *bench, size_t bytes)
{
    return array_new(bench, bytes, NULL);
}

/* Rows 64 positions apart, each sees the keys of all. */
static dptr apart_round(struct bench *bench)
{
    u32 words[ROUND_WORDS];
    describe(words, 0, ROWS);
    words[ROUND_KEEP] = 0;
    for (u32 row = 0; row < ROWS; row++) {
        words[ROUND_POSITIONS + row] = 64 * row;
        words[ROUND_ANCESTORS + row] = 0xff;
    }
    return array_new(bench, sizeof words, words);
}

/* Maxima and sums of the spans, u32 [spans, ROWS, q_heads, 2]. */
static u32 *read_spans(struct bench *bench, const struct rows *r, dptr round)
{
    enum { CONTEXT = 512 };
    const u32 identity[] = {0, 1};
    struct jit_kernel *attend = KERNEL_OF(
        bench, "attention_decode", JIT_NUMBER("q_heads", r->q_heads),
        JIT_NUMBER("kv_heads", r->kv_heads), JIT_NUMBER("context", CONTEXT),
        JIT_NUMBER("bits", KV_BITS));
    const size_t spans = (size_t)jit_kernel_export(attend, "spans");
    const size_t rows = spans * ROWS * r->q_heads, slots = (size_t)CONTEXT * r->kv_heads * 8;
    const dptr stat = zeros(bench, rows * 8);
    LAUNCH(bench, attend, r->q_planes, r->q_scale, zeros(bench, slots * KV_BITS * 4),
           zeros(bench, slots * 2), zeros(bench, slots * KV_BITS * 4), zeros(bench, slots * 2),
           r->own[0], r->own[1], r->own[2], r->own[3], array_new(bench, sizeof identity, identity),
           zeros(bench, rows * HEAD * 4), stat, round);
    return array_read(bench, stat, rows * 8);
}

/* Errors of a query's scores over the eight keys, in log2 units. spans: of this row and head. */
static void measure_scores(const double *query, const struct side *keys, const u32 *spans,
                           u32 span_words, struct op *op)
{
    const double factor = log2e / 16;
    double exact[HEAD], input[HEAD], size = 0, input_size = 0;
    float half[HEAD], stock[HEAD];
    for (u32 d = 0; d < HEAD; d++) {
        half[d] = to_half(query[d]);
        exact[d] = query[d];
        input[d] = half[d];
        size += exact[d] * exact[d];
        input_size += input[d] * input[d];
    }
    rotate_groups(exact);
    rotate_groups(input);
    rotate_groups_stock(half, stock);
    for (u32 d = 0; d < HEAD; d++)
        half[d] = to_half(exact[d]);
    for (u32 key = 0; key < ROWS; key++) {
        double truth = 0, stock_truth = 0, norm = 0, parts[SCHEMES] = {0};
        float sums[SCHEMES] = {0};
        for (u32 d = 0; d < HEAD; d++) {
            const size_t at = (size_t)key * HEAD + d;
            const double value = keys->codes[at] * keys->scales[at / GROUP];
            truth += exact[d] * value;
            stock_truth += input[d] * value;
            norm += value * value;
            parts[F16] += (double)half[d] * keys->halves[at];
            parts[STOCK] += (double)stock[d] * keys->halves[at];
            for (u32 i = F16; i < SCHEMES && d % 16 == 15; i++, parts[i - 1] = 0)
                sums[i] = (float)(sums[i] + parts[i]);
        }
        float sum;
        memcpy(&sum, &spans[key * span_words + 1], sizeof sum);
        const double scale = sqrt(size * norm) * factor;
        meter_add(&op->meters[OURS], (i32)spans[key * span_words] + log2(sum), truth * factor,
                  scale);
        meter_add(&op->meters[F16], sums[F16] * factor, truth * factor, scale);
        meter_add(&op->meters[STOCK], (float)(sums[STOCK] * 0.0625f) * log2e, stock_truth * factor,
                  sqrt(input_size * norm) * factor);
    }
}

static void run_scores(struct bench *bench)
{
    enum { TRIALS = 4 };
    const struct sizes *sizes = bench->sizes;
    struct op op = {.name = "attention scores", .over = "|q||k|"};
    if (!is_wanted(bench, op.name))
        return;
    for (u32 trial = 0; trial < TRIALS; trial++) {
        struct rows r = {.q_heads = sizes->q_heads, .kv_heads = sizes->kv_heads};
        make_rows(bench, &r);
        const dptr round = apart_round(bench);
        double *queries = read_queries(bench, &r, round);
        prepare_rows(bench, &r, KV_BITS, round);
        const u32 groups = ROWS * r.kv_heads * (HEAD / GROUP);
        u32 *words = array_read(bench, r.own[0], groups * KV_BITS * 4);
        u16 *scales = array_read(bench, r.own[1], groups * 2);
        u32 *spans = read_spans(bench, &r, round);
        struct side keys = side_new(ROWS);
        for (u32 i = 0; i < ROWS * r.q_heads; i++) {
            unpack_side(&keys, 0, ROWS, r.kv_heads, i % r.q_heads / (r.q_heads / r.kv_heads), words,
                        scales);
            measure_scores(queries + (size_t)i * HEAD, &keys, spans + (size_t)i * 2,
                           ROWS * r.q_heads * 2, &op);
        }
        side_free(&keys);
        memory_free(queries);
        memory_free(words);
        memory_free(scales);
        memory_free(spans);
        free_rows(bench, &r);
    }
    snprintf(op.what, sizeof op.what, "256 dims, %u heads, 3-bit keys", sizes->q_heads);
    op.bounds[OURS] = sqrt(GROUP) /
                          32639.5 + /* half a unit in 32 digits, the largest is 16,319.75 or more */
                      5 * u32_unit +  /* the rotation */
                      12 * u32_unit + /* factors, 8 sums of groups; exp2 and l, read back */
                      2 * u32_unit;   /* q, as read_queries has it */
    op.bounds[F16] = 2 * half_unit + 17 * u32_unit; /* q and k; 16 sums */
    op.bounds[STOCK] = 2 * half_unit + 18 * u32_unit +
                       (1 - 0.1767578125 * sqrt(GROUP)) + /* fp16 constant of the rotation */
                       GROUP * u32_unit * sqrt(GROUP);    /* its sums */
    report(bench, &op);
}

/* ---- P.V */

/* What one query sees. */
struct sight {
    const struct side *keys, *values;
    u32 count;
    const i8 *planes; /* this query in the high plane; the low one `plane` bytes behind */
    size_t plane;
    const float *query_scale; /* [8] */
    const float *output;      /* [HEAD] of the kernels, rotated back */
};

/* Scores in log2 units, exact from the planes (attention_prepare). */
static void exact_scores(const struct sight *s, double *scores)
{
    i32 digits[HEAD];
    for (u32 d = 0; d < HEAD; d++) {
        const u32 in = d % GROUP, e = in % 16;
        const u32 slot = d / GROUP * GROUP + in / 16 * 16 + e / 4 + 4 * (e % 4);
        digits[d] = 256 * s->planes[slot] + s->planes[s->plane + slot];
    }
    for (u32 key = 0; key < s->count; key++) {
        scores[key] = 0;
        for (u32 g = 0; g < HEAD / GROUP; g++) {
            const i8 *codes = s->keys->codes + (size_t)key * HEAD + g * GROUP;
            i32 sum = 0;
            for (u32 i = 0; i < GROUP; i++)
                sum += digits[g * GROUP + i] * codes[i];
            scores[key] += (double)sum * s->query_scale[g] *
                           s->keys->scales[key * (HEAD / GROUP) + g] * 8;
        }
    }
}

/* Stock's keys are split, a split's tiles of 32 add up in order, then the splits (spec elpis.md
 * 8.2). f16 does the same. */
static u32 split_count(u32 keys)
{
    return keys > 128 * 41 ? 41 : (keys + 127) / 128;
}

static u32 split_tiles(u32 keys)
{
    return ((keys + 31) / 32 + split_count(keys) - 1) / split_count(keys);
}

/* Truth, f16 and stock of P.V from one list of scores; size: the scale of every dim. */
struct values {
    double truth[HEAD], size[HEAD], f16[HEAD], stock[HEAD];
};

static void sum_values(const struct sight *s, const double *scores, double top, struct values *o)
{
    double total = 0, weights[HEAD / GROUP] = {0}, codes[HEAD] = {0}, tile[HEAD] = {0}, part = 0;
    float sums[HEAD] = {0}, sum = 0, all[HEAD] = {0}, sum_all = 0;
    const u32 split = 32 * split_tiles(s->count);
    memset(o, 0, sizeof *o);
    for (u32 key = 0; key < s->count; key++) {
        const double p = exp2(scores[key] - top);
        const float single = (float)exp2((float)scores[key] - (float)top), half = to_half(single);
        total += p;
        part += single;
        for (u32 d = 0; d < HEAD; d++) {
            const size_t at = (size_t)key * HEAD + d;
            const double scaled = p * s->values->scales[at / GROUP], code = s->values->codes[at];
            weights[d / GROUP] += d % GROUP ? 0 : scaled * scaled;
            codes[d] += code * code;
            o->truth[d] += scaled * code;
            tile[d] += (double)half * s->values->halves[at];
        }
        if (key % 32 != 31 && key + 1 != s->count)
            continue;
        sum = (float)(sum + part);
        part = 0;
        for (u32 d = 0; d < HEAD; d++) {
            sums[d] = (float)(sums[d] + tile[d]);
            tile[d] = 0;
        }
        if (key % split != split - 1 && key + 1 != s->count)
            continue;
        sum_all += sum;
        sum = 0;
        for (u32 d = 0; d < HEAD; d++) {
            all[d] += sums[d];
            sums[d] = 0;
        }
    }
    float rounded[HEAD], rotated[HEAD];
    for (u32 d = 0; d < HEAD; d++) {
        o->truth[d] /= total;
        o->size[d] = sqrt(weights[d / GROUP] * codes[d]) / total;
        o->f16[d] = all[d] / sum_all;
        rounded[d] = to_half(all[d] / sum_all);
    }
    rotate_groups_stock(rounded, rotated);
    for (u32 d = 0; d < HEAD; d++)
        o->stock[d] = rotated[d];
    rotate_groups(o->stock);
}

/* Adds a query; returns the largest |score|. */
static double measure_values(const struct sight *s, struct op *op)
{
    double *scores = memory_alloc(s->count * sizeof *scores), top = -1e9, ours[HEAD], most = 0;
    struct values o;
    exact_scores(s, scores);
    for (u32 key = 0; key < s->count; key++) {
        top = scores[key] > top ? scores[key] : top;
        most = fabs(scores[key]) > most ? fabs(scores[key]) : most;
    }
    sum_values(s, scores, top, &o);
    for (u32 d = 0; d < HEAD; d++)
        ours[d] = s->output[d];
    rotate_groups(ours);
    for (u32 d = 0; d < HEAD; d++) {
        meter_add(&op->meters[OURS], ours[d], o.truth[d], o.size[d]);
        meter_add(&op->meters[F16], o.f16[d], o.truth[d], o.size[d]);
        meter_add(&op->meters[STOCK], o.stock[d], o.truth[d], o.size[d]);
    }
    memory_free(scores);
    return most;
}

/* Largest to smallest V scale of the keys of a group, at most over the groups. */
static double scale_spread(const struct side *values, u32 keys)
{
    double spread = 1;
    for (u32 g = 0; g < HEAD / GROUP; g++) {
        double least = values->scales[g], most = least;
        for (u32 key = 1; key < keys; key++) {
            const double scale = values->scales[key * (HEAD / GROUP) + g];
            least = fmin(least, scale);
            most = fmax(most, scale);
        }
        spread = fmax(spread, most / least);
    }
    return spread;
}

/* spread: of the V scales. score: the largest, log2 units. */
static void value_bounds(u32 keys, u32 spans, double spread, double score, struct op *op)
{
    const double u = u32_unit, h = half_unit, n = keys, block = sqrt(GROUP);
    /* exp2 of scores that were summed in fp32, in both: relative errors of p */
    const double weights = 3 * u + score * u * 2;
    /* l is a sum of RN(p 2^24): n 2^-25 of l, where some p is 1 or more. As a part of the scale:
     * sum p s |c| <= 7 s_most l, and the scale is at least s_least |p| sqrt(n) / l, since codes are
     * odd: 7 (s_most / s_least) sqrt(n) 2^-25 */
    const double sum = fmin(n, 7 * spread * sqrt(n)) * 0x1p-25;
    const double tiles = fmax(1, n / 1024) + spans; /* of 64 in a span, then spans */
    /* Half a unit in 64 weights, the largest is 2^15 units; products of score sums; p*s. */
    op->bounds[OURS] = 4 * 0x1p-15 + weights + 9 * score * u + sum + u + 2 * (tiles + 4) * u +
                       6 * u * block;                           /* the rotation back */
    const double chain = split_tiles(keys) + split_count(keys); /* additions, of o and of l */
    op->bounds[F16] = 2 * h + weights + 2 * (chain + 1) * u +   /* p and v */
                      sqrt(n) * spread * 0x1p-25;               /* p below the normal range */
    op->bounds[STOCK] = op->bounds[F16] + h +                   /* the output */
                        h * block + GROUP * u * block + (1 - 0.1767578125 * block); /* rotation */
}

enum { VALUE_ROWS = 2 }; /* rows do not see each other; two are enough to average */

/* Rows over a cache: keys and values of one head are sides[0] and sides[1]. */
struct context {
    struct rows rows;
    u32 keys, base, pages, spans;
    u32 *codes[2]; /* [slots, kv_heads * 8, KV_BITS] keys, values */
    u16 *scales[2];
    void *own[4]; /* the rows' own, as the kernel has coded them */
    struct side sides[2];
    dptr cache[4], round, page_list;
    float *output, *query_scale; /* of the kernels */
    i8 *planes;
};

static void make_context(struct bench *bench, struct context *c)
{
    c->base = c->keys - VALUE_ROWS;
    c->pages = c->keys / 256 + 1;
    make_rows(bench, &c->rows);
    const u32 groups = c->rows.kv_heads * (HEAD / GROUP);
    const size_t slots = (size_t)c->pages * 256 * groups;
    for (u32 side = 0; side < 2; side++) {
        c->codes[side] = memory_alloc(slots * KV_BITS * 4);
        c->scales[side] = memory_alloc(slots * 2);
        make_cache(bench, c->base * groups, side ? 0.35 : 0, c->codes[side], c->scales[side]);
        c->cache[2 * side] = array_new(bench, slots * KV_BITS * 4, c->codes[side]);
        c->cache[2 * side + 1] = array_new(bench, slots * 2, c->scales[side]);
        c->sides[side] = side_new(c->keys);
    }
    u32 words[ROUND_WORDS], *list = memory_alloc(c->pages * sizeof *list);
    for (u32 i = 0; i < c->pages; i++)
        list[i] = i;
    describe(words, c->base, VALUE_ROWS);
    words[ROUND_KEEP] = 0;
    c->round = array_new(bench, sizeof words, words);
    c->page_list = array_new(bench, c->pages * sizeof *list, list);
    memory_free(list);
}

static void attend(struct bench *bench, struct context *c)
{
    const struct rows *r = &c->rows;
    struct jit_kernel *decode = KERNEL_OF(
        bench, "attention_decode", JIT_NUMBER("q_heads", r->q_heads),
        JIT_NUMBER("kv_heads", r->kv_heads), JIT_NUMBER("context", c->pages * 256),
        JIT_NUMBER("bits", KV_BITS));
    struct jit_kernel *combine = KERNEL_OF(
        bench, "attention_combine", JIT_NUMBER("q_heads", r->q_heads),
        JIT_NUMBER("kv_heads", r->kv_heads), JIT_NUMBER("context", c->pages * 256),
        JIT_TEXT("codebook", "none"), JIT_NUMBER("bits", KV_BITS));
    c->spans = (u32)jit_kernel_export(decode, "spans");
    const size_t heads = (size_t)ROWS * r->q_heads, groups = r->kv_heads * (HEAD / GROUP);
    const dptr out = zeros(bench, c->spans * heads * HEAD * 4);
    const dptr stat = zeros(bench, c->spans * heads * 8), y = zeros(bench, heads * HEAD * 4);
    prepare_rows(bench, r, KV_BITS, c->round);
    LAUNCH(bench, decode, r->q_planes, r->q_scale, c->cache[0], c->cache[1], c->cache[2],
           c->cache[3], r->own[0], r->own[1], r->own[2], r->own[3], c->page_list, out, stat,
           c->round);
    LAUNCH(bench, combine, out, stat, r->d_qg, y, c->round);
    c->output = array_read(bench, y, heads * HEAD * 4);
    c->planes = array_read(bench, r->q_planes, 2 * heads * HEAD);
    c->query_scale = array_read(bench, r->q_scale, heads * (HEAD / GROUP) * 4);
    for (u32 i = 0; i < 4; i++)
        c->own[i] = array_read(bench, r->own[i], ROWS * groups * (i % 2 ? 2 : KV_BITS * 4));
}

static void unpack_head(struct context *c, u32 head)
{
    for (u32 side = 0; side < 2; side++) {
        unpack_side(&c->sides[side], 0, c->base, c->rows.kv_heads, head, c->codes[side],
                    c->scales[side]);
        unpack_side(&c->sides[side], c->base, VALUE_ROWS, c->rows.kv_heads, head, c->own[2 * side],
                    c->own[2 * side + 1]);
    }
}

static struct sight sight_of(const struct context *c, u32 row, u32 head)
{
    const size_t at = (size_t)row * c->rows.q_heads + head;
    return (struct sight){.keys = &c->sides[0],
                          .values = &c->sides[1],
                          .count = c->base + row + 1,
                          .planes = c->planes + at * HEAD,
                          .plane = (size_t)ROWS * c->rows.q_heads * HEAD,
                          .query_scale = c->query_scale + at * (HEAD / GROUP),
                          .output = c->output + at * HEAD};
}

static void free_context(struct bench *bench, struct context *c)
{
    for (u32 i = 0; i < 4; i++)
        memory_free(c->own[i]);
    for (u32 side = 0; side < 2; side++) {
        side_free(&c->sides[side]);
        memory_free(c->codes[side]);
        memory_free(c->scales[side]);
    }
    memory_free(c->output);
    memory_free(c->planes);
    memory_free(c->query_scale);
    free_rows(bench, &c->rows);
}

static void run_values(struct bench *bench, u32 keys)
{
    const struct sizes *sizes = bench->sizes;
    struct context c = {.rows = {.q_heads = sizes->q_heads, .kv_heads = sizes->kv_heads},
                        .keys = keys};
    struct op op = {.over = "sqrt(sum (p*s)^2)*|c|"};
    const u32 group = sizes->q_heads / sizes->kv_heads;
    double score = 0, spread = 1;
    snprintf(op.name, sizeof op.name, "P.V, %u keys", keys);
    if (!is_wanted(bench, op.name))
        return;
    make_context(bench, &c);
    attend(bench, &c);
    for (u32 head = 0; head < sizes->q_heads; head++) {
        if (head % group == 0) {
            unpack_head(&c, head / group);
            spread = fmax(spread, scale_spread(&c.sides[1], keys));
        }
        for (u32 row = 0; row < VALUE_ROWS; row++) {
            const struct sight sight = sight_of(&c, row, head);
            score = fmax(score, measure_values(&sight, &op));
        }
    }
    value_bounds(keys, c.spans, spread, score, &op);
    snprintf(op.what, sizeof op.what, "256 dims, %u heads, 3-bit values, scales within %.1f",
             sizes->q_heads, spread);
    report(bench, &op);
    free_context(bench, &c);
}

/* ---- gate of the output: one span of weight 1, nothing rotated */

static void run_output_gate(struct bench *bench)
{
    const u32 heads = bench->sizes->q_heads, count = ROWS * heads * HEAD;
    struct op op = {.name = "output gate", .over = "|o|"};
    if (!is_wanted(bench, op.name))
        return;
    snprintf(op.what, sizeof op.what, "o * sigmoid(gate), %u heads", heads);
    float *part = memory_alloc(count * 4), *qg = memory_alloc((size_t)count * 8);
    u32 *stat = memory_alloc(ROWS * heads * 8), words[ROUND_WORDS];
    const float one = 1;
    for (u32 i = 0; i < count; i++) {
        part[i] = to_half(normal(bench));
        qg[(size_t)i / HEAD * 2 * HEAD + HEAD + i % HEAD] = to_half(2 * normal(bench));
    }
    for (u32 i = 0; i < ROWS * heads; i++)
        memcpy(&stat[2 * i + 1], &one, sizeof one);
    describe(words, 0, ROWS);
    struct jit_kernel *combine = KERNEL_OF(
        bench, "attention_combine", JIT_NUMBER("q_heads", heads), JIT_NUMBER("kv_heads", heads),
        JIT_NUMBER("context", 256), JIT_TEXT("codebook", "none"), JIT_NUMBER("bits", 16));
    const size_t spans = (size_t)memory_plan_spans(256);
    const dptr d_part = zeros(bench, spans * count * 4), y = zeros(bench, count * 4);
    const dptr d_stat = zeros(bench, spans * ROWS * heads * 8);
    array_write(bench, d_part, part, count * 4);
    array_write(bench, d_stat, stat, ROWS * heads * 8);
    LAUNCH(bench, combine, d_part, d_stat, array_new(bench, (size_t)count * 8, qg), y,
           array_new(bench, sizeof words, words));
    float *ours = array_read(bench, y, count * 4);
    for (u32 i = 0; i < count; i++) {
        const float gate = qg[(size_t)i / HEAD * 2 * HEAD + HEAD + i % HEAD], o = part[i];
        const double truth = o / (1 + exp(-(double)gate));
        const float e = to_half(exp(-(double)gate)), s = to_half(1 / (double)to_half(1.0 + e));
        add_element(&op, ours[i], to_half(truth), to_half((double)o * s), truth, fabs(o));
    }
    op.bounds[OURS] = 7 * u32_unit; /* sigmoid 2.4 ulp, the division by l, the product */
    op.bounds[F16] = half_unit;
    op.bounds[STOCK] = 4 * half_unit; /* exp, 1 + e, 1/, product */
    report(bench, &op);
    memory_free(part);
    memory_free(qg);
    memory_free(stat);
    memory_free(ours);
    arrays_clear(bench);
}

static void run_attention(struct bench *bench)
{
    for (size_t i = 0; i < COUNT_OF(bench->sizes->positions); i++)
        run_rope(bench, bench->sizes->positions[i]);
    run_scores(bench);
    for (size_t i = 0; i < COUNT_OF(bench->sizes->keys) && !bench->keys; i++)
        run_values(bench, bench->sizes->keys[i]);
    if (bench->keys)
        run_values(bench, bench->keys);
    run_output_gate(bench);
}
