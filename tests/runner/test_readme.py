#!/usr/bin/env python3
"""The worked examples of README.md and schedules/README.md do what is said, word for word."""

import os
import re
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, os.environ.get("ELPIS", "build/elpis"))


def read(*parts):
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as file:
        return file.read()


def example():
    """The indented block that starts with the script of scale_rows, as shell text."""
    block = re.search(r"^    cat > scale\.lua.*\n(?:^(?:    .*)?\n)+", read("README.md"),
                      re.MULTILINE)
    return re.sub(r"^    ", "", block.group(0), flags=re.MULTILINE)


class Readme(unittest.TestCase):
    def test_schedule_example(self):
        with tempfile.TemporaryDirectory() as folder:
            text = example().replace("build/elpis", PROGRAM)
            result = subprocess.run(["sh", "-e", "-c", text], cwd=folder, capture_output=True,
                                    text=True, check=False, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout,
                         r"scale_rows, hidden=1000 rows_max=8: y: error \S+, at most")
        self.assertIn("bits equal in 6 of 6 tunings", result.stdout)
        self.assertRegex(result.stdout,
                         r"(?m)^map=contiguous warps=4 \(default\) +\d+\.\d\d ")
        self.assertIn("installed scale_rows in mine", result.stdout)
        self.assertRegex(result.stdout, r"// jobs: .* over \d+ warps, contiguous")

    def test_the_tutorial_quotes_its_example(self):
        """Every block of Lua or C in schedules/README.md stands in the softmax example."""
        example_text = read("schedules", "examples", "softmax.lua")
        blocks = re.findall(r"```(?:lua|c)\n(.*?)```", read("schedules", "README.md"), re.DOTALL)
        self.assertGreaterEqual(len(blocks), 4)
        for block in blocks:
            self.assertIn(block, example_text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
