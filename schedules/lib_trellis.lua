-- lib_trellis: where the bits of an EXL3 tile lie (spec exl3.md 2.2), and how the device keeps
-- tiles.
--
-- A tile of 16 x 16 weights is a ring of 8*bits u32 words. On the device four tiles that follow
-- each other along n are one pack: word w of all four, then word w + 1, ... (trellis_pack makes
-- packs of what the file has). So one 16-byte load gives a lane its word of four tiles.
local M = { PACK = 4 }

--- Bit of the first word at which lane's windows begin.
local function shift(bits, lane)
    return (8 * bits * lane + bits - 16) % (256 * bits) % 32
end

--- Words of the ring that hold a lane's eight windows of 16 bits, for the lane that needs most.
function M.words(bits)
    local most = 0
    for lane = 0, 31 do most = math.max(most, shift(bits, lane)) end
    return (most + 16 + 7 * bits + 31) // 32
end

--- The shift when it is that of every lane, or false.
function M.common_shift(bits)
    for lane = 1, 31 do
        if shift(bits, lane) ~= shift(bits, 0) then return false end
    end
    return shift(bits, 0)
end

return M
