/* geometry.h - the models that the fuzzer's kernels come from.
 *
 * Geometry 0 is elpis-tiny with its draft: trained, so that drafted tokens are accepted. The others
 * are random small models with random drafts, drawn from (seed, index): widths, heads, bits,
 * codebooks, unquantised linears, vocabularies, windows, cache formats. A geometry decides shapes;
 * that its values are noise does not matter to bits.
 */
#ifndef ELPIS_TESTS_FUZZ_GEOMETRY_H
#define ELPIS_TESTS_FUZZ_GEOMETRY_H

#include "engine/engine.h"
#include "model/make_draft.h"

#define FUZZ_MODEL "tests/models/elpis-tiny"
#define FUZZ_DRAFT "tests/models/elpis-tiny-dflash2"

enum { FUZZ_CONTEXT = 1024, BLOCK_COLUMNS = 128 };

struct geometry {
    char model[128], draft[128];
    u32 vocab, valid_vocab, kv_bits;
    u64 plan_seed; /* of the engine whose kernels are compared; 0 = its default */
};

/* splitmix64: Steele, Lea, Flood 2014. */
static u64 fuzz_next(u64 *state)
{
    u64 z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static u32 fuzz_between(u64 *state, u32 low, u32 high)
{
    return low + (u32)(fuzz_next(state) % (high - low + 1));
}

static bool fuzz_one_in(u64 *state, u32 count)
{
    return fuzz_between(state, 1, count) == 1;
}

static void draw_linears(u64 *state, struct make_options *make)
{
    make->bit_count = fuzz_between(state, 1, 3);
    for (u32 i = 0; i < make->bit_count; i++)
        make->bits[i] = fuzz_between(state, 1, 8);
    make->codebook_count = fuzz_between(state, 1, 2);
    for (u32 i = 0; i < make->codebook_count; i++)
        make->codebooks[i] = (enum codebook)fuzz_between(state, 0, 2);
    make->plain = fuzz_one_in(state, 8);
    make->plain_dtype = fuzz_one_in(state, 2) ? DTYPE_BF16 : DTYPE_F16;
    make->seed = fuzz_next(state);
}

static void draw_model(u64 *state, struct make_options *make, const char *folder)
{
    make_defaults(make, folder);
    make->hidden = BLOCK_COLUMNS * fuzz_between(state, 1, 12);
    make->intermediate = BLOCK_COLUMNS * fuzz_between(state, 1, 12);
    make->layers = fuzz_between(state, 3, 4);
    make->interval = fuzz_between(state, 2, 3);
    make->kv_heads = fuzz_between(state, 1, 3);
    make->q_heads = make->kv_heads * fuzz_between(state, 1, 6);
    make->k_heads = fuzz_between(state, 1, 4);
    make->v_heads = make->k_heads * fuzz_between(state, 1, 3);
    make->vocab = BLOCK_COLUMNS * fuzz_between(state, 2, 20);
    draw_linears(state, make);
    make->head_bits = fuzz_one_in(state, 6) ? 16 : fuzz_between(state, 2, 8);
    make->a_log_dtype = fuzz_one_in(state, 2) ? DTYPE_BF16 : DTYPE_F32;
    make->tied = fuzz_one_in(state, 8);
}

static void draw_draft(u64 *state, const struct make_options *model, struct draft_options *draft,
                       const char *folder)
{
    make_draft_defaults(draft, folder);
    struct make_options *base = &draft->base;
    base->hidden = model->hidden;
    base->vocab = model->vocab;
    base->intermediate = BLOCK_COLUMNS * fuzz_between(state, 1, 6);
    base->layers = fuzz_between(state, 1, 2);
    base->kv_heads = fuzz_between(state, 1, 2);
    base->q_heads = base->kv_heads * fuzz_between(state, 1, 6);
    draw_linears(state, base);
    draft->target_layers = model->layers;
    draft->tap_count = fuzz_between(state, 1, 3);
    for (u32 i = 0; i < draft->tap_count; i++)
        draft->taps[i] = i;
    draft->window = 32 * fuzz_between(state, 1, 10);
    draft->block = fuzz_between(state, 4, 8);
    draft->mask = model->vocab - 1;
    draft->rank = 8 * fuzz_between(state, 1, 16);
    draft->top_k = fuzz_between(state, 4, 16);
    draft->version_1 = fuzz_one_in(state, 8);
}

/* Writes the model of geometry `index` below `folder`. */
static int geometry_make(u64 seed, u32 index, const char *folder, struct geometry *geometry,
                         struct error *error)
{
    static const u32 cache_bits[] = {3, 3, 2, 4, 5, 6, 7, 8, 16, 16};
    u64 state = seed * 1000003 + index;
    struct make_options model;
    struct draft_options draft;
    *geometry = (struct geometry){.vocab = 4096, .valid_vocab = 4090, .kv_bits = 3};
    geometry->plan_seed = index % 2 ? fuzz_next(&state) >> 1 | 1 : 0;
    snprintf(geometry->model, sizeof geometry->model, "%s", FUZZ_MODEL);
    snprintf(geometry->draft, sizeof geometry->draft, "%s", FUZZ_DRAFT);
    if (index == 0)
        return 0;
    snprintf(geometry->model, sizeof geometry->model, "%s/model", folder);
    snprintf(geometry->draft, sizeof geometry->draft, "%s/draft", folder);
    draw_model(&state, &model, geometry->model);
    draw_draft(&state, &model, &draft, geometry->draft);
    geometry->vocab = model.vocab;
    geometry->valid_vocab = model.vocab - fuzz_between(&state, 0, model.vocab / 2);
    geometry->kv_bits = cache_bits[fuzz_between(&state, 0, COUNT_OF(cache_bits) - 1)];
    return make_model(&model, error) || make_draft(&draft, error) ? -1 : 0;
}

#endif
