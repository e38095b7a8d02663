-- residual_wide.lua - a second schedule for a built-in kernel, against the built-in one.
--
--     elpis script schedules/examples/residual_wide.lua             same bits? which is faster?
--     elpis script schedules/examples/residual_wide.lua mine        and install it in the folder mine
--
-- The built-in `residual` adds a linear's output to the residual stream, 128 columns a job, with
-- loads of 4 bytes. Here a job is `per` times 128 columns, loaded 16 bytes at a time before any of
-- them is used. What is added to what does not change, so neither do the bits; whether it is faster
-- is for the device to say.
local elpis = require "elpis"

local wide = elpis.schedule {
    schedule = [[
local schedule, jobs = require "schedule", require "lib_jobs"
local BLOCK = 128
return schedule.define {
    name = "residual",
    summary = "residual stream plus the output of an unquantised linear, 16 bytes at a time",
    mirrors = { "norm_fuse" },
    problem = { n = "u32", rows_max = "u32" },
    numeric = { row_limit = { 8 } },
    tuning = { per = {2, 1, 4}, warps = {4, 1, 2, 8}, map = {"strided", "contiguous"} },
    examples = { {n = 256, rows_max = 8}, {n = 5120, rows_max = 2048} },
    valid = function(p)
        if p.n % BLOCK ~= 0 then return "n must be a multiple of 128, got " .. p.n end
        if p.chunks % p.per ~= 0 then return p.per .. " does not divide " .. p.chunks end
    end,
    derive = function(p, target)
        local chunks = p.n // BLOCK
        local groups = math.max(1, chunks // p.per)
        return {
            BLOCK = BLOCK, chunks = chunks, groups = groups,
            ctas = jobs.ctas(p, groups * p.rows_max, target),
        }
    end,
    args = {
        {"y", "const f32 *", "[rows, n]"}, {"x", "f32 *", "[rows, n]"},
        {"squares", "f32 *", "[rows, n/128]"},
        {"bad", "u32 *", "[8] sticky flags, of row mod 8"},
        {"round", "const u32 *", "[0] = active rows"},
    },
    maps = function(p)
        return jobs.maps(p, { {"row", "rows", max = p.rows_max}, {"group", p.groups} }, "row")
    end,
    launch = jobs.launch,
    template = "residual",
}
]],
    template = [[
//@ include "lib_vector"
KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const u64 at = (u64)row * ${n} + group * ${BLOCK * per} + lane * 4;
        f32 sums[${4 * per}], added[${4 * per}];
        //@ for c = 0, per - 1 do
        load4_f32(x + at + ${c * BLOCK}, sums + ${4 * c});
        load4_f32(y + at + ${c * BLOCK}, added + ${4 * c});
        //@ end
        u32 finite = 1;
        for (u32 c = 0; c < ${per}; c++) {
            f32 square = ${f32(0)};
            for (u32 i = 0; i < 4; i++) {
                const f32 value = f_add(sums[4 * c + i], added[4 * c + i]);
                square = f_fma(value, value, square);
                finite &= f_is_finite(value);
                sums[4 * c + i] = value;
            }
            store4_f32(x + at + c * ${BLOCK}, sums + 4 * c);
            square = warp_sum_f32(square);
            if (lane == 0)
                squares[row * ${chunks} + group * ${per} + c] = square;
        }
        if (!finite)
            atomic_or_u32(bad + row % ${row_limit}, 1);
    ${jobs.close}
}
]],
}

local case = elpis.case {
    schedule = wide,
    problems = { {n = 5120, rows_max = 8}, {n = 256, rows_max = 8}, {n = 384, rows_max = 3} },
    runs = 3, -- all rows; one; all, with a value that is not a number
    reference = "residual",
    inputs = function(p, dev, run)
        local rows = run == 2 and 1 or p.rows_max
        local x = dev:tensor("f32", {p.rows_max, p.n}, "x"):fill("normal", {seed = 2 * run})
        if run == 3 then
            x:set(p.rows_max - 1, 5, 0 / 0)
        end
        return {
            x = x,
            y = dev:tensor("f32", {p.rows_max, p.n}, "y"):fill("normal", {seed = 2 * run + 1}),
            squares = dev:tensor("f32", {p.rows_max, p.n // 128}, "squares"),
            bad = dev:tensor("u32", {8}, "bad"),
            round = dev:tensor("u32", {32}, "round"):set(0, rows),
        }
    end,
    bytes = function(p) return p.rows_max * p.n * 3 * 4 + p.rows_max * p.n // 128 * 4 end,
}

case:check():print()
case:time():print()
if arg[1] then
    case:install(arg[1])
end
