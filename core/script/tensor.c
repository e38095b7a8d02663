/* tensor.c - typed arrays in a device's memory, for Lua.
 *
 * Elements are numbered row-major from 0, as kernels number them; Lua lists of values begin at 1
 * as lists do. Every operation is complete when it returns: reading waits for what was launched.
 *
 * Random values are made on the host, element i from place i of the seed's sequence
 * (base/random.c), with integer operations, sums and products only: the same seed gives the same
 * bytes everywhere.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "script/script_private.h"

enum { DIMENSIONS_MOST = 8, LABEL_SIZE = 96 };

enum type { U8, I8, U16, I16, H16, U32, I32, F32, U64, I64, TYPES };

static const struct {
    const char *name;
    u32 bytes;
    double low, high; /* of integers; 64-bit ones are Lua's: checked by type alone */
} types[TYPES] = {
    [U8] = {"u8", 1, 0, UINT8_MAX},
    [I8] = {"i8", 1, INT8_MIN, INT8_MAX},
    [U16] = {"u16", 2, 0, UINT16_MAX},
    [I16] = {"i16", 2, INT16_MIN, INT16_MAX},
    [H16] = {"h16", 2, 0, 0},
    [U32] = {"u32", 4, 0, UINT32_MAX},
    [I32] = {"i32", 4, INT32_MIN, INT32_MAX},
    [F32] = {"f32", 4, 0, 0},
    [U64] = {"u64", 8, 0, 0},
    [I64] = {"i64", 8, 0, 0},
};

struct tensor {
    struct device *device;
    dptr address; /* 0: freed */
    enum type type;
    u32 dimensions;
    u64 shape[DIMENSIONS_MOST];
    u64 count; /* elements */
    char label[LABEL_SIZE];
};

static bool is_float(enum type type)
{
    return type == H16 || type == F32;
}

static size_t size_of(const struct tensor *tensor)
{
    return (size_t)(tensor->count * types[tensor->type].bytes);
}

static struct tensor *check_tensor(lua_State *lua, int index)
{
    struct tensor *tensor = luaL_checkudata(lua, index, SCRIPT_TENSOR);
    if (!tensor->address)
        script_fail(lua, "tensor %s was freed", tensor->label);
    return tensor;
}

/* ---- binary16 */

static float half_value(u16 bits)
{
    const u32 exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(fraction + 1024), (int)exponent - 25);
}

/* To nearest, ties to even; beyond the largest half an infinity. */
static u16 half_bits(double value)
{
    const u16 sign = signbit(value) ? 0x8000 : 0;
    const double magnitude = fabs(value);
    if (isnan(value))
        return 0x7e00;
    if (magnitude >= 65520)
        return sign | 0x7c00;
    if (magnitude < 0x1p-14) /* steps of 2^-24; 1024 of them are the smallest normal one */
        return sign | (u16)nearbyint(magnitude * 0x1p24);
    int exponent = 0;
    const double fraction = frexp(magnitude, &exponent);       /* [0.5, 1) */
    const u32 significand = (u32)nearbyint(fraction * 0x1p11); /* 1024 .. 2048 */
    return sign | (u16)(((u32)(exponent + 14) << 10) + significand - 1024);
}

/* ---- one element: bytes <-> Lua */

static void push_element(lua_State *lua, enum type type, const u8 *at)
{
    union {
        u8 u8;
        i8 i8;
        u16 u16;
        i16 i16;
        u32 u32;
        i32 i32;
        i64 i64;
        float f32;
    } v = {0};
    memcpy(&v, at, types[type].bytes);
    switch (type) {
    case U8: lua_pushinteger(lua, v.u8); break;
    case I8: lua_pushinteger(lua, v.i8); break;
    case U16: lua_pushinteger(lua, v.u16); break;
    case I16: lua_pushinteger(lua, v.i16); break;
    case U32: lua_pushinteger(lua, v.u32); break;
    case I32: lua_pushinteger(lua, v.i32); break;
    case H16: lua_pushnumber(lua, half_value(v.u16)); break;
    case F32: lua_pushnumber(lua, v.f32); break;
    default: lua_pushinteger(lua, v.i64); break;
    }
}

