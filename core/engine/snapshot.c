/* snapshot.c - states of prompts, kept so that a prompt with the same beginning goes on from there.
 *
 * A snapshot is (position, all of the sequence's state but the cache pages): GDN states,
 * convolution windows, the draft's rings. The pages stay on the device, where the one sequence has
 * them at their positions, so a snapshot is good while the tokens below it are those of the last
 * prompts: the snapshots of an engine lie along one list of tokens,
 *
 *     tokens   t0 ............ t4095 ............ t8191 ...... t9471 | not kept
 *     list     [0] 4096              [1] 8192           [2] 9472
 *
 * and a prompt that differs from some token on drops those above it, for it will overwrite their
 * pages. Decoding writes at and above the prompt's end only and is not in the list: its states are
 * not those of a prompt. All prompts of an engine are of one kind (enum engine_prefill) and
 * have one cache width, so neither is looked at.
 *
 * Positions are multiples of 256: ends of pieces, the last multiple of a prompt, and the last one
 * below the token in which a prompt differed from those before it, where the next such prompt will
 * differ too. When all slots are taken, the snapshot goes whose loss costs least: the one nearest
 * above the one before it.
 *
 * A draft follows only the end of a prompt (drafter_begin), so in a snapshot far below it the rings
 * are behind: what goes on from there has the same tokens, and for a window's length poorer
 * proposals.
 *
 * The state is copied on the device, in the order of the launches, and from there to page-locked
 * memory by a stream of its own while the next piece runs; the host waits for neither.
 *
 *     first stream   piece | state -> staging | piece ...          wait copied | staging ...
 *     own stream             wait staged | staging -> slot | copied
 */
#include "engine/engine_private.h"

#include <string.h>

struct part {
    dptr address;
    u64 bytes;
};

struct snapshot {
    u32 position;
    void *slot; /* page-locked, all parts one behind the other */
};

struct snapshots {
    struct snapshot *list; /* the first `count` by position; the others' slots are free */
    u32 count, capacity;
    u32 *tokens; /* [context]; below the last position */
    u32 fork;    /* where a snapshot is wanted because the prompt that runs leaves the tokens */
    struct part parts[2 + 2 * DRAFT_LAYERS_MAX];
    u32 part_count;
    u64 bytes; /* of all parts */
    dptr staging;
    struct device_stream *stream;
    struct device_event *staged, *copied;
};

/* ---- opening */

static void add_part(struct snapshots *s, dptr address, u64 bytes)
{
    if (!bytes)
        return;
    s->parts[s->part_count++] = (struct part){address, bytes};
    s->bytes += bytes;
}

static void list_parts(const struct engine *engine, struct snapshots *s)
{
    const struct state_sizes sizes = state_sizes(engine);
    dptr keys, values;
    u64 bytes;
    add_part(s, engine->gdn.state, sizes.recurrent);
    add_part(s, engine->gdn.window, sizes.windows);
    for (u32 i = 0; drafter_memory(engine, i, &keys, &values, &bytes); i++) {
        add_part(s, keys, bytes);
        add_part(s, values, bytes);
    }
}

/* As many slots as there may be, or as the host can lock. */
static void alloc_slots(struct engine *engine, u64 most)
{
    struct snapshots *s = engine->snapshots;
    struct error error;
    dptr ignored;
    s->list = memory_alloc(most * sizeof *s->list);
    while (s->capacity < most &&
           device_alloc_pinned(engine->device, s->bytes, &s->list[s->capacity].slot, &ignored,
                               &error) == 0)
        s->capacity++;
    if (s->capacity < most)
        log_warn("%u of %llu snapshots: %s", s->capacity, (unsigned long long)most, error.text);
}

int snapshots_open(struct engine *engine, u64 bytes, struct error *error)
{
    if (!bytes)
        return 0;
    struct snapshots *s = engine->snapshots = memory_alloc(sizeof *s);
    list_parts(engine, s);
    const u64 fit = bytes / (s->bytes ? s->bytes : 1), useful = engine->context / PAGE;
    if (!fit)
        log_warn("no snapshots of prompts: one takes %llu bytes, %llu may be used",
                 (unsigned long long)s->bytes, (unsigned long long)bytes);
    alloc_slots(engine, fit < useful ? fit : useful);
    s->tokens = memory_alloc(engine->context * sizeof *s->tokens);
    return device_stream_create(engine->device, DEVICE_FIRST, &s->stream, error) ||
                   device_event_create(engine->device, &s->staged, error) ||
                   device_event_create(engine->device, &s->copied, error) ||
                   engine_alloc(engine, s->bytes, "staging of a snapshot", &s->staging, error)
               ? -1
               : 0;
}

