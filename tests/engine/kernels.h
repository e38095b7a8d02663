/* kernels.h - what the kernel tests share: one device (host, or what ELPIS_TEST_DEVICE names), one
 * jit without a cache folder, device arrays, random numbers, comparisons that print both values.
 *
 * A test makes a struct array for every argument, launches, and reads the array's host copy
 * back. All arrays live until kernels_clear. Errors end the test with the sentence. With
 * ELPIS_TEST_CHECK set, the host device looks for races and writes outside of arrays.
 */
#ifndef ELPIS_TEST_KERNELS_H
#define ELPIS_TEST_KERNELS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/device.h"
#include "jit/jit.h"
#include "model/model.h"
#include "whole.h"

#define UNUSED __attribute__((unused))

static struct device *test_device;
static struct jit *test_jit;
static dptr test_arrays[512];
static u32 test_array_count;

static int kernels_open(void **state)
{
    const char *name = getenv("ELPIS_TEST_DEVICE");
    struct device_options options = {.device = name ? name : "host"};
    const struct jit_options jit_options = {.memory_only = true};
    struct error error = {0};
    (void)state;
    options.host_check = getenv("ELPIS_TEST_CHECK") != NULL;
    if (device_open(&test_device, &options, &error) ||
        jit_open(&test_jit, test_device, &jit_options, &error)) {
        print_error("%s\n", error.text);
        return -1;
    }
    return 0;
}

static int kernels_close(void **state)
{
    (void)state;
    jit_close(test_jit);
    device_close(test_device);
    return 0;
}

/* Tuning lists differ between the devices: a test that pins values asks here which to take. */
UNUSED static bool on_gpu(void)
{
    return device_info(test_device)->kind == DEVICE_CUDA;
}

/* Frees the arrays of a test. */
static int kernels_clear(void **state)
{
    (void)state;
    while (test_array_count > 0)
        device_free(test_device, test_arrays[--test_array_count]);
    return 0;
}

static void need(int result, const struct error *error)
{
    if (result)
        fail_msg("%s", error->text);
}

/* A device array of zeros, or a copy of host data. */
static dptr array_new(size_t bytes, const void *data)
{
    struct error error = {0};
    dptr address = 0;
    assert_true(test_array_count < COUNT_OF(test_arrays));
    need(device_alloc(test_device, bytes, "test", &address, &error), &error);
    test_arrays[test_array_count++] = address;
    if (data)
        need(device_copy_in(test_device, NULL, address, data, bytes, &error), &error);
    return address;
}

UNUSED static void array_write(dptr to, const void *data, size_t bytes)
{
    struct error error = {0};
    need(device_copy_in(test_device, NULL, to, data, bytes, &error), &error);
}

/* A host copy; free() it. */
static void *array_read(dptr from, size_t bytes)
{
    struct error error = {0};
    void *copy = malloc(bytes);
    need(device_copy_out(test_device, NULL, copy, from, bytes, &error), &error);
    return copy;
}

/* A compiled kernel; parameters end with {0}. */
static struct jit_kernel *kernel_of(const char *schedule, const struct jit_parameter *parameters)
{
    struct error error = {0};
    struct jit_kernel *kernel = NULL;
    need(jit_request(test_jit, schedule, parameters, &kernel, &error), &error);
    need(jit_build(test_jit, &error), &error);
    return kernel;
}

#define KERNEL_OF(schedule, ...) \
    kernel_of(schedule, (const struct jit_parameter[]){__VA_ARGS__, {NULL, 0, NULL}})

static void launch(const struct jit_kernel *kernel, const u64 *arguments, u32 count)
{
    struct error error = {0};
    need(jit_launch(test_jit, NULL, kernel, arguments, count, &error), &error);
    need(device_sync(test_device, NULL, &error), &error);
}

#define LAUNCH(kernel, ...) \
    launch(kernel, (const u64[]){__VA_ARGS__}, COUNT_OF(((const u64[]){__VA_ARGS__})))

/* Tiles as in a file -> packs of four, which every kernel that decodes EXL3 expects. */
UNUSED static void pack_trellis(dptr trellis, u32 k, u32 n, u32 bits)
{
    struct jit_kernel *kernel = KERNEL_OF("trellis_pack", JIT_NUMBER("bits", bits));
    LAUNCH(kernel, trellis, k / 16 * (n / 64));
}

/* ---- numbers */

static u64 test_seed = 1;

UNUSED static u32 random_word(void)
{
    test_seed = test_seed * 6364136223846793005u + 1442695040888963407u;
    return (u32)(test_seed >> 32);
}

UNUSED static dptr random_words(size_t count)
{
    u32 *words = malloc(count * 4);
    for (size_t i = 0; i < count; i++)
        words[i] = random_word();
    const dptr address = array_new(count * 4, words);
    free(words);
    return address;
}

/* About normal, standard deviation 1. */
UNUSED static float random_float(void)
{
    double sum = -6;
    for (u32 i = 0; i < 12; i++)
        sum += random_word() * 0x1p-32;
    return (float)sum;
}

UNUSED static float *random_floats(size_t count, float scale)
{
    float *values = malloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = random_float() * scale;
    return values;
}

UNUSED static float half_value(u16 bits)
{
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float size = exponent == 0    ? ldexpf((float)mantissa, -24)
                       : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                        : ldexpf((float)(mantissa | 1024), exponent - 25);
    return bits >> 15 ? -size : size;
}

/* Round to nearest even; finite values below 65520. */
UNUSED static u16 half_bits(float value)
{
    const float size = fabsf(value);
    int exponent = -14;
    if (size > 0)
        frexpf(size, &exponent);
    const int unit = (exponent < -13 ? -13 : exponent) - 11; /* of the last place */
    const u32 steps = (u32)nearbyintf(ldexpf(size, -unit));
    const u32 bits = exponent < -13 ? steps : steps + (u32)((exponent + 13) << 10);
    return (u16)(bits | (signbit(value) ? 0x8000u : 0));
}

UNUSED static u16 *halves_of(const float *values, size_t count)
{
    u16 *halves = malloc(count * sizeof *halves);
    for (size_t i = 0; i < count; i++)
        halves[i] = half_bits(values[i]);
    return halves;
}

UNUSED static double silu_of(double x)
{
    return x / (1 + exp(-x));
}

/* Relative error over an array: |a - b| / |b|, both as vectors. */
UNUSED static void assert_close(const float *got, const double *wanted, size_t count, double limit)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
        size += wanted[i] * wanted[i];
    }
    const double error = sqrt(difference / size);
    if (!(error <= limit))
        fail_msg("relative error %.3g, limit %.3g; first values %.7g and %.7g", error, limit,
                 got[0], wanted[0]);
}

UNUSED static void assert_same_floats(const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("element %zu: %.9g and %.9g", i, a[i], b[i]);
}

UNUSED static void assert_zeros(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] != 0)
            fail_msg("element %zu: %.9g, expected 0", i, values[i]);
}

#endif
