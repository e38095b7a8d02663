/* test_draft.c - draft models: elpis-tiny's with all its numbers, name variants, DFlash 1,
 * unquantised drafts, calibration, reduced heads, and what is refused.
 *
 * Broken drafts are elpis-tiny-dflash2 with one text of its configuration or one tensor changed.
 */
#include "model/make_draft.h"
#include "model/support.h"

#define TINY_DRAFT "tests/models/elpis-tiny-dflash2"

/* ---- opening, for elpis-tiny */

static struct model *target;

static int open_target(void **state)
{
    (void)state;
    struct error error = {0};
    return model_open(&target, TINY, &error);
}

static int close_target(void **state)
{
    (void)state;
    model_close(target);
    return 0;
}

static struct draft_model *open_draft(const char *path, const struct model *model)
{
    struct draft_model *draft = NULL;
    struct error error = {0};
    if (draft_open(&draft, path, model, 0, &error) < 0)
        fail_msg("%s", error.text);
    return draft;
}

static struct draft_model *open_changed(void)
{
    return open_draft(folder, target);
}

static void expect_draft_refused(i32 shift, const char *words)
{
    struct draft_model *draft = NULL;
    struct error error = {0};
    if (draft_open(&draft, folder, target, shift, &error) == 0)
        fail_msg("opened, expected: %s", words);
    assert_null(draft);
    expect_error(&error, ERROR_MODEL, words);
}

/* ---- changed copies of elpis-tiny-dflash2 */

static void copy_file(const char *name)
{
    struct buffer content = {0};
    struct error error = {0};
    char path[200];
    snprintf(path, sizeof path, TINY_DRAFT "/%s", name);
    if (file_read(&content, path, 64u << 20, &error) < 0)
        fail_msg("%s", error.text);
    write_file(name, content.data, content.size);
    buffer_free(&content);
}

static void copy_draft(void)
{
    copy_file("config.json");
    copy_file("model.safetensors");
}

static void change(const char *from, const char *to)
{
    replace_in_file("config.json", from, to);
}

/* One change of a tensor: its new name, or NULL to leave it out. Names not in arena live on. */
typedef const char *rename_tensor(struct arena *arena, struct tensor *tensor, const char *argument);

static void rewrite(rename_tensor *rename, const char *argument)
{
    struct arena *arena = arena_create();
    struct tensor_file *file = NULL;
    struct error error = {0};
    if (tensor_file_open(&file, TINY_DRAFT "/model.safetensors", &error) < 0)
        fail_msg("%s", error.text);
    struct tensor_writer *writer = tensor_writer_create();
    for (size_t i = 0; i < tensor_file_count(file); i++) {
        struct tensor tensor = *tensor_file_at(file, i);
        const char *name = rename(arena, &tensor, argument);
        if (name)
            tensor_writer_add(writer, name, tensor.dtype, tensor.rank, tensor.shape, tensor.data);
    }
    assert_int_equal(tensor_writer_write(writer, in_folder("model.safetensors"), &error), 0);
    tensor_writer_destroy(writer);
    tensor_file_close(file);
    arena_destroy(arena);
}

static const char *without(struct arena *arena, struct tensor *tensor, const char *argument)
{
    (void)arena;
    return strcmp(tensor->name, argument) == 0 ? NULL : tensor->name;
}

static const char *without_version_2(struct arena *arena, struct tensor *tensor, const char *kept)
{
    (void)arena;
    bool is_new = strstr(tensor->name, "_conv.") || strstr(tensor->name, "candidate_selector.");
    return is_new && !(kept && strstr(tensor->name, kept)) ? NULL : tensor->name;
}

static const char *prefixed(struct arena *arena, struct tensor *tensor, const char *prefix)
{
    return arena_format(arena, "%s%s", prefix, tensor->name);
}

