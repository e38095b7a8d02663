/* test_kernels.c - other texts of the same kernel give the same bits.
 *
 * A model is opened and answers a few requests. At some launches of each kernel that a round needs,
 * the whole memory of the device is kept (watch.h), the kernel runs, and what it left is kept too.
 * Then variants of the kernel run from the same memory: other tunings, and plans for other numbers
 * of multiprocessors. All memory must be the same afterwards, to the bit, stray writes included,
 * and the laws of the variant's work maps must hold. A variant counts if its text, without
 * comments, is new. Models are drawn (geometry.h) until every kernel has as many sources as asked
 * for, or has given none for a while: what its tunings and shapes give is then exhausted.
 *
 * A variant that another kernel would have to follow (draft_top's groups are draft_select's) cannot
 * be put in its place. Such come in as the plan of every other geometry, which is drawn at random;
 * the whole engine with it must give what the engine with its default plan gives: proposals, logits
 * and tokens.
 *
 * Without arguments: a short run, as a test (longer with ELPIS_TEST_FULL). `--help` tells the rest.
 * ELPIS_TEST_DEVICE and ELPIS_TEST_AS run it elsewhere than on the host device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <getopt.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/engine_private.h"
#include "fuzz/geometry.h"
#include "fuzz/watch.h"
#include "jit/jit_private.h"

enum {
    FAMILIES_MOST = 64,
    FRUITLESS_MOST = 40,  /* draws in a row that give no new text: this shape has no more */
    STALE_MOST = 16,      /* geometries in a row without a new source: a kernel has no more */
    PARAMETERS_MOST = 16, /* tuning parameters of a schedule */
    TOKENS = 12,          /* of a prompt, of a reply */
    THREADS_MOST = 64,
    DIFFERENCES_SHOWN = 20,
};

struct options {
    u32 sources, geometries, a_shape;
    struct jit_parameter pin; /* a tuning that all sources have; name NULL: none */
    u64 seed;
    const char *log, *only; /* only: names of schedules with commas between them; NULL = all */
};

/* A tuning parameter and the values it had in the sources that ran. */
struct parameter {
    char name[32], values[16][32];
    u32 count;
};

/* A schedule. */
struct family {
    char name[64];
    u64 *hashes; /* of the sources that were drawn */
    u32 hash_count;
    u32 sources, shapes, launches, differences, broken_laws, unlike; /* unlike: other exports */
    u32 stale;  /* geometries with it since the last new source */
    bool here;  /* launched by rounds of this geometry */
    bool named; /* by --only */
    struct parameter parameters[PARAMETERS_MOST];
    u32 parameter_count;
};

struct variant {
    struct scripts_rendering rendering;
    struct scripts_target target;
    i64 seed;
    u64 hash;
    struct buffer image;
    struct device_module *module;
    struct device_function *function;
    int status;
    struct error error;
    bool ran, failed;
};

/* A kernel of the engine that is open. */
struct subject {
    const struct jit_kernel *kernel;
    struct family *family;
    struct jit_parameter parameters[24];
    struct variant *variants;
    u32 variant_count, launches; /* of the request that runs */
    bool prepared;
};

static struct {
    struct options options;
    struct family families[FAMILIES_MOST];
    u32 family_count, first_geometry, differences;
    FILE *log;
    lua_State *lua;
    char folder[64];
    u64 random;

    /* of the geometry that is open */
    struct engine *engine;
    struct subject *subjects;
    u32 subject_count;
    bool armed, compares; /* compares: kernels run as their variants too */
    bool samplers_only;
    struct digest_state *trace;
    u8 *before, *after, *now;
} fuzz;

static void stop(const char *what)
{
    fprintf(stderr, "fuzz: %s\n", what);
    exit(1);
}

static void refuse(const char *option, const char *expected, const char *found)
{
    fprintf(stderr, "fuzz: --%s: expected %s, found \"%s\"\n", option, expected, found);
    exit(2);
}

static void must(int status, const struct error *error)
{
    if (status)
        stop(error->text);
}

static struct device_options device_options(void)
{
    const char *device = getenv("ELPIS_TEST_DEVICE"), *as = getenv("ELPIS_TEST_AS");
    return (struct device_options){.device = device ? device : "host", .as = as && *as ? as : NULL};
}

/* ---- schedules and what is known of them */

static struct family *family_of(const char *name)
{
    for (u32 i = 0; i < fuzz.family_count; i++)
        if (strcmp(fuzz.families[i].name, name) == 0)
            return &fuzz.families[i];
    if (fuzz.family_count == FAMILIES_MOST)
        stop("more schedules than expected");
    struct family *family = &fuzz.families[fuzz.family_count++];
    snprintf(family->name, sizeof family->name, "%s", name);
    return family;
}

static bool is_known(const struct family *family, u64 hash)
{
    for (u32 i = 0; i < family->hash_count; i++)
        if (family->hashes[i] == hash)
            return true;
    return false;
}

static void know(struct family *family, u64 hash)
{
    family->hashes = memory_resize(family->hashes,
                                   (family->hash_count + 1) * sizeof *family->hashes);
    family->hashes[family->hash_count++] = hash;
}

static void note_value(struct family *family, const char *name, const char *value)
{
    struct parameter *p = family->parameters;
    while (p < family->parameters + family->parameter_count && strcmp(p->name, name) != 0)
        p++;
    if (p == family->parameters + PARAMETERS_MOST)
        return;
    if (p == family->parameters + family->parameter_count) {
        family->parameter_count++;
        snprintf(p->name, sizeof p->name, "%s", name);
    }
    for (u32 i = 0; i < p->count; i++)
        if (strcmp(p->values[i], value) == 0)
            return;
    if (p->count < COUNT_OF(p->values))
        snprintf(p->values[p->count++], sizeof p->values[0], "%s", value);
}

