/* elpis-tiny's whole prefill through the kernels alone, launched in the order that the model's
 * equations give (spec qwen3_5.md 3), against the recorded residual stream after every layer.
 * What core/engine does with pieces, plans and states is tested there.
 */
#include "kernels.h"

#define EPS JIT_NUMBER("eps", 0x358637bd)

enum { HIDDEN = 256, BAND = 64 };

struct run {
    const struct model *model;
    u32 rows, padded, bits;
    struct jit_parameter size;
    dptr x, normed; /* f32 [padded, HIDDEN] */
};

static float value_of(const struct model_vector *vector, u64 i)
{
    const u8 *data = vector->data; /* in a mapped file: at any byte */
    float value;
    u16 half;
    if (vector->dtype == DTYPE_F32) {
        memcpy(&value, data + i * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, data + i * sizeof half, sizeof half);
    const u32 bits = (u32)half << 16;
    memcpy(&value, &bits, sizeof value);
    return vector->dtype == DTYPE_F16 ? half_value(half) : value;
}

static dptr vector_array(const struct model_vector *vector, float plus)
{
    float *values = malloc(vector->count * sizeof *values);
    for (u64 i = 0; i < vector->count; i++)
        values[i] = value_of(vector, i) + plus;
    const dptr array = array_new(vector->count * sizeof *values, values);
    free(values);
    return array;
}

static dptr rows_array(const struct run *run, u32 width)
{
    return array_new((size_t)run->padded * width * 4, NULL);
}

/* The f16 operand of one linear: x (and z of the gated norm) under `mode`. */
static dptr operand_of(const struct run *run, const struct model_linear *linear, const char *mode,
                       dptr x, dptr z, dptr weight)
{
    struct jit_kernel *kernel = KERNEL_OF("prefill_transform", JIT_NUMBER("width", linear->in),
                                          JIT_NUMBER("padded", linear->in_padded), run->size,
                                          JIT_TEXT("mode", mode), EPS, JIT_NUMBER("parts", 1));
    const dptr out = array_new((size_t)run->padded * linear->in_padded * 2, NULL);
    LAUNCH(kernel, x, z, weight, array_new(linear->in_padded * 2, linear->suh), 0, 0, out,
           strcmp(mode, "norm") == 0 ? run->normed : 0, run->rows);
    return out;
}

/* Raw sums of an EXL3 linear: f32 [padded, out_padded]. */
static dptr product_of(const struct run *run, const struct model_linear *linear, dptr operand)
{
    static const char *const names[] = {"3inst", "mcg", "mul1"};
    const u32 k = linear->in_padded, n = linear->out_padded;
    struct jit_kernel *decode = KERNEL_OF("prefill_weights", JIT_NUMBER("k", k), JIT_NUMBER("n", n),
                                          JIT_NUMBER("bits", linear->bits),
                                          JIT_TEXT("codebook", names[linear->codebook]));
    struct jit_kernel *gemm = KERNEL_OF("prefill_gemm", JIT_NUMBER("k", k), JIT_NUMBER("n", n),
                                        run->size);
    const dptr weights = array_new((size_t)k * n * 2, NULL), sums = rows_array(run, n);
    const dptr trellis = array_new((size_t)k * n / 8 * linear->bits, linear->trellis);
    pack_trellis(trellis, k, n, linear->bits);
    LAUNCH(decode, trellis, weights);
    LAUNCH(gemm, operand, weights, sums, run->rows);
    return sums;
}

static dptr signs_array(const u16 *signs, u32 count)
{
    return array_new(count * 2, signs);
}

static void finish(const struct run *run, const struct model_linear *linear, const char *mode,
                   dptr sums, dptr y)
{
    struct jit_kernel *kernel = KERNEL_OF("prefill_output", JIT_NUMBER("width", linear->out),
                                          JIT_NUMBER("padded", linear->out_padded), run->size,
                                          JIT_TEXT("mode", mode));
    LAUNCH(kernel, sums, signs_array(linear->svh, linear->out_padded), y, run->rows);
}

/* y = linear(norm(x)): f32 [padded, out]. */
static dptr normed_linear(const struct run *run, const struct model_linear *linear, dptr weight)
{
    const dptr y = rows_array(run, linear->out);
    finish(run, linear, "plain",
           product_of(run, linear, operand_of(run, linear, "norm", run->x, 0, weight)), y);
    return y;
}

static void attention_layer(const struct run *run, const struct model_layer *layer)
{
    const struct model_config *c = &run->model->config;
    u64 frequencies[32];
    const u32 pages[1] = {0};
    const dptr norm = vector_array(&layer->input_norm, 1);
    const dptr qg = normed_linear(run, &layer->q, norm), k = normed_linear(run, &layer->k, norm);
    const dptr v = normed_linear(run, &layer->v, norm),
               q = array_new((size_t)run->padded * c->q_heads * c->head_dim * 2, NULL);
    const dptr out = rows_array(run, c->q_heads * c->head_dim),
               table = array_new(sizeof pages, pages);
    dptr cache[4];
    for (u32 i = 0; i < 4; i++)
        cache[i] = array_new((size_t)256 * c->kv_heads * c->head_dim * 2, NULL);
    for (u32 i = 0; i < c->rotary_dims / 2; i++)
        frequencies[i] = rope_frequency(c->rope_theta, i, c->rotary_dims);
    const struct jit_parameter q_heads = JIT_NUMBER("q_heads", c->q_heads),
                               kv_heads = JIT_NUMBER("kv_heads", c->kv_heads);
    const struct jit_parameter head_dim = JIT_NUMBER("head_dim", c->head_dim),
                               bits = JIT_NUMBER("kv_bits", run->bits);
    struct jit_kernel *prepare = KERNEL_OF("prefill_attention_prepare", q_heads, kv_heads, head_dim,
                                           bits, run->size,
                                           JIT_NUMBER("rotary_dims", c->rotary_dims), EPS);
    struct jit_kernel *attend = KERNEL_OF("prefill_attention", q_heads, kv_heads, head_dim, bits,
                                          run->size);
    LAUNCH(prepare, qg, k, v, vector_array(&layer->q_norm, 1), vector_array(&layer->k_norm, 1),
           array_new(sizeof frequencies, frequencies), table, q, cache[0], cache[1], cache[2],
           cache[3], run->rows, 0);
    LAUNCH(attend, q, qg, cache[0], cache[1], cache[2], cache[3], table, out, run->rows, 0);
    finish(run, &layer->o, "add",
           product_of(run, &layer->o, operand_of(run, &layer->o, "plain", out, 0, 0)), run->x);
}

static dptr plain_weights(const struct model_linear *linear)
{
    return array_new((size_t)linear->in * linear->out * dtype_size(linear->weight_dtype),
                     linear->weight);
}

/* a | b: f32 [padded, 2 * heads]. */
static void gate_inputs(const struct run *run, const struct model_layer *layer, dptr y)
{
    const struct model_linear *a = &layer->in_a, *b = &layer->in_b;
    struct jit_kernel *kernel = KERNEL_OF("prefill_plain", JIT_NUMBER("k", a->in),
                                          JIT_NUMBER("n", a->out), JIT_NUMBER("parts", 2),
                                          JIT_NUMBER("stride", 2 * a->out), run->size,
                                          JIT_TEXT("dtype", dtype_name(a->weight_dtype)));
    LAUNCH(kernel, run->normed, plain_weights(a), plain_weights(b), y, run->rows);
}

static void gdn_layer(const struct run *run, const struct model_layer *layer)
{
    const struct model_config *c = &run->model->config;
    const u32 heads = c->gdn_v_heads, dim = c->gdn_v_dim, key_width = c->gdn_k_heads * c->gdn_k_dim;
    const struct jit_parameter k_heads = JIT_NUMBER("k_heads", c->gdn_k_heads),
                               v_heads = JIT_NUMBER("v_heads", heads);
    const dptr norm = vector_array(&layer->input_norm, 1);
    const dptr u = normed_linear(run, &layer->in_qkv, norm),
               z = normed_linear(run, &layer->in_z, norm);
    const dptr ab = rows_array(run, 2 * heads), beta = rows_array(run, heads),
               g = rows_array(run, heads);
    const dptr q = rows_array(run, key_width), k = rows_array(run, key_width),
               v = rows_array(run, heads * dim);
    const dptr solved = rows_array(run, heads * dim), keys = rows_array(run, heads * dim),
               o = rows_array(run, heads * dim);
    const dptr inner = rows_array(run, heads * BAND), decay = rows_array(run, heads * 2);
    gate_inputs(run, layer, ab);
    LAUNCH(KERNEL_OF("prefill_gates", v_heads, run->size), ab, vector_array(&layer->a_log, 0),
           vector_array(&layer->dt_bias, 0), beta, g, run->rows);
    LAUNCH(KERNEL_OF("prefill_conv", k_heads, v_heads, run->size), u, vector_array(&layer->conv, 0),
           array_new((size_t)3 * layer->in_qkv.out * 4, NULL), q, k, v, run->rows);
    LAUNCH(KERNEL_OF("prefill_gdn_chunk", k_heads, v_heads, run->size), q, k, v, beta, g, solved,
           keys, inner, decay, run->rows);
    LAUNCH(KERNEL_OF("prefill_gdn_scan", k_heads, v_heads, run->size), q, k, solved, keys, inner,
           decay, array_new((size_t)heads * dim * dim * 4, NULL), o, run->rows);
    const dptr operand = operand_of(run, &layer->out, "gdn", o, z,
                                    vector_array(&layer->gdn_norm, 0));
    finish(run, &layer->out, "add", product_of(run, &layer->out, operand), run->x);
}

static void mlp(const struct run *run, const struct model_layer *layer)
{
    const struct model_linear *down = &layer->down;
    const u32 n = layer->gate.out_padded;
    const dptr norm = vector_array(&layer->post_norm, 1);
    const dptr gate = product_of(run, &layer->gate,
                                 operand_of(run, &layer->gate, "norm", run->x, 0, norm));
    const dptr up = product_of(run, &layer->up,
                               operand_of(run, &layer->up, "norm", run->x, 0, norm));
    const dptr operand = array_new((size_t)run->padded * n * 2, NULL);
    LAUNCH(KERNEL_OF("prefill_middle", JIT_NUMBER("n", n), run->size), gate, up,
           signs_array(layer->gate.svh, n), signs_array(layer->up.svh, n),
           signs_array(down->suh, n), operand, run->rows);
    finish(run, down, "add", product_of(run, down, operand), run->x);
}

static void check_model(u32 bits, const char *fixture, double limit)
{
    struct tensor_file *file = NULL;
    struct model *model = NULL;
    struct error error = {0};
    need(tensor_file_open(&file, fixture, &error), &error);
    need(model_open(&model, "tests/models/elpis-tiny", &error), &error);
    const struct tensor *ids = tensor_file_find(file, "ids"),
                        *hidden = tensor_file_find(file, "hidden");
    const u32 rows = (u32)ids->count, layers = model->config.layers;
    struct run run = {
        model, rows, (rows + BAND - 1) / BAND * BAND, bits, JIT_NUMBER("rows_max", 256), 0, 0};
    float *x = malloc((size_t)rows * HIDDEN * 4);
    double *wanted = malloc((size_t)rows * HIDDEN * 8);
    for (u32 i = 0; i < rows * HIDDEN; i++) {
        const u64 id = ids->dtype == DTYPE_I64 ? (u64)((const i64 *)ids->data)[i / HIDDEN]
                                               : ((const u32 *)ids->data)[i / HIDDEN];
        x[i] = value_of(&model->embedding, id * HIDDEN + i % HIDDEN);
    }
    for (u32 l = 0; l < layers; l++) {
        run.x = rows_array(&run, HIDDEN);
        run.normed = rows_array(&run, HIDDEN);
        array_write(run.x, x, (size_t)rows * HIDDEN * 4);
        (model->layers[l].attention ? attention_layer : gdn_layer)(&run, model->layers + l);
        mlp(&run, model->layers + l);
        float *got = array_read(run.x, (size_t)run.padded * HIDDEN * 4);
        assert_zeros(got + rows * HIDDEN, (run.padded - rows) * HIDDEN);
        memcpy(x, got, (size_t)rows * HIDDEN * 4);
        for (u32 i = 0; i < rows * HIDDEN; i++)
            wanted[i] =
                ((const float *)hidden->data)[(i / HIDDEN * layers + l) * HIDDEN + i % HIDDEN];
        assert_close(x, wanted, rows * HIDDEN, limit);
        free(got);
        kernels_clear(NULL);
    }
    free(x), free(wanted);
    model_close(model);
    tensor_file_close(file);
}

static void hidden_of_the_plain_cache(void **state)
{
    (void)state;
    check_model(16, "tests/data/tiny_forward_kv0_2.safetensors", 4e-4);
}

static void hidden_of_the_coded_cache(void **state)
{
    (void)state;
    check_model(3, "tests/data/tiny_forward_kv3_2.safetensors", 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(hidden_of_the_plain_cache, kernels_clear),
        cmocka_unit_test_teardown(hidden_of_the_coded_cache, kernels_clear),
    };
    return cmocka_run_group_tests(tests, kernels_open, kernels_close);
}
