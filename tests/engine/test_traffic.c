/* test_traffic.c - the bytes of a pass (core/engine/traffic.c): elpis-tiny and its draft against
 * sums made by hand, the 27B's geometry against the inventory of the reference (elpis.md 11). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/traffic.h"

#define MODEL "tests/models/elpis-tiny"
#define DRAFT "tests/models/elpis-tiny-dflash2"

static struct model *model;
static struct draft_model *draft;

static int open_models(void **state)
{
    (void)state;
    struct error error = {0};
    if (model_open(&model, MODEL, &error) || draft_open(&draft, DRAFT, model, 0, &error)) {
        print_error("%s\n", error.text);
        return -1;
    }
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    draft_close(draft);
    model_close(model);
    return 0;
}

/* elpis-tiny: hidden 256, intermediate 768, 6 GDN layers of 2 k and 6 v heads, 2 attention layers
 * of 6 q and 1 kv heads, vocabulary 4096; 4-bit matrices (in x out / 2 bytes, and 2 a sign of each
 * side), a 6-bit head, vectors in f32.
 *
 *   GDN layer      in_qkv 256 x 1280  163,840 + 3,072      in_z, out 256 x 768   2 x 100,352
 *                  a, b 2 x 6 x 256 f16  6,144             conv 1280 x 4  20,480
 *                  A_log, dt_bias  48, norm 128  512       two norms  2,048
 *                  gate, up, down  3 x 100,352                              = 697,904
 *   attention      q 256 x 3072  393,216 + 6,656           k, v 256 x 256  2 x 33,792
 *                  o 1536 x 256  196,608 + 3,584           four norms 256  4,096
 *                  gate, up, down  301,056                                  = 972,800
 *   head           256 x 4096 x 6 / 8  786,432 + 8,704     last norm  1,024
 */
enum {
    TINY_WEIGHTS = 6 * 697904 + 2 * 972800 + 786432 + 8704 + 1024,
    /* 2 layers, keys and values, 256 dims: 3 bits each and 8 scales of 2 bytes */
    TINY_TOKEN = 2 * 2 * (96 + 16),
    /* 6 layers: 6 heads of 128 x 128 f32, a window of 3 x 1280 f32 */
    TINY_STATE = 6 * (6 * 128 * 128 + 3 * 1280) * 4,
    /* 6 layers: 1280 before and after the convolution, a and b of 6 heads, f32 */
    TINY_STATICS = 6 * (2 * 1280 + 2 * 6) * 4,
    TINY_LOGITS = 2 * 4096 * 4,
    TINY_TAPS = 3 * 256 * 4,
};

static void expect(struct traffic found, u64 weights, u64 cache, u64 state, u64 rows,
                   u64 embeddings)
{
    assert_int_equal(found.weights, weights);
    assert_int_equal(found.cache, cache);
    assert_int_equal(found.state, state);
    assert_int_equal(found.rows, rows);
    assert_int_equal(found.embeddings, embeddings);
    assert_int_equal(traffic_bytes(found), weights + cache + state + rows);
}

static void a_verify(void **state)
{
    (void)state;
    const struct traffic_case of = {model, NULL, 3, 1000}, with = {model, draft, 3, 1000},
                              halves = {model, NULL, 16, 1000}, start = {model, NULL, 3, 0};
    assert_int_equal(TINY_WEIGHTS, 6929184);
    expect(traffic_verify(&of, 8, false), TINY_WEIGHTS, 1008 * TINY_TOKEN, TINY_STATE,
           8 * (TINY_LOGITS + TINY_STATICS), 8 * 512);
    expect(traffic_verify(&with, 8, false), TINY_WEIGHTS, 1008 * TINY_TOKEN, TINY_STATE,
           8 * (TINY_LOGITS + TINY_STATICS + TINY_TAPS), 8 * 512);
    expect(traffic_verify(&of, 1, true), TINY_WEIGHTS, 1001 * TINY_TOKEN, 2 * TINY_STATE,
           TINY_LOGITS, 512);
    /* f16 keys and values: 2 layers x 2 x 256 x 2 bytes */
    expect(traffic_verify(&halves, 1, false), TINY_WEIGHTS, 1001 * 2048, TINY_STATE,
           TINY_LOGITS + TINY_STATICS, 512);
    expect(traffic_verify(&start, 1, false), TINY_WEIGHTS, TINY_TOKEN, TINY_STATE,
           TINY_LOGITS + TINY_STATICS, 512);
}

/* The draft: hidden 256, intermediate 512, 2 layers of 4 q and 1 kv heads of 128, window 128,
 * selector of rank 64, block of 8.
 *
 *   layer      q, o 256 x 512  2 x 67,072        k, v 256 x 128  2 x 17,152
 *              gate, up, down  3 x 67,072        projections 64 x 256 f16  2 x 32,768
 *              norms 2 x 1,024 + 2 x 512         convolutions 2 x 2 x 256 f32  2 x 4,096  = 446,464
 *   fc 768 x 256  98,304 + 2,048       selector 256 x 64 f16  32,768       norms  2 x 1,024
 */
