/* linear.c - the decode linear at real shapes, as a share of the copy bandwidth.
 *
 * For every group of matrices that one launch computes (the 27B's by default), the three kernels
 * linear_input, linear_main, linear_output run as the engine runs them, with Hadamard transforms,
 * exponents, int64 sums and epilogue. One graph holds `copies` of the three, each on weights of its
 * own, so that together they are larger than any L2:
 *
 *   x, y f32 [8, k] -> act, exponents, sums of digits -> u64 sums [8, columns] -> f32 [8, n] a part
 *   weights of a copy: the parts one behind the other, u32 [k/16, n/16, 8*bits]
 *
 * Reported a shape: microseconds of the three together and of linear_main alone, and the weights'
 * bytes over that time as a share of what a device-to-device copy moves (its reads and writes
 * counted). Values of the weights do not change the time; they are random all the same.
 *
 * Not here: whether the results are right (tests/engine), registers and cycles
 * (`elpis kernels --resources`).
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "device/device.h"
#include "jit/jit.h"

#define PARTS_MOST 4
#define ROWS_MOST 8                  /* rows of a decode pass */
#define WEIGHTS_LEAST (512ull << 20) /* bytes of all copies: ten times the largest L2 */
#define COPIES_MOST 64
#define RUNS_MOST 100
#define PARAMETERS_MOST 20

struct shape {
    const char *name, *input_mode, *output_mode;
    u32 k, n[PARTS_MOST], bits;
};

static const struct shape shapes_27b[] = {
    {"GDN in: qkv, z", "norm", "store", 5120, {10240, 6144}, 4},
    {"attention in: q, k, v", "norm", "store", 5120, {12288, 1024, 1024}, 4},
    {"out", "gdn", "residual", 6144, {5120}, 4},
    {"gate, up", "norm", "store", 5120, {17408, 17408}, 4},
    {"down", "glu", "residual", 17408, {5120}, 4},
    {"head", "norm", "store", 5120, {248320}, 6},
};
static const struct shape shapes_tiny[] = {
    {"GDN in: qkv, z", "norm", "store", 256, {1280, 768}, 4},
    {"out", "gdn", "residual", 768, {256}, 4},
    {"gate, up", "norm", "store", 256, {768, 768}, 4},
    {"down", "glu", "residual", 768, {256}, 4},
    {"head", "norm", "store", 256, {4096}, 6},
};

struct options {
    struct device_options device;
    struct jit_options jit;
    const char *shapes, *pins, *only;
    u32 rows, runs;
    bool json;
};

/* One shape on the device. Addresses of parts are arrays in device memory, as kernels take them. */
struct work {
    const struct shape *shape;
    u32 parts, columns, copies, blocks;
    u64 weight_bytes; /* of one copy */
    struct jit_kernel *input, *main, *output;
    dptr x, y, squares, norm, suh, svh, act, exponents, digits, sums, outputs, bad, round, scales;
    dptr weights, weight_tables; /* [copies] bytes; [copies][PARTS_MOST] addresses */
    dptr allocations[17];
    u32 allocation_count;
};

struct bench {
    struct options options;
    struct device *device;
    struct jit *jit;
    struct device_event *begin, *end;
    double copy_bandwidth; /* bytes a second */
    u64 random;
    struct error error;
};

static _Noreturn void stop(const struct error *error)
{
    fprintf(stderr, "linear: %s\n", error->text);
    exit(error->code);
}

static void must(struct bench *bench, int status)
{
    if (status < 0)
        stop(&bench->error);
}

static dptr allocate(struct bench *bench, struct work *work, u64 bytes, const char *label)
{
    dptr address = 0;
    must(bench, device_alloc(bench->device, bytes, label, &address, &bench->error));
    assert(work->allocation_count < COUNT_OF(work->allocations));
    work->allocations[work->allocation_count++] = address;
    return address;
}

static void copy_in(struct bench *bench, dptr to, const void *from, u64 bytes)
{
    must(bench, device_copy_in(bench->device, NULL, to, from, bytes, &bench->error));
    must(bench, device_sync(bench->device, NULL, &bench->error));
}