/* plan: "name on target: parameters; numeric; tuning", each " name=value". */
static void note_tuning(struct family *family, const char *plan)
{
    const char *at = strrchr(plan, ';');
    char name[32], value[32];
    int used;
    for (at = at ? at + 1 : ""; sscanf(at, " %31[^= ]=%31s%n", name, value, &used) == 2; at += used)
        note_value(family, name, value);
}

/* A line of the log; what is written is not lost when the run is interrupted. */
static void __attribute__((format(printf, 1, 2))) note(const char *format, ...)
{
    va_list arguments;
    if (!fuzz.log)
        return;
    va_start(arguments, format);
    vfprintf(fuzz.log, format, arguments);
    va_end(arguments);
    fflush(fuzz.log);
}

static void count_source(struct family *family, u64 hash, const char *plan)
{
    family->sources++;
    family->stale = 0;
    note_tuning(family, plan);
    note("source %s %016llx %s\n", family->name, (unsigned long long)hash, plan);
}

/* ---- the log, from which a run goes on */

static void read_log_line(char *line)
{
    char name[64];
    unsigned long long hash;
    int used = 0;
    u32 geometry;
    if (sscanf(line, "geometry %u", &geometry) == 1) {
        fuzz.first_geometry = geometry + 1;
    } else if (sscanf(line, "differs %63s", name) == 1) {
        fuzz.differences++;
        if (strcmp(name, "geometry") != 0)
            family_of(name)->differences++;
    } else if (sscanf(line, "law %63s", name) == 1) {
        family_of(name)->broken_laws++;
    } else if (sscanf(line, "source %63s %llx %n", name, &hash, &used) == 2) {
        struct family *family = family_of(name);
        line[strcspn(line, "\n")] = 0;
        if (is_known(family, hash))
            return;
        know(family, hash);
        family->sources++;
        note_tuning(family, line + used);
    }
}

/* The first line: sources of one device, plan and seed. */
static void log_title(char title[200])
{
    const char *device = getenv("ELPIS_TEST_DEVICE"), *as = getenv("ELPIS_TEST_AS");
    snprintf(title, 200, "seed %llu device %s as %s\n", (unsigned long long)fuzz.options.seed,
             device ? device : "host", as && *as ? as : "itself");
}

static void open_log(const char *path)
{
    char line[4096], title[200];
    FILE *old = fopen(path, "r");
    log_title(title);
    const bool begun = old && fgets(line, sizeof line, old);
    if (begun && strcmp(line, title) != 0)
        stop("the log is of another seed or device, or no log: name another file");
    while (begun && fgets(line, sizeof line, old))
        read_log_line(line);
    if (old)
        fclose(old);
    fuzz.log = fopen(path, "a");
    if (!fuzz.log)
        stop("the log cannot be written");
    if (!begun)
        note("%s", title);
}

/* ---- what Lua is asked (schedules.lua) */

static void open_scripts(void)
{
    fuzz.lua = luaL_newstate();
    luaL_openlibs(fuzz.lua);
    if (luaL_dofile(fuzz.lua, "tests/fuzz/schedules.lua"))
        stop(lua_tostring(fuzz.lua, -1)); /* the root of the repository is where it is */
}

static void set_number(const char *name, lua_Integer value)
{
    lua_pushinteger(fuzz.lua, value);
    lua_setfield(fuzz.lua, -2, name);
}

static void set_text(const char *name, const char *value)
{
    lua_pushstring(fuzz.lua, value);
    lua_setfield(fuzz.lua, -2, name);
}

static void push_target(const struct scripts_target *target)
{
    lua_newtable(fuzz.lua);
    set_text("name", target->name);
    set_number("arch", target->arch);
    set_number("sms", target->sms);
    set_number("shared_per_sm", target->shared_per_sm);
    set_number("shared_per_block", target->shared_per_block);
    set_number("registers_per_sm", target->registers_per_sm);
}

/* True when all laws of the variant's maps hold; else says which does not. */
static bool laws_hold(const struct subject *subject, const struct variant *variant)
{
    lua_getfield(fuzz.lua, 1, "broken_law");
    lua_newtable(fuzz.lua);
    set_text("schedule", subject->family->name);
    set_number("seed", variant->seed);
    lua_newtable(fuzz.lua);
    for (const struct jit_parameter *p = subject->parameters; p->name; p++)
        if (p->text)
            set_text(p->name, p->text);
        else
            set_number(p->name, p->number);
    lua_setfield(fuzz.lua, -2, "parameters");
    push_target(&variant->target);
    lua_setfield(fuzz.lua, -2, "target");
    const bool called = lua_pcall(fuzz.lua, 1, 1, 0) == LUA_OK;
    const bool holds = called && lua_isnil(fuzz.lua, -1);
    if (!holds)
        printf("LAW %s: %s\n", (const char *)variant->rendering.plan.data,
               lua_tostring(fuzz.lua, -1));
    lua_pop(fuzz.lua, 1);
    return holds;
}

/* ---- drawing variants */

/* A digest of the text without comments, which name the numbers of a plan. */
static u64 hash_of(const struct buffer *source)
{
    struct buffer text = {0};
    const char *at = source->data;
    while (*at) {
        const char *end = at + 1;
        if (strncmp(at, "//", 2) == 0)
            end = at + strcspn(at, "\n");
        else if (strncmp(at, "/*", 2) == 0 && strstr(at + 2, "*/"))
            end = strstr(at + 2, "*/") + 2;
        else
            buffer_add(&text, at, 1);
        at = end;
    }
    const struct digest digest = digest_of(text.data, text.size);
    u64 hash;
    memcpy(&hash, digest.bytes, sizeof hash);
    buffer_free(&text);
    return hash;
}

static i64 export_of(const struct scripts_rendering *rendering, const char *name)
{
    for (size_t i = 0; i < rendering->export_count; i++)
        if (strcmp(rendering->exports[i].name, name) == 0)
            return rendering->exports[i].value;
    return -1;
}

