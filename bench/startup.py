#!/usr/bin/env python3
"""Seconds from the start of `elpis run` to its end after one token: cold and warm; compiles.

Cold has an empty kernel cache, so that every kernel is compiled; warm has the cache that the cold
run left. The weights are in the page cache in both: a first run that is not counted reads them.
Below stand the kernels that the cold start compiled, how many of each and the seconds that their
compiles took; several run at once, so the sum is more than the start took longer.
"""

import argparse
import collections
import copy
import re
import shutil
import statistics
import tempfile
import time

import measure

COMPILED = re.compile(r"^debug: compiled kernel (\w+): ([0-9.]+) s$", re.MULTILINE)


def start(command, cache):
    """Seconds of one start, and its compiles: [(kernel, seconds)]."""
    begun = time.monotonic()
    _, said = measure.run(command, {"ELPIS_CACHE": cache, "ELPIS_LOG": "debug"})
    seconds = time.monotonic() - begun
    return seconds, [(name, float(text)) for name, text in COMPILED.findall(said)]


def by_kernel(compiles):
    """kernel -> [compiles, median over the starts of their seconds]; compiles: a list a start."""
    counts = collections.Counter(name for name, _ in compiles[0])
    sums = [collections.Counter() for _ in compiles]
    for total, started in zip(sums, compiles):
        for name, seconds in started:
            total[name] += seconds
    return {name: [counts[name], round(statistics.median(total[name] for total in sums), 4)]
            for name in counts}


def report_compiles(variant, save):
    """Prints a line a kernel, the slowest first; saves one record."""
    kernels = by_kernel(variant.compiles)
    totals = [sum(seconds for _, seconds in started) for started in variant.compiles]
    count = sum(number for number, _ in kernels.values())
    print("\n%s: %d compiles, %.3f s together" % (variant.name, count, statistics.median(totals)))
    for name, (number, seconds) in sorted(kernels.items(), key=lambda item: -item[1][1]):
        print("%-28s %3d  %8.3f s" % (name, number, seconds))
    record = measure.record_of("compiles", "s", variant, totals)
    measure.keep([dict(record, compiles=count, by_kernel=kernels)], save)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    measure.add_arguments(parser)
    arguments = parser.parse_args()

    pairs = []
    for cold in measure.variants_of(arguments):
        cold.command = [cold.program, "run", arguments.model, "-p", "Hi", "--max-tokens", "1",
                        "--device", arguments.device] + cold.options
        cold.compiles = []
        warm = copy.deepcopy(cold)
        cold.name, warm.name = cold.name + ", cold", warm.name + ", warm"
        pairs.append((cold, warm))
    for round_number in range(arguments.runs + 1):
        for cold, warm in pairs:
            cache = tempfile.mkdtemp(prefix="elpis-startup-")
            try:
                first, second = start(cold.command, cache), start(warm.command, cache)
            finally:
                shutil.rmtree(cache)
            if round_number > 0:
                cold.values.append(first[0])
                cold.compiles.append(first[1])
                warm.values.append(second[0])
                warm.compiles.append(second[1])
    measure.report("startup", "s", [variant for pair in pairs for variant in pair], arguments.save)
    for cold, warm in pairs:
        report_compiles(cold, arguments.save)
        if any(warm.compiles):
            raise SystemExit("%s: compiled kernels that the cold start has left" % warm.name)


if __name__ == "__main__":
    main()