static void store_float(enum type type, double value, u8 *at)
{
    const float single = (float)value;
    const u16 half = half_bits(value);
    memcpy(at, type == F32 ? (const void *)&single : &half, types[type].bytes);
}

/* The value at the stack's top, for element `index` of the tensor. */
static void store_element(lua_State *lua, const struct tensor *tensor, u64 index, u8 *at)
{
    const enum type type = tensor->type;
    const bool is_wide = types[type].bytes == 8;
    int is_integer = 0;
    if (is_float(type)) {
        if (lua_type(lua, -1) != LUA_TNUMBER)
            script_fail(lua, "tensor %s: element %d: expected a number, got %s", tensor->label,
                        (int)index, luaL_typename(lua, -1));
        store_float(type, lua_tonumber(lua, -1), at);
        return;
    }
    const lua_Integer value = lua_type(lua, -1) == LUA_TNUMBER
                                  ? lua_tointegerx(lua, -1, &is_integer)
                                  : 0;
    if (!is_integer ||
        (!is_wide && ((double)value < types[type].low || (double)value > types[type].high)))
        script_fail(lua, "tensor %s: element %d: expected an integer that fits %s, got %s",
                    tensor->label, (int)index, types[type].name, luaL_tolstring(lua, -1, NULL));
    memcpy(at, &value, types[type].bytes); /* little-endian */
}

/* ---- creation */

static enum type check_type(lua_State *lua, int index)
{
    const char *name = luaL_checkstring(lua, index);
    for (enum type type = 0; type < TYPES; type++)
        if (strcmp(types[type].name, name) == 0)
            return type;
    script_fail(
        lua, "tensor type \"%s\": expected u8, i8, u16, i16, h16, u32, i32, f32, u64 or i64", name);
    return TYPES;
}

static void read_shape(lua_State *lua, int index, struct tensor *tensor)
{
    const u64 most = (u64)1 << 40; /* elements; the device refuses long before */
    luaL_checktype(lua, index, LUA_TTABLE);
    tensor->dimensions = (u32)lua_rawlen(lua, index);
    tensor->count = 1;
    if (tensor->dimensions < 1 || tensor->dimensions > DIMENSIONS_MOST)
        script_fail(lua, "tensor shape: expected 1 to %d extents, got %d", DIMENSIONS_MOST,
                    (int)tensor->dimensions);
    for (u32 i = 0; i < tensor->dimensions; i++) {
        int is_integer = 0;
        lua_rawgeti(lua, index, (lua_Integer)i + 1);
        const lua_Integer extent = lua_tointegerx(lua, -1, &is_integer);
        if (!is_integer || extent < 1)
            script_fail(lua, "tensor shape: extent %d: expected an integer of at least 1, got %s",
                        (int)i + 1, luaL_tolstring(lua, -1, NULL));
        if ((u64)extent > most / tensor->count)
            script_fail(lua, "tensor shape: extent %d, %s: expected at most 2^40 elements",
                        (int)i + 1, luaL_tolstring(lua, -1, NULL));
        tensor->shape[i] = (u64)extent;
        tensor->count *= (u64)extent;
        lua_pop(lua, 1);
    }
}

/* "x f32 [8, 256]", or without the name */
static void make_label(struct tensor *tensor, const char *name)
{
    struct buffer text = {0};
    buffer_format(&text, "%s%s%s [", name ? name : "", name ? " " : "", types[tensor->type].name);
    for (u32 i = 0; i < tensor->dimensions; i++)
        buffer_format(&text, "%s%llu", i ? ", " : "", (unsigned long long)tensor->shape[i]);
    buffer_add_text(&text, "]");
    snprintf(tensor->label, sizeof tensor->label, "%s", text.data);
    buffer_free(&text);
}

