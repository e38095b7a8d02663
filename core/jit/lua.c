/* lua.c - the Lua side: embedded files, the override folder, and calls into lua/engine.lua.
 *
 * Files are known by their path in the source tree ("schedules/linear_main.lua"). The table
 * embedded_files is made by the build; with an override folder, folder/path comes first, so that
 * a folder may hold just the files it changes. Files in memory come before both.
 *
 * Every call into Lua runs under lua_pcall through a C function that gets its arguments as one
 * light pointer; whatever is allocated on the way hangs on that argument, so an error thrown in
 * Lua leaks nothing. Errors arrive as sentences and become ERROR_USAGE: they name a schedule, a
 * parameter, expected and found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "embedded.h"
#include "jit/jit_private.h"

enum { FILE_LIMIT = 16 << 20 };

struct scripts {
    lua_State *lua;
    char *folder;                 /* override; NULL = none */
    const struct jit_file *files; /* before the folder's; NULL = none */
    int engine;                   /* registry reference of the engine object */
};

/* ---- files */

bool jit_embedded_file(const char *path, struct slice *text)
{
    for (size_t i = 0; embedded_files[i].path; i++)
        if (strcmp(embedded_files[i].path, path) == 0) {
            *text = (struct slice){(const char *)embedded_files[i].data, embedded_files[i].size};
            return true;
        }
    return false;
}

static bool read_file_of(const struct jit_file *file, const char *path, struct slice *text)
{
    for (; file && file->path; file++)
        if (strcmp(file->path, path) == 0) {
            *text = file->text;
            return true;
        }
    return false;
}

bool scripts_read(const struct scripts *scripts, const char *path, struct buffer *text)
{
    struct error ignored;
    struct slice found;
    char full[1000];
    if (read_file_of(scripts->files, path, &found)) {
        buffer_clear(text);
        buffer_add_slice(text, found);
        return true;
    }
    if (scripts->folder && !strstr(path, "..")) {
        snprintf(full, sizeof full, "%s/%s", scripts->folder, path);
        if (file_exists(full) && file_read(text, full, FILE_LIMIT, &ignored) == 0)
            return true;
    }
    if (!jit_embedded_file(path, &found))
        return false;
    buffer_clear(text);
    buffer_add_slice(text, found);
    return true;
}

void scripts_set_files(struct scripts *scripts, const struct jit_file *files)
{
    scripts->files = files;
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Is path directly in folder? */
static bool is_in(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && path[length] == '/' &&
           !strchr(path + length + 1, '/');
}

static size_t remove_duplicates(char **sorted, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || strcmp(sorted[kept - 1], sorted[i]) != 0)
            sorted[kept++] = sorted[i];
    return kept;
}

size_t scripts_list(const struct scripts *scripts, const char *folder, struct arena *arena,
                    char ***paths)
{
    struct error ignored;
    char **names = NULL, full[1000];
    size_t name_count = 0, count = 0;
    if (scripts->folder) {
        snprintf(full, sizeof full, "%s/%s", scripts->folder, folder);
        if (file_is_folder(full) && file_list(arena, full, &names, &name_count, &ignored) != 0)
            name_count = 0;
    }
    char **all = arena_alloc(arena, (name_count + COUNT_OF(embedded_files)) * sizeof *all);
    for (size_t i = 0; i < name_count; i++)
        all[count++] = arena_format(arena, "%s/%s", folder, names[i]);
    for (size_t i = 0; embedded_files[i].path; i++)
        if (is_in(embedded_files[i].path, folder))
            all[count++] = arena_format(arena, "%s", embedded_files[i].path);
    qsort(all, count, sizeof *all, compare_text);
    *paths = all;
    return remove_duplicates(all, count);
}

