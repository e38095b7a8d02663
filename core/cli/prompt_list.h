/* prompt_list.h - private to cli/: prompts of a file, or the built-in ones, as token ids. */
#ifndef ELPIS_CLI_PROMPT_LIST_H
#define ELPIS_CLI_PROMPT_LIST_H

#include "base/base.h"

struct prompt {
    char *name; /* of the file, or "prompt 3" */
    u32 *ids, count;
};
struct prompt_list {
    struct prompt *prompts;
    u32 count;
};

/* path NULL: the built-in prompts. model: the folder whose tokenizer and chat template render
 * text; it is read only where there is text. */
int prompt_list_read(struct prompt_list *list, const char *path, const char *model,
                     struct error *error);
void prompt_list_free(struct prompt_list *list);

#endif
