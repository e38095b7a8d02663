/* synth.c - synthesises a model directory: a real geometry, random weights, valid EXL3.
 *
 * For measuring and for tests of what no model of the size at hand can show: the tensors, names,
 * dtypes and shapes are those of a conversion (exl3.md 1, qwen3_5.md 2, dflash2.md 4.1), so that
 * everything that opens models opens these. What they say is noise, but noise in range:
 *
 *   trellis      random bits. A random mul1 weight has mean 0 and variance 1 (exl3.md 2.5)
 *   suh, svh     random signs; svh near 1, suh near gain / sqrt(k), as conversions have them, so
 *                that a linear gives outputs of rms `gain` for inputs of rms 1
 *   gain         1; of linears that write the residual stream 0.5 / sqrt(layers) after their gated
 *                input: the stream grows from an rms of 0.5 (embedding) to about 0.85
 *   the rest     around the values of tests/models/elpis-tiny, a trained model
 *
 * A tensor's numbers depend on seed, name, and for o, out, down on the number of layers: `layers`
 * cuts a model short, it does not make another.
 *
 * Not here: the numbers (synth_values.c), the other files (synth_text.c), writing
 * (tensor_stream.c).
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "model/synth.h"

#define TARGET_HEAD 256
#define DRAFT_HEAD 128
#define GDN_HEAD 128
#define CONV_TAPS 4
#define DRAFT_CONV_TAPS 2
#define DRAFT_CONV_GROUP 16
#define DEFAULT_BITS 4
#define DEFAULT_HEAD_BITS 6
#define VOCAB_LEAST 512 /* 256 bytes, the special tokens, and something to choose from */
#define VOCAB_MOST (1u << 20)
#define LAYERS_MOST 512
#define HEAD_BLOCK 128
#define RANK_BLOCK 8
#define RANK_MOST 4096
#define WINDOW_MOST (1u << 20)
#define SQRT_3 1.7320508075688772 /* spread of a uniform number / its rms */
#define GATED_RMS 0.6             /* silu(g) * u of unit g and u */
#define JITTER 0.25               /* spread of suh and svh around their mean */

static const struct synth_geometry geometries[] = {
    {"tiny", "that of elpis-tiny: 8 layers, hidden 256, 9 MB", 256, 768, 8, 4096, 6, 1, 2, 6},
    {"1b", "20 layers, hidden 2048, vocabulary 65,536, 0.9 GB", 2048, 5120, 20, 65536, 12, 2, 8,
     24},
    {"9b", "32 layers, hidden 4096, vocabulary 248,320, 6 GB", 4096, 12288, 32, 248320, 16, 4, 16,
     32},
    {"27b", "Qwen3.8-27B: 64 layers, hidden 5120, vocabulary 248,320, 16 GB", 5120, 17408, 64,
     248320, 24, 4, 16, 48},
    {"tiny-dflash2", "the draft of tiny: 2 layers", 256, 512, 2, 4096, 4, 1, .target_layers = 8,
     .window = 128, .rank = 64, .tap_count = 3, .taps = {1, 3, 6}},
    {"1b-dflash2", "a draft of 1b: 3 layers", 2048, 5120, 3, 65536, 16, 4, .target_layers = 20,
     .window = 2048, .rank = 256, .tap_count = 4, .taps = {2, 7, 12, 17}},
    {"9b-dflash2", "a draft of 9b: 5 layers", 4096, 12288, 5, 248320, 32, 8, .target_layers = 32,
     .window = 2048, .rank = 256, .tap_count = 5, .taps = {2, 9, 16, 23, 30}},
    {"27b-dflash2", "Qwen3.8-27B-DFlash2: 5 layers, taps after layers 5, 19, 33, 47, 61", 5120,
     17408, 5, 248320, 32, 8, .target_layers = 64, .window = 2048, .rank = 256, .tap_count = 5,
     .taps = {5, 19, 33, 47, 61}},
};

const char *model_synth_geometry(u32 index, const char **what)
{
    if (index >= COUNT_OF(geometries))
        return NULL;
    *what = geometries[index].what;
    return geometries[index].name;
}

/* ---- options */

static int find_geometry(struct synth_geometry *geometry, const char *name, struct error *error)
{
    struct buffer names = {0};
    for (size_t i = 0; i < COUNT_OF(geometries); i++) {
        *geometry = geometries[i];
        if (strcmp(geometry->name, name) == 0) {
            buffer_free(&names);
            return 0;
        }
        buffer_format(&names, "%s%s", i ? ", " : "", geometry->name);
    }
    error_set(error, ERROR_USAGE, "unknown geometry \"%s\": expected one of %s", name, names.data);
    buffer_free(&names);
    return -1;
}

