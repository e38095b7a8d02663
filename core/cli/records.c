/* records.c - `elpis records`: looking at tuning records, and putting their files in order.
 *
 * list, show and export speak of the files that are named, or of those in use. diff, merge and
 * prune work on named files. Nothing is taken away in silence: lines that are no records are named
 * with file and line and stay where they are; prune names what it leaves out and keeps the file as
 * it was beside the new one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "jit/records.h"

enum { OPERANDS_MOST = 64, BACKUPS_MOST = 1000 };

struct records_command {
    const char *schedules, *folder, *output, *kernel, *gpu, *target;
    bool csv;
    char *operands[OPERANDS_MOST]; /* [0]: the action */
    size_t file_count;             /* of operands behind it */
    struct record_file *files;
    size_t count;
    struct record_texts *texts;
};

/* ---- fields */

static const char *text_of(const json_t *record, const char *field)
{
    const char *text = json_string_value(json_object_get(record, field));
    return text ? text : "";
}

static double number_of(const json_t *record, const char *field)
{
    return json_number_value(json_object_get(record, field));
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* "bits=4 k=5120", sorted, added. */
static void add_table(struct buffer *text, json_t *object)
{
    const char *names[64], *key;
    json_t *value;
    size_t count = 0;
    json_object_foreach (object, key, value)
        if (count < COUNT_OF(names))
            names[count++] = key;
    qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 0; i < count; i++) {
        value = json_object_get(object, names[i]);
        buffer_format(text, "%s%s=", i ? " " : "", names[i]);
        if (json_is_integer(value))
            buffer_format(text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        else
            buffer_add_text(text, json_is_string(value) ? json_string_value(value) : "?");
    }
}

static char *table_text(const json_t *record, const char *field)
{
    struct buffer text = {0};
    add_table(&text, json_object_get(record, field));
    return text.data ? text.data : memory_copy_text(SLICE(""));
}

static char *machine_text(const json_t *record)
{
    struct buffer text = {0};
    buffer_add_text(&text, text_of(record, "target"));
    if (json_object_get(record, "sms"))
        buffer_format(&text, ":%.0f", number_of(record, "sms"));
    return text.data;
}

static bool is_wanted(const struct records_command *command, const json_t *record)
{
    return (!command->kernel || strcmp(command->kernel, text_of(record, "schedule")) == 0) &&
           (!command->gpu || strcmp(command->gpu, text_of(record, "gpu")) == 0) &&
           (!command->target || strcmp(command->target, text_of(record, "target")) == 0);
}

/* ---- files */

static int read_files(struct records_command *command, struct error *error)
{
    if (record_texts_open(&command->texts, command->schedules, error) != 0)
        return -1;
    if (command->file_count == 0)
        return records_files(command->schedules, command->folder, &command->files, &command->count,
                             error);
    command->files = memory_alloc(command->file_count * sizeof *command->files);
    for (size_t i = 0; i < command->file_count; i++) {
        const char *path = command->operands[i + 1];
        if (!file_exists(path))
            return error_set(error, ERROR_USAGE, "%s: there is no such file", path);
        if (record_file_read(&command->files[i], path, error) != 0)
            return -1;
        command->count++;
    }
    return 0;
}

/* The lines that are no records, on standard error; their number. */
static size_t tell_bad_lines(const struct records_command *command)
{
    size_t count = 0;
    for (size_t i = 0; i < command->count; i++)
        for (size_t j = 0; j < command->files[i].count; j++) {
            const struct record_line *line = &command->files[i].lines[j];
            if (!line->reason)
                continue;
            log_warn("%s:%" PRIu32 " is no tuning record (%s); the line stays there",
                     command->files[i].path, line->number, line->reason);
            count++;
        }
    return count;
}

/* The last record of a file for the same request; NULL: none. */
static const json_t *find_same(const struct record_file *file, const json_t *record)
{
    for (size_t i = file->count; i-- > 0;)
        if (file->lines[i].object && record_same_request(file->lines[i].object, record))
            return file->lines[i].object;
    return NULL;
}

/* ---- list */

static const char *state_of(const struct records_command *command, size_t file, size_t line)
{
    const json_t *record = command->files[file].lines[line].object;
    if (record_is_stale(command->texts, record))
        return "stale";
    for (size_t i = file; i < command->count; i++)
        for (size_t j = i == file ? line + 1 : 0; j < command->files[i].count; j++) {
            const json_t *other = command->files[i].lines[j].object;
            if (other && record_same_request(record, other) &&
                !record_is_stale(command->texts, other))
                return "behind"; /* a later one counts */
        }
    struct error ignored;
    return record_is_refused(command->texts, record, &ignored) ? "refused" : "used";
}

static void print_saved(const json_t *record)
{
    const double before = number_of(record, "default_us"), after = number_of(record, "us");
    if (before > 0 && after > 0)
        printf("%10.2f %10.2f %6.1f %%", before, after, 100 * (1 - after / before));
    else
        printf("%10s %10s %8s", "-", "-", "-");
}

/* What won alone and is not used; what the pass said that launches it. */
static void print_pass(const json_t *record)
{
    const json_t *pass = json_object_get(record, "pass");
    char *alone = table_text(record, "alone");
    if (alone[0])
        printf("        fastest alone: %s%s\n", alone,
               pass ? "" : "; not timed in its pass yet: the default is used");
    if (pass)
        printf("        in its pass, %s: %.4f ms -> %.4f ms, faster in %.0f of %.0f rounds%s\n",
               text_of(pass, "name"), 1e-3 * number_of(pass, "default_us"),
               1e-3 * number_of(pass, "us"), number_of(pass, "faster"), number_of(pass, "samples"),
               json_is_true(json_object_get(record, "confirmed")) ? "" : ": the default is used");
    memory_free(alone);
}

/* With the reason of one that is refused. Returns its state. */
static const char *print_record(const struct records_command *command, size_t file, size_t line)
{
    const struct record_line *at = &command->files[file].lines[line];
    const char *state = state_of(command, file, line);
    struct error reason;
    char *machine = machine_text(at->object), *parameters = table_text(at->object, "parameters"),
         *tuning = table_text(at->object, "tuning");
    printf("%-7s %-26s %-12s ", state, text_of(at->object, "schedule"), machine);
    print_saved(at->object);
    printf("  %s %s  %s:%" PRIu32 "\n        %s\n        -> %s\n", text_of(at->object, "date"),
           text_of(at->object, "gpu"), command->files[file].path, at->number, parameters, tuning);
    print_pass(at->object);
    if (strcmp(state, "refused") == 0 && record_is_refused(command->texts, at->object, &reason))
        printf("        the default is used: %s\n", reason.text);
    memory_free(machine);
    memory_free(parameters);
    memory_free(tuning);
    return state;
}

static int run_list(struct records_command *command, struct error *error)
{
    size_t count = 0, stale = 0, refused = 0;
    (void)error;
    printf("%-7s %-26s %-12s %10s %10s %8s\n", "state", "kernel", "target", "default us", "best us",
           "saved");
    for (size_t i = 0; i < command->count; i++)
        for (size_t j = 0; j < command->files[i].count; j++) {
            const json_t *record = command->files[i].lines[j].object;
            if (!record || !is_wanted(command, record))
                continue;
            const char *state = print_record(command, i, j);
            count++;
            stale += strcmp(state, "stale") == 0;
            refused += strcmp(state, "refused") == 0;
        }
    const size_t bad = tell_bad_lines(command);
    printf("%zu records in %zu files, %zu stale, %zu refused, %zu lines that are no records\n",
           count, command->count, stale, refused, bad);
    return 0;
}

/* ---- show */

static int compare_candidates(const void *a, const void *b)
{
    const json_t *first = *(json_t *const *)a, *second = *(json_t *const *)b;
    const double x = number_of(first, "us"), y = number_of(second, "us");
    const bool x_timed = json_object_get(first, "us") != NULL,
               y_timed = json_object_get(second, "us") != NULL;
    if (x_timed != y_timed)
        return x_timed ? -1 : 1;
    return (x > y) - (x < y);
}

static void show_candidate(const json_t *candidate)
{
    char *tuning = table_text(candidate, "tuning");
    if (json_object_get(candidate, "us"))
        printf("    %10.2f us, %10.2f to %10.2f, %3.0f samples%s  %s\n", number_of(candidate, "us"),
               number_of(candidate, "low_us"), number_of(candidate, "high_us"),
               number_of(candidate, "samples"),
               json_is_true(json_object_get(candidate, "dropped")) ? ", dropped" : "", tuning);
    else
        printf("    refused: %s  %s\n", text_of(candidate, "refused"), tuning);
    memory_free(tuning);
}

static void show_record(const struct records_command *command, size_t file, size_t line)
{
    const json_t *record = command->files[file].lines[line].object,
                 *list = json_object_get(record, "candidates");
    const size_t count = json_array_size(list);
    json_t **sorted = memory_alloc((count + 1) * sizeof *sorted);
    print_record(command, file, line);
    printf("        driver %s, compiler %s, digest %s, %s\n", text_of(record, "driver"),
           text_of(record, "compiler"), text_of(record, "digest"),
           json_is_true(json_object_get(record, "settled")) ? "settled" : "not settled");
    printf("        %zu of %.0f legal tunings:\n", count, number_of(record, "legal"));
    for (size_t i = 0; i < count; i++)
        sorted[i] = json_array_get(list, i);
    qsort(sorted, count, sizeof *sorted, compare_candidates);
    for (size_t i = 0; i < count; i++)
        show_candidate(sorted[i]);
    memory_free(sorted);
}

static int run_show(struct records_command *command, struct error *error)
{
    size_t count = 0;
    for (size_t i = 0; i < command->count; i++)
        for (size_t j = 0; j < command->files[i].count; j++) {
            const json_t *record = command->files[i].lines[j].object;
            if (!record || !is_wanted(command, record))
                continue;
            show_record(command, i, j);
            count++;
        }
    tell_bad_lines(command);
    return count ? 0
                 : error_set(error, ERROR_USAGE,
                             "no such record; `elpis records list` lists those that are there");
}

/* ---- diff */

static void print_one_side(const char *sign, const json_t *record)
{
    char *machine = machine_text(record), *parameters = table_text(record, "parameters"),
         *tuning = table_text(record, "tuning");
    printf("%s %s %s %s\n%s     -> %s (%.2f us)\n", sign, text_of(record, "schedule"), machine,
           parameters, sign, tuning, number_of(record, "us"));
    memory_free(machine);
    memory_free(parameters);
    memory_free(tuning);
}

static int run_diff(struct records_command *command, struct error *error)
{
    size_t same = 0, changed = 0, only[2] = {0};
    if (command->file_count != 2)
        return error_set(error, ERROR_USAGE, "diff compares two files, got %zu",
                         command->file_count);
    for (size_t side = 0; side < 2; side++)
        for (size_t i = 0; i < command->files[side].count; i++) {
            const json_t *record = command->files[side].lines[i].object;
            if (!record || !is_wanted(command, record) ||
                find_same(&command->files[side], record) != record)
                continue;
            const json_t *other = find_same(&command->files[1 - side], record);
            if (!other) {
                print_one_side(side ? "+" : "-", record);
                only[side]++;
            } else if (side == 0 && json_equal(json_object_get(record, "tuning"),
                                               json_object_get(other, "tuning"))) {
                same++;
            } else if (side == 0) {
                print_one_side("-", record);
                print_one_side("+", other);
                changed++;
            }
        }
    tell_bad_lines(command);
    printf("%zu alike, %zu with another tuning, %zu only in %s, %zu only in %s\n", same, changed,
           only[0], command->files[0].path, only[1], command->files[1].path);
    return 0;
}

/* ---- merge */

/* Of two records with one key the newer counts, of one day the later in the command line. */
static void merge_file(const struct records_command *command, const struct record_file *from,
                       struct record_file *to, size_t counts[3])
{
    for (size_t i = 0; i < from->count; i++) {
        json_t *record = from->lines[i].object;
        if (!record || !is_wanted(command, record))
            continue;
        const struct record_line *line = record_file_find(to, record);
        const json_t *there = line ? line->object : NULL;
        if (there && json_equal(there, record)) {
            counts[2]++;
            continue;
        }
        if (there && strcmp(text_of(there, "date"), text_of(record, "date")) > 0) {
            printf("%s:%" PRIu32 " is older than what %s has of its key and left out\n", from->path,
                   from->lines[i].number, to->path);
            continue;
        }
        record_file_put(to, record);
        counts[there ? 1 : 0]++;
    }
}

static int run_merge(struct records_command *command, struct error *error)
{
    struct record_file into = {0};
    size_t counts[3] = {0};
    int lock;
    if (!command->output || command->file_count == 0)
        return error_set(error, ERROR_USAGE,
                         "merge needs --output FILE and the files to put into it");
    if (record_file_lock(command->output, &lock, error) != 0)
        return -1;
    int status = record_file_read(&into, command->output, error);
    for (size_t i = 0; i < command->count && status == 0; i++)
        merge_file(command, &command->files[i], &into, counts);
    if (status == 0)
        status = record_file_write(&into, error);
    if (status == 0) {
        tell_bad_lines(command);
        printf("%s: %zu records added, %zu replaced, %zu were there\n", command->output, counts[0],
               counts[1], counts[2]);
    }
    record_file_free(&into);
    record_file_unlock(lock);
    return status;
}

/* ---- prune */

/* FILE.bak, or FILE.bak.1 and so on where that is there. */
static int write_backup(const struct record_file *file, char *path, size_t room,
                        struct error *error)
{
    struct record_file copy = *file;
    snprintf(path, room, "%s.bak", file->path);
    for (u32 i = 1; file_exists(path) && i < BACKUPS_MOST; i++)
        snprintf(path, room, "%s.bak.%" PRIu32, file->path, i);
    if (file_exists(path))
        return error_set(error, ERROR_USAGE, "%s: %d backups are there; remove some", file->path,
                         BACKUPS_MOST);
    copy.path = path;
    return record_file_write(&copy, error);
}

/* Why a line goes; NULL: it stays. */
static const char *why_pruned(const struct records_command *command, const struct record_file *file,
                              size_t at)
{
    const json_t *record = file->lines[at].object;
    struct error ignored;
    if (file->lines[at].reason)
        return "no tuning record";
    if (!record)
        return NULL;
    if (record_is_stale(command->texts, record))
        return "its schedule has changed";
    for (size_t i = at + 1; i < file->count; i++)
        if (file->lines[i].object && record_same_key(file->lines[i].object, record))
            return "a later line has the same key";
    if (record_is_refused(command->texts, record, &ignored))
        return "its tuning is refused";
    return NULL;
}

/* What stays, as a file of its own whose lines belong to `file`. */
static size_t keep_lines(const struct records_command *command, const struct record_file *file,
                         struct record_file *kept)
{
    size_t gone = 0;
    for (size_t i = 0; i < file->count; i++) {
        const char *why = why_pruned(command, file, i);
        if (why) {
            printf("%s:%" PRIu32 " %s: %s\n", file->path, file->lines[i].number,
                   text_of(file->lines[i].object, "schedule"), why);
            gone++;
        } else {
            kept->lines[kept->count++] = file->lines[i];
        }
    }
    return gone;
}

static int prune_locked(const struct records_command *command, const char *path,
                        struct error *error)
{
    struct record_file file = {0}, kept = {0};
    char backup[1100] = "";
    int status = record_file_read(&file, path, error);
    if (status != 0)
        return -1;
    kept.path = (char *)(command->output ? command->output : path);
    kept.lines = memory_alloc((file.count + 1) * sizeof *kept.lines);
    const size_t gone = keep_lines(command, &file, &kept);
    if (gone && !command->output)
        status = write_backup(&file, backup, sizeof backup, error);
    if (status == 0 && (gone || command->output))
        status = record_file_write(&kept, error);
    if (status == 0 && gone)
        printf("%s: %zu lines left out, %zu kept; as it was: %s\n", kept.path, gone, kept.count,
               command->output ? path : backup);
    else if (status == 0)
        printf("%s: nothing to leave out of %zu lines\n", path, file.count);
    memory_free(kept.lines);
    record_file_free(&file);
    return status;
}

static int run_prune(struct records_command *command, struct error *error)
{
    if (command->file_count == 0 || (command->output && command->file_count > 1))
        return error_set(error, ERROR_USAGE,
                         "prune needs the files to put in order, one with "
                         "--output; `elpis records list` names those in use");
    for (size_t i = 0; i < command->file_count; i++) {
        const char *path = command->operands[i + 1];
        int lock;
        if (record_file_lock(path, &lock, error) != 0)
            return -1;
        const int status = prune_locked(command, path, error);
        record_file_unlock(lock);
        if (status != 0)
            return -1;
    }
    return 0;
}

/* ---- export */

static void add_csv_row(struct buffer *text, const json_t *record)
{
    char *machine = machine_text(record), *parameters = table_text(record, "parameters"),
         *tuning = table_text(record, "tuning");
    const char *const names[] = {text_of(record, "schedule"), machine, parameters, tuning};
    const char *const origin[] = {text_of(record, "gpu"), text_of(record, "driver"),
                                  text_of(record, "date")};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        buffer_add_csv(text, names[i]);
        buffer_add_text(text, ",");
    }
    buffer_format(text, "%.6g,%.6g", number_of(record, "default_us"), number_of(record, "us"));
    for (size_t i = 0; i < COUNT_OF(origin); i++) {
        buffer_add_text(text, ",");
        buffer_add_csv(text, origin[i]);
    }
    buffer_add_text(text, "\n");
    memory_free(machine);
    memory_free(parameters);
    memory_free(tuning);
}

