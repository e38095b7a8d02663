/* draft.c - the draft model beside the target (spec dflash2.md 3, 6): its context and its pass.
 *
 * Context: after certain layers of the target (taps) the residual stream of every committed token
 * is kept; fc and a norm make one vector of them, and each draft layer's k and v of that vector go
 * into the layer's ring, at position mod capacity. All of it runs in the exact decode kernels, 8
 * rows at a time, so the rings depend on the committed tokens alone.
 *
 * Pass: rows [last token, mask, ...] through the draft's layers, each row seeing the window's
 * context and the whole block (whose keys lie in 8 rows of their own behind the ring). Then the
 * target's head, the candidates of each row, their lattice of scores, and the tree: its descriptor
 * is left in buffers.round, where the verify reads it.
 *
 * The pass borrows the target's buffers (residual stream, logits, scratch of linears): nothing of
 * theirs is alive between two passes.
 */
#include "engine/engine_private.h"

#include <math.h>
#include <string.h>

enum { DRAFT_HEAD_DIM = 128, CANDIDATES = 16, LATTICE_ROWS = 97 };

struct drafter_layer {
    dptr input_norm, post_norm, q_norm, k_norm; /* f32 */
    dptr attention_conv, mlp_conv;              /* f32 [2 sides, 2 taps, hidden]; 0 without */
    struct linear_set attention_projection, mlp_projection;
    struct linear_set q, kv, o;
    struct linear_mlp mlp;
    struct jit_kernel *attend, *combine;
    dptr ring_k, ring_v; /* f16 [capacity + 8, kv heads, 128] */
};

struct drafter {
    struct draft_model *model;
    struct drafter_layer *layers;
    struct linear_set fc, selector, head;
    dptr hidden_norm, final_norm, frequencies, predecessors, successors, calibration, id_map;
    u32 capacity;     /* tokens of a ring: the largest window */
    u32 coefficients; /* columns of a convolution's projection */
    u32 gate_columns; /* of the selector's */
    u32 head_columns; /* columns of logits that count */
    u32 rows;         /* of the block */
    u32 drafted;      /* most drafted rows of a round */
    bool chain;
    struct {
        struct jit_kernel *embed, *norm, *tap, *tap_piece, *gather, *prepare, *finish, *block,
            *context, *top, *select, *lattice, *tree;
    } kernels;
    dptr normed, input, coefficient, q, k, v, turned, part, stat, mixed, sub, gate, up;
    dptr taps, piece_taps, gathered, feature, context; /* f32; taps [rows, taps * hidden] */
    dptr gates, found, values, ids, scores, chances;
    u32 tap_from;                /* position from which prefill keeps taps */
    u32 tapped_row, tapped;      /* rows of the piece that runs, and how many */
    u32 *round_host;             /* page-locked */
    struct model_linear reduced; /* the reduced head's slice of the target's */
};

static bool has_conv(const struct drafter *d)
{
    return d->model->config.conv_taps > 0;
}

/* ---- opening: weights */

static int upload_layer(struct engine *engine, u32 index, struct error *error)
{
    struct drafter *d = engine->drafter;
    const struct draft_layer *from = &d->model->layers[index];
    struct drafter_layer *to = &d->layers[index];
    const struct {
        const struct model_vector *vector;
        dptr *address;
        const char *label;
    } vectors[] = {
        {&from->input_norm, &to->input_norm, "draft input_layernorm"},
        {&from->post_norm, &to->post_norm, "draft post_attention_layernorm"},
        {&from->q_norm, &to->q_norm, "draft q_norm"},
        {&from->k_norm, &to->k_norm, "draft k_norm"},
        {&from->attention_conv, &to->attention_conv, "draft attention_conv"},
        {&from->mlp_conv, &to->mlp_conv, "draft mlp_conv"},
    };
    for (u32 i = 0; i < COUNT_OF(vectors); i++)
        if (vectors[i].vector->count &&
            weights_upload_f32(engine, vectors[i].vector, 0, vectors[i].label, vectors[i].address,
                               error))
            return -1;
    return 0;
}

