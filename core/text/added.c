/* added.c - added tokens: texts such as <|im_end|> that are one token each.
 *
 * They come from tokenizer.json's added_tokens and tokenizer_config.json's added_tokens_decoder;
 * the latter's flags win, as in transformers. Two searches run over a text, leftmost first and
 * longest among those that start at one place: first the tokens that are matched in the text as it
 * is, then, in the normalised rest, those marked `normalized`.
 *
 *   single_word   not beside a letter, digit, mark or underscore
 *   lstrip        swallows the blanks before it (not those that a token before it swallowed)
 *   rstrip        swallows the blanks after it
 *
 * heads[byte] lists the tokens whose pattern starts with that byte, longest first; most texts
 * have few bytes that start any.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text_private.h"

#define ADDED_ID_MAX (1u << 24)

struct added {
    struct arena *arena;
    struct added_token *tokens; /* by pattern length, longest first */
    u32 count, capacity;
    u32 *heads[2][256]; /* [normalized][first byte]: indices, UINT32_MAX ends */
};

/* ---- loading */

static struct slice keep(struct added *added, struct slice text)
{
    return (struct slice){arena_text(added->arena, text), text.size};
}

static struct added_token *find_content(struct added *added, struct slice content)
{
    for (u32 i = 0; i < added->count; i++)
        if (slice_equal(added->tokens[i].content, content))
            return &added->tokens[i];
    return NULL;
}

static struct added_token *append(struct added *added)
{
    if (added->count == added->capacity) {
        added->capacity = added->capacity ? 2 * added->capacity : 64;
        added->tokens = memory_resize(added->tokens, added->capacity * sizeof *added->tokens);
    }
    return &added->tokens[added->count++];
}

static int read_flags(json_t *entry, const char *where, struct added_token *token,
                      struct error *error)
{
    static const char *const keys[] = {"id",     "content",     "special", "normalized", "lstrip",
                                       "rstrip", "single_word", "__type",  NULL};
    if (json_only_keys(entry, keys, where, error) < 0 ||
        json_flag(entry, "special", false, where, &token->special, error) < 0 ||
        json_flag(entry, "normalized", !token->special, where, &token->normalized, error) < 0 ||
        json_flag(entry, "lstrip", false, where, &token->lstrip, error) < 0 ||
        json_flag(entry, "rstrip", false, where, &token->rstrip, error) < 0)
        return -1;
    return json_flag(entry, "single_word", false, where, &token->single_word, error);
}

/* Adds one entry, or lets it replace the flags of the token with the same text. */
static int add_entry(struct added *added, json_t *entry, json_int_t id, const char *where,
                     struct error *error)
{
    json_t *content;
    struct added_token token = {0};
    if (!json_is_object(entry))
        return error_set(error, ERROR_MODEL, "%s: expected an object", where);
    if (json_member(entry, "content", JSON_STRING, where, &content, error) < 0 ||
        read_flags(entry, where, &token, error) < 0)
        return -1;
    if (!content || id < 0 || id >= ADDED_ID_MAX)
        return error_set(error, ERROR_MODEL, "%s: expected content and an id from 0 to %u", where,
                         ADDED_ID_MAX - 1);
    struct slice text = {json_string_value(content), json_string_length(content)};
    if (!text.size)
        return 0;
    struct added_token *same = find_content(added, text);
    const struct added_token *taken = added_find(added, (u32)id);
    if ((same && same->id != id) || (taken && taken != same))
        return error_set(error, ERROR_MODEL,
                         "%s: '%s' has the id %lld, but id %u is '%.*s' elsewhere in the files",
                         where, text.data, (long long)id, same ? same->id : taken->id,
                         (int)(same ? same : taken)->content.size,
                         (same ? same : taken)->content.data);
    token.id = (u32)id;
    token.content = same ? same->content : keep(added, text);
    *(same ? same : append(added)) = token;
    return 0;
}

static int load_tokenizer(struct added *added, json_t *tokenizer, struct error *error)
{
    json_t *list, *entry;
    size_t i;
    if (json_member(tokenizer, "added_tokens", JSON_ARRAY, "tokenizer.json", &list, error) < 0)
        return -1;
    json_array_foreach (list, i, entry) {
        char where[64];
        snprintf(where, sizeof where, "tokenizer.json: added_tokens[%zu]", i);
        json_t *id = json_object_get(entry, "id");
        if (add_entry(added, entry, json_is_integer(id) ? json_integer_value(id) : -1, where,
                      error) < 0)
            return -1;
    }
    return 0;
}

static int load_config(struct added *added, json_t *config, struct error *error)
{
    json_t *decoder, *entry;
    const char *key;
    if (json_member(config, "added_tokens_decoder", JSON_OBJECT, "tokenizer_config.json", &decoder,
                    error) < 0)
        return -1;
    json_object_foreach (decoder, key, entry) {
        char where[100], *end;
        snprintf(where, sizeof where, "tokenizer_config.json: added_tokens_decoder.%.20s", key);
        long long id = strtoll(key, &end, 10);
        if (add_entry(added, entry, *end || end == key ? -1 : id, where, error) < 0)
            return -1;
    }
    return 0;
}

