/* sample.c - settings and penalty list of a request, and the kernels that make tokens of logits.
 *
 * The sampler itself is schedules/sample.lua: a pure function of a row's logits and of (seed,
 * position). Here its arguments are laid out: 16 words of settings a row, and for penalties a list
 * of (token, generated count) entries in which each token occurs once; entries are appended or
 * counted up as tokens come. Greedy rows need the first and the last of its launches only.
 */
#include "engine/engine_private.h"

#include <math.h>
#include <string.h>

enum { SETTING_WORDS = 16 };

struct sampler {
    struct jit_kernel *prepare, *weigh, *gather, *finish;
    dptr settings, penalties, tokens;
    dptr keys, best, sums, bins, list, listed;         /* scratch: schedules/lib_sample.lua */
    u32 *settings_host, *penalties_host, *tokens_host; /* page-locked */
    u32 *entry_of; /* [vocab] 1 + index of the token's entry, 0 = none */
    u32 entries, capacity;
    bool penalise, draws, narrows; /* narrows: by top-k or top-p */
};

static int alloc_scratch(struct engine *engine, struct sampler *s, struct error *error)
{
    const u64 stride = (u64)jit_kernel_export(s->prepare, "key_stride"),
              pieces = (u64)jit_kernel_export(s->prepare, "pieces"),
              bins = (u64)jit_kernel_export(s->prepare, "bins"),
              candidates = (u64)jit_kernel_export(s->prepare, "candidates");
    return engine_alloc(engine, ROWS * stride * 4, "sampler keys", &s->keys, error) ||
                   engine_alloc(engine, ROWS * pieces * 8, "best ids", &s->best, error) ||
                   engine_alloc(engine, ROWS * pieces * 8, "sums of weights", &s->sums, error) ||
                   engine_alloc(engine, ROWS * bins * 8, "histograms", &s->bins, error) ||
                   engine_alloc(engine, ROWS * candidates * 8, "candidates", &s->list, error) ||
                   engine_alloc(engine, ROWS * 4, "candidate counts", &s->listed, error)
               ? -1
               : 0;
}

int sampler_open(struct engine *engine, struct error *error)
{
    const struct model_config *c = &engine->model->config;
    struct sampler *s = engine->sampler = memory_alloc(sizeof *s);
    const struct jit_parameter parameters[] = {JIT_NUMBER("vocab", engine->vocab_stride),
                                               JIT_NUMBER("valid_vocab", engine->valid_vocab),
                                               JIT_NUMBER("rows_max", ROWS),
                                               {0}};
    dptr ignored;
    s->capacity = c->vocab < engine->context ? c->vocab : engine->context;
    s->entry_of = memory_alloc(c->vocab * sizeof *s->entry_of);
    return jit_request(engine->jit, "sample_keys", parameters, &s->prepare, error) ||
                   jit_request(engine->jit, "sample_weigh", parameters, &s->weigh, error) ||
                   jit_request(engine->jit, "sample_gather", parameters, &s->gather, error) ||
                   jit_request(engine->jit, "sample", parameters, &s->finish, error) ||
                   alloc_scratch(engine, s, error) ||
                   engine_alloc(engine, ROWS * SETTING_WORDS * 4, "sampler settings", &s->settings,
                                error) ||
                   engine_alloc(engine, (u64)s->capacity * 8, "penalties", &s->penalties, error) ||
                   engine_alloc(engine, ROWS * 4, "sampled tokens", &s->tokens, error) ||
                   device_alloc_pinned(engine->device, ROWS * SETTING_WORDS * 4,
                                       (void **)&s->settings_host, &ignored, error) ||
                   device_alloc_pinned(engine->device, (u64)s->capacity * 8,
                                       (void **)&s->penalties_host, &ignored, error) ||
                   device_alloc_pinned(engine->device, ROWS * 4, (void **)&s->tokens_host, &ignored,
                                       error)
               ? -1
               : 0;
}

void sampler_close(struct engine *engine)
{
    struct sampler *s = engine->sampler;
    if (!s)
        return;
    device_free_pinned(engine->device, s->settings_host);
    device_free_pinned(engine->device, s->penalties_host);
    device_free_pinned(engine->device, s->tokens_host);
    memory_free(s->entry_of);
    memory_free(s);
}

