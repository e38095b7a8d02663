/* chat_template.c - the bridge to lua/jinja.lua: one Lua state a template, parsed once.
 *
 * The template comes from chat_template.jinja or, where that is missing, from the chat_template of
 * tokenizer_config.json (a text, or a list of named ones of which "default" is taken). The context
 * goes in as JSON text and is parsed in Lua, because a template sees what a C parser would lose:
 * key order, 1 and 1.0, integers of any size.
 *
 * The state has only what a template needs (no io, os, load, require of other modules), memory
 * from an allocator with a limit, and a limit of time; jinja_value.lua limits depth, steps and
 * text. So every template ends, with a text or with one sentence.
 *
 * What Lua lacks comes from here: case and classes beyond ASCII (utf8proc), the clock.
 */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "embedded.h"
#include "text/text.h"
#include "text_private.h"

#define LUA_MEMORY_MAX ((size_t)1 << 30)
#define LUA_LOOK_EVERY 10000 /* instructions between two looks at the clock */
#define RENDER_SECONDS_MAX 20.0

struct chat_template {
    lua_State *lua;  /* its registry: "jinja" = the module, "template" = the compiled template */
    size_t used;     /* bytes */
    double deadline; /* of what runs, by clock_seconds */
    bool late;
};

/* ---- limits */

static void *limited_alloc(void *user, void *old, size_t old_size, size_t new_size)
{
    struct chat_template *chat = user;
    size_t before = old ? old_size : 0;
    if (new_size == 0) {
        chat->used -= before;
        free(old);
        return NULL;
    }
    if (new_size > before && chat->used + (new_size - before) > LUA_MEMORY_MAX)
        return NULL;
    void *fresh = realloc(old, new_size);
    if (fresh)
        chat->used += new_size - before;
    return fresh;
}

static struct chat_template *chat_of(lua_State *lua)
{
    void *user;
    lua_getallocf(lua, &user);
    return user;
}

static void look_at_clock(lua_State *lua, lua_Debug *debug)
{
    (void)debug;
    struct chat_template *chat = chat_of(lua);
    chat->late = clock_seconds() > chat->deadline;
    if (chat->late)
        luaL_error(lua, "the template takes over %d seconds", (int)RENDER_SECONDS_MAX);
}

/* ---- what Lua lacks */

static int map_case(lua_State *lua, utf8proc_int32_t (*map)(utf8proc_int32_t))
{
    struct slice text;
    text.data = luaL_checklstring(lua, 1, &text.size);
    luaL_Buffer out;
    luaL_buffinit(lua, &out);
    for (size_t at = 0; at < text.size;) {
        struct utf8_unit unit = utf8_next(text.data + at, text.size - at);
        utf8proc_uint8_t bytes[4];
        if (unit.kind == UTF8_CHARACTER)
            luaL_addlstring(&out, (char *)bytes,
                            (size_t)utf8proc_encode_char(map((utf8proc_int32_t)unit.code), bytes));
        else
            luaL_addlstring(&out, text.data + at, unit.size);
        at += unit.size;
    }
    luaL_pushresult(&out);
    return 1;
}

static int host_lower(lua_State *lua)
{
    return map_case(lua, utf8proc_tolower);
}

static int host_upper(lua_State *lua)
{
    return map_case(lua, utf8proc_toupper);
}

/* "L" letter, "N" decimal digit, "O" other number, "-" anything else. */
static int host_class(lua_State *lua)
{
    utf8proc_int32_t code = (utf8proc_int32_t)luaL_checkinteger(lua, 1);
    utf8proc_category_t category = utf8proc_category(code);
    const char *name = "-";
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO)
        name = "L";
    else if (category == UTF8PROC_CATEGORY_ND)
        name = "N";
    else if (category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO)
        name = "O";
    lua_pushstring(lua, name);
    return 1;
}

static int host_now(lua_State *lua)
{
    const char *format = luaL_checkstring(lua, 1);
    time_t now = (time_t)clock_unix();
    struct tm local;
    char text[512];
    localtime_r(&now, &local);
    size_t size = strftime(text, sizeof text, format, &local);
    lua_pushlstring(lua, text, size);
    return 1;
}

static const luaL_Reg host_functions[] = {{"lower", host_lower},
                                          {"upper", host_upper},
                                          {"class", host_class},
                                          {"now", host_now},
                                          {NULL, NULL}};

/* ---- the state */

/* package.searchers' one entry: modules are the embedded files lua/NAME.lua. */
static int load_embedded(lua_State *lua)
{
    const char *name = luaL_checkstring(lua, 1);
    char path[128];
    snprintf(path, sizeof path, "lua/%s.lua", name);
    for (size_t i = 0; embedded_files[i].path; i++) {
        if (strcmp(embedded_files[i].path, path) != 0)
            continue;
        if (luaL_loadbuffer(lua, (const char *)embedded_files[i].data, embedded_files[i].size,
                            path) != LUA_OK)
            return lua_error(lua);
        return 1;
    }
    return luaL_error(lua, "%s is not part of the program", path);
}