int script_tensor_new(lua_State *lua)
{
    struct error error;
    struct device *device = script_device(lua, 1);
    const enum type type = check_type(lua, 2);
    const char *name = luaL_optstring(lua, 4, NULL);
    struct tensor *tensor = lua_newuserdatauv(lua, sizeof *tensor, 1);
    memset(tensor, 0, sizeof *tensor);
    tensor->device = device;
    tensor->type = type;
    luaL_setmetatable(lua, SCRIPT_TENSOR);
    lua_pushvalue(lua, 1);
    lua_setiuservalue(lua, -2, 1);
    read_shape(lua, 3, tensor);
    make_label(tensor, name);
    if (device_alloc(device, size_of(tensor), tensor->label, &tensor->address, &error) != 0)
        return script_raise(lua, &error);
    return 1;
}

static int tensor_free(lua_State *lua)
{
    struct tensor *tensor = luaL_checkudata(lua, 1, SCRIPT_TENSOR);
    if (tensor->address)
        device_free(tensor->device, tensor->address);
    tensor->address = 0;
    return 0;
}

/* ---- copies. The buffer on the host is Lua's, so that an error leaks nothing. */

static u8 *host_copy(lua_State *lua, const struct tensor *tensor)
{
    struct error error;
    u8 *bytes = lua_newuserdatauv(lua, size_of(tensor), 0);
    if (device_copy_out(tensor->device, NULL, bytes, tensor->address, size_of(tensor), &error) !=
            0 ||
        device_sync(tensor->device, NULL, &error) != 0)
        script_raise(lua, &error);
    return bytes;
}

static void put(lua_State *lua, const struct tensor *tensor, u64 byte, const void *from,
                size_t size)
{
    struct error error;
    if (device_copy_in(tensor->device, NULL, tensor->address + byte, from, size, &error) != 0 ||
        device_sync(tensor->device, NULL, &error) != 0)
        script_raise(lua, &error);
}

/* ---- description */

static int tensor_describe(lua_State *lua)
{
    const struct tensor *tensor = luaL_checkudata(lua, 1, SCRIPT_TENSOR);
    lua_pushfstring(lua, "tensor %s", tensor->label);
    return 1;
}

static int tensor_type(lua_State *lua)
{
    lua_pushstring(lua, types[check_tensor(lua, 1)->type].name);
    return 1;
}

static int tensor_shape(lua_State *lua)
{
    const struct tensor *tensor = check_tensor(lua, 1);
    lua_createtable(lua, (int)tensor->dimensions, 0);
    for (u32 i = 0; i < tensor->dimensions; i++) {
        lua_pushinteger(lua, (lua_Integer)tensor->shape[i]);
        lua_rawseti(lua, -2, (lua_Integer)i + 1);
    }
    return 1;
}

static int tensor_bytes(lua_State *lua)
{
    lua_pushinteger(lua, (lua_Integer)size_of(check_tensor(lua, 1)));
    return 1;
}

static int tensor_address(lua_State *lua)
{
    lua_pushinteger(lua, (lua_Integer)check_tensor(lua, 1)->address);
    return 1;
}

/* ---- elements */

/* The element that the integers from stack place `first` on name, as many as dimensions. */
static u64 check_place(lua_State *lua, const struct tensor *tensor, int first)
{
    u64 at = 0;
    for (u32 i = 0; i < tensor->dimensions; i++) {
        const lua_Integer coordinate = luaL_checkinteger(lua, first + (int)i);
        if (coordinate < 0 || (u64)coordinate >= tensor->shape[i])
            script_fail(lua, "tensor %s: coordinate %d: expected 0 to %d, got %d", tensor->label,
                        (int)i + 1, (int)(tensor->shape[i] - 1), (int)coordinate);
        at = at * tensor->shape[i] + (u64)coordinate;
    }
    return at;
}

static int tensor_get(lua_State *lua)
{
    struct error error;
    u8 element[8];
    const struct tensor *tensor = check_tensor(lua, 1);
    const u32 bytes = types[tensor->type].bytes;
    const u64 at = check_place(lua, tensor, 2);
    if (device_copy_out(tensor->device, NULL, element, tensor->address + at * bytes, bytes,
                        &error) != 0 ||
        device_sync(tensor->device, NULL, &error) != 0)
        return script_raise(lua, &error);
    push_element(lua, tensor->type, element);
    return 1;
}

