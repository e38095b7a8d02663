/* dflash_extras.c - two files that may lie beside a draft: how sure it is, and a smaller head.
 *
 *     calibration.json   {"temperature": [7 numbers], "recall": [7 numbers]}
 *         One of each for every drafted row: a row's scores are divided by temperature, and the
 *         right token is among its candidates with probability recall. `elpis` writes it for the
 *         draft and the texts at hand; without it, figures of the 27B draft serve.
 *     draft_head.json    {"blocks": [ids / 128, ascending]}
 *         The draft proposes only ids of these blocks of 128, so that its head is a slice of the
 *         target's (dflash2.md 4.4). Every end token must be among them, or no answer's end would
 *         ever be drafted.
 *
 * Both change which tokens are proposed, never which are accepted. They are files of this
 * program's own, so unknown keys are refused.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_private.h"

#define HEAD_BLOCK 128 /* ids: what EXL3's rotation keeps together */
#define TEMPERATURE_LEAST 0.01
#define TEMPERATURE_MOST 100.0
#define RECALL_LEAST 1e-6 /* its logarithm is taken */

/* dflash2.md 6.1, of the 27B draft: 1 / temperature, and recall. */
static const double inverse_temperatures[DRAFT_DEPTHS] = {1.1618, 0.8607, 0.7788, 0.7047,
                                                          0.7047, 0.6703, 0.6703};
static const double recalls[DRAFT_DEPTHS] = {0.9961, 0.9721, 0.9457, 0.9266,
                                             0.9165, 0.9106, 0.9080};

/* Refuses keys other than these; second may be NULL. */
static void check_keys(struct json_reader *reader, const char *first, const char *second)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)reader->object, key, value) {
        if (strcmp(key, first) != 0 && (!second || strcmp(key, second) != 0))
            reader_refuse(reader, key, "is not a key of this file, expected \"%s\"%s%s%s", first,
                          second ? ", \"" : "", second ? second : "", second ? "\"" : "");
    }
}

/* ---- calibration.json */

static void read_depths(struct json_reader *reader, const char *key, double least, double most,
                        double values[DRAFT_DEPTHS])
{
    const json_t *list = reader_get(reader, key);
    if (json_array_size(list) != DRAFT_DEPTHS) {
        reader_refuse_list(reader, key, "%d numbers", DRAFT_DEPTHS);
        return;
    }
    for (u32 i = 0; i < DRAFT_DEPTHS; i++) {
        const json_t *value = json_array_get(list, i);
        values[i] = json_number_value(value);
        if (!json_is_number(value))
            reader_refuse(reader, key, "has %s at place %u, expected a number", reader_kind(value),
                          i);
        if (!(values[i] >= least && values[i] <= most))
            reader_refuse(reader, key, "has %g at place %u, supported are %g to %g", values[i], i,
                          least, most);
    }
}

static void built_in_calibration(struct draft_calibration *calibration)
{
    for (u32 i = 0; i < DRAFT_DEPTHS; i++) {
        calibration->temperature[i] = 1 / inverse_temperatures[i];
        calibration->recall[i] = recalls[i];
    }
}

static int read_calibration(struct draft_model *draft, struct error *error)
{
    const char *path = arena_format(draft->arena, "%s/calibration.json", draft->folder);
    json_t *json = NULL;
    built_in_calibration(&draft->calibration);
    if (!file_exists(path))
        return 0;
    if (model_json_read(&json, path, error) < 0)
        return -1;
    struct json_reader reader = {.object = json, .path = path, .group = "", .error = error};
    check_keys(&reader, "temperature", "recall");
    read_depths(&reader, "temperature", TEMPERATURE_LEAST, TEMPERATURE_MOST,
                draft->calibration.temperature);
    read_depths(&reader, "recall", RECALL_LEAST, 1, draft->calibration.recall);
    json_decref(json);
    draft->calibrated = true;
    return reader.failed ? -1 : 0;
}

/* The shortest decimal that reads back as the same number. */
static void add_number(struct buffer *text, double number)
{
    char digits[32];
    for (int precision = 6; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, number);
        if (strtod(digits, NULL) == number)
            break;
    }
    buffer_add_text(text, digits);
}

static void add_depths(struct buffer *text, const char *key, const double values[DRAFT_DEPTHS])
{
    buffer_format(text, " \"%s\": [", key);
    for (u32 i = 0; i < DRAFT_DEPTHS; i++) {
        buffer_add_text(text, i ? ", " : "");
        add_number(text, values[i]);
    }
    buffer_add_text(text, "]");
}

int draft_calibration_write(const struct draft_calibration *calibration, const char *path,
                            struct error *error)
{
    struct buffer text = {0};
    buffer_add_text(&text, "{\n");
    add_depths(&text, "temperature", calibration->temperature);
    buffer_add_text(&text, ",\n");
    add_depths(&text, "recall", calibration->recall);
    buffer_add_text(&text, "\n}\n");
    int result = file_write_atomic(path, text.data, text.size, error);
    buffer_free(&text);
    return result;
}

/* ---- draft_head.json */

static void read_blocks(struct json_reader *reader, struct draft_model *draft)
{
    const json_t *list = reader_get(reader, "blocks");
    u32 most = (draft->config.vocab + HEAD_BLOCK - 1) / HEAD_BLOCK;
    size_t count = json_array_size(list);
    if (count == 0 || count > most) {
        reader_refuse_list(reader, "blocks", "1 to %u blocks", most);
        return;
    }
    draft->head_blocks = arena_alloc(draft->arena, count * sizeof *draft->head_blocks);
    for (; draft->head_block_count < count; draft->head_block_count++) {
        u32 place = draft->head_block_count;
        const json_t *value = json_array_get(list, place);
        json_int_t block = json_integer_value(value);
        json_int_t least = place ? (json_int_t)draft->head_blocks[place - 1] + 1 : 0;
        if (!json_is_integer(value))
            reader_refuse(reader, "blocks", "has %s at place %u, expected an integer",
                          reader_kind(value), place);
        if (reader->failed || block < least || block >= most) {
            reader_refuse(reader, "blocks",
                          "has %" JSON_INTEGER_FORMAT " at place %u, expected ascending blocks, "
                          "here from %" JSON_INTEGER_FORMAT " to %u",
                          block, place, least, most - 1);
            return;
        }
        draft->head_blocks[place] = (u32)block;
    }
}

static bool keeps(const struct draft_model *draft, u32 id)
{
    for (u32 i = 0; i < draft->head_block_count; i++) {
        if (draft->head_blocks[i] == id / HEAD_BLOCK)
            return true;
    }
    return false;
}

static int read_head(struct draft_model *draft, const struct model_config *target,
                     struct error *error)
{
    const char *path = arena_format(draft->arena, "%s/draft_head.json", draft->folder);
    json_t *json = NULL;
    if (!file_exists(path))
        return 0;
    if (model_json_read(&json, path, error) < 0)
        return -1;
    struct json_reader reader = {.object = json, .path = path, .group = "", .error = error};
    check_keys(&reader, "blocks", NULL);
    read_blocks(&reader, draft);
    for (u32 i = 0; i < target->eos_count && !reader.failed; i++) {
        if (!keeps(draft, target->eos[i]))
            reader_refuse(&reader, "blocks", "has no block %u, in which the end token %u lies",
                          target->eos[i] / HEAD_BLOCK, target->eos[i]);
    }
    json_decref(json);
    return reader.failed ? -1 : 0;
}

int draft_extras_read(struct draft_model *draft, const struct model *target, struct error *error)
{
    if (read_calibration(draft, error) < 0)
        return -1;
    return read_head(draft, &target->config, error);
}
