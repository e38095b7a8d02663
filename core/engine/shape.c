/* shape.c - the model whose passes launch a kernel of a given shape (shape.h).
 *
 * A place is one at which models launch a kernel, with what each of its parameters is there:
 *
 *     {"linear_main", ROUND, {IS("k", HIDDEN), IS("n0", INTERMEDIATE), IS("n1", INTERMEDIATE)}}
 *
 * Parameters are multiples of a model's numbers, or a sum of two, the second of which stands
 * earlier in the place. Solving goes through them in order: a parameter that is given settles its
 * number, or has to agree with it. The first place without a contradiction is taken whose model can
 * be made, so those that ask for the least stand first. plan.c, linear.c, draft.c and prefill.c are
 * what this is the reverse of; whoever opens the engine sees by its launches whether it is.
 *
 * Without a place, and so to be tuned with a model: what no pass launches (compare, prelude_check,
 * trellis_pack), what unquantised linears need (residual), and kv_commit, which is not tuned.
 */
#include "engine/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A model's numbers, and the options that become parameters. */
enum number {
    CONSTANT,
    HIDDEN,
    INTERMEDIATE,
    Q_HEADS,
    KV_HEADS,
    K_HEADS,
    V_HEADS,
    GDN_LAYERS,
    VOCAB,
    WEIGHT_BITS,
    HEAD_BITS,
    WINDOW,
    RANK,
    CONTEXT,
    KV_BITS,
    PIECE,
    VALID_VOCAB,
    NUMBERS
};

static const char *const number_names[NUMBERS] = {
    "",        "hidden",      "intermediate", "q-heads", "kv-heads",           "k-heads",
    "v-heads", "GDN layers",  "vocab",        "bits",    "head-bits",          "window",
    "rank",    "the context", "kv-bits",      "piece",   "the tokenizer's ids"};

/* Of `tiny` and its draft; 0: the engine's own default, which is not known here. */
static const u64 usual[NUMBERS] = {
    [HIDDEN] = 256,  [INTERMEDIATE] = 768, [Q_HEADS] = 6,  [KV_HEADS] = 1, [K_HEADS] = 2,
    [V_HEADS] = 6,   [GDN_LAYERS] = 1,     [VOCAB] = 4096, [KV_BITS] = 3,  [WEIGHT_BITS] = 4,
    [HEAD_BITS] = 6, [WINDOW] = 128,       [RANK] = 64};
static const u64 usual_of_draft[NUMBERS] = {[INTERMEDIATE] = 512, [Q_HEADS] = 4};

enum {
    ROUND = 0,
    PROMPT = 1,    /* launched for prompts alone */
    ATTENTION = 2, /* by layers of attention: the fourth is one */
    DRAFT = 4,     /* by a draft, whose the heads, window, rank and intermediate width are */
    LAYERS_WITH_ATTENTION = 4,
    FORMS_MOST = 9,
};

struct form {
    const char *parameter; /* "": none, the number has to be that */
    u32 times;             /* constants: the value */
    enum number number;
    u32 and_times;
    enum number and_number;
    const char *text; /* the value, where it is one */
};
#define IS(parameter, number)             \
    {                                     \
        (parameter), 1, (number), 0, 0, 0 \
    }
#define TIMES(parameter, times, number)         \
    {                                           \
        (parameter), (times), (number), 0, 0, 0 \
    }
#define SUM(parameter, times, number, and_times, and_number)         \
    {                                                                \
        (parameter), (times), (number), (and_times), (and_number), 0 \
    }
#define ONLY(parameter, value)                  \
    {                                           \
        (parameter), (value), CONSTANT, 0, 0, 0 \
    }
#define TEXT(parameter, text)                  \
    {                                          \
        (parameter), 0, CONSTANT, 0, 0, (text) \
    }
#define WITH(number, value)            \
    {                                  \
        "", (value), (number), 0, 0, 0 \
    }

struct place {
    const char *schedule;
    u32 kind;
    struct form forms[FORMS_MOST + 1];
};

#define MUL1 TEXT("codebook", "mul1")
#define BITS_OF(number) IS("bits", number), MUL1
#define ONE_PART ONLY("n1", 0), ONLY("n2", 0), ONLY("n3", 0)
#define ROWS ONLY("rows_max", 8)
#define PIECES IS("rows_max", PIECE)