/* Whether nothing around the kernel has to change with it. */
static bool may_stand_in(const struct scripts_rendering *variant,
                         const struct scripts_rendering *kernel)
{
    if (variant->arguments != kernel->arguments || variant->export_count != kernel->export_count)
        return false;
    for (size_t i = 0; i < kernel->export_count; i++)
        if (export_of(variant, kernel->exports[i].name) != kernel->exports[i].value)
            return false;
    return true;
}

/* The device's own number of multiprocessors, or another; a GPU runs at most its own at once. */
static u32 draw_sms(const struct scripts_target *target)
{
    if (fuzz_one_in(&fuzz.random, 3))
        return target->sms;
    return fuzz_between(&fuzz.random, 1, target->arch ? target->sms : 12);
}

/* False: the draw gave nothing new. */
static bool draw_variant(struct subject *subject, struct variant *variant)
{
    struct jit *jit = fuzz.engine->jit;
    struct error ignored;
    *variant = (struct variant){.target = jit->target,
                                .seed = (i64)(fuzz_next(&fuzz.random) >> 2 | 1)};
    variant->target.sms = draw_sms(&jit->target);
    struct jit_parameter parameters[COUNT_OF(subject->parameters) + 1];
    u32 count = 0;
    for (; subject->parameters[count].name; count++)
        parameters[count] = subject->parameters[count];
    parameters[count] = fuzz.options.pin;
    parameters[count + 1] = (struct jit_parameter){0};
    const struct scripts_request request = {.schedule = subject->family->name,
                                            .parameters = parameters,
                                            .target = &variant->target,
                                            .seed = variant->seed};
    if (scripts_render(jit->scripts, &request, &variant->rendering, &ignored))
        return false; /* no legal tuning with so many multiprocessors */
    variant->hash = hash_of(&variant->rendering.source);
    const bool fits = may_stand_in(&variant->rendering, &subject->kernel->rendering);
    subject->family->unlike += !fits;
    if (fits && !is_known(subject->family, variant->hash) &&
        variant->hash != hash_of(&subject->kernel->rendering.source))
        return true;
    scripts_rendering_free(&variant->rendering);
    return false;
}

static void draw_variants(struct subject *subject)
{
    struct family *family = subject->family;
    u32 wanted = fuzz.options.a_shape, fruitless = 0;
    if (family->hash_count >= fuzz.options.sources)
        return;
    if (wanted > fuzz.options.sources - family->hash_count)
        wanted = fuzz.options.sources - family->hash_count;
    subject->variants = memory_alloc(wanted * sizeof *subject->variants);
    while (subject->variant_count < wanted && fruitless < FRUITLESS_MOST) {
        struct variant *variant = &subject->variants[subject->variant_count];
        if (!draw_variant(subject, variant)) {
            fruitless++;
            continue;
        }
        fruitless = 0;
        know(family, variant->hash);
        subject->variant_count++;
    }
}

/* ---- compiling them */

struct compiling {
    struct subject *subject;
    pthread_mutex_t mutex;
    u32 next;
};

static void *compile_some(void *argument)
{
    struct compiling *compiling = argument;
    for (;;) {
        pthread_mutex_lock(&compiling->mutex);
        const u32 mine = compiling->next++;
        pthread_mutex_unlock(&compiling->mutex);
        if (mine >= compiling->subject->variant_count)
            return NULL;
        struct variant *variant = &compiling->subject->variants[mine];
        variant->status = device_compile(
            fuzz.engine->device, buffer_slice(&variant->rendering.source),
            compiling->subject->family->name, &variant->image, &variant->error);
    }
}

static void compile_variants(struct subject *subject)
{
    pthread_t threads[THREADS_MOST];
    struct compiling compiling = {.subject = subject};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    u32 count = cores > 0 && cores < THREADS_MOST ? (u32)cores : 1;
    pthread_mutex_init(&compiling.mutex, NULL);
    for (u32 i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, compile_some, &compiling))
            stop("no thread could be started");
    for (u32 i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&compiling.mutex);
}

static void load_variant(struct variant *variant, const char *name)
{
    struct device *device = fuzz.engine->device;
    struct scripts_rendering *r = &variant->rendering;
    if (variant->status == 0)
        variant->status = device_module_load(device, variant->image.data, variant->image.size, name,
                                             &variant->module, &variant->error) ||
                          device_function_get(device, variant->module, r->entry, &r->geometry,
                                              &variant->function, &variant->error);
    buffer_free(&variant->image);
}

static void fail_variant(struct subject *subject, struct variant *variant, const char *what)
{
    variant->failed = true;
    subject->family->differences++;
    note("differs %s %s: %s\n", subject->family->name, (const char *)variant->rendering.plan.data,
         what);
    if (++fuzz.differences <= DIFFERENCES_SHOWN)
        printf("DIFFERS %s (%u multiprocessors): %s\n", (const char *)variant->rendering.plan.data,
               variant->target.sms, what);
}

static void prepare(struct subject *subject)
{
    subject->prepared = subject->family->here = true;
    draw_variants(subject);
    if (subject->variant_count == 0)
        return;
    subject->family->shapes++;
    compile_variants(subject);
    for (u32 i = 0; i < subject->variant_count; i++) {
        struct variant *variant = &subject->variants[i];
        load_variant(variant, subject->family->name);
        if (variant->status)
            fail_variant(subject, variant, variant->error.text);
        if (!laws_hold(subject, variant)) {
            subject->family->broken_laws++;
            note("law %s %s\n", subject->family->name, (const char *)variant->rendering.plan.data);
        }
    }
}

