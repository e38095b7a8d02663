--- prefill_window: the convolution window after a piece: the last three inputs before its end.
--
-- A thread moves one channel: it reads its three values (from the piece, or from the old window
-- when the piece is shorter), then writes them. Runs after prefill_conv.
local schedule, work, rows = require "schedule", require "work", require "lib_rows"

return schedule.define {
    name = "prefill_window",
    summary = "prefill: move the GDN convolution window to the end of the piece",
    mirrors = {},
    problem = { channels = "u32", rows_max = "u32" },
    numeric = { taps = { 4 } },
    tuning = { warps = { 4, 2, 8 }, map = { "contiguous", "strided" } },
    examples = { { channels = 1280, rows_max = 2048 }, { channels = 10240, rows_max = 2048 } },
    valid = function(p)
        if p.channels < 1 then return "channels must be at least 1, got " .. p.channels end
        return rows.check(p)
    end,
    derive = function(p, target)
        local threads = 32 * p.warps
        return {
            history = p.taps - 1, threads = threads,
            ctas = rows.ctas(p.channels, threads, target, 8),
        }
    end,
    args = {
        { "u", "const f32 *", "[rows, channels]" },
        { "window", "f32 *", "[3, channels] oldest first; moved on" },
        { "rows", "u32", "active rows, at least 1" },
    },
    maps = function(p)
        return {
            jobs = work.map {
                space = { { "channel", p.channels } }, over = "threads",
                workers = p.ctas * p.threads, threads = p.threads,
                partition = p.map, reduction = "none",
            },
        }
    end,
    launch = function(p) return { grid = p.ctas, block = p.threads } end,
    template = "prefill_window",
}
