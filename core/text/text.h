/* text.h - between text and tokens: tokenizer, chat template, output stream.
 *
 * Not here: JSON of the API (serve/), sampling (engine/).
 */
#ifndef ELPIS_TEXT_H
#define ELPIS_TEXT_H

#include "base/base.h"

/* ---- tokenizer: byte-level BPE from tokenizer.json, added tokens merged with
 * tokenizer_config.json's added_tokens_decoder (qwen3_5.md 6). NFC where the file says so;
 * the pre-tokeniser regex is read from the file (PCRE2, JIT). Immutable after opening:
 * any number of threads may use one tokenizer. */
struct tokenizer;
int tokenizer_open(struct tokenizer **tokenizer, const char *folder, struct error *error);
void tokenizer_close(struct tokenizer *tokenizer);
u32 tokenizer_count(const struct tokenizer *tokenizer); /* 1 + the largest id */
/* text -> ids, appended to *ids as u32. special: text of added tokens becomes their ids;
 * else it is plain text. Invalid UTF-8 is an error that gives the byte offset. */
int tokenizer_encode(const struct tokenizer *tokenizer, struct slice text, bool special,
                     struct buffer *ids, struct error *error);
/* Bytes of one token (UTF-8 may be cut inside). special tokens: their text, or nothing when
 * skip_special. Unknown ids give nothing. */
void tokenizer_token_bytes(const struct tokenizer *tokenizer, u32 id, bool skip_special,
                           struct buffer *bytes);
/* Whole sequences; bytes that are no UTF-8 become U+FFFD as the `tokenizers` library does. */
void tokenizer_decode(const struct tokenizer *tokenizer, const u32 *ids, size_t count,
                      bool skip_special, struct buffer *text);
/* id of an added token by its text ("<|im_end|>"); -1 when there is none. */
i32 tokenizer_special_id(const struct tokenizer *tokenizer, const char *text);

/* ---- chat template: chat_template.jinja (or the chat_template of tokenizer_config.json),
 * rendered by the Jinja subset in lua/jinja.lua. One renderer serves one thread at a time. */
struct chat_template;
int chat_template_open(struct chat_template **chat, const char *folder, struct error *error);
void chat_template_close(struct chat_template *chat);
/* context: a JSON object with messages, tools, add_generation_prompt and whatever else the
 * template may read. raise_exception and template faults: ERROR_USAGE with their text. */
int chat_template_render(struct chat_template *chat, struct slice context_json, struct buffer *text,
                         struct error *error);

/* ---- output stream: token bytes in, text out that is safe to show.
 * Holds back incomplete UTF-8, any tail that may be the start of a stop string or of a
 * thinking marker; splits reasoning from content. */
enum stream_part { STREAM_REASONING, STREAM_CONTENT };
typedef void (*stream_emit)(void *user, enum stream_part part, struct slice text);
struct text_stream;
struct text_stream_options {
    const struct slice *stops; /* stop strings; matched in content only */
    size_t stop_count;
    bool thinking;      /* split <think>...</think> */
    bool starts_inside; /* the rendered prompt's tail has an open <think> */
};
struct text_stream *text_stream_create(const struct text_stream_options *options, stream_emit emit,
                                       void *user);
void text_stream_destroy(struct text_stream *stream);
/* Returns true when a stop string was completed: nothing more is emitted. */
bool text_stream_feed(struct text_stream *stream, struct slice bytes);
void text_stream_end(struct text_stream *stream); /* emits what was held back */
/* True when the prompt's last <think> is not closed. */
bool text_prompt_starts_inside(struct slice rendered_prompt);

#endif