static int upload_raw(struct engine *engine, const struct model_vector *vector, const char *label,
                      dptr *address, struct error *error)
{
    return engine_upload_later(engine, vector->data, vector->count * dtype_size(vector->dtype),
                               label, address, error);
}

static int upload_tables(struct engine *engine, struct error *error)
{
    struct drafter *d = engine->drafter;
    const struct draft_model *model = d->model;
    u64 turns[DRAFT_HEAD_DIM / 2];
    float calibration[DRAFT_DEPTHS][2];
    for (u32 i = 0; i < COUNT_OF(turns); i++)
        turns[i] = rope_frequency(model->config.rope_theta, i, DRAFT_HEAD_DIM);
    for (u32 i = 0; i < DRAFT_DEPTHS; i++) {
        calibration[i][0] = (float)(1 / model->calibration.temperature[i]);
        calibration[i][1] = (float)log(model->calibration.recall[i]);
    }
    return engine_upload(engine, turns, sizeof turns, "draft frequencies", &d->frequencies,
                         error) ||
                   engine_upload(engine, calibration, sizeof calibration, "calibration",
                                 &d->calibration, error) ||
                   weights_upload_f32(engine, &model->hidden_norm, 0, "hidden_norm",
                                      &d->hidden_norm, error) ||
                   weights_upload_f32(engine, &model->final_norm, 0, "draft norm", &d->final_norm,
                                      error) ||
                   (model->config.selector_rank &&
                    (upload_raw(engine, &model->predecessors, "predecessors", &d->predecessors,
                                error) ||
                     upload_raw(engine, &model->successors, "successors", &d->successors, error)))
               ? -1
               : 0;
}

/* ---- opening: the head */

/* Columns of the kept blocks of 128 ids, side by side. An EXL3 head rotates its outputs in just
 * these blocks, so a block is an exact slice of trellis and svh. */
static void slice_head(struct drafter *d, const struct model_linear *head, void **data)
{
    const struct draft_model *model = d->model;
    const u32 count = model->head_block_count;
    d->reduced = *head;
    d->reduced.out = d->reduced.out_padded = count * BLOCK;
    if (head->kind == LINEAR_PLAIN) {
        const u64 block = (u64)BLOCK * head->in * dtype_size(head->weight_dtype);
        char *rows = data[0] = memory_alloc(count * block);
        for (u32 i = 0; i < count; i++) { /* the last block of the vocabulary may be short */
            const u64 at = model->head_blocks[i] * block;
            const u64 all = (u64)head->out * head->in * dtype_size(head->weight_dtype);
            memcpy(rows + i * block, (const char *)head->weight + at,
                   all - at < block ? all - at : block);
        }
        d->reduced.weight = rows;
        return;
    }
    const u64 tiles = head->out_padded / 16, words = 8 * head->bits, block = BLOCK / 16 * words;
    u32 *trellis = data[0] = memory_alloc(head->in_padded / 16 * count * block * sizeof *trellis);
    u16 *svh = data[1] = memory_alloc((u64)count * BLOCK * sizeof *svh);
    for (u64 row = 0; row < head->in_padded / 16; row++)
        for (u32 i = 0; i < count; i++)
            memcpy(trellis + (row * count + i) * block,
                   (const char *)head->trellis +
                       (row * tiles * words + model->head_blocks[i] * block) * sizeof *trellis,
                   block * sizeof *trellis);
    for (u32 i = 0; i < count; i++)
        memcpy(svh + (u64)i * BLOCK,
               (const char *)head->svh + (u64)model->head_blocks[i] * BLOCK * sizeof *svh,
               BLOCK * sizeof *svh);
    d->reduced.trellis = trellis;
    d->reduced.svh = svh;
}

