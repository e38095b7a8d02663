/* nvrtc.h - NVIDIA's run-time compiler as one function: source in, cubin or PTX out.
 *
 * Options are fixed here because they are part of what kernels mean: no contraction of a*b+c,
 * denormals kept, division and square root rounded to nearest (design: bit-equality rules).
 */
#ifndef ELPIS_NVRTC_H
#define ELPIS_NVRTC_H

#include "base/base.h"

struct nvrtc;

/* folder, newest_major: as library_open. Errors (ERROR_DEVICE): missing, broken, too old. */
int nvrtc_open(struct nvrtc **nvrtc, const char *folder, u32 newest_major, struct error *error);
void nvrtc_close(struct nvrtc *nvrtc); /* NULL is fine */
const char *nvrtc_path(const struct nvrtc *nvrtc);
void nvrtc_version(const struct nvrtc *nvrtc, u32 *major, u32 *minor);
/* Is this architecture number (86, 90) one it compiles for? If not, the error says which are. */
int nvrtc_supports(const struct nvrtc *nvrtc, u32 arch, struct error *error);

/* Thread-safe. architecture: "sm_86" gives a cubin, "compute_86" PTX text (NUL-terminated); of
 * sm_90 with what it alone has (sm_90a), so its PTX is for no later GPU.
 * name: for messages. log: the compiler's remarks, with ptxas' lines on registers and spills;
 * may be NULL. image: cleared first. */
int nvrtc_compile(struct nvrtc *nvrtc, struct slice source, const char *name,
                  const char *architecture, struct buffer *image, struct buffer *log,
                  struct error *error);

#endif