static void fill_random(struct bench *bench, dptr to, u64 bytes)
{
    enum { CHUNK = 1 << 20 };
    u64 *chunk = memory_alloc(CHUNK);
    for (u64 at = 0; at < bytes; at += CHUNK) {
        for (size_t i = 0; i < CHUNK / sizeof *chunk; i++)
            chunk[i] = random_next(&bench->random);
        copy_in(bench, to + at, chunk, bytes - at < CHUNK ? bytes - at : CHUNK);
    }
    memory_free(chunk);
}

/* f32 in [-1, 1) */
static void fill_floats(struct bench *bench, dptr to, u32 count)
{
    float *values = memory_alloc(count * sizeof *values);
    for (u32 i = 0; i < count; i++)
        values[i] = (float)((double)(i64)random_next(&bench->random) * 0x1p-63);
    copy_in(bench, to, values, count * sizeof *values);
    memory_free(values);
}

/* f16 +1 and -1, as the signs of a conversion mostly are */
static void fill_signs(struct bench *bench, dptr to, u32 count)
{
    u16 *values = memory_alloc(count * sizeof *values);
    for (u32 i = 0; i < count; i++)
        values[i] = random_next(&bench->random) & 1 ? 0x3c00 : 0xbc00;
    copy_in(bench, to, values, count * sizeof *values);
    memory_free(values);
}

/* ---- one shape */

/* "k_warps=4,unit=2" -> parameters that pin tuning values; text holds the names. */
static void add_pins(const char *pins, char *text, size_t size, struct jit_parameter *list,
                     u32 room)
{
    snprintf(text, size, "%s", pins ? pins : "");
    for (char *at = strtok(text, ","); at && room > 0; at = strtok(NULL, ","), room--) {
        char *value = strchr(at, '=');
        if (!value) {
            fprintf(stderr, "linear: --set expects NAME=VALUE, got %s\n", at);
            exit(ERROR_USAGE);
        }
        *value++ = 0;
        const bool number = *value >= '0' && *value <= '9';
        *list++ = (struct jit_parameter){at, atoi(value), number ? NULL : value};
    }
}

static void request(struct bench *bench, struct work *work)
{
    const struct shape *shape = work->shape;
    const struct jit_parameter input[] = {
        JIT_NUMBER("k", shape->k),        JIT_NUMBER("k_valid", shape->k),
        JIT_NUMBER("parts", work->parts), JIT_TEXT("mode", shape->input_mode),
        JIT_NUMBER("eps", 0x358637bd),    {0},
    };
    struct jit_parameter linear[PARAMETERS_MOST] = {
        JIT_NUMBER("k", shape->k),     JIT_NUMBER("n0", shape->n[0]),
        JIT_NUMBER("n1", shape->n[1]), JIT_NUMBER("n2", shape->n[2]),
        JIT_NUMBER("n3", shape->n[3]), JIT_NUMBER("bits", shape->bits),
        JIT_TEXT("codebook", "mul1"),
    };
    char pins[256];
    add_pins(bench->options.pins, pins, sizeof pins, linear + 7, PARAMETERS_MOST - 8);
    const struct jit_parameter output[] = {
        JIT_NUMBER("n0", shape->n[0]),
        JIT_NUMBER("n1", shape->n[1]),
        JIT_NUMBER("n2", shape->n[2]),
        JIT_NUMBER("n3", shape->n[3]),
        JIT_TEXT("codebook", "mul1"),
        JIT_TEXT("mode", shape->output_mode),
        {0},
    };
    struct error *error = &bench->error;
    must(bench, jit_request(bench->jit, "linear_input", input, &work->input, error));
    must(bench, jit_request(bench->jit, "linear_main", linear, &work->main, error));
    must(bench, jit_request(bench->jit, "linear_output", output, &work->output, error));
}

static void measure_sizes(struct work *work)
{
    const struct shape *shape = work->shape;
    for (u32 part = 0; part < PARTS_MOST && shape->n[part]; part++) {
        work->parts = part + 1;
        work->columns += shape->n[part];
    }
    work->blocks = shape->k / 128;
    work->weight_bytes = (u64)shape->k * work->columns * shape->bits / 8;
    work->copies = (u32)((WEIGHTS_LEAST + work->weight_bytes - 1) / work->weight_bytes);
    if (work->copies > COPIES_MOST)
        work->copies = COPIES_MOST;
}

