/* linear.c - groups of exact decode linears (design.md 4.1).
 *
 *   linear_input   activations -> byte planes, exponents, sums     (each matrix its own suh)
 *   linear_main    integer products of all matrices of the group
 *   linear_output  sums -> f32, Hadamard, svh; into outputs or the residual stream
 *   linear_middle  of gate and up to down: output and input in one
 *
 * Kernels of a mixer do what linear_middle does where they can: they take the sums of the linears
 * before them and make the activations of the one behind.
 *
 * Matrices that read one input form a set; those of equal bits and codebook share a group, so a
 * model that mixes bit widths has more launches, not other results. Unquantised matrices of a set
 * take activate, linear_plain (fp32 in one fixed order) and, into the residual stream, residual.
 * Scratch is the engine's: groups run one after another.
 */
#include "engine/engine_private.h"

#include <string.h>

const char *codebook_name(enum codebook codebook)
{
    return codebook == CODEBOOK_MUL1 ? "mul1" : codebook == CODEBOOK_MCG ? "mcg" : "3inst";
}

/* The bits of an f32 as a parameter. */
u32 float_bits(double value)
{
    const float narrow = (float)value;
    u32 bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}

static int upload_matrix(struct engine *engine, const struct model_linear *linear,
                         struct linear_group *group, u32 part, struct error *error)
{
    const u64 words = (u64)linear->in_padded / 16 * (linear->out_padded / 16) * 8 * linear->bits;
    if (engine_upload_later(engine, linear->trellis, words * 4, linear->name, &group->trellis[part],
                            error) ||
        engine_upload(engine, linear->suh, linear->in_padded * 2, linear->name, &group->suh[part],
                      error) ||
        engine_upload(engine, linear->svh, linear->out_padded * 2, linear->name, &group->svh[part],
                      error))
        return -1;
    engine->packs = memory_resize(engine->packs, (engine->pack_count + 1) * sizeof *engine->packs);
    struct trellis_pack *pack = &engine->packs[engine->pack_count++];
    *pack = (struct trellis_pack){.trellis = group->trellis[part],
                                  .count = linear->in_padded / 16 * (linear->out_padded / 64)};
    const struct jit_parameter bits[] = {JIT_NUMBER("bits", linear->bits), {0}};
    if (jit_request(engine->jit, "trellis_pack", bits, &pack->kernel, error))
        return -1;
    group->sources[part] = linear;
    group->n[part] = linear->out_padded;
    return 0;
}

int linear_pack(struct engine *engine, struct error *error)
{
    for (u32 i = 0; i < engine->pack_count; i++)
        LAUNCH(engine->packs[i].kernel, engine->packs[i].trellis, engine->packs[i].count);
    memory_free(engine->packs);
    engine->packs = NULL;
    engine->pack_count = 0;
    return 0;
}

static int request_input(struct engine *engine, struct linear_group *group, const char *mode,
                         struct error *error)
{
    const u32 eps = float_bits(engine->model->config.norm_eps);
    const struct jit_parameter input[] = {JIT_NUMBER("k", group->k),
                                          JIT_NUMBER("k_valid", group->sources[0]->in),
                                          JIT_NUMBER("parts", group->count),
                                          JIT_TEXT("mode", mode),
                                          JIT_NUMBER("eps", eps),
                                          {0}};
    return jit_request(engine->jit, "linear_input", input, &group->input, error);
}

static int request_kernels(struct engine *engine, struct linear_group *group, const char *mode,
                           struct error *error)
{
    const struct model_linear *first = group->sources[0];
    const struct jit_parameter product[] = {JIT_NUMBER("k", group->k),
                                            JIT_NUMBER("n0", group->n[0]),
                                            JIT_NUMBER("n1", group->n[1]),
                                            JIT_NUMBER("n2", group->n[2]),
                                            JIT_NUMBER("n3", group->n[3]),
                                            JIT_NUMBER("bits", first->bits),
                                            JIT_TEXT("codebook", codebook_name(first->codebook)),
                                            {0}};
    const struct jit_parameter output[] = {JIT_NUMBER("n0", group->n[0]),
                                           JIT_NUMBER("n1", group->n[1]),
                                           JIT_NUMBER("n2", group->n[2]),
                                           JIT_NUMBER("n3", group->n[3]),
                                           JIT_TEXT("codebook", codebook_name(first->codebook)),
                                           JIT_TEXT("mode", group->residual ? "residual" : "store"),
                                           {0}};
    return request_input(engine, group, mode, error) ||
                   jit_request(engine->jit, "linear_main", product, &group->main, error) ||
                   jit_request(engine->jit, "linear_output", output, &group->finish, error)
               ? -1
               : 0;
}

static int finish_group(struct engine *engine, struct linear_group *group, const char *mode,
                        struct error *error)
{
    u64 lists[4][PARTS] = {{0}};
    for (u32 i = 0; i < group->count; i++) {
        lists[0][i] = group->trellis[i];
        lists[1][i] = group->suh[i];
        lists[2][i] = group->svh[i];
        lists[3][i] = group->output[i];
    }
    if (engine_upload(engine, lists, sizeof lists, "pointer lists", &group->lists, error))
        return -1;
    return request_kernels(engine, group, mode, error);
}

