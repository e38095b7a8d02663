/* chat.c - from messages to prompt tokens, through the model's own template.
 *
 * The template sees a context object: the checked messages, chat_template_kwargs,
 * and add_generation_prompt = true. Three ways ask for or against thinking:
 * enable_thinking at the top, the same in chat_template_kwargs, and
 * reasoning_effort (none = no thinking; minimal is passed on as low, high and max
 * as xhigh). Where two are given they must agree.
 *
 * What a message may hold stands in message_fields. Tool calls and images are
 * refused: the answer to a conversation that silently lost parts would be wrong.
 */
#include <stdio.h>
#include <string.h>

#include "serve/internal.h"

enum { ROLE_SYSTEM = 1, ROLE_USER = 2, ROLE_ASSISTANT = 4, ROLE_ALL = 7 };

static const struct {
    const char *name, *shown; /* shown: what the template reads */
    u32 role;
} roles[] = {
    {"system", "system", ROLE_SYSTEM},
    {"developer", "system", ROLE_SYSTEM},
    {"user", "user", ROLE_USER},
    {"assistant", "assistant", ROLE_ASSISTANT},
};

static const struct {
    const char *name;
    u32 roles;
    bool shown;      /* handed to the template, must be a string */
    const char *why; /* a value that is neither null nor empty is refused; NULL = ignored */
} message_fields[] = {
    {"reasoning_content", ROLE_ASSISTANT, true, NULL},
    {"name", ROLE_ALL, false, NULL},
    {"annotations", ROLE_ASSISTANT, false, NULL},
    {"refusal", ROLE_ASSISTANT, false, "refusals are not supported"},
    {"audio", ROLE_ASSISTANT, false, "audio is not supported"},
    {"tool_calls", ROLE_ASSISTANT, false, "tools are not supported"},
    {"function_call", ROLE_ASSISTANT, false, "functions are not supported"},
};

/* ---- one message */

static int check_part(const json_t *part, const char *where, struct api_error *error)
{
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (!json_is_string(type))
        return api_fail(error, 400, "invalid_type", where, "%s.type must be a string.", where);
    if (strcmp(json_string_value(type), "text") != 0)
        return api_fail(
            error, 400, "unsupported_content", where,
            "%s has the type \"%.40s\": only \"text\" is supported, no images or files.", where,
            json_string_value(type));
    if (!json_is_string(text) || json_object_size(part) != 2)
        return api_fail(error, 400, "invalid_value", where,
                        "%s must hold \"type\" and a string \"text\", nothing else.", where);
    return 0;
}

static int check_content(const json_t *content, size_t number, struct api_error *error)
{
    char where[64];
    size_t index;
    json_t *part;
    snprintf(where, sizeof where, "messages[%zu].content", number);
    if (json_is_string(content))
        return 0;
    if (!json_is_array(content))
        return api_fail(error, 400, "invalid_type", where,
                        "%s must be a string or an array of text parts, got %s.", where,
                        content ? api_type_name(content) : "nothing");
    json_array_foreach (content, index, part) {
        snprintf(where, sizeof where, "messages[%zu].content[%zu]", number, index);
        if (check_part(part, where, error) < 0)
            return -1;
    }
    return 0;
}

static bool is_empty(const json_t *value)
{
    return json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
}

/* A field other than role and content; put into *shown when the template reads it. */
static int take_field(const char *name, json_t *value, u32 role, json_t *shown, size_t number,
                      struct api_error *error)
{
    char where[128];
    snprintf(where, sizeof where, "messages[%zu].%.80s", number, name);
    for (size_t i = 0; i < COUNT_OF(message_fields); i++) {
        if (!(message_fields[i].roles & role) || strcmp(name, message_fields[i].name) != 0)
            continue;
        if (is_empty(value))
            return 0;
        if (message_fields[i].why)
            return api_fail(error, 400, "unsupported_parameter", where, "%s: %s.", where,
                            message_fields[i].why);
        if (!message_fields[i].shown)
            return 0;
        if (!json_is_string(value))
            return api_fail(error, 400, "invalid_type", where, "%s must be a string, got %s.",
                            where, api_type_name(value));
        json_object_set(shown, name, value);
        return 0;
    }
    return api_fail(error, 400, "unknown_parameter", where,
                    "\"%.80s\" is no field of a message of this role (messages[%zu]).", name,
                    number);
}

/* The role's bit; 0 with *error. */
static u32 take_role(const json_t *message, size_t number, json_t *shown, struct api_error *error)
{
    char where[64];
    const char *role = json_string_value(json_object_get(message, "role"));
    snprintf(where, sizeof where, "messages[%zu].role", number);
    for (size_t i = 0; role && i < COUNT_OF(roles); i++) {
        if (strcmp(role, roles[i].name) != 0)
            continue;
        json_object_set_new(shown, "role", json_string(roles[i].shown));
        return roles[i].role;
    }
    bool tool = role && (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0);
    if (tool)
        api_fail(error, 400, "unsupported_parameter", where,
                 "%s is \"%s\": tools are not "
                 "supported.",
                 where, role);
    else
        api_fail(error, 400, "invalid_value", where,
                 "%s must be \"system\", \"developer\", \"user\" or \"assistant\".", where);
    return 0;
}

