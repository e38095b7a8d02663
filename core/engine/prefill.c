/* prefill.c - one piece of a prompt through the prefill kernels (design.md 4.3.4).
 *
 * A linear is four launches: transform (norm or gate, suh, Hadamard, f16), weights (trellis -> f16
 * matrix in a scratch that linears share), product, output (Hadamard, svh, residual). Linears that
 * read the same norm have one transform, which leaves their operands side by side; and between
 * gate, up and down there is one launch, middle, in place of an output and a transform. The
 * product is cuBLASLt's on GPUs that add into fp32 at full rate, if the library passes its start-up
 * check for the shape; else our own kernel, which there adds in fp16 over slices of 32 k. Which
 * one is decided once, at opening, by shape: never by row count. Rows are padded to bands of 64
 * with exact zeros, pieces start at multiples of 256, so a prompt's result does not depend on how
 * it was cut.
 *
 * Weights depend on no row, so they are made ahead, on a stream of their own: those of a linear
 * while the product of the quantised linear before it runs, across layers; those of the first one
 * while the piece's tokens are embedded. There are two matrices, and the order of the linears is
 * fixed at opening, with the matrix of each:
 *
 *     first stream    .. transform L, wait made | reached | product L (reads A) | output L ..
 *     own stream        ... wait reached | weights L+1 (writes B) | made ...
 *
 * `reached` is recorded right in front of product L. All products before it have then ended, so
 * matrix B, which product L-1 read, is free. It is not recorded as soon as product L-1 ends: then
 * the weights would run beside output L-1 and transform L, which are bound by memory as they are,
 * and hold SMs when product L comes. A product waits until `made` says that its weights are there.
 * Behind the last linear nothing is made, so once a piece's launches have ended, none is left that
 * touches a matrix, and a decode pass has the GPU for itself; a piece that fails waits for the
 * stream.
 *
 * While phases are timed (`elpis bench --phases`), and while `elpis tune` looks at launches one by
 * one, weights are made on the first stream, right in front of their product. On paper launches are
 * only counted.
 */
#include "engine/engine_private.h"

#include <string.h>

enum { BAND = 64, SHAPES = 256 };

struct prefill_linear {
    const struct model_linear *source;
    const dptr *trellis, *suh, *svh;
    u32 k, n;                                                  /* padded */
    struct jit_kernel *transform, *weights, *product, *output; /* transform, output: may be NULL */
    dptr operand, sums;                                        /* f16 [rows, k], f32 [rows, n] */
    u32 part;                    /* of the linears that share its norm */
    bool library;                /* cuBLASLt makes the product */
    dptr matrix;                 /* f16 [k, n]: where its weights are made */
    struct prefill_linear *next; /* the quantised one behind it in a piece; NULL: none */
    /* unquantised: activate, prefill_plain, and what follows */
    dptr weight;
    struct jit_kernel *activate, *plain, *residual;
};

enum { PARTS_MAX = 3, LINEARS = PARTS_MAX + 4, MATRICES = 2 };

/* The transform of a norm for the quantised ones of the linears that share it. */
struct prefill_norm {
    struct jit_kernel *transform; /* NULL: none is quantised */
    const dptr *suh[PARTS_MAX];
    dptr operand; /* f16 [parts][rows, k] */
    u32 parts;
};

struct prefill_layer {
    struct prefill_linear in[PARTS_MAX], out, gate_up[2], down;
    u32 in_count;
    struct prefill_norm in_norm, mlp_norm;
    struct jit_kernel *middle; /* gate, up and down are EXL3; else SiLU(gate) * up is glu's */
    struct jit_kernel *glu;
};

struct prefill {
    struct prefill_layer *layers;
    struct device_gemm *gemm;
    struct {
        u32 k, n;
        bool good;
    } shapes[SHAPES];
    u32 shape_count;
    struct {
        struct jit_kernel *embed, *plain, *conv, *window, *gates, *chunk, *scan, *prepare, *attend;
    } kernels;
    struct prefill_linear *first; /* quantised one of a piece; NULL: none is */
    dptr matrices;                /* f16, one behind the other; 0: no linear is quantised */
    struct device_stream *ahead;  /* makes weights; NULL, like the events, without any */
    struct device_event *reached, *made;
    dptr tokens, round, x, squares, normed;
    dptr u, z, ab, q, k, v, beta, g, o, chunk_u, chunk_w, chunk_p, decay;
    dptr qg, key, value, query, mixed, hidden;
    dptr activated, up; /* of unquantised linears */
};

/* ---- planning */

/* Whether the library's product of this shape passes its start-up check; asked once a shape. */
static bool library_takes(struct engine *engine, u32 k, u32 n)
{
    struct prefill *p = engine->prefill;
    const struct device_info *info = device_info(engine->device);
    if (info->kind == DEVICE_PAPER)
        return info->full_rate_f32_accumulate;
    if (!p->gemm)
        return false;
    for (u32 i = 0; i < p->shape_count; i++)
        if (p->shapes[i].k == k && p->shapes[i].n == n)
            return p->shapes[i].good;
    struct error error = {0};
    const bool good = device_gemm_plan(p->gemm, k, n, engine->piece, &error) == 0;
    if (!good)
        log_info("prefill: own product for k %u, n %u: %s", k, n, error.text);
    if (p->shape_count < SHAPES) {
        p->shapes[p->shape_count].k = k;
        p->shapes[p->shape_count].n = n;
        p->shapes[p->shape_count++].good = good;
    }
    return good;
}

