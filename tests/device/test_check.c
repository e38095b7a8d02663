/* test_check.c - the checks of the host device find what is planted and nothing else.
 *
 * Every kernel here comes in a right and a wrong form; the right one must run clean under the
 * checks, in every fiber order, and the wrong one must be reported with the buffer's name.
 */
#include "kernel.h"

static struct device *checked(u32 order)
{
    return kernel_device((struct device_options){.host_check = true, .host_order = order});
}

/* Launches once over `data`, 1024 words called "plant". expected: NULL = clean. */
static void launch_checked(const char *body, struct device_geometry geometry, u32 order,
                           const char *expected)
{
    struct device *device = checked(order);
    struct kernel kernel = kernel_build(device, body, geometry);
    struct error error = {0};
    struct buffer faults = {0};
    u32 *data = kernel_memory(device, 4096, "plant");
    for (u32 i = 0; i < 1024; i++)
        data[i] = i;
    int status = device_launch(device, NULL, kernel.function, (u64[]){SLOT(data), geometry.grid}, 2,
                               &error);
    device_host_faults(device, &faults);
    if (!expected && (status != 0 || faults.size != 0))
        fail_msg("order %u: a right kernel was reported: %s %s", order, error.text,
                 faults.size ? faults.data : "");
    if (expected && status == 0)
        fail_msg("order %u: \"%s\" was not found", order, expected);
    if (expected && (!strstr(error.text, expected) || !strstr(faults.data, expected)))
        fail_msg("order %u: expected \"%s\" in: %s", order, expected, error.text);
    buffer_free(&faults);
    kernel_free(&kernel);
    device_close(device);
}

static void clean(const char *body, struct device_geometry geometry)
{
    for (u32 order = 0; order < 3; order++)
        launch_checked(body, geometry, order == 2 ? 77 : order, NULL);
}

static const struct device_geometry one = {1, 128, 4096, false}, four = {4, 64, 4096, false};

#define START                                                                                    \
    ENTRY "{ u32 *d = (u32 *)slots[0]; u32 *s = shared_at(u32, 0); const u32 t = thread_id();\n" \
          "(void)s; (void)t;\n"

#define REVERSE(barrier) START "s[t] = d[t]; " barrier " d[t + 512] = s[127 - t]; }\n"

static void test_removed_barrier(void **state)
{
    (void)state;
    clean(REVERSE("block_sync();"), one);
    launch_checked(REVERSE(""), one, 0, "race: it writes byte 256 of shared memory");
    launch_checked(REVERSE(""), one, 1, "race");
    launch_checked(REVERSE("warp_sync();"), one, 5, "of shared memory");
}

#define WARP_SWAP(order) START "s[t] = t; " order " d[t] = s[t ^ 1]; }\n"

static void test_warp_order(void **state)
{
    (void)state;
    clean(WARP_SWAP("warp_sync();"), one);
    clean(WARP_SWAP("d[512 + t] = warp_sum_u32(t);"), one);
    launch_checked(WARP_SWAP(""), one, 0, "race");
}

/* Two warpgroups of a CTA of 256 threads, each of which reverses its own 128 words. */
#define GROUP_SWAP(order, other) \
    START "s[t] = d[t]; " order " d[512 + t] = s[(t ^ 127) " other "]; }\n"

/* A word that those threads read for which `who` holds is written behind the group's barrier. */
#define GROUP_READ(who, writer) \
    START "if (" who ") d[512 + t] = s[0]; warpgroup_sync(); if (t == " writer ") s[0] = 1; }\n"

static void test_warpgroup(void **state)
{
    (void)state;
    static const struct device_geometry two_groups = {1, 256, 4096, false};
    clean(GROUP_SWAP("warpgroup_sync();", ""), two_groups);
    launch_checked(GROUP_SWAP("warp_sync();", ""), two_groups, 0, "race");
    launch_checked(GROUP_SWAP("warpgroup_sync();", "^ 128"), two_groups, 0, "race");
    clean(GROUP_READ("t / 128 == 1", "255"), two_groups);
    launch_checked(GROUP_READ("t / 128 == 1", "0"), two_groups, 0, "race");
    launch_checked(GROUP_READ("1", "0"), two_groups, 0, "race");
    launch_checked(GROUP_READ("1", "255"), two_groups, 0, "race");
}

