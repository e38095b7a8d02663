/* tree.h - the token tree of a round: its descriptor and its acceptance, pure functions.
 *
 * A round verifies up to 8 rows in one pass. Row 0 is the last committed token, row r > 0 a drafted
 * token that follows parent[r] < r. A chain is the tree with parent[r] = r - 1. Trees over 8 rows:
 * 7! = 5,040.
 *
 * Everything a pass must know stands in its round descriptor, u32 words in device memory, so that
 * a pass is one graph. The draft's kernel writes it (schedules/draft_tree.lua); the host derives it
 * again from parents and tokens and compares (round.c).
 *
 *   [0]        rows, 1..8
 *   [1]        base: position of row 0
 *   [2..9]     token of each row
 *   [10]       1: the rows are committed tokens in a chain, the pass itself moves the state
 *   [11]       steps of the GDN program
 *   [16..23]   position of each row: base + depth
 *   [24..31]   ancestors of each row and itself, bit r for row r
 *   [32..47]   GDN program, op << 4 | row
 *   [48..55]   path of each row: nibble j is its ancestor at depth j, itself last, 15 beyond
 *   [56..63]   parent of each row; 0xffffffff of row 0
 *   [64..71]   commit only: the row that becomes token base + j
 *   [72..79]   draft pass only, see draft.c; zero else
 * Words that nothing names are zero.
 */
#ifndef ELPIS_TREE_H
#define ELPIS_TREE_H

#include "base/base.h"
#include "engine/engine.h"

enum {
    ROUND_ROWS = 0,
    ROUND_BASE = 1,
    ROUND_TOKENS = 2,
    ROUND_KEEP = 10,
    ROUND_STEPS = 11,
    ROUND_POSITIONS = 16,
    ROUND_ANCESTORS = 24,
    ROUND_PROGRAM = 32,
    ROUND_PATHS = 48,
    ROUND_PARENTS = 56,
    ROUND_SOURCES = 64,
    ROUND_DRAFT = 72,
    ROUND_WORDS = 80,
    PROGRAM_MOST = 16, /* 14 are reached */
};

/* What a step of the GDN program does with the recurrent state (elpis.md 2.4.5). */
enum tree_op {
    TREE_ADVANCE, /* state moves over the row, output of the row */
    TREE_PEEK,    /* output of the row, state stays: a leaf */
    TREE_RELOAD,  /* state = that before the round */
    TREE_REPLAY,  /* state moves over the row, no output */
};

/* Why a proposal cannot be verified, or NULL: rows 1..8, parent[r] < r, tokens below vocab, no two
 * siblings of one token. */
const char *tree_refusal(const struct engine_proposal *tree, u32 vocab);

/* Descriptor of a verify pass whose row 0 stands at `base`. tree: legal. */
void tree_describe(const struct engine_proposal *tree, u32 base, u32 round[ROUND_WORDS]);

/* Descriptor of a pass over rows that are all committed tokens: plain decode, prompts, teacher. */
void tree_describe_chain(const u32 *tokens, u32 rows, u32 base, u32 round[ROUND_WORDS]);

/* What ends a round early. */
struct tree_limits {
    u32 budget;       /* tokens that may still be emitted, at least 1 */
    u32 page_end;     /* tokens until the state must stand at a page's end, at least 1 */
    const u32 *stops; /* tokens that end generation */
    u32 stop_count;
};

enum tree_end { TREE_MORE, TREE_STOP, TREE_BUDGET };

/* A verdict: rows path[0..count-1] are committed as input, and their tokens emitted. */
struct tree_verdict {
    u32 count; /* 1..8 */
    u8 path[ENGINE_ROWS];
    enum tree_end end;
};

/* Accepts: sampled[r] is the target's own token after row r. Law: let p0 = 0 and p(i+1) the child
 * of p(i) whose token is sampled[p(i)] (siblings differ, so there is at most one); then the path is
 * p0, p1, ... as far as it goes, cut after the first i whose sampled[p(i)] is a stop token (end
 * STOP), where i + 1 = budget (end BUDGET), or where i + 1 = page_end. Emitted are sampled[p(i)].
 * */
void tree_accept(const struct engine_proposal *tree, const u32 *sampled,
                 const struct tree_limits *limits, struct tree_verdict *verdict);

/* The first `count` rows of a verdict (a caller's stop string cut it), as a commit's descriptor:
 * rows = count, program REPLAY along the path, sources = path. */
void tree_describe_commit(const struct tree_verdict *verdict, u32 base, u32 round[ROUND_WORDS]);

#endif