/* read(path) -> text or nil */
static int lua_read(lua_State *lua)
{
    const struct scripts *scripts = lua_touserdata(lua, lua_upvalueindex(1));
    const char *path = luaL_checkstring(lua, 1);
    struct buffer text = {0};
    if (!scripts_read(scripts, path, &text))
        return 0;
    lua_pushlstring(lua, text.data ? text.data : "", text.size);
    buffer_free(&text);
    return 1;
}

/* list(folder) -> sorted list of paths */
static int lua_list(lua_State *lua)
{
    const struct scripts *scripts = lua_touserdata(lua, lua_upvalueindex(1));
    const char *folder = luaL_checkstring(lua, 1);
    struct arena *arena = arena_create();
    char **paths;
    size_t count = scripts_list(scripts, folder, arena, &paths);
    lua_createtable(lua, (int)count, 0);
    for (size_t i = 0; i < count; i++) {
        lua_pushstring(lua, paths[i]);
        lua_rawseti(lua, -2, (lua_Integer)i + 1);
    }
    arena_destroy(arena);
    return 1;
}

/* ---- calls under protection */

static int protect(struct scripts *scripts, lua_CFunction function, void *argument,
                   struct error *error)
{
    lua_State *lua = scripts->lua;
    lua_pushcfunction(lua, function);
    lua_pushlightuserdata(lua, argument);
    if (lua_pcall(lua, 1, 0, 0) == LUA_OK)
        return 0;
    const char *text = lua_tostring(lua, -1);
    error_set(error, ERROR_USAGE, "%s", text ? text : "an error in Lua without a text");
    lua_pop(lua, 1);
    return -1;
}

/* Leaves the engine and its method `name` on the stack, in the order of a call. */
static void push_method(lua_State *lua, const struct scripts *scripts, const char *name)
{
    lua_rawgeti(lua, LUA_REGISTRYINDEX, scripts->engine);
    lua_getfield(lua, -1, name);
    lua_insert(lua, -2);
}

/* ---- opening */

static int open_protected(lua_State *lua)
{
    static const char path[] = "lua/engine.lua";
    struct scripts *scripts = lua_touserdata(lua, 1);
    luaL_openlibs(lua);
    lua_pushlightuserdata(lua, scripts);
    lua_pushcclosure(lua, lua_read, 1);
    lua_pushvalue(lua, -1);
    lua_pushstring(lua, path);
    lua_call(lua, 1, 1);
    size_t size = 0;
    const char *text = lua_tolstring(lua, -1, &size);
    if (!text)
        return luaL_error(lua, "%s is not among the embedded files", path);
    if (luaL_loadbuffer(lua, text, size, "@lua/engine.lua") != LUA_OK)
        return lua_error(lua);
    lua_call(lua, 0, 1); /* the module */
    lua_getfield(lua, -1, "new");
    lua_pushvalue(lua, 2); /* read */
    lua_pushlightuserdata(lua, scripts);
    lua_pushcclosure(lua, lua_list, 1);
    lua_call(lua, 2, 1);
    scripts->engine = luaL_ref(lua, LUA_REGISTRYINDEX);
    return 0;
}

/* By its name; what begins with a point, an editor's own, is none. */
static bool is_source(const char *name)
{
    static const char *const ends[] = {".lua", ".cu", ".h", ".jsonl"};
    for (size_t i = 0; i < COUNT_OF(ends) && name[0] != '.'; i++)
        if (slice_ends(slice_of(name), slice_of(ends[i])))
            return true;
    return false;
}

/* What cannot be read would leave the built-in file in its place, in silence. */
static int check_file(const char *path, struct error *error)
{
    struct file_map map;
    if (!file_exists(path))
        return error_set(error, ERROR_USAGE,
                         "%s is a link to a file that is not there: mend or remove it", path);
    if (file_map_open(&map, path, error) != 0)
        return -1;
    file_map_close(&map);
    return 0;
}

static int check_part(const char *folder, struct error *error)
{
    struct arena *arena = arena_create();
    char **names;
    size_t count = 0;
    int status = file_list(arena, folder, &names, &count, error);
    for (size_t i = 0; i < count && status == 0; i++)
        if (is_source(names[i]))
            status = check_file(arena_format(arena, "%s/%s", folder, names[i]), error);
    arena_destroy(arena);
    return status;
}

