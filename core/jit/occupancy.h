/* occupancy.h - how many CTAs of a kernel one SM holds at once. */
#ifndef ELPIS_OCCUPANCY_H
#define ELPIS_OCCUPANCY_H

#include "base/base.h"
#include "device/device.h"

/* Of a GPU of that architecture (80, 86, ...) with so much shared memory an SM, in bytes. */
u32 occupancy_ctas(u32 arch, u32 shared_per_sm, const struct device_geometry *geometry,
                   const struct device_resources *resources);

#endif
