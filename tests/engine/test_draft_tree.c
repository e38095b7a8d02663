/* test_draft_tree.c - from a draft's logits to the descriptor of the round that verifies its tree:
 * draft_top and draft_select against a sort, draft_lattice against binary64, draft_tree against a
 * plain search that starts from the kernel's own log-probabilities and ends in tree_describe
 * (dflash2.md 9, tests 8, 9 and 14).
 */
#include "kernels.h"

#include "engine/tree.h"

enum { DRAFTED = 7, TOP = 16, LATTICE = 97, NONE = 0xffffffff, STEPS_MOST = 14 };

static u32 float_bits(float value)
{
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- draft_top, draft_select: a sort */

struct head {
    u32 vocab, stride, rows, top_k;
    float multiplier, softcap;
    const float *logits; /* [8, stride] */
    const u32 *id_map;   /* [vocab] or NULL */
};

struct candidates {
    float values[DRAFTED * TOP];
    u32 ids[DRAFTED * TOP];
};

static const float *sorted_values;

/* Larger value first, NaN last, then smaller column. */
static int by_rank(const void *a, const void *b)
{
    const u32 i = *(const u32 *)a, j = *(const u32 *)b;
    const float x = sorted_values[i], y = sorted_values[j];
    if (isnan(x) != isnan(y))
        return isnan(x) ? 1 : -1;
    return x > y ? -1 : x < y ? 1 : i < j ? -1 : i > j;
}

static double transformed(const struct head *head, float logit)
{
    const double value = (double)logit * head->multiplier;
    if (isinf(logit) && logit < 0)
        return logit;
    return head->softcap != 0 ? head->softcap * tanh(value / head->softcap) : value;
}

static void assert_candidates(const struct head *head, const struct candidates *got)
{
    u32 *order = malloc(head->vocab * sizeof *order);
    for (u32 row = 0; row < DRAFTED; row++) {
        sorted_values = head->logits + (size_t)(row + 1) * head->stride;
        for (u32 i = 0; i < head->vocab; i++)
            order[i] = i;
        qsort(order, head->vocab, sizeof *order, by_rank);
        for (u32 i = 0; i < TOP; i++) {
            const u32 at = row * TOP + i;
            double value = -INFINITY;
            u32 id = NONE;
            if (row + 1 < head->rows && i < head->top_k && i < head->vocab &&
                !isnan(sorted_values[order[i]])) {
                value = transformed(head, sorted_values[order[i]]);
                id = head->id_map ? head->id_map[order[i]] : order[i];
            }
            if (got->ids[at] != id ||
                !(got->values[at] == value || fabs(got->values[at] - value) <= fabs(value) * 5e-7))
                fail_msg("row %u, slot %u: id %u value %.9g, expected %u and %.9g", row, i,
                         got->ids[at], got->values[at], id, value);
        }
    }
    free(order);
}

/* Keys that an earlier pass left where this one writes nothing. */
static dptr stale_keys(size_t count)
{
    u64 *keys = malloc(count * sizeof *keys);
    for (size_t i = 0; i < count; i++)
        keys[i] = 0xc0000000ffffffff - i % TOP;
    const dptr found = array_new(count * sizeof *keys, keys);
    free(keys);
    return found;
}

/* What the kernels find, with numbers of the tuning: any, taken modulo what there is. */
static void select_candidates(const struct head *head, u32 tuning, struct candidates *got)
{
    const u32 columns[] = {256, 1024, 512}, warps[] = {1, 2, 4, 8};
    struct jit_kernel *top = KERNEL_OF(
        "draft_top", JIT_NUMBER("vocab", head->vocab), JIT_NUMBER("stride", head->stride),
        JIT_NUMBER("columns", columns[tuning % 3]), JIT_NUMBER("warps", warps[tuning % 4]),
        JIT_TEXT("map", tuning % 2 ? "strided" : "contiguous"));
    const i64 groups = jit_kernel_export(top, "groups");
    const u32 few[] = {1, 2, 4}, many[] = {4, 8, 16, 32};
    struct jit_kernel *merge = KERNEL_OF(
        "draft_select", JIT_NUMBER("groups", groups), JIT_NUMBER("vocab", head->vocab),
        JIT_NUMBER("multiplier", float_bits(head->multiplier)),
        JIT_NUMBER("softcap", float_bits(head->softcap)), JIT_NUMBER("top_k", head->top_k),
        JIT_NUMBER("warps", on_gpu() ? many[tuning % 4] : few[tuning % 3]));
    const u32 words[ROUND_WORDS] = {head->rows};
    const dptr round = array_new(sizeof words, words);
    const dptr found = stale_keys((size_t)groups * DRAFTED * TOP);
    const dptr values = array_new(sizeof got->values, NULL), ids = array_new(sizeof got->ids, NULL);
    LAUNCH(top, array_new((size_t)8 * head->stride * 4, head->logits), found, round);
    LAUNCH(merge, found, head->id_map ? array_new(head->vocab * 4, head->id_map) : 0, values, ids,
           round);
    void *copy = array_read(values, sizeof got->values);
    memcpy(got->values, copy, sizeof got->values);
    free(copy);
    copy = array_read(ids, sizeof got->ids);
    memcpy(got->ids, copy, sizeof got->ids);
    free(copy);
}

/* Logits of one kind; columns that do not count hold what would win. */
static float *logits_of(u32 kind, u32 vocab, u32 stride)
{
    float *logits = random_floats((size_t)8 * stride, 3);
    for (u32 i = 0; i < 8 * stride; i++) {
        const u32 column = i % stride, dice = random_word();
        if (kind == 1) /* ties, zeros of both signs among the best */
            logits[i] = fminf(rintf(logits[i]), dice % 2 ? 0.0f : -0.0f);
        else if (kind == 2) /* nearly nothing: the bar is -infinity */
            logits[i] = dice % 64 ? -INFINITY : logits[i];
        else if (kind == 3) /* NaN of both signs */
            logits[i] = dice % 3 == 0 ? NAN : dice % 3 == 1 ? -NAN : logits[i];
        else if (kind == 4) /* nothing but NaN and a few numbers */
            logits[i] = dice % 64 ? NAN : logits[i];
        else if (kind == 5) /* one lane of each warp holds all that is good */
            logits[i] += column % 32 == 7 ? 100 : 0;
        else if (kind == 6)
            logits[i] = 1;
        else if (kind == 7) /* infinities */
            logits[i] = dice % 256 ? logits[i] : dice / 256 % 2 ? INFINITY : -INFINITY;
        if (column >= vocab || i < stride)
            logits[i] = INFINITY;
    }
    return logits;
}

static void candidates_are_a_sort(void **state)
{
    const u32 sizes[][2] = {{997, 1000}, {4096, 4096}, {5003, 5120}, {33, 64}, {7, 8}};
    (void)state;
    for (u32 size = 0; size < COUNT_OF(sizes); size++)
        for (u32 kind = 0; kind < 8; kind++) {
            float *logits = logits_of(kind, sizes[size][0], sizes[size][1]);
            const struct head head = {sizes[size][0], sizes[size][1], 8, TOP, 1, 0, logits, NULL};
            struct candidates got;
            select_candidates(&head, kind + size, &got);
            assert_candidates(&head, &got);
            kernels_clear(NULL);
            free(logits);
        }
}

static void candidates_are_transformed_and_mapped(void **state)
{
    enum { VOCAB = 1283, STRIDE = 1284 };
    u32 map[VOCAB];
    (void)state;
    for (u32 i = 0; i < VOCAB; i++)
        map[i] = 3 * i + 11;
    for (u32 turn = 0; turn < 6; turn++) {
        float *logits = logits_of(turn % 3 == 2 ? 7 : 0, VOCAB, STRIDE);
        for (u32 i = 0; turn == 1 && i < 8 * STRIDE; i++)
            logits[i] *= 0.01f; /* the series of tanh */
        const struct head head = {VOCAB,
                                  STRIDE,
                                  2 + turn,
                                  1 + 3 * turn,
                                  turn % 2 ? 0.19611613f : 1.0f,
                                  turn < 4 ? 20 : 0,
                                  logits,
                                  turn % 2 ? map : NULL};
        struct candidates got;
        select_candidates(&head, turn, &got);
        assert_candidates(&head, &got);
        kernels_clear(NULL);
        free(logits);
    }
}

/* ---- draft_lattice: binary64 */

enum { TOKENS = 200 };

struct selector {
    u32 rank, stride;
    const char *dtype;
    const float *gate, *predecessors, *successors; /* what the stored values mean */
};

static void *stored(const char *dtype, float *values, size_t count)
{
    u16 *halves;
    if (strcmp(dtype, "F32") == 0) {
        float *copy = malloc(count * sizeof *copy);
        memcpy(copy, values, count * sizeof *copy);
        return copy;
    }
    halves = halves_of(values, count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(dtype, "BF16") == 0)
            halves[i] = (u16)(float_bits(values[i]) >> 16);
        const u32 bits = (u32)halves[i] << 16;
        if (strcmp(dtype, "BF16") == 0)
            memcpy(values + i, &bits, 4);
        else
            values[i] = half_value(halves[i]);
    }
    return halves;
}

