/* records.c - the tuning records in use, and which of them a request gets (records.h).
 *
 * A record matches where schedule, target and parameters are equal, and sms where it has one. One
 * that was made with other texts of its schedule is stale: it is passed over. Of several that match
 * the last counts. A line that is no record costs one warning and nothing else: tuning never
 * changes bits.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/jit_private.h"
#include "jit/records.h"

/* ---- files in use */

char *records_folder(const char *given)
{
    const char *own = getenv("ELPIS_RECORDS"), *data = getenv("XDG_DATA_HOME"),
               *home = getenv("HOME");
    struct buffer path = {0};
    if (given && *given)
        return memory_copy_text(slice_of(given));
    if (own && *own)
        return memory_copy_text(slice_of(own));
    if (data && *data)
        buffer_format(&path, "%s/elpis/records", data);
    else if (home && *home)
        buffer_format(&path, "%s/.local/share/elpis/records", home);
    return path.data;
}

int records_check_folder(const char *given, struct error *error)
{
    if (!given || !*given || strcmp(given, "none") == 0 || file_is_folder(given))
        return 0;
    return error_set(error, ERROR_USAGE,
                     "--records %s: expected a folder with files *.jsonl, found none; `elpis tune` "
                     "makes it",
                     given);
}

struct found_files {
    struct record_file *list;
    size_t count;
};

static struct record_file *new_file(struct found_files *found)
{
    found->list = memory_resize(found->list, (found->count + 1) * sizeof *found->list);
    return &found->list[found->count++];
}

static bool is_record_file(const char *name)
{
    return slice_ends(slice_of(name), SLICE(".jsonl"));
}

static void add_shipped(const struct scripts *scripts, struct found_files *found)
{
    struct arena *arena = arena_create();
    struct buffer text = {0};
    char **paths;
    const size_t count = scripts_list(scripts, "schedules/records", arena, &paths);
    for (size_t i = 0; i < count; i++)
        if (is_record_file(paths[i]) && scripts_read(scripts, paths[i], &text))
            record_file_parse(new_file(found), paths[i], buffer_slice(&text));
    buffer_free(&text);
    arena_destroy(arena);
}

static int add_folder(const char *folder, struct found_files *found, struct error *error)
{
    struct arena *arena = arena_create();
    char **names = NULL, path[1000];
    size_t count = 0;
    int status = file_list(arena, folder, &names, &count, error);
    for (size_t i = 0; i < count && status == 0; i++)
        if (is_record_file(names[i])) {
            snprintf(path, sizeof path, "%s/%s", folder, names[i]);
            struct record_file file;
            status = record_file_read(&file, path, error);
            if (status == 0)
                *new_file(found) = file;
        }
    arena_destroy(arena);
    return status;
}

static int find_files(const struct scripts *scripts, const char *folder, struct found_files *found,
                      struct error *error)
{
    if (folder && strcmp(folder, "none") == 0)
        return 0;
    add_shipped(scripts, found);
    return folder && file_is_folder(folder) ? add_folder(folder, found, error) : 0;
}

int records_files(const char *schedules, const char *folder, struct record_file **files,
                  size_t *count, struct error *error)
{
    struct scripts *scripts;
    struct found_files found = {0};
    if (records_check_folder(folder, error) != 0 || scripts_open(&scripts, schedules, error) != 0)
        return -1;
    char *used = records_folder(folder);
    const int status = find_files(scripts, used, &found, error);
    memory_free(used);
    scripts_close(scripts);
    *files = found.list;
    *count = found.count;
    return status;
}

void records_files_free(struct record_file *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        record_file_free(&files[i]);
    memory_free(files);
}

/* ---- texts of schedules */

struct text_digest {
    char schedule[64], digest[17]; /* digest "": no such schedule */
};

struct record_texts {
    struct scripts *scripts;
    bool borrowed;
    struct text_digest *list;
    size_t count;
};

int record_texts_open(struct record_texts **out, const char *schedules, struct error *error)
{
    struct record_texts *texts = memory_alloc(sizeof *texts);
    if (scripts_open(&texts->scripts, schedules, error) != 0) {
        memory_free(texts);
        return -1;
    }
    *out = texts;
    return 0;
}

void record_texts_close(struct record_texts *texts)
{
    if (!texts)
        return;
    if (!texts->borrowed)
        scripts_close(texts->scripts);
    memory_free(texts->list);
    memory_free(texts);
}

static const char *digest_of_schedule(struct record_texts *texts, const char *schedule)
{
    for (size_t i = 0; i < texts->count; i++)
        if (strcmp(texts->list[i].schedule, schedule) == 0)
            return texts->list[i].digest;
    texts->list = memory_resize(texts->list, (texts->count + 1) * sizeof *texts->list);
    struct text_digest *fresh = &texts->list[texts->count++];
    snprintf(fresh->schedule, sizeof fresh->schedule, "%s", schedule);
    if (!scripts_digest(texts->scripts, schedule, fresh->digest))
        fresh->digest[0] = 0;
    return fresh->digest;
}

bool record_is_stale(struct record_texts *texts, const json_t *object)
{
    const char *digest = json_string_value(json_object_get(object, "digest"));
    const char *schedule = json_string_value(json_object_get(object, "schedule"));
    return digest && strcmp(digest, digest_of_schedule(texts, schedule)) != 0;
}

