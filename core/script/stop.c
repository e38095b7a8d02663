/* stop.c - Ctrl-C: the script ends with an error, and what it has is cleared away.
 *
 * A signal that killed the program would leave the compiler's folders behind. So the first one has
 * Lua raise at its next instruction, and at each one after it, whatever the script catches; what C
 * does meanwhile it finishes (a compilation, a round of a trial). A second one, and the first in a
 * script that loops inside a coroutine, for which hooks are its own, ends the program at once.
 */
#include <signal.h>

#include "script/script_private.h"

static lua_State *running;
static volatile sig_atomic_t stopped; /* the signal; 0: none */

static void raise_stop(lua_State *lua, lua_Debug *info)
{
    (void)info;
    lua_pushliteral(lua, "stopped");
    lua_error(lua);
}

static void stop(int number)
{
    stopped = number;
    lua_sethook(running, raise_stop, LUA_MASKCOUNT, 1); /* the one function that signals may call */
}

void script_stop_begin(lua_State *lua)
{
    struct sigaction action = {.sa_handler = stop, .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
    running = lua;
    stopped = 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int script_stop_end(lua_State *lua)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    lua_sethook(lua, NULL, 0, 0); /* finalisers run to their ends */
    return stopped;
}

bool script_goes_on(void *user)
{
    (void)user;
    return !stopped;
}
