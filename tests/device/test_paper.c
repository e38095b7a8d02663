/* test_paper.c - core/device/paper.c: plans like the GPU meant, remembers launches, runs none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"

static struct device *open_paper(const char *as)
{
    const struct device_options options = {.paper = true, .as = as};
    struct device *device = NULL;
    struct error error;
    if (device_open(&device, &options, &error) != 0)
        fail_msg("%s", error.text);
    return device;
}

static void it_is_the_gpu_meant(void **state)
{
    (void)state;
    struct device *device = open_paper("sm_86:82:100K");
    const struct device_info *info = device_info(device);
    assert_int_equal(info->kind, DEVICE_PAPER);
    assert_string_equal(info->target, "sm_86");
    assert_int_equal(info->arch, 86);
    assert_int_equal(info->sms, 82);
    assert_int_equal(info->shared_per_sm, 102400);
    assert_int_equal(info->shared_per_block, 101376);
    device_close(device);
}

static void a_gpu_must_be_named(void **state)
{
    (void)state;
    static const char *const wrong[] = {NULL, "sm_86", "sm_75:68:64K", "sm_86:82:1K"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const struct device_options options = {.paper = true, .as = wrong[i]};
        struct device *device = NULL;
        struct error error;
        assert_int_equal(device_open(&device, &options, &error), -1);
        assert_int_equal(error.code, ERROR_USAGE);
    }
}

static void memory_is_as_large_as_it_is_asked_for(void **state)
{
    (void)state;
    enum { WORDS = 4 };
    const size_t large = (size_t)64 << 30; /* more than any machine that runs the tests */
    struct device *device = open_paper("sm_86:82:100K");
    struct error error;
    dptr small, huge;
    u32 words[WORDS] = {1, 2, 3, 4}, found[WORDS] = {0};
    assert_int_equal(device_alloc(device, large, "huge", &huge, &error), 0);
    assert_int_equal(device_alloc(device, sizeof words, "small", &small, &error), 0);
    assert_int_equal(device_copy_in(device, NULL, small, words, sizeof words, &error), 0);
    assert_true(device_paper_read(device, small, found, sizeof found));
    assert_memory_equal(found, words, sizeof words);
    assert_true(device_paper_read(device, small + 12, found, 4));
    assert_int_equal(found[0], 4);
    assert_false(device_paper_read(device, small + 13, found, 4));
    assert_true(device_paper_read(device, huge + large - 8, found, 8));
    assert_int_equal(found[0], 0);
    device_free(device, small);
    assert_false(device_paper_read(device, small, found, 4));
    device_close(device);
}

static void launches_are_remembered(void **state)
{
    (void)state;
    const struct device_geometry geometry = {.grid = 82, .block = 128};
    struct device *device = open_paper("sm_86:82:100K");
    struct device_module *module = NULL;
    struct device_function *function = NULL;
    struct buffer image = {0};
    struct error error;
    size_t count = 0;
    assert_int_equal(device_compile(device, SLICE("any text"), "f", &image, &error), 0);
    assert_int_equal(image.size, strlen("any text"));
    assert_int_equal(device_module_load(device, image.data, image.size, "f", &module, &error), 0);
    assert_int_equal(device_function_get(device, module, "f", &geometry, &function, &error), 0);
    for (u64 i = 0; i < 3; i++) {
        const u64 arguments[] = {i, 7};
        assert_int_equal(device_launch(device, NULL, function, arguments, 2, &error), 0);
    }
    const struct device_paper_launch *launches = device_paper_launches(device, &count);
    assert_int_equal(count, 3);
    assert_ptr_equal(launches[2].function, function);
    assert_int_equal(launches[2].count, 2);
    assert_int_equal(launches[2].arguments[0], 2);
    assert_int_equal(launches[2].arguments[1], 7);
    device_paper_clear(device);
    device_paper_launches(device, &count);
    assert_int_equal(count, 0);
    device_module_unload(device, module);
    buffer_free(&image);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_gpu_meant),
        cmocka_unit_test(a_gpu_must_be_named),
        cmocka_unit_test(memory_is_as_large_as_it_is_asked_for),
        cmocka_unit_test(launches_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
