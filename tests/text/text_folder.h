/* text_folder.h - throw-away model folders for the tests of text/. */
#ifndef ELPIS_TEST_TEXT_FOLDER_H
#define ELPIS_TEST_TEXT_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER_TEMPLATE "/tmp/elpis-test-XXXXXX"

static inline void folder_make(char *folder)
{
    assert_non_null(mkdtemp(folder));
}

static inline void folder_write(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static inline void folder_remove(const char *folder)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

#endif