/* The other names of dflash2.md 4.2. */
static const char *renamed(struct arena *arena, struct tensor *tensor, const char *prefix)
{
    const char *name = tensor->name;
    if (strncmp(name, "fc.", 3) == 0)
        return arena_format(arena, "%sencoder.%s", prefix, name);
    if (strcmp(name, "hidden_norm.weight") == 0)
        return arena_format(arena, "%sencoder.output_norm_enc.weight", prefix);
    const char *suffix = strstr(name, "_codebook") ? ".weight" : "";
    return arena_format(arena, "%s%s%s", prefix, name, suffix);
}

/* The last two extents exchanged. */
static const char *transposed(struct arena *arena, struct tensor *tensor, const char *argument)
{
    (void)arena;
    if (strcmp(tensor->name, argument) == 0) {
        u64 last = tensor->shape[tensor->rank - 1];
        tensor->shape[tensor->rank - 1] = tensor->shape[tensor->rank - 2];
        tensor->shape[tensor->rank - 2] = last;
    }
    return tensor->name;
}

static const char *quantised(struct arena *arena, struct tensor *tensor, const char *argument)
{
    return strcmp(tensor->name, argument) == 0 ? arena_format(arena, "%s.q", argument)
                                               : tensor->name;
}

/* ---- what opens */

static void test_tiny(void **state)
{
    (void)state;
    struct draft_model *draft = open_draft(TINY_DRAFT, target);
    const struct draft_config *config = &draft->config;
    assert_string_equal(draft->name, "elpis-tiny-dflash2");
    assert_string_equal(draft->folder, TINY_DRAFT);
    assert_string_equal(config->architecture, "DFlash2DraftModel");
    const u32 found[] = {
        config->hidden,     config->intermediate,  config->layers,     config->vocab,
        config->q_heads,    config->kv_heads,      config->head_dim,   config->windows[0],
        config->windows[1], config->block,         config->mask_token, config->tap_count,
        config->taps[0],    config->taps[1],       config->taps[2],    config->conv_taps,
        config->conv_group, config->selector_rank, config->top_k,      config->causal};
    const u32 expected[] = {256,  512, 2, 4096, 4, 1, 128, 128, 128, 8,
                            4089, 3,   1, 3,    6, 2, 16,  64,  16,  0};
    assert_memory_equal(found, expected, sizeof expected);
    assert_true(config->norm_eps == 1e-6 && config->rope_theta == 1e7);
    assert_true(config->embedding_scale == 1 && config->output_multiplier == 1);
    assert_true(config->softcap == 0);
    assert_int_equal(draft->file_count, 1);
    assert_int_equal(draft->tensor_count, 81);
    assert_int_equal(draft->tensor_bytes, 2064444);
    assert_true(draft->calibrated); /* its own calibration.json */
    assert_null(draft->head_blocks);
    draft_close(draft);
    draft_close(NULL);
}

static void expect_linear(const struct model_linear *linear, enum linear_kind kind, u32 in, u32 out)
{
    assert_int_equal(linear->kind, kind);
    assert_int_equal(linear->in, in);
    assert_int_equal(linear->out, out);
}