static int request_activate(struct engine *engine, struct linear_set *set, u32 k, const char *mode,
                            struct error *error)
{
    const struct jit_parameter activate[] = {
        JIT_NUMBER("k", k),
        JIT_NUMBER("rows_max", ROWS),
        JIT_TEXT("mode", mode),
        JIT_NUMBER("eps", float_bits(engine->model->config.norm_eps)),
        {0}};
    return jit_request(engine->jit, "activate", activate, &set->activate, error);
}

static int add_plain(struct engine *engine, struct linear_set *set,
                     const struct model_linear *linear, dptr output, const char *mode,
                     bool residual, struct error *error)
{
    struct plain_linear *plain = &set->plains[set->plain_count++];
    const u32 eps = float_bits(engine->model->config.norm_eps);
    const struct jit_parameter product[] = {JIT_NUMBER("k", linear->in),
                                            JIT_NUMBER("n0", linear->out),
                                            JIT_NUMBER("n1", 0),
                                            JIT_TEXT("dtype", dtype_name(linear->weight_dtype)),
                                            JIT_TEXT("mode", "plain"),
                                            JIT_NUMBER("eps", eps),
                                            {0}};
    const struct jit_parameter add[] = {
        JIT_NUMBER("n", linear->out), JIT_NUMBER("rows_max", ROWS), {0}};
    plain->source = linear;
    plain->output = residual ? 0 : output;
    if (engine_upload_later(engine, linear->weight,
                            (u64)linear->in * linear->out * dtype_size(linear->weight_dtype),
                            linear->name, &plain->weight, error) ||
        request_activate(engine, set, linear->in, mode, error) ||
        jit_request(engine->jit, "linear_plain", product, &plain->product, error))
        return -1;
    return residual ? jit_request(engine->jit, "residual", add, &set->residual, error) : 0;
}

/* The group of the set that takes the matrix; a new one where none has room. */
static struct linear_group *find_group(struct linear_set *set, const struct model_linear *linear)
{
    for (u32 i = 0; i < set->count; i++) {
        struct linear_group *group = &set->groups[i];
        if (group->count < PARTS && group->sources[0]->bits == linear->bits &&
            group->sources[0]->codebook == linear->codebook)
            return group;
    }
    return &set->groups[set->count++];
}

int linear_set_build(struct engine *engine, struct linear_set *set,
                     const struct model_linear *const *sources, const dptr *outputs, u32 count,
                     const char *mode, bool residual, struct error *error)
{
    for (u32 i = 0; i < count; i++) {
        const struct model_linear *linear = sources[i];
        if (linear->kind == LINEAR_PLAIN) {
            if (add_plain(engine, set, linear, outputs[i], mode, residual, error))
                return -1;
            continue;
        }
        struct linear_group *group = find_group(set, linear);
        group->k = linear->in_padded;
        group->residual = residual;
        group->output[group->count] = outputs[i];
        if (upload_matrix(engine, linear, group, group->count, error))
            return -1;
        group->count++;
    }
    for (u32 i = 0; i < set->count; i++)
        if (finish_group(engine, &set->groups[i], mode, error))
            return -1;
    return 0;
}

/* Kernels of the input in another mode; weights and outputs are those of `from`. */
int linear_set_alias(struct engine *engine, const struct linear_set *from, const char *mode,
                     struct linear_set *to, struct error *error)
{
    *to = *from;
    for (u32 i = 0; i < to->count; i++) {
        if (request_input(engine, &to->groups[i], mode, error))
            return -1;
    }
    return to->plain_count ? request_activate(engine, to, to->plains[0].source->in, mode, error)
                           : 0;
}

static int launch_input(struct engine *engine, const struct linear_group *group, dptr x, dptr y,
                        dptr weight, struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    LAUNCH(group->input, x, y, b->squares, weight, group->lists + PARTS * sizeof(u64), b->act,
           b->exponents, b->digits, b->bad, b->round);
    return 0;
}

static int launch_main(struct engine *engine, const struct linear_group *group, struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    LAUNCH(group->main, group->lists, b->act, b->exponents, b->digits, b->sums, b->scales,
           b->round);
    return 0;
}

static int launch_output(struct engine *engine, const struct linear_group *group,
                         struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    const u64 list = PARTS * sizeof(u64);
    LAUNCH(group->finish, b->sums, b->scales, group->lists + 2 * list, group->lists + 3 * list,
           b->squares, b->bad, b->round);
    return 0;
}

static int launch_group(struct engine *engine, const struct linear_group *group, dptr x, dptr y,
                        dptr weight, struct error *error)
{
    return launch_input(engine, group, x, y, weight, error) || launch_main(engine, group, error) ||
                   launch_output(engine, group, error)
               ? -1
               : 0;
}

