/* base.h - what every module stands on: errors, log, slices, buffers, arenas,
 * files, digests, clock.
 *
 * Conventions of the whole code base
 *   - A function that can fail returns 0 or -1 and fills the caller's
 *     struct error (never NULL). Success leaves it untouched.
 *   - Text is a slice (pointer, length); NUL-terminated only where said.
 *   - The caller owns what it passes and frees what it gets, with the
 *     function named in the comment.
 */
#ifndef ELPIS_BASE_H
#define ELPIS_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define PRINTF_LIKE(text, first) __attribute__((__format__(printf, text, first)))

/* ---- errors: one line; what failed, on what, expected and found, what to do */

enum error_code {
    ERROR_NONE = 0,
    ERROR_USAGE = 2,    /* command line, configuration, a bad request */
    ERROR_MODEL = 3,    /* model files */
    ERROR_DEVICE = 4,   /* GPU, driver, NVRTC, host compiler */
    ERROR_MEMORY = 5,   /* does not fit */
    ERROR_ADDRESS = 6,  /* listening address in use */
    ERROR_FATAL = 7,    /* device failed while running */
    ERROR_CANCELLED = 8 /* the caller's own wish; never an exit code */
};

struct error {
    int code; /* enum error_code; also the exit status of the program */
    char text[1000];
};

/* Fills *error; returns -1, so that `return error_set(...)` reads well. */
int error_set(struct error *error, int code, const char *format, ...) PRINTF_LIKE(3, 4);
/* Puts "format: " before the text that is there. Returns -1. */
int error_prefix(struct error *error, const char *format, ...) PRINTF_LIKE(2, 3);

/* ---- log: the one place that prints to stderr */

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
void log_set_level(enum log_level level); /* else up to LOG_INFO; all with ELPIS_LOG=debug */
void log_line(enum log_level level, const char *format, ...) PRINTF_LIKE(2, 3);
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
/* A line that replaces itself on a terminal and is printed whole elsewhere;
 * done = true ends it. Thread-safe, as log_line. */
void log_progress(bool done, const char *format, ...) PRINTF_LIKE(2, 3);

/* ---- slices */

struct slice {
    const char *data;
    size_t size;
};
#define SLICE(literal) ((struct slice){(literal), sizeof(literal) - 1})
struct slice slice_of(const char *text); /* NUL-terminated text; NULL gives an empty slice */
bool slice_equal(struct slice a, struct slice b);
bool slice_starts(struct slice text, struct slice prefix);
bool slice_ends(struct slice text, struct slice suffix);

/* ---- memory: out of memory on the host ends the program with one sentence */

void *memory_alloc(size_t bytes); /* zeroed; never NULL */
void *memory_resize(void *old, size_t bytes);
void memory_free(void *memory);
char *memory_copy_text(struct slice text); /* NUL-terminated copy */

/* An arena: many small allocations, freed in one go. */
struct arena;
struct arena *arena_create(void);
void arena_destroy(struct arena *arena);                  /* NULL is fine */
void *arena_alloc(struct arena *arena, size_t bytes);     /* zeroed, 16-byte aligned */
char *arena_text(struct arena *arena, struct slice text); /* NUL-terminated copy */
char *arena_format(struct arena *arena, const char *format, ...) PRINTF_LIKE(2, 3);

/* A growing byte buffer; always NUL-terminated one past size. Zero-initialise. */
struct buffer {
    char *data;
    size_t size, capacity;
};
void buffer_add(struct buffer *buffer, const void *data, size_t size);
void buffer_add_slice(struct buffer *buffer, struct slice text);
void buffer_add_text(struct buffer *buffer, const char *text);
void buffer_format(struct buffer *buffer, const char *format, ...) PRINTF_LIKE(2, 3);
void buffer_add_csv(struct buffer *buffer, const char *text); /* a field of a table, in quotes */
void *buffer_extend(struct buffer *buffer, size_t size);      /* zeroed room at the end */
void buffer_clear(struct buffer *buffer);                     /* keeps the memory */
void buffer_free(struct buffer *buffer);
struct slice buffer_slice(const struct buffer *buffer);

/* ---- files */

/* A file mapped read-only. */
struct file_map {
    const u8 *data;
    size_t size;
};
int file_map_open(struct file_map *map, const char *path, struct error *error);
void file_map_close(struct file_map *map);
/* Whole content into *content (cleared first). limit: refuse larger files. */
int file_read(struct buffer *content, const char *path, size_t limit, struct error *error);
/* Private temporary name in the same folder, write, fsync, rename. */
int file_write_atomic(const char *path, const void *data, size_t size, struct error *error);
bool file_exists(const char *path);
bool file_is_folder(const char *path);
int file_make_folders(const char *path, u32 mode, struct error *error); /* as mkdir -p */
/* A new, empty folder of this user alone below TMPDIR; memory_free. */
int file_make_scratch(char **path, struct error *error);
void file_remove_tree(const char *path); /* with all that is in it, as far as it can be removed */
/* Names in a folder, sorted, without . and ..; count in *count. */
int file_list(struct arena *arena, const char *folder, char ***names, size_t *count,
              struct error *error);

/* ---- digests: BLAKE2b-256 (libsodium), printed as 64 hexadecimal digits */

struct digest {
    u8 bytes[32];
};
struct digest digest_of(const void *data, size_t size);
struct digest_state; /* incremental */
struct digest_state *digest_begin(void);
void digest_add(struct digest_state *state, const void *data, size_t size);
struct digest digest_end(struct digest_state *state); /* frees the state */
void digest_text(struct digest digest, char text[65]);

/* ---- random words, from a seed (random.c) */

#define RANDOM_STEP 0x9e3779b97f4a7c15u /* 2^64 / golden ratio, odd */
u64 random_mix(u64 z);
u64 random_next(u64 *state); /* the seed's sequence, state = seed at first */

/* ---- clock */

double clock_seconds(void); /* monotonic */
i64 clock_unix(void);       /* seconds since 1970 */

/* ---- start-up tables without libm (every machine gets the same bits) */

/* Turns a position: round(2^64 * theta^(-2t/dims) / (2 pi)), the step of rotary pair t of
 * dims/2 (RoFormer, section 3.2.2). theta >= 1, 2t < dims. Error below 0.5 + 2^-30 units. */
u64 rope_frequency(double theta, u32 t, u32 dims);

#endif