/* Takes an option over its default, within its limits. */
static int choose(u32 *value, const char *name, u32 wanted, u32 least, u32 most,
                  struct error *error)
{
    if (wanted == 0)
        return 0;
    if (wanted < least || wanted > most)
        return error_set(error, ERROR_USAGE, "%s %" PRIu32 ": expected %" PRIu32 " to %" PRIu32,
                         name, wanted, least, most);
    *value = wanted;
    return 0;
}

/* The same for what is counted in blocks. */
static int choose_blocks(u32 *value, const char *name, u32 wanted, u32 block, u32 most,
                         struct error *error)
{
    if (choose(value, name, wanted, block, most, error) < 0)
        return -1;
    return wanted % block == 0
               ? 0
               : error_set(error, ERROR_USAGE, "%s %" PRIu32 ": expected a multiple of %" PRIu32,
                           name, wanted, block);
}

/* Heads that share one of another kind. */
static int check_shared(const char *name, u32 heads, const char *shared, u32 among, u32 most,
                        struct error *error)
{
    return heads % among == 0 && heads / among <= most
               ? 0
               : error_set(error, ERROR_USAGE,
                           "%s %" PRIu32 ": expected a multiple of %s, which is %" PRIu32
                           ", at most %" PRIu32 " for each",
                           name, heads, shared, among, most);
}

static int choose_widths(struct synth_geometry *geometry, const struct synth_options *options,
                         struct error *error)
{
    const u32 heads = WIDTH_MOST / (geometry->rank ? DRAFT_HEAD : TARGET_HEAD);
    return choose_blocks(&geometry->hidden, "hidden", options->hidden, WIDTH_BLOCK, WIDTH_MOST,
                         error) ||
                   choose_blocks(&geometry->intermediate, "intermediate", options->intermediate,
                                 WIDTH_BLOCK, WIDTH_MOST, error) ||
                   choose(&geometry->q_heads, "q-heads", options->q_heads, 1, heads, error) ||
                   choose(&geometry->kv_heads, "kv-heads", options->kv_heads, 1, heads, error) ||
                   check_shared("q-heads", geometry->q_heads, "kv-heads", geometry->kv_heads,
                                GROUP_MOST, error)
               ? -1
               : 0;
}

/* An option that has a meaning for the other kind of model only. */
static int refuse(u32 wanted, const char *name, const struct synth_geometry *geometry,
                  const char *why, struct error *error)
{
    if (wanted == 0)
        return 0;
    return error_set(error, ERROR_USAGE, "%s has no meaning for %s: %s", name, geometry->name, why);
}

/* Taps spread over another number of layers, or fewer where there are fewer layers. */
static void spread_taps(struct synth_geometry *geometry)
{
    if (geometry->tap_count > geometry->target_layers)
        geometry->tap_count = geometry->target_layers;
    for (u32 i = 0; i < geometry->tap_count; i++)
        geometry->taps[i] = (2 * i + 1) * geometry->target_layers / (2 * geometry->tap_count);
}

static int choose_draft(struct synth *synth, const struct synth_options *options,
                        struct error *error)
{
    struct synth_geometry *geometry = &synth->geometry;
    const u32 native = geometry->target_layers;
    if (refuse(options->head_bits, "head-bits", geometry, "a draft uses its target's head", error) <
            0 ||
        refuse(options->k_heads, "k-heads", geometry, "it has no Gated DeltaNet", error) < 0 ||
        refuse(options->v_heads, "v-heads", geometry, "it has no Gated DeltaNet", error) < 0 ||
        choose(&geometry->window, "window", options->window, 1, WINDOW_MOST, error) < 0 ||
        choose_blocks(&geometry->rank, "rank", options->rank, RANK_BLOCK, RANK_MOST, error) < 0 ||
        choose(&geometry->layers, "layers", options->layers, 1, DRAFT_LAYERS_MAX, error) < 0 ||
        choose(&geometry->target_layers, "target-layers", options->target_layers, 1, LAYERS_MOST,
               error) < 0 ||
        choose(&synth->head_blocks, "head-blocks", options->head_blocks, 2,
               (geometry->vocab + HEAD_BLOCK - 1) / HEAD_BLOCK, error) < 0)
        return -1;
    if (geometry->target_layers != native)
        spread_taps(geometry);
    return 0;
}

