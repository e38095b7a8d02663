/* tree_table.c - prints what core/engine/tree.c says of every tree of 1 to 8 rows.
 *
 * The numbers and their order are those of proofs/TreeTable.v, which prints them from the functions
 * that the theorems of proofs/Trees.v speak of; proofs/prove.sh compares the two texts. So every
 * descriptor and every verdict, over all trees and match masks, is what Coq computes.
 *
 * One line a tree: numbers with "; " between them.
 */
#include <inttypes.h>
#include <stdio.h>

#include "engine/tree.h"

/* Packs small numbers and prints a packed one when `size` of them are there. */
struct packer {
    u32 bits, size, count;
    u64 number;
};

static bool is_first; /* of its line */

static void print_number(u64 number)
{
    printf("%s%" PRIu64, is_first ? "" : "; ", number);
    is_first = false;
}

static void flush(struct packer *packer)
{
    if (packer->count)
        print_number(packer->number);
    packer->count = 0, packer->number = 0;
}

static void put(struct packer *packer, u64 value)
{
    packer->number |= value << packer->bits * packer->count;
    if (++packer->count == packer->size)
        flush(packer);
}

/* A row's sample is the token of its first child that the mask names, or one that no row has. */
static void draw(const struct engine_proposal *tree, u32 mask, u32 sampled[ENGINE_ROWS])
{
    for (u32 row = 0; row < ENGINE_ROWS; row++)
        sampled[row] = 5000;
    for (u32 row = tree->rows; row-- > 1;)
        if (mask >> (row - 1) & 1)
            sampled[tree->parent[row]] = tree->token[row];
}

static u32 verdict_code(const struct engine_proposal *tree, const u32 *sampled,
                        const struct tree_limits *limits)
{
    struct tree_verdict verdict;
    tree_accept(tree, sampled, limits, &verdict);
    return verdict.count + 16 * (u32)verdict.end;
}

static void print_descriptor(const struct engine_proposal *tree)
{
    u32 round[ROUND_WORDS];
    struct packer parents = {4, ENGINE_ROWS, 0, 0}, steps = {6, 8, 0, 0};
    struct packer ancestors = {8, 4, 0, 0}, depths = {4, ENGINE_ROWS, 0, 0};
    tree_describe(tree, 0, round);
    if (tree->rows == 1)
        print_number(0);
    for (u32 row = 1; row < tree->rows; row++)
        put(&parents, round[ROUND_PARENTS + row]);
    flush(&parents);
    for (u32 at = 0; at < round[ROUND_STEPS]; at++)
        put(&steps, round[ROUND_PROGRAM + at]);
    flush(&steps);
    for (u32 row = 0; row < tree->rows; row++)
        put(&ancestors, round[ROUND_ANCESTORS + row]);
    flush(&ancestors);
    for (u32 row = 0; row < tree->rows; row++)
        put(&depths, round[ROUND_POSITIONS + row]);
    flush(&depths);
    for (u32 row = 0; row < tree->rows; row++)
        print_number(round[ROUND_PATHS + row]);
}

/* The row at the end of the accepted path, and a mark that no row has when the path is not that of
 * the tree. */
static u32 last_row(const struct engine_proposal *tree, const struct tree_verdict *verdict)
{
    for (u32 i = 1; i < verdict->count; i++)
        if (tree->parent[verdict->path[i]] != verdict->path[i - 1])
            return ENGINE_ROWS + 1;
    return verdict->path[0] ? ENGINE_ROWS + 1 : verdict->path[verdict->count - 1];
}

static void print_masks(const struct engine_proposal *tree)
{
    const struct tree_limits open = {.budget = 40, .page_end = 40};
    struct packer masks = {3, 20, 0, 0};
    for (u32 mask = 0; mask < 1u << (tree->rows - 1); mask++) {
        struct tree_verdict verdict;
        u32 sampled[ENGINE_ROWS];
        draw(tree, mask, sampled);
        tree_accept(tree, sampled, &open, &verdict);
        put(&masks, last_row(tree, &verdict));
    }
    flush(&masks);
}

static void print_cuts(const struct engine_proposal *tree)
{
    u32 sampled[ENGINE_ROWS];
    struct packer cuts = {6, 10, 0, 0}, stops = {6, 8, 0, 0};
    draw(tree, ~0u, sampled);
    for (u32 budget = 1; budget <= 9; budget++)
        for (u32 page_end = 1; page_end <= 9; page_end++) {
            const struct tree_limits limits = {.budget = budget, .page_end = page_end};
            put(&cuts, verdict_code(tree, sampled, &limits));
        }
    flush(&cuts);
    for (u32 row = 0; row < tree->rows; row++) {
        const struct tree_limits alone = {40, 40, &sampled[row], 1};
        const struct tree_limits tight = {2, 3, &sampled[row], 1};
        put(&stops, verdict_code(tree, sampled, &alone));
        put(&stops, verdict_code(tree, sampled, &tight));
    }
    flush(&stops);
}

/* Trees in the order of TreeTable.v: the last row's parent varies fastest. */
static void print_trees(struct engine_proposal *tree, u32 row)
{
    if (row == tree->rows) {
        is_first = true;
        print_descriptor(tree);
        print_masks(tree);
        print_cuts(tree);
        printf("\n");
        return;
    }
    for (u32 parent = 0; parent < row; parent++) {
        tree->parent[row] = (u8)parent;
        print_trees(tree, row + 1);
    }
}

int main(void)
{
    for (u32 rows = 1; rows <= ENGINE_ROWS; rows++) {
        struct engine_proposal tree = {.rows = rows};
        for (u32 row = 0; row < rows; row++)
            tree.token[row] = 1000 + row;
        print_trees(&tree, 1);
    }
    return 0;
}