static void release_subjects(void)
{
    for (u32 i = 0; i < fuzz.subject_count; i++) {
        struct subject *subject = &fuzz.subjects[i];
        for (u32 v = 0; v < subject->variant_count; v++) {
            if (subject->variants[v].module)
                device_module_unload(fuzz.engine->device, subject->variants[v].module);
            scripts_rendering_free(&subject->variants[v].rendering);
        }
        memory_free(subject->variants);
        for (struct jit_parameter *p = subject->parameters; p->name; p++) {
            memory_free((void *)(uintptr_t)p->name);
            memory_free((void *)(uintptr_t)p->text);
        }
    }
    memory_free(fuzz.subjects);
    fuzz.subjects = NULL;
    fuzz.subject_count = 0;
}

/* ---- running them */

static int compare_words(const void *a, const void *b)
{
    const u64 x = *(const u64 *)a, y = *(const u64 *)b;
    return (x > y) - (x < y);
}

/* sample_gather's list has its entries in any order, each row's among themselves; nobody sees it
 * (schedules/sample.lua). */
static void order_list(const struct subject *subject, const u64 *arguments, u8 *memory)
{
    enum { LIST = 4, CANDIDATES = 2048 };
    if (strcmp(subject->family->name, "sample_gather") != 0)
        return;
    const struct region *list = region_at(arguments[LIST]);
    for (size_t i = 0; i < watch.region_count && &watch.regions[i] != list; i++)
        memory += watch.regions[i].bytes;
    for (size_t at = 0; at + 8 * CANDIDATES <= list->bytes; at += 8 * CANDIDATES)
        qsort(memory + at, CANDIDATES, 8, compare_words);
}

/* Says where `now` is not `after`; NULL = nowhere. */
static const char *difference(char text[256])
{
    size_t at = 0;
    for (size_t i = 0; i < watch.region_count; at += watch.regions[i++].bytes) {
        const struct region *region = &watch.regions[i];
        if (memcmp(fuzz.now + at, fuzz.after + at, region->bytes) == 0)
            continue;
        size_t byte = 0;
        while (fuzz.now[at + byte] == fuzz.after[at + byte])
            byte++;
        snprintf(text, 256, "%s of %zu bytes, byte %zu: expected %02x, found %02x", region->label,
                 region->bytes, byte, fuzz.after[at + byte], fuzz.now[at + byte]);
        return text;
    }
    return NULL;
}

/* From the memory `before`, which is there; leaves it there. */
static void run_variant(struct subject *subject, struct variant *variant, const u64 *arguments,
                        u32 count)
{
    struct device *device = fuzz.engine->device;
    struct error error = {0};
    char text[256];
    const bool launched = __real_device_launch(device, NULL, variant->function, arguments, count,
                                               &error) == 0 &&
                          memory_read(device, fuzz.now, &error) == 0;
    if (!launched) {
        fail_variant(subject, variant, error.text);
        return;
    }
    must(memory_restore(device, fuzz.before, fuzz.now, &error), &error);
    order_list(subject, arguments, fuzz.now);
    const char *where = difference(text);
    if (where)
        fail_variant(subject, variant, where);
    variant->ran = true;
    subject->family->launches++;
}

/* The launch that the engine asked for, and its variants; leaves what the launch leaves. */
static int launch_all(struct subject *subject, struct device_function *function,
                      const u64 *arguments, u32 count, struct error *error)
{
    struct device *device = fuzz.engine->device;
    const size_t bytes = regions_size();
    fuzz.before = memory_alloc(bytes);
    fuzz.after = memory_alloc(bytes);
    fuzz.now = memory_alloc(bytes);
    u8 *left = memory_alloc(bytes);
    int status = memory_read(device, fuzz.before, error) ||
                 __real_device_launch(device, NULL, function, arguments, count, error) ||
                 memory_read(device, left, error) ||
                 memory_restore(device, fuzz.before, left, error);
    memcpy(fuzz.after, left, bytes);
    order_list(subject, arguments, fuzz.after);
    for (u32 i = 0; status == 0 && i < subject->variant_count; i++)
        if (!subject->variants[i].failed)
            run_variant(subject, &subject->variants[i], arguments, count);
    if (status == 0)
        status = memory_restore(device, left, fuzz.before, error);
    memory_free(fuzz.before);
    memory_free(fuzz.after);
    memory_free(fuzz.now);
    memory_free(left);
    return status ? -1 : 0;
}

static struct subject *subject_of(const struct jit_kernel *kernel)
{
    for (u32 i = 0; i < fuzz.subject_count; i++)
        if (fuzz.subjects[i].kernel == kernel)
            return &fuzz.subjects[i];
    return NULL;
}

/* What every plan must agree on: proposals, logits. */
static void trace_launch(const char *name)
{
    const struct region *region = NULL;
    struct error error = {0};
    if (strcmp(name, "embed") == 0)
        region = region_of("round descriptor");
    else if (strcmp(name, "sample_keys") == 0)
        region = region_of("logits");
    if (!region)
        return;
    u8 *bytes = memory_alloc(region->bytes);
    must(region_read(fuzz.engine->device, region, bytes, &error) ||
             device_sync(fuzz.engine->device, NULL, &error),
         &error);
    digest_add(fuzz.trace, bytes, region->bytes);
    memory_free(bytes);
}

static bool is_sampler(const char *name)
{
    return strncmp(name, "sample", 6) == 0;
}

/* Of the request that runs: the first launch and the third, which has another layer's data. */
static bool is_compared(const struct subject *subject)
{
    const char *name = subject->family->name;
    if (!fuzz.compares || !fuzz.armed || (fuzz.options.only && !subject->family->named) ||
        (fuzz.samplers_only && !is_sampler(name)))
        return false;
    return subject->launches == 0 || subject->launches == 2;
}

static int on_launch(struct device *device, struct device_stream *stream,
                     struct device_function *function, const u64 *arguments, u32 count,
                     struct error *error)
{
    const struct jit_kernel *kernel = fuzz.engine ? jit_kernel_of(fuzz.engine->jit, function)
                                                  : NULL;
    struct subject *subject = kernel ? subject_of(kernel) : NULL;
    if (!subject)
        return __real_device_launch(device, stream, function, arguments, count, error);
    trace_launch(subject->family->name);
    const bool compared = is_compared(subject);
    subject->launches += fuzz.armed;
    if (compared && !subject->prepared)
        prepare(subject);
    if (!compared || subject->variant_count == 0)
        return __real_device_launch(device, stream, function, arguments, count, error);
    return launch_all(subject, function, arguments, count, error);
}

