/* trace.c - following PTX (trace.h).
 *
 * The text becomes a list of steps. A register is a u64 slot, found by its name; slot 0 is always
 * 0, so that every operand is slot + constant: registers, immediates and addresses alike. Special
 * registers, parameters and the addresses of shared arrays are slots too, set before a warp starts.
 *
 * Shared memory is one array a CTA, kept from warp to warp. Generic addresses of it, and of a
 * thread's own memory, lie in windows where no pointer of this process can lie:
 *
 *     shared  SHARED_WINDOW + offset        local  LOCAL_WINDOW + offset
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jit/trace.h"

enum {
    VALUES_MOST = 4,        /* destinations of a step, and sources that are looked at */
    WINDOW_BYTES = 1 << 19, /* of shared memory and of a thread's own */
    DYNAMIC_AT = 1 << 17,   /* where dynamic shared memory begins, behind all that is static */
    STEPS_MOST = 100000000, /* of a warp */
};
#define SHARED_WINDOW ((u64)1 << 56)
#define LOCAL_WINDOW ((u64)1 << 57)

enum operation {
    OP_ZERO, /* anything else: destinations become 0 */
    OP_NOTHING,
    OP_MOV,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_MULTIPLY_HIGH,
    OP_MAD,
    OP_FMA,
    OP_DIV,
    OP_REM,
    OP_MIN,
    OP_MAX,
    OP_AND,
    OP_OR,
    OP_XOR,
    OP_NOT,
    OP_NEG,
    OP_ABS,
    OP_SHL,
    OP_SHR,
    OP_FUNNEL_LEFT,
    OP_FUNNEL_RIGHT,
    OP_PERMUTE,
    OP_EXTRACT,
    OP_INSERT,
    OP_LOP3,
    OP_SELECT,
    OP_COMPARE,
    OP_CONVERT,
    OP_TO_SHARED,
    OP_FROM_SHARED,
    OP_FROM_LOCAL,
    OP_LOAD,
    OP_LOAD_FLAG, /* acquire: what another CTA is waited for with; all ones */
    OP_STORE,
    OP_BALLOT,
    OP_LEADING_ZEROS,
    OP_COUNT_ONES,
    OP_SQRT,
    OP_BRANCH,
    OP_RETURN,
};

enum space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL };
enum comparison { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE };

/* A type of PTX: class u, s, b, f or p; bits. */
struct type {
    char class;
    u8 bits;
};

struct operand {
    u32 slot;
    u64 add;
};

struct step {
    enum operation operation;
    enum space space;
    enum comparison comparison;
    char joined;           /* setp: a, o or x with a third source; 0 */
    bool wide, unordered;  /* mul.wide, mad.wide; a comparison that is true for NaN */
    bool guarded, negated; /* by a predicate */
    u32 guard;
    struct type type, from_type; /* from_type: of a conversion */
    u8 to_count, from_count;
    u32 to[VALUES_MOST];
    struct operand from[VALUES_MOST];
    u32 target;          /* of a branch: a step */
    struct slice opcode; /* in the text */
    struct slice label;  /* of a branch */
    struct loop_cycles cost;
};

struct name {
    struct slice text;
    u32 slot;
};

struct label {
    struct slice name;
    u32 step;
};

struct array {
    u32 slot;
    u64 value; /* its address in its space */
};

struct trace {
    char *text;
    struct step *steps;
    size_t count, room;
    struct name *names; /* open addressing */
    size_t name_count, name_room;
    u32 slots;
    struct label *labels;
    size_t label_count;
    struct array *arrays;
    size_t array_count;
    u64 shared_static, local_bytes;
    u32 *parameters; /* slots */
    u32 parameter_count;
    u32 tid, ctaid, ntid, nctaid;
    u64 *values; /* [slots] */
    u64 *runs;   /* [count]: how often each step ran */
    u8 *shared, *local;
};

/* ---- names */

static u64 hash_of(struct slice text)
{
    u64 hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < text.size; i++)
        hash = (hash ^ (u8)text.data[i]) * 0x100000001b3u;
    return hash;
}

static struct name *find_name(struct trace *t, struct slice text)
{
    size_t at = hash_of(text) & (t->name_room - 1);
    while (t->names[at].text.data && !slice_equal(t->names[at].text, text))
        at = (at + 1) & (t->name_room - 1);
    return &t->names[at];
}

static void grow_names(struct trace *t)
{
    struct name *old = t->names;
    const size_t room = t->name_room;
    t->name_room = room ? 2 * room : 1024;
    t->names = memory_alloc(t->name_room * sizeof *t->names);
    for (size_t i = 0; i < room; i++)
        if (old[i].text.data)
            *find_name(t, old[i].text) = old[i];
    memory_free(old);
}

