/* test_linears.c - linears from their tensors: K and codebooks, old sign bits, padding,
 * plain weights, and what is refused. Files are written tensor by tensor beside a model
 * whose other tensors are good.
 */
#include "model/support.h"

#define PREFIX "model.language_model.layers.0."

/* Rewrites the folder's model without tensor `gone` (or NULL) and with `extra` tensors. */
static void rewrite(const char *gone, const struct tensor *extra, size_t extra_count)
{
    struct tensor_file *file = NULL;
    struct error error = {0};
    struct tensor_writer *writer = tensor_writer_create();
    assert_int_equal(tensor_file_open(&file, in_folder("model.safetensors"), &error), 0);
    bool found = gone == NULL;
    for (size_t i = 0; i < tensor_file_count(file); i++) {
        const struct tensor *tensor = tensor_file_at(file, i);
        bool drop = gone && strcmp(tensor->name, gone) == 0;
        found |= drop;
        if (!drop)
            tensor_writer_add(writer, tensor->name, tensor->dtype, tensor->rank, tensor->shape,
                              tensor->data);
    }
    for (size_t i = 0; i < extra_count; i++)
        tensor_writer_add(writer, extra[i].name, extra[i].dtype, extra[i].rank, extra[i].shape,
                          extra[i].data);
    assert_true(found);
    if (tensor_writer_write(writer, in_folder("model.safetensors"), &error) < 0)
        fail_msg("%s", error.text);
    tensor_writer_destroy(writer);
    tensor_file_close(file);
}

static void replace(const char *name, enum dtype dtype, u32 rank, u64 a, u64 b, u64 c)
{
    struct tensor tensor = {.name = name, .dtype = dtype, .rank = rank, .shape = {a, b, c}};
    rewrite(name, &tensor, 1);
}

static void add(const char *name, enum dtype dtype, u32 rank, u64 a, u64 b)
{
    struct tensor tensor = {.name = name, .dtype = dtype, .rank = rank, .shape = {a, b}};
    rewrite(NULL, &tensor, 1);
}

static void test_bits_and_codebooks(void **state)
{
    (void)state;
    struct make_options options;
    make_defaults(&options, folder);
    options.bit_count = 8;
    for (u32 i = 0; i < 8; i++)
        options.bits[i] = i + 1;
    options.codebook_count = 3;
    options.codebooks[0] = CODEBOOK_3INST;
    options.codebooks[1] = CODEBOOK_MCG;
    options.codebooks[2] = CODEBOOK_MUL1;
    make_good(&options);
    struct model *model = open_good();
    const struct model_layer *gdn = &model->layers[0], *next = &model->layers[1];
    const struct model_linear *made[] = {&gdn->in_qkv,  &gdn->in_z,  &gdn->out,
                                         &gdn->gate,    &gdn->up,    &gdn->down,
                                         &next->in_qkv, &next->in_z, &next->out};
    for (u32 i = 0; i < COUNT_OF(made); i++) {
        assert_int_equal(made[i]->kind, LINEAR_EXL3);
        assert_int_equal(made[i]->bits, i % 8 + 1);
        assert_int_equal(made[i]->codebook, options.codebooks[i % 3]);
        assert_int_equal(made[i]->in_padded % 128, 0);
    }
    assert_string_equal(gdn->in_qkv.name, PREFIX "linear_attn.in_proj_qkv");
    assert_int_equal(gdn->in_qkv.in, 256);
    assert_int_equal(gdn->in_qkv.out, 512);
    assert_int_equal(model->head.bits, 6);
    model_close(model);
}

static void test_padding(void **state)
{
    (void)state;
    struct make_options options;
    make_defaults(&options, folder);
    options.vocab = 1000;
    make_good(&options);
    struct model *model = open_good();
    assert_int_equal(model->head.out, 1000);
    assert_int_equal(model->head.out_padded, 1024);
    model_close(model);
}

static u16 half_at(const u16 *halves, size_t index)
{
    u16 value;
    memcpy(&value, (const char *)halves + 2 * index, sizeof value);
    return value;
}

static void test_old_signs(void **state)
{
    (void)state;
    struct make_options options;
    make_defaults(&options, folder);
    options.old_signs = true;
    make_good(&options);
    struct model *model = open_good();
    const struct model_linear *linear = &model->layers[0].gate;
    struct tensor_file *file = NULL;
    struct error error = {0};
    assert_int_equal(tensor_file_open(&file, in_folder("model.safetensors"), &error), 0);
    const u8 *su = tensor_file_find(file, PREFIX "mlp.gate_proj.su")->data;
    const u8 *sv = tensor_file_find(file, PREFIX "mlp.gate_proj.sv")->data;
    for (u32 i = 0; i < linear->in_padded; i++) {
        u32 word = (u32)su[i / 16 * 2] | (u32)su[i / 16 * 2 + 1] << 8;
        assert_int_equal(half_at(linear->suh, i), word >> (i % 16) & 1 ? 0xbc00 : 0x3c00);
    }
    for (u32 i = 0; i < linear->out_padded; i++)
        assert_int_equal(half_at(linear->svh, i), sv[i / 8] >> (i % 8) & 1 ? 0xbc00 : 0x3c00);
    tensor_file_close(file);
    model_close(model);
}

