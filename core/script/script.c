/* script.c - one run of a script: its Lua state, files, and where an error happened.
 *
 * `require "elpis"` finds lua/script/elpis.lua among the embedded files, `require "elpis.NAME"`
 * lua/script/NAME.lua; anything else is looked for beside the script, then as Lua does. The table
 * of C functions is "elpis.core".
 *
 * An error's text gets the line of the script's that led to it: the innermost function that is
 * no embedded file.
 */
#include "script/script.h"

#include <stdarg.h>
#include <string.h>

#include <lualib.h>

#include "jit/records.h"
#include "script/script_private.h"

/* ---- help for the other files */

static const char script_key; /* its address: the registry's key of struct script */

struct script *script_of(lua_State *lua)
{
    lua_rawgetp(lua, LUA_REGISTRYINDEX, &script_key);
    struct script *script = lua_touserdata(lua, -1);
    lua_pop(lua, 1);
    return script;
}

int script_raise(lua_State *lua, const struct error *error)
{
    script_of(lua)->last = *error;
    lua_pushstring(lua, error->text);
    return lua_error(lua);
}

int script_fail(lua_State *lua, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    lua_pushvfstring(lua, format, list);
    va_end(list);
    return lua_error(lua);
}

const char *script_text_field(lua_State *lua, int index, const char *name)
{
    lua_getfield(lua, index, name);
    const char *text = lua_tostring(lua, -1); /* the table keeps it */
    lua_pop(lua, 1);
    return text;
}

bool script_flag_field(lua_State *lua, int index, const char *name)
{
    lua_getfield(lua, index, name);
    const bool flag = lua_toboolean(lua, -1);
    lua_pop(lua, 1);
    return flag;
}

void script_set_integer(lua_State *lua, const char *name, i64 value)
{
    lua_pushinteger(lua, value);
    lua_setfield(lua, -2, name);
}

void script_set_number(lua_State *lua, const char *name, double value)
{
    lua_pushnumber(lua, value);
    lua_setfield(lua, -2, name);
}

void script_set_text(lua_State *lua, const char *name, const char *value)
{
    lua_pushstring(lua, value);
    lua_setfield(lua, -2, name);
}

void script_class(lua_State *lua, const char *name, const luaL_Reg *methods, lua_CFunction free)
{
    luaL_newmetatable(lua, name);
    lua_pushcfunction(lua, free);
    lua_setfield(lua, -2, "__gc");
    lua_newtable(lua);
    luaL_setfuncs(lua, methods, 0);
    lua_setfield(lua, -2, "__index");
    lua_pop(lua, 1);
}

/* restate(old, new): what was raised is raised again with another text, and keeps its code */
static int core_restate(lua_State *lua)
{
    struct error *last = &script_of(lua)->last;
    if (strcmp(last->text, luaL_checkstring(lua, 1)) == 0)
        error_set(last, last->code, "%s", luaL_checkstring(lua, 2));
    return 0;
}

/* ---- files */

/* read(path) -> text of an embedded file, or nil */
static int core_read(lua_State *lua)
{
    struct slice text;
    if (!jit_embedded_file(luaL_checkstring(lua, 1), &text))
        return 0;
    lua_pushlstring(lua, text.data, text.size);
    return 1;
}

/* write(path, text): makes the folders above it; the file is whole or not there. */
static int core_write(lua_State *lua)
{
    const char *path = luaL_checkstring(lua, 1);
    size_t size = 0;
    const char *text = luaL_checklstring(lua, 2, &size);
    struct error error;
    const char *slash = strrchr(path, '/');
    if (slash && slash != path) {
        lua_pushlstring(lua, path, (size_t)(slash - path));
        if (file_make_folders(lua_tostring(lua, -1), 0777, &error) != 0)
            return script_raise(lua, &error);
    }
    if (file_write_atomic(path, text, size, &error) != 0)
        return script_raise(lua, &error);
    return 0;
}

/* record(path, text): a tuning record, JSON, into a file of them, in place of one of its key */
static int core_record(lua_State *lua)
{
    struct error error;
    json_error_t reason;
    json_t *object = json_loads(luaL_checkstring(lua, 2), JSON_REJECT_DUPLICATES, &reason);
    if (!object)
        return luaL_error(lua, "a tuning record is no JSON: %s", reason.text);
    const int status = record_file_update(luaL_checkstring(lua, 1), object, &error);
    json_decref(object);
    return status == 0 ? 0 : script_raise(lua, &error);
}

/* digest(text) -> 64 hexadecimal digits */
static int core_digest(lua_State *lua)
{
    char digits[65];
    size_t size = 0;
    const char *text = luaL_checklstring(lua, 1, &size);
    digest_text(digest_of(text, size), digits);
    lua_pushstring(lua, digits);
    return 1;
}

static int open_core(lua_State *lua)
{
    static const luaL_Reg functions[] = {{"read", core_read},       {"write", core_write},
                                         {"digest", core_digest},   {"record", core_record},
                                         {"restate", core_restate}, {NULL, NULL}};
    const struct script_options *options = script_of(lua)->options;
    luaL_newlib(lua, functions);
    script_set_text(lua, "schedules", options->schedules);
    script_open_device(lua);
    script_open_tensor(lua);
    return 1;
}