static void on_request(const char *schedule, const struct jit_parameter *parameters,
                       const struct jit_kernel *kernel)
{
    if (subject_of(kernel))
        return;
    fuzz.subjects = memory_resize(fuzz.subjects, (fuzz.subject_count + 1) * sizeof *fuzz.subjects);
    struct subject *subject = &fuzz.subjects[fuzz.subject_count++];
    *subject = (struct subject){.kernel = kernel, .family = family_of(schedule)};
    for (u32 i = 0; parameters[i].name; i++) {
        if (i + 1 >= COUNT_OF(subject->parameters))
            stop("a kernel with more parameters than expected");
        subject->parameters[i] = parameters[i];
        subject->parameters[i].name = memory_copy_text(slice_of(parameters[i].name));
        subject->parameters[i].text = parameters[i].text
                                          ? memory_copy_text(slice_of(parameters[i].text))
                                          : NULL;
    }
}

/* ---- requests */

struct reply {
    u32 tokens[TOKENS], count;
    u32 calls; /* between rounds */
};

static bool take_token(void *user, u32 token)
{
    struct reply *reply = user;
    reply->tokens[reply->count++] = token;
    return true;
}

/* Rounds behind the first are looked at. */
static bool arm(void *user, u32 done, u32 count)
{
    struct reply *reply = user;
    if (done == count && ++reply->calls == 2)
        fuzz.armed = true;
    return true;
}

static struct reply known; /* the greedy reply, of which `propose` proposes rows */

/* The reply as it will come, so that a round commits several rows, beside a row that is wrong. */
static void propose(void *user, u32 position, struct engine_proposal *proposal)
{
    const u32 at = position - TOKENS;
    (void)user;
    proposal->rows = 1;
    for (u32 i = at + 1; i < known.count && proposal->rows < ENGINE_ROWS - 1; i++) {
        proposal->parent[proposal->rows] = (u8)(proposal->rows - 1);
        proposal->token[proposal->rows++] = known.tokens[i];
    }
    if (proposal->rows > 1) {
        proposal->parent[proposal->rows] = 0;
        proposal->token[proposal->rows] = proposal->token[1] ? proposal->token[1] - 1 : 1;
        proposal->rows++;
    }
}

static void generate(const struct geometry *geometry, const struct engine_sampling *sampling,
                     bool scripted, struct reply *reply)
{
    static const u32 spoken[TOKENS] = {81, 17, 300, 5, 1200, 77, 9, 640, 33, 2, 410, 128};
    u32 prompt[TOKENS];
    struct engine_result result;
    struct error error = {0};
    *reply = (struct reply){0};
    for (u32 i = 0; i < TOKENS; i++)
        prompt[i] = spoken[i] % geometry->valid_vocab;
    const struct engine_request request = {.prompt = prompt,
                                           .prompt_count = TOKENS,
                                           .max_tokens = TOKENS,
                                           .sampling = *sampling,
                                           .on_token = take_token,
                                           .on_progress = arm,
                                           .propose = scripted ? propose : NULL,
                                           .user = reply};
    for (u32 i = 0; i < fuzz.subject_count; i++)
        fuzz.subjects[i].launches = 0;
    must(engine_generate(fuzz.engine, &request, &result, &error), &error);
    fuzz.armed = false;
    digest_add(fuzz.trace, reply->tokens, reply->count * sizeof *reply->tokens);
}

static bool wants_samplers(void)
{
    for (u32 i = 0; i < fuzz.family_count; i++)
        if (fuzz.families[i].named && is_sampler(fuzz.families[i].name))
            return true;
    return !fuzz.options.only;
}

/* All that the engine of a geometry is asked. Digest of what any plan must give. */
static struct digest ask(const struct geometry *geometry, u64 plan_seed, bool compares)
{
    static const struct engine_sampling greedy = {.top_p = 1, .repetition = 1};
    static const struct engine_sampling narrow = {.temperature = 0.8,
                                                  .top_k = 40,
                                                  .top_p = 0.9,
                                                  .min_p = 0.02,
                                                  .presence = 0.3,
                                                  .frequency = 0.2,
                                                  .repetition = 1.1,
                                                  .seed = 7};
    static const struct engine_sampling wide = {
        .temperature = 1.3, .top_p = 1, .repetition = 1, .seed = 8};
    const struct engine_options options = {.device = device_options(),
                                           .context = FUZZ_CONTEXT,
                                           .kv_bits = geometry->kv_bits,
                                           .prefill = ENGINE_PREFILL_EXACT,
                                           .valid_vocab = geometry->valid_vocab,
                                           .plan_seed = plan_seed,
                                           .draft = geometry->draft};
    struct error error = {0};
    struct reply reply;
    fuzz.trace = digest_begin();
    fuzz.compares = compares;
    must(engine_open(&fuzz.engine, geometry->model, &options, &error), &error);
    fuzz.samplers_only = false;
    generate(geometry, &greedy, false, &known);
    generate(geometry, &greedy, true, &reply);
    fuzz.samplers_only = true;
    if (wants_samplers()) {
        generate(geometry, &narrow, false, &reply);
        generate(geometry, &wide, false, &reply);
    }
    return digest_end(fuzz.trace);
}