static int build_reduced_head(struct engine *engine, struct error *error)
{
    struct drafter *d = engine->drafter;
    const struct draft_model *model = d->model;
    const u32 columns = model->head_block_count * BLOCK;
    const struct model_linear *source[] = {&d->reduced};
    const dptr logits[] = {engine->buffers.logits};
    void *data[2] = {NULL, NULL};
    u32 *map = memory_alloc(columns * sizeof *map);
    d->head_columns = 0;
    for (u32 i = 0; i < columns; i++) {
        map[i] = model->head_blocks[i / BLOCK] * BLOCK + i % BLOCK;
        d->head_columns += map[i] < engine->valid_vocab; /* ascending: those beyond are last */
    }
    slice_head(d, &engine->model->head, data);
    int result = engine_upload(engine, map, columns * sizeof *map, "draft head ids", &d->id_map,
                               error) ||
                 linear_set_build(engine, &d->head, source, logits, 1, "plain", false, error);
    struct error late;
    if (uploader_finish(engine->uploader, result ? &late : error)) /* it reads the slices */
        result = -1;
    memory_free(map);
    memory_free(data[0]);
    memory_free(data[1]);
    return result ? -1 : 0;
}

/* ---- opening: linears and buffers */

static int build_linears(struct engine *engine, struct error *error)
{
    struct drafter *d = engine->drafter;
    const struct draft_model *model = d->model;
    const bool plain = !has_conv(d); /* then sublayers go straight into the stream */
    const dptr stream = plain ? engine->buffers.x : d->sub;
    for (u32 i = 0; i < model->config.layers; i++) {
        const struct draft_layer *from = &model->layers[i];
        struct drafter_layer *to = &d->layers[i];
        const struct model_linear *q[] = {&from->q}, *kv[] = {&from->k, &from->v},
                                  *o[] = {&from->o}, *gate_up[] = {&from->gate, &from->up},
                                  *down[] = {&from->down};
        const struct model_linear *attention[] = {&from->attention_projection},
                                  *mlp[] = {&from->mlp_projection};
        const dptr to_kv[] = {d->k, d->v}, to_mlp[] = {d->gate, d->up};
        if (linear_set_build(engine, &to->kv, kv, to_kv, 2, "plain", false, error) ||
            linear_set_build(engine, &to->q, q, &d->q, 1, "plain", false, error) ||
            linear_set_build(engine, &to->o, o, &stream, 1, "plain", plain, error) ||
            linear_set_build(engine, &to->mlp.gate_up, gate_up, to_mlp, 2, "plain", false, error) ||
            linear_set_build(engine, &to->mlp.down, down, &stream, 1, "glu", plain, error) ||
            linear_mlp_build(engine, &to->mlp, error) ||
            (!plain && (linear_set_build(engine, &to->attention_projection, attention,
                                         &d->coefficient, 1, "plain", false, error) ||
                        linear_set_build(engine, &to->mlp_projection, mlp, &d->coefficient, 1,
                                         "plain", false, error))))
            return -1;
    }
    const struct model_linear *fc[] = {&model->fc}, *selector[] = {&model->selector};
    return linear_set_build(engine, &d->fc, fc, &d->feature, 1, "plain", false, error) ||
                   (model->config.selector_rank &&
                    linear_set_build(engine, &d->selector, selector, &d->gates, 1, "plain", false,
                                     error)) ||
                   (model->head_blocks
                        ? build_reduced_head(engine, error)
                        : linear_set_alias(engine, &engine->head, "plain", &d->head, error))
               ? -1
               : 0;
}

static u32 columns_of(const struct model_linear *linear)
{
    return linear->kind == LINEAR_NONE ? 0 : linear->out_padded;
}

