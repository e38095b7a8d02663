// Four f32 as one 16-byte access, and two halves in a word. Pointers are aligned to what is moved.
static FN void load4_f32(const f32 *from, f32 v[4])
{
    u32 words[4];
    load4_u32((const u32 *)from, words);
    for (u32 i = 0; i < 4; i++)
        v[i] = f_from_bits(words[i]);
}

static FN void store4_f32(f32 *to, const f32 v[4])
{
    const u32 words[4] = {f_bits(v[0]), f_bits(v[1]), f_bits(v[2]), f_bits(v[3])};
    store4_u32((u32 *)to, words);
}

static FN u32 pack_halves(f32 low, f32 high)
{
    return (u32)h_bits(h_from_f(low)) | (u32)h_bits(h_from_f(high)) << 16;
}

static FN void store4_h16(h16 *to, const f32 v[4])
{
    const u32 words[2] = {pack_halves(v[0], v[1]), pack_halves(v[2], v[3])};
    store2_u32((u32 *)to, words);
}
