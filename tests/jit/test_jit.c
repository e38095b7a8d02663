/* test_jit.c - core/jit with the host device: requests, builds, the cache's key, records, plans.
 *
 * The device's compile function is wrapped so that every compile appends a byte to a file, which
 * counts them across processes.
 */
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device_private.h"
#include "jit/jit_private.h"

static char folder[64], cache_path[100], compiles_path[100];
static struct device_backend counting;

static int count_and_compile(struct device *device, struct slice source, const char *name,
                             struct buffer *image, struct error *error)
{
    int file = open(compiles_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(file, "c", 1) != 1)
        abort();
    close(file);
    return host_backend.compile(device, source, name, image, error);
}

static long compiles(void)
{
    struct stat status;
    return stat(compiles_path, &status) == 0 ? (long)status.st_size : 0;
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/elpis-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(cache_path, sizeof cache_path, "%s/cache", folder);
    snprintf(compiles_path, sizeof compiles_path, "%s/compiles", folder);
    return 0;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 ? 0 : -1;
}

static void must(int status, const struct error *error)
{
    if (status != 0)
        fail_msg("%s", error->text);
}

struct fixture {
    struct device *device;
    struct jit *jit;
};

static struct fixture open_jit(const char *schedules, u64 plan_seed)
{
    struct error error;
    struct fixture fixture;
    const struct device_options device = {.device = "host", .host_threads = 1};
    const struct jit_options options = {
        .cache = cache_path, .schedules = schedules, .plan_seed = plan_seed};
    must(device_open(&fixture.device, &device, &error), &error);
    counting = host_backend;
    counting.compile = count_and_compile;
    fixture.device->backend = &counting;
    must(jit_open(&fixture.jit, fixture.device, &options, &error), &error);
    return fixture;
}

static void close_jit(struct fixture *fixture)
{
    jit_close(fixture->jit);
    device_close(fixture->device);
}

static const struct jit_parameter none[] = {{0}};

/* The first example of a schedule, whatever its parameters are called. */
static struct jit_parameter *example_of(struct jit *jit, const char *schedule, struct arena *arena)
{
    struct error error;
    struct scripts_listing *listing;
    size_t count;
    must(scripts_schedules(jit->scripts, arena, &listing, &count, &error), &error);
    for (size_t i = 0; i < count; i++)
        if (strcmp(listing[i].name, schedule) == 0)
            return listing[i].examples[0];
    fail_msg("no schedule %s", schedule);
    return NULL;
}

/* ---- requests */

static void refused(struct jit *jit, const char *schedule, const struct jit_parameter *parameters,
                    const char *part)
{
    struct error error = {0};
    struct jit_kernel *kernel = NULL;
    assert_int_equal(jit_request(jit, schedule, parameters, &kernel, &error), -1);
    assert_int_equal(error.code, ERROR_USAGE);
    if (!strstr(error.text, schedule) || !strstr(error.text, part))
        fail_msg("expected \"%s\" and \"%s\" in: %s", schedule, part, error.text);
}

static void wrong_requests_name_what_is_wrong(void **state)
{
    (void)state;
    struct fixture f = open_jit(NULL, 0);
    const struct jit_parameter unknown[] = {JIT_NUMBER("nonsense", 1), {0}};
    refused(f.jit, "no_such_schedule", none, "no such schedule");
    refused(f.jit, "prelude_check", unknown, "nonsense");
    refused(f.jit, "linear_main", none, "parameter");
    close_jit(&f);
}

