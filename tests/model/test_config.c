/* test_config.c - config.json and generation_config.json: what is read, and every value
 * that is refused, by changing one text of a good file.
 */
#include "model/support.h"

static void change_config(const char *from, const char *to)
{
    replace_in_file("config.json", from, to);
}

/* A model whose config.json has one text changed is refused with these words. */
static void expect_config_refused(const char *from, const char *to, const char *words)
{
    make_default();
    change_config(from, to);
    expect_refused(words);
}

static void test_reads_flat(void **state)
{
    (void)state;
    make_default();
    struct model *model = open_good();
    const struct model_config *config = &model->config;
    assert_string_equal(config->architecture, "Qwen3_5ForCausalLM");
    assert_int_equal(config->hidden, 256);
    assert_int_equal(config->intermediate, 384);
    assert_int_equal(config->layers, 4);
    assert_int_equal(config->vocab, 512);
    assert_int_equal(config->q_heads, 2);
    assert_int_equal(config->kv_heads, 1);
    assert_int_equal(config->head_dim, 256);
    assert_int_equal(config->rotary_dims, 64);
    assert_true(config->rope_theta == 1e7);
    assert_int_equal(config->gdn_k_heads, 1);
    assert_int_equal(config->gdn_v_heads, 2);
    assert_int_equal(config->gdn_k_dim, 128);
    assert_int_equal(config->gdn_v_dim, 128);
    assert_int_equal(config->conv_taps, 4);
    assert_true(config->norm_eps == 1e-6);
    assert_int_equal(config->max_positions, 262144);
    assert_false(config->tie_embeddings);
    assert_int_equal(config->eos_count, 2);
    assert_int_equal(config->eos[0], 510);
    assert_int_equal(config->eos[1], 509);
    assert_true(config->do_sample);
    assert_true(config->temperature == 0.7);
    assert_true(config->top_p == 0.8);
    assert_int_equal(config->top_k, 20);
    model_close(model);
}

static void test_reads_nested(void **state)
{
    (void)state;
    struct make_options options;
    make_defaults(&options, folder);
    options.nested = true;
    make_good(&options);
    struct model *model = open_good();
    assert_string_equal(model->config.architecture, "Qwen3_5ForConditionalGeneration");
    assert_int_equal(model->config.hidden, 256);
    assert_int_equal(model->config.layers, 4);
    model_close(model);
    change_config("\"num_hidden_layers\": 4", "\"num_hidden_layers\": \"4\"");
    expect_refused("text_config.num_hidden_layers is a string, expected an integer");
}

static void test_accepts_other_forms(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
    } good[] = {
        {"\"head_dim\": 256,", ""},
        {"\"hidden_act\": \"silu\",", ""},
        {"\"hidden_act\": \"silu\",", "\"hidden_act\": null,"},
        {"\"output_gate_type\": \"swish\"", "\"output_gate_type\": \"silu\""},
        {"\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000,",
         "\"rope_theta\": 1e7, \"rope_scaling\": {\"type\": \"default\","},
        {" \"partial_rotary_factor\": 0.25,", ""},
        {"\"hidden_act\"", "\"attention_dropout\": 0.5, \"unknown_key\": {}, \"hidden_act\""},
        {"\"linear_attention\", \"linear_attention\", \"linear_attention\", \"full_attention\"]",
         "\"linear_attention\", \"linear_attention\", \"linear_attention\", \"full_attention\"], "
         "\"num_experts\": 0"},
        {",\n\"layer_types\": [\"linear_attention\", \"linear_attention\", \"linear_attention\", "
         "\"full_attention\"]",
         ""},
    };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        make_default();
        change_config(good[i].from, good[i].to);
        model_close(open_good());
    }
}

static void test_layer_types(void **state)
{
    (void)state;
    make_default();
    struct model *model = open_good();
    for (u32 i = 0; i < 4; i++)
        assert_int_equal(model->layers[i].attention, i == 3);
    model_close(model);
    expect_config_refused("\"full_attention\"]", "\"linear_attention\"]",
                          "linear_attn.in_proj_qkv is missing");
    expect_config_refused("\"full_attention\"]", "\"sliding_attention\"]",
                          "layer_types has \"sliding_attention\" for layer 3");
    expect_config_refused("\"full_attention\"]", "7]", "layer_types has \"an integer\"");
    expect_config_refused(", \"full_attention\"]", "]",
                          "layer_types is a list of 3, expected a list of num_hidden_layers = 4");
}

