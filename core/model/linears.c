/* linears.c - one linear layer from its tensors: EXL3 or plain (spec: exl3.md 1.3).
 *
 *     P.trellis  I16 [k/16, n/16, 16 K]   K = shape[2] / 16, the only source of K
 *     P.suh      F16 [k]                  or, in old files, P.su I16 [k/16]
 *     P.svh      F16 [n]                                    P.sv I16 [n/16]
 *     P.mul1 or P.mcg  I32 []             presence selects the codebook; neither: 3inst
 *     P.weight   F16, BF16 or F32 [n, k]  plain
 *
 * k and n of EXL3 tensors are the model's sizes rounded up to multiples of 128 (3.4).
 * su and sv are sign bits: bit i of word j is element 16 j + i, 1 means -1.0; they are
 * expanded here into F16 in the model's arena, so that nobody else knows of them.
 */
#include <inttypes.h>
#include <string.h>

#include "model/model_private.h"

#define BLOCK 128 /* k and n are padded to multiples of it */
#define TILE 16   /* a trellis tile is TILE x TILE */
#define HALF_ONE 0x3c00u
#define HALF_SIGN 0x8000u

static const char *part(const struct tensor_table *table, const char *name, const char *suffix)
{
    return arena_format(table->arena, "%s.%s", name, suffix);
}

bool model_linear_exists(const struct tensor_table *table, const char *name)
{
    return tensor_table_find(table, part(table, name, "trellis")) ||
           tensor_table_find(table, part(table, name, "weight"));
}

static u32 padded(u32 size)
{
    return (size + BLOCK - 1) / BLOCK * BLOCK;
}

/* mul1 or mcg, by presence. */
static int read_codebook(struct tensor_table *table, struct model_linear *linear,
                         struct error *error)
{
    const struct tensor *mul1 = tensor_table_take(table, part(table, linear->name, "mul1"));
    const struct tensor *mcg = tensor_table_take(table, part(table, linear->name, "mcg"));
    if (mul1 && mcg)
        return error_set(error, ERROR_MODEL,
                         "%s: linear %s has both mul1 and mcg, which select different codebooks: "
                         "expected at most one",
                         mul1->file, linear->name);
    const struct tensor *marker = mul1 ? mul1 : mcg;
    if (marker && (marker->dtype != DTYPE_I32 || marker->count != 1))
        return error_set(error, ERROR_MODEL,
                         "%s: tensor %s is %s of %" PRIu64 " elements, expected one I32",
                         marker->file, marker->name, dtype_name(marker->dtype), marker->count);
    linear->codebook = mul1 ? CODEBOOK_MUL1 : mcg ? CODEBOOK_MCG : CODEBOOK_3INST;
    return 0;
}

static int read_trellis(struct tensor_table *table, struct model_linear *linear,
                        struct error *error)
{
    const struct tensor *trellis = tensor_table_take(table, part(table, linear->name, "trellis"));
    char found[160];
    tensor_shape_text(found, trellis->rank, trellis->shape);
    if (trellis->dtype != DTYPE_I16)
        return error_set(error, ERROR_MODEL, "%s: tensor %s has dtype %s, expected I16",
                         trellis->file, trellis->name, dtype_name(trellis->dtype));
    u64 words = trellis->rank == 3 ? trellis->shape[2] : 0;
    if (words % TILE != 0 || words < TILE || words > 8 * TILE)
        return error_set(error, ERROR_MODEL,
                         "%s: tensor %s has shape %s, expected [k/16, n/16, 16 K] with K from 1 "
                         "to 8 bits",
                         trellis->file, trellis->name, found);
    if (trellis->shape[0] != padded(linear->in) / TILE ||
        trellis->shape[1] != padded(linear->out) / TILE)
        return error_set(error, ERROR_MODEL,
                         "%s: tensor %s has shape %s, expected [%u, %u, %" PRIu64 "] for a linear "
                         "of %u x %u, padded to multiples of %u",
                         trellis->file, trellis->name, found, padded(linear->in) / TILE,
                         padded(linear->out) / TILE, words, linear->in, linear->out, BLOCK);
    linear->in_padded = padded(linear->in);
    linear->out_padded = padded(linear->out);
    linear->bits = (u32)(words / TILE);
    linear->trellis = trellis->data;
    return 0;
}

