/* text_private.h - what the files of text/ share: UTF-8, JSON files, the three stages
 * of the tokenizer. Nobody outside this folder includes it.
 */
#ifndef ELPIS_TEXT_PRIVATE_H
#define ELPIS_TEXT_PRIVATE_H

#include <jansson.h>

#include "base/base.h"

/* ---- utf8.c */

enum utf8_kind {
    UTF8_CHARACTER,  /* a well-formed character */
    UTF8_INVALID,    /* bytes that no text can hold: one U+FFFD stands for them */
    UTF8_INCOMPLETE, /* the start of a character, cut by the end of the data */
};
struct utf8_unit {
    enum utf8_kind kind;
    u32 size; /* bytes, 1..4 */
    u32 code; /* code point of a character */
};
/* The unit at the start of data; size > 0. */
struct utf8_unit utf8_next(const char *data, size_t size);
/* Bytes before the first fault; text.size when there is none. */
size_t utf8_valid_prefix(struct slice text);
void utf8_add(struct buffer *buffer, u32 code);
/* Adds text with every faulty run replaced by U+FFFD (maximal subparts, as Rust and Python do). */
void utf8_add_repaired(struct buffer *buffer, struct slice text);
/* Python's str.isspace(), which is also Oniguruma's \s except for 0x1c..0x1f. */
bool utf8_is_space(u32 code);

/* ---- json_file.c */

/* Reads and parses folder/name. Duplicate keys and bad UTF-8 are refused. Missing file: *root
 * is NULL and 0 is returned when optional, else an error. The caller json_decref's *root. */
int json_file_read(json_t **root, const char *folder, const char *name, bool optional,
                   struct error *error);
/* A key that may be absent or null gives NULL; another kind than expected is an error. where
 * names the object in messages ("tokenizer.json: model"). */
int json_member(json_t *object, const char *key, json_type kind, const char *where, json_t **member,
                struct error *error);
/* A boolean key; absent or null gives the default. */
int json_flag(json_t *object, const char *key, bool absent, const char *where, bool *flag,
              struct error *error);
/* Refuses keys that are not in the NULL-terminated list. */
int json_only_keys(json_t *object, const char *const *keys, const char *where, struct error *error);

/* ---- bpe.c: bytes of one word -> ids, by byte pair merges */

struct bpe;
int bpe_create(struct bpe **bpe, json_t *model, struct error *error);
void bpe_destroy(struct bpe *bpe);
u32 bpe_count(const struct bpe *bpe); /* 1 + the largest id of the vocabulary */
void bpe_encode(const struct bpe *bpe, struct slice word, struct buffer *ids);
struct slice bpe_token(const struct bpe *bpe, u32 id); /* decoded bytes; empty if unknown */
/* A token's text as the vocabulary spells it -> the bytes it stands for (GPT-2's alphabet); text
 * with a character outside of the alphabet stands for itself. */
void bpe_add_decoded(struct buffer *bytes, struct slice text);

/* ---- split.c: normaliser and pre-tokeniser */

struct splitter;
struct splitter_run; /* scratch of one call; not shared between threads */
typedef void (*splitter_word)(void *user, struct slice word);
int splitter_create(struct splitter **splitter, json_t *normalizer, json_t *pre_tokenizer,
                    struct error *error);
void splitter_destroy(struct splitter *splitter);
/* NFC or a copy. text is valid UTF-8. */
void splitter_normalize(const struct splitter *splitter, struct slice text, struct buffer *out);
bool splitter_keeps(const struct splitter *splitter,
                    struct slice text); /* normalising is a no-op */
struct splitter_run *splitter_run_create(const struct splitter *splitter);
void splitter_run_destroy(struct splitter_run *run);
/* Calls word for every piece of normalised text, in order. */
int splitter_split(struct splitter_run *run, struct slice text, splitter_word word, void *user,
                   struct error *error);

/* ---- added.c: added tokens, found in text before anything else */

struct added_token {
    u32 id;
    struct slice content; /* as written in the files */
    struct slice pattern; /* what is searched: content, normalised where `normalized` says so */
    struct slice bytes;   /* what it decodes to */
    bool special, normalized, lstrip, rstrip, single_word;
};
struct added;
int added_create(struct added **added, json_t *tokenizer, json_t *config,
                 const struct splitter *splitter, struct error *error);
void added_destroy(struct added *added);
u32 added_count(const struct added *added);
const struct added_token *added_at(const struct added *added, u32 index);
const struct added_token *added_find(const struct added *added, u32 id); /* NULL: none */
/* Calls gap for text between tokens and token for each token found, in order. normalized: which
 * of the two sets is searched. */
struct added_sink {
    int (*gap)(void *user, struct slice text, struct error *error);
    void (*token)(void *user, u32 id);
    void *user;
};
int added_search(const struct added *added, bool normalized, struct slice text,
                 const struct added_sink *sink, struct error *error);

#endif
