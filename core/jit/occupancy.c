/* occupancy.c - CTAs that fit an SM by registers (a warp takes multiples of 256), shared memory
 * (1 KiB a CTA is the system's), threads and slots. CUDA C++ Programming Guide, "Technical
 * specifications". */
#include "jit/occupancy.h"

enum { REGISTER_UNIT = 256, SHARED_UNIT = 128 };

static const struct {
    u32 arch, threads, ctas;
} limits[] = {{80, 2048, 32}, {86, 1536, 16},  {89, 1536, 24},
              {90, 2048, 32}, {100, 2048, 32}, {120, 1536, 24}};

static u32 smaller(u32 a, u32 b)
{
    return a < b ? a : b;
}

static u32 round_up(u32 value, u32 unit)
{
    return (value + unit - 1) / unit * unit;
}

u32 occupancy_ctas(u32 arch, u32 shared_per_sm, const struct device_geometry *geometry,
                   const struct device_resources *resources)
{
    const u32 block = geometry->block;
    const u32 registers = round_up(resources->registers * 32, REGISTER_UNIT) * (block / 32);
    const u32 shared = round_up(
        geometry->shared + resources->shared_static + DEVICE_RESERVED_SHARED, SHARED_UNIT);
    u32 fits = shared_per_sm / shared;
    if (registers)
        fits = smaller(fits, DEVICE_REGISTERS / registers);
    for (size_t i = COUNT_OF(limits); i-- > 0;)
        if (limits[i].arch <= arch)
            return smaller(fits, smaller(limits[i].threads / block, limits[i].ctas));
    return fits;
}
