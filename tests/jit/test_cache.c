/* test_cache.c - core/jit/cache.c: damaged files, folders that are full, read-only or gone, locks
 * between processes, processes that are killed.
 */
#include <dirent.h>
#include <signal.h>
#include <sys/file.h>
#include <time.h>

#include "jit/jit_private.h"
#include "jit/support.h"

static char folder[64];
static struct digest key;
static const char image_text[] = "an image of a kernel, of some length";

static struct slice image_slice(void)
{
    return (struct slice){image_text, sizeof image_text};
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/elpis-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    key = digest_of("a key", 5);
    return 0;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 ? 0 : -1;
}

static void kernel_path(char path[200])
{
    char name[65];
    digest_text(key, name);
    snprintf(path, 200, "%s/%s.kernel", folder, name);
}

static bool loads(struct cache *cache)
{
    struct buffer image = {0};
    bool hit = cache_load(cache, &key, &image);
    if (hit) {
        CHECK(image.size == sizeof image_text);
        CHECK(memcmp(image.data, image_text, sizeof image_text) == 0);
    }
    buffer_free(&image);
    return hit;
}

static void stored_images_load(void **state)
{
    (void)state;
    struct cache *cache = cache_open(folder, false);
    assert_string_equal(cache_folder(cache), folder);
    assert_false(loads(cache));
    cache_store(cache, &key, image_slice());
    assert_true(loads(cache));
    cache_remove(cache, &key);
    assert_false(loads(cache));
    cache_close(cache);
}

/* The file with `size` bytes, byte `flip` inverted (-1 = none), must be a miss, go, and heal. */
static void check_damage(const struct buffer *whole, size_t size, long flip)
{
    char path[200];
    struct error error;
    struct buffer damaged = {0};
    struct cache *cache = cache_open(folder, false);
    kernel_path(path);
    buffer_add(&damaged, whole->data, whole->size);
    buffer_add(&damaged, "x", 1); /* for size = whole + 1 */
    if (flip >= 0)
        damaged.data[flip] ^= 0x10;
    CHECK(file_write_atomic(path, damaged.data, size, &error) == 0);
    CHECK(!loads(cache));
    CHECK(!file_exists(path));
    cache_store(cache, &key, image_slice());
    CHECK(loads(cache));
    cache_close(cache);
    buffer_free(&damaged);
}

static int damages;

static void damage_in_every_way(void)
{
    char path[200];
    struct error error;
    struct buffer whole = {0};
    struct cache *cache = cache_open(folder, false);
    cache_store(cache, &key, image_slice());
    cache_close(cache);
    kernel_path(path);
    CHECK(file_read(&whole, path, 1 << 20, &error) == 0);
    CHECK(whole.size == 88 + sizeof image_text);
    const size_t sizes[] = {0, 1, whole.size / 2, whole.size - 1, whole.size + 1};
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        check_damage(&whole, sizes[i], -1);
    for (long flip = 0; flip < (long)whole.size; flip++)
        check_damage(&whole, whole.size, flip);
    damages = (int)(COUNT_OF(sizes) + whole.size);
    buffer_free(&whole);
}

static void damaged_files_are_misses_and_heal(void **state)
{
    (void)state;
    int warnings = count_lines(damage_in_every_way, "warning: kernel cache:");
    assert_int_equal(warnings, damages);
}

static void load_damaged_files(void)
{
    enum { KEYS = 5 };
    char path[200];
    struct cache *cache = cache_open(folder, false);
    for (int i = 0; i < KEYS; i++) {
        key = digest_of(&i, sizeof i);
        cache_store(cache, &key, image_slice());
        kernel_path(path);
        CHECK(truncate(path, 40 + i) == 0);
    }
    for (int i = 0; i < KEYS; i++) {
        key = digest_of(&i, sizeof i);
        CHECK(!loads(cache));
        CHECK(!loads(cache));
        cache_store(cache, &key, image_slice());
        CHECK(loads(cache));
    }
    cache_close(cache);
}

static void damage_is_warned_of_once(void **state)
{
    (void)state;
    assert_int_equal(count_lines(load_damaged_files, "warning: kernel cache:"), 1);
}

