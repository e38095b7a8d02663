-- asynchronous_spec.lua - the order of the calls whose effect comes later, in the text of
-- linear_main's products of four warps (sm_90).
--
-- The host device multiplies and stores at the call, so it gives the right integers without these
-- fences and waits. A GPU needs each at its place:
--
--     warpgroup_stored    behind a thread's stores, before the barrier that products stand behind
--     warpgroup_sync      between activations that were stored and their products, and between
--                         products that were waited for and what overwrites their activations
--     warpgroup_mma_wait  behind the products, before their sums are used
--     wait_previous       behind the weights, before what an earlier launch has written

local support = dofile "tests/lua/support.lua"

local engine = require("engine").new(support.reader {""}, support.list)

local CALLS = {}
for name in ([[wait_previous copy_async16_at copy_async_commit copy_async_wait
    store2_at warpgroup_stored widen_acts warp_sync block_sync warpgroup_sync
    warpgroup_mma_mul1 warpgroup_mma_wait i64_mul_add]]):gmatch "%S+" do
    CALLS[name] = true
end

-- The calls of a text in their order, those that repeat themselves once.
local function calls_of(source)
    local list = {}
    for name in source:gmatch "([%w_]+)%(" do
        if CALLS[name] and name ~= list[#list] then
            list[#list + 1] = name
        end
    end
    return table.concat(list, " ")
end

local WANTED = {
    "widen_acts store2_at warpgroup_stored",
    "copy_async16_at wait_previous copy_async16_at copy_async_commit", -- the ring
    "copy_async_wait widen_acts warp_sync block_sync",                 -- the first item
    -- a turn of the loop, then one of the loop for few rows
    "warpgroup_sync copy_async16_at copy_async_commit warpgroup_mma_mul1",
    "copy_async_wait widen_acts warp_sync warpgroup_mma_wait i64_mul_add",
    "copy_async_wait warpgroup_sync copy_async16_at copy_async_commit i64_mul_add",
}

describe("products of four warps", function()
    for depth = 2, 4 do
        it("are fenced and waited for, ring of " .. depth, function()
            local source = engine:render {schedule = "linear_main", lines = false,
                target = support.targets.sm_90,
                parameters = {k = 256, n0 = 512, n1 = 256, n2 = 0, n3 = 0, bits = 4,
                    codebook = "mul1", emitter = "wgmma", depth = depth}}.source
            source = source:gsub("^.-templates/prelude/math.h %*/\n", "")
            assert.equal(table.concat(WANTED, " "), calls_of(source))
        end)
    end
end)
