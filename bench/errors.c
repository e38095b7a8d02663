/* errors.c - the error of every decode op, and of the prompt's linears, against float64, beside two
 * other ways to compute it.
 *
 * Schemes of an op:
 *
 *   ours   the real kernels, launched as the engine launches them (host device by default)
 *   f16    fp32 arithmetic; what goes into a tensor core or to the next op is rounded to fp16 once
 *   stock  one-token decode of ExLlamaV3 on SM86 (spec exl3.md 4, 5.6, qwen3_5.md 3.4, elpis.md
 *          5.4, 8.2), emulated in C. Where the specs leave something open it is emulated as the
 *          more exact of what is possible: int8 slices of 256 k, round to nearest where SM86
 *          truncates, exact exp and rsqrt where it approximates
 *
 * An op's error counts what the op itself rounds: every scheme is measured against float64 of its
 * own inputs (inputs of linears are fp16 numbers; stock's query is the one it has rounded). Linears
 * have two truths: the affine weight of mul1 (exl3.md 2.5), and the same rounded to fp16 as the
 * codebook says; stock's int8 path and ours use the affine one.
 *
 * Figures: `relative` |error| / |y| of all elements; `normwise` the rms over elements of error /
 * size, where size is the op's natural scale (its text is in every op below: |x||w| for products,
 * sqrt(sum (p*s)^2)*|c| for P.V); `worst` the largest of these; `bound` what it cannot exceed, from
 * the scheme's constants, each named where it is summed, in units of one rounding: 2^-24 in fp32,
 * 2^-11 in fp16, 2^-8 in bf16. Bounds leave out products of roundings, and numbers below the normal
 * range: an element by element result that is smaller than 2^-14 is not counted, in no scheme.
 *
 * Files: errors_linear.h, errors_attention.h, errors_gdn.h, errors_plain.h have the decode ops and,
 * in each, the derivation of the bounds; errors_prefill.h has the linears of prompts, with schemes
 * of its own; here is what they share.
 *
 * The program fails (status 1) where ours is larger than stock, or a worst error than its bound.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "device/device.h"
#include "engine/tree.h"
#include "jit/jit.h"

#define ROWS 8
#define BLOCK 128       /* of the Hadamard transform of linears; dims of a GDN head */
#define STOCK_SLICE 256 /* k of an int8 slice of stock, the least that its kernel takes */
#define HEAD 256
#define GROUP 32 /* dims of a cache group */
#define KV_BITS 3
#define ROTARY 64
#define ARRAYS_MOST 64
#define HALF_LEAST 0x1p-14f  /* the least half of full precision */
#define EPS_BITS 0x358637bdu /* 1e-6f */

static const double u32_unit = 0x1p-24, half_unit = 0x1p-11, bf16_unit = 0x1p-8;
static const double theta = 1e7;
static const float r128 = 0.088388347648f; /* stock's 1/sqrt(128), exl3.md 3.2 */
static const double log2e = 1.4426950408889634;

enum scheme { OURS, F16, STOCK, SCHEMES };
static const char *const scheme_names[] = {"ours", "f16", "stock"};

enum input { NORMED, GATED, GLU }; /* how the activations of a linear are distributed */

struct linear_shape {
    const char *name;
    u32 k, n, bits;
    enum input input;
    bool half_out; /* stock hands the result on in fp16 */
};

struct sizes {
    const char *name;
    const struct linear_shape *linears;
    u32 linear_count;
    u32 hidden, intermediate, q_heads, kv_heads, gdn_k_heads, gdn_v_heads, steps;
    u32 keys[2], positions[3];
};

static const struct linear_shape linears_27b[] = {
    {"qkv z", 5120, 16384, 4, NORMED, false}, {"attention q k v", 5120, 14336, 4, NORMED, true},
    {"out", 6144, 5120, 4, GATED, false},     {"gate up", 5120, 34816, 4, NORMED, true},
    {"down", 17408, 5120, 4, GLU, false},     {"head", 5120, 248320, 6, NORMED, true},
};
static const struct linear_shape linears_tiny[] = {
    {"qkv z", 256, 2048, 4, NORMED, false},  {"out", 768, 256, 4, GATED, false},
    {"gate up", 256, 1536, 4, NORMED, true}, {"down", 768, 256, 4, GLU, false},
    {"head", 256, 4096, 6, NORMED, true},
};
static const struct sizes all_sizes[] = {
    {"27b",
     linears_27b,
     COUNT_OF(linears_27b),
     5120,
     17408,
     24,
     4,
     16,
     48,
     1024,
     {1024, 32768},
     {1023, 32767, 262143}},
    {"tiny",
     linears_tiny,
     COUNT_OF(linears_tiny),
     256,
     768,
     6,
     1,
     2,
     6,
     64,
     {128, 512},
     {127, 1023, 262143}},
};