static int check_folder(const char *folder, struct error *error)
{
    static const char *const parts[] = {"lua", "schedules", "templates", "schedules/records",
                                        "templates/prelude"};
    char path[1000];
    bool found = false;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, parts[i]);
        if (!file_is_folder(path))
            continue;
        if (check_part(path, error) != 0)
            return error_prefix(error, "--schedules");
        found = true;
    }
    return found ? 0
                 : error_set(error, ERROR_USAGE,
                             "--schedules %s: expected a folder with lua, schedules or templates "
                             "in it, as in the source tree",
                             folder);
}

int scripts_open(struct scripts **scripts, const char *folder, struct error *error)
{
    if (folder && check_folder(folder, error) != 0)
        return -1;
    struct scripts *opened = memory_alloc(sizeof *opened);
    opened->folder = folder ? memory_copy_text(slice_of(folder)) : NULL;
    opened->lua = luaL_newstate();
    if (!opened->lua) {
        error_set(error, ERROR_MEMORY, "no memory for a Lua state");
        goto fail;
    }
    if (protect(opened, open_protected, opened, error) != 0)
        goto fail;
    *scripts = opened;
    return 0;
fail:
    scripts_close(opened);
    return -1;
}

void scripts_close(struct scripts *scripts)
{
    if (!scripts)
        return;
    if (scripts->lua)
        lua_close(scripts->lua);
    memory_free(scripts->folder);
    memory_free(scripts);
}

/* ---- rendering */

struct render_call {
    struct scripts *scripts;
    const struct scripts_request *request;
    struct scripts_rendering *rendering;
};

static void push_parameters(lua_State *lua, const struct jit_parameter *parameters)
{
    lua_newtable(lua);
    for (; parameters->name; parameters++) {
        if (parameters->text)
            lua_pushstring(lua, parameters->text);
        else
            lua_pushinteger(lua, parameters->number);
        lua_setfield(lua, -2, parameters->name);
    }
}

static void set_integer(lua_State *lua, const char *name, i64 value)
{
    lua_pushinteger(lua, value);
    lua_setfield(lua, -2, name);
}

static void push_target(lua_State *lua, const struct scripts_target *target)
{
    lua_newtable(lua);
    lua_pushstring(lua, target->name);
    lua_setfield(lua, -2, "name");
    set_integer(lua, "arch", target->arch);
    set_integer(lua, "sms", target->sms);
    set_integer(lua, "shared_per_sm", target->shared_per_sm);
    set_integer(lua, "shared_per_block", target->shared_per_block);
    set_integer(lua, "registers_per_sm", target->registers_per_sm);
    lua_pushboolean(lua, target->check);
    lua_setfield(lua, -2, "check");
}

static void push_request(lua_State *lua, const struct scripts_request *request)
{
    lua_newtable(lua);
    lua_pushstring(lua, request->schedule);
    lua_setfield(lua, -2, "schedule");
    push_parameters(lua, request->parameters);
    lua_setfield(lua, -2, "parameters");
    push_target(lua, request->target);
    lua_setfield(lua, -2, "target");
    if (request->tuning) {
        push_parameters(lua, request->tuning);
        lua_setfield(lua, -2, "tuning");
    }
    if (request->seed)
        set_integer(lua, "seed", request->seed);
}

/* Fields of the result table at the stack's top. */
static void text_field(lua_State *lua, const char *name, struct buffer *text)
{
    size_t size = 0;
    lua_getfield(lua, -1, name);
    const char *data = lua_tolstring(lua, -1, &size);
    if (!data)
        luaL_error(lua, "engine:render gave no text %s", name);
    buffer_clear(text);
    buffer_add(text, data, size);
    lua_pop(lua, 1);
}

