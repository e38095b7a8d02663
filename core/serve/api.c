/* api.c - request objects: JSON text in, a checked struct api_request out.
 *
 * Every field stands in one of three tables:
 *   supported  it changes the answer and is obeyed;
 *   ignored    it cannot change the answer (type still checked);
 *   refused    it would change the answer in a way that is not there: only the
 *              listed values, which ask for what happens anyway, pass.
 * A field in none of them is refused, so a misspelt name never goes unnoticed.
 * null means "not given" everywhere.
 *
 * JSON itself is held to RFC 8259 and more: no duplicate keys, UTF-8 only, no
 * \u0000, no number out of range, nesting at most 2,048 (jansson's limit), and a limited number
 * of values: "[{},{},..." takes 70 times its size when parsed.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "serve/internal.h"

/* ---- errors */

int api_fail(struct api_error *error, int status, const char *code, const char *param,
             const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    error->status = status;
    error->code = code;
    return -1;
}

/* Text from a client or a template, cut anywhere: made valid UTF-8 for the answer. */
static json_t *json_text(const char *text)
{
    json_t *value = json_string(text);
    if (value)
        return value;
    char *copy = memory_copy_text(slice_of(text));
    for (char *byte = copy; *byte; byte++)
        if ((u8)*byte >= 0x80)
            *byte = '?';
    value = json_string(copy);
    memory_free(copy);
    return value;
}

json_t *api_error_json(const struct api_error *error)
{
    const char *type = error->status >= 500 ? "server_error" : "invalid_request_error";
    json_t *inner = json_pack("{s:o, s:s}", "message", json_text(error->text), "type", type);
    json_object_set_new(inner, "param", error->param[0] ? json_text(error->param) : json_null());
    json_object_set_new(inner, "code", error->code ? json_string(error->code) : json_null());
    return json_pack("{s:o}", "error", inner);
}

const char *api_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_NULL: return "null";
    default: return "a boolean";
    }
}

/* ---- the tables */

enum kind { KIND_BOOL, KIND_INTEGER, KIND_NUMBER, KIND_STRING, KIND_OBJECT, KIND_ARRAY, KIND_ANY };

static const char *const kind_names[] = {"a boolean", "an integer", "a number", "a string",
                                         "an object", "an array",   "any value"};

enum endpoint { CHAT = 1, COMPLETIONS = 2, BOTH = 3 };

struct supported {
    const char *name;
    enum endpoint endpoint;
    enum kind kind;
    size_t offset; /* in struct api_request; bool, i64, double, const char * or json_t * */
    double low, high;
    bool above; /* low itself is excluded */
};

#define TO(field) offsetof(struct api_request, field)
#define TOKENS_MOST 4294967295.0 /* what a u32 holds */

static const struct supported supported[] = {
    {"messages", CHAT, KIND_ARRAY, TO(messages)},
    {"prompt", COMPLETIONS, KIND_ANY, TO(prompt)},
    {"model", BOTH, KIND_STRING, TO(model)},
    {"stream", BOTH, KIND_BOOL, TO(stream)},
    {"stream_options", BOTH, KIND_OBJECT, TO(stream_options)},
    {"max_tokens", BOTH, KIND_INTEGER, TO(max_tokens), 1, TOKENS_MOST},
    {"max_completion_tokens", CHAT, KIND_INTEGER, TO(max_completion_tokens), 1, TOKENS_MOST},
    {"temperature", BOTH, KIND_NUMBER, TO(temperature), 0, 2},
    {"top_p", BOTH, KIND_NUMBER, TO(top_p), 0, 1, true},
    {"top_k", BOTH, KIND_INTEGER, TO(top_k), -1, TOKENS_MOST},
    {"min_p", BOTH, KIND_NUMBER, TO(min_p), 0, 1},
    {"presence_penalty", BOTH, KIND_NUMBER, TO(presence), -2, 2},
    {"frequency_penalty", BOTH, KIND_NUMBER, TO(frequency), -2, 2},
    {"repetition_penalty", BOTH, KIND_NUMBER, TO(repetition), 0, 2, true},
    {"seed", BOTH, KIND_ANY, TO(seed)},
    {"stop", BOTH, KIND_ANY, TO(stop)},
    {"skip_special_tokens", BOTH, KIND_BOOL, TO(skip_special)},
    {"chat_template_kwargs", CHAT, KIND_OBJECT, TO(template_arguments)},
    {"enable_thinking", CHAT, KIND_ANY, TO(enable_thinking)},
    {"reasoning_effort", CHAT, KIND_STRING, TO(reasoning_effort)},
};