/* Errors of one scheme against one truth. */
struct meter {
    double error, size, share, worst; /* sums of squares of error, y, error / scale; the largest */
    u64 count;
};

struct op {
    char name[48], what[96];
    const char *over; /* the scale of normwise errors */
    struct meter meters[SCHEMES];
    struct meter rounded[SCHEMES]; /* against fp16 weights; count 0: the op has none */
    double bounds[SCHEMES];
};

struct bench {
    struct device_options device_options;
    struct jit_options jit_options;
    const char *shapes, *only, *model, *hidden;
    u32 columns, steps, keys;
    u64 seed;
    bool json;
    char command[256];
    const struct sizes *sizes;
    struct device *device;
    struct jit *jit;
    dptr arrays[ARRAYS_MOST];
    u32 array_count;
    u32 ops, faults;
    struct error error;
};

static void must(struct bench *bench, int status)
{
    if (status < 0) {
        fprintf(stderr, "errors: %s\n", bench->error.text);
        exit(bench->error.code);
    }
}

/* ---- device */

/* A device array of zeros, or a copy. */
static dptr array_new(struct bench *bench, size_t bytes, const void *data)
{
    dptr address = 0;
    if (bench->array_count == ARRAYS_MOST) {
        fprintf(stderr, "errors: more than %d arrays\n", ARRAYS_MOST);
        exit(ERROR_USAGE);
    }
    must(bench, device_alloc(bench->device, bytes, "errors", &address, &bench->error));
    bench->arrays[bench->array_count++] = address;
    if (data)
        must(bench, device_copy_in(bench->device, NULL, address, data, bytes, &bench->error));
    return address;
}

static void array_write(struct bench *bench, dptr to, const void *data, size_t bytes)
{
    must(bench, device_copy_in(bench->device, NULL, to, data, bytes, &bench->error));
}

static void *array_read(struct bench *bench, dptr from, size_t bytes)
{
    void *copy = memory_alloc(bytes);
    must(bench, device_copy_out(bench->device, NULL, copy, from, bytes, &bench->error));
    must(bench, device_sync(bench->device, NULL, &bench->error));
    return copy;
}

static void arrays_clear(struct bench *bench)
{
    while (bench->array_count > 0)
        device_free(bench->device, bench->arrays[--bench->array_count]);
}

/* A list of one address, as kernels with parts take it. */
static dptr pointer_list(struct bench *bench, dptr address)
{
    const u64 list[4] = {address};
    return array_new(bench, sizeof list, list);
}

static struct jit_kernel *kernel_of(struct bench *bench, const char *schedule,
                                    const struct jit_parameter *parameters)
{
    struct jit_kernel *kernel = NULL;
    must(bench, jit_request(bench->jit, schedule, parameters, &kernel, &bench->error));
    must(bench, jit_build(bench->jit, &bench->error));
    return kernel;
}

#define KERNEL_OF(bench, schedule, ...) \
    kernel_of(bench, schedule, (const struct jit_parameter[]){__VA_ARGS__, {NULL, 0, NULL}})

static void launch(struct bench *bench, const struct jit_kernel *kernel, const u64 *arguments,
                   u32 count)
{
    must(bench, jit_launch(bench->jit, NULL, kernel, arguments, count, &bench->error));
    must(bench, device_sync(bench->device, NULL, &bench->error));
}

#define LAUNCH(bench, kernel, ...) \
    launch(bench, kernel, (const u64[]){__VA_ARGS__}, COUNT_OF(((const u64[]){__VA_ARGS__})))

/* The descriptor of a chain of committed rows (engine/tree.h). */
static void describe(u32 words[ROUND_WORDS], u32 base, u32 rows)
{
    const u32 tokens[ROWS] = {0};
    tree_describe_chain(tokens, rows, base, words);
}

static dptr chain_of(struct bench *bench, u32 base, u32 rows)
{
    u32 words[ROUND_WORDS];
    describe(words, base, rows);
    return array_new(bench, sizeof words, words);
}