static int choose_target(struct synth *synth, const struct synth_options *options,
                         struct error *error)
{
    struct synth_geometry *geometry = &synth->geometry;
    const u32 heads = WIDTH_MOST / GDN_HEAD;
    return refuse(options->target_layers, "target-layers", geometry, "it is no draft", error) ||
                   refuse(options->head_blocks, "head-blocks", geometry, "it is no draft", error) ||
                   refuse(options->window, "window", geometry, "it is no draft", error) ||
                   refuse(options->rank, "rank", geometry, "it is no draft", error) ||
                   choose(&geometry->layers, "layers", options->layers, 1, LAYERS_MOST, error) ||
                   choose(&geometry->k_heads, "k-heads", options->k_heads, 1, heads, error) ||
                   choose(&geometry->v_heads, "v-heads", options->v_heads, 1, heads, error) ||
                   check_shared("v-heads", geometry->v_heads, "k-heads", geometry->k_heads, heads,
                                error) ||
                   choose(&synth->head_bits, "head-bits", options->head_bits, 1, 8, error)
               ? -1
               : 0;
}

static int choose_all(struct synth *synth, const struct synth_options *options, struct error *error)
{
    struct synth_geometry *geometry = &synth->geometry;
    *synth = (struct synth){.seed = options->seed,
                            .bits = DEFAULT_BITS,
                            .head_bits = DEFAULT_HEAD_BITS,
                            .hollow = options->hollow};
    if (find_geometry(geometry, options->geometry, error) < 0 ||
        choose(&geometry->vocab, "vocab", options->vocab, VOCAB_LEAST, VOCAB_MOST, error) < 0 ||
        choose(&synth->bits, "bits", options->bits, 1, 8, error) < 0 ||
        choose_widths(geometry, options, error) < 0)
        return -1;
    return geometry->rank ? choose_draft(synth, options, error)
                          : choose_target(synth, options, error);
}

/* ---- the folder */

static const char weights[] = "model.safetensors";

/* Whether a file may lie in the folder that a model is written to. */
static bool may_stay(const char *name, bool force)
{
    if (strncmp(name, weights, strlen(weights)) == 0 &&
        strcmp(name + strlen(weights), TENSOR_PARTIAL) == 0)
        return true; /* of an interrupted run */
    if (!force)
        return false;
    return strcmp(name, weights) == 0 || !(slice_ends(slice_of(name), SLICE(".safetensors")) ||
                                           slice_ends(slice_of(name), SLICE(".index.json")));
}

static int prepare_folder(const char *folder, bool force, struct error *error)
{
    struct arena *arena = arena_create();
    char **names;
    size_t count = 0;
    int result = file_make_folders(folder, 0755, error);
    if (result == 0)
        result = file_list(arena, folder, &names, &count, error);
    for (size_t i = 0; i < count && result == 0; i++) {
        if (may_stay(names[i], force))
            continue;
        result = force ? error_set(error, ERROR_USAGE,
                                   "%s holds %s, which would become part of the model: choose "
                                   "another folder or remove it",
                                   folder, names[i])
                       : error_set(error, ERROR_USAGE,
                                   "%s is not empty, it holds %s: choose a new folder, or replace "
                                   "the model in it with --force",
                                   folder, names[i]);
    }
    arena_destroy(arena);
    return result;
}

/* ---- tensors */

struct listing {
    const struct synth *synth;
    struct tensor_writer *writer;
    struct arena *arena; /* names and recipes */
    const char *prefix;  /* of the layer that is listed */
};

static void add(struct listing *listing, const char *name, enum dtype dtype, u32 rank,
                const u64 *shape, enum synth_kind kind, double centre, double spread)
{
    struct synth_recipe *recipe = arena_alloc(listing->arena, sizeof *recipe);
    name = arena_format(listing->arena, "%s%s", listing->prefix, name);
    *recipe = (struct synth_recipe){kind, synth_key(listing->synth->seed, name), (float)centre,
                                    (float)spread};
    const bool left_out = listing->synth->hollow && kind != SYNTH_MUL1;
    tensor_writer_add(listing->writer, name, dtype, rank, shape, left_out ? NULL : recipe);
}

static void add_vector(struct listing *listing, const char *name, u64 size, double centre,
                       double spread)
{
    add(listing, name, DTYPE_BF16, 1, &size, SYNTH_FLOATS, centre, spread);
}

/* A norm's weight w; used as 1 + w by targets, as w by drafts. */
static void add_norm(struct listing *listing, const char *name, u64 size, double centre)
{
    add_vector(listing, arena_format(listing->arena, "%s.weight", name), size, centre, 0.1);
}

static void add_scales(struct listing *listing, const char *name, u64 size, double mean)
{
    add(listing, name, DTYPE_F16, 1, &size, SYNTH_SCALES, mean, JITTER * mean);
}

