//@ -- see schedules/linear_output.lua
//@ include("lib_linear")
//@ include("lib_vector")
//@ if mode == "residual" then
//@ include("lib_residual")
//@ end
//@ -- an expression that depends on the part in which a chunk lies
//@ local function by_part(chunk, value)
//@     local text = value(0)
//@     for part = 1, parts - 1 do
//@         text = ("(%s >= %du ? %s : %s)"):format(chunk, first[part], value(part), text)
//@     end
//@     return text
//@ end
//@ local function sign_text(chunk)
//@     return by_part(chunk, function(part) return "sign_" .. part end)
//@ end
//@ local function part_text(chunk)
//@     return by_part(chunk, function(part) return part .. "u" end)
//@ end
//@ local function output_text(b)
//@     return by_part("chunk_" .. b, function(part)
//@         return ("to_%d + (row_%d * %du + chunk_%d * %du)"):format(part, b, p["n" .. part], b,
//@             BLOCK)
//@     end)
//@ end
KERNEL
{
    start_next();
    const u32 lane = lane_id();
    // from where chunk 0 of all parts would lie
    //@ for part = 0, parts - 1 do
    const h16 *sign_${part} = svh[${part}] + lane * 4 - ${first[part] * BLOCK};
    f32 *to_${part} = y[${part}] + lane * 4 - ${first[part] * BLOCK};
    //@ end
    //@ for b = 0, batch - 1 do
    u32 signs_${b}[2];
    //@ end
    //@ if early then
    {
        ${jobs:at("0", "next_")}
        load_signs(${sign_text("next_chunk")} + next_chunk * ${BLOCK}, signs_0);
    }
    //@ end
    const u32 rows = round[0];
    const u32 count = ${jobs.count};
    wait_previous();
    for (u32 i = 0;; i += ${batch}) {
        // All loads of the batch, then all stores.
        //@ for b = 0, batch - 1 do
        //@ local at = b == 0 and "i" or "i + " .. b
        u32 words_${b}[8], scale_${b}[4];
        f32 *out_${b};
        u64 *sum_${b};
        u32 row_${b}, chunk_${b};
        //@ if mode == "residual" then
        f32 before_${b}[4];
        //@ end
        {
            ${jobs:at(at, "next_")}
            row_${b} = next_row;
            chunk_${b} = next_chunk;
            sum_${b} = sums + row_${b} * ${columns} + chunk_${b} * ${BLOCK} + lane * 4;
            out_${b} = ${output_text(b)};
        }
        if (${b == 0 and exists("i", "row_0") or at .. " < count"}) {
            const u32 part = ${part_text("chunk_" .. b)};
            load_sums(sum_${b}, scales + (part * ${row_limit} + row_${b}) * 2, words_${b},
                      scale_${b});
            //@ if mode == "residual" then
            load4_f32(out_${b}, before_${b});
            //@ end
            //@ if b == 0 and early then
            if (i > 0)
            //@ end
                load_signs(${sign_text("chunk_" .. b)} + chunk_${b} * ${BLOCK}, signs_${b});
        }
        //@ end
        //@ for b = 0, batch - 1 do
        if (${b == 0 and "i" or "i + " .. b} >= count)
            break;
        {
            clear_sums(sum_${b});
            f32 v[4];
            //@ if mode == "residual" then
            add_block(words_${b}, scale_${b}, signs_${b}, before_${b}, lane, out_${b},
                      squares + row_${b} * ${chunks} + chunk_${b}, bad + row_${b}, v);
            //@ else
            const u32 finite = take_values(words_${b}, scale_${b}, signs_${b}, v);
            store4_f32(out_${b}, v);
            if (!finite)
                atomic_or_u32(bad + row_${b}, 1);
            //@ end
        }
        //@ end
    }
}
