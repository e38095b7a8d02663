//@ -- see schedules/draft_tree.lua
//@ include("lib_order")
//@ local PATH_BITS = 4 * DEPTHS
// This lane's candidates of a lattice row, from the first.
//@ local width = order == "together" and math.min(values, 4) or 1
static FN void read_values(const f32 *row, f32 v[${values}])
{
    //@ if width == 1 then
    for (u32 i = 0; i < ${values}; i++)
        v[i] = row[${value_step} * i];
    //@ else
    u32 words[${values}];
    for (u32 i = 0; i < ${values}; i += ${width})
        load${width}_u32((const u32 *)row + i, words + i);
    for (u32 i = 0; i < ${values}; i++)
        v[i] = f_from_bits(words[i]);
    //@ end
}

static FN void write_values(f32 *row, const f32 v[${values}])
{
    //@ if width == 1 then
    for (u32 i = 0; i < ${values}; i++)
        row[${value_step} * i] = v[i];
    //@ else
    u32 words[${values}];
    for (u32 i = 0; i < ${values}; i++)
        words[i] = f_bits(v[i]);
    for (u32 i = 0; i < ${values}; i += ${width})
        store${width}_u32((u32 *)row + i, words + i);
    //@ end
}

// The sum over a lattice row, whose lanes all get it: a xor butterfly, the terms are used up.
static FN f32 sum_of_row(f32 term[${values}])
{
    //@ local mask, left = TOP // 2, values
    //@ while mask > 0 do
    //@ if mask >= lane_step and mask < lane_step * lanes then
    for (u32 i = 0; i < ${left}; i++)
        term[i] = f_add(term[i], shuffle_xor_f32(term[i], ${mask // lane_step}));
    //@ else
    //@ left = left // 2
    for (u32 i = 0; i < ${left}; i++)
        term[i] = f_add(term[i], term[i + ${left}]);
    //@ end
    //@ mask = mask // 2
    //@ end
    return term[0];
}

// From the calibrated scores x of a lattice row to log-probabilities.
static FN void chances_of(f32 x[${values}], f32 recall)
{
    f32 term[${values}], top = x[0];
    for (u32 i = 1; i < ${values}; i++)
        top = f_max(top, x[i]);
    //@ local mask = lanes // 2
    //@ while mask > 0 do
    top = f_max(top, shuffle_xor_f32(top, ${mask}));
    //@ mask = mask // 2
    //@ end
    for (u32 i = 0; i < ${values}; i++) {
        x[i] = f_sub(x[i], top);
        term[i] = f_exp(x[i]);
    }
    const f32 log_sum = f_mul(f_log2(sum_of_row(term)), ${f32(0.6931471805599453)});
    for (u32 i = 0; i < ${values}; i++) {
        const f32 chance = f_add(f_sub(x[i], log_sum), recall);
        x[i] = f_select(f_gt(chance, ${MINUS_INFINITY}), chance, ${MINUS_INFINITY});
    }
}

static FN u32 lowest_bit(u32 mask)
{
    return ${WARP - 1} - leading_zeros(mask & (0 - mask));
}

// The candidate that a path takes at a depth; the path that goes on from there; the lattice row of
// its children.
static FN u32 candidate_at(u32 path, u32 depth)
{
    return path >> (${PATH_BITS} - 4 * depth) & 15;
}

static FN u32 path_with(u32 path, u32 depth, u32 candidate)
{
    return path | candidate << (${PATH_BITS} - 4 * depth);
}

static FN u32 children_row(u32 path, u32 depth)
{
    return depth == 0 ? 0 : 1 + ${TOP} * (depth - 1) + candidate_at(path, depth);
}

// A frontier entry: the larger is taken first, 0 is none.
static FN u64 enter(f32 score, u32 path, u32 depth)
{
    const u32 late = 0x7fffffffu - (path << 3 | depth);
    return f_gt(score, ${MINUS_INFINITY}) ? (u64)order_of(score) << 32 | late : 0;
}

static FN u64 warp_max_u64(u64 value)
{
    const u32 high = warp_max_u32((u32)(value >> 32));
    return (u64)high << 32 | warp_max_u32((u32)(value >> 32) == high ? (u32)value : 0);
}

// How many of a lattice row's candidates are better than candidate `mine`.
static FN u32 rank_in(const f32 *row, u32 mine)
{
    u32 rank = 0;
    //@ for i = 0, TOP - 1 do
    rank += f_gt(row[${i}], row[mine]) | (f_eq(row[${i}], row[mine]) & (${i} < mine));
    //@ end
    return rank;
}

// Both searches are by one warp, write the places of taken nodes and return how many they are.
static FN u32 search_tree(const f32 *weight, u32 most, u32 deepest, u64 *frontier, u32 *taken)
{
    const u32 lane = lane_id(), child = lane % ${TOP};
    const u32 is_first = lane < ${TOP} && deepest > 0;
    frontier[lane] = is_first ? enter(weight[child], path_with(0, 1, child), 1) : 0;
    frontier[${WARP} + lane] = 0;
    warp_sync();
    for (u32 count = 0; count < most; count++) {
        const u64 low = frontier[lane], high = frontier[${WARP} + lane];
        const u64 best = warp_max_u64(low > high ? low : high);
        if (best == 0)
            return count;
        const u32 place = 0x7fffffffu - (u32)best;
        const u32 path = place >> 3, depth = place & 7;
        warp_sync();
        if (low == best)
            frontier[lane] = 0;
        if (high == best)
            frontier[${WARP} + lane] = 0;
        if (lane == 0)
            taken[count] = place;
        if (lane < ${TOP} && depth < deepest) {
            const f32 *row = weight + children_row(path, depth) * ${TOP};
            const f32 score = f_add(value_of((u32)(best >> 32)), row[child]);
            //@ if ranks == "early" then
            const u32 rank = ${shared.rank}[row - weight + child];
            //@ else
            const u32 rank = rank_in(row, child);
            //@ end
            if (rank < ${CHILDREN})
                frontier[${TOP} + ${CHILDREN} * count + rank] =
                    enter(score, path_with(path, depth + 1, child), depth + 1);
        }
        warp_sync();
    }
    return most;
}

static FN u32 search_chain(const f32 *weight, u32 most, u32 deepest, u32 *taken)
{
    const u32 lane = lane_id();
    u32 path = 0;
    most = most < deepest ? most : deepest;
    for (u32 depth = 0; depth < most; depth++) {
        const f32 *row = weight + children_row(path, depth) * ${TOP};
        const u32 order = lane < ${TOP} ? order_of(row[lane]) : 0, top = warp_max_u32(order);
        if (top <= ${LOWEST_ORDER})
            return depth;
        path = path_with(path, depth + 1, lowest_bit(warp_ballot(order == top)));
        if (lane == 0)
            taken[depth] = path << 3 | (depth + 1);
    }
    return most;
}

// The GDN program of a tree; returns its steps. Byte v of `below`: the rows right below row v, as
// bits. paths: nibble j of a row's is its ancestor at depth j.
static FN u32 write_program(u64 below, const u32 *paths, u32 *program)
{
    u32 inner = 0, steps = 0, row = 0, depth = 0, path = paths[0];
    u64 waiting = below; // inner rows that are still to be visited
    for (u32 v = 0; v < ${NODES}; v++)
        inner |= (u32)((below >> 8 * v & 255) != 0) << v;
    for (u32 v = 0; v < ${NODES}; v++)
        waiting &= ~((u64)(~inner & 255) << 8 * v);
    program[steps++] = ${ADVANCE << 4};
    for (;;) {
        u32 leaves = (u32)(below >> 8 * row) & 255 & ~inner, next = (u32)(waiting >> 8 * row) & 255;
        u32 is_back = 0;
        for (; leaves != 0; leaves &= leaves - 1) {
            const u32 is_last = next == 0 && (leaves & (leaves - 1)) == 0;
            program[steps++] = (is_last ? ${ADVANCE << 4} : ${PEEK << 4}) | lowest_bit(leaves);
        }
        for (; next == 0; is_back = 1) {
            if (depth == 0)
                return steps;
            depth--;
            row = path >> 4 * depth & 15;
            next = (u32)(waiting >> 8 * row) & 255;
        }
        if (is_back) {
            program[steps++] = ${RELOAD << 4};
            for (u32 j = 0; j <= depth; j++)
                program[steps++] = ${REPLAY << 4} | (path >> 4 * j & 15);
        }
        const u32 child = lowest_bit(next);
        waiting ^= (u64)1 << (8 * row + child);
        program[steps++] = ${ADVANCE << 4} | child;
        row = child;
        depth++;
        path = paths[row];
    }
}

// By one warp: the descriptor of the anchor and `count` taken nodes, into out (all zero so far).
static FN void describe(const u32 *taken, u32 count, const u32 *token, u32 base, u32 anchor,
                        u32 *node, u32 *out)
{
    const u32 lane = lane_id(), rows = count + 1;
    if (lane < count) {
        u32 row = 1;
        for (u32 i = 0; i < count; i++) {
            const u32 other = taken[i] & 7, mine = taken[lane] & 7;
            row += other < mine || (other == mine && i < lane);
        }
        node[row] = taken[lane];
    }
    if (lane == 0)
        node[0] = 0;
    warp_sync();
    const u32 path = lane < rows ? node[lane] >> 3 : 0, depth = lane < rows ? node[lane] & 7 : 0;
    u32 ancestors = 0, nibbles = 0xffffffffu, parent = 0xffffffffu;
    for (u32 r = 0; r < rows; r++) {
        const u32 other = node[r] & 7, rest = ${PATH_BITS} - 4 * other;
        if (other <= depth && path >> rest == node[r] >> 3 >> rest) {
            ancestors |= 1u << r;
            nibbles ^= (15 ^ r) << 4 * other;
            parent = other + 1 == depth ? r : parent;
        }
    }
    u64 below = 0;
    for (u32 r = 0; r < ${NODES}; r++)
        below |= (u64)warp_ballot(lane < rows && parent == r) << 8 * r;
    if (lane < rows) {
        out[${TOKENS} + lane] =
            depth == 0 ? anchor : token[(depth - 1) * ${TOP} + candidate_at(path, depth)];
        out[${POSITIONS} + lane] = base + depth;
        out[${ANCESTORS} + lane] = ancestors;
        out[${PATHS} + lane] = nibbles;
        out[${PARENTS} + lane] = parent;
    }
    warp_sync();
    if (lane == 0) {
        out[0] = rows;
        out[1] = base;
        out[${STEPS}] = write_program(below, out + ${PATHS}, out + ${PROGRAM});
    }
    warp_sync();
}

KERNEL
{
    const u32 lane = lane_id();
    const u32 base = round[1], anchor = round[2], is_tree = round[${DRAFT}] != 0;
    const u32 rows = round[${DRAFT + 1}], depths = round[${DRAFT + 2}];
    const u32 most = rows == 0 ? 0 : (rows < ${NODES} ? rows : ${NODES}) - 1;
    const u32 deepest = depths < ${DEPTHS} ? depths : ${DEPTHS};
    f32 *weight = ${shared.weight};
    u32 *token = ${shared.token}, *out = ${shared.out};
    wait_previous();
    ${jobs.open}
        const u32 first = group * ${rows_abreast * batch} + lane / ${lanes};
        const u32 column = lane % ${lanes} * ${lane_step};
        f32 score[${batch}][${values}];
        #pragma unroll
        for (u32 n = 0; n < ${batch}; n++) {
            const u32 wanted = first + ${rows_abreast} * n;
            const u32 row = wanted < ${ROWS} ? wanted : ${ROWS - 1};
            read_values(scores + row * ${TOP} + column, score[n]);
        }
        #pragma unroll
        for (u32 n = 0; n < ${batch}; n++) {
            const u32 wanted = first + ${rows_abreast} * n;
            const u32 row = wanted < ${ROWS} ? wanted : ${ROWS - 1};
            const u32 at = row * ${TOP} + column, drafted = (row + ${TOP - 1}) / ${TOP};
            f32 chance[${values}];
            for (u32 i = 0; i < ${values}; i++)
                chance[i] = f_max(f_mul(score[n][i], calibration[drafted * 2]), ${MINUS_INFINITY});
            chances_of(chance, calibration[drafted * 2 + 1]);
            for (u32 i = 0; i < ${values}; i++)
                score[n][i] = f_select(is_tree, chance[i], score[n][i]);
            if (wanted < ${ROWS}) {
                write_values(chances + at, chance);
                write_values(weight + at, score[n]);
            }
        }
    ${jobs.close}
    for (u32 i = thread_id(); i < ${DEPTHS * TOP}; i += ${WARP * warps})
        token[i] = ids[i];
    for (u32 i = thread_id(); i < ${WORDS}; i += ${WARP * warps})
        out[i] = 0;
    block_sync();
    //@ if ranks == "early" then
    for (u32 i = thread_id(); i < ${ROWS * TOP}; i += ${WARP * warps})
        ${shared.rank}[i] = (u8)rank_in(weight + i / ${TOP} * ${TOP}, i % ${TOP});
    block_sync();
    //@ end
    if (warp_id() == 0) {
        u32 *taken = ${shared.taken};
        const u32 count = is_tree ? search_tree(weight, most, deepest, ${shared.frontier}, taken)
                                  : search_chain(weight, most, deepest, taken);
        warp_sync();
        describe(taken, count, token, base, anchor, ${shared.node}, out);
        for (u32 i = lane; i < ${WORDS}; i += ${WARP})
            round[i] = out[i];
    }
}