static void use_under_another_key(void)
{
    char path[200], other[200];
    struct cache *cache = cache_open(folder, false);
    cache_store(cache, &key, image_slice());
    kernel_path(path);
    key = digest_of("another key", 11);
    kernel_path(other);
    CHECK(rename(path, other) == 0);
    CHECK(!loads(cache));
    cache_close(cache);
}

static void a_file_under_another_key_is_a_miss(void **state)
{
    (void)state;
    assert_int_equal(count_lines(use_under_another_key, "warning: kernel cache:"), 1);
}

static void use_below_a_file(void)
{
    char path[200];
    struct error error;
    snprintf(path, sizeof path, "%s/file", folder);
    CHECK(file_write_atomic(path, "x", 1, &error) == 0);
    snprintf(path, sizeof path, "%s/file/cache", folder);
    struct cache *cache = cache_open(path, false);
    CHECK(cache_folder(cache) == NULL);
    CHECK(cache_lock(cache, &key) == -1);
    cache_store(cache, &key, image_slice());
    CHECK(!loads(cache));
    cache_close(cache);
}

static void use_a_folder_that_goes_away(void)
{
    char path[200];
    snprintf(path, sizeof path, "%s/gone", folder);
    struct cache *cache = cache_open(path, false);
    CHECK(rmdir(path) == 0);
    CHECK(cache_lock(cache, &key) == -1);
    for (int i = 0; i < 3; i++)
        cache_store(cache, &key, image_slice());
    CHECK(!loads(cache));
    cache_close(cache);
}

static void an_unwritable_folder_means_memory_and_one_warning(void **state)
{
    (void)state;
    assert_int_equal(count_lines(use_below_a_file, "kernel cache:"), 1);
    assert_int_equal(count_lines(use_a_folder_that_goes_away, "kernel cache:"), 1);
}

/* ---- folders that are full or read-only */

/* Of the folder: all files, and those that are kernels. */
static void count_files(int *all, int *kernels)
{
    DIR *stream = opendir(folder);
    struct dirent *entry;
    *all = *kernels = 0;
    CHECK(stream != NULL);
    while ((entry = readdir(stream))) {
        *all += entry->d_name[0] != '.';
        *kernels += slice_ends(slice_of(entry->d_name), SLICE(".kernel"));
    }
    closedir(stream);
}

static void make_image(struct buffer *image, size_t size, u32 byte)
{
    char *bytes = memory_alloc(size);
    memset(bytes, (int)byte, size);
    buffer_clear(image);
    buffer_add(image, bytes, size);
    memory_free(bytes);
}

static void fill_the_folder(void)
{
    enum { KEYS = 8, IMAGE = 20000, KILOBYTES = 64 };
    int all, kernels, loaded = 0;
    struct buffer image = {0};
    into_small_folder(folder, KILOBYTES);
    struct cache *cache = cache_open(folder, false);
    make_image(&image, IMAGE, 0);
    for (int i = 0; i < KEYS; i++) {
        key = digest_of(&i, sizeof i);
        int lock = cache_lock(cache, &key);
        cache_store(cache, &key, buffer_slice(&image));
        cache_unlock(cache, &key, lock);
    }
    count_files(&all, &kernels);
    CHECK(all == kernels);
    CHECK(kernels > 0 && kernels < KEYS);
    for (int i = 0; i < KEYS; i++) {
        key = digest_of(&i, sizeof i);
        bool hit = cache_load(cache, &key, &image);
        CHECK(!hit || image.size == IMAGE);
        loaded += hit;
    }
    CHECK(loaded == kernels);
    buffer_free(&image);
    cache_close(cache);
}

static void use_of_a_full_folder(void)
{
    CHECK(count_lines(fill_the_folder, "kernel cache:") == 1);
}

static void use_of_what_is_there(struct cache *cache)
{
    CHECK(cache_folder(cache) != NULL);
    CHECK(loads(cache));
    for (int i = 0; i < 3; i++) {
        key = digest_of(&i, sizeof i);
        CHECK(cache_lock(cache, &key) == -1);
        cache_store(cache, &key, image_slice());
        CHECK(!loads(cache));
    }
    cache_close(cache);
}

