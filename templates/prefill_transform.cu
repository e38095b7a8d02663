//@ -- see schedules/prefill_transform.lua
//@ include("lib_vector")
//@ include("lib_quad")
//@ if mode == "norm" then
// Sums of the blocks, ascending.
static FN f32 add_blocks(const f32 *squares)
{
    f32 sum = ${f32(0)};
    #pragma unroll
    for (u32 quad = 0; quad < ${quads}; quad++) {
        f32 four[4];
        load4_f32(squares + quad * 4, four);
        for (u32 i = 0; i < 4; i++)
            sum = f_add(sum, four[i]);
    }
    return sum;
}
//@ end

KERNEL
{
    const u32 lane = lane_id();
    //@ if mode == "norm" then
    f32 *squares = ${shared.squares};
    u32 half = 0; // of squares: the next row's sums are written while this one's are read
    ${jobs.open}
        f32 values[${each * VALUES}];
        #pragma unroll
        for (u32 i = 0; i < ${each}; i++) {
            const u32 block = (warp_id() + i * ${warps}) * 4 + lane / 8;
            const u32 at = block * ${BLOCK} + lane % 8 * 4;
            quad_load(x + (u64)row * ${width}, at, row < rows ? ${width} : 0,
                      values + i * ${VALUES});
        }
        #pragma unroll
        for (u32 i = 0; i < ${each}; i++) {
            const u32 block = (warp_id() + i * ${warps}) * 4 + lane / 8;
            const f32 sum = quad_squares(values + i * ${VALUES});
            if (lane % 8 == 0 && block < ${4 * quads})
                squares[half + block] = sum;
        }
        block_sync();
        const f32 mean = f_div(add_blocks(squares + half), ${f32(width)});
        const f32 scale = f_rsqrt(f_add(mean, f_from_bits(${eps}u)));
        half = ${4 * quads} - half;
        #pragma unroll
        for (u32 i = 0; i < ${each}; i++) {
            const u32 block = (warp_id() + i * ${warps}) * 4 + lane / 8;
            const u32 at = block * ${BLOCK} + lane % 8 * 4;
            f32 *v = values + i * ${VALUES};
            #pragma unroll
            for (u32 part = 0; part < 4; part++) {
                if (at + 32 * part < ${width}) {
                    f32 w[4];
                    load4_f32(weight + at + 32 * part, w);
                    for (u32 e = 0; e < 4; e++)
                        v[4 * part + e] = f_mul(f_mul(v[4 * part + e], scale), w[e]);
                    if (normed)
                        store4_f32(normed + (u64)row * ${width} + at + 32 * part, v + 4 * part);
                }
            }
            //@ for part = 0, parts - 1 do
            {
                f32 one[${VALUES}];
                for (u32 j = 0; j < ${VALUES}; j++)
                    one[j] = v[j];
                quad_operand(one, suh${part} + at, block < ${blocks},
                             out + ${part * rows_max * padded}u + (u64)row * ${padded} + at);
            }
            //@ end
        }
    ${jobs.close}
    //@ else
    ${jobs.open}
        const u32 block = quad * 4 + lane / 8;
        const u32 at = block * ${BLOCK} + lane % 8 * 4;
        const u32 inside = block < ${blocks};
        f32 v[${VALUES}];
        quad_load(x + (u64)row * ${width}, at, row < rows ? ${width} : 0, v);
        //@ if mode == "gdn" then
        f32 gate[${VALUES}];
        quad_load(y + (u64)row * ${width}, at, row < rows ? ${width} : 0, gate);
        const f32 mean = f_mul(quad_squares(v), ${f32(1 / BLOCK)});
        const f32 scale = f_rsqrt(f_add(mean, f_from_bits(${eps}u)));
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            f32 w[4];
            load4_f32(weight + lane % 8 * 4 + 32 * i, w);
            for (u32 e = 0; e < 4; e++)
                v[4 * i + e] = f_mul(f_mul(f_mul(v[4 * i + e], scale), w[e]),
                                     f_silu_short(gate[4 * i + e]));
        }
        //@ end
        quad_operand(v, suh0 + at, inside, out + (u64)row * ${padded} + at);
    ${jobs.close}
    //@ end
}
