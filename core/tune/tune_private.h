/* tune_private.h - the parts of the sweep among themselves.
 *
 *     tune.c       opening; generations
 *     launches.c   which kernels are launched
 *     prepare.c    what will be tried of each
 *     choose.c     which tunings that are
 *     candidate.c  rendering, compiling and judging them
 *     pool.c       compiling meanwhile
 *     sweep.c      a kernel's generation, inside its launch
 *     bits.c       what a launch wrote, kept and compared
 *     report.c     kernels to records and back
 *     confirm.c    who has won alone, in its pass
 *     compare.c    default and tuned side by side
 */
#ifndef ELPIS_TUNE_PRIVATE_H
#define ELPIS_TUNE_PRIVATE_H

#include <jansson.h>

#include "tune/trial.h"
#include "tune/tune.h"

/* ---- choose.c */

struct choice {
    struct arena *arena;
    struct jit_parameter **legal; /* [count] all tunings, the default first */
    size_t count;
    u64 random;
};
/* Adds a candidate unless it is there; its index. The tuning must live on. */
size_t choose_add(struct tune_kernel *kernel, const struct jit_parameter *tuning);
/* The first generation: default, neighbours of it, a sample; at most `most`. */
void choose_first(struct tune_kernel *kernel, struct choice *choice, size_t most);
/* Neighbours of the best that were not tried; false: none. */
bool choose_next(struct tune_kernel *kernel, struct choice *choice, size_t most);

/* ---- pool.c */

struct compile_job {
    struct jit_kernel *variant; /* the caller's */
    struct buffer image;
    int status;
    struct error error;
    enum { JOB_QUEUED, JOB_RUNNING, JOB_DONE, JOB_CANCELLED } state;
    struct compile_job *next;
};
struct compile_pool;
int pool_open(struct compile_pool **pool, struct jit *jit, u32 threads, struct error *error);
void pool_close(struct compile_pool *pool); /* NULL is fine; cancels what is queued */
/* The job lives until pool_close; jobs are begun in order. */
struct compile_job *pool_add(struct compile_pool *pool, struct jit_kernel *variant);
/* Until it is done or the clock says `deadline` (0: never); false: it is not done. */
bool pool_wait(struct compile_pool *pool, struct compile_job *job, double deadline);
void pool_cancel(struct compile_pool *pool); /* what is queued is not begun any more */

/* ---- bits.c */

struct bits;
/* Finds the buffers that a launch can write to, keeps what is in them. NULL and a sentence in
 * reason where they cannot be known or kept. */
struct bits *bits_open(struct jit *jit, struct device *device, const struct jit_kernel *compare,
                       const struct jit_kernel *kernel, const u64 *arguments, u32 count,
                       char reason[240]);
void bits_close(struct bits *bits); /* NULL is fine */
u64 bits_bytes(const struct bits *bits);
int bits_restore(struct bits *bits, struct error *error); /* what was there at opening */
int bits_keep(struct bits *bits, struct error *error);    /* what is there now is right */
int bits_compare(struct bits *bits, bool *same, struct error *error);

/* ---- report.c */

/* A new reference. digest: of the schedule's texts. */
json_t *tune_record(const struct tune_kernel *kernel, const struct device_info *device,
                    const char *digest);
/* What a record knows of the kernel's candidates, with tunings of `legal`. */
void tune_take_record(struct tune_kernel *kernel, const json_t *record,
                      const struct choice *choice);

/* ---- the sweep */

#define SHARE_LARGE 0.05  /* of the time of all launches */
#define TRIAL_SECONDS 3.0 /* most, of one */

/* What belongs to a kernel, beside struct tune_kernel. */
struct entry {
    struct choice choice;
    char digest[17];
    struct jit_kernel **variants; /* of each candidate; NULL: none, or the default's */
    struct compile_job **jobs;
    size_t room; /* of both */
    u32 launches[MEASURE_KINDS];
    bool swept;         /* in this generation */
    bool best_in_place; /* of the default: the variant is then the default */
};

struct tune {
    struct measure *measure;
    struct jit *jit;
    struct device *device;
    struct tune_options options;
    struct arena *arena;
    struct trial *trial;
    struct compile_pool *pool;
    struct jit_kernel *compare;
    struct tune_kernel *kernels;
    struct entry *entries; /* beside them */
    size_t count;
    u32 generation;
    double start;
    bool ended_early;
    enum measure_kind pass; /* that runs */
    /* of discovery: the launch before */
    struct tune_kernel *last;
    double since;
    size_t passed;       /* kernels of passes that have ended */
    struct buffer other; /* shapes of the wanted kernel that are not wanted, a line each */
    /* of a comparison */
    bool tuned_in_place;
};

/* ---- tune.c */

double tune_deadline(const struct tune *tune); /* on clock_seconds; 0: none */
double tune_time_left(const struct tune *tune);
bool tune_wished(void *tune);  /* false, and ended early: the user's wish */
bool tune_goes_on(void *tune); /* false, and ended early: the budget is spent, or the user's wish */
bool tune_on_host(const struct tune *tune);
u32 tune_threads(const struct tune *tune);             /* that compile */
size_t tune_waiting(const struct tune_kernel *kernel); /* candidates that are to be tried */

/* ---- launches.c */

/* Runs the passes that the options want to be swept, with the watcher at each launch. */
int launches_pass(struct tune *tune, jit_watcher *watcher, struct error *error);
int launches_discover(struct tune *tune, struct error *error);
struct tune_kernel *launches_find(const struct tune *tune, const struct jit_kernel *kernel);

/* ---- prepare.c */

int prepare_kernels(struct tune *tune, struct error *error);
size_t prepare_most(const struct tune *tune, const struct tune_kernel *kernel); /* candidates */

/* ---- candidate.c: index: of the kernel; which: of its candidate */

void candidate_refuse(struct tune_candidate *candidate, const char *format, ...) PRINTF_LIKE(2, 3);
void candidate_make_room(struct entry *entry, size_t count); /* for so many variants */
/* Gives those that are to be tried, and the best, to the compilers. */
void candidate_queue(struct tune *tune, size_t index);
/* Makes the candidate ready now: compiled by this thread where that has not been done. */
int candidate_fetch(struct tune *tune, size_t index, size_t which, struct error *error);
/* Whether the compiled candidate is loaded and may be launched. */
bool candidate_load(struct tune *tune, size_t index, size_t which);

/* ---- sweep.c */

/* One generation of a kernel, with the arguments of its launch. Memory is afterwards as before. */
int sweep_kernel(struct tune *tune, size_t index, const u64 *arguments, u32 count,
                 struct error *error);
int sweep_write_record(struct tune *tune, size_t index, struct error *error);

/* ---- confirm.c */

/* It has won alone, and its pass was not asked yet. */
bool confirm_is_pending(const struct tune_kernel *kernel);
/* Asks the passes of those that are pending, and writes their records. */
int confirm_kernels(struct tune *tune, struct error *error);
/* What a pass said. A kernel whose best does not win there is settled. */
void confirm_take(struct tune_kernel *kernel, const struct trial_result *standard,
                  const struct trial_result *tuned);

#endif