static float *scores_of(const struct selector *s, const struct candidates *c, dptr predecessors,
                        dptr successors, u32 anchor, u32 tuning)
{
    const u32 parts[] = {4, 16, 1u << 1, 8}, warps[] = {1, 8, 2, 4};
    struct jit_kernel *kernel = KERNEL_OF(
        "draft_lattice", JIT_NUMBER("rank", s->rank), JIT_NUMBER("gate_stride", s->stride),
        JIT_TEXT("dtype", s->dtype), JIT_NUMBER("part", parts[tuning % 4]),
        JIT_NUMBER("warps", warps[tuning % 4]),
        JIT_TEXT("map", tuning % 2 ? "strided" : "contiguous"));
    const u32 words[ROUND_WORDS] = {8, 77, anchor};
    const dptr scores = array_new(LATTICE * TOP * 4, NULL);
    LAUNCH(kernel, array_new(sizeof c->values, c->values), array_new(sizeof c->ids, c->ids),
           s->rank ? array_new((size_t)8 * s->stride * 4, s->gate) : 0, predecessors, successors,
           scores, array_new(sizeof words, words));
    return array_read(scores, LATTICE * TOP * 4);
}

/* The score as binary64; *size: what its rounding is measured by. */
static double score_of(const struct selector *s, const struct candidates *c, u32 row, u32 i,
                       u32 anchor, double *size)
{
    const u32 drafted = (row + TOP - 1) / TOP, at = drafted * TOP + i;
    const u32 before = row ? c->ids[row - 1] : anchor, after = c->ids[at];
    double sum = c->values[at];
    *size = fabs(sum);
    if (before == NONE || after == NONE)
        return -INFINITY;
    for (u32 r = 0; r < s->rank; r++) {
        const double term = (double)s->predecessors[before * s->rank + r] *
                            s->gate[(drafted + 1) * s->stride + r] *
                            s->successors[after * s->rank + r];
        sum += term;
        *size += fabs(term);
    }
    return isnan(sum) || isnan(c->values[at]) ? -INFINITY : sum;
}

