/* utf8.c - UTF-8 as Unicode chapter 3 (table 3-7) defines it: one unit at a time.
 *
 * A faulty run is the longest start of a character that could have become well-formed, or one
 * byte. Replacing each by U+FFFD gives what Rust's from_utf8_lossy and Python's "replace" give.
 */
#include "text_private.h"

/* The range a second byte may have; all further bytes have 80..BF. */
static void second_byte_range(u8 lead, u8 *low, u8 *high)
{
    *low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
}

static u32 length_of(u8 lead)
{
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead < 0xe0)
        return 2;
    if (lead >= 0xe0 && lead < 0xf0)
        return 3;
    return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

struct utf8_unit utf8_next(const char *data, size_t size)
{
    const u8 *bytes = (const u8 *)data;
    u32 length = length_of(bytes[0]);
    if (length == 0)
        return (struct utf8_unit){UTF8_INVALID, 1, 0};
    if (length == 1)
        return (struct utf8_unit){UTF8_CHARACTER, 1, bytes[0]};
    u8 low, high;
    second_byte_range(bytes[0], &low, &high);
    u32 code = bytes[0] & (0x7fu >> length);
    for (u32 i = 1; i < length; i++) {
        if (i == size)
            return (struct utf8_unit){UTF8_INCOMPLETE, i, 0};
        if (bytes[i] < low || bytes[i] > high)
            return (struct utf8_unit){UTF8_INVALID, i, 0};
        code = code << 6 | (bytes[i] & 0x3f);
        low = 0x80;
        high = 0xbf;
    }
    return (struct utf8_unit){UTF8_CHARACTER, length, code};
}

size_t utf8_valid_prefix(struct slice text)
{
    size_t at = 0;
    while (at < text.size) {
        if ((u8)text.data[at] < 0x80) {
            at++;
            continue;
        }
        struct utf8_unit unit = utf8_next(text.data + at, text.size - at);
        if (unit.kind != UTF8_CHARACTER)
            return at;
        at += unit.size;
    }
    return at;
}

void utf8_add(struct buffer *buffer, u32 code)
{
    char bytes[4];
    size_t size = 0;
    if (code < 0x80) {
        bytes[size++] = (char)code;
    } else if (code < 0x800) {
        bytes[size++] = (char)(0xc0 | code >> 6);
        bytes[size++] = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        bytes[size++] = (char)(0xe0 | code >> 12);
        bytes[size++] = (char)(0x80 | (code >> 6 & 0x3f));
        bytes[size++] = (char)(0x80 | (code & 0x3f));
    } else {
        bytes[size++] = (char)(0xf0 | code >> 18);
        bytes[size++] = (char)(0x80 | (code >> 12 & 0x3f));
        bytes[size++] = (char)(0x80 | (code >> 6 & 0x3f));
        bytes[size++] = (char)(0x80 | (code & 0x3f));
    }
    buffer_add(buffer, bytes, size);
}

void utf8_add_repaired(struct buffer *buffer, struct slice text)
{
    while (text.size) {
        size_t good = utf8_valid_prefix(text);
        buffer_add(buffer, text.data, good);
        text = (struct slice){text.data + good, text.size - good};
        if (!text.size)
            return;
        u32 faulty = utf8_next(text.data, text.size).size;
        utf8_add(buffer, 0xfffd);
        text = (struct slice){text.data + faulty, text.size - faulty};
    }
}

bool utf8_is_space(u32 code)
{
    return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
           code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}
