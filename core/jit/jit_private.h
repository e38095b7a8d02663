/* jit_private.h - the parts of core/jit among themselves.
 *
 *     request.c --> records.c (tuning) --> lua.c (rendering) --> struct jit_kernel
 *     build.c   --> cache.c, check.c, device.h
 *
 * The Lua state and the cache's bookkeeping belong to the thread that calls jit_*; the workers of
 * build.c touch only device_compile and the functions of cache.c that say so.
 */
#ifndef ELPIS_JIT_PRIVATE_H
#define ELPIS_JIT_PRIVATE_H

#include "jit/jit.h"

/* ---- lua.c: a Lua state over the embedded files and the override folder */

struct scripts;

/* What a kernel is rendered for; the `target` table of lua/README.md. */
struct scripts_target {
    char name[32]; /* "sm_86", "host" */
    u32 arch, sms, shared_per_sm, shared_per_block, registers_per_sm;
    bool check; /* host: sentinels between shared arrays */
};

struct scripts_request {
    const char *schedule;
    const struct jit_parameter *parameters; /* ends with {0} */
    const struct jit_parameter *tuning;     /* ends with {0}; NULL = the default */
    const struct scripts_target *target;
    i64 seed; /* 0 = no random tuning */
};

enum { ARGUMENTS_MOST = 64 };

struct scripts_export {
    char *name;
    i64 value;
};

struct scripts_rendering {
    struct buffer source, key_text; /* key_text: all that decides bits and text */
    struct buffer plan;             /* one line: name, parameters, resolved tuning; sorted */
    char entry[128];
    struct device_geometry geometry;
    u32 arguments;
    char writes[ARGUMENTS_MOST + 1]; /* jit_kernel_writes */
    struct scripts_export *exports;
    size_t export_count;
    struct arena *arena;          /* of the tuning */
    struct jit_parameter *tuning; /* as resolved; ends with {0} */
};

int scripts_open(struct scripts **scripts, const char *folder, struct error *error);
/* Files that come before all others (jit_options.files); NULL = none. */
void scripts_set_files(struct scripts *scripts, const struct jit_file *files);
void scripts_close(struct scripts *scripts); /* NULL is fine */
/* An embedded file, or the override folder's file of that path; false = not there. */
bool scripts_read(const struct scripts *scripts, const char *path, struct buffer *text);
/* Paths below a folder ("schedules"), not recursive, sorted; allocated in the arena. */
size_t scripts_list(const struct scripts *scripts, const char *folder, struct arena *arena,
                    char ***paths);
int scripts_render(struct scripts *scripts, const struct scripts_request *request,
                   struct scripts_rendering *rendering, struct error *error);
/* All legal tuning tables of a request, in the order of resolution, each sorted by name and ended
 * by {0}; allocated in the arena. */
int scripts_combinations(struct scripts *scripts, const struct scripts_request *request,
                         struct arena *arena, struct jit_parameter ***tables, size_t *count,
                         struct error *error);
/* Digest of a schedule's and its template's text, 16 hexadecimal digits; false: no such
 * schedule. */
bool scripts_digest(struct scripts *scripts, const char *schedule, char text[17]);
void scripts_rendering_free(struct scripts_rendering *rendering);
/* Checks the laws of the request's maps: an error names the law and a counterexample. */
int scripts_laws(struct scripts *scripts, const struct scripts_request *request,
                 struct error *error);

/* A schedule as listed; examples: parameter tables for tools, each ends with {0}. */
struct scripts_listing {
    const char *name, *summary;
    const char *parameters; /* names of the problem's and of numeric ones, "bits, k, n" */
    struct jit_parameter **examples;
    size_t example_count;
};
int scripts_schedules(struct scripts *scripts, struct arena *arena,
                      struct scripts_listing **listing, size_t *count, struct error *error);

/* ---- foreign.c: schedules that are not the program's own */

