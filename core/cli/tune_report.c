/* tune_report.c - what a sweep found (tune_report.h).
 *
 * The picture has a row a kernel. Across stands a candidate's time as a share of its default's,
 * from 0 to PLOT_MOST; slower ones stand at the right end. The default is the line at 1.
 */
#include "cli/tune_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/svg.h"

enum {
    ROW_HEIGHT = 18,
    LABEL_WIDTH = 620,
    PLOT_WIDTH = 480,
    MARGIN = 30,
    NAME_WIDTH = 26,
    LABEL_MOST = 90, /* bytes of parameters */
};
#define PLOT_MOST 2.0
#define MICROSECONDS 1e6

static bool has_time(const struct tune_candidate *candidate)
{
    return candidate->samples > 0;
}

static size_t count_tried(const struct tune_kernel *kernel)
{
    size_t count = 0;
    for (size_t i = 0; i < kernel->count; i++)
        count += kernel->candidates[i].state != TUNE_WAITING;
    return count;
}

static size_t count_state(const struct tune_kernel *kernel, enum tune_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < kernel->count; i++)
        count += kernel->candidates[i].state == state;
    return count;
}

/* ---- on the terminal */

static void print_parameters(const struct tune_kernel *kernel)
{
    struct buffer text = {0};
    tune_table_text(kernel->parameters, &text);
    printf("    %s\n", text.size ? text.data : "no parameters");
    buffer_free(&text);
}

void tune_report_plan(const struct tune *tune)
{
    size_t count, candidates = 0, swept = 0;
    const struct tune_kernel *kernels = tune_kernels(tune, &count);
    printf("%-*s %-6s %8s %6s %6s %6s %6s\n", NAME_WIDTH, "kernel", "of", "launches", "share",
           "legal", "known", "to try");
    for (size_t i = 0; i < count; i++) {
        const struct tune_kernel *kernel = &kernels[i];
        const bool swept_too = !kernel->skipped[0] && !kernel->settled;
        const size_t waiting = swept_too ? count_state(kernel, TUNE_WAITING) : 0;
        printf("%-*s %-6s %8" PRIu32 " %4.1f %% %6zu %6zu %6zu%s%s\n", NAME_WIDTH, kernel->name,
               kernel->prompt ? "prompt" : "round", kernel->launches, 100 * kernel->share,
               kernel->legal, count_tried(kernel), waiting,
               kernel->skipped[0] ? "  not tuned: "
               : kernel->settled  ? "  settled"
                                  : "",
               kernel->skipped);
        print_parameters(kernel);
        candidates += waiting;
        swept += waiting > 0;
    }
    printf("%zu kernels, %zu to sweep, %zu candidates in the first generation, about %.0f s\n",
           count, swept, candidates, tune_estimate(tune));
}

/* What the pass that launches the kernel said of its best. */
static void print_pass(const struct tune_kernel *kernel)
{
    const struct tune_in_pass *in_pass = &kernel->in_pass;
    const char *name = measure_kind_name(kernel->pass);
    if (!tune_was_in_pass(kernel))
        printf("       not timed in its pass, %s: until then the default is used\n", name);
    else
        printf("       in its pass, %s: %.4f ms -> %.4f ms, faster in %" PRIu32 " of %" PRIu32
               " rounds: %s\n",
               name, 1e3 * in_pass->seconds[0][1], 1e3 * in_pass->seconds[1][1], in_pass->faster,
               in_pass->samples, in_pass->confirmed ? "used" : "the default is used");
}

static void print_best(const struct tune_kernel *kernel)
{
    const struct tune_candidate *best = &kernel->candidates[kernel->best];
    struct buffer text = {0};
    if (kernel->best == 0)
        return;
    tune_table_text(best->tuning, &text);
    printf("    -> %s\n", text.data);
    buffer_free(&text);
    print_pass(kernel);
}