static void random_candidates(struct candidates *c)
{
    for (u32 i = 0; i < DRAFTED * TOP; i++) {
        const u32 dice = random_word() % 40;
        c->values[i] = dice == 0 ? -INFINITY : dice == 1 ? NAN : random_float();
        c->ids[i] = dice < 3 ? NONE : random_word() % TOKENS;
    }
    c->ids[5] = NONE; /* a predecessor that is none, after which all are none */
    c->values[16 + 3] = -INFINITY;
}

static void check_lattice(u32 rank, u32 stride, const char *dtype)
{
    const u32 anchor = TOKENS - 1;
    float *gate = random_floats((size_t)8 * (stride ? stride : 1), 1);
    float *a = random_floats((size_t)TOKENS * rank + 1, 0.5f);
    float *b = random_floats((size_t)TOKENS * rank + 1, 0.5f);
    struct candidates c;
    random_candidates(&c);
    if (rank) {
        gate[6 * stride + rank - 1] = NAN; /* drafted row 5 has no score */
        b[c.ids[0] == NONE ? 0 : c.ids[0] * rank] = INFINITY;
    }
    void *stored_a = stored(dtype, a, (size_t)TOKENS * rank),
         *stored_b = stored(dtype, b, (size_t)TOKENS * rank);
    const size_t bytes = (size_t)TOKENS * rank * (strcmp(dtype, "F32") ? 2 : 4);
    const dptr at_a = rank ? array_new(bytes, stored_a) : 0,
               at_b = rank ? array_new(bytes, stored_b) : 0;
    const struct selector s = {rank, stride, dtype, gate, a, b};
    float *first = scores_of(&s, &c, at_a, at_b, anchor, 0);
    for (u32 tuning = 1; tuning < 4; tuning++) {
        float *other = scores_of(&s, &c, at_a, at_b, anchor, tuning);
        assert_same_floats(first, other, LATTICE * TOP);
        free(other);
    }
    for (u32 row = 0; row < LATTICE; row++)
        for (u32 i = 0; i < TOP; i++) {
            double size;
            const float got = first[row * TOP + i];
            const double wanted = score_of(&s, &c, row, i, anchor, &size);
            if (!(got == wanted || fabs(got - wanted) <= size * 1e-6))
                fail_msg("rank %u %s, row %u, candidate %u: %.9g, expected %.9g", rank, dtype, row,
                         i, got, wanted);
        }
    free(first), free(gate), free(a), free(b), free(stored_a), free(stored_b);
    kernels_clear(NULL);
}