/* Warns of every embedded file that the folder replaces and no passed check covers. */
void foreign_warn(const struct scripts *scripts, const char *folder);
/* Whether schedules/NAME.lua is not the embedded one. */
bool foreign_schedule(const struct scripts *scripts, const char *name);
/* Whether an embedded file that schedules stand on (lua/, schedules/lib_*) is replaced. */
bool foreign_library(const struct scripts *scripts);

/* ---- records.c: tuning records */

struct records;
/* Shipped records and those of the user's folder (records.h: records_folder); lines that are no
 * records are warned of and skipped. The scripts must live as long. */
struct records *records_open(struct scripts *scripts, const char *folder);
void records_close(struct records *records);
/* Tuning of the last record for this schedule, target and exactly these parameters that is not
 * stale; NULL = none. */
const struct jit_parameter *records_find(struct records *records, const char *schedule,
                                         const struct scripts_target *target,
                                         const struct jit_parameter *parameters);

/* ---- cache.c: images in a folder */

struct cache;
/* Never fails; may warn. Deletes what killed processes left there more than an hour ago. */
struct cache *cache_open(const char *folder, bool memory_only);
void cache_close(struct cache *cache);
/* Into *image; false = miss. A damaged file is a miss and is removed; the first is warned of. Any
 * thread. */
bool cache_load(struct cache *cache, const struct digest *key, struct buffer *image);
/* Waits until no other process or thread holds the key. A handle for unlock; -1 = no lock. Any
 * thread. */
int cache_lock(struct cache *cache, const struct digest *key);
void cache_unlock(struct cache *cache, const struct digest *key, int lock);
void cache_store(struct cache *cache, const struct digest *key, struct slice image);
void cache_remove(struct cache *cache, const struct digest *key);
const char *cache_folder(const struct cache *cache); /* NULL = memory only */

/* ---- the jit */

struct jit_kernel {
    char *name;
    struct arena *arena;
    struct jit_parameter *parameters; /* of the request; ends with {0} */
    struct scripts_rendering rendering;
    struct digest key;
    struct device_module *module;
    struct device_function *function; /* NULL until built */
    struct jit_kernel *next;
};

struct jit {
    struct device *device;
    struct scripts *scripts;
    struct records *records;
    struct cache *cache;
    struct scripts_target target;
    u64 plan_seed;
    u32 compile_threads;
    struct jit_kernel *kernels, **last; /* in order of request */
    struct jit_kernel *check;           /* check.c's kernel */
    bool check_is_requested;            /* it is one of the list; else it is not */
    bool checked, record_warned;
    bool foreign_library;
    u64 *plan_lines; /* digests of the requests seen */
    size_t plan_count;
    u64 plan_sum;
    char plan_hash[17];
    jit_watcher *watcher; /* NULL: nobody watches */
    void *watcher_user;
};

/* request.c: renders one kernel without putting it on the list. */
int jit_kernel_create(struct jit *jit, const char *schedule, const struct jit_parameter *parameters,
                      struct jit_kernel **kernel, struct error *error);
/* The same with this tuning; NULL = the default, whatever records say. */
int jit_kernel_render(struct jit *jit, const char *schedule, const struct jit_parameter *parameters,
                      const struct jit_parameter *tuning, struct jit_kernel **kernel,
                      struct error *error);
/* build.c: an image becomes the kernel's module and function. */
int jit_kernel_load(struct jit *jit, struct jit_kernel *kernel, const struct buffer *image,
                    struct error *error);
void jit_kernel_destroy(struct jit *jit, struct jit_kernel *kernel);
/* The requested kernel with this key; NULL = none. */
struct jit_kernel *jit_kernel_find(struct jit *jit, const struct digest *key);
void jit_target_of(const struct device_info *info, struct scripts_target *target);
int jit_target_named(const char *name, u32 sms, u32 shared_per_sm, struct scripts_target *target,
                     struct error *error);

/* check.c: runs the built kernel `check` and compares with answers computed in C. */
int jit_check_run(struct jit *jit, struct error *error);

#endif