/* The device tensors of a matrix that the decode sets uploaded. */
static void find_tensors(const struct linear_set *set, struct prefill_linear *linear)
{
    for (u32 i = 0; i < set->count; i++)
        for (u32 part = 0; part < set->groups[i].count; part++)
            if (set->groups[i].sources[part] == linear->source) {
                linear->trellis = &set->groups[i].trellis[part];
                linear->suh = &set->groups[i].suh[part];
                linear->svh = &set->groups[i].svh[part];
            }
    for (u32 i = 0; i < set->plain_count; i++)
        if (set->plains[i].source == linear->source)
            linear->weight = set->plains[i].weight;
}

static int plan_plain(struct engine *engine, struct prefill_linear *linear, const char *input,
                      const char *output, struct error *error)
{
    const struct model_linear *source = linear->source;
    const struct jit_parameter activate[] = {
        JIT_NUMBER("k", source->in),
        JIT_NUMBER("rows_max", engine->piece),
        JIT_TEXT("mode", input),
        JIT_NUMBER("eps", float_bits(engine->model->config.norm_eps)),
        {0}};
    const struct jit_parameter plain[] = {JIT_NUMBER("k", source->in),
                                          JIT_NUMBER("n", source->out),
                                          JIT_NUMBER("rows_max", engine->piece),
                                          JIT_TEXT("dtype", dtype_name(source->weight_dtype)),
                                          JIT_NUMBER("stride", source->out),
                                          JIT_NUMBER("parts", 1),
                                          {0}};
    const struct jit_parameter add[] = {
        JIT_NUMBER("n", source->out), JIT_NUMBER("rows_max", engine->piece), {0}};
    if (jit_request(engine->jit, "activate", activate, &linear->activate, error) ||
        jit_request(engine->jit, "prefill_plain", plain, &linear->plain, error))
        return -1;
    return strcmp(output, "add") == 0
               ? jit_request(engine->jit, "residual", add, &linear->residual, error)
               : 0;
}

/* Of the sums of our own product: fp16 in slices where tensor cores add into fp32 at half rate. */
static u32 sum_bits(const struct engine *engine)
{
    const struct device_info *info = device_info(engine->device);
    return info->kind == DEVICE_HOST || info->full_rate_f32_accumulate ? 32 : 16;
}

/* input: mode of the transform, NULL where another launch leaves the operand; output: mode of the
 * output, NULL where another launch reads the product. */
static int plan_linear(struct engine *engine, struct prefill_linear *linear,
                       const struct linear_set *set, const struct model_linear *source,
                       const char *input, const char *output, struct error *error)
{
    linear->source = source;
    linear->k = source->in_padded;
    linear->n = source->out_padded;
    find_tensors(set, linear);
    if (source->kind == LINEAR_PLAIN) {
        linear->k = source->in;
        linear->n = source->out;
        return plan_plain(engine, linear, input, output ? output : "plain", error);
    }
    linear->library = library_takes(engine, linear->k, linear->n);
    const bool own = input && strcmp(input, "norm") != 0; /* transform */
    const struct jit_parameter transform[] = {
        JIT_NUMBER("width", source->in),
        JIT_NUMBER("padded", linear->k),
        JIT_NUMBER("rows_max", engine->piece),
        JIT_TEXT("mode", input),
        JIT_NUMBER("eps", float_bits(engine->model->config.norm_eps)),
        JIT_NUMBER("parts", 1),
        {0}};
    const struct jit_parameter weights[] = {JIT_NUMBER("k", linear->k),
                                            JIT_NUMBER("n", linear->n),
                                            JIT_NUMBER("bits", source->bits),
                                            JIT_TEXT("codebook", codebook_name(source->codebook)),
                                            {0}};
    const struct jit_parameter product[] = {JIT_NUMBER("k", linear->k),
                                            JIT_NUMBER("n", linear->n),
                                            JIT_NUMBER("rows_max", engine->piece),
                                            JIT_NUMBER("sum_bits", sum_bits(engine)),
                                            {0}};
    const struct jit_parameter finish[] = {JIT_NUMBER("width", source->out),
                                           JIT_NUMBER("padded", linear->n),
                                           JIT_NUMBER("rows_max", engine->piece),
                                           JIT_TEXT("mode", output),
                                           {0}};
    if ((own &&
         jit_request(engine->jit, "prefill_transform", transform, &linear->transform, error)) ||
        jit_request(engine->jit, "prefill_weights", weights, &linear->weights, error) ||
        (output && jit_request(engine->jit, "prefill_output", finish, &linear->output, error)))
        return -1;
    return linear->library
               ? 0
               : jit_request(engine->jit, "prefill_gemm", product, &linear->product, error);
}

