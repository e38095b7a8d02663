#!/usr/bin/env python3
"""Builds and runs every test, counts every case, closes with "N passed, N failed".

Suites, the long ones first:
  serve      tests/serve/run.sh: the program serving a small model to the npm client
  proofs     proofs/prove.sh: Coq, a line a law
  python     tests/*/test_*.py: unittest or TAP, or the exit status is the result
  c          tests/<module>/test_*.c: cmocka programs, built by make, printing TAP
  lua        tests/*/*_spec.lua: busted specifications
  lint       the checks of `make lint`; clang-tidy only with --full

One case is one line of TAP. A program that ends badly without naming a failed case, prints no
case, runs longer than its limit or does not build counts as one failed case. Cases that could
not run here (no Node, no CUDA toolkit) are named at the end as skipped. Programs of different
suites run side by side; nothing is retried.

Not here: what the tests need (Makefile, .ci/deps) and the tests themselves.
"""

import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CASE = re.compile(r"^(\s*)(ok|not ok)\b(?:\s+(\d+))?(?:\s+-)?\s*(.*?)\s*$")
UNITTEST = re.compile(r"^(.*?)(?: \(.*\))? \.\.\. (ok|FAIL|ERROR|skipped\b.*)$")
SKIP = re.compile(r"#\s*skip\S*\s*", re.IGNORECASE)
LIMIT_SECONDS = 600
LIMIT_LONG_SECONDS = 900  # npm's first download, all proofs, fuzzing
TAIL_LINES = 60
REPORT = "test-report.txt"  # in the build folder: failures, skipped cases, the closing line


class Program:
    """One thing to run. `missing` names what it needs and this machine lacks, else None."""

    def __init__(self, suite, name, command, limit=LIMIT_SECONDS, missing=None, environment=None,
                 cases_expected=True):
        self.suite, self.name, self.command, self.limit = suite, name, command, limit
        self.missing, self.environment = missing, environment or {}
        self.cases_expected = cases_expected


class Outcome:
    """What a program did: names of the cases, and its output for those who look for the reason."""

    def __init__(self, program):
        self.program = program
        self.passed, self.failed, self.skipped = [], [], []
        self.output, self.seconds = "", 0.0


def parse_cases(text):
    """TAP, or what Python's unittest prints, to [(depth, ok, name, skipped)]; subtests of TAP are
    told by their indentation."""
    cases = []
    for line in text.splitlines():
        match = UNITTEST.match(line)
        if match:
            name, verdict = match.groups()
            cases.append((0, verdict == "ok", name, verdict.startswith("skipped")))
            continue
        match = CASE.match(line)
        if not match:
            continue
        indent, verdict, _, name = match.groups()
        skip = SKIP.search(name)
        if skip:
            name = (name[:skip.start()] + name[skip.end():]).strip()
        cases.append((len(indent), verdict == "ok", name or "unnamed", bool(skip)))
    return cases


def count_cases(outcome, cases):
    """Adds the cases. A line after deeper ones sums them up: it is no case of its own, unless it
    failed while they all passed."""
    deeper = []  # (depth, ok) of lines not yet summed up
    for depth, ok, name, skipped in cases:
        below = [entry for entry in deeper if entry[0] > depth]
        deeper = [entry for entry in deeper if entry[0] <= depth]
        is_summary = bool(below)
        deeper.append((depth, ok and all(entry[1] for entry in below)))
        if is_summary and (ok or not all(entry[1] for entry in below)):
            continue
        if skipped:  # also where cmocka prints "not ok ... # SKIP"
            deeper[-1] = (depth, True)
            outcome.skipped.append(name)
        elif ok:
            outcome.passed.append(name)
        else:
            outcome.failed.append(name)


