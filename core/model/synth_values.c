/* synth_values.c - the numbers of a synthesised model: every byte from (seed, tensor name, place).
 *
 * Word i of a tensor is random_mix(key + i * RANDOM_STEP) (base/random.c), with key =
 * random_mix(seed + RANDOM_STEP) ^ hash(name). So any thread can make any piece, the same seed
 * gives the same bytes on every machine, and a tensor does not depend on what else is in the file.
 *
 *     SYNTH_BITS    the words as they are: any bits are a valid trellis
 *     SYNTH_FLOATS  four elements a word: centre + spread * u, u uniform in [-1, 1)
 *     SYNTH_SCALES  the same with a random sign
 *     SYNTH_MUL1    the marker that selects the codebook (exl3.md 1.3)
 *
 * Only +, * and integers: nothing here that a compiler or a library may round otherwise.
 */
#include <assert.h>
#include <string.h>

#include "model/synth.h"

#define FNV_BASIS 0xcbf29ce484222325u
#define FNV_PRIME 0x100000001b3u
#define MUL1_MARKER 0x83dcd12du

u64 synth_key(u64 seed, const char *name)
{
    u64 hash = FNV_BASIS;
    for (const char *at = name; *at; at++)
        hash = (hash ^ (u8)*at) * FNV_PRIME;
    return random_mix(seed + RANDOM_STEP) ^ hash;
}

static u32 float_word(float value)
{
    u32 word;
    memcpy(&word, &value, sizeof word);
    return word;
}

/* To nearest, ties to even, both. |value| < 65504. */
static u16 to_half(float value)
{
    const u32 word = float_word(value), sign = word >> 16 & 0x8000, magnitude = word & 0x7fffffff;
    assert(magnitude < float_word(65504));
    if (magnitude < float_word(0x1p-14f)) { /* beside 0.5 a float has steps of 2^-24 */
        const float positive = value < 0 ? -value : value;
        return (u16)(sign | (float_word(0.5f + positive) - float_word(0.5f)));
    }
    return (u16)(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

static u16 to_bfloat(float value)
{
    const u32 word = float_word(value);
    return (u16)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

static void fill_bits(const struct synth_recipe *recipe, u64 first, u64 size, u8 *bytes)
{
    u64 at = 0;
    for (; at + 8 <= size; at += 8) {
        const u64 word = random_mix(recipe->key + (first + at / 8) * RANDOM_STEP);
        memcpy(bytes + at, &word, sizeof word);
    }
    const u64 word = random_mix(recipe->key + (first + at / 8) * RANDOM_STEP);
    memcpy(bytes + at, &word, size - at);
}

static u16 make_element(const struct synth_recipe *recipe, enum dtype dtype, u16 bits)
{
    const float u = (float)(i16)bits * 0x1p-15f;
    float value = recipe->centre + recipe->spread * u;
    if (recipe->kind == SYNTH_SCALES && bits & 1)
        value = -value;
    return dtype == DTYPE_F16 ? to_half(value) : to_bfloat(value);
}

static void fill_floats(const struct synth_recipe *recipe, enum dtype dtype, u64 first, u64 size,
                        u8 *bytes)
{
    for (u64 at = 0; at < size; at += 8) {
        const u64 word = random_mix(recipe->key + (first + at / 8) * RANDOM_STEP);
        u16 elements[4];
        for (u32 i = 0; i < 4; i++)
            elements[i] = make_element(recipe, dtype, (u16)(word >> 16 * i));
        memcpy(bytes + at, elements, size - at < 8 ? size - at : 8);
    }
}

void synth_fill(const struct tensor *tensor, u64 begin, u64 size, u8 *bytes)
{
    const struct synth_recipe *recipe = tensor->data;
    const u32 marker = MUL1_MARKER;
    assert(begin % 8 == 0);
    if (recipe->kind == SYNTH_MUL1) {
        assert(size == sizeof marker);
        memcpy(bytes, &marker, sizeof marker);
    } else if (recipe->kind == SYNTH_BITS) {
        fill_bits(recipe, begin / 8, size, bytes);
    } else {
        assert(tensor->dtype == DTYPE_F16 || tensor->dtype == DTYPE_BF16);
        fill_floats(recipe, tensor->dtype, begin / 8, size, bytes);
    }
}
