/* bench_report.c - the table, the lines and the tables in files of `elpis bench`.
 *
 * A point's floor is the time in which a copy moves the point's bytes (traffic.h; a copy's reads
 * and writes both count); "of copy" is floor / median, the share of the copy's bandwidth that was
 * reached. The plot is bench_plot.c.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/bench_report.h"

enum { TABLE_CONTEXTS = 16, NAME_WIDTH = 22 };

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double quantile(const double *sorted, u32 count, double share)
{
    const double at = share * (count - 1);
    const u32 below = (u32)at, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

struct quartiles quartiles_of(const struct series *series)
{
    struct series sorted = *series;
    if (series->count == 0)
        return (struct quartiles){0};
    qsort(sorted.values, sorted.count, sizeof *sorted.values, compare);
    return (struct quartiles){quantile(sorted.values, sorted.count, 0.25),
                              quantile(sorted.values, sorted.count, 0.5),
                              quantile(sorted.values, sorted.count, 0.75)};
}

/* Seconds; 0 where no bytes are known. */
static double floor_of(const struct bench_report *report, const struct bench_point *point)
{
    return point->has_traffic ? (double)traffic_bytes(point->traffic) / report->bandwidth : 0;
}

/* ---- the table */

void bench_report_head(const struct bench_report *report, const char *no_sensors)
{
    const struct device_info *device = report->device;
    printf("%s%s%s, context %" PRIu32 ", %" PRIu32 "-bit cache\n", report->model,
           report->draft ? " with " : "", report->draft ? report->draft : "", report->context,
           report->kv_bits);
    printf("%s%s%s, %s, plan %s\n", device->name, device->driver[0] ? " " : "", device->driver,
           device->target, report->plan);
    printf("a copy moves %.4g GB/s (read and written)\n", report->bandwidth * 1e-9);
    if (no_sensors)
        printf("no clocks and power: %s\n", no_sensors);
    printf("\n");
}

void bench_report_columns(void)
{
    printf("%-*s %6s %7s %10s %9s %4s %9s %9s %7s %6s %6s %6s %4s\n", NAME_WIDTH, "", "rows",
           "context", "ms median", "spread", "n", "MB moved", "floor ms", "of copy", "SM MHz",
           "memory", "W", "C");
    fflush(stdout);
}

/* A number in a column, blank where there is none. */
static void add_cell(struct buffer *line, int width, int decimals, bool there, double value)
{
    if (there)
        buffer_format(line, " %*.*f", width, decimals, value);
    else
        buffer_format(line, " %*s", width, "");
}

static void add_readings(struct buffer *line, const struct device_readings *readings)
{
    const bool any = readings->count > 0;
    add_cell(line, 6, 0, any && readings->sm_mhz >= 0, readings->sm_mhz);
    add_cell(line, 6, 0, any && readings->memory_mhz >= 0, readings->memory_mhz);
    add_cell(line, 6, 0, any && readings->watts >= 0, readings->watts);
    add_cell(line, 4, 0, any && readings->celsius >= 0, readings->celsius);
}

static void print_trimmed(struct buffer *line)
{
    while (line->size && line->data[line->size - 1] == ' ')
        line->size--;
    printf("%.*s\n", (int)line->size, line->data);
    fflush(stdout); /* the next one may take a while */
}

static void print_row(const struct bench_report *report, const struct bench_point *point)
{
    const struct quartiles q = quartiles_of(&point->seconds);
    const double limit = floor_of(report, point);
    struct buffer line = {0};
    buffer_format(&line, "%s%s%s", point->kind, point->detail ? " " : "",
                  point->detail ? point->detail : "");
    buffer_format(&line, "%*s", line.size < NAME_WIDTH ? (int)(NAME_WIDTH - line.size) : 0, "");
    add_cell(&line, 6, point->rows != (u32)point->rows, point->rows > 0, point->rows);
    buffer_format(&line, " %7" PRIu32 " %10.4f %9.4f %4" PRIu32, point->context, q.median * 1e3,
                  (q.high - q.low) * 1e3, point->seconds.count);
    add_cell(&line, 9, 1, point->has_traffic, (double)traffic_bytes(point->traffic) * 1e-6);
    add_cell(&line, 9, 4, point->has_traffic, limit * 1e3);
    if (point->has_traffic)
        buffer_format(&line, " %5.1f %%", 100 * limit / q.median);
    else
        buffer_format(&line, " %7s", "");
    add_readings(&line, &point->readings);
    if (point->tokens_a_second > 0)
        buffer_format(&line, "  %.0f tokens/s", point->tokens_a_second);
    print_trimmed(&line);
    buffer_free(&line);
}

