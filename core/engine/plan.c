/* plan.c - scratch memory of a decode pass and the kernels it needs.
 *
 * Buffers come first, because groups of linears name their outputs; the scratch that groups share
 * is sized after all of them are known. Nothing is measured: sizes follow from the configuration.
 */
#include "engine/engine_private.h"

struct buffer_size {
    dptr *address;
    u64 bytes;
    const char *label;
};

static int alloc_all(struct engine *engine, const struct buffer_size *list, size_t count,
                     struct error *error)
{
    for (size_t i = 0; i < count; i++)
        if (engine_alloc(engine, list[i].bytes ? list[i].bytes : 16, list[i].label, list[i].address,
                         error))
            return -1;
    return 0;
}

int plan_buffers(struct engine *engine, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    struct decode_buffers *b = &engine->buffers;
    struct gdn_layers *g = &engine->gdn;
    const u64 row = ROWS * 4;
    const u64 channels = (u64)(2 * c->gdn_k_heads + c->gdn_v_heads) * BLOCK;
    const u64 heads = (u64)c->q_heads * HEAD_DIM, kv = (u64)c->kv_heads * HEAD_DIM;
    const struct buffer_size list[] = {
        {&b->x, row * c->hidden, "residual"},
        {&b->squares, row * (c->hidden / BLOCK), "sums of squares"},
        {&b->z, row * c->gdn_v_heads * BLOCK, "in_proj_z"},
        {&b->o, row * c->gdn_v_heads * BLOCK, "GDN outputs"},
        {&b->qg, row * 2 * heads, "q_proj"},
        {&b->key, row * kv, "k_proj"},
        {&b->value, row * kv, "v_proj"},
        {&b->q_planes, engine->kv_bits == 16 ? row * heads : 2 * ROWS * heads, "query planes"},
        {&b->q_scale, row * c->q_heads * (HEAD_DIM / GROUP_DIMS), "query scales"},
        {&b->mixed, row * heads, "attention output"},
        {&b->gate, row * c->intermediate, "gate_proj"},
        {&b->up, row * c->intermediate, "up_proj"},
        {&b->logits, row * engine->vocab_stride, "logits"},
        {&b->bad, ROWS * 4, "sticky flags"},
        {&b->round, ROUND_WORDS * 4, "round descriptor"},
        {&engine->pages, (u64)engine->context / PAGE * 4, "page table"},
        {&g->u, g->count * row * channels, "in_proj_qkv"},
        {&g->ab, g->count * row * 2 * c->gdn_v_heads, "in_proj_a and in_proj_b"},
        {&g->q, g->count * row * c->gdn_k_heads * BLOCK, "GDN queries"},
        {&g->k, g->count * row * c->gdn_k_heads * BLOCK, "GDN keys"},
        {&g->v, g->count * row * c->gdn_v_heads * BLOCK, "GDN values"},
    };
    dptr ignored;
    if (device_alloc_pinned(engine->device, ROUND_WORDS * 4, (void **)&engine->round_host, &ignored,
                            error) ||
        device_alloc_pinned(engine->device, ROUND_WORDS * 4, (void **)&engine->commit_host,
                            &ignored, error) ||
        device_alloc_pinned(engine->device, ROUND_WORDS * 4, (void **)&engine->record_host,
                            &ignored, error) ||
        device_event_create(engine->device, &engine->record_there, error) ||
        alloc_all(engine, list, COUNT_OF(list), error))
        return -1;
    for (u32 i = 0, place = 0; i < c->layers; i++) {
        struct device_layer *layer = &engine->layers[i];
        if (layer->attention)
            continue;
        layer->u = g->u + place * row * channels;
        layer->ab = g->ab + place * row * 2 * c->gdn_v_heads;
        layer->q = g->q + place * row * c->gdn_k_heads * BLOCK;
        layer->k = g->k + place * row * c->gdn_k_heads * BLOCK;
        layer->v = g->v + place * row * c->gdn_v_heads * BLOCK;
        place++;
    }
    return 0;
}

static int build_layer(struct engine *engine, u32 index, struct error *error)
{
    const struct model_layer *from = &engine->model->layers[index];
    struct device_layer *to = &engine->layers[index];
    const struct decode_buffers *b = &engine->buffers;
    const struct model_linear *gdn_in[] = {&from->in_qkv, &from->in_z};
    const struct model_linear *attention_in[] = {&from->q, &from->k, &from->v};
    const struct model_linear *mixer_out[] = {from->attention ? &from->o : &from->out};
    const struct model_linear *gate_up[] = {&from->gate, &from->up}, *down[] = {&from->down};
    const dptr gdn_outputs[] = {to->u, b->z}, attention_outputs[] = {b->qg, b->key, b->value};
    const dptr stream[] = {b->x}, mlp[] = {b->gate, b->up};
    int failed = from->attention ? linear_set_build(engine, &to->mixer_in, attention_in,
                                                    attention_outputs, 3, "norm", false, error)
                                 : linear_set_build(engine, &to->mixer_in, gdn_in, gdn_outputs, 2,
                                                    "norm", false, error);
    return failed ||
                   linear_set_build(engine, &to->mixer_out, mixer_out, stream, 1,
                                    from->attention ? "plain" : "gdn", true, error) ||
                   linear_set_build(engine, &to->mlp.gate_up, gate_up, mlp, 2, "norm", false,
                                    error) ||
                   linear_set_build(engine, &to->mlp.down, down, stream, 1, "glu", true, error) ||
                   linear_mlp_build(engine, &to->mlp, error)
               ? -1
               : 0;
}

