--- lib_rounding: roundings on the worst path of what several schedules compute, for their claims
--- (lua/README.md): ours as the templates have it, stock's as one-token decode on SM86 has it.
---
--- Functions count as their error in units of 2^-24, rounded up: half a unit in the last place is
--- one (templates/prelude/math.h). Stock's functions count as one rounding, though they
--- approximate, but for its root, which is as ours one for the root and one for the quotient.
local M = {}

M.EXP2, M.EXP, M.SIGMOID, M.SILU, M.SOFTPLUS, M.SINE = 2, 3, 5, 5, 7, 2
M.ROOT = 2   -- 1 / sqrt
M.LANES = 5  -- a butterfly over the lanes of a warp
M.BLOCK_SQUARES = 4 + 5 -- a lane's chain of four squares, the lanes

--- Butterfly stages of a Hadamard transform.
function M.hadamard(size)
    local stages = 0
    while 1 << stages < size do stages = stages + 1 end
    return stages
end

--- A scale 1 / sqrt(sum + eps) of a sum with so many roundings; a root halves what is under it.
function M.scale(sum)
    return (sum + 1 + 1) // 2 + M.ROOT
end

--- Norm of a row of `blocks` of 128, whose sums of squares are added in order: mean, eps, root, two
--- products. Stock stores it as binary16 (elpis.md 8.2).
function M.rms_norm(blocks)
    return { "RMSNorm", over = "its value",
        ours = { r32 = M.scale(M.BLOCK_SQUARES + blocks + 1) + 2 }, stock = { r32 = 21, r16 = 1 } }
end

--- A head's output: norm, weight, SiLU(z). Stock: the same in fp32, stored as binary16.
function M.gated_norm()
    return { "GDN norm and gate", over = "its value",
        ours = { r32 = M.scale(M.BLOCK_SQUARES + 1) + 2 + M.SILU + 1 },
        stock = { r32 = M.ROOT + 2 + 1 + 1, r16 = 1 } }
end

--- SiLU(gate) * up. Stock: exp, sum, quotient, two products in binary16 (exl3.md 4).
function M.silu_up()
    return { "SiLU(gate) up", over = "abs(gate up)", ours = { r32 = M.SILU + 1 },
        stock = { r16 = 5 } }
end

--- The sum with the residual stream, the same for stock.
function M.residual()
    return { "residual", over = "abs(x) + abs(y)", ours = { r32 = 1 }, stock = { r32 = 1 } }
end

return M