static void lattice_matches_binary64(void **state)
{
    (void)state;
    check_lattice(256, 256, "BF16");
    check_lattice(32, 128, "F16");
    check_lattice(8, 8, "F32");
    check_lattice(264, 300, "BF16");
    check_lattice(512, 512, "F32");
    check_lattice(0, 0, "BF16");
}

/* ---- draft_tree: a plain search */

struct draft {
    float scores[LATTICE][TOP];
    u32 ids[DRAFTED][TOP];
    float calibration[DRAFTED][2];
    u32 base, anchor, is_tree, rows, depth;
};

struct builder {
    struct jit_kernel *kernel;
    dptr scores, ids, calibration, chances, round;
};

/* How a lattice row lies in lanes, and when its candidates are ordered; first the default. */
static const struct {
    u32 lanes, batch;
    const char *order, *ranks;
} layouts[] = {
    {16, 1, "apart", "late"},    {4, 2, "together", "early"}, {1, 2, "together", "late"},
    {8, 4, "together", "early"}, {2, 1, "apart", "late"},     {4, 4, "apart", "early"},
};

enum { BUILDERS = COUNT_OF(layouts) };

static struct builder builder_of(u32 tuning)
{
    const u32 few[] = {1, 2, 4}, many[] = {16, 4, 32, 8, 25, 13}, i = tuning % BUILDERS;
    return (struct builder){
        KERNEL_OF("draft_tree", JIT_NUMBER("warps", on_gpu() ? many[i] : few[i % 3]),
                  JIT_TEXT("map", tuning % 2 ? "contiguous" : "strided"),
                  JIT_NUMBER("lanes", layouts[i].lanes), JIT_NUMBER("batch", layouts[i].batch),
                  JIT_TEXT("order", layouts[i].order), JIT_TEXT("ranks", layouts[i].ranks)),
        array_new(LATTICE * TOP * 4, NULL),
        array_new(DRAFTED * TOP * 4, NULL),
        array_new(DRAFTED * 2 * 4, NULL),
        array_new(LATTICE * TOP * 4, NULL),
        array_new(ROUND_WORDS * 4, NULL)};
}