static void print_found(const struct tune_kernel *kernel)
{
    const struct tune_candidate *best = &kernel->candidates[kernel->best];
    const struct tune_candidate *standard = &kernel->candidates[0];
    if (kernel->skipped[0] || !has_time(standard)) {
        printf("%-*s %6zu %12s  %s\n", NAME_WIDTH, kernel->name, kernel->legal, "-",
               kernel->skipped[0] ? kernel->skipped : "not swept");
        print_parameters(kernel);
        return;
    }
    printf("%-*s %6zu %6zu %7zu %10.2f %10.2f %6.1f %%%s%s\n", NAME_WIDTH, kernel->name,
           kernel->legal, count_tried(kernel), count_state(kernel, TUNE_REFUSED),
           standard->median * MICROSECONDS, best->median * MICROSECONDS,
           100 * (1 - best->median / standard->median), kernel->settled ? "" : "  unsettled",
           kernel->best == 0 ? "  default" : "");
    print_parameters(kernel);
    print_best(kernel);
}

void tune_report_table(const struct tune *tune)
{
    size_t count;
    const struct tune_kernel *kernels = tune_kernels(tune, &count);
    printf("%-*s %6s %6s %7s %10s %10s %8s\n", NAME_WIDTH, "kernel", "legal", "tried", "refused",
           "default us", "alone us", "saved");
    for (size_t i = 0; i < count; i++)
        print_found(&kernels[i]);
}

void tune_report_comparison(const struct tune_comparison *comparison, u32 context)
{
    static const char *const names[] = {"default", "tuned"};
    printf("verify of 8 rows at %" PRIu32 " tokens, %" PRIu32 " times each, side by side:\n",
           context, comparison->samples);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        printf("    %-8s %9.3f ms, quartiles %.3f to %.3f\n", names[i],
               1e3 * comparison->seconds[i][1], 1e3 * comparison->seconds[i][0],
               1e3 * comparison->seconds[i][2]);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const double speed = (double)comparison->bytes / comparison->seconds[i][1];
        printf("    %-8s %9.1f GB/s of %.3f MB, %.1f %% of a copy's %.4g GB/s\n", names[i],
               speed * 1e-9, (double)comparison->bytes * 1e-6, 100 * speed / comparison->bandwidth,
               comparison->bandwidth * 1e-9);
    }
    const double saved = 100 * (1 - comparison->seconds[1][1] / comparison->seconds[0][1]);
    printf("    %s: the median is %.1f %% %s with %" PRIu32
           " kernels of another tuning; logits %s\n",
           comparison->beats ? "tuned is faster beyond the spread" : "no gain beyond the spread",
           saved < 0 ? -saved : saved, saved < 0 ? "higher" : "lower", comparison->kernels,
           comparison->same_logits ? "equal bit for bit" : "DIFFER");
}

/* ---- files */

void tune_report_json(const struct tune *tune, struct buffer *text)
{
    size_t count;
    tune_kernels(tune, &count);
    for (size_t i = 0; i < count; i++)
        tune_record_text(tune, i, text);
}

static const char *state_name(const struct tune_candidate *candidate)
{
    static const char *const names[] = {"not tried", "timed", "slower", "refused"};
    return names[candidate->state];
}

static void add_csv_row(struct buffer *text, const struct tune_kernel *kernel, size_t which)
{
    const struct tune_candidate *candidate = &kernel->candidates[which];
    struct buffer parameters = {0}, tuning = {0};
    tune_table_text(kernel->parameters, &parameters);
    tune_table_text(candidate->tuning, &tuning);
    buffer_format(text, "%s,", kernel->name);
    buffer_add_csv(text, parameters.data ? parameters.data : "");
    buffer_add_text(text, ",");
    buffer_add_csv(text, tuning.data ? tuning.data : "");
    buffer_format(text, ",%s,%s,%s,%s,", state_name(candidate), which == 0 ? "yes" : "no",
                  which == kernel->best ? "yes" : "no", which == tune_used(kernel) ? "yes" : "no");
    if (has_time(candidate))
        buffer_format(text, "%.6g,%.6g,%.6g,%" PRIu32 ",", candidate->median * MICROSECONDS,
                      candidate->low * MICROSECONDS, candidate->high * MICROSECONDS,
                      candidate->samples);
    else
        buffer_add_text(text, ",,,,");
    buffer_add_csv(text, candidate->reason);
    buffer_add_text(text, "\n");
    buffer_free(&parameters);
    buffer_free(&tuning);
}