static const struct place places[] = {
    {"linear_main",
     ROUND,
     {IS("k", INTERMEDIATE), IS("n0", HIDDEN), ONE_PART, BITS_OF(WEIGHT_BITS)}},
    {"linear_main",
     ROUND,
     {IS("k", HIDDEN), IS("n0", INTERMEDIATE), IS("n1", INTERMEDIATE), ONLY("n2", 0), ONLY("n3", 0),
      BITS_OF(WEIGHT_BITS)}},
    {"linear_main",
     ROUND,
     {IS("k", HIDDEN), TIMES("n1", 128, V_HEADS), SUM("n0", 256, K_HEADS, 128, V_HEADS),
      ONLY("n2", 0), ONLY("n3", 0), BITS_OF(WEIGHT_BITS)}},
    {"linear_main",
     ATTENTION,
     {IS("k", HIDDEN), TIMES("n0", 512, Q_HEADS), TIMES("n1", 256, KV_HEADS),
      TIMES("n2", 256, KV_HEADS), ONLY("n3", 0), BITS_OF(WEIGHT_BITS)}},
    {"linear_main", ROUND, {IS("k", HIDDEN), IS("n0", VOCAB), ONE_PART, BITS_OF(HEAD_BITS)}},
    {"linear_input",
     ROUND,
     {IS("k", HIDDEN), IS("k_valid", HIDDEN), ONLY("parts", 2), TEXT("mode", "norm")}},
    {"linear_input",
     ROUND,
     {IS("k", HIDDEN), IS("k_valid", HIDDEN), ONLY("parts", 1), TEXT("mode", "norm")}},
    {"linear_input",
     ATTENTION,
     {IS("k", HIDDEN), IS("k_valid", HIDDEN), ONLY("parts", 3), TEXT("mode", "norm")}},
    {"linear_input",
     DRAFT,
     {IS("k", HIDDEN), IS("k_valid", HIDDEN), ONLY("parts", 1), TEXT("mode", "plain")}},
    {"linear_input",
     DRAFT,
     {IS("k", HIDDEN), IS("k_valid", HIDDEN), ONLY("parts", 2), TEXT("mode", "plain")}},
    {"linear_middle", ROUND, {IS("n", INTERMEDIATE), MUL1}},
    {"linear_output", ROUND, {IS("n0", HIDDEN), ONE_PART, MUL1, TEXT("mode", "residual")}},
    {"linear_output", ROUND, {IS("n0", VOCAB), ONE_PART, MUL1, TEXT("mode", "store")}},
    {"linear_plain",
     DRAFT,
     {IS("k", HIDDEN), IS("n0", RANK), ONLY("n1", 0), TEXT("dtype", "F16"), TEXT("mode", "plain")}},
    {"activate", DRAFT, {IS("k", HIDDEN), ROWS, TEXT("mode", "norm")}},
    {"activate", DRAFT, {IS("k", HIDDEN), ROWS, TEXT("mode", "plain")}},
    {"embed", ROUND, {IS("hidden", HIDDEN), ROWS, TEXT("dtype", "BF16")}},
    {"embed", PROMPT, {IS("hidden", HIDDEN), PIECES, TEXT("dtype", "BF16")}},
    {"attention_prepare",
     ATTENTION,
     {IS("q_heads", Q_HEADS), IS("kv_heads", KV_HEADS), IS("kv_bits", KV_BITS),
      ONLY("rotary_dims", 64), MUL1}},
    {"attention_decode",
     ATTENTION,
     {IS("q_heads", Q_HEADS), IS("kv_heads", KV_HEADS), IS("context", CONTEXT),
      IS("bits", KV_BITS)}},
    {"attention_decode_f16",
     ATTENTION,
     {IS("q_heads", Q_HEADS), IS("kv_heads", KV_HEADS), IS("context", CONTEXT), WITH(KV_BITS, 16)}},
    {"attention_combine",
     ATTENTION,
     {IS("q_heads", Q_HEADS), IS("kv_heads", KV_HEADS), IS("context", CONTEXT), BITS_OF(KV_BITS)}},
    {"gdn_input",
     ROUND,
     {IS("k", HIDDEN), IS("v_heads", V_HEADS), ONLY("parts", 2), TEXT("dtype", "F16")}},
    {"gdn_conv", ROUND, {IS("k_heads", K_HEADS), IS("v_heads", V_HEADS), MUL1}},
    {"gdn_step", ROUND, {IS("k_heads", K_HEADS), IS("v_heads", V_HEADS), IS("layers", GDN_LAYERS)}},
    {"gdn_output", ROUND, {IS("k_heads", K_HEADS), IS("v_heads", V_HEADS), MUL1}},
    {"gdn_window",
     ROUND,
     {WITH(K_HEADS, 1), SUM("channels", 128, V_HEADS, 256, K_HEADS), IS("layers", GDN_LAYERS)}},
    {"sample", ROUND, {IS("vocab", VOCAB), IS("valid_vocab", VALID_VOCAB), ROWS}},
    {"sample_keys", ROUND, {IS("vocab", VOCAB), IS("valid_vocab", VALID_VOCAB), ROWS}},
    {"sample_weigh", ROUND, {IS("vocab", VOCAB), IS("valid_vocab", VALID_VOCAB), ROWS}},
    {"sample_gather", ROUND, {IS("vocab", VOCAB), IS("valid_vocab", VALID_VOCAB), ROWS}},
    {"draft_attention",
     DRAFT,
     {IS("q_heads", Q_HEADS), IS("kv_heads", KV_HEADS), IS("capacity", WINDOW),
      IS("window", WINDOW), ONLY("causal", 0)}},
    {"draft_combine",
     DRAFT,
     {IS("q_heads", Q_HEADS), IS("capacity", WINDOW), IS("window", WINDOW)}},
    {"draft_conv", DRAFT, {IS("hidden", HIDDEN), ONLY("group", 16), TEXT("mode", "prepare")}},
    {"draft_conv", DRAFT, {IS("hidden", HIDDEN), ONLY("group", 16), TEXT("mode", "finish")}},
    {"draft_gather", DRAFT, {TIMES("width", 3, HIDDEN)}},
    {"draft_lattice", DRAFT, {IS("rank", RANK), TEXT("dtype", "BF16")}},
    {"draft_prepare",
     DRAFT,
     {IS("q_heads", Q_HEADS), IS("kv_heads", KV_HEADS), IS("capacity", WINDOW),
      TEXT("mode", "block")}},
    {"draft_prepare",
     DRAFT,
     {IS("q_heads", Q_HEADS), IS("kv_heads", KV_HEADS), IS("capacity", WINDOW),
      TEXT("mode", "context")}},
    {"draft_select", DRAFT, {IS("vocab", VALID_VOCAB), ONLY("top_k", 16)}},
    {"draft_tap", DRAFT, {IS("width", HIDDEN), TIMES("stride", 3, HIDDEN), ROWS}},
    {"draft_tap", DRAFT | PROMPT, {IS("width", HIDDEN), TIMES("stride", 3, HIDDEN), PIECES}},
    {"draft_top", DRAFT, {IS("stride", VOCAB), IS("vocab", VALID_VOCAB)}},
    {"draft_tree", DRAFT, {{0}}},
    {"prefill_attention",
     ATTENTION | PROMPT,
     {IS("q_heads", Q_HEADS), IS("kv_heads", KV_HEADS), ONLY("head_dim", 256),
      IS("kv_bits", KV_BITS), PIECES}},
    {"prefill_attention_prepare",
     ATTENTION | PROMPT,
     {IS("q_heads", Q_HEADS), IS("kv_heads", KV_HEADS), ONLY("head_dim", 256),
      ONLY("rotary_dims", 64), IS("kv_bits", KV_BITS), PIECES}},
    {"prefill_conv", PROMPT, {IS("k_heads", K_HEADS), IS("v_heads", V_HEADS), PIECES}},
    {"prefill_gates", PROMPT, {WITH(K_HEADS, 1), IS("v_heads", V_HEADS), PIECES}},
    {"prefill_gdn_chunk", PROMPT, {IS("k_heads", K_HEADS), IS("v_heads", V_HEADS), PIECES}},
    {"prefill_gdn_scan", PROMPT, {IS("k_heads", K_HEADS), IS("v_heads", V_HEADS), PIECES}},
    {"prefill_gemm", PROMPT, {IS("k", INTERMEDIATE), IS("n", HIDDEN), PIECES}},
    {"prefill_middle", PROMPT, {IS("n", INTERMEDIATE), PIECES}},
    {"prefill_output",
     PROMPT,
     {IS("width", HIDDEN), IS("padded", HIDDEN), PIECES, TEXT("mode", "add")}},
    {"prefill_output",
     PROMPT,
     {WITH(K_HEADS, 1), TIMES("width", 128, V_HEADS), TIMES("padded", 128, V_HEADS), PIECES,
      TEXT("mode", "plain")}},
    {"prefill_plain",
     PROMPT,
     {WITH(K_HEADS, 1), IS("k", HIDDEN), IS("n", V_HEADS), PIECES, TEXT("dtype", "F16")}},
    {"prefill_transform",
     PROMPT,
     {IS("width", HIDDEN), IS("padded", HIDDEN), PIECES, TEXT("mode", "norm"), ONLY("parts", 2)}},
    {"prefill_transform",
     ATTENTION | PROMPT,
     {IS("width", HIDDEN), IS("padded", HIDDEN), PIECES, TEXT("mode", "norm"), ONLY("parts", 3)}},
    {"prefill_transform",
     PROMPT,
     {WITH(K_HEADS, 1), TIMES("width", 128, V_HEADS), TIMES("padded", 128, V_HEADS), PIECES,
      TEXT("mode", "gdn"), ONLY("parts", 1)}},
    {"prefill_transform",
     ATTENTION | PROMPT,
     {WITH(KV_HEADS, 1), TIMES("width", 256, Q_HEADS), TIMES("padded", 256, Q_HEADS), PIECES,
      TEXT("mode", "plain"), ONLY("parts", 1)}},
    {"prefill_weights", PROMPT, {IS("k", INTERMEDIATE), IS("n", HIDDEN), BITS_OF(WEIGHT_BITS)}},
    {"prefill_window",
     PROMPT,
     {WITH(K_HEADS, 1), SUM("channels", 128, V_HEADS, 256, K_HEADS), PIECES}},
};