static const struct {
    const char *name;
    enum kind kind;
} ignored[] = {
    {"user", KIND_STRING},
    {"safety_identifier", KIND_STRING},
    {"prompt_cache_key", KIND_STRING},
    {"prompt_cache_retention", KIND_STRING},
    {"metadata", KIND_OBJECT},
    {"store", KIND_BOOL},
    {"service_tier", KIND_STRING},
    {"parallel_tool_calls", KIND_BOOL},
};

/* values: a JSON array of what passes. */
static const struct {
    const char *name;
    enum endpoint endpoint;
    const char *values, *why;
} refused[] = {
    {"n", BOTH, "[1]", "only one choice is computed"},
    {"best_of", COMPLETIONS, "[1]", "only one choice is computed"},
    {"logprobs", CHAT, "[false]", "log probabilities are not supported"},
    {"logprobs", COMPLETIONS, "[]", "log probabilities are not supported"},
    {"top_logprobs", CHAT, "[0]", "log probabilities are not supported"},
    {"logit_bias", BOTH, "[{}]", "logit biases are not supported"},
    {"tools", CHAT, "[[]]", "tools are not supported"},
    {"tool_choice", CHAT, "[\"none\", \"auto\"]", "tools are not supported"},
    {"functions", CHAT, "[[]]", "functions are not supported"},
    {"function_call", CHAT, "[\"none\", \"auto\"]", "functions are not supported"},
    {"response_format", BOTH, "[{\"type\": \"text\"}]", "only the type \"text\" is supported"},
    {"modalities", CHAT, "[[\"text\"]]", "only text is supported"},
    {"audio", CHAT, "[]", "audio is not supported"},
    {"prediction", CHAT, "[]", "predicted outputs are not supported"},
    {"web_search_options", CHAT, "[]", "web search is not supported"},
    {"verbosity", CHAT, "[\"medium\"]", "verbosity is not supported"},
    {"echo", COMPLETIONS, "[false]", "the prompt cannot be echoed"},
    {"suffix", COMPLETIONS, "[\"\"]", "insertion before a suffix is not supported"},
};

/* ---- fields */

static bool kind_matches(enum kind kind, const json_t *value)
{
    switch (kind) {
    case KIND_BOOL: return json_is_boolean(value);
    case KIND_INTEGER: return json_is_integer(value);
    case KIND_NUMBER: return json_is_number(value);
    case KIND_STRING: return json_is_string(value);
    case KIND_OBJECT: return json_is_object(value);
    case KIND_ARRAY: return json_is_array(value);
    case KIND_ANY: return true;
    }
    return false;
}

static int check_kind(const char *name, enum kind kind, const json_t *value,
                      struct api_error *error)
{
    if (kind_matches(kind, value))
        return 0;
    return api_fail(error, 400, "invalid_type", name, "%s must be %s, got %s.", name,
                    kind_names[kind], api_type_name(value));
}

static int take_number(const struct supported *field, const json_t *value,
                       struct api_request *request, struct api_error *error)
{
    double number = json_number_value(value);
    if (number < field->low || number > field->high || (field->above && number == field->low))
        return api_fail(error, 400, "invalid_value", field->name,
                        "%s must be %s %.10g and at most %.10g, got %.10g.", field->name,
                        field->above ? "above" : "at least", field->low, field->high, number);
    char *place = (char *)request + field->offset;
    if (field->kind == KIND_INTEGER)
        *(i64 *)place = json_integer_value(value);
    else
        *(double *)place = number;
    return 0;
}

static int take_supported(const struct supported *field, json_t *value, struct api_request *request,
                          struct api_error *error)
{
    char *place = (char *)request + field->offset;
    if (check_kind(field->name, field->kind, value, error) < 0)
        return -1;
    switch (field->kind) {
    case KIND_INTEGER:
    case KIND_NUMBER: return take_number(field, value, request, error);
    case KIND_BOOL: *(bool *)place = json_is_true(value); return 0;
    case KIND_STRING: *(const char **)place = json_string_value(value); return 0;
    default: *(json_t **)place = value; return 0;
    }
}

