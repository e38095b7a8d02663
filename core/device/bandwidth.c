/* bandwidth.c - how fast the device copies its own memory. */
#include <stdlib.h>

#include "device/device.h"

#define BYTES (1ull << 30) /* ten times the largest L2 and more */
#define BYTES_HOST (64ull << 20)
#define BYTES_LEAST (64ull << 20)

#define WARM_UP_SECONDS 0.1 /* clocks rise slowly */

enum { RUNS = 9 };

struct copy {
    struct device *device;
    struct device_event *begin, *end;
    dptr from, to;
    u64 bytes;
};

/* Halves the size while the memory is not there. */
static int alloc_copy(struct copy *copy, struct error *error)
{
    for (;; copy->bytes /= 2) {
        if (device_alloc(copy->device, copy->bytes, "copy from", &copy->from, error) == 0 &&
            device_alloc(copy->device, copy->bytes, "copy to", &copy->to, error) == 0)
            return 0;
        device_free(copy->device, copy->from);
        copy->from = 0;
        if (error->code != ERROR_MEMORY || copy->bytes / 2 < BYTES_LEAST)
            return -1;
    }
}

static int time_copy(struct copy *copy, double *seconds, struct error *error)
{
    struct device *device = copy->device;
    return device_event_record(device, copy->begin, NULL, error) ||
                   device_copy(device, NULL, copy->to, copy->from, copy->bytes, error) ||
                   device_event_record(device, copy->end, NULL, error) ||
                   device_event_sync(device, copy->end, error) ||
                   device_event_elapsed(device, copy->begin, copy->end, seconds, error)
               ? -1
               : 0;
}

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int device_copy_bandwidth(struct device *device, double *bytes_a_second, struct error *error)
{
    const bool host = device_info(device)->kind == DEVICE_HOST;
    struct copy copy = {.device = device, .bytes = host ? BYTES_HOST : BYTES};
    double seconds[RUNS];
    int failed = device_event_create(device, &copy.begin, error) ||
                 device_event_create(device, &copy.end, error) || alloc_copy(&copy, error);
    const double start = clock_seconds();
    while (!failed && clock_seconds() - start < WARM_UP_SECONDS)
        failed = time_copy(&copy, &seconds[0], error);
    for (u32 run = 0; run < RUNS && !failed; run++)
        failed = time_copy(&copy, &seconds[run], error);
    if (!failed) {
        qsort(seconds, RUNS, sizeof *seconds, compare);
        *bytes_a_second = 2.0 * (double)copy.bytes / seconds[RUNS / 2];
    }
    device_free(device, copy.from);
    device_free(device, copy.to);
    device_event_destroy(device, copy.begin);
    device_event_destroy(device, copy.end);
    return failed ? -1 : 0;
}
