/* bpe.c - byte-level byte pair encoding: the bytes of one word become token ids.
 *
 * Every byte is a token. Repeatedly the adjacent pair with the lowest rank is merged, the
 * leftmost first among equals, until no adjacent pair has a rank. Two ways to the same result:
 *
 *   short words   ranks of all adjacent pairs in an array; a scan finds the lowest. Quadratic, and
 *                 the fastest there is for the few bytes that words have.
 *   long words    a binary heap of candidate merges over a doubly linked list of symbols,
 *                 O(n log n), so that a megabyte without a break is encoded in well under a second.
 *                 A heap entry names the pair it was made for; an entry whose pair has changed
 *                 since is skipped.
 *
 * Tables, immutable after bpe_create
 *   byte_ids   byte -> id
 *   merges     open addressing, (left id, right id) -> rank, merged id; at most half full
 *   words      open addressing, bytes -> id + 1; only where the model says ignore_merges
 *   tokens     id -> decoded bytes in one pool
 *
 * The alphabet: vocabularies spell bytes as printable characters (GPT-2's bytes_to_unicode): bytes
 * 21..7E, A1..AC, AE..FF as themselves, the 68 others as U+0100, U+0101, ... in byte order.
 *
 * Not here: added tokens, normalising, splitting text into words.
 */
#include <string.h>

#include "text_private.h"

#define TOKENS_MAX (1u << 24) /* ids above are a broken file, not a vocabulary */
#define SHORT_WORD 48         /* bytes up to which the scan is used */
#define NO_RANK UINT32_MAX
#define NONE UINT32_MAX

struct merge {
    u64 pair; /* left id << 32 | right id */
    u32 rank; /* NO_RANK: empty slot */
    u32 id;
};

struct token {
    u32 offset, size; /* in pool */
};

struct bpe {
    u32 count;
    struct token *tokens; /* [count] */
    struct buffer pool;
    u32 byte_ids[256];
    struct merge *merges;
    u32 merge_mask;
    bool ignore_merges;
    u32 *words; /* id + 1; 0: empty slot */
    u32 word_mask;
};

/* ---- the alphabet */

static bool byte_is_printable(u32 byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* The byte a character stands for, or -1. */
static i32 byte_of_character(u32 code)
{
    static const u8 others[68] = {
        0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,  16,
        17,  18,  19,  20,  21,  22,  23,  24,  25,  26,  27,  28,  29,  30,  31,  32,  127,
        128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141, 142, 143, 144,
        145, 146, 147, 148, 149, 150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160, 173};
    if (code < 256)
        return byte_is_printable(code) ? (i32)code : -1;
    return code < 256 + COUNT_OF(others) ? others[code - 256] : -1;
}

void bpe_add_decoded(struct buffer *bytes, struct slice text)
{
    size_t start = bytes->size;
    for (size_t at = 0; at < text.size;) {
        struct utf8_unit unit = utf8_next(text.data + at, text.size - at);
        i32 byte = unit.kind == UTF8_CHARACTER ? byte_of_character(unit.code) : -1;
        if (byte < 0) {
            bytes->size = start;
            buffer_add_slice(bytes, text);
            return;
        }
        buffer_add(bytes, &(u8){(u8)byte}, 1);
        at += unit.size;
    }
}

/* ---- hashing */

static u32 mix(u64 key)
{
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: Fibonacci hashing */
    return (u32)(key >> 32);
}

static u32 hash_bytes(struct slice text)
{
    u64 hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < text.size; i++)
        hash = (hash ^ (u8)text.data[i]) * 0x100000001b3u;
    return mix(hash);
}

/* Smallest power of two that keeps count entries at most half full. */
static u32 table_size(u32 count)
{
    u32 size = 16;
    while (size < 2 * count)
        size *= 2;
    return size;
}

static const struct merge *find_merge(const struct bpe *bpe, u32 left, u32 right)
{
    u64 pair = (u64)left << 32 | right;
    u32 slot = mix(pair) & bpe->merge_mask;
    while (bpe->merges[slot].rank != NO_RANK && bpe->merges[slot].pair != pair)
        slot = (slot + 1) & bpe->merge_mask;
    return &bpe->merges[slot];
}

