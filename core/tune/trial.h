/* trial.h - which of several launches is fastest: candidates timed side by side.
 *
 * A candidate is a function that launches on the device's first stream. All are sampled in rounds:
 * each round takes every candidate that is still in once, in a shuffled order, so that what drifts
 * (clocks, heat, other programs) hits all alike. Behind rounds 5, 10, 20, ... candidates whose
 * lower quartile lies above the upper quartile of the best (the least median) are dropped. The
 * trial ends early when nobody but the best is left that could be as good.
 *
 * A sample is the mean time of a few launches, each by itself between two events: as many as take
 * TRIAL_SAMPLE_SECONDS together, so that the clock's steps do not count. Before each launch the
 * second-level cache is emptied by filling a buffer of TRIAL_FLUSH_BYTES: in a pass weights come
 * from memory, not from the launch before. The host device has no flush: its kernels are bound by
 * their instructions, and emptying a server's cache takes longer than they do.
 */
#ifndef ELPIS_TRIAL_H
#define ELPIS_TRIAL_H

#include "base/base.h"
#include "device/device.h"

enum {
    TRIAL_STAGE = 5,   /* rounds before anybody is dropped */
    TRIAL_ROUNDS = 40, /* most, where the options leave it open */
    TRIAL_ROUNDS_MOST = 200,
    TRIAL_LAUNCHES_MOST = 8, /* of a sample */
    TRIAL_FLUSH_BYTES = 128 << 20,
};
#define TRIAL_SAMPLE_SECONDS 50e-6

struct trial_candidate {
    /* Launches once, on the device's first stream; does not wait. */
    int (*launch)(void *context, struct error *error);
    void *context;
    /* Before every launch, in time that does not count; may be NULL. */
    int (*prepare)(void *context, struct error *error);
};

struct trial_options {
    u32 rounds;      /* most, up to TRIAL_ROUNDS_MOST; 0 = TRIAL_ROUNDS */
    double seconds;  /* no round begins later, but for the first TRIAL_STAGE; 0 = no limit */
    u64 seed;        /* of the shuffles */
    bool keep_all;   /* nobody is dropped and all rounds are run: who is faster in each counts */
    bool keep_first; /* candidate 0 is what others are compared with: it is never dropped */
    /* Asked before each round; false: what was measured until then is the result. NULL = go on */
    bool (*go_on)(void *user);
    void *user;
};

struct trial_result {
    double median, low, high; /* seconds of a launch: median, lower and upper quartile */
    u32 samples;              /* 0: the numbers above are 0 */
    u32 faster;               /* of these, in its round faster than candidate 0 */
    u32 launches;             /* of a sample */
    bool dropped;             /* after so many samples, being slower than the best */
    bool failed;              /* it could not be launched: reason says why */
    struct error reason;
};

struct trial;
int trial_open(struct trial **trial, struct device *device, struct error *error);
void trial_close(struct trial *trial);            /* NULL is fine; before the device */
u64 trial_flush_bytes(const struct trial *trial); /* 0: the cache is not emptied */

/* results: [count]. A candidate whose launch fails is out of the race; -1 where the device itself
 * fails while it runs. */
int trial_run(struct trial *trial, const struct trial_candidate *candidates, u32 count,
              const struct trial_options *options, struct trial_result *results,
              struct error *error);

/* Index of the least median among those that were neither dropped nor failed; count: none. */
u32 trial_best(const struct trial_result *results, u32 count);
/* Whether a is faster than b beyond the spread of both: its upper quartile below b's lower. */
bool trial_beats(const struct trial_result *a, const struct trial_result *b);
/* Whether a is faster than candidate 0, b, by little that shows in many rounds: its median is
 * lower, and of n rounds it was faster in at least n/2 + sqrt(n), which equals reach in 1 of 40
 * trials. A round's samples stand next to each other: what drifts between rounds does not count. */
bool trial_wins(const struct trial_result *a, const struct trial_result *b);

/* The rounds by themselves, over samples from anywhere: *seconds of a launch of a candidate. A
 * failed sample puts its candidate out, with *failed; -1 ends the trial. */
struct trial_source {
    int (*sample)(void *context, u32 candidate, double *seconds, bool *failed, struct error *error);
    void *context;
};
int trial_rounds(const struct trial_source *source, u32 count, const struct trial_options *options,
                 struct trial_result *results, struct error *error);

#endif