static int tensor_set(lua_State *lua)
{
    u8 element[8];
    const struct tensor *tensor = check_tensor(lua, 1);
    const u32 bytes = types[tensor->type].bytes;
    const u64 at = check_place(lua, tensor, 2);
    luaL_checkany(lua, (int)tensor->dimensions + 2);
    lua_settop(lua, (int)tensor->dimensions + 2);
    store_element(lua, tensor, at, element);
    put(lua, tensor, at * bytes, element, bytes);
    lua_settop(lua, 1);
    return 1;
}

static int tensor_list(lua_State *lua)
{
    const struct tensor *tensor = check_tensor(lua, 1);
    const u8 *bytes = host_copy(lua, tensor);
    lua_createtable(lua, (int)tensor->count, 0);
    for (u64 i = 0; i < tensor->count; i++) {
        push_element(lua, tensor->type, bytes + i * types[tensor->type].bytes);
        lua_rawseti(lua, -2, (lua_Integer)i + 1);
    }
    return 1;
}

/* Stores the values of the list at the top, nested or not; *count of them so far. */
static void store_list(lua_State *lua, const struct tensor *tensor, u32 depth, u8 *bytes,
                       u64 *count)
{
    const lua_Integer length = (lua_Integer)lua_rawlen(lua, -1);
    luaL_checkstack(lua, 4, "a list in a list in a list");
    if (depth > DIMENSIONS_MOST)
        script_fail(lua, "tensor %s: expected lists nested at most %d deep", tensor->label,
                    DIMENSIONS_MOST);
    for (lua_Integer i = 1; i <= length; i++) {
        lua_rawgeti(lua, -1, i);
        if (lua_istable(lua, -1))
            store_list(lua, tensor, depth + 1, bytes, count);
        else if (*count < tensor->count)
            store_element(lua, tensor, *count, bytes + *count * types[tensor->type].bytes);
        *count += !lua_istable(lua, -1);
        lua_pop(lua, 1);
    }
}

static int tensor_write(lua_State *lua)
{
    u64 count = 0;
    const struct tensor *tensor = check_tensor(lua, 1);
    luaL_checktype(lua, 2, LUA_TTABLE);
    lua_settop(lua, 2);
    u8 *bytes = lua_newuserdatauv(lua, size_of(tensor), 0);
    lua_pushvalue(lua, 2);
    store_list(lua, tensor, 1, bytes, &count);
    if (count != tensor->count)
        return script_fail(lua, "tensor %s: expected %d values, got %d", tensor->label,
                           (int)tensor->count, (int)count);
    put(lua, tensor, 0, bytes, size_of(tensor));
    lua_settop(lua, 1);
    return 1;
}

static int tensor_string(lua_State *lua)
{
    const struct tensor *tensor = check_tensor(lua, 1);
    lua_pushlstring(lua, (const char *)host_copy(lua, tensor), size_of(tensor));
    return 1;
}

static int tensor_load(lua_State *lua)
{
    size_t size = 0;
    const struct tensor *tensor = check_tensor(lua, 1);
    const char *bytes = luaL_checklstring(lua, 2, &size);
    if (size != size_of(tensor))
        return script_fail(lua, "tensor %s: expected %d bytes, got %d", tensor->label,
                           (int)size_of(tensor), (int)size);
    put(lua, tensor, 0, bytes, size);
    lua_settop(lua, 1);
    return 1;
}

static int tensor_copy(lua_State *lua)
{
    struct error error;
    const struct tensor *to = check_tensor(lua, 1), *from = check_tensor(lua, 2);
    if (to->device != from->device || to->type != from->type || to->count != from->count)
        return script_fail(lua,
                           "tensor %s: a copy of %s: expected equal types and sizes, on one "
                           "device",
                           to->label, from->label);
    if (device_copy(to->device, NULL, to->address, from->address, size_of(to), &error) != 0 ||
        device_sync(to->device, NULL, &error) != 0)
        return script_raise(lua, &error);
    lua_settop(lua, 1);
    return 1;
}