static u32 slot_of(struct trace *t, struct slice text)
{
    if (2 * t->name_count >= t->name_room)
        grow_names(t);
    struct name *name = find_name(t, text);
    if (!name->text.data) {
        *name = (struct name){text, t->slots++};
        t->name_count++;
    }
    return name->slot;
}

/* ---- reading */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct slice trim(struct slice text)
{
    while (text.size && is_blank(text.data[0]))
        text.data++, text.size--;
    while (text.size && is_blank(text.data[text.size - 1]))
        text.size--;
    return text;
}

/* Cuts what stands before the separator off the front of *rest; braces and brackets keep together.
 */
static struct slice cut(struct slice *rest, char separator)
{
    size_t at = 0;
    int depth = 0;
    for (; at < rest->size; at++) {
        const char c = rest->data[at];
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (c == separator && depth == 0)
            break;
    }
    const struct slice part = {rest->data, at};
    const size_t used = at < rest->size ? at + 1 : at;
    *rest = (struct slice){rest->data + used, rest->size - used};
    return trim(part);
}

static struct slice inner(struct slice text)
{
    return trim((struct slice){text.data + 1, text.size - 2});
}

/* A number of PTX: decimal, 0x, 0f and the bits of an f32, 0d and those of an f64. */
static bool read_number(struct slice text, u64 *value)
{
    char digits[32];
    const size_t sign = text.size && text.data[0] == '-';
    if (text.size <= sign || text.size >= sizeof digits || text.data[sign] < '0' ||
        text.data[sign] > '9')
        return false;
    memcpy(digits, text.data, text.size);
    digits[text.size] = 0;
    const bool bits = digits[0] == '0' && strchr("fFdD", digits[1]) && digits[1];
    *value = bits   ? strtoull(digits + 2, NULL, 16)
             : sign ? (u64)strtoll(digits, NULL, 0)
                    : strtoull(digits, NULL, 0);
    return true;
}

/* A register, a number, a symbol, or an address [a+b]. */
static struct operand read_operand(struct trace *t, struct slice text)
{
    struct operand operand = {0};
    if (text.size && text.data[0] == '[') {
        struct slice rest = inner(text);
        const struct slice base = cut(&rest, '+');
        operand = read_operand(t, base);
        u64 offset = 0;
        if (rest.size && read_number(trim(rest), &offset))
            operand.add += offset;
        return operand;
    }
    if (!read_number(text, &operand.add))
        operand.slot = slot_of(t, text);
    return operand;
}

static void add_from(struct trace *t, struct step *step, struct slice text)
{
    if (step->from_count < VALUES_MOST)
        step->from[step->from_count++] = read_operand(t, text);
}

static void add_all(struct trace *t, struct step *step, struct slice text, bool to)
{
    if (text.size && text.data[0] == '{') {
        struct slice rest = inner(text);
        while (rest.size)
            add_all(t, step, cut(&rest, ','), to);
        return;
    }
    struct slice rest = text; /* "a|p" of a shuffle */
    const struct slice first = cut(&rest, '|');
    if (!to)
        add_from(t, step, text);
    else if (step->to_count < VALUES_MOST)
        step->to[step->to_count++] = slot_of(t, first);
}

/* ---- opcodes */

static bool has(struct slice text, const char *part)
{
    return memmem(text.data, text.size, part, strlen(part)) != NULL;
}