static void test_tiny_tensors(void **state)
{
    (void)state;
    struct draft_model *draft = open_draft(TINY_DRAFT, target);
    const struct draft_layer *layer = &draft->layers[1];
    expect_linear(&draft->fc, LINEAR_EXL3, 768, 256);
    expect_linear(&draft->selector, LINEAR_PLAIN, 256, 64);
    expect_linear(&layer->q, LINEAR_EXL3, 256, 512);
    expect_linear(&layer->k, LINEAR_EXL3, 256, 128);
    expect_linear(&layer->v, LINEAR_EXL3, 256, 128);
    expect_linear(&layer->o, LINEAR_EXL3, 512, 256);
    expect_linear(&layer->gate, LINEAR_EXL3, 256, 512);
    expect_linear(&layer->up, LINEAR_EXL3, 256, 512);
    expect_linear(&layer->down, LINEAR_EXL3, 512, 256);
    expect_linear(&layer->attention_projection, LINEAR_PLAIN, 256, 64);
    expect_linear(&layer->mlp_projection, LINEAR_PLAIN, 256, 64);
    assert_string_equal(layer->mlp_projection.name, "layers.1.mlp_conv.kernel_projection");
    assert_int_equal(layer->attention_conv.count, 2 * 2 * 256);
    assert_int_equal(layer->mlp_conv.count, 2 * 2 * 256);
    assert_int_equal(layer->input_norm.count, 256);
    assert_int_equal(layer->k_norm.count, 128);
    assert_int_equal(draft->hidden_norm.count, 256);
    assert_int_equal(draft->predecessors.count, 4096 * 64);
    assert_int_equal(draft->successors.dtype, DTYPE_BF16);
    assert_ptr_not_equal(draft->predecessors.data, draft->successors.data);
    draft_close(draft);
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        rename_tensor *rename;
        const char *prefix, *fc, *query;
    } cases[] = {{prefixed, "", "fc", "layers.1.self_attn.q_proj"},
                 {prefixed, "model.", "model.fc", "model.layers.1.self_attn.q_proj"},
                 {renamed, "", "encoder.fc", "layers.1.self_attn.q_proj"},
                 {renamed, "model.", "model.encoder.fc", "model.layers.1.self_attn.q_proj"}};
    copy_draft();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        rewrite(cases[i].rename, cases[i].prefix);
        struct draft_model *draft = open_changed();
        assert_int_equal(draft->tensor_count, 81);
        assert_string_equal(draft->fc.name, cases[i].fc);
        assert_string_equal(draft->layers[1].q.name, cases[i].query);
        draft_close(draft);
    }
}

/* DFlash: the same draft without what version 2 added. */
static void make_version_1(void)
{
    copy_draft();
    change("DFlash2DraftModel", "DFlashDraftModel");
    change(",\n  \"conv_kernel_size\": 2,\n  \"conv_group_size\": 16,\n  \"selector_rank\": 64,\n"
           "  \"selector_top_k\": 16",
           "");
    change("\"block_size\": 8,", "");
    change("\"hidden_size\"", "\"block_size\": 8,\n \"hidden_size\"");
    rewrite(without_version_2, NULL);
}

static void test_version_1(void **state)
{
    (void)state;
    make_version_1();
    struct draft_model *draft = open_changed();
    const struct draft_config *config = &draft->config;
    assert_string_equal(config->architecture, "DFlashDraftModel");
    assert_int_equal(config->block, 8);
    assert_int_equal(config->conv_taps, 0);
    assert_int_equal(config->conv_group, 0);
    assert_int_equal(config->selector_rank, 0);
    assert_int_equal(config->top_k, 16);
    assert_int_equal(draft->layers[0].attention_conv.count, 0);
    assert_int_equal(draft->layers[0].mlp_projection.kind, LINEAR_NONE);
    assert_int_equal(draft->selector.kind, LINEAR_NONE);
    assert_int_equal(draft->successors.count, 0);
    draft_close(draft);
    rewrite(without_version_2, "layers.1.mlp_conv.");
    expect_draft_refused(0, "tensor layers.1.mlp_conv.base_kernel and 1 more tensors would not be "
                            "used: the DFlashDraftModel of 2 layers");
}

/* A draft for make_default's model, plain, with fewer candidates and a head count of its own. */
static void test_unquantised(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    struct draft_options options;
    struct error error = {0};
    make_default();
    struct model *model = open_good();
    for (size_t i = 0; i < 2 * COUNT_OF(dtypes); i++) {
        make_draft_defaults(&options, in_folder("draft"));
        options.base.plain = true;
        options.base.plain_dtype = dtypes[i / 2];
        options.version_1 = i % 2;
        if (make_draft(&options, &error) < 0)
            fail_msg("%s", error.text);
        struct draft_model *draft = open_draft(options.base.folder, model);
        expect_linear(&draft->fc, LINEAR_PLAIN, 512, 256);
        expect_linear(&draft->layers[1].down, LINEAR_PLAIN, 384, 256);
        assert_int_equal(draft->fc.weight_dtype, dtypes[i / 2]);
        assert_int_equal(draft->config.top_k, i % 2 ? 16 : 8);
        assert_int_equal(draft->config.selector_rank, i % 2 ? 0 : 32);
        assert_int_equal(draft->config.block, 4);
        assert_int_equal(draft->config.windows[1], 32);
        draft_close(draft);
    }
    model_close(model);
}

