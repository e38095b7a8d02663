/* device.c - devices, the jits on them, kernels and launches, for Lua.
 *
 *   core.open{device=, as=, check=, paper=} -> device
 *   core.compile{source=, name=, target=, arch=, shared_per_sm=, block=, shared=}
 *                                           -> what a GPU's compiler says of it; no GPU is needed
 *   device:info() device:bandwidth() device:sync() device:tensor(...) device:trial(...)
 *   device:jit(files, builtin)              -> jit: built-in schedules, files {path = text} before
 *                                              them; builtin: without the run's --schedules
 *   jit:request(schedule, parameters)       -> kernel; jit:build() compiles what was requested
 *   kernel:info() kernel:bind(slots)        -> launch; launch:run()
 *
 * A jit's kernels live as long as it does, a launch keeps its kernel and the tensors it was bound
 * to. Names and types of arguments are checked in Lua (lua/script/device.lua): a slot is 64 bits.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/occupancy.h"
#include "script/script_private.h"

#define SCRIPT_JIT "elpis jit"
#define SCRIPT_KERNEL "elpis kernel"

struct script_jit {
    struct jit *jit;
    struct arena *texts; /* of the files */
};

struct bound_launch {
    struct jit *jit;
    const struct jit_kernel *kernel;
    u32 count;
    u64 slots[];
};

/* ---- devices */

struct device *script_device(lua_State *lua, int index)
{
    return *(struct device **)luaL_checkudata(lua, index, SCRIPT_DEVICE);
}

static int device_free_lua(lua_State *lua)
{
    struct device **device = luaL_checkudata(lua, 1, SCRIPT_DEVICE);
    device_close(*device);
    *device = NULL;
    return 0;
}

/* What the call does not say is as on the command line. */
static int core_open(lua_State *lua)
{
    struct error error;
    luaL_checktype(lua, 1, LUA_TTABLE);
    struct device_options options = script_of(lua)->options->device;
    const char *device = script_text_field(lua, 1, "device");
    const char *as = script_text_field(lua, 1, "as");
    options.device = device ? device : options.device;
    options.as = as ? as : options.as;
    options.host_check = options.host_check || script_flag_field(lua, 1, "check");
    options.paper = script_flag_field(lua, 1, "paper");
    struct device **opened = lua_newuserdatauv(lua, sizeof *opened, 1);
    *opened = NULL;
    luaL_setmetatable(lua, SCRIPT_DEVICE);
    if (device_open(opened, &options, &error) != 0)
        return script_raise(lua, &error);
    return 1;
}

static int device_info_lua(lua_State *lua)
{
    static const char *const kinds[] = {
        [DEVICE_HOST] = "host", [DEVICE_CUDA] = "cuda", [DEVICE_PAPER] = "paper"};
    const struct device_info *info = device_info(script_device(lua, 1));
    lua_newtable(lua);
    script_set_text(lua, "kind", kinds[info->kind]);
    script_set_text(lua, "name", info->name);
    script_set_text(lua, "target", info->target);
    script_set_text(lua, "compiler", info->compiler);
    script_set_text(lua, "driver", info->driver);
    script_set_integer(lua, "arch", info->arch);
    script_set_integer(lua, "sms", info->sms);
    script_set_integer(lua, "shared_per_sm", info->shared_per_sm);
    script_set_integer(lua, "shared_per_block", info->shared_per_block);
    script_set_integer(lua, "registers_per_sm", info->registers_per_sm);
    lua_pushboolean(lua, info->kind == DEVICE_HOST && strstr(info->compiler, "check") != NULL);
    lua_setfield(lua, -2, "check");
    return 1;
}

static int device_bandwidth_lua(lua_State *lua)
{
    struct error error;
    double bytes = 0;
    if (device_copy_bandwidth(script_device(lua, 1), &bytes, &error) != 0)
        return script_raise(lua, &error);
    lua_pushnumber(lua, bytes);
    return 1;
}

static int device_sync_lua(lua_State *lua)
{
    struct error error;
    if (device_sync(script_device(lua, 1), NULL, &error) != 0)
        return script_raise(lua, &error);
    return 0;
}

/* ---- compiling for a GPU that need not be there */

static u32 count_field(lua_State *lua, const char *name)
{
    lua_getfield(lua, 1, name);
    const lua_Integer value = luaL_checkinteger(lua, -1);
    lua_pop(lua, 1);
    return (u32)value;
}

