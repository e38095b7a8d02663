/* workspace.c - where the buffers of a prefill piece lie in their one allocation.
 *
 * A layer goes through steps, and most buffers live for a few of them: those that never live at
 * the same step may lie over each other.
 *
 *     step         writes                                  reads
 *     GDN_IN       operand, sums, normed, u, z, ab         x
 *     CONV         q, k, v                                 u
 *     CHUNK        beta, g, chunk_u, _w, _p, decay         ab, q, k, v
 *     SCAN         o                                       q, k, chunk_u, _w, _p, decay
 *     GDN_OUT      operand, sums                           o, z
 *     HEADS_IN     operand, sums, qg, key, value           x
 *     ATTEND       query, mixed                            qg, key, value
 *     HEADS_OUT    operand, sums                           mixed
 *     MLP          operand, sums of gate and up            x
 *
 * A buffer is placed at the lowest offset at which it meets none of those placed before it that
 * live at one of its steps; the order, that of enum prefill_buffer, is such that at the 27B's
 * shapes all others lie within the MLP's three. The memory plan and the engine ask here, so that
 * they count the same bytes. rows: a multiple of 64.
 *
 * Not here: the two matrices in fp16 that prefill multiplies by, which are live at all steps.
 */
#include "model/model_private.h"

enum { ALIGNMENT = 256, BLOCK = 128, CHUNK_TOKENS = 64, WORD = 4, HALF = 2 };

enum {
    GDN_IN = 1,
    CONV = 2,
    CHUNK = 4,
    SCAN = 8,
    GDN_OUT = 16,
    HEADS_IN = 32,
    ATTEND = 64,
    HEADS_OUT = 128,
    MLP = 256,
    ALWAYS = 511,
};

static const u32 steps[PREFILL_BUFFERS] = {
    [PREFILL_X] = ALWAYS,
    [PREFILL_SQUARES] = ALWAYS,
    [PREFILL_TOKENS] = ALWAYS,
    [PREFILL_ROUND] = ALWAYS,
    [PREFILL_MLP_SUMS] = MLP,
    [PREFILL_MLP_SECOND] = MLP,
    [PREFILL_MLP_OPERAND] = MLP,
    [PREFILL_Z] = GDN_IN | CONV | CHUNK | SCAN | GDN_OUT,
    [PREFILL_OPERAND] = GDN_IN | GDN_OUT | HEADS_IN | HEADS_OUT,
    [PREFILL_SUMS] = GDN_IN | GDN_OUT | HEADS_IN | HEADS_OUT,
    [PREFILL_U] = GDN_IN | CONV,
    [PREFILL_NORMED] = GDN_IN,
    [PREFILL_AB] = GDN_IN | CONV | CHUNK,
    [PREFILL_Q] = CONV | CHUNK | SCAN,
    [PREFILL_K] = CONV | CHUNK | SCAN,
    [PREFILL_V] = CONV | CHUNK,
    [PREFILL_BETA] = CHUNK,
    [PREFILL_G] = CHUNK,
    [PREFILL_CHUNK_U] = CHUNK | SCAN,
    [PREFILL_CHUNK_W] = CHUNK | SCAN,
    [PREFILL_CHUNK_P] = CHUNK | SCAN,
    [PREFILL_DECAY] = CHUNK | SCAN,
    [PREFILL_O] = SCAN | GDN_OUT,
    [PREFILL_QG] = HEADS_IN | ATTEND,
    [PREFILL_KEY] = HEADS_IN | ATTEND,
    [PREFILL_VALUE] = HEADS_IN | ATTEND,
    [PREFILL_QUERY] = ATTEND,
    [PREFILL_MIXED] = ATTEND | HEADS_OUT,
    /* of unquantised linears */
    [PREFILL_ACTIVATED] = GDN_IN | GDN_OUT | HEADS_IN | HEADS_OUT | MLP,
    [PREFILL_HIDDEN] = MLP,
    [PREFILL_UP] = MLP,
};

/* Widths in elements that the linears of all layers ask for. */
struct linear_widths {
    u64 operand, sums;         /* of the mixers; operands of a norm's linears lie side by side */
    u64 mlp_operand, mlp_sums; /* the same of the MLP */
    u64 activated;             /* widest input, if a linear is unquantised */
    bool plain_mlp;
};

static u64 larger(u64 a, u64 b)
{
    return a > b ? a : b;
}

static void measure(struct linear_widths *w, const struct model_linear *const *linears, u32 count,
                    u64 *operand, u64 *sums)
{
    u64 all = 0;
    for (u32 i = 0; i < count; i++) {
        if (linears[i]->kind == LINEAR_PLAIN)
            w->activated = larger(w->activated, linears[i]->in);
        else
            all += linears[i]->in_padded;
        *sums = larger(*sums, linears[i]->out_padded);
    }
    *operand = larger(*operand, all);
}

