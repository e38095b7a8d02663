"""test_bench.py: `elpis bench` from outside: the table, JSON lines, CSV and SVG, Ctrl-C, refusals.

Run by tests/run.py, which sets ELPIS to the program and ELPIS_CACHE to a kernel cache. The model
is tests/models/elpis-tiny on the host device. No time is asserted.
"""
import csv
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
import xml.dom.minidom

PROGRAM = os.environ.get("ELPIS", "build/elpis")
TINY = "tests/models/elpis-tiny"
DRAFT = "tests/models/elpis-tiny-dflash2"
HOST = ["--device", "host", "--context", "1024"]
QUICK = ["--repeats", "3", "--seconds", "0"]
PATIENCE = 280  # seconds until a test gives up on the program
WEIGHTS = 6929184  # of elpis-tiny: tests/engine/test_traffic.c


def bench(*arguments):
    return subprocess.run([PROGRAM, "bench", *arguments], capture_output=True, text=True,
                          timeout=PATIENCE, check=False)


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Measuring(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.files = [self.folder / name for name in ("out.jsonl", "out.csv", "out.svg")]

    def run_bench(self, *arguments):
        result = bench(TINY, *HOST, *QUICK, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_rounds_with_a_draft(self):
        text = self.run_bench("--draft", DRAFT, "--contexts", "1024,64", "--rows", "8,2",
                              "--phases", "--accept", "6", "--tree", "0,0,1",
                              "--json", self.files[0], "--csv", self.files[1],
                              "--plot", self.files[2])
        self.assertIn("elpis-tiny with elpis-tiny-dflash2, context 1024, 3-bit cache", text)
        self.assertIn("no clocks and power: the host device has no sensors", text)
        for context in (64, 1024):
            for words in ("verify +2", "verify +8", "verify 0,0,1 +4", "draft +8", "commit +6",
                          "round +[1-8.]+", "host gap +[1-8.]+"):
                self.assertRegex(text, rf"(?m)^{words} +{context} +[0-9.]+ +[0-9.]+ +3")
        self.assertRegex(text, r"(?m)^mixer input linears +[0-9.]+ +[0-9.]+ % +[0-9.]+ +[0-9.]+ %$")
        self.assertRegex(text, r"(?m)^draft attention +[0-9.]+ +[0-9.]+ %")
        self.assertRegex(text, r"(?m)^ +8 +1024 +6\.929 ")

        lines = lines_of(self.files[0])
        kinds = [line["kind"] for line in lines if line["context"] == 64]
        self.assertEqual(kinds[:10], ["verify", "verify", "verify", "draft", "commit", "round",
                                      "host gap", "draft in a round", "verify in a round",
                                      "commit in a round"])
        self.assertEqual(kinds.count("phase"), 15)
        self.assertEqual(kinds.count("all phases"), 1)
        for line in lines:
            self.assertEqual(line["n"], 3)
            self.assertEqual(len(line["values"]), 3)
            self.assertEqual(line["median"], sorted(line["values"])[1])
            self.assertLessEqual(line["low_quartile"], line["median"])
            self.assertIsNone(line["sm_mhz"])
            self.assertEqual(line["max_context"], 1024)
            self.assertEqual(line["unit"], "ms")
        verify = next(line for line in lines if line["variant"] == "verify, 8 rows, context 1024")
        self.assertEqual(verify["bytes"]["weights"], WEIGHTS)
        self.assertEqual(verify["bytes"]["cache"], 1024 * 448)
        self.assertEqual(verify["bytes"]["together"], sum(
            verify["bytes"][key] for key in ("weights", "cache", "states", "rows")))
        self.assertAlmostEqual(verify["floor_ms"] * verify["copy_bandwidth"] / 1e3,
                               verify["bytes"]["together"], delta=1e-4 * WEIGHTS)
        self.assertAlmostEqual(verify["of_copy"], verify["floor_ms"] / verify["median"],
                               delta=1e-3 * verify["of_copy"])
        self.assertTrue(verify["command"].startswith("elpis bench tests/models/elpis-tiny "))

        with open(self.files[1], encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["kind"] for row in rows], [line["kind"] for line in lines])
        self.assertEqual([float(row["median_ms"]) for row in rows],
                         [line["median"] for line in lines])
        self.assertEqual(rows[2]["detail"], "0,0,1")
        self.assertEqual(rows[0]["watts"], "")
        plot = xml.dom.minidom.parse(str(self.files[2]))
        self.assertEqual(plot.documentElement.tagName, "svg")
        self.assertEqual(len(plot.getElementsByTagName("polyline")), 4)

    def test_without_a_draft_a_round_is_a_row(self):
        text = self.run_bench("--contexts", "300", "--rows", "3")
        self.assertRegex(text, r"(?m)^verify +3 +300 ")
        self.assertRegex(text, r"(?m)^round +1 +300 ")
        self.assertNotRegex(text, r"(?m)^(draft|commit|phases)")
        text = self.run_bench("--rows", "1", "--accept", "0")  # contexts: none of the usual but one
        self.assertRegex(text, r"(?m)^verify +1 +1024 ")
        self.assertNotRegex(text, r"(?m)^round")

    def test_prompts(self):
        text = self.run_bench("--prefill", "1024,20", "--json", self.files[0])
        self.assertNotRegex(text, r"(?m)^verify")
        self.assertRegex(text, r"(?m)^prefill +1024 .* tokens/s$")
        lines = lines_of(self.files[0])
        self.assertEqual([(line["kind"], line["context"]) for line in lines],
                         [("prefill", 20), ("first token", 20), ("prefill", 1024),
                          ("first token", 1024)])
        self.assertAlmostEqual(lines[2]["tokens_per_second"] * lines[2]["median"], 1023e3,
                               delta=100)
        self.assertGreater(lines[3]["median"], lines[2]["median"])
        text = self.run_bench("--prefill", "exact:9", "--contexts", "64", "--rows", "1",
                              "--accept", "0", "--draft", DRAFT, "--tree", "off")
        self.assertRegex(text, r"(?m)^verify +1 +64 ")
        self.assertRegex(text, r"(?m)^prefill +9 ")

    def test_prompts_to_the_end_of_the_context(self):
        text = self.run_bench("--prefill", "1024,100", "--phases", "--repeats", "1", "--json",
                              self.files[0], "--csv", self.files[1])
        self.assertRegex(text, r"(?m)^tokens +100 +1024$")
        self.assertRegex(text, r"(?m)^products +[0-9.]+ +[0-9.]+ % +[0-9.]+ +[0-9.]+ %$")
        self.assertRegex(text, r"(?m)^all prompt phases +[0-9.]+ +100.0 % +[0-9.]+ +100.0 %$")
        lines = lines_of(self.files[0])
        for tokens in (100, 1024):
            phases = {line["detail"]: line["median"] for line in lines
                      if line["kind"] == "prompt phase" and line["context"] == tokens}
            self.assertEqual(list(phases), [
                "embedding", "transforms", "weights", "products", "outputs", "GDN conv and gates",
                "GDN chunks", "GDN scan", "attention prepare", "attention", "first round"])
            self.assertGreater(min(phases.values()), 0)
            whole = next(line for line in lines
                         if line["kind"] == "all prompt phases" and line["context"] == tokens)
            self.assertAlmostEqual(sum(phases.values()) / whole["median"], 1, delta=1e-3)
        with open(self.files[1], encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["kind"] == "prompt phase"]
        self.assertEqual(len(rows), 22)
        result = bench(TINY, *HOST, *QUICK, "--prefill", "1024", "--repeats", "1")
        self.assertNotIn("not finite", result.stderr)

    def test_requests_over_http(self):
        text = self.run_bench("--http", "1014,30", "--out", "10", "--draft", DRAFT, "--repeats",
                              "1", "--json", self.files[0], "--csv", self.files[1])
        self.assertNotRegex(text, r"(?m)^(verify|prefill)")
        self.assertRegex(text, r"(?m)^request +1014 ")
        self.assertRegex(text, r"(?m)^ +30 +10 +[0-9]+( +[0-9.]+){6} +[0-9.]+ %$")
        lines = lines_of(self.files[0])
        self.assertEqual([line["kind"] for line in lines if line["context"] == 30],
                         ["engine prefill", "engine round", "request", "first text",
                          "in the engine"])
        by_kind = {(line["kind"], line["context"]): line for line in lines}
        for tokens in (30, 1014):
            request = by_kind["request", tokens]
            self.assertEqual(request["tokens"], 10)  # whatever the model would end
            self.assertLessEqual(2, request["rounds"])
            self.assertLessEqual(request["rounds"], 10)
            self.assertLessEqual(request["engine_ms"], request["median"])
            self.assertLessEqual(request["first_text_ms"], request["median"])
            self.assertEqual(request["first_text_ms"], by_kind["first text", tokens]["median"])
            self.assertEqual(request["prefill_ms"], by_kind["engine prefill", tokens]["median"])
            self.assertEqual(request["ms_per_round"], by_kind["engine round", tokens]["median"])
            self.assertAlmostEqual(
                request["prefill_ms"] + request["rounds"] * request["ms_per_round"],
                request["expected_ms"], delta=1e-4 * request["expected_ms"])
            self.assertAlmostEqual(request["median"] / request["expected_ms"],
                                   request["of_expected"], delta=1e-4 * request["of_expected"])
        with open(self.files[1], encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["kind"] == "request"]
        self.assertEqual([float(row["tokens"]) for row in rows], [10, 10])
        self.assertGreater(float(rows[0]["of_expected"]), 0)

    def test_ctrl_c_keeps_what_was_measured(self):
        with subprocess.Popen([PROGRAM, "bench", TINY, *HOST, "--seconds", "600", "--rows", "1",
                               "--json", str(self.files[0])], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if "ms median" in line:  # the first pass comes next
                    break
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("stopped by Ctrl-C", errors)
        self.assertRegex(rest, r"(?m)^verify +1 +1024 ")
        self.assertNotRegex(rest, r"(?m)^round")
        lines = lines_of(self.files[0])
        self.assertEqual([line["kind"] for line in lines], ["verify"])
        self.assertEqual(len(lines[0]["values"]), lines[0]["n"])


class Refusals(unittest.TestCase):
    def refused(self, status, needle, *arguments):
        result = bench(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn(needle, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_values(self):
        for option, value, needle in (
                ("--rows", "1,9",
                 "--rows expects numbers from 1 to 8 with commas between, got '1,9'"),
                ("--rows", "0", "--rows expects numbers from 1 to 8"),
                ("--rows", "1,,2", "got '1,,2'"),
                ("--rows", "", "got ''"),
                ("--rows", "8 ", "got '8 '"),
                ("--contexts", "7", "--contexts expects numbers from 8 to"),
                ("--contexts", "1k", "got '1k'"),
                ("--contexts", "4294967296", "got '4294967296'"),
                ("--contexts", ",".join(str(n) for n in range(10, 27)), "at most 16 numbers"),
                ("--contexts", "2048", "2048 is more than the context of 1024 tokens"),
                ("--prefill", "2048", "option --prefill: 2048 is more than the context of 1024"),
                ("--prefill", "exact", "--prefill expects lengths of prompts"),
                ("--prefill", "slow:5", "--prefill expects lengths of prompts"),
                ("--http", "0", "--http expects numbers from 1 to"),
                ("--http", "1", "option --http: a prompt of 1 and --out 1024 are more than the"),
                ("--out", "0", "--out expects 1 or more, got 0"),
                ("--prefill", "exact:", "--prefill expects lengths of prompts"),
                ("--accept", "9", "--accept expects 0 to 8, got 9"),
                ("--repeats", "0", "--repeats expects 1 to 1000, got 0"),
                ("--seconds", "-1", "--seconds expects 0 to 600, got -1"),
                ("--tree", "0,2", "the parent of row 2 must be a row before it"),
                ("--tree", "on", "--tree has no meaning without a draft model"),
                ("--json", "/nonexistent/out", "/nonexistent/")):
            with self.subTest(option=option, value=value):
                self.refused(2, needle, TINY, *HOST, option, value)

    def test_combinations(self):
        self.refused(2, "option --phases has no meaning with --http alone", TINY, *HOST,
                     "--http", "8", "--out", "8", "--phases")
        self.refused(2, "option --plot has no meaning with --http alone", TINY, *HOST,
                     "--http", "8", "--out", "8", "--plot", "x.svg")
        self.refused(2, "option --plot has no meaning with --prefill alone", TINY, *HOST,
                     "--prefill", "8", "--plot", "x.svg")
        self.refused(2, "--prefill int8-qk takes keys from a cache of 2 to 8 bits", TINY, *HOST,
                     "--prefill", "int8-qk:8", "--kv-bits", "16")
        self.refused(3, "/nonexistent", "/nonexistent", *HOST)

    def test_help(self):
        result = bench("--help")
        self.assertEqual(result.returncode, 0)
        for option in ("rows", "contexts", "accept", "repeats", "seconds", "phases", "json", "csv",
                       "plot", "prefill LENGTHS", "http LENGTHS", "out TOKENS",
                       "tree PARENTS", "draft", "as"):
            self.assertRegex(result.stdout, rf"(?m)^    --{option}\b")
        self.assertEqual(result.stdout.count("--prefill LENGTHS"), 1)
        self.assertNotIn("--prefill KIND", result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)


if __name__ == "__main__":
    unittest.main(verbosity=2)
