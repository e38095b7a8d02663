"""test_script.py: `elpis script` from outside: the worked examples, tensors, what is refused.

Run by tests/run.py, which sets ELPIS to the program. All of it runs on the host device. Scripts are
written into a folder of their own, as a user would; messages must name the script's own lines.
"""
import csv
import json
import math
import os
import re
import signal
import struct
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, os.environ.get("ELPIS", "build/elpis"))
EXAMPLES = os.path.join(ROOT, "schedules", "examples")
PATIENCE = 60  # seconds until a test gives up on the program

# A kernel that scales rows; @NAMES@ are replaced by the tests that break it. Its template begins on
# line 25.
SCALE = '''local elpis = require "elpis"
local scale = elpis.schedule {
    schedule = [[
local schedule, jobs = require "schedule", require "lib_jobs"
return schedule.define {
    name = "scale_rows",
    summary = "y = x * w, a row a warp",
    problem = { rows_max = "u32", width = "u32" },
    tuning = { warps = {2, 1, 4}, map = {"strided", "contiguous"} },
    args = {
        {"x", "const f32 *", "[rows, width]"}, {"w", "const f32 *", "[width]"},
        {"y", "f32 *", "[rows, width]"}, {"rows", "u32", "active rows"},
    },
    derive = function(p, target) return { ctas = jobs.ctas(p, p.rows_max, target) } end,
    maps = function(p)
        @MAP@
        return jobs.maps(p, { {"row", "rows", max = p.rows_max} }, "row")
    end,
    launch = jobs.launch,
    template = "scale_rows",
}
]],
    template = [[
KERNEL
{
    ${jobs.open}
        for (u32 k = lane_id(); k < ${width}; k += 32)
            y[row * ${width} + k] = @VALUE@;
        @EXTRA@
    ${jobs.close}
}
]],
}
local dev = elpis.device()
local p = {rows_max = 5, width = 40}
local function inputs(problem, device)
    return {
        x = device:tensor("f32", {problem.rows_max, problem.width}, "x"):fill("normal", {seed = 1}),
        w = device:tensor("f32", {problem.width}, "w"):fill("uniform", {seed = 2}),
        y = device:tensor("f32", {problem.rows_max, problem.width}, "y"),
        rows = problem.rows_max,
    }
end
local function reference(a)
    for _, row in ipairs(a.x) do
        for k in ipairs(row) do row[k] = row[k] * a.w[k] end
    end
    return {y = a.x}
end
local case = elpis.case {
    schedule = scale, device = dev, problems = {p}, inputs = inputs, reference = reference,
    bytes = function(q) return 8 * q.rows_max * q.width end,
    operations = function(q) return q.rows_max * q.width end,
}
local function kernel() return dev:kernel {schedule = scale, problem = p} end
'''


def scaling(rest="case:check()\n", value="f_mul(x[row * ${width} + k], w[k])", extra="", maps=""):
    text = SCALE.replace("@VALUE@", value).replace("@EXTRA@", extra).replace("@MAP@", maps)
    return text + rest


def splitmix(state):
    """Steele, Lea, Flood 2014: the output function of splitmix64."""
    mask = (1 << 64) - 1
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9 & mask
    state = (state ^ state >> 27) * 0x94d049bb133111eb & mask
    return state ^ state >> 31


def seeded_words(seed, count):
    """Integers over all of u16, as fill makes them: the same on every machine."""
    golden, mask = 0x9e3779b97f4a7c15, (1 << 64) - 1
    key = splitmix((seed + golden) & mask)
    words = [splitmix((key + (i + 1) * golden) & mask) for i in range(count)]
    return [(word >> 11) * 65536 >> 53 for word in words]


