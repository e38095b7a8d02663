--- lib_linear: what the schedules share that use templates/lib_linear.cu.
local M = {}

--- Columns of a Hadamard block, which one warp takes.
M.BLOCK = 128

--- The largest digit of an activation, and the most rows of a matrix for which the 64-bit sums are
--- proved (linear_main's claims).
M.DIGIT, M.K_MOST = 32639, 37888

--- The power of two that brings sums of a codebook back to values, both 1/sqrt(128) among it; false
--- for "none": no sums are read.
function M.back(codebook)
    if codebook == "none" then return false end
    return codebook == "mul1" and 22 + 7 or 17 + 7 + 13
end

--- u32 of the byte planes of one matrix: [k/16][32 lanes][2 planes].
function M.act_words(k)
    return k // 16 * 64
end

--- The arguments of a kernel that takes values from the sums of a group, after its others.
function M.with_sums(args, columns)
    for _, argument in ipairs {
        { "sums", "u64 *", "[8, " .. columns .. "] of all parts, cleared where read" },
        { "scales", "const u64 *", "[parts, 8, 2] largest exponent, Q" },
        { "svh", "const h16 * const *", "[parts] -> [columns]" },
        { "bad", "u32 *", "[8] sticky flags" },
    } do
        args[#args + 1] = argument
    end
    return args
end

return M
