"""Shared by the measuring programs: variants, rounds, medians, the record of a result.

A variant is "NAME", "NAME: OPTIONS" or "NAME@PROGRAM: OPTIONS". Variants take turns: one run of
each makes a round. Ratios are taken inside a round and their median is reported, so slow drift of
the machine cancels. Format of a saved line: results/README.md.
"""

import datetime
import functools
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Variant:
    def __init__(self, text, program):
        name, _, options = text.partition(":")
        name, _, other = name.partition("@")
        self.name = name.strip()
        self.program = other.strip() or program
        self.options = shlex.split(options)
        self.command, self.values = None, []


def add_arguments(parser):
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "elpis"))
    parser.add_argument("--model", default=os.path.join(ROOT, "tests", "models", "elpis-tiny"))
    parser.add_argument("--device", default="auto", help="auto, cuda, host")
    parser.add_argument("--runs", type=int, default=5, help="rounds; default 5")
    parser.add_argument("--variant", action="append", metavar="NAME[@PROGRAM][: OPTIONS]",
                        help="may be given several times; default: one, without options")
    parser.add_argument("--save", metavar="NAME", help="append to bench/results/NAME.jsonl")


def variants_of(arguments):
    return [Variant(text, arguments.program) for text in arguments.variant or ["elpis"]]


def run(command, environment=None):
    """Runs a command; its standard output and error. Ends the program when it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False,
                            env=dict(os.environ, **(environment or {})))
    if result.returncode != 0:
        raise SystemExit("%s: exit status %d\n%s" % (shlex.join(command), result.returncode,
                                                     result.stderr.strip()[-2000:]))
    return result.stdout, result.stderr


def machine():
    """Processor and GPU in words."""
    processor = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip()
                     for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    text = "%s, %d cores" % (processor, os.cpu_count() or 0)
    if shutil.which("nvidia-smi"):
        query = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version",
                                "--format=csv,noheader"],
                               capture_output=True, text=True, check=False)
        gpus = query.stdout.strip().splitlines()
        text += "; " + gpus[0] if query.returncode == 0 and gpus else ""
    return text


@functools.lru_cache(maxsize=None)  # before a saved result changes the tree
def commit():
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True,
                              check=False).stdout.strip()
    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")


def report(benchmark, unit, variants, save):
    """Prints a line a variant; appends a record a variant to the file named by save."""
    width = max(len(variant.name) for variant in variants)
    print("%-*s  %10s  %21s  %8s   (%s)"
          % (width, "", "median", "lowest .. highest", "ratio", unit))
    records = []
    for variant in variants:
        ratio = statistics.median(own / first for own, first
                                  in zip(variant.values, variants[0].values))
        median = statistics.median(variant.values)
        print("%-*s  %10.3f  %9.3f .. %8.3f  %8.3f"
              % (width, variant.name, median, min(variant.values), max(variant.values), ratio))
        records.append(dict(record_of(benchmark, unit, variant, variant.values),
                            ratio=round(ratio, 4)))
    keep(records, save)


def record_of(benchmark, unit, variant, values):
    """What a saved line holds whatever was measured."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(), "benchmark": benchmark, "machine": machine(),
        "variant": variant.name, "command": shlex.join(variant.command), "unit": unit,
        "values": [round(value, 4) for value in values],
        "median": round(statistics.median(values), 4)}


def keep(records, save):
    """Appends records to the file named by save, if there is a name."""
    if save:
        path = os.path.join(ROOT, "bench", "results", save + ".jsonl")
        with open(path, "a", encoding="utf-8") as out:
            out.writelines(json.dumps(record) + "\n" for record in records)
        print("appended to " + os.path.relpath(path))