static int core_compile(lua_State *lua)
{
    struct error error;
    struct device_resources resources = {0};
    struct buffer image = {0};
    luaL_checktype(lua, 1, LUA_TTABLE);
    const struct device_geometry geometry = {
        .grid = 1, .block = count_field(lua, "block"), .shared = count_field(lua, "shared")};
    const u32 arch = count_field(lua, "arch"), shared_per_sm = count_field(lua, "shared_per_sm");
    const char *name = script_text_field(lua, 1, "name"),
               *target = script_text_field(lua, 1, "target");
    lua_getfield(lua, 1, "source");
    struct slice source;
    source.data = luaL_checklstring(lua, -1, &source.size);
    const int status = device_cross_compile(script_of(lua)->options->device.cuda_libraries, source,
                                            name, target, &image, &resources, &error);
    buffer_free(&image);
    if (status != 0)
        return script_raise(lua, &error);
    lua_newtable(lua);
    script_set_integer(lua, "registers", resources.registers);
    script_set_integer(lua, "shared_static", resources.shared_static);
    script_set_integer(lua, "spill_stores", resources.spill_stores);
    script_set_integer(lua, "spill_loads", resources.spill_loads);
    script_set_integer(lua, "ctas_per_sm",
                       occupancy_ctas(arch, shared_per_sm, &geometry, &resources));
    return 1;
}

/* ---- jits */

static int jit_free_lua(lua_State *lua)
{
    struct script_jit *jit = luaL_checkudata(lua, 1, SCRIPT_JIT);
    jit_close(jit->jit);
    arena_destroy(jit->texts);
    memset(jit, 0, sizeof *jit);
    return 0;
}

/* The table {path = text} at argument 2; ends with {0}. */
static struct jit_file *read_files(lua_State *lua, struct arena *arena)
{
    size_t count = 0;
    for (lua_pushnil(lua); lua_next(lua, 2) != 0; lua_pop(lua, 1))
        count++;
    struct jit_file *files = arena_alloc(arena, (count + 1) * sizeof *files);
    count = 0;
    for (lua_pushnil(lua); lua_next(lua, 2) != 0; lua_pop(lua, 1)) {
        struct slice text;
        text.data = lua_tolstring(lua, -1, &text.size);
        files[count].path = arena_text(arena, slice_of(lua_tostring(lua, -2)));
        files[count].text.data = arena_text(arena, text);
        files[count++].text.size = text.size;
    }
    return files;
}

static int device_jit_lua(lua_State *lua)
{
    struct error error;
    struct device *device = script_device(lua, 1);
    struct script *script = script_of(lua);
    const struct script_options *run = script->options;
    luaL_checktype(lua, 2, LUA_TTABLE);
    const bool builtin = lua_toboolean(lua, 3);
    struct script_jit *jit = lua_newuserdatauv(lua, sizeof *jit, 1);
    memset(jit, 0, sizeof *jit);
    luaL_setmetatable(lua, SCRIPT_JIT);
    lua_pushvalue(lua, 1);
    lua_setiuservalue(lua, -2, 1);
    jit->texts = arena_create();
    const struct jit_options options = {
        .cache = run->cache,
        .schedules = builtin ? NULL : run->schedules,
        .warned = script->warned,
        .files = read_files(lua, jit->texts),
    };
    if (jit_open(&jit->jit, device, &options, &error) != 0)
        return script_raise(lua, &error);
    script->warned = script->warned || options.schedules;
    return 1;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct jit_parameter *)left)->name,
                  ((const struct jit_parameter *)right)->name);
}

/* The table {name = integer or text} at argument 3; Lua keeps the texts. */
static struct jit_parameter *read_parameters(lua_State *lua)
{
    size_t count = 0;
    for (lua_pushnil(lua); lua_next(lua, 3) != 0; lua_pop(lua, 1))
        count++;
    struct jit_parameter *parameters = lua_newuserdatauv(lua, (count + 1) * sizeof *parameters, 0);
    memset(parameters, 0, (count + 1) * sizeof *parameters);
    count = 0;
    for (lua_pushnil(lua); lua_next(lua, 3) != 0; lua_pop(lua, 1)) {
        struct jit_parameter *parameter = &parameters[count++];
        parameter->name = lua_tostring(lua, -2);
        if (lua_isinteger(lua, -1))
            parameter->number = lua_tointeger(lua, -1);
        else
            parameter->text = lua_tostring(lua, -1);
    }
    qsort(parameters, count, sizeof *parameters, compare_names);
    return parameters;
}

static int jit_request_lua(lua_State *lua)
{
    struct error error;
    struct jit_kernel *kernel = NULL;
    struct script_jit *jit = luaL_checkudata(lua, 1, SCRIPT_JIT);
    const char *schedule = luaL_checkstring(lua, 2);
    luaL_checktype(lua, 3, LUA_TTABLE);
    if (jit_request(jit->jit, schedule, read_parameters(lua), &kernel, &error) != 0)
        return script_raise(lua, &error);
    struct jit_kernel **handle = lua_newuserdatauv(lua, sizeof *handle, 1);
    *handle = kernel;
    luaL_setmetatable(lua, SCRIPT_KERNEL);
    lua_pushvalue(lua, 1);
    lua_setiuservalue(lua, -2, 1);
    return 1;
}

