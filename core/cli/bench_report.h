/* bench_report.h - private to cli/: what `elpis bench` measured, as a table, JSON lines, CSV and a
 * plot. */
#ifndef ELPIS_CLI_BENCH_REPORT_H
#define ELPIS_CLI_BENCH_REPORT_H

#include "base/base.h"
#include "engine/measure.h"

/* Kinds of points: what was timed. */
#define BENCH_VERIFY "verify"
#define BENCH_ROUND "round"
#define BENCH_PHASE "phase"
#define BENCH_PHASES "all phases"
#define BENCH_REQUEST "request"
#define BENCH_PROMPT_PHASE "prompt phase"
#define BENCH_PROMPT_PHASES "all prompt phases"

/* A whole request over HTTP beside what the engine alone takes for its prompt and as many rounds.
 * Means over the repetitions; seconds. */
struct bench_request {
    double tokens, rounds; /* of the answer */
    double first;          /* until the first text */
    double engine;         /* as the server's engine counts it */
    double prefill, round; /* of the engine alone, medians */
    double expected;       /* prefill + rounds x round */
    double of_expected;    /* request / expected, median */
};

/* One thing that was timed. */
struct bench_point {
    const char *kind;   /* a word or two, such as "verify" */
    const char *detail; /* the tree's parents, the phase; NULL = none */
    u32 context;        /* tokens that the last row sees; of a prompt: its tokens */
    double rows;        /* of the pass; mean of a round's verifies; committed rows; 0 = none */
    struct series seconds;
    bool has_traffic;
    struct traffic traffic;
    struct device_readings readings;
    double tokens_a_second;       /* of a prompt; 0 = none */
    struct bench_request request; /* tokens 0 = none */
    bool quiet;                   /* in the files, not in the table */
};

/* All of a run; memory_free(points). */
struct bench_report {
    const char *model, *draft; /* names; draft NULL = none */
    const struct device_info *device;
    const char *plan;    /* hash */
    const char *command; /* the command line */
    u32 context, kv_bits;
    double bandwidth; /* of a copy, bytes a second */
    struct bench_point *points;
    u32 count;
};

/* Takes a copy of the point, prints its row unless quiet. */
void bench_report_add(struct bench_report *report, const struct bench_point *point);

void bench_report_head(const struct bench_report *report, const char *no_sensors);
void bench_report_columns(void);
/* Phases in rows, contexts or lengths of prompts in columns; nothing without phases. */
void bench_report_phases(const struct bench_report *report);
/* Requests over HTTP beside the engine alone; nothing without requests. */
void bench_report_requests(const struct bench_report *report);
/* What the verifies move, and the time that a copy of as much takes. */
void bench_report_traffic(const struct bench_report *report);

/* ---- files; each function appends text */
void bench_report_json(const struct bench_report *report, struct buffer *text);
void bench_report_csv(const struct bench_report *report, struct buffer *text);
void bench_report_svg(const struct bench_report *report, struct buffer *text);

/* Median and quartiles of a series (linear between neighbours), in seconds. */
struct quartiles {
    double low, median, high;
};
struct quartiles quartiles_of(const struct series *series);

#endif