/* Variants count once they have run. Their number. */
static u32 count_sources(void)
{
    u32 counted = 0;
    for (u32 i = 0; i < fuzz.family_count; i++)
        fuzz.families[i].stale += fuzz.families[i].here;
    for (u32 i = 0; i < fuzz.subject_count; i++) {
        struct subject *subject = &fuzz.subjects[i];
        for (u32 v = 0; v < subject->variant_count; v++) {
            const struct variant *variant = &subject->variants[v];
            if (!variant->ran || variant->failed)
                continue;
            count_source(subject->family, variant->hash,
                         (const char *)variant->rendering.plan.data);
            counted++;
        }
    }
    return counted;
}

static void close_geometry(void)
{
    release_subjects();
    engine_close(fuzz.engine);
    fuzz.engine = NULL;
}

static void try_geometry(u32 index)
{
    struct geometry geometry;
    struct error error = {0};
    must(geometry_make(fuzz.options.seed, index, fuzz.folder, &geometry, &error), &error);
    fuzz.random = fuzz.options.seed << 32 | index;
    for (u32 i = 0; i < fuzz.family_count; i++)
        fuzz.families[i].here = false;
    const struct digest found = ask(&geometry, geometry.plan_seed, true);
    printf("# geometry %u: %u new sources\n", index, count_sources());
    close_geometry();
    if (geometry.plan_seed && !fuzz.options.only) {
        const struct digest expected = ask(&geometry, 0, false);
        close_geometry();
        if (memcmp(&found, &expected, sizeof found) != 0) {
            fuzz.differences++;
            note("differs geometry %u, plan of seed %llu\n", index,
                 (unsigned long long)geometry.plan_seed);
            printf("DIFFERS geometry %u: the plan of seed %llu gives other proposals, logits or "
                   "tokens than the default\n",
                   index, (unsigned long long)geometry.plan_seed);
        }
    }
    note("geometry %u\n", index);
}

/* ---- the run and its table */

static bool has_enough(const struct family *family)
{
    return family->sources >= fuzz.options.sources || family->stale >= STALE_MOST;
}

/* Whether the run is about it. Of all, what rounds launch: what only packs weights, say, is
 * requested too. */
static bool is_wanted(const struct family *family)
{
    return fuzz.options.only ? family->named : family->sources || family->stale;
}

static bool all_have_enough(void)
{
    for (u32 i = 0; i < fuzz.family_count; i++)
        if (is_wanted(&fuzz.families[i]) && !has_enough(&fuzz.families[i]))
            return false;
    return fuzz.family_count > 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct family *)a)->name, ((const struct family *)b)->name);
}

static void print_table(void)
{
    u32 sources = 0, launches = 0;
    qsort(fuzz.families, fuzz.family_count, sizeof *fuzz.families, by_name);
    printf("%-22s %7s %6s %8s %-9s %s\n", "kernel", "sources", "shapes", "launches", "identical",
           "tuning parameters (values)");
    for (u32 i = 0; i < fuzz.family_count; i++) {
        const struct family *family = &fuzz.families[i];
        if (!is_wanted(family))
            continue;
        printf("%-22s %7u %6u %8u %-9s", family->name, family->sources, family->shapes,
               family->launches, family->differences || family->broken_laws ? "NO" : "yes");
        for (u32 p = 0; p < family->parameter_count; p++)
            printf(" %s(%u)", family->parameters[p].name, family->parameters[p].count);
        if (family->sources < fuzz.options.sources)
            printf(family->stale >= STALE_MOST ? " exhausted" : " not all asked for");
        printf("\n");
        sources += family->sources;
        launches += family->launches;
    }
    printf("%u sources, %u launches compared, %u differences\n", sources, launches,
           fuzz.differences);
}

static void name_families(const char *names)
{
    for (const char *at = names; *at; at += *at == ',') {
        const int length = (int)strcspn(at, ",");
        char name[64], path[96];
        snprintf(name, sizeof name, "%.*s", length, at);
        snprintf(path, sizeof path, "schedules/%s.lua", name);
        if (access(path, R_OK))
            refuse("only", "a schedule, one of schedules/*.lua", name);
        family_of(name)->named = true;
        at += length;
    }
}

/* Says of which kernels there may be more sources, while the models are at an end. Their number. */
static u32 name_unfinished(void)
{
    u32 count = 0;
    for (u32 i = 0; i < fuzz.family_count; i++) {
        const struct family *family = &fuzz.families[i];
        if (!is_wanted(family) || has_enough(family))
            continue;
        fprintf(stderr, "%s%s (%u of %u)",
                count++ ? ", " : "fuzz: not all sources asked for: ", family->name, family->sources,
                fuzz.options.sources);
    }
    if (count)
        fprintf(stderr, "; give more --geometries, or fewer --sources\n");
    return count;
}

/* Says so where the pin left nothing to compare. */
static bool is_empty(void)
{
    for (u32 i = 0; i < fuzz.family_count; i++)
        if (fuzz.families[i].sources > 0)
            return false;
    fprintf(stderr, "fuzz: no source ran: none of the models that were drawn has this --pin %s\n",
            fuzz.options.pin.name);
    return true;
}

/* Whether rounds launch it; prompts go through the decode kernels. */
static bool is_of_rounds(const char *schedule)
{
    return strncmp(schedule, "prefill_", 8) != 0;
}

/* The table of schedules that the run may be about; nothing has been launched yet. */
static void push_schedules(void)
{
    struct jit_listing *listing;
    struct error error = {0};
    size_t count;
    lua_Integer at = 0;
    lua_newtable(fuzz.lua);
    must(jit_list(NULL, &listing, &count, &error), &error);
    for (u32 i = 0; i < fuzz.family_count; i++) {
        lua_pushstring(fuzz.lua, fuzz.families[i].name);
        lua_rawseti(fuzz.lua, -2, ++at);
    }
    for (size_t i = 0; i < count && !fuzz.options.only; i++)
        if (is_of_rounds(listing[i].name)) {
            lua_pushstring(fuzz.lua, listing[i].name);
            lua_rawseti(fuzz.lua, -2, ++at);
        }
    memory_free(listing);
}

