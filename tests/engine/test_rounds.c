/* test_rounds.c - verify and commit of token trees, to the bit (core/engine/round.c, decode.c).
 *
 * Random trees of random tokens: the logits of every row are those of plain decoding at its path.
 * Scripted rounds: what they commit is the greedy continuation, and the state they leave, byte for
 * byte, is that of feeding the committed tokens one at a time: cache, recurrent states, windows and
 * the draft's context. Rounds begin at positions around the ends of tiles, pages and spans.
 *
 * ELPIS_TEST_DEVICE and ELPIS_TEST_AS run it elsewhere than on the host device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "whole.h"

#define MODEL "tests/models/elpis-tiny"
#define DRAFT "tests/models/elpis-tiny-dflash2"
#define STATE "tests/data/state_256.safetensors"

enum { VOCAB = 4096, STATE_TOKENS = 256, CONTEXT = 4096 };

static char folder[64]; /* of the states written here */
static u32 *ids, id_count;

static u32 draw(u32 below)
{
    static u64 state = 0x9e3779b97f4a7c15u;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (u32)((state >> 33) % below);
}

static struct engine *open_engine(u32 kv_bits, const char *draft)
{
    const char *device = getenv("ELPIS_TEST_DEVICE"), *as = getenv("ELPIS_TEST_AS");
    struct engine_options options = {
        .device = {.device = device ? device : "host", .as = as && *as ? as : NULL},
        .context = CONTEXT,
        .kv_bits = kv_bits,
        .draft = draft};
    struct engine *engine = NULL;
    struct error error = {0};
    if (engine_open(&engine, MODEL, &options, &error))
        fail_msg("%s", error.text);
    return engine;
}

static const char *path_of(const char *name)
{
    static char paths[4][128];
    static u32 next;
    char *path = paths[next++ % 4];
    snprintf(path, 128, "%s/%s.safetensors", folder, name);
    return path;
}

static int read_ids(void **state)
{
    struct buffer text = {0};
    struct error error = {0};
    (void)state;
    strcpy(folder, "/tmp/elpis-rounds-XXXXXX");
    if (!mkdtemp(folder) || file_read(&text, "tests/data/long_ids.txt", 1 << 20, &error))
        return -1;
    ids = memory_alloc(text.size * sizeof *ids);
    for (char *at = text.data; *at;) {
        char *end;
        const u32 id = (u32)strtoul(at, &end, 10);
        if (end == at)
            end++;
        else
            ids[id_count++] = id;
        at = end;
    }
    buffer_free(&text);
    return 0;
}

static int remove_states(void **state)
{
    static const char *const names[] = {"before", "rounds", "fed"};
    (void)state;
    for (u32 i = 0; i < COUNT_OF(names); i++)
        remove(path_of(names[i]));
    rmdir(folder);
    memory_free(ids);
    return 0;
}

/* Leaves the state of the first `position` ids in "before". */
static void go_to(struct engine *engine, u32 position, u32 kv_bits)
{
    const bool saved = kv_bits == 3 && position > STATE_TOKENS;
    const u32 from = saved ? STATE_TOKENS : 0;
    struct engine_eval eval = {.ids = ids + from,
                               .count = position - from,
                               .rows = 8,
                               .teacher = true,
                               .state_in = saved ? STATE : NULL,
                               .state_out = path_of("before")};
    struct engine_eval_result result = evaluate(engine, &eval);
    release(&result);
}

static struct engine_proposal random_tree(u32 rows)
{
    struct engine_proposal tree = {.rows = rows};
    for (u32 row = 0; row < rows; row++) {
        tree.parent[row] = (u8)(row ? draw(row) : 0);
        tree.token[row] = draw(VOCAB - 16) + row; /* siblings differ */
        for (u32 other = 1; other < row; other++)
            if (tree.token[other] == tree.token[row])
                tree.token[row] = (tree.token[row] + 1) % VOCAB;
    }
    return tree;
}

/* ---- every row of a verify is plain decoding at its path */