/* ---- what can be named */

bool shape_is_known(const char *schedule)
{
    for (size_t i = 0; i < COUNT_OF(places); i++)
        if (strcmp(places[i].schedule, schedule) == 0)
            return true;
    return false;
}

const char *shape_schedule(size_t index)
{
    for (size_t i = 0; i < COUNT_OF(places); i++)
        if ((i == 0 || strcmp(places[i].schedule, places[i - 1].schedule) != 0) && index-- == 0)
            return places[i].schedule;
    return NULL;
}

static void describe_product(u32 times, enum number number, struct buffer *text)
{
    if (times != 1)
        buffer_format(text, "%" PRIu32 " * ", times);
    buffer_add_text(text, number_names[number]);
}

static void describe_form(const struct form *form, struct buffer *text)
{
    buffer_format(text, " %s = ", form->parameter);
    if (form->text)
        buffer_add_text(text, form->text);
    else if (form->number == CONSTANT)
        buffer_format(text, "%" PRIu32, form->times);
    else
        describe_product(form->times, form->number, text);
    if (form->and_times) {
        buffer_add_text(text, " + ");
        describe_product(form->and_times, form->and_number, text);
    }
    buffer_add_text(text, ",");
}

void shape_describe(const char *schedule, struct buffer *text)
{
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        if (strcmp(places[i].schedule, schedule) != 0)
            continue;
        buffer_add_text(text, "\n   ");
        for (const struct form *form = places[i].forms; form->parameter; form++)
            if (form->parameter[0])
                describe_form(form, text);
        text->data[--text->size] = 0; /* the last comma */
    }
}

