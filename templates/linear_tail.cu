//@ -- see schedules/linear_tail.lua
//@ include("lib_norm")
//@ include("lib_linear")
//@ include("lib_vector")
//@ include("lib_residual")
//@ local kept = outputs.items_max == 1 -- a warp's block, from one half to the other
//@ local function load_output(name)
        load_signs(sign_out + ${name}chunk * ${BLOCK}, signs);
//@ end
//@ local function load_input(name)
        load4_f32(weight + ${name}chunk * ${BLOCK} + lane * 4, factor);
        //@ for part = 0, parts - 1 do
        load_signs(sign_in_${part} + ${name}chunk * ${BLOCK}, signs_${part});
        //@ end
//@ end
//@ local function load_constants(name) -- what no launch writes
        //@ load_output(name)
        //@ if kept then
        //@ load_input(name)
        //@ end
//@ end
KERNEL
{
    start_next();
    const u32 lane = lane_id();
    const h16 *sign_out = svh[0] + lane * 4;
    u32 signs[2];
    f32 factor[4];
    //@ for part = 0, parts - 1 do
    const h16 *sign_in_${part} = suh[${part}] + lane * 4;
    u32 signs_${part}[2];
    //@ end
    //@ if early then
    {
        ${outputs:at("0", "next_")}
        //@ load_constants("next_")
    }
    //@ end
    wait_previous();
    const u32 rows = round[0];
    f32 v[4];
    const u32 count = ${outputs.count};
    for (u32 i = 0;; i++) {
        ${outputs:at("i", "next_")}
        const u32 row = next_row, chunk = next_chunk;
        const u32 at = row * ${p.k} + chunk * ${BLOCK} + lane * 4;
        u32 words[8], scale_words[4];
        f32 before[4];
        if (${exists("i", "row")}) {
            load_sums(sums + at, scales + row * 2, words, scale_words);
            load4_f32(x + at, before);
            //@ if early then
            if (i > 0) {
            //@ else
            {
            //@ end
                //@ load_constants("next_")
            }
        }
        if (i >= count)
            break;
        clear_sums(sums + at);
        add_block(words, scale_words, signs, before, lane, x + at,
                  squares + row * ${blocks} + chunk, bad + row, v);
    }
    grid_sync(barrier, ${ctas});
    const u32 input_count = ${inputs.count};
    for (u32 i = 0; i < input_count; i++) {
        ${inputs:at("i")}
        //@ if not kept then
        load4_f32(x + row * ${p.k} + chunk * ${BLOCK} + lane * 4, v);
        //@ load_input("")
        //@ end
        norm_values(v, norm_scale(squares + row * ${blocks}, ${blocks}, ${p.k},
                                  f_from_bits(${eps}u)), factor);
        //@ for part = 0, parts - 1 do
        {
            f32 own[4] = {v[0], v[1], v[2], v[3]};
            make_block(own, signs_${part}, ${part}, row, chunk, lane, act, exponents, digits, bad);
        }
        //@ end
    }
}
