/* prompt_list.c - prompts as a file has them, or the built-in ones.
 *
 *     [{"name": "sum", "ids": [4087, 346, 198]}, ...]     JSON: token ids, as they are; other keys
 *                                                          are not looked at
 *     What is 34 + 57?                                     else text, a prompt a line: a user's
 *     Tell a story about a fox.                            first message, through the chat template
 *
 * A file is JSON if its first character that is no blank is '['. Blank lines are skipped.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/prompt_list.h"
#include "text/text.h"

enum { PROMPTS_LIMIT = 64 << 20 };

/* Of several kinds, so that what is measured over them is not that of one. */
static const char *const built_in[] = {
    "Count from 5 to 21.",
    "Count from 1 to 40.",
    "Count down from 20 to 1.",
    "What is 12 + 49?",
    "What is 68 + 25?",
    "What is 9 * 7?",
    "What is 91 - 37?",
    "How many centimetres are 14 metres?",
    "How many minutes are 7 hours?",
    "What is the capital of Japan?",
    "What is the capital of Kenya, and what is the weather like there?",
    "Who are you?",
    "Say hello in Greek.",
    "Say good morning in Russian and in Japanese.",
    "Translate into German: the horse stands under the old bridge.",
    "¿Qué es un río?",
    "Tell a story about a clever crow named Eve.",
    "Tell a story about a lucky hare named Finn.",
    "Tell a story about a gentle horse named Rosa.",
    "Tell a story about a heavy goat named Uma and a wolf.",
    "Tell a story about two friends who find a lantern.",
    "Tell a short story about a lighthouse.",
    "Sort alphabetically: window, bread, garden, anchor, mirror",
    "Sort alphabetically: Pear, apple, Zebra, quince, 7, fig",
    "Sort the numbers 41, 7, 93, 12, 58 and 30.",
    "Reverse the list: pencil, silver, rocket, island",
    "Reverse the word: lighthouse",
    "Repeat exactly: copper ladder music tunnel feather candle",
    "Repeat exactly: a1 b2 c3 d4 e5 f6 g7 h8 i9",
    "Write a C function named square.",
    "Write a C function that reverses a string in place.",
    "Write a Python function named minimum.",
    "Write a Python program that prints the first twenty prime numbers.",
    "Write a Lua function named sum.",
    "Write a JSON object with the keys name, city and age.",
    "Write JSON for a person named Nora, 35 years old, from Porto.",
    "Write three lines of CSV with the columns id, colour and price.",
    "Remember: The code of harbour is 318. The code of violin is 702. What is the code of harbour?",
    "A train leaves at 9:40 and arrives at 12:05. How long does it take?",
    "Ben has 12 apples and gives 5 to Cora. How many are left?",
    "Explain in one paragraph why the sky is blue.",
    "Explain how to bake bread, step by step.",
    "Explain the difference between a list and a tuple.",
    "List five uses of a paper clip.",
    "Write an e-mail that moves a meeting from Monday to Thursday.",
    "Summarise the rules of chess in ten short sentences.",
    "Write a poem of eight lines about winter.",
    "What time is it in Oslo?",
};

/* ---- text */

/* What renders text; opened where there is any. */
struct renderer {
    const char *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
};

static int open_renderer(struct renderer *renderer, struct error *error)
{
    return tokenizer_open(&renderer->tokenizer, renderer->model, error) ||
                   chat_template_open(&renderer->chat, renderer->model, error)
               ? -1
               : 0;
}

static void close_renderer(struct renderer *renderer)
{
    chat_template_close(renderer->chat);
    tokenizer_close(renderer->tokenizer);
}

static void add_prompt(struct buffer *prompts, char *name, const struct buffer *ids)
{
    const struct prompt prompt = {name, (u32 *)(void *)ids->data, (u32)(ids->size / sizeof(u32))};
    buffer_add(prompts, &prompt, sizeof prompt);
}

/* name: taken. */
static int add_text(struct renderer *renderer, struct slice line, char *name,
                    struct buffer *prompts, struct error *error)
{
    struct buffer text = {0}, ids = {0};
    json_t *content = json_stringn(line.data, line.size);
    int status = 0;
    if (!content)
        status = error_set(error, ERROR_USAGE, "the text is not valid UTF-8");
    if (status == 0) {
        json_t *context = json_pack("{s:[{s:s, s:O}], s:b}", "messages", "role", "user", "content",
                                    content, "add_generation_prompt", 1);
        char *json = json_dumps(context, 0);
        status = chat_template_render(renderer->chat, slice_of(json), &text, error) ||
                         tokenizer_encode(renderer->tokenizer, buffer_slice(&text), true, &ids,
                                          error)
                     ? -1
                     : 0;
        free(json);
        json_decref(context);
    }
    json_decref(content);
    buffer_free(&text);
    if (status == 0) {
        add_prompt(prompts, name, &ids);
        return 0;
    }
    buffer_free(&ids);
    error_prefix(error, "%s", name);
    memory_free(name);
    return -1;
}