class Script(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, *parts):
        return os.path.join(self.folder.name, *parts)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, *parts):
        with open(self.path(*parts), encoding="utf-8") as file:
            return file.read()

    def call(self, *arguments, device="host"):
        options = ["--device", device] if device else []
        return subprocess.run([PROGRAM, "script", *options, *arguments], cwd=self.folder.name,
                              capture_output=True, text=True, timeout=280, check=False)

    def answer(self, *options):
        """A reply of the small model with its draft, whose norms are `activate`."""
        model = os.path.join(ROOT, "tests/models/elpis-tiny")
        return subprocess.run([PROGRAM, "run", model, "--draft", model + "-dflash2", "--device",
                               "host", "--max-tokens", "30", "-p", "Hello", *options],
                              cwd=self.folder.name, capture_output=True, text=True, timeout=280,
                              check=False)

    def run_text(self, text, *options, arguments=()):
        self.write("mine.lua", text)
        result = self.call(*options, "mine.lua", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, text, pattern, *options, status=2):
        """The last line of what is said, or the one that begins with elpis:, fits the pattern."""
        self.write("mine.lua", text)
        result = self.call(*options, "mine.lua")
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertRegex(result.stderr, r"(?m)^elpis: mine\.lua:\d+: ")
        self.assertRegex(result.stderr, pattern)
        self.assertNotRegex(result.stderr, r"(mine\.lua:\d+: )\1", "a place is told once")

    # ---- the worked examples

    def test_softmax_is_checked_tuned_and_installed(self):
        result = self.call(os.path.join(EXAMPLES, "softmax.lua"), "mine")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"width=1000: y: error \d\.\d+e-08, at most 1e-06; largest")
        self.assertRegex(result.stdout, r"width=17: laws hold, bits equal in 8 of 8 tunings")
        self.assertEqual(len(re.findall(r"(?m)^map=\w+ warps=\d.* +\d+\.\d\d ", result.stdout)), 8)
        self.assertRegex(result.stdout, r"(?m) best$")
        listed = subprocess.run([PROGRAM, "kernels", "--schedules", self.path("mine")],
                                capture_output=True, text=True, check=True).stdout
        self.assertRegex(listed, r"(?m)^softmax_rows +softmax of each row$")

    def test_an_own_activate_is_installed_and_then_used(self):
        result = self.call(os.path.join(EXAMPLES, "activate_rows.lua"), "mine")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("out: bits equal to the built-in activate"), 8)
        self.assertRegex(result.stdout, r"(?m)^activate_rows +\d+\.\d\d ")
        self.assertIn("installed activate in mine: checked against the built-in schedule",
                      result.stdout)
        certificate = json.loads(self.read("mine", "checks", "activate.json"))
        self.assertIn("templates/prelude/host.h", certificate["files"])
        use = '''local k = require("elpis").device():kernel {schedule = "activate",
            problem = {k = 256, rows_max = 8, mode = "norm", eps = 0x358637bd}}
            print(k.source:find("u32 part") and "own" or "built-in")'''
        self.assertEqual(self.run_text(use).stdout, "built-in\n")
        used = self.run_text(use, "--schedules", "mine")
        self.assertEqual(used.stdout, "own\n")
        self.assertNotIn("warning", used.stderr)
        own, built_in = self.answer("--schedules", "mine"), self.answer()
        self.assertEqual((own.returncode, built_in.returncode), (0, 0), own.stderr)
        self.assertTrue(built_in.stdout.strip())
        self.assertEqual(own.stdout, built_in.stdout)
        self.assertNotIn("warning", own.stderr)
        rounds = r"rounds: \d+, \d+\.\d+ tokens"  # of other bits the draft makes other proposals
        self.assertEqual(re.findall(rounds, own.stderr), re.findall(rounds, built_in.stderr))
        self.assertEqual(len(re.findall(rounds, own.stderr)), 1)
        self.write("mine/templates/activate.cu", self.read("mine/templates/activate.cu") + "\n")
        warned = self.run_text(use, "--schedules", "mine").stderr
        self.assertRegex(warned, r"warning: mine/templates/activate\.cu replaces the built-in file "
                                 r"and no check against it holds: .*case:install\(\"mine\"\)")
        twice = self.run_text(use + "\n" + use.replace("local k", "k"), "--schedules", "mine")
        self.assertEqual(twice.stderr.count("warning"), warned.count("warning"), "told once")
        again = '''require("elpis").case {schedule = "activate",
            problems = {{k = 256, rows_max = 8, mode = "norm", eps = 0x358637bd}},
            inputs = function(p, dev)
                local function f32(name, count)
                    return dev:tensor("f32", {count}, name):fill("normal", {seed = #name})
                end
                return {x = f32("x", 2048), y = f32("y", 2048), weight = f32("weight", 256),
                    out = f32("out", 2048), round = dev:tensor("u32", {32}):set(0, 5)}
            end}:install("mine")'''
        self.assertIn("installed activate", self.run_text(again, "--schedules", "mine").stdout)
        self.assertNotIn("warning", self.run_text(use, "--schedules", "mine").stderr)

    def test_the_violated_law_is_named(self):
        result = self.call(os.path.join(EXAMPLES, "law_violation.lua"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("refused: law exactly_once: schedule twice, map jobs: item 48 is never hit "
                      "(rows = 63)", result.stdout)
        self.assertIn("twice, rows_max=64 width=100: laws hold", result.stdout)

    # ---- what can go wrong in a kernel

    def test_a_right_kernel_passes(self):
        self.run_text(scaling("case:check():print()\nkernel():launch(inputs(p, dev))\n"))

    def test_a_wrong_value_is_named_with_its_place(self):
        self.refused(scaling(value="f_add(x[row * ${width} + k], w[k])"),
                     r"mine\.lua:\d+: scale_rows, rows_max=5 width=40: output y: error \S+ above "
                     r"the limit 1e-06; largest difference at \[\d, \d+\]: found \S+, expected \S+")

    def test_what_is_not_finite_counts_as_wrong(self):
        for wrong in "1 / 0", "0 / 0":
            self.refused(scaling("reference = nil\n").replace(
                "reference = nil", f"""
local right = case.reference
case.reference = function(a) local y = right(a).y; y[2][3] = {wrong}; return {{y = y}} end
case:check()"""), r"output y: error inf above the limit 1e-06; largest difference at \[1, 2\]")
            self.refused(scaling(value=f"k == 3 ? f_div(${{f32({wrong[0]})}}, ${{f32(0)}}) : w[k]"),
                         r"error inf above the limit .* at \[0, 3\]: found -?(inf|nan)")

    def test_tuning_that_changes_a_bit_is_refused(self):
        text = scaling(value="f_add(f_mul(x[row * ${width} + k], w[k]), ${f32(warps * 1e-8)})",
                       rest="case.limit = 1\ncase:check()\n")
        self.refused(text, r"tuned map=strided warps=1: output y, element \[0, \d+\]: scale_rows "
                           r"gives \S+, the default tuning gives \S+ \(\d+ elements differ\)")
        self.refused(text.replace("case:check()", "case:sweep()"),
                     r"sweep of scale_rows tuned map=strided warps=1: output y, element")

    def test_a_template_error_names_its_line_in_the_script(self):
        at = scaling().split("\n").index("    ${jobs.open}") + 1
        self.refused(scaling(value="f_mul(x[row * ${widht} + k], w[k])"),
                     rf"mine\.lua:{at + 2}: no name widht in schedule scale_rows")
        self.refused(scaling(extra="u32 twice = no_such_thing;"),
                     rf"mine\.lua:{at + 3}:\d+: error: .*no_such_thing", status=4)

    def test_of_several_tunings_the_one_that_does_not_compile_is_named(self):
        self.refused(scaling(extra='${warps == 4 and "u32 twice = no_such_thing;" or ""}'),
                     r"mine\.lua:\d+: tuned map=strided warps=4: kernel scale_rows: .*\n"
                     r"(.*\n)*mine\.lua:\d+:\d+: error: .*no_such_thing", status=4)

    def test_a_schedule_error_names_its_line_in_the_script(self):
        at = scaling().split("\n").index("    maps = function(p)") + 2
        self.refused(scaling(maps="local n = p.rows_mx"),
                     rf"mine\.lua:{at}: schedule scale_rows: no parameter .* named rows_mx")
        self.refused(scaling(maps="local n = = 1"), rf"mine\.lua:{at}: unexpected symbol near '='")

    def test_a_law_is_checked_before_a_launch(self):
        broken = '''do return { jobs = require("work").map {
            space = { {"row", "rows", max = p.rows_max} }, over = "warps",
            workers = p.ctas * p.warps, warps = p.warps, reduction = "none", partition = {
                count = function(s) return s.total end, item = function(s) return s.item end } } }
        end'''
        self.refused(scaling("kernel()\n", maps=broken),
                     r"exactly_once: schedule scale_rows, map jobs: item 0 is hit twice: by worker "
                     r"0 and by worker 1")

    def test_writes_outside_and_races_are_found(self):
        outside = scaling(extra="if (row == rows - 1) y[rows * ${width}] = x[0];")
        self.refused(outside, r"kernel \w+, .* writes 4 bytes at offset 800 of y f32 \[5, 40\]",
                     "--check", status=7)
        race = scaling(extra="y[0] = x[row * ${width}];", rest="kernel():launch(inputs(p, dev))\n")
        self.refused(race, r"race: it writes byte 0 of y f32 \[5, 40\], which thread \d+",
                     "--check", status=7)

    # ---- wrong arguments

    def test_launch_arguments_go_by_name_and_type(self):
        launch = "local a = inputs(p, dev)\n%s\nkernel():launch(a)\n"
        for change, pattern in {
                "a.z = 1": r"kernel scale_rows: unknown argument z; expected rows, w, x, y",
                "a.w = nil": r"argument w: expected const f32 \* \(\[width\]\), got nothing",
                "a.rows = -1": r"argument rows: expected u32 \(active rows\), got -1",
                "a.rows = 2.5": r"argument rows: expected u32 .* got 2\.5",
                "a.x = dev:tensor('u32', {200}, 'x')": r"argument x: .* got tensor x u32 \[200\]",
                "a.x = elpis.device():tensor('f32', {200}, 'x')": r"argument x: .*another device",
                "a.y = 3": r"argument y: expected f32 \* \(\[rows, width\]\), got number",
        }.items():
            self.refused(scaling(launch % change), pattern)

    def test_options_are_checked_by_name(self):
        last = scaling("").count("\n") + 1
        for line, pattern in {
                "dev:kernel {schedule = scale, problm = p}": r"device:kernel: unknown field problm",
                "dev:kernel {schedule = scale, problem = {rows_max = 5}}":
                    r"parameter width: expected u32, got nothing",
                "dev:kernel {schedule = scale, problem = p, tuning = {warps = 3}}": r"warps.*3",
                "dev:kernel {schedule = 'no_such'}": r"schedule no_such: no such schedule",
                "elpis.schedule 'nowhere.lua'": r"elpis\.schedule: schedule: .*nowhere\.lua",
                "elpis.schedule {schedule = 'return\\n{}'}": r"expected a text that returns",
                "elpis.case {schedule = scale}": r"elpis\.case: inputs: expected function",
                "elpis.device {device = 'gpu'}": r"unknown device \"gpu\"",
                "dev:tensor('f64', {1})": r"tensor type \"f64\": expected u8",
                "dev:tensor('f32', {0})": r"tensor shape: extent 1: .* got 0",
                "dev:tensor('u8', {2}):fill('normal')": r"fill with uniform or normal: expected",
                "dev:tensor('f32', {2}):fill('normal', {sed = 1})": r"fill: option sed",
                "dev:tensor('f32', {2}):get(2)": r"coordinate 1: expected 0 to 1, got 2",
                "dev:tensor('u8', {2}):write {1, 256}": r"element 1: .* fits u8, got 256",
                "dev:tensor('u8', {2}):write {1}": r"expected 2 values, got 1",
                "dev:tensor('u8', {2}):load('abc')": r"expected 2 bytes, got 3",
                "local x = nil; x.y = 1": rf"mine\.lua:{last}: attempt to index a nil value",
                "error('as said')": rf"mine\.lua:{last}: as said",
        }.items():
            self.refused(scaling(line + "\n"), pattern)

    def test_what_is_no_script(self):
        missing = self.call("nowhere.lua")
        self.assertEqual(missing.returncode, 2)
        self.assertIn("nowhere.lua", missing.stderr)
        self.assertEqual(self.call().returncode, 2)
        self.write("bad.lua", "print(")
        syntax = self.call("bad.lua")
        self.assertEqual(syntax.returncode, 2)
        self.assertIn("bad.lua:1:", syntax.stderr)

    def test_options_behind_the_file_are_the_scripts(self):
        out = self.run_text("print(arg[0], table.unpack(arg))", arguments=("--check", "a", "-x"))
        self.assertEqual(out.stdout, "mine.lua\t--check\ta\t-x\n")

    # ---- install

    def test_other_bits_than_the_built_in_ones_are_not_installed(self):
        with open(os.path.join(EXAMPLES, "activate_rows.lua"), encoding="utf-8") as file:
            text = file.read()
        right = "f_mul(f_mul(x[at + i], scale), weight[column + lane * 4 + i])"
        self.assertIn(right, text)
        text = text.replace(right, "f_mul(x[at + i], f_mul(scale, weight[column + lane * 4 + i]))")
        text = text[:text.index("case:check()")] + 'case:install "mine"\n'
        # whatever the case calls its reference, the built-in schedule is what counts
        text = text.replace('    reference = "activate",\n', "")
        self.refused(text, r"output out, element \[0, \d+\]: activate_rows gives \S+, the built-in "
                           r"activate gives \S+ \(\d+ elements differ\)")
        self.assertFalse(os.path.exists(self.path("mine")))
        other = text.replace('{"round", "const u32 *",', '{"count", "const u32 *",')
        other = other.replace("round[0]", "count[0]").replace("round = dev", "count = dev")
        self.refused(other, r"install of activate: arguments: expected those of the built-in")

    def test_install_needs_something_to_compare_with(self):
        self.refused(scaling("case.reference = nil\ncase:install 'mine'\n"),
                     r"install of scale_rows: it has no built-in counterpart; give .* a reference")
        self.refused("local e = require 'elpis'\ne.case {schedule = 'activate', inputs = print}"
                     ":install 'mine'\n", r"install of activate: it is the built-in schedule")

    def test_a_replaced_schedule_with_a_broken_law_does_not_run(self):
        with open(os.path.join(ROOT, "schedules", "embed.lua"), encoding="utf-8") as file:
            text = file.read()
        self.write("mine/schedules/embed.lua", text.replace(
            "return jobs.maps(p, ", '''local maps = jobs.maps(p, ''').replace(
                ' }, "row")', ''' }, "row")
        maps.jobs.item = maps.jobs.count
        return maps''', 1))
        result = self.answer("--schedules", "mine")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, r"warning: mine/schedules/embed\.lua replaces the built-in")
        self.assertRegex(result.stderr, r"elpis: \w+: schedule embed, map jobs: ")

    def test_a_replaced_library_brings_the_laws_of_all_schedules(self):
        with open(os.path.join(ROOT, "schedules", "lib_jobs.lua"), encoding="utf-8") as file:
            text = file.read()
        broken = text.replace("partition = p.map", """partition = {
            count = function(s) return s.total end, item = function(s) return s.item end }""")
        self.assertNotEqual(text, broken)
        self.write("mine/schedules/lib_jobs.lua", broken)
        self.refused('''require("elpis").device():kernel {schedule = "residual",
            problem = {n = 256, rows_max = 8}}''',
                     r"exactly_once: schedule residual, map jobs: item 0 is hit twice",
                     "--schedules", "mine")

    # ---- files that a script writes

    def test_times_as_table_csv_plot_and_record(self):
        self.run_text(scaling('''
case:sweep {rounds = 5}:print():csv("out/t.csv"):plot("out/t.svg"):record("out/host.jsonl")
case:sweep {rounds = 5}:record("out/host.jsonl")
case:time {candidates = {{name = "a & b"}, {name = "one", tuning = {warps = 1}}}, rounds = 5}
    :csv("out/two.csv"):plot("out/two.svg")
'''))
        rows = list(csv.DictReader(self.read("out", "t.csv").splitlines()))
        self.assertEqual(len(rows), 6)
        for row in rows:
            self.assertEqual(row["problem"], "rows_max=5 width=40")
            self.assertLessEqual(float(row["low_quartile_us"]), float(row["median_us"]))
            self.assertGreater(float(row["floor_us"]), 0)
        self.assertIn("a &amp; b", self.read("out", "two.svg"))
        self.assertEqual(self.read("out", "t.svg").count("<rect"), 1 + 6)
        record = json.loads(self.read("out", "host.jsonl"))  # one line: the second in its place
        self.assertRegex(record["digest"], r"^[0-9a-f]{16}$")
        self.assertGreaterEqual(record["default_us"], record["us"])
        self.assertEqual(record["schedule"], "scale_rows")
        self.assertEqual(record["parameters"], {"rows_max": 5, "width": 40})
        self.assertEqual(set(record["tuning"]), {"map", "warps"})
        self.assertEqual(len(record["candidates"]), 6)

    # ---- tensors

    def test_values_survive_and_halves_round_to_even(self):
        values = [0.0, -0.0, 1.0, 1 / 3, 65504.0, 65519.0, 6e-8, 2.98e-8, 2.99e-8, 6.1e-5, 1e-5,
                  2049.0, 2051.0, 0.99999]
        text = '''local dev = require("elpis").device()
local function show(t) print((t:string():gsub(".", function(c)
    return ("%%02x"):format(c:byte()) end))) end
show(dev:tensor("h16", {%d}):write {%s})
local i = dev:tensor("i64", {2, 2}):write {{1, -2}, {math.mininteger, math.maxinteger}}
print(table.concat(i:list(), " "), i:get(1, 0), i:set(0, 1, 7):get(0, 1))
print(dev:tensor("u32", {1}):fill(4294967295):get(0), dev:tensor("i8", {1}):fill(-1):get(0))
local h = dev:tensor("h16", {2}):load("\\x01\\x00\\x00\\xfc")
print(h:get(0) == 2^-24, h:get(1))
show(dev:tensor("u16", {4}):fill("integers", {seed = 7}))
local n = dev:tensor("f32", {10000}):fill("normal", {seed = 3, mean = 2, deviation = 0.5}):list()
local sum, square = 0, 0
for _, v in ipairs(n) do sum = sum + v; square = square + (v - 2)^2 end
print(sum / 10000, math.sqrt(square / 10000))
local a, b = dev:tensor("f32", {3, 4}):fill(1), dev:tensor("f32", {3, 4}):fill(1):set(2, 1, 5)
local d = a:differs(b)
print(a:differs(a), d.count, d.place[1], d.place[2], d.a, d.b)
''' % (len(values), ", ".join(repr(v) for v in values))
        lines = self.run_text(text).stdout.split("\n")
        halves = b"".join(struct.pack("<e", min(v, 65504.0)) for v in values)
        self.assertEqual(lines[0], halves.hex())
        self.assertEqual(lines[1], "1 -2 -9223372036854775808 9223372036854775807 "
                                   "-9223372036854775808 7".replace("807 -", "807\t-")
                         .replace("808 7", "808\t7"))
        self.assertEqual(lines[2], "4294967295\t-1")
        self.assertEqual(lines[3], "true\t-inf")
        self.assertEqual(lines[4], struct.pack("<4H", *seeded_words(7, 4)).hex())
        mean, deviation = (float(v) for v in lines[5].split("\t"))
        self.assertLess(math.fabs(mean - 2), 0.02)
        self.assertLess(math.fabs(deviation - 0.5), 0.02)
        self.assertEqual(lines[6], "nil\t1\t2\t1\t1.0\t5.0")

    # ---- Ctrl-C

    def stopped(self, text, when, number=signal.SIGINT):
        """Runs a script with an empty cache, signals it when `when` holds for its TMPDIR, and looks
        whether a folder stayed there. Returns what it said."""
        self.write("mine.lua", text)
        temporary = self.path("tmp")
        os.makedirs(temporary)
        environment = {**os.environ, "TMPDIR": temporary,
                       "ELPIS_CACHE": self.path("cache")}
        with subprocess.Popen([PROGRAM, "script", "--device", "host", "mine.lua"], text=True,
                              cwd=self.folder.name, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, start_new_session=True) as process:
            until = time.monotonic() + PATIENCE
            while not when(temporary) and process.poll() is None and time.monotonic() < until:
                time.sleep(0.001)
            os.killpg(process.pid, number)  # the compiler too, as a terminal does
            try:
                _, message = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        self.assertEqual(process.returncode, -number, message)
        # the compiler's own files, cc*.s, are its own affair
        self.assertEqual([name for name in os.listdir(temporary) if name.startswith("elpis-")], [])
        return message

    def test_a_stop_leaves_no_folder_of_the_compilers(self):
        compiles = "kernel.c"
        message = self.stopped(scaling("case:check()\n"), lambda folder: any(
            compiles in files for _, _, files in os.walk(folder)))
        self.assertRegex(message, r"(?m)^elpis: .*mine\.lua:\d+: stopped$")

    def test_a_stop_ends_a_loop_that_catches_errors(self):
        ready = "io.open('there', 'w'):close() "
        message = self.stopped(ready + "while true do pcall(function() while true do end end) end",
                               lambda folder: os.path.exists(self.path("there")),
                               signal.SIGTERM)
        self.assertIn("mine.lua:1: stopped", message)

    # ---- compiling for a GPU that is not here

    def test_an_arch_is_compiled_for(self):
        self.write("mine.lua", scaling('''
local k = elpis.device {arch = "sm_86:82:100K"}:kernel {schedule = scale, problem = p}
print(k.resources.registers, k.resources.spill_stores, k.resources.ctas_per_sm, k.grid)
assert(k.source:find("__global__"))
local ok, why = pcall(k.launch, k, inputs(p, dev))
print(why)
'''))
        result = self.call("mine.lua")
        if "NVRTC" in result.stderr:
            self.assertEqual(result.returncode, 4)
            self.skipTest("no NVRTC here")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^[1-9]\d*\t0\t[1-9]\d*\t[1-9]\d*\n")
        self.assertIn("runs nothing; open a device without arch", result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
