/* weights.c - model files -> device memory.
 *
 * Trellises, scales and plain matrices go up as they lie in the file. Small vectors are widened to
 * f32 here (exact), norms of the 1 + w kind with the addition done (one rounding), so that kernels
 * see one form whatever the file's dtype was. The embedding stays in page-locked host memory that
 * kernels read a row at a time.
 */
#include "engine/engine_private.h"

#include <string.h>

static float half_to_float(u16 bits)
{
    const u32 sign = (u32)(bits & 0x8000) << 16;
    const u32 exponent = (bits >> 10) & 31, fraction = bits & 1023;
    u32 word;
    float value;
    if (exponent == 0) {
        value = (float)fraction * 0x1p-24f; /* exact */
        memcpy(&word, &value, sizeof word);
        word |= sign;
    } else if (exponent == 31) {
        word = sign | 0x7f800000u | fraction << 13;
    } else {
        word = sign | (exponent + 112) << 23 | fraction << 13;
    }
    memcpy(&value, &word, sizeof value);
    return value;
}

static float element_to_float(const struct model_vector *vector, u64 index)
{
    float value;
    u32 word;
    u16 half;
    switch (vector->dtype) {
    case DTYPE_F16:
        memcpy(&half, (const char *)vector->data + index * 2, sizeof half);
        return half_to_float(half);
    case DTYPE_BF16:
        memcpy(&half, (const char *)vector->data + index * 2, sizeof half);
        word = (u32)half << 16;
        memcpy(&value, &word, sizeof value);
        return value;
    default: memcpy(&value, (const char *)vector->data + index * 4, sizeof value); return value;
    }
}

float *weights_to_f32(const struct model_vector *vector, float add)
{
    float *values = memory_alloc(vector->count * sizeof *values);
    for (u64 i = 0; i < vector->count; i++) {
        values[i] = element_to_float(vector, i);
        if (add != 0)
            values[i] = values[i] + add;
    }
    return values;
}

int weights_upload_f32(struct engine *engine, const struct model_vector *vector, float add,
                       const char *label, dptr *address, struct error *error)
{
    float *values = weights_to_f32(vector, add);
    int result = engine_upload(engine, values, vector->count * sizeof *values, label, address,
                               error);
    memory_free(values);
    return result;
}

static int upload_plain(struct engine *engine, const struct model_linear *linear, dptr *address,
                        struct error *error)
{
    if (linear->kind != LINEAR_PLAIN)
        return error_set(
            error, ERROR_MODEL,
            "%s: expected an unquantised weight here (exl3 is not supported for this tensor)",
            linear->name);
    return engine_upload(engine, linear->weight,
                         (u64)linear->in * linear->out * dtype_size(linear->weight_dtype),
                         linear->name, address, error);
}

/* A [v heads] vector of one layer into its place among those of all layers. */
static int upload_place(struct engine *engine, const struct model_vector *vector, dptr all,
                        u32 place, dptr *address, struct error *error)
{
    float *values = weights_to_f32(vector, 0);
    const u64 bytes = vector->count * sizeof *values;
    *address = all + place * bytes;
    int result = device_copy_in(engine->device, NULL, *address, values, bytes, error);
    memory_free(values);
    return result;
}

static int upload_gdn(struct engine *engine, const struct model_layer *from, u32 place,
                      struct device_layer *to, struct error *error)
{
    if (from->in_a.kind == LINEAR_PLAIN && from->in_b.kind == LINEAR_PLAIN &&
        from->in_a.weight_dtype != from->in_b.weight_dtype)
        return error_set(error, ERROR_MODEL, "%s is %s and %s is %s: expected one dtype for both",
                         from->in_a.name, dtype_name(from->in_a.weight_dtype), from->in_b.name,
                         dtype_name(from->in_b.weight_dtype));
    to->ab_dtype = from->in_a.weight_dtype;
    if (upload_plain(engine, &from->in_a, &to->weight_a, error) ||
        upload_plain(engine, &from->in_b, &to->weight_b, error) ||
        weights_upload_f32(engine, &from->conv, 0, "conv1d", &to->conv, error) ||
        upload_place(engine, &from->a_log, engine->gdn.a_log, place, &to->a_log, error) ||
        upload_place(engine, &from->dt_bias, engine->gdn.dt_bias, place, &to->dt_bias, error) ||
        weights_upload_f32(engine, &from->gdn_norm, 0, "linear_attn.norm", &to->gdn_norm, error))
        return -1;
    return 0;
}

static int upload_embedding(struct engine *engine, struct error *error)
{
    const struct model_vector *table = &engine->model->embedding;
    const size_t bytes = table->count * dtype_size(table->dtype);
    if (device_alloc_pinned(engine->device, bytes, &engine->embedding_host, &engine->embedding,
                            error))
        return -1;
    return uploader_add_host(engine->uploader, engine->embedding_host, table->data, bytes, error);
}

/* RoPE frequencies as fractions of a turn a position, in 2^-64. */
static int upload_frequencies(struct engine *engine, struct error *error)
{
    const struct model_config *config = &engine->model->config;
    u64 table[HEAD_DIM / 2];
    for (u32 t = 0; t < config->rotary_dims / 2; t++)
        table[t] = rope_frequency(config->rope_theta, t, config->rotary_dims);
    return engine_upload(engine, table, config->rotary_dims / 2 * sizeof *table, "RoPE frequencies",
                         &engine->frequencies, error);
}

int weights_upload(struct engine *engine, struct error *error)
{
    const struct model *model = engine->model;
    if (upload_embedding(engine, error) || upload_frequencies(engine, error) ||
        weights_upload_f32(engine, &model->final_norm, 1, "norm", &engine->final_norm, error))
        return -1;
    const u64 heads = (u64)engine->gdn.count * model->config.gdn_v_heads * 4;
    if (heads && (engine_alloc(engine, heads, "A_log", &engine->gdn.a_log, error) ||
                  engine_alloc(engine, heads, "dt_bias", &engine->gdn.dt_bias, error)))
        return -1;
    u32 place = 0;
    for (u32 i = 0; i < model->config.layers; i++) {
        const struct model_layer *from = &model->layers[i];
        struct device_layer *to = &engine->layers[i];
        if (weights_upload_f32(engine, &from->input_norm, 1, "input_layernorm", &to->input_norm,
                               error) ||
            weights_upload_f32(engine, &from->post_norm, 1, "post_attention_layernorm",
                               &to->post_norm, error))
            return -1;
        if (!from->attention && upload_gdn(engine, from, place++, to, error))
            return -1;
        if (from->attention &&
            (weights_upload_f32(engine, &from->q_norm, 1, "q_norm", &to->q_norm, error) ||
             weights_upload_f32(engine, &from->k_norm, 1, "k_norm", &to->k_norm, error)))
            return -1;
    }
    return 0;
}
