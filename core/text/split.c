/* split.c - normaliser and pre-tokeniser of tokenizer.json: text -> words for the byte pairs.
 *
 * The file's pipeline, as far as byte-level models use it
 *
 *   normalizer       null | NFC | Sequence of them
 *   pre_tokenizer    ByteLevel | Split | Sequence of them
 *
 * becomes a flag (NFC or not) and a list of regular expressions. Each expression cuts every piece
 * of the one before it; matches and the text between them are pieces (behaviour Isolated). A piece
 * is matched as a text of its own: what lies outside it cannot be looked at. ByteLevel adds the
 * GPT-2 expression when it says use_regex.
 *
 * The expressions were written for Oniguruma and run in PCRE2 (UTF, UCP, JIT). Where the two mean
 * different things, translate() rewrites the expression (\s: Unicode White_Space; \v, \u) or
 * refuses it by name. Anything else in the file that would change ids is refused too.
 *
 * A splitter is immutable; a splitter_run holds the match data of one thread's call.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text_private.h"

#define EXPRESSIONS_MAX 16
#define JIT_STACK_START ((size_t)32 << 10)
#define JIT_STACK_MAX ((size_t)32 << 20)
/* Backtracking steps in one match: a megabyte of blanks needs a few million, runaway
 * expressions hit it after seconds. */
#define MATCH_LIMIT 200000000u

struct splitter {
    bool nfc;
    pcre2_code *expressions[EXPRESSIONS_MAX];
    u32 count;
};

struct splitter_run {
    const struct splitter *splitter;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_match_data *data[EXPRESSIONS_MAX];
};

static const char gpt2_expression[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- Oniguruma's syntax to PCRE2's */

#define WHITE_SPACE                                                                             \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"

/* Adds what \letter means; false when PCRE2 would mean something else. */
static bool translate_escape(struct buffer *out, const char *at, bool in_class)
{
    char letter = *at;
    switch (letter) {
    case 's': buffer_add_text(out, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]"); return true;
    case 'S':
        if (in_class)
            return false;
        buffer_add_text(out, "[^" WHITE_SPACE "]");
        return true;
    case 'v': buffer_add_text(out, "\\x{b}"); return true;
    default:
        if (letter == 0 || (letter >= '1' && letter <= '9'))
            return false;
        if (strchr("wWbBhHRXKGzZAkgQECcoUNlLyYO", letter) && letter)
            return false;
        buffer_format(out, "\\%c", letter);
        return true;
    }
}

/* \uXXXX, four hexadecimal digits. */
static bool translate_code(struct buffer *out, const char *at)
{
    char digits[5] = {0};
    for (u32 i = 0; i < 4; i++)
        if (!strchr("0123456789abcdefABCDEF", at[i]) || !at[i])
            return false;
        else
            digits[i] = at[i];
    buffer_format(out, "\\x{%s}", digits);
    return true;
}

static int translate(struct buffer *out, const char *expression, struct error *error)
{
    bool in_class = false;
    for (const char *at = expression; *at; at++) {
        if (at[0] == '\\') {
            at++;
            bool known = *at == 'u' ? translate_code(out, at + 1)
                                    : translate_escape(out, at, in_class);
            if (!known)
                return error_set(error, ERROR_MODEL,
                                 "tokenizer.json: pre_tokenizer: cannot translate \\%c%s in the "
                                 "expression %s",
                                 *at ? *at : ' ', in_class ? " inside [...]" : "", expression);
            if (*at == 'u')
                at += 4;
            continue;
        }
        if (in_class && (at[0] == '[' || (at[0] == '&' && at[1] == '&')))
            return error_set(error, ERROR_MODEL,
                             "tokenizer.json: pre_tokenizer: cannot translate nested sets in the "
                             "expression %s",
                             expression);
        if (at[0] == '[')
            in_class = true;
        else if (at[0] == ']')
            in_class = false;
        buffer_add(out, at, 1);
    }
    return 0;
}

static int add_expression(struct splitter *splitter, const char *expression, bool literal,
                          struct error *error)
{
    if (splitter->count == EXPRESSIONS_MAX)
        return error_set(error, ERROR_MODEL,
                         "tokenizer.json: pre_tokenizer: more than %d expressions",
                         EXPRESSIONS_MAX);
    struct buffer text = {0};
    if (literal)
        buffer_add_text(&text, expression);
    else if (translate(&text, expression, error) < 0) {
        buffer_free(&text);
        return -1;
    }
    u32 options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
    int code;
    PCRE2_SIZE offset;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)text.data, text.size, options, &code, &offset,
                                         NULL);
    buffer_free(&text);
    if (!compiled) {
        char reason[256];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return error_set(error, ERROR_MODEL, "tokenizer.json: pre_tokenizer: %s in %s", reason,
                         expression);
    }
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); /* without JIT it is interpreted */
    splitter->expressions[splitter->count++] = compiled;
    return 0;
}

