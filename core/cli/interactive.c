/* interactive.c - the chat at the terminal: lines in, commands, replies.
 *
 * At a terminal libedit reads lines (editing, history in $XDG_STATE_HOME/elpis/history); from a
 * pipe they are read as they come, which is how tests drive it. A line that begins with / is a
 * command. Ctrl-C ends the reply that runs, or drops the line being typed; Ctrl-D leaves.
 */
#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/interactive.h"

#define HISTORY_LINES 1000

struct reader {
    EditLine *editor; /* NULL: no terminal */
    History *history;
    char *history_path; /* NULL: no home */
    char *line;         /* of a pipe */
    size_t capacity;
};

/* ---- lines */

static char *prompt_text(EditLine *editor)
{
    (void)editor;
    static char text[] = "> ";
    return text;
}

/* $XDG_STATE_HOME/elpis/history, made private to the user; NULL when there is no place for it. */
static char *find_history(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    struct buffer path = {0};
    struct error error = {0};
    if (state && state[0] == '/')
        buffer_format(&path, "%s/elpis", state);
    else if (home && home[0] == '/')
        buffer_format(&path, "%s/.local/state/elpis", home);
    else
        return NULL;
    if (file_make_folders(path.data, 0700, &error) < 0) {
        log_warn("no history of lines: %s", error.text);
        buffer_free(&path);
        return NULL;
    }
    buffer_add_text(&path, "/history");
    return path.data;
}

static void reader_open(struct reader *reader)
{
    HistEvent event;
    *reader = (struct reader){0};
    if (!isatty(STDIN_FILENO))
        return;
    setlocale(LC_CTYPE, "");
    reader->editor = el_init("elpis", stdin, stdout, stderr);
    reader->history = history_init();
    reader->history_path = find_history();
    if (!reader->editor || !reader->history)
        return;
    history(reader->history, &event, H_SETSIZE, HISTORY_LINES);
    history(reader->history, &event, H_SETUNIQUE, 1);
    el_set(reader->editor, EL_PROMPT, prompt_text);
    el_set(reader->editor, EL_EDITOR, "emacs");
    el_set(reader->editor, EL_SIGNAL, 0);
    el_set(reader->editor, EL_HIST, history, reader->history);
    if (reader->history_path)
        history(reader->history, &event, H_LOAD, reader->history_path);
}

static void reader_close(struct reader *reader)
{
    HistEvent event;
    if (reader->history && reader->history_path)
        history(reader->history, &event, H_SAVE, reader->history_path);
    if (reader->editor)
        el_end(reader->editor);
    if (reader->history)
        history_end(reader->history);
    memory_free(reader->history_path);
    free(reader->line);
}

/* The next line without its line break; false at the end of input. */
static bool read_line(struct reader *reader, struct slice *line)
{
    int size = 0;
    const char *text;
    if (reader->editor) {
        text = el_gets(reader->editor, &size);
        if (!text && errno == EINTR) {
            printf("\n");
            el_reset(reader->editor);
            *line = (struct slice){"", 0};
            return true;
        }
    } else {
        size = (int)getline(&reader->line, &reader->capacity, stdin);
        text = reader->line;
    }
    if (!text || size <= 0)
        return false;
    *line = (struct slice){text, (size_t)size};
    while (line->size && (line->data[line->size - 1] == '\n' || line->data[line->size - 1] == '\r'))
        line->size--;
    return true;
}

static void remember(struct reader *reader, struct slice line)
{
    HistEvent event;
    if (!reader->history)
        return;
    char *text = memory_copy_text(line);
    history(reader->history, &event, H_ENTER, text);
    memory_free(text);
}

/* ---- commands */

static void print_commands(void)
{
    printf("/help         this list\n"
           "/reset        forget the conversation\n"
           "/system TEXT  set the system message and forget the conversation; without TEXT: none\n"
           "/save FILE    write the messages as JSON\n"
           "/quit         leave (also Ctrl-D)\n"
           "Ctrl-C ends the reply that runs.\n");
}

/* The text after a command's name if the line is that command. */
static bool is_command(struct slice line, const char *name, struct slice *rest)
{
    size_t length = strlen(name);
    if (line.size < length || memcmp(line.data, name, length) != 0)
        return false;
    *rest = (struct slice){line.data + length, line.size - length};
    if (rest->size && rest->data[0] != ' ')
        return false;
    while (rest->size && rest->data[0] == ' ')
        *rest = (struct slice){rest->data + 1, rest->size - 1};
    return true;
}

static int save(struct conversation *conversation, struct slice rest, struct error *error)
{
    if (!rest.size)
        return error_set(error, ERROR_USAGE, "/save expects a file name");
    char *path = memory_copy_text(rest);
    int result = conversation_save(conversation, path, error);
    memory_free(path);
    return result;
}

/* Returns false for /quit. */
static bool run_command(struct conversation *conversation, struct slice line)
{
    struct slice rest;
    struct error error = {0};
    int status = 0;
    if (is_command(line, "/quit", &rest))
        return false;
    if (is_command(line, "/help", &rest))
        print_commands();
    else if (is_command(line, "/reset", &rest))
        conversation_reset(conversation);
    else if (is_command(line, "/system", &rest))
        status = conversation_set_system(conversation, rest, &error);
    else if (is_command(line, "/save", &rest))
        status = save(conversation, rest, &error);
    else
        status = error_set(&error, ERROR_USAGE, "unknown command '%.*s'; /help lists them",
                           (int)line.size, line.data);
    if (status < 0)
        log_error("%s", error.text);
    return true;
}

/* ---- the loop */

static void on_interrupt(int number)
{
    (void)number;
    conversation_interrupt();
}

/* Without SA_RESTART, so that Ctrl-C also ends the reading of a line. */
static void catch_interrupts(struct sigaction *before)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, before);
}

int interactive_run(struct conversation *conversation, const struct interactive_output *output)
{
    struct reader reader;
    struct sigaction before;
    struct slice line;
    int status = 0;
    reader_open(&reader);
    catch_interrupts(&before);
    if (reader.editor)
        printf("Type a message; /help lists the commands.\n");
    while (status != ERROR_FATAL && read_line(&reader, &line)) {
        struct error error = {0};
        struct engine_result result;
        if (!line.size)
            continue;
        remember(&reader, line);
        if (line.data[0] == '/') {
            if (!run_command(conversation, line))
                break;
            continue;
        }
        int turn = conversation_turn(conversation, line, output->show, output->user, NULL, &result,
                                     &error);
        if (turn == 0)
            output->finished(output->user, &result);
        else
            log_error("%s", error.text);
        status = turn < 0 && error.code == ERROR_FATAL ? ERROR_FATAL : 0;
    }
    sigaction(SIGINT, &before, NULL);
    reader_close(&reader);
    return status;
}