/* Runs the builder; the words of the draft pass that it need not look at are noise. */
static void build(const struct builder *b, const struct draft *d, float chances[LATTICE][TOP],
                  u32 round[ROUND_WORDS])
{
    u32 words[ROUND_WORDS];
    for (u32 i = 0; i < ROUND_WORDS; i++)
        words[i] = random_word();
    words[ROUND_BASE] = d->base;
    words[ROUND_TOKENS] = d->anchor;
    words[ROUND_DRAFT] = d->is_tree;
    words[ROUND_DRAFT + 1] = d->rows;
    words[ROUND_DRAFT + 2] = d->depth;
    array_write(b->round, words, sizeof words);
    array_write(b->scores, d->scores, sizeof d->scores);
    array_write(b->ids, d->ids, sizeof d->ids);
    array_write(b->calibration, d->calibration, sizeof d->calibration);
    LAUNCH(b->kernel, b->scores, b->ids, b->calibration, b->chances, b->round);
    void *copy = array_read(b->chances, LATTICE * TOP * 4);
    memcpy(chances, copy, LATTICE * TOP * 4);
    free(copy);
    copy = array_read(b->round, sizeof words);
    memcpy(round, copy, sizeof words);
    free(copy);
}

struct node {
    float score;
    u32 depth, candidate, key; /* key: 4 bits a depth, the first highest */
    u32 parent;                /* 1 + index among the taken; 0 = the anchor */
    bool is_taken;
};

static const float *row_after(const float weights[LATTICE][TOP], const struct node *node)
{
    return weights[node ? 1 + TOP * (node->depth - 1) + node->candidate : 0];
}

static bool is_before(const struct node *a, const struct node *b)
{
    if (a->score != b->score)
        return a->score > b->score;
    return a->key != b->key ? a->key < b->key : a->depth < b->depth;
}

/* Adds the `most` best children of a taken node (NULL: the anchor), none of -infinity. */
static u32 push(struct node *frontier, u32 count, const float chances[LATTICE][TOP],
                const struct node *above, u32 parent, u32 most)
{
    const float *row = row_after(chances, above);
    const u32 depth = above ? above->depth + 1 : 1;
    bool is_pushed[TOP] = {false};
    for (u32 turn = 0; turn < most; turn++) {
        u32 best = TOP;
        for (u32 i = 0; i < TOP; i++)
            if (!is_pushed[i] && row[i] > -INFINITY && (best == TOP || row[i] > row[best]))
                best = i;
        if (best == TOP)
            break;
        is_pushed[best] = true;
        const float score = above ? above->score + row[best] : row[best];
        if (score > -INFINITY)
            frontier[count++] = (struct node){
                .score = score,
                .depth = depth,
                .candidate = best,
                .key = (above ? above->key : 0) | best << 4 * (7 - depth),
                .parent = parent,
            };
    }
    return count;
}

static u32 search(const struct draft *d, const float chances[LATTICE][TOP], struct node *taken)
{
    struct node frontier[64];
    u32 count = d->depth ? push(frontier, 0, chances, NULL, 0, TOP) : 0, done = 0;
    for (; done + 1 < d->rows; done++) {
        struct node *best = NULL;
        for (u32 i = 0; i < count; i++)
            if (!frontier[i].is_taken && (!best || is_before(frontier + i, best)))
                best = frontier + i;
        if (!best)
            break;
        best->is_taken = true;
        taken[done] = *best;
        if (best->depth < d->depth)
            count = push(frontier, count, chances, &taken[done], done + 1, 4);
    }
    return done;
}

static u32 walk(const struct draft *d, struct node *taken)
{
    u32 done = 0;
    while (done + 1 < d->rows && done < d->depth) {
        const float *row = row_after(d->scores, done ? &taken[done - 1] : NULL);
        float top = -INFINITY;
        u32 best = TOP;
        for (u32 i = 0; i < TOP; i++)
            if (row[i] > top)
                top = row[best = i];
        if (best == TOP)
            break;
        taken[done] = (struct node){.depth = done + 1, .candidate = best, .parent = done};
        done++;
    }
    return done;
}

