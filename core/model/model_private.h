/* model_private.h - what the files of model/ share: JSON files, the merged table
 * of tensors, and the readers that model_open calls in turn.
 *
 * model_open (qwen3_5.c) reads the configuration (config.c), opens every tensor
 * file (safetensors.c), merges their tensors into one table (table.c) and takes
 * from it what the text model needs, linear by linear (linears.c). A tensor that
 * is taken is marked; what is unmarked at the end is an error or an ignored part.
 */
#ifndef ELPIS_MODEL_PRIVATE_H
#define ELPIS_MODEL_PRIVATE_H

#include <jansson.h>

#include "model/model.h"

/* ---- json.c */

/* Reads a whole JSON file, which must hold an object. Duplicate keys and bad UTF-8
 * are refused. Free *root with json_decref. Errors are ERROR_MODEL. */
int model_json_read(json_t **root, const char *path, struct error *error);

/* Text from files stands in messages: control characters in it become '?', so that a message
 * stays one line and nothing steers a terminal. Returns -1. */
int model_error_printable(struct error *error);

/* A JSON object being read, with a sticky error: after the first failure every call
 * returns a default, and `failed` is tested once at the end. null counts as absent. */
struct json_reader {
    const json_t *object;
    const char *path;  /* file, for messages */
    const char *group; /* "text_config." or "": stands before keys in messages */
    struct error *error;
    bool failed;
};
const json_t *reader_get(const struct json_reader *reader, const char *key); /* NULL = absent */
const char *reader_kind(const json_t *value); /* "a string", "an integer", ... */
u32 reader_u32(struct json_reader *reader, const char *key, u32 least, u32 most);
u32 reader_u32_or(struct json_reader *reader, const char *key, u32 absent, u32 least, u32 most);
double reader_number_or(struct json_reader *reader, const char *key, double absent);
bool reader_bool_or(struct json_reader *reader, const char *key, bool absent);
const char *reader_text_or(struct json_reader *reader, const char *key, const char *absent);
/* Appends the integer or the integers of a list to ids[0..most), without repeats. */
void reader_ids(struct json_reader *reader, const char *key, u32 *ids, u32 *count, u32 most);
void reader_refuse(struct json_reader *reader, const char *key, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* ---- config.c */

/* Reads folder/config.json and generation_config.json. *attention: bool [layers], in the
 * arena. *has_vision: a vision_config is there. */
int model_config_read(struct model_config *config, bool **attention, bool *has_vision,
                      const char *folder, struct arena *arena, struct error *error);

/* ---- table.c */

/* All tensors of all files by name, and which of them the model took. */
struct tensor_table {
    const struct tensor **tensors; /* sorted by name, no repeats */
    bool *taken;
    size_t count;
    const char *folder;
    struct arena *arena;
};
int tensor_table_build(struct tensor_table *table, struct tensor_file **files, u32 file_count,
                       const char *folder, struct arena *arena, struct error *error);
const struct tensor *tensor_table_find(const struct tensor_table *table, const char *name);
/* Finds and marks; NULL when it is not there. */
const struct tensor *tensor_table_take(struct tensor_table *table, const char *name);
/* Takes a tensor that must be there, of exactly this shape and one of the dtypes, given as
 * bits 1 << DTYPE_*. */
int tensor_table_require(struct tensor_table *table, const char *name, u32 dtypes, u32 rank,
                         const u64 *shape, const struct tensor **tensor, struct error *error);
void tensor_shape_text(char text[160], u32 rank, const u64 *shape); /* "[320, 640, 64]" */

#define DTYPES_FLOAT ((1u << DTYPE_F16) | (1u << DTYPE_BF16) | (1u << DTYPE_F32))

/* ---- linears.c */

/* Reads linear `name` of in x out features, EXL3 or plain, and checks it against them. */
int model_linear_read(struct tensor_table *table, const char *name, u32 in, u32 out,
                      struct model_linear *linear, struct error *error);
/* The same for one that must be plain. */
int model_linear_read_plain(struct tensor_table *table, const char *name, u32 in, u32 out,
                            struct model_linear *linear, struct error *error);
/* True when any tensor of a linear of this name is in the table. */
bool model_linear_exists(const struct tensor_table *table, const char *name);

#endif
