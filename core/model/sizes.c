/* sizes.c - bytes that weights take where they are used: EXL3 matrices as tiles with both sign
 * vectors, unquantised matrices as in the file, vectors as f32. Each piece is rounded up to
 * `alignment` (1: the bytes themselves, for what is read; an allocation's, for what is reserved).
 * And bytes of state: the cache's and the recurrent layers'. */
#include "model/model.h"

enum { GROUP_DIMS = 32 }; /* of a cache row share one fp16 scale */

static u64 round_to(u64 bytes, u64 alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

u64 model_linear_bytes(const struct model_linear *linear, u64 alignment)
{
    if (linear->kind == LINEAR_NONE)
        return 0;
    if (linear->kind == LINEAR_PLAIN)
        return round_to((u64)linear->in * linear->out * dtype_size(linear->weight_dtype),
                        alignment);
    const u64 codes = (u64)linear->in_padded * linear->out_padded * linear->bits / 8;
    return round_to(codes, alignment) + round_to(2ull * linear->in_padded, alignment) +
           round_to(2ull * linear->out_padded, alignment);
}

u64 model_vector_bytes(const struct model_vector *vector, u64 alignment)
{
    return round_to(vector->count * sizeof(float), alignment);
}

struct pieces {
    const struct model_linear *const *linears;
    u32 linear_count;
    const struct model_vector *const *vectors;
    u32 vector_count;
};

static u64 sum_bytes(struct pieces pieces, u64 alignment)
{
    u64 bytes = 0;
    for (u32 i = 0; i < pieces.linear_count; i++)
        bytes += model_linear_bytes(pieces.linears[i], alignment);
    for (u32 i = 0; i < pieces.vector_count; i++)
        bytes += model_vector_bytes(pieces.vectors[i], alignment);
    return bytes;
}

u64 model_layer_bytes(const struct model_layer *layer, u64 alignment)
{
    const struct model_linear *linears[] = {
        &layer->gate, &layer->up,     &layer->down, &layer->q,    &layer->k,    &layer->v,
        &layer->o,    &layer->in_qkv, &layer->in_z, &layer->in_a, &layer->in_b, &layer->out};
    const struct model_vector *vectors[] = {&layer->input_norm, &layer->post_norm, &layer->q_norm,
                                            &layer->k_norm,     &layer->conv,      &layer->a_log,
                                            &layer->dt_bias,    &layer->gdn_norm};
    const struct pieces pieces = {linears, COUNT_OF(linears), vectors, COUNT_OF(vectors)};
    return sum_bytes(pieces, alignment);
}

u64 draft_layer_bytes(const struct draft_layer *layer, u64 alignment)
{
    const struct model_linear *linears[] = {&layer->q,
                                            &layer->k,
                                            &layer->v,
                                            &layer->o,
                                            &layer->gate,
                                            &layer->up,
                                            &layer->down,
                                            &layer->attention_projection,
                                            &layer->mlp_projection};
    const struct model_vector *vectors[] = {&layer->input_norm, &layer->post_norm,
                                            &layer->q_norm,     &layer->k_norm,
                                            &layer->mlp_conv,   &layer->attention_conv};
    const struct pieces pieces = {linears, COUNT_OF(linears), vectors, COUNT_OF(vectors)};
    return sum_bytes(pieces, alignment);
}

u32 model_attention_layers(const struct model *model)
{
    u32 count = 0;
    for (u32 i = 0; i < model->config.layers; i++)
        count += model->layers[i].attention;
    return count;
}

/* q, k and v of a recurrent layer, which its convolution reads. */
u64 model_conv_channels(const struct model_config *config)
{
    return 2 * (u64)config->gdn_k_heads * config->gdn_k_dim +
           (u64)config->gdn_v_heads * config->gdn_v_dim;
}

u64 model_token_bytes(const struct model *model, u32 kv_bits)
{
    const u64 row = (u64)model->config.kv_heads * model->config.head_dim;
    const u64 scales = kv_bits == 16 ? 0 : row / GROUP_DIMS * 2;
    return 2 * (row * kv_bits / 8 + scales) * model_attention_layers(model);
}

u64 model_state_bytes(const struct model *model)
{
    const struct model_config *config = &model->config;
    const u64 state = (u64)config->gdn_v_heads * config->gdn_k_dim * config->gdn_v_dim;
    const u64 window = (config->conv_taps - 1) * model_conv_channels(config);
    return sizeof(float) * (state + window) * (config->layers - model_attention_layers(model));
}
