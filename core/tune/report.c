/* report.c - kernels to records and back.
 *
 * Times in a record are microseconds of a launch. Its candidates are all that were tried, with
 * times or with the reason why there are none; schedules/records/README.md describes the fields.
 */
#include "tune/tune_private.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define MICROSECONDS 1e6

void tune_table_text(const struct jit_parameter *table, struct buffer *text)
{
    const char *between = "";
    for (; table->name; table++, between = " ")
        if (table->text)
            buffer_format(text, "%s%s=%s", between, table->name, table->text);
        else
            buffer_format(text, "%s%s=%lld", between, table->name, (long long)table->number);
}

static json_t *table_object(const struct jit_parameter *table)
{
    json_t *object = json_object();
    for (; table->name; table++)
        json_object_set_new(object, table->name,
                            table->text ? json_string(table->text) : json_integer(table->number));
    return object;
}

static void set_text(json_t *object, const char *name, const char *text)
{
    json_object_set_new(object, name, json_string(text));
}

static void set_number(json_t *object, const char *name, double number)
{
    json_object_set_new(object, name, json_real(number));
}

static json_t *candidate_object(const struct tune_candidate *candidate)
{
    json_t *object = json_object();
    json_object_set_new(object, "tuning", table_object(candidate->tuning));
    if (candidate->state == TUNE_REFUSED) {
        set_text(object, "refused", candidate->reason);
        return object;
    }
    set_number(object, "us", candidate->median * MICROSECONDS);
    set_number(object, "low_us", candidate->low * MICROSECONDS);
    set_number(object, "high_us", candidate->high * MICROSECONDS);
    json_object_set_new(object, "samples", json_integer(candidate->samples));
    if (candidate->state == TUNE_SLOWER)
        json_object_set_new(object, "dropped", json_true());
    return object;
}

static void set_today(json_t *object)
{
    const time_t now = (time_t)clock_unix();
    struct tm broken;
    char text[32];
    gmtime_r(&now, &broken);
    strftime(text, sizeof text, "%Y-%m-%d", &broken);
    set_text(object, "date", text);
}

static json_t *pass_object(const struct tune_kernel *kernel)
{
    const struct tune_in_pass *in_pass = &kernel->in_pass;
    static const char *const names[2][3] = {{"default_low_us", "default_us", "default_high_us"},
                                            {"low_us", "us", "high_us"}};
    json_t *object = json_object();
    set_text(object, "name", measure_kind_name(kernel->pass));
    for (u32 i = 0; i < COUNT_OF(names); i++)
        for (u32 j = 0; j < COUNT_OF(names[i]); j++)
            set_number(object, names[i][j], in_pass->seconds[i][j] * MICROSECONDS);
    json_object_set_new(object, "samples", json_integer(in_pass->samples));
    json_object_set_new(object, "faster", json_integer(in_pass->faster));
    return object;
}

/* What the best is where it is not used, and what its pass said of it. */
static void set_best(json_t *record, const struct tune_kernel *kernel)
{
    if (tune_used(kernel) != kernel->best)
        json_object_set_new(record, "alone", table_object(kernel->candidates[kernel->best].tuning));
    if (!tune_was_in_pass(kernel))
        return;
    json_object_set_new(record, "confirmed", json_boolean(kernel->in_pass.confirmed));
    json_object_set_new(record, "pass", pass_object(kernel));
}

json_t *tune_record(const struct tune_kernel *kernel, const struct device_info *device,
                    const char *digest)
{
    json_t *record = json_object(), *list = json_array();
    set_text(record, "schedule", kernel->name);
    set_text(record, "target", device->target);
    json_object_set_new(record, "sms", json_integer(device->sms));
    json_object_set_new(record, "parameters", table_object(kernel->parameters));
    const struct tune_candidate *used = &kernel->candidates[tune_used(kernel)];
    json_object_set_new(record, "tuning", table_object(used->tuning));
    set_number(record, "us", used->median * MICROSECONDS);
    set_number(record, "default_us", kernel->candidates[0].median * MICROSECONDS);
    set_text(record, "digest", digest);
    set_text(record, "gpu", device->name);
    set_text(record, "driver", device->driver);
    set_text(record, "compiler", device->compiler);
    set_today(record);
    json_object_set_new(record, "legal", json_integer((json_int_t)kernel->legal));
    json_object_set_new(record, "settled", json_boolean(kernel->settled));
    set_best(record, kernel);
    for (size_t i = 0; i < kernel->count; i++)
        if (kernel->candidates[i].state != TUNE_WAITING)
            json_array_append_new(list, candidate_object(&kernel->candidates[i]));
    json_object_set_new(record, "candidates", list);
    return record;
}