/* Scratch that all groups share, and the spans of attention. */
int plan_scratch(struct engine *engine, struct error *error)
{
    struct decode_buffers *b = &engine->buffers;
    struct linear_scratch most = {0};
    for (u32 i = 0; i < engine->model->config.layers; i++) {
        linear_set_scratch(&engine->layers[i].mixer_in, &most);
        linear_set_scratch(&engine->layers[i].mixer_out, &most);
        linear_set_scratch(&engine->layers[i].mlp.gate_up, &most);
        linear_set_scratch(&engine->layers[i].mlp.down, &most);
    }
    linear_set_scratch(&engine->head, &most);
    drafter_scratch(engine, &most);
    u64 spans = 0;
    if (engine->kernels.attend)
        spans = (u64)jit_kernel_export(engine->kernels.attend, "spans");
    const u64 slots = spans * ROWS * engine->model->config.q_heads;
    const struct buffer_size list[] = {
        {&b->act, most.act, "activation planes"},
        {&b->exponents, most.exponents, "exponents"},
        {&b->digits, most.exponents, "activation sums"},
        {&b->sums, most.sums, "integer sums"},
        {&b->scales, PARTS * ROWS * 16, "row scales"},
        {&b->activated, most.activated, "activations"},
        {&b->plain, most.activated ? (u64)ROWS * engine->model->config.hidden * 4 : 0,
         "unquantised output"},
        {&b->part, slots * HEAD_DIM * 4, "attention spans"},
        {&b->stat, slots * 8, "attention maxima and sums"},
    };
    return alloc_all(engine, list, COUNT_OF(list), error);
}

/* The kernels that may read the sums of the linears before them. */
static int request_gdn_layer(struct engine *engine, struct device_layer *layer, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    const struct linear_group *in = &layer->mixer_in.groups[0], *out = &layer->mixer_out.groups[0];
    const u32 v_width = c->gdn_v_heads * BLOCK, eps = float_bits(c->norm_eps);
    layer->joined = linear_can_join(&layer->mixer_in, 2, &layer->mixer_out) &&
                    in->n[0] == 2 * c->gdn_k_heads * BLOCK + v_width && in->n[1] == v_width &&
                    out->k == v_width;
    const char *codebook = layer->joined ? codebook_name(in->sources[0]->codebook) : "none";
    const struct jit_parameter conv[] = {JIT_NUMBER("k_heads", c->gdn_k_heads),
                                         JIT_NUMBER("v_heads", c->gdn_v_heads),
                                         JIT_TEXT("codebook", codebook),
                                         {0}};
    const struct jit_parameter input[] = {JIT_NUMBER("k", c->hidden),
                                          JIT_NUMBER("parts", layer->joined ? 2 : 0),
                                          JIT_NUMBER("v_heads", c->gdn_v_heads),
                                          JIT_NUMBER("eps", eps),
                                          JIT_TEXT("dtype", dtype_name(layer->ab_dtype)),
                                          {0}};
    const struct jit_parameter output[] = {JIT_NUMBER("k_heads", c->gdn_k_heads),
                                           JIT_NUMBER("v_heads", c->gdn_v_heads),
                                           JIT_NUMBER("eps", eps),
                                           JIT_TEXT("codebook", codebook),
                                           {0}};
    if (jit_request(engine->jit, "gdn_input", input, &layer->input, error) ||
        jit_request(engine->jit, "gdn_conv", conv, &layer->convolve, error))
        return -1;
    return layer->joined ? jit_request(engine->jit, "gdn_output", output, &layer->output, error)
                         : 0;
}

