/* memory.c - slices, checked allocation, arenas, growing buffers.
 *
 * Out of host memory ends the program with one sentence: nothing in this code
 * base can continue without the few kilobytes it asks for here (large memory is
 * the device's, and there a shortage is an ordinary error).
 *
 * arena: a list of blocks, newest first; an allocation comes from the newest
 * block or opens one.
 *
 *     arena -> [next | used | capacity | bytes ............] -> [next | ...] -> NULL
 *
 * buffer: data[size] is always 0 once anything was added, so data is also text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { ARENA_BLOCK = 16 * 1024, ARENA_ALIGN = 16, BUFFER_FIRST = 64 };

/* ---- slices */

struct slice slice_of(const char *text)
{
    if (!text)
        return (struct slice){"", 0};
    return (struct slice){text, strlen(text)};
}

bool slice_equal(struct slice a, struct slice b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

bool slice_starts(struct slice text, struct slice prefix)
{
    if (text.size < prefix.size)
        return false;
    return slice_equal((struct slice){text.data, prefix.size}, prefix);
}

bool slice_ends(struct slice text, struct slice suffix)
{
    if (text.size < suffix.size)
        return false;
    return slice_equal((struct slice){text.data + text.size - suffix.size, suffix.size}, suffix);
}

/* ---- allocation */

static void out_of_memory(size_t bytes)
{
    log_error("out of memory on the host: %zu bytes were refused; close other programs", bytes);
    exit(ERROR_MEMORY);
}

void *memory_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        out_of_memory(bytes);
    return memory;
}

void *memory_resize(void *old, size_t bytes)
{
    void *memory = realloc(old, bytes ? bytes : 1);
    if (!memory)
        out_of_memory(bytes);
    return memory;
}

void memory_free(void *memory)
{
    free(memory);
}

char *memory_copy_text(struct slice text)
{
    char *copy = memory_alloc(text.size + 1);
    if (text.size > 0)
        memcpy(copy, text.data, text.size);
    return copy;
}

/* ---- arena */

struct arena_block {
    struct arena_block *next;
    size_t used, capacity;
    _Alignas(ARENA_ALIGN) u8 bytes[];
};

struct arena {
    struct arena_block *newest;
};

struct arena *arena_create(void)
{
    return memory_alloc(sizeof(struct arena));
}

void arena_destroy(struct arena *arena)
{
    if (!arena)
        return;
    struct arena_block *block = arena->newest;
    while (block) {
        struct arena_block *next = block->next;
        memory_free(block);
        block = next;
    }
    memory_free(arena);
}

static struct arena_block *arena_open_block(struct arena *arena, size_t bytes)
{
    size_t capacity = bytes > ARENA_BLOCK ? bytes : ARENA_BLOCK;
    struct arena_block *block = memory_alloc(sizeof *block + capacity);
    block->capacity = capacity;
    block->next = arena->newest;
    arena->newest = block;
    return block;
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        out_of_memory(bytes);
    size_t rounded = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    struct arena_block *block = arena->newest;
    if (!block || block->capacity - block->used < rounded)
        block = arena_open_block(arena, rounded);
    void *memory = block->bytes + block->used;
    block->used += rounded;
    return memory;
}

char *arena_text(struct arena *arena, struct slice text)
{
    char *copy = arena_alloc(arena, text.size + 1);
    if (text.size > 0)
        memcpy(copy, text.data, text.size);
    return copy;
}

char *arena_format(struct arena *arena, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    size_t room = size < 0 ? 1 : (size_t)size + 1;
    char *text = arena_alloc(arena, room);
    vsnprintf(text, room, format, again);
    va_end(again);
    return text;
}

/* ---- buffer */

static void buffer_reserve(struct buffer *buffer, size_t more)
{
    if (more > SIZE_MAX / 2 - buffer->size)
        out_of_memory(more);
    size_t wanted = buffer->size + more + 1;
    if (wanted <= buffer->capacity)
        return;
    size_t capacity = buffer->capacity ? buffer->capacity : BUFFER_FIRST;
    while (capacity < wanted)
        capacity += capacity / 2 + BUFFER_FIRST;
    buffer->data = memory_resize(buffer->data, capacity);
    buffer->capacity = capacity;
}

void buffer_add(struct buffer *buffer, const void *data, size_t size)
{
    buffer_reserve(buffer, size);
    if (size > 0)
        memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
    buffer->data[buffer->size] = 0;
}

void buffer_add_slice(struct buffer *buffer, struct slice text)
{
    buffer_add(buffer, text.data, text.size);
}

void buffer_add_text(struct buffer *buffer, const char *text)
{
    buffer_add(buffer, text, strlen(text));
}

void buffer_add_csv(struct buffer *buffer, const char *text)
{
    buffer_add_text(buffer, "\"");
    for (; *text; text++)
        buffer_format(buffer, *text == '"' ? "\"\"" : "%c", *text);
    buffer_add_text(buffer, "\"");
}

void buffer_format(struct buffer *buffer, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    size_t room = size < 0 ? 0 : (size_t)size;
    buffer_reserve(buffer, room);
    vsnprintf(buffer->data + buffer->size, room + 1, format, again);
    va_end(again);
    buffer->size += room;
}

void *buffer_extend(struct buffer *buffer, size_t size)
{
    buffer_reserve(buffer, size);
    char *room = buffer->data + buffer->size;
    memset(room, 0, size + 1);
    buffer->size += size;
    return room;
}

void buffer_clear(struct buffer *buffer)
{
    buffer->size = 0;
    if (buffer->data)
        buffer->data[0] = 0;
}

void buffer_free(struct buffer *buffer)
{
    memory_free(buffer->data);
    *buffer = (struct buffer){0};
}

struct slice buffer_slice(const struct buffer *buffer)
{
    return (struct slice){buffer->data ? buffer->data : "", buffer->size};
}
