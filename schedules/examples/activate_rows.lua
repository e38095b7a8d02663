-- activate_rows.lua - a second schedule for a built-in kernel, against the built-in one.
--
--     elpis script schedules/examples/activate_rows.lua          same bits? which is faster?
--     elpis script schedules/examples/activate_rows.lua mine     and install it in the folder mine
--
-- The built-in `activate` makes the input of an unquantised linear, a job being 128 columns of one
-- row. For a norm each job adds up the squares of the whole row again. Here a row is cut into
-- `parts` only, each of which does that once for all its columns: less work, fewer jobs. Sums run
-- in the same order, so the bits are the same; which division is faster depends on how many rows
-- there are and how wide the device is.
local elpis = require "elpis"

local rows = elpis.schedule {
    schedule = [[
local schedule, jobs = require "schedule", require "lib_jobs"
local BLOCK = 128
return schedule.define {
    name = "activate",
    summary = "input of an unquantised linear: norm, gate or copy, a part of a row a job",
    mirrors = { "norm_fuse" },
    problem = {
        k = "u32", rows_max = "u32", mode = { "plain", "norm", "glu", "gdn" }, eps = "u32",
    },
    tuning = { parts = {1, 2, 8}, warps = {1, 4}, map = {"strided", "contiguous"} },
    examples = { { k = 256, rows_max = 8, mode = "norm", eps = 0x358637bd } },
    valid = function(p)
        if p.k % BLOCK ~= 0 then return "k must be a multiple of 128, got " .. p.k end
        if p.chunks % p.parts ~= 0 then return p.parts .. " does not divide " .. p.chunks end
    end,
    derive = function(p, target)
        local chunks = p.k // BLOCK
        return {
            BLOCK = BLOCK, chunks = chunks, chunks_a_part = math.max(1, chunks // p.parts),
            ctas = jobs.ctas(p, p.parts * p.rows_max, target),
        }
    end,
    args = {
        {"x", "const f32 *", "[rows, k]"},
        {"y", "const f32 *", "[rows, k], second source of glu and gdn"},
        {"weight", "const f32 *", "[k] of norm (1 + w ready), [128] of gdn"},
        {"out", "f32 *", "[rows, k]"},
        {"round", "const u32 *", "[0] = active rows"},
    },
    maps = function(p)
        return jobs.maps(p, { {"row", "rows", max = p.rows_max}, {"part", p.parts} }, "row")
    end,
    launch = jobs.launch,
    template = "activate",
}
]],
    template = [[
// Sum of the squares of a lane's four values and of all lanes.
static FN f32 squares_of(const f32 *at)
{
    f32 square = ${f32(0)};
    for (u32 i = 0; i < 4; i++)
        square = f_fma(at[i], at[i], square);
    return warp_sum_f32(square);
}

KERNEL
{
    const u32 rows = round[0];
    const u32 lane = lane_id();
    ${jobs.open}
        const u64 first = (u64)row * ${k} + lane * 4;
        //@ if mode == "norm" then
        f32 sum = ${f32(0)};
        for (u32 chunk = 0; chunk < ${chunks}; chunk++)
            sum = f_add(sum, squares_of(x + first + chunk * ${BLOCK}));
        const f32 scale = f_rsqrt(f_add(f_div(sum, f_from_u32(${k})), f_from_bits(${eps}u)));
        //@ end
        for (u32 c = 0; c < ${chunks_a_part}; c++) {
            const u32 column = (part * ${chunks_a_part} + c) * ${BLOCK};
            const u64 at = first + column;
            //@ if mode == "gdn" then
            const f32 scale = f_rsqrt(f_add(f_mul(squares_of(x + at), ${f32(1 / 128)}),
                                            f_from_bits(${eps}u)));
            //@ end
            for (u32 i = 0; i < 4; i++) {
                //@ if mode == "norm" then
                out[at + i] = f_mul(f_mul(x[at + i], scale), weight[column + lane * 4 + i]);
                //@ elseif mode == "gdn" then
                out[at + i] = f_mul(f_mul(f_mul(x[at + i], scale), weight[lane * 4 + i]),
                                    f_silu(y[at + i]));
                //@ elseif mode == "glu" then
                out[at + i] = f_mul(f_silu(x[at + i]), y[at + i]);
                //@ else
                out[at + i] = x[at + i];
                //@ end
            }
        }
    ${jobs.close}
}
]],
}

local EPS = 0x358637bd -- 1e-6

local case = elpis.case {
    name = "activate_rows",
    schedule = rows,
    problems = {
        {k = 5120, rows_max = 8, mode = "norm", eps = EPS},
        {k = 256, rows_max = 8, mode = "plain", eps = EPS},
        {k = 1024, rows_max = 8, mode = "glu", eps = EPS},
        {k = 768, rows_max = 8, mode = "gdn", eps = EPS},
    },
    runs = 2, -- all rows, one row
    reference = "activate",
    inputs = function(p, dev, run)
        return {
            x = dev:tensor("f32", {p.rows_max, p.k}, "x"):fill("normal", {seed = 1}),
            y = dev:tensor("f32", {p.rows_max, p.k}, "y"):fill("normal", {seed = 2}),
            weight = dev:tensor("f32", {p.k}, "weight"):fill("uniform", {seed = 3}),
            out = dev:tensor("f32", {p.rows_max, p.k}, "out"),
            round = dev:tensor("u32", {32}, "round"):set(0, run == 2 and 1 or p.rows_max),
        }
    end,
    bytes = function(p) return 2 * 4 * p.rows_max * p.k end, -- of a norm
}

case:check():print()
case:time {problems = {case.problems[1], {k = 5120, rows_max = 64, mode = "norm", eps = EPS}}}
    :print()
if arg[1] then
    case:install(arg[1])
end