/* One transform for the quantised ones of `count` linears that read the same norm. */
static int plan_norm(struct engine *engine, struct prefill_norm *norm,
                     struct prefill_linear *linears, u32 count, struct error *error)
{
    const struct prefill_linear *first = NULL;
    for (u32 i = 0; i < count; i++) {
        if (linears[i].plain)
            continue;
        first = first ? first : &linears[i];
        linears[i].part = norm->parts;
        norm->suh[norm->parts++] = linears[i].suh;
    }
    if (!first)
        return 0;
    const struct jit_parameter transform[] = {
        JIT_NUMBER("width", first->source->in),
        JIT_NUMBER("padded", first->k),
        JIT_NUMBER("rows_max", engine->piece),
        JIT_TEXT("mode", "norm"),
        JIT_NUMBER("eps", float_bits(engine->model->config.norm_eps)),
        JIT_NUMBER("parts", norm->parts),
        {0}};
    return jit_request(engine->jit, "prefill_transform", transform, &norm->transform, error);
}

static int plan_mlp(struct engine *engine, u32 index, struct error *error)
{
    const struct model_layer *from = &engine->model->layers[index];
    const struct device_layer *set = &engine->layers[index];
    struct prefill_layer *to = &engine->prefill->layers[index];
    const bool fused = from->gate.kind == LINEAR_EXL3 && from->up.kind == LINEAR_EXL3 &&
                       from->down.kind == LINEAR_EXL3;
    const char *output = fused ? NULL : "plain";
    const struct jit_parameter glu[] = {JIT_NUMBER("k", engine->model->config.intermediate),
                                        JIT_NUMBER("rows_max", engine->piece),
                                        JIT_TEXT("mode", "glu"),
                                        JIT_NUMBER("eps", 0),
                                        {0}};
    const struct jit_parameter middle[] = {
        JIT_NUMBER("n", from->gate.out_padded), JIT_NUMBER("rows_max", engine->piece), {0}};
    if (plan_linear(engine, &to->gate_up[0], &set->mlp.gate_up, &from->gate, "norm", output,
                    error) ||
        plan_linear(engine, &to->gate_up[1], &set->mlp.gate_up, &from->up, "norm", output, error) ||
        plan_norm(engine, &to->mlp_norm, to->gate_up, 2, error) ||
        plan_linear(engine, &to->down, &set->mlp.down, &from->down, fused ? NULL : "plain", "add",
                    error))
        return -1;
    return fused ? jit_request(engine->jit, "prefill_middle", middle, &to->middle, error)
                 : jit_request(engine->jit, "activate", glu, &to->glu, error);
}

static int plan_layer(struct engine *engine, u32 index, struct error *error)
{
    const struct model_layer *from = &engine->model->layers[index];
    const struct device_layer *set = &engine->layers[index];
    struct prefill_layer *to = &engine->prefill->layers[index];
    const struct model_linear *gdn[] = {&from->in_qkv, &from->in_z};
    const struct model_linear *attention[] = {&from->q, &from->k, &from->v};
    to->in_count = from->attention ? 3 : 2;
    for (u32 i = 0; i < to->in_count; i++)
        if (plan_linear(engine, &to->in[i], &set->mixer_in, from->attention ? attention[i] : gdn[i],
                        "norm", "plain", error))
            return -1;
    return plan_norm(engine, &to->in_norm, to->in, to->in_count, error) ||
                   plan_linear(engine, &to->out, &set->mixer_out,
                               from->attention ? &from->o : &from->out,
                               from->attention ? "plain" : "gdn", "add", error) ||
                   plan_mlp(engine, index, error)
               ? -1
               : 0;
}