/* ---- numbers */

static double uniform(struct bench *bench) /* [-1, 1) */
{
    return (double)(i64)random_next(&bench->seed) * 0x1p-63;
}

static double normal(struct bench *bench)
{
    const double radius = sqrt(-2 * log(((double)(random_next(&bench->seed) >> 11) + 1) * 0x1p-53));
    return radius * cos(3.141592653589793 * uniform(bench));
}

/* To nearest, ties to even: to `bits` bits of significand, steps not below `least`. */
static double rounded_to(double value, int bits, double least)
{
    if (value == 0 || !isfinite(value))
        return value;
    const double step = ldexp(1, ilogb(value) - bits + 1);
    const double unit = step < least ? least : step;
    return rint(value / unit) * unit;
}

static float to_half(double value)
{
    const double half = rounded_to(value, 11, 0x1p-24);
    return fabs(half) > 65504 ? copysignf(INFINITY, (float)half) : (float)half;
}

static float to_bf16(double value)
{
    return (float)rounded_to(value, 8, 0x1p-133);
}

static float to_bf16_toward_zero(float value)
{
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0xffff0000u;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* The bits of a number that is exactly a half. */
static u16 half_bits(float value)
{
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    const u32 size = bits & 0x7fffffffu;
    const u32 half = fabsf(value) < HALF_LEAST ? (u32)ldexpf(fabsf(value), 24)
                                               : (size - 0x38000000u) >> 13;
    return (u16)((bits >> 16 & 0x8000u) | half);
}

static double half_value(u16 bits)
{
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double size = exponent ? ldexp(mantissa | 1024, exponent - 25) : ldexp(mantissa, -24);
    return bits >> 15 ? -size : size;
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* SiLU as stock's half kernels do it: every step rounded (exl3.md 4). */
static float silu_half(float x)
{
    const float e = to_half(exp(-(double)x));
    return to_half(x * to_half(1 / (double)to_half(1 + (double)e)));
}

/* Unnormalised transforms; stages on index bits 0.. ascending. */
static void hadamard(double *v, u32 size)
{
    for (u32 step = 1; step < size; step *= 2)
        for (u32 i = 0; i < size; i++)
            if (!(i & step)) {
                const double a = v[i], b = v[i + step];
                v[i] = a + b;
                v[i + step] = a - b;
            }
}

static void hadamard_f32(float *v, u32 size)
{
    for (u32 step = 1; step < size; step *= 2)
        for (u32 i = 0; i < size; i++)
            if (!(i & step)) {
                const float a = v[i], b = v[i + step];
                v[i] = a + b;
                v[i + step] = a - b;
            }
}

/* Activations: normal numbers, one channel in 200 is 8 to 24 times as large as the rest. */
static float *outlier_channels(struct bench *bench, u32 width)
{
    float *gains = memory_alloc(width * sizeof *gains);
    for (u32 i = 0; i < width; i++)
        gains[i] = random_next(&bench->seed) % 200 == 0 ? (float)(16 + 8 * uniform(bench)) : 1;
    return gains;
}

static float *random_stream(struct bench *bench, u32 width)
{
    float *x = memory_alloc((size_t)ROWS * width * sizeof *x),
          *gains = outlier_channels(bench, width);
    for (u32 i = 0; i < ROWS * width; i++)
        x[i] = (float)(0.7 * normal(bench) * gains[i % width]);
    memory_free(gains);
    return x;
}

/* Weights as conversions have them: centre (1 + jitter u), bf16. */
static float *random_weights(struct bench *bench, u32 count, double centre, double jitter)
{
    float *w = memory_alloc(count * sizeof *w);
    for (u32 i = 0; i < count; i++)
        w[i] = to_bf16(centre + jitter * uniform(bench));
    return w;
}

/* ---- figures */

static void meter_add(struct meter *meter, double got, double truth, double scale)
{
    const double error = got - truth, share = fabs(error) / scale;
    meter->error += error * error;
    meter->size += truth * truth;
    meter->share += share * share;
    meter->worst = share > meter->worst || isnan(share) ? share : meter->worst;
    meter->count++;
}

/* An element of a result that two schemes hand on in fp16. */
static void add_element(struct op *op, double ours, double f16, double stock, double truth,
                        double scale)
{
    if (fabs(truth) < HALF_LEAST)
        return;
    meter_add(&op->meters[OURS], ours, truth, scale);
    meter_add(&op->meters[F16], f16, truth, scale);
    meter_add(&op->meters[STOCK], stock, truth, scale);
}

static double relative(const struct meter *meter)
{
    return sqrt(meter->error / meter->size);
}

static double normwise(const struct meter *meter)
{
    return sqrt(meter->share / (double)meter->count);
}

static bool is_wanted(const struct bench *bench, const char *name)
{
    return !bench->only || strncmp(name, bench->only, strlen(bench->only)) == 0;
}

static void print_json(const struct bench *bench, const struct op *op, enum scheme scheme)
{
    const struct device_info *info = device_info(bench->device);
    const struct meter *meter = &op->meters[scheme], *rounded = &op->rounded[scheme];
    char date[32];
    time_t now = (time_t)clock_unix();
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S+00:00", gmtime(&now));
    printf("{\"date\": \"%s\", \"benchmark\": \"errors\", \"machine\": \"%s %s\", "
           "\"variant\": \"%s, %s\", \"command\": \"%s\", \"unit\": \"rms of error / %s\", "
           "\"values\": [%.4g], \"median\": %.4g, \"op\": \"%s\", \"scheme\": \"%s\", "
           "\"detail\": \"%s\", \"n\": %" PRIu64 ", \"relative\": %.4g, \"worst\": %.4g, "
           "\"bound\": %.4g",
           date, info->name, info->driver, op->name, scheme_names[scheme], bench->command, op->over,
           normwise(meter), normwise(meter), op->name, scheme_names[scheme], op->what, meter->count,
           relative(meter), meter->worst, op->bounds[scheme]);
    if (rounded->count)
        printf(", \"relative_rounded\": %.4g, \"normwise_rounded\": %.4g", relative(rounded),
               normwise(rounded));
    printf("}\n");
}

static void print_row(const struct op *op, enum scheme scheme)
{
    const struct meter *meter = &op->meters[scheme], *rounded = &op->rounded[scheme];
    printf("%-28s %-5s  %9.2e  %9.2e  %9.2e  %9.2e", scheme == OURS ? op->name : "",
           scheme_names[scheme], relative(meter), normwise(meter), meter->worst,
           op->bounds[scheme]);
    if (rounded->count)
        printf("  %9.2e", relative(rounded));
    printf("\n");
}

/* Not larger, and a number. */
static void demand(struct bench *bench, const struct op *op, const char *what, double value,
                   double limit)
{
    if (value <= limit)
        return;
    bench->faults++;
    fflush(stdout);
    fprintf(stderr, "errors: %s: %s is %.4g, expected at most %.4g\n", op->name, what, value,
            limit);
}

static void judge(struct bench *bench, const struct op *op)
{
    const struct meter *ours = &op->meters[OURS], *stock = &op->meters[STOCK];
    demand(bench, op, "relative rms of ours against stock's", relative(ours), relative(stock));
    demand(bench, op, "normwise rms of ours against stock's", normwise(ours), normwise(stock));
    demand(bench, op, "bound of ours against stock's", op->bounds[OURS], op->bounds[STOCK]);
    if (op->rounded[OURS].count)
        demand(bench, op, "relative rms of ours, rounded weights, against stock's",
               relative(&op->rounded[OURS]), relative(&op->rounded[STOCK]));
    for (enum scheme scheme = 0; scheme < SCHEMES; scheme++)
        demand(bench, op, scheme_names[scheme], op->meters[scheme].worst, op->bounds[scheme]);
}

static void report(struct bench *bench, const struct op *op)
{
    if (!is_wanted(bench, op->name))
        return;
    for (enum scheme scheme = 0; scheme < SCHEMES; scheme++)
        if (bench->json)
            print_json(bench, op, scheme);
        else
            print_row(op, scheme);
    fflush(stdout);
    judge(bench, op);
    bench->ops++;
}

#include "errors_linear.h"
#include "errors_prefill.h"
#include "errors_attention.h"
#include "errors_gdn.h"
#include "errors_plain.h"

/* ---- program */

static const struct command command_errors = {
    .name = "errors",
    .summary = "errors of the decode ops and of the linears of prompts against float64",
    .synopsis = "errors [OPTION...]",
    .description =
        "Measures the error of every decode op against float64: ours, fp16 activations with fp32\n"
        "sums, and stock one-token decode. Then that of the linears of prompts: ours, fp16 sums "
        "in\n"
        "slices of 32, and stock's reconstruction. Fails where ours is larger than stock's.",
};

static void read_options(struct bench *bench, int argc, char **argv)
{
    *bench = (struct bench){
        .shapes = "27b", .columns = 1024, .seed = 1, .device_options.device = "host"};
    const struct option_entry entries[] = {
        {0, "device", "NAME", "host, cuda or cuda:N. Default: host.", OPTION_TEXT,
         &bench->device_options.device},
        {0, "cache", "FOLDER", "Kernel cache.", OPTION_TEXT, &bench->jit_options.cache},
        {0, "schedules", "FOLDER", "Schedules that replace the built-in ones.", OPTION_TEXT,
         &bench->jit_options.schedules},
        {0, "plan-seed", "NUMBER", "Random legal tuning.", OPTION_U64,
         &bench->jit_options.plan_seed},
        {0, "shapes", "NAME", "27b or tiny. Default: 27b.", OPTION_TEXT, &bench->shapes},
        {0, "only", "OP", "Only the ops whose name begins so.", OPTION_TEXT, &bench->only},
        {0, "columns", "COUNT", "Columns of a linear, 0: all. Default: 1024.", OPTION_U32,
         &bench->columns},
        {0, "steps", "COUNT", "Tokens of the recurrence. Default: 1024, tiny 64.", OPTION_U32,
         &bench->steps},
        {0, "keys", "COUNT", "Keys of P.V. Default: 1024 and 32768, tiny 128 and 512.", OPTION_U32,
         &bench->keys},
        {0, "model", "FOLDER", "Also linears of this model, on what --hidden has.", OPTION_TEXT,
         &bench->model},
        {0, "hidden", "FILE", "Its stream: safetensors, hidden f32 [rows, layers, width].",
         OPTION_TEXT, &bench->hidden},
        {0, "seed", "NUMBER", "Of the random numbers. Default: 1.", OPTION_U64, &bench->seed},
        {0, "json", NULL, "Print lines for bench/results.", OPTION_FLAG, &bench->json},
    };
    snprintf(bench->command, sizeof bench->command, "build/bench/errors");
    for (int i = 1; i < argc; i++) {
        const size_t used = strlen(bench->command);
        snprintf(bench->command + used, sizeof bench->command - used, " %s", argv[i]);
    }
    char *none[1];
    options_parse(&command_errors, entries, COUNT_OF(entries), argc, argv, none, 0, 0);
    for (size_t i = 0; i < COUNT_OF(all_sizes); i++)
        if (strcmp(all_sizes[i].name, bench->shapes) == 0)
            bench->sizes = &all_sizes[i];
    if (!bench->sizes || bench->columns % BLOCK != 0 || bench->steps % ROWS != 0 ||
        (bench->keys && bench->keys < ROWS) || bench->keys > 262144 ||
        !bench->model != !bench->hidden) {
        fprintf(stderr,
                "errors: expected --shapes 27b or tiny, --columns a multiple of %d, "
                "--steps a multiple of %d, --keys %d to 262144, --model with --hidden\n",
                BLOCK, ROWS, ROWS);
        exit(ERROR_USAGE);
    }
    if (bench->steps == 0)
        bench->steps = bench->sizes->steps;
}

int main(int argc, char **argv)
{
    struct bench bench;
    read_options(&bench, argc, argv);
    must(&bench, device_open(&bench.device, &bench.device_options, &bench.error));
    must(&bench, jit_open(&bench.jit, bench.device, &bench.jit_options, &bench.error));
    const struct device_info *info = device_info(bench.device);
    if (!bench.json)
        printf("%s %s, shapes of %s\n\n%-28s %-5s  %9s  %9s  %9s  %9s  %9s\n", info->name,
               info->driver, bench.shapes, "", "", "relative", "normwise", "worst", "bound",
               "rounded");
    run_linears(&bench);
    run_prefill(&bench);
    run_attention(&bench);
    run_gdn(&bench);
    run_plain(&bench);
    if (bench.ops == 0) {
        fprintf(stderr, "errors: no op begins with \"%s\"\n", bench.only);
        bench.error.code = ERROR_USAGE;
    } else if (!bench.json && bench.faults == 0) {
        printf("\nours is not larger than stock in any of %u ops; no error exceeds its bound\n",
               bench.ops);
    }
    jit_close(bench.jit);
    device_close(bench.device);
    return bench.error.code ? bench.error.code : bench.faults > 0;
}
