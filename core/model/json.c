/* json.c - JSON files of a model directory: read whole, values fetched by key.
 *
 * Every message names the file, the key, what was expected and what was found. A
 * reader's error is sticky, so that a long list of keys reads as a list and is tested
 * once. A key whose value is null counts as absent, as the libraries that write
 * these files mean it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/model_private.h"

/* tokenizer.json of the largest vocabularies is near 20 MB. */
#define FILE_LIMIT (256u << 20)

int model_json_read(json_t **root, const char *path, struct error *error)
{
    struct buffer content = {0};
    json_error_t fault;
    int result = -1;
    *root = NULL;
    if (file_read(&content, path, FILE_LIMIT, error) < 0) {
        error->code = ERROR_MODEL;
        goto done;
    }
    *root = json_loadb(content.data ? content.data : "", content.size, JSON_REJECT_DUPLICATES,
                       &fault);
    if (!*root) {
        error_set(error, ERROR_MODEL, "%s is not valid JSON at line %d, column %d: %s", path,
                  fault.line, fault.column, fault.text);
        goto done;
    }
    if (!json_is_object(*root)) {
        error_set(error, ERROR_MODEL, "%s holds %s, expected a JSON object", path,
                  reader_kind(*root));
        json_decref(*root);
        *root = NULL;
        goto done;
    }
    result = 0;
done:
    buffer_free(&content);
    return result;
}

int model_error_printable(struct error *error)
{
    for (char *next = error->text; *next; next++) {
        if ((unsigned char)*next < 0x20 || *next == 0x7f)
            *next = '?';
    }
    return -1;
}

const json_t *reader_get(const struct json_reader *reader, const char *key)
{
    const json_t *value = json_object_get(reader->object, key);
    return json_is_null(value) ? NULL : value;
}

const char *reader_kind(const json_t *value)
{
    if (!value)
        return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a fraction";
    case JSON_NULL: return "null";
    default: return json_is_true(value) ? "true" : "false";
    }
}

void reader_refuse(struct json_reader *reader, const char *key, const char *format, ...)
{
    char text[600];
    va_list arguments;
    if (reader->failed)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    error_set(reader->error, ERROR_MODEL, "%s: %s%s %s", reader->path, reader->group, key, text);
    reader->failed = true;
}

void reader_refuse_list(struct json_reader *reader, const char *key, const char *format, ...)
{
    char text[300], size[32] = "";
    const json_t *value = reader_get(reader, key);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (json_is_array(value))
        snprintf(size, sizeof size, " of %zu", json_array_size(value));
    reader_refuse(reader, key, "is %s%s, expected a list of %s", reader_kind(value), size, text);
}

static u32 checked_u32(struct json_reader *reader, const char *key, const json_t *value, u32 least,
                       u32 most)
{
    if (!json_is_integer(value)) {
        reader_refuse(reader, key, "is %s, expected an integer", reader_kind(value));
        return least;
    }
    json_int_t number = json_integer_value(value);
    if (number >= least && number <= most)
        return (u32)number;
    if (least == most)
        reader_refuse(reader, key, "is %" JSON_INTEGER_FORMAT ", only %u is supported", number,
                      least);
    else
        reader_refuse(reader, key, "is %" JSON_INTEGER_FORMAT ", supported are %u to %u", number,
                      least, most);
    return least;
}

u32 reader_u32(struct json_reader *reader, const char *key, u32 least, u32 most)
{
    return checked_u32(reader, key, reader_get(reader, key), least, most);
}

u32 reader_u32_or(struct json_reader *reader, const char *key, u32 absent, u32 least, u32 most)
{
    const json_t *value = reader_get(reader, key);
    return value ? checked_u32(reader, key, value, least, most) : absent;
}

double reader_number_or(struct json_reader *reader, const char *key, double absent)
{
    const json_t *value = reader_get(reader, key);
    if (!value)
        return absent;
    if (!json_is_number(value))
        reader_refuse(reader, key, "is %s, expected a number", reader_kind(value));
    return json_number_value(value);
}

bool reader_bool_or(struct json_reader *reader, const char *key, bool absent)
{
    const json_t *value = reader_get(reader, key);
    if (!value)
        return absent;
    if (!json_is_boolean(value))
        reader_refuse(reader, key, "is %s, expected true or false", reader_kind(value));
    return json_is_true(value);
}

const char *reader_text_or(struct json_reader *reader, const char *key, const char *absent)
{
    const json_t *value = reader_get(reader, key);
    if (!value)
        return absent;
    if (!json_is_string(value)) {
        reader_refuse(reader, key, "is %s, expected a string", reader_kind(value));
        return absent;
    }
    return json_string_value(value);
}

static void add_id(struct json_reader *reader, const char *key, const json_t *value, u32 *ids,
                   u32 *count, u32 most)
{
    u32 id = checked_u32(reader, key, value, 0, UINT32_MAX);
    for (u32 i = 0; i < *count; i++) {
        if (ids[i] == id)
            return;
    }
    if (*count == most)
        reader_refuse(reader, key, "lists more than the %u ids that are supported", most);
    else if (!reader->failed)
        ids[(*count)++] = id;
}

void reader_ids(struct json_reader *reader, const char *key, u32 *ids, u32 *count, u32 most)
{
    const json_t *value = reader_get(reader, key);
    if (!value)
        return;
    if (!json_is_array(value)) {
        add_id(reader, key, value, ids, count, most);
        return;
    }
    for (size_t i = 0; i < json_array_size(value); i++)
        add_id(reader, key, json_array_get(value, i), ids, count, most);
}
