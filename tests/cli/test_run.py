"""test_run.py: the program from outside: what it prints where, exit statuses, the chat.

Run by tests/run.py, which sets ELPIS to the program and ELPIS_CACHE to a kernel cache. The model
is tests/models/elpis-tiny on the host device. The chat is driven through a pipe and, for line
editing and Ctrl-C, through a pseudo-terminal.
"""
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ.get("ELPIS", "build/elpis")
TINY = "tests/models/elpis-tiny"
DRAFT = "tests/models/elpis-tiny-dflash2"
HOST = ["--device", "host"]
PATIENCE = 280  # seconds until a test gives up on the program


def elpis(*arguments, text=None, **options):
    return subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, text=True,
                          timeout=PATIENCE, check=False, **options)


COMMANDS = ("run", "serve", "check", "kernels", "eval", "calibrate", "synth", "bench", "tune",
            "records")


class About(unittest.TestCase):
    def test_help_of_the_program_lists_the_commands(self):
        result = elpis("--help")
        self.assertEqual(result.returncode, 0)
        for command in COMMANDS:
            self.assertRegex(result.stdout, rf"(?m)^    {command} +\w")

    def test_every_command_explains_itself(self):
        for command in COMMANDS:
            result = elpis(command, "--help")
            self.assertEqual(result.returncode, 0, command)
            headings = [line for line in result.stdout.splitlines()
                        if line.isupper() and line[0] != " "]
            self.assertEqual(headings[:4], ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"], command)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100, command)

    def test_version(self):
        self.assertRegex(elpis("--version").stdout, r"^elpis \d+\.\d+\.\d+\n$")

    def test_licenses_name_every_linked_library(self):
        text = elpis("--licenses").stdout
        for library in ("Lua", "libuv", "llhttp", "jansson", "PCRE2", "utf8proc", "libsodium",
                        "libedit"):
            self.assertIn(f"---- {library}", text)


class Refusals(unittest.TestCase):
    def check(self, status, needle, *arguments):
        result = elpis(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn(needle, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_command_line(self):
        self.check(2, "a command is missing")
        self.check(2, "unknown command 'frob'", "frob")
        self.check(2, "unknown option '--frob'", "--frob")
        self.check(2, "an argument is missing", "run")
        self.check(2, "unknown option '--frob'", "run", TINY, "--frob")
        self.check(2, "--temperature expects a number from 0 to 100, got -1", "run", TINY,
                   "-t", "-1")
        self.check(2, "--top-p expects", "run", TINY, "--top-p", "1.5")
        self.check(2, "--ids needs --prompt", "run", TINY, "--ids")
        self.check(2, "no meaning with --raw", "run", TINY, "--raw", "--system", "x", "-p", "x")
        self.check(2, "--kv-bits expects", "run", TINY, "--kv-bits", "9")

    def test_speculation(self):
        for option in (["--tree", "on"], ["--speculate", "3"], ["--tap-shift", "0"],
                       ["--fault-every", "0"]):
            for command in ("run", "serve", "check"):
                self.check(2, f"{option[0]} has no meaning without a draft model", command, TINY,
                           *option)
        self.check(2, "--speculate expects 1 to 7, got 8", "run", TINY, "--draft", DRAFT,
                   "--speculate", "8")
        self.check(2, "--tree expects on or off, got '0,1'", "run", TINY, "--draft", DRAFT,
                   "--tree", "0,1")
        self.check(2, "--tap-shift expects a whole number", "run", TINY, "--draft", DRAFT,
                   "--tap-shift", "1.5")

    def test_trees_and_scripts(self):
        with tempfile.TemporaryDirectory() as folder:
            ids, script = f"{folder}/ids.txt", f"{folder}/script.txt"
            pathlib.Path(ids).write_text("1 2 3", encoding="utf-8")
            pathlib.Path(script).write_text(":\n0 1 : 5\n", encoding="utf-8")
            given = ["eval", TINY, "--ids", ids]
            self.check(2, "--tree 0,1 needs --teacher", *given, "--tree", "0,1")
            self.check(2, "--tree: the parent of row 1 must be a row before it", *given,
                       "--teacher", "--tree", "1")
            self.check(2, "--tree has no meaning without a draft model", *given, "--tree", "on")
            self.check(2, "exclude each other", *given, "--teacher", "--tree", "0,1",
                       "--draft-script", script)
            self.check(2, "ids.txt: expected the ids of the 4 rows of --tree at the end, found 3",
                       *given, "--teacher", "--tree", "0,0,0")
            self.check(2, "script.txt: line 2: expected as many tokens as parents, 2, found 1",
                       *given, "--draft-script", script)

    def test_calibration(self):
        given = ["calibrate", TINY, "--draft", DRAFT, *HOST]
        self.check(2, "an argument is missing", "calibrate")
        self.check(2, "--draft is missing", "calibrate", TINY)
        self.check(2, "--max-tokens expects at least 2, got 1", *given, "-n", "1")
        self.check(2, "tests/nowhere.txt", *given, "--prompts", "tests/nowhere.txt")
        with tempfile.TemporaryDirectory() as folder:
            prompts = pathlib.Path(folder) / "prompts.json"
            prompts.write_text('[{"name": "bad", "ids": [1, null]}]', encoding="utf-8")
            self.check(2, 'bad: "ids": expected token ids', *given, "--prompts", str(prompts))

    def test_model_files(self):
        self.check(3, "tests/nowhere is not a folder", "run", "tests/nowhere", "-p", "x")
        self.check(3, "tests/data/tokenizer.json", "run", "tests/data", "-p", "x")
        with tempfile.TemporaryDirectory() as folder:
            for file in pathlib.Path(TINY).iterdir():
                if file.name != "tokenizer.json":
                    (pathlib.Path(folder) / file.name).symlink_to(file.resolve())
            self.check(3, "tokenizer.json is missing", "run", folder, "-p", "x")
            shutil.copy(f"{TINY}/tokenizer.json", folder)
            (pathlib.Path(folder) / "chat_template.jinja").unlink()
            self.check(3, "has no chat template", "run", folder, "-p", "x")
            template = pathlib.Path(folder) / "chat_template.jinja"
            template.write_text("a\n{% if %}", encoding="utf-8")
            self.check(3, "template line 2", "run", folder, "-p", "x")


class OnePrompt(unittest.TestCase):
    def test_answer_on_stdout_reasoning_on_stderr(self):
        result = elpis("run", TINY, *HOST, "-p", "Count from 3 to 14.")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14.\n")
        self.assertIn("from 3 to 14", result.stderr)
        self.assertRegex(result.stderr, r"prompt: \d+ tokens, .*; reply: \d+ tokens")

    def test_summary_tells_rounds_of_a_draft(self):
        rounds = r"; rounds: \d+, \d+\.\d\d tokens and \d+\.\d\d ms each"
        result = elpis("run", TINY, *HOST, "--draft", DRAFT, "-p", "Count from 3 to 14.")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14.\n")
        self.assertRegex(result.stderr, r"reply: \d+ tokens, \d+\.\d/s" + rounds)
        result = elpis("run", TINY, *HOST, "-n", "3", "-p", "Count from 3 to 14.")
        self.assertNotIn("rounds", result.stderr)

    def test_ids_are_the_recorded_ones(self):
        """Greedy ids agree with the reference until the first near tie."""
        cases = json.loads(pathlib.Path("tests/data/tiny_greedy.json").read_text(encoding="utf-8"))
        case = next(c for c in cases if c["kv_bits"] == 3 and min(c["gap"]) > 0.05)
        result = elpis("run", TINY, *HOST, "--raw", "--ids", "-t", "0", "-p", self.prompt_of(case),
                       "-n", str(len(case["new_ids"])))
        self.assertEqual(result.returncode, 0, result.stderr)
        found = [int(word) for word in result.stdout.split()]
        wanted = [i for i in case["new_ids"] if i not in (4086, 4088)]
        self.assertEqual(found[:len(wanted)], wanted)

    @staticmethod
    def prompt_of(case):
        """The text whose ids are the case's prompt."""
        vocabulary = json.loads(pathlib.Path(f"{TINY}/tokenizer.json").read_text(encoding="utf-8"))
        names = {i: name for name, i in vocabulary["model"]["vocab"].items()}
        added = {t["id"]: t["content"] for t in vocabulary["added_tokens"]}
        spelled = {0x120: " ", 0x10a: "\n"}
        return "".join(added[i] if i in added else
                       "".join(spelled.get(ord(c), c) for c in names[i])
                       for i in case["prompt_ids"])

    def test_prompt_from_standard_input(self):
        result = elpis("run", TINY, *HOST, "--no-think", "-n", "4", "-p", "-",
                       text="What is 2 + 2?")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("cut at the limit", result.stderr)

    def test_limits_of_the_context(self):
        result = elpis("run", TINY, *HOST, "--context", "256", "-n", "250",
                       "-p", "Count from 3 to 14.")
        self.assertEqual(result.returncode, 2)
        self.assertIn("exceed the context (256)", result.stderr)
        result = elpis("run", TINY, *HOST, "--context", "256", "-p", "-", text="word " * 400)
        self.assertEqual(result.returncode, 2)
        self.assertIn("nothing is left for a reply", result.stderr)
        result = elpis("run", TINY, *HOST, "--raw", "-p", "")
        self.assertEqual(result.returncode, 2)
        self.assertIn("the prompt is empty", result.stderr)

    def test_prompt_that_is_no_text(self):
        result = subprocess.run([PROGRAM, "run", TINY, *HOST, "-p", "-"], input=b"a\xff",
                                capture_output=True, timeout=PATIENCE, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"not valid UTF-8", result.stderr)


class Evaluation(unittest.TestCase):
    """`elpis eval`: trees, and rounds whose proposals are given."""

    def evaluate(self, ids, *options):
        """The digests that are printed, by name."""
        path = pathlib.Path(self.folder) / "ids.txt"
        path.write_text(" ".join(map(str, ids)), encoding="utf-8")
        result = elpis("eval", TINY, *HOST, "--ids", str(path), *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return dict(line.split(" ", 1) for line in result.stdout.splitlines())

    def play(self, ids, rounds):
        """The digests of forced proposals, and the committed tokens from the dump."""
        script = pathlib.Path(self.folder) / "script.txt"
        script.write_text("\n".join(rounds), encoding="utf-8")
        dump = pathlib.Path(self.folder) / "dump.safetensors"
        digests = self.evaluate(ids, "--draft-script", str(script), "--dump", str(dump))
        data = dump.read_bytes()
        size = struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8:8 + size])
        self.assertEqual(header["committed"]["dtype"], "I32")
        self.assertEqual(header["committed_logits"]["dtype"], "F32")
        self.assertEqual(header["committed_logits"]["shape"], header["committed"]["shape"] + [4096])
        begin, end = header["committed"]["data_offsets"]
        return digests, list(struct.unpack(f"<{(end - begin) // 4}i",
                                           data[8 + size + begin:8 + size + end]))

    def test_proposals_change_rounds_and_nothing_else(self):
        cases = json.loads(pathlib.Path("tests/data/tiny_greedy.json").read_text(encoding="utf-8"))
        ids = max((case["prompt_ids"] for case in cases), key=len)[:40]
        with tempfile.TemporaryDirectory() as self.folder:
            plain, t = self.play(ids, [":"] * 6)
            self.assertEqual(len(t), 6)
            self.assertEqual(plain["rounds"], "6, committed tokens 6")
            wrong = (t[4] + 1) % 4000
            told, same = self.play(ids, [f"0 1 : {t[0]} {t[1]}", ":  # plain",
                                         f"0 0 1 : {wrong} {t[4]} 7"])
            self.assertEqual(same, t)
            self.assertEqual(told["rounds"], "3, committed tokens 6")
            for name in ("committed", "committed_logits"):
                self.assertEqual(told[name], plain[name], name)

    def test_a_path_is_a_tree(self):
        ids = list(range(100, 130))
        with tempfile.TemporaryDirectory() as self.folder:
            plain = self.evaluate(ids, "--teacher")
            path = self.evaluate(ids, "--teacher", "--tree", "0,1,2,3,4,5,6")
            fork = self.evaluate(ids, "--teacher", "--tree", "0,0,1,1,2,4,5")
            self.assertEqual(path["logits"], plain["logits"])
            self.assertEqual(path["hidden"], plain["hidden"])
            self.assertNotEqual(fork["logits"], plain["logits"])


class Calibration(unittest.TestCase):
    def test_few_prompts_calibrate_the_first_depths(self):
        with tempfile.TemporaryDirectory() as folder:
            prompts, output = pathlib.Path(folder) / "prompts.txt", pathlib.Path(folder) / "c.json"
            prompts.write_text("Tell a story about a clever fox named Ada.\nWho are you?\n"
                               "Tell a story about a lucky hare named Finn.\n", encoding="utf-8")
            result = elpis("calibrate", TINY, "--draft", DRAFT, *HOST, "--context", "512",
                           "--prompts", str(prompts), "--output", str(output))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("prompt 3 of 3, ", result.stderr)
            lines = result.stdout.splitlines()
            self.assertRegex(lines[0], r"^depth +samples +hits +recall +temperature ")
            self.assertEqual(lines[-1], f"wrote {output}")
            written = json.loads(output.read_text(encoding="utf-8"))
            self.assertEqual(sorted(written), ["recall", "temperature"])
            for depth in range(7):
                fields = lines[1 + depth].split()
                self.assertEqual(int(fields[0]), depth)
                samples, hits = int(fields[1]), int(fields[2])
                self.assertLessEqual(hits, samples)
                self.assertEqual(fields[3].endswith("*"), samples < 20)
                self.assertEqual(fields[4].endswith("*"), hits < 20)
                for key, text in (("recall", fields[3]), ("temperature", fields[4])):
                    self.assertAlmostEqual(written[key][depth], float(text.rstrip("*")), 4)
                if samples >= 20:
                    self.assertAlmostEqual(written["recall"][depth], (hits + 1) / (samples + 2), 4)
            self.assertGreaterEqual(int(lines[1].split()[1]), 20)
            with tempfile.TemporaryDirectory() as draft:
                for file in ("config.json", "model.safetensors"):
                    shutil.copy(f"{DRAFT}/{file}", draft)
                shutil.copy(output, f"{draft}/calibration.json")
                result = elpis("check", TINY, *HOST, "--draft", draft)
                self.assertIn("its own calibration", result.stdout)


class Chat(unittest.TestCase):
    def test_commands_and_turns_through_a_pipe(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = f"{folder}/talk.json"
            lines = ["/help", "/nonsense", "/system Be brief.", "What is 34 + 57?",
                     f"/save {saved}", "/reset", f"/save {folder}/empty.json", "/quit", "never"]
            result = elpis("run", TINY, *HOST, text="\n".join(lines))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("/reset        forget the conversation", result.stdout)
            self.assertIn("unknown command '/nonsense'", result.stderr)
            self.assertIn("91", result.stdout)
            messages = json.loads(pathlib.Path(saved).read_text(encoding="utf-8"))
            self.assertEqual([m["role"] for m in messages], ["system", "user", "assistant"])
            self.assertEqual(messages[1]["content"], "What is 34 + 57?")
            self.assertIn("91", messages[2]["content"])
            self.assertNotIn("<think>", messages[2]["content"])
            kept = json.loads(pathlib.Path(f"{folder}/empty.json").read_text(encoding="utf-8"))
            self.assertEqual([m["role"] for m in kept], ["system"])

    def test_terminal_history_and_interrupt(self):
        with tempfile.TemporaryDirectory() as state:
            terminal = Terminal(["run", TINY, *HOST], {"XDG_STATE_HOME": state, "TERM": "xterm"})
            terminal.wait_for("> ")
            terminal.type("Tell a story about a clever fox named Ada.\r")
            terminal.wait_for("Once")  # of the answer: the line itself is echoed
            terminal.type("\x03")
            terminal.wait_for("reply: ")
            terminal.wait_for("> ")
            terminal.type(f"/save {state}/talk.json\r")
            terminal.wait_for("> ")
            terminal.type("/quit\r")
            self.assertEqual(terminal.end(), 0)
            reply = json.loads((pathlib.Path(state) / "talk.json").read_text(encoding="utf-8"))[1]
            said = reply.get("reasoning_content", "") + reply["content"]
            self.assertLess(len(said), 200, "the whole story was told")
            history = (pathlib.Path(state) / "elpis" / "history").read_text(encoding="utf-8")
            self.assertIn("clever", history)
            self.assertEqual((pathlib.Path(state) / "elpis").stat().st_mode & 0o777, 0o700)

    def test_interrupt_at_the_prompt_drops_the_line(self):
        with tempfile.TemporaryDirectory() as state:
            terminal = Terminal(["run", TINY, *HOST], {"XDG_STATE_HOME": state, "TERM": "xterm"})
            terminal.wait_for("> ")
            terminal.type("half a li")
            terminal.wait_for("half a li")
            terminal.type("\x03")
            time.sleep(0.5)
            terminal.type("/quit\r")
            self.assertEqual(terminal.end(), 0)


class Terminal:
    """The program behind a pseudo-terminal."""

    def __init__(self, arguments, environment):
        self.seen = ""
        self.process, self.master = pty.fork()
        if self.process == 0:
            os.environ.update(environment)
            os.execv(PROGRAM, [PROGRAM, *arguments])

    def read(self, seconds):
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def wait_for(self, text):
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
                raise AssertionError(f"'{text}' did not appear in: {self.seen[-2000:]}")
            self.read(1)
        self.seen = self.seen.split(text, 1)[1]

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            done, status = os.waitpid(self.process, os.WNOHANG)
            if done:
                os.close(self.master)
                return os.waitstatus_to_exitcode(status)
            self.read(0.1)
        os.kill(self.process, signal.SIGKILL)
        raise AssertionError(f"the program does not end: {self.seen[-2000:]}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
