/* test_cuda.c - core/device/cuda.c against a fake driver: what it asks for and how it fails.
 *
 * The fake (fake_driver.c) is compiled into a folder of its own for each test, so each test has
 * fresh state. What a real GPU computes is not tested here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device.h"

static char folder[64];

static int make_folder(void **state)
{
    char command[300];
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/elpis-test-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(command, sizeof command,
             "cd %s && cc -shared -fPIC -w -o libcuda.so.1 $OLDPWD/tests/device/fake_driver.c && "
             "cp libcuda.so.1 libnvrtc.so.13 && cp libcuda.so.1 libnvidia-ml.so.1",
             folder);
    return system(command) == 0 ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    unsetenv("FAKE_SYNC");
    unsetenv("FAKE_NVML");
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 ? 0 : -1;
}

static void must(int status, const struct error *error)
{
    if (status != 0)
        fail_msg("%s", error->text);
}

static void expect(int status, const struct error *error, int code, const char *part)
{
    assert_int_equal(status, -1);
    if (!strstr(error->text, part) || error->code != code)
        fail_msg("expected code %d and \"%s\", found code %d in: %s", code, part, error->code,
                 error->text);
}

static struct device *open_device(const char *as)
{
    struct error error;
    struct device *device = NULL;
    const struct device_options options = {.device = "cuda", .as = as, .cuda_libraries = folder};
    must(device_open(&device, &options, &error), &error);
    return device;
}

static void refuse(const char *name, const char *as, int code, const char *part)
{
    struct error error = {0};
    struct device *device = NULL;
    const struct device_options options = {.device = name, .as = as, .cuda_libraries = folder};
    expect(device_open(&device, &options, &error), &error, code, part);
}

static void info_is_the_gpus(void **state)
{
    (void)state;
    struct device *device = open_device(NULL);
    const struct device_info *info = device_info(device);
    assert_int_equal(info->kind, DEVICE_CUDA);
    assert_string_equal(info->name, "Fake H200");
    assert_string_equal(info->target, "sm_90");
    assert_string_equal(info->compiler, "nvrtc 13.0");
    assert_non_null(strstr(info->driver, "(CUDA 13.0)"));
    assert_int_equal(info->arch, 90);
    assert_int_equal(info->sms, 132);
    assert_int_equal(info->shared_per_sm, 233472);
    assert_int_equal(info->shared_per_block, 232448);
    assert_int_equal(info->registers_per_sm, 65536);
    assert_true(info->full_rate_f32_accumulate);
    assert_int_equal(info->memory_total, 1 << 20);
    device_close(device);
}

static void the_plan_of_another_gpu(void **state)
{
    (void)state;
    struct device *device = open_device("sm_86:82:100K");
    const struct device_info *info = device_info(device);
    assert_string_equal(info->target, "sm_86");
    assert_int_equal(info->arch, 86);
    assert_int_equal(info->sms, 82);
    assert_int_equal(info->shared_per_sm, 100 << 10);
    assert_int_equal(info->shared_per_block, 99 << 10);
    assert_false(info->full_rate_f32_accumulate);
    assert_non_null(strstr(info->compiler, "linked for sm_90"));
    device_close(device);
}

static void wrong_plans_and_names_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "sm_86",
                                        "sm_86:82",
                                        "86:82:100K",
                                        "sm_86:0:100K",
                                        "sm_86:82:100M",
                                        "sm_86:82:100Kx",
                                        "sm_70:80:96K"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        refuse("cuda", wrong[i], ERROR_USAGE, "sm_86:82:100K");
    refuse("cuda", "sm_86:200:100K", ERROR_USAGE, "smaller GPU");
    refuse("cuda", "sm_86:82:400K", ERROR_USAGE, "smaller GPU");
    refuse("cuda", "sm_90:82:512", ERROR_USAGE, "smaller GPU");
    refuse("cuda:1", NULL, ERROR_DEVICE, "there are 1 GPUs");
    refuse("cuda:x", NULL, ERROR_USAGE, "cuda:x");
    refuse("cuda:", NULL, ERROR_USAGE, "cuda:N");
}

static void memory_is_zeroed_and_counted(void **state)
{
    (void)state;
    struct error error;
    struct device *device = open_device(NULL);
    dptr address = 0, empty = 0, large = 0;
    u8 bytes[1000];
    u64 free_bytes = 0;
    must(device_alloc(device, sizeof bytes, "a buffer", &address, &error), &error);
    must(device_alloc(device, 0, "nothing", &empty, &error), &error);
    memset(bytes, 1, sizeof bytes);
    must(device_copy_out(device, NULL, bytes, address, sizeof bytes, &error), &error);
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], 0);
    must(device_memory_free(device, &free_bytes, &error), &error);
    assert_in_range(free_bytes, 1, (1 << 20) - 1000);
    expect(device_alloc(device, 4 << 20, "the KV cache", &large, &error), &error, ERROR_MEMORY,
           "the KV cache needs 4.0 MiB");
    assert_int_equal(large, 0);
    device_free(device, address);
    device_free(device, empty);
    device_free(device, 0);
    device_close(device);
}

static void copies_go_through(void **state)
{
    (void)state;
    struct error error;
    struct device *device = open_device(NULL);
    dptr a, b, pinned_address;
    void *pinned;
    char text[] = "some bytes", back[sizeof text] = "";
    must(device_alloc(device, 64, "a", &a, &error), &error);
    must(device_alloc(device, 64, "b", &b, &error), &error);
    must(device_copy_in(device, NULL, a, text, sizeof text, &error), &error);
    must(device_copy(device, NULL, b, a, sizeof text, &error), &error);
    must(device_fill(device, NULL, b, 'x', 4, &error), &error);
    must(device_copy_out(device, NULL, back, b, sizeof text, &error), &error);
    assert_string_equal(back, "xxxx bytes");
    must(device_alloc_pinned(device, 64, &pinned, &pinned_address, &error), &error);
    assert_int_equal(*(u8 *)pinned, 0);
    assert_true(pinned_address != 0);
    device_free_pinned(device, pinned);
    device_free(device, a);
    device_free(device, b);
    device_close(device);
}

static struct device_module *load(struct device *device, const char *text)
{
    struct error error;
    struct device_module *module = NULL;
    struct buffer image = {0};
    must(device_compile(device, slice_of(text), "a kernel", &image, &error), &error);
    must(device_module_load(device, image.data, image.size, "a kernel", &module, &error), &error);
    buffer_free(&image);
    return module;
}

static void images_are_cubins_for_the_gpu(void **state)
{
    (void)state;
    struct error error;
    struct buffer image = {0};
    struct device *device = open_device(NULL);
    must(device_compile(device, SLICE("text"), "k", &image, &error), &error);
    assert_non_null(strstr(image.data, "--gpu-architecture=sm_90"));
    expect(device_compile(device, SLICE("broken"), "k", &image, &error), &error, ERROR_DEVICE,
           "a fake's error");
    device_close(device);
    device = open_device("sm_86:82:100K");
    must(device_compile(device, SLICE("text"), "k", &image, &error), &error);
    assert_non_null(strstr(image.data, "linked"));
    expect(device_compile(device, SLICE("bad PTX"), "k", &image, &error), &error, ERROR_DEVICE,
           "compute_86");
    device_close(device);
    buffer_free(&image);
}

static void modules_and_functions_are_checked(void **state)
{
    (void)state;
    struct error error;
    struct device_function *function = NULL;
    struct device *device = open_device(NULL);
    struct device_module *module = NULL;
    const struct device_geometry fits = {.grid = 264, .block = 128, .cooperative = true};
    const struct device_geometry too_many = {.grid = 265, .block = 128, .cooperative = true};
    struct device_resources resources;
    const struct device_geometry too_large = {.grid = 1, .block = 128, .shared = 240000};
    expect(device_module_load(device, "PTX text", 8, "k", &module, &error), &error, ERROR_DEVICE,
           "no cubin");
    expect(device_module_load(device, "\177ELF for another GPU", 20, "k", &module, &error), &error,
           ERROR_DEVICE, "another GPU");
    module = load(device, "text");
    expect(device_function_get(device, module, "g", &fits, &function, &error), &error, ERROR_DEVICE,
           "no function g");
    expect(device_function_get(device, module, "f", &too_many, &function, &error), &error,
           ERROR_DEVICE, "265 CTAs must all be resident, 264 fit");
    expect(device_function_get(device, module, "f", &too_large, &function, &error), &error,
           ERROR_DEVICE, "240000");
    must(device_function_get(device, module, "f", &fits, &function, &error), &error);
    must(device_function_resources(device, function, &resources, &error), &error);
    assert_int_equal(resources.registers, 32);
    assert_int_equal(resources.local_bytes, 32); /* the fake driver says 32 of everything */
    device_module_unload(device, module);
    device_close(device);
}