static void test_scales(void **state)
{
    (void)state;
    copy_draft();
    change("\"block_size\"", "\"input_embedding_scale\": 2.5, \"output_multiplier\": 0.125, "
                             "\"final_logit_softcapping\": 20.0, \"block_size\"");
    struct draft_model *draft = open_changed();
    assert_true(draft->config.embedding_scale == 2.5);
    assert_true(draft->config.output_multiplier == 0.125);
    assert_true(draft->config.softcap == 20);
    draft_close(draft);
    change("20.0", "null");
    draft = open_changed();
    assert_true(draft->config.softcap == 0);
    draft_close(draft);
}

static void test_block(void **state)
{
    (void)state;
    static const u32 blocks[][2] = {{2, 2}, {7, 7}, {9, 8}, {16, 8}};
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        char text[64];
        copy_draft();
        snprintf(text, sizeof text, "\"block_size\": %" PRIu32, blocks[i][0]);
        change("\"block_size\": 8", text);
        struct draft_model *draft = open_changed();
        assert_int_equal(draft->config.block, blocks[i][1]);
        draft_close(draft);
    }
}

/* Order of taps is that of the list; the shift moves each. */
static void test_taps(void **state)
{
    (void)state;
    copy_draft();
    change("   1,\n   3,\n   6\n", "6, 1, 0");
    struct draft_model *draft = NULL;
    struct error error = {0};
    assert_int_equal(draft_open(&draft, folder, target, 1, &error), 0);
    assert_memory_equal(draft->config.taps, ((u32[]){7, 2, 1}), 3 * sizeof(u32));
    draft_close(draft);
    expect_draft_refused(2, "dflash_config.target_layer_ids has 6 at place 0, but the target's "
                            "layers are 0 to 7 and the tap shift is 2");
    expect_draft_refused(-1, "dflash_config.target_layer_ids has 0 at place 2, but the target's "
                             "layers are 0 to 7 and the tap shift is -1");
}

#define SLIDING "\"sliding_attention\""
#define FULL "\"full_attention\""

static void test_windows(void **state)
{
    (void)state;
    static const struct {
        const char *types, *use;
        u32 windows[2];
    } cases[] = {{"[" SLIDING ", " SLIDING "]", "false", {128, 128}},
                 {"[" FULL ", " SLIDING "]", "true", {0, 128}},
                 {"[" FULL ", " FULL "]", "true", {0, 0}},
                 {"null", "true", {128, 128}},
                 {"null", "false", {0, 0}},
                 {"null", "null", {0, 0}}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        copy_draft();
        change("[\n  " SLIDING ",\n  " SLIDING "\n ]", cases[i].types);
        change("\"use_sliding_window\": true", "\"use_sliding_window\": false");
        change("\"use_sliding_window\": false",
               arena_format(target->arena, "\"use_sliding_window\": %s", cases[i].use));
        struct draft_model *draft = open_changed();
        assert_memory_equal(draft->config.windows, cases[i].windows, 2 * sizeof(u32));
        draft_close(draft);
    }
}