/* A ring of two stages filled ahead by copy_async16; `pending` groups may still be on the way. */
#define RING(pending, end)                                                                        \
    START "for (u32 i = 0; i < 2; i++) { if (t < 32) copy_async16(s + i * 128 + 4 * t, d + i * "  \
          "128 + 4 * t); copy_async_commit(); }\n"                                                \
          "u32 sum = 0;\n"                                                                        \
          "for (u32 i = 0; i < 4; i++) {\n"                                                       \
          "    copy_async_wait(" pending "); block_sync();\n"                                     \
          "    sum += s[i % 2 * 128 + (t * 5) % 128];\n"                                          \
          "    " end "\n"                                                                         \
          "    if (i + 2 < 4 && t < 32) copy_async16(s + i % 2 * 128 + 4 * t, d + (i + 2) * 128 " \
          "+ 4 * t);\n"                                                                           \
          "    copy_async_commit();\n"                                                            \
          "}\n"                                                                                   \
          "d[512 + t] = sum; }\n"

static void test_ring(void **state)
{
    (void)state;
    clean(RING("1", "block_sync();"), one);
    launch_checked(RING("2", "block_sync();"), one, 0, "has not delivered yet");
    launch_checked(RING("1", ""), one, 0, "race");
    launch_checked(RING("1", ""), one, 1, "has not delivered yet");
}

static void test_overrun(void **state)
{
    (void)state;
    clean(START "d[1023 - t] = t; }\n", one);
    launch_checked(START "d[1024 - t] = t; }\n", one, 0, "writes 4 bytes at offset 4096 of plant");
    launch_checked(START "d[1000] = d[(i32)t - 1]; }\n", one, 0, "before the start of plant");
    launch_checked(START "s[1024 - t] = t; }\n", one, 0, "shared memory");
    launch_checked(START "atomic_add_u32(d + 1024, t); }\n", one, 0, "offset 4096 of plant");
}

/* Stores the race check does not see (not instrumented) leave traces in the sentinels. */
static void test_sentinels(void **state)
{
    (void)state;
    launch_checked("__attribute__((no_sanitize(\"thread\"), noinline)) static void hidden(u32 *p) "
                   "{ *p = 1; }\n" START "if (t == 0) hidden(d + 1026); }\n",
                   one, 0, "wrote 8 bytes past the end of plant");
    launch_checked("__attribute__((no_sanitize(\"thread\"), noinline)) static void hidden(u32 *p) "
                   "{ *p = 1; }\n" START "if (t == 0) hidden(d - 1); }\n",
                   one, 0, "before the start of plant");
}

/* CTA c > 0 reads what CTA c - 1 wrote. */
#define HAND_ON(release, acquire)                                                                \
    START "const u32 c = cta_id(); u32 *flag = d + 768; const u32 n = (u32)slots[1]; (void)n;\n" \
          "if (t == 0) flag[c] = 0;\n" acquire "\n"                                              \
          "block_sync();\n"                                                                      \
          "d[c * 64 + t] = c > 0 ? d[(c - 1) * 64 + 63 - t] + 1 : t;\n"                          \
          "block_sync();\n" release "\n}\n"

static void test_between_ctas(void **state)
{
    (void)state;
    clean(HAND_ON("if (t == 0) store_release_u32(d + 800 + c, 1);",
                  "if (t == 0 && c > 0) while (load_acquire_u32(d + 799 + c) != 1) ;"),
          four);
    clean(HAND_ON("if (t == 0) { fence_device(); atomic_add_u32(d + 900, 1); }",
                  "if (t == 0) atomic_add_u32(d + 900, 0);"),
          four);
    launch_checked(HAND_ON("", ""), four, 0, "race: it reads");
    launch_checked(START "d[0] = cta_id(); }\n", four, 0, "of plant");
    clean(START "atomic_add_u32(d, 1); }\n", four);
}

