/* test_resources.c - every schedule, at every example shape, on sm_86 and sm_90: compiles, does not
 * spill, fits. Needs NVRTC, no GPU; skipped without. Two threads compile.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "jit/jit_private.h"

enum { KERNELS_MAX = 400, THREADS = 2 };

struct item {
    const char *name;
    size_t example;
    struct scripts_rendering rendering;
    int status;
    struct error error;
    struct device_resources resources;
};

static struct item items[KERNELS_MAX];
static size_t item_count, next_item;
static const char *arch;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void must(int status, const struct error *error)
{
    if (status != 0)
        fail_msg("%s", error->text);
}

static void *compile_items(void *unused)
{
    struct buffer image = {0};
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&mutex);
        size_t at = next_item++;
        pthread_mutex_unlock(&mutex);
        if (at >= item_count)
            break;
        struct item *item = &items[at];
        item->status = device_cross_compile(NULL, buffer_slice(&item->rendering.source), item->name,
                                            arch, &image, &item->resources, &item->error);
    }
    buffer_free(&image);
    return NULL;
}

static void render_all(struct scripts *scripts, struct arena *arena,
                       const struct scripts_target *target)
{
    struct error error;
    struct scripts_listing *listing;
    size_t count;
    must(scripts_schedules(scripts, arena, &listing, &count, &error), &error);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < listing[i].example_count; k++) {
            struct item *item = &items[item_count++];
            struct scripts_request request = {.schedule = listing[i].name,
                                              .parameters = listing[i].examples[k],
                                              .target = target};
            assert_true(item_count < KERNELS_MAX);
            memset(item, 0, sizeof *item);
            item->name = listing[i].name;
            item->example = k;
            must(scripts_render(scripts, &request, &item->rendering, &error), &error);
        }
}

static size_t report(const struct item *item, const struct scripts_target *target)
{
    const struct device_resources *r = &item->resources;
    const u32 shared = item->rendering.geometry.shared + r->shared_static;
    if (item->status != 0)
        printf("%s, example %zu: %s\n", item->name, item->example + 1, item->error.text);
    else if (r->spill_stores || r->spill_loads)
        printf("%s, example %zu: spills %u + %u bytes on %s with %u registers\n", item->name,
               item->example + 1, r->spill_stores, r->spill_loads, arch, r->registers);
    else if (shared > target->shared_per_block)
        printf("%s, example %zu: %u bytes of shared memory, %s has %u\n", item->name,
               item->example + 1, shared, arch, target->shared_per_block);
    else
        return 0;
    return 1;
}

static void compile_everything(const char *name, u32 sms, u32 shared_per_sm)
{
    struct error error;
    struct scripts *scripts = NULL;
    struct scripts_target target;
    struct arena *arena = arena_create();
    pthread_t threads[THREADS];
    size_t bad = 0;
    arch = name;
    item_count = next_item = 0;
    must(jit_target_named(name, sms, shared_per_sm, &target, &error), &error);
    must(scripts_open(&scripts, NULL, &error), &error);
    render_all(scripts, arena, &target);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, compile_items, NULL), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < item_count; i++) {
        bad += report(&items[i], &target);
        scripts_rendering_free(&items[i].rendering);
    }
    scripts_close(scripts);
    arena_destroy(arena);
    assert_int_equal(bad, 0);
}

static bool nvrtc_is_here(void)
{
    struct error error;
    struct buffer image = {0};
    int status = device_cross_compile(NULL, SLICE("extern \"C\" __global__ void f() {}"), "f",
                                      "sm_86", &image, NULL, &error);
    buffer_free(&image);
    return status == 0;
}

static void kernels_fit_sm_86(void **state)
{
    (void)state;
    if (!nvrtc_is_here())
        skip();
    compile_everything("sm_86", 82, 100 << 10);
}

static void kernels_fit_sm_90(void **state)
{
    (void)state;
    if (!nvrtc_is_here())
        skip();
    compile_everything("sm_90", 132, 228 << 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_fit_sm_86),
        cmocka_unit_test(kernels_fit_sm_90),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