static void use_read_only(void)
{
    into_small_folder(folder, 64);
    struct cache *cache = cache_open(folder, false);
    cache_store(cache, &key, image_slice());
    cache_close(cache);
    make_read_only(folder);
    use_of_what_is_there(cache_open(folder, false));
}

static void use_of_a_read_only_folder(void)
{
    CHECK(count_lines(use_read_only, "kernel cache:") == 1);
}

/* Root may write anywhere, so it becomes someone else. */
static void use_without_permission(void)
{
    const unsigned nobody = 65534;
    struct cache *cache = cache_open(folder, false);
    cache_store(cache, &key, image_slice());
    cache_close(cache);
    if (getuid() == 0) {
        char path[200];
        kernel_path(path);
        CHECK(chown(folder, nobody, nobody) == 0 && chown(path, nobody, nobody) == 0);
        CHECK(setresgid(nobody, nobody, nobody) == 0 && setresuid(nobody, nobody, nobody) == 0);
    }
    CHECK(chmod(folder, 0500) == 0);
    use_of_what_is_there(cache_open(folder, false));
    CHECK(chmod(folder, 0700) == 0);
}

static void use_of_a_forbidden_folder(void)
{
    CHECK(count_lines(use_without_permission, "kernel cache:") == 1);
}

static void a_full_folder_means_memory_and_one_warning(void **state)
{
    (void)state;
    if (!may_mount())
        skip();
    assert_int_equal(end_of(start_child(use_of_a_full_folder)), 0);
}

static void a_read_only_folder_serves_and_is_warned_of_once(void **state)
{
    (void)state;
    if (!may_mount())
        skip();
    assert_int_equal(end_of(start_child(use_of_a_read_only_folder)), 0);
}

static void a_folder_without_permission_serves_and_is_warned_of_once(void **state)
{
    (void)state;
    assert_int_equal(end_of(start_child(use_of_a_forbidden_folder)), 0);
}

static void memory_only_touches_nothing(void **state)
{
    (void)state;
    struct cache *cache = cache_open(folder, true);
    assert_null(cache_folder(cache));
    cache_store(cache, &key, image_slice());
    assert_false(loads(cache));
    cache_close(cache);
}

/* What a process does for one kernel; each "compile" appends a byte to `work`. */
static void compile_once(const char *work)
{
    struct cache *cache = cache_open(folder, false);
    int lock = cache_lock(cache, &key);
    if (!loads(cache)) {
        int file = open(work, O_WRONLY | O_CREAT | O_APPEND, 0600);
        usleep(20000);
        if (write(file, "c", 1) != 1)
            abort();
        close(file);
        cache_store(cache, &key, image_slice());
    }
    cache_unlock(cache, &key, lock);
    cache_close(cache);
}

static char work[200];

static void compile_at_once(void)
{
    compile_once(work);
}

static void sixteen_processes_compile_once(void **state)
{
    (void)state;
    enum { PROCESSES = 16 };
    struct stat status;
    pid_t children[PROCESSES];
    int all, kernels;
    snprintf(work, sizeof work, "%s/work", folder);
    for (int i = 0; i < PROCESSES; i++)
        children[i] = start_child(compile_at_once);
    for (int i = 0; i < PROCESSES; i++)
        assert_int_equal(end_of(children[i]), 0);
    assert_int_equal(stat(work, &status), 0);
    assert_int_equal(status.st_size, 1);
    count_files(&all, &kernels);
    assert_int_equal(kernels, 1);
    assert_int_equal(all, 2); /* and `work` */
}

/* ---- processes that are killed */

enum { LARGE = 1 << 20 };

static void store_for_ever(void)
{
    struct buffer image = {0};
    struct cache *cache = cache_open(folder, false);
    for (u32 version = 0;; version++) {
        int lock = cache_lock(cache, &key);
        make_image(&image, LARGE, version); /* so that a mixture of two would show */
        cache_store(cache, &key, buffer_slice(&image));
        cache_unlock(cache, &key, lock);
    }
}