void tune_report_csv(const struct tune *tune, struct buffer *text)
{
    size_t count;
    const struct tune_kernel *kernels = tune_kernels(tune, &count);
    buffer_add_text(text,
                    "kernel,parameters,tuning,state,default,best,used,median_us,low_quartile_us,"
                    "high_quartile_us,samples,reason\n");
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < kernels[i].count; j++)
            add_csv_row(text, &kernels[i], j);
}

/* ---- the picture */

static double place(double share)
{
    return LABEL_WIDTH + PLOT_WIDTH * (share < PLOT_MOST ? share : PLOT_MOST) / PLOT_MOST;
}

static void add_dot(struct buffer *text, const struct tune_kernel *kernel, size_t which, double y)
{
    const struct tune_candidate *candidate = &kernel->candidates[which];
    const bool best = which == kernel->best;
    struct buffer tuning = {0};
    if (!has_time(candidate))
        return;
    tune_table_text(candidate->tuning, &tuning);
    buffer_format(text,
                  "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"%s\" fill-opacity=\"%s\">"
                  "<title>%.2f us: ",
                  place(candidate->median / kernel->candidates[0].median), y, best ? "5" : "3",
                  best ? "#c00" : "#357", best ? "1" : "0.5", candidate->median * MICROSECONDS);
    svg_add_text(text, tuning.data ? tuning.data : "", SIZE_MAX);
    buffer_add_text(text, "</title></circle>\n");
    buffer_free(&tuning);
}

static void add_plot_row(struct buffer *text, const struct tune_kernel *kernel, double y)
{
    struct buffer parameters = {0};
    tune_table_text(kernel->parameters, &parameters);
    buffer_format(text, "<text x=\"8\" y=\"%.1f\">%s ", y + 4, kernel->name);
    svg_add_text(text, parameters.data ? parameters.data : "", LABEL_MOST);
    buffer_add_text(text, "</text>\n");
    buffer_free(&parameters);
    for (size_t i = 0; i < kernel->count; i++)
        if (i != kernel->best)
            add_dot(text, kernel, i, y);
    add_dot(text, kernel, kernel->best, y);
}

void tune_report_svg(const struct tune *tune, struct buffer *text)
{
    size_t count, rows = 0;
    const struct tune_kernel *kernels = tune_kernels(tune, &count);
    struct buffer body = {0};
    for (size_t i = 0; i < count; i++)
        if (has_time(&kernels[i].candidates[0]))
            add_plot_row(&body, &kernels[i], MARGIN + ROW_HEIGHT * (0.5 + (double)rows++));
    const double bottom = MARGIN + ROW_HEIGHT * (double)rows;
    svg_begin(text, LABEL_WIDTH + PLOT_WIDTH + MARGIN, (u32)bottom + MARGIN, 11);
    buffer_format(text,
                  "<text x=\"8\" y=\"18\">time of a launch as a share of the default's; the best "
                  "alone is red; slower than %g times: at the right end</text>\n",
                  PLOT_MOST);
    for (u32 i = 0; i <= 4; i++)
        buffer_format(text,
                      "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>"
                      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n",
                      place(i * 0.5), MARGIN, place(i * 0.5), bottom, i == 2 ? "#000" : "#ccc",
                      place(i * 0.5), bottom + 14, i * 0.5);
    buffer_add_slice(text, buffer_slice(&body));
    svg_end(text);
    buffer_free(&body);
}