/* require(name): loads once, keeps in the registry table "modules". */
static int require_embedded(lua_State *lua)
{
    luaL_checkstring(lua, 1);
    luaL_getsubtable(lua, LUA_REGISTRYINDEX, "modules");
    lua_pushvalue(lua, 1);
    if (lua_gettable(lua, -2) != LUA_TNIL)
        return 1;
    lua_pop(lua, 1);
    lua_pushcfunction(lua, load_embedded);
    lua_pushvalue(lua, 1);
    lua_call(lua, 1, 1);
    lua_call(lua, 0, 1);
    lua_pushvalue(lua, 1);
    lua_pushvalue(lua, -2);
    lua_settable(lua, -4);
    return 1;
}

static void open_libraries(lua_State *lua)
{
    static const luaL_Reg libraries[] = {{LUA_GNAME, luaopen_base},
                                         {LUA_TABLIBNAME, luaopen_table},
                                         {LUA_STRLIBNAME, luaopen_string},
                                         {LUA_MATHLIBNAME, luaopen_math},
                                         {LUA_UTF8LIBNAME, luaopen_utf8}};
    static const char *const removed[] = {"dofile", "loadfile", "load", "print", "collectgarbage"};
    for (size_t i = 0; i < COUNT_OF(libraries); i++) {
        luaL_requiref(lua, libraries[i].name, libraries[i].func, 1);
        lua_pop(lua, 1);
    }
    for (size_t i = 0; i < COUNT_OF(removed); i++) {
        lua_pushnil(lua);
        lua_setglobal(lua, removed[i]);
    }
    lua_pushcfunction(lua, require_embedded);
    lua_setglobal(lua, "require");
}

/* Protected: stack 1 = source, registry "defaults" = JSON of variables every rendering has. Leaves
 * module and template in the registry. */
static int set_up(lua_State *lua)
{
    open_libraries(lua);
    lua_getglobal(lua, "require");
    lua_pushliteral(lua, "jinja");
    lua_call(lua, 1, 1);
    lua_pushvalue(lua, -1);
    lua_setfield(lua, LUA_REGISTRYINDEX, "jinja");
    lua_getfield(lua, -1, "set_host");
    luaL_newlib(lua, host_functions);
    lua_call(lua, 1, 0);
    lua_getfield(lua, -1, "compile");
    lua_pushvalue(lua, 1);
    lua_getfield(lua, LUA_REGISTRYINDEX, "defaults");
    lua_call(lua, 2, 1);
    lua_setfield(lua, LUA_REGISTRYINDEX, "template");
    return 0;
}

/* Protected: stack 1 = context JSON. Returns the text. */
static int render(lua_State *lua)
{
    lua_getfield(lua, LUA_REGISTRYINDEX, "template");
    lua_getfield(lua, -1, "render_json");
    lua_insert(lua, -2);
    lua_pushvalue(lua, 1);
    lua_call(lua, 2, 1);
    return 1;
}

/* Protected: stack 1 = what was raised. Returns the sentence and whether it was a limit. */
static int describe(lua_State *lua)
{
    bool limit = false;
    if (lua_istable(lua, 1)) {
        lua_getfield(lua, 1, "limit");
        limit = lua_toboolean(lua, -1);
        lua_pop(lua, 1);
    }
    lua_getfield(lua, LUA_REGISTRYINDEX, "jinja");
    lua_getfield(lua, -1, "describe");
    lua_pushvalue(lua, 1);
    lua_call(lua, 1, 1);
    lua_pushboolean(lua, limit);
    return 2;
}

/* Calls a protected function of one text; on success its result is on the stack when wanted. */
static int run(struct chat_template *chat, lua_CFunction body, struct slice text, int results,
               int code, struct error *error)
{
    lua_State *lua = chat->lua;
    lua_settop(lua, 0);
    chat->late = false;
    chat->deadline = clock_seconds() + RENDER_SECONDS_MAX;
    lua_sethook(lua, look_at_clock, LUA_MASKCOUNT, LUA_LOOK_EVERY);
    lua_pushcfunction(lua, body);
    lua_pushlstring(lua, text.data ? text.data : "", text.size);
    int status = lua_pcall(lua, 1, results, 0);
    lua_sethook(lua, NULL, 0, 0);
    if (status == LUA_OK)
        return 0;
    if (status == LUA_ERRMEM)
        return error_set(error, ERROR_MEMORY, "chat template: it takes over %zu MiB of memory",
                         LUA_MEMORY_MAX >> 20);
    lua_pushcfunction(lua, describe);
    lua_insert(lua, 1);
    if (lua_pcall(lua, 1, 2, 0) != LUA_OK)
        return error_set(error, code, "chat template: %s", luaL_tolstring(lua, -1, NULL));
    const char *sentence = lua_tostring(lua, -2);
    bool limit = lua_toboolean(lua, -1) || chat->late;
    return error_set(error, limit ? ERROR_MEMORY : code, "chat template: %s",
                     sentence ? sentence : "a fault without text");
}