/* ---- modules */

static const char *embedded_path(lua_State *lua, const char *module)
{
    if (strcmp(module, "elpis") == 0)
        return "lua/script/elpis.lua";
    if (strncmp(module, "elpis.", 6) == 0)
        return lua_pushfstring(lua, "lua/script/%s.lua", module + 6);
    return NULL;
}

/* A searcher of package.searchers. */
static int search_embedded(lua_State *lua)
{
    struct slice text;
    const char *path = embedded_path(lua, luaL_checkstring(lua, 1));
    if (!path || !jit_embedded_file(path, &text))
        return 0;
    if (luaL_loadbufferx(lua, text.data, text.size, lua_pushfstring(lua, "@%s", path), "t") !=
        LUA_OK)
        return lua_error(lua);
    return 1;
}

/* Modules beside the script are found before those of the system. */
static void set_path(lua_State *lua, const char *file)
{
    const char *slash = strrchr(file, '/');
    lua_getglobal(lua, "package");
    lua_getfield(lua, -1, "path");
    lua_pushlstring(lua, file, slash ? (size_t)(slash - file) : 0);
    lua_pushfstring(lua, "%s/?.lua;%s", slash ? lua_tostring(lua, -1) : ".", lua_tostring(lua, -2));
    lua_setfield(lua, -4, "path");
    lua_pop(lua, 2);
    lua_getfield(lua, -1, "searchers");
    lua_pushcfunction(lua, search_embedded);
    lua_rawseti(lua, -2, (lua_Integer)lua_rawlen(lua, -2) + 1);
    lua_pop(lua, 2);
}

/* ---- where an error happened */

static bool is_of_the_script(const lua_Debug *info)
{
    struct slice ignored;
    return info->source[0] == '@' && info->currentline > 0 &&
           !jit_embedded_file(info->source + 1, &ignored);
}

/* Puts FILE:LINE of the script's innermost function before the text, unless it is there. */
static int add_place(lua_State *lua)
{
    lua_Debug info;
    size_t size = 0;
    const char *text = luaL_tolstring(lua, 1, &size);
    for (int level = 1; lua_getstack(lua, level, &info); level++) {
        lua_getinfo(lua, "Sl", &info);
        if (!is_of_the_script(&info))
            continue;
        const char *place = lua_pushfstring(lua, "%s:%d: ", info.source + 1, info.currentline);
        if (strncmp(text, place, strlen(place)) == 0)
            lua_pushvalue(lua, -2);
        else
            lua_pushfstring(lua, "%s%s", place, text);
        return 1;
    }
    lua_pushlstring(lua, text, size);
    return 1;
}

/* ---- the run */

static void set_arguments(lua_State *lua, const struct script_options *options)
{
    lua_newtable(lua);
    lua_pushstring(lua, options->file);
    lua_rawseti(lua, -2, 0);
    for (lua_Integer i = 0; options->arguments[i]; i++) {
        lua_pushstring(lua, options->arguments[i]);
        lua_rawseti(lua, -2, i + 1);
    }
    lua_setglobal(lua, "arg");
}

static int run_protected(lua_State *lua)
{
    struct script *script = lua_touserdata(lua, 1);
    lua_pushvalue(lua, 1);
    lua_rawsetp(lua, LUA_REGISTRYINDEX, &script_key);
    luaL_openlibs(lua);
    set_arguments(lua, script->options);
    set_path(lua, script->options->file);
    luaL_getsubtable(lua, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_pushcfunction(lua, open_core);
    lua_setfield(lua, -2, "elpis.core");
    lua_settop(lua, 0);
    lua_pushcfunction(lua, add_place);
    /* "t": a precompiled chunk can crash the interpreter */
    if (luaL_loadfilex(lua, script->options->file, "t") != LUA_OK)
        return lua_error(lua);
    if (lua_pcall(lua, 0, 0, 1) != LUA_OK)
        return lua_error(lua);
    return 0;
}

/* The code of what C raised, if that is what ended the script. */
static int code_of(const struct script *script, const char *text)
{
    return script->last.code && strstr(text, script->last.text) ? script->last.code : ERROR_USAGE;
}

int script_run(const struct script_options *options, int *signal, struct error *error)
{
    struct script script = {.options = options};
    lua_State *lua = luaL_newstate();
    *signal = 0;
    if (!lua)
        return error_set(error, ERROR_MEMORY, "no memory for a Lua state");
    lua_pushcfunction(lua, run_protected);
    lua_pushlightuserdata(lua, &script);
    script_stop_begin(lua);
    const int result = lua_pcall(lua, 1, 0, 0);
    *signal = script_stop_end(lua);
    int status = 0;
    if (result != LUA_OK) {
        const char *text = lua_tostring(lua, -1);
        text = text ? text : "an error without a text";
        status = error_set(error, *signal ? ERROR_CANCELLED : code_of(&script, text), "%s", text);
    }
    lua_close(lua);
    return status;
}
