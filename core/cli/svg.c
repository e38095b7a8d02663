/* svg.c - what pictures have in common (svg.h). */
#include "cli/svg.h"

#include <inttypes.h>

void svg_begin(struct buffer *svg, u32 width, u32 height, u32 font_size)
{
    buffer_format(svg,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%" PRIu32
                  "\" height=\"%" PRIu32 "\" viewBox=\"0 0 %" PRIu32 " %" PRIu32
                  "\" font-family=\"sans-serif\" "
                  "font-size=\"%" PRIu32 "\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                  width, height, width, height, font_size);
}

void svg_end(struct buffer *svg)
{
    buffer_add_text(svg, "</svg>\n");
}

void svg_add_text(struct buffer *svg, const char *text, size_t most)
{
    for (size_t i = 0; text[i]; i++) {
        if (i >= most && ((u8)text[i] & 0xc0) != 0x80) /* not inside a character of UTF-8 */
            return;
        if (text[i] == '&' || text[i] == '<')
            buffer_add_text(svg, text[i] == '&' ? "&amp;" : "&lt;");
        else
            buffer_add(svg, text + i, 1);
    }
}