static int alloc_buffers(struct engine *engine, struct error *error)
{
    struct drafter *d = engine->drafter;
    const struct draft_config *c = &d->model->config;
    const u64 row = ROWS * 4, heads = (u64)c->q_heads * DRAFT_HEAD_DIM,
              kv = (u64)c->kv_heads * DRAFT_HEAD_DIM;
    const u64 ring = (u64)(d->capacity + ROWS) * kv * 2;
    const u64 tap_row = (u64)c->tap_count * c->hidden * 4;
    const u64 piece = d->capacity < engine->piece ? d->capacity : engine->piece;
    const struct {
        dptr *address;
        u64 bytes;
        const char *label;
    } list[] = {
        {&d->normed, row * c->hidden, "draft normed"},
        {&d->input, row * c->hidden, "draft input"},
        {&d->coefficient, row * d->coefficients, "draft coefficients"},
        {&d->q, row * heads, "draft q"},
        {&d->k, row * kv, "draft k"},
        {&d->v, row * kv, "draft v"},
        {&d->turned, row * heads, "draft queries"},
        {&d->mixed, row * heads, "draft attention"},
        {&d->sub, row * c->hidden, "draft sublayer"},
        {&d->gate, row * c->intermediate, "draft gate"},
        {&d->up, row * c->intermediate, "draft up"},
        {&d->taps, ROWS * tap_row, "taps"},
        {&d->gathered, ROWS * tap_row, "taps of committed rows"},
        {&d->piece_taps, (piece + ROWS) * tap_row, "taps of a prefill piece"},
        {&d->feature, row * c->hidden, "draft feature"},
        {&d->context, row * c->hidden, "draft context"},
        {&d->gates, row * (d->gate_columns ? d->gate_columns : 1), "selector gates"},
        {&d->values, DRAFT_DEPTHS * CANDIDATES * 4, "candidate values"},
        {&d->ids, DRAFT_DEPTHS * CANDIDATES * 4, "candidates"},
        {&d->scores, LATTICE_ROWS * CANDIDATES * 4, "lattice"},
        {&d->chances, LATTICE_ROWS * CANDIDATES * 4, "lattice chances"},
    };
    dptr ignored;
    for (u32 i = 0; i < COUNT_OF(list); i++)
        if (engine_alloc(engine, list[i].bytes ? list[i].bytes : 16, list[i].label, list[i].address,
                         error))
            return -1;
    for (u32 i = 0; i < c->layers; i++)
        if (engine_alloc(engine, ring, "draft keys", &d->layers[i].ring_k, error) ||
            engine_alloc(engine, ring, "draft values", &d->layers[i].ring_v, error))
            return -1;
    return device_alloc_pinned(engine->device, ROUND_WORDS * 4, (void **)&d->round_host, &ignored,
                               error);
}

/* ---- opening: kernels */

static int request_block(struct engine *engine, struct error *error)
{
    struct drafter *d = engine->drafter;
    const struct draft_config *c = &d->model->config;
    const u32 eps = float_bits(c->norm_eps), width = c->tap_count * c->hidden;
    const struct jit_parameter embed[] = {
        JIT_NUMBER("hidden", c->hidden),
        JIT_NUMBER("rows_max", ROWS),
        JIT_TEXT("dtype", dtype_name(engine->model->embedding.dtype)),
        JIT_NUMBER("scale", float_bits(c->embedding_scale)),
        {0}};
    const struct jit_parameter norm[] = {JIT_NUMBER("k", c->hidden),
                                         JIT_NUMBER("rows_max", ROWS),
                                         JIT_TEXT("mode", "norm"),
                                         JIT_NUMBER("eps", eps),
                                         {0}};
    const struct jit_parameter tap[] = {JIT_NUMBER("width", c->hidden),
                                        JIT_NUMBER("stride", width),
                                        JIT_NUMBER("rows_max", ROWS),
                                        {0}};
    const struct jit_parameter piece[] = {JIT_NUMBER("width", c->hidden),
                                          JIT_NUMBER("stride", width),
                                          JIT_NUMBER("rows_max", engine->piece),
                                          {0}};
    const struct jit_parameter gather[] = {JIT_NUMBER("width", width), {0}};
    struct jit_parameter prepare[] = {
        JIT_NUMBER("q_heads", c->q_heads),   JIT_NUMBER("kv_heads", c->kv_heads),
        JIT_NUMBER("capacity", d->capacity), JIT_NUMBER("eps", eps),
        JIT_TEXT("mode", "block"),           {0}};
    if (jit_request(engine->jit, "embed", embed, &d->kernels.embed, error) ||
        jit_request(engine->jit, "activate", norm, &d->kernels.norm, error) ||
        jit_request(engine->jit, "draft_tap", tap, &d->kernels.tap, error) ||
        jit_request(engine->jit, "draft_tap", piece, &d->kernels.tap_piece, error) ||
        jit_request(engine->jit, "draft_gather", gather, &d->kernels.gather, error) ||
        jit_request(engine->jit, "draft_prepare", prepare, &d->kernels.block, error))
        return -1;
    prepare[4].text = "context";
    if (jit_request(engine->jit, "draft_prepare", prepare, &d->kernels.context, error))
        return -1;
    struct jit_parameter conv[] = {JIT_NUMBER("hidden", c->hidden),
                                   JIT_NUMBER("stride", d->coefficients),
                                   JIT_NUMBER("group", c->conv_group),
                                   JIT_TEXT("mode", "prepare"),
                                   {0}};
    if (!has_conv(d))
        return 0;
    if (jit_request(engine->jit, "draft_conv", conv, &d->kernels.prepare, error))
        return -1;
    conv[3].text = "finish";
    return jit_request(engine->jit, "draft_conv", conv, &d->kernels.finish, error);
}

