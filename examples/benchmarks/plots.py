"""What reliability diagrams of 1,000,000 x 10 predictions cost.

    python examples/benchmarks/plots.py [--samples 1000000] [--store]

Each kind of diagram in a process of its own: seconds to compute and to write
the PNG, without the imports, by the clock and of all processors, which other
programs slow down less; and the most memory of the process, with the
predictions and the imports in it.
"""

import argparse
import json
import platform
import subprocess
import sys

import cost_rows
from argument_types import positive_int

KINDS = ("bars", "corp", "smooth", "classwise", "risk_coverage")


def measure(kind, number):
    """Seconds and GiB of one figure, as a dict."""
    import io
    import resource
    import time

    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    import keras_calib as kc

    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((number, 10), "float32")
    noise = -np.log(rng.standard_exponential(logits.shape, "float32"))
    labels = (logits / 2 + noise).argmax(axis=1)
    del noise
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    pyplot.figure().savefig(io.BytesIO())  # fonts are found once
    start, used = time.perf_counter(), time.process_time()
    if kind == "classwise":
        figure = kc.plots.classwise_reliability(labels, logits, kind="bars")
    elif kind == "risk_coverage":
        figure = kc.plots.risk_coverage(labels, logits)
    else:
        figure = kc.plots.reliability_diagram(labels, logits, kind=kind)
    figure.savefig(io.BytesIO(), format="png")
    seconds = time.perf_counter() - start
    used = time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    return {"seconds": seconds, "processor": used, "peak": peak}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=positive_int, default=1_000_000)
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    cost_rows.add_option(parser)
    arguments = parser.parse_args()
    number = arguments.samples
    if arguments.one:
        print(json.dumps(measure(arguments.one, number)))
        return
    print(f"{platform.machine()}, {number:,} x 10 predictions\n")
    print("| figure | s | s of processor | GiB, peak |")
    print("|---|---|---|---|", flush=True)
    for kind in KINDS:
        command = [sys.executable, __file__, "--one", kind]
        command += ["--samples", str(number)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        found = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{value:.2f}" for value in found.values()]
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)
        values = {"figure": kind, "samples": number}
        cost_rows.store(arguments.store, "plots", **values, **found)


if __name__ == "__main__":
    main()