static u32 u32_field(lua_State *lua, const char *name)
{
    int is_integer = 0;
    lua_getfield(lua, -1, name);
    lua_Integer value = lua_tointegerx(lua, -1, &is_integer);
    if (!is_integer || value < 0 || value > UINT32_MAX)
        luaL_error(lua, "engine:render gave no number %s", name);
    lua_pop(lua, 1);
    return (u32)value;
}

static void read_exports(lua_State *lua, struct scripts_rendering *rendering)
{
    lua_getfield(lua, -1, "exports");
    if (!lua_istable(lua, -1))
        luaL_error(lua, "engine:render gave no table exports");
    for (lua_pushnil(lua); lua_next(lua, -2) != 0; lua_pop(lua, 1)) {
        if (lua_type(lua, -2) != LUA_TSTRING || !lua_isinteger(lua, -1))
            continue;
        size_t at = rendering->export_count;
        rendering->exports = memory_resize(rendering->exports,
                                           (at + 1) * sizeof(struct scripts_export));
        rendering->exports[at].name = memory_copy_text(slice_of(lua_tostring(lua, -2)));
        rendering->exports[at].value = lua_tointeger(lua, -1);
        rendering->export_count = at + 1;
    }
    lua_pop(lua, 1);
}

/* " name=value" for every entry of the table field `name`, sorted. */
static void print_table(lua_State *lua, const char *name, struct buffer *text)
{
    char *lines[64];
    size_t count = 0;
    const int top = lua_gettop(lua);
    lua_getfield(lua, -1, name);
    if (lua_istable(lua, -1))
        for (lua_pushnil(lua); count < COUNT_OF(lines) && lua_next(lua, -2) != 0; lua_pop(lua, 1)) {
            struct buffer line = {0};
            const char *value = luaL_tolstring(lua, -1, NULL);
            buffer_format(&line, " %s=%s", lua_tostring(lua, -3), value);
            lines[count++] = line.data;
            lua_pop(lua, 1);
        }
    lua_settop(lua, top);
    qsort(lines, count, sizeof *lines, compare_text);
    for (size_t i = 0; i < count; i++) {
        buffer_add_text(text, lines[i]);
        memory_free(lines[i]);
    }
}

/* The request's own parameters, sorted, before what Lua resolved. */
static void print_plan(lua_State *lua, const struct scripts_request *request,
                       struct scripts_rendering *rendering)
{
    buffer_format(&rendering->plan, "%s on %s:", request->schedule, request->target->name);
    lua_newtable(lua);
    push_parameters(lua, request->parameters);
    lua_setfield(lua, -2, "parameters");
    print_table(lua, "parameters", &rendering->plan);
    lua_pop(lua, 1);
    buffer_add_text(&rendering->plan, ";");
    print_table(lua, "numeric", &rendering->plan);
    buffer_add_text(&rendering->plan, ";");
    print_table(lua, "tuning", &rendering->plan);
}

static int compare_parameters(const void *a, const void *b)
{
    return strcmp(((const struct jit_parameter *)a)->name, ((const struct jit_parameter *)b)->name);
}

/* The table at the stack's top as parameters, sorted by name. */
static struct jit_parameter *read_parameters(lua_State *lua, struct arena *arena)
{
    size_t count = 0;
    for (lua_pushnil(lua); lua_next(lua, -2) != 0; lua_pop(lua, 1))
        count++;
    struct jit_parameter *parameters = arena_alloc(arena, (count + 1) * sizeof *parameters);
    count = 0;
    for (lua_pushnil(lua); lua_next(lua, -2) != 0; lua_pop(lua, 1)) {
        struct jit_parameter *p = &parameters[count++];
        p->name = arena_text(arena, slice_of(lua_tostring(lua, -2)));
        if (lua_isinteger(lua, -1))
            p->number = lua_tointeger(lua, -1);
        else
            p->text = arena_text(arena, slice_of(luaL_checkstring(lua, -1)));
    }
    qsort(parameters, count, sizeof *parameters, compare_parameters);
    return parameters;
}