static const struct {
    const char *prefix, *contains;
    enum operation operation;
} operations[] = {
    {"ld.acquire", NULL, OP_LOAD_FLAG},
    {"ld.param", NULL, OP_MOV},
    {"ld.", NULL, OP_LOAD},
    {"ldmatrix", NULL, OP_ZERO},
    {"st.", NULL, OP_STORE},
    {"mov", NULL, OP_MOV},
    {"cvta.to.shared", NULL, OP_TO_SHARED},
    {"cvta.shared", NULL, OP_FROM_SHARED},
    {"cvta.local", NULL, OP_FROM_LOCAL},
    {"cvta", NULL, OP_MOV},
    {"cvt", NULL, OP_CONVERT},
    {"setp", NULL, OP_COMPARE},
    {"selp", NULL, OP_SELECT},
    {"add.", NULL, OP_ADD},
    {"sub.", NULL, OP_SUB},
    {"mul.hi", NULL, OP_MULTIPLY_HIGH},
    {"mul.", NULL, OP_MUL},
    {"mad.hi", NULL, OP_ZERO},
    {"mad.", NULL, OP_MAD},
    {"fma.", NULL, OP_FMA},
    {"div.", NULL, OP_DIV},
    {"rem.", NULL, OP_REM},
    {"min.", NULL, OP_MIN},
    {"max.", NULL, OP_MAX},
    {"and.", NULL, OP_AND},
    {"or.", NULL, OP_OR},
    {"xor.", NULL, OP_XOR},
    {"not.", NULL, OP_NOT},
    {"neg.", NULL, OP_NEG},
    {"abs.", NULL, OP_ABS},
    {"shl.", NULL, OP_SHL},
    {"shr.", NULL, OP_SHR},
    {"shf.l", NULL, OP_FUNNEL_LEFT},
    {"shf.r", NULL, OP_FUNNEL_RIGHT},
    {"prmt", NULL, OP_PERMUTE},
    {"bfe", NULL, OP_EXTRACT},
    {"bfi", NULL, OP_INSERT},
    {"lop3", NULL, OP_LOP3},
    {"shfl", NULL, OP_MOV},
    {"redux", NULL, OP_MOV},
    {"vote", "ballot", OP_BALLOT},
    {"vote", NULL, OP_MOV},
    {"clz", NULL, OP_LEADING_ZEROS},
    {"popc", NULL, OP_COUNT_ONES},
    {"sqrt", NULL, OP_SQRT},
    {"bra", NULL, OP_BRANCH},
    {"ret", NULL, OP_RETURN},
    {"exit", NULL, OP_RETURN},
    {"cp.async", NULL, OP_NOTHING},
    {"red.", NULL, OP_NOTHING},
    {"bar", NULL, OP_NOTHING},
    {"fence", NULL, OP_NOTHING},
    {"membar", NULL, OP_NOTHING},
    {"griddepcontrol", NULL, OP_NOTHING},
    {"wgmma", NULL, OP_NOTHING},
    {"prefetch", NULL, OP_NOTHING},
    {"discard", NULL, OP_NOTHING},
};

static enum operation operation_of(struct slice opcode)
{
    for (size_t i = 0; i < COUNT_OF(operations); i++)
        if (slice_starts(opcode, slice_of(operations[i].prefix)) &&
            (!operations[i].contains || has(opcode, operations[i].contains)))
            return operations[i].operation;
    return OP_ZERO;
}

/* ".u32" is a type, ".x4" is none. */
static bool read_type(struct slice part, struct type *type)
{
    if (slice_equal(part, SLICE("pred"))) {
        *type = (struct type){'p', 1};
        return true;
    }
    if (part.size < 2 || part.size > 4 || !strchr("usbf", part.data[0]))
        return false;
    u64 bits;
    if (!read_number((struct slice){part.data + 1, part.size - 1}, &bits) || bits > 64)
        return false;
    *type = (struct type){part.data[0], (u8)bits};
    return true;
}

static void read_comparison(struct step *step, struct slice part)
{
    static const struct {
        const char *name;
        enum comparison comparison;
        bool unordered;
    } names[] = {
        {"eq", CMP_EQ, false}, {"ne", CMP_NE, false}, {"lt", CMP_LT, false}, {"le", CMP_LE, false},
        {"gt", CMP_GT, false}, {"ge", CMP_GE, false}, {"lo", CMP_LT, false}, {"ls", CMP_LE, false},
        {"hi", CMP_GT, false}, {"hs", CMP_GE, false}, {"equ", CMP_EQ, true}, {"neu", CMP_NE, true},
        {"ltu", CMP_LT, true}, {"leu", CMP_LE, true}, {"gtu", CMP_GT, true}, {"geu", CMP_GE, true},
        {"nan", CMP_NE, true},
    };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (slice_equal(part, slice_of(names[i].name))) {
            step->comparison = names[i].comparison;
            step->unordered = names[i].unordered;
        }
    if (slice_equal(part, SLICE("and")) || slice_equal(part, SLICE("or")) ||
        slice_equal(part, SLICE("xor")))
        step->joined = part.data[0];
}

/* What stands behind the dots. Of two types the first is the destination's. */
static void read_parts(struct step *step)
{
    struct slice rest = step->opcode;
    u32 types = 0;
    cut(&rest, '.');
    while (rest.size) {
        const struct slice part = cut(&rest, '.');
        struct type type;
        if (read_type(part, &type))
            *(types++ == 0 ? &step->type : &step->from_type) = type;
        else if (slice_equal(part, SLICE("wide")))
            step->wide = true;
        else if (slice_starts(part, SLICE("shared")))
            step->space = SPACE_SHARED;
        else if (slice_equal(part, SLICE("global")))
            step->space = SPACE_GLOBAL;
        else if (slice_equal(part, SLICE("local")))
            step->space = SPACE_LOCAL;
        else if (step->operation == OP_COMPARE)
            read_comparison(step, part);
    }
}

