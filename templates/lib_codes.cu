//@ -- Codes of a 32-dim group of the cache as signed bytes (spec exl3.md 5.3: bit planes, widest
//@ -- first and most significant). In scope: bits. A byte is 2c - (2^bits - 1), or c - 128 when
//@ -- bits = 8.
//@ local function centre(name)
//@     if bits == 8 then return ("(%s ^ 0x80808080u)"):format(name) end
//@     local bias = (128 - (2 ^ bits - 1)) % 256
//@     return ("((%s + %s + 0x%02x%02x%02x%02xu) ^ 0x80808080u)"):format(
//@         name, name, bias, bias, bias, bias)
//@ end
//@ local planes = {}
//@ do
//@     local word, left = 0, bits
//@     for _, width in ipairs {8, 4, 2, 1} do
//@         if bits & width ~= 0 then
//@             left = left - width
//@             planes[#planes + 1] = {width = width, word = word, up = left}
//@             word = word + width
//@         end
//@     end
//@ end
// Keys: the B fragment of a group, half 0 or 1: byte i is dim 16*half + a + 4*i, a = lane%4.
// Queries are stored in the same order: slot 16*half + 4*a + i.
static FN u32 key_bytes(const u32 *group, u32 half, u32 a)
{
    u32 code = 0;
    //@ for _, plane in ipairs(planes) do
    {
        //@ if plane.width == 1 then
        u32 x = (group[${plane.word}] >> (16 * half + a)) & 0x1111;
        x = (x | x << 8) & 0x00110011;
        x = (x | x << 4) & 0x01010101;
        //@ elseif plane.width == 2 then
        const u32 x = (group[${plane.word} + half] >> (2 * a)) & 0x03030303;
        //@ elseif plane.width == 4 then
        const u32 lower = (group[${plane.word} + 2 * half] >> (4 * a)) & 0x000f000f;
        const u32 upper = (group[${plane.word} + 2 * half + 1] >> (4 * a)) & 0x000f000f;
        const u32 x = byte_permute(lower, upper, 0x6420);
        //@ else
        const u32 *word = group + ${plane.word} + 4 * half;
        const u32 x = ((word[0] >> (8 * a)) & 255) | ((word[1] >> (8 * a)) & 255) << 8 |
                      ((word[2] >> (8 * a)) & 255) << 16 | ((word[3] >> (8 * a)) & 255) << 24;
        //@ end
        code |= x << ${plane.up};
    }
    //@ end
    return ${centre("code")};
}

// Values: byte i is dim n + 8*i of one key's group.
static FN u32 value_bytes(const u32 *group, u32 n)
{
    u32 code = 0;
    //@ for _, plane in ipairs(planes) do
    {
        //@ if plane.width == 1 then
        const u32 x = (group[${plane.word}] >> n) & 0x01010101;
        //@ elseif plane.width == 2 then
        const u32 lower = (group[${plane.word}] >> (2 * n)) & 0x00030003;
        const u32 upper = (group[${plane.word + 1}] >> (2 * n)) & 0x00030003;
        const u32 x = byte_permute(lower, upper, 0x6420);
        //@ elseif plane.width == 4 then
        const u32 x = ((group[${plane.word}] >> (4 * n)) & 15) |
                      ((group[${plane.word + 1}] >> (4 * n)) & 15) << 8 |
                      ((group[${plane.word + 2}] >> (4 * n)) & 15) << 16 |
                      ((group[${plane.word + 3}] >> (4 * n)) & 15) << 24;
        //@ else
        const u32 *word = group + ${plane.word} + n / 4;
        const u32 shift = 8 * (n % 4);
        const u32 x = ((word[0] >> shift) & 255) | ((word[2] >> shift) & 255) << 8 |
                      ((word[4] >> shift) & 255) << 16 | ((word[6] >> shift) & 255) << 24;
        //@ end
        code |= x << ${plane.up};
    }
    //@ end
    return ${centre("code")};
}