/* Rows by depth, those of one depth in the order of taking. */
static void propose(const struct draft *d, const struct node *taken, u32 count,
                    struct engine_proposal *tree)
{
    u32 row_of[DRAFTED + 1] = {0};
    *tree = (struct engine_proposal){.rows = 1, .token = {d->anchor}};
    for (u32 depth = 1; depth <= DRAFTED; depth++)
        for (u32 i = 0; i < count; i++)
            if (taken[i].depth == depth) {
                row_of[i + 1] = tree->rows;
                tree->parent[tree->rows] = (u8)row_of[taken[i].parent];
                tree->token[tree->rows++] = d->ids[depth - 1][taken[i].candidate];
            }
}

static void assert_round(const struct draft *d, const float chances[LATTICE][TOP],
                         const u32 round[ROUND_WORDS], u32 turn)
{
    struct node taken[DRAFTED];
    struct engine_proposal tree;
    u32 wanted[ROUND_WORDS];
    const u32 count = d->is_tree ? search(d, chances, taken) : walk(d, taken);
    propose(d, taken, count, &tree);
    tree_describe(&tree, d->base, wanted);
    for (u32 i = 0; i < ROUND_WORDS; i++)
        if (round[i] != wanted[i])
            fail_msg("lattice %u (%s, %u rows, depth %u), word %u: %#x, expected %#x", turn,
                     d->is_tree ? "tree" : "chain", d->rows, d->depth, i, round[i], wanted[i]);
}

/* The program of a descriptor, played on histories instead of states: every row comes out once,
 * after its ancestors and nothing else. */
static void assert_program(const u32 round[ROUND_WORDS])
{
    u32 history[PROGRAM_MOST], length = 0, emitted = 0;
    assert_in_range(round[ROUND_STEPS], round[ROUND_ROWS], STEPS_MOST);
    for (u32 i = 0; i < round[ROUND_STEPS]; i++) {
        const u32 op = round[ROUND_PROGRAM + i] >> 4, row = round[ROUND_PROGRAM + i] & 15;
        if (op == TREE_RELOAD) {
            length = 0;
            continue;
        }
        history[length++] = row;
        if (op != TREE_REPLAY) {
            u32 above = row;
            assert_int_equal(emitted >> row & 1, 0);
            emitted |= 1u << row;
            for (u32 j = length; j-- > 0; above = round[ROUND_PARENTS + above])
                assert_int_equal(history[j], above);
            assert_int_equal(above, NONE);
        }
        length -= op == TREE_PEEK;
    }
    assert_int_equal(emitted, (1u << round[ROUND_ROWS]) - 1);
}

static float odd_value(u32 kind, float value)
{
    const u32 dice = random_word();
    switch (kind) {
    case 1: return rintf(value); /* ties */
    case 2: return dice % 3 ? value : -INFINITY;
    case 3: return dice % 3 == 0 ? NAN : rintf(value);
    case 4: return dice % 64 ? value : INFINITY;
    case 5: return dice % 2 ? 0.0f : -0.0f;
    case 6: return dice % 8 ? -INFINITY : value;
    case 7: return dice % 128 ? value : 3e38f;
    default: return value;
    }
}

/* kind 0: as a draft gives; others: what must not break it. */
static void random_draft(struct draft *d, u32 kind)
{
    const float scale = 0.5f + (float)(random_word() % 8);
    for (u32 i = 0; i < LATTICE; i++) {
        const u32 row_kind = random_word() % 12;
        const float center = random_float();
        for (u32 j = 0; j < TOP; j++) {
            float value = center + random_float() * scale;
            value = odd_value(kind % 8, value);
            if (kind % 8 != 0 && i > 0)
                value = row_kind == 0 ? NAN : row_kind == 1 ? -INFINITY : row_kind == 2 ? 1 : value;
            d->scores[i][j] = value;
        }
    }
    for (u32 i = 0; i < DRAFTED; i++) {
        const u32 first = random_word() % 5000;
        for (u32 j = 0; j < TOP; j++)
            d->ids[i][j] = (first + j * 37) % 5000;
        d->calibration[i][0] = kind % 16 == 1 ? 1 : 0.5f + (float)(random_word() % 100) / 100;
        d->calibration[i][1] = kind % 16 == 1 ? 0 : -(float)(random_word() % 100) / 1000;
    }
    d->base = random_word() % 262144;
    d->anchor = random_word() % 5000;
    d->is_tree = kind % 5 != 0;
    d->rows = kind % 3 ? 8 : 1 + random_word() % 8;
    d->depth = kind % 7 ? 7 : random_word() % 8;
}

