/* svg.h - what pictures have in common. */
#ifndef ELPIS_CLI_SVG_H
#define ELPIS_CLI_SVG_H

#include "base/base.h"

/* The head: pixels, sans-serif letters, a white ground. The picture ends with svg_end. */
void svg_begin(struct buffer *svg, u32 width, u32 height, u32 font_size);
void svg_end(struct buffer *svg);
/* Text between tags, cut behind the character that reaches `most` bytes: names come from users. */
void svg_add_text(struct buffer *svg, const char *text, size_t most);

#endif