static u32 find_word(const struct bpe *bpe, struct slice word)
{
    u32 slot = hash_bytes(word) & bpe->word_mask;
    while (bpe->words[slot]) {
        if (slice_equal(bpe_token(bpe, bpe->words[slot] - 1), word))
            return bpe->words[slot] - 1;
        slot = (slot + 1) & bpe->word_mask;
    }
    return NONE;
}

/* ---- loading */

static int load_vocabulary(struct bpe *bpe, json_t *vocabulary, struct error *error)
{
    const char *name;
    json_t *value;
    size_t size;
    json_object_keylen_foreach(vocabulary, name, size, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= TOKENS_MAX)
            return error_set(error, ERROR_MODEL,
                             "tokenizer.json: model.vocab: the id of '%s' must be 0 to %u", name,
                             TOKENS_MAX - 1);
        if ((u32)id >= bpe->count)
            bpe->count = (u32)id + 1;
    }
    bpe->tokens = memory_alloc((bpe->count + 1) * sizeof *bpe->tokens);
    json_object_keylen_foreach(vocabulary, name, size, value)
    {
        struct token *token = &bpe->tokens[json_integer_value(value)];
        if (token->size)
            return error_set(error, ERROR_MODEL,
                             "tokenizer.json: model.vocab: two tokens have the id %lld",
                             (long long)json_integer_value(value));
        token->offset = (u32)bpe->pool.size;
        bpe_add_decoded(&bpe->pool, (struct slice){name, size});
        token->size = (u32)bpe->pool.size - token->offset;
    }
    return 0;
}

/* The ids of the 256 single bytes; those that no UTF-8 text holds may be absent. */
static int load_bytes(struct bpe *bpe, json_t *vocabulary, struct error *error)
{
    memset(bpe->byte_ids, 0xff, sizeof bpe->byte_ids);
    for (u32 code = 0; code < 512; code++) {
        i32 byte = byte_of_character(code);
        if (byte < 0)
            continue;
        struct buffer name = {0};
        utf8_add(&name, code);
        json_t *id = json_object_getn(vocabulary, name.data, name.size);
        buffer_free(&name);
        if (id)
            bpe->byte_ids[byte] = (u32)json_integer_value(id);
        else if (byte < 0xf5 && byte != 0xc0 && byte != 0xc1)
            return error_set(error, ERROR_MODEL,
                             "tokenizer.json: model.vocab lacks a token for the byte 0x%02x", byte);
    }
    return 0;
}

/* The two halves of a merge: "left right" or ["left", "right"]. */
static bool merge_halves(json_t *merge, struct slice *left, struct slice *right)
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        const char *space = strchr(text, ' ');
        if (!space)
            return false;
        *left = (struct slice){text, (size_t)(space - text)};
        *right = slice_of(space + 1);
        return true;
    }
    json_t *first = json_array_get(merge, 0), *second = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(first) || !json_is_string(second))
        return false;
    *left = (struct slice){json_string_value(first), json_string_length(first)};
    *right = (struct slice){json_string_value(second), json_string_length(second)};
    return true;
}

static int load_merge(struct bpe *bpe, json_t *vocabulary, json_t *merge, u32 rank,
                      struct error *error)
{
    struct slice left, right;
    if (!merge_halves(merge, &left, &right))
        return error_set(error, ERROR_MODEL,
                         "tokenizer.json: model.merges[%u]: expected \"left right\" or two strings",
                         rank);
    struct buffer joined = {0};
    buffer_add_slice(&joined, left);
    buffer_add_slice(&joined, right);
    json_t *left_id = json_object_getn(vocabulary, left.data, left.size);
    json_t *right_id = json_object_getn(vocabulary, right.data, right.size);
    json_t *id = json_object_getn(vocabulary, joined.data, joined.size);
    buffer_free(&joined);
    if (!left_id || !right_id || !id)
        return error_set(error, ERROR_MODEL,
                         "tokenizer.json: model.merges[%u]: '%.*s' + '%.*s' is not in model.vocab",
                         rank, (int)left.size, left.data, (int)right.size, right.data);
    u32 a = (u32)json_integer_value(left_id), b = (u32)json_integer_value(right_id);
    struct merge *slot = (struct merge *)find_merge(bpe, a, b);
    *slot = (struct merge){(u64)a << 32 | b, rank, (u32)json_integer_value(id)};
    return 0;
}

