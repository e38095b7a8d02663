/* tokenizer.c - the tokenizer as others see it: files to stages, text to ids, ids to text.
 *
 *     text --added.c--> tokens and gaps --split.c--> normalised words --bpe.c--> ids
 *
 * Checked against ids of the `tokenizers` library (tests/text/test_tokenizer.c). Immutable after
 * opening; the scratch of a call lives in struct encoding, so any number of threads may encode.
 *
 * Not here: the stages themselves; templates (post_processor): a file whose post-processor would
 * add tokens is refused.
 */
#include <string.h>

#include "text/text.h"
#include "text_private.h"

/* Lengths and ids are 32 bits wide in the stages. */
#define TEXT_MAX ((size_t)1 << 31)

struct tokenizer {
    struct bpe *bpe;
    struct splitter *splitter;
    struct added *added;
    u32 count;
    const struct added_token **by_id; /* [count], NULL: no added token */
};

/* ---- opening */

static int check_ignored_by_ids(json_t *item, const char *key, struct error *error)
{
    if (!item || json_is_null(item))
        return 0;
    const char *type = json_string_value(json_object_get(item, "type"));
    json_t *inner = json_object_get(item, strcmp(key, "decoder") == 0 ? "decoders" : "processors");
    if (type && strcmp(type, "Sequence") == 0) {
        size_t i;
        json_t *member;
        json_array_foreach (inner, i, member) {
            if (check_ignored_by_ids(member, key, error) < 0)
                return -1;
        }
        return 0;
    }
    if (type && strcmp(type, "ByteLevel") == 0)
        return 0;
    return error_set(error, ERROR_MODEL, "tokenizer.json: %s: expected ByteLevel, found %s", key,
                     type ? type : "(no type)");
}

/* Whatever would change ids and is not built is refused by its key. */
static int check_file(json_t *root, struct error *error)
{
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    static const char *const nulls[] = {"truncation", "padding"};
    if (json_only_keys(root, keys, "tokenizer.json", error) < 0)
        return -1;
    for (size_t i = 0; i < COUNT_OF(nulls); i++) {
        json_t *value = json_object_get(root, nulls[i]);
        if (value && !json_is_null(value))
            return error_set(error, ERROR_MODEL, "tokenizer.json: %s: expected null", nulls[i]);
    }
    if (!json_is_object(json_object_get(root, "decoder")))
        return error_set(error, ERROR_MODEL, "tokenizer.json: decoder: expected ByteLevel");
    if (check_ignored_by_ids(json_object_get(root, "post_processor"), "post_processor", error) < 0)
        return -1;
    return check_ignored_by_ids(json_object_get(root, "decoder"), "decoder", error);
}

static int check_config(json_t *config, struct error *error)
{
    static const char *const keys[] = {"add_bos_token", "add_eos_token", "add_prefix_space"};
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        if (json_is_true(json_object_get(config, keys[i])))
            return error_set(error, ERROR_MODEL, "tokenizer_config.json: %s: expected false",
                             keys[i]);
    return 0;
}

static int load(struct tokenizer *tokenizer, json_t *root, json_t *config, struct error *error)
{
    json_t *model, *pre_tokenizer;
    if (check_file(root, error) < 0 || check_config(config, error) < 0 ||
        json_member(root, "model", JSON_OBJECT, "tokenizer.json", &model, error) < 0 ||
        json_member(root, "pre_tokenizer", JSON_OBJECT, "tokenizer.json", &pre_tokenizer, error) <
            0)
        return -1;
    if (!model || !pre_tokenizer)
        return error_set(error, ERROR_MODEL, "tokenizer.json.%s is missing",
                         model ? "pre_tokenizer" : "model");
    if (bpe_create(&tokenizer->bpe, model, error) < 0 ||
        splitter_create(&tokenizer->splitter, json_object_get(root, "normalizer"), pre_tokenizer,
                        error) < 0)
        return -1;
    return added_create(&tokenizer->added, root, config, tokenizer->splitter, error);
}

static void index_ids(struct tokenizer *tokenizer)
{
    tokenizer->count = bpe_count(tokenizer->bpe);
    for (u32 i = 0; i < added_count(tokenizer->added); i++)
        if (added_at(tokenizer->added, i)->id >= tokenizer->count)
            tokenizer->count = added_at(tokenizer->added, i)->id + 1;
    tokenizer->by_id = memory_alloc((tokenizer->count + 1) * sizeof *tokenizer->by_id);
    for (u32 i = 0; i < added_count(tokenizer->added); i++)
        tokenizer->by_id[added_at(tokenizer->added, i)->id] = added_at(tokenizer->added, i);
}

