/* conversation.c - one dialogue: messages -> template -> tokens -> engine -> text -> messages.
 *
 * Messages are a jansson array in the form the template reads: {"role", "content"} and, for replies
 * that thought, "reasoning_content". In raw mode there are no messages; every prompt stands alone.
 */
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/conversation.h"

struct conversation {
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *chat; /* NULL when raw */
    struct conversation_options options;
    struct engine_sampling sampling;
    json_t *messages;
    u32 stops[16], stop_count;
};

/* One turn in flight. */
struct turn {
    struct conversation *conversation;
    struct text_stream *stream;
    conversation_show show;
    void *user;
    struct buffer *ids;
    struct buffer bytes, reasoning, content;
};

static volatile sig_atomic_t interrupted;

void conversation_interrupt(void)
{
    interrupted = 1;
}

/* ---- opening */

static void add_stop(struct conversation *conversation, i32 id)
{
    for (u32 i = 0; i < conversation->stop_count; i++)
        if (conversation->stops[i] == (u32)id)
            return;
    if (id >= 0 && conversation->stop_count < COUNT_OF(conversation->stops))
        conversation->stops[conversation->stop_count++] = (u32)id;
}

static void collect_stops(struct conversation *conversation)
{
    const struct model_config *config = &engine_model(conversation->engine)->config;
    for (u32 i = 0; i < config->eos_count; i++)
        add_stop(conversation, (i32)config->eos[i]);
    add_stop(conversation, tokenizer_special_id(conversation->tokenizer, "<|im_end|>"));
    add_stop(conversation, tokenizer_special_id(conversation->tokenizer, "<|endoftext|>"));
}

static int append(json_t *messages, const char *role, struct slice content, struct error *error)
{
    json_t *text = json_stringn(content.data ? content.data : "", content.size);
    if (!text)
        return error_set(error, ERROR_USAGE, "the %s message is not valid UTF-8", role);
    json_t *message = json_object();
    json_object_set_new(message, "role", json_string(role));
    json_object_set_new(message, "content", text);
    json_array_append_new(messages, message);
    return 0;
}

int conversation_open(struct conversation **out, const char *folder,
                      const struct conversation_options *options, struct error *error)
{
    struct conversation *conversation = memory_alloc(sizeof *conversation);
    conversation->options = *options;
    conversation->messages = json_array();
    if (tokenizer_open(&conversation->tokenizer, folder, error) < 0 ||
        (!options->raw && chat_template_open(&conversation->chat, folder, error) < 0) ||
        (options->system &&
         append(conversation->messages, "system", slice_of(options->system), error) < 0)) {
        conversation_close(conversation);
        return -1;
    }
    *out = conversation;
    return 0;
}

void conversation_attach(struct conversation *conversation, struct engine *engine,
                         const struct engine_sampling *sampling)
{
    conversation->engine = engine;
    conversation->sampling = *sampling;
    collect_stops(conversation);
}

u32 conversation_token_count(const struct conversation *conversation)
{
    return tokenizer_count(conversation->tokenizer);
}

void conversation_close(struct conversation *conversation)
{
    if (!conversation)
        return;
    chat_template_close(conversation->chat);
    tokenizer_close(conversation->tokenizer);
    json_decref(conversation->messages);
    memory_free(conversation);
}

/* ---- messages */