static void check_is_whole(struct cache *cache)
{
    struct buffer image = {0};
    if (cache_load(cache, &key, &image)) {
        CHECK(image.size == LARGE);
        for (size_t i = 1; i < LARGE; i++)
            CHECK(image.data[i] == image.data[0]);
    }
    buffer_free(&image);
}

static void load_after_kills(void)
{
    struct cache *cache = cache_open(folder, false);
    u32 state = 1;
    for (int i = 0; i < 50; i++) {
        pid_t child = start_child(store_for_ever);
        state = state * 1664525u + 1013904223u;
        usleep(state % 20000);
        CHECK(kill(child, SIGKILL) == 0);
        CHECK(WTERMSIG(end_of(child)) == SIGKILL);
        check_is_whole(cache);
    }
    int lock = cache_lock(cache, &key); /* nobody holds it */
    CHECK(lock >= 0);
    cache_unlock(cache, &key, lock);
    cache_close(cache);
}

static void kills_leave_whole_images_or_none(void **state)
{
    (void)state;
    assert_int_equal(count_lines(load_after_kills, "kernel cache:"), 0);
}

static void make_file(const char *name, int age)
{
    char path[400];
    struct error error;
    const i64 then = clock_unix() - age;
    const struct timespec times[2] = {{.tv_sec = then}, {.tv_sec = then}};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    must(file_write_atomic(path, "x", 1, &error), &error);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static bool is_there(const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return file_exists(path);
}

static void what_killed_processes_left_goes_when_it_is_old(void **state)
{
    (void)state;
    enum { OLD = 2 * 3600, YOUNG = 1800 };
    char digits[65], other[65], held[100], path[400], lock[100], half[100];
    char young_lock[100], young_half[100], kernel[100], foreign[100];
    const struct digest other_key = digest_of("other", 5), held_key = digest_of("held", 4);
    digest_text(key, digits);
    digest_text(other_key, other);
    snprintf(lock, sizeof lock, "%s.lock", digits);
    snprintf(half, sizeof half, "%s.kernel.aB3xYz", digits);
    snprintf(kernel, sizeof kernel, "%s.kernel", digits);
    snprintf(young_lock, sizeof young_lock, "%s.lock", other);
    snprintf(young_half, sizeof young_half, "%s.kernel.Zy3xBa", other);
    snprintf(foreign, sizeof foreign, "%.63s.lock", digits);
    digest_text(held_key, digits);
    snprintf(held, sizeof held, "%s.lock", digits);
    const char *const goes[] = {lock, half};
    const char *const stays[] = {kernel, young_lock, young_half, foreign, "notes.lock", held};
    for (size_t i = 0; i < COUNT_OF(goes); i++)
        make_file(goes[i], OLD);
    for (size_t i = 0; i < COUNT_OF(stays); i++)
        make_file(stays[i], stays[i] == young_lock || stays[i] == young_half ? YOUNG : OLD);
    snprintf(path, sizeof path, "%s/%s", folder, held);
    int file = open(path, O_RDONLY);
    assert_int_equal(flock(file, LOCK_EX), 0);
    cache_close(cache_open(folder, false));
    for (size_t i = 0; i < COUNT_OF(goes); i++)
        assert_false(is_there(goes[i]));
    for (size_t i = 0; i < COUNT_OF(stays); i++)
        if (!is_there(stays[i]))
            fail_msg("%s was deleted", stays[i]);
    close(file);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(stored_images_load),
        TEST(damaged_files_are_misses_and_heal),
        TEST(damage_is_warned_of_once),
        TEST(a_file_under_another_key_is_a_miss),
        TEST(an_unwritable_folder_means_memory_and_one_warning),
        TEST(a_full_folder_means_memory_and_one_warning),
        TEST(a_read_only_folder_serves_and_is_warned_of_once),
        TEST(a_folder_without_permission_serves_and_is_warned_of_once),
        TEST(memory_only_touches_nothing),
        TEST(sixteen_processes_compile_once),
        TEST(kills_leave_whole_images_or_none),
        TEST(what_killed_processes_left_goes_when_it_is_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