static void equal_requests_share_a_kernel(void **state)
{
    (void)state;
    struct error error;
    struct fixture f = open_jit(NULL, 0);
    struct arena *arena = arena_create();
    struct jit_kernel *a, *b, *c;
    struct jit_parameter *example = example_of(f.jit, "linear_output", arena);
    must(jit_request(f.jit, "prelude_check", none, &a, &error), &error);
    must(jit_request(f.jit, "linear_output", example, &b, &error), &error);
    must(jit_request(f.jit, "prelude_check", none, &c, &error), &error);
    assert_ptr_equal(a, c);
    assert_ptr_not_equal(a, b);
    assert_string_equal(jit_kernel_name(a), "prelude_check");
    assert_int_equal(jit_kernel_geometry(a)->block, 32);
    assert_int_equal(jit_kernel_export(a, "inputs"), 8);
    assert_int_equal(jit_kernel_export(a, "nothing"), -1);
    assert_null(jit_kernel_function(a));
    u64 arguments[2] = {0, 0};
    assert_int_equal(jit_launch(f.jit, NULL, a, arguments, 2, &error), -1);
    arena_destroy(arena);
    close_jit(&f);
}

/* ---- building */

static void build_one(const char *schedules)
{
    struct error error;
    struct jit_kernel *kernel;
    u64 arguments[1] = {0};
    struct fixture f = open_jit(schedules, 0);
    must(jit_request(f.jit, "prelude_check", none, &kernel, &error), &error);
    must(jit_build(f.jit, &error), &error);
    assert_non_null(jit_kernel_function(kernel));
    assert_int_equal(jit_launch(f.jit, NULL, kernel, arguments, 1, &error), -1);
    assert_non_null(strstr(error.text, "expected 2 arguments, found 1"));
    must(jit_build(f.jit, &error), &error); /* nothing left to do */
    close_jit(&f);
}

static size_t cached_files(glob_t *found)
{
    char pattern[120];
    snprintf(pattern, sizeof pattern, "%s/*.kernel", cache_path);
    return glob(pattern, 0, NULL, found) == 0 ? found->gl_pathc : 0;
}

static void the_second_start_compiles_nothing(void **state)
{
    (void)state;
    build_one(NULL);
    const long cold = compiles();
    assert_in_range(cold, 1, 2);
    build_one(NULL);
    assert_int_equal(compiles(), cold);
}

static void damaged_cache_files_are_compiled_again(void **state)
{
    (void)state;
    glob_t found;
    build_one(NULL);
    const long cold = compiles();
    const size_t files = cached_files(&found);
    assert_true(files > 0);
    for (size_t i = 0; i < files; i++)
        assert_int_equal(truncate(found.gl_pathv[i], 100), 0);
    globfree(&found);
    build_one(NULL);
    assert_int_equal(compiles(), 2 * cold);
    build_one(NULL);
    assert_int_equal(compiles(), 2 * cold);
}

/* A sound file around an image that does not load is compiled again too. */
static void images_that_do_not_load_are_compiled_again(void **state)
{
    (void)state;
    struct error error;
    struct jit_kernel *kernel;
    struct fixture f = open_jit(NULL, 0);
    must(jit_request(f.jit, "prelude_check", none, &kernel, &error), &error);
    cache_store(f.jit->cache, &kernel->key, SLICE("no shared object"));
    must(jit_build(f.jit, &error), &error);
    assert_non_null(jit_kernel_function(kernel));
    close_jit(&f);
    assert_in_range(compiles(), 1, 2);
}

static void write_text(const char *path, const char *text)
{
    struct error error;
    must(file_write_atomic(path, text, strlen(text), &error), &error);
}

/* An override folder whose template differs by a comment. */
static void another_text_is_another_key(void **state)
{
    (void)state;
    char path[200];
    struct error error;
    struct buffer text = {0};
    build_one(NULL);
    const long cold = compiles();
    snprintf(path, sizeof path, "%s/mine/templates", folder);
    must(file_make_folders(path, 0700, &error), &error);
    must(file_read(&text, "templates/prelude_check.cu", 1 << 20, &error), &error);
    buffer_add_text(&text, "// changed\n");
    snprintf(path, sizeof path, "%s/mine/templates/prelude_check.cu", folder);
    write_text(path, text.data);
    snprintf(path, sizeof path, "%s/mine", folder);
    build_one(path);
    assert_true(compiles() > cold);
    buffer_free(&text);
}

