/* variant.c - for the tuner: what is launched, and kernels of other tuning in its place.
 *
 * A variant is the request of a kernel rendered with another tuning. It is on no list: who makes it
 * compiles, loads, launches and destroys it. jit_swap changes what two of them are, so that an
 * engine that holds the one launches the other, without knowing.
 */
#include <string.h>

#include "jit/jit_private.h"

void jit_watch(struct jit *jit, jit_watcher *watcher, void *user)
{
    jit->watcher = watcher;
    jit->watcher_user = user;
}

const struct jit_parameter *jit_kernel_parameters(const struct jit_kernel *kernel)
{
    return kernel->parameters;
}

const struct jit_parameter *jit_kernel_tuning(const struct jit_kernel *kernel)
{
    return kernel->rendering.tuning;
}

const char *jit_kernel_writes(const struct jit_kernel *kernel)
{
    return kernel->rendering.writes;
}

bool jit_kernel_digest(struct jit *jit, const struct jit_kernel *kernel, char text[17])
{
    return scripts_digest(jit->scripts, kernel->name, text);
}

int jit_tunings(struct jit *jit, const struct jit_kernel *kernel, struct arena *arena,
                struct jit_parameter ***tables, size_t *count, struct error *error)
{
    const struct scripts_request request = {
        .schedule = kernel->name, .parameters = kernel->parameters, .target = &jit->target};
    return scripts_combinations(jit->scripts, &request, arena, tables, count, error);
}

int jit_variant_create(struct jit *jit, const struct jit_kernel *kernel,
                       const struct jit_parameter *tuning, struct jit_kernel **variant,
                       struct error *error)
{
    return jit_kernel_render(jit, kernel->name, kernel->parameters, tuning, variant, error);
}

int jit_variant_compile(struct jit *jit, const struct jit_kernel *variant, struct buffer *image,
                        struct error *error)
{
    if (cache_load(jit->cache, &variant->key, image))
        return 0;
    return device_compile(jit->device, buffer_slice(&variant->rendering.source), variant->name,
                          image, error);
}

int jit_variant_load(struct jit *jit, struct jit_kernel *variant, const struct buffer *image,
                     struct error *error)
{
    return jit_kernel_load(jit, variant, image, error);
}

void jit_variant_destroy(struct jit *jit, struct jit_kernel *variant)
{
    jit_kernel_destroy(jit, variant);
}

void jit_swap(struct jit *jit, const struct jit_kernel *kernel, struct jit_kernel *variant)
{
    struct jit_kernel *place = jit->kernels;
    while (place != kernel)
        place = place->next;
    const struct jit_kernel held = *place;
    *place = *variant;
    *variant = held;
    place->next = held.next; /* the list stays */
    variant->next = NULL;
}

bool jit_same_exports(const struct jit_kernel *a, const struct jit_kernel *b)
{
    if (a->rendering.export_count != b->rendering.export_count)
        return false;
    for (size_t i = 0; i < a->rendering.export_count; i++)
        if (jit_kernel_export(b, a->rendering.exports[i].name) != a->rendering.exports[i].value)
            return false;
    return true;
}