/* ---- opening */

/* The "default" of [{"name": ..., "template": ...}], or a plain text. */
static const char *template_of_config(json_t *config)
{
    json_t *template = json_object_get(config, "chat_template"), *item;
    size_t i;
    json_array_foreach (template, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(item, "template"));
    }
    return json_string_value(template);
}

/* What transformers gives to every template: tools and documents (None when there are none),
 * add_generation_prompt, and the special tokens, each a text or an added token in the file. */
static json_t *default_variables(json_t *config)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *variables = json_object();
    json_object_set_new(variables, "tools", json_null());
    json_object_set_new(variables, "documents", json_null());
    json_object_set_new(variables, "add_generation_prompt", json_false());
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        json_t *token = json_object_get(config, names[i]);
        if (json_is_object(token))
            token = json_object_get(token, "content");
        if (json_is_string(token))
            json_object_set(variables, names[i], token);
    }
    return variables;
}

/* Template text, and the JSON text of its default variables (the caller frees it with free). */
static int read_source(struct buffer *source, char **defaults, const char *folder,
                       struct error *error)
{
    struct buffer path = {0};
    json_t *config = NULL, *variables = NULL;
    int result = -1;
    if (json_file_read(&config, folder, "tokenizer_config.json", true, error) < 0)
        goto done;
    variables = default_variables(config);
    *defaults = json_dumps(variables, 0);
    buffer_format(&path, "%s/chat_template.jinja", folder);
    if (file_exists(path.data)) {
        result = file_read(source, path.data, (size_t)16 << 20, error);
        goto done;
    }
    const char *text = config ? template_of_config(config) : NULL;
    if (text) {
        buffer_add_text(source, text);
        result = 0;
    } else {
        error_set(error, ERROR_MODEL,
                  "%s has no chat template: neither chat_template.jinja nor chat_template in "
                  "tokenizer_config.json; prompts can be given as plain text only",
                  folder);
    }
done:
    if (result < 0)
        error->code = ERROR_MODEL;
    json_decref(variables);
    json_decref(config);
    buffer_free(&path);
    return result;
}

int chat_template_open(struct chat_template **out, const char *folder, struct error *error)
{
    struct chat_template *chat = NULL;
    struct buffer source = {0};
    char *defaults = NULL;
    if (read_source(&source, &defaults, folder, error) < 0)
        goto fail;
    size_t good = utf8_valid_prefix(buffer_slice(&source));
    if (good < source.size) {
        error_set(error, ERROR_MODEL, "%s: the chat template is not valid UTF-8 at byte %zu",
                  folder, good);
        goto fail;
    }
    chat = memory_alloc(sizeof *chat);
    chat->lua = lua_newstate(limited_alloc, chat);
    if (!chat->lua) {
        error_set(error, ERROR_MEMORY, "chat template: no memory for a Lua state");
        goto fail;
    }
    lua_pushstring(chat->lua, defaults);
    lua_setfield(chat->lua, LUA_REGISTRYINDEX, "defaults");
    if (run(chat, set_up, buffer_slice(&source), 0, ERROR_MODEL, error) < 0) {
        error_prefix(error, "%s", folder);
        goto fail;
    }
    free(defaults);
    buffer_free(&source);
    *out = chat;
    return 0;
fail:
    free(defaults);
    buffer_free(&source);
    chat_template_close(chat);
    return -1;
}

void chat_template_close(struct chat_template *chat)
{
    if (!chat)
        return;
    if (chat->lua)
        lua_close(chat->lua);
    memory_free(chat);
}

int chat_template_render(struct chat_template *chat, struct slice context_json, struct buffer *text,
                         struct error *error)
{
    size_t good = utf8_valid_prefix(context_json);
    if (good < context_json.size)
        return error_set(error, ERROR_USAGE,
                         "chat template: the context is not valid UTF-8 at "
                         "byte %zu",
                         good);
    int result = run(chat, render, context_json, 1, ERROR_USAGE, error);
    if (result == 0) {
        struct slice rendered;
        rendered.data = lua_tolstring(chat->lua, -1, &rendered.size);
        buffer_add_slice(text, rendered);
    }
    lua_settop(chat->lua, 0);
    lua_gc(chat->lua, LUA_GCCOLLECT);
    return result;
}