static void add_step(struct trace *t, struct step step)
{
    if (t->count == t->room) {
        t->room = t->room ? 2 * t->room : 1024;
        t->steps = memory_resize(t->steps, t->room * sizeof *t->steps);
    }
    t->steps[t->count++] = step;
}

static void read_instruction(struct trace *t, struct slice text)
{
    struct step step = {0};
    if (text.data[0] == '@') {
        struct slice rest = {text.data + 1, text.size - 1};
        struct slice guard = cut(&rest,
                                 rest.size && memchr(rest.data, '\t', rest.size) ? '\t' : ' ');
        if (memchr(guard.data, ' ', guard.size)) { /* "@%p1 bra \t" */
            rest = (struct slice){text.data + 1, text.size - 1};
            guard = cut(&rest, ' ');
        }
        step.guarded = true;
        step.negated = guard.data[0] == '!';
        guard.data += step.negated, guard.size -= step.negated;
        step.guard = slot_of(t, guard);
        text = trim(rest);
    }
    size_t word = 0;
    while (word < text.size && !is_blank(text.data[word]))
        word++;
    step.opcode = (struct slice){text.data, word};
    struct slice rest = trim((struct slice){text.data + word, text.size - word});
    step.operation = operation_of(step.opcode);
    step.type = (struct type){'b', 32};
    read_parts(&step);
    if (step.operation == OP_BRANCH) {
        step.label = rest;
    } else if (step.operation != OP_RETURN && step.operation != OP_NOTHING) {
        const bool stores = step.operation == OP_STORE;
        if (!stores)
            add_all(t, &step, cut(&rest, ','), true);
        while (rest.size)
            add_all(t, &step, cut(&rest, ','), false);
    }
    add_step(t, step);
}

/* ".shared .align 16 .b8 name[400]": gives the array its place. name[]: dynamic shared memory. */
static void read_array(struct trace *t, struct slice text, u64 *used)
{
    struct slice rest = text, word = {0};
    u64 align = 16, bytes = 0;
    while (rest.size) {
        const bool aligns = slice_equal(word, SLICE(".align"));
        word = cut(&rest, ' ');
        if (aligns)
            read_number(word, &align);
    }
    const char *open = word.size ? memchr(word.data, '[', word.size) : NULL;
    if (!open)
        return;
    const struct slice name = {word.data, (size_t)(open - word.data)};
    read_number((struct slice){open + 1, word.size - name.size - 2}, &bytes);
    align = align ? align : 1;
    *used = (*used + align - 1) / align * align;
    t->arrays = memory_resize(t->arrays, (t->array_count + 1) * sizeof *t->arrays);
    t->arrays[t->array_count++] = (struct array){slot_of(t, name), bytes ? *used : DYNAMIC_AT};
    *used += bytes;
}

static void read_parameter(struct trace *t, struct slice text)
{
    size_t start = text.size;
    while (start > 0 && !is_blank(text.data[start - 1]))
        start--;
    struct slice name = {text.data + start, text.size - start};
    if (name.size && name.data[name.size - 1] == ',')
        name.size--;
    t->parameters = memory_resize(t->parameters, (t->parameter_count + 1) * sizeof(u32));
    t->parameters[t->parameter_count++] = slot_of(t, name);
}

/* A line without its comment. Several instructions may stand on it. */
static void read_text(struct trace *t, struct slice line)
{
    line = trim(line);
    while (line.size) {
        const char c = line.data[0];
        if (c == '{' || c == '}') { /* of a block, not of operands */
            line = trim((struct slice){line.data + 1, line.size - 1});
            continue;
        }
        const char *colon = memchr(line.data, ':', line.size);
        if (c == '$' && colon) {
            t->labels = memory_resize(t->labels, (t->label_count + 1) * sizeof *t->labels);
            t->labels[t->label_count++] = (struct label){{line.data, (size_t)(colon - line.data)},
                                                         (u32)t->count};
            line = trim((struct slice){colon + 1, line.size - (size_t)(colon + 1 - line.data)});
            continue;
        }
        if (slice_starts(line, SLICE(".param"))) {
            read_parameter(t, line);
            return;
        }
        const struct slice text = cut(&line, ';');
        line = trim(line);
        if (slice_starts(text, SLICE(".shared")) || slice_starts(text, SLICE(".extern .shared")))
            read_array(t, text, &t->shared_static);
        else if (slice_starts(text, SLICE(".local")))
            read_array(t, text, &t->local_bytes);
        else if (text.size && (text.data[0] == '@' || (text.data[0] >= 'a' && text.data[0] <= 'z')))
            read_instruction(t, text);
    }
}

