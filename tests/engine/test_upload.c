/* test_upload.c - large data on its way to the device: every byte arrives, whatever the sizes, on
 * the direct way and through the ring of page-locked slots, and a failure of the device ends it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/device_private.h"
#include "engine/engine_private.h"

enum { PIECE = 4 << 20, BLOBS = 9 };

/* More pieces than the ring has slots, and every odd size around a piece. */
static const size_t sizes[BLOBS] = {1, PIECE - 1, PIECE,     PIECE + 1, 37 * (size_t)PIECE + 12345,
                                    0, 4097,      2 * PIECE, 999999};

static struct device *device;
static const struct device_backend *own_backend; /* the device's; a test may put another over it */

static int open_device(void **state)
{
    const char *name = getenv("ELPIS_TEST_DEVICE");
    const struct device_options options = {.device = name ? name : "host"};
    struct error error = {0};
    (void)state;
    if (device_open(&device, &options, &error)) {
        print_error("%s\n", error.text);
        return -1;
    }
    own_backend = device->backend;
    return 0;
}

static int restore_backend(void **state)
{
    (void)state;
    device->backend = own_backend;
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    device_close(device);
    return 0;
}

static void need(int result, const struct error *error)
{
    if (result)
        fail_msg("%s", error->text);
}

static dptr device_bytes(size_t bytes)
{
    struct error error = {0};
    dptr address = 0;
    need(device_alloc(device, bytes, "test", &address, &error), &error);
    return address;
}

static u8 *random_bytes(size_t size, u64 seed)
{
    u8 *bytes = memory_alloc(size + 8);
    for (size_t i = 0; i < size; i += 8) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const u64 word = seed ^ seed >> 29;
        memcpy(bytes + i, &word, sizeof word);
    }
    return bytes;
}

static void add_all(struct uploader *uploader, u8 *const *from, const dptr *to)
{
    struct error error = {0};
    for (u32 i = 0; i < BLOBS; i++)
        need(uploader_add(uploader, to[i], from[i], sizes[i], &error), &error);
}

static void expect_all(u8 *const *from, const dptr *to)
{
    struct error error = {0};
    for (u32 i = 0; i < BLOBS; i++) {
        u8 *back = memory_alloc(sizes[i] + 1);
        need(device_copy_out(device, NULL, back, to[i], sizes[i], &error), &error);
        need(device_sync(device, NULL, &error), &error);
        if (memcmp(back, from[i], sizes[i]) != 0)
            fail_msg("blob %u of %zu bytes did not arrive", i, sizes[i]);
        memory_free(back);
    }
}

static void upload(bool staged)
{
    struct error error = {0};
    u8 *from[BLOBS];
    dptr to[BLOBS];
    struct uploader *uploader = uploader_create(device, staged);
    for (u32 round = 0; round < 2; round++) { /* the second on the same threads and slots */
        for (u32 i = 0; i < BLOBS; i++) {
            from[i] = random_bytes(sizes[i], i + 100 * round);
            to[i] = device_bytes(sizes[i]);
        }
        u8 *host = memory_alloc(sizes[4] + 1);
        need(uploader_add_host(uploader, host, from[4], sizes[4], &error), &error);
        add_all(uploader, from, to);
        need(uploader_finish(uploader, &error), &error);
        expect_all(from, to);
        assert_memory_equal(host, from[4], sizes[4]);
        assert_int_equal(host[sizes[4]], 0);
        memory_free(host);
        for (u32 i = 0; i < BLOBS; i++) {
            memory_free(from[i]);
            device_free(device, to[i]);
        }
    }
    uploader_destroy(uploader);
}

static void test_staged(void **state)
{
    (void)state;
    upload(true);
}

static void test_direct(void **state)
{
    (void)state;
    if (device_info(device)->kind == DEVICE_CUDA)
        skip();
    upload(false);
}

/* ---- a device that takes its time: copies are made when somebody waits for them, at the latest
 * possible moment, and all after the first `allowed` fail */

static struct {
    struct {
        dptr to;
        const void *from;
        size_t bytes;
    } copies[4096];
    u32 count, done, allowed;
    struct {
        struct device_event *event;
        u32 count; /* copies before it */
    } events[64];
    u32 event_count;
} lazy;

