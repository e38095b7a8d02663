/* records.h - tuning records: which tuning of a kernel was fastest, in files of JSON lines.
 *
 * A file holds an object a line; schedules/records/README.md describes the fields. Files that are
 * in use: those shipped in the program (schedules/records/ *.jsonl), then those of the user's
 * folder, sorted by name. Of several records that match a request the last counts.
 *
 * Nothing is lost: lines that are no records stay in the file as they are. A file is changed by
 * reading it, writing it whole under another name and renaming that, with a lock on PATH.lock held
 * meanwhile; so whoever reads sees whole lines only, and who is killed leaves the file as it was.
 * The lock is another file because a lock on one that is renamed would lose what others add.
 */
#ifndef ELPIS_RECORDS_H
#define ELPIS_RECORDS_H

#include <jansson.h>

#include "base/base.h"

struct record_line {
    char *text; /* without the newline; `size` bytes, zeros may be among them */
    size_t size;
    json_t *object; /* NULL: no record */
    char *reason;   /* why it is none; NULL: it is one, or the line is empty */
    u32 number;     /* in the file, from 1 */
};

struct record_file {
    char *path;
    struct record_line *lines;
    size_t count;
};

/* A file that is not there is empty. */
int record_file_read(struct record_file *file, const char *path, struct error *error);
void record_file_parse(struct record_file *file, const char *path, struct slice text);
void record_file_free(struct record_file *file);
int record_file_write(const struct record_file *file, struct error *error);
/* The first line with the same key; NULL: none. */
struct record_line *record_file_find(const struct record_file *file, const json_t *object);
/* In place of that line, else behind all others. Takes a reference. */
void record_file_put(struct record_file *file, json_t *object);
/* Waits. *lock: for record_file_unlock. Folders above the path are made. */
int record_file_lock(const char *path, int *lock, struct error *error);
void record_file_unlock(int lock);
/* record_file_put in the file of that path, under its lock. */
int record_file_update(const char *path, json_t *object, struct error *error);

/* Why an object is no record; NULL: it is one. */
const char *record_refusal(const json_t *object);
/* Whether both name the same kernel for the same kind of machine, by which a request is looked up:
 * schedule, target, sms and parameters; and whether on the same machine: gpu and driver too. */
bool record_same_request(const json_t *a, const json_t *b);
bool record_same_key(const json_t *a, const json_t *b);

/* The user's folder: `given`, else ELPIS_RECORDS, XDG_DATA_HOME/elpis/records,
 * ~/.local/share/elpis/records; NULL where there is none. "none" stands for no records at all. The
 * caller frees it. */
char *records_folder(const char *given);
/* Refuses a folder that was named, by --records, and is not there. */
int records_check_folder(const char *given, struct error *error);
/* All files in use, in order; schedules: as in jit_options. Freed by records_files_free. */
int records_files(const char *schedules, const char *folder, struct record_file **files,
                  size_t *count, struct error *error);
void records_files_free(struct record_file *files, size_t count);
/* Whether a record was made with other texts of its schedule than are there now. One without a
 * digest never is. */
struct record_texts; /* a reader of schedules that remembers digests */
int record_texts_open(struct record_texts **texts, const char *schedules, struct error *error);
void record_texts_close(struct record_texts *texts); /* NULL is fine */
bool record_is_stale(struct record_texts *texts, const json_t *object);
/* Whether the schedule, as it is now, refuses the record's tuning on a usual GPU of its target and
 * of the record's sms: the default is used then. *reason: the schedule's sentence. False where no
 * such GPU is known. */
bool record_is_refused(struct record_texts *texts, const json_t *object, struct error *reason);

#endif
