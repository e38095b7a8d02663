/* plan.c - how much device memory a model needs, computed from its shapes.
 *
 * Nothing is measured: the same model, context and cache bits give the same plan on
 * any machine, so it can be printed before a GPU is bought. One line for each kind of
 * memory; every formula stands beside its line. Sources: elpis design 4.1 (planes of
 * activations), 4.2 (spans), 9 (what must fit); exl3.md 5 (cache layout).
 *
 * The embedding stays in page-locked host memory (one row a token is read), so it is
 * told apart and not part of the total.
 *
 * A draft model adds its weights, keys and values of what it can still see, the target's
 * hidden states that it reads, and the scratch of a pass (dflash2.md 3.2, 3.3).
 *
 * Not here: allocation (engine/).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/model_private.h"

#define ALIGNMENT 256    /* of every device allocation */
#define PAGE_TOKENS 256  /* a page of the cache */
#define PIECE_LEAST 2048 /* rows of a prefill piece */
#define PIECE_MOST 4096
#define BUDGET_BYTES (23ull << 30) /* of a card of 24 GiB */
#define BLOCK 128                  /* Hadamard block: an exponent and a sum each */
#define LINEARS_AT_ONCE 3          /* q, k, v share an input */
#define DECODE_ROWS 8              /* rows of a decode pass */
#define PREFILL_ROWS 64            /* prefill pads its rows to multiples of it */
#define PARTIAL_FLOATS 258         /* a span's partial result: 256 sums, maximum, weight */
#define SPAN_FLAT 2048             /* positions below it lie in spans of SPAN_TOKENS */
#define SPAN_TOKENS 64
#define SPANS_AN_OCTAVE 16
#define LIBRARY_BYTES (32ull << 20) /* work area of the vendor's matrix product */
#define MARGIN_BYTES (256ull << 20) /* kernels' code, tables, round records, alignment */
#define SAMPLER_PIECE 1024          /* ids */
#define SAMPLER_WORDS 4096          /* u64 of a row: two histograms, candidates */

/* Of a draft model */
#define DRAFT_TILE 64     /* keys that give one partial result */
#define DRAFT_PARTIAL 130 /* floats of it: 128 sums, maximum, weight */
#define CANDIDATES 16     /* kept of each block of scores: a score and an id */

