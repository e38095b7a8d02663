// Outputs of an unquantised linear, each by a warp, fp32 in one fixed order: lane l adds the
// products of elements 128 c + 4 l + {0..3}, c ascending, by fma into one accumulator; a xor
// butterfly adds the lanes. Rows have a multiple of 4 elements: a lane's four are one access.
// In scope: dtype, ctype.
//@ dot_words = dtype == "F32" and 4 or 2 -- words of a lane's four weights
static FN void dot_load(const ${ctype} *from, u32 words[${dot_words}])
{
    load${dot_words}_u32((const u32 *)from, words);
}

// `sum` with the lane's four products of a chunk.
static FN f32 dot_add(const f32 v[4], const u32 words[${dot_words}], f32 sum)
{
    //@ for i = 0, 3 do
    //@ local word = ("words[%d]"):format(i * dot_words // 4)
    //@ local half = ("(u16)(%s >> %d)"):format(word, i % 2 * 16)
    //@ local weight = dtype == "F32" and ("f_from_bits(%s)"):format(word)
    //@ weight = weight or dtype == "F16" and ("f_from_h(h_from_bits(%s))"):format(half)
    sum = f_fma(v[${i}], ${weight or ("f_from_bf16(%s)"):format(half)}, sum);
    //@ end
    return sum;
}
