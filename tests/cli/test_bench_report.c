/* test_bench_report.c - what `elpis bench` writes (core/cli/bench_report.c, bench_plot.c), from
 * points with known numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_report.h"

static const struct device_info gpu = {
    .kind = DEVICE_CUDA, .name = "A GPU", .driver = "1.2 (CUDA 13.0)", .target = "sm_90"};

static struct bench_report empty_report(void)
{
    return (struct bench_report){.model = "a \"model\" <&>",
                                 .draft = "draft",
                                 .device = &gpu,
                                 .plan = "0123456789abcdef",
                                 .command = "elpis bench \"a b\"",
                                 .context = 262144,
                                 .kv_bits = 3,
                                 .bandwidth = 4e12};
}

/* Four repetitions around `milliseconds`: the quartiles are 0.3 below and above. */
static struct bench_point *point_of(const char *kind, double rows, u32 context, double milliseconds)
{
    static struct bench_point point;
    static const double around[] = {0.6, -0.6, 0.2, -0.2};
    memset(&point, 0, sizeof point);
    point.kind = kind;
    point.rows = rows;
    point.context = context;
    point.quiet = true;
    for (u32 i = 0; i < COUNT_OF(around); i++)
        point.seconds.values[point.seconds.count++] = (milliseconds + around[i]) * 1e-3;
    return &point;
}

static void add_pass(struct bench_report *report, double rows, u32 context, double milliseconds)
{
    struct bench_point *point = point_of(BENCH_VERIFY, rows, context, milliseconds);
    point->has_traffic = true;
    point->traffic = (struct traffic){.weights = 13000000000,
                                      .cache = 14336ull * context,
                                      .state = 150000000,
                                      .rows = 40000000,
                                      .embeddings = 81920};
    point->readings = (struct device_readings){
        .count = 3, .sm_mhz = 1980, .memory_mhz = 3201, .watts = -1, .celsius = 61};
    bench_report_add(report, point);
}

static struct bench_report full_report(void)
{
    static const u32 contexts[] = {1024, 8192, 32768, 131072, 262144};
    static const double one[] = {8.1, 8.3, 8.9, 12.5, 17.6}, eight[] = {8.9, 9.2, 9.9, 13.8, 19.7};
    struct bench_report report = empty_report();
    for (u32 i = 0; i < COUNT_OF(contexts); i++) {
        add_pass(&report, 1, contexts[i], one[i]);
        add_pass(&report, 8, contexts[i], eight[i]);
        bench_report_add(&report, point_of(BENCH_ROUND, 7.5, contexts[i], eight[i] + 2.5));
    }
    struct bench_point *point = point_of(BENCH_VERIFY, 8, 1024, 9.5);
    point->detail = "0,0,1,1,2,4,5";
    bench_report_add(&report, point);
    point = point_of("prefill", 0, 8192, 1000);
    point->tokens_a_second = 8191;
    bench_report_add(&report, point);
    point = point_of(BENCH_REQUEST, 0, 8192, 9000);
    point->request = (struct bench_request){.tokens = 1024,
                                            .rounds = 200,
                                            .first = 1,
                                            .engine = 8.95,
                                            .prefill = 0.99,
                                            .round = 0.04,
                                            .expected = 8.99,
                                            .of_expected = 9 / 8.99};
    bench_report_add(&report, point);
    return report;
}

static void quartiles(void **state)
{
    (void)state;
    const struct series four = {4, {4, 1, 3, 2}}, one = {1, {7}}, five = {5, {50, 10, 40, 20, 30}},
                        none = {0};
    struct quartiles q = quartiles_of(&four);
    assert_true(q.low == 1.75 && q.median == 2.5 && q.high == 3.25);
    q = quartiles_of(&one);
    assert_true(q.low == 7 && q.median == 7 && q.high == 7);
    q = quartiles_of(&five);
    assert_true(q.low == 20 && q.median == 30 && q.high == 40);
    q = quartiles_of(&none);
    assert_true(q.low == 0 && q.median == 0 && q.high == 0);
}

static double number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    if (!json_is_number(value))
        fail_msg("%s is not a number", key);
    return json_number_value(value);
}

static void expect_near(double found, double expected)
{
    if (!(found > expected - 1e-5 * expected && found < expected + 1e-5 * expected))
        fail_msg("expected %g, found %g", expected, found);
}