static u64 aligned(u64 bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static u64 round_up(u64 value, u64 step)
{
    return (value + step - 1) / step * step;
}

static u64 larger(u64 a, u64 b)
{
    return a > b ? a : b;
}

/* ---- weights */

static u64 weight_bytes(const struct model *model)
{
    u64 bytes = model_vector_bytes(&model->final_norm, ALIGNMENT) +
                model_linear_bytes(&model->head, ALIGNMENT);
    for (u32 i = 0; i < model->config.layers; i++)
        bytes += model_layer_bytes(&model->layers[i], ALIGNMENT);
    return bytes;
}

/* ---- state */

u32 memory_plan_spans(u32 context)
{
    if (context <= SPAN_FLAT)
        return (context + SPAN_TOKENS - 1) / SPAN_TOKENS;
    u32 spans = SPAN_FLAT / SPAN_TOKENS;
    u64 start = SPAN_FLAT;
    for (; start * 2 <= context; start *= 2)
        spans += SPANS_AN_OCTAVE;
    u64 size = start / SPANS_AN_OCTAVE;
    return spans + (u32)((context - start + size - 1) / size);
}

static u64 partial_bytes(const struct model *model, u32 context)
{
    return (u64)memory_plan_spans(context) * DECODE_ROWS * model->config.q_heads * PARTIAL_FLOATS *
           sizeof(float);
}

/* ---- workspaces */

/* Widths of a layer's activations, in elements. */
struct widths {
    u64 hidden, wide;              /* residual stream, MLP */
    u64 queries, keys;             /* attention: q_heads x head_dim, kv_heads x head_dim */
    u64 values, gdn_keys, v_heads; /* recurrence: v heads x 128, k heads x 128 */
    u64 widest_in, widest_out;     /* of the linears of a layer, padded */
};

static struct widths widths_of(const struct model_config *config)
{
    struct widths w = {.hidden = config->hidden,
                       .wide = config->intermediate,
                       .queries = (u64)config->q_heads * config->head_dim,
                       .keys = (u64)config->kv_heads * config->head_dim,
                       .values = (u64)config->gdn_v_heads * config->gdn_v_dim,
                       .gdn_keys = (u64)config->gdn_k_heads * config->gdn_k_dim,
                       .v_heads = config->gdn_v_heads};
    w.widest_in = larger(larger(w.hidden, w.wide), larger(w.values, w.queries));
    w.widest_out = larger(larger(w.hidden, w.wide),
                          larger(model_conv_channels(config), 2 * w.queries));
    return w;
}

/* What a row leaves for its round's commit, fp32: qkv before and after the convolution, a, b. */
static u64 static_floats(const struct widths *w)
{
    return 2 * (2 * w->gdn_keys + w->values) + 2 * w->v_heads;
}

/* What the mixers of one row hold besides, fp32: z and output of the recurrence; q with its gate,
 * k, v, output and the sums of squares of a norm. */
static u64 mixer_floats(const struct widths *w)
{
    u64 recurrence = 2 * w->values, attention = 3 * w->queries + 2 * w->keys;
    return recurrence + attention + w->hidden / BLOCK;
}

static u64 expanded(const struct model_linear *linear)
{
    return linear->kind == LINEAR_EXL3 ? 2 * (u64)linear->in_padded * linear->out_padded : 0;
}

/* Two linears' weights in fp16: prefill expands one while it multiplies by the other. */
static u64 expanded_bytes(const struct model *model)
{
    u64 most = 0;
    for (u32 i = 0; i < model->config.layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const struct model_linear *linears[] = {
            &layer->gate, &layer->up, &layer->down,   &layer->q,    &layer->k,
            &layer->v,    &layer->o,  &layer->in_qkv, &layer->in_z, &layer->out};
        for (size_t j = 0; j < COUNT_OF(linears); j++)
            most = larger(most, expanded(linears[j]));
    }
    return 2 * most;
}

static u64 head_width(const struct model *model)
{
    return larger(model->config.vocab, model->head.out_padded);
}

/* 8 rows of a layer's activations, fp32; byte planes, exponents and sums of up to three linears
 * with one input; int64 sums of their outputs, of which the head's are the widest. */
static u64 decode_bytes(const struct model *model)
{
    struct widths w = widths_of(&model->config);
    u64 floats = w.hidden + mixer_floats(&w) + 2 * w.wide + w.queries;
    u64 planes = LINEARS_AT_ONCE * w.widest_in * (2 + 2 * sizeof(u32) / BLOCK);
    u64 sums = larger(head_width(model), LINEARS_AT_ONCE * w.widest_out) * sizeof(i64);
    return DECODE_ROWS * (sizeof(float) * floats + planes + sums);
}

/* Every recurrent layer keeps its own 8 rows until the round is decided: which of them count is
 * only known after the last layer. */
static u64 static_bytes(const struct model *model)
{
    struct widths w = widths_of(&model->config);
    return DECODE_ROWS * sizeof(float) * static_floats(&w) *
           (model->config.layers - model_attention_layers(model));
}

/* Logits, the sampler's keys beside them, what it leaves between its launches (two words a piece,
 * histograms, candidates: schedules/lib_sample.lua), and its list of penalised tokens. */
static u64 logit_bytes(const struct model *model)
{
    const u64 pieces = head_width(model) / SAMPLER_PIECE + 1;
    return 2 * DECODE_ROWS * head_width(model) * sizeof(float) +
           DECODE_ROWS * (2 * pieces + SAMPLER_WORDS) * sizeof(u64) + 8ull * model->config.vocab;
}

/* ---- the draft model */

/* Read by id, in the dtype of the file. */
static u64 codebook_bytes(const struct model_vector *codebook)
{
    return aligned(codebook->count * dtype_size(codebook->dtype));
}

/* The target's head cut down to the kept blocks: a copy, and the id of each column. */
static u64 reduced_head_bytes(const struct model *model, const struct draft_model *draft)
{
    if (!draft->head_blocks)
        return 0;
    struct model_linear head = model->head;
    head.out = head.out_padded = draft->head_block_count * BLOCK;
    return model_linear_bytes(&head, ALIGNMENT) + aligned((u64)head.out * sizeof(u32));
}

static u64 draft_weight_bytes(const struct model *model, const struct draft_model *draft)
{
    u64 bytes = model_linear_bytes(&draft->fc, ALIGNMENT) +
                model_linear_bytes(&draft->selector, ALIGNMENT) +
                model_vector_bytes(&draft->hidden_norm, ALIGNMENT) +
                model_vector_bytes(&draft->final_norm, ALIGNMENT) +
                codebook_bytes(&draft->predecessors) + codebook_bytes(&draft->successors);
    for (u32 i = 0; i < draft->config.layers; i++)
        bytes += draft_layer_bytes(&draft->layers[i], ALIGNMENT);
    return bytes + reduced_head_bytes(model, draft);
}

/* Context tokens that a layer sees. */
static u64 draft_window(const struct draft_config *config, u32 layer, u64 tokens)
{
    return config->windows[layer] ? config->windows[layer] : tokens;
}

static u64 draft_widest_window(const struct draft_config *config, u64 tokens)
{
    u64 most = 0;
    for (u32 i = 0; i < config->layers; i++)
        most = larger(most, draft_window(config, i, tokens));
    return most;
}

/* K and V in fp16, a ring: the window and the rows of a block. */
static u64 draft_ring_bytes(const struct draft_config *config, u64 tokens)
{
    u64 row = 2ull * config->kv_heads * config->head_dim * sizeof(u16), bytes = 0;
    for (u32 i = 0; i < config->layers; i++)
        bytes += row * (draft_window(config, i, tokens) + DECODE_ROWS);
    return bytes;
}

/* fp32 [rows, taps * hidden]: of a prompt's piece only what the widest window can still see. */
static u64 draft_tap_bytes(const struct draft_config *config, u64 rows, u64 tokens)
{
    u64 window = larger(draft_widest_window(config, tokens), DECODE_ROWS);
    return (rows < window ? rows : window) * config->tap_count * config->hidden * sizeof(float);
}

/* An estimate for 8 rows. Activations fp32: stream, norm and context of the block, q, k, v and
 * output, gate and up, the coefficients of a convolution, the selector's gate. Planes and sums as
 * of the target. Scores and the best of each block of them. Partial results of attention. */
static u64 draft_work_bytes(const struct model *model, const struct draft_config *config,
                            u64 tokens)
{
    u64 hidden = config->hidden, wide = config->intermediate;
    u64 queries = (u64)config->q_heads * config->head_dim;
    u64 keys = (u64)config->kv_heads * config->head_dim;
    u64 kernels = config->conv_group ? 2 * config->conv_taps * (hidden / config->conv_group) : 0;
    u64 floats = 3 * hidden + 2 * queries + 2 * keys + 2 * wide + kernels + config->selector_rank;
    u64 widest_out = larger(larger(hidden, wide), larger(queries, kernels));
    u64 widest_in = larger(larger(config->tap_count * hidden, wide), queries);
    u64 planes = LINEARS_AT_ONCE * widest_in * (2 + 2 * sizeof(u32) / BLOCK);
    u64 sums = LINEARS_AT_ONCE * widest_out * sizeof(i64);
    u64 best = head_width(model) / BLOCK * CANDIDATES * (sizeof(float) + sizeof(u32));
    u64 scores = head_width(model) * sizeof(float) + best;
    u64 keys_seen = draft_widest_window(config, tokens) + DECODE_ROWS + DRAFT_TILE;
    u64 partials = keys_seen / DRAFT_TILE * config->q_heads * DRAFT_PARTIAL * sizeof(float);
    return DECODE_ROWS * (sizeof(float) * floats + planes + sums + scores + partials);
}

/* ---- the plan */

static void add_line(struct memory_plan *plan, u64 bytes, const char *format, ...)
    PRINTF_LIKE(3, 4);

static void add_line(struct memory_plan *plan, u64 bytes, const char *format, ...)
{
    struct memory_plan_line *line = &plan->lines[plan->count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line->what, sizeof line->what, format, arguments);
    va_end(arguments);
    line->bytes = aligned(bytes);
    plan->total += line->bytes;
}

static void add_draft(struct memory_plan *plan, const struct model *model,
                      const struct draft_model *draft, u64 tokens, u64 rows)
{
    const struct draft_config *config = &draft->config;
    add_line(plan, draft_weight_bytes(model, draft), "draft weights%s",
             draft->head_blocks ? " and reduced head" : "");
    add_line(plan, draft_ring_bytes(config, tokens), "draft keys and values");
    add_line(plan, draft_tap_bytes(config, rows, tokens), "draft taps of %u layers",
             config->tap_count);
    add_line(plan, draft_work_bytes(model, config, tokens), "draft workspace");
}

void model_memory_plan(const struct model *model, const struct draft_model *draft, u32 context,
                       u32 kv_bits, u32 piece_rows, struct memory_plan *plan)
{
    u64 tokens = round_up(context, PAGE_TOKENS);
    u64 rows = round_up(piece_rows < tokens ? piece_rows : tokens, PREFILL_ROWS);
    struct prefill_workspace workspace;
    model_prefill_workspace(model, rows, &workspace);
    u32 recurrent = model->config.layers - model_attention_layers(model);
    *plan = (struct memory_plan){.context = context, .kv_bits = kv_bits};
    add_line(plan, weight_bytes(model), "weights");
    const u64 token_bytes = model_token_bytes(model, kv_bits);
    add_line(plan, tokens * token_bytes, "KV cache, %" PRIu64 " B a token", token_bytes);
    add_line(plan, model_state_bytes(model), "recurrent state of %u layers", recurrent);
    add_line(plan, static_bytes(model), "round statics of %u layers", recurrent);
    /* codes of the rows that a commit moves, which may lie in each other's places */
    add_line(plan, DECODE_ROWS * token_bytes, "round stash of the KV cache");
    add_line(plan, partial_bytes(model, context), "attention partials of %u spans",
             memory_plan_spans(context));
    add_line(plan, workspace.total, "prefill workspace of %" PRIu64 " rows", rows);
    add_line(plan, expanded_bytes(model), "two linears expanded to fp16");
    add_line(plan, decode_bytes(model), "decode workspace");
    add_line(plan, logit_bytes(model), "logits and sampler of %d rows", DECODE_ROWS);
    if (draft)
        add_draft(plan, model, draft, tokens, rows);
    /* what a snapshot copies, on its way to the host; a draft's rings are part of it */
    add_line(plan,
             model_state_bytes(model) + (draft ? draft_ring_bytes(&draft->config, tokens) : 0),
             "staging of a snapshot");
    add_line(plan, LIBRARY_BYTES + MARGIN_BYTES, "libraries, code and margin");
    plan->host = model->embedding.count * dtype_size(model->embedding.dtype);
}

/* Every line grows with the context, so the answer is found by halving. */
u32 memory_plan_longest(const struct model *model, const struct draft_model *draft, u32 kv_bits,
                        u32 piece_rows, u64 available)
{
    u32 none = model->config.max_positions / PAGE_TOKENS + 1, fits = 0; /* in pages */
    struct memory_plan plan;
    while (none - fits > 1) {
        u32 middle = fits + (none - fits) / 2;
        model_memory_plan(model, draft, middle * PAGE_TOKENS, kv_bits, piece_rows, &plan);
        if (plan.total <= available)
            fits = middle;
        else
            none = middle;
    }
    return fits * PAGE_TOKENS;
}

u32 memory_plan_piece(const struct model *model, const struct draft_model *draft, u32 context,
                      u32 kv_bits)
{
    struct memory_plan plan;
    const u32 planned = context ? context : model->config.max_positions;
    u32 piece = PIECE_MOST;
    for (; piece > PIECE_LEAST; piece -= PAGE_TOKENS) {
        model_memory_plan(model, draft, planned, kv_bits, piece, &plan);
        if (plan.total <= BUDGET_BYTES)
            break;
    }
    return piece;
}

/* ---- text */

static double gibibytes(u64 bytes)
{
    return (double)bytes / (double)(1ull << 30);
}

int memory_plan_check(const struct memory_plan *plan, const char *device, struct error *error)
{
    if (plan->available == 0 || plan->total <= plan->available)
        return 0;
    return error_set(error, ERROR_MEMORY,
                     "%s has %.2f GiB free, but a context of %u tokens with a %u-bit cache needs "
                     "%.2f GiB (%.2f GiB of it weights): ask for a shorter --context, fewer "
                     "--kv-bits or a smaller --piece",
                     device, gibibytes(plan->available), plan->context, plan->kv_bits,
                     gibibytes(plan->total), gibibytes(plan->lines[0].bytes));
}

static void print_line(struct buffer *text, const char *what, u64 bytes)
{
    if (bytes >= 10ull << 20)
        buffer_format(text, "  %-36s %9.3f GiB\n", what, gibibytes(bytes));
    else
        buffer_format(text, "  %-36s %9.3f MiB\n", what, gibibytes(bytes) * 1024);
}

void memory_plan_print(const struct memory_plan *plan, struct buffer *text)
{
    buffer_format(text, "memory plan for a context of %u tokens, %u-bit cache\n", plan->context,
                  plan->kv_bits);
    for (u32 i = 0; i < plan->count; i++)
        print_line(text, plan->lines[i].what, plan->lines[i].bytes);
    print_line(text, "total on the device", plan->total);
    if (plan->available)
        print_line(text, "free there", plan->available);
    print_line(text, "page-locked host memory (embedding)", plan->host);
}
