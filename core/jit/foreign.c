/* foreign.c - files of the override folder in place of the program's own.
 *
 * The laws of such a schedule, and of every schedule where a library is replaced, are checked
 * whenever a kernel of it is requested (request.c). That it computes the same bits only a run
 * against the built-in one can say: `elpis script` does that and leaves a certificate in the
 * folder, checks/NAME.json,
 *
 *     {"schedule": "residual", ..., "files": {"schedules/residual.lua": "<digest>", ...}}
 *
 * with the digest of every file that the checked text was made from. It holds as long as all of
 * them, the program's and the folder's, still have these digests. A replaced file that no valid
 * certificate names costs one warning: whoever replaces a file may know what they do.
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "jit/jit_private.h"

static bool has_digest(const struct scripts *scripts, const char *path, const char *expected)
{
    struct buffer text = {0};
    char digits[65] = "";
    if (expected && scripts_read(scripts, path, &text))
        digest_text(digest_of(text.data ? text.data : "", text.size), digits);
    buffer_free(&text);
    return expected && strcmp(digits, expected) == 0;
}

/* Whether `files` names path, and all its files are as they were. */
static bool covers(const struct scripts *scripts, json_t *files, const char *path)
{
    const char *name;
    json_t *digest;
    if (!json_object_get(files, path))
        return false;
    json_object_foreach (files, name, digest)
        if (!has_digest(scripts, name, json_string_value(digest)))
            return false;
    return true;
}

/* All certificates, a list of their "files". A file that is none counts for nothing. */
static json_t *read_certificates(const struct scripts *scripts, struct arena *arena)
{
    json_t *list = json_array();
    struct buffer text = {0};
    char **paths;
    const size_t count = scripts_list(scripts, "checks", arena, &paths);
    for (size_t i = 0; i < count; i++) {
        if (!slice_ends(slice_of(paths[i]), SLICE(".json")) ||
            !scripts_read(scripts, paths[i], &text))
            continue;
        json_t *certificate = json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES, NULL);
        json_t *files = json_object_get(certificate, "files");
        if (json_is_object(files))
            json_array_append(list, files);
        json_decref(certificate);
    }
    buffer_free(&text);
    return list;
}

static bool is_replaced(const struct scripts *scripts, const char *path)
{
    struct buffer text = {0};
    struct slice own;
    const bool replaced = jit_embedded_file(path, &own) && scripts_read(scripts, path, &text) &&
                          !slice_equal(buffer_slice(&text), own);
    buffer_free(&text);
    return replaced;
}

static bool is_covered(const struct scripts *scripts, json_t *certificates, const char *path)
{
    for (size_t i = 0; i < json_array_size(certificates); i++)
        if (covers(scripts, json_array_get(certificates, i), path))
            return true;
    return false;
}

void foreign_warn(const struct scripts *scripts, const char *folder)
{
    static const char *const folders[] = {"lua", "schedules", "templates", "templates/prelude"};
    struct arena *arena = arena_create();
    json_t *certificates = read_certificates(scripts, arena);
    for (size_t k = 0; k < COUNT_OF(folders); k++) {
        char **paths;
        const size_t count = scripts_list(scripts, folders[k], arena, &paths);
        for (size_t i = 0; i < count; i++)
            if (is_replaced(scripts, paths[i]) && !is_covered(scripts, certificates, paths[i]))
                log_warn("%s/%s replaces the built-in file and no check against it holds: results "
                         "may differ; check it with case:install(\"%s\") in an `elpis script`",
                         folder, paths[i], folder);
    }
    json_decref(certificates);
    arena_destroy(arena);
}

bool foreign_library(const struct scripts *scripts)
{
    static const char *const folders[] = {"lua", "schedules"};
    static const char *const prefixes[] = {"lua/", "schedules/lib_"};
    struct arena *arena = arena_create();
    bool replaced = false;
    for (size_t k = 0; k < COUNT_OF(folders); k++) {
        char **paths;
        const size_t count = scripts_list(scripts, folders[k], arena, &paths);
        for (size_t i = 0; i < count; i++)
            if (slice_starts(slice_of(paths[i]), slice_of(prefixes[k])))
                replaced = replaced || is_replaced(scripts, paths[i]);
    }
    arena_destroy(arena);
    return replaced;
}

bool foreign_schedule(const struct scripts *scripts, const char *name)
{
    struct buffer text = {0};
    struct slice own = {0};
    char path[128];
    snprintf(path, sizeof path, "schedules/%s.lua", name);
    const bool built_in = jit_embedded_file(path, &own);
    const bool foreign = scripts_read(scripts, path, &text) &&
                         !(built_in && slice_equal(buffer_slice(&text), own));
    buffer_free(&text);
    return foreign;
}
