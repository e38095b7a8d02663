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

    def test_refusals(self):
        for needle, arguments in (("unknown geometry", ("3b", self.model)),
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