static void broken_templates_name_their_line(void **state)
{
    (void)state;
    char path[200];
    struct error error;
    struct jit_kernel *kernel;
    snprintf(path, sizeof path, "%s/mine/templates", folder);
    must(file_make_folders(path, 0700, &error), &error);
    snprintf(path, sizeof path, "%s/mine/templates/prelude_check.cu", folder);
    write_text(path, "KERNEL\n{\n    u32 a = undeclared_name;\n}\n");
    snprintf(path, sizeof path, "%s/mine", folder);
    struct fixture f = open_jit(path, 0);
    must(jit_request(f.jit, "prelude_check", none, &kernel, &error), &error);
    assert_int_equal(jit_build(f.jit, &error), -1);
    assert_int_equal(error.code, ERROR_DEVICE);
    if (!strstr(error.text, "prelude_check.cu:3") || !strstr(error.text, "undeclared_name"))
        fail_msg("expected the template's line in: %s", error.text);
    close_jit(&f);
}

static void two_processes_compile_each_kernel_once(void **state)
{
    (void)state;
    enum { PROCESSES = 3 };
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        fflush(stdout);
        children[i] = fork();
        if (children[i] == 0) {
            build_one(NULL);
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int result = -1;
        waitpid(children[i], &result, 0);
        assert_int_equal(result, 0);
    }
    glob_t found;
    assert_int_equal(compiles(), (long)cached_files(&found));
    globfree(&found);
}

/* ---- tuning and plans */

static void request_example(struct jit *jit, const char *schedule, struct arena *arena)
{
    struct error error;
    struct jit_kernel *kernel;
    must(jit_request(jit, schedule, example_of(jit, schedule, arena), &kernel, &error), &error);
}

static void plan_of(u64 seed, const char *first, const char *second, char hash[17])
{
    struct fixture f = open_jit(NULL, seed);
    struct arena *arena = arena_create();
    request_example(f.jit, first, arena);
    if (second)
        request_example(f.jit, second, arena);
    snprintf(hash, 17, "%s", jit_plan_hash(f.jit));
    arena_destroy(arena);
    close_jit(&f);
}

static void the_plan_hash_names_the_plan(void **state)
{
    (void)state;
    char one[17], same[17], other[17];
    plan_of(0, "linear_main", "linear_output", one);
    plan_of(0, "linear_output", "linear_main", same);
    plan_of(0, "linear_main", NULL, other);
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
    assert_int_equal(strlen(one), 16);
}

static void plan_seeds_draw_tuning_repeatably(void **state)
{
    (void)state;
    char first[17], again[17], plan[17];
    int different = 0;
    plan_of(1, "linear_main", NULL, first);
    plan_of(1, "linear_main", NULL, again);
    assert_string_equal(first, again);
    for (u64 seed = 2; seed < 8; seed++) {
        plan_of(seed, "linear_main", NULL, plan);
        different += strcmp(plan, first) != 0;
    }
    assert_true(different > 0);
}

/* linear_output has a tuning parameter `map`; the record asks for the value that is no default. */
static void write_record(const char *tuning, struct jit_parameter *parameters)
{
    char path[200];
    struct error error;
    struct buffer line = {0};
    snprintf(path, sizeof path, "%s/mine/schedules/records", folder);
    must(file_make_folders(path, 0700, &error), &error);
    buffer_add_text(&line,
                    "{\"schedule\": \"linear_output\", \"target\": \"host\", \"parameters\": {");
    for (size_t i = 0; parameters[i].name; i++) {
        buffer_format(&line, "%s\"%s\": ", i ? ", " : "", parameters[i].name);
        if (parameters[i].text)
            buffer_format(&line, "\"%s\"", parameters[i].text);
        else
            buffer_format(&line, "%lld", (long long)parameters[i].number);
    }
    buffer_format(&line, "}, \"tuning\": %s, \"candidates\": []}\nnot a record\n", tuning);
    snprintf(path, sizeof path, "%s/mine/schedules/records/host.jsonl", folder);
    write_text(path, line.data);
    buffer_free(&line);
}

