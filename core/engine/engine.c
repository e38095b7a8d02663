/* engine.c - opening: model, device, plan, kernels, weights; and closing in reverse. */
#include "engine/engine_private.h"

#include <string.h>

enum { DEFAULT_BITS = 3 };

static const char *const prefill_names[ENGINE_PREFILL_KINDS] = {"fast", "exact", "int8-qk"};

const char *engine_prefill_name(enum engine_prefill kind)
{
    return prefill_names[kind];
}

bool engine_prefill_named(struct slice name, enum engine_prefill *kind)
{
    for (u32 i = 0; i < ENGINE_PREFILL_KINDS; i++)
        if (slice_equal(name, slice_of(prefill_names[i]))) {
            *kind = (enum engine_prefill)i;
            return true;
        }
    return false;
}

int engine_alloc(struct engine *engine, size_t bytes, const char *label, dptr *address,
                 struct error *error)
{
    if (device_alloc(engine->device, bytes, label, address, error))
        return -1;
    engine->allocations = memory_resize(engine->allocations, (engine->allocation_count + 1) *
                                                                 sizeof *engine->allocations);
    engine->allocations[engine->allocation_count++] = *address;
    return 0;
}

int engine_upload(struct engine *engine, const void *data, size_t bytes, const char *label,
                  dptr *address, struct error *error)
{
    if (engine_alloc(engine, bytes, label, address, error))
        return -1;
    return device_copy_in(engine->device, NULL, *address, data, bytes, error);
}

int engine_upload_later(struct engine *engine, const void *data, size_t bytes, const char *label,
                        dptr *address, struct error *error)
{
    if (engine_alloc(engine, bytes, label, address, error))
        return -1;
    return uploader_add(engine->uploader, *address, data, bytes, error);
}