void snapshots_close(struct engine *engine)
{
    struct snapshots *s = engine->snapshots;
    struct error ignored;
    if (!s)
        return;
    if (s->stream) {
        device_sync(engine->device, s->stream, &ignored); /* it may still write a slot */
        device_stream_destroy(engine->device, s->stream);
    }
    if (s->staged)
        device_event_destroy(engine->device, s->staged);
    if (s->copied)
        device_event_destroy(engine->device, s->copied);
    for (u32 i = 0; i < s->capacity; i++)
        device_free_pinned(engine->device, s->list[i].slot);
    memory_free(s->list);
    memory_free(s->tokens);
    memory_free(s);
}

/* ---- a prompt begins */

void snapshots_forget(struct engine *engine)
{
    if (engine->snapshots)
        engine->snapshots->count = 0;
}

static int restore(struct engine *engine, const struct snapshot *snapshot, struct error *error)
{
    const struct snapshots *s = engine->snapshots;
    const u8 *from = snapshot->slot;
    if (device_event_wait(engine->device, NULL, s->copied, error))
        return -1;
    for (u32 i = 0; i < s->part_count; from += s->parts[i++].bytes)
        if (device_copy_in(engine->device, NULL, s->parts[i].address, from, s->parts[i].bytes,
                           error))
            return -1;
    engine->position = snapshot->position;
    return 0;
}

int snapshots_resume(struct engine *engine, const u32 *prompt, u32 count, struct error *error)
{
    struct snapshots *s = engine->snapshots;
    u32 common = 0, kept = s ? s->count : 0;
    const u32 known = kept ? s->list[kept - 1].position : 0;
    while (common < known && common < count && s->tokens[common] == prompt[common])
        common++;
    while (kept && s->list[kept - 1].position > common)
        kept--;
    if (kept ? restore(engine, &s->list[kept - 1], error) : state_reset(engine, error))
        return -1;
    if (s) {
        s->count = kept;
        s->fork = common / PAGE * PAGE;
    }
    engine->resumed = engine->position;
    return 0;
}

/* ---- a prompt runs */

u32 snapshots_stop(const struct engine *engine, u32 count)
{
    const struct snapshots *s = engine->snapshots;
    const u32 from = engine->position, left = count - from;
    u32 end = from + (left < engine->piece ? left : engine->piece);
    if (!s || !s->capacity)
        return end;
    const u32 stops[] = {s->fork, count / PAGE * PAGE};
    for (u32 i = 0; i < COUNT_OF(stops); i++)
        if (stops[i] > from && stops[i] < end)
            end = stops[i];
    return end;
}

static void drop_least(struct snapshots *s)
{
    u32 least = 0;
    for (u32 i = 0, before = 0, gap = UINT32_MAX; i < s->count; before = s->list[i++].position) {
        if (s->list[i].position - before >= gap)
            continue;
        gap = s->list[i].position - before;
        least = i;
    }
    const struct snapshot dropped = s->list[least];
    s->count--;
    memmove(&s->list[least], &s->list[least + 1], (s->count - least) * sizeof *s->list);
    s->list[s->count] = dropped;
}

int snapshots_take(struct engine *engine, const u32 *prompt, struct error *error)
{
    struct snapshots *s = engine->snapshots;
    u64 at = 0;
    if (!s || !s->capacity || engine->position % PAGE)
        return 0;
    if (s->count == s->capacity)
        drop_least(s);
    if (device_event_wait(engine->device, NULL, s->copied, error)) /* the staging is free */
        return -1;
    for (u32 i = 0; i < s->part_count; at += s->parts[i++].bytes)
        if (device_copy(engine->device, NULL, s->staging + at, s->parts[i].address,
                        s->parts[i].bytes, error))
            return -1;
    if (device_event_record(engine->device, s->staged, NULL, error) ||
        device_event_wait(engine->device, s->stream, s->staged, error) ||
        device_copy_out(engine->device, s->stream, s->list[s->count].slot, s->staging, s->bytes,
                        error) ||
        device_event_record(engine->device, s->copied, s->stream, error))
        return -1;
    s->list[s->count++].position = engine->position;
    memcpy(s->tokens, prompt, engine->position * sizeof *s->tokens);
    return 0;
}
