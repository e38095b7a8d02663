/* tune.h - the sweep: for every kernel that a model launches, which tuning is fastest here.
 *
 * No schedule is named. The engine's passes are run (measure.h), and a kernel is swept where it is
 * launched for the first time: with the arguments and the memory that it really gets. Every
 * candidate must leave the same bits as the default in all buffers that the kernel can write to
 * before it is timed (bits.c), side by side with the others (trial.h).
 *
 * The search goes in generations. The first tries the default, all that differ from it in one
 * value, and a sample of the rest; each further one what differs from the best so far in one value.
 * A kernel is settled when all of that was tried.
 *
 * Behind the generations whoever has won alone must win where it runs, with neighbours whose
 * launches overlap its own (confirm.c). Until it has, and when it does not, the default is used.
 *
 * What is known of a kernel is written behind each of its trials, whole, as one record; a sweep
 * that was ended goes on from there.
 */
#ifndef ELPIS_TUNE_H
#define ELPIS_TUNE_H

#include "engine/measure.h"
#include "jit/jit.h"

enum tune_state {
    TUNE_WAITING, /* chosen, not tried */
    TUNE_TIMED,
    TUNE_SLOWER, /* timed and dropped: beaten by the best of its trial */
    TUNE_REFUSED /* reason says why it was not timed */
};

struct tune_candidate {
    const struct jit_parameter *tuning; /* ends with {0}, sorted by name */
    enum tune_state state;
    double median, low, high; /* seconds of a launch: median and quartiles */
    u32 samples;
    char reason[240];
};

/* How the pass that launches a kernel most often took with the tuning that won alone, beside the
 * same pass with the default. */
struct tune_in_pass {
    size_t candidate;     /* which won alone */
    double seconds[2][3]; /* default, tuned: lower quartile, median, upper quartile */
    u32 samples;          /* of each; 0: it was not timed */
    u32 faster;           /* rounds in which it was the faster one */
    bool confirmed;       /* it won there too */
};

struct tune_kernel {
    const struct jit_kernel *kernel;
    const char *name;
    const struct jit_parameter *parameters;
    u32 launches;                      /* in one round of passes */
    double seconds;                    /* of those launches, one by one */
    double share;                      /* of all launches of rounds, or of prompts */
    bool prompt;                       /* it is launched for prompts alone */
    enum measure_kind pass;            /* which launches it most often */
    size_t legal;                      /* tunings that are legal */
    struct tune_candidate *candidates; /* [0]: the default */
    size_t count, best;                /* best: alone */
    struct tune_in_pass in_pass;
    bool resumed;      /* some of it was known from a record */
    bool settled;      /* nothing is left to try */
    char skipped[240]; /* why it cannot be tuned; "": it can */
};

/* Where a sweep is. */
struct tune_progress {
    u32 generation, kernel, kernels; /* from 1 */
    const struct tune_kernel *now;
    bool finished;      /* with this kernel, in this generation */
    bool in_pass;       /* behind the generations: it is timed in its pass */
    double spent, left; /* seconds; left: estimated, at most what the budget leaves */
};

struct tune_options {
    double budget;      /* seconds for sweeping; 0 = until all is settled */
    u32 candidates;     /* most of a kernel and generation; 0 = by its share of the time */
    u64 seed;           /* of samples and shuffles */
    u32 context;        /* at which passes are run (measure_every_kernel) */
    bool prompts;       /* the kernels of prompts too */
    u32 threads;        /* that compile; 0 = one a core but one */
    const char *kernel; /* only kernels of this schedule; NULL = all */
    const struct jit_parameter *shape; /* only kernels with these parameters; NULL = all */
    const char *output;                /* file of records */
    bool again;                /* do not go on from the records of this machine that are there */
    bool (*go_on)(void *user); /* false: end the sweep, keep what is known. NULL = go on */
    void (*progress)(void *user, const struct tune_progress *progress); /* may be NULL */
    void *user;
};

struct tune;
/* Runs the passes once to see what is launched, reads what is known, chooses the first generation.
 * The engine's kernels must have their default tuning (engine_options.records "none"). */
int tune_open(struct tune **tune, struct measure *measure, const struct tune_options *options,
              struct error *error);
void tune_close(struct tune *tune); /* NULL is fine; before the measure */
const struct tune_kernel *tune_kernels(const struct tune *tune, size_t *count);
/* What is known of a kernel, as one line of a file of records, added. */
void tune_record_text(const struct tune *tune, size_t index, struct buffer *text);
/* A guess, in seconds: what the first generation will take. */
double tune_estimate(const struct tune *tune);
int tune_run(struct tune *tune, struct error *error);
/* The candidate that records name: the best where its pass has confirmed it, else the default. */
size_t tune_used(const struct tune_kernel *kernel);
/* The best was timed in its pass. */
bool tune_was_in_pass(const struct tune_kernel *kernel);
bool tune_ended_early(const struct tune *tune); /* by the budget or go_on */

/* A verify of 8 rows at the context with all defaults and with all that is used. */
struct tune_comparison {
    double seconds[2][3]; /* default, tuned: lower quartile, median, upper quartile */
    u64 bytes;            /* that it moves at least (traffic.h) */
    double bandwidth;     /* of a copy, bytes a second */
    u32 samples, kernels; /* kernels of which not the default is used */
    bool same_logits;     /* bit for bit */
    bool beats;           /* tuned is faster beyond the spread of both */
};
int tune_compare(struct tune *tune, struct tune_comparison *comparison, struct error *error);

/* "k=5120 n0=17408": a parameter table as text, added. */
void tune_table_text(const struct jit_parameter *table, struct buffer *text);

#endif