/* ---- loading */

static const char *type_of(json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "(no type)";
}

static int load_normalizer(struct splitter *splitter, json_t *normalizer, struct error *error)
{
    if (!normalizer || json_is_null(normalizer))
        return 0;
    if (strcmp(type_of(normalizer), "NFC") == 0) {
        splitter->nfc = true;
        return 0;
    }
    if (strcmp(type_of(normalizer), "Sequence") != 0)
        return error_set(error, ERROR_MODEL,
                         "tokenizer.json: normalizer: expected NFC or null, found %s",
                         type_of(normalizer));
    size_t i;
    json_t *item;
    json_array_foreach (json_object_get(normalizer, "normalizers"), i, item) {
        if (load_normalizer(splitter, item, error) < 0)
            return -1;
    }
    return 0;
}

static int load_byte_level(struct splitter *splitter, json_t *level, struct error *error)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                       NULL};
    const char *where = "tokenizer.json: pre_tokenizer.ByteLevel";
    bool prefix, expression;
    if (json_only_keys(level, keys, where, error) < 0 ||
        json_flag(level, "add_prefix_space", true, where, &prefix, error) < 0 ||
        json_flag(level, "use_regex", true, where, &expression, error) < 0)
        return -1;
    if (prefix)
        return error_set(error, ERROR_MODEL, "%s.add_prefix_space: expected false", where);
    return expression ? add_expression(splitter, gpt2_expression, false, error) : 0;
}

static int load_split(struct splitter *splitter, json_t *split, struct error *error)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    const char *where = "tokenizer.json: pre_tokenizer.Split";
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    bool invert;
    json_t *pattern;
    if (json_only_keys(split, keys, where, error) < 0 ||
        json_flag(split, "invert", false, where, &invert, error) < 0 ||
        json_member(split, "pattern", JSON_OBJECT, where, &pattern, error) < 0)
        return -1;
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return error_set(error, ERROR_MODEL, "%s.behavior: expected Isolated, found %s", where,
                         behavior ? behavior : "nothing");
    if (invert)
        return error_set(error, ERROR_MODEL, "%s.invert: expected false", where);
    const char *expression = json_string_value(json_object_get(pattern, "Regex"));
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    if (!expression && !literal)
        return error_set(error, ERROR_MODEL, "%s.pattern: expected Regex or String", where);
    return add_expression(splitter, expression ? expression : literal, !expression, error);
}

static int load_pre_tokenizer(struct splitter *splitter, json_t *item, bool *byte_level,
                              struct error *error)
{
    const char *type = type_of(item);
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        json_t *inner;
        json_array_foreach (json_object_get(item, "pretokenizers"), i, inner) {
            if (load_pre_tokenizer(splitter, inner, byte_level, error) < 0)
                return -1;
        }
        return 0;
    }
    if (*byte_level)
        return error_set(error, ERROR_MODEL,
                         "tokenizer.json: pre_tokenizer: %s after ByteLevel is not supported",
                         type);
    if (strcmp(type, "Split") == 0)
        return load_split(splitter, item, error);
    if (strcmp(type, "ByteLevel") != 0)
        return error_set(error, ERROR_MODEL,
                         "tokenizer.json: pre_tokenizer: expected Split, ByteLevel or a Sequence "
                         "of them, found %s",
                         type);
    *byte_level = true;
    return load_byte_level(splitter, item, error);
}

