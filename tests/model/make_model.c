/* make_model.c - make_model.h as a program, for tests that are not in C.
 *
 *     make_model FOLDER [KEY=VALUE...]
 *
 * Keys: hidden intermediate layers vocab interval q_heads kv_heads k_heads v_heads
 * head_bits shards seed (numbers); bits=1,2,... codebooks=3inst,mcg,mul1 (used in turn);
 * plain=f16|bf16|f32; a_log=bf16|f32; prefix=TEXT; tokenizer=FOLDER; and the words
 * tied, old, nested, extras, sparse, 27b.
 */
#include <stdlib.h>

#include "model/make_model.h"

static void usage(const char *what, const char *argument)
{
    fprintf(stderr, "make_model: %s: '%s'; usage: make_model FOLDER [KEY=VALUE...]\n", what,
            argument);
    exit(ERROR_USAGE);
}

static enum dtype parse_dtype(const char *value)
{
    if (strcmp(value, "f16") == 0)
        return DTYPE_F16;
    if (strcmp(value, "bf16") == 0)
        return DTYPE_BF16;
    if (strcmp(value, "f32") != 0)
        usage("unknown dtype", value);
    return DTYPE_F32;
}

static void parse_bits(struct make_options *options, const char *value)
{
    options->bit_count = 0;
    for (char *end; options->bit_count < MAKE_LIST_MOST; value = end + 1) {
        options->bits[options->bit_count++] = (u32)strtoul(value, &end, 10);
        if (*end != ',')
            return;
    }
}

static void parse_codebooks(struct make_options *options, const char *value)
{
    static const char *const names[] = {
        [CODEBOOK_3INST] = "3inst", [CODEBOOK_MCG] = "mcg", [CODEBOOK_MUL1] = "mul1"};
    options->codebook_count = 0;
    while (*value && options->codebook_count < MAKE_LIST_MOST) {
        size_t length = strcspn(value, ","), i = 0;
        while (i < COUNT_OF(names) && strncmp(names[i], value, length) != 0)
            i++;
        if (i == COUNT_OF(names))
            usage("unknown codebook", value);
        options->codebooks[options->codebook_count++] = (enum codebook)i;
        value += length + (value[length] == ',');
    }
}

static bool parse_number(struct make_options *options, const char *key, const char *value)
{
    const struct {
        const char *key;
        u32 *number;
    } numbers[] = {{"hidden", &options->hidden},     {"intermediate", &options->intermediate},
                   {"layers", &options->layers},     {"vocab", &options->vocab},
                   {"interval", &options->interval}, {"q_heads", &options->q_heads},
                   {"kv_heads", &options->kv_heads}, {"k_heads", &options->k_heads},
                   {"v_heads", &options->v_heads},   {"head_bits", &options->head_bits},
                   {"shards", &options->shards}};
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        if (strcmp(numbers[i].key, key) == 0) {
            *numbers[i].number = (u32)strtoul(value, NULL, 10);
            return true;
        }
    }
    return false;
}

static void parse_pair(struct make_options *options, const char *key, const char *value)
{
    if (parse_number(options, key, value))
        return;
    if (strcmp(key, "bits") == 0)
        parse_bits(options, value);
    else if (strcmp(key, "codebooks") == 0)
        parse_codebooks(options, value);
    else if (strcmp(key, "seed") == 0)
        options->seed = strtoull(value, NULL, 10);
    else if (strcmp(key, "a_log") == 0)
        options->a_log_dtype = parse_dtype(value);
    else if (strcmp(key, "prefix") == 0)
        options->prefix = value;
    else if (strcmp(key, "tokenizer") == 0)
        options->tokenizer = value;
    else if (strcmp(key, "plain") == 0) {
        options->plain = true;
        options->plain_dtype = parse_dtype(value);
    } else {
        usage("unknown key", key);
    }
}

static void parse_word(struct make_options *options, const char *word)
{
    const struct {
        const char *word;
        bool *flag;
    } words[] = {{"tied", &options->tied},
                 {"old", &options->old_signs},
                 {"nested", &options->nested},
                 {"extras", &options->extras},
                 {"sparse", &options->sparse}};
    if (strcmp(word, "27b") == 0) {
        make_27b(options, options->folder);
        return;
    }
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (strcmp(words[i].word, word) == 0) {
            *words[i].flag = true;
            return;
        }
    }
    usage("unknown word", word);
}

int main(int argc, char **argv)
{
    struct make_options options;
    struct error error = {0};
    if (argc < 2)
        usage("a folder is missing", "");
    make_defaults(&options, argv[1]);
    for (int i = 2; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals) {
            parse_word(&options, argv[i]);
            continue;
        }
        *equals = '\0';
        parse_pair(&options, argv[i], equals + 1);
    }
    if (make_model(&options, &error) == 0)
        return 0;
    fprintf(stderr, "make_model: %s\n", error.text);
    return error.code;
}
