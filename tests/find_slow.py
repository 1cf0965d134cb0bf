"""Write `slow.txt`, the tests that `pytest` leaves out unless asked.

    KERAS_BACKEND=tensorflow pytest -n 2 -m "" --junitxml=times.xml
    python tests/find_slow.py times.xml
    KERAS_BACKEND=jax pytest -n 2 --junitxml=jax.xml
    python tests/find_slow.py --add --seconds 2 jax.xml

A test function is slow if it takes more than `SECONDS` on TensorFlow, in the
mean over its parameters: most of these trace and train a network. `--add` keeps
what is listed, for a run of the others alone or on another backend.
"""

import argparse
import collections
import pathlib
import xml.etree.ElementTree

SECONDS = 0.12
SLOW = pathlib.Path(__file__).parent / "slow.txt"


def read_times(path):
    """Seconds of each run of each function, by `file::Class::function`."""
    root = pathlib.Path(__file__).parents[1]
    times = collections.defaultdict(list)
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        classes = []
        while not (root / "/".join(parts)).with_suffix(".py").exists():
            classes.insert(0, parts.pop())
        function = case.attrib["name"].split("[")[0]
        names = "::".join([*classes, function])
        times[f"{'/'.join(parts)}.py::{names}"].append(
            float(case.attrib["time"])
        )
    return times


def slow_functions(times, seconds=SECONDS):
    return sorted(
        name for name, runs in times.items() if sum(runs) / len(runs) > seconds
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("times", help="what pytest wrote with --junitxml")
    parser.add_argument("--add", action="store_true", help="to what is listed")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    names = slow_functions(read_times(arguments.times), arguments.seconds)
    if arguments.add:
        names = sorted({*names, *SLOW.read_text().splitlines()})
    SLOW.write_text("\n".join(names) + "\n")
    print(len(names), "slow test functions")