int splitter_create(struct splitter **out, json_t *normalizer, json_t *pre_tokenizer,
                    struct error *error)
{
    struct splitter *splitter = memory_alloc(sizeof *splitter);
    bool byte_level = false;
    if (load_normalizer(splitter, normalizer, error) < 0 ||
        load_pre_tokenizer(splitter, pre_tokenizer, &byte_level, error) < 0)
        goto fail;
    if (!byte_level) {
        error_set(error, ERROR_MODEL,
                  "tokenizer.json: pre_tokenizer: expected a ByteLevel step, found none");
        goto fail;
    }
    *out = splitter;
    return 0;
fail:
    splitter_destroy(splitter);
    return -1;
}

void splitter_destroy(struct splitter *splitter)
{
    if (!splitter)
        return;
    for (u32 i = 0; i < splitter->count; i++)
        pcre2_code_free(splitter->expressions[i]);
    memory_free(splitter);
}

/* ---- normalising */

/* Below U+0300 every character is in NFC and nothing composes: bytes under 0xcc. */
bool splitter_keeps(const struct splitter *splitter, struct slice text)
{
    if (!splitter->nfc)
        return true;
    for (size_t i = 0; i < text.size; i++)
        if ((u8)text.data[i] >= 0xcc)
            return false;
    return true;
}

void splitter_normalize(const struct splitter *splitter, struct slice text, struct buffer *out)
{
    if (splitter_keeps(splitter, text)) {
        buffer_add_slice(out, text);
        return;
    }
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text.data,
                                         (utf8proc_ssize_t)text.size, &composed,
                                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (size >= 0)
        buffer_add(out, composed, (size_t)size);
    else
        buffer_add_slice(out, text);
    free(composed);
}

/* ---- splitting */

struct splitter_run *splitter_run_create(const struct splitter *splitter)
{
    struct splitter_run *run = memory_alloc(sizeof *run);
    run->splitter = splitter;
    run->context = pcre2_match_context_create(NULL);
    run->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    pcre2_set_match_limit(run->context, MATCH_LIMIT);
    if (run->stack)
        pcre2_jit_stack_assign(run->context, NULL, run->stack);
    for (u32 i = 0; i < splitter->count; i++)
        run->data[i] = pcre2_match_data_create(1, NULL);
    return run;
}

void splitter_run_destroy(struct splitter_run *run)
{
    if (!run)
        return;
    for (u32 i = 0; i < run->splitter->count; i++)
        pcre2_match_data_free(run->data[i]);
    pcre2_jit_stack_free(run->stack);
    pcre2_match_context_free(run->context);
    memory_free(run);
}

static int split_level(struct splitter_run *run, u32 level, struct slice text, splitter_word word,
                       void *user, struct error *error);

static int split_next(struct splitter_run *run, u32 level, struct slice text, size_t from,
                      size_t to, splitter_word word, void *user, struct error *error)
{
    if (from == to)
        return 0;
    struct slice piece = {text.data + from, to - from};
    return split_level(run, level + 1, piece, word, user, error);
}

static int match_failed(int code, struct error *error)
{
    char reason[256];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
    return error_set(error, ERROR_USAGE, "the tokenizer's expression gave up on the text: %s",
                     reason);
}

/* Cuts one piece by expression number `level`. `done`: end of what was handed on; `at`: where
 * the next match may begin (past `done` only after an empty match). */
static int split_level(struct splitter_run *run, u32 level, struct slice text, splitter_word word,
                       void *user, struct error *error)
{
    if (level == run->splitter->count) {
        word(user, text);
        return 0;
    }
    const size_t *range = pcre2_get_ovector_pointer(run->data[level]);
    size_t done = 0, at = 0;
    while (at <= text.size) {
        int code = pcre2_match(run->splitter->expressions[level], (PCRE2_SPTR)text.data, text.size,
                               at, PCRE2_NO_UTF_CHECK, run->data[level], run->context);
        if (code == PCRE2_ERROR_NOMATCH)
            break;
        if (code < 0)
            return match_failed(code, error);
        size_t from = range[0], to = range[1];
        if (split_next(run, level, text, done, from, word, user, error) < 0 ||
            split_next(run, level, text, from, to, word, user, error) < 0)
            return -1;
        done = to;
        at = to;
        if (from == to)
            at += to < text.size ? utf8_next(text.data + to, text.size - to).size : 1;
    }
    return split_next(run, level, text, done, text.size, word, user, error);
}

int splitter_split(struct splitter_run *run, struct slice text, splitter_word word, void *user,
                   struct error *error)
{
    return text.size ? split_level(run, 0, text, word, user, error) : 0;
}