static u64 value_at(struct device *device, dptr address)
{
    struct error error;
    u64 value = 0;
    must(device_copy_out(device, NULL, &value, address, sizeof value, &error), &error);
    return value;
}

/* What `as` plans for knows no overlapping launches below sm_90: there a cooperative one is one.
 * A pass's first launch overlaps nowhere. */
static void check_ways(const char *as, u64 overlapping, u64 both)
{
    struct error error;
    struct device *device = open_device(as);
    struct device_module *module = load(device, "text");
    const u64 first[] = {7, 7, 7 + 2000, 7 + 2000};
    const u64 wanted[] = {7, 7 + overlapping, 7 + 2000, 7 + both};
    dptr address;
    must(device_alloc(device, 8, "a", &address, &error), &error);
    for (u32 way = 0; way < 4; way++) {
        const struct device_geometry geometry = {
            .grid = 1, .block = 32, .overlaps = way % 2, .cooperative = way / 2};
        struct device_function *function = NULL;
        must(device_function_get(device, module, "f", &geometry, &function, &error), &error);
        must(device_launch(device, NULL, function, (u64[]){address, 7}, 2, &error), &error);
        assert_int_equal(value_at(device, address), first[way]);
        for (u32 i = 0; i < 2; i++)
            must(device_launch(device, NULL, function, (u64[]){address, 7}, 2, &error), &error);
        assert_int_equal(value_at(device, address), wanted[way]);
    }
    device_free(device, address);
    device_module_unload(device, module);
    device_close(device);
}

