"""test_stress.py: the kernel cache under whole starts of the program, most with `make test-full`.

Sixteen starts at once on an empty cache, starts that are killed at random moments, damaged files,
folders that are full, read-only or cannot be made. What is compiled is counted by the lines of
ELPIS_LOG=debug, one a kernel, over all processes. Every start must give the same answer.

Run by tests/run.py, which sets ELPIS. The model is tests/models/elpis-tiny on the host device.
"""
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ.get("ELPIS", "build/elpis")
COMMAND = [PROGRAM, "run", "tests/models/elpis-tiny", "--device", "host", "--context", "1024",
           "--prefill", "exact", "--temperature", "0", "--max-tokens", "8",
           "-p", "What is 34 + 57?"]
STARTS = 16
KILLS = 50
COMPILED = "debug: compiled kernel "
WARNING = "warning: kernel cache:"


def may_mount():
    """Whether a process may have mounts of its own."""
    return bool(shutil.which("unshare")) and subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], check=False,
        stderr=subprocess.DEVNULL).returncode == 0


@unittest.skipUnless(os.environ.get("ELPIS_TEST_FULL"), "longer runs only (ELPIS_TEST_FULL)")
class Stress(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="elpis-stress-"))
        self.cache = self.folder / "cache"
        (self.folder / "tmp").mkdir()  # what killed compilers leave
        self.environment = dict(os.environ, ELPIS_CACHE=str(self.cache), ELPIS_LOG="debug",
                                TMPDIR=str(self.folder / "tmp"))

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, command=None):
        return subprocess.Popen(command or COMMAND, env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                start_new_session=True)

    def finish(self, process):
        """The answer and the lines on standard error; the start must have ended well."""
        answer, said = process.communicate()
        self.assertEqual(process.returncode, 0, said[-2000:])
        return answer, said.splitlines()

    def start(self, command=None):
        return self.finish(self.begin(command))

    def kernels(self):
        return sorted(self.cache.glob("*.kernel"))

    @staticmethod
    def count(lines, beginning):
        return sum(line.startswith(beginning) for line in lines)

    def test_sixteen_starts_compile_every_kernel_once(self):
        running = [self.begin() for _ in range(STARTS)]
        ended = [self.finish(process) for process in running]
        self.assertEqual(len({answer for answer, _ in ended}), 1)
        compiled = sum(self.count(lines, COMPILED) for _, lines in ended)
        self.assertEqual(compiled, len(self.kernels()))
        told = re.findall(r"^compiled (\d+) kernels", "\n".join(
            line for _, lines in ended for line in lines), re.MULTILINE)
        self.assertEqual(sum(map(int, told)), compiled)
        self.assertEqual(len(list(self.cache.iterdir())), compiled)  # no lock, nothing half
        answer, lines = self.start()
        self.assertEqual(answer, ended[0][0])
        self.assertEqual(self.count(lines, COMPILED), 0)

    def test_killed_starts_leave_nothing_that_is_wrong(self):
        begun = time.monotonic()
        right, _ = self.start()
        whole = time.monotonic() - begun
        images = {path: path.read_bytes() for path in self.kernels()}
        draw = random.Random(1)
        for _ in range(KILLS):
            for path in draw.sample(list(images), len(images) // 2):
                path.unlink(missing_ok=True)
            process = self.begin()
            time.sleep(draw.uniform(0, whole * 0.7))
            process.kill()
            process.communicate()
            try:
                os.killpg(process.pid, signal.SIGKILL)  # its compilers
            except ProcessLookupError:
                pass
            for path in self.kernels():
                self.assertEqual(path.read_bytes(), images[path], path)
        answer, lines = self.start()
        self.assertEqual(answer, right)
        self.assertEqual(self.count(lines, WARNING), 0)
        self.assertEqual(set(self.kernels()), set(images))

    def test_damaged_files_are_compiled_again_with_one_warning(self):
        def cut(size):
            return lambda data: data[:size(len(data))]

        def flip(data):
            at = len(data) // 3
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]

        right, lines = self.start()
        cold = self.count(lines, COMPILED)
        for damage in (cut(lambda n: 0), cut(lambda n: 1), cut(lambda n: n // 2),
                       cut(lambda n: n - 1), flip):
            damaged = self.kernels()[::3]
            for path in damaged:
                path.write_bytes(damage(path.read_bytes()))
            answer, lines = self.start()
            self.assertEqual(answer, right)
            self.assertEqual(self.count(lines, COMPILED), len(damaged))
            self.assertEqual(self.count(lines, WARNING), 1)
            self.assertEqual(len(self.kernels()), cold)

    def check_memory_only(self, command, reason):
        right, lines = self.start()
        cold = self.count(lines, COMPILED)
        answer, lines = self.start(command)
        self.assertEqual(answer, right)
        self.assertEqual(self.count(lines, COMPILED), cold)
        warnings = [line for line in lines if line.startswith("warning:")]
        self.assertEqual(len(warnings), 1, warnings)
        self.assertRegex(warnings[0], reason)

    def in_mount(self, options):
        """The command with the cache in a file system of its own."""
        script = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
        return ["unshare", "-m", "sh", "-c", script, "sh", options, str(self.cache), *COMMAND]

    @unittest.skipUnless(may_mount(), "needs mounts of its own")
    def test_a_full_folder(self):
        self.check_memory_only(self.in_mount("mode=700,size=64k"), "No space left on device")

    @unittest.skipUnless(may_mount(), "needs mounts of its own")
    def test_a_read_only_folder(self):
        self.check_memory_only(self.in_mount("mode=700,ro"), "Read-only file system")

    def test_a_folder_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        self.check_memory_only([*COMMAND, "--cache", str(self.folder / "file" / "cache")],
                               "cannot make the folder")


class Lines(unittest.TestCase):
    def test_debug_lines_are_shown_when_asked_for(self):
        def said(**more):
            return subprocess.run(COMMAND, env=dict(os.environ, **more), text=True, check=True,
                                  capture_output=True).stderr

        self.assertIn("debug: plan: ", said(ELPIS_LOG="debug"))
        self.assertNotIn("debug: ", said(ELPIS_LOG="info"))


if __name__ == "__main__":
    unittest.main()
