"""test_errors.py: bench/errors at small shapes: in no op is ours larger than stock.

Run by tests/run.py, which sets BUILD to the build folder and ELPIS_CACHE to a kernel cache.
"""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

PROGRAM = os.path.join(os.environ.get("BUILD", "build"), "bench", "errors")
PATIENCE = 280  # seconds until a test gives up on the program
MODEL = ["--model", "tests/models/elpis-tiny",
         "--hidden", "tests/data/tiny_forward_kv3_2.safetensors"]
OPS = ["linear qkv z", "linear out", "linear gate up", "linear down", "linear head",
       "elpis-tiny qkv z", "elpis-tiny q k v", "elpis-tiny head",
       "q norm, RoPE at 262143", "attention scores", "P.V, 128 keys", "P.V, 512 keys",
       "output gate", "GDN conv", "GDN SiLU, L2 norm", "GDN a, b", "GDN recurrence, 64",
       "GDN gated norm", "RMSNorm", "SiLU * up", "residual",
       "prefill qkv z", "prefill out", "prefill gate up", "prefill down"]


def errors(*arguments):
    return subprocess.run([PROGRAM, "--shapes", "tiny", *arguments], capture_output=True,
                          text=True, timeout=PATIENCE, check=False)


def larger_than_stock(lines):
    """[(op, figure)] in which ours is larger, or no number."""
    by_op = {}
    for line in lines:
        by_op.setdefault(line["op"], {})[line["scheme"]] = line
    return [(op, key) for op, schemes in by_op.items()
            for key in ("relative", "median", "bound", "relative_rounded")
            if key in schemes["ours"] and not schemes["ours"][key] <= schemes["stock"][key]]


class Errors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.result = errors("--json", *MODEL)
        cls.lines = [json.loads(line) for line in cls.result.stdout.splitlines()]

    def test_every_op_in_three_schemes(self):
        self.assertEqual(self.result.returncode, 0, self.result.stderr)
        seen = [(line["op"], line["scheme"]) for line in self.lines]
        self.assertEqual(len(seen), len(set(seen)))
        for op in OPS:
            for scheme in ("ours", "f16", "stock"):
                self.assertIn((op, scheme), seen)
        for line in self.lines:
            self.assertGreater(line["n"], 90, line["op"])
            self.assertGreater(line["relative"], 0, line["op"])

    def test_ours_is_not_larger_than_stock(self):
        self.assertEqual(larger_than_stock(self.lines), [])

    def test_the_comparison_sees_a_larger_one(self):
        swap = {"ours": "stock", "stock": "ours", "f16": "f16"}
        swapped = [dict(line, scheme=swap[line["scheme"]]) for line in self.lines]
        self.assertEqual({op for op, _ in larger_than_stock(swapped)},
                         {line["op"] for line in self.lines} - {"residual"})

    def test_no_error_exceeds_its_bound(self):
        for line in self.lines:
            self.assertLessEqual(line["worst"], line["bound"], (line["op"], line["scheme"]))

    def test_linears_stay_where_the_design_measured_them(self):
        for line in self.lines:
            if "relative_rounded" in line and line["scheme"] == "ours":
                self.assertLess(line["relative"], 6e-5, line["op"])  # affine weights
                self.assertLess(line["relative_rounded"], 3e-4, line["op"])

    def test_fp16_sums_of_slices_cost_little(self):
        """Of a prompt's products: more than fp32 sums, less than stock; a bound whatever k is."""
        by_op = {}
        for line in self.lines:
            if line["op"].startswith("prefill "):
                by_op.setdefault(line["op"], {})[line["scheme"]] = line
        self.assertEqual(len(by_op), 4)
        for op, of in by_op.items():
            self.assertLess(of["ours"]["relative"], of["f16"]["relative"], op)
            self.assertLess(of["f16"]["relative"], of["stock"]["relative"], op)
            self.assertAlmostEqual(of["f16"]["bound"], 4 * 2 ** -11 * 128 ** 0.5, delta=1e-3)

    def coarser(self, template, text, replacement, op):
        """Runs one op with a template in which a text is replaced: it has to fail."""
        source = pathlib.Path("templates", template).read_text(encoding="utf-8")
        self.assertIn(text, source)
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "templates"))
            pathlib.Path(folder, "templates", template).write_text(
                source.replace(text, replacement), encoding="utf-8")
            result = errors("--schedules", folder, "--only", op)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertRegex(result.stderr, f"errors: {re.escape(op)}: relative rms of ours against "
                                        "stock's is [0-9.e-]+, expected at most")
        self.assertRegex(result.stderr, f"errors: {re.escape(op)}: ours is ")
        self.assertNotIn("not larger", result.stdout)

    def test_activations_of_fewer_bits_fail(self):
        self.coarser("lib_linear.cu", "digit[i] = f_to_i32_rn(f_mul(v[i], scale));",
                     "digit[i] = f_to_i32_rn(f_mul(v[i], scale)) & ~1023;", "linear out")

    def test_operands_of_prompts_of_fewer_bits_fail(self):
        product = "mma_f16_ab(${fragments_m}, ${fragments_n}, sums, left, right);"
        cut = "for (u32 i = 0; i < ${4 * fragments_m}; i++) left[i] &= 0xffe0ffe0u;\n"
        self.coarser("prefill_gemm.cu", product, cut + product, "prefill out")

    def test_weights_of_fewer_bits_fail(self):
        self.coarser("attention_decode.cu", "digit[i] = f_to_u16_rn(f_mul(weight[i], back));",
                     "digit[i] = f_to_u16_rn(f_mul(weight[i], back)) & ~1023u;", "P.V, 512 keys")


class Words(unittest.TestCase):
    def test_help(self):
        result = errors("--help")
        self.assertEqual(result.returncode, 0)
        for option in ("shapes", "only", "columns", "steps", "keys", "json", "device"):
            self.assertRegex(result.stdout, rf"(?m)^    --{option}\b")
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)

    def test_refusals(self):
        for arguments in (["--shapes", "9b"], ["--columns", "100"], ["--steps", "9"],
                          ["--keys", "300000"], ["--only", "nothing"], MODEL[:2], ["--fast"]):
            result = errors(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("errors: ", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