/* Counts a token; generated = false for the prompt's. Returns the entry's index. */
static u32 count_token(struct sampler *s, u32 token, bool generated)
{
    if (!s->entry_of[token]) {
        s->penalties_host[2 * s->entries] = token;
        s->penalties_host[2 * s->entries + 1] = 0;
        s->entry_of[token] = ++s->entries;
    }
    const u32 index = s->entry_of[token] - 1;
    s->penalties_host[2 * index + 1] += generated;
    return index;
}

/* A fraction in [0, 1) as a share of 2^64; 1 and above: 0, which the sampler reads as off. */
static u64 share(double fraction, int exponent)
{
    return fraction >= 1 || fraction <= 0 ? 0 : (u64)ldexp(fraction, exponent);
}

static void write_settings(struct sampler *s, const struct engine_sampling *sampling)
{
    u32 *words = s->settings_host;
    const u64 top_p = share(sampling->top_p, 64);
    const u64 min_p = sampling->min_p >= 1 ? (u64)1 << 40 : share(sampling->min_p, 40);
    memset(words, 0, ROWS * SETTING_WORDS * 4);
    words[0] = float_bits(sampling->temperature);
    words[1] = sampling->top_k;
    words[2] = (u32)top_p;
    words[3] = (u32)(top_p >> 32);
    words[4] = (u32)min_p;
    words[5] = (u32)(min_p >> 32);
    words[6] = float_bits(sampling->repetition);
    words[7] = float_bits(sampling->presence);
    words[8] = float_bits(sampling->frequency);
    words[11] = (u32)sampling->seed;
    words[12] = (u32)(sampling->seed >> 32);
    s->draws = sampling->temperature > 0;
    s->narrows = top_p > 0 || sampling->top_k > 0;
    for (u32 row = 1; row < ROWS; row++)
        memcpy(words + row * SETTING_WORDS, words, SETTING_WORDS * sizeof *words);
}

int sampler_begin(struct engine *engine, const struct engine_sampling *sampling, const u32 *prompt,
                  u32 count, struct error *error)
{
    struct sampler *s = engine->sampler;
    for (u32 i = 0; i < s->entries; i++)
        s->entry_of[s->penalties_host[2 * i]] = 0;
    s->entries = 0;
    s->penalise = sampling->repetition != 1 || sampling->presence != 0 || sampling->frequency != 0;
    write_settings(s, sampling);
    if (!s->penalise)
        return 0;
    if (sampling->repetition != 1)
        for (u32 i = 0; i < count; i++)
            count_token(s, prompt[i], false);
    return device_copy_in(engine->device, NULL, s->penalties, s->penalties_host,
                          (u64)s->entries * 8, error);
}

int sampler_note(struct engine *engine, u32 token, struct error *error)
{
    struct sampler *s = engine->sampler;
    if (!s->penalise || (!s->entry_of[token] && s->entries == s->capacity))
        return 0;
    const u32 index = count_token(s, token, true);
    return device_copy_in(engine->device, NULL, s->penalties + index * 8,
                          s->penalties_host + 2 * index, 8, error);
}

int sampler_launch(struct engine *engine, struct error *error)
{
    struct sampler *s = engine->sampler;
    const struct decode_buffers *b = &engine->buffers;
    for (u32 row = 0; row < ROWS; row++)
        s->settings_host[row * SETTING_WORDS + 10] = s->entries;
    if (device_copy_in(engine->device, NULL, s->settings, s->settings_host,
                       ROWS * SETTING_WORDS * 4, error))
        return -1;
    LAUNCH(s->prepare, b->logits, s->settings, s->penalties, s->best, s->keys, s->bins, s->listed,
           b->round);
    if (s->draws)
        LAUNCH(s->weigh, s->settings, s->best, s->keys, s->sums, s->bins, b->round);
    if (s->draws && s->narrows)
        LAUNCH(s->gather, s->settings, s->best, s->keys, s->bins, s->list, s->listed, b->round);
    LAUNCH(s->finish, s->settings, s->best, s->keys, s->sums, s->bins, s->list, s->listed, b->bad,
           s->tokens, b->round);
    return device_copy_out(engine->device, NULL, s->tokens_host, s->tokens, ROWS * 4, error);
}

int sampler_read(struct engine *engine, u32 rows, u32 *tokens, struct error *error)
{
    if (device_sync(engine->device, NULL, error))
        return -1;
    memcpy(tokens, engine->sampler->tokens_host, rows * sizeof *tokens);
    return 0;
}