static void trees_match_the_reference(void **state)
{
    enum { TURNS = 3000 };
    struct builder builders[BUILDERS];
    u32 shapes[TURNS], shape_count = 0, most_steps = 0;
    (void)state;
    for (u32 i = 0; i < BUILDERS; i++)
        builders[i] = builder_of(i);
    for (u32 turn = 0; turn < TURNS; turn++) {
        struct draft d;
        float chances[LATTICE][TOP];
        u32 round[ROUND_WORDS], shape = 0, known = 0;
        random_draft(&d, turn);
        build(&builders[turn / 16 % BUILDERS], &d, chances, round);
        assert_round(&d, chances, round, turn);
        assert_program(round);
        most_steps = round[ROUND_STEPS] > most_steps ? round[ROUND_STEPS] : most_steps;
        for (u32 row = 1; row < round[ROUND_ROWS]; row++)
            shape = shape * 8 + round[ROUND_PARENTS + row] + 1;
        while (known < shape_count && shapes[known] != shape)
            known++;
        shapes[known] = shape;
        shape_count = known == shape_count ? shape_count + 1 : shape_count;
    }
    /* The lattices are worth something: many trees, programs with several ways back. */
    assert_true(shape_count >= 200);
    assert_true(most_steps >= 12);
}

static void chances_match_binary64(void **state)
{
    enum { TURNS = 40 };
    const struct builder b = builder_of(0);
    (void)state;
    for (u32 turn = 0; turn < TURNS; turn++) {
        struct draft d;
        float chances[LATTICE][TOP];
        u32 round[ROUND_WORDS];
        random_draft(&d, turn % 2 ? 2 : 0);
        build(&b, &d, chances, round);
        for (u32 row = 0; row < LATTICE; row++) {
            const float *t = d.calibration[(row + TOP - 1) / TOP];
            double top = -INFINITY, sum = 0;
            for (u32 i = 0; i < TOP; i++)
                top = fmax(top, (double)d.scores[row][i] * t[0]);
            for (u32 i = 0; i < TOP; i++)
                sum += exp((double)d.scores[row][i] * t[0] - top);
            for (u32 i = 0; i < TOP; i++) {
                double wanted = (double)d.scores[row][i] * t[0] - top - log(sum) + t[1];
                wanted = isnan(wanted) ? -INFINITY : wanted; /* rows of NaN, of -infinity */
                const float got = chances[row][i];
                if (!(got == wanted || fabs(got - wanted) <= 1e-6 * (1 + fabs(top - wanted))))
                    fail_msg("row %u, candidate %u: %.9g, expected %.9g", row, i, got, wanted);
            }
        }
    }
}

/* Calibration is monotone, so the likeliest first node is the walk's, unless rounding made two
 * scores one log-probability. */
static void tree_starts_as_the_walk_does(void **state)
{
    const struct builder b = builder_of(0);
    u32 compared = 0;
    (void)state;
    for (u32 turn = 0; turn < 100; turn++) {
        struct draft d;
        float chances[LATTICE][TOP];
        u32 tree[ROUND_WORDS], chain[ROUND_WORDS], equal = 0;
        random_draft(&d, 0);
        d.rows = 8;
        d.depth = 7;
        d.is_tree = 0;
        build(&b, &d, chances, chain);
        d.is_tree = 1;
        build(&b, &d, chances, tree);
        for (u32 i = 1; i < TOP; i++)
            for (u32 j = 0; j < i; j++)
                equal |= chances[0][i] == chances[0][j];
        if (equal)
            continue;
        compared++;
        assert_int_equal(tree[ROUND_TOKENS + 1], chain[ROUND_TOKENS + 1]);
        d.rows = 2; /* a tree of one drafted row is that first node */
        build(&b, &d, chances, tree);
        assert_int_equal(tree[ROUND_TOKENS + 1], chain[ROUND_TOKENS + 1]);
    }
    assert_true(compared > 80);
}

