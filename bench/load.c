/* load.c - where the time of loading goes: the parts that engine_open has, one by one.
 *
 *     build/bench/load MODEL/model.safetensors [DEVICE]
 *
 * Prints seconds and GB/s of: opening the device; the file's tensors allocated on it one by one;
 * page-locked memory of the largest plain table (the embedding) allocated and filled by threads; a
 * part of the file copied straight from its mapping by one thread; the whole file through the
 * uploader, ROUNDS times (the first may have to read the disk).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_private.h"

#define GB 1e9
enum { ROUNDS = 3 };
static const u64 straight_most = 1000000000;

static void stop(const struct error *error)
{
    fprintf(stderr, "load: %s\n", error->text);
    exit(error->code);
}

static void line(const char *what, u64 bytes, double start)
{
    const double seconds = clock_seconds() - start;
    if (bytes)
        printf("%-44s %8.3f s  %7.2f GB  %6.2f GB/s\n", what, seconds, (double)bytes / GB,
               (double)bytes / GB / seconds);
    else
        printf("%-44s %8.3f s\n", what, seconds);
    fflush(stdout);
}

/* The largest tensor of a float dtype: the embedding. */
static const struct tensor *find_table(const struct tensor_file *file)
{
    const struct tensor *table = tensor_file_at(file, 0);
    for (size_t i = 1; i < tensor_file_count(file); i++) {
        const struct tensor *tensor = tensor_file_at(file, i);
        if (tensor->dtype != DTYPE_I16 && tensor->bytes > table->bytes)
            table = tensor;
    }
    return table;
}

static void measure_pinned(struct device *device, const struct tensor *table)
{
    struct error error = {0};
    struct uploader *uploader = uploader_create(device, true);
    void *host;
    dptr address;
    double start = clock_seconds();
    if (device_alloc_pinned(device, table->bytes, &host, &address, &error))
        stop(&error);
    line("page-locked table allocated", table->bytes, start);
    for (u32 i = 0; i < 2; i++) {
        start = clock_seconds();
        if (uploader_add_host(uploader, host, table->data, table->bytes, &error) ||
            uploader_finish(uploader, &error))
            stop(&error);
        line("  filled by threads", table->bytes, start);
    }
    uploader_destroy(uploader);
    device_free_pinned(device, host);
}

static dptr *allocate(struct device *device, const struct tensor_file *file, u64 *bytes)
{
    struct error error = {0};
    const double start = clock_seconds();
    dptr *addresses = memory_alloc(tensor_file_count(file) * sizeof *addresses);
    *bytes = 0;
    for (size_t i = 0; i < tensor_file_count(file); i++) {
        const struct tensor *tensor = tensor_file_at(file, i);
        if (device_alloc(device, tensor->bytes, tensor->name, &addresses[i], &error))
            stop(&error);
        *bytes += tensor->bytes;
    }
    line("device memory, a piece a tensor", *bytes, start);
    return addresses;
}

static void measure_straight(struct device *device, const struct tensor_file *file,
                             const dptr *addresses)
{
    struct error error = {0};
    const double start = clock_seconds();
    u64 bytes = 0;
    for (size_t i = 0; i < tensor_file_count(file) && bytes < straight_most; i++) {
        const struct tensor *tensor = tensor_file_at(file, i);
        if (device_copy_in(device, NULL, addresses[i], tensor->data, tensor->bytes, &error))
            stop(&error);
        bytes += tensor->bytes;
    }
    if (device_sync(device, NULL, &error))
        stop(&error);
    line("straight from the mapping", bytes, start);
}

static void measure_uploader(struct device *device, const struct tensor_file *file,
                             const dptr *addresses, u64 bytes)
{
    struct error error = {0};
    for (u32 i = 0; i < ROUNDS; i++) {
        const double start = clock_seconds();
        struct uploader *uploader = uploader_create(device, true);
        for (size_t t = 0; t < tensor_file_count(file); t++) {
            const struct tensor *tensor = tensor_file_at(file, t);
            if (uploader_add(uploader, addresses[t], tensor->data, tensor->bytes, &error))
                stop(&error);
        }
        if (uploader_finish(uploader, &error))
            stop(&error);
        line("uploader", bytes, start);
        uploader_destroy(uploader);
    }
}

int main(int argc, char **argv)
{
    struct device *device = NULL;
    struct tensor_file *file = NULL;
    struct error error = {0};
    u64 bytes;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: load MODEL/model.safetensors [DEVICE]\n");
        return ERROR_USAGE;
    }
    const struct device_options options = {.device = argc > 2 ? argv[2] : NULL};
    log_set_level(LOG_WARN);
    double start = clock_seconds();
    if (device_open(&device, &options, &error))
        stop(&error);
    line("device opened", 0, start);
    start = clock_seconds();
    if (tensor_file_open(&file, argv[1], &error))
        stop(&error);
    line("file opened", 0, start);
    dptr *addresses = allocate(device, file, &bytes);
    measure_pinned(device, find_table(file));
    measure_straight(device, file, addresses);
    measure_uploader(device, file, addresses, bytes);
    for (size_t i = 0; i < tensor_file_count(file); i++)
        device_free(device, addresses[i]);
    memory_free(addresses);
    tensor_file_close(file);
    device_close(device);
    return 0;
}