static u64 padded(u64 size)
{
    return (size + WIDTH_BLOCK - 1) / WIDTH_BLOCK * WIDTH_BLOCK;
}

static void add_linear(struct listing *listing, const char *name, u64 in, u64 out, u32 bits,
                       double gain)
{
    struct arena *arena = listing->arena;
    const u64 k = padded(in), n = padded(out);
    add(listing, arena_format(arena, "%s.trellis", name), DTYPE_I16, 3,
        (u64[]){k / 16, n / 16, 16 * bits}, SYNTH_BITS, 0, 0);
    add_scales(listing, arena_format(arena, "%s.suh", name), k, gain / sqrt((double)in));
    add_scales(listing, arena_format(arena, "%s.svh", name), n, 1);
    add(listing, arena_format(arena, "%s.mul1", name), DTYPE_I32, 0, NULL, SYNTH_MUL1, 0, 0);
}

static void add_plain(struct listing *listing, const char *name, u64 in, u64 out, double gain)
{
    add(listing, arena_format(listing->arena, "%s.weight", name), DTYPE_F16, 2, (u64[]){out, in},
        SYNTH_FLOATS, 0, SQRT_3 * gain / sqrt((double)in));
}

struct linear {
    const char *name;
    u64 in, out;
    double gain;
};

static void add_linears(struct listing *listing, const struct linear *linears, size_t count)
{
    for (size_t i = 0; i < count; i++)
        add_linear(listing, linears[i].name, linears[i].in, linears[i].out, listing->synth->bits,
                   linears[i].gain);
}

static double residual_gain(const struct synth_geometry *geometry)
{
    return 0.5 / GATED_RMS / sqrt((double)geometry->layers);
}

static void add_mlp(struct listing *listing)
{
    const struct synth_geometry *geometry = &listing->synth->geometry;
    const u64 hidden = geometry->hidden, wide = geometry->intermediate;
    const struct linear linears[] = {
        {"mlp.gate_proj", hidden, wide, 1},
        {"mlp.up_proj", hidden, wide, 1},
        {"mlp.down_proj", wide, hidden, residual_gain(geometry)},
    };
    add_linears(listing, linears, COUNT_OF(linears));
}

/* gated: q_proj gives queries and their gates (qwen3_5.md 3.2). */
static void add_attention(struct listing *listing, u64 head, bool gated, double norm)
{
    const struct synth_geometry *geometry = &listing->synth->geometry;
    const u64 hidden = geometry->hidden;
    const u64 queries = geometry->q_heads * head, keys = geometry->kv_heads * head;
    const struct linear linears[] = {
        {"self_attn.q_proj", hidden, gated ? 2 * queries : queries, 1},
        {"self_attn.k_proj", hidden, keys, 1},
        {"self_attn.v_proj", hidden, keys, 1},
        {"self_attn.o_proj", queries, hidden, residual_gain(geometry)},
    };
    add_linears(listing, linears, COUNT_OF(linears));
    add_norm(listing, "self_attn.q_norm", head, norm);
    add_norm(listing, "self_attn.k_norm", head, norm);
}

static void add_gdn(struct listing *listing)
{
    const struct synth_geometry *geometry = &listing->synth->geometry;
    const u64 hidden = geometry->hidden, heads = geometry->v_heads, values = heads * GDN_HEAD;
    const u64 channels = 2 * (u64)geometry->k_heads * GDN_HEAD + values;
    const struct linear linears[] = {
        {"linear_attn.in_proj_qkv", hidden, channels, 1},
        {"linear_attn.in_proj_z", hidden, values, 1},
        {"linear_attn.out_proj", values, hidden, residual_gain(geometry)},
    };
    add_linears(listing, linears, COUNT_OF(linears));
    add_plain(listing, "linear_attn.in_proj_a", hidden, heads, 0.7);
    add_plain(listing, "linear_attn.in_proj_b", hidden, heads, 0.7);
    add(listing, "linear_attn.conv1d.weight", DTYPE_BF16, 3, (u64[]){channels, 1, CONV_TAPS},
        SYNTH_FLOATS, 0, 0.5);
    add_vector(listing, "linear_attn.A_log", heads, 0.9, 1.1);
    add_vector(listing, "linear_attn.dt_bias", heads, -4.5, 2.2);
    add_norm(listing, "linear_attn.norm", GDN_HEAD, 0.9);
}

