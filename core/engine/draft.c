/* draft.c - the draft model beside the target. */
#include "engine/engine_private.h"

int drafter_open(struct engine *engine, const struct engine_options *options, struct error *error)
{
    (void)engine, (void)options;
    return error_set(error, ERROR_USAGE, "no draft yet");
}
void drafter_close(struct engine *engine)
{
    (void)engine;
}
int drafter_tap(struct engine *engine, u32 layer, struct error *error)
{
    (void)engine, (void)layer, (void)error;
    return 0;
}
int drafter_tap_piece(struct engine *engine, u32 layer, u32 rows, struct error *error)
{
    (void)engine, (void)layer, (void)rows, (void)error;
    return 0;
}
int drafter_follow(struct engine *engine, struct error *error)
{
    (void)engine, (void)error;
    return 0;
}
void drafter_begin(struct engine *engine, u32 from)
{
    (void)engine, (void)from;
}
int drafter_follow_piece(struct engine *engine, u32 rows, struct error *error)
{
    (void)engine, (void)rows, (void)error;
    return 0;
}
int drafter_propose(struct engine *engine, u32 token, u32 depth, struct error *error)
{
    (void)engine, (void)token, (void)depth, (void)error;
    return 0;
}
bool drafter_memory(const struct engine *engine, u32 layer, dptr *keys, dptr *values, u64 *bytes)
{
    (void)engine, (void)layer, (void)keys, (void)values, (void)bytes;
    return false;
}
