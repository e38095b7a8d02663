"""test_kernels.py: `elpis kernels` from outside: the list, sources, resources, and what it refuses.

Run by tests/run.py, which sets ELPIS to the program. --resources needs NVRTC: without it the
sentence that says so is tested instead.
"""
import os
import re
import subprocess
import tempfile
import unittest

PROGRAM = os.environ.get("ELPIS", "build/elpis")


def kernels(*arguments):
    return subprocess.run([PROGRAM, "kernels", *arguments], capture_output=True, text=True,
                          timeout=280, check=False)


class Kernels(unittest.TestCase):
    def refused(self, status, needle, *arguments):
        result = kernels(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn(needle, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_the_list_has_a_line_a_kernel(self):
        lines = kernels().stdout.splitlines()
        names = [line.split()[0] for line in lines]
        self.assertIn("linear_main", names)
        self.assertEqual(names, sorted(names))
        self.assertFalse([line for line in lines if len(line.split()) < 2])

    def test_sources_for_both_kinds_of_device(self):
        gpu = kernels("--emit", "linear_main", "--arch", "sm_86").stdout
        self.assertIn("__global__", gpu)
        self.assertIn("mma_u8s8_mul1", gpu)
        host = kernels("--emit", "linear_main", "--arch", "host").stdout
        self.assertNotIn("__global__", host)

    def test_a_folder_with_what_cannot_be_read_is_refused(self):
        """The built-in file would be taken in its place, in silence."""
        with tempfile.TemporaryDirectory() as folder:
            for part in ("schedules", "templates"):
                os.mkdir(os.path.join(folder, part))
            os.symlink("/nowhere/lock", os.path.join(folder, "schedules", ".#embed.lua"))
            os.symlink("/nowhere/text", os.path.join(folder, "schedules", "README.md"))
            self.assertEqual(kernels("--schedules", folder).returncode, 0)
            template = os.path.join(folder, "templates", "embed.cu")
            os.symlink("/nowhere/embed.cu", template)
            self.refused(2, f"--schedules: {template} is a link to a file that is not there",
                         "--schedules", folder, "--emit", "embed")
            os.remove(template)
            os.mkdir(os.path.join(folder, "schedules", "embed.lua"))
            self.refused(2, "embed.lua: expected a regular file, found a folder", "--schedules",
                         folder)

    def test_settings_change_the_text(self):
        settings = ["k=256", "n0=1280", "n1=0", "n2=0", "n3=0", "bits=4", "codebook=mul1"]
        by_operand = kernels("--emit", "linear_main", *settings)
        by_option = kernels("--emit", "linear_main", "--set", ",".join(settings[:3]),
                            "--set=" + ",".join(settings[3:]))
        self.assertEqual(by_operand.returncode, 0, by_operand.stderr)
        self.assertEqual(by_operand.stdout, by_option.stdout)
        pinned = kernels("--emit", "linear_main", *settings, "map=strided").stdout
        self.assertNotEqual(by_operand.stdout, pinned)

    def test_wrong_words_are_refused(self):
        self.refused(2, "no_such_kernel", "--emit", "no_such_kernel")
        self.refused(2, "no_such_kernel", "no_such_kernel")
        self.refused(2, "nonsense", "--emit", "linear_main", "nonsense=1")
        self.refused(2, "name=value", "--emit", "linear_main", "--set", "k=")
        self.refused(2, "sm_20", "--emit", "linear_main", "--arch", "sm_20")
        self.refused(2, "--arch", "--resources", "--arch", "host")
        self.refused(2, "--schedules", "--schedules", "/nowhere")

    def test_resources(self):
        result = kernels("--resources", "--arch", "sm_86", "embed", "linear_output")
        if result.returncode == 4:
            self.assertIn("NVRTC", result.stderr)
            self.skipTest("no NVRTC here")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^embed ")
        self.assertRegex(result.stdout, r"\d+ registers, spills 0 \+ 0 bytes, "
                                        r"shared \d+ \+ \d+ bytes, [1-9]\d* CTAs an SM")
        self.assertRegex(result.stdout,
                         r"loop +instr\. +tensor +alu +fma +xu +memory +issue +limit")
        self.assertRegex(result.stdout, r"(?m)^\d+ kernels, 0 with spills$")

    def test_estimate(self):
        model = "tests/models/elpis-tiny"
        result = kernels("--estimate", model, "--contexts", "512,4096", "--clock", "1695")
        if result.returncode == 4:
            self.assertIn("NVRTC", result.stderr)
            self.skipTest("no NVRTC here")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = result.stdout
        self.assertTrue(text.startswith("ESTIMATE, not a measurement: a verify of 8 rows"), text)
        self.assertIn("1695 MHz, 876 GB/s, cache of 3 bits", text)
        self.assertRegex(text, r"(?m)^ +\d+ linear_main +\d+ +\d+\.\d\d( +\d+\.\d){8} +\w+ ")
        self.assertRegex(text, r"(?m)^ +\d+ linear_main on sm_86: bits=4 ")
        self.assertEqual(text.count("\n    estimate "), 2)
        self.assertRegex(text, r"Cycles of an SM's partition for 128 bytes of weights\n +kernel ")
        self.assertLessEqual(max(len(line) for line in text.split("\nParameters")[0].split("\n")),
                             122)

    def test_estimate_of_prompts(self):
        result = kernels("--estimate", "tests/models/elpis-tiny", "--prefill", "300,5000")
        if result.returncode == 4:
            self.assertIn("NVRTC", result.stderr)
            self.skipTest("no NVRTC here")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = result.stdout
        self.assertTrue(text.startswith("ESTIMATE, not a measurement: prompts, in pieces of 4096 "),
                        text)
        steps = re.findall(r"(?m)^ +\d+ prefill_gemm +(\d+) ",
                           text.split("128 rows x 128 columns x 32 k")[1].split("\nParameters")[0])
        self.assertGreater(len(steps), 3)
        self.assertEqual(set(steps), {"1024"})  # 64 products a warp's partition, 16 cycles each
        rates = [float(rate) for rate in re.findall(r"tokens: estimate .* s, (\d+) tokens/s", text)]
        self.assertEqual(len(rates), 2)
        self.assertRegex(text, r"(?m)^piece of 299 rows at 0: ")
        self.assertRegex(text, r"(?m)^piece of 903 rows at 4096: ")

    def test_estimates_that_make_no_sense_are_refused(self):
        model = "tests/models/elpis-tiny"
        self.refused(2, "--contexts", "--estimate", model, "--prefill", "512", "--contexts", "512")
        self.refused(2, "--prefill", "--estimate", model, "--prefill", "1")
        self.refused(2, "--prefill", "--estimate", model, "--prefill", "many")
        self.refused(2, "--clock expects a number above 0", "--estimate", model, "--clock", "0")
        self.refused(2, "--bandwidth expects a number above 0", "--estimate", model, "--bandwidth",
                     "-1")
        self.refused(2, "--kv-bits expects 2 to 8 or 16", "--estimate", model, "--kv-bits", "9")
        self.refused(2, "--sms expects a number above 0", "--resources", "--sms", "0")
        for option in ("--draft", "--rows", "--contexts", "--prefill", "--kv-bits", "--clock",
                       "--bandwidth"):
            self.refused(2, f"option {option} has a meaning with --estimate", option, "4")
        self.refused(2, "one of --emit, --resources and --estimate", "--emit", "embed",
                     "--resources")
        self.refused(2, "--clock", "--estimate", model, "--arch", "sm_89")
        self.refused(2, "--clock", "--estimate", model, "--arch", "host")
        self.refused(2, "--rows", "--estimate", model, "--rows", "9")
        self.refused(2, "--contexts", "--estimate", model, "--contexts", "1")
        self.refused(2, "linear_main", "--estimate", model, "linear_main")
        self.refused(3, "/nowhere", "--estimate", "/nowhere")


if __name__ == "__main__":
    unittest.main(verbosity=2)