static void test_refuses_values(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *words;
    } bad[] = {
        {"[\"Qwen3_5ForCausalLM\"]", "[\"LlamaForCausalLM\"]",
         "architectures is \"LlamaForCausalLM\", supported: \"Qwen3_5ForConditionalGeneration\", "
         "\"Qwen3_5ForCausalLM\""},
        {"[\"Qwen3_5ForCausalLM\"]", "\"Qwen3_5ForCausalLM\"", "must be a list of one string"},
        {"[\"Qwen3_5ForCausalLM\"]", "[\"two\\nlines\"]", "architectures is \"two?lines\""},
        {"[\"Qwen3_5ForCausalLM\"]", "[]", "must be a list of one string"},
        {"\"architectures\": [\"Qwen3_5ForCausalLM\"],", "", "architectures must be a list"},
        {"\"silu\"", "\"gelu\"", "hidden_act is \"gelu\", supported: \"silu\""},
        {"\"silu\"", "1", "hidden_act is an integer, expected a string"},
        {"\"attention_bias\": false", "\"attention_bias\": true",
         "attention_bias is true, only false is supported"},
        {"\"attention_bias\": false", "\"attention_bias\": 0",
         "attention_bias is an integer, expected true or false"},
        {"\"attn_output_gate\": true", "\"attn_output_gate\": false",
         "attn_output_gate is false, only true is supported"},
        {"\"swish\"", "\"sigmoid\"", "output_gate_type is \"sigmoid\", supported: \"swish\""},
        {"\"float32\"", "\"bfloat16\"", "mamba_ssm_dtype is \"bfloat16\""},
        {"\"hidden_act\"", "\"num_experts\": 8, \"hidden_act\"", "only dense models"},
        {"\"hidden_act\"", "\"use_sliding_window\": true, \"hidden_act\"", "use_sliding_window"},
        {"\"head_dim\": 256", "\"head_dim\": 128", "head_dim is 128, only 256 is supported"},
        {"\"linear_key_head_dim\": 128", "\"linear_key_head_dim\": 64",
         "linear_key_head_dim is 64, only 128 is supported"},
        {"\"linear_value_head_dim\": 128,", "", "linear_value_head_dim is missing"},
        {"\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 3",
         "linear_conv_kernel_dim is 3, only 4 is supported"},
        {"\"hidden_size\": 256", "\"hidden_size\": 192", "hidden_size is 192, expected a multiple"},
        {"\"hidden_size\": 256", "\"hidden_size\": -256", "hidden_size is -256, supported are"},
        {"\"hidden_size\": 256", "\"hidden_size\": 256.0", "hidden_size is a fraction, expected"},
        {"\"hidden_size\": 256,", "", "hidden_size is missing, expected an integer"},
        {"\"intermediate_size\": 384", "\"intermediate_size\": 200",
         "intermediate_size is 200, expected a multiple of 128"},
        {"\"intermediate_size\": 384", "\"intermediate_size\": 37889",
         "intermediate_size is 37889, supported are 1 to 37888"},
        {"\"num_attention_heads\": 2", "\"num_attention_heads\": 9",
         "num_attention_heads is 9 with num_key_value_heads 1, expected 1 to 8 query heads"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 0", "num_key_value_heads is 0"},
        {"\"linear_num_key_heads\": 1", "\"linear_num_key_heads\": 3",
         "linear_num_value_heads is 2, expected a multiple of linear_num_key_heads, which is 3"},
        {"1e-06", "0", "rms_norm_eps must be a number between 0 and 1, found 0"},
        {"1e-06", "\"1e-06\"", "rms_norm_eps is a string, expected a number"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"",
         "rope_parameters.rope_type is \"yarn\", supported: \"default\""},
        {"\"rope_theta\": 10000000", "\"rope_theta\": 0", "rope_theta must be a number"},
        {"\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 1",
         "partial_rotary_factor is 1, only 0.25 is supported"},
        {"\"quant_method\": \"exl3\"", "\"quant_method\": \"gptq\"",
         "quantization_config.quant_method is \"gptq\", supported: \"exl3\""},
        {"\"max_position_embeddings\": 262144", "\"max_position_embeddings\": 0",
         "max_position_embeddings is 0"},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 1",
         "tie_word_embeddings is an integer"},
        {"\"vocab_size\": 512", "\"vocab_size\": 99999999", "vocab_size is 99999999, supported"},
        {"\"hidden_act\"", "\"hidden_act\": \"silu\", \"hidden_act\"", "duplicate object key"},
        {"{\n\"architectures\"", "[{\n\"architectures\"", "is not valid JSON at line"},
        {"\"model_type\": \"qwen3_5\"", "\"model_type\": \"\xff\"", "is not valid JSON"},
        {"\"model_type\": \"qwen3_5\"", "\"text_config\": 3", "text_config is an integer"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        expect_config_refused(bad[i].from, bad[i].to, bad[i].words);
}

static void test_files_missing(void **state)
{
    (void)state;
    expect_refused("has no config.json: expected a model directory");
    write_text("config.json", "[]");
    expect_refused("config.json holds a list, expected a JSON object");
    write_text("config.json", "");
    expect_refused("config.json is not valid JSON");
    struct model *model = NULL;
    struct error error = {0};
    assert_int_equal(model_open(&model, in_folder("nothing"), &error), -1);
    expect_error(&error, ERROR_MODEL, "is not a folder");
}

/* ---- end tokens: generation_config, else config and both ends of the tokenizer */

static void expect_ends(const u32 *ids, u32 count)
{
    struct model *model = open_good();
    assert_int_equal(model->config.eos_count, count);
    for (u32 i = 0; i < count; i++)
        assert_int_equal(model->config.eos[i], ids[i]);
    model_close(model);
}

static void test_ends(void **state)
{
    (void)state;
    make_default();
    change_config("\"vocab_size\"", "\"eos_token_id\": 7, \"vocab_size\"");
    expect_ends((u32[]){510, 509}, 2);
    write_text("generation_config.json", "{\"eos_token_id\": 5}");
    expect_ends((u32[]){5}, 1);
    write_text("generation_config.json", "{}");
    expect_ends((u32[]){7}, 1);
    unlink(in_folder("generation_config.json"));
    write_text("tokenizer.json", "{\"added_tokens\": [{\"id\": 8, \"content\": \"<|im_end|>\"}, "
                                 "{\"id\": 7, \"content\": \"<|endoftext|>\"}]}");
    expect_ends((u32[]){7, 8}, 2);
    write_text("tokenizer_config.json",
               "{\"added_tokens_decoder\": {\"9\": {\"content\": \"<|im_end|>\"}}}");
    expect_ends((u32[]){7, 9, 8}, 3);
}

static void test_ends_refused(void **state)
{
    (void)state;
    make_default();
    write_text("generation_config.json", "{\"eos_token_id\": 512}");
    expect_refused("eos_token_id 512 is not below vocab_size, which is 512");
    write_text("generation_config.json", "{\"eos_token_id\": [1,2,3,4,5,6,7,8,9]}");
    expect_refused("eos_token_id lists more than the 8 ids");
    write_text("generation_config.json", "{\"eos_token_id\": \"x\"}");
    expect_refused("eos_token_id is a string, expected an integer");
    write_text("generation_config.json", "{}");
    expect_refused("names no end token");
}

static void test_sampling_defaults(void **state)
{
    (void)state;
    make_default();
    write_text("generation_config.json", "{\"eos_token_id\": 5}");
    struct model *model = open_good();
    assert_true(model->config.do_sample);
    assert_true(model->config.temperature == 1);
    assert_true(model->config.top_p == 1);
    assert_int_equal(model->config.top_k, 0);
    model_close(model);
    write_text("generation_config.json", "{\"eos_token_id\": 5, \"top_p\": 0}");
    expect_refused("top_p is 0, expected above 0");
    write_text("generation_config.json", "{\"eos_token_id\": 5, \"temperature\": -1}");
    expect_refused("temperature is -1");
    write_text("generation_config.json", "{\"eos_token_id\": 5, \"top_k\": 0.5}");
    expect_refused("top_k is a fraction");
    write_text("generation_config.json", "{\"eos_token_id\": 5");
    expect_refused("generation_config.json is not valid JSON");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(test_reads_flat),
        TEST_IN_FOLDER(test_reads_nested),
        TEST_IN_FOLDER(test_accepts_other_forms),
        TEST_IN_FOLDER(test_layer_types),
        TEST_IN_FOLDER(test_refuses_values),
        TEST_IN_FOLDER(test_files_missing),
        TEST_IN_FOLDER(test_ends),
        TEST_IN_FOLDER(test_ends_refused),
        TEST_IN_FOLDER(test_sampling_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
