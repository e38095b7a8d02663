/* draft_folder.h - drafts derived from elpis-tiny-dflash2: the same numbers in other clothes.
 *
 * derive_draft writes one into a folder: its linears as F32 weights instead of EXL3, its taps in
 * another order (fc's columns with them), or without what DFlash2 adds to DFlash. The decoder of
 * mul1 trellises here is written from exl3.md 2 and 3, in binary64, and checked against vectors.
 */
#ifndef ELPIS_TEST_DRAFT_FOLDER_H
#define ELPIS_TEST_DRAFT_FOLDER_H

#include "model/make_draft.h"

#include <jansson.h>

enum { TRELLIS_TILE = 16, TRELLIS_BLOCK = 128 };

struct derivation {
    bool plain;          /* linears as F32 weights */
    bool version_1;      /* no convolutions, no selector */
    const u32 *taps;     /* another target_layer_ids, of as many layers; or NULL */
    const u32 *tap_from; /* with plain: fc's columns of tap i are those of tap_from[i]; or NULL */
};

/* ---- EXL3, codebook mul1 */

static double value_of_half(u16 bits)
{
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double size = exponent ? ldexp(mantissa | 1024, exponent - 25) : ldexp(mantissa, -24);
    return bits >> 15 ? -size : size;
}

static double half_in(const struct tensor *tensor, u64 index)
{
    u16 bits;
    memcpy(&bits, (const char *)tensor->data + index * 2, sizeof bits);
    return value_of_half(bits);
}

/* Value of a state (2.5): (1024 + sum of bytes) * kinv + kbias, rounded once to f16. */
static u16 mul1_half(u32 state)
{
    const u32 x = state * 0x83DCD12Du;
    const u32 sum = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24);
    const float exact = (float)((1024.0 + sum) * value_of_half(0x1eee) + value_of_half(0xc931));
    u32 word;
    memcpy(&word, &exact, sizeof word);
    return (u16)make_half(word);
}

/* The 16 bits of the tile's ring that end with symbol t (2.2, 2.3). */
static u32 state_at(const u32 *words, u32 bits, u32 t)
{
    u32 state = 0;
    for (u32 i = 0; i < 16; i++) {
        const u32 p = ((t + 1) * bits + 256 * bits - 16 + i) % (256 * bits);
        state = state << 1 | (words[p / 32] >> (31 - p % 32) & 1);
    }
    return state;
}

/* trellis I16 [k/16, n/16, 16 K] -> codes u16 [k, n], f16 values in the code's own basis. */
static u16 *mul1_decode(const struct tensor *trellis)
{
    const u64 k_tiles = trellis->shape[0], n_tiles = trellis->shape[1], n = n_tiles * TRELLIS_TILE;
    const u32 bits = (u32)trellis->shape[2] / 16;
    u16 *codes = memory_alloc(k_tiles * TRELLIS_TILE * n * sizeof *codes);
    u32 words[64];
    for (u64 tile = 0; tile < k_tiles * n_tiles; tile++) {
        memcpy(words, (const char *)trellis->data + tile * bits * 32, bits * 32);
        for (u32 t = 0; t < 256; t++) {
            const u32 lane = t / 8, j = t % 8; /* 2.4 */
            const u64 row = tile / n_tiles * TRELLIS_TILE + 2 * (lane % 4) + j % 2 +
                            8 * (j / 2 % 2);
            const u64 column = tile % n_tiles * TRELLIS_TILE + lane / 4 + 8 * (j / 4);
            codes[row * n + column] = mul1_half(state_at(words, bits, t));
        }
    }
    return codes;
}

/* H_128 over values[0], values[stride], ... */
static void hadamard_128(double *values, u64 stride)
{
    for (u32 half = 1; half < TRELLIS_BLOCK; half *= 2)
        for (u32 i = 0; i < TRELLIS_BLOCK; i++) {
            if (i & half)
                continue;
            double *a = values + i * stride, *b = values + (i + half) * stride;
            const double sum = *a + *b, difference = *a - *b;
            *a = sum, *b = difference;
        }
    for (u32 i = 0; i < TRELLIS_BLOCK; i++)
        values[i * stride] /= sqrt(TRELLIS_BLOCK);
}

/* W = diag(suh) H codes H diag(svh), f64 [k, n] (3). */
static double *mul1_weights(const struct tensor *trellis, const struct tensor *suh,
                            const struct tensor *svh)
{
    const u64 k = trellis->shape[0] * TRELLIS_TILE, n = trellis->shape[1] * TRELLIS_TILE;
    u16 *codes = mul1_decode(trellis);
    double *w = memory_alloc(k * n * sizeof *w);
    for (u64 i = 0; i < k * n; i++)
        w[i] = value_of_half(codes[i]);
    for (u64 row = 0; row < k; row++)
        for (u64 block = 0; block < n; block += TRELLIS_BLOCK)
            hadamard_128(w + row * n + block, 1);
    for (u64 column = 0; column < n; column++)
        for (u64 block = 0; block < k; block += TRELLIS_BLOCK)
            hadamard_128(w + block * n + column, n);
    for (u64 i = 0; i < k * n; i++)
        w[i] *= half_in(suh, i / n) * half_in(svh, i % n);
    memory_free(codes);
    return w;
}

