/* script.h - the kernel workshop: runs a user's Lua script that defines, checks and times kernels.
 *
 * The script gets the whole of Lua (files, clock) and the module "elpis", whose Lua part is
 * lua/script/ and whose interface is described in schedules/SCRIPT.md. Schedules and templates of
 * the script are rendered by the jit, in the same pure state as the built-in ones.
 */
#ifndef ELPIS_SCRIPT_H
#define ELPIS_SCRIPT_H

#include "base/base.h"
#include "device/device.h"

struct script_options {
    const char *file;             /* the script */
    char **arguments;             /* its arguments, `arg` in Lua; ends with NULL */
    struct device_options device; /* what elpis.device() opens where it says nothing else */
    const char *cache;            /* folder of compiled kernels; NULL = the usual one */
    const char *schedules;        /* override folder; NULL = built-in schedules only */
};

/* Runs the script to its end. An error of the script's, or in what it asked for, is one text that
 * begins with FILE:LINE; its code is that of the device where that failed, else ERROR_USAGE.
 * While it runs SIGINT and SIGTERM end it with ERROR_CANCELLED and *signal (else 0): for the caller
 * to raise again, when it has cleared away its own. */
int script_run(const struct script_options *options, int *signal, struct error *error);

#endif