static int request_attention(struct engine *engine, struct error *error)
{
    struct drafter *d = engine->drafter;
    const struct draft_config *c = &d->model->config;
    u64 tiles = 0;
    for (u32 i = 0; i < c->layers; i++) {
        const struct jit_parameter attend[] = {
            JIT_NUMBER("q_heads", c->q_heads),   JIT_NUMBER("kv_heads", c->kv_heads),
            JIT_NUMBER("capacity", d->capacity), JIT_NUMBER("window", c->windows[i]),
            JIT_NUMBER("causal", c->causal),     {0}};
        const struct jit_parameter combine[] = {JIT_NUMBER("q_heads", c->q_heads),
                                                JIT_NUMBER("capacity", d->capacity),
                                                JIT_NUMBER("window", c->windows[i]),
                                                {0}};
        if (jit_request(engine->jit, "draft_attention", attend, &d->layers[i].attend, error) ||
            jit_request(engine->jit, "draft_combine", combine, &d->layers[i].combine, error))
            return -1;
        const u64 mine = (u64)jit_kernel_export(d->layers[i].attend, "tiles");
        tiles = mine > tiles ? mine : tiles;
    }
    const u64 slots = tiles * ROWS * c->q_heads;
    return engine_alloc(engine, slots * DRAFT_HEAD_DIM * 4, "draft tiles", &d->part, error) ||
                   engine_alloc(engine, slots * 8, "draft maxima and sums", &d->stat, error)
               ? -1
               : 0;
}

static int request_tree(struct engine *engine, struct error *error)
{
    struct drafter *d = engine->drafter;
    const struct draft_config *c = &d->model->config;
    const bool reduced = d->model->head_blocks != NULL;
    const u32 stride = reduced ? d->model->head_block_count * BLOCK : engine->vocab_stride;
    const struct jit_parameter top[] = {
        JIT_NUMBER("vocab", d->head_columns), JIT_NUMBER("stride", stride), {0}};
    const struct jit_parameter lattice[] = {
        JIT_NUMBER("rank", c->selector_rank),
        JIT_NUMBER("gate_stride", d->gate_columns),
        JIT_TEXT("dtype", dtype_name(c->selector_rank ? d->model->predecessors.dtype : DTYPE_F32)),
        {0}};
    const struct jit_parameter tree[] = {{0}};
    if (jit_request(engine->jit, "draft_top", top, &d->kernels.top, error))
        return -1;
    const u64 groups = (u64)jit_kernel_export(d->kernels.top, "groups");
    const struct jit_parameter select[] = {
        JIT_NUMBER("groups", groups),
        JIT_NUMBER("multiplier", float_bits(c->output_multiplier)),
        JIT_NUMBER("softcap", float_bits(c->softcap)),
        JIT_NUMBER("top_k", c->top_k),
        JIT_NUMBER("vocab", d->head_columns),
        {0}};
    return jit_request(engine->jit, "draft_select", select, &d->kernels.select, error) ||
                   jit_request(engine->jit, "draft_lattice", lattice, &d->kernels.lattice, error) ||
                   jit_request(engine->jit, "draft_tree", tree, &d->kernels.tree, error) ||
                   engine_alloc(engine, DRAFT_DEPTHS * groups * CANDIDATES * 8,
                                "candidates of groups", &d->found, error)
               ? -1
               : 0;
}