/* ---- comparing */

/* {row, column, ...} of element `at`, from 0. */
static void push_place(lua_State *lua, const struct tensor *tensor, u64 at)
{
    lua_createtable(lua, (int)tensor->dimensions, 0);
    for (u32 i = tensor->dimensions; i-- > 0; at /= tensor->shape[i]) {
        lua_pushinteger(lua, (lua_Integer)(at % tensor->shape[i]));
        lua_rawseti(lua, -2, (lua_Integer)i + 1);
    }
}

/* a:differs(b) -> nil where all bits are equal; else {count, place, a, b}: how many elements
 * differ, and the first */
static int tensor_differs(lua_State *lua)
{
    const struct tensor *a = check_tensor(lua, 1), *b = check_tensor(lua, 2);
    if (a->type != b->type || a->count != b->count)
        return script_fail(lua, "tensor %s: compared with %s: expected equal types and sizes",
                           a->label, b->label);
    const u32 bytes = types[a->type].bytes;
    const u8 *left = host_copy(lua, a), *right = host_copy(lua, b);
    u64 count = 0, first = 0;
    for (u64 i = a->count; i-- > 0;)
        if (memcmp(left + i * bytes, right + i * bytes, bytes) != 0) {
            first = i;
            count++;
        }
    if (count == 0)
        return 0;
    lua_newtable(lua);
    script_set_integer(lua, "count", (i64)count);
    push_place(lua, a, first);
    lua_setfield(lua, -2, "place");
    push_element(lua, a->type, left + first * bytes);
    lua_setfield(lua, -2, "a");
    push_element(lua, a->type, right + first * bytes);
    lua_setfield(lua, -2, "b");
    return 1;
}

/* ---- filling */

static u64 random_word(u64 seed, u64 index)
{
    return random_mix(seed + (index + 1) * RANDOM_STEP);
}

/* [0, 1) in steps of 2^-53. */
static double uniform(u64 seed, u64 index)
{
    return (double)(random_word(seed, index) >> 11) * 0x1p-53;
}

/* Mean 0, deviation 1: twelve uniforms of 16 bits, less 6. No value lies beyond 6. */
static double normal(u64 seed, u64 index)
{
    double sum = -6;
    for (u64 i = 0; i < 3; i++)
        for (u64 word = random_word(seed, index * 3 + i), k = 0; k < 4; k++, word >>= 16)
            sum += ((double)(word & 0xffff) + 0.5) * 0x1p-16;
    return sum;
}

static double number_field(lua_State *lua, int index, const char *name, double otherwise)
{
    if (lua_isnoneornil(lua, index))
        return otherwise;
    const int kind = lua_getfield(lua, index, name);
    if (kind != LUA_TNIL && kind != LUA_TNUMBER)
        script_fail(lua, "fill: %s: expected a number, got %s", name, luaL_typename(lua, -1));
    const double value = kind == LUA_TNIL ? otherwise : lua_tonumber(lua, -1);
    lua_pop(lua, 1);
    return value;
}

/* low .. high, both included, in an integer type or as whole numbers of a float type. */
static void fill_integers(lua_State *lua, const struct tensor *tensor, u64 seed, u8 *bytes)
{
    const bool bounded = !is_float(tensor->type) && types[tensor->type].bytes < 8;
    const double low = number_field(lua, 3, "low", bounded ? types[tensor->type].low : 0);
    const double high = number_field(lua, 3, "high", bounded ? types[tensor->type].high : 9);
    if (low != floor(low) || high != floor(high) || low > high || high - low >= 0x1p53)
        script_fail(lua, "fill: expected whole numbers low <= high, got %f and %f", low, high);
    for (u64 i = 0; i < tensor->count; i++) {
        const double value = low + floor(uniform(seed, i) * (high - low + 1));
        if (is_float(tensor->type))
            lua_pushnumber(lua, value);
        else
            lua_pushinteger(lua, (lua_Integer)value);
        store_element(lua, tensor, i, bytes + i * types[tensor->type].bytes);
        lua_pop(lua, 1);
    }
}

