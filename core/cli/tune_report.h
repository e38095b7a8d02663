/* tune_report.h - what a sweep found: the table, and files for people and programs. */
#ifndef ELPIS_TUNE_REPORT_H
#define ELPIS_TUNE_REPORT_H

#include "tune/tune.h"

/* On standard output: what would be swept; what was found. */
void tune_report_plan(const struct tune *tune);
void tune_report_table(const struct tune *tune);
void tune_report_comparison(const struct tune_comparison *comparison, u32 context);
/* Every candidate with its times or the reason why there are none: JSON lines (records), comma
 * separated columns, and a picture of all times beside the default's. */
void tune_report_json(const struct tune *tune, struct buffer *text);
void tune_report_csv(const struct tune *tune, struct buffer *text);
void tune_report_svg(const struct tune *tune, struct buffer *text);

#endif