static int check_refused(const char *name, const char *values, const char *why, json_t *value,
                         struct api_error *error)
{
    json_t *list = json_loads(values, 0, NULL), *passes;
    size_t index;
    bool found = false;
    json_array_foreach (list, index, passes)
        found = found || json_equal(passes, value);
    json_decref(list);
    if (found)
        return 0;
    return api_fail(error, 400, "unsupported_parameter", name, "%s: %s.", name, why);
}

static int take_field(const char *name, json_t *value, struct api_request *request,
                      struct api_error *error)
{
    enum endpoint endpoint = request->chat ? CHAT : COMPLETIONS;
    bool null = json_is_null(value);
    for (size_t i = 0; i < COUNT_OF(supported); i++)
        if ((supported[i].endpoint & endpoint) && strcmp(name, supported[i].name) == 0)
            return null ? 0 : take_supported(&supported[i], value, request, error);
    for (size_t i = 0; i < COUNT_OF(ignored); i++)
        if (strcmp(name, ignored[i].name) == 0)
            return null ? 0 : check_kind(name, ignored[i].kind, value, error);
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if ((refused[i].endpoint & endpoint) && strcmp(name, refused[i].name) == 0)
            return null ? 0 : check_refused(name, refused[i].values, refused[i].why, value, error);
    return api_fail(error, 400, "unknown_parameter", name,
                    "\"%.100s\" is no field of this request.", name);
}

/* ---- rules between fields */

static int take_stream_options(struct api_request *request, struct api_error *error)
{
    const char *key;
    json_t *value;
    if (!request->stream_options)
        return 0;
    if (!request->stream)
        return api_fail(error, 400, "invalid_value", "stream_options",
                        "stream_options is only allowed when stream is true.");
    json_object_foreach (request->stream_options, key, value) {
        bool usage = strcmp(key, "include_usage") == 0;
        if (!usage && strcmp(key, "include_obfuscation") != 0)
            return api_fail(error, 400, "unknown_parameter", "stream_options",
                            "\"%.100s\" is no field of stream_options.", key);
        if (!json_is_null(value) && check_kind(usage ? "stream_options.include_usage"
                                                     : "stream_options.include_obfuscation",
                                               KIND_BOOL, value, error) < 0)
            return -1;
        if (usage)
            request->include_usage = json_is_true(value);
    }
    return 0;
}

static int check_rules(const struct server *server, struct api_request *request,
                       struct api_error *error)
{
    if (request->model && strcmp(request->model, server->model_name) != 0)
        return api_fail(error, 404, "model_not_found", "model",
                        "The model \"%.100s\" is not here; this server has \"%s\".", request->model,
                        server->model_name);
    if (request->max_tokens && request->max_completion_tokens)
        return api_fail(error, 400, "invalid_value", "max_completion_tokens",
                        "Only one of max_tokens and max_completion_tokens may be given.");
    if (request->chat && !request->messages)
        return api_fail(error, 400, "missing_parameter", "messages", "messages is missing.");
    if (!request->chat && !request->prompt)
        return api_fail(error, 400, "missing_parameter", "prompt", "prompt is missing.");
    if (request->seed && !json_is_integer(request->seed))
        return check_kind("seed", KIND_INTEGER, request->seed, error);
    return take_stream_options(request, error);
}

/* What holds for fields that are not given: the model's own generation_config. */
static void set_defaults(const struct server *server, struct api_request *request)
{
    const struct model_config *config = &engine_model(server->engine)->config;
    request->skip_special = true;
    request->temperature = config->do_sample ? config->temperature : 0;
    request->top_p = config->do_sample ? config->top_p : 1;
    request->top_k = config->do_sample ? config->top_k : 0;
    request->repetition = 1;
}

#define VALUES_MOST (1 << 19) /* twice the token ids of the longest context */

/* Whether a text has more values than that, by its separators outside of strings. */
static bool too_many_values(struct slice text)
{
    size_t count = 0;
    bool quoted = false;
    for (size_t i = 0; i < text.size; i++) {
        char byte = text.data[i];
        if (quoted && byte == '\\')
            i++;
        else if (byte == '"')
            quoted = !quoted;
        else if (!quoted)
            count += byte == ',' || byte == '[' || byte == '{';
    }
    return count > VALUES_MOST;
}

