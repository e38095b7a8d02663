/* draft_script.h - private to cli/: forced proposals, as text. */
#ifndef ELPIS_CLI_DRAFT_SCRIPT_H
#define ELPIS_CLI_DRAFT_SCRIPT_H

#include "base/base.h"
#include "engine/engine.h"

/* The parents of rows 1.. of a tree, "0,0,1,1,2": fills rows and parent[] of *tree, not its
 * tokens. */
int draft_parents_parse(struct engine_proposal *tree, const char *text, struct error *error);

/* A script: one round a line. memory_free(rounds). */
struct draft_script {
    struct engine_proposal *rounds;
    u32 count;
};
int draft_script_read(struct draft_script *script, const char *path, struct error *error);

#endif