/* Tables of part addresses: signs of both sides, outputs, and the weights of every copy. */
static void point_parts(struct bench *bench, struct work *work, dptr suh, dptr svh, dptr outputs)
{
    const struct shape *shape = work->shape;
    u64 tables[3][PARTS_MOST] = {{0}}, weights[COPIES_MOST][PARTS_MOST] = {{0}};
    u64 column = 0;
    for (u32 part = 0; part < work->parts; part++) {
        tables[0][part] = suh + (u64)part * shape->k * 2;
        tables[1][part] = svh + column * 2;
        tables[2][part] = outputs + column * ROWS_MOST * 4;
        for (u32 copy = 0; copy < work->copies; copy++)
            weights[copy][part] = work->weights + copy * work->weight_bytes +
                                  (u64)shape->k * column * shape->bits / 8;
        column += shape->n[part];
    }
    const dptr table = allocate(bench, work, sizeof tables, "tables");
    copy_in(bench, table, tables, sizeof tables);
    work->suh = table;
    work->svh = table + sizeof tables[0];
    work->outputs = table + 2 * sizeof tables[0];
    work->weight_tables = allocate(bench, work, sizeof weights, "weight tables");
    copy_in(bench, work->weight_tables, weights, sizeof weights);
}

static void prepare(struct bench *bench, struct work *work)
{
    const u32 k = work->shape->k, wide = k > work->columns ? k : work->columns;
    const u64 blocks_bytes = (u64)work->parts * ROWS_MOST * work->blocks * 4;
    work->x = allocate(bench, work, (u64)ROWS_MOST * k * 4, "x");
    work->y = allocate(bench, work, (u64)ROWS_MOST * k * 4, "y");
    work->squares = allocate(bench, work, (u64)ROWS_MOST * wide / 128 * 4, "squares");
    work->norm = allocate(bench, work, (u64)k * 4, "norm");
    work->act = allocate(bench, work, (u64)work->parts * (k / 16) * 64 * 4, "act");
    work->exponents = allocate(bench, work, blocks_bytes, "exponents");
    work->digits = allocate(bench, work, blocks_bytes, "digits");
    work->sums = allocate(bench, work, (u64)ROWS_MOST * work->columns * 8, "sums");
    work->scales = allocate(bench, work, PARTS_MOST * ROWS_MOST * 16, "scales");
    work->bad = allocate(bench, work, ROWS_MOST * 4, "bad");
    work->round = allocate(bench, work, 64, "round");
    work->weights = allocate(bench, work, work->weight_bytes * work->copies, "weights");
    const dptr suh = allocate(bench, work, (u64)work->parts * k * 2, "suh");
    const dptr svh = allocate(bench, work, (u64)work->columns * 2, "svh");
    const dptr outputs = allocate(bench, work, (u64)ROWS_MOST * work->columns * 4, "outputs");
    fill_floats(bench, work->x, ROWS_MOST * k);
    fill_floats(bench, work->y, ROWS_MOST * k);
    fill_floats(bench, work->norm, k);
    fill_signs(bench, suh, work->parts * k);
    fill_signs(bench, svh, work->columns);
    fill_random(bench, work->weights, work->weight_bytes * work->copies);
    copy_in(bench, work->round, &bench->options.rows, 4);
    point_parts(bench, work, suh, svh, outputs);
}

static void launch_main(struct bench *bench, const struct work *work, u32 copy)
{
    const u64 arguments[] = {work->weight_tables + copy * PARTS_MOST * 8,
                             work->act,
                             work->exponents,
                             work->digits,
                             work->sums,
                             work->scales,
                             work->round};
    must(bench,
         jit_launch(bench->jit, NULL, work->main, arguments, COUNT_OF(arguments), &bench->error));
}

static void launch_all(struct bench *bench, const struct work *work, u32 copy)
{
    const u64 input[] = {work->x,   work->y,         work->squares, work->norm, work->suh,
                         work->act, work->exponents, work->digits,  work->bad,  work->round};
    const u64 output[] = {work->sums,    work->scales, work->svh,  work->outputs,
                          work->squares, work->bad,    work->round};
    must(bench, jit_launch(bench->jit, NULL, work->input, input, COUNT_OF(input), &bench->error));
    launch_main(bench, work, copy);
    must(bench,
         jit_launch(bench->jit, NULL, work->output, output, COUNT_OF(output), &bench->error));
}