static void check_rows(struct engine *engine, const struct engine_proposal *tree)
{
    const size_t row_bytes = VOCAB * sizeof(float);
    struct engine_eval verify = {.ids = tree->token,
                                 .count = tree->rows,
                                 .rows = 8,
                                 .teacher = true,
                                 .state_in = path_of("before"),
                                 .tree_rows = tree->rows,
                                 .tree_parents = tree->parent};
    struct engine_eval_result rows = evaluate(engine, &verify);
    for (u32 row = 0; row < tree->rows; row++) {
        u32 path[ENGINE_ROWS], depth = 0;
        for (u32 at = row;; at = tree->parent[at]) {
            memmove(path + 1, path, depth++ * sizeof *path);
            path[0] = tree->token[at];
            if (at == 0)
                break;
        }
        struct engine_eval plain = {
            .ids = path, .count = depth, .rows = 1, .teacher = true, .state_in = path_of("before")};
        struct engine_eval_result truth = evaluate(engine, &plain);
        if (memcmp(rows.logits + (size_t)row * VOCAB, truth.logits + (size_t)(depth - 1) * VOCAB,
                   row_bytes) != 0)
            fail_msg("row %u at depth %u: logits differ from plain decoding", row, depth - 1);
        release(&truth);
    }
    release(&rows);
}

static void check_positions(u32 kv_bits, const u32 *positions, u32 count, u32 trees)
{
    struct engine *engine = open_engine(kv_bits, NULL);
    for (u32 i = 0; i < count; i++) {
        go_to(engine, positions[i], kv_bits);
        for (u32 j = 0; j < trees; j++) {
            struct engine_proposal tree = random_tree(j ? 8 : 2 + draw(7));
            check_rows(engine, &tree);
        }
    }
    engine_close(engine);
}

static void rows_are_plain_decoding(void **state)
{
    static const u32 few[] = {257, 315, 318, 319, 320, 383};
    (void)state;
    check_positions(3, few, COUNT_OF(few), full_run() ? 60 : 3);
}

static void rows_are_plain_decoding_far_out(void **state)
{
    static const u32 far[] = {511, 1023, 2044, 2047, 2111, 2300};
    (void)state;
    if (!full_run())
        skip();
    check_positions(3, far, COUNT_OF(far), 20);
}

static void rows_are_plain_decoding_at_other_widths(void **state)
{
    static const u32 widths[] = {16, 8, 2, 4, 5, 6, 7}, positions[] = {58, 63};
    (void)state;
    for (u32 i = 0; i < (full_run() ? COUNT_OF(widths) : 2); i++)
        check_positions(widths[i], positions, COUNT_OF(positions), full_run() ? 10 : 1);
}

/* ---- commits leave the state of plain decoding */

static void compare_states(const char *left, const char *right)
{
    struct buffer a = {0}, b = {0};
    struct error error = {0};
    if (file_read(&a, left, 1 << 28, &error) || file_read(&b, right, 1 << 28, &error))
        fail_msg("%s", error.text);
    assert_int_equal(a.size, b.size);
    if (memcmp(a.data, b.data, a.size) != 0) {
        struct tensor_file *one, *two;
        assert_int_equal(tensor_file_open(&one, left, &error), 0);
        assert_int_equal(tensor_file_open(&two, right, &error), 0);
        for (size_t i = 0; i < tensor_file_count(one); i++) {
            const struct tensor *tensor = tensor_file_at(one, i);
            if (memcmp(tensor->data, tensor_file_at(two, i)->data, tensor->bytes) != 0)
                fail_msg("%s differs between rounds and tokens fed one by one", tensor->name);
        }
        fail_msg("states differ in their headers");
    }
    buffer_free(&a);
    buffer_free(&b);
}

/* A tree in which a random path carries the tokens that follow, down to a random depth. */
static struct engine_proposal likely_tree(const u32 *following)
{
    struct engine_proposal tree = random_tree(8);
    const u32 right = draw(9);
    for (u32 at = 0, depth = 0; depth < right; depth++) {
        u32 children[ENGINE_ROWS], count = 0;
        for (u32 child = at + 1; child < tree.rows; child++)
            if (tree.parent[child] == at)
                children[count++] = child;
        if (count == 0)
            break;
        for (u32 i = 0; i < count; i++) /* siblings keep apart */
            if (tree.token[children[i]] == following[depth])
                tree.token[children[i]] = (following[depth] + 1 + i) % VOCAB;
        at = children[draw(count)];
        tree.token[at] = following[depth];
    }
    return tree;
}

