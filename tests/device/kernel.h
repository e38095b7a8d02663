/* kernel.h - small kernels in tests: text in, launched function out.
 *
 * A kernel is the prelude of the host (or of another target, for compile tests) followed by a
 * body. KERNEL_ENTRY(name) opens the entry on the host: slots[] are the 64-bit arguments.
 * Everything fails the test that calls it when something goes wrong.
 */
#ifndef TESTS_DEVICE_KERNEL_H
#define TESTS_DEVICE_KERNEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "device/device.h"

struct kernel {
    struct device *device;
    struct device_module *module;
    struct device_function *function;
};

/* prelude + body, as text that the caller frees. */
static inline struct buffer kernel_source(const char *prelude, const char *body)
{
    struct buffer source = {0}, part = {0};
    struct error error;
    const char *files[] = {prelude, "templates/prelude/math.h"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        if (file_read(&part, files[i], 1 << 20, &error) != 0)
            fail_msg("%s", error.text);
        buffer_format(&source, "#line 1 \"%s\"\n", files[i]);
        buffer_add_slice(&source, buffer_slice(&part));
    }
    buffer_format(&source, "#line 1 \"body\"\n%s", body);
    buffer_free(&part);
    return source;
}

static inline struct device *kernel_device(struct device_options options)
{
    struct device *device;
    struct error error;
    options.device = "host";
    if (device_open(&device, &options, &error) != 0)
        fail_msg("%s", error.text);
    return device;
}

/* The entry is named "entry". */
static inline struct kernel kernel_build(struct device *device, const char *body,
                                         struct device_geometry geometry)
{
    struct kernel kernel = {.device = device};
    struct buffer image = {0}, source = kernel_source("templates/prelude/host.h", body);
    struct error error;
    if (device_compile(device, buffer_slice(&source), "test", &image, &error) != 0 ||
        device_module_load(device, image.data, image.size, "test", &kernel.module, &error) != 0 ||
        device_function_get(device, kernel.module, "entry", &geometry, &kernel.function, &error) !=
            0)
        fail_msg("%s", error.text);
    buffer_free(&source);
    buffer_free(&image);
    return kernel;
}

static inline void kernel_free(struct kernel *kernel)
{
    device_module_unload(kernel->device, kernel->module);
}

static inline void kernel_run(struct kernel *kernel, const u64 *slots, u32 count)
{
    struct error error;
    if (device_launch(kernel->device, NULL, kernel->function, slots, count, &error) != 0)
        fail_msg("%s", error.text);
}

static inline void *kernel_memory(struct device *device, size_t bytes, const char *label)
{
    dptr address;
    struct error error;
    if (device_alloc(device, bytes, label, &address, &error) != 0)
        fail_msg("%s", error.text);
    return (void *)(uintptr_t)address;
}

#define SLOT(pointer) ((u64)(uintptr_t)(pointer))
#define ENTRY "void entry(const u64 *slots)\n"

#endif
