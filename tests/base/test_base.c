/* test_base.c - errors, slices, arenas, buffers, files, digests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

static void test_errors(void **state)
{
    (void)state;
    struct error error = {0};
    assert_int_equal(error_set(&error, ERROR_MODEL, "expected %d, found %d", 2, 3), -1);
    assert_int_equal(error_prefix(&error, "%s: layer %u", "model.safetensors", 3), -1);
    assert_int_equal(error.code, ERROR_MODEL);
    assert_string_equal(error.text, "model.safetensors: layer 3: expected 2, found 3");
}

static void test_long_errors_are_marked(void **state)
{
    (void)state;
    static char text[3000];
    struct error error = {0};
    memset(text, 'x', sizeof text - 1);
    error_set(&error, ERROR_USAGE, "%s", text);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    assert_string_equal(error.text + sizeof error.text - 4, "...");
    error_set(&error, ERROR_USAGE, "%.*s", 990, text);
    error_prefix(&error, "somewhere");
    assert_int_equal(strncmp(error.text, "somewhere: xxx", 14), 0);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    assert_string_equal(error.text + sizeof error.text - 4, "...");
}

static void test_slices(void **state)
{
    (void)state;
    struct slice text = SLICE("model.layers.0.weight");
    assert_true(slice_starts(text, SLICE("model.")));
    assert_false(slice_starts(text, SLICE("models")));
    assert_true(slice_ends(text, SLICE(".weight")));
    assert_false(slice_ends(SLICE("t"), SLICE("weight")));
    assert_true(slice_equal(slice_of(NULL), SLICE("")));
    assert_false(slice_equal(SLICE("a"), SLICE("b")));
}

static void test_arena(void **state)
{
    (void)state;
    struct arena *arena = arena_create();
    char *first = arena_text(arena, SLICE("first"));
    for (u32 i = 1; i < 3000; i++) {
        u8 *memory = arena_alloc(arena, i);
        assert_int_equal((uintptr_t)memory % 16, 0);
        for (u32 j = 0; j < i; j += 97)
            assert_int_equal(memory[j], 0);
        memset(memory, 0xee, i);
    }
    assert_string_equal(first, "first");
    assert_string_equal(arena_format(arena, "%u+%s", 7, "x"), "7+x");
    arena_destroy(arena);
    arena_destroy(NULL);
}

static void test_buffer(void **state)
{
    (void)state;
    struct buffer buffer = {0};
    assert_int_equal(buffer_slice(&buffer).size, 0);
    for (u32 i = 0; i < 1000; i++)
        buffer_format(&buffer, "%u,", i % 10);
    assert_int_equal(buffer.size, 2000);
    assert_int_equal(buffer.data[2000], 0);
    assert_int_equal(strncmp(buffer.data + 1990, "5,6,7,8,9,", 10), 0);
    u8 *room = buffer_extend(&buffer, 5);
    for (u32 i = 0; i < 5; i++)
        assert_int_equal(room[i], 0);
    buffer_clear(&buffer);
    buffer_add_text(&buffer, "ab");
    buffer_add_slice(&buffer, SLICE("c"));
    buffer_add(&buffer, NULL, 0);
    assert_string_equal(buffer.data, "abc");
    buffer_free(&buffer);
    assert_null(buffer.data);
}

static char folder[] = "/tmp/elpis-base-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static char *in_folder(struct arena *arena, const char *name)
{
    return arena_format(arena, "%s/%s", folder, name);
}

static void test_files(void **state)
{
    (void)state;
    struct arena *arena = arena_create();
    struct error error;
    struct buffer content = {0};
    struct file_map map;
    char *deep = in_folder(arena, "a/b/c"), *file = in_folder(arena, "a/b/c/file");
    assert_int_equal(file_make_folders(deep, 0700, &error), 0);
    assert_int_equal(file_make_folders(deep, 0700, &error), 0);
    assert_true(file_is_folder(deep));
    assert_int_equal(file_write_atomic(file, "hello", 5, &error), 0);
    assert_int_equal(file_write_atomic(file, "hello there", 11, &error), 0);
    assert_int_equal(file_read(&content, file, 100, &error), 0);
    assert_string_equal(content.data, "hello there");
    assert_int_equal(file_map_open(&map, file, &error), 0);
    assert_int_equal(map.size, 11);
    assert_memory_equal(map.data, "hello there", 11);
    file_map_close(&map);
    assert_int_equal(file_write_atomic(in_folder(arena, "a/empty"), "", 0, &error), 0);
    assert_int_equal(file_map_open(&map, in_folder(arena, "a/empty"), &error), 0);
    assert_int_equal(map.size, 0);
    file_map_close(&map);
    buffer_free(&content);
    arena_destroy(arena);
}

static void test_file_errors(void **state)
{
    (void)state;
    struct arena *arena = arena_create();
    struct error error;
    struct buffer content = {0};
    struct file_map map;
    char *file = in_folder(arena, "big"), *missing = in_folder(arena, "missing/file");
    assert_int_equal(file_write_atomic(file, "0123456789", 10, &error), 0);
    assert_int_equal(file_read(&content, file, 9, &error), -1);
    assert_non_null(strstr(error.text, "at most 9 bytes, found 10"));
    assert_int_equal(file_read(&content, missing, 9, &error), -1);
    assert_non_null(strstr(error.text, missing));
    assert_int_equal(file_map_open(&map, folder, &error), -1);
    assert_non_null(strstr(error.text, "a folder"));
    assert_int_equal(file_write_atomic(missing, "x", 1, &error), -1);
    assert_non_null(strstr(error.text, missing));
    assert_false(file_exists(missing));
    buffer_free(&content);
    arena_destroy(arena);
}

static void test_list(void **state)
{
    (void)state;
    struct arena *arena = arena_create();
    struct error error;
    char **names, *list = in_folder(arena, "list");
    size_t count;
    assert_int_equal(file_make_folders(list, 0700, &error), 0);
    assert_int_equal(file_list(arena, list, &names, &count, &error), 0);
    assert_int_equal(count, 0);
    for (const char *name = "cab"; *name; name++)
        assert_int_equal(
            file_write_atomic(arena_format(arena, "%s/%c", list, *name), "", 0, &error), 0);
    assert_int_equal(file_list(arena, list, &names, &count, &error), 0);
    assert_int_equal(count, 3);
    assert_string_equal(names[0], "a");
    assert_string_equal(names[2], "c");
    arena_destroy(arena);
}

/* BLAKE2b-256 of "abc", as b2sum -l 256 prints it. */
static void test_scratch(void **state)
{
    (void)state;
    struct error error = {0};
    char *scratch, *other;
    struct buffer name = {0};
    assert_int_equal(file_make_scratch(&scratch, &error), 0);
    assert_int_equal(file_make_scratch(&other, &error), 0);
    buffer_format(&name, "%s/a/b", scratch);
    assert_int_equal(file_make_folders(name.data, 0755, &error), 0);
    buffer_add_text(&name, "/file");
    assert_int_equal(file_write_atomic(name.data, "x", 1, &error), 0);
    buffer_clear(&name);
    buffer_format(&name, "%s/away", scratch);
    assert_int_equal(symlink(other, name.data), 0); /* what it leads to stays */
    file_remove_tree(scratch);
    assert_false(file_exists(scratch));
    assert_true(file_is_folder(other));
    file_remove_tree(other);
    memory_free(scratch);
    memory_free(other);
    buffer_free(&name);
}

static void test_scratch_has_no_place(void **state)
{
    (void)state;
    struct error error = {0};
    char *scratch, *kept = getenv("TMPDIR") ? strdup(getenv("TMPDIR")) : NULL;
    setenv("TMPDIR", "/nowhere", 1);
    assert_int_equal(file_make_scratch(&scratch, &error), -1);
    assert_null(scratch);
    assert_non_null(strstr(error.text, "/nowhere/elpis-"));
    assert_non_null(strstr(error.text, "set TMPDIR"));
    if (kept)
        setenv("TMPDIR", kept, 1);
    else
        unsetenv("TMPDIR");
    free(kept);
}

static void test_digest(void **state)
{
    (void)state;
    char text[65];
    digest_text(digest_of("abc", 3), text);
    assert_string_equal(text, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
    struct digest_state *pieces = digest_begin();
    digest_add(pieces, "a", 1);
    digest_add(pieces, "bc", 2);
    struct digest digest = digest_end(pieces), whole = digest_of("abc", 3);
    assert_memory_equal(digest.bytes, whole.bytes, sizeof whole.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_long_errors_are_marked),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_buffer),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_file_errors),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_scratch),
        cmocka_unit_test(test_scratch_has_no_place),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