/* ---- solving */

struct solution {
    u64 values[NUMBERS];
    bool settled[NUMBERS];
};

static const struct jit_parameter *find_parameter(const struct shape *shape, const char *name)
{
    for (const struct jit_parameter *given = shape->parameters; given->name; given++)
        if (strcmp(given->name, name) == 0)
            return given;
    return NULL;
}

static u64 value_of(const struct solution *solution, const struct form *form)
{
    if (form->number == CONSTANT)
        return form->times;
    return form->times * solution->values[form->number] +
           form->and_times * solution->values[form->and_number];
}

/* The number of the form becomes what the value asks for. */
static bool settle(struct solution *solution, enum number number, u64 value)
{
    if (solution->settled[number])
        return solution->values[number] == value;
    solution->settled[number] = true;
    solution->values[number] = value;
    return value > 0 && value <= UINT32_MAX;
}

static bool solve_form(struct solution *solution, const struct form *form,
                       const struct shape *shape)
{
    if (!form->parameter[0])
        return settle(solution, form->number, form->times);
    const struct jit_parameter *given = find_parameter(shape, form->parameter);
    if (!given)
        return true;
    if (form->text || given->text)
        return form->text && given->text && strcmp(form->text, given->text) == 0;
    if (given->number < 0)
        return false;
    const u64 wanted = (u64)given->number;
    if (form->number == CONSTANT)
        return wanted == form->times;
    const u64 known = form->and_times * solution->values[form->and_number];
    return wanted > known && (wanted - known) % form->times == 0 &&
           settle(solution, form->number, (wanted - known) / form->times);
}