/* The root's word counts, then dflash_config's, then what the layers are. */
static void test_causality(void **state)
{
    (void)state;
    static const struct {
        bool version_1;
        const char *root, *nested, *types;
        bool causal;
    } cases[] = {{false, "true", "false", SLIDING ", " SLIDING, true},
                 {false, "false", "true", SLIDING ", " SLIDING, false},
                 {false, "null", "true", SLIDING ", " SLIDING, true},
                 {false, "null", "null", SLIDING ", " SLIDING, false},
                 {true, "null", "false", SLIDING ", " FULL, false},
                 {true, "true", "null", SLIDING ", " FULL, true},
                 {true, "null", "null", SLIDING ", " SLIDING, true},
                 {true, "null", "null", FULL ", " FULL, false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (cases[i].version_1)
            make_version_1();
        else
            copy_draft();
        change(SLIDING ",\n  " SLIDING, cases[i].types);
        change("\"is_causal\": false",
               arena_format(target->arena, "\"is_causal\": %s", cases[i].root));
        change("\"mask_token_id\"",
               arena_format(target->arena, "\"causal\": %s, \"mask_token_id\"", cases[i].nested));
        struct draft_model *draft = open_changed();
        if (draft->config.causal != cases[i].causal)
            fail_msg("case %zu", i);
        draft_close(draft);
    }
    change(FULL ", " FULL, SLIDING ", " FULL);
    expect_draft_refused(0,
                         "is_causal is missing, and layer_types has 1 sliding and 1 full layers");
}

/* ---- what is refused */

static void test_config_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *words;
    } cases[] = {
        {"DFlash2DraftModel", "DSparkModel",
         "config.json: architectures is \"DSparkModel\", supported: \"DFlash2DraftModel\", "
         "\"DFlashDraftModel\""},
        {"\"hidden_size\": 256", "\"hidden_size\": 384",
         "config.json: hidden_size is 384, but the target's is 256: the draft belongs to another"},
        {"\"vocab_size\": 4096", "\"vocab_size\": 4352",
         "config.json: vocab_size is 4352, but the target's is 4096"},
        {"\"num_target_layers\": 8", "\"num_target_layers\": 36",
         "num_target_layers is 36, but the target has 8 layers"},
        {"\"intermediate_size\": 512", "\"intermediate_size\": 500",
         "intermediate_size is 500, expected a multiple of 128"},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 33",
         "num_hidden_layers is 33, supported are 1 to 32"},
        {"\"head_dim\": 128", "\"head_dim\": 64", "head_dim is 64, only 128 is supported"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3",
         "num_attention_heads is 4 with num_key_value_heads 3"},
        {"\"num_attention_heads\": 4", "\"num_attention_heads\": 9",
         "num_attention_heads is 9 with num_key_value_heads 1, expected 1 to 8 query heads"},
        {"\"silu\"", "\"gelu\"", "hidden_act is \"gelu\", supported: \"silu\", \"swish\""},
        {"\"attention_bias\": false", "\"attention_bias\": true",
         "attention_bias is true, only false is supported"},
        {"1e-06", "0", "rms_norm_eps must be a number between 0 and 1, found 0"},
        {"\"exl3\"", "\"awq\"", "quantization_config.quant_method is \"awq\""},
        {"\"default\"", "\"yarn\"", "rope_parameters.rope_type is \"yarn\""},
        {"\"rope_theta\"", "\"theta\"", "rope_theta must be a number between 1 and 1e12, found 0"},
        {"\"rope_theta\"", "\"partial_rotary_factor\": 0.5, \"rope_theta\"",
         "partial_rotary_factor is 0.5, only 1 is supported"},
        {"[\n  " SLIDING ",", "[\n  \"linear_attention\",",
         "layer_types has \"linear_attention\" for layer 0, supported: \"sliding_attention\""},
        {"[\n  " SLIDING ",", "[",
         "layer_types is a list of 1, expected a list of "
         "num_hidden_layers = 2"},
        {"\"sliding_window\": 128,", "", "sliding_window is missing, expected an integer"},
        {"\"is_causal\": false", "\"is_causal\": 0", "is_causal is an integer, expected true"},
        {"\"dflash_config\"", "\"other\"", "dflash_config is missing, expected an object"},
        {"\"block_size\": 8,", "", "dflash_config.block_size is missing, expected an integer"},
        {"\"block_size\": 8,", "\"block_size\": 1,", "dflash_config.block_size is 1, supported"},
        {"\"model_type\"", "\"block_size\": 16, \"model_type\"",
         "dflash_config.block_size is 8, but block_size of the root is 16"},
        {"\"mask_token_id\": 4089", "\"mask_token_id\": 4096",
         "dflash_config.mask_token_id is 4096, which is not below vocab_size, 4096"},
        {"\"mask_token_id\"", "\"sample_from_anchor\": true, \"mask_token_id\"",
         "sample_from_anchor is true, only false is supported"},
        {"\"target_layer_ids\"", "\"layers\"",
         "dflash_config.target_layer_ids is missing: expected the target layers"},
        {"   1,\n   3,\n   6\n", "", "target_layer_ids is a list of 0, expected a list of 1 to 16"},
        {"   1,\n", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,",
         "target_layer_ids is a list of 17, expected a list of 1 to 16"},
        {"   6\n", "8", "target_layer_ids has 8 at place 2, but the target's layers are 0 to 7"},
        {"   1,", "-1,", "target_layer_ids has -1 at place 0, but the target's layers are 0 to 7"},
        {"   1,", "9223372036854775807,", "target_layer_ids has 9223372036854775807 at place 0"},
        {"   6\n", "\"6\"", "target_layer_ids has a string at place 2, expected an integer"},
        {"   6\n", "1", "target_layer_ids has layer 1 at places 0 and 2"},
        {"\"conv_kernel_size\": 2", "\"conv_kernel_size\": 9",
         "conv_kernel_size is 9, expected 1 to block_size, which is 8"},
        {"\"conv_kernel_size\": 2", "\"conv_kernel_size\": 0",
         "conv_kernel_size is 0, expected 1 to block_size, which is 8"},
        {"\"conv_kernel_size\": 2", "\"conv_kernel_size\": 3",
         "conv_kernel_size is 3, only 2 is supported"},
        {"\"conv_group_size\": 16", "\"conv_group_size\": 24",
         "conv_group_size is 24, which does not divide hidden_size, 256"},
        {"\"conv_group_size\": 16", "\"conv_group_size\": 0", "conv_group_size is 0, supported"},
        {"\"selector_rank\": 64", "\"selector_rank\": 60",
         "selector_rank is 60, expected a multiple of 8"},
        {"\"selector_rank\": 64", "\"selector_rank\": 520", "selector_rank is 520, supported are"},
        {"\"selector_top_k\": 16", "\"selector_top_k\": 17",
         "selector_top_k is 17, supported are 1 to 16"},
        {"\"selector_top_k\": 16", "\"selector_top_k\": 0",
         "selector_top_k is 0, supported are 1 to 16"},
        {"\"block_size\"", "\"output_multiplier\": 0, \"block_size\"",
         "dflash_config.output_multiplier is 0, expected a number above 0"},
        {"\"block_size\"", "\"input_embedding_scale\": -1, \"block_size\"",
         "dflash_config.input_embedding_scale is -1, expected a number above 0"},
        {"\"block_size\"", "\"final_logit_softcapping\": -20, \"block_size\"",
         "dflash_config.final_logit_softcapping is -20, expected 0 (off) or more"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        copy_file("config.json");
        change(cases[i].from, cases[i].to);
        expect_draft_refused(0, cases[i].words);
    }
}

