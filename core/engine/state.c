/* state.c - what a sequence is between passes: cache pages, GDN states, convolution windows.
 *
 * Cache of an attention layer, slots = context positions (one sequence: page i holds positions
 * 256 i ..; the page table is the identity and exists so that several sequences can share later):
 *   codes   u32 [slots, kv_heads * 8, bits]      bits = 16: f16 [slots, kv_heads * 256]
 *   scales  f16 [slots, kv_heads * 8]
 * State files are safetensors with the position in the metadata and, per layer, only the slots in
 * use.
 */
#include "engine/engine_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static u64 code_bytes(const struct engine *engine)
{
    const u64 kv = engine->model->config.kv_heads;
    return engine->kv_bits == 16 ? kv * HEAD_DIM * 2
                                 : kv * (HEAD_DIM / GROUP_DIMS) * engine->kv_bits * 4;
}

static u64 scale_bytes(const struct engine *engine)
{
    return engine->kv_bits == 16
               ? 0
               : (u64)engine->model->config.kv_heads * (HEAD_DIM / GROUP_DIMS) * 2;
}

static u64 state_bytes(const struct engine *engine)
{
    return (u64)engine->model->config.gdn_v_heads * BLOCK * BLOCK * 4;
}

static u64 window_bytes(const struct engine *engine)
{
    const struct model_config *c = &engine->model->config;
    return (u64)(c->conv_taps - 1) * (2 * c->gdn_k_heads + c->gdn_v_heads) * BLOCK * 4;
}

struct state_sizes state_sizes(const struct engine *engine)
{
    return (struct state_sizes){.codes = code_bytes(engine),
                                .scales = scale_bytes(engine),
                                .recurrent = engine->gdn.count * state_bytes(engine),
                                .windows = engine->gdn.count * window_bytes(engine)};
}

static int alloc_store(struct engine *engine, u32 slots, struct kv_store *store,
                       struct error *error)
{
    const u64 codes = slots * code_bytes(engine), scales = slots * scale_bytes(engine);
    return engine_alloc(engine, codes, "key codes", &store->k_codes, error) ||
                   engine_alloc(engine, codes, "value codes", &store->v_codes, error) ||
                   (scales &&
                    (engine_alloc(engine, scales, "key scales", &store->k_scales, error) ||
                     engine_alloc(engine, scales, "value scales", &store->v_scales, error)))
               ? -1
               : 0;
}

/* Caches, the round's own rows, and the lists of both that a commit goes through. */
static int alloc_attention(struct engine *engine, struct error *error)
{
    const u32 count = engine->attention.count;
    struct kv_store *lists = memory_alloc(2 * count * sizeof *lists);
    int result = 0;
    for (u32 i = 0, place = 0; i < engine->model->config.layers && !result; i++) {
        struct device_layer *layer = &engine->layers[i];
        if (!layer->attention)
            continue;
        result = alloc_store(engine, engine->context, &layer->cache, error) ||
                 alloc_store(engine, ROWS, &layer->own, error);
        lists[place] = layer->cache;
        lists[count + place++] = layer->own;
    }
    if (!result)
        result = engine_upload(engine, lists, count * sizeof *lists, "cache list",
                               &engine->attention.caches, error) ||
                 engine_upload(engine, lists + count, count * sizeof *lists, "row list",
                               &engine->attention.owns, error);
    memory_free(lists);
    return result ? -1 : 0;
}

static int alloc_gdn(struct engine *engine, struct error *error)
{
    struct gdn_layers *gdn = &engine->gdn;
    if (engine_alloc(engine, gdn->count * state_bytes(engine), "GDN states", &gdn->state, error) ||
        engine_alloc(engine, gdn->count * window_bytes(engine), "windows", &gdn->window, error))
        return -1;
    for (u32 i = 0, place = 0; i < engine->model->config.layers; i++) {
        struct device_layer *layer = &engine->layers[i];
        if (layer->attention)
            continue;
        layer->state = gdn->state + place * state_bytes(engine);
        layer->window = gdn->window + place++ * window_bytes(engine);
    }
    return 0;
}

int state_alloc(struct engine *engine, struct error *error)
{
    if ((engine->attention.count && alloc_attention(engine, error)) ||
        (engine->gdn.count && alloc_gdn(engine, error)))
        return -1;
    const u32 pages = engine->context / PAGE;
    u32 *identity = memory_alloc(pages * sizeof *identity);
    for (u32 i = 0; i < pages; i++)
        identity[i] = i;
    int result = device_copy_in(engine->device, NULL, engine->pages, identity, pages * 4, error);
    memory_free(identity);
    return result ? result : state_reset(engine, error);
}

int state_reset(struct engine *engine, struct error *error)
{
    const struct gdn_layers *gdn = &engine->gdn;
    dptr keys, values;
    u64 bytes;
    snapshots_forget(engine);
    if (gdn->count && (device_fill(engine->device, NULL, gdn->state, 0,
                                   gdn->count * state_bytes(engine), error) ||
                       device_fill(engine->device, NULL, gdn->window, 0,
                                   gdn->count * window_bytes(engine), error)))
        return -1;
    for (u32 i = 0; drafter_memory(engine, i, &keys, &values, &bytes); i++)
        if (device_fill(engine->device, NULL, keys, 0, bytes, error) ||
            device_fill(engine->device, NULL, values, 0, bytes, error))
            return -1;
    engine->position = 0;
    return 0;
}

