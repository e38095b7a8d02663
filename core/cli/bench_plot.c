/* bench_plot.c - milliseconds a verify over the context, as SVG.
 *
 * One curve for every row count, one for whole rounds, with quartiles as bars, and dashed the floor
 * of the verify with the most rows. The contexts lie on a logarithmic axis, each with a tick.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench_report.h"
#include "cli/svg.h"

enum { WIDTH = 760, HEIGHT = 460, LEFT = 70, RIGHT = 180, TOP = 50, BOTTOM = 60, CURVES = 12 };
#define TICKS 6 /* of the vertical axis, about */
#define NAME_MOST 200

static const char *const colours[] = {"#1b6ca8", "#c8553d", "#3a7d44", "#7a4e9f",
                                      "#b8860b", "#2a9d8f", "#8d3b72", "#555555"};

/* Points of one kind and row count. */
struct curve {
    const char *kind;
    double rows; /* 0 = any */
    bool limit;  /* the floors instead of the medians */
};

struct plot {
    const struct bench_report *report;
    struct buffer *text;
    struct curve curves[CURVES];
    u32 count;
    double first, last; /* log2 of the contexts */
    double top, step;   /* milliseconds */
};

static bool belongs(const struct curve *curve, const struct bench_point *point)
{
    return strcmp(point->kind, curve->kind) == 0 && !point->detail &&
           (curve->rows == 0 || point->rows == curve->rows);
}

static double milliseconds(const struct plot *plot, const struct curve *curve,
                           const struct bench_point *point)
{
    return 1e3 * (curve->limit ? (double)traffic_bytes(point->traffic) / plot->report->bandwidth
                               : quartiles_of(&point->seconds).median);
}

static double x_of(const struct plot *plot, u32 context)
{
    const double width = WIDTH - LEFT - RIGHT, span = plot->last - plot->first;
    return span > 0 ? LEFT + width * (log2(context) - plot->first) / span : LEFT + width / 2;
}

static double y_of(const struct plot *plot, double value)
{
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / plot->top;
}

/* ---- what there is to draw */

static void add_curve(struct plot *plot, const char *kind, double rows, bool limit)
{
    for (u32 i = 0; i < plot->count; i++)
        if (strcmp(plot->curves[i].kind, kind) == 0 && plot->curves[i].rows == rows &&
            plot->curves[i].limit == limit)
            return;
    if (plot->count < CURVES)
        plot->curves[plot->count++] = (struct curve){kind, rows, limit};
}

static void find_curves(struct plot *plot)
{
    const struct bench_report *report = plot->report;
    double most = 0;
    for (u32 i = 0; i < report->count; i++) {
        const struct bench_point *point = &report->points[i];
        if (strcmp(point->kind, BENCH_VERIFY) == 0 && !point->detail) {
            add_curve(plot, BENCH_VERIFY, point->rows, false);
            most = point->rows > most ? point->rows : most;
        }
    }
    for (u32 i = 0; i < report->count; i++)
        if (strcmp(report->points[i].kind, BENCH_ROUND) == 0)
            add_curve(plot, BENCH_ROUND, 0, false);
    if (most > 0)
        add_curve(plot, BENCH_VERIFY, most, true);
}

/* A round step of which TICKS or so reach the largest value. */
static void scale_axes(struct plot *plot)
{
    double most = 0;
    plot->first = INFINITY;
    plot->last = 0;
    for (u32 i = 0; i < plot->report->count; i++)
        for (u32 j = 0; j < plot->count; j++) {
            const struct bench_point *point = &plot->report->points[i];
            if (!belongs(&plot->curves[j], point))
                continue;
            most = fmax(most, milliseconds(plot, &plot->curves[j], point));
            most = fmax(most, quartiles_of(&point->seconds).high * 1e3);
            plot->first = fmin(plot->first, log2(point->context));
            plot->last = fmax(plot->last, log2(point->context));
        }
    most = most > 0 ? most : 1;
    const double decade = pow(10, floor(log10(most / TICKS))), share = most / TICKS / decade;
    plot->step = decade * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
    plot->top = plot->step * ceil(most / plot->step);
}

/* ---- drawing */