static int plan_mixers(struct engine *engine, bool gdn, bool attention, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    struct prefill *p = engine->prefill;
    const u32 piece = engine->piece;
    enum dtype ab = DTYPE_F16;
    for (u32 i = 0; i < c->layers; i++)
        if (!engine->layers[i].attention)
            ab = engine->layers[i].ab_dtype;
    const struct jit_parameter heads[] = {JIT_NUMBER("k_heads", c->gdn_k_heads),
                                          JIT_NUMBER("v_heads", c->gdn_v_heads),
                                          JIT_NUMBER("rows_max", piece),
                                          {0}};
    const struct jit_parameter window[] = {
        JIT_NUMBER("channels", (2 * c->gdn_k_heads + c->gdn_v_heads) * BLOCK),
        JIT_NUMBER("rows_max", piece),
        {0}};
    const struct jit_parameter gates[] = {
        JIT_NUMBER("v_heads", c->gdn_v_heads), JIT_NUMBER("rows_max", piece), {0}};
    const struct jit_parameter plain[] = {JIT_NUMBER("k", c->hidden),
                                          JIT_NUMBER("n", c->gdn_v_heads),
                                          JIT_NUMBER("rows_max", piece),
                                          JIT_TEXT("dtype", dtype_name(ab)),
                                          JIT_NUMBER("stride", 2 * c->gdn_v_heads),
                                          JIT_NUMBER("parts", 2),
                                          {0}};
    const struct jit_parameter prepare[] = {
        JIT_NUMBER("q_heads", c->q_heads),
        JIT_NUMBER("kv_heads", c->kv_heads),
        JIT_NUMBER("head_dim", HEAD_DIM),
        JIT_NUMBER("rotary_dims", c->rotary_dims),
        JIT_NUMBER("kv_bits", engine->kv_bits),
        JIT_NUMBER("rows_max", piece),
        JIT_NUMBER("eps", float_bits(engine->model->config.norm_eps)),
        {0}};
    const u32 score_bits = engine->prefill_kind == ENGINE_PREFILL_INT8_QK ? 8 : 16;
    const struct jit_parameter attend[] = {JIT_NUMBER("q_heads", c->q_heads),
                                           JIT_NUMBER("kv_heads", c->kv_heads),
                                           JIT_NUMBER("head_dim", HEAD_DIM),
                                           JIT_NUMBER("kv_bits", engine->kv_bits),
                                           JIT_NUMBER("rows_max", piece),
                                           JIT_NUMBER("score_bits", score_bits),
                                           {0}};
    const struct jit_parameter embed[] = {
        JIT_NUMBER("hidden", c->hidden),
        JIT_NUMBER("rows_max", piece),
        JIT_TEXT("dtype", dtype_name(engine->model->embedding.dtype)),
        {0}};
    if (jit_request(engine->jit, "embed", embed, &p->kernels.embed, error))
        return -1;
    if (gdn && (jit_request(engine->jit, "prefill_conv", heads, &p->kernels.conv, error) ||
                jit_request(engine->jit, "prefill_window", window, &p->kernels.window, error) ||
                jit_request(engine->jit, "prefill_gates", gates, &p->kernels.gates, error) ||
                jit_request(engine->jit, "prefill_gdn_chunk", heads, &p->kernels.chunk, error) ||
                jit_request(engine->jit, "prefill_gdn_scan", heads, &p->kernels.scan, error) ||
                jit_request(engine->jit, "prefill_plain", plain, &p->kernels.plain, error)))
        return -1;
    if (attention &&
        (jit_request(engine->jit, "prefill_attention_prepare", prepare, &p->kernels.prepare,
                     error) ||
         jit_request(engine->jit, "prefill_attention", attend, &p->kernels.attend, error)))
        return -1;
    return 0;
}

/* Where the operands and sums of a layer's linears lie. Those that share a norm have their
 * operands side by side; up's sums stand beside gate's. */
static void place_linears(struct engine *engine, struct prefill_layer *layer, dptr operand,
                          dptr sums, dptr mlp_operand, dptr mlp_sums, dptr second)
{
    struct prefill_linear *mlp[] = {&layer->gate_up[0], &layer->gate_up[1], &layer->down};
    for (u32 i = 0; i < layer->in_count; i++) {
        layer->in[i].operand = operand + 2ull * layer->in[i].part * engine->piece * layer->in[i].k;
        layer->in[i].sums = sums;
    }
    layer->out.operand = operand;
    layer->out.sums = sums;
    for (u32 i = 0; i < COUNT_OF(mlp); i++) {
        mlp[i]->operand = mlp_operand + 2ull * mlp[i]->part * engine->piece * mlp[i]->k;
        mlp[i]->sums = mlp[i] == &layer->gate_up[1] ? second : mlp_sums;
    }
    layer->in_norm.operand = operand;
    layer->mlp_norm.operand = mlp_operand;
}

/* In the order of a piece; those that the layer does not have are all zero. */
static void list_linears(struct prefill_layer *layer, struct prefill_linear *list[LINEARS])
{
    u32 count = 0;
    for (u32 i = 0; i < PARTS_MAX; i++)
        list[count++] = &layer->in[i];
    list[count++] = &layer->out;
    list[count++] = &layer->gate_up[0];
    list[count++] = &layer->gate_up[1];
    list[count++] = &layer->down;
}

/* Which quantised linear follows which. */
static void order_linears(struct engine *engine)
{
    struct prefill_linear *list[LINEARS], **link = &engine->prefill->first;
    for (u32 i = 0; i < engine->model->config.layers; i++) {
        list_linears(&engine->prefill->layers[i], list);
        for (u32 j = 0; j < LINEARS; j++)
            if (list[j]->weights) {
                *link = list[j];
                link = &list[j]->next;
            }
    }
}

/* The matrices, each as large as the largest weights, and what orders their use. */
static int open_matrices(struct engine *engine, struct error *error)
{
    struct prefill *p = engine->prefill;
    u64 bytes = 0;
    u32 turn = 0;
    order_linears(engine);
    for (const struct prefill_linear *linear = p->first; linear; linear = linear->next)
        if (2ull * linear->k * linear->n > bytes)
            bytes = 2ull * linear->k * linear->n;
    if (!bytes)
        return 0;
    /* The last priority: weights have all the time of a product until they are needed, what is on
     * the first stream has none. Where both could come in, a product's later CTAs, or the output
     * and the transform behind it, then do so first, and weights take what is left of the SMs. If
     * they are not done when the product ends, the next product waits for what is missing, which
     * is never more than it waited for when they were made in front of it. */
    if (device_stream_create(engine->device, DEVICE_LAST, &p->ahead, error) ||
        device_event_create(engine->device, &p->reached, error) ||
        device_event_create(engine->device, &p->made, error) ||
        engine_alloc(engine, MATRICES * bytes, "prefill weights", &p->matrices, error))
        return -1;
    for (struct prefill_linear *linear = p->first; linear; linear = linear->next)
        linear->matrix = p->matrices + turn++ % MATRICES * bytes;
    return 0;
}