/* `rounds` rounds from "before", whose next input is ids[position]. */
static void check_rounds(struct engine *engine, u32 position, u32 rounds)
{
    struct engine_proposal none[64], script[8];
    for (u32 i = 0; i < COUNT_OF(none); i++)
        none[i] = (struct engine_proposal){.rows = 1};
    struct engine_eval plain = {.ids = ids + position,
                                .count = 1,
                                .rows = 1,
                                .teacher = true,
                                .state_in = path_of("before"),
                                .script = none,
                                .script_count = COUNT_OF(none)};
    struct engine_eval_result truth = evaluate(engine, &plain);
    /* Each round's tree carries what follows the tokens committed so far; how many these are is
     * known after the round, so rounds are added one at a time. */
    u32 committed = 0;
    for (u32 count = 1; count <= rounds; count++) {
        script[count - 1] = likely_tree(truth.committed + committed);
        struct engine_eval rounds_eval = {.ids = ids + position,
                                          .count = 1,
                                          .rows = 1,
                                          .teacher = true,
                                          .state_in = path_of("before"),
                                          .script = script,
                                          .script_count = count,
                                          .state_out = path_of("rounds")};
        struct engine_eval_result got = evaluate(engine, &rounds_eval);
        assert_in_range(got.committed_count, committed + 1, committed + 8);
        committed = got.committed_count;
        assert_memory_equal(got.committed, truth.committed, committed * sizeof(u32));
        assert_memory_equal(got.committed_logits, truth.committed_logits,
                            (size_t)committed * VOCAB * sizeof(float));
        release(&got);
        u32 inputs[64] = {ids[position]};
        memcpy(inputs + 1, truth.committed, (committed - 1) * sizeof(u32));
        struct engine_eval feed = {.ids = inputs,
                                   .count = committed,
                                   .rows = 1,
                                   .teacher = true,
                                   .state_in = path_of("before"),
                                   .state_out = path_of("fed")};
        struct engine_eval_result fed = evaluate(engine, &feed);
        release(&fed);
        compare_states(path_of("rounds"), path_of("fed"));
    }
    release(&truth);
}

static void commits_are_plain_decoding(void **state)
{
    static const u32 positions[] = {256, 260, 316, 319, 383, 505};
    (void)state;
    struct engine *engine = open_engine(3, getenv("ELPIS_TEST_NO_DRAFT") ? NULL : DRAFT);
    for (u32 i = 0; i < COUNT_OF(positions); i++) {
        go_to(engine, positions[i], 3);
        for (u32 j = 0; j < (full_run() ? 20 : 1); j++)
            check_rounds(engine, positions[i], 4);
    }
    engine_close(engine);
}

static void commits_at_other_widths(void **state)
{
    static const u32 widths[] = {16, 2, 8};
    (void)state;
    for (u32 i = 0; i < (full_run() ? COUNT_OF(widths) : 1); i++) {
        struct engine *engine = open_engine(widths[i], NULL);
        go_to(engine, 60, widths[i]);
        for (u32 j = 0; j < (full_run() ? 10 : 1); j++)
            check_rounds(engine, 60, 3);
        engine_close(engine);
    }
}

/* ---- proposals that cannot be verified */

static void illegal_scripts_are_refused(void **state)
{
    static const struct {
        struct engine_proposal proposal;
        const char *text;
    } bad[] = {
        {{.rows = 9}, "rows"},
        {{.rows = 2, .parent = {0, 1}, .token = {0, 5}}, "parent"},
        {{.rows = 2, .parent = {0, 0}, .token = {0, VOCAB}}, "vocabulary"},
        {{.rows = 3, .parent = {0, 0, 0}, .token = {0, 7, 7}}, "same token"},
    };
    (void)state;
    struct engine *engine = open_engine(3, NULL);
    for (u32 i = 0; i < COUNT_OF(bad); i++) {
        struct engine_eval eval = {.ids = ids,
                                   .count = 4,
                                   .rows = 1,
                                   .teacher = true,
                                   .script = &bad[i].proposal,
                                   .script_count = 1};
        struct engine_eval_result result;
        struct error error = {0};
        assert_int_equal(engine_evaluate(engine, &eval, &result, &error), -1);
        assert_int_equal(error.code, ERROR_USAGE);
        assert_non_null(strstr(error.text, bad[i].text));
        release(&result);
    }
    engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_plain_decoding),
        cmocka_unit_test(rows_are_plain_decoding_far_out),
        cmocka_unit_test(rows_are_plain_decoding_at_other_widths),
        cmocka_unit_test(commits_are_plain_decoding),
        cmocka_unit_test(commits_at_other_widths),
        cmocka_unit_test(illegal_scripts_are_refused),
    };
    return cmocka_run_group_tests_name("engine/rounds", tests, read_ids, remove_states);
}