static void list_target(struct listing *listing)
{
    const struct synth_geometry *geometry = &listing->synth->geometry;
    const u64 table[] = {geometry->vocab, geometry->hidden};
    listing->prefix = "";
    add_linear(listing, "lm_head", geometry->hidden, geometry->vocab, listing->synth->head_bits, 1);
    listing->prefix = "model.language_model.";
    add(listing, "embed_tokens.weight", DTYPE_BF16, 2, table, SYNTH_FLOATS, 0, SQRT_3 * 0.5);
    add_norm(listing, "norm", geometry->hidden, 0);
    for (u32 i = 0; i < geometry->layers; i++) {
        listing->prefix = arena_format(listing->arena, "model.language_model.layers.%" PRIu32 ".",
                                       i);
        add_norm(listing, "input_layernorm", geometry->hidden, 0);
        add_norm(listing, "post_attention_layernorm", geometry->hidden, 0);
        if ((i + 1) % SYNTH_INTERVAL == 0)
            add_attention(listing, TARGET_HEAD, true, 0);
        else
            add_gdn(listing);
        add_mlp(listing);
    }
}

/* Base kernels of both taps around 1/2: each row mixes with the one before it. */
static void add_convolution(struct listing *listing, const char *name)
{
    const u64 hidden = listing->synth->geometry.hidden;
    add(listing, arena_format(listing->arena, "%s.base_kernel", name), DTYPE_BF16, 3,
        (u64[]){2, DRAFT_CONV_TAPS, hidden}, SYNTH_FLOATS, 0.5, 0.4);
    add_plain(listing, arena_format(listing->arena, "%s.kernel_projection", name), hidden,
              2 * DRAFT_CONV_TAPS * (hidden / DRAFT_CONV_GROUP), 0.1);
}

/* Codebooks such that a pair's score has rms 1, as a logit has. */
static void add_selector(struct listing *listing)
{
    const struct synth_geometry *geometry = &listing->synth->geometry;
    const u64 table[] = {geometry->vocab, geometry->rank};
    const double spread = SQRT_3 / sqrt(sqrt((double)geometry->rank));
    add_plain(listing, "candidate_selector.hidden_projection", geometry->hidden, geometry->rank, 1);
    add(listing, "candidate_selector.predecessor_codebook", DTYPE_BF16, 2, table, SYNTH_FLOATS, 0,
        spread);
    add(listing, "candidate_selector.successor_codebook", DTYPE_BF16, 2, table, SYNTH_FLOATS, 0,
        spread);
}

static void list_draft(struct listing *listing)
{
    const struct synth_geometry *geometry = &listing->synth->geometry;
    const u64 hidden = geometry->hidden;
    listing->prefix = "";
    add_linear(listing, "fc", geometry->tap_count * hidden, hidden, listing->synth->bits, 1);
    add_norm(listing, "hidden_norm", hidden, 1);
    add_norm(listing, "norm", hidden, 1);
    add_selector(listing);
    for (u32 i = 0; i < geometry->layers; i++) {
        listing->prefix = arena_format(listing->arena, "layers.%" PRIu32 ".", i);
        add_norm(listing, "input_layernorm", hidden, 1);
        add_norm(listing, "post_attention_layernorm", hidden, 1);
        add_attention(listing, DRAFT_HEAD, false, 1);
        add_mlp(listing);
        add_convolution(listing, "attention_conv");
        add_convolution(listing, "mlp_conv");
    }
}

/* ---- the whole */

static void fill(void *user, const struct tensor *tensor, u64 begin, u64 size, u8 *bytes)
{
    (void)user;
    synth_fill(tensor, begin, size, bytes);
}

static int write_weights(const struct synth *synth, const char *folder, u32 threads, u64 *bytes,
                         struct error *error)
{
    struct listing listing = {
        .synth = synth, .writer = tensor_writer_create(), .arena = arena_create()};
    if (synth->geometry.rank)
        list_draft(&listing);
    else
        list_target(&listing);
    const char *path = arena_format(listing.arena, "%s/%s", folder, weights);
    int result = tensor_writer_stream(listing.writer, path, threads, fill, NULL, bytes, error);
    tensor_writer_destroy(listing.writer);
    arena_destroy(listing.arena);
    return result;
}

int model_synth(const struct synth_options *options, const char *folder, u64 *bytes,
                struct error *error)
{
    struct synth synth;
    return choose_all(&synth, options, error) || prepare_folder(folder, options->force, error) ||
                   write_weights(&synth, folder, options->threads, bytes, error) ||
                   synth_write_texts(&synth, folder, error)
               ? -1
               : 0;
}

int model_synth_check(const struct synth_options *options, struct error *error)
{
    struct synth synth;
    return choose_all(&synth, options, error);
}
