//@ -- see schedules/draft_lattice.lua
//@ include("lib_order")
//@ include("lib_vector")
//@ if rank > 0 then
// Elements 8 chunk + {0..7} of a token's row of a codebook.
static FN void load_chunk(const void *table, u32 token, u32 chunk, f32 out[${CHUNK}])
{
    const u64 element = (u64)token * ${rank} + chunk * ${CHUNK};
    const u8 *from = (const u8 *)table + element * ${element_bytes};
    u32 words[${CHUNK * element_bytes // 4}];
    //@ for i = 0, CHUNK * element_bytes // 4 - 1, 4 do
    load4_u32((const u32 *)(from + ${4 * i}), words + ${i});
    //@ end
    //@ for i = 0, CHUNK - 1 do
    //@ if dtype == "F32" then
    out[${i}] = f_from_bits(words[${i}]);
    //@ elseif dtype == "F16" then
    out[${i}] = f_from_h(h_from_bits((u16)(words[${i // 2}] >> ${16 * (i % 2)})));
    //@ else
    out[${i}] = f_from_bf16((u16)(words[${i // 2}] >> ${16 * (i % 2)}));
    //@ end
    //@ end
}

//@ end
KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 drafted = (row + ${TOP - 1}) / ${TOP};
        const u32 before = row == 0 ? round[2] : ids[row - 1];
        const u32 first = drafted * ${TOP} + piece * ${part};
        u32 after[${part}];
        f32 sum[${part}];
        f32 mine = ${MINUS_INFINITY};
        //@ for i = 0, part - 1 do
        after[${i}] = ids[first + ${i}];
        sum[${i}] = ${f32(0)};
        //@ end
        //@ for turn = 0, turns - 1 do
        if (lane < ${chunks - turn * WARP}) {
            const u32 chunk = lane + ${turn * WARP};
            f32 left[${CHUNK}], right[${CHUNK}], g[${CHUNK}];
            load_chunk(predecessors, before == 0xffffffffu ? 0 : before, chunk, left);
            //@ for e = 0, CHUNK - 1, 4 do
            load4_f32(gate + (drafted + 1) * ${gate_stride} + chunk * ${CHUNK} + ${e}, g + ${e});
            //@ end
            //@ for e = 0, CHUNK - 1 do
            left[${e}] = f_mul(left[${e}], g[${e}]);
            //@ end
            //@ for i = 0, part - 1 do
            load_chunk(successors, after[${i}] == 0xffffffffu ? 0 : after[${i}], chunk, right);
            //@ for e = 0, CHUNK - 1 do
            sum[${i}] = f_fma(left[${e}], right[${e}], sum[${i}]);
            //@ end
            //@ end
        }
        //@ end
        //@ for i = 0, part - 1 do
        {
            const f32 value = values[first + ${i}];
            //@ if rank > 0 then
            const f32 score = f_add(value, warp_sum_f32(sum[${i}]));
            //@ else
            const f32 score = value;
            //@ end
            const u32 is_one = before != 0xffffffffu && after[${i}] != 0xffffffffu &&
                               f_gt(value, ${MINUS_INFINITY}) && f_gt(score, ${MINUS_INFINITY});
            mine = f_select(is_one && lane == ${i}, score, mine);
        }
        //@ end
        if (lane < ${part})
            scores[row * ${TOP} + piece * ${part} + lane] = mine;
    ${jobs.close}
}
