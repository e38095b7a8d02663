/* test_synth.c - synthesised models: the geometry is the real one, the numbers are in range and the
 * same everywhere, everything that opens models opens them, and no folder is overwritten by chance.
 */
#include <math.h>

#include "model/support.h"
#include "text/text.h"

#define DRAFT_TINY "tests/models/elpis-tiny-dflash2"

static void synthesise(const struct synth_options *options, const char *name)
{
    struct error error = {0};
    u64 bytes = 0;
    if (model_synth(options, in_folder(name), &bytes, &error) < 0)
        fail_msg("%s: %s", options->geometry, error.text);
    assert_true(bytes > 0);
}

static void expect_refusal(const struct synth_options *options, const char *name, const char *words)
{
    struct error error = {0};
    u64 bytes = 0;
    assert_int_equal(model_synth(options, in_folder(name), &bytes, &error), -1);
    assert_int_equal(error.code, ERROR_USAGE);
    if (!strstr(error.text, words))
        fail_msg("expected \"%s\" in: %s", words, error.text);
}

static struct tensor_file *open_weights(const char *path)
{
    struct error error = {0};
    struct tensor_file *file = NULL;
    char name[700];
    snprintf(name, sizeof name, "%s/model.safetensors", path);
    if (tensor_file_open(&file, name, &error) < 0)
        fail_msg("%s", error.text);
    return file;
}

/* ---- geometry */

/* Every tensor of the trained model, in its dtype and shape, and no other. */
static void expect_same_tensors(const char *made, const char *trained)
{
    struct tensor_file *a = open_weights(made), *b = open_weights(trained);
    assert_int_equal(tensor_file_count(a), tensor_file_count(b));
    for (size_t i = 0; i < tensor_file_count(a); i++) {
        const struct tensor *x = tensor_file_at(a, i), *y = tensor_file_at(b, i);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->rank, y->rank);
        assert_memory_equal(x->shape, y->shape, x->rank * sizeof *x->shape);
        if (x->rank == 0)
            assert_memory_equal(x->data, y->data, x->bytes); /* codebook markers */
    }
    tensor_file_close(a);
    tensor_file_close(b);
}

static void test_tiny_is_elpis_tiny(void **state)
{
    (void)state;
    synthesise(&(struct synth_options){.geometry = "tiny"}, "target");
    expect_same_tensors(in_folder("target"), TINY);
    synthesise(&(struct synth_options){.geometry = "tiny-dflash2"}, "draft");
    expect_same_tensors(in_folder("draft"), DRAFT_TINY);
}

/* One layer of each at one bit: the sizes of the specification. */
static void test_27b(void **state)
{
    (void)state;
    struct error error = {0};
    struct model *model = NULL;
    struct draft_model *draft = NULL;
    synthesise(&(struct synth_options){.geometry = "27b", .layers = 1, .vocab = 512, .bits = 1},
               "target");
    synthesise(
        &(struct synth_options){
            .geometry = "27b-dflash2", .layers = 1, .vocab = 512, .bits = 1, .target_layers = 1},
        "draft");
    assert_int_equal(model_open(&model, in_folder("target"), &error), 0);
    const struct model_config *config = &model->config;
    assert_int_equal(config->hidden, 5120);
    assert_int_equal(config->intermediate, 17408);
    assert_int_equal(config->q_heads, 24);
    assert_int_equal(config->kv_heads, 4);
    assert_int_equal(config->gdn_k_heads, 16);
    assert_int_equal(config->gdn_v_heads, 48);
    assert_int_equal(config->rotary_dims, 64);
    assert_int_equal(model->layers[0].in_qkv.out, 10240);
    assert_int_equal(model->layers[0].in_qkv.bits, 1);
    assert_int_equal(model->head.bits, 6);
    assert_int_equal(draft_open(&draft, in_folder("draft"), model, 0, &error), 0);
    assert_int_equal(draft->config.q_heads, 32);
    assert_int_equal(draft->config.kv_heads, 8);
    assert_int_equal(draft->config.intermediate, 17408);
    assert_int_equal(draft->config.selector_rank, 256);
    assert_int_equal(draft->config.windows[0], 2048);
    draft_close(draft);
    model_close(model);
}

