/* traffic.c - bytes of a pass, a draft and a commit (traffic.h), counted in the formats that are
 * uploaded: EXL3 matrices as tiles with both sign vectors, vectors as f32, unquantised matrices and
 * the draft's tables as in the file. */
#include "engine/traffic.h"

enum {
    BLOCK = 128,
    DRAFT_HEAD_DIM = 128, /* the draft's rings are f16 */
    RING_BYTES = 2,
    F32 = 4,
};

/* Of a row in all recurrent layers: qkv before and after the convolution, a and b. */
static u64 static_bytes(const struct model *model)
{
    const struct model_config *c = &model->config;
    const u64 floats = 2 * model_conv_channels(c) + 2ull * c->gdn_v_heads;
    return F32 * floats * (c->layers - model_attention_layers(model));
}

static u64 embedding_bytes(const struct model *model, u32 rows)
{
    return (u64)rows * model->config.hidden * dtype_size(model->embedding.dtype);
}

/* Written and read again. */
static u64 logit_bytes(const struct model_linear *head, u32 rows)
{
    return 2ull * rows * F32 * (head->kind == LINEAR_EXL3 ? head->out_padded : head->out);
}

static u64 tap_bytes(const struct traffic_case *of, u32 rows)
{
    return of->draft ? (u64)rows * of->draft->config.tap_count * of->draft->config.hidden * F32 : 0;
}

struct traffic traffic_verify(const struct traffic_case *of, u32 rows, bool keep)
{
    const struct model *model = of->model;
    struct traffic t = {.weights = model_linear_bytes(&model->head, 1) +
                                   model_vector_bytes(&model->final_norm, 1),
                        .cache = model_token_bytes(of->model, of->kv_bits) *
                                 (of->position + rows), /* the rows' own are written */
                        .state = model_state_bytes(model) * (keep ? 2 : 1),
                        .rows = logit_bytes(&model->head, rows) +
                                (keep ? 0 : rows * static_bytes(model)) + tap_bytes(of, rows),
                        .embeddings = embedding_bytes(model, rows)};
    for (u32 i = 0; i < model->config.layers; i++)
        t.weights += model_layer_bytes(&model->layers[i], 1);
    return t;
}

/* ---- the draft */

/* A token's keys and values in one layer. */
static u64 ring_bytes(const struct draft_config *c)
{
    return 2ull * c->kv_heads * DRAFT_HEAD_DIM * RING_BYTES;
}

/* Rows of the selector's tables: successors of all candidates, predecessors of all but the last
 * depth's and of the last token. */
static u64 table_bytes(const struct draft_model *draft)
{
    const struct draft_config *c = &draft->config;
    const u64 depths = c->block - 1;
    return c->selector_rank ? (depths * c->top_k + 1 + (depths - 1) * c->top_k) * c->selector_rank *
                                  dtype_size(draft->predecessors.dtype)
                            : 0;
}

struct traffic traffic_draft(const struct traffic_case *of)
{
    const struct draft_model *draft = of->draft;
    const struct draft_config *c = &draft->config;
    struct model_linear head = of->model->head;
    if (draft->head_blocks)
        head.out = head.out_padded = draft->head_block_count * BLOCK;
    struct traffic t = {.weights = model_linear_bytes(&head, 1) +
                                   model_linear_bytes(&draft->selector, 1) +
                                   model_vector_bytes(&draft->final_norm, 1),
                        .rows = logit_bytes(&head, c->block) + table_bytes(draft),
                        .embeddings = embedding_bytes(of->model, c->block)};
    for (u32 i = 0; i < c->layers; i++) {
        const u32 window = c->windows[i];
        t.weights += draft_layer_bytes(&draft->layers[i], 1);
        t.cache += ring_bytes(c) * (window && window < of->position ? window : of->position);
    }
    return t;
}

struct traffic traffic_commit(const struct traffic_case *of, u32 rows)
{
    const struct draft_model *draft = of->draft;
    struct traffic t = {.cache = 2 * rows * model_token_bytes(of->model, of->kv_bits),
                        .state = 2 * model_state_bytes(of->model),
                        .rows = rows * static_bytes(of->model) + tap_bytes(of, rows)};
    if (!draft)
        return t;
    t.weights = model_linear_bytes(&draft->fc, 1) + model_vector_bytes(&draft->hidden_norm, 1);
    t.cache += rows * ring_bytes(&draft->config) * draft->config.layers;
    for (u32 i = 0; i < draft->config.layers; i++)
        t.weights += model_linear_bytes(&draft->layers[i].k, 1) +
                     model_linear_bytes(&draft->layers[i].v, 1) +
                     model_vector_bytes(&draft->layers[i].k_norm, 1);
    return t;
}

/* ---- sums */

struct traffic traffic_sum(struct traffic a, struct traffic b)
{
    return (struct traffic){.weights = a.weights + b.weights,
                            .cache = a.cache + b.cache,
                            .state = a.state + b.state,
                            .rows = a.rows + b.rows,
                            .embeddings = a.embeddings + b.embeddings};
}

u64 traffic_bytes(struct traffic traffic)
{
    return traffic.weights + traffic.cache + traffic.state + traffic.rows;
}
