/* model_private.h - what the files of model/ share: JSON files, the merged table
 * of tensors, and the readers that model_open calls in turn.
 *
 * model_open (qwen3_5.c) and draft_open (dflash.c) go the same way: they read the
 * configuration (config.c, dflash_config.c), open every tensor file (folder.c,
 * safetensors.c), merge their tensors into one table (table.c) and take from it what
 * the model needs, linear by linear (linears.c). A tensor that is taken is marked;
 * what is unmarked at the end is an error or an ignored part.
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
/* Refuses what is no list, or none of the right size: format says of what it should be. */
void reader_refuse_list(struct json_reader *reader, const char *key, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* ---- config.c */

/* Limits of the kernels that target and draft share. */
#define WIDTH_BLOCK 128  /* activations are cut into Hadamard blocks */
#define WIDTH_MOST 37888 /* longest sum that the integer decode holds (elpis design 4.1) */
#define GROUP_MOST 8     /* q heads a kv head: 8 positions x 8 heads = 64 rows of a tile */
#define POSITIONS_MOST (1u << 24)

/* The readers of config.json that a draft's file shares with a target's. */
/* architectures: a list of one, which must be one of two names. */
void config_architecture(struct json_reader *root, const char *const names[2], char text[64]);
/* quantization_config: absent or exl3. */
void config_quantization(struct json_reader *root);
/* num_attention_heads and num_key_value_heads of so many dims, in supported groups. */
void config_heads(struct json_reader *reader, u32 head_dim, u32 *q_heads, u32 *kv_heads);
u32 config_width(struct json_reader *reader, const char *key); /* a multiple of WIDTH_BLOCK */
double config_norm_eps(struct json_reader *reader);
/* rope_theta, in rope_parameters, rope_scaling or beside them; refuses any scaling, and a
 * partial_rotary_factor that does not turn rotary dims of a head. */
double config_rope(struct json_reader *reader, u32 rotary, u32 head_dim);

/* Reads folder/config.json and generation_config.json. *attention: bool [layers], in the
 * arena. *has_vision: a vision_config is there. */
int model_config_read(struct model_config *config, bool **attention, bool *has_vision,
                      const char *folder, struct arena *arena, struct error *error);

/* ---- dflash_config.c, dflash_extras.c: parts of draft_open */

/* Reads folder/config.json of a draft for a target. */
int draft_config_read(struct draft_config *config, const char *folder, const struct model *target,
                      i32 tap_shift, struct arena *arena, struct error *error);
/* Reads calibration.json and draft_head.json of the draft's folder, where they are. */
int draft_extras_read(struct draft_model *draft, const struct model *target, struct error *error);

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
/* Adds up what was taken. */
void tensor_table_count_taken(const struct tensor_table *table, u32 *count, u64 *bytes);
/* Refuses a tensor that nobody took. what: "text model", with so many layers, for the sentence. */
int tensor_table_check_taken(const struct tensor_table *table, const char *what, u32 layers,
                             struct error *error);
void tensor_shape_text(char text[160], u32 rank, const u64 *shape); /* "[320, 640, 64]" */

#define DTYPES_FLOAT ((1u << DTYPE_F16) | (1u << DTYPE_BF16) | (1u << DTYPE_F32))

/* ---- tensor_writer.c, tensor_stream.c: what writers of files share */

/* Sorts the tensors into their order in the file and makes all that stands before their data. -1
 * when a name is used twice or is no UTF-8. */
int tensor_writer_layout(struct tensor_writer *writer, struct buffer *header,
                         const struct tensor **tensors, size_t *count);
/* Makes bytes [begin, begin + size) of a tensor; begin is a multiple of 4 MiB. Called by several
 * threads at once. The tensor's `data` is whatever was added: nobody else looks at it. */
typedef void (*tensor_fill)(void *user, const struct tensor *tensor, u64 begin, u64 size,
                            u8 *bytes);
/* Writes a file whose content `fill` makes on the way; threads 0 = one a core. */
#define TENSOR_PARTIAL ".partial" /* ends the name while the file is not whole */
int tensor_writer_stream(struct tensor_writer *writer, const char *path, u32 threads,
                         tensor_fill fill, void *user, u64 *bytes, struct error *error);

/* ---- linears.c */

/* Reads linear `name` of in x out features, EXL3 or plain, and checks it against them. */
int model_linear_read(struct tensor_table *table, const char *name, u32 in, u32 out,
                      struct model_linear *linear, struct error *error);
/* The same for one that must be plain. */
int model_linear_read_plain(struct tensor_table *table, const char *name, u32 in, u32 out,
                            struct model_linear *linear, struct error *error);
/* True when any tensor of a linear of this name is in the table. */
bool model_linear_exists(const struct tensor_table *table, const char *name);

/* ---- folder.c */

/* The last part of a path, whatever slashes end it; of "." the folder's real name. */
char *folder_name(struct arena *arena, const char *folder);
/* Maps every *.safetensors of a folder. *files and *file_count (0 before) hold what was opened,
 * also after a failure: close them. */
int folder_open_files(const char *folder, struct arena *arena, struct tensor_file ***files,
                      u32 *file_count, struct error *error);
void folder_close_files(struct tensor_file **files, u32 count);

/* A vector or a linear that must be there, and where it goes. */
struct wanted_tensor {
    const char *name;
    struct model_vector *vector; /* else linear */
    struct model_linear *linear;
    u64 shape[3]; /* vector: up to three extents, 0 ends; linear: in, out */
    bool plain;   /* a linear that may not be quantised */
};
/* Takes each of a list from the table; prefix stands before their names. */
int folder_take(struct tensor_table *table, const char *prefix, const struct wanted_tensor *list,
                size_t count, struct error *error);

#endif