void bench_report_add(struct bench_report *report, const struct bench_point *point)
{
    report->points = memory_resize(report->points, (report->count + 1) * sizeof *report->points);
    report->points[report->count++] = *point;
    if (!point->quiet)
        print_row(report, point);
}

/* ---- phases and bytes */

static const struct bench_point *find_phase(const struct bench_report *report, const char *kind,
                                            const char *detail, u32 context)
{
    for (u32 i = 0; i < report->count; i++) {
        const struct bench_point *point = &report->points[i];
        if (strcmp(point->kind, kind) == 0 && point->context == context &&
            (!detail || strcmp(point->detail, detail) == 0))
            return point;
    }
    return NULL;
}

/* Kinds of points: a phase, and all of them together. */
struct phase_kinds {
    const char *one, *all, *column, *head;
};

static void print_phase(const struct bench_report *report, const struct phase_kinds *kinds,
                        const char *detail, const u32 *contexts, u32 count)
{
    const char *kind = detail ? kinds->one : kinds->all;
    printf("%-*s", NAME_WIDTH, detail ? detail : kind);
    for (u32 i = 0; i < count; i++) {
        const struct bench_point *point = find_phase(report, kind, detail, contexts[i]),
                                 *all = find_phase(report, kinds->all, NULL, contexts[i]);
        if (!point || !all) {
            printf(" %17s", "");
            continue;
        }
        const double seconds = quartiles_of(&point->seconds).median;
        printf(" %8.4f %6.1f %%", seconds * 1e3,
               100 * seconds / quartiles_of(&all->seconds).median);
    }
    printf("\n");
}

static void print_phases(const struct bench_report *report, const struct phase_kinds *kinds)
{
    u32 contexts[TABLE_CONTEXTS], count = 0;
    for (u32 i = 0; i < report->count && count < TABLE_CONTEXTS; i++)
        if (strcmp(report->points[i].kind, kinds->all) == 0)
            contexts[count++] = report->points[i].context;
    if (count == 0)
        return;
    printf("\n%s\n%-*s", kinds->head, NAME_WIDTH, kinds->column);
    for (u32 i = 0; i < count; i++)
        printf(" %17" PRIu32, contexts[i]);
    printf("\n");
    for (u32 phase = 0; phase < MEASURE_PHASES; phase++)
        for (u32 i = 0; i < count; i++)
            if (find_phase(report, kinds->one, measure_phase_name(phase), contexts[i])) {
                print_phase(report, kinds, measure_phase_name(phase), contexts, count);
                break;
            }
    print_phase(report, kinds, NULL, contexts, count);
}

void bench_report_phases(const struct bench_report *report)
{
    static const struct phase_kinds list[] = {
        {BENCH_PHASE, BENCH_PHASES, "context",
         "phases, ms (kernels launched one by one, with an event behind every phase: phases do\n"
         "not overlap, as they do in the graphs that are timed above)"},
        {BENCH_PROMPT_PHASE, BENCH_PROMPT_PHASES, "tokens",
         "phases of prompts, ms, summed over layers and pieces (with an event behind every\n"
         "phase: phases do not overlap, as they do in the prompts that are timed above)"}};
    for (size_t i = 0; i < COUNT_OF(list); i++)
        print_phases(report, &list[i]);
}

void bench_report_requests(const struct bench_report *report)
{
    bool any = false;
    for (u32 i = 0; i < report->count; i++) {
        const struct bench_point *point = &report->points[i];
        const struct bench_request *r = &point->request;
        if (strcmp(point->kind, BENCH_REQUEST) != 0)
            continue;
        if (!any)
            printf("\nrequests over HTTP, ms; prefill, a round and their sum by the engine alone\n"
                   "%7s %7s %7s %11s %11s %11s %11s %9s %11s %8s\n",
                   "prompt", "tokens", "rounds", "request", "first text", "in engine", "prefill",
                   "a round", "sum", "of sum");
        any = true;
        printf("%7" PRIu32 " %7.6g %7.6g %11.3f %11.3f %11.3f %11.3f %9.4f %11.3f %6.2f %%\n",
               point->context, r->tokens, r->rounds, quartiles_of(&point->seconds).median * 1e3,
               r->first * 1e3, r->engine * 1e3, r->prefill * 1e3, r->round * 1e3, r->expected * 1e3,
               100 * r->of_expected);
    }
}