static int load_merges(struct bpe *bpe, json_t *vocabulary, json_t *merges, struct error *error)
{
    if (json_array_size(merges) > TOKENS_MAX)
        return error_set(error, ERROR_MODEL, "tokenizer.json: model.merges has over %u entries",
                         TOKENS_MAX);
    u32 count = (u32)json_array_size(merges), size = table_size(count);
    bpe->merges = memory_alloc(size * sizeof *bpe->merges);
    bpe->merge_mask = size - 1;
    for (u32 i = 0; i < size; i++)
        bpe->merges[i].rank = NO_RANK;
    for (u32 rank = 0; rank < count; rank++)
        if (load_merge(bpe, vocabulary, json_array_get(merges, rank), rank, error) < 0)
            return -1;
    return 0;
}

static void load_words(struct bpe *bpe)
{
    u32 size = table_size(bpe->count);
    bpe->words = memory_alloc(size * sizeof *bpe->words);
    bpe->word_mask = size - 1;
    for (u32 id = 0; id < bpe->count; id++) {
        struct slice word = bpe_token(bpe, id);
        u32 slot = hash_bytes(word) & bpe->word_mask;
        while (bpe->words[slot])
            slot = (slot + 1) & bpe->word_mask;
        if (word.size)
            bpe->words[slot] = id + 1;
    }
}

/* What a byte-level model may not have: it would change the ids. */
static int refuse_others(json_t *model, struct error *error)
{
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    const char *type = json_string_value(json_object_get(model, "type"));
    if (type && strcmp(type, "BPE") != 0)
        return error_set(error, ERROR_MODEL, "tokenizer.json: model.type: expected BPE, found %s",
                         type);
    if (json_only_keys(model, keys, "tokenizer.json: model", error) < 0)
        return -1;
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return error_set(error, ERROR_MODEL, "tokenizer.json: model.dropout: expected null");
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < COUNT_OF(affixes); i++) {
        const char *affix = json_string_value(json_object_get(model, affixes[i]));
        if (affix && *affix)
            return error_set(error, ERROR_MODEL,
                             "tokenizer.json: model.%s: expected nothing, found '%s'", affixes[i],
                             affix);
    }
    return 0;
}

int bpe_create(struct bpe **out, json_t *model, struct error *error)
{
    json_t *vocabulary, *merges;
    struct bpe *bpe = memory_alloc(sizeof *bpe);
    const char *where = "tokenizer.json: model";
    if (refuse_others(model, error) < 0 ||
        json_member(model, "vocab", JSON_OBJECT, where, &vocabulary, error) < 0 ||
        json_member(model, "merges", JSON_ARRAY, where, &merges, error) < 0 ||
        json_flag(model, "ignore_merges", false, where, &bpe->ignore_merges, error) < 0)
        goto fail;
    if (!vocabulary || !merges) {
        error_set(error, ERROR_MODEL, "%s.%s is missing", where, vocabulary ? "merges" : "vocab");
        goto fail;
    }
    if (load_vocabulary(bpe, vocabulary, error) < 0 || load_bytes(bpe, vocabulary, error) < 0 ||
        load_merges(bpe, vocabulary, merges, error) < 0)
        goto fail;
    if (bpe->ignore_merges)
        load_words(bpe);
    *out = bpe;
    return 0;
fail:
    bpe_destroy(bpe);
    return -1;
}

void bpe_destroy(struct bpe *bpe)
{
    if (!bpe)
        return;
    memory_free(bpe->tokens);
    memory_free(bpe->merges);
    memory_free(bpe->words);
    buffer_free(&bpe->pool);
    memory_free(bpe);
}

u32 bpe_count(const struct bpe *bpe)
{
    return bpe->count;
}

struct slice bpe_token(const struct bpe *bpe, u32 id)
{
    if (id >= bpe->count)
        return (struct slice){"", 0};
    return (struct slice){bpe->pool.data + bpe->tokens[id].offset, bpe->tokens[id].size};
}

/* ---- short words */