int drafter_open(struct engine *engine, const struct engine_options *options, struct error *error)
{
    struct drafter *d = engine->drafter = memory_alloc(sizeof *d);
    d->model = engine->draft;
    const struct draft_config *c = &d->model->config;
    d->layers = memory_alloc(c->layers * sizeof *d->layers);
    for (u32 i = 0; i < c->layers; i++) {
        const u32 window = c->windows[i] && c->windows[i] < engine->context ? c->windows[i]
                                                                            : engine->context;
        d->capacity = window > d->capacity ? window : d->capacity;
        if (c->windows[i] >= engine->context)
            d->model->config.windows[i] = 0;
        if (upload_layer(engine, i, error))
            return -1;
    }
    d->rows = c->block;
    d->drafted = options->speculate && options->speculate < c->block ? options->speculate
                                                                     : c->block - 1;
    d->chain = options->chain;
    d->head_columns = engine->valid_vocab;
    d->coefficients = columns_of(&d->model->layers[0].attention_projection);
    d->gate_columns = columns_of(&d->model->selector);
    return upload_tables(engine, error) || alloc_buffers(engine, error) ||
                   build_linears(engine, error) || request_block(engine, error) ||
                   request_attention(engine, error) || request_tree(engine, error)
               ? -1
               : 0;
}

void drafter_close(struct engine *engine)
{
    struct drafter *d = engine->drafter;
    if (!d)
        return;
    if (d->round_host)
        device_free_pinned(engine->device, d->round_host);
    memory_free(d->layers);
    memory_free(d);
    engine->drafter = NULL;
}

void drafter_scratch(const struct engine *engine, struct linear_scratch *most)
{
    const struct drafter *d = engine->drafter;
    if (!d)
        return;
    for (u32 i = 0; i < d->model->config.layers; i++) {
        const struct drafter_layer *layer = &d->layers[i];
        const struct linear_set *sets[] = {
            &layer->attention_projection, &layer->mlp_projection, &layer->q, &layer->kv, &layer->o,
            &layer->mlp.gate_up,          &layer->mlp.down};
        for (u32 j = 0; j < COUNT_OF(sets); j++)
            linear_set_scratch(sets[j], most);
    }
    linear_set_scratch(&d->fc, most);
    linear_set_scratch(&d->selector, most);
    linear_set_scratch(&d->head, most);
}

bool drafter_memory(const struct engine *engine, u32 layer, dptr *keys, dptr *values, u64 *bytes)
{
    const struct drafter *d = engine->drafter;
    if (!d || layer >= d->model->config.layers)
        return false;
    *keys = d->layers[layer].ring_k;
    *values = d->layers[layer].ring_v;
    *bytes = (u64)d->capacity * d->model->config.kv_heads * DRAFT_HEAD_DIM * 2;
    return true;
}

/* ---- context */

int drafter_tap(struct engine *engine, u32 layer, struct error *error)
{
    const struct drafter *d = engine->drafter;
    const struct draft_config *c = &d->model->config;
    for (u32 i = 0; i < c->tap_count; i++)
        if (c->taps[i] == layer) {
            LAUNCH(d->kernels.tap, engine->buffers.x, d->taps, 0, i * c->hidden, ROWS);
            if (phase_ends(engine, PHASE_TAP, error))
                return -1;
        }
    return 0;
}

/* Features of 8 rows of taps, into the rings at the positions of buffers.round. */
static int launch_context(struct engine *engine, dptr taps, struct error *error)
{
    const struct drafter *d = engine->drafter;
    const dptr round = engine->buffers.round;
    if (linear_set_launch(engine, &d->fc, taps, 0, 0, error))
        return -1;
    LAUNCH(d->kernels.norm, d->feature, 0, d->hidden_norm, d->context, round);
    for (u32 i = 0; i < d->model->config.layers; i++) {
        const struct drafter_layer *layer = &d->layers[i];
        if (linear_set_launch(engine, &layer->kv, d->context, 0, 0, error))
            return -1;
        LAUNCH(d->kernels.context, d->q, d->k, d->v, layer->q_norm, layer->k_norm, d->frequencies,
               d->turned, layer->ring_k, layer->ring_v, round);
    }
    return 0;
}

