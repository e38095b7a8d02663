/* timing.c - launches timed side by side, for Lua (tune/trial.h does it).
 *
 *   device:trial(launches, {rounds=, seconds=, seed=, keep_first=}) -> results, flushed
 *
 * results: a list of {median, low, high, samples, dropped, failed}, seconds, one for each launch;
 * failed is the sentence, or nil. flushed: bytes by which the cache was emptied before each launch.
 */
#include <string.h>

#include "script/script_private.h"
#include "tune/trial.h"

/* A launch lies at stack place `index` while the trial runs. */
struct place {
    lua_State *lua;
    int index;
};

static int launch(void *context, struct error *error)
{
    const struct place *place = context;
    return script_launch(place->lua, place->index, error);
}

static void push_result(lua_State *lua, const struct trial_result *result)
{
    lua_newtable(lua);
    script_set_number(lua, "median", result->median);
    script_set_number(lua, "low", result->low);
    script_set_number(lua, "high", result->high);
    script_set_integer(lua, "samples", result->samples);
    lua_pushboolean(lua, result->dropped);
    lua_setfield(lua, -2, "dropped");
    if (result->failed)
        script_set_text(lua, "failed", result->reason.text);
}

static struct trial_options read_options(lua_State *lua, int index)
{
    struct trial_options options = {.go_on = script_goes_on};
    luaL_checktype(lua, index, LUA_TTABLE);
    lua_getfield(lua, index, "rounds");
    lua_getfield(lua, index, "seconds");
    lua_getfield(lua, index, "seed");
    options.rounds = (u32)luaL_optinteger(lua, -3, 0);
    options.seconds = luaL_optnumber(lua, -2, 0);
    options.seed = (u64)luaL_optinteger(lua, -1, 1);
    options.keep_first = script_flag_field(lua, index, "keep_first");
    lua_pop(lua, 3);
    return options;
}

/* Lua raises in nothing between open and close: a launch was type-checked before. */
int script_trial(lua_State *lua)
{
    struct error error;
    struct trial *trial = NULL;
    struct device *device = script_device(lua, 1);
    luaL_checktype(lua, 2, LUA_TTABLE);
    const struct trial_options options = read_options(lua, 3);
    const u32 count = (u32)lua_rawlen(lua, 2);
    luaL_checkstack(lua, (int)count + 20, "too many candidates");
    struct trial_candidate *candidates = lua_newuserdatauv(lua, (count + 1) * sizeof *candidates,
                                                           0);
    struct trial_result *results = lua_newuserdatauv(lua, (count + 1) * sizeof *results, 0);
    struct place *places = lua_newuserdatauv(lua, (count + 1) * sizeof *places, 0);
    for (u32 i = 0; i < count; i++) {
        lua_rawgeti(lua, 2, (lua_Integer)i + 1);
        places[i] = (struct place){lua, lua_gettop(lua)};
        candidates[i] = (struct trial_candidate){launch, &places[i]};
        luaL_checkudata(lua, -1, SCRIPT_LAUNCH);
    }
    if (trial_open(&trial, device, &error) != 0)
        return script_raise(lua, &error);
    const int status = trial_run(trial, candidates, count, &options, results, &error);
    const u64 flushed = trial_flush_bytes(trial);
    trial_close(trial);
    if (status != 0)
        return script_raise(lua, &error);
    lua_createtable(lua, (int)count, 0);
    for (u32 i = 0; i < count; i++) {
        push_result(lua, &results[i]);
        lua_rawseti(lua, -2, (lua_Integer)i + 1);
    }
    lua_pushinteger(lua, (lua_Integer)flushed);
    return 2;
}
