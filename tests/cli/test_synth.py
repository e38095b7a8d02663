"""test_synth.py: `elpis synth` from outside: what it writes runs, and its activations are in range.

Run by tests/run.py, which sets ELPIS to the program.
"""
import os
import shutil
import struct
import json
import subprocess
import tempfile
import unittest

import numpy

PROGRAM = os.environ.get("ELPIS", "build/elpis")


def elpis(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=280,
                          check=False)


def tensor(path, name):
    """A tensor of F32 of a safetensors file, as float64."""
    with open(path, "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    entry = json.loads(content[8:8 + length])[name]
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    values = numpy.frombuffer(content[begin:end], numpy.float32)
    return values.reshape(entry["shape"]).astype(numpy.float64)


def rms(values):
    return numpy.sqrt((values * values).mean())


class Synth(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="elpis-synth-")
        self.model = os.path.join(self.folder, "model")
        self.draft = os.path.join(self.folder, "draft")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def done(self, *arguments):
        result = elpis(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_it_runs(self):
        self.assertIn(" GB in ", self.done("synth", "tiny", self.model).stdout)
        self.done("synth", "tiny-dflash2", self.draft)
        report = self.done("check", self.model, "--draft", self.draft, "--device", "host").stdout
        self.assertIn("tokenizer  4096 ids", report)
        self.assertIn("taps after 1 3 6", report)
        ids, dump = os.path.join(self.folder, "ids.txt"), os.path.join(self.folder, "dump")
        with open(ids, "w", encoding="ascii") as file:
            file.write(" ".join(str(i * 397 % 4086) for i in range(1, 49)))
        self.done("eval", self.model, "--device", "host", "--ids", ids, "--teacher", "--dump", dump)
        logits, hidden = tensor(dump, "logits"), tensor(dump, "hidden")
        self.assertTrue(numpy.isfinite(logits).all())
        self.assertTrue(0.9 < rms(logits) < 1.1, rms(logits))
        for layer in range(8):
            self.assertTrue(0.5 < rms(hidden[:, layer]) < 0.9, rms(hidden[:, layer]))
        self.assertTrue(all(rms(hidden[:, i]) < rms(hidden[:, i + 1]) for i in range(7)))
        result = self.done("run", self.model, "--draft", self.draft, "--device", "host",
                           "-p", "Hi", "--max-tokens", "4")
        self.assertIn("<|extra_", result.stdout)

    def test_a_hollow_model_has_shapes_and_takes_no_room(self):
        self.done("synth", "1b", self.model, "--hollow")
        file = os.stat(os.path.join(self.model, "model.safetensors"))
        self.assertGreater(file.st_size, 5e8)
        self.assertLess(512 * file.st_blocks, 1e7)
        report = self.done("check", self.model, "--device", "host").stdout
        self.assertIn("layers     20: 5 attention", report)
        self.done("synth", "1b-dflash2", self.draft, "--hollow")
        self.done("check", self.model, "--draft", self.draft, "--device", "host")

    def test_widths_and_heads_take_the_place_of_the_geometrys(self):
        self.done("synth", "tiny", self.model, "--layers", "4", "--hidden", "384",
                  "--intermediate", "512", "--q-heads", "4", "--kv-heads", "2", "--k-heads", "3",
                  "--v-heads", "3")
        self.done("synth", "tiny-dflash2", self.draft, "--hidden", "384", "--q-heads", "8",
                  "--kv-heads", "2", "--window", "64", "--rank", "32", "--target-layers", "4")
        report = self.done("check", self.model, "--draft", self.draft, "--device", "host").stdout
        self.assertIn("window 64, selector of rank 32", report)
        with open(os.path.join(self.model, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual([config[key] for key in (
            "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
            "linear_num_key_heads", "linear_num_value_heads")], [384, 512, 4, 2, 3, 3])

    def test_refusals(self):
        for needle, arguments in (("hidden 300: expected a multiple of 128",
                                   ("tiny", self.model, "--hidden", "300")),
                                  ("hidden 38016: expected 128 to 37888",
                                   ("tiny", self.model, "--hidden", "38016")),
                                  ("q-heads 7: expected a multiple of kv-heads, which is 2",
                                   ("tiny", self.model, "--q-heads", "7", "--kv-heads", "2")),
                                  ("q-heads 9: expected a multiple of kv-heads, which is 1, at "
                                   "most 8", ("tiny", self.model, "--q-heads", "9")),
                                  ("v-heads 6: expected a multiple of k-heads, which is 4",
                                   ("tiny", self.model, "--k-heads", "4")),
                                  ("window has no meaning for tiny",
                                   ("tiny", self.model, "--window", "64")),
                                  ("k-heads has no meaning for tiny-dflash2",
                                   ("tiny-dflash2", self.model, "--k-heads", "4")),
                                  ("rank 12: expected a multiple of 8",
                                   ("tiny-dflash2", self.model, "--rank", "12")),
                                  ("--hidden expects at least 1", ("tiny", self.model, "--hidden",
                                                                   "0")),
                                  ("unknown geometry", ("3b", self.model)),
                                  ("--layers expects at least 1", ("tiny", self.model,
                                                                   "--layers", "0")),
                                  ("an argument is missing", ("tiny",))):
            result = elpis("synth", *arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(needle, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertFalse(os.path.exists(self.model))

    def test_help_lists_the_geometries(self):
        text = elpis("synth", "--help").stdout
        for name in ("tiny ", "1b ", "9b ", "27b ", "27b-dflash2 "):
            self.assertIn("\n        " + name, text)


if __name__ == "__main__":
    unittest.main()