/* ---- time */

static double elapsed(struct bench *bench)
{
    double seconds = 0;
    must(bench, device_event_record(bench->device, bench->end, NULL, &bench->error));
    must(bench, device_event_sync(bench->device, bench->end, &bench->error));
    must(bench,
         device_event_elapsed(bench->device, bench->begin, bench->end, &seconds, &bench->error));
    return seconds;
}

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(const double *values, u32 count)
{
    double sorted[RUNS_MOST];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, compare_doubles);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

/* Seconds of one copy's launches, run by run, into values. */
static void time_graph(struct bench *bench, const struct work *work,
                       void (*launch)(struct bench *, const struct work *, u32), double *values)
{
    struct device_graph *graph = NULL;
    must(bench, device_graph_begin(bench->device, NULL, &bench->error));
    for (u32 copy = 0; copy < work->copies; copy++)
        launch(bench, work, copy);
    must(bench, device_graph_end(bench->device, NULL, &graph, &bench->error));
    must(bench, device_graph_launch(bench->device, NULL, graph, &bench->error)); /* not counted */
    for (u32 run = 0; run < bench->options.runs; run++) {
        must(bench, device_event_record(bench->device, bench->begin, NULL, &bench->error));
        must(bench, device_graph_launch(bench->device, NULL, graph, &bench->error));
        values[run] = elapsed(bench) / work->copies;
    }
    device_graph_destroy(bench->device, graph);
}

/* ---- the report */

/* One line of bench/results: see the README there. */
static void print_json(struct bench *bench, const struct work *work, const char *what,
                       const double *values)
{
    const struct device_info *info = device_info(bench->device);
    const u32 runs = bench->options.runs;
    char date[32];
    time_t now = (time_t)clock_unix();
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S+00:00", gmtime(&now));
    double shares[RUNS_MOST];
    for (u32 run = 0; run < runs; run++)
        shares[run] = (double)work->weight_bytes / values[run] / bench->copy_bandwidth;
    printf("{\"date\": \"%s\", \"benchmark\": \"linear\", \"machine\": \"%s %s\", "
           "\"variant\": \"%s, %s, %u rows\", \"command\": \"%s --shapes %s --rows %u\", "
           "\"unit\": \"share of copy bandwidth\", \"copy_bandwidth\": %.4g, \"values\": [",
           date, info->name, info->driver, work->shape->name, what, bench->options.rows,
           "build/bench/linear", bench->options.shapes, bench->options.rows, bench->copy_bandwidth);
    for (u32 run = 0; run < runs; run++)
        printf("%s%.4f", run ? ", " : "", shares[run]);
    printf("], \"median\": %.4f, \"seconds\": %.4g}\n", median(shares, runs), median(values, runs));
}

static void print_row(struct bench *bench, const struct work *work, const double *all,
                      const double *main_only)
{
    const u32 runs = bench->options.runs;
    const double seconds[] = {median(all, runs), median(main_only, runs)};
    const double bytes = (double)work->weight_bytes;
    printf("%-24s %6u %7u  %7.1f MB  %8.1f us  %5.1f %%  %8.1f us  %5.1f %%\n", work->shape->name,
           work->shape->k, work->columns, bytes * 1e-6, seconds[0] * 1e6,
           100 * bytes / seconds[0] / bench->copy_bandwidth, seconds[1] * 1e6,
           100 * bytes / seconds[1] / bench->copy_bandwidth);
}

static void run_shape(struct bench *bench, const struct shape *shape)
{
    struct work work = {.shape = shape};
    double all[RUNS_MOST], main_only[RUNS_MOST];
    measure_sizes(&work);
    request(bench, &work);
    must(bench, jit_build(bench->jit, &bench->error));
    prepare(bench, &work);
    time_graph(bench, &work, launch_all, all);
    time_graph(bench, &work, launch_main, main_only);
    if (bench->options.json) {
        print_json(bench, &work, "whole", all);
        print_json(bench, &work, "main kernel", main_only);
    } else {
        print_row(bench, &work, all, main_only);
    }
    for (u32 i = 0; i < work.allocation_count; i++)
        device_free(bench->device, work.allocations[i]);
}

