/* json_file.c - JSON files of a model folder: read, parse, take members with messages that
 * name file and key.
 */
#include <string.h>

#include "text_private.h"

/* A tokenizer.json of 250,000 tokens has about 20 MB. */
#define JSON_FILE_LIMIT ((size_t)256 << 20)

int json_file_read(json_t **root, const char *folder, const char *name, bool optional,
                   struct error *error)
{
    *root = NULL;
    struct buffer path = {0}, content = {0};
    buffer_format(&path, "%s/%s", folder, name);
    int result = 0;
    if (!file_exists(path.data)) {
        if (!optional)
            result = error_set(error, ERROR_MODEL, "%s is missing; a model folder needs it",
                               path.data);
        goto done;
    }
    result = file_read(&content, path.data, JSON_FILE_LIMIT, error);
    if (result < 0) {
        error->code = ERROR_MODEL;
        goto done;
    }
    json_error_t fault;
    *root = json_loadb(content.data, content.size, JSON_REJECT_DUPLICATES, &fault);
    if (!*root)
        result = error_set(error, ERROR_MODEL, "%s, line %d: %s", path.data, fault.line,
                           fault.text);
    else if (!json_is_object(*root))
        result = error_set(error, ERROR_MODEL, "%s: expected a JSON object", path.data);
done:
    buffer_free(&path);
    buffer_free(&content);
    return result;
}

static const char *kind_name(json_type kind)
{
    switch (kind) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

int json_member(json_t *object, const char *key, json_type kind, const char *where, json_t **member,
                struct error *error)
{
    *member = json_object_get(object, key);
    if (!*member || json_is_null(*member)) {
        *member = NULL;
        return 0;
    }
    if (json_typeof(*member) == kind)
        return 0;
    return error_set(error, ERROR_MODEL, "%s.%s: expected %s, found %s", where, key,
                     kind_name(kind), kind_name(json_typeof(*member)));
}

int json_flag(json_t *object, const char *key, bool absent, const char *where, bool *flag,
              struct error *error)
{
    json_t *member = json_object_get(object, key);
    *flag = absent;
    if (!member || json_is_null(member))
        return 0;
    *flag = json_is_true(member);
    if (json_is_boolean(member))
        return 0;
    return error_set(error, ERROR_MODEL, "%s.%s: expected a boolean, found %s", where, key,
                     kind_name(json_typeof(member)));
}

static bool listed(const char *const *keys, const char *key)
{
    for (; *keys; keys++)
        if (strcmp(*keys, key) == 0)
            return true;
    return false;
}

int json_only_keys(json_t *object, const char *const *keys, const char *where, struct error *error)
{
    const char *key;
    json_t *value;
    json_object_foreach (object, key, value) {
        if (!listed(keys, key))
            return error_set(error, ERROR_MODEL, "%s.%s: unknown key; it may change the token ids",
                             where, key);
    }
    return 0;
}