static int alloc_buffers(struct engine *engine, struct error *error)
{
    struct prefill *p = engine->prefill;
    struct prefill_workspace space;
    dptr base = 0, operand = 0, sums = 0, mlp_operand = 0, mlp_sums = 0, second = 0;
    const struct {
        dptr *address;
        enum prefill_buffer buffer;
    } list[] = {
        {&p->tokens, PREFILL_TOKENS},
        {&p->round, PREFILL_ROUND},
        {&p->x, PREFILL_X},
        {&p->squares, PREFILL_SQUARES},
        {&p->normed, PREFILL_NORMED},
        {&operand, PREFILL_OPERAND},
        {&sums, PREFILL_SUMS},
        {&mlp_operand, PREFILL_MLP_OPERAND},
        {&mlp_sums, PREFILL_MLP_SUMS},
        {&second, PREFILL_MLP_SECOND},
        {&p->u, PREFILL_U},
        {&p->z, PREFILL_Z},
        {&p->ab, PREFILL_AB},
        {&p->q, PREFILL_Q},
        {&p->k, PREFILL_K},
        {&p->v, PREFILL_V},
        {&p->beta, PREFILL_BETA},
        {&p->g, PREFILL_G},
        {&p->o, PREFILL_O},
        {&p->chunk_u, PREFILL_CHUNK_U},
        {&p->chunk_w, PREFILL_CHUNK_W},
        {&p->chunk_p, PREFILL_CHUNK_P},
        {&p->decay, PREFILL_DECAY},
        {&p->qg, PREFILL_QG},
        {&p->key, PREFILL_KEY},
        {&p->value, PREFILL_VALUE},
        {&p->query, PREFILL_QUERY},
        {&p->mixed, PREFILL_MIXED},
        {&p->activated, PREFILL_ACTIVATED},
        {&p->hidden, PREFILL_HIDDEN},
        {&p->up, PREFILL_UP},
    };
    model_prefill_workspace(engine->model, (engine->piece + BAND - 1) / BAND * BAND, &space);
    if (engine_alloc(engine, space.total, "prefill workspace", &base, error))
        return -1;
    _Static_assert(COUNT_OF(list) == PREFILL_BUFFERS, "every buffer has a place");
    for (u32 i = 0; i < COUNT_OF(list); i++)
        *list[i].address = base + space.offset[list[i].buffer];
    for (u32 i = 0; i < engine->model->config.layers; i++)
        place_linears(engine, &p->layers[i], operand, sums, mlp_operand, mlp_sums, second);
    engine->prefill_stream = p->x;
    return 0;
}

int prefill_open(struct engine *engine, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    struct prefill *p = engine->prefill = memory_alloc(sizeof *p);
    bool attention = false, gdn = false;
    p->layers = memory_alloc(c->layers * sizeof *p->layers);
    const struct device_info *info = device_info(engine->device);
    struct error reason = {0};
    if (info->kind == DEVICE_CUDA && info->full_rate_f32_accumulate &&
        device_gemm_open(engine->device, &p->gemm, &reason)) {
        log_warn("prefill: own matrix product on this GPU: %s", reason.text);
        p->gemm = NULL;
    }
    for (u32 i = 0; i < c->layers; i++) {
        if (plan_layer(engine, i, error))
            return -1;
        attention |= engine->layers[i].attention;
        gdn |= !engine->layers[i].attention;
    }
    return plan_mixers(engine, gdn, attention, error) || alloc_buffers(engine, error) ||
                   open_matrices(engine, error)
               ? -1
               : 0;
}

void prefill_close(struct engine *engine)
{
    struct prefill *p = engine->prefill;
    struct error ignored;
    if (!p)
        return;
    device_sync(engine->device, NULL, &ignored); /* what is freed from here on may be in use */
    if (p->ahead) {
        device_sync(engine->device, p->ahead, &ignored);
        device_stream_destroy(engine->device, p->ahead);
    }
    device_event_destroy(engine->device, p->reached);
    device_event_destroy(engine->device, p->made);
    if (p->gemm)
        device_gemm_close(p->gemm);
    memory_free(p->layers);
    memory_free(p);
}

/* ---- bytes */

static u64 linear_kernel_bytes(const struct prefill_linear *linear, const struct jit_kernel *kernel,
                               u64 rows)
{
    const u64 k = linear->k, n = linear->n, width = linear->source->out;
    if (kernel == linear->weights)
        return model_linear_bytes(linear->source, 1) + 2 * k * n;
    if (kernel == linear->plain)
        return model_linear_bytes(linear->source, 1) + 4 * rows * (k + n);
    if (kernel == linear->activate)
        return 8 * rows * k;
    if (kernel == linear->product)
        return 2 * rows * k + 2 * k * n + 4 * rows * n;
    if (kernel == linear->transform)
        return rows * (4 * k + 2 * k);
    if (kernel == linear->output)
        return rows * (4 * n + 4 * width);
    return 0;
}