static void launches_come_as_they_may(void **state)
{
    (void)state;
    check_ways(NULL, 1000, 1000);
    check_ways("sm_86:82:100K", 0, 2000);
}

/* What is asked of the stream, or of another, between two launches. */
enum between { COPY_IN, COPY_OUT, COPY, FILL, SYNC, WAIT, GRAPH, RECORD, OTHER_STREAM, BETWEEN };

static void do_between(struct device *device, enum between what, struct device_function *function,
                       dptr scratch)
{
    struct error error;
    struct device_event *event;
    struct device_stream *other;
    struct device_graph *graph;
    u64 word = 0;
    must(device_event_create(device, &event, &error), &error);
    must(device_stream_create(device, DEVICE_FIRST, &other, &error), &error);
    switch (what) {
    case COPY_IN: must(device_copy_in(device, NULL, scratch, &word, 8, &error), &error); break;
    case COPY_OUT: must(device_copy_out(device, NULL, &word, scratch, 8, &error), &error); break;
    case COPY: must(device_copy(device, NULL, scratch, scratch + 8, 8, &error), &error); break;
    case FILL: must(device_fill(device, NULL, scratch, 0, 8, &error), &error); break;
    case SYNC: must(device_sync(device, NULL, &error), &error); break;
    case WAIT: must(device_event_wait(device, NULL, event, &error), &error); break;
    case GRAPH:
        must(device_graph_begin(device, other, &error), &error);
        must(device_launch(device, other, function, (u64[]){scratch, 1}, 2, &error), &error);
        must(device_graph_end(device, other, &graph, &error), &error);
        must(device_graph_launch(device, NULL, graph, &error), &error);
        device_graph_destroy(device, graph);
        break;
    case RECORD: must(device_event_record(device, event, NULL, &error), &error); break;
    default: must(device_fill(device, other, scratch, 0, 8, &error), &error); break;
    }
    device_event_destroy(device, event);
    device_stream_destroy(device, other);
}