static int request_gdn(struct engine *engine, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    for (u32 i = 0; i < c->layers; i++)
        if (!engine->layers[i].attention && request_gdn_layer(engine, &engine->layers[i], error))
            return -1;
    const u32 channels = (2 * c->gdn_k_heads + c->gdn_v_heads) * BLOCK;
    const struct jit_parameter one[] = {JIT_NUMBER("k_heads", c->gdn_k_heads),
                                        JIT_NUMBER("v_heads", c->gdn_v_heads),
                                        JIT_NUMBER("layers", 1),
                                        {0}};
    const struct jit_parameter all[] = {JIT_NUMBER("k_heads", c->gdn_k_heads),
                                        JIT_NUMBER("v_heads", c->gdn_v_heads),
                                        JIT_NUMBER("layers", engine->gdn.count),
                                        {0}};
    const struct jit_parameter window[] = {
        JIT_NUMBER("channels", channels), JIT_NUMBER("layers", engine->gdn.count), {0}};
    return jit_request(engine->jit, "gdn_step", one, &engine->kernels.step, error) ||
                   jit_request(engine->jit, "gdn_step", all, &engine->kernels.replay, error) ||
                   jit_request(engine->jit, "gdn_window", window, &engine->kernels.window, error)
               ? -1
               : 0;
}

/* As request_gdn_layer. */
static int request_attention_layer(struct engine *engine, struct device_layer *layer,
                                   struct error *error)
{
    const struct model_config *c = &engine->model->config;
    const struct linear_group *in = &layer->mixer_in.groups[0], *out = &layer->mixer_out.groups[0];
    const u32 q_width = c->q_heads * HEAD_DIM, kv_width = c->kv_heads * HEAD_DIM;
    layer->joined = linear_can_join(&layer->mixer_in, 3, &layer->mixer_out) &&
                    in->n[0] == 2 * q_width && in->n[1] == kv_width && in->n[2] == kv_width &&
                    out->k == q_width;
    const char *codebook = layer->joined ? codebook_name(in->sources[0]->codebook) : "none";
    const u32 eps = float_bits(c->norm_eps);
    const struct jit_parameter prepare[] = {JIT_NUMBER("q_heads", c->q_heads),
                                            JIT_NUMBER("kv_heads", c->kv_heads),
                                            JIT_NUMBER("rotary_dims", c->rotary_dims),
                                            JIT_NUMBER("eps", eps),
                                            JIT_TEXT("codebook", codebook),
                                            JIT_NUMBER("kv_bits", engine->kv_bits),
                                            {0}};
    const struct jit_parameter combine[] = {
        JIT_NUMBER("q_heads", c->q_heads),      JIT_NUMBER("kv_heads", c->kv_heads),
        JIT_NUMBER("context", engine->context), JIT_TEXT("codebook", codebook),
        JIT_NUMBER("bits", engine->kv_bits),    {0}};
    return jit_request(engine->jit, "attention_prepare", prepare, &layer->prepare, error) ||
                   jit_request(engine->jit, "attention_combine", combine, &layer->combine, error)
               ? -1
               : 0;
}

static int request_attention(struct engine *engine, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    for (u32 i = 0; i < c->layers; i++)
        if (engine->layers[i].attention &&
            request_attention_layer(engine, &engine->layers[i], error))
            return -1;
    const struct jit_parameter attend[] = {JIT_NUMBER("q_heads", c->q_heads),
                                           JIT_NUMBER("kv_heads", c->kv_heads),
                                           JIT_NUMBER("context", engine->context),
                                           JIT_NUMBER("bits", engine->kv_bits),
                                           {0}};
    const struct jit_parameter attend_f16[] = {JIT_NUMBER("q_heads", c->q_heads),
                                               JIT_NUMBER("kv_heads", c->kv_heads),
                                               JIT_NUMBER("context", engine->context),
                                               {0}};
    const struct jit_parameter store[] = {JIT_NUMBER("kv_heads", c->kv_heads),
                                          JIT_NUMBER("layers", engine->attention.count),
                                          JIT_NUMBER("kv_bits", engine->kv_bits),
                                          {0}};
    const bool halves = engine->kv_bits == 16;
    return jit_request(engine->jit, halves ? "attention_decode_f16" : "attention_decode",
                       halves ? attend_f16 : attend, &engine->kernels.attend, error) ||
                   jit_request(engine->jit, "kv_commit", store, &engine->kernels.store, error)
               ? -1
               : 0;
}

static int request_ends(struct engine *engine, struct error *error)
{
    const struct model *model = engine->model;
    const struct model_config *c = &model->config;
    const struct jit_parameter embed[] = {JIT_NUMBER("hidden", c->hidden),
                                          JIT_NUMBER("rows_max", ROWS),
                                          JIT_TEXT("dtype", dtype_name(model->embedding.dtype)),
                                          {0}};
    if (jit_request(engine->jit, "embed", embed, &engine->kernels.embed, error))
        return -1;
    const struct model_linear *head[] = {&model->head};
    const dptr logits[] = {engine->buffers.logits};
    return linear_set_build(engine, &engine->head, head, logits, 1, "norm", false, error);
}

int plan_kernels(struct engine *engine, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    for (u32 i = 0; i < c->layers; i++)
        if (build_layer(engine, i, error))
            return -1;
    if (request_ends(engine, error) || (engine->gdn.count && request_gdn(engine, error)) ||
        (engine->attention.count && request_attention(engine, error)))
        return -1;
    return 0;
}
