/* records.c - tuning records: what was fastest, for which GPU and shape.
 *
 * One file a GPU below schedules/records/, JSON lines, each line one object:
 *
 *     {"schedule": "linear_main", "target": "sm_86", "sms": 82,
 *      "parameters": {"k": 5120, ...}, "tuning": {"warps": 8, ...}, "candidates": [...]}
 *
 * "sms" is optional and, when there, must match too. "candidates" holds every combination that
 * was timed; it is for people and the tuner and is not read here. Of several matching lines the
 * last counts, so a file may be appended to. A line that is no record costs one warning and
 * nothing else: tuning never changes bits.
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "jit/jit_private.h"

struct record {
    const char *schedule, *target;
    u32 sms; /* 0 = any */
    struct jit_parameter *parameters, *tuning;
};

struct records {
    struct arena *arena;
    struct record *list;
    size_t count;
};

/* An object of integers and strings as a parameter table; NULL if it is anything else. */
static struct jit_parameter *read_table(struct arena *arena, json_t *object)
{
    const char *key;
    json_t *value;
    size_t count = 0;
    if (!json_is_object(object))
        return NULL;
    struct jit_parameter *table = arena_alloc(arena,
                                              (json_object_size(object) + 1) * sizeof *table);
    json_object_foreach (object, key, value) {
        struct jit_parameter *parameter = &table[count++];
        parameter->name = arena_text(arena, slice_of(key));
        if (json_is_integer(value))
            parameter->number = json_integer_value(value);
        else if (json_is_string(value))
            parameter->text = arena_text(arena, slice_of(json_string_value(value)));
        else
            return NULL;
    }
    return table;
}

static bool read_record(struct arena *arena, json_t *object, struct record *record)
{
    json_t *schedule = json_object_get(object, "schedule");
    json_t *target = json_object_get(object, "target");
    json_t *sms = json_object_get(object, "sms");
    if (!json_is_string(schedule) || !json_is_string(target) || (sms && !json_is_integer(sms)))
        return false;
    record->schedule = arena_text(arena, slice_of(json_string_value(schedule)));
    record->target = arena_text(arena, slice_of(json_string_value(target)));
    record->sms = sms ? (u32)json_integer_value(sms) : 0;
    record->parameters = read_table(arena, json_object_get(object, "parameters"));
    record->tuning = read_table(arena, json_object_get(object, "tuning"));
    return record->parameters && record->tuning;
}

static void read_line(struct records *records, const char *path, u32 number, const char *line,
                      size_t size)
{
    json_error_t reason;
    struct record record = {0};
    json_t *object = json_loadb(line, size, JSON_REJECT_DUPLICATES, &reason);
    if (!object || !read_record(records->arena, object, &record)) {
        log_warn("%s:%u is no tuning record (%s); it is ignored", path, number,
                 object ? "schedule, target, parameters or tuning missing or of another type"
                        : reason.text);
    } else {
        records->list = memory_resize(records->list, (records->count + 1) * sizeof record);
        records->list[records->count++] = record;
    }
    json_decref(object);
}

static void read_file(struct records *records, const char *path, const struct buffer *text)
{
    u32 number = 1;
    for (const char *line = text->data; line && *line; number++) {
        size_t size = strcspn(line, "\n");
        if (strspn(line, " \t\r") < size)
            read_line(records, path, number, line, size);
        line += size + (line[size] == '\n');
    }
}

struct records *records_open(const struct scripts *scripts)
{
    struct records *records = memory_alloc(sizeof *records);
    struct buffer text = {0};
    char **paths;
    records->arena = arena_create();
    size_t count = scripts_list(scripts, "schedules/records", records->arena, &paths);
    for (size_t i = 0; i < count; i++)
        if (slice_ends(slice_of(paths[i]), SLICE(".jsonl")) &&
            scripts_read(scripts, paths[i], &text))
            read_file(records, paths[i], &text);
    buffer_free(&text);
    return records;
}

void records_close(struct records *records)
{
    if (!records)
        return;
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

static bool same_table(const struct jit_parameter *a, const struct jit_parameter *b)
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

const struct jit_parameter *records_find(const struct records *records, const char *schedule,
                                         const struct scripts_target *target,
                                         const struct jit_parameter *parameters)
{
    for (size_t i = records->count; i-- > 0;) {
        const struct record *record = &records->list[i];
        if (strcmp(record->schedule, schedule) == 0 && strcmp(record->target, target->name) == 0 &&
            (record->sms == 0 || record->sms == target->sms) &&
            same_table(record->parameters, parameters))
            return record->tuning;
    }
    return NULL;
}
