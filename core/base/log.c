/* log.c - the one place that prints to stderr.
 *
 * One call prints one whole line with one write, so lines of several threads do
 * not mix. A progress line replaces itself on a terminal; a log line that comes
 * between erases it first and the next progress call draws it again. Where
 * stderr is no terminal every progress call prints an ordinary line.
 *
 * ELPIS_LOG=debug in the environment shows debug lines, unless the program sets a level.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum log_level log_limit = LOG_INFO;
static bool limit_is_set;
static bool progress_on_screen;

static const char *const level_prefix[] = {"error: ", "warning: ", "", "debug: "};

static void put(const char *text, size_t size)
{
    while (size > 0) {
        ssize_t written = write(STDERR_FILENO, text, size);
        if (written <= 0)
            return;
        text += written;
        size -= (size_t)written;
    }
}

static void put_line(const char *before, const char *prefix, const char *format, va_list arguments,
                     const char *after)
{
    struct buffer line = {0};
    char text[4096];
    vsnprintf(text, sizeof text, format, arguments);
    buffer_add_text(&line, before);
    buffer_add_text(&line, prefix);
    buffer_add_text(&line, text);
    buffer_add_text(&line, after);
    put(line.data, line.size);
    buffer_free(&line);
}

void log_set_level(enum log_level level)
{
    pthread_mutex_lock(&lock);
    log_limit = level;
    limit_is_set = true;
    pthread_mutex_unlock(&lock);
}

/* With the lock held. */
static bool is_shown(enum log_level level)
{
    if (!limit_is_set) {
        const char *wanted = getenv("ELPIS_LOG");
        log_limit = wanted && strcmp(wanted, "debug") == 0 ? LOG_DEBUG : LOG_INFO;
        limit_is_set = true;
    }
    return level <= log_limit;
}

void log_line(enum log_level level, const char *format, ...)
{
    pthread_mutex_lock(&lock);
    if (is_shown(level)) {
        va_list arguments;
        va_start(arguments, format);
        put_line(progress_on_screen ? "\r\033[K" : "", level_prefix[level], format, arguments,
                 "\n");
        va_end(arguments);
        progress_on_screen = false;
    }
    pthread_mutex_unlock(&lock);
}

void log_progress(bool done, const char *format, ...)
{
    pthread_mutex_lock(&lock);
    if (is_shown(LOG_INFO)) {
        bool terminal = isatty(STDERR_FILENO) == 1;
        va_list arguments;
        va_start(arguments, format);
        put_line(terminal ? "\r\033[K" : "", "", format, arguments, terminal && !done ? "" : "\n");
        va_end(arguments);
        progress_on_screen = terminal && !done;
    }
    pthread_mutex_unlock(&lock);
}
