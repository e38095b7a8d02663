/* measure.c - `elpis bench`: times of passes, rounds and prompts (engine.h says what is offered).
 *
 * A mark is an event behind the launches of a phase (engine_private.h). Without a struct measure in
 * the engine there are none, and launches are what they always are.
 */
#include "engine/engine_private.h"

struct mark {
    struct device_event *event;
    enum phase phase;
};

struct measure {
    struct mark *marks;     /* in the order of the stream; their events are used again */
    u32 mark_count, events; /* set since the last reading; made so far */
};

int measure_mark(struct engine *engine, enum phase phase, struct error *error)
{
    struct measure *m = engine->measure;
    if (m->mark_count == m->events) {
        m->marks = memory_resize(m->marks, (m->events + 1) * sizeof *m->marks);
        if (device_event_create(engine->device, &m->marks[m->events].event, error))
            return -1;
        m->events++;
    }
    struct mark *mark = &m->marks[m->mark_count++];
    mark->phase = phase;
    return device_event_record(engine->device, mark->event, NULL, error);
}