static void read_lines(struct trace *t)
{
    for (char *at = t->text; *at;) {
        size_t size = strcspn(at, "\n");
        struct slice line = {at, size};
        const char *comment = memmem(at, size, "//", 2);
        if (comment)
            line.size = (size_t)(comment - at);
        read_text(t, line);
        at += size + (at[size] != 0);
    }
}

static void find_costs(struct trace *t, u32 arch)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->steps[i].opcode.size)
            cycles_of_instruction(&t->steps[i].cost, t->steps[i].opcode, arch);
}

static int find_targets(struct trace *t, struct error *error)
{
    for (size_t i = 0; i < t->count; i++) {
        struct step *step = &t->steps[i];
        if (step->operation != OP_BRANCH)
            continue;
        size_t at = 0;
        while (at < t->label_count && !slice_equal(t->labels[at].name, step->label))
            at++;
        if (at == t->label_count)
            return error_set(error, ERROR_DEVICE, "PTX: a branch to %.*s, which is no label",
                             (int)step->label.size, step->label.data);
        step->target = t->labels[at].step;
    }
    return 0;
}

int trace_open(struct trace **trace, struct slice ptx, u32 arch, struct error *error)
{
    struct trace *t = memory_alloc(sizeof *t);
    t->slots = 1; /* slot 0 is zero */
    t->text = memory_copy_text(ptx);
    t->tid = slot_of(t, SLICE("%tid.x"));
    t->ctaid = slot_of(t, SLICE("%ctaid.x"));
    t->ntid = slot_of(t, SLICE("%ntid.x"));
    t->nctaid = slot_of(t, SLICE("%nctaid.x"));
    read_lines(t);
    add_step(t, (struct step){.operation = OP_RETURN});
    if (find_targets(t, error) < 0) {
        trace_close(t);
        return -1;
    }
    find_costs(t, arch);
    t->values = memory_alloc(t->slots * sizeof *t->values);
    t->runs = memory_alloc(t->count * sizeof *t->runs);
    t->shared = memory_alloc(WINDOW_BYTES);
    t->local = memory_alloc(WINDOW_BYTES);
    *trace = t;
    return 0;
}

void trace_close(struct trace *t)
{
    if (!t)
        return;
    memory_free(t->text);
    memory_free(t->steps);
    memory_free(t->names);
    memory_free(t->labels);
    memory_free(t->arrays);
    memory_free(t->parameters);
    memory_free(t->values);
    memory_free(t->runs);
    memory_free(t->shared);
    memory_free(t->local);
    memory_free(t);
}

/* ---- values */

static u64 cut_to(u64 value, u32 bits)
{
    return bits >= 64 ? value : value & (((u64)1 << bits) - 1);
}

static i64 signed_of(u64 value, u32 bits)
{
    return bits >= 64 ? (i64)value : (i64)(value << (64 - bits)) >> (64 - bits);
}

static double float_of(u64 value, u32 bits)
{
    float narrow;
    double wide;
    const u32 word = (u32)value;
    if (bits == 64) {
        memcpy(&wide, &value, sizeof wide);
        return wide;
    }
    memcpy(&narrow, &word, sizeof narrow);
    return bits == 32 ? (double)narrow : 0; /* halves are not looked at */
}

static u64 bits_of(double value, u32 bits)
{
    u64 wide = 0;
    u32 word;
    const float narrow = (float)value;
    if (bits == 64) {
        memcpy(&wide, &value, sizeof wide);
        return wide;
    }
    memcpy(&word, &narrow, sizeof word);
    return bits == 32 ? word : 0;
}

static double float_arithmetic(enum operation operation, double a, double b, double c)
{
    switch (operation) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_FMA: return a * b + c;
    case OP_DIV: return a / b;
    case OP_MIN: return a < b ? a : b;
    case OP_MAX: return a > b ? a : b;
    case OP_NEG: return -a;
    case OP_ABS: return fabs(a);
    case OP_SQRT: return sqrt(a);
    default: return 0;
    }
}

static bool compare(const struct step *s, u64 a, u64 b)
{
    int order;
    if (s->type.class == 'f') {
        const double x = float_of(a, s->type.bits), y = float_of(b, s->type.bits);
        if (isnan(x) || isnan(y))
            return s->unordered;
        order = (x > y) - (x < y);
    } else if (s->type.class == 's') {
        const i64 x = signed_of(a, s->type.bits), y = signed_of(b, s->type.bits);
        order = (x > y) - (x < y);
    } else {
        a = cut_to(a, s->type.bits), b = cut_to(b, s->type.bits);
        order = (a > b) - (a < b);
    }
    switch (s->comparison) {
    case CMP_EQ: return order == 0;
    case CMP_NE: return order != 0;
    case CMP_LT: return order < 0;
    case CMP_LE: return order <= 0;
    case CMP_GT: return order > 0;
    default: return order >= 0;
    }
}

