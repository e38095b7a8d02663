/* fake_engine.c - an engine that says what it is told: it answers with the tokens of the
 * prompt, in order, then stops. Sampling settings choose how it behaves:
 *
 *     seed     microseconds before each token, at most a second (a request without one
 *              has a random seed: no wait)
 *     top_k    REPEAT: the prompt again and again up to max_tokens; SLOW_PREFILL: waits
 *              for fake->prefill_us before the first token, half of the prompt done;
 *              BREAK: a fatal device error; FAULT: an ordinary one
 *
 * It works in rounds of fake->round_tokens tokens (0: 1) and says of each that it proposed
 * FAKE_DRAFTED tokens, was recomputed if fake->recomputed, and took FAKE_ROUND_SECONDS.
 *
 * struct fake lies in memory that parent and child share, so that a test sees what the
 * server made the engine do. Included by the test programs; the real engine's
 * archive is then not linked.
 */
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/engine.h"

enum { REPEAT = 1, SLOW_PREFILL = 2, BREAK = 666, FAULT = 667 };
enum { FAKE_CONTEXT = 300000, FAKE_VOCAB = 4096, FAKE_IM_END = 4088, FAKE_END = 4086 };
enum { FAKE_DRAFTED = 7, FAKE_CACHED = 1 };
#define FAKE_ROUND_SECONDS 0.0625 /* exact in binary */
#define FAKE_PREFILL_SECONDS 0.25

struct fake {
    u32 open_us, prefill_us, close_us;
    u32 round_tokens;
    bool open_fails, recomputed;
    atomic_bool open_waits; /* until the test clears it */
    atomic_uint started, finished, cancelled, tokens;
    u32 prompt_count, max_tokens; /* of the last request */
    struct engine_sampling sampling;
};
static struct fake *fake;

struct engine {
    struct model model;
};

static void fake_create(void)
{
    fake = mmap(NULL, sizeof *fake, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static int fake_open(void *user, struct engine **engine, struct error *error)
{
    (void)user;
    usleep(fake->open_us);
    while (atomic_load(&fake->open_waits))
        usleep(1000);
    if (fake->open_fails)
        return error_set(error, ERROR_MODEL, "the fake model is broken as told");
    *engine = memory_alloc(sizeof **engine);
    struct model_config *config = &(*engine)->model.config;
    config->vocab = FAKE_VOCAB;
    config->eos[0] = FAKE_IM_END;
    config->eos[1] = FAKE_END;
    config->eos_count = 2;
    return 0;
}

void engine_close(struct engine *engine)
{
    memory_free(engine);
}

const struct model *engine_model(const struct engine *engine)
{
    return &engine->model;
}

const struct device_info *engine_device(const struct engine *engine)
{
    static const struct device_info info = {.name = "no device"};
    (void)engine;
    return &info;
}

u32 engine_context(const struct engine *engine)
{
    (void)engine;
    return FAKE_CONTEXT;
}

const char *engine_plan_hash(const struct engine *engine)
{
    (void)engine;
    return "0123456789abcdef";
}

/* Waits, asking between, with so much of the prompt done; false when told to stop. */
static bool fake_wait(const struct engine_request *request, u64 microseconds, u32 done)
{
    const u64 step = 2000;
    while (microseconds) {
        u64 now = microseconds < step ? microseconds : step;
        usleep((useconds_t)now);
        microseconds -= now;
        if (request->on_progress &&
            !request->on_progress(request->user, done, request->prompt_count))
            return false;
    }
    return true;
}

static int fake_cancelled(struct error *error)
{
    atomic_fetch_add(&fake->cancelled, 1);
    return error_set(error, ERROR_CANCELLED, "cancelled");
}

/* The numbers of a request that ended with so many tokens. */
static int fake_end(struct engine_result *result, enum engine_finish finish, u32 tokens)
{
    const u32 size = fake->round_tokens ? fake->round_tokens : 1;
    result->finish = finish;
    result->completion_tokens = tokens;
    result->cached_tokens = FAKE_CACHED;
    result->rounds = (tokens + size - 1) / size;
    result->drafted = FAKE_DRAFTED * result->rounds;
    result->accepted = tokens - result->rounds;
    result->recomputed = fake->recomputed ? result->rounds : 0;
    result->prefill_seconds = FAKE_PREFILL_SECONDS;
    result->decode_seconds = FAKE_ROUND_SECONDS * result->rounds;
    return 0;
}

static int fake_tokens(const struct engine_request *request, struct engine_result *result,
                       struct error *error)
{
    bool repeat = request->sampling.top_k == REPEAT;
    u64 pause = request->sampling.seed <= 1000000 ? request->sampling.seed : 0;
    const u32 size = fake->round_tokens ? fake->round_tokens : 1;
    for (u32 i = 0;; i++) {
        if (i % size == 0 && i < request->max_tokens &&
            (!fake_wait(request, pause, request->prompt_count) ||
             !request->on_progress(request->user, request->prompt_count, request->prompt_count)))
            return fake_cancelled(error);
        if (!repeat && i == request->prompt_count)
            return fake_end(result, FINISH_STOP, i + 1);
        if (i == request->max_tokens)
            return fake_end(result, FINISH_LENGTH, i);
        atomic_fetch_add(&fake->tokens, 1);
        if (!request->on_token(request->user, request->prompt[i % request->prompt_count]))
            return fake_end(result, FINISH_CALLER, i + 1);
    }
}

int engine_generate(struct engine *engine, const struct engine_request *request,
                    struct engine_result *result, struct error *error)
{
    (void)engine;
    memset(result, 0, sizeof *result);
    result->prompt_tokens = request->prompt_count;
    fake->prompt_count = request->prompt_count;
    fake->max_tokens = request->max_tokens;
    fake->sampling = request->sampling;
    atomic_fetch_add(&fake->started, 1);
    if (request->sampling.top_k == BREAK)
        return error_set(error, ERROR_FATAL, "the fake device is gone as told");
    if (request->sampling.top_k == FAULT)
        return error_set(error, ERROR_DEVICE, "the fake device failed as told");
    if (request->sampling.top_k == SLOW_PREFILL &&
        !fake_wait(request, fake->prefill_us, request->prompt_count / 2))
        return fake_cancelled(error);
    int status = fake_tokens(request, result, error);
    if (status == 0)
        atomic_fetch_add(&fake->finished, 1);
    return status;
}
