/* test_records.c - core/jit/record_file.c: files of records, and who writes to them at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jit/records.h"

enum { WRITERS = 4, RECORDS = 25 };

static char folder[] = "/tmp/elpis-records-XXXXXX", path[64];

static json_t *record_of(const char *schedule, int k, const char *gpu)
{
    return json_pack("{s:s, s:s, s:i, s:{s:i}, s:{s:i}, s:s}", "schedule", schedule, "target",
                     "sm_86", "sms", 82, "parameters", "k", k, "tuning", "warps", 4, "gpu", gpu);
}

static void put(struct record_file *file, const char *schedule, int k, const char *gpu)
{
    json_t *record = record_of(schedule, k, gpu);
    record_file_put(file, record);
    json_decref(record);
}

static void what_is_no_record_is_told_and_kept(void **state)
{
    (void)state;
    static const char text[] = "\n{\"schedule\": \"a\", \"target\": \"host\", \"parameters\": {}, "
                               "\"tuning\": {}}\n{\"half\n[]\n"
                               "{\"schedule\": \"a\", \"target\": \"host\", \"sms\": 0, "
                               "\"parameters\": {}, \"tuning\": {}}\n"
                               "{\"schedule\": \"a\", \"target\": \"host\", "
                               "\"parameters\": {\"k\": 1.5}, \"tuning\": {}}\n  # words";
    struct record_file file;
    record_file_parse(&file, "some.jsonl", SLICE(text));
    assert_int_equal(file.count, 7);
    assert_null(file.lines[0].reason);
    assert_null(file.lines[0].object);
    assert_non_null(file.lines[1].object);
    assert_non_null(strstr(file.lines[2].reason, "near"));
    assert_string_equal(file.lines[3].reason, "expected an object");
    assert_non_null(strstr(file.lines[4].reason, "\"sms\""));
    assert_non_null(strstr(file.lines[5].reason, "\"parameters\""));
    assert_int_equal(file.lines[6].number, 7);
    assert_string_equal(file.lines[6].text, "  # words");
    record_file_free(&file);
}

static void a_record_takes_the_place_of_its_key(void **state)
{
    (void)state;
    struct record_file file;
    record_file_parse(&file, "some.jsonl", SLICE("# mine\n"));
    put(&file, "a", 1, "G");
    put(&file, "a", 2, "G");
    put(&file, "b", 1, "G");
    put(&file, "a", 1, "H");
    assert_int_equal(file.count, 5);
    put(&file, "a", 2, "G");
    assert_int_equal(file.count, 5);
    assert_string_equal(file.lines[0].text, "# mine");
    assert_int_equal(json_integer_value(
                         json_object_get(json_object_get(file.lines[2].object, "parameters"), "k")),
                     2);
    record_file_free(&file);
}

static void write_records(int writer)
{
    struct error error;
    for (int i = 0; i < RECORDS; i++) {
        json_t *record = record_of("a", writer * RECORDS + i, "G");
        if (record_file_update(path, record, &error) != 0)
            _exit(1);
        json_decref(record);
    }
    _exit(0);
}

static void writers_at_once_lose_nothing(void **state)
{
    (void)state;
    struct record_file file;
    struct error error = {0};
    pid_t writers[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = fork();
        assert_int_not_equal(writers[i], -1);
        if (writers[i] == 0)
            write_records(i);
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        assert_int_equal(waitpid(writers[i], &status, 0), writers[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(record_file_read(&file, path, &error), 0);
    assert_int_equal(file.count, WRITERS * RECORDS);
    for (size_t i = 0; i < file.count; i++)
        assert_non_null(file.lines[i].object);
    record_file_free(&file);
}

static void the_folder_is_the_one_that_is_named_first(void **state)
{
    (void)state;
    static const struct {
        const char *own, *data, *home, *given, *expected;
    } cases[] = {{NULL, NULL, "/h", NULL, "/h/.local/share/elpis/records"},
                 {NULL, "/d", "/h", NULL, "/d/elpis/records"},
                 {"/o", "/d", "/h", NULL, "/o"},
                 {"/o", "/d", "/h", "none", "none"},
                 {"", "", "", "", NULL}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        setenv("ELPIS_RECORDS", cases[i].own ? cases[i].own : "", 1);
        setenv("XDG_DATA_HOME", cases[i].data ? cases[i].data : "", 1);
        setenv("HOME", cases[i].home ? cases[i].home : "", 1);
        char *found = records_folder(cases[i].given);
        if (cases[i].expected)
            assert_string_equal(found, cases[i].expected);
        else
            assert_null(found);
        memory_free(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_record_is_told_and_kept),
        cmocka_unit_test(a_record_takes_the_place_of_its_key),
        cmocka_unit_test(writers_at_once_lose_nothing),
        cmocka_unit_test(the_folder_is_the_one_that_is_named_first),
    };
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/all.jsonl", folder);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char lock[80];
    snprintf(lock, sizeof lock, "%s.lock", path);
    unlink(path);
    unlink(lock);
    rmdir(folder);
    return failed;
}