static void other_things_end_a_pass(void **state)
{
    (void)state;
    struct error error;
    struct device_function *function = NULL;
    struct device *device = open_device(NULL);
    struct device_module *module = load(device, "text");
    const struct device_geometry geometry = {.grid = 1, .block = 32, .overlaps = true};
    dptr address;
    must(device_alloc(device, 24, "a", &address, &error), &error);
    must(device_function_get(device, module, "f", &geometry, &function, &error), &error);
    for (enum between what = 0; what < BETWEEN; what++) {
        const u64 wanted = what == RECORD || what == OTHER_STREAM ? 1007 : 7;
        must(device_launch(device, NULL, function, (u64[]){address, 7}, 2, &error), &error);
        do_between(device, what, function, address + 8);
        must(device_launch(device, NULL, function, (u64[]){address, 7}, 2, &error), &error);
        const u64 found = value_at(device, address);
        if (found != wanted)
            fail_msg("behind %d: expected a launch of %llu, got %llu", what,
                     (unsigned long long)wanted, (unsigned long long)found);
    }
    device_free(device, address);
    device_module_unload(device, module);
    device_close(device);
}

/* The first launch of a recording may be replayed behind anything. */
static void a_recording_begins_a_pass(void **state)
{
    (void)state;
    struct error error;
    struct device_function *function = NULL;
    struct device_graph *graph = NULL;
    struct device *device = open_device(NULL);
    struct device_module *module = load(device, "text");
    const struct device_geometry geometry = {.grid = 1, .block = 32, .overlaps = true};
    dptr address;
    must(device_alloc(device, 16, "a", &address, &error), &error);
    must(device_function_get(device, module, "f", &geometry, &function, &error), &error);
    must(device_launch(device, NULL, function, (u64[]){address, 7}, 2, &error), &error);
    must(device_graph_begin(device, NULL, &error), &error);
    for (u32 i = 0; i < 2; i++)
        must(device_launch(device, NULL, function, (u64[]){address + 8 * i, 7}, 2, &error), &error);
    must(device_graph_end(device, NULL, &graph, &error), &error);
    must(device_graph_launch(device, NULL, graph, &error), &error);
    assert_int_equal(value_at(device, address), 7);
    assert_int_equal(value_at(device, address + 8), 1007);
    device_graph_destroy(device, graph);
    device_free(device, address);
    device_module_unload(device, module);
    device_close(device);
}

static void launches_and_graphs_run(void **state)
{
    (void)state;
    struct error error;
    struct device_function *function = NULL;
    struct device_graph *graph = NULL;
    struct device_stream *stream = NULL;
    struct device *device = open_device(NULL);
    struct device_module *module = load(device, "text");
    const struct device_geometry geometry = {.grid = 1, .block = 32, .shared = 100000};
    dptr address;
    must(device_alloc(device, 8, "a", &address, &error), &error);
    must(device_function_get(device, module, "f", &geometry, &function, &error), &error);
    must(device_launch(device, NULL, function, (u64[]){address, 7}, 2, &error), &error);
    assert_int_equal(value_at(device, address), 7);

    must(device_stream_create(device, DEVICE_FIRST, &stream, &error), &error);
    must(device_graph_begin(device, stream, &error), &error);
    must(device_launch(device, stream, function, (u64[]){address, 8}, 2, &error), &error);
    must(device_graph_end(device, stream, &graph, &error), &error);
    assert_int_equal(value_at(device, address), 7);
    must(device_graph_launch(device, stream, graph, &error), &error);
    must(device_sync(device, stream, &error), &error);
    assert_int_equal(value_at(device, address), 8);

    device_graph_destroy(device, graph);
    device_stream_destroy(device, stream);
    device_free(device, address);
    device_module_unload(device, module);
    device_close(device);
}

/* The stand-in adds 50 on a stream of the least priority. */
static void streams_have_priorities(void **state)
{
    (void)state;
    struct error error;
    struct device_function *function = NULL;
    struct device_stream *streams[] = {NULL, NULL, NULL};
    struct device *device = open_device(NULL);
    struct device_module *module = load(device, "text");
    const struct device_geometry geometry = {.grid = 1, .block = 32};
    const u64 wanted[] = {7, 7, 57};
    dptr address;
    must(device_alloc(device, 8, "a", &address, &error), &error);
    must(device_function_get(device, module, "f", &geometry, &function, &error), &error);
    must(device_stream_create(device, DEVICE_FIRST, &streams[1], &error), &error);
    must(device_stream_create(device, DEVICE_LAST, &streams[2], &error), &error);
    for (u32 i = 0; i < COUNT_OF(streams); i++) {
        must(device_launch(device, streams[i], function, (u64[]){address, 7}, 2, &error), &error);
        assert_int_equal(value_at(device, address), wanted[i]);
        device_stream_destroy(device, streams[i]);
    }
    device_free(device, address);
    device_module_unload(device, module);
    device_close(device);
}