static void a_draft(void **state)
{
    (void)state;
    const struct traffic_case far = {model, draft, 3, 1000}, near = {model, draft, 3, 50};
    const u64 weights = 2 * 446464 + 32768 + 1024 + 786432 + 8704, ring = 2 * 128 * 2;
    /* successors of 7 x 16 candidates, predecessors of 1 + 6 x 16 tokens */
    const u64 rows = 8 * TINY_LOGITS + (112 + 97) * 64 * 2;
    expect(traffic_draft(&far), weights, 2 * 128 * ring, 0, rows, 8 * 512);
    expect(traffic_draft(&near), weights, 2 * 50 * ring, 0, rows, 8 * 512);
    /* a reduced head of three blocks: 384 columns */
    u32 blocks[] = {0, 3, 31};
    draft->head_blocks = blocks;
    draft->head_block_count = 3;
    expect(traffic_draft(&far), weights - 786432 - 8704 + 256 * 384 * 6 / 8 + 2 * (256 + 384),
           2 * 128 * ring, 0, 8 * 2 * 384 * 4 + 209 * 128, 8 * 512);
    draft->head_blocks = NULL;
    draft->head_block_count = 0;
}

static void a_commit(void **state)
{
    (void)state;
    const struct traffic_case of = {model, NULL, 3, 1000}, with = {model, draft, 3, 1000};
    expect(traffic_commit(&of, 4), 0, 2 * 4 * TINY_TOKEN, 2 * TINY_STATE, 4 * TINY_STATICS, 0);
    expect(traffic_commit(&with, 4), 98304 + 2048 + 1024 + 2 * (2 * 17152 + 512),
           2 * 4 * TINY_TOKEN + 4 * 2 * 512, 2 * TINY_STATE, 4 * (TINY_STATICS + TINY_TAPS), 0);
    const struct traffic sum = traffic_sum(traffic_commit(&of, 1), traffic_verify(&of, 8, false));
    expect(sum, TINY_WEIGHTS, 1010 * TINY_TOKEN, 3 * TINY_STATE,
           8 * (TINY_LOGITS + TINY_STATICS) + TINY_STATICS, 8 * 512);
}

/* ---- the 27B, of which only the shapes are needed */

static struct model_linear matrix(u32 in, u32 out, u32 bits)
{
    return (struct model_linear){LINEAR_EXL3, "", in, out, in, out, bits, CODEBOOK_MUL1};
}

static struct model_vector vector(u64 count)
{
    return (struct model_vector){DTYPE_BF16, count, NULL};
}

static void fill_layer(struct model_layer *layer, u32 index)
{
    const struct model_linear small = {
        .kind = LINEAR_PLAIN, .name = "", .in = 5120, .out = 48, .weight_dtype = DTYPE_F16};
    layer->attention = index % 4 == 3;
    layer->input_norm = layer->post_norm = vector(5120);
    layer->gate = layer->up = matrix(5120, 17408, 4);
    layer->down = matrix(17408, 5120, 4);
    if (layer->attention) {
        layer->q = matrix(5120, 12288, 4);
        layer->k = layer->v = matrix(5120, 1024, 4);
        layer->o = matrix(6144, 5120, 4);
        layer->q_norm = layer->k_norm = vector(256);
        return;
    }
    layer->in_qkv = matrix(5120, 10240, 4);
    layer->in_z = matrix(5120, 6144, 4);
    layer->out = matrix(6144, 5120, 4);
    layer->in_a = layer->in_b = small;
    layer->conv = vector(10240 * 4);
    layer->a_log = layer->dt_bias = vector(48);
    layer->gdn_norm = vector(128);
}

static void the_27b(void **state)
{
    (void)state;
    struct model_layer layers[64] = {{0}};
    struct model large = {.config = {.hidden = 5120,
                                     .intermediate = 17408,
                                     .layers = 64,
                                     .vocab = 248320,
                                     .q_heads = 24,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .gdn_k_heads = 16,
                                     .gdn_v_heads = 48,
                                     .gdn_k_dim = 128,
                                     .gdn_v_dim = 128,
                                     .conv_taps = 4},
                          .embedding = vector(248320ull * 5120),
                          .layers = layers,
                          .final_norm = vector(5120),
                          .head = matrix(5120, 248320, 6)};
    for (u32 i = 0; i < 64; i++)
        fill_layer(&layers[i], i);
    const struct traffic_case at_1k = {&large, NULL, 3, 1024 - 8}, none = {&large, NULL, 3, 0};
    const struct traffic found = traffic_verify(&at_1k, 8, false);
    /* MLP, GDN linears, attention linears, head, and a and b of 48 layers, as in the inventory;
     * then the vectors, in f32 here */
    const u64 linears = 8565030912 + 2771877888 + 840171520 + 954055680 + 48 * 2 * 491520;
    const u64 vectors = 48 * (163840 + 2 * 192 + 512) + 16 * 2048 + 64 * 2 * 20480 + 20480;
    assert_int_equal(found.weights, linears + vectors);
    assert_int_equal(found.cache, 1024 * 14336);
    assert_int_equal(found.state, 48 * (3145728 + 122880));
    assert_true(traffic_bytes(found) > 13.35e9 && traffic_bytes(found) < 13.45e9);
    assert_int_equal(traffic_verify(&none, 1, false).cache, 14336);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_verify),
        cmocka_unit_test(a_draft),
        cmocka_unit_test(a_commit),
        cmocka_unit_test(the_27b),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
