/* test_qwen3_5.c - whole model directories: elpis-tiny with all its numbers, both
 * prefixes, tied heads, real checkpoints' extras, several files, and what is refused.
 */
#include "model/support.h"

static void test_tiny(void **state)
{
    (void)state;
    struct model *model = NULL;
    struct error error = {0};
    if (model_open(&model, TINY, &error) < 0)
        fail_msg("%s", error.text);
    const struct model_config *config = &model->config;
    assert_string_equal(model->name, "elpis-tiny");
    assert_string_equal(model->folder, TINY);
    assert_int_equal(config->hidden, 256);
    assert_int_equal(config->intermediate, 768);
    assert_int_equal(config->layers, 8);
    assert_int_equal(config->vocab, 4096);
    assert_int_equal(config->q_heads, 6);
    assert_int_equal(config->kv_heads, 1);
    assert_int_equal(config->gdn_k_heads, 2);
    assert_int_equal(config->gdn_v_heads, 6);
    assert_int_equal(config->eos_count, 2);
    assert_int_equal(config->eos[0], 4088);
    assert_int_equal(config->eos[1], 4086);
    assert_false(config->do_sample);
    assert_int_equal(model->tensor_count, 262);
    assert_int_equal(model->tensor_bytes, 8952668);
    assert_int_equal(model->ignored_visual, 0);
    assert_int_equal(model->embedding.count, 4096 * 256);
    assert_int_equal(model->embedding.dtype, DTYPE_BF16);
    for (u32 i = 0; i < 8; i++)
        assert_int_equal(model->layers[i].attention, i == 3 || i == 7);
    model_close(model);
}

static void expect_linear(const struct model_linear *linear, u32 in, u32 out, u32 bits)
{
    assert_int_equal(linear->kind, LINEAR_EXL3);
    assert_int_equal(linear->codebook, CODEBOOK_MUL1);
    assert_int_equal(linear->in, in);
    assert_int_equal(linear->out, out);
    assert_int_equal(linear->in_padded, in);
    assert_int_equal(linear->out_padded, out);
    assert_int_equal(linear->bits, bits);
}

static void test_tiny_linears(void **state)
{
    (void)state;
    struct model *model = NULL;
    struct error error = {0};
    if (model_open(&model, TINY, &error) < 0)
        fail_msg("%s", error.text);
    const struct model_layer *gdn = &model->layers[0], *attention = &model->layers[3];
    expect_linear(&gdn->in_qkv, 256, 1280, 4);
    expect_linear(&gdn->in_z, 256, 768, 4);
    expect_linear(&gdn->out, 768, 256, 4);
    expect_linear(&gdn->gate, 256, 768, 4);
    expect_linear(&gdn->down, 768, 256, 4);
    expect_linear(&attention->q, 256, 3072, 4);
    expect_linear(&attention->k, 256, 256, 4);
    expect_linear(&attention->o, 1536, 256, 4);
    expect_linear(&model->head, 256, 4096, 6);
    assert_int_equal(gdn->in_a.kind, LINEAR_PLAIN);
    assert_int_equal(gdn->in_a.weight_dtype, DTYPE_F16);
    assert_int_equal(gdn->in_a.out, 6);
    assert_int_equal(gdn->conv.count, 1280 * 4);
    assert_int_equal(gdn->a_log.dtype, DTYPE_BF16);
    assert_int_equal(gdn->gdn_norm.count, 128);
    assert_int_equal(gdn->q.kind, LINEAR_NONE);
    assert_int_equal(attention->in_qkv.kind, LINEAR_NONE);
    assert_int_equal(attention->q_norm.count, 256);
    model_close(model);
}

static void test_short_prefix(void **state)
{
    (void)state;
    struct make_options options;
    make_defaults(&options, folder);
    options.prefix = "model.";
    make_good(&options);
    struct model *model = open_good();
    assert_string_equal(model->layers[3].k.name, "model.layers.3.self_attn.k_proj");
    model_close(model);
}

static void test_a_log_f32(void **state)
{
    (void)state;
    struct make_options options;
    make_defaults(&options, folder);
    options.a_log_dtype = DTYPE_F32;
    make_good(&options);
    struct model *model = open_good();
    assert_int_equal(model->layers[0].a_log.dtype, DTYPE_F32);
    model_close(model);
}

static void test_tied(void **state)
{
    (void)state;
    struct make_options options;
    make_defaults(&options, folder);
    options.tied = true;
    make_good(&options);
    struct model *model = open_good();
    assert_int_equal(model->head.kind, LINEAR_PLAIN);
    assert_ptr_equal(model->head.weight, model->embedding.data);
    assert_int_equal(model->head.weight_dtype, DTYPE_BF16);
    assert_int_equal(model->head.out, 512);
    model_close(model);
    replace_in_file("config.json", "\"tie_word_embeddings\": true",
                    "\"tie_word_embeddings\": false");
    expect_refused("linear lm_head is missing");
}