/* Scores that are no numbers, zeros of both signs and ties included. */
static void layout_does_not_show(void **state)
{
    enum { TURNS = 160 };
    struct builder builders[BUILDERS];
    (void)state;
    for (u32 i = 0; i < BUILDERS; i++)
        builders[i] = builder_of(i);
    for (u32 turn = 0; turn < TURNS; turn++) {
        struct draft d;
        float first[LATTICE][TOP], chances[LATTICE][TOP];
        u32 first_round[ROUND_WORDS], round[ROUND_WORDS];
        random_draft(&d, turn);
        build(&builders[0], &d, first, first_round);
        for (u32 i = 1; i < BUILDERS; i++) {
            build(&builders[i], &d, chances, round);
            assert_memory_equal(chances, first, sizeof chances);
            assert_memory_equal(round, first_round, sizeof round);
        }
    }
}

/* ---- all four: one descriptor, whatever the tuning */

static void tuning_does_not_show(void **state)
{
    enum { RANK = 64 };
    float *gate = random_floats(8 * RANK, 1), *a = random_floats(TOKENS * 20 * RANK, 0.3f),
          *b = random_floats(TOKENS * 20 * RANK, 0.3f);
    u32 first[ROUND_WORDS];
    float first_chances[LATTICE][TOP];
    (void)state;
    float *logits = logits_of(0, TOKENS * 20 - 1, TOKENS * 20);
    const struct head head = {TOKENS * 20 - 1, TOKENS * 20, 8, TOP, 0.5f, 20, logits, NULL};
    const struct selector s = {RANK, RANK, "F32", gate, a, b};
    for (u32 tuning = 0; tuning < 6; tuning++) {
        struct candidates c;
        struct draft d = {.base = 1000, .anchor = 5, .is_tree = 1, .rows = 8, .depth = 7};
        float chances[LATTICE][TOP];
        u32 round[ROUND_WORDS];
        for (u32 i = 0; i < DRAFTED; i++)
            d.calibration[i][0] = 1, d.calibration[i][1] = -0.01f;
        select_candidates(&head, tuning, &c);
        float *scores = scores_of(&s, &c, array_new(TOKENS * 20 * RANK * 4, a),
                                  array_new(TOKENS * 20 * RANK * 4, b), d.anchor, tuning);
        memcpy(d.scores, scores, sizeof d.scores);
        memcpy(d.ids, c.ids, sizeof d.ids);
        free(scores);
        const struct builder builder = builder_of(tuning);
        build(&builder, &d, chances, round);
        assert_int_equal(round[ROUND_ROWS], 8);
        if (tuning == 0) {
            memcpy(first, round, sizeof first);
            memcpy(first_chances, chances, sizeof chances);
        }
        assert_memory_equal(round, first, sizeof first);
        assert_memory_equal(chances, first_chances, sizeof chances);
        kernels_clear(NULL);
    }
    free(gate), free(a), free(b), free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(candidates_are_a_sort, kernels_clear),
        cmocka_unit_test_teardown(candidates_are_transformed_and_mapped, kernels_clear),
        cmocka_unit_test_teardown(lattice_matches_binary64, kernels_clear),
        cmocka_unit_test_teardown(trees_match_the_reference, kernels_clear),
        cmocka_unit_test_teardown(chances_match_binary64, kernels_clear),
        cmocka_unit_test_teardown(tree_starts_as_the_walk_does, kernels_clear),
        cmocka_unit_test_teardown(layout_does_not_show, kernels_clear),
        cmocka_unit_test_teardown(tuning_does_not_show, kernels_clear),
    };
    return cmocka_run_group_tests(tests, kernels_open, kernels_close);
}