/* What the device's kernels are rendered for. */
static struct scripts_target device_target(void)
{
    const struct device_options options = device_options();
    struct scripts_target target;
    struct device *device;
    struct error error = {0};
    must(device_open(&device, &options, &error), &error);
    jit_target_of(device_info(device), &target);
    device_close(device);
    return target;
}

/* Refuses a pin that no schedule of the run has on this device. */
static void check_pin(const struct jit_parameter *pin)
{
    const struct scripts_target target = device_target();
    struct buffer text = {0};
    lua_getfield(fuzz.lua, 1, "refused_pin");
    push_schedules();
    push_target(&target);
    lua_pushstring(fuzz.lua, pin->name);
    if (pin->text)
        lua_pushstring(fuzz.lua, pin->text);
    else
        lua_pushinteger(fuzz.lua, pin->number);
    if (lua_pcall(fuzz.lua, 4, 1, 0) != LUA_OK)
        stop(lua_tostring(fuzz.lua, -1));
    if (pin->text)
        buffer_format(&text, "%s=%s", pin->name, pin->text);
    else
        buffer_format(&text, "%s=%lld", pin->name, (long long)pin->number);
    if (!lua_isnil(fuzz.lua, -1))
        refuse("pin", lua_tostring(fuzz.lua, -1), text.data);
    lua_pop(fuzz.lua, 1);
    buffer_free(&text);
}

/* Number of things that are wrong. */
static u32 run(const struct options *options)
{
    u32 wrong = 0;
    char command[128];
    fuzz.options = *options;
    fuzz.family_count = fuzz.differences = fuzz.first_geometry = 0;
    if (options->only)
        name_families(options->only);
    open_scripts();
    if (options->pin.name)
        check_pin(&options->pin);
    snprintf(fuzz.folder, sizeof fuzz.folder, "/tmp/elpis-fuzz-XXXXXX");
    if (!mkdtemp(fuzz.folder))
        stop("no folder below /tmp for models");
    if (options->log)
        open_log(options->log);
    watch.on_launch = on_launch;
    watch.on_request = on_request;
    u32 index = fuzz.first_geometry;
    for (; index < options->geometries && !all_have_enough(); index++)
        try_geometry(index);
    print_table();
    printf("%u geometries of seed %llu\n", index, (unsigned long long)options->seed);
    for (u32 i = 0; i < fuzz.family_count; i++) {
        wrong += fuzz.families[i].broken_laws;
        memory_free(fuzz.families[i].hashes);
    }
    lua_close(fuzz.lua);
    if (fuzz.log)
        fclose(fuzz.log);
    snprintf(command, sizeof command, "rm -rf %s", fuzz.folder);
    return wrong + fuzz.differences + (system(command) != 0);
}

/* ---- as a test */

static void other_texts_give_the_same_bits(void **state)
{
    (void)state;
    const bool full = getenv("ELPIS_TEST_FULL") != NULL;
    const struct options options = {
        .sources = full ? 24 : 1, .geometries = full ? 12 : 2, .a_shape = full ? 4 : 1, .seed = 1};
    assert_int_equal(run(&options), 0);
    u32 kernels = 0;
    for (u32 i = 0; i < fuzz.family_count; i++)
        kernels += fuzz.families[i].sources > 0;
    assert_true(kernels >= 25);
}

/* ---- as a program */

static const char help[] =
    "NAME\n"
    "    test_kernels - compare sources of the decode kernels that differ in tuning and plan\n\n"
    "SYNOPSIS\n"
    "    test_kernels --sources COUNT [OPTION]...\n\n"
    "DESCRIPTION\n"
    "    Draws models, and for each kernel that a round launches sources that differ in tuning or "
    "in\n"
    "    the number of multiprocessors. Each runs from the memory that the kernel runs from and "
    "must\n"
    "    leave the same. Prints a table; exit status 1 if anything differs, or if a kernel has "
    "fewer\n"
    "    sources than asked for and is not exhausted. Started in the root of the repository.\n"
    "    ELPIS_TEST_DEVICE names the device (default: host), ELPIS_TEST_AS the plan.\n\n"
    "OPTIONS\n"
    "    --sources COUNT     Distinct sources of each kernel, if its tunings and shapes give so "
    "many.\n"
    "    --seed SEED         Another seed draws other models and sources. Default: 1.\n"
    "    --geometries COUNT  Models at most; the first is elpis-tiny. Default: 150.\n"
    "    --a-shape COUNT     Sources at most of a kernel at one shape. Default: sources / 10, at\n"
    "                        least 4.\n"
    "    --only KERNEL[,...] Sources of these schedules only; whole plans are not compared.\n"
    "    --pin NAME=VALUE    Sources with this tuning only: --only linear_main --pin "
    "emitter=wgmma.\n"
    "                        A schedule of the run must have it on this device.\n"
    "    --log FILE          Notes what was done; a run with the same file and seed goes on from "
    "there.\n"
    "    --help              This text.\n";

static u64 number_of(const char *option, const char *text)
{
    char *end;
    const u64 value = strtoull(text, &end, 10);
    if (end == text || *end || *text == '-')
        refuse(option, "a number", text);
    return value;
}

/* "emitter=wgmma", "unit=8" */
static struct jit_parameter pin_of(const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text)
        refuse("pin", "NAME=VALUE", text);
    const char *value = equals + 1;
    struct jit_parameter pin = {
        .name = memory_copy_text((struct slice){text, (size_t)(equals - text)})};
    if (*value >= '0' && *value <= '9')
        pin.number = (i64)number_of("pin", value);
    else
        pin.text = value;
    return pin;
}

static void set_option(struct options *options, const char *name, const char *value)
{
    if (strcmp(name, "sources") == 0)
        options->sources = (u32)number_of(name, value);
    else if (strcmp(name, "seed") == 0)
        options->seed = number_of(name, value);
    else if (strcmp(name, "geometries") == 0)
        options->geometries = (u32)number_of(name, value);
    else if (strcmp(name, "a-shape") == 0)
        options->a_shape = (u32)number_of(name, value);
    else if (strcmp(name, "only") == 0)
        options->only = value;
    else if (strcmp(name, "pin") == 0)
        options->pin = pin_of(value);
    else
        options->log = value;
}