static void add_json_row(struct buffer *text, const json_t *record)
{
    char *line = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(6));
    buffer_format(text, "%s\n", line);
    free(line);
}

/* Only records that would be used: neither stale nor refused, and the last of their request. */
static int run_export(struct records_command *command, struct error *error)
{
    struct buffer text = {0};
    size_t count = 0;
    if (command->csv)
        buffer_add_text(&text, "kernel,target,parameters,tuning,default_us,best_us,gpu,driver,"
                               "date\n");
    for (size_t i = 0; i < command->count; i++)
        for (size_t j = 0; j < command->files[i].count; j++) {
            const json_t *record = command->files[i].lines[j].object;
            if (!record || !is_wanted(command, record) ||
                strcmp(state_of(command, i, j), "used") != 0)
                continue;
            (command->csv ? add_csv_row : add_json_row)(&text, record);
            count++;
        }
    int status = 0;
    const char *data = text.data ? text.data : "";
    if (command->output)
        status = file_write_atomic(command->output, data, text.size, error);
    else
        fwrite(data, 1, text.size, stdout);
    if (status == 0)
        log_info("%zu records", count);
    buffer_free(&text);
    tell_bad_lines(command);
    return status;
}

/* ---- the command */

static const struct {
    const char *name;
    int (*run)(struct records_command *command, struct error *error);
} actions[] = {{"list", run_list},   {"show", run_show},   {"diff", run_diff},
               {"merge", run_merge}, {"prune", run_prune}, {"export", run_export}};

