/* decode.c - one pass of up to 8 rows through the model, by the exact decode kernels.
 *
 * The rows are those of the round descriptor (tree.h): a chain of committed tokens, over which the
 * pass moves the whole state (cache, GDN states, windows), or a token tree to verify, which leaves
 * the state alone; decode_commit then moves it over the rows that were accepted. All that differs
 * between passes is in the descriptor, so a pass and a commit are recorded once, each as a graph.
 */
#include "engine/engine_private.h"

#include <string.h>

enum { SUMS_ARGUMENTS = 4 }; /* sums, scales, svh, bad: last of kernels that can read sums */

int decode_describe(struct engine *engine, const u32 *words, struct error *error)
{
    return device_copy_in(engine->device, NULL, engine->buffers.round, words,
                          ROUND_WORDS * sizeof *words, error);
}

/* The linears in front of a mixer; of a joined layer they leave sums. */
static int attention_begin(struct engine *engine, const struct device_layer *layer,
                           struct error *error)
{
    const dptr x = engine->buffers.x;
    const int failed =
        layer->joined ? linear_join_begin(engine, &layer->mixer_in, x, layer->input_norm, error)
                      : linear_set_launch(engine, &layer->mixer_in, x, 0, layer->input_norm, error);
    return failed || phase_ends(engine, PHASE_INPUT, error) ? -1 : 0;
}

/* With the gates, of whose launch a joined layer's activations come too. */
static int gdn_begin(struct engine *engine, const struct device_layer *layer, struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    LAUNCH(layer->input, b->x, b->squares, layer->input_norm,
           layer->joined ? linear_suh(&layer->mixer_in) : 0, b->act, b->exponents, b->digits,
           layer->weight_a, layer->weight_b, layer->ab, b->bad, b->round);
    const int failed = layer->joined ? linear_join_main(engine, &layer->mixer_in, error)
                                     : linear_set_launch(engine, &layer->mixer_in, b->x, 0,
                                                         layer->input_norm, error);
    return failed || phase_ends(engine, PHASE_INPUT, error) ? -1 : 0;
}

static int gdn_mixer(struct engine *engine, const struct device_layer *layer, struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    if (gdn_begin(engine, layer, error))
        return -1;
    /* the last four: of joined layers */
    const u64 conv[] = {
        layer->u, layer->conv, layer->window, layer->q,  layer->k,
        layer->v, b->round,    b->sums,       b->scales, linear_svh(&layer->mixer_in),
        b->bad};
    if (jit_launch(engine->jit, NULL, layer->convolve, conv,
                   COUNT_OF(conv) - (layer->joined ? 0 : SUMS_ARGUMENTS), error))
        return -1;
    LAUNCH(engine->kernels.step, layer->q, layer->k, layer->v, layer->ab, layer->a_log,
           layer->dt_bias, layer->state, b->o, b->round);
    if (phase_ends(engine, PHASE_GDN, error))
        return -1;
    if (layer->joined) {
        LAUNCH(layer->output, b->o, layer->gdn_norm, b->sums, b->scales,
               linear_svh(&layer->mixer_in), linear_suh(&layer->mixer_out), b->act, b->exponents,
               b->digits, b->bad, b->round);
        return linear_join_end(engine, &layer->mixer_out, error);
    }
    return linear_set_launch(engine, &layer->mixer_out, b->o, b->z, layer->gdn_norm, error);
}

static int attention_mixer(struct engine *engine, const struct device_layer *layer,
                           struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    const struct kv_store *cache = &layer->cache, *own = &layer->own;
    const bool joined = layer->joined;
    const dptr svh = linear_svh(&layer->mixer_in), suh = linear_suh(&layer->mixer_out);
    if (attention_begin(engine, layer, error))
        return -1;
    LAUNCH(layer->prepare, joined ? b->sums : b->qg, joined ? b->scales : b->key,
           joined ? svh : b->value, layer->q_norm, layer->k_norm, engine->frequencies,
           engine->pages, b->q_planes, b->q_scale, cache->k_codes, cache->k_scales, cache->v_codes,
           cache->v_scales, own->k_codes, own->k_scales, own->v_codes, own->v_scales, b->bad,
           b->round);
    if (engine->kv_bits == 16)
        LAUNCH(engine->kernels.attend, b->q_planes, cache->k_codes, cache->v_codes, own->k_codes,
               own->v_codes, engine->pages, b->part, b->stat, b->round);
    else
        LAUNCH(engine->kernels.attend, b->q_planes, b->q_scale, cache->k_codes, cache->k_scales,
               cache->v_codes, cache->v_scales, own->k_codes, own->k_scales, own->v_codes,
               own->v_scales, engine->pages, b->part, b->stat, b->round);
    if (joined)
        LAUNCH(layer->combine, b->part, b->stat, b->sums, b->scales, svh, suh, b->act, b->exponents,
               b->digits, b->bad, b->round);
    else
        LAUNCH(layer->combine, b->part, b->stat, b->qg, b->mixed, b->round);
    if (phase_ends(engine, PHASE_ATTENTION, error))
        return -1;
    return joined ? linear_join_end(engine, &layer->mixer_out, error)
                  : linear_set_launch(engine, &layer->mixer_out, b->mixed, 0, 0, error);
}

