/* jit.h - from a schedule's name and numbers to a function that can be launched.
 *
 * request (name, parameters) -> Lua renders source and geometry -> key -> cache ->
 * compile on a miss -> module -> function. The Lua side (lua/, schedules/,
 * templates/) is embedded in the program; a folder given by --schedules overrides it
 * file by file. Cache layout and locking: cache.c. Design.md 5 and 6.
 *
 * Use: open; request every kernel a plan needs (cheap: Lua only); jit_build once
 * (parallel compiles with progress); then jit_kernel_function. Requests with equal
 * text share one kernel.
 */
#ifndef ELPIS_JIT_H
#define ELPIS_JIT_H

#include "base/base.h"
#include "device/device.h"

struct jit;
struct jit_kernel; /* lives as long as the jit */

/* A file by its path in the source tree, as "schedules/mine.lua". */
struct jit_file {
    const char *path;
    struct slice text;
};

struct jit_options {
    /* Folder; NULL = ELPIS_CACHE, XDG_CACHE_HOME/elpis, ~/.cache/elpis, /tmp/elpis-<uid>. */
    const char *cache;
    /* Override folder; NULL = embedded only. What it holds has to pass the laws, and what it
     * replaces should have been checked: foreign.c. */
    const char *schedules;
    bool warned; /* of what the folder replaces: this is not the first jit over it */
    /* Files before those of the folder, ends with {0}; NULL = none. They stay the caller's and must
     * live as long as the jit. */
    const struct jit_file *files;
    const char *records; /* folder of tuning records; records.h: records_folder */
    /* 0 = defaults and records; else each kernel's tuning is drawn at random from its legal
     * combinations, seeded by (plan_seed, name, parameters). */
    u64 plan_seed;
    bool memory_only;    /* no cache folder at all */
    u32 compile_threads; /* 0 = one a core */
};

int jit_open(struct jit **jit, struct device *device, const struct jit_options *options,
             struct error *error);
void jit_close(struct jit *jit);

/* One parameter: an integer or a name. The table ends with {0}. */
struct jit_parameter {
    const char *name;
    i64 number;
    const char *text; /* NULL = number */
};
#define JIT_NUMBER(name, value)    \
    {                              \
        (name), (i64)(value), NULL \
    }
#define JIT_TEXT(name, value) \
    {                         \
        (name), 0, (value)    \
    }

/* Renders. Unknown parameters, missing ones, values a validity rule refuses: ERROR_USAGE
 * with the schedule, the parameter, expected and found. */
int jit_request(struct jit *jit, const char *schedule, const struct jit_parameter *parameters,
                struct jit_kernel **kernel, struct error *error);
/* Compiles or loads what was requested since the last build; logs kernel i of n and seconds. */
int jit_build(struct jit *jit, struct error *error);

struct device_function *jit_kernel_function(const struct jit_kernel *kernel); /* after jit_build */
const struct device_geometry *jit_kernel_geometry(const struct jit_kernel *kernel);
const char *jit_kernel_name(const struct jit_kernel *kernel);
struct slice jit_kernel_source(const struct jit_kernel *kernel);
/* Its name, target, parameters and resolved tuning, one line. */
const char *jit_kernel_plan(const struct jit_kernel *kernel);
/* The requested kernel of a function; NULL = none. */
const struct jit_kernel *jit_kernel_of(const struct jit *jit,
                                       const struct device_function *function);
/* A number the schedule exports beside its geometry (e.g. "workspace" bytes); -1 = not there. */
i64 jit_kernel_export(const struct jit_kernel *kernel, const char *name);
/* Launch with argument count checked against the schedule's list. */
int jit_launch(struct jit *jit, struct device_stream *stream, const struct jit_kernel *kernel,
               const u64 *arguments, u32 count, struct error *error);
/* 16 hexadecimal digits over names, parameters and tuning of all requests, in no order. */
const char *jit_plan_hash(const struct jit *jit);

/* ---- for the tuner (variant.c) */

/* Called before every launch; fails the launch where it fails. Its own launches are not watched. */
typedef int jit_watcher(void *user, const struct jit_kernel *kernel, const u64 *arguments,
                        u32 count, struct error *error);
void jit_watch(struct jit *jit, jit_watcher *watcher, void *user); /* NULL: no longer */
/* Tables, ended by {0}, sorted by name: of the request; as resolved. */
const struct jit_parameter *jit_kernel_parameters(const struct jit_kernel *kernel);
const struct jit_parameter *jit_kernel_tuning(const struct jit_kernel *kernel);
bool jit_same_table(const struct jit_parameter *a, const struct jit_parameter *b);
/* A letter an argument: w the kernel writes through it; l it is a list of addresses in device
 * memory that the kernel writes through; - neither. */
const char *jit_kernel_writes(const struct jit_kernel *kernel);
/* Digest of the texts of its schedule and template, 16 hexadecimal digits. */
bool jit_kernel_digest(struct jit *jit, const struct jit_kernel *kernel, char text[17]);
/* Every legal tuning of the kernel's request; allocated in the arena. */
int jit_tunings(struct jit *jit, const struct jit_kernel *kernel, struct arena *arena,
                struct jit_parameter ***tables, size_t *count, struct error *error);
/* The kernel's request with another tuning, NULL = the default: rendered, then compiled (by any
 * thread), then loaded. */
int jit_variant_create(struct jit *jit, const struct jit_kernel *kernel,
                       const struct jit_parameter *tuning, struct jit_kernel **variant,
                       struct error *error);
int jit_variant_compile(struct jit *jit, const struct jit_kernel *variant, struct buffer *image,
                        struct error *error);
int jit_variant_load(struct jit *jit, struct jit_kernel *variant, const struct buffer *image,
                     struct error *error);
void jit_variant_destroy(struct jit *jit, struct jit_kernel *variant); /* NULL is fine */
/* Each becomes what the other was; kernel: a requested one. */
void jit_swap(struct jit *jit, const struct jit_kernel *kernel, struct jit_kernel *variant);
/* Whether both tell their callers the same numbers. */
bool jit_same_exports(const struct jit_kernel *a, const struct jit_kernel *b);

/* A file that is embedded in the program; false = there is none of that path. */
bool jit_embedded_file(const char *path, struct slice *text);

/* A usual GPU of an architecture, for when none is at hand; NULL: none is known. */
struct jit_gpu {
    const char *target;
    u32 sms, shared_per_sm;               /* bytes */
    double megahertz, gigabytes_a_second; /* clock, and bandwidth of a copy; 0: not known */
};
const struct jit_gpu *jit_usual_gpu(const char *target);

/* For `elpis kernels` and tools: renders for a named target without a device. */
struct jit_listing {
    char name[64], summary[160];
    char parameters[400]; /* names of the problem's and of numeric ones, "bits, k, n" */
};
int jit_render(const char *schedules, const char *schedule, const struct jit_parameter *parameters,
               const char *target, u32 sms, u32 shared_per_sm, struct buffer *source,
               struct device_geometry *geometry, struct error *error);
int jit_list(const char *schedules, struct jit_listing **listing, size_t *count,
             struct error *error);

#endif
