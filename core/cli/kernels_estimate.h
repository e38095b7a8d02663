/* kernels_estimate.h - `elpis kernels --estimate`: its options, from kernels.c. */
#ifndef ELPIS_CLI_KERNELS_ESTIMATE_H
#define ELPIS_CLI_KERNELS_ESTIMATE_H

#include "cli/cli.h"
#include "engine/estimate.h"

struct estimate_options {
    const char *model, *draft, *contexts;   /* draft, contexts: NULL = none, the usual ones */
    const char *prefill;                    /* lengths of prompts in place of contexts, or NULL */
    const char *schedules, *cuda_libraries; /* or NULL */
    const char *arch;                       /* "sm_86" */
    u32 sms, shared_per_sm, rows, kv_bits;  /* kv_bits 0 = 3 */
    double megahertz, gigabytes_a_second;
};
/* Prints the estimate of a verify pass at each context, or of prompts. */
int kernels_estimate(const struct estimate_options *options, struct error *error);

#endif
