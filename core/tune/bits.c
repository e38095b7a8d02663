/* bits.c - what a launch wrote: kept, put back, compared.
 *
 * A kernel writes through the arguments that its schedule does not call const: addresses, or lists
 * of addresses in device memory. Whatever lies in the buffers behind them, to their ends, is what
 * it can write to without a fault, so whole buffers are kept twice:
 *
 *     buffer      the engine's, in which launches work
 *     before      what was in it at opening: every launch begins with that
 *     right       what the default left in it
 *
 * A candidate that writes past what it should, but inside a buffer, is found like one that writes
 * wrong values. Past a buffer's end it is not seen here; the host device's check does that.
 * Comparing is a kernel's work (schedules/compare.lua): buffers may be a gigabyte.
 */
#include "tune/tune_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LIST_MOST = 4, BUFFERS_MOST = 32 }; /* addresses of a list: the parts of a linear group */

struct kept_buffer {
    dptr address, before, right;
    u64 bytes;
};

struct bits {
    struct jit *jit;
    struct device *device;
    const struct jit_kernel *compare;
    struct kept_buffer list[BUFFERS_MOST];
    u32 count;
    u64 bytes;
    dptr different; /* u32 [1] */
};

/* False: the address is in no buffer, or there are too many. */
static bool add_address(struct bits *bits, dptr address)
{
    struct kept_buffer found = {0};
    if (!device_buffer_of(bits->device, address, &found.address, &found.bytes))
        return false;
    for (u32 i = 0; i < bits->count; i++)
        if (bits->list[i].address == found.address)
            return true;
    if (bits->count == BUFFERS_MOST)
        return false;
    bits->list[bits->count++] = found;
    bits->bytes += found.bytes;
    return true;
}

/* The addresses in a list in device memory, up to the first that is 0 or the list's end. */
static bool add_list(struct bits *bits, dptr list)
{
    struct error ignored;
    u64 addresses[LIST_MOST] = {0}, bytes;
    dptr begin;
    if (!device_buffer_of(bits->device, list, &begin, &bytes))
        return false;
    const u64 left = begin + bytes - list;
    if (device_copy_out(bits->device, NULL, addresses, list,
                        left < sizeof addresses ? left : sizeof addresses, &ignored) != 0 ||
        device_sync(bits->device, NULL, &ignored) != 0)
        return false;
    for (u32 i = 0; i < LIST_MOST && addresses[i]; i++)
        if (!add_address(bits, addresses[i]))
            return false;
    return true;
}

static bool find_buffers(struct bits *bits, const struct jit_kernel *kernel, const u64 *arguments,
                         u32 count, char reason[240])
{
    const char *writes = jit_kernel_writes(kernel);
    for (u32 i = 0; i < count && writes[i]; i++) {
        if (writes[i] == '-' || !arguments[i])
            continue;
        if (!(writes[i] == 'l' ? add_list : add_address)(bits, arguments[i])) {
            snprintf(reason, 240, "its argument %u leads to memory that is not known", i + 1);
            return false;
        }
    }
    if (bits->count > 0)
        return true;
    snprintf(reason, 240, "its arguments do not say where it writes, so nothing can be compared");
    return false;
}

static int keep_before(struct bits *bits, struct error *error)
{
    if (device_alloc(bits->device, sizeof(u32), "differences", &bits->different, error) != 0)
        return -1;
    for (u32 i = 0; i < bits->count; i++) {
        struct kept_buffer *kept = &bits->list[i];
        if (device_alloc(bits->device, kept->bytes, "kept before", &kept->before, error) != 0 ||
            device_alloc(bits->device, kept->bytes, "kept right", &kept->right, error) != 0 ||
            device_copy(bits->device, NULL, kept->before, kept->address, kept->bytes, error) != 0)
            return -1;
    }
    return 0;
}

struct bits *bits_open(struct jit *jit, struct device *device, const struct jit_kernel *compare,
                       const struct jit_kernel *kernel, const u64 *arguments, u32 count,
                       char reason[240])
{
    struct bits *bits = memory_alloc(sizeof *bits);
    struct error error;
    *bits = (struct bits){.jit = jit, .device = device, .compare = compare};
    if (!find_buffers(bits, kernel, arguments, count, reason)) {
        bits_close(bits);
        return NULL;
    }
    if (keep_before(bits, &error) != 0) {
        snprintf(reason, 240, "no room to keep the %.2f GB that it can write to twice: %.150s",
                 (double)bits->bytes / 1e9, error.text);
        bits_close(bits);
        return NULL;
    }
    return bits;
}

void bits_close(struct bits *bits)
{
    if (!bits)
        return;
    for (u32 i = 0; i < bits->count; i++) {
        device_free(bits->device, bits->list[i].before);
        device_free(bits->device, bits->list[i].right);
    }
    device_free(bits->device, bits->different);
    memory_free(bits);
}

u64 bits_bytes(const struct bits *bits)
{
    return bits->bytes;
}

int bits_restore(struct bits *bits, struct error *error)
{
    for (u32 i = 0; i < bits->count; i++) {
        const struct kept_buffer *kept = &bits->list[i];
        if (device_copy(bits->device, NULL, kept->address, kept->before, kept->bytes, error) != 0)
            return -1;
    }
    return 0;
}

int bits_keep(struct bits *bits, struct error *error)
{
    for (u32 i = 0; i < bits->count; i++) {
        const struct kept_buffer *kept = &bits->list[i];
        if (device_copy(bits->device, NULL, kept->right, kept->address, kept->bytes, error) != 0)
            return -1;
    }
    return 0;
}

/* Bytes behind the last whole word; a buffer of odd size is rare. */
static int compare_tail(struct bits *bits, const struct kept_buffer *kept, bool *same,
                        struct error *error)
{
    u8 found[4] = {0}, right[4] = {0};
    const u64 size = kept->bytes % 4, at = kept->bytes - size;
    if (device_copy_out(bits->device, NULL, found, kept->address + at, size, error) != 0 ||
        device_copy_out(bits->device, NULL, right, kept->right + at, size, error) != 0 ||
        device_sync(bits->device, NULL, error) != 0)
        return -1;
    *same = *same && memcmp(found, right, sizeof found) == 0;
    return 0;
}

int bits_compare(struct bits *bits, bool *same, struct error *error)
{
    const u64 chunk = (u64)jit_kernel_export(bits->compare, "chunk");
    u32 different = 0;
    *same = true;
    if (device_fill(bits->device, NULL, bits->different, 0, sizeof different, error) != 0)
        return -1;
    for (u32 i = 0; i < bits->count; i++) {
        const struct kept_buffer *kept = &bits->list[i];
        const u64 words = kept->bytes / 4;
        const u64 arguments[] = {kept->address, kept->right, words, (words + chunk - 1) / chunk,
                                 bits->different};
        if (jit_launch(bits->jit, NULL, bits->compare, arguments, COUNT_OF(arguments), error) !=
                0 ||
            (kept->bytes % 4 && compare_tail(bits, kept, same, error) != 0))
            return -1;
    }
    if (device_copy_out(bits->device, NULL, &different, bits->different, sizeof different, error) !=
            0 ||
        device_sync(bits->device, NULL, error) != 0)
        return -1;
    *same = *same && different == 0;
    return 0;
}