static u32 round_up(u32 value, u32 multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* The piece and the context that were asked for; else what the plan gives and the longest that
 * fits (memory_plan_piece, memory_plan_longest, as `check`). */
static int choose_sizes(struct engine *engine, const struct engine_options *options,
                        struct error *error)
{
    const u32 most = engine->model->config.max_positions / PAGE * PAGE;
    struct memory_plan plan;
    u64 available = 0;
    if (options->context > most)
        return error_set(error, ERROR_USAGE, "context %u: the model has %u positions",
                         options->context, most);
    if (device_memory_free(engine->device, &available, error))
        return -1;
    engine->piece = options->piece ? options->piece
                                   : memory_plan_piece(engine->model, engine->draft,
                                                       options->context, engine->kv_bits);
    engine->context = options->context
                          ? round_up(options->context, PAGE)
                          : memory_plan_longest(engine->model, engine->draft, engine->kv_bits,
                                                engine->piece, available);
    const u32 planned = engine->context ? engine->context : PAGE;
    model_memory_plan(engine->model, engine->draft, planned, engine->kv_bits, engine->piece, &plan);
    if (plan.total > available)
        return error_set(error, ERROR_MEMORY,
                         "%s: a context of %u tokens needs %.2f GiB, %.2f GiB are free on %s; "
                         "give a smaller --context or --piece",
                         engine->model->name, planned, (double)plan.total / 0x1p30,
                         (double)available / 0x1p30, device_info(engine->device)->name);
    return 0;
}

static int check_options(const struct engine_options *options, struct error *error)
{
    const u32 bits = options->kv_bits;
    if (bits && bits != 16 && (bits < 2 || bits > 8))
        return error_set(error, ERROR_USAGE, "kv-bits %u: expected 2 to 8, or 16", bits);
    if (options->prefill == ENGINE_PREFILL_INT8_QK && bits == 16)
        return error_set(error, ERROR_USAGE,
                         "prompts with Q K^T of int8 (--prefill %s) take keys from a cache of "
                         "2 to 8 bits, got kv-bits 16: give fewer --kv-bits, or --prefill %s",
                         prefill_names[ENGINE_PREFILL_INT8_QK], prefill_names[ENGINE_PREFILL_FAST]);
    if (options->piece % PAGE)
        return error_set(error, ERROR_USAGE, "piece %u: expected a multiple of %d", options->piece,
                         PAGE);
    return 0;
}

static int open_parts(struct engine *engine, const struct engine_options *options,
                      struct error *error)
{
    const struct jit_options jit = {.cache = options->cache,
                                    .schedules = options->schedules,
                                    .records = options->records,
                                    .plan_seed = options->plan_seed,
                                    .memory_only = options->device.paper};
    const struct model *model = engine->model;
    if (device_open(&engine->device, &options->device, error) ||
        choose_sizes(engine, options, error) || jit_open(&engine->jit, engine->device, &jit, error))
        return -1;
    if (engine->piece > engine->context)
        engine->piece = engine->context;
    engine->vocab_stride = model->head.kind == LINEAR_EXL3 ? model->head.out_padded
                                                           : model->config.vocab;
    engine->valid_vocab = options->valid_vocab && options->valid_vocab < model->config.vocab
                              ? options->valid_vocab
                              : model->config.vocab;
    engine->uploader = uploader_create(engine->device,
                                       device_info(engine->device)->kind == DEVICE_CUDA);
    engine->layers = memory_alloc(model->config.layers * sizeof *engine->layers);
    for (u32 i = 0; i < model->config.layers; i++) {
        engine->layers[i].attention = model->layers[i].attention;
        engine->attention.count += model->layers[i].attention;
        engine->gdn.count += !model->layers[i].attention;
    }
    return weights_upload(engine, error) || plan_buffers(engine, error) ||
                   plan_kernels(engine, error) ||
                   (engine->prefill_kind != ENGINE_PREFILL_EXACT && prefill_open(engine, error)) ||
                   sampler_open(engine, error) ||
                   (options->draft && drafter_open(engine, options, error)) ||
                   plan_scratch(engine, error) || state_alloc(engine, error) ||
                   snapshots_open(engine, options->snapshots, error) ||
                   jit_build(engine->jit, error) || uploader_finish(engine->uploader, error) ||
                   linear_pack(engine, error) || device_sync(engine->device, NULL, error)
               ? -1
               : 0;
}

int engine_open(struct engine **out, const char *model_folder, const struct engine_options *options,
                struct error *error)
{
    if (check_options(options, error))
        return -1;
    struct engine *engine = memory_alloc(sizeof *engine);
    engine->kv_bits = options->kv_bits ? options->kv_bits : DEFAULT_BITS;
    engine->prefill_kind = options->prefill;
    engine->fault_every = options->fault_every;
    if (model_open(&engine->model, model_folder, error) ||
        (options->draft &&
         draft_open(&engine->draft, options->draft, engine->model, options->tap_shift, error)) ||
        open_parts(engine, options, error)) {
        engine_close(engine);
        return -1;
    }
    uploader_destroy(engine->uploader);
    engine->uploader = NULL;
    *out = engine;
    return 0;
}

void engine_close(struct engine *engine)
{
    if (!engine)
        return;
    uploader_destroy(engine->uploader);
    pass_graphs_destroy(engine, &engine->graphs);
    snapshots_close(engine);
    drafter_close(engine);
    sampler_close(engine);
    prefill_close(engine);
    if (engine->round_host)
        device_free_pinned(engine->device, engine->round_host);
    if (engine->commit_host)
        device_free_pinned(engine->device, engine->commit_host);
    if (engine->record_host)
        device_free_pinned(engine->device, engine->record_host);
    if (engine->record_there)
        device_event_destroy(engine->device, engine->record_there);
    if (engine->embedding_host)
        device_free_pinned(engine->device, engine->embedding_host);
    for (u32 i = engine->allocation_count; i-- > 0;)
        device_free(engine->device, engine->allocations[i]);
    memory_free(engine->allocations);
    memory_free(engine->packs);
    memory_free(engine->layers);
    if (engine->jit)
        jit_close(engine->jit);
    device_close(engine->device);
    draft_close(engine->draft);
    if (engine->model)
        model_close(engine->model);
    memory_free(engine);
}

const struct model *engine_model(const struct engine *engine)
{
    return engine->model;
}

const struct device_info *engine_device(const struct engine *engine)
{
    return device_info(engine->device);
}

u32 engine_context(const struct engine *engine)
{
    return engine->context;
}

const char *engine_plan_hash(const struct engine *engine)
{
    return jit_plan_hash(engine->jit);
}
