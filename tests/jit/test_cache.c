/* test_cache.c - core/jit/cache.c: damaged files, unwritable folders, locks between processes. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "jit/jit_private.h"

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
        assert_int_equal(image.size, sizeof image_text);
        assert_memory_equal(image.data, image_text, sizeof image_text);
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
    assert_int_equal(file_write_atomic(path, damaged.data, size, &error), 0);
    assert_false(loads(cache));
    assert_false(file_exists(path));
    cache_store(cache, &key, image_slice());
    assert_true(loads(cache));
    cache_close(cache);
    buffer_free(&damaged);
}

static void damaged_files_are_misses_and_heal(void **state)
{
    (void)state;
    char path[200];
    struct error error;
    struct buffer whole = {0};
    struct cache *cache = cache_open(folder, false);
    cache_store(cache, &key, image_slice());
    cache_close(cache);
    kernel_path(path);
    assert_int_equal(file_read(&whole, path, 1 << 20, &error), 0);
    assert_int_equal(whole.size, 88 + sizeof image_text);
    const size_t sizes[] = {0, 1, whole.size / 2, whole.size - 1, whole.size + 1};
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        check_damage(&whole, sizes[i], -1);
    for (long flip = 0; flip < (long)whole.size; flip++)
        check_damage(&whole, whole.size, flip);
    buffer_free(&whole);
}

static void a_file_under_another_key_is_a_miss(void **state)
{
    (void)state;
    char path[200], other[200];
    struct cache *cache = cache_open(folder, false);
    cache_store(cache, &key, image_slice());
    kernel_path(path);
    key = digest_of("another key", 11);
    kernel_path(other);
    assert_int_equal(rename(path, other), 0);
    assert_false(loads(cache));
    cache_close(cache);
}

/* Lines with `text` that `body` prints to stderr. */
static int count_lines(void (*body)(void), const char *text)
{
    char line[2000];
    int count = 0;
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    body();
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, text) != NULL;
    fclose(file);
    return count;
}

static void use_below_a_file(void)
{
    char path[200];
    struct error error;
    snprintf(path, sizeof path, "%s/file", folder);
    assert_int_equal(file_write_atomic(path, "x", 1, &error), 0);
    snprintf(path, sizeof path, "%s/file/cache", folder);
    struct cache *cache = cache_open(path, false);
    assert_null(cache_folder(cache));
    assert_int_equal(cache_lock(cache, &key), -1);
    cache_store(cache, &key, image_slice());
    assert_false(loads(cache));
    cache_close(cache);
}

static void use_a_folder_that_goes_away(void)
{
    char path[200];
    snprintf(path, sizeof path, "%s/gone", folder);
    struct cache *cache = cache_open(path, false);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(cache_lock(cache, &key), -1);
    for (int i = 0; i < 3; i++)
        cache_store(cache, &key, image_slice());
    assert_false(loads(cache));
    cache_close(cache);
}

static void an_unwritable_folder_means_memory_and_one_warning(void **state)
{
    (void)state;
    assert_int_equal(count_lines(use_below_a_file, "kernel cache:"), 1);
    assert_int_equal(count_lines(use_a_folder_that_goes_away, "kernel cache:"), 1);
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

static void several_processes_compile_once(void **state)
{
    (void)state;
    enum { PROCESSES = 6 };
    char work[200], path[200], name[65];
    struct stat status;
    pid_t children[PROCESSES];
    snprintf(work, sizeof work, "%s/work", folder);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            compile_once(work);
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int result = -1;
        waitpid(children[i], &result, 0);
        assert_int_equal(result, 0);
    }
    assert_int_equal(stat(work, &status), 0);
    assert_int_equal(status.st_size, 1);
    digest_text(key, name);
    snprintf(path, sizeof path, "%s/%s.lock", folder, name);
    assert_false(file_exists(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stored_images_load, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(damaged_files_are_misses_and_heal, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_file_under_another_key_is_a_miss, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(an_unwritable_folder_means_memory_and_one_warning,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(memory_only_touches_nothing, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(several_processes_compile_once, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