def execute(command, limit, environment):
    """Runs a command in its own process group. Returns (output, status); status None = too long."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
        return output.decode("utf-8", "replace"), process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return output.decode("utf-8", "replace"), None


def run_program(program, base_environment):
    outcome = Outcome(program)
    if program.missing:
        outcome.skipped.append(program.missing)
        return outcome
    environment = dict(base_environment)
    environment.update(program.environment)
    start = time.monotonic()
    outcome.output, status = execute(program.command, program.limit, environment)
    outcome.seconds = time.monotonic() - start
    count_cases(outcome, parse_cases(outcome.output))
    counted = len(outcome.passed) + len(outcome.failed) + len(outcome.skipped)
    if status is None:
        outcome.failed.append("ran longer than %d s" % program.limit)
    elif status < 0:
        outcome.failed.append("killed by signal %d" % -status)
    elif status != 0 and not outcome.failed:
        outcome.failed.append("exit status %d" % status)
    elif counted == 0 and program.cases_expected:
        outcome.failed.append("printed no case")
    elif counted == 0:
        outcome.passed.append(program.name)
    return outcome


# ---- what there is to run


def short_name(path):
    return os.path.splitext(os.path.relpath(path, os.path.join(ROOT, "tests")))[0]


def find(pattern):
    return sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, pattern)))


def lacking(*commands):
    missing = [command for command in commands if not shutil.which(command)]
    return "needs " + " and ".join(missing) if missing else None


def c_programs(build, wrap, limit):
    for source in find("tests/*/test_*.c"):
        binary = os.path.join(build, os.path.splitext(source)[0])
        yield Program("c", short_name(source), wrap + [binary], limit)


def lua_programs():
    for source in find("tests/*/*_spec.lua"):
        yield Program("lua", short_name(source),
                      ["busted", "--lua=" + (shutil.which("lua5.4") or "lua5.4"), "-o", "TAP",
                       "--pattern=_spec", source],
                      missing=lacking("busted", "lua5.4"))


def python_programs():
    for source in find("tests/*/test_*.py"):
        yield Program("python", short_name(source), [sys.executable, source],
                      limit=LIMIT_LONG_SECONDS, cases_expected=False)


def long_programs(build):
    if find("tests/serve/run.sh"):
        yield Program("serve", "serve/run.sh",
                      ["sh", "tests/serve/run.sh", os.path.join(build, "elpis"),
                       "tests/models/elpis-tiny", "--draft", "tests/models/elpis-tiny-dflash2"],
                      LIMIT_LONG_SECONDS, lacking("node", "npm"))
    if find("proofs/prove.sh"):
        yield Program("proofs", "proofs", ["sh", "proofs/prove.sh"], LIMIT_LONG_SECONDS,
                      lacking("coqc"), cases_expected=False)


def lint_programs(full):
    checks = [("lint-format", formatter_missing()), ("lint-lua", lacking("luacheck")),
              ("lint-templates", lacking("lua5.4")), ("lint-width", None)]
    if full:
        checks.append(("lint-tidy", lacking("clang-tidy")))
    for target, missing in checks:
        yield Program("lint", target, ["make", "-s", target], missing=missing,
                      cases_expected=False)


def formatter_missing():
    """clang-format's idea of a style changes with its version; the sources are formatted by 14."""
    if not shutil.which("clang-format"):
        return "needs clang-format"
    text = subprocess.run(["clang-format", "--version"], capture_output=True, text=True,
                          check=False).stdout
    if re.search(r"version 14\.", text):
        return None
    return "needs clang-format 14, found " + text.strip()


# ---- building


