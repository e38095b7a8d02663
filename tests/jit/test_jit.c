/* test_jit.c - core/jit with the host device: requests, builds, the cache's key, records, plans.
 *
 * The device's compile function is wrapped so that every compile appends a byte to a file, which
 * counts them across processes.
 */
#include <glob.h>
#include <signal.h>

#include "device/device_private.h"
#include "jit/jit_private.h"
#include "jit/support.h"

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

/* A start that needs a few kernels, of which the known answers come out right. */
static void build_some(void)
{
    static const char *const names[] = {"embed", "residual", "draft_gather", "gdn_window"};
    struct error error;
    struct jit_kernel *kernel;
    struct fixture f = open_jit(NULL, 0);
    struct arena *arena = arena_create();
    must(jit_request(f.jit, "prelude_check", none, &kernel, &error), &error);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        must(jit_request(f.jit, names[i], example_of(f.jit, names[i], arena), &kernel, &error),
             &error);
    must(jit_build(f.jit, &error), &error);
    for (kernel = f.jit->kernels; kernel; kernel = kernel->next)
        CHECK(jit_kernel_function(kernel) != NULL);
    f.jit->check = f.jit->kernels;
    f.jit->check_is_requested = true;
    must(jit_check_run(f.jit, &error), &error);
    arena_destroy(arena);
    close_jit(&f);
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

/* What happens to a file: cut to `part` of its bytes and `more`, or one of its bytes inverted. */
struct damage {
    double part;
    int more;
    bool flip;
};
static const struct damage damages[] = {
    {0, 0}, {0, 1}, {0.5, 0}, {1, -1}, {1, 1}, {0.1, 0, true}, {0.9, 0, true},
};

static void damage_file(const char *path, const struct damage *damage)
{
    struct stat status;
    u8 byte;
    int file = open(path, O_RDWR);
    CHECK(file >= 0 && fstat(file, &status) == 0);
    const off_t at = (off_t)((double)status.st_size * damage->part) + damage->more;
    if (damage->flip) {
        CHECK(pread(file, &byte, 1, at) == 1);
        byte ^= 0x20;
        CHECK(pwrite(file, &byte, 1, at) == 1);
    } else {
        CHECK(ftruncate(file, at) == 0);
    }
    close(file);
}

static void damaged_cache_files_are_compiled_again(void **state)
{
    (void)state;
    glob_t found;
    build_some();
    const long cold = compiles();
    const size_t files = cached_files(&found);
    assert_int_equal(cold, files);
    for (size_t d = 0; d < COUNT_OF(damages); d++) {
        for (size_t i = 0; i < files; i++)
            damage_file(found.gl_pathv[i], &damages[d]);
        assert_int_equal(count_lines(build_some, "warning: kernel cache:"), 1);
        assert_int_equal(compiles(), (long)(d + 2) * cold);
        assert_int_equal(count_lines(build_some, "warning:"), 0);
        assert_int_equal(compiles(), (long)(d + 2) * cold);
    }
    globfree(&found);
}

static void every_compile_is_a_debug_line(void **state)
{
    (void)state;
    log_set_level(LOG_DEBUG);
    const int cold = count_lines(build_some, "debug: compiled kernel ");
    const int warm = count_lines(build_some, "debug: compiled kernel ");
    log_set_level(LOG_INFO);
    assert_int_equal(cold, compiles());
    assert_int_equal(warm, 0);
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

static void sixteen_processes_compile_each_kernel_once(void **state)
{
    (void)state;
    enum { PROCESSES = 16 };
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++)
        children[i] = start_child(build_some);
    for (int i = 0; i < PROCESSES; i++)
        assert_int_equal(end_of(children[i]), 0);
    glob_t found;
    assert_int_equal(compiles(), (long)cached_files(&found));
    globfree(&found);
}

/* ---- starts that are killed while they compile */

struct image {
    char *path;
    struct buffer bytes;
};

static size_t read_images(struct image **images)
{
    struct error error;
    glob_t found;
    const size_t count = cached_files(&found);
    *images = memory_alloc((count + 1) * sizeof **images);
    for (size_t i = 0; i < count; i++) {
        (*images)[i].path = memory_copy_text(slice_of(found.gl_pathv[i]));
        must(file_read(&(*images)[i].bytes, found.gl_pathv[i], 1 << 20, &error), &error);
    }
    globfree(&found);
    return count;
}

static void free_images(struct image *images, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        memory_free(images[i].path);
        buffer_free(&images[i].bytes);
    }
    memory_free(images);
}

