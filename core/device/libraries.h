/* libraries.h - NVIDIA's libraries, opened at run time.
 *
 * The program is built without the CUDA toolkit: libcuda, libnvrtc, libcublasLt and libnvidia-ml
 * are found and opened when first needed, and the few functions used are declared in the files that
 * use them (cuda.c, nvrtc.c, cublaslt.c, sensors.c). A library that was opened is never closed:
 * NVIDIA's libraries keep threads and exit handlers of their own.
 *
 * Folders, in this order: the one given by --cuda-libraries, each of ELPIS_CUDA_LIBRARIES
 * (split at ':'), the program's own, the loader's path, the usual places of toolkit, driver and
 * Python wheels. In one folder the newest name comes first.
 */
#ifndef ELPIS_LIBRARIES_H
#define ELPIS_LIBRARIES_H

#include "base/base.h"

enum library_kind { LIBRARY_DRIVER, LIBRARY_NVRTC, LIBRARY_CUBLASLT, LIBRARY_NVML };

struct library {
    void *handle;
    char path[600]; /* as the loader resolved it */
};

/* folder: NULL = none given. newest_major: the newest major version that will do (a driver runs
 * no code of a newer one), 0 = any; libcuda has no such number.
 * Errors (ERROR_DEVICE): not found anywhere; found but not loadable, with the loader's words. */
int library_open(struct library *library, enum library_kind kind, const char *folder,
                 u32 newest_major, struct error *error);

/* One function to resolve: its name, and where its address goes. */
struct library_symbol {
    const char *name;
    void **address;
};
/* Fills every address; a missing one is an error that calls the library too old. */
int library_symbols(const struct library *library, const struct library_symbol *symbols,
                    size_t count, struct error *error);

#endif