def build_everything(arguments):
    """Builds what the suites run, showing it. Returns (what was more than progress, status)."""
    targets = ["tests"] if not arguments.only else [
        os.path.join(arguments.build, os.path.splitext(source)[0])
        for source in find("tests/*/test_*.c") if arguments.only in short_name(source)]
    if arguments.suite in (None, "serve", "python"):
        targets += ["all", "bench"]
    if not targets:
        return "", 0
    command = ["make", "-k", "-s", "-j%d" % arguments.jobs, "BUILD=" + arguments.build]
    print("building (%d jobs)" % arguments.jobs, flush=True)
    start = time.monotonic()
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    process = subprocess.Popen(command + arguments.make_argument + targets, cwd=ROOT,
                               env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
    said = []
    for line in process.stdout:
        print("  " + line, end="", flush=True)
        if not re.match(r"(cc|link) ", line):
            said.append(line)
    status = process.wait()
    print("built in %.0f s" % (time.monotonic() - start), flush=True)
    return "".join(said), status


def without_build(programs, arguments):
    """Splits off the C programs that are not there or older than their source: not built."""
    ready, broken = [], []
    for program in programs:
        binary = program.command[-1]
        source = "tests/" + program.name + ".c"
        is_current = program.suite != "c" or (
            os.path.exists(binary) and os.path.getmtime(binary) >= os.path.getmtime(source))
        (ready if is_current else broken).append(program)
    return ready, broken


def tsan_wrap(arguments):
    """ThreadSanitizer of older compilers needs a fixed address layout on newer kernels."""
    if not any("fsanitize=thread" in text for text in arguments.make_argument):
        return []
    wrap = ["setarch", "-R"]
    works = shutil.which("setarch") and subprocess.run(wrap + ["true"], check=False,
                                                      stderr=subprocess.DEVNULL).returncode == 0
    return wrap if works else []


def test_environment(arguments):
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    environment.update({
        "BUILD": arguments.build,
        "ELPIS": os.path.join(arguments.build, "elpis"),
        "ELPIS_CACHE": os.path.join(ROOT, arguments.build, "test-cache"),
        # not those of whoever runs the tests: they change plans
        "ELPIS_RECORDS": os.path.join(ROOT, arguments.build, "test-records"),
        "CMOCKA_MESSAGE_OUTPUT": "TAP",
        "LUA_PATH": "lua/?.lua;schedules/?.lua;tests/lua/?.lua;tests/schedules/?.lua;;",
        "PYTHON": sys.executable,
        "ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1",
    })
    return environment


# ---- the report


def progress_line(outcome):
    parts = ["%d passed" % len(outcome.passed)]
    if outcome.failed:
        parts.append("%d FAILED" % len(outcome.failed))
    if outcome.skipped:
        parts.append("%d skipped" % len(outcome.skipped))
    return "%6.1f s  %-44s %s" % (outcome.seconds, outcome.program.name, ", ".join(parts))


def failures(outcomes, broken, build_output):
    """Lines: what the build said, then each program that failed, its cases and its output's end."""
    if broken or build_output.strip():
        yield "\n---- the build said"
        yield from build_output.splitlines()[-4 * TAIL_LINES:]
    for outcome in outcomes:
        if not outcome.failed:
            continue
        yield "\n---- %s: %s" % (outcome.program.name, " ".join(outcome.program.command))
        for name in outcome.failed:
            yield "FAILED  %s: %s" % (outcome.program.name, name)
        lines = [line for line in outcome.output.splitlines() if not re.match(r"^\s*ok\b", line)]
        yield from ("    " + line for line in lines[-TAIL_LINES:])
    for program in broken:
        yield "FAILED  %s: does not build" % program.name


def summary(outcomes, broken, build_failed, seconds):
    """Lines: the skipped cases, the time a suite, and the closing line. Also how many failed."""
    by_suite = {}
    for outcome in outcomes:
        entry = by_suite.setdefault(outcome.program.suite, [0, 0.0])
        entry[0] += len(outcome.passed) + len(outcome.failed)
        entry[1] += outcome.seconds
    lines = ["skipped  %s: %s" % (outcome.program.name, name)
             for outcome in outcomes for name in outcome.skipped]
    lines.append("\ntime: " + ", ".join("%s %d cases in %.0f s" % (suite, count, spent)
                                        for suite, (count, spent) in by_suite.items())
                 + ", %.0f s in all" % seconds)
    passed = sum(len(outcome.passed) for outcome in outcomes)
    failed = sum(len(outcome.failed) for outcome in outcomes) + len(broken)
    failed += 1 if build_failed and not broken else 0
    skipped = sum(len(outcome.skipped) for outcome in outcomes)
    lines.append("%d passed, %d failed%s"
                 % (passed, failed, ", %d skipped" % skipped if skipped else ""))
    return lines, failed


def run_all(programs, arguments):
    """Runs the programs side by side, started in the order of the list; prints each at its end."""
    environment = test_environment(arguments)
    lock = threading.Lock()

    def run_and_print(program):
        outcome = run_program(program, environment)
        with lock:
            print(progress_line(outcome), flush=True)
        return outcome

    with concurrent.futures.ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        return list(pool.map(run_and_print, programs))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="folder of built things")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--suite", help="only this suite: c, lua, python, serve, proofs, lint")
    parser.add_argument("--only", help="only programs whose name holds this text")
    parser.add_argument("--full", action="store_true", help="clang-tidy too")
    parser.add_argument("--limit", type=int, default=LIMIT_SECONDS,
                        help="seconds that a C program may run")
    parser.add_argument("--make-argument", action="append", default=[],
                        help="NAME=VALUE handed to make")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    start = time.monotonic()
    programs = [*long_programs(arguments.build), *python_programs(),
                *c_programs(arguments.build, tsan_wrap(arguments), arguments.limit),
                *lua_programs(), *lint_programs(arguments.full)]
    if arguments.suite:
        programs = [program for program in programs if program.suite == arguments.suite]
    if arguments.only:
        programs = [program for program in programs if arguments.only in program.name]
    build_output, build_status = build_everything(arguments)
    ready, broken = without_build(programs, arguments)
    outcomes = run_all(ready, arguments)
    last, failed = summary(outcomes, broken, build_status != 0, time.monotonic() - start)
    report = "\n".join([*failures(outcomes, broken, build_output if build_status else ""), *last])
    print(report)
    os.makedirs(os.path.join(ROOT, arguments.build), exist_ok=True)
    with open(os.path.join(ROOT, arguments.build, REPORT), "w", encoding="utf-8") as file:
        file.write(report + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