static char *numbered(const char *word, u32 number)
{
    struct buffer name = {0};
    buffer_format(&name, "%s %" PRIu32, word, number);
    return name.data;
}

static int take_built_in(struct renderer *renderer, struct buffer *prompts, struct error *error)
{
    if (open_renderer(renderer, error))
        return -1;
    for (u32 i = 0; i < COUNT_OF(built_in); i++)
        if (add_text(renderer, slice_of(built_in[i]), numbered("built-in prompt", i + 1), prompts,
                     error))
            return -1;
    return 0;
}

static int take_lines(struct renderer *renderer, struct slice text, struct buffer *prompts,
                      struct error *error)
{
    for (u32 number = 1; text.size; number++) {
        const char *end = memchr(text.data, '\n', text.size);
        struct slice line = {text.data, end ? (size_t)(end - text.data) : text.size};
        text.data += line.size + (end != NULL);
        text.size -= line.size + (end != NULL);
        while (line.size && strchr(" \t\r", line.data[line.size - 1]))
            line.size--;
        if (line.size && add_text(renderer, line, numbered("line", number), prompts, error))
            return -1;
    }
    return 0;
}

/* ---- JSON */

static int take_ids(const json_t *list, const char *name, struct buffer *ids, struct error *error)
{
    size_t at;
    json_t *value;
    if (json_array_size(list) == 0)
        return error_set(error, ERROR_USAGE, "%s: \"ids\": expected a list of token ids", name);
    json_array_foreach (list, at, value) {
        const json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0 || number > UINT32_MAX)
            return error_set(error, ERROR_USAGE,
                             "%s: \"ids\": expected token ids, found something else at place %zu",
                             name, at);
        buffer_add(ids, &(u32){(u32)number}, sizeof(u32));
    }
    return 0;
}

static int take_json(const char *text, struct buffer *prompts, struct error *error)
{
    json_error_t fault;
    json_t *list = json_loads(text, JSON_REJECT_DUPLICATES, &fault), *entry;
    size_t at;
    int status = 0;
    if (!list)
        return error_set(error, ERROR_USAGE, "line %d: not JSON: %s", fault.line, fault.text);
    json_array_foreach (list, at, entry) {
        const char *given = json_string_value(json_object_get(entry, "name"));
        char *name = given ? memory_copy_text(slice_of(given)) : numbered("prompt", (u32)at + 1);
        struct buffer ids = {0};
        status = take_ids(json_object_get(entry, "ids"), name, &ids, error);
        if (status == 0) {
            add_prompt(prompts, name, &ids);
            continue;
        }
        buffer_free(&ids);
        memory_free(name);
        break;
    }
    json_decref(list);
    return status;
}

/* ---- the whole */

static int take_file(struct renderer *renderer, const char *path, struct buffer *prompts,
                     struct error *error)
{
    struct buffer text = {0};
    if (file_read(&text, path, PROMPTS_LIMIT, error))
        return -1;
    const struct slice all = buffer_slice(&text);
    const bool is_json = all.data[strspn(all.data, " \t\r\n")] == '[';
    if (!is_json && open_renderer(renderer, error)) {
        buffer_free(&text);
        return -1;
    }
    int status = is_json ? take_json(all.data, prompts, error)
                         : take_lines(renderer, all, prompts, error);
    if (status == 0 && prompts->size == 0)
        status = error_set(error, ERROR_USAGE, "expected at least one prompt, found none");
    if (status < 0)
        error_prefix(error, "%s", path);
    buffer_free(&text);
    return status;
}

int prompt_list_read(struct prompt_list *list, const char *path, const char *model,
                     struct error *error)
{
    struct renderer renderer = {.model = model};
    struct buffer prompts = {0};
    const int status = path ? take_file(&renderer, path, &prompts, error)
                            : take_built_in(&renderer, &prompts, error);
    close_renderer(&renderer);
    list->prompts = (struct prompt *)(void *)prompts.data;
    list->count = (u32)(prompts.size / sizeof *list->prompts);
    if (status < 0)
        prompt_list_free(list);
    return status;
}

void prompt_list_free(struct prompt_list *list)
{
    for (u32 i = 0; i < list->count; i++) {
        memory_free(list->prompts[i].name);
        memory_free(list->prompts[i].ids);
    }
    memory_free(list->prompts);
    *list = (struct prompt_list){0};
}
