//@ -- Codes of a 32-dim group of the cache as signed bytes (spec exl3.md 5.3: bit planes, widest
//@ -- first and most significant). In scope: bits, code_shift. A byte is (2c - (2^bits - 1)) *
//@ -- 2^code_shift, code_shift = 7 - bits: the code's bits lead it, a 1 follows and the topmost is
//@ -- turned over. With 8 bits it is c - 128 and code_shift is 0.
//@ local planes = {}
//@ do
//@     local word, left, packed = 0, bits, 0
//@     for _, width in ipairs {8, 4, 2, 1} do
//@         if bits & width ~= 0 then
//@             left = left - width
//@             local at = left + 8 - bits   -- the field's lowest bit in the byte
//@             planes[#planes + 1] = {width = width, word = word, at = at, packed = packed,
//@                 mask = ("0x%08xu"):format(((1 << width) - 1 << at) * 0x01010101)}
//@             word = word + width
//@             packed = packed + (width < 4 and 1 or width // 2)
//@         end
//@     end
//@     PACKED = packed                      -- words of value_words
//@ end
//@ local centre = 0x80 | (bits < 8 and 1 << code_shift or 0)
//@ local CENTRE = ("0x%08xu"):format(centre * 0x01010101)
//@ local function shifted(name, by)
//@     return by == 0 and name or by > 0 and name .. " << " .. by or name .. " >> " .. -by
//@ end
// Keys: the B fragment of a group, half 0 or 1: byte i is dim 16*half + a + 4*i, a = lane%4.
// Queries are stored in the same order: slot 16*half + 4*a + i. group: its ${bits} words.
static FN u32 key_bytes(const u32 *group, u32 half, u32 a)
{
    u32 code = 0;
    //@ local centred = false
    //@ for _, plane in ipairs(planes) do
    {
        //@ if plane.width == 1 then
        // Bits four apart choose among the bytes of a table, which turns the byte over as well.
        const u32 chosen = (group[${plane.word}] >> (16 * half + a)) & 0x1111;
        //@ local table = (centre ~ 1 << plane.at) << 8 | centre
        code ^= byte_permute(${("0x%04xu"):format(table)}, 0, chosen);
        //@ centred = true
        //@ elseif plane.width == 2 then
        const u32 word = group[${plane.word} + half];
        code |= funnel_left(word, word, (${32 + plane.at} - 2 * a) % 32) & ${plane.mask};
        //@ elseif plane.width == 4 then
        const u32 lower = group[${plane.word} + 2 * half] >> (4 * a);
        const u32 upper = group[${plane.word} + 2 * half + 1] >> (4 * a);
        const u32 x = byte_permute(lower, upper, 0x6420);
        code |= (${shifted("x", plane.at)}) & ${plane.mask};
        //@ else
        const u32 *word = group + ${plane.word} + 4 * half;
        code = ((word[0] >> (8 * a)) & 255) | ((word[1] >> (8 * a)) & 255) << 8 |
               ((word[2] >> (8 * a)) & 255) << 16 | ((word[3] >> (8 * a)) & 255) << 24;
        //@ end
    }
    //@ end
    return code${centred and "" or " ^ " .. CENTRE};
}

// Values of one group of four keys, still packed: the fields of this lane's dims 4*line .. 4*line
// + 3, a byte a key. codes: of the first key, the others follow `stride` words apart.
static FN void value_words(const u32 *codes, u32 stride, u32 line, u32 packed[${PACKED}])
{
    //@ for _, plane in ipairs(planes) do
    {
        u32 x[4];
        //@ for key = 0, 3 do
        x[${key}] = codes[${key} * stride + ${plane.word} + line * ${plane.width} / 8];
        //@ end
        //@ if plane.width == 8 then
        const u32 t0 = byte_permute(x[0], x[1], 0x5140), t1 = byte_permute(x[2], x[3], 0x5140);
        const u32 t2 = byte_permute(x[0], x[1], 0x7362), t3 = byte_permute(x[2], x[3], 0x7362);
        packed[${plane.packed}] = byte_permute(t0, t1, 0x5410);
        packed[${plane.packed + 1}] = byte_permute(t0, t1, 0x7632);
        packed[${plane.packed + 2}] = byte_permute(t2, t3, 0x5410);
        packed[${plane.packed + 3}] = byte_permute(t2, t3, 0x7632);
        //@ else
        //@ for byte = 0, plane.width == 4 and 1 or 0 do
        {
            //@ local places = {"line / 2", "line % 4", nil, "line % 2 * 2 + " .. byte}
            const u32 byte = ${places[plane.width]}, pair = byte | (byte + 4) << 4;
            const u32 t0 = byte_permute(x[0], x[1], pair), t1 = byte_permute(x[2], x[3], pair);
            packed[${plane.packed + byte}] = byte_permute(t0, t1, 0x5410);
        }
        //@ end
        //@ if plane.width == 1 then
        packed[${plane.packed}] >>= line % 2 * 4;
        //@ end
        //@ end
    }
    //@ end
}

// The four keys' bytes of dim 4*line + i: half of a B fragment.
//@ for i = 0, 3 do
static FN u32 value_bytes_${i}(const u32 packed[${PACKED}])
{
    u32 code = ${CENTRE};
    //@ for _, plane in ipairs(planes) do
    //@ local width, word, up = plane.width, plane.packed, plane.at - plane.width * i
    //@ if width >= 4 then
    //@     word, up = word + i * width // 8, plane.at - width * i % 8
    //@ end
    code ^= (${shifted("packed[" .. word .. "]", up)}) & ${plane.mask};
    //@ end
    return code;
}
//@ end