static u64 joined(char how, u64 a, u64 b)
{
    return how == 'a' ? a & b : how == 'o' ? a | b : how == 'x' ? a ^ b : a;
}

static u64 convert(const struct step *s, u64 a)
{
    const struct type to = s->type, from = s->from_type.bits ? s->from_type : s->type;
    if (from.class == 'f' && to.class == 'f')
        return has(s->opcode, ".rmi") || has(s->opcode, ".rni")
                   ? bits_of(floor(float_of(a, from.bits)), to.bits)
                   : bits_of(float_of(a, from.bits), to.bits);
    if (from.class == 'f') {
        const double value = has(s->opcode, ".rni") ? rint(float_of(a, from.bits))
                                                    : trunc(float_of(a, from.bits));
        if (!(fabs(value) < 0x1p62))
            return 0;
        return cut_to((u64)(i64)value, to.bits);
    }
    const u64 value = from.class == 's' ? (u64)signed_of(a, from.bits) : cut_to(a, from.bits);
    if (to.class == 'f')
        return bits_of(from.class == 's' ? (double)(i64)value : (double)value, to.bits);
    return cut_to(value, to.bits);
}

static u64 permute(u64 a, u64 b, u64 select)
{
    const u64 bytes = (a & 0xffffffff) | b << 32;
    u64 result = 0;
    for (u32 i = 0; i < 4; i++) {
        const u32 nibble = select >> 4 * i & 15;
        u64 byte = bytes >> 8 * (nibble & 7) & 255;
        if (nibble & 8)
            byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}

static u64 lop3(u64 a, u64 b, u64 c, u64 table)
{
    u64 result = 0;
    for (u32 i = 0; i < 8; i++)
        if (table >> i & 1)
            result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return cut_to(result, 32);
}

static u64 shift_right(const struct step *s, u64 a, u64 by)
{
    const u32 bits = s->type.bits;
    if (s->type.class == 's')
        return (u64)(signed_of(a, bits) >> (by < bits ? by : bits - 1));
    return by < bits ? cut_to(a, bits) >> by : 0;
}

static u64 divide(const struct step *s, u64 a, u64 b)
{
    const u32 bits = s->type.bits;
    const bool rest = s->operation == OP_REM;
    if (cut_to(b, bits) == 0)
        return 0;
    if (s->type.class == 's') {
        const i64 x = signed_of(a, bits), y = signed_of(b, bits);
        return y == -1 ? (rest ? 0 : 0 - (u64)x) : (u64)(rest ? x % y : x / y);
    }
    const u64 x = cut_to(a, bits), y = cut_to(b, bits);
    return rest ? x % y : x / y;
}

static u64 multiply_high(const struct step *s, u64 a, u64 b)
{
    const u32 bits = s->type.bits;
    if (s->type.class == 's')
        return (u64)(((__int128)signed_of(a, bits) * signed_of(b, bits)) >> bits);
    return (u64)(((unsigned __int128)cut_to(a, bits) * cut_to(b, bits)) >> bits);
}

/* A factor as the multiplication sees it: extended to 64 bits. */
static u64 factor(const struct step *s, u64 a)
{
    return s->type.class == 's' ? (u64)signed_of(a, s->type.bits) : cut_to(a, s->type.bits);
}

static u64 smaller(const struct step *s, u64 a, u64 b, bool larger)
{
    const bool less = s->type.class == 's' ? signed_of(a, s->type.bits) < signed_of(b, s->type.bits)
                                           : cut_to(a, s->type.bits) < cut_to(b, s->type.bits);
    return less != larger ? a : b;
}

static u64 insert(const struct step *s, u64 a, u64 b, u64 at, u64 length)
{
    if (at >= s->type.bits || length == 0)
        return b;
    const u64 mask = cut_to(cut_to(UINT64_MAX, (u32)(length < 64 ? length : 64)) << at,
                            s->type.bits);
    return (b & ~mask) | (a << at & mask);
}

static u64 integer_arithmetic(const struct step *s, u64 a, u64 b, u64 c, u64 d)
{
    const u32 bits = s->type.bits;
    switch (s->operation) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return factor(s, a) * factor(s, b);
    case OP_MAD:
    case OP_FMA: return factor(s, a) * factor(s, b) + c;
    case OP_MULTIPLY_HIGH: return multiply_high(s, a, b);
    case OP_DIV:
    case OP_REM: return divide(s, a, b);
    case OP_MIN: return smaller(s, a, b, false);
    case OP_MAX: return smaller(s, a, b, true);
    case OP_AND: return a & b;
    case OP_OR: return a | b;
    case OP_XOR: return a ^ b;
    case OP_NOT: return ~a;
    case OP_NEG: return 0 - a;
    case OP_ABS: return signed_of(a, bits) < 0 ? 0 - a : a;
    case OP_SHL: return b < bits ? a << b : 0;
    case OP_SHR: return shift_right(s, a, b);
    case OP_FUNNEL_LEFT: return (cut_to(b, 32) << 32 | cut_to(a, 32)) << (c & 31) >> 32;
    case OP_FUNNEL_RIGHT: return (cut_to(b, 32) << 32 | cut_to(a, 32)) >> (c & 31);
    case OP_PERMUTE: return permute(a, b, c);
    case OP_EXTRACT: return b < bits ? cut_to(cut_to(a, bits) >> b, (u32)(c < bits ? c : bits)) : 0;
    case OP_INSERT: return insert(s, a, b, c, d);
    case OP_LOP3: return lop3(a, b, c, d);
    case OP_SELECT: return c & 1 ? a : b;
    case OP_COMPARE: return joined(s->joined, compare(s, a, b), c & 1);
    case OP_CONVERT: return convert(s, a);
    case OP_TO_SHARED: return a - SHARED_WINDOW;
    case OP_FROM_SHARED: return a + SHARED_WINDOW;
    case OP_FROM_LOCAL: return a + LOCAL_WINDOW;
    case OP_BALLOT: return a & 1 ? UINT32_MAX : 0;
    case OP_LEADING_ZEROS:
        return cut_to(a, bits) ? (u64)__builtin_clzll(cut_to(a, bits)) - (64 - bits) : bits;
    case OP_COUNT_ONES: return (u64)__builtin_popcountll(cut_to(a, bits));
    default: return a; /* moves */
    }
}

