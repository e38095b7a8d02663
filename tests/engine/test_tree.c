/* test_tree.c - descriptor and acceptance of every tree of 1..8 rows (core/engine/tree.h).
 *
 * All parent arrays (5,040 of 8 rows), and for acceptance all match masks: bit r - 1 of a mask says
 * that row r carries the token its parent's row samples. References are lists, built without the
 * code under test.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "engine/tree.h"

static void each_tree(void (*check)(const struct engine_proposal *tree))
{
    for (u32 rows = 1; rows <= ENGINE_ROWS; rows++) {
        u32 count = 1;
        for (u32 row = 1; row < rows; row++)
            count *= row;
        for (u32 index = 0; index < count; index++) {
            struct engine_proposal tree = {.rows = rows, .token = {1000}};
            for (u32 row = 1, rest = index; row < rows; rest /= row, row++) {
                tree.parent[row] = (u8)(rest % row);
                tree.token[row] = 1000 + row;
            }
            check(&tree);
        }
    }
}

/* Ancestors of a row from row 0 on, itself last; returns how many. */
static u32 list_path(const struct engine_proposal *tree, u32 row, u32 path[ENGINE_ROWS])
{
    u32 reversed[ENGINE_ROWS], count = 0;
    for (reversed[count++] = row; row > 0; reversed[count++] = row)
        row = tree->parent[row];
    for (u32 i = 0; i < count; i++)
        path[i] = reversed[count - 1 - i];
    return count;
}

/* ---- descriptor */

/* Runs the program on histories of rows instead of states. */
static void check_program(const struct engine_proposal *tree, const u32 *round)
{
    u32 history[ENGINE_ROWS], length = 0, emitted[ENGINE_ROWS] = {0};
    assert_in_range(round[ROUND_STEPS], tree->rows, 14);
    for (u32 at = 0; at < PROGRAM_MOST; at++) {
        const u32 op = round[ROUND_PROGRAM + at] >> 4, row = round[ROUND_PROGRAM + at] & 15;
        u32 path[ENGINE_ROWS];
        if (at >= round[ROUND_STEPS]) {
            assert_int_equal(round[ROUND_PROGRAM + at], 0);
            continue;
        }
        if (op == TREE_RELOAD) {
            length = 0;
            continue;
        }
        assert_in_range(row, 0, tree->rows - 1);
        assert_in_range(length, 0, ENGINE_ROWS - 1);
        history[length] = row;
        const u32 count = list_path(tree, row, path);
        assert_int_equal(count, length + 1);
        for (u32 i = 0; i < count; i++)
            assert_int_equal(history[i], path[i]);
        length += op != TREE_PEEK;
        emitted[row] += op != TREE_REPLAY;
    }
    for (u32 row = 0; row < tree->rows; row++)
        assert_int_equal(emitted[row], 1);
}

static void check_descriptor(const struct engine_proposal *tree)
{
    const u32 base = 777;
    u32 round[ROUND_WORDS];
    memset(round, 0xee, sizeof round);
    assert_null(tree_refusal(tree, 2000));
    tree_describe(tree, base, round);
    assert_int_equal(round[ROUND_ROWS], tree->rows);
    assert_int_equal(round[ROUND_BASE], base);
    assert_int_equal(round[ROUND_KEEP], 0);
    for (u32 row = 0; row < ENGINE_ROWS; row++) {
        u32 path[ENGINE_ROWS], mask = 0;
        if (row >= tree->rows) {
            assert_int_equal(round[ROUND_TOKENS + row] | round[ROUND_POSITIONS + row] |
                                 round[ROUND_ANCESTORS + row] | round[ROUND_PATHS + row] |
                                 round[ROUND_PARENTS + row],
                             0);
            continue;
        }
        const u32 count = list_path(tree, row, path);
        for (u32 i = 0; i < ENGINE_ROWS; i++) {
            assert_int_equal(round[ROUND_PATHS + row] >> 4 * i & 15, i < count ? path[i] : 15);
            mask |= i < count ? 1u << path[i] : 0;
        }
        assert_int_equal(round[ROUND_TOKENS + row], tree->token[row]);
        assert_int_equal(round[ROUND_POSITIONS + row], base + count - 1);
        assert_int_equal(round[ROUND_ANCESTORS + row], mask);
        assert_int_equal(round[ROUND_PARENTS + row], row ? tree->parent[row] : 0xffffffffu);
        assert_int_equal(round[ROUND_SOURCES + row] | round[ROUND_DRAFT + row], 0);
    }
    check_program(tree, round);
}

static void descriptor_of_every_tree(void **state)
{
    (void)state;
    each_tree(check_descriptor);
}

static void a_chain_is_a_tree_with_one_path(void **state)
{
    const u32 tokens[ENGINE_ROWS] = {9, 8, 7, 6, 5, 4, 3, 2};
    (void)state;
    for (u32 rows = 1; rows <= ENGINE_ROWS; rows++) {
        struct engine_proposal tree = {.rows = rows};
        u32 chain[ROUND_WORDS], same[ROUND_WORDS];
        for (u32 row = 0; row < rows; row++) {
            tree.token[row] = tokens[row];
            tree.parent[row] = (u8)(row ? row - 1 : 0);
        }
        tree_describe_chain(tokens, rows, 5, chain);
        tree_describe(&tree, 5, same);
        assert_int_equal(chain[ROUND_KEEP], 1);
        chain[ROUND_KEEP] = 0;
        assert_memory_equal(chain, same, sizeof same);
        assert_int_equal(chain[ROUND_STEPS], rows);
        for (u32 row = 0; row < rows; row++)
            assert_int_equal(chain[ROUND_PROGRAM + row], TREE_ADVANCE << 4 | row);
    }
}

