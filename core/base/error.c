/* error.c - filling struct error.
 *
 * An error is one line that the caller owns. Outer functions put what they know
 * in front of it with error_prefix, so the line reads from the outside in:
 * "model.safetensors: layer 3: expected 2 dimensions, found 3".
 * Text that does not fit is cut and ends in "...". Nothing here prints.
 */
#include <stdio.h>
#include <string.h>

#include "base/base.h"

static void mark_cut(char *text, size_t capacity, int wanted)
{
    if (wanted >= (int)capacity)
        memcpy(text + capacity - 4, "...", 4);
}

int error_set(struct error *error, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    error->code = code;
    int wanted = vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    mark_cut(error->text, sizeof error->text, wanted);
    return -1;
}

int error_prefix(struct error *error, const char *format, ...)
{
    char prefix[sizeof error->text], old[sizeof error->text];
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    mark_cut(prefix, sizeof prefix, wanted);
    memcpy(old, error->text, sizeof old);
    const char *parts[] = {prefix, ": ", old};
    size_t at = 0, room = sizeof error->text - 1;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        size_t size = strlen(parts[i]);
        if (size > room - at)
            size = room - at;
        memcpy(error->text + at, parts[i], size);
        at += size;
    }
    error->text[at] = 0;
    if (strlen(prefix) + 2 + strlen(old) > room)
        memcpy(error->text + room - 3, "...", 3);
    return -1;
}
