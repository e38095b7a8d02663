/* conversation.h - private to cli/: messages in, a reply out, on one engine.
 *
 * Holds what a dialogue needs: engine, tokenizer, chat template, the messages so far. Whoever owns
 * it decides where text goes (conversation_show) and when to stop (conversation_interrupt).
 */
#ifndef ELPIS_CLI_CONVERSATION_H
#define ELPIS_CLI_CONVERSATION_H

#include "engine/engine.h"
#include "text/text.h"

struct conversation_options {
    const char *system; /* first message; NULL = none */
    u32 max_tokens;     /* 0 = what the context leaves */
    bool no_think;      /* enable_thinking = false for the template */
    bool raw;           /* prompts are text as it is, no template */
};

/* Called with text as it is safe to show. */
typedef void (*conversation_show)(void *user, enum stream_part part, struct slice text);

struct conversation;
/* Opens tokenizer and template of the model folder (the template not when raw). */
int conversation_open(struct conversation **conversation, const char *folder,
                      const struct conversation_options *options, struct error *error);
/* Before the first turn: the engine of the same model, which stays the caller's. */
void conversation_attach(struct conversation *conversation, struct engine *engine,
                         const struct engine_sampling *sampling);
void conversation_close(struct conversation *conversation);
/* Ids of the tokenizer: the engine samples none above. */
u32 conversation_token_count(const struct conversation *conversation);

/* Adds the user's message, generates, adds the reply. ids: generated token ids as u32, or NULL.
 * A turn that fails leaves the messages as they were; an interrupted one keeps what came. */
int conversation_turn(struct conversation *conversation, struct slice text, conversation_show show,
                      void *user, struct buffer *ids, struct engine_result *result,
                      struct error *error);

/* Drops all messages but the system message. */
void conversation_reset(struct conversation *conversation);
/* Sets or, with empty text, removes the system message; drops the others. */
int conversation_set_system(struct conversation *conversation, struct slice text,
                            struct error *error);
/* The messages as JSON. */
int conversation_save(const struct conversation *conversation, const char *path,
                      struct error *error);

/* Ends the turn that runs, at its next token. Safe in a signal handler. */
void conversation_interrupt(void);

#endif