static u64 layer_kernel_bytes(struct prefill_layer *layer, const struct jit_kernel *kernel,
                              u64 rows)
{
    struct prefill_linear *all[LINEARS];
    const struct prefill_norm *norms[] = {&layer->in_norm, &layer->mlp_norm};
    const u64 widths[] = {layer->in[0].k, layer->gate_up[0].k};
    list_linears(layer, all);
    for (u32 i = 0; i < COUNT_OF(norms); i++)
        if (kernel == norms[i]->transform)
            return rows * (4 + 2 * norms[i]->parts) * widths[i];
    if (kernel == layer->middle)
        return rows * (4 + 4 + 2) * layer->down.k;
    for (u32 i = 0; i < COUNT_OF(all); i++) {
        const u64 bytes = all[i]->source ? linear_kernel_bytes(all[i], kernel, rows) : 0;
        if (bytes)
            return bytes;
    }
    return 0;
}

u64 prefill_kernel_bytes(const struct engine *engine, const struct jit_kernel *kernel, u32 rows)
{
    const struct prefill *p = engine->prefill;
    const struct model_config *c = &engine->model->config;
    const u64 key = 4ull * BLOCK * c->gdn_k_heads, value = 4ull * BLOCK * c->gdn_v_heads;
    const u64 query = (u64)HEAD_DIM * c->q_heads, one = (u64)HEAD_DIM * c->kv_heads;
    const u64 cached = 2 * (one * engine->kv_bits / 8 + (engine->kv_bits < 16 ? one / 16 : 0));
    const u64 p_blocks = 10ull * 256 * 4 / BAND * c->gdn_v_heads; /* of P, a row */
    const struct {
        const struct jit_kernel *kernel;
        u64 row; /* bytes */
    } mixers[] = {{p->kernels.conv, 2 * (2 * key + value)},
                  {p->kernels.chunk, 4 * key + 3 * value + p_blocks},
                  {p->kernels.scan, 2 * key + 3 * value + p_blocks},
                  {p->kernels.plain, 4ull * c->hidden},
                  {p->kernels.prepare, (8 + 2) * query + 8 * one + cached}};
    for (u32 i = 0; i < COUNT_OF(mixers); i++)
        if (kernel == mixers[i].kernel)
            return rows * mixers[i].row;
    if (kernel == p->kernels.attend)
        return (engine->position + (u64)rows) * cached + rows * (2 + 4 + 4) * query;
    for (u32 i = 0; i < c->layers; i++) {
        const u64 bytes = layer_kernel_bytes(&p->layers[i], kernel, rows);
        if (bytes)
            return bytes;
    }
    return 0;
}

/* ---- running */

/* What was launched since the phase before is this one. */
#define PHASE_ENDS(phase)                       \
    do {                                        \
        if (phase_ends(engine, (phase), error)) \
            return -1;                          \
    } while (0)

/* The operands of the linears that read the norm of the residual stream; normed: where its rows
 * are kept as well, or 0. */
static int transform_norm(struct engine *engine, const struct prefill_norm *norm, dptr weight,
                          dptr normed, u32 rows, struct error *error)
{
    const struct prefill *p = engine->prefill;
    dptr suh[PARTS_MAX] = {0};
    for (u32 i = 0; i < norm->parts; i++)
        suh[i] = *norm->suh[i];
    LAUNCH(norm->transform, p->x, 0, weight, suh[0], suh[1], suh[2], norm->operand, normed, rows);
    PHASE_ENDS(PHASE_TRANSFORM);
    return 0;
}

static int make_weights(struct engine *engine, struct device_stream *stream,
                        const struct prefill_linear *linear, struct error *error)
{
    const u64 arguments[] = {*linear->trellis, linear->matrix};
    return jit_launch(engine->jit, stream, linear->weights, arguments, COUNT_OF(arguments), error);
}

/* The first stream has come to a product, or to the beginning of a piece. */
static int reach(struct engine *engine, struct error *error)
{
    if (engine->phases || !engine->prefill->first)
        return 0;
    return device_event_record(engine->device, engine->prefill->reached, NULL, error);
}

/* The weights of a linear, beside what the first stream does from where it was reached on. */
static int make_ahead(struct engine *engine, const struct prefill_linear *linear,
                      struct error *error)
{
    const struct prefill *p = engine->prefill;
    if (engine->phases || !linear)
        return 0;
    return device_event_wait(engine->device, p->ahead, p->reached, error) ||
                   make_weights(engine, p->ahead, linear, error) ||
                   device_event_record(engine->device, p->made, p->ahead, error)
               ? -1
               : 0;
}

/* What comes next on the first stream finds the weights: it waits for those that were made ahead;
 * while phases are timed they are made here. */