/* An object of integers and strings. */
static struct jit_parameter *read_table(struct arena *arena, json_t *object)
{
    const char *key;
    json_t *value;
    size_t count = 0;
    struct jit_parameter *table = arena_alloc(arena,
                                              (json_object_size(object) + 1) * sizeof *table);
    json_object_foreach (object, key, value) {
        struct jit_parameter *parameter = &table[count++];
        parameter->name = arena_text(arena, slice_of(key));
        if (json_is_integer(value))
            parameter->number = json_integer_value(value);
        else
            parameter->text = arena_text(arena, slice_of(json_string_value(value)));
    }
    return table;
}

bool record_is_refused(struct record_texts *texts, const json_t *object, struct error *reason)
{
    const char *name = json_string_value(json_object_get(object, "target"));
    const struct jit_gpu *usual = jit_usual_gpu(name);
    const json_t *sms = json_object_get(object, "sms");
    struct scripts_target target;
    struct scripts_rendering rendering;
    if (!usual || jit_target_named(name, sms ? (u32)json_integer_value(sms) : usual->sms,
                                   usual->shared_per_sm, &target, reason) != 0)
        return false;
    struct arena *arena = arena_create();
    const struct scripts_request request = {
        .schedule = json_string_value(json_object_get(object, "schedule")),
        .parameters = read_table(arena, json_object_get(object, "parameters")),
        .tuning = read_table(arena, json_object_get(object, "tuning")),
        .target = &target};
    const bool refused = scripts_render(texts->scripts, &request, &rendering, reason) != 0;
    if (!refused)
        scripts_rendering_free(&rendering);
    arena_destroy(arena);
    return refused;
}

/* ---- the records of a jit */

struct record {
    const json_t *object;
    struct jit_parameter *parameters, *tuning;
};

struct records {
    struct arena *arena;
    struct found_files files;
    struct record_texts *texts;
    struct record *list;
    size_t count;
    bool told_stale;
};

static void add_record(struct records *records, const json_t *object)
{
    records->list = memory_resize(records->list, (records->count + 1) * sizeof *records->list);
    records->list[records->count++] = (struct record){
        .object = object,
        .parameters = read_table(records->arena, json_object_get(object, "parameters")),
        .tuning = read_table(records->arena, json_object_get(object, "tuning"))};
}

struct records *records_open(struct scripts *scripts, const char *folder)
{
    struct records *records = memory_alloc(sizeof *records);
    struct error error;
    char *used = records_folder(folder);
    records->arena = arena_create();
    records->texts = memory_alloc(sizeof *records->texts);
    *records->texts = (struct record_texts){.scripts = scripts, .borrowed = true};
    if (find_files(scripts, used, &records->files, &error) != 0)
        log_warn("tuning records: %s", error.text);
    for (size_t i = 0; i < records->files.count; i++) {
        const struct record_file *file = &records->files.list[i];
        for (size_t j = 0; j < file->count; j++)
            if (file->lines[j].object)
                add_record(records, file->lines[j].object);
            else if (file->lines[j].reason)
                log_warn("%s:%u is no tuning record (%s); it is ignored", file->path,
                         file->lines[j].number, file->lines[j].reason);
    }
    memory_free(used);
    return records;
}

void records_close(struct records *records)
{
    if (!records)
        return;
    record_texts_close(records->texts);
    records_files_free(records->files.list, records->files.count);
    arena_destroy(records->arena);
    memory_free(records->list);
    memory_free(records);
}

static const struct jit_parameter *find_parameter(const struct jit_parameter *table,
                                                  const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    return NULL;
}

static bool same_value(const struct jit_parameter *a, const struct jit_parameter *b)
{
    if (!a->text || !b->text)
        return !a->text && !b->text && a->number == b->number;
    return strcmp(a->text, b->text) == 0;
}

static size_t table_size(const struct jit_parameter *table)
{
    size_t count = 0;
    while (table[count].name)
        count++;
    return count;
}

bool jit_same_table(const struct jit_parameter *a, const struct jit_parameter *b)
{
    if (table_size(a) != table_size(b))
        return false;
    for (; a->name; a++) {
        const struct jit_parameter *other = find_parameter(b, a->name);
        if (!other || !same_value(a, other))
            return false;
    }
    return true;
}

static bool matches(const struct record *record, const char *schedule,
                    const struct scripts_target *target, const struct jit_parameter *parameters)
{
    const json_t *object = record->object, *sms = json_object_get(object, "sms");
    return strcmp(json_string_value(json_object_get(object, "schedule")), schedule) == 0 &&
           strcmp(json_string_value(json_object_get(object, "target")), target->name) == 0 &&
           (!sms || json_integer_value(sms) == target->sms) &&
           jit_same_table(record->parameters, parameters);
}

const struct jit_parameter *records_find(struct records *records, const char *schedule,
                                         const struct scripts_target *target,
                                         const struct jit_parameter *parameters)
{
    for (size_t i = records->count; i-- > 0;) {
        const struct record *record = &records->list[i];
        if (!matches(record, schedule, target, parameters))
            continue;
        if (!record_is_stale(records->texts, record->object))
            return record->tuning;
        if (!records->told_stale)
            log_info("a tuning record of %s is older than its schedule and ignored; "
                     "`elpis records list` shows such, `elpis tune` makes new ones",
                     schedule);
        records->told_stale = true;
    }
    return NULL;
}
