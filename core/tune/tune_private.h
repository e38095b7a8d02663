/* tune_private.h - the parts of the sweep among themselves.
 *
 *     tune.c    generations; a kernel's sweep, inside its launch
 *     choose.c  which tunings are tried
 *     pool.c    compiling them meanwhile
 *     bits.c    what a launch wrote, kept and compared
 *     report.c  kernels to records and back
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

#endif