static void test_folder_refused(void **state)
{
    (void)state;
    struct draft_model *draft = NULL;
    struct error error = {0};
    expect_draft_refused(0, "has no config.json: expected a draft model's directory");
    copy_file("config.json");
    expect_draft_refused(0, "has no *.safetensors file");
    assert_int_equal(draft_open(&draft, "/nowhere", target, 0, &error), -1);
    expect_error(&error, ERROR_MODEL, "/nowhere is not a folder");
    assert_int_equal(draft_open(&draft, TINY, target, 0, &error), -1);
    expect_error(&error, ERROR_MODEL, "architectures is \"Qwen3_5ForCausalLM\"");
}

/* Whichever tensor is left out: it is named, or the linear that it belongs to. The codebook's
 * marker is a choice by absence (exl3.md 1.3). */
static void test_missing(void **state)
{
    (void)state;
    struct tensor_file *file = NULL;
    struct error error = {0};
    assert_int_equal(tensor_file_open(&file, TINY_DRAFT "/model.safetensors", &error), 0);
    copy_file("config.json");
    for (size_t i = 0; i < tensor_file_count(file); i++) {
        const char *name = tensor_file_at(file, i)->name;
        if (slice_ends(slice_of(name), SLICE(".mul1")))
            continue;
        const char *suffix = strrchr(name, '.');
        char linear[200];
        snprintf(linear, sizeof linear, "%.*s", (int)(suffix - name), name);
        rewrite(without, name);
        bool is_part = strcmp(suffix, ".trellis") == 0 || strstr(name, "_projection.");
        expect_draft_refused(0, is_part ? linear : name);
        expect_draft_refused(0, "missing");
    }
    tensor_file_close(file);
}