static const struct command command_bench_linear = {
    .name = "linear",
    .summary = "the decode linear at real shapes",
    .synopsis = "linear [OPTION...]",
    .description = "Times the decode linear at real shapes against the copy bandwidth.",
};

static void read_options(struct options *options, int argc, char **argv)
{
    *options = (struct options){.shapes = "27b", .rows = ROWS_MOST, .runs = 9};
    const struct option_entry entries[] = {
        {0, "device", "NAME", "auto, cuda, cuda:N or host.", OPTION_TEXT, &options->device.device},
        {0, "as", "PLAN", "The plan of another GPU: sm_86:82:100K.", OPTION_TEXT,
         &options->device.as},
        {0, "cache", "FOLDER", "Kernel cache.", OPTION_TEXT, &options->jit.cache},
        {0, "schedules", "FOLDER", "Schedules that replace the built-in ones.", OPTION_TEXT,
         &options->jit.schedules},
        {0, "plan-seed", "NUMBER", "Random legal tuning.", OPTION_U64, &options->jit.plan_seed},
        {0, "set", "NAME=VALUE,...", "Tuning parameters of linear_main, pinned.", OPTION_TEXT,
         &options->pins},
        {0, "only", "NAME", "Only the shape whose name begins so.", OPTION_TEXT, &options->only},
        {0, "shapes", "NAME", "27b or tiny. Default: 27b.", OPTION_TEXT, &options->shapes},
        {0, "rows", "COUNT", "Active rows, 1 to 8. Default: 8.", OPTION_U32, &options->rows},
        {0, "runs", "COUNT", "Runs of each, at most 100. Default: 9.", OPTION_U32, &options->runs},
        {0, "json", NULL, "Print lines for bench/results.", OPTION_FLAG, &options->json},
    };
    char *none[1];
    options_parse(&command_bench_linear, entries, COUNT_OF(entries), argc, argv, none, 0, 0);
    const bool known = strcmp(options->shapes, "27b") == 0 || strcmp(options->shapes, "tiny") == 0;
    if (!known || options->rows < 1 || options->rows > ROWS_MOST || options->runs < 1 ||
        options->runs >= RUNS_MOST) {
        fprintf(stderr, "linear: expected --shapes 27b or tiny, --rows 1 to 8, --runs 1 to 99\n");
        exit(ERROR_USAGE);
    }
}

int main(int argc, char **argv)
{
    struct bench bench = {.random = 1};
    read_options(&bench.options, argc, argv);
    struct error *error = &bench.error;
    must(&bench, device_open(&bench.device, &bench.options.device, error));
    must(&bench, jit_open(&bench.jit, bench.device, &bench.options.jit, error));
    must(&bench, device_event_create(bench.device, &bench.begin, error));
    must(&bench, device_event_create(bench.device, &bench.end, error));
    must(&bench, device_copy_bandwidth(bench.device, &bench.copy_bandwidth, error));

    const struct device_info *info = device_info(bench.device);
    if (!bench.options.json)
        printf("%s %s, %u multiprocessors, copy %.3f TB/s, %u rows, plan seed %" PRIu64 "\n\n"
               "%-24s %6s %7s  %10s  %11s  %7s  %11s  %7s\n",
               info->name, info->driver, info->sms, bench.copy_bandwidth * 1e-12,
               bench.options.rows, bench.options.jit.plan_seed, "", "k", "columns", "weights",
               "whole", "of copy", "main", "of copy");
    const bool tiny = strcmp(bench.options.shapes, "tiny") == 0;
    const struct shape *shapes = tiny ? shapes_tiny : shapes_27b;
    for (size_t i = 0; i < (tiny ? COUNT_OF(shapes_tiny) : COUNT_OF(shapes_27b)); i++)
        if (!bench.options.only ||
            strncmp(shapes[i].name, bench.options.only, strlen(bench.options.only)) == 0)
            run_shape(&bench, &shapes[i]);

    device_event_destroy(bench.device, bench.begin);
    device_event_destroy(bench.device, bench.end);
    jit_close(bench.jit);
    device_close(bench.device);
    return 0;
}