static int run_action(struct records_command *command, struct error *error)
{
    for (size_t i = 0; i < COUNT_OF(actions); i++)
        if (strcmp(command->operands[0], actions[i].name) == 0)
            return read_files(command, error) || actions[i].run(command, error) ? -1 : 0;
    return error_set(error, ERROR_USAGE,
                     "unknown action '%s': expected list, show, diff, merge, prune or export",
                     command->operands[0]);
}

static int run_records(const struct command *command, int argc, char **argv)
{
    struct records_command records = {0};
    struct error error = {0};
    const struct option_entry entries[] = {
        {0, "records", "FOLDER",
         "The user's folder of records. Default: $ELPIS_RECORDS, $XDG_DATA_HOME/elpis/records,\n"
         "~/.local/share/elpis/records.",
         OPTION_TEXT, &records.folder},
        {0, "schedules", "FOLDER", "Lua, schedules and templates that replace the built-in ones.",
         OPTION_TEXT, &records.schedules},
        {0, "kernel", "NAME", "Only records of this schedule.", OPTION_TEXT, &records.kernel},
        {0, "gpu", "NAME", "Only records made on the GPU of this name.", OPTION_TEXT, &records.gpu},
        {0, "target", "TARGET", "Only records for this target: sm_86, host.", OPTION_TEXT,
         &records.target},
        {0, "output", "FILE",
         "merge: the file that is added to. prune: what stays, the file itself is not touched.\n"
         "export: where to. Default of export: standard output.",
         OPTION_TEXT, &records.output},
        {0, "csv", NULL, "export: comma separated columns, without the candidates.", OPTION_FLAG,
         &records.csv},
    };
    options_parse(command, entries, COUNT_OF(entries), argc, argv, records.operands, 1,
                  OPERANDS_MOST - 1);
    while (records.operands[records.file_count + 1])
        records.file_count++;
    const int status = run_action(&records, &error);
    record_texts_close(records.texts);
    records_files_free(records.files, records.count);
    fflush(stdout);
    return status < 0 ? command_fail(&error) : 0;
}

