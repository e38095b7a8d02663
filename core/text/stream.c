/* stream.c - from token bytes to text that may be shown: never half a character, never a stop
 * string or a part of one, reasoning apart from content.
 *
 *     bytes --(repair)--> held text --(decide)--> emit
 *
 * `raw` holds up to three bytes of a character that is not complete; `held` holds repaired text
 * about which nothing can be said yet: the tail may become a stop string, a thinking marker, or a
 * line break before </think>. Everything decided is emitted at once.
 *
 * Thinking. The state begins in reasoning when the prompt left <think> open. Otherwise <think>
 * counts only as the first thing of the output (after blanks); later it is text. </think> ends
 * reasoning; in content it is text. Line breaks after <think>, before </think> and after </think>
 * belong to the markers and are dropped.
 *
 * Stop strings are looked for in content. Of several, the one that is complete first wins; of those
 * that complete together, the longest. So the result does not depend on how the bytes were cut
 * into tokens.
 */
#include <string.h>

#include "text/text.h"
#include "text_private.h"

static const struct slice open_marker = SLICE("<think>");
static const struct slice close_marker = SLICE("</think>");

struct text_stream {
    stream_emit emit;
    void *user;
    struct slice *stops;
    size_t stop_count;
    struct arena *arena; /* copies of the stop strings */
    enum stream_part part;
    bool may_open;   /* <think> would still be a marker */
    bool skip_lines; /* line breaks belong to the marker before */
    bool finished;   /* a stop string was completed */
    struct buffer raw, held;
};

/* ---- small searches */

static size_t find(struct slice text, struct slice needle)
{
    const char *at = memmem(text.data, text.size, needle.data, needle.size);
    return at ? (size_t)(at - text.data) : SIZE_MAX;
}

/* Length of the longest end of text that is a proper start of needle. */
static size_t partial_tail(struct slice text, struct slice needle)
{
    size_t size = needle.size - 1 < text.size ? needle.size - 1 : text.size;
    for (; size > 0; size--)
        if (memcmp(text.data + text.size - size, needle.data, size) == 0)
            return size;
    return 0;
}

static bool is_line_break(char c)
{
    return c == '\n' || c == '\r';
}

static size_t count_blanks(struct slice text)
{
    size_t count = 0;
    while (count < text.size &&
           (is_line_break(text.data[count]) || text.data[count] == ' ' || text.data[count] == '\t'))
        count++;
    return count;
}

/* ---- life */

struct text_stream *text_stream_create(const struct text_stream_options *options, stream_emit emit,
                                       void *user)
{
    struct text_stream *stream = memory_alloc(sizeof *stream);
    stream->emit = emit;
    stream->user = user;
    stream->arena = arena_create();
    stream->stops = arena_alloc(stream->arena, (options->stop_count + 1) * sizeof *stream->stops);
    for (size_t i = 0; i < options->stop_count; i++) {
        struct slice stop = options->stops[i];
        if (stop.size)
            stream->stops[stream->stop_count++] = (struct slice){arena_text(stream->arena, stop),
                                                                 stop.size};
    }
    bool inside = options->thinking && options->starts_inside;
    stream->part = inside ? STREAM_REASONING : STREAM_CONTENT;
    stream->may_open = options->thinking && !inside;
    stream->skip_lines = inside;
    return stream;
}

void text_stream_destroy(struct text_stream *stream)
{
    if (!stream)
        return;
    buffer_free(&stream->raw);
    buffer_free(&stream->held);
    arena_destroy(stream->arena);
    memory_free(stream);
}

/* ---- held text */

static void drop_held(struct text_stream *stream, size_t size)
{
    memmove(stream->held.data, stream->held.data + size, stream->held.size - size);
    stream->held.size -= size;
}

static void emit_held(struct text_stream *stream, size_t size)
{
    if (size)
        stream->emit(stream->user, stream->part, (struct slice){stream->held.data, size});
    drop_held(stream, size);
}

static size_t without_line_breaks(const struct text_stream *stream, size_t size)
{
    while (size > 0 && is_line_break(stream->held.data[size - 1]))
        size--;
    return size;
}

static void enter(struct text_stream *stream, enum stream_part part)
{
    stream->part = part;
    stream->may_open = false;
    stream->skip_lines = true;
}