static int have_weights(struct engine *engine, const struct prefill_linear *linear,
                        struct error *error)
{
    if (!engine->phases)
        return device_event_wait(engine->device, NULL, engine->prefill->made, error);
    if (make_weights(engine, NULL, linear, error))
        return -1;
    PHASE_ENDS(PHASE_WEIGHTS);
    return 0;
}

/* sums = operand * W. */
static int multiply(struct engine *engine, const struct prefill_linear *linear, u32 rows,
                    struct error *error)
{
    if (linear->library) {
        const u32 padded = (rows + BAND - 1) / BAND * BAND;
        return device_gemm_run(engine->prefill->gemm, NULL, padded, linear->n, linear->k,
                               linear->operand, linear->matrix, linear->sums, error);
    }
    LAUNCH(linear->product, linear->operand, linear->matrix, linear->sums, rows);
    return 0;
}

/* A product, and beside it the weights of the next one. It is launched first, so that it has its
 * SMs first. */
static int product(struct engine *engine, const struct prefill_linear *linear, u32 rows,
                   struct error *error)
{
    if (have_weights(engine, linear, error) || reach(engine, error) ||
        multiply(engine, linear, rows, error))
        return -1;
    PHASE_ENDS(PHASE_PRODUCT);
    return make_ahead(engine, linear->next, error);
}

/* An unquantised linear; normed: where the activated rows are kept as well, or 0. */
static int plain_linear(struct engine *engine, const struct prefill_linear *linear, dptr x, dptr y,
                        dptr weight, dptr normed, dptr to, u32 rows, struct error *error)
{
    const struct prefill *p = engine->prefill;
    const dptr input = normed ? normed : p->activated;
    LAUNCH(linear->activate, x, y, weight, input, p->round);
    PHASE_ENDS(PHASE_TRANSFORM);
    LAUNCH(linear->plain, input, linear->weight, 0, linear->residual ? linear->sums : to, rows);
    PHASE_ENDS(PHASE_PRODUCT);
    if (linear->residual) {
        LAUNCH(linear->residual, linear->sums, to, p->squares, engine->buffers.bad, p->round);
        PHASE_ENDS(PHASE_RESULT);
    }
    return 0;
}

/* y: second source of the gate, or 0. */
static int linear(struct engine *engine, const struct prefill_linear *linear, dptr x, dptr y,
                  dptr weight, dptr to, u32 rows, struct error *error)
{
    if (linear->plain)
        return plain_linear(engine, linear, x, y, weight, 0, to, rows, error);
    LAUNCH(linear->transform, x, y, weight, *linear->suh, 0, 0, linear->operand, 0, rows);
    PHASE_ENDS(PHASE_TRANSFORM);
    if (product(engine, linear, rows, error))
        return -1;
    LAUNCH(linear->output, linear->sums, *linear->svh, to, rows);
    PHASE_ENDS(PHASE_RESULT);
    return 0;
}

/* The linears behind a norm of the residual stream, each to its own rows. */
static int normed_linears(struct engine *engine, const struct prefill_norm *norm,
                          const struct prefill_linear *linears, u32 count, dptr weight, dptr normed,
                          const dptr *to, u32 rows, struct error *error)
{
    const struct prefill *p = engine->prefill;
    if (norm->transform && transform_norm(engine, norm, weight, normed, rows, error))
        return -1;
    for (u32 i = 0; i < count; i++) {
        if (linears[i].plain) {
            const dptr kept = norm->transform ? 0 : normed;
            if (plain_linear(engine, &linears[i], p->x, 0, weight, kept, to[i], rows, error))
                return -1;
            continue;
        }
        if (product(engine, &linears[i], rows, error))
            return -1;
        LAUNCH(linears[i].output, linears[i].sums, *linears[i].svh, to[i], rows);
        PHASE_ENDS(PHASE_RESULT);
    }
    return 0;
}

static int gdn_mixer(struct engine *engine, u32 index, u32 rows, struct error *error)
{
    const struct prefill *p = engine->prefill;
    const struct prefill_layer *plan = &p->layers[index];
    const struct device_layer *layer = &engine->layers[index];
    const dptr outputs[] = {p->u, p->z};
    if (normed_linears(engine, &plan->in_norm, plan->in, 2, layer->input_norm, p->normed, outputs,
                       rows, error))
        return -1;
    LAUNCH(p->kernels.plain, p->normed, layer->weight_a, layer->weight_b, p->ab, rows);
    LAUNCH(p->kernels.conv, p->u, layer->conv, layer->window, p->q, p->k, p->v, rows);
    LAUNCH(p->kernels.window, p->u, layer->window, rows);
    LAUNCH(p->kernels.gates, p->ab, layer->a_log, layer->dt_bias, p->beta, p->g, rows);
    PHASE_ENDS(PHASE_GDN_INPUT);
    LAUNCH(p->kernels.chunk, p->q, p->k, p->v, p->beta, p->g, p->chunk_u, p->chunk_w, p->chunk_p,
           p->decay, rows);
    PHASE_ENDS(PHASE_GDN_CHUNK);
    LAUNCH(p->kernels.scan, p->q, p->k, p->chunk_u, p->chunk_w, p->chunk_p, p->decay, layer->state,
           p->o, rows);
    PHASE_ENDS(PHASE_GDN_SCAN);
    return linear(engine, &plan->out, p->o, p->z, layer->gdn_norm, p->x, rows, error);
}

