/* completions.c - prompts of /v1/completions: a text or token ids.
 *
 *     "text"   ["text"]   [1, 2, 3]   [[1, 2, 3]]
 *
 * Text is plain text: "<|im_end|>" in it is ten characters, not a token. Who wants
 * special tokens sends ids. Several prompts in one request are refused.
 */
#include "serve/internal.h"

static int take_ids(const struct server *server, const json_t *list, struct buffer *ids,
                    struct api_error *error)
{
    size_t index;
    json_t *value;
    u32 vocabulary = engine_model(server->engine)->config.vocab;
    json_array_foreach (list, index, value) {
        if (!json_is_integer(value))
            return api_fail(error, 400, "invalid_type", "prompt",
                            "prompt[%zu] must be a token id like the others, got %s.", index,
                            api_type_name(value));
        json_int_t id = json_integer_value(value);
        if (id < 0 || id >= vocabulary)
            return api_fail(error, 400, "invalid_value", "prompt",
                            "prompt[%zu] is %lld, token ids go from 0 to %u.", index, (long long)id,
                            vocabulary - 1);
        u32 token = (u32)id;
        buffer_add(ids, &token, sizeof token);
    }
    return 0;
}

static int take_text(struct server *server, const json_t *prompt, struct buffer *ids,
                     struct api_error *error)
{
    struct error fault;
    struct slice text = {json_string_value(prompt), json_string_length(prompt)};
    if (tokenizer_encode(server->tokenizer, text, false, ids, &fault) < 0)
        return api_fail(error, 400, "invalid_value", "prompt", "%s", fault.text);
    return 0;
}

int completions_prompt(struct server *server, const struct api_request *request, struct buffer *ids,
                       struct api_error *error)
{
    const json_t *prompt = request->prompt, *first = json_array_get(prompt, 0);
    bool nested = json_is_string(first) || json_is_array(first);
    if (nested && json_array_size(prompt) > 1)
        return api_fail(error, 400, "unsupported_parameter", "prompt",
                        "prompt holds %zu prompts, only one a request is supported.",
                        json_array_size(prompt));
    if (nested)
        prompt = first;
    if (!json_is_string(prompt) && !json_is_array(prompt))
        return api_fail(error, 400, "invalid_type", "prompt",
                        "prompt must be a string or an array of token ids, got %s.",
                        api_type_name(prompt));
    int status = json_is_string(prompt) ? take_text(server, prompt, ids, error)
                                        : take_ids(server, prompt, ids, error);
    if (status == 0 && ids->size == 0)
        return api_fail(error, 400, "invalid_value", "prompt", "prompt may not be empty.");
    return status;
}