static void begin_solution(struct solution *solution, u32 kind,
                           const struct engine_options *options)
{
    const u32 given[NUMBERS] = {[CONTEXT] = options->context,
                                [KV_BITS] = options->kv_bits,
                                [PIECE] = options->piece,
                                [VALID_VOCAB] = options->valid_vocab};
    *solution = (struct solution){0};
    for (u32 i = 0; i < NUMBERS; i++) {
        solution->settled[i] = given[i] != 0;
        solution->values[i] = given[i]                            ? given[i]
                              : kind & DRAFT && usual_of_draft[i] ? usual_of_draft[i]
                                                                  : usual[i];
    }
}

static bool solve(struct solution *solution, const struct place *place, const struct shape *shape,
                  const struct engine_options *options)
{
    begin_solution(solution, place->kind, options);
    for (const struct form *form = place->forms; form->parameter; form++)
        if (!solve_form(solution, form, shape))
            return false;
    if (!solution->values[VALID_VOCAB])
        solution->values[VALID_VOCAB] = solution->values[VOCAB];
    return true;
}

/* ---- what follows from it */

/* Adds the place's parameters that are not given, but for those that only the engine knows. */
static int complete(struct shape *shape, const struct place *place, const struct solution *solution,
                    struct error *error)
{
    size_t count = 0;
    while (shape->parameters[count].name)
        count++;
    for (const struct form *form = place->forms; form->parameter; form++) {
        const u64 value = value_of(solution, form);
        const bool is_open = !form->text && form->number != CONSTANT && value == 0;
        if (!form->parameter[0] || is_open || find_parameter(shape, form->parameter))
            continue;
        if (count == SHAPE_MOST)
            return error_set(error, ERROR_USAGE, "%s: at most %d parameters", shape->schedule,
                             SHAPE_MOST);
        shape->parameters[count++] = (struct jit_parameter){form->parameter, (i64)value,
                                                            form->text};
    }
    return 0;
}

/* Of which so many are Gated DeltaNet: three of four are. */
static u32 layers_of(u64 gdn_layers)
{
    const u64 layers = gdn_layers + (gdn_layers - 1) / 3;
    return layers < UINT32_MAX ? (u32)layers : UINT32_MAX;
}

