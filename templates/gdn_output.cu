//@ -- see schedules/gdn_output.lua
//@ include("lib_norm")
//@ include("lib_linear")
//@ include("lib_vector")
//@ local function load_constants()
        load_signs(sign_z + next_head * ${BLOCK}, signs);
        load_signs(sign_out + next_head * ${BLOCK}, out_signs);
//@ end
KERNEL
{
    start_next();
    const u32 lane = lane_id();
    const h16 *sign_z = svh[1] + lane * 4, *sign_out = suh[0] + lane * 4;
    u32 signs[2], out_signs[2];
    f32 factor[4];
    load4_f32(weight + lane * 4, factor);
    //@ if early then
    {
        ${jobs:at("0", "next_")}
        //@ load_constants()
    }
    //@ end
    const u32 rows = round[0];
    const u32 count = ${jobs.count};
    wait_previous();
    for (u32 i = 0;; i++) {
        ${jobs:at("i", "next_")}
        const u32 head = next_head, row = next_row;
        u64 *sum = z_sums + row * ${columns} + ${first} + head * ${BLOCK} + lane * 4;
        u32 words[8], scale_words[4];
        f32 v[4];
        if (${exists("i", "row")}) {
            load_sums(sum, scales + (${row_limit} + row) * 2, words, scale_words);
            load4_f32(o + row * ${k} + head * ${BLOCK} + lane * 4, v);
            //@ if early then
            if (i > 0) {
            //@ else
            {
            //@ end
                //@ load_constants()
            }
        }
        if (i >= count)
            break;
        clear_sums(sum);
        f32 z[4];
        if (!take_values(words, scale_words, signs, z))
            atomic_or_u32(bad + row, 1);
        norm_gate(v, factor, z, f_from_bits(${eps}u));
        make_block(v, out_signs, 0, row, head, lane, act, exponents, sums, bad);
    }
}