/* ---- deriving */

struct deriving {
    const struct derivation *how;
    const struct tensor_file *from;
    struct tensor_writer *to;
    struct arena *arena;
};

static const struct tensor *tensor_of(const struct deriving *deriving, const char *linear,
                                      const char *part)
{
    return tensor_file_find(deriving->from, arena_format(deriving->arena, "%s.%s", linear, part));
}

/* Column of the old fc that stands at a column of the new one. */
static u64 fc_column(const struct derivation *how, u64 column, u64 hidden)
{
    return how->tap_from ? how->tap_from[column / hidden] * hidden + column % hidden : column;
}

static void add_weight(struct deriving *deriving, const char *linear)
{
    const struct tensor *svh = tensor_of(deriving, linear, "svh");
    const struct tensor *suh = tensor_of(deriving, linear, "suh");
    const u64 shape[] = {svh->count, suh->count};
    const bool is_fc = strcmp(linear, "fc") == 0;
    double *w = mul1_weights(tensor_of(deriving, linear, "trellis"), suh, svh);
    float *weight = arena_alloc(deriving->arena, shape[0] * shape[1] * sizeof *weight);
    for (u64 out = 0; out < shape[0]; out++)
        for (u64 in = 0; in < shape[1]; in++) {
            const u64 from = is_fc ? fc_column(deriving->how, in, shape[0]) : in;
            weight[out * shape[1] + in] = (float)w[from * shape[0] + out];
        }
    tensor_writer_add(deriving->to, arena_format(deriving->arena, "%s.weight", linear), DTYPE_F32,
                      2, shape, weight);
    memory_free(w);
}

static void derive_tensor(struct deriving *deriving, const struct tensor *tensor)
{
    const char *part = strrchr(tensor->name, '.') + 1;
    const struct slice name = slice_of(tensor->name);
    if (deriving->how->version_1 &&
        (strstr(tensor->name, "_conv.") || slice_starts(name, SLICE("candidate_selector."))))
        return;
    if (!deriving->how->plain || (strcmp(part, "trellis") != 0 && strcmp(part, "suh") != 0 &&
                                  strcmp(part, "svh") != 0 && strcmp(part, "mul1") != 0))
        tensor_writer_add(deriving->to, tensor->name, tensor->dtype, tensor->rank, tensor->shape,
                          tensor->data);
    else if (strcmp(part, "trellis") == 0)
        add_weight(deriving,
                   arena_text(deriving->arena,
                              (struct slice){name.data, name.size - SLICE(".trellis").size}));
}

static int derive_config(const struct derivation *how, const char *from, const char *to,
                         struct error *error)
{
    json_t *config = json_load_file(from, 0, NULL);
    json_t *nested = json_object_get(config, "dflash_config");
    if (how->version_1) {
        json_object_set_new(config, "architectures", json_pack("[s]", "DFlashDraftModel"));
        json_object_del(nested, "conv_kernel_size");
        json_object_del(nested, "conv_group_size");
        json_object_del(nested, "selector_rank");
        json_object_del(nested, "selector_top_k");
    }
    json_t *taps = json_object_get(nested, "target_layer_ids");
    for (u32 i = 0; how->taps && i < json_array_size(taps); i++)
        json_array_set_new(taps, i, json_integer(how->taps[i]));
    if (how->plain)
        json_object_del(config, "quantization_config");
    char *text = json_dumps(config, JSON_INDENT(1));
    const int result = file_write_atomic(to, text, strlen(text), error);
    free(text);
    json_decref(config);
    return result;
}

/* Writes config.json and model.safetensors of a draft derived from that in `from` into `to`. */
static int derive_draft(const struct derivation *how, const char *from, const char *to,
                        struct error *error)
{
    struct arena *arena = arena_create();
    struct tensor_file *file = NULL;
    int result = -1;
    if (file_make_folders(to, 0755, error) ||
        tensor_file_open(&file, arena_format(arena, "%s/model.safetensors", from), error))
        goto done;
    struct deriving deriving = {how, file, tensor_writer_create(), arena};
    for (size_t i = 0; i < tensor_file_count(file); i++)
        derive_tensor(&deriving, tensor_file_at(file, i));
    result = tensor_writer_write(deriving.to, arena_format(arena, "%s/model.safetensors", to),
                                 error) ||
                     derive_config(how, arena_format(arena, "%s/config.json", from),
                                   arena_format(arena, "%s/config.json", to), error)
                 ? -1
                 : 0;
    tensor_writer_destroy(deriving.to);
done:
    tensor_file_close(file);
    arena_destroy(arena);
    return result;
}

#endif