static void illegal_proposals_are_refused(void **state)
{
    struct engine_proposal tree = {.rows = 3, .parent = {0, 0, 0}, .token = {1, 2, 3}};
    (void)state;
    assert_null(tree_refusal(&tree, 4));
    tree.token[2] = 4;
    assert_non_null(tree_refusal(&tree, 4));
    tree.token[2] = 2;
    assert_non_null(tree_refusal(&tree, 4));
    tree.parent[2] = 1;
    assert_null(tree_refusal(&tree, 4));
    tree.parent[2] = 2;
    assert_non_null(tree_refusal(&tree, 4));
    tree.parent[2] = 1;
    tree.rows = 0;
    assert_non_null(tree_refusal(&tree, 4));
    tree.rows = 9;
    assert_non_null(tree_refusal(&tree, 4));
}

/* ---- acceptance */

/* The reference: every row's path as a list; the longest whose drafted rows all match is the
 * accepted one (siblings differ, so there is one longest). Then the cuts, one token at a time. */
static void reference(const struct engine_proposal *tree, const u32 *sampled,
                      const struct tree_limits *limits, struct tree_verdict *verdict)
{
    u32 best[ENGINE_ROWS] = {0}, longest = 1;
    for (u32 row = 0; row < tree->rows; row++) {
        u32 path[ENGINE_ROWS];
        const u32 count = list_path(tree, row, path);
        bool matches = true;
        for (u32 i = 1; i < count; i++)
            matches &= tree->token[path[i]] == sampled[path[i - 1]];
        if (matches && count > longest) {
            longest = count;
            memcpy(best, path, sizeof best);
        }
    }
    memset(verdict, 0, sizeof *verdict);
    verdict->end = TREE_MORE;
    for (u32 i = 0; i < longest; i++) {
        bool stop = false;
        for (u32 j = 0; j < limits->stop_count; j++)
            stop |= limits->stops[j] == sampled[best[i]];
        verdict->path[verdict->count++] = (u8)best[i];
        verdict->end = stop ? TREE_STOP : i + 1 == limits->budget ? TREE_BUDGET : TREE_MORE;
        if (verdict->end != TREE_MORE || i + 1 == limits->page_end)
            return;
    }
}

static void compare(const struct engine_proposal *tree, const u32 *sampled,
                    const struct tree_limits *limits)
{
    struct tree_verdict verdict, expected;
    memset(&verdict, 0xee, sizeof verdict);
    tree_accept(tree, sampled, limits, &verdict);
    reference(tree, sampled, limits, &expected);
    assert_int_equal(verdict.count, expected.count);
    assert_int_equal(verdict.end, expected.end);
    assert_memory_equal(verdict.path, expected.path, expected.count);
}

/* Tokens such that row r matches its parent's sample exactly where the mask says so. A row's sample
 * can match one child only: of several the first that the mask names; the others differ. */
static void draw(const struct engine_proposal *tree, u32 mask, u32 sampled[ENGINE_ROWS])
{
    for (u32 row = 0; row < ENGINE_ROWS; row++)
        sampled[row] = 5000 + row; /* no row's token */
    for (u32 row = tree->rows; row-- > 1;)
        if (mask >> (row - 1) & 1)
            sampled[tree->parent[row]] = tree->token[row];
}

static void check_acceptance(const struct engine_proposal *tree)
{
    for (u32 mask = 0; mask < 1u << (tree->rows - 1); mask++) {
        u32 sampled[ENGINE_ROWS];
        const struct tree_limits open = {.budget = 1000, .page_end = 256};
        draw(tree, mask, sampled);
        compare(tree, sampled, &open);
    }
    u32 sampled[ENGINE_ROWS];
    draw(tree, ~0u, sampled);
    for (u32 budget = 1; budget <= 9; budget++)
        for (u32 page_end = 1; page_end <= 9; page_end++) {
            const struct tree_limits limits = {.budget = budget, .page_end = page_end};
            compare(tree, sampled, &limits);
        }
    for (u32 row = 0; row < tree->rows; row++) {
        const u32 stops[] = {4321, sampled[row]};
        const struct tree_limits limits = {1000, 256, stops, COUNT_OF(stops)};
        const struct tree_limits tight = {2, 3, stops, COUNT_OF(stops)};
        compare(tree, sampled, &limits);
        compare(tree, sampled, &tight);
    }
}

static void acceptance_of_every_tree_and_mask(void **state)
{
    (void)state;
    each_tree(check_acceptance);
}

static void a_commit_replays_the_path(void **state)
{
    const struct tree_verdict verdict = {.count = 3, .path = {0, 2, 5}};
    u32 round[ROUND_WORDS];
    (void)state;
    tree_describe_commit(&verdict, 40, round);
    assert_int_equal(round[ROUND_ROWS], 3);
    assert_int_equal(round[ROUND_KEEP], 1);
    assert_int_equal(round[ROUND_STEPS], 3);
    for (u32 i = 0; i < 3; i++) {
        assert_int_equal(round[ROUND_PROGRAM + i], TREE_REPLAY << 4 | verdict.path[i]);
        assert_int_equal(round[ROUND_SOURCES + i], verdict.path[i]);
        assert_int_equal(round[ROUND_POSITIONS + i], 40 + i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptor_of_every_tree),
        cmocka_unit_test(a_chain_is_a_tree_with_one_path),
        cmocka_unit_test(illegal_proposals_are_refused),
        cmocka_unit_test(acceptance_of_every_tree_and_mask),
        cmocka_unit_test(a_commit_replays_the_path),
    };
    return cmocka_run_group_tests_name("engine/tree", tests, NULL, NULL);
}
