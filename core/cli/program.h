/* program.h - private to cli/: the program's version and its notices. */
#ifndef ELPIS_CLI_PROGRAM_H
#define ELPIS_CLI_PROGRAM_H

#include <stdio.h>

#define PROGRAM_VERSION "0.1.0"

/* Notices of the libraries that are linked into the program. */
void licenses_print(FILE *file);

#endif