static int render_protected(lua_State *lua)
{
    struct render_call *call = lua_touserdata(lua, 1);
    struct scripts_rendering *rendering = call->rendering;
    struct buffer entry = {0};
    luaL_checkstack(lua, 30, NULL);
    push_method(lua, call->scripts, "render");
    push_request(lua, call->request);
    lua_call(lua, 2, 1);
    text_field(lua, "source", &rendering->source);
    text_field(lua, "key_text", &rendering->key_text);
    text_field(lua, "entry", &entry);
    snprintf(rendering->entry, sizeof rendering->entry, "%s", entry.data);
    rendering->geometry.grid = u32_field(lua, "grid");
    rendering->geometry.block = u32_field(lua, "block");
    rendering->geometry.shared = u32_field(lua, "shared");
    rendering->arguments = u32_field(lua, "arguments");
    text_field(lua, "writes", &entry);
    snprintf(rendering->writes, sizeof rendering->writes, "%s", entry.data);
    lua_getfield(lua, -1, "cooperative");
    rendering->geometry.cooperative = lua_toboolean(lua, -1);
    lua_pop(lua, 1);
    lua_getfield(lua, -1, "overlaps");
    rendering->geometry.overlaps = lua_toboolean(lua, -1);
    lua_pop(lua, 1);
    buffer_free(&entry);
    read_exports(lua, rendering);
    rendering->arena = arena_create();
    lua_getfield(lua, -1, "tuning");
    rendering->tuning = read_parameters(lua, rendering->arena);
    lua_pop(lua, 1);
    print_plan(lua, call->request, rendering);
    return 0;
}

int scripts_render(struct scripts *scripts, const struct scripts_request *request,
                   struct scripts_rendering *rendering, struct error *error)
{
    struct render_call call = {scripts, request, rendering};
    memset(rendering, 0, sizeof *rendering);
    if (protect(scripts, render_protected, &call, error) == 0)
        return 0;
    scripts_rendering_free(rendering);
    return -1;
}

void scripts_rendering_free(struct scripts_rendering *rendering)
{
    buffer_free(&rendering->source);
    buffer_free(&rendering->key_text);
    buffer_free(&rendering->plan);
    for (size_t i = 0; i < rendering->export_count; i++)
        memory_free(rendering->exports[i].name);
    memory_free(rendering->exports);
    arena_destroy(rendering->arena);
    memset(rendering, 0, sizeof *rendering);
}

/* ---- combinations and texts */

struct combinations_call {
    struct scripts *scripts;
    const struct scripts_request *request;
    struct arena *arena;
    struct jit_parameter **tables;
    size_t count;
};

static int combinations_protected(lua_State *lua)
{
    struct combinations_call *call = lua_touserdata(lua, 1);
    luaL_checkstack(lua, 30, NULL);
    push_method(lua, call->scripts, "combinations");
    push_request(lua, call->request);
    lua_call(lua, 2, 1);
    call->count = (size_t)luaL_len(lua, -1);
    call->tables = arena_alloc(call->arena, (call->count + 1) * sizeof(void *));
    for (size_t i = 0; i < call->count; i++) {
        lua_geti(lua, -1, (lua_Integer)i + 1);
        call->tables[i] = read_parameters(lua, call->arena);
        lua_pop(lua, 1);
    }
    return 0;
}

int scripts_combinations(struct scripts *scripts, const struct scripts_request *request,
                         struct arena *arena, struct jit_parameter ***tables, size_t *count,
                         struct error *error)
{
    struct combinations_call call = {scripts, request, arena, NULL, 0};
    if (protect(scripts, combinations_protected, &call, error) != 0)
        return -1;
    *tables = call.tables;
    *count = call.count;
    return 0;
}

struct digest_call {
    struct scripts *scripts;
    const char *schedule;
    struct digest digest;
};