/* rank[i]: rank of the pair (id[i], id[i + 1]). */
static void encode_short(const struct bpe *bpe, struct slice word, struct buffer *out)
{
    u32 ids[SHORT_WORD], ranks[SHORT_WORD], count = (u32)word.size;
    for (u32 i = 0; i < count; i++)
        ids[i] = bpe->byte_ids[(u8)word.data[i]];
    for (u32 i = 0; i + 1 < count; i++)
        ranks[i] = find_merge(bpe, ids[i], ids[i + 1])->rank;
    while (count > 1) {
        u32 best = 0;
        for (u32 i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == NO_RANK)
            break;
        ids[best] = find_merge(bpe, ids[best], ids[best + 1])->id;
        count--;
        memmove(&ids[best + 1], &ids[best + 2], (count - best - 1) * sizeof *ids);
        memmove(&ranks[best], &ranks[best + 1], (count - best - 1) * sizeof *ranks);
        if (best + 1 < count)
            ranks[best] = find_merge(bpe, ids[best], ids[best + 1])->rank;
        if (best > 0)
            ranks[best - 1] = find_merge(bpe, ids[best - 1], ids[best])->rank;
    }
    buffer_add(out, ids, count * sizeof *ids);
}

/* ---- long words */

struct symbol {
    u32 id;             /* NONE: merged away */
    u32 previous, next; /* NONE at the ends */
};

/* A candidate: the pair that starts at symbol `at`, as it was when the candidate was made. */
struct candidate {
    u32 rank, at;
    u64 pair;
};

struct heap {
    struct candidate *items;
    size_t count, capacity;
};

static bool comes_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct heap *heap, struct candidate item)
{
    if (heap->count == heap->capacity) {
        heap->capacity = heap->capacity ? 2 * heap->capacity : 256;
        heap->items = memory_resize(heap->items, heap->capacity * sizeof item);
    }
    size_t at = heap->count++;
    while (at > 0 && comes_before(&item, &heap->items[(at - 1) / 2])) {
        heap->items[at] = heap->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->items[at] = item;
}

static struct candidate heap_pop(struct heap *heap)
{
    struct candidate top = heap->items[0], last = heap->items[--heap->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && comes_before(&heap->items[child + 1], &heap->items[child]))
            child++;
        if (!comes_before(&heap->items[child], &last))
            break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    return top;
}

static void push_pair(const struct bpe *bpe, struct heap *heap, const struct symbol *symbols,
                      u32 at)
{
    if (at == NONE || symbols[at].next == NONE)
        return;
    u32 left = symbols[at].id, right = symbols[symbols[at].next].id;
    u32 rank = find_merge(bpe, left, right)->rank;
    if (rank != NO_RANK)
        heap_push(heap, (struct candidate){rank, at, (u64)left << 32 | right});
}

static void merge_all(const struct bpe *bpe, struct heap *heap, struct symbol *symbols)
{
    while (heap->count) {
        struct candidate top = heap_pop(heap);
        struct symbol *left = &symbols[top.at];
        if (left->id == NONE || left->next == NONE)
            continue;
        struct symbol *right = &symbols[left->next];
        if (((u64)left->id << 32 | right->id) != top.pair)
            continue;
        left->id = find_merge(bpe, left->id, right->id)->id;
        left->next = right->next;
        right->id = NONE;
        if (left->next != NONE)
            symbols[left->next].previous = top.at;
        push_pair(bpe, heap, symbols, left->previous);
        push_pair(bpe, heap, symbols, top.at);
    }
}

static void encode_long(const struct bpe *bpe, struct slice word, struct buffer *out)
{
    u32 count = (u32)word.size;
    struct symbol *symbols = memory_alloc(count * sizeof *symbols);
    struct heap heap = {0};
    for (u32 i = 0; i < count; i++)
        symbols[i] = (struct symbol){bpe->byte_ids[(u8)word.data[i]], i ? i - 1 : NONE,
                                     i + 1 < count ? i + 1 : NONE};
    for (u32 i = 0; i < count; i++)
        push_pair(bpe, &heap, symbols, i);
    merge_all(bpe, &heap, symbols);
    for (u32 at = 0; at != NONE; at = symbols[at].next)
        buffer_add(out, &symbols[at].id, sizeof symbols[at].id);
    memory_free(heap.items);
    memory_free(symbols);
}

void bpe_encode(const struct bpe *bpe, struct slice word, struct buffer *ids)
{
    u32 whole = bpe->ignore_merges ? find_word(bpe, word) : NONE;
    if (whole != NONE)
        buffer_add(ids, &whole, sizeof whole);
    else if (word.size <= SHORT_WORD)
        encode_short(bpe, word, ids);
    else
        encode_long(bpe, word, ids);
}