static int launch_follow(struct engine *engine, struct error *error)
{
    const struct drafter *d = engine->drafter;
    LAUNCH(d->kernels.gather, d->taps, d->gathered, engine->buffers.round);
    return launch_context(engine, d->gathered, error) || phase_ends(engine, PHASE_FOLLOW, error)
               ? -1
               : 0;
}

int drafter_follow(struct engine *engine, struct error *error)
{
    return decode_graph(engine, &engine->graphs.follow, launch_follow, error);
}

void drafter_begin(struct engine *engine, u32 end)
{
    struct drafter *d = engine->drafter;
    d->tap_from = end > d->capacity ? end - d->capacity : 0;
}

int drafter_tap_piece(struct engine *engine, u32 layer, u32 rows, struct error *error)
{
    struct drafter *d = engine->drafter;
    const struct draft_config *c = &d->model->config;
    const u32 end = engine->position + rows;
    d->tapped = end > d->tap_from ? end - d->tap_from : 0;
    d->tapped = d->tapped < rows ? d->tapped : rows;
    d->tapped_row = rows - d->tapped;
    for (u32 i = 0; d->tapped && i < c->tap_count; i++)
        if (c->taps[i] == layer) {
            LAUNCH(d->kernels.tap_piece, engine->prefill_stream, d->piece_taps, d->tapped_row,
                   i * c->hidden, d->tapped);
            if (phase_ends(engine, PHASE_TAP, error))
                return -1;
        }
    return 0;
}

int drafter_follow_piece(struct engine *engine, u32 rows, struct error *error)
{
    const struct drafter *d = engine->drafter;
    const struct draft_config *c = &d->model->config;
    const u32 first = engine->position - rows + d->tapped_row;
    for (u32 at = 0; at < d->tapped; at += ROWS) {
        u32 words[ROUND_WORDS];
        const struct tree_verdict batch = {.count = d->tapped - at < ROWS ? d->tapped - at : ROWS};
        tree_describe_commit(&batch, first + at, words);
        if (decode_describe(engine, words, error) ||
            launch_context(engine, d->piece_taps + (u64)at * c->tap_count * c->hidden * 4, error))
            return -1;
    }
    return d->tapped ? phase_ends(engine, PHASE_FOLLOW, error) : 0;
}

/* ---- the pass */

/* x += sublayer(conv(norm(x))), with the second convolution around it; or without both. */
static int before_sublayer(struct engine *engine, const struct linear_set *projection, dptr norm,
                           dptr conv, struct error *error)
{
    const struct drafter *d = engine->drafter;
    const struct decode_buffers *b = &engine->buffers;
    LAUNCH(d->kernels.norm, b->x, 0, norm, has_conv(d) ? d->normed : d->input, b->round);
    if (!has_conv(d))
        return 0;
    if (linear_set_launch(engine, projection, d->normed, 0, 0, error))
        return -1;
    LAUNCH(d->kernels.prepare, d->normed, d->coefficient, conv, d->input, b->squares, b->bad,
           b->round);
    return 0;
}

static int after_sublayer(struct engine *engine, dptr conv, struct error *error)
{
    const struct drafter *d = engine->drafter;
    const struct decode_buffers *b = &engine->buffers;
    if (has_conv(d))
        LAUNCH(d->kernels.finish, d->sub, d->coefficient, conv, b->x, b->squares, b->bad, b->round);
    return 0;
}