static int take_message(const json_t *message, size_t number, json_t *shown,
                        struct api_error *error)
{
    const char *name;
    json_t *value;
    char where[64];
    snprintf(where, sizeof where, "messages[%zu]", number);
    if (!json_is_object(message))
        return api_fail(error, 400, "invalid_type", where, "%s must be an object, got %s.", where,
                        api_type_name(message));
    u32 role = take_role(message, number, shown, error);
    if (!role)
        return -1;
    json_object_foreach ((json_t *)message, name, value) {
        bool known = strcmp(name, "role") == 0 || strcmp(name, "content") == 0;
        if (!known && take_field(name, value, role, shown, number, error) < 0)
            return -1;
    }
    json_t *content = json_object_get(message, "content");
    if (check_content(content, number, error) < 0)
        return -1;
    json_object_set(shown, "content", content);
    return 0;
}

static int take_messages(const struct api_request *request, json_t *context,
                         struct api_error *error)
{
    json_t *list = json_array(), *message;
    size_t number;
    json_object_set_new(context, "messages", list);
    if (json_array_size(request->messages) == 0)
        return api_fail(error, 400, "invalid_value", "messages", "messages may not be empty.");
    json_array_foreach (request->messages, number, message) {
        json_t *shown = json_object();
        json_array_append_new(list, shown);
        if (take_message(message, number, shown, error) < 0)
            return -1;
    }
    return 0;
}

/* ---- thinking */

static int set_once(json_t *context, const char *name, json_t *value, struct api_error *error)
{
    const json_t *present = json_object_get(context, name);
    bool agrees = !present || json_equal(present, value);
    json_object_set_new(context, name, value);
    if (agrees)
        return 0;
    return api_fail(error, 400, "invalid_value", name, "%s is asked for in two different ways.",
                    name);
}

static int take_effort(const char *effort, json_t *context, struct api_error *error)
{
    static const struct {
        const char *asked, *shown;
    } levels[] = {{"minimal", "low"}, {"low", "low"},     {"medium", "medium"},
                  {"high", "xhigh"},  {"xhigh", "xhigh"}, {"max", "xhigh"}};
    if (strcmp(effort, "none") == 0)
        return set_once(context, "enable_thinking", json_false(), error);
    for (size_t i = 0; i < COUNT_OF(levels); i++)
        if (strcmp(effort, levels[i].asked) == 0)
            return set_once(context, "reasoning_effort", json_string(levels[i].shown), error);
    return api_fail(error, 400, "invalid_value", "reasoning_effort",
                    "reasoning_effort must be none, minimal, low, medium, high, xhigh or max.");
}

static int take_arguments(const struct api_request *request, json_t *context,
                          struct api_error *error)
{
    static const char *const reserved[] = {"messages", "tools", "documents",
                                           "add_generation_prompt"};
    for (size_t i = 0; i < COUNT_OF(reserved); i++)
        if (json_object_get(request->template_arguments, reserved[i]))
            return api_fail(error, 400, "invalid_value", "chat_template_kwargs",
                            "chat_template_kwargs may not set %s.", reserved[i]);
    if (request->template_arguments)
        json_object_update(context, request->template_arguments);
    const json_t *nested = json_object_get(context, "enable_thinking");
    const json_t *given[] = {request->enable_thinking, nested};
    for (size_t i = 0; i < COUNT_OF(given); i++)
        if (given[i] && !json_is_boolean(given[i]))
            return api_fail(error, 400, "invalid_type", "enable_thinking",
                            "enable_thinking must be a boolean, got %s.", api_type_name(given[i]));
    if (request->enable_thinking &&
        set_once(context, "enable_thinking", json_incref(request->enable_thinking), error) < 0)
        return -1;
    return request->reasoning_effort ? take_effort(request->reasoning_effort, context, error) : 0;
}

/* ---- the prompt */

static int render(struct server *server, json_t *context, struct buffer *text,
                  struct api_error *error)
{
    struct error fault;
    char *json = json_dumps(context, JSON_COMPACT);
    int status = chat_template_render(server->chat, slice_of(json), text, &fault);
    free(json);
    if (status < 0)
        return api_fail(error, 400, "invalid_messages", "messages",
                        "The chat template refused the messages: %.800s", fault.text);
    return 0;
}

int chat_prompt(struct server *server, const struct api_request *request, struct buffer *ids,
                bool *starts_inside, struct api_error *error)
{
    struct error fault;
    struct buffer text = {0};
    json_t *context = json_object();
    int status = -1;
    if (!server->chat) {
        api_fail(error, 400, "no_chat_template", NULL,
                 "This model cannot chat: %.800s; use /v1/completions.", server->chat_error.text);
        goto done;
    }
    if (take_messages(request, context, error) < 0 || take_arguments(request, context, error) < 0)
        goto done;
    json_object_set_new(context, "add_generation_prompt", json_true());
    if (render(server, context, &text, error) < 0)
        goto done;
    *starts_inside = text_prompt_starts_inside(buffer_slice(&text));
    status = tokenizer_encode(server->tokenizer, buffer_slice(&text), true, ids, &fault);
    if (status < 0)
        api_fail(error, 400, "invalid_messages", "messages", "%s", fault.text);
done:
    json_decref(context);
    buffer_free(&text);
    return status;
}