static void test_tensors_refused(void **state)
{
    (void)state;
    copy_draft();
    struct tensor_writer *writer = tensor_writer_create();
    struct error error = {0};
    tensor_writer_add(writer, "lm_head.weight", DTYPE_F16, 1, (u64[]){4}, "12345678");
    assert_int_equal(tensor_writer_write(writer, in_folder("more.safetensors"), &error), 0);
    tensor_writer_destroy(writer);
    expect_draft_refused(0, "more.safetensors: tensor lm_head.weight would not be used: the "
                            "DFlash2DraftModel of 2 layers in config.json has no place for it");
    unlink(in_folder("more.safetensors"));
    rewrite(transposed, "candidate_selector.successor_codebook");
    expect_draft_refused(0, "successor_codebook has shape [64, 4096], expected [4096, 64]");
    rewrite(transposed, "layers.1.mlp_conv.base_kernel");
    expect_draft_refused(0, "mlp_conv.base_kernel has shape [2, 256, 2], expected [2, 2, 256]");
    rewrite(transposed, "layers.0.attention_conv.kernel_projection.weight");
    expect_draft_refused(0, "kernel_projection.weight has shape [256, 64], expected [64, 256]");
    rewrite(quantised, "candidate_selector.predecessor_codebook");
    expect_draft_refused(0, "predecessor_codebook.q: a quantised codebook");
    copy_draft();
    change("   1,\n   3,\n   6\n", "1, 3");
    expect_draft_refused(0, "target_layer_ids has 2 layers of hidden_size 256, so fc reads 512: ");
    expect_draft_refused(0, "fc.trellis has shape [48, 16, 64], expected [32, 16, 64]");
}

/* ---- calibration.json */

static void test_built_in_calibration(void **state)
{
    (void)state;
    copy_draft();
    struct draft_model *draft = open_changed();
    assert_false(draft->calibrated);
    assert_true(draft->calibration.temperature[0] == 1 / 1.1618);
    assert_true(draft->calibration.temperature[6] == 1 / 0.6703);
    assert_true(draft->calibration.recall[0] == 0.9961);
    assert_true(draft->calibration.recall[6] == 0.9080);
    draft_close(draft);
}

static void test_calibration(void **state)
{
    (void)state;
    struct draft_calibration written = {
        .temperature = {0.01, 1. / 3, 0.5, 1, 1.25, 2, 100},
        .recall = {1, 0.9, 1 - 1e-15, 0.7, 2. / 3, 0.1, 1e-6},
    };
    struct error error = {0};
    copy_draft();
    assert_int_equal(draft_calibration_write(&written, in_folder("calibration.json"), &error), 0);
    struct draft_model *draft = open_changed();
    assert_true(draft->calibrated);
    assert_memory_equal(&draft->calibration, &written, sizeof written);
    draft_close(draft);
    assert_int_equal(draft_calibration_write(&written, "/nowhere/calibration.json", &error), -1);
}

#define SEVEN "[1, 1, 1, 1, 1, 1, 1]"