void bench_report_traffic(const struct bench_report *report)
{
    bool any = false;
    for (u32 i = 0; i < report->count; i++) {
        const struct bench_point *point = &report->points[i];
        const struct traffic *t = &point->traffic;
        if (strcmp(point->kind, BENCH_VERIFY) != 0 || point->detail)
            continue;
        if (!any)
            printf("\nbytes of a verify, MB\n%4s %7s %10s %10s %10s %10s %10s  %s\n", "rows",
                   "context", "weights", "cache", "states", "rows", "together",
                   "embeddings, from the host");
        any = true;
        printf("%4.0f %7" PRIu32 " %10.3f %10.3f %10.3f %10.3f %10.3f  %.3f\n", point->rows,
               point->context, (double)t->weights * 1e-6, (double)t->cache * 1e-6,
               (double)t->state * 1e-6, (double)t->rows * 1e-6, (double)traffic_bytes(*t) * 1e-6,
               (double)t->embeddings * 1e-6);
    }
}

/* ---- JSON lines: the keys of bench/results, and more */

static json_t *number_or_null(bool there, double value)
{
    return there ? json_real(value) : json_null();
}

static json_t *values_of(const struct series *series)
{
    json_t *list = json_array();
    for (u32 i = 0; i < series->count; i++)
        json_array_append_new(list, json_real(series->values[i] * 1e3));
    return list;
}

static void set_traffic(json_t *line, const struct bench_report *report,
                        const struct bench_point *point)
{
    const struct traffic *t = &point->traffic;
    const double limit = floor_of(report, point);
    if (!point->has_traffic)
        return;
    json_object_set_new(line, "bytes",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "weights",
                                  (json_int_t)t->weights, "cache", (json_int_t)t->cache, "states",
                                  (json_int_t)t->state, "rows", (json_int_t)t->rows, "together",
                                  (json_int_t)traffic_bytes(*t), "embeddings",
                                  (json_int_t)t->embeddings));
    json_object_set_new(line, "floor_ms", json_real(limit * 1e3));
    json_object_set_new(line, "of_copy", json_real(limit / quartiles_of(&point->seconds).median));
}

static void set_readings(json_t *line, const struct device_readings *readings)
{
    const struct {
        const char *key;
        double value;
    } list[] = {{"sm_mhz", readings->sm_mhz},
                {"memory_mhz", readings->memory_mhz},
                {"watts", readings->watts},
                {"celsius", readings->celsius}};
    for (u32 i = 0; i < COUNT_OF(list); i++)
        json_object_set_new(
            line, list[i].key,
            number_or_null(readings->count > 0 && list[i].value >= 0, list[i].value));
}

static void set_request(json_t *line, const struct bench_request *request)
{
    const struct {
        const char *key;
        double value;
    } list[] = {{"tokens", request->tokens},
                {"rounds", request->rounds},
                {"first_text_ms", request->first * 1e3},
                {"engine_ms", request->engine * 1e3},
                {"prefill_ms", request->prefill * 1e3},
                {"ms_per_round", request->round * 1e3},
                {"expected_ms", request->expected * 1e3},
                {"of_expected", request->of_expected}};
    for (u32 i = 0; i < COUNT_OF(list) && request->tokens > 0; i++)
        json_object_set_new(line, list[i].key, json_real(list[i].value));
}

/* "verify, 8 rows, context 1024" */
static void describe_point(const struct bench_point *point, struct buffer *text)
{
    buffer_add_text(text, point->kind);
    if (point->detail)
        buffer_format(text, " %s", point->detail);
    if (point->rows > 0)
        buffer_format(text, ", %.4g row%s", point->rows, point->rows == 1 ? "" : "s");
    buffer_format(text, ", context %" PRIu32, point->context);
}

