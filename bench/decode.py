#!/usr/bin/env python3
"""Tokens per second of greedy decoding, by `elpis run` as a user runs it.

Reported is the program's own figure for the decode phase; loading, compiling and the prompt are
not in it. A first run that is not counted fills the kernel cache.
"""

import argparse
import re

import measure

RATE = re.compile(r"reply: \d+ tokens, ([0-9][0-9.]*)/s")


def rate_of(command):
    _, errors = measure.run(command)
    found = RATE.findall(errors)
    if not found:
        raise SystemExit("decode: no tokens per second in what the program said:\n" + errors)
    return float(found[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    measure.add_arguments(parser)
    parser.add_argument("--prompt", default="Tell a story about a clever fox named Ada.")
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()

    variants = measure.variants_of(arguments)
    for variant in variants:
        variant.command = [variant.program, "run", arguments.model, "-p", arguments.prompt,
                           "--temperature", "0", "--max-tokens", str(arguments.tokens),
                           "--device", arguments.device] + variant.options
        rate_of(variant.command)
    for _ in range(arguments.runs):
        for variant in variants:
            variant.values.append(rate_of(variant.command))
    measure.report("decode", "tokens/s", variants, arguments.save)


if __name__ == "__main__":
    main()