static void describe_models(const struct place *place, const struct solution *solution,
                            struct shape_model *model)
{
    const u64 *v = solution->values;
    const bool drafts = place->kind & DRAFT;
    const u32 layers = place->kind & (ATTENTION | DRAFT) ? LAYERS_WITH_ATTENTION
                                                         : layers_of(v[GDN_LAYERS]);
    const struct synth_options heads = {.hidden = (u32)v[HIDDEN],
                                        .intermediate = (u32)v[INTERMEDIATE],
                                        .q_heads = (u32)v[Q_HEADS],
                                        .kv_heads = (u32)v[KV_HEADS],
                                        .vocab = (u32)v[VOCAB],
                                        .bits = (u32)v[WEIGHT_BITS]};
    *model = (struct shape_model){.has_draft = drafts};
    model->model = drafts ? (struct synth_options){.hidden = heads.hidden, .vocab = heads.vocab}
                          : heads;
    model->model.geometry = "tiny";
    model->model.layers = layers;
    model->model.head_bits = (u32)v[HEAD_BITS];
    model->model.k_heads = (u32)v[K_HEADS];
    model->model.v_heads = (u32)v[V_HEADS];
    if (!drafts)
        return;
    model->draft = heads;
    model->draft.geometry = "tiny-dflash2";
    model->draft.target_layers = layers;
    model->draft.window = (u32)v[WINDOW];
    model->draft.rank = (u32)v[RANK];
}

/* model_error: of the first model that would launch it and cannot be. */
static int refuse(const struct shape *shape, const struct error *model_error, struct error *error)
{
    struct buffer text = {0};
    if (!shape_is_known(shape->schedule))
        return error_set(error, ERROR_USAGE,
                         "no model is made for %s: passes of quantised models do not launch it, or "
                         "it is not tuned. Give a MODEL that launches it",
                         shape->schedule);
    if (model_error->code)
        return error_set(error, model_error->code, "no model launches %s with this shape: %s",
                         shape->schedule, model_error->text);
    shape_describe(shape->schedule, &text);
    error_set(error, ERROR_USAGE,
              "no model can be made that launches %s with this shape and these options. Parameters "
              "are, by what they are of a model (`elpis synth`):%s",
              shape->schedule, text.data);
    buffer_free(&text);
    return -1;
}

static void take_options(struct engine_options *options, const struct place *place,
                         const struct solution *solution)
{
    options->context = (u32)solution->values[CONTEXT];
    options->kv_bits = (u32)solution->values[KV_BITS];
    options->piece = (u32)solution->values[PIECE];
    options->valid_vocab = (u32)solution->values[VALID_VOCAB];
    if (!(place->kind & PROMPT))
        options->prefill = ENGINE_PREFILL_EXACT; /* nothing is compiled for prompts then */
}

int shape_choose(struct shape *shape, struct engine_options *options, struct shape_model *model,
                 struct error *error)
{
    struct solution solution;
    struct error first = {0}, found = {0};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const struct place *place = &places[i];
        if (strcmp(place->schedule, shape->schedule) != 0 ||
            !solve(&solution, place, shape, options))
            continue;
        describe_models(place, &solution, model);
        if (model_synth_check(&model->model, &found) == 0 &&
            (!model->has_draft || model_synth_check(&model->draft, &found) == 0)) {
            take_options(options, place, &solution);
            shape->prompt = place->kind & PROMPT;
            return complete(shape, place, &solution, error);
        }
        if (!first.code)
            first = found;
    }
    return refuse(shape, &first, error);
}

/* ---- opening */

static int open_in(const char *folder, struct engine **engine, const struct shape_model *model,
                   const struct engine_options *options, struct error *error)
{
    struct engine_options complete_options = *options;
    struct buffer target = {0}, draft = {0};
    u64 bytes;
    buffer_format(&target, "%s/model", folder);
    buffer_format(&draft, "%s/draft", folder);
    if (model->has_draft)
        complete_options.draft = draft.data;
    const int status = model_synth(&model->model, target.data, &bytes, error) ||
                               (model->has_draft &&
                                model_synth(&model->draft, draft.data, &bytes, error)) ||
                               engine_open(engine, target.data, &complete_options, error)
                           ? -1
                           : 0;
    buffer_free(&target);
    buffer_free(&draft);
    return status;
}

int shape_open(struct engine **engine, struct shape *shape, const struct engine_options *options,
               struct error *error)
{
    struct engine_options chosen = *options;
    struct shape_model model;
    char *folder;
    if (shape_choose(shape, &chosen, &model, error) < 0 || file_make_scratch(&folder, error) < 0)
        return -1;
    const int status = open_in(folder, engine, &model, &chosen, error);
    file_remove_tree(folder); /* the engine has what it needs */
    memory_free(folder);
    return status;
}