/* ---- and back */

static bool is_value(const struct jit_parameter *parameter, const json_t *value)
{
    return parameter->text
               ? json_is_string(value) && strcmp(parameter->text, json_string_value(value)) == 0
               : json_is_integer(value) && json_integer_value(value) == parameter->number;
}

static bool is_table(const struct jit_parameter *table, const json_t *object)
{
    size_t count = 0;
    for (; table->name; table++, count++)
        if (!is_value(table, json_object_get(object, table->name)))
            return false;
    return json_object_size(object) == count;
}

static const struct jit_parameter *find_legal(const struct choice *choice, const json_t *object)
{
    for (size_t i = 0; i < choice->count; i++)
        if (is_table(choice->legal[i], object))
            return choice->legal[i];
    return NULL;
}

static double seconds_of(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name)) / MICROSECONDS;
}

/* Whether it has what a sweep writes: a reason, or times. */
static bool is_whole(const json_t *candidate)
{
    return json_is_string(json_object_get(candidate, "refused")) ||
           (seconds_of(candidate, "us") > 0 && seconds_of(candidate, "low_us") > 0 &&
            seconds_of(candidate, "high_us") > 0 &&
            json_integer_value(json_object_get(candidate, "samples")) > 0);
}

static void take_candidate(struct tune_candidate *to, const json_t *from)
{
    const char *refused = json_string_value(json_object_get(from, "refused"));
    to->state = refused                                          ? TUNE_REFUSED
                : json_is_true(json_object_get(from, "dropped")) ? TUNE_SLOWER
                                                                 : TUNE_TIMED;
    if (refused)
        snprintf(to->reason, sizeof to->reason, "%s", refused);
    to->median = seconds_of(from, "us");
    to->low = seconds_of(from, "low_us");
    to->high = seconds_of(from, "high_us");
    to->samples = (u32)json_integer_value(json_object_get(from, "samples"));
}

/* Of the best. A record from before passes were asked has none: they are asked then. */
static void take_pass(struct tune_kernel *kernel, const json_t *record)
{
    const json_t *pass = json_object_get(record, "pass");
    const i64 samples = json_integer_value(json_object_get(pass, "samples")),
              faster = json_integer_value(json_object_get(pass, "faster"));
    if (!json_is_boolean(json_object_get(record, "confirmed")) || samples <= 0 ||
        samples > TRIAL_ROUNDS_MOST || faster < 0 || faster > samples)
        return;
    kernel->in_pass = (struct tune_in_pass){
        .candidate = kernel->best,
        .seconds = {{seconds_of(pass, "default_low_us"), seconds_of(pass, "default_us"),
                     seconds_of(pass, "default_high_us")},
                    {seconds_of(pass, "low_us"), seconds_of(pass, "us"),
                     seconds_of(pass, "high_us")}},
        .samples = (u32)samples,
        .faster = (u32)faster,
        .confirmed = json_is_true(json_object_get(record, "confirmed")),
    };
}

void tune_take_record(struct tune_kernel *kernel, const json_t *record, const struct choice *choice)
{
    const json_t *list = json_object_get(record, "candidates");
    bool whole = true;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *candidate = json_array_get(list, i);
        const struct jit_parameter *tuning = find_legal(choice,
                                                        json_object_get(candidate, "tuning"));
        whole = whole && is_whole(candidate);
        if (!tuning || !is_whole(candidate))
            continue;
        const size_t at = choose_add(kernel, tuning); /* may move them all */
        take_candidate(&kernel->candidates[at], candidate);
    }
    const json_t *alone = json_object_get(record, "alone");
    const struct jit_parameter *best = find_legal(
        choice, alone ? alone : json_object_get(record, "tuning"));
    if (best && whole) {
        kernel->best = choose_add(kernel, best);
        take_pass(kernel, record);
    }
    kernel->settled = whole && json_is_true(json_object_get(record, "settled"));
    kernel->resumed = true;
}