static void events_time_in_seconds(void **state)
{
    (void)state;
    struct error error;
    struct device_event *from = NULL, *to = NULL;
    struct device *device = open_device(NULL);
    double seconds = 0;
    must(device_event_create(device, &from, &error), &error);
    must(device_event_create(device, &to, &error), &error);
    must(device_event_record(device, from, NULL, &error), &error);
    must(device_event_record(device, to, NULL, &error), &error);
    must(device_event_wait(device, NULL, from, &error), &error);
    must(device_event_sync(device, to, &error), &error);
    must(device_event_elapsed(device, from, to, &seconds, &error), &error);
    assert_float_equal(seconds, 0.002, 1e-6);
    device_event_destroy(device, from);
    device_event_destroy(device, to);
    device_close(device);
}

static void lost_contexts_are_fatal_and_others_are_not(void **state)
{
    (void)state;
    struct error error;
    struct device *device = open_device(NULL);
    setenv("FAKE_SYNC", "700", 1);
    expect(device_sync(device, NULL, &error), &error, ERROR_FATAL, "restart the program");
    setenv("FAKE_SYNC", "1", 1);
    expect(device_sync(device, NULL, &error), &error, ERROR_DEVICE, "a fake's text");
    unsetenv("FAKE_SYNC");
    device_close(device);
}

static void libraries_are_described(void **state)
{
    (void)state;
    struct buffer text = {0};
    device_describe_libraries(&text, folder);
    assert_non_null(strstr(text.data, "(CUDA 13.0)"));
    assert_non_null(strstr(text.data, "NVRTC      13.0"));
    assert_non_null(strstr(text.data, folder));
    buffer_free(&text);
}

static void sensors_are_read_while_they_run(void **state)
{
    (void)state;
    struct error error;
    struct device *device = open_device(NULL);
    struct device_sensors *sensors = NULL;
    struct device_readings readings;
    must(device_sensors_open(device, &sensors, &error), &error);
    for (u32 i = 0; i < 2; i++) {
        device_sensors_begin(sensors);
        device_sensors_end(sensors, &readings);
        assert_int_not_equal(readings.count, 0);
        assert_true(readings.sm_mhz == 1980);
        assert_true(readings.memory_mhz == 3201);
        assert_true(readings.watts == -1); /* it does not tell */
        assert_true(readings.celsius >= 40);
    }
    device_sensors_end(sensors, &readings); /* nothing was begun */
    assert_int_equal(readings.count, 0);
    device_sensors_end(NULL, &readings);
    assert_int_equal(readings.count, 0);
    device_sensors_close(sensors);
    setenv("FAKE_NVML", "9", 1);
    expect(device_sensors_open(device, &sensors, &error), &error, ERROR_DEVICE,
           "NVML: a fake's NVML error (GPU 0000:19:00.0)");
    device_close(device);
}

static void a_copy_to_time_needs_memory(void **state)
{
    (void)state;
    struct error error;
    double bandwidth;
    struct device *device = open_device(NULL);
    /* the fake has 1 MiB: less than the least that is copied */
    expect(device_copy_bandwidth(device, &bandwidth, &error), &error, ERROR_MEMORY,
           "copy from needs 64.0 MiB");
    device_close(device);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(info_is_the_gpus),
        TEST(the_plan_of_another_gpu),
        TEST(wrong_plans_and_names_are_refused),
        TEST(memory_is_zeroed_and_counted),
        TEST(copies_go_through),
        TEST(images_are_cubins_for_the_gpu),
        TEST(modules_and_functions_are_checked),
        TEST(launches_come_as_they_may),
        TEST(other_things_end_a_pass),
        TEST(a_recording_begins_a_pass),
        TEST(launches_and_graphs_run),
        TEST(streams_have_priorities),
        TEST(events_time_in_seconds),
        TEST(lost_contexts_are_fatal_and_others_are_not),
        TEST(libraries_are_described),
        TEST(sensors_are_read_while_they_run),
        TEST(a_copy_to_time_needs_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