int tokenizer_open(struct tokenizer **out, const char *folder, struct error *error)
{
    struct tokenizer *tokenizer = memory_alloc(sizeof *tokenizer);
    json_t *root = NULL, *config = NULL;
    int result = -1;
    if (!file_is_folder(folder)) {
        error_set(error, ERROR_MODEL, "%s is not a folder; expected a model folder", folder);
        goto done;
    }
    if (json_file_read(&root, folder, "tokenizer.json", false, error) < 0 ||
        json_file_read(&config, folder, "tokenizer_config.json", true, error) < 0)
        goto done;
    if (load(tokenizer, root, config, error) < 0) {
        error_prefix(error, "%s", folder);
        goto done;
    }
    index_ids(tokenizer);
    *out = tokenizer;
    result = 0;
done:
    json_decref(root);
    json_decref(config);
    if (result < 0)
        tokenizer_close(tokenizer);
    return result;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    bpe_destroy(tokenizer->bpe);
    splitter_destroy(tokenizer->splitter);
    added_destroy(tokenizer->added);
    memory_free(tokenizer->by_id);
    memory_free(tokenizer);
}

u32 tokenizer_count(const struct tokenizer *tokenizer)
{
    return tokenizer->count;
}

i32 tokenizer_special_id(const struct tokenizer *tokenizer, const char *text)
{
    for (u32 i = 0; i < added_count(tokenizer->added); i++)
        if (slice_equal(added_at(tokenizer->added, i)->content, slice_of(text)))
            return (i32)added_at(tokenizer->added, i)->id;
    return -1;
}

/* ---- encoding */

struct encoding {
    const struct tokenizer *tokenizer;
    struct splitter_run *run;
    struct buffer normalized;
    struct buffer *ids;
};

static void add_word(void *user, struct slice word)
{
    struct encoding *encoding = user;
    bpe_encode(encoding->tokenizer->bpe, word, encoding->ids);
}

static void add_id(void *user, u32 id)
{
    struct encoding *encoding = user;
    buffer_add(encoding->ids, &id, sizeof id);
}

static int add_words(void *user, struct slice text, struct error *error)
{
    struct encoding *encoding = user;
    return splitter_split(encoding->run, text, add_word, encoding, error);
}

static struct slice normalize(struct encoding *encoding, struct slice text)
{
    if (splitter_keeps(encoding->tokenizer->splitter, text))
        return text;
    buffer_clear(&encoding->normalized);
    splitter_normalize(encoding->tokenizer->splitter, text, &encoding->normalized);
    return buffer_slice(&encoding->normalized);
}

/* Text without tokens of the first search: normalised, then searched for the others. */
static int add_gap(void *user, struct slice text, struct error *error)
{
    struct encoding *encoding = user;
    const struct added_sink sink = {add_words, add_id, encoding};
    return added_search(encoding->tokenizer->added, true, normalize(encoding, text), &sink, error);
}

int tokenizer_encode(const struct tokenizer *tokenizer, struct slice text, bool special,
                     struct buffer *ids, struct error *error)
{
    size_t good = utf8_valid_prefix(text);
    if (good < text.size)
        return error_set(error, ERROR_USAGE, "the text is not valid UTF-8 at byte %zu", good);
    if (text.size >= TEXT_MAX)
        return error_set(error, ERROR_USAGE, "the text has %zu bytes, expected fewer than %zu",
                         text.size, TEXT_MAX);
    struct encoding encoding = {tokenizer, splitter_run_create(tokenizer->splitter), {0}, ids};
    const struct added_sink sink = {add_gap, add_id, &encoding};
    int result = special ? added_search(tokenizer->added, false, text, &sink, error)
                         : add_words(&encoding, normalize(&encoding, text), error);
    splitter_run_destroy(encoding.run);
    buffer_free(&encoding.normalized);
    return result;
}

/* ---- decoding */

void tokenizer_token_bytes(const struct tokenizer *tokenizer, u32 id, bool skip_special,
                           struct buffer *bytes)
{
    const struct added_token *added = id < tokenizer->count ? tokenizer->by_id[id] : NULL;
    if (!added)
        buffer_add_slice(bytes, bpe_token(tokenizer->bpe, id));
    else if (!added->special || !skip_special)
        buffer_add_slice(bytes, added->bytes);
}

void tokenizer_decode(const struct tokenizer *tokenizer, const u32 *ids, size_t count,
                      bool skip_special, struct buffer *text)
{
    struct buffer bytes = {0};
    for (size_t i = 0; i < count; i++)
        tokenizer_token_bytes(tokenizer, ids[i], skip_special, &bytes);
    utf8_add_repaired(text, buffer_slice(&bytes));
    buffer_free(&bytes);
}