/* ---- memory */

static u8 *window_at(u8 *window, u64 offset, u32 bytes)
{
    return offset < WINDOW_BYTES - bytes ? window + offset : NULL;
}

/* Where an address of shared or own memory lies; NULL: it is global, or nowhere. */
static u8 *own_memory(struct trace *t, const struct step *s, u64 address, u32 bytes)
{
    if (s->space == SPACE_SHARED)
        return window_at(t->shared, address & ~SHARED_WINDOW, bytes);
    if (s->space == SPACE_LOCAL)
        return window_at(t->local, address & ~LOCAL_WINDOW, bytes);
    if (s->space == SPACE_GENERIC && address & SHARED_WINDOW)
        return window_at(t->shared, address & ~SHARED_WINDOW, bytes);
    if (s->space == SPACE_GENERIC && address & LOCAL_WINDOW)
        return window_at(t->local, address & ~LOCAL_WINDOW, bytes);
    return NULL;
}

static u64 load(struct trace *t, const struct trace_launch *launch, const struct step *s,
                u64 address)
{
    const u32 bytes = s->type.bits / 8 ? s->type.bits / 8 : 1;
    const bool global = s->space == SPACE_GLOBAL ||
                        (s->space == SPACE_GENERIC && !(address & (SHARED_WINDOW | LOCAL_WINDOW)));
    u64 value = 0;
    if (global) {
        if (!launch->read || !launch->read(launch->user, address, &value, bytes))
            value = 0;
    } else {
        const u8 *from = own_memory(t, s, address, bytes);
        if (from)
            memcpy(&value, from, bytes);
    }
    return s->type.class == 's' ? (u64)signed_of(value, s->type.bits) : value;
}

static void load_all(struct trace *t, const struct trace_launch *launch, const struct step *s,
                     u64 address)
{
    for (u32 i = 0; i < s->to_count; i++)
        t->values[s->to[i]] = load(t, launch, s, address + i * (s->type.bits / 8));
}

static void store_all(struct trace *t, const struct step *s, u64 address)
{
    const u32 bytes = s->type.bits / 8;
    for (u32 i = 1; i < s->from_count; i++) {
        const u64 value = t->values[s->from[i].slot] + s->from[i].add;
        u8 *to = own_memory(t, s, address + (i - 1) * bytes, bytes);
        if (to)
            memcpy(to, &value, bytes);
    }
}

/* ---- running */

static u32 result_bits(const struct step *s)
{
    if (s->operation == OP_COMPARE)
        return 1;
    return s->wide ? 2u * s->type.bits : s->type.bits;
}