/* Texts go through C strings on their way, so that character is refused though JSON has it. */
static int fail_parse(const json_error_t *fault, bool empty, struct api_error *error)
{
    const enum json_error_code code = json_error_code(fault);
    if (code == json_error_null_character || code == json_error_null_byte_in_key)
        return api_fail(error, 400, "invalid_value", NULL,
                        "A string of the request has the character \\u0000, which is not supported "
                        "(line %d, column %d).",
                        fault->line, fault->column);
    return api_fail(error, 400, "invalid_json", NULL,
                    "The request body is not valid JSON: %s (line %d, column %d).",
                    empty ? "it is empty" : fault->text, fault->line, fault->column);
}

int api_parse(const struct server *server, struct slice body, bool chat,
              struct api_request *request, struct api_error *error)
{
    json_error_t fault;
    const char *name;
    json_t *value;
    *request = (struct api_request){.chat = chat};
    set_defaults(server, request);
    if (too_many_values(body))
        return api_fail(error, 400, "invalid_json", NULL,
                        "The request body has more than %d JSON values.", VALUES_MOST);
    request->root = json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, &fault);
    if (!request->root)
        return fail_parse(&fault, body.size == 0, error);
    if (!json_is_object(request->root))
        return api_fail(error, 400, "invalid_type", NULL,
                        "The request body must be a JSON object, got %s.",
                        api_type_name(request->root));
    json_object_foreach (request->root, name, value)
        if (take_field(name, value, request, error) < 0)
            return -1;
    return check_rules(server, request, error);
}

void api_release(struct api_request *request)
{
    json_decref(request->root);
    *request = (struct api_request){0};
}

/* ---- what the engine wants to know */

void api_sampling(const struct api_request *request, struct engine_sampling *sampling)
{
    *sampling = (struct engine_sampling){
        .temperature = request->temperature,
        .top_k = request->top_k > 0 ? (u32)request->top_k : 0,
        .top_p = request->top_p,
        .min_p = request->min_p,
        .presence = request->presence,
        .frequency = request->frequency,
        .repetition = request->repetition,
    };
    if (request->seed)
        sampling->seed = (u64)json_integer_value(request->seed);
    else
        uv_random(NULL, NULL, &sampling->seed, sizeof sampling->seed, 0, NULL);
}

int api_length(const struct server *server, const struct api_request *request, size_t prompt,
               u32 *max_tokens, struct api_error *error)
{
    u64 context = engine_context(server->engine);
    i64 wanted = request->max_tokens ? request->max_tokens : request->max_completion_tokens;
    const char *name = request->max_completion_tokens ? "max_completion_tokens" : "max_tokens";
    u64 usual = server->options->default_max_tokens ? server->options->default_max_tokens : 4096;
    u64 left = prompt < context ? context - prompt : 0;
    u64 tokens = wanted ? (u64)wanted : usual < left || left == 0 ? usual : left;
    if (tokens > left)
        return api_fail(error, 400, "context_length_exceeded", wanted ? name : NULL,
                        "The prompt has %zu tokens and %s is %llu: together over the context of "
                        "%llu tokens.",
                        prompt, name, (unsigned long long)tokens, (unsigned long long)context);
    *max_tokens = (u32)tokens;
    return 0;
}

static int take_stop(const json_t *value, char **stops, size_t *count, struct api_error *error)
{
    if (!json_is_string(value))
        return api_fail(error, 400, "invalid_type", "stop",
                        "stop must be a string or an array of strings, got %s in it.",
                        api_type_name(value));
    if (json_string_length(value) == 0)
        return api_fail(error, 400, "invalid_value", "stop", "A stop string may not be empty.");
    stops[(*count)++] = memory_copy_text(slice_of(json_string_value(value)));
    return 0;
}

int api_stops(const struct api_request *request, char **stops, size_t *count,
              struct api_error *error)
{
    size_t index;
    json_t *value;
    if (!request->stop)
        return 0;
    if (!json_is_array(request->stop))
        return take_stop(request->stop, stops, count, error);
    if (json_array_size(request->stop) > API_STOPS)
        return api_fail(error, 400, "invalid_value", "stop",
                        "stop may hold at most %d strings, got %zu.", API_STOPS,
                        json_array_size(request->stop));
    json_array_foreach (request->stop, index, value)
        if (take_stop(value, stops, count, error) < 0)
            return -1;
    return 0;
}