static void test_grid_sync_orders(void **state)
{
    (void)state;
    struct device_geometry all = four;
    all.cooperative = true;
    static const char body[] = START
        "d[cta_id() * 64 + t] = t; s[t] = t; grid_sync(d + 1000, (u32)slots[1]); s[63 - t] = t;\n"
        "d[512 + cta_id() * 64 + t] = d[(cta_id() + 1) % 4 * 64 + 63 - t]; }\n";
    clean(body, all);
}

/* load_matrix reads rows on behalf of their lanes. */
static void test_load_matrix_is_seen(void **state)
{
    (void)state;
    clean(START "s[t] = t; s[128 + t] = t; block_sync(); u32 r[4]; load_matrix_x4(r, s + 4 * (t % "
                "32)); d[t] = r[3];\n"
                "block_sync(); s[t] = 1; }\n",
          one);
    launch_checked(START
                   "s[t] = t; u32 r[4]; load_matrix_x4(r, s + 4 * (t % 32)); d[t] = r[3]; }\n",
                   one, 0, "race");
}

#define WRITER START "d[t] = t; }\n"
#define OTHER START "d[700 + t] = t; }\n"
/* What lies between two launches: nothing, a launch that has to do with neither, the pass's end. */
enum between { NEXT, LATER, APART };

/* Two launches of one pass, or (APART) of two: the first writes d[t], the second runs `body`. */
static void launch_pass(const char *first, const char *body, enum between between,
                        const char *expected)
{
    struct device *device = checked(0);
    struct kernel writer = kernel_build(device, first, one);
    struct kernel reader = kernel_build(device, body, one);
    struct error error = {0};
    u32 *data = kernel_memory(device, 4096, "plant");
    const u64 slots[] = {SLOT(data), 1};
    kernel_run(&writer, slots, 2);
    if (between == LATER) {
        struct kernel other = kernel_build(device, OTHER, one);
        kernel_run(&other, slots, 2);
        kernel_free(&other);
    }
    if (between == APART &&
        device_copy(device, NULL, SLOT(data + 900), SLOT(data + 901), 4, &error))
        fail_msg("%s", error.text);
    const int status = device_launch(device, NULL, reader.function, slots, 2, &error);
    if (!expected && status != 0)
        fail_msg("a right kernel was reported: %s", error.text);
    if (expected && (status == 0 || !strstr(error.text, expected)))
        fail_msg("expected \"%s\" in: %s", expected, status ? error.text : "nothing");
    kernel_free(&writer);
    kernel_free(&reader);
    device_close(device);
}

#define ADDER START "atomic_add_u32(d + t, t); }\n"
#define READER(early, late) \
    START "u32 v = " early "; wait_previous(); d[512 + t] = v + " late "; }\n"

static void test_reads_before_the_wait(void **state)
{
    (void)state;
    static const char early[] = "reads byte 0 of plant before wait_previous(); the launch before";
    static const char old[] = "reads byte 0 of plant before wait_previous(); a launch of its pass";
    launch_pass(WRITER, READER("0", "d[t]"), NEXT, NULL);
    launch_pass(WRITER, READER("load_fresh_u32(d + t)", "0"), NEXT, early);
    launch_pass(WRITER, READER("load_fresh_u32(d + t)", "0"), LATER, NULL);
    launch_pass(WRITER, READER("d[t]", "0"), LATER, old);
    launch_pass(WRITER, READER("d[t]", "load_fresh_u32(d + t)"), LATER, old);
    launch_pass(WRITER, READER("d[t]", "0"), NEXT, early);
    launch_pass(ADDER, READER("d[t]", "0"), NEXT, early);
    launch_pass(WRITER, READER("d[t]", "0"), APART, NULL);           /* of the pass before */
    launch_pass(WRITER, READER("d[256 + t]", "d[t]"), NEXT, NULL);   /* of no launch */
    launch_pass(WRITER, START "d[512 + t] = d[t]; }\n", NEXT, NULL); /* waits as it begins */
    launch_pass(WRITER,
                START "copy_async16(s + 4 * t, d); copy_async_commit(); wait_previous();"
                      " copy_async_wait(0); }\n",
                NEXT, early);
    launch_pass(WRITER, START "d[600 + t] = 1; wait_previous(); }\n", APART,
                "writes byte 2400 of plant before wait_previous()");
    launch_pass(WRITER, START "atomic_add_u32(d + 600, 1); wait_previous(); }\n", APART,
                "writes byte 2400 of plant before wait_previous()");
}