static void test_calibration_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"[]", "calibration.json holds a list, expected a JSON object"},
        {"{\"temperature\": " SEVEN "}", "recall is missing, expected a list of 7 numbers"},
        {"{\"temperature\": [1, 1], \"recall\": " SEVEN "}",
         "temperature is a list of 2, expected a list of 7 numbers"},
        {"{\"temperature\": " SEVEN ", \"recall\": 1}", "recall is an integer, expected"},
        {"{\"temperature\": [1, 1, 1, 1, 1, 1, 0], \"recall\": " SEVEN "}",
         "temperature has 0 at place 6, supported are 0.01 to 100"},
        {"{\"temperature\": [1, true, 1, 1, 1, 1, 1], \"recall\": " SEVEN "}",
         "temperature has true at place 1, expected a number"},
        {"{\"temperature\": " SEVEN ", \"recall\": [1, 1, 1.5, 1, 1, 1, 1]}",
         "recall has 1.5 at place 2, supported are 1e-06 to 1"},
        {"{\"temperature\": " SEVEN ", \"recall\": " SEVEN ", \"rounds\": 7}",
         "rounds is not a key of this file, expected \"temperature\", \"recall\""},
    };
    copy_draft();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        write_text("calibration.json", cases[i].text);
        expect_draft_refused(0, cases[i].words);
    }
}

/* ---- draft_head.json; elpis-tiny has 32 blocks, and its ends 4086 and 4088 lie in the last */

static void test_head(void **state)
{
    (void)state;
    copy_draft();
    write_text("draft_head.json", "{\"blocks\": [0, 1, 7, 31]}");
    struct draft_model *draft = open_changed();
    assert_int_equal(draft->head_block_count, 4);
    assert_memory_equal(draft->head_blocks, ((u32[]){0, 1, 7, 31}), 4 * sizeof(u32));
    draft_close(draft);
}

static void test_head_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"{}", "draft_head.json: blocks is missing, expected a list of 1 to 32 blocks"},
        {"{\"blocks\": []}", "blocks is a list of 0, expected a list of 1 to 32 blocks"},
        {"{\"blocks\": [3, 3, 31]}",
         "blocks has 3 at place 1, expected ascending blocks, here from 4 to 31"},
        {"{\"blocks\": [5, 2, 31]}", "blocks has 2 at place 1, expected ascending blocks"},
        {"{\"blocks\": [0, 32]}", "blocks has 32 at place 1, expected ascending blocks"},
        {"{\"blocks\": [-1, 31]}", "blocks has -1 at place 0, expected ascending blocks"},
        {"{\"blocks\": [\"0\", 31]}", "blocks has a string at place 0, expected an integer"},
        {"{\"blocks\": [0, 30]}", "blocks has no block 31, in which the end token 4088 lies"},
        {"{\"blocks\": [31], \"ids\": []}", "ids is not a key of this file, expected \"blocks\""},
    };
    copy_draft();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        write_text("draft_head.json", cases[i].text);
        expect_draft_refused(0, cases[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_tiny_tensors),
        TEST_IN_FOLDER(test_names),
        TEST_IN_FOLDER(test_version_1),
        TEST_IN_FOLDER(test_unquantised),
        TEST_IN_FOLDER(test_scales),
        TEST_IN_FOLDER(test_block),
        TEST_IN_FOLDER(test_taps),
        TEST_IN_FOLDER(test_windows),
        TEST_IN_FOLDER(test_causality),
        TEST_IN_FOLDER(test_config_refused),
        TEST_IN_FOLDER(test_folder_refused),
        TEST_IN_FOLDER(test_missing),
        TEST_IN_FOLDER(test_tensors_refused),
        TEST_IN_FOLDER(test_built_in_calibration),
        TEST_IN_FOLDER(test_calibration),
        TEST_IN_FOLDER(test_calibration_refused),
        TEST_IN_FOLDER(test_head),
        TEST_IN_FOLDER(test_head_refused),
    };
    return cmocka_run_group_tests(tests, open_target, close_target);
}