/* Returns whether the state changed, so that the rest is looked at again. */
static bool advance_reasoning(struct text_stream *stream)
{
    struct slice text = buffer_slice(&stream->held);
    size_t at = find(text, close_marker);
    if (at != SIZE_MAX) {
        size_t shown = without_line_breaks(stream, at);
        emit_held(stream, shown);
        drop_held(stream, at - shown + close_marker.size);
        enter(stream, STREAM_CONTENT);
        return true;
    }
    size_t safe = text.size - partial_tail(text, close_marker);
    emit_held(stream, without_line_breaks(stream, safe));
    return false;
}

/* Whether <think> begins the output: 1 yes (entered), 0 not known yet, -1 no. */
static int try_open(struct text_stream *stream)
{
    struct slice text = buffer_slice(&stream->held);
    size_t blanks = count_blanks(text);
    struct slice rest = {text.data + blanks, text.size - blanks};
    if (slice_starts(rest, open_marker)) {
        drop_held(stream, blanks + open_marker.size);
        enter(stream, STREAM_REASONING);
        return 1;
    }
    if (slice_starts(open_marker, rest))
        return 0;
    stream->may_open = false;
    return -1;
}

static bool advance_content(struct text_stream *stream)
{
    struct slice text = buffer_slice(&stream->held);
    size_t first_end = SIZE_MAX, first_start = SIZE_MAX, partial = 0;
    for (size_t i = 0; i < stream->stop_count; i++) {
        size_t start = find(text, stream->stops[i]);
        size_t end = start == SIZE_MAX ? SIZE_MAX : start + stream->stops[i].size;
        if (end < first_end || (end == first_end && start < first_start)) {
            first_end = end;
            first_start = start;
        }
        size_t tail = partial_tail(text, stream->stops[i]);
        if (tail > partial)
            partial = tail;
    }
    if (first_end != SIZE_MAX) {
        emit_held(stream, first_start);
        stream->finished = true;
        return false;
    }
    emit_held(stream, text.size - partial);
    return false;
}

static void advance(struct text_stream *stream)
{
    bool again = true;
    while (again && stream->held.size && !stream->finished) {
        while (stream->skip_lines && stream->held.size && is_line_break(stream->held.data[0]))
            drop_held(stream, 1);
        if (!stream->held.size)
            return;
        stream->skip_lines = false;
        if (stream->part == STREAM_REASONING) {
            again = advance_reasoning(stream);
            continue;
        }
        int opened = stream->may_open ? try_open(stream) : -1;
        if (opened == 0)
            return;
        again = opened == 1 || advance_content(stream);
    }
}

/* Moves whole characters of raw to held. */
static void repair(struct text_stream *stream, bool all)
{
    struct slice text = buffer_slice(&stream->raw);
    size_t keep = 0;
    for (size_t back = 1; !all && back <= 3 && back <= text.size; back++) {
        struct utf8_unit unit = utf8_next(text.data + text.size - back, back);
        if (unit.kind == UTF8_INCOMPLETE && unit.size == back)
            keep = back;
    }
    utf8_add_repaired(&stream->held, (struct slice){text.data, text.size - keep});
    memmove(stream->raw.data, text.data + text.size - keep, keep);
    stream->raw.size = keep;
}

bool text_stream_feed(struct text_stream *stream, struct slice bytes)
{
    if (stream->finished || !bytes.size)
        return stream->finished;
    buffer_add_slice(&stream->raw, bytes);
    repair(stream, false);
    advance(stream);
    return stream->finished;
}

void text_stream_end(struct text_stream *stream)
{
    if (stream->finished)
        return;
    if (stream->raw.size)
        repair(stream, true);
    advance(stream);
    if (stream->finished)
        return;
    size_t size = stream->held.size;
    if (size)
        emit_held(stream,
                  stream->part == STREAM_REASONING ? without_line_breaks(stream, size) : size);
    stream->finished = true;
}

/* ---- the prompt's tail */

static size_t find_last(struct slice text, struct slice needle)
{
    for (size_t at = text.size; at >= needle.size; at--)
        if (memcmp(text.data + at - needle.size, needle.data, needle.size) == 0)
            return at;
    return SIZE_MAX;
}

/* An end of turn after <think> closes it too: then it was somebody's quoted text. */
bool text_prompt_starts_inside(struct slice prompt)
{
    size_t after = find_last(prompt, open_marker);
    if (after == SIZE_MAX)
        return false;
    struct slice tail = {prompt.data + after, prompt.size - after};
    return find(tail, close_marker) == SIZE_MAX && find(tail, SLICE("<|im_end|>")) == SIZE_MAX;
}
