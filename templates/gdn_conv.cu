//@ -- see schedules/gdn_conv.lua
//@ include("lib_vector")
//@ include("lib_norm")
//@ include("lib_dot")
// Input `place` of a row's sequence, counted from the round's first row: its ancestor at that
// depth, or, below zero, the window. path: nibble j is the ancestor at depth j.
static FN const f32 *input_at(const f32 *u, const f32 *window, u32 path, i32 place)
{
    return place < 0 ? window + (place + ${history}) * ${channels}
                     : u + (path >> (4 * place) & 15) * ${channels};
}

// Depth of the row that ends a path.
static FN i32 depth_of(u32 path)
{
    return (i32)(7 - leading_zeros(~path) / 4);
}

KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        if (job >= ${heads}) {
            const u32 dot = job - ${heads};
            const u32 row = dot / ${2 * v_heads}, column = dot % ${2 * v_heads};
            if (row < rows) {
                const void *side = column < ${v_heads} ? weight_a : weight_b;
                const f32 scale = norm_scale(squares + row * ${chunks}, ${chunks}, ${k},
                                             f_from_bits(${eps}u), lane);
                const f32 sum = dot_row(x + row * ${k}, scale, norm,
                                        (const ${ctype} *)side + column % ${v_heads} * ${k}, lane);
                if (lane == 0)
                    ab[row * ${2 * v_heads} + column] = sum;
            }
            continue;
        }
        const u32 head = job;
        const u32 channel = head * ${BLOCK} + lane * 4;
        //@ for i = 0, 3 do
        f32 w${i}[${taps}];
        //@ for t = 0, taps - 1 do
        w${i}[${t}] = weight[(channel + ${i}) * ${taps} + ${t}];
        //@ end
        //@ end
        f32 moved[${4 * history}]; // the window after the round, where that is asked for
        for (u32 row = 0; row < rows; row++) {
            const u32 path = round[${paths} + row];
            const i32 depth = depth_of(path);
            f32 c[4];
            //@ for i = 0, 3 do
            c[${i}] = ${f32(0)};
            //@ end
            //@ for t = 0, taps - 1 do
            {
                f32 input[4];
                load4_f32(input_at(u, window, path, depth - ${history - t}) + channel, input);
                //@ for i = 0, 3 do
                c[${i}] = f_fma(w${i}[${t}], input[${i}], c[${i}]);
                //@ if t > 0 then
                moved[${4 * (t - 1) + i}] = input[${i}];
                //@ end
                //@ end
            }
            //@ end
            //@ for i = 0, 3 do
            c[${i}] = f_silu(c[${i}]);
            //@ end
            f32 *to;
            if (head < ${2 * k_heads}) {
                f32 square = ${f32(0)};
                //@ for i = 0, 3 do
                square = f_fma(c[${i}], c[${i}], square);
                //@ end
                f32 scale = f_rsqrt(f_add(warp_sum_f32(square), ${f32(1e-6)}));
                //@ for i = 0, 3 do
                c[${i}] = f_mul(c[${i}], scale);
                //@ end
                if (head < ${k_heads}) {
                    //@ for i = 0, 3 do
                    c[${i}] = f_mul(c[${i}], ${f32(128 ^ -0.5)});
                    //@ end
                    to = q + row * ${q_width} + channel;
                } else {
                    to = k + row * ${q_width} + (channel - ${q_width});
                }
            } else {
                to = v + row * ${v_width} + (channel - ${2 * q_width});
            }
            store4_f32(to, c);
        }
        if (round[10]) {
            //@ for t = 0, history - 1 do
            store4_f32(window + ${t} * ${channels} + channel, moved + ${4 * t});
            //@ end
        }
    ${jobs.close}
}
