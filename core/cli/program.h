/* program.h - private to cli/: the program's version and its notices, a server's engine. */
#ifndef ELPIS_CLI_PROGRAM_H
#define ELPIS_CLI_PROGRAM_H

#include <stdio.h>

#include "engine/engine.h"

#define PROGRAM_VERSION "0.1.0"

/* Notices of the libraries that are linked into the program. */
void licenses_print(FILE *file);

/* open_engine of serve_run (serve/serve.h); user: a struct serve_opening. */
struct serve_opening {
    const char *folder;
    struct engine_options options;
};
int serve_open_engine(void *user, struct engine **engine, struct error *error);

#endif