static int launch_layer(struct engine *engine, const struct drafter_layer *layer,
                        struct error *error)
{
    const struct drafter *d = engine->drafter;
    const dptr round = engine->buffers.round;
    if (before_sublayer(engine, &layer->attention_projection, layer->input_norm,
                        layer->attention_conv, error) ||
        linear_set_launch(engine, &layer->q, d->input, 0, 0, error) ||
        linear_set_launch(engine, &layer->kv, d->input, 0, 0, error) ||
        phase_ends(engine, PHASE_DRAFT_LAYERS, error))
        return -1;
    LAUNCH(d->kernels.block, d->q, d->k, d->v, layer->q_norm, layer->k_norm, d->frequencies,
           d->turned, layer->ring_k, layer->ring_v, round);
    LAUNCH(layer->attend, d->turned, layer->ring_k, layer->ring_v, d->part, d->stat, round);
    LAUNCH(layer->combine, d->part, d->stat, d->mixed, round);
    return phase_ends(engine, PHASE_DRAFT_ATTENTION, error) ||
                   linear_set_launch(engine, &layer->o, d->mixed, 0, 0, error) ||
                   after_sublayer(engine, layer->attention_conv, error) ||
                   before_sublayer(engine, &layer->mlp_projection, layer->post_norm,
                                   layer->mlp_conv, error) ||
                   linear_mlp_launch(engine, &layer->mlp, d->input, 0, d->gate, d->up, error) ||
                   after_sublayer(engine, layer->mlp_conv, error) ||
                   phase_ends(engine, PHASE_DRAFT_LAYERS, error)
               ? -1
               : 0;
}

static int launch_pass(struct engine *engine, struct error *error)
{
    const struct drafter *d = engine->drafter;
    const struct decode_buffers *b = &engine->buffers;
    LAUNCH(d->kernels.embed, engine->embedding, b->round + ROUND_TOKENS * 4, b->x, b->squares,
           b->round);
    for (u32 i = 0; i < d->model->config.layers; i++)
        if (launch_layer(engine, &d->layers[i], error))
            return -1;
    LAUNCH(d->kernels.norm, b->x, 0, d->final_norm, d->normed, b->round);
    if ((d->model->config.selector_rank &&
         linear_set_launch(engine, &d->selector, d->normed, 0, 0, error)) ||
        linear_set_launch(engine, &d->head, d->normed, 0, 0, error) ||
        phase_ends(engine, PHASE_DRAFT_HEAD, error))
        return -1;
    LAUNCH(d->kernels.top, b->logits, d->found, b->round);
    LAUNCH(d->kernels.select, d->found, d->id_map, d->values, d->ids, b->round);
    LAUNCH(d->kernels.lattice, d->values, d->ids, d->gates, d->predecessors, d->successors,
           d->scores, b->round);
    LAUNCH(d->kernels.tree, d->scores, d->ids, d->calibration, d->chances, b->round);
    return phase_ends(engine, PHASE_DRAFT_TREE, error);
}

int drafter_propose(struct engine *engine, u32 token, u32 depth, struct error *error)
{
    struct drafter *d = engine->drafter;
    u32 *words = d->round_host, tokens[ROWS] = {token};
    for (u32 row = 1; row < d->rows; row++)
        tokens[row] = d->model->config.mask_token;
    tree_describe_chain(tokens, d->rows, engine->position, words);
    words[ROUND_DRAFT] = !d->chain;
    words[ROUND_DRAFT + 1] = d->drafted + 1;
    words[ROUND_DRAFT + 2] = depth < d->drafted ? depth : d->drafted;
    return decode_describe(engine, words, error) ||
                   decode_graph(engine, &engine->graphs.draft, launch_pass, error)
               ? -1
               : 0;
}

int drafter_read(struct engine *engine, struct drafter_view *view, struct error *error)
{
    const struct drafter *d = engine->drafter;
    return device_copy_out(engine->device, NULL, view->ids, d->ids, sizeof view->ids, error) ||
                   device_copy_out(engine->device, NULL, view->scores, d->scores,
                                   sizeof view->scores, error) ||
                   (view->state &&
                    device_copy_out(engine->device, NULL, view->state, d->normed,
                                    (u64)ROWS * d->model->config.hidden * 4, error)) ||
                   device_sync(engine->device, NULL, error)
               ? -1
               : 0;
}