static int jit_build_lua(lua_State *lua)
{
    struct error error;
    struct script_jit *jit = luaL_checkudata(lua, 1, SCRIPT_JIT);
    if (jit_build(jit->jit, &error) != 0)
        return script_raise(lua, &error);
    return 0;
}

/* ---- kernels and launches */

static int nothing_to_free(lua_State *lua)
{
    (void)lua;
    return 0;
}

static int kernel_info_lua(lua_State *lua)
{
    const struct jit_kernel *kernel = *(struct jit_kernel **)luaL_checkudata(lua, 1, SCRIPT_KERNEL);
    const struct device_geometry *geometry = jit_kernel_geometry(kernel);
    const struct slice source = jit_kernel_source(kernel);
    char digest[17];
    lua_getiuservalue(lua, 1, 1);
    const struct script_jit *jit = luaL_checkudata(lua, -1, SCRIPT_JIT);
    lua_newtable(lua);
    script_set_integer(lua, "grid", geometry->grid);
    script_set_integer(lua, "block", geometry->block);
    script_set_integer(lua, "shared", geometry->shared);
    lua_pushlstring(lua, source.data, source.size);
    lua_setfield(lua, -2, "source");
    if (jit_kernel_digest(jit->jit, kernel, digest))
        script_set_text(lua, "digest", digest);
    return 1;
}

/* bind(slots, arguments): arguments is whatever must stay alive as long as the launch. */
static int kernel_bind_lua(lua_State *lua)
{
    const struct jit_kernel *kernel = *(struct jit_kernel **)luaL_checkudata(lua, 1, SCRIPT_KERNEL);
    luaL_checktype(lua, 2, LUA_TTABLE);
    lua_getiuservalue(lua, 1, 1);
    const struct script_jit *jit = luaL_checkudata(lua, -1, SCRIPT_JIT);
    const u32 count = (u32)lua_rawlen(lua, 2);
    struct bound_launch *launch = lua_newuserdatauv(lua, sizeof *launch + count * sizeof(u64), 2);
    launch->jit = jit->jit;
    launch->kernel = kernel;
    launch->count = count;
    for (u32 i = 0; i < count; i++) {
        lua_rawgeti(lua, 2, (lua_Integer)i + 1);
        launch->slots[i] = (u64)lua_tointeger(lua, -1);
        lua_pop(lua, 1);
    }
    luaL_setmetatable(lua, SCRIPT_LAUNCH);
    lua_pushvalue(lua, 1);
    lua_setiuservalue(lua, -2, 1);
    lua_pushvalue(lua, 3);
    lua_setiuservalue(lua, -2, 2);
    return 1;
}

int script_launch(lua_State *lua, int index, struct error *error)
{
    const struct bound_launch *launch = luaL_checkudata(lua, index, SCRIPT_LAUNCH);
    return jit_launch(launch->jit, NULL, launch->kernel, launch->slots, launch->count, error);
}

static int launch_run_lua(lua_State *lua)
{
    struct error error;
    if (script_launch(lua, 1, &error) != 0)
        return script_raise(lua, &error);
    return 0;
}

void script_open_device(lua_State *lua)
{
    static const luaL_Reg functions[] = {
        {"open", core_open}, {"compile", core_compile}, {NULL, NULL}};
    static const luaL_Reg of_device[] = {{"info", device_info_lua},
                                         {"bandwidth", device_bandwidth_lua},
                                         {"sync", device_sync_lua},
                                         {"jit", device_jit_lua},
                                         {"tensor", script_tensor_new},
                                         {"trial", script_trial},
                                         {NULL, NULL}};
    static const luaL_Reg of_jit[] = {
        {"request", jit_request_lua}, {"build", jit_build_lua}, {NULL, NULL}};
    static const luaL_Reg of_kernel[] = {
        {"info", kernel_info_lua}, {"bind", kernel_bind_lua}, {NULL, NULL}};
    static const luaL_Reg of_launch[] = {{"run", launch_run_lua}, {NULL, NULL}};
    script_class(lua, SCRIPT_DEVICE, of_device, device_free_lua);
    script_class(lua, SCRIPT_JIT, of_jit, jit_free_lua);
    script_class(lua, SCRIPT_KERNEL, of_kernel, nothing_to_free);
    script_class(lua, SCRIPT_LAUNCH, of_launch, nothing_to_free);
    luaL_setfuncs(lua, functions, 0);
}
