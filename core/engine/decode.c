/* decode.c - one pass of up to 8 rows through the model, by the exact decode kernels.
 *
 * Rows are consecutive tokens of one sequence (row r at position base + r); each sees the ones
 * before it. The pass writes the cache, moves the GDN states over all its rows, and leaves logits
 * of every row. All that differs between passes is in the round descriptor, so the pass is recorded
 * once as a graph and replayed.
 */
#include "engine/engine_private.h"

#include <string.h>

void decode_set_round(struct engine *engine, const u32 *tokens, u32 rows, u32 position)
{
    u32 *round = engine->round_host;
    memset(round, 0, ROUND_WORDS * sizeof *round);
    round[0] = rows;
    round[1] = position;
    for (u32 row = 0; row < rows; row++) {
        round[ROUND_TOKENS + row] = tokens[row];
        round[ROUND_POSITIONS + row] = position + row;
    }
}

static int gdn_mixer(struct engine *engine, const struct device_layer *layer, struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    if (linear_set_launch(engine, &layer->mixer_in, b->x, 0, layer->input_norm, error))
        return -1;
    LAUNCH(engine->kernels.ab, b->x, b->squares, layer->input_norm, layer->weight_a,
           layer->weight_b, b->ab, b->round);
    LAUNCH(engine->kernels.conv, b->u, layer->conv, layer->window, b->q, b->k, b->v, b->round);
    LAUNCH(engine->kernels.step, b->q, b->k, b->v, b->ab, layer->a_log, layer->dt_bias,
           layer->state, b->o, b->round);
    return linear_set_launch(engine, &layer->mixer_out, b->o, b->z, layer->gdn_norm, error);
}

static int attention_mixer(struct engine *engine, const struct device_layer *layer,
                           struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    if (linear_set_launch(engine, &layer->mixer_in, b->x, 0, layer->input_norm, error))
        return -1;
    LAUNCH(engine->kernels.prepare, b->qg, b->key, b->value, layer->q_norm, layer->k_norm,
           engine->frequencies, engine->pages, b->q_planes, b->q_scale, layer->k_codes,
           layer->k_scales, layer->v_codes, layer->v_scales, b->bad, b->round);
    if (engine->kv_bits == 16)
        LAUNCH(engine->kernels.attend, b->q_planes, layer->k_codes, layer->v_codes, engine->pages,
               b->part, b->stat, b->round);
    else
        LAUNCH(engine->kernels.attend, b->q_planes, b->q_scale, layer->k_codes, layer->k_scales,
               layer->v_codes, layer->v_scales, engine->pages, b->part, b->stat, b->round);
    LAUNCH(engine->kernels.combine, b->part, b->stat, b->qg, b->mixed, b->round);
    return linear_set_launch(engine, &layer->mixer_out, b->mixed, 0, 0, error);
}

static int launch_pass(struct engine *engine, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    const struct decode_buffers *b = &engine->buffers;
    const u64 stream = (u64)ROWS * c->hidden * 4;
    if (device_copy_in(engine->device, NULL, b->round, engine->round_host, ROUND_WORDS * 4, error))
        return -1;
    LAUNCH(engine->kernels.embed, engine->embedding, b->round + ROUND_TOKENS * 4, b->x, b->squares,
           b->round);
    for (u32 i = 0; i < c->layers; i++) {
        const struct device_layer *layer = &engine->layers[i];
        if ((layer->attention ? attention_mixer : gdn_mixer)(engine, layer, error) ||
            linear_set_launch(engine, &layer->gate_up, b->x, 0, layer->post_norm, error) ||
            linear_set_launch(engine, &layer->down, b->gate, b->up, 0, error))
            return -1;
        if (b->hidden_rows &&
            device_copy(engine->device, NULL, b->hidden_rows + i * stream, b->x, stream, error))
            return -1;
    }
    return linear_set_launch(engine, &engine->head, b->x, 0, engine->final_norm, error);
}

int decode_pass(struct engine *engine, struct error *error)
{
    if (engine->buffers.hidden_rows)
        return launch_pass(engine, error);
    if (!engine->decode_graph) {
        if (device_graph_begin(engine->device, NULL, error))
            return -1;
        if (launch_pass(engine, error))
            return -1;
        if (device_graph_end(engine->device, NULL, &engine->decode_graph, error))
            return -1;
    }
    return device_graph_launch(engine->device, NULL, engine->decode_graph, error);
}