static void plan_with_record(const char *tuning, struct buffer *plan)
{
    char path[200];
    struct arena *arena = arena_create();
    struct fixture plain = open_jit(NULL, 0);
    struct jit_parameter *example = example_of(plain.jit, "linear_output", arena);
    write_record(tuning, example);
    snprintf(path, sizeof path, "%s/mine", folder);
    struct fixture f = open_jit(path, 0);
    request_example(f.jit, "linear_output", arena);
    buffer_clear(plan);
    buffer_add_slice(plan, buffer_slice(&f.jit->kernels->rendering.plan));
    close_jit(&f);
    close_jit(&plain);
    arena_destroy(arena);
}

static void records_override_the_default(void **state)
{
    (void)state;
    struct buffer strided = {0}, contiguous = {0}, refused_plan = {0};
    plan_with_record("{\"map\": \"strided\"}", &strided);
    plan_with_record("{\"map\": \"contiguous\"}", &contiguous);
    assert_non_null(strstr(strided.data, "map=strided"));
    assert_non_null(strstr(contiguous.data, "map=contiguous"));
    plan_with_record("{\"no_such_tuning\": 1}", &refused_plan);
    assert_null(strstr(refused_plan.data, "no_such_tuning"));
    buffer_free(&strided);
    buffer_free(&contiguous);
    buffer_free(&refused_plan);
}

static void override_folders_are_checked(void **state)
{
    (void)state;
    struct error error = {0};
    struct scripts *scripts = NULL;
    assert_int_equal(scripts_open(&scripts, folder, &error), -1);
    assert_int_equal(error.code, ERROR_USAGE);
    assert_non_null(strstr(error.text, folder));
}

/* ---- without a device */

static void kernels_render_for_any_target(void **state)
{
    (void)state;
    struct error error;
    struct buffer source = {0};
    struct device_geometry geometry;
    must(
        jit_render(NULL, "prelude_check", none, "sm_86", 82, 100 << 10, &source, &geometry, &error),
        &error);
    assert_non_null(strstr(source.data, "__global__"));
    assert_int_equal(geometry.grid, 1);
    must(jit_render(NULL, "prelude_check", none, "host", 2, 100 << 10, &source, NULL, &error),
         &error);
    assert_null(strstr(source.data, "__global__"));
    assert_int_equal(
        jit_render(NULL, "prelude_check", none, "sm_75", 40, 64 << 10, &source, NULL, &error), -1);
    assert_non_null(strstr(error.text, "sm_75"));
    buffer_free(&source);
}

static void schedules_are_listed_sorted(void **state)
{
    (void)state;
    struct error error;
    struct jit_listing *listing = NULL;
    size_t count = 0;
    must(jit_list(NULL, &listing, &count, &error), &error);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        assert_true(listing[i].summary[0] != 0);
        if (i > 0)
            assert_true(strcmp(listing[i - 1].name, listing[i].name) < 0);
    }
    memory_free(listing);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(wrong_requests_name_what_is_wrong),
        TEST(equal_requests_share_a_kernel),
        TEST(the_second_start_compiles_nothing),
        TEST(damaged_cache_files_are_compiled_again),
        TEST(images_that_do_not_load_are_compiled_again),
        TEST(another_text_is_another_key),
        TEST(broken_templates_name_their_line),
        TEST(two_processes_compile_each_kernel_once),
        TEST(the_plan_hash_names_the_plan),
        TEST(plan_seeds_draw_tuning_repeatably),
        TEST(records_override_the_default),
        TEST(override_folders_are_checked),
        TEST(kernels_render_for_any_target),
        TEST(schedules_are_listed_sorted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