static int lazy_copy_in(struct device *self, struct device_stream *stream, dptr to,
                        const void *from, size_t bytes, struct error *error)
{
    (void)self;
    (void)stream;
    if (lazy.count == lazy.allowed)
        return error_set(error, ERROR_FATAL, "the copy failed");
    assert_true(lazy.count < COUNT_OF(lazy.copies));
    lazy.copies[lazy.count].to = to;
    lazy.copies[lazy.count].from = from;
    lazy.copies[lazy.count++].bytes = bytes;
    return 0;
}

static void lazy_copy(u32 count)
{
    for (; lazy.done < count; lazy.done++)
        memcpy((void *)(uintptr_t)lazy.copies[lazy.done].to, lazy.copies[lazy.done].from,
               lazy.copies[lazy.done].bytes);
}

static u32 *lazy_event(struct device_event *event)
{
    for (u32 i = 0; i < lazy.event_count; i++)
        if (lazy.events[i].event == event)
            return &lazy.events[i].count;
    assert_true(lazy.event_count < COUNT_OF(lazy.events));
    lazy.events[lazy.event_count].event = event;
    return &lazy.events[lazy.event_count++].count;
}

static int lazy_record(struct device *self, struct device_event *event,
                       struct device_stream *stream, struct error *error)
{
    (void)self;
    (void)stream;
    (void)error;
    *lazy_event(event) = lazy.count;
    return 0;
}

static int lazy_event_sync(struct device *self, struct device_event *event, struct error *error)
{
    (void)self;
    (void)error;
    lazy_copy(*lazy_event(event));
    return 0;
}

static int lazy_sync(struct device *self, struct device_stream *stream, struct error *error)
{
    (void)self;
    (void)stream;
    (void)error;
    lazy_copy(lazy.count);
    return 0;
}

static void with_lazy_device(u32 allowed, void (*test)(void))
{
    static struct device_backend backend;
    if (device->info.kind == DEVICE_CUDA)
        skip();
    backend = *own_backend;
    backend.copy_in = lazy_copy_in;
    backend.event_record = lazy_record;
    backend.event_sync = lazy_event_sync;
    backend.sync = lazy_sync;
    memset(&lazy, 0, sizeof lazy);
    lazy.allowed = allowed;
    device->backend = &backend;
    test();
}

/* A slot must not be filled anew while the copy out of it has not been made. */
static void upload_lazily(void)
{
    upload(true);
}

static void test_lazy_device(void **state)
{
    (void)state;
    with_lazy_device(COUNT_OF(lazy.copies), upload_lazily);
}

/* Sources may go once uploader_finish has failed. */
static void upload_badly(void)
{
    struct error error = {0};
    u8 *from = random_bytes(sizes[4], 1);
    const dptr to = device_bytes(sizes[4]);
    struct uploader *uploader = uploader_create(device, true);
    if (uploader_add(uploader, to, from, sizes[4], &error) == 0)
        assert_int_equal(uploader_finish(uploader, &error), -1);
    assert_int_equal(error.code, ERROR_FATAL);
    assert_string_equal(error.text, "the copy failed");
    uploader_destroy(uploader);
    memory_free(from);
    device_free(device, to);
}

static void test_failing_device(void **state)
{
    (void)state;
    with_lazy_device(20, upload_badly);
}

/* What was added and not waited for is dropped, not leaked, and no thread stays behind. */
static void test_destroyed_before_the_end(void **state)
{
    (void)state;
    struct error error = {0};
    u8 *from = random_bytes(sizes[4], 1);
    const dptr to = device_bytes(sizes[4]);
    for (u32 i = 0; i < 20; i++) {
        struct uploader *uploader = uploader_create(device, true);
        need(uploader_add(uploader, to, from, sizes[4], &error), &error);
        uploader_destroy(uploader);
    }
    memory_free(from);
    device_free(device, to);
}

static void test_nothing(void **state)
{
    (void)state;
    struct error error = {0};
    struct uploader *uploader = uploader_create(device, true);
    need(uploader_finish(uploader, &error), &error);
    uploader_destroy(uploader);
    uploader_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_staged),
        cmocka_unit_test(test_direct),
        cmocka_unit_test_teardown(test_lazy_device, restore_backend),
        cmocka_unit_test_teardown(test_failing_device, restore_backend),
        cmocka_unit_test(test_destroyed_before_the_end),
        cmocka_unit_test(test_nothing),
    };
    log_set_level(LOG_WARN);
    return cmocka_run_group_tests(tests, open_device, close_device);
}