static void fill_floats(lua_State *lua, const struct tensor *tensor, bool is_normal, u64 seed,
                        u8 *bytes)
{
    const double low = number_field(lua, 3, "low", -1), high = number_field(lua, 3, "high", 1);
    const double mean = number_field(lua, 3, "mean", 0);
    const double deviation = number_field(lua, 3, "deviation", 1);
    if (!is_float(tensor->type))
        script_fail(lua,
                    "tensor %s: fill with uniform or normal: expected f32 or h16; use integers",
                    tensor->label);
    for (u64 i = 0; i < tensor->count; i++)
        store_float(tensor->type,
                    is_normal ? mean + deviation * normal(seed, i)
                              : low + (high - low) * uniform(seed, i),
                    bytes + i * types[tensor->type].bytes);
}

static void fill_constant(lua_State *lua, const struct tensor *tensor, u8 *bytes)
{
    const u32 size = types[tensor->type].bytes;
    lua_pushvalue(lua, 2);
    store_element(lua, tensor, 0, bytes);
    lua_pop(lua, 1);
    for (u64 i = 1; i < tensor->count; i++)
        memcpy(bytes + i * size, bytes, size);
}

/* A misspelt option would be silently ignored. */
static void check_fill_options(lua_State *lua)
{
    static const char *const names[] = {"seed", "low", "high", "mean", "deviation"};
    if (lua_isnoneornil(lua, 3))
        return;
    luaL_checktype(lua, 3, LUA_TTABLE);
    for (lua_pushnil(lua); lua_next(lua, 3) != 0; lua_pop(lua, 1)) {
        bool known = false;
        for (size_t i = 0; i < COUNT_OF(names); i++)
            known = known || (lua_type(lua, -2) == LUA_TSTRING &&
                              strcmp(lua_tostring(lua, -2), names[i]) == 0);
        if (!known)
            script_fail(lua, "fill: option %s: expected seed, low, high, mean or deviation",
                        luaL_tolstring(lua, -2, NULL));
    }
}

/* t:fill(number) or t:fill("uniform" | "normal" | "integers", {seed=, ...}) */
static int tensor_fill(lua_State *lua)
{
    const struct tensor *tensor = check_tensor(lua, 1);
    lua_settop(lua, 3);
    check_fill_options(lua);
    const u64 seed = random_word((u64)number_field(lua, 3, "seed", 0), 0);
    u8 *bytes = lua_newuserdatauv(lua, size_of(tensor), 0);
    if (lua_type(lua, 2) == LUA_TNUMBER) {
        fill_constant(lua, tensor, bytes);
    } else {
        const char *kind = luaL_checkstring(lua, 2);
        const bool is_normal = strcmp(kind, "normal") == 0;
        if (strcmp(kind, "integers") == 0)
            fill_integers(lua, tensor, seed, bytes);
        else if (is_normal || strcmp(kind, "uniform") == 0)
            fill_floats(lua, tensor, is_normal, seed, bytes);
        else
            return script_fail(
                lua, "fill: expected a number, uniform, normal or integers, got \"%s\"", kind);
    }
    put(lua, tensor, 0, bytes, size_of(tensor));
    lua_settop(lua, 1);
    return 1;
}

void script_open_tensor(lua_State *lua)
{
    static const luaL_Reg methods[] = {
        {"type", tensor_type},       {"shape", tensor_shape}, {"bytes", tensor_bytes},
        {"address", tensor_address}, {"get", tensor_get},     {"set", tensor_set},
        {"list", tensor_list},       {"write", tensor_write}, {"string", tensor_string},
        {"load", tensor_load},       {"copy", tensor_copy},   {"differs", tensor_differs},
        {"fill", tensor_fill},       {"free", tensor_free},   {NULL, NULL}};
    script_class(lua, SCRIPT_TENSOR, methods, tensor_free);
    luaL_getmetatable(lua, SCRIPT_TENSOR);
    lua_pushcfunction(lua, tensor_describe);
    lua_setfield(lua, -2, "__tostring");
    lua_pop(lua, 1);
}
