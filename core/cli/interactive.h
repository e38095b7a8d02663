/* interactive.h - private to cli/: the chat at the terminal. */
#ifndef ELPIS_CLI_INTERACTIVE_H
#define ELPIS_CLI_INTERACTIVE_H

#include "cli/conversation.h"

/* Where replies go; finished is called after each turn. */
struct interactive_output {
    conversation_show show;
    void (*finished)(void *user, const struct engine_result *result);
    void *user;
};

/* Reads lines until end of input or /quit. Returns an exit status. */
int interactive_run(struct conversation *conversation, const struct interactive_output *output);

#endif
