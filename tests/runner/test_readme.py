#!/usr/bin/env python3
"""The README's worked example of a schedule does what the README says, word for word."""

import os
import re
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, os.environ.get("ELPIS", "build/elpis"))


def example():
    """The indented block that starts with the first mkdir, as shell text."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        block = re.search(r"^    mkdir -p mine.*\n(?:^(?:    .*)?\n)+", file.read(), re.MULTILINE)
    return re.sub(r"^    ", "", block.group(0), flags=re.MULTILINE)


class Readme(unittest.TestCase):
    def test_schedule_example(self):
        with tempfile.TemporaryDirectory() as folder:
            text = example().replace("build/elpis", PROGRAM)
            result = subprocess.run(["sh", "-e", "-c", text], cwd=folder, capture_output=True,
                                    text=True, check=False, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"scale_rows\s+y = x \* w, a row at a time")
        self.assertIn("linear_main", result.stdout, "the built-in schedules are listed too")
        self.assertEqual(result.stdout.count("f_mul(x[at + 3], w[k + 3])"), 2)
        for partition in ("contiguous", "strided"):
            self.assertRegex(result.stdout, r"// jobs: .* over \d+ warps, " + partition)


if __name__ == "__main__":
    unittest.main(verbosity=2)