static int attention_mixer(struct engine *engine, u32 index, u32 rows, struct error *error)
{
    const struct prefill *p = engine->prefill;
    const struct prefill_layer *plan = &p->layers[index];
    const struct device_layer *layer = &engine->layers[index];
    const dptr outputs[] = {p->qg, p->key, p->value};
    if (normed_linears(engine, &plan->in_norm, plan->in, 3, layer->input_norm, 0, outputs, rows,
                       error))
        return -1;
    LAUNCH(p->kernels.prepare, p->qg, p->key, p->value, layer->q_norm, layer->k_norm,
           engine->frequencies, engine->pages, p->query, layer->cache.k_codes,
           layer->cache.k_scales, layer->cache.v_codes, layer->cache.v_scales, rows,
           engine->position);
    PHASE_ENDS(PHASE_PREPARE);
    LAUNCH(p->kernels.attend, p->query, p->qg, layer->cache.k_codes, layer->cache.k_scales,
           layer->cache.v_codes, layer->cache.v_scales, engine->pages, p->mixed, rows,
           engine->position);
    PHASE_ENDS(PHASE_ATTENTION);
    return linear(engine, &plan->out, p->mixed, 0, 0, p->x, rows, error);
}

static int mlp(struct engine *engine, u32 index, u32 rows, struct error *error)
{
    const struct prefill *p = engine->prefill;
    const struct prefill_layer *plan = &p->layers[index];
    const struct prefill_linear *gate = &plan->gate_up[0], *up = &plan->gate_up[1];
    const struct prefill_linear *down = &plan->down;
    const dptr norm = engine->layers[index].post_norm, outputs[] = {p->hidden, p->up};
    if (plan->glu) {
        if (normed_linears(engine, &plan->mlp_norm, plan->gate_up, 2, norm, 0, outputs, rows,
                           error))
            return -1;
        LAUNCH(plan->glu, p->hidden, p->up, 0, p->hidden, p->round);
        PHASE_ENDS(PHASE_RESULT);
        return linear(engine, down, p->hidden, 0, 0, p->x, rows, error);
    }
    if (transform_norm(engine, &plan->mlp_norm, norm, 0, rows, error) ||
        product(engine, gate, rows, error) || product(engine, up, rows, error))
        return -1;
    LAUNCH(plan->middle, gate->sums, up->sums, *gate->svh, *up->svh, *down->suh, down->operand,
           rows);
    PHASE_ENDS(PHASE_RESULT);
    if (product(engine, down, rows, error))
        return -1;
    LAUNCH(down->output, down->sums, *down->svh, p->x, rows);
    PHASE_ENDS(PHASE_RESULT);
    return 0;
}

static int read_hidden(struct engine *engine, u32 layer, u32 count, float *hidden,
                       struct error *error)
{
    const struct model_config *c = &engine->model->config;
    const u64 width = c->hidden;
    float *rows = memory_alloc(count * width * 4);
    int result = device_copy_out(engine->device, NULL, rows, engine->prefill->x, count * width * 4,
                                 error);
    if (!result)
        result = device_sync(engine->device, NULL, error);
    for (u32 row = 0; row < count && !result; row++)
        memcpy(hidden + ((u64)row * c->layers + layer) * width, rows + row * width, width * 4);
    memory_free(rows);
    return result;
}

static int run_piece(struct engine *engine, const u32 *tokens, u32 count, float *hidden,
                     struct error *error)
{
    const struct prefill *p = engine->prefill;
    const u32 round[ROUND_WORDS] = {count}; /* the elementwise kernels look at [0] only */
    if (reach(engine, error) || make_ahead(engine, p->first, error) ||
        device_copy_in(engine->device, NULL, p->tokens, tokens, (u64)count * 4, error) ||
        device_copy_in(engine->device, NULL, p->round, round, sizeof round, error))
        return -1;
    LAUNCH(p->kernels.embed, engine->embedding, p->tokens, p->x, p->squares, p->round);
    PHASE_ENDS(PHASE_EMBED);
    for (u32 i = 0; i < engine->model->config.layers; i++) {
        if ((engine->layers[i].attention ? attention_mixer : gdn_mixer)(engine, i, count, error) ||
            mlp(engine, i, count, error))
            return -1;
        if (engine->drafter && drafter_tap_piece(engine, i, count, error))
            return -1;
        if (hidden && read_hidden(engine, i, count, hidden, error))
            return -1;
    }
    engine->position += count;
    return engine->drafter ? drafter_follow_piece(engine, count, error) : 0;
}

int prefill_piece(struct engine *engine, const u32 *tokens, u32 count, float *hidden,
                  struct error *error)
{
    struct error ignored;
    if (run_piece(engine, tokens, count, hidden, error) == 0)
        return 0;
    if (engine->prefill->ahead) /* weights that nothing waits for any more */
        device_sync(engine->device, engine->prefill->ahead, &ignored);
    return -1;
}
