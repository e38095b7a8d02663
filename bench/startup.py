#!/usr/bin/env python3
"""Seconds from the start of `elpis run` to its end after one token: cold and warm.

Cold has an empty kernel cache, so that every kernel is compiled; warm has the cache that the cold
run left. The weights are in the page cache in both: a first run that is not counted reads them.
"""

import argparse
import copy
import shutil
import tempfile
import time

import measure


def seconds_of(command, cache):
    start = time.monotonic()
    measure.run(command, {"ELPIS_CACHE": cache})
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    measure.add_arguments(parser)
    arguments = parser.parse_args()

    pairs = []
    for cold in measure.variants_of(arguments):
        cold.command = [cold.program, "run", arguments.model, "-p", "Hi", "--max-tokens", "1",
                        "--device", arguments.device] + cold.options
        warm = copy.deepcopy(cold)
        cold.name, warm.name = cold.name + ", cold", warm.name + ", warm"
        pairs.append((cold, warm))
    for round_number in range(arguments.runs + 1):
        for cold, warm in pairs:
            cache = tempfile.mkdtemp(prefix="elpis-startup-")
            try:
                times = seconds_of(cold.command, cache), seconds_of(warm.command, cache)
            finally:
                shutil.rmtree(cache)
            if round_number > 0:
                cold.values.append(times[0])
                warm.values.append(times[1])
    measure.report("startup", "s", [variant for pair in pairs for variant in pair], arguments.save)


if __name__ == "__main__":
    main()
