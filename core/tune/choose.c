/* choose.c - which tunings of a kernel are tried.
 *
 * A neighbour differs in one value. All of a kernel's tunings are tried where they are few; of many
 * the neighbours of the default come first, for the default is computed with thought, and a sample
 * of the rest, drawn without return.
 */
#include "tune/tune_private.h"

#include <string.h>

static size_t find(const struct tune_kernel *kernel, const struct jit_parameter *tuning)
{
    size_t i = 0;
    while (i < kernel->count && !jit_same_table(kernel->candidates[i].tuning, tuning))
        i++;
    return i;
}

size_t choose_add(struct tune_kernel *kernel, const struct jit_parameter *tuning)
{
    const size_t at = find(kernel, tuning);
    if (at < kernel->count)
        return at;
    kernel->candidates = memory_resize(kernel->candidates,
                                       (kernel->count + 1) * sizeof *kernel->candidates);
    struct tune_candidate *fresh = &kernel->candidates[kernel->count++];
    memset(fresh, 0, sizeof *fresh);
    fresh->tuning = tuning;
    return at;
}

/* Both are sorted and have the same names. */
static u32 differences(const struct jit_parameter *a, const struct jit_parameter *b)
{
    u32 count = 0;
    for (; a->name && b->name; a++, b++)
        count += a->text ? !b->text || strcmp(a->text, b->text) != 0
                         : b->text || a->number != b->number;
    return count;
}

/* Every legal tuning at most so far from `from`, in random order, until `most` were added. */
static size_t add_near(struct tune_kernel *kernel, struct choice *choice,
                       const struct jit_parameter *from, u32 distance, size_t most)
{
    const size_t before = kernel->count;
    size_t *order = memory_alloc((choice->count + 1) * sizeof *order);
    for (size_t i = 0; i < choice->count; i++) {
        const size_t other = (size_t)(random_next(&choice->random) % (i + 1));
        order[i] = order[other];
        order[other] = i;
    }
    for (size_t i = 0; i < choice->count && kernel->count - before < most; i++)
        if (differences(choice->legal[order[i]], from) <= distance)
            choose_add(kernel, choice->legal[order[i]]);
    memory_free(order);
    return kernel->count - before;
}

void choose_first(struct tune_kernel *kernel, struct choice *choice, size_t most)
{
    choose_add(kernel, choice->legal[0]);
    const size_t near = add_near(kernel, choice, choice->legal[0], 1, most - 1);
    add_near(kernel, choice, choice->legal[0], UINT32_MAX, most - 1 - near);
}

bool choose_next(struct tune_kernel *kernel, struct choice *choice, size_t most)
{
    const struct jit_parameter *best = kernel->candidates[kernel->best].tuning;
    return add_near(kernel, choice, best, 1, most) > 0;
}