const struct command command_records = {
    .name = "records",
    .summary = "look at tuning records and put their files in order",
    .synopsis = "elpis records list|show|export [FILE...] [OPTION...]\n"
                "elpis records diff FILE FILE\n"
                "elpis records merge FILE... --output FILE\n"
                "elpis records prune FILE... [--output FILE]",
    .description =
        "A record says which tuning of a kernel was fastest, for a target and parameters, and\n"
        "what all candidates took (`elpis tune`). Without FILE the files in use are meant: those\n"
        "in the program, then *.jsonl in the folder of --records. Of several records that match\n"
        "a kernel the last counts. One made before its schedule changed is stale: it is ignored.\n"
        "One whose tuning the schedule refuses, for a usual GPU of its target, leaves the "
        "default.\n"
        "\n"
        "list    every record: used, behind (a later one counts), stale or refused; times, where\n"
        "        it is\n"
        "show    the same with all candidates, fastest first\n"
        "diff    by target and parameters: what only one file has, and where tunings differ\n"
        "merge   records of all FILEs into --output; of two of one kernel, GPU and driver the\n"
        "        newer stays\n"
        "prune   leaves out stale and refused records, earlier ones of a key, and lines that are\n"
        "        no records. Names each; the file as it was stays as FILE.bak, or untouched with "
        "--output\n"
        "export  records that are used, as one file: what schedules/records/ holds, or columns\n"
        "\n"
        "A line that is no record is named with file and line, and stays.",
    .epilogue = "EXAMPLES\n"
                "    elpis records list\n"
                "    elpis records show --kernel linear_main --target sm_90\n"
                "    elpis records diff before.jsonl after.jsonl\n"
                "    elpis records merge a.jsonl b.jsonl --output both.jsonl\n"
                "    elpis records export --gpu \"NVIDIA H200\" --output nvidia-h200.jsonl\n",
    .run = run_records,
};
