/* tree.c - descriptor and acceptance of a round's token tree (laws in tree.h). */
#include "engine/tree.h"

#include <string.h>

/* A tree as its parts: what the descriptor is written from. */
struct shape {
    u32 rows;
    u32 parent[ENGINE_ROWS]; /* parent[0] = rows: no row */
    u32 depth[ENGINE_ROWS];
    u32 ancestors[ENGINE_ROWS];
};

struct program {
    u32 *steps;
    u32 count;
};

const char *tree_refusal(const struct engine_proposal *tree, u32 vocab)
{
    if (tree->rows < 1 || tree->rows > ENGINE_ROWS)
        return "rows: expected 1 to 8";
    for (u32 row = 0; row < tree->rows; row++) {
        if (tree->token[row] >= vocab)
            return "a token is not below the vocabulary's size";
        if (row > 0 && tree->parent[row] >= row)
            return "a parent is not an earlier row";
        for (u32 other = 1; other < row; other++)
            if (tree->parent[other] == tree->parent[row] && tree->token[other] == tree->token[row])
                return "two children of one row have the same token";
    }
    return NULL;
}

static struct shape shape_of(const struct engine_proposal *tree)
{
    struct shape shape = {.rows = tree->rows, .parent = {tree->rows}, .ancestors = {1}};
    for (u32 row = 1; row < tree->rows; row++) {
        shape.parent[row] = tree->parent[row];
        shape.depth[row] = shape.depth[tree->parent[row]] + 1;
        shape.ancestors[row] = shape.ancestors[tree->parent[row]] | 1u << row;
    }
    return shape;
}

static bool is_leaf(const struct shape *shape, u32 row)
{
    for (u32 child = row + 1; child < shape->rows; child++)
        if (shape->parent[child] == row)
            return false;
    return true;
}

/* The largest child that is an inner row, or rows when none is; the largest child at all. */
static u32 last_child(const struct shape *shape, u32 row, bool inner)
{
    u32 last = shape->rows;
    for (u32 child = row + 1; child < shape->rows; child++)
        if (shape->parent[child] == row && !(inner && is_leaf(shape, child)))
            last = child;
    return last;
}

static void step(struct program *program, enum tree_op op, u32 row)
{
    program->steps[program->count++] = (u32)op << 4 | row;
}

/* The state has just moved over `row`. Leaves below it peek; the state then goes down into one
 * child after another, back from the state before the round in between. */
static void visit(const struct shape *shape, struct program *program, u32 row)
{
    const u32 inner = last_child(shape, row, true);
    const u32 last = inner == shape->rows ? last_child(shape, row, false) : inner;
    if (last == shape->rows)
        return;
    for (u32 child = row + 1; child < shape->rows; child++)
        if (shape->parent[child] == row && child != last && is_leaf(shape, child))
            step(program, TREE_PEEK, child);
    for (u32 child = row + 1; child < last; child++) {
        if (shape->parent[child] != row || is_leaf(shape, child))
            continue;
        step(program, TREE_ADVANCE, child);
        visit(shape, program, child);
        step(program, TREE_RELOAD, 0);
        for (u32 above = 0; above <= row; above++)
            if (shape->ancestors[row] >> above & 1)
                step(program, TREE_REPLAY, above);
    }
    step(program, TREE_ADVANCE, last);
    visit(shape, program, last);
}

void tree_describe(const struct engine_proposal *tree, u32 base, u32 round[ROUND_WORDS])
{
    const struct shape shape = shape_of(tree);
    struct program program = {round + ROUND_PROGRAM, 0};
    memset(round, 0, ROUND_WORDS * sizeof *round);
    round[ROUND_ROWS] = shape.rows;
    round[ROUND_BASE] = base;
    for (u32 row = 0; row < shape.rows; row++) {
        u32 path = 0xffffffffu, depth = 0;
        for (u32 above = 0; above <= row; above++)
            if (shape.ancestors[row] >> above & 1)
                path = (path & ~(15u << 4 * depth)) | above << 4 * depth, depth++;
        round[ROUND_TOKENS + row] = tree->token[row];
        round[ROUND_POSITIONS + row] = base + shape.depth[row];
        round[ROUND_ANCESTORS + row] = shape.ancestors[row];
        round[ROUND_PATHS + row] = path;
        round[ROUND_PARENTS + row] = row ? shape.parent[row] : 0xffffffffu;
    }
    step(&program, TREE_ADVANCE, 0);
    visit(&shape, &program, 0);
    round[ROUND_STEPS] = program.count;
}

void tree_describe_chain(const u32 *tokens, u32 rows, u32 base, u32 round[ROUND_WORDS])
{
    struct engine_proposal chain = {.rows = rows};
    for (u32 row = 0; row < rows; row++) {
        chain.token[row] = tokens[row];
        chain.parent[row] = (u8)(row ? row - 1 : 0);
    }
    tree_describe(&chain, base, round);
    round[ROUND_KEEP] = 1;
}

static bool is_stop(const struct tree_limits *limits, u32 token)
{
    for (u32 i = 0; i < limits->stop_count; i++)
        if (limits->stops[i] == token)
            return true;
    return false;
}

/* The child of `row` that carries the token, or rows. */
static u32 matching_child(const struct engine_proposal *tree, u32 row, u32 token)
{
    for (u32 child = row + 1; child < tree->rows; child++)
        if (tree->parent[child] == row && tree->token[child] == token)
            return child;
    return tree->rows;
}

void tree_accept(const struct engine_proposal *tree, const u32 *sampled,
                 const struct tree_limits *limits, struct tree_verdict *verdict)
{
    u32 row = 0;
    *verdict = (struct tree_verdict){.end = TREE_MORE};
    while (row < tree->rows) {
        verdict->path[verdict->count++] = (u8)row;
        if (is_stop(limits, sampled[row]))
            verdict->end = TREE_STOP;
        else if (verdict->count >= limits->budget)
            verdict->end = TREE_BUDGET;
        if (verdict->end != TREE_MORE || verdict->count >= limits->page_end)
            return;
        row = matching_child(tree, row, sampled[row]);
    }
}

void tree_describe_commit(const struct tree_verdict *verdict, u32 base, u32 round[ROUND_WORDS])
{
    memset(round, 0, ROUND_WORDS * sizeof *round);
    round[ROUND_ROWS] = verdict->count;
    round[ROUND_BASE] = base;
    round[ROUND_KEEP] = 1;
    round[ROUND_STEPS] = verdict->count;
    for (u32 i = 0; i < verdict->count; i++) {
        round[ROUND_POSITIONS + i] = base + i;
        round[ROUND_PROGRAM + i] = (u32)TREE_REPLAY << 4 | verdict->path[i];
        round[ROUND_SOURCES + i] = verdict->path[i];
    }
}
