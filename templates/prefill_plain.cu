//@ -- see schedules/prefill_plain.lua
//@ include("lib_vector")
//@ local element = ({ F16 = "h16", BF16 = "u16", F32 = "f32" })[dtype]
static FN void load4_weight(const ${element} *from, f32 v[4])
{
    //@ if dtype == "F32" then
    load4_f32(from, v);
    //@ else
    u32 words[2];
    load2_u32((const u32 *)from, words);
    for (u32 i = 0; i < 4; i++) {
        const u16 bits = (u16)(words[i / 2] >> (i % 2) * 16);
        //@ if dtype == "F16" then
        v[i] = f_from_h(h_from_bits(bits));
        //@ else
        v[i] = f_from_bf16(bits);
        //@ end
    }
    //@ end
}

KERNEL
{
    const u32 lane = lane_id();
    ${jobs.open}
        f32 sums[${outputs}];
        #pragma unroll
        for (u32 o = 0; o < ${outputs}; o++)
            sums[o] = ${f32(0)};
        if (row < rows) {
            for (u32 chunk = 0; chunk < ${chunks}; chunk++) {
                const u32 at = chunk * ${BLOCK} + lane * 4;
                if (at < ${k}) {
                    f32 v[4];
                    load4_f32(x + (u64)row * ${k} + at, v);
                    #pragma unroll
                    for (u32 o = 0; o < ${outputs}; o++) {
                        f32 w[4];
                        const u32 output = group * ${outputs} + o;
                        if (output < ${n}) {
                            load4_weight((const ${element} *)weight + (u64)output * ${k} + at, w);
                            for (u32 i = 0; i < 4; i++)
                                sums[o] = f_fma(v[i], w[i], sums[o]);
                        }
                    }
                }
            }
            #pragma unroll
            for (u32 o = 0; o < ${outputs}; o++)
                sums[o] = warp_sum_f32(sums[o]);
        }
        #pragma unroll
        for (u32 o = 0; o < ${outputs}; o++) {
            const u32 output = group * ${outputs} + o;
            if (lane == 0 && output < ${n})
                y[(u64)row * ${stride} + output] = sums[o];
        }
    ${jobs.close}
}