static bool has_system(const struct conversation *conversation)
{
    json_t *first = json_array_get(conversation->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    return role && strcmp(role, "system") == 0;
}

void conversation_reset(struct conversation *conversation)
{
    size_t keep = has_system(conversation) ? 1 : 0;
    while (json_array_size(conversation->messages) > keep)
        json_array_remove(conversation->messages, keep);
}

int conversation_set_system(struct conversation *conversation, struct slice text,
                            struct error *error)
{
    json_t *messages = json_array();
    if (text.size && append(messages, "system", text, error) < 0) {
        json_decref(messages);
        return -1;
    }
    json_decref(conversation->messages);
    conversation->messages = messages;
    return 0;
}

int conversation_save(const struct conversation *conversation, const char *path,
                      struct error *error)
{
    char *text = json_dumps(conversation->messages, JSON_INDENT(2));
    int result = file_write_atomic(path, text, strlen(text), error);
    free(text);
    return result;
}

/* ---- a turn */

static int render(struct conversation *conversation, struct buffer *prompt, struct error *error)
{
    json_t *context = json_object();
    json_object_set(context, "messages", conversation->messages);
    json_object_set_new(context, "add_generation_prompt", json_true());
    if (conversation->options.no_think)
        json_object_set_new(context, "enable_thinking", json_false());
    char *text = json_dumps(context, 0);
    int result = chat_template_render(conversation->chat, slice_of(text), prompt, error);
    free(text);
    json_decref(context);
    return result;
}

static void show_text(void *user, enum stream_part part, struct slice text)
{
    struct turn *turn = user;
    buffer_add_slice(part == STREAM_REASONING ? &turn->reasoning : &turn->content, text);
    if (turn->show)
        turn->show(turn->user, part, text);
}

static bool take_token(void *user, u32 token)
{
    struct turn *turn = user;
    if (turn->ids)
        buffer_add(turn->ids, &token, sizeof token);
    buffer_clear(&turn->bytes);
    tokenizer_token_bytes(turn->conversation->tokenizer, token, true, &turn->bytes);
    text_stream_feed(turn->stream, buffer_slice(&turn->bytes));
    return !interrupted;
}

static bool keep_going(void *user, u32 done, u32 count)
{
    (void)user, (void)done, (void)count;
    return !interrupted;
}

static int limit_tokens(const struct conversation *conversation, u32 prompt_count, u32 *max_tokens,
                        struct error *error)
{
    u32 context = engine_context(conversation->engine), wanted = conversation->options.max_tokens;
    if (prompt_count >= context)
        return error_set(error, ERROR_USAGE,
                         "the prompt has %u tokens and the context %u; nothing is left for a reply",
                         prompt_count, context);
    u32 room = context - prompt_count;
    if (wanted > room)
        return error_set(error, ERROR_USAGE,
                         "prompt (%u tokens) and --max-tokens (%u) exceed the context (%u)",
                         prompt_count, wanted, context);
    *max_tokens = wanted ? wanted : room;
    return 0;
}

static int generate(struct turn *turn, struct slice prompt, struct engine_result *result,
                    struct error *error)
{
    struct conversation *conversation = turn->conversation;
    struct buffer ids = {0};
    int status = -1;
    struct engine_request request = {.sampling = conversation->sampling,
                                     .stops = conversation->stops,
                                     .stop_count = conversation->stop_count,
                                     .on_token = take_token,
                                     .on_progress = keep_going,
                                     .user = turn};
    if (tokenizer_encode(conversation->tokenizer, prompt, true, &ids, error) < 0)
        goto done;
    request.prompt = (const u32 *)ids.data;
    request.prompt_count = (u32)(ids.size / sizeof(u32));
    if (request.prompt_count == 0) {
        error_set(error, ERROR_USAGE, "the prompt is empty");
        goto done;
    }
    if (limit_tokens(conversation, request.prompt_count, &request.max_tokens, error) < 0)
        goto done;
    const struct text_stream_options options = {.thinking = !conversation->options.raw,
                                                .starts_inside = !conversation->options.raw &&
                                                                 text_prompt_starts_inside(prompt)};
    turn->stream = text_stream_create(&options, show_text, turn);
    status = engine_generate(conversation->engine, &request, result, error);
    if (status < 0 && error->code == ERROR_CANCELLED)
        status = 0;
    text_stream_end(turn->stream);
    text_stream_destroy(turn->stream);
done:
    buffer_free(&ids);
    return status;
}

static void keep_reply(struct turn *turn)
{
    json_t *messages = turn->conversation->messages;
    struct error ignored = {0};
    if (append(messages, "assistant", buffer_slice(&turn->content), &ignored) < 0)
        return;
    if (turn->reasoning.size)
        json_object_set_new(json_array_get(messages, json_array_size(messages) - 1),
                            "reasoning_content",
                            json_stringn(turn->reasoning.data, turn->reasoning.size));
}

int conversation_turn(struct conversation *conversation, struct slice text, conversation_show show,
                      void *user, struct buffer *ids, struct engine_result *result,
                      struct error *error)
{
    struct turn turn = {.conversation = conversation, .show = show, .user = user, .ids = ids};
    struct buffer prompt = {0};
    size_t before = json_array_size(conversation->messages);
    int status = -1;
    interrupted = 0;
    *result = (struct engine_result){0};
    if (conversation->options.raw)
        buffer_add_slice(&prompt, text);
    else if (append(conversation->messages, "user", text, error) < 0 ||
             render(conversation, &prompt, error) < 0)
        goto done;
    status = generate(&turn, buffer_slice(&prompt), result, error);
    if (status == 0 && !conversation->options.raw)
        keep_reply(&turn);
done:
    while (status < 0 && json_array_size(conversation->messages) > before)
        json_array_remove(conversation->messages, before);
    buffer_free(&prompt);
    buffer_free(&turn.bytes);
    buffer_free(&turn.reasoning);
    buffer_free(&turn.content);
    return status;
}