static void json_lines(void **state)
{
    (void)state;
    struct bench_report report = full_report();
    struct buffer text = {0};
    u32 count = 0;
    bench_report_json(&report, &text);
    for (char *at = text.data, *end; *at; at = end + 1, count++) {
        json_error_t error;
        end = strchr(at, '\n');
        assert_non_null(end);
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, &error);
        if (!line)
            fail_msg("%s: %.*s", error.text, (int)(end - at), at);
        assert_string_equal(json_string_value(json_object_get(line, "model")), report.model);
        assert_string_equal(json_string_value(json_object_get(line, "command")), report.command);
        assert_string_equal(json_string_value(json_object_get(line, "machine")),
                            "A GPU 1.2 (CUDA 13.0)");
        if (count == 1) { /* 8 rows at 1024 */
            assert_string_equal(json_string_value(json_object_get(line, "variant")),
                                "verify, 8 rows, context 1024");
            expect_near(number(line, "median"), 8.9);
            expect_near(number(line, "low_quartile"), 8.6);
            expect_near(number(line, "high_quartile"), 9.2);
            assert_int_equal(number(line, "n"), 4);
            expect_near(number(line, "floor_ms"), (13190e6 + 14336 * 1024) / 4e9);
            expect_near(number(line, "of_copy"), (13190e6 + 14336 * 1024) / 4e9 / 8.9);
            expect_near(number(json_object_get(line, "bytes"), "together"), 13190e6 + 14336 * 1024);
            expect_near(number(line, "sm_mhz"), 1980);
            expect_near(number(line, "celsius"), 61);
            assert_true(json_is_null(json_object_get(line, "watts")));
            assert_int_equal(json_array_size(json_object_get(line, "values")), 4);
        }
        if (count == 2) { /* a round: nothing is known of its bytes here */
            assert_null(json_object_get(line, "bytes"));
            assert_true(json_is_null(json_object_get(line, "sm_mhz")));
        }
        const bool request = count + 1 == report.count;
        assert_true(request == (json_object_get(line, "of_expected") != NULL));
        if (request) {
            expect_near(number(line, "rounds"), 200);
            expect_near(number(line, "ms_per_round"), 40);
            expect_near(number(line, "expected_ms"), 8990);
        }
        json_decref(line);
    }
    assert_int_equal(count, report.count);
    buffer_free(&text);
    memory_free(report.points);
}

static u32 count_of(const char *text, const char *part)
{
    u32 count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        count++;
    return count;
}

static void csv(void **state)
{
    (void)state;
    struct bench_report report = full_report();
    struct buffer text = {0};
    bench_report_csv(&report, &text);
    assert_int_equal(count_of(text.data, "\n"), report.count + 1);
    assert_non_null(strstr(text.data,
                           "\n\"verify\",\"\",8,1024,4,8.9,8.6,9.2,,13000000000,14680064,"
                           "150000000,40000000,13204680064,81920,3.30117,0.370918,1980,"
                           "3201,,61,,,,,,,,\n"));
    assert_non_null(strstr(text.data, "\n\"verify\",\"0,0,1,1,2,4,5\",8,1024,4,9.5,"));
    assert_non_null(strstr(
        text.data, "\n\"prefill\",\"\",,8192,4,1000,999.7,1000.3,8191,,,,,,,,,,,,,,,,,,,,\n"));
    assert_non_null(strstr(text.data,
                           "\n\"request\",\"\",,8192,4,9000,8999.7,9000.3,,,,,,,,,,,,,,1024,200,"
                           "1000,8950,990,40,8990,1.00111\n"));
    buffer_free(&text);
    memory_free(report.points);
}

static void a_plot(void **state)
{
    (void)state;
    struct bench_report report = full_report();
    struct buffer text = {0};
    bench_report_svg(&report, &text);
    /* three curves and the floor; a tick a context; quartiles on every median */
    assert_int_equal(count_of(text.data, "<polyline"), 4);
    assert_int_equal(count_of(text.data, "<circle"), 15);
    for (u32 i = 0; i < 5; i++)
        assert_non_null(
            strstr(text.data, (const char *[]){">1K<", ">8K<", ">32K<", ">128K<", ">256K<"}[i]));
    assert_non_null(strstr(text.data, "a \"model\" &lt;&amp;> with draft, A GPU, sm_90"));
    assert_non_null(strstr(text.data, "floor, 8 rows"));
    assert_non_null(strstr(text.data, "whole round"));
    /* the axis ends at 25 ms, 350 pixels above 400: 8.9 ms stand at 275.4 */
    assert_non_null(strstr(text.data, ">25<"));
    assert_null(strstr(text.data, ">30<"));
    assert_non_null(strstr(text.data, "cx=\"70.0\" cy=\"275.4\""));
    const char *folder = getenv("ELPIS_TEST_PLOT"); /* to look at it */
    struct error error;
    if (folder)
        assert_int_equal(file_write_atomic(folder, text.data, text.size, &error), 0);
    buffer_free(&text);
    memory_free(report.points);
}

static void plots_of_little(void **state)
{
    (void)state;
    struct bench_report report = empty_report();
    struct buffer text = {0};
    bench_report_svg(&report, &text); /* stopped before the first pass */
    assert_non_null(strstr(text.data, "</svg>"));
    assert_null(strstr(text.data, "nan"));
    assert_null(strstr(text.data, "inf"));
    buffer_clear(&text);
    add_pass(&report, 8, 1000, 9);
    bench_report_svg(&report, &text);
    assert_int_equal(count_of(text.data, "<circle"), 1);
    assert_non_null(strstr(text.data, ">1000<"));
    assert_null(strstr(text.data, "nan"));
    buffer_free(&text);
    memory_free(report.points);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quartiles), cmocka_unit_test(json_lines),      cmocka_unit_test(csv),
        cmocka_unit_test(a_plot),    cmocka_unit_test(plots_of_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
