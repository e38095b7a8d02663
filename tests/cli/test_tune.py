"""test_tune.py: `elpis tune` and `elpis records` from outside, on the host device.

Run by tests/run.py, which sets ELPIS to the program and ELPIS_CACHE to a kernel cache. The model
is tests/models/elpis-tiny. No time is asserted: who is fastest does not matter here, only what is
tried, refused, written and used.
"""
import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import xml.dom.minidom

PROGRAM = os.environ.get("ELPIS", "build/elpis")
TINY = "tests/models/elpis-tiny"
HOST = ["--device", "host", "--context", "256", "--threads", "2"]
SHIPPED_FILES = list(pathlib.Path("schedules/records").glob("*.jsonl"))  # in the program
SHIPPED = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in SHIPPED_FILES)
DECODE = [*HOST, "--prefill", "exact", "--passes", "decode"]
PATIENCE = 280  # seconds until a test gives up on the program


def elpis(*arguments, **more):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                          timeout=PATIENCE, check=False, **more)


def records_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_records(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.output = self.folder / "records" / "machine.jsonl"

    def tune(self, *arguments, status=0):
        result = elpis("tune", TINY, *DECODE, "--output", self.output, *arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def refused(self, words, *arguments, status=2):
        result = elpis(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn(words, result.stderr)


class Sweeping(Folder):
    def test_dry_run_sweeps_nothing(self):
        text = self.tune("--dry-run").stdout
        self.assertRegex(text, r"(?m)^linear_main +round +14 +[0-9.]+ % +5544 +0 +(24|64)$")
        self.assertIn("    k=768 n0=256 n1=0 n2=0 n3=0 bits=4 codebook=mul1\n", text)
        self.assertRegex(text, r"(?m)^kv_commit .* not tuned: its arguments do not say where")
        self.assertNotIn("prefill_", text)
        self.assertFalse(self.output.exists())

    def test_all_candidates_are_reported(self):
        files = [self.folder / name for name in ("all.jsonl", "all.csv", "all.svg")]
        self.output.parent.mkdir()
        self.output.write_text("# mine\n\n", encoding="utf-8")
        result = self.tune("--kernel", "linear_middle", "--json", files[0], "--csv", files[1],
                           "--plot", files[2])
        self.assertRegex(result.stdout, "logits equal bit for bit|every kernel keeps its default")
        self.assertIn("nothing is left to try", result.stderr)
        *mine, line = self.output.read_text(encoding="utf-8").splitlines()
        self.assertEqual(mine, ["# mine", ""])  # a line that is no record stays
        record = json.loads(line)
        self.assertEqual(record, records_of(files[0])[0])
        self.assertEqual(record["parameters"], {"n": 768, "codebook": "mul1"})
        self.assertEqual((record["schedule"], record["target"], record["sms"], record["legal"]),
                         ("linear_middle", "host", 2, 8))
        self.assertTrue(record["settled"])
        self.assertRegex(record["digest"], "^[0-9a-f]{16}$")
        self.assertTrue(record["compiler"] and record["gpu"] and record["date"])
        candidates = record["candidates"]
        self.assertEqual({(c["tuning"]["map"], c["tuning"]["warps"]) for c in candidates},
                         {(m, w) for m in ("strided", "contiguous") for w in (1, 2, 4, 8)})
        for candidate in candidates:
            self.assertLessEqual(candidate["low_us"], candidate["us"])
            self.assertLessEqual(candidate["us"], candidate["high_us"])
            self.assertGreaterEqual(candidate["samples"], 5)
        best, = [c for c in candidates if c["tuning"] == record["tuning"]]
        self.assertEqual(best["us"], record["us"])
        rows = list(csv.DictReader(files[1].read_text(encoding="utf-8").splitlines()))
        self.assertEqual(len(rows), 8)
        self.assertEqual([row["tuning"] for row in rows if row["default"] == "yes"],
                         ["map=strided warps=4"])
        circles = xml.dom.minidom.parse(str(files[2])).getElementsByTagName("circle")
        self.assertEqual(len(circles), 8)

    def test_a_killed_sweep_goes_on(self):
        arguments = [PROGRAM, "tune", TINY, *DECODE, "--output", str(self.output), "--kernel",
                     "linear_input"]
        with subprocess.Popen(arguments, stderr=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL) as process:
            until = time.monotonic() + PATIENCE
            while not self.output.exists() and time.monotonic() < until:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        before = records_of(self.output)
        self.assertIn(len(before), (1, 2))  # whole lines, not all
        result = self.tune("--kernel", "linear_input")
        after = records_of(self.output)
        self.assertEqual(len(after), 3)
        for old, new in zip(before, after):  # a best may have been timed in its pass since
            self.assertEqual(old["candidates"], new["candidates"])
        swept = re.findall(r"(?m)^generation .*linear_input", result.stderr)
        self.assertEqual(len(swept), 3 - len(before))
        again = self.tune("--kernel", "linear_input")
        self.assertNotIn("generation", again.stderr)
        self.assertNotIn("side by side", again.stdout)
        self.assertEqual(records_of(self.output), after)

    def test_who_won_alone_is_timed_in_its_pass(self):
        few = ("--kernel", "linear_input", "--candidates", "3")
        self.tune(*few, "--budget", "20s")
        records = records_of(self.output)
        self.assertEqual(len(records), 3)
        default = records[0]["candidates"][0]["tuning"]
        won = next(c["tuning"] for c in records[0]["candidates"][1:] if "us" in c)
        times = {name: 1000.0 for name in ("us", "low_us", "high_us", "default_us",
                                           "default_low_us", "default_high_us")}
        said = {"pass": {"name": "verify", "samples": 100, "faster": 90, **times}}
        for record in records:
            for field in ("alone", "confirmed", "pass"):
                record.pop(field, None)
            record.update(settled=True, tuning=default)
        records[0].update(said, tuning=won, confirmed=True)
        records[1].update(said, alone=won, confirmed=False)
        records[2].update(tuning=next(c["tuning"] for c in records[2]["candidates"][1:]
                                      if "us" in c))  # as records were before
        write_records(self.output, records)
        result = self.tune(*few)
        self.assertNotIn("generation", result.stderr)
        self.assertEqual(len(re.findall("in its pass, 1 of 1: linear_input .*: verify",
                                        result.stderr)), 1)
        self.assertRegex(result.stdout, r"in its pass, verify: .* faster in 90 of 100 rounds: used")
        self.assertIn("faster in 90 of 100 rounds: the default is used", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^    tuned +[0-9.]+ GB/s of [0-9.]+ MB, [0-9.]+ % of "
                                        r"a copy's [0-9.e+]+ GB/s$")
        self.assertIn("logits equal bit for bit", result.stdout)
        *known, asked = records_of(self.output)
        for old, new in zip(records, known):  # us: of the tuning that is used
            self.assertEqual({**old, "us": 0}, {**new, "us": 0})
        self.assertEqual(asked["pass"]["name"], "verify")
        self.assertGreaterEqual(asked["pass"]["samples"], 5)
        if not asked["confirmed"]:
            self.assertEqual((asked["tuning"], asked["alone"]), (default, records[2]["tuning"]))
        again = self.tune(*few)
        self.assertNotIn("in its pass", again.stderr)
        listed = elpis("records", "list", self.output).stdout
        self.assertIn("faster in 90 of 100 rounds: the default is used", listed)
        self.assertRegex(listed, r"fastest alone: map=\w+ warps=\d\n")

    def test_again_and_a_changed_schedule_are_timed_anew(self):
        few = ("--kernel", "gdn_window", "--candidates", "3", "--budget", "2s")
        self.tune(*few)
        known, = records_of(self.output)
        write_records(self.output, [{**known, "digest": "0" * 16, "tuning": {"warps": 8}}])
        listed = elpis("records", "list", self.output).stdout
        self.assertRegex(listed, r"(?m)^stale +gdn_window")
        self.assertIn("1 stale", listed)
        self.assertIn("generation 1", self.tune(*few).stderr)
        fresh, = records_of(self.output)
        self.assertEqual(fresh["digest"], known["digest"])
        self.assertIn("generation 1", self.tune(*few, "--again").stderr)

    def test_a_kernel_of_other_bits_is_refused(self):
        schedules = self.folder / "own"
        (schedules / "templates").mkdir(parents=True)
        text = pathlib.Path("templates/gdn_window.cu").read_text(encoding="utf-8")
        wrong = text.replace("moved + ${4 * t}", "moved + ${warps == 2 and 0 or 4 * t}")
        self.assertEqual(wrong.count("warps == 2"), 2)
        (schedules / "templates" / "gdn_window.cu").write_text(wrong, encoding="utf-8")
        result = self.tune("--kernel", "gdn_window", "--schedules", schedules)
        self.assertIn("gdn_window with map=strided warps=2 leaves other bits", result.stderr)
        record, = records_of(self.output)
        refused = [c for c in record["candidates"] if "refused" in c]
        self.assertEqual({c["tuning"]["warps"] for c in refused}, {2})
        self.assertEqual({c["refused"] for c in refused}, {"leaves other bits than the default"})
        self.assertNotEqual(record["tuning"]["warps"], 2)

    def test_names_in_the_picture_are_escaped(self):
        schedules, picture = self.folder / "own", self.folder / "all.svg"
        (schedules / "schedules").mkdir(parents=True)
        text = pathlib.Path("schedules/gdn_window.lua").read_text(encoding="utf-8")
        odd = text.replace("tuning = { ", "tuning = { note = { \"a<b&c\" }, ")
        self.assertNotEqual(odd, text)
        (schedules / "schedules" / "gdn_window.lua").write_text(odd, encoding="utf-8")
        self.tune("--kernel", "gdn_window", "--schedules", schedules, "--candidates", "2",
                  "--budget", "20s", "--plot", picture)
        titles = xml.dom.minidom.parse(str(picture)).getElementsByTagName("title")
        self.assertGreater(len(titles), 1)
        for title in titles:
            self.assertIn(" note=a<b&c warps=", title.firstChild.data)

    def test_a_word_too_far_is_seen(self):
        schedules = self.folder / "own"
        (schedules / "templates").mkdir(parents=True)
        text = pathlib.Path("templates/linear_input.cu").read_text(encoding="utf-8").rstrip()
        self.assertTrue(text.endswith("}"))
        # planes of k = 256 end at word 1024; those of k = 1536, in the same buffer, at 6144
        far = "    //@ if warps == 8 then\n    act[6000] = 0x5a5a5a5au;\n    //@ end\n}\n"
        (schedules / "templates" / "linear_input.cu").write_text(text[:-1] + far,
                                                                 encoding="utf-8")
        self.tune("--kernel", "linear_input", "--shape", "k=256,parts=1", "--schedules", schedules,
                  "--candidates", "8")
        record, = records_of(self.output)
        refused = [c for c in record["candidates"] if "refused" in c]
        self.assertEqual({c["tuning"]["warps"] for c in refused}, {8})

    def test_the_sampler_is_the_servers(self):
        """Kernels are planned by the tokenizer's ids, of which a head may have more columns."""
        few, many = self.folder / "few", self.folder / "many"
        for folder, vocab in ((few, "1024"), (many, "1280")):
            elpis("synth", "tiny", folder, "--vocab", vocab, "--layers", "1")
        (many / "tokenizer.json").write_bytes((few / "tokenizer.json").read_bytes())
        result = elpis("tune", many, *DECODE, "--output", self.output, "--kernel", "sample",
                       "--dry-run")
        self.assertIn("\n    vocab=1280 valid_vocab=1024 rows_max=8\n", result.stdout)

    def test_a_short_budget_ends_it(self):
        result = self.tune("--budget", "1s", "--candidates", "2", "--kernel", "linear_main")
        self.assertIn("the budget is spent, the same command goes on", result.stderr)

    def test_what_is_not_understood(self):
        self.refused("expected a folder MODEL, or --kernel and --shape", "tune")
        self.refused("linear_main has no parameter m, expected among bits, codebook, k, n0",
                     "tune", TINY, "--kernel", "linear_main", "--shape", "k=256,m=8")
        self.refused("--budget expects a time", "tune", TINY, "--budget", "5 minutes")
        self.refused("--shape expects name=value", "tune", TINY, "--shape", "k")
        self.refused("no schedule \"nothing\"", "tune", TINY, *DECODE, "--kernel", "nothing")
        self.refused("no kernel that this model launches", "tune", TINY, *DECODE, "--kernel",
                     "draft_tree")
        self.refused("with\n    hidden=256 rows_max=8 dtype=BF16\n", "tune", TINY, *DECODE,
                     "--kernel", "embed", "--shape", "hidden=255")
        self.refused("--at 512 is more", "tune", TINY, *DECODE, "--at", "512")
        self.refused("--plan-seed", "tune", TINY, *DECODE, "--plan-seed", "1")


# A shape that is not elpis-tiny's for every place at which models launch kernels.
SHAPES = (
    ("linear_main", "k=384,n0=640"),
    ("linear_main", "k=384,n0=640,n1=640"),
    ("linear_main", "k=384,n0=1280,n1=768,bits=5"),
    ("linear_main", "k=384,n0=2048,n1=512,n2=512"),
    ("linear_main", "k=384,n0=40960,bits=6"),
    ("linear_input", "k=512"),
    ("linear_input", "k=512,parts=1"),
    ("linear_input", "k=512,parts=3"),
    ("linear_input", "k=512,mode=plain"),
    ("linear_input", "k=512,mode=plain,parts=2"),
    ("linear_middle", "n=640"),
    ("linear_output", "n0=640"),
    ("linear_output", "n0=1280,mode=store"),
    ("linear_plain", "k=384,n0=32"),
    ("activate", "k=384"),
    ("activate", "k=384,mode=plain"),
    ("embed", "hidden=384"),
    ("embed", "hidden=384,rows_max=256"),
    ("attention_prepare", "q_heads=4,kv_heads=2,kv_bits=4"),
    ("attention_decode", "q_heads=4,kv_heads=2,bits=4"),
    ("attention_decode_f16", "q_heads=4,kv_heads=2"),
    ("attention_combine", "q_heads=4,kv_heads=2"),
    ("gdn_input", "k=384,v_heads=8"),
    ("gdn_conv", "k_heads=4,v_heads=8"),
    ("gdn_step", "k_heads=4,v_heads=8"),
    ("gdn_step", "k_heads=4,v_heads=8,layers=7"),
    ("gdn_output", "k_heads=4,v_heads=8"),
    ("gdn_window", "channels=640,layers=4"),
    ("sample", "vocab=1024"),
    ("sample_keys", "vocab=1024,valid_vocab=1000"),
    ("sample_weigh", "vocab=1024,valid_vocab=1000"),
    ("sample_gather", "vocab=1024,valid_vocab=1000"),
    ("draft_attention", "q_heads=8,kv_heads=2,window=256,capacity=256"),
    ("draft_combine", "q_heads=8,window=256"),
    ("draft_conv", "hidden=384"),
    ("draft_conv", "hidden=384,mode=finish"),
    ("draft_gather", "width=1152"),
    ("draft_lattice", "rank=32"),
    ("draft_prepare", "q_heads=8,kv_heads=2"),
    ("draft_prepare", "mode=context,capacity=64"),
    ("draft_select", "vocab=1024"),
    ("draft_tap", "width=384"),
    ("draft_tap", "width=384,rows_max=256"),
    ("draft_top", "vocab=1000,stride=1024"),
    ("prefill_attention", "q_heads=4,kv_heads=2,rows_max=256"),
    ("prefill_attention_prepare", "q_heads=4,kv_heads=2,kv_bits=8,rows_max=256"),
    ("prefill_conv", "k_heads=3,v_heads=3,rows_max=256"),
    ("prefill_gates", "v_heads=5,rows_max=256"),
    ("prefill_gdn_chunk", "k_heads=3,v_heads=3,rows_max=256"),
    ("prefill_gdn_scan", "k_heads=3,v_heads=3,rows_max=256"),
    ("prefill_gemm", "k=384,n=640,rows_max=256"),
    ("prefill_middle", "n=640,rows_max=256"),
    ("prefill_output", "width=384,rows_max=256"),
    ("prefill_output", "width=384,mode=plain,rows_max=256"),
    ("prefill_plain", "k=384,n=5,rows_max=256"),
    ("prefill_transform", "width=384,rows_max=256"),
    ("prefill_transform", "width=384,parts=3,rows_max=256"),
    ("prefill_transform", "width=384,mode=gdn,rows_max=256"),
    ("prefill_transform", "width=1024,mode=plain,rows_max=256"),
    ("prefill_weights", "k=384,n=640,bits=3"),
    ("prefill_window", "channels=640,rows_max=256"),
)


class Alone(Folder):
    """A kernel of a shape, without a model."""

    def alone(self, kernel, *arguments, status=0):
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        result = elpis("tune", "--kernel", kernel, "--device", "host", "--threads", "2", "--output",
                       self.output, *arguments, env={**os.environ, "TMPDIR": str(temporary)})
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(list(temporary.iterdir()), [])
        return result

    def test_its_record_is_the_models(self):
        result = self.alone("linear_middle", "--shape", "n=768", "--context", "256",
                            "--candidates", "2", "--budget", "20s")
        self.assertIn("made a model for linear_middle with n=768 codebook=mul1\n", result.stderr)
        mine, = records_of(self.output)
        tried = len(mine["candidates"])
        self.assertGreater(tried, 1)
        # the model's own kernel goes on from it: the key is the same
        self.assertRegex(self.tune("--kernel", "linear_middle", "--dry-run").stdout,
                         rf"(?m)^linear_middle +round +8 +100.0 % +8 +{tried} ")

    def test_shapes_are_launched(self):
        full = "ELPIS_TEST_FULL" in os.environ
        few = [row for row in SHAPES if row[0] in ("gdn_window", "draft_attention")]
        for kernel, shape in SHAPES if full else few:
            with self.subTest(kernel=kernel, shape=shape):
                text = self.alone(kernel, "--shape", shape, "--context", "512", "--dry-run").stdout
                self.assertRegex(text, rf"(?m)^{kernel} +(round|prompt) ")
                for pair in shape.split(","):
                    self.assertIn(" " + pair, text)
                self.assertIn("\n1 kernels, ", text)

    def test_every_schedule_is_known_to_the_test(self):
        if "ELPIS_TEST_FULL" not in os.environ:
            self.skipTest("with make test-full")
        listed = {line.split()[0] for line in elpis("kernels").stdout.splitlines()}
        missing = listed - {row[0] for row in SHAPES} - {"draft_tree"}
        words = elpis("tune", "--help").stdout.replace("\n", " ")
        for name in missing:
            self.assertIn(f" {name}", words)
            self.refused(f"no model is made for {name}", "tune", "--kernel", name)

    def test_what_is_not_understood(self):
        self.refused("intermediate 300: expected a multiple of 128", "tune", "--kernel",
                     "linear_main", "--shape", "k=300,n0=256")
        self.refused("--passes belongs to a MODEL", "tune", "--kernel", "embed", "--passes", "all")
        self.refused("--draft belongs to a MODEL", "tune", "--kernel", "embed", "--draft", TINY)


class Using(Folder):
    """What the engine does with records."""

    def setUp(self):
        super().setUp()
        self.ids = self.folder / "ids.txt"
        self.ids.write_text("4087 346 198 702 292 220 18 19 1013\n", encoding="utf-8")

    def evaluate(self, records):
        dump = self.folder / "dump.safetensors"
        result = elpis("eval", TINY, *HOST, "--prefill", "exact", "--ids", self.ids, "--teacher",
                       "--dump", dump, "--records", records)
        self.assertEqual(result.returncode, 0, result.stderr)
        return dump.read_bytes(), re.search(r"plan ([0-9a-f]{16})", result.stdout)[1], result.stderr

    @staticmethod
    def record(**more):
        return {"schedule": "linear_middle", "target": "host",
                "parameters": {"n": 768, "codebook": "mul1"}, "tuning": {"warps": 1}, **more}

    def test_bits_stay_and_the_plan_is_another(self):
        folder = self.output.parent
        folder.mkdir()
        bits, plan, _ = self.evaluate("none")
        self.assertEqual(self.evaluate(folder)[:2], (bits, plan))  # it is empty
        write_records(self.output, [self.record()])
        text = elpis("check", TINY, *HOST, "--prefill", "exact", "--plan", "--records",
                     folder).stdout
        self.assertRegex(text, rf"(?m)^  records +{1 + SHIPPED} in {1 + len(SHIPPED_FILES)} files, "
                               r"0 stale, 0 refused, 0 bad lines; folder: ")
        foretold = re.search("plan hash +([0-9a-f]{16}), at a context of 256 tokens", text)[1]
        self.assertNotEqual(foretold, plan)
        # the second is for another device
        write_records(self.output, [self.record(), self.record(sms=77, tuning={"warps": 2})])
        self.assertEqual(self.evaluate(folder)[:2], (bits, foretold))

    def test_bad_records_cost_a_line_and_no_more(self):
        folder = self.output.parent
        folder.mkdir()
        bits, plan, _ = self.evaluate("none")
        self.output.write_text("{\"schedule\": \n" + json.dumps(self.record(tuning={"warpz": 4})) +
                               "\n" + json.dumps(["no object"]) + "\n", encoding="utf-8")
        result = self.evaluate(folder)
        self.assertEqual(result[:2], (bits, plan))
        self.assertIn("machine.jsonl:1 is no tuning record", result[2])
        self.assertIn("machine.jsonl:3 is no tuning record (expected an object)", result[2])
        self.assertRegex(result[2], "tuning record refused: schedule linear_middle: .*warpz")
        write_records(self.output, [self.record(digest="0" * 16)])
        result = self.evaluate(folder)
        self.assertEqual(result[:2], (bits, plan))
        self.assertIn("older than its schedule", result[2])


class Files(Folder):
    """`elpis records` on files alone."""

    def setUp(self):
        super().setUp()
        self.a, self.b = self.folder / "a.jsonl", self.folder / "b.jsonl"

    @staticmethod
    def record(n, warps, **more):
        return {"schedule": "linear_middle", "target": "sm_86", "sms": 82,
                "parameters": {"n": n, "codebook": "mul1"}, "tuning": {"warps": warps},
                "us": 10.0, "default_us": 20.0, "gpu": "G", "driver": "1", "date": "2026-01-02",
                "candidates": [], **more}

    def run_records(self, *arguments):
        result = elpis("records", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_list_and_show(self):
        write_records(self.a, [self.record(768, 1), self.record(768, 2, gpu="H"),
                               self.record(256, 4)])
        with self.a.open("a", encoding="utf-8") as file:
            file.write("{\"schedule\": 1}\n")
        result = self.run_records("list", self.a)
        states = re.findall(r"(?m)^(used|behind|stale) ", result.stdout)
        self.assertEqual(states, ["behind", "used", "used"])
        self.assertIn("sm_86:82", result.stdout)
        self.assertIn("50.0 %", result.stdout)
        self.assertIn("a.jsonl:4 is no tuning record (expected a text \"schedule\")", result.stderr)
        candidates = [{"tuning": {"warps": 2}, "us": 9, "low_us": 8, "high_us": 10, "samples": 5},
                      {"tuning": {"warps": 8}, "refused": "spills"},
                      {"tuning": {"warps": 4}, "us": 7, "low_us": 6, "high_us": 8, "samples": 5}]
        write_records(self.b, [self.record(768, 1, candidates=candidates)])
        text = self.run_records("show", "--kernel", "linear_middle", self.b).stdout
        self.assertEqual(re.findall(r"warps=\d$", text, re.M),
                         ["warps=1", "warps=4", "warps=2", "warps=8"])
        self.refused("no such record", "records", "show", "--kernel", "embed", self.b)

    def test_a_refused_tuning_is_not_used(self):
        write_records(self.a, [self.record(768, 1), self.record(256, 3),
                               {**self.record(512, 1), "tuning": {"warpz": 4}},
                               self.record(128, 3, target="sm_77"), self.record(640, 2),
                               self.record(640, 3)])
        text = self.run_records("list", self.a).stdout
        self.assertEqual(re.findall(r"(?m)^(\w+) +linear_middle", text),
                         ["used", "refused", "refused", "used", "behind", "refused"])
        self.assertIn("        the default is used: schedule linear_middle: tuning parameter "
                      "warps: expected one of 4, 1, 2, 8, got 3\n", text)
        self.assertIn("6 records in 1 files, 0 stale, 3 refused, 0 lines", text)
        (self.folder / "own").mkdir()
        write_records(self.folder / "own" / "x.jsonl", records_of(self.a))
        text = elpis("check", "--records", self.folder / "own").stdout
        self.assertIn(f"{6 + SHIPPED} in {1 + len(SHIPPED_FILES)} files, 0 stale, 3 refused, "
                      "0 bad lines", text)
        lines = self.run_records("export", self.a).stdout.splitlines()
        self.assertEqual([json.loads(line)["parameters"]["n"] for line in lines], [768, 128])
        text = self.run_records("prune", self.a).stdout
        self.assertIn("a.jsonl:2 linear_middle: its tuning is refused", text)
        self.assertEqual([r["parameters"]["n"] for r in records_of(self.a)], [768, 128])

    def test_diff(self):
        write_records(self.a, [self.record(768, 1), self.record(256, 4), self.record(128, 4)])
        write_records(self.b, [self.record(768, 2), self.record(256, 4), self.record(512, 4)])
        text = self.run_records("diff", self.a, self.b).stdout
        self.assertIn("1 alike, 1 with another tuning, 1 only in", text)
        self.assertIn("- linear_middle sm_86:82 codebook=mul1 n=128", text)
        self.assertIn("+ linear_middle sm_86:82 codebook=mul1 n=512", text)
        self.refused("diff compares two files", "records", "diff", self.a)

    def test_merge_takes_the_newer(self):
        into = self.folder / "new" / "all.jsonl"
        write_records(self.a, [self.record(768, 1), self.record(256, 1, date="2026-02-01")])
        write_records(self.b, [self.record(768, 2, date="2026-01-03"), self.record(256, 2)])
        result = self.run_records("merge", self.a, self.b, "--output", into)
        self.assertIn("b.jsonl:2 is older", result.stdout)
        self.assertEqual([(r["parameters"]["n"], r["tuning"]["warps"]) for r in records_of(into)],
                         [(768, 2), (256, 1)])
        self.refused("merge needs --output", "records", "merge", self.a)

    def test_prune_keeps_the_file_as_it_was(self):
        text = "".join(json.dumps(r) + "\n" for r in (
            self.record(768, 1), self.record(256, 1, digest="0" * 16), self.record(768, 2)))
        self.a.write_text(text + "no record\n", encoding="utf-8")
        before = self.a.read_text(encoding="utf-8")
        result = self.run_records("prune", self.a, "--output", self.b)
        self.assertEqual(self.a.read_text(encoding="utf-8"), before)
        for words in ("a.jsonl:1 linear_middle: a later line", "a.jsonl:2 linear_middle: its sch",
                      "a.jsonl:4 : no tuning record", "3 lines left out, 1 kept"):
            self.assertIn(words, result.stdout)
        self.assertEqual(records_of(self.b), [self.record(768, 2)])
        for backup in ("a.jsonl.bak", "a.jsonl.bak.1"):
            self.a.write_text(before, encoding="utf-8")
            self.run_records("prune", self.a)
            self.assertEqual((self.folder / backup).read_text(encoding="utf-8"), before)
            self.assertEqual(records_of(self.a), [self.record(768, 2)])
        self.assertIn("nothing to leave out", self.run_records("prune", self.a).stdout)

    def test_export(self):
        write_records(self.a, [self.record(768, 1), self.record(768, 2), self.record(256, 1,
                               gpu="H"), self.record(64, 1, digest="0" * 16)])
        lines = self.run_records("export", self.a).stdout.splitlines()
        self.assertEqual([json.loads(line) for line in lines],
                         [self.record(768, 2), self.record(256, 1, gpu="H")])
        self.run_records("export", self.a, "--gpu", "H", "--csv", "--output", self.b)
        row, = csv.DictReader(self.b.read_text(encoding="utf-8").splitlines())
        self.assertEqual((row["tuning"], row["best_us"]), ("warps=1", "10"))

    def test_what_is_not_understood(self):
        self.refused("unknown action 'lsit'", "records", "lsit")
        self.refused("there is no such file", "records", "list", self.folder / "nothing.jsonl")


if __name__ == "__main__":
    unittest.main()