static const u16 *expand_signs(const struct tensor *tensor, u32 size, struct arena *arena)
{
    u16 *halves = arena_alloc(arena, size * sizeof *halves);
    const u8 *bytes = tensor->data;
    for (u32 i = 0; i < size; i++) {
        u32 negative = bytes[i / 8] >> (i % 8) & 1;
        halves[i] = (u16)(HALF_ONE | (negative ? HALF_SIGN : 0));
    }
    return halves;
}

/* The vector `scales` (F16 [size]), or the sign bits `signs` (I16 [size/16]) instead. */
static int read_scales(struct tensor_table *table, const char *name, const char *scales,
                       const char *signs, u32 size, const u16 **halves, struct error *error)
{
    const struct tensor *tensor = NULL;
    u64 whole = size, words = size / 16;
    bool is_old = tensor_table_find(table, part(table, name, signs)) != NULL;
    if (is_old && tensor_table_find(table, part(table, name, scales)))
        return error_set(error, ERROR_MODEL, "%s: linear %s has both %s and %s, expected one",
                         table->folder, name, scales, signs);
    if (tensor_table_require(table, part(table, name, is_old ? signs : scales),
                             is_old ? 1u << DTYPE_I16 : 1u << DTYPE_F16, 1,
                             is_old ? &words : &whole, &tensor, error) < 0)
        return -1;
    *halves = is_old ? expand_signs(tensor, size, table->arena) : tensor->data;
    return 0;
}

static int refuse_bias(const struct tensor_table *table, const char *name, struct error *error)
{
    const struct tensor *bias = tensor_table_find(table, part(table, name, "bias"));
    if (!bias)
        return 0;
    return error_set(error, ERROR_MODEL,
                     "%s: tensor %s: a bias is not supported, linears of this family have none",
                     bias->file, bias->name);
}

static int read_exl3(struct tensor_table *table, struct model_linear *linear, struct error *error)
{
    const struct tensor *weight = tensor_table_find(table, part(table, linear->name, "weight"));
    if (weight)
        return error_set(error, ERROR_MODEL,
                         "%s: linear %s has both weight and trellis, expected one", weight->file,
                         linear->name);
    linear->kind = LINEAR_EXL3;
    if (read_trellis(table, linear, error) < 0 || read_codebook(table, linear, error) < 0 ||
        read_scales(table, linear->name, "suh", "su", linear->in_padded, &linear->suh, error) < 0 ||
        read_scales(table, linear->name, "svh", "sv", linear->out_padded, &linear->svh, error) < 0)
        return -1;
    return 0;
}

static int read_plain(struct tensor_table *table, struct model_linear *linear, struct error *error)
{
    u64 shape[2] = {linear->out, linear->in};
    const struct tensor *weight = NULL;
    if (tensor_table_require(table, part(table, linear->name, "weight"), DTYPES_FLOAT, 2, shape,
                             &weight, error) < 0)
        return -1;
    linear->kind = LINEAR_PLAIN;
    linear->in_padded = linear->in;
    linear->out_padded = linear->out;
    linear->weight_dtype = weight->dtype;
    linear->weight = weight->data;
    return 0;
}

int model_linear_read_plain(struct tensor_table *table, const char *name, u32 in, u32 out,
                            struct model_linear *linear, struct error *error)
{
    *linear = (struct model_linear){
        .name = arena_text(table->arena, slice_of(name)), .in = in, .out = out};
    const struct tensor *trellis = tensor_table_find(table, part(table, name, "trellis"));
    if (trellis)
        return error_set(error, ERROR_MODEL,
                         "%s: linear %s is quantised, expected a plain weight: it has only %u "
                         "outputs",
                         trellis->file, name, out);
    if (refuse_bias(table, name, error) < 0)
        return -1;
    return read_plain(table, linear, error);
}

int model_linear_read(struct tensor_table *table, const char *name, u32 in, u32 out,
                      struct model_linear *linear, struct error *error)
{
    *linear = (struct model_linear){
        .name = arena_text(table->arena, slice_of(name)), .in = in, .out = out};
    if (refuse_bias(table, name, error) < 0)
        return -1;
    if (tensor_table_find(table, part(table, name, "trellis")))
        return read_exl3(table, linear, error);
    if (!tensor_table_find(table, part(table, name, "weight")))
        return error_set(error, ERROR_MODEL,
                         "%s: linear %s is missing: neither %s.trellis (EXL3) nor %s.weight is in "
                         "its *.safetensors files",
                         table->folder, name, name, name);
    return read_plain(table, linear, error);
}
