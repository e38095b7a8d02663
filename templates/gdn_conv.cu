//@ -- see schedules/gdn_conv.lua
//@ include("lib_vector")
//@ if back then
//@ include("lib_linear")
//@ end
// Depth of the row that ends a path.
static FN i32 depth_of(u32 path)
{
    return (i32)(7 - leading_zeros(~path) / 4);
}

KERNEL
{
    const u32 lane = lane_id(), warp = warp_id();
    ${jobs:at("0")} // a CTA has one
    //@ if group > 1 then
    const u32 head = heads * ${group} + warp / ${row_limit}, row = warp % ${row_limit};
    //@ else
    const u32 head = heads, row = warp;
    //@ end
    const u32 channel = head * ${BLOCK} + lane * 4;
    f32 w[${4 * taps}]; // [channel of the lane, tap]
    //@ for i = 0, 3 do
    load4_f32(weight + (channel + ${i}) * ${taps}, w + ${i * taps});
    //@ end
    //@ if back then
    u32 signs[2];
    load_signs(svh[0] + channel, signs);
    //@ end
    // The window, which earlier passes wrote, then the rows' inputs; of rows that are not active
    // too: nobody looks at those.
    //@ local of_head = group > 1 and " + warp / %d * %d" or ""
    f32 *inputs = ${shared.inputs}${of_head:format(row_limit, (history + row_limit) * BLOCK)};
    const u32 rows = round[0], path = round[${paths} + row], keep = round[10];
    f32 own[4], old[4];
    //@ local function load_window()
    if (row < ${history})
        load4_f32(window + row * ${channels} + channel, old);
    //@ end
    //@ if before_wait == "window" then
    //@ load_window()
    //@ end
    wait_previous();
    //@ if before_wait ~= "window" then
    //@ load_window()
    //@ end
    //@ if back then
    u64 *sum = sums + row * ${sum_columns} + channel;
    u32 sum_words[8], scale_words[4];
    load_sums(sum, scales + row * 2, sum_words, scale_words);
    //@ else
    load4_f32(u + row * ${channels} + channel, own);
    //@ end
    if (row < ${history})
        store4_f32(inputs + row * ${BLOCK} + lane * 4, old);
    //@ if back then
    const u32 finite = take_values(sum_words, scale_words, signs, own);
    if (row < rows) {
        clear_sums(sum);
        store4_f32(u + row * ${channels} + channel, own);
        if (!finite)
            atomic_or_u32(bad + row, 1);
    }
    //@ end
    store4_f32(inputs + (${history} + row) * ${BLOCK} + lane * 4, own);
    block_sync();
    if (row >= rows)
        return;
    const i32 depth = depth_of(path);
    f32 c[4];
    f32 moved[${4 * history}]; // the window after this row
    //@ for i = 0, 3 do
    c[${i}] = ${f32(0)};
    //@ end
    //@ for t = 0, taps - 1 do
    {
        // Counted from the round's first row; nibble j of the path is the ancestor at depth j.
        const i32 place = depth - ${history - t};
        const u32 at = place < 0 ? (u32)(place + ${history})
                                 : ${history} + (path >> (4 * place) & 15);
        f32 input[4];
        load4_f32(inputs + at * ${BLOCK} + lane * 4, input);
        //@ for i = 0, 3 do
        c[${i}] = f_fma(w[${i * taps + t}], input[${i}], c[${i}]);
        //@ if t > 0 then
        moved[${4 * (t - 1) + i}] = input[${i}];
        //@ end
        //@ end
    }
    //@ end
    if (keep && row == rows - 1) {
        //@ for t = 0, history - 1 do
        store4_f32(window + ${t} * ${channels} + channel, moved + ${4 * t});
        //@ end
    }
    //@ for i = 0, 3 do
    c[${i}] = f_silu(c[${i}]);
    //@ end
    f32 *to = v + row * ${v_width} + (channel - ${2 * q_width});
    if (head < ${2 * k_heads}) {
        f32 square = ${f32(0)};
        //@ for i = 0, 3 do
        square = f_fma(c[${i}], c[${i}], square);
        //@ end
        const f32 scale = f_rsqrt(f_add(warp_sum_f32(square), ${f32(1e-6)}));
        const f32 last = head < ${k_heads} ? ${f32(128 ^ -0.5)} : ${f32(1)};
        //@ for i = 0, 3 do
        c[${i}] = f_mul(f_mul(c[${i}], scale), last);
        //@ end
        to = head < ${k_heads} ? q + row * ${q_width} + channel
                               : k + row * ${q_width} + (channel - ${q_width});
    }
    store4_f32(to, c);
}