static struct linear_widths widths_of(const struct model *model)
{
    struct linear_widths w = {0};
    for (u32 i = 0; i < model->config.layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct model_linear *gdn[] = {&layer->in_qkv, &layer->in_z};
        const struct model_linear *heads[] = {&layer->q, &layer->k, &layer->v};
        const struct model_linear *out[] = {layer->attention ? &layer->o : &layer->out};
        const struct model_linear *mlp[] = {&layer->gate, &layer->up}, *down[] = {&layer->down};
        measure(&w, layer->attention ? heads : gdn, layer->attention ? 3 : 2, &w.operand, &w.sums);
        measure(&w, out, 1, &w.operand, &w.sums);
        measure(&w, mlp, 2, &w.mlp_operand, &w.mlp_sums);
        measure(&w, down, 1, &w.mlp_operand, &w.mlp_sums);
        w.plain_mlp |= layer->gate.kind == LINEAR_PLAIN || layer->up.kind == LINEAR_PLAIN ||
                       layer->down.kind == LINEAR_PLAIN;
    }
    return w;
}

/* Bytes of each buffer, in the shapes that core/engine/prefill.c states. */
static void count_bytes(const struct model *model, u64 rows, u64 bytes[PREFILL_BUFFERS])
{
    const struct model_config *c = &model->config;
    const struct linear_widths w = widths_of(model);
    const bool gdn = model_attention_layers(model) < c->layers;
    const bool attention = model_attention_layers(model) > 0;
    const u64 keys = gdn ? (u64)c->gdn_k_heads * c->gdn_k_dim : 0,
              v_heads = gdn ? c->gdn_v_heads : 0;
    const u64 values = v_heads * c->gdn_v_dim;
    const u64 heads = attention ? (u64)c->q_heads * c->head_dim : 0;
    const u64 kv = attention ? (u64)c->kv_heads * c->head_dim : 0;
    const u64 row = rows * WORD;
    const u64 of[PREFILL_BUFFERS] = {
        [PREFILL_X] = row * c->hidden,
        [PREFILL_SQUARES] = row * (c->hidden / BLOCK),
        [PREFILL_TOKENS] = row,
        [PREFILL_ROUND] = ALIGNMENT,
        [PREFILL_MLP_SUMS] = row * w.mlp_sums,
        [PREFILL_MLP_SECOND] = row * w.mlp_sums,
        [PREFILL_MLP_OPERAND] = rows * HALF * w.mlp_operand,
        [PREFILL_Z] = row * values,
        [PREFILL_OPERAND] = rows * HALF * w.operand,
        [PREFILL_SUMS] = row * w.sums,
        [PREFILL_U] = row * (2 * keys + values),
        [PREFILL_NORMED] = gdn ? row * c->hidden : 0,
        [PREFILL_AB] = row * 2 * v_heads,
        [PREFILL_Q] = row * keys,
        [PREFILL_K] = row * keys,
        [PREFILL_V] = row * values,
        [PREFILL_BETA] = row * v_heads,
        [PREFILL_G] = row * v_heads,
        [PREFILL_CHUNK_U] = row * values,
        [PREFILL_CHUNK_W] = row * values,
        [PREFILL_CHUNK_P] = row * v_heads * CHUNK_TOKENS,
        [PREFILL_DECAY] = row * v_heads * 2,
        [PREFILL_O] = row * values,
        [PREFILL_QG] = row * 2 * heads,
        [PREFILL_KEY] = row * kv,
        [PREFILL_VALUE] = row * kv,
        [PREFILL_QUERY] = rows * HALF * heads,
        [PREFILL_MIXED] = row * heads,
        [PREFILL_ACTIVATED] = row * w.activated,
        [PREFILL_HIDDEN] = w.plain_mlp ? row * c->intermediate : 0,
        [PREFILL_UP] = w.plain_mlp ? row * c->intermediate : 0,
    };
    for (u32 i = 0; i < PREFILL_BUFFERS; i++)
        bytes[i] = (of[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

bool prefill_buffers_share_step(enum prefill_buffer a, enum prefill_buffer b)
{
    return (steps[a] & steps[b]) != 0;
}

/* The end of a buffer before `which` in whose way [offset, offset + bytes) is, or 0. */
static u64 end_in_the_way(const struct prefill_workspace *space, u32 which, u64 offset)
{
    for (u32 i = 0; i < which; i++) {
        const u64 end = space->offset[i] + space->bytes[i];
        if (prefill_buffers_share_step(i, which) && offset < end &&
            space->offset[i] < offset + space->bytes[which])
            return end;
    }
    return 0;
}

void model_prefill_workspace(const struct model *model, u64 rows, struct prefill_workspace *space)
{
    count_bytes(model, rows, space->bytes);
    space->total = 0;
    for (u32 i = 0; i < PREFILL_BUFFERS; i++) {
        u64 offset = 0;
        for (u64 end; (end = end_in_the_way(space, i, offset)) > 0;)
            offset = end;
        space->offset[i] = offset;
        space->total = larger(space->total, offset + space->bytes[i]);
    }
}
