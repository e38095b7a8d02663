// The 16 best of many, by one warp: u64 keys, larger is better, 0 is no key. A key is the order of
// a value over the complement of its column: value descending, then column ascending, no two equal.
// So the best do not depend on how columns are divided nor on the order in which they come.
//@ include("lib_order")
//@ TOP = 16
//@ -- Lines that sort the warp's 32 values, largest in lane 0: a bitonic network.
//@ function sorting_lines(exchange, value)
//@     local lines, size = {}, 2
//@     while size <= 32 do
//@         local stride = size // 2
//@         while stride > 0 do
//@             lines[#lines + 1] = ("%s = %s(%s, %d, (lane / %d + lane / %d) %% 2 == 0);"):format(
//@                 value, exchange, value, stride, size, stride)
//@             stride = stride // 2
//@         end
//@         size = size * 2
//@     end
//@     return table.concat(lines, "\n")
//@ end
static FN u64 key_of(f32 value, u32 column)
{
    return (u64)order_of(value) << 32 | (0xffffffffu - column);
}

// Lanes `stride` apart compare; the one with `first` keeps the larger.
static FN u64 exchange_keys(u64 key, u32 stride, u32 first)
{
    const u64 other = shuffle_xor_u64(key, stride);
    return (other > key) == (first != 0) ? other : key;
}

// Sorts the warp's 32 keys, largest in lane 0.
static FN u64 sort_keys(u64 key)
{
    const u32 lane = lane_id();
    ${sorting_lines("exchange_keys", "key")}
    return key;
}

// Each half of the warp holds two sorted lists of 16, a lane one key of either: the 16 best of
// both, sorted.
static FN u64 merge_keys(u64 kept, u64 fresh)
{
    const u32 lane = lane_id();
    const u64 other = shuffle_u64(fresh, lane ^ ${TOP - 1});
    u64 key = other > kept ? other : kept;
    //@ local stride = TOP // 2
    //@ while stride > 0 do
    key = exchange_keys(key, ${stride}, lane / ${stride} % 2 == 0);
    //@ stride = stride // 2
    //@ end
    return key;
}