static int digest_protected(lua_State *lua)
{
    struct digest_call *call = lua_touserdata(lua, 1);
    size_t size = 0;
    push_method(lua, call->scripts, "texts");
    lua_pushstring(lua, call->schedule);
    lua_call(lua, 2, 1);
    const char *text = luaL_checklstring(lua, -1, &size);
    call->digest = digest_of(text, size);
    return 0;
}

bool scripts_digest(struct scripts *scripts, const char *schedule, char text[17])
{
    struct digest_call call = {scripts, schedule, {{0}}};
    struct error ignored;
    char whole[65];
    if (protect(scripts, digest_protected, &call, &ignored) != 0)
        return false;
    digest_text(call.digest, whole);
    snprintf(text, 17, "%.16s", whole);
    return true;
}

/* ---- laws */

struct laws_call {
    struct scripts *scripts;
    const struct scripts_request *request;
};

static int laws_protected(lua_State *lua)
{
    struct laws_call *call = lua_touserdata(lua, 1);
    luaL_checkstack(lua, 30, NULL);
    push_method(lua, call->scripts, "laws");
    push_request(lua, call->request);
    lua_call(lua, 2, 1);
    const lua_Integer count = luaL_len(lua, -1);
    for (lua_Integer i = 1; i <= count; i++, lua_pop(lua, 3)) {
        lua_geti(lua, -1, i);
        lua_getfield(lua, -1, "ok");
        lua_getfield(lua, -2, "detail");
        if (!lua_toboolean(lua, -2))
            return lua_error(lua);
    }
    return 0;
}

int scripts_laws(struct scripts *scripts, const struct scripts_request *request,
                 struct error *error)
{
    struct laws_call call = {scripts, request};
    return protect(scripts, laws_protected, &call, error);
}

/* ---- listing */

struct list_call {
    struct scripts *scripts;
    struct arena *arena;
    struct scripts_listing *listing;
    size_t count;
};

static void read_listing(lua_State *lua, struct arena *arena, struct scripts_listing *entry)
{
    lua_getfield(lua, -1, "name");
    entry->name = arena_text(arena, slice_of(luaL_checkstring(lua, -1)));
    lua_getfield(lua, -2, "summary");
    entry->summary = arena_text(arena, slice_of(luaL_checkstring(lua, -1)));
    lua_getfield(lua, -3, "parameters");
    entry->parameters = arena_text(arena, slice_of(luaL_checkstring(lua, -1)));
    lua_getfield(lua, -4, "examples");
    entry->example_count = lua_istable(lua, -1) ? (size_t)luaL_len(lua, -1) : 0;
    entry->examples = arena_alloc(arena, (entry->example_count + 1) * sizeof(void *));
    for (size_t i = 0; i < entry->example_count; i++) {
        lua_geti(lua, -1, (lua_Integer)i + 1);
        entry->examples[i] = read_parameters(lua, arena);
        lua_pop(lua, 1);
    }
    lua_pop(lua, 4);
}

static int list_protected(lua_State *lua)
{
    struct list_call *call = lua_touserdata(lua, 1);
    luaL_checkstack(lua, 30, NULL);
    push_method(lua, call->scripts, "list");
    lua_call(lua, 1, 1);
    call->count = (size_t)luaL_len(lua, -1);
    call->listing = arena_alloc(call->arena, (call->count + 1) * sizeof *call->listing);
    for (size_t i = 0; i < call->count; i++) {
        lua_geti(lua, -1, (lua_Integer)i + 1);
        read_listing(lua, call->arena, &call->listing[i]);
        lua_pop(lua, 1);
    }
    return 0;
}

int scripts_schedules(struct scripts *scripts, struct arena *arena,
                      struct scripts_listing **listing, size_t *count, struct error *error)
{
    struct list_call call = {scripts, arena, NULL, 0};
    if (protect(scripts, list_protected, &call, error) != 0)
        return -1;
    *listing = call.listing;
    *count = call.count;
    return 0;
}
