/* check.c - known answers, before a freshly compiled kernel may be cached.
 *
 * The kernel prelude_check (schedules/prelude_check.lua) runs a few primitives on pseudo-random
 * words; here the same is said in C, with one rounding an operation. Unequal bits mean that this
 * compiler, driver or GPU does not compute what the engine's kernels are written for, so nothing
 * it made is kept.
 *
 * Layout, one warp: words u32 [32 lanes][8], answers u32 [32 lanes][16]. Words 0..2 are f32 bits
 * in three regimes by lane: ordinary numbers, products that are denormal, products that cancel
 * with the addend (where a contracted a*b+c differs). Fragments of the 16x8 product: PTX ISA,
 * "Matrix fragments for mma.m16n8k32".
 */
#include <math.h>
#include <string.h>

#include "jit/jit_private.h"

enum { LANES = 32, INPUTS = 8, ANSWERS = 16 };

static u32 next_word(u64 *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth, MMIX */
    return (u32)(*state >> 32);
}

static float f32_of(u32 bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static u32 bits_of(float value)
{
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void make_words(u32 words[LANES][INPUTS])
{
    u64 state = 1;
    for (u32 lane = 0; lane < LANES; lane++) {
        const u32 exponent = lane % 3 == 1 ? 61u << 23 : 127u << 23; /* 2^-66: denormal products */
        for (u32 i = 0; i < INPUTS; i++)
            words[lane][i] = next_word(&state);
        words[lane][0] = exponent | (words[lane][0] & 0x807fffffu);
        words[lane][1] = exponent | (words[lane][1] & 0x807fffffu);
        words[lane][2] = exponent | (words[lane][2] & 0x807fffffu);
        if (lane % 3 == 2)
            words[lane][2] = bits_of(-(f32_of(words[lane][0]) * f32_of(words[lane][1])));
    }
}

static i32 byte_of(u32 word, u32 index, bool is_signed)
{
    u32 byte = word >> (8 * index) & 0xffu;
    return is_signed ? (i32)(i8)byte : (i32)byte;
}

static void scalar_answers(const u32 in[INPUTS], u32 out[ANSWERS])
{
    const float a = f32_of(in[0]), b = f32_of(in[1]), c = f32_of(in[2]);
    const volatile float product = a * b; /* rounded before the sum */
    const u64 addend = (u64)in[5] << 32 | in[6];
    const i64 wide = (i64)(addend + (u64)((i64)(i32)in[3] * (i32)in[4]));
    i32 dot = (i32)in[7];
    for (u32 i = 0; i < 4; i++)
        dot += byte_of(in[5], i, false) * byte_of(in[6], i, true);
    out[0] = bits_of(product + c);
    out[1] = bits_of(fmaf(a, b, c));
    out[2] = bits_of(a / b);
    out[3] = bits_of(sqrtf(fabsf(c)));
    out[4] = (u32)wide;
    out[5] = (u32)((u64)wide >> 32);
    out[6] = bits_of((float)wide);
    out[7] = (u32)dot;
}

/* c[16][8] = A[16][32] B[32][8]: A's registers are words 3..6, B's words 6..7 of each lane. */
static void product_answers(u32 words[LANES][INPUTS], u32 answers[LANES][ANSWERS])
{
    i32 a[16][32], b[32][8];
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 i = 0; i < 16; i++) {
            const u32 slot = i / 4, byte = i % 4, k = lane % 4 * 4 + byte;
            a[lane / 4 + slot % 2 * 8][k + slot / 2 * 16] = byte_of(words[lane][3 + slot], byte,
                                                                    false);
            if (slot < 2)
                b[k + slot * 16][lane / 4] = byte_of(words[lane][6 + slot], byte, true);
        }
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 i = 0; i < 4; i++) {
            const u32 row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            i32 sum = (i32)i + 1;
            for (u32 k = 0; k < 32; k++)
                sum += a[row][k] * b[k][column];
            answers[lane][8 + i] = (u32)sum;
        }
}

static void hadamard_answers(u32 words[LANES][INPUTS], u32 answers[LANES][ANSWERS])
{
    float v[LANES * 4];
    for (u32 i = 0; i < LANES * 4; i++)
        v[i] = (float)(i32)words[i / 4][3 + i % 4];
    for (u32 step = 1; step < LANES * 4; step *= 2)
        for (u32 i = 0; i < LANES * 4; i++)
            if ((i & step) == 0) {
                const float lower = v[i], upper = v[i + step];
                v[i] = lower + upper;
                v[i + step] = lower - upper;
            }
    for (u32 i = 0; i < LANES * 4; i++)
        answers[i / 4][12 + i % 4] = bits_of(v[i]);
}

static int compare(const struct jit *jit, u32 expected[LANES][ANSWERS], u32 found[LANES][ANSWERS],
                   struct error *error)
{
    static const char *const names[ANSWERS] = {"a*b+c",
                                               "fma",
                                               "division",
                                               "square root",
                                               "i64 multiply-add",
                                               "i64 multiply-add",
                                               "i64 to f32",
                                               "byte dot",
                                               "tensor product",
                                               "tensor product",
                                               "tensor product",
                                               "tensor product",
                                               "Hadamard",
                                               "Hadamard",
                                               "Hadamard",
                                               "Hadamard"};
    const struct device_info *info = device_info(jit->device);
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 i = 0; i < ANSWERS; i++)
            if (expected[lane][i] != found[lane][i])
                return error_set(
                    error, ERROR_DEVICE,
                    "%s with %s computes %s wrongly: lane %u, expected bits %08x, found "
                    "%08x; no kernel is kept, install another driver or compiler",
                    info->name, info->compiler, names[i], lane, expected[lane][i], found[lane][i]);
    return 0;
}

int jit_check_run(struct jit *jit, struct error *error)
{
    u32 words[LANES][INPUTS], expected[LANES][ANSWERS], found[LANES][ANSWERS];
    dptr input = 0, output = 0;
    int status = -1;
    make_words(words);
    for (u32 lane = 0; lane < LANES; lane++)
        scalar_answers(words[lane], expected[lane]);
    product_answers(words, expected);
    hadamard_answers(words, expected);
    if (device_alloc(jit->device, sizeof words, "known answers: words", &input, error) != 0 ||
        device_alloc(jit->device, sizeof found, "known answers: answers", &output, error) != 0)
        goto done;
    const u64 arguments[] = {input, output};
    if (device_copy_in(jit->device, NULL, input, words, sizeof words, error) == 0 &&
        jit_launch(jit, NULL, jit->check, arguments, COUNT_OF(arguments), error) == 0 &&
        device_copy_out(jit->device, NULL, found, output, sizeof found, error) == 0 &&
        device_sync(jit->device, NULL, error) == 0)
        status = compare(jit, expected, found, error);
done:
    device_free(jit->device, output);
    device_free(jit->device, input);
    return status;
}
