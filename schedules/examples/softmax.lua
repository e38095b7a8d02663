-- softmax.lua - a kernel from nothing: the softmax of rows, one warp a row.
--
--     elpis script schedules/examples/softmax.lua [FOLDER]     FOLDER: install it there
local elpis = require "elpis"

local case = elpis.case {
    schedule = elpis.schedule { schedule = [[
local schedule, jobs = require "schedule", require "lib_jobs"
return schedule.define {
    name = "softmax_rows",
    summary = "softmax of each row",
    problem = { rows_max = "u32", width = "u32" },
    tuning = { warps = {4, 1, 2, 8}, map = {"strided", "contiguous"} },
    args = { {"x", "const f32 *", "[rows, width]"}, {"y", "f32 *", "[rows, width]"},
             {"rows", "u32", "active rows"} },
    derive = function(p, target) return { ctas = jobs.ctas(p, p.rows_max, target) } end,
    maps = function(p) return jobs.maps(p, { {"row", "rows", max = p.rows_max} }, "row") end,
    launch = jobs.launch,
    template = "softmax_rows",
}
]], template = [[
KERNEL
{
    ${jobs.open}
        const f32 *in = x + (u64)row * ${width};
        f32 *out = y + (u64)row * ${width};
        f32 top = in[0], sum = ${f32(0)};
        for (u32 k = lane_id(); k < ${width}; k += 32)
            top = f_max(top, in[k]);
        top = warp_max_f32(top);
        for (u32 k = lane_id(); k < ${width}; k += 32) {
            out[k] = f_exp(f_sub(in[k], top));
            sum = f_add(sum, out[k]);
        }
        sum = warp_sum_f32(sum);
        for (u32 k = lane_id(); k < ${width}; k += 32)
            out[k] = f_div(out[k], sum);
    ${jobs.close}
}
]] },
    problems = { {rows_max = 64, width = 1000}, {rows_max = 3, width = 17} },
    inputs = function(p, dev) return {
        x = dev:tensor("f32", {p.rows_max, p.width}, "x"):fill("normal", {seed = 1}),
        y = dev:tensor("f32", {p.rows_max, p.width}, "y"), rows = p.rows_max,
    } end,
    reference = function(a)
        for _, row in ipairs(a.x) do
            local sum = 0
            for _, value in ipairs(row) do sum = sum + math.exp(value) end
            for k, value in ipairs(row) do row[k] = math.exp(value) / sum end
        end
        return {y = a.x}
    end,
    bytes = function(p) return 2 * 4 * p.rows_max * p.width end, -- x is read, y written
}
case:check():print()
case:sweep():print()
if arg[1] then case:install(arg[1]) end
