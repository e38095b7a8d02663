//@ -- see schedules/attention_combine.lua
//@ include("lib_spans")
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const u32 spans = span_of(round[16 + row]) + 1;
        f32 v[8];
        //@ for i = 0, 7 do
        v[${i}] = ${f32(0)};
        //@ end
        i32 top = -(1 << 30);
        f32 sum = ${f32(0)};
        for (u32 span = 0; span < spans; span++) {
            const u32 at = (span * ${row_limit} + row) * ${q_heads} + head;
            const f32 mine = f_from_bits(stat[at * 2 + 1]);
            if (f_gt(mine, ${f32(0)})) {
                const i32 span_top = (i32)stat[at * 2];
                const i32 new_top = span_top > top ? span_top : top;
                const f32 old_scale = f_pow2(top - new_top), new_scale = f_pow2(span_top - new_top);
                const f32 *from = part + at * ${HEAD} + lane * 4;
                top = new_top;
                sum = f_fma(mine, new_scale, f_mul(sum, old_scale));
                //@ for half = 0, 1 do
                //@ for i = 0, 3 do
                v[${4 * half + i}] = f_fma(from[${128 * half + i}], new_scale,
                                              f_mul(v[${4 * half + i}], old_scale));
                //@ end
                //@ end
            }
        }
        //@ for i = 0, 7 do
        v[${i}] = f_div(v[${i}], sum);
        //@ end
        //@ if bits ~= 16 then
        warp_hadamard32(v);
        warp_hadamard32(v + 4);
        //@ for i = 0, 7 do
        v[${i}] = f_mul(v[${i}], f_from_bits(0x3e3504f3u));
        //@ end
        //@ end
        const f32 *gate = qg + (row * ${q_heads} + head) * ${2 * HEAD} + ${HEAD} + lane * 4;
        f32 *to = y + (row * ${q_heads} + head) * ${HEAD} + lane * 4;
        //@ for half = 0, 1 do
        //@ for i = 0, 3 do
        to[${128 * half + i}] = f_mul(v[${4 * half + i}], f_sigmoid(gate[${128 * half + i}]));
        //@ end
        //@ end
    ${jobs.close}
}