static int launch_pass(struct engine *engine, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    const struct decode_buffers *b = &engine->buffers;
    const u64 stream = (u64)ROWS * c->hidden * 4;
    if (device_fill(engine->device, NULL, b->bad, 0, ROWS * 4, error))
        return -1;
    LAUNCH(engine->kernels.embed, engine->embedding, b->round + ROUND_TOKENS * 4, b->x, b->squares,
           b->round);
    if (phase_ends(engine, PHASE_EMBED, error))
        return -1;
    for (u32 i = 0; i < c->layers; i++) {
        const struct device_layer *layer = &engine->layers[i];
        if ((layer->attention ? attention_mixer : gdn_mixer)(engine, layer, error) ||
            phase_ends(engine, PHASE_OUTPUT, error) ||
            linear_mlp_launch(engine, &layer->mlp, b->x, layer->post_norm, b->gate, b->up, error) ||
            phase_ends(engine, PHASE_MLP, error))
            return -1;
        if (engine->drafter && drafter_tap(engine, i, error))
            return -1;
        if (b->hidden_rows &&
            device_copy(engine->device, NULL, b->hidden_rows + i * stream, b->x, stream, error))
            return -1;
    }
    return linear_set_launch(engine, &engine->head, b->x, 0, engine->final_norm, error) ||
                   phase_ends(engine, PHASE_HEAD, error)
               ? -1
               : 0;
}

int decode_graph(struct engine *engine, struct device_graph **graph,
                 int (*launch)(struct engine *engine, struct error *error), struct error *error)
{
    if (engine->phases)
        return launch(engine, error);
    if (!*graph && (device_graph_begin(engine->device, NULL, error) || launch(engine, error) ||
                    device_graph_end(engine->device, NULL, graph, error)))
        return -1;
    return device_graph_launch(engine->device, NULL, *graph, error);
}

void pass_graphs_destroy(struct engine *engine, struct pass_graphs *graphs)
{
    device_graph_destroy(engine->device, graphs->decode);
    device_graph_destroy(engine->device, graphs->commit);
    device_graph_destroy(engine->device, graphs->draft);
    device_graph_destroy(engine->device, graphs->follow);
    *graphs = (struct pass_graphs){0};
}

int decode_pass(struct engine *engine, struct error *error)
{
    if (engine->buffers.hidden_rows)
        return launch_pass(engine, error);
    return decode_graph(engine, &engine->graphs.decode, launch_pass, error);
}

int decode_feed(struct engine *engine, const u32 *tokens, u32 rows, struct error *error)
{
    tree_describe_chain(tokens, rows, engine->position, engine->round_host);
    if (decode_describe(engine, engine->round_host, error) || decode_pass(engine, error))
        return -1;
    if (engine->drafter) {
        struct tree_verdict all = {.count = rows, .path = {0, 1, 2, 3, 4, 5, 6, 7}};
        tree_describe_commit(&all, engine->position, engine->commit_host);
        if (decode_describe(engine, engine->commit_host, error) || drafter_follow(engine, error))
            return -1;
    }
    engine->position += rows;
    return 0;
}

/* ---- commit */

static int launch_commit(struct engine *engine, struct error *error)
{
    const struct gdn_layers *g = &engine->gdn;
    const struct attention_layers *a = &engine->attention;
    const struct decode_buffers *b = &engine->buffers;
    if (g->count) {
        LAUNCH(engine->kernels.replay, g->q, g->k, g->v, g->ab, g->a_log, g->dt_bias, g->state,
               b->o, b->round);
        LAUNCH(engine->kernels.window, g->u, g->window, b->round);
    }
    if (a->count)
        LAUNCH(engine->kernels.store, a->caches, a->owns, engine->pages, b->round);
    return phase_ends(engine, PHASE_COMMIT, error);
}

int decode_commit(struct engine *engine, const struct tree_verdict *verdict, struct error *error)
{
    tree_describe_commit(verdict, engine->position, engine->commit_host);
    if (decode_describe(engine, engine->commit_host, error) ||
        decode_graph(engine, &engine->graphs.commit, launch_commit, error) ||
        (engine->drafter && drafter_follow(engine, error)))
        return -1;
    engine->position += verdict->count;
    return 0;
}