static void prepare(struct added *added, const struct splitter *splitter)
{
    struct buffer scratch = {0};
    for (u32 i = 0; i < added->count; i++) {
        struct added_token *token = &added->tokens[i];
        buffer_clear(&scratch);
        if (token->normalized)
            splitter_normalize(splitter, token->content, &scratch);
        else
            buffer_add_slice(&scratch, token->content);
        token->pattern = keep(added, buffer_slice(&scratch));
        buffer_clear(&scratch);
        bpe_add_decoded(&scratch, token->content);
        token->bytes = keep(added, buffer_slice(&scratch));
    }
    buffer_free(&scratch);
}

static int longest_first(const void *a, const void *b)
{
    const struct added_token *first = a, *second = b;
    if (first->pattern.size != second->pattern.size)
        return first->pattern.size > second->pattern.size ? -1 : 1;
    return first->id < second->id ? -1 : first->id > second->id;
}

static void index_head(struct added *added, bool normalized, u8 byte, u32 *scratch)
{
    u32 count = 0;
    for (u32 i = 0; i < added->count; i++)
        if (added->tokens[i].normalized == normalized &&
            (u8)added->tokens[i].pattern.data[0] == byte)
            scratch[count++] = i;
    scratch[count++] = UINT32_MAX;
    if (count == 1)
        return;
    added->heads[normalized][byte] = arena_alloc(added->arena, count * sizeof *scratch);
    memcpy(added->heads[normalized][byte], scratch, count * sizeof *scratch);
}

static void index_heads(struct added *added)
{
    u32 *scratch = memory_alloc((added->count + 1) * sizeof *scratch);
    for (u32 byte = 0; byte < 256; byte++) {
        index_head(added, false, (u8)byte, scratch);
        index_head(added, true, (u8)byte, scratch);
    }
    memory_free(scratch);
}

int added_create(struct added **out, json_t *tokenizer, json_t *config,
                 const struct splitter *splitter, struct error *error)
{
    struct added *added = memory_alloc(sizeof *added);
    added->arena = arena_create();
    if (load_tokenizer(added, tokenizer, error) < 0 ||
        (config && load_config(added, config, error) < 0)) {
        added_destroy(added);
        return -1;
    }
    prepare(added, splitter);
    if (added->count)
        qsort(added->tokens, added->count, sizeof *added->tokens, longest_first);
    index_heads(added);
    *out = added;
    return 0;
}

void added_destroy(struct added *added)
{
    if (!added)
        return;
    memory_free(added->tokens);
    arena_destroy(added->arena);
    memory_free(added);
}

u32 added_count(const struct added *added)
{
    return added->count;
}

const struct added_token *added_at(const struct added *added, u32 index)
{
    return &added->tokens[index];
}

const struct added_token *added_find(const struct added *added, u32 id)
{
    for (u32 i = 0; i < added->count; i++)
        if (added->tokens[i].id == id)
            return &added->tokens[i];
    return NULL;
}

/* ---- searching */

/* Start of the last character before `at`; at > 0, valid UTF-8. */
static size_t character_before(struct slice text, size_t at)
{
    do
        at--;
    while (at > 0 && ((u8)text.data[at] & 0xc0) == 0x80);
    return at;
}

static bool is_word(struct slice text, size_t at)
{
    u32 code = utf8_next(text.data + at, text.size - at).code;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

static bool is_blank(struct slice text, size_t at)
{
    u32 code = utf8_next(text.data + at, text.size - at).code;
    return utf8_is_space(code) && !(code >= 0x1c && code <= 0x1f);
}

static bool stands_alone(struct slice text, size_t from, size_t to)
{
    return (from == 0 || !is_word(text, character_before(text, from))) &&
           (to == text.size || !is_word(text, to));
}

static const struct added_token *match_at(const struct added *added, bool normalized,
                                          struct slice text, size_t at)
{
    const u32 *list = added->heads[normalized][(u8)text.data[at]];
    struct slice rest = {text.data + at, text.size - at};
    for (; list && *list != UINT32_MAX; list++)
        if (slice_starts(rest, added->tokens[*list].pattern))
            return &added->tokens[*list];
    return NULL;
}

/* Widens [*from, *to) over blanks; not before `done`. */
static void widen(const struct added_token *token, struct slice text, size_t done, size_t *from,
                  size_t *to)
{
    while (token->lstrip && *from > done && is_blank(text, character_before(text, *from)))
        *from = character_before(text, *from);
    while (token->rstrip && *to < text.size && is_blank(text, *to))
        *to += utf8_next(text.data + *to, text.size - *to).size;
}

int added_search(const struct added *added, bool normalized, struct slice text,
                 const struct added_sink *sink, struct error *error)
{
    size_t done = 0, at = 0;
    while (at < text.size) {
        const struct added_token *token = match_at(added, normalized, text, at);
        if (!token) {
            at++;
            continue;
        }
        size_t from = at, to = at + token->pattern.size;
        at = to;
        if (token->single_word && !stands_alone(text, from, to))
            continue;
        widen(token, text, done, &from, &to);
        struct slice gap = {text.data + done, from > done ? from - done : 0};
        if (gap.size && sink->gap(sink->user, gap, error) < 0)
            return -1;
        sink->token(sink->user, token->id);
        done = to;
    }
    struct slice rest = {text.data + done, text.size - done};
    return rest.size ? sink->gap(sink->user, rest, error) : 0;
}