static int run_program(int count, char **arguments)
{
    static const struct option known_options[] = {{"sources", required_argument, NULL, 'o'},
                                                  {"seed", required_argument, NULL, 'o'},
                                                  {"geometries", required_argument, NULL, 'o'},
                                                  {"a-shape", required_argument, NULL, 'o'},
                                                  {"only", required_argument, NULL, 'o'},
                                                  {"pin", required_argument, NULL, 'o'},
                                                  {"log", required_argument, NULL, 'o'},
                                                  {"help", no_argument, NULL, 'h'},
                                                  {0}};
    struct options options = {.geometries = 150, .seed = 1};
    int which, found;
    while ((found = getopt_long(count, arguments, "", known_options, &which)) == 'o')
        set_option(&options, known_options[which].name, optarg);
    if (found == 'h') {
        fputs(help, stdout);
        return 0;
    }
    if (found != -1 || optind < count || options.sources == 0) {
        fprintf(stderr, "fuzz: --sources COUNT is needed; --help tells the options\n");
        return 2;
    }
    if (options.a_shape == 0)
        options.a_shape = options.sources / 10 > 4 ? options.sources / 10 : 4;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const u32 wrong = run(&options);
    const bool unfinished = name_unfinished() > 0, empty = options.pin.name && is_empty();
    return wrong || unfinished || empty ? 1 : 0;
}

/* ---- the program, as a test */

/* Runs the program in a process of its own. Its exit status, and what it said on stderr. */
static int run_in_child(char *const *arguments, char text[8192])
{
    FILE *said = tmpfile();
    int count = 0, status = 0;
    while (arguments[count])
        count++;
    assert_non_null(said);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        dup2(fileno(said), STDERR_FILENO);
        if (!freopen("/dev/null", "w", stdout))
            _exit(99);
        exit(run_program(count, (char **)arguments));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    rewind(said);
    text[fread(text, 1, 8191, said)] = 0;
    fclose(said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(int expected, const char *needle, char *const *arguments)
{
    char text[8192];
    const int status = run_in_child(arguments, text);
    if (status != expected || !strstr(text, needle))
        fail_msg("expected status %d and \"%s\", found %d and \"%s\"", expected, needle, status,
                 text);
}
#define PROGRAM(...) ((char *[]){"test_kernels", __VA_ARGS__, NULL})
#define WITHOUT_MODELS "--sources", "1", "--geometries", "0" /* options are looked at, no more */

/* Values are those of no device, or of all. */
static void bad_options_are_refused(void **state)
{
    (void)state;
    expect(2, "--sources COUNT is needed", PROGRAM("--seed", "2"));
    expect(2, "--sources: expected a number, found \"many\"", PROGRAM("--sources", "many"));
    expect(2, "--only: expected a schedule, one of schedules/*.lua, found \"nothing\"",
           PROGRAM(WITHOUT_MODELS, "--only", "embed,nothing"));
    expect(2, "--pin: expected NAME=VALUE, found \"warps\"",
           PROGRAM(WITHOUT_MODELS, "--pin", "warps"));
    expect(2,
           "--pin: expected a tuning parameter of the kernels of this run, one of map, warps, "
           "found \"emitter=bytes\"",
           PROGRAM(WITHOUT_MODELS, "--only", "embed,gdn_output", "--pin", "emitter=bytes"));
    expect(2, "found \"stages=3\"", PROGRAM(WITHOUT_MODELS, "--pin", "stages=3")); /* prompts' */
    expect(2, "found \"k=5120\"",
           PROGRAM(WITHOUT_MODELS, "--only", "linear_main", "--pin", "k=5120")); /* no tuning */
    expect(2, "--pin: expected tiles to be one of 4, 8 on ",
           PROGRAM(WITHOUT_MODELS, "--only", "linear_main", "--pin", "tiles=5"));
    expect(2, "--pin: expected map to be one of contiguous, strided on ",
           PROGRAM(WITHOUT_MODELS, "--pin", "map=1"));
    expect(2, "found \"warps=3\"", PROGRAM(WITHOUT_MODELS, "--pin", "warps=3"));
    expect(2, "found \"few_rows=7\"", PROGRAM(WITHOUT_MODELS, "--pin", "few_rows=7"));
}

/* They pass the check of options: the run ends for want of sources. */
static void pins_of_any_shape_are_taken(void **state)
{
    (void)state;
    expect(1, "not all sources asked for: gdn_input (0 of 1);",
           PROGRAM(WITHOUT_MODELS, "--only", "gdn_input", "--pin",
                   "batch=3")); /* with 3 blocks of k: no example has them */
    expect(1, "not all sources asked for: linear_output (0 of 1);",
           PROGRAM(WITHOUT_MODELS, "--only", "linear_output", "--pin", "map=strided"));
    expect(1, "no source ran: none of the models", PROGRAM(WITHOUT_MODELS, "--pin", "warps=2"));
}

static void a_run_that_falls_short_fails(void **state)
{
    (void)state;
    expect(1, "not all sources asked for: embed (1 of 2); give more --geometries",
           PROGRAM("--sources", "2", "--geometries", "1", "--a-shape", "1", "--only", "embed"));
    expect(0, "",
           PROGRAM("--sources", "1", "--geometries", "1", "--only", "embed", "--pin", "warps=2"));
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(pins_of_any_shape_are_taken),
        cmocka_unit_test(a_run_that_falls_short_fails),
        cmocka_unit_test(other_texts_give_the_same_bits),
    };
    if (count > 1)
        return run_program(count, arguments);
    return cmocka_run_group_tests_name("fuzz", tests, NULL, NULL);
}
