/* support.h - folders, files and expectations shared by the tests of model/.
 *
 * Each test works in a folder of its own below $TMPDIR or /tmp, which its teardown
 * removes. Bad inputs are made by changing one text of a good file; a refusal is
 * checked by exit code and by the words that its sentence must hold.
 */
#ifndef ELPIS_TESTS_MODEL_SUPPORT_H
#define ELPIS_TESTS_MODEL_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "model/make_model.h"

#define TINY "tests/models/elpis-tiny"

static char folder[400];

static int setup_folder(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/elpis-model-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

/* Removes the folder, its files and the folders one level below with theirs. */
static void remove_folder(const char *path)
{
    struct arena *arena = arena_create();
    struct error error;
    char **names;
    size_t count = 0;
    if (file_list(arena, path, &names, &count, &error) == 0) {
        for (size_t i = 0; i < count; i++) {
            const char *entry = arena_format(arena, "%s/%s", path, names[i]);
            if (file_is_folder(entry))
                remove_folder(entry);
            else
                unlink(entry);
        }
    }
    rmdir(path);
    arena_destroy(arena);
}

static int teardown_folder(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

/* folder/name; valid until four calls later. */
static const char *in_folder(const char *name)
{
    static char paths[4][600];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void write_file(const char *name, const void *data, size_t size)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

static inline void read_file(const char *name, struct buffer *content)
{
    struct error error = {0};
    if (file_read(content, in_folder(name), 64u << 20, &error) < 0)
        fail_msg("%s", error.text);
}

/* Replaces the only place of `from` in a text file; `to` may be longer. */
static inline void replace_in_file(const char *name, const char *from, const char *to)
{
    struct buffer content = {0}, changed = {0};
    read_file(name, &content);
    char *place = strstr(content.data, from);
    if (!place)
        fail_msg("%s does not hold: %s", name, from);
    buffer_add(&changed, content.data, (size_t)(place - content.data));
    buffer_add_text(&changed, to);
    buffer_add_text(&changed, place + strlen(from));
    write_file(name, changed.data, changed.size);
    buffer_free(&content);
    buffer_free(&changed);
}

static inline void expect_error(const struct error *error, int code, const char *words)
{
    if (error->code != code || !strstr(error->text, words))
        fail_msg("expected error %d with \"%s\", got %d: %s", code, words, error->code,
                 error->text);
    if (strchr(error->text, '\n'))
        fail_msg("an error must be one line: %s", error->text);
}

/* model_open on the test's folder. */
static inline struct model *open_good(void)
{
    struct model *model = NULL;
    struct error error = {0};
    if (model_open(&model, folder, &error) < 0)
        fail_msg("%s", error.text);
    return model;
}

static inline void expect_refused(const char *words)
{
    struct model *model = NULL;
    struct error error = {0};
    assert_int_equal(model_open(&model, folder, &error), -1);
    assert_null(model);
    expect_error(&error, ERROR_MODEL, words);
}

static inline void make_good(const struct make_options *options)
{
    struct error error = {0};
    if (make_model(options, &error) < 0)
        fail_msg("%s", error.text);
}

static inline void make_default(void)
{
    struct make_options options;
    make_defaults(&options, folder);
    make_good(&options);
}

#define TEST_IN_FOLDER(function) \
    cmocka_unit_test_setup_teardown(function, setup_folder, teardown_folder)

#endif