static void test_plain(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        struct make_options options;
        make_defaults(&options, folder);
        options.plain = true;
        options.plain_dtype = dtypes[i];
        make_good(&options);
        struct model *model = open_good();
        assert_int_equal(model->layers[3].q.kind, LINEAR_PLAIN);
        assert_int_equal(model->layers[3].q.weight_dtype, dtypes[i]);
        assert_int_equal(model->layers[3].q.in_padded, 256);
        assert_int_equal(model->layers[3].q.out_padded, 1024);
        assert_int_equal(model->head.kind, LINEAR_PLAIN);
        model_close(model);
    }
}

static void expect_linear_refused(const char *words)
{
    expect_refused(words);
    make_default();
}

static void test_refused(void **state)
{
    (void)state;
    make_default();
    replace(PREFIX "mlp.gate_proj.trellis", DTYPE_I32, 3, 16, 24, 64);
    expect_linear_refused("mlp.gate_proj.trellis has dtype I32, expected I16");
    replace(PREFIX "mlp.gate_proj.trellis", DTYPE_I16, 3, 16, 24, 60);
    expect_linear_refused("has shape [16, 24, 60], expected [k/16, n/16, 16 K] with K from 1 to 8");
    replace(PREFIX "mlp.gate_proj.trellis", DTYPE_I16, 3, 16, 24, 144);
    expect_linear_refused("has shape [16, 24, 144], expected [k/16");
    replace(PREFIX "mlp.gate_proj.trellis", DTYPE_I16, 2, 16, 24, 0);
    expect_linear_refused("has shape [16, 24], expected [k/16");
    replace(PREFIX "mlp.gate_proj.trellis", DTYPE_I16, 3, 16, 32, 64);
    expect_linear_refused(
        "has shape [16, 32, 64], expected [16, 24, 64] for a linear of 256 x 384");
    replace(PREFIX "mlp.gate_proj.suh", DTYPE_F16, 1, 128, 0, 0);
    expect_linear_refused("gate_proj.suh has shape [128], expected [256]");
    replace(PREFIX "mlp.gate_proj.svh", DTYPE_BF16, 1, 384, 0, 0);
    expect_linear_refused("gate_proj.svh has dtype BF16, expected F16");
    rewrite(PREFIX "mlp.gate_proj.suh", NULL, 0);
    expect_linear_refused("gate_proj.suh is missing");
    rewrite(PREFIX "mlp.gate_proj.trellis", NULL, 0);
    expect_linear_refused("linear " PREFIX "mlp.gate_proj is missing: neither");
    add(PREFIX "mlp.gate_proj.mcg", DTYPE_I32, 0, 0, 0);
    expect_linear_refused("has both mul1 and mcg, which select different codebooks");
    replace(PREFIX "mlp.gate_proj.mul1", DTYPE_I32, 1, 2, 0, 0);
    expect_linear_refused("gate_proj.mul1 is I32 of 2 elements, expected one I32");
    add(PREFIX "mlp.gate_proj.bias", DTYPE_F16, 1, 384, 0);
    expect_linear_refused("gate_proj.bias: a bias is not supported");
    add(PREFIX "mlp.gate_proj.weight", DTYPE_F16, 2, 384, 256);
    expect_linear_refused("gate_proj has both weight and trellis");
    add(PREFIX "mlp.gate_proj.su", DTYPE_I16, 1, 16, 0);
    expect_linear_refused("gate_proj has both suh and su, expected one");
    replace(PREFIX "linear_attn.in_proj_a.weight", DTYPE_F16, 2, 256, 2, 0);
    expect_linear_refused("in_proj_a.weight has shape [256, 2], expected [2, 256]");
    replace(PREFIX "linear_attn.in_proj_a.weight", DTYPE_I16, 2, 2, 256, 0);
    expect_linear_refused("in_proj_a.weight has dtype I16, expected F16, BF16, F32");
    add(PREFIX "linear_attn.in_proj_a.trellis", DTYPE_I16, 1, 16, 0);
    expect_linear_refused("in_proj_a is quantised, expected a plain weight");
    add(PREFIX "linear_attn.in_proj_b.bias", DTYPE_F16, 1, 2, 0);
    expect_linear_refused("in_proj_b.bias: a bias is not supported");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(test_bits_and_codebooks),
        TEST_IN_FOLDER(test_padding),
        TEST_IN_FOLDER(test_old_signs),
        TEST_IN_FOLDER(test_plain),
        TEST_IN_FOLDER(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
