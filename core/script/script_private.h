/* script_private.h - the parts of core/script among themselves.
 *
 *     script.c   the state, files, errors
 *     device.c   devices, jits, kernels, launches
 *     tensor.c   arrays in a device's memory
 *     timing.c   launches timed side by side
 *     stop.c     Ctrl-C
 *
 * lua/script/ is the interface that people see; it checks names and types. The functions here
 * take what it gives, check what only C can check, and raise sentences.
 *
 * Objects are full userdata. One that needs another (a tensor its device) keeps it as its user
 * value, so Lua collects them in the right order.
 */
#ifndef ELPIS_SCRIPT_PRIVATE_H
#define ELPIS_SCRIPT_PRIVATE_H

#include <lauxlib.h>
#include <lua.h>

#include "device/device.h"
#include "jit/jit.h"
#include "script/script.h"

#define SCRIPT_DEVICE "elpis device"
#define SCRIPT_TENSOR "elpis tensor"
#define SCRIPT_LAUNCH "elpis launch"

/* What the C functions of a state know of its run. */
struct script {
    const struct script_options *options;
    struct error last; /* what C raised last: gives the exit status its code */
    bool warned;       /* of files that --schedules replaces */
};

struct script *script_of(lua_State *lua);
/* Raises error->text and remembers its code. Does not return. */
int script_raise(lua_State *lua, const struct error *error);
/* Raises a sentence, formatted as lua_pushfstring does, without a place: the caller may be one of
 * lua/script/, and script_run puts the script's line before it. Does not return. */
int script_fail(lua_State *lua, const char *format, ...);
/* A field of the table at `index`: NULL and false where it is nil. */
const char *script_text_field(lua_State *lua, int index, const char *name);
bool script_flag_field(lua_State *lua, int index, const char *name);
void script_set_integer(lua_State *lua, const char *name, i64 value);
void script_set_number(lua_State *lua, const char *name, double value);
void script_set_text(lua_State *lua, const char *name, const char *value);
/* A metatable `name` with methods, and a finaliser. */
void script_class(lua_State *lua, const char *name, const luaL_Reg *methods, lua_CFunction free);

/* The device of argument `index`, open. */
struct device *script_device(lua_State *lua, int index);
/* A launch with its arguments bound, of argument or stack place `index`. */
int script_launch(lua_State *lua, int index, struct error *error);
/* device:tensor(type, shape, label) */
int script_tensor_new(lua_State *lua);
/* device:trial(launches, options) -> list of results */
int script_trial(lua_State *lua);

/* Between them SIGINT and SIGTERM end the script. The end returns the signal; 0: there was none. */
void script_stop_begin(lua_State *lua);
int script_stop_end(lua_State *lua);
bool script_goes_on(void *user); /* false: it has to end */

void script_open_device(lua_State *lua); /* adds functions to the table at the top */
void script_open_tensor(lua_State *lua);

#endif
