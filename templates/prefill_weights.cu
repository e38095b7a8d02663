//@ -- see schedules/prefill_weights.lua
//@ include("lib_trellis")
// The codebook's value of a state.
static FN h16 codebook_value(u32 state)
{
    //@ if codebook == "mul1" then
    const u32 sum = (u32)dot_u8s8(state * 0x83DCD12Du, 0x01010101u, 0);
    return h_fma(h_from_bits((u16)(0x6400u + sum)), h_from_bits(0x1eee), h_from_bits(0xc931));
    //@ else
    //@ if codebook == "3inst" then
    u32 x = state * 89226354u + 64248484u;
    //@ else
    u32 x = state * 0xCBAC1FEDu;
    //@ end
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    return h_add(h_from_bits((u16)(x & 0xffff)), h_from_bits((u16)(x >> 16)));
    //@ end
}

KERNEL
{
    const u32 lane = lane_id();
    //@ for q = 0, trellis_words - 1 do
    const u32 at${q} = trellis_word(lane, ${q}) * ${PACK};
    //@ end
    h16 *mine = ${shared.stage} + warp_id() * ${TILE * stride};
    ${jobs.open}
        const u32 *tile = trellis + ((u64)ktile * ${ntiles} + group * ${tiles}) * ${tile_words};
        warp_sync();
        for (u32 t = 0; t < ${tiles}; t++) {
            const u32 *pack = tile + t / ${PACK} * ${PACK * tile_words} + t % ${PACK};
            u32 word[${trellis_words}], window[8];
            //@ for q = 0, trellis_words - 1 do
            word[${q}] = pack[at${q}];
            //@ end
            trellis_windows(word, lane, window);
            for (u32 j = 0; j < 8; j++) {
                const u32 k = 2 * (lane % 4) + j % 2 + (j / 2 % 2) * 8;
                const u32 column = lane / 4 + (j / 4) * 8;
                mine[k * ${stride} + t * ${TILE} + column] = codebook_value(window[j]);
            }
        }
        warp_sync();
        for (u32 piece = lane; piece < ${TILE * tiles * TILE // 8}; piece += 32) {
            const u32 k = piece / ${tiles * TILE // 8}, column = piece % ${tiles * TILE // 8} * 8;
            u32 words[4];
            load4_u32((const u32 *)(mine + k * ${stride} + column), words);
            h16 *target = out + (u64)(ktile * ${TILE} + k) * ${n} + group * ${tiles * TILE};
            store4_u32((u32 *)(target + column), words);
        }
    ${jobs.close}
}
