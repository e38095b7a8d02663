/* draft_script.c - forced proposals, as text: what rounds verify instead of a draft's trees.
 *
 *     # a round a line:  PARENTS : TOKENS
 *     0 1 2 : 17 99 4        rows 1, 2, 3 below rows 0, 1, 2, their tokens
 *     0 0 1 : 17 18 99       two tokens after the last one, a third after the first of them
 *     :                      nothing is proposed
 *
 * Row 0 is the last token, known when the round begins; both lists are those of rows 1.. and
 * equally long, at most 7. Blanks or commas separate numbers. Text from # on is a comment; lines
 * with nothing else are skipped.
 *
 * Not here: whether a model knows the tokens (engine/).
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/draft_script.h"
#include "engine/tree.h"

enum { SCRIPT_LIMIT = 64 << 20, FOUND_SIZE = 32 };

/* The next number of a line; false where none begins. Huge ones become the largest. */
static bool next_number(const char **at, u64 *value)
{
    *at += strspn(*at, " \t\r,");
    if (!isdigit((unsigned char)**at))
        return false;
    char *end;
    *value = strtoull(*at, &end, 10);
    *at = end;
    return true;
}

/* What stands there instead of what was expected, for a sentence. */
static const char *found(const char *at, char text[FOUND_SIZE])
{
    if (!*at)
        return "the end of the line";
    snprintf(text, FOUND_SIZE, "'%.*s'", (int)strcspn(at, " \t\r,:") + (*at == ':'), at);
    return text;
}

/* where: begins the sentence of an error. */
static int take_parents(const char **at, struct engine_proposal *tree, const char *where,
                        struct error *error)
{
    u64 value;
    tree->rows = 1;
    while (next_number(at, &value)) {
        if (tree->rows == ENGINE_ROWS)
            return error_set(error, ERROR_USAGE,
                             "%s: expected at most %d parents, found one more, %" PRIu64, where,
                             ENGINE_ROWS - 1, value);
        if (value >= tree->rows)
            return error_set(error, ERROR_USAGE,
                             "%s: the parent of row %" PRIu32 " must be a row before it, expected 0"
                             " to %" PRIu32 ", found %" PRIu64,
                             where, tree->rows, tree->rows - 1, value);
        tree->parent[tree->rows++] = (u8)value;
    }
    return 0;
}

static int take_tokens(const char **at, struct engine_proposal *tree, const char *where,
                       struct error *error)
{
    u64 value;
    u32 count = 1;
    for (; next_number(at, &value); count++) {
        if (value > UINT32_MAX)
            return error_set(error, ERROR_USAGE,
                             "%s: expected token ids up to %" PRIu32 ", found %" PRIu64, where,
                             UINT32_MAX, value);
        if (count < tree->rows)
            tree->token[count] = (u32)value;
    }
    if (!**at && count != tree->rows)
        return error_set(error, ERROR_USAGE,
                         "%s: expected as many tokens as parents, %" PRIu32 ", found %" PRIu32,
                         where, tree->rows - 1, count - 1);
    return 0;
}

int draft_parents_parse(struct engine_proposal *tree, const char *text, struct error *error)
{
    char word[FOUND_SIZE];
    const char *at = text, *where = "option --tree";
    *tree = (struct engine_proposal){0};
    if (take_parents(&at, tree, where, error) < 0)
        return -1;
    if (*at)
        return error_set(error, ERROR_USAGE, "%s: expected row numbers, found %s", where,
                         found(at, word));
    return 0;
}

static int parse_round(const char *line, struct engine_proposal *tree, const char *where,
                       struct error *error)
{
    char word[FOUND_SIZE];
    const char *at = line;
    if (take_parents(&at, tree, where, error) < 0)
        return -1;
    if (*at != ':')
        return error_set(error, ERROR_USAGE, "%s: expected parents, ':' and tokens, found %s",
                         where, found(at, word));
    at++;
    if (take_tokens(&at, tree, where, error) < 0)
        return -1;
    if (*at)
        return error_set(error, ERROR_USAGE, "%s: expected token ids after the ':', found %s",
                         where, found(at, word));
    const char *refusal = tree_refusal(tree, UINT32_MAX);
    if (refusal)
        return error_set(error, ERROR_USAGE, "%s: expected a tree, found that %s", where, refusal);
    return 0;
}

/* One line, without its comment; adds a round unless it is blank. */
static int take_line(struct slice text, struct buffer *rounds, const char *where,
                     struct error *error)
{
    struct engine_proposal tree = {0};
    char *line = memory_copy_text(text);
    line[strcspn(line, "#")] = 0;
    int status = 0;
    if (line[strspn(line, " \t\r")]) {
        status = parse_round(line, &tree, where, error);
        if (status == 0)
            buffer_add(rounds, &tree, sizeof tree);
    }
    memory_free(line);
    return status;
}

int draft_script_read(struct draft_script *script, const char *path, struct error *error)
{
    struct buffer text = {0}, rounds = {0}, where = {0};
    int status = file_read(&text, path, SCRIPT_LIMIT, error);
    size_t at = 0;
    for (u32 number = 1; status == 0 && at < text.size; number++) {
        const char *end = memchr(text.data + at, '\n', text.size - at);
        const size_t size = end ? (size_t)(end - text.data) - at : text.size - at;
        buffer_clear(&where);
        buffer_format(&where, "%s: line %" PRIu32, path, number);
        status = take_line((struct slice){text.data + at, size}, &rounds, where.data, error);
        at += size + 1;
    }
    if (status == 0 && rounds.size == 0)
        status = error_set(error, ERROR_USAGE,
                           "%s: expected at least one line 'PARENTS : TOKENS', found none", path);
    buffer_free(&text);
    buffer_free(&where);
    if (status < 0)
        buffer_free(&rounds);
    script->count = (u32)(rounds.size / sizeof *script->rounds);
    script->rounds = (struct engine_proposal *)rounds.data;
    return status;
}
