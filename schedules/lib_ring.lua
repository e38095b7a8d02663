-- lib_ring: which keys a block of up to 8 rows can see in a draft layer's ring, and the split of
-- their positions into tiles of 64, on the grid of absolute positions. templates/lib_ring.cu has
-- the same formulas for a round's base and rows.
local M = { TILE = 64, ROWS = 8 }

--- How many positions before the block its first row sees: a window counts the row itself.
function M.reach(window, capacity)
    return window > 0 and window - 1 or capacity
end

--- How many tiles the keys of a round can touch.
function M.tiles(reach)
    return (reach + M.ROWS + M.TILE - 1) // M.TILE + 1
end

--- nil, or why this window does not fit the ring.
function M.refusal(window, capacity)
    if capacity == 0 then return "capacity must be at least 1" end
    if window > capacity then
        return "window must be at most capacity, got " .. window .. " and " .. capacity
    end
end

return M