static void test_every_geometry_has_its_draft(void **state)
{
    (void)state;
    const char *what, *name;
    u32 targets = 0, drafts = 0;
    for (u32 i = 0; (name = model_synth_geometry(i, &what)) != NULL; i++) {
        if (slice_ends(slice_of(name), SLICE("-dflash2")))
            drafts++;
        else
            targets++;
        assert_true(strlen(what) > 10);
    }
    assert_int_equal(targets, drafts);
    assert_true(targets >= 4);
}

/* ---- numbers */

static void digest_of_file(const char *path, char text[65])
{
    struct error error = {0};
    struct file_map map;
    assert_int_equal(file_map_open(&map, path, &error), 0);
    digest_text(digest_of(map.data, map.size), text);
    file_map_close(&map);
}

/* The embedding takes three pieces, the head's last tile columns are padding. */
static const struct synth_options recorded = {
    .geometry = "tiny", .seed = 7, .layers = 4, .vocab = 20000, .bits = 3, .head_bits = 5};

static void test_the_same_seed_gives_the_same_bytes(void **state)
{
    (void)state;
    struct synth_options options = recorded;
    char one[65], three[65], other[65];
    options.threads = 1;
    synthesise(&options, "one");
    options.threads = 3;
    synthesise(&options, "three");
    options.seed = 8;
    synthesise(&options, "other");
    digest_of_file(in_folder("one/model.safetensors"), one);
    digest_of_file(in_folder("three/model.safetensors"), three);
    digest_of_file(in_folder("other/model.safetensors"), other);
    assert_string_equal(one, three);
    assert_string_not_equal(one, other);
    assert_string_equal(one, "20cefab2aed2f896bcd4389797e4d9777ab471450a4acf89762ddbbef94f8459");
}