/* ---- files: one list of pieces serves saving and loading */

struct piece {
    char name[48];
    dptr address;
    u64 bytes;
};

static void add_piece(struct piece *piece, const char *of, u32 layer, const char *name,
                      dptr address, u64 bytes)
{
    snprintf(piece->name, sizeof piece->name, "%slayers.%u.%s", of, layer, name);
    piece->address = address;
    piece->bytes = bytes;
}

static u32 most_pieces(const struct engine *engine)
{
    return engine->model->config.layers * 6 + 2 * DRAFT_LAYERS_MAX;
}

static u32 list_pieces(const struct engine *engine, u32 position, struct piece *list)
{
    u32 count = 0;
    for (u32 i = 0; i < engine->model->config.layers; i++) {
        const struct device_layer *layer = &engine->layers[i];
        const u64 codes = position * code_bytes(engine), scales = position * scale_bytes(engine);
        const struct {
            const char *name;
            dptr address;
            u64 bytes;
        } all[] = {{"k_codes", layer->cache.k_codes, codes},
                   {"k_scales", layer->cache.k_scales, scales},
                   {"v_codes", layer->cache.v_codes, codes},
                   {"v_scales", layer->cache.v_scales, scales},
                   {"state", layer->state, state_bytes(engine)},
                   {"window", layer->window, window_bytes(engine)}};
        for (u32 j = 0; j < COUNT_OF(all); j++) {
            if (!all[j].address || !all[j].bytes)
                continue;
            add_piece(&list[count++], "", i, all[j].name, all[j].address, all[j].bytes);
        }
    }
    for (u32 i = 0; count < most_pieces(engine); i++) {
        dptr keys, values;
        u64 bytes;
        if (!drafter_memory(engine, i, &keys, &values, &bytes))
            break;
        add_piece(&list[count++], "draft.", i, "keys", keys, bytes);
        add_piece(&list[count++], "draft.", i, "values", values, bytes);
    }
    return count;
}

int state_save(struct engine *engine, const char *path, struct error *error)
{
    struct piece *list = memory_alloc(most_pieces(engine) * sizeof *list);
    const u32 count = list_pieces(engine, engine->position, list);
    void **copies = memory_alloc((count + 1) * sizeof *copies);
    struct tensor_writer *writer = tensor_writer_create();
    int result = 0;
    for (u32 i = 0; i < count && !result; i++) {
        copies[i] = memory_alloc(list[i].bytes);
        result = device_copy_out(engine->device, NULL, copies[i], list[i].address, list[i].bytes,
                                 error);
        tensor_writer_add(writer, list[i].name, DTYPE_U8, 1, &list[i].bytes, copies[i]);
    }
    if (!result)
        result = device_sync(engine->device, NULL, error);
    char text[32];
    snprintf(text, sizeof text, "%u", engine->position);
    tensor_writer_metadata(writer, "position", text);
    copies[count] = memory_alloc(4);
    memcpy(copies[count], &engine->position, 4);
    tensor_writer_add(writer, "position", DTYPE_I32, 1, &(u64){1}, copies[count]);
    if (!result)
        result = tensor_writer_write(writer, path, error);
    tensor_writer_destroy(writer);
    for (u32 i = 0; i <= count; i++)
        memory_free(copies[i]);
    memory_free(copies);
    memory_free(list);
    return result;
}

static int load_pieces(struct engine *engine, const struct tensor_file *file, const char *path,
                       u32 position, struct error *error)
{
    struct piece *list = memory_alloc(most_pieces(engine) * sizeof *list);
    const u32 count = list_pieces(engine, position, list);
    int result = 0;
    for (u32 i = 0; i < count && !result; i++) {
        const struct tensor *tensor = tensor_file_find(file, list[i].name);
        if (!tensor && strncmp(list[i].name, "draft.", 6) == 0) {
            log_info("%s: no context of a draft in it: proposals begin poor", path);
            break; /* these come last; state_reset has cleared them */
        }
        if (!tensor || tensor->dtype != DTYPE_U8 || tensor->count != list[i].bytes)
            result = error_set(
                error, ERROR_USAGE,
                "%s: tensor %s: expected U8 [%llu], found %s; the state is of another model, "
                "cache width or version",
                path, list[i].name, (unsigned long long)list[i].bytes,
                tensor ? "another shape" : "nothing");
        else
            result = device_copy_in(engine->device, NULL, list[i].address, tensor->data,
                                    list[i].bytes, error);
    }
    memory_free(list);
    return result;
}

int state_load(struct engine *engine, const char *path, struct error *error)
{
    struct tensor_file *file;
    if (tensor_file_open(&file, path, error))
        return -1;
    const struct tensor *tensor = tensor_file_find(file, "position");
    u32 position = 0;
    int result = -1;
    if (!tensor || tensor->dtype != DTYPE_I32 || tensor->count != 1) {
        error_set(error, ERROR_USAGE, "%s: no tensor position: not a state of this program", path);
        goto done;
    }
    memcpy(&position, tensor->data, 4);
    if (position > engine->context) {
        error_set(error, ERROR_USAGE,
                  "%s: holds %u tokens, the context is %u; give a larger --context", path, position,
                  engine->context);
        goto done;
    }
    if (state_reset(engine, error) || load_pieces(engine, file, path, position, error) ||
        device_sync(engine->device, NULL, error))
        goto done;
    engine->position = position;
    result = 0;
done:
    tensor_file_close(file);
    return result;
}