static void test_tied_with_head(void **state)
{
    (void)state;
    make_default();
    replace_in_file("config.json", "\"tie_word_embeddings\": false",
                    "\"tie_word_embeddings\": true");
    struct model *model = open_good();
    assert_int_equal(model->head.kind, LINEAR_EXL3);
    model_close(model);
}

static void test_extras(void **state)
{
    (void)state;
    struct make_options options;
    make_defaults(&options, folder);
    options.nested = options.extras = true;
    make_good(&options);
    struct model *model = open_good();
    assert_int_equal(model->ignored_visual, 333);
    assert_int_equal(model->ignored_mtp, 39);
    model_close(model);
}

static void test_shards(void **state)
{
    (void)state;
    struct make_options options;
    make_defaults(&options, folder);
    options.shards = 3;
    make_good(&options);
    struct model *model = open_good();
    assert_int_equal(model->file_count, 3);
    model_close(model);
    unlink(in_folder("model-00002-of-00003.safetensors"));
    expect_refused("model-00002-of-00003.safetensors\", which is not there");
    unlink(in_folder("model.safetensors.index.json"));
    expect_refused("model-00002-of-00003.safetensors is missing, but "
                   "model-00001-of-00003.safetensors is there: the download is not complete");
}

static void test_index(void **state)
{
    (void)state;
    make_default();
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": 1}}");
    expect_refused("tensor a lies in \"an integer\"");
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"model.safetensors\"");
    expect_refused("index.json is not valid JSON");
}

/* Writes one more tensor file beside the model's. */
static void write_beside(const char *file, const char *tensor)
{
    struct error error = {0};
    struct tensor_writer *writer = tensor_writer_create();
    tensor_writer_add(writer, tensor, DTYPE_F16, 1, (u64[]){4}, "12345678");
    assert_int_equal(tensor_writer_write(writer, in_folder(file), &error), 0);
    tensor_writer_destroy(writer);
}

static void test_unused(void **state)
{
    (void)state;
    make_default();
    write_beside("b.safetensors", "model.language_model.layers.4.input_layernorm.weight");
    expect_refused("b.safetensors: tensor model.language_model.layers.4.input_layernorm.weight "
                   "would not be used: the text model of 4 layers");
    write_beside("c.safetensors", "zebra");
    expect_refused("input_layernorm.weight and 1 more tensors would not be used");
}

static void test_twice(void **state)
{
    (void)state;
    make_default();
    write_beside("b.safetensors", "lm_head.suh");
    expect_refused("tensor lm_head.suh is both in");
}

static void test_missing(void **state)
{
    (void)state;
    make_default();
    replace_in_file("config.json", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5");
    replace_in_file("config.json", "\"full_attention\"]",
                    "\"full_attention\", \"linear_attention\"]");
    expect_refused("tensor model.language_model.layers.4.input_layernorm.weight is missing from "
                   "the 134 tensors");
    unlink(in_folder("model.safetensors"));
    expect_refused("has no *.safetensors file");
}

static void test_wrong_shape(void **state)
{
    (void)state;
    make_default();
    replace_in_file("config.json", "\"vocab_size\": 512", "\"vocab_size\": 513");
    expect_refused("embed_tokens.weight has shape [512, 256], expected [513, 256]");
}

static void test_broken_file(void **state)
{
    (void)state;
    make_default();
    assert_int_equal(truncate(in_folder("model.safetensors"), 100000), 0);
    expect_refused("is 100000 bytes long, but its header promises");
    write_text("model.safetensors", "version https://git-lfs.github.com/spec/v1\nsize 5\n");
    expect_refused("Git LFS pointer");
}

static void test_name_of_a_path(void **state)
{
    (void)state;
    make_default();
    char path[600];
    struct model *model = NULL;
    struct error error = {0};
    snprintf(path, sizeof path, "%s//", folder);
    assert_int_equal(model_open(&model, path, &error), 0);
    assert_string_equal(model->name, strrchr(folder, '/') + 1);
    model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),         cmocka_unit_test(test_tiny_linears),
        TEST_IN_FOLDER(test_short_prefix),   TEST_IN_FOLDER(test_a_log_f32),
        TEST_IN_FOLDER(test_tied),           TEST_IN_FOLDER(test_tied_with_head),
        TEST_IN_FOLDER(test_extras),         TEST_IN_FOLDER(test_shards),
        TEST_IN_FOLDER(test_index),          TEST_IN_FOLDER(test_unused),
        TEST_IN_FOLDER(test_twice),          TEST_IN_FOLDER(test_missing),
        TEST_IN_FOLDER(test_wrong_shape),    TEST_IN_FOLDER(test_broken_file),
        TEST_IN_FOLDER(test_name_of_a_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