static json_t *json_of(const struct bench_report *report, const struct bench_point *point,
                       const char *date)
{
    const struct device_info *device = report->device;
    const struct quartiles q = quartiles_of(&point->seconds);
    char machine[256];
    struct buffer variant = {0};
    snprintf(machine, sizeof machine, "%s%s%s", device->name, device->driver[0] ? " " : "",
             device->driver);
    describe_point(point, &variant);
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:f, s:f, s:f, s:i}", "date", date, "benchmark",
        "bench", "machine", machine, "variant", variant.data, "command", report->command, "unit",
        "ms", "values", values_of(&point->seconds), "median", q.median * 1e3, "low_quartile",
        q.low * 1e3, "high_quartile", q.high * 1e3, "n", (int)point->seconds.count);
    buffer_free(&variant);
    json_object_set_new(line, "kind", json_string(point->kind));
    json_object_set_new(line, "detail", point->detail ? json_string(point->detail) : json_null());
    json_object_set_new(line, "rows", number_or_null(point->rows > 0, point->rows));
    json_object_set_new(line, "context", json_integer(point->context));
    if (point->tokens_a_second > 0)
        json_object_set_new(line, "tokens_per_second", json_real(point->tokens_a_second));
    set_request(line, &point->request);
    set_traffic(line, report, point);
    set_readings(line, &point->readings);
    json_object_set_new(line, "model", json_string(report->model));
    json_object_set_new(line, "draft", report->draft ? json_string(report->draft) : json_null());
    json_object_set_new(line, "target", json_string(device->target));
    json_object_set_new(line, "plan", json_string(report->plan));
    json_object_set_new(line, "max_context", json_integer(report->context));
    json_object_set_new(line, "kv_bits", json_integer(report->kv_bits));
    json_object_set_new(line, "copy_bandwidth", json_real(report->bandwidth));
    return line;
}

void bench_report_json(const struct bench_report *report, struct buffer *text)
{
    char date[32];
    const time_t now = (time_t)clock_unix();
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S+00:00", gmtime(&now));
    for (u32 i = 0; i < report->count; i++) {
        json_t *line = json_of(report, &report->points[i], date);
        char *dumped = json_dumps(line, JSON_REAL_PRECISION(6));
        buffer_format(text, "%s\n", dumped);
        free(dumped);
        json_decref(line);
    }
}

/* ---- CSV */

/* A field, with quotes: a tree's parents have commas. */
static void add_word(struct buffer *text, const char *word)
{
    buffer_add_csv(text, word ? word : "");
    buffer_add_text(text, ",");
}

static void add_number(struct buffer *text, bool there, const char *format, double value)
{
    if (there)
        buffer_format(text, format, value);
    buffer_add_text(text, ",");
}

static void csv_line(const struct bench_report *report, const struct bench_point *point,
                     struct buffer *text)
{
    const struct quartiles q = quartiles_of(&point->seconds);
    const struct traffic *t = &point->traffic;
    const struct device_readings *r = &point->readings;
    const struct bench_request *request = &point->request;
    const double requests[] = {request->tokens,         request->rounds,
                               request->first * 1e3,    request->engine * 1e3,
                               request->prefill * 1e3,  request->round * 1e3,
                               request->expected * 1e3, request->of_expected};
    const bool moved = point->has_traffic, read = r->count > 0;
    const u64 bytes[] = {t->weights, t->cache, t->state, t->rows, traffic_bytes(*t), t->embeddings};
    const double limit = floor_of(report, point), readings[] = {r->sm_mhz, r->memory_mhz, r->watts};
    add_word(text, point->kind);
    add_word(text, point->detail);
    add_number(text, point->rows > 0, "%.4g", point->rows);
    buffer_format(text, "%" PRIu32 ",%" PRIu32 ",%.6g,%.6g,%.6g,", point->context,
                  point->seconds.count, q.median * 1e3, q.low * 1e3, q.high * 1e3);
    add_number(text, point->tokens_a_second > 0, "%.6g", point->tokens_a_second);
    for (u32 i = 0; i < COUNT_OF(bytes); i++)
        add_number(text, moved, "%.0f", (double)bytes[i]);
    add_number(text, moved, "%.6g", limit * 1e3);
    add_number(text, moved, "%.6g", limit / q.median);
    for (u32 i = 0; i < COUNT_OF(readings); i++)
        add_number(text, read && readings[i] >= 0, "%.6g", readings[i]);
    add_number(text, read && r->celsius >= 0, "%.6g", r->celsius);
    for (u32 i = 0; i < COUNT_OF(requests); i++)
        add_number(text, request->tokens > 0, "%.6g", requests[i]);
    text->size--; /* the comma behind the last one */
    buffer_add_text(text, "\n");
}

void bench_report_csv(const struct bench_report *report, struct buffer *text)
{
    buffer_add_text(text, "kind,detail,rows,context,n,median_ms,low_quartile_ms,high_quartile_ms,"
                          "tokens_per_second,weight_bytes,cache_bytes,state_bytes,row_bytes,bytes,"
                          "embedding_bytes,floor_ms,of_copy,sm_mhz,memory_mhz,watts,celsius,"
                          "tokens,rounds,first_text_ms,engine_ms,prefill_ms,ms_per_round,"
                          "expected_ms,of_expected\n");
    for (u32 i = 0; i < report->count; i++)
        csv_line(report, &report->points[i], text);
}
