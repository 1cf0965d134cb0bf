"""What reliability diagrams of 1,000,000 x 10 predictions cost.

    python examples/benchmarks/plots.py [number of samples]

Each kind of diagram in a process of its own: seconds to compute and to write
the PNG, without the imports, by the clock and of all processors, which other
programs slow down less; and the most memory of the process, with the
predictions and the imports in it.
"""

import platform
import subprocess
import sys

KINDS = ("bars", "corp", "smooth", "classwise", "risk_coverage")


def measure(kind, number):
    """Seconds and GiB of one figure, printed as a row of a table."""
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
    print(f"| {kind} | {seconds:.2f} | {used:.2f} | {peak:.2f} |")


def main():
    if len(sys.argv) == 3:
        measure(sys.argv[1], int(sys.argv[2]))
        return
    number = sys.argv[1] if len(sys.argv) > 1 else "1000000"
    print(f"{platform.machine()}, {int(number):,} x 10 predictions\n")
    print("| figure | s | s of processor | GiB, peak |\n|---|---|---|---|", flush=True)
    for kind in KINDS:
        subprocess.run([sys.executable, __file__, kind, number], check=True)


if __name__ == "__main__":
    main()
