//@ -- see schedules/linear_input.lua
//@ include("lib_norm")
//@ include("lib_linear")
//@ include("lib_vector")
//@ -- Four values of a row from `at` on, zeros from k_valid on.
//@ local function load_values(from, to)
        //@ if k_valid % 4 == 0 then
        if (at < ${k_valid})
            load4_f32(${from}, ${to});
        //@ else
        if (at < ${k_valid})
            for (u32 k = 0; k < 4; k++)
                ${to}[k] = (${from})[k];
        //@ end
//@ end
//@ -- What a job reads that no launch writes.
//@ local function load_constants(name)
        load_signs(suh[${name}part] + ${name}chunk * ${BLOCK} + lane * 4, signs);
        //@ if mode == "norm" then
        {
            const u32 at = ${name}chunk * ${BLOCK} + lane * 4;
            //@ load_values("weight + at", "factor")
        }
        //@ end
//@ end
KERNEL
{
    start_next();
    const u32 lane = lane_id();
    u32 signs[2];
    //@ if mode == "norm" then
    f32 factor[4];
    //@ elseif mode == "gdn" then
    f32 factor[4];
    load4_f32(weight + lane * 4, factor);
    //@ end
    //@ if early then
    {
        ${jobs:at("0", "next_")}
        //@ load_constants("next_")
    }
    //@ end
    const u32 rows = round[0];
    const u32 count = ${jobs.count};
    wait_previous();
    for (u32 i = 0;; i++) {
        ${jobs:at("i", "next_")}
        const u32 row = next_row, part = next_part, chunk = next_chunk;
        const u32 at = chunk * ${BLOCK} + lane * 4;
        f32 v[4], other[4];
        for (u32 k = 0; k < 4; k++)
            v[k] = other[k] = ${f32(0)};
        //@ if mode == "norm" then
        f32 scale = ${f32(0)};
        //@ end
        if (${exists("i", "row")}) {
            //@ load_values("x + row * " .. k_valid .. " + at", "v")
            //@ if mode == "glu" or mode == "gdn" then
            //@ load_values("y + row * " .. k_valid .. " + at", "other")
            //@ elseif mode == "norm" then
            scale = norm_scale(squares + row * ${blocks}, ${blocks}, ${k_valid},
                               f_from_bits(${eps}u));
            //@ end
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
        //@ if mode == "norm" then
        if (at < ${k_valid})
            norm_values(v, scale, factor);
        //@ elseif mode == "glu" then
        for (u32 k = 0; k < 4; k++)
            v[k] = at < ${k_valid} ? f_mul(f_silu(v[k]), other[k]) : ${f32(0)};
        //@ elseif mode == "gdn" then
        norm_gate(v, factor, other, f_from_bits(${eps}u));
        //@ end
        make_block(v, signs, part, row, chunk, lane, act, exponents, sums, bad);
    }
}