/* ---- two sets and what lies between them, where both are one group */

static bool is_one_group(const struct linear_set *set, u32 parts)
{
    return set->count == 1 && set->plain_count == 0 && set->groups[0].count == parts;
}

bool linear_can_join(const struct linear_set *first, u32 parts, const struct linear_set *second)
{
    return is_one_group(first, parts) && is_one_group(second, 1);
}

int linear_join_main(struct engine *engine, const struct linear_set *first, struct error *error)
{
    return launch_main(engine, &first->groups[0], error);
}

int linear_join_begin(struct engine *engine, const struct linear_set *first, dptr x, dptr weight,
                      struct error *error)
{
    return launch_input(engine, &first->groups[0], x, 0, weight, error) ||
                   linear_join_main(engine, first, error)
               ? -1
               : 0;
}

int linear_join_end(struct engine *engine, const struct linear_set *second, struct error *error)
{
    const struct linear_group *group = &second->groups[0];
    return launch_main(engine, group, error) || launch_output(engine, group, error) ? -1 : 0;
}

dptr linear_suh(const struct linear_set *set)
{
    return set->groups[0].lists + PARTS * sizeof(u64);
}

dptr linear_svh(const struct linear_set *set)
{
    return set->groups[0].lists + 2 * PARTS * sizeof(u64);
}

int linear_mlp_build(struct engine *engine, struct linear_mlp *mlp, struct error *error)
{
    const struct linear_group *first = &mlp->gate_up.groups[0], *second = &mlp->down.groups[0];
    if (!linear_can_join(&mlp->gate_up, 2, &mlp->down) || first->n[0] != first->n[1] ||
        first->n[0] != second->k)
        return 0;
    const struct jit_parameter parameters[] = {
        JIT_NUMBER("n", first->n[0]),
        JIT_TEXT("codebook", codebook_name(first->sources[0]->codebook)),
        {0}};
    return jit_request(engine->jit, "linear_middle", parameters, &mlp->middle, error);
}

int linear_mlp_launch(struct engine *engine, const struct linear_mlp *mlp, dptr x, dptr weight,
                      dptr gate, dptr up, struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    if (!mlp->middle)
        return linear_set_launch(engine, &mlp->gate_up, x, 0, weight, error) ||
                       linear_set_launch(engine, &mlp->down, gate, up, 0, error)
                   ? -1
                   : 0;
    if (linear_join_begin(engine, &mlp->gate_up, x, weight, error))
        return -1;
    LAUNCH(mlp->middle, b->sums, b->scales, linear_svh(&mlp->gate_up), linear_suh(&mlp->down),
           b->act, b->exponents, b->digits, b->bad, b->round);
    return linear_join_end(engine, &mlp->down, error);
}

static int launch_plains(struct engine *engine, const struct linear_set *set, dptr x, dptr y,
                         dptr weight, struct error *error)
{
    const struct decode_buffers *b = &engine->buffers;
    const u64 activate[] = {x, y, weight, b->activated, b->round};
    if (jit_launch(engine->jit, NULL, set->activate, activate, COUNT_OF(activate), error))
        return -1;
    for (u32 i = 0; i < set->plain_count; i++) {
        const struct plain_linear *plain = &set->plains[i];
        const dptr to = plain->output ? plain->output : b->plain;
        const u64 product[] = {b->activated, 0, 0, plain->weight, plain->weight, to, b->round};
        const u64 add[] = {b->plain, b->x, b->squares, b->bad, b->round};
        if (jit_launch(engine->jit, NULL, plain->product, product, COUNT_OF(product), error) ||
            (!plain->output &&
             jit_launch(engine->jit, NULL, set->residual, add, COUNT_OF(add), error)))
            return -1;
    }
    return 0;
}

int linear_set_launch(struct engine *engine, const struct linear_set *set, dptr x, dptr y,
                      dptr weight, struct error *error)
{
    for (u32 i = 0; i < set->count; i++)
        if (launch_group(engine, &set->groups[i], x, y, weight, error))
            return -1;
    return set->plain_count ? launch_plains(engine, set, x, y, weight, error) : 0;
}

static u64 larger(u64 a, u64 b)
{
    return a > b ? a : b;
}

void linear_set_scratch(const struct linear_set *set, struct linear_scratch *most)
{
    for (u32 i = 0; i < set->count; i++) {
        const struct linear_group *group = &set->groups[i];
        u64 columns = 0;
        for (u32 part = 0; part < group->count; part++)
            columns += group->n[part];
        most->act = larger(most->act, (u64)group->count * group->k / 16 * 64 * 4);
        most->exponents = larger(most->exponents,
                                 (u64)group->count * ROWS * (group->k / BLOCK) * 4);
        most->sums = larger(most->sums, columns * ROWS * 8);
    }
    for (u32 i = 0; i < set->plain_count; i++)
        most->activated = larger(most->activated, (u64)ROWS * set->plains[i].source->in * 4);
}