/* mov.b32 {lo, hi}, r and mov.b32 r, {lo, hi}: packing and unpacking. */
static void move_parts(struct trace *t, const struct step *s)
{
    const u32 parts = s->to_count > 1 ? s->to_count : s->from_count;
    const u32 bits = s->type.bits / parts;
    u64 value = 0;
    if (s->to_count == 1) {
        for (u32 i = 0; i < s->from_count; i++)
            value |= cut_to(t->values[s->from[i].slot] + s->from[i].add, bits) << i * bits;
        t->values[s->to[0]] = value;
        return;
    }
    value = t->values[s->from[0].slot] + s->from[0].add;
    for (u32 i = 0; i < s->to_count; i++)
        t->values[s->to[i]] = cut_to(value >> i * bits, bits);
}

static void compute(struct trace *t, const struct step *s)
{
    u64 from[VALUES_MOST];
    for (u32 i = 0; i < VALUES_MOST; i++)
        from[i] = t->values[s->from[i].slot] + s->from[i].add;
    const bool moves = s->operation == OP_MOV || s->operation == OP_SELECT ||
                       s->operation == OP_COMPARE || s->operation == OP_CONVERT;
    u64 result;
    if (s->type.class == 'f' && !moves)
        result = bits_of(float_arithmetic(s->operation, float_of(from[0], s->type.bits),
                                          float_of(from[1], s->type.bits),
                                          float_of(from[2], s->type.bits)),
                         s->type.bits);
    else
        result = cut_to(integer_arithmetic(s, from[0], from[1], from[2], from[3]), result_bits(s));
    t->values[s->to[0]] = result;
}

static void execute(struct trace *t, const struct trace_launch *launch, const struct step *s)
{
    switch (s->operation) {
    case OP_NOTHING: return;
    case OP_ZERO:
        for (u32 i = 0; i < s->to_count; i++)
            t->values[s->to[i]] = 0;
        return;
    case OP_LOAD: load_all(t, launch, s, t->values[s->from[0].slot] + s->from[0].add); return;
    case OP_LOAD_FLAG: t->values[s->to[0]] = cut_to(UINT64_MAX, s->type.bits); return;
    case OP_STORE: store_all(t, s, t->values[s->from[0].slot] + s->from[0].add); return;
    case OP_MOV:
        if (slice_starts(s->opcode, SLICE("mov")) && (s->to_count > 1 || s->from_count > 1)) {
            move_parts(t, s);
            return;
        }
        compute(t, s);
        return;
    default: compute(t, s); return;
    }
}

/* *instructions: that were issued. */
static int run_warp(struct trace *t, const struct trace_launch *launch, u32 cta, u32 warp,
                    u64 *instructions, struct error *error)
{
    memset(t->values, 0, t->slots * sizeof *t->values);
    for (size_t i = 0; i < t->array_count; i++)
        t->values[t->arrays[i].slot] = t->arrays[i].value;
    for (u32 i = 0; i < t->parameter_count && i < launch->argument_count; i++)
        t->values[t->parameters[i]] = launch->arguments[i];
    t->values[t->tid] = 32 * warp;
    t->values[t->ctaid] = cta;
    t->values[t->ntid] = launch->block;
    t->values[t->nctaid] = launch->grid;
    u32 done = 0;
    for (size_t at = 0;; at++) {
        const struct step *s = &t->steps[at];
        t->runs[at]++;
        *instructions += s->cost.instructions;
        if (++done > STEPS_MOST)
            return error_set(error, ERROR_DEVICE,
                             "following CTA %u of a kernel: no end after %d instructions", cta,
                             STEPS_MOST);
        if (s->guarded && (t->values[s->guard] & 1) == s->negated)
            continue;
        if (s->operation == OP_RETURN)
            return 0;
        if (s->operation == OP_BRANCH)
            at = (size_t)s->target - 1;
        else
            execute(t, launch, s);
    }
}

int trace_cta(struct trace *t, const struct trace_launch *launch, u32 cta,
              struct trace_counts *counts, struct error *error)
{
    memset(t->runs, 0, t->count * sizeof *t->runs);
    memset(t->shared, 0, WINDOW_BYTES);
    for (u32 warp = 0; warp < launch->block / 32; warp++) {
        u64 instructions = 0;
        if (run_warp(t, launch, cta, warp, &instructions, error) < 0)
            return -1;
        counts->longest = instructions > counts->longest ? instructions : counts->longest;
    }
    counts->warps += launch->block / 32;
    for (size_t i = 0; i < t->count; i++) {
        const struct loop_cycles *cost = &t->steps[i].cost;
        counts->instructions += t->runs[i] * cost->instructions;
        counts->tensor_instructions += t->runs[i] * cost->tensor_instructions;
        for (u32 pipe = 0; pipe < PIPE_COUNT; pipe++)
            counts->cycles[pipe] += t->runs[i] * cost->cycles[pipe];
    }
    return 0;
}
