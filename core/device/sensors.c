/* sensors.c - clocks, power and temperature of a GPU while something runs on it.
 *
 * NVML comes with the driver and is opened at run time. It knows GPUs by their place on the PCI
 * bus, which the driver tells of the one that is open. A thread reads between begin and end, so
 * that what is measured never waits for a reading; begin and end come from one thread.
 *
 * Signatures: NVML API reference, version 12.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "device/driver.h"

enum {
    CLOCK_SM = 1,
    CLOCK_MEMORY = 2,
    CELSIUS_GPU = 0,
    BUS_LENGTH = 32,
    PAUSE_NANOSECONDS = 20 * 1000 * 1000, /* between readings; power is a mean over longer */
};

typedef struct nvml_handle *nvml_device;

struct nvml_api {
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_bus)(const char *bus, nvml_device *device);
    int (*clock)(nvml_device device, int type, unsigned *megahertz);
    int (*power)(nvml_device device, unsigned *milliwatts);
    int (*temperature)(nvml_device device, int sensor, unsigned *celsius);
    const char *(*text)(int result);
};

/* One quantity: its sum over the readings that gave it. */
struct quantity {
    double sum;
    u32 count;
};

struct device_sensors {
    struct nvml_api api;
    nvml_device device;
    bool initialised;
    pthread_t thread;
    bool running;     /* the thread is there */
    atomic_bool stop; /* it is asked to end */
    u32 count;        /* readings since begin; the thread's until it has ended */
    struct quantity sm, memory, power, temperature;
};

static int load_library(struct device_sensors *sensors, const char *folder, struct error *error)
{
    struct nvml_api *api = &sensors->api;
    struct library library;
    const struct library_symbol symbols[] = {
        {"nvmlInit_v2", (void **)&api->init},
        {"nvmlShutdown", (void **)&api->shutdown},
        {"nvmlDeviceGetHandleByPciBusId_v2", (void **)&api->by_bus},
        {"nvmlDeviceGetClockInfo", (void **)&api->clock},
        {"nvmlDeviceGetPowerUsage", (void **)&api->power},
        {"nvmlDeviceGetTemperature", (void **)&api->temperature},
        {"nvmlErrorString", (void **)&api->text},
    };
    return library_open(&library, LIBRARY_NVML, folder, 0, error) ||
                   library_symbols(&library, symbols, COUNT_OF(symbols), error)
               ? -1
               : 0;
}

static int find_gpu(struct device_sensors *sensors, struct device *device, struct error *error)
{
    struct cuda_device *cuda;
    char bus[BUS_LENGTH];
    if (cuda_enter(device, &cuda, error) || load_library(sensors, cuda->cuda_libraries, error))
        return -1;
    const cu_result result = cuda->api.device_bus(bus, sizeof bus, cuda->number);
    if (result != 0)
        return cuda_fail(cuda, error, result, "asking for the place on the bus");
    int status = sensors->api.init();
    sensors->initialised = status == 0;
    if (status == 0)
        status = sensors->api.by_bus(bus, &sensors->device);
    return status == 0 ? 0
                       : error_set(error, ERROR_DEVICE, "NVML: %s (GPU %s)",
                                   sensors->api.text(status), bus);
}

int device_sensors_open(struct device *device, struct device_sensors **out, struct error *error)
{
    if (device_info(device)->kind == DEVICE_HOST)
        return error_set(error, ERROR_DEVICE, "the host device has no sensors");
    struct device_sensors *sensors = memory_alloc(sizeof *sensors);
    if (find_gpu(sensors, device, error)) {
        device_sensors_close(sensors);
        return -1;
    }
    *out = sensors;
    return 0;
}

void device_sensors_close(struct device_sensors *sensors)
{
    if (!sensors)
        return;
    device_sensors_end(sensors, &(struct device_readings){0});
    if (sensors->initialised)
        sensors->api.shutdown();
    memory_free(sensors);
}

static void add_reading(struct quantity *quantity, int status, unsigned value)
{
    quantity->sum += status == 0 ? value : 0;
    quantity->count += status == 0;
}

static void read_once(struct device_sensors *sensors)
{
    const struct nvml_api *api = &sensors->api;
    unsigned value = 0;
    int status = api->clock(sensors->device, CLOCK_SM, &value);
    add_reading(&sensors->sm, status, value);
    status = api->clock(sensors->device, CLOCK_MEMORY, &value);
    add_reading(&sensors->memory, status, value);
    status = api->power(sensors->device, &value);
    add_reading(&sensors->power, status, value);
    status = api->temperature(sensors->device, CELSIUS_GPU, &value);
    add_reading(&sensors->temperature, status, value);
    sensors->count++;
}

static void *read_until_stopped(void *user)
{
    struct device_sensors *sensors = user;
    const struct timespec pause = {.tv_nsec = PAUSE_NANOSECONDS};
    do {
        nanosleep(&pause, NULL);
        read_once(sensors);
    } while (!atomic_load(&sensors->stop));
    return NULL;
}

void device_sensors_begin(struct device_sensors *sensors)
{
    const struct quantity none = {0};
    if (!sensors)
        return;
    sensors->count = 0;
    sensors->sm = sensors->memory = sensors->power = sensors->temperature = none;
    atomic_store(&sensors->stop, false);
    sensors->running = pthread_create(&sensors->thread, NULL, read_until_stopped, sensors) == 0;
}

static double mean_of(const struct quantity *quantity, double unit)
{
    return quantity->count ? quantity->sum / quantity->count * unit : -1;
}

void device_sensors_end(struct device_sensors *sensors, struct device_readings *readings)
{
    *readings = (struct device_readings){0};
    if (!sensors || !sensors->running)
        return;
    atomic_store(&sensors->stop, true);
    pthread_join(sensors->thread, NULL);
    sensors->running = false;
    *readings = (struct device_readings){.count = sensors->count,
                                         .sm_mhz = mean_of(&sensors->sm, 1),
                                         .memory_mhz = mean_of(&sensors->memory, 1),
                                         .watts = mean_of(&sensors->power, 1e-3),
                                         .celsius = mean_of(&sensors->temperature, 1)};
}