/* What is there under a name that a start would trust is what an undisturbed start wrote. */
static size_t check_images(const struct image *images, size_t count)
{
    struct error error;
    struct buffer bytes = {0};
    size_t there = 0;
    for (size_t i = 0; i < count; i++) {
        if (!file_exists(images[i].path))
            continue;
        there++;
        must(file_read(&bytes, images[i].path, 1 << 20, &error), &error);
        CHECK(bytes.size == images[i].bytes.size);
        CHECK(memcmp(bytes.data, images[i].bytes.data, bytes.size) == 0);
    }
    buffer_free(&bytes);
    return there;
}

static void build_in_a_group(void)
{
    CHECK(setpgid(0, 0) == 0);
    build_some();
}

/* Kills a start after `microseconds`; true if it was killed before its end. What it left running,
 * compilers, ends later. */
static bool kill_a_start(unsigned microseconds)
{
    pid_t child = start_child(build_in_a_group);
    usleep(microseconds);
    kill(child, SIGKILL);
    const int status = end_of(child);
    kill(-child, SIGKILL);
    return WIFSIGNALED(status);
}

static void killed_starts_leave_nothing_that_is_wrong(void **state)
{
    (void)state;
    enum { KILLS = 50 };
    struct image *images;
    u32 random = 1, killed = 0, partly = 0;
    char temporary[100];
    snprintf(temporary, sizeof temporary, "%s/tmp", folder); /* compilers of killed starts */
    assert_int_equal(mkdir(temporary, 0700), 0);
    setenv("TMPDIR", temporary, 1);
    const double started = clock_seconds();
    build_some();
    const double whole = 1e6 * (clock_seconds() - started);
    const size_t count = read_images(&images);
    for (int i = 0; i < KILLS; i++) {
        random = random * 1664525u + 1013904223u;
        for (size_t k = 0; k < count; k++)
            unlink(images[k].path);
        killed += kill_a_start((unsigned)(whole * (random >> 8) / (1 << 24)));
        const size_t there = check_images(images, count);
        partly += there > 0 && there < count;
    }
    assert_int_equal(count_lines(build_some, "warning:"), 0);
    assert_int_equal(check_images(images, count), count);
    assert_true(killed > 0);
    printf("# %u of %d starts were killed, %u with a part of the kernels stored\n", killed, KILLS,
           partly);
    unsetenv("TMPDIR");
    free_images(images, count);
}

/* ---- folders that cannot hold the kernels */

static void use_a_small_folder(void)
{
    CHECK(mkdir(cache_path, 0700) == 0);
    into_small_folder(cache_path, 24); /* one kernel, not all */
    build_some();
}

static void use_a_read_only_folder(void)
{
    CHECK(mkdir(cache_path, 0700) == 0);
    into_small_folder(cache_path, 1024);
    build_one(NULL);
    make_read_only(cache_path);
    build_some();
}

static void fill_and_count(void)
{
    CHECK(count_lines(use_a_small_folder, "kernel cache:") == 1);
}

static void read_and_count(void)
{
    CHECK(count_lines(use_a_read_only_folder, "kernel cache:") == 1);
}

static void a_start_with_a_full_folder_goes_on(void **state)
{
    (void)state;
    if (!may_mount())
        skip();
    assert_int_equal(end_of(start_child(fill_and_count)), 0);
}

static void a_start_with_a_read_only_folder_goes_on(void **state)
{
    (void)state;
    if (!may_mount())
        skip();
    assert_int_equal(end_of(start_child(read_and_count)), 0);
    assert_int_equal(compiles(), 5); /* the one that was there is not compiled again */
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
        if (strcmp(listing[i].name, "linear_middle") == 0)
            assert_string_equal(listing[i].parameters, "codebook, n, row_limit");
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
        TEST(every_compile_is_a_debug_line),
        TEST(images_that_do_not_load_are_compiled_again),
        TEST(another_text_is_another_key),
        TEST(broken_templates_name_their_line),
        TEST(sixteen_processes_compile_each_kernel_once),
        TEST(killed_starts_leave_nothing_that_is_wrong),
        TEST(a_start_with_a_full_folder_goes_on),
        TEST(a_start_with_a_read_only_folder_goes_on),
        TEST(the_plan_hash_names_the_plan),
        TEST(plan_seeds_draw_tuning_repeatably),
        TEST(records_override_the_default),
        TEST(override_folders_are_checked),
        TEST(kernels_render_for_any_target),
        TEST(schedules_are_listed_sorted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