static void draw_frame(struct plot *plot)
{
    struct buffer *text = plot->text;
    svg_begin(text, WIDTH, HEIGHT, 12);
    for (u32 i = 0; plot->step * i <= plot->top * (1 + 1e-9); i++) {
        const double y = y_of(plot, plot->step * i);
        buffer_format(text,
                      "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                      LEFT, y, WIDTH - RIGHT, y, LEFT - 8, y + 4, plot->step * i);
    }
    buffer_format(text,
                  "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">context, tokens</text>\n"
                  "<text x=\"18\" y=\"%d\" text-anchor=\"middle\" "
                  "transform=\"rotate(-90 18 %d)\">milliseconds</text>\n",
                  (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 15, (TOP + HEIGHT - BOTTOM) / 2,
                  (TOP + HEIGHT - BOTTOM) / 2);
}

static void draw_title(struct plot *plot)
{
    const struct bench_report *report = plot->report;
    buffer_format(plot->text, "<text x=\"%d\" y=\"24\" font-size=\"14\">", LEFT);
    svg_add_text(plot->text, report->model, NAME_MOST);
    if (report->draft) {
        buffer_add_text(plot->text, " with ");
        svg_add_text(plot->text, report->draft, NAME_MOST);
    }
    buffer_add_text(plot->text, ", ");
    svg_add_text(plot->text, report->device->name, NAME_MOST);
    buffer_format(plot->text, ", %s</text>\n", report->device->target);
}

/* Whether the point is the first verify at its context. */
static bool is_first(const struct bench_report *report, u32 index)
{
    const struct bench_point *point = &report->points[index];
    for (u32 i = 0; i < index; i++)
        if (report->points[i].context == point->context &&
            strcmp(report->points[i].kind, BENCH_VERIFY) == 0)
            return false;
    return strcmp(point->kind, BENCH_VERIFY) == 0;
}

static void draw_ticks(struct plot *plot)
{
    for (u32 i = 0; i < plot->report->count; i++) {
        const struct bench_point *point = &plot->report->points[i];
        if (!is_first(plot->report, i))
            continue;
        const bool whole = point->context % 1024 == 0;
        buffer_format(plot->text,
                      "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%" PRIu32 "%s</text>\n",
                      x_of(plot, point->context), HEIGHT - BOTTOM + 18,
                      whole ? point->context / 1024 : point->context, whole ? "K" : "");
    }
}

static void draw_bar(struct plot *plot, const struct bench_point *point, const char *colour)
{
    const struct quartiles q = quartiles_of(&point->seconds);
    const double x = x_of(plot, point->context);
    buffer_format(plot->text,
                  "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n"
                  "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                  x, y_of(plot, q.low * 1e3), x, y_of(plot, q.high * 1e3), colour, x,
                  y_of(plot, q.median * 1e3), colour);
}

static void draw_curve(struct plot *plot, u32 index)
{
    const struct curve *curve = &plot->curves[index];
    const char *colour = curve->limit ? "#000000" : colours[index % COUNT_OF(colours)];
    const int y = TOP + 20 * (int)index;
    const struct bench_report *report = plot->report;
    buffer_format(plot->text, "<polyline fill=\"none\" stroke=\"%s\"%s points=\"", colour,
                  curve->limit ? " stroke-dasharray=\"6 4\"" : "");
    for (u32 i = 0; i < report->count; i++)
        if (belongs(curve, &report->points[i]))
            buffer_format(plot->text, "%.1f,%.1f ", x_of(plot, report->points[i].context),
                          y_of(plot, milliseconds(plot, curve, &report->points[i])));
    buffer_add_text(plot->text, "\"/>\n");
    for (u32 i = 0; i < report->count && !curve->limit; i++)
        if (belongs(curve, &report->points[i]))
            draw_bar(plot, &report->points[i], colour);
    buffer_format(plot->text,
                  "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\"%s/>\n"
                  "<text x=\"%d\" y=\"%d\">",
                  WIDTH - RIGHT + 15, y, WIDTH - RIGHT + 40, y, colour,
                  curve->limit ? " stroke-dasharray=\"6 4\"" : "", WIDTH - RIGHT + 46, y + 4);
    if (curve->limit)
        buffer_format(plot->text, "floor, %g rows", curve->rows);
    else if (curve->rows > 0)
        buffer_format(plot->text, "%s, %g row%s", curve->kind, curve->rows,
                      curve->rows == 1 ? "" : "s");
    else
        buffer_format(plot->text, "whole %s", curve->kind);
    buffer_add_text(plot->text, "</text>\n");
}

void bench_report_svg(const struct bench_report *report, struct buffer *text)
{
    struct plot plot = {.report = report, .text = text};
    find_curves(&plot);
    scale_axes(&plot);
    draw_frame(&plot);
    draw_title(&plot);
    draw_ticks(&plot);
    for (u32 i = 0; i < plot.count; i++)
        draw_curve(&plot, i);
    svg_end(text);
}