/* Fewer layers cut a model short: what does not depend on their number stays. */
static void test_layers_cut(void **state)
{
    (void)state;
    static const char *const same[] = {"lm_head.trellis",
                                       "model.language_model.embed_tokens.weight",
                                       "model.language_model.layers.0.mlp.down_proj.trellis",
                                       "model.language_model.layers.0.mlp.gate_proj.suh"};
    synthesise(&(struct synth_options){.geometry = "tiny", .layers = 1}, "short");
    synthesise(&(struct synth_options){.geometry = "tiny", .layers = 3}, "long");
    struct tensor_file *a = open_weights(in_folder("short")), *b = open_weights(in_folder("long"));
    for (size_t i = 0; i < COUNT_OF(same); i++) {
        const struct tensor *x = tensor_file_find(a, same[i]), *y = tensor_file_find(b, same[i]);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    tensor_file_close(a);
    tensor_file_close(b);
}

static double element(const struct tensor *tensor, u64 index)
{
    u16 bits;
    u32 word;
    float value;
    memcpy(&bits, (const char *)tensor->data + 2 * index, sizeof bits);
    if (tensor->dtype == DTYPE_F16) {
        const double fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
        const int exponent = bits >> 10 & 31;
        return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
    }
    word = (u32)bits << 16;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Mean and rms of a tensor, each within a share of the wanted rms. */
static void expect_moments(const struct tensor_file *file, const char *name, double mean,
                           double rms)
{
    const struct tensor *tensor = tensor_file_find(file, name);
    double sum = 0, squares = 0;
    assert_non_null(tensor);
    for (u64 i = 0; i < tensor->count; i++) {
        const double value = element(tensor, i);
        assert_true(isfinite(value));
        sum += value;
        squares += value * value;
    }
    const double found_mean = sum / (double)tensor->count;
    const double found_rms = sqrt(squares / (double)tensor->count);
    if (fabs(found_mean - mean) > 0.15 * rms || fabs(found_rms / rms - 1) > 0.05)
        fail_msg("%s: mean %g, rms %g; expected %g, %g", name, found_mean, found_rms, mean, rms);
}

/* 0.5 / sqrt(3): what u of [-0.5, 0.5] has. JITTER 1/4 adds 1/48 to a mean square of 1. */
static void test_moments(void **state)
{
    (void)state;
    const double jitter = sqrt(1 + 1 / 48.0), uniform = sqrt(1 / 3.0);
    synthesise(&(struct synth_options){.geometry = "tiny"}, "target");
    struct tensor_file *file = open_weights(in_folder("target"));
    const char *const layer = "model.language_model.layers.0.";
    char name[200];
#define LAYER(tail) (snprintf(name, sizeof name, "%s%s", layer, tail), name)
    expect_moments(file, "model.language_model.embed_tokens.weight", 0, 0.5);
    expect_moments(file, "lm_head.suh", 0, jitter / 16);
    expect_moments(file, "lm_head.svh", 0, jitter);
    expect_moments(file, LAYER("mlp.down_proj.suh"), 0, jitter * 0.5 / 0.6 / sqrt(8) / sqrt(768));
    expect_moments(file, LAYER("linear_attn.conv1d.weight"), 0, 0.5 * uniform);
    expect_moments(file, LAYER("linear_attn.in_proj_b.weight"), 0, 0.7 / 16);
    expect_moments(file, LAYER("linear_attn.norm.weight"), 0.9, sqrt(0.81 + 0.01 / 3));
#undef LAYER
    tensor_file_close(file);
}

/* Bits of a trellis: half of them set in each of the 64 places of a word. */
static void test_bits(void **state)
{
    (void)state;
    synthesise(&(struct synth_options){.geometry = "tiny", .layers = 1}, "target");
    struct tensor_file *file = open_weights(in_folder("target"));
    const struct tensor *trellis = tensor_file_find(file, "lm_head.trellis");
    const u64 words = trellis->bytes / 8;
    u32 set[64] = {0};
    for (u64 i = 0; i < words; i++) {
        u64 word;
        memcpy(&word, (const char *)trellis->data + 8 * i, sizeof word);
        for (u32 bit = 0; bit < 64; bit++)
            set[bit] += word >> bit & 1;
    }
    for (u32 bit = 0; bit < 64; bit++)
        assert_true(fabs((double)set[bit] / (double)words - 0.5) < 0.01);
    tensor_file_close(file);
}

/* ---- what opens models */

static struct model *open_target(const char *name)
{
    struct error error = {0};
    struct model *model = NULL;
    if (model_open(&model, in_folder(name), &error) < 0)
        fail_msg("%s", error.text);
    return model;
}

static void test_drafts(void **state)
{
    (void)state;
    struct error error = {0};
    struct draft_model *draft = NULL;
    synthesise(&(struct synth_options){.geometry = "tiny", .layers = 5, .vocab = 1000}, "target");
    synthesise(
        &(struct synth_options){
            .geometry = "tiny-dflash2", .vocab = 1000, .target_layers = 5, .head_blocks = 4},
        "draft");
    struct model *model = open_target("target");
    if (draft_open(&draft, in_folder("draft"), model, 0, &error) < 0)
        fail_msg("%s", error.text);
    assert_int_equal(draft->config.tap_count, 3);
    assert_int_equal(draft->config.taps[0], 0);
    assert_int_equal(draft->config.taps[1], 2);
    assert_int_equal(draft->config.taps[2], 4);
    assert_int_equal(draft->config.mask_token, 993);
    assert_int_equal(draft->head_block_count, 4);
    assert_int_equal(draft->head_blocks[1], 1);
    assert_int_equal(draft->head_blocks[2], 6);
    assert_int_equal(draft->head_blocks[3], 7);
    draft_close(draft);
    model_close(model);
}

static void expect_ids(const struct tokenizer *tokenizer, const char *text, const u32 *ids,
                       size_t count)
{
    struct error error = {0};
    struct buffer found = {0}, back = {0};
    assert_int_equal(tokenizer_encode(tokenizer, slice_of(text), true, &found, &error), 0);
    assert_int_equal(found.size, count * sizeof *ids);
    assert_memory_equal(found.data, ids, found.size);
    tokenizer_decode(tokenizer, ids, count, false, &back);
    assert_string_equal(back.data, text);
    buffer_free(&found);
    buffer_free(&back);
}

static void test_tokenizer(void **state)
{
    (void)state;
    struct error error = {0};
    struct tokenizer *tokenizer = NULL;
    struct buffer text = {0};
    synthesise(&(struct synth_options){.geometry = "tiny", .layers = 1, .vocab = 1000}, "target");
    struct model *model = open_target("target");
    if (tokenizer_open(&tokenizer, in_folder("target"), &error) < 0)
        fail_msg("%s", error.text);
    assert_int_equal(tokenizer_count(tokenizer), 1000);
    expect_ids(tokenizer, "<|im_start|>a\n\xc3\xa9 \"\\<|im_end|>",
               (u32[]){991, 'a', '\n', 0xc3, 0xa9, ' ', '"', '\\', 992}, 9);
    assert_int_equal(tokenizer_special_id(tokenizer, "</think>"), 999);
    assert_int_equal(model->config.eos[0], tokenizer_special_id(tokenizer, "<|im_end|>"));
    assert_int_equal(model->config.eos[1], tokenizer_special_id(tokenizer, "<|endoftext|>"));
    tokenizer_decode(tokenizer, (u32[]){256, 989}, 2, true, &text);
    assert_string_equal(text.data, "<|extra_256|><|extra_989|>");
    buffer_free(&text);
    tokenizer_close(tokenizer);
    model_close(model);
}

static void test_chat_template(void **state)
{
    (void)state;
    struct error error = {0};
    struct chat_template *chat = NULL;
    struct buffer text = {0};
    synthesise(&(struct synth_options){.geometry = "tiny", .layers = 1}, "target");
    assert_int_equal(chat_template_open(&chat, in_folder("target"), &error), 0);
    const char *context = "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, "
                          "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
                          "\"Hi\"}]}], \"add_generation_prompt\": true}";
    if (chat_template_render(chat, slice_of(context), &text, &error) < 0)
        fail_msg("%s", error.text);
    assert_string_equal(text.data, "<|im_start|>system\nBe brief.<|im_end|>\n"
                                   "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    buffer_free(&text);
    chat_template_close(chat);
}

/* ---- refusals */

static void test_options_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct synth_options options;
        const char *words;
    } cases[] = {
        {{.geometry = "28b"}, "unknown geometry \"28b\": expected one of tiny, 1b, 9b, 27b, "},
        {{.geometry = "tiny", .bits = 9}, "bits 9: expected 1 to 8"},
        {{.geometry = "tiny", .head_bits = 9}, "head-bits 9: expected 1 to 8"},
        {{.geometry = "tiny", .layers = 513}, "layers 513: expected 1 to 512"},
        {{.geometry = "tiny", .vocab = 511}, "vocab 511: expected 512 to 1048576"},
        {{.geometry = "tiny", .target_layers = 8}, "target-layers has no meaning for tiny"},
        {{.geometry = "tiny", .head_blocks = 8}, "head-blocks has no meaning for tiny"},
        {{.geometry = "tiny-dflash2", .head_bits = 6}, "head-bits has no meaning for tiny-dflash2"},
        {{.geometry = "tiny-dflash2", .head_blocks = 33}, "head-blocks 33: expected 2 to 32"},
        {{.geometry = "tiny-dflash2", .layers = 33}, "layers 33: expected 1 to 32"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect_refusal(&cases[i].options, "target", cases[i].words);
    assert_false(file_exists(in_folder("target")));
}

static void test_folders(void **state)
{
    (void)state;
    struct synth_options options = {.geometry = "tiny-dflash2", .layers = 1, .head_blocks = 3};
    mkdir(in_folder("draft"), 0755);
    write_text("draft/model.safetensors.partial", "of an interrupted run");
    synthesise(&options, "draft");
    assert_false(file_exists(in_folder("draft/model.safetensors.partial")));
    assert_true(file_exists(in_folder("draft/draft_head.json")));
    expect_refusal(&options, "draft", "is not empty, it holds config.json");
    options.force = true;
    options.head_blocks = 0;
    synthesise(&options, "draft");
    assert_false(file_exists(in_folder("draft/draft_head.json")));
    write_text("draft/other.safetensors", "x");
    expect_refusal(&options, "draft", "holds other.safetensors");
    write_text("file", "x");
    expect_refusal(&options, "file", "cannot make the folder");
}

int main(void)
{
#define CASE(function) cmocka_unit_test_setup_teardown(function, setup_folder, teardown_folder)
    const struct CMUnitTest tests[] = {
        CASE(test_tiny_is_elpis_tiny),
        CASE(test_27b),
        CASE(test_every_geometry_has_its_draft),
        CASE(test_the_same_seed_gives_the_same_bytes),
        CASE(test_layers_cut),
        CASE(test_moments),
        CASE(test_bits),
        CASE(test_drafts),
        CASE(test_tokenizer),
        CASE(test_chat_template),
        CASE(test_options_are_refused),
        CASE(test_folders),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