/* What orders a launch on the first stream and the next one, on another. */
enum order { NOTHING, EVENT, EARLIER_EVENT, HOST_WAITS, HOST_READS };

static void order_streams(struct device *device, struct kernel *first, const u64 *slots,
                          struct device_stream *other, enum order order)
{
    struct error error;
    struct device_event *event;
    u32 word;
    bool failed = device_event_create(device, &event, &error) != 0;
    if (order == EARLIER_EVENT)
        failed |= device_event_record(device, event, NULL, &error) != 0;
    kernel_run(first, slots, 2);
    if (order == EVENT)
        failed |= device_event_record(device, event, NULL, &error) != 0;
    if (order == EVENT || order == EARLIER_EVENT)
        failed |= device_event_wait(device, other, event, &error) != 0;
    if (order == HOST_WAITS)
        failed |= device_sync(device, NULL, &error) != 0;
    if (order == HOST_READS)
        failed |= device_copy_out(device, NULL, &word, slots[0], sizeof word, &error) != 0;
    if (failed)
        fail_msg("%s", error.text);
    device_event_destroy(device, event);
}

/* `first` on the first stream, then `second` on another. expected: NULL = clean. */
static void launch_streams(const char *first, const char *second, enum order order,
                           const char *expected)
{
    struct device *device = checked(0);
    struct kernel a = kernel_build(device, first, one), b = kernel_build(device, second, one);
    struct device_stream *other;
    struct error error = {0};
    u32 *data = kernel_memory(device, 4096, "plant");
    const u64 slots[] = {SLOT(data), 1};
    if (device_stream_create(device, DEVICE_LAST, &other, &error) != 0)
        fail_msg("%s", error.text);
    order_streams(device, &a, slots, other, order);
    const int status = device_launch(device, other, b.function, slots, 2, &error);
    if (!expected && status != 0)
        fail_msg("order %d: a right launch was reported: %s", order, error.text);
    if (expected && (status == 0 || !strstr(error.text, expected)))
        fail_msg("order %d: expected \"%s\" in: %s", order, expected,
                 status ? error.text : "nothing");
    device_stream_destroy(device, other);
    kernel_free(&a);
    kernel_free(&b);
    device_close(device);
}

static void test_streams(void **state)
{
    (void)state;
    static const char wrote[] = "which a launch of another stream wrote with no event in between";
    static const char read[] = "which a launch of another stream read with no event in between";
    static const char writes[] = START "d[t] = t; }\n", reads[] = START "s[t] = d[t]; }\n";
    static const enum order none[] = {NOTHING, EARLIER_EVENT},
                            all[] = {EVENT, HOST_WAITS, HOST_READS};
    for (u32 i = 0; i < COUNT_OF(none); i++) {
        launch_streams(writes, reads, none[i], wrote);
        launch_streams(reads, writes, none[i], read);
        launch_streams(writes, writes, none[i], wrote);
        launch_streams(ADDER, reads, none[i], wrote);
    }
    for (u32 i = 0; i < COUNT_OF(all); i++) {
        launch_streams(writes, reads, all[i], NULL);
        launch_streams(reads, writes, all[i], NULL);
    }
    launch_streams(reads, reads, NOTHING, NULL);
    launch_streams(writes, START "d[128 + t] = t; }\n", NOTHING, NULL);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
    /* The race check needs the names that the thread sanitizer's runtime has taken. */
    const struct CMUnitTest sentinels[] = {cmocka_unit_test(test_sentinels)};
    return cmocka_run_group_tests_name("test_check", sentinels, NULL, NULL);
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed_barrier),
        cmocka_unit_test(test_warp_order),
        cmocka_unit_test(test_warpgroup),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_overrun),
        cmocka_unit_test(test_sentinels),
        cmocka_unit_test(test_between_ctas),
        cmocka_unit_test(test_grid_sync_orders),
        cmocka_unit_test(test_load_matrix_is_seen),
        cmocka_unit_test(test_reads_before_the_wait),
        cmocka_unit_test(test_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
